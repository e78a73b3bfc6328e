/*
 * What the tests of NFSv4 have in common: a server with one export at least, clients that join it, ways to a file, and
 * compounds of one operation whose status is that operation's. Each test is one program with one server.
 */
#ifndef TESTS_NFS4_TEST_H
#define TESTS_NFS4_TEST_H

#include "tests/server/furrowd_run.h"
#include "tests/server/nfs4_client.h"

#define NFS4_EXPORT "data" /* of RUN_EXPORT_YAML */

static struct run run;
static const stateid4 anonymous;
static const stateid4 current = {.seqid = 1};

/* ------------------------------------------------------------------------------------------------
 * Compounds
 */

#define expect(v, want) assert_int_equal(v4_send(v), want)

static inline void lookup(struct v4 *v, const char *name)
{
	LOOKUP4args args = {.objname = text(name)};
	v4_add(v, LOOKUP, &args);
}

/* Begins one that has come to PATH ("a/b", in the export), or to the root of all with NULL. */
static inline void begin(struct v4 *v, const char *path)
{
	v4_begin(v);
	if (!path) {
		v4_op(v, OP_PUTROOTFH);
		return;
	}
	v4_put_root(v, NFS4_EXPORT);
	char copy[256], *save = NULL;
	snprintf(copy, sizeof(copy), "%s", path);
	for (char *name = strtok_r(copy, "/", &save); name; name = strtok_r(NULL, "/", &save))
		lookup(v, name);
}

/* Skips to the result of the last operation: those before have fixed sizes here, so it is found from the end. */
static inline void at_end(struct v4 *v, size_t bytes)
{
	assert_true(xdr_in_left(&v->rpc.in) >= bytes);
	v->rpc.in.p = v->rpc.in.end - bytes;
}

static inline bool put_fattr(struct xdr_out *o, unsigned bit, const void *value, uint32_t bytes)
{
	uint32_t words[3] = {0};
	words[bit / 32] = 1u << bit % 32;
	fattr4 f = {.attrmask = {.count = 3, .item = words}, .attr_vals = {.data = value, .len = bytes}};
	return xdr_encode_fattr4(o, &f);
}

static inline void no_fattr(struct xdr_out *o)
{
	xdr_put_u32(o, 0);
	xdr_put_u32(o, 0);
}

static inline void create(struct v4 *v, uint32_t type, const char *name)
{
	struct xdr_out *o = v4_op(v, OP_CREATE);
	xdr_put_u32(o, type);
	if (type == NF4LNK)
		xdr_put_opaque(o, "target", 6);
	if (type == NF4BLK || type == NF4CHR)
		xdr_put_u64(o, 0);
	xdr_put_opaque(o, name, (uint32_t)strlen(name));
	no_fattr(o);
}

static inline void open_create(struct v4 *v, const char *name)
{
	OPEN4args args = {.share_access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
		.owner = {.clientid = v->id, .owner = text("o")},
		.openhow = {.opentype = OPEN4_CREATE},
		.claim = {.claim = CLAIM_NULL, .file = text(name)}};
	v4_add(v, OPEN, &args);
}

/* A regular file of the export's root, closed again. */
static inline void make_file(struct v4 *v, const char *name)
{
	CLOSE4args close = {.open_stateid = current};
	begin(v, "");
	open_create(v, name);
	v4_add(v, CLOSE, &close);
	expect(v, NFS4_OK);
}

static inline void make_dir(struct v4 *v, const char *name)
{
	begin(v, "");
	create(v, NF4DIR, name);
	expect(v, NFS4_OK);
}

static inline void put_write(struct v4 *v, uint64_t offset, const void *data, uint32_t bytes)
{
	struct xdr_out *o = v4_op(v, OP_WRITE);
	xdr_encode_stateid4(o, &anonymous);
	xdr_put_u64(o, offset);
	xdr_put_u32(o, FILE_SYNC4);
	xdr_put_opaque(o, data, bytes);
}

static inline void put_remove(struct v4 *v, const char *name)
{
	REMOVE4args args = {.target = text(name)};
	v4_add(v, REMOVE, &args);
}

static inline nfsstat4 remove_name(struct v4 *v, const char *name)
{
	begin(v, "");
	put_remove(v, name);
	return v4_send(v);
}

static inline void remove_it(struct v4 *v, const char *name)
{
	assert_int_equal(remove_name(v, name), NFS4_OK);
}

static inline void put_getattr(struct v4 *v, unsigned bit)
{
	struct xdr_out *o = v4_op(v, OP_GETATTR);
	xdr_put_u32(o, bit / 32 + 1);
	for (unsigned w = 0; w <= bit / 32; w++)
		xdr_put_u32(o, w == bit / 32 ? 1u << bit % 32 : 0);
}

/* One attribute of eight bytes of the compound's file. */
static inline uint64_t getattr64(struct v4 *v, unsigned bit)
{
	uint64_t value = 0;
	put_getattr(v, bit);
	expect(v, NFS4_OK);
	at_end(v, 8);
	assert_true(xdr_get_u64(&v->rpc.in, &value));
	return value;
}

static inline nfsstat4 setattr(struct v4 *v, const char *path, unsigned bit, const void *value, uint32_t bytes)
{
	begin(v, path);
	struct xdr_out *o = v4_op(v, OP_SETATTR);
	xdr_encode_stateid4(o, &anonymous);
	put_fattr(o, bit, value, bytes);
	return v4_send(v);
}

