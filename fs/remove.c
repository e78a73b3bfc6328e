/*
 * Unlink and rmdir, and files without a name.
 *
 * When its last name goes, a small file that nothing uses is deleted in the same transaction. Any
 * other becomes an orphan: its link count is 0 and KEY_ORPHAN names it. If nobody holds it
 * (fs_hold()), its handle is stale from then on, and one fiber deletes it in the background, in
 * transactions of bounded size from its end on; a crash in between is picked up at the next mount.
 * A held one stays whole (ORPHAN_HELD) until it is released. After a restart such a file may be held
 * again for orphan_reclaim_ns, in which clients reclaim their state; then it is deleted.
 */
#include <limits.h>

#include "fs/inode_internal.h"

#define UNLINK_EXTENTS 4u  /* files of so many extents are deleted at once */
#define ORPHAN_EXTENTS 48u /* in a transaction */

uint64_t orphan_reclaim_ns = 120 * NSEC_PER_SEC;

struct orphan {
	struct list_node link;
	uint64_t ino;
};

/* ------------------------------------------------------------------------------------------------
 * One link less
 */

static void unlink_applied(struct change *change, void *arg)
{
	const struct inode *inode = arg;

	if (inode->holds == 0)
		orphan_queue(change->fs, inode->ino);
}

static int symlink_delete(struct tx *tx, uint64_t ino, uint64_t size)
{
	int r = 0;

	for (uint64_t off = 0; off < size && r == 0; off += TREE_VALUE_MAX) {
		struct fs_key key = {.ino = ino, .type = KEY_SYMLINK, .off = off};

		r = tx_delete(tx, &key);
	}
	return r;
}

/* 1 when INODE has few extents: their deletion is queued. 0 when it has many. */
static int unlink_extents(struct tx *tx, const struct inode *inode)
{
	uint64_t block = 0, to = EXTENT_END, dropped = 0;
	struct extent e;
	int r;

	for (unsigned n = 0;; n++) {
		r = extent_find(tx, inode->ino, block, &e);
		if (r == -ENOENT)
			break;
		if (r < 0)
			return r;
		if (n == UNLINK_EXTENTS)
			return 0;
		block = e.first + e.count;
	}
	r = extents_remove(tx, inode->ino, 0, &to, UINT_MAX, &dropped);
	return r < 0 ? r : 1;
}

int unlink_inode(struct tx *tx, struct change *change, struct inode *inode)
{
	struct inode_attr *attr = change_inode(change, inode);
	struct fs_key key = {.type = KEY_ORPHAN, .off = inode->ino};
	struct orphan_disk disk = {.state = (uint8_t)(inode->holds ? ORPHAN_HELD : ORPHAN_DELETE)};
	int r;

	if (attr->nlink == 0) {
		log_error("fs", "name of a file without links ino=%llu", (unsigned long long)inode->ino);
		return -EIO;
	}
	attr->nlink--;
	change_touch(change, attr, false);
	if (attr->nlink > 0)
		return 0;
	if (inode->holds == 0 && inode->refs == 0 && !inode->data) {
		r = attr->type == FS_REG ? unlink_extents(tx, inode) : 1;
		if (r < 0)
			return r;
		if (r == 1) {
			change_remove(change, inode);
			return attr->type == FS_LNK ? symlink_delete(tx, inode->ino, attr->size) : 0;
		}
	}
	change->applied = unlink_applied;
	change->applied_arg = inode;
	return tx_put(tx, &key, &disk, sizeof(disk));
}

/* ------------------------------------------------------------------------------------------------
 * Unlink and rmdir
 */

struct remove_call {
	const struct fs_op *op;
	struct fs_id dir;
	const char *name;
	size_t name_len;
	struct fs_wcc *dir_wcc;
	bool directory;
	struct change change;
};

