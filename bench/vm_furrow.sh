#!/bin/bash
# vm_furrow: Furrow's side of `make bench-vm`, in the guest: RAID 6 over six drives, NFSv3 over RDMA.
. tests/vm/lib.sh
. bench/vm_load.sh
nfs_modules
array_make 6 >/dev/null
counters() { furrow array status a0 --json | /usr/bin/python3 -c '
import json, sys
members = json.load(sys.stdin)["arrays"][0]["members"]
print(sum(m["flushes"] for m in members), sum(m["fua_writes"] for m in members))'; }
mount_rdma /mnt/r
loads v3 /mnt/r
umount /mnt/r
server_stop
wire
