/*
 * nlm4: the Network Lock Manager, version 4 (RFC 1813 appendix II): how NFSv3 clients lock ranges of files.
 *
 * Each request exists twice: with a result, or as a _MSG that is answered at once and whose result goes to the client
 * as a call of ours (_RES). So a request is one function from arguments to a status, and answer() brings that home
 * either way. What another program of ours would answer (GRANTED, _RES) is taken without effect.
 *
 * A lock's owner is the client with svid and oh, as it sent them. The way in is the gate that NFSv3 has; whoever may
 * read or write the file may lock it. What only takes back (UNLOCK, CANCEL, UNSHARE, FREE_ALL) needs no more than a
 * handle of ours, so that it also works when a right was taken away meanwhile.
 *
 * During the grace period (grace.h) only locks that a client of before reclaims are given, and afterwards none are
 * reclaimed. The first lock in a file system waits until the client's record there is durable (nlm_host.c).
 *
 * Error policy: nlm4_stats for everything; what cannot be decoded is GARBAGE_ARGS.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nlm_internal.h"

#define SVID_BYTES 4u

/* One request on a file, from its gate to its end. */
struct nlm_call {
	struct rpc_request *req;
	struct exports *exports;
	const struct export *export;
	struct fs_id id;
	struct lock_file_key key;
	struct lock_owner owner;
	uint8_t owner_data[LOCK_OWNER_MAX];
};

/* ------------------------------------------------------------------------------------------------
 * The way in and out
 */

static nlm4_stats status_of(int rc)
{
	switch (rc) {
	case 0:
		return NLM4_GRANTED;
	case -EAGAIN:
		return NLM4_DENIED;
	case -EINPROGRESS:
	case -EALREADY:
		return NLM4_BLOCKED;
	case -ESTALE:
	case -EBADF:
		return NLM4_STALE_FH;
	case -EDEADLK:
		return NLM4_DEADLCK;
	case -EFBIG:
		return NLM4_FBIG;
	case -EROFS:
		return NLM4_ROFS;
	case -EACCES:
	case -EPERM:
	case -EINVAL:
		return NLM4_FAILED;
	default:
		return NLM4_DENIED_NOLOCKS;
	}
}

/* Finds the file and makes the owner; call_leave() follows in any case. SVID NULL: a share has none. */
static int call_enter(struct nlm_call *c, struct rpc_request *req, const struct xdr_opaque *name, const netobj *fh,
	const netobj *oh, const int32_t *svid)
{
	uint32_t svid_bytes = svid ? SVID_BYTES : 0;

	c->req = req;
	c->exports = exports_get();
	if (!c->exports)
		return -ENOLCK;
	int rc = gate_handle(c->exports, fh->data, fh->len, &c->id, &c->export);
	if (rc)
		return rc;
	if (oh->len > LOCK_OWNER_MAX - SVID_BYTES)
		return -ENOLCK;
	if (svid)
		memcpy(c->owner_data, svid, SVID_BYTES);
	if (oh->len)
		memcpy(c->owner_data + svid_bytes, oh->data, oh->len);
	c->owner = (struct lock_owner){LOCK_KIND_NLM, nlm_client(req, name), c->owner_data, svid_bytes + oh->len};
	c->key = lock_file_key(fs_snapshot_fsid(c->export->fsid, c->id.snap), c->id);
	return 0;
}

static void call_leave(struct nlm_call *c)
{
	exports_put(c->exports);
}

/* The client's rule, and whether the caller may do anything with the contents of the file. */
static int call_allowed(struct nlm_call *c)
{
	const struct config_allow *rule;
	struct fs_cred cred;
	struct fs_op op = {.cred = &cred, .owner_override = true};
	struct fs_attr attr;
	uint32_t allowed = 0;

	int rc = gate_caller(c->req, c->export, &rule, &cred);
	if (!rc)
		rc = fs_access(c->export->fs, &op, c->id, FS_MAY_READ | FS_MAY_WRITE, &allowed, &attr);
	if (rc)
		return rc;
	if (attr.type != FS_REG)
		return -EINVAL;
	return allowed || attr.uid == cred.uid ? 0 : -EACCES;
}

