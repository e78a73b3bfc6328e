/*
 * nfs4: the NFSv4 program, minor versions 1 and 2 (RFC 8881, RFC 7862, RFC 8276), and the engine of COMPOUND.
 *
 * Life of a compound, all in the fiber of its call: the head is read; then each operation's number, what the table says
 * about it is checked, and its handler runs (see nfs4_internal.h); the first that fails is the last. The reply grows in
 * one buffer behind a head whose status and count are filled in at the end. SEQUENCE, which comes first, ties the rest
 * to a slot of a session; a call that was done before is answered there from the slot and nothing else runs.
 *
 * Room: an operation runs only when the most that it can say, and an error of one more, fit what the session allows
 * (ca_maxresponsesize, ca_maxresponsesize_cached) and what the transport can carry. So nothing is done whose result
 * could not be told: NFS4ERR_REP_TOO_BIG comes before the deed.
 *
 * Minor version 0 is not served: it keeps its state by rules of its own. Parallel NFS, directory delegations, copies
 * between servers and the operations of version 0 get NFS4ERR_NOTSUPP.
 *
 * Error policy: arguments that cannot be decoded are NFS4ERR_BADXDR of their operation; a head that cannot,
 * GARBAGE_ARGS. fs/ returns a closed set of errno, and nfs4_status() maps exactly those.
 *
 * Access of several reactors: the counters alone. All else belongs to the compound, or see nfs4_client.c.
 */
#include <errno.h>

#include "server/nfs4_state.h"

/* ------------------------------------------------------------------------------------------------
 * Errors
 */

static const struct {
	int error;
	nfsstat4 status;
} nfs4_errors[] = {
	{EPERM, NFS4ERR_PERM},
	{ENOENT, NFS4ERR_NOENT},
	{EIO, NFS4ERR_IO},
	{EACCES, NFS4ERR_ACCESS},
	{EEXIST, NFS4ERR_EXIST},
	{EXDEV, NFS4ERR_XDEV},
	{ENOTDIR, NFS4ERR_NOTDIR},
	{EISDIR, NFS4ERR_ISDIR},
	{EINVAL, NFS4ERR_INVAL},
	{EFBIG, NFS4ERR_FBIG},
	{ENOSPC, NFS4ERR_NOSPC},
	{EROFS, NFS4ERR_ROFS},
	{EMLINK, NFS4ERR_MLINK},
	{ENAMETOOLONG, NFS4ERR_NAMETOOLONG},
	{ENOTEMPTY, NFS4ERR_NOTEMPTY},
	{EDQUOT, NFS4ERR_DQUOT},
	{ESTALE, NFS4ERR_STALE},
	{EBADF, NFS4ERR_BADHANDLE},
	{EOPNOTSUPP, NFS4ERR_NOTSUPP},
	/* both pass: the client waits and asks again */
	{EBUSY, NFS4ERR_DELAY},
	{EAGAIN, NFS4ERR_DELAY},
};

nfsstat4 nfs4_status(int result)
{
	if (result >= 0)
		return NFS4_OK;
	for (unsigned i = 0; i < sizeof(nfs4_errors) / sizeof(nfs4_errors[0]); i++)
		if (nfs4_errors[i].error == -result)
			return nfs4_errors[i].status;
	log_error("nfs4", "the file system returned an error outside of its set errno=%d", -result);
	return NFS4ERR_SERVERFAULT;
}

nfsstat4 nfs4_name_check(const struct xdr_opaque *name)
{
	if (!name->len)
		return NFS4ERR_INVAL;
	if (name->len > FS_NAME_MAX)
		return NFS4ERR_NAMETOOLONG;
	if (memchr(name->data, 0, name->len) || memchr(name->data, '/', name->len))
		return NFS4ERR_BADCHAR;
	/* these are no names here: LOOKUPP goes up */
	if (name->data[0] == '.' && (name->len == 1 || (name->len == 2 && name->data[1] == '.')))
		return NFS4ERR_BADNAME;
	return NFS4_OK;
}

/* ------------------------------------------------------------------------------------------------
 * Operations
 */

