/*
 * What is sent again, over every operation of NFSv4.1 and 4.2: the same call is done once and told the same, on the
 * same connection and on another; under the same number another call is a false retry, and numbers out of order are
 * refused. After the server was killed, what changed the file system is told once more and not done; what changed
 * states is not known any more (RFC 8881 2.10.6).
 *
 * All of it goes over TCP; or, given the address of an RDMA device (tests/vm/nfs4_replay.sh), over RDMA and then over
 * TCP in the same session.
 *
 * Each case of the table has a file, and names, of its own, and a slot: so all of them are sent, the server is killed
 * once, and all of them are sent again.
 */
#include "server/handle_format.h"
#include "tests/server/nfs4_test.h"
#include "tests/server/nfs_client_rdma.h"

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
_Static_assert(CASES <= V4_SLOTS - 1, "each case has a slot of its own, and slot 0 is for the way there");

static nfsstat4 status_of(const struct replay_case *what)
{
	return client_over && what->put == put_read_plus ? NFS4ERR_NOTSUPP : what->status;
}

/* ------------------------------------------------------------------------------------------------
 * Calls that are kept
 */

struct sent {
	uint8_t *call, *reply;
	size_t call_bytes, reply_bytes;
	uint32_t xid;
};

static void sent_keep(struct sent *sent, const struct v4 *v)
{
	sent->call_bytes = (size_t)(v->rpc.out.p - v->rpc.out.base);
	sent->reply_bytes = (size_t)(v->rpc.in.end - v->rpc.in.base);
	sent->call = malloc(sent->call_bytes);
	sent->reply = malloc(sent->reply_bytes);
	assert_true(sent->call && sent->reply);
	memcpy(sent->call, v->rpc.out.base, sent->call_bytes);
	memcpy(sent->reply, v->rpc.in.base, sent->reply_bytes);
	sent->xid = v->rpc.xid;
}

static void sent_free(struct sent *sent)
{
	free(sent->call);
	free(sent->reply);
}

/* The same bytes once more; the reply's head is taken. */
static nfsstat4 send_again(struct v4 *v, const struct sent *sent)
{
	memcpy(v->rpc.out.base, sent->call, sent->call_bytes);
	v->rpc.out.p = v->rpc.out.base + sent->call_bytes;
	v->rpc.xid = sent->xid;
	client_call(&v->rpc);
	return v4_head(v);
}

static void same_bytes(const struct v4 *v, const struct sent *sent)
{
	assert_int_equal(v->rpc.in.end - v->rpc.in.base, sent->reply_bytes);
	assert_memory_equal(v->rpc.in.base, sent->reply, sent->reply_bytes);
}

static void told_the_same(struct v4 *v, const struct sent *sent)
{
	send_again(v, sent);
	same_bytes(v, sent);
}

/* ------------------------------------------------------------------------------------------------
 * Before a restart
 */

static void subject_make(struct v4 *v, struct subject *s, unsigned number)
{
	static uint8_t bytes[SUBJECT_BYTES];
	struct how how = {.access = 3, .create = GUARDED4};

	memset(bytes, 'b', sizeof(bytes));
	*s = (struct subject){.lock = {0}};
	snprintf(s->file, sizeof(s->file), "file%u", number);
	snprintf(s->other, sizeof(s->other), "other%u", number);
	snprintf(s->link, sizeof(s->link), "link%u", number);
	snprintf(s->made, sizeof(s->made), "made%u", number);
	assert_int_equal(open_name(v, s->file, &how, &s->open), NFS4_OK);
	assert_int_equal(open_name(v, s->other, &how, &s->open_other), NFS4_OK);
	begin(v, "");
	create(v, NF4LNK, s->link);
	expect(v, NFS4_OK);
	begin(v, s->file);
	put_write(v, 0, bytes, sizeof(bytes));
	put_setxattr(v, "old", SETXATTR4_EITHER, "o", 1);
	expect(v, NFS4_OK);
	assert_int_equal(lock_it(v, &s->open, WRITE_LT, 0, 10, false, &s->lock), NFS4_OK);
	assert_int_equal(lock_it(v, &s->open_other, WRITE_LT, 0, 10, false, &s->unlocked), NFS4_OK);
	assert_int_equal(unlock_it(v, &s->open_other, 0, 10, &s->unlocked), NFS4_OK);
}

