/*
 * fs check: does everything that the tree holds fit together?
 *
 * One walk over all keys in order, so each inode comes first, then its names, entries and extents.
 * Each value must make sense alone (the same decoders as everywhere). A table of all inodes gathers
 * what entries say of them, a bitmap which physical blocks are taken, and a count per stripe how
 * many; in the end these are compared with link counts, parents, counters and live counts. With
 * DATA every block is read and verified (and repaired, as any read does).
 *
 * Of a key with several versions (snapshot.c) the last one is held against the others of the live file
 * system. Of older ones it is checked that they make sense alone, that blocks have one owner and are
 * counted, and their data; and of extents, that they are cells of one partition.
 *
 * Memory: 72 bytes for each inode, one bit for each block, 8 bytes for each stripe; see check_share.c and
 * check_summary.c.
 *
 * With DATA each snapshot that is kept is then walked in the same way, as it is seen: its names, links, parents and
 * sizes must fit together too. Blocks and counts of stripes have been compared by then.
 *
 * A file system in use changes while the walk goes on. So the faults of a walk are not reported at
 * once: if transactions came between, the walk is repeated, and what counts is what two walks in a
 * row found word for word. What was lost for good (a block without a right copy) always counts.
 *
 * It may take hours, so whoever asked for it is asked at each inode, extent and node whether it is to go on. One that
 * is ended in between reports nothing: what it saw may be half of a change.
 */
#include "fs/check_problems.h"
#include "fs/check_share.h"
#include "fs/check_summary.h"
#include "fs/inode_internal.h"

#define CHECK_WALKS 4u
#define CHECK_BUFS 2u /* of BUF_MAX: the blocks of one extent */

struct check_inode {
	struct htable_node node;
	uint64_t ino, parent, named_in; /* named_in: the directory that has the entry (of a directory) */
	uint32_t gen, nlink, links, subdirs;
	uint32_t entry_gen, walk;
	uint8_t type, entry_type;
	bool found, orphan, reachable;
};

struct check {
	struct fs *fs;
	bool data;
	uint32_t snap, limit; /* the snapshot that is walked (0: none), and the highest stamp that is seen */
	fs_check_report_fn *report;
	fs_check_progress_fn *progress;
	void *arg;
	struct fs_check_result *result;
	struct problems set[2], *now; /* of the last walk and the one before */
	struct htable inodes;
	struct check_shares shares;
	struct check_summaries summaries;
	uint32_t *live;	 /* of each stripe */
	uint8_t *bitmap; /* of all blocks */
	uint64_t blocks;
	bool nodes; /* compare what nodes use too */
	int error;
	uint64_t done;		    /* inodes of this walk */
	uint64_t counted, next_ino; /* the counters when it began */
	/* the inode that the walk is at */
	uint64_t ino, cell, cell_end;
	bool strange; /* it has values but is none: said */
	struct check_inode *at;
	struct inode_attr attr;
	uint64_t names, entries, extent_end, data_blocks, symlink_bytes;
	uint64_t xattr_next; /* key of the next piece of an extended attribute */
	size_t xattr_size, xattr_name;
	uint8_t value[TREE_VALUE_MAX];
	uint8_t value2[TREE_VALUE_MAX];
	uint32_t sums[EXTENT_BLOCKS_MAX];
	struct buf *buf[CHECK_BUFS];
};

/* ------------------------------------------------------------------------------------------------
 * Problems
 */

static void problem_addv(struct check *c, bool lost, const char *format, va_list args)
{
	int r = problems_add(c->now, lost, c->snap, format, args);

	if (r < 0)
		c->error = r;
}

