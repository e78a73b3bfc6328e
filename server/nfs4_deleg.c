/*
 * nfs4_deleg: delegations (RFC 8881 chapter 10): a client that has one for reading may open, read and cache a file by
 * itself, until somebody wants to change it.
 *
 * Given with an OPEN for reading alone, when nobody has the file open for writing, the client can be called back, and
 * no delegation of the file was recalled a moment ago. Whoever wants to change the file, or its names, by NFSv4 or
 * NFSv3, calls nfs4_deleg_break() first: it starts a recall (CB_RECALL, in a fiber of its own), waits for a moment,
 * since most clients answer at once, and else has the operation answered with NFS4ERR_DELAY: its client asks again. A
 * delegation that is not back a lease later is revoked: its stateid says so until the client frees it, and SEQUENCE
 * tells the client to look. A client whose lease has run out altogether is expelled instead.
 *
 * An operation that changes a file without having it open keeps delegations of it from being given for a while: none
 * can come between its look and its change.
 *
 * A client's own operations do not recall what it has itself: it knows what it does.
 *
 * Write delegations are given where the configuration says so: to a client that alone has the file open. Others who
 * look at the file then ask the holder for what it has changed (CB_GETATTR), and whoever opens it recalls them. (Most
 * of what they save is saved by opens that the client keeps, and each costs every GETATTR of others that question.)
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_state.h"

#define COOL_NS (10 * NSEC_PER_SEC)	  /* after a recall, no new delegation of the file */
#define CHANGE_NS NSEC_PER_SEC		  /* nor while an operation that changes it without an open may run */
#define PATIENCE_NS (100 * NSEC_PER_MSEC) /* an operation waits so long for what it had recalled */
#define ASK_NS (2 * NSEC_PER_SEC)	  /* a holder has so long to tell its attributes */
#define RECALL_ROUNDS 20u		  /* answers that the client does not know the delegation */
#define RECALL_POLL (500 * NSEC_PER_MSEC) /* whether it can be called again */
#define DELEGS_MAX (NFS4_STATES_MAX / 8)

static _Atomic uint64_t delegs, writes, given, recalled, revoked;
static _Atomic unsigned recalls; /* fibers */
static _Atomic bool enabled, stopping;
static _Atomic int policy = DELEGATIONS_READ;

void nfs4_deleg_policy(enum delegations wanted)
{
	atomic_store(&policy, wanted);
}

void nfs4_deleg_enable(void)
{
	atomic_store(&enabled, true);
}

void nfs4_deleg_counts(struct nfs4_state_counts *counts)
{
	counts->given = atomic_load(&given);
	counts->recalled = atomic_load(&recalled);
	counts->revoked = atomic_load(&revoked);
}

/* ------------------------------------------------------------------------------------------------
 * Giving
 */

static uint64_t *cooled(struct nfs4_state_shard *shard, struct fs_id id)
{
	return &shard->cooled[hash_u64(id.ino) % (sizeof(shard->cooled) / sizeof(shard->cooled[0]))];
}

static bool deleg_has(const struct nfs4_file *file, const struct nfs4_client *client)
{
	list_foreach (n, &file->states) {
		const struct nfs4_state *state = container_of(n, struct nfs4_state, in_file);

		if (state->kind == NFS4_STATE_DELEG && state->client == client)
			return true;
	}
	return false;
}

static void deleg_none(open_delegation4 *to, uint32_t want, why_no_delegation4 why)
{
	to->delegation_type =
		want == OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE ? OPEN_DELEGATE_NONE : OPEN_DELEGATE_NONE_EXT;
	to->od_whynone.ond_why = why;
	to->od_whynone.ond_server_will_push_deleg = false;
	to->od_whynone.ond_server_will_signal_avail = false;
}

/* What kind would not be in anybody's way. */
static open_delegation_type4 deleg_wise(struct nfs4_compound *c, struct nfs4_state *open)
{
	struct nfs4_file *file = open->file;
	int allowed = atomic_load_explicit(&policy, memory_order_relaxed);

	if (allowed == DELEGATIONS_NONE || file->id.snap || *cooled(file->shard, file->id) > now_ns() ||
		deleg_has(file, c->client) || atomic_load(&delegs) >= DELEGS_MAX)
		return OPEN_DELEGATE_NONE;
	if (open->open.access & OPEN4_SHARE_ACCESS_WRITE)
		return allowed == DELEGATIONS_WRITE && file->opens == 1 && !file->delegs ? OPEN_DELEGATE_WRITE
											 : OPEN_DELEGATE_NONE;
	return file->writers ? OPEN_DELEGATE_NONE : OPEN_DELEGATE_READ;
}

