/*
 * Repair of files: values, names, inodes (repair.c tells where that belongs).
 *
 *   values   each key by itself: what does not decode goes. Where it was an extent the blocks are marked as lost
 *   pairs    a name without its entry gets one, and the other way round; where they differ the entry counts
 *   gather   what entries, extents and the like say of each inode; one that has values but no inode is made anew,
 *            as what its names say it is
 *   entries  of what is not there go; they take generation and type from the inode
 *   inodes   links, sizes, parents, counts; what is in no directory goes to lost+found, or if it had no links, is
 *            left to be deleted as an orphan
 *
 * All but the first step is done for what the live file system sees, and then for each snapshot that is kept
 * (repair_view.c).
 */
#include "fs/check_summary.h"
#include "fs/repair_internal.h"

/* ------------------------------------------------------------------------------------------------
 * The table
 */

/* NULL: none, or no memory. */
static struct repair_inode *repair_inode(struct repair *r, uint64_t ino, bool make)
{
	uint64_t hash = hash_u64(ino);
	struct repair_inode *ri;

	htable_foreach_hash (node, &r->inodes, hash) {
		ri = container_of(node, struct repair_inode, node);
		if (ri->ino == ino)
			return ri;
	}
	ri = make ? calloc(1, sizeof(*ri)) : NULL;
	if (!ri)
		return NULL;
	ri->ino = ino;
	htable_insert(&r->inodes, &ri->node, hash);
	return ri;
}

void repair_inodes_free(struct repair *r)
{
	struct htable_cursor cursor = {0};
	struct htable_node *node;

	while ((node = htable_next(&r->inodes, &cursor))) {
		htable_remove(&r->inodes, node);
		free(container_of(node, struct repair_inode, node));
	}
}

/* Of a file, for the report. */
static void repair_path(struct repair *r, uint64_t ino, char *path, size_t room)
{
	char text[300] = "", longer[600];
	unsigned depth = 0;

	if (ino == FS_SHARED_INO) {
		snprintf(path, room, "shared blocks");
		return;
	}
	for (uint64_t at = ino; at != FS_ROOT_INO && depth < 64; depth++) {
		const struct repair_inode *ri = repair_inode(r, at, false);
		struct fs_key key = {.type = KEY_ENTRY};
		uint8_t val[TREE_VALUE_MAX];
		struct dirent ent;
		const char *name;
		size_t len;
		int n;

		key.ino = ri ? ri->named_in : 0;
		key.off = ri ? ri->named_seq : 0;
		n = key.ino ? repair_view_get(r, &key, val, sizeof(val)) : -ENOENT;
		if (n < 0 || entry_decode(val, (size_t)n, &ent, &name, &len) < 0)
			break;
		snprintf(longer, sizeof(longer), "/%.*s%s", (int)len, name, text);
		longer[sizeof(text) - 1] = 0;
		memcpy(text, longer, sizeof(text));
		at = ri->named_in;
	}
	if (text[0])
		snprintf(path, room, "%.200s (inode %llu)", text, ULL(ino));
	else
		snprintf(path, room, "inode %llu", ULL(ino));
}

/* ------------------------------------------------------------------------------------------------
 * Values
 */

static bool global_good(struct repair *r, const struct fs_key *key, size_t len)
{
	struct reply_disk reply;
	struct fs_state state;
	uint64_t created, end;
	const char *name;
	uint32_t refs;
	uint8_t kind;
	size_t n;

	switch (key->type) {
	case KEY_STRIPES:
	case KEY_COUNTERS:
		return true; /* made anew */
	case KEY_SUMMARY:
		return summary_good(r->fs, key, r->value, len);
	case KEY_SNAPSHOT:
		return key->off == 0 ? len == sizeof(struct stamp_disk)
				     : snapshot_decode(r->value, len, &kind, &created, &name, &n) == 0 &&
					       key->off < UINT32_MAX;
	case KEY_ORPHAN:
		return len == sizeof(struct orphan_disk) && r->value[0] <= ORPHAN_DELETE;
	case KEY_REPLY:
		memcpy(&reply, r->value, sizeof(reply));
		return len == sizeof(reply) && le64_get(reply.seq) % FS_REPLIES == key->off;
	case KEY_STATE:
		return state_decode(r->value, len, &state) == 0;
	case KEY_SHARE:
		return share_decode(key, r->value, len, &end, &refs) == 0;
	default:
		return false;
	}
}

