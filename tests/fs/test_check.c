/*
 * fs check finds what it should find, and nothing on a file system that is whole, busy or not; read-only
 * mounts; what a failed file system answers.
 */
#include "tests/fs/files_test.h"

struct raw {
	struct fs_key key;
	const void *val;
	size_t len;
	bool remove;
	uint64_t add_block; /* also count this block as live */
};

static int raw_pass(struct tx *tx, void *arg)
{
	const struct raw *raw = arg;
	int r = raw->add_block ? tx_blocks_add(tx, raw->add_block, 1) : 0;

	if (r < 0 || (!raw->val && !raw->remove))
		return r;
	return raw->remove ? tx_delete(tx, &raw->key) : tx_put(tx, &raw->key, raw->val, raw->len);
}

static int raw_do(struct files_test *t, const struct raw *raw)
{
	struct raw copy = *raw;

	return fs_transact_durable(t->fs, raw_pass, &copy);
}

static int raw_get(struct files_test *t, struct fs_key key, void *val, size_t room)
{
	return tree_get(t->fs, &key, val, room);
}

static unsigned quiet_problems;
static char quiet_first[256];
static void quiet_report(void *arg, const char *problem)
{
	(void)arg;
	if (quiet_problems++ == 0)
		snprintf(quiet_first, sizeof(quiet_first), "%s", problem);
}

static int quiet_check(struct files_test *t)
{
	struct fs_check_result result;
	int r;

	quiet_problems = 0;
	r = fs_check(t->fs, true, quiet_report, NULL, NULL, &result);
	if (r == 0 && result.errors != quiet_problems)
		return -EBADMSG;
	return r < 0 ? r : (int)quiet_problems;
}

/* Puts VAL (NULL: deletes) at KEY: check must say WORD, and nothing when it is put back. */
static void spoil(struct files_test *t, struct fs_key key, const void *val, size_t len, const char *word)
{
	static uint8_t old[TREE_VALUE_MAX];
	int had = raw_get(t, key, old, sizeof(old));
	struct raw bad = {.key = key, .val = val, .len = len, .remove = !val};
	struct raw back = {.key = key, .val = old, .len = had > 0 ? (size_t)had : 0, .remove = had < 0};
	int n;

	if (raw_do(t, &bad) < 0)
		CHECK_FAILED("could not spoil for \"%s\"", word);
	n = quiet_check(t);
	if (n < 1 || !strstr(quiet_first, word))
		CHECK_FAILED("%d problems, first \"%s\", expected \"%s\"", n, quiet_first, word);
	if (raw_do(t, &back) < 0)
		CHECK_FAILED("could not put back");
	n = quiet_check(t);
	if (n != 0)
		CHECK_FAILED("%d problems after \"%s\" was put back: %s", n, word, quiet_first);
}

/* The inode's record on the drives, changed. The cache does not see it; check reads the tree. */
#define SPOIL_INODE(id, field, value, word)                                                                            \
	do {                                                                                                           \
		struct inode_disk d_;                                                                                  \
		struct fs_key k_ = {.ino = (id).ino, .type = KEY_INODE};                                               \
		CHECK(raw_get(t, k_, &d_, sizeof(d_)) == (int)sizeof(d_));                                             \
		d_.field = value;                                                                                      \
		spoil(t, k_, &d_, sizeof(d_), word);                                                                   \
		CHECK(!test_failure[0]);                                                                               \
	} while (0)