#define WRITES (NFS4_OP_FH | NFS4_OP_CHANGES)
#define FILES (NFS4_OP_FH | NFS4_OP_FILE)
#define ONCE NFS4_OP_MARKED
#define AGAIN NFS4_OP_REPLAYED
#define CHANGE NFS4_CHANGE_INFO_BYTES
#define STATEID NFS4_STATEID_BYTES
/* what LOCK and LOCKT tell of the lock in the way */
#define DENIED (8u + 8u + 4u + 8u + 4u + NFS4_OPAQUE_LIMIT)
/* stateid, change, flags, attributes set, and the largest delegation: for writing, with an entry of an ACL */
#define OPENED (STATEID + CHANGE + 4u + NFS4_BITS_BYTES + 4u + STATEID + 4u + 12u + 16u + 32u)
#define CHANNEL (6u * 4u + 8u)
#define EXCHANGED (8u + 4u + 4u + 4u + 8u + 4u + 64u + 4u + 64u + 4u + 4u + 64u + 4u + 64u + 12u)

static uint32_t test_stateid_more(struct nfs4_compound *c)
{
	struct xdr_in in = c->req->in;
	uint32_t count;

	return xdr_get_u32(&in, &count) && count <= xdr_in_left(&in) / NFS4_STATEID_BYTES ? 4 * count : 0;
}

