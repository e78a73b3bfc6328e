#!/bin/bash
# vm_delay: 4 KiB random reads over a link with 1 ms of delay each way, in the guest: one call in flight, and as many as the
# server grants.
#
# Two ends of a veth pair have a soft-RoCE device each. Both addresses are local, so rules of routing send what is for one
# through the other.
. tests/vm/lib.sh
. bench/vm_load.sh
nfs_modules
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
	tc qdisc add dev w$n root netem delay 1ms limit 100000
done
ip neigh add 10.97.0.2 lladdr "$(cat /sys/class/net/w2/address)" dev w1 nud permanent
ip neigh add 10.97.0.1 lladdr "$(cat /sys/class/net/w1/address)" dev w2 nud permanent
ip rule add pref 100 lookup local
ip rule del pref 0
rdma link add rxe1 type rxe netdev w1
rdma link add rxe2 type rxe netdev w2
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
