/*
 * Reading: rows as they lie on the members, or made again from the others.
 *
 * volume_read() cuts a run of blocks into segments, each inside one strip, and sends the commands of
 * whole stripes of them, as many as there is room for, out together. A segment whose member is out, or whose command
 * failed, is recovered afterwards: from another copy straight into the caller's memory, or from K other positions of
 * the same rows. Neighbours that this read brought in anyway are used where they lie; so a whole stripe read without a
 * member costs K strips.
 *
 * After a read error, as opposed to a lost member, the place is noted: a drive repairs a bad sector when it is written.
 * But what was recovered may be wrong, when one of the others lies. So it is written back only when the caller, who has
 * the checksums, says that what it got is right: volume_verified(), or volume_repair() if another way had to be found.
 *
 * A drive that does not answer in time keeps the memory it was given, which here is the caller's: nothing
 * may be put there any more. The member is taken out and the caller gets -ETIMEDOUT, to come again with
 * other memory. Scratch memory of ours is simply replaced.
 *
 * Errors of drives go to member_failed(), which may take the member out and then waits until
 * this is durable. -EIO is returned only when fewer than K positions can be read.
 *
 * Safe against the owner: only blocks that the caller reads are written back, before it lets go of them, and the owner
 * never writes rows again that it still reads.
 */
#include <errno.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

#define SEGMENTS 32u

struct segment {
	struct drive_req req;
	uint64_t stripe; /* of the array */
	struct slice_cursor to;
	uint32_t row, rows;
	uint8_t pos;	/* the position whose content is wanted */
	uint8_t source; /* the position that was asked, another copy maybe */
	bool have;	/* the content is there */
	bool sent;
};

static struct member *member_at(
	const struct volume *volume, uint64_t stripe, unsigned pos, uint32_t row, uint64_t *offset)
{
	struct place place = layout_strip(volume->geo, stripe, pos);
	*offset = place.offset + (uint64_t)row * BLOCK_BYTES;
	return &volume->array->member[place.slot];
}

void bufs_alloc(struct buf **bufs, unsigned n, uint32_t size)
{
	for (;;) {
		unsigned got = 0;
		while (got < n && (bufs[got] = buf_try_alloc(size)))
			got++;
		if (got == n)
			return;
		while (got)
			buf_put(bufs[--got]);
		/* wait for memory with empty hands, so that two who need much cannot starve each other */
		buf_put(buf_alloc(size));
		fiber_yield();
	}
}

/* ---- recovery from K others ---- */

#define RECOVER_MOST 2u /* positions made in one go: what is lost together is read for once */

struct recover {
	struct code_plan plan;
	unsigned count; /* of wanted */
	uint8_t wanted[RECOVER_MOST];
	struct slice_cursor to[RECOVER_MOST];
	uint8_t source[CODE_WIDTH_MAX];
	struct slice_cursor from[CODE_WIDTH_MAX];
	struct slice scratch_slice[CODE_WIDTH_MAX];
	struct buf *scratch[CODE_WIDTH_MAX];
	struct drive_req req[CODE_WIDTH_MAX];
	bool read[CODE_WIDTH_MAX]; /* else known */
	uint64_t failed;	   /* positions whose read failed */
};

/* What of these segments holds rows [row, row+rows) of POS of STRIPE already. */
static const struct segment *segment_known(
	const struct segment *segs, unsigned n, uint64_t stripe, unsigned pos, uint32_t row, uint32_t rows)
{
	for (unsigned i = 0; i < n; i++) {
		const struct segment *s = &segs[i];
		if (s->have && s->stripe == stripe && s->pos == pos && s->row <= row && row + rows <= s->row + s->rows)
			return s;
	}
	return NULL;
}

