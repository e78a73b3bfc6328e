/*
 * nfs4_callback: calls from the server to a client (RFC 8881 2.10.3, chapter 20), on connections that the client has
 * given to a session's backchannel.
 *
 * A call is a CB_COMPOUND of CB_SEQUENCE and one operation. It takes a slot of one of the client's sessions and goes
 * out on one of its connections; when that is lost, the same call, with the same sequence number, goes out on the next.
 * A slot whose call was never answered cannot be used again, since nobody knows whether the client has seen its number;
 * the client is told (SEQ4_STATUS_BACKCHANNEL_FAULT) and makes a new session.
 *
 * Locks: slots and connections are under the tables' mutex (nfs4_session.h), which is not held while a call is out.
 * Waits, in the fiber of whoever calls.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_session.h"

#define POLL_NS (2 * NSEC_PER_MSEC)
#define DELAY_NS (20 * NSEC_PER_MSEC)
#define TRY_NS (5 * NSEC_PER_SEC) /* how long one connection may take */

static struct nfs4_tables *const t = &nfs4_tables;

/* ------------------------------------------------------------------------------------------------
 * Connections
 */

bool nfs4_back_bind(struct nfs4_session *session, struct rpc_link *link)
{
	list_foreach (n, &session->backs)
		if (container_of(n, struct nfs4_back, in_session)->link == link)
			return true;
	struct nfs4_back *back = calloc(1, sizeof(*back));
	if (!back)
		return false;
	back->link = rpc_link_ref(link);
	back->session = session;
	list_push_front(&session->backs, &back->in_session); /* the newest is the most likely to live */
	htable_insert(&t->backs, &back->by_link, hash_u64(rpc_link_id(link)));
	atomic_fetch_add(&session->client->backs, 1);
	atomic_fetch_add(&session->back_count, 1);
	if (rpc_link_closed(link)) {
		nfs4_back_unlink(back);
		return false;
	}
	return true;
}

void nfs4_back_unlink(struct nfs4_back *back)
{
	atomic_fetch_sub(&back->session->client->backs, 1);
	atomic_fetch_sub(&back->session->back_count, 1);
	htable_remove(&t->backs, &back->by_link);
	list_remove(&back->in_session);
	rpc_link_put(back->link);
	free(back);
}

/* Tables locked: the connection is in no session's backchannel any more. */
static void link_drop(struct rpc_link *link)
{
	for (;;) {
		struct nfs4_back *found = NULL;
		htable_foreach_hash (n, &t->backs, hash_u64(rpc_link_id(link))) {
			struct nfs4_back *back = container_of(n, struct nfs4_back, by_link);
			if (back->link == link) {
				found = back;
				break;
			}
		}
		if (!found)
			return;
		nfs4_back_unlink(found);
	}
}

void nfs4_connection_closed(struct rpc_link *link)
{
	pthread_mutex_lock(&t->lock);
	link_drop(link);
	pthread_mutex_unlock(&t->lock);
}

bool nfs4_client_can_callback(struct nfs4_client *client)
{
	return atomic_load_explicit(&client->backs, memory_order_relaxed) != 0;
}

uint32_t nfs4_back_status(const struct nfs4_session *session)
{
	uint32_t flags = 0;

	if (atomic_load_explicit(&session->cb_fault, memory_order_relaxed))
		flags |= SEQ4_STATUS_BACKCHANNEL_FAULT;
	if (!atomic_load_explicit(&session->client->backs, memory_order_relaxed))
		flags |= SEQ4_STATUS_CB_PATH_DOWN;
	if (atomic_load_explicit(&session->cb_wanted, memory_order_relaxed) &&
		!atomic_load_explicit(&session->back_count, memory_order_relaxed))
		flags |= SEQ4_STATUS_CB_PATH_DOWN_SESSION;
	return flags;
}

/* ------------------------------------------------------------------------------------------------
 * One call
 */

struct cb_call {
	struct nfs4_session *session; /* referenced */
	uint32_t slot, sequence;
	struct rpc_callback rpc;
	char machine[sizeof(((struct nfs4_session *)0)->cb_machine)];
	uint8_t args[RPC_CALLBACK_MAX];
};