/* What all that the case may change has changed so often. */
struct changes {
	uint64_t root, file, other;
};
static uint64_t change_of(struct v4 *v, const char *path)
{
	begin(v, path);
	put_getattr(v, FATTR4_CHANGE);
	if (v4_send(v))
		return 0;
	at_end(v, 8);
	uint64_t value = 0;
	assert_true(xdr_get_u64(&v->rpc.in, &value));
	return value;
}
static struct changes changes_of(struct v4 *v, const struct subject *s)
{
	return (struct changes){change_of(v, ""), change_of(v, s->file), change_of(v, s->other)};
}

static void refused(struct v4 *v, uint32_t slot, uint32_t sequence, const struct replay_case *what,
	const struct subject *s, bool more, nfsstat4 want)
{
	uint32_t was = v->slot;

	v->slot = slot;
	v4_bare(v);
	v4_sequence(v, sequence);
	what->put(v, s);
	if (more)
		v4_op(v, OP_PUTROOTFH);
	v4_send(v);
	assert_int_equal(v4_result(v, OP_SEQUENCE), want);
	v->slot = was;
}

/* Sends what is put together twice before the first answer; whoever comes first does it, the other is told the same. */
static void send_twice(struct v4 *v, nfsstat4 want, struct sent *sent)
{
	unsigned told = 0;

	assert_true(client_send(&v->rpc) && client_send(&v->rpc));
	for (unsigned i = 0; i < 2; i++) {
		assert_true(client_receive(&v->rpc));
		client_reply(&v->rpc);
		if (v4_head(v) == NFS4ERR_DELAY) /* the other one is being done */
			continue;
		assert_int_equal(v->status, want);
		if (told++)
			same_bytes(v, sent);
		else
			sent_keep(sent, v);
	}
	assert_true(told);
}

/* A client that has RDMA speaks TCP for a while, in the same session. */
static bool tcp_begin(struct v4 *v)
{
	if (!client_over)
		return false;
	v->rpc.over = NULL;
	assert_true(client_connect(&v->rpc));
	return true;
}

static void tcp_end(struct v4 *v)
{
	v->rpc.over = client_over;
}

/* The case, in the slot: once done, and told again in every way. */
static void case_run(struct v4 *v, const struct replay_case *what, const struct subject *s, struct sent *sent)
{
	uint32_t number = ++v->sequence[v->slot], slot = v->slot;

	print_message("%s\n", what->name);
	refused(v, slot, number + 1, what, s, false, NFS4ERR_SEQ_MISORDERED); /* it came before the one before it */
	v4_bare(v);
	v4_sequence(v, number);
	what->put(v, s);
	send_twice(v, status_of(what), sent);
	v->slot = 0;
	struct changes before = changes_of(v, s);
	told_the_same(v, sent);
	assert_true(client_connect(&v->rpc));
	told_the_same(v, sent);
	if (tcp_begin(v)) {
		told_the_same(v, sent);
		v->rpc.uid = 77;
		refused(v, slot, number, what, s, false, NFS4ERR_SEQ_FALSE_RETRY);
		v->rpc.uid = 0;
		tcp_end(v);
	}
	refused(v, slot, number, what, s, true, NFS4ERR_SEQ_FALSE_RETRY);
	v->rpc.uid = 77;
	refused(v, slot, number, what, s, false, NFS4ERR_SEQ_FALSE_RETRY);
	v->rpc.uid = 0;
	refused(v, slot, number - 1, what, s, false, NFS4ERR_SEQ_MISORDERED);
	refused(v, slot, number + 2, what, s, false, NFS4ERR_SEQ_MISORDERED);
	told_the_same(v, sent);
	struct changes after = changes_of(v, s);
	assert_memory_equal(&before, &after, sizeof(before));
}

