/*
 * NFSv4.1 as a client meets it: sessions with their slots, what is sent again (also after the server was killed), opens
 * with share reservations, locks, and who may reclaim what after a restart.
 */
#include "tests/server/furrowd_run.h"
#include "tests/server/nfs4_client.h"

#define EXPORT "data"
static const char exports[] =
	"  - path: /data\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.1, access: rw, "
	"squash: none}\n";

static struct run run;

/* ------------------------------------------------------------------------------------------------
 * Pieces of compounds
 */

struct opened {
	stateid4 stateid;
	struct kept fh;
};

static nfs_fh4 handle_of(const struct kept *k)
{
	return (nfs_fh4){.data = k->data, .len = k->len};
}

static void put_fh(struct v4 *v, const struct kept *k)
{
	PUTFH4args args = {.object = handle_of(k)};

	v4_add(v, PUTFH, &args);
}

static void take_fh(struct v4 *v, struct kept *k)
{
	GETFH4resok res;

	assert_int_equal(v4_result(v, OP_GETFH), NFS4_OK);
	v4_take(v, GETFH4resok, &res);
	k->len = res.object.len;
	assert_true(k->len <= sizeof(k->data));
	memcpy(k->data, res.object.data, k->len);
}

/* How a file is to be opened; CREATE < 0: not to be made. */
struct how {
	uint32_t access, deny;
	int create;
	uint64_t verifier;
	const char *owner;
	const struct kept *reclaim; /* CLAIM_PREVIOUS of this file */
};

static void put_open(struct v4 *v, const char *name, const struct how *how)
{
	OPEN4args args = {.share_access = how->access | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
		.share_deny = how->deny,
		.owner = {.clientid = v->id, .owner = text(how->owner ? how->owner : "opener")}};

	if (how->create >= 0) {
		args.openhow.opentype = OPEN4_CREATE;
		args.openhow.how.mode = (createmode4)how->create;
		if (how->create == EXCLUSIVE4_1)
			memcpy(args.openhow.how.ch_createboth.cva_verf, &how->verifier, 8);
	}
	if (how->reclaim) {
		args.claim.claim = CLAIM_PREVIOUS;
		args.claim.delegate_type = OPEN_DELEGATE_NONE;
	} else {
		args.claim.claim = CLAIM_NULL;
		args.claim.file = text(name);
	}
	v4_add(v, OPEN, &args);
}

static nfsstat4 open_name(struct v4 *v, const char *name, const struct how *how, struct opened *opened)
{
	OPEN4resok res;
	nfsstat4 status;

	v4_begin(v);
	if (how->reclaim)
		put_fh(v, how->reclaim);
	else
		v4_put_root(v, EXPORT);
	put_open(v, name, how);
	v4_op(v, OP_GETFH);
	status = v4_run(v, NULL);
	assert_int_equal(status, NFS4_OK);
	if (how->reclaim)
		assert_int_equal(v4_result(v, OP_PUTFH), NFS4_OK);
	else
		v4_took_root(v);
	status = v4_result(v, OP_OPEN);
	if (status)
		return status;
	v4_take(v, OPEN4resok, &res);
	opened->stateid = res.stateid;
	take_fh(v, &opened->fh);
	return NFS4_OK;
}

static nfsstat4 close_it(struct v4 *v, const struct opened *opened)
{
	CLOSE4args args = {.open_stateid = opened->stateid};

	v4_begin(v);
	put_fh(v, &opened->fh);
	v4_add(v, CLOSE, &args);
	assert_int_equal(v4_run(v, NULL), NFS4_OK);
	assert_int_equal(v4_result(v, OP_PUTFH), NFS4_OK);
	return v4_result(v, OP_CLOSE);
}

