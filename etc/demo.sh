#!/bin/bash
# What `make run` does after the build: file-backed drives, an array and a file system on them, made once, and a server
# that serves it as /demo until Ctrl-C. All of it lies in VAR; the second start finds the data of the first.
#
#   BUILD    where the programs are          LISTEN   address to serve on (127.0.0.1)
#   VAR      where the drives are (var)      PORT     NFS and MOUNT over TCP (2049)
#   METRICS  address:port or off             RDMA     port of NFS over RDMA (20049), or off
#   MEMORY   a size, or auto (1GiB)          CLIENTS  address or network that may mount
set -euo pipefail

: "${BUILD:=build}" "${VAR:=var}" "${LISTEN:=127.0.0.1}" "${PORT:=2049}" "${RDMA:=20049}" "${METRICS:=127.0.0.1:9750}"
: "${CLIENTS:=}"
DRIVES=6
DRIVE_SIZE=1G

fail() {
	echo "run: $*" >&2
	exit 1
}

port_taken() { # ADDRESS PORT
	(exec 3<>"/dev/tcp/$1/$2") 2>/dev/null
}

DRIVES_NEED=200 # MiB to begin with; the files grow as data comes

mkdir -p "$VAR/drives" 2>/dev/null || fail "cannot make $VAR/drives; another place: make run VAR=DIR"
VAR=$(cd "$VAR" && pwd)
[ -w "$VAR" ] && [ -w "$VAR/drives" ] || fail "$VAR belongs to another user; another place: make run VAR=DIR"
CONFIG=$VAR/furrow.yaml
CONTROL=$VAR/control.sock
[ ${#CONTROL} -lt 108 ] || CONTROL=/tmp/furrow-demo-$(id -u)-$(cksum <<<"$VAR" | cut -d' ' -f1).sock
furrow() {
	"$BUILD/furrow" "$@" --config "$CONFIG"
}

exec 9>"$VAR/run.lock"
flock -n 9 || fail "the demonstration in $VAR is running already (its terminal ends it with Ctrl-C)"

where=$LISTEN
case $LISTEN in
0.0.0.0) where=127.0.0.1 ;;
::) where=::1 ;;
esac
! port_taken "$where" "$PORT" || fail "port $PORT on $LISTEN is taken, perhaps by the kernel's NFS server; choose another: make run PORT=12049"
if [ "$METRICS" != off ] && port_taken "${METRICS%:*}" "${METRICS##*:}"; then
	echo "run: $METRICS is taken, so this server shows no metrics (METRICS=address:port chooses another)"
	METRICS=off
fi
if [ "$RDMA" != off ] && [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
	RDMA=off
fi

# Clients of this machine, with root as root; and others, with root squashed, when the address is one that they can reach.
allow="      - {clients: \"$where\", access: rw, squash: none}"
if [ -z "$CLIENTS" ]; then
	case $LISTEN in
	127.* | ::1) ;;
	*) CLIENTS='*' ;;
	esac
fi
[ -z "$CLIENTS" ] || [ "$CLIENTS" = "$where" ] || allow+=$'\n'"      - {clients: \"$CLIENTS\", access: rw, squash: root}"
# A demonstration does not take half of somebody's machine.
if [ -z "${MEMORY:-}" ]; then
	MEMORY=auto
	[ "$(awk '/^MemTotal/ { print int($2 / 1048576) }' /proc/meminfo)" -lt 3 ] || MEMORY=1GiB
fi
cat >"$CONFIG.new" <<END
# Written by \`make run\` at each start.
server:
  listen: ["$LISTEN"]
  nfs_port: $PORT
  rdma_port: $RDMA
  memory: $MEMORY
  control: "$CONTROL"
  metrics: "$METRICS"
drives: ["$VAR/drives/d*.img"]
exports:
  - path: /demo
    filesystem: demo/demo
    allow:
$allow
END
mv "$CONFIG.new" "$CONFIG"

drives=()
for ((i = 0; i < DRIVES; i++)); do
	drive=$VAR/drives/d$i.img
	drives+=("$drive")
	# A file that is missing later is a lost drive: the array then runs without it, and no empty one takes its place.
	if [ ! -e "$VAR/made" ]; then
		[ -e "$drive" ] || truncate -s $DRIVE_SIZE "$drive"
	fi
done
if [ ! -e "$VAR/made" ]; then
	free=$(df --output=avail -m "$VAR/drives" | tail -1)
	[ "$free" -ge $DRIVES_NEED ] || fail "the file system of $VAR has $((free)) MiB left, at least $DRIVES_NEED are needed; another place: make run VAR=DIR"
	echo "run: making an array of $DRIVES file-backed drives in $VAR/drives, and a file system on it"
	if ! furrow array list --json | grep -q '"name": "demo"'; then
		furrow array create demo --level 6 --yes "${drives[@]}"
	fi
	if ! furrow fs list --json | grep -q '"name": "demo/demo"'; then
		furrow fs create demo/demo --yes >/dev/null
	fi
	touch "$VAR/made"
fi

# With job control the server gets the terminal's Ctrl-C alone, make and this script do not: so a clean stop
# is a clean end. Without a terminal, signals to this script are passed on.
announce() {
	local address=$where
	[[ $where != *:* ]] || address="[$where]"
	for ((i = 0; i < 600; i++)); do
		sleep 0.1
		[ "$(furrow status --json 2>/dev/null | grep -c '"pid"')" = 1 ] || continue
		# With rpcbind a client finds the ports and the lock manager. On this machine its own lock manager is in the way.
		local ports=,port=$PORT,mountport=$PORT,mountproto=tcp,nolock rdma_ports=,mountport=$PORT,mountproto=tcp,nolock
		if [[ $where != 127.* && $where != ::1 ]] && furrow status --json | grep -q '"rpcbind": true'; then ports='' rdma_ports=''; fi
		cat <<END

Furrow serves /demo from $VAR. Ctrl-C ends it; what was written stays there. On a client:

    mount -t nfs -o port=$PORT $address:/demo /mnt
    mount -t nfs -o vers=3,tcp$ports $address:/demo /mnt
END
		[ "$RDMA" = off ] || cat <<END
    mount -t nfs -o rdma,port=$RDMA $address:/demo /mnt
    mount -t nfs -o vers=3,rdma,port=$RDMA$rdma_ports $address:/demo /mnt
END
		cat <<END

As the user who runs this, with libnfs-utils and without mounting:

    nfs-ls 'nfs://$address/demo?version=3&nfsport=$PORT&mountport=$PORT'
    nfs-cp README.md 'nfs://$address/demo/README.md?version=3&nfsport=$PORT&mountport=$PORT'

    $BUILD/furrow status --config $CONFIG
END
		[ "$METRICS" = off ] || echo "    http://$METRICS/metrics"
		echo
		return
	done
}

status=0
if [ -t 0 ] && [ -t 2 ]; then
	announce 9>&- &
	announcer=$!
	set -m
	"$BUILD/furrowd" --foreground --config "$CONFIG" 9>&- || status=$?
	set +m
else
	announce 9>&- &
	announcer=$!
	"$BUILD/furrowd" --foreground --config "$CONFIG" 9>&- &
	server=$!
	trap 'kill -TERM $server 2>/dev/null' INT TERM HUP
	wait $server || status=$?
	# a trap ends the first wait; the second one has the server's own status
	if kill -0 $server 2>/dev/null; then
		status=0
		wait $server || status=$?
	fi
fi
kill $announcer 2>/dev/null || true
wait $announcer 2>/dev/null || true
exit $status
