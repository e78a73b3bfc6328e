# smoke.sh: what the scripts that use Furrow's programs on this machine share. Sourced from the top of the tree, after `name`
# was set; defines build, work (a directory that goes at the end) and check.
build=$(cd "${FURROW_BUILD:-build}" && pwd)
# shellcheck disable=SC2154 # name
work=$(mktemp -d "/tmp/furrow-$name-XXXXXX")
server='' number=0 failures=0

# check TEXT COMMAND...: shows that the command succeeds; what it and the server said is printed only when it does not
check() {
	local text=$1
	shift
	number=$((number + 1))
	if "$@" >"$work/out" 2>&1; then
		echo "ok $number - $text"
	else
		echo "not ok $number - $text"
		sed 's/^/# /' "$work/out" | tail -20
		[ -e "$work/log" ] && sed 's/^/# log: /' "$work/log" | tail -20
		failures=$((failures + 1))
	fi
}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
# config_write [LINE]: four drives, one export; LINE is one more of the server's
config_write() {
	cat >"$work/furrow.yaml" <<END
server:
  listen: ["127.0.0.1"]
  nfs_port: $(free_port)
  rdma_port: off
  memory: 256MiB
  control: "$work/control.sock"
  metrics: off
  ${1:-}
drives: ["$work/d?"]
exports:
  - path: /data
    filesystem: a0/data
    allow:
      - {clients: 127.0.0.0/8, access: rw, squash: none}
END
	truncate -s 64M "$work"/d{0,1,2,3}
}
