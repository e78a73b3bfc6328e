/*
 * nfs4_lock: LOCK, LOCKT and LOCKU (RFC 8881 18.10 to 18.12).
 *
 * A lock-owner's locks on a file go by one lock state, made with the first of them from an open of the same client. The
 * ranges are in the table that NLM uses too (locks.h).
 *
 * A client that would wait (READW, WRITEW) is answered NFS4ERR_DENIED like any other, asks again from time to time, and
 * is told by CB_NOTIFY_LOCK when it is worth it. What it waits for stands in the lock table's queue, so that those that
 * wait are told in their order; the callback is a hint alone: the lock is nobody's until somebody asks.
 *
 * Whoever is in the way but has let its lease run out gives way.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_state.h"

/* ------------------------------------------------------------------------------------------------
 * Telling those that wait
 */

struct notify {
	struct lock_waiter waiter;
	struct mail mail;
	struct reactor *reactor;
	struct nfs4_client *client; /* referenced */
	uint8_t fh[HANDLE_BYTES];
	uint32_t owner_len;
	uint8_t owner[];
};

static void notify_fiber(void *arg)
{
	struct notify *notify = arg;
	uint8_t args[HANDLE_BYTES + NFS4_OPAQUE_LIMIT + 64];
	CB_NOTIFY_LOCK4args call = {
		.cnla_fh = {.data = notify->fh, .len = HANDLE_BYTES},
		.cnla_lock_owner = {.clientid = nfs4_client_id(notify->client),
			.owner = {.data = notify->owner, .len = notify->owner_len}},
	};
	struct xdr_out out;
	struct nfs4_cb_result result;

	xdr_out_init(&out, args, sizeof(args));
	if (xdr_encode_CB_NOTIFY_LOCK4args(&out, &call))
		nfs4_client_callback(notify->client, OP_CB_NOTIFY_LOCK, args, (uint32_t)(out.p - args),
			now_ns() + 5 * NSEC_PER_SEC, &result);
	nfs4_client_put(notify->client);
	free(notify);
}

/* On any thread, perhaps with a shard's mutex held. */
static void notify_done(struct lock_waiter *waiter, int result)
{
	struct notify *notify = container_of(waiter, struct notify, waiter);

	if (result == 0) {
		notify->mail = (struct mail){.fn = notify_fiber, .arg = notify, .spawn = true};
		reactor_mail(notify->reactor, &notify->mail);
		return;
	}
	nfs4_client_put(notify->client);
	free(notify);
}

static struct notify *notify_new(struct nfs4_compound *c, const struct lock_owner *owner)
{
	struct notify *notify = calloc(1, sizeof(*notify) + owner->len);

	if (!notify)
		return NULL;
	notify->waiter.done = notify_done;
	notify->waiter.notify_only = true;
	notify->reactor = reactor_self();
	notify->client = nfs4_client_hold(c->client);
	nfs4_fh_encode(&c->current, notify->fh);
	notify->owner_len = owner->len;
	memcpy(notify->owner, owner->data, owner->len);
	return notify;
}

/* ------------------------------------------------------------------------------------------------
 * LOCK
 */

static bool type_exclusive(nfs_lock_type4 type)
{
	return type == WRITE_LT || type == WRITEW_LT;
}

static bool type_waits(nfs_lock_type4 type)
{
	return type == READW_LT || type == WRITEW_LT;
}

static nfsstat4 range_of(struct lock_range *range, nfs_lock_type4 type, uint64_t offset, uint64_t length)
{
	if (type < READ_LT || type > WRITEW_LT)
		return NFS4ERR_INVAL;
	return lock_range_set(range, offset, length, length == UINT64_MAX, type_exclusive(type)) ? NFS4ERR_INVAL
												 : NFS4_OK;
}

/* NFS4ERR_DENIED is the one error that has a result: who is in the way. */
static nfsstat4 denied(struct nfs4_compound *c, const struct lock_conflict *conflict)
{
	LOCK4denied res = {
		.offset = conflict->range.first,
		.length = conflict->range.last == LOCK_TO_END ? UINT64_MAX
							      : conflict->range.last - conflict->range.first + 1,
		.locktype = conflict->range.exclusive ? WRITE_LT : READ_LT,
		.owner = {.clientid = conflict->kind == LOCK_KIND_NFS4 ? conflict->client : 0,
			.owner = {.data = conflict->owner, .len = conflict->owner_len}},
	};

	if (!xdr_encode_LOCK4denied(&c->req->out, &res))
		return nfs4_fits(c, false);
	c->keep_result = true;
	return NFS4ERR_DENIED;
}

