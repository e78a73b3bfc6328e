/*
 * Calls that come over RDMA: from the completion of a receive to the RPC layer, and the RDMA Reads.
 *
 * A message holds its receive buffer until its reply is on the way (rdma_call_message_done()): one credit stands for
 * one call and one receive. The header is decoded in the loop, at once. Then
 *
 *   RDMA_MSG, no Read chunk         the rest of the receive is the RPC message: to the RPC layer
 *   RDMA_MSG, one Read chunk        the same; the chunk is the payload that rdma_payload_fetch() brings when the
 *                                   procedure knows where it shall go
 *   RDMA_NOMSG, or several chunks,  a fiber reads position zero, and short chunks, into buffers, and makes the
 *   or a short one                  message of them and of what came inline, as a list of pieces (RFC 8166 3.4.4,
 *                                   3.5); long chunks are payloads as above
 *   an answer to a call in reverse  goes to rdma_callback.c at once
 *
 * A chunk replaces its data in the stream, and the padding behind it, whether the chunk itself holds padding or not.
 *
 * Reads. As many are in flight as the peer agreed to serve; more wait in line. Each completes by itself. A fiber that
 * started reads never returns before all of them completed: their buffers are the adapter's until then. When a peer
 * takes longer than the deadline its connection is closed, which flushes them.
 *
 * Error policy: ERR_VERS and ERR_CHUNK as RFC 8166 4.5 says; a peer that exceeds its credits, sends what is no header,
 * or more than fits a receive, loses its connection.
 */
#include "rpcrdma/rdma_internal.h"

#include <errno.h>
#include <stdlib.h>

#define MEMORY_AGAIN (20 * NSEC_PER_MSEC)

/* ------------------------------------------------------------------------------------------------
 * Contexts
 */

static struct rdma_call *call_get(struct rdma_connection *conn)
{
	struct list_node *n = list_pop_front(&conn->lane->free_calls);
	struct rdma_call *call = n ? container_of(n, struct rdma_call, node) : malloc(sizeof *call);
	if (!call)
		return NULL;
	/* not what lies behind it: whoever reads that has written it before */
	memset(call, 0, offsetof(struct rdma_call, header));
	list_node_init(&call->node);
	call->conn = conn;
	conn->calls++;
	return call;
}

void rdma_call_put(struct rdma_call *call)
{
	struct rdma_connection *conn = call->conn;
	rdma_call_message_done(call);
	buf_put(call->head);
	list_push_front(&conn->lane->free_calls, &call->node);
	conn->calls--;
	if (conn->failed)
		rdma_connection_check(conn);
}

void rdma_call_destroy(struct rdma_call *call)
{
	free(call);
}

void rdma_call_message_done(struct rdma_call *call)
{
	if (call->receive)
		rdma_receive_release(call->receive);
	call->receive = NULL;
	for (unsigned i = 0; i < call->buf_count; i++)
		buf_put(call->bufs[i]);
	call->buf_count = 0;
}

/* ------------------------------------------------------------------------------------------------
 * RDMA Reads
 */

/* One run of reads, on the stack of the fiber that waits for it. */
struct pull {
	struct rdma_op op;
	struct rdma_connection *conn;
	struct fiber *fiber;
	/* where the next work request begins */
	const struct rdma_segment *segment, *segment_end;
	uint32_t segment_off;
	const struct slice *slice, *slice_end;
	uint32_t slice_off;
};

static void read_done(struct rdma_op *op)
{
	struct pull *p = container_of(op, struct pull, op);
	rdma_reads_give(p->conn, 1);
	fiber_wake(p->fiber);
}

/* Fills work request I with the next contiguous piece of the peer's memory; returns its bytes, 0 at the end. */
static uint32_t read_build(struct pull *p, uint32_t i)
{
	struct rdma_lane *lane = p->conn->lane;
	struct ibv_send_wr *wr = &lane->wr[i];
	struct ibv_sge *sge = &lane->sge[(size_t)i * RDMA_SGES_MAX];
	uint32_t bytes = 0, sges = 0, sges_max = p->conn->device->sge_read;
	while (p->segment < p->segment_end && p->segment_off == p->segment->length) {
		p->segment++;
		p->segment_off = 0;
	}
	if (p->segment == p->segment_end)
		return 0;
	uint32_t left = p->segment->length - p->segment_off;
	while (left && p->slice < p->slice_end) {
		uint32_t n = p->slice->len - p->slice_off;
		uint8_t *at = slice_data(p->slice) + p->slice_off;
		if (n > left)
			n = left;
		if (n) {
			bool adjacent = sges && sge[sges - 1].addr + sge[sges - 1].length == (uintptr_t)at;
			if (adjacent) {
				sge[sges - 1].length += n;
			} else {
				if (sges == sges_max)
					break;
				sge[sges++] = (struct ibv_sge){
					.addr = (uintptr_t)at, .length = n, .lkey = p->conn->device->lkey};
			}
		}
		bytes += n;
		left -= n;
		p->slice_off += n;
		if (p->slice_off == p->slice->len) {
			p->slice++;
			p->slice_off = 0;
		}
	}
	if (!bytes)
		return 0;
	*wr = (struct ibv_send_wr){.wr_id = (uintptr_t)&p->op | RDMA_WR_LAST,
		.sg_list = sge,
		.num_sge = (int)sges,
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = p->segment->offset + p->segment_off, .rkey = p->segment->handle}};
	p->segment_off += bytes;
	return bytes;
}

