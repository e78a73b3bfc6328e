/*
 * Writers that found no room made a checkpoint, though the cleaner had only to come along: all of them waited for it,
 * few were back at first, and filled rows by themselves, with zeros for the rest. Under random overwriting there was
 * one checkpoint for every few stripes.
 *
 * Here the cleaner sleeps until somebody waits for it, so there comes a write that finds no room; no clock and no dirty
 * node asks for a checkpoint meanwhile.
 */
#include "tests/fs/files_test.h"

static const uint8_t data[64 * BLOCK_BYTES];

static int write_piece(struct files_test *t, struct fs_id file, uint64_t block, unsigned n)
{
	return t_write(t, file, block * BLOCK_BYTES, data, n * BLOCK_BYTES, FS_FILE_SYNC);
}

/* Makes it believe that it would gain nothing, except by trying. */
static void cleaner_lull(struct fs *fs)
{
	struct cleaner *c = &fs->cleaner;

	c->stuck = c->stuck_urgent = true;
	c->stuck_live = c->stuck_free = 0;
	c->stuck_changes = UINT64_MAX;
}

/* One that is asked for, or runs, is over then. */
static void checkpoint_alone(struct fs *fs)
{
	struct checkpoint *c = &fs->checkpoint;

	checkpoint_kick(fs);
	while (c->running || c->wanted > c->begun)
		wait_queue_wait(&c->done, NEVER);
}

static void checkpoints_body(void *arg)
{
	struct files_test t;
	struct fs_statfs s;
	struct fs_id file;
	uint64_t blocks, seed = 0;

	(void)arg;
	checkpoint_delay_ns = 3600 * NSEC_PER_SEC;
	files_test_drives(&t, 5, 24u << 20);
	CHECK_OK(files_test_create(&t, 6));
	CHECK_OK(t_create(&t, t.root, "file", &file));
	CHECK_OK(fs_statfs(t.fs, &s));
	struct cleaner *c = &t.fs->cleaner;
	blocks = s.bytes_available / BLOCK_BYTES / 2;
	for (uint64_t b = 0; b + 64 <= blocks; b += 64)
		CHECK_OK(write_piece(&t, file, b, 64));
	for (unsigned times = 0; times < 100; times++) {
		checkpoint_alone(t.fs);
		/* so the next write's transaction, and the cleaner's, make fewer nodes dirty than would ask for another
		 */
		while (space_has_room(t.fs, 1, false) &&
			t.fs->tree.dirty_count + t.fs->tree.dead_count < t.fs->tree.dirty_limit / 4) {
			cleaner_lull(t.fs);
			CHECK_OK(write_piece(&t, file, test_random(&seed) % blocks, 1));
		}
		if (!space_has_room(t.fs, 1, false) && t.fs->tree.dirty_count < t.fs->tree.dirty_limit / 4)
			break;
	}
	CHECK(!space_has_room(t.fs, 1, false));
	CHECK(c->ended == c->begun && c->wanted == c->begun); /* it slept */
	cleaner_lull(t.fs);
	uint64_t made = t.fs->checkpoint.begun, freed = c->freed_stripes;
	CHECK_OK(write_piece(&t, file, 0, 1));
	CHECK(c->freed_stripes > freed);
	CHECK_IS(t.fs->checkpoint.begun - made, 0); /* it was 1 */
	files_test_close(&t);
	files_test_remove(&t);
}

static void test_checkpoints(void **state)
{
	(void)state;
	files_test_run(checkpoints_body, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_checkpoints)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
