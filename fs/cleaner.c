/*
 * The cleaner: empties sparse data stripes, so that there are whole free ones to write to.
 *
 * Overwriting and deleting leave holes, and only a stripe without anything live is free. While free
 * stripes are few (space_low()), a fiber of its own goes in rounds:
 *
 *   choose   the sparsest stripes that nobody fills
 *   find     their blocks' owners by KEY_SUMMARY; that is a hint, and the owner's extent decides
 *   move     read the blocks (verified), write them in order of file and block into rows of the
 *            cleaner's own, and let one transaction point the extents to the new places where they
 *            still are as they were found
 *   free     when that transaction is durable the emptied stripes are free (space.c)
 *
 * While there is time only stripes that are a quarter holes are worth it; when writers would have to
 * wait, every one with a hole in 32 blocks or so. The cleaner has a small reserve of stripes, so that it
 * can begin on a full file system. Clients wait for it only when they need the space (cleaner_wait()),
 * and only until there is some.
 *
 * It comes to an end, with space or without. A round is begun only if there are rows for all that it
 * moves, and if it gains a row at least: the holes of what it empties, less the padding of its last row.
 * So without others' writes there are only so many rounds. When there is none to begin and somebody
 * waits, a checkpoint empties sparse stripes of nodes, and then it goes on only if fewer stripes are in
 * use than after all earlier checkpoints of this pass. Who waited for a pass that began after he came
 * and finds no room then need not wait for another one.
 *
 * A stripe with live blocks that no summary explains stays as it is, and is left alone until its
 * count changes. Blocks that cannot be read stay where they are too: fs check tells of them.
 */
#include "fs/inode_internal.h"

#define ITEMS 512u  /* blocks moved by one transaction */
#define OWNERS 512u /* summaries of one stripe looked at in one go */
#define VICTIMS 16u /* stripes chosen at a time */
#define READERS 8u
#define RUNS 64u
#define IDLE_ROUNDS 4u /* that gain nothing, and it is given up */

struct item {
	uint64_t ino, file_block, from, to;
	uint32_t sum;
	struct slice data;
};
struct owner {
	uint64_t ino, file_block;
	uint32_t count;
};
struct round {
	struct fs *fs;
	struct item item[ITEMS];
	struct owner owner[OWNERS];
	struct slice slice[ITEMS + 64];
	struct buf *buf[ITEMS * BLOCK_BYTES / BUF_MAX];
	struct row_run run[RUNS];
	struct extent_move move[ITEMS];
	unsigned moved;
	uint64_t seq, written;			    /* of the last transaction; blocks of rows filled in this round */
	unsigned items, found, limit, owners, runs; /* limit: of items, by the rows that there are */
	uint64_t bad;				    /* a stripe that cannot be read, or is not in the tree */
	/* of the stripe that is looked at */
	uint64_t stripe;
	struct fs_key next, found_next; /* summaries from here on are to be seen */
	unsigned at;			/* owner that is looked at */
	uint64_t at_block;		/* its blocks before this one are done */
	bool more;
	/* reading side by side */
	unsigned next_item;
	struct wait_group group;
};

/* ------------------------------------------------------------------------------------------------
 * Finding
 */

static int owners_pass(struct tx *tx, void *arg)
{
	struct round *r = arg;
	uint64_t blocks = tx_fs(tx)->space.stripe_blocks, end = (r->stripe + 1) * blocks;
	struct fs_key key = r->next;

	r->owners = 0;
	r->more = true;
	while (r->owners + SUMMARY_MAX <= OWNERS) {
		const void *val;
		size_t len;
		int rc = tx_next(tx, &key, &val, &len);
		if (rc == -ENOENT || (!rc && (key.ino || key.type != KEY_SUMMARY || key.off >= end))) {
			r->more = false;
			return 0;
		}
		if (rc)
			return rc;
		for (unsigned i = 0; i < summary_runs(len); i++) {
			struct summary_disk d = summary_run(val, i);
			r->owner[r->owners++] =
				(struct owner){le64_get(d.ino), le64_get(d.file_block), le16_get(d.count)};
		}
		key.snap++; /* the one of FS_SHARED_INO may stand beside it */
		r->found_next = key;
	}
	return 0;
}