/*
 * The first bytes of CHUNK, as many as TO holds, into TO. Waits; -EIO when the connection failed. On any
 * return nothing is in flight.
 */
static int chunk_pull(struct rdma_connection *conn, const struct rdma_header *h, const struct rdma_chunk *chunk,
	const struct slice *to, unsigned n)
{
	struct pull p = {.op = {.slots = 1, .done = read_done},
		.conn = conn,
		.fiber = fiber_self(),
		.segment = &h->segment[chunk->first],
		.segment_end = &h->segment[chunk->first + chunk->count],
		.slice = to,
		.slice_end = to + n};
	uint64_t left = slices_bytes(to, n), deadline = now_ns() + RDMA_READ_DEADLINE;
	int rc = left > chunk->length ? -EIO : 0;
	while (left && !rc) {
		uint32_t built = 0, bytes = 0, each;
		uint32_t wanted = (uint32_t)(p.segment_end - p.segment) +
				  (uint32_t)(p.slice_end - p.slice) / conn->device->sge_read;
		int allowed = rdma_reads_take(conn, wanted < RDMA_READ_BATCH ? wanted : RDMA_READ_BATCH);
		if (allowed < 0 || rdma_slots_take(conn, (uint32_t)allowed)) {
			if (allowed > 0)
				rdma_reads_give(conn, (uint32_t)allowed);
			rc = -EIO;
			break;
		}
		while (built < (uint32_t)allowed && bytes < left && (each = read_build(&p, built))) {
			bytes += each;
			built++;
		}
		if (built) {
			left -= bytes;
			counter_add(&rdma_metrics.reads, built);
			counter_add(&rdma_metrics.read_bytes, bytes);
			deadline = now_ns() + RDMA_READ_DEADLINE;
			rdma_post(conn, &p.op, conn->lane->wr, built, built);
		} else {
			rc = -EIO; /* cannot be: the lengths were compared */
		}
		/* only now: what waits for slots builds its work requests in the same place */
		rdma_reads_give(conn, (uint32_t)allowed - built);
		if (built < (uint32_t)allowed)
			rdma_slots_give(conn, (uint32_t)allowed - built);
	}
	while (p.op.pending) {
		if (fiber_suspend_until(deadline) == 0)
			continue;
		if (!conn->failed) {
			counter_add(&rdma_metrics.read_deadlines, 1);
			rdma_connection_fail(conn, "an RDMA Read took too long");
		}
		deadline = NEVER;
	}
	if (!rc && (p.op.error || conn->failed))
		rc = -EIO;
	if (!rc)
		rpc_bytes_in(&conn->rpc, slices_bytes(to, n));
	return rc;
}

int rdma_payload_fetch(
	struct rpc_call *rpc, unsigned index, const struct xdr_payload *payload, const struct slice *to, unsigned n)
{
	struct rdma_call *call = rdma_call_of(rpc);
	const struct rdma_chunk *chunk = &call->header.read[call->payload[index]];
	return payload->len > chunk->length ? -EIO : chunk_pull(call->conn, &call->header, chunk, to, n);
}

/* ------------------------------------------------------------------------------------------------
 * Messages that have to be put together
 */

static const uint8_t padding[4];

/*
 * The chunks that are left to the procedure to fetch, as bits: the long ones. Short ones may be something that no
 * procedure of ours fetches (the path of a SYMLINK, RFC 8267 section 3, of less than 4 KiB), and go into the message.
 */
static uint32_t payload_chunks(const struct rdma_header *h)
{
	uint32_t set = 0, n = 0;
	for (unsigned i = 0; i < h->read_count && n < XDR_PAYLOADS_MAX; i++)
		if (h->read[i].position && h->read[i].length > RDMA_SHORT_CHUNK) {
			set |= 1u << i;
			n++;
		}
	return set;
}

/* Read chunk I is the call's next payload. */
static void payload_add(struct rdma_call *call, unsigned i)
{
	const struct rdma_chunk *chunk = &call->header.read[i];
	unsigned n = call->rpc.reduced_count++;
	call->payload[n] = (uint8_t)i;
	call->reduced[n] = (struct xdr_reduced){chunk->position, chunk->length};
	call->rpc.reduced = call->reduced;
}

