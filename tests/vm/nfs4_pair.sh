#!/bin/bash
# nfs4_pair: two machines, each an NFSv4 client of its own (and one of them the server's host too), 4.2 and 4.1, over RDMA and
# TCP: locks contended with a counter that must come out exact, delegations given and recalled, the server killed under all of it,
# a client killed, and the network between them cut for less than a lease and for three.
# vm: --nvme 4 --nvme-size 1G --rxe --mem 3G --timeout 3600
# pair: --rxe --mem 2G --timeout 3600
# long: two guests, and leases that run out
. tests/vm/lib.sh
address=10.98.0.1
lease=${FURROW_LEASE:-90} cut=${FURROW_CUT:-30} rounds=${FURROW_ROUNDS:-50} kills=${FURROW_KILLS:-8} only=${FURROW_ONLY:-locks,delegations,kill,crash,cut}
cp tests/vm/client_hand.py tests/vm/lock_checks.py /tmp
modprobe nfsv4 && modprobe rpcrdma
config_write
[ -z "${FURROW_LEASE:-}" ] || sed -i "s/^server:/&\n  lease: $lease/" "$FURROW_CONFIG" # else what it is by itself
furrow array create a0 --level 6 --yes /dev/ng*n1 && furrow fs create a0/data --yes && server_start || finish
peer_wait

# --- four clients: another minor version of the same machine is another client ---
mount_line() { echo "mkdir -p /mnt/$1 && mount -t nfs -o vers=$2,proto=$3 $address:/data /mnt/$1 && grep -q \" /mnt/$1 nfs4 .*vers=$2.*proto=$3\" /proc/mounts"; }
here() { check "mounted here: $2 over $3" bash -c "$(mount_line "$@")"; }
there() { check "mounted there: $2 over $3" peer "$(mount_line "$@")"; }
peer_mounts() {
	peer "modprobe nfsv4 && modprobe rpcrdma; cp tests/vm/client_hand.py tests/vm/lock_checks.py /tmp" >/dev/null
	there b42 4.2 rdma
	there b41 4.1 tcp
}
state() { furrow state list --json | python3 -c "import json, sys; s = json.load(sys.stdin); print($1)"; }
client_id() { state "*(c['client'] for c in s['clients'] if c['address'].startswith('10.98.0.$1') and 'NFSv$2 ' in c['name'])"; }
# ops MOUNT OPERATION [peer]: how often the client has sent it
ops() {
	local line="awk '/^device/ {on = \$5 == \"/mnt/$1\"} on && \$1 == \"$2:\" {print \$2}' /proc/self/mountstats"
	if [ "${3:-}" = peer ]; then peer "$line"; else bash -c "$line"; fi
}
here a42 4.2 tcp
here a41 4.1 rdma
peer_mounts
equal "the lease is $lease s" "$(grep -o 'lease_time=[0-9]*' /proc/self/mountstats | sort -u)" "lease_time=$lease"
equal "they are four clients" "$(state "len({c['name'] for c in s['clients']})")" 4

# --- locks ---
places="1:/mnt/a42 1:/mnt/a41 2:/mnt/b42 2:/mnt/b41"
count() { # KIND
	echo 0 >/mnt/a42/$1
	check "$1 contended by four clients on two machines, $rounds rounds each" on_all "$hand count $1 MOUNT/$1 $rounds"
	equal "the count is exact" "$(cat /mnt/a42/$1)" $((4 * rounds))
}
part_locks() {
	say "locks"
	count fcntl
	count flock
	local m
	for m in 42 41; do
		touch /mnt/a$m/checks
		lock_server 10.98.0.2:70$m /mnt/b$m/checks
		results "4.${m#4}" bash -c "$(lock_client 10.98.0.2:70$m /mnt/a$m/checks)"
	done
}

