# Redis, twice: in memory only, and with an append-only file that is synced before every answer.

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
