/*
 * States of NFSv4.1 as a client meets them: opens with share reservations, locks, and who may reclaim what after a
 * restart. Sessions and what is sent again have tests of their own (test_nfs4_session.c, test_nfs4_replay.c).
 */
#include "server/stable.h"
#include "tests/server/nfs4_test.h"

/* ------------------------------------------------------------------------------------------------
 * Opens
 */

static void shares(void **state)
{
	struct v4 a, b;
	struct opened of_a, of_b, more;
	OPEN_DOWNGRADE4args down = {.share_access = OPEN4_SHARE_ACCESS_READ};

	(void)state;
	join(&a, "a", 1);
	join(&b, "b", 1);
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
	assert_int_equal(remove_name(&b, "shared"), NFS4_OK);
	v4_end(&a);
	v4_end(&b);
}

static nfsstat4 downgrade(
	struct v4 *v, const struct kept *fh, const stateid4 *id, uint32_t access, uint32_t deny, stateid4 *after)
{
	OPEN_DOWNGRADE4args args = {.open_stateid = *id, .share_access = access, .share_deny = deny};

	v4_begin(v);
	put_fh(v, fh);
	v4_add(v, OPEN_DOWNGRADE, &args);
	assert_int_equal(v4_run(v, NULL), NFS4_OK);
	assert_int_equal(v4_result(v, OP_PUTFH), NFS4_OK);
	nfsstat4 status = v4_result(v, OP_OPEN_DOWNGRADE);
	if (!status)
		v4_take(v, stateid4, after);
	return status;
}

/* To what a subset of the OPENs in force asked for together, access and deny alike, and to nothing else. */
static void downgrades(void **state)
{
	struct v4 a, b;
	struct opened file, more, other, of_b;
	stateid4 id, lock = {0}, wrong;

	(void)state;
	join(&a, "a", 1);
	join(&b, "b", 1);
	assert_int_equal(
		open_name(&a, "down", &(struct how){.access = 1, .deny = 2, .create = GUARDED4}, &file), NFS4_OK);
	assert_int_equal(open_name(&a, "down", &(struct how){.access = 2, .create = -1}, &more), NFS4_OK);
	assert_int_equal(open_name(&a, "other", &(struct how){.access = 3, .create = GUARDED4}, &other), NFS4_OK);
	assert_int_equal(lock_it(&a, &more, READ_LT, 0, 1, false, &lock), NFS4_OK);
	/* reading came with a denial, writing without: neither goes the other way */
	static const uint32_t none[][2] = {{1, 0}, {2, 2}, {3, 0}, {3, 1}, {3, 3}, {1, 1}, {0, 0}, {4, 0}, {1, 4}};
	for (unsigned i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		assert_int_equal(downgrade(&a, &file.fh, &more.stateid, none[i][0], none[i][1], &id), NFS4ERR_INVAL);
	assert_int_equal(downgrade(&a, &file.fh, &file.stateid, 1, 2, &id), NFS4ERR_OLD_STATEID);
	wrong = more.stateid;
	wrong.seqid++;
	assert_int_equal(downgrade(&a, &file.fh, &wrong, 1, 2, &id), NFS4ERR_BAD_STATEID);
	assert_int_equal(downgrade(&a, &file.fh, &lock, 1, 2, &id), NFS4ERR_BAD_STATEID);
	assert_int_equal(downgrade(&a, &file.fh, &anonymous, 1, 2, &id), NFS4ERR_BAD_STATEID);
	assert_int_equal(downgrade(&a, &other.fh, &more.stateid, 1, 2, &id), NFS4ERR_BAD_STATEID);
	assert_int_equal(downgrade(&b, &file.fh, &more.stateid, 1, 2, &id), NFS4ERR_BAD_STATEID);
	/* all of it, which changes nothing, then one of the two */
	assert_int_equal(downgrade(&a, &file.fh, &more.stateid, 3, 2, &id), NFS4_OK);
	assert_int_equal(id.seqid, more.stateid.seqid + 1);
	assert_int_equal(open_name(&b, "down", &(struct how){.access = 2, .create = -1}, &of_b), NFS4ERR_SHARE_DENIED);
	assert_int_equal(downgrade(&a, &file.fh, &id, 2, 0, &id), NFS4_OK);
	assert_int_equal(open_name(&b, "down", &(struct how){.access = 3, .create = -1}, &of_b), NFS4_OK);
	assert_int_equal(downgrade(&a, &file.fh, &id, 1, 2, &id), NFS4ERR_INVAL); /* that one is over */
	more.stateid = id;
	assert_int_equal(close_it(&a, &more), NFS4_OK);
	assert_int_equal(close_it(&a, &other), NFS4_OK);
	assert_int_equal(close_it(&b, &of_b), NFS4_OK);
	assert_int_equal(remove_name(&a, "down"), NFS4_OK);
	assert_int_equal(remove_name(&a, "other"), NFS4_OK);
	v4_end(&a);
	v4_end(&b);
}

/* An open file that is removed stays until it is closed. */
static void unlinked(void **state)
{
	struct v4 v;
	struct opened file;

	(void)state;
	join(&v, "unlinked", 1);
	assert_int_equal(open_name(&v, "gone", &(struct how){.access = 3, .create = GUARDED4}, &file), NFS4_OK);
	assert_int_equal(remove_name(&v, "gone"), NFS4_OK);
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
	join(&a, "a", 1);
	join(&b, "b", 1);
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
	/* who waits already is told the same, each time it asks */
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(lock_it(&b, &of_b, READW_LT, 100, 10, false, &lock_b), NFS4ERR_DENIED);
		v4_take(&b, LOCK4denied, &denied);
		assert_int_equal(denied.owner.clientid, a.id);
		assert_int_equal(denied.offset, 100);
	}
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
	assert_int_equal(remove_name(&a, "locked"), NFS4_OK);
	v4_end(&a);
	v4_end(&b);
}