/* Which to give. NONE: *WHY not. */
static open_delegation_type4 deleg_wanted(struct nfs4_compound *c, struct nfs4_state *open, const OPEN4args *args,
	bool can_callback, why_no_delegation4 *why)
{
	uint32_t want = args->share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK;
	bool previous = args->claim.claim == CLAIM_PREVIOUS;
	open_delegation_type4 type = OPEN_DELEGATE_NONE;

	if (want == OPEN4_SHARE_ACCESS_WANT_CANCEL) {
		*why = WND4_CANCELLED;
	} else if (want == OPEN4_SHARE_ACCESS_WANT_NO_DELEG ||
		   (previous && args->claim.delegate_type == OPEN_DELEGATE_NONE)) {
		*why = WND4_NOT_WANTED;
	} else if (!can_callback) {
		*why = WND4_RESOURCE;
	} else {
		*why = WND4_CONTENTION;
		type = deleg_wise(c, open);
		if (type == OPEN_DELEGATE_WRITE && want == OPEN4_SHARE_ACCESS_WANT_READ_DELEG)
			type = OPEN_DELEGATE_NONE;
	}
	return type;
}

static struct nfs4_state *deleg_new(
	struct nfs4_compound *c, struct nfs4_state *open, bool write, const struct fs_attr *attr)
{
	static const struct xdr_opaque nobody = {.data = (const uint8_t *)"", .len = 0};
	struct nfs4_state *state = nfs4_state_new(
		open->file->shard, c->current.export, open->file->id, c->client, NFS4_STATE_DELEG, &nobody);
	struct nfs4_fh fh = c->current;

	if (!state)
		return NULL;
	fh.id = open->file->id;
	nfs4_fh_encode(&fh, state->deleg.fh);
	state->deleg.write = write;
	state->deleg.change = attr->change;
	state->file->delegs++;
	atomic_fetch_add(&delegs, 1);
	if (write)
		atomic_fetch_add(&writes, 1);
	atomic_fetch_add(&given, 1);
	return state;
}

void nfs4_deleg_offer(struct nfs4_compound *c, struct nfs4_state *open, const OPEN4args *args, bool can_callback,
	const struct fs_attr *attr, open_delegation4 *to)
{
	/* mode and groups decide, not this entry: the client asks by ACCESS */
	static const nfsace4 permissions = {.who = {.data = (const uint8_t *)"EVERYONE@", .len = 9}};
	why_no_delegation4 why;
	open_delegation_type4 type = deleg_wanted(c, open, args, can_callback, &why);
	struct nfs4_state *state = NULL;

	if (type != OPEN_DELEGATE_NONE) {
		why = WND4_RESOURCE;
		state = deleg_new(c, open, type == OPEN_DELEGATE_WRITE, attr);
	}
	if (!state) {
		deleg_none(to, args->share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK, why);
		return;
	}
	*to = (open_delegation4){.delegation_type = type};
	if (type == OPEN_DELEGATE_READ) {
		nfs4_stateid_put(state, &to->read.stateid);
		to->read.permissions = permissions;
	} else {
		nfs4_stateid_put(state, &to->write.stateid);
		to->write.space_limit.limitby = NFS_LIMIT_SIZE;
		to->write.space_limit.filesize = 0; /* nothing is put aside: data is sent before a close is done */
		to->write.permissions = permissions;
	}
}

/* It stands for nothing any more. */
static void deleg_end(struct nfs4_state *deleg)
{
	deleg->file->delegs--;
	atomic_fetch_sub(&delegs, 1);
	if (deleg->deleg.write)
		atomic_fetch_sub(&writes, 1);
}

void nfs4_deleg_unlinked(struct nfs4_state *deleg)
{
	if (deleg->deleg.revoked)
		atomic_fetch_sub(&deleg->client->revoked, 1);
	else
		deleg_end(deleg);
}

/* ------------------------------------------------------------------------------------------------
 * Recalling
 */

struct recall {
	struct nfs4_client *client; /* referenced */
	stateid4 stateid;
	uint8_t fh[HANDLE_BYTES];
};