const struct nfs4_op nfs4_ops[OP_REMOVEXATTR + 1] = {
	[OP_ACCESS] = {"ACCESS", nfs4_op_access, NFS4_OP_FH | AGAIN, 8, 0, NULL},
	[OP_CLOSE] = {"CLOSE", nfs4_op_close, FILES, STATEID, NFS4ERR_BAD_STATEID, NULL},
	[OP_COMMIT] = {"COMMIT", nfs4_op_commit, FILES, NFS4_VERIFIER_SIZE, NFS4ERR_ISDIR, NULL},
	[OP_CREATE] = {"CREATE", nfs4_op_create, WRITES | ONCE, CHANGE + NFS4_BITS_BYTES, 0, NULL},
	[OP_DELEGPURGE] = {"DELEGPURGE", NULL, 0, 0, 0, NULL},
	[OP_DELEGRETURN] = {"DELEGRETURN", nfs4_op_delegreturn, FILES, 0, NFS4ERR_BAD_STATEID, NULL},
	[OP_GETATTR] = {"GETATTR", nfs4_op_getattr, NFS4_OP_FH | AGAIN, 0, 0, nfs4_getattr_more},
	[OP_GETFH] = {"GETFH", nfs4_op_getfh, NFS4_OP_FH | AGAIN, 4 + HANDLE_BYTES, 0, NULL},
	[OP_LINK] = {"LINK", nfs4_op_link, WRITES | ONCE | NFS4_OP_SAVED, CHANGE, 0, NULL},
	[OP_LOCK] = {"LOCK", nfs4_op_lock, FILES, DENIED, NFS4ERR_ISDIR, NULL},
	[OP_LOCKT] = {"LOCKT", nfs4_op_lockt, FILES, DENIED, NFS4ERR_ISDIR, NULL},
	[OP_LOCKU] = {"LOCKU", nfs4_op_locku, FILES, STATEID, NFS4ERR_BAD_STATEID, NULL},
	[OP_LOOKUP] = {"LOOKUP", nfs4_op_lookup, NFS4_OP_FH | AGAIN, 0, 0, NULL},
	[OP_LOOKUPP] = {"LOOKUPP", nfs4_op_lookupp, NFS4_OP_FH | AGAIN, 0, 0, NULL},
	[OP_NVERIFY] = {"NVERIFY", nfs4_op_nverify, NFS4_OP_FH | AGAIN, 0, 0, NULL},
	[OP_OPEN] = {"OPEN", nfs4_op_open, NFS4_OP_FH | ONCE, OPENED, 0, NULL},
	[OP_OPENATTR] = {"OPENATTR", NULL, 0, 0, 0, NULL},
	[OP_OPEN_CONFIRM] = {"OPEN_CONFIRM", NULL, 0, 0, 0, NULL},
	[OP_OPEN_DOWNGRADE] = {"OPEN_DOWNGRADE", nfs4_op_open_downgrade, FILES, STATEID, NFS4ERR_BAD_STATEID, NULL},
	[OP_PUTFH] = {"PUTFH", nfs4_op_putfh, AGAIN, 0, 0, NULL},
	[OP_PUTPUBFH] = {"PUTPUBFH", nfs4_op_putrootfh, AGAIN, 0, 0, NULL}, /* RFC 8881 4.1.2: they may be one */
	[OP_PUTROOTFH] = {"PUTROOTFH", nfs4_op_putrootfh, AGAIN, 0, 0, NULL},
	[OP_READ] = {"READ", nfs4_op_read, FILES | NFS4_OP_DATA, 8, NFS4ERR_ISDIR, nfs4_read_more},
	[OP_READDIR] = {"READDIR", nfs4_op_readdir, NFS4_OP_FH, 0, 0, nfs4_readdir_more},
	[OP_READLINK] = {"READLINK", nfs4_op_readlink, FILES | AGAIN, 4, NFS4ERR_WRONG_TYPE, nfs4_readlink_more},
	[OP_REMOVE] = {"REMOVE", nfs4_op_remove, WRITES | ONCE, CHANGE, 0, NULL},
	[OP_RENAME] = {"RENAME", nfs4_op_rename, WRITES | ONCE | NFS4_OP_SAVED, 2 * CHANGE, 0, NULL},
	[OP_RENEW] = {"RENEW", NULL, 0, 0, 0, NULL},
	[OP_RESTOREFH] = {"RESTOREFH", nfs4_op_restorefh, AGAIN, 0, 0, NULL},
	[OP_SAVEFH] = {"SAVEFH", nfs4_op_savefh, NFS4_OP_FH | AGAIN, 0, 0, NULL},
	[OP_SECINFO] = {"SECINFO", nfs4_op_secinfo, NFS4_OP_FH, 4 + 2 * 4, 0, NULL},
	[OP_SETATTR] = {"SETATTR", nfs4_op_setattr, WRITES | ONCE, NFS4_BITS_BYTES, 0, NULL},
	[OP_SETCLIENTID] = {"SETCLIENTID", NULL, 0, 0, 0, NULL},
	[OP_SETCLIENTID_CONFIRM] = {"SETCLIENTID_CONFIRM", NULL, 0, 0, 0, NULL},
	[OP_VERIFY] = {"VERIFY", nfs4_op_verify, NFS4_OP_FH | AGAIN, 0, 0, NULL},
	[OP_WRITE] = {"WRITE", nfs4_op_write, WRITES | NFS4_OP_FILE, 8 + NFS4_VERIFIER_SIZE, NFS4ERR_ISDIR, NULL},
	[OP_RELEASE_LOCKOWNER] = {"RELEASE_LOCKOWNER", NULL, 0, 0, 0, NULL},
	[OP_BACKCHANNEL_CTL] = {"BACKCHANNEL_CTL", nfs4_op_backchannel_ctl, 0, 0, 0, NULL},
	[OP_BIND_CONN_TO_SESSION] = {"BIND_CONN_TO_SESSION", nfs4_op_bind_conn_to_session, NFS4_OP_NO_SESSION,
		NFS4_SESSIONID_SIZE + 8, 0, NULL},
	[OP_EXCHANGE_ID] = {"EXCHANGE_ID", nfs4_op_exchange_id, NFS4_OP_NO_SESSION, EXCHANGED, 0, NULL},
	[OP_CREATE_SESSION] = {"CREATE_SESSION", nfs4_op_create_session, NFS4_OP_NO_SESSION,
		NFS4_SESSIONID_SIZE + 8 + 2 * CHANNEL, 0, NULL},
	[OP_DESTROY_SESSION] = {"DESTROY_SESSION", nfs4_op_destroy_session, NFS4_OP_NO_SESSION, 0, 0, NULL},
	[OP_FREE_STATEID] = {"FREE_STATEID", nfs4_op_free_stateid, 0, 0, 0, NULL},
	[OP_GET_DIR_DELEGATION] = {"GET_DIR_DELEGATION", NULL, 0, 0, 0, NULL},
	[OP_GETDEVICEINFO] = {"GETDEVICEINFO", NULL, 0, 0, 0, NULL},
	[OP_GETDEVICELIST] = {"GETDEVICELIST", NULL, 0, 0, 0, NULL},
	[OP_LAYOUTCOMMIT] = {"LAYOUTCOMMIT", NULL, 0, 0, 0, NULL},
	[OP_LAYOUTGET] = {"LAYOUTGET", NULL, 0, 0, 0, NULL},
	[OP_LAYOUTRETURN] = {"LAYOUTRETURN", NULL, 0, 0, 0, NULL},
	[OP_SECINFO_NO_NAME] = {"SECINFO_NO_NAME", nfs4_op_secinfo_no_name, NFS4_OP_FH, 4 + 2 * 4, 0, NULL},
	[OP_SEQUENCE] = {"SEQUENCE", nfs4_op_sequence, 0, NFS4_SESSIONID_SIZE + 5 * 4, 0, NULL},
	[OP_SET_SSV] = {"SET_SSV", NULL, 0, 0, 0, NULL},
	[OP_TEST_STATEID] = {"TEST_STATEID", nfs4_op_test_stateid, 0, 4, 0, test_stateid_more},
	[OP_WANT_DELEGATION] = {"WANT_DELEGATION", NULL, 0, 0, 0, NULL},
	[OP_DESTROY_CLIENTID] = {"DESTROY_CLIENTID", nfs4_op_destroy_clientid, NFS4_OP_NO_SESSION, 0, 0, NULL},
	[OP_RECLAIM_COMPLETE] = {"RECLAIM_COMPLETE", nfs4_op_reclaim_complete, 0, 0, 0, NULL},
	[OP_ALLOCATE] = {"ALLOCATE", nfs4_op_allocate, WRITES | ONCE | NFS4_OP_FILE | NFS4_OP_V42, 0, NFS4ERR_ISDIR,
		NULL},
	[OP_COPY] = {"COPY", nfs4_op_copy, WRITES | NFS4_OP_FILE | NFS4_OP_SAVED | NFS4_OP_V42,
		4 + 8 + 4 + NFS4_VERIFIER_SIZE + 8, NFS4ERR_WRONG_TYPE, NULL},
	[OP_COPY_NOTIFY] = {"COPY_NOTIFY", NULL, NFS4_OP_V42, 0, 0, NULL},
	[OP_DEALLOCATE] = {"DEALLOCATE", nfs4_op_deallocate, WRITES | ONCE | NFS4_OP_FILE | NFS4_OP_V42, 0,
		NFS4ERR_ISDIR, NULL},
	[OP_IO_ADVISE] = {"IO_ADVISE", nfs4_op_io_advise, FILES | NFS4_OP_V42, NFS4_BITS_BYTES, NFS4ERR_ISDIR, NULL},
	[OP_LAYOUTERROR] = {"LAYOUTERROR", NULL, NFS4_OP_V42, 0, 0, NULL},
	[OP_LAYOUTSTATS] = {"LAYOUTSTATS", NULL, NFS4_OP_V42, 0, 0, NULL},
	[OP_OFFLOAD_CANCEL] = {"OFFLOAD_CANCEL", NULL, NFS4_OP_V42, 0, 0, NULL},
	[OP_OFFLOAD_STATUS] = {"OFFLOAD_STATUS", NULL, NFS4_OP_V42, 0, 0, NULL},
	[OP_READ_PLUS] = {"READ_PLUS", nfs4_op_read_plus, FILES | NFS4_OP_DATA | NFS4_OP_V42, 8, NFS4ERR_ISDIR,
		nfs4_read_plus_more},
	[OP_SEEK] = {"SEEK", nfs4_op_seek, FILES | NFS4_OP_V42, 12, NFS4ERR_ISDIR, NULL},
	[OP_WRITE_SAME] = {"WRITE_SAME", NULL, NFS4_OP_V42, 0, 0, NULL},
	[OP_CLONE] = {"CLONE", nfs4_op_clone, WRITES | ONCE | NFS4_OP_FILE | NFS4_OP_SAVED | NFS4_OP_V42, 0,
		NFS4ERR_WRONG_TYPE, NULL},
	[OP_GETXATTR] = {"GETXATTR", nfs4_op_getxattr, FILES | NFS4_OP_V42, 4, NFS4ERR_NOXATTR, nfs4_getxattr_more},
	[OP_SETXATTR] = {"SETXATTR", nfs4_op_setxattr, WRITES | ONCE | NFS4_OP_FILE | NFS4_OP_V42, CHANGE,
		NFS4ERR_NOTSUPP, NULL},
	[OP_LISTXATTRS] = {"LISTXATTRS", nfs4_op_listxattrs, FILES | NFS4_OP_V42, 0, NFS4ERR_NOTSUPP,
		nfs4_listxattrs_more},
	[OP_REMOVEXATTR] = {"REMOVEXATTR", nfs4_op_removexattr, WRITES | ONCE | NFS4_OP_FILE | NFS4_OP_V42, CHANGE,
		NFS4ERR_NOXATTR, NULL},
};