static nfsstat4 free_it(struct v4 *v, const stateid4 *id)
{
	FREE_STATEID4args args = {.fsa_stateid = *id};

	v4_begin(v);
	v4_add(v, FREE_STATEID, &args);
	assert_int_equal(v4_run(v, NULL), NFS4_OK);
	return v4_result(v, OP_FREE_STATEID);
}

static void lock_corners(void **state)
{
	struct v4 a, b;
	struct opened of_a, of_b, other;
	stateid4 lock = {0}, old, lock_b = {0};
	LOCK4denied denied;

	(void)state;
	join(&a, "a", 1);
	join(&b, "b", 1);
	assert_int_equal(open_name(&a, "corners", &(struct how){.access = 3, .create = GUARDED4}, &of_a), NFS4_OK);
	assert_int_equal(open_name(&b, "corners", &(struct how){.access = 3, .create = -1}, &of_b), NFS4_OK);
	assert_int_equal(open_name(&a, "other", &(struct how){.access = 3, .create = GUARDED4}, &other), NFS4_OK);
	/* the last byte that there is, and all that follows */
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, UINT64_MAX - 1, 1, false, &lock), NFS4_OK);
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, UINT64_MAX, 1, false, &lock), NFS4ERR_INVAL);
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, UINT64_MAX, UINT64_MAX, false, &lock), NFS4_OK);
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, UINT64_MAX - 10, UINT64_MAX, false, &lock), NFS4_OK);
	assert_int_equal(lock_test_it(&b, &of_b, READ_LT, 0, UINT64_MAX, &denied), NFS4ERR_DENIED);
	assert_int_equal(denied.offset, UINT64_MAX - 10);
	assert_int_equal(denied.length, UINT64_MAX);
	assert_int_equal(unlock_it(&a, &of_a, 0, UINT64_MAX, &lock), NFS4_OK);
	assert_int_equal(lock_test_it(&b, &of_b, WRITE_LT, 0, UINT64_MAX, &denied), NFS4_OK);
	/* one's own lock becomes another, and pieces of one type are one */
	assert_int_equal(lock_it(&a, &of_a, READ_LT, 0, 30, false, &lock), NFS4_OK);
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, 10, 10, false, &lock), NFS4_OK);
	assert_int_equal(lock_it(&b, &of_b, READ_LT, 0, 10, false, &lock_b), NFS4_OK);
	assert_int_equal(lock_it(&a, &of_a, WRITE_LT, 0, 30, false, &lock), NFS4ERR_DENIED); /* as a whole */
	assert_int_equal(lock_test_it(&b, &of_b, WRITE_LT, 20, 10, &denied), NFS4ERR_DENIED);
	assert_int_equal(denied.locktype, READ_LT);
	assert_int_equal(lock_it(&a, &of_a, READ_LT, 10, 10, false, &lock), NFS4_OK);
	assert_int_equal(unlock_it(&b, &of_b, 0, 10, &lock_b), NFS4_OK);
	assert_int_equal(lock_test_it(&b, &of_b, WRITE_LT, 5, 1, &denied), NFS4ERR_DENIED);
	assert_int_equal(denied.offset, 0);
	assert_int_equal(denied.length, 30);
	/* what is not locked may be unlocked */
	assert_int_equal(unlock_it(&a, &of_a, 1000, 5, &lock), NFS4_OK);
	/* stateids: an old one, another file's, an open's, one that still has locks, one that was freed */
	old = lock;
	old.seqid--;
	assert_int_equal(unlock_it(&a, &of_a, 0, 5, &old), NFS4ERR_OLD_STATEID);
	assert_int_equal(lock_it(&a, &of_a, READ_LT, 0, 5, false, &old), NFS4ERR_OLD_STATEID);
	assert_int_equal(unlock_it(&a, &other, 0, 5, &lock), NFS4ERR_BAD_STATEID);
	assert_int_equal(unlock_it(&a, &of_a, 0, 5, &of_a.stateid), NFS4ERR_BAD_STATEID);
	assert_int_equal(unlock_it(&b, &of_b, 0, 5, &lock), NFS4ERR_BAD_STATEID);
	assert_int_equal(free_it(&a, &lock), NFS4ERR_LOCKS_HELD);
	assert_int_equal(free_it(&a, &of_a.stateid), NFS4ERR_LOCKS_HELD);
	assert_int_equal(unlock_it(&a, &of_a, 0, UINT64_MAX, &lock), NFS4_OK);
	assert_int_equal(free_it(&b, &lock), NFS4ERR_BAD_STATEID);
	assert_int_equal(free_it(&a, &lock), NFS4_OK);
	assert_int_equal(free_it(&a, &lock), NFS4ERR_BAD_STATEID);
	assert_int_equal(lock_it(&a, &of_a, READ_LT, 0, 5, false, &lock), NFS4ERR_BAD_STATEID);
	/* no file, no lock */
	struct opened root = {.stateid = of_a.stateid};
	begin(&a, "");
	v4_op(&a, OP_GETFH);
	assert_int_equal(v4_run(&a, NULL), NFS4_OK);
	v4_took_root(&a);
	take_fh(&a, &root.fh);
	lock = (stateid4){0};
	assert_int_equal(lock_it(&a, &root, READ_LT, 0, 5, false, &lock), NFS4ERR_BAD_STATEID);
	assert_int_equal(lock_test_it(&a, &root, READ_LT, 0, 5, &denied), NFS4ERR_ISDIR);
	assert_int_equal(lock_test_it(&a, &of_a, READ_LT, 0, 0, &denied), NFS4ERR_INVAL);
	assert_int_equal(close_it(&a, &of_a), NFS4_OK);
	assert_int_equal(close_it(&a, &other), NFS4_OK);
	assert_int_equal(close_it(&b, &of_b), NFS4_OK);
	assert_int_equal(remove_name(&a, "corners"), NFS4_OK);
	assert_int_equal(remove_name(&a, "other"), NFS4_OK);
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
	join(&a, "reclaims", 1);
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
	assert_int_equal(remove_name(&a, "kept"), NFS4_OK);
	v4_end(&a);
	v4_end(&b);
}

