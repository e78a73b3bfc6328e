/*
 * A flush that takes many blocks lets others run between files. One that was written to again meanwhile was taken a
 * second time into the same transaction, which does not see its own changes: an extent that both parts met was cut
 * twice from its old state, and blocks were named twice or not at all.
 */
#include "tests/fs/files_test.h"

#define BLOCKS 700u
#define BYTES (BLOCKS * BLOCK_BYTES)
#define LATE 750u /* in the same extent as the end of those */

static void fill(uint8_t *to, uint32_t len, uint64_t seed)
{
	for (uint32_t i = 0; i < len; i += 8) {
		uint64_t v = test_random(&seed);
		memcpy(to + i, &v, 8);
	}
}

struct late {
	struct files_test *t;
	struct fs_id id;
	const uint8_t *data;
	struct wait_group wait;
};

/* Writes as soon as a flush has taken the file's first block. */
static void late_write(void *arg)
{
	struct late *l = arg;
	struct fs_files *files = l->t->fs->files;
	struct block_record *rec;

	do {
		fiber_yield();
		rec = record_find(files, inode_cached(files, l->id.ino), 0);
	} while (rec && rec->state == RECORD_DIRTY);
	int r = rec ? t_write(l->t, l->id, LATE * BLOCK_BYTES, l->data, BLOCK_BYTES, FS_FILE_SYNC) : -ENOENT;
	wait_group_done(&l->wait, r);
}

static int write_all(struct files_test *t, struct fs_id id, const uint8_t *data, uint32_t bytes)
{
	int r = 0;

	for (uint32_t off = 0, n; off < bytes && r == 0; off += n) {
		n = bytes - off < 1u << 20 ? bytes - off : 1u << 20;
		r = t_write(t, id, off, data + off, n, FS_UNSTABLE);
	}
	return r;
}

static void body(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(1024 * BLOCK_BYTES), *back = malloc(1u << 20);
	struct late late = {.t = t, .data = data + LATE * BLOCK_BYTES};

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "f", &late.id));
	for (unsigned round = 0; round < 4; round++) {
		fill(data, 1024 * BLOCK_BYTES, 3 * round);
		CHECK_OK(write_all(t, late.id, data, 1024 * BLOCK_BYTES));
		CHECK_OK(t_commit(t, late.id));
		fill(data, BYTES, 3 * round + 1);
		fill(data + LATE * BLOCK_BYTES, BLOCK_BYTES, 3 * round + 2);
		CHECK_OK(write_all(t, late.id, data, BYTES));
		wait_group_init(&late.wait);
		wait_group_add(&late.wait, 1);
		CHECK_OK(fiber_spawn(late_write, &late));
		CHECK_OK(t_commit(t, late.id));
		CHECK_OK(wait_group_wait(&late.wait));
		t_forget(t);
		for (uint32_t off = 0; off < 1024 * BLOCK_BYTES; off += 1u << 20) {
			CHECK_IS(t_read(t, late.id, off, back, 1u << 20, NULL), 1 << 20);
			CHECK(memcmp(back, data + off, 1u << 20) == 0);
		}
		CHECK_IS(t_check(t), 0);
	}
	files_test_close(t);
	free(data);
	free(back);
}

static void test_flush_pause(void **state)
{
	static struct files_test t;

	(void)state;
	files_test_drives(&t, 5, 96ull << 20);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_flush_pause)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
