/*
 * Repair of what is seen: the live file system sees the last version of each key, a snapshot the last one that is older
 * than itself (docs/format-files.md). repair_files.c makes names, inodes and counts agree in one view after the other:
 * the live one, then the snapshots from the newest to the oldest.
 *
 * A change in the view of a snapshot is for it alone. The version that it sees is replaced or followed by one that
 * older snapshots do not see; and where newer views have seen that version, or nothing, they get a copy of it, or an
 * empty one, first. So a crash in between leaves the others as they were.
 *
 * Blocks that are lost are marked with the stamp of the version of the inode that counts them: all views that see it
 * had them, and no other. Those that see a newer one get an empty record there.
 */
#include "fs/repair_internal.h"

#define LOSS_MOST (1u << 20) /* blocks of holes of one file that are marked */

static bool same_key(const struct fs_key *a, const struct fs_key *b)
{
	return a->ino == b->ino && a->type == b->type && a->off == b->off;
}

int repair_view_version(struct repair *r, struct fs_key *key, void *val, size_t room)
{
	struct fs_key at = *key;
	int n;

	at.snap = r->limit;
	n = tree_prev(r->fs, &at, val, room);
	if (n < 0 || !same_key(&at, key))
		return n < 0 ? n : -ENOENT;
	key->snap = at.snap;
	return n;
}

int repair_view_get(struct repair *r, const struct fs_key *key, void *val, size_t room)
{
	struct fs_key at = *key;
	int n = repair_view_version(r, &at, val, room);

	return n == 0 ? -ENOENT : n;
}

bool repair_view_sees(struct repair *r, const struct fs_key *key, size_t len)
{
	struct fs_key last = *key;
	uint8_t val[TREE_VALUE_MAX];

	if (len == 0 || key->snap > r->limit)
		return false;
	if (r->fs->files->stamp == 0)
		return true;
	return repair_view_version(r, &last, val, sizeof(val)) >= 0 && last.snap == key->snap;
}

/* Whether a newer view than this one sees what is older than stamp NEXT. */
static bool newer_sees(const struct repair *r, uint32_t next)
{
	for (unsigned i = 0; i < r->kept_count; i++)
		if (r->kept[i] > r->view && r->kept[i] <= next)
			return true;
	return false;
}

/* Newer views go on to see of KEY what they see now: this version of N bytes (-ENOENT: nothing). */
static int newer_keep(struct repair *r, const struct fs_key *key, const void *val, int n)
{
	struct fs_key at = *key;
	uint8_t other[TREE_VALUE_MAX];
	int rc;

	at.snap = r->limit + 1;
	rc = tree_next(r->fs, &at, other, sizeof(other));
	if (rc < 0 && rc != -ENOENT)
		return rc;
	if (rc >= 0 && same_key(&at, key) && (at.snap == r->limit + 1 || !newer_sees(r, at.snap)))
		return 0;
	at = *key;
	at.snap = r->limit + 1;
	return repair_raw(r, &at, val, n < 0 ? 0 : (size_t)n);
}

/* Nothing is to be seen of KEY, whose version that may be changed has its stamp. */
static int version_drop(struct repair *r, const struct fs_key *key)
{
	struct fs_key older = *key;
	uint8_t val[TREE_VALUE_MAX];
	int n = -ENOENT;

	if (key->snap > 0) {
		older.snap--;
		n = tree_prev(r->fs, &older, val, sizeof(val));
		if (n < 0 && n != -ENOENT)
			return n;
	}
	return n > 0 && same_key(&older, key) ? repair_raw(r, key, "", 0) : repair_raw(r, key, NULL, 0);
}

int repair_view_put(struct repair *r, const struct fs_key *key, const void *val, size_t len)
{
	struct fs_key at = *key;
	uint8_t is[TREE_VALUE_MAX];
	int n = repair_view_version(r, &at, is, sizeof(is)), rc;

	if (n < 0 && n != -ENOENT)
		return n;
	if (n == -ENOENT && !val)
		return 0;
	rc = newer_keep(r, key, is, n);
	if (n < 0 || at.snap < r->floor)
		at.snap = r->floor;
	if (rc < 0)
		return rc;
	return val ? repair_raw(r, &at, val, len) : version_drop(r, &at);
}

/* ------------------------------------------------------------------------------------------------
 * Lost blocks
 */

