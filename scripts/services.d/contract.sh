# Outside tools for the API document: a linter, two generators of clients, and a generator of requests. They are installed under
# target/services; the process only marks that they exist. Tests find them in the folder that WHIMBREL_TEST_CONTRACT names.

service_contract() {
  address="-"
  packages=(node:nodejs npm:npm python3:python3)
  variables=("WHIMBREL_TEST_CONTRACT=$services_dir/contract")
  prepare() {
    local node="$services_dir/contract/node" python="$services_dir/contract/python"
    [[ -x "$node/node_modules/.bin/redocly" && -x "$node/node_modules/.bin/openapi-typescript" ]] ||
      npm install --silent --no-fund --no-audit --prefix "$node" \
        @redocly/cli@2.77.0 openapi-typescript@7.13.0 openapi-fetch@0.17.0 typescript@5.9.3 >&2
    if [[ ! -x "$python/bin/python" ]]; then
      python3 -m venv "$python" >&2 || { as_root apt-get install -y -qq python3-venv >&2 && python3 -m venv "$python" >&2; }
    fi
    [[ -x "$python/bin/openapi-python-client" ]] || "$python/bin/pip" install -q openapi-python-client==0.29.1 >&2
    [[ -x "$python/bin/schemathesis" ]] || "$python/bin/pip" install -q schemathesis==4.32.5 >&2
  }
  start=(sleep infinity)
  serves() { [[ -x "$services_dir/contract/python/bin/openapi-python-client" && -x "$services_dir/contract/python/bin/schemathesis" ]]; }
}
