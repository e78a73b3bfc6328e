/*
 * Replies over RDMA: the payload by RDMA Write into the peer's memory, then one Send, all in one posting.
 *
 * What goes where (RFC 8166 3.4.6, 3.5):
 *   payload    into the Write chunk of its turn, without padding; without one it stays in the message
 *   message    behind the header when it fits the peer's receives (RDMA_MSG), else into the Reply chunk (RDMA_NOMSG)
 *   Write chunks that were not used go back with lengths of zero
 * The room was told to the RPC layer before the procedure ran (rdma_reply_room()), so a reply that fits nowhere is
 * rare: it becomes ERR_CHUNK.
 *
 * All work requests of a reply are chained and only the Send is signalled: its completion says that the Writes
 * are done too. Until then the head and the payload's buffers belong to the adapter; then the call is freed. The call's
 * receive goes back to the shared queue before the Send is posted, so that the credit which the reply gives back finds
 * a receive.
 *
 * Nothing here waits. A reply that finds too few free slots in the send queue lines up in conn->sends and is
 * built again when slots come back; one with more work requests than the queue is long goes in parts, each of which
 * completes by itself. On a connection that failed replies are dropped.
 */
#include "rpcrdma/rdma_internal.h"

#include <errno.h>

/* Work requests being built in the lane's scratch memory. */
struct builder {
	struct rdma_connection *conn;
	uint32_t count; /* of work requests */
	/* where the next Write goes */
	const struct rdma_segment *segment, *segment_end;
	uint32_t segment_off;
	uint64_t bytes;
	bool fresh; /* the next bytes begin a work request */
	bool full;  /* more than a reply may have, or no more segments */
};

static struct ibv_send_wr *wr_next(struct builder *b)
{
	struct rdma_lane *lane = b->conn->lane;
	if (b->count == RDMA_WRS_MAX) {
		b->full = true;
		return NULL;
	}
	struct ibv_send_wr *wr = &lane->wr[b->count];
	*wr = (struct ibv_send_wr){.sg_list = &lane->sge[(size_t)b->count * RDMA_SGES_MAX]};
	b->count++;
	return wr;
}

/* False when the work request has no more room for it. */
static bool sge_add(struct builder *b, struct ibv_send_wr *wr, const void *data, uint32_t bytes)
{
	struct ibv_sge *last = wr->num_sge ? &wr->sg_list[wr->num_sge - 1] : NULL;
	if (last && last->addr + last->length == (uintptr_t)data) {
		last->length += bytes;
		return true;
	}
	if ((uint32_t)wr->num_sge == b->conn->device->sge_write)
		return false;
	wr->sg_list[wr->num_sge++] =
		(struct ibv_sge){.addr = (uintptr_t)data, .length = bytes, .lkey = b->conn->device->lkey};
	return true;
}

static void chunk_begin(struct builder *b, const struct rdma_header *h, const struct rdma_chunk *chunk)
{
	b->segment = &h->segment[chunk->first];
	b->segment_end = b->segment + chunk->count;
	b->segment_off = 0;
	b->fresh = true;
}

/* Appends to the RDMA Writes of the chunk that was begun. */
static void chunk_put(struct builder *b, const void *data, uint32_t bytes)
{
	const uint8_t *at = data;
	while (bytes && !b->full) {
		if (b->segment == b->segment_end) {
			b->full = true;
			return;
		}
		uint32_t n = b->segment->length - b->segment_off;
		if (!n) {
			b->segment++;
			b->segment_off = 0;
			b->fresh = true;
			continue;
		}
		if (n > bytes)
			n = bytes;
		struct ibv_send_wr *wr = b->fresh ? NULL : &b->conn->lane->wr[b->count - 1];
		if (!wr || !sge_add(b, wr, at, n)) {
			wr = wr_next(b);
			if (!wr)
				return;
			wr->opcode = IBV_WR_RDMA_WRITE;
			wr->wr.rdma.remote_addr = b->segment->offset + b->segment_off;
			wr->wr.rdma.rkey = b->segment->handle;
			b->fresh = false;
			sge_add(b, wr, at, n);
		}
		b->segment_off += n;
		b->bytes += n;
		at += n;
		bytes -= n;
	}
}