/* What was not to be kept is not told again, and not done again either. */
static void case_uncached(struct v4 *v, const struct replay_case *what, const struct subject *s)
{
	struct sent sent;

	v->cache = false;
	v4_begin(v);
	what->put(v, s);
	expect(v, status_of(what));
	sent_keep(&sent, v);
	v->slot = 0;
	v->cache = true;
	struct changes before = changes_of(v, s);
	SEQUENCE4resok res;
	nfsstat4 status = send_again(v, &sent);
	if (what->put == put_sequence_alone) {
		assert_int_equal(status, NFS4_OK); /* it costs nothing to keep */
	} else {
		nfsstat4 want = what->put == put_illegal ? NFS4ERR_OP_ILLEGAL : NFS4ERR_RETRY_UNCACHED_REP;
		uint32_t op, second;
		assert_int_equal(status, want);
		assert_int_equal(v4_result(v, OP_SEQUENCE), NFS4_OK);
		v4_take(v, SEQUENCE4resok, &res);
		assert_true(xdr_get_u32(&v->rpc.in, &op) && xdr_get_u32(&v->rpc.in, &second));
		assert_int_equal(second, want);
	}
	struct changes after = changes_of(v, s);
	assert_memory_equal(&before, &after, sizeof(before));
	sent_free(&sent);
}

/* ------------------------------------------------------------------------------------------------
 * After one
 */

static void killed(struct v4 *helper)
{
	static unsigned life;
	char owner[32];

	kill_and_start();
	snprintf(owner, sizeof(owner), "helper%u", life++);
	v4_fini(helper);
	v4_init(helper, run.port, 0, owner);
	helper->minor = 2;
	v4_connect(helper);
}

static void case_told(struct v4 *v, const struct replay_case *what, const struct subject *s, const struct sent *sent)
{
	/* all but its last operation were done; the second of two REMOVEs had failed, and now it is not tried again */
	nfsstat4 want = what->status ? NFS4ERR_DELAY : NFS4_OK;

	assert_int_equal(send_again(v, sent), want);
	if (!want && sent->reply_bytes > HANDLE_BYTES) /* GETFH comes last where there is one */
		if (!memcmp(sent->call + sent->call_bytes - 4, "\0\0\0\12", 4))
			assert_memory_equal(v->rpc.in.end - HANDLE_BYTES,
				sent->reply + sent->reply_bytes - HANDLE_BYTES, HANDLE_BYTES);
	refused(v, v->slot, v->sequence[v->slot], what, s, true, NFS4ERR_SEQ_FALSE_RETRY);
	v->rpc.uid = 77;
	refused(v, v->slot, v->sequence[v->slot], what, s, false, NFS4ERR_SEQ_FALSE_RETRY);
	v->rpc.uid = 0;
	assert_int_equal(send_again(v, sent), want);
	if (tcp_begin(v)) {
		assert_int_equal(send_again(v, sent), want);
		tcp_end(v);
	}
}

static void cases_after(struct v4 *v, struct v4 *helper, const struct subject *subjects, const struct sent *sent)
{
	assert_true(client_connect(&v->rpc));
	for (unsigned i = 0; i < CASES; i++) {
		struct changes before = changes_of(helper, &subjects[i]);

		print_message("%s\n", cases[i].name);
		v->slot = 1 + i;
		if (cases[i].told) {
			case_told(v, &cases[i], &subjects[i], &sent[i]);
		} else {
			assert_int_equal(send_again(v, &sent[i]), NFS4ERR_BADSESSION);
			refused(v, v->slot, v->sequence[v->slot], &cases[i], &subjects[i], true, NFS4ERR_BADSESSION);
		}
		/* and the next one, which is new, has no session */
		refused(v, v->slot, v->sequence[v->slot] + 1, &cases[i], &subjects[i], false, NFS4ERR_BADSESSION);
		struct changes after = changes_of(helper, &subjects[i]);
		assert_memory_equal(&before, &after, sizeof(before));
	}
}

static struct subject subjects[2 * CASES];
static struct sent sent[CASES];

