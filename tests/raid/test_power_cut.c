/*
 * The power is cut after every single write that a drive gets, and of what no drive had made durable by then any
 * part may be there and any may be missing; then any members that the level can do without are gone as well. The
 * array must start, and what had been acknowledged must read back right.
 *
 * A small array runs a fixed piece of work: opening, rows with and without a flush, the log written and written over,
 * and where there is redundancy a member that is taken out, written past and brought back. The work is repeated
 * with a cut after write 1, 2, 3, ... of it. What lies in the volatile caches then, block by block, is put onto the
 * drives in every combination: all of them up to 2^BITS, above that none, all, each one alone, all but each one, and
 * random ones (superblocks of a commit are 4 blocks for each drive). With every one of these, all sets of members that
 * may be lost are lost; where there are more than 12 such sets (levels 50 and 60) that holds for "none" and "all", and
 * the other combinations take some of them in turn. A start writes superblocks itself: that stays in the caches
 * (fault_overlay()) and is thrown away.
 *
 * FURROW_LONG: every cut, 2^8 combinations and 64 random ones. Else a sample: 2^4 and 6, and not every cut. LEVEL runs
 * one level alone.
 */
#include "tests/raid/raid_test.h"

#define DRIVE_BYTES_SMALL (4ull << 20)
#define STRIPES 3u
#define ROWS 4u
#define LOG_BLOCKS 3u
#define CACHED_MOST 512u
#define LOSTS_ALWAYS 12u
#define LOSTS_IN_TURN 4u

struct unit {
	unsigned drive;
	uint64_t block;
	uint8_t fresh[BLOCK_BYTES], old[BLOCK_BYTES];
};

struct cut {
	struct raid_test t;
	unsigned level, groups, width, m, k;
	uint8_t *base[TEST_DRIVES_MAX];
	/* what was acknowledged; 0: nothing, it may be anything */
	uint64_t row[STRIPES][ROWS];
	uint64_t log[LOG_BLOCKS],
		log_old[LOG_BLOCKS]; /* ... and what may be there instead, when it was being written */
	uint16_t away;		     /* slots that cannot be counted on */
	struct unit *unit;
	unsigned units;
	uint16_t lost[256]; /* sets of members that the level can do without; all of them, whoever is away */
	unsigned losts, next_lost;
	uint64_t writes, starts, cuts, subsets, exhaustive;
	char why[300];
};

static bool cut_fail(struct cut *c, int line, const char *what, long value)
{
	if (!c->why[0])
		snprintf(c->why, sizeof(c->why), "test_power_cut.c:%d: %s (%ld)", line, what, value);
	return false;
}
#define MUST(c, cond, value)                                                                                           \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			return cut_fail(c, __LINE__, #cond, (long)(value));                                            \
	} while (0)

static void block_fill(uint8_t *to, uint64_t seed, unsigned pos)
{
	test_fill(to, BLOCK_BYTES, seed * 131 + pos + 1);
}

static bool block_is(const uint8_t *at, uint64_t seed, unsigned pos)
{
	static uint8_t want[BLOCK_BYTES];
	block_fill(want, seed, pos);
	return memcmp(at, want, BLOCK_BYTES) == 0;
}

/* ---- the work ---- */

struct work {
	struct cut *c;
	struct array *array;
	struct volume *v;
	uint64_t next; /* content */
	int r;	       /* of the last step; nothing more is done after an error */
};

static void work_row(struct work *w, unsigned stripe, unsigned row, bool durable)
{
	struct slice v[TEST_DRIVES_MAX];
	uint64_t content = ++w->next;
	if (w->r)
		return;
	for (unsigned i = 0; i < w->c->k; i++) {
		v[i] = (struct slice){.buf = buf_alloc(BLOCK_BYTES), .off = 0, .len = BLOCK_BYTES};
		block_fill(v[i].buf->data, content, i);
	}
	w->r = volume_write_rows(w->v, stripe, row, 1, v, w->c->k, durable ? VOLUME_DURABLE : 0);
	slices_put(v, w->c->k);
	if (!w->r && durable)
		w->c->row[stripe][row] = content;
}

static void work_flush(struct work *w, unsigned stripe, unsigned row, uint64_t content)
{
	if (!w->r)
		w->r = volume_flush(w->v);
	if (!w->r)
		w->c->row[stripe][row] = content;
}

