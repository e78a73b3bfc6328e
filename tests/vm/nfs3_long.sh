#!/bin/bash
# nfs3_long: NFSv3 for a long time: fio over 16 connections with sizes and offsets that fit nothing, and names made and removed over
# RDMA and TCP while the server is killed every 20 seconds: nothing is lost, and no call that had to be repeated is told that
# it was done already.
# vm: --nvme 6 --nvme-size 1G --rxe --mem 5G --timeout 7200
# long: a quarter of an hour of load, and of kills
. tests/vm/lib.sh
: ${FURROW_FIO_SECONDS:=600} ${FURROW_KILL_SECONDS:=300}
nfs_modules
array_make 6

say "fio: 64 files over 16 connections, odd sizes and offsets"
check "mount over RDMA with nconnect=16" mount_rdma /mnt/r nconnect=16
# fio_round OPTIONS...: writes 64 files, forgets them, and verifies what the server has of them. Sizes that are multiples of one
# that is odd, so that no block is too short to be verified
fio_round() {
	local common="--directory=/mnt/r --nrfiles=16 --numjobs=4 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse --group_reporting --randseed=$RANDOM"
	fio $common "$@" --do_verify=0 >/tmp/fio.out 2>&1 && sync && echo 3 >/proc/sys/vm/drop_caches &&
		fio $common "$@" --verify_only=1 >/tmp/fio.out 2>&1 && return 0
	grep -v '^3;' /tmp/fio.out | head -8 | sed 's/^/# /'
	return 1
}
rounds=0 start=$SECONDS
while [ $((SECONDS - start)) -lt $FURROW_FIO_SECONDS ]; do
	rounds=$((rounds + 1))
	case $((rounds % 3)) in
	1) fio_round --name=seq --rw=write --bssplit=777/20:3885/40:64491/25:198912/15 --filesize=1554000 --ioengine=psync ;;
	2) fio_round --name=rand --rw=randwrite --bs=4099 --filesize=409900 --ioengine=psync --fsync=64 ;;
	0) fio_round --name=direct --rw=randwrite --bssplit=5000/50:20000/30:65000/20 --direct=1 --filesize=500000 --ioengine=libaio --iodepth=16 ;;
	esac || { not_ok "round $rounds of fio"; break; }
	rm -f /mnt/r/*
done
[ $((SECONDS - start)) -ge $FURROW_FIO_SECONDS ] && ok "$rounds rounds of fio, verified, in $((SECONDS - start)) s"
check "umount" umount /mnt/r

say "killing the server every 20 s for $FURROW_KILL_SECONDS s"
check "mount over RDMA" mount_rdma /mnt/r nconnect=4
check "mount over TCP" mount_tcp /mnt/t nosharecache
mkdir /mnt/r/r /mnt/r/t /mnt/r/fio
rm -f /tmp/names.stop
python3 tests/vm/name_checks.py /mnt/r/r 4 /tmp/names.stop >/tmp/names.r 2>&1 &
names="$!"
python3 tests/vm/name_checks.py /mnt/t/t 4 /tmp/names.stop >/tmp/names.t 2>&1 &
names="$names $!"
(
	while [ ! -e /tmp/names.stop ]; do
		fio --directory=/mnt/r/fio --name=load --rw=randwrite --bs=16k --size=24M --numjobs=2 --direct=1 --ioengine=libaio --iodepth=8 \
			--verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --output-format=terse >/tmp/load.out 2>&1 || exit 1
	done
) &
load=$!
kills=0 start=$SECONDS
while [ $((SECONDS - start)) -lt $FURROW_KILL_SECONDS ]; do
	sleep 20
	server_kill
	kills=$((kills + 1))
	server_start || finish
done
sleep 10
: >/tmp/names.stop
check "fio went on over $kills kills, and reads what it wrote" wait $load
for p in $names; do wait $p; done
for t in r t; do
	said=$(tail -1 /tmp/names.$t)
	case $said in "ok "*) ok "names over $([ $t = r ] && echo RDMA || echo TCP) through $kills kills: ${said#ok }" ;; *) not_ok "names over $t: $said" ;; esac
done
repeats=$(furrow clients --json | python3 -c 'import json, sys; print(sum(c["repeats"] for c in json.load(sys.stdin)["clients"]))')
say "the last server answered $repeats repeated calls from its memory"
check "all can be removed" rm -rf /mnt/r/r /mnt/r/t /mnt/r/fio
umount /mnt/r /mnt/t
check_fs
finish
