/*
 * Names, and what makes them: lookup, create, mkdir, symlink, mknod, link.
 *
 * A name has two records in its directory: KEY_NAME, found by the hash of the name, for lookup, and
 * KEY_ENTRY, found by its sequence number, for readdir; both hold the name and what it names. Up to
 * 256 names may share a hash. The sequence comes from a counter in the directory's inode that never
 * goes back.
 *
 * Every operation is one pass of one transaction: it looks up, checks permissions, fills in the
 * results and queues the changes; the transaction is durable before the call returns. All of it
 * runs on the home reactor.
 */
#include "fs/inode_internal.h"

uint64_t name_hash_mask = UINT64_MAX;

/* ------------------------------------------------------------------------------------------------
 * Running on the home reactor
 */

int files_error(int r)
{
	switch (r) {
	case -ENOMEM:
	case -E2BIG:
		return -EAGAIN;
	case 0:
	case -EPERM:
	case -ENOENT:
	case -EIO:
	case -EACCES:
	case -EEXIST:
	case -EXDEV:
	case -ENOTDIR:
	case -EISDIR:
	case -EINVAL:
	case -EFBIG:
	case -ENOSPC:
	case -EROFS:
	case -EMLINK:
	case -ENAMETOOLONG:
	case -ENOTEMPTY:
	case -ESTALE:
	case -EBADF:
	case -EOPNOTSUPP:
	case -EDQUOT:
	case -EBUSY:
	case -EAGAIN:
		return r;
	default:
		return r > 0 ? r : -EIO;
	}
}

struct files_hop {
	struct fs *fs;
	int (*fn)(struct fs *fs, void *arg);
	tx_pass *pass;
	void *arg;
	int result;
};

static void files_hop_run(void *arg)
{
	struct files_hop *hop = arg;

	hop->result = hop->fn(hop->fs, hop->arg);
}

int files_call(struct fs *fs, int (*fn)(struct fs *fs, void *arg), void *arg)
{
	struct files_hop hop = {.fs = fs, .fn = fn, .arg = arg};

	reactor_call(fs->home, files_hop_run, &hop);
	return files_error(hop.result);
}

static void files_transact_run(void *arg)
{
	struct files_hop *hop = arg;

	hop->result = fs_transact_durable(hop->fs, hop->pass, hop->arg);
}

int files_transact(struct fs *fs, tx_pass *pass, void *arg)
{
	struct files_hop hop = {.fs = fs, .pass = pass, .arg = arg};

	if (fs->read_only)
		return -EROFS;
	reactor_call(fs->home, files_transact_run, &hop);
	return files_error(hop.result);
}

static void files_view_run(void *arg)
{
	struct files_hop *hop = arg;

	hop->result = fs_view(hop->fs, hop->pass, hop->arg);
}

int files_view(struct fs *fs, tx_pass *pass, void *arg)
{
	struct files_hop hop = {.fs = fs, .pass = pass, .arg = arg};

	reactor_call(fs->home, files_view_run, &hop);
	return files_error(hop.result);
}

/* ------------------------------------------------------------------------------------------------
 * Names
 */

uint64_t name_hash(struct fs *fs, const char *name, size_t len)
{
	return checksum64(name, len, fs->files->hash_seed) & name_hash_mask & (UINT64_MAX >> 8);
}

bool name_is_dots(const char *name, size_t len)
{
	return (len == 1 && name[0] == '.') || (len == 2 && name[0] == '.' && name[1] == '.');
}

int name_check(const char *name, size_t len)
{
	if (len == 0)
		return -EINVAL;
	if (len > FS_NAME_MAX)
		return -ENAMETOOLONG;
	if (memchr(name, '/', len) || memchr(name, 0, len))
		return -EINVAL;
	return 0;
}

