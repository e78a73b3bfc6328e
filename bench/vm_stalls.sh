#!/bin/bash
# vm_stalls: the longest operation of a steady load in the guest, 70 % random reads and 30 % random writes of 4 KiB over RDMA: on a
# file system with nothing else to do, then on one that is full, with checkpoints, the cleaner and snapshots at work.
. tests/vm/lib.sh
set -eu
seconds=${BENCH_SECONDS:-4} size=${BENCH_STALLS_SIZE:-64M}
nfs_modules
array_make 6 >/dev/null
mount_rdma /mnt/r
# checkpoints, and stripes that the cleaner freed, so far; without a program's start, which takes longer than an operation
work() {
	local name value page=/tmp/metrics
	exec 9<>/dev/tcp/127.0.0.1/9750
	printf 'GET /metrics HTTP/1.0\r\nHost: a\r\n\r\n' >&9
	cat <&9 >$page
	exec 9<&-
	awk '/^furrow_fs_checkpoints_total/ {c = $2} /^furrow_fs_cleaner_freed_stripes_total/ {f = $2} END {print c + 0, f + 0}' $page
}
fill() { # NAME SIZE
	fio --directory=/mnt/r --name="$1" --direct=1 --ioengine=libaio --size="$2" --rw=write --bs=1M --iodepth=8 --end_fsync=1 >/dev/null
}
run() { # NAME SECONDS: latencies of reads and writes together, and what went on meanwhile
	local c0 f0 c1 f1
	read -r c0 f0 < <(work)
	fio --directory=/mnt/r --name=f --direct=1 --ioengine=libaio --size="$size" --rw=randrw --rwmixread=70 --bs=4k --iodepth=16 \
		--time_based --runtime="$2" --unified_rw_reporting=1 --percentile_list=50:99:99.99 --output-format=json >/tmp/fio.json
	read -r c1 f1 < <(work)
	awk -v n="$1" '
		/"iops"/ && !rate {rate = $3 + 0}
		/"clat_ns"/ {on = 1}
		on && /"max"/ {max = $3 / 1000}
		on && /"50.0/ {p50 = $3 / 1000}
		on && /"99.000000"/ {p99 = $3 / 1000}
		on && /"99.99/ {p9999 = $3 / 1000; on = 0}
		END {
			printf "figure %s.rate %d op/s 0 0\nfigure %s.p50 %d us 0 0\nfigure %s.p99 %d us 0 0\n", n, rate, n, p50, n, p99
			printf "figure %s.p99.99 %d us 0 0\nfigure %s.longest %d us 0 0\n", n, p9999, n, max
		}' /tmp/fio.json
	echo "figure $1.checkpoints $((c1 - c0)) checkpoints 0 0"
	echo "figure $1.cleaned $((f1 - f0)) stripes 0 0"
}
fill f "$size"
free=$(df --output=avail -BM /mnt/r | tail -1)
fill ballast $((${free%M} - 24))M # room for what snapshots keep for a moment
run stalls.without "$seconds"
# fewer stripes are free with each second, until the cleaner comes
read -r c0 f0 < <(work)
for ((i = 0; i < 20; i++)); do
	fio --directory=/mnt/r --name=f --direct=1 --ioengine=libaio --size="$size" --rw=randwrite --bs=4k --iodepth=32 --time_based \
		--runtime=1 >/dev/null
	read -r c1 f1 < <(work)
	((f1 == f0)) || break
done
(
	trap 'echo $n >/tmp/snapshots; exit 0' TERM
	for ((n = 0; ; )); do
		furrow snapshot create a0/data "s$n" >/dev/null 2>&1 || continue
		sleep 0.5
		furrow snapshot delete a0/data "s$n" --yes >/dev/null
		n=$((n + 1))
	done
) &
snapshots=$!
run stalls.with $((seconds * 4)) # long enough for checkpoints
kill $snapshots
wait $snapshots || true
echo "figure stalls.with.snapshots $(cat /tmp/snapshots) snapshots 0 0"
umount /mnt/r
server_stop
