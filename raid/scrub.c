/*
 * Scrub: reads all rows in use with their parity, and makes right what does not fit.
 *
 * One fiber of the home reactor; a few lanes read stripes side by side and compare. That needs no exclusion, for what
 * does not fit may just be a row that is being written: only when it does not fit either with the
 * window (gate.c) over it is it a mismatch. A degraded array is not scrubbed, for nothing could be compared; the scrub
 * waits until it is whole.
 *
 * Which block of a mismatched row is wrong:
 *   - the owner of the volume verifies all blocks of the stripe that are in use by their checksums, and repairs those
 * that are wrong. What does not fit afterwards is parity, which is computed anew;
 *   - without an owner, or when it cannot tell: the syndrome of P and Q points to one block, or most copies agree;
 *   - else nobody can tell, and the row is reported.
 * Rows that nobody uses may never have been written whole. Their parity is made to fit, and they are not counted.
 *
 * A block that cannot be read is made from the others and written back, which makes the drive replace the sector.
 */
#include <errno.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

#define LANES 2u
#define USAGE_STRIPES 256u
#define PIECE_MOST 65536u
#define PAUSE_MOST (200 * NSEC_PER_MSEC)

struct scrub_lane {
	struct scrub *scrub;
	struct buf *buf[CODE_WIDTH_MAX + 2]; /* all positions, and parity computed */
};

struct scrub {
	struct array *array;
	bool stop, paused;
	const struct geometry *geo;
	const struct code *code;
	uint32_t piece;
	unsigned buffers;
	struct scrub_lane lane[LANES];
	uint64_t todo[LANES * 4];
	unsigned todo_count, todo_next;
	struct wait_group group;
	uint64_t begun, others, others_ns, commit_at;
	double factor;
	struct wait_queue work;
};

static bool scrub_over(const struct scrub *s)
{
	return s->stop || s->array->keeper.closing || array_stopped(s->array);
}

static bool array_whole(const struct array *array)
{
	for (unsigned i = 0; i < array->config.members; i++)
		if (!member_active(&array->member[i]))
			return false;
	return true;
}

static void count(struct scrub *s, uint64_t *value, uint64_t n)
{
	pthread_mutex_lock(&s->array->table);
	*value += n;
	pthread_mutex_unlock(&s->array->table);
}

static struct member *member_of(const struct scrub *s, uint64_t stripe, unsigned pos, uint64_t *offset)
{
	struct place place = layout_strip(s->geo, stripe, pos);
	*offset = place.offset;
	return &s->array->member[place.slot];
}

/* ---- reading and comparing ---- */

/*
 * Reads BYTES at AT of all positions. 0 or the first error; FAILED: those that could not be read.
 */
static int piece_read(struct scrub_lane *lane, uint64_t stripe, uint32_t at, uint32_t bytes, uint64_t *failed)
{
	struct scrub *s = lane->scrub;
	unsigned width = s->geo->k + s->geo->m;
	struct drive_req reqs[CODE_WIDTH_MAX];
	struct drive_batch batch;
	int r = 0;
	*failed = 0;
	for (unsigned i = 0; i < width; i++) {
		uint64_t offset;
		if (!member_active(member_of(s, stripe, i, &offset)))
			return -EAGAIN;
	}
	batch_init(&batch);
	batch.background = true;
	for (unsigned i = 0; i < width; i++) {
		uint64_t offset;
		const struct member *m = member_of(s, stripe, i, &offset);
		struct slice slice = {.buf = lane->buf[i], .off = 0, .len = bytes};
		struct slice_cursor cursor = slice_cursor_at(&slice, 1);
		batch_io(&batch, &reqs[i], m->drive, DRIVE_OP_READ, offset + at, bytes, &cursor, false);
	}
	batch_wait(&batch);
	for (unsigned i = 0; i < width; i++) {
		uint64_t offset;
		if (!reqs[i].error)
			continue;
		*failed |= 1ull << i;
		if (reqs[i].given_up) {
			buf_put(lane->buf[i]);
			lane->buf[i] = buf_alloc(s->piece);
		}
		if (reqs[i].error == -ENOMEM || reqs[i].error == -EINVAL)
			return reqs[i].error;
		/* the same bad sector may be met again and again: it is one error */
		int e = bytes == BLOCK_BYTES
				? member_failed(member_of(s, stripe, i, &offset), MEMBER_READ_ERROR, reqs[i].error)
				: 0;
		r = e ? e : r ? r : -EIO;
	}
	count(s, &s->array->scrub_last.read_bytes, (uint64_t)width * bytes);
	return r;
}

