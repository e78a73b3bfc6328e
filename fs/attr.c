/*
 * Attributes by handle: getattr, setattr, access, readlink; fs_hold() and fs_release().
 *
 * What is in the cache is answered without a look at the tree. setattr is one transaction, but for
 * the size, which has to do with data and is in truncate.c.
 */
#include "fs/inode_internal.h"

/* ------------------------------------------------------------------------------------------------
 * Reading
 */

struct attr_call {
	const struct fs_op *op;
	struct fs_id id;
	struct fs_attr *attr;
	uint32_t wanted, *allowed;
	char *target;
	size_t room, len;
};

static int getattr_pass(struct tx *tx, void *arg)
{
	struct attr_call *c = arg;
	struct inode *inode;
	int r = inode_get(tx, c->id, &inode);

	if (r < 0)
		return r;
	attr_fill(&inode->attr, inode->ino, c->attr);
	return 0;
}

int fs_getattr(struct fs *fs, struct fs_id id, struct fs_attr *attr)
{
	struct attr_call c = {.id = id, .attr = attr};

	if (reactor_self() == fs->home && id.snap == 0) {
		/* the most frequent call of all: no pass when it is in memory */
		const struct inode *inode = inode_cached(fs->files, id.ino);

		if (inode && inode->attr.gen == id.gen && inode->attr.nlink > 0) {
			attr_fill(&inode->attr, inode->ino, attr);
			return 0;
		}
	}
	return files_view(fs, getattr_pass, &c);
}

static int access_pass(struct tx *tx, void *arg)
{
	struct attr_call *c = arg;
	const struct fs_cred *cred = c->op->cred;
	struct inode *inode;
	int r = inode_get(tx, c->id, &inode);

	if (r < 0)
		return r;
	*c->allowed = 0;
	for (uint32_t bit = FS_MAY_READ; bit <= FS_MAY_EXEC; bit <<= 1)
		if ((c->wanted & bit) && attr_permission(&inode->attr, cred, bit) == 0)
			*c->allowed |= bit;
	if ((c->wanted & FS_MAY_DELETE) && inode->attr.type == FS_DIR &&
		attr_permission(&inode->attr, cred, FS_MAY_WRITE | FS_MAY_EXEC) == 0)
		*c->allowed |= FS_MAY_DELETE;
	attr_fill(&inode->attr, inode->ino, c->attr);
	return 0;
}

int fs_access(struct fs *fs, const struct fs_op *op, struct fs_id id, uint32_t wanted, uint32_t *allowed,
	struct fs_attr *attr)
{
	struct attr_call c = {.op = op, .id = id, .attr = attr, .wanted = wanted, .allowed = allowed};

	return files_view(fs, access_pass, &c);
}

static int readlink_pass(struct tx *tx, void *arg)
{
	struct attr_call *c = arg;
	struct fs_key key = {.ino = c->id.ino, .type = KEY_SYMLINK};
	struct inode *inode;
	int r = inode_get(tx, c->id, &inode);

	if (r < 0)
		return r;
	attr_fill(&inode->attr, inode->ino, c->attr);
	if (inode->attr.type != FS_LNK)
		return -EINVAL;
	c->len = inode->attr.size;
	if (c->len > c->room)
		return -EINVAL;
	for (size_t off = 0; off < c->len;) {
		const void *val;
		size_t len;

		key.off = off;
		r = tx_get(tx, &key, &val, &len);
		if (r == -EAGAIN)
			return r;
		if (r < 0 || len == 0 || len > c->len - off) {
			log_error(
				"fs", "target of a symbolic link is not whole ino=%llu", (unsigned long long)c->id.ino);
			return -EIO;
		}
		memcpy(c->target + off, val, len);
		off += len;
	}
	return 0;
}

int fs_readlink(struct fs *fs, const struct fs_op *op, struct fs_id id, char *target, size_t room, struct fs_attr *attr)
{
	struct attr_call c = {.op = op, .id = id, .attr = attr, .target = target, .room = room};
	int r = files_view(fs, readlink_pass, &c);

	return r < 0 ? r : (int)c.len;
}

/* ------------------------------------------------------------------------------------------------
 * Setting
 */

struct setattr_call {
	const struct fs_op *op;
	struct fs_id id;
	const struct fs_setattr *set;
	const struct timespec *guard;
	struct fs_wcc *wcc;
	struct change change;
};

static int setattr_pass(struct tx *tx, void *arg)
{
	struct setattr_call *c = arg;
	struct inode_attr *attr;
	struct inode *inode;
	int r;

	change_begin(&c->change, tx);
	r = inode_get(tx, c->id, &inode);
	if (r < 0)
		return r;
	wcc_before(c->wcc, &inode->attr);
	wcc_after(c->wcc, &inode->attr, inode->ino);
	if (c->guard && time_pack(c->guard) != inode->attr.ctime)
		return -EBUSY;
	attr = change_inode(&c->change, inode);
	r = attr_set(attr, c->op, c->set, c->change.now);
	if (r < 0)
		return r;
	if (c->set->set)
		change_touch(&c->change, attr, false);
	wcc_after(c->wcc, attr, inode->ino);
	return change_finish(&c->change, tx, c->op, c->id);
}

int fs_setattr(struct fs *fs, const struct fs_op *op, struct fs_id id, const struct fs_setattr *set,
	const struct timespec *guard_ctime, struct fs_wcc *wcc)
{
	struct setattr_call c = {.op = op, .id = id, .set = set, .guard = guard_ctime, .wcc = wcc};

	if (set->set & FS_SET_SIZE)
		return data_set_size(fs, op, id, set, guard_ctime, wcc, NULL);
	return files_transact(fs, setattr_pass, &c);
}

/* ------------------------------------------------------------------------------------------------
 * Holding
 */

static int hold_pass(struct tx *tx, void *arg)
{
	struct attr_call *c = arg;
	struct inode *inode;
	int r = inode_get(tx, c->id, &inode);

	if (r < 0 || c->id.snap || c->id.ino == FS_SNAPDIR_INO)
		return r; /* what nothing changes stays anyway */
	inode->holds++;
	list_remove(&inode->lru);
	return 0;
}

int fs_hold(struct fs *fs, struct fs_id id)
{
	struct attr_call c = {.id = id};

	return files_view(fs, hold_pass, &c);
}

static int release_run(struct fs *fs, void *arg)
{
	const struct fs_id *id = arg;
	struct inode *inode = id->snap ? NULL : inode_cached(fs->files, id->ino);

	/* a held directory may have been removed */
	if (!inode || inode->attr.gen != id->gen || inode->holds == 0)
		return 0;
	inode->holds--;
	if (inode->holds == 0 && inode->attr.nlink == 0 && !inode->reclaim)
		orphan_queue(fs, inode->ino);
	else
		inode_settle(fs->files, inode);
	return 0;
}

void fs_release(struct fs *fs, struct fs_id id)
{
	files_call(fs, release_run, &id);
}