/* The number of the newest snapshot must not be less than what records have. */
static int stamp_repair(struct repair *r)
{
	struct fs_key key = {.type = KEY_SNAPSHOT};
	struct fs_files *files = r->fs->files;
	struct stamp_disk d;

	if (r->stamp_said >= files->stamp)
		return 0;
	repair_say(
		r, false, "the number of snapshots was %u, and there is a record of %u", r->stamp_said, files->stamp);
	d.stamp = le32_put(files->stamp);
	return repair_raw(r, &key, &d, sizeof(d));
}

static bool inode_value_good(struct repair *r, const struct fs_key *key, size_t len)
{
	struct inode_attr attr;
	struct dirent ent;
	const char *name;
	size_t n, size;

	if (key->ino == FS_SHARED_INO)
		return false; /* extents are all it has */
	if (len == 0)
		return key->snap > 0;
	switch (key->type) {
	case KEY_INODE:
		return key->off == 0 && inode_decode(r->value, len, &attr) == 0;
	case KEY_SYMLINK:
		return key->off % TREE_VALUE_MAX == 0 && key->off + len <= FS_SYMLINK_MAX;
	case KEY_NAME:
		return name_decode(r->value, len, &ent, &name, &n) == 0 && key->off >> 8 == name_hash(r->fs, name, n) &&
		       ent.seq >= NAME_SEQ_FIRST && ent.seq < NAME_SEQ_MAX;
	case KEY_ENTRY:
		return entry_decode(r->value, len, &ent, &name, &n) == 0 && key->off >= NAME_SEQ_FIRST &&
		       key->off < NAME_SEQ_MAX;
	case KEY_XATTR:
		return key->off % 256 != 0 || (xattr_decode(r->value, len, &size, &name, &n) == 0 &&
						      !((key->off ^ xattr_hash(r->fs, name, n)) >> 16));
	default:
		return false;
	}
}

/* An extent goes; what it may have had, up to the next one and to the end of the file, is lost. */
static int extent_lose(struct repair *r, const struct fs_key *key)
{
	struct fs_key next = *key, inode = {.ino = key->ino, .type = KEY_INODE};
	struct inode_attr attr;
	uint64_t count = EXTENT_BLOCKS_MAX;
	struct extent e;
	int n, rc = repair_raw(r, key, NULL, 0);

	if (rc < 0 || key->ino == FS_SHARED_INO)
		return rc;
	next.snap = 0; /* another version of it says how much it was */
	n = tree_next(r->fs, &next, r->value, sizeof(r->value));
	if (n < 0 && n != -ENOENT)
		return n;
	if (n >= 0 && next.ino == key->ino && next.type == KEY_EXTENT) {
		if (next.off == key->off && repair_extent_good(r, &next, (size_t)n, &e))
			count = e.count;
		else if (next.off - key->off < count)
			count = next.off - key->off;
	}
	n = repair_view_get(r, &inode, r->value, sizeof(r->value));
	if (n >= 0 && inode_decode(r->value, (size_t)n, &attr) == 0) {
		uint64_t blocks = (attr.size + BLOCK_BYTES - 1) / BLOCK_BYTES;

		if (key->off >= blocks)
			return 0;
		if (count > blocks - key->off)
			count = blocks - key->off;
	}
	return repair_lose(r, &(struct repair_loss){key->ino, key->off, count, key->snap, 0});
}

static int value_check(struct repair *r, const struct fs_key *key, size_t len)
{
	struct extent e;
	bool good;

	if (key->ino == 0) {
		if (global_good(r, key, len))
			return 0;
		repair_say(r, true, "a record of type %u at %llx made no sense and is gone", key->type, ULL(key->off));
		return repair_raw(r, key, NULL, 0);
	}
	if (key->type != KEY_EXTENT) {
		if (inode_value_good(r, key, len))
			return 0;
		repair_say(r, true, "inode %llu: a record of type %u at %llx made no sense and is gone", ULL(key->ino),
			key->type, ULL(key->off));
		return repair_raw(r, key, NULL, 0);
	}
	if (r->cell_ino != key->ino)
		r->cell_first = r->cell_end = 0;
	r->cell_ino = key->ino;
	good = repair_extent_good(r, key, len, &e) &&
	       (e.first == r->cell_first && r->cell_end ? e.first + e.count == r->cell_end : e.first >= r->cell_end);
	if (good) {
		r->cell_first = e.first;
		r->cell_end = e.first + e.count;
		return 0;
	}
	repair_say(r, true, "inode %llu: the extent at block %llu made no sense and is gone", ULL(key->ino),
		ULL(key->off));
	if (!repair_extent_good(r, key, len, &e))
		return extent_lose(r, key);
	/* it overlaps the one before; its blocks were counted */
	if (!e.hole && !e.shared) {
		struct extent_edit edit = {.first = e.block, .count = e.count};
		int rc = repair_drop(r, &edit);

		if (rc < 0)
			return rc;
	}
	return repair_raw(r, key, NULL, 0);
}

