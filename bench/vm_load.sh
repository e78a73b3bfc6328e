# vm_load.sh: the loads that servers get in the guest. Sourced by those who start one and may define after that
#   counters              prints flushes and FUA writes of all drives so far
#   posts                 prints how often the server posted work requests, and how many replies it sent
#   connect VERSION DIR   mounts; for all_versions
#
# Each line of output: figure NAME VALUE UNIT FLUSHES-PER-OPERATION FUA-WRITES-PER-OPERATION
set -eu
size=${BENCH_SIZE:-64M} seconds=${BENCH_SECONDS:-2}
counters() { echo 0 0; }
posts() { :; }

figure() { # NAME UNIT OPERATIONS VALUE COUNTERS-BEFORE
	local after
	after=$(counters)
	awk -v n="$1" -v u="$2" -v ops="$3" -v v="$4" -v b="$5" -v a="$after" 'BEGIN {
		split(b, x); split(a, y)
		if (ops < 1) ops = 1
		printf "figure %s %s %s %.3f %.3f\n", n, v, u, (y[1] - x[1]) / ops, (y[2] - x[2]) / ops }'
}
wanted() { case ,${BENCH_ONLY:-$1}, in *,$1,*) ;; *) return 1 ;; esac }
# fio's terse line: total KiB and IOPS of reads ($6, $8) and writes ($47, $49)
load() { # NAME UNIT DIR FIO-OPTIONS...: UNIT MiB/s or op/s
	local name=$1 unit=$2 dir=$3 before out posted
	shift 3
	before=$(counters)
	posted=$(posts)
	out=$(fio --directory="$dir" --name=f --direct=1 --ioengine=libaio --size="$size" --output-format=terse --terse-version=3 "$@")
	set -- $(echo "$out" | awk -F';' '{printf "%d %d %d %d", $6 + $47, $7 + $48, $8 + $49, 0}')
	[[ $name == *.*read* && -n $posted ]] && # nearly all of the replies are READs'
		echo "figure $name.posts $(awk -v b="$posted" -v a="$(posts)" 'BEGIN {split(b, x); split(a, y); printf "%.3f", (y[1] - x[1]) / (y[2] - x[2])}') per-READ 0 0"
	case $unit in
	MiB/s) figure "$name" $unit $(($1 / 1024)) "$(awk -v k="$2" 'BEGIN {printf "%.1f", k / 1024}')" "$before" ;;
	*) figure "$name" $unit $(($1 / 4)) "$3" "$before" ;;
	esac
}
loads() { # VERSION DIR
	local v=$1 dir=$2 i n=${BENCH_FILES:-200} before s e
	load "$v.write1m" MiB/s "$dir" --rw=write --bs=1M --iodepth=8 --end_fsync=1 --time_based --runtime="$seconds"
	wanted read1m && load "$v.read1m" MiB/s "$dir" --rw=read --bs=1M --iodepth=8 --time_based --runtime="$seconds"
	wanted randread4k && load "$v.randread4k" op/s "$dir" --rw=randread --bs=4k --iodepth=32 --time_based --runtime="$seconds"
	wanted randwrite4k && load "$v.randwrite4k" op/s "$dir" --rw=randwrite --bs=4k --iodepth=32 --time_based --runtime="$seconds"
	[[ -n ${BENCH_ONLY:-} ]] && { rm -f "$dir"/*; return; }
	before=$(counters) s=$(date +%s%N)
	for ((i = 0; i < n; i++)); do : >"$dir/c$i"; done
	e=$(date +%s%N)
	figure "$v.create" op/s "$n" $((n * 1000000000 / (e - s))) "$before"
	before=$(counters) s=$(date +%s%N)
	for ((i = 0; i < n; i++)); do echo "$dir/c$i"; done | xargs stat -c %s --cached=never >/dev/null
	e=$(date +%s%N)
	figure "$v.stat" op/s "$n" $((n * 1000000000 / (e - s))) "$before"
	rm -f "$dir"/*
}
# How many calls the client makes: to open, read and close a file, once more to do that under a delegation, to create one.
sent() {
	sleep 0.3 # a CLOSE goes out by itself
	awk '/per-op statistics/ {on = 1; next} /^device/ {on = 0} on && NF > 1 {n += $2} END {print n + 0}' /proc/self/mountstats
}
rpcs() { # VERSION DIR
	local v=$1 dir=$2 n=10 i a b
	rm -f "$dir"/*
	for ((i = 0; i < n; i++)); do echo text >"$dir/r$i"; done
	umount "$dir" && connect "$v" "$dir"
	ls "$dir" >/dev/null
	for w in open_read_close reopen; do
		a=$(sent)
		for ((i = 0; i < n; i++)); do read -r <"$dir/r$i"; done
		b=$(sent)
		echo "figure $v.rpcs_$w $(awk -v n=$((b - a)) -v o=$n 'BEGIN {print n / o}') RPCs 0 0"
	done
	a=$(sent)
	for ((i = 0; i < n; i++)); do : >"$dir/n$i"; done
	b=$(sent)
	echo "figure $v.rpcs_create $(awk -v n=$((b - a)) -v o=$n 'BEGIN {print n / o}') RPCs 0 0"
	rm -f "$dir"/*
}
all_versions() {
	local v
	mkdir -p /mnt/r
	for v in ${BENCH_VERSIONS:-v3 v4.1}; do
		connect $v /mnt/r
		loads $v /mnt/r
		[[ $v == v3 || -n ${BENCH_ONLY:-} ]] || rpcs $v /mnt/r
		umount /mnt/r
	done
}
# What the soft-RoCE wire itself moves in RDMA Writes, as for READs, and in RDMA Reads, as for WRITEs, of 1 MiB.
wire() {
	local w
	for w in write read; do
		ib_${w}_bw -s 1048576 -n 64 -F >/dev/null 2>&1 &
		sleep 1
		ib_${w}_bw -s 1048576 -n 64 -F 10.99.0.1 2>/dev/null | awk -v w=$w '$1 == 1048576 {printf "figure wire.%s1m %s MiB/s 0 0\n", w, $4}'
		wait $!
	done
}