static nfsstat4 write_it(struct v4 *v, const struct opened *opened, const char *words)
{
	WRITE4args args = {.stateid = opened->stateid, .stable = FILE_SYNC4};

	v4_begin(v);
	put_fh(v, &opened->fh);
	/* the codec leaves the payload to the transport: here it is put by hand */
	struct xdr_out *o = v4_op(v, OP_WRITE);
	assert_true(xdr_encode_stateid4(o, &args.stateid) && xdr_put_u64(o, 0) && xdr_put_u32(o, args.stable) &&
		    xdr_put_opaque(o, words, (uint32_t)strlen(words)));
	assert_int_equal(v4_run(v, NULL), NFS4_OK);
	assert_int_equal(v4_result(v, OP_PUTFH), NFS4_OK);
	return v4_result(v, OP_WRITE);
}

/* A lock by the open, or by the lock state LOCK has already (its seqid is not 0). */
static nfsstat4 lock_it(struct v4 *v, const struct opened *opened, nfs_lock_type4 type, uint64_t offset,
	uint64_t length, bool reclaim, stateid4 *lock)
{
	LOCK4args args = {.locktype = type, .reclaim = reclaim, .offset = offset, .length = length};
	LOCK4resok res;
	nfsstat4 status;

	if (lock->seqid) {
		args.locker.lock_owner.lock_stateid = *lock;
	} else {
		args.locker.new_lock_owner = true;
		args.locker.open_owner.open_stateid = opened->stateid;
		args.locker.open_owner.lock_owner = (lock_owner4){.clientid = v->id, .owner = text("locker")};
	}
	v4_begin(v);
	put_fh(v, &opened->fh);
	v4_add(v, LOCK, &args);
	assert_int_equal(v4_run(v, NULL), NFS4_OK);
	assert_int_equal(v4_result(v, OP_PUTFH), NFS4_OK);
	status = v4_result(v, OP_LOCK);
	if (!status) {
		v4_take(v, LOCK4resok, &res);
		*lock = res.lock_stateid;
	}
	return status;
}

static nfsstat4 unlock_it(struct v4 *v, const struct opened *opened, uint64_t offset, uint64_t length, stateid4 *lock)
{
	LOCKU4args args = {.locktype = WRITE_LT, .lock_stateid = *lock, .offset = offset, .length = length};
	nfsstat4 status;

	v4_begin(v);
	put_fh(v, &opened->fh);
	v4_add(v, LOCKU, &args);
	assert_int_equal(v4_run(v, NULL), NFS4_OK);
	assert_int_equal(v4_result(v, OP_PUTFH), NFS4_OK);
	status = v4_result(v, OP_LOCKU);
	if (!status)
		v4_take(v, stateid4, lock);
	return status;
}

/* Who is in the way of a lock; offset and length of the conflict. */
static nfsstat4 lock_test_it(struct v4 *v, const struct opened *opened, nfs_lock_type4 type, uint64_t offset,
	uint64_t length, LOCK4denied *denied)
{
	LOCKT4args args = {.locktype = type,
		.offset = offset,
		.length = length,
		.owner = {.clientid = v->id, .owner = text("asker")}};
	nfsstat4 status;

	v4_begin(v);
	put_fh(v, &opened->fh);
	v4_add(v, LOCKT, &args);
	assert_int_equal(v4_run(v, NULL), NFS4_OK);
	assert_int_equal(v4_result(v, OP_PUTFH), NFS4_OK);
	status = v4_result(v, OP_LOCKT);
	if (status == NFS4ERR_DENIED)
		v4_take(v, LOCK4denied, denied);
	return status;
}

static void put_mkdir(struct v4 *v, const char *name)
{
	CREATE4args args = {.objtype = {.type = NF4DIR}, .objname = text(name)};

	v4_add(v, CREATE, &args);
}

static void put_remove(struct v4 *v, const char *name)
{
	REMOVE4args args = {.target = text(name)};

	v4_add(v, REMOVE, &args);
}

static nfsstat4 remove_it(struct v4 *v, const char *name)
{
	v4_begin(v);
	v4_put_root(v, EXPORT);
	put_remove(v, name);
	assert_int_equal(v4_run(v, NULL), NFS4_OK);
	v4_took_root(v);
	return v4_result(v, OP_REMOVE);
}

