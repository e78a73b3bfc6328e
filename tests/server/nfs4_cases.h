/*
 * The operations of NFSv4.1 and 4.2 that test_nfs4_replay.c sends again: how each is put into a compound, what it is
 * answered, and whether a mark tells of it after a restart.
 */
#ifndef TESTS_NFS4_CASES_H
#define TESTS_NFS4_CASES_H

#include "tests/server/nfs4_test.h"

/* What a case works on. */
struct subject {
	char file[16], other[16], link[16], made[16];
	struct opened open; /* file, for reading and writing */
	stateid4 lock;	    /* a lock state of it that has a lock */
	stateid4 unlocked;  /* and one of "other" that has none any more */
	struct opened open_other;
};

struct replay_case {
	const char *name;
	void (*put)(struct v4 *v, const struct subject *s);
	nfsstat4 status; /* of the compound */
	bool told;	 /* after a restart; else the session is gone */
};

#define SUBJECT_BYTES 8192u

/* ------------------------------------------------------------------------------------------------
 * Names
 */

static void put_file(struct v4 *v, const char *name)
{
	v4_put_root(v, NFS4_EXPORT);
	lookup(v, name);
}

static void put_made_handle(struct v4 *v)
{
	v4_op(v, OP_GETFH);
}

#define CREATES(NAME, TYPE)                                                                                            \
	static void put_create_##NAME(struct v4 *v, const struct subject *s)                                           \
	{                                                                                                              \
		v4_put_root(v, NFS4_EXPORT);                                                                           \
		create(v, TYPE, s->made);                                                                              \
		put_made_handle(v);                                                                                    \
	}
CREATES(directory, NF4DIR)
CREATES(symlink, NF4LNK)
CREATES(socket, NF4SOCK)
CREATES(fifo, NF4FIFO)
CREATES(character, NF4CHR)
CREATES(block, NF4BLK)

static void put_remove_file(struct v4 *v, const struct subject *s)
{
	v4_put_root(v, NFS4_EXPORT);
	put_remove(v, s->other);
}

static void put_remove_missing(struct v4 *v, const struct subject *s)
{
	v4_put_root(v, NFS4_EXPORT);
	put_remove(v, s->made);
}

/* The second has failed: each operation has a mark of its own. */
static void put_remove_two(struct v4 *v, const struct subject *s)
{
	put_remove_file(v, s);
	put_remove(v, s->made);
}

static void put_rename(struct v4 *v, const struct subject *s)
{
	RENAME4args args = {.oldname = text(s->other), .newname = text(s->made)};

	v4_put_root(v, NFS4_EXPORT);
	v4_op(v, OP_SAVEFH);
	v4_add(v, RENAME, &args);
}

static void put_link(struct v4 *v, const struct subject *s)
{
	LINK4args args = {.newname = text(s->made)};

	put_file(v, s->file);
	v4_op(v, OP_SAVEFH);
	v4_put_root(v, NFS4_EXPORT);
	v4_add(v, LINK, &args);
}

static void put_lookup(struct v4 *v, const struct subject *s)
{
	put_file(v, s->file);
}

static void put_lookupp(struct v4 *v, const struct subject *s)
{
	(void)s;
	v4_put_root(v, NFS4_EXPORT);
	v4_op(v, OP_LOOKUPP);
}

static void put_readdir(struct v4 *v, const struct subject *s)
{
	READDIR4args args = {.maxcount = 1000};

	(void)s;
	v4_put_root(v, NFS4_EXPORT);
	v4_add(v, READDIR, &args);
}

static void put_readlink(struct v4 *v, const struct subject *s)
{
	put_file(v, s->link);
	v4_op(v, OP_READLINK);
}

static void put_secinfo(struct v4 *v, const struct subject *s)
{
	SECINFO4args args = {.name = text(s->file)};

	v4_put_root(v, NFS4_EXPORT);
	v4_add(v, SECINFO, &args);
}

static void put_secinfo_no_name(struct v4 *v, const struct subject *s)
{
	SECINFO_NO_NAME4args args = {SECINFO_STYLE4_CURRENT_FH};

	(void)s;
	v4_put_root(v, NFS4_EXPORT);
	v4_add(v, SECINFO_NO_NAME, &args);
}

/* ------------------------------------------------------------------------------------------------
 * Filehandles and attributes
 */

