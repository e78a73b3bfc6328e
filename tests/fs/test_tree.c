/*
 * The tree beside a model: thousands of random transactions, reads in all directions, checkpoints, remounts
 * clean and unclean; many laps of the log; a full log; fibers whose passes race; damaged nodes; dense leaves.
 */
#include "tests/fs/tree_test.h"

#define GROUPS 40u
#define OFFS 300u
#define INO 1000000u

/* What the tree should hold: a value is made of its length and its number. */
struct model {
	uint32_t version[GROUPS][OFFS]; /* 0: no such key */
	uint16_t len[GROUPS][OFFS];
};
static struct model model;
static uint32_t version_next;

static struct fs_key key_at(unsigned i)
{
	return (struct fs_key){.ino = INO + i / OFFS, .type = 200, .off = i % OFFS * 3};
}

static void value_fill(uint8_t *to, unsigned len, uint32_t version)
{
	memset(to, (int)(version % 251), len);
	if (len >= 4)
		memcpy(to, &version, 4);
}

static bool value_is(const void *val, size_t len, unsigned i)
{
	static uint8_t want[TREE_VALUE_MAX];
	if (len != model.len[i / OFFS][i % OFFS])
		return false;
	value_fill(want, (unsigned)len, model.version[i / OFFS][i % OFFS]);
	return memcmp(val, want, len) == 0;
}

struct changes {
	unsigned n, largest;
	uint64_t seed;
	bool check, deletes;
	int failed;
};

struct planned {
	unsigned at;
	uint32_t version;
	uint16_t len;
};

/* Queues random changes; the model follows when it was applied. A pass may run often: it plans anew from the same seed.
 */
static unsigned change_plan(const struct changes *c, struct planned *p)
{
	uint64_t seed = c->seed;
	for (unsigned i = 0; i < c->n; i++) {
		p[i].at = (unsigned)(test_random(&seed) % (GROUPS * OFFS));
		if (test_random(&seed) % 4)
			p[i].at = p[i ? i - 1 : 0].at / OFFS * OFFS + (unsigned)(test_random(&seed) % OFFS);
		bool delete = test_random(&seed) % 100 < (c->deletes ? 70 : 30);
		unsigned room = test_random(&seed) % 40 == 0 ? TREE_VALUE_MAX + 1 : c->largest;
		p[i].version = delete ? 0 : version_next + i + 1;
		p[i].len = (uint16_t)(test_random(&seed) % room);
	}
	return c->n;
}

static int change_pass(struct tx *tx, void *arg)
{
	struct changes *c = arg;
	struct planned p[64];
	static uint8_t value[TREE_VALUE_MAX];
	unsigned n = change_plan(c, p);
	for (unsigned i = 0; i < n; i++) {
		struct fs_key key = key_at(p[i].at);
		int rc;
		if (c->check) {
			const void *val;
			size_t len;
			rc = tx_get(tx, &key, &val, &len);
			if (rc == -EAGAIN)
				return rc;
			bool there = model.version[p[i].at / OFFS][p[i].at % OFFS] != 0;
			if (rc ? there || rc != -ENOENT : !there || !value_is(val, len, p[i].at))
				c->failed = 1;
		}
		if (p[i].version) {
			value_fill(value, p[i].len, p[i].version);
			rc = tx_put(tx, &key, value, p[i].len);
		} else {
			rc = tx_delete(tx, &key);
		}
		if (rc)
			return rc;
	}
	return 0;
}

static void change_model(const struct changes *c)
{
	struct planned p[64];
	unsigned n = change_plan(c, p);
	for (unsigned i = 0; i < n; i++) {
		model.version[p[i].at / OFFS][p[i].at % OFFS] = p[i].version;
		model.len[p[i].at / OFFS][p[i].at % OFFS] = p[i].len;
	}
	version_next += n;
}