static void parity_compute(struct scrub_lane *lane, uint32_t bytes)
{
	const struct scrub *s = lane->scrub;
	uint8_t *data[CODE_WIDTH_MAX], *parity[CODE_WIDTH_MAX];
	unsigned k = s->geo->k, m = s->geo->m;
	for (unsigned i = 0; i < k; i++)
		data[i] = lane->buf[i]->data;
	for (unsigned j = 0; j < m; j++)
		parity[j] = lane->buf[k + m + j]->data;
	s->code->ops->encode(s->code, data, parity, bytes);
}

/* Whether a block of the piece, at OFF, fits. After parity_compute(), which copies do without. */
static bool row_fits(const struct scrub_lane *lane, uint32_t off, uint32_t bytes)
{
	const struct scrub *s = lane->scrub;
	unsigned k = s->geo->k, m = s->geo->m;
	for (unsigned j = 0; j < m; j++) {
		const uint8_t *right = s->code->ops->copies ? lane->buf[0]->data : lane->buf[k + m + j]->data;
		if (memcmp(lane->buf[k + j]->data + off, right + off, bytes) != 0)
			return false;
	}
	return true;
}

static int block_write(
	struct scrub_lane *lane, uint64_t stripe, unsigned pos, uint32_t at, struct buf *from, uint32_t off)
{
	uint64_t offset;
	struct member *member = member_of(lane->scrub, stripe, pos, &offset);
	struct slice slice = {.buf = from, .off = off, .len = BLOCK_BYTES};
	struct slice_cursor cursor = slice_cursor_at(&slice, 1);
	struct drive_batch batch;
	struct drive_req req;
	if (!member_active(member))
		return -EAGAIN;
	batch_init(&batch);
	batch.background = true;
	batch_io(&batch, &req, member->drive, DRIVE_OP_WRITE, offset + at, BLOCK_BYTES, &cursor, false);
	batch_wait(&batch);
	if (req.error)
		return member_failed(member, MEMBER_WRITE_ERROR, req.error) ? -ENODEV : -EAGAIN;
	recent_mark(member->array, stripe);
	return 0;
}

/* ---- which one is wrong ---- */

/* log and antilog of GF(2^8), made once; polynomial 0x11d, generator 2 */
static uint8_t gf_log_table[256], gf_exp_table[255];
static void gf_tables(void)
{
	unsigned x = 1;
	for (unsigned i = 0; i < 255; i++) {
		gf_exp_table[i] = (uint8_t)x;
		gf_log_table[x] = (uint8_t)i;
		x <<= 1;
		if (x & 256)
			x ^= 0x11d;
	}
}

/* The position that alone explains the row at OFF, or -1. */
static int row_locate(const struct scrub_lane *lane, uint32_t off)
{
	const struct scrub *s = lane->scrub;
	unsigned k = s->geo->k, m = s->geo->m;
	if (s->code->ops->copies) {
		/* all others agree with each other */
		for (unsigned odd = 0; m >= 2 && odd <= m; odd++) {
			unsigned first = odd == 0;
			bool agree = true;
			for (unsigned i = 0; i <= m && agree; i++)
				agree = i == odd || memcmp(lane->buf[i]->data + off, lane->buf[first]->data + off,
							    BLOCK_BYTES) == 0;
			if (agree)
				return (int)odd;
		}
		return -1;
	}
	if (m != 2)
		return -1;
	int where = -1;
	bool p_bad = false, q_bad = false;
	const uint8_t *p = lane->buf[k]->data + off, *q = lane->buf[k + 1]->data + off;
	const uint8_t *pc = lane->buf[k + m]->data + off, *qc = lane->buf[k + m + 1]->data + off;
	for (uint32_t i = 0; i < BLOCK_BYTES; i++) {
		uint8_t dp = p[i] ^ pc[i], dq = q[i] ^ qc[i];
		p_bad = p_bad || dp;
		q_bad = q_bad || dq;
		if (!dp || !dq) {
			if (dp || dq)
				where = where == -1 ? -2 : where >= 0 ? -3 : where;
			continue;
		}
		int z = (gf_log_table[dq] - gf_log_table[dp] + 255) % 255;
		if (where == -1)
			where = z;
		else if (where != z)
			return -1;
	}
	if (p_bad && !q_bad)
		return (int)k;
	if (q_bad && !p_bad)
		return (int)k + 1;
	return where >= 0 && where < (int)k ? where : -1;
}