/* Reads those of the K positions in rec->source that are not known, into rec->scratch, of which it says how many. */
static int recover_read(const struct volume *volume, struct recover *rec, uint64_t stripe, uint32_t row, uint32_t rows,
	const struct segment *segs, unsigned n, unsigned *scratch)
{
	unsigned k = volume->geo->k, used = 0;
	uint32_t bytes = rows * BLOCK_BYTES;
	uint64_t offset;
	*scratch = 0;
	for (unsigned i = 0; i < k; i++) {
		const struct segment *known = segment_known(segs, n, stripe, rec->source[i], row, rows);
		rec->read[i] = !known;
		if (known) {
			rec->from[i] = known->to;
			slice_cursor_skip(&rec->from[i], (uint64_t)(row - known->row) * BLOCK_BYTES);
		} else {
			++*scratch;
		}
	}
	bufs_alloc(rec->scratch, *scratch, bytes);
	struct drive_batch batch;
	batch_init(&batch);
	for (unsigned i = 0; i < k; i++) {
		if (!rec->read[i])
			continue;
		struct member *member = member_at(volume, stripe, rec->source[i], row, &offset);
		rec->scratch_slice[i] = (struct slice){.buf = rec->scratch[used++], .off = 0, .len = bytes};
		rec->from[i] = slice_cursor_at(&rec->scratch_slice[i], 1);
		struct slice_cursor cursor = rec->from[i];
		batch_io(&batch, &rec->req[i], member->drive, DRIVE_OP_READ, offset, bytes, &cursor, false);
	}
	batch_wait(&batch);
	int r = 0;
	for (unsigned i = 0; i < k; i++) {
		if (!rec->read[i] || !rec->req[i].error)
			continue;
		rec->failed |= 1ull << rec->source[i];
		int e = member_failed(
			member_at(volume, stripe, rec->source[i], row, &offset), MEMBER_READ_ERROR, rec->req[i].error);
		if (r != -ENODEV)
			r = e ? e : -EIO;
	}
	return r;
}

/* The next BYTES of rec->to from those of rec->from, as far at a time as all of them lie in one slice. */
static int recover_compute(const struct volume *volume, struct recover *rec, uint32_t bytes)
{
	unsigned k = volume->geo->k;
	for (uint32_t step; bytes; bytes -= step) {
		uint8_t *from[CODE_WIDTH_MAX], *dest[RECOVER_MOST];
		uint32_t len;
		step = bytes;
		for (unsigned i = 0; i < rec->count; i++) {
			dest[i] = slice_cursor_peek(&rec->to[i], &len);
			step = len < step ? len : step;
		}
		for (unsigned i = 0; i < k; i++) {
			from[i] = slice_cursor_peek(&rec->from[i], &len);
			step = len < step ? len : step;
		}
		if (!step)
			return -EINVAL;
		volume->code->ops->apply(&rec->plan, from, dest, step);
		for (unsigned i = 0; i < k; i++)
			slice_cursor_skip(&rec->from[i], step);
		for (unsigned i = 0; i < rec->count; i++)
			slice_cursor_skip(&rec->to[i], step);
	}
	return 0;
}

/* One piece of recovery, with rec->source chosen. */
static int recover_piece(const struct volume *volume, struct recover *rec, uint64_t stripe, uint32_t row, uint32_t rows,
	const struct segment *segs, unsigned n)
{
	unsigned scratch;
	int r = recover_read(volume, rec, stripe, row, rows, segs, n, &scratch);
	if (!r)
		r = recover_compute(volume, rec, rows * BLOCK_BYTES);
	for (unsigned i = 0; i < scratch; i++)
		buf_put(rec->scratch[i]);
	return r;
}

/* Makes rows of rec->wanted in rec->to from the K positions in rec->source. -EIO: one could not be read (rec->failed).
 */
static int recover_rows(const struct volume *volume, struct recover *rec, uint64_t stripe, uint32_t row, uint32_t rows,
	const struct segment *segs, unsigned n)
{
	uint32_t most = volume->geo->k > 16 ? 16 : BUF_MAX / BLOCK_BYTES;
	int r = code_plan(volume->code, &rec->plan, rec->source, rec->wanted, rec->count);
	while (!r && rows) {
		uint32_t piece = rows < most ? rows : most;
		r = recover_piece(volume, rec, stripe, row, piece, segs, n);
		row += piece;
		rows -= piece;
	}
	code_plan_free(&rec->plan);
	return r;
}

/* Chooses K positions other than rec->wanted: first what is known, then what can be read, of slow drives last. */
static bool sources_choose(const struct volume *volume, struct recover *rec, const struct segment *seg,
	const struct segment *segs, unsigned n)
{
	const struct geometry *g = volume->geo;
	unsigned found = 0;
	for (unsigned pass = 0; pass < 3; pass++) {
		for (unsigned pos = 0; pos < g->k + g->m && found < g->k; pos++) {
			uint64_t offset;
			if (memchr(rec->wanted, (int)pos, rec->count))
				continue;
			const struct member *member = member_at(volume, seg->stripe, pos, 0, &offset);
			bool known = segment_known(segs, n, seg->stripe, pos, seg->row, seg->rows) != NULL;
			if (pass == 0 ? !known
				      : known || (rec->failed & 1ull << pos) || !member_active(member) ||
						member_preferred(member) != (pass == 1))
				continue;
			rec->source[found++] = (uint8_t)pos;
		}
	}
	return found == g->k;
}