/* What is at block AT of a file, or behind it. */
struct cell {
	uint64_t first, count;
	bool seen;
	uint32_t newer; /* the lowest stamp that this view does not see; UINT32_MAX: none */
};

static int cell_next(struct repair *r, uint64_t ino, uint64_t at, struct cell *c)
{
	struct fs_key key = {.ino = ino, .type = KEY_EXTENT, .off = at};
	struct extent e;

	*c = (struct cell){.newer = UINT32_MAX};
	for (;; key.snap++) {
		int n = tree_next(r->fs, &key, r->value, sizeof(r->value));

		if (n < 0 && n != -ENOENT)
			return n;
		if (n == -ENOENT || key.ino != ino || key.type != KEY_EXTENT || (c->count && key.off != c->first))
			return c->count ? 0 : -ENOENT;
		if (!repair_extent_good(r, &key, (size_t)n, &e))
			continue;
		c->first = key.off;
		c->count = e.count;
		if (key.snap <= r->limit)
			c->seen = true;
		else if (key.snap < c->newer)
			c->newer = key.snap;
	}
}

/* The blocks of file INO whose keys GAP has. */
static bool gap_blocks(const struct repair_gap *gap, uint64_t ino, uint64_t *from, uint64_t *to)
{
	struct fs_key first = {.ino = ino, .type = KEY_EXTENT},
		      last = {.ino = ino, .type = KEY_EXTENT, .off = UINT64_MAX};
	struct pkey a = pkey_pack(&first), b = pkey_pack(&last);

	if (pkey_compare(&gap->from, &b) > 0 || (gap->has_to && pkey_compare(&gap->to, &a) <= 0))
		return false;
	*from = pkey_compare(&gap->from, &a) <= 0 ? 0 : pkey_unpack(&gap->from).off;
	*to = !gap->has_to || pkey_compare(&gap->to, &b) > 0 ? UINT64_MAX : pkey_unpack(&gap->to).off;
	return *from < *to;
}

struct lose {
	struct repair_inode *ri;
	uint32_t stamp, next; /* of its inode, and of the version that newer views see; 0: they see the same */
	bool gaps_only, dry;
	uint64_t lost;
};

static int range_lose(struct repair *r, struct lose *l, uint64_t from, uint64_t end, uint32_t newer)
{
	struct repair_loss loss = {.ino = l->ri->ino,
		.first = from,
		.count = end - from,
		.stamp = l->stamp,
		.hide = l->next && l->next < newer ? l->next : 0};

	l->lost += end - from;
	return l->dry ? 0 : repair_lose(r, &loss);
}

/* Nothing is said of blocks FROM to END: they are a hole, or what was said is lost. */
static int hole_lose(struct repair *r, struct lose *l, uint64_t from, uint64_t end)
{
	int rc = 0;

	if (from >= end)
		return 0;
	if (!l->gaps_only)
		return range_lose(r, l, from, end, UINT32_MAX);
	for (unsigned i = 0; i < r->gaps && rc == 0; i++) {
		uint64_t a, b;

		if (!gap_blocks(&r->gap[i], l->ri->ino, &a, &b))
			continue;
		a = a > from ? a : from;
		b = b < end ? b : end;
		if (a < b)
			rc = range_lose(r, l, a, b, UINT32_MAX);
	}
	return rc;
}

/* A file has fewer blocks than it says: the holes in what is lost of the tree, or all, may have had them. */
static int holes_lose(struct repair *r, struct lose *l)
{
	uint64_t blocks = (l->ri->size + BLOCK_BYTES - 1) / BLOCK_BYTES, at = 0;
	struct cell c;
	int rc = 0;

	l->lost = 0;
	while (at < blocks && rc == 0) {
		rc = cell_next(r, l->ri->ino, at, &c);
		if (rc == -ENOENT || (rc == 0 && c.first >= blocks))
			return hole_lose(r, l, at, blocks);
		if (rc < 0)
			return rc;
		rc = hole_lose(r, l, at, c.first);
		at = c.first + c.count;
		if (rc == 0 && !c.seen && at <= blocks)
			rc = range_lose(r, l, c.first, at, c.newer);
	}
	return rc;
}

