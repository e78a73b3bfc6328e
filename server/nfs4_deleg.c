/*
 * nfs4_deleg: read delegations (RFC 8881 chapter 10): a client that has one may open, read and cache a file by itself,
 * until somebody wants to change it.
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
 * Write delegations are not given. (Most of what they save is saved by opens that the client keeps, and each costs
 * every GETATTR of others a question to the holder.)
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_state.h"

#define LEASE_NS (NFS4_LEASE_SECONDS * NSEC_PER_SEC)
#define COOL_NS (10 * NSEC_PER_SEC)	  /* after a recall, no new delegation of the file */
#define CHANGE_NS NSEC_PER_SEC		  /* nor while an operation that changes it without an open may run */
#define PATIENCE_NS (100 * NSEC_PER_MSEC) /* an operation waits so long for what it had recalled */
#define DELEGS_MAX (NFS4_STATES_MAX / 8)

static _Atomic uint64_t delegs, given, recalled, revoked;
static _Atomic bool enabled;

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

static bool deleg_wise(struct nfs4_compound *c, struct nfs4_state *open)
{
	struct nfs4_file *file = open->file;

	return open->open.access == OPEN4_SHARE_ACCESS_READ && !file->writers && !file->id.snap &&
	       *cooled(file->shard, file->id) <= now_ns() && !deleg_has(file, c->client) &&
	       atomic_load(&delegs) < DELEGS_MAX;
}

/* True: give one. Else *WHY not. */
static bool deleg_wanted(struct nfs4_compound *c, struct nfs4_state *open, const OPEN4args *args, bool can_callback,
	why_no_delegation4 *why)
{
	uint32_t want = args->share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK;
	bool reclaims_none = args->claim.claim == CLAIM_PREVIOUS && args->claim.delegate_type != OPEN_DELEGATE_READ;

	*why = want == OPEN4_SHARE_ACCESS_WANT_CANCEL			      ? WND4_CANCELLED
	       : want == OPEN4_SHARE_ACCESS_WANT_NO_DELEG || reclaims_none    ? WND4_NOT_WANTED
	       : want == OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG || !can_callback ? WND4_RESOURCE
									      : WND4_CONTENTION;
	return *why == WND4_CONTENTION && deleg_wise(c, open);
}

void nfs4_deleg_offer(struct nfs4_compound *c, struct nfs4_state *open, const OPEN4args *args, bool can_callback,
	open_delegation4 *to)
{
	static const struct xdr_opaque nobody = {.data = (const uint8_t *)"", .len = 0};
	why_no_delegation4 why;
	struct nfs4_state *state = NULL;

	if (deleg_wanted(c, open, args, can_callback, &why)) {
		why = WND4_RESOURCE;
		state = nfs4_state_new(
			open->file->shard, c->current.export, open->file->id, c->client, NFS4_STATE_DELEG, &nobody);
	}
	if (!state) {
		deleg_none(to, args->share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK, why);
		return;
	}
	struct nfs4_fh fh = c->current;

	fh.id = open->file->id;
	nfs4_fh_encode(&fh, state->deleg.fh);
	state->file->delegs++;
	atomic_fetch_add(&delegs, 1);
	atomic_fetch_add(&given, 1);
	*to = (open_delegation4){.delegation_type = OPEN_DELEGATE_READ};
	nfs4_stateid_put(state, &to->read.stateid);
	/* nobody but the owner needs no ACCESS call: mode and groups decide, not this entry */
	to->read.permissions =
		(nfsace4){.type = 0 /* ALLOWED */, .who = {.data = (const uint8_t *)"EVERYONE@", .len = 9}};
}

void nfs4_deleg_unlinked(struct nfs4_state *deleg)
{
	deleg->file->delegs--;
	atomic_fetch_sub(&delegs, 1);
}

/* ------------------------------------------------------------------------------------------------
 * Recalling
 */