int name_decode(const void *val, size_t len, struct dirent *ent, const char **name, size_t *name_len)
{
	struct name_disk d;

	if (len < sizeof(d))
		return -EIO;
	memcpy(&d, val, sizeof(d));
	*name_len = le16_get(d.len);
	*name = (const char *)val + sizeof(d);
	if (len != sizeof(d) + *name_len || name_check(*name, *name_len) < 0 || name_is_dots(*name, *name_len))
		return -EIO;
	ent->ino = le64_get(d.ino);
	ent->seq = le64_get(d.seq);
	ent->gen = le32_get(d.generation);
	ent->type = d.type;
	if (ent->ino == 0 || ent->gen == 0 || ent->type < FS_REG || ent->type > FS_SOCK || ent->seq < NAME_SEQ_FIRST)
		return -EIO;
	return 0;
}

int entry_decode(const void *val, size_t len, struct dirent *ent, const char **name, size_t *name_len)
{
	struct entry_disk d;

	if (len < sizeof(d))
		return -EIO;
	memcpy(&d, val, sizeof(d));
	*name_len = le16_get(d.len);
	*name = (const char *)val + sizeof(d);
	if (len != sizeof(d) + *name_len || name_check(*name, *name_len) < 0 || name_is_dots(*name, *name_len))
		return -EIO;
	ent->ino = le64_get(d.ino);
	ent->gen = le32_get(d.generation);
	ent->type = d.type;
	if (ent->ino == 0 || ent->gen == 0 || ent->type < FS_REG || ent->type > FS_SOCK)
		return -EIO;
	return 0;
}

/* Goes through the names of equal hash: stops at NAME, or tells in SLOT the first free one. */
static int dirent_scan(struct tx *tx, uint64_t dir, const char *name, size_t len, struct dirent *ent, uint64_t *slot)
{
	uint64_t first = name_hash(tx_fs(tx), name, len) << 8, free_slot = first, last = first + (NAME_COLLISIONS - 1);
	struct fs_key key = {.ino = dir, .type = KEY_NAME, .off = first};
	const char *found;
	size_t found_len, val_len;
	const void *val;
	int r;

	for (;;) {
		r = tx_next(tx, &key, &val, &val_len);
		if (r == -ENOENT)
			break;
		if (r < 0)
			return r;
		if (key.ino != dir || key.type != KEY_NAME || key.off > last)
			break;
		r = name_decode(val, val_len, ent, &found, &found_len);
		if (r < 0) {
			log_error("fs", "name record makes no sense directory=%llu", (unsigned long long)dir);
			return r;
		}
		if (found_len == len && memcmp(found, name, len) == 0) {
			ent->slot = key.off;
			return 0;
		}
		if (key.off == free_slot)
			free_slot++;
		if (key.off == last)
			break;
		key.off++;
		key.snap = 0;
	}
	if (slot) {
		if (free_slot > last)
			return -ENOSPC;
		*slot = free_slot;
	}
	return -ENOENT;
}

int dirent_find(struct tx *tx, uint64_t dir, const char *name, size_t len, struct dirent *ent)
{
	return dirent_scan(tx, dir, name, len, ent, NULL);
}

int dirent_slot(struct tx *tx, uint64_t dir, const char *name, size_t len, uint64_t *slot)
{
	struct dirent ent;
	int r = dirent_scan(tx, dir, name, len, &ent, slot);

	return r == -ENOENT ? 0 : r == 0 ? -EEXIST : r;
}

int dirent_put(struct tx *tx, uint64_t dir, const char *name, size_t len, const struct dirent *ent)
{
	struct {
		struct name_disk head;
		char name[FS_NAME_MAX];
	} by_name;
	struct {
		struct entry_disk head;
		char name[FS_NAME_MAX];
	} by_seq;
	struct fs_key name_key = {.ino = dir, .type = KEY_NAME, .off = ent->slot};
	struct fs_key entry_key = {.ino = dir, .type = KEY_ENTRY, .off = ent->seq};
	int r;

	by_name.head = (struct name_disk){.ino = le64_put(ent->ino),
		.seq = le64_put(ent->seq),
		.generation = le32_put(ent->gen),
		.type = ent->type,
		.len = le16_put((uint16_t)len)};
	by_seq.head = (struct entry_disk){.ino = le64_put(ent->ino),
		.generation = le32_put(ent->gen),
		.type = ent->type,
		.len = le16_put((uint16_t)len)};
	memcpy(by_name.name, name, len);
	memcpy(by_seq.name, name, len);
	r = tx_put(tx, &name_key, &by_name, sizeof(by_name.head) + len);
	if (r < 0)
		return r;
	return tx_put(tx, &entry_key, &by_seq, sizeof(by_seq.head) + len);
}

