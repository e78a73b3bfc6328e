/*
 * Streams in the log: after a power cut what was written in long runs is all there with its checksums, whatever
 * became of parts of it before; what a drive made wrong meanwhile is repaired during the mount, and what nothing brings
 * back is an error for its reader and nothing else. And no log holds more of it than a mount can read soon.
 */
#include "fs/inode_format.h"
#include "tests/fs/files_test.h"

#define FILE_BYTES (2u << 20)

static uint8_t *data, *back;

static void fill(uint8_t *to, uint32_t len, uint64_t seed)
{
	for (uint32_t i = 0; i < len; i += 8) {
		uint64_t v = test_random(&seed);
		memcpy(to + i, &v, 8);
	}
}

static void body_form(void *arg)
{
	uint8_t full[STREAM_VALUE_MAX], squeezed[STREAM_VALUE_MAX], again[STREAM_VALUE_MAX];

	(void)arg;
	for (uint32_t count = 1; count <= EXTENT_BLOCKS_MAX; count++) {
		struct extent_disk head = {.block = le64_put(77), .count = le32_put(count)};
		size_t len = sizeof(head) + count * 4, n;

		fill(full, sizeof(full), count);
		memcpy(full, &head, sizeof(head));
		n = stream_squeeze(full, squeezed);
		CHECK(n == stream_squeezed(len) && n == sizeof(head) + (count + 15) / 16 * 4);
		CHECK_IS(stream_expand(squeezed, n, again), len);
		CHECK(memcmp(again, &head, sizeof(head)) == 0);
		for (uint32_t i = 0; i < count; i++)
			CHECK(memcmp(again + sizeof(head) + i * 4, squeezed + sizeof(head) + i / 16 * 4, 4) == 0);
		for (size_t wrong = 0; wrong <= STREAM_VALUE_MAX; wrong += 4)
			if (wrong != n)
				CHECK_IS(stream_expand(squeezed, wrong, again), -EIO);
		head.flags = le32_put(EXTENT_SHARED);
		memcpy(squeezed, &head, sizeof(head));
		CHECK_IS(stream_expand(squeezed, n, again), -EIO);
		head = (struct extent_disk){.count = le32_put(count % 2 ? 0 : EXTENT_BLOCKS_MAX + count)};
		memcpy(squeezed, &head, sizeof(head));
		CHECK_IS(stream_expand(squeezed, n, again), -EIO);
	}
}

/* On COUNT drives of LEVEL with volatile caches, and no checkpoint comes by itself. */
static int begin(struct files_test *t, unsigned level)
{
	int r;

	checkpoint_delay_ns = 3600 * NSEC_PER_SEC;
	r = files_test_create(t, level);
	for (unsigned i = 0; i < t->count; i++)
		fault_volatile_cache(t->path[i], true);
	return r < 0 ? r : files_test_remount(t);
}

static void cut(struct files_test *t)
{
	for (unsigned i = 0; i < t->count; i++)
		fault_power_cut(t->path[i], 7 + i, 500);
	files_test_close(t);
	fault_reset();
}

static int file_make(struct files_test *t, const char *name, struct fs_id *id, uint64_t seed)
{
	int r = t_create(t, t->root, name, id);

	fill(data, FILE_BYTES, seed);
	for (uint32_t off = 0; r == 0 && off < FILE_BYTES; off += 1u << 20)
		r = t_write(t, *id, off, data + off, 1u << 20, FS_FILE_SYNC);
	return r;
}

static bool file_is(struct files_test *t, struct fs_id id, uint32_t len)
{
	for (uint32_t off = 0, n; off < len; off += n) {
		n = len - off < 1u << 20 ? len - off : 1u << 20;
		if (t_read(t, id, off, back, n, NULL) != (int)n || memcmp(back, data + off, n) != 0)
			return false;
	}
	return true;
}

static void body_replay(void *arg)
{
	struct files_test *t = arg;
	struct fs_id plain, parts, clone, gone, seen;
	struct fs_status status;
	struct fs_attr attr;

	CHECK_OK(begin(t, 6));
	CHECK_OK(file_make(t, "plain", &plain, 1));
	CHECK(t->fs->log.stream_blocks > FILE_BYTES / BLOCK_BYTES * 3 / 4);
	/* what becomes of it afterwards: cut, overwritten in the middle of groups, shared, seen by a snapshot, deleted
	 */
	CHECK_OK(file_make(t, "gone", &gone, 2));
	CHECK_OK(file_make(t, "clone", &clone, 3));
	CHECK_OK(file_make(t, "seen", &seen, 4));
	CHECK_OK(file_make(t, "parts", &parts, 5));
	CHECK_OK(fs_clone(t->fs, &op_root, clone, 0, parts, 512u << 10, 256u << 10, NULL));
	CHECK_OK(fs_snapshot_create(t->fs, "s"));
	CHECK_OK(t_unlink(t, t->root, "seen"));
	CHECK_OK(t_unlink(t, t->root, "gone"));
	for (uint32_t off = 5 * BLOCK_BYTES; off < 400u << 10; off += 19 * BLOCK_BYTES)
		CHECK_OK(t_write(t, parts, off, data + FILE_BYTES - off - 8192, 8192, FS_FILE_SYNC));
	CHECK_OK(t_truncate(t, parts, (1u << 20) + 1000));
	cut(t);
	CHECK_OK(files_test_open(t));
	fs_status(t->fs, &status);
	CHECK(status.replayed > 10 && status.checksum_errors == 0);
	CHECK_IS(t_check(t), 0);
	fill(data, FILE_BYTES, 1);
	CHECK(file_is(t, plain, FILE_BYTES));
	fill(data, FILE_BYTES, 3);
	memcpy(back, data, 256u << 10);
	CHECK(file_is(t, clone, FILE_BYTES));
	uint8_t *part = malloc(256u << 10);
	memcpy(part, data, 256u << 10);
	fill(data, FILE_BYTES, 5);
	uint8_t *tail = malloc(FILE_BYTES);
	memcpy(tail, data, FILE_BYTES);
	memcpy(data + (512u << 10), part, 256u << 10);
	for (uint32_t off = 5 * BLOCK_BYTES; off < 400u << 10; off += 19 * BLOCK_BYTES)
		memcpy(data + off, tail + FILE_BYTES - off - 8192, 8192);
	CHECK(file_is(t, parts, (1u << 20) + 1000));
	free(part);
	free(tail);
	seen.snap = 1;
	CHECK_OK(fs_getattr(t->fs, seen, &attr));
	fill(data, FILE_BYTES, 4);
	CHECK(file_is(t, seen, FILE_BYTES));
	files_test_close(t);
}

