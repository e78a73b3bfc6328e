/*
 * Clones: what they cost and give back to the block, who sees what when one side changes, snapshots of either, the
 * cleaner under them, clones of many pieces, and the faults that fs check names. The random operations of model.h
 * have clones too, with crashes in test_posix_crash.c and snapshots in test_snapshot.c.
 */
#include "tests/fs/files_test.h"

#define BLOCKS 600u

static int t_clone(struct files_test *t, struct fs_id from, uint64_t from_block, struct fs_id to, uint64_t to_block,
	uint64_t blocks)
{
	return fs_clone(t->fs, &op_root, from, from_block * BLOCK_BYTES, to, to_block * BLOCK_BYTES,
		blocks * BLOCK_BYTES, NULL);
}

static void block_fill(uint8_t *to, uint32_t what)
{
	for (unsigned i = 0; i < BLOCK_BYTES; i += 8) {
		uint64_t x = hash_u64((uint64_t)what << 32 | i);
		memcpy(to + i, &x, 8);
	}
}

static int put(struct files_test *t, struct fs_id id, uint64_t b, uint32_t what)
{
	uint8_t block[BLOCK_BYTES];

	block_fill(block, what);
	return t_write(t, id, b * BLOCK_BYTES, block, BLOCK_BYTES, FS_UNSTABLE);
}

/* WHAT 0: zeros. */
static bool is(struct files_test *t, struct fs_id id, uint64_t b, uint32_t what)
{
	uint8_t block[BLOCK_BYTES], want[BLOCK_BYTES] = {0};

	if (what)
		block_fill(want, what);
	return t_read(t, id, b * BLOCK_BYTES, block, BLOCK_BYTES, NULL) == BLOCK_BYTES &&
	       memcmp(block, want, BLOCK_BYTES) == 0;
}

/* A file in which block B holds FIRST + B, every STEP-th one only. */
static int make(
	struct files_test *t, const char *name, uint32_t blocks, uint32_t step, uint32_t first, struct fs_id *id)
{
	int r = t_create(t, t->root, name, id);

	for (uint32_t b = 0; b < blocks && r == 0; b += step)
		r = put(t, *id, b, first + b);
	if (r == 0)
		r = t_truncate(t, *id, (uint64_t)blocks * BLOCK_BYTES);
	return r == 0 ? t_commit(t, *id) : r;
}

static uint64_t used(struct files_test *t, struct fs_id id)
{
	struct fs_attr attr = {0};

	fs_getattr(t->fs, id, &attr);
	return attr.used_bytes / BLOCK_BYTES;
}

static uint64_t live(struct files_test *t)
{
	return t->fs->space.live_data;
}

static void orphans_done(struct files_test *t)
{
	while (t->fs->files->orphan_running)
		fiber_sleep(NSEC_PER_MSEC);
}

