/*
 * nfs4_attr: attributes (RFC 8881 chapter 5, RFC 7862 chapter 12, RFC 8275, RFC 8276) between the wire and struct
 * fs_attr, both ways: GETATTR, READDIR and VERIFY, SETATTR, CREATE and OPEN.
 *
 * One table says of each attribute how many bytes its value can have and whether it can be set; values are written in
 * order of their numbers by one function. Attributes of the file system as a whole are asked for before, where they are
 * wanted (struct nfs4_object).
 *
 * Owners are text: nfs4_owner.c.
 *
 * Error policy: a value that cannot be decoded is NFS4ERR_BADXDR; an attribute that we have not NFS4ERR_ATTRNOTSUPP;
 * one that only can be read, or only set, NFS4ERR_INVAL where the other is asked.
 *
 * No state, and but for nfs4_fh_statfs() and the operations no wait.
 */
#include <errno.h>

#include "server/nfs4_state.h"

enum { READ = 1, SET = 2, EXCL = 4, V42 = 8, STATFS = 16 }; /* EXCL: may be set by an exclusive OPEN */

#define BITS NFS4_BITS_BYTES
#define OWNER_BYTES 16u /* of a number; nfs4_owner_bytes() */
static const struct attribute {
	uint8_t bytes, flags;
} attributes[NFS4_BITMAP_WORDS * 32] = {
	[FATTR4_SUPPORTED_ATTRS] = {BITS, READ},
	[FATTR4_TYPE] = {4, READ},
	[FATTR4_FH_EXPIRE_TYPE] = {4, READ},
	[FATTR4_CHANGE] = {8, READ},
	[FATTR4_SIZE] = {8, READ | SET | EXCL},
	[FATTR4_LINK_SUPPORT] = {4, READ},
	[FATTR4_SYMLINK_SUPPORT] = {4, READ},
	[FATTR4_NAMED_ATTR] = {4, READ},
	[FATTR4_FSID] = {16, READ},
	[FATTR4_UNIQUE_HANDLES] = {4, READ},
	[FATTR4_LEASE_TIME] = {4, READ},
	[FATTR4_RDATTR_ERROR] = {4, READ},
	[FATTR4_CANSETTIME] = {4, READ},
	[FATTR4_CASE_INSENSITIVE] = {4, READ},
	[FATTR4_CASE_PRESERVING] = {4, READ},
	[FATTR4_CHOWN_RESTRICTED] = {4, READ},
	[FATTR4_FILEHANDLE] = {NFS4_FH_BYTES, READ},
	[FATTR4_FILEID] = {8, READ},
	[FATTR4_FILES_AVAIL] = {8, READ | STATFS},
	[FATTR4_FILES_FREE] = {8, READ | STATFS},
	[FATTR4_FILES_TOTAL] = {8, READ | STATFS},
	[FATTR4_FS_LOCATIONS] = {8, READ}, /* and the path's components */
	[FATTR4_HOMOGENEOUS] = {4, READ},
	[FATTR4_MAXFILESIZE] = {8, READ},
	[FATTR4_MAXLINK] = {4, READ},
	[FATTR4_MAXNAME] = {4, READ},
	[FATTR4_MAXREAD] = {8, READ},
	[FATTR4_MAXWRITE] = {8, READ},
	[FATTR4_MODE] = {4, READ | SET | EXCL},
	[FATTR4_NO_TRUNC] = {4, READ},
	[FATTR4_NUMLINKS] = {4, READ},
	[FATTR4_OWNER] = {OWNER_BYTES, READ | SET | EXCL},
	[FATTR4_OWNER_GROUP] = {OWNER_BYTES, READ | SET | EXCL},
	[FATTR4_RAWDEV] = {8, READ},
	[FATTR4_SPACE_AVAIL] = {8, READ | STATFS},
	[FATTR4_SPACE_FREE] = {8, READ | STATFS},
	[FATTR4_SPACE_TOTAL] = {8, READ | STATFS},
	[FATTR4_SPACE_USED] = {8, READ},
	[FATTR4_TIME_ACCESS] = {12, READ},
	[FATTR4_TIME_ACCESS_SET] = {16, SET},
	[FATTR4_TIME_CREATE] = {12, READ},
	[FATTR4_TIME_DELTA] = {12, READ},
	[FATTR4_TIME_METADATA] = {12, READ},
	[FATTR4_TIME_MODIFY] = {12, READ},
	[FATTR4_TIME_MODIFY_SET] = {16, SET},
	[FATTR4_MOUNTED_ON_FILEID] = {8, READ},
	[FATTR4_SUPPATTR_EXCLCREAT] = {BITS, READ},
	[FATTR4_FS_CHARSET_CAP] = {4, READ},
	[FATTR4_CLONE_BLKSIZE] = {4, READ | V42},
	[FATTR4_CHANGE_ATTR_TYPE] = {4, READ | V42},
	[FATTR4_MODE_UMASK] = {8, SET | EXCL | V42},
	[FATTR4_XATTR_SUPPORT] = {4, READ | V42},
	[FATTR4_OPEN_ARGUMENTS] = {40, READ | V42},
};

