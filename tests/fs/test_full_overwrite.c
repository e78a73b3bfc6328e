/*
 * A file system that is 100 % full is one whose files can still be written over. All that df shows is written, to the
 * last block; then writers go over it at random, by one block and by many, stable ones and such as commit, side by
 * side, and in patterns that leave the same few holes in every stripe: some that are worth cleaning, and as many as are
 * not. None of them is refused, nothing is lost, df says the same all the time, and who wants a block more gets ENOSPC.
 * Only what a snapshot keeps cannot be written over.
 */
#include "tests/fs/files_test.h"

#define WRITERS 8u
#define PIECE 256u /* blocks of the largest write */

struct shape {
	unsigned level, drives;
	uint64_t bytes; /* of each drive */
};
struct world {
	struct files_test t;
	struct fs_id file;
	uint64_t blocks;
	uint32_t *version; /* of each block */
	struct wait_group wait;
	unsigned begun;
	uint64_t writes; /* of each writer */
};

static void block_fill(uint8_t *to, uint64_t block, uint32_t version)
{
	uint64_t seed = hash_u64(block << 32 | version);

	for (unsigned i = 0; i < BLOCK_BYTES; i += 8) {
		uint64_t x = test_random(&seed);
		memcpy(to + i, &x, 8);
	}
}

static int overwrite_as(struct world *w, uint64_t block, unsigned n, enum fs_stable stable)
{
	uint8_t *data = calloc(n, BLOCK_BYTES);

	for (unsigned i = 0; i < n; i++)
		block_fill(data + (size_t)i * BLOCK_BYTES, block + i, w->version[block + i] + 1);
	int r = t_write(&w->t, w->file, block * BLOCK_BYTES, data, n * BLOCK_BYTES, stable);
	for (unsigned i = 0; i < n && r == 0; i++)
		w->version[block + i]++;
	free(data);
	return r;
}

static int overwrite(struct world *w, uint64_t block, unsigned n)
{
	return overwrite_as(w, block, n, FS_FILE_SYNC);
}

static bool all_is_there(struct world *w)
{
	static uint8_t want[BLOCK_BYTES], have[BLOCK_BYTES];

	for (uint64_t b = 0; b < w->blocks; b++) {
		block_fill(want, b, w->version[b]);
		if (t_read(&w->t, w->file, b * BLOCK_BYTES, have, BLOCK_BYTES, NULL) != BLOCK_BYTES ||
			memcmp(want, have, BLOCK_BYTES))
			return false;
	}
	return true;
}

static uint64_t blocks_left(struct world *w)
{
	struct fs_statfs s = {0};

	fs_statfs(w->t.fs, &s);
	return s.bytes_available / BLOCK_BYTES;
}

/* Each has its part of the file; half of them commit now and then only. */
static void writer_main(void *arg)
{
	struct world *w = arg;
	unsigned me = w->begun++;
	uint64_t part = w->blocks / WRITERS, seed = me;
	int r = 0;

	for (uint64_t i = 0; i < w->writes && r == 0; i++) {
		unsigned n = i % 32 ? 1 : 1 + test_below(&seed, PIECE);

		r = overwrite_as(
			w, me * part + test_random(&seed) % (part - n), n, me % 2 ? FS_UNSTABLE : FS_FILE_SYNC);
		if (r == 0 && me % 2 && i % 64 == 63)
			r = t_commit(&w->t, w->file);
	}
	if (r == 0)
		r = t_commit(&w->t, w->file);
	wait_group_done(&w->wait, r);
}

static int writers_run(struct world *w, uint64_t writes)
{
	w->writes = writes / WRITERS;
	w->begun = 0;
	wait_group_init(&w->wait);
	for (unsigned i = 0; i < WRITERS; i++) {
		wait_group_add(&w->wait, 1);
		if (fiber_spawn(writer_main, w))
			wait_group_done(&w->wait, -EAGAIN);
	}
	return wait_group_wait(&w->wait);
}