int repair_values(struct repair *r)
{
	int rc = stamp_repair(r);

	r->cell_ino = 0;
	return rc < 0 ? rc : repair_walk(r, &(struct fs_key){0}, value_check);
}

/* ------------------------------------------------------------------------------------------------
 * Pairs
 */

static int name_put(
	struct repair *r, uint64_t dir, uint64_t slot, const struct dirent *ent, const char *name, size_t len)
{
	struct fs_key key = {.ino = dir, .type = KEY_NAME, .off = slot};
	struct {
		struct name_disk head;
		char name[FS_NAME_MAX];
	} d = {.head = {.ino = le64_put(ent->ino),
		       .seq = le64_put(ent->seq),
		       .generation = le32_put(ent->gen),
		       .type = ent->type,
		       .len = le16_put((uint16_t)len)}};

	memcpy(d.name, name, len);
	return repair_put(r, &key, &d, sizeof(d.head) + len);
}

static int entry_put(struct repair *r, uint64_t dir, const struct dirent *ent, const char *name, size_t len)
{
	struct fs_key key = {.ino = dir, .type = KEY_ENTRY, .off = ent->seq};
	struct {
		struct entry_disk head;
		char name[FS_NAME_MAX];
	} d = {.head = {.ino = le64_put(ent->ino),
		       .generation = le32_put(ent->gen),
		       .type = ent->type,
		       .len = le16_put((uint16_t)len)}};

	memcpy(d.name, name, len);
	return repair_put(r, &key, &d, sizeof(d.head) + len);
}

/* The first slot that has NAME in DIR, of all that its hash has: 1, with ENT; 0: *SLOT is free. */
static int name_find(struct repair *r, uint64_t dir, const char *name, size_t len, uint64_t *slot, struct dirent *ent)
{
	struct fs_key key = {.ino = dir, .type = KEY_NAME, .off = name_hash(r->fs, name, len) << 8};
	uint64_t free_slot = key.off, end = key.off + NAME_COLLISIONS;

	for (; key.off < end; key.off++, key.snap = 0) {
		uint8_t val[TREE_VALUE_MAX];
		const char *other;
		size_t other_len;
		int n = tree_next(r->fs, &key, val, sizeof(val));

		if (n == -ENOENT || (n >= 0 && (key.ino != dir || key.type != KEY_NAME || key.off >= end)))
			break;
		if (n >= 0)
			n = repair_view_get(r, &key, val, sizeof(val));
		if (n == -ENOENT) /* another view has one there */
			continue;
		if (n < 0)
			return n;
		if (name_decode(val, (size_t)n, ent, &other, &other_len) == 0 && other_len == len &&
			memcmp(other, name, len) == 0) {
			*slot = key.off;
			return 1;
		}
		if (key.off == free_slot)
			free_slot++;
	}
	*slot = free_slot;
	return free_slot == end ? -ENOSPC : 0;
}

static int pair_name(struct repair *r, const struct fs_key *key, size_t len)
{
	struct fs_key entry_key = {.ino = key->ino, .type = KEY_ENTRY};
	uint8_t val[TREE_VALUE_MAX];
	struct dirent ent, other;
	const char *name, *other_name;
	size_t n, other_len;
	uint64_t slot;
	int got;

	if (name_decode(r->value, len, &ent, &name, &n) < 0)
		return 0;
	got = name_find(r, key->ino, name, n, &slot, &other);
	if (got == 1 && slot != key->off) {
		repair_say(r, false, "directory %llu: the name \"%.*s\" was there twice, one is removed", ULL(key->ino),
			(int)n, name);
		return repair_put(r, key, NULL, 0);
	}
	if (got < 0)
		return got;
	entry_key.off = ent.seq;
	got = repair_view_get(r, &entry_key, val, sizeof(val));
	if (got == -ENOENT) {
		repair_say(r, false, "directory %llu: \"%.*s\" had no entry", ULL(key->ino), (int)n, name);
		return entry_put(r, key->ino, &ent, name, n);
	}
	if (got < 0 || entry_decode(val, (size_t)got, &other, &other_name, &other_len) < 0)
		return got < 0 ? got : 0;
	other.seq = ent.seq;
	if (other_len != n || memcmp(other_name, name, n) != 0) {
		repair_say(r, false, "directory %llu: the name \"%.*s\" led to another entry, removed", ULL(key->ino),
			(int)n, name);
		return repair_put(r, key, NULL, 0);
	}
	if (other.ino == ent.ino && other.gen == ent.gen && other.type == ent.type)
		return 0;
	repair_say(r, false, "directory %llu: name and entry of \"%.*s\" differed", ULL(key->ino), (int)n, name);
	return name_put(r, key->ino, key->off, &other, name, n);
}

