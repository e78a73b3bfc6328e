/* File data: every edge of size and block, holes, overwrites, truncation, commit, checksums, orphans. */
#include "tests/fs/files_test.h"

static void fill(uint8_t *to, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		to[i] = (uint8_t)(hash_u64(seed + i / 8) >> (i % 8 * 8));
}

static bool is_zero(const uint8_t *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i])
			return false;
	return true;
}

/* ------------------------------------------------------------------------------------------------
 */

static void body_edges(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(1u << 20), *back = malloc(2u << 20);
	static const uint32_t sizes[] = {0, 1, 4095, 4096, 4097, 8192, 10000, 65536, 262143, 262144, 262145, 1u << 20};
	struct fs_attr attr;
	struct fs_id f;
	bool eof;

	CHECK_OK(files_test_create(t, 6));
	fill(data, 1u << 20, 1);
	for (unsigned mode = 0; mode < 3; mode++) {
		for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			uint32_t size = sizes[i];

			CHECK_OK(t_create(t, t->root, "f", &f));
			CHECK_OK(t_write(t, f, 0, data, size, mode == 0 ? FS_FILE_SYNC : FS_UNSTABLE));
			if (mode == 2)
				CHECK_OK(t_commit(t, f));
			CHECK_OK(fs_getattr(t->fs, f, &attr));
			CHECK_IS(attr.size, size);
			if (mode != 1)
				CHECK_IS(attr.used_bytes, (size + 4095u) / 4096 * 4096);
			for (uint32_t j = 0; j < 4; j++) {
				uint32_t off = size + j >= 2 ? size + j - 2 : 0;
				uint32_t want = off < size ? size - off : 0;

				CHECK_IS(t_read(t, f, off, back, 100, &eof), want < 100 ? want : 100);
				CHECK(eof);
				CHECK(memcmp(back, data + off, want < 100 ? want : 100) == 0);
			}
			CHECK_IS(t_read(t, f, 0, back, 2u << 20, &eof), size);
			CHECK(eof && memcmp(back, data, size) == 0);
			CHECK_IS(t_read(t, f, 0, back, 0, &eof), 0);
			CHECK(eof == (size == 0));
			if (size > 0) {
				CHECK_IS(t_read(t, f, 0, back, size, &eof), size);
				CHECK(eof);
				CHECK_IS(t_read(t, f, 0, back, size - 1, &eof), size - 1);
				CHECK(!eof);
			}
			CHECK_IS(t_read(t, f, UINT64_MAX - 5, back, 100, &eof), 0);
			CHECK(eof);
			CHECK_OK(t_unlink(t, t->root, "f"));
		}
	}
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_IS(t_write(t, f, FS_SIZE_MAX - 1, data, 2, FS_UNSTABLE), -EFBIG);
	CHECK_IS(t_write(t, t->root, 0, data, 2, FS_UNSTABLE), -EISDIR);
	CHECK_IS(t_read(t, t->root, 0, data, 2, NULL), -EISDIR);
	CHECK_IS(t_truncate(t, t->root, 0), -EISDIR);
	CHECK_IS(t_truncate(t, f, FS_SIZE_MAX + 1), -EFBIG);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(back);
}

static void body_sparse(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(65536), *back = malloc(1u << 20);
	struct fs_attr attr;
	struct fs_id f;
	bool eof;

	CHECK_OK(files_test_create(t, 6));
	fill(data, 65536, 5);
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(t_write(t, f, 5ull << 32, data, 10, FS_FILE_SYNC));
	CHECK_OK(t_write(t, f, (1ull << 40) + 17, data, 5000, FS_UNSTABLE));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.size, (1ull << 40) + 5017);
	CHECK_IS(t_read(t, f, 0, back, 1u << 20, &eof), 1u << 20);
	CHECK(!eof && is_zero(back, 1u << 20));
	CHECK_IS(t_read(t, f, (5ull << 32) - 100, back, 300, &eof), 300);
	CHECK(is_zero(back, 100) && memcmp(back + 100, data, 10) == 0 && is_zero(back + 110, 190));
	CHECK_OK(files_test_remount(t));
	CHECK_IS(t_read(t, f, (1ull << 40) - 1000, back, 20000, &eof), 1000 + 5017);
	CHECK(eof && is_zero(back, 1017) && memcmp(back + 1017, data, 5000) == 0);
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.used_bytes, 3 * 4096);
	CHECK_OK(t_truncate(t, f, 5));
	CHECK_OK(t_truncate(t, f, 1ull << 36));
	CHECK_IS(t_read(t, f, (5ull << 32) - 100, back, 300, &eof), 300);
	CHECK(is_zero(back, 300));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.used_bytes, 0);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(back);
}

