/*
 * Inodes in memory, their attributes and permissions, and changes of them.
 *
 * An inode in memory is made when something first asks for it and stays in one hash table, on the
 * home reactor. While nothing holds it there (no fiber over a wait, no fs_hold(), nothing dirty)
 * it is in the LRU list, whose tail goes when there are too many. What it caches is what the tree
 * has, plus what unstable writes changed meanwhile (size, mtime, ctime, change), which the flush
 * brings to the tree, and the access time, which goes there with the next change.
 *
 * A pass that changes inodes takes copies (struct change), and these become the truth in the apply
 * hook, in one go with the tree: so a pass that must run again has changed nothing, and the two
 * never differ. A pass never waits between its last -EAGAIN and apply, and inodes it looked up in
 * that time cannot go: only insertions evict, and they take the least recently used of many.
 *
 * Errors: what the tree holds is checked when it is decoded, and a record that makes no sense is
 * -EIO with a line in the log that names the inode.
 */
#include "fs/inode_internal.h"

/* ------------------------------------------------------------------------------------------------
 * Times
 */

int64_t time_pack(const struct timespec *t)
{
	const int64_t limit = INT64_MAX / (int64_t)NSEC_PER_SEC - 1;
	int64_t sec = t->tv_sec;

	if (sec > limit)
		return limit * (int64_t)NSEC_PER_SEC;
	if (sec < -limit)
		return -limit * (int64_t)NSEC_PER_SEC;
	return sec * (int64_t)NSEC_PER_SEC + t->tv_nsec;
}

static struct timespec time_unpack(int64_t ns)
{
	const uint64_t before = (INT64_MAX / (int64_t)NSEC_PER_SEC) * NSEC_PER_SEC; /* whole seconds, nearly 2^63 ns */
	uint64_t n = (uint64_t)ns + before, s = n / NSEC_PER_SEC; /* without a sign this is two multiplications */

	return (struct timespec){
		.tv_sec = (time_t)(s - before / NSEC_PER_SEC), .tv_nsec = (long)(n - s * NSEC_PER_SEC)};
}

int64_t time_now(void)
{
	return (int64_t)wall_ns();
}

/* ------------------------------------------------------------------------------------------------
 * Layout
 */

int inode_decode(const void *val, size_t len, struct inode_attr *attr)
{
	struct inode_disk d;

	if (len != sizeof(d))
		return -EIO;
	memcpy(&d, val, sizeof(d));
	*attr = (struct inode_attr){
		.gen = le32_get(d.generation),
		.nlink = le32_get(d.nlink),
		.uid = le32_get(d.uid),
		.gid = le32_get(d.gid),
		.rdev_major = le32_get(d.rdev_major),
		.rdev_minor = le32_get(d.rdev_minor),
		.flags = le32_get(d.flags),
		.mode = le16_get(d.mode),
		.type = d.type,
		.size = le64_get(d.size),
		.disk_size = le64_get(d.size),
		.blocks = le64_get(d.blocks),
		.change = le64_get(d.change),
		.aux = le64_get(d.aux),
		.next_seq = le64_get(d.next_seq),
		.atime = (int64_t)le64_get(d.atime),
		.mtime = (int64_t)le64_get(d.mtime),
		.ctime = (int64_t)le64_get(d.ctime),
		.btime = (int64_t)le64_get(d.btime),
	};
	if (attr->gen == 0 || attr->type < FS_REG || attr->type > FS_SOCK || attr->mode > 07777 ||
		attr->nlink > FS_LINK_MAX || (attr->flags & ~(INODE_FLAG_VERIFIER | INODE_FLAG_XATTR)) ||
		attr->size > FS_SIZE_MAX)
		return -EIO;
	if (attr->type == FS_DIR &&
		(attr->aux == 0 || attr->next_seq < NAME_SEQ_FIRST || attr->next_seq > NAME_SEQ_MAX))
		return -EIO;
	if (attr->type == FS_LNK && attr->size > FS_SYMLINK_MAX)
		return -EIO;
	return 0;
}

