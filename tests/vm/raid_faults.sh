#!/bin/bash
# raid_faults: drives pulled while fio writes and verifies over RDMA, one array after the other. The short form is one array of
# level 5; FURROW_LONG=1 adds levels 50 and 6, a second pull during the rebuild of level 6, a drive that is plugged in again, a
# member that is replaced, and bits flipped in a member's image.
# vm: --nvme 8 --nvme-size 512M --rxe --mem 4G --timeout 3000
#
# Each step waits for what it is about and never for a time, so that it does not matter how fast the guest is. How long the
# client heard nothing is always said, and bounded where the guest's clock counts instructions (raid_silence).
. tests/vm/lib.sh
here=$PWD/$build
long=${FURROW_LONG:-}
host() { # pull|plug|flip ARGUMENTS: asks the host side (tests/run) for a fault
	local answer
	case $1 in pull) answer=vm-pulled ;; plug) answer=vm-plugged ;; flip) answer=vm-flipped ;; esac
	rm -f "$here/$answer"
	echo "${@:2}" >"$here/vm-$1"
	local i
	for ((i = 0; i < 1200; i++)); do [ -e "$here/$answer" ] && { cat "$here/$answer"; return 0; }; sleep 0.1; done
	echo "the host side does not answer"
	return 1
}
drive_of() { echo "/dev/ng${1}n1"; }