/* Writes recovered rows back to a member that could not read them. */
static int write_back(struct member *member, uint64_t stripe, uint64_t offset, struct slice_cursor from, uint64_t bytes)
{
	struct drive_batch batch;
	struct drive_req req;
	if (member->array->look)
		return 0;
	batch_init(&batch);
	batch_io(&batch, &req, member->drive, DRIVE_OP_WRITE, offset, bytes, &from, false);
	batch_wait(&batch);
	if (req.error)
		return member_failed(member, MEMBER_WRITE_ERROR, req.error);
	/* as any row that was written, it is missed if the member goes with its cache before a flush */
	recent_mark(member->array, stripe);
	return 0;
}

/* ---- places that could not be read ---- */

static void unread_note(struct volume *volume, const struct segment *seg)
{
	const struct geometry *g = volume->geo;
	struct unread *u = &volume->unread;
	unsigned pos = volume->code->ops->copies ? 0 : seg->pos;
	struct unread_run run = {
		.block = ((seg->stripe - volume->first_stripe) * g->k + pos) * g->strip_blocks + seg->row,
		.blocks = seg->rows,
		.pos = seg->source,
	};
	pthread_mutex_lock(&u->lock);
	if (u->count < UNREAD_MOST)
		atomic_store_explicit(&u->count, u->count + 1, memory_order_relaxed);
	else /* whoever reads the first one again notes it again */
		memmove(u->run, u->run + 1, (UNREAD_MOST - 1) * sizeof(u->run[0]));
	u->run[u->count - 1] = run;
	pthread_mutex_unlock(&u->lock);
}

/* Takes out a run that has blocks of [first, end), cut to these. */
static bool unread_take(struct volume *volume, uint64_t first, uint64_t end, struct unread_run *run)
{
	struct unread *u = &volume->unread;
	bool found = false;
	if (!atomic_load_explicit(&u->count, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&u->lock);
	for (unsigned i = 0; i < u->count && !found; i++) {
		*run = u->run[i];
		if (run->block >= end || run->block + run->blocks <= first)
			continue;
		uint64_t from = run->block > first ? run->block : first;
		uint64_t to = run->block + run->blocks < end ? run->block + run->blocks : end;
		run->block = from;
		run->blocks = (uint32_t)(to - from);
		found = true;
		u->run[i] = u->run[u->count - 1];
		atomic_store_explicit(&u->count, u->count - 1, memory_order_relaxed);
	}
	pthread_mutex_unlock(&u->lock);
	return found;
}

/* A read into the caller's memory failed. 0: something else may be tried in the same memory. */
static int read_failed(struct member *member, const struct drive_req *req)
{
	if (req->error == -ENOMEM || req->error == -EINVAL)
		return req->error;
	int r = member_failed(member, MEMBER_READ_ERROR, req->error);
	return r ? r : req->given_up ? -ETIMEDOUT : 0;
}

static int recover_copy(const struct volume *volume, struct segment *seg, uint64_t tried)
{
	uint64_t bytes = (uint64_t)seg->rows * BLOCK_BYTES;
	for (unsigned pos = 0; pos < 1 + volume->geo->m; pos++) {
		uint64_t offset;
		struct member *member = member_at(volume, seg->stripe, pos, seg->row, &offset);
		if ((tried & 1ull << pos) || !member_active(member))
			continue;
		struct drive_batch batch;
		struct slice_cursor to = seg->to;
		batch_init(&batch);
		batch_io(&batch, &seg->req, member->drive, DRIVE_OP_READ, offset, bytes, &to, false);
		batch_wait(&batch);
		if (!seg->req.error)
			return 0;
		int r = read_failed(member, &seg->req);
		if (r)
			return r;
	}
	return -EIO;
}

/* Rows of the same depth in the same stripe that are not there either, because nobody was asked for them. */
static struct segment *segment_companion(const struct segment *seg, struct segment *segs, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct segment *s = &segs[i];
		if (s != seg && !s->have && !s->sent && s->stripe == seg->stripe && s->row == seg->row &&
			s->rows == seg->rows)
			return s;
	}
	return NULL;
}

