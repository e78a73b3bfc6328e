/*
 * Calls in reverse: from the server to a client, on a connection that the client made.
 *
 * Owns struct rpc_link, the identity of a connection: made when somebody first asks for it, so that a connection that
 * is never called back holds nothing. It is counted; all but its id, its count and `closed` belongs to the
 * connection's reactor. link->conn is NULL from the moment the connection begins to close.
 *
 * Life of a call: rpc_callback() goes to the connection's reactor -> call_here() encodes the message into an arena
 * buffer, at whose start struct backcall lies -> link->waiting, until the peer's credits allow one more and the
 * transport takes it -> link->sent, while the fiber waits -> rpc_callback_answered() finds it by its xid, fills in the
 * results and wakes the fiber. The buffer has two references, the fiber's and, from send to completion, the
 * transport's.
 *
 * A call whose deadline passed keeps its credit: the peer may still work on it. Its answer, when it comes, is counted
 * against link->late and gives the credit back. An answer beyond these was not asked for: it costs the peer
 * its connection.
 *
 * Errors: what the peer answers becomes an errno here; see rpcrdma.h. When the connection closes every call ends with
 * -ENOTCONN.
 */
#include <errno.h>
#include <stdlib.h>

#include "rpcrdma/rpcrdma_internal.h"
#include "xdr/rpc.h"

#define CALL_BYTES 8192u
#define MEMORY_AGAIN (5 * NSEC_PER_MSEC)

struct rpc_link {
	_Atomic uint32_t refs;
	_Atomic bool closed;
	uint64_t id;
	struct reactor *reactor;
	struct rpc_connection *conn;
	uint32_t xid, credits;
	uint32_t inflight; /* calls that hold a credit: those in `sent`, and late ones */
	uint32_t late;	   /* of which nobody waits for */
	struct list waiting, sent;
};

struct backcall {
	struct rpc_reply message; /* what the transport sees */
	struct list_node node;	  /* in link->waiting or link->sent, until it is done */
	struct fiber *fiber;
	uint32_t xid, room, bytes;
	uint8_t *results;
	bool sent, done;
	int rc;
};
_Static_assert(sizeof(struct backcall) + RPC_HEADROOM + RPC_CALLBACK_MAX + 512 <= CALL_BYTES, "a call fits its buffer");

/* ------------------------------------------------------------------------------------------------
 * Links
 */

struct rpc_link *rpc_link_get(struct rpc_request *req)
{
	static _Atomic uint64_t ids;
	struct rpc_connection *conn = req->connection;

	if (!conn->link) {
		struct rpc_link *link = calloc(1, sizeof(*link));
		if (!link)
			return NULL;
		link->refs = 1; /* the connection's */
		link->id = atomic_fetch_add(&ids, 1) + 1;
		link->reactor = conn->shard->reactor;
		link->conn = conn->closing ? NULL : conn;
		link->closed = conn->closing;
		link->credits = conn->transport->rdma ? 1 : RPC_CALLBACKS_MAX; /* RFC 8166 3.3.1: one until told more */
		link->xid = (uint32_t)hash_u64(link->id);
		list_init(&link->waiting);
		list_init(&link->sent);
		conn->link = link;
	}
	return rpc_link_ref(conn->link);
}

struct rpc_link *rpc_link_ref(struct rpc_link *link)
{
	atomic_fetch_add_explicit(&link->refs, 1, memory_order_relaxed);
	return link;
}

void rpc_link_put(struct rpc_link *link)
{
	if (link && atomic_fetch_sub_explicit(&link->refs, 1, memory_order_acq_rel) == 1)
		free(link);
}

uint64_t rpc_link_id(const struct rpc_link *link)
{
	return link->id;
}

bool rpc_link_closed(const struct rpc_link *link)
{
	return atomic_load(&link->closed);
}

/* ------------------------------------------------------------------------------------------------
 * Calls that wait, and their end
 */

static void backcall_end(struct backcall *b, int rc)
{
	b->rc = rc;
	b->done = true;
	fiber_wake(b->fiber);
}

static void calls_run(struct rpc_link *link)
{
	struct list_node *n;
	while (link->conn && link->inflight < link->credits && (n = list_pop_front(&link->waiting))) {
		struct backcall *b = container_of(n, struct backcall, node);
		list_push_back(&link->sent, n);
		link->inflight++;
		b->sent = true;
		buf_ref(b->message.buf);
		int rc = link->conn->transport->callback(link->conn, &b->message);
		if (!rc)
			continue;
		buf_put(b->message.buf);
		if (b->done) /* the connection closed under it */
			return;
		list_remove(n);
		link->inflight--;
		b->sent = false;
		if (rc == -EAGAIN) {
			list_push_front(&link->waiting, n);
			return;
		}
		backcall_end(b, rc);
	}
}

