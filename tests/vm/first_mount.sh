#!/bin/bash
# first_mount: six emulated NVMe drives, RAID 6 through passthrough, the kernel's NFS client over RDMA and TCP; a tree and a
# large file survive a remount, a server killed in the middle, and a drive pulled while reading.
# vm: --nvme 6 --nvme-size 1G --rxe --mem 5G --timeout 2400
. tests/vm/lib.sh
pull_drive() { # asks the host side, which holds the monitor (tests/vm/run)
	: >"$PWD/${FURROW_BUILD:-build}/vm-pull"
	for ((i = 0; i < 100; i++)); do [ -e "$PWD/${FURROW_BUILD:-build}/vm-pulled" ] && return 0; sleep 0.2; done
	return 1
}
# the short form copies less; FURROW_LONG=1 the whole of /usr/include and 512 MiB
[ -n "${FURROW_LONG:-}" ] && : ${FURROW_TREE:=/usr/include} ${FURROW_LARGE:=512M}
tree=${FURROW_TREE:-/usr/include/linux}
nfs_modules
array_make 6
before=$(block_layer_ios)
check "mount over RDMA" mount_rdma /mnt/r
check "mount over TCP" mount_tcp /mnt/t
[ "$(stat -f -c %T /mnt/r)" = nfs ] || { not_ok "the mount is there"; finish; }
say "copying $tree and a large file"
rm -rf /tmp/tree && cp -a "$tree" /tmp/tree
head -c ${FURROW_LARGE:-64M} /dev/urandom >/tmp/large
check "cp of a tree over RDMA" cp -r /tmp/tree /mnt/r/tree
check "cp of a large file over RDMA" cp /tmp/large /mnt/r/large
check "umount" umount /mnt/r
check "mount again" mount_rdma /mnt/r
check "the tree is equal after a remount" same_tree /tmp/tree /mnt/r/tree
check "the large file is equal after a remount" cmp /tmp/large /mnt/r/large
check "the tree is equal over TCP" same_tree /tmp/tree /mnt/t/tree
[ "$(block_layer_ios)" = "$before" ] && ok "no I/O went through the kernel's block layer" || not_ok "I/O went through the block layer: $before, then $(block_layer_ios)"
check_fs "after a copy"

refuse "mkfs on a member is refused" "busy|in use" mkfs.xfs -f /dev/nvme0n1
refuse "a second server is refused" "." "$build/furrowd" --config "$FURROW_CONFIG" --foreground
sed 's#control.sock#other.sock#; s#memory: .*#&\n  nfs_port: 2050\n  rdma_port: 20050#' "$FURROW_CONFIG" >/tmp/second.yaml
refuse "a second server of other ports is refused its drives" "in use|busy|claimed" "$build/furrowd" --config /tmp/second.yaml --foreground

say "killing the server during a copy"
(cp -r /tmp/tree /mnt/r/tree2 && touch /tmp/copied) >/tmp/copy.out 2>&1 &
copy=$!
for k in 1 2 3; do
	sleep 2
	server_kill
	sleep 1
	server_start || finish
done
wait $copy
[ -e /tmp/copied ] && ok "cp goes on by itself over three kills" || { not_ok "cp goes on by itself"; sed 's/^/#   /' /tmp/copy.out | head -5; }
check "the tree is equal after the kills" same_tree /tmp/tree /mnt/r/tree2
check_fs "after the kills"

say "pulling a drive"
echo 3 >/proc/sys/vm/drop_caches
umount /mnt/r && mount_rdma /mnt/r
(cmp /tmp/large /mnt/r/large && same_tree /tmp/tree /mnt/r/tree && touch /tmp/compared) >/tmp/compare.out 2>&1 &
compare=$!
sleep 1
if pull_drive; then
	wait $compare
	[ -e /tmp/compared ] && ok "reading goes on and is equal with a drive pulled" || { not_ok "reading with a drive pulled"; head -3 /tmp/compare.out; }
	check "array status tells of it" grep -Eq "missing|failed" <(furrow array status a0)
	check "writing goes on without the drive" cp /tmp/large /mnt/r/large2
	check "and is equal" cmp /tmp/large /mnt/r/large2
	check_fs "without the drive"
else
	not_ok "a drive is pulled"
fi
check "umount" umount /mnt/r
check "umount" umount /mnt/t
server_stop
check_fs "offline"
finish
