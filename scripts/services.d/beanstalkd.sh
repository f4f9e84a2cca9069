# beanstalkd with a binlog that is synced at every write.

service_beanstalkd() {
  local port="${WHIMBREL_BEANSTALKD_PORT:-17630}"
  address="127.0.0.1:$port"
  packages=(beanstalkd:beanstalkd)
  variables=("WHIMBREL_TEST_BEANSTALKD=$address")
  prepare() { mkdir -p "$data/binlog"; }
  start=(beanstalkd -l 127.0.0.1 -p "$port" -b "$data/binlog" -f0)

  # The answer to `stats` begins with a line that has its length.
  serves() {
    local greeting
    greeting="$( (exec 3<>"/dev/tcp/${address%:*}/${address##*:}" && printf 'stats\r\n' >&3 && read -r -t 2 greeting <&3 && printf '%s' "$greeting") 2>/dev/null)"
    [[ "$greeting" == OK* ]]
  }
}