static void put_handles(struct v4 *v, const struct subject *s)
{
	v4_op(v, OP_PUTPUBFH);
	v4_op(v, OP_PUTROOTFH);
	put_fh(v, &s->open.fh);
	v4_op(v, OP_SAVEFH);
	v4_op(v, OP_PUTROOTFH);
	v4_op(v, OP_RESTOREFH);
	v4_op(v, OP_GETFH);
}

static void put_access(struct v4 *v, const struct subject *s)
{
	ACCESS4args args = {.access = ACCESS4_READ | ACCESS4_MODIFY};

	put_fh(v, &s->open.fh);
	v4_add(v, ACCESS, &args);
}

static void put_getattr_size(struct v4 *v, const struct subject *s)
{
	put_fh(v, &s->open.fh);
	put_getattr(v, FATTR4_SIZE);
}

static void put_setattr(struct v4 *v, unsigned bit, const void *value, uint32_t bytes)
{
	struct xdr_out *o = v4_op(v, OP_SETATTR);

	xdr_encode_stateid4(o, &anonymous);
	put_fattr(o, bit, value, bytes);
}

static void put_setattr_mode(struct v4 *v, const struct subject *s)
{
	uint32_t mode = htonl(0600);

	put_fh(v, &s->open.fh);
	put_setattr(v, FATTR4_MODE, &mode, 4);
}

static void put_setattr_size(struct v4 *v, const struct subject *s)
{
	uint64_t size = htobe64(100);

	put_fh(v, &s->open.fh);
	put_setattr(v, FATTR4_SIZE, &size, 8);
}

/* A guard that the change itself makes untrue. */
static void put_guarded_setattr(struct v4 *v, const struct subject *s)
{
	uint64_t before = htobe64(SUBJECT_BYTES), after = htobe64(50);

	put_fh(v, &s->open.fh);
	put_fattr(v4_op(v, OP_VERIFY), FATTR4_SIZE, &before, 8);
	put_setattr(v, FATTR4_SIZE, &after, 8);
}

static void put_nverify(struct v4 *v, const struct subject *s)
{
	uint64_t size = htobe64(1);

	put_fh(v, &s->open.fh);
	put_fattr(v4_op(v, OP_NVERIFY), FATTR4_SIZE, &size, 8);
}

static void put_setxattr_one(struct v4 *v, const struct subject *s)
{
	put_fh(v, &s->open.fh);
	put_setxattr(v, "new", SETXATTR4_CREATE, "value", 5);
}

static void put_removexattr(struct v4 *v, const struct subject *s)
{
	REMOVEXATTR4args args = {.rxa_name = text("old")};

	put_fh(v, &s->open.fh);
	v4_add(v, REMOVEXATTR, &args);
}

static void put_getxattr(struct v4 *v, const struct subject *s)
{
	GETXATTR4args args = {.gxa_name = text("old")};

	put_fh(v, &s->open.fh);
	v4_add(v, GETXATTR, &args);
}

static void put_listxattrs(struct v4 *v, const struct subject *s)
{
	LISTXATTRS4args args = {.lxa_maxcount = 1000};

	put_fh(v, &s->open.fh);
	v4_add(v, LISTXATTRS, &args);
}

/* ------------------------------------------------------------------------------------------------
 * Data
 */

static void put_read(struct v4 *v, const struct subject *s)
{
	READ4args args = {.count = 1000};

	put_fh(v, &s->open.fh);
	v4_add(v, READ, &args);
}

static void put_write_some(struct v4 *v, const struct subject *s)
{
	put_fh(v, &s->open.fh);
	put_write(v, 10, "written", 7);
}

static void put_commit(struct v4 *v, const struct subject *s)
{
	COMMIT4args args = {.offset = 0};

	put_fh(v, &s->open.fh);
	v4_add(v, COMMIT, &args);
}

static void put_allocate(struct v4 *v, const struct subject *s)
{
	put_fh(v, &s->open.fh);
	put_range(v, OP_ALLOCATE, 0, 3 * SUBJECT_BYTES);
}

static void put_deallocate(struct v4 *v, const struct subject *s)
{
	put_fh(v, &s->open.fh);
	put_range(v, OP_DEALLOCATE, 0, 4096);
}

