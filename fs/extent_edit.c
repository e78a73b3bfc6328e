/*
 * Changes of a file's extents: the one walk that everything goes through that names blocks, gives them
 * up or moves them (flush, truncation, deletion, punching, cleaning).
 *
 * A record of KEY_EXTENT has a stamp, as every key of an inode (snapshot.c): the live file system
 * changes the records that no snapshot sees only, and older ones stay. All records of
 * one inode, of whatever stamps, are cells of one partition: the ranges of two of them are equal or do
 * not meet. So a version of a cell hides exactly the older versions of that cell, and no look-up has to
 * compare ranges. A change therefore cuts a cell where it begins and ends inside of it, in all
 * versions at once; that changes how they are written down and not what they say. Each physical
 * block has one owner, the record that names it: blocks are given up when that record goes.
 *
 * Where a part of a cell goes from the live file but not from a snapshot, a record with EXTENT_HOLE
 * hides it. Without snapshots a cell has one version, and nothing of this costs
 * anything: what is new takes the place of what goes, whatever its ranges were.
 *
 * A record may also refer to shared blocks (share.c), which is the same with references in place of blocks. The
 * extents of FS_SHARED_INO itself have no versions: their stamp is 0.
 *
 * A pass does not see what it queued, so a pass may call these functions once for one range of an
 * inode. Nothing waits but for the tree (-EAGAIN).
 */
#include "fs/inode_internal.h"

struct version {
	uint64_t block; /* of the volume; of FS_SHARED_INO when shared */
	uint32_t stamp;
	bool hole, shared;
	const uint8_t *sums;
};
struct cell {
	uint64_t ino, first;
	uint32_t count;
	unsigned versions; /* ascending by stamp */
	struct version v[EXTENT_VERSIONS_MAX];
};

/* ------------------------------------------------------------------------------------------------
 * Cells
 */

/* The highest stamp that a record of INO may have. */
static uint32_t stamp_most(struct tx *tx, uint64_t ino)
{
	return ino == FS_SHARED_INO ? 0 : fs_stamp(tx_fs(tx));
}

/* Records of INO of this stamp or a higher one are the live file system's alone. */
static uint32_t stamp_floor(struct tx *tx, uint64_t ino)
{
	return ino == FS_SHARED_INO ? 0 : fs_stamp_floor(tx_fs(tx));
}

/* Reads all versions of the cell whose first one is at KEY. */
static int cell_read(struct tx *tx, struct fs_key key, const void *val, size_t len, struct cell *c)
{
	const struct volume_geometry *g = &tx_fs(tx)->geometry;

	c->ino = key.ino;
	c->first = key.off;
	c->versions = 0;
	for (;;) {
		struct version *v = &c->v[c->versions];
		struct extent e;
		int r = extent_decode(g, &key, val, len, &e);

		if (r < 0 || (c->versions > 0 && e.count != c->count) || key.snap > stamp_most(tx, key.ino)) {
			log_error("fs", "extent record makes no sense ino=%llu block=%llu", (unsigned long long)key.ino,
				(unsigned long long)key.off);
			return -EIO;
		}
		*v = (struct version){e.block, key.snap, e.hole, e.shared, e.sums};
		c->count = e.count;
		c->versions++;
		if (key.snap == stamp_most(tx, key.ino))
			return 0;
		key.snap++;
		r = tx_next_any(tx, &key, &val, &len);
		if (r == -ENOENT || (r == 0 && (key.ino != c->ino || key.type != KEY_EXTENT || key.off != c->first)))
			return 0;
		if (r < 0)
			return r;
		if (c->versions == EXTENT_VERSIONS_MAX)
			return -EIO;
	}
}

/* The cell that has BLOCK, or else the first one behind it. -ENOENT. */
static int cell_find(struct tx *tx, uint64_t ino, uint64_t block, struct cell *c)
{
	struct fs_key key = {.ino = ino, .type = KEY_EXTENT, .off = block, .snap = UINT32_MAX};
	struct extent e;
	const void *val;
	size_t len;
	int r = tx_prev_any(tx, &key, &val, &len);

	if (r < 0 && r != -ENOENT)
		return r;
	if (r == 0 && key.ino == ino && key.type == KEY_EXTENT) {
		if (extent_decode(&tx_fs(tx)->geometry, &key, val, len, &e) < 0)
			return -EIO;
		if (block - key.off < e.count)
			block = key.off;
	}
	key = (struct fs_key){.ino = ino, .type = KEY_EXTENT, .off = block};
	r = tx_next_any(tx, &key, &val, &len);
	if (r < 0)
		return r;
	if (key.ino != ino || key.type != KEY_EXTENT)
		return -ENOENT;
	return cell_read(tx, key, val, len, c);
}

