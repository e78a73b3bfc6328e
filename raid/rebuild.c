/*
 * Rebuild: brings a member up to what it should hold, stripe by stripe, while the array is in use.
 *
 * The member is in state REBUILD: it gets all that is written from now on, and nobody reads from it. One fiber of the
 * home reactor walks the stripes; a few lanes beside it read K strips each, compute the lost one and write it.
 * A stripe is left out when the map of a member that came back says that it missed nothing there, when it belongs to no
 * volume, or when the owner of the volume says that no row of it is in use: its rows that come later are
 * written to the member like to any other. What is asked before the window is set may be outdated only in that way.
 *
 * Writes and the rebuild exclude each other by the window of gate.c. All memory is taken before the first window
 * opens, for those who wait at the window may hold the rest. A read that timed out keeps its buffer; it is replaced.
 *
 * Progress goes to the superblocks every few seconds, behind a flush of the member, so that a restart goes on from
 * there. The log zone comes last, whole. At the end the member is flushed, gets the maps of others that are away, and
 * becomes ACTIVE with the commit of the superblocks.
 *
 * Giving way: after each window the mean latency of what others did on the drives is compared with the target; above it
 * the rebuild sleeps for a growing multiple of the time it worked, below it for less and less.
 *
 * Copying is the same walk for a member that works and is to be replaced (array_replace): the target is a spare, which
 * becomes the twin of the member's drive (drive.c), so that it gets what is written meanwhile. Each strip is read from
 * the member itself, and from the others only where it cannot be read. The array never lacks anything; until the one
 * commit of the superblocks in which the drives change places, the spare is a spare. After a restart a copy has to be
 * asked for again.
 *
 * Errors: a source that fails is left out for the stripe, and member.c decides about it; rows that nothing brings back
 * are counted and left alone, checksums above will tell. An error of the member itself ends the rebuild.
 */
#include <errno.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

#define LANES 4u
#define LANE_BYTES (1u << 20)
#define WINDOW_STRIPES 16u
#define USAGE_STRIPES 1024u
#define LOG_WINDOW 16u
#define COMMIT_INTERVAL (3 * NSEC_PER_SEC)
#define PAUSE_MOST (400 * NSEC_PER_MSEC)
#define FACTOR_MOST 16.0

struct lane {
	struct rebuild *rebuild;
	unsigned buffers;
	struct buf *buf[CODE_WIDTH_MAX];
};

struct plan_kept {
	bool valid;
	struct code_plan plan;
};

struct rebuild {
	struct array *array;
	struct member *member;
	struct drive *target; /* of what is written: the member's, or that of the spare it is copied to */
	struct member *spare; /* to copy to; NULL: a rebuild */
	bool partial;
	int error;
	const struct geometry *geo;
	const struct code *code;
	uint32_t piece; /* bytes of a strip at a time */
	struct lane lane[LANES];
	struct plan_kept *plan; /* by lost position */
	/* of the window: the stripes that are to be rebuilt */
	uint64_t todo[WINDOW_STRIPES];
	unsigned todo_count, todo_next;
	uint64_t next; /* stripe: those below are done */
	struct wait_group group;
	/* giving way */
	uint64_t others, others_ns;
	double factor;
	/* progress; STATUS is read by others, under array->table */
	uint64_t commit_at, rate_at, rate_bytes;
	struct rebuild_status status;
};

void rebuild_status_get(const struct array *array, struct rebuild_status *status)
{
	*status = array->keeper.rebuild ? array->keeper.rebuild->status : array->keeper.last;
}

static bool rebuild_over(const struct rebuild *r)
{
	if (r->error || r->array->keeper.closing || array_stopped(r->array))
		return true;
	if (!r->spare)
		return atomic_load(&r->member->state) != FORMAT_MEMBER_REBUILD;
	return !member_active(r->member) || atomic_load(&r->spare->state) != FORMAT_MEMBER_SPARE ||
	       atomic_load(&r->target->twin_failed) || keeper_urgent(r->array);
}

static void target_failed(struct rebuild *r, int error)
{
	if (r->spare)
		atomic_store(&r->target->twin_failed, true);
	else
		(void)member_failed(r->member, MEMBER_WRITE_ERROR, error);
}

/* ---- usage ---- */