static int pair_entry(struct repair *r, const struct fs_key *key, size_t len)
{
	struct dirent ent, other;
	uint64_t slot;
	const char *name;
	size_t n;
	int got;

	if (entry_decode(r->value, len, &ent, &name, &n) < 0)
		return 0;
	ent.seq = key->off;
	got = name_find(r, key->ino, name, n, &slot, &other);
	if (got < 0)
		return got;
	if (got == 1 && other.seq == ent.seq)
		return 0;
	if (got == 1) {
		repair_say(r, false, "directory %llu: two entries had the name \"%.*s\", one is removed", ULL(key->ino),
			(int)n, name);
		return repair_put(r, key, NULL, 0);
	}
	repair_say(r, false, "directory %llu: the entry \"%.*s\" had no name", ULL(key->ino), (int)n, name);
	return name_put(r, key->ino, slot, &ent, name, n);
}

static int pairs_check(struct repair *r, const struct fs_key *key, size_t len)
{
	if ((key->type != KEY_NAME && key->type != KEY_ENTRY) || key->ino == 0 || !repair_view_sees(r, key, len))
		return 0;
	return key->type == KEY_NAME ? pair_name(r, key, len) : pair_entry(r, key, len);
}

/* ------------------------------------------------------------------------------------------------
 * Gathering
 */

static int gather_inode(struct repair_inode *ri, struct repair *r, size_t len)
{
	struct inode_attr a;

	if (inode_decode(r->value, len, &a) < 0)
		return 0;
	ri->found = true;
	ri->gen = a.gen;
	ri->type = (uint8_t)a.type;
	ri->nlink = a.nlink;
	ri->size = a.size;
	ri->blocks = a.blocks;
	ri->flags = a.flags;
	ri->next_seq = a.next_seq;
	ri->parent = a.type == FS_DIR ? a.aux : 0;
	return 0;
}

static int gather_entry(struct repair *r, const struct fs_key *key, size_t len)
{
	struct repair_inode *dir = repair_inode(r, key->ino, true), *ri;
	struct dirent ent;
	const char *name;
	size_t n;

	if (!dir || entry_decode(r->value, len, &ent, &name, &n) < 0)
		return dir ? 0 : -ENOMEM;
	dir->entries++;
	dir->has_entries = true;
	if (key->off > dir->max_seq)
		dir->max_seq = key->off;
	ri = repair_inode(r, ent.ino, true);
	if (!ri)
		return -ENOMEM;
	if (ent.type == FS_DIR)
		dir->subdirs++;
	ri->links++;
	ri->entry_gen = ent.gen;
	ri->entry_type = ent.type;
	ri->named_in = key->ino;
	ri->named_seq = key->off;
	return 0;
}

static int gather(struct repair *r, const struct fs_key *key, size_t len)
{
	struct repair_inode *ri;
	struct extent e;

	if (key->ino == 0 && key->type == KEY_ORPHAN && !r->view) {
		ri = repair_inode(r, key->off, true);
		if (ri)
			ri->orphan = true;
		return ri ? 0 : -ENOMEM;
	}
	if (key->ino == 0 || key->ino == FS_SHARED_INO || !repair_view_sees(r, key, len))
		return 0;
	if (key->type == KEY_ENTRY)
		return gather_entry(r, key, len);
	if (key->type == KEY_NAME)
		return 0;
	ri = repair_inode(r, key->ino, true);
	if (!ri)
		return -ENOMEM;
	if (key->type == KEY_INODE)
		return gather_inode(ri, r, len);
	if (key->type == KEY_SYMLINK)
		ri->symlink_bytes += len;
	if (key->type == KEY_XATTR)
		ri->has_xattrs = true;
	if (key->type == KEY_EXTENT && repair_extent_good(r, key, len, &e) && !e.hole) {
		ri->has_extents = true;
		ri->data_blocks += e.count;
		ri->extent_end = e.first + e.count;
	}
	return 0;
}

static void gather_again(struct repair *r)
{
	struct htable_cursor cursor = {0};
	struct htable_node *node;

	while ((node = htable_next(&r->inodes, &cursor))) {
		struct repair_inode *ri = container_of(node, struct repair_inode, node);
		struct repair_inode fresh = {.ino = ri->ino, .node = ri->node};

		*ri = fresh;
	}
}

/* ------------------------------------------------------------------------------------------------
 * Inodes that are gone, and entries of these
 */

