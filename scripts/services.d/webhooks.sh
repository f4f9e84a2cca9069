# A subscriber on an independent library: it verifies callbacks with the library of Standard Webhooks. It answers 204 if the
# signature is valid for the secret in its path, and 400 if it is not.

service_webhooks() {
  address="127.0.0.1:${WHIMBREL_WEBHOOKS_PORT:-17640}"
  packages=(node:nodejs npm:npm curl:curl)
  variables=("WHIMBREL_TEST_WEBHOOKS=$address")
  prepare() {
    local library="$services_dir/webhooks/library"
    [[ -d "$library/node_modules/standardwebhooks" ]] ||
      npm install --silent --no-fund --no-audit --prefix "$library" standardwebhooks@1.0.0 >&2
  }
  start=(env "NODE_PATH=$services_dir/webhooks/library/node_modules" node "$here/services.d/webhooks/subscriber.js" "$address")
  serves() { [[ "$(curl -s -m 2 "http://$address/" 2>/dev/null)" == ready ]]; }
}