/* Growing again shows zeros, whatever was behind the end: in memory, on the drives, after a remount. */
static void body_truncate(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(1u << 20), *back = malloc(1u << 20);
	static const uint32_t cuts[] = {0, 1, 4095, 4096, 4097, 50000, 131072, 262143, 300000};
	struct fs_attr attr;
	struct fs_id f;
	bool eof;

	CHECK_OK(files_test_create(t, 6));
	fill(data, 1u << 20, 9);
	CHECK_OK(t_create(t, t->root, "f", &f));
	for (unsigned mode = 0; mode < 4; mode++) {
		for (unsigned i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
			uint32_t cut = cuts[i];

			CHECK_OK(t_write(t, f, 0, data, 300000, mode & 1 ? FS_FILE_SYNC : FS_UNSTABLE));
			CHECK_OK(t_truncate(t, f, cut));
			CHECK_OK(fs_getattr(t->fs, f, &attr));
			CHECK_IS(attr.size, cut);
			CHECK_IS(t_read(t, f, 0, back, 1u << 20, &eof), cut);
			CHECK(eof && memcmp(back, data, cut) == 0);
			if (mode & 2)
				CHECK_OK(t_write(t, f, 400000, data, 10, FS_UNSTABLE));
			else
				CHECK_OK(t_truncate(t, f, 400010));
			if (i % 3 == 0)
				CHECK_OK(files_test_remount(t));
			CHECK_IS(t_read(t, f, 0, back, 1u << 20, &eof), 400010);
			CHECK(memcmp(back, data, cut) == 0);
			CHECK(is_zero(back + cut, 400000 - cut));
			CHECK_IS(memcmp(back + 400000, data, 10) == 0, (mode & 2) != 0);
			CHECK_OK(t_truncate(t, f, 0));
		}
	}
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(back);
}

/* Partial writes in any order over memory, over what is being flushed and over the drives. */
static void body_partial(void *arg)
{
	struct files_test *t = arg;
	const uint32_t span = 40000;
	uint8_t *model = calloc(1, span), *data = malloc(span), *back = malloc(span);
	uint64_t seed = 4711;
	uint32_t size = 0;
	struct fs_id f;
	bool eof;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "f", &f));
	for (unsigned i = 0; i < 1500; i++) {
		uint32_t off = test_below(&seed, span - 1), len = 1 + test_below(&seed, i % 3 ? 300 : 9000);
		unsigned what = test_below(&seed, 20);

		if (len > span - off)
			len = span - off;
		if (what == 0) {
			CHECK_OK(t_commit(t, f));
		} else if (what == 1) {
			CHECK_OK(t_truncate(t, f, off));
			memset(model + off, 0, span - off);
			size = off;
		} else if (what == 2 && i % 7 == 0) {
			CHECK_OK(files_test_remount(t));
		} else if (what < 8) {
			uint32_t want = off < size ? size - off : 0;

			if (want > len)
				want = len;
			CHECK_IS(t_read(t, f, off, back, len, &eof), want);
			if (memcmp(back, model + off, want) != 0)
				CHECK_FAILED("step %u: read of %u at %u differs", i, len, off);
			CHECK_IS(eof, off + len >= size);
		} else {
			fill(data, len, i * 1000);
			CHECK_OK(t_write(t, f, off, data, len, what < 12 ? FS_FILE_SYNC : FS_UNSTABLE));
			memcpy(model + off, data, len);
			if (off + len > size)
				size = off + len;
		}
		CHECK(!test_failure[0]);
	}
	CHECK_IS(t_read(t, f, 0, back, span, &eof), size);
	CHECK(memcmp(back, model, size) == 0);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(model);
	free(data);
	free(back);
}

