/*
 * nfs3: the NFSv3 program (RFC 1813): its table of procedures, its one table of errors.
 *
 * Life of a call: rpcrdma/ starts a fiber with the call's arguments; the procedure decodes them, passes the gate with
 * the file handle they name, calls fs/, encodes, and leaves. Procedures stand in nfs3_file.c (attributes and the file
 * system as a whole), nfs3_io.c (data), nfs3_name.c (directories), nfs3_readdir.c.
 *
 * nfs3_enter() passes the gate (gate.c), refuses changes of a read-only export, and makes the mark that protects a
 * changing call against being done twice.
 *
 * Twice: a retransmission of a call that this process answered never gets here (the reply cache of rpcrdma/ has it).
 * One that an earlier process executed does, with the mark that fs/ stored in the same transaction, and then
 * the procedure only tells its success again, from the attributes of now.
 *
 * Error policy: fs/ returns a closed set of errno, and nfs3_status() maps exactly those; anything else is a fault of
 * ours, is logged, and becomes NFS3ERR_SERVERFAULT. Arguments that cannot be decoded are GARBAGE_ARGS.
 *
 * No state besides the table of exports; fibers of all reactors run here.
 */
#include <errno.h>

#include "server/nfs4_state.h"

/* ------------------------------------------------------------------------------------------------
 * Errors
 */

static const struct {
	int error;
	nfsstat3 status;
} nfs3_errors[] = {
	{EPERM, NFS3ERR_PERM},
	{ENOENT, NFS3ERR_NOENT},
	{EIO, NFS3ERR_IO},
	{EACCES, NFS3ERR_ACCES},
	{EEXIST, NFS3ERR_EXIST},
	{EXDEV, NFS3ERR_XDEV},
	{ENOTDIR, NFS3ERR_NOTDIR},
	{EISDIR, NFS3ERR_ISDIR},
	{EINVAL, NFS3ERR_INVAL},
	{EFBIG, NFS3ERR_FBIG},
	{ENOSPC, NFS3ERR_NOSPC},
	{EROFS, NFS3ERR_ROFS},
	{EMLINK, NFS3ERR_MLINK},
	{ENAMETOOLONG, NFS3ERR_NAMETOOLONG},
	{ENOTEMPTY, NFS3ERR_NOTEMPTY},
	{EDQUOT, NFS3ERR_DQUOT},
	{ESTALE, NFS3ERR_STALE},
	{EBADF, NFS3ERR_BADHANDLE},
	{EOPNOTSUPP, NFS3ERR_NOTSUPP},
	/* both pass: the client waits and sends the call again with another xid */
	{EBUSY, NFS3ERR_JUKEBOX},
	{EAGAIN, NFS3ERR_JUKEBOX},
};

nfsstat3 nfs3_status(int result)
{
	if (result >= 0)
		return NFS3_OK;
	for (unsigned i = 0; i < sizeof(nfs3_errors) / sizeof(nfs3_errors[0]); i++)
		if (nfs3_errors[i].error == -result)
			return nfs3_errors[i].status;
	log_error("nfs3", "the file system returned an error outside of its set errno=%d", -result);
	return NFS3ERR_SERVERFAULT;
}

nfsstat3 nfs3_name_check(const struct xdr_opaque *name, nfsstat3 dots)
{
	if (name->len > FS_NAME_MAX)
		return NFS3ERR_NAMETOOLONG;
	if (!name->len || memchr(name->data, 0, name->len) || memchr(name->data, '/', name->len))
		return NFS3ERR_INVAL;
	if (dots && name->data[0] == '.' && (name->len == 1 || (name->len == 2 && name->data[1] == '.')))
		return dots;
	return NFS3_OK;
}

/* ------------------------------------------------------------------------------------------------
 * The way in
 */