static void work_log(struct work *w, unsigned block)
{
	uint64_t content = ++w->next;
	if (w->r)
		return;
	struct slice v = {.buf = buf_alloc(BLOCK_BYTES), .off = 0, .len = BLOCK_BYTES};
	block_fill(v.buf->data, content, 0);
	w->c->log_old[block] = w->c->log[block] ? w->c->log[block] : UINT64_MAX;
	w->c->log[block] = content;
	w->r = volume_log_write(w->v, block, &v, 1);
	buf_put(v.buf);
	if (!w->r)
		w->c->log_old[block] = 0;
}

static void work_open(struct work *w, bool make)
{
	struct error err = {0};
	w->r = raid_test_open_volume(&w->c->t, make, &w->array, &w->v, &err);
}

static void work_close(struct work *w)
{
	if (w->v)
		volume_close(w->v);
	if (w->array)
		array_close(w->array);
	w->v = NULL;
	w->array = NULL;
}

static int work_all(struct cut *c)
{
	struct work w = {.c = c, .next = 100};
	struct error err = {0};
	work_open(&w, false);
	work_row(&w, 0, 1, true);
	work_row(&w, 0, 2, false);
	uint64_t content = w.next;
	work_log(&w, 1);
	work_flush(&w, 0, 2, content);
	work_log(&w, 0);
	if (c->m && !w.r) {
		c->away |= 1;
		w.r = array_fail(w.array, 0, &err);
		work_row(&w, 0, 3, true);
		work_log(&w, 2);
		work_row(&w, 1, 0, false);
		if (!w.r) {
			array_tune(w.array, &(struct rebuild_tuning){.latency_target_ns = 0});
			w.r = array_keep(w.array, &err);
		}
		if (!w.r)
			w.r = array_add(w.array, c->t.path[0], NULL, NULL, &err);
		if (!w.r)
			w.r = array_settled(w.array, NULL, NULL);
		if (!w.r)
			c->away &= (uint16_t)~1u;
		work_row(&w, 1, 1, true);
	}
	int r = w.r;
	work_close(&w);
	return r;
}

/* ---- after the cut ---- */

static bool verify_block(struct cut *c, const uint8_t *data, uint64_t content, unsigned pos, const char *what)
{
	return block_is(data, content, pos) || cut_fail(c, __LINE__, what, (long)content);
}

static bool verify(struct cut *c, uint16_t lost)
{
	struct raid_scan scan;
	struct error err = {0};
	struct work w = {.c = c};
	const char *paths[TEST_DRIVES_MAX];
	unsigned n = 0;
	bool good = true;
	for (unsigned i = 0; i < c->t.count; i++)
		if (!(lost & 1u << i))
			paths[n++] = c->t.path[i];
	c->starts++;
	int r = raid_scan(paths, n, &scan, &err);
	if (!r) {
		r = array_open(&scan, "a0", &w.array, &err);
		raid_scan_free(&scan);
	}
	if (!r)
		r = volume_open(w.array, "v", &w.v, &err);
	if (r) {
		char text[200];
		snprintf(text, sizeof(text), "%.150s (lost %x)", err.text, lost);
		work_close(&w);
		return cut_fail(c, __LINE__, text, r);
	}
	const struct volume_geometry *g = volume_geometry(w.v);
	struct slice to = {.buf = buf_alloc(BLOCK_BYTES), .off = 0, .len = BLOCK_BYTES};
	for (unsigned s = 0; s < STRIPES && good; s++)
		for (unsigned row = 0; row < ROWS && good; row++)
			for (unsigned pos = 0; pos < g->k && good; pos++) {
				r = volume_read(w.v, ((uint64_t)s * g->k + pos) * g->strip_blocks + row, &to, 1);
				good = r == 0 || cut_fail(c, __LINE__, "a row cannot be read", r);
				if (good && c->row[s][row])
					good = verify_block(c, to.buf->data, c->row[s][row], pos, "a row is wrong");
			}
	for (unsigned b = 0; b < LOG_BLOCKS && good; b++) {
		unsigned copies = 0;
		for (unsigned copy = 0; copy < g->log_copies && good; copy++) {
			r = volume_log_read(w.v, b, copy, &to, 1);
			if (r == -EIO)
				continue;
			good = r == 0 || cut_fail(c, __LINE__, "the log cannot be read", r);
			copies++;
			if (!good || !c->log[b] || c->log_old[b] == UINT64_MAX)
				continue;
			if (!c->log_old[b] || !block_is(to.buf->data, c->log_old[b], 0))
				good = verify_block(c, to.buf->data, c->log[b], 0, "a block of the log is wrong");
		}
		if (good && !copies)
			good = cut_fail(c, __LINE__, "no copy of a block of the log", b);
	}
	buf_put(to.buf);
	work_close(&w);
	return good;
}