/* All keys of the model, and no others, in order, forwards and backwards. */
static bool tree_equals_model(struct fs *fs)
{
	static uint8_t value[TREE_VALUE_MAX];
	struct fs_key key = {.ino = INO};
	for (unsigned i = 0; i < GROUPS * OFFS; i++) {
		if (!model.version[i / OFFS][i % OFFS])
			continue;
		struct fs_key want = key_at(i);
		int len = tree_next(fs, &key, value, sizeof(value));
		if (len < 0 || fs_key_compare(&key, &want) || !value_is(value, (size_t)len, i)) {
			fprintf(stderr, "key %u: got %d at %llu/%llu\n", i, len, (unsigned long long)key.ino,
				(unsigned long long)key.off);
			return false;
		}
		key.off++;
	}
	if (tree_next(fs, &key, value, sizeof(value)) != -ENOENT)
		return false;
	key = (struct fs_key){.ino = INO + GROUPS};
	for (unsigned i = GROUPS * OFFS; i-- > 0;) {
		if (!model.version[i / OFFS][i % OFFS])
			continue;
		struct fs_key want = key_at(i);
		int len = tree_prev(fs, &key, value, sizeof(value));
		if (len < 0 || fs_key_compare(&key, &want) || !value_is(value, (size_t)len, i))
			return false;
		if (key.off)
			key.off--;
		else
			key = (struct fs_key){.ino = key.ino - 1, .type = 255, .off = UINT64_MAX};
	}
	return true;
}

struct wipe {
	unsigned from, count;
};
static int wipe_pass(struct tx *tx, void *arg)
{
	const struct wipe *w = arg;
	for (unsigned i = 0; i < w->count; i++) {
		struct fs_key key = key_at(w->from + i);
		int rc = tx_delete(tx, &key);
		if (rc)
			return rc;
	}
	return 0;
}

static void model_body(void *arg)
{
	struct tree_test t;
	uint64_t seed = *(uint64_t *)arg;
	fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
	memset(&model, 0, sizeof(model));
	CHECK_OK(tree_test_make(&t, 6, 6, 16u << 20, ""), t.err);
	t.cache_bytes = 1; /* as little as it takes, so that nodes come and go */
	CHECK_OK(tree_test_mount(&t), t.err);
	for (unsigned step = 0; step < 1800; step++) {
		struct changes c = {.n = 1 + (unsigned)(test_random(&seed) % 40),
			.largest = 400,
			.seed = test_random(&seed),
			.check = true,
			.deletes = step / 500 % 2};
		uint64_t seq;
		CHECK_OK(fs_transact(t.fs, change_pass, &c, &seq), t.err);
		CHECK(!c.failed);
		change_model(&c);
		if (test_random(&seed) % 40 == 0)
			CHECK_OK(log_wait(t.fs, seq), t.err);
		if (test_random(&seed) % 150 == 0) {
			CHECK_OK(fs_checkpoint(t.fs), t.err);
			CHECK(tree_test_space_is_right(t.fs));
		}
		if (test_random(&seed) % 300 == 0) {
			uint64_t change = fs_change_next(t.fs), verifier = fs_write_verifier(t.fs);
			CHECK_OK(tree_test_unmount(&t), t.err);
			CHECK_OK(tree_test_mount(&t), t.err);
			CHECK(t.fs->replayed == 0);
			CHECK(fs_write_verifier(t.fs) == verifier);
			CHECK(fs_change_next(t.fs) == change + 1);
			CHECK(tree_equals_model(t.fs));
			CHECK(tree_test_space_is_right(t.fs));
		}
	}
	CHECK(tree_equals_model(t.fs));
	struct fs_status status;
	fs_status(t.fs, &status);
	CHECK(status.checksum_errors == 0);
	/* everything goes, and the tree with it */
	for (unsigned i = 0; i < GROUPS * OFFS; i += 100) {
		struct wipe w = {i, 100};
		CHECK_OK(fs_transact(t.fs, wipe_pass, &w, NULL), t.err);
	}
	memset(&model, 0, sizeof(model));
	CHECK(tree_equals_model(t.fs));
	CHECK_OK(fs_checkpoint(t.fs), t.err);
	CHECK(tree_test_space_is_right(t.fs));
	CHECK(t.fs->tree.root->level == 0);
	CHECK_OK(tree_test_unmount(&t), t.err);
	tree_test_end(&t);
}

