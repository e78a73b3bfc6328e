/*
 * Reading directories: entries in the order of their sequence numbers, in batches.
 *
 * A pass copies a batch out of the tree (with attributes, when asked for), then the caller's
 * function sees it outside of the pass. Cookies are the sequence numbers, so a directory that
 * changes meanwhile shows every entry that stayed exactly once.
 */
#include "fs/inode_internal.h"

#define READDIR_BATCH 64u
#define READDIR_NAMES (READDIR_BATCH * 48u) /* bytes */

struct readdir_call {
	const struct fs_op *op;
	struct fs_id dir;
	uint64_t cookie;
	bool with_attr, end;
	struct fs_attr *dir_attr;
	unsigned n;
	struct {
		struct dirent ent;
		uint32_t name, snap;
		uint16_t len;
	} of[READDIR_BATCH];
	struct fs_attr attr[READDIR_BATCH];
	uint32_t used;
	char names[READDIR_NAMES + FS_NAME_MAX];
};

static int readdir_add(struct tx *tx, struct readdir_call *c, const struct dirent *ent, const char *name, size_t len)
{
	struct inode *inode;
	int r;

	if (c->with_attr) {
		r = inode_load(tx, ent->ino, &inode);
		if (r == -ENOENT) {
			log_error("fs", "entry without an inode directory=%llu ino=%llu",
				(unsigned long long)c->dir.ino, (unsigned long long)ent->ino);
			return -EIO;
		}
		if (r < 0)
			return r;
		attr_fill(&inode->attr, inode->ino, &c->attr[c->n]);
	}
	c->of[c->n].ent = *ent;
	c->of[c->n].name = c->used;
	c->of[c->n].snap = tx->snap;
	c->of[c->n].len = (uint16_t)len;
	memcpy(c->names + c->used, name, len);
	c->used += (uint32_t)len;
	c->n++;
	return 0;
}

static int readdir_dots(struct tx *tx, struct readdir_call *c, const struct inode *dir)
{
	struct dirent ent = {.type = FS_DIR};
	struct inode *parent;
	int r;

	if (c->cookie < 1) {
		ent.ino = dir->ino;
		ent.gen = dir->attr.gen;
		ent.seq = 1;
		r = readdir_add(tx, c, &ent, ".", 1);
		if (r < 0)
			return r;
	}
	if (c->cookie < 2) {
		r = inode_load(tx, dir->attr.aux, &parent);
		if (r < 0)
			return r == -ENOENT ? -EIO : r;
		ent.ino = parent->ino;
		ent.gen = parent->attr.gen;
		ent.seq = 2;
		r = readdir_add(tx, c, &ent, "..", 2);
		if (r < 0)
			return r;
	}
	return 0;
}

/* `.snapshot`: each entry is the root directory as that snapshot sees it. */
static int readdir_snapshots(struct tx *tx, struct readdir_call *c)
{
	uint64_t seq = c->cookie < NAME_SEQ_FIRST ? NAME_SEQ_FIRST - 1 : c->cookie;

	while (c->n < READDIR_BATCH && c->used < READDIR_NAMES && seq < UINT32_MAX) {
		struct dirent ent = {.ino = FS_ROOT_INO, .type = FS_DIR};
		struct inode *root;
		const char *name;
		size_t len;
		int r;

		tx->snap = snapshot_after(tx_fs(tx)->files, (uint32_t)(seq - (NAME_SEQ_FIRST - 1)), &name, &len);
		if (!tx->snap)
			break;
		r = inode_load(tx, FS_ROOT_INO, &root);
		if (r < 0)
			return r == -ENOENT ? -EIO : r;
		ent.seq = seq = (uint64_t)tx->snap + NAME_SEQ_FIRST - 1;
		ent.gen = root->attr.gen;
		r = readdir_add(tx, c, &ent, name, len);
		if (r < 0)
			return r;
	}
	c->end = tx->snap == 0;
	return 0;
}

static int readdir_pass(struct tx *tx, void *arg)
{
	struct readdir_call *c = arg;
	struct fs_key key = {.type = KEY_ENTRY};
	struct inode *dir;
	uint64_t ino;
	int r;

	c->n = 0;
	c->used = 0;
	c->end = false;
	r = inode_get(tx, c->dir, &dir);
	if (r < 0)
		return r;
	attr_fill(&dir->attr, dir->ino, c->dir_attr);
	if (dir->attr.type != FS_DIR)
		return -ENOTDIR;
	r = attr_permission(&dir->attr, c->op->cred, FS_MAY_READ);
	if (r == 0)
		r = readdir_dots(tx, c, dir);
	if (r < 0)
		return r;
	if (dir->ino == FS_SNAPDIR_INO)
		return readdir_snapshots(tx, c);
	ino = key.ino = dir->ino;
	key.off = c->cookie < NAME_SEQ_FIRST ? NAME_SEQ_FIRST : c->cookie + 1;
	if (c->cookie >= NAME_SEQ_MAX) {
		c->end = true;
		return 0;
	}
	while (c->n < READDIR_BATCH && c->used < READDIR_NAMES) {
		struct dirent ent;
		const char *name;
		size_t len, name_len;
		const void *val;

		r = tx_next(tx, &key, &val, &len);
		if (r == -ENOENT || (r == 0 && (key.ino != ino || key.type != KEY_ENTRY))) {
			c->end = true;
			return 0;
		}
		if (r < 0)
			return r;
		r = entry_decode(val, len, &ent, &name, &name_len);
		if (r < 0) {
			log_error("fs", "entry record makes no sense directory=%llu seq=%llu", (unsigned long long)ino,
				(unsigned long long)key.off);
			return r;
		}
		ent.seq = key.off;
		r = readdir_add(tx, c, &ent, name, name_len);
		if (r < 0)
			return r;
		key.off++;
		key.snap = 0;
	}
	return 0;
}

int fs_readdir(struct fs *fs, const struct fs_op *op, struct fs_id dir, uint64_t cookie, bool with_attr,
	fs_readdir_fn *fn, void *arg, bool *eof, struct fs_attr *dir_attr)
{
	struct readdir_call *c = malloc(sizeof(*c));
	bool room = true;
	int r = 0;

	*eof = false;
	if (!c)
		return -EAGAIN;
	c->op = op;
	c->dir = dir;
	c->cookie = cookie;
	c->with_attr = with_attr;
	c->dir_attr = dir_attr;
	while (room && !*eof) {
		r = files_view(fs, readdir_pass, c);
		if (r < 0)
			break;
		for (unsigned i = 0; i < c->n && room; i++) {
			struct fs_dirent entry = {.name = c->names + c->of[i].name,
				.name_len = c->of[i].len,
				.id = {.ino = c->of[i].ent.ino, .gen = c->of[i].ent.gen, .snap = c->of[i].snap},
				.cookie = c->of[i].ent.seq,
				.type = (enum fs_type)c->of[i].ent.type,
				.attr = with_attr ? &c->attr[i] : NULL};

			room = fn(arg, &entry);
			if (room)
				c->cookie = entry.cookie;
		}
		if (room && c->end)
			*eof = true;
	}
	free(c);
	return r;
}
