# posix_checks: everyday commands give in the directory $remote what they give in $local, which is on a local file system.
# Sourced after lib.sh. FILES: how many files the large directory has.
# both COMMAND: runs it in both places and compares output and exit status
both() {
	local name=$1 a b
	shift
	a=$(cd $remote && bash -c "$*" 2>&1; echo "exit $?")
	b=$(cd $local && bash -c "$*" 2>&1; echo "exit $?")
	if [ "$a" = "$b" ]; then ok "$name"; else
		not_ok "$name"
		diff <(echo "$b") <(echo "$a") | head -8 | sed 's/^/#   /'
	fi
}
n=${FURROW_FILES:-${FILES:-3000}}
say "$n files in one directory"
both "create $n files" "mkdir many && cd many && seq $n | xargs touch && ls | wc -l"
both "ls -l of $n files" "ls -l many | awk '{print \$1, \$2, \$3, \$5, \$9}' | md5sum"
both "find over $n files" "find many -type f | sort | md5sum"
both "remove half while listing" "find many -name '*[02468]' -delete; ls many | wc -l; find many -type f | sort | md5sum"
both "rm -r" "rm -r many; ls -A"
both "touch -d" "touch -d '1971-07-20 20:17:40.123456789 UTC' a; touch -d '2100-01-01 UTC' b; stat -c '%n %.Y %.X %s' a b"
both "chmod" "chmod 4751 a; stat -c %a a; chmod 0 a; stat -c %a a; chmod 644 a"
both "chown" "chown 4000000000:3999999999 a; stat -c '%u %g %a' a"
both "chown clears set-id" "chmod 6755 a; chown 1:1 a; stat -c %a a"
both "ln" "ln a c; stat -c %h a c; ln a c; ln -s nowhere s; readlink s; stat -c '%F %s' s; ls -L s"
both "mkfifo and nodes" "mkfifo f; mknod n c 1 3; mknod m b 259 65536; stat -c '%F %t %T' f n m; (echo hi > f &) ; cat f"
both "name of 255 bytes" "x=\$(printf 'x%.0s' {1..255}); echo 1 > \$x; cat \$x; ls | grep -c \$x; echo 2 > \${x}y; rm \$x"
both "names in UTF-8" "mkdir 'größe Ω 漢字'; touch 'größe Ω 漢字/ñ'; ls 'größe Ω 漢字'; find . -name ñ"
both "sparse file beyond 4 GiB" "truncate -s 9G big; printf end | dd of=big bs=1 seek=5368709120 conv=notrunc status=none; stat -c %s big; dd if=big bs=1 skip=5368709118 count=8 status=none | od -c; rm big"
both "rename" "mkdir d e; touch d/1 e/2; mv d e; ls e; mv e/2 e/d/1; ls e/d; mv e e/d; mkdir -p p/q x; mv -T x p; mv -T x p/q; ls -R p"
both "rmdir" "rmdir e; rm -r e; rmdir p/q p; ls"
both "unlink while open" "echo text > o; exec 3<o; rm o; cat <&3; exec 3<&-; ls -A | grep -c nfs"
both "append and truncate" "for i in 1 2 3; do echo \$i >> t; done; cat t; truncate -s 3 t; od -c t; truncate -s 8 t; od -c t"
both "permissions" "mkdir -m 700 priv; echo x > priv/x; echo y > pub; chmod 600 pub; setpriv --reuid 1000 --regid 1000 --clear-groups bash -c 'cat priv/x; cat pub; ls priv; echo z > new; rm pub'"
both "sticky directory" "mkdir -m 1777 st; touch st/root; setpriv --reuid 1000 --regid 1000 --clear-groups bash -c 'touch st/mine; rm -f st/root; mv st/root st/x; rm st/mine; ls st'"
both "set-gid directory" "mkdir sg; chown 0:77 sg; chmod 2775 sg; touch sg/f; mkdir sg/d; stat -c '%g %a' sg/f sg/d"
both "mv of a directory keeps its inode" "mkdir k; i=\$(stat -c %i k); mv k l; [ \$i = \$(stat -c %i l) ] && echo same; rmdir l"
