/*
 * RPC messages (RFC 5531): admission of calls, their headers and credentials, the run of a procedure, its reply.
 *
 * Owns the memory of a request: one arena buffer that holds struct rpc_run (the public struct rpc_request first), the
 * pool that arguments are decoded into, and room for a reply's head; a longer head has a buffer of its own. All of it
 * belongs to the connection's reactor; one fiber per call runs here, and ends when the transport has the reply.
 *
 * Life of a call: rpc_call_received() -> call_admit(), now or from the shard's waiting list -> run_fiber(): header,
 * credential, program, reply cache, procedure -> transport->reply() or ->drop() -> rpc_call_free().
 *
 * Admission: a call enters when its shard has memory left within the limit, the arena a buffer, and the reactor a
 * fiber; else it waits, first come first served, and stream transports stop reading meanwhile. When nothing runs, one
 * is always let in, so that the limit never stops everything. What counts is the message, the request, the buffers
 * that a long message's payload will be copied or pulled into, and the payload of replies: a procedure reserves that
 * before it makes it (rpc_payload_reserve).
 *
 * Shares: a peer may ask a lot and read nothing, and its calls then hold fibers and memory until it is closed. So one
 * connection may have only a part of what is left: for calls (conn_may_enter; what comes beyond is parked at the
 * connection, in nobody's way) and of memory for their replies. The more there are that take, the less each may have,
 * and something is left for the next one however many they are.
 *
 * Turns: one receive may bring a hundred calls of one peer. The first enters at once; the others when all that came in
 * this round of the loop has been looked at, one of each connection in turn. So between two calls of a peer that floods
 * runs one of every other that has some. What is more than TURNS_IN_ROUND of one connection waits for the next round,
 * in which others may have come. Over RDMA a round is one look at the completion queue, which takes what is there.
 *
 * Errors: a message that cannot be answered (no xid, no CALL) costs its sender the connection. All else is
 * answered as RFC 5531 section 9 says, in its order: RPC version, credential, program, version, procedure, arguments.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "rpcrdma/rpcrdma_internal.h"
#include "xdr/rpc.h"

#define RUN_BYTES 8192u		/* of a request whose message lies in one piece */
#define RUN_BYTES_PIECES 32768u /* else values that straddle pieces are put together in the pool */
#define RUN_HEAD 4096u		/* at its end: headroom and a short reply */
#define CHECKSUM_BYTES 256u
#define WAIT_RETRY (5 * NSEC_PER_MSEC)
#define PAYLOAD_LOOK (100 * NSEC_PER_MSEC)
#define PAYLOAD_MOST (32u << 20) /* of replies that one connection may hold */
#define SHARE_CALLS 2u		 /* a connection may have the half of what is left of fibers and memory */
#define SHARE_PAYLOAD 4u	 /* and a quarter of what is left of memory, but one reply at least */
#define ENTERED_LEAST 2u
#define TURNS_IN_ROUND 32u

struct rpc_run {
	struct rpc_request req; /* first: what procedures see */
	struct rpc_call *call;
	struct rpc_server *server;
	struct mail start; /* of its fiber */
	struct buf *buf, *head_buf;
	struct rpc_procedure_metrics *metrics;
	struct rpc_cache_entry *entry;
	uint64_t charged;	     /* of shard->used, without payload of the reply */
	uint64_t reserved, attached; /* payload of the reply; reserved >= attached is charged */
	struct {
		uint32_t count;
		uint64_t bytes;
	} io[RPC_IOS];
	struct rpc_reply reply;
	struct slice *slices[XDR_PAYLOADS_MAX]; /* where malloc() gave them */
	bool payload_failed;
};
_Static_assert(sizeof(struct rpc_run) <= RUN_BYTES - RUN_HEAD - 2048, "room for the pool");

static struct rpc_run *run_of(const struct rpc_request *req)
{
	return container_of(req, struct rpc_run, req);
}

/* ------------------------------------------------------------------------------------------------
 * Admission
 */

static void run_fiber(void *arg);

/* From MEMBER to the one before END: short enough for a few stores. */
#define run_clear_from(run, member, end)                                                                               \
	memset(&(run)->member, 0, offsetof(struct rpc_run, end) - offsetof(struct rpc_run, member))

/* Zeros, but for what is filled in before it is read: the groups, and what stands in payloads and their slices. */
static inline void run_clear(struct rpc_run *run)
{
	run_clear_from(run, req, req.cred.groups);
	run_clear_from(run, req.tag, req.in);
	run->req.out.payloads = 0;
	run_clear_from(run, req.reply_payload_max, call);
	run_clear_from(run, call, charged);
	run_clear_from(run, charged, reply);
	run_clear_from(run, reply, reply.payload);
	run_clear_from(run, reply.too_long, slices);
	run->payload_failed = false;
}

