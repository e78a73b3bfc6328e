/*
 * Snapshots against models: random operations of one fiber on the live file system, snapshots made and
 * deleted in any order meanwhile, each compared with a copy of the model of its time; with the cleaner moving blocks,
 * remounts, and power cuts in the middle. Then names, handles, errors, and the space that comes back.
 */
#include "tests/fs/model.h"

#define KEPT 5

struct kept {
	bool used;
	char name[16];
	uint32_t id;
	struct model m;
};

static struct model live;
static struct kept kept[KEPT];

struct find {
	const char *name;
	uint32_t id;
};
static void find_one(void *arg, const struct fs_snapshot *s)
{
	struct find *f = arg;

	if (strcmp(s->name, f->name) == 0 && !s->deleting)
		f->id = s->id;
}
static uint32_t find_id(struct files_test *t, const char *name)
{
	struct find f = {.name = name};

	fs_snapshot_list(t->fs, find_one, &f);
	return f.id;
}

static int compare_all(struct files_test *t)
{
	const char *wrong = model_compare(t, &live, NULL);

	if (wrong)
		CHECK_FAILED("live: %s", wrong);
	for (unsigned i = 0; i < KEPT && !wrong; i++) {
		if (!kept[i].used)
			continue;
		kept[i].m.node[0].id.snap = kept[i].id;
		wrong = model_compare(t, &kept[i].m, NULL);
		if (wrong)
			CHECK_FAILED("snapshot %s: %s", kept[i].name, wrong);
	}
	return wrong != NULL;
}

static int keep(struct files_test *t, unsigned i, unsigned number)
{
	int r;

	snprintf(kept[i].name, sizeof(kept[i].name), "snap%u", number);
	r = fs_snapshot_create(t->fs, kept[i].name);
	if (r < 0)
		return r;
	kept[i].id = find_id(t, kept[i].name);
	kept[i].used = true;
	model_clone(&kept[i].m, &live);
	/* the handles differ by the snapshot: taken from the names */
	for (unsigned n = 1; n < MODEL_NODES; n++)
		kept[i].m.node[n].id = (struct fs_id){0};
	return 0;
}

static int let_go(struct files_test *t, unsigned i)
{
	kept[i].used = false;
	model_free(&kept[i].m);
	return fs_snapshot_delete(t->fs, kept[i].name);
}

static bool crashing;

static void body_model(void *arg)
{
	struct files_test *t = arg;
	struct model_op *op = malloc(sizeof(*op));
	uint64_t seed = getenv("FURROW_SEED") ? strtoull(getenv("FURROW_SEED"), NULL, 0) : 20261130;
	unsigned rounds = getenv("FURROW_ROUNDS") ? (unsigned)atoi(getenv("FURROW_ROUNDS")) : 14, number = 0;
	struct fs_id dir = {0};

	printf("seed %llu\n", (unsigned long long)seed);
	t->options.cache_bytes = 1u << 20;
	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_mkdir(t, t->root, "fiber", &dir));
	model_init(&live, dir);
	for (unsigned round = 0; round < rounds; round++) {
		unsigned i = test_below(&seed, KEPT), steps = 60 + test_below(&seed, 60);

		if (crashing) {
			files_test_close(t);
			for (unsigned d = 0; d < t->count; d++)
				fault_volatile_cache(t->path[d], true);
			CHECK_OK(files_test_open(t));
		}
		if (kept[i].used)
			CHECK_OK(let_go(t, i));
		if (round % 4 != 3)
			CHECK_OK(keep(t, i, number++));
		for (unsigned step = 0; step < steps; step++) {
			int want, got;

			model_op_random(&live, op, &seed, crashing);
			got = real_apply(t, &live, op);
			want = model_apply(&live, op);
			if (got != want)
				CHECK_FAILED(
					"round %u step %u: %s: is %d, not %d", round, step, op_text(op), got, want);
			CHECK(!test_failure[0]);
		}
		if (crashing) {
			/* a deletion is on its way when the power goes */
			for (i = 0; i < KEPT && !kept[i].used; i++)
				;
			if (i < KEPT)
				CHECK_OK(let_go(t, i));
			if (i < KEPT && round % 2)
				fiber_yield();
			for (unsigned d = 0; d < t->count; d++)
				fault_power_cut(t->path[d], test_random(&seed), test_below(&seed, 3) * 500);
			files_test_close(t);
			fault_reset();
			CHECK_OK(files_test_open(t));
		} else if (round % 3 == 2) {
			CHECK_OK(files_test_remount(t));
		}
		if (compare_all(t))
			CHECK_FAILED("seed %llu round %u", (unsigned long long)seed, round);
		CHECK(!test_failure[0]);
		CHECK_IS(t_check(t), 0);
	}
	for (unsigned i = 0; i < KEPT; i++)
		if (kept[i].used)
			CHECK_OK(let_go(t, i));
	CHECK_OK(fs_snapshots_wait(t->fs));
	CHECK(!compare_all(t));
	CHECK_IS(t_check(t), 0);
	model_free(&live);
	free(op);
	files_test_close(t);
}