static int segment_recover(struct volume *volume, struct segment *seg, struct segment *segs, unsigned n)
{
	const struct geometry *g = volume->geo;
	int error = seg->sent ? seg->req.error : 0; /* of the member that was asked */
	uint64_t offset;
	struct member *asked = member_at(volume, seg->stripe, seg->source, seg->row, &offset);
	int r;
	if (error && (r = read_failed(asked, &seg->req)))
		return r;
	if (volume->code->ops->copies) {
		r = recover_copy(volume, seg, seg->sent ? 1ull << seg->source : 0);
	} else {
		struct recover *rec = calloc(1, sizeof(*rec));
		if (!rec)
			return -ENOMEM;
		struct segment *also = g->m > 1 ? segment_companion(seg, segs, n) : NULL;
		do {
			rec->count = also ? 2 : 1;
			rec->wanted[0] = seg->pos;
			rec->to[0] = seg->to;
			if (also) {
				rec->wanted[1] = also->pos;
				rec->to[1] = also->to;
			}
			r = sources_choose(volume, rec, seg, segs, n)
				    ? recover_rows(volume, rec, seg->stripe, seg->row, seg->rows, segs, n)
				    : -ENODATA;
			if (r == -ENODATA && also) {
				also = NULL;
				r = -EIO;
			}
		} while (r == -EIO);
		if (!r && also)
			also->have = true;
		free(rec);
		if (r == -ENODATA)
			r = -EIO;
	}
	/* it was slow and therefore not asked, but it is the last that has it */
	if (r == -EIO && !seg->sent && member_active(asked)) {
		struct drive_batch batch;
		struct slice_cursor to = seg->to;
		batch_init(&batch);
		batch_io(&batch, &seg->req, asked->drive, DRIVE_OP_READ, offset, (uint64_t)seg->rows * BLOCK_BYTES, &to,
			false);
		batch_wait(&batch);
		if (!seg->req.error)
			r = 0;
		else if ((r = read_failed(asked, &seg->req)) == 0)
			r = -EIO;
	}
	if (r == -EIO) {
		log_error("raid", "rows lost volume=%s stripe=%llu row=%u rows=%u position=%u", volume->name,
			(unsigned long long)(seg->stripe - volume->first_stripe), seg->row, seg->rows, seg->pos);
	}
	if (r)
		return r;
	seg->have = true;
	if (error && member_active(asked))
		unread_note(volume, seg);
	return 0;
}

