/*
 * The cache of clean data and reading ahead: what is served from memory (drive commands are counted), what a scan may
 * not do to it, that memory comes back when others need it, and that no block in it is ever out of date.
 */
#include "tests/fs/files_test.h"

#define MIB (1u << 20)

/* What byte OFF (of a multiple of 8) and the following are. */
static void fill(uint8_t *data, size_t bytes, uint64_t off, uint64_t key)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t v = hash_u64((key << 32) + (off + i));
		memcpy(data + i, &v, bytes - i < 8 ? bytes - i : 8);
	}
}

/* Bytes that the drives have read so far. */
static uint64_t drives_read(struct files_test *t)
{
	struct array_status *status = malloc(sizeof(*status));
	uint64_t bytes = 0;

	array_status(t->array, status);
	for (unsigned i = 0; i < status->slots; i++)
		bytes += status->member[i].read_bytes;
	free(status);
	return bytes;
}

static int file_write(struct files_test *t, struct fs_id f, unsigned mib, unsigned version)
{
	uint8_t *data = malloc(MIB);
	int r = 0;

	for (unsigned i = 0; i < mib && r == 0; i++) {
		fill(data, MIB, (uint64_t)i * MIB, f.ino * 1000 + version);
		r = t_write(t, f, (uint64_t)i * MIB, data, MIB, FS_FILE_SYNC);
	}
	free(data);
	return r;
}

/* 0, or what went wrong. */
static int file_read(struct files_test *t, struct fs_id f, uint64_t off, uint32_t len, unsigned version)
{
	uint8_t *data = malloc(len + 8), *is = malloc(len);
	int r = t_read(t, f, off, is, len, NULL);

	fill(data, len + 8, off / 8 * 8, f.ino * 1000 + version);
	r = r < 0 ? r : r != (int)len ? -ERANGE : memcmp(is, data + off % 8, len) ? -EBADMSG : 0;
	free(data);
	free(is);
	return r;
}

static int file_read_all(struct files_test *t, struct fs_id f, unsigned mib, uint32_t len, unsigned version)
{
	int r = 0;

	for (uint64_t off = 0; off < (uint64_t)mib * MIB && r == 0; off += len)
		r = file_read(t, f, off, len, version);
	return r;
}

static void run_body(void (*body)(void *), unsigned drives, uint64_t bytes, uint64_t cache_bytes)
{
	static struct files_test t;

	files_test_drives(&t, drives, bytes);
	t.options.cache_bytes = cache_bytes;
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
}

/* ------------------------------------------------------------------------------------------------
 * Hits
 */

static void cleaner_kick_home(void *arg)
{
	cleaner_kick(arg);
}

static void body_hits(void *arg)
{
	struct files_test *t = arg;
	struct fs_status status;
	struct fs_id f;
	uint64_t before;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "f", &f));
	/* what was written is read from memory */
	CHECK_OK(file_write(t, f, 4, 1));
	before = drives_read(t);
	CHECK_OK(file_read_all(t, f, 4, 64 << 10, 1));
	CHECK_OK(file_read(t, f, MIB + 12345, 5000, 1));
	CHECK_IS(drives_read(t) - before, 0);
	/* what was read is too, and by others that share it */
	t_forget(t);
	CHECK_OK(file_read(t, f, 0, 300000, 1));
	CHECK(drives_read(t) - before >= 300000);
	CHECK_OK(fs_snapshot_create(t->fs, "s"));
	before = drives_read(t);
	CHECK_OK(file_read(t, f, 0, 300000, 1));
	f.snap = 1;
	CHECK_OK(file_read(t, f, 4096, 290000, 1));
	f.snap = 0;
	CHECK_IS(drives_read(t) - before, 0);
	/* a written part of a block is completed from memory; both versions are there after */
	CHECK_OK(t_write(t, f, 5000, "x", 1, FS_FILE_SYNC));
	CHECK_OK(t_truncate(t, f, 2 * MIB + 100));
	f.snap = 1;
	CHECK_OK(file_read(t, f, 0, 300000, 1));
	CHECK_IS(drives_read(t) - before, 4096); /* the last block of the file, for its tail */
	fs_status(t->fs, &status);
	CHECK(status.cache_hits > 1000 && status.cache_misses > 0 && status.cache_bytes >= 300000);
	CHECK(status.cache_bytes <= status.cache_limit_bytes);
	files_test_close(t);
}