/* ------------------------------------------------------------------------------------------------
 * Many at once
 */

struct crowd {
	struct files_test *t;
	struct wait_group wait;
	unsigned next, failed;
	struct fs_id same;
};

static void crowd_fiber(void *arg)
{
	struct crowd *c = arg;
	unsigned me = c->next++;
	uint8_t *data = malloc(20000), *back = malloc(20000);
	char name[32];
	struct fs_id f;
	int r;

	snprintf(name, sizeof(name), "crowd%u", me);
	fill(data, 20000, me);
	r = t_create(c->t, c->t->root, name, &f);
	for (unsigned i = 0; i < 10 && r == 0; i++) {
		r = t_write(c->t, f, i * 20000, data, 20000, i % 2 ? FS_FILE_SYNC : FS_UNSTABLE);
		if (r == 0)
			r = t_write(c->t, c->same, (uint64_t)(me * 10 + i) * 4096, data, 4096, FS_FILE_SYNC);
		if (r == 0 && t_read(c->t, f, i * 20000, back, 20000, NULL) != 20000)
			r = -EBADMSG;
		if (r == 0 && memcmp(back, data, 20000) != 0)
			r = -EBADMSG;
	}
	if (r)
		c->failed++;
	free(data);
	free(back);
	wait_group_done(&c->wait, r);
}

static void body_crowd(void *arg)
{
	struct files_test *t = arg;
	struct crowd c = {.t = t};
	struct fs_status before, after;
	uint8_t *data = malloc(4096), *back = malloc(4096);

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "same", &c.same));
	fs_status(t->fs, &before);
	wait_group_init(&c.wait);
	for (unsigned i = 0; i < 64; i++) {
		wait_group_add(&c.wait, 1);
		CHECK_OK(fiber_spawn(crowd_fiber, &c));
	}
	CHECK_OK(wait_group_wait(&c.wait));
	fs_status(t->fs, &after);
	/* many writes share a transaction: there were 64 * 25 durable calls */
	CHECK(after.transactions - before.transactions < 64 * 12);
	CHECK_IS(t_check(t), 0);
	CHECK_OK(files_test_remount(t));
	for (unsigned i = 0; i < 640; i++) {
		fill(data, 4096, i / 10);
		CHECK_IS(t_read(t, c.same, (uint64_t)i * 4096, back, 4096, NULL), 4096);
		CHECK(memcmp(data, back, 4096) == 0);
	}
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(back);
}

/* More dirty data than may be: writers wait, nothing is lost, the arena is not used up. */
static void body_stream(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(1u << 20), *back = malloc(1u << 20);
	struct fs_status status;
	struct fs_id f;

	t->options.dirty_bytes = 4u << 20;
	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "f", &f));
	for (unsigned i = 0; i < 48; i++) {
		fill(data, 1u << 20, i);
		CHECK_OK(t_write(t, f, (uint64_t)i << 20, data, 1u << 20, FS_UNSTABLE));
		fs_status(t->fs, &status);
		CHECK(status.dirty_bytes <= (6u << 20));
	}
	CHECK_OK(t_commit(t, f));
	fs_status(t->fs, &status);
	CHECK_IS(status.dirty_bytes, 0);
	CHECK_OK(files_test_remount(t));
	for (unsigned i = 0; i < 48; i++) {
		fill(data, 1u << 20, i);
		CHECK_IS(t_read(t, f, (uint64_t)i << 20, back, 1u << 20, NULL), 1 << 20);
		CHECK(memcmp(data, back, 1u << 20) == 0);
	}
	CHECK_IS(t_check(t), 0);
	/* many extents: in several transactions */
	CHECK_OK(t_truncate(t, f, 12345));
	CHECK_IS(t_read(t, f, 0, back, 1u << 20, NULL), 12345);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(back);
}

