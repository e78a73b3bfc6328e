#!/bin/bash
# locks: two client machines (network namespaces with rpcbind and statd of their own) mount over TCP without nolock and
# contend for locks, which wait, are cancelled, and survive a server killed; a client that restarts loses its own. A third
# client, over RDMA, meets the same locks.
# vm: --nvme 4 --nvme-size 512M --rxe --mem 3G --timeout 1500
. tests/vm/lib.sh
net=10.98.1
cat >/tmp/locker.py <<'P'
# locker.py FILE ex|sh now|wait|SECONDS FIRST LENGTH|flock LOG: takes a lock, says so in LOG, keeps it until LOG.go exists
import errno, fcntl, os, signal, sys, time
name, kind, how, first, length, log = sys.argv[1:7]
def tell(word):
    with open(log, "a") as f:
        f.write("%s %.1f\n" % (word, time.monotonic() - start))
def alarm(*_):
    raise InterruptedError()
start = time.monotonic()
f = open(name, "r+")
if how not in ("now", "wait"):
    signal.signal(signal.SIGALRM, alarm)
    signal.alarm(int(how))
flags = {"ex": fcntl.LOCK_EX, "sh": fcntl.LOCK_SH}[kind] | (fcntl.LOCK_NB if how == "now" else 0)
try:
    if length == "flock":
        fcntl.flock(f, flags)
    else:
        fcntl.lockf(f, flags, int(length), int(first))
    signal.alarm(0)
    tell("locked")
    while not os.path.exists(log + ".go"):
        time.sleep(0.1)
    if length == "flock":
        fcntl.flock(f, fcntl.LOCK_UN)
    else:
        fcntl.lockf(f, fcntl.LOCK_UN, int(length), int(first))
    tell("unlocked")
except InterruptedError:
    tell("interrupted")
except OSError as e:
    tell(errno.errorcode[e.errno])
P

# --- machines ---
declare -A client
client_start() { # N
	ip netns add c$1
	ip link add v$1 type veth peer name eth0 netns c$1
	ip link set v$1 master br0 up
	mkfifo /tmp/client$1
	ip netns exec c$1 unshare -m -u bash -c "
		mount --make-rprivate /
		mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib/nfs
		mkdir -p /run/rpcbind /run/sendsigs.omit.d /var/lib/nfs/{sm,sm.bak,rpc_pipefs,v4recovery}
		hostname client$1
		ip link set lo up && ip addr add $net.1$1/24 dev eth0 && ip link set eth0 up
		rpcbind && rpc.statd --no-notify
		echo ready >/tmp/client$1
		exec sleep infinity" &
	client[$1]=$!
	read -r _ </tmp/client$1
}
on() { # N COMMAND...
	local n=$1
	shift
	if [ "$n" = 0 ]; then "$@"; else nsenter -t ${client[$n]} -n -m -u "$@"; fi
}
# hold NAME N FILE KIND HOW FIRST LENGTH: a process on machine N; let NAME go ends it; its events are in /tmp/NAME.log
hold() {
	local name=$1 n=$2
	shift 2
	rm -f /tmp/$name.log.go
	: >/tmp/$name.log
	on $n python3 /tmp/locker.py "$@" /tmp/$name.log &
}
let_go() { : >/tmp/$1.log.go; }
# event NAME WORD SECONDS: it comes to be told within that time
event() {
	local i
	for ((i = 0; i < $3 * 5; i++)); do
		grep -q "^$2" /tmp/$1.log && return 0
		sleep 0.2
	done
	echo "$1: $(cat /tmp/$1.log)"
	ps -eo pid,stat,wchan:24,args | grep "[l]ocker.py"
	tail -5 /tmp/furrowd.log
	dmesg | tail -5
	return 1
}
silent() { sleep $2; [ ! -s /tmp/$1.log ]; } # NAME SECONDS: nothing is told
# probe N FILE KIND FIRST LENGTH: takes the lock for a moment, if it is free
probe() {
	local name=probe$RANDOM r
	hold $name $1 $2 $3 now $4 $5
	event $name . 200
	let_go $name
	grep -q "^locked" /tmp/$name.log && { event $name unlocked 100; return 0; }
	grep -q "^EAGAIN" /tmp/$name.log && return 1
	cat /tmp/$name.log
	return 2
}
free() { probe "$@"; }
taken() { probe "$@"; [ $? = 1 ]; }

