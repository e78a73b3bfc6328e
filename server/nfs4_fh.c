/*
 * nfs4_fh: filehandles of a compound, and the pseudo file system that joins the exports (RFC 8881 7.3).
 *
 * Clients of NFSv4 walk from one root. Where an export's path has components above it, or there are several exports,
 * directories that exist nowhere else lead to them: read-only, world-readable, with the names of those exports that
 * this client may use and no others. Such a directory is known by its path. Its handle holds a hash of the path, and no
 * MAC: whatever a client makes up leads to a directory that it may see anyway, or to nothing.
 *
 * An export whose path is that of another one and more lies in the other's directories, over whatever has its last name
 * there. Names on the way to it lead to what the file system has, and where that has nothing, to directories of this
 * kind.
 *
 * Every way to a file passes the gate: PUTFH by its handle, LOOKUP when it enters an export. The caller's identity is
 * made there and goes with the filehandle.
 *
 * Error policy: a client that may not use an export gets NFS4ERR_STALE for its handles and NFS4ERR_NOENT for its name;
 * one whose kind of credential is not taken NFS4ERR_WRONGSEC, but for SECINFO, which tells it what is.
 *
 * State: none besides the compound's. What looks into a file system waits: nfs4_fh_attr(), and crossing in either
 * direction where exports lie in exports.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_internal.h"

#define PSEUDO_VERSION 2u /* the first byte of a pseudo directory's handle: another "version" of handle_format.h */
struct pseudo_format {
	uint8_t version;
	uint8_t reserved[3]; /* zero */
	le64 hash;
} __attribute__((packed));
#define PSEUDO_BYTES 12u
_Static_assert(sizeof(struct pseudo_format) == PSEUDO_BYTES, "handle of a pseudo directory");

static const struct fs_cred root_cred;
static const struct fs_op as_root = {.cred = &root_cred};

static uint64_t path_hash(const char *path, size_t len)
{
	return checksum64(path, len, 4);
}

uint64_t nfs4_pseudo_fileid(const char *path, size_t len)
{
	return path_hash(path, len) | 1ull << 63; /* far from inode numbers */
}

/* An export's path without the slash of "/". */
static size_t export_len(const struct export *export)
{
	size_t len = strlen(export->path);
	return len == 1 ? 0 : len;
}

/* ------------------------------------------------------------------------------------------------
 * What is current
 */

void nfs4_fh_changed(struct nfs4_compound *c)
{
	c->op = (struct fs_op){.cred = &c->current.cred};
	c->current_stateid_valid = false;
}

void nfs4_fh_move(struct nfs4_compound *c, struct fs_id id)
{
	c->current.id = id;
	nfs4_fh_changed(c);
}

nfsstat4 nfs4_fh_attr(struct nfs4_compound *c, struct fs_attr *attr)
{
	if (c->current.kind == NFS4_FH_FILE)
		return nfs4_status(fs_getattr(c->current.fs, c->current.id, attr));
	nfs4_pseudo_attr(c, &c->current, attr);
	return NFS4_OK;
}

void nfs4_fh_encode(const struct nfs4_fh *fh, uint8_t to[HANDLE_BYTES])
{
	struct handle handle = {.export_id = fh->export->id, .fsid = fh->export->fsid, .id = fh->id};
	handle_encode(&handle, fh->export->handle_key, to);
}