static uint64_t live_blocks(struct files_test *t)
{
	uint64_t sum = 0;

	for (uint64_t s = 0; s < t->fs->geometry.stripes; s++) {
		uint32_t live_count;
		bool nodes;

		if (space_stripe_info(t->fs, s, &live_count, &nodes) == 0 && !nodes)
			sum += live_count;
	}
	return sum;
}

static bool count_entry(void *arg, const struct fs_dirent *e)
{
	unsigned *n = arg;

	*n += e->cookie > 2;
	return e->name_len != 9 || memcmp(e->name, ".snapshot", 9) != 0;
}

static void count_one(void *arg, const struct fs_snapshot *s)
{
	unsigned *n = arg;

	*n += !s->deleting;
}

/* 2 MiB that SEED chooses. */
static int put_file(struct files_test *t, struct fs_id id, uint8_t *data, uint8_t seed)
{
	memset(data, seed, 1u << 20);
	int r = t_write(t, id, 0, data, 1u << 20, FS_FILE_SYNC);
	return r < 0 ? r : t_write(t, id, 1u << 20, data, 1u << 20, FS_FILE_SYNC);
}

static void body_rules(void *arg)
{
	struct files_test *t = arg;
	uint8_t *data = malloc(1u << 20);
	struct fs_attr dot, a, b, attr, other;
	struct fs_setattr set = {.set = FS_SET_MODE, .mode = 0600};
	unsigned entries = 0, listed = 0;
	uint64_t used, copied;
	struct fs_id id;
	char byte, name[300];
	bool eof;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "file", &id));
	CHECK_OK(put_file(t, id, data, 1));
	CHECK_OK(fs_setxattr(t->fs, &op_root, id, "user.a", 6, "old", 3, FS_XATTR_EITHER, NULL));
	CHECK_OK(t_lookup(t, t->root, ".snapshot", &dot));
	CHECK(dot.type == FS_DIR && dot.nlink == 2);
	/* names */
	CHECK_IS(fs_snapshot_create(t->fs, ""), -EINVAL);
	CHECK_IS(fs_snapshot_create(t->fs, ".x"), -EINVAL);
	CHECK_IS(fs_snapshot_create(t->fs, "a/b"), -EINVAL);
	memset(name, 'n', sizeof(name));
	name[256] = 0;
	CHECK_IS(fs_snapshot_create(t->fs, name), -ENAMETOOLONG);
	name[255] = 0;
	CHECK_OK(fs_snapshot_create(t->fs, "a"));
	CHECK_IS(fs_snapshot_create(t->fs, "a"), -EEXIST);
	CHECK_IS(fs_snapshot_delete(t->fs, "b"), -ENOENT);
	used = live_blocks(t);
	CHECK_IS(used, 512);
	CHECK_OK(put_file(t, id, data, 2));
	CHECK_OK(fs_setxattr(t->fs, &op_root, id, "user.a", 6, "new", 3, FS_XATTR_EITHER, NULL));
	CHECK_OK(fs_snapshot_create(t->fs, name));
	CHECK_IS(live_blocks(t), 2 * used);
	CHECK_OK(t_unlink(t, t->root, "file"));
	CHECK_IS(live_blocks(t), 2 * used);
	CHECK_IS(t_check(t), 0);
	/* the way in and out */
	CHECK_OK(t_lookup(t, dot.id, "a", &a));
	CHECK_OK(t_lookup(t, dot.id, name, &b));
	CHECK(a.id.ino == FS_ROOT_INO && a.id.snap == 1 && b.id.snap == 2);
	CHECK_OK(t_lookup(t, a.id, "..", &attr));
	CHECK(attr.id.ino == dot.id.ino && attr.id.snap == 0);
	CHECK_OK(t_lookup(t, dot.id, "..", &attr));
	CHECK(attr.id.ino == t->root.ino);
	CHECK_IS(t_lookup(t, dot.id, "none", NULL), -ENOENT);
	CHECK_IS(t_lookup(t, a.id, ".snapshot", NULL), -ENOENT);
	CHECK_OK(fs_readdir(t->fs, &op_root, dot.id, 0, true, count_entry, &entries, &eof, NULL));
	CHECK(eof && entries == 2);
	CHECK_OK(fs_readdir(t->fs, &op_root, t->root, 0, true, count_entry, &(unsigned){0}, &eof, NULL));
	CHECK(eof);
	CHECK(fs_snapshot_fsid(5, 0) == 5 && fs_snapshot_fsid(5, 1) != 5 &&
		fs_snapshot_fsid(5, 1) != fs_snapshot_fsid(5, 2));
	/* what is in them */
	CHECK_OK(t_lookup(t, a.id, "file", &attr));
	CHECK_OK(t_lookup(t, b.id, "file", &other));
	CHECK(attr.id.ino == id.ino && attr.id.snap == 1 && attr.used_bytes == 2u << 20);
	CHECK_IS(t_read(t, attr.id, 1 << 20, &byte, 1, NULL), 1);
	CHECK_IS(byte, 1);
	CHECK_IS(t_read(t, other.id, 0, &byte, 1, NULL), 1);
	CHECK_IS(byte, 2);
	CHECK_OK(fs_getxattr(t->fs, &op_root, attr.id, "user.a", 6, name + 256, 3, &copied));
	CHECK(memcmp(name + 256, "old", 3) == 0);
	CHECK_OK(fs_hold(t->fs, attr.id));
	fs_release(t->fs, attr.id);
	/* nothing changes them */
	CHECK_IS(t_write(t, attr.id, 0, "x", 1, FS_UNSTABLE), -EROFS);
	CHECK_IS(t_truncate(t, attr.id, 0), -EROFS);
	CHECK_IS(fs_setattr(t->fs, &op_root, attr.id, &set, NULL, NULL), -EROFS);
	CHECK_IS(fs_punch(t->fs, &op_root, attr.id, 0, 4096, NULL), -EROFS);
	CHECK_IS(fs_setxattr(t->fs, &op_root, attr.id, "user.b", 6, "", 0, FS_XATTR_EITHER, NULL), -EROFS);
	CHECK_IS(t_unlink(t, a.id, "file"), -EROFS);
	CHECK_IS(t_mkdir(t, a.id, "new", NULL), -EROFS);
	CHECK_IS(t_mkdir(t, dot.id, "new", NULL), -EROFS);
	CHECK_IS(t_rmdir(t, dot.id, "a"), -EROFS);
	CHECK_IS(t_mkdir(t, t->root, ".snapshot", NULL), -EEXIST);
	CHECK_IS(t_rmdir(t, t->root, ".snapshot"), -EROFS);
	CHECK_IS(t_rename(t, a.id, "file", t->root, "back"), -EROFS);
	CHECK_IS(fs_link(t->fs, &op_root, attr.id, t->root, "back", 4, NULL, NULL), -EROFS);
	/* but they can be copied from */
	CHECK_OK(t_create(t, t->root, "back", &id));
	CHECK_OK(fs_copy(t->fs, &op_root, attr.id, 0, id, 0, 100, &copied, NULL));
	CHECK_IS(copied, 100);
	CHECK_OK(t_unlink(t, t->root, "back"));
	/* the older one goes first, and takes what only it had */
	CHECK_OK(files_test_remount(t));
	CHECK_OK(fs_snapshot_delete(t->fs, "a"));
	CHECK_OK(fs_snapshots_wait(t->fs));
	CHECK_IS(fs_getattr(t->fs, attr.id, &attr), -ESTALE);
	CHECK_IS(t_lookup(t, dot.id, "a", NULL), -ENOENT);
	CHECK_IS(live_blocks(t), used);
	CHECK_IS(t_read(t, other.id, 0, &byte, 1, NULL), 1);
	CHECK_IS(byte, 2);
	CHECK_IS(t_check(t), 0);
	CHECK_OK(fs_snapshot_delete(t->fs, name));
	CHECK_OK(fs_snapshots_wait(t->fs));
	CHECK_IS(live_blocks(t), 0);
	CHECK_IS(t_check(t), 0);
	/* as many as there may be */
	for (unsigned i = 0; i < FS_SNAPSHOTS_MAX; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		CHECK_OK(fs_snapshot_create(t->fs, name));
	}
	CHECK_IS(fs_snapshot_create(t->fs, "more"), -EMLINK);
	CHECK_OK(fs_snapshot_list(t->fs, count_one, &listed));
	CHECK_IS(listed, FS_SNAPSHOTS_MAX);
	CHECK_OK(files_test_remount(t));
	CHECK_IS(t_check(t), 0);
	free(data);
	files_test_close(t);
}

