/*
 * rpcrdma, inside: what the RPC layer (rpc.c, cache.c, server.c) and the transports (tcp.c, rdma*.c)
 * have between them.
 *
 * A connection lives on one reactor: its transport, its calls and their fibers run there, and nothing of it is
 * touched from elsewhere except what stands under "shard lock" or is atomic.
 *
 * Life of a call, with the function that makes each step:
 *
 *   transport    fills a struct rpc_call (embedded in a context of its own: a receive descriptor, a record) with
 *                the pieces of the message, which stay where they are until it is told to reply or drop
 *   transport -> rpc_call_received(call)            no wait; loop or fiber. The call is admitted or waits its turn
 *   rpc          starts a fiber: header, credential, reply cache, procedure
 *   rpc       -> transport->payload_fetch(call,..)  in that fiber, waits: only for a payload in a Read chunk
 *   rpc       -> transport->reply(call, reply)      in that fiber, must not wait
 *       or    -> transport->drop(call)              no reply will be made
 *                From here on nobody reads the received message: its buffers may go. The memory of *reply (head,
 *                payload) lives on until
 *   transport -> rpc_call_free(call)                no wait; loop or fiber: the reply was sent, or never will be.
 *                Puts the payload's references and frees the request. Then the context is the transport's again.
 *
 * Every call that was received is replied to or dropped exactly once, also on a connection that broke meanwhile:
 * the transport then just frees it. A connection goes when it is closed and conn->calls is 0.
 *
 * Errors: what a peer does wrong is counted and answered as the RFC says; when there is no answer, the RPC layer
 * calls transport->close(). Nothing here asserts on what came from a wire.
 */
#ifndef FURROW_RPCRDMA_INTERNAL_H
#define FURROW_RPCRDMA_INTERNAL_H

#include <pthread.h>

#include "rpcrdma/rpcrdma.h"

struct rpc_call;
struct rpc_reply;

/* ------------------------------------------------------------------------------------------------
 * Transports
 */

struct rpc_transport {
	const char *name; /* "tcp", "rdma": label of metrics and logs */
	bool rdma;
	/* Sends REPLY and calls rpc_call_free(CALL) when that is done (also at once). Must not wait. */
	void (*reply)(struct rpc_call *call, struct rpc_reply *reply);
	/* Nothing is sent; calls rpc_call_free(CALL). Must not wait. */
	void (*drop)(struct rpc_call *call);
	/*
	 * Waits: the payload that stands in the Read chunk of call->reduced[INDEX], into TO. 0, or -EIO when the
	 * connection is lost. NULL: the transport has no chunks. An inline payload never comes here: rpc.c copies it
	 * out of the pieces.
	 */
	int (*payload_fetch)(struct rpc_call *call, unsigned index, const struct xdr_payload *payload,
		const struct slice *to, unsigned n);
	/*
	 * Starts closing, on the connection's reactor; must not wait and may come twice. Running calls end as usual.
	 * When conn->calls is 0 and nothing is in flight the transport calls rpc_connection_end() and frees its memory.
	 */
	void (*close)(struct rpc_connection *conn);
	/* conn->calls became smaller; the transport may read on or finish a close. Must not wait. May be NULL. */
	void (*call_ended)(struct rpc_connection *conn);
	/*
	 * Sends MESSAGE (head, len and buf), a call in reverse, and calls rpc_callback_sent(MESSAGE) when its memory is
	 * not needed any more. Must not wait. -EAGAIN: not now, rpc_callbacks_run() comes; -EMSGSIZE, -ENOMEM.
	 */
	int (*callback)(struct rpc_connection *conn, struct rpc_reply *message);
	/* The room of Write chunk INDEX of CALL; false when it has none. NULL: the transport has no chunks. */
	bool (*chunk_room)(const struct rpc_call *call, unsigned index, uint32_t *room);
};