/* The last cell that begins before END. */
static int cell_before(struct tx *tx, uint64_t ino, uint64_t end, struct cell *c)
{
	struct fs_key key = {.ino = ino, .type = KEY_EXTENT, .off = end - 1, .snap = UINT32_MAX};
	const void *val;
	size_t len;
	int r = tx_prev_any(tx, &key, &val, &len);

	if (r < 0)
		return r;
	if (key.ino != ino || key.type != KEY_EXTENT)
		return -ENOENT;
	key.snap = 0;
	r = tx_next_any(tx, &key, &val, &len);
	return r < 0 ? r : cell_read(tx, key, val, len, c);
}

/* Is there a version that belongs to snapshots? (Or one that nobody sees and that is still to be taken out.) */
static bool cell_bound(const struct cell *c, uint32_t floor)
{
	return c->versions > 1 || c->v[0].stamp < floor;
}

static int ref_put(struct tx *tx, uint64_t ino, uint32_t stamp, uint64_t first, uint64_t count, uint64_t block)
{
	struct {
		struct extent_disk head;
		le32 reserved;
	} d = {.head = {
		       .block = le64_put(block), .count = le32_put((uint32_t)count), .flags = le32_put(EXTENT_SHARED)}};
	struct fs_key key = {.ino = ino, .type = KEY_EXTENT, .off = first, .snap = stamp};

	assert(count > 0 && count <= EXTENT_REF_BLOCKS_MAX);
	return tx_put_any(tx, &key, &d, EXTENT_REF_BYTES);
}

/* SUMS NULL: hides what is there. STREAM: the blocks are durable and just as the caller has them in memory. */
static int piece_put_as(struct tx *tx, uint64_t ino, uint32_t stamp, uint64_t first, uint32_t count, uint64_t block,
	const uint8_t *sums, bool stream)
{
	struct {
		struct extent_disk head;
		uint8_t sums[EXTENT_BLOCKS_MAX * 4];
	} d = {.head = {.block = le64_put(block), .count = le32_put(count)}};
	struct fs_key key = {.ino = ino, .type = KEY_EXTENT, .off = first, .snap = stamp};

	assert(count > 0 && count <= (sums ? EXTENT_BLOCKS_MAX : EXTENT_REF_BLOCKS_MAX));
	if (!sums) {
		d.head.block = le64_put(0);
		d.head.flags = le32_put(EXTENT_HOLE);
		return tx_put_any(tx, &key, &d, sizeof(d.head));
	}
	memcpy(d.sums, sums, (size_t)count * 4);
	return (stream && count >= stream_least ? tx_stream_put : tx_put_any)(
		tx, &key, &d, sizeof(d.head) + (size_t)count * 4);
}

static int piece_put(struct tx *tx, uint64_t ino, uint32_t stamp, uint64_t first, uint32_t count, uint64_t block,
	const uint8_t *sums)
{
	return piece_put_as(tx, ino, stamp, first, count, block, sums, false);
}

/* The part FROM..TO of a version of C becomes a record of its own. */
static int version_put(struct tx *tx, const struct cell *c, const struct version *v, uint64_t from, uint64_t to)
{
	uint64_t skip = from - c->first;

	if (v->shared)
		return ref_put(tx, c->ino, v->stamp, from, to - from, v->block + skip);
	return piece_put(tx, c->ino, v->stamp, from, (uint32_t)(to - from), v->block + skip,
		v->hole ? NULL : v->sums + skip * 4);
}

/* ------------------------------------------------------------------------------------------------
 * Edits
 */

struct edits {
	struct tx *tx;
	uint64_t ino;
	const struct extent_edit *edit;
	unsigned n, i;	  /* all; the one that is at work */
	uint64_t run;	  /* new blocks of it from here on are not named yet */
	uint32_t floor;	  /* stamp_floor() */
	uint64_t dropped; /* blocks that the live file had */
};

static uint64_t edit_end(const struct extent_edit *e)
{
	return e->first + e->count;
}

