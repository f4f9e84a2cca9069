# Redis, three times: in memory only, with an append-only file that is synced before every answer, and a Cluster of three
# primaries in memory.

service_redis() {
  redis_on "${WHIMBREL_REDIS_PORT:-17679}" --save '' --appendonly no
  variables=("WHIMBREL_TEST_REDIS=$address")
}

service_redis_always() {
  redis_on "${WHIMBREL_REDIS_ALWAYS_PORT:-17678}" --save '' --appendonly yes --appendfsync always
  variables=("WHIMBREL_TEST_REDIS_ALWAYS=$address")
}

redis_on() {
  local port="$1"
  shift
  address="127.0.0.1:$port"
  packages=(redis-server:redis-server redis-cli:redis-tools)
  prepare() { :; }
  start=(redis-server --bind 127.0.0.1 --port "$port" --dir "$data" --daemonize no "$@")
  serves() { [[ "$(redis-cli -h 127.0.0.1 -p "${address##*:}" ping 2>/dev/null)" == PONG ]]; }
}

# The three nodes are processes of one small script, which stops them when it is stopped. Their bus ports are 10 000 above.
service_redis_cluster() {
  local first="${WHIMBREL_REDIS_CLUSTER_PORT:-17681}"
  cluster_ports=("$first" $((first + 1)) $((first + 2)))
  address="127.0.0.1:$first"
  variables=("WHIMBREL_TEST_REDIS_CLUSTER=$(printf '127.0.0.1:%s,' "${cluster_ports[@]}" | sed 's/,$//')")
  packages=(redis-server:redis-server redis-cli:redis-tools)

  prepare() {
    local port
    for port in "${cluster_ports[@]}"; do mkdir -p "$data/$port"; done
  }

  start=(bash "$here/services.d/redis_cluster" "$data" "${cluster_ports[@]}")

  serves() {
    local port
    for port in "${cluster_ports[@]}"; do
      redis-cli -h 127.0.0.1 -p "$port" cluster info 2>/dev/null | grep -q '^cluster_state:ok' || return 1
    done
  }
}
