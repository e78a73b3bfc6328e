/*
 * The state machine of NFSv4.1 against a model of it (nfs4_model.h): some clients open, close, lock, unlock, get
 * delegations and give them back or not, restart, fall silent for longer than their lease and come back; the server is
 * killed, and they reclaim. After each step the answer must be the model's.
 *
 * A step is a number, and every number is a possible step whatever went before. So when one fails, steps are left out
 * as long as it still fails, and what remains is printed: FURROW_TRACE="number number ..." runs just that.
 * FURROW_SEED says where to begin, FURROW_STEPS how many; FURROW_LONG makes it millions, which takes some twenty
 * minutes (FURROW_LIMIT).
 *
 * The server, its clock and its clients are in nfs4_world.h.
 */
#include "tests/server/nfs4_world.h"

#define STEPS 20000u
#define STEPS_LONG 3000000u
#define TRACE_STEPS 2500u /* between one beginning anew and the next */

/* ------------------------------------------------------------------------------------------------
 * Steps. A number says what: who, on which file, by which owner, and more.
 */

struct step {
	unsigned kind, c, o, l, f;
	uint32_t access, deny;
	unsigned from, to; /* units */
	bool to_end, write, waits, keeps, flip;
	unsigned variant; /* of the stateid that is sent */
};

static unsigned draw(uint64_t *from, unsigned sides)
{
	unsigned side = (unsigned)(*from % sides);

	*from /= sides;
	return side;
}

static struct step step_of(uint64_t number)
{
	struct step s = {.kind = draw(&number, 1000), .c = draw(&number, CLIENTS)};

	s.o = draw(&number, OWNERS);
	s.l = draw(&number, OWNERS);
	s.f = draw(&number, FILES);
	s.access = 1 + draw(&number, 3);
	unsigned deny = draw(&number, 8);
	s.deny = deny < 4 ? 0 : deny - 4;
	s.from = draw(&number, UNITS);
	s.to = draw(&number, UNITS);
	s.write = draw(&number, 2);
	s.waits = !draw(&number, 4);
	s.keeps = !draw(&number, 4);
	s.flip = draw(&number, 2);
	s.variant = draw(&number, 16);
	if (s.from > s.to) {
		unsigned swap = s.from;
		s.from = s.to;
		s.to = swap;
	}
	s.to_end = s.to == UNITS - 1;
	return s;
}

static uint64_t range_at(const struct step *s)
{
	return 10u * s->from;
}
static uint64_t range_length(const struct step *s)
{
	return s->to_end ? UINT64_MAX : 10u * (s->to - s->from + 1);
}
static nfs_lock_type4 range_type(const struct step *s)
{
	return s->write ? (s->waits ? WRITEW_LT : WRITE_LT) : s->waits ? READW_LT : READ_LT;
}

/*
 * The stateid to send for one that the client has, or for one that it has not (ID NULL), and what it leads to before
 * anything else is looked at.
 */
static nfsstat4 stateid_for(const struct step *s, const stateid4 *id, stateid4 *to)
{
	static const stateid4 nobody = {.seqid = 1, .other = {7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}};

	*to = id ? *id : nobody;
	if (!id)
		return NFS4ERR_BAD_STATEID;
	switch (s->variant) {
	case 0:
		to->seqid = 0; /* the latest */
		return NFS4_OK;
	case 1:
		to->seqid--;
		return to->seqid ? NFS4ERR_OLD_STATEID : NFS4_OK;
	case 2:
		to->seqid++;
		return NFS4ERR_BAD_STATEID;
	case 3:
		to->other[8] ^= 0x80; /* another generation */
		return NFS4ERR_BAD_STATEID;
	default:
		return NFS4_OK;
	}
}

/* An id that follows ID, or is the first of a state that was not there. */
static bool id_follows(const char *what, const stateid4 *got, stateid4 *id, bool was_there)
{
	if (!was_there) {
		*id = *got;
		return same(what, got->seqid, 1);
	}
	m_next(id);
	return same(what, got->seqid, id->seqid) &&
	       (!memcmp(got->other, id->other, sizeof(id->other)) || wrong("%s: another state", what));
}

/*
 * What is in the way of delegations. Before the call: who is absent goes, who has been asked for longer than a lease
 * loses it. After it: whether something is still there.
 */