static bool call_admit(struct rpc_call *call)
{
	struct rpc_connection *conn = call->conn;
	struct rpc_shard *shard = conn->shard;
	uint64_t size = call->pieces > 1 ? RUN_BYTES_PIECES : RUN_BYTES, charge = size;
	/* The procedure will want as much again for where the payload stays. */
	if (!call->reduced_count && call->bytes > 4096)
		charge += call->bytes;
	for (uint32_t i = 0; i < call->reduced_count; i++)
		charge += call->reduced[i].len;

	if (shard->running && shard->used + charge > shard->limit)
		return false;
	struct buf *buf = buf_try_alloc((uint32_t)size);
	if (!buf)
		return false;
	struct rpc_run *run = (struct rpc_run *)(void *)buf->data;
	run_clear(run);
	run->call = call;
	run->server = conn->server;
	run->buf = buf;
	run->charged = charge;
	run->req.connection = conn;
	run->req.rdma = conn->transport->rdma;
	run->req.started = call->received;
	run->req.pool = (struct xdr_pool){buf->data, sizeof(*run), size - RUN_HEAD};
	run->reply.call = call;
	list_node_init(&run->reply.node);
	call->run = run;
	run->start = (struct mail){.fn = run_fiber, .arg = run};
	if (fiber_start(&run->start) < 0) {
		call->run = NULL;
		buf_put(buf);
		return false;
	}
	shard->used += charge;
	shard->running++;
	return true;
}

static inline bool conn_may_enter(const struct rpc_connection *conn)
{
	if (conn->entered < ENTERED_LEAST)
		return true;
	const struct rpc_shard *shard = conn->shard;
	uint32_t most = reactor_fibers() / 4 * 3; /* others of the reactor need some */
	uint64_t fibers = most > shard->running ? most - shard->running : 0;
	uint64_t memory = shard->limit > shard->used ? (shard->limit - shard->used) / RUN_BYTES : 0;

	return conn->entered < (fibers < memory ? fibers : memory) / SHARE_CALLS;
}

static inline void call_enter(struct rpc_call *call)
{
	struct rpc_shard *shard = call->conn->shard;

	call->entered = true;
	call->conn->entered++;
	if (!list_empty(&shard->waiting) || !call_admit(call)) {
		list_push_back(&shard->waiting, &call->node);
		if (!shard->retry.slot)
			timer_start(&shard->retry, now_ns() + WAIT_RETRY);
	}
}

/* Lets one parked call go on. False when there is none, or it may not. */
static bool parked_next(struct rpc_connection *conn)
{
	struct list_node *n = list_first(&conn->parked);

	if (!n)
		return false;
	struct rpc_call *call = container_of(n, struct rpc_call, node);
	if (conn->closing || atomic_load_explicit(&conn->server->stopping, memory_order_relaxed)) {
		list_remove(n);
		conn->transport->drop(call);
		return true;
	}
	if (!conn_may_enter(conn))
		return false;
	list_remove(n);
	call_enter(call);
	return true;
}

/* While calls are parked, it is either their turn soon, or at least ENTERED_LEAST others are on their way, and each
 * calls this at its end. */
static void parked_run(struct rpc_connection *conn)
{
	/* or each call dropped here would drop the next on top of this stack */
	if (conn->unparking || list_linked(&conn->turn_node))
		return;
	conn->unparking = true;
	while (parked_next(conn))
		;
	conn->unparking = false;
}

/* At most MOST calls of CONN; true when it waits for another turn. CONN may be gone when it does not. */
static bool turn_take(struct rpc_connection *conn, uint32_t most)
{
	bool more = true;

	conn->calls++; /* so that it stays */
	conn->unparking = true;
	while (more && most--)
		more = parked_next(conn) && !list_empty(&conn->parked);
	conn->unparking = false;
	conn->calls--;
	if (!more && conn->transport->call_ended)
		conn->transport->call_ended(conn); /* it reads on, or is closed */
	return more;
}

static void turn_soon(struct rpc_shard *shard, uint64_t when)
{
	if (!shard->turn.slot)
		timer_start(&shard->turn, when);
}

void rpc_turns_run(struct timer *timer)
{
	struct rpc_shard *shard = container_of(timer, struct rpc_shard, turn);

	for (unsigned i = 0; i < TURNS_IN_ROUND && !list_empty(&shard->turns); i++) {
		struct list now;
		struct list_node *n;
		list_init(&now);
		list_append(&now, &shard->turns);
		bool alone = list_first(&now)->next == &now.head;
		while ((n = list_pop_front(&now))) {
			uint32_t most = alone ? TURNS_IN_ROUND - i : 1;
			if (turn_take(container_of(n, struct rpc_connection, turn_node), most))
				list_push_back(&shard->turns, n);
		}
		if (alone)
			break;
	}
	if (!list_empty(&shard->turns))
		turn_soon(shard, now_ns() + 1); /* in the next round */
}

