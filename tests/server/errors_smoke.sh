#!/bin/bash
# What an administrator gets wrong, and what goes wrong around a server: each is one line that says what and where, with
# an exit status that is not 0, and nothing is written to a drive. With file-backed drives, on loopback, ports of its own.
# shellcheck disable=SC2016 # what stands in single quotes is for the inner shell
set -u
cd "$(dirname "$0")/../.." || exit 1
build=$(cd "${FURROW_BUILD:-build}" && pwd)
work=$(mktemp -d /tmp/furrow-errors-XXXXXX)
pids=() number=0 failures=0
chmod 755 "$work"

# shellcheck disable=SC2317
cleanup() {
	[ ${#pids[@]} = 0 ] || kill -KILL "${pids[@]}" 2>/dev/null
	[ -e "$work/mounted" ] && umount "$work/mnt"
	rm -rf "$work"
}
trap cleanup EXIT

verdict() { # TEXT OK-OR-NOT: shows what was said if not
	number=$((number + 1))
	if [ "$2" = 0 ]; then
		echo "ok $number - $1"
		[ -z "${VERBOSE:-}" ] || sed 's/^/# /' "$work/said"
	else
		echo "not ok $number - $1"
		echo "# exit status $status; $why; said:"
		sed 's/^/# /' "$work/said" | tail -20
		failures=$((failures + 1))
	fi
}

# What the images hold, without their holes.
cat >"$work/images.py" <<'END'
import os, sys, zlib
for path in sys.argv[1:]:
    with open(path, "rb") as f:
        end, at, sum = os.fstat(f.fileno()).st_size, 0, 0
        while at < end:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            stop = os.lseek(f.fileno(), at, os.SEEK_HOLE)
            f.seek(at)
            while at < stop:
                block = f.read(min(1 << 20, stop - at))
                # a hole that was filled with zeros reads as it did
                if block.strip(b"\0"):
                    sum = zlib.crc32(block, sum ^ zlib.crc32(str(at).encode()))
                at += len(block)
        print(path, end, sum)
END
images() {
	python3 "$work/images.py" "$work"/drives/[de]*
}
before='' # what they held at the last look; empty: a step of the test has changed them, or may have

# refused TEXT PATTERN COMMAND...: one line with PATTERN, status 1 or 2, drives as before.
refused() {
	local text=$1 pattern=$2 after lines
	shift 2
	[ -n "$before" ] || before=$(images)
	timeout 20 "$@" >"$work/said" 2>&1 </dev/null
	status=$?
	after=$before
	[ -n "${unlooked:-}" ] || after=$(images)
	# the log of a server in the foreground stands there too
	lines=$(grep -vcE '^[0-9-]{10}T[0-9:.]*Z (INFO|WARNING) ' "$work/said")
	why=
	[ $status = 1 ] || [ $status = 2 ] || why='not a refusal'
	[ "$lines" = 1 ] || why="$lines lines"
	grep -qE -- "$pattern" "$work/said" || why="no \"$pattern\""
	[ "$before" = "$after" ] || why='drives have changed'
	before=$after
	[ -z "$why" ]
	verdict "$text" $?
}
server_refused() { # TEXT PATTERN
	refused "$1" "$2" "$build/furrowd" --foreground --config "$work/furrow.yaml"
}
furrow_refused() { # TEXT PATTERN ARGUMENT...
	local text=$1 pattern=$2
	shift 2
	refused "$text" "$pattern" "$build/furrow" "$@" --config "$work/furrow.yaml"
}
must() { # a step of the test itself
	if ! "$@" >"$work/said" 2>&1 </dev/null; then
		status=$? why="$*"
		verdict "preparation" 1
		echo "1..$number"
		exit 1
	fi
}
free_port() {
	python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
hold_port() { # PORT: another program has it
	python3 -c 'import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1])))
s.listen()
print("held", flush=True)
time.sleep(60)' "$1" >"$work/held" &
	pids+=($!)
	for ((i = 0; i < 50; i++)); do
		grep -q held "$work/held" && return
		sleep 0.1
	done
}
release() { # ends what was started last
	kill "${pids[-1]}" 2>/dev/null
	wait "${pids[-1]}" 2>/dev/null
	unset 'pids[-1]'
}

port=$(free_port) metrics=127.0.0.1:$(free_port)
mkdir "$work/drives" "$work/run"
configure() { # DRIVES-PATTERN
	cat >"$work/furrow.yaml" <<-END
		server:
		  listen: ["127.0.0.1"]
		  nfs_port: $port
		  rdma_port: off
		  memory: 128MiB
		  control: "$work/run/control.sock"
		  metrics: "$metrics"
		drives: ["${1:-$work/drives/d*}"]
		exports:
		  - path: /data
		    filesystem: a0/data
		    allow: {clients: 127.0.0.1, access: rw}
	END
}
configure
drives=()
for i in 0 1 2 3 4 5; do
	truncate -s 128M "$work/drives/d$i"
	drives+=("$work/drives/d$i")
done
must "$build/furrow" array create a0 --level 6 --yes "${drives[@]}" --config "$work/furrow.yaml"
must "$build/furrow" fs create a0/data --yes --config "$work/furrow.yaml"

# --- the configuration: nothing of this gets as far as the drives, which are looked at in the end
before=$(images) unlooked=yes
edited() { # TEXT PATTERN SED-EXPRESSION
	configure
	sed -i "$3" "$work/furrow.yaml"
	server_refused "$1" "$2"
}
edited "an unknown key" 'furrow.yaml:3:3: .*nfs_prt' 's/nfs_port/nfs_prt/'
edited "a key that stands twice" 'furrow.yaml:4:3: .*nfs_port' '3{p}'
edited "a port that is no number" 'furrow.yaml:3:13: ' 's/nfs_port: .*/nfs_port: many/'
edited "a port that is too large" 'furrow.yaml:3:13: ' 's/nfs_port: .*/nfs_port: 65536/'
edited "an address that is none" 'furrow.yaml:2:12: ' 's/listen: .*/listen: ["localhost"]/'
edited "an address that is not here" '192\.0\.2\.1' 's/listen: .*/listen: ["192.0.2.1"]/'
edited "too little memory" 'furrow.yaml:5:11: .*128 ?MiB' 's/memory: .*/memory: 1MiB/'
edited "more memory than there is" 'furrow.yaml: memory: 900 TiB is more than this machine has' 's/memory: .*/memory: 900TiB/'
edited "a control socket with a relative path" 'furrow.yaml:6:12: ' 's/control: .*/control: run.sock/'
edited "a control socket with a path that is too long" '107' "s|control: .*|control: /$(printf 'x%.0s' {1..120})|"
edited "the same port for NFS and metrics" "same port $port" "s/metrics: .*/metrics: 127.0.0.1:$port/"
edited "an export without a rule" 'furrow.yaml:[0-9]+:[0-9]+: ' '/allow:/d'
edited "an export of a relative path" 'furrow.yaml:10:11: ' 's|path: /data|path: data|'
edited "a network that is none" 'furrow.yaml:[0-9]+:[0-9]+: .*10.0.0.0/33' 's|clients: 127.0.0.1|clients: 10.0.0.0/33|'
edited "a list where a word belongs" 'furrow.yaml:[0-9]+:[0-9]+: ' 's|access: rw|access: [rw]|'
edited "no YAML at all" 'furrow.yaml:[0-9]+:[0-9]+: ' '1i }{'
edited "a tabulator" 'furrow.yaml:[0-9]+:[0-9]+: ' 's/^  listen/\tlisten/'
: >"$work/furrow.yaml"
head -c 4096 /dev/urandom >"$work/furrow.yaml"
server_refused "random bytes" 'furrow.yaml'
rm "$work/furrow.yaml"
server_refused "no file" 'furrow.yaml: .*No such file'
mkdir "$work/furrow.yaml"
server_refused "a directory" 'furrow.yaml: .*[Dd]irectory'
rmdir "$work/furrow.yaml"
refused "an option that is none" 'frob' "$build/furrowd" --frob
unlooked=
edited "an array that is not there" 'array a1: none of the 6 drives' 's|a0/data|a1/data|'
edited "no drive matches" 'array a0: ' 's|^drives: .*|drives: ["/nonexistent/*"]|'

# --- what others hold
configure
hold_port "$port"
server_refused "a port that is taken" "127.0.0.1 port $port: Address already in use"
release
hold_port "${metrics##*:}"
server_refused "the metrics' port is taken" "127.0.0.1 port ${metrics##*:}: Address already in use"
release
touch "$work/run/control.sock"
server_refused "a file where the control socket belongs" "$work/run/control.sock: .*no socket"
rm "$work/run/control.sock"
python3 -c 'import socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
s.listen()
time.sleep(60)' "$work/run/control.sock" &
pids+=($!)
for ((i = 0; i < 50; i++)); do [ -S "$work/run/control.sock" ] && break || sleep 0.1; done
sleep 0.2
server_refused "another server answers on the control socket" "$work/run/control.sock: another server answers"
release
rm -f "$work/run/control.sock"
sed -i "s|control: .*|control: $work/drives/d0/control.sock|" "$work/furrow.yaml"
server_refused "a control socket in what is no directory" "d0/control.sock: .*Not a directory"
sed -i "s|control: .*|control: $work/none/below/control.sock|" "$work/furrow.yaml"
server_refused "a control socket in a directory that is not there" "$work/none/below/control.sock: .*No such file"
sed -i "s|control: .*|control: /proc/control.sock|" "$work/furrow.yaml"
server_refused "a control directory that cannot be written" "/proc/control.sock"

# --- drives
configure "$work/drives/*"
mkdir "$work/aside"
mv "$work"/drives/d[012] "$work/aside"
before=
server_refused "more drives are missing than redundancy bears" 'array a0: too many members are lost: .*0 .*1 .*2'
mv "$work"/aside/* "$work/drives"
mv "$work"/drives/d[1-5] "$work/aside"
before=
server_refused "a single member" 'array a0: too many members are lost: '
mv "$work"/aside/* "$work/drives"
for i in 0 1 2; do
	mv "$work/drives/d$i" "$work/aside"
	truncate -s 128M "$work/drives/d$i"
done
printf 'XFSB' | dd of="$work/drives/d0" conv=notrunc status=none
printf '\x53\xef' | dd of="$work/drives/d1" bs=1 seek=1080 conv=notrunc status=none
head -c 8192 /dev/urandom | dd of="$work/drives/d2" conv=notrunc status=none
before=
server_refused "drives that hold something else" 'array a0: .*drives/d0 holds .*XFS'
furrow_refused "and are not overwritten" 'drives/d0.*XFS.*--force' array create a1 --level 1 --yes "$work/drives/d0" "$work/drives/d1"
mv "$work"/aside/* "$work/drives"
before=
furrow_refused "members of another array are not overwritten" 'drives/d0.*a0.*--force' array create a1 --level 1 --yes "$work/drives/d0" "$work/drives/d1"
mkdir "$work/drives/d7"
furrow_refused "a directory as a drive" "drives/d7" array create a1 --level 1 --yes "$work/drives/d7" "$work/drives/d0"
rmdir "$work/drives/d7"
furrow_refused "a drive that is not there" 'drives/d8: No such file' array create a1 --level 1 --yes "$work/drives/d8" "$work/drives/d9"
truncate -s 100K "$work/drives/e0" "$work/drives/e1"
before=
furrow_refused "drives that are too small" 'drives/e[01].*small' array create a1 --level 1 --yes "$work/drives/e0" "$work/drives/e1"
truncate -s 128M "$work/drives/e0" "$work/drives/e1"
before=
furrow_refused "too few drives" 'level 6' array create a1 --level 6 --yes "$work/drives/e0" "$work/drives/e1"
furrow_refused "one drive twice" 'e0.*twice' array create a1 --level 1 --yes "$work/drives/e0" "$work/drives/e0"
ln -s "$work/drives/e0" "$work/link"
furrow_refused "one drive by two names" 'e0|link' array create a1 --level 1 --yes "$work/drives/e0" "$work/link"
furrow_refused "a level that is none" 'level 7 is not' array create a1 --level 7 --yes "$work/drives/e0" "$work/drives/e1"
furrow_refused "without --yes and without a terminal" '--yes' fs destroy a0/data
rm "$work/drives"/e*
before=
exec 8<"${drives[2]}"
must flock -n 8
server_refused "a drive that another program has" 'drives/d2'
exec 8<&-
if [ "$(id -u)" = 0 ]; then
	chmod 600 "$work"/drives/*
	chmod 755 "$work/drives"
	mkdir "$work/nobody"
	chown nobody "$work/nobody"
	sed -i "s|control: .*|control: $work/nobody/control.sock|" "$work/furrow.yaml"
	refused "drives without permission" 'drives/d[0-5].*Permission denied' \
		setpriv --reuid nobody --regid nogroup --clear-groups "$build/furrowd" --foreground --config "$work/furrow.yaml"
	refused "nor with the tool" 'drives/d[0-5].*Permission denied' \
		setpriv --reuid nobody --regid nogroup --clear-groups "$build/furrow" array fail a0 1 --config "$work/furrow.yaml"
	configure
	refused "a control directory without permission" "$work/run: Permission denied" \
		setpriv --reuid nobody --regid nogroup --clear-groups "$build/furrowd" --foreground --config "$work/furrow.yaml"
	mkdir "$work/mnt"
	if mount --bind "$work/drives" "$work/mnt" 2>/dev/null && mount -o remount,ro,bind "$work/mnt"; then
		touch "$work/mounted"
		configure "$work/mnt/*"
		server_refused "drives that can only be read" 'mnt/d[0-5].*Read-only'
		umount "$work/mnt"
		rm "$work/mounted"
	else
		number=$((number + 1))
		echo "ok $number - drives that can only be read # SKIP no bind mounts here"
	fi
else
	number=$((number + 1))
	echo "ok $number - drives without permission # SKIP not root"
fi
configure

# --- what goes to the tool
furrow_refused "a command that is none" 'frobnicate' frobnicate
furrow_refused "an option that belongs to another command" '--size' fs list --size 1G
furrow_refused "an argument too many" 'array list' array list a0
furrow_refused "a name that is none" '../x' fs create ../x --yes
furrow_refused "reload without a server" 'no server' reload
# these take the array for the length of the command, and their superblocks say so
unlooked=yes
server_refused_name() {
	configure
	sed -i 's|a0/data|a0/dato|' "$work/furrow.yaml"
	server_refused "$@"
	configure
}
server_refused_name "a file system that is not there" 'a0/dato.*furrow fs create'
furrow_refused "a file system that is there already" 'a0/data exists already' fs create a0/data --yes
furrow_refused "more space than there is" 'a0.*more' fs create a0/more --size 1T --yes
furrow_refused "check of what is not there" 'a0/none' fs check a0/none

must "$build/furrow" fs check a0/data --config "$work/furrow.yaml"
"$build/furrow" array status a0 --config "$work/furrow.yaml" >"$work/said" 2>&1
status=$? why='not whole'
grep -q '^array a0: healthy' "$work/said"
verdict "after all of this the array is whole" $?
echo "1..$number"
[ $failures = 0 ]
