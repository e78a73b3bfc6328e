/*
 * nfs4_open: OPEN, OPEN_DOWNGRADE and CLOSE (RFC 8881 18.16, 18.18, 18.2).
 *
 * An OPEN goes through these steps, each of which may end it:
 *
 *   arguments    which access, which claim, is it time (grace)
 *   the file     by name, created or found, or the current one; nothing of it is changed before the last step
 *   permission   mode and owner; decided once, and then good for as long as the file is open
 *   delegations  of other clients that do not go with this access are recalled
 *   the state    share reservation, then a new stateid or one more of the same owner's
 *   the size     an existing file that is to be emptied is emptied now, when the share reservation is ours
 *
 * A create is done GUARDED inside, so that we know who made the file: what was made by this very call may be opened
 * whatever its mode says. EXCLUSIVE4 and EXCLUSIVE4_1 leave their verifier in the inode, so that a repeated one finds
 * it.
 *
 * Errors: what the arguments or the state forbid is answered with the status that RFC 8881 15.1 gives to it; what fs/
 * returns goes through the one table of errors.
 */
#include <errno.h>

#include "server/nfs4_state.h"

#define ACCESS_BITS OPEN4_SHARE_ACCESS_BOTH
#define KNOWN_BITS                                                                                                     \
	(0u | ACCESS_BITS | OPEN4_SHARE_ACCESS_WANT_DELEG_MASK |                                                       \
		OPEN4_SHARE_ACCESS_WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL |                                                \
		OPEN4_SHARE_ACCESS_WANT_PUSH_DELEG_WHEN_UNCONTENDED)

struct open_call {
	struct nfs4_compound *c;
	OPEN4args args;
	uint32_t access, deny, want;
	struct fs_attr attr;
	struct fs_wcc dir_wcc;	    /* of a claim by name */
	struct fs_setattr set;	    /* of a create */
	struct nfs4_bits set_attrs; /* what of it was asked for, then what was done */
	bool made, reclaim, can_callback;
	OPEN4resok res;
};

/* ------------------------------------------------------------------------------------------------
 * Arguments
 */

static nfsstat4 open_args(struct open_call *o)
{
	open_claim_type4 claim = o->args.claim.claim;
	bool create = o->args.openhow.opentype == OPEN4_CREATE;

	o->access = o->args.share_access & ACCESS_BITS;
	o->want = o->args.share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK;
	o->deny = o->args.share_deny;
	if (!o->access || (o->args.share_access & ~KNOWN_BITS) || o->deny > OPEN4_SHARE_DENY_BOTH ||
		o->want > OPEN4_SHARE_ACCESS_WANT_CANCEL)
		return NFS4ERR_INVAL;
	if (create && claim != CLAIM_NULL)
		return NFS4ERR_INVAL;
	switch (claim) {
	case CLAIM_PREVIOUS:
		o->reclaim = true;
		return nfs4_grace_reclaim(o->c->client);
	case CLAIM_DELEGATE_PREV:
	case CLAIM_DELEG_PREV_FH:
		return NFS4ERR_NOTSUPP;
	default:
		return nfs4_grace_new(o->c->client);
	}
}

static nfsstat4 open_create_attrs(struct open_call *o)
{
	const createhow4 *how = &o->args.openhow.how;

	switch (how->mode) {
	case UNCHECKED4:
	case GUARDED4:
		return nfs4_get_setattr(o->c, &how->createattrs, false, &o->set, &o->set_attrs);
	case EXCLUSIVE4_1:
		return nfs4_get_setattr(o->c, &how->ch_createboth.cva_attrs, true, &o->set, &o->set_attrs);
	case EXCLUSIVE4:
		return NFS4_OK;
	}
	return NFS4ERR_INVAL;
}

/* ------------------------------------------------------------------------------------------------
 * The file
 */

static int create_file(struct open_call *o, const component4 *name)
{
	const createhow4 *how = &o->args.openhow.how;
	const struct nfs4_fh *dir = &o->c->current;
	enum fs_create_mode mode = FS_CREATE_GUARDED;
	uint64_t verifier = 0;
	int rc;

	if (how->mode == EXCLUSIVE4 || how->mode == EXCLUSIVE4_1) {
		mode = FS_CREATE_EXCLUSIVE;
		memcpy(&verifier, how->mode == EXCLUSIVE4 ? how->createverf : how->ch_createboth.cva_verf,
			sizeof(verifier));
	}
	rc = fs_create_file(dir->fs, &o->c->op, dir->id, (const char *)name->data, name->len, mode, &o->set, verifier,
		&o->attr, &o->dir_wcc);
	o->made = rc == 0;
	return rc;
}