/* The attributes that have all of FLAGS, in this minor version. */
static struct nfs4_bits bits_of(uint32_t minor, unsigned flags)
{
	struct nfs4_bits bits = {{0}};

	for (unsigned i = 0; i < NFS4_BITMAP_WORDS * 32; i++)
		if (attributes[i].bytes && (attributes[i].flags & flags) == flags &&
			(minor >= 2 || !(attributes[i].flags & V42)))
			nfs4_bit_set(&bits, i);
	return bits;
}

/* Made once: what a minor version has. */
static const struct nfs4_bits *supported(uint32_t minor, unsigned flags)
{
	static struct nfs4_bits made[2][EXCL + 1];
	static _Atomic bool ready;
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	if (!atomic_load_explicit(&ready, memory_order_acquire)) {
		pthread_mutex_lock(&lock);
		for (unsigned v = 0; v < 2; v++)
			for (unsigned f = 0; f <= EXCL; f++)
				made[v][f] = bits_of(v + 1, f);
		atomic_store_explicit(&ready, true, memory_order_release);
		pthread_mutex_unlock(&lock);
	}
	return &made[minor >= 2][flags];
}

bool nfs4_put_bits(struct xdr_out *out, const struct nfs4_bits *bits)
{
	uint32_t words = NFS4_BITMAP_WORDS;

	while (words && !bits->word[words - 1])
		words--;
	if (!xdr_out_room(out, 4 + 4 * words))
		return false;
	xdr_lay_u32(out, words);
	for (uint32_t i = 0; i < words; i++)
		xdr_lay_u32(out, bits->word[i]);
	return true;
}

struct nfs4_bits nfs4_get_bits(const bitmap4 *from)
{
	struct nfs4_bits bits = {{0}};

	for (uint32_t i = 0; i < from->count && i < NFS4_BITMAP_WORDS; i++)
		bits.word[i] = from->item[i];
	return bits;
}