void array_usage(struct array *array, uint64_t first, unsigned count, bool *used)
{
	memset(used, 0, count * sizeof(*used));
	fiber_lock(&array->owners);
	for (unsigned i = 0; i < SUPER_VOLUMES; i++) {
		const struct volume_config *v = &array->config.volume[i];
		if (!v->name[0] || v->first_stripe >= first + count || v->first_stripe + v->stripes <= first)
			continue;
		uint64_t from = v->first_stripe > first ? v->first_stripe : first;
		uint64_t end =
			v->first_stripe + v->stripes < first + count ? v->first_stripe + v->stripes : first + count;
		const struct volume *volume = array->open[i];
		if (volume && volume->owner.usage)
			volume->owner.usage(volume->owner.arg, from - v->first_stripe, (unsigned)(end - from),
				used + (from - first));
		else
			memset(used + (from - first), 1, (end - from) * sizeof(*used));
	}
	fiber_unlock(&array->owners);
}

struct owner_call {
	struct volume *volume;
	struct volume_owner owner;
};

static void owner_home(void *arg)
{
	struct owner_call *call = arg;
	fiber_lock(&call->volume->array->owners);
	call->volume->owner = call->owner;
	fiber_unlock(&call->volume->array->owners);
}

void volume_set_owner(struct volume *volume, const struct volume_owner *owner)
{
	struct owner_call call = {.volume = volume};
	if (owner)
		call.owner = *owner;
	reactor_call(volume->array->home, owner_home, &call);
}

/* ---- one stripe ---- */

static struct member *member_of(const struct rebuild *r, uint64_t stripe, unsigned pos, uint64_t *offset)
{
	struct place place = layout_strip(r->geo, stripe, pos);
	*offset = place.offset;
	return &r->array->member[place.slot];
}

/* K positions to read, those of slow drives last. */
static bool sources_pick(const struct rebuild *r, uint64_t stripe, unsigned lost, uint64_t failed, uint8_t *source)
{
	unsigned found = 0;
	for (unsigned pass = 0; pass < 2; pass++)
		for (unsigned pos = 0; pos < r->geo->k + r->geo->m && found < r->geo->k; pos++) {
			uint64_t offset;
			const struct member *m = member_of(r, stripe, pos, &offset);
			if (pos == lost || (failed & 1ull << pos) || !member_active(m) ||
				atomic_load_explicit(&m->health.slow, memory_order_relaxed) != (pass == 1))
				continue;
			source[found++] = (uint8_t)pos;
		}
	return found == r->geo->k;
}

static const struct code_plan *plan_for(struct rebuild *r, const uint8_t *source, unsigned lost)
{
	struct plan_kept *kept = &r->plan[lost];
	uint8_t wanted = (uint8_t)lost;
	if (kept->valid && memcmp(kept->plan.source, source, r->geo->k) == 0)
		return &kept->plan;
	if (kept->valid)
		code_plan_free(&kept->plan);
	kept->valid = code_plan(r->code, &kept->plan, source, &wanted, 1) == 0;
	return kept->valid ? &kept->plan : NULL;
}

/*
 * BYTES at AT of the strip of the rebuilt member. 0; -EIO: too few sources can be read; else the rebuild ends. FAILED:
 * positions that could not be read.
 */
static int piece_rebuild(
	struct lane *lane, uint64_t stripe, unsigned lost, uint32_t at, uint32_t bytes, uint64_t *failed)
{
	struct rebuild *r = lane->rebuild;
	uint8_t source[CODE_WIDTH_MAX];
	struct drive_req reqs[CODE_WIDTH_MAX];
	struct drive_batch batch;
	uint64_t offset;
	for (;;) {
		if (rebuild_over(r))
			return -ECANCELED;
		bool direct = r->spare && !(*failed & 1ull << lost), computed = !direct && !r->code->ops->copies;
		unsigned k = direct ? 1 : r->geo->k;
		source[0] = (uint8_t)lost;
		if (!direct && !sources_pick(r, stripe, lost, *failed, source))
			return -EIO;
		batch_init(&batch);
		batch.background = true;
		for (unsigned i = 0; i < k; i++) {
			const struct member *m = member_of(r, stripe, source[i], &offset);
			struct slice slice = {.buf = lane->buf[i], .off = 0, .len = bytes};
			struct slice_cursor cursor = slice_cursor_at(&slice, 1);
			batch_io(&batch, &reqs[i], m->drive, DRIVE_OP_READ, offset + at, bytes, &cursor, false);
		}
		batch_wait(&batch);
		bool bad = false;
		for (unsigned i = 0; i < k; i++) {
			if (!reqs[i].error)
				continue;
			bad = true;
			if (reqs[i].given_up) {
				buf_put(lane->buf[i]);
				lane->buf[i] = buf_alloc(r->piece);
			}
			*failed |= 1ull << source[i];
			int e = reqs[i].error == -ENOMEM || reqs[i].error == -EINVAL
					? reqs[i].error
					: member_failed(member_of(r, stripe, source[i], &offset), MEMBER_READ_ERROR,
						  reqs[i].error);
			if (e)
				return e;
		}
		if (bad)
			continue;
		r->status.read_bytes += (uint64_t)k * bytes;
		struct buf *out = lane->buf[0];
		if (computed) {
			/* not before the reads: while this lane waits, another may put its plan in the same place */
			const struct code_plan *plan = plan_for(r, source, lost);
			if (!plan)
				return -ENOMEM;
			uint8_t *from[CODE_WIDTH_MAX];
			for (unsigned i = 0; i < k; i++)
				from[i] = lane->buf[i]->data;
			out = lane->buf[k];
			r->code->ops->apply(plan, from, &out->data, bytes);
		}
		struct slice slice = {.buf = out, .off = 0, .len = bytes};
		struct slice_cursor cursor = slice_cursor_at(&slice, 1);
		(void)member_of(r, stripe, lost, &offset);
		if (rebuild_over(r))
			return -ECANCELED;
		batch_init(&batch);
		batch.background = true;
		batch_io(&batch, &reqs[0], r->target, DRIVE_OP_WRITE, offset + at, bytes, &cursor, false);
		batch_wait(&batch);
		if (reqs[0].error) {
			target_failed(r, reqs[0].error);
			return -ECANCELED;
		}
		r->status.written_bytes += bytes;
		return 0;
	}
}