static void body_faults(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(1u << 20), garbage[64], value[TREE_VALUE_MAX];
	struct fs_id d = {0}, e = {0}, f = {0}, g = {0}, s;
	struct fs_attr attr;
	struct fs_key name_key, key;
	struct entry_disk *entry = (void *)value;
	struct extent_disk *extent = (void *)value;
	struct raw raw = {0};
	int len;

	CHECK_OK(files_test_create(t, 6));
	memset(garbage, 0x5a, sizeof(garbage));
	for (unsigned i = 0; i < 1u << 20; i++)
		data[i] = (uint8_t)hash_u64(i);
	CHECK_OK(t_mkdir(t, t->root, "d", &d));
	CHECK_OK(t_mkdir(t, d, "e", &e));
	CHECK_OK(t_create(t, d, "f", &f));
	CHECK_OK(t_create(t, d, "g", &g));
	CHECK_OK(fs_symlink(t->fs, &op_root, d, "s", 1, "target", 6, NULL, &attr, NULL));
	s = attr.id;
	CHECK_OK(t_write(t, f, 0, data, 1u << 20, FS_FILE_SYNC));
	CHECK_OK(t_write(t, g, 8192, data, 8192, FS_FILE_SYNC));
	CHECK_IS(t_check(t), 0);
	/* values that make no sense */
	spoil(t, (struct fs_key){.ino = f.ino, .type = KEY_INODE}, garbage, sizeof(garbage), "makes no sense");
	CHECK(!test_failure[0]);
	spoil(t, (struct fs_key){.ino = d.ino, .type = KEY_ENTRY, .off = 3}, garbage, 20, "makes no sense");
	CHECK(!test_failure[0]);
	spoil(t, (struct fs_key){.ino = f.ino, .type = KEY_EXTENT, .off = 0}, garbage, 40, "makes no sense");
	CHECK(!test_failure[0]);
	spoil(t, (struct fs_key){.type = KEY_ORPHAN, .off = 4}, garbage, 3, "makes no sense");
	CHECK(!test_failure[0]);
	spoil(t, (struct fs_key){.type = KEY_STATE, .off = 1}, garbage, 30, "makes no sense");
	CHECK(!test_failure[0]);
	spoil(t, (struct fs_key){.ino = f.ino, .type = 99}, garbage, 3, "unknown type");
	CHECK(!test_failure[0]);
	/* names */
	spoil(t, (struct fs_key){.ino = d.ino, .type = KEY_ENTRY, .off = 4}, NULL, 0, "has no entry");
	CHECK(!test_failure[0]);
	name_key = (struct fs_key){.ino = d.ino, .type = KEY_NAME, .off = name_hash(t->fs, "g", 1) << 8};
	spoil(t, name_key, NULL, 0, "has no name");
	CHECK(!test_failure[0]);
	key = (struct fs_key){.ino = d.ino, .type = KEY_ENTRY, .off = 4};
	len = raw_get(t, key, value, sizeof(value));
	entry->ino = le64_put(g.ino);
	spoil(t, key, value, (size_t)len, "differ");
	CHECK(!test_failure[0]);
	name_key.off += 7 << 8;
	len = raw_get(t, (struct fs_key){.ino = d.ino, .type = KEY_NAME, .off = name_key.off - (7 << 8)}, value,
		sizeof(value));
	CHECK(len > 0);
	spoil(t, name_key, value, (size_t)len, "wrong hash");
	CHECK(!test_failure[0]);
	/* inodes */
	spoil(t, (struct fs_key){.ino = s.ino, .type = KEY_INODE}, NULL, 0, "no inode");
	CHECK(!test_failure[0]);
	spoil(t, (struct fs_key){.ino = e.ino, .type = KEY_INODE}, NULL, 0, "not there");
	CHECK(!test_failure[0]);
	SPOIL_INODE(f, nlink, le32_put(2), "links");
	SPOIL_INODE(f, generation, le32_put(12345), "not what its name says");
	SPOIL_INODE(f, type, FS_FIFO, "");
	SPOIL_INODE(f, size, le64_put(5000), "data goes up to");
	SPOIL_INODE(f, blocks, le64_put(1), "blocks of data");
	SPOIL_INODE(d, size, le64_put(9), "entries");
	SPOIL_INODE(d, nlink, le32_put(2), "links");
	SPOIL_INODE(d, next_seq, le64_put(4), "the next one is");
	SPOIL_INODE(e, aux, le64_put(FS_ROOT_INO), "parent");
	SPOIL_INODE(e, aux, le64_put(e.ino), "");
	SPOIL_INODE(s, size, le64_put(5), "symbolic link");
	spoil(t, (struct fs_key){.type = KEY_ORPHAN, .off = f.ino}, "\1\0\0\0\0\0\0", 8, "orphan");
	CHECK(!test_failure[0]);
	/* extents */
	key = (struct fs_key){.ino = g.ino, .type = KEY_EXTENT, .off = 2};
	len = raw_get(t, key, value, sizeof(value));
	CHECK(len > 0);
	value[sizeof(*extent)] ^= 1;
	spoil(t, key, value, (size_t)len, "cannot be read");
	CHECK(!test_failure[0]);
	spoil(t, key, NULL, 0, "blocks of data");
	CHECK(!test_failure[0]);
	{
		struct extent_disk other;
		uint8_t of_f[TREE_VALUE_MAX];

		len = raw_get(t, key, value, sizeof(value));
		CHECK(raw_get(t, (struct fs_key){.ino = f.ino, .type = KEY_EXTENT}, of_f, sizeof(of_f)) > 0);
		memcpy(&other, of_f, sizeof(other));
		extent->block = other.block;
		spoil(t, key, value, (size_t)len, "used twice");
		CHECK(!test_failure[0]);
	}
	len = raw_get(t, (struct fs_key){.ino = f.ino, .type = KEY_EXTENT}, value, sizeof(value));
	CHECK(len > 0 && le32_get(extent->count) > 1);
	spoil(t, (struct fs_key){.ino = f.ino, .type = KEY_EXTENT, .off = 1}, value, (size_t)len, "overlaps");
	CHECK(!test_failure[0]);
	/* counts of stripes */
	len = raw_get(t, (struct fs_key){.ino = g.ino, .type = KEY_EXTENT, .off = 2}, value, sizeof(value));
	raw.add_block = le64_get(extent->block);
	CHECK_OK(raw_do(t, &raw));
	CHECK(quiet_check(t) == 1 && strstr(quiet_first, "stripe"));
	files_test_close(t);
	free(data);
}

