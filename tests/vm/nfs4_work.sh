#!/bin/bash
# nfs4_work: what people do on a mount, over 4.2 and 4.1, RDMA and TCP: git, sqlite from several processes, make -j, everyday
# commands as on a local disk, locks, and, where the version has it, extended attributes, clones, holes; fio with verification; and
# random operations of two clients on the same files against a model, with delegations for reading and for writing.
# vm: --nvme 4 --nvme-size 1G --rxe --mem 4G --timeout 3600
# long: twenty minutes of emulated git, gcc and fio
. tests/vm/lib.sh
modprobe nfsv4 && modprobe rpcrdma
config_write
furrow array create a0 --level 6 --yes /dev/ng*n1 && furrow fs create a0/data --size 1GiB --yes && server_start || finish
cp tests/vm/client_hand.py tests/vm/lock_checks.py /tmp
version() { grep " $1 nfs4 " /proc/mounts | grep -o 'vers=[0-9.]*\|proto=[a-z]*' | tr '\n' ' '; }
work= name= # the directory of the version and transport in turn

# --- what every version has ---
git_repository() ( # a local one, to clone
	rm -rf /tmp/repository && mkdir /tmp/repository && cp -r core raid /tmp/repository && cd /tmp/repository || exit
	git init -q . && git add . && git -c user.name=a -c user.email=a@b commit -qm one && git rm -q --cached core/log.c &&
		git -c user.name=a -c user.email=a@b commit -qm two
)
git_work() (
	cd $work && git clone -q /tmp/repository clone && git -C clone fsck --full --strict && [ "$(git -C clone log --oneline | wc -l)" = 2 ] &&
		git -C clone checkout -q HEAD~1 && [ -z "$(git -C clone status --porcelain)" ] && git clone -q clone again && git -C again fsck --full &&
		git -C clone -c gc.autoDetach=false gc -q && git -C clone fsck --full && diff -r --exclude=.git clone /tmp/repository
)
sqlite_work() {
	local p pids=()
	for p in 1 2 3 4; do python3 /tmp/client_hand.py sqlite $work/db $p 25 & pids+=($!); done
	for p in "${pids[@]}"; do wait "$p" || return 1; done
	[ "$(python3 /tmp/client_hand.py rows $work/db)" = "ok 100 4" ]
}
make_work() (
	local i
	mkdir $work/make && cd $work/make || exit
	{ echo "int main(void) { return 0"; for i in $(seq 12); do echo "+ f$i()"; done; echo "- 78; }"; } >main.c
	sed -i "1i $(for i in $(seq 12); do echo -n "int f$i(void); "; done)" main.c
	for i in $(seq 12); do printf '#include <stdio.h>\n#include <stdlib.h>\nint f%d(void);\nint f%d(void) { return %d; }\n' $i $i $i >f$i.c; done
	printf 'all: prog\nprog: main.o %s\n\tgcc -o $@ $^\n%%.o: %%.c\n\tgcc -O1 -Wall -c -o $@ $<\n' "$(for i in $(seq 12); do echo -n "f$i.o "; done)" >Makefile
	make -s -j4 && ./prog && make -q && touch f3.c && ! make -q && make -s -j4 && ./prog
)
locks_work() { touch $work/locked && python3 /tmp/lock_checks.py $work/locked python3 /tmp/lock_checks.py --serve $work/locked; }
fio_work() { fio --name=v --directory=$work --verify_state_save=0 --verify=crc32c --verify_fatal=1 --do_verify=1 --output-format=terse "$@"; }

# --- what 4.2 has ---
attributes_work() {
	python3 - $work/attributes <<'P'
import os, sys
d = sys.argv[1]
os.mkdir(d)
open(d + "/f", "w").write("x")
values = {"user.a": b"1", "user.big": os.urandom(60000), "user.none": b"", "user.Größe": b"\0\1\2"}
for target in (d, d + "/f"):
    for name, value in values.items():
        os.setxattr(target, name, value)
    assert sorted(os.listxattr(target)) == sorted(values)
    for name, value in values.items():
        assert os.getxattr(target, name) == value
    for flag, name, error in ((os.XATTR_CREATE, "user.a", FileExistsError), (os.XATTR_REPLACE, "user.x", OSError)):
        try:
            os.setxattr(target, name, b"2", flag)
            sys.exit("not refused")
        except error:
            pass
    os.removexattr(target, "user.none")
    try:
        os.getxattr(target, "user.none")
        sys.exit("still there")
    except OSError:
        pass
P
	[ $? = 0 ] && cp -r --preserve=xattr $work/attributes $work/attributes2 && python3 - $work/attributes/f $work/attributes2/f <<'P'
import os, sys
a, b = ({n: os.getxattr(f, n) for n in os.listxattr(f)} for f in sys.argv[1:3])
assert a == b and len(a) == 3
P
}
clone_work() {
	head -c 5M /dev/urandom >$work/large && cp --reflink=always $work/large $work/cloned && cmp $work/large $work/cloned &&
		dd if=/dev/zero of=$work/cloned bs=4k count=1 seek=7 conv=notrunc status=none && ! cmp -s $work/large $work/cloned &&
		cmp -n 28672 $work/large $work/cloned && cmp -i 32768 $work/large $work/cloned && cp --reflink=never $work/large $work/copy && cmp $work/large $work/copy
}
holes_work() {
	head -c 4M /dev/urandom >/tmp/h && cp /tmp/h $work/h && fallocate -p -o 1M -l 1M $work/h && fallocate -p -o 1M -l 1M /tmp/h && cmp /tmp/h $work/h &&
		fallocate -l 8M $work/allocated && [ "$(stat -c %s $work/allocated)" = 8388608 ] && cmp -n 8388608 $work/allocated /dev/zero &&
		truncate -s 300M $work/sparse && echo data | dd of=$work/sparse bs=1 seek=200000000 conv=notrunc status=none &&
		cp --sparse=auto $work/sparse $work/sparse2 && cmp $work/sparse $work/sparse2 && [ "$(du -k $work/sparse2 | cut -f1)" -lt 100 ] &&
		fallocate -d $work/allocated && cmp -n 8388608 $work/allocated /dev/zero
}
older_work() { # what 4.1 has not is said to be not there
	! cp --reflink=always $work/db $work/x 2>/dev/null && ! fallocate -p -o 0 -l 4096 $work/db 2>/dev/null &&
		cp --sparse=always /tmp/h $work/h && cmp /tmp/h $work/h &&
		python3 -c "
import errno, os, sys
try:
    os.setxattr('$work/db', 'user.a', b'1')
except OSError as e:
    sys.exit(e.errno != errno.EOPNOTSUPP)
sys.exit(1)"
}

