/*
 * Power cuts: after every Nth write all drives fail at once, and each loses any part of what was in its
 * volatile cache. After the next mount every transaction that was acknowledged is there, none is torn,
 * what the tree says of space is true, and rows that the tree names hold what they held: none was
 * written again too early.
 */
#include "tests/fs/tree_test.h"

#define GROUPS 24u
#define KEYS 6u
#define FIBERS 4u
#define DRIVES 5u

struct world {
	struct tree_test t;
	uint64_t acked[GROUPS], tried[GROUPS];
	uint64_t seed;
	struct wait_group group;
	unsigned steps;
	bool checkpoints;
};

struct entry {
	uint64_t version, block;
	uint32_t has_block;
};

static struct fs_key group_key(unsigned g, unsigned i)
{
	return (struct fs_key){.ino = 5000 + i * 7919 + g * 3, .type = 210, .off = g};
}

struct group_change {
	unsigned g;
	uint32_t len;
	struct entry e;
	const struct row_run *run;
};

static int group_pass(struct tx *tx, void *arg)
{
	const struct group_change *c = arg;
	uint8_t *value = calloc(1, TREE_VALUE_MAX);
	struct fs_key key = group_key(c->g, 0);
	struct entry old;
	const void *val;
	size_t len;
	int rc = tx_get(tx, &key, &val, &len);
	if (!rc) {
		memcpy(&old, val, sizeof(old));
		if (old.has_block)
			rc = tx_blocks_drop(tx, old.block, 1);
	} else if (rc == -ENOENT) {
		rc = 0;
	}
	if (!rc && c->e.has_block)
		rc = tx_blocks_add(tx, c->e.block, 1);
	if (!rc && c->e.has_block)
		rc = tx_summary_add(tx, c->e.block, 1, c->g, 0);
	for (unsigned i = 0; !rc && i < KEYS; i++) {
		key = group_key(c->g, i);
		memset(value, (int)c->e.version, c->len);
		memcpy(value, &c->e, sizeof(c->e));
		rc = tx_put(tx, &key, value, c->len);
	}
	free(value);
	return rc;
}

static void block_fill(struct buf *buf, unsigned g, uint64_t version)
{
	test_fill(buf->data, BLOCK_BYTES, version * GROUPS + g);
}

static int work_once(struct world *w, unsigned g)
{
	struct fs *fs = w->t.fs;
	struct row_run run;
	struct group_change c = {.g = g, .len = 64 + (uint32_t)(test_random(&w->seed) % 900)};
	c.e.version = ++w->tried[g];
	bool data = test_random(&w->seed) % 2;
	int rc = 0;
	if (data) {
		rc = space_take_rows(fs, test_random(&w->seed) % 4 ? SPACE_SMALL : SPACE_STREAM, 1, &run);
		if (rc)
			return rc;
		struct slice v[2] = {
			{buf_alloc(BLOCK_BYTES), 0, BLOCK_BYTES}, {buf_zero(), 0, (fs->geometry.k - 1) * BLOCK_BYTES}};
		block_fill(v[0].buf, g, c.e.version);
		rc = volume_write_rows(fs->volume, run.stripe, run.row, 1, v, 2, VOLUME_DURABLE);
		buf_put(v[0].buf);
		c.e.has_block = 1;
		c.e.block = run.stripe * volume_stripe_blocks(&fs->geometry) + run.row;
	}
	if (!rc)
		rc = fs_transact_durable(fs, group_pass, &c);
	if (!rc)
		w->acked[g] = c.e.version;
	if (data)
		space_rows_done(fs, &run);
	return rc;
}

static void worker(void *arg)
{
	struct world *w = arg;
	unsigned mine = w->steps++;
	int rc = 0;
	for (unsigned i = 0; i < 40 && !rc; i++) {
		unsigned g = (unsigned)(test_random(&w->seed) % (GROUPS / FIBERS)) * FIBERS + mine % FIBERS;
		rc = work_once(w, g);
		if (w->checkpoints && !rc && test_random(&w->seed) % 12 == 0)
			checkpoint_kick(w->t.fs);
	}
	wait_group_done(&w->group, rc);
}

