/*
 * Writers that found no room made a checkpoint, though the cleaner had only to come along: all of them waited for it,
 * few were back at first, and filled rows by themselves, with zeros for the rest. Under random overwriting there was
 * one checkpoint for every few stripes.
 */
#include "tests/fs/files_test.h"

#define WRITERS 16u
#define LAPS 2u
#define PIECE 16u /* blocks */

struct world {
	struct files_test t;
	struct fs_id file;
	uint64_t blocks;
	unsigned begun;
	struct wait_group wait;
};

static int write_piece(struct world *w, uint64_t block)
{
	static const uint8_t data[PIECE * BLOCK_BYTES];

	return t_write(&w->t, w->file, block * BLOCK_BYTES, data, sizeof(data), FS_FILE_SYNC);
}

static void writer_main(void *arg)
{
	struct world *w = arg;
	uint64_t seed = w->begun++;
	int r = 0;

	for (uint64_t i = 0; i < LAPS * w->blocks / PIECE / WRITERS && r == 0; i++)
		r = write_piece(w, test_random(&seed) % (w->blocks - PIECE));
	wait_group_done(&w->wait, r);
}

static void checkpoints_body(void *arg)
{
	struct world w = {0};
	struct fs_statfs s;

	(void)arg;
	files_test_drives(&w.t, 5, 24u << 20);
	CHECK_OK(files_test_create(&w.t, 6));
	CHECK_OK(t_create(&w.t, w.t.root, "file", &w.file));
	CHECK_OK(fs_statfs(w.t.fs, &s));
	w.blocks = s.bytes_available / BLOCK_BYTES * 9 / 10;
	for (uint64_t b = 0; b + PIECE <= w.blocks; b += PIECE)
		CHECK_OK(write_piece(&w, b));
	uint64_t before = w.t.fs->checkpoint.count;
	wait_group_init(&w.wait);
	for (unsigned i = 0; i < WRITERS; i++) {
		wait_group_add(&w.wait, 1);
		if (fiber_spawn(writer_main, &w))
			wait_group_done(&w.wait, -EAGAIN);
	}
	CHECK_OK(wait_group_wait(&w.wait));
	uint64_t made = w.t.fs->checkpoint.count - before;
	fprintf(stderr, "%llu checkpoints, %llu stripes freed by the cleaner\n", (unsigned long long)made,
		(unsigned long long)w.t.fs->cleaner.freed_stripes);
	CHECK(w.t.fs->cleaner.freed_stripes > 100);
	CHECK(made <= 10); /* it was 57 and more */
	files_test_close(&w.t);
	files_test_remove(&w.t);
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
