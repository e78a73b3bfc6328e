#!/bin/bash
# fuzz_smoke [NAME...]: the libFuzzer targets, all or those named: what is in tests/fuzz/corpus again, then new inputs.
# limit: 1800
#
# In make check each looks for new ones for FURROW_FUZZ_SECONDS (5, and 20,000 at most, so that a fast machine looks for
# no other ones; that of array members 60; in the gate and with FURROW_LONG all 60), always from the same seed, and
# forgets them.
# FURROW_FUZZ_KEEP=1 (make fuzz) begins with what was found before, elsewhere, and keeps it in BUILD/fuzz/found/NAME. An
# input that fails is in BUILD/fuzz/failed: BUILD/fuzz/tests/fuzz/fuzz_NAME FILE runs it again.
set -u
cd "$(dirname "$0")/../.."
build=${FURROW_BUILD:-build}/fuzz seconds=${FURROW_FUZZ_SECONDS:-${FURROW_LONG:+60}} runs=()
[ -n "$seconds" ] || seconds=5 runs=(-runs=20000)
names=("$@")
[ $# -gt 0 ] || names=($(basename -s .c tests/fuzz/fuzz_*.c | sed s/^fuzz_//))
echo "1..${#names[@]}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$build/failed"
# a good superblock is long: one is made by the array itself
member_seeds() { # DIR
	local tool=${FURROW_BUILD:-build}/furrow
	[ -x "$tool" ] || return 0
	mkdir "$work/drives"
	for i in 0 1 2 3 4 5; do truncate -s 32M "$work/drives/d$i"; done
	printf 'server:\n  control: %s/none\ndrives: ["%s/drives/d*"]\n' "$work" "$work" >"$work/furrow.yaml"
	for level in 6 50; do
		"$tool" --config "$work/furrow.yaml" array create "l$level" --level $level --force --yes "$work"/drives/d* >/dev/null 2>&1 || true
		{ printf '\000'; dd if="$work/drives/d1" bs=64k skip=1 count=1 2>/dev/null | head -c 16384; } >"$1/good$level"
	done
}
one() { # NAME: its TAP line, without a number, in $work/NAME.tap
	local name=$1 program=$build/tests/fuzz/fuzz_$1 corpus=tests/fuzz/corpus/$1 found=$work/found/$1 seed=(-seed=20261130) rc=0
	local time=$seconds limit=("${runs[@]}")
	if [ ! -x "$program" ]; then
		echo "ok - $name # SKIP not built: make fuzz-build (it needs clang with libFuzzer)" >"$work/$name.tap"
		return
	fi
	[ -n "${FURROW_FUZZ_KEEP:-}" ] && found=$build/found/$name seed=()
	mkdir -p "$found"
	[ "$name" = member ] && [ ${#runs[@]} -gt 0 ] && time=60 limit=()
	[ "$name" = member ] && member_seeds "$found"
	"$program" "${seed[@]}" "${limit[@]}" -max_total_time="$time" -max_len=$([ "$name" = member ] && echo 16640 || echo 4096) -timeout=20 \
		-rss_limit_mb=3000 -detect_leaks=0 -artifact_prefix="$build/failed/$name-" -print_final_stats=1 "$found" \
		$([ -d "$corpus" ] && echo "$corpus") >"$work/$name.log" 2>&1 || rc=$?
	local units=$(sed -n 's/stat::number_of_executed_units: *//p' "$work/$name.log") kept=$(ls "$corpus" 2>/dev/null | wc -l)
	if [ $rc = 99 ]; then echo "ok - $name # SKIP $(tail -1 "$work/$name.log")"
	elif [ $rc = 0 ]; then echo "ok - $name: $units inputs, of which $kept kept ones"
	else
		echo "not ok - $name (exit $rc)"
		tail -60 "$work/$name.log" | sed 's/^/# /'
	fi >"$work/$name.tap"
}
# as many at once as there are cores
for name in "${names[@]}"; do
	while [ "$(jobs -r | wc -l)" -ge "$(nproc)" ]; do wait -n; done
	one "$name" &
done
wait
n=0
for name in "${names[@]}"; do
	n=$((n + 1))
	sed -e "1s/ - / $n - /" "$work/$name.tap"
done
! grep -q '^not ok' "$work"/*.tap
