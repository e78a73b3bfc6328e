/*
 * Rename: one transaction that moves a name, with what it names there before unlinked.
 *
 * A name that replaces another keeps the other's records (hash slot and sequence), so that a
 * directory being read shows it once, where it was. Directories know their parent; a directory is
 * not moved below itself, which the way from the new parent up to the root tells. That walk reads
 * the tree in the same pass, so no other rename can come between.
 */
#include "fs/inode_internal.h"

struct rename_call {
	const struct fs_op *op;
	struct fs_id from_dir, to_dir;
	const char *from, *to;
	size_t from_len, to_len;
	struct fs_wcc *from_wcc, *to_wcc;
	struct change change;
};

#define RENAME_DEPTH_MAX 100000u

/* -EINVAL when INO is DIR or above it. */
static int rename_check_loop(struct tx *tx, uint64_t ino, const struct inode *dir)
{
	struct inode_attr attr = dir->attr;
	uint64_t at = dir->ino;

	for (unsigned depth = 0; depth < RENAME_DEPTH_MAX; depth++) {
		struct fs_key key = {.type = KEY_INODE};
		const struct inode *cached;
		const void *val;
		size_t len;
		int r;

		if (at == ino)
			return -EINVAL;
		if (at == FS_ROOT_INO)
			return 0;
		at = attr.aux;
		cached = inode_cached(tx_fs(tx)->files, at);
		if (cached) {
			attr = cached->attr;
		} else {
			key.ino = at;
			r = tx_get(tx, &key, &val, &len);
			if (r == 0)
				r = inode_decode(val, len, &attr);
			if (r < 0)
				return r == -ENOENT ? -EIO : r;
		}
		if (attr.type != FS_DIR)
			return -EIO;
	}
	return -EIO;
}

/* TARGET, which has the new name, goes. */
static int rename_over(struct tx *tx, struct rename_call *c, const struct inode *moved, struct inode *target,
	struct inode_attr *to_attr)
{
	if (moved->attr.type == FS_DIR) {
		if (target->attr.type != FS_DIR)
			return -ENOTDIR;
		if (target->attr.size != 0)
			return -ENOTEMPTY;
		to_attr->nlink--;
		change_remove(&c->change, target);
		return 0;
	}
	if (target->attr.type == FS_DIR)
		return -EISDIR;
	return unlink_inode(tx, &c->change, target);
}

/* What a rename is about, as the pass finds it. */
struct rename_parts {
	struct inode *from_dir, *to_dir, *moved;
	struct inode *target; /* that has the new name; NULL: none */
	struct dirent ent, old;
};

/* Finds it all, and whether this caller may. */
static int rename_find(struct tx *tx, const struct rename_call *c, struct rename_parts *p)
{
	const struct fs_cred *cred = c->op->cred;
	int r = dir_get(tx, c->from_dir, c->op, FS_MAY_EXEC, &p->from_dir);

	if (r == 0)
		r = dir_get(tx, c->to_dir, c->op, FS_MAY_EXEC, &p->to_dir);
	if (r == 0)
		r = dirent_find(tx, p->from_dir->ino, c->from, c->from_len, &p->ent);
	if (r < 0)
		return r;
	r = inode_load(tx, p->ent.ino, &p->moved);
	if (r < 0)
		return r == -ENOENT ? -EIO : r;
	r = attr_permission(&p->from_dir->attr, cred, FS_MAY_WRITE | FS_MAY_EXEC);
	if (r == 0)
		r = attr_permission(&p->to_dir->attr, cred, FS_MAY_WRITE | FS_MAY_EXEC);
	if (r == 0)
		r = dir_sticky(&p->from_dir->attr, &p->moved->attr, cred);
	if (r < 0)
		return r;
	p->target = NULL;
	r = dirent_find(tx, p->to_dir->ino, c->to, c->to_len, &p->old);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	r = inode_load(tx, p->old.ino, &p->target);
	return r == -ENOENT ? -EIO : r;
}

