/*
 * nfs3_io: READ, WRITE and COMMIT.
 *
 * READ: fs/ gives referenced slices of its buffers; they are attached to the reply and go out as they are (an RDMA
 * Write or a gathered send), and rpcrdma/ puts the references when the reply has left. No byte is copied here.
 *
 * WRITE: only the header of the call has been decoded; the payload still is in the client's memory (RDMA) or in the
 * receive buffer (TCP). Buffers are taken whose place fits the file offset, the payload is fetched into them, and fs/
 * keeps them by reference. The gate comes first, so nothing is fetched for a caller who may not write.
 *
 * The write verifier tells a client whether unstable data may have been lost between its WRITE and its COMMIT. A loss
 * must never fall between reading it and the promise: so it is read before a WRITE, and after a COMMIT.
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

static int read_or_execute(struct nfs3_call *call, uint64_t off, uint32_t *count, struct slice *v, unsigned *n,
	bool *eof, struct fs_attr *attr)
{
	uint32_t wanted = *count, allowed = 0;
	unsigned room = *n;
	int rc = fs_read(call->fs, &call->op, call->id, off, count, v, n, eof, attr);

	if (rc != -EACCES || fs_access(call->fs, &call->op, call->id, FS_MAY_EXEC, &allowed, attr) ||
		!(allowed & FS_MAY_EXEC) || attr->type != FS_REG)
		return rc;
	struct fs_cred root = {.uid = 0};
	struct fs_op op = {.cred = &root};
	*count = wanted;
	*n = room;
	return fs_read(call->fs, &op, call->id, off, count, v, n, eof, attr);
}

int nfs3_read(struct rpc_request *req)
{
	struct nfs3_call call;
	READ3args args;
	struct fs_attr attr = {.type = 0};
	struct slice v[FS_READ_SLICES];
	unsigned n = FS_READ_SLICES;
	bool eof = false;
	struct xdr_out *out = &req->out;

	if (!xdr_decode_READ3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	uint32_t count = args.count < NFS3_IO_MAX ? args.count : NFS3_IO_MAX;
	if (count > req->reply_payload_max)
		count = req->reply_payload_max;
	/* no file is longer, so what lies beyond reads as the end */
	uint64_t off = args.offset < FS_SIZE_MAX ? args.offset : FS_SIZE_MAX;
	if (count > FS_SIZE_MAX - off)
		count = (uint32_t)(FS_SIZE_MAX - off);

	nfsstat3 status = nfs3_enter(&call, req, &args.file, NFS3_OWNER_OVERRIDE);
	if (!status)
		status = io_status(read_or_execute(&call, off, &count, v, &n, &eof, &attr));
	nfs3_fill_attr(&call, call.id, &attr);
	bool ok = xdr_put_u32(out, status) && nfs3_put_post_attr(out, call.fs ? call.export->fsid : 0, &attr);
	if (!status) {
		struct xdr_payload payload = {.len = count};
		ok = ok && xdr_put_u32(out, count) && xdr_put_u32(out, eof) && xdr_put_payload(out, &payload);
		if (!ok)
			slices_put(v, n);
		else if (rpc_payload_attach(req, v, n)) /* takes the references over, also when it fails */
			ok = false;
	}
	return nfs3_leave(&call, ok);
}

/* As many as the smallest buffers need for the largest WRITE at any offset. */
#define WRITE_SLICES 258

int nfs3_write(struct rpc_request *req)
{
	struct nfs3_call call;
	WRITE3args args;
	struct fs_wcc wcc = {.valid = false};
	struct slice v[WRITE_SLICES];
	enum fs_stable committed = FS_FILE_SYNC;
	uint64_t verifier = 0;
	struct xdr_out *out = &req->out;

	if (!xdr_decode_WRITE3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	nfsstat3 status = nfs3_enter(&call, req, &args.file, NFS3_WRITES | NFS3_OWNER_OVERRIDE);
	if (!status && args.data.len != args.count)
		status = NFS3ERR_INVAL;
	/* never more than FSINFO offers */
	if (!status && args.data.len > NFS3_IO_MAX)
		status = NFS3ERR_INVAL;
	if (!status && (args.offset > FS_SIZE_MAX || args.count > FS_SIZE_MAX - args.offset))
		status = NFS3ERR_FBIG;
	if (!status) {
		enum fs_stable stable = args.stable == UNSTABLE	   ? FS_UNSTABLE
					: args.stable == DATA_SYNC ? FS_DATA_SYNC
								   : FS_FILE_SYNC;
		int n = args.count ? fs_write_buffers(args.offset, args.count, v, WRITE_SLICES) : 0;
		if (n >= 0) {
			if (n && rpc_payload_fetch(req, &args.data, v, (unsigned)n)) {
				slices_put(v, (unsigned)n);
				nfs3_leave(&call, true);
				return RPC_DROP;
			}
			verifier = fs_write_verifier(call.fs);
			status = io_status(fs_write(
				call.fs, &call.op, call.id, args.offset, v, (unsigned)n, stable, &committed, &wcc));
			slices_put(v, (unsigned)n);
		} else {
			status = nfs3_status(n);
		}
	}
	bool ok = xdr_put_u32(out, status) && nfs3_put_wcc(&call, call.id, &wcc);
	if (!status)
		ok = ok && xdr_put_u32(out, args.count) &&
		     xdr_put_u32(out, committed == FS_UNSTABLE	  ? UNSTABLE
				      : committed == FS_DATA_SYNC ? DATA_SYNC
								  : FILE_SYNC) &&
		     xdr_put_u64(out, verifier);
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