void rpc_callbacks_run(struct rpc_connection *conn)
{
	if (conn->link)
		calls_run(conn->link);
}

bool rpc_callbacks_sent(const struct rpc_connection *conn)
{
	return !list_empty(&conn->link->sent);
}

void rpc_callback_sent(struct rpc_reply *message)
{
	buf_put(message->buf);
}

void rpc_callback_credits(struct rpc_connection *conn, uint32_t credits)
{
	if (!conn->link)
		return;
	conn->link->credits = credits < RPC_CALLBACKS_MAX ? credits : RPC_CALLBACKS_MAX;
	calls_run(conn->link);
}

void rpc_connection_closing(struct rpc_connection *conn)
{
	struct rpc_link *link = conn->link;
	struct list_node *n;

	if (conn->closing)
		return;
	conn->closing = true;
	if (!link)
		return;
	link->conn = NULL;
	atomic_store(&link->closed, true);
	while ((n = list_pop_front(&link->waiting)) || (n = list_pop_front(&link->sent)))
		backcall_end(container_of(n, struct backcall, node), -ENOTCONN);
	if (conn->server->config.connection_closed)
		conn->server->config.connection_closed(link);
}

/* ------------------------------------------------------------------------------------------------
 * Answers
 */

/* IN stands behind the message type. Returns the call's result; the results go to where they are wanted. */
static int answer_read(struct backcall *b, struct xdr_in *in)
{
	uint32_t stat;
	opaque_auth verf;

	if (!xdr_get_u32(in, &stat))
		return -EPROTO;
	if (stat == MSG_DENIED)
		return -EACCES;
	if (stat != MSG_ACCEPTED || !xdr_decode_opaque_auth(in, &verf) || !xdr_get_u32(in, &stat))
		return -EPROTO;
	if (stat == PROG_UNAVAIL || stat == PROG_MISMATCH || stat == PROC_UNAVAIL)
		return -EOPNOTSUPP;
	size_t bytes = xdr_in_left(in);
	if (stat != SUCCESS || bytes % 4)
		return -EPROTO;
	if (bytes > b->room)
		return -EMSGSIZE;
	b->bytes = (uint32_t)bytes;
	return xdr_get_fixed(in, b->results, b->bytes) ? 0 : -EPROTO;
}

static struct backcall *sent_find(struct rpc_link *link, uint32_t xid)
{
	list_foreach (n, &link->sent) {
		struct backcall *b = container_of(n, struct backcall, node);
		if (b->xid == xid)
			return b;
	}
	return NULL;
}

/* The call of that xid is over: taken from its list. False: nobody asked. *B may be NULL: nobody waits any more. */
static bool sent_take(struct rpc_link *link, uint32_t xid, struct backcall **b)
{
	*b = sent_find(link, xid);
	if (*b)
		list_remove(&(*b)->node);
	else if (link->late)
		link->late--;
	else
		return false;
	link->inflight--;
	return true;
}

bool rpc_callback_answered(struct rpc_connection *conn, const struct xdr_piece *piece, uint32_t pieces, uint32_t bytes)
{
	uint8_t memory[RPC_CALLBACK_MAX + 512]; /* for what lies over the seams of the message */
	struct xdr_pool pool = {memory, 0, sizeof(memory)};
	struct xdr_in in;
	struct backcall *b;
	uint32_t xid, type;

	xdr_in_init(&in, piece[0].data, piece[0].len, &pool);
	if (pieces > 1) {
		in.piece = piece + 1;
		in.piece_bytes = bytes - piece[0].len;
	}
	if (!xdr_get_u32(&in, &xid) || !xdr_get_u32(&in, &type) || !sent_take(conn->link, xid, &b))
		return false;
	if (b)
		backcall_end(b, answer_read(b, &in));
	calls_run(conn->link);
	return true;
}

void rpc_callback_refused(struct rpc_connection *conn, uint32_t xid)
{
	struct backcall *b;
	if (!conn->link || !sent_find(conn->link, xid) || !sent_take(conn->link, xid, &b))
		return;
	backcall_end(b, -EPROTO);
	calls_run(conn->link);
}

