/* What tcp.c (listening, receiving) and tcp_send.c (replies) share. All of it belongs to the connection's reactor. */
#ifndef FURROW_RPCRDMA_TCP_INTERNAL_H
#define FURROW_RPCRDMA_TCP_INTERNAL_H

#include "rpcrdma/rpcrdma_internal.h"

#define TCP_RECEIVE_BYTES 8192u /* a call with a payload of 4 KiB comes in one receive */
#define TCP_PIECES 24u
#define TCP_SEND_IOVS 256u

struct tcp_call {
	struct rpc_call call;
	struct list_node node;
	uint32_t bytes;	      /* of the record so far */
	uint32_t held, taken; /* bytes of memory; taken: from the shard's limit already */
	bool copying;	      /* the pieces are buffers of the record's own, the last one with room */
	unsigned pieces;
	struct xdr_piece piece[TCP_PIECES];
	struct buf *buf[TCP_PIECES];
};

/* A receive of the rest of a fragment into buffers of its own. */
struct tcp_direct {
	struct msghdr msg;
	unsigned first, count;
	struct iovec iov[TCP_PIECES];
};

/* A send in flight. */
struct tcp_send {
	struct list_node node;
	struct tcp_connection *connection;
	struct io io;
	struct msghdr msg;
	struct iovec iov[TCP_SEND_IOVS];
};

struct tcp_shard {
	struct rpc_shard *shard;
	struct io_uring_buf_ring *ring; /* NULL: the kernel has none */
	uint16_t group;
	uint32_t entries, missing;
	uint16_t missing_id[256]; /* slots without a buffer */
	struct buf *slot[256];
	uint64_t now;	     /* now_ns() of the last receive */
	struct list starved; /* connections that wait for memory or admission */
	struct timer look;   /* at them */
	struct timer sweep;  /* for records and sends that do not end; runs only while there are some */
	struct list free_calls, free_sends;
	uint32_t free_calls_count, free_sends_count;
};

struct tcp_connection {
	struct rpc_connection conn;
	struct tcp_shard *tcp;
	int fd;
	unsigned busy;	       /* a handler is at work: it settles at its end */
	struct list_node node; /* tcp_shard.starved */

	struct io receive;
	struct buf *receive_buf; /* without a ring */
	struct tcp_direct *direct;
	bool eof, more_came;
	bool in_record, in_fragment, last_fragment;
	uint8_t mark_have, mark[4];
	uint32_t fragment_left;
	struct tcp_call *call; /* the record that is coming */
	uint64_t record_started;

	struct list replies;   /* struct rpc_reply.node: not yet sent, or in the send that is in flight */
	uint32_t first_sent;   /* bytes of the first one that are sent */
	uint64_t unsent;       /* bytes of them all */
	struct tcp_send *send; /* in flight */
	bool sweep_seen;       /* since it is in flight, with what the peer had taken then */
	uint64_t sweep_acked;
	struct mail mail; /* to tcp_posted() */
	bool posted;
};

extern const struct rpc_transport tcp_transport;

static inline struct tcp_connection *tcp_of(struct rpc_connection *conn)
{
	return container_of(conn, struct tcp_connection, conn);
}

/* tcp.c */
void tcp_starve(struct tcp_connection *c);
void tcp_sweep_soon(struct tcp_shard *t);
void tcp_close(struct rpc_connection *conn);
/* Reads on, or frees C when its time has come. The last thing that a handler does. */
void tcp_settle(struct tcp_connection *c);
void tcp_call_release_message(struct tcp_call *call);
/* The call is over: frees it all. Settles its connection, which may be gone then. */
void tcp_call_done(struct tcp_call *call);

/* tcp_send.c */
void tcp_reply(struct rpc_call *call, struct rpc_reply *reply);
int tcp_callback(struct rpc_connection *conn, struct rpc_reply *message);
void tcp_send_abandon(struct tcp_connection *c); /* drops replies that are not in flight */
void tcp_post(struct tcp_connection *c);	 /* tcp_posted() soon, in the loop */
void tcp_posted(void *arg);

#endif
