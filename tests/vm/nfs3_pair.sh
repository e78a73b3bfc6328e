#!/bin/bash
# nfs3_pair: two client machines of one server, which is a third, NFSv3 over RDMA and TCP with NLM and NSM as they are set up
# anywhere: a tree that both make, random operations of both on the same files against a model, locks contended with a counter that
# must come out exact, waited for and called back, the network of one cut under load, and each client rebooted while the other works.
# vm: --nvme 4 --nvme-size 1G --rxe --mem 3G --timeout 5400
# pair: --rxe --mem 2G --timeout 5400
# pair: --rxe --mem 2G --timeout 5400
# long: three guests, of which two boot twice
. tests/vm/lib.sh
rounds=${FURROW_ROUNDS:-30} only=${FURROW_ONLY:-tree,random,locks,cut,reboot} cuts=${FURROW_CUT:-3 15 60} ops=${FURROW_RANDOM_OPS:-1500} files=${FURROW_FILES:-40}
places="2:/mnt/r 2:/mnt/t 3:/mnt/r 3:/mnt/t"
mkdir -p /run/rpcbind /run/sendsigs.omit.d && rpcbind || finish
sysctl -qw net.ipv4.ip_forward=1
config_write
sed -i 's/listen: .*/listen: ["0.0.0.0"]/' "$FURROW_CONFIG"
furrow array create a0 --level 6 --yes /dev/ng*n1 && furrow fs create a0/data --yes && server_start || finish

# client_boots GUEST: what happens at boot, what statd remembers being on a disk that survives one
client_boots() {
	local server=10.98.$(($1 - 2)).1 kept=$PWD/$build/vm-peer$(($1 - 2))/statd
	guest $1 peer_wait
	on $1 "mkdir -p /run/rpcbind /run/sendsigs.omit.d $kept/sm $kept/sm.bak /mnt/r /mnt/t && modprobe nfsv3 && modprobe rpcrdma &&
		cp tests/vm/client_hand.py tests/vm/lock_checks.py /tmp && ip route add 10.98.0.0/16 via $server && rpcbind &&
		sm-notify -P $kept && rpc.statd --no-notify -P $kept"
}
client_mounts() { # GUEST
	local server=10.98.$(($1 - 2)).1 options="vers=3,actimeo=1,lookupcache=none"
	check "guest $1 mounts over RDMA" on $1 "mount -t nfs -o $options,proto=rdma,port=20049 $server:/data /mnt/r && grep -q ' /mnt/r nfs .*proto=rdma.*local_lock=none' /proc/mounts"
	check "guest $1 mounts over TCP" on $1 "mount -t nfs -o $options,proto=tcp $server:/data /mnt/t && grep -q ' /mnt/t nfs .*proto=tcp.*local_lock=none' /proc/mounts"
}
both() { # LINE-FOR-GUEST-2 LINE-FOR-GUEST-3
	local first rc
	on 2 "$1" &
	first=$!
	on 3 "$2"
	rc=$?
	wait $first && return $rc
}

# --- one tree ---
same_everywhere() { # NAME: names, attributes and contents of the tree, through each mount
	local place n=0 list="cd MOUNT/tree && ls -lRn --time-style=+%s.%N . && find . -type f | sort | xargs sha1sum"
	for place in $places; do
		on "${place%%:*}" "${list//MOUNT/${place#*:}}" >/tmp/list$n 2>&1 || { not_ok "$1: $place"; tail -3 /tmp/list$n; }
		cmp -s /tmp/list0 /tmp/list$n || { not_ok "$1: $place is not as the first"; diff /tmp/list0 /tmp/list$n | head | sed 's/^/#   /'; }
		n=$((n + 1))
	done
	[ "$(grep -c '^[0-9a-f]\{40\} ' /tmp/list0)" -gt 50 ] && ok "$1: $(wc -l </tmp/list0) lines of ls and sha1sum, on each mount" || not_ok "$1: few files"
}
part_tree() {
	say "one tree"
	on 2 "mkdir /mnt/r/tree"
	check "both make files in it" both "cp -r core tests/vm /mnt/r/tree && ln -s core /mnt/r/tree/link" \
		"cp -r raid /mnt/t/tree && head -c 300000 /dev/urandom >/mnt/t/tree/random && truncate -s 5000000 /mnt/t/tree/random && mkfifo /mnt/t/tree/fifo"
	same_everywhere "what both made"
	check "each changes what the other made" both "cd /mnt/t/tree/raid && for f in *.c; do mv \$f new.\$f; done && rm *.h && chmod 400 new.a* && echo more >>new.array.c && ln new.array.c /mnt/t/tree/linked" \
		"cd /mnt/r/tree/core && for f in *.h; do echo more >>\$f; done && rm *.c && mkdir deep && mv *.h deep && chown 7:8 deep && rm ../link && cp -r ../vm ../vm2"
	sleep 2 # attributes that a client remembers
	same_everywhere "after that"
}

# --- random operations ---
part_random() {
	say "$ops random operations"
	local pair seed=${FURROW_SEED:-1}
	for pair in "r t" "t r" "r r"; do
		set -- $pair
		on 2 "mkdir /mnt/$1/random$seed"
		check "random operations of two machines ($1 and $2) against a model" both "$build/tests/vm/random_ops --ops $ops --seed $seed --wait 7200 /mnt/$1/random$seed" \
			"$build/tests/vm/random_ops --ops $ops --seed $seed --other 10.98.0.2:7200 /mnt/$2/random$seed"
		seed=$((seed + 1))
	done
}