/* ------------------------------------------------------------------------------------------------
 * One call
 */

struct ask {
	struct rpc_link *link;
	const struct rpc_callback *call;
	uint8_t *results;
	uint32_t room, *bytes;
	int rc;
};

static bool put_cred(struct xdr_out *out, const struct rpc_callback *call)
{
	const struct rpc_cred *cred = &call->cred;
	const char *machine = call->machine ? call->machine : "";
	uint8_t *length;

	if (!xdr_put_u32(out, cred->flavor) || !xdr_put_u32(out, 0))
		return false;
	if (cred->flavor == RPC_AUTH_NONE)
		return true;
	length = out->p - 4;
	if (!xdr_put_u32(out, 0) || !xdr_put_opaque(out, machine, (uint32_t)strnlen(machine, AUTH_SYS_NAME_MAX)) ||
		!xdr_put_u32(out, cred->uid) || !xdr_put_u32(out, cred->gid) || !xdr_put_u32(out, cred->group_count))
		return false;
	for (uint32_t i = 0; i < cred->group_count; i++)
		if (!xdr_put_u32(out, cred->groups[i]))
			return false;
	struct xdr_out body = {.base = length, .p = length, .end = out->p};
	return xdr_put_u32(&body, (uint32_t)(out->p - length) - 4);
}

static bool put_call(struct xdr_out *out, const struct rpc_callback *call, uint32_t xid)
{
	return xdr_put_u32(out, xid) && xdr_put_u32(out, CALL) && xdr_put_u32(out, RPC_VERSION) &&
	       xdr_put_u32(out, call->program) && xdr_put_u32(out, call->version) &&
	       xdr_put_u32(out, call->procedure) && put_cred(out, call) && xdr_put_u32(out, AUTH_NONE) &&
	       xdr_put_u32(out, 0) && xdr_put_fixed(out, call->args, call->args_bytes);
}

/* Memory for a call; NULL when its time or its connection is over. Waits. */
static struct buf *call_buffer(struct ask *a)
{
	for (;;) {
		struct buf *buf = a->link->conn ? buf_try_alloc(CALL_BYTES) : NULL;
		if (buf || !a->link->conn) {
			a->rc = -ENOTCONN;
			return buf;
		}
		if (now_ns() >= a->call->deadline) {
			a->rc = -ETIMEDOUT;
			return NULL;
		}
		fiber_sleep(MEMORY_AGAIN);
	}
}

static void call_here(void *arg)
{
	struct ask *a = arg;
	struct rpc_link *link = a->link;
	struct buf *buf = call_buffer(a);
	struct xdr_out out;

	if (!buf)
		return;
	struct backcall *b = (struct backcall *)(void *)buf->data;
	memset(b, 0, sizeof(*b));
	list_node_init(&b->node);
	list_node_init(&b->message.node);
	b->fiber = fiber_self();
	b->results = a->results;
	b->room = a->room;
	b->xid = link->xid++;
	b->message.buf = buf;
	uint32_t at = (uint32_t)((sizeof(*b) + RPC_HEADROOM + 15) & ~15ull);
	b->message.head = buf->data + at;
	xdr_out_init(&out, b->message.head, CALL_BYTES - at);
	if (!put_call(&out, a->call, b->xid)) {
		a->rc = -EMSGSIZE;
		buf_put(buf);
		return;
	}
	b->message.len = (uint32_t)(out.p - out.base);
	list_push_back(&link->waiting, &b->node);
	calls_run(link);
	while (!b->done && (fiber_suspend_until(a->call->deadline) == 0 || b->done))
		;
	a->rc = b->done ? b->rc : -ETIMEDOUT;
	*a->bytes = b->bytes;
	if (!b->done) {
		list_remove(&b->node);
		link->late += b->sent;
	}
	buf_put(buf);
}

int rpc_callback(struct rpc_link *link, const struct rpc_callback *call, void *results, uint32_t room, uint32_t *bytes)
{
	struct ask a = {.link = link, .call = call, .results = results, .room = room, .bytes = bytes};

	*bytes = 0;
	if (call->args_bytes > RPC_CALLBACK_MAX)
		return -EMSGSIZE;
	if (call->args_bytes % 4 || call->cred.group_count > AUTH_SYS_GIDS_MAX ||
		(call->cred.flavor != RPC_AUTH_NONE && call->cred.flavor != RPC_AUTH_SYS))
		return -EINVAL;
	reactor_call(link->reactor, call_here, &a);
	return a.rc;
}