/* Embedded in a transport's connection. */
struct rpc_connection {
	const struct rpc_transport *transport;
	struct rpc_server *server;
	struct rpc_shard *shard; /* of its reactor */
	struct sockaddr_storage peer, local;
	struct in6_addr peer_address;	 /* rpc_peer_address() */
	char peer_text[64];		 /* numeric, without port; IPv4-mapped as IPv4 */
	uint64_t client;		 /* rpc_tag.client */
	uint32_t calls;			 /* received and not yet freed */
	uint32_t entered;		 /* of which not parked */
	struct list parked;		 /* calls beyond the connection's share: a stream stops reading meanwhile */
	bool unparking;			 /* somebody goes through them */
	bool turn;			 /* a call entered since the last receive, or round, which sets it to false */
	struct list_node turn_node;	 /* in shard->turns: parked calls enter one by one */
	uint64_t payload;		 /* bytes of replies that are reserved, made, or not yet sent */
	struct wait_queue payload_queue; /* calls that wait for it to become less */
	bool closing;			 /* set by rpc_connection_closing(): new calls are dropped */
	struct rpc_link *link;		 /* NULL until rpc_link_get() */
	struct list_node node;		 /* in shard->connections: shard lock */
	uint64_t since_ns;
	/* For listings; written on the connection's reactor only. */
	_Atomic uint64_t calls_total, bytes_in, bytes_out, repeats, send_waits;
	struct {
		_Atomic uint64_t count, bytes;
	} io[RPC_IOS];
	uint64_t last_call_ns; /* when it came; before the first, since_ns */
	struct rpc_client *of;
	struct rpc_traffic *traffic; /* of its client on this reactor */
	_Atomic uint32_t credits;    /* granted; TCP: 0 */
};

/*
 * Fills in CONN for the calling reactor and lists it. 0; -ESHUTDOWN when the server stops; -EMFILE beyond the limit
 * of connections, its client's or all; -ENOMEM: the transport then closes it without further calls here. No wait.
 */
int rpc_connection_begin(struct rpc_connection *conn, struct rpc_server *server, const struct rpc_transport *transport,
	const struct sockaddr *peer, const struct sockaddr *local);
/* The transport begins to close it; may come twice. In the loop or a fiber; no wait. */
void rpc_connection_closing(struct rpc_connection *conn);
void rpc_connection_end(struct rpc_connection *conn); /* calls is 0. No wait */

/* ------------------------------------------------------------------------------------------------
 * A call, from the transport
 */

struct rpc_call {
	struct rpc_connection *conn;
	/*
	 * The RPC message in order: on RDMA what follows the transport header, or, for a long call, what the
	 * position-zero Read chunk held (the transport has fetched it, and the message is complete). Stays in place
	 * until reply or drop.
	 */
	const struct xdr_piece *piece;
	uint32_t pieces, bytes;
	/* The payloads that Read chunks took out of it, in order (xdr.h). */
	const struct xdr_reduced *reduced;
	uint32_t reduced_count;
	/*
	 * What the peer can take: most bytes of the reply without payload (RPC header included: the Reply chunk's or
	 * the inline room; TCP: RPC_HEAD_MAX), and of payload (the Write chunk's room; UINT32_MAX: any).
	 * payload_inline: there is no Write chunk, so that the payload shares the room for the head.
	 */
	uint32_t reply_head_max, reply_payload_max;
	bool payload_inline;
	/* Bytes of memory that the message holds: counted from rpc_call_received() to rpc_call_free(). */
	uint32_t held;
	uint64_t received; /* now_ns() when it was found to have come */

	/* rpc.c's own */
	struct list_node node; /* in conn->parked, then in shard->waiting */
	struct rpc_run *run;   /* the request; NULL while it waits */
	bool entered;
};

/* Takes over CALL until transport->reply or drop. No wait; on the connection's reactor, loop or fiber. */
void rpc_call_received(struct rpc_call *call);
/* See "Life of a call". No wait. */
void rpc_call_free(struct rpc_call *call);

/* ------------------------------------------------------------------------------------------------
 * A reply, to the transport
 */

/* Registered bytes in front of a reply's head that a transport may use for its own header (a TCP marker, an RDMA header
 * that fits). */
#define RPC_HEADROOM 256u
/* Most bytes of a head: it lies in one buffer. */
#define RPC_HEAD_MAX (BUF_MAX - RPC_HEADROOM)

struct rpc_reply_payload {
	uint32_t pos;	       /* in the head: goes between head[0, pos) and head[pos, len) */
	uint32_t len;	       /* without padding: pad with 0..3 zero bytes when it goes inline */
	const struct slice *v; /* len bytes */
	unsigned n;
};

struct rpc_reply {
	/*
	 * The RPC reply message without its payloads, in an arena buffer (for its lkey); 4-byte aligned, RPC_HEADROOM
	 * free bytes in front of it.
	 */
	struct buf *buf;
	uint8_t *head;
	uint32_t len;
	uint32_t bytes; /* free for the transport */
	uint32_t payloads;
	struct rpc_reply_payload payload[XDR_PAYLOADS_MAX]; /* in order of pos */
	/* The reply does not fit what the peer offered, and nothing was done: RDMA answers ERR_CHUNK. Then there is no
	 * head. */
	bool too_long;
	struct list_node node; /* free for the transport: a send queue */
	struct rpc_call *call; /* NULL: this is no reply, but a call in reverse */
};

