/*
 * What the files of the RDMA transport share: rdma_device.c (devices, lanes, completions), rdma_cm.c (listening),
 * rdma_connection.c (one connection, from its request to its end), rdma_call.c (calls in, RDMA Reads),
 * rdma_reply.c (RDMA Writes, replies out), rdma_callback.c (calls in reverse). rdma_header.c has the header's bytes.
 *
 * A connection and its lane belong to one reactor; listeners and the list of devices to the manager's reactor, the one
 * that first listened. Between the two go messages only.
 */
#ifndef FURROW_RDMA_INTERNAL_H
#define FURROW_RDMA_INTERNAL_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <string.h>

#include "core/core.h"
#include "rpcrdma/rdma_format.h"
#include "rpcrdma/rpcrdma_internal.h"

#define RDMA_SGES_MAX 16u	 /* of one work request */
#define RDMA_WRS_MAX 384u	 /* of one reply: into 256 segments, and more where buffers are short */
#define RDMA_SQ_DEPTH 31u	 /* of a queue pair: some 20 KiB, and a longer reply goes in parts */
#define RDMA_CREDITS_LEAST 2u	 /* of a connection that asks for little, one thing at a time */
#define RDMA_READ_DEPTH_MAX 128u /* RDMA Reads in flight on one connection */
#define RDMA_READ_BATCH 8u	 /* posted at once */
#define RDMA_RECEIVE_BATCH 8u	 /* posted at once */
#define RDMA_READ_DEADLINE (10 * NSEC_PER_SEC)
#define RDMA_DRAIN_WAIT (5 * NSEC_PER_SEC)
#define RDMA_FLUSH_WAIT (30 * NSEC_PER_MSEC) /* for the flush of receives, which soft-RoCE does not report */
#define RDMA_MIN_RNR_TIMER 12		     /* the code of 0.64 ms; 0 would mean 655 ms (InfiniBand 9.7.5.2.8) */
#define RDMA_SHORT_CHUNK 4095u		     /* a Read chunk up to this is read into the message: the longest path */
#define RDMA_PIECES_MAX (4 * RDMA_CHUNKS_MAX + 16)
#define RDMA_BUFS_MAX 32u /* of one long call */

/* The low bits of a wr_id. */
#define RDMA_WR_MASK 7u
#define RDMA_WR_RECEIVE 1u
#define RDMA_WR_PART 2u /* of an operation, not signalled */
#define RDMA_WR_LAST 3u

struct rdma_connection;
struct rdma_lane;
struct rdma_call;
struct rdma_manager;

/* ------------------------------------------------------------------------------------------------
 * Devices and lanes (rdma_device.c)
 */

/* Lanes of one device on one reactor, touched there only. */
struct rdma_reactor {
	struct list lanes;
	struct fiber_mutex lock; /* while one is being made */
};

struct rdma_device {
	struct rdma_manager *manager;
	struct list_node node;
	struct ibv_context *verbs;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	uint32_t lkey;
	struct buf *zeros;
	char name[64];
	uint32_t sge_write, sge_read, read_depth, sq_max, cq_max, srq_max, reads_in_max;
	bool send_invalidate;
	_Atomic bool gone; /* takes no new connections; closed with the last one */
	bool closing, watching;
	int error;
	unsigned users; /* connections */
	struct io watch;
	struct fiber *closer;
	struct rdma_reactor reactor[];
};

/* One buffer of the shared receive queue: posted, or held by a call. */
struct rdma_receive {
	struct rdma_lane *lane;
	struct buf *buf;
	struct list_node node; /* lane->all_receives */
};

struct rdma_lane {
	struct poller poller;
	struct rdma_device *device;
	struct list_node node;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct io watch;
	struct timer look; /* at its connections, while it has any */
	bool armed, closing, watching;
	struct fiber *closer;
	int error;
	unsigned reactor; /* index */
	uint32_t cq_entries, cq_free;
	uint32_t receives, receives_max, granted;	   /* granted <= receives */
	uint32_t surplus;				   /* of receives: not posted again */
	struct rdma_receive *released[RDMA_RECEIVE_BATCH]; /* to be posted again */
	uint32_t released_count;
	uint32_t round; /* of looking at the completion queue */
	struct list all_receives, free_calls;
	struct htable connections; /* by queue pair number */
	/* Room to build work requests in; nothing in it is kept over a wait. */
	struct ibv_send_wr *wr; /* RDMA_WRS_MAX */
	struct ibv_sge *sge;	/* RDMA_SGES_MAX for each */
};

/* Work requests that complete together (a reply), or one by one (Reads). */
struct rdma_op {
	struct rdma_connection *conn;
	struct list_node node; /* conn->ops while pending */
	uint32_t slots;	       /* of the send queue that one completion gives back */
	uint32_t pending;      /* completions to come */
	int error;
	void (*done)(struct rdma_op *op); /* at each completion, outside of fibers; may free OP at the last */
};