void inode_encode(const struct inode_attr *attr, struct inode_disk *disk)
{
	*disk = (struct inode_disk){
		.generation = le32_put(attr->gen),
		.type = (uint8_t)attr->type,
		.mode = le16_put((uint16_t)attr->mode),
		.nlink = le32_put(attr->nlink),
		.uid = le32_put(attr->uid),
		.gid = le32_put(attr->gid),
		.rdev_major = le32_put(attr->rdev_major),
		.rdev_minor = le32_put(attr->rdev_minor),
		.flags = le32_put(attr->flags),
		.size = le64_put(attr->type == FS_REG ? attr->disk_size : attr->size),
		.blocks = le64_put(attr->blocks),
		.change = le64_put(attr->change),
		.atime = le64_put((uint64_t)attr->atime),
		.mtime = le64_put((uint64_t)attr->mtime),
		.ctime = le64_put((uint64_t)attr->ctime),
		.btime = le64_put((uint64_t)attr->btime),
		.aux = le64_put(attr->aux),
		.next_seq = le64_put(attr->next_seq),
	};
}

/* What both have first, in the same order. */
#define SAME_BYTES (offsetof(struct inode_attr, flags) - offsetof(struct inode_attr, gen))
#define same_place(ours, theirs)                                                                                       \
	_Static_assert(offsetof(struct inode_attr, ours) - offsetof(struct inode_attr, gen) ==                         \
			       offsetof(struct fs_attr, theirs) - offsetof(struct fs_attr, id.gen),                    \
		"copied as one")
same_place(snap, id.snap);
same_place(type, type);
same_place(mode, mode);
same_place(nlink, nlink);
same_place(uid, uid);
same_place(gid, gid);
same_place(rdev_major, rdev_major);
same_place(rdev_minor, rdev_minor);

void attr_fill(const struct inode_attr *from, uint64_t ino, struct fs_attr *to)
{
	if (!to)
		return;
	to->id.ino = ino;
	memcpy(&to->id.gen, &from->gen, SAME_BYTES);
	to->size = from->size;
	to->used_bytes = from->blocks * BLOCK_BYTES;
	if (from->type == FS_DIR)
		to->size = to->used_bytes = BLOCK_BYTES + from->size * 64;
	to->change = from->change;
	to->atime = time_unpack(from->atime);
	to->mtime = time_unpack(from->mtime);
	to->ctime = time_unpack(from->ctime);
	to->btime = time_unpack(from->btime);
}

void wcc_before(struct fs_wcc *wcc, const struct inode_attr *attr)
{
	struct fs_attr full;

	if (!wcc)
		return;
	attr_fill(attr, 0, &full);
	wcc->valid = false;
	wcc->before.size = full.size;
	wcc->before.change = full.change;
	wcc->before.mtime = full.mtime;
	wcc->before.ctime = full.ctime;
}

void wcc_after(struct fs_wcc *wcc, const struct inode_attr *attr, uint64_t ino)
{
	if (!wcc)
		return;
	attr_fill(attr, ino, &wcc->after);
	wcc->valid = true;
}

/* ------------------------------------------------------------------------------------------------
 * The table
 */

static struct inode *inode_cached_in(struct fs_files *files, uint64_t ino, uint32_t snap)
{
	uint64_t hash = hash_u64(ino);

	htable_foreach_hash (node, &files->inodes, hash) {
		struct inode *inode = container_of(node, struct inode, node);

		if (inode->ino == ino && inode->attr.snap == snap)
			return inode;
	}
	return NULL;
}

struct inode *inode_cached(struct fs_files *files, uint64_t ino)
{
	return inode_cached_in(files, ino, 0);
}

void files_extent_changed(struct fs *fs, uint64_t ino)
{
	uint64_t hash = hash_u64(ino);

	if (!fs->files || !fs->files->inodes.bucket)
		return; /* a replay, a repair: nothing is in memory */
	if (ino == FS_SHARED_INO)
		data_map_forget(fs);
	htable_foreach_hash (node, &fs->files->inodes, hash) {
		struct inode *inode = container_of(node, struct inode, node);

		if (inode->ino == ino)
			inode->map = data_map_new(fs);
	}
}

static bool inode_idle(const struct inode *inode)
{
	return inode->refs == 0 && inode->holds == 0 && !inode->data && !inode->attr_dirty && !inode->reclaim;
}

void inode_settle(struct fs_files *files, struct inode *inode)
{
	if (inode->gone) {
		if (inode->refs == 0 && !inode->data) {
			list_remove(&inode->lru);
			list_remove(&inode->dirty);
			free(inode);
		}
		return;
	}
	list_remove(&inode->lru);
	if (inode_idle(inode))
		list_push_back(&files->lru, &inode->lru);
	if (!inode->data && !inode->attr_dirty)
		list_remove(&inode->dirty);
}