static const struct nfs4_op op_illegal = {.name = "ILLEGAL"};

/* For each operation, and one for all that are none. */
static struct {
	struct counter calls, errors;
	char labels[40];
} op_metrics[OP_REMOVEXATTR + 2];

static void metrics_init(void)
{
	for (unsigned i = 0; i < OP_REMOVEXATTR + 2; i++) {
		const char *name = i > OP_REMOVEXATTR ? op_illegal.name : nfs4_ops[i].name;
		if (!name || op_metrics[i].labels[0])
			continue;
		snprintf(op_metrics[i].labels, sizeof(op_metrics[i].labels), "op=\"%s\"", name);
		counter_register(&op_metrics[i].calls, "furrow_nfs4_operations_total", op_metrics[i].labels,
			"operations of NFSv4 compounds");
		counter_register(&op_metrics[i].errors, "furrow_nfs4_errors_total", op_metrics[i].labels,
			"of which with an error");
	}
}

/* ------------------------------------------------------------------------------------------------
 * Room
 */

#define OP_HEAD 8u   /* number and status */
#define OP_LEAST 12u /* an error; SETATTR has a bitmap too */

/* Bytes of the reply so far, with payload. */
static uint32_t reply_bytes(const struct nfs4_compound *c)
{
	return (uint32_t)(c->req->out.p - c->req->out.base) + c->payload_bytes;
}

