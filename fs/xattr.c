/*
 * Extended attributes: named values of an inode, for its users (user.), for security modules
 * (security.) and for the administrator (trusted.).
 *
 * KEY_XATTR, off: hash of the whole name in the high 48 bits, then a number that tells names of equal
 * hash apart (8 bits), then the number of the piece (8 bits). Piece 0 begins with the name; the value
 * goes on over as many pieces as it needs. Whoever sets a value writes all its pieces in one transaction, so a
 * value is seen whole or not at all. An inode has at most XATTR_KEYS_MAX pieces, so that they all
 * can go in the transaction that deletes it; INODE_FLAG_XATTR tells that it ever had one.
 *
 * Permissions are those of Linux: user. goes with the file's own permissions, on files and directories
 * only; trusted. is for root, and others do not even see it; security. may be read by all and set by root.
 */
#include "fs/inode_internal.h"

#define XATTR_KEYS_MAX 512u
#define XATTR_COLLISIONS 256u
#define XATTR_LIST_BATCH 32u

static const struct {
	const char *prefix;
	bool root_reads, root_writes, data;
} spaces[] = {{"user.", false, false, true}, {"security.", false, true, false}, {"trusted.", true, true, false}};

uint64_t xattr_hash(struct fs *fs, const char *name, size_t len)
{
	return name_hash(fs, name, len) << 16;
}

int xattr_decode(const void *val, size_t len, size_t *size, const char **name, size_t *name_len)
{
	struct xattr_disk d;

	if (len < sizeof(d))
		return -EIO;
	memcpy(&d, val, sizeof(d));
	*size = le32_get(d.size);
	*name_len = le16_get(d.name_len);
	*name = (const char *)val + sizeof(d);
	if (*size > FS_XATTR_MAX || *name_len == 0 || *name_len > FS_NAME_MAX || len < sizeof(d) + *name_len ||
		memchr(*name, 0, *name_len) || len != xattr_piece_bytes(*name_len, *size, 0))
		return -EIO;
	return 0;
}

size_t xattr_piece_bytes(size_t name_len, size_t size, unsigned piece)
{
	size_t head = sizeof(struct xattr_disk) + name_len, all = head + size, begin = (size_t)piece * TREE_VALUE_MAX;

	return all <= begin ? 0 : all - begin < TREE_VALUE_MAX ? all - begin : TREE_VALUE_MAX;
}

/* ------------------------------------------------------------------------------------------------
 * Finding
 */

struct xattr_call {
	const struct fs_op *op;
	struct fs_id id;
	const char *name;
	size_t name_len;
	void *to;
	const void *from;
	size_t room, size;
	enum fs_xattr_mode mode;
	bool remove;
	struct fs_wcc *wcc;
	uint8_t *record; /* name and value as they lie in the pieces */
	struct change change;
};

/* 0: FOUND is the key of its piece 0. -ENOENT: FOUND is where it may go. */
static int xattr_find(struct tx *tx, const struct xattr_call *c, struct fs_key *found, size_t *size)
{
	uint64_t first = xattr_hash(tx_fs(tx), c->name, c->name_len);

	*found = (struct fs_key){.ino = c->id.ino, .type = KEY_XATTR, .off = first};
	for (unsigned n = 0; n < XATTR_COLLISIONS; n++) {
		struct fs_key key = {.ino = c->id.ino, .type = KEY_XATTR, .off = first | (uint64_t)n << 8};
		size_t len, name_len;
		const char *name;
		const void *val;
		int r = tx_get(tx, &key, &val, &len);

		if (r == -ENOENT) {
			/* the last one takes the place of one that is removed: so the first gap is the end */
			*found = key;
			return r;
		}
		if (r < 0)
			return r;
		r = xattr_decode(val, len, size, &name, &name_len);
		if (r < 0) {
			log_error("fs", "extended attribute makes no sense ino=%llu", (unsigned long long)c->id.ino);
			return r;
		}
		if (name_len == c->name_len && memcmp(name, c->name, name_len) == 0) {
			*found = key;
			return 0;
		}
	}
	return -ENOSPC;
}