# --- delegations ---
read_delegations() { # HOLDER BREAKER: peer's and ours, or ours and peer's
	local h=/mnt/$1 b=/mnt/$2 there=peer here="bash -c" i
	[ "${1:0:1}" = a ] && there="bash -c" here=peer
	local at=$([ "$there" = peer ] && echo peer)
	$here "for i in 1 2 3 4 5; do echo one >$b/deleg.$1.\$i; done"
	local given=$(state "s['delegations_given']") recalled=$(state "s['delegations_recalled']") returned=$(ops $1 DELEGRETURN $at)
	$there "cat $h/deleg.$1.*" >/dev/null
	equal "$1: five files read, five delegations given" $(($(state "s['delegations_given']") - given)) 5
	local opens=$(ops $1 OPEN $at) reads=$(ops $1 READ $at)
	$there "for i in 1 2 3 4 5 6 7 8 9; do cat $h/deleg.$1.*; done" >/dev/null
	equal "$1: 45 more opens and reads ask the server nothing" "$(ops $1 OPEN $at) $(ops $1 READ $at)" "$opens $reads"
	$here "for i in 1 2 3; do echo two >$b/deleg.$1.\$i; done; rm $b/deleg.$1.4; mv $b/deleg.$1.5 $b/deleg.$1.6"
	equal "$1: writing, removing and renaming them elsewhere recalls five" $(($(state "s['delegations_recalled']") - recalled)) 5
	equal "$1: the client has returned five" $(($(ops $1 DELEGRETURN $at) - returned)) 5
	equal "$1: and sees what is new" "$($there "cat $h/deleg.$1.[123]" | tr '\n' ' ')" "two two two "
	equal "$1: none was revoked" "$(state "s['delegations_revoked']")" 0
}
write_delegations() { # there, on b42
	local given=$(state "s['delegations_given']") recalled=$(state "s['delegations_recalled']") returned=$(ops b42 DELEGRETURN peer)
	peer "nohup python3 -c \"
import os, time
f = os.open('/mnt/b42/wdeleg', os.O_RDWR | os.O_CREAT)
os.pwrite(f, b'x' * 5000, 0)
open('/tmp/wdeleg', 'w')
while not os.path.exists('/tmp/wdeleg.go'):
    time.sleep(0.1)
os.pwrite(f, b'y' * 5000, 5000)
open('/tmp/wdeleg.done', 'w')
time.sleep(1000)\" >/dev/null 2>&1 & while [ ! -e /tmp/wdeleg ]; do sleep 0.1; done"
	equal "a file that is open for writing there alone has a write delegation" "$(state "[d['access'] for d in s['states'] if d['kind'] == 'delegation' and d['client'] == '$(client_id 2 4.2)' and d['access'] == 'write']")" "['write']"
	local writes=$(ops b42 WRITE peer)
	equal "its size is seen here while what was written is still there" "$(stat -c %s /mnt/a42/wdeleg)" 5000
	equal "for which the client was asked, and has written nothing" "$(ops b42 WRITE peer)" "$writes"
	equal "nor was it recalled" "$(state "s['delegations_recalled']")" "$recalled"
	# (Linux returns the delegation before it has written what is dirty, which it does on its own, half a minute later at most)
	check "an open here gets what was written" eventually 60 bash -c '[ "$(tr -d x </mnt/a42/wdeleg | wc -c) $(wc -c </mnt/a42/wdeleg)" = "0 5000" ]'
	equal "and has recalled it" $(($(state "s['delegations_recalled']") - recalled)) 1
	equal "the client has returned it" $(($(ops b42 DELEGRETURN peer) - returned)) 1
	peer "touch /tmp/wdeleg.go; while [ ! -e /tmp/wdeleg.done ]; do sleep 0.1; done; sync -f /mnt/b42; pkill -f wdeleg"
	equal "what is written after that is here, too" "$(tr -d x </mnt/a42/wdeleg | wc -c)" 5000
}
part_delegations() {
	say "delegations"
	read_delegations b42 a42
	read_delegations b41 a41
	read_delegations a42 b41
	read_delegations a41 b42
	policy write
	write_delegations
	policy read
}
policy() { # WHICH delegations are given
	sed -i "/^  delegations:/d; s/^server:/&\n  delegations: $1/" "$FURROW_CONFIG"
	furrow reload >/dev/null
}