/* ------------------------------------------------------------------------------------------------
 * Busy
 */

struct busy {
	struct files_test *t;
	bool stop;
	unsigned next, done;
	struct wait_group wait;
};

static void busy_fiber(void *arg)
{
	struct busy *b = arg;
	unsigned me = b->next++;
	uint8_t *data = calloc(1, 50000);
	char name[32], name2[32];
	struct fs_id f;
	int r = 0;

	for (unsigned i = 0; !b->stop && r == 0; i++) {
		snprintf(name, sizeof(name), "busy%u-%u", me, i % 20);
		snprintf(name2, sizeof(name2), "other%u-%u", me, i % 20);
		r = t_create(b->t, b->t->root, name, &f);
		if (r == 0)
			r = t_write(
				b->t, f, i % 9 * 5000, data, 50000 - i % 7 * 5000, i % 3 ? FS_UNSTABLE : FS_FILE_SYNC);
		if (r == 0 && i % 2)
			r = t_rename(b->t, b->t->root, name, b->t->root, name2);
		if (r == 0)
			r = t_unlink(b->t, b->t->root, i % 2 ? name2 : name);
		b->done++;
	}
	free(data);
	wait_group_done(&b->wait, r);
}

static void body_busy(void *arg)
{
	struct files_test *t = arg;
	struct busy b = {.t = t};
	struct fs_id id;
	char name[32];

	CHECK_OK(files_test_create(t, 6));
	for (unsigned i = 0; i < 200; i++) {
		snprintf(name, sizeof(name), "static%u", i);
		CHECK_OK(t_create(t, t->root, name, &id));
		CHECK_OK(t_write(t, id, 0, name, 20, FS_UNSTABLE));
	}
	wait_group_init(&b.wait);
	for (unsigned i = 0; i < 3; i++) {
		wait_group_add(&b.wait, 1);
		CHECK_OK(fiber_spawn(busy_fiber, &b));
	}
	for (unsigned i = 0; i < 5; i++)
		CHECK_IS(t_check(t), 0);
	b.stop = true;
	CHECK_OK(wait_group_wait(&b.wait));
	CHECK(b.done > 10);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

/* ------------------------------------------------------------------------------------------------
 * Read-only, and failed
 */

static void body_read_only(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(100000), *back = malloc(100000);
	struct fs_attr attr;
	struct fs_id f, id;

	CHECK_OK(files_test_create(t, 6));
	memset(data, 'r', 100000);
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(t_write(t, f, 0, data, 100000, FS_FILE_SYNC));
	/* not unmounted in order: the log is replayed in memory only */
	for (unsigned i = 0; i < t->count; i++)
		fault_power_cut(t->path[i], 1, 1000);
	files_test_close(t);
	fault_reset();
	t->options.read_only = true;
	CHECK_OK(files_test_open(t));
	CHECK_IS(t_read(t, f, 0, back, 100000, NULL), 100000);
	CHECK(memcmp(data, back, 100000) == 0);
	CHECK_IS(t_create(t, t->root, "x", &id), -EROFS);
	CHECK_IS(t_write(t, f, 0, data, 1, FS_UNSTABLE), -EROFS);
	CHECK_IS(t_truncate(t, f, 0), -EROFS);
	CHECK_IS(t_commit(t, f), -EROFS);
	CHECK_IS(t_unlink(t, t->root, "f"), -EROFS);
	CHECK_OK(t_lookup(t, t->root, "f", &attr));
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	t->options.read_only = false;
	CHECK_OK(files_test_open(t));
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
	free(back);
}

/* Unstable data that cannot be stored: the commit fails, and the verifier tells. */
static void body_failed(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = calloc(1, 100000);
	uint64_t verifier;
	struct fs_id f;
	int r;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(t_write(t, f, 0, data, 100000, FS_UNSTABLE));
	verifier = fs_write_verifier(t->fs);
	for (unsigned i = 0; i < t->count; i++)
		fault_power_cut(t->path[i], 1, 0);
	r = t_commit(t, f);
	CHECK(r == -EIO || r == -EROFS);
	CHECK(fs_write_verifier(t->fs) != verifier);
	r = t_write(t, f, 0, data, 100, FS_FILE_SYNC);
	CHECK(r == -EIO || r == -EROFS);
	CHECK(t_create(t, t->root, "x", &f) < 0);
	files_test_close(t);
	fault_reset();
	CHECK_OK(files_test_open(t));
	CHECK(fs_write_verifier(t->fs) != verifier);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(data);
}

/* A check that is not to go on ends at whichever step it is, and reports nothing. */
static bool calls_left(void *arg, uint64_t done, uint64_t total)
{
	unsigned *left = arg;

	return total >= done && *left && --*left;
}

static void body_cancelled(void *arg)
{
	struct files_test *t = arg;
	struct fs_check_result result;
	unsigned left = 0, calls = 0;

	CHECK_OK(files_test_create(t, 6));
	for (unsigned i = 0; i < 20; i++) {
		struct fs_id f;
		char name[16];

		snprintf(name, sizeof(name), "f%u", i);
		CHECK_OK(t_create(t, t->root, name, &f));
		CHECK_OK(t_write(t, f, 0, name, 4, FS_FILE_SYNC));
	}
	quiet_problems = 0;
	for (unsigned i = 1; i < 1000; i++) {
		int r;

		left = i;
		r = fs_check(t->fs, true, quiet_report, calls_left, &left, &result);
		CHECK(quiet_problems == 0);
		CHECK_IS(r, left ? 0 : -ECANCELED);
		if (r == 0)
			break;
		calls++;
	}
	CHECK(calls > 40); /* once for each inode, each extent, each node */
	CHECK(left);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

static void run(void (*body)(void *), unsigned drives)
{
	static struct files_test t;
	int threshold = atomic_load(&log_threshold);

	atomic_store(&log_threshold, -1);
	files_test_drives(&t, drives, 64ull << 20);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
	atomic_store(&log_threshold, threshold);
}

static void test_faults(void **state)
{
	(void)state;
	run(body_faults, 5);
}
static void test_busy(void **state)
{
	(void)state;
	run(body_busy, 5);
}
static void test_read_only(void **state)
{
	(void)state;
	run(body_read_only, 5);
}
static void test_failed(void **state)
{
	(void)state;
	run(body_failed, 5);
}
static void test_cancelled(void **state)
{
	(void)state;
	run(body_cancelled, 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_busy),
		cmocka_unit_test(test_read_only),
		cmocka_unit_test(test_failed),
		cmocka_unit_test(test_cancelled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