/* Flips a byte wherever PATTERN (512 bytes) lies on the member's file; returns how often. */
static int corrupt(const char *path, const uint8_t *pattern)
{
	int fd = open(files_test_file(path), O_RDWR), found = 0;
	uint8_t block[4096];

	for (off_t off = 0; fd >= 0 && pread(fd, block, sizeof(block), off) == sizeof(block); off += 4096) {
		if (memcmp(block, pattern, 512) != 0)
			continue;
		block[100] ^= 0x40;
		if (pwrite(fd, block, sizeof(block), off) != sizeof(block))
			abort();
		found++;
	}
	close(fd);
	return found;
}

static void body_repair(void *arg)
{
	struct files_test *t = arg;
	struct fs_status status;
	struct fs_id id;
	int found = 0;

	CHECK_OK(begin(t, 6));
	CHECK_OK(file_make(t, "f", &id, 9));
	cut(t);
	/* in different groups, and two in one */
	for (unsigned i = 0; i < t->count; i++)
		for (unsigned block = 3; block < 200; block += block == 3 ? 2 : 60)
			found += corrupt(t->path[i], data + block * BLOCK_BYTES);
	CHECK_IS(found, 5);
	CHECK_OK(files_test_open(t));
	fs_status(t->fs, &status);
	CHECK_IS(status.checksum_errors, 4);
	CHECK_IS(status.checksum_repairs, 4);
	CHECK(file_is(t, id, FILE_BYTES));
	CHECK_IS(t_check(t), 0);
	CHECK_OK(files_test_remount(t));
	CHECK(file_is(t, id, FILE_BYTES));
	files_test_close(t);
}

/* Both copies are wrong: only that group is lost, and never read as something else. */
static void body_lost(void *arg)
{
	struct files_test *t = arg;
	struct fs_id id;
	int found = 0;

	CHECK_OK(begin(t, 1));
	CHECK_OK(file_make(t, "f", &id, 10));
	cut(t);
	for (unsigned i = 0; i < t->count; i++)
		found += corrupt(t->path[i], data + 35 * BLOCK_BYTES);
	CHECK_IS(found, 2);
	CHECK_OK(files_test_open(t));
	for (unsigned block = 0; block < FILE_BYTES / BLOCK_BYTES; block++) {
		int r = t_read(t, id, block * BLOCK_BYTES, back, BLOCK_BYTES, NULL);

		CHECK_IS(r, block / 16 == 2 ? -EIO : (int)BLOCK_BYTES);
		CHECK(r < 0 || memcmp(back, data + block * BLOCK_BYTES, BLOCK_BYTES) == 0);
	}
	CHECK_OK(files_test_remount(t));
	CHECK_IS(t_read(t, id, 32 * BLOCK_BYTES, back, BLOCK_BYTES, NULL), -EIO);
	CHECK_OK(t_write(t, id, 32 * BLOCK_BYTES, data + 32 * BLOCK_BYTES, 16 * BLOCK_BYTES, FS_FILE_SYNC));
	CHECK(file_is(t, id, FILE_BYTES));
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

static void body_many(void *arg)
{
	struct files_test *t = arg;
	struct fs_status before, after;
	struct fs_id id;

	CHECK_OK(begin(t, 6));
	fs_status(t->fs, &before);
	CHECK_OK(file_make(t, "f", &id, 11));
	fs_status(t->fs, &after);
	CHECK_IS(after.checkpoints, before.checkpoints);
	t->fs->log.stream_blocks += 1u << 20;
	CHECK_OK(file_make(t, "g", &id, 12));
	for (unsigned i = 0; i < 2000 && after.checkpoints == before.checkpoints; i++) {
		fiber_sleep(NSEC_PER_MSEC);
		fs_status(t->fs, &after);
	}
	CHECK(after.checkpoints > before.checkpoints && !streams_many(t->fs));
	files_test_close(t);
}

static void run(void (*body)(void *), unsigned drives)
{
	static struct files_test t;

	atomic_store(&log_threshold, -1);
	data = malloc(FILE_BYTES);
	back = malloc(FILE_BYTES);
	files_test_drives(&t, drives, 96ull << 20);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
	free(data);
	free(back);
}

static void test_form(void **state)
{
	(void)state;
	run(body_form, 2);
}
static void test_replay(void **state)
{
	(void)state;
	run(body_replay, 5);
}
static void test_repair(void **state)
{
	(void)state;
	run(body_repair, 5);
}
static void test_lost(void **state)
{
	(void)state;
	run(body_lost, 2);
}
static void test_many(void **state)
{
	(void)state;
	run(body_many, 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_form),
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_repair),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
