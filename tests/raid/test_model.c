/*
 * Random operations with random faults beside a simple model, at every level. The model knows for each row and each
 * block of the log what it must read as, and which members it expects to lie about it; it keeps the faults
 * within what the level promises to bear, and within that nothing may be lost or wrong.
 *
 * Faults: errors of reads and writes, torn and lost writes, flipped bits, delays, members that vanish or are taken out,
 * and power cuts between operations and inside of them, with the volatile caches lost in part. After a cut, a row that
 * was written but not made durable may hold anything: it is unknown until it is written again.
 *
 * Lies (lost writes) are told by the caller's checksums, here: by comparing. A block that reads wrong must come back
 * right by one of the ways of volume_reread(), and is repaired then.
 *
 * An episode is a new array and a number of operations; each draws from a seed of its own, so that an episode
 * replays with any of them left out. One that fails is made as short as it still fails with, and is printed:
 *   FURROW_REPLAY="level,drives,groups,seed:op,op,..." tests/raid/test_model
 * 5,000 operations a level; with FURROW_LONG in the environment 100,000. SEED sets the first seed, LEVEL runs that one
 * alone.
 */
#include "tests/raid/raid_test.h"

#define STRIPES 6u
#define ROWS 16u
#define LOG_BLOCKS 80u
#define EPISODE 250u
#define WIDTH 64u
#define WIDE_EVERY 40u /* episodes, of which one has more drives than a uint64_t bits, and is shorter */
#define WIDE_EPISODE 60u

struct shape {
	unsigned level, drives, groups;
};

/* Sets of slots. */
typedef unsigned __int128 slots_t;
#define SLOT(i) ((slots_t)1 << (i))

static unsigned slots_count(slots_t s)
{
	return (unsigned)(__builtin_popcountll((uint64_t)s) + __builtin_popcountll((uint64_t)(s >> 64)));
}

struct model {
	struct shape shape;
	struct raid_test t;
	struct array *array;
	struct volume *v;
	struct volume_geometry g;
	unsigned width;
	uint64_t seed;
	uint64_t row[STRIPES][ROWS]; /* seed of the content; 0: unknown */
	bool dirty[STRIPES][ROWS];
	slots_t lies[STRIPES][ROWS]; /* slots that hold something else there, and say nothing */
	uint64_t log[LOG_BLOCKS], log_before[LOG_BLOCKS];
	slots_t lost;		  /* slots that are not active */
	bool rebuilding, changed; /* ... or may change by themselves; or have */
	bool cutting;		  /* the power goes in the midst of it */
	unsigned bears;		  /* members of a group, whose loss or lie is within the promise */
	unsigned op;
	bool talk;
	char what[260]; /* the operation that runs */
	char why[400];	/* of the failure */
};

static bool model_fail(struct model *m, int line, const char *what, long value)
{
	if (!m->why[0])
		snprintf(m->why, sizeof(m->why), "test_model.c:%d: %.60s (%ld) in op %u, %.250s", line, what, value,
			m->op, m->what);
	return false;
}
#define MUST(m, cond, value)                                                                                           \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			return model_fail(m, __LINE__, #cond, (long)(value));                                          \
	} while (0)