void rpc_call_received(struct rpc_call *call)
{
	struct rpc_connection *conn = call->conn;
	struct rpc_shard *shard = conn->shard;

	conn->calls++;
	call->run = NULL;
	call->entered = false;
	list_node_init(&call->node);
	shard->used += call->held;
	rpc_stat_add(&conn->calls_total, 1);
	conn->last_call_ns = call->received;
	rpc_stat_add(&conn->traffic->calls, 1);
	if (conn->closing || atomic_load_explicit(&conn->server->stopping, memory_order_relaxed)) {
		conn->transport->drop(call);
		return;
	}
	if (!conn->turn && list_empty(&conn->parked) && conn_may_enter(conn)) {
		conn->turn = true;
		call_enter(call);
		return;
	}
	list_push_back(&conn->parked, &call->node);
	if (conn->turn && !list_linked(&conn->turn_node)) {
		list_push_back(&shard->turns, &conn->turn_node);
		turn_soon(shard, now_ns());
	}
}

void rpc_waiting_run(struct rpc_shard *shard)
{
	struct list_node *n;

	if (shard->waiting_runs) /* or each call dropped here would drop the next on top of this stack */
		return;
	shard->waiting_runs = true;
	while ((n = list_first(&shard->waiting))) {
		struct rpc_call *call = container_of(n, struct rpc_call, node);
		if (call->conn->closing || atomic_load_explicit(&shard->server->stopping, memory_order_relaxed)) {
			list_remove(n);
			call->conn->transport->drop(call);
		} else if (call_admit(call)) {
			list_remove(n);
		} else {
			if (!shard->retry.slot)
				timer_start(&shard->retry, now_ns() + WAIT_RETRY);
			break;
		}
	}
	shard->waiting_runs = false;
}

/* The reply's payload counts for MORE bytes. */
static inline void payload_charge(struct rpc_run *run, uint64_t more)
{
	struct rpc_connection *conn = run->call->conn;
	struct rpc_shard *shard = conn->shard;

	run->reserved += more;
	conn->payload += more;
	shard->payload += more;
	shard->used += more;
}

/* For LESS bytes, which lets others in. */
static inline void payload_release(struct rpc_run *run, uint64_t less)
{
	struct rpc_connection *conn = run->call->conn;
	struct rpc_shard *shard = conn->shard;

	payload_charge(run, -less);
	/* one of each; it wakes the next when there is room for that one, too */
	if (!list_empty(&conn->payload_queue.waiters))
		wait_queue_wake_one(&conn->payload_queue);
	if (!list_empty(&shard->payload_queue.waiters))
		wait_queue_wake_one(&shard->payload_queue);
}

/* What was attached to a reply goes back: it was sent, or another reply is sent instead. */
static void payloads_drop(struct rpc_run *run)
{
	for (uint32_t i = 0; i < run->reply.payloads; i++) {
		slices_put(run->reply.payload[i].v, run->reply.payload[i].n);
		if (run->slices[i])
			free(run->slices[i]);
	}
	run->reply.payloads = 0;
}

void rpc_call_free(struct rpc_call *call)
{
	struct rpc_connection *conn = call->conn;
	struct rpc_shard *shard = conn->shard;
	struct rpc_run *run = call->run;

	shard->used -= call->held;
	call->held = 0;
	if (run) {
		call->run = NULL;
		if (run->reply.payloads)
			payloads_drop(run);
		shard->used -= run->charged;
		if (run->reserved)
			payload_release(run, run->reserved);
		shard->running--;
		if (run->head_buf)
			buf_put(run->head_buf);
		buf_put(run->buf);
	}
	if (call->entered) {
		call->entered = false;
		conn->entered--;
	}
	if (!list_empty(&conn->parked)) /* while this one still counts, so that CONN stays */
		parked_run(conn);
	assert(conn->calls);
	conn->calls--;
	if (conn->transport->call_ended)
		conn->transport->call_ended(conn); /* CONN may be gone now */
	if (!list_empty(&shard->waiting))
		rpc_waiting_run(shard);
}

bool rpc_memory_take(struct rpc_shard *shard, uint64_t bytes)
{
	if (shard->used && shard->used + bytes > shard->limit)
		return false;
	shard->used += bytes;
	return true;
}

void rpc_memory_give(struct rpc_shard *shard, uint64_t bytes)
{
	assert(shard->used >= bytes);
	shard->used -= bytes;
}

/* ------------------------------------------------------------------------------------------------
 * Replies
 */

/* Room for a head of LEN bytes; waits only beyond what the request's own buffer has. */
static bool reply_room(struct rpc_run *run, uint32_t len)
{
	struct xdr_out *out = &run->req.out;
	if (len <= RUN_HEAD - RPC_HEADROOM) {
		xdr_out_init(out, run->buf->data + run->buf->size - RUN_HEAD + RPC_HEADROOM, RUN_HEAD - RPC_HEADROOM);
		run->reply.buf = run->buf;
	} else {
		if (len > RPC_HEAD_MAX)
			len = RPC_HEAD_MAX;
		run->head_buf = buf_alloc(len + RPC_HEADROOM);
		run->charged += run->head_buf->size;
		run->call->conn->shard->used += run->head_buf->size;
		xdr_out_init(out, run->head_buf->data + RPC_HEADROOM, run->head_buf->size - RPC_HEADROOM);
		run->reply.buf = run->head_buf;
	}
	uint32_t most = run->call->reply_head_max;
	if ((size_t)(out->end - out->base) > most)
		out->end = out->base + most;
	return most >= RPC_REPLY_HEADER;
}