# what `array status` says: status EXPRESSION over the array `a`, with `m` its members by drive, `s` by serial
status() { furrow array status a0 --json | python3 -c 'import collections, json, sys
a = json.load(sys.stdin)["arrays"][0]
m = collections.defaultdict(lambda: {"state": "none"}, {x["path"]: x for x in a["members"]})
s = {x["serial"]: x for x in a["members"]}
r = a["rebuild"]
result = eval(sys.argv[1])
print(result)
sys.exit(0 if result else 1)' "$1"; }
wait_for() { # SECONDS COMMAND...
	local end=$((SECONDS + $1))
	shift
	while [ $SECONDS -lt $end ]; do "$@" && return 0; sleep 0.2; done
	return 1
}
# shows NAME EXPRESSION: that `array status` comes to say it
shows() {
	if wait_for 300 status "$2" >/dev/null; then ok "$1"; else
		not_ok "$1: not '$2'"
		furrow array status a0 | sed 's/^/#   /'
	fi
}

# A heart beat: 4 KiB written and read back past the page cache, fifty times a second where that goes. Before and after /tmp/mark
# exists the longest silence in ms is kept, in /tmp/beat: AFTER BEFORE BEATS.
beat_start() {
	rm -f /tmp/beat.stop /tmp/beat /tmp/mark
	python3 - <<-'P' &
		import mmap, os, time
		fd = os.open("/mnt/r/beat", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
		page = mmap.mmap(-1, 4096)
		longest, before, count, marked = 0, 0, 0, False
		while not os.path.exists("/tmp/beat.stop"):
		    start = time.monotonic()
		    page[:8] = count.to_bytes(8, "little")
		    os.pwrite(fd, page, 0)
		    os.preadv(fd, [page], 0)
		    assert int.from_bytes(page[:8], "little") == count
		    took = time.monotonic() - start
		    if not marked and os.path.exists("/tmp/mark"):
		        marked, before, longest = True, longest, 0
		    longest = max(longest, took)
		    if took > 0.8:
		        now = time.time()
		        print(f"# a beat of {took * 1000:.0f} ms until {time.strftime('%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03}", flush=True)
		    count += 1
		    with open("/tmp/beat.new", "w") as f:
		        f.write(f"{int(longest * 1000)} {int(before * 1000)} {count}\n")
		    os.replace("/tmp/beat.new", "/tmp/beat")
		    time.sleep(0.02)
	P
	beat=$!
}
beat_end() { # NAME
	touch /tmp/beat.stop
	wait $beat || not_ok "$1: the heart beat reads what it wrote"
	local after before beats
	read -r after before beats </tmp/beat
	say "$1: longest silence $after ms, $before ms before the pull; $beats beats"
	[ -z "${FURROW_COUNTED:-}" ] && return
	[ "$after" -le 1000 ] && ok "$1: no silence beyond a second ($after ms)" || not_ok "$1: silent for $after ms"
}

# fio writes and verifies, again and again until it is told to stop
fio_start() {
	rm -f /tmp/fio.*
	(
		cd /tmp
		for ((i = 0; i < 1000; i++)); do
			[ -e /tmp/fio.stop ] && break
			fio --directory=/mnt/r --direct=1 --ioengine=libaio --verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --output-format=json --output=/tmp/fio.json.$i \
				--name=seq --rw=write --bs=256k --iodepth=4 --size=${FURROW_FIO_SEQ:-32M} --name=rand --rw=randwrite --bs=4k --iodepth=8 --size=${FURROW_FIO_RAND:-8M} >/tmp/fio.out 2>&1 || { echo $? >/tmp/fio.failed; break; }
			echo $((i + 1)) >/tmp/fio.passes
		done
	) &
	fio=$!
}
fio_end() { # NAME
	touch /tmp/fio.stop
	wait $fio
	if [ -e /tmp/fio.failed ]; then
		not_ok "$1: fio verifies what it wrote"
		grep -hE "verify|err" /tmp/fio.out /tmp/fio.json.* | head -5 | sed 's/^/#   /'
	else
		ok "$1: fio verifies what it wrote ($(cat /tmp/fio.passes) passes)"
	fi
	python3 -c 'import glob, json
worst = {}
for name in glob.glob("/tmp/fio.json.*"):
    try:
        jobs = json.loads(open(name).read()[open(name).read().index("{"):])["jobs"]
    except ValueError:
        continue
    for job in jobs:
        for way in "read", "write":
            worst[job["jobname"], way] = max(worst.get((job["jobname"], way), 0), job[way]["clat_ns"]["max"] // 1000000)
print("# fio, longest completion in ms:", ", ".join(f"{j} {w} {n}" for (j, w), n in sorted(worst.items())))'
}
hook_heard() { grep -q "^$1 a0 $2\b" /tmp/events; }

array_begin() { # LEVEL
	config_write
	sed -i 's#^  control:.*#&\n  hook: /tmp/hook#' "$FURROW_CONFIG"
	printf '#!/bin/sh\necho "$@" >>/tmp/events\n' >/tmp/hook && chmod +x /tmp/hook
	rm -f /tmp/events
	# a link such as udev makes leads to the block device, and means the drive's character device
	mkdir -p /tmp/by-id && ln -sf /dev/nvme6n1 /tmp/by-id/nvme-FURROW6
	check "a drive named by a link" eval 'furrow drive list --drives "/tmp/by-id/*" --json | tee /dev/stderr | grep -q "\"kind\": \"nvme\""'
	furrow array create a0 --level $1 $([ $1 = 50 ] && echo --groups 2) --spare /tmp/by-id/nvme-FURROW6 --force --yes $(for i in 0 1 2 3 4 5; do drive_of $i; done) >/dev/null || { not_ok "array of level $1"; return 1; }
	furrow drive spare $(drive_of 7) --force --yes >/dev/null || { not_ok "a spare of the pool"; return 1; }
	furrow fs create a0/data --yes >/dev/null && server_start
}
level_test() { # LEVEL PULLS
	local level=$1 name="level $1" gone='m["'$(drive_of 2)'"]' gone2='m["'$(drive_of 4)'"]' spare='m["'$(drive_of 6)'"]'
	say "$name"
	array_begin $level || return
	check "$name: mount" mount_rdma /mnt/r || return
	head -c ${FURROW_KEPT:-$([ -n "$long" ] && echo 64M || echo 24M)} /dev/urandom >/tmp/kept
	cp /tmp/kept /mnt/r/kept
	fio_start
	beat_start
	check "$name: fio runs" wait_for 300 [ -e /tmp/fio.passes ]
	# the spare waits, so that what is said of a degraded array can be heard
	furrow array rebuild a0 pause >/dev/null
	touch /tmp/mark
	say "pulling nvme2"
	host pull nvme2
	shows "$name: status tells of the lost member" "a['state'] == 'degraded' and $gone['state'] in ('failed', 'missing') and $spare['state'] == 'spare'"
	[ "$(metric furrow_array_degraded)" = 1 ] && [ "$(metric furrow_array_events_total)" -ge 1 ] && ok "$name: the metrics tell of it" || not_ok "$name: the metrics do not tell of it"
	grep -q 'event: member-failed array=a0 drive='$(drive_of 2) /tmp/furrowd.log && ok "$name: the log tells of it" || not_ok "$name: the log does not tell of it"
	check "$name: the hook is told, with array and drive" wait_for 60 hook_heard member-failed $(drive_of 2)
	# a target that is always missed: the rebuild takes its time, and can be seen
	[ "$2" = 2 ] && furrow array rebuild a0 --latency 0.001 >/dev/null
	furrow array rebuild a0 resume >/dev/null
	if [ "$2" = 2 ]; then
		shows "$name: status tells of the rebuild" "r['running'] and $spare['state'] == 'rebuilding' and r['done_bytes'] > 0"
		furrow array rebuild a0 pause >/dev/null # in the middle, until the second is gone
		say "pulling nvme4"
		host pull nvme4
		# the spare of the pool may be there already
		shows "$name: status tells of the second loss while the first is rebuilt" "a['state'] == 'degraded' and $gone2['state'] in ('failed', 'missing', 'none') and $spare['state'] == 'rebuilding'"
		check "$name: the hook is told of the second loss" wait_for 60 hook_heard member-failed $(drive_of 4)
		furrow array rebuild a0 resume >/dev/null
	fi
	furrow array rebuild a0 --latency 5 >/dev/null
	shows "$name: whole again" "a['state'] == 'healthy' and $spare['state'] == 'active' and '$(drive_of 2)' not in m"
	[ "$2" = 2 ] && shows "$name: with the spare of the shared pool" "m['$(drive_of 7)']['state'] == 'active' and '$(drive_of 4)' not in m"
	shows "$name: no row is lost" "r['lost_rows'] == 0"
	check "$name: the hook is told of the rebuild" wait_for 60 hook_heard rebuild-done $(drive_of 6)
	[ "$(metric furrow_array_degraded)" = 0 ] && ok "$name: the metrics say so" || not_ok "$name: the metrics still say degraded"
	furrow array status a0 | sed 's/^/# /'
	sed 's/^/# hook: /' /tmp/events
	fio_end "$name"
	beat_end "$name"
	check "$name: the kept file is equal" eval 'echo 3 >/proc/sys/vm/drop_caches; cmp /tmp/kept /mnt/r/kept'
	check_fs "at $name"
}
level_end() { # gives the drives back to the next array
	check "umount" umount /mnt/r
	server_stop
	furrow array destroy a0 --yes >/dev/null || not_ok "destroy"
	host plug nvme2
	[ -e $(drive_of 4) ] || host plug nvme4
	check "the drives are back" wait_for 60 eval '[ -e $(drive_of 2) ] && [ -e $(drive_of 4) ]'
}
return_test() { # a member is pulled and plugged in again
	local member='m["'$(drive_of 6)'"]'
	local whole
	whole=$(status "r['written_bytes']") # of the rebuild before
	say "a member that returns"
	furrow drive release $(drive_of 7) >/dev/null 2>&1 # no spare may be faster
	host pull nvme6
	head -c 8M /dev/urandom >/tmp/late
	check "writing goes on without it" cp /tmp/late /mnt/r/late
	shows "its loss is told, and that its drive has left" "a['state'] == 'degraded' and $member['state'] == 'missing'"
	host plug nvme6
	# under the first name that is free
	shows "it is taken in again by itself, and is up to date" "a['state'] == 'healthy' and s['FURROW6']['state'] == 'active'"
	shows "it got what it missed only: $(status "r['written_bytes']") bytes of $whole" "r['partial'] and 0 < r['written_bytes'] < $whole"
	check "the hook is told of the return" wait_for 60 hook_heard member-returned "/dev/ng.n1"
	furrow array status a0 | sed 's/^/# /'
}
replace_test() { # a member that works is replaced while fio runs; the array is whole all the while
	say "a member is replaced"
	local before
	[ -e $(drive_of 4) ] || host plug nvme4
	check "a drive is free" wait_for 60 eval '[ -e $(drive_of 4) ]'
	before=$(grep -c . /tmp/events)
	fio_start
	beat_start
	check "fio runs again" wait_for 300 [ -e /tmp/fio.passes ]
	touch /tmp/mark
	local free
	free=$(for d in /dev/ng*n1; do status "'$d' not in m" >/dev/null && echo $d; done | head -1)
	check "array replace" furrow array replace a0 /dev/nvme0n1 $free --force --yes --wait
	shows "the other drive has its place" "a['state'] == 'healthy' and r['copies'] and r['lost_rows'] == 0 and '$(drive_of 0)' not in m"
	check "the array lacked nothing" eval '! tail -n +$((before + 1)) /tmp/events | grep -q member-failed'
	furrow array status a0 | sed 's/^/# /'
	fio_end "while a member is replaced"
	beat_end "while a member is replaced"
	check "the kept file is equal then" eval 'echo 3 >/proc/sys/vm/drop_caches; cmp /tmp/kept /mnt/r/kept'
}
flip_test() { # bits change under the server's feet in one member's image
	say "bits flip in a member's image"
	check "umount before the flips" umount /mnt/r
	server_stop # so that no block is in memory
	say "flipped: $(host flip nvme1 300)"
	server_start
	mount_rdma /mnt/r
	check "what was written is read right" eval 'cmp /tmp/kept /mnt/r/kept && cmp /tmp/late /mnt/r/late'
	local errors repaired
	errors=$(status "m['$(drive_of 1)']['checksum_errors']") repaired=$(metric furrow_fs_checksum_repairs_total)
	[ "${errors:-0}" -gt 0 ] && [ "${repaired:-0}" -gt 0 ] && ok "flipped bits were repaired on read and counted: $errors of the member, $repaired of the file system" || not_ok "flipped bits: $errors of the member, $repaired of the file system"
	check "a scrub repairs the rest" furrow array scrub a0 start --wait
	furrow array status a0 | sed 's/^/# /'
	check "a second scrub finds nothing" eval 'furrow array scrub a0 start --wait >/dev/null && status "a[\"scrub\"][\"ended\"] and not a[\"scrub\"][\"running\"] and a[\"scrub\"][\"mismatches\"] == 0"'
	check_fs "after the flips"
}
nfs_modules
: >"$here/raid_faults.log" && ln -sf "$here/raid_faults.log" /tmp/furrowd.log # can be read while the guest runs
levels=(${FURROW_LEVELS:-$([ -n "$long" ] && echo 5 50 6 || echo 5)})
for ((at = 0; at < ${#levels[@]}; at++)); do
	level=${levels[at]}
	[ $at = 0 ] || level_end
	level_test $level $([ $level = 6 ] && echo 2 || echo 1)
done
if [ -n "$long" ]; then
	return_test
	replace_test
	flip_test
fi
check "umount" umount /mnt/r
server_stop
finish