/* Nothing is left of what was written before a snapshot that is gone, and deleted after it. */
static void body_nothing_left(void *arg)
{
	struct files_test *t = arg;
	uint8_t data[50000] = {1};
	struct fs_id id[10];
	char name[16];

	CHECK_OK(files_test_create(t, 6));
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 10; i++) {
			snprintf(name, sizeof(name), "f%u", i);
			CHECK_OK(t_create(t, t->root, name, &id[i]));
			CHECK_OK(t_write(t, id[i], 0, data, sizeof(data), FS_FILE_SYNC));
			CHECK_OK(fs_setxattr(t->fs, &op_root, id[i], "user.x", 6, data, 9000, FS_XATTR_EITHER, NULL));
		}
		CHECK_OK(fs_snapshot_create(t->fs, "s"));
		if (round == 1)
			CHECK_OK(t_write(t, id[0], 4096, data, 20000, FS_FILE_SYNC));
		CHECK_OK(fs_snapshot_delete(t->fs, "s"));
		if (round != 2)
			CHECK_OK(fs_snapshots_wait(t->fs));
		for (unsigned i = 0; i < 10; i++) {
			snprintf(name, sizeof(name), "f%u", i);
			CHECK_OK(t_unlink(t, t->root, name));
		}
		while (t->fs->files->orphan_running)
			fiber_sleep(NSEC_PER_MSEC);
		CHECK_OK(fs_snapshots_wait(t->fs));
		CHECK_IS(live_blocks(t), 0);
		for (unsigned i = 0; i < 10; i++) {
			struct fs_key key = {.ino = id[i].ino};
			uint8_t val[TREE_VALUE_MAX];

			CHECK(tree_next(t->fs, &key, val, sizeof(val)) == -ENOENT || key.ino > id[9].ino);
		}
		CHECK_IS(t_check(t), 0);
	}
	files_test_close(t);
}

