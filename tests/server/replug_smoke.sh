#!/bin/bash
# A member that goes and comes back while the server runs, on files: one that was taken out by command stays out while its drive
# stays where it was; another drive under its name means that it left, and what it is says that it returned. The hook hears of it.
# shellcheck disable=SC2317 # functions that are called by name
set -u
cd "$(dirname "$0")/../.." || exit 1
name=replug
. tests/server/smoke.sh

cleanup() {
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null
	rm -rf "$work"
}
trap cleanup EXIT

furrow() { "$build/furrow" --config "$work/furrow.yaml" "$@"; }
comes_to() { # WHAT: that the status comes to say it
	for ((i = 0; i < 600; i++)); do
		furrow array status a0 | grep -Eq "$1" && return 0
		sleep 0.1
	done
	furrow array status a0
	return 1
}
serves() {
	for ((i = 0; i < 600; i++)); do
		[ -S "$work/control.sock" ] && furrow status >/dev/null && return 0
		sleep 0.1
	done
	return 1
}
start() {
	"$build/furrowd" --config "$work/furrow.yaml" --foreground 2>>"$work/log" &
	server=$!
	serves
}
stop() { kill -TERM "$server" && wait "$server" && server=; }
returned() { # MEMBER-FILE: that another drive with the same content takes its name
	cp --sparse=always "$1" "$1.new" && mv "$1.new" "$1"
}

config_write "hook: \"$work/hook\""
printf '#!/bin/sh\necho "$@" >>"%s/events"\n' "$work" >"$work/hook"
chmod +x "$work/hook"
check "an array" furrow array create a0 --level 5 --yes "$work"/d{0,1,2,3}
check "a file system" furrow fs create a0/data --yes
check "the server starts" start

ln -s d1 "$work/link"
check "a member is taken out, by a link to it" furrow array fail a0 "$work/link"
check "the status tells" comes_to degraded
check "writing goes on" furrow snapshot create a0/data before
sleep 4 # the watch looks every second
check "it stays out while its drive stays" comes_to " failed +$work/d1"
returned "$work/d1"
check "it returns by itself" comes_to healthy
check "and gets what it missed" comes_to 'last rebuild: slot 1, .*what it missed'
check "the hook hears of all that" bash -c "for i in {1..100}; do grep -q '^rebuild-done' '$work/events' && break; sleep 0.1; done
	grep -q '^member-failed a0 $work/d1' '$work/events' && grep -q '^member-returned a0 $work/d1' '$work/events' && grep -q '^rebuild-done a0 $work/d1' '$work/events'"
# the same over a restart
check "it is taken out again" furrow array fail a0 1
check "a restart" eval 'stop && start'
sleep 4
check "it stays out over a restart, too" comes_to " failed +$work/d1"
mv "$work/d1" "$work/away"
check "when its drive is away, it is missing" comes_to " missing +$work/d1"
mv "$work/away" "$work/d1"
check "and returns by itself" comes_to healthy
# a member that works is replaced, and the array is whole all the while
truncate -s 64M "$work/e"
check "a member is replaced" furrow array replace a0 "$work/link" "$work/e" --wait
check "by the other drive" comes_to " active +$work/e"
check "without being degraded" bash -c "! grep -q '^member-failed a0 $work/e' '$work/events' && [ \$(grep -c ^member-failed '$work/events') = 2 ]"
check "a scrub finds nothing" furrow array scrub a0 start --wait
check "nothing at all" comes_to '^last scrub: 0 rows did not fit'
check "a check finds nothing" furrow fs check a0/data
check "a clean end" stop
echo "1..$number"
[ $failures = 0 ]