static int inode_read(struct repair *r, uint64_t ino, struct inode_attr *attr)
{
	struct fs_key key = {.ino = ino, .type = KEY_INODE};
	int n = repair_view_get(r, &key, r->value, sizeof(r->value));

	return n < 0 ? n : inode_decode(r->value, (size_t)n, attr);
}

static int inode_write(struct repair *r, uint64_t ino, const struct inode_attr *attr)
{
	struct fs_key key = {.ino = ino, .type = KEY_INODE};
	struct inode_attr a = *attr;
	struct inode_disk d;

	a.disk_size = a.size;
	inode_encode(&a, &d);
	return repair_put(r, &key, &d, sizeof(d));
}

/* An inode of its type, as far as the values tell what that has. */
static void inode_fit(const struct repair_inode *ri, struct inode_attr *a)
{
	a->size = a->type == FS_REG ? ri->extent_end * BLOCK_BYTES : ri->symlink_bytes;
	a->aux = a->type == FS_DIR ? FS_ROOT_INO : 0;
	a->next_seq = NAME_SEQ_FIRST;
	a->flags &= ~(uint32_t)INODE_FLAG_VERIFIER; /* it was in aux */
}

/* An inode of which only values are left, or the root. */
static int inode_make(struct repair *r, struct repair_inode *ri)
{
	struct inode_attr a = {.gen = ri->entry_gen ? ri->entry_gen : (uint32_t)(hash_u64(ri->ino) | 1),
		.nlink = 1,
		.type = ri->entry_type,
		.atime = time_now(),
		.change = fs_change_next(r->fs)};

	a.mtime = a.ctime = a.btime = a.atime;
	if (ri->has_entries || ri->ino == FS_ROOT_INO)
		a.type = FS_DIR;
	else if (ri->has_extents)
		a.type = FS_REG;
	else if (ri->symlink_bytes)
		a.type = FS_LNK;
	else if (a.type != FS_REG && a.type != FS_DIR)
		a.type = FS_REG;
	a.mode = a.type == FS_DIR ? 0700 : a.type == FS_LNK ? 0777 : 0600;
	inode_fit(ri, &a);
	repair_say(r, true, "inode %llu: attributes are lost, made anew for %s", ULL(ri->ino),
		a.type == FS_DIR   ? "a directory"
		: a.type == FS_REG ? "a file"
				   : "a symbolic link");
	return inode_write(r, ri->ino, &a);
}

/* Directories have no data, in no version. */
static int data_drop(struct repair *r, uint64_t ino)
{
	struct fs_key key = {.ino = ino, .type = KEY_EXTENT};

	for (;; key.snap++) {
		int n = tree_next(r->fs, &key, r->value, sizeof(r->value)), rc = 0;
		struct extent_edit blocks = {0};
		struct extent e;

		if (n == -ENOENT || (n >= 0 && (key.ino != ino || key.type != KEY_EXTENT)))
			return 0;
		if (n < 0)
			return n;
		if (repair_extent_good(r, &key, (size_t)n, &e) && !e.hole && !e.shared) {
			blocks.first = e.block;
			blocks.count = e.count;
			rc = repair_drop(r, &blocks);
		}
		if (rc == 0)
			rc = repair_raw(r, &key, NULL, 0);
		if (rc < 0)
			return rc;
	}
}

/* An inode is of the type that its values are of. */
static int inode_retype(struct repair *r, struct repair_inode *ri)
{
	uint8_t type = ri->has_entries ? FS_DIR : ri->has_extents ? FS_REG : ri->symlink_bytes ? FS_LNK : ri->type;
	struct inode_attr a;
	int rc = 0;

	if (type == FS_DIR && ri->has_extents) {
		repair_say(r, true, "directory %llu: had data, which is gone", ULL(ri->ino));
		rc = data_drop(r, ri->ino);
	}
	if (rc == 0 && type != ri->type) {
		repair_say(r, false, "inode %llu: was said to be of type %u, but has what one of type %u has",
			ULL(ri->ino), ri->type, type);
		rc = inode_read(r, ri->ino, &a);
		if (rc < 0)
			return rc;
		a.type = type;
		inode_fit(ri, &a);
		rc = inode_write(r, ri->ino, &a);
	}
	return rc;
}

