/*
 * nfs3_file: procedures on one object's attributes and on the file system as a whole: GETATTR, SETATTR, ACCESS,
 * READLINK, FSSTAT, FSINFO, PATHCONF.
 *
 * Each runs in the fiber of its call, passes the gate (nfs3.c), waits in fs/, and encodes. Post-operation
 * attributes go with errors too, wherever the object could be found.
 */
#include <errno.h>

#include "server/nfs_internal.h"

int nfs3_getattr(struct rpc_request *req)
{
	struct nfs3_call call;
	GETATTR3args args;
	struct fs_attr attr;

	if (!xdr_decode_GETATTR3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	nfsstat3 status = nfs3_enter(&call, req, &args.object, 0);
	if (!status)
		status = nfs3_status(fs_getattr(call.fs, call.id, &attr));
	bool ok = xdr_put_u32(&req->out, status);
	if (!status)
		ok = ok && nfs3_put_fattr(&req->out, call.export->fsid, &attr);
	return nfs3_leave(&call, ok);
}

int nfs3_setattr(struct rpc_request *req)
{
	struct nfs3_call call;
	SETATTR3args args;
	struct fs_setattr set;
	struct fs_wcc wcc = {.valid = false};

	if (!xdr_decode_SETATTR3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	nfsstat3 status = nfs3_enter(&call, req, &args.object, NFS3_WRITES | NFS3_OWNER_OVERRIDE);
	if (!status && !call.replay) {
		struct timespec guard = {0};
		status = nfs3_get_sattr(&args.new_attributes, &set);
		if (!status && args.guard.check) {
			guard.tv_sec = args.guard.obj_ctime.seconds;
			guard.tv_nsec = (long)args.guard.obj_ctime.nseconds;
		}
		if (!status)
			status = nfs3_deleg_break(&call, call.id);
		if (!status) {
			int rc = fs_setattr(call.fs, &call.op, call.id, &set, args.guard.check ? &guard : NULL, &wcc);
			status = args.guard.check && rc == -EBUSY ? NFS3ERR_NOT_SYNC : nfs3_status(rc);
		}
	}
	bool ok = xdr_put_u32(&req->out, status) && nfs3_put_wcc(&call, call.id, &wcc);
	return nfs3_leave(&call, ok);
}

int nfs3_access(struct rpc_request *req)
{
	struct nfs3_call call;
	ACCESS3args args;
	struct fs_attr attr = {.type = 0};
	uint32_t allowed = 0, granted = 0;

	if (!xdr_decode_ACCESS3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	nfsstat3 status = nfs3_enter(&call, req, &args.object, 0);
	if (!status)
		status = nfs3_status(
			fs_access(call.fs, &call.op, call.id, gate_rights_need(args.access), &allowed, &attr));
	if (status)
		nfs3_fill_attr(&call, call.id, &attr);
	else
		granted = gate_rights(args.access, attr.type, allowed, call.rule);
	bool ok =
		xdr_put_u32(&req->out, status) && nfs3_put_post_attr(&req->out, call.fs ? call.export->fsid : 0, &attr);
	if (!status)
		ok = ok && xdr_put_u32(&req->out, granted);
	return nfs3_leave(&call, ok);
}

int nfs3_readlink(struct rpc_request *req)
{
	struct nfs3_call call;
	READLINK3args args;
	struct fs_attr attr = {.type = 0};
	struct xdr_out *out = &req->out;

	if (!xdr_decode_READLINK3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	nfsstat3 status = nfs3_enter(&call, req, &args.symlink, 0);
	/* the target is read straight to its place behind the attributes, which are known only then */
	uint8_t *start = out->p;
	if (!xdr_out_room(out, 4 + NFS3_POST_ATTR_BYTES + 4 + FS_SYMLINK_MAX + 1))
		return nfs3_leave(&call, false);
	uint8_t *target = start + 4 + NFS3_POST_ATTR_BYTES + 4;
	int len = 0;
	if (!status) {
		len = fs_readlink(call.fs, &call.op, call.id, (char *)target, FS_SYMLINK_MAX, &attr);
		status = nfs3_status(len);
	}
	if (call.fs)
		nfs3_fill_attr(&call, call.id, &attr);
	if (!status && !attr.type)
		status = NFS3ERR_STALE; /* gone since */
	bool ok = xdr_put_u32(out, status) && nfs3_put_post_attr(out, call.fs ? call.export->fsid : 0, &attr);
	if (!status && ok) {
		ok = xdr_put_u32(out, (uint32_t)len);
		memset(target + len, 0, xdr_round((uint32_t)len) - (uint32_t)len);
		out->p = target + xdr_round((uint32_t)len);
	}
	return nfs3_leave(&call, ok);
}

int nfs3_fsstat(struct rpc_request *req)
{
	struct nfs3_call call;
	FSSTAT3args args;
	struct fs_attr attr = {.type = 0};
	struct fs_statfs st;
	struct xdr_out *out = &req->out;

	if (!xdr_decode_FSSTAT3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	nfsstat3 status = nfs3_enter(&call, req, &args.fsroot, 0);
	if (!status)
		status = nfs3_status(fs_getattr(call.fs, call.id, &attr));
	if (status)
		attr.type = 0;
	else
		status = nfs3_status(fs_statfs(call.fs, &st));
	bool ok = xdr_put_u32(out, status) && nfs3_put_post_attr(out, call.fs ? call.export->fsid : 0, &attr);
	if (!status)
		ok = ok && xdr_put_u64(out, st.bytes_total) && xdr_put_u64(out, st.bytes_free) &&
		     xdr_put_u64(out, st.bytes_available) && xdr_put_u64(out, st.files_total) &&
		     xdr_put_u64(out, st.files_free) && xdr_put_u64(out, st.files_free) && xdr_put_u32(out, 0);
	return nfs3_leave(&call, ok);
}

int nfs3_fsinfo(struct rpc_request *req)
{
	struct nfs3_call call;
	FSINFO3args args;
	struct fs_attr attr = {.type = 0};
	struct xdr_out *out = &req->out;

	if (!xdr_decode_FSINFO3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	nfsstat3 status = nfs3_enter(&call, req, &args.fsroot, 0);
	if (!status)
		status = nfs3_status(fs_getattr(call.fs, call.id, &attr));
	if (status)
		attr.type = 0;
	bool ok = xdr_put_u32(out, status) && nfs3_put_post_attr(out, call.fs ? call.export->fsid : 0, &attr);
	if (!status)
		ok = ok && xdr_put_u32(out, NFS_IO_MAX) && xdr_put_u32(out, NFS_IO_MAX) && /* rtmax, rtpref */
		     xdr_put_u32(out, BLOCK_BYTES) &&					   /* rtmult */
		     xdr_put_u32(out, NFS_IO_MAX) && xdr_put_u32(out, NFS_IO_MAX) &&	   /* wtmax, wtpref */
		     xdr_put_u32(out, BLOCK_BYTES) &&					   /* wtmult */
		     xdr_put_u32(out, NFS3_DIR_MAX) &&					   /* dtpref */
		     xdr_put_u64(out, FS_SIZE_MAX) &&					   /* maxfilesize */
		     xdr_put_u32(out, 0) && xdr_put_u32(out, 1) &&			   /* time_delta: 1 ns */
		     xdr_put_u32(out, FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME);
	return nfs3_leave(&call, ok);
}

int nfs3_pathconf(struct rpc_request *req)
{
	struct nfs3_call call;
	PATHCONF3args args;
	struct fs_attr attr = {.type = 0};
	struct xdr_out *out = &req->out;

	if (!xdr_decode_PATHCONF3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	nfsstat3 status = nfs3_enter(&call, req, &args.object, 0);
	if (!status)
		status = nfs3_status(fs_getattr(call.fs, call.id, &attr));
	if (status)
		attr.type = 0;
	bool ok = xdr_put_u32(out, status) && nfs3_put_post_attr(out, call.fs ? call.export->fsid : 0, &attr);
	if (!status)
		ok = ok && xdr_put_u32(out, FS_LINK_MAX) && xdr_put_u32(out, FS_NAME_MAX) &&
		     xdr_put_u32(out, 1) && /* no_trunc: a name too long is an error */
		     xdr_put_u32(out, 1) && /* chown_restricted */
		     xdr_put_u32(out, 0) && /* case_insensitive */
		     xdr_put_u32(out, 1);   /* case_preserving */
	return nfs3_leave(&call, ok);
}