static int stripe_rebuild(struct lane *lane, uint64_t stripe)
{
	struct rebuild *r = lane->rebuild;
	unsigned lost = 0;
	uint64_t offset;
	while (member_of(r, stripe, lost, &offset) != r->member)
		lost++;
	for (uint32_t at = 0; at < r->geo->strip_bytes; at += r->piece) {
		uint64_t failed = 0;
		unsigned gate = gate_enter(r->array);
		int e = piece_rebuild(lane, stripe, lost, at, r->piece, &failed);
		/* a bad sector of one and a bad sector of another need not be in the same row */
		for (uint32_t row = 0; e == -EIO && row < r->piece; row += BLOCK_BYTES) {
			failed = 0;
			int e2 = piece_rebuild(lane, stripe, lost, at + row, BLOCK_BYTES, &failed);
			if (e2 == -EIO) {
				r->status.lost_rows++;
				log_error("raid", "row lost in rebuild array=%s slot=%u stripe=%llu row=%u",
					r->array->config.name, r->member->slot, (unsigned long long)stripe,
					(at + row) / BLOCK_BYTES);
			} else if (e2) {
				e = e2;
			}
		}
		gate_leave(r->array, gate);
		if (e && e != -EIO)
			return e;
	}
	return 0;
}

static void lane_fiber(void *arg)
{
	struct lane *lane = arg;
	struct rebuild *r = lane->rebuild;
	int e = 0;
	while (!e && r->todo_next < r->todo_count && !rebuild_over(r))
		e = stripe_rebuild(lane, r->todo[r->todo_next++]);
	wait_group_done(&r->group, e);
}

/* ---- giving way, and progress ---- */

/* On the drives that the rebuild reads: those of the group. */
static void others_look(const struct rebuild *r, uint64_t *commands, uint64_t *ns)
{
	struct map_home home = layout_map(&r->array->config, r->member->slot);
	*commands = *ns = 0;
	for (unsigned i = home.first; i < home.end; i++) {
		const struct drive *drive = r->array->member[i].drive;
		if (!drive)
			continue;
		*commands += drive_stat_sum(drive, offsetof(struct drive_stats, others));
		*ns += drive_stat_sum(drive, offsetof(struct drive_stats, others_ns));
	}
}

static void give_way(struct rebuild *r, uint64_t worked)
{
	uint64_t commands, ns, target = r->array->tuning.latency_target_ns;
	others_look(r, &commands, &ns);
	uint64_t n = commands - r->others, sum = ns - r->others_ns;
	r->others = commands;
	r->others_ns = ns;
	/* drives may have been exchanged, and counts begin anew */
	if (target && n && n < 1ull << 40 && sum / n > target)
		r->factor = r->factor < 0.25 ? 0.25 : r->factor * 1.5;
	else if (n == 0 || n >= 1ull << 40)
		r->factor = 0;
	else
		r->factor *= 0.8;
	if (r->factor > FACTOR_MOST)
		r->factor = FACTOR_MOST;
	if (r->factor < 0.05) {
		fiber_yield();
		return;
	}
	uint64_t pause = (uint64_t)((double)worked * r->factor);
	fiber_sleep(pause < PAUSE_MOST ? pause : PAUSE_MOST);
}