static int inodes_make(struct repair *r)
{
	struct repair_inode *root = repair_inode(r, FS_ROOT_INO, true);
	struct htable_cursor cursor = {0};
	struct htable_node *node;
	int rc = root ? 0 : -ENOMEM;

	while (rc == 0 && (node = htable_next(&r->inodes, &cursor))) {
		struct repair_inode *ri = container_of(node, struct repair_inode, node);

		if (ri->found)
			rc = inode_retype(r, ri);
		else if (ri->has_entries || ri->has_extents || ri->symlink_bytes || ri->ino == FS_ROOT_INO)
			rc = inode_make(r, ri);
		else if (ri->has_xattrs)
			rc = repair_view_xattrs_drop(r, ri->ino);
	}
	return rc;
}

static int entry_remove(struct repair *r, uint64_t dir, uint64_t seq)
{
	struct fs_key key = {.ino = dir, .type = KEY_ENTRY, .off = seq};
	uint8_t val[TREE_VALUE_MAX];
	struct dirent ent, other;
	const char *name;
	uint64_t slot;
	size_t n;
	int got = repair_view_get(r, &key, val, sizeof(val));

	if (got < 0 || entry_decode(val, (size_t)got, &ent, &name, &n) < 0)
		return got < 0 && got != -ENOENT ? got : 0;
	got = name_find(r, dir, name, n, &slot, &other);
	if (got == 1 && other.seq == seq)
		got = repair_put(r, &(struct fs_key){.ino = dir, .type = KEY_NAME, .off = slot}, NULL, 0);
	return got < 0 ? got : repair_put(r, &key, NULL, 0);
}

static int entry_check(struct repair *r, const struct fs_key *key, size_t len)
{
	const struct repair_inode *ri, *dir;
	struct dirent ent, other;
	char text[FS_NAME_MAX + 1];
	const char *name;
	uint64_t slot;
	size_t n;
	int rc;

	if (key->ino == 0 || key->type != KEY_ENTRY || !repair_view_sees(r, key, len) ||
		entry_decode(r->value, len, &ent, &name, &n) < 0)
		return 0;
	ri = repair_inode(r, ent.ino, false);
	dir = repair_inode(r, key->ino, false);
	ent.seq = key->off;
	memcpy(text, name, n);
	if (!ri || !ri->found || !dir || !dir->found || dir->type != FS_DIR) {
		repair_say(r, true, "directory %llu: \"%.*s\" was inode %llu, which is lost", ULL(key->ino), (int)n,
			text, ULL(ent.ino));
		return entry_remove(r, key->ino, key->off);
	}
	if (ri->type == FS_DIR && (ri->ino == FS_ROOT_INO || ri->named_in != key->ino || ri->named_seq != key->off)) {
		repair_say(r, false, "directory %llu: had another name \"%.*s\" in directory %llu, removed",
			ULL(ent.ino), (int)n, text, ULL(key->ino));
		return entry_remove(r, key->ino, key->off);
	}
	if (ent.gen == ri->gen && ent.type == ri->type)
		return 0;
	repair_say(r, false, "directory %llu: \"%.*s\" said another generation or type than inode %llu", ULL(key->ino),
		(int)n, text, ULL(ent.ino));
	ent.gen = ri->gen;
	ent.type = ri->type;
	rc = name_find(r, key->ino, text, n, &slot, &other);
	if (rc >= 0)
		rc = name_put(r, key->ino, slot, &ent, text, n);
	return rc < 0 ? rc : entry_put(r, key->ino, &ent, text, n);
}

static int entries_check(struct repair *r)
{
	return repair_walk(r, &(struct fs_key){.ino = 1}, entry_check);
}

/* ------------------------------------------------------------------------------------------------
 * lost+found
 */

static int name_add(struct repair *r, struct repair_inode *dir, const struct repair_inode *ri, const char *name)
{
	struct dirent ent = {.ino = ri->ino, .gen = ri->gen, .type = ri->type}, other;
	size_t len = strlen(name);
	uint64_t slot;
	int rc = name_find(r, dir->ino, name, len, &slot, &other);

	if (rc != 0)
		return rc < 0 ? rc : 0;
	ent.seq = dir->max_seq < NAME_SEQ_FIRST ? NAME_SEQ_FIRST : dir->max_seq + 1;
	if (ent.seq < dir->next_seq)
		ent.seq = dir->next_seq;
	dir->max_seq = ent.seq;
	dir->next_seq = ent.seq + 1;
	rc = name_put(r, dir->ino, slot, &ent, name, len);
	return rc < 0 ? rc : entry_put(r, dir->ino, &ent, name, len);
}