/* What the tree says, group by group. */
static bool world_is_right(struct world *w)
{
	struct fs *fs = w->t.fs;
	struct buf *want = buf_alloc(BLOCK_BYTES), *have = buf_alloc(BLOCK_BYTES);
	uint64_t live = 0;
	bool right = true;
	for (unsigned g = 0; g < GROUPS && right; g++) {
		struct entry first = {0};
		for (unsigned i = 0; i < KEYS && right; i++) {
			struct fs_key key = group_key(g, i);
			struct entry e = {0};
			int rc = tree_get(fs, &key, &e, sizeof(e));
			if (rc < 0 && rc != -ENOENT)
				right = false;
			if (i == 0)
				first = e;
			else if (memcmp(&first, &e, sizeof(e)))
				right = false;
		}
		if (first.version < w->acked[g] || first.version > w->tried[g])
			right = false;
		if (!right)
			fprintf(stderr, "group %u: version %llu, acknowledged %llu, tried %llu\n", g,
				(unsigned long long)first.version, (unsigned long long)w->acked[g],
				(unsigned long long)w->tried[g]);
		/* the next life goes on from what there is */
		w->acked[g] = first.version;
		if (!right || !first.has_block)
			continue;
		live++;
		struct slice s = {have, 0, BLOCK_BYTES};
		block_fill(want, g, first.version);
		if (volume_read(fs->volume, first.block, &s, 1) || memcmp(want->data, have->data, BLOCK_BYTES)) {
			fprintf(stderr, "group %u: block %llu is not what it was\n", g,
				(unsigned long long)first.block);
			right = false;
		}
	}
	buf_put(want);
	buf_put(have);
	if (right && fs->space.live_data != live) {
		fprintf(stderr, "live data: counted %llu, recorded %llu\n", (unsigned long long)live,
			(unsigned long long)fs->space.live_data);
		right = false;
	}
	return right;
}

static void world_cut(struct world *w)
{
	for (unsigned i = 0; i < DRIVES; i++)
		fault_power_cut(
			w->t.drives.path[i] + 6, test_random(&w->seed), (unsigned)(test_random(&w->seed) % 3 * 500));
}

static void crash_body(void *arg)
{
	struct world *w = calloc(1, sizeof(*w));
	unsigned cycles = *(unsigned *)arg, cuts = 0;
	w->seed = 7;
	fprintf(stderr, "seed %llu\n", (unsigned long long)w->seed);
	atomic_store(&log_threshold, -1);
	CHECK_OK(tree_test_make(&w->t, 6, DRIVES, 16u << 20, "fault:"), w->t.err);
	uint64_t verifier = 0, change = 0;
	for (unsigned cycle = 0; cycle < cycles; cycle++) {
		for (unsigned i = 0; i < DRIVES; i++)
			fault_volatile_cache(w->t.drives.path[i] + 6, true);
		/* the cut may come at any write: of the mount, of the work, of a checkpoint, of the unmount */
		fault_write_limit(1 + cycle % 97 * 5 + cycle / 97);
		w->steps = 0;
		w->checkpoints = cycle % 3 != 0;
		int rc = tree_test_mount(&w->t);
		bool lived = !rc; /* else nobody can have written anything */
		if (!rc) {
			wait_group_init(&w->group);
			for (unsigned i = 0; i < FIBERS; i++) {
				wait_group_add(&w->group, 1);
				CHECK(fiber_spawn(worker, w) == 0);
			}
			rc = wait_group_wait(&w->group);
		}
		if (cycle % 5 == 0)
			world_cut(w); /* in the midst of a checkpoint, perhaps */
		int end = tree_test_unmount(&w->t);
		if (!rc)
			rc = end;
		cuts += rc != 0;
		fault_write_limit(0);
		world_cut(w);
		tree_test_close(&w->t);
		if (tree_test_open(&w->t)) {
			snprintf(test_failure, sizeof(test_failure), "cycle %u: %s", cycle, w->t.err.text);
			return;
		}
		if (tree_test_mount(&w->t)) {
			snprintf(test_failure, sizeof(test_failure), "cycle %u: %s", cycle, w->t.err.text);
			return;
		}
		if (rc && lived && fs_write_verifier(w->t.fs) == verifier) {
			snprintf(test_failure, sizeof(test_failure), "cycle %u: verifier after a cut", cycle);
			return;
		}
		verifier = fs_write_verifier(w->t.fs);
		uint64_t next = fs_change_next(w->t.fs);
		CHECK(next > change);
		change = next;
		if (!world_is_right(w)) {
			snprintf(test_failure, sizeof(test_failure), "cycle %u", cycle);
			return;
		}
		CHECK_OK(fs_checkpoint(w->t.fs), w->t.err);
		CHECK(tree_test_space_is_right(w->t.fs));
		CHECK(world_is_right(w));
		CHECK_OK(tree_test_unmount(&w->t), w->t.err);
	}
	CHECK(cuts > cycles / 2);
	fault_reset();
	tree_test_end(&w->t);
	free(w);
}

static void test_cut_everywhere(void **state)
{
	(void)state;
	unsigned cycles = getenv("FURROW_CRASH_CYCLES") ? (unsigned)atoi(getenv("FURROW_CRASH_CYCLES")) : 300;
	raid_test_run(crash_body, &cycles);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_cut_everywhere)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