uint32_t nfs4_result_room(const struct nfs4_compound *c)
{
	uint32_t max = c->cache && c->cache_max < c->out_max ? c->cache_max : c->out_max;
	uint32_t used = reply_bytes(c) + OP_LEAST; /* after it an error must still fit */
	uint32_t room = rpc_reply_room(c->req);

	max = max > used ? max - used : 0;
	room = room > OP_LEAST ? room - OP_LEAST : 0;
	return room < max ? room : max;
}

nfsstat4 nfs4_fits(struct nfs4_compound *c, bool encoded)
{
	if (encoded)
		return NFS4_OK;
	log_error("nfs4", "a result did not fit the room that was made for it op=%s", nfs4_ops[c->opnum].name);
	return NFS4ERR_SERVERFAULT;
}

/* Whether the operation may run as far as its reply goes; makes room for what is encoded. */
static nfsstat4 room_check(struct nfs4_compound *c, const struct nfs4_op *op)
{
	uint32_t more = op->result_more ? op->result_more(c) : 0;
	uint64_t need = (uint64_t)op->result_max + more;
	uint64_t used = reply_bytes(c) + OP_LEAST;

	if (used + need > c->out_max)
		return NFS4ERR_REP_TOO_BIG;
	if (c->cache && used + need > c->cache_max)
		return NFS4ERR_REP_TOO_BIG_TO_CACHE;
	if (op->flags & NFS4_OP_DATA)
		need = op->result_max + (op->run == nfs4_op_read_plus ? NFS4_READ_PLUS_HEADS : 0);
	need += OP_LEAST;
	if (!c->payload_bytes && xdr_out_room(&c->req->out, need)) /* no payload in line takes of the room */
		return NFS4_OK;
	if (rpc_reply_room(c->req) < need || rpc_reply_grow(c->req, (uint32_t)need))
		return NFS4ERR_REP_TOO_BIG;
	return NFS4_OK;
}

/* ------------------------------------------------------------------------------------------------
 * The engine
 */