/* Whether the level bears that LOST and who is away are not there. */
static bool bearable(const struct cut *c, uint16_t lost)
{
	for (unsigned g = 0; g < c->t.count / c->width; g++) {
		uint16_t mask = (uint16_t)(((1u << c->width) - 1) << (g * c->width));
		if ((unsigned)__builtin_popcount((lost | c->away) & mask) > c->m)
			return false;
	}
	return true;
}

static void file_write(struct cut *c, unsigned drive, uint64_t offset, const void *data, size_t bytes)
{
	int fd = open(raid_test_file(c->t.path[drive]), O_RDWR | O_CLOEXEC);
	if (fd < 0 || pwrite(fd, data, bytes, (off_t)offset) != (ssize_t)bytes)
		abort();
	close(fd);
}

static void file_read(struct cut *c, unsigned drive, uint64_t offset, void *data, size_t bytes)
{
	int fd = open(raid_test_file(c->t.path[drive]), O_RDONLY | O_CLOEXEC);
	if (fd < 0 || pread(fd, data, bytes, (off_t)offset) != (ssize_t)bytes)
		abort();
	close(fd);
}

static void caches_drop(struct cut *c)
{
	for (unsigned i = 0; i < c->t.count; i++)
		fault_power_cut(c->t.path[i], 0, 0);
}

/* With the blocks in SUBSET on the drives: all sets of lost members, or a few of them in turn. */
static bool subset_try(struct cut *c, const uint8_t *subset, bool all)
{
	for (unsigned i = 0; i < c->units; i++)
		file_write(c, c->unit[i].drive, c->unit[i].block << BLOCK_SHIFT,
			subset[i] ? c->unit[i].fresh : c->unit[i].old, BLOCK_BYTES);
	bool good = true;
	unsigned count = all || c->losts <= LOSTS_ALWAYS ? c->losts : LOSTS_IN_TURN;
	c->subsets++;
	fault_overlay(true);
	for (unsigned i = 0; i < count && good; i++) {
		uint16_t lost = c->lost[count == c->losts ? i : c->next_lost++ % c->losts];
		if (!bearable(c, lost))
			continue;
		good = verify(c, lost);
		caches_drop(c);
	}
	fault_overlay(false);
	return good;
}

static bool subsets_try(struct cut *c, uint64_t *seed)
{
	uint8_t subset[CACHED_MOST];
	bool good = true, thorough = getenv("FURROW_LONG") != NULL;
	unsigned bits = thorough ? 8 : 4, more = thorough ? 64 : 6;
	if (c->units <= bits) {
		c->exhaustive++;
		for (unsigned mask = 0; mask < 1u << c->units && good; mask++) {
			for (unsigned i = 0; i < c->units; i++)
				subset[i] = mask >> i & 1;
			good = subset_try(c, subset, mask == 0 || mask == (1u << c->units) - 1);
		}
		return good;
	}
	for (unsigned i = 0; i < 2 && good; i++) {
		memset(subset, (int)i, c->units);
		good = subset_try(c, subset, true);
	}
	for (unsigned i = 0; i < 2 * c->units && thorough && good; i++) {
		memset(subset, i & 1, c->units);
		subset[i / 2] = !(i & 1);
		good = subset_try(c, subset, false);
	}
	for (unsigned i = 0; i < more && good; i++) {
		uint64_t chance = test_random(seed) % 7 + 1;
		for (unsigned j = 0; j < c->units; j++)
			subset[j] = test_random(seed) % 8 < chance;
		good = subset_try(c, subset, false);
	}
	return good;
}

static void units_collect(struct cut *c)
{
	static uint64_t block[CACHED_MOST];
	uint8_t(*data)[BLOCK_BYTES] = malloc(CACHED_MOST * BLOCK_BYTES);
	c->units = 0;
	for (unsigned i = 0; i < c->t.count; i++) {
		unsigned n = fault_cached(c->t.path[i], block, data, CACHED_MOST);
		for (unsigned j = 0; j < n && c->units < CACHED_MOST; j++) {
			struct unit *u = &c->unit[c->units++];
			u->drive = i;
			u->block = block[j];
			memcpy(u->fresh, data[j], BLOCK_BYTES);
			file_read(c, i, block[j] << BLOCK_SHIFT, u->old, BLOCK_BYTES);
		}
	}
	free(data);
}

struct shape {
	unsigned level, drives, stride; /* every so many-th cut in the fast mode */
};

static void cut_state_reset(struct cut *c)
{
	memset(c->row, 0, sizeof(c->row));
	memset(c->log, 0, sizeof(c->log));
	memset(c->log_old, 0, sizeof(c->log_old));
	c->away = 0;
	c->row[0][0] = 1;
	c->log[0] = 2;
}