/* A block of the owner's, in any version of its extents. */
static bool item_add(void *arg, uint64_t file_block, uint64_t block, uint32_t sum)
{
	struct round *r = arg;
	struct item *i = &r->item[r->found];

	if (block / r->fs->space.stripe_blocks != r->stripe)
		return true;
	if (r->found == r->limit)
		return false;
	*i = (struct item){.ino = r->owner[r->at].ino, .file_block = file_block, .from = block, .sum = sum};
	r->found++;
	return true;
}

/* Blocks of the owner's extents that lie in the stripe, from at_block on, as long as there is room. */
static int items_pass(struct tx *tx, void *arg)
{
	struct round *r = arg;
	const struct owner *o = &r->owner[r->at];
	uint64_t block = r->at_block;

	r->found = r->items;
	int rc = extents_owned(tx, o->ino, &block, o->file_block + o->count, item_add, r);
	if (rc)
		return rc;
	r->items = r->found;
	r->at_block = block;
	return 0;
}

/* Collects blocks of one stripe behind those that there are; true when it has seen all of it. */
static int stripe_collect(struct round *r, bool *all)
{
	*all = false;
	while (r->items < r->limit) {
		if (r->at == r->owners) {
			if (!r->more) {
				*all = true;
				return 0;
			}
			int rc = fs_view(r->fs, owners_pass, r);
			if (rc)
				return rc;
			r->at = 0;
			if (!r->owners)
				continue;
			r->next = r->found_next;
			r->at_block = r->owner[0].file_block;
		}
		int rc = fs_view(r->fs, items_pass, r);
		if (rc)
			return rc;
		if (r->at_block >= r->owner[r->at].file_block + r->owner[r->at].count && ++r->at < r->owners)
			r->at_block = r->owner[r->at].file_block;
	}
	return 0;
}

static int item_compare(const void *va, const void *vb)
{
	const struct item *a = va, *b = vb;
	if (a->ino != b->ino)
		return a->ino < b->ino ? -1 : 1;
	if (a->file_block != b->file_block)
		return a->file_block < b->file_block ? -1 : 1;
	if (a->from != b->from)
		return a->from < b->from ? -1 : 1;
	return 0;
}

/* In order of file and block, each once (two hints may have led to it). */
static void items_sort(struct round *r)
{
	unsigned n = 0;

	qsort(r->item, r->items, sizeof(r->item[0]), item_compare);
	for (unsigned i = 0; i < r->items; i++)
		if (!n || item_compare(&r->item[n - 1], &r->item[i]))
			r->item[n++] = r->item[i];
	r->items = n;
	for (unsigned i = 0; i < n; i++)
		r->item[i].data =
			(struct slice){r->buf[i * BLOCK_BYTES / BUF_MAX], i * BLOCK_BYTES % BUF_MAX, BLOCK_BYTES};
}

/* ------------------------------------------------------------------------------------------------
 * Moving
 */

/* Reads runs of items that lie one after the other, until none is left; some of these run side by side. */
static int items_read_loop(struct round *r)
{
	while (r->next_item < r->items) {
		struct item *i = &r->item[r->next_item];
		uint32_t sum[64];
		struct slice to[64];
		uint32_t n = 0;
		while (n < 64 && r->next_item < r->items && i[n].ino == i->ino &&
			i[n].file_block == i->file_block + n && i[n].from == i->from + n) {
			sum[n] = i[n].sum;
			to[n] = i[n].data;
			n++;
			r->next_item++;
		}
		int rc = blocks_read_verified(r->fs, i->ino, i->file_block, i->from, n, sum, to, n);
		if (rc) {
			r->bad = i->from / r->fs->space.stripe_blocks;
			return rc;
		}
	}
	return 0;
}

static void items_reader(void *arg)
{
	struct round *r = arg;
	wait_group_done(&r->group, items_read_loop(r));
}

static int items_read(struct round *r)
{
	r->next_item = 0;
	wait_group_init(&r->group);
	for (unsigned i = 1; i < READERS && i < r->items; i++) {
		wait_group_add(&r->group, 1);
		if (fiber_spawn(items_reader, r)) {
			wait_group_done(&r->group, 0);
			break;
		}
	}
	int rc = items_read_loop(r), other = wait_group_wait(&r->group);
	return rc ? rc : other;
}