/*
 * Tells the client, again and again while it says that it does not know of it yet, since its OPEN may still be on its
 * way; and while it cannot be reached: when it can again, what is left of the lease should be its own to answer in.
 */
static void recall_fiber(void *arg)
{
	struct recall *recall = arg;
	uint64_t deadline = now_ns() + NFS4_LEASE_NS;
	unsigned unknown = 0;
	uint8_t args[HANDLE_BYTES + 64];
	CB_RECALL4args call = {
		.stateid = recall->stateid, .truncate = false, .fh = {.data = recall->fh, .len = HANDLE_BYTES}};
	struct xdr_out out;
	struct nfs4_cb_result result;

	xdr_out_init(&out, args, sizeof(args));
	if (xdr_encode_CB_RECALL4args(&out, &call))
		while (unknown < RECALL_ROUNDS && now_ns() < deadline && !atomic_load(&stopping) &&
			nfs4_stateid_exists(&recall->stateid)) {
			int rc = nfs4_client_callback(
				recall->client, OP_CB_RECALL, args, (uint32_t)(out.p - args), deadline, &result);

			if (rc == 0 && result.status == NFS4_OK)
				break;
			unknown += rc == 0;
			fiber_sleep(rc ? RECALL_POLL : unknown * 50 * NSEC_PER_MSEC);
		}
	nfs4_client_put(recall->client);
	free(recall);
	atomic_fetch_sub(&recalls, 1);
}

void nfs4_deleg_stop(void)
{
	atomic_store(&stopping, true);
	while (atomic_load(&recalls))
		fiber_sleep(NSEC_PER_MSEC);
	atomic_store(&stopping, false);
}

/* Locked. */
static void recall_start(struct nfs4_state *state)
{
	struct recall *recall = malloc(sizeof(*recall));

	if (!recall)
		return; /* whoever asks next tries again */
	recall->client = nfs4_client_hold(state->client);
	nfs4_stateid_put(state, &recall->stateid);
	memcpy(recall->fh, state->deleg.fh, sizeof(recall->fh));
	state->deleg.recalled = now_ns();
	*cooled(state->file->shard, state->file->id) = state->deleg.recalled + COOL_NS;
	atomic_fetch_add(&recalled, 1);
	atomic_fetch_add(&recalls, 1);
	reactor_spawn(reactor_self(), recall_fiber, recall);
}

/* Locked. The stateid stays until the client frees it; it stands for nothing any more. */
static void deleg_revoke(struct nfs4_state *state)
{
	state->deleg.revoked = true;
	deleg_end(state);
	atomic_fetch_add(&state->client->revoked, 1);
	atomic_fetch_add(&revoked, 1);
	log_warning(
		"nfs4", "a client did not return a delegation in time, it is revoked client=%s", state->client->name);
}

/* CHANGES: of an operation that changes the file; one that reads meets write delegations alone. */
static bool in_the_way(const struct nfs4_state *state, const struct nfs4_client *client, bool changes)
{
	return state->kind == NFS4_STATE_DELEG && !state->deleg.revoked && state->client != client &&
	       (changes || state->deleg.write);
}

static bool open_changes(uint32_t access, uint32_t deny)
{
	return (access & OPEN4_SHARE_ACCESS_WRITE) || (deny & OPEN4_SHARE_DENY_READ);
}

bool nfs4_deleg_conflicts(struct nfs4_state_shard *shard, struct fs *fs, struct fs_id id,
	const struct nfs4_client *client, uint32_t access, uint32_t deny)
{
	struct nfs4_file *file = nfs4_file_find(shard, fs, id);

	if (!file || !file->delegs)
		return false;
	list_foreach (n, &file->states)
		if (in_the_way(container_of(n, struct nfs4_state, in_file), client, open_changes(access, deny)))
			return true;
	return false;
}

/* One look: recalls what is in the way. True: something still is. *ABSENT: a client to expel, first. */
static bool break_once(
	struct fs *fs, struct fs_id id, const struct nfs4_client *client, bool changes, uint64_t cool, uint64_t *absent)
{
	struct nfs4_state_shard *shard = nfs4_shard_lock(fs, id);
	struct nfs4_file *file = nfs4_file_find(shard, fs, id);
	uint64_t *until = cooled(shard, id);
	bool waits = false;