/* Names the new blocks from s->run up to TO, in records of STAMP. */
static int edit_put(struct edits *s, uint64_t to, uint32_t stamp)
{
	const struct extent_edit *e = &s->edit[s->i];
	uint64_t skip = s->run - e->first;
	uint32_t count = (uint32_t)(to - s->run);
	int r;

	if ((!e->sums && !e->shared) || s->run >= to)
		return 0;
	if (e->shared) {
		r = ref_put(s->tx, s->ino, stamp, s->run, count, e->block + skip);
		if (r == 0)
			r = tx_share(s->tx, e->block + skip, count, 1);
		s->run = to;
		return r;
	}
	r = piece_put_as(s->tx, s->ino, stamp, s->run, count, e->block + skip, e->sums + skip * 4, true);
	if (r == 0)
		r = tx_blocks_add(s->tx, e->block + skip, count);
	if (r == 0)
		r = tx_summary_add(s->tx, e->block + skip, count, s->ino, s->run);
	s->run = to;
	return r;
}

static int edit_next(struct edits *s)
{
	int r = edit_put(s, edit_end(&s->edit[s->i]), s->floor);

	if (++s->i < s->n)
		s->run = s->edit[s->i].first;
	return r;
}

/* Part FROM..TO of C, with which the edit at work does what it has to. */
static int cell_edit_part(struct edits *s, const struct cell *c, uint64_t from, uint64_t to)
{
	const struct version *last = &c->v[c->versions - 1], *older = last;
	bool current = last->stamp >= s->floor, whole = to - from == c->count;
	uint32_t stamp = current ? last->stamp : s->floor;
	int r = 0;

	if (!last->hole) {
		s->dropped += to - from;
		if (current && last->shared)
			r = tx_share(s->tx, last->block + (from - c->first), to - from, -1);
		else if (current)
			r = tx_blocks_drop(s->tx, last->block + (from - c->first), (uint32_t)(to - from));
	}
	if (r < 0 || !cell_bound(c, s->floor))
		return r;
	if (current)
		older--;
	r = edit_put(s, from, s->floor);
	for (const struct version *v = c->v; r == 0 && v <= older && !whole; v++)
		r = version_put(s->tx, c, v, from, to);
	if (r < 0)
		return r;
	if (s->edit[s->i].sums || s->edit[s->i].shared)
		return edit_put(s, to, stamp);
	return older->hole ? 0 : piece_put(s->tx, s->ino, stamp, from, (uint32_t)(to - from), 0, NULL);
}

/* Will a record be written under the key of C's last version, by its first part or by an edit that begins with it? */
static bool cell_stays(const struct edits *s, const struct cell *c)
{
	const struct extent_edit *e = &s->edit[s->i];

	if (s->i == s->n || e->first > c->first)
		return s->i < s->n;
	return e->first == c->first && s->run == c->first && (e->sums || e->shared) &&
	       c->v[c->versions - 1].stamp == s->floor;
}

/* All edits that meet C. */
static int cell_edit(struct edits *s, const struct cell *c)
{
	uint64_t pos = c->first, end = c->first + c->count;
	uint32_t stamp = c->v[c->versions - 1].stamp;
	int r = 0;

	/* nothing takes its place, or what does has another key */
	if (stamp >= s->floor && !cell_stays(s, c)) {
		struct fs_key key = {.ino = c->ino, .type = KEY_EXTENT, .off = c->first, .snap = stamp};

		r = tx_delete_any(s->tx, &key);
	}
	while (r == 0 && pos < end) {
		const struct extent_edit *e = s->i < s->n ? &s->edit[s->i] : NULL;
		uint64_t stop = end;

		if (!e || e->first > pos) {
			if (e && e->first < end)
				stop = e->first;
			for (unsigned v = 0; v < c->versions && r == 0; v++)
				r = version_put(s->tx, c, &c->v[v], pos, stop);
		} else {
			if (edit_end(e) < end)
				stop = edit_end(e);
			r = cell_edit_part(s, c, pos, stop);
			if (r == 0 && stop == edit_end(e))
				r = edit_next(s);
		}
		pos = stop;
	}
	return r;
}

