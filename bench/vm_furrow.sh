#!/bin/bash
# vm_furrow: Furrow's side of `make bench-vm`, in the guest: RAID 6 over six drives, NFS over RDMA.
. tests/vm/lib.sh
. bench/vm_load.sh
nfs_modules
array_make 6 >/dev/null
counters() { furrow array status a0 --json | /usr/bin/python3 -c '
import json, sys
members = json.load(sys.stdin)["arrays"][0]["members"]
print(sum(m["flushes"] for m in members), sum(m["fua_writes"] for m in members))'; }
posts() { echo "$(metric furrow_rdma_posts_total) $(metric furrow_rdma_sends_total)"; }
connect() { if [[ $1 == v3 ]]; then mount_rdma "$2"; else mount -t nfs -o "vers=${1#v},rdma,port=20049" $address:/data "$2"; fi; }
all_versions
server_stop
wire