static void break_before(unsigned c, unsigned f, bool changes)
{
	m_set in_the_way = m_deleg_conflicts(&w.m, c, f, changes);

	expel(absent_of(in_the_way));
	for (unsigned k = 0; k < CLIENTS; k++) {
		struct m_deleg *deleg = &w.m.client[k].deleg[f];

		if ((in_the_way >> k & 1) && deleg->there && deleg->recalled && w.m.now > deleg->recalled + LEASE) {
			deleg->revoked = true;
			revocations++;
		}
	}
	w.asked_back = false;
	w.actor = c;
	w.file = f;
	w.changes = changes;
}
static bool break_after(unsigned c, unsigned f, bool changes)
{
	m_set in_the_way = m_deleg_conflicts(&w.m, c, f, changes);

	w.file = FILES;
	for (unsigned k = 0; k < CLIENTS; k++)
		if ((in_the_way >> k & 1) && !w.m.client[k].deleg[f].recalled)
			w.m.client[k].deleg[f].recalled = w.m.now; /* it was asked, and has not heard yet */
	return in_the_way;
}

/* Who conflicts: all absent, then they go, and *ABSENT stays empty. Else *ABSENT are those that may have gone. */
static bool conflicts_yield(m_set conflicts, m_set *absent)
{
	*absent = absent_of(conflicts);
	if (*absent != conflicts)
		return false;
	expel(*absent);
	*absent = 0;
	return true;
}

static bool take_delegation(unsigned c, const struct step *s, const open_delegation4 *d, bool wanted)
{
	struct m_deleg *deleg = &w.m.client[c].deleg[s->f];
	bool write = d->delegation_type == OPEN_DELEGATE_WRITE;

	if (d->delegation_type == OPEN_DELEGATE_NONE || d->delegation_type == OPEN_DELEGATE_NONE_EXT)
		return true;
	if (!wanted)
		return wrong("a delegation that was not wanted");
	if (!m_deleg_allowed(&w.m, c, s->f, write))
		return wrong("a delegation (write %d) of file %u in spite of others", write, s->f);
	*deleg = (struct m_deleg){.there = true, .write = write, .id = write ? d->write.stateid : d->read.stateid};
	given++;
	return same("seqid of a delegation", deleg->id.seqid, 1);
}

static bool open_result(const struct step *s, uint32_t access, uint32_t deny, bool wanted)
{
	struct m_open *open = &w.m.client[s->c].open[s->o][s->f];
	bool was_there = open->there;
	OPEN4resok res;

	v4_take(&w.v[s->c], OPEN4resok, &res);
	m_open_add(open, access, deny);
	return id_follows("OPEN", &res.stateid, &open->id, was_there) &&
	       take_delegation(s->c, s, &res.delegation, wanted);
}

static const char *const owner_names[OWNERS] = {"owner0", "owner1"};

static bool step_open(const struct step *s)
{
	struct m_client *client = &w.m.client[s->c];
	bool wanted = s->flip, changes = (s->access & OPEN4_SHARE_ACCESS_WRITE) || (s->deny & OPEN4_SHARE_DENY_READ);
	OPEN4args args = {.share_access = s->access | (wanted ? OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE
							      : OPEN4_SHARE_ACCESS_WANT_NO_DELEG),
		.share_deny = s->deny,
		.owner = {.clientid = w.v[s->c].id, .owner = text(owner_names[s->o])},
		.claim = {.claim = CLAIM_FH}};
	bool refused = w.m.grace || !client->complete;
	nfsstat4 status, want = NFS4_OK;
	m_set maybe = 0;

	if (!refused)
		break_before(s->c, s->f, changes);
	v4_add(start_at(s->c, s->f), OPEN, &args);
	if (!took(s->c, OP_OPEN, &status))
		return false;
	if (refused) {
		grace_refusals++;
		return same("OPEN", status, NFS4ERR_GRACE);
	}
	client->recorded = true;
	if (break_after(s->c, s->f, changes) || (w.asked_back && status == NFS4ERR_DELAY)) {
		want = NFS4ERR_DELAY;
	} else {
		const struct m_open *open = &client->open[s->o][s->f];
		m_set conflicts =
			m_open_conflicts(&w.m, s->c, s->o, s->f, s->access | open->access, s->deny | open->deny);
		if (!conflicts_yield(conflicts, &maybe))
			want = NFS4ERR_SHARE_DENIED;
	}
	if (!same("OPEN", status, want))
		return false;
	denials += want != NFS4_OK;
	return want ? settle(maybe) : open_result(s, s->access, s->deny, wanted);
}

