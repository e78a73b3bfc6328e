/*
 * nfs3_name: procedures on names in directories: LOOKUP, CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.
 *
 * All but LOOKUP change something, must not be done twice, and take the same way: decode, gate, check the name, then
 * either the operation, or, for a call that was done before a restart (call.replay), nothing; then the reply. A
 * replayed reply has the attributes of now, and no attributes "before", so the client throws its cache of the directory
 * away.
 *
 * Names are bytes: any but NUL and '/', 1 to 255 of them.
 *
 * Error policy: as the RFC lists for each procedure; attributes of the directories go with errors, too.
 */
#include <errno.h>

#include "server/nfs_internal.h"

int nfs3_lookup(struct rpc_request *req)
{
	struct nfs3_call call;
	LOOKUP3args args;
	struct fs_attr attr = {.type = 0}, dir_attr = {.type = 0};
	struct xdr_out *out = &req->out;

	if (!xdr_decode_LOOKUP3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	const struct xdr_opaque *name = &args.what.name;
	nfsstat3 status = nfs3_enter(&call, req, &args.what.dir, 0);
	if (!status)
		status = nfs3_name_check(name, NFS3_OK);
	if (!status)
		status = nfs3_status(
			fs_lookup(call.fs, &call.op, call.id, (const char *)name->data, name->len, &attr, &dir_attr));
	nfs3_fill_attr(&call, call.id, &dir_attr);
	uint64_t fsid = call.fs ? call.export->fsid : 0;
	bool ok = xdr_put_u32(out, status);
	if (!status)
		ok = ok && nfs3_put_handle(out, call.export, attr.id) && nfs3_put_post_attr(out, fsid, &attr);
	ok = ok && nfs3_put_post_attr(out, fsid, &dir_attr);
	return nfs3_leave(&call, ok);
}

/* ------------------------------------------------------------------------------------------------
 * Making objects
 */

/* Who is not root gives nothing away: an owner is set at creation by root only, a group by its members. */
static void set_restrict(const struct fs_cred *cred, struct fs_setattr *set)
{
	if (!cred->uid)
		return;
	if (set->uid != cred->uid)
		set->set &= ~FS_SET_UID;
	bool member = set->gid == cred->gid;
	for (uint32_t i = 0; i < cred->group_count && !member; i++)
		member = set->gid == cred->groups[i];
	if (!member)
		set->set &= ~FS_SET_GID;
}

/* The reply that CREATE, MKDIR, SYMLINK and MKNOD share. */
static int made_leave(struct nfs3_call *call, nfsstat3 status, struct fs_attr *attr, struct fs_wcc *dir_wcc)
{
	struct xdr_out *out = &call->req->out;
	bool ok = xdr_put_u32(out, status);

	if (!status) {
		struct fs_id id = attr->id;
		if (call->replay) {
			id = call->replay->id;
			attr->type = 0;
			nfs3_fill_attr(call, id, attr);
		}
		ok = ok && xdr_put_u32(out, 1) && nfs3_put_handle(out, call->export, id) &&
		     nfs3_put_post_attr(out, call->export->fsid, attr);
	}
	ok = ok && nfs3_put_wcc(call, call->id, dir_wcc);
	return nfs3_leave(call, ok);
}

int nfs3_create(struct rpc_request *req)
{
	struct nfs3_call call;
	CREATE3args args;
	struct fs_setattr set = {.set = 0};
	struct fs_attr attr;
	struct fs_wcc wcc = {.valid = false};
	enum fs_create_mode mode = FS_CREATE_UNCHECKED;
	uint64_t verifier = 0;

	if (!xdr_decode_CREATE3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	const struct xdr_opaque *name = &args.where.name;
	nfsstat3 status = nfs3_enter(&call, req, &args.where.dir, NFS3_WRITES);
	if (!status && !call.replay) {
		status = nfs3_name_check(name, NFS3ERR_EXIST);
		if (args.how.mode == EXCLUSIVE) {
			mode = FS_CREATE_EXCLUSIVE;
			memcpy(&verifier, args.how.verf, sizeof(verifier));
		} else {
			mode = args.how.mode == GUARDED ? FS_CREATE_GUARDED : FS_CREATE_UNCHECKED;
			if (!status)
				status = nfs3_get_sattr(&args.how.obj_attributes, &set);
			set_restrict(&call.cred, &set);
		}
		if (!status && (set.set & FS_SET_SIZE))
			status = nfs3_deleg_break_name(&call, call.id, name);
		if (!status) {
			int rc = fs_create_file(call.fs, &call.op, call.id, (const char *)name->data, name->len, mode,
				&set, verifier, &attr, &wcc);
			/* what is there and is no regular file: the RFC has EXIST for it here */
			status = rc == -EISDIR ? NFS3ERR_EXIST : nfs3_status(rc);
		}
	}
	return made_leave(&call, status, &attr, &wcc);
}

int nfs3_mkdir(struct rpc_request *req)
{
	struct nfs3_call call;
	MKDIR3args args;
	struct fs_setattr set;
	struct fs_attr attr;
	struct fs_wcc wcc = {.valid = false};

	if (!xdr_decode_MKDIR3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	const struct xdr_opaque *name = &args.where.name;
	nfsstat3 status = nfs3_enter(&call, req, &args.where.dir, NFS3_WRITES);
	if (!status && !call.replay) {
		status = nfs3_name_check(name, NFS3ERR_EXIST);
		if (!status)
			status = nfs3_get_sattr(&args.attributes, &set);
		if (!status) {
			set_restrict(&call.cred, &set);
			set.set &= ~FS_SET_SIZE; /* means nothing for a directory */
			status = nfs3_status(fs_mkdir(
				call.fs, &call.op, call.id, (const char *)name->data, name->len, &set, &attr, &wcc));
		}
	}
	return made_leave(&call, status, &attr, &wcc);
}

static nfsstat3 target_check(const struct xdr_opaque *target)
{
	return !target->len || memchr(target->data, 0, target->len) ? NFS3ERR_INVAL : NFS3_OK;
}

/*
 * The target may come like the payload of a WRITE, in a Read chunk (RFC 8267): then it is fetched into *BUF, which the
 * caller puts. -EIO: the connection is lost.
 */
static int target_fetch(
	struct rpc_request *req, const struct xdr_payload *payload, struct xdr_opaque *target, struct buf **buf)
{
	*target = (struct xdr_opaque){.data = payload->inline_data, .len = payload->len};
	if (payload->inline_data || !payload->len)
		return 0;
	*buf = buf_alloc(FS_SYMLINK_MAX + 1);
	struct slice to = {.buf = *buf, .off = 0, .len = payload->len};
	target->data = (*buf)->data;
	return rpc_payload_fetch(req, payload, &to, 1);
}

int nfs3_symlink(struct rpc_request *req)
{
	struct nfs3_call call;
	SYMLINK3args args;
	struct fs_setattr set;
	struct fs_attr attr;
	struct fs_wcc wcc = {.valid = false};
	struct xdr_opaque target;
	struct buf *buf = NULL;

	if (!xdr_decode_SYMLINK3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	const struct xdr_opaque *name = &args.where.name;
	nfsstat3 status = nfs3_enter(&call, req, &args.where.dir, NFS3_WRITES);
	if (!status && !call.replay) {
		status = nfs3_name_check(name, NFS3ERR_EXIST);
		if (!status && args.symlink.symlink_data.len > FS_SYMLINK_MAX)
			status = NFS3ERR_NAMETOOLONG;
		if (!status && target_fetch(req, &args.symlink.symlink_data, &target, &buf)) {
			buf_put(buf);
			nfs3_leave(&call, true);
			return RPC_DROP;
		}
		if (!status)
			status = target_check(&target);
		if (!status)
			status = nfs3_get_sattr(&args.symlink.symlink_attributes, &set);
		if (!status) {
			set_restrict(&call.cred, &set);
			set.set &= ~FS_SET_SIZE;
			status = nfs3_status(fs_symlink(call.fs, &call.op, call.id, (const char *)name->data, name->len,
				(const char *)target.data, target.len, &set, &attr, &wcc));
		}
		buf_put(buf);
	}
	return made_leave(&call, status, &attr, &wcc);
}

int nfs3_mknod(struct rpc_request *req)
{
	struct nfs3_call call;
	MKNOD3args args;
	struct fs_setattr set;
	struct fs_attr attr;
	struct fs_wcc wcc = {.valid = false};
	enum fs_type type = FS_REG;
	bool device = false;

	if (!xdr_decode_MKNOD3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	const struct xdr_opaque *name = &args.where.name;
	nfsstat3 status = nfs3_enter(&call, req, &args.where.dir, NFS3_WRITES);
	if (!status && !call.replay) {
		switch (args.what.type) {
		case NF3CHR:
			type = FS_CHR;
			device = true;
			break;
		case NF3BLK:
			type = FS_BLK;
			device = true;
			break;
		case NF3SOCK:
			type = FS_SOCK;
			break;
		case NF3FIFO:
			type = FS_FIFO;
			break;
		default:
			status = NFS3ERR_BADTYPE;
		}
		if (!status)
			status = nfs3_name_check(name, NFS3ERR_EXIST);
		/* a device file is a key to the client's hardware */
		if (!status && device && call.cred.uid)
			status = NFS3ERR_PERM;
		if (!status)
			status = nfs3_get_sattr(
				device ? &args.what.device.dev_attributes : &args.what.pipe_attributes, &set);
		if (!status) {
			set_restrict(&call.cred, &set);
			set.set &= ~FS_SET_SIZE;
			status = nfs3_status(fs_mknod(call.fs, &call.op, call.id, (const char *)name->data, name->len,
				type, device ? args.what.device.spec.specdata1 : 0,
				device ? args.what.device.spec.specdata2 : 0, &set, &attr, &wcc));
		}
	}
	return made_leave(&call, status, &attr, &wcc);
}

/* ------------------------------------------------------------------------------------------------
 * Removing and moving names
 */

int nfs3_remove(struct rpc_request *req)
{
	struct nfs3_call call;
	REMOVE3args args;
	struct fs_wcc wcc = {.valid = false};

	if (!xdr_decode_REMOVE3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	const struct xdr_opaque *name = &args.object.name;
	nfsstat3 status = nfs3_enter(&call, req, &args.object.dir, NFS3_WRITES);
	if (!status && !call.replay) {
		status = nfs3_name_check(name, NFS3ERR_ACCES);
		if (!status)
			status = nfs3_deleg_break_name(&call, call.id, name);
		if (!status)
			status = nfs3_status(
				fs_unlink(call.fs, &call.op, call.id, (const char *)name->data, name->len, &wcc));
	}
	bool ok = xdr_put_u32(&req->out, status) && nfs3_put_wcc(&call, call.id, &wcc);
	return nfs3_leave(&call, ok);
}

int nfs3_rmdir(struct rpc_request *req)
{
	struct nfs3_call call;
	RMDIR3args args;
	struct fs_wcc wcc = {.valid = false};

	if (!xdr_decode_RMDIR3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	const struct xdr_opaque *name = &args.object.name;
	nfsstat3 status = nfs3_enter(&call, req, &args.object.dir, NFS3_WRITES);
	if (!status && !call.replay) {
		/* RFC 1813 3.3.13 tells the two apart */
		status = nfs3_name_check(name, name->len == 1 ? NFS3ERR_INVAL : NFS3ERR_EXIST);
		if (!status)
			status = nfs3_status(
				fs_rmdir(call.fs, &call.op, call.id, (const char *)name->data, name->len, &wcc));
	}
	bool ok = xdr_put_u32(&req->out, status) && nfs3_put_wcc(&call, call.id, &wcc);
	return nfs3_leave(&call, ok);
}

static bool put_no_wcc(struct xdr_out *out)
{
	return xdr_put_u32(out, 0) && xdr_put_u32(out, 0);
}

int nfs3_rename(struct rpc_request *req)
{
	struct nfs3_call call;
	RENAME3args args;
	struct fs_wcc from_wcc = {.valid = false}, to_wcc = {.valid = false};
	struct fs_id to_dir = {0};
	bool to_known = false;

	if (!xdr_decode_RENAME3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	const struct xdr_opaque *from = &args.from.name, *to = &args.to.name;
	nfsstat3 status = nfs3_enter(&call, req, &args.from.dir, NFS3_WRITES);
	if (!status) {
		status = nfs3_enter_second(&call, &args.to.dir, &to_dir);
		to_known = !status;
	}
	if (!status && !call.replay) {
		status = nfs3_name_check(from, NFS3ERR_INVAL);
		if (!status)
			status = nfs3_name_check(to, NFS3ERR_INVAL);
		if (!status)
			status = nfs3_deleg_break_name(&call, call.id, from);
		if (!status)
			status = nfs3_deleg_break_name(&call, to_dir, to);
		if (!status)
			status = nfs3_status(fs_rename(call.fs, &call.op, call.id, (const char *)from->data, from->len,
				to_dir, (const char *)to->data, to->len, &from_wcc, &to_wcc));
	}
	bool ok = xdr_put_u32(&req->out, status) && nfs3_put_wcc(&call, call.id, &from_wcc) &&
		  (to_known ? nfs3_put_wcc(&call, to_dir, &to_wcc) : put_no_wcc(&req->out));
	return nfs3_leave(&call, ok);
}

int nfs3_link(struct rpc_request *req)
{
	struct nfs3_call call;
	LINK3args args;
	struct fs_attr attr = {.type = 0};
	struct fs_wcc wcc = {.valid = false};
	struct fs_id dir = {0};
	bool dir_known = false;

	if (!xdr_decode_LINK3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	const struct xdr_opaque *name = &args.link.name;
	nfsstat3 status = nfs3_enter(&call, req, &args.file, NFS3_WRITES);
	if (!status) {
		status = nfs3_enter_second(&call, &args.link.dir, &dir);
		dir_known = !status;
	}
	if (!status && !call.replay) {
		status = nfs3_name_check(name, NFS3ERR_EXIST);
		if (!status)
			status = nfs3_deleg_break(&call, call.id);
		if (!status)
			status = nfs3_status(fs_link(
				call.fs, &call.op, call.id, dir, (const char *)name->data, name->len, &attr, &wcc));
		if (status)
			attr.type = 0;
	}
	nfs3_fill_attr(&call, call.id, &attr);
	bool ok = xdr_put_u32(&req->out, status) &&
		  nfs3_put_post_attr(&req->out, call.fs ? call.export->fsid : 0, &attr) &&
		  (dir_known ? nfs3_put_wcc(&call, dir, &wcc) : put_no_wcc(&req->out));
	return nfs3_leave(&call, ok);
}
