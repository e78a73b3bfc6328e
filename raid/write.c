/*
 * Writing: whole rows with their parity, the log zone, flushes.
 *
 * volume_write_rows() computes the parity into arena buffers first, then sends the commands for all
 * K+M members in one batch. A member that is out is left out; one that fails is taken out. In both
 * cases the write is acknowledged only when the loss is durable on the others (member.c tells why).
 * A write that the machine failed, not a drive (-ENOMEM), is given back as failed: its rows
 * hold nothing that anybody relies on.
 *
 * What is not written durably is counted per member; volume_flush() flushes those members that have such writes and
 * a volatile cache. The log zone is always written durably, to all copies at once.
 */
#include <errno.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

#define LOG_REQS 48u
#define PARITY_SLICES 8u /* M <= 2 strips of at most 1 MiB in buffers of 256 KiB */

/* A write of MEMBER ended. */
static int write_ended(struct member *member, int error)
{
	if (!error || error == -ENOMEM || error == -EINVAL)
		return error;
	return member_failed(member, MEMBER_WRITE_ERROR, error);
}

/* One write of rows, while it runs. */
struct rows_write {
	struct array *array;
	uint64_t stripe; /* of the array */
	uint64_t offset; /* on each drive */
	uint32_t bytes;	 /* of each position */
	unsigned k, width;
	bool durable;
	struct member *member[CODE_WIDTH_MAX];	  /* of each position */
	struct slice_cursor from[CODE_WIDTH_MAX]; /* its content */
	struct drive_req req[CODE_WIDTH_MAX];
};

/* Parity from data, in pieces that each lie in one buffer of every position: mostly it is one. */
static int rows_encode(const struct code *code, const struct rows_write *w)
{
	struct slice_cursor copy[CODE_WIDTH_MAX];
	const struct slice_cursor *from = w->from;
	uint32_t left = w->bytes;
	for (;;) {
		uint8_t *at[CODE_WIDTH_MAX];
		uint32_t step = left, len;
		for (unsigned i = 0; i < w->width; i++) {
			at[i] = slice_cursor_peek(&from[i], &len);
			step = len < step ? len : step;
		}
		if (!step)
			return -EINVAL;
		code->ops->encode(code, at, at + w->k, step);
		left -= step;
		if (!left)
			return 0;
		if (from != copy)
			from = memcpy(copy, from, w->width * sizeof(*from));
		for (unsigned i = 0; i < w->width; i++)
			slice_cursor_skip(&copy[i], step);
	}
}

/* Whoever of AWAY lacks what is written has that on record when it returns. */
static int rows_settle(const struct rows_write *w, uint64_t away)
{
	int r = 0;
	for (unsigned pos = 0; pos < w->width && r != -ENODEV; pos++) {
		int e = away >> pos & 1 ? member_lacks(w->member[pos], w->stripe) : 0;
		r = e ? e : r;
	}
	return r;
}

/* To all members in one batch. Inside of the gate. */
static int rows_send(struct rows_write *w)
{
	struct drive *drive[CODE_WIDTH_MAX];
	struct drive_batch batch;
	uint64_t skipped = 0, out = 0;
	int r = 0;
	for (unsigned pos = 0; pos < w->width; pos++) {
		bool there = member_writable(w->member[pos]);
		drive[pos] = there ? w->member[pos]->drive : NULL;
		skipped |= (uint64_t)!there << pos;
	}
	/* who cannot have it is on record before anybody has it */
	if (skipped && (r = rows_settle(w, skipped)))
		return r;
	batch_init(&batch);
	batch_row(&batch, w->req, drive, w->width, DRIVE_OP_WRITE, w->offset, w->bytes, w->from, w->durable);
	batch_wait(&batch);
	for (unsigned pos = 0; pos < w->width; pos++) {
		if (!w->req[pos].error)
			continue;
		int e = write_ended(w->member[pos], w->req[pos].error);
		r = r == -ENODEV || !e ? r : e;
	}
	if (!w->durable)
		recent_mark(w->array, w->stripe);
	/* who has gone out meanwhile may lack it, whatever its command said */
	for (unsigned pos = 0; pos < w->width; pos++)
		out |= (uint64_t)!member_writable(w->member[pos]) << pos;
	int e = out & ~skipped && r != -ENODEV ? rows_settle(w, out & ~skipped) : 0;
	return e ? e : r;
}

