# lib.sh: what the guest tests share. Sourced inside the guest, from the top of the tree.
#
# A test prints "ok NAME" or "not ok NAME" for each thing it shows (ok, not_ok, check), and ends with `finish`.
set -u
build=${FURROW_BUILD:-build}
export FURROW_CONFIG=/tmp/furrow.yaml
address=10.99.0.1
server_pid=
failures=0 shown=0

say() { echo "# $(cut -d' ' -f1 /proc/uptime) $*"; }
ok() { shown=$((shown + 1)); echo "ok $shown - $*"; }
not_ok() { shown=$((shown + 1)) failures=$((failures + 1)); echo "not ok $shown - $*"; }
# check NAME COMMAND...: shows that the command succeeds; its output is printed only when it does not
check() {
	local name=$1
	shift
	if "$@" >/tmp/check.out 2>&1; then ok "$name"; else
		not_ok "$name (exit $?: $*)"
		sed 's/^/#   /' /tmp/check.out | tail -20
	fi
}
# refuse NAME PATTERN COMMAND...: shows that the command fails with one line that matches
refuse() {
	local name=$1 pattern=$2
	shift 2
	if "$@" >/tmp/check.out 2>&1; then not_ok "$name (it succeeded: $*)"
	elif ! grep -Eq "$pattern" /tmp/check.out; then not_ok "$name (no line matches '$pattern')" && sed 's/^/#   /' /tmp/check.out | tail -5
	else ok "$name"; fi
}
equal() { [ "$2" = "$3" ] && ok "$1" || not_ok "$1: $2, not $3"; }
# results NAME COMMAND...: what it prints are results, "ok WHAT" or what is wrong
results() {
	local name=$1 line count=0
	shift
	while read -r line; do
		count=$((count + 1))
		case $line in "ok "*) ok "$name: ${line#ok }" ;; *) not_ok "$name: $line" ;; esac
	done < <("$@" 2>&1)
	[ $count -gt 0 ] || not_ok "$name: it shows nothing ($*)"
}
# A tenth of a second, without a process: for waits that would keep an emulated CPU busy.
exec {nothing}<> <(:)
pause() { read -rt 0.1 -u "$nothing"; }
# eventually SECONDS COMMAND...: it succeeds within that time
eventually() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.5; done
}
finish() {
	server_stop
	echo "1..$shown"
	exit $((failures > 0))
}
furrow() { "$build/furrow" --config "$FURROW_CONFIG" "$@"; }

config_write() { # [ALLOW-LINE]
	local allow=${1:-"{clients: 10.0.0.0/8, access: rw, squash: none"\}}
	cat >"$FURROW_CONFIG" <<Y
server:
  listen: ["$address", "127.0.0.1"]
  memory: ${FURROW_MEMORY:-512MiB}
  control: /run/furrow/control.sock
drives: ["/dev/ng*n1"]
exports:
  - path: /data
    filesystem: a0/data
    allow:
      - $allow
      - {clients: 127.0.0.0/8, access: rw, squash: none}