/* Tables locked: a free slot of a session that has a connection. -ENOTCONN: there is no such session; -EAGAIN. */
static int slot_take(struct nfs4_client *client, struct cb_call *call)
{
	int rc = -ENOTCONN;

	list_foreach (n, &client->sessions) {
		struct nfs4_session *session = container_of(n, struct nfs4_session, in_client);
		if (list_empty(&session->backs) || session->cb_fault)
			continue;
		rc = -EAGAIN;
		for (uint32_t i = 0; i < session->cb_slots; i++)
			if (!session->cb_slot[i].busy) {
				session->cb_slot[i].busy = true;
				atomic_fetch_add_explicit(&session->refs, 1, memory_order_relaxed);
				call->session = session;
				call->slot = i;
				call->sequence = session->cb_slot[i].sequence + 1;
				return 0;
			}
	}
	return rc;
}

/* ANSWERED: the client has seen the number; UNKNOWN: nobody knows; else it has not. */
enum slot_end { SLOT_UNUSED, SLOT_ANSWERED, SLOT_UNKNOWN };
static void slot_give(struct cb_call *call, enum slot_end end)
{
	pthread_mutex_lock(&t->lock);
	if (end == SLOT_UNKNOWN) {
		call->session->cb_fault = true;
	} else {
		call->session->cb_slot[call->slot].busy = false;
		if (end == SLOT_ANSWERED)
			call->session->cb_slot[call->slot].sequence = call->sequence;
	}
	pthread_mutex_unlock(&t->lock);
	nfs4_session_put(call->session);
}

static bool call_encode(struct cb_call *call, uint32_t opnum, const void *args, uint32_t bytes)
{
	struct xdr_out out;
	struct nfs4_session *session = call->session;

	xdr_out_init(&out, call->args, sizeof(call->args));
	bool ok = xdr_put_opaque(&out, "", 0) && xdr_put_u32(&out, session->minor) && xdr_put_u32(&out, 0) &&
		  xdr_put_u32(&out, 2) && xdr_put_u32(&out, OP_CB_SEQUENCE) &&
		  xdr_put_fixed(&out, session->id, NFS4_SESSIONID_SIZE) && xdr_put_u32(&out, call->sequence) &&
		  xdr_put_u32(&out, call->slot) && xdr_put_u32(&out, session->cb_slots - 1) &&
		  xdr_put_bool(&out, false) && xdr_put_u32(&out, 0) && xdr_put_u32(&out, opnum) &&
		  xdr_put_fixed(&out, args, bytes);
	call->rpc.args = call->args;
	call->rpc.args_bytes = (uint32_t)(out.p - out.base);
	call->rpc.version = NFS_CB;
	call->rpc.procedure = CB_COMPOUND;
	return ok && call->rpc.args_bytes <= session->back.ca_maxrequestsize;
}

/* The statuses of CB_SEQUENCE and of the operation, as far as it came. False: this is no answer. */
static bool answer_decode(const uint8_t *data, uint32_t bytes, nfsstat4 *sequence, struct nfs4_cb_result *result)
{
	uint8_t memory[256];
	struct xdr_pool pool = {memory, 0, sizeof(memory)};
	struct xdr_in in;
	CB_COMPOUND4res_head head;
	CB_SEQUENCE4resok resok;
	uint32_t op, word;

	xdr_in_init(&in, data, bytes, &pool);
	if (!xdr_decode_CB_COMPOUND4res_head(&in, &head))
		return false;
	if (!head.resarray_count) { /* it did not even begin */
		*sequence = head.status;
		return head.status != NFS4_OK;
	}
	if (!xdr_get_u32(&in, &op) || op != OP_CB_SEQUENCE || !xdr_get_u32(&in, &word))
		return false;
	*sequence = (nfsstat4)word;
	result->status = head.status;
	result->bytes = 0;
	if (*sequence)
		return true;
	if (!xdr_decode_CB_SEQUENCE4resok(&in, &resok))
		return false;
	if (head.resarray_count < 2)
		return true;
	if (!xdr_get_u32(&in, &op) || !xdr_get_u32(&in, &word))
		return false;
	result->status = (nfsstat4)word;
	result->bytes = (uint32_t)(in.end - in.p);
	if (result->bytes > sizeof(result->data))
		result->bytes = sizeof(result->data);
	memcpy(result->data, in.p, result->bytes);
	return true;
}