nfsstat3 nfs3_enter(struct nfs3_call *call, struct rpc_request *req, const struct nfs_fh3 *fh, unsigned needs)
{
	call->req = req;
	call->id = (struct fs_id){0};
	call->fs = NULL;
	call->replay = NULL;
	call->exports = exports_get();
	if (!call->exports)
		return NFS3ERR_JUKEBOX; /* the server is stopping or has just begun */
	int rc = gate_handle(call->exports, fh->data.data, fh->data.len, &call->id, &call->export);
	if (rc)
		return nfs3_status(rc);
	if (gate_caller(req, call->export, &call->rule, &call->cred))
		return NFS3ERR_ACCES;
	call->op = (struct fs_op){.cred = &call->cred, .owner_override = needs & NFS3_OWNER_OVERRIDE};
	call->fs = call->export->fs;
	if ((needs & NFS3_WRITES) && !call->rule->write)
		return NFS3ERR_ROFS;
	/* an NFSv4 client that keeps what it writes to itself gives it back first; changes ask for more (see below) */
	if (!(needs & NFS3_WRITES) && nfs4_deleg_break_read(call->fs, call->id, NULL))
		return NFS3ERR_JUKEBOX;

	if (req->procedure->flags & RPC_PROC_CACHED) {
		call->mark = (struct fs_reply){
			.client = req->tag.client,
			.xid = req->tag.xid,
			.proc = req->tag.procedure,
			.checksum = req->tag.checksum,
			.time_ns = wall_ns(),
		};
		call->op.reply = &call->mark;
		if (req->replay && req->replay_bytes == sizeof(struct fs_reply))
			call->replay = req->replay;
	}
	return NFS3_OK;
}

nfsstat3 nfs3_enter_second(struct nfs3_call *call, const struct nfs_fh3 *fh, struct fs_id *id)
{
	const struct export *export;
	nfsstat3 status = nfs3_status(gate_handle(call->exports, fh->data.data, fh->data.len, id, &export));

	return status || export == call->export ? status : NFS3ERR_XDEV;
}

nfsstat3 nfs3_deleg_break(struct nfs3_call *call, struct fs_id id)
{
	return nfs4_deleg_break(call->fs, id, NULL) ? NFS3ERR_JUKEBOX : NFS3_OK;
}

nfsstat3 nfs3_deleg_break_name(struct nfs3_call *call, struct fs_id dir, const struct xdr_opaque *name)
{
	return nfs4_deleg_break_name(call->fs, &call->op, dir, name, NULL) ? NFS3ERR_JUKEBOX : NFS3_OK;
}