static bool reply_accepted(struct rpc_run *run, uint32_t stat)
{
	struct xdr_out *out = &run->req.out;

	if (run->reply.payloads)
		payloads_drop(run);
	out->payloads = 0;
	out->p = out->base;
	if (!xdr_out_room(out, RPC_REPLY_HEADER))
		return false;
	uint32_t *header = (uint32_t *)(void *)out->p;
	header[0] = htobe32(run->req.xid);
	header[1] = htobe32(REPLY);
	header[2] = htobe32(MSG_ACCEPTED);
	header[3] = htobe32(AUTH_NONE); /* the verifier, which is empty */
	header[4] = 0;
	header[5] = htobe32(stat);
	out->p += RPC_REPLY_HEADER;
	return true;
}

/* Hands the reply in req.out to the transport, or that there is none that fits. RUN is not ours any more after. */
static void reply_send(struct rpc_run *run, bool fits)
{
	struct rpc_connection *conn = run->call->conn;
	struct xdr_out *out = &run->req.out;
	struct rpc_reply *reply = &run->reply;

	if (run->reserved > run->attached) /* a short read needs less */
		payload_release(run, run->reserved - run->attached);
	reply->too_long = !fits;
	reply->head = out->base;
	reply->len = fits ? (uint32_t)(out->p - out->base) : 0;
	if (run->metrics) {
		uint64_t ns = now_ns() - run->req.started;
		histogram_record(&run->metrics->latency, ns);
		if (run->io[RPC_IO_READ].count)
			rpc_io_record(conn, RPC_IO_READ, run->io[RPC_IO_READ].count, run->io[RPC_IO_READ].bytes, ns);
		if (run->io[RPC_IO_WRITE].count)
			rpc_io_record(conn, RPC_IO_WRITE, run->io[RPC_IO_WRITE].count, run->io[RPC_IO_WRITE].bytes, ns);
		rpc_slow_count(conn, ns);
	}
	counter_add(&run->server->replies, 1);
	conn->transport->reply(run->call, reply);
}

static void reply_error(struct rpc_run *run, uint32_t stat)
{
	if (run->metrics)
		counter_add(&run->metrics->errors, 1);
	reply_send(run, reply_accepted(run, stat));
}

static void reply_prog_mismatch(struct rpc_run *run, uint32_t low, uint32_t high)
{
	struct xdr_out *out = &run->req.out;
	reply_send(run, reply_accepted(run, PROG_MISMATCH) && xdr_put_u32(out, low) && xdr_put_u32(out, high));
}

static void reply_denied(struct rpc_run *run, uint32_t stat, uint32_t first, uint32_t second)
{
	struct xdr_out *out = &run->req.out;
	payloads_drop(run);
	out->p = out->base;
	out->payloads = 0;
	bool fits = xdr_put_u32(out, run->req.xid) && xdr_put_u32(out, REPLY) && xdr_put_u32(out, MSG_DENIED) &&
		    xdr_put_u32(out, stat) && xdr_put_u32(out, first) &&
		    (stat == AUTH_ERROR || xdr_put_u32(out, second));
	if (run->metrics)
		counter_add(&run->metrics->errors, 1);
	reply_send(run, fits);
}

uint32_t rpc_reply_bytes(const struct rpc_reply *reply)
{
	uint32_t bytes = reply->len;
	for (uint32_t i = 0; i < reply->payloads; i++)
		bytes += xdr_round(reply->payload[i].len);
	return bytes;
}

/* ------------------------------------------------------------------------------------------------
 * Credentials (RFC 5531 section 8.2 and appendix A)
 */

static uint32_t cred_authsys(struct rpc_request *req, const struct xdr_opaque *body)
{
	struct xdr_in in;
	struct xdr_opaque machine;
	uint32_t stamp;

	/* Decoded by hand, since the groups go to where procedures want them. */
	xdr_in_init(&in, body->data, body->len, NULL);
	if (!xdr_get_u32(&in, &stamp) || !xdr_get_opaque(&in, AUTH_SYS_NAME_MAX, &machine) ||
		!xdr_get_u32(&in, &req->cred.uid) || !xdr_get_u32(&in, &req->cred.gid) ||
		!xdr_get_u32(&in, &req->cred.group_count) || req->cred.group_count > AUTH_SYS_GIDS_MAX)
		return RPC_AUTH_BADCRED;
	for (uint32_t i = 0; i < req->cred.group_count; i++)
		if (!xdr_get_u32(&in, &req->cred.groups[i]))
			return RPC_AUTH_BADCRED;
	return in.p == in.end ? RPC_AUTH_OK : RPC_AUTH_BADCRED;
}

