/*
 * nfs4_name: operations on names in directories: LOOKUP, CREATE (all but regular files, which OPEN makes), REMOVE,
 * RENAME, LINK.
 *
 * Names are bytes: any but NUL and '/', 1 to 255 of them; "." and ".." are none. The change attributes before and after
 * come from the transaction that made the change, so change_info4 is always atomic. The file that loses or gets a name
 * is asked back from clients that have a delegation of it first; NFS4ERR_DELAY until they have answered.
 *
 * A name in a pseudo directory, or in a directory where another export lies, leads to that export whatever the file
 * system has there; nothing can be made, removed or renamed under such a name.
 *
 * Error policy: as RFC 8881 has it for each operation; fs/'s errors go through nfs4_status().
 */
#include <errno.h>

#include "server/nfs4_state.h"

/* fs/ has ENOTDIR for whatever is no directory; of a symbolic link RFC 8881 has another error. */
static nfsstat4 dir_status(const struct nfs4_fh *dir, int rc)
{
	struct fs_attr attr;

	if (rc == -ENOTDIR && dir->kind == NFS4_FH_FILE && !fs_getattr(dir->fs, dir->id, &attr) && attr.type == FS_LNK)
		return NFS4ERR_SYMLINK;
	return nfs4_status(rc);
}