/* Reads CHUNK into new buffers of CALL and adds them to its pieces. Waits. */
static int chunk_to_pieces(struct rdma_call *call, const struct rdma_chunk *chunk, unsigned *pieces)
{
	struct slice to[RDMA_BUFS_MAX];
	unsigned n = 0;
	for (uint32_t left = chunk->length; left;) {
		uint32_t bytes = left < BUF_MAX ? left : BUF_MAX;
		if (call->buf_count == RDMA_BUFS_MAX || *pieces + 2 > RDMA_PIECES_MAX)
			return -E2BIG;
		struct buf *buf = buf_alloc(bytes);
		call->bufs[call->buf_count++] = buf;
		to[n++] = (struct slice){.buf = buf, .len = bytes};
		call->piece[(*pieces)++] = (struct xdr_piece){.data = buf->data, .len = bytes};
		left -= bytes;
	}
	if (chunk->length % 4)
		call->piece[(*pieces)++] = (struct xdr_piece){.data = padding, .len = 4 - chunk->length % 4};
	return chunk_pull(call->conn, &call->header, chunk, to, n);
}

/* In a fiber. The message from its start: pieces in the order of the XDR stream. */
static int message_assemble(struct rdma_call *call)
{
	const struct rdma_header *h = &call->header;
	unsigned pieces = 0, first = h->proc == RDMA_NOMSG;
	uint32_t payloads = payload_chunks(h);
	/* What position-zero data or the receive holds; other chunks are inserted in it. */
	struct xdr_piece base[RDMA_BUFS_MAX + 1];
	unsigned bases = 0, at = 0;
	uint32_t pos = 0, off = 0;

	if (first) {
		int rc = chunk_to_pieces(call, &h->read[0], &pieces);
		if (rc)
			return rc;
		bases = h->read[0].length % 4 ? pieces - 1 : pieces; /* the message ends where the chunk does */
		memcpy(base, call->piece, bases * sizeof base[0]);
		pieces = 0;
	} else {
		base[bases++] = (struct xdr_piece){call->receive->buf->data + h->bytes, call->rpc.bytes};
	}
	for (unsigned i = first; i <= h->read_count; i++) {
		uint32_t end = i < h->read_count ? h->read[i].position : UINT32_MAX;
		while (pos < end && at < bases) { /* what stands before the chunk */
			uint32_t n = base[at].len - off;
			if (n > end - pos)
				n = end - pos;
			if (pieces == RDMA_PIECES_MAX)
				return -E2BIG;
			call->piece[pieces++] = (struct xdr_piece){base[at].data + off, n};
			pos += n;
			off += n;
			if (off == base[at].len) {
				at++;
				off = 0;
			}
		}
		if (i == h->read_count)
			break;
		if (pos != end)
			return -EBADMSG; /* a position behind the end, or inside of another chunk's data */
		if (payloads >> i & 1) {
			payload_add(call, i);
		} else {
			int rc = chunk_to_pieces(call, &h->read[i], &pieces);
			if (rc)
				return rc;
		}
		pos += xdr_round(h->read[i].length);
	}
	call->rpc.pieces = pieces;
	call->rpc.bytes = 0;
	for (unsigned i = 0; i < pieces; i++)
		call->rpc.bytes += call->piece[i].len;
	return 0;
}

/* Bytes that the message itself will hold in buffers: all chunks but the payloads. */
static uint64_t assembled_bytes(const struct rdma_header *h)
{
	uint64_t sum = 0;
	uint32_t payloads = payload_chunks(h);
	for (unsigned i = 0; i < h->read_count; i++)
		if (!(payloads >> i & 1))
			sum += (h->read[i].length + BLOCK_BYTES - 1ull) / BLOCK_BYTES * BLOCK_BYTES;
	return sum;
}

static void assemble_fiber(void *arg)
{
	struct rdma_call *call = arg;
	struct rdma_connection *conn = call->conn;
	uint64_t bytes = assembled_bytes(&call->header);
	while (!conn->failed && !rpc_memory_take(conn->rpc.shard, bytes))
		fiber_sleep(MEMORY_AGAIN);
	if (conn->failed) {
		rdma_call_put(call);
		return;
	}
	int rc = message_assemble(call);
	if (rc || conn->failed) {
		rpc_memory_give(conn->rpc.shard, bytes);
		if (rc == -EBADMSG || rc == -E2BIG)
			rdma_reply_error(call, RDMA_ERR_CHUNK);
		else
			rdma_call_put(call);
		return;
	}
	rpc_memory_give(conn->rpc.shard, bytes); /* the call is charged for it from here on */
	call->rpc.held = (uint32_t)bytes;
	call->received = true;
	rpc_call_received(&call->rpc);
}