/* Bytes of the whole message as it goes over TCP, without marker. */
uint32_t rpc_reply_bytes(const struct rpc_reply *reply);

/* ------------------------------------------------------------------------------------------------
 * Calls in reverse (callback.c), for transports. On the connection's reactor; no wait
 */

#define RPC_CALLBACKS_MAX 16u /* on their way on one connection */

void rpc_callbacks_run(struct rpc_connection *conn);	    /* the transport can send again */
bool rpc_callbacks_sent(const struct rpc_connection *conn); /* somebody waits for an answer; it has a link */
void rpc_callback_sent(struct rpc_reply *message);
/* A message of the type REPLY came, on a connection that has a link. False: nobody asked for it. */
bool rpc_callback_answered(struct rpc_connection *conn, const struct xdr_piece *piece, uint32_t pieces, uint32_t bytes);
void rpc_callback_refused(struct rpc_connection *conn, uint32_t xid);	  /* RDMA_ERROR */
void rpc_callback_credits(struct rpc_connection *conn, uint32_t credits); /* that the peer grants now */

/* ------------------------------------------------------------------------------------------------
 * Server
 */

/* What one reactor has of the server. Owned by it, except what the lock guards. */
struct rpc_shard {
	struct rpc_server *server;
	struct reactor *reactor;
	pthread_mutex_t lock; /* connections: for listings from other reactors; held for moments only */
	struct list connections;
	_Atomic uint32_t tcp_connections, rdma_connections;
	_Atomic uint32_t tcp_arriving; /* accepted, on their way here */

	/* Admission. used: bytes of messages, requests and replies' payload that calls of this reactor hold. */
	uint64_t used, limit;
	uint64_t payload;		 /* of which for replies' payload */
	struct wait_queue payload_queue; /* calls that wait for room for theirs */
	uint32_t running;		 /* calls with a fiber or an unsent reply */
	struct list waiting; /* calls that were not admitted, first come first served; a transport that reads a stream
				then stops reading */
	bool waiting_runs;   /* somebody goes through them: what ends meanwhile need not */
	struct timer retry;  /* looks at them when no call ends */
	struct list turns;   /* connections with parked calls, of which one of each enters in turn */
	struct timer turn;
	void *tcp; /* tcp.c's own: freed by tcp_shard_fini() */
} __attribute__((aligned(64)));

/* Embedded in a transport's listener. */
struct rpc_listener {
	struct list_node node; /* in server->listeners: server lock */
	/* Stops accepting and frees the listener. In a fiber of any reactor; waits. */
	void (*stop)(struct rpc_listener *listener);
};

/* What one client did on one reactor, which alone adds to it (traffic.c). */
struct rpc_traffic {
	_Atomic uint64_t calls, bytes_in, bytes_out, repeats, slow, send_waits;
	struct {
		_Atomic uint64_t count, bytes, sum_ns, max_ns, bucket[RPC_IO_BUCKETS];
	} io[RPC_IOS];
} __attribute__((aligned(64)));
static inline void rpc_stat_add(_Atomic uint64_t *to, uint64_t value) /* written by one reactor only */
{
	atomic_store_explicit(to, atomic_load_explicit(to, memory_order_relaxed) + value, memory_order_relaxed);
}

struct rpc_clients;
int rpc_clients_new(struct rpc_clients **clients);
void rpc_clients_destroy(struct rpc_clients *clients);
int rpc_client_begin(struct rpc_connection *conn); /* fills in `of` and `traffic`; -ENOMEM, -EMFILE */
void rpc_client_end(struct rpc_connection *conn);
/* COUNT times BYTES in all were read or written by one call, which took NS. */
void rpc_io_record(struct rpc_connection *conn, enum rpc_io io, uint32_t count, uint64_t bytes, uint64_t ns);
uint64_t rpc_calls(void *server); /* all that came */
uint64_t rpc_io_calls(void *metrics);
uint64_t rpc_io_bytes(void *metrics);
void rpc_io_latency(void *metrics, struct histogram_slot *to);
void rpc_slow_count(struct rpc_connection *conn, uint64_t ns);
void rpc_repeat_count(struct rpc_connection *conn);
void rpc_send_wait_count(struct rpc_connection *conn);