static int range_of(const nlm4_lock *lock, bool exclusive, struct lock_range *range)
{
	return lock_range_set(range, lock->l_offset, lock->l_len, !lock->l_len, exclusive) ? -EFBIG : 0;
}

/* Calls with results that are on their way: some fibers must be left for GRANTED. */
#define TELLS_MAX 64u
static _Atomic unsigned tells;

/* The results of a _MSG go to the client as a call of their own; one that cannot be told asks again. */
static void tell_fiber(void *arg)
{
	struct rpc_outgoing *call = arg;

	(void)rpc_call_out(call);
	free(call);
	atomic_fetch_sub(&tells, 1);
	nlm_fiber_end();
}

static struct rpc_outgoing *tell_new(const struct rpc_request *req, uint32_t procedure, struct xdr_out *out)
{
	struct rpc_outgoing *call = calloc(1, sizeof(*call));

	if (!call)
		return NULL;
	call->to = *rpc_peer(req);
	call->from = *rpc_local(req);
	rpc_address_portless(&call->to);
	call->program = NLM_PROG;
	call->version = NLM_V4;
	call->procedure = procedure;
	call->deadline = now_ns() + 5 * NSEC_PER_SEC;
	xdr_out_init(out, call->args, sizeof(call->args));
	return call;
}

static void tell(struct rpc_outgoing *call, bool encoded, const struct xdr_out *out)
{
	call->args_bytes = (uint32_t)(out->p - out->base);
	bool room = atomic_fetch_add(&tells, 1) < TELLS_MAX;
	if (encoded && room && nlm_fiber_start(reactor_self(), tell_fiber, call))
		return;
	atomic_fetch_sub(&tells, 1);
	free(call);
}