/* The connection to use: the session's first. NULL: it has none any more. */
static struct rpc_link *link_take(struct cb_call *call)
{
	struct rpc_link *link = NULL;

	pthread_mutex_lock(&t->lock);
	struct list_node *n = list_first(&call->session->backs);
	if (n) {
		link = rpc_link_ref(container_of(n, struct nfs4_back, in_session)->link);
		call->rpc.program = call->session->cb_program;
		call->rpc.cred = call->session->cb_cred;
		/* a copy, since BACKCHANNEL_CTL changes it */
		memcpy(call->machine, call->session->cb_machine, sizeof(call->machine));
		call->rpc.machine = call->machine;
	}
	pthread_mutex_unlock(&t->lock);
	return link;
}

/* Over one connection after the other. 0: answered. */
static int call_send(
	struct cb_call *call, uint64_t deadline, nfsstat4 *sequence, struct nfs4_cb_result *result, bool *seen)
{
	uint8_t answer[RPC_CALLBACK_MAX];
	struct rpc_link *link;

	while ((link = link_take(call))) {
		uint32_t bytes = 0;
		uint64_t now = now_ns(), one = now + TRY_NS;
		call->rpc.deadline = one < deadline ? one : deadline;
		int rc = rpc_callback(link, &call->rpc, answer, sizeof(answer), &bytes);
		if (!rc && !answer_decode(answer, bytes, sequence, result))
			rc = -EPROTO;
		if (rc == -ENOTCONN || rc == -ETIMEDOUT)
			*seen = true; /* perhaps */
		if (rc) {
			pthread_mutex_lock(&t->lock);
			link_drop(link);
			pthread_mutex_unlock(&t->lock);
		}
		rpc_link_put(link);
		if (!rc)
			return 0;
		if (now_ns() >= deadline)
			return -ETIMEDOUT;
	}
	return -ENOTCONN;
}

static int callback(struct nfs4_client *client, uint32_t opnum, const void *args, uint32_t bytes, uint64_t deadline,
	struct nfs4_cb_result *result)
{
	for (;;) {
		struct cb_call call = {.session = NULL};
		nfsstat4 sequence = NFS4_OK;
		bool seen = false;

		pthread_mutex_lock(&t->lock);
		int rc = client->gone ? -ENOTCONN : slot_take(client, &call);
		pthread_mutex_unlock(&t->lock);
		if (rc == -ENOTCONN)
			return rc;
		if (rc) {
			if (now_ns() >= deadline)
				return -ETIMEDOUT;
			fiber_sleep(POLL_NS);
			continue;
		}
		if (!call_encode(&call, opnum, args, bytes)) {
			slot_give(&call, SLOT_UNUSED);
			return -EMSGSIZE;
		}
		rc = call_send(&call, deadline, &sequence, result, &seen);
		if (rc) {
			slot_give(&call, seen ? SLOT_UNKNOWN : SLOT_UNUSED);
			if (rc == -ENOTCONN && now_ns() < deadline)
				continue; /* another session */
			return rc;
		}
		if (!sequence) {
			slot_give(&call, SLOT_ANSWERED);
			return 0;
		}
		if (sequence != NFS4ERR_DELAY) {
			slot_give(&call, SLOT_UNKNOWN);
			continue;
		}
		slot_give(&call, SLOT_UNUSED);
		if (now_ns() >= deadline)
			return -ETIMEDOUT;
		fiber_sleep(DELAY_NS);
	}
}

static _Atomic unsigned calling;

int nfs4_client_callback(struct nfs4_client *client, uint32_t opnum, const void *args, uint32_t bytes,
	uint64_t deadline, struct nfs4_cb_result *result)
{
	atomic_fetch_add(&calling, 1);
	int rc = callback(client, opnum, args, bytes, deadline, result);
	atomic_fetch_sub(&calling, 1);
	return rc;
}

void nfs4_callbacks_wait(void)
{
	while (atomic_load(&calling))
		fiber_sleep(NSEC_PER_MSEC);
}
