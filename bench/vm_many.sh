#!/bin/bash
# vm_many: 64 connections over RDMA beside one, in the guest: what an idle one holds, and what an operation costs the server.
. tests/vm/lib.sh
. bench/vm_load.sh
nfs_modules
echo never >/sys/kernel/mm/transparent_hugepage/enabled # what is held is counted in KiB
for n in 3 4 5; do ip addr add 10.99.0.$n/24 dev rdma0; done
array_make 6 >/dev/null
server_stop
sed -i 's/^  listen:.*/  listen: ["0.0.0.0"]/' $FURROW_CONFIG
server_start
# KiB in the server's memory, of which queues that it shares with the adapter are a part. (From smaps, which looks at the pages: VmRSS
# is the sum of counters that each thread brings up to date now and then.) Receives lie in the arena, all of which is there from the
# first connection on.
held() {
	local rss
	rss=$(awk '$1 == "Rss:" {print $2}' /proc/$server_pid/smaps_rollup)
	echo $((rss + 4 * $(metric furrow_rdma_receives)))
}
spent() { cat /proc/$server_pid/task/*/schedstat | awk '{n += $1} END {printf "%.0f\n", n}'; }
reads() { # MOUNT...: four jobs; sets ops and ns, of the server for each
	local jobs=() d before
	for d in "$@"; do jobs+=(--name="j${#jobs[@]}" --filename="$d/f.0.0"); done
	before=$(spent)
	ops=$(fio --direct=1 --ioengine=libaio --size="$size" --rw=randread --bs=4k --iodepth=8 --time_based --runtime="$seconds" \
		--group_reporting --output-format=terse --terse-version=3 "${jobs[@]}" | awk -F';' '{print $8}')
	ns=$((($(spent) - before) / (ops * seconds)))
}
mount_rdma /mnt/r
load many.write1m MiB/s /mnt/r --rw=write --bs=1M --iodepth=8 --end_fsync=1 >/dev/null
reads /mnt/r /mnt/r /mnt/r /mnt/r
echo "figure many.one $ops op/s 0 0"
echo "figure many.one_cpu $ns ns/op 0 0"
umount /mnt/r
mount_rdma /mnt/r
sleep 1
for i in 1 2 3; do held; done >/dev/null # what pages of metrics need is there then: the first make the allocator keep more
before=$(held)
for n in 2 3 4 5; do
	mkdir -p /mnt/c$n
	mount -t nfs -o vers=3,rdma,port=20049,mountport=2049,mountproto=tcp,nolock,nconnect=16 10.99.0.$n:/data /mnt/c$n
done
for ((i = 0; i < 50 && $(metric furrow_rdma_connections) < 65; i++)); do stat --cached=never /mnt/c?/f.0.0 >/dev/null; done
more=$(($(metric furrow_rdma_connections) - 1))
echo "figure many.connections $more connections 0 0"
echo "figure many.idle_memory $((($(held) - before) / more)) KiB 0 0"
reads /mnt/c2 /mnt/c3 /mnt/c4 /mnt/c5
echo "figure many.rate $ops op/s 0 0"
echo "figure many.cpu $ns ns/op 0 0"
umount /mnt/r /mnt/c?
server_stop
