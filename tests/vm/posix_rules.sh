#!/bin/bash
# posix_rules: over NFS 4.2 and RDMA: each rule of POSIX that the file system keeps, copies by cp -a and rsync -aHAX, and a
# source tree that is unpacked, compiled against and removed (80,000 files in the long form).
# vm: --nvme 6 --rxe --timeout 10800
# long: it takes minutes, with 80,000 files an hour and more
. tests/vm/lib.sh
modprobe nfsv4 && modprobe rpcrdma
array_make 6
mkdir -p /mnt/r /mnt/rules
check "mount 4.2 over RDMA" mount -t nfs -o vers=4.2,rdma $address:/data /mnt/r
grep -q " /mnt/r nfs4 .*vers=4.2.*proto=rdma" /proc/mounts || finish
mkdir -m 777 /mnt/r/rules
# not in a pipe: that would count in another shell
python3 tests/vm/posix_rules.py /mnt/r/rules >/tmp/rules.out 2>&1
while read -r result _ _ name; do
	case $result in
	ok) ok "$name" ;;
	not) not_ok "${name#- }" ;;
	*) echo "# $result $name" ;;
	esac
done </tmp/rules.out

say "copies"
mkdir -p /tmp/tree/dir/deep && cd /tmp/tree || finish
cp -r /usr/include/rdma . && chown -R 1000:2000 rdma
ln rdma/rdma_cma.h dir/hard && ln rdma/rdma_cma.h dir/deep/hard && ln -s ../nowhere dir/symbolic && mkfifo dir/fifo && mknod dir/null c 1 3
truncate -s 40M dir/sparse && echo end >>dir/sparse && chmod 4750 dir/hard && chmod 2775 dir && chmod 0 rdma/rsocket.h
touch -h -d '1999-12-31 23:59:59.123456789 UTC' dir/symbolic dir/fifo && touch -d '2001-01-01 UTC' dir/deep
cd - >/dev/null || finish
listing() { (cd "$1" && find . -printf '%P %y %m %U %G %n %s %l %T@\n' | sed 's/^\(.* d [0-7]* [0-9]* [0-9]* [0-9]*\) [0-9]* /\1 - /' | sort); }
listing /tmp/tree >/tmp/want
check "cp -a" cp -a /tmp/tree /mnt/r/copy
check "it has the same names, modes, owners, links, sizes and times" diff /tmp/want <(listing /mnt/r/copy)
check "and the same bytes" same_tree /tmp/tree/rdma /mnt/r/copy/rdma
if command -v rsync >/dev/null; then
	setfattr -n user.kind -v something /mnt/r/copy/rdma/rdma_verbs.h 2>/dev/null ||
		python3 -c 'import os; os.setxattr("/mnt/r/copy/rdma/rdma_verbs.h", "user.kind", b"something")'
	check "rsync -aHAX from there" rsync -aHAX /mnt/r/copy/ /mnt/r/sync/
	check "it has the same names, modes, owners, links, sizes and times" diff /tmp/want <(listing /mnt/r/sync)
	check "and the attributes" python3 -c 'import os; assert os.getxattr("/mnt/r/sync/rdma/rdma_verbs.h", "user.kind") == b"something"'
	rsync -aHAXi /mnt/r/copy/ /mnt/r/sync/ >/tmp/second 2>&1
	[ -s /tmp/second ] && { not_ok "rsync has nothing to copy the second time"; sed 's/^/#   /' /tmp/second | head -5; } ||
		ok "rsync has nothing to copy the second time"
else
	ok "rsync # SKIP the package rsync is missing"
fi

files=${FURROW_FILES:-$([ -n "${FURROW_LONG:-}" ] && echo 80000 || echo 800)} # 800 when it is run by its name
say "a source tree of $files files"
mount -t tmpfs -o size=1500M none /mnt/rules
python3 - "$files" <<'P'
import io, sys, tarfile
n = int(sys.argv[1])
def add(tar, name, text):
    data = text.encode()
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), 1700000000, 0o644
    tar.addfile(info, io.BytesIO(data))
with tarfile.open("/mnt/rules/tree.tar", "w") as tar:
    used = []
    for i in range(n):
        name = "tree/module%03d/%s%05d" % (i // 100, "part", i)
        if i % 2 == 0:
            add(tar, name + ".h", "#ifndef H%d\n#define H%d\nint part_%d(int x);\n%s#endif\n" % (i, i, i, "/* what it is for */\n" * (i % 90)))
            continue
        add(tar, name + ".c", '#include "module%03d/part%05d.h"\nint part_%d(int x) { return x + %d; }\n' % (i // 100, i - 1, i - 1, i))
        if i % (n // 20) == 1:
            used.append(i)
    add(tar, "tree/main.c", "".join('#include "module%03d/part%05d.h"\n' % (i // 100, i - 1) for i in used) +
        "#include <stdio.h>\nint main(void)\n{\n\tint x = 0;\n" + "".join("\tx = part_%d(x);\n" % (i - 1) for i in used) +
        '\tprintf("%d\\n", x);\n\treturn 0;\n}\n')
    add(tar, "tree/sources", "".join("module%03d/part%05d.c\n" % (i // 100, i) for i in used))
    add(tar, "tree/want", "%d\n" % sum(used))
P
before=$(df --output=iused /mnt/r | tail -1)
check "unpacked" tar -C /mnt/r -xf /mnt/rules/tree.tar
is=$(find /mnt/r/tree -type f | wc -l)
[ "$is" = $((files + 3)) ] && ok "all of it is there" || not_ok "there are $is files"
check "what was unpacked is what was packed" tar -C /mnt/r -df /mnt/rules/tree.tar
check "compiled against" bash -c 'cd /mnt/r/tree && gcc -O0 -I. -o program main.c $(cat sources) && [ "$(./program)" = "$(cat want)" ]'
check "removed" rm -rf /mnt/r/tree
[ ! -e /mnt/r/tree ] && ok "and nothing is left" || not_ok "something is left"
for i in {1..50}; do after=$(df --output=iused /mnt/r | tail -1); [ "$after" = "$before" ] && break; sleep 0.2; done
[ "$after" = "$before" ] && ok "nor an inode" || not_ok "$before inodes were used before, $after are now"
check "umount" umount /mnt/r
check_fs
finish
