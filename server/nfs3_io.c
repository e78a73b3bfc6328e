/*
 * nfs3_io: READ, WRITE and COMMIT.
 *
 * READ: fs/ gives referenced slices of its buffers; they are attached to the reply and go out as they are (an RDMA
 * Write or a gathered send), and rpcrdma/ puts the references when the reply has left. No byte is copied here. A
 * connection may hold only its share of that memory: what is more waits before anything is read.
 *
 * WRITE and the write verifier: see nfs_io.c.
 *
 * Permissions: there is no open in NFSv3, so the owner may always read and write, and whoever may execute a file may
 * read it (RFC 1813 4.4).
 */
#include <errno.h>

#include "server/nfs_internal.h"

/* RFC 1813 names NFS3ERR_INVAL for I/O on what is no regular file. */
static nfsstat3 io_status(int rc)
{
	return rc == -EISDIR ? NFS3ERR_INVAL : nfs3_status(rc);
}

/* The caller may not read, but whoever may execute may. */
static __attribute__((noinline)) int read_to_execute(struct nfs3_call *call, uint64_t off, uint32_t *count,
	struct slice *v, unsigned *n, bool *eof, struct fs_attr *attr)
{
	uint32_t allowed = 0;

	if (fs_access(call->fs, &call->op, call->id, FS_MAY_EXEC, &allowed, attr) || !(allowed & FS_MAY_EXEC) ||
		attr->type != FS_REG)
		return -EACCES;
	struct fs_cred root = {.uid = 0};
	struct fs_op op = {.cred = &root};
	return fs_read(call->fs, &op, call->id, off, count, v, n, eof, attr);
}

int nfs3_read(struct rpc_request *req)
{
	struct nfs3_call call;
	READ3args args;
	struct fs_attr attr;
	struct slice v[FS_READ_SLICES];
	unsigned n = FS_READ_SLICES;
	bool eof = false;
	struct xdr_out *out = &req->out;

	if (!xdr_decode_READ3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	uint32_t count = args.count < NFS_IO_MAX ? args.count : NFS_IO_MAX;
	if (count > req->reply_payload_max)
		count = req->reply_payload_max;
	/* no file is longer, so what lies beyond reads as the end */
	uint64_t off = args.offset < FS_SIZE_MAX ? args.offset : FS_SIZE_MAX;
	if (count > FS_SIZE_MAX - off)
		count = (uint32_t)(FS_SIZE_MAX - off);
	/* before the gate, so that who waits here holds nothing; what is read in the end may be less */
	if (rpc_payload_reserve(req, count))
		return RPC_DROP;

	attr.type = 0;
	nfsstat3 status = nfs3_enter(&call, req, &args.file, NFS3_OWNER_OVERRIDE);
	if (!status) {
		uint32_t wanted = count;
		int rc = fs_read(call.fs, &call.op, call.id, off, &count, v, &n, &eof, &attr);
		if (rc == -EACCES) {
			count = wanted;
			rc = read_to_execute(&call, off, &count, v, &n, &eof, &attr);
		}
		status = io_status(rc);
	}
	nfs3_fill_attr(&call, call.id, &attr);
	bool ok = xdr_put_u32(out, status) && nfs3_put_post_attr(out, call.fs ? call.export->fsid : 0, &attr);
	if (!status) {
		ok = ok && xdr_put_u32(out, count) && xdr_put_u32(out, eof);
		if (!ok)
			slices_put(v, n);
		else
			ok = !nfs_put_payload(req, count, v, n);
	}
	return nfs3_leave(&call, ok);
}

int nfs3_write(struct rpc_request *req)
{
	struct nfs3_call call;
	WRITE3args args;
	struct xdr_out *out = &req->out;

	if (!xdr_decode_WRITE3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	nfsstat3 status = nfs3_enter(&call, req, &args.file, NFS3_WRITES | NFS3_OWNER_OVERRIDE);
	/* never more than FSINFO offers */
	if (!status && (args.data.len != args.count || args.data.len > NFS_IO_MAX))
		status = NFS3ERR_INVAL;
	if (!status && (args.offset > FS_SIZE_MAX || args.count > FS_SIZE_MAX - args.offset))
		status = NFS3ERR_FBIG;
	if (!status)
		status = nfs3_deleg_break(&call, call.id);
	struct nfs_write w = {
		.fs = call.fs,
		.op = &call.op,
		.id = call.id,
		.off = args.offset,
		.data = &args.data,
		.stable = args.stable == UNSTABLE    ? FS_UNSTABLE
			  : args.stable == DATA_SYNC ? FS_DATA_SYNC
						     : FS_FILE_SYNC,
	};
	if (!status) {
		int rc = nfs_write(req, &w);
		if (rc == -ECONNRESET) {
			nfs3_leave(&call, true);
			return RPC_DROP;
		}
		status = io_status(rc);
	}
	bool ok = xdr_put_u32(out, status) && nfs3_put_wcc(&call, call.id, &w.wcc);
	if (!status)
		ok = ok && xdr_put_u32(out, args.count) &&
		     xdr_put_u32(out, w.committed == FS_UNSTABLE    ? UNSTABLE
				      : w.committed == FS_DATA_SYNC ? DATA_SYNC
								    : FILE_SYNC) &&
		     xdr_put_u64(out, w.verifier);
	return nfs3_leave(&call, ok);
}

int nfs3_commit(struct rpc_request *req)
{
	struct nfs3_call call;
	COMMIT3args args;
	struct fs_wcc wcc = {.valid = false};
	uint64_t verifier = 0;

	if (!xdr_decode_COMMIT3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	nfsstat3 status = nfs3_enter(&call, req, &args.file, NFS3_WRITES | NFS3_OWNER_OVERRIDE);
	/* count 0: from there to the end of the file */
	if (!status)
		status = io_status(fs_commit(call.fs, &call.op, call.id, args.offset, args.count, &wcc));
	if (!status)
		verifier = fs_write_verifier(call.fs);
	bool ok = xdr_put_u32(&req->out, status) && nfs3_put_wcc(&call, call.id, &wcc);
	if (!status)
		ok = ok && xdr_put_u64(&req->out, verifier);
	return nfs3_leave(&call, ok);
}