/* SEGS has room for MOST. */
static int blocks_read_with(
	struct volume *volume, uint64_t block, const struct slice *to, unsigned n, struct segment *segs, unsigned most)
{
	const struct geometry *g = volume->geo;
	uint64_t stripe_blocks = (uint64_t)g->k * g->strip_blocks, left;
	int r = volume_range(volume, block, volume->geometry.stripes * stripe_blocks, to, n, &left);
	if (r)
		return r;
	struct slice_cursor cursor = slice_cursor_at(to, n);
	uint64_t stripe = block / stripe_blocks;
	uint32_t in_stripe = (uint32_t)(block % stripe_blocks);
	while (left) {
		struct drive_batch batch;
		unsigned count = 0, missing = 0;
		batch_init(&batch);
		while (left && count < most) {
			/* a stripe that is read in one round costs no read twice for what is lost of it */
			uint64_t strips = (left + g->strip_blocks - 1) / g->strip_blocks;
			if (count && !in_stripe && count + (strips < g->k ? strips : g->k) > most)
				break;
			struct segment *s = &segs[count++];
			uint32_t row = in_stripe % g->strip_blocks, rows = g->strip_blocks - row;
			if (rows > left)
				rows = (uint32_t)left;
			uint8_t pos = (uint8_t)(in_stripe / g->strip_blocks);
			*s = (struct segment){
				.stripe = volume->first_stripe + stripe,
				.to = cursor,
				.row = row,
				.rows = rows,
				.pos = pos,
				.source = pos,
			};
			uint64_t offset;
			struct member *member = member_at(volume, s->stripe, pos, row, &offset);
			for (uint8_t p = 1; volume->code->ops->copies && !member_preferred(member) && p <= g->m; p++) {
				s->source = p;
				member = member_at(volume, s->stripe, p, row, &offset);
			}
			if (volume->code->ops->copies ? member_active(member) : member_preferred(member)) {
				s->sent = true;
				batch_io(&batch, &s->req, member->drive, DRIVE_OP_READ, offset,
					(uint64_t)rows * BLOCK_BYTES, &cursor, false);
				if (s->req.error == -EINVAL) {
					batch_wait(&batch);
					return -EINVAL;
				}
				if (s->req.error) { /* not all of it was taken from the cursor */
					cursor = s->to;
					slice_cursor_skip(&cursor, (uint64_t)rows * BLOCK_BYTES);
				}
			} else {
				slice_cursor_skip(&cursor, (uint64_t)rows * BLOCK_BYTES);
			}
			left -= rows;
			in_stripe += rows;
			if (in_stripe == stripe_blocks) {
				in_stripe = 0;
				stripe++;
			}
		}
		batch_wait(&batch);
		for (unsigned i = 0; i < count; i++) {
			segs[i].have = segs[i].sent && !segs[i].req.error;
			missing += !segs[i].have;
		}
		/* first those whose memory is not ours any more: all of them, so that the caller comes back once */
		for (unsigned i = 0; missing && i < count; i++) {
			if (!segs[i].sent || !segs[i].req.given_up)
				continue;
			uint64_t offset;
			int e = read_failed(
				member_at(volume, segs[i].stripe, segs[i].source, segs[i].row, &offset), &segs[i].req);
			r = r == -ENODEV ? r : e;
		}
		for (unsigned i = 0; missing && !r && i < count; i++)
			if (!segs[i].have)
				r = segment_recover(volume, &segs[i], segs, count);
		if (r)
			return r;
	}
	return 0;
}

static int blocks_read(struct volume *volume, uint64_t block, const struct slice *to, unsigned n)
{
	struct segment few[SEGMENTS];
	if (volume->geo->k <= SEGMENTS)
		return blocks_read_with(volume, block, to, n, few, SEGMENTS);
	struct segment *many = malloc(CODE_WIDTH_MAX * sizeof(*many));
	if (!many)
		return blocks_read_with(volume, block, to, n, few, SEGMENTS);
	int r = blocks_read_with(volume, block, to, n, many, CODE_WIDTH_MAX);
	free(many);
	return r;
}

/* ---- the same block another way ---- */

/*
 * The set number INDEX of K among the N positions other than POS. Counted are all positions, there or not: so the
 * numbers mean the same while a caller goes through them, even if a member goes out meanwhile.
 */
static bool sources_combination(unsigned pos, unsigned n, unsigned k, unsigned index, uint8_t *source)
{
	uint8_t pick[CODE_WIDTH_MAX];
	if (k > n)
		return false;
	for (unsigned i = 0; i < k; i++)
		pick[i] = (uint8_t)i;
	while (index--) {
		unsigned i = k;
		while (i && pick[i - 1] == n - k + i - 1)
			i--;
		if (!i)
			return false;
		pick[i - 1]++;
		for (unsigned j = i; j < k; j++)
			pick[j] = (uint8_t)(pick[j - 1] + 1);
	}
	for (unsigned i = 0; i < k; i++)
		source[i] = (uint8_t)(pick[i] + (pick[i] >= pos));
	return true;
}