check "a repository to clone" git_repository
mounts=${FURROW_MOUNTS:-4.2:rdma,4.2:tcp,4.1:rdma,4.1:tcp}
for name in ${mounts//,/ }; do
	set -- ${name/:/ }
	name="$1 over $2"
	mkdir -p /mnt/m
	check "mount $name" mount -t nfs -o vers=$1,proto=$2 $address:/data /mnt/m
	[ "$(version /mnt/m)" = "vers=$1 proto=$2 " ] || { not_ok "it is $(version /mnt/m)"; finish; }
	work=/mnt/m/w && mkdir $work
	say "$name"
	check "$name: git clone, checkout, gc and fsck" git_work
	check "$name: sqlite from four processes" sqlite_work
	check "$name: make -j" make_work
	check "$name: byte ranges" locks_work
	if [ "$1" = 4.2 ]; then
		check "$name: extended attributes" attributes_work
		check "$name: cp --reflink and copy_file_range" clone_work
		check "$name: fallocate, punched holes, a sparse copy" holes_work
		check "$name: fio, 1 MiB sequential, verified" fio_work --direct=1 --ioengine=libaio --rw=write --bs=1M --iodepth=16 --size=32M
		check "$name: fio, 4 KiB random, verified" fio_work --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=32 --size=8M
	else
		check "$name: no clones, holes or attributes" older_work
	fi
	check "$name: fio through the page cache and mmap, verified" fio_work --ioengine=mmap --rw=randwrite --bs=4k --size=8M
	rm -rf $work/*
	remote=$work local=/tmp/local FILES=500
	rm -rf $local && mkdir $local
	. tests/vm/posix_checks.sh
	check "$name: rm -rf" rm -rf $work
	check "$name: umount" umount /mnt/m
done

# --- several exports: one file system twice, and another one deep inside ---
furrow fs create a0/second --size 128MiB --yes || finish
cat >>"$FURROW_CONFIG" <<Y
  - {path: /two, filesystem: a0/data, allow: {clients: "*", access: rw, squash: none}}
  - {path: /data/far/away/deep, filesystem: a0/second, allow: {clients: "*", access: rw, squash: none}}
Y
check "reload" furrow reload
mkdir -p /mnt/one /mnt/two /mnt/all
check "one file system by two exports" bash -c "mount -t nfs $address:/data /mnt/one && mount -t nfs $address:/two /mnt/two && head -c 1M /dev/urandom >/mnt/one/source"
check "cp --reflink from one to the other" cp --reflink=always /mnt/one/source /mnt/two/clone
check "and copy_file_range" cp --reflink=never /mnt/one/source /mnt/two/copy
check "are equal" bash -c "cmp /mnt/one/source /mnt/one/clone && cmp /mnt/one/source /mnt/one/copy"
check "the root of all" mount -t nfs $address:/ /mnt/all
check "leads to the export deep in the other" bash -c "echo deep >/mnt/all/data/far/away/deep/file && [ \$(stat -c %d /mnt/all/data/far/away/deep) != \$(stat -c %d /mnt/all/data) ] && ls /mnt/all/data/source"
check "which is the one that its own path leads to" bash -c "mkdir -p /mnt/deep && mount -t nfs $address:/data/far/away/deep /mnt/deep && grep -qx deep /mnt/deep/file"
check "umount" bash -c "umount /mnt/deep && umount -R /mnt/all && umount /mnt/one && umount /mnt/two"

for deleg in read write; do
	sed -i '/delegations:/d; s/^server:/&\n  delegations: '$deleg'/' "$FURROW_CONFIG"
	furrow reload >/dev/null
	mkdir -p /mnt/a /mnt/b
	check "two clients, delegations: $deleg" bash -c "mount -t nfs -o vers=4.2,proto=rdma,lookupcache=none $address:/data /mnt/a && mount -t nfs -o vers=4.1,proto=tcp,lookupcache=none $address:/data /mnt/b && mkdir /mnt/a/random"
	check "random operations over both against a model" "$build/tests/vm/random_ops" --ops ${FURROW_RANDOM_OPS:-5000} --seed ${FURROW_SEED:-1} /mnt/a/random /mnt/b/random
	say "$(furrow state list --json | grep delegations_ | tr -d '\n')"
	rm -rf /mnt/a/random
	check "umount" umount /mnt/a /mnt/b
done
check_fs
finish
