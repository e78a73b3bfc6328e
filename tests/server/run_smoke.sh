#!/bin/bash
# `make run` as somebody uses it who has just unpacked Furrow: the drives are made, /demo is served, files survive a second
# start, Ctrl-C is a clean end, and a second one is not started by accident. On loopback, with ports of its own.
# shellcheck disable=SC2016 # what stands in single quotes is for the inner shell
set -u
cd "$(dirname "$0")/../.." || exit 1
name=run
. tests/server/smoke.sh
unset MAKEFLAGS MAKELEVEL MFLAGS # it may be make itself that runs this

# shellcheck disable=SC2317
cleanup() {
	[ -z "$server" ] || kill -KILL -- "-$server" 2>/dev/null
	rm -rf "$work"
}
trap cleanup EXIT

PORT=$(free_port)
METRICS=127.0.0.1:$(free_port)
export PORT METRICS BUILD=$build VAR=$work/var MEMORY=256MiB RDMA=off
query="version=3&nfsport=$PORT&mountport=$PORT"
url=nfs://127.0.0.1/demo

start() {
	: >"$work/log" # what the last one said is not what this one says
	# in a process group of its own, which cleanup can end
	setsid etc/demo.sh >"$work/log" 2>&1 &
	server=$!
	for ((i = 0; i < 300; i++)); do
		grep -q 'mount -t nfs' "$work/log" && return 0
		kill -0 "$server" 2>/dev/null || return 1
		sleep 0.1
	done
	return 1
}
stop() {
	kill -INT "$(pgrep -P "$server" -x furrowd)" || return 1
	wait "$server"
	local status=$?
	server=
	return $status
}
furrow() {
	"$build/furrow" "$@" --config "$work/var/furrow.yaml"
}
same() { # FILE NAME
	nfs-cat "$url/$2?$query" | cmp - "$1"
}

check "starts" start
check "prints a mount line that needs no rpcbind" \
	grep -q "mount -t nfs -o vers=3,tcp,port=$PORT,mountport=$PORT,mountproto=tcp,nolock 127.0.0.1:/demo /mnt" "$work/log"
head -c 3000000 /dev/urandom >"$work/file"
if command -v nfs-cp >/dev/null; then
	check "a file is written" nfs-cp "$work/file" "$url/file?$query"
	check "and read again" same "$work/file" file
	check "and listed" bash -c "nfs-ls '$url?$query' | grep -q ' file\$'"
fi
check "status" bash -c "'$build/furrow' status --config '$work/var/furrow.yaml' | grep -q '^demo/demo *mounted'"
check "status as JSON" bash -c "'$build/furrow' status --json --config '$work/var/furrow.yaml' | python3 -c 'import json, sys; s = json.load(sys.stdin); assert s[\"server\"][\"nfs_port\"] == $PORT and s[\"arrays\"][0][\"state\"] == \"healthy\" and len(s[\"arrays\"][0][\"members\"]) == 6'"
cat >"$work/metrics.py" <<'END'
import re, sys, urllib.request
page = urllib.request.urlopen("http://%s/metrics" % sys.argv[1], timeout=10).read().decode()
seen, types, family = set(), {}, None
for line in page.splitlines():
    if line.startswith("# TYPE "):
        family, kind = line.split()[2:4]
        assert family not in types, line
        assert (kind == "counter") == family.endswith("_total"), line
        types[family] = kind
    elif not line.startswith("#"):
        name, labels, value = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-z_]+="[^"\\]*",?)*\})? ([-+.0-9eEinfIN]+)', line).groups()
        float(value)
        assert re.sub("_(bucket|sum|count)$", "", name) == family or name == family, line
        assert (name, labels) not in seen, line
        seen.add((name, labels))