/* CLAIM_NULL and CLAIM_DELEGATE_CUR: NAME in the current directory. */
static nfsstat4 open_by_name(struct open_call *o, const component4 *name)
{
	const struct nfs4_fh *dir = &o->c->current;
	bool create = o->args.openhow.opentype == OPEN4_CREATE;
	bool unchecked = create && o->args.openhow.how.mode == UNCHECKED4;
	nfsstat4 status = nfs4_name_check(name);
	struct nfs4_fh other = *dir;
	struct fs_attr dir_attr;
	int rc = -EAGAIN;

	if (status)
		return status;
	if (nfs4_fh_cross(o->c, &other, name) != NFS4ERR_NOENT)
		return NFS4ERR_ISDIR; /* the root of another export */
	if (create && (status = open_create_attrs(o)) != NFS4_OK)
		return status;
	if (create && !dir->rule->write)
		return NFS4ERR_ROFS;
	nfs4_setattr_restrict(&dir->cred, &o->set, &o->set_attrs);
	/* between "it is not there" and "it is" somebody may remove or make it: a few rounds settle that */
	for (unsigned round = 0; round < 4 && rc == -EAGAIN; round++) {
		rc = create && !unchecked ? -ENOENT
					  : fs_lookup(dir->fs, &o->c->op, dir->id, (const char *)name->data, name->len,
						    &o->attr, &dir_attr);
		if (rc == -ENOENT && create) {
			/* who is told after a restart that the file was made has to be one that may reclaim */
			status = nfs4_client_record_put(o->c->client, o->c->current.export);
			if (status)
				return status;
			rc = create_file(o, name);
			if (rc == -EEXIST && unchecked)
				rc = -EAGAIN;
		} else if (rc == 0) {
			o->dir_wcc.valid = true;
			o->dir_wcc.before.change = dir_attr.change;
			o->dir_wcc.after = dir_attr;
		}
	}
	if (rc)
		return nfs4_status(rc);
	o->res.cinfo =
		(change_info4){.atomic = true, .before = o->dir_wcc.before.change, .after = o->dir_wcc.after.change};
	return NFS4_OK;
}

static nfsstat4 open_file(struct open_call *o)
{
	const struct nfs4_fh *at = &o->c->current;

	if (at->kind == NFS4_FH_PSEUDO) /* there are only directories */
		return o->args.openhow.opentype == OPEN4_CREATE ? NFS4ERR_ROFS
		       : o->args.claim.claim == CLAIM_NULL	? nfs4_pseudo_open(o->c, &o->args.claim.file)
								: NFS4ERR_ISDIR;
	switch (o->args.claim.claim) {
	case CLAIM_NULL:
		return open_by_name(o, &o->args.claim.file);
	case CLAIM_DELEGATE_CUR:
		return open_by_name(o, &o->args.claim.delegate_cur_info.file);
	default:
		return nfs4_status(fs_getattr(at->fs, at->id, &o->attr));
	}
}

static nfsstat4 open_type(const struct open_call *o)
{
	switch (o->attr.type) {
	case FS_REG:
		return NFS4_OK;
	case FS_DIR:
		return NFS4ERR_ISDIR;
	case FS_LNK:
		return NFS4ERR_SYMLINK;
	default:
		return NFS4ERR_WRONG_TYPE;
	}
}

/* A delegation that is being returned brings opens with it that the client had decided itself (RFC 8881 10.4). */
static nfsstat4 open_delegated(struct open_call *o, const stateid4 *stateid)
{
	struct nfs4_state *state;
	nfsstat4 status = nfs4_state_find(o->c, stateid, &state);

	if (status)
		return status;
	if (state->kind != NFS4_STATE_DELEG || state->file->fs != o->c->current.fs ||
		state->file->id.ino != o->attr.id.ino || state->file->id.gen != o->attr.id.gen)
		status = NFS4ERR_BAD_STATEID;
	nfs4_shard_unlock(state->file->shard);
	return status;
}