struct lock_call {
	struct nfs4_compound *c;
	LOCK4args args;
	struct lock_range range;
	struct lock_conflict conflict;
	struct notify *notify; /* NULL: not asked for, or in the table's queue */
	bool can_callback;
	const struct nfs4_state *open; /* that the lock comes from; locked */
	uint64_t holder;	       /* client that is in the way; 0: none */
	stateid4 stateid;
};

/* Locked on success: the lock state, made when it is the owner's first lock on the file. *MADE tells. */
static nfsstat4 lock_state(struct lock_call *l, struct nfs4_state **found, bool *made)
{
	struct nfs4_compound *c = l->c;
	struct nfs4_state *state, *open;
	nfsstat4 status;

	*made = false;
	if (!l->args.locker.new_lock_owner) {
		status = nfs4_state_find(c, &l->args.locker.lock_owner.lock_stateid, &state);
		if (status)
			return status;
		if (state->kind != NFS4_STATE_LOCK || !nfs4_file_is_current(state->file, c)) {
			nfs4_shard_unlock(state->file->shard);
			return NFS4ERR_BAD_STATEID;
		}
		l->open = state->lock.open;
		*found = state;
		return NFS4_OK;
	}
	const open_to_lock_owner4 *from = &l->args.locker.open_owner;
	status = nfs4_state_find(c, &from->open_stateid, &open);
	if (status)
		return status;
	if (open->kind != NFS4_STATE_OPEN || !nfs4_file_is_current(open->file, c)) {
		nfs4_shard_unlock(open->file->shard);
		return NFS4ERR_BAD_STATEID;
	}
	state = nfs4_state_by_owner(open->file, c->client, NFS4_STATE_LOCK, &from->lock_owner.owner);
	if (!state) {
		state = nfs4_state_new(open->file->shard, c->current.export, c->current.id, c->client, NFS4_STATE_LOCK,
			&from->lock_owner.owner);
		if (!state) {
			nfs4_shard_unlock(open->file->shard);
			return NFS4ERR_DELAY;
		}
		state->seqid = 0; /* its first lock makes it 1 */
		state->lock.open = open;
		list_push_back(&open->open.locks, &state->lock.in_open);
		*made = true;
	}
	l->open = open;
	*found = state;
	return NFS4_OK;
}

static nfsstat4 lock_mode(const struct nfs4_state *open, bool exclusive)
{
	uint32_t need = exclusive ? OPEN4_SHARE_ACCESS_WRITE : OPEN4_SHARE_ACCESS_READ;

	return open->open.access & need ? NFS4_OK : NFS4ERR_OPENMODE;
}

/* Locked: takes the range, or queues what is to be told later. */
static nfsstat4 lock_take(struct lock_call *l, struct nfs4_state *state)
{
	struct lock_owner owner = nfs4_lock_owner(state);
	struct lock_waiter *waiter = l->notify ? &l->notify->waiter : NULL;
	int rc;

	if (type_waits(l->args.locktype) && !waiter && l->can_callback) {
		l->notify = notify_new(l->c, &owner);
		waiter = l->notify ? &l->notify->waiter : NULL;
	}
	rc = lock_set(lock_server_table(), &state->file->key, &owner, &l->range, waiter, &l->conflict);
	switch (rc) {
	case 0:
		nfs4_state_bump(state);
		nfs4_stateid_put(state, &l->stateid);
		return NFS4_OK;
	case -EINPROGRESS:
		l->notify = NULL; /* the table's */
				  /* fall through */
	case -EALREADY:
	case -EAGAIN:
		l->holder = l->conflict.kind == LOCK_KIND_NFS4 ? l->conflict.client : 0;
		return NFS4ERR_DENIED;
	case -ENOLCK:
		return NFS4ERR_DELAY;
	default:
		return NFS4ERR_INVAL;
	}
}

static nfsstat4 lock_once(struct lock_call *l)
{
	struct nfs4_state *state;
	struct list dropped;
	bool made;
	nfsstat4 status = lock_state(l, &state, &made);

	if (status)
		return status;
	struct nfs4_state_shard *shard = state->file->shard;

	list_init(&dropped);
	status = lock_mode(l->open, l->range.exclusive);
	if (!status)
		status = lock_take(l, state);
	if (status && made) {
		/* no lock, no state; but a waiting request of this owner stays in the queue */
		bool waits = status == NFS4ERR_DENIED && !l->notify && type_waits(l->args.locktype);

		if (waits)
			nfs4_state_forget(state, &dropped);
		else
			nfs4_state_unlink(state, &dropped);
	}
	nfs4_shard_unlock(shard);
	nfs4_state_drop(&dropped);
	return status;
}