static nfsstat4 session_check(const struct nfs4_compound *c, const struct nfs4_op *op)
{
	if (c->op_index)
		return c->opnum == OP_SEQUENCE		     ? NFS4ERR_SEQUENCE_POS
		       : c->opnum == OP_BIND_CONN_TO_SESSION ? NFS4ERR_NOT_ONLY_OP
							     : NFS4_OK;
	if (c->opnum == OP_SEQUENCE)
		return NFS4_OK;
	if (!(op->flags & NFS4_OP_NO_SESSION))
		return NFS4ERR_OP_NOT_IN_SESSION;
	return c->op_count == 1 ? NFS4_OK : NFS4ERR_NOT_ONLY_OP;
}

/* What the table says of an operation's filehandles. */
static nfsstat4 fh_check(const struct nfs4_compound *c, const struct nfs4_op *op)
{
	if ((op->flags & NFS4_OP_FH) && c->current.kind == NFS4_FH_NONE)
		return NFS4ERR_NOFILEHANDLE;
	if ((op->flags & NFS4_OP_SAVED) && c->saved.kind == NFS4_FH_NONE)
		return NFS4ERR_NOFILEHANDLE;
	if (!(op->flags & NFS4_OP_FH))
		return NFS4_OK;
	if (c->current.kind == NFS4_FH_PSEUDO) {
		if (op->flags & NFS4_OP_FILE)
			return op->pseudo_status;
		return op->flags & NFS4_OP_CHANGES ? NFS4ERR_ROFS : NFS4_OK;
	}
	return (op->flags & NFS4_OP_CHANGES) && !c->current.rule->write ? NFS4ERR_ROFS : NFS4_OK;
}

static nfsstat4 op_run(struct nfs4_compound *c, const struct nfs4_op *op)
{
	nfsstat4 status = op == &op_illegal ? NFS4ERR_OP_ILLEGAL : NFS4_OK;

	if (!status)
		status = c->uncached ? NFS4ERR_RETRY_UNCACHED_REP : session_check(c, op);
	if (!status && !op->run)
		status = NFS4ERR_NOTSUPP;
	if (!status && c->replay)
		status = nfs4_replay_op(c, op->flags);
	if (!status)
		status = fh_check(c, op);
	if (!status)
		status = room_check(c, op);
	if (status)
		return status;
	/* what a client does not want to be told again it can do again */
	c->op.reply = NULL;
	if ((op->flags & NFS4_OP_MARKED) && c->cache)
		nfs4_mark(c);
	return op->run(c);
}

static const struct nfs4_op *op_find(const struct nfs4_compound *c)
{
	if (c->opnum > OP_REMOVEXATTR || !nfs4_ops[c->opnum].name)
		return &op_illegal;
	const struct nfs4_op *op = &nfs4_ops[c->opnum];
	return (op->flags & NFS4_OP_V42) && c->minor < 2 ? &op_illegal : op;
}

/* Memory of the arguments that were used is used again, but for what the reply's payload needs. */
static void pool_reset(struct nfs4_compound *c, size_t *mark, unsigned *payloads)
{
	const struct xdr_in *in = &c->req->in;
	struct xdr_pool *pool = &c->req->pool;

	if (c->req->out.payloads != *payloads) {
		*payloads = c->req->out.payloads;
		*mark = pool->used;
	} else if (in->p == in->end || in->p < pool->base || in->p >= pool->base + pool->room) {
		pool->used = *mark; /* else a value that straddled two pieces is still being read there */
	}
}

static void word_set(struct rpc_request *req, size_t at, uint32_t value)
{
	value = __builtin_bswap32(value);
	memcpy(req->out.base + at, &value, 4);
}