static nfsstat4 open_permission(struct open_call *o)
{
	const struct nfs4_fh *at = &o->c->current;
	uint32_t wanted = 0, allowed = 0;
	int rc;

	if ((o->access & OPEN4_SHARE_ACCESS_WRITE) && !at->rule->write)
		return NFS4ERR_ROFS;
	if ((o->access & OPEN4_SHARE_ACCESS_WRITE) && o->attr.id.snap)
		return NFS4ERR_ROFS;
	if (o->made || o->reclaim)
		return NFS4_OK;
	if (o->access & OPEN4_SHARE_ACCESS_READ)
		wanted |= FS_MAY_READ;
	if (o->access & OPEN4_SHARE_ACCESS_WRITE)
		wanted |= FS_MAY_WRITE;
	rc = fs_access(at->fs, &o->c->op, o->attr.id, wanted | FS_MAY_EXEC, &allowed, NULL);
	if (rc)
		return nfs4_status(rc);
	/* a program that may only be run is read to be run */
	if (o->access == OPEN4_SHARE_ACCESS_READ && (allowed & FS_MAY_EXEC))
		return NFS4_OK;
	return (allowed & wanted) == wanted ? NFS4_OK : NFS4ERR_ACCESS;
}

/* ------------------------------------------------------------------------------------------------
 * The state
 */

/* Locked. The owner's share reservation becomes the union of what it has and asks for. */
static nfsstat4 share_set(
	struct open_call *o, const struct lock_owner *owner, uint32_t access, uint32_t deny, uint64_t *holder)
{
	struct lock_file_key key = lock_file_key(o->c->current.export->fsid, o->attr.id);
	struct lock_conflict conflict;
	int rc = lock_share_set(lock_server_table(), &key, owner, access, deny, &conflict);

	*holder = rc == -EAGAIN && conflict.kind == LOCK_KIND_NFS4 ? conflict.client : 0;
	return rc == 0 ? NFS4_OK : rc == -EAGAIN ? NFS4ERR_SHARE_DENIED : NFS4ERR_DELAY;
}

static void open_note(struct nfs4_state *state, uint32_t access, uint32_t deny)
{
	if ((access & ~state->open.access) & OPEN4_SHARE_ACCESS_WRITE)
		state->file->writers++;
	state->open.access |= access;
	state->open.deny |= deny;
	state->open.seen |= (uint16_t)(1u << (4 * access + deny));
}

/* Locked. HELD: whether the caller's hold of the file went to the new state. */
static nfsstat4 open_state(struct open_call *o, struct nfs4_state_shard *shard, uint64_t *holder, bool *held)
{
	struct nfs4_client *client = o->c->client;
	struct nfs4_file *file = nfs4_file_find(shard, o->c->current.fs, o->attr.id);
	struct nfs4_state *state = nfs4_state_by_owner(file, client, NFS4_STATE_OPEN, &o->args.owner.owner);
	struct lock_owner owner = {.kind = LOCK_KIND_NFS4,
		.client = nfs4_client_id(client),
		.data = o->args.owner.owner.data,
		.len = o->args.owner.owner.len};
	nfsstat4 status = share_set(o, &owner, o->access | (state ? state->open.access : 0),
		o->deny | (state ? state->open.deny : 0), holder);

	if (status)
		return status;
	if (state) {
		nfs4_state_bump(state);
	} else {
		state = nfs4_state_new(
			shard, o->c->current.export, o->attr.id, client, NFS4_STATE_OPEN, &o->args.owner.owner);
		if (!state) {
			struct lock_file_key key = lock_file_key(o->c->current.export->fsid, o->attr.id);

			lock_share_unset(lock_server_table(), &key, &owner);
			return NFS4ERR_DELAY;
		}
		state->open.uid = o->c->current.cred.uid;
		*held = true;
	}
	open_note(state, o->access, o->deny);
	nfs4_stateid_put(state, &o->res.stateid);
	nfs4_deleg_offer(o->c, state, &o->args, o->can_callback, &o->attr, &o->res.delegation);
	return NFS4_OK;
}