void inode_mark_dirty(struct fs_files *files, struct inode *inode)
{
	if (inode->gone)
		return;
	list_remove(&inode->lru);
	if (!list_linked(&inode->dirty)) {
		list_push_back(&files->dirty, &inode->dirty);
		flush_timer_arm(files->fs);
	}
}

static void inode_free_idle(struct fs_files *files, struct inode *inode)
{
	htable_remove(&files->inodes, &inode->node);
	list_remove(&inode->lru);
	list_remove(&inode->dirty);
	free(inode);
}

static struct inode *inode_insert(struct fs_files *files, uint64_t ino, const struct inode_attr *attr)
{
	struct inode *inode;

	if (files->inodes.count >= files->inode_limit) {
		struct list_node *node = list_first(&files->lru);

		if (node)
			inode_free_idle(files, container_of(node, struct inode, lru));
	}
	inode = calloc(1, sizeof(*inode));
	if (!inode)
		return NULL;
	inode->ino = ino;
	inode->map = data_map_new(files->fs);
	inode->attr = *attr;
	list_node_init(&inode->dirty);
	list_node_init(&inode->lru);
	list_push_back(&files->lru, &inode->lru);
	htable_insert(&files->inodes, &inode->node, hash_u64(ino));
	return inode;
}

int inode_load(struct tx *tx, uint64_t ino, struct inode **inode)
{
	struct fs_files *files = tx_fs(tx)->files;
	struct fs_key key = {.ino = ino, .type = KEY_INODE};
	struct inode *found = inode_cached_in(files, ino, tx->snap);
	struct inode_attr attr;
	const void *val;
	size_t len;
	int r;

	if (found) {
		if (list_linked(&found->lru)) {
			list_remove(&found->lru);
			list_push_back(&files->lru, &found->lru);
		}
		*inode = found;
		return 0;
	}
	if (ino == 0)
		return -ENOENT;
	if (ino == FS_SNAPDIR_INO) {
		if (tx->snap)
			return -ENOENT;
		snapshot_dir_attr(tx_fs(tx), &attr);
		*inode = inode_insert(files, ino, &attr);
		return *inode ? 0 : -ENOMEM;
	}
	r = tx_get(tx, &key, &val, &len);
	if (r < 0)
		return r;
	r = inode_decode(val, len, &attr);
	attr.snap = tx->snap;
	if (r < 0) {
		log_error("fs", "inode record makes no sense ino=%llu", (unsigned long long)ino);
		return r;
	}
	*inode = inode_insert(files, ino, &attr);
	return *inode ? 0 : -ENOMEM;
}

int inode_get(struct tx *tx, struct fs_id id, struct inode **inode)
{
	int r;

	if (id.snap != 0 && !snapshot_exists(tx_fs(tx)->files, id.snap))
		return -ESTALE;
	if ((id.snap != 0 || id.ino == FS_SNAPDIR_INO) && !tx->view)
		return -EROFS;
	tx->snap = id.snap;
	r = inode_load(tx, id.ino, inode);
	if (r == -ENOENT)
		return -ESTALE;
	if (r < 0)
		return r;
	if ((*inode)->attr.gen != id.gen)
		return -ESTALE;
	if ((*inode)->attr.nlink == 0 && (*inode)->holds == 0 && !(*inode)->reclaim)
		return -ESTALE;
	return 0;
}

void inode_ref(struct inode *inode)
{
	inode->refs++;
	list_remove(&inode->lru);
}

void inode_unref(struct fs_files *files, struct inode *inode)
{
	assert(inode->refs > 0);
	inode->refs--;
	inode_settle(files, inode);
}

void inode_drop(struct fs_files *files, struct inode *inode)
{
	if (inode->gone)
		return;
	htable_remove(&files->inodes, &inode->node);
	list_remove(&inode->lru);
	list_remove(&inode->dirty);
	inode->gone = true;
	inode_settle(files, inode);
}

/* ------------------------------------------------------------------------------------------------
 * Permissions
 */

bool cred_in_group(const struct fs_cred *cred, uint32_t gid)
{
	if (cred->gid == gid)
		return true;
	for (uint32_t i = 0; i < cred->group_count && i < FS_GROUPS_MAX; i++)
		if (cred->groups[i] == gid)
			return true;
	return false;
}