static void cut_body(void *arg)
{
	const struct shape *shape = arg;
	struct error err = {0};
	struct cut *c = calloc(1, sizeof(*c));
	struct geometry geometry;
	uint64_t seed = shape->level * 100 + shape->drives;
	fault_reset();
	c->level = shape->level;
	CHECK(level_geometry(shape->level, shape->drives, 0, &geometry, c->why, sizeof(c->why)) == 0);
	c->k = geometry.k;
	c->m = geometry.m;
	c->width = geometry.k + geometry.m;
	c->unit = calloc(CACHED_MOST, sizeof(*c->unit));
	raid_test_drives(&c->t, shape->drives, DRIVE_BYTES_SMALL, "fault:");
	CHECK_OK(raid_test_create(&c->t, shape->level, 16384, &err), err);
	struct work w = {.c = c};
	work_open(&w, true);
	work_row(&w, 0, 0, true);
	work_log(&w, 0);
	CHECK(w.r == 0);
	work_close(&w);
	for (unsigned i = 0; i < shape->drives; i++) {
		c->base[i] = malloc(DRIVE_BYTES_SMALL);
		file_read(c, i, 0, c->base[i], DRIVE_BYTES_SMALL);
		fault_volatile_cache(c->t.path[i], true);
	}
	cut_state_reset(c);
	for (unsigned lost = 0; lost < 1u << shape->drives; lost++)
		if (bearable(c, (uint16_t)lost))
			c->lost[c->losts++] = (uint16_t)lost;
	/* the work without a cut tells how many writes it has */
	uint64_t before = fault_writes();
	CHECK(work_all(c) == 0);
	c->writes = fault_writes() - before;
	CHECK(c->writes > 5 * shape->drives);
	unsigned stride = getenv("FURROW_LONG") ? 1 : shape->stride;
	for (uint64_t limit = 1; limit <= c->writes + 1 && !c->why[0]; limit += limit < 4 ? 1 : stride) {
		caches_drop(c);
		for (unsigned i = 0; i < shape->drives; i++)
			file_write(c, i, 0, c->base[i], DRIVE_BYTES_SMALL);
		cut_state_reset(c);
		fault_write_limit(limit);
		(void)work_all(c);
		fault_write_limit(0);
		units_collect(c);
		caches_drop(c);
		c->cuts++;
		if (!subsets_try(c, &seed)) {
			snprintf(test_failure, sizeof(test_failure),
				"level %u, %u drives, cut after write %llu of %llu, %u blocks in caches: %s",
				shape->level, shape->drives, (unsigned long long)limit, (unsigned long long)c->writes,
				c->units, c->why);
			break;
		}
	}
	print_message("level %u, %u drives: %llu writes, %llu cuts (%llu with all combinations of what was in caches), "
		      "%llu combinations, %u sets of lost members, %llu starts\n",
		shape->level, shape->drives, (unsigned long long)c->writes, (unsigned long long)c->cuts,
		(unsigned long long)c->exhaustive, (unsigned long long)c->subsets, c->losts,
		(unsigned long long)c->starts);
	raid_test_remove(&c->t);
	fault_reset();
	for (unsigned i = 0; i < shape->drives; i++)
		free(c->base[i]);
	free(c->unit);
	free(c);
}

#define CUT_TEST(name, ...)                                                                                            \
	static void test_##name(void **state)                                                                          \
	{                                                                                                              \
		struct shape shape = {__VA_ARGS__};                                                                    \
		(void)state;                                                                                           \
		if (getenv("LEVEL") && strtoul(getenv("LEVEL"), NULL, 10) != shape.level)                              \
			skip();                                                                                        \
		atomic_store(&log_threshold, getenv("FURROW_TALK") ? LOG_INFO : -1);                                   \
		raid_test_run(cut_body, &shape);                                                                       \
	}
CUT_TEST(level_0, 0, 2, 1)
CUT_TEST(level_1, 1, 2, 2)
CUT_TEST(level_1_of_3, 1, 3, 7)
CUT_TEST(level_5, 5, 3, 4)
CUT_TEST(level_6, 6, 4, 11)
CUT_TEST(level_10, 10, 4, 7)
CUT_TEST(level_50, 50, 6, 23)
CUT_TEST(level_60, 60, 8, 61)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_level_0),
		cmocka_unit_test(test_level_1),
		cmocka_unit_test(test_level_1_of_3),
		cmocka_unit_test(test_level_5),
		cmocka_unit_test(test_level_6),
		cmocka_unit_test(test_level_10),
		cmocka_unit_test(test_level_50),
		cmocka_unit_test(test_level_60),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