static void progress_note(struct rebuild *r, uint64_t bytes)
{
	struct rebuild_status *s = &r->status;
	uint64_t now = now_ns();
	pthread_mutex_lock(&r->array->table);
	s->done_bytes += bytes;
	if (s->done_bytes > s->total_bytes)
		s->total_bytes = s->done_bytes;
	r->rate_bytes += bytes;
	if (now - r->rate_at > 500 * NSEC_PER_MSEC) {
		uint64_t rate = (uint64_t)((double)r->rate_bytes * 1e9 / (double)(now - r->rate_at));
		s->rate = s->rate ? (3 * s->rate + rate) / 4 : rate;
		r->rate_at = now;
		r->rate_bytes = 0;
	}
	s->eta_ns = s->rate ? (uint64_t)((double)(s->total_bytes - s->done_bytes) * 1e9 / (double)s->rate) : 0;
	pthread_mutex_unlock(&r->array->table);
}

/* What was written to the target is durable. */
static int target_flush(struct rebuild *r)
{
	uint64_t upto;
	if (!drive_flush_needed(r->target, &upto))
		return 0;
	int e = drive_flush(r->target);
	if (e)
		target_failed(r, -EIO);
	else
		drive_flush_ended(r->target, upto);
	return e;
}

/* What is done is on record, and the next start goes on from there. */
static void progress_commit(struct rebuild *r)
{
	struct array *array = r->array;
	uint64_t next = r->next;
	if (r->spare || target_flush(r))
		return;
	fiber_lock(&array->mutex);
	if (!array_stopped(array) && array->config.member[r->member->slot].state == FORMAT_MEMBER_REBUILD) {
		array->config.member[r->member->slot].rebuild_next = next;
		(void)array_commit(array, NULL);
	}
	fiber_unlock(&array->mutex);
	r->commit_at = now_ns() + COMMIT_INTERVAL;
}

/* ---- walking ---- */

static void rebuild_paused(struct rebuild *r)
{
	bool told = false;
	while (r->array->keeper.paused && !rebuild_over(r)) {
		if (!told)
			progress_commit(r);
		told = true;
		pthread_mutex_lock(&r->array->table);
		r->status.paused = true;
		pthread_mutex_unlock(&r->array->table);
		wait_queue_wait(&r->array->keeper.work, now_ns() + NSEC_PER_SEC);
	}
	pthread_mutex_lock(&r->array->table);
	r->status.paused = false;
	pthread_mutex_unlock(&r->array->table);
}

/* The stripes in r->todo, which lie in [first, end). */
static void window_rebuild(struct rebuild *r, uint64_t first, uint64_t end)
{
	uint64_t begun = now_ns();
	window_move(r->array, ZONE_ROWS, first, end);
	r->todo_next = 0;
	wait_group_init(&r->group);
	unsigned lanes = r->todo_count < LANES ? r->todo_count : LANES;
	wait_group_add(&r->group, lanes);
	for (unsigned i = 1; i < lanes; i++)
		if (fiber_spawn(lane_fiber, &r->lane[i]))
			wait_group_done(&r->group, 0);
	lane_fiber(&r->lane[0]);
	int e = wait_group_wait(&r->group);
	window_move(r->array, ZONE_ROWS, 0, 0);
	if (e && !r->error)
		r->error = e;
	if (!r->error && !rebuild_over(r)) {
		r->next = end;
		progress_note(r, (uint64_t)r->todo_count * r->geo->strip_bytes);
	}
	r->todo_count = 0;
	if (!r->error)
		give_way(r, now_ns() - begun);
}

static bool stripe_concerns(const struct rebuild *r, uint64_t stripe)
{
	unsigned width = r->geo->k + r->geo->m;
	return r->member->slot / width == (stripe - r->geo->first_stripe) % r->geo->groups;
}

