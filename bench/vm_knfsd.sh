#!/bin/bash
# vm_knfsd: the peer of `make bench-vm`, in the same kind of guest: Linux knfsd over RDMA, XFS, mdraid RAID 6.
. bench/vm_load.sh
for m in raid456 xfs nfsd rpcrdma nfsv3 nfsv4; do modprobe $m; done
drives=(/dev/nvme?n1)
echo y | mdadm --create /dev/md0 --level=6 --raid-devices=${#drives[@]} --chunk=64K --assume-clean --bitmap=none "${drives[@]}" 2>/dev/null
echo 2 >/sys/block/md0/md/group_thread_cnt
mkfs.xfs -q -f -d su=64k,sw=$((${#drives[@]} - 2)) /dev/md0
mkdir -p /tmp/data /mnt/r /var/lib/nfs/v4recovery
mount /dev/md0 /tmp/data
# what reaches the drives, by kind: a first F is a flush, an F after the W a write with FUA
trace=/sys/kernel/tracing
mount -t tracefs tracefs $trace 2>/dev/null || true
echo 'hist:keys=rwbs' >$trace/events/block/block_rq_issue/trigger
counters() { awk '/rwbs:/ {
	for (i = 1; i <= NF; i++) { if ($i == "rwbs:") k = $(i + 1); if ($i == "hitcount:") n = $(i + 1) }
	if (k ~ /^F/) flush += n
	if (k ~ /WF/) fua += n } END {print flush + 0, fua + 0}' $trace/events/block/block_rq_issue/hist; }
rpcbind
sleep 1
mount -t nfsd nfsd /proc/fs/nfsd
echo 1048576 >/proc/fs/nfsd/max_block_size
exportfs -o rw,no_root_squash,sync,insecure,fsid=0 '*:/tmp/data'
rpc.mountd
rpc.nfsd 8
echo rdma 20049 >/proc/fs/nfsd/portlist
echo Y >/proc/fs/nfsd/v4_end_grace
connect() {
	local o=vers=4.1,rdma,port=20049 from=/
	[[ $1 != v3 ]] || o=vers=3,rdma,port=20049,nolock,mountproto=tcp from=/tmp/data
	mount -t nfs -o $o 10.99.0.1:$from "$2"
}
all_versions
