/*
 * A transport of ours that loses nothing, between a target and the RPC layer: calls go in by rpc_call_received(), and
 * each must come back exactly once, with an answer that fits what the peer can take.
 */
#ifndef TESTS_FUZZ_TRANSPORT_H
#define TESTS_FUZZ_TRANSPORT_H

#include <errno.h>
#include <netinet/in.h>

#include "tests/fuzz/fuzz_core.h"

#include "rpcrdma/rpcrdma_internal.h"
#include "xdr/rpc.h"

#define PIECES 5u
#define REDUCED 3u

struct fuzz_call {
	struct rpc_call call;
	struct xdr_piece piece[PIECES];
	struct xdr_reduced reduced[REDUCED];
	uint32_t xid;
	bool ended;
	/* What the target wants of the reply's head; may be NULL. */
	void (*replied)(struct fuzz_call *call, const uint8_t *head, uint32_t bytes);
};

static void call_end(struct rpc_call *call)
{
	struct fuzz_call *c = container_of(call, struct fuzz_call, call);

	FUZZ_CHECK(!c->ended);
	c->ended = true;
	rpc_call_free(call);
}

static void reply(struct rpc_call *call, struct rpc_reply *r)
{
	struct fuzz_call *c = container_of(call, struct fuzz_call, call);
	uint32_t xid, at = 0, in_line = 0;

	FUZZ_CHECK(r->call == call);
	if (!r->too_long) {
		FUZZ_CHECK(r->len >= 12 && r->len % 4 == 0 && r->len <= call->reply_head_max);
		FUZZ_CHECK(r->head - RPC_HEADROOM >= r->buf->data && r->head + r->len <= r->buf->data + r->buf->size);
		memcpy(&xid, r->head, 4);
		FUZZ_CHECK(__builtin_bswap32(xid) == c->xid);
		for (uint32_t i = 0; i < r->payloads; i++) {
			const struct rpc_reply_payload *p = &r->payload[i];
			FUZZ_CHECK(p->pos >= at && p->pos <= r->len && slices_bytes(p->v, p->n) == p->len);
			at = p->pos;
			if (i || call->payload_inline)
				in_line += xdr_round(p->len);
			else
				FUZZ_CHECK(p->len <= call->reply_payload_max);
		}
		FUZZ_CHECK((uint64_t)r->len + in_line <= call->reply_head_max);
		if (c->replied)
			c->replied(c, r->head, r->len);
	}
	call_end(call);
}

static int payload_fetch(
	struct rpc_call *call, unsigned index, const struct xdr_payload *payload, const struct slice *to, unsigned n)
{
	FUZZ_CHECK(index < call->reduced_count);
	FUZZ_CHECK(payload->len <= call->reduced[index].len && slices_bytes(to, n) == payload->len);
	slices_zero(to, n, 0, payload->len);
	return 0;
}

static void connection_close(struct rpc_connection *conn)
{
	rpc_connection_closing(conn);
}

static int callback(struct rpc_connection *conn, struct rpc_reply *message)
{
	(void)conn;
	(void)message;
	return -EMSGSIZE;
}

/* One Write chunk for the first payload, the others in line. */
static bool chunk_room(const struct rpc_call *call, unsigned index, uint32_t *room)
{
	if (index || call->payload_inline)
		return false;
	*room = call->reply_payload_max;
	return true;
}

static const struct rpc_transport transport = {.name = "fuzz",
	.reply = reply,
	.drop = call_end,
	.payload_fetch = payload_fetch,
	.close = connection_close,
	.callback = callback,
	.chunk_room = chunk_room};

#endif