static int lost_found(struct repair *r, struct repair_inode **out)
{
	static const char name[] = "lost+found";
	struct repair_inode *root = repair_inode(r, FS_ROOT_INO, false), *ri = NULL;
	struct dirent ent;
	uint64_t slot;
	int rc = name_find(r, FS_ROOT_INO, name, sizeof(name) - 1, &slot, &ent);

	if (rc < 0)
		return rc;
	if (rc == 1) {
		*out = repair_inode(r, ent.ino, false);
		return *out && (*out)->type == FS_DIR ? 0 : -ENOTDIR;
	}
	ri = repair_inode(r, ++r->last_ino, true);
	if (!ri)
		return -ENOMEM;
	ri->has_entries = true;
	ri->entry_type = FS_DIR;
	rc = inode_make(r, ri);
	ri->gen = (uint32_t)(hash_u64(ri->ino) | 1);
	ri->type = FS_DIR;
	ri->found = true;
	ri->links = ri->nlink = 1;
	ri->named_in = FS_ROOT_INO;
	*out = ri;
	return rc < 0 ? rc : name_add(r, root, ri, name);
}

static bool reaches_root(struct repair *r, struct repair_inode *ri)
{
	for (size_t left = r->inodes.count; ri && ri->found && left > 0; left--) {
		if (ri->ino == FS_ROOT_INO)
			return true;
		ri = ri->named_in ? repair_inode(r, ri->named_in, false) : NULL;
	}
	return false;
}

/* What no name leads to. */
static int homeless(struct repair *r, struct repair_inode *ri, struct repair_inode **home)
{
	struct fs_key orphan_key = {.type = KEY_ORPHAN, .off = ri->ino};
	struct orphan_disk orphan = {.state = ORPHAN_DELETE};
	char name[32];
	int rc = 0;

	if (ri->links == 0 && ri->nlink == 0 && ri->type != FS_DIR) {
		if (ri->orphan || r->view)
			return 0;
		repair_say(r, false, "inode %llu: has no links, to be deleted", ULL(ri->ino));
		return repair_raw(r, &orphan_key, &orphan, sizeof(orphan));
	}
	if (ri->links > 0) /* directories that lead in a circle */
		rc = entry_remove(r, ri->named_in, ri->named_seq);
	if (rc == 0 && !*home)
		rc = lost_found(r, home);
	if (rc < 0)
		return rc;
	snprintf(name, sizeof(name), "#%llu", ULL(ri->ino));
	repair_say(r, false, "inode %llu: was in no directory, now lost+found/%s", ULL(ri->ino), name);
	ri->named_in = (*home)->ino;
	ri->links = 1;
	return name_add(r, *home, ri, name);
}

static int homes_give(struct repair *r)
{
	struct htable_cursor cursor = {0};
	struct htable_node *node;
	struct repair_inode *home = NULL;
	int rc = 0;

	while (rc == 0 && (node = htable_next(&r->inodes, &cursor))) {
		struct repair_inode *ri = container_of(node, struct repair_inode, node);
		struct fs_key orphan_key = {.type = KEY_ORPHAN, .off = ri->ino};

		if (ri->orphan && (!ri->found || ri->links > 0 || ri->nlink > 0)) {
			repair_say(r, false, "inode %llu: was said to be an orphan", ULL(ri->ino));
			ri->orphan = false;
			rc = repair_raw(r, &orphan_key, NULL, 0);
		}
		if (rc == 0 && ri->found && ri->ino != FS_ROOT_INO && ri->walk == 0 &&
			(ri->links == 0 || (ri->type == FS_DIR && !reaches_root(r, ri)))) {
			ri->walk = 1; /* once is all that can be done */
			rc = homeless(r, ri, &home);
			/* the table may have grown */
			cursor = (struct htable_cursor){0};
		}
	}
	return rc;
}

/* ------------------------------------------------------------------------------------------------
 * Inodes
 */

static int inode_repair(struct repair *r, struct repair_inode *ri)
{
	struct inode_attr a, was;
	int rc = 0;

	if (ri->type == FS_REG && ri->blocks > ri->data_blocks)
		rc = repair_view_blocks(r, ri);
	if (rc == 0 && ri->has_xattrs)
		rc = repair_view_xattrs(r, ri->ino);
	if (rc == 0)
		rc = inode_read(r, ri->ino, &a);
	if (rc < 0)
		return rc;
	was = a;
	a.nlink = ri->type == FS_DIR ? 2 + ri->subdirs : ri->links;
	if (ri->type == FS_DIR) {
		a.size = ri->entries;
		if (a.next_seq <= ri->max_seq)
			a.next_seq = ri->max_seq + 1;
		a.aux = ri->ino == FS_ROOT_INO ? FS_ROOT_INO : ri->named_in;
	}
	if (ri->type == FS_LNK)
		a.size = ri->symlink_bytes;
	a.blocks = ri->data_blocks;
	if (ri->type == FS_REG && ri->extent_end > (a.size + BLOCK_BYTES - 1) / BLOCK_BYTES)
		a.size = ri->extent_end * BLOCK_BYTES;
	if (ri->has_xattrs)
		a.flags |= INODE_FLAG_XATTR;
	if (memcmp(&a, &was, sizeof(a)) == 0)
		return 0;
	repair_say(r, false,
		"inode %llu: links %u, size %llu, blocks %llu, parent %llu, next entry %llu; were %u, %llu, %llu, "
		"%llu, %llu",
		ULL(ri->ino), a.nlink, ULL(a.size), ULL(a.blocks), ULL(ri->type == FS_DIR ? a.aux : 0), ULL(a.next_seq),
		was.nlink, ULL(was.size), ULL(was.blocks), ULL(ri->type == FS_DIR ? was.aux : 0), ULL(was.next_seq));
	return inode_write(r, ri->ino, &a);
}