static void begin(struct v4 *v, const char *owner)
{
	static uint64_t verifier;

	v4_init(v, run.port, 0, owner);
	v->verifier = ++verifier;
	v4_connect(v);
	assert_int_equal(v4_reclaim_complete(v), NFS4_OK);
	/* the grace of a restart before this ends a moment after the last client said that */
	struct opened none;
	for (int i = 0; open_name(v, "nothing", &(struct how){.access = 1, .create = -1}, &none) == NFS4ERR_GRACE;
		i++) {
		assert_true(i < 500);
		run_pause();
	}
}

/* ------------------------------------------------------------------------------------------------
 * Slots
 */

static void slots(void **state)
{
	struct v4 v;
	uint8_t first[4096];

	(void)state;
	begin(&v, "slots");
	v.slot = 3;
	v4_begin(&v);
	v4_put_root(&v, EXPORT);
	put_mkdir(&v, "again");
	assert_int_equal(v4_run(&v, NULL), NFS4_OK);
	assert_int_equal(v.status, NFS4_OK);
	size_t bytes = (size_t)(v.rpc.in.end - v.rpc.in.base);
	assert_true(bytes <= sizeof(first));
	memcpy(first, v.rpc.in.base, bytes);

	/* the same once more is told the same, byte for byte, also on another connection */
	client_call(&v.rpc);
	assert_int_equal(v.rpc.in.end - v.rpc.in.base, bytes);
	assert_memory_equal(v.rpc.in.base, first, bytes);
	assert_true(client_connect(&v.rpc));
	client_call(&v.rpc);
	assert_memory_equal(v.rpc.in.base, first, bytes);

	/* another request under the same number */
	v4_bare(&v);
	v4_sequence(&v, v.sequence[3]);
	v4_put_root(&v, EXPORT);
	put_mkdir(&v, "other");
	assert_int_equal(v4_run(&v, NULL), NFS4ERR_SEQ_FALSE_RETRY);
	/* a number too far, an old one, slots that there are not */
	v4_bare(&v);
	v4_sequence(&v, v.sequence[3] + 2);
	assert_int_equal(v4_run(&v, NULL), NFS4ERR_SEQ_MISORDERED);
	v4_bare(&v);
	v4_sequence(&v, v.sequence[3] - 1);
	assert_int_equal(v4_run(&v, NULL), NFS4ERR_SEQ_MISORDERED);
	v.slot = 5000;
	v4_bare(&v);
	v4_sequence(&v, 1);
	assert_int_equal(v4_run(&v, NULL), NFS4ERR_BADSLOT);
	v.slot = 4;

	/* what was not to be kept cannot be told again, and is not done again */
	v.cache = false;
	v4_begin(&v);
	v4_put_root(&v, EXPORT);
	put_remove(&v, "again");
	assert_int_equal(v4_run(&v, NULL), NFS4_OK);
	assert_int_equal(v.status, NFS4_OK);
	client_call(&v.rpc);
	v4_head(&v);
	assert_int_equal(v4_result(&v, OP_SEQUENCE), NFS4_OK);
	assert_int_equal(v.status, NFS4ERR_RETRY_UNCACHED_REP);
	v.cache = true;
	assert_int_equal(remove_it(&v, "again"), NFS4ERR_NOENT);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * What is sent again after the server was killed
 */

static void kill_and_start(void)
{
	run_stop(&run, SIGKILL);
	run_start(&run);
}

/* Sends the compound that was sent last over a new connection; SEQUENCE's result is taken. */
static nfsstat4 send_again(struct v4 *v)
{
	assert_true(client_connect(&v->rpc));
	client_call(&v->rpc);
	v4_head(v);
	nfsstat4 status = v4_result(v, OP_SEQUENCE);
	SEQUENCE4resok res;
	if (!status)
		v4_take(v, SEQUENCE4resok, &res);
	return status;
}

static void take_made(struct v4 *v, struct kept *made)
{
	change_info4 change;
	uint32_t words = 0, word;

	v4_took_root(v);
	assert_int_equal(v4_result(v, OP_CREATE), NFS4_OK);
	v4_take(v, change_info4, &change);
	assert_true(xdr_get_u32(&v->rpc.in, &words));
	while (words--)
		assert_true(xdr_get_u32(&v->rpc.in, &word));
	take_fh(v, made);
}

static void again_after_restart(void **state)
{
	struct v4 v;
	struct kept before, after;

	(void)state;
	begin(&v, "again");
	/* mkdir: the same directory is told again */
	v4_begin(&v);
	v4_put_root(&v, EXPORT);
	put_mkdir(&v, "made");
	v4_op(&v, OP_GETFH);
	assert_int_equal(v4_run(&v, NULL), NFS4_OK);
	take_made(&v, &before);
	kill_and_start();
	assert_int_equal(send_again(&v), NFS4_OK);
	take_made(&v, &after);
	assert_int_equal(before.len, after.len);
	assert_memory_equal(before.data, after.data, before.len);
	/* what was never sent before is not done in a session that is gone */
	v4_begin(&v);
	v4_put_root(&v, EXPORT);
	put_mkdir(&v, "new");
	assert_int_equal(v4_run(&v, NULL), NFS4ERR_BADSESSION);
	v4_fini(&v);

	/* remove: it is gone, and was gone by this very call */
	begin(&v, "again");
	v4_begin(&v);
	v4_put_root(&v, EXPORT);
	put_remove(&v, "made");
	assert_int_equal(v4_run(&v, NULL), NFS4_OK);
	assert_int_equal(v.status, NFS4_OK);
	kill_and_start();
	assert_int_equal(send_again(&v), NFS4_OK);
	assert_int_equal(v.status, NFS4_OK);
	v4_took_root(&v);
	assert_int_equal(v4_result(&v, OP_REMOVE), NFS4_OK);
	v4_fini(&v);
	begin(&v, "again");
	assert_int_equal(remove_it(&v, "made"), NFS4ERR_NOENT);
	v4_end(&v);
}

static void rename_after_restart(void **state)
{
	struct v4 v;
	struct opened file;
	RENAME4args args = {.oldname = text("from"), .newname = text("to")};

	(void)state;
	begin(&v, "renamer");
	assert_int_equal(open_name(&v, "from", &(struct how){.access = 3, .create = GUARDED4}, &file), NFS4_OK);
	assert_int_equal(close_it(&v, &file), NFS4_OK);
	v4_begin(&v);
	v4_put_root(&v, EXPORT);
	v4_op(&v, OP_SAVEFH);
	v4_add(&v, RENAME, &args);
	assert_int_equal(v4_run(&v, NULL), NFS4_OK);
	assert_int_equal(v.status, NFS4_OK);
	kill_and_start();
	assert_int_equal(send_again(&v), NFS4_OK);
	assert_int_equal(v.status, NFS4_OK);
	v4_fini(&v);
	begin(&v, "renamer");
	assert_int_equal(remove_it(&v, "from"), NFS4ERR_NOENT);
	assert_int_equal(remove_it(&v, "to"), NFS4_OK);
	v4_end(&v);
}

static void exclusive_after_restart(void **state)
{
	struct v4 v;
	struct opened first, again;
	struct how how = {.access = 3, .create = EXCLUSIVE4_1, .verifier = 0x1234567890abcdef};

	(void)state;
	begin(&v, "exclusive");
	assert_int_equal(open_name(&v, "once", &how, &first), NFS4_OK);
	kill_and_start();
	v4_fini(&v);
	v4_init(&v, run.port, 0, "exclusive");
	v4_connect(&v);
	assert_int_equal(v4_reclaim_complete(&v), NFS4_OK); /* it does not want what it had */
	nfsstat4 status;
	for (int i = 0; (status = open_name(&v, "once", &how, &again)) == NFS4ERR_GRACE && i < 500; i++)
		run_pause();
	assert_int_equal(status, NFS4_OK);
	assert_memory_equal(first.fh.data, again.fh.data, first.fh.len);
	how.verifier++;
	assert_int_equal(open_name(&v, "once", &how, &first), NFS4ERR_EXIST);
	assert_int_equal(close_it(&v, &again), NFS4_OK);
	assert_int_equal(remove_it(&v, "once"), NFS4_OK);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * Opens
 */

static void shares(void **state)
{
	struct v4 a, b;
	struct opened of_a, of_b, more;
	OPEN_DOWNGRADE4args down = {.share_access = OPEN4_SHARE_ACCESS_READ};

	(void)state;
	begin(&a, "a");
	begin(&b, "b");
	/* a reads and denies writing */
	assert_int_equal(
		open_name(&a, "shared", &(struct how){.access = 1, .deny = 2, .create = GUARDED4}, &of_a), NFS4_OK);
	assert_int_equal(open_name(&a, "shared", &(struct how){.access = 1, .create = GUARDED4}, &more), NFS4ERR_EXIST);
	assert_int_equal(
		open_name(&b, "shared", &(struct how){.access = 2, .create = -1}, &of_b), NFS4ERR_SHARE_DENIED);
	assert_int_equal(open_name(&b, "shared", &(struct how){.access = 1, .create = -1}, &of_b), NFS4_OK);
	assert_int_equal(write_it(&b, &of_b, "no"), NFS4ERR_OPENMODE);
	/* b's open is in the way of a denying more */
	assert_int_equal(open_name(&a, "shared", &(struct how){.access = 1, .deny = 3, .create = -1}, &more),
		NFS4ERR_SHARE_DENIED);
	/* the same owner opens for writing too: one state, the next seqid */
	assert_int_equal(close_it(&b, &of_b), NFS4_OK);
	assert_int_equal(open_name(&a, "shared", &(struct how){.access = 2, .create = -1}, &more), NFS4_OK);
	assert_memory_equal(more.stateid.other, of_a.stateid.other, sizeof(more.stateid.other));
	assert_int_equal(more.stateid.seqid, of_a.stateid.seqid + 1);
	assert_int_equal(write_it(&a, &more, "yes"), NFS4_OK);
	assert_int_equal(write_it(&a, &of_a, "old"), NFS4ERR_OLD_STATEID);
	of_a.stateid.seqid = more.stateid.seqid + 1;
	assert_int_equal(write_it(&a, &of_a, "new"), NFS4ERR_BAD_STATEID);
	/* down to reading: writing ends, and what is no union of opens is refused */
	down.open_stateid = more.stateid;
	down.share_deny = OPEN4_SHARE_DENY_READ;
	v4_begin(&a);
	put_fh(&a, &more.fh);
	v4_add(&a, OPEN_DOWNGRADE, &down);
	v4_run(&a, NULL);
	assert_int_equal(a.status, NFS4ERR_INVAL);
	down.share_deny = OPEN4_SHARE_DENY_WRITE;
	v4_begin(&a);
	put_fh(&a, &more.fh);
	v4_add(&a, OPEN_DOWNGRADE, &down);
	v4_run(&a, NULL);
	assert_int_equal(a.status, NFS4_OK);
	more.stateid.seqid = 0; /* the latest */
	assert_int_equal(write_it(&a, &more, "no"), NFS4ERR_OPENMODE);
	/* another client's stateid is nobody else's */
	assert_int_equal(write_it(&b, &more, "no"), NFS4ERR_BAD_STATEID);
	assert_int_equal(close_it(&a, &more), NFS4_OK);
	assert_int_equal(close_it(&a, &more), NFS4ERR_BAD_STATEID);
	assert_int_equal(remove_it(&b, "shared"), NFS4_OK);
	v4_end(&a);
	v4_end(&b);
}

/* An open file that is removed stays until it is closed. */
static void unlinked(void **state)
{
	struct v4 v;
	struct opened file;

	(void)state;
	begin(&v, "unlinked");
	assert_int_equal(open_name(&v, "gone", &(struct how){.access = 3, .create = GUARDED4}, &file), NFS4_OK);
	assert_int_equal(remove_it(&v, "gone"), NFS4_OK);
	assert_int_equal(write_it(&v, &file, "still here"), NFS4_OK);
	assert_int_equal(close_it(&v, &file), NFS4_OK);
	assert_int_equal(write_it(&v, &file, "no more"), NFS4ERR_BAD_STATEID);
	memset(&file.stateid, 0, sizeof(file.stateid)); /* anonymous */
	assert_int_equal(write_it(&v, &file, "no more"), NFS4ERR_STALE);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * Locks
 */

static void locks(void **state)
{
	struct v4 a, b;
	struct opened of_a, of_b;
	stateid4 lock_a = {0}, lock_b = {0};
	LOCK4denied denied;

	(void)state;
	begin(&a, "a");
	begin(&b, "b");
	assert_int_equal(open_name(&a, "locked", &(struct how){.access = 3, .create = GUARDED4}, &of_a), NFS4_OK);
	assert_int_equal(open_name(&b, "locked", &(struct how){.access = 1, .create = -1}, &of_b), NFS4_OK);
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, 100, 100, false, &lock_a), NFS4_OK);
	assert_int_equal(lock_a.seqid, 1);
	assert_int_equal(lock_test_it(&b, &of_b, READ_LT, 0, UINT64_MAX, &denied), NFS4ERR_DENIED);
	assert_int_equal(denied.offset, 100);
	assert_int_equal(denied.length, 100);
	assert_int_equal(denied.locktype, WRITE_LT);
	assert_int_equal(denied.owner.clientid, a.id);
	assert_int_equal(denied.owner.owner.len, strlen("locker"));
	/* b has not opened it for writing */
	assert_int_equal(lock_it(&b, &of_b, WRITE_LT, 0, 1, false, &lock_b), NFS4ERR_OPENMODE);
	assert_int_equal(lock_it(&b, &of_b, READ_LT, 0, 100, false, &lock_b), NFS4_OK);
	assert_int_equal(lock_it(&b, &of_b, READ_LT, 199, 1, false, &lock_b), NFS4ERR_DENIED);
	/* the middle comes free: two parts are left */
	assert_int_equal(unlock_it(&a, &of_a, 120, 60, &lock_a), NFS4_OK);
	assert_int_equal(lock_a.seqid, 2);
	assert_int_equal(lock_it(&b, &of_b, READ_LT, 120, 60, false, &lock_b), NFS4_OK);
	assert_int_equal(lock_it(&b, &of_b, READ_LT, 100, 20, false, &lock_b), NFS4ERR_DENIED);
	assert_int_equal(lock_it(&b, &of_b, READ_LT, 180, 20, false, &lock_b), NFS4ERR_DENIED);
	/* nonsense */
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, 0, 0, false, &lock_a), NFS4ERR_INVAL);
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, UINT64_MAX - 1, 10, false, &lock_a), NFS4ERR_INVAL);
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, 0, 10, true, &lock_a), NFS4ERR_NO_GRACE);
	/* what a had goes with its close */
	assert_int_equal(close_it(&a, &of_a), NFS4_OK);
	assert_int_equal(unlock_it(&a, &of_a, 0, 10, &lock_a), NFS4ERR_BAD_STATEID);
	assert_int_equal(lock_it(&b, &of_b, READ_LT, 100, 100, false, &lock_b), NFS4_OK);
	/* and with a client that has restarted */
	b.verifier++;
	v4_connect(&b);
	assert_int_equal(v4_reclaim_complete(&b), NFS4_OK);
	assert_int_equal(open_name(&a, "locked", &(struct how){.access = 3, .create = -1}, &of_a), NFS4_OK);
	lock_a = (stateid4){0};
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, 0, UINT64_MAX, false, &lock_a), NFS4_OK);
	assert_int_equal(close_it(&a, &of_a), NFS4_OK);
	assert_int_equal(remove_it(&a, "locked"), NFS4_OK);
	v4_end(&a);
	v4_end(&b);
}

