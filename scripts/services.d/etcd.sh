# etcd: one member, which syncs every write.

service_etcd() {
  address="127.0.0.1:${WHIMBREL_ETCD_PORT:-17379}"
  local peer="127.0.0.1:${WHIMBREL_ETCD_PEER_PORT:-17380}"
  packages=(etcd:etcd-server curl:curl)
  variables=("WHIMBREL_TEST_ETCD=$address")
  prepare() { :; }
  start=(etcd --name default --data-dir "$data/etcd" --logger zap
    --listen-client-urls "http://$address" --advertise-client-urls "http://$address"
    --listen-peer-urls "http://$peer" --initial-advertise-peer-urls "http://$peer"
    --initial-cluster "default=http://$peer")
  # A member without a leader answers too, and reports it.
  serves() { [[ "$(curl -s -m 2 "http://$address/health" 2>/dev/null)" == *'"health":"true"'* ]]; }
}