int nfs3_leave(struct nfs3_call *call, bool encoded)
{
	exports_put(call->exports);
	/* the rooms in the table below are worst cases, so this is a fault of ours */
	if (!encoded)
		log_error("nfs3", "reply does not fit procedure=%s", call->req->procedure->name);
	return encoded ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

/* ------------------------------------------------------------------------------------------------
 * The program
 */

static int nfs3_null(struct rpc_request *req)
{
	(void)req;
	return RPC_SUCCESS;
}

#define MADE_BYTES                                                                                                     \
	(4 + 4 + NFS3_HANDLE_BYTES + NFS3_POST_ATTR_BYTES + NFS3_WCC_BYTES) /* CREATE, MKDIR, SYMLINK, MKNOD */

static const struct rpc_procedure nfs3_procedures[] = {
	[NFSPROC3_NULL] = {"NULL", nfs3_null, 0, 0, NULL},
	[NFSPROC3_GETATTR] = {"GETATTR", nfs3_getattr, 0, 4 + NFS3_FATTR_BYTES, NULL},
	[NFSPROC3_SETATTR] = {"SETATTR", nfs3_setattr, RPC_PROC_CACHED, 4 + NFS3_WCC_BYTES, NULL},
	[NFSPROC3_LOOKUP] = {"LOOKUP", nfs3_lookup, 0, 4 + NFS3_HANDLE_BYTES + 2 * NFS3_POST_ATTR_BYTES, NULL},
	[NFSPROC3_ACCESS] = {"ACCESS", nfs3_access, 0, 4 + NFS3_POST_ATTR_BYTES + 4, NULL},
	[NFSPROC3_READLINK] = {"READLINK", nfs3_readlink, 0, 4 + NFS3_POST_ATTR_BYTES + 4 + FS_SYMLINK_MAX + 1, NULL},
	[NFSPROC3_READ] = {"READ", nfs3_read, 0, 4 + NFS3_POST_ATTR_BYTES + 4 + 4 + 4, NULL},
	[NFSPROC3_WRITE] = {"WRITE", nfs3_write, 0, 4 + NFS3_WCC_BYTES + 4 + 4 + NFS3_WRITEVERFSIZE, NULL},
	[NFSPROC3_CREATE] = {"CREATE", nfs3_create, RPC_PROC_CACHED, MADE_BYTES, NULL},
	[NFSPROC3_MKDIR] = {"MKDIR", nfs3_mkdir, RPC_PROC_CACHED, MADE_BYTES, NULL},
	[NFSPROC3_SYMLINK] = {"SYMLINK", nfs3_symlink, RPC_PROC_CACHED, MADE_BYTES, NULL},
	[NFSPROC3_MKNOD] = {"MKNOD", nfs3_mknod, RPC_PROC_CACHED, MADE_BYTES, NULL},
	[NFSPROC3_REMOVE] = {"REMOVE", nfs3_remove, RPC_PROC_CACHED, 4 + NFS3_WCC_BYTES, NULL},
	[NFSPROC3_RMDIR] = {"RMDIR", nfs3_rmdir, RPC_PROC_CACHED, 4 + NFS3_WCC_BYTES, NULL},
	[NFSPROC3_RENAME] = {"RENAME", nfs3_rename, RPC_PROC_CACHED, 4 + 2 * NFS3_WCC_BYTES, NULL},
	[NFSPROC3_LINK] = {"LINK", nfs3_link, RPC_PROC_CACHED, 4 + NFS3_POST_ATTR_BYTES + NFS3_WCC_BYTES, NULL},
	/* attributes and status also when the client leaves room for less */
	[NFSPROC3_READDIR] = {"READDIR", nfs3_readdir, 0, 4 + NFS3_POST_ATTR_BYTES, nfs3_readdir_more},
	[NFSPROC3_READDIRPLUS] = {"READDIRPLUS", nfs3_readdirplus, 0, 4 + NFS3_POST_ATTR_BYTES, nfs3_readdirplus_more},
	[NFSPROC3_FSSTAT] = {"FSSTAT", nfs3_fsstat, 0, 4 + NFS3_POST_ATTR_BYTES + 6 * 8 + 4, NULL},
	[NFSPROC3_FSINFO] = {"FSINFO", nfs3_fsinfo, 0, 4 + NFS3_POST_ATTR_BYTES + 7 * 4 + 8 + 8 + 4, NULL},
	[NFSPROC3_PATHCONF] = {"PATHCONF", nfs3_pathconf, 0, 4 + NFS3_POST_ATTR_BYTES + 6 * 4, NULL},
	[NFSPROC3_COMMIT] = {"COMMIT", nfs3_commit, 0, 4 + NFS3_WCC_BYTES + NFS3_WRITEVERFSIZE, NULL},
};

const struct rpc_program nfs3_program = {
	.program = NFS_PROGRAM,
	.version = NFS_V3,
	.name = "nfs3",
	.procedure = nfs3_procedures,
	.procedures = sizeof(nfs3_procedures) / sizeof(nfs3_procedures[0]),
};

/* ------------------------------------------------------------------------------------------------
 * Calls of an earlier life
 */

struct preload {
	struct rpc_server *rpc;
	unsigned count;
};

static void preload_one(void *arg, const struct fs_reply *reply)
{
	struct preload *preload = arg;
	struct rpc_tag tag = {
		.client = reply->client,
		.xid = reply->xid,
		.program = NFS_PROGRAM,
		.version = NFS_V3,
		.procedure = reply->proc,
		.checksum = reply->checksum,
	};

	if (nfs4_reply_is_ours(reply))
		return;
	if (!rpc_cache_preload(preload->rpc, &tag, reply, sizeof(*reply)))
		preload->count++;
}

void nfs3_replies_load(struct rpc_server *rpc, const char *name, struct fs *fs)
{
	struct preload preload = {.rpc = rpc};

	fs_replies_foreach(fs, preload_one, &preload);
	if (preload.count)
		log_info("nfs3", "calls answered before the restart are known filesystem=%s calls=%u", name,
			preload.count);
}