static void body_space(void *arg)
{
	struct files_test *t = arg;
	struct fs_id a = {0}, b = {0}, c = {0};
	uint64_t base, found;
	bool eof;

	CHECK_OK(files_test_create(t, 6));
	base = live(t);
	CHECK_OK(make(t, "a", BLOCKS, 1, 1000, &a));
	CHECK_IS(live(t) - base, BLOCKS);
	CHECK_OK(t_create(t, t->root, "b", &b));
	CHECK_OK(t_clone(t, a, 0, b, 0, 0));
	/* shared to the last block */
	CHECK_IS(live(t) - base, BLOCKS);
	CHECK(used(t, a) == BLOCKS && used(t, b) == BLOCKS);
	for (unsigned i = 0; i < BLOCKS; i += 37)
		CHECK(is(t, a, i, 1000 + i) && is(t, b, i, 1000 + i));
	CHECK_IS(t_check(t), 0);
	/* the middle of it into a third one, over a block of its own, and once more elsewhere */
	CHECK_OK(make(t, "c", 20, 1, 5000, &c));
	CHECK_OK(t_clone(t, b, 100, c, 10, 50));
	CHECK_IS(live(t) - base, BLOCKS + 10);
	CHECK_OK(t_clone(t, b, 100, c, 200, 50));
	CHECK_IS(live(t) - base, BLOCKS + 10);
	CHECK(is(t, c, 9, 5009) && is(t, c, 10, 1100) && is(t, c, 59, 1149) && is(t, c, 100, 0) && is(t, c, 249, 1149));
	CHECK_OK(fs_seek(t->fs, &op_root, c, 0, FS_SEEK_HOLE, &found, &eof, NULL));
	CHECK(found == 60 * BLOCK_BYTES);
	CHECK_OK(fs_seek(t->fs, &op_root, c, found, FS_SEEK_DATA, &found, &eof, NULL));
	CHECK(found == 200 * BLOCK_BYTES);
	/* overwritten on one side: the others keep theirs */
	CHECK_OK(put(t, a, 120, 7));
	CHECK_OK(t_commit(t, a));
	CHECK_IS(live(t) - base, BLOCKS + 11);
	CHECK(is(t, a, 120, 7) && is(t, b, 120, 1120) && is(t, c, 30, 1120) && is(t, c, 220, 1120));
	CHECK_OK(files_test_remount(t));
	CHECK_IS(live(t) - base, BLOCKS + 11);
	CHECK(is(t, a, 120, 7) && is(t, b, 120, 1120) && is(t, c, 30, 1120) && is(t, c, 220, 1120));
	CHECK_IS(t_check(t), 0);
	/* punched on one side, cut on the other */
	CHECK_OK(fs_punch(t->fs, &op_root, a, 300 * BLOCK_BYTES, 100 * BLOCK_BYTES, NULL));
	CHECK_IS(live(t) - base, BLOCKS + 11);
	CHECK_OK(t_truncate(t, b, 350 * BLOCK_BYTES + 5));
	/* blocks 351 to 399 are in none any more; the tail of b is its own now, and that of a went before */
	CHECK_IS(live(t) - base, BLOCKS + 11 - 49);
	CHECK_IS(t_check(t), 0);
	/* both gone: what only c refers to is left */
	CHECK_OK(t_unlink(t, t->root, "a"));
	CHECK_OK(t_unlink(t, t->root, "b"));
	orphans_done(t);
	CHECK_IS(live(t) - base, 10 + 50);
	CHECK(is(t, c, 10, 1100) && is(t, c, 249, 1149));
	CHECK_IS(t_check(t), 0);
	CHECK_OK(fs_punch(t->fs, &op_root, c, 10 * BLOCK_BYTES, 25 * BLOCK_BYTES, NULL));
	CHECK_IS(live(t) - base, 10 + 50);
	CHECK_OK(fs_punch(t->fs, &op_root, c, 200 * BLOCK_BYTES, 25 * BLOCK_BYTES, NULL));
	CHECK_IS(live(t) - base, 10 + 25);
	CHECK_OK(t_unlink(t, t->root, "c"));
	orphans_done(t);
	CHECK_IS(live(t) - base, 0);
	CHECK_IS(t_check(t), 0);
	CHECK_OK(files_test_remount(t));
	CHECK_IS(live(t) - base, 0);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

static void body_rules(void *arg)
{
	struct files_test *t = arg;
	struct fs_cred user = {.uid = 77, .gid = 77};
	struct fs_op op_user = {.cred = &user};
	struct fs_id a = {0}, b = {0}, snap;
	struct fs_wcc wcc;
	struct fs_attr attr;
	uint8_t tail[6000];

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(make(t, "a", 10, 1, 1, &a));
	memset(tail, 'x', sizeof(tail));
	CHECK_OK(t_write(t, a, 10 * BLOCK_BYTES, tail, 100, FS_UNSTABLE)); /* not flushed before it is cloned */
	CHECK_OK(t_create(t, t->root, "b", &b));
	/* places and ends */
	CHECK_IS(fs_clone(t->fs, &op_root, a, 1, b, 0, 4096, NULL), -EINVAL);
	CHECK_IS(fs_clone(t->fs, &op_root, a, 0, b, 512, 4096, NULL), -EINVAL);
	CHECK_IS(fs_clone(t->fs, &op_root, a, 0, b, 0, 100, NULL), -EINVAL);
	CHECK_IS(t_clone(t, a, 10, b, 0, 1), -EINVAL);
	CHECK_IS(t_clone(t, a, 11, b, 0, 0), -EINVAL);
	CHECK_IS(t_clone(t, a, 0, a, 9, 10), -EINVAL);
	CHECK_IS(t_clone(t, a, 0, b, (FS_SIZE_MAX >> BLOCK_SHIFT) - 3, 10), -EFBIG);
	CHECK_IS(t_clone(t, t->root, 0, b, 0, 1), -EISDIR);
	CHECK_IS(t_clone(t, a, 0, t->root, 0, 1), -EISDIR);
	CHECK_IS(fs_clone(t->fs, &op_user, a, 0, b, 0, 4096, NULL), -EACCES);
	CHECK_IS(used(t, b), 0);
	/* up to the end, which is inside of a block */
	CHECK_OK(fs_clone(t->fs, &op_root, a, 4096, b, 3 * 4096, 0, &wcc));
	CHECK(wcc.valid && wcc.before.size == 0 && wcc.after.size == 12 * BLOCK_BYTES + 100 &&
		wcc.after.used_bytes == 10 * BLOCK_BYTES && wcc.after.change > wcc.before.change);
	CHECK(is(t, b, 2, 0) && is(t, b, 3, 2) && is(t, b, 11, 10));
	CHECK_IS(t_read(t, b, 12 * BLOCK_BYTES, tail, sizeof(tail), NULL), 100);
	CHECK(tail[0] == 'x' && tail[99] == 'x');
	/* growing shows zeros, on both sides */
	CHECK_OK(t_truncate(t, b, 14 * BLOCK_BYTES));
	CHECK_IS(t_read(t, b, 12 * BLOCK_BYTES, tail, sizeof(tail), NULL), sizeof(tail));
	CHECK(tail[99] == 'x' && tail[100] == 0 && tail[5999] == 0);
	/* such an end must be the end of the other one too */
	CHECK_IS(fs_clone(t->fs, &op_root, a, 10 * BLOCK_BYTES, b, 0, 100, NULL), -EINVAL);
	CHECK_OK(fs_clone(t->fs, &op_root, a, 10 * BLOCK_BYTES, b, 14 * BLOCK_BYTES, 100, NULL));
	/* within a file; nothing at all; holes take away what was there */
	CHECK_OK(t_clone(t, a, 0, a, 20, 5));
	CHECK(is(t, a, 20, 1) && is(t, a, 24, 5));
	CHECK_OK(fs_clone(t->fs, &op_root, a, 25 * BLOCK_BYTES, b, 0, 0, NULL));
	CHECK_OK(t_clone(t, a, 12, b, 3, 4));
	CHECK(is(t, b, 3, 0) && is(t, b, 6, 0) && is(t, b, 7, 6));
	CHECK_IS(t_check(t), 0);
	/* out of a snapshot, but not into one */
	CHECK_OK(fs_snapshot_create(t->fs, "s"));
	CHECK_OK(put(t, a, 0, 99));
	CHECK_OK(t_commit(t, a));
	CHECK_OK(t_lookup(t, t->root, ".snapshot", &attr));
	CHECK_OK(t_lookup(t, attr.id, "s", &attr));
	CHECK_OK(t_lookup(t, attr.id, "a", &attr));
	snap = attr.id;
	CHECK_IS(t_clone(t, b, 0, snap, 0, 1), -EROFS);
	CHECK_OK(t_clone(t, snap, 0, b, 0, 25));
	CHECK(is(t, b, 0, 1) && is(t, a, 0, 99) && is(t, snap, 0, 1) && is(t, b, 24, 5));
	CHECK_IS(t_check(t), 0);
	CHECK_OK(fs_snapshot_delete(t->fs, "s"));
	CHECK_OK(fs_snapshots_wait(t->fs));
	CHECK(is(t, b, 0, 1) && is(t, a, 0, 99));
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

/* What snapshots of either side hold stays, and all of it comes back. */
static void body_snapshots(void *arg)
{
	struct files_test *t = arg;
	struct fs_id a = {0}, b = {0};
	uint64_t base;

	CHECK_OK(files_test_create(t, 6));
	base = live(t);
	CHECK_OK(make(t, "a", BLOCKS, 1, 1000, &a));
	CHECK_OK(fs_snapshot_create(t->fs, "before"));
	CHECK_OK(t_create(t, t->root, "b", &b));
	CHECK_OK(t_clone(t, a, 0, b, 0, 0));
	CHECK_IS(live(t) - base, BLOCKS);
	CHECK_OK(fs_snapshot_create(t->fs, "both"));
	for (unsigned i = 0; i < BLOCKS; i += 2)
		CHECK_OK(put(t, b, i, 3));
	CHECK_OK(t_commit(t, b));
	CHECK_IS(live(t) - base, BLOCKS + BLOCKS / 2);
	CHECK_OK(t_unlink(t, t->root, "a"));
	orphans_done(t);
	CHECK_IS(live(t) - base, BLOCKS + BLOCKS / 2);
	CHECK_IS(t_check(t), 0);
	CHECK_OK(fs_snapshot_delete(t->fs, "before"));
	CHECK_OK(fs_snapshots_wait(t->fs));
	CHECK_IS(live(t) - base, BLOCKS + BLOCKS / 2);
	CHECK_IS(t_check(t), 0);
	CHECK_OK(fs_snapshot_delete(t->fs, "both"));
	CHECK_OK(fs_snapshots_wait(t->fs));
	CHECK_IS(live(t) - base, BLOCKS);
	CHECK(is(t, b, 0, 3) && is(t, b, 1, 1001));
	CHECK_IS(t_check(t), 0);
	CHECK_OK(t_unlink(t, t->root, "b"));
	orphans_done(t);
	CHECK_IS(live(t) - base, 0);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

/* More than one transaction holds; then the fragments go again. */
static void body_pieces(void *arg)
{
	struct files_test *t = arg;
	const uint32_t blocks = 14000;
	struct fs_id a = {0}, b = {0};
	uint64_t base;

	CHECK_OK(files_test_create(t, 6));
	base = live(t);
	CHECK_OK(make(t, "a", blocks, 2, 1, &a));
	CHECK_OK(make(t, "b", blocks, 3, 50000, &b));
	CHECK_OK(t_clone(t, a, 0, b, 0, 0));
	CHECK_IS(live(t) - base, blocks / 2);
	CHECK_IS(used(t, b), blocks / 2);
	for (uint32_t i = 0; i < blocks; i += 101)
		CHECK(is(t, b, i, i % 2 ? 0 : 1 + i));
	CHECK(!t->fs->files->halves);
	CHECK_OK(fs_snapshot_create(t->fs, "s"));
	CHECK_IS(t_check(t), 0);
	CHECK_OK(t_unlink(t, t->root, "a"));
	CHECK_OK(t_truncate(t, b, 0));
	orphans_done(t);
	CHECK_OK(fs_snapshot_delete(t->fs, "s"));
	CHECK_OK(fs_snapshots_wait(t->fs));
	CHECK_IS(live(t) - base, 0);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

/* A small array: overwriting empties stripes by moving what is shared, too. */
static void body_cleaner(void *arg)
{
	struct files_test *t = arg;
	const uint32_t blocks = 2500, churn = 4000;
	struct fs_id a = {0}, b = {0}, c = {0};
	uint64_t seed = 5, moved;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "a", &a));
	CHECK_OK(t_create(t, t->root, "c", &c));
	for (uint32_t i = 0; i < churn; i++) {
		CHECK_OK(put(t, c, i, i + 1));
		if (i < blocks)
			CHECK_OK(put(t, a, i, 100000 + i));
		if (i % 64 == 0) {
			CHECK_OK(t_commit(t, a));
			CHECK_OK(t_commit(t, c));
		}
	}
	CHECK_OK(t_commit(t, a));
	CHECK_OK(t_create(t, t->root, "b", &b));
	CHECK_OK(t_clone(t, a, 0, b, 10, 0));
	/* every other shared block goes */
	for (uint32_t i = 0; i < blocks; i += 2) {
		CHECK_OK(fs_punch(t->fs, &op_root, a, (uint64_t)i * BLOCK_BYTES, BLOCK_BYTES, NULL));
		CHECK_OK(fs_punch(t->fs, &op_root, b, (uint64_t)(i + 10) * BLOCK_BYTES, BLOCK_BYTES, NULL));
	}
	moved = 0;
	for (uint32_t i = 0; i < 30000; i++) {
		uint32_t at = test_below(&seed, churn);
		uint8_t block[BLOCK_BYTES];

		block_fill(block, at + 1);
		CHECK_OK(t_write(t, c, (uint64_t)at * BLOCK_BYTES, block, BLOCK_BYTES, FS_FILE_SYNC));
	}
	moved = t->fs->cleaner.moved_blocks;
	CHECK(moved > 0);
	for (uint32_t i = 0; i < blocks; i++)
		CHECK(is(t, a, i, i % 2 ? 100000 + i : 0) && is(t, b, i + 10, i % 2 ? 100000 + i : 0));
	/* and some of what was moved was shared */
	moved = 0;
	for (struct fs_key key = {.type = KEY_SUMMARY};; key.snap++) {
		struct summary_disk d;
		int r = tree_next(t->fs, &key, &d, sizeof(d));

		if (r < 0 || key.ino || key.type != KEY_SUMMARY)
			break;
		moved += key.snap == 1;
	}
	CHECK(moved > blocks / 128 + 10);
	CHECK_IS(t_check(t), 0);
	CHECK_OK(files_test_remount(t));
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

/* ------------------------------------------------------------------------------------------------
 * Faults
 */

struct raw {
	struct fs_key key;
	const void *val;
	size_t len;
};
static int raw_pass(struct tx *tx, void *arg)
{
	const struct raw *raw = arg;

	return raw->val ? tx_put_any(tx, &raw->key, raw->val, raw->len) : tx_delete_any(tx, &raw->key);
}

static char first_problem[256];
static void keep_first(void *arg, const char *problem)
{
	if ((*(unsigned *)arg)++ == 0)
		snprintf(first_problem, sizeof(first_problem), "%s", problem);
}
static unsigned problems(struct files_test *t)
{
	struct fs_check_result result;
	unsigned n = 0;

	return fs_check(t->fs, true, keep_first, NULL, &n, &result) < 0 ? UINT32_MAX : n;
}

/* Puts VAL (NULL: deletes) at KEY: check must say WORD, and nothing when it is put back. */
static void spoil(struct files_test *t, struct fs_key key, const void *val, size_t len, const char *word)
{
	uint8_t old[TREE_VALUE_MAX];
	int had = tree_get(t->fs, &key, old, sizeof(old));
	struct raw bad = {key, val, len}, back = {key, had < 0 ? NULL : old, had < 0 ? 0 : (size_t)had};

	CHECK_OK(fs_transact_durable(t->fs, raw_pass, &bad));
	if (problems(t) == 0 || !strstr(first_problem, word))
		CHECK_FAILED("first \"%s\", expected \"%s\"", first_problem, word);
	CHECK_OK(fs_transact_durable(t->fs, raw_pass, &back));
	CHECK_IS(problems(t), 0);
}

static void body_faults(void *arg)
{
	struct files_test *t = arg;
	struct fs_key share = {.type = KEY_SHARE}, owner = {.ino = FS_SHARED_INO, .type = KEY_EXTENT}, ref;
	struct share_disk d;
	uint8_t val[TREE_VALUE_MAX];
	struct fs_id a = {0}, b = {0};
	int len;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(make(t, "a", 100, 1, 1, &a));
	CHECK_OK(t_create(t, t->root, "b", &b));
	CHECK_OK(t_clone(t, a, 0, b, 0, 50));
	CHECK_IS(problems(t), 0);
	CHECK_IS(tree_next(t->fs, &share, &d, sizeof(d)), sizeof(d));
	CHECK(le32_get(d.refs) == 2 && le64_get(d.count) == 50);
	spoil(t, share, NULL, 0, "records refer to them");
	d.refs = le32_put(3);
	spoil(t, share, &d, sizeof(d), "2 records refer to them, the count says 3");
	d.refs = le32_put(1);
	spoil(t, share, &d, sizeof(d), "the count says 1");
	d.refs = le32_put(0);
	spoil(t, share, &d, sizeof(d), "makes no sense");
	d.refs = le32_put(2);
	d.count = le64_put(49);
	spoil(t, share, &d, sizeof(d), "shared blocks 49 to 49");
	d.count = le64_put(0);
	spoil(t, share, &d, sizeof(d), "makes no sense");
	spoil(t, share, &d, 3, "makes no sense");
	CHECK(!test_failure[0]);
	share.off += 5000;
	d.count = le64_put(2);
	spoil(t, share, &d, sizeof(d), "shared blocks 5000 to 5001");
	CHECK(!test_failure[0]);
	/* the owner of what is shared */
	CHECK(tree_next(t->fs, &owner, val, sizeof(val)) > 0);
	CHECK(owner.ino == FS_SHARED_INO);
	spoil(t, owner, NULL, 0, "");
	spoil(t, owner, val, 20, "makes no sense");
	CHECK(!test_failure[0]);
	/* references */
	ref = (struct fs_key){.ino = b.ino, .type = KEY_EXTENT};
	len = tree_get(t->fs, &ref, val, sizeof(val));
	CHECK_IS(len, EXTENT_REF_BYTES);
	((struct extent_disk *)(void *)val)->block = le64_put(1);
	spoil(t, ref, val, (size_t)len, "records refer to them");
	((struct extent_disk *)(void *)val)->block = le64_put(1ull << 50);
	spoil(t, ref, val, (size_t)len, "makes no sense");
	CHECK(!test_failure[0]);
	/* data that cannot be read is told of both files */
	CHECK(tree_get(t->fs, &owner, val, sizeof(val)) > 0);
	val[sizeof(struct extent_disk)] ^= 1;
	len = tree_get(t->fs, &owner, val, sizeof(val));
	val[sizeof(struct extent_disk)] ^= 1;
	spoil(t, owner, val, (size_t)len, "cannot be read");
	files_test_close(t);
}

/* ------------------------------------------------------------------------------------------------
 */

static void run(void (*body)(void *), uint64_t bytes, bool quiet)
{
	static struct files_test t;
	int threshold = atomic_load(&log_threshold);

	if (quiet)
		atomic_store(&log_threshold, -1);
	files_test_drives(&t, 5, bytes);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
	atomic_store(&log_threshold, threshold);
}
static void test_space(void **state)
{
	(void)state;
	run(body_space, 64ull << 20, false);
}
static void test_rules(void **state)
{
	(void)state;
	run(body_rules, 64ull << 20, false);
}
static void test_snapshots(void **state)
{
	(void)state;
	run(body_snapshots, 64ull << 20, false);
}
static void test_pieces(void **state)
{
	(void)state;
	run(body_pieces, 96ull << 20, false);
}
static void test_cleaner(void **state)
{
	(void)state;
	run(body_cleaner, 20ull << 20, false);
}
static void test_faults(void **state)
{
	(void)state;
	run(body_faults, 64ull << 20, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_space),
		cmocka_unit_test(test_rules),
		cmocka_unit_test(test_snapshots),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_cleaner),
		cmocka_unit_test(test_faults),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