static void geometry_rebuild(struct rebuild *r)
{
	uint64_t end = r->geo->first_stripe + r->geo->stripes;
	bool *used = malloc(USAGE_STRIPES * sizeof(*used));
	if (!used) {
		r->error = -ENOMEM;
		return;
	}
	uint64_t stripe = r->next > r->geo->first_stripe ? r->next : r->geo->first_stripe;
	while (stripe < end && !rebuild_over(r)) {
		unsigned count = end - stripe < USAGE_STRIPES ? (unsigned)(end - stripe) : USAGE_STRIPES;
		array_usage(r->array, stripe, count, used);
		uint64_t first = 0;
		for (unsigned i = 0; i < count && !rebuild_over(r); i++) {
			if (!used[i] || !stripe_concerns(r, stripe + i) || !missed_region(r->member, stripe + i))
				continue;
			if (!r->todo_count)
				first = stripe + i;
			r->todo[r->todo_count++] = stripe + i;
			if (r->todo_count == WINDOW_STRIPES) {
				window_rebuild(r, first, stripe + i + 1);
				rebuild_paused(r);
				if (now_ns() >= r->commit_at)
					progress_commit(r);
			}
		}
		if (r->todo_count && !rebuild_over(r))
			window_rebuild(r, first, r->todo[r->todo_count - 1] + 1);
		r->todo_count = 0;
		stripe += count;
		if (!rebuild_over(r))
			r->next = stripe;
		fiber_yield();
	}
	free(used);
}

static bool chunk_in_volume(const struct raid_config *c, uint64_t chunk)
{
	for (unsigned i = 0; i < SUPER_VOLUMES; i++)
		if (c->volume[i].name[0] && chunk >= c->volume[i].log_first &&
			chunk < c->volume[i].log_first + c->volume[i].log_chunks)
			return true;
	return false;
}

/* BYTES at AT of copy COPY of CHUNK into buffer INTO of the first lane. 0, or -EIO: it cannot be read. */
static int chunk_copy_read(struct rebuild *r, uint64_t chunk, unsigned copy, uint32_t at, uint32_t bytes, unsigned into)
{
	struct place from = layout_log(&r->array->config, chunk, copy);
	struct member *source = &r->array->member[from.slot];
	struct buf **buf = &r->lane[0].buf[into];
	if (!member_active(source))
		return -EIO;
	int e = drive_io(source->drive, DRIVE_OP_READ, from.offset + at, *buf, bytes, false);
	if (e == -ETIMEDOUT) {
		buf_put(*buf);
		*buf = buf_alloc(r->piece);
	}
	if (!e)
		r->status.read_bytes += bytes;
	else if (e != -ENOMEM && e != -EINVAL)
		(void)member_failed(source, MEMBER_READ_ERROR, e);
	return e ? -EIO : 0;
}

/*
 * What the other copies of CHUNK hold, or all of them when a member is copied, into the first buffer. The log has no
 * parity, but where there are more than one they are compared: what most of them say counts, so that a bit that flips
 * on its way from one drive is not written to another. When no content has more than half, the first that can be read.
 */
static int chunk_read(struct rebuild *r, uint64_t chunk, unsigned lost, uint32_t at, uint32_t bytes)
{
	unsigned copies = r->array->config.log_copies, first = copies, none = r->spare ? copies : lost;
	for (unsigned copy = 0; copy < copies; copy++) {
		unsigned same = 1, others = 1;
		if (copy == none || chunk_copy_read(r, chunk, copy, at, bytes, 0))
			continue;
		first = first < copies ? first : copy;
		for (unsigned other = 0; other < copies; other++) {
			if (other == none || other == copy || chunk_copy_read(r, chunk, other, at, bytes, 1))
				continue;
			others++;
			same += memcmp(r->lane[0].buf[0]->data, r->lane[0].buf[1]->data, bytes) == 0;
		}
		if (2 * same > others)
			return 0;
		log_warning("raid", "copies of the log differ array=%s chunk=%llu copy=%u same=%u of=%u",
			r->array->config.name, (unsigned long long)chunk, copy, same, others);
	}
	return first < copies ? chunk_copy_read(r, chunk, first, at, bytes, 0) : -EIO;
}

/* Copy COPY of CHUNK, which lies on the rebuilt member. -EIO: no other copy can be read; else the rebuild ends. */
static int chunk_copy_rebuild(struct rebuild *r, uint64_t chunk, unsigned copy)
{
	struct place to = layout_log(&r->array->config, chunk, copy);
	uint32_t bytes = r->piece < LOG_CHUNK_BYTES ? r->piece : LOG_CHUNK_BYTES;
	for (uint32_t at = 0; at < LOG_CHUNK_BYTES; at += bytes) {
		int e = chunk_read(r, chunk, copy, at, bytes);
		if (rebuild_over(r))
			return -ECANCELED;
		if (e)
			return e;
		e = drive_io(r->target, DRIVE_OP_WRITE, to.offset + at, r->lane[0].buf[0], bytes, false);
		if (e) {
			target_failed(r, e);
			return -ECANCELED;
		}
		r->status.written_bytes += bytes;
	}
	return 0;
}

