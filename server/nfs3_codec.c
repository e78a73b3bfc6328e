/*
 * nfs3_codec: the pieces that NFSv3 replies are made of.
 *
 * Arguments are decoded by the code that xdrgen.py makes. Results are written here field by field, from the file
 * system's own structures: their nested unions would only be filled to be taken apart again, and attributes go with
 * nearly every reply.
 *
 * Attributes "after" are optional in every reply (RFC 1813 2.6), but a client that gets none asks again, so they are
 * also taken for errors. A struct fs_attr with type 0 stands for "none".
 *
 * Times are 32 bits of seconds since 1970 without sign (RFC 1813 2.5), good until 2106; what does not fit becomes the
 * nearest that does.
 */
#include "server/nfs_internal.h"

static inline uint8_t *store_u32(uint8_t *p, uint32_t v)
{
	v = __builtin_bswap32(v);
	memcpy(p, &v, 4);
	return p + 4;
}

static inline uint8_t *store_u64(uint8_t *p, uint64_t v)
{
	v = __builtin_bswap64(v);
	memcpy(p, &v, 8);
	return p + 8;
}

static inline uint8_t *store_time(uint8_t *p, const struct timespec *t)
{
	int64_t seconds = t->tv_sec;
	p = store_u32(p, seconds < 0 ? 0 : seconds > UINT32_MAX ? UINT32_MAX : (uint32_t)seconds);
	return store_u32(p, (uint32_t)t->tv_nsec);
}

static uint32_t ftype(enum fs_type type)
{
	switch (type) {
	case FS_REG:
		return NF3REG;
	case FS_DIR:
		return NF3DIR;
	case FS_LNK:
		return NF3LNK;
	case FS_CHR:
		return NF3CHR;
	case FS_BLK:
		return NF3BLK;
	case FS_FIFO:
		return NF3FIFO;
	case FS_SOCK:
		return NF3SOCK;
	}
	return NF3REG;
}

static uint8_t *store_fattr(uint8_t *p, uint64_t fsid, const struct fs_attr *attr)
{
	p = store_u32(p, ftype(attr->type));
	p = store_u32(p, attr->mode & 07777);
	p = store_u32(p, attr->nlink);
	p = store_u32(p, attr->uid);
	p = store_u32(p, attr->gid);
	p = store_u64(p, attr->size);
	p = store_u64(p, attr->used_bytes);
	p = store_u32(p, attr->rdev_major);
	p = store_u32(p, attr->rdev_minor);
	p = store_u64(p, fs_snapshot_fsid(fsid, attr->id.snap));
	p = store_u64(p, attr->id.ino);
	p = store_time(p, &attr->atime);
	p = store_time(p, &attr->mtime);
	return store_time(p, &attr->ctime);
}

bool nfs3_put_fattr(struct xdr_out *out, uint64_t fsid, const struct fs_attr *attr)
{
	if (!xdr_out_room(out, NFS3_FATTR_BYTES))
		return false;
	out->p = store_fattr(out->p, fsid, attr);
	return true;
}

bool nfs3_put_post_attr(struct xdr_out *out, uint64_t fsid, const struct fs_attr *attr)
{
	if (!attr->type)
		return xdr_put_u32(out, 0);
	if (!xdr_out_room(out, NFS3_POST_ATTR_BYTES))
		return false;
	out->p = store_fattr(store_u32(out->p, 1), fsid, attr);
	return true;
}

bool nfs3_put_handle(struct xdr_out *out, const struct export *export, struct fs_id id)
{
	struct handle handle = {.export_id = export->id, .fsid = export->fsid, .id = id};

	if (!xdr_out_room(out, NFS3_HANDLE_BYTES))
		return false;
	out->p = store_u32(out->p, HANDLE_BYTES);
	handle_encode(&handle, export->handle_key, out->p);
	out->p += HANDLE_BYTES;
	return true;
}

void nfs3_fill_attr(struct nfs3_call *call, struct fs_id id, struct fs_attr *attr)
{
	if (attr->type || !call->fs)
		return;
	if (fs_getattr(call->fs, id, attr))
		attr->type = 0;
}

bool nfs3_put_wcc(struct nfs3_call *call, struct fs_id id, struct fs_wcc *wcc)
{
	struct xdr_out *out = &call->req->out;

	if (!call->fs)
		return xdr_put_u32(out, 0) && xdr_put_u32(out, 0);
	if (!wcc->valid) {
		struct fs_attr now = {.type = 0};
		nfs3_fill_attr(call, id, &now);
		return xdr_put_u32(out, 0) && nfs3_put_post_attr(out, call->export->fsid, &now);
	}
	if (!xdr_out_room(out, NFS3_WCC_BYTES))
		return false;
	out->p = store_u32(out->p, 1);
	out->p = store_u64(out->p, wcc->before.size);
	out->p = store_time(out->p, &wcc->before.mtime);
	out->p = store_time(out->p, &wcc->before.ctime);
	return nfs3_put_post_attr(out, call->export->fsid, &wcc->after);
}

static bool get_time(const struct nfstime3 *from, struct timespec *to)
{
	to->tv_sec = from->seconds;
	to->tv_nsec = (long)from->nseconds;
	return from->nseconds < NSEC_PER_SEC;
}

nfsstat3 nfs3_get_sattr(const struct sattr3 *from, struct fs_setattr *to)
{
	memset(to, 0, sizeof(*to));
	if (from->mode.set_it) {
		to->set |= FS_SET_MODE;
		to->mode = from->mode.mode & 07777;
	}
	if (from->uid.set_it) {
		to->set |= FS_SET_UID;
		to->uid = from->uid.uid;
	}
	if (from->gid.set_it) {
		to->set |= FS_SET_GID;
		to->gid = from->gid.gid;
	}
	if (from->size.set_it) {
		if (from->size.size > FS_SIZE_MAX)
			return NFS3ERR_FBIG;
		to->set |= FS_SET_SIZE;
		to->size = from->size.size;
	}
	if (from->atime.set_it == SET_TO_CLIENT_TIME) {
		to->set |= FS_SET_ATIME;
		if (!get_time(&from->atime.atime, &to->atime))
			return NFS3ERR_INVAL;
	} else if (from->atime.set_it == SET_TO_SERVER_TIME) {
		to->set |= FS_SET_ATIME_NOW;
	}
	if (from->mtime.set_it == SET_TO_CLIENT_TIME) {
		to->set |= FS_SET_MTIME;
		if (!get_time(&from->mtime.mtime, &to->mtime))
			return NFS3ERR_INVAL;
	} else if (from->mtime.set_it == SET_TO_SERVER_TIME) {
		to->set |= FS_SET_MTIME_NOW;
	}
	return NFS3_OK;
}
