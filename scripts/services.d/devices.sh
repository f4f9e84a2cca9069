# Devices on independent libraries: one on the WebSocket library `ws` of Node, one on `websockets` of Python. An HTTP request
# returns the frames that such a device received, and its end.

service_devices() {
  address="127.0.0.1:${WHIMBREL_DEVICES_PORT:-17641}"
  packages=(node:nodejs npm:npm curl:curl python3:python3)
  variables=("WHIMBREL_TEST_DEVICES=$address")
  prepare() {
    local library="$services_dir/devices/library" python="$services_dir/devices/python"
    [[ -d "$library/node_modules/ws" ]] ||
      npm install --silent --no-fund --no-audit --prefix "$library" ws@8.18.3 >&2
    if [[ ! -x "$python/bin/python" ]]; then
      python3 -m venv "$python" >&2 || { as_root apt-get install -y -qq python3-venv >&2 && python3 -m venv "$python" >&2; }
    fi
    "$python/bin/python" -c 'import websockets' 2>/dev/null || "$python/bin/pip" install -q websockets==15.0.1 >&2
  }
  start=(env "NODE_PATH=$services_dir/devices/library/node_modules" "PYTHON=$services_dir/devices/python/bin/python"
    node "$here/services.d/devices/devices.js" "$address")
  serves() { [[ "$(curl -s -m 2 "http://$address/" 2>/dev/null)" == ready ]]; }
}
