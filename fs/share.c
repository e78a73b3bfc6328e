/*
 * Shared blocks: what several files have in common after a clone.
 *
 * Each physical block has one owner. Of what is shared that is a hidden inode, FS_SHARED_INO, whose extents lie at
 * numbers that are given out one after the other; so the cleaner moves them, and scrubs and checks find them, as those
 * of any file. Files then have extents that refer to such numbers (EXTENT_SHARED) and know neither place nor
 * checksums. KEY_SHARE says of ranges of numbers how many records of extents refer to them, in whatever version: a
 * snapshot's record holds what it refers to as its own blocks would be held.
 *
 * Cutting a record in two changes no count. What does (clones, overwriting, deletion, the end of snapshots) calls
 * tx_share() while a pass runs; here, when the pass is through, the differences are added up and applied, since a pass
 * does not see what it queued and may meet the same numbers many times. Numbers that nobody refers to any more go in
 * the same transaction, with their extents and the live counts of the stripes: space comes back at once and exactly.
 *
 * Errors: -EIO when the counts do not cover what is referred to; fs check says so, and --repair counts anew.
 */
#include "fs/inode_internal.h"

struct segment {
	uint64_t first, end;
	int64_t delta;
};
struct edge {
	uint64_t at;
	int64_t delta;
};
struct resolve {
	struct tx *tx;
	struct segment *seg;
	unsigned n, i;
	struct segment out; /* not queued yet: refs in delta; end 0: none */
	struct extent_edit *gone;
	unsigned gones, gones_room;
};

static int edge_compare(const void *va, const void *vb)
{
	const struct edge *a = va, *b = vb;
	return a->at < b->at ? -1 : a->at > b->at;
}

/* The queued differences as ranges that do not meet, without those that add up to nothing. */
static int segments_make(struct resolve *r)
{
	const struct tx *tx = r->tx;
	struct edge *edge = malloc(2ul * tx->shares * sizeof(*edge));
	int64_t sum = 0;

	r->seg = malloc(2ul * tx->shares * sizeof(*r->seg));
	if (!edge || !r->seg) {
		free(edge);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < tx->shares; i++) {
		edge[2ul * i] = (struct edge){tx->share[i].first, tx->share[i].delta};
		edge[2ul * i + 1] = (struct edge){tx->share[i].end, -(int64_t)tx->share[i].delta};
	}
	qsort(edge, 2ul * tx->shares, sizeof(*edge), edge_compare);
	for (unsigned i = 0; i < 2 * tx->shares; i++) {
		struct segment *last = r->n ? &r->seg[r->n - 1] : NULL;

		if (sum && edge[i].at > edge[i - 1].at) {
			if (last && last->end == edge[i - 1].at && last->delta == sum)
				last->end = edge[i].at;
			else
				r->seg[r->n++] = (struct segment){edge[i - 1].at, edge[i].at, sum};
		}
		sum += edge[i].delta;
	}
	free(edge);
	return 0;
}

static int gone_add(struct resolve *r, uint64_t first, uint64_t end)
{
	struct extent_edit *last = r->gones ? &r->gone[r->gones - 1] : NULL;

	if (last && last->first + last->count == first) {
		last->count += end - first;
		return 0;
	}
	if (r->gones == r->gones_room) {
		unsigned room = 2 * r->gones_room + 16;
		struct extent_edit *gone = realloc(r->gone, room * sizeof(*gone));

		if (!gone)
			return -ENOMEM;
		r->gone = gone;
		r->gones_room = room;
	}
	r->gone[r->gones++] = (struct extent_edit){.first = first, .count = end - first};
	return 0;
}

static int out_flush(struct resolve *r)
{
	struct fs_key key = {.type = KEY_SHARE, .off = r->out.first};
	struct share_disk d = {.count = le64_put(r->out.end - r->out.first), .refs = le32_put((uint32_t)r->out.delta)};

	if (!r->out.end)
		return 0;
	r->out.end = 0;
	return tx_put(r->tx, &key, &d, sizeof(d));
}