static int counters_repair(struct repair *r, uint64_t inodes, uint64_t last)
{
	struct fs_key key = {.type = KEY_COUNTERS};
	struct counters_disk d, want;
	int n;

	memset(&d, 0, sizeof(d));
	n = tree_get(r->fs, &key, &d, sizeof(d));

	if (n < 0 && n != -ENOENT)
		return n;
	want = d;
	if (n != (int)sizeof(d))
		memset(&want, 0, sizeof(want));
	want.inodes = le64_put(inodes);
	if (n != (int)sizeof(d) || le64_get(d.next_ino) <= last)
		want.next_ino = le64_put(last + 1);
	if (n == (int)sizeof(d) && memcmp(&d, &want, sizeof(d)) == 0)
		return 0;
	repair_say(r, false, "counters: %llu inodes, next %llu; were %llu and %llu", ULL(inodes),
		ULL(le64_get(want.next_ino)), ULL(le64_get(d.inodes)), ULL(le64_get(d.next_ino)));
	return repair_raw(r, &key, &want, sizeof(want));
}

/* Inode numbers never come back, those of snapshots neither. */
static int last_look(struct repair *r, const struct fs_key *key, size_t len)
{
	(void)len;
	if (key->ino != FS_SHARED_INO && key->ino > r->last_ino)
		r->last_ino = key->ino;
	return 0;
}

/* By name, since whoever reads the report knows files by it. */
static void losses_say(struct repair *r)
{
	for (; r->losses_said < r->losses; r->losses_said++) {
		const struct repair_loss *loss = &r->loss[r->losses_said];
		char path[300];

		repair_path(r, loss->ino, path, sizeof(path));
		repair_say(r, true, "%s: blocks %llu to %llu are lost", path, ULL(loss->first),
			ULL(loss->first + loss->count - 1));
	}
}

static int inodes_repair(struct repair *r, uint64_t *inodes)
{
	struct htable_cursor cursor = {0};
	struct htable_node *node;
	int rc = 0;

	while (rc == 0 && (node = htable_next(&r->inodes, &cursor))) {
		struct repair_inode *ri = container_of(node, struct repair_inode, node);

		if (!ri->found)
			continue;
		++*inodes;
		rc = inode_repair(r, ri);
	}
	return rc;
}

/* What one view sees. */
static int view_repair(struct repair *r, uint64_t *inodes)
{
	/* what a step changes is gathered anew for the next one */
	static int (*const step[])(struct repair * r) = {inodes_make, entries_check, homes_give};
	int rc = repair_walk(r, &(struct fs_key){.ino = 1}, pairs_check);

	repair_inodes_free(r);
	for (unsigned i = 0; i < sizeof(step) / sizeof(step[0]) && rc == 0; i++) {
		rc = repair_walk(r, &(struct fs_key){0}, gather);
		if (rc == 0)
			rc = step[i](r);
		gather_again(r);
	}
	if (rc == 0)
		rc = repair_walk(r, &(struct fs_key){0}, gather);
	if (rc == 0)
		rc = inodes_repair(r, inodes);
	if (rc == 0)
		losses_say(r);
	return rc;
}

int repair_names(struct repair *r)
{
	uint64_t inodes = 0, seen = 0;
	int rc = repair_walk(r, &(struct fs_key){.ino = 1}, last_look);

	if (rc == 0)
		rc = view_repair(r, &inodes);
	for (unsigned i = r->kept_count; i-- > 0 && rc == 0;) {
		r->view = r->kept[i];
		r->limit = r->view - 1;
		r->floor = i ? r->kept[i - 1] : 0;
		rc = view_repair(r, &seen);
	}
	r->view = 0;
	r->limit = UINT32_MAX;
	return rc < 0 ? rc : counters_repair(r, inodes, r->last_ino);
}