static void lease_configure(unsigned seconds)
{
	char line[32];

	snprintf(line, sizeof(line), "  lease: %u\n", seconds);
	run.server = line;
	run_write_config(&run, RUN_EXPORT_YAML);
	run.server = NULL;
}

/* Starts the server that was stopped, and has the client that was there reclaim. */
static void lease_reclaim(struct v4 *a, struct opened *of_a, unsigned seconds)
{
	struct kept fh = of_a->fh;

	assert_int_equal(truncate(run.log, 0), 0);
	run_start(&run);
	v4_connect(a);
	assert_int_equal(open_name(a, NULL, &(struct how){.access = 3, .create = -1, .reclaim = &fh}, of_a), NFS4_OK);
	assert_int_equal(v4_reclaim_complete(a), NFS4_OK);
	v4_begin(a);
	v4_put_root(a, NFS4_EXPORT);
	put_getattr(a, FATTR4_LEASE_TIME);
	expect(a, NFS4_OK);
	at_end(a, 4);
	uint32_t told = 0;
	assert_true(xdr_get_u32(&a->rpc.in, &told));
	assert_int_equal(told, seconds);
	run_wait_log(&run, "grace is over");
}

static void lease_becomes(struct v4 *a, struct opened *of_a, unsigned seconds)
{
	lease_configure(seconds);
	run_stop(&run, SIGKILL);
	lease_reclaim(a, of_a, seconds);
}