static inline void put_range(struct v4 *v, uint32_t op, uint64_t offset, uint64_t length)
{
	struct xdr_out *o = v4_op(v, op);
	xdr_encode_stateid4(o, &anonymous);
	xdr_put_u64(o, offset);
	xdr_put_u64(o, length);
}

static inline nfsstat4 copy(
	struct v4 *v, uint32_t op, const char *from, uint64_t from_off, const char *to, uint64_t to_off, uint64_t count)
{
	begin(v, from);
	v4_op(v, OP_SAVEFH);
	v4_put_root(v, NFS4_EXPORT);
	lookup(v, to);
	struct xdr_out *o = v4_op(v, op);
	xdr_encode_stateid4(o, &anonymous);
	xdr_encode_stateid4(o, &anonymous);
	xdr_put_u64(o, from_off);
	xdr_put_u64(o, to_off);
	xdr_put_u64(o, count);
	if (op == OP_COPY) {
		xdr_put_u32(o, 1);
		xdr_put_u32(o, 1);
		xdr_put_u32(o, 0);
	}
	return v4_send(v);
}

static inline void put_setxattr(struct v4 *v, const char *name, uint32_t option, const void *value, uint32_t bytes)
{
	struct xdr_out *o = v4_op(v, OP_SETXATTR);
	xdr_put_u32(o, option);
	xdr_put_opaque(o, name, (uint32_t)strlen(name));
	xdr_put_opaque(o, value, bytes);
}

/* ------------------------------------------------------------------------------------------------
 * States
 */

struct opened {
	stateid4 stateid;
	struct kept fh;
};

static inline nfs_fh4 handle_of(const struct kept *k)
{
	return (nfs_fh4){.data = k->data, .len = k->len};
}

static inline void put_fh(struct v4 *v, const struct kept *k)
{
	PUTFH4args args = {.object = handle_of(k)};

	v4_add(v, PUTFH, &args);
}

static inline void take_fh(struct v4 *v, struct kept *k)
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

static inline void put_open(struct v4 *v, const char *name, const struct how *how)
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

static inline nfsstat4 open_name(struct v4 *v, const char *name, const struct how *how, struct opened *opened)
{
	OPEN4resok res;
	nfsstat4 status;

	v4_begin(v);
	if (how->reclaim)
		put_fh(v, how->reclaim);
	else
		v4_put_root(v, NFS4_EXPORT);
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

static inline nfsstat4 close_it(struct v4 *v, const struct opened *opened)
{
	CLOSE4args args = {.open_stateid = opened->stateid};

	v4_begin(v);
	put_fh(v, &opened->fh);
	v4_add(v, CLOSE, &args);
	assert_int_equal(v4_run(v, NULL), NFS4_OK);
	assert_int_equal(v4_result(v, OP_PUTFH), NFS4_OK);
	return v4_result(v, OP_CLOSE);
}

static inline nfsstat4 write_it(struct v4 *v, const struct opened *opened, const char *words)
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
static inline nfsstat4 lock_it(struct v4 *v, const struct opened *opened, nfs_lock_type4 type, uint64_t offset,
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

static inline nfsstat4 unlock_it(
	struct v4 *v, const struct opened *opened, uint64_t offset, uint64_t length, stateid4 *lock)
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
static inline nfsstat4 lock_test_it(struct v4 *v, const struct opened *opened, nfs_lock_type4 type, uint64_t offset,
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

/* ------------------------------------------------------------------------------------------------
 * Clients and the server
 */

/* A client of that owner, in a new life, that has nothing to reclaim. */
static inline void join(struct v4 *v, const char *owner, uint32_t minor)
{
	static uint64_t verifier;

	v4_init(v, run.port, 0, owner);
	v->verifier = ++verifier;
	v->minor = minor;
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

/* A client with a backchannel, which opens FILE and has a delegation of it: for reading, or for writing by ACCESS. */
static inline stateid4 join_delegated(struct v4 *v, const char *owner, const char *file, uint32_t access)
{
	bool write = access & OPEN4_SHARE_ACCESS_WRITE;
	OPEN4args args = {.share_access = access, .claim = {.claim = CLAIM_NULL, .file = text(file)}};
	OPEN4resok res;

	v4_init(v, run.port, 0, owner);
	v->session_flags = CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
	v4_connect(v);
	assert_int_equal(v4_reclaim_complete(v), NFS4_OK);
	args.owner = (state_owner4){.clientid = v->id, .owner = text("o")};
	v4_begin(v);
	v4_put_root(v, NFS4_EXPORT);
	v4_add(v, OPEN, &args);
	assert_int_equal(v4_run(v, NULL), NFS4_OK);
	v4_took_root(v);
	assert_int_equal(v4_result(v, OP_OPEN), NFS4_OK);
	v4_take(v, OPEN4resok, &res);
	assert_int_equal(res.delegation.delegation_type, write ? OPEN_DELEGATE_WRITE : OPEN_DELEGATE_READ);
	return write ? res.delegation.write.stateid : res.delegation.read.stateid;
}

static inline void kill_and_start(void)
{
	run_stop(&run, SIGKILL);
	run_start(&run);
}

static inline int group_start(const char *exports)
{
	run_init(&run, exports);
	run_start(&run);
	return 0;
}

static inline int group_stop(void **state)
{
	(void)state;
	run_stop(&run, SIGTERM);
	run_fini(&run);
	return 0;
}

#endif
