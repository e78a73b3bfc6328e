/*
 * Reads against overwrites, checkpoints and the reuse of stripes: a block that a read saw in the tree is
 * not given to anybody else before the drive has answered, however slow that is. Every block carries its
 * number and version, so each read can tell by itself whether it is one that was ever written there.
 */
#include "tests/fs/files_test.h"

#define BLOCKS 96u
#define WRITERS 4u
#define READERS 6u

struct race {
	struct files_test *t;
	struct fs_id f;
	_Atomic uint64_t written[BLOCKS]; /* version that is certainly there */
	_Atomic uint64_t begun[BLOCKS];	  /* version that may be there */
	_Atomic unsigned writers, next;
	_Atomic uint64_t reads;
	bool stop;
	struct wait_group wait;
	uint64_t seed;
};

static void block_make(uint64_t *to, uint64_t block, uint64_t version)
{
	for (unsigned i = 0; i < 512; i++)
		to[i] = i == 0 ? block : i == 1 ? version : hash_u64(block * 1000003 + version * 7919 + i);
}

static void writer(void *arg)
{
	struct race *r = arg;
	unsigned me = r->next++;
	uint64_t *data = malloc(8 * 4096), seed = r->seed + me;
	int result = 0;

	for (unsigned i = 0; i < 120 && result == 0; i++) {
		/* each writer has its own blocks */
		unsigned per = BLOCKS / WRITERS, n = 1 + test_below(&seed, 8), first = test_below(&seed, per - n + 1);
		bool stable = test_below(&seed, 4) != 0;

		first += me * per;
		for (unsigned b = 0; b < n; b++)
			block_make(data + b * 512, first + b, ++r->begun[first + b]);
		result = t_write(r->t, r->f, first * 4096ull, data, n * 4096, stable ? FS_FILE_SYNC : FS_UNSTABLE);
		for (unsigned b = 0; b < n; b++)
			r->written[first + b] = r->begun[first + b];
		if (i % 8 == 7)
			fiber_yield();
	}
	free(data);
	r->writers--;
	wait_group_done(&r->wait, result);
}

static bool elsewhere; /* readers run on another reactor */

static void reader_run(void *arg)
{
	struct race *r = arg;
	uint64_t *data = malloc(16 * 4096), *want = malloc(4096), least[16], seed = r->seed + 100 + r->next++;

	while (r->writers > 0 && !test_failure[0]) {
		unsigned n = 1 + test_below(&seed, 16), first = test_below(&seed, BLOCKS - n + 1);
		int got;

		for (unsigned b = 0; b < n; b++)
			least[b] = r->written[first + b];
		/* the next command of each drive is that of this read, and slow */
		if (r->reads % 16 == 0)
			for (unsigned i = 0; i < r->t->count; i++)
				fault_inject(r->t->path[i], FAULT_DELAY, 1, 60 * NSEC_PER_MSEC);
		got = t_read(r->t, r->f, first * 4096ull, data, n * 4096, NULL);
		if (got != (int)(n * 4096)) {
			CHECK_FAILED("read of %u blocks at %u: %d", n, first, got);
			break;
		}
		for (unsigned b = 0; b < n; b++) {
			uint64_t version = data[b * 512 + 1];

			block_make(want, first + b, version);
			if (memcmp(want, data + b * 512, 4096) != 0)
				CHECK_FAILED("block %u holds something else", first + b);
			else if (version < least[b] || version > r->begun[first + b])
				CHECK_FAILED("block %u has version %llu, not %llu or later", first + b,
					(unsigned long long)version, (unsigned long long)least[b]);
		}
		r->reads++;
		fiber_yield(); /* what is in memory is read without a wait */
	}
	free(data);
	free(want);
}

static void reader(void *arg)
{
	struct race *r = arg;

	if (elsewhere)
		reactor_call(reactor_get(1), reader_run, r);
	else
		reader_run(r);
	wait_group_done(&r->wait, 0);
}

static void checkpointer(void *arg)
{
	struct race *r = arg;
	int result = 0;

	while (r->writers > 0 && result == 0) {
		result = fs_checkpoint(r->t->fs);
		fiber_yield();
	}
	wait_group_done(&r->wait, result);
}