struct rdma_device *rdma_device_get(
	struct rdma_manager *manager, struct ibv_context *verbs); /* waits; NULL: cannot be used */
void rdma_device_put(struct rdma_device *device);		  /* waits */
void rdma_device_close(struct rdma_device *device);		  /* waits; nobody uses it */
/* A lane of this reactor with that much room in its completion queue; NULL when the device has no more. Waits. */
struct rdma_lane *rdma_lane_reserve(struct rdma_device *device, uint32_t cq_entries);
/* As many credits as there are receives for, at most WANTED. No wait. */
uint32_t rdma_lane_grant(struct rdma_lane *lane, uint32_t wanted);
void rdma_lane_ungrant(struct rdma_lane *lane, uint32_t credits); /* no wait */
void rdma_lane_release(struct rdma_lane *lane, uint32_t cq_entries, uint32_t credits);
void rdma_lane_list(
	struct rdma_lane *lane, struct rdma_connection *conn, bool listed); /* its completions are for CONN */
void rdma_lane_drain(struct rdma_lane *lane);		 /* takes every completion that is there. No wait */
void rdma_receive_release(struct rdma_receive *receive); /* posts it again. No wait */

/* ------------------------------------------------------------------------------------------------
 * Manager (rdma_cm.c): listeners and the events of all connections
 */

enum rdma_owner { RDMA_OWNER_LISTENER, RDMA_OWNER_CONNECTION }; /* of a cm id: its context points to one of these */

struct rdma_manager {
	struct list_node node;
	struct rpc_server *server;
	struct reactor *reactor;
	struct rdma_event_channel *channel;
	struct io watch;
	struct fiber *fiber;
	struct list devices;
	struct fiber_mutex device_lock;
	unsigned listeners, connections;
	_Atomic unsigned opening; /* connections that were not told to the server yet */
	bool closing, ended;
	struct wait_queue end;
};

void rdma_manager_device_failed(struct rdma_manager *m);	 /* one of its devices is gone now. No wait */
void rdma_manager_connection_gone(struct rdma_connection *conn); /* any reactor; waits; conn->manager may go */

/* ------------------------------------------------------------------------------------------------
 * Connections (rdma_connection.c)
 */

/* A fiber that waits for slots of the send queue or for permission to read. */
struct rdma_waiter {
	struct list_node node;
	uint32_t need;
	bool granted;
	struct fiber *fiber;
};

struct rdma_connection {
	enum rdma_owner owner; /* first */
	struct rpc_connection rpc;
	struct rdma_manager *manager;
	struct rdma_device *device;
	struct rdma_lane *lane;
	struct reactor *reactor;
	struct rdma_cm_id *id;
	struct ibv_qp *qp;
	struct htable_node by_number; /* in the lane's table, by the queue pair's */
	uint32_t number;
	_Atomic unsigned messages; /* from the manager, not read yet */
	bool began;		   /* rpc_connection_begin() */
	bool opening;		   /* its fiber still sets it up, and will close it if it failed meanwhile */
	bool accepted, failed, last_receive_flushed, invalidate;
	struct rdma_private peer;
	uint32_t peer_depth, peer_reads; /* RDMA Reads it serves, and it would like to do */
	uint32_t inline_send;
	uint32_t credits_max, credits, outstanding; /* allowed; with receives of their own; calls not answered */
	uint32_t told, told_most;		    /* granted in replies: now, and the most since the last look */
	uint32_t busiest, answered;		    /* most calls at once in this window, and how many in all */
	uint64_t window;			    /* when it began */
	uint32_t answers; /* receives for answers to calls in reverse, on top of the credits */
	uint32_t round;	  /* of the lane, in which a call of it entered */
	uint32_t sq_depth, sq_free;
	uint32_t read_depth, reads_free;
	struct list sends;	  /* struct rdma_call: wait for slots of the send queue */
	struct list slot_waiters; /* behind them */
	struct list read_waiters;
	struct list ops;
	struct rdma_op probe;
	uint64_t progress; /* when something last came, or was completed, or posted while nothing was in flight */
	uint32_t calls;	   /* struct rdma_call in use */
	struct fiber *closer;
	char text[64];	 /* the peer */
	char reason[64]; /* why it closes */
};

/* On its reactor, in a fiber: a request came. Accepts or refuses, and owns the connection from then on. */
void rdma_connection_open(void *conn);
/* Starts closing. On its reactor; no wait, and may come twice. WHY is for the log. */
void rdma_connection_fail(struct rdma_connection *conn, const char *why);
/* Something that closing waits for may have come. No wait. */
void rdma_connection_check(struct rdma_connection *conn);
/* From the manager's reactor, while the connection cannot go. No wait. */
void rdma_connection_lost(struct rdma_connection *conn);
void rdma_connection_drained(struct rdma_connection *conn);