/* Makes way for the new name: p->ent gets the place of the one that was there, or a new one. */
static int rename_place(struct tx *tx, struct rename_call *c, struct rename_parts *p, struct inode_attr *to_attr)
{
	int r;

	if (p->target) {
		r = dir_sticky(&p->to_dir->attr, &p->target->attr, c->op->cred);
		if (r == 0)
			r = rename_over(tx, c, p->moved, p->target, to_attr);
		p->ent.slot = p->old.slot;
		p->ent.seq = p->old.seq;
		return r;
	}
	if (to_attr->next_seq >= NAME_SEQ_MAX)
		return -ENOSPC;
	p->ent.seq = to_attr->next_seq++;
	r = dirent_slot(tx, p->to_dir->ino, c->to, c->to_len, &p->ent.slot);
	if (r == 0)
		to_attr->size++;
	return r;
}

/* Moves the name, all else being well. */
static int rename_move(struct tx *tx, struct rename_call *c, struct rename_parts *p)
{
	struct inode_attr *from_attr = change_inode(&c->change, p->from_dir);
	struct inode_attr *to_attr = change_inode(&c->change, p->to_dir);
	struct inode_attr *moved_attr = change_inode(&c->change, p->moved);
	bool directory = moved_attr->type == FS_DIR;
	int r = dirent_delete(tx, p->from_dir->ino, &p->ent);

	if (r < 0)
		return r;
	if (from_attr->size == 0 || (directory && from_attr->nlink <= 2)) {
		log_error("fs", "directory counts fewer entries than it has ino=%llu",
			(unsigned long long)p->from_dir->ino);
		return -EIO;
	}
	from_attr->size--;
	r = rename_place(tx, c, p, to_attr);
	if (r < 0)
		return r;
	if (directory && p->from_dir != p->to_dir) {
		if (to_attr->nlink >= FS_LINK_MAX)
			return -EMLINK;
		from_attr->nlink--;
		to_attr->nlink++;
		moved_attr->aux = p->to_dir->ino;
	}
	r = dirent_put(tx, p->to_dir->ino, c->to, c->to_len, &p->ent);
	if (r < 0)
		return r;
	change_touch(&c->change, moved_attr, false);
	change_touch(&c->change, from_attr, true);
	if (to_attr != from_attr)
		change_touch(&c->change, to_attr, true);
	wcc_after(c->from_wcc, from_attr, p->from_dir->ino);
	wcc_after(c->to_wcc, to_attr, p->to_dir->ino);
	return 0;
}

static int rename_pass(struct tx *tx, void *arg)
{
	struct rename_call *c = arg;
	struct rename_parts p;
	int r;

	change_begin(&c->change, tx);
	r = rename_find(tx, c, &p);
	if (r < 0)
		return r;
	wcc_before(c->from_wcc, &p.from_dir->attr);
	wcc_before(c->to_wcc, &p.to_dir->attr);
	wcc_after(c->from_wcc, &p.from_dir->attr, p.from_dir->ino);
	wcc_after(c->to_wcc, &p.to_dir->attr, p.to_dir->ino);
	/* two links of one file: nothing happens (POSIX), but the reply still has to be kept */
	if (p.target != p.moved) {
		if (p.moved->attr.type == FS_DIR) {
			r = rename_check_loop(tx, p.moved->ino, p.to_dir);
			if (r == 0 && p.from_dir != p.to_dir)
				r = attr_permission(&p.moved->attr, c->op->cred, FS_MAY_WRITE);
		}
		if (r == 0)
			r = rename_move(tx, c, &p);
		if (r < 0)
			return r;
	}
	return change_finish(&c->change, tx, c->op, (struct fs_id){.ino = p.ent.ino, .gen = p.ent.gen});
}

int fs_rename(struct fs *fs, const struct fs_op *op, struct fs_id from_dir, const char *from, size_t from_len,
	struct fs_id to_dir, const char *to, size_t to_len, struct fs_wcc *from_wcc, struct fs_wcc *to_wcc)
{
	struct rename_call c = {.op = op,
		.from_dir = from_dir,
		.to_dir = to_dir,
		.from = from,
		.to = to,
		.from_len = from_len,
		.to_len = to_len,
		.from_wcc = from_wcc,
		.to_wcc = to_wcc};
	int r = name_check(from, from_len);

	if (r == 0)
		r = name_check(to, to_len);
	if (r < 0)
		return r;
	if (name_is_dots(from, from_len) || name_is_dots(to, to_len))
		return -EINVAL;
	if (name_is_reserved(from_dir, from, from_len) || name_is_reserved(to_dir, to, to_len))
		return -EROFS;
	return files_transact(fs, rename_pass, &c);
}
