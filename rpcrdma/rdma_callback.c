/*
 * Calls in reverse over RDMA (RFC 8167): messages without chunks, both ways.
 *
 * Credits of the two directions are apart. The peer has receives for one call of ours until an answer of its says how
 * many more; our receives for its answers come out of the lane's shared queue, and are taken on top of the credits
 * with the first call (conn->answers). A call asks for as many credits as there are of these. Calls and answers are
 * told from each other by the message type inside, as both directions choose their xids freely.
 *
 * A call is one Send, from the buffer that rpc's callback.c made; the completion gives the buffer back.
 *
 * Errors: an answer that has chunks, or that nobody asked for, costs the peer its connection; an RDMA_ERROR ends the
 * call that it names. Where the lane has no receives left, calls wait in line.
 */
#include "rpcrdma/rdma_internal.h"

#include <errno.h>
#include <stdlib.h>

struct reverse {
	struct rdma_op op;
	struct rpc_reply *message;
};

static void reverse_done(struct rdma_op *op)
{
	struct reverse *r = container_of(op, struct reverse, op);
	rpc_callback_sent(r->message);
	free(r);
}

int rdma_callback(struct rpc_connection *rpc, struct rpc_reply *message)
{
	struct rdma_connection *conn = rdma_connection_of(rpc);
	struct rdma_lane *lane = conn->lane;

	if (RDMA_HEADER_MIN + message->len > conn->inline_send)
		return -EMSGSIZE;
	if (!conn->answers && !(conn->answers = rdma_lane_grant(lane, RPC_CALLBACKS_MAX)))
		return -EAGAIN;
	if (!conn->sq_free || !list_empty(&conn->sends) || !list_empty(&conn->slot_waiters))
		return -EAGAIN;
	struct reverse *r = malloc(sizeof *r);
	if (!r)
		return -ENOMEM;
	*r = (struct reverse){.op = {.slots = 1, .done = reverse_done}, .message = message};
	uint32_t xid, bytes = RDMA_HEADER_MIN + message->len;
	uint8_t *header = message->head - RDMA_HEADER_MIN;
	memcpy(&xid, message->head, 4);
	rdma_header_encode_inline(header, __builtin_bswap32(xid), conn->answers);
	lane->sge[0] = (struct ibv_sge){.addr = (uintptr_t)header, .length = bytes, .lkey = conn->device->lkey};
	lane->wr[0] = (struct ibv_send_wr){.wr_id = (uintptr_t)&r->op | RDMA_WR_LAST,
		.sg_list = lane->sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED};
	conn->sq_free--;
	counter_add(&rdma_metrics.callbacks, 1);
	rpc_bytes_out(rpc, bytes);
	rdma_post(conn, &r->op, lane->wr, 1, 1);
	return 0;
}

bool rdma_callback_receive(
	struct rdma_connection *conn, const struct rdma_header *h, const uint8_t *data, uint32_t bytes)
{
	uint32_t type;

	if (h->proc == RDMA_ERROR) {
		rpc_callback_refused(&conn->rpc, h->xid);
		return true;
	}
	if (h->proc != RDMA_MSG || h->bytes < RDMA_HEADER_MIN || bytes < h->bytes + 8)
		return false;
	memcpy(&type, data + h->bytes + 4, 4);
	if (type != __builtin_bswap32(1))
		return false;
	struct xdr_piece piece = {data + h->bytes, bytes - h->bytes};
	bool chunks = h->read_count || h->write_count || h->has_reply;
	if (chunks || !rpc_callback_answered(&conn->rpc, &piece, 1, piece.len)) {
		rpc_bad_call(conn->rpc.server);
		log_warning("rdma", "an answer that nobody asked for, or with chunks peer=%s", conn->text);
		rdma_connection_fail(conn, "a wrong answer");
		return true;
	}
	uint32_t credits = h->credits ? h->credits : 1;
	if (!conn->failed)
		rpc_callback_credits(&conn->rpc, credits < conn->answers ? credits : conn->answers);
	return true;
}