nfsstat4 nfs4_op_lock(struct nfs4_compound *c)
{
	struct lock_call l = {.c = c};
	nfsstat4 status;

	if (!xdr_decode_LOCK4args(&c->req->in, &l.args))
		return NFS4ERR_BADXDR;
	status = range_of(&l.range, l.args.locktype, l.args.offset, l.args.length);
	if (!status)
		status = l.args.reclaim ? nfs4_grace_reclaim(c->client) : nfs4_grace_new(c->client);
	if (status)
		return status;
	l.can_callback = nfs4_client_can_callback(c->client);
	for (unsigned round = 0; round < 8; round++) {
		l.holder = 0;
		status = lock_once(&l);
		if (status != NFS4ERR_DENIED || !nfs4_expel_absent(l.holder))
			break;
	}
	if (l.notify) {
		nfs4_client_put(l.notify->client);
		free(l.notify);
	}
	if (status == NFS4ERR_DENIED)
		return denied(c, &l.conflict);
	if (status)
		return status;
	nfs4_current_stateid_set(c, &l.stateid);
	return nfs4_fits(c, xdr_encode_stateid4(&c->req->out, &l.stateid));
}

/* ------------------------------------------------------------------------------------------------
 * LOCKT and LOCKU
 */

static nfsstat4 regular(struct nfs4_compound *c)
{
	struct fs_attr attr;
	nfsstat4 status;

	if (c->current.kind == NFS4_FH_PSEUDO)
		return NFS4ERR_ISDIR;
	status = nfs4_fh_attr(c, &attr);
	if (status)
		return status;
	return attr.type == FS_REG ? NFS4_OK : attr.type == FS_DIR ? NFS4ERR_ISDIR : NFS4ERR_WRONG_TYPE;
}

nfsstat4 nfs4_op_lockt(struct nfs4_compound *c)
{
	LOCKT4args args;
	struct lock_range range;
	struct lock_conflict conflict;
	nfsstat4 status;
	int rc = 0;

	if (!xdr_decode_LOCKT4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	status = range_of(&range, args.locktype, args.offset, args.length);
	if (!status)
		status = nfs4_grace_new(c->client);
	if (!status)
		status = regular(c);
	if (status)
		return status;
	struct lock_file_key key = lock_file_key(c->current.export->fsid, c->current.id);
	struct lock_owner owner = {.kind = LOCK_KIND_NFS4,
		.client = nfs4_client_id(c->client),
		.data = args.owner.owner.data,
		.len = args.owner.owner.len};

	for (unsigned round = 0; round < 8; round++) {
		rc = lock_test(lock_server_table(), &key, &owner, &range, &conflict);
		if (rc != -EAGAIN || conflict.kind != LOCK_KIND_NFS4 || !nfs4_expel_absent(conflict.client))
			break;
	}
	return rc == -EAGAIN ? denied(c, &conflict) : nfs4_status(rc);
}

nfsstat4 nfs4_op_locku(struct nfs4_compound *c)
{
	LOCKU4args args;
	struct lock_range range;
	struct nfs4_state *state;
	stateid4 stateid;
	nfsstat4 status;

	if (!xdr_decode_LOCKU4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	status = range_of(&range, args.locktype, args.offset, args.length);
	if (!status)
		status = nfs4_state_find(c, &args.lock_stateid, &state);
	if (status)
		return status;
	if (state->kind != NFS4_STATE_LOCK || !nfs4_file_is_current(state->file, c)) {
		status = NFS4ERR_BAD_STATEID;
	} else {
		struct lock_owner owner = nfs4_lock_owner(state);
		struct lock_waiter *waiter = lock_cancel(lock_server_table(), &state->file->key, &owner, &range);

		/* a client that unlocks what it waited for waits no more */
		if (waiter)
			waiter->done(waiter, -ECANCELED);
		status = lock_unset(lock_server_table(), &state->file->key, &owner, &range) ? NFS4ERR_DELAY : NFS4_OK;
		if (!status)
			nfs4_state_bump(state);
		nfs4_stateid_put(state, &stateid);
	}
	nfs4_shard_unlock(state->file->shard);
	if (status)
		return status;
	nfs4_current_stateid_set(c, &stateid);
	return nfs4_fits(c, xdr_encode_stateid4(&c->req->out, &stateid));
}