static void put_two_files(struct v4 *v, const struct subject *s, uint32_t op)
{
	put_fh(v, &s->open.fh);
	v4_op(v, OP_SAVEFH);
	put_file(v, s->other);
	struct xdr_out *o = v4_op(v, op);
	xdr_encode_stateid4(o, &anonymous);
	xdr_encode_stateid4(o, &anonymous);
	xdr_put_u64(o, 0);
	xdr_put_u64(o, 0);
	xdr_put_u64(o, SUBJECT_BYTES);
}

static void put_copy(struct v4 *v, const struct subject *s)
{
	put_two_files(v, s, OP_COPY);
	xdr_put_u32(&v->rpc.out, 1);
	xdr_put_u32(&v->rpc.out, 1);
	xdr_put_u32(&v->rpc.out, 0);
}

static void put_clone(struct v4 *v, const struct subject *s)
{
	put_two_files(v, s, OP_CLONE);
}

static void put_seek(struct v4 *v, const struct subject *s)
{
	put_fh(v, &s->open.fh);
	struct xdr_out *o = v4_op(v, OP_SEEK);
	xdr_encode_stateid4(o, &anonymous);
	xdr_put_u64(o, 0);
	xdr_put_u32(o, NFS4_CONTENT_DATA);
}

static void put_read_plus(struct v4 *v, const struct subject *s)
{
	put_fh(v, &s->open.fh);
	struct xdr_out *o = v4_op(v, OP_READ_PLUS);
	xdr_encode_stateid4(o, &anonymous);
	xdr_put_u64(o, 0);
	xdr_put_u32(o, 500);
}

static void put_io_advise(struct v4 *v, const struct subject *s)
{
	put_fh(v, &s->open.fh);
	struct xdr_out *o = v4_op(v, OP_IO_ADVISE);
	xdr_encode_stateid4(o, &s->open.stateid);
	xdr_put_u64(o, 0);
	xdr_put_u64(o, 0);
	xdr_put_u32(o, 1);
	xdr_put_u32(o, 1u << IO_ADVISE4_SEQUENTIAL);
}

/* ------------------------------------------------------------------------------------------------
 * States
 */

#define OPENS(NAME, PLACE, ACCESS, CREATE)                                                                             \
	static void put_open_##NAME(struct v4 *v, const struct subject *s)                                             \
	{                                                                                                              \
		v4_put_root(v, NFS4_EXPORT);                                                                           \
		put_open(v, s->PLACE, &(struct how){.access = (ACCESS), .create = (CREATE), .owner = "again"});        \
		put_made_handle(v);                                                                                    \
	}
OPENS(there, file, 1, -1)
OPENS(unchecked_there, file, 1, UNCHECKED4)
OPENS(unchecked, made, 3, UNCHECKED4)
OPENS(guarded, made, 3, GUARDED4)
OPENS(exclusive, made, 3, EXCLUSIVE4_1)
OPENS(guarded_there, file, 3, GUARDED4)

static void put_open_truncating(struct v4 *v, const struct subject *s)
{
	static const uint64_t zero;
	static uint32_t size = 1u << FATTR4_SIZE;
	OPEN4args args = {.share_access = 3 | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
		.owner = {.clientid = v->id, .owner = text("again")},
		.openhow = {.opentype = OPEN4_CREATE,
			.how = {.mode = UNCHECKED4,
				.createattrs = {.attrmask = {.count = 1, .item = &size},
					.attr_vals = {.data = (const uint8_t *)&zero, .len = 8}}}},
		.claim = {.claim = CLAIM_NULL, .file = text(s->file)}};

	v4_put_root(v, NFS4_EXPORT);
	v4_add(v, OPEN, &args);
	put_made_handle(v);
}

static void put_open_downgrade(struct v4 *v, const struct subject *s)
{
	OPEN_DOWNGRADE4args args = {.open_stateid = s->open.stateid, .share_access = 3};

	put_fh(v, &s->open.fh);
	v4_add(v, OPEN_DOWNGRADE, &args);
}

static void put_close(struct v4 *v, const struct subject *s)
{
	CLOSE4args args = {.open_stateid = s->open_other.stateid};

	put_fh(v, &s->open_other.fh);
	v4_add(v, CLOSE, &args);
}

static void put_lock(struct v4 *v, const struct subject *s)
{
	LOCK4args args = {.locktype = WRITE_LT,
		.offset = 100,
		.length = 5,
		.locker = {.new_lock_owner = false, .lock_owner = {.lock_stateid = s->lock}}};

	put_fh(v, &s->open.fh);
	v4_add(v, LOCK, &args);
}