# --- the server is killed ---
grace_over() { [ "$(state "s['grace']")" = False ]; }
logged() { date -d "$(grep -F "$1" /tmp/furrowd.log | tail -1 | cut -d' ' -f1)" +%s%3N; } # when the server last said so, in ms
part_kill() {
	say "killing the server $kills times under load"
	local load="$hand load MOUNT load.\$(basename MOUNT) $((kills * 15)) && $hand sqlite MOUNT/db \$(basename MOUNT) $((kills * 2))"
	echo 0 >/mnt/a42/fcntl
	load+=" && $hand count fcntl MOUNT/fcntl $rounds"
	load+=" && fio --name=\$(basename MOUNT) --directory=MOUNT --size=4M --bs=16k --rw=randwrite --verify=crc32c --verify_state_save=0 --direct=1"
	# each load's lock is wanted by a client of the other machine all the time
	(on_all "$load"; echo $? >/tmp/load.rc) >/tmp/load.out &
	local loads=$!
	(on_all "case MOUNT in */a42) m=b42 ;; */a41) m=b41 ;; */b42) m=a42 ;; *) m=a41 ;; esac; $hand rival MOUNT/load.\$m" >/tmp/rival.out; echo $? >/tmp/rival.rc) &
	local rivals=$! k worst=0 killed=0 took
	for ((k = 0; k < kills; k++)); do
		sleep $((2 + RANDOM % 8)).$((RANDOM % 10))
		kill -0 $loads 2>/dev/null || break
		server_kill
		killed=$((killed + 1))
		sleep 0.$((RANDOM % 10))
		server_start || finish
		eventually $((2 * lease)) grace_over || not_ok "grace ends"
		took=$(($(logged "nfs4: grace is over") - $(logged "nfs4: grace for clients")))
		say "kill $killed: grace over after $took ms"
		[ $took -gt $worst ] && worst=$took
	done
	wait $loads
	wait $rivals
	[ "$(cat /tmp/load.rc)" = 0 ] && ok "files, renames, sqlite, counters and fio go on over $killed kills" || { not_ok "the loads fail"; tail -30 /tmp/load.out | sed 's/^/#   /'; }
	[ "$(cat /tmp/rival.rc)" = 0 ] && ok "no lock was ever to be had by others" || { not_ok "a lock was lost"; sed 's/^/#   /' /tmp/rival.out; }
	equal "the count is exact" "$(cat /mnt/b42/fcntl 2>/dev/null || cat /mnt/a42/fcntl)" $((4 * rounds))
	equal "sqlite has all rows" "$($hand rows /mnt/a42/db)" "ok $((kills * 8)) 4"
	[ $worst -lt $((lease * 1000)) ] && ok "all had reclaimed $worst ms after a start, at most" || not_ok "grace lasted $worst ms"
	no_complaint
	check_fs "after the kills"
}
# ("lost 1 locks" is also said of a lock that its process is still waiting for)
complaints="dmesg | grep -E 'reclaim failed|state manager.*failed|kernel BUG|WARNING:'"
no_complaint() {
	local said=$(bash -c "$complaints"; peer "$complaints")
	[ -z "$said" ] && ok "neither kernel complains" || { not_ok "a kernel complains"; echo "$said" | sed 's/^/#   /' | tail; }
}

# --- a client is killed ---
part_crash() {
	say "killing a client"
	hold_there b42 crash42
	hold_there b41 crash41
	local id=$(client_id 2 4.1) took
	check "its locks are its own" denied /mnt/a42/crash42
	peer_crash --again
	check "and still are a moment after its death" denied /mnt/a42/crash42
	took=$($hand take /mnt/a42/crash42 $((3 * lease)))
	[ -n "$took" ] && ok "its lock is free for who wants it after $took s (a lease is $lease s)" || not_ok "its lock is never free"
	[ "${took:-0}" -le $((lease + 15)) ] && ok "soon after the lease" || not_ok "which is long after the lease"
	sleep "$lease"
	equal "what nobody wants is kept" "$(state "len([l for l in s['states'] if l['kind'] == 'lock' and l['client'] == '$id'])")" 1
	peer_wait
	peer_mounts
	check "a client that is back has given up what it had" eventually 30 $hand take /mnt/a41/crash41 20
}

