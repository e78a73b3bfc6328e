#!/bin/bash
# vm_delay: 4 KiB random reads over a link with 1 ms of delay each way, in the guest: one call in flight, and as many as the
# server grants.
. tests/vm/lib.sh
. bench/vm_load.sh
nfs_modules
link_make
for n in 1 2; do tc qdisc add dev w$n root netem delay 1ms limit 100000; done
address=10.97.0.1
array_make 6 >/dev/null
mount_rdma /mnt/r
BENCH_ONLY=none
load delay.write1m MiB/s /mnt/r --rw=write --bs=1M --iodepth=8 --end_fsync=1 >/dev/null
load delay.one op/s /mnt/r --rw=randread --bs=4k --iodepth=1 --time_based --runtime="$seconds"
load delay.full op/s /mnt/r --rw=randread --bs=4k --iodepth=128 --time_based --runtime="$seconds"
echo "figure delay.in_flight $(metric furrow_rdma_calls_in_flight_most) calls 0 0"
umount /mnt/r
server_stop