int volume_write_rows(struct volume *volume, uint64_t stripe, uint32_t row, uint32_t rows, const struct slice *from,
	unsigned n, unsigned flags)
{
	const struct geometry *g = volume->geo;
	struct array *array = volume->array;
	bool copies = volume->code->ops->copies;
	if (stripe >= volume->geometry.stripes || rows == 0 || row >= g->strip_blocks || rows > g->strip_blocks - row)
		return -EINVAL;
	uint32_t bytes = rows * BLOCK_BYTES;
	if (slices_bytes(from, n) != (uint64_t)g->k * bytes)
		return -EINVAL;
	if (array_stopped(array))
		return -ENODEV;
	stripe += volume->first_stripe;

	struct rows_write w;
	struct stripe_layout layout = layout_stripe(g, stripe);
	w.array = array;
	w.stripe = stripe;
	w.offset = layout.offset + (uint64_t)row * BLOCK_BYTES;
	w.bytes = bytes;
	w.k = g->k;
	w.width = layout.width;
	w.durable = flags & VOLUME_DURABLE;
	struct slice_cursor cursor = slice_cursor_at(from, n);
	for (unsigned pos = 0; pos < w.width; pos++)
		w.member[pos] = &array->member[layout_slot(&layout, pos)];
	for (unsigned pos = 0; pos < w.k; pos++) {
		/* one by one: a copy of the whole would wait for what was just written to it in parts */
		w.from[pos].v = from;
		w.from[pos].n = n;
		w.from[pos].i = cursor.i;
		w.from[pos].off = cursor.off;
		slice_cursor_skip(&cursor, bytes);
	}
	for (unsigned pos = w.k; pos < w.width && copies; pos++)
		w.from[pos] = w.from[0];
	struct buf *bufs[PARITY_SLICES];
	struct slice parity[PARITY_SLICES];
	unsigned per_strip = (bytes + BUF_MAX - 1) / BUF_MAX, buffers = copies ? 0 : g->m * per_strip;
	int r = 0;
	if (buffers) {
		bufs_alloc(bufs, buffers, bytes < BUF_MAX ? bytes : BUF_MAX);
		for (unsigned i = 0; i < buffers; i++) {
			uint32_t at = i % per_strip * BUF_MAX;
			parity[i] = (struct slice){
				.buf = bufs[i], .off = 0, .len = bytes - at < BUF_MAX ? bytes - at : BUF_MAX};
		}
		for (unsigned j = 0; j < g->m; j++)
			w.from[w.k + j] = slice_cursor_at(parity + j * per_strip, per_strip);
		r = rows_encode(volume->code, &w);
	}
	if (!r) {
		unsigned gate = gate_enter_write(array, ZONE_ROWS, stripe, 1);
		r = rows_send(&w);
		gate_leave(array, gate);
		if (!r && array_stopped(array))
			r = -ENODEV;
	}
	for (unsigned i = 0; i < buffers; i++)
		buf_put(bufs[i]);
	return r;
}

/* The flush of one member. */
struct flush {
	struct drive_req req;
	uint64_t upto;
	bool asked;
};
#define FLUSHES_STACK 64u /* of more members they are on the heap */

int volume_flush(struct volume *volume)
{
	struct array *array = volume->array;
	unsigned members = array->config.members;
	if (array_stopped(array))
		return -ENODEV;
	struct flush few[FLUSHES_STACK], *list = members > FLUSHES_STACK ? malloc(members * sizeof(*list)) : few;
	if (!list)
		return -ENOMEM;
	struct drive_batch batch;
	unsigned gate = gate_enter(array);
	bool settles = recent_flush_begin(array);
	batch_init(&batch);
	for (unsigned i = 0; i < members; i++) {
		struct member *member = &array->member[i];
		list[i].asked = member_writable(member) && drive_flush_needed(member->drive, &list[i].upto);
		if (list[i].asked)
			batch_flush(&batch, &list[i].req, member->drive);
	}
	batch_wait(&batch);
	int r = 0;
	bool well = true;
	for (unsigned i = 0; i < members; i++) {
		struct member *member = &array->member[i];
		int e = 0;
		if (list[i].asked) {
			e = write_ended(member, list[i].req.error);
			if (!list[i].req.error)
				drive_flush_ended(member->drive, list[i].upto);
		} else if (!member_writable(member)) {
			e = member_settle(member);
		}
		well = well && !(list[i].asked && list[i].req.error);
		if (e && r != -ENODEV)
			r = e;
	}
	if (settles)
		recent_flush_end(array, well);
	gate_leave(array, gate);
	if (list != few)
		free(list);
	return r;
}

int volume_discard(struct volume *volume, uint64_t stripe, uint64_t count)
{
	const struct geometry *g = volume->geo;
	struct array *array = volume->array;
	if (stripe > volume->geometry.stripes || count > volume->geometry.stripes - stripe)
		return -EINVAL;
	if (array_stopped(array))
		return -ENODEV;
	uint64_t first = volume->first_stripe + stripe - g->first_stripe, end = first + count;
	unsigned width = g->k + g->m;
	unsigned gate = gate_enter(array);
	for (unsigned group = 0; group < g->groups && count; group++) {
		/* rows of this group from its first stripe inside to its last */
		uint64_t from = (first + g->groups - 1 - group) / g->groups,
			 to = (end + g->groups - 1 - group) / g->groups;
		if (from >= to)
			continue;
		struct drive_req reqs[CODE_WIDTH_MAX];
		struct drive_batch batch;
		batch_init(&batch);
		for (unsigned i = 0; i < width; i++) {
			struct member *member = &array->member[group * width + i];
			if (member_writable(member))
				batch_discard(&batch, &reqs[i], member->drive, g->member_offset + from * g->strip_bytes,
					(to - from) * g->strip_bytes);
		}
		batch_wait(&batch); /* whether it worked is the drives' business: this is advice */
	}
	gate_leave(array, gate);
	return 0;
}