/* The stamps of the version of the inode that the view sees, and of the next one. */
static int lose_stamps(struct repair *r, struct lose *l)
{
	struct fs_key key = {.ino = l->ri->ino, .type = KEY_INODE}, next = key;
	uint8_t val[TREE_VALUE_MAX];
	int n = repair_view_version(r, &key, val, sizeof(val));

	if (n < 0)
		return n;
	l->stamp = key.snap;
	next.snap = key.snap + 1;
	n = tree_next(r->fs, &next, val, sizeof(val));
	if (n >= 0 && same_key(&next, &key))
		l->next = next.snap;
	return n < 0 && n != -ENOENT ? n : 0;
}

int repair_view_blocks(struct repair *r, struct repair_inode *ri)
{
	uint64_t missing = ri->blocks - ri->data_blocks;
	struct lose l = {.ri = ri, .gaps_only = r->gaps > 0, .dry = true};
	int rc = lose_stamps(r, &l);

	if (rc == 0)
		rc = holes_lose(r, &l);
	if (rc == 0 && l.gaps_only && l.lost < missing) {
		l.gaps_only = false;
		rc = holes_lose(r, &l);
	}
	if (rc == 0 && l.lost >= missing && l.lost <= LOSS_MOST) {
		l.dry = false;
		rc = holes_lose(r, &l);
		ri->data_blocks += l.lost;
		return rc;
	}
	if (rc == 0)
		repair_say(r, true, "inode %llu: said %llu blocks, has %llu; where it had the others is not known",
			ULL(ri->ino), ULL(ri->blocks), ULL(ri->data_blocks));
	return rc;
}

/* ------------------------------------------------------------------------------------------------
 * Extended attributes
 */

static int xattrs_drop(struct repair *r, uint64_t ino, uint64_t from, uint64_t to)
{
	for (uint64_t off = from; off < to; off++) {
		int rc = repair_put(r, &(struct fs_key){.ino = ino, .type = KEY_XATTR, .off = off}, NULL, 0);

		if (rc < 0)
			return rc;
	}
	return 0;
}

int repair_view_xattrs(struct repair *r, uint64_t ino)
{
	struct fs_key key = {.ino = ino, .type = KEY_XATTR};
	uint64_t at = 0, next = 0;
	size_t size = 0, len = 0;
	int rc = 0;

	for (;;) {
		struct fs_key found = key;
		const char *name;
		int n = tree_next(r->fs, &found, r->value, sizeof(r->value));
		bool end = n == -ENOENT || (n >= 0 && (found.ino != ino || found.type != KEY_XATTR));

		if (n < 0 && n != -ENOENT)
			return n;
		if (!end && !repair_view_sees(r, &found, (size_t)n)) {
			key = found;
			key.snap++;
			continue;
		}
		if (next && (end || found.off != next) && xattr_piece_bytes(len, size, (unsigned)(next % 256))) {
			repair_say(r, true, "inode %llu: an extended attribute was not whole and is gone", ULL(ino));
			rc = xattrs_drop(r, ino, at, next);
			next = 0;
		}
		if (end || rc < 0)
			return rc;
		if (found.off % 256 == 0 && xattr_decode(r->value, (size_t)n, &size, &name, &len) == 0) {
			at = found.off;
			next = at + 1;
		} else if (next == found.off && (size_t)n == xattr_piece_bytes(len, size, (unsigned)(next % 256))) {
			next++;
		} else {
			repair_say(r, true, "inode %llu: a piece of an extended attribute fitted none and is gone",
				ULL(ino));
			rc = xattrs_drop(r, ino, found.off, found.off + 1);
		}
		key = found;
		key.off++;
		key.snap = 0;
	}
}

int repair_view_xattrs_drop(struct repair *r, uint64_t ino)
{
	struct fs_key key = {.ino = ino, .type = KEY_XATTR};

	repair_say(r, true, "inode %llu: is lost, and its extended attributes are gone", ULL(ino));
	for (;; key.snap++) {
		int n = tree_next(r->fs, &key, r->value, sizeof(r->value)), rc = 0;

		if (n == -ENOENT || (n >= 0 && (key.ino != ino || key.type != KEY_XATTR)))
			return 0;
		if (n >= 0 && repair_view_sees(r, &key, (size_t)n))
			rc = xattrs_drop(r, ino, key.off, key.off + 1);
		if (n < 0 || rc < 0)
			return n < 0 ? n : rc;
	}
}