static void put_lockt(struct v4 *v, const struct subject *s)
{
	LOCKT4args args = {.locktype = WRITE_LT,
		.offset = 0,
		.length = 5,
		.owner = {.clientid = v->id, .owner = text("somebody")}};

	put_fh(v, &s->open.fh);
	v4_add(v, LOCKT, &args);
}

static void put_locku(struct v4 *v, const struct subject *s)
{
	LOCKU4args args = {.locktype = WRITE_LT, .lock_stateid = s->lock, .offset = 0, .length = 5};

	put_fh(v, &s->open.fh);
	v4_add(v, LOCKU, &args);
}

static void put_test_stateid(struct v4 *v, const struct subject *s)
{
	stateid4 ids[2] = {s->lock, s->open.stateid};
	TEST_STATEID4args args = {.ts_stateids = {.count = 2, .item = ids}};

	v4_add(v, TEST_STATEID, &args);
}

static void put_free_stateid(struct v4 *v, const struct subject *s)
{
	FREE_STATEID4args args = {.fsa_stateid = s->unlocked};

	v4_add(v, FREE_STATEID, &args);
}

static void put_delegreturn(struct v4 *v, const struct subject *s)
{
	DELEGRETURN4args args = {.deleg_stateid = s->open.stateid}; /* none */

	put_fh(v, &s->open.fh);
	v4_add(v, DELEGRETURN, &args);
}

/* ------------------------------------------------------------------------------------------------
 * Sessions
 */

static void put_sequence_alone(struct v4 *v, const struct subject *s)
{
	(void)v;
	(void)s;
}

static void put_backchannel_ctl(struct v4 *v, const struct subject *s)
{
	callback_sec_parms4 parms = {.cb_secflavor = NFS4_AUTH_NONE};
	BACKCHANNEL_CTL4args args = {.bca_cb_program = 0x40000000, .bca_sec_parms = {.count = 1, .item = &parms}};

	(void)s;
	v4_add(v, BACKCHANNEL_CTL, &args);
}

static void put_reclaim_complete(struct v4 *v, const struct subject *s)
{
	RECLAIM_COMPLETE4args args = {.rca_one_fs = false};

	(void)s;
	v4_add(v, RECLAIM_COMPLETE, &args);
}

static void put_exchange_id(struct v4 *v, const struct subject *s)
{
	EXCHANGE_ID4args args = {.eia_clientowner = {.co_ownerid = text("nobody")}};

	(void)s;
	v4_add(v, EXCHANGE_ID, &args);
}

static void put_create_session(struct v4 *v, const struct subject *s)
{
	CREATE_SESSION4args args = {.csa_clientid = 4711};

	(void)s;
	v4_add(v, CREATE_SESSION, &args);
}

static void put_destroy_session(struct v4 *v, const struct subject *s)
{
	DESTROY_SESSION4args args = {{0}};

	(void)s;
	v4_add(v, DESTROY_SESSION, &args);
}

static void put_destroy_clientid(struct v4 *v, const struct subject *s)
{
	DESTROY_CLIENTID4args args = {.dca_clientid = 4711};

	(void)s;
	v4_add(v, DESTROY_CLIENTID, &args);
}

static void put_bind(struct v4 *v, const struct subject *s)
{
	BIND_CONN_TO_SESSION4args args = {.bctsa_dir = CDFC4_FORE};

	(void)s;
	v4_add(v, BIND_CONN_TO_SESSION, &args);
}

static void put_unserved(struct v4 *v, const struct subject *s)
{
	(void)s;
	v4_op(v, OP_LAYOUTGET);
}

static void put_illegal(struct v4 *v, const struct subject *s)
{
	(void)s;
	v4_op(v, 4711);
}