	if (cool > *until)
		*until = cool;
	*absent = 0;
	if (file && file->delegs)
		list_foreach (n, &file->states) {
			struct nfs4_state *state = container_of(n, struct nfs4_state, in_file);

			if (!in_the_way(state, client, changes))
				continue;
			if (nfs4_client_expired(state->client))
				*absent = nfs4_client_id(state->client);
			else if (!state->deleg.recalled)
				recall_start(state);
			else if (now_ns() - state->deleg.recalled > NFS4_LEASE_NS) {
				deleg_revoke(state);
				continue;
			}
			waits = true;
		}
	nfs4_shard_unlock(shard);
	return waits;
}

static nfsstat4 deleg_break(struct fs *fs, struct fs_id id, struct nfs4_client *client, bool changes, uint64_t cool)
{
	uint64_t now, deadline, absent;

	if (!atomic_load_explicit(&enabled, memory_order_relaxed))
		return NFS4_OK;
	now = now_ns();
	deadline = now + PATIENCE_NS;
	while (break_once(fs, id, client, changes, cool ? now + cool : 0, &absent)) {
		if (nfs4_expel_absent(absent))
			continue;
		if (now_ns() >= deadline)
			return NFS4ERR_DELAY;
		fiber_sleep(NSEC_PER_MSEC);
	}
	return NFS4_OK;
}

nfsstat4 nfs4_deleg_break(struct fs *fs, struct fs_id id, struct nfs4_client *client)
{
	return deleg_break(fs, id, client, true, CHANGE_NS);
}

nfsstat4 nfs4_deleg_break_read(struct fs *fs, struct fs_id id, struct nfs4_client *client)
{
	if (!atomic_load_explicit(&writes, memory_order_relaxed))
		return NFS4_OK;
	return deleg_break(fs, id, client, false, CHANGE_NS);
}

/* The open itself, once it is there, keeps delegations from being given. */
nfsstat4 nfs4_deleg_break_open(
	struct fs *fs, struct fs_id id, struct nfs4_client *client, uint32_t access, uint32_t deny)
{
	if (!open_changes(access, deny) && !atomic_load_explicit(&writes, memory_order_relaxed))
		return NFS4_OK;
	return deleg_break(fs, id, client, open_changes(access, deny), 0);
}

nfsstat4 nfs4_deleg_break_name(struct fs *fs, const struct fs_op *op, struct fs_id dir, const struct xdr_opaque *name,
	struct nfs4_client *client)
{
	struct fs_attr attr;

	/* what cannot be found is not there to be changed: the operation itself says so */
	if (!atomic_load_explicit(&enabled, memory_order_relaxed) ||
		fs_lookup(fs, op, dir, (const char *)name->data, name->len, &attr, NULL))
		return NFS4_OK;
	return nfs4_deleg_break(fs, attr.id, client);
}

/* ------------------------------------------------------------------------------------------------
 * Asking the holder of a write delegation
 */

struct ask {
	struct nfs4_client *client; /* referenced; NULL: nobody is to be asked */
	stateid4 stateid;
	uint8_t fh[HANDLE_BYTES];
};

static void ask_find(struct ask *ask, struct fs *fs, struct fs_id id, const struct nfs4_client *client)
{
	struct nfs4_state_shard *shard = nfs4_shard_lock(fs, id);
	struct nfs4_file *file = nfs4_file_find(shard, fs, id);

	ask->client = NULL;
	if (file && file->delegs)
		list_foreach (n, &file->states) {
			struct nfs4_state *state = container_of(n, struct nfs4_state, in_file);

			if (!in_the_way(state, client, false))
				continue;
			ask->client = nfs4_client_hold(state->client);
			nfs4_stateid_put(state, &ask->stateid);
			memcpy(ask->fh, state->deleg.fh, sizeof(ask->fh));
			break;
		}
	nfs4_shard_unlock(shard);
}