static void test_hits(void **state)
{
	(void)state;
	run_body(body_hits, 6, 64ull << 20, 32u << 20);
}

/* What the cleaner moves stays warm. */
static void body_moved(void *arg)
{
	struct files_test *t = arg;
	struct fs_status status;
	struct fs_id f;
	uint8_t data[4096];
	uint64_t before;

	CHECK_OK(files_test_create(t, 5));
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(file_write(t, f, 2, 1));
	/* every other block is somewhere else then, and its stripe half empty */
	for (unsigned i = 0; i < 2 * MIB; i += 2 * sizeof(data)) {
		fill(data, sizeof(data), i, f.ino * 1000 + 1);
		CHECK_OK(t_write(t, f, i, data, sizeof(data), FS_FILE_SYNC));
	}
	CHECK_OK(file_read_all(t, f, 2, 64 << 10, 1));
	space_low_extra = UINT64_MAX;
	reactor_call(t->fs->home, cleaner_kick_home, t->fs);
	for (unsigned i = 0; i < 2000; i++) {
		fs_status(t->fs, &status);
		if (status.cleaner_moved_blocks > 100)
			break;
		fiber_sleep(NSEC_PER_MSEC);
	}
	CHECK(status.cleaner_moved_blocks > 100);
	space_low_extra = 0;
	CHECK_OK(fs_checkpoint(t->fs));
	before = drives_read(t);
	CHECK_OK(file_read_all(t, f, 2, 64 << 10, 1));
	CHECK_IS(drives_read(t) - before, 0);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

static void test_moved(void **state)
{
	(void)state;
	run_body(body_moved, 5, 64ull << 20, 32u << 20);
}

/* ------------------------------------------------------------------------------------------------
 * A scan of much more than the cache holds leaves what is used again where it is
 */

#define HOT 200u /* blocks: 800 KiB of some 8 MiB */

static void body_scan(void *arg)
{
	struct files_test *t = arg;
	struct fs_id hot, big;
	uint64_t before;

	CHECK_OK(files_test_create(t, 5));
	CHECK_OK(t_create(t, t->root, "hot", &hot));
	CHECK_OK(t_create(t, t->root, "big", &big));
	CHECK_OK(file_write(t, hot, 4, 1));
	CHECK_OK(file_write(t, big, 40, 1));
	t_forget(t);
	for (unsigned round = 0; round < 3; round++)
		for (unsigned i = 0; i < HOT; i++)
			CHECK_OK(file_read(t, hot, i * 4096 * 5, 4096, 1));
	for (unsigned round = 0; round < 2; round++) {
		before = drives_read(t);
		CHECK_OK(file_read_all(t, big, 40, round ? 64 << 10 : MIB, 1));
		CHECK(drives_read(t) - before >= 35ull * MIB);
		before = drives_read(t);
		for (unsigned i = 0; i < HOT; i++)
			CHECK_OK(file_read(t, hot, i * 4096 * 5, 4096, 1));
		CHECK(drives_read(t) - before <= HOT / 20 * 4096);
	}
	files_test_close(t);
}

static void test_scan(void **state)
{
	(void)state;
	run_body(body_scan, 5, 64ull << 20, 8u << 20);
}

/* What does not fit at first is kept when it comes back soon: the working set changes. */
static void body_change(void *arg)
{
	struct files_test *t = arg;
	struct fs_id f;
	uint64_t before = 0;

	CHECK_OK(files_test_create(t, 5));
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(file_write(t, f, 40, 1));
	for (unsigned set = 0; set < 3; set++) {
		for (unsigned round = 0; round < 5; round++) {
			before = drives_read(t);
			for (unsigned i = 0; i < 1024; i++)
				CHECK_OK(file_read(t, f, set * 12 * MIB + i * 4096 * 3ull, 4096, 1));
		}
		CHECK(drives_read(t) - before <= 1024 / 10 * 4096);
	}
	files_test_close(t);
}

static void test_change(void **state)
{
	(void)state;
	run_body(body_change, 5, 64ull << 20, 8u << 20);
}

/* ------------------------------------------------------------------------------------------------
 * Memory
 */

static void body_memory(void *arg)
{
	struct files_test *t = arg;
	static struct buf *held[4096];
	struct fs_status status;
	struct fs_id f;
	unsigned n = 0;

	CHECK_OK(files_test_create(t, 5));
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(file_write(t, f, 60, 1));
	for (unsigned i = 0; i < 3000; i++)
		CHECK_OK(file_read(t, f, i * 4096 * 5ull, 4096, 1));
	fs_status(t->fs, &status);
	CHECK(status.cache_bytes >= 30ull * MIB);
	CHECK(status.cache_bytes <= arena_total_bytes() / 2);
	/* others get all but what is in use elsewhere, in large pieces and without waiting */
	while (n < 4096 && (held[n] = buf_try_alloc(BUF_MAX)))
		n++;
	CHECK((uint64_t)n * BUF_MAX >= arena_total_bytes() * 3 / 4);
	fs_status(t->fs, &status);
	CHECK_IS(status.cache_bytes, 0);
	while (n > 8)
		buf_put(held[--n]);
	/* short of memory: reads go on, and little is kept */
	for (unsigned i = 0; i < 200; i++)
		CHECK_OK(file_read(t, f, i * 4096 * 50ull, 4096, 1));
	while (n > 0)
		buf_put(held[--n]);
	files_test_close(t);
}

static void test_memory(void **state)
{
	(void)state;
	run_body(body_memory, 5, 64ull << 20, 1u << 30);
}

/* ------------------------------------------------------------------------------------------------
 * Stripes that are emptied, cleaned and written again while the cache holds what they had
 */

#define FILES 12u

static void body_reuse(void *arg)
{
	struct files_test *t = arg;
	struct fs_id f[FILES] = {{0}}, filler;
	unsigned version[FILES] = {0};
	uint64_t seed = 5;
	char name[16];

	CHECK_OK(files_test_create(t, 5));
	for (unsigned i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		CHECK_OK(t_create(t, t->root, name, &f[i]));
		CHECK_OK(file_write(t, f[i], 2, 0));
	}
	/* little is free: stripes are cleaned and used again soon */
	for (unsigned i = 0; t->fs->space.free > t->fs->space.stripes / 5; i++) {
		snprintf(name, sizeof(name), "filler%u", i);
		CHECK_OK(t_create(t, t->root, name, &filler));
		CHECK_OK(file_write(t, filler, 1, 0));
	}
	for (unsigned step = 0; step < 300; step++) {
		unsigned i = test_below(&seed, FILES);
		uint8_t data[4096];

		switch (test_below(&seed, 4)) {
		case 0:
			CHECK_OK(file_write(t, f[i], 2, ++version[i]));
			break;
		case 1: /* holes in stripes, for the cleaner */
			for (unsigned b = 0; b < 40; b++) {
				uint64_t off = test_below(&seed, 512) * 4096ull;

				fill(data, 4096, off, f[i].ino * 1000 + version[i]);
				CHECK_OK(t_write(t, f[i], off, data, 4096, b % 8 ? FS_UNSTABLE : FS_FILE_SYNC));
			}
			break;
		default:
			CHECK_OK(file_read_all(t, f[i], 2, 128 << 10, version[i]));
		}
		if (step % 16 == 0)
			CHECK_OK(fs_checkpoint(t->fs));
	}
	for (unsigned i = 0; i < FILES; i++)
		CHECK_OK(file_read_all(t, f[i], 2, MIB, version[i]));

	CHECK(t->fs->files->cache.evictions > 0);
	CHECK(t->fs->files->cache.hits > 1000);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

static void test_reuse(void **state)
{
	(void)state;
	run_body(body_reuse, 5, 40ull << 20, 24u << 20);
}

/* ------------------------------------------------------------------------------------------------
 * Reading ahead
 */

static void body_ahead(void *arg)
{
	struct files_test *t = arg;
	uint64_t before, seed = 3, ahead;
	struct fs_status status;
	struct fs_id f;

	CHECK_OK(files_test_create(t, 5));
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(file_write(t, f, 16, 1));
	/* from front to back: each byte comes from the drives once, and nearly all of it before it is asked for */
	for (unsigned round = 0; round < 3; round++) {
		static const uint32_t size[] = {16 << 10, 128 << 10, MIB};

		t_forget(t);
		fs_status(t->fs, &status);
		ahead = status.ahead_blocks;
		before = drives_read(t);
		CHECK_OK(file_read_all(t, f, 16, size[round], 1));
		CHECK_IS(drives_read(t) - before, 16 * MIB);
		fs_status(t->fs, &status);
		CHECK(status.ahead_blocks - ahead >= (round < 2 ? 14 : 8) * MIB / 4096);
	}
	/* all is in memory: nothing more is read */
	fs_status(t->fs, &status);
	ahead = status.ahead_blocks;
	before = drives_read(t);
	CHECK_OK(file_read_all(t, f, 16, 64 << 10, 1));
	CHECK_IS(drives_read(t) - before, 0);
	/* here and there: only what was asked for */
	t_forget(t);
	for (unsigned i = 0; i < 300; i++)
		CHECK_OK(file_read(t, f, test_below(&seed, 4096) * 4096ull, 4096, 1));
	fs_status(t->fs, &status);
	CHECK_IS(status.ahead_blocks, ahead);
	CHECK(drives_read(t) - before <= 300 * 4096);
	files_test_close(t);
}

static void test_ahead(void **state)
{
	(void)state;
	run_body(body_ahead, 5, 64ull << 20, 64u << 20);
}

/* Readers that overtake each other are one stream; two of them in one file are two. */
struct parallel {
	struct files_test *t;
	struct fs_id f;
	unsigned next, end;
	int r;
	struct wait_group group;
};

static void parallel_fiber(void *arg)
{
	struct parallel *p = arg;
	int r = 0;

	while (r == 0 && p->next < p->end)
		r = file_read(p->t, p->f, (uint64_t)p->next++ * (256 << 10), 256 << 10, 1);
	wait_group_done(&p->group, r);
}

static void body_parallel(void *arg)
{
	struct files_test *t = arg;
	struct parallel p[2] = {{.t = t}, {.t = t}};
	struct fs_status status;
	uint64_t before;

	CHECK_OK(files_test_create(t, 5));
	CHECK_OK(t_create(t, t->root, "f", &p[0].f));
	CHECK_OK(file_write(t, p[0].f, 24, 1));
	t_forget(t);
	before = drives_read(t);
	for (unsigned i = 0; i < 2; i++) {
		p[i].f = p[0].f;
		p[i].next = i * 48;
		p[i].end = i * 48 + 48;
		wait_group_init(&p[i].group);
		wait_group_add(&p[i].group, 4);
		for (unsigned j = 0; j < 4; j++)
			CHECK_OK(fiber_spawn(parallel_fiber, &p[i]));
	}
	CHECK_OK(wait_group_wait(&p[0].group));
	CHECK_OK(wait_group_wait(&p[1].group));
	fs_status(t->fs, &status);
	CHECK(status.ahead_blocks >= 12 * MIB / 4096);
	CHECK(drives_read(t) - before <= 25 * MIB);
	files_test_close(t);
}

static void test_parallel(void **state)
{
	(void)state;
	run_body(body_parallel, 5, 64ull << 20, 64u << 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hits),
		cmocka_unit_test(test_moved),
		cmocka_unit_test(test_scan),
		cmocka_unit_test(test_change),
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_reuse),
		cmocka_unit_test(test_ahead),
		cmocka_unit_test(test_parallel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