# --- the network is cut ---
# net_cut SECONDS [SILENCE]: both sides drop all that they have for the other, from so many seconds after the moment at which its
# leases were renewed, and stop doing so by themselves: however slow the guests are, the cut is as long as it should be.
# net_heal: waits for the end
net_cut() {
	local drop="sleep ${2:-0}; tc qdisc add dev eth0 root blackhole; sleep $1; tc qdisc del dev eth0 root"
	peer "stat -f /mnt/b42 /mnt/b41 >/dev/null"
	peer "$drop" &
	sides=($!)
	bash -c "$drop" &
	sides+=($!)
	sleep "${2:-0}"
	say "cut for $1 s"
}
net_heal() {
	wait "${sides[@]}"
	say "healed"
}
# cut_short LABEL SILENCE FILE-OF-4.2 FILE-OF-4.1: cuts for less than a lease, while others want the locks of both
cut_short() {
	local label=$1 silence=$2 f t1 t2 rc=0
	shift 2
	net_cut "$cut" "$silence"
	$hand take /mnt/a42/$1 $((cut - 5)) >/dev/null 2>&1 &
	t1=$!
	$hand take /mnt/a41/$2 $((cut - 5)) >/dev/null 2>&1 &
	t2=$!
	net_heal
	for f in "$@"; do equal "$label, $f: it goes on" "$(held_writes $f)" written; done
	wait $t1 && rc=1
	wait $t2 && rc=1
	[ $rc = 0 ] && ok "$label: nobody got its locks meanwhile" || not_ok "$label: somebody got its locks"
	check "$label: its lock is its own" denied /mnt/a42/$1
	check "$label: its lock is its own" denied /mnt/a41/$2
}
part_cut() {
	local f took id42 id41
	say "cutting the network for $cut s, a lease being $lease s"
	policy write
	hold_there b42 held42 dirty
	hold_there b41 held41 dirty
	cut_short "locks under a write delegation" 0 held42 held41
	peer "pkill -f 'client_hand.py hold'"
	policy read
	# the clients have said nothing for so long that 20 s are left of their leases when the network is back
	hold_there b42 quiet42
	hold_there b41 quiet41
	cut_short "locks of clients that have been silent" $((lease - cut - 20)) quiet42 quiet41
	peer "pkill -f 'client_hand.py hold'"
	hold_there b42 cut42 dirty
	hold_there b41 cut41 dirty
	id42=$(client_id 2 4.2) id41=$(client_id 2 4.1)
	cut_short "locks" 0 cut42 cut41
	say "cutting it for three leases"
	net_cut $((3 * lease + 1))
	net_heal
	for f in cut42 cut41; do equal "$f: nobody wanted anything: it goes on" "$(held_writes $f)" written; done
	check "its locks are its own" denied /mnt/a42/cut42
	check "its locks are its own" denied /mnt/a41/cut41
	equal "it is the same client to the server" "$(client_id 2 4.2) $(client_id 2 4.1)" "$id42 $id41"
	no_complaint
	say "cutting it for three leases while somebody wants its locks"
	net_cut $((3 * lease))
	for f in a42/cut42 a41/cut41; do
		took=$($hand take /mnt/$f $((2 * lease)))
		[ -n "$took" ] && ok "$f: the lock is free after $took s" || not_ok "$f: the lock is never free"
		echo AAAA >/mnt/$f.new && cat /mnt/$f.new >/mnt/$f && sync -f /mnt/$f
	done
	net_heal
	for f in cut42 cut41; do equal "$f: who had the lock is told that it is lost" "$(held_writes $f)" EIO; done
	for f in a42/cut42 a41/cut41; do equal "$f: what was written under the lock is not touched" "$(cat /mnt/$f)" AAAA; done
	peer "pkill -f 'client_hand.py hold'; sleep 1; sync" 2>/dev/null
	for f in a42/cut42 a41/cut41; do equal "$f: nor later" "$(cat /mnt/$f)" AAAA; done
	for f in b42/cut42 b41/cut41; do check "$f: it can lock again" peer "$hand take /mnt/$f 60"; done
	equal "and reads what is there" "$(peer "cat /mnt/b42/cut42 /mnt/b41/cut41")" "AAAA
AAAA"
}
for part in ${only//,/ }; do part_$part; done
[ $failures = 0 ] || grep -E 'nfs4:|WARN|ERROR' /tmp/furrowd.log | tail -60 | sed 's/^/#   /'
check "umount" umount /mnt/a42 /mnt/a41
check "umount there" peer "umount /mnt/b42 /mnt/b41"
check_fs
finish