static int items_write(struct round *r)
{
	struct fs *fs = r->fs;
	const struct volume_geometry *g = &fs->geometry;

	for (unsigned first = 0; first < r->items;) {
		struct row_run *run = &r->run[r->runs];
		unsigned n = 0, left = r->items - first;
		if (r->runs == RUNS)
			return -ENOSPC;
		int rc = space_take_rows(fs, SPACE_CLEANER, (left + g->k - 1) / g->k, run);
		if (rc)
			return rc;
		r->runs++;
		r->written += (uint64_t)run->rows * g->k;
		for (uint32_t i = 0; i < run->rows * g->k; i++) {
			if (i >= left) {
				r->slice[n++] = (struct slice){buf_zero(), 0, BLOCK_BYTES};
				continue;
			}
			struct item *item = &r->item[first + i];
			item->to = run->stripe * volume_stripe_blocks(g) + (uint64_t)(i / run->rows) * g->strip_blocks +
				   run->row + i % run->rows;
			r->slice[n++] = item->data;
		}
		rc = volume_write_rows(fs->volume, run->stripe, run->row, run->rows, r->slice, n, VOLUME_DURABLE);
		if (rc)
			return rc;
		first += left < n ? left : n;
	}
	return 0;
}

static int move_pass(struct tx *tx, void *arg)
{
	struct round *r = arg;

	r->moved = 0;
	for (unsigned i = 0; i < r->items;) {
		uint64_t ino = r->item[i].ino;
		unsigned n = 0;
		for (; i < r->items && r->item[i].ino == ino; i++)
			r->move[n++] = (struct extent_move){
				r->item[i].file_block, r->item[i].from, r->item[i].to, r->item[i].sum};
		int rc = extents_move(tx, ino, r->move, n, &r->moved);
		if (rc)
			return rc;
	}
	return 0;
}

static int items_move(struct round *r)
{
	struct fs *fs = r->fs;

	if (!r->items)
		return 0;
	items_sort(r);
	r->runs = 0;
	int rc = items_write(r);
	if (!rc)
		rc = fs_transact(fs, move_pass, r, &r->seq);
	for (unsigned i = 0; i < r->items && !rc; i++)
		data_cache_move(fs, r->item[i].from, r->item[i].to, r->item[i].sum);
	for (unsigned i = 0; i < r->runs; i++)
		space_rows_done(fs, &r->run[i]);
	if (!rc)
		fs->cleaner.moved_blocks += r->moved;
	r->items = 0;
	return rc;
}

/* Collects and reads inside one read section, so that no checkpoint gives the blocks to somebody else meanwhile. */
static int collect_and_read(struct round *r, const uint64_t *victim, unsigned n, unsigned *done)
{
	unsigned phase = read_enter(r->fs->files);
	int rc = 0;

	r->bad = UINT64_MAX;
	while (!rc && *done < n && r->items < r->limit) {
		bool all;
		if (r->stripe != victim[*done]) {
			r->stripe = victim[*done];
			r->next = (struct fs_key){.type = KEY_SUMMARY, .off = r->stripe * r->fs->space.stripe_blocks};
			r->owners = r->at = 0;
			r->more = true;
		}
		rc = stripe_collect(r, &all);
		if (rc)
			r->bad = r->stripe;
		else if (all)
			++*done;
	}
	if (!rc && r->items) {
		items_sort(r);
		rc = items_read(r);
	}
	read_leave(r->fs->files, phase);
	return rc;
}

/* Do writers wait, or will they soon? */
static bool cleaner_urgent(const struct fs *fs)
{
	const struct cleaner *c = &fs->cleaner;
	return space_urgent(fs) || (c->waiters && (space_nodes_low(fs) || !space_has_room(fs, c->need, false)));
}