static bool step_downgrade(const struct step *s)
{
	struct m_open *open = &w.m.client[s->c].open[s->o][s->f], after = *open;
	OPEN_DOWNGRADE4args args = {.share_access = s->access, .share_deny = s->deny};
	nfsstat4 status, want = stateid_for(s, open->there ? &open->id : NULL, &args.open_stateid);
	stateid4 id;

	v4_add(start_at(s->c, s->f), OPEN_DOWNGRADE, &args);
	if (!took(s->c, OP_OPEN_DOWNGRADE, &status))
		return false;
	if (!want && !m_open_downgrade(&after, s->access, s->deny))
		want = NFS4ERR_INVAL;
	if (!same("OPEN_DOWNGRADE", status, want) || want)
		return !w.fault[0];
	*open = after;
	v4_take(&w.v[s->c], stateid4, &id);
	return id_follows("OPEN_DOWNGRADE", &id, &open->id, true);
}

static bool step_close(const struct step *s)
{
	struct m_client *client = &w.m.client[s->c];
	const struct m_open *open = &client->open[s->o][s->f];
	CLOSE4args args = {.seqid = 0};
	nfsstat4 status, want = stateid_for(s, open->there ? &open->id : NULL, &args.open_stateid);

	v4_add(start_at(s->c, s->f), CLOSE, &args);
	if (!took(s->c, OP_CLOSE, &status) || !same("CLOSE", status, want))
		return false;
	if (!want)
		m_close(client, s->o, s->f);
	return true;
}

/* What LOCK and LOCKT say of the lock in the way: it is one of a client in CONFLICTS. */
static bool denied_right(const struct step *s, m_set conflicts)
{
	LOCK4denied d;
	unsigned k, n;

	v4_take(&w.v[s->c], LOCK4denied, &d);
	for (k = 0; k < CLIENTS && w.v[k].id != d.owner.clientid; k++)
		;
	for (n = 0; n < OWNERS && memcmp(d.owner.owner.data, owner_names[n], 6) != 0; n++)
		;
	if (k == CLIENTS || n == OWNERS || !(conflicts >> k & 1))
		return wrong("denied by client %u owner %u, which have nothing", k, n);
	unsigned from = (unsigned)(d.offset / 10), to = UNITS - 1;
	if (d.length != UINT64_MAX)
		to = (unsigned)((d.offset + d.length) / 10) - 1;
	if (d.offset % 10 || from > to || to >= UNITS || from > s->to || to < s->from)
		return wrong("denied by a lock at %llu, which is not in the way", (unsigned long long)d.offset);
	for (unsigned u = from; u <= to; u++)
		if (w.m.client[k].lock[n][s->f].unit[u] != (d.locktype == WRITE_LT ? 2 : 1))
			return wrong("denied by a lock that unit %u does not have", u);
	return true;
}

static void units_set(struct m_lock *lock, const struct step *s, uint8_t what)
{
	for (unsigned u = s->from; u <= s->to; u++)
		lock->unit[u] = what;
}

/* FROM_OPEN: by the open, though the owner may have locks there. *WANT: what the stateid leads to. */
static void lock_args(const struct step *s, bool from_open, LOCK4args *args, nfsstat4 *want)
{
	const struct m_client *client = &w.m.client[s->c];
	const struct m_lock *lock = &client->lock[s->l][s->f];
	const struct m_open *open = &client->open[s->o][s->f];

	args->offset = range_at(s);
	args->length = range_length(s);
	args->locker.new_lock_owner = from_open;
	if (from_open) {
		open_to_lock_owner4 *from = &args->locker.open_owner;
		*want = stateid_for(s, open->there ? &open->id : NULL, &from->open_stateid);
		from->lock_owner = (lock_owner4){.clientid = w.v[s->c].id, .owner = text(owner_names[s->l])};
	} else {
		*want = stateid_for(s, &lock->id, &args->locker.lock_owner.lock_stateid);
		open = &client->open[lock->from][s->f];
	}
	if (!*want && !(open->access & (s->write ? OPEN4_SHARE_ACCESS_WRITE : OPEN4_SHARE_ACCESS_READ)))
		*want = NFS4ERR_OPENMODE;
}

static bool lock_result(const struct step *s)
{
	struct m_lock *lock = &w.m.client[s->c].lock[s->l][s->f];
	bool was_there = lock->there;
	LOCK4resok res;

	v4_take(&w.v[s->c], LOCK4resok, &res);
	if (!was_there)
		*lock = (struct m_lock){.there = true, .from = s->o};
	units_set(lock, s, s->write ? 2 : 1);
	return id_follows("LOCK", &res.lock_stateid, &lock->id, was_there);
}

