/*
 * nfs4_xattr: extended attributes (RFC 8276): GETXATTR, SETXATTR, LISTXATTRS, REMOVEXATTR.
 *
 * Names on the wire have no namespace: they are those of "user." (RFC 8276 8.2). The others that fs/ knows are no
 * client's business. A value comes and goes in one piece, at most FS_XATTR_MAX bytes.
 *
 * Error policy: fs/ has ENOENT for an attribute that is not there: NFS4ERR_NOXATTR; too large is NFS4ERR_XATTR2BIG.
 *
 * No state; waits in fs/.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_state.h"

#define SPACE "user."
#define SPACE_BYTES 5u
#define KEY_MAX (FS_NAME_MAX - SPACE_BYTES)

static nfsstat4 key_make(const struct xdr_opaque *name, char key[FS_NAME_MAX])
{
	if (!name->len || memchr(name->data, 0, name->len))
		return NFS4ERR_INVAL;
	if (name->len > KEY_MAX)
		return NFS4ERR_NAMETOOLONG;
	memcpy(key, SPACE, SPACE_BYTES);
	memcpy(key + SPACE_BYTES, name->data, name->len);
	return NFS4_OK;
}

static nfsstat4 xattr_status(int rc)
{
	return rc == -ENOENT ? NFS4ERR_NOXATTR : rc == -EFBIG ? NFS4ERR_XATTR2BIG : nfs4_status(rc);
}

/* ------------------------------------------------------------------------------------------------
 * One attribute
 */

/* The value's size, or 0 where the operation itself will tell why there is none. */
uint32_t nfs4_getxattr_more(struct nfs4_compound *c)
{
	struct xdr_in in = c->req->in;
	struct xdr_pool pool = c->req->pool;
	GETXATTR4args args;
	char key[FS_NAME_MAX];
	size_t size = 0;

	in.pool = &pool;
	if (c->current.kind != NFS4_FH_FILE || !xdr_decode_GETXATTR4args(&in, &args) || key_make(&args.gxa_name, key))
		return 0;
	if (fs_getxattr(c->current.fs, &c->op, c->current.id, key, SPACE_BYTES + args.gxa_name.len, NULL, 0, &size))
		return 0;
	return xdr_round((uint32_t)size);
}

