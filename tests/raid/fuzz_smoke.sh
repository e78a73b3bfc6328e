#!/bin/bash
# libFuzzer over what is read from a member, with AddressSanitizer and UBSan, from a seed that is a good superblock.
# FURROW_FUZZ_SECONDS (15) says for how long; the corpus is kept in BUILD/fuzz between runs.
set -eu
cd "$(dirname "$0")/../.."
build=${FURROW_BUILD:-build} seconds=${FURROW_FUZZ_SECONDS:-15}
echo 1..1
if ! command -v clang >/dev/null || ! echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return d == 0 && n; }' |
	clang -x c -fsanitize=fuzzer - -o /dev/null 2>/dev/null; then
	echo "ok 1 - fuzzer # SKIP no clang with libFuzzer here"
	exit 0
fi
mkdir -p "$build/fuzz/corpus"
flags="-std=gnu11 -g -O1 -D_GNU_SOURCE -I. -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -Wno-unknown-warning-option"
objects=()
for c in raid/*.c core/*.c tests/raid/fuzz_member.c; do
	o=$build/fuzz/$(basename "${c%.c}").o
	case $c in
	*checksum_avx2.c) more=-mavx2 ;;
	*checksum_avx512.c) more=-mavx512f ;;
	*) more= ;;
	esac
	# shellcheck disable=SC2086
	[ "$o" -nt "$c" ] || clang $flags $more -c "$c" -o "$o"
	objects+=("$o")
done
clang -c core/fiber_x86_64.S -I. -o "$build/fuzz/fiber_asm.o"
clang -g -fsanitize=fuzzer,address,undefined "${objects[@]}" "$build/fuzz/fiber_asm.o" -luring -lisal -lnvme -lm -lpthread -o "$build/fuzz/fuzz_member"
# a good one to begin with, made by the array itself
if [ -x "$build/furrow" ]; then
	dir=$(mktemp -d)
	for i in 0 1 2 3 4 5; do truncate -s 32M "$dir/d$i"; done
	printf 'server:\n  control: %s/none\ndrives: ["%s/d*"]\n' "$dir" "$dir" >"$dir/furrow.yaml"
	for level in 6 50; do
		"$build/furrow" --config "$dir/furrow.yaml" array create "l$level" --level $level --force --yes "$dir"/d* >/dev/null 2>&1 || true
		{ printf '\000'; dd if="$dir/d1" bs=64k skip=1 count=1 2>/dev/null | head -c 16384; } >"$build/fuzz/corpus/good$level"
	done
	rm -rf "$dir"
fi
if "$build/fuzz/fuzz_member" -max_total_time="$seconds" -max_len=16640 -len_control=0 -timeout=10 -rss_limit_mb=2048 \
	-artifact_prefix="$build/fuzz/" -print_final_stats=1 "$build/fuzz/corpus" >"$build/fuzz/log" 2>&1; then
	echo "ok 1 - $(sed -n 's/stat::number_of_executed_units: *//p' "$build/fuzz/log") inputs"
else
	tail -40 "$build/fuzz/log"
	echo "not ok 1 - fuzzer"
	exit 1
fi