static int xattr_read(struct tx *tx, struct fs_key key, size_t name_len, size_t size, uint8_t *to)
{
	size_t skip = sizeof(struct xattr_disk) + name_len, done = 0;

	for (; done < size || skip > 0; key.off++) {
		const void *val;
		size_t len;
		int r = tx_get(tx, &key, &val, &len);

		if (r == -EAGAIN)
			return r;
		if (r < 0 || len <= skip - (done == size) || len - skip > size - done) {
			log_error("fs", "extended attribute is not whole ino=%llu", (unsigned long long)key.ino);
			return -EIO;
		}
		if (len > skip) /* else the value is empty, and TO may be NULL */
			memcpy(to + done, (const uint8_t *)val + skip, len - skip);
		done += len - skip;
		skip = 0;
	}
	return 0;
}

static int xattr_delete(struct tx *tx, struct fs_key key, size_t name_len, size_t size)
{
	int r = 0;

	for (unsigned piece = 0; r == 0 && xattr_piece_bytes(name_len, size, piece) > 0; piece++, key.off++)
		r = tx_delete(tx, &key);
	return r;
}

int xattrs_delete(struct tx *tx, uint64_t ino)
{
	struct fs_key key = {.ino = ino, .type = KEY_XATTR};

	for (;;) {
		const void *val;
		size_t len;
		int r = tx_next(tx, &key, &val, &len);

		if (r == -ENOENT || (r == 0 && (key.ino != ino || key.type != KEY_XATTR)))
			return 0;
		if (r == 0)
			r = tx_delete(tx, &key);
		if (r < 0)
			return r;
		key.off++;
		key.snap = 0;
	}
}

static int xattrs_count(struct tx *tx, uint64_t ino, unsigned *count)
{
	struct fs_key key = {.ino = ino, .type = KEY_XATTR};

	for (*count = 0;; ++*count) {
		const void *val;
		size_t len;
		int r = tx_next(tx, &key, &val, &len);

		if (r == -ENOENT || (r == 0 && (key.ino != ino || key.type != KEY_XATTR)))
			return 0;
		if (r < 0)
			return r;
		key.off++;
		key.snap = 0;
	}
}

/* ------------------------------------------------------------------------------------------------
 * Permissions
 */

static int xattr_permission(const struct inode *inode, const struct fs_op *op, const char *name, size_t len, bool write)
{
	for (unsigned i = 0; i < sizeof(spaces) / sizeof(spaces[0]); i++) {
		size_t prefix = strlen(spaces[i].prefix);

		if (len < prefix || memcmp(name, spaces[i].prefix, prefix) != 0)
			continue;
		if (len == prefix)
			return -EINVAL;
		if (!write && spaces[i].root_reads && op->cred->uid != 0)
			return -ENOENT;
		if (write && spaces[i].root_writes && op->cred->uid != 0)
			return -EPERM;
		if (!spaces[i].data)
			return 0;
		if (inode->attr.type != FS_REG && inode->attr.type != FS_DIR)
			return write ? -EPERM : -ENOENT;
		/* in a directory where everybody may write, not everybody may put these on it */
		if (write && inode->attr.type == FS_DIR && (inode->attr.mode & 01000) && op->cred->uid != 0 &&
			op->cred->uid != inode->attr.uid)
			return -EPERM;
		return inode->attr.type == FS_REG
			       ? attr_data_permission(&inode->attr, op, write ? FS_MAY_WRITE : FS_MAY_READ)
			       : attr_permission(&inode->attr, op->cred, write ? FS_MAY_WRITE : FS_MAY_READ);
	}
	return -EOPNOTSUPP;
}

static int xattr_name_check(const char *name, size_t len)
{
	if (len == 0 || memchr(name, 0, len))
		return -EINVAL;
	return len > FS_NAME_MAX ? -ENAMETOOLONG : 0;
}

/* ------------------------------------------------------------------------------------------------
 * The calls
 */

