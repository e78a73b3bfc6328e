#!/bin/bash
# A server that starts while commands look at its drives, which they do by themselves as long as no server answers:
# it comes up each time, with all its members; and looking before all drives are there takes none out.
# shellcheck disable=SC2317 # functions that are called by name
set -u
cd "$(dirname "$0")/../.." || exit 1
name=start
. tests/server/smoke.sh
lookers=()

cleanup() {
	touch "$work/enough"
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null
	[ ${#lookers[@]} = 0 ] || wait "${lookers[@]}"
	rm -rf "$work"
}
trap cleanup EXIT

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

config_write
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
