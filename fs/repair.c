/*
 * fs repair: makes a damaged file system fit together again, offline, and says what it could not save.
 *
 *   look     the newest root record, the nodes below it, the log. A node that no copy has is cut out of the tree in
 *            memory; a record of the log that makes no sense is left out. Then every node and extent that is left is
 *            counted. Nothing was written so far
 *   space    stripes of data that count more than extents name have lost some of these. The summaries (KEY_SUMMARY)
 *            say whose the other blocks were: where they are exactly as many as are missing, the extents are made
 *            anew from them. Then the counts become what was counted. What holds blocks and was thought free is kept
 *            from being written to until then
 *   files    values that make no sense go; names, entries, inodes and their counts are made to agree; what has no
 *            name gets one in lost+found (repair_files.c)
 *   shared   references to shared blocks are counted anew
 *   owners   what extents have and no summary names gets one
 *   end      a checkpoint. All changes are ordinary transactions before, so a crash leaves a file system that is as
 *            before or partly repaired, and repair can be run again
 *
 * No wrong data: where blocks of a file are lost, the file gets references to shared blocks that nobody has. Reading
 * these is -EIO, fs check goes on to name them, and overwriting, cutting or deleting the file takes them away. Extents
 * made anew from summaries get the checksums of what lies there now, and are told by name.
 *
 * It runs without the upper half (fs_files is there for stamps and hashes only), on the reactor of the caller, who has
 * the volume for itself.
 */
#include <stdarg.h>
#include <stdio.h>

#include "fs/check_summary.h"
#include "fs/repair_internal.h"

#define DELTAS 4096u	  /* stripes whose counts change in one transaction */
#define SUMMARY_PASSES 4u /* the second finds something only where two extents began at one block */

void repair_say(struct repair *r, bool lost, const char *format, ...)
{
	char text[400];
	int prefix = r->view ? snprintf(text, sizeof(text), "snapshot %u: ", r->view) : 0;
	va_list args;

	va_start(args, format);
	vsnprintf(text + prefix, sizeof(text) - (size_t)prefix, format, args);
	va_end(args);
	if (lost)
		r->result->lost++;
	else
		r->result->repaired++;
	if (r->report)
		r->report(r->arg, text);
}

void repair_log_skip(struct fs *fs, uint64_t sequence, int error)
{
	repair_say(fs->repair, true, "log: transaction %llu cannot be done again: %s", ULL(sequence), strerror(-error));
}

static int repair_grow(void *array, unsigned *room, unsigned want, size_t size)
{
	void **at = array, *more;

	if (want <= *room)
		return 0;
	more = realloc(*at, 2ul * want * size);
	if (!more)
		return -ENOMEM;
	*at = more;
	*room = 2 * want;
	return 0;
}

int repair_walk(struct repair *r, const struct fs_key *from, repair_fn *fn)
{
	struct fs_key key = *from;

	for (;;) {
		int n = tree_next(r->fs, &key, r->value, sizeof(r->value)), rc;

		if (n < 0)
			return n == -ENOENT ? 0 : n;
		rc = fn(r, &key, (size_t)n);
		if (rc < 0)
			return rc;
		if (++key.snap == 0 && ++key.off == 0 && ++key.type == 0 && ++key.ino == 0)
			return 0;
		cache_trim(r->fs);
	}
}

struct raw {
	const struct fs_key *key;
	const void *val;
	size_t len;
	bool live;
};

static int raw_pass(struct tx *tx, void *arg)
{
	const struct raw *raw = arg;

	if (raw->live)
		return raw->val ? tx_put(tx, raw->key, raw->val, raw->len) : tx_delete(tx, raw->key);
	return raw->val ? tx_put_any(tx, raw->key, raw->val, raw->len) : tx_delete_any(tx, raw->key);
}

int repair_raw(struct repair *r, const struct fs_key *key, const void *val, size_t len)
{
	struct raw raw = {key, val, len, false};

	return fs_transact(r->fs, raw_pass, &raw, NULL);
}

int repair_put(struct repair *r, const struct fs_key *key, const void *val, size_t len)
{
	struct raw raw = {key, val, len, true};

	return r->view ? repair_view_put(r, key, val, len) : fs_transact(r->fs, raw_pass, &raw, NULL);
}