static int chunk_rebuild(struct rebuild *r, uint64_t chunk)
{
	const struct raid_config *c = &r->array->config;
	for (unsigned copy = 0; copy < c->log_copies; copy++) {
		if (layout_log(c, chunk, copy).slot != r->member->slot)
			continue;
		unsigned gate = gate_enter(r->array);
		int e = chunk_copy_rebuild(r, chunk, copy);
		gate_leave(r->array, gate);
		if (e == -ECANCELED)
			return e;
		if (e) {
			r->status.lost_rows++;
			log_error("raid", "log chunk lost in rebuild array=%s slot=%u chunk=%llu", c->name,
				r->member->slot, (unsigned long long)chunk);
		}
	}
	return 0;
}

static void log_rebuild(struct rebuild *r)
{
	const struct raid_config *c = &r->array->config;
	uint64_t chunks = config_log_chunks(c);
	if ((c->log_copies < 2 && !r->spare) || r->member->slot >= c->log_members)
		return;
	for (uint64_t first = 0; first < chunks && !rebuild_over(r); first += LOG_WINDOW) {
		uint64_t end = first + LOG_WINDOW < chunks ? first + LOG_WINDOW : chunks, begun = now_ns(), copied = 0;
		bool any = false;
		for (uint64_t i = first; i < end; i++)
			any = any || chunk_in_volume(c, i);
		if (!any)
			continue;
		window_move(r->array, ZONE_LOG, first, end);
		uint64_t before = r->status.written_bytes;
		for (uint64_t i = first; i < end && !rebuild_over(r); i++)
			if (chunk_in_volume(c, i) && chunk_rebuild(r, i))
				r->error = -ECANCELED;
		copied = r->status.written_bytes - before;
		window_move(r->array, ZONE_LOG, 0, 0);
		progress_note(r, copied);
		give_way(r, now_ns() - begun);
		rebuild_paused(r);
	}
}

/* ---- begin and end ---- */

/* How much there is to do, as of now. */
static uint64_t work_count(struct rebuild *r)
{
	const struct raid_config *c = &r->array->config;
	uint64_t bytes = 0;
	bool *used = malloc(USAGE_STRIPES * sizeof(*used));
	if (!used)
		return 0;
	for (unsigned e = 0; e < c->geometries; e++) {
		r->geo = &c->geometry[e];
		for (uint64_t s = r->geo->first_stripe;
			s < r->geo->first_stripe + r->geo->stripes && !rebuild_over(r);) {
			uint64_t left = r->geo->first_stripe + r->geo->stripes - s;
			unsigned count = left < USAGE_STRIPES ? (unsigned)left : USAGE_STRIPES;
			array_usage(r->array, s, count, used);
			for (unsigned i = 0; i < count; i++)
				if (used[i] && s + i >= r->next && stripe_concerns(r, s + i) &&
					missed_region(r->member, s + i))
					bytes += r->geo->strip_bytes;
			s += count;
			fiber_yield();
		}
	}
	free(used);
	if ((c->log_copies > 1 || r->spare) && r->member->slot < c->log_members) {
		uint64_t chunks = 0;
		for (unsigned i = 0; i < SUPER_VOLUMES; i++)
			if (c->volume[i].name[0])
				chunks += c->volume[i].log_chunks;
		bytes += chunks * c->log_copies / c->log_members * LOG_CHUNK_BYTES;
	}
	return bytes;
}

static int lanes_alloc(struct rebuild *r)
{
	const struct raid_config *c = &r->array->config;
	unsigned k = 1, width = 2;
	uint32_t piece = BUF_MAX;
	for (unsigned e = 0; e < c->geometries; e++) {
		const struct geometry *g = &c->geometry[e];
		k = g->k > k ? g->k : k;
		width = g->k + g->m > width ? g->k + g->m : width;
		piece = g->strip_bytes < piece ? g->strip_bytes : piece;
	}
	while (piece > 16384 && (uint64_t)piece * k > LANE_BYTES)
		piece /= 2;
	r->piece = piece;
	r->plan = calloc(width, sizeof(*r->plan));
	if (!r->plan)
		return -ENOMEM;
	for (unsigned i = 0; i < LANES; i++) {
		r->lane[i].rebuild = r;
		r->lane[i].buffers = k + 1 < CODE_WIDTH_MAX ? k + 1 : CODE_WIDTH_MAX;
		bufs_alloc(r->lane[i].buf, r->lane[i].buffers, piece);
	}
	return 0;
}

static void plans_free(struct rebuild *r, unsigned width)
{
	for (unsigned i = 0; i < width; i++)
		if (r->plan[i].valid) {
			code_plan_free(&r->plan[i].plan);
			r->plan[i].valid = false;
		}
}