/* Of all clients: what these did is summed up when it is asked for. */
struct rpc_io_metrics {
	struct rpc_server *server;
	enum rpc_io io;
	struct counter calls, bytes;
	struct histogram latency;
};

struct rpc_procedure_metrics {
	struct counter calls, errors;
	struct histogram latency;
	char labels[96];
};

struct rpc_server {
	struct rpc_server_config config; /* with defaults filled in */
	unsigned shards;
	struct rpc_shard *shard;
	_Atomic bool stopping;
	pthread_mutex_t lock;
	struct list listeners;
	struct rpc_cache *cache;
	struct rpc_procedure_metrics **metrics; /* by program entry, then procedure */
	struct counter requests, replies, cache_hits, bad_calls, bytes_in, bytes_out, slow, idle_closed;
	_Atomic uint64_t idle_looked; /* when idle connections were last looked for */
	struct rpc_io_metrics io[RPC_IOS];
	struct rpc_clients *clients;
};

void rpc_listener_add(struct rpc_server *server, struct rpc_listener *listener);
struct rpc_shard *rpc_shard_self(struct rpc_server *server);
/* The reactor with the fewest connections, for a new one. Any reactor, no wait. */
struct rpc_shard *rpc_shard_pick(struct rpc_server *server, bool rdma);
/* A peer broke a rule (bad record, bad header, credits exceeded): counted; the caller logs and closes. */
void rpc_bad_call(struct rpc_server *server);
void rpc_bytes_in(struct rpc_connection *conn, uint64_t bytes);
void rpc_bytes_out(struct rpc_connection *conn, uint64_t bytes);

/*
 * Memory for something that a transport holds before there is a call (a record that is still coming). False when the
 * shard's limit is reached: then stop receiving for a while. rpc_memory_give() gives it back, at the latest when it
 * moves into a call's `held`, just before rpc_call_received().
 */
bool rpc_memory_take(struct rpc_shard *shard, uint64_t bytes);
void rpc_memory_give(struct rpc_shard *shard, uint64_t bytes);

/* "0.0.0.0" or "::1" and a port, without a look-up; -EINVAL with a sentence. */
int rpc_address_parse(
	const char *text, uint16_t port, struct sockaddr_storage *address, socklen_t *bytes, struct error *err);

/* rpc.c, for server.c: looks at the waiting calls again; drops them all when the server stops. On the shard's reactor.
 */
void rpc_waiting_run(struct rpc_shard *shard);
void rpc_turns_run(struct timer *timer); /* shard->turn */
#define RPC_REPLY_HEADER 24u		 /* xid, REPLY, MSG_ACCEPTED, verifier of AUTH_NONE, accept_stat */

/* ------------------------------------------------------------------------------------------------
 * Reply cache (cache.c). Any reactor, no wait.
 */

struct rpc_cache;
struct rpc_cache_entry;

enum rpc_cache_answer {
	RPC_CACHE_RUN, /* new: run it, then rpc_cache_store() or _forget() (entry may be NULL: no room to remember it)
			*/
	RPC_CACHE_REPLAY,  /* as RUN, with req->replay from before a restart */
	RPC_CACHE_HIT,	   /* the reply was copied to where it belongs */
	RPC_CACHE_RUNNING, /* the same call runs at this moment */
};

size_t rpc_cache_entry_bytes(void);
/* KEEP_NS: how long a reply is kept before all others, since its client may still ask for it again. */
int rpc_cache_new(uint32_t entries, uint64_t keep_ns, struct rpc_cache **cache);
void rpc_cache_destroy(struct rpc_cache *cache);
/* On a hit the reply's bytes go to REPLY (at most ROOM) and their number to *BYTES. */
enum rpc_cache_answer rpc_cache_begin(struct rpc_cache *cache, const struct rpc_tag *tag,
	struct rpc_cache_entry **entry, const void **replay, uint32_t *replay_bytes, uint8_t *reply, uint32_t room,
	uint32_t *bytes);
void rpc_cache_store(struct rpc_cache *cache, struct rpc_cache_entry *entry, const uint8_t *reply, uint32_t bytes);
void rpc_cache_forget(struct rpc_cache *cache, struct rpc_cache_entry *entry);
int rpc_cache_put_replay(struct rpc_cache *cache, const struct rpc_tag *tag, const void *replay, uint32_t bytes);

/* ------------------------------------------------------------------------------------------------
 * tcp.c
 */

void tcp_shard_fini(struct rpc_shard *shard); /* on its reactor, when no connection is left */

#endif