static int drop_pass(struct tx *tx, void *arg)
{
	const struct extent_edit *blocks = arg;

	return tx_blocks_drop(tx, blocks->first, (uint32_t)blocks->count);
}

int repair_drop(struct repair *r, const struct extent_edit *blocks)
{
	return fs_transact(r->fs, drop_pass, (void *)(uintptr_t)blocks, NULL);
}

/* Records that refer to blocks that nobody has. */
static int loss_mark(struct repair *r, const struct repair_loss *loss)
{
	int rc = 0;

	for (uint64_t at = 0; at < loss->count && rc == 0;) {
		uint64_t n = loss->count - at < EXTENT_REF_BLOCKS_MAX ? loss->count - at : EXTENT_REF_BLOCKS_MAX;
		struct fs_key key = {
			.ino = loss->ino, .type = KEY_EXTENT, .off = loss->first + at, .snap = loss->stamp};
		struct fs_key hide = {.ino = key.ino, .type = KEY_EXTENT, .off = key.off, .snap = loss->hide};
		struct extent_disk empty = {.count = le32_put((uint32_t)n), .flags = le32_put(EXTENT_HOLE)};
		struct {
			struct extent_disk head;
			le32 reserved;
		} d = {.head = {.block = le64_put(r->share_next),
			       .count = le32_put((uint32_t)n),
			       .flags = le32_put(EXTENT_SHARED)}};

		if (loss->hide)
			rc = repair_raw(r, &hide, &empty, sizeof(empty));
		if (rc == 0)
			rc = repair_raw(r, &key, &d, EXTENT_REF_BYTES);
		r->share_next += n;
		at += n;
	}
	return rc;
}

int repair_lose(struct repair *r, const struct repair_loss *loss)
{
	if (loss->count == 0)
		return 0;
	if (repair_grow(&r->loss, &r->losses_room, r->losses + 1, sizeof(*r->loss)) < 0)
		return -ENOMEM;
	r->loss[r->losses++] = *loss;
	return loss_mark(r, loss);
}

bool repair_extent_good(const struct repair *r, const struct fs_key *key, size_t len, struct extent *e)
{
	return extent_decode(&r->fs->geometry, key, r->value, len, e) == 0 &&
	       (key->ino != FS_SHARED_INO || (key->snap == 0 && !e->hole));
}

/* ------------------------------------------------------------------------------------------------
 * Nodes
 */

static void key_text(char *to, size_t room, const struct pkey *p)
{
	struct fs_key key = pkey_unpack(p);

	snprintf(to, room, "inode %llu type %u at %llx", ULL(key.ino), key.type, ULL(key.off));
}