/* ------------------------------------------------------------------------------------------------
 * The cleaner under snapshots
 */

/* What block B of generation GEN holds. */
static void churn_block(uint8_t *to, uint32_t b, uint32_t gen)
{
	for (unsigned i = 0; i < BLOCK_BYTES; i += 8) {
		uint64_t v = hash_u64((uint64_t)gen << 40 ^ (uint64_t)b << 10 ^ i);
		memcpy(to + i, &v, 8);
	}
}

static bool churn_holds(struct files_test *t, struct fs_id id, const uint32_t *gen, uint32_t blocks)
{
	uint8_t want[BLOCK_BYTES], got[BLOCK_BYTES];

	for (uint32_t b = 0; b < blocks; b++) {
		churn_block(want, b, gen[b]);
		if (t_read(t, id, (uint64_t)b * BLOCK_BYTES, got, BLOCK_BYTES, NULL) != BLOCK_BYTES ||
			memcmp(want, got, BLOCK_BYTES) != 0)
			return false;
	}
	return true;
}

static void body_cleaner(void *arg)
{
	struct files_test *t = arg;
	struct fs_status status = {0};
	struct fs_statfs space;
	struct fs_attr dot, snap, old;
	uint32_t blocks, *gen[3], top = 0;
	uint64_t seed = 7;
	uint8_t block[BLOCK_BYTES];
	struct fs_id id;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(fs_statfs(t->fs, &space));
	blocks = (uint32_t)(space.bytes_available / BLOCK_BYTES * 66 / 100);
	for (unsigned i = 0; i < 3; i++)
		gen[i] = calloc(blocks, sizeof(uint32_t));
	CHECK_OK(t_create(t, t->root, "a", &id));
	for (uint32_t b = 0; b < blocks; b++) {
		churn_block(block, b, 0);
		CHECK_OK(t_write(t, id, (uint64_t)b * BLOCK_BYTES, block, BLOCK_BYTES, FS_UNSTABLE));
	}
	CHECK_OK(t_commit(t, id));
	/* the same few blocks over and over: what snapshots keep lies among what goes */
	for (unsigned round = 0; round < 30 && status.cleaner_moved_blocks < 500; round++) {
		if (round == 1 || round == 2) {
			memcpy(gen[round], gen[0], blocks * sizeof(uint32_t));
			CHECK_OK(fs_snapshot_create(t->fs, round == 1 ? "one" : "two"));
		}
		top++;
		for (uint32_t n = 0; n < blocks / 12; n++) {
			uint32_t b = test_below(&seed, blocks / 7);

			gen[0][b] = top;
			churn_block(block, b, top);
			CHECK_OK(t_write(t, id, (uint64_t)b * BLOCK_BYTES, block, BLOCK_BYTES, FS_UNSTABLE));
		}
		CHECK_OK(t_commit(t, id));
		fs_status(t->fs, &status);
	}
	if (status.cleaner_moved_blocks < 500)
		CHECK_FAILED("the cleaner moved %llu blocks, %llu of %llu stripes are free",
			(unsigned long long)status.cleaner_moved_blocks, (unsigned long long)status.stripes_free,
			(unsigned long long)status.stripes_total);
	CHECK(!test_failure[0]);
	CHECK_IS(t_check(t), 0);
	CHECK(churn_holds(t, id, gen[0], blocks));
	CHECK_OK(t_lookup(t, t->root, ".snapshot", &dot));
	for (unsigned i = 1; i < 3; i++) {
		CHECK_OK(t_lookup(t, dot.id, i == 1 ? "one" : "two", &snap));
		CHECK_OK(t_lookup(t, snap.id, "a", &old));
		CHECK(churn_holds(t, old.id, gen[i], blocks));
	}
	CHECK_OK(fs_snapshot_delete(t->fs, "one"));
	CHECK_OK(fs_snapshots_wait(t->fs));
	CHECK_IS(t_check(t), 0);
	CHECK(churn_holds(t, old.id, gen[2], blocks / 4));
	CHECK_OK(fs_snapshot_delete(t->fs, "two"));
	CHECK_OK(fs_snapshots_wait(t->fs));
	CHECK_IS(live_blocks(t), blocks);
	CHECK_IS(t_check(t), 0);
	for (unsigned i = 0; i < 3; i++)
		free(gen[i]);
	files_test_close(t);
}