/* ------------------------------------------------------------------------------------------------
 * Grace
 */

static void reclaim(void **state)
{
	struct v4 a, b;
	struct opened of_a, of_b;
	stateid4 lock_a = {0}, lock_b = {0};
	nfsstat4 status = NFS4_OK;

	(void)state;
	begin(&a, "reclaims");
	assert_int_equal(open_name(&a, "kept", &(struct how){.access = 3, .create = GUARDED4}, &of_a), NFS4_OK);
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, 0, 10, false, &lock_a), NFS4_OK);
	kill_and_start();
	/* a newcomer has to wait for those who were here; and cannot reclaim what it never had */
	v4_init(&b, run.port, 0, "newcomer");
	v4_connect(&b);
	assert_int_equal(v4_reclaim_complete(&b), NFS4_OK);
	assert_int_equal(v4_reclaim_complete(&b), NFS4ERR_COMPLETE_ALREADY);
	assert_int_equal(open_name(&b, "kept", &(struct how){.access = 3, .create = -1}, &of_b), NFS4ERR_GRACE);
	assert_int_equal(open_name(&b, "kept", &(struct how){.access = 3, .create = -1, .reclaim = &of_a.fh}, &of_b),
		NFS4ERR_NO_GRACE);
	v4_connect(&a);
	assert_int_equal(open_name(&a, "kept", &(struct how){.access = 3, .create = -1}, &of_b), NFS4ERR_GRACE);
	struct kept fh = of_a.fh;
	assert_int_equal(open_name(&a, NULL, &(struct how){.access = 3, .create = -1, .reclaim = &fh}, &of_a), NFS4_OK);
	lock_a = (stateid4){0};
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, 0, 10, false, &lock_a), NFS4ERR_GRACE);
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, 0, 10, true, &lock_a), NFS4_OK);
	assert_int_equal(v4_reclaim_complete(&a), NFS4_OK);
	/* all are back: no need to wait for the end of the lease */
	for (int i = 0; i < 500; i++) {
		status = open_name(&b, "kept", &(struct how){.access = 3, .create = -1}, &of_b);
		if (status != NFS4ERR_GRACE)
			break;
		run_pause();
	}
	assert_int_equal(status, NFS4_OK);
	assert_int_equal(lock_it(&b, &of_b, WRITE_LT, 5, 1, false, &lock_b), NFS4ERR_DENIED);
	assert_int_equal(lock_it(&b, &of_b, WRITE_LT, 10, 1, false, &lock_b), NFS4_OK);
	assert_int_equal(lock_it(&b, &of_b, WRITE_LT, 20, 1, true, &lock_b), NFS4ERR_NO_GRACE);
	assert_int_equal(close_it(&b, &of_b), NFS4_OK);
	assert_int_equal(close_it(&a, &of_a), NFS4_OK);
	assert_int_equal(remove_it(&a, "kept"), NFS4_OK);
	v4_end(&a);
	v4_end(&b);
}

/* ------------------------------------------------------------------------------------------------ */

static int setup(void **state)
{
	(void)state;
	run_init(&run, exports);
	run_start(&run);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	run_stop(&run, SIGTERM);
	run_fini(&run);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots),
		cmocka_unit_test(shares),
		cmocka_unit_test(unlinked),
		cmocka_unit_test(locks),
		cmocka_unit_test(again_after_restart),
		cmocka_unit_test(rename_after_restart),
		cmocka_unit_test(exclusive_after_restart),
		cmocka_unit_test(reclaim),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
