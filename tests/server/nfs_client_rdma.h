/*
 * The test client's calls over RDMA: a peer of bare verbs carries them, in line as far as 4 KiB go, and as long calls
 * (RDMA_NOMSG, RFC 8166 3.5.3) beyond; each offers a Reply chunk for a reply that is longer. Data is part of the
 * message, so call and reply are the bytes that they are over TCP; but for what the client has as data of its own
 * (data_bytes), which goes in a Read chunk.
 */
#ifndef TESTS_NFS_CLIENT_RDMA_H
#define TESTS_NFS_CLIENT_RDMA_H

#include "rpcrdma/rdma_format.h"
#include "tests/rpcrdma/rdma_peer.h"
#include "tests/server/nfs_client.h"

#define RDMA_CLIENT_HALF (PEER_MEMORY / 2) /* calls in the first half of the peer's memory, replies in the second */

static const char *rdma_client_address;
static uint16_t rdma_client_port;

static inline void rdma_client_close(struct client *c)
{
	if (c->peer)
		peer_close(c->peer);
	free(c->peer);
	c->peer = NULL;
}

static inline bool rdma_client_connect(struct client *c)
{
	struct peer_options options = {0};

	rdma_client_close(c);
	c->peer = calloc(1, sizeof(struct peer));
	assert_non_null(c->peer);
	return peer_open(c->peer, rdma_client_address, rdma_client_port, options);
}

static inline void rdma_client_segment(struct xdr_out *o, const struct peer *p, uint32_t offset, uint32_t bytes)
{
	xdr_put_u32(o, p->mr->rkey);
	xdr_put_u32(o, bytes);
	xdr_put_u64(o, (uintptr_t)p->memory + offset);
}

/* The transport's header, with the call behind it or in a Read chunk. */
static inline bool rdma_client_send(struct client *c)
{
	struct peer *p = c->peer;
	uint32_t bytes = (uint32_t)(c->out.p - c->out.base);
	uint8_t message[PEER_SLOT];
	struct xdr_out o;
	uint32_t apart = xdr_round(c->data_bytes), behind = bytes - c->data_at - apart;
	bool in_line = bytes - apart <= RDMA_INLINE_MAX - 64;

	xdr_out_init(&o, message, sizeof(message));
	xdr_put_u32(&o, c->xid);
	xdr_put_u32(&o, RDMA_RPC_VERSION);
	xdr_put_u32(&o, 32); /* credits */
	xdr_put_u32(&o, in_line ? RDMA_MSG : RDMA_NOMSG);
	if (!in_line) {
		assert_true(bytes <= RDMA_CLIENT_HALF);
		memcpy(p->memory, c->out.base, bytes);
		xdr_put_u32(&o, 1);
		xdr_put_u32(&o, 0); /* position */
		rdma_client_segment(&o, p, 0, bytes);
	} else if (apart) {
		assert_true(apart <= RDMA_CLIENT_HALF);
		memcpy(p->memory, c->out.base + c->data_at, c->data_bytes);
		xdr_put_u32(&o, 1);
		xdr_put_u32(&o, c->data_at);
		rdma_client_segment(&o, p, 0, c->data_bytes);
	}
	xdr_put_u32(&o, 0);
	xdr_put_u32(&o, 0);
	xdr_put_u32(&o, 1);
	xdr_put_u32(&o, 1);
	rdma_client_segment(&o, p, RDMA_CLIENT_HALF, CLIENT_ROOM);
	if (in_line && apart) {
		xdr_put_fixed(&o, c->out.base, c->data_at);
		xdr_put_fixed(&o, c->out.base + c->data_at + apart, behind);
	} else if (in_line) {
		xdr_put_fixed(&o, c->out.base, bytes);
	}
	return peer_send(p, message, (uint32_t)(o.p - o.base));
}

static inline bool rdma_client_receive(struct client *c)
{
	struct peer *p = c->peer;
	uint8_t message[PEER_SLOT];
	uint32_t xid, version, credits = 0, proc, reads = 1, writes = 1, chunk, segments, handle, got = 0;
	struct xdr_in in;
	int bytes = peer_take(p, message, 20000);

	if (bytes < 0)
		return false;
	xdr_in_init(&in, message, (size_t)bytes, NULL);
	assert_true(xdr_get_u32(&in, &xid) && xdr_get_u32(&in, &version) && xdr_get_u32(&in, &credits) &&
		    xdr_get_u32(&in, &proc) && xdr_get_u32(&in, &reads) && xdr_get_u32(&in, &writes) &&
		    xdr_get_u32(&in, &chunk));
	assert_int_equal(xid, c->xid);
	assert_true(credits > 0 && !reads && !writes);
	if (proc == RDMA_NOMSG) {
		assert_true(chunk && xdr_get_u32(&in, &segments) && segments == 1 && xdr_get_u32(&in, &handle) &&
			    xdr_get_u32(&in, &got) && got <= CLIENT_ROOM);
		memcpy(c->reply, p->memory + RDMA_CLIENT_HALF, got);
	} else {
		assert_int_equal(proc, RDMA_MSG);
		assert_false(chunk);
		got = (uint32_t)xdr_in_left(&in);
		memcpy(c->reply, in.p, got);
	}
	c->pool = (struct xdr_pool){.base = c->memory, .room = CLIENT_ROOM};
	xdr_in_init(&c->in, c->reply, got, &c->pool);
	return true;
}

static const struct client_transport rdma_client = {.connect = rdma_client_connect,
	.send = rdma_client_send,
	.receive = rdma_client_receive,
	.close = rdma_client_close};

#endif