/* Makes POS of the row at OFF from all others, into the buffer of POS. */
static int row_recover(struct scrub_lane *lane, uint64_t lost, unsigned pos, uint32_t off)
{
	const struct scrub *s = lane->scrub;
	unsigned k = s->geo->k, m = s->geo->m, found = 0;
	uint8_t source[CODE_WIDTH_MAX], wanted = (uint8_t)pos;
	uint8_t *from[CODE_WIDTH_MAX], *to = lane->buf[pos]->data + off;
	for (unsigned i = 0; i < k + m && found < k; i++)
		if (i != pos && !(lost & 1ull << i)) {
			from[found] = lane->buf[i]->data + off;
			source[found++] = (uint8_t)i;
		}
	if (found < k)
		return -EIO;
	struct code_plan plan;
	int r = code_plan(s->code, &plan, source, &wanted, 1);
	if (!r)
		s->code->ops->apply(&plan, from, &to, BLOCK_BYTES);
	code_plan_free(&plan);
	return r;
}

/* One block that cannot be read, or several: from the others. Window held. */
static int unread_repair(struct scrub_lane *lane, uint64_t stripe, uint32_t at, uint64_t failed)
{
	struct scrub *s = lane->scrub;
	unsigned width = s->geo->k + s->geo->m;
	for (unsigned pos = 0; pos < width; pos++) {
		if (!(failed & 1ull << pos))
			continue;
		int r = row_recover(lane, failed, pos, 0);
		if (!r)
			r = block_write(lane, stripe, pos, at, lane->buf[pos], 0);
		if (r == -EIO) {
			count(s, &s->array->scrub_last.unresolved, 1);
			return 0;
		}
		if (r)
			return r;
		count(s, &s->array->scrub_last.unread_repaired, 1);
	}
	return 0;
}

/* What is wrong with the row at AT of STRIPE is found and made right. VERIFIED: its data is right. Window held. */
static int row_resolve(struct scrub_lane *lane, uint64_t stripe, uint32_t at, bool verified, bool used)
{
	struct scrub *s = lane->scrub;
	unsigned k = s->geo->k, m = s->geo->m;
	uint64_t failed;
	int r = piece_read(lane, stripe, at, BLOCK_BYTES, &failed);
	if (r == -EIO && failed)
		return unread_repair(lane, stripe, at, failed);
	if (r)
		return r;
	if (!s->code->ops->copies)
		parity_compute(lane, BLOCK_BYTES);
	if (row_fits(lane, 0, BLOCK_BYTES))
		return 0;
	if (used)
		count(s, &s->array->scrub_last.mismatches, 1);
	int wrong = verified ? -1 : row_locate(lane, 0);
	if (verified || !used) {
		/* the data says what the parity should be */
		for (unsigned j = 0; j < m && !r; j++) {
			struct buf *right = s->code->ops->copies ? lane->buf[0] : lane->buf[k + m + j];
			if (memcmp(lane->buf[k + j]->data, right->data, BLOCK_BYTES) == 0)
				continue;
			uint64_t offset;
			if (used)
				atomic_fetch_add(&member_of(s, stripe, k + j, &offset)->checksum_errors, 1);
			r = block_write(lane, stripe, k + j, at, right, 0);
		}
	} else if (wrong >= 0) {
		uint64_t offset;
		r = row_recover(lane, 0, (unsigned)wrong, 0);
		if (!r)
			r = block_write(lane, stripe, (unsigned)wrong, at, lane->buf[wrong], 0);
		atomic_fetch_add(&member_of(s, stripe, (unsigned)wrong, &offset)->checksum_errors, 1);
	} else {
		count(s, &s->array->scrub_last.unresolved, 1);
		log_error("raid", "row does not fit its parity, and nobody can tell why array=%s stripe=%llu row=%u",
			s->array->config.name, (unsigned long long)stripe, at / BLOCK_BYTES);
		return 0;
	}
	if (!r && used) {
		count(s, &s->array->scrub_last.repaired, 1);
		log_warning("raid", "row repaired by scrub array=%s stripe=%llu row=%u position=%d",
			s->array->config.name, (unsigned long long)stripe, at / BLOCK_BYTES, wrong);
	}
	return r;
}