static int remove_pass(struct tx *tx, void *arg)
{
	struct remove_call *c = arg;
	struct inode_attr *dir_attr;
	struct inode *dir, *inode;
	struct dirent ent;
	int r;

	change_begin(&c->change, tx);
	r = dir_get(tx, c->dir, c->op, FS_MAY_EXEC, &dir);
	if (r < 0)
		return r;
	r = dirent_find(tx, dir->ino, c->name, c->name_len, &ent);
	if (r < 0)
		return r;
	r = inode_load(tx, ent.ino, &inode);
	if (r < 0)
		return r == -ENOENT ? -EIO : r;
	r = attr_permission(&dir->attr, c->op->cred, FS_MAY_WRITE | FS_MAY_EXEC);
	if (r == 0)
		r = dir_sticky(&dir->attr, &inode->attr, c->op->cred);
	if (r < 0)
		return r;
	if (c->directory && inode->attr.type != FS_DIR)
		return -ENOTDIR;
	if (!c->directory && inode->attr.type == FS_DIR)
		return -EISDIR;
	if (c->directory && inode->attr.size != 0)
		return -ENOTEMPTY;
	wcc_before(c->dir_wcc, &dir->attr);
	dir_attr = change_inode(&c->change, dir);
	if (dir_attr->size == 0 || (c->directory && dir_attr->nlink <= 2)) {
		log_error("fs", "directory counts fewer entries than it has ino=%llu", (unsigned long long)dir->ino);
		return -EIO;
	}
	dir_attr->size--;
	change_touch(&c->change, dir_attr, true);
	r = dirent_delete(tx, dir->ino, &ent);
	if (r < 0)
		return r;
	if (c->directory) {
		dir_attr->nlink--;
		change_remove(&c->change, inode);
	} else {
		r = unlink_inode(tx, &c->change, inode);
		if (r < 0)
			return r;
	}
	wcc_after(c->dir_wcc, dir_attr, dir->ino);
	return change_finish(&c->change, tx, c->op, (struct fs_id){.ino = ent.ino, .gen = ent.gen});
}

int fs_unlink(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	struct fs_wcc *dir_wcc)
{
	struct remove_call c = {.op = op, .dir = dir, .name = name, .name_len = name_len, .dir_wcc = dir_wcc};
	int r = name_check(name, name_len);

	if (r < 0)
		return r;
	if (name_is_dots(name, name_len))
		return -EISDIR;
	if (name_is_reserved(dir, name, name_len))
		return -EROFS;
	return files_transact(fs, remove_pass, &c);
}

int fs_rmdir(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	struct fs_wcc *dir_wcc)
{
	struct remove_call c = {
		.op = op, .dir = dir, .name = name, .name_len = name_len, .dir_wcc = dir_wcc, .directory = true};
	int r = name_check(name, name_len);

	if (r < 0)
		return r;
	if (name_is_dots(name, name_len))
		return name_len == 1 ? -EINVAL : -ENOTEMPTY;
	if (name_is_reserved(dir, name, name_len))
		return -EROFS;
	return files_transact(fs, remove_pass, &c);
}

/* ------------------------------------------------------------------------------------------------
 * Orphans
 */

struct orphan_call {
	uint64_t ino;
	struct inode *inode;
	bool gone, done;
	unsigned limit;
	uint64_t left, left_after;
	struct change change;
};

static int orphan_find_pass(struct tx *tx, void *arg)
{
	struct orphan_call *c = arg;
	int r = inode_load(tx, c->ino, &c->inode);

	c->gone = r == -ENOENT;
	return c->gone ? 0 : r;
}

static int orphan_forget_pass(struct tx *tx, void *arg)
{
	struct orphan_call *c = arg;
	struct fs_key key = {.type = KEY_ORPHAN, .off = c->ino};

	return tx_delete(tx, &key);
}

static void orphan_applied(struct change *change, void *arg)
{
	struct orphan_call *c = arg;

	(void)change;
	c->left = c->left_after;
	c->done = c->left == 0;
}

static int orphan_delete_pass(struct tx *tx, void *arg)
{
	struct orphan_call *c = arg;
	struct fs_key key = {.type = KEY_ORPHAN, .off = c->ino};
	struct orphan_disk disk = {.state = ORPHAN_DELETE};
	struct inode_attr *attr;
	uint64_t left = c->left, blocks = 0;
	int r;

	change_begin(&c->change, tx);
	c->change.applied = orphan_applied;
	c->change.applied_arg = c;
	attr = change_inode(&c->change, c->inode);
	r = attr->type == FS_REG ? extents_remove(tx, c->ino, 0, &left, c->limit, &blocks) : 0;
	if (r < 0)
		return r;
	attr->blocks -= blocks < attr->blocks ? blocks : attr->blocks;
	c->left_after = attr->type == FS_REG ? left : 0;
	if (c->left_after == 0) {
		change_remove(&c->change, c->inode);
		r = attr->type == FS_LNK ? symlink_delete(tx, c->ino, attr->size) : 0;
		if (r == 0)
			r = tx_delete(tx, &key);
	} else {
		r = tx_put(tx, &key, &disk, sizeof(disk));
	}
	if (r < 0)
		return r;
	return change_finish(&c->change, tx, NULL, (struct fs_id){0});
}