int dirent_delete(struct tx *tx, uint64_t dir, const struct dirent *ent)
{
	struct fs_key name_key = {.ino = dir, .type = KEY_NAME, .off = ent->slot};
	struct fs_key entry_key = {.ino = dir, .type = KEY_ENTRY, .off = ent->seq};
	int r = tx_delete(tx, &name_key);

	return r < 0 ? r : tx_delete(tx, &entry_key);
}

int dir_get(struct tx *tx, struct fs_id id, const struct fs_op *op, uint32_t want, struct inode **dir)
{
	int r = inode_get(tx, id, dir);

	if (r < 0)
		return r;
	if ((*dir)->attr.type != FS_DIR)
		return -ENOTDIR;
	return attr_permission(&(*dir)->attr, op->cred, want);
}

int dir_sticky(const struct inode_attr *dir, const struct inode_attr *child, const struct fs_cred *cred)
{
	if (!(dir->mode & 01000) || cred->uid == 0 || cred->uid == dir->uid || cred->uid == child->uid)
		return 0;
	return -EPERM;
}

/* ------------------------------------------------------------------------------------------------
 * Lookup
 */

struct lookup_call {
	const struct fs_op *op;
	struct fs_id dir;
	const char *name;
	size_t name_len;
	struct fs_attr *attr, *dir_attr;
};

static int lookup_pass(struct tx *tx, void *arg)
{
	struct lookup_call *c = arg;
	struct inode *dir, *inode;
	struct dirent ent;
	int r;

	r = inode_get(tx, c->dir, &dir);
	if (r < 0)
		return r;
	attr_fill(&dir->attr, dir->ino, c->dir_attr);
	if (dir->attr.type != FS_DIR)
		return -ENOTDIR;
	r = attr_permission(&dir->attr, c->op->cred, FS_MAY_EXEC);
	if (r < 0)
		return r;
	if (name_is_dots(c->name, c->name_len)) {
		ent.ino = c->name_len == 1 ? dir->ino : dir->attr.aux;
		if (c->name_len == 2 && c->dir.snap && dir->ino == FS_ROOT_INO) {
			/* out of a snapshot */
			tx->snap = 0;
			ent.ino = FS_SNAPDIR_INO;
		}
	} else if (dir->ino == FS_SNAPDIR_INO) {
		tx->snap = snapshot_named(tx_fs(tx)->files, c->name, c->name_len);
		if (!tx->snap)
			return -ENOENT;
		ent.ino = FS_ROOT_INO;
	} else if (dir->ino == FS_ROOT_INO && !c->dir.snap && name_is_snapdir(c->name, c->name_len)) {
		ent.ino = FS_SNAPDIR_INO;
	} else {
		r = name_check(c->name, c->name_len);
		if (r == 0)
			r = dirent_find(tx, dir->ino, c->name, c->name_len, &ent);
		if (r < 0)
			return r;
	}
	r = inode_load(tx, ent.ino, &inode);
	if (r == -ENOENT) {
		log_error("fs", "name without an inode directory=%llu ino=%llu", (unsigned long long)c->dir.ino,
			(unsigned long long)ent.ino);
		return -EIO;
	}
	if (r < 0)
		return r;
	attr_fill(&inode->attr, inode->ino, c->attr);
	return 0;
}

int fs_lookup(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	struct fs_attr *attr, struct fs_attr *dir_attr)
{
	struct lookup_call c = {op, dir, name, name_len, attr, dir_attr};

	return files_view(fs, lookup_pass, &c);
}

/* ------------------------------------------------------------------------------------------------
 * Making something new
 */

struct make_call {
	const struct fs_op *op;
	struct fs_id dir;
	const char *name;
	size_t name_len;
	enum fs_type type;
	const struct fs_setattr *set;
	uint32_t major, minor;
	const char *target;
	size_t target_len;
	enum fs_create_mode mode;
	uint64_t verifier;
	struct fs_attr *attr;
	struct fs_wcc *dir_wcc;
	bool existed; /* an existing file was opened: only its size is left to set */
	struct fs_id id;
	struct change change;
};

