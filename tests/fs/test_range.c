/*
 * Ranges of files: punching, allocating, seeking, copying, on files in many pieces; that what is punched
 * comes back as space, and what the drives hold after a crash in the middle of a large truncation.
 */
#include "tests/fs/files_test.h"

#define FILE_BLOCKS 1500u

static uint64_t used(struct files_test *t, struct fs_id id)
{
	struct fs_attr attr = {0};

	fs_getattr(t->fs, id, &attr);
	return attr.used_bytes / BLOCK_BYTES;
}

/* A file in many extents: every third block written alone, then the others. */
static int fragmented(struct files_test *t, const char *name, struct fs_id *id)
{
	uint8_t block[BLOCK_BYTES];
	int r = t_create(t, t->root, name, id);

	for (unsigned pass = 0; pass < 3 && r == 0; pass++) {
		for (uint64_t b = pass; b < FILE_BLOCKS && r == 0; b += 3) {
			memset(block, (int)(b % 251 + 1), sizeof(block));
			r = t_write(t, *id, b * BLOCK_BYTES, block, sizeof(block), FS_UNSTABLE);
		}
		if (r == 0)
			r = t_commit(t, *id);
	}
	return r;
}

/* Block B is what fragmented() wrote, or zeros. */
static bool block_is(struct files_test *t, struct fs_id id, uint64_t b, bool zero)
{
	uint8_t block[BLOCK_BYTES];
	uint8_t want = zero ? 0 : (uint8_t)(b % 251 + 1);

	if (t_read(t, id, b * BLOCK_BYTES, block, sizeof(block), NULL) != BLOCK_BYTES)
		return false;
	for (unsigned i = 0; i < BLOCK_BYTES; i++)
		if (block[i] != want)
			return false;
	return true;
}

static void body_punch(void *arg)
{
	struct files_test *t = arg;
	struct fs_status before, after;
	struct fs_attr attr;
	uint8_t byte[2];
	uint64_t found;
	struct fs_id id;
	bool eof;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(fragmented(t, "a", &id));
	CHECK_IS(used(t, id), FILE_BLOCKS);
	/* from inside of a block to inside of another */
	CHECK_OK(fs_punch(t->fs, &op_root, id, 100 * BLOCK_BYTES + 5, 1000 * BLOCK_BYTES, NULL));
	CHECK_IS(used(t, id), FILE_BLOCKS - 999);
	CHECK(block_is(t, id, 99, false) && block_is(t, id, 101, true) && block_is(t, id, 700, true));
	CHECK(block_is(t, id, 1099, true) && block_is(t, id, 1101, false));
	CHECK_IS(t_read(t, id, 100 * BLOCK_BYTES + 4, byte, 2, NULL), 2);
	CHECK(byte[0] == 101 && byte[1] == 0);
	CHECK_IS(t_read(t, id, 1100 * BLOCK_BYTES + 4, byte, 2, NULL), 2);
	CHECK(byte[0] == 0 && byte[1] == 1100 % 251 + 1);
	CHECK_OK(fs_getattr(t->fs, id, &attr));
	CHECK_IS(attr.size, FILE_BLOCKS * BLOCK_BYTES);
	CHECK_OK(fs_seek(t->fs, &op_root, id, 0, FS_SEEK_HOLE, &found, &eof, NULL));
	CHECK(!eof && found == 101 * BLOCK_BYTES);
	CHECK_OK(fs_seek(t->fs, &op_root, id, found + 7, FS_SEEK_DATA, &found, &eof, NULL));
	CHECK(!eof && found == 1100 * BLOCK_BYTES);
	CHECK_OK(fs_seek(t->fs, &op_root, id, found, FS_SEEK_HOLE, &found, &eof, NULL));
	CHECK(eof && found == attr.size);
	/* dirty blocks are data, and go when they are punched, but the size that they made stays */
	CHECK_OK(t_write(t, id, 2000 * BLOCK_BYTES, "x", 1, FS_UNSTABLE));
	CHECK_OK(fs_seek(t->fs, &op_root, id, 1600 * BLOCK_BYTES, FS_SEEK_DATA, &found, &eof, NULL));
	CHECK(!eof && found == 2000 * BLOCK_BYTES);
	CHECK_OK(t_write(t, id, 2000 * BLOCK_BYTES, "y", 1, FS_UNSTABLE));
	CHECK_OK(fs_punch(t->fs, &op_root, id, 1500 * BLOCK_BYTES, 1 << 30, NULL));
	CHECK_OK(files_test_remount(t));
	CHECK_OK(fs_getattr(t->fs, id, &attr));
	CHECK_IS(attr.size, 2000 * BLOCK_BYTES + 1);
	CHECK_IS(used(t, id), FILE_BLOCKS - 999);
	/* the whole of it */
	fs_status(t->fs, &before);
	CHECK_OK(fs_punch(t->fs, &op_root, id, 0, UINT64_MAX, NULL));
	CHECK_IS(used(t, id), 0);
	CHECK_OK(fs_checkpoint(t->fs));
	fs_status(t->fs, &after);
	CHECK(after.stripes_free >= before.stripes_free);
	CHECK_IS(t_check(t), 0);
	/* what cannot be punched */
	CHECK_IS(fs_punch(t->fs, &op_root, t->root, 0, 5, NULL), -EISDIR);
	CHECK_OK(fs_punch(t->fs, &op_root, id, FS_SIZE_MAX, 5, NULL));
	files_test_close(t);
}