static uint32_t cred_check(struct rpc_request *req, const opaque_auth *cred, const opaque_auth *verf)
{
	req->cred.flavor = cred->flavor;
	switch ((uint32_t)cred->flavor) {
	case RPC_AUTH_NONE:
		req->cred.uid = req->cred.gid = 65534; /* nobody */
		return cred->body.len ? RPC_AUTH_BADCRED : RPC_AUTH_OK;
	case RPC_AUTH_SYS:
		if ((uint32_t)verf->flavor != RPC_AUTH_NONE || verf->body.len)
			return RPC_AUTH_BADVERF;
		return cred_authsys(req, &cred->body);
	case AUTH_SHORT: /* we never gave one out */
		return RPC_AUTH_REJECTEDCRED;
	default:
		return RPC_AUTH_BADCRED;
	}
}

/* ------------------------------------------------------------------------------------------------
 * One call
 */

static const struct rpc_program *program_find(
	struct rpc_server *server, uint32_t program, uint32_t version, unsigned *index, uint32_t *low, uint32_t *high)
{
	*low = UINT32_MAX;
	*high = 0;
	for (unsigned i = 0; i < server->config.program_count; i++) {
		const struct rpc_program *p = server->config.programs[i];
		if (p->program != program)
			continue;
		if (p->version == version) {
			*index = i;
			return p;
		}
		if (p->version < *low)
			*low = p->version;
		if (p->version > *high)
			*high = p->version;
	}
	return NULL;
}

/* Of the arguments' first bytes and of how many there are. */
static __attribute__((noinline)) uint32_t args_checksum(const struct rpc_request *req)
{
	uint8_t copy[CHECKSUM_BYTES];
	uint32_t left = (uint32_t)xdr_in_left(&req->in), some = left < CHECKSUM_BYTES ? left : CHECKSUM_BYTES;
	const uint8_t *data = req->in.p;

	if ((size_t)(req->in.end - req->in.p) < some) {
		struct xdr_pool pool = {copy, 0, sizeof(copy)};
		struct xdr_in in = req->in;
		in.pool = &pool;
		if (!xdr_in_room(&in, some))
			return 0; /* cannot be: they are there */
		data = in.p;
	}
	return (uint32_t)checksum64(data, some, left);
}

/* Runs the procedure with room for its results; returns what it does, or RPC_SYSTEM_ERR. */
static int procedure_run(struct rpc_run *run, bool *fits)
{
	struct rpc_request *req = &run->req;
	struct rpc_call *call = run->call;
	const struct rpc_procedure *proc = req->procedure;
	uint64_t want = (uint64_t)RPC_REPLY_HEADER + proc->reply_max + (proc->reply_more ? proc->reply_more(req) : 0);

	*fits = true;
	if (want > RUN_HEAD - RPC_HEADROOM)
		reply_room(run, want > RPC_HEAD_MAX ? RPC_HEAD_MAX : (uint32_t)want);
	/* A change whose answer could not be sent must not be made. */
	if ((proc->flags & RPC_PROC_CACHED) && call->reply_head_max < RPC_REPLY_HEADER + proc->reply_max) {
		*fits = false;
		return RPC_SYSTEM_ERR;
	}
	req->reply_payload_max = call->reply_payload_max;
	if (call->payload_inline) {
		uint32_t head = RPC_REPLY_HEADER + proc->reply_max;
		uint32_t room = call->reply_head_max > head ? (call->reply_head_max - head) & ~3u : 0;
		if (room < req->reply_payload_max)
			req->reply_payload_max = room;
	}
	*fits = reply_accepted(run, SUCCESS);
	if (!*fits)
		return RPC_SYSTEM_ERR;
	int rc = proc->run(req);
	if (rc == RPC_SUCCESS && (run->payload_failed || run->reply.payloads != req->out.payloads)) {
		log_error("rpc", "a procedure encoded %u payloads and attached %u program=%s procedure=%s",
			req->out.payloads, run->reply.payloads, req->program->name, proc->name);
		return RPC_SYSTEM_ERR;
	}
	return rc;
}