struct recall {
	struct nfs4_client *client; /* referenced */
	stateid4 stateid;
	uint8_t fh[HANDLE_BYTES];
};

/* Tells the client, again and again while it says that it does not know of it yet: its OPEN may still be on its way. */
static void recall_fiber(void *arg)
{
	struct recall *recall = arg;
	uint64_t deadline = now_ns() + LEASE_NS;
	uint8_t args[HANDLE_BYTES + 64];
	CB_RECALL4args call = {
		.stateid = recall->stateid, .truncate = false, .fh = {.data = recall->fh, .len = HANDLE_BYTES}};
	struct xdr_out out;
	nfsstat4 status;

	xdr_out_init(&out, args, sizeof(args));
	if (xdr_encode_CB_RECALL4args(&out, &call))
		for (unsigned round = 0; round < 10 && now_ns() < deadline; round++) {
			int rc = nfs4_client_callback(
				recall->client, OP_CB_RECALL, args, (uint32_t)(out.p - args), deadline, &status);

			if (rc == 0 && status == NFS4_OK)
				break;
			fiber_sleep((50 << round) * NSEC_PER_MSEC);
		}
	nfs4_client_put(recall->client);
	free(recall);
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
	reactor_spawn(reactor_self(), recall_fiber, recall);
}

/* Locked. The stateid stays until the client frees it; it stands for nothing any more. */
static void deleg_revoke(struct nfs4_state *state)
{
	state->deleg.revoked = true;
	nfs4_deleg_unlinked(state);
	atomic_store(&state->client->revoked, true);
	atomic_fetch_add(&revoked, 1);
	log_warning(
		"nfs4", "a client did not return a delegation in time, it is revoked client=%s", state->client->name);
}

static bool in_the_way(const struct nfs4_state *state, const struct nfs4_client *client)
{
	return state->kind == NFS4_STATE_DELEG && !state->deleg.revoked && state->client != client;
}

bool nfs4_deleg_conflicts(struct nfs4_state_shard *shard, struct fs *fs, struct fs_id id,
	const struct nfs4_client *client, uint32_t access, uint32_t deny)
{
	struct nfs4_file *file = nfs4_file_find(shard, fs, id);

	if (!file || !file->delegs || !((access & OPEN4_SHARE_ACCESS_WRITE) || (deny & OPEN4_SHARE_DENY_READ)))
		return false;
	list_foreach (n, &file->states)
		if (in_the_way(container_of(n, struct nfs4_state, in_file), client))
			return true;
	return false;
}

/* One look: recalls what is in the way. True: something still is. *ABSENT: a client to expel, first. */
static bool break_once(
	struct fs *fs, struct fs_id id, const struct nfs4_client *client, uint64_t cool, uint64_t *absent)
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

			if (!in_the_way(state, client))
				continue;
			if (nfs4_client_expired(state->client))
				*absent = nfs4_client_id(state->client);
			else if (!state->deleg.recalled)
				recall_start(state);
			else if (now_ns() - state->deleg.recalled > LEASE_NS) {
				deleg_revoke(state);
				continue;
			}
			waits = true;
		}
	nfs4_shard_unlock(shard);
	return waits;
}

static nfsstat4 deleg_break(struct fs *fs, struct fs_id id, struct nfs4_client *client, uint64_t cool)
{
	uint64_t now, deadline, absent;

	if (!atomic_load_explicit(&enabled, memory_order_relaxed))
		return NFS4_OK;
	now = now_ns();
	deadline = now + PATIENCE_NS;
	while (break_once(fs, id, client, cool ? now + cool : 0, &absent)) {
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
	return deleg_break(fs, id, client, CHANGE_NS);
}

/* The open itself, once it is there, keeps delegations from being given. */
nfsstat4 nfs4_deleg_break_open(struct fs *fs, struct fs_id id, struct nfs4_client *client)
{
	return deleg_break(fs, id, client, 0);
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
