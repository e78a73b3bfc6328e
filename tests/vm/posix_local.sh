#!/bin/bash
# posix_local: everyday commands over RDMA give what they give on a local disk (a tmpfs here).
# vm: --nvme 6 --rxe --timeout 1800
. tests/vm/lib.sh
nfs_modules
array_make 6
check "mount" mount_rdma /mnt/r
mkdir /mnt/r/w /tmp/l
remote=/mnt/r/w local=/tmp/l
[ -n "${FURROW_LONG:-}" ] && FILES=20000
. tests/vm/posix_checks.sh
check "df shows the space" eval "df --output=size,avail /mnt/r | tail -1 | awk '{exit !(\$1 > 1000000 && \$2 > 900000)}'"
before=$(df --output=avail -B4096 /mnt/r | tail -1)
head -c 64M /dev/urandom >/mnt/r/w/space && sync
used=$(($(df --output=used -B1M /mnt/r | tail -1)))
[ $used -ge 64 ] && ok "df counts what is written ($used MiB used)" || not_ok "df counts what is written ($used MiB used)"
rm /mnt/r/w/space
for i in 1 2 3 4 5 6 7 8 9 10; do after=$(df --output=avail -B4096 /mnt/r | tail -1); [ $((before - after)) -lt 256 ] && break; sleep 1; done
[ $((before - after)) -lt 256 ] && ok "df gives the space back" || not_ok "df gives the space back: $before, then $after blocks"
umount /mnt/r
check_fs
finish