/* Waits for N slots of the send queue: 0, or -EIO when the connection failed. */
int rdma_slots_take(struct rdma_connection *conn, uint32_t n);
void rdma_slots_give(struct rdma_connection *conn, uint32_t n); /* no wait */
/* Waits until at least one RDMA Read may be posted; returns how many, at most WANTED, or -EIO. */
int rdma_reads_take(struct rdma_connection *conn, uint32_t wanted);
void rdma_reads_give(struct rdma_connection *conn, uint32_t n); /* no wait */
/* Posts N of the lane's work requests from WR on, chained, for OP with COMPLETIONS to come. An error closes the
 * connection. */
void rdma_post(
	struct rdma_connection *conn, struct rdma_op *op, struct ibv_send_wr *wr, uint32_t n, uint32_t completions);
void rdma_op_complete(struct rdma_op *op);
/* How many credits to tell the peer with a reply. No wait. */
uint32_t rdma_credits_tell(struct rdma_connection *conn);

/* Closes it when its work makes no progress; asks for a sign of life when it was idle for long. Loop; no wait. */
void rdma_connection_look(struct rdma_connection *conn, uint64_t now);

/* How often each connection is looked at, and after how long a stall is its end and silence wants a probe. Tests change
 * them. */
extern struct rdma_times {
	uint64_t look, stall, idle;
} rdma_times;

extern const struct rpc_transport rdma_rpc_transport;

/* ------------------------------------------------------------------------------------------------
 * Calls (rdma_call.c) and replies (rdma_reply.c)
 */

struct rdma_call {
	struct list_node node; /* lane->free_calls, or conn->sends */
	struct rpc_call rpc;
	bool received; /* the RPC layer had it */
	struct rdma_connection *conn;
	struct rdma_receive *receive; /* until reply or drop */
	unsigned buf_count;
	struct rpc_reply *reply;		      /* while it waits to be sent; NULL: */
	enum rdma_errcode errcode;		      /* this is sent */
	struct rdma_op op;			      /* the reply */
	uint32_t posted;			      /* work requests of it */
	struct buf *head;			      /* a header too long for the headroom, or an error */
	struct rdma_header header;		      /* from here on not cleared for a new call */
	struct xdr_reduced reduced[XDR_PAYLOADS_MAX]; /* what rpc.reduced points to */
	uint8_t payload[XDR_PAYLOADS_MAX];	      /* and the Read chunk of each */
	struct buf *bufs[RDMA_BUFS_MAX];	      /* what was read of a long call */
	struct xdr_piece piece[RDMA_PIECES_MAX];
	uint32_t written[RDMA_CHUNKS_MAX];
};

static inline struct rdma_connection *rdma_connection_of(struct rpc_connection *rpc)
{
	return container_of(rpc, struct rdma_connection, rpc);
}
static inline struct rdma_call *rdma_call_of(struct rpc_call *rpc)
{
	return container_of(rpc, struct rdma_call, rpc);
}
/* A receive completed. Loop; no wait. */
void rdma_receive_complete(struct rdma_receive *receive, const struct ibv_wc *wc);
/* The message will not be read any more: its receive goes back, its buffers go. No wait. */
void rdma_call_message_done(struct rdma_call *call);
void rdma_call_put(struct rdma_call *call); /* back to the lane; no wait */
void rdma_call_destroy(struct rdma_call *call);
int rdma_payload_fetch(
	struct rpc_call *call, unsigned index, const struct xdr_payload *payload, const struct slice *to, unsigned n);
void rdma_reply(struct rpc_call *call, struct rpc_reply *reply);
void rdma_drop(struct rpc_call *call);
void rdma_reply_error(struct rdma_call *call, enum rdma_errcode code);
/* Sends what waited in conn->sends as far as there are slots. No wait. */
void rdma_sends_continue(struct rdma_connection *conn);
/* What the peer can take in answer to CALL. */
void rdma_reply_room(struct rdma_call *call);
bool rdma_chunk_room(const struct rpc_call *call, unsigned index, uint32_t *room);

/* Calls in reverse (rdma_callback.c). Loop or fiber; no wait. */
int rdma_callback(struct rpc_connection *rpc, struct rpc_reply *message);
/* Was the message in RECEIVE, with header H, an answer to one? Then it is done with. */
bool rdma_callback_receive(
	struct rdma_connection *conn, const struct rdma_header *h, const uint8_t *data, uint32_t bytes);

/* ------------------------------------------------------------------------------------------------
 * Metrics
 */

extern struct rdma_metrics {
	struct counter accepted, refused, closed, credit_violations, header_errors;
	struct counter posts, reads, read_bytes, read_deadlines, writes, write_bytes, sends, sends_queued,
		invalidations, callbacks;
	struct counter rnr_errors, completion_errors, post_errors, stalls, probes;
	_Atomic int64_t connections, credits, receives, in_flight_most;
} rdma_metrics;
void rdma_metrics_register(void);

#endif
