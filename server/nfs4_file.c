/*
 * nfs4_file: operations on one object that are neither attributes nor data: ACCESS, READLINK, SECINFO, SECINFO_NO_NAME.
 *
 * Each runs in the fiber of its compound (nfs4.c), which has looked at the filehandle already. fs/ may wait. SECINFO
 * tells which kinds of credential the export's rule takes; it never says that one is wrong, for it is how a client
 * finds out.
 *
 * Error policy: as RFC 8881 has it for each operation; fs/'s errors go through nfs4_status().
 */
#include <errno.h>

#include "server/nfs4_internal.h"

nfsstat4 nfs4_op_access(struct nfs4_compound *c)
{
	const uint32_t known = ACCESS4_READ | ACCESS4_LOOKUP | ACCESS4_MODIFY | ACCESS4_EXTEND | ACCESS4_DELETE |
			       ACCESS4_EXECUTE |
			       (c->minor >= 2 ? ACCESS4_XAREAD | ACCESS4_XAWRITE | ACCESS4_XALIST : 0);
	static const struct config_allow pseudo_rule = {.write = false};
	ACCESS4args args;
	struct fs_attr attr;
	uint32_t allowed = FS_MAY_READ | FS_MAY_EXEC;
	const struct config_allow *rule = &pseudo_rule;
	nfsstat4 status = NFS4_OK;

	if (!xdr_decode_ACCESS4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (args.access & ~known)
		return NFS4ERR_INVAL;
	if (c->current.kind == NFS4_FH_FILE) {
		rule = c->current.rule;
		status = nfs4_status(fs_access(
			c->current.fs, &c->op, c->current.id, gate_rights_need(args.access), &allowed, &attr));
	} else {
		nfs4_pseudo_attr(c, &c->current, &attr);
	}
	if (status)
		return status;
	uint32_t granted = gate_rights(args.access, attr.type, allowed, rule);
	return nfs4_fits(c, xdr_put_u32(&c->req->out, args.access) && xdr_put_u32(&c->req->out, granted));
}

uint32_t nfs4_readlink_more(struct nfs4_compound *c)
{
	struct fs_attr attr;

	if (c->current.kind != NFS4_FH_FILE || fs_getattr(c->current.fs, c->current.id, &attr) || attr.type != FS_LNK)
		return 0;
	return xdr_round((uint32_t)attr.size);
}

nfsstat4 nfs4_op_readlink(struct nfs4_compound *c)
{
	struct xdr_out *out = &c->req->out;
	struct fs_attr attr = {.type = 0};

	/* the target is read straight to its place behind its length */
	if (!xdr_out_room(out, 4))
		return nfs4_fits(c, false);
	uint8_t *target = out->p + 4;
	size_t room = (size_t)(out->end - target) & ~(size_t)3;
	int len = fs_readlink(c->current.fs, &c->op, c->current.id, (char *)target, room, &attr);
	if (len == -EINVAL && attr.type && attr.type != FS_LNK)
		return NFS4ERR_WRONG_TYPE;
	if (len < 0)
		return nfs4_status(len);
	xdr_lay_u32(out, (uint32_t)len);
	memset(target + len, 0, xdr_round((uint32_t)len) - (uint32_t)len);
	out->p = target + xdr_round((uint32_t)len);
	return NFS4_OK;
}

/* secinfo4<>; the filehandle is used up (RFC 8881 2.6.3.1.1.8). */
static nfsstat4 put_secinfo(struct nfs4_compound *c, const struct nfs4_fh *fh)
{
	struct xdr_out *out = &c->req->out;
	const struct config_allow *rule = fh->kind == NFS4_FH_FILE ? fh->rule : NULL;
	bool sys = !rule || rule->sec_sys, none = !rule || rule->sec_none;
	bool ok = xdr_put_u32(out, (uint32_t)sys + (uint32_t)none);

	if (sys)
		ok = ok && xdr_put_u32(out, NFS4_AUTH_SYS);
	if (none)
		ok = ok && xdr_put_u32(out, NFS4_AUTH_NONE);
	c->current.kind = NFS4_FH_NONE;
	nfs4_fh_changed(c);
	return nfs4_fits(c, ok);
}

nfsstat4 nfs4_op_secinfo(struct nfs4_compound *c)
{
	SECINFO4args args;
	struct nfs4_fh fh = c->current;
	struct fs_attr attr;

	if (!xdr_decode_SECINFO4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = nfs4_name_check(&args.name);
	if (status)
		return status;
	status = nfs4_fh_cross(c, &fh, &args.name);
	if (status == NFS4ERR_WRONGSEC)
		status = NFS4_OK;
	if (status == NFS4ERR_NOENT && fh.kind == NFS4_FH_FILE)
		status = nfs4_status(
			fs_lookup(fh.fs, &c->op, fh.id, (const char *)args.name.data, args.name.len, &attr, NULL));
	if (status == NFS4ERR_NOENT && fh.kind == NFS4_FH_FILE)
		status = nfs4_fh_cross_missing(c, &fh, &args.name);
	return status ? status : put_secinfo(c, &fh);
}

nfsstat4 nfs4_op_secinfo_no_name(struct nfs4_compound *c)
{
	SECINFO_NO_NAME4args args;
	nfsstat4 status = NFS4_OK;

	if (!xdr_decode_SECINFO_NO_NAME4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (args.style == SECINFO_STYLE4_PARENT)
		status = nfs4_fh_parent(c);
	if (status == NFS4ERR_WRONGSEC)
		status = NFS4_OK;
	return status ? status : put_secinfo(c, &c->current);
}
