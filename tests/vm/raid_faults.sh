#!/bin/bash
# raid_faults: drives pulled while fio writes and verifies over RDMA, for RAID 5, 6 and 50; spares are rebuilt on, one of the array
# and one of the shared pool; a second pull during a rebuild (RAID 6); a drive that returns; bits flipped in a member's image.
# vm: --nvme 8 --nvme-size 512M --rxe --mem 4G --timeout 2400
# long: three arrays, each written to while drives go and come, take a quarter of an hour
. tests/vm/lib.sh
here=$PWD/$build
host() { # WHAT ARGUMENTS: asks the host side (tests/run) for a fault
	local answer
	case $1 in pull) answer=vm-pulled ;; plug) answer=vm-plugged ;; flip) answer=vm-flipped ;; esac
	rm -f "$here/$answer"
	echo "${@:2}" >"$here/vm-$1"
	local i
	for ((i = 0; i < 300; i++)); do [ -e "$here/$answer" ] && { cat "$here/$answer"; return 0; }; sleep 0.1; done
	echo "the host side does not answer"
	return 1
}
drive_of() { echo "/dev/ng${1}n1"; }
state_of() { furrow array status a0 --json | python3 -c 'import json,sys
a = json.load(sys.stdin)["arrays"][0]
w = sys.argv[1]
if w == "array": print(a["state"])
elif w == "rebuild": print(a["rebuild"]["done_bytes"] if a["rebuild"]["running"] else -1)
elif w == "errors": print(sum(m["checksum_errors"] for m in a["members"]))
elif w == "lost_rows": print(a["rebuild"]["lost_rows"])
else: print(next((m["state"] for m in a["members"] if m["path"] == w), "gone"))' "$1"; }
wait_for() { # SECONDS COMMAND...
	local end=$((SECONDS + $1))
	shift
	while [ $SECONDS -lt $end ]; do "$@" && return 0; sleep 0.2; done
	return 1
}
is_state() { [ "$(state_of "$1")" = "$2" ]; }
rebuilding() { [ "$(state_of rebuild)" -ge "${1:-0}" ]; }
# a heart beat: 4 KiB written and read back past the page cache; the longest silence in ms ends up in /tmp/beat
beat_start() {
	rm -f /tmp/beat.stop /tmp/beat /tmp/beat.mark
	python3 - <<-'P' &
		import mmap, os, time
		fd = os.open("/mnt/r/beat", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
		page = mmap.mmap(-1, 4096)
		longest, count, calm, marked = 0, 0, 0, False
		while not os.path.exists("/tmp/beat.stop"):
		    start = time.monotonic()
		    page[:8] = count.to_bytes(8, "little")
		    os.pwrite(fd, page, 0)
		    os.preadv(fd, [page], 0)
		    assert int.from_bytes(page[:8], "little") == count
		    took = time.monotonic() - start
		    if not marked and os.path.exists("/tmp/beat.mark"):
		        marked, calm, longest = True, longest, 0
		    longest = max(longest, took)
		    if took > 0.8:
		        print(f"# {start:.1f} beat of {took:.2f} s", flush=True)
		    count += 1
		    open("/tmp/beat.new", "w").write(f"{int(longest * 1000)} {count} {int(calm * 1000)}")
		    os.replace("/tmp/beat.new", "/tmp/beat")
		    time.sleep(0.02)
	P
	beat=$!
}
beat_end() { touch /tmp/beat.stop; wait $beat; }
fio_start() {
	(cd /tmp && fio --directory=/mnt/r --direct=1 --ioengine=libaio --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --time_based --runtime=${FURROW_FAULT_SECONDS:-60} \
		--name=seq --rw=write --bs=256k --iodepth=4 --size=48M --name=rand --rw=randwrite --bs=4k --iodepth=8 --size=12M >/tmp/fio.out 2>&1; echo $? >/tmp/fio.rc) &
	fio=$!
}
fio_end() { # NAME
	wait $fio
	[ "$(cat /tmp/fio.rc)" = 0 ] && ok "$1" || { not_ok "$1"; grep -E "verify|err" /tmp/fio.out | head -5 | sed 's/^/#   /'; }
}
nfs_modules
beat_limit=${FURROW_BEAT_MS:-1000}

level_test() { # LEVEL SECOND-PULL
	local level=$1 more=
	[ $level = 50 ] && more="--groups 2"
	say "level $level"
	config_write
	sed -i 's#^  control:.*#&\n  hook: /tmp/hook#' "$FURROW_CONFIG"
	printf '#!/bin/sh\necho "$1 $2 $3" >>/tmp/events\n' >/tmp/hook && chmod +x /tmp/hook
	furrow array create a0 --level $level $more --spare $(drive_of 6) --force --yes $(for i in 0 1 2 3 4 5; do drive_of $i; done) >/dev/null || { not_ok "array of level $level"; return; }
	furrow drive spare $(drive_of 7) --force --yes >/dev/null || { not_ok "a spare of the pool"; return; }
	furrow fs create a0/data --yes >/dev/null && server_start || return
	check "level $level: mount" mount_rdma /mnt/r || return
	head -c 64M /dev/urandom >/tmp/kept
	cp /tmp/kept /mnt/r/kept
	fio_start
	beat_start
	wait_for 60 [ -e /mnt/r/rand.0.0 ]
	sleep 20
	touch /tmp/beat.mark # silences from here on count; what the machine itself takes was measured before
	say "pulling nvme2"
	host pull nvme2
	check "level $level: the loss is told" wait_for 20 is_state array degraded
	check "level $level: the spare is rebuilt on" wait_for 20 rebuilding
	if [ "$2" = 2 ]; then
		say "pulling nvme4"
		host pull nvme4
		check "level $level: the second loss is told" wait_for 20 eval '[ "$(state_of $(drive_of 4))" != active ]'
		check "level $level: still degraded" is_state array degraded
	fi
	check "level $level: whole again" wait_for 240 is_state array healthy
	[ "$(state_of lost_rows)" = 0 ] && ok "level $level: no row is lost" || not_ok "level $level: rows are lost"
	[ "$(state_of $(drive_of 6))" = active ] && ok "level $level: the spare is a member" || not_ok "level $level: the spare is $(state_of $(drive_of 6))"
	check "level $level: the hook was told" eval 'grep -q "^member-failed a0 $(drive_of 2)" /tmp/events && grep -q "^rebuild-done a0 $(drive_of 6)" /tmp/events'
	[ "$2" = 2 ] && { [ "$(state_of $(drive_of 7))" = active ] && ok "level $level: the spare of the pool is a member" || not_ok "level $level: the spare of the pool is $(state_of $(drive_of 7))"; }
	furrow array status a0 | sed 's/^/# /'
	fio_end "level $level: fio verifies what it wrote"
	beat_end
	read -r longest beats calm </tmp/beat
	[ "$longest" -le $((beat_limit > calm ? beat_limit : calm)) ] && ok "level $level: no silence beyond a second, or what it is without faults (longest $longest ms, $calm ms before; $beats beats)" ||
		not_ok "level $level: silent for $longest ms ($calm ms before; $beats beats)"
	check "level $level: the kept file is equal" eval 'echo 3 >/proc/sys/vm/drop_caches; cmp /tmp/kept /mnt/r/kept'
	check_fs "at level $level"
	if [ $level != 6 ]; then
		check "level $level: umount" umount /mnt/r
		server_stop
		furrow array destroy a0 --yes >/dev/null || not_ok "level $level: destroy"
	fi
	host plug nvme2
	[ "$2" = 2 ] && host plug nvme4
	check "the drives are back" wait_for 20 eval '[ -e $(drive_of 2) ] && [ -e $(drive_of 4) ]'
}
for l in ${FURROW_LEVELS:-5 50 6}; do level_test $l $((l == 6 ? 2 : 1)); done

say "a member that returns"
spare=$(drive_of 6)
furrow array status a0 | sed 's/^/# /'
head -c 8M /dev/urandom >/tmp/late
host pull nvme6
check "it is missed" wait_for 20 eval 'cp /tmp/late /mnt/r/late; is_state array degraded'
check "writing goes on" cp /tmp/late /mnt/r/late2
host plug nvme6
check "it is taken in again by itself" wait_for 60 is_state array healthy
furrow array status a0 --json | python3 -c 'import json,sys; r=json.load(sys.stdin)["arrays"][0]["rebuild"]; print("# rebuild:", r); sys.exit(not r["partial"])' && ok "it got what it missed only" || not_ok "it was rebuilt whole"

say "bits flip in a member's image"
flipped=$(host flip nvme0 300)
say "flipped: $flipped"
umount /mnt/r && mount_rdma /mnt/r
echo 3 >/proc/sys/vm/drop_caches
server_stop
server_start
check "what was written is read right" eval 'cmp /tmp/kept /mnt/r/kept && cmp /tmp/late /mnt/r/late && cmp /tmp/late /mnt/r/late2'
errors=$(state_of errors)
[ "${errors:-0}" -gt 0 ] && ok "flipped bits were found and repaired: $errors" || not_ok "no flipped bit was counted"
check "scrub finds the rest" eval 'furrow array scrub a0 --wait'
furrow array status a0 | sed 's/^/# /'
check "nothing is left for a second scrub" eval 'furrow array scrub a0 --wait --json | python3 -c "import json,sys; s=json.load(sys.stdin)[\"scrub\"]; print(s); sys.exit(s[\"mismatches\"] > 0)"'
check_fs "after the flips"
check "umount" umount /mnt/r
server_stop
cp /tmp/furrowd.log "$here/raid_faults.log"
finish