static int block_reread(struct volume *volume, uint64_t block, unsigned attempt, const struct slice *to)
{
	const struct geometry *g = volume->geo;
	uint64_t stripe_blocks = (uint64_t)g->k * g->strip_blocks, blocks, offset;
	int r = volume_range(volume, block, volume->geometry.stripes * stripe_blocks, to, 1, &blocks);
	if (r)
		return r;
	uint64_t stripe = volume->first_stripe + block / stripe_blocks;
	uint32_t in_stripe = (uint32_t)(block % stripe_blocks), row = in_stripe % g->strip_blocks;
	unsigned pos = in_stripe / g->strip_blocks;
	if (blocks > g->strip_blocks - row)
		return -EINVAL;
	struct slice_cursor cursor = slice_cursor_at(to, 1);
	struct member *member = member_at(volume, stripe, pos, row, &offset);
	if (attempt == 0) {
		if (!member_active(member))
			return -EIO;
		struct drive_batch batch;
		struct drive_req req;
		batch_init(&batch);
		batch_io(&batch, &req, member->drive, DRIVE_OP_READ, offset, blocks * BLOCK_BYTES, &cursor, false);
		batch_wait(&batch);
		if (!req.error)
			return 0;
		r = read_failed(member, &req);
		return r ? r : -EIO;
	}
	struct recover *rec = calloc(1, sizeof(*rec));
	if (!rec)
		return -ENOMEM;
	rec->count = 1;
	rec->wanted[0] = (uint8_t)pos;
	rec->to[0] = cursor;
	if (!sources_combination(pos, g->k + g->m - 1, g->k, attempt - 1, rec->source))
		r = -ENOENT;
	for (unsigned i = 0; i < g->k && !r; i++)
		if (!member_active(member_at(volume, stripe, rec->source[i], row, &offset)))
			r = -EIO;
	if (!r)
		r = recover_rows(volume, rec, stripe, row, (uint32_t)blocks, NULL, 0);
	free(rec);
	return r;
}

static int block_repair(struct volume *volume, uint64_t block, const struct slice *from)
{
	const struct geometry *g = volume->geo;
	uint64_t stripe_blocks = (uint64_t)g->k * g->strip_blocks, blocks, offset;
	int r = volume_range(volume, block, volume->geometry.stripes * stripe_blocks, from, 1, &blocks);
	if (r)
		return r;
	uint64_t stripe = volume->first_stripe + block / stripe_blocks;
	uint32_t in_stripe = (uint32_t)(block % stripe_blocks), row = in_stripe % g->strip_blocks;
	if (blocks > g->strip_blocks - row)
		return -EINVAL;
	struct member *member = member_at(volume, stripe, in_stripe / g->strip_blocks, row, &offset);
	struct unread_run run;
	bool unread = unread_take(volume, block, block + blocks, &run);
	if (!member_active(member))
		return 0;
	if (!unread) /* else its error is counted */
		member_lied(member);
	log_warning("raid", "block repaired volume=%s block=%llu blocks=%llu slot=%u drive=%s", volume->name,
		(unsigned long long)block, (unsigned long long)blocks, member->slot, member->path);
	return write_back(member, stripe, offset, slice_cursor_at(from, 1), blocks * BLOCK_BYTES);
}

/* ---- what the owner calls: all of it inside of a gate ---- */

int volume_read(struct volume *volume, uint64_t block, const struct slice *to, unsigned n)
{
	unsigned gate = gate_enter(volume->array);
	int r = blocks_read(volume, block, to, n);
	gate_leave(volume->array, gate);
	return r;
}

int volume_reread(struct volume *volume, uint64_t block, unsigned attempt, const struct slice *to)
{
	unsigned gate = gate_enter(volume->array);
	int r = block_reread(volume, block, attempt, to);
	gate_leave(volume->array, gate);
	return r;
}

int volume_repair(struct volume *volume, uint64_t block, const struct slice *from)
{
	uint64_t stripe = volume->first_stripe + block / volume_stripe_blocks(&volume->geometry);
	unsigned gate = gate_enter_write(volume->array, ZONE_ROWS, stripe, 1);
	int r = block_repair(volume, block, from);
	gate_leave(volume->array, gate);
	return r;
}

void volume_verified(struct volume *volume, uint64_t block, const struct slice *from, unsigned n)
{
	const struct geometry *g = volume->geo;
	uint64_t end = block + slices_bytes(from, n) / BLOCK_BYTES, offset;
	struct unread_run run;
	while (unread_take(volume, block, end, &run)) {
		uint64_t stripe = volume->first_stripe + run.block / volume_stripe_blocks(&volume->geometry);
		struct slice_cursor cursor = slice_cursor_at(from, n);
		slice_cursor_skip(&cursor, (run.block - block) * BLOCK_BYTES);
		unsigned gate = gate_enter_write(volume->array, ZONE_ROWS, stripe, 1);
		struct member *member =
			member_at(volume, stripe, run.pos, (uint32_t)(run.block % g->strip_blocks), &offset);
		if (member_active(member) && !array_stopped(volume->array))
			(void)write_back(member, stripe, offset, cursor, (uint64_t)run.blocks * BLOCK_BYTES);
		gate_leave(volume->array, gate);
	}
}