/* Queues entry NAME of DIR for a child, with DIR's changes. */
static int dirent_add(struct tx *tx, struct change *change, struct inode_attr *dir, uint64_t dir_ino, const char *name,
	size_t len, struct dirent *ent)
{
	if (dir->next_seq >= NAME_SEQ_MAX)
		return -ENOSPC;
	ent->seq = dir->next_seq++;
	dir->size++;
	change_touch(change, dir, true);
	return dirent_put(tx, dir_ino, name, len, ent);
}

/* Owner, group and mode of what OP makes in DIR. */
static int make_attr(const struct make_call *c, const struct inode_attr *dir, struct inode_attr *attr, int64_t now)
{
	static const struct fs_setattr none;
	const struct fs_setattr *set = c->set ? c->set : &none;
	const struct fs_cred *cred = c->op->cred;
	bool root = cred->uid == 0;

	attr->uid = root && (set->set & FS_SET_UID) ? set->uid : cred->uid;
	attr->gid = dir->mode & 02000 ? dir->gid : cred->gid;
	if ((set->set & FS_SET_GID) && (root || cred_in_group(cred, set->gid)) && !(dir->mode & 02000))
		attr->gid = set->gid;
	attr->mode = set->set & FS_SET_MODE ? set->mode & 07777 : 0;
	if (attr->type == FS_LNK)
		attr->mode = 0777;
	if (attr->type == FS_DIR)
		attr->mode = (attr->mode & ~02000u) | (dir->mode & 02000) | (root ? attr->mode & 02000 : 0);
	else if ((attr->mode & 02010) == 02010 && !root && !cred_in_group(cred, attr->gid))
		attr->mode &= ~02000u;
	if (set->set & FS_SET_ATIME_NOW)
		attr->atime = now;
	else if (set->set & FS_SET_ATIME)
		attr->atime = time_pack(&set->atime);
	if (set->set & FS_SET_MTIME_NOW)
		attr->mtime = now;
	else if (set->set & FS_SET_MTIME)
		attr->mtime = time_pack(&set->mtime);
	if ((set->set & FS_SET_SIZE) && attr->type == FS_REG) {
		if (set->size > FS_SIZE_MAX)
			return -EFBIG;
		attr->size = attr->disk_size = set->size;
	}
	return 0;
}

/* NAME is there: may the file be used as it is? */
static int make_existing(struct tx *tx, struct make_call *c, struct inode *dir, const struct dirent *ent)
{
	struct inode *inode;
	int r;

	if (c->type != FS_REG || c->mode == FS_CREATE_GUARDED)
		return -EEXIST;
	r = inode_load(tx, ent->ino, &inode);
	if (r < 0)
		return r == -ENOENT ? -EIO : r;
	if (c->mode == FS_CREATE_EXCLUSIVE) {
		if (inode->attr.type != FS_REG || !(inode->attr.flags & INODE_FLAG_VERIFIER) ||
			inode->attr.aux != c->verifier)
			return -EEXIST;
	} else {
		if (inode->attr.type == FS_DIR)
			return -EISDIR;
		if (inode->attr.type != FS_REG)
			return -EEXIST;
		if (c->set && (c->set->set & FS_SET_SIZE)) {
			if (attr_data_permission(&inode->attr, c->op, FS_MAY_WRITE) < 0)
				return -EACCES;
		}
	}
	c->existed = true;
	c->id = (struct fs_id){.ino = inode->ino, .gen = inode->attr.gen};
	attr_fill(&inode->attr, inode->ino, c->attr);
	wcc_before(c->dir_wcc, &dir->attr);
	wcc_after(c->dir_wcc, &dir->attr, dir->ino);
	/* the transaction that made it may still be on its way to the log: even an empty one waits for all before it */
	return change_finish(
		&c->change, tx, c->op->reply && !(c->set && (c->set->set & FS_SET_SIZE)) ? c->op : NULL, c->id);
}