static void model_say(struct model *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void model_say(struct model *m, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(m->what, sizeof(m->what), format, args);
	va_end(args);
	if (m->talk)
		print_message("  %4u: %s\n", m->op, m->what);
}

static uint64_t draw(struct model *m, uint64_t below)
{
	return test_random(&m->seed) % below;
}

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

/* ---- what the promise bears ---- */

static unsigned group_of(const struct model *m, uint64_t stripe)
{
	return (unsigned)((m->v->first_stripe + stripe) % (m->shape.drives / m->width));
}

static slots_t group_slots(const struct model *m, unsigned group)
{
	return (SLOT(m->width) - 1) << (group * m->width);
}

static unsigned slot_of(const struct model *m, uint64_t stripe, unsigned pos)
{
	unsigned groups = m->shape.drives / m->width;
	return group_of(m, stripe) * m->width + (unsigned)((pos + (m->v->first_stripe + stripe) / groups) % m->width);
}

/* Whether something is written to the group of SLOT at all: of many groups only some have stripes. */
static bool slot_used(const struct model *m, unsigned slot)
{
	bool used = false;
	for (unsigned s = 0; s < STRIPES; s++)
		used = used || group_of(m, s) == slot / m->width;
	return used;
}

/* Whether SLOT may be lost too, or lie about rows [row, row+rows) of STRIPE (all of its group with rows 0). */
static bool bearable(const struct model *m, unsigned slot, uint64_t stripe, uint32_t row, uint32_t rows)
{
	unsigned group = slot / m->width;
	slots_t also = m->lost | SLOT(slot), mask = group_slots(m, group);
	if (slots_count(also & mask) > m->bears)
		return false;
	for (unsigned s = 0; s < STRIPES; s++)
		for (unsigned r = 0; r < m->g.strip_blocks; r++)
			if (group_of(m, s) == group && (!rows || (s == stripe && r >= row && r < row + rows)) &&
				slots_count((also | m->lies[s][r]) & mask) > m->bears)
				return false;
	return true;
}

static void model_look(struct model *m)
{
	struct array_status *s = calloc(1, sizeof(*s));
	array_status(m->array, s);
	slots_t before = m->lost;
	m->lost = 0;
	m->rebuilding = s->rebuild.running;
	for (unsigned i = 0; i < m->shape.drives; i++) {
		if (s->member[i].state != MEMBER_ACTIVE)
			m->lost |= SLOT(i);
		m->rebuilding = m->rebuilding || s->member[i].state == MEMBER_REBUILDING;
	}
	free(s);
	m->changed = m->rebuilding || before != m->lost;
}

/* Who comes back is made from others, who may lie. */
static void model_spread(struct model *m)
{
	for (unsigned i = 0; i < STRIPES * ROWS; i++) {
		slots_t *lies = &m->lies[i / ROWS][i % ROWS];
		if (*lies)
			*lies |= m->lost & group_slots(m, group_of(m, i / ROWS));
	}
}

/* ---- opening and closing ---- */

/* Where there are many groups, the volume's stripes go round from the last of them to the first. */
static bool volumes_make(struct model *m, struct error *err)
{
	const struct geometry *g = &m->array->config.geometry[0];
	uint64_t before = g->groups > STRIPES ? (uint64_t)(g->groups - STRIPES / 2) * g->k * g->strip_bytes : 0;
	return (!before || volume_create(m->array, "before", before, err) == 0) &&
	       volume_create(m->array, "v", 0, err) == 0;
}

static bool model_open(struct model *m, bool make)
{
	struct error err = {0};
	m->array = NULL;
	m->v = NULL;
	if (raid_test_open(&m->t, &m->array, &err) || (make && !volumes_make(m, &err)) ||
		volume_open(m->array, "v", &m->v, &err))
		return model_fail(m, __LINE__, err.text, err.code);
	m->g = *volume_geometry(m->v);
	m->width = m->g.k + m->g.m;
	array_tune(m->array, &(struct rebuild_tuning){.latency_target_ns = 0});
	int r = draw(m, 4) ? array_keep(m->array, &err) : 0;
	MUST(m, r == 0, r);
	model_look(m);
	model_spread(m);
	return true;
}

static void model_close(struct model *m)
{
	if (m->v)
		volume_close(m->v);
	if (m->array)
		array_close(m->array);
	m->v = NULL;
	m->array = NULL;
}

/* After a power cut: what was not durable may be anything. */
static bool model_cut(struct model *m)
{
	unsigned keep = (unsigned)draw(m, 4) == 0 ? 0 : (unsigned)draw(m, 1001);
	for (unsigned i = 0; i < m->t.count; i++)
		fault_power_cut(m->t.path[i], test_random(&m->seed), keep);
	model_close(m);
	for (unsigned s = 0; s < STRIPES; s++)
		for (unsigned r = 0; r < ROWS; r++)
			if (m->dirty[s][r]) {
				m->row[s][r] = 0;
				m->lies[s][r] = 0;
				m->dirty[s][r] = false;
			}
	return model_open(m, false);
}

/* ---- writing ---- */

struct extent {
	uint64_t stripe;
	uint32_t row, rows;
};

static struct extent extent_draw(struct model *m)
{
	struct extent e = {.stripe = draw(m, STRIPES)};
	e.row = (uint32_t)draw(m, m->g.strip_blocks);
	e.rows = (uint32_t)draw(m, m->g.strip_blocks - e.row) + 1;
	if (draw(m, 4) == 0)
		e = (struct extent){.stripe = e.stripe, .row = 0, .rows = m->g.strip_blocks};
	return e;
}

/* Writes E; *RESULT is what volume_write_rows() said. */
static bool model_write_at(struct model *m, struct extent e, int *result)
{
	uint64_t content = test_random(&m->seed) | 1;
	bool durable = draw(m, 2);
	struct buf *bufs[WIDTH];
	struct slice *v = malloc(m->g.k * ROWS * sizeof(*v));
	unsigned n = 0;
	for (unsigned d = 0; d < m->g.k; d++) {
		bufs[d] = buf_alloc(e.rows * BLOCK_BYTES);
		for (uint32_t i = 0; i < e.rows; i++)
			block_fill(bufs[d]->data + (size_t)i * BLOCK_BYTES, content + i, d);
		/* cut into slices at random block bounds */
		for (uint32_t at = 0; at < e.rows;) {
			uint32_t len = (uint32_t)draw(m, e.rows - at) + 1;
			v[n++] = (struct slice){.buf = bufs[d], .off = at * BLOCK_BYTES, .len = len * BLOCK_BYTES};
			at += len;
		}
	}
	int r = volume_write_rows(m->v, e.stripe, e.row, e.rows, v, n, durable ? VOLUME_DURABLE : 0);
	for (unsigned d = 0; d < m->g.k; d++)
		buf_put(bufs[d]);
	free(v);
	for (uint32_t i = 0; i < e.rows; i++) {
		m->row[e.stripe][e.row + i] = r ? 0 : content + i;
		m->dirty[e.stripe][e.row + i] = !durable;
		m->lies[e.stripe][e.row + i] = 0;
	}
	*result = r;
	return true;
}

static bool model_write(struct model *m)
{
	struct extent e = extent_draw(m);
	int r;
	model_say(m, "write stripe %u rows %u+%u", (unsigned)e.stripe, e.row, e.rows);
	if (!model_write_at(m, e, &r))
		return false;
	MUST(m, r == 0, r);
	return true;
}

/* A write of which one member's part fails in the way KIND. */
static bool model_write_fault(struct model *m, enum fault_kind kind)
{
	struct extent e = extent_draw(m);
	unsigned slot = slot_of(m, e.stripe, (unsigned)draw(m, m->width));
	model_say(m, "write stripe %u rows %u+%u, slot %u: fault %d", (unsigned)e.stripe, e.row, e.rows, slot, kind);
	if ((m->lost & SLOT(slot)) || !bearable(m, slot, e.stripe, e.row, kind == FAULT_LOST_WRITE ? e.rows : 0))
		return true;
	int r;
	fault_inject(m->t.path[slot], kind, 1, 0);
	if (!model_write_at(m, e, &r))
		return false;
	MUST(m, r == 0, r);
	if (kind == FAULT_LOST_WRITE) {
		for (uint32_t i = 0; i < e.rows; i++)
			m->lies[e.stripe][e.row + i] = SLOT(slot);
		model_spread(m);
		return true;
	}
	model_look(m);
	MUST(m, m->lost & SLOT(slot), m->lost);
	if (kind == FAULT_WRITE_ERROR)
		fault_inject(m->t.path[slot], FAULT_NONE, 0, 0);
	return true;
}

/* ---- reading ---- */

/* Reads BLOCK in all ways; FLAT is what was read at first, LIED whether a member lied then. KIND: a fault that may hit
 * one of the reads. */
static bool model_ways(struct model *m, uint64_t block, const uint8_t *flat, bool lied, enum fault_kind kind)
{
	bool flipped = kind == FAULT_BIT_FLIP;
	uint64_t stripe_blocks = volume_stripe_blocks(&m->g), s = block / stripe_blocks, in = block % stripe_blocks;
	unsigned pos = (unsigned)(in / m->g.strip_blocks), row = (unsigned)(in % m->g.strip_blocks);
	uint64_t content = m->row[s][row];
	if (!content)
		return true;
	bool right = block_is(flat, content, pos), honest = !m->lies[s][row];
	MUST(m, right || lied || flipped, block);
	struct payload p;
	payload_make(&p, BLOCK_BYTES, BLOCK_BYTES, 0);
	unsigned good = 0, ways = 0;
	int r = 0;
	for (unsigned attempt = 0; r != -ENOENT && attempt < 2 * WIDTH; attempt++) {
		r = volume_reread(m->v, block, attempt, p.v);
		if (r == -ETIMEDOUT) { /* the drive keeps the memory */
			payload_free(&p);
			payload_make(&p, BLOCK_BYTES, BLOCK_BYTES, 0);
		}
		if (r)
			continue;
		bool same = block_is(p.v[0].buf->data, content, pos);
		ways++;
		good += same;
		if (honest && !same && !flipped)
			return payload_free(&p), model_fail(m, __LINE__, "a way gives wrong data", attempt);
		if (!right && same) {
			r = volume_repair(m->v, block, p.v);
			if (r)
				break;
			right = true;
			m->dirty[s][row] = true;
			if (!(m->lost & SLOT(slot_of(m, s, pos))))
				m->lies[s][row] &= ~SLOT(slot_of(m, s, pos));
			if (!honest)
				break;
		}
	}
	payload_free(&p);
	MUST(m, r == 0 || r == -ENOENT, r);
	MUST(m, right && (good || (kind != FAULT_NONE && !m->g.m)), good);
	/* the own copy, and every set of K others that are there */
	bool quiet = !m->rebuilding;
	model_look(m);
	if (honest && kind == FAULT_NONE && quiet && !m->changed && m->g.k > 1 && m->g.m) {
		unsigned there = m->width - 1, own = m->lost & SLOT(slot_of(m, s, pos)) ? 0 : 1;
		for (unsigned q = 0; q < m->width; q++)
			there -= q != pos && (m->lost & SLOT(slot_of(m, s, q)));
		unsigned sets = there < m->g.k ? 0 : there == m->g.k ? 1 : m->g.k + 1;
		MUST(m, ways == own + sets, ways);
	}
	return true;
}

/* Says of all that was read right at first that it is: what a drive could not read of it is written again. */
static void model_verified(struct model *m, uint64_t block, uint64_t n, const uint8_t *flat, const struct payload *p)
{
	uint64_t stripe_blocks = volume_stripe_blocks(&m->g), first = 0;
	for (uint64_t i = 0; i <= n; i++) {
		uint64_t in = (block + i) % stripe_blocks, s = (block + i) / stripe_blocks;
		unsigned row = (unsigned)(in % m->g.strip_blocks);
		if (i < n && m->row[s][row] &&
			block_is(flat + i * BLOCK_BYTES, m->row[s][row], (unsigned)(in / m->g.strip_blocks)))
			continue;
		struct slice cut[64];
		int count =
			i > first ? slices_cut(p->v, p->n, first * BLOCK_BYTES, (i - first) * BLOCK_BYTES, cut, 64) : 0;
		if (count > 0)
			volume_verified(m->v, block + first, cut, (unsigned)count);
		first = i + 1;
	}
}

static bool model_read_at(struct model *m, uint64_t block, uint64_t n, enum fault_kind kind)
{
	uint64_t stripe_blocks = volume_stripe_blocks(&m->g);
	struct payload p;
	int r;
	unsigned tries = 0;
	do {
		/* with new buffers after a time-out; and after an error that there is no redundancy for */
		payload_make(&p, n * BLOCK_BYTES, draw(m, 2) ? 65536 : 8192, 0);
		r = volume_read(m->v, block, p.v, p.n);
		if (r)
			payload_free(&p);
	} while (r && ++tries < 4 && (r == -ETIMEDOUT || (kind == FAULT_READ_ERROR && !m->g.m && r == -EIO)));
	MUST(m, r == 0, r);
	uint8_t *flat = malloc(p.bytes);
	slices_copy_out(p.v, p.n, 0, flat, p.bytes);
	bool good = true, lied[STRIPES][ROWS];
	for (unsigned i = 0; i < STRIPES * ROWS; i++)
		lied[i / ROWS][i % ROWS] = m->lies[i / ROWS][i % ROWS] != 0;
	uint64_t chosen = draw(m, n);
	for (uint64_t i = 0; i < n && good; i++) {
		uint64_t in = (block + i) % stripe_blocks, s = (block + i) / stripe_blocks;
		unsigned row = (unsigned)(in % m->g.strip_blocks);
		if (i == chosen || (m->row[s][row] && !block_is(flat + i * BLOCK_BYTES, m->row[s][row],
							      (unsigned)(in / m->g.strip_blocks))))
			good = model_ways(m, block + i, flat + i * BLOCK_BYTES, lied[s][row], kind);
	}
	if (good)
		model_verified(m, block, n, flat, &p);
	payload_free(&p);
	free(flat);
	return good;
}

static bool model_read(struct model *m, enum fault_kind kind)
{
	uint64_t all = volume_stripe_blocks(&m->g) * STRIPES;
	uint64_t block = draw(m, all), n = draw(m, 40) + 1;
	unsigned slot = (unsigned)draw(m, m->shape.drives);
	n = n < all - block ? n : all - block;
	model_say(m, "read blocks %u+%u, slot %u: fault %d", (unsigned)block, (unsigned)n, slot, kind);
	if (kind != FAULT_DELAY && ((m->lost & SLOT(slot)) || (m->g.m && !bearable(m, slot, 0, 0, 0))))
		kind = FAULT_NONE;
	/* a rebuild that is under way may be who reads the flipped bit: then who is rebuilt lies from now on */
	for (unsigned s = 0; s < STRIPES && kind == FAULT_BIT_FLIP && m->rebuilding; s++)
		for (unsigned r = 0; r < ROWS; r++)
			if (group_of(m, s) == slot / m->width)
				m->lies[s][r] |= m->lost & group_slots(m, slot / m->width);
	if (kind != FAULT_NONE && kind != FAULT_DELAY)
		fault_inject(m->t.path[slot], kind, 1 + draw(m, 3), kind == FAULT_BIT_FLIP ? draw(m, 1u << 30) : 0);
	bool good = model_read_at(m, block, n, kind);
	if (kind != FAULT_NONE && kind != FAULT_DELAY)
		fault_inject(m->t.path[slot], FAULT_NONE, 0, 0);
	return good;
}

/* ---- the log ---- */

static bool model_log(struct model *m, int *result)
{
	uint64_t block = draw(m, LOG_BLOCKS), n = draw(m, 20) + 1;
	n = n < LOG_BLOCKS - block ? n : LOG_BLOCKS - block;
	bool write = draw(m, 2);
	model_say(m, "%s log %u+%u", write ? "write" : "read", (unsigned)block, (unsigned)n);
	struct payload p;
	payload_make(&p, n * BLOCK_BYTES, draw(m, 2) ? 65536 : BLOCK_BYTES, 0);
	uint8_t *flat = malloc(p.bytes);
	int r = 0;
	if (write) {
		for (uint64_t i = 0; i < n; i++) {
			m->log_before[block + i] = m->log[block + i];
			m->log[block + i] = test_random(&m->seed) | 1;
			block_fill(flat + i * BLOCK_BYTES, m->log[block + i], 0);
		}
		slices_copy_in(p.v, p.n, 0, flat, p.bytes);
		r = volume_log_write(m->v, block, p.v, p.n);
		for (uint64_t i = 0; i < n && r; i++)
			m->log[block + i] = 0;
	}
	unsigned copies = 0;
	bool same = true, missing = false;
	int e = 0;
	for (unsigned copy = 0; copy < m->g.log_copies && !r && same; copy++) {
		e = volume_log_read(m->v, block, copy, p.v, p.n);
		if (e == -ETIMEDOUT) {
			payload_free(&p);
			payload_make(&p, n * BLOCK_BYTES, BLOCK_BYTES, 0);
			e = volume_log_read(m->v, block, copy, p.v, p.n);
		}
		if (e)
			model_look(m);
		if (e && e != -EIO)
			break;
		if (e && (m->lost || m->changed)) {
			e = 0;
			missing = true;
			continue;
		}
		if (e)
			break;
		copies++;
		slices_copy_out(p.v, p.n, 0, flat, p.bytes);
		for (uint64_t i = 0; i < n && same; i++)
			same = !m->log[block + i] || block_is(flat + i * BLOCK_BYTES, m->log[block + i], 0);
		if (!same) {
			uint64_t i = 0;
			while (!m->log[block + i] || block_is(flat + i * BLOCK_BYTES, m->log[block + i], 0))
				i++;
			struct place place = layout_log(&m->array->config,
				m->v->log_first + (block + i) / (LOG_CHUNK_BYTES / BLOCK_BYTES), copy);
			bool older = m->log_before[block + i] &&
				     block_is(flat + i * BLOCK_BYTES, m->log_before[block + i], 0);
			char say[260];
			snprintf(say, sizeof(say),
				"%.120s; block %u wrong in copy %u on slot %u (%02x%02x%s), lost %llx", m->what,
				(unsigned)(block + i), copy, place.slot, flat[i * BLOCK_BYTES],
				flat[i * BLOCK_BYTES + 1], older ? ", older" : "", (unsigned long long)m->lost);
			memcpy(m->what, say, sizeof(say));
		}
	}
	free(flat);
	payload_free(&p);
	*result = r ? r : e == -ENODEV && m->cutting ? e : 0;
	if (*result)
		return true;
	MUST(m, e == 0, e);
	MUST(m, same, copies);
	/* of one block at least one copy is left always */
	MUST(m, n > 1 || copies >= 1, copies);
	MUST(m, missing || copies == m->g.log_copies, copies);
	return true;
}

/* ---- members ---- */

static bool model_member(struct model *m, bool by_command)
{
	unsigned slot = (unsigned)draw(m, m->shape.drives);
	struct error err = {0};
	by_command = by_command || !slot_used(m, slot); /* else nobody would ever notice */
	model_say(m, "slot %u %s", slot, by_command ? "is taken out" : "vanishes");
	if ((m->lost & SLOT(slot)) || !bearable(m, slot, 0, 0, 0))
		return true;
	if (by_command) {
		int r = array_fail(m->array, slot, &err);
		MUST(m, r == 0, r);
	} else {
		fault_inject(m->t.path[slot], FAULT_VANISH, 1 + draw(m, 4), 0);
		/* until somebody notices: all of it is read or written to */
		for (unsigned i = 0; i < 100 && !(m->lost & SLOT(slot)); i++) {
			int r;
			if (!model_write_at(m, extent_draw(m), &r))
				return false;
			MUST(m, r == 0, r);
			model_look(m);
		}
	}
	model_look(m);
	MUST(m, m->lost & SLOT(slot), m->lost);
	return true;
}

/* All that are lost come back, with what they held. */
static bool model_return(struct model *m)
{
	struct error err = {0};
	bool wait = draw(m, 2);
	model_say(m, "the lost ones come back%s", wait ? ", and are brought up to date" : "");
	int r = array_keep(m->array, &err);
	model_spread(m);
	for (unsigned i = 0; i < m->shape.drives && !r; i++) {
		if (!(m->lost & SLOT(i)))
			continue;
		struct member_add how = {.slot = -1};
		unsigned slot;
		fault_inject(m->t.path[i], FAULT_NONE, 0, 0);
		r = array_add(m->array, m->t.path[i], &how, &slot, &err);
		if (r == -EAGAIN) /* a command of before is still on its way to it */
			return true;
		if (r && m->rebuilding)
			r = 0;
	}
	if (r)
		return model_fail(m, __LINE__, err.text, r);
	if (wait) {
		r = array_settled(m->array, NULL, NULL);
		MUST(m, r == 0, r);
	}
	model_look(m);
	MUST(m, !wait || !m->lost, m->lost);
	return true;
}

/* A cut while a number of operations run. */
static bool model_cut_inside(struct model *m)
{
	uint64_t limit = draw(m, 12) + 1;
	unsigned ops = (unsigned)draw(m, 4) + 1;
	int r = 0;
	char all[60];
	snprintf(all, sizeof(all), "power is cut after %u writes", (unsigned)limit);
	fault_write_limit(limit);
	m->cutting = true;
	for (unsigned i = 0; i < ops && !r; i++) {
		if (draw(m, 4) == 0) {
			r = volume_flush(m->v);
			if (!r)
				memset(m->dirty, 0, sizeof(m->dirty));
		} else if (draw(m, 3) == 0) {
			if (!model_log(m, &r))
				return false;
		} else if (!model_write_at(m, extent_draw(m), &r)) {
			return false;
		}
	}
	fault_write_limit(0);
	m->cutting = false;
	model_say(m, "%s", all);
	return model_cut(m);
}

static bool model_delay(struct model *m, bool too_long)
{
	unsigned slot = (unsigned)draw(m, m->shape.drives);
	if (too_long && ((m->lost & SLOT(slot)) || !bearable(m, slot, 0, 0, 0)))
		too_long = false;
	if (too_long)
		atomic_store(&drive_deadline_override, 100 * NSEC_PER_MSEC);
	fault_inject(m->t.path[slot], FAULT_DELAY, 1 + draw(m, 3), (too_long ? 250 : 1) * NSEC_PER_MSEC);
	int r;
	bool good = draw(m, 2) ? model_read(m, FAULT_DELAY) : model_write(m);
	good = good && model_log(m, &r);
	atomic_store(&drive_deadline_override, 0);
	model_say(m, "slot %u is %s", slot, too_long ? "much too slow" : "slow");
	MUST(m, !good || r == 0, r);
	fault_inject(m->t.path[slot], FAULT_NONE, 0, 0);
	model_look(m);
	return good;
}

/* ---- episodes ---- */

static bool model_step(struct model *m)
{
	uint64_t dice = draw(m, 2500);
	int r = 0;
	if (dice < 800)
		return model_write(m);
	if (dice < 1350)
		return model_read(m, FAULT_NONE);
	if (dice < 1750)
		return model_log(m, &r) && (r == 0 || model_fail(m, __LINE__, "log write", r));
	if (dice < 1850) {
		model_say(m, "flush");
		r = volume_flush(m->v);
		MUST(m, r == 0, r);
		memset(m->dirty, 0, sizeof(m->dirty));
		return true;
	}
	if (dice < 1950)
		return model_read(m, FAULT_READ_ERROR);
	if (dice < 2030)
		return model_read(m, FAULT_BIT_FLIP);
	if (dice < 2150)
		return model_write_fault(m, FAULT_LOST_WRITE);
	if (dice < 2165)
		return model_write_fault(m, FAULT_WRITE_ERROR);
	if (dice < 2180)
		return model_write_fault(m, FAULT_TORN_WRITE);
	if (dice < 2195)
		return model_write_fault(m, FAULT_VANISH);
	if (dice < 2220)
		return model_member(m, dice < 2210);
	if (dice < 2250)
		return model_delay(m, dice == 2249);
	if (dice < 2290)
		return model_return(m);
	if (dice < 2350) {
		model_say(m, "closed and opened");
		model_close(m);
		memset(m->dirty, 0, sizeof(m->dirty));
		return model_open(m, false);
	}
	if (dice < 2420) {
		model_say(m, "power is cut");
		return model_cut(m);
	}
	return model_cut_inside(m);
}

struct episode {
	struct shape shape;
	uint64_t seed;
	unsigned ops;
	const bool *leave_out;
	bool talk, greedy;
	char why[400];
};

/* True when all is well. */
static bool episode_run(struct episode *e)
{
	struct error err = {0};
	struct model *m = calloc(1, sizeof(*m));
	fault_reset();
	m->shape = e->shape;
	m->talk = e->talk;
	raid_test_drives(&m->t, e->shape.drives, 8u << 20, "fault:");
	struct array_create create = {
		.name = "a0",
		.level = e->shape.level,
		.groups = e->shape.groups,
		.strip_bytes = 65536,
		.drives = m->t.paths,
		.count = m->t.count,
	};
	bool good = array_create(&create, &err) == 0 || model_fail(m, __LINE__, err.text, err.code);
	for (unsigned i = 0; i < e->shape.drives; i++)
		fault_volatile_cache(m->t.path[i], true);
	good = good && model_open(m, true);
	m->bears = m->g.m + e->greedy;
	for (unsigned i = 0; i < e->ops && good; i++) {
		m->op = i;
		m->seed = hash_u64(e->seed + ((uint64_t)i << 32));
		if (e->leave_out && e->leave_out[i])
			continue;
		model_look(m);
		good = model_step(m);
	}
	model_close(m);
	raid_test_remove(&m->t);
	fault_reset();
	snprintf(e->why, sizeof(e->why), "%s", m->why);
	free(m);
	return good;
}

/* Leaves out what the failure can do without. Returns how many operations are left. */
static unsigned episode_shrink(struct episode *e, bool *leave_out)
{
	unsigned tries = 400;
	e->leave_out = leave_out;
	for (unsigned chunk = e->ops / 2; chunk; chunk = chunk > 1 ? (chunk + 1) / 2 : 0) {
		bool again = true;
		while (again && tries) {
			again = false;
			for (unsigned at = 0; at < e->ops && tries; at += chunk) {
				bool before[EPISODE], any = false;
				memcpy(before, leave_out, e->ops);
				for (unsigned i = at; i < at + chunk && i < e->ops; i++) {
					any = any || !leave_out[i];
					leave_out[i] = true;
				}
				if (!any)
					continue;
				tries--;
				if (episode_run(e))
					memcpy(leave_out, before, e->ops);
				else
					again = chunk == 1;
			}
		}
	}
	unsigned left = 0;
	for (unsigned i = 0; i < e->ops; i++)
		left += !leave_out[i];
	return left;
}

static void episode_report(struct episode *e)
{
	bool leave_out[EPISODE] = {false};
	char list[1500] = "";
	size_t at = 0;
	print_message("failed: %s\nlooking for a shorter way...\n", e->why);
	episode_shrink(e, leave_out);
	for (unsigned i = 0; i < e->ops && at + 8 < sizeof(list); i++)
		if (!leave_out[i])
			at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%u", at ? "," : "", i);
	e->talk = true;
	(void)episode_run(e);
	print_message("failed: %s\nFURROW_REPLAY=\"%u,%u,%u,%llu:%s\"\n", e->why, e->shape.level, e->shape.drives,
		e->shape.groups, (unsigned long long)e->seed, list);
	snprintf(test_failure, sizeof(test_failure), "level %u, seed %llu: %.300s", e->shape.level,
		(unsigned long long)e->seed, e->why);
}

struct run {
	const struct shape *shapes; /* the usual ones, and behind them the wide ones */
	unsigned count, wide;
	uint64_t seed;
};

static void run_body(void *arg)
{
	const struct run *run = arg;
	unsigned steps = getenv("FURROW_LONG") ? 100000 : 5000;
	for (unsigned i = 0; steps && !test_failure[0]; i++) {
		bool wide = run->wide && i % WIDE_EVERY == WIDE_EVERY / 4;
		struct episode e = {
			.shape = wide ? run->shapes[run->count + i / WIDE_EVERY % run->wide]
				      : run->shapes[i % run->count],
			.seed = run->seed + 1000003 * (uint64_t)i,
			.ops = wide ? WIDE_EPISODE : EPISODE,
		};
		e.ops = e.ops < steps ? e.ops : steps;
		steps -= e.ops;
		if (!episode_run(&e))
			episode_report(&e);
	}
}

static void replay_body(void *arg)
{
	char *text = strdup(getenv("FURROW_REPLAY")), *save = NULL;
	struct episode e = {.ops = EPISODE, .talk = true};
	bool leave_out[EPISODE];
	unsigned long long seed = 0;
	(void)arg;
	memset(leave_out, true, sizeof(leave_out));
	e.leave_out = leave_out;
	char *list = strchr(text, ':');
	if (list && sscanf(text, "%u,%u,%u,%llu:", &e.shape.level, &e.shape.drives, &e.shape.groups, &seed) == 4) {
		e.seed = seed;
		for (char *p = strtok_r(list + 1, ",", &save); p; p = strtok_r(NULL, ",", &save))
			leave_out[strtoul(p, NULL, 10) % EPISODE] = false;
		if (!episode_run(&e))
			snprintf(test_failure, sizeof(test_failure), "%s", e.why);
	} else {
		snprintf(test_failure, sizeof(test_failure), "FURROW_REPLAY: not level,drives,groups,seed:op,...");
	}
	free(text);
}

static void model_test(const struct shape *shapes, unsigned count)
{
	struct run run = {.shapes = shapes};
	while (run.count < count && shapes[run.count].drives <= TEST_DRIVES_MAX)
		run.count++;
	run.wide = count - run.count;
	if (getenv("LEVEL") && strtoul(getenv("LEVEL"), NULL, 10) != shapes[0].level)
		skip();
	run.seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 20;
	print_message("seed %llu\n", (unsigned long long)run.seed);
	atomic_store(&log_threshold, getenv("FURROW_REPLAY") ? LOG_INFO : -1);
	raid_test_run(getenv("FURROW_REPLAY") ? replay_body : run_body, &run);
}

#define MODEL_TEST(name, ...)                                                                                          \
	static void test_##name(void **state)                                                                          \
	{                                                                                                              \
		static const struct shape shapes[] = {__VA_ARGS__};                                                    \
		(void)state;                                                                                           \
		model_test(shapes, sizeof(shapes) / sizeof(shapes[0]));                                                \
	}
MODEL_TEST(level_0, {0, 3, 1}, {0, 1, 1})
MODEL_TEST(level_1, {1, 2, 1}, {1, 3, 1})
MODEL_TEST(level_5, {5, 3, 1}, {5, 5, 1})
MODEL_TEST(level_6, {6, 4, 1}, {6, 5, 1}, {6, 8, 1})
MODEL_TEST(level_10, {10, 4, 2}, {10, 6, 2}, {10, 66, 33}, {10, 99, 33})
MODEL_TEST(level_50, {50, 6, 2}, {50, 9, 3}, {50, 66, 22}, {50, 66, 3})
MODEL_TEST(level_60, {60, 8, 2}, {60, 10, 2}, {60, 68, 17}, {60, 128, 2})

/* The test itself: with one fault more than the level bears, it must find that out and say it shortly. */
static void greedy_body(void *arg)
{
	(void)arg;
	bool leave_out[EPISODE];
	for (unsigned i = 0; i < 20; i++) {
		struct episode e = {.shape = {5, 3, 1}, .seed = 77 + i, .ops = 120, .greedy = true};
		memset(leave_out, false, sizeof(leave_out));
		if (episode_run(&e))
			continue;
		unsigned left = episode_shrink(&e, leave_out);
		CHECK(!episode_run(&e));
		CHECK(left <= 6);
		return;
	}
	CHECK(!"a fault too many was not noticed");
}

static void test_of_the_test(void **state)
{
	(void)state;
	raid_test_run(greedy_body, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_level_0),
		cmocka_unit_test(test_level_1),
		cmocka_unit_test(test_level_5),
		cmocka_unit_test(test_level_6),
		cmocka_unit_test(test_level_10),
		cmocka_unit_test(test_level_50),
		cmocka_unit_test(test_level_60),
		cmocka_unit_test(test_of_the_test),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