/* ------------------------------------------------------------------------------------------------
 * Receives
 */

static struct rdma_connection *connection_find(struct rdma_lane *lane, uint32_t number)
{
	htable_foreach_hash (n, &lane->connections, hash_u64(number)) {
		struct rdma_connection *conn = container_of(n, struct rdma_connection, by_number);
		if (conn->number == number)
			return conn;
	}
	return NULL;
}

/* Legal as a header, but more than we take: all Read chunks together are at most the longest call. */
static bool chunks_too_long(const struct rdma_connection *conn, const struct rdma_header *h, uint32_t inline_bytes)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < h->read_count; i++)
		sum += h->read[i].length;
	if (h->read_count == 1 && h->read[0].position > inline_bytes)
		return true;
	return sum > conn->rpc.server->config.message_max;
}

static void bad_call(struct rdma_connection *conn, struct counter *counter)
{
	counter_add(counter, 1);
	rpc_bad_call(conn->rpc.server);
}

void rdma_receive_complete(struct rdma_receive *receive, const struct ibv_wc *wc)
{
	struct rdma_connection *conn = connection_find(receive->lane, wc->qp_num);
	struct rdma_call *call = NULL;
	if (!conn || conn->failed)
		goto release;
	if (wc->status != IBV_WC_SUCCESS) { /* more than fits a receive, or flushed */
		if (wc->status != IBV_WC_WR_FLUSH_ERR)
			counter_add(&rdma_metrics.completion_errors, 1);
		rdma_connection_fail(conn, ibv_wc_status_str(wc->status));
		goto release;
	}
	call = call_get(conn);
	if (!call) {
		rdma_connection_fail(conn, "no memory for a call");
		goto release;
	}
	call->receive = receive;
	if (conn->round != conn->lane->round) { /* its first call of this round enters at once, others take turns */
		conn->round = conn->lane->round;
		conn->rpc.turn = false;
	}
	if (list_empty(&conn->ops))
		conn->progress = now_ns();
	rpc_bytes_in(&conn->rpc, wc->byte_len);
	const uint8_t *data = receive->buf->data;
	enum rdma_verdict verdict = rdma_header_decode(&call->header, data, wc->byte_len);
	if (conn->answers && rdma_callback_receive(conn, &call->header, data, wc->byte_len)) {
		rdma_call_put(call);
		return;
	}
	if (verdict == RDMA_HEADER_SILENT) {
		rdma_call_put(call);
		return;
	}
	if (verdict == RDMA_HEADER_BROKEN) {
		bad_call(conn, &rdma_metrics.header_errors);
		rdma_connection_fail(conn, "no RPC-over-RDMA header");
		rdma_call_put(call);
		return;
	}
	if (++conn->outstanding > conn->credits) {
		bad_call(conn, &rdma_metrics.credit_violations);
		log_warning("rdma", "peer exceeds its credits peer=%s credits=%u", conn->text, conn->credits);
		rdma_connection_fail(conn, "it exceeds its credits");
		rdma_call_put(call);
		return;
	}
	if (conn->outstanding > conn->busiest) {
		conn->busiest = conn->outstanding;
		if (conn->outstanding > atomic_load_explicit(&rdma_metrics.in_flight_most, memory_order_relaxed))
			atomic_store(&rdma_metrics.in_flight_most, conn->outstanding);
	}
	struct rdma_header *h = &call->header;
	uint32_t inline_bytes = verdict == RDMA_HEADER_OK && h->proc == RDMA_MSG ? wc->byte_len - h->bytes : 0;
	if (verdict == RDMA_HEADER_OK && chunks_too_long(conn, h, inline_bytes))
		verdict = RDMA_HEADER_CHUNK;
	if (verdict != RDMA_HEADER_OK) {
		bad_call(conn, &rdma_metrics.header_errors);
		rdma_reply_error(call, verdict == RDMA_HEADER_VERSION ? RDMA_ERR_VERS : RDMA_ERR_CHUNK);
		return;
	}
	call->rpc.conn = &conn->rpc;
	call->rpc.received = now_ns();
	call->rpc.piece = call->piece;
	call->rpc.bytes = inline_bytes;
	rdma_reply_room(call);
	if (h->proc == RDMA_NOMSG || h->read_count > 1 || (h->read_count && h->read[0].length <= RDMA_SHORT_CHUNK)) {
		reactor_spawn(conn->reactor, assemble_fiber, call);
		return;
	}
	call->piece[0] = (struct xdr_piece){.data = data + h->bytes, .len = inline_bytes};
	call->rpc.pieces = 1;
	if (h->read_count)
		payload_add(call, 0);
	call->received = true;
	rpc_call_received(&call->rpc);
	return;
release:
	rdma_receive_release(receive);
}