/* Asks the owner about STRIPE. True: it knows, ROWS says which are in use and all of their data is right now. */
static bool owner_check(struct scrub *s, uint64_t stripe, bool *rows)
{
	bool knows = false;
	fiber_lock(&s->array->owners);
	for (unsigned i = 0; i < SUPER_VOLUMES; i++) {
		const struct volume *v = s->array->open[i];
		if (!v || !v->owner.check || stripe < v->first_stripe ||
			stripe >= v->first_stripe + v->geometry.stripes)
			continue;
		knows = v->owner.check(v->owner.arg, stripe - v->first_stripe, rows) == 0;
	}
	fiber_unlock(&s->array->owners);
	return knows;
}

static int stripe_resolve(struct scrub_lane *lane, uint64_t stripe)
{
	struct scrub *s = lane->scrub;
	bool *rows = calloc(s->geo->strip_blocks, sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	uint64_t errors = 0, after = 0;
	for (unsigned i = 0; i < s->array->config.members; i++)
		errors += atomic_load(&s->array->member[i].checksum_errors);
	/* without the window: the owner may have to repair */
	bool verified = owner_check(s, stripe, rows);
	for (unsigned i = 0; i < s->array->config.members; i++)
		after += atomic_load(&s->array->member[i].checksum_errors);
	if (verified && after > errors) {
		count(s, &s->array->scrub_last.mismatches, after - errors);
		count(s, &s->array->scrub_last.repaired, after - errors);
	}
	window_move(s->array, ZONE_ROWS, stripe, stripe + 1);
	unsigned gate = gate_enter(s->array);
	int r = 0;
	for (uint32_t row = 0; row < s->geo->strip_blocks && !r; row++)
		r = row_resolve(lane, stripe, row * BLOCK_BYTES, verified, !verified || rows[row]);
	gate_leave(s->array, gate);
	window_move(s->array, ZONE_ROWS, 0, 0);
	free(rows);
	return r;
}

/* 0, or what ends the scrub of this stripe: -EAGAIN when the array has changed. Sets *SUSPECT. */
static int stripe_compare(struct scrub_lane *lane, uint64_t stripe, bool *suspect)
{
	struct scrub *s = lane->scrub;
	int r = 0;
	*suspect = false;
	unsigned gate = gate_enter(s->array);
	for (uint32_t at = 0; at < s->geo->strip_bytes && !r && !*suspect; at += s->piece) {
		uint64_t failed;
		r = piece_read(lane, stripe, at, s->piece, &failed);
		if (r == -EIO) {
			*suspect = true;
			r = 0;
			break;
		}
		if (r)
			break;
		if (!s->code->ops->copies)
			parity_compute(lane, s->piece);
		*suspect = !row_fits(lane, 0, s->piece);
	}
	gate_leave(s->array, gate);
	return r;
}

/* ---- walking ---- */

static void lane_fiber(void *arg)
{
	struct scrub_lane *lane = arg;
	struct scrub *s = lane->scrub;
	while (s->todo_next < s->todo_count && !scrub_over(s)) {
		unsigned i = s->todo_next++;
		bool suspect;
		/* what is suspect is kept for the main fiber: there is one window */
		if (stripe_compare(lane, s->todo[i], &suspect) == 0 && !suspect)
			s->todo[i] = UINT64_MAX;
	}
	wait_group_done(&s->group, 0);
}

static void scrub_give_way(struct scrub *s, uint64_t worked)
{
	uint64_t commands = 0, ns = 0, target = s->array->tuning.latency_target_ns;
	for (unsigned i = 0; i < s->array->config.members; i++) {
		const struct drive *drive = s->array->member[i].drive;
		commands += drive ? drive_stat_sum(drive, offsetof(struct drive_stats, others)) : 0;
		ns += drive ? drive_stat_sum(drive, offsetof(struct drive_stats, others_ns)) : 0;
	}
	uint64_t n = commands - s->others, sum = ns - s->others_ns;
	s->others = commands;
	s->others_ns = ns;
	if (!n || n >= 1ull << 40)
		s->factor = 0;
	else if (target && sum / n > target)
		s->factor = s->factor < 0.25 ? 0.25 : s->factor < 16 ? s->factor * 1.5 : 16;
	else
		s->factor *= 0.8;
	uint64_t pause = (uint64_t)((double)worked * s->factor);
	if (pause < NSEC_PER_MSEC)
		fiber_yield();
	else
		fiber_sleep(pause < PAUSE_MOST ? pause : PAUSE_MOST);
}

static void scrub_waits(struct scrub *s)
{
	bool waits = false;
	while (!scrub_over(s) && (s->paused || s->array->keeper.rebuild || !array_whole(s->array))) {
		pthread_mutex_lock(&s->array->table);
		s->array->scrub_last.paused = waits = true;
		pthread_mutex_unlock(&s->array->table);
		wait_queue_wait(&s->work, now_ns() + NSEC_PER_SEC);
	}
	if (waits) {
		pthread_mutex_lock(&s->array->table);
		s->array->scrub_last.paused = s->paused;
		pthread_mutex_unlock(&s->array->table);
	}
}

static void batch_scrub(struct scrub *s)
{
	uint64_t begun = now_ns();
	s->todo_next = 0;
	wait_group_init(&s->group);
	wait_group_add(&s->group, LANES);
	for (unsigned i = 1; i < LANES; i++)
		if (fiber_spawn(lane_fiber, &s->lane[i]))
			wait_group_done(&s->group, 0);
	lane_fiber(&s->lane[0]);
	(void)wait_group_wait(&s->group);
	for (unsigned i = 0; i < s->todo_count && !scrub_over(s); i++) {
		/* an array that lost a member meanwhile, or is being rebuilt: later */
		while (s->todo[i] != UINT64_MAX && !scrub_over(s)) {
			scrub_waits(s);
			if (scrub_over(s) || stripe_resolve(&s->lane[0], s->todo[i]) != -EAGAIN)
				break;
		}
	}
	s->todo_count = 0;
	scrub_give_way(s, now_ns() - begun);
}

static void geometry_scrub(struct scrub *s)
{
	uint64_t end = s->geo->first_stripe + s->geo->stripes;
	bool used[USAGE_STRIPES];
	for (uint64_t stripe = s->geo->first_stripe; stripe < end && !scrub_over(s);) {
		unsigned n = end - stripe < USAGE_STRIPES ? (unsigned)(end - stripe) : USAGE_STRIPES;
		array_usage(s->array, stripe, n, used);
		for (unsigned i = 0; i < n && !scrub_over(s); i++) {
			if (!used[i])
				continue;
			s->todo[s->todo_count++] = stripe + i;
			if (s->todo_count < LANES * 4)
				continue;
			scrub_waits(s);
			batch_scrub(s);
			uint64_t spent = now_ns() - s->begun;
			struct scrub_status *st = &s->array->scrub_last;
			pthread_mutex_lock(&s->array->table);
			st->done_stripes = stripe + i + 1;
			st->eta_ns = (uint64_t)((double)spent / (double)st->done_stripes *
						(double)(st->total_stripes - st->done_stripes));
			pthread_mutex_unlock(&s->array->table);
		}
		if (s->todo_count && !scrub_over(s)) {
			scrub_waits(s);
			batch_scrub(s);
		}
		s->todo_count = 0;
		stripe += n;
		pthread_mutex_lock(&s->array->table);
		s->array->scrub_last.done_stripes = stripe;
		pthread_mutex_unlock(&s->array->table);
		fiber_yield();
	}
}

static void scrub_free(struct scrub *s)
{
	for (unsigned i = 0; i < LANES; i++)
		for (unsigned j = 0; j < s->buffers; j++)
			buf_put(s->lane[i].buf[j]);
	free(s);
}

static void scrub_fiber(void *arg)
{
	struct scrub *s = arg;
	struct array *array = s->array;
	const struct raid_config *c = &array->config;
	log_info("raid", "scrub begins array=%s", c->name);
	for (unsigned e = 0; e < c->geometries && !scrub_over(s); e++) {
		s->geo = &c->geometry[e];
		s->code = &array->code[e];
		if (s->geo->m)
			geometry_scrub(s);
	}
	bool whole = !scrub_over(s);
	struct scrub_status *st = &array->scrub_last;
	pthread_mutex_lock(&array->table);
	st->running = st->paused = false;
	st->ended = wall_ns();
	st->eta_ns = 0;
	if (whole)
		st->done_stripes = st->total_stripes;
	array->scrub = NULL;
	pthread_mutex_unlock(&array->table);
	log_info("raid", "scrub %s array=%s mismatches=%llu repaired=%llu unresolved=%llu unread_repaired=%llu",
		whole ? "done" : "stopped", c->name, (unsigned long long)st->mismatches,
		(unsigned long long)st->repaired, (unsigned long long)st->unresolved,
		(unsigned long long)st->unread_repaired);
	if (whole)
		event_emit(array, "scrub-done", NULL, "%llu rows did not fit, %llu repaired, %llu unresolved",
			(unsigned long long)st->mismatches, (unsigned long long)st->repaired,
			(unsigned long long)st->unresolved);
	scrub_free(s);
	wait_queue_wake_all(&array->keeper.done);
}

/* ---- by command ---- */

struct scrub_call {
	struct array *array;
	struct error *err;
	bool pause;
	int result;
};

static void start_home(void *arg)
{
	struct scrub_call *call = arg;
	struct array *array = call->array;
	const struct raid_config *c = &array->config;
	unsigned width = 2;
	if (array->scrub) {
		array->scrub->paused = false;
		wait_queue_wake_all(&array->scrub->work);
		return;
	}
	if (array_stopped(array)) {
		call->result = error_set(call->err, -ENODEV, "array %s has stopped", c->name);
		return;
	}
	if (!array_whole(array)) {
		call->result = error_set(call->err, -EBUSY,
			"array %s is degraded: there is nothing to compare its rows with until all members are back",
			c->name);
		return;
	}
	struct scrub *s = calloc(1, sizeof(*s));
	if (!s) {
		call->result = error_set(call->err, -ENOMEM, "out of memory");
		return;
	}
	gf_tables();
	s->array = array;
	s->piece = PIECE_MOST;
	wait_queue_init(&s->work);
	for (unsigned e = 0; e < c->geometries; e++) {
		const struct geometry *g = &c->geometry[e];
		width = g->k + 2 * g->m > width ? g->k + 2 * g->m : width;
		s->piece = g->strip_bytes < s->piece ? g->strip_bytes : s->piece;
	}
	s->buffers = width < CODE_WIDTH_MAX + 2 ? width : CODE_WIDTH_MAX + 2;
	while (s->piece > 16384 && (uint64_t)s->piece * width > (1u << 20))
		s->piece /= 2;
	array->scrub = s; /* before the first wait */
	for (unsigned i = 0; i < LANES; i++) {
		s->lane[i].scrub = s;
		bufs_alloc(s->lane[i].buf, s->buffers, s->piece);
	}
	s->begun = now_ns();
	pthread_mutex_lock(&array->table);
	array->scrub_last =
		(struct scrub_status){.running = true, .total_stripes = config_stripes(c), .started = wall_ns()};
	pthread_mutex_unlock(&array->table);
	if (fiber_spawn(scrub_fiber, s)) {
		pthread_mutex_lock(&array->table);
		array->scrub = NULL;
		array->scrub_last.running = false;
		pthread_mutex_unlock(&array->table);
		scrub_free(s);
		call->result = error_set(call->err, -EAGAIN, "array %s: too busy to scrub", c->name);
	}
}

int array_scrub_start(struct array *array, struct error *err)
{
	struct scrub_call call = {.array = array, .err = err};
	reactor_call(array->home, start_home, &call);
	return call.result;
}

static void scrub_pause_home(void *arg)
{
	struct scrub_call *call = arg;
	struct scrub *s = call->array->scrub;
	if (!s)
		return;
	s->paused = call->pause;
	pthread_mutex_lock(&call->array->table);
	call->array->scrub_last.paused = call->pause;
	pthread_mutex_unlock(&call->array->table);
	wait_queue_wake_all(&s->work);
}

void array_scrub_pause(struct array *array, bool pause)
{
	struct scrub_call call = {.array = array, .pause = pause};
	reactor_call(array->home, scrub_pause_home, &call);
}

void scrub_stop(struct array *array)
{
	while (array->scrub) {
		array->scrub->stop = true;
		wait_queue_wake_all(&array->scrub->work);
		wait_queue_wait(&array->keeper.done, now_ns() + NSEC_PER_SEC);
	}
}

static void stop_home(void *arg)
{
	scrub_stop(arg);
}

void array_scrub_stop(struct array *array)
{
	reactor_call(array->home, stop_home, array);
}