static void problem_add(struct check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void problem_add(struct check *c, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	problem_addv(c, false, format, args);
	va_end(args);
}
static void problem_add_lost(struct check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void problem_add_lost(struct check *c, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	problem_addv(c, true, format, args);
	va_end(args);
}

#define ULL(x) ((unsigned long long)(x))

/* What says nothing of the file system. */
static bool no_memory(int r)
{
	return r == -ENOMEM || r == -EAGAIN;
}

/* Tells how far it is, and whether it may go on. */
static bool check_goes_on(struct check *c)
{
	if (!c->progress || c->progress(c->arg, c->done, files_inode_count(c->fs)))
		return true;
	c->error = -ECANCELED;
	return false;
}

/* ------------------------------------------------------------------------------------------------
 * Tables
 */

static struct check_inode *check_inode(struct check *c, uint64_t ino)
{
	uint64_t hash = hash_u64(ino);
	struct check_inode *ci;

	htable_foreach_hash (node, &c->inodes, hash) {
		ci = container_of(node, struct check_inode, node);
		if (ci->ino == ino)
			return ci;
	}
	ci = calloc(1, sizeof(*ci));
	if (!ci) {
		c->error = -ENOMEM;
		return NULL;
	}
	ci->ino = ino;
	htable_insert(&c->inodes, &ci->node, hash);
	return ci;
}

static void check_take_blocks(struct check *c, uint64_t block, uint32_t count, const char *what, uint64_t ino)
{
	uint64_t stripe_blocks = volume_stripe_blocks(&c->fs->geometry);

	for (uint64_t b = block; b < block + count; b++) {
		if (b >= c->blocks) {
			problem_add(c, "%s of inode %llu: block %llu is outside of the volume", what, ULL(ino), ULL(b));
			return;
		}
		if (c->bitmap[b / 8] & (1u << b % 8))
			problem_add(c, "%s of inode %llu: physical block %llu is used twice", what, ULL(ino), ULL(b));
		c->bitmap[b / 8] |= (uint8_t)(1u << b % 8);
		c->live[b / stripe_blocks]++;
	}
}

/* ------------------------------------------------------------------------------------------------
 * The values of an inode
 */

static void check_xattr_end(struct check *c)
{
	unsigned piece = (unsigned)(c->xattr_next % 256);

	if (c->at && piece && xattr_piece_bytes(c->xattr_name, c->xattr_size, piece))
		problem_add(c, "inode %llu: extended attribute %llx is not whole", ULL(c->at->ino),
			ULL(c->xattr_next >> 8));
	c->xattr_next = 0;
}

/* The walk leaves an inode: what was counted must be what it says. */
static void check_leave(struct check *c)
{
	const struct check_inode *ci = c->at;
	const struct inode_attr *attr = &c->attr;

	check_xattr_end(c);
	if (!ci || !ci->found)
		return;
	if (attr->type == FS_DIR) {
		c->result->directories++;
		if (c->names != attr->size || c->entries != attr->size)
			problem_add(c, "directory %llu: says %llu entries, has %llu names and %llu entries",
				ULL(ci->ino), ULL(attr->size), ULL(c->names), ULL(c->entries));
	} else if (attr->type == FS_LNK && c->symlink_bytes != attr->size) {
		problem_add(c, "symbolic link %llu: says %llu bytes, has %llu", ULL(ci->ino), ULL(attr->size),
			ULL(c->symlink_bytes));
	}
	if (attr->type != FS_DIR && (c->names || c->entries))
		problem_add(c, "inode %llu: has names but is no directory", ULL(ci->ino));
	if (attr->type != FS_REG && c->data_blocks)
		problem_add(c, "inode %llu: has data but is no file", ULL(ci->ino));
	else if (c->data_blocks != attr->blocks)
		problem_add(c, "inode %llu: says %llu blocks of data, has %llu", ULL(ci->ino), ULL(attr->blocks),
			ULL(c->data_blocks));
	if (attr->type == FS_REG) {
		if (c->extent_end > (attr->size + BLOCK_BYTES - 1) / BLOCK_BYTES)
			problem_add(c, "inode %llu: size is %llu, but data goes up to block %llu", ULL(ci->ino),
				ULL(attr->size), ULL(c->extent_end));
	}
}

static void check_enter(struct check *c, const struct fs_key *key, size_t len)
{
	struct check_inode *ci = check_inode(c, key->ino);

	c->at = ci;
	if (!ci)
		return;
	if (inode_decode(c->value, len, &c->attr) < 0 || key->off != 0) {
		problem_add(c, "inode %llu: makes no sense", ULL(key->ino));
		return;
	}
	c->result->inodes++;
	ci->found = true;
	ci->gen = c->attr.gen;
	ci->type = (uint8_t)c->attr.type;
	ci->nlink = c->attr.nlink;
	ci->parent = c->attr.type == FS_DIR ? c->attr.aux : 0;
}

/* The last version of KEY, which is -ENOENT when it is empty. */
static int check_get(struct check *c, const struct fs_key *key)
{
	struct fs_key at = *key;
	int r;

	at.snap = c->limit;
	r = tree_prev(c->fs, &at, c->value2, sizeof(c->value2));
	return r >= 0 && (r == 0 || at.ino != key->ino || at.type != key->type || at.off != key->off) ? -ENOENT : r;
}

static void check_name(struct check *c, const struct fs_key *key, size_t len)
{
	struct fs_key entry_key = {.ino = key->ino, .type = KEY_ENTRY};
	struct dirent ent, other;
	const char *name, *other_name;
	size_t name_len, other_len;
	int r;

	c->names++;
	if (name_decode(c->value, len, &ent, &name, &name_len) < 0) {
		problem_add(c, "directory %llu: name %llx makes no sense", ULL(key->ino), ULL(key->off));
		return;
	}
	if (key->off >> 8 != name_hash(c->fs, name, name_len))
		problem_add(c, "directory %llu: name of sequence %llu has the wrong hash", ULL(key->ino), ULL(ent.seq));
	entry_key.off = ent.seq;
	r = check_get(c, &entry_key);
	if (r == -ENOENT) {
		problem_add(c, "directory %llu: name of sequence %llu has no entry", ULL(key->ino), ULL(ent.seq));
	} else if (r < 0) {
		c->error = r;
	} else if (entry_decode(c->value2, (size_t)r, &other, &other_name, &other_len) == 0 &&
		   (other_len != name_len || memcmp(other_name, name, name_len) != 0 || other.ino != ent.ino ||
			   other.gen != ent.gen || other.type != ent.type)) {
		problem_add(c, "directory %llu: name and entry of sequence %llu differ", ULL(key->ino), ULL(ent.seq));
	}
}

/* The name of ENT must be found by its hash and have its sequence. */
static void check_entry_name(struct check *c, uint64_t dir, const struct dirent *ent, const char *name, size_t len)
{
	struct fs_key key = {.ino = dir, .type = KEY_NAME, .off = name_hash(c->fs, name, len) << 8};
	uint64_t last = key.off + (NAME_COLLISIONS - 1);

	for (;;) {
		struct dirent other;
		const char *other_name;
		size_t other_len;
		int r = tree_next(c->fs, &key, c->value2, sizeof(c->value2));

		if (r < 0 && r != -ENOENT) {
			c->error = r;
			return;
		}
		if (r == -ENOENT || key.ino != dir || key.type != KEY_NAME || key.off > last)
			break;
		r = check_get(c, &key);
		if (r >= 0 && name_decode(c->value2, (size_t)r, &other, &other_name, &other_len) == 0 &&
			other_len == len && memcmp(other_name, name, len) == 0) {
			if (other.seq != ent->seq)
				problem_add(c, "directory %llu: entry of sequence %llu is named at sequence %llu",
					ULL(dir), ULL(ent->seq), ULL(other.seq));
			return;
		}
		key.off++;
		key.snap = 0;
	}
	problem_add(c, "directory %llu: entry of sequence %llu has no name", ULL(dir), ULL(ent->seq));
}

static void check_entry(struct check *c, const struct fs_key *key, size_t len)
{
	struct check_inode *ci;
	struct dirent ent;
	const char *name;
	size_t name_len;

	c->entries++;
	if (entry_decode(c->value, len, &ent, &name, &name_len) < 0) {
		problem_add(c, "directory %llu: entry of sequence %llu makes no sense", ULL(key->ino), ULL(key->off));
		return;
	}
	ent.seq = key->off;
	if (ent.seq < NAME_SEQ_FIRST || ent.seq >= c->attr.next_seq)
		problem_add(c, "directory %llu: entry has sequence %llu, the next one is %llu", ULL(key->ino),
			ULL(ent.seq), ULL(c->attr.next_seq));
	ci = check_inode(c, ent.ino);
	if (!ci)
		return;
	if (ci->links > 0 && (ci->entry_gen != ent.gen || ci->entry_type != ent.type))
		problem_add(c, "inode %llu: its names do not agree what it is", ULL(ent.ino));
	ci->links++;
	ci->entry_gen = ent.gen;
	ci->entry_type = ent.type;
	if (ent.type == FS_DIR) {
		ci->named_in = key->ino;
		if (c->at)
			c->at->subdirs++;
	}
	check_entry_name(c, key->ino, &ent, name, name_len);
}

static void check_xattr(struct check *c, const struct fs_key *key, size_t len)
{
	unsigned piece = (unsigned)(key->off % 256);
	const char *name;

	if (!(c->attr.flags & INODE_FLAG_XATTR))
		problem_add(c, "inode %llu: has extended attributes, but does not say so", ULL(key->ino));
	if (piece == 0) {
		check_xattr_end(c);
		if (xattr_decode(c->value, len, &c->xattr_size, &name, &c->xattr_name) < 0)
			problem_add(c, "inode %llu: extended attribute %llx makes no sense", ULL(key->ino),
				ULL(key->off >> 8));
		else if ((key->off ^ xattr_hash(c->fs, name, c->xattr_name)) >> 16)
			problem_add(c, "inode %llu: extended attribute %llx has the wrong hash", ULL(key->ino),
				ULL(key->off >> 8));
		else
			c->xattr_next = key->off + 1;
		return;
	}
	if (key->off != c->xattr_next || len != xattr_piece_bytes(c->xattr_name, c->xattr_size, piece)) {
		problem_add(c, "inode %llu: piece %llx of an extended attribute does not fit", ULL(key->ino),
			ULL(key->off));
		c->xattr_next = 0;
		return;
	}
	c->xattr_next++;
}

static void check_share(struct check *c, const struct share_seen *seen)
{
	if (shares_seen(&c->shares, seen) < 0)
		c->error = -ENOMEM;
}

static void check_extent_data(struct check *c, uint64_t ino, const struct extent *e, unsigned phase)
{
	struct fs_files *files = c->fs->files;
	struct slice to[CHECK_BUFS];
	uint64_t wrong = files->checksum_errors;
	unsigned n = 0, times = 0;
	int r;

	for (uint32_t done = 0; done < e->count && n < CHECK_BUFS; n++) {
		uint32_t part = e->count - done < BUF_MAX / BLOCK_BYTES ? e->count - done : BUF_MAX / BLOCK_BYTES;

		to[n] = (struct slice){c->buf[n], 0, part * BLOCK_BYTES};
		done += part;
	}
	while (read_again(r = blocks_read_verified(c->fs, ino, e->first, e->block, e->count, c->sums, to, n), &times))
		for (unsigned i = 0; i < n; i++) {
			/* no wait inside of a read section */
			if (!buf_renew(&c->buf[i], true))
				times = ~0u;
			to[i].buf = c->buf[i];
		}
	read_leave(files, phase);
	if (no_memory(r)) {
		c->error = r;
		return;
	}
	if (r < 0 && ino == FS_SHARED_INO)
		check_share(c, &(struct share_seen){SHARE_LOST, 0, e->first, e->count, 0, 0});
	if (r < 0)
		problem_add_lost(c, "inode %llu: data of blocks %llu to %llu cannot be read: %s", ULL(ino),
			ULL(e->first), ULL(e->first + e->count - 1), strerror(-r));
	else if (files->checksum_errors != wrong)
		problem_add_lost(c, "inode %llu: data of blocks %llu to %llu was wrong on a drive, repaired", ULL(ino),
			ULL(e->first), ULL(e->first + e->count - 1));
	c->result->data_blocks += e->count;
}

/* Its stripe's summaries tell whose it is. */
static void check_extent_named(struct check *c, const struct fs_key *key, const struct extent *e)
{
	uint64_t missing;
	int r = c->error ? 0 : summaries_missing(&c->summaries, c->fs, key, e, &missing);

	if (r < 0)
		c->error = r;
	else if (r > 0)
		problem_add(c, "inode %llu: block %llu is named by no summary of stripe %llu", ULL(key->ino),
			ULL(missing), ULL(e->block / c->fs->space.stripe_blocks));
}

static void check_extent(struct check *c, const struct fs_key *key, size_t len, bool live)
{
	struct extent e;
	unsigned phase = read_enter(c->fs->files); /* in one go with tree_next() */

	c->result->extents++;
	if (extent_decode(&c->fs->geometry, key, c->value, len, &e) < 0) {
		read_leave(c->fs->files, phase);
		problem_add(c, "inode %llu: extent at block %llu makes no sense", ULL(key->ino), ULL(key->off));
		return;
	}
	if (e.first == c->cell && c->cell_end ? e.first + e.count != c->cell_end : e.first < c->cell_end)
		problem_add(c, "inode %llu: extent at block %llu overlaps the one before", ULL(key->ino), ULL(e.first));
	c->cell = e.first;
	c->cell_end = e.first + e.count;
	if (live && !e.hole) {
		c->extent_end = c->cell_end;
		c->data_blocks += e.count;
	}
	if (c->snap) {
		read_leave(c->fs->files, phase);
		return;
	}
	if (e.shared)
		check_share(c, &(struct share_seen){SHARE_REF, 0, e.block, e.count, key->ino, e.first});
	if (e.hole || e.shared) {
		read_leave(c->fs->files, phase);
		return;
	}
	if (key->ino == FS_SHARED_INO)
		check_share(c, &(struct share_seen){SHARE_OWNED, 0, e.first, e.count, 0, 0});
	check_take_blocks(c, e.block, e.count, "data", key->ino);
	for (uint32_t i = 0; i < e.count; i++)
		c->sums[i] = extent_sum(&e, i);
	if (c->data && check_goes_on(c))
		check_extent_data(c, key->ino, &e, phase);
	else
		read_leave(c->fs->files, phase);
	check_extent_named(c, key, &e);
}

static void check_snapshot(struct check *c, const struct fs_key *key, size_t len)
{
	uint64_t created;
	const char *name;
	uint8_t state;
	size_t n;

	if (key->off == 0
			? len != sizeof(struct stamp_disk)
			: snapshot_decode(c->value, len, &state, &created, &name, &n) < 0 || key->off > fs_stamp(c->fs))
		problem_add(c, "snapshot %llu makes no sense", ULL(key->off));
}

static void check_state(struct check *c, const struct fs_key *key, size_t len)
{
	struct fs_state record;

	if (state_decode(c->value, len, &record) < 0 ||
		(key->off >> 8 ^ name_hash(c->fs, (const char *)record.name, record.name_len)) & (UINT64_MAX >> 16))
		problem_add(c, "state record %llx makes no sense", ULL(key->off));
}

static void check_summary(struct check *c, const struct fs_key *key, size_t len)
{
	int r = summaries_seen(&c->summaries, c->fs, key, c->value, len);

	if (r == -EIO)
		problem_add(c, "summary of stripe %llu at block %llu makes no sense",
			ULL(key->off / c->fs->space.stripe_blocks), ULL(key->off));
	else if (r < 0)
		c->error = r;
}

static void check_global(struct check *c, const struct fs_key *key, size_t len)
{
	struct check_inode *ci;
	struct counters_disk counters;
	struct orphan_disk orphan;
	struct reply_disk reply;
	uint64_t end;
	uint32_t refs;

	switch (key->type) {
	case KEY_STRIPES:
		break; /* what they count is compared in the end */
	case KEY_SUMMARY:
		check_summary(c, key, len);
		break;
	case KEY_ORPHAN:
		memcpy(&orphan, c->value, len < sizeof(orphan) ? len : sizeof(orphan));
		if (len != sizeof(orphan) || orphan.state > ORPHAN_DELETE)
			problem_add(c, "orphan record of inode %llu makes no sense", ULL(key->off));
		ci = check_inode(c, key->off);
		if (ci)
			ci->orphan = true;
		break;
	case KEY_SNAPSHOT:
		check_snapshot(c, key, len);
		break;
	case KEY_REPLY:
		memcpy(&reply, c->value, sizeof(reply));
		if (len != sizeof(reply) || le64_get(reply.seq) % FS_REPLIES != key->off)
			problem_add(c, "reply record %llu makes no sense", ULL(key->off));
		break;
	case KEY_STATE:
		check_state(c, key, len);
		break;
	case KEY_SHARE:
		if (share_decode(key, c->value, len, &end, &refs) < 0)
			problem_add(c, "count of shared block %llu makes no sense", ULL(key->off));
		else
			check_share(c, &(struct share_seen){SHARE_COUNT, refs, key->off, end - key->off, 0, 0});
		break;
	case KEY_COUNTERS:
		memcpy(&counters, c->value, sizeof(counters));
		if (len != sizeof(counters))
			problem_add(c, "the counters make no sense");
		else if (le64_get(counters.next_ino) != c->fs->files->next_ino ||
			 le64_get(counters.inodes) != files_inode_count(c->fs))
			problem_add(c, "the counters say %llu inodes, the next is %llu; it is %llu and %llu",
				ULL(le64_get(counters.inodes)), ULL(le64_get(counters.next_ino)),
				ULL(files_inode_count(c->fs)), ULL(c->fs->files->next_ino));
		break;
	default:
		problem_add(c, "a record of unknown type %u", key->type);
	}
}

static void check_begin(struct check *c, uint64_t ino)
{
	c->ino = ino;
	c->at = NULL;
	c->strange = false;
	c->names = c->entries = c->extent_end = c->data_blocks = c->symlink_bytes = c->cell = c->cell_end = 0;
	memset(&c->attr, 0, sizeof(c->attr));
}

/* A version that only snapshots see, or an empty one. */
static void check_older(struct check *c, const struct fs_key *key, size_t len)
{
	struct inode_attr attr;
	struct dirent ent;
	const char *name;
	size_t n, size;

	if (len == 0 ? key->type == KEY_EXTENT || key->snap == 0
		     : (key->type == KEY_INODE && inode_decode(c->value, len, &attr) < 0) ||
				(key->type == KEY_NAME && name_decode(c->value, len, &ent, &name, &n) < 0) ||
				(key->type == KEY_ENTRY && entry_decode(c->value, len, &ent, &name, &n) < 0) ||
				(key->type == KEY_XATTR && key->off % 256 == 0 &&
					xattr_decode(c->value, len, &size, &name, &n) < 0))
		problem_add(c, "inode %llu: version %u of type %u at %llx makes no sense", ULL(key->ino), key->snap,
			key->type, ULL(key->off));
}

static void check_value(struct check *c, const struct fs_key *key, size_t len)
{
	struct fs_key last = *key;
	int r = 0;

	if (key->snap > c->limit || (c->snap && key->ino == FS_SHARED_INO))
		return;
	if (key->snap > fs_stamp(c->fs))
		problem_add(c, "inode %llu: a record has stamp %u, the last one is %u", ULL(key->ino), key->snap,
			fs_stamp(c->fs));
	if (fs_stamp(c->fs) > 0) {
		last.snap = c->limit;
		r = tree_prev(c->fs, &last, c->value2, sizeof(c->value2));
	}
	if (r < 0) {
		c->error = r == -ENOENT ? 0 : r;
		return;
	}
	if (key->type == KEY_EXTENT) {
		bool live = last.snap == key->snap && last.off == key->off && last.ino == key->ino;

		if (key->ino == FS_SHARED_INO && key->snap)
			problem_add(c, "extent of shared block %llu has stamp %u", ULL(key->off), key->snap);
		if (live && key->ino != FS_SHARED_INO && len > sizeof(struct extent_disk) && !c->at && !c->strange) {
			problem_add(c, "inode %llu: has values but no inode", ULL(key->ino));
			c->strange = true;
		}
		check_extent(c, key, len, live);
		return;
	}
	if (len == 0 || (last.snap != key->snap && last.off == key->off && last.type == key->type)) {
		check_older(c, key, len);
		return;
	}
	if (key->type != KEY_INODE && !c->at && !c->strange) {
		problem_add(c, "inode %llu: has values but no inode", ULL(key->ino));
		c->strange = true;
	}
	switch (key->type) {
	case KEY_INODE:
		check_enter(c, key, len);
		break;
	case KEY_SYMLINK:
		c->symlink_bytes += len;
		break;
	case KEY_NAME:
		check_name(c, key, len);
		break;
	case KEY_ENTRY:
		check_entry(c, key, len);
		break;
	case KEY_XATTR:
		check_xattr(c, key, len);
		break;
	default:
		problem_add(c, "inode %llu: a record of unknown type %u", ULL(key->ino), key->type);
	}
}

static int check_walk(struct check *c)
{
	struct fs_key key = {.ino = c->snap ? 1 : 0};

	check_begin(c, 0);
	c->done = 0;
	for (;;) {
		int r = tree_next(c->fs, &key, c->value, sizeof(c->value));

		if (r == -ENOENT)
			break;
		if (no_memory(r))
			return r;
		if (r < 0) {
			problem_add_lost(
				c, "the tree cannot be read from inode %llu on: %s", ULL(key.ino), strerror(-r));
			return r;
		}
		if (key.ino == 0) {
			check_global(c, &key, (size_t)r);
		} else {
			if (c->ino != key.ino) {
				check_leave(c);
				check_begin(c, key.ino);
				c->done++;
				check_goes_on(c);
			}
			check_value(c, &key, (size_t)r);
		}
		if (c->error)
			return c->error;
		if (++key.snap == 0 && ++key.off == 0)
			key.type++;
	}
	check_leave(c);
	return c->error;
}

/* ------------------------------------------------------------------------------------------------
 * In the end
 */

static void check_links(struct check *c)
{
	struct htable_cursor cursor = {0};
	struct htable_node *node;
	uint64_t inodes = 0;

	while ((node = htable_next(&c->inodes, &cursor))) {
		const struct check_inode *ci = container_of(node, struct check_inode, node);
		uint32_t want = ci->type == FS_DIR ? 2 + ci->subdirs : ci->links;

		if (!ci->found) {
			problem_add(c, "inode %llu: is named but not there", ULL(ci->ino));
			continue;
		}
		inodes++;
		if (ci->links > 0 && (ci->entry_gen != ci->gen || ci->entry_type != ci->type))
			problem_add(c, "inode %llu: is not what its name says", ULL(ci->ino));
		if (ci->nlink != want)
			problem_add(c, "inode %llu: says %u links, has %u", ULL(ci->ino), ci->nlink, want);
		if (!c->snap && ci->orphan != (ci->nlink == 0))
			problem_add(c, "inode %llu: has %u links and is %s orphan", ULL(ci->ino), ci->nlink,
				ci->orphan ? "an" : "no");
		if (ci->type != FS_DIR)
			continue;
		if (ci->links != (ci->ino == FS_ROOT_INO ? 0 : 1))
			problem_add(c, "directory %llu: has %u names", ULL(ci->ino), ci->links);
		else if (ci->parent != (ci->ino == FS_ROOT_INO ? FS_ROOT_INO : ci->named_in))
			problem_add(c, "directory %llu: says its parent is %llu, is named in %llu", ULL(ci->ino),
				ULL(ci->parent), ULL(ci->named_in));
	}
	/* one that moved meanwhile says nothing, and two walks may agree on it by chance */
	if (!c->snap && inodes != files_inode_count(c->fs) && c->counted == files_inode_count(c->fs) &&
		c->next_ino == c->fs->files->next_ino)
		problem_add(
			c, "%llu inodes are there, the counter says %llu", ULL(inodes), ULL(files_inode_count(c->fs)));
}

/* Every directory must lead up to the root. */
static void check_reach(struct check *c)
{
	struct htable_cursor cursor = {0};
	struct htable_node *node;
	uint32_t walk = 0;

	while ((node = htable_next(&c->inodes, &cursor))) {
		struct check_inode *start = container_of(node, struct check_inode, node), *ci = start;
		uint64_t left;

		if (!ci->found || ci->type != FS_DIR)
			continue;
		walk++;
		while (ci && ci->found && !ci->reachable && ci->walk != walk && ci->ino != FS_ROOT_INO) {
			ci->walk = walk;
			ci = check_inode(c, ci->parent);
		}
		if (!ci || !ci->found || (ci->ino != FS_ROOT_INO && !ci->reachable)) {
			problem_add(c, "directory %llu: does not lead up to the root", ULL(start->ino));
			continue;
		}
		/* the way is known to be good */
		ci = start;
		for (left = c->inodes.count; ci && left > 0 && !ci->reachable; left--) {
			ci->reachable = true;
			ci = ci->ino == FS_ROOT_INO ? NULL : check_inode(c, ci->parent);
		}
	}
}

static int check_node(void *arg, uint64_t block, unsigned blocks, unsigned level)
{
	struct check *c = arg;

	(void)level;
	c->result->nodes++;
	if (c->nodes)
		check_take_blocks(c, block, blocks, "a node", 0);
	return check_goes_on(c) ? 0 : -ECANCELED;
}

static void check_stripes(struct check *c)
{
	for (uint64_t s = 0; s < c->fs->geometry.stripes; s++) {
		uint32_t live;
		bool nodes;

		if (space_stripe_info(c->fs, s, &live, &nodes) < 0) {
			problem_add(c, "stripe %llu: has no count", ULL(s));
			continue;
		}
		if (nodes && !c->nodes)
			continue;
		if (live != c->live[s])
			problem_add(c, "stripe %llu: says %u live blocks, has %u", ULL(s), live, c->live[s]);
	}
}

static void check_share_fault(void *arg, bool lost, const char *problem)
{
	if (lost)
		problem_add_lost(arg, "%s", problem);
	else
		problem_add(arg, "%s", problem);
}

static void check_inodes_clear(struct check *c)
{
	struct htable_cursor cursor = {0};
	struct htable_node *node;

	while ((node = htable_next(&c->inodes, &cursor))) {
		htable_remove(&c->inodes, node);
		free(container_of(node, struct check_inode, node));
	}
}

/* Each snapshot as it is seen. */
static int check_snapshots(struct check *c)
{
	struct fs_check_result result = *c->result;
	const char *name;
	size_t len;
	int r = 0;

	while (r == 0 && c->data && (c->snap = snapshot_after(c->fs->files, c->snap, &name, &len)) != 0) {
		c->limit = c->snap - 1;
		check_inodes_clear(c);
		r = check_walk(c);
		/* one that was deleted meanwhile is seen by nobody */
		if (r < 0 || !snapshot_exists(c->fs->files, c->snap))
			continue;
		check_links(c);
		check_reach(c);
	}
	c->snap = 0;
	c->limit = UINT32_MAX;
	*c->result = result;
	return r;
}

/* The root record in force, on every drive that has a copy and can be read. */
static void check_roots(struct check *c)
{
	uint32_t wrong = root_copies_wrong(c->fs);

	for (unsigned copy = 0; copy < 32; copy++)
		if (wrong >> copy & 1)
			problem_add(c, "root record: copy %u is not what was written", copy);
}

static int check_once(struct check *c)
{
	struct fs *fs = c->fs;
	int r = 0;

	memset(c->result, 0, sizeof(*c->result));
	memset(c->live, 0, fs->geometry.stripes * sizeof(c->live[0]));
	memset(c->bitmap, 0, c->blocks / 8 + 1);
	check_inodes_clear(c);
	shares_clear(&c->shares);
	summaries_clear(&c->summaries);
	c->nodes = !fs->read_only && !fs->failed;
	if (c->nodes) {
		/* then every node has its place */
		r = files_flush_all(fs);
		if (r == 0)
			r = fs_checkpoint(fs);
		if (r < 0)
			return r;
		check_roots(c);
	}
	c->counted = files_inode_count(fs);
	c->next_ino = fs->files->next_ino;
	r = check_walk(c);
	if (r == 0)
		r = tree_walk_nodes(fs, check_node, c);
	if (r == -ECANCELED || no_memory(r))
		return r;
	if (r < 0) {
		problem_add_lost(c, "the tree cannot be read: %s", strerror(-r));
		return 0;
	}
	check_links(c);
	check_reach(c);
	check_stripes(c);
	if (shares_compare(&c->shares, check_share_fault, c) < 0)
		c->error = -ENOMEM;
	r = check_snapshots(c);
	return r < 0 ? r : c->error;
}

/* Reports what counts of the last walk; CALM: nothing changed while it went on. */
static void check_report(struct check *c, const struct problems *now, const struct problems *before, bool calm)
{
	list_foreach (node, (struct list *)&now->list) {
		const struct problem *problem = container_of(node, struct problem, link);

		if (!calm && !problem->lost && !problem_find(before, problem->text, problem->node.hash))
			continue;
		c->result->errors++;
		if (c->report)
			c->report(c->arg, problem->text);
	}
}

static int check_run(struct fs *fs, void *arg)
{
	struct check *c = arg;
	bool calm = false;
	int r = 0;

	for (unsigned walk = 0; walk < CHECK_WALKS && r == 0; walk++) {
		uint64_t transactions;

		problems_clear(&c->set[walk % 2]);
		c->now = &c->set[walk % 2];
		if (!fs->read_only && !fs->failed) {
			r = files_flush_all(fs);
			if (r < 0)
				break;
		}
		transactions = fs->transactions;
		r = check_once(c);
		calm = fs->transactions == transactions;
		if (calm || c->now->count == 0)
			break;
	}
	if (r == 0)
		check_report(c, c->now, c->now == &c->set[0] ? &c->set[1] : &c->set[0], calm);
	return r;
}

static int check_alloc(struct check *c)
{
	const struct volume_geometry *g = &c->fs->geometry;

	c->blocks = g->stripes * volume_stripe_blocks(g);
	c->live = calloc(g->stripes, sizeof(c->live[0]));
	c->bitmap = calloc(1, c->blocks / 8 + 1);
	if (!c->live || !c->bitmap || htable_init(&c->inodes, 1024) < 0 || problems_init(&c->set[0]) < 0 ||
		problems_init(&c->set[1]) < 0)
		return -ENOMEM;
	return 0;
}

static void check_free(struct check *c)
{
	for (unsigned i = 0; i < 2; i++) {
		if (!c->set[i].table.bucket)
			continue;
		problems_clear(&c->set[i]);
		htable_fini(&c->set[i].table);
	}
	if (c->inodes.bucket) {
		check_inodes_clear(c);
		htable_fini(&c->inodes);
	}
	for (unsigned i = 0; i < CHECK_BUFS; i++)
		buf_put(c->buf[i]);
	shares_free(&c->shares);
	summaries_free(&c->summaries);
	free(c->live);
	free(c->bitmap);
	free(c);
}

int fs_check(struct fs *fs, bool data, fs_check_report_fn *report, fs_check_progress_fn *progress, void *arg,
	struct fs_check_result *result)
{
	struct check *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -EAGAIN;
	c->fs = fs;
	c->limit = UINT32_MAX;
	c->data = data;
	c->report = report;
	c->progress = progress;
	c->arg = arg;
	c->result = result;
	r = check_alloc(c);
	for (unsigned i = 0; i < CHECK_BUFS && data && r == 0; i++)
		c->buf[i] = buf_alloc(BUF_MAX);
	if (r == 0)
		r = files_call(fs, check_run, c);
	if (c->error == -ECANCELED)
		r = -ECANCELED; /* which is no error that a file system knows otherwise */
	check_free(c);
	return r == -ENOMEM ? -EAGAIN : r;
}