/* ------------------------------------------------------------------------------------------------
 * The stream: the RPC message with those payloads that have no Write chunk
 */

struct part {
	const void *data;
	uint32_t bytes;
};

/* Walks the stream; state is where the walk stands. False at the end. */
struct walk {
	const struct rpc_reply *reply;
	unsigned payload;      /* the next one */
	unsigned first_inline; /* payloads before this one go to Write chunks */
	unsigned slice;
	uint32_t head;
	enum { WALK_HEAD, WALK_PAYLOAD, WALK_PAD } at;
};

static bool walk_next(struct walk *w, const uint8_t *zeros, struct part *part)
{
	const struct rpc_reply *r = w->reply;
	for (;;) {
		const struct rpc_reply_payload *p = w->payload < r->payloads ? &r->payload[w->payload] : NULL;
		if (w->at == WALK_HEAD) {
			uint32_t end = p ? p->pos : r->len;
			*part = (struct part){r->head + w->head, end - w->head};
			w->head = end;
			if (p && w->payload < w->first_inline)
				w->payload++;
			else if (p)
				w->at = WALK_PAYLOAD;
			else if (!part->bytes)
				return false;
			if (part->bytes)
				return true;
			continue;
		}
		if (w->at == WALK_PAYLOAD) {
			if (w->slice < p->n) {
				const struct slice *s = &p->v[w->slice++];
				*part = (struct part){slice_data(s), s->len};
				if (s->len)
					return true;
				continue;
			}
			w->at = WALK_PAD;
		}
		*part = (struct part){zeros, xdr_round(p->len) - p->len};
		w->payload++;
		w->slice = 0;
		w->at = WALK_HEAD;
		if (part->bytes)
			return true;
	}
}

/* ------------------------------------------------------------------------------------------------
 * Room
 */

void rdma_reply_room(struct rdma_call *call)
{
	const struct rdma_header *h = &call->header;
	struct rpc_call *rpc = &call->rpc;
	uint32_t limit = call->conn->inline_send;
	uint32_t header = rdma_header_reply_bytes(h, false);
	rpc->reply_head_max = header < limit ? limit - header : 0;
	if (h->has_reply && h->reply.length > rpc->reply_head_max && rdma_header_reply_bytes(h, true) <= limit)
		rpc->reply_head_max = h->reply.length;
	rpc->payload_inline = h->write_count == 0;
	rpc->reply_payload_max = h->write_count ? h->write[0].length : rpc->reply_head_max;
	for (unsigned i = 1; i < h->write_count; i++) /* any of them may get any READ of a COMPOUND */
		if (h->write[i].length < rpc->reply_payload_max)
			rpc->reply_payload_max = h->write[i].length;
}

