#!/bin/bash
# A server that starts while commands look at its drives, which they do by themselves as long as no server answers:
# it comes up each time, with all its members; and looking before all drives are there takes none out.
# shellcheck disable=SC2317 # functions that are called by name
set -u
cd "$(dirname "$0")/../.." || exit 1
build=$(cd "${FURROW_BUILD:-build}" && pwd)
work=$(mktemp -d /tmp/furrow-start-XXXXXX)
server='' lookers=() number=0 failures=0

cleanup() {
	touch "$work/enough"
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null
	[ ${#lookers[@]} = 0 ] || wait "${lookers[@]}"
	rm -rf "$work"
}
trap cleanup EXIT

check() { # TEXT COMMAND...
	local text=$1
	shift
	number=$((number + 1))
	if "$@" >"$work/out" 2>&1; then
		echo "ok $number - $text"
	else
		echo "not ok $number - $text"
		sed 's/^/# /' "$work/out" | tail -20
		[ -e "$work/log" ] && sed 's/^/# log: /' "$work/log" | tail -20
		failures=$((failures + 1))
	fi
}
furrow() { "$build/furrow" --config "$work/furrow.yaml" "$@"; }
look() {
	while [ ! -e "$work/enough" ]; do furrow status >/dev/null 2>&1; done
}
whole() { # that all members are there, and how far they are
	furrow array status a0 --json | python3 -c '
import json, sys
a = json.load(sys.stdin)["arrays"][0]
assert a["state"] == "healthy", a
print(a["events"])'
}
starts_and_stops() {
	for ((round = 0; round < 10; round++)); do
		"$build/furrowd" --config "$work/furrow.yaml" --foreground 2>>"$work/log" &
		server=$!
		until [ -S "$work/control.sock" ] && furrow status --json | grep -q '"pid"'; do
			kill -0 $server || return 1
			sleep 0.05
		done
		whole || return 1
		kill -TERM $server && wait $server || return 1
		server=
	done
}
looking_changes_nothing() {
	local before after
	before=$(cat "$work"/d? | cksum)
	furrow status && furrow array status && furrow array list && furrow fs list && furrow fs check a0/data || return 1
	mv "$work/d1" "$work/away" && furrow array status a0 | grep -q missing && mv "$work/away" "$work/d1" || return 1
	after=$(cat "$work"/d? | cksum)
	[ "$before" = "$after" ] && whole
}

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$work/furrow.yaml" <<END
server:
  listen: ["127.0.0.1"]
  nfs_port: $port
  rdma_port: off
  memory: 256MiB
  control: "$work/control.sock"
  metrics: off
drives: ["$work/d?"]
exports:
  - path: /data
    filesystem: a0/data
    allow:
      - {clients: 127.0.0.0/8, access: rw, squash: none}
END
truncate -s 64M "$work"/d{0,1,2,3}
check "an array" furrow array create a0 --level 5 --yes "$work"/d{0,1,2,3}
check "a file system" furrow fs create a0/data --yes
check "looking changes nothing, also when a drive is not there yet" looking_changes_nothing
look &
lookers+=($!)
look &
lookers+=($!)
check "a server that is looked at starts and stops" starts_and_stops
echo "1..$number"
[ $failures = 0 ]