static void run_procedure(struct rpc_run *run, uint32_t procedure)
{
	struct rpc_request *req = &run->req;
	struct rpc_server *server = run->server;
	bool cached = req->procedure->flags & RPC_PROC_CACHED, fits;

	if (cached) {
		req->tag = (struct rpc_tag){req->connection->client, req->xid, req->program->program,
			req->program->version, procedure, args_checksum(req)};
		struct xdr_out *out = &req->out;
		uint32_t bytes = 0;
		switch (rpc_cache_begin(server->cache, &req->tag, &run->entry, &req->replay, &req->replay_bytes,
			out->base, (uint32_t)(out->end - out->base), &bytes)) {
		case RPC_CACHE_HIT:
			rpc_repeat_count(req->connection);
			fits = bytes <= (size_t)(out->end - out->base);
			out->p = out->base + (fits ? bytes : 0);
			reply_send(run, fits);
			return;
		case RPC_CACHE_RUNNING:
			rpc_repeat_count(req->connection);
			run->call->conn->transport->drop(run->call);
			return;
		case RPC_CACHE_REPLAY:
			rpc_repeat_count(req->connection);
			break;
		case RPC_CACHE_RUN:
			break;
		}
	}
	int rc = procedure_run(run, &fits);
	if (run->entry) {
		if (rc == RPC_SUCCESS && fits)
			rpc_cache_store(
				server->cache, run->entry, req->out.base, (uint32_t)(req->out.p - req->out.base));
		else
			rpc_cache_forget(server->cache, run->entry);
		run->entry = NULL;
	}
	if (!fits)
		reply_send(run, false);
	else if (rc == RPC_SUCCESS)
		reply_send(run, true);
	else if (rc == RPC_DROP)
		run->call->conn->transport->drop(run->call);
	else if (rc == RPC_AUTH_ERROR)
		reply_denied(run, AUTH_ERROR, req->auth_stat ? req->auth_stat : (uint32_t)RPC_AUTH_TOOWEAK, 0);
	else
		reply_error(run, rc > 0 && rc <= RPC_SYSTEM_ERR ? (uint32_t)rc : (uint32_t)RPC_SYSTEM_ERR);
}

/* A message that has no answer. */
static __attribute__((noinline)) void run_refuse(struct rpc_run *run, const char *why)
{
	struct rpc_connection *conn = run->call->conn;
	rpc_bad_call(run->server);
	log_warning("rpc", "connection closed: %s peer=%s transport=%s", why, conn->peer_text, conn->transport->name);
	conn->transport->close(conn);
	conn->transport->drop(run->call);
}

struct call_header {
	uint32_t program, version, procedure;
};

static inline uint32_t word(const uint8_t *p)
{
	uint32_t v;
	memcpy(&v, p, sizeof(v));
	return be32toh(v);
}

/* A header as nearly all are: in one piece, with AUTH_SYS. False: not so, and nothing was read. */
static bool header_plain(struct rpc_request *req, struct call_header *h)
{
	const uint8_t *p = req->in.p, *end = req->in.end;

	if (end - p < 40 || word(p + 4) != CALL || word(p + 8) != RPC_VERSION || word(p + 24) != RPC_AUTH_SYS)
		return false;
	uint32_t len = word(p + 28), name = word(p + 36);
	if (len > AUTH_BODY_MAX || len % 4 || end - p < 40 + (ptrdiff_t)len || name > AUTH_SYS_NAME_MAX ||
		8 + xdr_round(name) + 12 > len)
		return false;
	const uint8_t *at = p + 40 + xdr_round(name), *verf = p + 32 + len;
	uint32_t groups = word(at + 8);
	if (groups > AUTH_SYS_GIDS_MAX || verf - at != 12 + 4 * (ptrdiff_t)groups || word(verf) != RPC_AUTH_NONE ||
		word(verf + 4))
		return false;
	req->xid = word(p);
	*h = (struct call_header){word(p + 12), word(p + 16), word(p + 20)};
	req->cred.flavor = RPC_AUTH_SYS;
	req->cred.uid = word(at);
	req->cred.gid = word(at + 4);
	req->cred.group_count = groups;
	for (uint32_t i = 0; i < groups; i++)
		req->cred.groups[i] = word(at + 12 + 4 * i);
	req->in.p = verf + 8;
	return true;
}

/* Any header, field by field. False: it was answered as it deserves. */
static __attribute__((noinline)) bool header_read(struct rpc_run *run, struct call_header *h)
{
	struct rpc_request *req = &run->req;
	struct xdr_in *in = &req->in;
	uint32_t type, version;
	opaque_auth cred, verf;

	if (!xdr_get_u32(in, &req->xid) || !xdr_get_u32(in, &type)) {
		run_refuse(run, "a message without an RPC header");
		return false;
	}
	if (type != CALL) {
		run_refuse(run, "a message that is no call");
		return false;
	}
	if (!reply_room(run, RPC_REPLY_HEADER)) {
		reply_send(run, false);
		return false;
	}
	if (!xdr_get_u32(in, &version)) {
		run_refuse(run, "an RPC header that is cut off");
		return false;
	}
	if (version != RPC_VERSION) {
		rpc_bad_call(run->server);
		reply_denied(run, RPC_MISMATCH, RPC_VERSION, RPC_VERSION);
		return false;
	}
	if (!xdr_get_u32(in, &h->program) || !xdr_get_u32(in, &h->version) || !xdr_get_u32(in, &h->procedure)) {
		run_refuse(run, "an RPC header that is cut off");
		return false;
	}
	if (!xdr_decode_opaque_auth(in, &cred) || !xdr_decode_opaque_auth(in, &verf)) {
		rpc_bad_call(run->server);
		reply_denied(run, AUTH_ERROR, AUTH_BADCRED, 0);
		return false;
	}
	req->auth_stat = cred_check(req, &cred, &verf);
	if (req->auth_stat != RPC_AUTH_OK) {
		rpc_bad_call(run->server);
		reply_denied(run, AUTH_ERROR, req->auth_stat, 0);
		return false;
	}
	return true;
}