/* ---- the log zone ---- */

int volume_log_write(struct volume *volume, uint64_t block, const struct slice *from, unsigned n)
{
	struct array *array = volume->array;
	const struct raid_config *c = &array->config;
	const uint32_t chunk_blocks = LOG_CHUNK_BYTES / BLOCK_BYTES;
	unsigned copies = c->log_copies;
	uint64_t left;
	int r = volume_range(volume, block, volume->geometry.log_blocks, from, n, &left);
	if (r)
		return r;
	uint64_t chunk = volume->log_first + block / chunk_blocks;
	unsigned gate = gate_enter_write(
		array, ZONE_LOG, chunk, volume->log_first + (block + left - 1) / chunk_blocks - chunk + 1);
	struct slice_cursor cursor = slice_cursor_at(from, n);
	unsigned copy = 0; /* of the piece at BLOCK, where the next round begins */
	while (left && !r) {
		struct drive_req reqs[LOG_REQS];
		uint16_t slots[LOG_REQS];
		bool skipped[LOG_REQS];
		unsigned used = 0;
		struct drive_batch batch;
		batch_init(&batch);
		while (left && used < LOG_REQS) {
			uint32_t at = (uint32_t)(block % chunk_blocks), blocks = chunk_blocks - at;
			if (blocks > left)
				blocks = (uint32_t)left;
			for (; copy < copies && used < LOG_REQS; copy++, used++) {
				struct place place = layout_log(c, volume->log_first + block / chunk_blocks, copy);
				struct member *member = &array->member[place.slot];
				struct slice_cursor piece = cursor;
				slots[used] = (uint16_t)place.slot;
				skipped[used] = !member_writable(member);
				if (!skipped[used])
					batch_io(&batch, &reqs[used], member->drive, DRIVE_OP_WRITE,
						place.offset + (uint64_t)at * BLOCK_BYTES,
						(uint64_t)blocks * BLOCK_BYTES, &piece, true);
			}
			if (copy < copies)
				break;
			copy = 0;
			slice_cursor_skip(&cursor, (uint64_t)blocks * BLOCK_BYTES);
			block += blocks;
			left -= blocks;
		}
		batch_wait(&batch);
		for (unsigned i = 0; i < used; i++) {
			struct member *member = &array->member[slots[i]];
			int e = skipped[i] ? member_settle(member) : write_ended(member, reqs[i].error);
			if (!e && !member_writable(member))
				e = member_settle(member);
			if (e && r != -ENODEV)
				r = e;
		}
	}
	gate_leave(array, gate);
	if (!r && array_stopped(array))
		r = -ENODEV;
	return r;
}

int volume_log_read(struct volume *volume, uint64_t block, unsigned copy, const struct slice *to, unsigned n)
{
	struct array *array = volume->array;
	const struct raid_config *c = &array->config;
	const uint32_t chunk_blocks = LOG_CHUNK_BYTES / BLOCK_BYTES;
	uint64_t left;
	int r = volume_range(volume, block, volume->geometry.log_blocks, to, n, &left);
	if (r)
		return r;
	if (copy >= c->log_copies)
		return -EINVAL;
	unsigned gate = gate_enter(array);
	struct slice_cursor cursor = slice_cursor_at(to, n);
	while (left && !r) {
		struct drive_req reqs[LOG_REQS];
		uint16_t slots[LOG_REQS];
		unsigned used = 0;
		struct drive_batch batch;
		batch_init(&batch);
		while (left && used < LOG_REQS) {
			uint32_t at = (uint32_t)(block % chunk_blocks), blocks = chunk_blocks - at;
			if (blocks > left)
				blocks = (uint32_t)left;
			struct place place = layout_log(c, volume->log_first + block / chunk_blocks, copy);
			struct member *member = &array->member[place.slot];
			if (!member_active(member)) {
				r = -EIO;
				break;
			}
			slots[used] = (uint16_t)place.slot;
			struct slice_cursor piece = cursor;
			batch_io(&batch, &reqs[used++], member->drive, DRIVE_OP_READ,
				place.offset + (uint64_t)at * BLOCK_BYTES, (uint64_t)blocks * BLOCK_BYTES, &piece,
				false);
			slice_cursor_skip(&cursor, (uint64_t)blocks * BLOCK_BYTES);
			block += blocks;
			left -= blocks;
		}
		batch_wait(&batch);
		for (unsigned i = 0; i < used; i++) {
			int e = reqs[i].error;
			if (e && e != -ENOMEM && e != -EINVAL) {
				e = member_failed(&array->member[slots[i]], MEMBER_READ_ERROR, e);
				e = e ? e : reqs[i].given_up ? -ETIMEDOUT : -EIO;
			}
			if (e && r != -ENODEV && r != -ETIMEDOUT)
				r = e;
		}
	}
	gate_leave(array, gate);
	return r;
}
