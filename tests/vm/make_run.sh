#!/bin/bash
# make_run: the mount lines that `make run` prints work as they stand, over TCP and RDMA, where no rpcbind runs.
# vm: --rxe --mem 4G --timeout 600
. tests/vm/lib.sh
nfs_modules && modprobe nfsv4
BUILD=$build VAR=/tmp/demo LISTEN=$address etc/demo.sh >/tmp/run.out 2>&1 &
demo=$!
for ((i = 0; i < 300; i++)); do
	grep -q "vers=3,rdma" /tmp/run.out && break
	kill -0 $demo 2>/dev/null || break
	sleep 1
done
mapfile -t lines < <(grep -oE "mount -t nfs .*" /tmp/run.out)
[ ${#lines[@]} = 4 ] && ok "lines for NFS 4 and 3, TCP and RDMA" || { not_ok "lines for NFS 4 and 3, TCP and RDMA"; tail -5 /tmp/run.out; }
for line in "${lines[@]}"; do
	transport=${line#*-o } transport=${transport%% *}
	mkdir -p "${line##* }"
	check "$transport: mounts" $line
	check "$transport: a file is written and read" eval "echo hello >/mnt/f && grep -q hello /mnt/f && rm /mnt/f"
	check "$transport: umount" umount /mnt
done
pkill -INT furrowd
wait $demo
check "it ends cleanly" [ $? = 0 ]
finish