assert ("furrow_fs_size_bytes", '{fs="demo/demo"}') in seen
assert ("furrow_array_degraded", '{array="demo"}') in seen
assert "furrow_rpc_latency_seconds" in types
END
check "metrics, in Prometheus' format" python3 "$work/metrics.py" "$METRICS"
check "reload" furrow reload
check "check while it serves" furrow fs check demo/demo
check "a second one refuses to start" bash -c '! etc/demo.sh >"'"$work"'/second" 2>&1 && grep -q "running already" "'"$work"'/second" && [ "$(wc -l <"'"$work"'/second")" = 1 ]'
check "its drives are refused to others" bash -c "! '$build/furrow' array create x --level 6 --force --yes '$work'/var/drives/d*.img --control /nonexistent/socket"
# a second array while the server runs, up to an export of it and back
extra=()
for i in 6 7 8 9; do
	truncate -s 256M "$work/var/drives/d$i.img"
	extra+=("$work/var/drives/d$i.img")
done
cp "$work/var/furrow.yaml" "$work/before.yaml"
check "an array is made beside the server" furrow array create extra --level 1 --yes "${extra[@]}"
check "and the server knows it" bash -c "'$build/furrow' array status extra --config '$work/var/furrow.yaml' | grep -q healthy"
check "a file system is made by the server" furrow fs create extra/more --yes
check "and is mounted" bash -c "'$build/furrow' fs list --config '$work/var/furrow.yaml' | grep -q '^extra/more *mounted'"
cat >>"$work/var/furrow.yaml" <<END
  - path: /more
    filesystem: extra/more
    allow: {clients: 127.0.0.1, access: rw, squash: none}
END
check "a reload exports it" furrow reload
if command -v nfs-cp >/dev/null; then
	check "a file is written there" nfs-cp "$work/file" "nfs://127.0.0.1/more/file?$query"
	check "and read again" bash -c "nfs-cat 'nfs://127.0.0.1/more/file?$query' | cmp - '$work/file'"
fi
check "what is exported is not destroyed" bash -c "! '$build/furrow' fs destroy extra/more --yes --config '$work/var/furrow.yaml'"
check "nor is its array" bash -c "! '$build/furrow' array destroy extra --yes --config '$work/var/furrow.yaml'"
echo "  nonsense: 1" >>"$work/var/furrow.yaml"
check "a reload with a mistake is refused, with its place" bash -c "! '$build/furrow' reload --config '$work/before.yaml' 2>'$work/second' && grep -q 'furrow.yaml:[0-9]*:[0-9]*: ' '$work/second'"
cp "$work/before.yaml" "$work/var/furrow.yaml"
check "a reload takes the export away" furrow reload
check "then the file system can be destroyed" furrow fs destroy extra/more --yes
check "and the array" furrow array destroy extra --yes
rm -f "${extra[@]}"

(while python3 "$work/metrics.py" "$METRICS"; do :; done) 2>/dev/null &
sleep 0.5
check "SIGINT is a clean end with status 0, also while metrics are read" stop
check "a check without a server" furrow fs check demo/demo
check "starts again" start
[ ! -e "$work/file" ] || ! command -v nfs-cp >/dev/null || check "the data is still there" same "$work/file" file
check "a port that is taken is one line with a hint" bash -c 'VAR="'"$work"'/other" etc/demo.sh >"'"$work"'/second" 2>&1; [ $? != 0 ] && [ "$(grep -c . "'"$work"'/second")" = 1 ] && grep -q "PORT=" "'"$work"'/second"'
check "ends again" stop

# `make run` itself in a terminal (without its build): Ctrl-C reaches the server alone, and make ends with 0.
cat >"$work/terminal.py" <<'END'
import os, pty, select, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execvp("make", ["make", "--no-print-directory", "run"] + sys.argv[1:])
said, deadline = b"", time.time() + 120
def listen(until):
    global said
    while until not in said and time.time() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                data = b""
            if not data:
                return until in said
            said += data
    return until in said
started = listen(b"mount -t nfs")
time.sleep(0.3)
os.write(terminal, b"\x03")
listen(b"never said")
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.stdout.write(said.decode(errors="replace"))
print("started", started, "status", status)
sys.exit(0 if started and status == 0 and b"stopped" in said else 1)
END
check "make run in a terminal: Ctrl-C is a clean end with status 0" \
	timeout 150 python3 "$work/terminal.py" MAKE=true BUILD="$build" VAR="$VAR" PORT="$PORT" METRICS="$METRICS" RDMA=off MEMORY=256MiB
echo "1..$number"
[ $failures = 0 ]
