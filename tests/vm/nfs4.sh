#!/bin/bash
# nfs4: the kernel's NFSv4.2 and 4.1 client, over RDMA and TCP: a mount without options, files, holes, clones, extended
# attributes, locks, git and sqlite, snapshots, an export through the pseudo root, and a server that is killed under load.
# vm: --nvme 4 --nvme-size 1G --rxe --mem 4G --timeout 900
. tests/vm/lib.sh
modprobe nfsv4 && modprobe rpcrdma
array_make 6
vers() { grep " $1 nfs4 " /proc/mounts | grep -o 'vers=[0-9.]*'; }
proto() { grep " $1 nfs4 " /proc/mounts | grep -o 'proto=[a-z]*'; }

mkdir -p /mnt/r /mnt/t /mnt/all
is() { [ "$(vers $1) $(proto $1)" = "vers=$2 proto=$3" ] && ok "it is $2 over $3" || not_ok "it is $(vers $1) $(proto $1)"; }
check "mount over TCP with no option" mount -t nfs $address:/data /mnt/t
is /mnt/t 4.2 tcp
umount /mnt/t
check "mount over RDMA with no other option" mount -t nfs -o rdma $address:/data /mnt/r
is /mnt/r 4.2 rdma
# of another minor version: the client would find that it is the same server, and use RDMA for both
check "mount 4.1 over TCP" mount -t nfs -o vers=4.1 $address:/data /mnt/t
is /mnt/t 4.1 tcp
[ -n "$(vers /mnt/r)" ] || finish

tree=/usr/include/linux/netfilter
head -c 24M /dev/urandom >/tmp/large
check "a tree over RDMA" cp -r $tree /mnt/r/tree
check "is equal over TCP" same_tree $tree /mnt/t/tree
check "a large file over RDMA" cp /tmp/large /mnt/r/large
check "is equal over TCP" cmp /tmp/large /mnt/t/large
check "a large file over TCP" cp /tmp/large /mnt/t/large2
check "is equal over RDMA" cmp /tmp/large /mnt/r/large2

check "cp --reflink" cp --reflink=always /mnt/r/large /mnt/r/clone
check "the clone is equal" cmp /tmp/large /mnt/r/clone
check "copy_file_range" cp --reflink=never /mnt/r/large /mnt/r/copied
check "fallocate -p" fallocate -p -o 1M -l 2M /mnt/r/clone
check "what was punched is zeros, the rest and the source are not touched" bash -c '
	cmp -n 1048576 /tmp/large /mnt/r/clone && cmp -n 2097152 -i 1048576:0 /mnt/r/clone /dev/zero &&
	cmp -i 3145728 /tmp/large /mnt/r/clone && cmp /tmp/large /mnt/r/large'
truncate -s 64M /mnt/r/sparse && echo data | dd of=/mnt/r/sparse bs=1 seek=40000000 conv=notrunc status=none
check "a sparse copy stays sparse" bash -c 'cp --sparse=auto /mnt/r/sparse /tmp/sparse && [ "$(du -k /tmp/sparse | cut -f1)" -lt 100 ] && cmp /tmp/sparse /mnt/t/sparse'

check "extended attributes, locks, sqlite" python3 - <<'P'
import os, fcntl, sqlite3
d = "/mnt/r/"
open(d + "x", "w").write("x")
big = os.urandom(60000)
for name, value in (("user.a", b"1"), ("user.big", big), ("user.none", b"")):
    os.setxattr(d + "x", name, value)
    assert os.getxattr(d + "x", name) == value
assert sorted(os.listxattr(d + "x")) == ["user.a", "user.big", "user.none"]
os.removexattr(d + "x", "user.a")
assert sorted(os.listxattr(d + "x")) == ["user.big", "user.none"]
with open(d + "x", "r+") as f:
    fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 100)
with open(d + "x", "r+") as f:
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
db = sqlite3.connect(d + "db")
db.execute("create table t(a int, b text)")
for n in range(100):
    db.execute("insert into t values(?, ?)", (n, "x" * 100))
db.commit()
assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
P
check "git" bash -c 'cd /mnt/r && git init -q g && cp tree/*.h g && git -C g add . && git -C g -c user.name=a -c user.email=a@b commit -qm x &&
	git clone -q /mnt/t/g /mnt/t/h && git -C /mnt/t/h fsck --full && diff -r --exclude=.git g h'
check "a snapshot" furrow snapshot create a0/data s1
rm /mnt/r/tree/xt_mark.h
check "what is gone is in it" cmp $tree/xt_mark.h /mnt/t/.snapshot/s1/tree/xt_mark.h
check "and it cannot be changed" bash -c '! touch /mnt/r/.snapshot/s1/new'
check "an unlinked file that is open" bash -c 'exec 5<>/mnt/r/open && echo a >&5 && rm /mnt/r/open && echo b >&5 && [ "$(cat /proc/self/fd/5 | wc -c)" = 4 ]'
check "4.1 through the pseudo root" bash -c 'mount -t nfs -o vers=4.1 '$address':/ /mnt/all && ls /mnt/all | grep -qx data &&
	cmp /tmp/large /mnt/all/data/large && [ "$(stat -c %d /mnt/all)" != "$(stat -c %d /mnt/all/data)" ] && ! touch /mnt/all/x'
check "write over 4.1" cp /tmp/large /mnt/all/data/large41
check "the server knows its clients" bash -c "'$build/furrow' --config $FURROW_CONFIG state list | grep -q ."

say "killing the server under load"
python3 - >/tmp/load.out 2>&1 <<'P' &
import fcntl, os, time
f = open("/mnt/r/locked", "w+")
fcntl.lockf(f, fcntl.LOCK_EX)
for n in range(400):
    with open("/mnt/r/load%d" % n, "w") as g:
        g.write("x" * 10000)
    os.rename("/mnt/r/load%d" % n, "/mnt/r/done%d" % n)
    f.write("%d\n" % n)
    f.flush()
    os.fsync(f.fileno())
f.seek(0)
assert len(f.readlines()) == 400
open("/tmp/loaded", "w")
P
load=$!
for k in 1 2; do
	sleep 3
	server_kill
	sleep 0.5
	server_start || finish
done
wait $load
[ -e /tmp/loaded ] && ok "files, renames and a lock go on over two kills" || { not_ok "the load ends early"; sed 's/^/#   /' /tmp/load.out | tail -5; }
[ "$(cat /mnt/t/done*[0-9] | wc -c)" = 4000000 ] && ok "and all is there" || not_ok "something of the load is missing"
check "umount" umount /mnt/all/data /mnt/all
check "umount" umount /mnt/r
check "umount" umount /mnt/t
check_fs
finish
