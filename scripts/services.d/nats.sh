# NATS with JetStream on disk, twice: with default settings, which acknowledge before a sync, and with a sync before every acknowledgement.

nats_version="${WHIMBREL_NATS_VERSION:-v2.15.2}"

service_nats() {
  nats_on "${WHIMBREL_NATS_PORT:-17622}" "${WHIMBREL_NATS_MONITOR_PORT:-17822}" ''
  variables=("WHIMBREL_TEST_NATS=$address" "WHIMBREL_TEST_NATS_MONITOR=$monitor")
}

service_nats_always() {
  nats_on "${WHIMBREL_NATS_ALWAYS_PORT:-17623}" "${WHIMBREL_NATS_ALWAYS_MONITOR_PORT:-17823}" 'sync_interval: always'
  variables=("WHIMBREL_TEST_NATS_ALWAYS=$address" "WHIMBREL_TEST_NATS_ALWAYS_MONITOR=$monitor")
}

nats_on() {
  address="127.0.0.1:$1"
  monitor="127.0.0.1:$2"
  nats_sync="$3"
  packages=(go:golang-go)

  prepare() {
    fetch_nats_server || return 1
    cat >"$data/server.conf" <<CONFIGURATION
listen: "$address"
http: "$monitor"
jetstream {
  store_dir: "$data/jetstream"
  $nats_sync
}
CONFIGURATION
  }

  start=("$services_dir/nats-bin/$nats_version/nats-server" --config "$data/server.conf")

  # The server's greeting, sent to every connection, shows whether JetStream is available.
  serves() {
    local greeting
    greeting="$( (exec 3<>"/dev/tcp/${address%:*}/${address##*:}" && read -r -t 2 greeting <&3 && printf '%s' "$greeting") 2>/dev/null)"
    [[ "$greeting" == INFO*'"jetstream":true'* ]]
  }
}

fetch_nats_server() {
  local bin="$services_dir/nats-bin/$nats_version"
  if [[ -x "$bin/nats-server" ]]; then
    return
  fi
  say "nats: building the server $nats_version"
  GOBIN="$bin" go install "github.com/nats-io/nats-server/v2@$nats_version" >&2
}