static int make_symlink(struct tx *tx, uint64_t ino, const char *target, size_t len)
{
	int r = 0;

	for (size_t off = 0; off < len && r == 0; off += TREE_VALUE_MAX) {
		struct fs_key key = {.ino = ino, .type = KEY_SYMLINK, .off = off};

		r = tx_put(tx, &key, target + off, len - off < TREE_VALUE_MAX ? len - off : TREE_VALUE_MAX);
	}
	return r;
}

static int make_pass(struct tx *tx, void *arg)
{
	struct make_call *c = arg;
	struct inode_attr *dir_attr, *attr;
	struct inode *dir;
	struct dirent ent;
	uint64_t ino;
	int r;

	change_begin(&c->change, tx);
	c->existed = false;
	r = dir_get(tx, c->dir, c->op, FS_MAY_EXEC, &dir);
	if (r < 0)
		return r;
	r = dirent_find(tx, dir->ino, c->name, c->name_len, &ent);
	if (r == 0)
		return make_existing(tx, c, dir, &ent);
	if (r != -ENOENT)
		return r;
	r = attr_permission(&dir->attr, c->op->cred, FS_MAY_WRITE | FS_MAY_EXEC);
	if (r < 0)
		return r;
	r = space_tree_full(tx_fs(tx)) ? -ENOSPC : dirent_slot(tx, dir->ino, c->name, c->name_len, &ent.slot);
	if (r < 0)
		return r;
	wcc_before(c->dir_wcc, &dir->attr);
	dir_attr = change_inode(&c->change, dir);
	attr = change_create(&c->change, c->type, &ino);
	attr->rdev_major = c->major;
	attr->rdev_minor = c->minor;
	r = make_attr(c, &dir->attr, attr, c->change.now);
	if (r < 0)
		return r;
	if (c->type == FS_DIR) {
		if (dir_attr->nlink >= FS_LINK_MAX)
			return -EMLINK;
		dir_attr->nlink++;
		attr->nlink = 2;
		attr->aux = dir->ino;
		attr->next_seq = NAME_SEQ_FIRST;
	} else if (c->type == FS_LNK) {
		attr->size = attr->disk_size = c->target_len;
		r = make_symlink(tx, ino, c->target, c->target_len);
		if (r < 0)
			return r;
	} else if (c->type == FS_REG && c->mode == FS_CREATE_EXCLUSIVE) {
		attr->flags |= INODE_FLAG_VERIFIER;
		attr->aux = c->verifier;
	}
	ent.ino = ino;
	ent.gen = attr->gen;
	ent.type = (uint8_t)c->type;
	r = dirent_add(tx, &c->change, dir_attr, dir->ino, c->name, c->name_len, &ent);
	if (r < 0)
		return r;
	c->id = (struct fs_id){.ino = ino, .gen = attr->gen};
	attr_fill(attr, ino, c->attr);
	wcc_after(c->dir_wcc, dir_attr, dir->ino);
	return change_finish(&c->change, tx, c->op, c->id);
}

static int make(struct fs *fs, struct make_call *c)
{
	int r = name_check(c->name, c->name_len);

	if (r < 0)
		return r;
	if (name_is_dots(c->name, c->name_len) || name_is_reserved(c->dir, c->name, c->name_len))
		return -EEXIST;
	return files_transact(fs, make_pass, c);
}

int fs_create_file(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	enum fs_create_mode mode, const struct fs_setattr *set, uint64_t verifier, struct fs_attr *attr,
	struct fs_wcc *dir_wcc)
{
	struct make_call c = {.op = op,
		.dir = dir,
		.name = name,
		.name_len = name_len,
		.type = FS_REG,
		.set = set,
		.mode = mode,
		.verifier = verifier,
		.attr = attr,
		.dir_wcc = dir_wcc};
	int r = make(fs, &c);

	if (r == 0 && c.existed && mode == FS_CREATE_UNCHECKED && set && (set->set & FS_SET_SIZE)) {
		struct fs_setattr size = {.set = FS_SET_SIZE, .size = set->size};

		r = data_set_size(fs, op, c.id, &size, NULL, NULL, attr);
	}
	return r;
}

int fs_mkdir(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	const struct fs_setattr *set, struct fs_attr *attr, struct fs_wcc *dir_wcc)
{
	struct make_call c = {.op = op,
		.dir = dir,
		.name = name,
		.name_len = name_len,
		.type = FS_DIR,
		.set = set,
		.attr = attr,
		.dir_wcc = dir_wcc};

	return make(fs, &c);
}

