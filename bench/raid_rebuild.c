/*
 * What a rebuild costs beside the arithmetic: one member of an array of null drives fails, is replaced and rebuilt,
 * turn about with bare XOR over as many sources from memory that no cache holds, in the same process. Prints a line of
 * JSON for each figure: name, value, unit, peer, ratio, target.
 *
 *   raid_rebuild [--rounds N]
 *
 * raid.rebuild.rate: bytes of sources a second, for 8+1, and for 8+2 as raid.rebuild.rate_8+2. Seconds of the thread
 * that does the work, not of the clock, in both: others on the machine take the same from neither. raid.rebuild.bytes:
 * bytes read for each byte rebuilt, over K; the log zone is in it.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include <isa-l/raid.h>

#include "bench/figure.h"
#include "bench/null_array.h"

#define STRIP 65536u
#define COLD_BYTES (768ull << 20)
#define K 8u
#define VOLUME_BYTES (6ull << 30)

static unsigned rounds = 5;
static bool failed;

static bool give_up(const char *what, const struct error *err)
{
	fprintf(stderr, "raid_rebuild: %s: %s\n", what, err->text);
	failed = true;
	return false;
}

struct rig {
	unsigned drives;
	struct array *array;
	struct volume *v;
};

static bool rig_make(struct rig *r, unsigned level, unsigned drives)
{
	struct error err = {0};
	r->drives = drives;
	return (null_array_make(level, drives, STRIP, VOLUME_BYTES, &r->array, &r->v, &err) == 0 &&
		       array_keep(r->array, &err) == 0) ||
	       give_up("array", &err);
}

static uint64_t thread_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

/* Source bytes a second of bare XOR, 8 from memory to one. */
static double bare_rate(struct buf *const *data, unsigned sets)
{
	struct buf *to = buf_alloc(STRIP);
	uint64_t begun = thread_ns();
	for (unsigned i = 0; i < sets; i++) {
		void *v[K + 1];
		for (unsigned j = 0; j < K; j++)
			v[j] = data[i * K + j]->data;
		v[K] = to->data;
		xor_gen((int)K + 1, (int)STRIP, v);
	}
	double rate = (double)sets * K * STRIP * 1e9 / (double)(thread_ns() - begun);
	buf_put(to);
	return rate;
}

static void level_measure(unsigned level, struct buf *const *data, unsigned sets)
{
	struct rig rig;
	static struct array_status s;
	struct error err = {0};
	double *ours = calloc(rounds, sizeof(double)), *bare = calloc(rounds, sizeof(double)),
	       *ratio = calloc(rounds, sizeof(double)), bytes = 0;
	unsigned m = level == 6 ? 2 : 1;
	if (!ours || !bare || !ratio || !rig_make(&rig, level, K + m)) {
		failed = true;
		goto out;
	}
	for (unsigned i = 0; i < rounds && !failed; i++) {
		char path[64];
		snprintf(path, sizeof(path), "null:8G:spare.%u.%u", level, i);
		double before = bare_rate(data, sets);
		uint64_t begun = thread_ns();
		unsigned slot = i % (K + m);
		if (array_fail(rig.array, slot, &err) || array_replace(rig.array, slot, path, true, &err) ||
			array_settled(rig.array, NULL, NULL)) {
			give_up("replace", &err);
			break;
		}
		uint64_t took = thread_ns() - begun;
		array_status(rig.array, &s);
		bare[i] = (before + bare_rate(data, sets)) / 2;
		ours[i] = (double)s.rebuild.read_bytes * 1e9 / (double)took;
		ratio[i] = ours[i] / bare[i];
		bytes = (double)s.rebuild.read_bytes / (double)s.rebuild.written_bytes / K;
	}
	volume_close(rig.v);
	array_close(rig.array);
	if (!failed) {
		figure(level == 6 ? "raid.rebuild.rate_8+2" : "raid.rebuild.rate", median(ours, rounds) / 1e6, "MB/s",
			median(bare, rounds) / 1e6, median(ratio, rounds), 0.8, true);
		figure(level == 6 ? "raid.rebuild.bytes_8+2" : "raid.rebuild.bytes", bytes, "K bytes/byte", 0, 0, 1.05,
			false);
	}
out:
	free(ours);
	free(bare);
	free(ratio);
}

static void bench_main(void *arg)
{
	(void)arg;
	raid_null_allow(true);
	unsigned sets = (unsigned)(COLD_BYTES / (K * STRIP));
	struct buf **data = calloc((size_t)sets * K, sizeof(struct buf *));
	if (!data)
		abort();
	for (unsigned i = 0; i < sets * K; i++) {
		data[i] = buf_alloc(STRIP);
		memset(data[i]->data, (int)(i * 37 + 1), STRIP);
	}
	level_measure(5, data, sets);
	level_measure(6, data, sets);
	for (unsigned i = 0; i < sets * K; i++)
		buf_put(data[i]);
	free(data);
}

int main(int argc, char **argv)
{
	struct core_config config = {.reactors = 1, .arena_bytes = COLD_BYTES + (128ull << 20), .fibers = 128};
	struct error err = {0};
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
			rounds = (unsigned)strtoul(argv[++i], NULL, 10);
		} else {
			fprintf(stderr, "usage: raid_rebuild [--rounds N]\n");
			return 2;
		}
	}
	if (rounds < 1)
		rounds = 1;
	atomic_store(&log_threshold, -1);
	if (core_main(&config, bench_main, NULL, &err)) {
		fprintf(stderr, "raid_rebuild: %s\n", err.text);
		return 1;
	}
	return failed;
}