/* Birth time is kept whatever happens; the access time moves when it is behind the others (relatime), and stays. */
static void body_times(void *arg)
{
	struct files_test *t = arg;
	struct fs_setattr set = {.set = FS_SET_MODE, .mode = 0600};
	struct fs_attr made, a, b;
	struct fs_id id;
	uint8_t byte;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "a", &id));
	CHECK_OK(fs_getattr(t->fs, id, &made));
	CHECK(made.btime.tv_sec > 0 && memcmp(&made.btime, &made.ctime, sizeof(made.btime)) == 0);
	CHECK_OK(t_write(t, id, 0, "x", 1, FS_FILE_SYNC));
	CHECK_OK(fs_setattr(t->fs, &op_root, id, &set, NULL, NULL));
	CHECK_OK(t_rename(t, t->root, "a", t->root, "b"));
	CHECK_OK(fs_snapshot_create(t->fs, "s"));
	CHECK_OK(t_truncate(t, id, 100));
	CHECK_OK(files_test_remount(t));
	CHECK_OK(fs_getattr(t->fs, id, &a));
	CHECK(memcmp(&a.btime, &made.btime, sizeof(a.btime)) == 0);
	CHECK(a.ctime.tv_sec > made.ctime.tv_sec || a.ctime.tv_nsec != made.ctime.tv_nsec);
	/* behind: a read moves it; then it is in front, and further reads write nothing */
	CHECK(memcmp(&a.atime, &made.atime, sizeof(a.atime)) == 0);
	CHECK_IS(t_read(t, id, 0, &byte, 1, NULL), 1);
	CHECK_OK(fs_getattr(t->fs, id, &a));
	CHECK(memcmp(&a.atime, &made.atime, sizeof(a.atime)) != 0);
	CHECK_IS(t_read(t, id, 0, &byte, 1, NULL), 1);
	CHECK_OK(fs_getattr(t->fs, id, &b));
	CHECK(memcmp(&a.atime, &b.atime, sizeof(a.atime)) == 0 && b.change == a.change);
	CHECK_OK(files_test_remount(t));
	CHECK_OK(fs_getattr(t->fs, id, &b));
	CHECK(memcmp(&a.atime, &b.atime, sizeof(a.atime)) == 0);
	CHECK_OK(t_write(t, id, 0, "y", 1, FS_FILE_SYNC));
	CHECK_IS(t_read(t, id, 0, &byte, 1, NULL), 1);
	CHECK_OK(fs_getattr(t->fs, id, &b));
	CHECK(memcmp(&a.atime, &b.atime, sizeof(a.atime)) != 0);
	files_test_close(t);
}

static void body_allocate(void *arg)
{
	struct files_test *t = arg;
	struct fs_statfs space;
	struct fs_attr attr;
	struct fs_id id;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "a", &id));
	CHECK_OK(t_write(t, id, 0, "abc", 3, FS_FILE_SYNC));
	CHECK_OK(fs_allocate(t->fs, &op_root, id, 1, 1, NULL));
	CHECK_OK(fs_getattr(t->fs, id, &attr));
	CHECK_IS(attr.size, 3);
	CHECK_OK(fs_allocate(t->fs, &op_root, id, 2, 1 << 20, NULL));
	CHECK_OK(fs_getattr(t->fs, id, &attr));
	CHECK_IS(attr.size, (1 << 20) + 2);
	CHECK_OK(fs_statfs(t->fs, &space));
	CHECK_IS(fs_allocate(t->fs, &op_root, id, 0, space.bytes_total + (64u << 20), NULL), -ENOSPC);
	CHECK_IS(fs_allocate(t->fs, &op_root, id, FS_SIZE_MAX, 1, NULL), -EFBIG);
	CHECK_OK(fs_getattr(t->fs, id, &attr));
	CHECK_IS(attr.size, (1 << 20) + 2);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

