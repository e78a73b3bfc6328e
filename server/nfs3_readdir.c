/*
 * nfs3_readdir: READDIR and READDIRPLUS.
 *
 * Entries are encoded straight into the reply while fs/ walks the directory; the first that does not fit ends it, and
 * the client comes again with the last cookie it got. A cookie is the entry's sequence number, which is never used
 * twice, so no verifier is needed: it is always zero.
 *
 * Limits: "count" (READDIR) and "maxcount" (READDIRPLUS) bound the whole resok structure in XDR form; "dircount" bounds
 * names and cookies alone, and is a wish: one entry is given in any case, or a client with a small one would never get
 * on. When not one entry fits, NFS3ERR_TOOSMALL.
 *
 * The attributes of the directory stand before the entries but are known after them, so their room is left free
 * at first. The walk calls back from the reactor that owns the directory, while this fiber waits for it; nothing else
 * touches the reply meanwhile.
 */
#include <errno.h>

#include "server/nfs_internal.h"

struct listing {
	struct xdr_out out; /* its end is where the limit is, less the list's own end */
	const struct export *export;
	uint32_t names_left; /* of dircount */
	unsigned entries;
	bool plus;
};

#define LIST_END_BYTES 8u /* no entry follows; eof */
#define LIST_HEAD_BYTES (NFS3_POST_ATTR_BYTES + NFS3_COOKIEVERFSIZE)

/* Either the whole entry, or nothing and the walk ends. */
static bool listing_entry(void *arg, const struct fs_dirent *entry)
{
	struct listing *l = arg;
	uint8_t *start = l->out.p;
	uint32_t names = 4 + 8 + 4 + xdr_round((uint32_t)entry->name_len) + 8;

	if (l->plus && l->entries && names > l->names_left)
		return false;
	bool ok = xdr_put_u32(&l->out, 1) && xdr_put_u64(&l->out, entry->id.ino) &&
		  xdr_put_opaque(&l->out, entry->name, (uint32_t)entry->name_len) &&
		  xdr_put_u64(&l->out, entry->cookie);
	if (ok && l->plus) {
		static const struct fs_attr none;
		ok = nfs3_put_post_attr(&l->out, l->export->fsid, entry->attr ? entry->attr : &none) &&
		     xdr_put_u32(&l->out, 1) && nfs3_put_handle(&l->out, l->export, entry->id);
	}
	if (!ok) {
		l->out.p = start;
		return false;
	}
	l->names_left -= names < l->names_left ? names : l->names_left;
	l->entries++;
	return true;
}

static int list(struct rpc_request *req, const nfs_fh3 *dir, uint64_t cookie, const uint8_t *verifier,
	uint32_t dircount, uint32_t maxcount, bool plus)
{
	static const uint8_t verifier_zero[NFS3_COOKIEVERFSIZE];
	struct nfs3_call call;
	struct fs_attr dir_attr = {.type = 0};
	struct xdr_out *out = &req->out;
	struct listing l = {.names_left = dircount, .plus = plus};
	bool eof = false;
	uint8_t *start = out->p;
	size_t limit = maxcount < NFS3_DIR_MAX ? maxcount : NFS3_DIR_MAX;

	nfsstat3 status = nfs3_enter(&call, req, dir, 0);
	if (!status && cookie && memcmp(verifier, verifier_zero, sizeof(verifier_zero)))
		status = NFS3ERR_BAD_COOKIE;
	if (!xdr_out_room(out, 4 + limit))
		limit = (size_t)(out->end - start) > 4 ? (size_t)(out->end - start) - 4 : 0;
	if (!status && limit < LIST_HEAD_BYTES + LIST_END_BYTES)
		status = NFS3ERR_TOOSMALL;
	if (!status) {
		l.export = call.export;
		l.out = *out;
		l.out.p = start + 4 + LIST_HEAD_BYTES;
		l.out.end = start + 4 + limit - LIST_END_BYTES;
		status = nfs3_status(
			fs_readdir(call.fs, &call.op, call.id, cookie, plus, listing_entry, &l, &eof, &dir_attr));
		if (!status && !l.entries && !eof)
			status = NFS3ERR_TOOSMALL;
	}
	nfs3_fill_attr(&call, call.id, &dir_attr);
	uint64_t fsid = call.fs ? call.export->fsid : 0;
	if (!status && !dir_attr.type)
		status = NFS3ERR_STALE; /* gone meanwhile: its room in the reply cannot be filled */
	bool ok = xdr_put_u32(out, status) && nfs3_put_post_attr(out, fsid, &dir_attr);
	if (!status) {
		ok = ok && xdr_put_u64(out, 0);
		out->p = l.out.p;
		ok = ok && xdr_put_u32(out, 0) && xdr_put_u32(out, eof);
	}
	return nfs3_leave(&call, ok);
}

int nfs3_readdir(struct rpc_request *req)
{
	READDIR3args args;

	if (!xdr_decode_READDIR3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	return list(req, &args.dir, args.cookie, args.cookieverf, 0, args.count, false);
}

int nfs3_readdirplus(struct rpc_request *req)
{
	READDIRPLUS3args args;

	if (!xdr_decode_READDIRPLUS3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	return list(req, &args.dir, args.cookie, args.cookieverf, args.dircount, args.maxcount, true);
}

/* The room is what the client asks for, so look before the call runs. */
uint32_t nfs3_readdir_more(const struct rpc_request *req)
{
	struct xdr_in in = req->in;
	READDIR3args args;

	if (!xdr_decode_READDIR3args(&in, &args))
		return 0;
	return args.count < NFS3_DIR_MAX ? args.count : NFS3_DIR_MAX;
}

uint32_t nfs3_readdirplus_more(const struct rpc_request *req)
{
	struct xdr_in in = req->in;
	READDIRPLUS3args args;

	if (!xdr_decode_READDIRPLUS3args(&in, &args))
		return 0;
	return args.maxcount < NFS3_DIR_MAX ? args.maxcount : NFS3_DIR_MAX;
}