static void lease_forget(struct run *of, struct volume *volume)
{
	struct fs_mount_options options = {0};
	struct fs *fs;

	of->rc = fs_mount(volume, &options, &fs, &of->err);
	if (of->rc)
		return;
	of->rc = fs_state_delete(fs, STABLE_NFS4_SERVER, "lease", 5);
	fs_unmount(fs);
}

static void lease_forget_fiber(void *arg)
{
	run_volume(arg, false, lease_forget);
}

/* Who was told of a longer lease before the restart has that long to come back. */
static void lease(void **state)
{
	struct v4 a;
	struct opened of_a;

	(void)state;
	join(&a, "leases", 1);
	assert_int_equal(open_name(&a, "leased", &(struct how){.access = 3, .create = GUARDED4}, &of_a), NFS4_OK);
	run_stop(&run, SIGKILL);
	lease_reclaim(&a, &of_a, 90); /* what it is if nobody says anything */
	assert_true(run_log_has(run.log, "seconds=90"));
	lease_becomes(&a, &of_a, 300);
	assert_true(run_log_has(run.log, "seconds=300"));
	lease_becomes(&a, &of_a, 10);
	assert_true(run_log_has(run.log, "seconds=300"));
	lease_becomes(&a, &of_a, 11);
	assert_true(run_log_has(run.log, "seconds=11"));
	/* the server of the earlier life was one that noted nothing: it had told 45 */
	lease_configure(10);
	run_stop(&run, SIGKILL);
	run_core(&run, lease_forget_fiber);
	lease_reclaim(&a, &of_a, 10);
	assert_true(run_log_has(run.log, "seconds=45"));
	lease_becomes(&a, &of_a, 90);
	assert_true(run_log_has(run.log, "seconds=90"));
	assert_int_equal(close_it(&a, &of_a), NFS4_OK);
	assert_int_equal(remove_name(&a, "leased"), NFS4_OK);
	v4_end(&a);
}

/* However short a server lived: who had a client id then must not be taken for somebody else. */
static void client_ids(void **state)
{
	enum { LIVES = 4 };
	clientid4 seen[LIVES];

	(void)state;
	for (unsigned i = 0; i < LIVES; i++) {
		struct v4 v;
		char name[16];
		snprintf(name, sizeof(name), "life %u", i);
		v4_init(&v, run.port, 0, name);
		v4_connect(&v);
		seen[i] = v.id;
		for (unsigned j = 0; j < i; j++)
			assert_int_not_equal(seen[i], seen[j]);
		v4_fini(&v);
		kill_and_start();
	}
}

/* ------------------------------------------------------------------------------------------------ */

static int setup(void **state)
{
	(void)state;
	return group_start(RUN_EXPORT_YAML);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(shares),
		cmocka_unit_test(downgrades),
		cmocka_unit_test(unlinked),
		cmocka_unit_test(locks),
		cmocka_unit_test(lock_corners),
		cmocka_unit_test(reclaim),
		cmocka_unit_test(lease),
		cmocka_unit_test(client_ids),
	};
	return cmocka_run_group_tests(tests, setup, group_stop);
}