/* ------------------------------------------------------------------------------------------------
 * Faults that fs check must name
 */

struct plant {
	struct fs_key key;
	const void *val;
	size_t len;
	bool remove;
};
static int plant_pass(struct tx *tx, void *arg)
{
	const struct plant *p = arg;

	return p->remove ? tx_delete_any(tx, &p->key) : tx_put_any(tx, &p->key, p->val, p->len);
}

static char first_fault[256];
static void keep_first(void *arg, const char *problem)
{
	unsigned *n = arg;

	if ((*n)++ == 0)
		snprintf(first_fault, sizeof(first_fault), "%s", problem);
}

/* A field of what only the snapshot sees is changed, and put back. */
static void spoil_old(struct files_test *t, struct fs_id id, size_t off, uint8_t value, const char *word)
{
	struct fs_key key = {.ino = id.ino, .type = KEY_INODE};
	struct inode_disk was, is;
	struct plant p = {.key = key, .val = &is, .len = sizeof(is)};
	struct fs_check_result result;
	unsigned n = 0;

	first_fault[0] = 0;
	CHECK_IS(tree_get(t->fs, &key, &was, sizeof(was)), sizeof(was));
	is = was;
	((uint8_t *)&is)[off] = value;
	CHECK_OK(fs_transact_durable(t->fs, plant_pass, &p));
	CHECK_OK(fs_check(t->fs, true, keep_first, NULL, &n, &result));
	if (n == 0 || !strstr(first_fault, "snapshot 1: ") || !strstr(first_fault, word))
		CHECK_FAILED("fault \"%s\", expected \"%s\" of the snapshot", first_fault, word);
	is = was;
	CHECK_OK(fs_transact_durable(t->fs, plant_pass, &p));
	CHECK_IS(t_check(t), 0);
}