int attr_permission(const struct inode_attr *attr, const struct fs_cred *cred, uint32_t want)
{
	uint32_t have, mode = attr->mode, bits = 0;

	if (cred->uid == 0) {
		/* a file that nobody may execute, root may not either */
		if ((want & FS_MAY_EXEC) && attr->type != FS_DIR && !(mode & 0111))
			return -EACCES;
		return 0;
	}
	if (cred->uid == attr->uid)
		have = mode >> 6;
	else if (cred_in_group(cred, attr->gid))
		have = mode >> 3;
	else
		have = mode;
	if (want & FS_MAY_READ)
		bits |= 4;
	if (want & FS_MAY_WRITE)
		bits |= 2;
	if (want & FS_MAY_EXEC)
		bits |= 1;
	return (have & bits) == bits ? 0 : -EACCES;
}

int attr_data_permission(const struct inode_attr *attr, const struct fs_op *op, uint32_t want)
{
	int r;

	if (op->opened || (op->owner_override && op->cred->uid == attr->uid))
		return 0;
	r = attr_permission(attr, op->cred, want);
	/* the client pages in a program that may be executed but not read */
	if (r == -EACCES && want == FS_MAY_READ && op->owner_override)
		r = attr_permission(attr, op->cred, FS_MAY_EXEC);
	return r;
}

void attr_kill_suid(struct inode_attr *attr, const struct fs_cred *cred)
{
	if (attr->type != FS_REG || cred->uid == 0)
		return;
	attr->mode &= ~04000u;
	if (attr->mode & 0010)
		attr->mode &= ~02000u;
}