static bool step_lock(const struct step *s)
{
	const struct m_client *client = &w.m.client[s->c];
	LOCK4args args = {.locktype = range_type(s)};
	nfsstat4 status, want;
	m_set maybe = 0, conflicts = 0;

	lock_args(s, !client->lock[s->l][s->f].there || s->flip, &args, &want);
	if (w.m.grace || !client->complete)
		want = NFS4ERR_GRACE;
	v4_add(start_at(s->c, s->f), LOCK, &args);
	if (!took(s->c, OP_LOCK, &status))
		return false;
	if (!want) {
		conflicts = m_lock_conflicts(&w.m, s->c, s->l, s->f, s->from, s->to, s->write);
		if (!conflicts_yield(conflicts, &maybe))
			want = NFS4ERR_DENIED;
	}
	if (!same("LOCK", status, want))
		return false;
	denials += want != NFS4_OK;
	if (want == NFS4ERR_DENIED && !denied_right(s, conflicts))
		return false;
	return want ? settle(maybe) : lock_result(s);
}

static bool step_lockt(const struct step *s)
{
	LOCKT4args args = {.locktype = range_type(s),
		.offset = range_at(s),
		.length = range_length(s),
		.owner = {.clientid = w.v[s->c].id, .owner = text(owner_names[s->l])}};
	bool refused = w.m.grace || !w.m.client[s->c].complete;
	nfsstat4 status;
	m_set maybe = 0, conflicts;

	v4_add(start_at(s->c, s->f), LOCKT, &args);
	if (!took(s->c, OP_LOCKT, &status))
		return false;
	if (refused)
		return same("LOCKT", status, NFS4ERR_GRACE);
	conflicts = m_lock_conflicts(&w.m, s->c, s->l, s->f, s->from, s->to, s->write);
	bool free_now = conflicts_yield(conflicts, &maybe);
	if (!same("LOCKT", status, free_now ? NFS4_OK : NFS4ERR_DENIED))
		return false;
	return free_now || (denied_right(s, conflicts) && settle(maybe));
}

static bool step_locku(const struct step *s)
{
	struct m_lock *lock = &w.m.client[s->c].lock[s->l][s->f];
	LOCKU4args args = {.locktype = range_type(s), .offset = range_at(s), .length = range_length(s)};
	nfsstat4 status, want = stateid_for(s, lock->there ? &lock->id : NULL, &args.lock_stateid);
	stateid4 id;

	v4_add(start_at(s->c, s->f), LOCKU, &args);
	if (!took(s->c, OP_LOCKU, &status) || !same("LOCKU", status, want))
		return false;
	if (want)
		return true;
	units_set(lock, s, 0);
	v4_take(&w.v[s->c], stateid4, &id);
	return id_follows("LOCKU", &id, &lock->id, true);
}

/* Of a lock state, or of a delegation. */
static bool step_free_stateid(const struct step *s)
{
	struct m_client *client = &w.m.client[s->c];
	struct m_lock *lock = &client->lock[s->l][s->f];
	struct m_deleg *deleg = &client->deleg[s->f];
	bool of_deleg = s->flip && deleg->there;
	FREE_STATEID4args args;
	nfsstat4 want = stateid_for(s, of_deleg ? &deleg->id : lock->there ? &lock->id : NULL, &args.fsa_stateid);

	v4_add(start(s->c), FREE_STATEID, &args);
	if (!finish(s->c))
		return false;
	if (!want && (of_deleg ? !deleg->revoked : m_lock_held(lock)))
		want = NFS4ERR_LOCKS_HELD;
	if (!same("FREE_STATEID", v4_result(&w.v[s->c], OP_FREE_STATEID), want) || want)
		return !w.fault[0];
	if (of_deleg)
		*deleg = (struct m_deleg){.there = false};
	else
		*lock = (struct m_lock){.there = false};
	return true;
}

static bool deleg_return(unsigned c, unsigned f)
{
	struct m_deleg *deleg = &w.m.client[c].deleg[f];
	DELEGRETURN4args args = {.deleg_stateid = deleg->id};
	nfsstat4 status;

	v4_add(start_at(c, f), DELEGRETURN, &args);
	if (!took(c, OP_DELEGRETURN, &status))
		return false;
	if (deleg->revoked)
		return same("DELEGRETURN", status, NFS4ERR_DELEG_REVOKED);
	bool was = deleg->there;
	*deleg = (struct m_deleg){.there = false};
	return same("DELEGRETURN", status, was ? NFS4_OK : NFS4ERR_BAD_STATEID);
}

static void put_io(struct v4 *v, const stateid4 *id, bool write)
{
	struct xdr_out *o = v4_op(v, write ? OP_WRITE : OP_READ);

	xdr_encode_stateid4(o, id);
	xdr_put_u64(o, 0);
	xdr_put_u32(o, write ? UNSTABLE4 : 1);
	if (write)
		xdr_put_opaque(o, "x", 1);
}