static void every_operation(void **state)
{
	struct v4 v, helper;

	(void)state;
	join(&v, "every", 2);
	v4_init(&helper, run.port, 0, "helper");
	for (unsigned i = 0; i < CASES; i++) {
		v.slot = 0;
		subject_make(&v, &subjects[CASES + i], (unsigned)CASES + i);
		v.slot = 1 + i;
		case_uncached(&v, &cases[i], &subjects[CASES + i]);
	}
	for (unsigned i = 0; i < CASES; i++) {
		v.slot = 0;
		subject_make(&v, &subjects[i], i);
		v.slot = 1 + i;
		case_run(&v, &cases[i], &subjects[i], &sent[i]);
	}
	/* two lives later it is still known */
	for (unsigned life = 0; life < 2; life++) {
		killed(&helper);
		cases_after(&v, &helper, subjects, sent);
	}
	for (unsigned i = 0; i < CASES; i++)
		sent_free(&sent[i]);
	v4_fini(&helper);
	/* it wants nothing of what it had: nobody needs to wait for it */
	v4_connect(&v);
	assert_int_equal(v4_reclaim_complete(&v), NFS4_OK);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * The open of a file that was made before the restart
 */

/* It is told with a stateid that is as gone as all the others, and reclaimed like them. */
static void made_and_reclaimed(void **state)
{
	struct v4 v;
	struct opened file, again;
	OPEN4resok res;
	struct sent kept;

	(void)state;
	join(&v, "maker", 1);
	v.slot = 3;
	begin(&v, "");
	put_open(&v, "mine", &(struct how){.access = 3, .create = GUARDED4});
	v4_op(&v, OP_GETFH);
	expect(&v, NFS4_OK);
	sent_keep(&kept, &v);
	kill_and_start();
	assert_true(client_connect(&v.rpc));
	assert_int_equal(send_again(&v, &kept), NFS4_OK);
	SEQUENCE4resok sequence;
	assert_int_equal(v4_result(&v, OP_SEQUENCE), NFS4_OK);
	v4_take(&v, SEQUENCE4resok, &sequence);
	v4_took_root(&v);
	assert_int_equal(v4_result(&v, OP_OPEN), NFS4_OK);
	v4_take(&v, OPEN4resok, &res);
	file.stateid = res.stateid;
	take_fh(&v, &file.fh);
	assert_false(res.rflags & OPEN4_RESULT_CONFIRM);
	v4_connect(&v); /* the session is gone: a new one */
	struct how how = {.access = 3, .create = -1, .reclaim = &file.fh};
	assert_int_equal(open_name(&v, NULL, &how, &again), NFS4_OK);
	assert_int_equal(v4_reclaim_complete(&v), NFS4_OK);
	assert_int_equal(write_it(&v, &file, "stale"), NFS4ERR_BAD_STATEID);
	assert_int_equal(write_it(&v, &again, "reclaimed"), NFS4_OK);
	assert_int_equal(close_it(&v, &again), NFS4_OK);
	assert_int_equal(remove_name(&v, "mine"), NFS4_OK);
	sent_free(&kept);
	v4_end(&v);
}

/* A client that makes a new session and does it again there finds its own file by the verifier. */
static void exclusive_after_restart(void **state)
{
	struct v4 v;
	struct opened first, again;
	struct how how = {.access = 3, .create = EXCLUSIVE4_1, .verifier = 0x1234567890abcdef};

	(void)state;
	join(&v, "exclusive", 1);
	assert_int_equal(open_name(&v, "once", &how, &first), NFS4_OK);
	kill_and_start();
	v4_fini(&v);
	join(&v, "exclusive", 1); /* it does not want what it had */
	assert_int_equal(open_name(&v, "once", &how, &again), NFS4_OK);
	assert_memory_equal(first.fh.data, again.fh.data, first.fh.len);
	how.verifier++;
	assert_int_equal(open_name(&v, "once", &how, &first), NFS4ERR_EXIST);
	assert_int_equal(close_it(&v, &again), NFS4_OK);
	assert_int_equal(remove_name(&v, "once"), NFS4_OK);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------ */

static int setup(void **state)
{
	static const char exports[] = RUN_EXPORT_YAML "      - {clients: 10.0.0.0/8, access: rw, squash: none}\n";

	(void)state;
	run_init(&run, exports);
	run.rdma = rdma_client_address;
	run_write_config(&run, exports);
	run_start(&run);
	rdma_client_port = run.port;
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		rdma_client_address = argv[1];
		client_over = &rdma_client;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_operation),
		cmocka_unit_test(made_and_reclaimed),
		cmocka_unit_test(exclusive_after_restart),
	};
	return cmocka_run_group_tests(tests, setup, group_stop);
}