int attr_set(struct inode_attr *attr, const struct fs_op *op, const struct fs_setattr *set, int64_t now)
{
	const struct fs_cred *cred = op->cred;
	bool root = cred->uid == 0, owner = root || cred->uid == attr->uid;
	uint32_t gid = set->set & FS_SET_GID ? set->gid : attr->gid;

	if ((set->set & FS_SET_UID) && !root && !(owner && set->uid == attr->uid))
		return -EPERM;
	if ((set->set & FS_SET_GID) && !root && !(owner && (set->gid == attr->gid || cred_in_group(cred, set->gid))))
		return -EPERM;
	if ((set->set & FS_SET_MODE) && !owner)
		return -EPERM;
	if ((set->set & (FS_SET_ATIME | FS_SET_MTIME)) && !owner)
		return -EPERM;
	if ((set->set & (FS_SET_ATIME_NOW | FS_SET_MTIME_NOW)) && !owner &&
		attr_permission(attr, cred, FS_MAY_WRITE) < 0)
		return -EACCES;
	if (set->set & FS_SET_SIZE) {
		if (attr->type == FS_DIR)
			return -EISDIR;
		if (attr->type != FS_REG)
			return -EINVAL;
		if (set->size > FS_SIZE_MAX)
			return -EFBIG;
		if (attr_data_permission(attr, op, FS_MAY_WRITE) < 0)
			return -EACCES;
		attr_kill_suid(attr, cred);
		attr->mtime = now;
	}
	if (set->set & FS_SET_MODE) {
		attr->mode = set->mode & 07777;
		if (!root && !cred_in_group(cred, gid))
			attr->mode &= ~02000u;
	}
	if (set->set & (FS_SET_UID | FS_SET_GID)) {
		if (attr->type != FS_DIR) {
			attr->mode &= ~04000u;
			if (attr->mode & 0010)
				attr->mode &= ~02000u;
		}
		if (set->set & FS_SET_UID)
			attr->uid = set->uid;
		attr->gid = gid;
	}
	if (set->set & FS_SET_ATIME_NOW)
		attr->atime = now;
	else if (set->set & FS_SET_ATIME)
		attr->atime = time_pack(&set->atime);
	if (set->set & FS_SET_MTIME_NOW)
		attr->mtime = now;
	else if (set->set & FS_SET_MTIME)
		attr->mtime = time_pack(&set->mtime);
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Changes
 */

void change_begin(struct change *change, struct tx *tx)
{
	struct fs_files *files = tx_fs(tx)->files;

	change->fs = tx_fs(tx);
	change->now = time_now();
	change->n = 0;
	change->next_ino = files->next_ino;
	change->inodes = files->inode_count;
	change->counters = change->reply = false;
	change->applied = NULL;
}

struct inode_attr *change_inode(struct change *change, struct inode *inode)
{
	unsigned i;

	for (i = 0; i < change->n; i++)
		if (change->of[i].inode == inode)
			return &change->of[i].attr;
	assert(change->n < CHANGE_INODES);
	i = change->n++;
	change->of[i].inode = inode;
	change->of[i].ino = inode->ino;
	change->of[i].removed = false;
	change->of[i].attr = inode->attr;
	return &change->of[i].attr;
}

struct inode_attr *change_create(struct change *change, enum fs_type type, uint64_t *ino)
{
	struct inode_attr *attr;
	unsigned i = change->n;

	assert(change->n < CHANGE_INODES);
	change->n++;
	*ino = change->next_ino++;
	change->inodes++;
	change->counters = true;
	change->of[i].inode = NULL;
	change->of[i].ino = *ino;
	change->of[i].removed = false;
	attr = &change->of[i].attr;
	*attr = (struct inode_attr){
		.gen = (uint32_t)(hash_u64(*ino ^ (uint64_t)change->now) | 1),
		.nlink = 1,
		.type = (uint8_t)type,
		.change = fs_change_next(change->fs),
		.atime = change->now,
		.mtime = change->now,
		.ctime = change->now,
		.btime = change->now,
	};
	return attr;
}

void change_remove(struct change *change, struct inode *inode)
{
	change_inode(change, inode);
	for (unsigned i = 0; i < change->n; i++)
		if (change->of[i].inode == inode)
			change->of[i].removed = true;
	change->inodes--;
	change->counters = true;
}

void change_touch(struct change *change, struct inode_attr *attr, bool data)
{
	attr->ctime = change->now;
	if (data)
		attr->mtime = change->now;
	attr->change = fs_change_next(change->fs);
}

static void change_apply(void *arg)
{
	struct change *change = arg;
	struct fs_files *files = change->fs->files;

	if (change->counters) {
		files->next_ino = change->next_ino;
		files->inode_count = change->inodes;
	}
	if (change->reply)
		files->reply_seq++;
	for (unsigned i = 0; i < change->n; i++) {
		struct inode *inode = change->of[i].inode;

		if (!inode) {
			/* without memory it is read when it is next asked for */
			inode_insert(files, change->of[i].ino, &change->of[i].attr);
		} else if (change->of[i].removed) {
			inode->attr = change->of[i].attr;
			inode_drop(files, inode);
		} else {
			inode->attr = change->of[i].attr;
			inode->attr_dirty = false;
			inode_settle(files, inode);
		}
	}
	if (change->applied)
		change->applied(change, change->applied_arg);
}

static int reply_put(struct change *change, struct tx *tx, const struct fs_reply *reply, struct fs_id id)
{
	uint64_t seq = change->fs->files->reply_seq;
	struct fs_key key = {.type = KEY_REPLY, .off = seq % FS_REPLIES};
	struct reply_disk disk = {
		.seq = le64_put(seq),
		.client = le64_put(reply->client),
		.xid = le32_put(reply->xid),
		.proc = le32_put(reply->proc),
		.checksum = le32_put(reply->checksum),
		.generation = le32_put(id.gen),
		.ino = le64_put(id.ino),
		.time_ns = le64_put(wall_ns()),
		.snap = le32_put(id.snap),
	};

	return tx_put(tx, &key, &disk, sizeof(disk));
}

int change_finish(struct change *change, struct tx *tx, const struct fs_op *op, struct fs_id reply_id)
{
	int r;

	for (unsigned i = 0; i < change->n; i++) {
		struct fs_key key = {.ino = change->of[i].ino, .type = KEY_INODE};
		struct inode_disk disk;

		if (change->of[i].removed) {
			r = tx_delete(tx, &key);
			if (r == 0 && (change->of[i].attr.flags & INODE_FLAG_XATTR))
				r = xattrs_delete(tx, key.ino);
		} else {
			inode_encode(&change->of[i].attr, &disk);
			r = tx_put(tx, &key, &disk, sizeof(disk));
		}
		if (r < 0)
			return r;
	}
	if (change->counters) {
		struct fs_key key = {.type = KEY_COUNTERS};
		struct counters_disk disk = {
			.next_ino = le64_put(change->next_ino),
			.inodes = le64_put(change->inodes),
		};

		r = tx_put(tx, &key, &disk, sizeof(disk));
		if (r < 0)
			return r;
	}
	if (op && op->reply) {
		r = reply_put(change, tx, op->reply, reply_id);
		if (r < 0)
			return r;
		change->reply = true;
	}
	return tx_on_apply(tx, change_apply, change);
}