/* What ages is flushed by itself. */
static void body_background(void *arg)
{
	struct files_test *t = arg;
	struct fs_status status;
	struct fs_id f;
	unsigned i;

	CHECK_OK(files_test_create(t, 6));
	t->fs->files->flush_age_ns = 20 * NSEC_PER_MSEC;
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(t_write(t, f, 100, "hello", 5, FS_UNSTABLE));
	fs_status(t->fs, &status);
	CHECK_IS(status.dirty_bytes, 4096);
	for (i = 0; i < 200 && status.dirty_bytes > 0; i++) {
		fiber_sleep(10 * NSEC_PER_MSEC);
		fs_status(t->fs, &status);
	}
	CHECK(i < 200);
	files_test_close(t);
}

/* ------------------------------------------------------------------------------------------------
 * Faults
 */

/* Flips a byte wherever PATTERN (512 bytes) lies on the member's file; returns how often. */
static int corrupt(const char *path, const uint8_t *pattern)
{
	int fd = open(files_test_file(path), O_RDWR), found = 0;
	uint8_t *block = malloc(4096);
	off_t off = 0;

	while (fd >= 0 && pread(fd, block, 4096, off) == 4096) {
		if (memcmp(block, pattern, 512) == 0) {
			block[100] ^= 0x40;
			if (pwrite(fd, block, 1, off) != 1 || pwrite(fd, block + 100, 1, off + 100) != 1)
				abort();
			found++;
		}
		off += 4096;
	}
	free(block);
	close(fd);
	return found;
}

static void body_repair(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(65536), *back = malloc(65536);
	struct fs_status status;
	struct fs_id f;
	int found = 0;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "f", &f));
	fill(data, 65536, 77);
	CHECK_OK(t_write(t, f, 0, data, 65536, FS_FILE_SYNC));
	for (unsigned i = 0; i < t->count; i++)
		found += corrupt(t->path[i], data + 3 * 4096);
	CHECK(found >= 1);
	t_forget(t);
	CHECK_IS(t_read(t, f, 0, back, 65536, NULL), 65536);
	CHECK(memcmp(data, back, 65536) == 0);
	fs_status(t->fs, &status);
	CHECK_IS(status.checksum_errors, 1);
	CHECK_IS(status.checksum_repairs, 1);
	/* it was written back */
	t_forget(t);
	CHECK_IS(t_read(t, f, 0, back, 65536, NULL), 65536);
	fs_status(t->fs, &status);
	CHECK_IS(status.checksum_errors, 1);
	/* the check finds it too */
	found = 0;
	for (unsigned i = 0; i < t->count; i++)
		found += corrupt(t->path[i], data + 5 * 4096);
	CHECK(found >= 1);
	CHECK_IS(t_check(t), 1);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(back);
}

/* On two mirrored drives both copies can be wrong: then it is an error, never wrong data. */
static void body_lost(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(65536), *back = malloc(65536);
	struct fs_id f;
	int found = 0;

	CHECK_OK(files_test_create(t, 1));
	CHECK_OK(t_create(t, t->root, "f", &f));
	fill(data, 65536, 78);
	CHECK_OK(t_write(t, f, 0, data, 65536, FS_FILE_SYNC));
	for (unsigned i = 0; i < t->count; i++)
		found += corrupt(t->path[i], data + 3 * 4096);
	CHECK(found == 2);
	t_forget(t);
	CHECK_IS(t_read(t, f, 0, back, 65536, NULL), -EIO);
	CHECK_IS(t_read(t, f, 0, back, 3 * 4096, NULL), 3 * 4096);
	CHECK(memcmp(data, back, 3 * 4096) == 0);
	CHECK_IS(t_check(t), 1);
	/* an overwrite heals it */
	CHECK_OK(t_write(t, f, 3 * 4096, data + 3 * 4096, 4096, FS_FILE_SYNC));
	CHECK_IS(t_read(t, f, 0, back, 65536, NULL), 65536);
	CHECK(memcmp(data, back, 65536) == 0);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(back);
}

/* ------------------------------------------------------------------------------------------------
 * Files without a name
 */