static void run_fiber(void *arg)
{
	struct rpc_run *run = arg;
	struct rpc_request *req = &run->req;
	struct rpc_call *call = run->call;
	struct xdr_in *in = &req->in;
	struct call_header h;
	uint32_t low, high;
	unsigned index = 0;
	static const uint8_t nothing; /* an empty record has no piece */

	xdr_in_init(
		in, call->pieces ? call->piece[0].data : &nothing, call->pieces ? call->piece[0].len : 0, &req->pool);
	if (call->pieces > 1) {
		in->piece = call->piece + 1;
		in->piece_bytes = call->bytes - call->piece[0].len;
	}
	if (call->reduced_count)
		xdr_in_reduced(in, call->reduced, call->reduced_count);
	if (header_plain(req, &h)) {
		if (!reply_room(run, RPC_REPLY_HEADER)) {
			reply_send(run, false);
			return;
		}
	} else if (!header_read(run, &h)) {
		return;
	}
	req->program = program_find(run->server, h.program, h.version, &index, &low, &high);
	if (!req->program) {
		rpc_bad_call(run->server);
		if (low > high)
			reply_error(run, PROG_UNAVAIL);
		else
			reply_prog_mismatch(run, low, high);
		return;
	}
	if (h.procedure >= req->program->procedures || !req->program->procedure[h.procedure].name) {
		rpc_bad_call(run->server);
		reply_error(run, PROC_UNAVAIL);
		return;
	}
	req->procedure = &req->program->procedure[h.procedure];
	run->metrics = &run->server->metrics[index][h.procedure];
	counter_add(&run->metrics->calls, 1);
	if (req->program->authorize) {
		int stat = req->program->authorize(req);
		if (stat) {
			rpc_bad_call(run->server);
			/* The rpc_auth_stat may be in auth_stat or be what was returned. */
			uint32_t why = req->auth_stat		     ? req->auth_stat
				       : stat > 0 && stat < RPC_DROP ? (uint32_t)stat
								     : RPC_AUTH_TOOWEAK;
			reply_denied(run, AUTH_ERROR, why, 0);
			return;
		}
	}
	run_procedure(run, h.procedure);
}

/* ------------------------------------------------------------------------------------------------
 * For procedures
 */

void rpc_io_count(struct rpc_request *req, enum rpc_io io, uint32_t bytes)
{
	struct rpc_run *run = run_of(req);
	run->io[io].count++;
	run->io[io].bytes += bytes;
}

int rpc_payload_fetch(struct rpc_request *req, const struct xdr_payload *payload, const struct slice *to, unsigned n)
{
	struct rpc_call *call = run_of(req)->call;
	uint64_t done = 0;

	if (!payload->len)
		return 0;
	if (payload->inline_data) {
		slices_copy_in(to, n, 0, payload->inline_data, payload->len);
		return 0;
	}
	if (payload->chunk)
		return req->connection->transport->payload_fetch(call, payload->chunk - 1, payload, to, n);
	/* Over the seams of the message; the codec has checked that all of it is there. */
	uint32_t at = 0;
	for (uint32_t i = 0; i < call->pieces && done < payload->len; i++) {
		const struct xdr_piece *p = &call->piece[i];
		uint32_t from = payload->pos + (uint32_t)done;
		if (from < at + p->len) {
			uint32_t some = at + p->len - from;
			if (some > payload->len - done)
				some = (uint32_t)(payload->len - done);
			slices_copy_in(to, n, done, p->data + (from - at), some);
			done += some;
		}
		at += p->len;
	}
	return done == payload->len ? 0 : -EIO;
}

/* Where BYTES more of payload have to wait; NULL: there is room. */
static inline struct wait_queue *payload_wait(struct rpc_connection *conn, uint32_t bytes)
{
	struct rpc_shard *shard = conn->shard;
	uint64_t left = shard->limit > shard->used ? shard->limit - shard->used : 0;
	uint64_t most = left / SHARE_PAYLOAD < PAYLOAD_MOST ? left / SHARE_PAYLOAD : PAYLOAD_MOST;

	if (conn->payload && conn->payload + bytes > most)
		return &conn->payload_queue;
	return shard->payload && shard->used + bytes > shard->limit ? &shard->payload_queue : NULL;
}