bool rdma_chunk_room(const struct rpc_call *rpc, unsigned index, uint32_t *room)
{
	const struct rdma_header *h = &container_of(rpc, struct rdma_call, rpc)->header;
	if (index >= h->write_count)
		return false;
	*room = h->write[index].length;
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * Sending
 */

static void call_finish(struct rdma_call *call)
{
	if (call->received)
		rpc_call_free(&call->rpc);
	rdma_call_put(call);
}

static void reply_done(struct rdma_op *op)
{
	struct rdma_call *call = container_of(op, struct rdma_call, op);
	if (!op->error)
		counter_add(&rdma_metrics.sends, 1);
	call_finish(call);
}

/* A part of a long one: what is left goes next, before all others. */
static void part_done(struct rdma_op *op)
{
	struct rdma_call *call = container_of(op, struct rdma_call, op);
	if (op->error || call->conn->failed)
		call_finish(call);
	else
		list_push_front(&call->conn->sends, &call->node);
}

/* A buffer of its own for what does not fit the headroom. */
static uint8_t *head_buffer(struct rdma_call *call)
{
	if (!call->head)
		call->head = buf_try_alloc(RDMA_INLINE_MAX);
	return call->head ? call->head->data : NULL;
}

static uint32_t credits_granted(const struct rdma_call *call)
{
	uint32_t asked = call->header.credits ? call->header.credits : 1, told = rdma_credits_tell(call->conn);
	return asked < told ? asked : told;
}

/* The Send at the end of the chain. */
static struct ibv_send_wr *send_begin(struct builder *b, struct rdma_call *call)
{
	struct ibv_send_wr *wr = wr_next(b);
	if (!wr)
		return NULL;
	wr->opcode = IBV_WR_SEND;
	wr->send_flags = IBV_SEND_SIGNALED;
	if (call->reply && call->conn->invalidate && call->header.segment_count) {
		wr->opcode = IBV_WR_SEND_WITH_INV;
		wr->invalidate_rkey = call->header.segment[0].handle;
	}
	return wr;
}

enum built { BUILT, TOO_LONG, NO_MEMORY };

static enum built build_error(struct builder *b, struct rdma_call *call)
{
	uint8_t *p = head_buffer(call);
	if (!p)
		return NO_MEMORY;
	b->count = 0;
	struct ibv_send_wr *wr = send_begin(b, call);
	uint32_t bytes = rdma_header_encode_error(p, call->header.xid, credits_granted(call), call->errcode);
	sge_add(b, wr, p, bytes);
	b->bytes += bytes;
	return BUILT;
}

/* Behind the transport header, in one work request: by reference while it has room, else everything is copied together.
 */
static enum built build_inline(
	struct builder *b, struct rdma_call *call, struct walk walk, const uint8_t *header, uint32_t header_bytes)
{
	const struct walk start = walk;
	const uint8_t *zeros = call->conn->device->zeros->data;
	struct ibv_send_wr *wr = send_begin(b, call);
	struct part part;
	bool fits = wr && sge_add(b, wr, header, header_bytes);
	if (!wr)
		return TOO_LONG;
	b->bytes += header_bytes;
	while (fits && walk_next(&walk, zeros, &part)) {
		fits = sge_add(b, wr, part.data, part.bytes);
		b->bytes += part.bytes;
	}
	if (fits)
		return BUILT;
	uint8_t *to = head_buffer(call);
	if (!to)
		return NO_MEMORY;
	if (to != header)
		memcpy(to, header, header_bytes);
	uint32_t used = header_bytes;
	for (walk = start; walk_next(&walk, zeros, &part); used += part.bytes)
		memcpy(to + used, part.data, part.bytes);
	wr->num_sge = 0;
	sge_add(b, wr, to, used);
	return BUILT;
}

/* The whole chain for call->reply. */
static enum built build_reply(struct builder *b, struct rdma_call *call)
{
	const struct rpc_reply *r = call->reply;
	const struct rdma_header *h = &call->header;
	uint64_t message = r->len;
	unsigned placed = r->payloads < h->write_count ? r->payloads : h->write_count;

	memset(call->written, 0, h->write_count * sizeof call->written[0]);
	for (unsigned i = 0; i < r->payloads; i++) {
		const struct rpc_reply_payload *p = &r->payload[i];
		if (p->pos > r->len || (i && p->pos < r->payload[i - 1].pos))
			return TOO_LONG;
		if (i >= placed) {
			message += xdr_round(p->len);
			continue;
		}
		if (p->len > h->write[i].length)
			return TOO_LONG;
		call->written[i] = p->len;
		chunk_begin(b, h, &h->write[i]);
		for (unsigned s = 0; s < p->n; s++)
			chunk_put(b, slice_data(&p->v[s]), p->v[s].len);
	}

	uint32_t header_bytes = rdma_header_reply_bytes(h, false);
	bool chunked = header_bytes + message > call->conn->inline_send;
	struct walk walk = {.reply = r, .first_inline = placed};
	if (chunked) {
		struct part part;
		header_bytes = rdma_header_reply_bytes(h, true);
		if (!h->has_reply || message > h->reply.length || header_bytes > call->conn->inline_send)
			return TOO_LONG;
		chunk_begin(b, h, &h->reply);
		for (struct walk w = walk; walk_next(&w, call->conn->device->zeros->data, &part);)
			chunk_put(b, part.data, part.bytes);
	}
	if (b->full)
		return TOO_LONG;

	uint32_t writes = b->count;
	uint64_t write_bytes = b->bytes;
	uint8_t *header = header_bytes <= RPC_HEADROOM ? r->head - header_bytes : head_buffer(call);
	if (!header)
		return NO_MEMORY;
	rdma_header_encode_reply(
		header, RDMA_INLINE_MAX, h, credits_granted(call), call->written, chunked, (uint32_t)message);
	if (chunked) {
		struct ibv_send_wr *wr = send_begin(b, call);
		if (!wr)
			return TOO_LONG;
		sge_add(b, wr, header, header_bytes);
		b->bytes += header_bytes;
	} else {
		enum built built = build_inline(b, call, walk, header, header_bytes);
		if (built != BUILT)
			return built;
	}
	if (!call->posted) {
		counter_add(&rdma_metrics.writes, writes);
		counter_add(&rdma_metrics.write_bytes, write_bytes);
	}
	return BUILT;
}

/* False when it has to wait for slots. Otherwise the call is posted, or done with. */
static bool call_send(struct rdma_call *call)
{
	struct rdma_connection *conn = call->conn;
	struct builder b = {.conn = conn};
	enum built built = call->reply ? build_reply(&b, call) : build_error(&b, call);
	if (built == TOO_LONG) {
		call->reply = NULL;
		call->errcode = RDMA_ERR_CHUNK;
		b = (struct builder){.conn = conn};
		built = build_error(&b, call);
	}
	if (built == NO_MEMORY) {
		rdma_connection_fail(conn, "no memory for a transport header");
		call_finish(call);
		return true;
	}
	/* built anew it is what it was, and goes on where the last part ended */
	struct ibv_send_wr *wr = &conn->lane->wr[call->posted];
	uint32_t n = b.count - call->posted;
	bool all = n <= conn->sq_depth;
	if (!all)
		n = conn->sq_depth;
	if (n > conn->sq_free)
		return false;
	for (uint32_t i = 0; i + 1 < n; i++)
		wr[i].wr_id = (uintptr_t)&call->op | RDMA_WR_PART;
	wr[n - 1].wr_id = (uintptr_t)&call->op | RDMA_WR_LAST;
	wr[n - 1].send_flags = IBV_SEND_SIGNALED;
	conn->sq_free -= n;
	call->posted += n;
	call->op = (struct rdma_op){.slots = n, .done = all ? reply_done : part_done};
	if (all) {
		if (wr[n - 1].opcode == IBV_WR_SEND_WITH_INV)
			counter_add(&rdma_metrics.invalidations, 1);
		conn->outstanding--;
		rpc_bytes_out(&conn->rpc, b.bytes);
	}
	rdma_post(conn, &call->op, wr, n, 1);
	return true;
}

static void send_or_queue(struct rdma_call *call)
{
	struct rdma_connection *conn = call->conn;
	rdma_call_message_done(call);
	if (conn->failed) {
		call_finish(call);
		return;
	}
	if (list_empty(&conn->sends) && call_send(call))
		return;
	counter_add(&rdma_metrics.sends_queued, 1);
	rpc_send_wait_count(&conn->rpc);
	list_push_back(&conn->sends, &call->node);
}

void rdma_sends_continue(struct rdma_connection *conn)
{
	struct list_node *n;
	while ((n = list_first(&conn->sends))) {
		struct rdma_call *call = container_of(n, struct rdma_call, node);
		if (conn->failed) {
			list_remove(n);
			call_finish(call);
			continue;
		}
		list_remove(n);
		if (!call_send(call)) {
			list_push_front(&conn->sends, n);
			return;
		}
	}
}

void rdma_reply(struct rpc_call *rpc, struct rpc_reply *reply)
{
	struct rdma_call *call = rdma_call_of(rpc);
	call->reply = reply->too_long ? NULL : reply;
	call->errcode = RDMA_ERR_CHUNK;
	send_or_queue(call);
}

void rdma_reply_error(struct rdma_call *call, enum rdma_errcode code)
{
	call->reply = NULL;
	call->errcode = code;
	send_or_queue(call);
}

void rdma_drop(struct rpc_call *rpc)
{
	struct rdma_call *call = rdma_call_of(rpc);
	rdma_call_message_done(call);
	call->conn->outstanding--;
	call_finish(call);
}