static const struct replay_case cases[] = {
	{"SEQUENCE", put_sequence_alone, NFS4_OK, false},
	{"PUTFH, PUTROOTFH, PUTPUBFH, SAVEFH, RESTOREFH, GETFH", put_handles, NFS4_OK, false},
	{"ACCESS", put_access, NFS4_OK, false},
	{"GETATTR", put_getattr_size, NFS4_OK, false},
	{"SETATTR mode", put_setattr_mode, NFS4_OK, true},
	{"SETATTR size", put_setattr_size, NFS4_OK, true},
	{"VERIFY, SETATTR", put_guarded_setattr, NFS4_OK, true},
	{"NVERIFY", put_nverify, NFS4_OK, false},
	{"LOOKUP", put_lookup, NFS4_OK, false},
	{"LOOKUPP", put_lookupp, NFS4_OK, false},
	{"READDIR", put_readdir, NFS4_OK, false},
	{"READLINK", put_readlink, NFS4_OK, false},
	{"SECINFO", put_secinfo, NFS4_OK, false},
	{"SECINFO_NO_NAME", put_secinfo_no_name, NFS4_OK, false},
	{"CREATE directory", put_create_directory, NFS4_OK, true},
	{"CREATE symlink", put_create_symlink, NFS4_OK, true},
	{"CREATE socket", put_create_socket, NFS4_OK, true},
	{"CREATE fifo", put_create_fifo, NFS4_OK, true},
	{"CREATE character device", put_create_character, NFS4_OK, true},
	{"CREATE block device", put_create_block, NFS4_OK, true},
	{"REMOVE", put_remove_file, NFS4_OK, true},
	{"REMOVE of nothing", put_remove_missing, NFS4ERR_NOENT, false},
	{"REMOVE, REMOVE of nothing", put_remove_two, NFS4ERR_NOENT, true},
	{"RENAME", put_rename, NFS4_OK, true},
	{"LINK", put_link, NFS4_OK, true},
	{"READ", put_read, NFS4_OK, false},
	{"WRITE", put_write_some, NFS4_OK, false},
	{"COMMIT", put_commit, NFS4_OK, false},
	{"ALLOCATE", put_allocate, NFS4_OK, true},
	{"DEALLOCATE", put_deallocate, NFS4_OK, true},
	{"COPY", put_copy, NFS4_OK, false},
	{"CLONE", put_clone, NFS4_OK, true},
	{"SEEK", put_seek, NFS4_OK, false},
	{"READ_PLUS", put_read_plus, NFS4_OK, false},
	{"IO_ADVISE", put_io_advise, NFS4_OK, false},
	{"GETXATTR", put_getxattr, NFS4_OK, false},
	{"SETXATTR", put_setxattr_one, NFS4_OK, true},
	{"LISTXATTRS", put_listxattrs, NFS4_OK, false},
	{"REMOVEXATTR", put_removexattr, NFS4_OK, true},
	{"OPEN", put_open_there, NFS4_OK, false},
	{"OPEN unchecked of what is there", put_open_unchecked_there, NFS4_OK, false},
	{"OPEN unchecked", put_open_unchecked, NFS4_OK, true},
	{"OPEN guarded", put_open_guarded, NFS4_OK, true},
	{"OPEN exclusive", put_open_exclusive, NFS4_OK, true},
	{"OPEN guarded of what is there", put_open_guarded_there, NFS4ERR_EXIST, false},
	{"OPEN truncating", put_open_truncating, NFS4_OK, true},
	{"OPEN_DOWNGRADE", put_open_downgrade, NFS4_OK, false},
	{"CLOSE", put_close, NFS4_OK, false},
	{"LOCK", put_lock, NFS4_OK, false},
	{"LOCKT", put_lockt, NFS4ERR_DENIED, false},
	{"LOCKU", put_locku, NFS4_OK, false},
	{"TEST_STATEID", put_test_stateid, NFS4_OK, false},
	{"FREE_STATEID", put_free_stateid, NFS4_OK, false},
	{"DELEGRETURN", put_delegreturn, NFS4ERR_BAD_STATEID, false},
	{"BACKCHANNEL_CTL", put_backchannel_ctl, NFS4_OK, false},
	{"RECLAIM_COMPLETE", put_reclaim_complete, NFS4ERR_COMPLETE_ALREADY, false},
	{"EXCHANGE_ID", put_exchange_id, NFS4_OK, false},
	{"CREATE_SESSION", put_create_session, NFS4ERR_STALE_CLIENTID, false},
	{"DESTROY_SESSION", put_destroy_session, NFS4ERR_BADSESSION, false},
	{"DESTROY_CLIENTID", put_destroy_clientid, NFS4ERR_STALE_CLIENTID, false},
	{"BIND_CONN_TO_SESSION", put_bind, NFS4ERR_NOT_ONLY_OP, false},
	{"what is not served", put_unserved, NFS4ERR_NOTSUPP, false},
	{"no operation", put_illegal, NFS4ERR_OP_ILLEGAL, false},
};
#define CASES (sizeof(cases) / sizeof(cases[0]))

#endif