static int get_pass(struct tx *tx, void *arg)
{
	struct xattr_call *c = arg;
	struct inode *inode;
	struct fs_key key;
	int r = inode_get(tx, c->id, &inode);

	if (r == 0)
		r = xattr_permission(inode, c->op, c->name, c->name_len, false);
	if (r == 0)
		r = xattr_find(tx, c, &key, &c->size);
	if (r < 0)
		return r == -ENOSPC ? -ENOENT : r;
	return c->size <= c->room ? xattr_read(tx, key, c->name_len, c->size, c->to) : 0;
}

int fs_getxattr(struct fs *fs, const struct fs_op *op, struct fs_id id, const char *name, size_t name_len, void *value,
	size_t room, size_t *size)
{
	struct xattr_call c = {.op = op, .id = id, .name = name, .name_len = name_len, .to = value, .room = room};
	int r = xattr_name_check(name, name_len);

	if (r == 0)
		r = files_view(fs, get_pass, &c);
	*size = c.size;
	return r;
}

/* The names of equal hash stay without a gap: the last one takes the place of the one that goes. */
static int remove_one(struct tx *tx, const struct xattr_call *c, struct fs_key key, size_t size)
{
	struct fs_key last = key;
	size_t last_size = size, last_name = c->name_len, len;
	unsigned pieces = 0;
	int r;

	for (;;) {
		struct fs_key next = {.ino = key.ino, .type = KEY_XATTR, .off = last.off + 256};
		const char *name;
		const void *val;

		if ((next.off ^ key.off) >> 16)
			break;
		r = tx_get(tx, &next, &val, &len);
		if (r == -ENOENT)
			break;
		if (r == 0)
			r = xattr_decode(val, len, &last_size, &name, &last_name);
		if (r < 0)
			return r;
		last = next;
	}
	r = xattr_delete(tx, key, c->name_len, size);
	for (; r == 0 && last.off != key.off && xattr_piece_bytes(last_name, last_size, pieces) > 0; pieces++) {
		struct fs_key from = last, to = key;
		const void *val;

		from.off += pieces;
		to.off += pieces;
		r = tx_get(tx, &from, &val, &len);
		if (r == 0)
			r = tx_put(tx, &to, val, len);
		if (r == 0)
			r = tx_delete(tx, &from);
		if (r == -ENOENT)
			r = -EIO;
	}
	return r;
}

static int put_one(struct tx *tx, struct xattr_call *c, struct fs_key key, size_t old)
{
	struct xattr_disk head = {.size = le32_put((uint32_t)c->size), .name_len = le16_put((uint16_t)c->name_len)};
	size_t len;
	int r = old ? xattr_delete(tx, key, c->name_len, old) : 0;

	memcpy(c->record, &head, sizeof(head));
	memcpy(c->record + sizeof(head), c->name, c->name_len);
	for (unsigned piece = 0; r == 0 && (len = xattr_piece_bytes(c->name_len, c->size, piece)) > 0;
		piece++, key.off++)
		r = tx_put(tx, &key, c->record + (size_t)piece * TREE_VALUE_MAX, len);
	return r;
}

static int set_pass(struct tx *tx, void *arg)
{
	struct xattr_call *c = arg;
	struct inode_attr *attr;
	struct inode *inode;
	struct fs_key key;
	unsigned keys = 0;
	size_t old = 0;
	int r;

	change_begin(&c->change, tx);
	r = inode_get(tx, c->id, &inode);
	if (r < 0)
		return r;
	wcc_before(c->wcc, &inode->attr);
	wcc_after(c->wcc, &inode->attr, inode->ino);
	r = xattr_permission(inode, c->op, c->name, c->name_len, true);
	if (r == 0)
		r = xattr_find(tx, c, &key, &old);
	if (r < 0 && r != -ENOENT)
		return r;
	if (r == 0 && !c->remove && c->mode == FS_XATTR_CREATE)
		return -EEXIST;
	if (r == -ENOENT && (c->remove || c->mode == FS_XATTR_REPLACE))
		return r;
	if (c->remove) {
		r = remove_one(tx, c, key, old);
	} else {
		int count = xattrs_count(tx, inode->ino, &keys);

		if (count < 0)
			return count;
		if (keys + (sizeof(struct xattr_disk) + c->name_len + c->size) / TREE_VALUE_MAX + 1 > XATTR_KEYS_MAX)
			return -ENOSPC;
		r = put_one(tx, c, key, r == 0 ? old : 0);
	}
	if (r < 0)
		return r;
	attr = change_inode(&c->change, inode);
	attr->flags |= INODE_FLAG_XATTR;
	change_touch(&c->change, attr, false);
	wcc_after(c->wcc, attr, inode->ino);
	return change_finish(&c->change, tx, c->op, c->id);
}

