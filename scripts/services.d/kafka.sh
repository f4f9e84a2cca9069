# Apache Kafka: one node, broker and controller in one process, from Maven Central. Also installs the other clients that the tests use:
# kcat, Kafka's own console tools, and Python's confluent-kafka in a virtual environment.

service_kafka() {
  address="127.0.0.1:${WHIMBREL_KAFKA_PORT:-17692}"
  variables=("WHIMBREL_TEST_KAFKA=$address" "WHIMBREL_TEST_KAFKA_LIBS=$services_dir/kafka/libs"
    "WHIMBREL_TEST_KAFKA_PYTHON=$services_dir/kafka/python/bin/python")
  packages=(java:openjdk-17-jre-headless mvn:maven kcat:kcat python3:python3)
  # Debian ships the module ensurepip, which a virtual environment needs, in a package of its own.
  python3 -c 'import ensurepip' 2>/dev/null || packages+=(ensurepip:python3-venv)

  prepare() {
    fetch_kafka_jars || return 1
    install_confluent_kafka || return 1
    cat >"$data/server.properties" <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:${WHIMBREL_KAFKA_CONTROLLER_PORT:-17693}
listeners=PLAINTEXT://$address,CONTROLLER://127.0.0.1:${WHIMBREL_KAFKA_CONTROLLER_PORT:-17693}
controller.listener.names=CONTROLLER
log.dirs=$data/log
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
PROPERTIES
    java -cp "$services_dir/kafka/libs/*" kafka.tools.StorageTool format --standalone \
      -t "$(new_kafka_cluster_id)" -c "$data/server.properties" >"$data/format.log" 2>&1 ||
      { cat "$data/format.log" >&2; return 1; }
  }

  start=(java -Xmx512m -cp "$services_dir/kafka/libs/*" kafka.Kafka "$data/server.properties")

  serves() { kcat -b "$address" -L -m 2 >/dev/null 2>&1; }
}

# Fetches the jars on the first run, and again after the pom has changed.
fetch_kafka_jars() {
  local pom="$here/services.d/kafka/pom.xml" libs="$services_dir/kafka/libs" wanted
  wanted="$(sha256sum <"$pom")"
  if [[ -f "$libs/.pom" && "$(<"$libs/.pom")" == "$wanted" ]]; then
    return
  fi
  say "kafka: fetching the broker from Maven Central"
  rm -rf "$libs"
  mkdir -p "$libs"
  # Without colours: the output goes to files.
  mvn -q -B -Dstyle.color=never -f "$pom" dependency:copy-dependencies -DoutputDirectory="$libs" >&2 || return 1
  printf '%s' "$wanted" >"$libs/.pom"
}

# Creates the virtual environment on the first run; later runs reuse it.
install_confluent_kafka() {
  local python="$services_dir/kafka/python"
  if "$python/bin/python" -c 'import confluent_kafka' 2>/dev/null; then
    return
  fi
  say "kafka: installing confluent-kafka from PyPI"
  rm -rf "$python"
  python3 -m venv "$python" >&2 || return 1
  "$python/bin/pip" install -q --disable-pip-version-check confluent-kafka >&2
}

# A cluster id is 16 bytes in URL-safe base64 without padding. Kafka's tool would take an id with a leading `-` for an
# option, so the first byte is always the same.
new_kafka_cluster_id() {
  { printf 'W'; head -c 15 /dev/urandom; } | base64 | tr '+/' '-_' | tr -d '='
}