static __attribute__((noinline)) int payload_reserve_later(struct rpc_run *run, uint32_t bytes)
{
	struct rpc_connection *conn = run->req.connection;
	struct wait_queue *queue;

	while ((queue = payload_wait(conn, bytes))) {
		wait_queue_wait(queue, now_ns() + PAYLOAD_LOOK); /* a look now and then: the connection may close */
		if (conn->closing)
			return -EIO;
	}
	payload_charge(run, bytes);
	wait_queue_wake_one(&conn->payload_queue);
	wait_queue_wake_one(&conn->shard->payload_queue);
	return 0;
}

int rpc_payload_reserve(struct rpc_request *req, uint32_t bytes)
{
	struct rpc_connection *conn = req->connection;

	if (conn->closing)
		return -EIO;
	if (payload_wait(conn, bytes))
		return payload_reserve_later(run_of(req), bytes);
	payload_charge(run_of(req), bytes);
	return 0;
}

static __attribute__((noinline)) int payload_refuse(struct rpc_run *run, const struct slice *v, unsigned n, int error)
{
	run->payload_failed = true;
	slices_put(v, n);
	return error;
}

int rpc_payload_attach(struct rpc_request *req, const struct slice *v, unsigned n)
{
	struct rpc_run *run = run_of(req);
	uint32_t i = run->reply.payloads;
	uint64_t bytes = 0;

	if (i >= req->out.payloads)
		return payload_refuse(run, v, n, -EINVAL);
	struct slice *copy = n <= 64 ? xdr_pool_take(&req->pool, n * sizeof(*v)) : NULL;
	run->slices[i] = NULL;
	if (!copy && !(copy = run->slices[i] = malloc((n + 1) * sizeof(*v))))
		return payload_refuse(run, v, n, -ENOMEM);
	for (unsigned k = 0; k < n; k++) {
		copy[k] = v[k];
		bytes += v[k].len;
	}
	if (bytes != req->out.payload[i].len) {
		free(run->slices[i]);
		return payload_refuse(run, v, n, -EINVAL);
	}
	struct rpc_reply_payload *payload = &run->reply.payload[i];
	payload->pos = req->out.payload[i].pos;
	payload->len = (uint32_t)bytes;
	payload->v = copy;
	payload->n = n;
	run->reply.payloads++;
	run->attached += bytes;
	if (run->attached > run->reserved)
		payload_charge(run, run->attached - run->reserved);
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Replies that grow
 */

/* The number of the next payload's Write chunk is that of the payload; those without one are in line. */
static bool payload_chunk(const struct rpc_request *req, unsigned index, uint32_t *room)
{
	bool (*chunk_room)(const struct rpc_call *, unsigned, uint32_t *) = req->connection->transport->chunk_room;
	*room = UINT32_MAX;
	return !chunk_room || chunk_room(run_of(req)->call, index, room);
}

uint32_t rpc_reply_room(const struct rpc_request *req)
{
	uint64_t head = (uint64_t)(req->out.p - req->out.base), in_line = 0;
	uint32_t most = run_of(req)->call->reply_head_max, room;

	for (unsigned i = 0; i < req->out.payloads; i++)
		if (!payload_chunk(req, i, &room))
			in_line += xdr_round(req->out.payload[i].len);
	uint64_t left = most > head + in_line ? most - head - in_line : 0;
	return (uint32_t)(left < RPC_HEAD_MAX - head ? left : RPC_HEAD_MAX - head);
}

uint32_t rpc_payload_room(const struct rpc_request *req)
{
	uint32_t room;
	if (payload_chunk(req, req->out.payloads, &room))
		return room;
	room = rpc_reply_room(req);
	return room > 4 ? (room - 4) & ~3u : 0;
}

int rpc_reply_grow(struct rpc_request *req, uint32_t bytes)
{
	struct rpc_run *run = run_of(req);
	struct xdr_out *out = &req->out;
	uint32_t used = (uint32_t)(out->p - out->base), most = run->call->reply_head_max;

	if (xdr_out_room(out, bytes))
		return 0;
	if (bytes > rpc_reply_room(req))
		return -EMSGSIZE;
	uint32_t want = used + (bytes > used ? bytes : used); /* doubled, so that many small steps are few copies */
	struct buf *buf = buf_alloc((want < RPC_HEAD_MAX ? want : RPC_HEAD_MAX) + RPC_HEADROOM);
	uint64_t before = run->head_buf ? run->head_buf->size : 0;
	memcpy(buf->data + RPC_HEADROOM, out->base, used);
	buf_put(run->head_buf);
	run->head_buf = run->reply.buf = buf;
	run->charged += buf->size - before;
	run->call->conn->shard->used += buf->size - before;
	out->base = buf->data + RPC_HEADROOM;
	out->p = out->base + used;
	out->end = buf->data + buf->size;
	if ((size_t)(out->end - out->base) > most)
		out->end = out->base + most;
	return 0;
}

void rpc_payload_copy(const struct rpc_request *req, unsigned i, void *to)
{
	const struct rpc_reply_payload *payload = &run_of(req)->reply.payload[i];

	slices_copy_out(payload->v, payload->n, 0, to, payload->len);
}