/* VAL at KEY, where nothing is: fs check says WORD. */
static void plant(struct files_test *t, struct fs_key key, const void *val, size_t len, const char *word)
{
	struct plant p = {.key = key, .val = val, .len = len};
	struct fs_check_result result;
	unsigned n = 0;

	first_fault[0] = 0;
	CHECK_OK(fs_transact_durable(t->fs, plant_pass, &p));
	CHECK_OK(fs_check(t->fs, true, keep_first, NULL, &n, &result));
	if (n == 0 || !strstr(first_fault, word))
		CHECK_FAILED("fault \"%s\", expected \"%s\"", first_fault, word);
	p.remove = true;
	CHECK_OK(fs_transact_durable(t->fs, plant_pass, &p));
	CHECK_IS(t_check(t), 0);
}

struct dump_want {
	const char *word;
	bool found;
};
static bool dump_look(void *arg, const char *line)
{
	struct dump_want *want = arg;

	want->found |= strstr(line, want->word) != NULL;
	return true;
}
static const struct {
	const char *what, *word;
} dumps[] = {{"dir", "name=\"a\""}, {"inode", "mode=0755"}, {"inode", "size=2097152"},
	{"extents", "stamp=1 count=1 physical="}, {"xattrs", "size=9000 name=\"user.big\""}, {"stripes", "class=1"},
	{"owners", "count="}, {"nodes", "level=0"}, {"snapshots", "name=\"s\""}, {"counters", "inodes=2"},
	{"root", "tree_level="}, {"log", "durable="}};