bool nfs4_put_change_info(struct xdr_out *out, const struct fs_wcc *wcc)
{
	if (!xdr_out_room(out, NFS4_CHANGE_INFO_BYTES))
		return false;
	xdr_lay_u32(out, wcc->valid);
	xdr_lay_u64(out, wcc->valid ? wcc->before.change : 0);
	xdr_lay_u64(out, wcc->valid ? wcc->after.change : 0);
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * Telling
 */

bool nfs4_statfs_wanted(const struct nfs4_bits *wanted)
{
	const uint32_t files = 1u << FATTR4_FILES_AVAIL | 1u << FATTR4_FILES_FREE | 1u << FATTR4_FILES_TOTAL;
	const uint32_t space =
		1u << (FATTR4_SPACE_AVAIL - 32) | 1u << (FATTR4_SPACE_FREE - 32) | 1u << (FATTR4_SPACE_TOTAL - 32);

	return (wanted->word[0] & files) || (wanted->word[1] & space);
}

nfsstat4 nfs4_fh_statfs(struct nfs4_compound *c, struct fs_statfs *statfs)
{
	memset(statfs, 0, sizeof(*statfs));
	return c->current.kind == NFS4_FH_FILE ? nfs4_status(fs_statfs(c->current.fs, statfs)) : NFS4_OK;
}

static const char *fh_path(const struct nfs4_fh *fh, size_t *len)
{
	const char *path = fh->kind == NFS4_FH_FILE ? fh->export->path : fh->path;

	*len = fh->kind == NFS4_FH_FILE ? strlen(path) : fh->path_len;
	if (*len == 1)
		*len = 0;
	return path;
}

/* Most bytes of a fattr4 with what is WANTED of it. */
static uint32_t fattr_bytes(const struct nfs4_compound *c, const struct nfs4_bits *wanted)
{
	const struct nfs4_bits *can = supported(c->minor, READ);
	uint32_t bytes = NFS4_BITS_BYTES + 4;

	for (unsigned w = 0; w < NFS4_BITMAP_WORDS; w++)
		for (uint32_t left = wanted->word[w] & can->word[w]; left; left &= left - 1)
			bytes += attributes[w * 32 + (unsigned)__builtin_ctz(left)].bytes;
	bytes += (nfs4_owner_bytes() - OWNER_BYTES) *
		 (nfs4_bit(wanted, FATTR4_OWNER) + nfs4_bit(wanted, FATTR4_OWNER_GROUP));
	if (nfs4_bit(wanted, FATTR4_FS_LOCATIONS) && c->current.kind != NFS4_FH_NONE) {
		size_t len;
		(void)fh_path(&c->current, &len);
		bytes += 7 * (uint32_t)len; /* a component of one letter takes 8 bytes for its 2 in the path */
	}
	return bytes;
}

static uint32_t ftype(enum fs_type type)
{
	static const uint8_t types[] = {[FS_REG] = NF4REG,
		[FS_DIR] = NF4DIR,
		[FS_LNK] = NF4LNK,
		[FS_CHR] = NF4CHR,
		[FS_BLK] = NF4BLK,
		[FS_FIFO] = NF4FIFO,
		[FS_SOCK] = NF4SOCK};
	return types[type];
}

static bool put_time(struct xdr_out *out, const struct timespec *t)
{
	return xdr_put_i64(out, t->tv_sec) && xdr_put_u32(out, (uint32_t)t->tv_nsec);
}

/* An empty list of locations: everything is here. */
static bool put_fs_locations(struct xdr_out *out, const struct nfs4_fh *fh)
{
	size_t len;
	const char *p = fh_path(fh, &len), *end = p + len;
	uint32_t components = 0;

	for (const char *q = p; q < end; q++)
		components += *q == '/';
	bool ok = xdr_put_u32(out, components);
	while (ok && p < end) {
		const char *next = memchr(p + 1, '/', (size_t)(end - p) - 1);
		if (!next)
			next = end;
		ok = xdr_put_opaque(out, p + 1, (uint32_t)(next - p) - 1);
		p = next;
	}
	return ok && xdr_put_u32(out, 0);
}

/* What lies under a root: of an export, the directory that its name is in. */
static uint64_t mounted_on(const struct nfs4_object *o)
{
	const struct nfs4_fh *fh = o->fh;

	if (fh->kind != NFS4_FH_FILE || o->attr->id.ino != FS_ROOT_INO || o->attr->id.snap || !fh->export->path[1])
		return o->attr->id.ino;
	return nfs4_pseudo_fileid(fh->export->path, strlen(fh->export->path));
}

static bool put_fsid(struct xdr_out *out, const struct nfs4_object *o)
{
	if (o->fh->kind != NFS4_FH_FILE)
		return xdr_put_u64(out, NFS4_PSEUDO_FSID) && xdr_put_u64(out, NFS4_PSEUDO_FSID);
	return xdr_put_u64(out, fs_snapshot_fsid(o->fh->export->fsid, o->attr->id.snap)) && xdr_put_u64(out, 0);
}

/* What OPEN takes (RFC 9754): accesses and denials, wishes for delegations, claims, ways to create; a word of bits
 * each. */
static bool put_open_arguments(struct xdr_out *out)
{
	static const uint32_t words[] = {
		1u << OPEN4_SHARE_ACCESS_READ | 1u << OPEN4_SHARE_ACCESS_WRITE | 1u << OPEN4_SHARE_ACCESS_BOTH,
		1u << OPEN4_SHARE_DENY_NONE | 1u << OPEN4_SHARE_DENY_READ | 1u << OPEN4_SHARE_DENY_WRITE |
			1u << OPEN4_SHARE_DENY_BOTH,
		1u << (OPEN4_SHARE_ACCESS_WANT_ANY_DELEG >> 8) | 1u << (OPEN4_SHARE_ACCESS_WANT_NO_DELEG >> 8),
		1u << CLAIM_NULL | 1u << CLAIM_PREVIOUS | 1u << CLAIM_DELEGATE_CUR | 1u << CLAIM_FH |
			1u << CLAIM_DELEG_CUR_FH,
		1u << UNCHECKED4 | 1u << GUARDED4 | 1u << EXCLUSIVE4 | 1u << EXCLUSIVE4_1};

	for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (!xdr_put_u32(out, 1) || !xdr_put_u32(out, words[i]))
			return false;
	return true;
}

static bool put_handle(struct xdr_out *out, const struct nfs4_object *o)
{
	struct nfs4_fh fh = *o->fh;

	if (fh.kind == NFS4_FH_FILE)
		fh.id = o->attr->id;
	return nfs4_put_fh(out, &fh);
}

static bool put_attribute(struct nfs4_compound *c, struct xdr_out *out, unsigned bit, const struct nfs4_object *o)
{
	static const struct timespec delta = {.tv_nsec = 1};
	const struct fs_attr *a = o->attr;
	const struct fs_statfs *st = o->statfs;

	switch (bit) {
	case FATTR4_SUPPORTED_ATTRS:
		return nfs4_put_bits(out, supported(c->minor, 0));
	case FATTR4_TYPE:
		return xdr_put_u32(out, ftype(a->type));
	case FATTR4_FH_EXPIRE_TYPE:
		return xdr_put_u32(out, FH4_PERSISTENT);
	case FATTR4_CHANGE:
		return xdr_put_u64(out, a->change);
	case FATTR4_SIZE:
		return xdr_put_u64(out, a->size);
	case FATTR4_LINK_SUPPORT:
	case FATTR4_SYMLINK_SUPPORT:
	case FATTR4_UNIQUE_HANDLES:
	case FATTR4_CANSETTIME:
	case FATTR4_CASE_PRESERVING:
	case FATTR4_CHOWN_RESTRICTED:
	case FATTR4_HOMOGENEOUS:
	case FATTR4_NO_TRUNC:
		return xdr_put_bool(out, true);
	case FATTR4_XATTR_SUPPORT:
		return xdr_put_bool(out, o->fh->kind == NFS4_FH_FILE);
	case FATTR4_NAMED_ATTR:
	case FATTR4_CASE_INSENSITIVE:
		return xdr_put_bool(out, false);
	case FATTR4_FSID:
		return put_fsid(out, o);
	case FATTR4_LEASE_TIME:
		return xdr_put_u32(out, nfs4_lease_seconds());
	case FATTR4_RDATTR_ERROR:
		return xdr_put_u32(out, NFS4_OK);
	case FATTR4_FILEHANDLE:
		return put_handle(out, o);
	case FATTR4_FILEID:
		return xdr_put_u64(out, a->id.ino);
	case FATTR4_FILES_AVAIL:
	case FATTR4_FILES_FREE:
		return xdr_put_u64(out, st->files_free);
	case FATTR4_FILES_TOTAL:
		return xdr_put_u64(out, st->files_total);
	case FATTR4_FS_LOCATIONS:
		return put_fs_locations(out, o->fh);
	case FATTR4_MAXFILESIZE:
		return xdr_put_u64(out, FS_SIZE_MAX);
	case FATTR4_MAXLINK:
		return xdr_put_u32(out, FS_LINK_MAX);
	case FATTR4_MAXNAME:
		return xdr_put_u32(out, FS_NAME_MAX);
	case FATTR4_MAXREAD:
	case FATTR4_MAXWRITE:
		return xdr_put_u64(out, NFS_IO_MAX);
	case FATTR4_MODE:
		return xdr_put_u32(out, a->mode & 07777);
	case FATTR4_NUMLINKS:
		return xdr_put_u32(out, a->nlink);
	case FATTR4_OWNER:
		return nfs4_put_owner(out, a->uid, false);
	case FATTR4_OWNER_GROUP:
		return nfs4_put_owner(out, a->gid, true);
	case FATTR4_RAWDEV:
		return xdr_put_u32(out, a->rdev_major) && xdr_put_u32(out, a->rdev_minor);
	case FATTR4_SPACE_AVAIL:
		return xdr_put_u64(out, st->bytes_available);
	case FATTR4_SPACE_FREE:
		return xdr_put_u64(out, st->bytes_free);
	case FATTR4_SPACE_TOTAL:
		return xdr_put_u64(out, st->bytes_total);
	case FATTR4_SPACE_USED:
		return xdr_put_u64(out, a->used_bytes);
	case FATTR4_TIME_ACCESS:
		return put_time(out, &a->atime);
	case FATTR4_TIME_CREATE:
		return put_time(out, &a->btime);
	case FATTR4_TIME_DELTA:
		return put_time(out, &delta);
	case FATTR4_TIME_METADATA:
		return put_time(out, &a->ctime);
	case FATTR4_TIME_MODIFY:
		return put_time(out, &a->mtime);
	case FATTR4_MOUNTED_ON_FILEID:
		return xdr_put_u64(out, mounted_on(o));
	case FATTR4_SUPPATTR_EXCLCREAT:
		return nfs4_put_bits(out, supported(c->minor, EXCL));
	case FATTR4_FS_CHARSET_CAP: /* names are bytes */
		return xdr_put_u32(out, FSCHARSET_CAP4_CONTAINS_NON_UTF8);
	case FATTR4_CLONE_BLKSIZE:
		return xdr_put_u32(out, BLOCK_BYTES);
	case FATTR4_OPEN_ARGUMENTS:
		return put_open_arguments(out);
	case FATTR4_CHANGE_ATTR_TYPE:
		return xdr_put_u32(out, NFS4_CHANGE_TYPE_IS_MONOTONIC_INCR);
	}
	return false;
}

/* The values of GIVEN, in order. */
static bool put_values(
	struct nfs4_compound *c, struct xdr_out *out, const struct nfs4_bits *given, const struct nfs4_object *object)
{
	for (unsigned w = 0; w < NFS4_BITMAP_WORDS; w++)
		for (uint32_t left = given->word[w]; left; left &= left - 1)
			if (!put_attribute(c, out, w * 32 + (unsigned)__builtin_ctz(left), object))
				return false;
	return true;
}

bool nfs4_put_fattr(
	struct nfs4_compound *c, struct xdr_out *out, const struct nfs4_bits *wanted, const struct nfs4_object *object)
{
	const struct nfs4_bits *can = supported(c->minor, READ);
	struct nfs4_bits given;

	for (unsigned w = 0; w < NFS4_BITMAP_WORDS; w++)
		given.word[w] = wanted->word[w] & can->word[w];
	if (!nfs4_put_bits(out, &given) || !xdr_out_room(out, 4))
		return false;
	uint8_t *len_at = out->p;
	out->p += 4;
	if (!put_values(c, out, &given, object))
		return false;
	uint32_t len = __builtin_bswap32((uint32_t)(out->p - len_at) - 4);
	memcpy(len_at, &len, 4);
	return true;
}

uint32_t nfs4_getattr_more(struct nfs4_compound *c)
{
	struct xdr_in in = c->req->in;
	uint32_t words;
	struct nfs4_bits wanted = {{0}};

	if (!xdr_get_u32(&in, &words))
		return 0;
	for (uint32_t i = 0; i < words && i < NFS4_BITMAP_WORDS; i++)
		if (!xdr_get_u32(&in, &wanted.word[i]))
			return 0;
	return fattr_bytes(c, &wanted);
}

nfsstat4 nfs4_op_getattr(struct nfs4_compound *c)
{
	GETATTR4args args;
	struct fs_attr attr;
	struct fs_statfs statfs;
	struct nfs4_object object = {.fh = &c->current, .attr = &attr, .statfs = &statfs};

	if (!xdr_decode_GETATTR4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	struct nfs4_bits wanted = nfs4_get_bits(&args.attr_request);
	if (nfs4_bit(&wanted, FATTR4_TIME_ACCESS_SET) || nfs4_bit(&wanted, FATTR4_TIME_MODIFY_SET))
		return NFS4ERR_INVAL;
	nfsstat4 status = nfs4_fh_attr(c, &attr);
	if (!status && c->current.kind == NFS4_FH_FILE)
		status = nfs4_deleg_getattr(c->current.fs, c->current.id, c->client, &attr);
	if (!status && nfs4_statfs_wanted(&wanted))
		status = nfs4_fh_statfs(c, &statfs);
	if (!status)
		nfs4_owners_ask(&wanted, &attr);
	return status ? status : nfs4_fits(c, nfs4_put_fattr(c, &c->req->out, &wanted, &object));
}

/* ------------------------------------------------------------------------------------------------
 * Setting
 */

static bool get_owner(struct xdr_in *in, bool group, uint32_t *id, nfsstat4 *status)
{
	struct xdr_opaque text;

	if (!xdr_get_opaque(in, UINT32_MAX, &text))
		return false;
	*status = nfs4_get_owner(&text, group, id);
	return true;
}

static bool get_settime(struct xdr_in *in, struct fs_setattr *set, uint32_t client, uint32_t server,
	struct timespec *to, nfsstat4 *status)
{
	settime4 time;

	if (!xdr_decode_settime4(in, &time))
		return false;
	if (time.set_it == SET_TO_SERVER_TIME4) {
		set->set |= server;
		return true;
	}
	set->set |= client;
	to->tv_sec = time.time.seconds;
	to->tv_nsec = (long)time.time.nseconds;
	if (time.time.nseconds >= NSEC_PER_SEC)
		*status = NFS4ERR_INVAL;
	return true;
}

static bool get_mode(struct xdr_in *in, uint32_t *mode, nfsstat4 *status)
{
	if (!xdr_get_u32(in, mode))
		return false;
	if (*mode & ~07777u)
		*status = NFS4ERR_INVAL;
	return true;
}

/* False when the value cannot be decoded. Waits for the names of owners. */
static bool get_attribute(struct xdr_in *in, unsigned bit, struct fs_setattr *set, nfsstat4 *status)
{
	uint32_t mask = 0;

	switch (bit) {
	case FATTR4_SIZE:
		set->set |= FS_SET_SIZE;
		if (!xdr_get_u64(in, &set->size))
			return false;
		if (set->size > FS_SIZE_MAX)
			*status = NFS4ERR_FBIG;
		return true;
	case FATTR4_MODE:
		set->set |= FS_SET_MODE;
		return get_mode(in, &set->mode, status);
	case FATTR4_MODE_UMASK: /* RFC 8275: for us, who have no ACLs to inherit, what the client would have done */
		if (set->set & FS_SET_MODE)
			*status = NFS4ERR_INVAL;
		set->set |= FS_SET_MODE;
		if (!get_mode(in, &set->mode, status) || !get_mode(in, &mask, status))
			return false;
		set->mode &= ~(mask & 0777);
		return true;
	case FATTR4_OWNER:
		set->set |= FS_SET_UID;
		return get_owner(in, false, &set->uid, status);
	case FATTR4_OWNER_GROUP:
		set->set |= FS_SET_GID;
		return get_owner(in, true, &set->gid, status);
	case FATTR4_TIME_ACCESS_SET:
		return get_settime(in, set, FS_SET_ATIME, FS_SET_ATIME_NOW, &set->atime, status);
	case FATTR4_TIME_MODIFY_SET:
		return get_settime(in, set, FS_SET_MTIME, FS_SET_MTIME_NOW, &set->mtime, status);
	}
	return false;
}

/* Whether all words beyond those that we know are zero. */
static bool bits_known(const bitmap4 *mask)
{
	for (uint32_t i = NFS4_BITMAP_WORDS; i < mask->count; i++)
		if (mask->item[i])
			return false;
	return true;
}

nfsstat4 nfs4_get_setattr(
	struct nfs4_compound *c, const fattr4 *from, bool exclusive, struct fs_setattr *set, struct nfs4_bits *bits)
{
	const struct nfs4_bits *all = supported(c->minor, 0), *can = supported(c->minor, exclusive ? EXCL : SET);
	struct xdr_in in;
	nfsstat4 status = NFS4_OK;

	memset(set, 0, sizeof(*set));
	*bits = nfs4_get_bits(&from->attrmask);
	if (!bits_known(&from->attrmask))
		return NFS4ERR_ATTRNOTSUPP;
	for (unsigned w = 0; w < NFS4_BITMAP_WORDS; w++)
		if (bits->word[w] & ~all->word[w])
			return NFS4ERR_ATTRNOTSUPP;
	for (unsigned w = 0; w < NFS4_BITMAP_WORDS; w++)
		if (bits->word[w] & ~can->word[w])
			return NFS4ERR_INVAL;
	xdr_in_init(&in, from->attr_vals.data, from->attr_vals.len, NULL);
	for (unsigned w = 0; w < NFS4_BITMAP_WORDS; w++)
		for (uint32_t left = bits->word[w]; left; left &= left - 1) {
			nfsstat4 one = NFS4_OK;
			if (!get_attribute(&in, w * 32 + (unsigned)__builtin_ctz(left), set, &one))
				return NFS4ERR_BADXDR;
			if (one && !status)
				status = one;
		}
	return in.p != in.end ? NFS4ERR_BADXDR : status;
}

void nfs4_setattr_restrict(const struct fs_cred *cred, struct fs_setattr *set, struct nfs4_bits *bits)
{
	if (!cred->uid)
		return;
	if ((set->set & FS_SET_UID) && set->uid != cred->uid) {
		set->set &= ~FS_SET_UID;
		bits->word[FATTR4_OWNER / 32] &= ~(1u << FATTR4_OWNER % 32);
	}
	bool member = set->gid == cred->gid;
	for (uint32_t i = 0; i < cred->group_count && !member; i++)
		member = set->gid == cred->groups[i];
	if ((set->set & FS_SET_GID) && !member) {
		set->set &= ~FS_SET_GID;
		bits->word[FATTR4_OWNER_GROUP / 32] &= ~(1u << FATTR4_OWNER_GROUP % 32);
	}
}

nfsstat4 nfs4_op_setattr(struct nfs4_compound *c)
{
	static const struct nfs4_bits none;
	SETATTR4args args;
	struct fs_setattr set;
	struct nfs4_bits bits = none;
	struct nfs4_stateid_use use = {.opened = false};
	struct fs_op op = c->op;
	nfsstat4 status = NFS4_OK;

	c->keep_result = true; /* attrsset goes with errors too */
	if (!xdr_decode_SETATTR4args(&c->req->in, &args))
		status = NFS4ERR_BADXDR;
	if (!status)
		status = nfs4_get_setattr(c, &args.obj_attributes, false, &set, &bits);
	/* who opened the file for writing may truncate it */
	if (!status && !c->told && (set.set & FS_SET_SIZE))
		status = nfs4_stateid_check(c, &args.stateid, OPEN4_SHARE_ACCESS_WRITE, &use);
	if (!status && !c->told)
		status = nfs4_deleg_break(c->current.fs, c->current.id, c->client);
	if (!status && !c->told) {
		op.opened = use.opened;
		int rc = fs_setattr(c->current.fs, &op, c->current.id, &set, NULL, NULL);
		status = nfs4_status(rc);
	}
	nfsstat4 fits = nfs4_fits(c, nfs4_put_bits(&c->req->out, status ? &none : &bits));
	return status ? status : fits;
}

/* ------------------------------------------------------------------------------------------------
 * Comparing
 */

/* NFS4ERR_SAME or NFS4ERR_NOT_SAME: whether the object's attributes are these. */
static nfsstat4 compare(struct nfs4_compound *c, const fattr4 *with)
{
	struct fs_attr attr;
	struct fs_statfs statfs;
	struct nfs4_object object = {.fh = &c->current, .attr = &attr, .statfs = &statfs};
	struct nfs4_bits bits = nfs4_get_bits(&with->attrmask);
	const struct nfs4_bits *all = supported(c->minor, 0), *can = supported(c->minor, READ);

	if (nfs4_bit(&bits, FATTR4_RDATTR_ERROR))
		return NFS4ERR_INVAL;
	if (!bits_known(&with->attrmask))
		return NFS4ERR_ATTRNOTSUPP;
	for (unsigned w = 0; w < NFS4_BITMAP_WORDS; w++)
		if (bits.word[w] & ~all->word[w])
			return NFS4ERR_ATTRNOTSUPP;
	for (unsigned w = 0; w < NFS4_BITMAP_WORDS; w++)
		if (bits.word[w] & ~can->word[w])
			return NFS4ERR_INVAL;
	nfsstat4 status = nfs4_fh_attr(c, &attr);
	if (!status && c->current.kind == NFS4_FH_FILE)
		status = nfs4_deleg_getattr(c->current.fs, c->current.id, c->client, &attr);
	if (!status && nfs4_statfs_wanted(&bits))
		status = nfs4_fh_statfs(c, &statfs);
	if (status)
		return status;
	nfs4_owners_ask(&bits, &attr);
	uint32_t room = fattr_bytes(c, &bits);
	struct buf *buf = buf_alloc(room);
	struct xdr_out out;
	xdr_out_init(&out, buf->data, buf->size);
	if (!put_values(c, &out, &bits, &object))
		status = nfs4_fits(c, false);
	else
		status = (size_t)(out.p - out.base) == with->attr_vals.len &&
					 !memcmp(out.base, with->attr_vals.data, with->attr_vals.len)
				 ? NFS4ERR_SAME
				 : NFS4ERR_NOT_SAME;
	buf_put(buf);
	return status;
}

nfsstat4 nfs4_op_verify(struct nfs4_compound *c)
{
	VERIFY4args args;

	if (!xdr_decode_VERIFY4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = nfs4_replay_passed(c) ? NFS4ERR_SAME : compare(c, &args.obj_attributes);
	return status == NFS4ERR_SAME ? NFS4_OK : status;
}

nfsstat4 nfs4_op_nverify(struct nfs4_compound *c)
{
	NVERIFY4args args;

	if (!xdr_decode_NVERIFY4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = nfs4_replay_passed(c) ? NFS4ERR_NOT_SAME : compare(c, &args.obj_attributes);
	return status == NFS4ERR_NOT_SAME ? NFS4_OK : status;
}