/* With an open, a lock or a delegation. */
static bool step_io(const struct step *s)
{
	const struct m_client *client = &w.m.client[s->c];
	const struct m_open *open = &client->open[s->o][s->f];
	const struct m_lock *lock = &client->lock[s->l][s->f];
	const struct m_deleg *deleg = &client->deleg[s->f];
	uint32_t op = s->write ? OP_WRITE : OP_READ;
	bool may_write = open->access & OPEN4_SHARE_ACCESS_WRITE;
	const stateid4 *id = open->there ? &open->id : NULL;
	stateid4 sent;

	if (s->flip && deleg->there) {
		id = &deleg->id;
		may_write = deleg->write;
	} else if (s->waits && lock->there) {
		id = &lock->id;
		may_write = client->open[lock->from][s->f].access & OPEN4_SHARE_ACCESS_WRITE;
	}
	nfsstat4 status, want = stateid_for(s, id, &sent);
	if (!want && id == &deleg->id && deleg->revoked)
		want = NFS4ERR_DELEG_REVOKED;
	if (!want && s->write && !may_write)
		want = NFS4ERR_OPENMODE;
	put_io(start_at(s->c, s->f), &sent, s->write);
	return took(s->c, op, &status) && same(s->write ? "WRITE" : "READ", status, want);
}

static bool step_anonymous_read(const struct step *s)
{
	nfsstat4 status, want = w.m.grace ? NFS4ERR_GRACE : NFS4_OK;

	for (unsigned k = 0; k < CLIENTS && !want; k++)
		for (unsigned n = 0; n < OWNERS; n++)
			if (w.m.client[k].open[n][s->f].there &&
				(w.m.client[k].open[n][s->f].deny & OPEN4_SHARE_DENY_READ))
				want = NFS4ERR_LOCKED;
	bool breaks = !want;
	if (breaks)
		break_before(s->c, s->f, false);
	put_io(start_at(s->c, s->f), &anonymous, false);
	if (!took(s->c, OP_READ, &status))
		return false;
	if (breaks && (break_after(s->c, s->f, false) || (w.asked_back && status == NFS4ERR_DELAY)))
		want = NFS4ERR_DELAY;
	return same("READ without an open", status, want);
}

/* What the server says of everything that the client has. */
static bool step_test_stateids(const struct step *s)
{
	const struct m_client *client = &w.m.client[s->c];
	stateid4 ids[2 * OWNERS * FILES + FILES];
	TEST_STATEID4args args = {.ts_stateids = {.count = 0, .item = ids}};
	bool revoked[sizeof(ids) / sizeof(ids[0])] = {false};
	TEST_STATEID4resok res;

	for (unsigned f = 0; f < FILES; f++) {
		for (unsigned o = 0; o < OWNERS; o++) {
			if (client->open[o][f].there)
				ids[args.ts_stateids.count++] = client->open[o][f].id;
			if (client->lock[o][f].there)
				ids[args.ts_stateids.count++] = client->lock[o][f].id;
		}
		if (client->deleg[f].there) {
			revoked[args.ts_stateids.count] = client->deleg[f].revoked;
			ids[args.ts_stateids.count++] = client->deleg[f].id;
		}
	}
	v4_add(start(s->c), TEST_STATEID, &args);
	if (!finish(s->c) || !same("TEST_STATEID", v4_result(&w.v[s->c], OP_TEST_STATEID), NFS4_OK))
		return false;
	v4_take(&w.v[s->c], TEST_STATEID4resok, &res);
	for (unsigned i = 0; i < res.tsr_status_codes.count; i++)
		if (!same("a stateid that the client has", res.tsr_status_codes.item[i],
			    revoked[i] ? NFS4ERR_DELEG_REVOKED : NFS4_OK))
			return false;
	return same("stateids", res.tsr_status_codes.count, args.ts_stateids.count);
}

/* ------------------------------------------------------------------------------------------------
 * Reclaiming
 */

/* What the step names, or the next that the client had before the restart and has not taken back. */
static struct step left_to_reclaim(const struct step *s)
{
	const struct m_client *client = &w.m.client[s->c];
	struct step next = *s;

	for (unsigned i = 0; i < OWNERS * FILES; i++) {
		next.o = (s->o + i) % OWNERS;
		next.f = (s->f + i / OWNERS) % FILES;
		if (client->had_open[next.o][next.f].there && !client->open[next.o][next.f].there)
			return next;
	}
	return *s;
}