bool nfs4_put_fh(struct xdr_out *out, const struct nfs4_fh *fh)
{
	if (fh->kind == NFS4_FH_PSEUDO) {
		struct pseudo_format f = {PSEUDO_VERSION, {0, 0, 0}, le64_put(path_hash(fh->path, fh->path_len))};
		return xdr_put_opaque(out, &f, sizeof(f));
	}
	if (!xdr_out_room(out, NFS4_FH_BYTES))
		return false;
	xdr_lay_u32(out, HANDLE_BYTES);
	nfs4_fh_encode(fh, out->p);
	out->p += HANDLE_BYTES;
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * Ways in
 */

/* -EACCES and -EPERM as gate_caller() has them. */
static int fh_set_file(struct nfs4_compound *c, struct nfs4_fh *fh, const struct export *export, struct fs_id id)
{
	fh->kind = NFS4_FH_FILE;
	fh->export = export;
	fh->fs = export->fs;
	fh->id = id;
	return gate_caller(c->req, export, &fh->rule, &fh->cred);
}

static nfsstat4 fh_set_root(struct nfs4_compound *c, struct nfs4_fh *fh, const struct export *export)
{
	struct fs_attr attr;
	int rc = fs_root(export->fs, &attr);

	if (rc)
		return nfs4_status(rc);
	rc = fh_set_file(c, fh, export, attr.id);
	return rc == -EACCES ? NFS4ERR_NOENT : rc ? NFS4ERR_WRONGSEC : NFS4_OK;
}

/* The export, or the directory above exports that this client may use, which has this path. */
static nfsstat4 fh_set_path(struct nfs4_compound *c, struct nfs4_fh *fh, const char *path, size_t len)
{
	const struct sockaddr_storage *peer = rpc_peer(c->req);
	const char *found = NULL;

	for (unsigned i = 0; i < c->exports->count; i++) {
		const struct export *e = &c->exports->export[i];
		size_t own = export_len(e);
		if (own < len || memcmp(e->path, path, len) || !export_rule(e, peer))
			continue;
		if (own == len)
			return fh_set_root(c, fh, e);
		if (e->path[len] == '/')
			found = e->path;
	}
	if (!found && len)
		return NFS4ERR_NOENT;
	fh->kind = NFS4_FH_PSEUDO;
	fh->path = found ? found : "";
	fh->path_len = len;
	return NFS4_OK;
}

nfsstat4 nfs4_op_putrootfh(struct nfs4_compound *c)
{
	nfsstat4 status = fh_set_path(c, &c->current, "", 0);

	nfs4_fh_changed(c);
	return status;
}

static nfsstat4 put_pseudo(struct nfs4_compound *c, const struct xdr_opaque *handle)
{
	struct pseudo_format f;

	memcpy(&f, handle->data, sizeof(f));
	if (f.version != PSEUDO_VERSION || f.reserved[0] || f.reserved[1] || f.reserved[2])
		return NFS4ERR_BADHANDLE;
	uint64_t hash = le64_get(f.hash);
	for (unsigned i = 0; i < c->exports->count; i++) {
		const char *path = c->exports->export[i].path;
		for (size_t len = 0; len < export_len(&c->exports->export[i]); len++)
			if (path[len] == '/' && path_hash(path, len) == hash) {
				nfsstat4 status = fh_set_path(c, &c->current, path, len);
				return status == NFS4ERR_NOENT || c->current.kind != NFS4_FH_PSEUDO ? NFS4ERR_STALE
												    : status;
			}
	}
	return NFS4ERR_STALE;
}

/* Whether the next operation is one that a handle may be put for with any kind of credential (RFC 8881 2.6.3.1). */
static bool secinfo_follows(const struct nfs4_compound *c)
{
	struct xdr_in in = c->req->in;
	uint32_t next;

	if (c->op_index + 1 >= c->op_count)
		return true;
	return (size_t)(in.end - in.p) >= 4 && xdr_get_u32(&in, &next) &&
	       (next == OP_SECINFO || next == OP_SECINFO_NO_NAME);
}

nfsstat4 nfs4_op_putfh(struct nfs4_compound *c)
{
	PUTFH4args args;
	const struct export *export;
	struct fs_id id;
	nfsstat4 status = NFS4_OK;

	if (!xdr_decode_PUTFH4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (args.object.len == PSEUDO_BYTES) {
		status = put_pseudo(c, &args.object);
	} else {
		status = nfs4_status(gate_handle(c->exports, args.object.data, args.object.len, &id, &export));
		if (!status) {
			int rc = fh_set_file(c, &c->current, export, id);
			if (rc == -EACCES)
				status = NFS4ERR_STALE;
			else if (rc && !secinfo_follows(c))
				status = NFS4ERR_WRONGSEC;
		}
	}
	if (status)
		c->current.kind = NFS4_FH_NONE;
	nfs4_fh_changed(c);
	return status;
}

nfsstat4 nfs4_op_savefh(struct nfs4_compound *c)
{
	c->saved = c->current;
	c->saved_stateid = c->current_stateid;
	c->saved_stateid_valid = c->current_stateid_valid;
	return NFS4_OK;
}

nfsstat4 nfs4_op_restorefh(struct nfs4_compound *c)
{
	if (c->saved.kind == NFS4_FH_NONE)
		return NFS4ERR_NOFILEHANDLE;
	c->current = c->saved;
	nfs4_fh_changed(c);
	c->current_stateid = c->saved_stateid;
	c->current_stateid_valid = c->saved_stateid_valid;
	return NFS4_OK;
}

nfsstat4 nfs4_op_getfh(struct nfs4_compound *c)
{
	return nfs4_fits(c, nfs4_put_fh(&c->req->out, &c->current));
}

/* ------------------------------------------------------------------------------------------------
 * Names in pseudo directories
 */

/* A file system's root directory is where exports may lie in exports. */
static bool in_root(const struct nfs4_fh *fh)
{
	return fh->kind == NFS4_FH_FILE && fh->id.ino == FS_ROOT_INO && !fh->id.snap;
}

/* The directory to which the path's part from AT to LEN leads in the file system of EXPORT. */
static bool dir_find(const struct export *export, const char *path, size_t at, size_t len, struct fs_attr *attr)
{
	int rc = fs_root(export->fs, attr);

	while (!rc && at < len) {
		const char *name = path + at + 1;
		size_t n = 0;
		while (at + 1 + n < len && name[n] != '/')
			n++;
		rc = fs_lookup(export->fs, &as_root, attr->id, name, n, attr, NULL);
		at += 1 + n;
	}
	return !rc && attr->type == FS_DIR;
}

/*
 * An export whose path has, behind that of FH's directory, NAME as its next component: the LEN of the path up to there.
 * Directories of files may lie anywhere in the path below their export's. DEEPER: NAME need not be the last component.
 */
static const struct export *export_below(struct nfs4_compound *c, const struct nfs4_fh *fh,
	const struct xdr_opaque *name, const struct export *from, bool deeper, size_t *len)
{
	const struct export *end = c->exports->export + c->exports->count;
	const char *path = fh->kind == NFS4_FH_PSEUDO ? fh->path : fh->export->path;
	size_t above = fh->kind == NFS4_FH_PSEUDO ? fh->path_len : export_len(fh->export);

	for (const struct export *e = from; e < end; e++) {
		size_t own = export_len(e), at = above;
		struct fs_attr attr;
		if (own <= above || memcmp(e->path, path, above) || e->path[above] != '/')
			continue;
		for (; at < own; at += 1 + strcspn(e->path + at + 1, "/")) {
			*len = at + 1 + strcspn(e->path + at + 1, "/");
			if (*len - at - 1 == name->len && !memcmp(e->path + at + 1, name->data, name->len) &&
				(deeper || *len == own) && export_rule(e, rpc_peer(c->req)) &&
				(at == above ? fh->kind == NFS4_FH_PSEUDO || in_root(fh)
					     : dir_find(fh->export, e->path, above, at, &attr) &&
							attr.id.ino == fh->id.ino && attr.id.gen == fh->id.gen))
				return e;
			if (fh->kind == NFS4_FH_PSEUDO)
				break;
		}
	}
	return NULL;
}

/* Whether exports can lie in the directory, or below it. */
static bool may_have_exports(const struct nfs4_compound *c, const struct nfs4_fh *fh)
{
	return fh->kind == NFS4_FH_PSEUDO || (fh->kind == NFS4_FH_FILE && c->exports->count > 1 && !fh->id.snap);
}

static nfsstat4 cross(struct nfs4_compound *c, struct nfs4_fh *fh, const struct xdr_opaque *name, bool deeper)
{
	struct nfs4_fh to = {.kind = NFS4_FH_NONE};
	size_t len;

	if (!may_have_exports(c, fh))
		return NFS4ERR_NOENT;
	const struct export *e = export_below(c, fh, name, c->exports->export, deeper, &len);
	if (!e)
		return NFS4ERR_NOENT;
	nfsstat4 status = fh_set_path(c, &to, e->path, len);
	if (!status || status == NFS4ERR_WRONGSEC)
		*fh = to;
	return status;
}

nfsstat4 nfs4_fh_cross(struct nfs4_compound *c, struct nfs4_fh *fh, const struct xdr_opaque *name)
{
	return cross(c, fh, name, fh->kind == NFS4_FH_PSEUDO);
}

nfsstat4 nfs4_fh_cross_missing(struct nfs4_compound *c, struct nfs4_fh *fh, const struct xdr_opaque *name)
{
	return fh->kind == NFS4_FH_PSEUDO ? NFS4ERR_NOENT : cross(c, fh, name, true);
}

int nfs4_fh_exports_in(struct nfs4_compound *c, struct nfs4_crossing **list, unsigned *count)
{
	const struct nfs4_fh *dir = &c->current;
	size_t above = dir->kind == NFS4_FH_FILE ? export_len(dir->export) : 0;

	*list = NULL;
	*count = 0;
	if (dir->kind != NFS4_FH_FILE || !may_have_exports(c, dir))
		return 0;
	for (unsigned i = 0; i < c->exports->count; i++) {
		const struct export *e = &c->exports->export[i];
		struct nfs4_crossing one = {.fh = {.kind = NFS4_FH_NONE}};
		struct fs_attr attr;
		if (export_len(e) <= above || memcmp(e->path, dir->export->path, above) || e->path[above] != '/' ||
			!export_rule(e, rpc_peer(c->req)))
			continue;
		one.name = strrchr(e->path, '/') + 1;
		if (!dir_find(dir->export, e->path, above, (size_t)(one.name - 1 - e->path), &attr) ||
			attr.id.ino != dir->id.ino || attr.id.gen != dir->id.gen ||
			fh_set_root(c, &one.fh, e) == NFS4ERR_NOENT || fs_root(e->fs, &one.attr))
			continue;
		struct nfs4_crossing *more = realloc(*list, (*count + 1) * sizeof(*more));
		if (!more) {
			free(*list);
			return -ENOMEM;
		}
		*list = more;
		more[(*count)++] = one;
	}
	return 0;
}

nfsstat4 nfs4_pseudo_open(struct nfs4_compound *c, const struct xdr_opaque *name)
{
	struct nfs4_fh fh = c->current;
	nfsstat4 status = nfs4_fh_cross(c, &fh, name);

	return status == NFS4ERR_NOENT ? NFS4ERR_NOENT : NFS4ERR_ISDIR;
}

/* As fh_set_path(), but a directory of an export that the path leads through is the real one, if there is one. */
static nfsstat4 fh_set_above(struct nfs4_compound *c, struct nfs4_fh *fh, const char *path, size_t len)
{
	const struct export *outer = NULL;
	struct fs_attr attr;

	for (unsigned i = 0; i < c->exports->count; i++) {
		const struct export *e = &c->exports->export[i];
		size_t own = export_len(e);
		if (own <= len && !memcmp(e->path, path, own) && (own == len || path[own] == '/') &&
			(!outer || own > export_len(outer)) && export_rule(e, rpc_peer(c->req)))
			outer = e;
	}
	if (!outer || export_len(outer) == len || !dir_find(outer, path, export_len(outer), len, &attr))
		return fh_set_path(c, fh, path, len);
	int rc = fh_set_file(c, fh, outer, attr.id);
	return rc == -EACCES ? NFS4ERR_NOENT : rc ? NFS4ERR_WRONGSEC : NFS4_OK;
}

nfsstat4 nfs4_fh_parent(struct nfs4_compound *c)
{
	struct nfs4_fh *fh = &c->current;
	struct fs_attr attr;
	nfsstat4 status;

	if (fh->kind == NFS4_FH_FILE && !in_root(fh)) {
		status = nfs4_status(fs_lookup(fh->fs, &c->op, fh->id, "..", 2, &attr, NULL));
		if (!status)
			nfs4_fh_move(c, attr.id);
		return status;
	}
	const char *path = fh->kind == NFS4_FH_PSEUDO ? fh->path : fh->export->path;
	size_t len = fh->kind == NFS4_FH_PSEUDO ? fh->path_len : export_len(fh->export);
	if (!len)
		return NFS4ERR_NOENT; /* this is where all begins */
	while (path[len - 1] != '/')
		len--;
	status = fh_set_above(c, fh, path, len - 1);
	nfs4_fh_changed(c);
	return status;
}

/* Cookies are hashes of names, so that they stay what they are when exports come and go. */
static uint64_t entry_cookie(const char *name, size_t len)
{
	return (checksum64(name, len, 5) >> 2) | 1ull << 32; /* never 0, 1 or 2, and no sign */
}

bool nfs4_pseudo_next(struct nfs4_compound *c, uint64_t cookie, struct nfs4_pseudo_entry *entry)
{
	const struct nfs4_fh *dir = &c->current;
	const struct sockaddr_storage *peer = rpc_peer(c->req);
	bool found = false;

	for (unsigned i = 0; i < c->exports->count; i++) {
		const struct export *e = &c->exports->export[i];
		if (export_len(e) <= dir->path_len || memcmp(e->path, dir->path, dir->path_len) ||
			e->path[dir->path_len] != '/' || !export_rule(e, peer))
			continue;
		const char *name = e->path + dir->path_len + 1;
		size_t len = strcspn(name, "/");
		uint64_t own = entry_cookie(name, len);
		if (own <= cookie || (found && own >= entry->cookie))
			continue;
		*entry = (struct nfs4_pseudo_entry){.cookie = own, .name = name, .name_len = len};
		found = true;
	}
	if (found) {
		entry->fh.kind = NFS4_FH_NONE;
		(void)fh_set_path(c, &entry->fh, entry->name - dir->path_len - 1, dir->path_len + 1 + entry->name_len);
	}
	return found;
}

/* Exports may come and go: so the times are those when this table of them was first seen. */
static uint64_t pseudo_time(const struct nfs4_compound *c)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static const struct exports *seen;
	static uint64_t since;

	pthread_mutex_lock(&lock);
	if (seen != c->exports) {
		seen = c->exports;
		since = wall_ns();
	}
	uint64_t t = since;
	pthread_mutex_unlock(&lock);
	return t;
}

void nfs4_pseudo_attr(const struct nfs4_compound *c, const struct nfs4_fh *fh, struct fs_attr *attr)
{
	uint64_t since = pseudo_time(c);
	const struct timespec t = {.tv_sec = (time_t)(since / NSEC_PER_SEC), .tv_nsec = (long)(since % NSEC_PER_SEC)};

	*attr = (struct fs_attr){
		.id = {.ino = nfs4_pseudo_fileid(fh->path, fh->path_len)},
		.type = FS_DIR,
		.mode = 0555,
		.nlink = 2,
		.size = BLOCK_BYTES,
		.change = since,
		.atime = t,
		.mtime = t,
		.ctime = t,
		.btime = t,
	};
}