int extents_edit(struct tx *tx, uint64_t ino, const struct extent_edit *edit, unsigned n, uint64_t *dropped)
{
	struct edits s = {.tx = tx, .ino = ino, .edit = edit, .n = n, .floor = stamp_floor(tx, ino)};
	struct cell c;
	uint64_t at = 0;
	int r = 0;

	if (n > 0)
		s.run = edit[0].first;
	while (s.i < n) {
		if (at < edit[s.i].first)
			at = edit[s.i].first;
		r = cell_find(tx, ino, at, &c);
		if (r == -ENOENT) {
			c.first = UINT64_MAX;
			c.count = 0;
		} else if (r < 0) {
			return r;
		}
		for (r = 0; r == 0 && s.i < n && edit_end(&edit[s.i]) <= c.first;)
			r = edit_next(&s);
		if (r == 0 && s.i < n && edit[s.i].first < c.first + c.count)
			r = cell_edit(&s, &c);
		if (r < 0)
			return r;
		at = c.first + c.count;
	}
	*dropped += s.dropped;
	return 0;
}

int extents_remove(struct tx *tx, uint64_t ino, uint64_t from, uint64_t *to, unsigned limit, uint64_t *dropped)
{
	for (unsigned i = 0; i<limit && * to> from; i++) {
		struct extent_edit edit = {.first = from};
		struct edits s = {.tx = tx, .ino = ino, .edit = &edit, .n = 1, .floor = stamp_floor(tx, ino)};
		struct cell c;
		int r = cell_before(tx, ino, *to, &c);

		if (r == -ENOENT || (r == 0 && c.first + c.count <= from)) {
			*to = from;
			break;
		}
		if (r < 0)
			return r;
		if (c.first > from)
			edit.first = c.first;
		edit.count = (c.first + c.count < *to ? c.first + c.count : *to) - edit.first;
		s.run = edit.first;
		r = c.v[c.versions - 1].hole ? 0 : cell_edit(&s, &c);
		if (r < 0)
			return r;
		*dropped += s.dropped;
		*to = edit.first;
	}
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Moves
 */

/* The move of block BLOCK of V, if it still is where it was found. The moves are in order of block. */
static const struct extent_move *move_find(
	const struct cell *c, const struct version *v, uint64_t block, const struct extent_move *move, unsigned n)
{
	const struct extent e = {.sums = v->sums};
	unsigned lo = 0;

	if (v->hole || v->shared)
		return NULL;
	for (unsigned hi = n; lo < hi;) {
		unsigned mid = (lo + hi) / 2;

		if (move[mid].file_block < block)
			lo = mid + 1;
		else
			hi = mid;
	}
	for (; lo < n && move[lo].file_block == block; lo++)
		if (move[lo].from == v->block + (block - c->first) &&
			move[lo].sum == extent_sum(&e, (uint32_t)(block - c->first)))
			return &move[lo];
	return NULL;
}

static int cell_move(struct tx *tx, const struct cell *c, const struct extent_move *move, unsigned n, unsigned *moved)
{
	bool cut[EXTENT_BLOCKS_MAX + 1] = {[0] = true};
	unsigned found = 0;
	int r;

	if (c->count > EXTENT_BLOCKS_MAX)
		return 0; /* it has no blocks of its own */
	for (unsigned v = 0; v < c->versions; v++) {
		uint64_t expected = 0;

		if (c->v[v].hole || c->v[v].shared)
			continue;
		for (uint32_t b = 0; b < c->count; b++) {
			const struct extent_move *m = move_find(c, &c->v[v], c->first + b, move, n);
			uint64_t at = m ? m->to : c->v[v].block + b;

			found += m != NULL;
			if (b > 0 && at != expected)
				cut[b] = true;
			expected = at + 1;
		}
	}
	if (!found)
		return 0;
	*moved += found;
	cut[c->count] = true;
	for (unsigned v = 0; v < c->versions; v++) {
		const struct version *ver = &c->v[v];

		for (uint32_t from = 0, to; from < c->count; from = to) {
			uint64_t first = c->first + from;
			const struct extent_move *m = move_find(c, ver, first, move, n);

			for (to = from + 1; !cut[to]; to++)
				;
			if (ver->shared) {
				r = version_put(tx, c, ver, first, c->first + to);
				if (r < 0)
					return r;
				continue;
			}
			r = piece_put(tx, c->ino, ver->stamp, first, to - from, m ? m->to : ver->block + from,
				ver->hole ? NULL : ver->sums + (size_t)from * 4);
			if (r == 0 && m)
				r = tx_blocks_drop(tx, ver->block + from, to - from);
			if (r == 0 && m)
				r = tx_blocks_add(tx, m->to, to - from);
			if (r == 0 && m)
				r = tx_summary_add(tx, m->to, to - from, c->ino, first);
			if (r < 0)
				return r;
		}
	}
	return 0;
}

int extents_move(struct tx *tx, uint64_t ino, const struct extent_move *move, unsigned n, unsigned *moved)
{
	for (unsigned i = 0; i < n;) {
		struct cell c;
		unsigned end = i;
		int r = cell_find(tx, ino, move[i].file_block, &c);

		if (r == -ENOENT)
			return 0;
		if (r < 0)
			return r;
		while (i < n && move[i].file_block < c.first)
			i++;
		for (end = i; end < n && move[end].file_block - c.first < c.count; end++)
			;
		if (end > i)
			r = cell_move(tx, &c, move + i, end - i, moved);
		if (r < 0)
			return r;
		i = end;
	}
	return 0;
}

int extents_owned(struct tx *tx, uint64_t ino, uint64_t *block, uint64_t end, extent_owned_fn *fn, void *arg)
{
	while (*block < end) {
		struct cell c;
		int r = cell_find(tx, ino, *block, &c);

		if (r == -ENOENT || (r == 0 && c.first >= end)) {
			*block = end;
			return 0;
		}
		if (r < 0)
			return r;
		if (*block < c.first)
			*block = c.first;
		for (; *block < end && *block < c.first + c.count; ++*block)
			for (unsigned v = 0; v < c.versions; v++) {
				uint32_t at = (uint32_t)(*block - c.first);
				struct extent e = {.sums = c.v[v].sums};

				if (!c.v[v].hole && !c.v[v].shared &&
					!fn(arg, *block, c.v[v].block + at, extent_sum(&e, at)))
					return 0;
			}
	}
	return 0;
}

int extents_alone(struct tx *tx, uint64_t ino, uint64_t block, uint64_t *end, bool *alone)
{
	struct cell c;
	const struct version *last;
	int r = cell_find(tx, ino, block, &c);

	*alone = false;
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (c.first > block) {
		*end = c.first < *end ? c.first : *end;
		return 0;
	}
	if (c.first + c.count < *end)
		*end = c.first + c.count;
	last = &c.v[c.versions - 1];
	*alone = !last->hole && !last->shared && last->stamp >= stamp_floor(tx, ino);
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Sharing
 */

/* The version of C that has at most stamp LIMIT; NULL: none, or it has no blocks of its own. */
static const struct version *version_seen(const struct cell *c, uint32_t limit)
{
	unsigned n = c->versions;

	while (n > 0 && c->v[n - 1].stamp > limit)
		n--;
	return n == 0 || c->v[n - 1].hole || c->v[n - 1].shared ? NULL : &c->v[n - 1];
}

/* The blocks of V get numbers from SHARE on. */
static int version_share(struct tx *tx, const struct cell *c, const struct version *v, uint64_t share)
{
	int r = piece_put(tx, FS_SHARED_INO, 0, share, c->count, v->block, v->sums);

	if (r == 0)
		r = tx_summary_add(tx, v->block, c->count, FS_SHARED_INO, share);
	return r < 0 ? r : ref_put(tx, c->ino, v->stamp, c->first, c->count, share);
}

int extents_share(struct tx *tx, uint64_t ino, uint32_t snap, uint64_t *block, uint64_t end, unsigned limit)
{
	uint64_t base, share;
	int r = share_end(tx, &base);

	share = base;
	for (unsigned i = 0; r == 0 && i < limit && *block < end; i++) {
		const struct version *v;
		struct cell c;

		r = cell_find(tx, ino, *block, &c);
		if (r == -ENOENT || (r == 0 && c.first >= end)) {
			*block = end;
			r = 0;
			break;
		}
		if (r < 0)
			return r;
		v = version_seen(&c, snap ? snap - 1 : fs_stamp(tx_fs(tx)));
		if (v) {
			if (c.count > EXTENT_END - share)
				return -ENOSPC;
			r = version_share(tx, &c, v, share);
			share += c.count;
		}
		*block = c.first + c.count;
	}
	return r < 0 ? r : share_new(tx, base, share - base);
}