static void body_copy(void *arg)
{
	struct files_test *t = arg;
	struct fs_id id, to;
	uint64_t copied;
	struct fs_attr attr;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(fragmented(t, "a", &id));
	CHECK_OK(t_create(t, t->root, "b", &to));
	CHECK_OK(fs_copy(t->fs, &op_root, id, 0, to, 0, UINT64_MAX >> 2, &copied, NULL));
	CHECK_IS(copied, FILE_BLOCKS * BLOCK_BYTES);
	CHECK_OK(t_commit(t, to));
	for (uint64_t b = 0; b < FILE_BLOCKS; b += 7)
		CHECK(block_is(t, to, b, false));
	/* not aligned, within one file */
	CHECK_OK(fs_copy(t->fs, &op_root, to, 0, to, FILE_BLOCKS * BLOCK_BYTES + 100, 2 << 20, &copied, NULL));
	CHECK_IS(copied, 2 << 20);
	CHECK_OK(fs_getattr(t->fs, to, &attr));
	CHECK_IS(attr.size, FILE_BLOCKS * BLOCK_BYTES + 100 + (2 << 20));
	CHECK_IS(fs_copy(t->fs, &op_root, to, 0, to, 50, 100, &copied, NULL), -EINVAL);
	/* what the copy itself makes of the file is no source of it */
	CHECK_OK(fs_copy(t->fs, &op_root, to, attr.size - 10, to, attr.size + 5000, 4000, &copied, NULL));
	CHECK_IS(copied, 10);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

/* Blocks far beyond 16 TiB, up to the last one. */
static void body_far(void *arg)
{
	struct files_test *t = arg;
	static const uint64_t at[] = {1ull << 44, (1ull << 44) + 4095, 1ull << 50, FS_SIZE_MAX - 3};
	struct fs_attr attr;
	uint64_t found;
	char text[4];
	struct fs_id id;
	bool eof;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "a", &id));
	for (unsigned i = 0; i < 4; i++)
		CHECK_OK(t_write(t, id, at[i], "xyz", 3, i % 2 ? FS_FILE_SYNC : FS_UNSTABLE));
	CHECK_IS(t_write(t, id, FS_SIZE_MAX - 1, "xyz", 3, FS_FILE_SYNC), -EFBIG);
	CHECK_OK(files_test_remount(t));
	CHECK_OK(fs_getattr(t->fs, id, &attr));
	CHECK_IS(attr.size, FS_SIZE_MAX);
	for (unsigned i = 0; i < 4; i++) {
		CHECK_IS(t_read(t, id, at[i], text, 3, &eof), 3);
		CHECK(memcmp(text, "xyz", 3) == 0 && eof == (i == 3));
	}
	CHECK_OK(fs_seek(t->fs, &op_root, id, 0, FS_SEEK_DATA, &found, &eof, NULL));
	CHECK_IS(found, 1ull << 44);
	CHECK_OK(fs_seek(t->fs, &op_root, id, (1ull << 44) + 9000, FS_SEEK_DATA, &found, &eof, NULL));
	CHECK_IS(found, 1ull << 50);
	CHECK_OK(fs_punch(t->fs, &op_root, id, 1ull << 45, 1ull << 58, NULL));
	CHECK_IS(used(t, id), 3);
	CHECK_IS(t_check(t), 0);
	CHECK_OK(t_truncate(t, id, (1ull << 44) + 2));
	CHECK_IS(used(t, id), 1);
	CHECK_IS(t_read(t, id, 1ull << 44, text, 3, &eof), 2);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

static void run(void (*body)(void *))
{
	static struct files_test t;

	files_test_drives(&t, 5, 128ull << 20);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
}

static void test_punch(void **state)
{
	(void)state;
	run(body_punch);
}
static void test_times(void **state)
{
	(void)state;
	run(body_times);
}
static void test_allocate(void **state)
{
	(void)state;
	run(body_allocate);
}
static void test_copy(void **state)
{
	(void)state;
	run(body_copy);
}
static void test_far(void **state)
{
	(void)state;
	run(body_far);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_punch),
		cmocka_unit_test(test_times),
		cmocka_unit_test(test_allocate),
		cmocka_unit_test(test_copy),
		cmocka_unit_test(test_far),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