/* The stripes of a round: there are rows for all that lives in them, and it is less. 0: there is nothing to gain. */
static unsigned victims_choose(const struct fs *fs, uint64_t victim[VICTIMS])
{
	uint32_t all = fs->space.stripe_blocks, k = fs->geometry.k;
	uint32_t most = cleaner_urgent(fs) ? all - space_holes_worth(fs) : all - all / 4;
	unsigned n = space_victims(fs, STRIPE_DATA, most, victim, VICTIMS), take = 0;
	uint64_t live = 0, room = space_cleaner_blocks(fs);

	for (; take < n; take++) {
		uint64_t with = live + stripe_live(fs->space.table[victim[take]]);
		if ((with + k - 1) / k * k > room)
			break;
		live = with;
	}
	return (live + k - 1) / k * k < (uint64_t)take * all ? take : 0;
}

/*
 * One round; *EMPTIED stripes are free when it returns, and *GAINED blocks more than it filled. -ENOENT, without a
 * wait: there is nothing to gain.
 */
static int cleaner_round(struct fs *fs, struct round *r, unsigned *emptied, int64_t *gained)
{
	uint64_t victim[VICTIMS];
	uint32_t all = fs->space.stripe_blocks, k = fs->geometry.k;
	unsigned n = victims_choose(fs, victim), done = 0, moved = 0, times = 0;
	int rc = 0;

	*emptied = 0;
	*gained = 0;
	if (!n)
		return -ENOENT;
	r->items = 0;
	r->seq = r->written = 0;
	r->stripe = UINT64_MAX;
	while (!rc && done < n && !fs->failed && !fs->cleaner.stop) {
		uint64_t room = space_cleaner_blocks(fs);
		/* whole rows: only the last is padded */
		r->limit = room < ITEMS / k * k ? (unsigned)room : ITEMS / k * k;
		if (!r->limit)
			break;
		rc = collect_and_read(r, victim, n, &done);
		if (read_again(rc, &times)) {
			/* from the begin, with other memory */
			for (unsigned i = 0; i < sizeof(r->buf) / sizeof(r->buf[0]); i++)
				buf_renew(&r->buf[i], false);
			r->items = done = moved = 0;
			r->stripe = UINT64_MAX;
			rc = 0;
			continue;
		}
		if (!rc)
			rc = items_move(r);
		if (!rc)
			moved = done;
	}
	for (unsigned i = 0; i < n; i++) {
		uint32_t live;
		bool nodes;
		space_stripe_info(fs, victim[i], &live, &nodes);
		*emptied += live == 0;
		/* no summary leads to what is left, or it cannot be read */
		if (live && (i < moved || (rc == -EIO && (r->bad == victim[i] || (r->bad == UINT64_MAX && i <= done)))))
			space_stuck(fs, victim[i]);
	}
	*gained = (int64_t)*emptied * all - (int64_t)r->written;
	if (r->seq && log_wait(fs, r->seq) == 0)
		space_release_dropped(fs);
	/* its rows were used up: what was emptied gives more */
	return rc == -ENOSPC || rc == -EIO ? 0 : rc;
}

/* ------------------------------------------------------------------------------------------------
 * The fiber
 */

static void cleaner_pass(struct fs *fs)
{
	struct cleaner *c = &fs->cleaner;
	struct space *s = &fs->space;
	struct round *r = calloc(1, sizeof(*r));

	if (!r)
		return;
	r->fs = fs;
	for (unsigned i = 0; i < sizeof(r->buf) / sizeof(r->buf[0]); i++)
		r->buf[i] = buf_alloc(BUF_MAX);
	unsigned idle = 0;
	uint64_t least_used = UINT64_MAX;
	while (!c->stop && !fs->failed && (space_low(fs) || cleaner_urgent(fs))) {
		unsigned emptied = 0;
		int64_t gained = 0;
		bool urgent = cleaner_urgent(fs);
		int rc = cleaner_round(fs, r, &emptied, &gained);
		c->rounds++;
		c->freed_stripes += emptied;
		if (!rc && gained > 0) {
			idle = 0;
			wait_queue_wake_all(&c->done); /* who found room meanwhile need not wait for the end */
			continue;
		}
		/* others took its rows, or nothing explains what is left: such stripes are not chosen again */
		if (!rc && ++idle < IDLE_ROUNDS)
			continue;
		idle = 0;
		if (rc && rc != -ENOENT) {
			log_warning("fs", "cleaning stopped filesystem=%s error=%d", volume_name(fs->volume), rc);
			break;
		}
		if (!urgent || !c->waiters || s->stripes - s->free >= least_used) {
			c->stuck = rc == -ENOENT;
			c->stuck_urgent = urgent && c->waiters;
			c->stuck_live = s->live_data + s->live_nodes;
			c->stuck_free = s->free;
			c->stuck_changes = s->changes;
			break;
		}
		/* with a checkpoint sparse stripes of nodes come back, whatever one gained before */
		least_used = s->stripes - s->free;
		fs->checkpoint.stuck = UINT64_MAX;
		if (fs_checkpoint(fs))
			break;
		wait_queue_wake_all(&c->done);
	}
	for (unsigned i = 0; i < sizeof(r->buf) / sizeof(r->buf[0]); i++)
		buf_put(r->buf[i]);
	free(r);
}