static void orphan_delete(struct fs *fs, uint64_t ino)
{
	struct orphan_call *c = calloc(1, sizeof(*c));
	uint64_t seq;
	int r;

	if (!c)
		return; /* the next mount finds it */
	c->ino = ino;
	c->limit = ORPHAN_EXTENTS;
	c->left = EXTENT_END;
	r = fs_view(fs, orphan_find_pass, c);
	if (r < 0)
		goto out;
	if (c->gone || c->inode->attr.nlink != 0) {
		log_error("fs", "orphan record of a file that is none ino=%llu", (unsigned long long)ino);
		r = fs_transact(fs, orphan_forget_pass, c, &seq);
		goto out;
	}
	if (c->inode->holds > 0 || c->inode->gone)
		goto out;
	inode_ref(c->inode);
	r = data_exclude(fs->files, c->inode);
	if (r == 0) {
		data_discard(fs, c->inode, 0);
		while (r == 0 && !c->done && !fs->files->stopping) {
			r = fs_transact(fs, orphan_delete_pass, c, &seq);
			if (r == -E2BIG && c->limit > 1) {
				c->limit /= 2;
				r = 0;
			}
		}
		data_unexclude(fs, c->inode);
	}
	inode_unref(fs->files, c->inode);
out:
	if (r < 0)
		log_error("fs", "could not delete a file without a name ino=%llu error=%s", (unsigned long long)ino,
			strerror(-r));
	free(c);
}

static void orphan_fiber(void *arg)
{
	struct fs *fs = arg;
	struct fs_files *files = fs->files;
	struct list_node *node;

	while (!files->stopping && (node = list_pop_front(&files->orphans))) {
		struct orphan *orphan = container_of(node, struct orphan, link);

		orphan_delete(fs, orphan->ino);
		free(orphan);
	}
	files->orphan_running = false;
	wait_queue_wake_all(&files->orphan_idle);
}

static void orphan_start(struct fs *fs)
{
	struct fs_files *files = fs->files;

	if (!files->orphan_running && !files->stopping && !fs->read_only && !list_empty(&files->orphans)) {
		files->orphan_running = true;
		reactor_spawn(fs->home, orphan_fiber, fs);
	}
}

void orphan_queue(struct fs *fs, uint64_t ino)
{
	struct orphan *orphan = malloc(sizeof(*orphan));

	if (!orphan)
		return; /* the next mount finds it */
	orphan->ino = ino;
	list_push_back(&fs->files->orphans, &orphan->link);
	orphan_start(fs);
}

/* The time to hold orphans of the last run again is over. */
static void orphan_reclaim_over(struct timer *timer)
{
	struct fs_files *files = container_of(timer, struct fs_files, reclaim_timer);

	list_foreach (node, &files->reclaims) {
		struct orphan *orphan = container_of(node, struct orphan, link);
		struct inode *inode = inode_cached(files, orphan->ino);

		list_remove(node);
		if (inode)
			inode->reclaim = false;
		if (inode && inode->holds > 0)
			free(orphan);
		else
			list_push_back(&files->orphans, node);
	}
	orphan_start(files->fs);
}

int orphans_mount(struct fs *fs)
{
	struct fs_files *files = fs->files;
	struct fs_key key = {.type = KEY_ORPHAN};
	struct orphan_disk disk;

	timer_init(&files->reclaim_timer, orphan_reclaim_over);
	for (;;) {
		struct orphan_call find = {.ino = 0};
		struct orphan *orphan;
		int r = tree_next(fs, &key, &disk, sizeof(disk));

		if (r == -ENOENT || (r >= 0 && (key.ino != 0 || key.type != KEY_ORPHAN)))
			break;
		if (r < 0)
			return r;
		if (r != (int)sizeof(disk))
			return -EIO;
		orphan = malloc(sizeof(*orphan));
		if (!orphan)
			return -ENOMEM;
		orphan->ino = find.ino = key.off;
		list_push_back(&files->orphans, &orphan->link);
		if (disk.state != ORPHAN_DELETE) { /* fs check names one that makes no sense */
			r = fs_view(fs, orphan_find_pass, &find);
			if (r < 0)
				return r;
			if (!find.gone && find.inode->attr.nlink == 0) {
				find.inode->reclaim = true;
				list_remove(&find.inode->lru);
				list_remove(&orphan->link);
				list_push_back(&files->reclaims, &orphan->link);
			}
		}
		key.off++;
		key.snap = 0;
	}
	if (!list_empty(&files->reclaims))
		timer_start(&files->reclaim_timer, now_ns() + orphan_reclaim_ns);
	orphan_start(fs);
	return 0;
}

void orphans_unmount(struct fs *fs)
{
	struct fs_files *files = fs->files;
	struct list_node *node;

	timer_stop(&files->reclaim_timer);
	while (files->orphan_running)
		wait_queue_wait(&files->orphan_idle, NEVER);
	while ((node = list_pop_front(&files->orphans)))
		free(container_of(node, struct orphan, link));
	while ((node = list_pop_front(&files->reclaims)))
		free(container_of(node, struct orphan, link));
}
