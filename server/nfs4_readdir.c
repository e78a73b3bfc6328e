/*
 * nfs4_readdir: READDIR of directories, and of the pseudo directories above the exports.
 *
 * Entries are encoded straight into the reply while fs/ walks the directory, each with the attributes that the client
 * wants; the first that does not fit ends it, and the client comes again with the last cookie it got. A cookie is the
 * entry's sequence number, which is never used twice, so no verifier is needed: it is always zero. "." and ".." have
 * cookies 1 and 2 and are not told (RFC 8881 18.23.3).
 *
 * Limits: maxcount bounds the whole result, dircount names and cookies alone and is a wish: one entry is given in any
 * case. When not one entry fits, NFS4ERR_TOOSMALL. A maxcount larger than our own limit, or than the session or the
 * transport have room for, is made smaller.
 *
 * A name under which another export lies is told with the attributes of that one's root, whose fsid tells the client of
 * the crossing. A name that the file system does not have is not told, though LOOKUP finds an export there.
 *
 * The walk calls back from the reactor that owns the directory, while this fiber waits for it; nothing else touches the
 * reply meanwhile.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_internal.h"

struct listing {
	struct nfs4_compound *c;
	struct xdr_out out; /* its end is where the limit is, less the list's own end */
	struct nfs4_bits wanted;
	struct fs_statfs statfs;
	uint32_t names_left; /* of dircount */
	unsigned entries;
	struct nfs4_crossing *crossing; /* exports in the directory */
	unsigned crossings;
	unsigned asked;
	bool asks; /* the walk ended because it must be found out what the owners of these are called */
	struct fs_attr of;
};

#define ASK_MAX 3u /* then owners are told as numbers */
#define LIST_HEAD_BYTES NFS4_VERIFIER_SIZE
#define LIST_END_BYTES 8u /* no entry follows; eof */

/* Either the whole entry, or nothing and the walk ends. */
static bool listing_put(
	struct listing *l, uint64_t cookie, const char *name, size_t len, const struct nfs4_object *object)
{
	uint8_t *start = l->out.p;
	uint32_t names = 4 + 8 + 4 + xdr_round((uint32_t)len);

	if (l->entries && names > l->names_left)
		return false;
	if (!xdr_put_u32(&l->out, 1) || !xdr_put_u64(&l->out, cookie) ||
		!xdr_put_opaque(&l->out, name, (uint32_t)len) || !nfs4_put_fattr(l->c, &l->out, &l->wanted, object)) {
		l->out.p = start;
		return false;
	}
	l->names_left -= names < l->names_left ? names : l->names_left;
	l->entries++;
	return true;
}

static bool listing_entry(void *arg, const struct fs_dirent *entry)
{
	struct listing *l = arg;
	struct nfs4_object object = {.fh = &l->c->current, .attr = entry->attr, .statfs = &l->statfs};

	if (entry->cookie <= 2)
		return true;
	if (!entry->attr) /* it goes at this moment */
		return true;
	for (unsigned i = 0; i < l->crossings; i++) {
		const struct nfs4_crossing *to = &l->crossing[i];
		if (strlen(to->name) == entry->name_len && !memcmp(to->name, entry->name, entry->name_len)) {
			object.fh = &to->fh;
			object.attr = &to->attr;
		}
	}
	if (l->asked < ASK_MAX && !nfs4_owners_known(&l->wanted, object.attr)) {
		l->asks = true;
		l->of = *object.attr;
		return false;
	}
	return listing_put(l, entry->cookie, entry->name, entry->name_len, &object);
}

static bool pseudo_walk(struct listing *l, uint64_t cookie)
{
	struct nfs4_pseudo_entry entry;

	while (nfs4_pseudo_next(l->c, cookie, &entry)) {
		struct fs_attr attr;
		struct nfs4_object object = {.fh = &entry.fh, .attr = &attr, .statfs = &l->statfs};
		cookie = entry.cookie;
		if (entry.fh.kind == NFS4_FH_PSEUDO)
			nfs4_pseudo_attr(l->c, &entry.fh, &attr);
		else if (entry.fh.kind != NFS4_FH_FILE || fs_getattr(entry.fh.fs, entry.fh.id, &attr))
			continue;
		nfs4_owners_ask(&l->wanted, &attr);
		if (!listing_put(l, entry.cookie, entry.name, entry.name_len, &object))
			return false;
	}
	return true;
}