int fs_symlink(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	const char *target, size_t target_len, const struct fs_setattr *set, struct fs_attr *attr,
	struct fs_wcc *dir_wcc)
{
	struct make_call c = {.op = op,
		.dir = dir,
		.name = name,
		.name_len = name_len,
		.type = FS_LNK,
		.set = set,
		.target = target,
		.target_len = target_len,
		.attr = attr,
		.dir_wcc = dir_wcc};

	if (target_len == 0 || memchr(target, 0, target_len))
		return -EINVAL;
	if (target_len > FS_SYMLINK_MAX)
		return -ENAMETOOLONG;
	return make(fs, &c);
}

int fs_mknod(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	enum fs_type type, uint32_t major, uint32_t minor, const struct fs_setattr *set, struct fs_attr *attr,
	struct fs_wcc *dir_wcc)
{
	struct make_call c = {.op = op,
		.dir = dir,
		.name = name,
		.name_len = name_len,
		.type = type,
		.set = set,
		.major = major,
		.minor = minor,
		.attr = attr,
		.dir_wcc = dir_wcc};

	if (type != FS_CHR && type != FS_BLK && type != FS_FIFO && type != FS_SOCK)
		return -EINVAL;
	if ((type == FS_CHR || type == FS_BLK) && op->cred->uid != 0)
		return -EPERM;
	if (type == FS_FIFO || type == FS_SOCK)
		c.major = c.minor = 0;
	return make(fs, &c);
}

/* ------------------------------------------------------------------------------------------------
 * Link
 */

struct link_call {
	const struct fs_op *op;
	struct fs_id id, dir;
	const char *name;
	size_t name_len;
	struct fs_attr *attr;
	struct fs_wcc *dir_wcc;
	struct change change;
};

static int link_pass(struct tx *tx, void *arg)
{
	struct link_call *c = arg;
	struct inode_attr *dir_attr, *attr;
	struct inode *dir, *inode;
	struct dirent ent;
	int r;

	change_begin(&c->change, tx);
	r = inode_get(tx, c->id, &inode);
	if (r < 0)
		return r;
	r = dir_get(tx, c->dir, c->op, FS_MAY_WRITE | FS_MAY_EXEC, &dir);
	if (r < 0)
		return r;
	if (inode->attr.type == FS_DIR)
		return -EISDIR;
	if (inode->attr.nlink == 0)
		return -ESTALE;
	if (inode->attr.nlink >= FS_LINK_MAX)
		return -EMLINK;
	r = space_tree_full(tx_fs(tx)) ? -ENOSPC : dirent_slot(tx, dir->ino, c->name, c->name_len, &ent.slot);
	if (r < 0)
		return r;
	wcc_before(c->dir_wcc, &dir->attr);
	dir_attr = change_inode(&c->change, dir);
	attr = change_inode(&c->change, inode);
	attr->nlink++;
	change_touch(&c->change, attr, false);
	ent.ino = inode->ino;
	ent.gen = attr->gen;
	ent.type = (uint8_t)attr->type;
	r = dirent_add(tx, &c->change, dir_attr, dir->ino, c->name, c->name_len, &ent);
	if (r < 0)
		return r;
	attr_fill(attr, inode->ino, c->attr);
	wcc_after(c->dir_wcc, dir_attr, dir->ino);
	return change_finish(&c->change, tx, c->op, c->id);
}

int fs_link(struct fs *fs, const struct fs_op *op, struct fs_id id, struct fs_id dir, const char *name, size_t name_len,
	struct fs_attr *attr, struct fs_wcc *dir_wcc)
{
	struct link_call c = {
		.op = op, .id = id, .dir = dir, .name = name, .name_len = name_len, .attr = attr, .dir_wcc = dir_wcc};
	int r = name_check(name, name_len);

	if (r < 0)
		return r;
	if (name_is_dots(name, name_len) || name_is_reserved(dir, name, name_len))
		return -EEXIST;
	return files_transact(fs, link_pass, &c);
}