Y
}
# Until it says that it is ready: its control socket answers before it listens, and before rpcbind knows its lock manager.
server_start() {
	local i starts
	starts=$(grep -cs " ready version=" /tmp/furrowd.log)
	"$build/furrowd" --config "$FURROW_CONFIG" --foreground 2>>/tmp/furrowd.log &
	server_pid=$!
	for ((i = 0; i < 600; i++)); do
		[ "$(grep -c " ready version=" /tmp/furrowd.log)" -gt "${starts:-0}" ] && return 0
		kill -0 $server_pid 2>/dev/null || break
		sleep 0.1
	done
	not_ok "the server starts"
	tail -20 /tmp/furrowd.log | sed 's/^/#   /'
	server_pid=
	return 1
}
server_stop() {
	[ -n "$server_pid" ] || return 0
	kill -TERM $server_pid 2>/dev/null
	local i
	for ((i = 0; i < 300; i++)); do
		kill -0 $server_pid 2>/dev/null || break
		sleep 0.1
	done
	kill -0 $server_pid 2>/dev/null && { not_ok "the server stops within 30 s" && kill -9 $server_pid; }
	wait $server_pid 2>/dev/null
	server_pid=
}
server_kill() {
	kill -9 $server_pid
	wait $server_pid 2>/dev/null
	server_pid=
}
array_make() { # LEVEL: an array on all drives, with one file system, served
	config_write
	furrow array create a0 --level "$1" --yes /dev/ng*n1 || exit 1
	furrow fs create a0/data --yes || exit 1
	server_start || { tail -5 /tmp/furrowd.log; exit 1; }
}
nfs_modules() { modprobe nfsv3 && modprobe rpcrdma; }
mount_rdma() { # DIR [OPTIONS]
	mkdir -p "$1"
	mount -t nfs -o "vers=3,rdma,port=20049,mountport=2049,mountproto=tcp,nolock${2:+,$2}" $address:/data "$1"
}
mount_tcp() { # DIR [OPTIONS]
	mkdir -p "$1"
	mount -t nfs -o "vers=3,tcp,port=2049,mountport=2049,mountproto=tcp,nolock${2:+,$2}" $address:/data "$1"
}
# A link inside of this guest: the ends w1 (10.97.0.1) and w2 (10.97.0.2) of a veth pair, each with a soft-RoCE device (rxe1,
# rxe2). Both addresses are local, so rules of routing send what is for one through the other.
link_make() {
	local m n other
	for m in veth sch_netem rdma_rxe; do modprobe $m; done
	ip link add w1 type veth peer name w2
	for n in 1 2; do
		other=$((3 - n))
		ip addr add 10.97.0.$n/32 dev w$n
		ip link set w$n up mtu 9000
		echo 1 >/proc/sys/net/ipv4/conf/w$n/accept_local
		ip rule add pref $((10 + n)) iif w$n to 10.97.0.$n lookup local
		ip rule add pref $((20 + n)) to 10.97.0.$other lookup $((100 + n))
		ip route add 10.97.0.$other dev w$n src 10.97.0.$n table $((100 + n))
	done
	ip neigh add 10.97.0.2 lladdr "$(cat /sys/class/net/w2/address)" dev w1 nud permanent
	ip neigh add 10.97.0.1 lladdr "$(cat /sys/class/net/w1/address)" dev w2 nud permanent
	ip rule add pref 100 lookup local
	ip rule del pref 0
	rdma link add rxe1 type rxe netdev w1
	rdma link add rxe2 type rxe netdev w2
}
# The other guest of a pair (tests/run), which shares no more with this one than a network and the directory of requests. What
# is run by `guest 3` is about the third one: guest 3 peer LINE.
# peer LINE OF SHELL: runs it there and waits for its end; its output and exit status are the command's
peer_dir=$build/vm-peer0
guest() { local peer_dir=$build/vm-peer$(($1 - 2)) && shift && "$@"; }
peer() {
	local request=$peer_dir/$(date +%s%N)$RANDOM rc
	echo "$*" >"$request.new" && mv "$request.new" "$request.do"
	while [ ! -e "$request.rc" ]; do pause; done
	rc=$(cat "$request.rc")
	cat "$request.out"
	rm -f "$request".*
	return "$rc"
}
on() { # GUEST LINE OF SHELL: on whichever of them; 1 is this one
	if [ "$1" = 1 ]; then bash -c "$2"; else guest "$1" peer "$2"; fi
}
# on_all LINE: runs it (MOUNT in it is the mount) in all $places (GUEST:MOUNT) at once; all must succeed
on_all() {
	local place pids=() p rc=0 out
	out=$(mktemp -d)
	for place in $places; do
		on "${place%%:*}" "${1//MOUNT/${place#*:}}" >"$out/${#pids[@]}" 2>&1 &
		pids+=($!)
	done
	for p in "${pids[@]}"; do wait "$p" || rc=1; done
	cat "$out"/*
	return $rc
}
# What one process of a client does (client_hand.py in /tmp of all guests).
hand="python3 /tmp/client_hand.py"
denied() { # FILE [GUEST]: somebody else has it locked
	! on "${2:-1}" "$hand take $1 0" >/tmp/denied 2>&1 && grep -q "no lock within" /tmp/denied
}
hold_there() { # MOUNT FILE [dirty]: the other guest locks it, writes, and keeps the lock
	peer "rm -f /tmp/$2.log*; nohup $hand hold /mnt/$1/$2 BBBB /tmp/$2.log ${3:-} >/tmp/$2.err 2>&1 & until grep -qs locked /tmp/$2.log; do sleep 0.1; done"
}
held_writes() { peer ": >/tmp/$1.log; touch /tmp/$1.log.go; for i in \$(seq 600); do [ -s /tmp/$1.log ] && break; sleep 0.2; done; cat /tmp/$1.log"; } # FILE
peer_wait() { # until it has booted
	local i
	for ((i = 0; i < 1200; i++)); do [ -e "$peer_dir/ready" ] && return 0; sleep 0.5; done
	not_ok "the other guest comes" && finish
}
peer_crash() { # it is gone without a word; --again: and boots, see peer_wait
	rm -f "$peer_dir/ready"
	[ "${1:-}" = --again ] && : >"$peer_dir/again"
	echo "echo b >/proc/sysrq-trigger" >"$peer_dir/new" && mv "$peer_dir/new" "$peer_dir/0.do"
	while [ -e "$peer_dir/0.do" ]; do sleep 0.1; done
}
# Byte ranges locked by two machines (lock_checks.py in /tmp of both): lock_server is the other guest, which takes what it is to do
# with FILE from ADDRESS:PORT of its own; lock_client is the line of shell that tells it, for whichever machine.
lock_server() { # ADDRESS:PORT FILE
	peer "nohup python3 -c \"
import socket, subprocess
s = socket.create_server(('${1%:*}', ${1#*:}))
c = s.accept()[0]
subprocess.run(['python3', '/tmp/lock_checks.py', '--serve', '$2'], stdin=c, stdout=c)\" >/dev/null 2>&1 &
	until grep -q \"$(printf ':%04X 00000000:0000 0A' "${1#*:}")\" /proc/net/tcp; do sleep 0.1; done"
}
lock_client() { # ADDRESS:PORT FILE
	echo "python3 /tmp/lock_checks.py $2 bash -c 'exec 3<>/dev/tcp/${1%:*}/${1#*:}; cat <&3 & cat >&3; kill \$!'"
}
metric() { # NAME: its value on the page of metrics
	/usr/bin/python3 -c 'import sys, urllib.request
for line in urllib.request.urlopen("http://127.0.0.1:9750/metrics").read().decode().splitlines():
    if line.split("{")[0].split(" ")[0] == sys.argv[1]: print(line.rsplit(" ", 1)[1])' "$1"
}
same_tree() { diff -r --no-dereference "$1" "$2"; }
# fs check of the live file system through the server, or offline when it is stopped
check_fs() { check "fs check is clean ${1:-}" furrow fs check a0/data; }
# reads and writes that went through the kernel's block layer, over all drives
block_layer_ios() { cat /sys/block/nvme*n1/stat | awk '{n += $1 + $5} END {print n}'; }