/* One operation: number, status, result. */
static nfsstat4 op_step(struct nfs4_compound *c)
{
	struct xdr_out *out = &c->req->out;
	bool decoded = xdr_get_u32(&c->req->in, &c->opnum);
	const struct nfs4_op *op = decoded ? op_find(c) : &op_illegal;
	unsigned metric = op == &op_illegal ? OP_REMOVEXATTR + 1 : c->opnum;
	size_t at = (size_t)(out->p - out->base);

	if (!xdr_out_room(out, OP_LEAST) && rpc_reply_grow(c->req, OP_LEAST)) /* cannot be: it was reserved */
		return NFS4ERR_RESOURCE;
	xdr_lay_u64(out, (uint64_t)(op == &op_illegal ? (uint32_t)OP_ILLEGAL : c->opnum) << 32 | NFS4_OK);
	c->keep_result = false;
	nfsstat4 status = decoded ? op_run(c, op) : NFS4ERR_BADXDR;
	if (c->replayed)
		return status;
	counter_add(&op_metrics[metric].calls, 1);
	if (!status)
		return status;
	counter_add(&op_metrics[metric].errors, 1);
	if (!c->keep_result) {
		out->p = out->base + at + OP_HEAD;
		if (c->opnum == OP_SETATTR && decoded)
			xdr_put_u32(out, 0); /* the attributes that were set stand there with any status */
	}
	word_set(c->req, at + 4, status);
	return status;
}

static int compound_run(struct nfs4_compound *c, const struct xdr_opaque *tag)
{
	struct rpc_request *req = c->req;
	size_t start = (size_t)(req->out.p - req->out.base), mark = req->pool.used;
	size_t count_at = start + 8 + xdr_round(tag->len);
	unsigned payloads = 0;
	nfsstat4 status = NFS4_OK;

	uint32_t room = 12 + xdr_round(tag->len) + OP_LEAST;
	if (!xdr_out_room(&req->out, room) && rpc_reply_grow(req, room))
		return RPC_GARBAGE_ARGS;
	xdr_lay_u32(&req->out, NFS4_OK);
	xdr_lay_u32(&req->out, tag->len);
	if (tag->len)
		xdr_put_fixed(&req->out, tag->data, tag->len);
	xdr_lay_u32(&req->out, 0);
	if (c->minor < 1 || c->minor > 2) {
		word_set(req, start, NFS4ERR_MINOR_VERS_MISMATCH);
		return RPC_SUCCESS;
	}
	c->out_max = UINT32_MAX;
	c->start = start;
	for (c->op_index = 0; c->op_index < c->op_count && !status && !c->replayed; c->op_index++) {
		status = op_step(c);
		pool_reset(c, &mark, &payloads);
	}
	if (c->drop)
		return RPC_DROP;
	if (!c->replayed) {
		word_set(req, start, status);
		word_set(req, count_at, c->op_index);
	}
	return RPC_SUCCESS;
}

static int compound(struct rpc_request *req)
{
	struct nfs4_compound c;
	COMPOUND4args_head head;

	if (!xdr_decode_COMPOUND4args_head(&req->in, &head) || head.tag.len > NFS4_OPAQUE_LIMIT)
		return RPC_GARBAGE_ARGS;
	memset(&c, 0, offsetof(struct nfs4_compound, current_stateid));
	c.current.kind = c.saved.kind = NFS4_FH_NONE;
	c.req = req;
	c.exports = exports_get();
	if (!c.exports)
		return RPC_DROP; /* the server is stopping or has just begun */
	c.minor = head.minorversion;
	c.op_count = head.argarray_count;
	int rc = compound_run(&c, &head.tag);
	nfs4_sequence_end(&c, rc);
	exports_put(c.exports);
	return rc;
}

static int null(struct rpc_request *req)
{
	(void)req;
	return RPC_SUCCESS;
}

static const struct rpc_procedure nfs4_procedures[] = {
	[NFSPROC4_NULL] = {"NULL", null, 0, 0, NULL},
	[NFSPROC4_COMPOUND] = {"COMPOUND", compound, 0, 12, NULL},
};

const struct rpc_program nfs4_program = {
	.program = NFS4_PROGRAM,
	.version = NFS_V4,
	.name = "nfs4",
	.procedure = nfs4_procedures,
	.procedures = sizeof(nfs4_procedures) / sizeof(nfs4_procedures[0]),
};

int nfs4_start(const struct exports *exports)
{
	metrics_init();
	int rc = nfs4_state_init();
	if (!rc) {
		rc = nfs4_clients_init(exports);
		if (!rc)
			rc = nfs4_replay_start(exports);
		if (rc)
			nfs4_state_fini();
	}
	return rc;
}

void nfs4_stop(void)
{
	nfs4_deleg_stop();
	nfs4_state_fini();
	nfs4_clients_fini();
	nfs4_replay_stop();
}