static void cleaner_main(void *arg)
{
	struct fs *fs = arg;
	struct cleaner *c = &fs->cleaner;

	c->fiber = fiber_self();
	while (!c->stop) {
		if (c->wanted <= c->begun) {
			wait_queue_wait(&c->work, NEVER);
			continue;
		}
		c->begun++;
		c->stuck = false;
		cleaner_pass(fs);
		c->ended = c->begun;
		wait_queue_wake_all(&c->done);
	}
	c->fiber = NULL;
	c->started = false;
	wait_queue_wake_all(&c->done);
}

int cleaner_start(struct fs *fs)
{
	struct cleaner *c = &fs->cleaner;

	c->started = true;
	int rc = fiber_spawn(cleaner_main, fs);
	if (rc)
		c->started = false;
	else if (space_low(fs))
		cleaner_kick(fs);
	return rc;
}

void cleaner_stop(struct fs *fs)
{
	struct cleaner *c = &fs->cleaner;

	c->stop = true;
	wait_queue_wake_all(&c->work);
	while (c->started)
		wait_queue_wait(&c->done, NEVER);
}

/* Would it find the same as the last time, when nothing was to be gained? Nearly, for those who do not wait. */
static bool cleaner_hopeless(const struct fs *fs, bool exact)
{
	const struct cleaner *c = &fs->cleaner;
	const struct space *s = &fs->space;

	if (exact)
		return c->stuck && c->stuck_urgent && s->changes == c->stuck_changes;
	return c->stuck && s->dropped.count == 0 && s->free + s->stripes / 256 >= c->stuck_free &&
	       s->live_data + s->live_nodes + s->stripe_blocks / 4 > c->stuck_live &&
	       (c->stuck_urgent || !cleaner_urgent(fs));
}

void cleaner_kick(struct fs *fs)
{
	struct cleaner *c = &fs->cleaner;

	if (!c->started || c->wanted > c->begun || c->begun > c->ended || cleaner_hopeless(fs, false))
		return;
	c->wanted = c->begun + 1;
	wait_queue_wake_all(&c->work);
}

/* So that all who wait go on together, and share rows. */
#define WAIT_BLOCKS 64u
#define WAIT_MOST 4096u /* whoever wants more is not worth that all is cleaned */

int cleaner_wait(struct fs *fs, uint64_t blocks)
{
	struct cleaner *c = &fs->cleaner;

	if (!c->started || c->fiber == fiber_self())
		return 0;
	blocks = (blocks < WAIT_MOST ? blocks : WAIT_MOST) + WAIT_BLOCKS;
	if (cleaner_hopeless(fs, true))
		return fs->failed;
	if (c->need < blocks)
		c->need = blocks;
	c->waiters++;
	/* not the pass that runs: it may be past what is to be gained now */
	uint64_t ticket = c->begun + 1;
	if (c->wanted < ticket)
		c->wanted = ticket;
	wait_queue_wake_all(&c->work);
	while (c->started && !fs->failed && c->ended < ticket && !space_has_room(fs, blocks, false))
		wait_queue_wait(&c->done, NEVER);
	if (--c->waiters == 0)
		c->need = 0;
	return fs->failed;
}
