#!/bin/bash
# fio_verify: fio writes and verifies over RDMA, and the random-operation checker runs on two mounts.
# vm: --nvme 6 --rxe --timeout 3000
. tests/vm/lib.sh
nfs_modules
array_make 6
check "mount with nconnect=4" mount_rdma /mnt/r nconnect=4
fio_run() { fio --verify_state_save=0 --directory=/mnt/r --direct=1 --ioengine=libaio --verify=crc32c --verify_fatal=1 --do_verify=1 --output-format=terse "$@"; }
check "fio 1 MiB sequential, verified" fio_run --name=seq --rw=write --bs=1M --iodepth=32 --size=${FURROW_FIO_SEQ:-128M}
check "fio 4 KiB random writes at depth 32, verified" fio_run --name=rand --rw=randwrite --bs=4k --iodepth=32 --size=${FURROW_FIO_RAND:-32M}
check "fio 4 KiB random reads and writes, verified" fio_run --name=mix --rw=randrw --bs=4k --iodepth=32 --size=${FURROW_FIO_RAND:-32M} --numjobs=2
rm -f /mnt/r/*

# counted KIND: what the server says of a load, against what fio says that it did
counted() {
	local dir=/tmp/counted line
	local load="--name=count --directory=/mnt/r --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw --bssplit=4k/60:16k/20:64k/20 --size=8M --numjobs=2"
	rm -rf $dir && mkdir $dir
	fio $load --create_only=1 >/dev/null && sync
	"$build/furrow" --config "$FURROW_CONFIG" top --json --interval 1 >$dir/top &
	local top=$!
	sleep 0.5
	furrow clients --json >$dir/clients.before && metrics_page >$dir/metrics.before
	fio $load --output-format=json --output=$dir/fio.json >/dev/null
	furrow clients --json >$dir/clients.after && metrics_page >$dir/metrics.after
	sleep 1.5
	kill $top
	wait $top 2>/dev/null
	while read -r line; do
		case $line in "ok "*) ok "$1: ${line#ok }" ;; *) not_ok "$1: $line" ;; esac
	done < <(python3 tests/vm/traffic_check.py $dir 2>&1)
	rm -f /mnt/r/*
}
metrics_page() { python3 -c 'import urllib.request as r; print(r.urlopen("http://127.0.0.1:9750/metrics").read().decode())'; }
counted "NFSv3 over RDMA"
check "umount" umount /mnt/r
check "mount NFS 4.2 over RDMA" mount -t nfs -o vers=4.2,rdma,port=20049 $address:/data /mnt/r
counted "NFSv4.2 over RDMA"
check "umount" umount /mnt/r
check "two mounts" eval "mount_rdma /mnt/a nosharecache,lookupcache=none && mount_rdma /mnt/b nosharecache,lookupcache=none"
mkdir /mnt/a/random
say "${FURROW_RANDOM_OPS:=$([ -n "${FURROW_LONG:-}" ] && echo 20000 || echo 4000)} random operations"
"$build/tests/vm/random_ops" --ops $FURROW_RANDOM_OPS --seed ${FURROW_SEED:-1} /mnt/a/random /mnt/b/random
check "random operations over two mounts against a model" [ $? = 0 ]

# with two mounts that do nothing, the server does nothing either
cpu_ticks() { awk '{print $14 + $15}' /proc/$server_pid/stat; }
sleep 8 # what was written last is on its way until then
# the least of three times: where the host gives the guest no processor, a tick can meet whoever waits for it
spent=1000
for i in 1 2 3; do
	before=$(cpu_ticks)
	sleep 10
	now=$(($(cpu_ticks) - before))
	[ $now -lt $spent ] && spent=$now
done
[ $spent -le 1 ] && ok "an idle server uses no CPU ($spent ticks in 10 s)" || not_ok "an idle server uses no CPU: $spent ticks of 10 ms in 10 s"
peak=$(awk '/VmHWM/ {print int($2 / 1024)}' /proc/$server_pid/status)
[ "$peak" -le 512 ] && ok "memory stays within the 512 MiB configured ($peak MiB at most)" || not_ok "memory grew to $peak MiB of 512"
umount /mnt/a /mnt/b
check_fs
finish