static void body_races(void *arg)
{
	struct files_test *t = arg;
	struct race *r = calloc(1, sizeof(*r));
	struct fs_status status;
	uint64_t *data = malloc(4096);
	uint8_t *zeros = calloc(1, 65536);
	struct fs_statfs stat;
	struct fs_id filler;

	r->t = t;
	r->seed = getenv("FURROW_SEED") ? strtoull(getenv("FURROW_SEED"), NULL, 0) : 2;
	printf("seed %llu\n", (unsigned long long)r->seed);
	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "f", &r->f));
	CHECK_OK(t_create(t, t->root, "filler", &filler));
	/* few free stripes, so that they are used again soon */
	for (uint64_t off = 0; off < 600u << 20; off += 65536) {
		CHECK_OK(fs_statfs(t->fs, &stat));
		if (stat.bytes_available < 3u << 20)
			break;
		CHECK_OK(t_write(t, filler, off, zeros, 65536, FS_FILE_SYNC));
	}
	for (unsigned b = 0; b < BLOCKS; b++) {
		block_make(data, b, 0);
		CHECK_OK(t_write(t, r->f, b * 4096ull, data, 4096, FS_UNSTABLE));
	}
	wait_group_init(&r->wait);
	r->writers = WRITERS;
	for (unsigned i = 0; i < WRITERS + READERS + 1; i++) {
		wait_group_add(&r->wait, 1);
		CHECK_OK(fiber_spawn(i < WRITERS ? writer : i < WRITERS + READERS ? reader : checkpointer, r));
	}
	CHECK_OK(wait_group_wait(&r->wait));
	CHECK(!test_failure[0]);
	CHECK(r->reads > 50);
	fs_status(t->fs, &status);
	CHECK_IS(status.checksum_errors, 0);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(zeros);
	free(r);
}

/* One slow read of a stripe whose blocks are all overwritten meanwhile: the checkpoint that frees it waits. */
struct slow {
	struct files_test *t;
	struct fs_id f;
	uint8_t *data;
	uint32_t bytes;
	int got;
	bool done;
};

static void slow_reader(void *arg)
{
	struct slow *s = arg;

	s->got = t_read(s->t, s->f, 0, s->data, s->bytes, NULL);
	s->done = true;
}

static void body_barrier(void *arg)
{
	struct files_test *t = arg;
	struct slow s = {.t = t};
	uint8_t *ones, *twos;

	CHECK_OK(files_test_create(t, 6));
	s.bytes = (uint32_t)volume_stripe_blocks(volume_geometry(t->volume)) * 4096;
	s.data = malloc(s.bytes);
	ones = malloc(s.bytes);
	twos = malloc(s.bytes);
	memset(ones, 1, s.bytes);
	memset(twos, 2, s.bytes);
	CHECK_OK(t_create(t, t->root, "f", &s.f));
	CHECK_OK(t_write(t, s.f, 0, ones, s.bytes, FS_FILE_SYNC));
	CHECK_OK(fs_checkpoint(t->fs));
	t_forget(t);
	for (unsigned i = 0; i < t->count; i++)
		fault_inject(t->path[i], FAULT_DELAY, 1, 400 * NSEC_PER_MSEC);
	CHECK_OK(fiber_spawn(slow_reader, &s));
	fiber_yield();
	for (unsigned i = 0; i < t->count; i++)
		fault_inject(t->path[i], FAULT_NONE, 1, 0);
	CHECK_OK(t_write(t, s.f, 0, twos, s.bytes, FS_FILE_SYNC));
	CHECK(!s.done);
	CHECK_OK(fs_checkpoint(t->fs));
	CHECK(s.done);
	CHECK_IS(s.got, s.bytes);
	CHECK(memcmp(s.data, ones, s.bytes) == 0);
	CHECK_IS(t_read(t, s.f, 0, s.data, s.bytes, NULL), s.bytes);
	CHECK(memcmp(s.data, twos, s.bytes) == 0);
	files_test_close(t);
	free(s.data);
	free(ones);
	free(twos);
}

static void test_barrier(void **state)
{
	static struct files_test t;

	(void)state;
	files_test_drives(&t, 5, 40ull << 20);
	files_test_run(body_barrier, &t);
	fault_reset();
	files_test_remove(&t);
}

static void test_races(void **state)
{
	static struct files_test t;

	(void)state;
	files_test_drives(&t, 5, 40ull << 20);
	files_test_run(body_races, &t);
	fault_reset();
	files_test_remove(&t);
}

static void test_races_elsewhere(void **state)
{
	elsewhere = true;
	test_races(state);
	elsewhere = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_barrier),
		cmocka_unit_test(test_races),
		cmocka_unit_test(test_races_elsewhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