/* PROCEDURE 0: as the reply, else by that call. */
static int answer(struct rpc_request *req, uint32_t procedure, const netobj *cookie, nlm4_stats stat)
{
	nlm4_res res = {.cookie = *cookie, .stat = stat};
	struct xdr_out out;

	if (!procedure)
		return xdr_encode_nlm4_res(&req->out, &res) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
	struct rpc_outgoing *call = tell_new(req, procedure, &out);
	if (call)
		tell(call, xdr_encode_nlm4_res(&out, &res), &out);
	return RPC_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------
 * TEST
 */

static void holder_fill(nlm4_holder *holder, const struct lock_conflict *by)
{
	uint32_t svid_bytes = by->kind == LOCK_KIND_NLM && by->owner_len >= SVID_BYTES ? SVID_BYTES : 0;

	memset(holder, 0, sizeof(*holder));
	holder->exclusive = by->range.exclusive;
	memcpy(&holder->svid, by->owner, svid_bytes);
	holder->oh = (netobj){by->owner + svid_bytes, by->owner_len - svid_bytes};
	holder->l_offset = by->range.first;
	holder->l_len = by->range.last == LOCK_TO_END ? 0 : by->range.last - by->range.first + 1;
}

static nlm4_stats test_run(struct rpc_request *req, const nlm4_testargs *args, struct lock_conflict *by)
{
	struct nlm_call c;
	struct lock_range range;
	const nlm4_lock *lock = &args->alock;

	int rc = call_enter(&c, req, &lock->caller_name, &lock->fh, &lock->oh, &lock->svid);
	if (!rc)
		rc = call_allowed(&c);
	if (!rc)
		rc = range_of(lock, args->exclusive, &range);
	nlm4_stats stat = status_of(rc == -EAGAIN ? -ENOLCK : rc);
	if (!rc && grace_active())
		stat = NLM4_DENIED_GRACE_PERIOD;
	else if (!rc)
		stat = status_of(lock_test(lock_server_table(), &c.key, &c.owner, &range, by));
	call_leave(&c);
	return stat;
}

static int test_answer(struct rpc_request *req, uint32_t procedure)
{
	struct lock_conflict by;
	nlm4_testargs args;
	nlm4_testres res = {0};
	struct xdr_out out;

	if (!xdr_decode_nlm4_testargs(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	res.cookie = args.cookie;
	res.test_stat.stat = test_run(req, &args, &by);
	if (res.test_stat.stat == NLM4_DENIED)
		holder_fill(&res.test_stat.holder, &by);
	if (!procedure)
		return xdr_encode_nlm4_testres(&req->out, &res) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
	struct rpc_outgoing *call = tell_new(req, procedure, &out);
	if (call)
		tell(call, xdr_encode_nlm4_testres(&out, &res), &out);
	return RPC_SUCCESS;
}

static int nlm4_test(struct rpc_request *req)
{
	return test_answer(req, 0);
}

static int nlm4_test_msg(struct rpc_request *req)
{
	return test_answer(req, NLMPROC4_TEST_RES);
}

/* ------------------------------------------------------------------------------------------------
 * LOCK
 */

/* With everything checked. -EINPROGRESS: it waits now. */
static int lock_take(struct nlm_call *c, struct nlm_host *host, const nlm4_lockargs *args,
	const struct lock_range *range, bool may_wait)
{
	struct lock_table *table = lock_server_table();

	int rc = lock_set(table, &c->key, &c->owner, range, NULL, NULL);
	if (rc == -EAGAIN && may_wait) {
		struct nlm_block *block = nlm_block_new(host, &c->key, &args->alock, range);
		if (!block)
			return -ENOLCK;
		rc = lock_set(table, &c->key, &c->owner, range, nlm_block_waiter(block), NULL);
		if (rc != -EINPROGRESS)
			nlm_block_free(block);
	}
	if (!rc)
		(void)nlm_block_settle(host, &c->key, &c->owner, range, true);
	return rc;
}

static int lock_checked(struct nlm_call *c, struct nlm_host *host, const nlm4_lockargs *args, bool monitored)
{
	struct lock_range range;

	int rc = range_of(&args->alock, args->exclusive, &range);
	if (rc)
		return rc;
	if (args->reclaim && !nlm_host_may_reclaim(host))
		return -EAGAIN;
	if (monitored) {
		rc = nlm_host_record(host, c->export->fs);
		if (rc)
			return rc == -EAGAIN ? -ENOLCK : rc;
	}
	return lock_take(c, host, args, &range, args->block && !args->reclaim);
}

static nlm4_stats lock_run(struct rpc_request *req, const nlm4_lockargs *args, bool monitored)
{
	struct nlm_call c;
	const nlm4_lock *lock = &args->alock;

	int rc = call_enter(&c, req, &lock->caller_name, &lock->fh, &lock->oh, &lock->svid);
	if (!rc)
		rc = call_allowed(&c);
	if (rc) {
		call_leave(&c);
		return status_of(rc == -EAGAIN ? -ENOLCK : rc);
	}
	nlm4_stats stat = NLM4_DENIED_GRACE_PERIOD;
	if (args->reclaim == grace_active()) {
		struct nlm_host *host = nlm_host_get(req, &lock->caller_name, args->state);
		stat = host ? status_of(lock_checked(&c, host, args, monitored)) : NLM4_DENIED_NOLOCKS;
		nlm_host_put(host);
	}
	call_leave(&c);
	return stat;
}

static int lock_answer(struct rpc_request *req, uint32_t procedure, bool monitored)
{
	nlm4_lockargs args;

	if (!xdr_decode_nlm4_lockargs(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	if (!monitored)
		args.block = false; /* who is not monitored cannot be called either */
	return answer(req, procedure, &args.cookie, lock_run(req, &args, monitored));
}

static int nlm4_lock_(struct rpc_request *req)
{
	return lock_answer(req, 0, true);
}

static int nlm4_lock_msg(struct rpc_request *req)
{
	return lock_answer(req, NLMPROC4_LOCK_RES, true);
}

static int nlm4_nm_lock(struct rpc_request *req)
{
	return lock_answer(req, 0, false);
}

/* ------------------------------------------------------------------------------------------------
 * CANCEL, UNLOCK
 */

static int cancel_checked(struct nlm_call *c, struct nlm_host *host, const struct lock_range *range)
{
	struct lock_waiter *waiter = lock_cancel(lock_server_table(), &c->key, &c->owner, range);

	if (waiter) {
		nlm_block_free_waiter(waiter);
		return 0;
	}
	/* Its turn came already, and the client, which is being told, does not want it any more. */
	if (host && nlm_block_settle(host, &c->key, &c->owner, range, true))
		return lock_unset(lock_server_table(), &c->key, &c->owner, range);
	return -EAGAIN;
}

static int cancel_answer(struct rpc_request *req, uint32_t procedure)
{
	nlm4_cancargs args;
	struct nlm_call c;
	struct lock_range range;

	if (!xdr_decode_nlm4_cancargs(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	int rc = call_enter(&c, req, &args.alock.caller_name, &args.alock.fh, &args.alock.oh, &args.alock.svid);
	if (!rc)
		rc = range_of(&args.alock, args.exclusive, &range);
	if (!rc) {
		struct nlm_host *host = nlm_host_find(req, &args.alock.caller_name);
		rc = cancel_checked(&c, host, &range);
		nlm_host_put(host);
	}
	call_leave(&c);
	return answer(req, procedure, &args.cookie, status_of(rc));
}

static int nlm4_cancel(struct rpc_request *req)
{
	return cancel_answer(req, 0);
}

static int nlm4_cancel_msg(struct rpc_request *req)
{
	return cancel_answer(req, NLMPROC4_CANCEL_RES);
}

static int unlock_answer(struct rpc_request *req, uint32_t procedure)
{
	nlm4_unlockargs args;
	struct nlm_call c;
	struct lock_range range;

	if (!xdr_decode_nlm4_unlockargs(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	int rc = call_enter(&c, req, &args.alock.caller_name, &args.alock.fh, &args.alock.oh, &args.alock.svid);
	if (!rc)
		rc = range_of(&args.alock, true, &range);
	if (!rc) {
		struct nlm_host *host = nlm_host_find(req, &args.alock.caller_name);
		if (host)
			(void)nlm_block_settle(host, &c.key, &c.owner, &range, false);
		nlm_host_put(host);
		rc = lock_unset(lock_server_table(), &c.key, &c.owner, &range);
	}
	call_leave(&c);
	return answer(req, procedure, &args.cookie, status_of(rc));
}

static int nlm4_unlock(struct rpc_request *req)
{
	return unlock_answer(req, 0);
}

static int nlm4_unlock_msg(struct rpc_request *req)
{
	return unlock_answer(req, NLMPROC4_UNLOCK_RES);
}

/* ------------------------------------------------------------------------------------------------
 * SHARE, UNSHARE, FREE_ALL
 */

static nlm4_stats share_run(struct nlm_call *c, const nlm4_shareargs *args)
{
	/* fsh4_mode and fsh4_access have the bits of LOCK_SHARE_* */
	uint32_t access = (uint32_t)args->share.access, deny = (uint32_t)args->share.mode;

	int rc = call_allowed(c);
	if (rc)
		return status_of(rc == -EAGAIN ? -ENOLCK : rc);
	if (args->reclaim != grace_active())
		return NLM4_DENIED_GRACE_PERIOD;
	struct nlm_host *host = nlm_host_get(c->req, &args->share.caller_name, 0);
	if (!host)
		return NLM4_DENIED_NOLOCKS;
	if (args->reclaim && !nlm_host_may_reclaim(host))
		rc = -EAGAIN;
	else if ((rc = nlm_host_record(host, c->export->fs)))
		rc = rc == -EAGAIN ? -ENOLCK : rc;
	else
		rc = lock_share_set(lock_server_table(), &c->key, &c->owner, access, deny, NULL);
	nlm_host_put(host);
	return status_of(rc);
}

static int share_answer(struct rpc_request *req, bool unshare)
{
	nlm4_shareargs args;
	struct nlm_call c;

	if (!xdr_decode_nlm4_shareargs(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	int rc = call_enter(&c, req, &args.share.caller_name, &args.share.fh, &args.share.oh, NULL);
	nlm4_shareres res = {.cookie = args.cookie, .stat = status_of(rc)};
	if (!rc && unshare)
		lock_share_unset(lock_server_table(), &c.key, &c.owner);
	else if (!rc)
		res.stat = share_run(&c, &args);
	call_leave(&c);
	return xdr_encode_nlm4_shareres(&req->out, &res) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static int nlm4_share_(struct rpc_request *req)
{
	return share_answer(req, false);
}

static int nlm4_unshare(struct rpc_request *req)
{
	return share_answer(req, true);
}

static int nlm4_free_all(struct rpc_request *req)
{
	nlm4_notify args;

	if (!xdr_decode_nlm4_notify(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	lock_release_client(lock_server_table(), LOCK_KIND_NLM, nlm_client(req, &args.name));
	return RPC_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------
 * What is no business of a server
 */

static int nlm4_null(struct rpc_request *req)
{
	(void)req;
	return RPC_SUCCESS;
}

/* We wait for no lock. */
static int nlm4_granted(struct rpc_request *req)
{
	nlm4_testargs args;

	if (!xdr_decode_nlm4_testargs(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	return answer(req, 0, &args.cookie, NLM4_DENIED);
}

static int nlm4_granted_msg(struct rpc_request *req)
{
	nlm4_testargs args;

	if (!xdr_decode_nlm4_testargs(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	return answer(req, NLMPROC4_GRANTED_RES, &args.cookie, NLM4_DENIED);
}

#define RES_BYTES XDR_MAX_nlm4_res

static const struct rpc_procedure nlm4_procedures[] = {
	[NLMPROC4_NULL] = {"NULL", nlm4_null, 0, 0, NULL},
	[NLMPROC4_TEST] = {"TEST", nlm4_test, 0, XDR_MAX_nlm4_testres, NULL},
	[NLMPROC4_LOCK] = {"LOCK", nlm4_lock_, RPC_PROC_CACHED, RES_BYTES, NULL},
	[NLMPROC4_CANCEL] = {"CANCEL", nlm4_cancel, RPC_PROC_CACHED, RES_BYTES, NULL},
	[NLMPROC4_UNLOCK] = {"UNLOCK", nlm4_unlock, RPC_PROC_CACHED, RES_BYTES, NULL},
	[NLMPROC4_GRANTED] = {"GRANTED", nlm4_granted, 0, RES_BYTES, NULL},
	[NLMPROC4_TEST_MSG] = {"TEST_MSG", nlm4_test_msg, 0, 0, NULL},
	[NLMPROC4_LOCK_MSG] = {"LOCK_MSG", nlm4_lock_msg, 0, 0, NULL},
	[NLMPROC4_CANCEL_MSG] = {"CANCEL_MSG", nlm4_cancel_msg, 0, 0, NULL},
	[NLMPROC4_UNLOCK_MSG] = {"UNLOCK_MSG", nlm4_unlock_msg, 0, 0, NULL},
	[NLMPROC4_GRANTED_MSG] = {"GRANTED_MSG", nlm4_granted_msg, 0, 0, NULL},
	[NLMPROC4_TEST_RES] = {"TEST_RES", nlm4_null, 0, 0, NULL},
	[NLMPROC4_LOCK_RES] = {"LOCK_RES", nlm4_null, 0, 0, NULL},
	[NLMPROC4_CANCEL_RES] = {"CANCEL_RES", nlm4_null, 0, 0, NULL},
	[NLMPROC4_UNLOCK_RES] = {"UNLOCK_RES", nlm4_null, 0, 0, NULL},
	[NLMPROC4_GRANTED_RES] = {"GRANTED_RES", nlm4_null, 0, 0, NULL},
	[NLMPROC4_SHARE] = {"SHARE", nlm4_share_, RPC_PROC_CACHED, XDR_MAX_nlm4_shareres, NULL},
	[NLMPROC4_UNSHARE] = {"UNSHARE", nlm4_unshare, RPC_PROC_CACHED, XDR_MAX_nlm4_shareres, NULL},
	[NLMPROC4_NM_LOCK] = {"NM_LOCK", nlm4_nm_lock, RPC_PROC_CACHED, RES_BYTES, NULL},
	[NLMPROC4_FREE_ALL] = {"FREE_ALL", nlm4_free_all, 0, 0, NULL},
};

const struct rpc_program nlm4_program = {
	.program = NLM_PROG,
	.version = NLM_V4,
	.name = "nlm4",
	.procedure = nlm4_procedures,
	.procedures = sizeof(nlm4_procedures) / sizeof(nlm4_procedures[0]),
};