nfsstat4 nfs4_op_lookup(struct nfs4_compound *c)
{
	LOOKUP4args args;
	struct fs_attr attr;
	struct nfs4_fh fh = c->current;

	if (!xdr_decode_LOOKUP4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	const struct xdr_opaque *name = &args.objname;
	nfsstat4 status = nfs4_name_check(name);
	if (status)
		return status;
	status = nfs4_fh_cross(c, &fh, name);
	if (!status) {
		c->current = fh;
		nfs4_fh_changed(c);
		return NFS4_OK;
	}
	if (status != NFS4ERR_NOENT || fh.kind == NFS4_FH_PSEUDO)
		return status;
	int rc = fs_lookup(fh.fs, &c->op, fh.id, (const char *)name->data, name->len, &attr, NULL);
	if (rc == -ENOENT && !nfs4_fh_cross_missing(c, &fh, name)) {
		c->current = fh;
		nfs4_fh_changed(c);
		return NFS4_OK;
	}
	if (rc)
		return dir_status(&c->current, rc);
	nfs4_fh_move(c, attr.id);
	return NFS4_OK;
}

nfsstat4 nfs4_op_lookupp(struct nfs4_compound *c)
{
	struct nfs4_fh was = c->current;
	nfsstat4 status = nfs4_fh_parent(c);

	return status == NFS4ERR_NOTDIR ? dir_status(&was, -ENOTDIR) : status;
}

/* Whether NAME in the directory leads to another export. */
static bool name_crosses(struct nfs4_compound *c, const struct nfs4_fh *dir, const struct xdr_opaque *name)
{
	struct nfs4_fh fh = *dir;

	return nfs4_fh_cross(c, &fh, name) != NFS4ERR_NOENT;
}

/* ------------------------------------------------------------------------------------------------
 * Making
 */

static int create_run(struct nfs4_compound *c, const CREATE4args *args, const struct fs_setattr *set,
	struct fs_attr *attr, struct fs_wcc *wcc)
{
	const struct nfs4_fh *fh = &c->current;
	const char *name = (const char *)args->objname.data;
	size_t len = args->objname.len;
	const specdata4 *dev = &args->objtype.devdata;
	const struct fs_op *op = &c->op;

	if (c->told) {
		attr->id = c->told->id;
		return 0;
	}
	switch (args->objtype.type) {
	case NF4DIR:
		return fs_mkdir(fh->fs, op, fh->id, name, len, set, attr, wcc);
	case NF4LNK:
		return fs_symlink(fh->fs, op, fh->id, name, len, (const char *)args->objtype.linkdata.data,
			args->objtype.linkdata.len, set, attr, wcc);
	case NF4BLK:
	case NF4CHR:
		return fs_mknod(fh->fs, op, fh->id, name, len, args->objtype.type == NF4BLK ? FS_BLK : FS_CHR,
			dev->specdata1, dev->specdata2, set, attr, wcc);
	case NF4SOCK:
		return fs_mknod(fh->fs, op, fh->id, name, len, FS_SOCK, 0, 0, set, attr, wcc);
	default:
		return fs_mknod(fh->fs, op, fh->id, name, len, FS_FIFO, 0, 0, set, attr, wcc);
	}
}

static nfsstat4 create_check(const struct nfs4_compound *c, const CREATE4args *args)
{
	const struct xdr_opaque *target = &args->objtype.linkdata;

	switch ((uint32_t)args->objtype.type) {
	case NF4DIR:
	case NF4SOCK:
	case NF4FIFO:
		return NFS4_OK;
	case NF4LNK:
		if (!target->len || memchr(target->data, 0, target->len))
			return NFS4ERR_INVAL;
		return target->len > FS_SYMLINK_MAX ? NFS4ERR_NAMETOOLONG : NFS4_OK;
	case NF4BLK:
	case NF4CHR: /* a device file is a key to the client's hardware */
		return c->current.cred.uid ? NFS4ERR_PERM : NFS4_OK;
	default: /* regular files are OPEN's */
		return NFS4ERR_BADTYPE;
	}
}

nfsstat4 nfs4_op_create(struct nfs4_compound *c)
{
	CREATE4args args;
	struct fs_setattr set;
	struct nfs4_bits bits;
	struct fs_attr attr;
	struct fs_wcc wcc = {.valid = false};

	if (!xdr_decode_CREATE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = create_check(c, &args);
	if (!status)
		status = nfs4_name_check(&args.objname);
	if (!status)
		status = nfs4_get_setattr(c, &args.createattrs, false, &set, &bits);
	if (!status && !c->told && name_crosses(c, &c->current, &args.objname))
		status = NFS4ERR_EXIST;
	if (status)
		return status;
	nfs4_setattr_restrict(&c->current.cred, &set, &bits);
	if (set.set & FS_SET_SIZE) { /* means nothing for these */
		set.set &= ~FS_SET_SIZE;
		bits.word[FATTR4_SIZE / 32] &= ~(1u << FATTR4_SIZE % 32);
	}
	int rc = create_run(c, &args, &set, &attr, &wcc);
	if (rc)
		return dir_status(&c->current, rc);
	nfs4_fh_move(c, attr.id);
	return nfs4_fits(c, nfs4_put_change_info(&c->req->out, &wcc) && nfs4_put_bits(&c->req->out, &bits));
}

/* ------------------------------------------------------------------------------------------------
 * Removing and moving
 */

nfsstat4 nfs4_op_remove(struct nfs4_compound *c)
{
	const struct nfs4_fh *dir = &c->current;
	REMOVE4args args;
	struct fs_wcc wcc = {.valid = false};

	if (!xdr_decode_REMOVE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	const char *name = (const char *)args.target.data;
	nfsstat4 status = nfs4_name_check(&args.target);
	if (!status && !c->told && name_crosses(c, dir, &args.target))
		status = NFS4ERR_XDEV;
	if (!status && !c->told)
		status = nfs4_deleg_break_name(dir->fs, &c->op, dir->id, &args.target, c->client);
	if (status)
		return status;
	int rc = c->told ? 0 : fs_unlink(dir->fs, &c->op, dir->id, name, args.target.len, &wcc);
	if (rc == -EISDIR)
		rc = fs_rmdir(dir->fs, &c->op, dir->id, name, args.target.len, &wcc);
	if (rc)
		return dir_status(dir, rc);
	return nfs4_fits(c, nfs4_put_change_info(&c->req->out, &wcc));
}

/* SAVEFH's directory or file and the current one must be of one export. */
static nfsstat4 saved_check(const struct nfs4_compound *c)
{
	return c->saved.kind == NFS4_FH_FILE && c->saved.export == c->current.export ? NFS4_OK : NFS4ERR_XDEV;
}

static bool is_dir(const struct nfs4_fh *fh)
{
	struct fs_attr attr;

	return !fs_getattr(fh->fs, fh->id, &attr) && attr.type == FS_DIR;
}

/* fs/ does not tell a filehandle that is no directory from a directory that would replace a file (or the other way). */
static nfsstat4 rename_status(const struct nfs4_fh *from, const struct nfs4_fh *to, int rc)
{
	if (rc != -ENOTDIR && rc != -EISDIR)
		return nfs4_status(rc);
	if (!is_dir(from))
		return dir_status(from, -ENOTDIR);
	if (!is_dir(to))
		return dir_status(to, -ENOTDIR);
	return NFS4ERR_EXIST;
}

static nfsstat4 rename_check(struct nfs4_compound *c, const RENAME4args *args)
{
	const struct nfs4_fh *from = &c->saved, *to = &c->current;
	nfsstat4 status = saved_check(c);

	if (!status && (name_crosses(c, from, &args->oldname) || name_crosses(c, to, &args->newname)))
		status = NFS4ERR_XDEV;
	if (!status)
		status = nfs4_deleg_break_name(from->fs, &c->op, from->id, &args->oldname, c->client);
	return status ? status : nfs4_deleg_break_name(to->fs, &c->op, to->id, &args->newname, c->client);
}

nfsstat4 nfs4_op_rename(struct nfs4_compound *c)
{
	const struct nfs4_fh *from = &c->saved, *to = &c->current;
	RENAME4args args;
	struct fs_wcc from_wcc = {.valid = false}, to_wcc = {.valid = false};

	if (!xdr_decode_RENAME4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = nfs4_name_check(&args.oldname);
	if (!status)
		status = nfs4_name_check(&args.newname);
	if (!status && !c->told)
		status = rename_check(c, &args);
	if (status)
		return status;
	int rc = 0;
	if (!c->told)
		rc = fs_rename(to->fs, &c->op, from->id, (const char *)args.oldname.data, args.oldname.len, to->id,
			(const char *)args.newname.data, args.newname.len, &from_wcc, &to_wcc);
	if (rc)
		return rename_status(from, to, rc);
	return nfs4_fits(
		c, nfs4_put_change_info(&c->req->out, &from_wcc) && nfs4_put_change_info(&c->req->out, &to_wcc));
}

nfsstat4 nfs4_op_link(struct nfs4_compound *c)
{
	const struct nfs4_fh *file = &c->saved, *dir = &c->current;
	LINK4args args;
	struct fs_attr attr;
	struct fs_wcc wcc = {.valid = false};

	if (!xdr_decode_LINK4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = nfs4_name_check(&args.newname);
	if (!status && !c->told)
		status = saved_check(c);
	if (!status && !c->told && name_crosses(c, dir, &args.newname))
		status = NFS4ERR_EXIST;
	if (!status && !c->told)
		status = nfs4_deleg_break(file->fs, file->id, c->client);
	if (status)
		return status;
	int rc = 0;
	if (!c->told)
		rc = fs_link(dir->fs, &c->op, file->id, dir->id, (const char *)args.newname.data, args.newname.len,
			&attr, &wcc);
	if (rc)
		return dir_status(dir, rc);
	return nfs4_fits(c, nfs4_put_change_info(&c->req->out, &wcc));
}