static void test_model(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 2; seed++)
		raid_test_run(model_body, &seed);
}

/* ------------------------------------------------------------------------------------------------ */

struct bulk {
	unsigned from, count, step, size;
	bool delete;
	uint32_t version;
};
static int bulk_pass(struct tx *tx, void *arg)
{
	const struct bulk *b = arg;
	static uint8_t value[TREE_VALUE_MAX];
	for (unsigned i = 0; i < b->count; i++) {
		struct fs_key key = {.ino = INO, .type = 201, .off = b->from + i * b->step};
		value_fill(value, b->size, b->version + b->from + i * b->step);
		int rc = b->delete ? tx_delete(tx, &key) : tx_put(tx, &key, value, b->size);
		if (rc)
			return rc;
	}
	return 0;
}

/* Many laps of the log, with the checkpoints that this needs, and transactions as large as they may be. */
static void laps_body(void *arg)
{
	struct tree_test t;
	(void)arg;
	CHECK_OK(tree_test_make(&t, 6, 4, 16u << 20, ""), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	uint64_t laps = 6 * t.fs->log.capacity * BLOCK_BYTES;
	unsigned round = 0;
	while (t.fs->log.bytes < laps) {
		struct bulk b = {.from = round % 7 * 1000, .count = 80, .step = 1, .size = 3000, .version = round};
		CHECK_OK(fs_transact(t.fs, bulk_pass, &b, NULL), t.err);
		CHECK(log_used(t.fs) <= t.fs->log.capacity);
		round++;
	}
	struct bulk large = {.count = 90, .step = 1, .size = 3000};
	CHECK(fs_transact(t.fs, bulk_pass, &large, NULL) == -E2BIG);
	CHECK(t.fs->checkpoint.count >= 4);
	for (unsigned r = round - 7; r < round; r++) {
		for (unsigned i = 0; i < 80; i++) {
			static uint8_t value[TREE_VALUE_MAX], want[TREE_VALUE_MAX];
			struct fs_key key = {.ino = INO, .type = 201, .off = r % 7 * 1000 + i};
			CHECK(tree_get(t.fs, &key, value, sizeof(value)) == 3000);
			value_fill(want, 3000, r + (unsigned)key.off);
			CHECK(memcmp(value, want, 3000) == 0);
		}
	}
	CHECK_OK(tree_test_unmount(&t), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	CHECK(tree_test_space_is_right(t.fs));
	tree_test_end(&t);
}

static void test_laps(void **state)
{
	(void)state;
	raid_test_run(laps_body, NULL);
}

/* ------------------------------------------------------------------------------------------------ */

/* Each fiber adds one to a counter that is spread over two keys; the sum tells whether any pass saw half of another. */
struct race {
	struct fs *fs;
	unsigned rounds;
	struct wait_group group;
	int bad;
};
static int race_pass(struct tx *tx, void *arg)
{
	struct race *r = arg;
	uint64_t count[2] = {0, 0};
	for (unsigned i = 0; i < 2; i++) {
		struct fs_key key = {.ino = INO + i * 100000, .type = 202};
		const void *val;
		size_t len;
		int rc = tx_get(tx, &key, &val, &len);
		if (rc && rc != -ENOENT)
			return rc;
		if (!rc)
			memcpy(&count[i], val, sizeof(count[i]));
	}
	if (count[0] != count[1])
		r->bad = 1;
	for (unsigned i = 0; i < 2; i++) {
		struct fs_key key = {.ino = INO + i * 100000, .type = 202};
		uint64_t more = count[i] + 1;
		int rc = tx_put(tx, &key, &more, sizeof(more));
		if (rc)
			return rc;
	}
	return 0;
}
static void race_fiber(void *arg)
{
	struct race *r = arg;
	int rc = 0;
	for (unsigned i = 0; i < r->rounds && !rc; i++)
		rc = i % 4 ? fs_transact(r->fs, race_pass, r, NULL) : fs_transact_durable(r->fs, race_pass, r);
	wait_group_done(&r->group, rc);
}
static void race_body(void *arg)
{
	struct tree_test t;
	(void)arg;
	CHECK_OK(tree_test_make(&t, 1, 2, 16u << 20, ""), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	struct race r = {.fs = t.fs, .rounds = 200};
	wait_group_init(&r.group);
	for (unsigned i = 0; i < 30; i++) {
		wait_group_add(&r.group, 1);
		CHECK(fiber_spawn(race_fiber, &r) == 0);
	}
	for (unsigned i = 0; i < 10; i++) {
		struct bulk b = {.from = i * 100, .count = 60, .step = 1, .size = 2000};
		CHECK_OK(fs_transact_durable(t.fs, bulk_pass, &b), t.err);
		CHECK_OK(fs_checkpoint(t.fs), t.err);
	}
	CHECK(wait_group_wait(&r.group) == 0);
	CHECK(!r.bad);
	uint64_t count = 0;
	struct fs_key key = {.ino = INO, .type = 202};
	CHECK(tree_get(t.fs, &key, &count, sizeof(count)) == sizeof(count));
	CHECK(count == 30 * 200);
	/* group commit: far fewer writes than transactions */
	CHECK(t.fs->log.head < 30 * 200);
	tree_test_end(&t);
}

static void test_race(void **state)
{
	(void)state;
	raid_test_run(race_body, NULL);
}

/* ------------------------------------------------------------------------------------------------ */

/* Overwrites one member's whole data area in places: every node that lies there must come back, and be repaired. */
static void damage_body(void *arg)
{
	struct tree_test t;
	(void)arg;
	CHECK_OK(tree_test_make(&t, 6, 6, 16u << 20, ""), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	for (unsigned i = 0; i < 60; i++) {
		struct bulk b = {.from = i * 100, .count = 80, .step = 1, .size = 1000, .version = 5};
		CHECK_OK(fs_transact(t.fs, bulk_pass, &b, NULL), t.err);
	}
	CHECK_OK(tree_test_unmount(&t), t.err);
	tree_test_close(&t);
	int fd = open(t.drives.path[2], O_RDWR);
	CHECK(fd >= 0);
	static uint8_t junk[65536];
	memset(junk, 0x5a, sizeof(junk));
	for (off_t at = 4 << 20; at < 15 << 20; at += 65536)
		CHECK(pwrite(fd, junk, sizeof(junk), at) == sizeof(junk));
	close(fd);
	CHECK_OK(tree_test_open(&t), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	struct node_census c = {.fs = t.fs, .live = calloc(t.fs->space.stripes, sizeof(uint32_t))};
	CHECK_OK(tree_walk_nodes(t.fs, node_census_add, &c), t.err);
	free(c.live);
	struct fs_status status;
	fs_status(t.fs, &status);
	CHECK(status.checksum_errors > 0);
	CHECK(status.checksum_repairs == status.checksum_errors);
	CHECK(tree_test_space_is_right(t.fs));
	tree_test_end(&t);
}

static void test_damage(void **state)
{
	(void)state;
	raid_test_run(damage_body, NULL);
}

/* ------------------------------------------------------------------------------------------------ */

/* All free stripes go to data; then the tree must still be able to change, and what is dropped comes back. */
struct blocks {
	uint64_t block;
	uint32_t count;
	bool drop;
};
static int blocks_pass(struct tx *tx, void *arg)
{
	const struct blocks *b = arg;
	return b->drop ? tx_blocks_drop(tx, b->block, b->count) : tx_blocks_add(tx, b->block, b->count);
}
static void full_body(void *arg)
{
	struct tree_test t;
	struct fs_statfs empty, full, after;
	(void)arg;
	CHECK_OK(tree_test_make(&t, 6, 4, 16u << 20, ""), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	uint32_t k = t.fs->geometry.k, strip = t.fs->geometry.strip_blocks;
	uint64_t stripes = t.fs->geometry.stripes;
	struct row_run *run = calloc(stripes * strip, sizeof(*run));
	uint64_t first_free = 0;
	for (unsigned i = 0; i < 30; i++) {
		struct bulk b = {.from = i * 100, .count = 100, .step = 1, .size = 700};
		CHECK_OK(fs_transact(t.fs, bulk_pass, &b, NULL), t.err);
	}
	for (unsigned lap = 0; lap < 3; lap++) {
		unsigned runs = 0;
		CHECK_OK(fs_checkpoint(t.fs), t.err);
		CHECK_OK(fs_statfs(t.fs, &empty), t.err);
		if (lap == 0)
			first_free = empty.bytes_free;
		CHECK(empty.bytes_free + 64 * BLOCK_BYTES >= first_free);
		for (;;) {
			uint32_t rows = runs % 3 ? 3 : strip;
			int rc = space_take_rows(t.fs, runs % 3 ? SPACE_SMALL : SPACE_STREAM, rows, &run[runs]);
			if (rc == -ENOSPC)
				break;
			CHECK_OK(rc, t.err);
			/* position by position, each a run of blocks */
			for (uint32_t p = 0; p < k; p++) {
				struct blocks b = {.block = (run[runs].stripe * k + p) * strip + run[runs].row,
					.count = run[runs].rows};
				CHECK_OK(fs_transact(t.fs, blocks_pass, &b, NULL), t.err);
			}
			space_rows_done(t.fs, &run[runs++]);
		}
		CHECK(space_reserve(t.fs, 1, 0, false) == -ENOSPC);
		CHECK_OK(fs_statfs(t.fs, &full), t.err);
		CHECK(full.bytes_free < empty.bytes_free / 8);
		/* nodes still find room, however often they move */
		for (unsigned i = 0; i < 150; i++) {
			struct bulk b = {.from = i * 7919 % 3000, .count = 20, .step = 17, .size = 700, .version = i};
			CHECK_OK(fs_transact(t.fs, bulk_pass, &b, NULL), t.err);
			CHECK_OK(fs_checkpoint(t.fs), t.err);
		}
		CHECK(tree_test_space_is_right(t.fs));
		/* growing, it is told that there is no more before a checkpoint fails; what shrinks it goes on */
		unsigned grown = 0;
		int rc = 0;
		for (; grown < 400 && !rc; grown++) {
			struct bulk b = {.from = 100000 + grown * 100, .count = 50, .step = 1, .size = 2000};
			rc = fs_transact(t.fs, bulk_pass, &b, NULL);
			if (grown % 10 == 0)
				CHECK_OK(fs_checkpoint(t.fs), t.err);
		}
		CHECK(rc == -ENOSPC);
		CHECK_OK(fs_checkpoint(t.fs), t.err);
		for (unsigned i = 0; i < grown; i++) {
			struct bulk b = {.from = 100000 + i * 100, .count = 50, .step = 1, .delete = true};
			CHECK_OK(fs_transact(t.fs, bulk_pass, &b, NULL), t.err);
		}
		CHECK_OK(fs_checkpoint(t.fs), t.err);
		CHECK_OK(fs_statfs(t.fs, &full), t.err);
		for (unsigned i = 0; i < runs; i++) {
			for (uint32_t p = 0; p < k; p++) {
				struct blocks b = {.block = (run[i].stripe * k + p) * strip + run[i].row,
					.count = run[i].rows,
					.drop = true};
				CHECK_OK(fs_transact(t.fs, blocks_pass, &b, NULL), t.err);
			}
		}
		CHECK_OK(fs_statfs(t.fs, &after), t.err);
		CHECK(after.bytes_free > full.bytes_free);
		struct blocks wrong = {.block = run[0].stripe * k * strip, .count = 1, .drop = true};
		CHECK(fs_transact(t.fs, blocks_pass, &wrong, NULL) == -EIO);
		CHECK_OK(fs_checkpoint(t.fs), t.err);
		if (lap == 1) {
			CHECK_OK(tree_test_unmount(&t), t.err);
			CHECK_OK(tree_test_mount(&t), t.err);
		}
	}
	CHECK_OK(fs_checkpoint(t.fs), t.err);
	CHECK(space_reserve(t.fs, 100, 0, false) == 0);
	CHECK_OK(fs_statfs(t.fs, &after), t.err);
	space_unreserve(t.fs, 100);
	CHECK_OK(fs_statfs(t.fs, &empty), t.err);
	CHECK(empty.bytes_free == after.bytes_free + 100 * BLOCK_BYTES);
	free(run);
	tree_test_end(&t);
}

static void test_full(void **state)
{
	(void)state;
	raid_test_run(full_body, NULL);
}

/* ------------------------------------------------------------------------------------------------ */

/* An unclean stop, then the log zone of two members is wiped, twice: replay must find every block in some copy, and
 * make all equal. */
static int wipe_log(struct tree_test *t, unsigned a, unsigned b)
{
	static uint8_t junk[65536];
	unsigned member[2] = {a, b};
	for (unsigned i = 0; i < 2; i++) {
		int fd = open(t->drives.path[member[i]], O_RDWR);
		if (fd < 0)
			return -errno;
		for (off_t at = 1 << 20; at < 3 << 20; at += 65536)
			if (pwrite(fd, junk, sizeof(junk), at) != sizeof(junk))
				return -EIO;
		close(fd);
	}
	return 0;
}
static void copies_body(void *arg)
{
	struct tree_test t;
	(void)arg;
	CHECK_OK(tree_test_make(&t, 6, 5, 16u << 20, ""), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	for (unsigned i = 0; i < 12; i++) {
		struct bulk b = {.from = i * 100, .count = 60, .step = 1, .size = 1 + i * 40, .version = 9};
		CHECK_OK(fs_transact_durable(t.fs, bulk_pass, &b), t.err);
	}
	t.fs->failed = -EIO; /* as after a loss of power: nothing more is written */
	CHECK(tree_test_unmount(&t) != 0);
	for (unsigned round = 0; round < 6; round++) {
		tree_test_close(&t);
		/* at last with two members missing altogether */
		if (round == 4)
			t.drives.count -= 2;
		else if (round < 4)
			CHECK(wipe_log(&t, round, (round + 2) % 5) == 0);
		CHECK_OK(tree_test_open(&t), t.err);
		CHECK_OK(tree_test_mount(&t), t.err);
		if (t.fs->replayed != 12)
			fprintf(stderr, "round %u replayed %llu\n", round, (unsigned long long)t.fs->replayed);
		CHECK(t.fs->replayed == 12);
		for (unsigned i = 0; i < 12 * 60; i++) {
			static uint8_t value[TREE_VALUE_MAX];
			struct fs_key key = {.ino = INO, .type = 201, .off = i / 60 * 100 + i % 60};
			CHECK(tree_get(t.fs, &key, value, sizeof(value)) == (int)(1 + i / 60 * 40));
		}
		t.fs->failed = -EIO;
		CHECK(tree_test_unmount(&t) != 0);
	}
	t.drives.count += 2;
	tree_test_end(&t);
}

static void test_copies(void **state)
{
	(void)state;
	raid_test_run(copies_body, NULL);
}

/* ------------------------------------------------------------------------------------------------ */

/* A batch in the middle of the log is gone from all copies: what was acknowledged after it must not vanish in silence.
 */
static void hole_body(void *arg)
{
	struct tree_test t;
	uint64_t head[10];
	(void)arg;
	CHECK_OK(tree_test_make(&t, 6, 5, 16u << 20, ""), t.err);
	for (unsigned last = 0; last < 2; last++) {
		CHECK_OK(tree_test_mount(&t), t.err);
		CHECK_OK(fs_checkpoint(t.fs), t.err);
		for (unsigned i = 0; i < 10; i++) {
			struct bulk b = {.from = i * 100, .count = 20, .step = 1, .size = 100, .version = last};
			head[i] = t.fs->log.head;
			CHECK_OK(fs_transact_durable(t.fs, bulk_pass, &b), t.err);
		}
		uint64_t first = t.fs->log.first, capacity = t.fs->log.capacity;
		t.fs->failed = -EIO;
		CHECK(tree_test_unmount(&t) != 0);
		/* first the last one, as a power cut may leave it; then one further ahead */
		struct slice zero = {buf_zero(), 0, BLOCK_BYTES};
		CHECK(volume_log_write(t.volume, first + head[last ? 5 : 9] % capacity, &zero, 1) == 0);
		if (!last) {
			CHECK_OK(tree_test_mount(&t), t.err);
			CHECK(t.fs->replayed == 9);
			CHECK(tree_test_unmount(&t) == 0);
			continue;
		}
		struct fs_mount_options options = {.read_only = true};
		CHECK(tree_test_mount(&t) == -EIO);
		CHECK_OK(fs_mount(t.volume, &options, &t.fs, &t.err), t.err);
		CHECK(t.fs->replayed == 5);
	}
	tree_test_end(&t);
}

static void test_hole(void **state)
{
	(void)state;
	raid_test_run(hole_body, NULL);
}

/* What nobody waits for is on the drives after a while, and then nothing happens any more. */
static void idle_body(void *arg)
{
	struct tree_test t;
	(void)arg;
	uint64_t kept = checkpoint_delay_ns;
	checkpoint_delay_ns = 20 * NSEC_PER_MSEC;
	CHECK_OK(tree_test_make(&t, 1, 2, 16u << 20, ""), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	fiber_sleep(60 * NSEC_PER_MSEC);
	CHECK(t.fs->checkpoint.count == 0);
	for (unsigned round = 1; round < 3; round++) {
		struct bulk b = {.from = round * 100, .count = 50, .step = 1, .size = 100, .version = round};
		CHECK_OK(fs_transact(t.fs, bulk_pass, &b, NULL), t.err);
		for (unsigned i = 0; i < 500 && t.fs->checkpoint.count < round; i++)
			fiber_sleep(5 * NSEC_PER_MSEC);
		uint64_t bytes = t.fs->log.bytes;
		fiber_sleep(80 * NSEC_PER_MSEC);
		CHECK(t.fs->checkpoint.count == round);
		CHECK(t.fs->log.bytes == bytes);
		CHECK(t.fs->log.durable == t.fs->log.sequence);
	}
	checkpoint_delay_ns = kept;
	tree_test_end(&t);
}

static void test_idle(void **state)
{
	(void)state;
	raid_test_run(idle_body, NULL);
}

/* ------------------------------------------------------------------------------------------------ */

/* Records of a later format, of other features, of another volume; and no record at all. */
static void refuse_body(void *arg)
{
	struct tree_test t;
	struct error err;
	(void)arg;
	CHECK_OK(tree_test_make(&t, 1, 2, 16u << 20, ""), t.err);
	CHECK(fs_probe(t.volume, &err) == 0);
	struct buf *buf = buf_alloc(BLOCK_BYTES), *kept = buf_alloc(BLOCK_BYTES);
	struct root_disk *r = (struct root_disk *)(void *)buf->data;
	struct slice s = {buf, 0, BLOCK_BYTES}, k = {kept, 0, BLOCK_BYTES};
	CHECK(volume_log_read(t.volume, 1, 0, &k, 1) == 0);
	for (unsigned what = 0; what < 6; what++) {
		int want = -EOPNOTSUPP;
		memcpy(r, kept->data, BLOCK_BYTES);
		switch (what) {
		case 0:
			r->version = le32_put(2);
			break;
		case 1:
			r->incompat = le32_put(1u << 30);
			break;
		case 2:
			r->ro_compat = le32_put(64);
			break;
		case 3:
			r->volume_uuid.b[0] ^= 1;
			want = -ENOENT;
			break;
		case 4:
			r->stripes = le64_put(17);
			want = -EIO;
			break;
		default:
			r->tree_block = le64_put(le64_get(r->tree_block) + 4);
			want = -EIO;
			break;
		}
		r->checksum = le64_put(checksum64(buf->data + FS_ROOT_CHECKED, BLOCK_BYTES - FS_ROOT_CHECKED, 0));
		CHECK(volume_log_write(t.volume, 1, &s, 1) == 0);
		err.text[0] = 0;
		struct fs_mount_options options = {0};
		CHECK(fs_mount(t.volume, &options, &t.fs, &err) == want);
		CHECK(err.text[0]);
		if (what == 2) {
			options.read_only = true;
			CHECK_OK(fs_mount(t.volume, &options, &t.fs, &err), err);
			struct bulk b = {.count = 1, .size = 1};
			CHECK(fs_transact(t.fs, bulk_pass, &b, NULL) == -EROFS);
			CHECK(tree_test_unmount(&t) == 0);
		}
	}
	memset(r, 0x11, BLOCK_BYTES);
	CHECK(volume_log_write(t.volume, 1, &s, 1) == 0);
	CHECK(fs_probe(t.volume, &err) == -ENOENT);
	memcpy(r, kept->data, BLOCK_BYTES);
	r->fsid.b[0] ^= 1;
	CHECK(volume_log_write(t.volume, 1, &s, 1) == 0);
	CHECK(fs_probe(t.volume, &err) == -EIO);
	buf_put(buf);
	buf_put(kept);
	tree_test_end(&t);
}

static void test_refuse(void **state)
{
	(void)state;
	raid_test_run(refuse_body, NULL);
}

/* ------------------------------------------------------------------------------------------------
 * Many runs of keys that grow side by side split leaves everywhere; a checkpoint leaves few and full ones.
 */

#define RUNS 48u
#define RUN_KEYS 40u

struct interleave {
	unsigned off, len;
};
static int interleave_pass(struct tx *tx, void *arg)
{
	const struct interleave *in = arg;
	uint8_t value[600];
	int rc = 0;

	for (unsigned i = 0; i < RUNS && !rc; i++) {
		struct fs_key key = {.ino = INO + i, .type = 200, .off = in->off};
		memset(value, (int)(i + in->off), in->len);
		rc = tx_put(tx, &key, value, in->len);
	}
	return rc;
}
static bool interleave_is(struct fs *fs, unsigned from, unsigned to)
{
	uint8_t value[600];

	for (unsigned i = 0; i < RUNS * (to - from); i++) {
		unsigned off = from + i / RUNS;
		struct fs_key key = {.ino = INO + i % RUNS, .type = 200, .off = off};
		int len = tree_get(fs, &key, value, sizeof(value));
		if (len != (int)(300 + off) || value[0] != (uint8_t)(i % RUNS + off) || value[len - 1] != value[0])
			return false;
	}
	return true;
}
static void pack_body(void *arg)
{
	struct tree_test t;
	uint64_t bytes = 0;

	(void)arg;
	CHECK_OK(tree_test_make(&t, 1, 2, 64u << 20, ""), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	for (unsigned off = 0; off < RUN_KEYS; off++) {
		struct interleave in = {off, 300 + off};
		CHECK_OK(fs_transact(t.fs, interleave_pass, &in, NULL), t.err);
		bytes += RUNS * (in.len + sizeof(struct slot_disk));
	}
	size_t split = t.fs->tree.nodes;
	CHECK_OK(fs_checkpoint(t.fs), t.err);
	size_t packed = t.fs->tree.nodes;
	CHECK(split * NODE_ROOM * 4 / 5 > bytes && packed * NODE_ROOM * 5 / 6 < bytes);
	CHECK(tree_test_space_is_right(t.fs));
	CHECK(interleave_is(t.fs, 0, RUN_KEYS));
	/* what is full is split again, and some goes */
	for (unsigned off = RUN_KEYS; off < 2 * RUN_KEYS; off++) {
		struct interleave in = {off, 300 + off};
		CHECK_OK(fs_transact(t.fs, interleave_pass, &in, NULL), t.err);
	}
	CHECK_OK(tree_test_unmount(&t), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	CHECK(interleave_is(t.fs, 0, 2 * RUN_KEYS));
	CHECK_OK(fs_checkpoint(t.fs), t.err);
	CHECK(tree_test_space_is_right(t.fs));
	tree_test_end(&t);
}

static void test_pack(void **state)
{
	(void)state;
	raid_test_run(pack_body, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_model), cmocka_unit_test(test_laps),
		cmocka_unit_test(test_race), cmocka_unit_test(test_damage), cmocka_unit_test(test_full),
		cmocka_unit_test(test_copies), cmocka_unit_test(test_hole), cmocka_unit_test(test_idle),
		cmocka_unit_test(test_refuse), cmocka_unit_test(test_pack)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