static int rebuild_finish(struct rebuild *r)
{
	struct array *array = r->array;
	struct member *member = r->member;
	struct member_config *mc = &array->config.member[member->slot];
	r->next = config_stripes(&array->config);
	progress_commit(r); /* flushes */
	fiber_lock(&array->mutex);
	int e = array_stopped(array) ? -ENODEV : mc->state == FORMAT_MEMBER_REBUILD ? 0 : -ECANCELED;
	if (!e) {
		struct member_config old = *mc;
		mc->state = FORMAT_MEMBER_ACTIVE;
		mc->map_id = mc->rebuild_next = 0;
		mc->changed = wall_ns();
		missed_spread(array, member->slot);
		e = array_commit(array, NULL);
		if (!e && mc->state != FORMAT_MEMBER_ACTIVE)
			e = -ECANCELED;
		if (!e)
			atomic_store(&member->state, FORMAT_MEMBER_ACTIVE);
		else if (mc->state == FORMAT_MEMBER_ACTIVE)
			*mc = old;
	}
	fiber_unlock(&array->mutex);
	return e;
}

/* ---- the same for a copy ---- */

static void copy_begin(struct rebuild *r)
{
	const struct raid_config *c = &r->array->config;
	struct drive *from = r->member->drive;
	from->twin_from = c->log_offset;
	from->twin_to = c->data_offset + c->data_bytes;
	atomic_store(&r->target->twin_failed, false);
	atomic_store(&r->target->twin_counts, false);
	atomic_store(&from->twin, r->target);
	array_barrier(r->array); /* who writes from now on writes to both */
}

/* The drives change places in the configuration, and on the drives. Mutex held. */
static int copy_commit(struct rebuild *r)
{
	struct array *array = r->array;
	struct raid_config *c = &array->config;
	struct member_config *to = &c->member[r->member->slot], *from = &c->member[r->spare->slot];
	if (rebuild_over(r) || to->state != FORMAT_MEMBER_ACTIVE || from->state != FORMAT_MEMBER_SPARE)
		return array_stopped(array) ? -ENODEV : -ECANCELED;
	struct member_config was_to = *to, was_from = *from;
	pthread_mutex_lock(&array->table);
	*to = (struct member_config){.uuid = from->uuid,
		.state = FORMAT_MEMBER_ACTIVE,
		.events = from->events,
		.changed = wall_ns(),
		.left = c->events + 1};
	*from = (struct member_config){.state = FORMAT_MEMBER_NONE};
	pthread_mutex_unlock(&array->table);
	r->member->incoming = r->target;
	missed_spread(array, r->member->slot);
	int e = array_commit(array, NULL);
	r->member->incoming = NULL;
	if (!e && to->state != FORMAT_MEMBER_ACTIVE)
		return -EIO;
	if (e && to->state == FORMAT_MEMBER_ACTIVE) {
		pthread_mutex_lock(&array->table);
		*to = was_to;
		*from = was_from;
		pthread_mutex_unlock(&array->table);
	}
	return e;
}

/* All is copied. What is written from the barrier on counts as written only when the twin has it too. */
static int copy_finish(struct rebuild *r)
{
	struct array *array = r->array;
	struct drive *old = r->member->drive;
	if (target_flush(r))
		return -EIO;
	atomic_store(&r->target->twin_counts, true);
	array_barrier(array);
	fiber_lock(&array->mutex);
	int e = copy_commit(r);
	bool moved = array->config.member[r->spare->slot].state == FORMAT_MEMBER_NONE;
	if (moved)
		member_drive_swap(r->member, r->spare);
	fiber_unlock(&array->mutex);
	if (!moved)
		return e;
	array_barrier(array); /* who still writes to the old one does so to both */
	drive_close(old);
	return e;
}

/* The member keeps its drive, unless it has lost it meanwhile. */
static void copy_end(struct rebuild *r, struct drive *old)
{
	if (r->member->drive == old)
		atomic_store(&old->twin, NULL);
	array_barrier(r->array);
	atomic_store(&r->target->twin_counts, false);
}

/* ---- the whole ---- */

static void rebuild_walk(struct rebuild *r)
{
	struct array *array = r->array;
	struct raid_config *c = &array->config;
	unsigned slot = r->member->slot;
	for (unsigned e = 0; e < c->geometries && !rebuild_over(r); e++) {
		r->geo = &c->geometry[e];
		r->code = &array->code[e];
		unsigned width = r->geo->k + r->geo->m;
		if (slot < r->geo->groups * width)
			geometry_rebuild(r);
		plans_free(r, width);
	}
	if (!rebuild_over(r))
		log_rebuild(r);
}