static bool step_reclaim_open(const struct step *which)
{
	struct step next = left_to_reclaim(which), *s = &next;
	struct m_client *client = &w.m.client[s->c];
	const struct m_open *had = &client->had_open[s->o][s->f];
	uint32_t access = had->there ? had->access : 1, deny = had->there ? had->deny : 0;
	bool may = w.m.grace && !client->complete && client->recorded;
	OPEN4args args = {.share_access = access | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
		.share_deny = deny,
		.owner = {.clientid = w.v[s->c].id, .owner = text(owner_names[s->o])},
		.claim = {.claim = CLAIM_PREVIOUS, .delegate_type = OPEN_DELEGATE_NONE}};
	nfsstat4 status;

	if (may && !had->there)
		return true; /* a client that lies is no matter of this test */
	v4_add(start_at(s->c, s->f), OPEN, &args);
	if (!took(s->c, OP_OPEN, &status) || !same("OPEN, reclaiming", status, may ? NFS4_OK : NFS4ERR_NO_GRACE))
		return false;
	if (!may)
		return true;
	reclaims++;
	client->old = false;
	client->reclaimed = true;
	return open_result(s, access, deny, false);
}

/* All of the owner's locks on the file, range by range. */
static bool step_reclaim_lock(const struct step *s)
{
	struct m_client *client = &w.m.client[s->c];
	const struct m_lock *had = &client->had_lock[s->l][s->f];
	bool may = w.m.grace && !client->complete && client->recorded;
	struct step one = *s;

	if (!had->there || !client->open[had->from][s->f].there)
		return true;
	one.o = had->from;
	one.variant = 15;
	one.waits = false;
	for (unsigned u = 0; u < UNITS; u = one.to + 1) {
		LOCK4args args = {.reclaim = true};
		nfsstat4 status, want;

		for (one.from = one.to = u; one.to + 1 < UNITS && had->unit[one.to + 1] == had->unit[u]; one.to++)
			;
		if (!had->unit[u])
			continue;
		one.write = had->unit[u] == 2;
		one.to_end = one.to == UNITS - 1;
		args.locktype = range_type(&one);
		lock_args(&one, !client->lock[s->l][s->f].there, &args, &want);
		if (!may)
			want = NFS4ERR_NO_GRACE;
		v4_add(start_at(s->c, s->f), LOCK, &args);
		if (!took(s->c, OP_LOCK, &status) || !same("LOCK, reclaiming", status, want))
			return false;
		if (!want && !lock_result(&one))
			return false;
		reclaims += !want;
	}
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * A step, a trace, and what is left of one that fails
 */

static const struct {
	unsigned until; /* of a thousand */
	const char *name;
	bool (*run)(const struct step *s);
} kinds[] = {
	{260, "open", step_open},
	{370, "close", step_close},
	{430, "downgrade", step_downgrade},
	{600, "lock", step_lock},
	{640, "lockt", step_lockt},
	{730, "locku", step_locku},
	{770, "free_stateid", step_free_stateid},
	{860, "io", step_io},
	{890, "anonymous_read", step_anonymous_read},
	{910, "test_stateids", step_test_stateids},
	{930, "reclaim_open", step_reclaim_open},
	{940, "reclaim_lock", step_reclaim_lock},
};

static bool step_session(const struct step *s)
{
	if (s->kind < 960)
		return deleg_return(s->c, s->f);
	if (s->kind < 970)
		return reclaim_complete(s->c);
	if (s->kind < 980)
		return rebind(s->c);
	if (s->kind < 985)
		return new_session(s->c);
	if (s->kind < 990)
		return connect_client(s->c, true);
	if (s->kind < 997) {
		leap(PAUSE);
		return true;
	}
	if (s->kind < 999 || s->variant > 5)
		return jump();
	return restart(s->flip);
}

static const char *step_name(const struct step *s)
{
	static const struct {
		unsigned until;
		const char *name;
	} sessions[] = {{960, "delegreturn"}, {970, "reclaim_complete"}, {980, "rebind"}, {985, "new_session"},
		{990, "new_life"}, {997, "pause"}, {999, "jump"}, {1000, "restart or jump"}};

	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (s->kind < kinds[i].until)
			return kinds[i].name;
	for (unsigned i = 0; i + 1 < sizeof(sessions) / sizeof(sessions[0]); i++)
		if (s->kind < sessions[i].until)
			return sessions[i].name;
	return "restart or jump";
}

/* Leases and recalls are either fresh or over: nothing hangs on how fast this runs. */
static bool step_margins(void)
{
	tick();
	if (w.m.grace && w.m.now > w.restarted + 20 * SECOND && !jump())
		return false;
	for (unsigned c = 0; c < CLIENTS; c++) {
		struct m_client *client = &w.m.client[c];

		if (!client->known)
			continue;
		if (w.m.now > client->renewed + 20 * SECOND && !m_expired(&w.m, c) && !touch(c))
			return false;
		for (unsigned f = 0; f < FILES; f++) {
			struct m_deleg *deleg = &client->deleg[f];
			if (deleg->there && !deleg->revoked && deleg->recalled && !m_expired(&w.m, c) &&
				w.m.now > deleg->recalled + 20 * SECOND && w.m.now < deleg->recalled + LEASE + SECOND &&
				!deleg_return(c, f))
				return false;
		}
	}
	return true;
}

static bool step_run(uint64_t number)
{
	struct step s = step_of(number);
	struct m_client *client = &w.m.client[s.c];

	w.file = FILES;
	w.keeps = s.keeps;
	drain();
	if (w.fault[0] || !step_margins())
		return false;
	for (unsigned c = 0; c < CLIENTS; c++)
		if (w.back_fault[c] && w.m.client[c].known && !new_session(c))
			return false;
	if (s.kind >= 990)
		return step_session(&s);
	if (!client->known)
		return connect_client(s.c, false);
	if (!client->complete && s.variant < 12) /* there is more to do for one that has just come */
		return s.variant < 7	? step_reclaim_open(&s)
		       : s.variant < 10 ? step_reclaim_lock(&s)
					: reclaim_complete(s.c);
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (s.kind < kinds[i].until)
			return kinds[i].run(&s);
	return step_session(&s);
}

/* All clients begin a new life, and the server has no grace: the model is empty. */
static bool begin_anew(void)
{
	w.fault[0] = 0;
	w.file = FILES;
	w.keeps = false;
	drain();
	leap(JUMP); /* what was recalled a moment ago may be given again, and so on */
	if (w.m.grace && !grace_wait())
		return false;
	for (unsigned c = 0; c < CLIENTS; c++)
		if (!connect_client(c, true) || !reclaim_complete(c))
			return false;
	w.fault[0] = 0;
	return true;
}

/* A machine that stands still for long ends leases that the model thinks are fresh: then nothing is said by it. */
#define STALL (8 * SECOND)
static bool stalled(bool begin)
{
	static uint64_t before, longest;
	uint64_t now = now_ns() - atomic_load(ahead);

	if (begin)
		longest = 0;
	else if (now - before > longest)
		longest = now - before;
	before = now;
	return longest > STALL;
}

static bool trace_run(const uint64_t *trace, size_t steps, size_t *failed)
{
	/* what went wrong before may stand in the way: then it is another life of the server */
	if (!begin_anew()) {
		restart(false);
		if (!begin_anew())
			fail_msg("cannot begin anew: %s", w.fault);
	}
	stalled(true);
	for (size_t i = 0; i < steps; i++) {
		bool right = step_run(trace[i]) && !w.fault[0];
		if (stalled(false)) {
			print_message("the machine stood still: the trace begins again\n");
			return trace_run(trace, steps, failed);
		}
		if (!right) {
			*failed = i;
			return false;
		}
	}
	return true;
}

/* Leaves out what is not needed, in ever smaller pieces, and prints the rest. */
static void trace_shrink(uint64_t *trace, size_t steps)
{
	uint64_t *shorter = malloc(steps * sizeof(*shorter));
	size_t failed = steps, kept;

	assert_non_null(shorter);
	for (size_t piece = steps / 2 ? steps / 2 : 1; piece; piece /= 2)
		for (size_t at = 0; at < steps;) {
			size_t end = at + piece < steps ? at + piece : steps;
			memcpy(shorter, trace, at * sizeof(*trace));
			memcpy(shorter + at, trace + end, (steps - end) * sizeof(*trace));
			kept = steps - (end - at);
			if (kept && !trace_run(shorter, kept, &failed)) {
				steps = failed + 1;
				memcpy(trace, shorter, steps * sizeof(*trace));
			} else {
				at += piece;
			}
		}
	if (trace_run(trace, steps, &failed))
		print_message("what is left does not fail again\n");
	for (size_t i = 0; i < steps; i++) {
		struct step s = step_of(trace[i]);
		print_message(
			"%3zu %-16s client %u owner %u lock %u file %u access %u deny %u units %u-%u%s%s%s%s id %u\n",
			i, step_name(&s), s.c, s.o, s.l, s.f, s.access, s.deny, s.from, s.to,
			s.write ? " write" : " read", s.waits ? " waits" : "", s.keeps ? " keeps" : "",
			s.flip ? " flip" : "", s.variant);
	}
	print_message("%s\nFURROW_TRACE=\"", w.fault);
	for (size_t i = 0; i < steps; i++)
		print_message("%s%llu", i ? " " : "", (unsigned long long)trace[i]);
	print_message("\"\n");
	free(shorter);
}

static uint64_t dice_state;
static uint64_t dice(void)
{
	dice_state ^= dice_state << 13;
	dice_state ^= dice_state >> 7;
	dice_state ^= dice_state << 17;
	return dice_state * 0x2545f4914f6cdd1dull;
}

static size_t trace_of_text(const char *words, uint64_t **trace)
{
	size_t steps = 0;
	char *end;

	*trace = malloc((strlen(words) / 2 + 1) * sizeof(**trace));
	assert_non_null(*trace);
	for (uint64_t n = strtoull(words, &end, 10); end != words; n = strtoull(words, &end, 10)) {
		(*trace)[steps++] = n;
		words = end;
	}
	return steps;
}

static void against_the_model(void **state)
{
	const char *words = getenv("FURROW_TRACE"), *seed = getenv("FURROW_SEED"), *count = getenv("FURROW_STEPS");
	uint64_t left = count ? strtoull(count, NULL, 0) : getenv("FURROW_LONG") ? STEPS_LONG : STEPS;
	static uint64_t steps_of[TRACE_STEPS];
	uint64_t *trace = steps_of;
	size_t failed;

	(void)state;
	dice_state = seed ? strtoull(seed, NULL, 0) : 20261130;
	for (size_t steps = 0; left; left -= steps) {
		steps = left < TRACE_STEPS ? left : TRACE_STEPS;
		if (words)
			left = steps = trace_of_text(words, &trace);
		uint64_t began = dice_state;
		for (size_t i = 0; i < steps && !words; i++)
			trace[i] = dice();
		if (!trace_run(trace, steps, &failed)) {
			print_message("FURROW_SEED=%llu, step %zu: %s\n", (unsigned long long)began, failed, w.fault);
			trace_shrink(trace, failed + 1);
			run_log_show(run.log);
			fail_msg("the server and the model do not agree");
		}
	}
	print_message(
		"%llu calls; %llu delegations given, %llu recalled, %llu revoked; %llu refused; %llu clients expelled; "
		"%llu reclaimed, %llu refused in grace\n",
		(unsigned long long)asked, (unsigned long long)given, (unsigned long long)recalls,
		(unsigned long long)revocations, (unsigned long long)denials, (unsigned long long)expelled,
		(unsigned long long)reclaims, (unsigned long long)grace_refusals);
	/* a test that meets nothing tests nothing */
	assert_true(words || count ||
		    (given && recalls && revocations && denials && expelled && reclaims && grace_refusals));
	if (words)
		free(trace);
}

/* ------------------------------------------------------------------------------------------------ */

static void files_make(void)
{
	char name[16];
	struct v4 v;
	struct opened file;

	join(&v, "maker", 1);
	for (unsigned f = 0; f < FILES; f++) {
		snprintf(name, sizeof(name), "file%u", f);
		assert_int_equal(open_name(&v, name, &(struct how){.access = 3, .create = GUARDED4}, &file), NFS4_OK);
		assert_int_equal(write_it(&v, &file, "some words"), NFS4_OK);
		assert_int_equal(close_it(&v, &file), NFS4_OK);
		w.fh[f] = file.fh;
	}
	v4_end(&v);
}

static int setup(void **state)
{
	static char path[PATH_MAX];

	(void)state;
	run_init(&run, RUN_EXPORT_YAML);
	ssize_t n = readlink("/proc/self/exe", run.program, sizeof(run.program) - 1);
	assert_true(n > 0);
	run.program[n] = 0;
	run.server = "  delegations: write\n";
	run_write_config(&run, RUN_EXPORT_YAML);
	snprintf(path, sizeof(path), "%s/clock", run.dir);
	setenv("FURROW_CLOCK", path, 1);
	clock_share(path);
	run_start(&run);
	files_make();
	for (unsigned c = 0; c < CLIENTS; c++) {
		char owner[16];
		snprintf(owner, sizeof(owner), "client%u", c);
		v4_init(&w.v[c], run.port, 0, owner);
		w.v[c].session_flags = CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
	}
	probe_connect();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (unsigned c = 0; c < CLIENTS; c++)
		v4_fini(&w.v[c]);
	v4_fini(&w.probe);
	run_stop(&run, SIGTERM);
	unlink(getenv("FURROW_CLOCK"));
	run_fini(&run);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(against_the_model)};

	if (!strcmp(argv[0], "furrowd")) { /* the server, of run_start() */
		clock_share(getenv("FURROW_CLOCK"));
		drive_deadline_override = 1000000 * SECOND; /* a drive is not late because the clock was set */
		return furrowd_main(argc, argv);
	}
	return cmocka_run_group_tests(tests, setup, teardown);
}