int fs_setxattr(struct fs *fs, const struct fs_op *op, struct fs_id id, const char *name, size_t name_len,
	const void *value, size_t size, enum fs_xattr_mode mode, struct fs_wcc *wcc)
{
	struct xattr_call c = {
		.op = op, .id = id, .name = name, .name_len = name_len, .size = size, .mode = mode, .wcc = wcc};
	int r = xattr_name_check(name, name_len);

	if (r < 0)
		return r;
	if (size > FS_XATTR_MAX)
		return -EFBIG;
	c.record = malloc(sizeof(struct xattr_disk) + name_len + size);
	if (!c.record)
		return -EAGAIN;
	if (size)
		memcpy(c.record + sizeof(struct xattr_disk) + name_len, value, size);
	r = files_transact(fs, set_pass, &c);
	free(c.record);
	return r;
}

int fs_removexattr(
	struct fs *fs, const struct fs_op *op, struct fs_id id, const char *name, size_t name_len, struct fs_wcc *wcc)
{
	struct xattr_call c = {.op = op, .id = id, .name = name, .name_len = name_len, .remove = true, .wcc = wcc};
	int r = xattr_name_check(name, name_len);

	return r < 0 ? r : files_transact(fs, set_pass, &c);
}

struct list_call {
	const struct fs_op *op;
	struct fs_id id;
	uint64_t cookie;
	unsigned n;
	bool end;
	struct {
		uint64_t cookie;
		uint8_t len;
		char name[FS_NAME_MAX];
	} of[XATTR_LIST_BATCH];
};

static int list_pass(struct tx *tx, void *arg)
{
	struct list_call *c = arg;
	struct fs_key key = {.ino = c->id.ino, .type = KEY_XATTR, .off = c->cookie};
	struct inode *inode;
	int r = inode_get(tx, c->id, &inode);

	if (r < 0)
		return r;
	c->n = 0;
	c->end = false;
	while (c->n < XATTR_LIST_BATCH) {
		size_t len, size, name_len;
		const char *name;
		const void *val;

		r = tx_next(tx, &key, &val, &len);
		if (r == -ENOENT || (r == 0 && (key.ino != c->id.ino || key.type != KEY_XATTR))) {
			c->end = true;
			return 0;
		}
		if (r < 0)
			return r;
		if (key.off % 256 == 0) {
			r = xattr_decode(val, len, &size, &name, &name_len);
			if (r < 0)
				return r;
			if (xattr_permission(inode, c->op, name, name_len, false) != -ENOENT) {
				c->of[c->n].cookie = key.off + 256;
				c->of[c->n].len = (uint8_t)name_len;
				memcpy(c->of[c->n++].name, name, name_len);
			}
		}
		key.off = (key.off | 255) + 1;
		key.snap = 0;
	}
	return 0;
}

int fs_listxattr(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t *cookie, fs_listxattr_fn *fn,
	void *arg, bool *eof)
{
	struct list_call *c = malloc(sizeof(*c));
	bool room = true;
	int r = 0;

	*eof = false;
	if (!c)
		return -EAGAIN;
	c->op = op;
	c->id = id;
	c->cookie = *cookie;
	while (room && !*eof) {
		r = files_view(fs, list_pass, c);
		if (r < 0)
			break;
		for (unsigned i = 0; i < c->n && room; i++) {
			room = fn(arg, c->of[i].name, c->of[i].len);
			if (room)
				c->cookie = c->of[i].cookie;
		}
		*eof = room && c->end;
	}
	*cookie = c->cookie;
	free(c);
	return r;
}