/* A hole in every STEP blocks, evenly: no stripe is much sparser than another. */
static int comb_run(struct world *w, unsigned step, unsigned laps)
{
	int r = 0;

	for (unsigned lap = 0; lap < laps && r == 0; lap++)
		for (uint64_t b = lap * 5 % step; b < w->blocks && r == 0; b += step)
			r = overwrite(w, b, 1);
	return r;
}

static int one_more(struct world *w)
{
	static const uint8_t zero[BLOCK_BYTES];

	return t_write(&w->t, w->file, (w->blocks + 7) * BLOCK_BYTES, zero, BLOCK_BYTES, FS_FILE_SYNC);
}

static void overwrite_body(void *arg)
{
	struct world *w = calloc(1, sizeof(*w));
	const struct shape *shape = arg;
	uint64_t laps = getenv("FURROW_LONG") ? 10 : 1;
	struct fs_id other;
	unsigned holes;
	int r = 0;

	files_test_drives(&w->t, shape->drives, shape->bytes);
	CHECK_OK(files_test_create(&w->t, shape->level));
	CHECK_OK(t_create(&w->t, w->t.root, "file", &w->file));
	w->blocks = blocks_left(w);
	w->version = calloc(w->blocks, sizeof(*w->version));
	for (uint64_t b = 0; b < w->blocks && r == 0; b += PIECE)
		r = overwrite(w, b, w->blocks - b < PIECE ? (unsigned)(w->blocks - b) : PIECE);
	CHECK_OK(r); /* all that was shown */
	CHECK_IS(blocks_left(w), 0);
	CHECK_IS(one_more(w), -ENOSPC);
	holes = space_holes_worth(w->t.fs) - 1;
	CHECK_OK(comb_run(w, w->t.fs->space.stripe_blocks / (holes ? holes : 1), 8));
	CHECK_OK(writers_run(w, laps * w->blocks));
	CHECK_OK(comb_run(w, 13, 4));
	CHECK_OK(writers_run(w, laps * w->blocks / 4));
	CHECK_IS(blocks_left(w), 0);
	CHECK_IS(one_more(w), -ENOSPC);
	CHECK(all_is_there(w));

	/* what is kept needs more space than there is; without the snapshot all goes on */
	CHECK_OK(fs_snapshot_create(w->t.fs, "snap"));
	CHECK_IS(overwrite(w, 0, 1), -ENOSPC);
	CHECK_OK(fs_snapshot_delete(w->t.fs, "snap"));
	CHECK_OK(fs_snapshots_wait(w->t.fs));
	CHECK_OK(overwrite(w, 0, 1));
	CHECK_IS(t_check(&w->t), 0);
	CHECK_OK(files_test_remount(&w->t));
	CHECK(all_is_there(w));

	/* a full file system takes files and gives space back */
	CHECK_OK(t_create(&w->t, w->t.root, "other", &other));
	CHECK_OK(t_truncate(&w->t, w->file, w->blocks / 2 * BLOCK_BYTES));
	CHECK(blocks_left(w) == w->blocks - w->blocks / 2);
	CHECK_OK(t_unlink(&w->t, w->t.root, "file"));
	CHECK_IS(t_check(&w->t), 0);
	files_test_close(&w->t);
	files_test_remove(&w->t);
	free(w->version);
	free(w);
}

static void test_raid6(void **state)
{
	(void)state;
	files_test_run(overwrite_body, &(struct shape){6, 5, 24u << 20});
}

static void test_raid6_wide(void **state)
{
	(void)state;
	files_test_run(overwrite_body, &(struct shape){6, 10, 12u << 20});
}

static void test_mirror(void **state)
{
	(void)state;
	files_test_run(overwrite_body, &(struct shape){1, 2, 24u << 20});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_raid6),
		cmocka_unit_test(test_raid6_wide),
		cmocka_unit_test(test_mirror),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