/* Waits for what may wait, then takes the state in one go. */
static nfsstat4 open_take(struct open_call *o)
{
	struct fs *fs = o->c->current.fs;
	nfsstat4 status;
	int rc;

	o->can_callback = nfs4_client_can_callback(o->c->client);
	for (unsigned round = 0;; round++) {
		uint64_t holder = 0;
		bool held = false;

		status = nfs4_deleg_break_open(fs, o->attr.id, o->c->client, o->access, o->deny);
		if (status)
			return status;
		rc = fs_hold(fs, o->attr.id);
		if (rc)
			return nfs4_status(rc);
		struct nfs4_state_shard *shard = nfs4_shard_lock(fs, o->attr.id);
		status = nfs4_deleg_conflicts(shard, fs, o->attr.id, o->c->client, o->access, o->deny)
				 ? NFS4ERR_DELAY
				 : open_state(o, shard, &holder, &held);
		nfs4_shard_unlock(shard);
		if (!held)
			fs_release(fs, o->attr.id);
		/* what an absent client denies gives way to somebody who is here */
		if (status != NFS4ERR_SHARE_DENIED || round == 8 || !nfs4_expel_absent(holder))
			return status;
	}
}

static nfsstat4 open_truncate(struct open_call *o)
{
	const struct nfs4_fh *at = &o->c->current;
	struct fs_setattr size = {.set = FS_SET_SIZE};
	struct fs_op op = o->c->op;
	static const struct fs_cred root;
	struct fs_attr now;

	if (o->made || !(o->set.set & FS_SET_SIZE))
		return NFS4_OK;
	/* the open for writing was granted: that decides */
	if (o->access & OPEN4_SHARE_ACCESS_WRITE)
		op.cred = &root;
	size.size = o->set.size;
	nfsstat4 status = nfs4_deleg_break(at->fs, o->attr.id, o->c->client);

	if (status == NFS4_OK)
		status = nfs4_status(fs_setattr(at->fs, &op, o->attr.id, &size, NULL, NULL));
	if (status == NFS4_OK && fs_getattr(at->fs, o->attr.id, &now) == 0)
		o->attr = now;
	return status;
}

/* It was done by an earlier life, which made or truncated the file: of the open itself only that is left. */
static nfsstat4 open_told(struct open_call *o)
{
	static const struct nfs4_bits size = {.word = {1u << FATTR4_SIZE}};
	bool unchecked = o->args.openhow.how.mode == UNCHECKED4; /* then it may have been there: not all was set */
	nfsstat4 status = o->args.openhow.opentype == OPEN4_CREATE ? open_create_attrs(o) : NFS4_OK;

	if (status)
		return status;
	nfs4_setattr_restrict(&o->c->current.cred, &o->set, &o->set_attrs);
	if (unchecked)
		o->set_attrs.word[0] &= size.word[0];
	for (unsigned w = 1; unchecked && w < NFS4_BITMAP_WORDS; w++)
		o->set_attrs.word[w] = 0;
	o->attr.id = o->c->told->id;
	nfs4_stateid_put_stale(o->attr.id, &o->res.stateid);
	o->res.delegation.delegation_type = OPEN_DELEGATE_NONE;
	return NFS4_OK;
}

static nfsstat4 open_put(struct open_call *o)
{
	struct nfs4_compound *c = o->c;

	o->res.rflags = OPEN4_RESULT_LOCKTYPE_POSIX | OPEN4_RESULT_PRESERVE_UNLINKED | OPEN4_RESULT_MAY_NOTIFY_LOCK;
	o->res.attrset.count = NFS4_BITMAP_WORDS;
	o->res.attrset.item = o->set_attrs.word;
	nfs4_fh_move(c, o->attr.id);
	nfs4_current_stateid_set(c, &o->res.stateid);
	return nfs4_fits(c, xdr_encode_OPEN4resok(&c->req->out, &o->res));
}

nfsstat4 nfs4_op_open(struct nfs4_compound *c)
{
	struct open_call o = {.c = c};
	nfsstat4 status;

	if (!xdr_decode_OPEN4args(&c->req->in, &o.args))
		return NFS4ERR_BADXDR;
	if (c->told) {
		status = open_told(&o);
		return status ? status : open_put(&o);
	}
	status = open_args(&o);
	if (!status)
		status = open_file(&o);
	if (!status)
		status = open_type(&o);
	if (!status && o.args.claim.claim == CLAIM_DELEGATE_CUR)
		status = open_delegated(&o, &o.args.claim.delegate_cur_info.delegate_stateid);
	if (!status && o.args.claim.claim == CLAIM_DELEG_CUR_FH)
		status = open_delegated(&o, &o.args.claim.oc_delegate_stateid);
	if (!status)
		status = open_permission(&o);
	if (!status)
		status = nfs4_client_record_put(c->client, c->current.export);
	if (!status)
		status = open_take(&o);
	if (!status)
		status = open_truncate(&o);
	if (status)
		return status;
	if (!o.made) /* of an existing file only the size is set */
		o.set_attrs = (struct nfs4_bits){.word = {o.set_attrs.word[0] & 1u << FATTR4_SIZE}};
	return open_put(&o);
}