static uint32_t limit_of(struct nfs4_compound *c, uint32_t maxcount)
{
	uint32_t room = nfs4_result_room(c), most = NFS4_DIR_MAX;

	if (maxcount < most)
		most = maxcount;
	return room < most ? room : most;
}

uint32_t nfs4_readdir_more(struct nfs4_compound *c)
{
	struct xdr_in in = c->req->in;
	uint8_t verifier[NFS4_VERIFIER_SIZE];
	uint64_t cookie;
	uint32_t dircount, maxcount;

	if (!xdr_get_u64(&in, &cookie) || !xdr_get_fixed(&in, verifier, sizeof(verifier)) ||
		!xdr_get_u32(&in, &dircount) || !xdr_get_u32(&in, &maxcount))
		return 0;
	return limit_of(c, maxcount);
}

/* Walks on from the cookie. *EOF: the directory ended. */
static nfsstat4 walk(struct listing *l, uint64_t cookie, bool *eof)
{
	struct nfs4_compound *c = l->c;

	if (c->current.kind == NFS4_FH_PSEUDO) {
		*eof = pseudo_walk(l, cookie);
		return NFS4_OK;
	}
	int rc = nfs4_fh_exports_in(c, &l->crossing, &l->crossings);
	if (rc)
		return nfs4_status(rc);
	/* a name that has to be asked for ends a page, but not before its first entry */
	do {
		l->asks = false;
		rc = fs_readdir(c->current.fs, &c->op, c->current.id, cookie, true, listing_entry, l, eof, NULL);
		if (l->asks)
			nfs4_owners_ask(&l->wanted, &l->of);
		l->asked++;
	} while (!rc && l->asks && !l->entries);
	free(l->crossing);
	return nfs4_status(rc);
}

nfsstat4 nfs4_op_readdir(struct nfs4_compound *c)
{
	static const verifier4 verifier_zero;
	READDIR4args args;
	struct listing l = {.c = c};
	struct xdr_out *out = &c->req->out;
	bool eof = false;

	if (!xdr_decode_READDIR4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (args.cookie == 1 || args.cookie == 2 || args.cookie > INT64_MAX)
		return NFS4ERR_BAD_COOKIE;
	if (args.cookie && memcmp(args.cookieverf, verifier_zero, sizeof(verifier_zero)))
		return NFS4ERR_NOT_SAME;
	l.wanted = nfs4_get_bits(&args.attr_request);
	if (nfs4_bit(&l.wanted, FATTR4_TIME_ACCESS_SET) || nfs4_bit(&l.wanted, FATTR4_TIME_MODIFY_SET))
		return NFS4ERR_INVAL;
	uint32_t limit = limit_of(c, args.maxcount);
	if (limit < LIST_HEAD_BYTES + LIST_END_BYTES)
		return NFS4ERR_TOOSMALL;
	if (!xdr_out_room(out, limit))
		return nfs4_fits(c, false);
	nfsstat4 status = nfs4_statfs_wanted(&l.wanted) ? nfs4_fh_statfs(c, &l.statfs) : NFS4_OK;
	if (status)
		return status;
	l.names_left = args.dircount ? args.dircount : UINT32_MAX;
	l.out = *out;
	l.out.end = out->p + limit - LIST_END_BYTES;
	l.out.p += LIST_HEAD_BYTES;
	status = walk(&l, args.cookie, &eof);
	if (status)
		return status;
	if (!l.entries && !eof)
		return NFS4ERR_TOOSMALL;
	memcpy(out->p, verifier_zero, sizeof(verifier_zero));
	out->p = l.out.p;
	return nfs4_fits(c, xdr_put_u32(out, 0) && xdr_put_u32(out, eof));
}