/* FIRST..END has REFS references now. */
static int out_add(struct resolve *r, uint64_t first, uint64_t end, int64_t refs)
{
	int rc;

	if (first >= end)
		return 0;
	if (refs < 0 || refs > INT32_MAX)
		return refs < 0 ? -EIO : -EMLINK;
	if (refs == 0)
		return gone_add(r, first, end);
	if (r->out.end == first && r->out.delta == refs) {
		r->out.end = end;
		return 0;
	}
	rc = out_flush(r);
	r->out = (struct segment){first, end, refs};
	return rc;
}

int share_decode(const struct fs_key *key, const void *val, size_t len, uint64_t *end, uint32_t *refs)
{
	struct share_disk d;

	if (len != sizeof(d))
		return -EIO;
	memcpy(&d, val, sizeof(d));
	*end = key->off + le64_get(d.count);
	*refs = le32_get(d.refs);
	return *refs == 0 || *refs > INT32_MAX || *end <= key->off || *end > EXTENT_END ? -EIO : 0;
}

/* The record that has the next segment, and all segments in it. */
static int record_resolve(struct resolve *r)
{
	uint64_t cur = r->seg[r->i].first, end;
	struct fs_key key = {.type = KEY_SHARE, .off = cur};
	const void *val;
	uint32_t refs;
	size_t len;
	int rc = tx_prev(r->tx, &key, &val, &len);

	if (rc == 0 &&
		(key.ino || key.type != KEY_SHARE || share_decode(&key, val, len, &end, &refs) < 0 || end <= cur))
		rc = -ENOENT;
	if (rc == -ENOENT) {
		log_error("fs", "shared block that nobody counts block=%llu", (unsigned long long)cur);
		return -EIO;
	}
	if (rc == 0)
		rc = tx_delete(r->tx, &key); /* if nothing takes its place */
	for (cur = key.off; rc == 0 && cur < end;) {
		struct segment *seg = r->i < r->n && r->seg[r->i].first < end ? &r->seg[r->i] : NULL;
		uint64_t stop = end;

		if (!seg)
			return out_add(r, cur, end, refs);
		rc = out_add(r, cur, seg->first, refs);
		if (seg->end <= end) {
			stop = seg->end;
			r->i++;
		}
		if (rc == 0)
			rc = out_add(r, seg->first, stop, refs + seg->delta);
		cur = seg->first = stop;
	}
	return rc;
}

int shares_resolve(struct tx *tx)
{
	struct resolve r = {.tx = tx};
	uint64_t dropped = 0;
	int rc = segments_make(&r);

	while (rc == 0 && r.i < r.n)
		rc = record_resolve(&r);
	if (rc == 0)
		rc = out_flush(&r);
	if (rc == 0 && r.gones)
		rc = extents_edit(tx, FS_SHARED_INO, r.gone, r.gones, &dropped);
	free(r.seg);
	free(r.gone);
	return rc;
}

int share_end(struct tx *tx, uint64_t *end)
{
	struct fs_key key = {.type = KEY_SHARE, .off = UINT64_MAX, .snap = UINT32_MAX};
	struct fs_key extent = {.ino = FS_SHARED_INO, .type = KEY_EXTENT, .off = UINT64_MAX, .snap = UINT32_MAX};
	const void *val;
	uint32_t refs;
	struct extent e;
	size_t len;
	int r = tx_prev_any(tx, &key, &val, &len);

	*end = 0;
	if (r < 0 && r != -ENOENT)
		return r;
	if (r == 0 && key.ino == 0 && key.type == KEY_SHARE && share_decode(&key, val, len, end, &refs) < 0)
		return -EIO;
	r = tx_prev_any(tx, &extent, &val, &len);
	if (r == -ENOENT || (r == 0 && (extent.ino != FS_SHARED_INO || extent.type != KEY_EXTENT)))
		return 0;
	if (r == 0)
		r = extent_decode(&tx_fs(tx)->geometry, &extent, val, len, &e);
	if (r == 0 && e.first + e.count > *end)
		*end = e.first + e.count;
	return r;
}

int share_new(struct tx *tx, uint64_t first, uint64_t count)
{
	struct fs_key key = {.type = KEY_SHARE, .off = first};
	struct share_disk d = {.count = le64_put(count), .refs = le32_put(1)};

	if (count == 0)
		return 0;
	if (count > EXTENT_END - first)
		return -ENOSPC;
	return tx_put(tx, &key, &d, sizeof(d));
}