static int orphans_left(struct files_test *t)
{
	struct fs_key key = {.type = KEY_ORPHAN};
	struct orphan_disk disk;
	int n = 0;

	while (tree_next(t->fs, &key, &disk, sizeof(disk)) >= 0 && key.ino == 0 && key.type == KEY_ORPHAN) {
		n++;
		key.off++;
	}
	return n;
}

static int orphans_wait(struct files_test *t, int want)
{
	for (unsigned i = 0; i < 200 && orphans_left(t) != want; i++)
		fiber_sleep(10 * NSEC_PER_MSEC);
	return orphans_left(t);
}

static void body_orphans(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(1u << 20), *back = malloc(1u << 20);
	struct fs_attr attr;
	struct fs_id f, g, h;
	uint64_t inodes;

	orphan_reclaim_ns = 300 * NSEC_PER_MSEC;
	CHECK_OK(files_test_create(t, 6));
	inodes = files_inode_count(t->fs);
	fill(data, 1u << 20, 3);
	/* held: readable, writable until it is released */
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(t_write(t, f, 0, data, 1u << 20, FS_FILE_SYNC));
	CHECK_OK(fs_hold(t->fs, f));
	CHECK_OK(fs_hold(t->fs, f));
	CHECK_OK(t_unlink(t, t->root, "f"));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.nlink, 0);
	CHECK_IS(t_read(t, f, 0, back, 1u << 20, NULL), 1 << 20);
	CHECK(memcmp(data, back, 1u << 20) == 0);
	CHECK_OK(t_write(t, f, 1u << 20, data, 1000, FS_FILE_SYNC));
	CHECK_IS(fs_link(t->fs, &op_root, f, t->root, "again", 5, NULL, NULL), -ESTALE);
	fs_release(t->fs, f);
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(orphans_left(t), 1);
	CHECK_IS(t_check(t), 0);
	fs_release(t->fs, f);
	CHECK_IS(fs_getattr(t->fs, f, &attr), -ESTALE);
	CHECK_IS(orphans_wait(t, 0), 0);
	CHECK_IS(files_inode_count(t->fs), inodes);
	/* not held, but with dirty data */
	CHECK_OK(t_create(t, t->root, "g", &g));
	CHECK_OK(t_write(t, g, 0, data, 1u << 20, FS_UNSTABLE));
	CHECK_OK(t_unlink(t, t->root, "g"));
	CHECK_IS(fs_getattr(t->fs, g, &attr), -ESTALE);
	CHECK_IS(orphans_wait(t, 0), 0);
	/* a rename over a held file */
	CHECK_OK(t_create(t, t->root, "g", &g));
	CHECK_OK(t_create(t, t->root, "h", &h));
	CHECK_OK(t_write(t, h, 0, data, 5000, FS_FILE_SYNC));
	CHECK_OK(fs_hold(t->fs, h));
	CHECK_OK(t_rename(t, t->root, "g", t->root, "h"));
	CHECK_IS(t_read(t, h, 0, back, 5000, NULL), 5000);
	/* over a restart it may be held again for a while */
	CHECK_OK(files_test_remount(t));
	CHECK_IS(t_read(t, h, 0, back, 5000, NULL), 5000);
	CHECK_OK(fs_hold(t->fs, h));
	fiber_sleep(500 * NSEC_PER_MSEC);
	CHECK_IS(t_read(t, h, 0, back, 5000, NULL), 5000);
	CHECK(memcmp(data, back, 5000) == 0);
	fs_release(t->fs, h);
	CHECK_IS(orphans_wait(t, 0), 0);
	/* and goes if nobody does */
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(t_write(t, f, 0, data, 5000, FS_FILE_SYNC));
	CHECK_OK(fs_hold(t->fs, f));
	CHECK_OK(t_unlink(t, t->root, "f"));
	CHECK_OK(files_test_remount(t));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(orphans_wait(t, 0), 0);
	CHECK_IS(fs_getattr(t->fs, f, &attr), -ESTALE);
	CHECK_OK(t_unlink(t, t->root, "h"));
	CHECK_IS(files_inode_count(t->fs), inodes);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(back);
}