static void body_faults(void *arg)
{
	struct files_test *t = arg;
	struct extent_disk empty = {.count = le32_put(2), .flags = le32_put(EXTENT_HOLE)};
	struct stamp_disk stamp = {.stamp = le32_put(3)};
	struct {
		struct xattr_disk head;
		char rest[8];
	} xattr = {.head = {.size = le32_put(2), .name_len = le16_put(6)}, .rest = "user.zxx"};
	uint8_t *data = calloc(1, 1u << 20);
	struct fs_id id;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "a", &id));
	CHECK_OK(put_file(t, id, data, 1));
	CHECK_OK(fs_setxattr(t->fs, &op_root, id, "user.big", 8, data, 9000, FS_XATTR_EITHER, NULL));
	CHECK_OK(fs_snapshot_create(t->fs, "s"));
	CHECK_OK(t_write(t, id, 0, data, 100, FS_FILE_SYNC));
	CHECK_IS(t_check(t), 0);
	plant(t, (struct fs_key){.ino = id.ino, .type = KEY_SYMLINK, .off = 5, .snap = 7}, "x", 1, "has stamp 7");
	plant(t, (struct fs_key){.ino = id.ino, .type = KEY_EXTENT, .off = 3, .snap = 1}, &empty, sizeof(empty),
		"overlaps");
	plant(t, (struct fs_key){.ino = id.ino, .type = KEY_EXTENT, .off = 9999, .snap = 1}, &empty, 8,
		"makes no sense");
	plant(t, (struct fs_key){.ino = id.ino, .type = KEY_XATTR, .off = 1 << 16}, &xattr, sizeof(xattr),
		"wrong hash");
	plant(t, (struct fs_key){.ino = id.ino, .type = KEY_XATTR, .off = 1 << 16}, &xattr, 5, "makes no sense");
	plant(t, (struct fs_key){.ino = id.ino, .type = KEY_XATTR, .off = (1 << 16) + 1}, "x", 1, "does not fit");
	spoil_old(t, id, offsetof(struct inode_disk, nlink), 9, "says 9 links, has 1");
	spoil_old(t, id, offsetof(struct inode_disk, blocks), 3, "blocks of data, has 512");
	spoil_old(t, id, offsetof(struct inode_disk, generation), 1, "is not what its name says");
	plant(t, (struct fs_key){.type = KEY_SNAPSHOT, .off = 9}, &stamp, sizeof(stamp), "snapshot 9 makes no sense");
	plant(t, (struct fs_key){.ino = id.ino + 50, .type = KEY_SYMLINK}, "x", 1, "has values but no inode");
	for (unsigned i = 0; i < sizeof(dumps) / sizeof(dumps[0]); i++) {
		struct dump_want want = {.word = dumps[i].word};

		CHECK_OK(fs_dump(t->fs, dumps[i].what, i < 2 ? 0 : id.ino, dump_look, &want));
		if (!want.found)
			CHECK_FAILED("a dump of %s does not show \"%s\"", dumps[i].what, dumps[i].word);
	}
	CHECK_IS(fs_dump(t->fs, "nonsense", 0, dump_look, NULL), -EINVAL);
	free(data);
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

static void test_rules(void **state)
{
	(void)state;
	run(body_rules);
}
static void test_nothing_left(void **state)
{
	(void)state;
	run(body_nothing_left);
}
static void test_cleaner(void **state)
{
	static struct files_test t;

	(void)state;
	files_test_drives(&t, 5, 80ull << 20);
	files_test_run(body_cleaner, &t);
	files_test_remove(&t);
}
static void test_faults(void **state)
{
	(void)state;
	run(body_faults);
}
static void test_model(void **state)
{
	(void)state;
	run(body_model);
}
static void test_crash(void **state)
{
	int threshold = atomic_load(&log_threshold);

	(void)state;
	memset(kept, 0, sizeof(kept));
	crashing = true;
	atomic_store(&log_threshold, -1);
	run(body_model);
	atomic_store(&log_threshold, threshold);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rules),
		cmocka_unit_test(test_faults),
		cmocka_unit_test(test_nothing_left),
		cmocka_unit_test(test_cleaner),
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_crash),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