nfsstat4 nfs4_op_getxattr(struct nfs4_compound *c)
{
	GETXATTR4args args;
	char key[FS_NAME_MAX];
	struct xdr_out *out = &c->req->out;
	size_t size = 0, room = (size_t)(out->end - out->p);

	if (!xdr_decode_GETXATTR4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = key_make(&args.gxa_name, key);
	if (status)
		return status;
	if (room < 8)
		return nfs4_fits(c, false);
	room = (room - 4) & ~(size_t)3;
	if (room > nfs4_result_room(c))
		room = nfs4_result_room(c) & ~3u;
	int rc = fs_getxattr(
		c->current.fs, &c->op, c->current.id, key, SPACE_BYTES + args.gxa_name.len, out->p + 4, room, &size);
	if (rc)
		return xattr_status(rc);
	if (size > room)
		return NFS4ERR_DELAY; /* it has become longer since room was made */
	xdr_lay_u32(out, (uint32_t)size);
	memset(out->p + size, 0, xdr_round((uint32_t)size) - size);
	out->p += xdr_round((uint32_t)size);
	return NFS4_OK;
}

nfsstat4 nfs4_op_setxattr(struct nfs4_compound *c)
{
	SETXATTR4args args;
	char key[FS_NAME_MAX];
	struct fs_wcc wcc = {.valid = false};

	if (!xdr_decode_SETXATTR4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = key_make(&args.sxa_key, key);
	if (!status && args.sxa_value.len > FS_XATTR_MAX)
		status = NFS4ERR_XATTR2BIG;
	if (!status && !c->told)
		status = nfs4_deleg_break(c->current.fs, c->current.id, c->client);
	if (status)
		return status;
	if (c->told)
		return nfs4_fits(c, nfs4_put_change_info(&c->req->out, &wcc));
	struct buf *value = buf_alloc(args.sxa_value.len ? args.sxa_value.len : 1);
	struct slice to = {.buf = value, .off = 0, .len = args.sxa_value.len};
	if (args.sxa_value.len && rpc_payload_fetch(c->req, &args.sxa_value, &to, 1)) {
		buf_put(value);
		c->drop = true;
		return NFS4ERR_IO;
	}
	enum fs_xattr_mode mode = args.sxa_option == SETXATTR4_CREATE	 ? FS_XATTR_CREATE
				  : args.sxa_option == SETXATTR4_REPLACE ? FS_XATTR_REPLACE
									 : FS_XATTR_EITHER;
	int rc = fs_setxattr(c->current.fs, &c->op, c->current.id, key, SPACE_BYTES + args.sxa_key.len, value->data,
		args.sxa_value.len, mode, &wcc);
	buf_put(value);
	return rc ? xattr_status(rc) : nfs4_fits(c, nfs4_put_change_info(&c->req->out, &wcc));
}

nfsstat4 nfs4_op_removexattr(struct nfs4_compound *c)
{
	REMOVEXATTR4args args;
	char key[FS_NAME_MAX];
	struct fs_wcc wcc = {.valid = false};

	if (!xdr_decode_REMOVEXATTR4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = key_make(&args.rxa_name, key);
	if (!status && !c->told)
		status = nfs4_deleg_break(c->current.fs, c->current.id, c->client);
	if (status)
		return status;
	int rc = 0;
	if (!c->told)
		rc = fs_removexattr(c->current.fs, &c->op, c->current.id, key, SPACE_BYTES + args.rxa_name.len, &wcc);
	return rc ? xattr_status(rc) : nfs4_fits(c, nfs4_put_change_info(&c->req->out, &wcc));
}

/* ------------------------------------------------------------------------------------------------
 * All
 */

struct listing {
	struct xdr_out out;
	uint64_t index, from; /* position in the list: what our cookies are, after 2 for none */
	uint32_t count;
	bool full;
};

static bool listing_name(void *arg, const char *name, size_t len)
{
	struct listing *l = arg;

	if (len <= SPACE_BYTES || memcmp(name, SPACE, SPACE_BYTES))
		return true;
	if (l->index < l->from) {
		l->index++;
		return true;
	}
	if (!xdr_put_opaque(&l->out, name + SPACE_BYTES, (uint32_t)(len - SPACE_BYTES))) {
		l->full = true;
		return false;
	}
	l->index++;
	l->count++;
	return true;
}

#define LIST_HEAD_BYTES 12u /* cookie, number of names */
#define LIST_END_BYTES 4u   /* eof */

static uint32_t limit_of(struct nfs4_compound *c, uint32_t maxcount)
{
	uint32_t room = nfs4_result_room(c), most = NFS4_DIR_MAX;

	if (maxcount < most)
		most = maxcount;
	return room < most ? room : most;
}

uint32_t nfs4_listxattrs_more(struct nfs4_compound *c)
{
	struct xdr_in in = c->req->in;
	uint64_t cookie;
	uint32_t maxcount;

	return xdr_get_u64(&in, &cookie) && xdr_get_u32(&in, &maxcount) ? limit_of(c, maxcount) : 0;
}

nfsstat4 nfs4_op_listxattrs(struct nfs4_compound *c)
{
	LISTXATTRS4args args;
	struct xdr_out *out = &c->req->out;
	struct listing l = {.count = 0};
	uint64_t cookie = 0;
	bool eof = false;

	if (!xdr_decode_LISTXATTRS4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	uint32_t limit = limit_of(c, args.lxa_maxcount);
	if (limit < LIST_HEAD_BYTES + LIST_END_BYTES || !xdr_out_room(out, limit))
		return NFS4ERR_TOOSMALL;
	l.from = args.lxa_cookie;
	l.out = *out;
	l.out.end = out->p + limit - LIST_END_BYTES;
	l.out.p += LIST_HEAD_BYTES;
	while (!eof && !l.full) {
		int rc = fs_listxattr(c->current.fs, &c->op, c->current.id, &cookie, listing_name, &l, &eof);
		if (rc)
			return xattr_status(rc);
	}
	if (l.full && !l.count)
		return NFS4ERR_TOOSMALL;
	if (l.index < l.from)
		return NFS4ERR_BAD_COOKIE;
	xdr_lay_u64(out, l.index);
	xdr_lay_u32(out, l.count);
	out->p = l.out.p;
	return nfs4_fits(c, xdr_put_bool(out, !l.full));
}