/* Change and size, as the holder has them. */
static bool ask_holder(const struct ask *ask, uint64_t *change, uint64_t *size)
{
	uint8_t args[HANDLE_BYTES + 64], memory[128];
	uint32_t wanted = 1u << FATTR4_CHANGE | 1u << FATTR4_SIZE;
	CB_GETATTR4args call = {
		.fh = {.data = ask->fh, .len = HANDLE_BYTES}, .attr_request = {.count = 1, .item = &wanted}};
	struct xdr_pool pool = {memory, 0, sizeof(memory)};
	struct nfs4_cb_result result;
	CB_GETATTR4resok res;
	struct xdr_out out;
	struct xdr_in in;

	xdr_out_init(&out, args, sizeof(args));
	if (!xdr_encode_CB_GETATTR4args(&out, &call) ||
		nfs4_client_callback(
			ask->client, OP_CB_GETATTR, args, (uint32_t)(out.p - args), now_ns() + ASK_NS, &result) ||
		result.status != NFS4_OK)
		return false;
	xdr_in_init(&in, result.data, result.bytes, &pool);
	if (!xdr_decode_CB_GETATTR4resok(&in, &res) || !res.obj_attributes.attrmask.count ||
		res.obj_attributes.attrmask.item[0] != wanted)
		return false;
	xdr_in_init(&in, res.obj_attributes.attr_vals.data, res.obj_attributes.attr_vals.len, &pool);
	return xdr_get_u64(&in, change) && xdr_get_u64(&in, size);
}

/* Whether the holder has changed something since it was given the delegation. */
static bool ask_modified(const struct ask *ask, struct fs *fs, struct fs_id id, uint64_t change)
{
	struct nfs4_state_shard *shard = nfs4_shard_lock(fs, id);
	struct nfs4_file *file = nfs4_file_find(shard, fs, id);
	bool modified = false;

	if (file)
		list_foreach (n, &file->states) {
			struct nfs4_state *state = container_of(n, struct nfs4_state, in_file);
			stateid4 stateid;

			if (state->kind != NFS4_STATE_DELEG || !state->deleg.write)
				continue;
			nfs4_stateid_put(state, &stateid);
			if (memcmp(&stateid, &ask->stateid, sizeof(stateid)) != 0)
				continue;
			state->deleg.modified = state->deleg.modified || change != state->deleg.change;
			modified = state->deleg.modified;
			break;
		}
	nfs4_shard_unlock(shard);
	return modified;
}

/*
 * As RFC 8881 10.4.3 has it: once the holder has changed something, each look shows another change. That is the file's
 * from then on: a number that only this answer had would be given again to something else when the delegation is back.
 */
static nfsstat4 ask_show(struct fs *fs, struct fs_id id, uint64_t size, struct fs_attr *attr)
{
	static const struct fs_cred root;
	const struct fs_op op = {.cred = &root};
	const struct fs_setattr set = {.set = FS_SET_MTIME_NOW};
	int rc = fs_setattr(fs, &op, id, &set, NULL, NULL);

	if (!rc)
		rc = fs_getattr(fs, id, attr);
	attr->size = size;
	return rc == -ENOSPC ? NFS4ERR_DELAY : nfs4_status(rc);
}

nfsstat4 nfs4_deleg_getattr(struct fs *fs, struct fs_id id, struct nfs4_client *client, struct fs_attr *attr)
{
	struct ask ask;
	uint64_t change, size;
	bool answered;

	if (!atomic_load_explicit(&writes, memory_order_relaxed))
		return NFS4_OK;
	ask_find(&ask, fs, id, client);
	if (!ask.client)
		return NFS4_OK;
	answered = !nfs4_client_expired(ask.client) && ask_holder(&ask, &change, &size);
	nfs4_client_put(ask.client);
	if (answered)
		return ask_modified(&ask, fs, id, change) ? ask_show(fs, id, size, attr) : NFS4_OK;
	nfsstat4 status = nfs4_deleg_break_read(fs, id, client);
	/* it is back: the file is what we have of it */
	return status ? status : nfs4_status(fs_getattr(fs, id, attr));
}

/* ------------------------------------------------------------------------------------------------
 * DELEGRETURN
 */

nfsstat4 nfs4_op_delegreturn(struct nfs4_compound *c)
{
	DELEGRETURN4args args;
	struct nfs4_state *state;
	struct list dropped;
	nfsstat4 status;

	if (!xdr_decode_DELEGRETURN4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	status = nfs4_state_find(c, &args.deleg_stateid, &state);
	if (status)
		return status;
	struct nfs4_state_shard *shard = state->file->shard;

	list_init(&dropped);
	if (state->kind == NFS4_STATE_DELEG && nfs4_file_is_current(state->file, c))
		nfs4_state_unlink(state, &dropped);
	else
		status = NFS4ERR_BAD_STATEID;
	nfs4_shard_unlock(shard);
	nfs4_state_drop(&dropped);
	return status;
}