# --- locks ---
# called WAITER HOLDER: who waits has the lock soon after it was given back, long before it would ask again, which is each 30 s
called() {
	local file=called.$1$2 waits start took
	guest $2 hold_there t $file
	guest $1 hold_there r $file >/dev/null &
	waits=$!
	sleep 4
	check "guest $1 waits for a lock of guest $2" on $1 "[ -e /tmp/$file.err ] && ! grep -qs locked /tmp/$file.log"
	on $2 "pkill -f 'hold.*$file'"
	start=$SECONDS
	wait $waits
	took=$((SECONDS - start))
	[ $took -lt 20 ] && ok "and is called when it is its turn: after $took s" || not_ok "it has the lock after $took s"
	check "so the other is denied it" denied /mnt/r/$file $2
	on $1 "pkill -f 'hold.*$file'"
}
part_locks() {
	say "locks"
	local kind turn
	for kind in fcntl flock; do
		on 2 "echo 0 >/mnt/r/$kind"
		check "$kind contended on four mounts of two machines, $rounds rounds each" on_all "$hand count $kind MOUNT/$kind $rounds"
		equal "the count is exact" "$(on 3 "cat /mnt/t/$kind")" $((4 * rounds))
	done
	on 2 "touch /mnt/r/checks"
	guest 2 lock_server 10.98.0.2:7100 /mnt/r/checks
	results "byte ranges" on 3 "$(lock_client 10.98.0.2:7100 /mnt/t/checks)"
	for turn in 1 2; do
		called 2 3
		called 3 2
	done
}

# --- the network of one is cut ---
# Not by taking a port down: a management datagram that soft-RoCE of Linux 6.1 cannot send for want of a route leaves the queue pair
# of the connection manager deaf, and nobody (rping neither) has a new connection on that device.
works() { # GUEST SECONDS: writes on both mounts and verifies
	on $1 "for m in r t; do
		fio --name=cut$1.\$m --directory=/mnt/\$m --size=4M --bs=16k --iodepth=4 --ioengine=libaio --direct=1 --rw=randwrite \
			--rate_iops=50 --time_based --runtime=$2 --verify=crc32c --verify_state_save=0 --verify_fatal=1 >/tmp/cut.\$m 2>&1 &
		pids=\"\$pids \$!\"
	done
	for p in \$pids; do wait \$p || { tail -3 /tmp/cut.*; exit 1; }; done"
}
part_cut() {
	local seconds drop loads others sides start
	for seconds in $cuts; do
		say "the network between guest 2 and the server is cut for $seconds s"
		works 2 $((seconds + 20)) >/tmp/work.out 2>&1 &
		loads=$!
		works 3 $((seconds + 20)) >/tmp/others.out 2>&1 &
		others=$!
		sleep 8
		drop="tc qdisc add dev eth0 root blackhole; sleep $seconds; tc qdisc del dev eth0 root"
		on 2 "$drop" &
		sides=$!
		bash -c "$drop"
		wait $sides
		start=$SECONDS
		check "guest 3 noticed nothing" wait $others
		check "guest 2 goes on, and what it wrote is there" wait $loads
		[ $((SECONDS - start)) -le 120 ] && ok "within $((SECONDS - start)) s" || not_ok "only after $((SECONDS - start)) s"
	done
}

# --- each client reboots ---
reboot() { # GUEST OTHER
	local x=$1 y=$2 sum took loads f
	say "guest $x reboots while guest $y works"
	guest $x hold_there r held$x.r
	guest $x hold_there t held$x.t
	sum=$(on $x "head -c 3000000 /dev/urandom >/mnt/t/synced$x && sync /mnt/t/synced$x && sha1sum </mnt/t/synced$x")
	guest $y hold_there r own$y
	on $y "for m in r t; do $hand load /mnt/\$m work$y.\$m $files || exit; done
		fio --name=work --directory=/mnt/r --size=4M --bs=16k --rw=randwrite --verify=crc32c --verify_state_save=0 --direct=1" >/tmp/work.out 2>&1 &
	loads=$!
	guest $x peer_crash --again
	for f in held$x.r held$x.t; do check "its lock is its own while it is away" denied /mnt/t/$f $y; done
	equal "what it had synced is there" "$(on $y "sha1sum </mnt/r/synced$x")" "$sum"
	equal "and what it wrote under its locks" "$(on $y "cat /mnt/r/held$x.r /mnt/t/held$x.t")" BBBBBBBB
	check "guest $x boots" client_boots $x
	client_mounts $x
	for f in held$x.r held$x.t; do
		took=$(on $y "$hand take /mnt/r/$f 90")
		[ -n "$took" ] && ok "its lock is free when it is back (after $took s)" || not_ok "its lock is never free"
	done
	check "a lock of guest $y is untouched" denied /mnt/t/own$y $x
	equal "and it goes on" "$(guest $y held_writes own$y)" written
	check "so does its work" wait $loads
	equal "guest $x has what it had synced" "$(on $x "sha1sum </mnt/r/synced$x")" "$sum"
	on $y "pkill -f 'hold.*own$y'"
}
part_reboot() {
	reboot 2 3
	reboot 3 2
}

client_boots 3 &
check "guest 2 boots" client_boots 2
check "guest 3 boots" wait $!
client_mounts 2
client_mounts 3
for part in ${only//,/ }; do part_$part; done
for guest in 2 3; do check "guest $guest: no complaint of the kernel" on $guest "! dmesg | grep -E 'kernel BUG|WARNING:|lockd: .*failed'"; done
[ $failures = 0 ] || { tail -40 /tmp/furrowd.log; tail -5 /tmp/work.out; } 2>/dev/null | sed 's/^/#   /'
for guest in 2 3; do check "guest $guest unmounts" on $guest "umount /mnt/r /mnt/t"; done
check_fs
finish