/* ------------------------------------------------------------------------------------------------
 * OPEN_DOWNGRADE and CLOSE
 */

/* The open state of STATEID on the current file; locked on success. */
static nfsstat4 open_find(struct nfs4_compound *c, const stateid4 *stateid, struct nfs4_state **state)
{
	nfsstat4 status = nfs4_state_find(c, stateid, state);

	if (status)
		return status;
	if ((*state)->kind == NFS4_STATE_OPEN && nfs4_file_is_current((*state)->file, c))
		return NFS4_OK;
	nfs4_shard_unlock((*state)->file->shard);
	return NFS4ERR_BAD_STATEID;
}

/* Of what OPENs asked for, that which ACCESS and DENY cover; *SUM: its union, in the same form as an index of it. */
static uint16_t seen_within(uint16_t seen, uint32_t access, uint32_t deny, uint32_t *sum)
{
	uint16_t within = 0;

	*sum = 0;
	for (uint32_t i = 4; i < 16; i++)
		if ((seen >> i & 1) && !(i & ~(4 * access + deny))) {
			within |= (uint16_t)(1u << i);
			*sum |= i;
		}
	return within;
}

nfsstat4 nfs4_op_open_downgrade(struct nfs4_compound *c)
{
	OPEN_DOWNGRADE4args args;
	stateid4 stateid;
	struct nfs4_state *state;
	nfsstat4 status;

	if (!xdr_decode_OPEN_DOWNGRADE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	uint32_t access = args.share_access & ~(uint32_t)OPEN4_SHARE_ACCESS_WANT_DELEG_MASK;
	if (!access || access > OPEN4_SHARE_ACCESS_BOTH || args.share_deny > OPEN4_SHARE_DENY_BOTH)
		return NFS4ERR_INVAL;
	status = open_find(c, &args.open_stateid, &state);
	if (status)
		return status;
	/* only what is the union of OPENs that are in force (RFC 8881 18.18.3) */
	uint32_t sum;
	uint16_t within = seen_within(state->open.seen, access, args.share_deny, &sum);
	if (sum != 4 * access + args.share_deny) {
		nfs4_shard_unlock(state->file->shard);
		return NFS4ERR_INVAL;
	}
	struct lock_owner owner = nfs4_lock_owner(state);
	/* less never conflicts */
	lock_share_set(lock_server_table(), &state->file->key, &owner, access, args.share_deny, NULL);
	if ((state->open.access & ~access) & OPEN4_SHARE_ACCESS_WRITE)
		state->file->writers--;
	state->open.access = access;
	state->open.deny = args.share_deny;
	state->open.seen = within;
	nfs4_state_bump(state);
	nfs4_stateid_put(state, &stateid);
	nfs4_shard_unlock(state->file->shard);
	nfs4_current_stateid_set(c, &stateid);
	return nfs4_fits(c, xdr_encode_stateid4(&c->req->out, &stateid));
}

nfsstat4 nfs4_op_close(struct nfs4_compound *c)
{
	/* the stateid is gone: one that can never be valid (RFC 8881 18.2.4) */
	static const stateid4 closed = {.seqid = UINT32_MAX};
	CLOSE4args args;
	struct nfs4_state *state;
	struct nfs4_state_shard *shard;
	struct list dropped;
	nfsstat4 status;

	if (!xdr_decode_CLOSE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	status = open_find(c, &args.open_stateid, &state);
	if (status)
		return status;
	shard = state->file->shard;
	list_init(&dropped);
	nfs4_state_unlink(state, &dropped); /* and its locks, which the client gave up with it */
	nfs4_shard_unlock(shard);
	nfs4_state_drop(&dropped);
	nfs4_current_stateid_set(c, &closed);
	return nfs4_fits(c, xdr_encode_stateid4(&c->req->out, &closed));
}