/* Takes out of the tree, in memory, what cannot be read. */
static int nodes_cut(struct repair *r)
{
	struct pkey p = {{0}};

	for (;;) {
		struct tree_path path;
		int rc = tree_load(r->fs, &p);

		if (rc < 0 && rc != -EIO)
			return rc;
		if (rc == -EIO) {
			char from[80], to[80] = "the end";
			struct repair_gap gap;

			rc = tree_cut(r->fs, &p, &gap.from, &gap.to, &gap.has_to);
			if (rc == 0)
				rc = repair_grow(&r->gap, &r->gaps_room, r->gaps + 1, sizeof(gap));
			if (rc < 0)
				return rc;
			r->gap[r->gaps++] = gap;
			key_text(from, sizeof(from), &gap.from);
			if (gap.has_to)
				key_text(to, sizeof(to), &gap.to);
			repair_say(r, true, "a node of the tree is lost: what it held from %s to %s", from, to);
			if (!gap.has_to)
				return 0;
			p = gap.to;
			continue;
		}
		if (!tree_descend(r->fs, &p, &path))
			continue;
		if (!path.has_upper)
			return 0;
		p = path.upper;
		cache_trim(r->fs);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Counting
 */

/* Of the class that the stripe's other blocks have. */
static void live_add(struct repair *r, uint64_t block, enum stripe_class class)
{
	uint32_t *value = &r->live[block / r->fs->space.stripe_blocks];

	*value = (stripe_live(*value) + 1) | (uint32_t) class << STRIPE_CLASS_SHIFT;
	r->bitmap[block / 8] |= (uint8_t)(1u << block % 8);
}

static bool bit(const struct repair *r, uint64_t block)
{
	return r->bitmap[block / 8] >> block % 8 & 1;
}

static int count_extent(struct repair *r, const struct fs_key *key, size_t len)
{
	struct extent e;

	if (key->ino && key->snap > r->stamp)
		r->stamp = key->snap;
	if (key->ino == 0 || key->type != KEY_EXTENT || !repair_extent_good(r, key, len, &e) || e.hole || e.shared)
		return 0;
	for (uint64_t b = e.block; b < e.block + e.count; b++) {
		uint32_t stripe = r->live[b / r->fs->space.stripe_blocks];

		if (!bit(r, b) && !(stripe && stripe_class(stripe) == STRIPE_NODES))
			continue;
		if (repair_grow(&r->twice, &r->twices_room, r->twices + 1, sizeof(*key)) < 0)
			return -ENOMEM;
		r->twice[r->twices++] = *key;
		return 0;
	}
	for (uint64_t b = e.block; b < e.block + e.count; b++)
		live_add(r, b, STRIPE_DATA);
	return 0;
}

/* Nodes say themselves that they are: they are counted first, and where one is there is no data. */
static int count_node(void *arg, uint64_t block, unsigned blocks, unsigned level)
{
	struct repair *r = arg;

	(void)level;
	for (uint64_t b = block; b < block + blocks; b++)
		live_add(r, b, STRIPE_NODES);
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Extents from summaries
 */

struct claim {
	uint64_t ino, file_block, block;
};
struct claims {
	struct claim *of;
	unsigned n, room;
};

/* One block that a summary speaks of, unless an extent has it, or the file has another one there. */
static int claim_add(struct repair *r, struct claims *c, uint64_t ino, uint64_t file_block, uint64_t block)
{
	struct fs_key had = {.ino = ino, .type = KEY_EXTENT, .off = file_block, .snap = UINT32_MAX};
	uint8_t val[TREE_VALUE_MAX];
	struct extent e;
	int n;

	if (bit(r, block) || ino == 0 || file_block >= EXTENT_END)
		return 0;
	n = tree_prev(r->fs, &had, val, sizeof(val));
	if (n < 0 && n != -ENOENT)
		return n;
	if (n >= 0 && had.ino == ino && had.type == KEY_EXTENT &&
		extent_decode(&r->fs->geometry, &had, val, (size_t)n, &e) == 0 && file_block - e.first < e.count)
		return 0;
	if (repair_grow(&c->of, &c->room, c->n + 1, sizeof(*c->of)) < 0)
		return -ENOMEM;
	c->of[c->n++] = (struct claim){ino, file_block, block};
	return 0;
}

/* All of STRIPE. */
static int claims_collect(struct repair *r, uint64_t stripe, struct claims *c)
{
	uint64_t blocks = r->fs->space.stripe_blocks, end = (stripe + 1) * blocks;
	struct fs_key key = {.type = KEY_SUMMARY, .off = stripe * blocks};

	c->n = 0;
	for (;; key.snap++) {
		int n = tree_next(r->fs, &key, r->value, sizeof(r->value)), rc = 0;

		if (n == -ENOENT || (n >= 0 && (key.ino || key.type != KEY_SUMMARY || key.off >= end)))
			return 0;
		if (n < 0)
			return n;
		for (unsigned i = 0; i < summary_runs((size_t)n); i++) {
			struct summary_disk d = summary_run(r->value, i);
			uint64_t first = key.off + le16_get(d.ahead);

			for (uint32_t b = 0; b < le16_get(d.count) && first + b < end && rc == 0; b++)
				rc = claim_add(r, c, le64_get(d.ino), le64_get(d.file_block) + b, first + b);
		}
		if (rc < 0)
			return rc;
	}
}

static int claim_compare(const void *va, const void *vb)
{
	const struct claim *a = va, *b = vb;

	if (a->ino != b->ino)
		return a->ino < b->ino ? -1 : 1;
	if (a->file_block != b->file_block)
		return a->file_block < b->file_block ? -1 : 1;
	return a->block < b->block ? -1 : a->block > b->block;
}

/* Whoever sees the last version of the inode had these blocks; of other views that is not known. */
static int claim_stamp(struct repair *r, uint64_t ino, uint32_t *stamp)
{
	struct fs_key key = {.ino = ino, .type = KEY_INODE};
	uint8_t val[TREE_VALUE_MAX];
	int n = ino == FS_SHARED_INO ? 0 : repair_view_version(r, &key, val, sizeof(val));

	*stamp = n == -ENOENT ? fs_stamp_floor(r->fs) : key.snap;
	return n < 0 && n != -ENOENT ? n : 0;
}

/* One extent of the N claims, which follow each other. */
static int claim_make(struct repair *r, const struct claim *c, uint32_t n)
{
	struct {
		struct extent_disk head;
		le32 sum[EXTENT_BLOCKS_MAX];
	} d = {.head = {.block = le64_put(c->block), .count = le32_put(n)}};
	struct fs_key key = {.ino = c->ino, .type = KEY_EXTENT, .off = c->file_block};
	struct buf *buf = buf_alloc(BLOCK_BYTES);
	struct slice to = {buf, 0, BLOCK_BYTES};
	int rc = claim_stamp(r, c->ino, &key.snap);

	for (uint32_t i = 0; i < n && rc == 0; i++) {
		rc = volume_read(r->fs->volume, c->block + i, &to, 1);
		d.sum[i] = le32_put(checksum32(buf->data, BLOCK_BYTES));
	}
	buf_put(buf);
	if (rc < 0)
		return repair_lose(r, &(struct repair_loss){c->ino, c->file_block, n, key.snap, 0});
	for (uint64_t b = c->block; b < c->block + n; b++)
		live_add(r, b, STRIPE_DATA);
	repair_say(r, false,
		"inode %llu: blocks %llu to %llu are found by their stripe's summary; their checksums were lost",
		ULL(c->ino), ULL(c->file_block), ULL(c->file_block + n - 1));
	return repair_raw(r, &key, &d, sizeof(d.head) + 4ul * n);
}

static int stripe_rebuild(struct repair *r, uint64_t stripe, struct claims *c)
{
	uint32_t says = r->fs->space.table[stripe], missing = stripe_live(says) - stripe_live(r->live[stripe]);
	bool clear = true;
	int rc = claims_collect(r, stripe, c);

	if (rc < 0 || c->n == 0)
		return rc;
	qsort(c->of, c->n, sizeof(*c->of), claim_compare);
	for (unsigned i = 1; i < c->n; i++)
		if (c->of[i].ino == c->of[i - 1].ino && c->of[i].file_block == c->of[i - 1].file_block)
			clear = false;
	if (c->n != missing || !clear) {
		repair_say(r, true, "stripe %llu: %u blocks are named by no extent, and its summaries speak of %u",
			ULL(stripe), missing, c->n);
		return 0;
	}
	for (unsigned i = 0, n; i < c->n && rc == 0; i += n) {
		for (n = 1;
			i + n < c->n && n < EXTENT_BLOCKS_MAX && c->of[i + n].ino == c->of[i].ino &&
			c->of[i + n].file_block == c->of[i].file_block + n && c->of[i + n].block == c->of[i].block + n;
			n++)
			;
		rc = claim_make(r, &c->of[i], n);
	}
	return rc;
}

/* ------------------------------------------------------------------------------------------------
 * Counts of stripes
 */

struct deltas {
	struct repair *r;
	uint64_t next; /* stripe */
	bool clear;    /* first those of another class to 0 */
};

static int deltas_pass(struct tx *tx, void *arg)
{
	struct deltas *d = arg;
	const struct space *s = &tx_fs(tx)->space;
	unsigned n = 0;
	int rc = 0;

	for (; d->next < s->stripes && n < DELTAS && rc == 0; d->next++) {
		uint32_t is = s->table[d->next], want = d->r->live[d->next];
		uint32_t class = want ? stripe_class(want) : stripe_class(is);

		if (is == want)
			continue;
		if (d->clear && is && stripe_class(is) != class) {
			rc = tx_stripe_delta(tx, d->next, -(int32_t)stripe_live(is), stripe_class(is));
			n++;
		} else if (!d->clear) {
			rc = tx_stripe_delta(tx, d->next, (int32_t)stripe_live(want) - (int32_t)stripe_live(is),
				(enum stripe_class) class);
			n++;
		}
	}
	return rc;
}

static int counts_set(struct repair *r)
{
	struct space *s = &r->fs->space;
	int rc = 0;

	for (uint64_t i = 0; i < s->stripes; i++) {
		uint32_t want = r->live[i];

		if (s->table[i] != want)
			repair_say(r, false, "stripe %llu: said %u live blocks, has %u", ULL(i),
				stripe_live(s->table[i]), stripe_live(want));
	}
	for (int clear = 1; clear >= 0; clear--) {
		struct deltas d = {.r = r, .clear = clear};

		while (rc == 0 && d.next < s->stripes) {
			uint64_t from = d.next;
			do {
				d.next = from;
				rc = fs_transact(r->fs, deltas_pass, &d, NULL);
			} while (rc == -EAGAIN);
		}
	}
	return rc;
}

/* What the tree says of a stripe must be what the table has, also where that was never loaded. */
static int counts_values(struct repair *r, const struct fs_key *key, size_t len)
{
	const struct space *s = &r->fs->space;
	struct stripes_disk d, want = {0};

	if (key->ino || key->type > KEY_STRIPES)
		return -ECANCELED;
	if (key->type != KEY_STRIPES)
		return 0;
	if (key->off * STRIPES_PER_KEY >= s->stripes || key->snap) {
		repair_say(r, false, "counts of stripes that are not there: at %llu", ULL(key->off));
		return repair_raw(r, key, NULL, 0);
	}
	for (unsigned i = 0; i < STRIPES_PER_KEY && key->off * STRIPES_PER_KEY + i < s->stripes; i++)
		want.stripe[i] = le32_put(s->table[key->off * STRIPES_PER_KEY + i]);
	memcpy(&d, r->value, len < sizeof(d) ? len : sizeof(d));
	if (len == sizeof(d) && memcmp(&d, &want, sizeof(d)) == 0)
		return 0;
	repair_say(r, false, "counts of stripes %llu to %llu made no sense", ULL(key->off * STRIPES_PER_KEY),
		ULL(key->off * STRIPES_PER_KEY + STRIPES_PER_KEY - 1));
	return repair_raw(r, key, &want, sizeof(want));
}

static int repair_space(struct repair *r)
{
	struct space *s = &r->fs->space;
	struct claims claims = {0};
	int rc = 0;

	/* what holds something and is thought free is not to be written to */
	for (uint64_t i = 0; i < s->stripes; i++)
		if (r->live[i] && !s->table[i])
			space_guard(r->fs, i, true);
	for (uint64_t i = 0; i < s->stripes && rc == 0; i++)
		if (stripe_class(s->table[i]) == STRIPE_DATA && stripe_live(s->table[i]) > stripe_live(r->live[i]) &&
			(!r->live[i] || stripe_class(r->live[i]) == STRIPE_DATA))
			rc = stripe_rebuild(r, i, &claims);
	free(claims.of);
	if (rc == 0)
		rc = counts_set(r);
	for (uint64_t i = 0; i < s->stripes; i++)
		space_guard(r->fs, i, false);
	if (rc == 0)
		rc = repair_walk(r, &(struct fs_key){0}, counts_values);
	return rc == -ECANCELED ? 0 : rc;
}

/* ------------------------------------------------------------------------------------------------
 * Losses
 */

/* An extent whose blocks another one has too, or the tree. */
static int twice_lose(struct repair *r, const struct fs_key *key)
{
	struct extent e;
	int n = tree_get(r->fs, key, r->value, sizeof(r->value));

	if (n < 0 || !repair_extent_good(r, key, (size_t)n, &e))
		return n < 0 && n != -ENOENT ? n : 0;
	repair_say(r, true, "inode %llu: blocks %llu to %llu are lost: something else has their places", ULL(key->ino),
		ULL(e.first), ULL(e.first + e.count - 1));
	n = repair_raw(r, key, NULL, 0);
	return n < 0 || key->ino == FS_SHARED_INO
		       ? n
		       : repair_lose(r, &(struct repair_loss){key->ino, e.first, e.count, key->snap, 0});
}

/* ------------------------------------------------------------------------------------------------
 * Shared blocks
 */

struct repair_counting {
	struct share_edge {
		uint64_t at;
		int64_t delta;
	} * edge;
	unsigned edges, room;
};
static int counting_ref(struct repair_counting *c, uint64_t first, uint64_t count)
{
	if (repair_grow(&c->edge, &c->room, c->edges + 2, sizeof(*c->edge)) < 0)
		return -ENOMEM;
	c->edge[c->edges++] = (struct share_edge){first, 1};
	c->edge[c->edges++] = (struct share_edge){first + count, -1};
	return 0;
}

static int edge_compare(const void *va, const void *vb)
{
	const struct share_edge *a = va, *b = vb;

	return a->at < b->at ? -1 : a->at > b->at;
}

/* The records as they are to be, compared with those that are there; then the others go. */
static int shares_write(struct repair *r, const struct repair_counting *c)
{
	struct fs_key key = {.type = KEY_SHARE};
	int64_t refs = 0;
	unsigned wrong = 0;
	int rc = 0;

	for (unsigned i = 0; i < c->edges && rc == 0; i++) {
		uint64_t from = c->edge[i].at, to = i + 1 < c->edges ? c->edge[i + 1].at : from;
		struct share_disk want, is;

		refs += c->edge[i].delta;
		if (to == from || refs == 0)
			continue;
		want = (struct share_disk){.count = le64_put(to - from), .refs = le32_put((uint32_t)refs)};
		/* those that begin before it are none */
		for (;;) {
			struct fs_key at = key;
			int n = tree_next(r->fs, &at, &is, sizeof(is));

			if (n < 0 && n != -ENOENT)
				return n;
			if (n == -ENOENT || at.ino || at.type != KEY_SHARE || at.off > from)
				break;
			if (at.off == from && n == (int)sizeof(is) && memcmp(&is, &want, sizeof(is)) == 0)
				goto same;
			if (at.off == from)
				break;
			wrong++;
			rc = repair_raw(r, &at, NULL, 0);
			if (rc < 0)
				return rc;
		}
		wrong++;
		rc = repair_raw(r, &(struct fs_key){.type = KEY_SHARE, .off = from}, &want, sizeof(want));
	same:
		key.off = from + 1;
	}
	for (; rc == 0;) {
		struct fs_key at = key;
		int n = tree_next(r->fs, &at, r->value, sizeof(r->value));

		if (n == -ENOENT || (n >= 0 && (at.ino || at.type != KEY_SHARE)))
			break;
		wrong++;
		rc = n < 0 ? n : repair_raw(r, &at, NULL, 0);
	}
	if (wrong)
		repair_say(r, false, "shared blocks: %u counts of references were wrong", wrong);
	return rc;
}

static int refs_pass(struct tx *tx, void *arg)
{
	const struct extent_edit *hole = arg;
	uint64_t dropped = 0;

	return extents_edit(tx, FS_SHARED_INO, hole, 1, &dropped);
}

/* Extents of shared blocks that nobody refers to. */
static int owners_trim(struct repair *r, const struct repair_counting *c)
{
	struct fs_key key = {.ino = FS_SHARED_INO, .type = KEY_EXTENT};
	unsigned i = 0;
	int64_t refs = 0;

	for (;;) {
		int n = tree_next(r->fs, &key, r->value, sizeof(r->value)), rc = 0;
		struct extent e;

		if (n == -ENOENT || (n >= 0 && (key.ino != FS_SHARED_INO || key.type != KEY_EXTENT)))
			return 0;
		if (n < 0)
			return n;
		if (!repair_extent_good(r, &key, (size_t)n, &e))
			return -EIO;
		for (uint64_t at = e.first; at < e.first + e.count && rc == 0;) {
			uint64_t end = e.first + e.count;
			struct extent_edit hole = {.first = at};

			for (; i < c->edges && c->edge[i].at <= at; i++)
				refs += c->edge[i].delta;
			if (i < c->edges && c->edge[i].at < end)
				end = c->edge[i].at;
			hole.count = end - at;
			at = end;
			if (refs > 0)
				continue;
			repair_say(r, false, "shared blocks %llu to %llu: nobody referred to them, freed",
				ULL(hole.first), ULL(end - 1));
			rc = fs_transact(r->fs, refs_pass, &hole, NULL);
		}
		if (rc < 0)
			return rc;
		key.off = e.first + e.count;
		key.snap = 0;
	}
}

static int count_ref(struct repair *r, const struct fs_key *key, size_t len)
{
	struct extent e;

	if (key->ino == 0 || key->ino == FS_SHARED_INO || key->type != KEY_EXTENT ||
		!repair_extent_good(r, key, len, &e) || !e.shared)
		return 0;
	return counting_ref(r->counting, e.block, e.count);
}

static int repair_shares(struct repair *r)
{
	struct repair_counting c = {NULL, 0, 0};
	int rc;

	r->counting = &c;
	rc = repair_walk(r, &(struct fs_key){.ino = 1}, count_ref);
	if (c.edges)
		qsort(c.edge, c.edges, sizeof(*c.edge), edge_compare);
	if (rc == 0)
		rc = shares_write(r, &c);
	if (rc == 0)
		rc = owners_trim(r, &c);
	free(c.edge);
	return rc;
}

/* ------------------------------------------------------------------------------------------------
 * Summaries
 */

static int summary_see(struct repair *r, const struct fs_key *key, size_t len)
{
	if (key->ino || key->type > KEY_SUMMARY)
		return -ECANCELED;
	if (key->type != KEY_SUMMARY)
		return 0;
	return summaries_seen(r->summaries, r->fs, key, r->value, len);
}

/* COUNT blocks of one stripe from BLOCK on are those of INO from FILE_BLOCK on: beside what is said there of others. */
static int summary_make(struct repair *r, uint64_t ino, uint64_t file_block, uint64_t block, uint32_t count)
{
	struct fs_key key = {.type = KEY_SUMMARY, .off = block, .snap = ino == FS_SHARED_INO};
	struct summary_disk run[SUMMARY_MAX];
	int n = tree_get(r->fs, &key, run, sizeof(run));
	unsigned runs = n < 0 ? 0 : summary_runs((size_t)n), at = 0;

	if (n < 0 && n != -ENOENT)
		return n;
	/* who is said to have this very block has it no longer */
	while (at < runs && le16_get(run[at].ahead))
		at++;
	if (at == SUMMARY_MAX)
		at--;
	run[at] = (struct summary_disk){
		.ino = le64_put(ino), .file_block = le64_put(file_block), .count = le16_put((uint16_t)count)};
	return repair_raw(r, &key, run, (at < runs ? runs : at + 1) * sizeof(run[0]));
}

static int extent_name(struct repair *r, const struct fs_key *key, size_t len)
{
	uint64_t per = r->fs->space.stripe_blocks, missing;
	struct extent e;
	int rc;

	if (key->ino == 0 || key->type != KEY_EXTENT || !repair_extent_good(r, key, len, &e) || e.hole || e.shared)
		return 0;
	rc = summaries_missing(r->summaries, r->fs, key, &e, &missing);
	if (rc <= 0)
		return rc;
	repair_say(r, false, "inode %llu: blocks %llu to %llu were not in the summary of stripe %llu", ULL(key->ino),
		ULL(e.first), ULL(e.first + e.count - 1), ULL(e.block / per));
	rc = 0;
	for (uint32_t i = 0, n; i < e.count && rc == 0; i += n) {
		n = (uint32_t)(per - (e.block + i) % per);
		n = n < e.count - i ? n : e.count - i;
		rc = summary_make(r, key->ino, e.first + i, e.block + i, n);
	}
	return rc;
}

/* A run that takes another's place may leave blocks without a name: these get one in the next pass. */
static int repair_summaries(struct repair *r)
{
	uint64_t before = r->result->repaired + 1;
	int rc = 0;

	for (unsigned i = 0; i < SUMMARY_PASSES && rc == 0 && r->result->repaired != before; i++) {
		struct check_summaries summaries = {0};

		before = r->result->repaired;
		r->summaries = &summaries;
		rc = repair_walk(r, &(struct fs_key){0}, summary_see);
		if (rc == 0 || rc == -ECANCELED)
			rc = repair_walk(r, &(struct fs_key){.ino = 1}, extent_name);
		summaries_free(&summaries);
	}
	return rc;
}

/* ------------------------------------------------------------------------------------------------
 * The whole of it
 */

static int share_last(struct repair *r, const struct fs_key *key, size_t len)
{
	struct extent e;
	uint64_t end = 0;
	uint32_t refs;

	if (key->ino == 0 && key->type == KEY_SHARE && share_decode(key, r->value, len, &end, &refs) < 0)
		end = 0;
	if (key->ino && key->type == KEY_EXTENT && repair_extent_good(r, key, len, &e)) {
		if (key->ino == FS_SHARED_INO)
			end = e.first + e.count;
		else if (e.shared)
			end = e.block + e.count;
	}
	if (end > r->share_next)
		r->share_next = end;
	return 0;
}

int repair_look(struct fs *fs)
{
	struct repair *r = fs->repair;

	r->fs = fs;
	return nodes_cut(r);
}

/* The number of the newest snapshot, and which are kept: before anything is written by version. */
static int stamps_look(struct repair *r, const struct fs_key *key, size_t len)
{
	struct fs_files *files = r->fs->files;
	uint64_t created;
	const char *name;
	uint8_t state;
	size_t n;

	if (key->ino || key->type > KEY_SNAPSHOT)
		return -ECANCELED;
	if (key->type != KEY_SNAPSHOT)
		return 0;
	if (key->off == 0 && len == sizeof(struct stamp_disk)) {
		struct stamp_disk d;

		memcpy(&d, r->value, sizeof(d));
		r->stamp_said = le32_get(d.stamp);
	} else if (key->off && key->off < UINT32_MAX &&
		   snapshot_decode(r->value, len, &state, &created, &name, &n) == 0) {
		if (key->off > files->stamp)
			files->stamp = (uint32_t)key->off;
		if (state == SNAPSHOT_KEPT && r->kept_count < FS_SNAPSHOTS_MAX)
			r->kept[r->kept_count++] = (uint32_t)key->off;
	}
	return 0;
}

static int repair_stamps(struct repair *r)
{
	struct fs_files *files = r->fs->files;
	int rc = repair_walk(r, &(struct fs_key){.type = KEY_SNAPSHOT}, stamps_look);

	if (r->stamp > files->stamp)
		files->stamp = r->stamp;
	if (r->stamp_said > files->stamp)
		files->stamp = r->stamp_said;
	files->floor = r->kept_count ? r->kept[r->kept_count - 1] : 0;
	return rc == -ECANCELED ? 0 : rc;
}

static int repair_run(struct repair *r)
{
	int rc = repair_walk(r, &(struct fs_key){0}, share_last);

	if (rc == 0)
		rc = tree_walk_nodes(r->fs, count_node, r);
	if (rc == 0)
		rc = repair_walk(r, &(struct fs_key){0}, count_extent);
	if (rc == 0)
		rc = repair_stamps(r);
	if (rc == 0)
		rc = repair_space(r);
	for (unsigned i = 0; i < r->twices && rc == 0; i++)
		rc = twice_lose(r, &r->twice[i]);
	if (rc == 0)
		rc = repair_values(r);
	if (rc == 0)
		rc = repair_names(r);
	if (rc == 0)
		rc = repair_shares(r);
	if (rc == 0)
		rc = repair_summaries(r);
	return rc;
}

static int repair_alloc(struct repair *r, const struct volume_geometry *g)
{
	uint64_t blocks = g->stripes * volume_stripe_blocks(g);

	r->bitmap = calloc(1, blocks / 8 + 1);
	r->live = calloc(g->stripes, sizeof(*r->live));
	return !r->bitmap || !r->live || htable_init(&r->inodes, 1024) < 0 ? -ENOMEM : 0;
}

static void repair_free(struct repair *r)
{
	if (r->inodes.bucket) {
		repair_inodes_free(r);
		htable_fini(&r->inodes);
	}
	free(r->gap);
	free(r->loss);
	free(r->twice);
	free(r->bitmap);
	free(r->live);
	free(r);
}

int fs_repair(struct volume *volume, fs_check_report_fn *report, void *arg, struct fs_repair_result *result,
	struct error *err)
{
	struct repair *r = calloc(1, sizeof(*r));
	struct fs *fs = NULL;
	int rc;

	memset(result, 0, sizeof(*result));
	if (!r)
		return error_set(err, -ENOMEM, "no memory");
	r->report = report;
	r->arg = arg;
	r->result = result;
	r->limit = UINT32_MAX;
	rc = repair_alloc(r, volume_geometry(volume));
	if (rc < 0)
		error_set(err, rc, "no memory");
	else
		rc = repair_mount(volume, r, &fs, err);
	if (rc == 0) {
		r->fs = fs;
		rc = repair_run(r);
		rc = repair_unmount(fs, rc);
		if (rc < 0)
			error_set(err, rc, "%s: the repair could not be finished: %s", volume_name(volume),
				strerror(-rc));
	}
	repair_free(r);
	return rc;
}