static void rebuild_tell_begin(struct rebuild *r, uint64_t total)
{
	const char *what = r->spare ? "copied from" : r->partial ? "missed rows" : "all rows in use";
	log_info("raid", "rebuild begins array=%s slot=%u drive=%s %s%s%s bytes=%llu from_stripe=%llu",
		r->array->config.name, r->member->slot, r->spare ? r->spare->path : r->member->path, what,
		r->spare ? " " : "", r->spare ? r->member->path : "", (unsigned long long)total,
		(unsigned long long)r->next);
	event_emit(r->array, "rebuild-started", r->spare ? r->spare : r->member, "slot %u, %s%s%s, %llu bytes",
		r->member->slot, what, r->spare ? " " : "", r->spare ? r->member->path : "", (unsigned long long)total);
}

static void rebuild_tell_end(struct rebuild *r, int result, uint64_t took)
{
	struct array *array = r->array;
	const struct member *member =
		result && r->spare ? r->spare : r->member; /* on success they have changed places */
	unsigned slot = r->member->slot;
	if (!result) {
		log_info("raid", "rebuild done array=%s slot=%u drive=%s written=%llu read=%llu lost_rows=%llu ms=%llu",
			array->config.name, slot, member->path, (unsigned long long)r->status.written_bytes,
			(unsigned long long)r->status.read_bytes, (unsigned long long)r->status.lost_rows,
			(unsigned long long)(took / NSEC_PER_MSEC));
		event_emit(array, "rebuild-done", member, "slot %u, %llu bytes, %llu rows lost", slot,
			(unsigned long long)r->status.written_bytes, (unsigned long long)r->status.lost_rows);
	} else if (!array->keeper.closing) {
		log_warning("raid", "rebuild ended array=%s slot=%u drive=%s reason=\"%s\"", array->config.name, slot,
			member->path, strerror(-result));
		event_emit(array, "rebuild-failed", member, "slot %u: %s", slot, strerror(-result));
	}
}

/* SPARE: to copy to, or NULL. */
static int rebuild_make(struct array *array, unsigned slot, struct member *spare)
{
	struct rebuild *r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->array = array;
	r->member = &array->member[slot];
	r->spare = spare;
	r->target = spare ? spare->drive : r->member->drive;
	struct drive *old = r->member->drive;
	r->partial = !spare && array->config.member[slot].map_id != 0;
	r->next = spare ? 0 : array->config.member[slot].rebuild_next;
	r->status.running = true;
	r->status.copies = spare;
	r->status.partial = r->partial;
	r->status.slot = slot;
	pthread_mutex_lock(&array->table);
	array->keeper.rebuild = r;
	pthread_mutex_unlock(&array->table);
	uint64_t begun = now_ns();
	r->error = lanes_alloc(r);
	if (spare)
		copy_begin(r);
	else /* who left the member out when it was not there yet has put that on record when this returns */
		array_barrier(array);
	uint64_t total = work_count(r);
	pthread_mutex_lock(&array->table);
	r->status.total_bytes = total;
	pthread_mutex_unlock(&array->table);
	rebuild_tell_begin(r, total);
	others_look(r, &r->others, &r->others_ns);
	r->rate_at = begun;
	r->commit_at = now_ns() + COMMIT_INTERVAL;
	rebuild_walk(r);
	int result = r->error ? r->error : rebuild_over(r) ? -ECANCELED : 0;
	if (spare) {
		fiber_lock(&array->change);
		if (!result)
			result = copy_finish(r);
		copy_end(r, old);
		fiber_unlock(&array->change);
	} else if (!result) {
		result = rebuild_finish(r);
	} else if (array->keeper.closing && atomic_load(&r->member->state) == FORMAT_MEMBER_REBUILD) {
		progress_commit(r);
	}
	pthread_mutex_lock(&array->table);
	r->status.running = false;
	r->status.eta_ns = 0;
	array->keeper.last = r->status;
	array->keeper.rebuild = NULL;
	pthread_mutex_unlock(&array->table);
	rebuild_tell_end(r, result, now_ns() - begun);
	for (unsigned i = 0; i < LANES; i++)
		for (unsigned j = 0; j < r->lane[i].buffers; j++)
			buf_put(r->lane[i].buf[j]);
	free(r->plan);
	free(r);
	return result;
}

int rebuild_run(struct array *array, unsigned slot)
{
	return rebuild_make(array, slot, NULL);
}

int copy_run(struct array *array, unsigned slot, unsigned spare)
{
	return rebuild_make(array, slot, &array->member[spare]);
}