/* Flushing goes on with next to nothing free in the arena: one piece, which parity needs. */
static void body_no_buffers(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(65536), *back = malloc(65536);
	struct list all = LIST_INIT(all);
	struct list_node *node;
	struct slice v = {0};
	struct buf *buf;
	struct fs_id f;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "f", &f));
	fill(data, 65536, 21);
	CHECK_OK(t_write(t, f, 0, data, 65536, FS_FILE_SYNC));
	/* parts of blocks */
	for (uint32_t off = 100; off < 65536; off += 4096) {
		CHECK_OK(t_write(t, f, off, data + 30000, 10, FS_UNSTABLE));
		memcpy(data + off, data + 30000, 10);
	}
	CHECK_IS(fs_write_buffers(0, 4096, &v, 1), 1);
	for (uint32_t size = BUF_MAX; size >= 4096; size /= 2)
		while ((buf = buf_try_alloc(size)))
			list_push_back(&all, &buf->node);
	buf_put(container_of(list_pop_front(&all), struct buf, node));
	CHECK_OK(t_commit(t, f));
	memcpy(v.buf->data, data, 4096);
	CHECK_OK(fs_write(t->fs, &op_root, f, 0, &v, 1, FS_FILE_SYNC, NULL, NULL));
	CHECK_OK(t_truncate(t, f, 40001));
	CHECK_OK(fs_checkpoint(t->fs));
	while ((node = list_pop_front(&all)))
		buf_put(container_of(node, struct buf, node));
	slices_put(&v, 1);
	CHECK_IS(t_read(t, f, 0, back, 65536, NULL), 40001);
	CHECK(memcmp(data, back, 40001) == 0);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(back);
}

/* All space, given back. */
static void body_full(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(1u << 20);
	struct fs_statfs before, after;
	struct fs_id f;
	unsigned n = 0;
	char name[32];
	int r = 0;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(fs_statfs(t->fs, &before));
	fill(data, 1u << 20, 8);
	while (r == 0 && n < 1000) {
		snprintf(name, sizeof(name), "f%u", n);
		r = t_create(t, t->root, name, &f);
		for (unsigned i = 0; i < 4 && r == 0; i++)
			r = t_write(t, f, (uint64_t)i << 20, data, 1u << 20, i == 3 ? FS_FILE_SYNC : FS_UNSTABLE);
		n++;
	}
	CHECK_IS(r, -ENOSPC);
	CHECK(n > 3);
	CHECK_IS(t_check(t), 0);
	while (n-- > 0) {
		snprintf(name, sizeof(name), "f%u", n);
		r = t_unlink(t, t->root, name);
		CHECK(r == 0 || r == -ENOENT);
	}
	CHECK_IS(orphans_wait(t, 0), 0);
	CHECK_OK(fs_checkpoint(t->fs));
	CHECK_OK(fs_statfs(t->fs, &after));
	CHECK(after.bytes_free > before.bytes_free / 10 * 9);
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(t_write(t, f, 0, data, 1u << 20, FS_FILE_SYNC));
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
}

/* ------------------------------------------------------------------------------------------------
 */

static void run(void (*body)(void *), unsigned drives)
{
	static struct files_test t;

	files_test_drives(&t, drives, 64ull << 20);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
}

#define TEST(name, drives)                                                                                             \
	static void test_##name(void **state)                                                                          \
	{                                                                                                              \
		(void)state;                                                                                           \
		run(body_##name, drives);                                                                              \
	}
TEST(edges, 5)
TEST(sparse, 5)
TEST(truncate, 5)
TEST(partial, 5)
TEST(crowd, 6)
TEST(stream, 6)
TEST(background, 5)
TEST(repair, 5)
TEST(lost, 2)
TEST(orphans, 5)
TEST(full, 4)
TEST(no_buffers, 5)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_edges),
		cmocka_unit_test(test_sparse),
		cmocka_unit_test(test_truncate),
		cmocka_unit_test(test_partial),
		cmocka_unit_test(test_crowd),
		cmocka_unit_test(test_stream),
		cmocka_unit_test(test_background),
		cmocka_unit_test(test_repair),
		cmocka_unit_test(test_lost),
		cmocka_unit_test(test_orphans),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_no_buffers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