nfs_modules
modprobe veth && modprobe bridge
ip link add br0 type bridge && ip addr add $net.1/24 dev br0 && ip link set br0 up
mkdir -p /run/rpcbind /run/sendsigs.omit.d /var/lib/nfs/{sm,sm.bak}
mount -t tmpfs tmpfs /var/lib/nfs && mkdir -p /var/lib/nfs/{sm,sm.bak,rpc_pipefs}
rpcbind && rpc.statd --no-notify
statd=$(pidof rpc.statd)
address=10.99.0.1
array_make 6
sed -i "s/listen: .*/listen: [\"0.0.0.0\"]/" "$FURROW_CONFIG"
server_stop
server_start || finish
client_start 1
client_start 2
mkdir -p /mnt/r /mnt/1 /mnt/2
on 1 mount -t nfs -o vers=3,tcp,port=2049,mountport=2049 $net.1:/data /mnt/1 && on 1 touch /mnt/1/file && ok "a mount without nolock" || { not_ok "a mount without nolock"; tail -3 /tmp/furrowd.log; finish; }
check "and of another machine" on 2 mount -t nfs -o vers=3,tcp $net.1:/data /mnt/2
check "locks are not local" eval "on 2 grep ' /mnt/2 ' /proc/mounts | grep -q local_lock=none"
# the kernel here is client and server's host: its lock manager has put itself in place of furrowd at rpcbind, so again
check "a mount over RDMA without nolock" mount -t nfs -o vers=3,rdma,port=20049 10.99.0.1:/data /mnt/r
server_stop
server_start || finish

say "contended"
hold a 1 /mnt/1/file ex now 0 10
check "a lock" event a locked 100
check "denies another machine" taken 2 /mnt/2/file ex 5 10
check "also what reads" taken 2 /mnt/2/file sh 9 1
check "not what is beside it" free 2 /mnt/2/file ex 10 10
check "another process of the same machine" taken 1 /mnt/1/file sh 0 1
check "and a client over RDMA" taken 0 /mnt/r/file sh 0 1
check "a client over RDMA locks beside it" free 0 /mnt/r/file ex 20 10

say "waiting"
hold b 2 /mnt/2/file ex wait 0 10
check "a second one waits" silent b 3
let_go a
check "and has it when it is given back" event b locked 100
check "so the first machine is denied now" taken 1 /mnt/1/file ex 0 1
hold c 1 /mnt/1/file ex 4 0 10
check "a signal ends waiting" event c interrupted 100
let_go b
check "the lock is free for others after that" free 1 /mnt/1/file ex 0 10
hold a 1 /mnt/1/file ex now 0 flock
check "flock" event a locked 100
check "denies another machine, too" taken 2 /mnt/2/file sh 0 flock
let_go a
check "and is given back" event a unlocked 100

say "byte ranges between two machines"
checks() { # RESULT-FILE COMMAND...
	local line
	"${@:2}" >$1 2>&1
	while read -r line; do
		case $line in "ok "*) ok "${line#ok }" ;; *) not_ok "$line" ;; esac
	done <$1
}
cp tests/vm/lock_checks.py /tmp
checks /tmp/checks on 1 python3 /tmp/lock_checks.py /mnt/1/file nsenter -t ${client[2]} -n -m -u python3 /tmp/lock_checks.py --serve /mnt/2/file

say "killing the server"
kill $statd # furrowd has a status monitor of its own, where there is no other
hold a 1 /mnt/1/file ex now 0 10
check "a lock" event a locked 100
server_kill
server_start || finish
hold b 2 /mnt/2/file ex wait 0 10
for ((i = 0; i < 500; i++)); do grep -q "told a client that this server restarted client=$net.11" /tmp/furrowd.log && break; sleep 0.2; done
grep -q "told a client that this server restarted client=$net.11" /tmp/furrowd.log && ok "its client is told of the restart" || not_ok "its client is told of the restart"
check "who waits does not get it in the grace period" silent b 10
check "the lock holds over the restart, and after the grace period" taken 2 /mnt/2/file sh 0 10
[ ! -s /tmp/b.log ] && ok "nor does who waits get it then" || not_ok "who waits got it: $(cat /tmp/b.log)"
let_go a
check "its end is told" event a unlocked 100
check "and who waited has it" event b locked 100

say "a client restarts"
check "the lock is held" taken 1 /mnt/1/file ex 0 10
check "the client says that it restarted" on 2 sm-notify -f -d
for ((i = 0; i < 500; i++)); do grep -q "a client restarted.*client=$net.12" /tmp/furrowd.log && break; sleep 0.2; done
check "its lock is free then" free 1 /mnt/1/file ex 0 10
let_go b
check "umount" umount /mnt/r
for n in 1 2; do
	check "umount" on $n umount /mnt/$n
	kill ${client[$n]}
done
finish
