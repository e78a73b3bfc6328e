/*
 * Space: which stripe holds what, and where the next rows go.
 *
 * The table in memory has four bytes per stripe: live blocks and class, as in KEY_STRIPES, from which
 * it is loaded. It changes in apply, together with the tree.
 *
 * A stripe is free when nothing in it is live, no rows of it are being filled, and nothing that a mount would
 * find needs it. So one whose count falls to 0 first joins a list:
 *
 *   DROPPED  of data: free when the transaction that did it is durable in the log. The tree on the drives may name
 *            its blocks still, but who mounts that tree replays the log over it before anybody reads a block.
 *            So space comes back without a checkpoint, which a cleaner would need all the time. Readers that saw the
 *            blocks before are waited for (files_read_barrier())
 *   LEFT     of nodes, by the checkpoint that freezes: free when its root is durable, which needs them no more
 *
 *   in a list, open or in flight, live   ->  not free
 *   flags all clear and live == 0        ->  free
 *
 * Streams, small writes and nodes fill stripes of their own, row by row. The rows that were not
 * filled when a file system stops stay unused until their stripe is free again.
 *
 * Reserves: as many stripes as two checkpoints could need are taken by checkpoints only, so that a full
 * file system can still delete, and some more by them and the cleaner. A checkpoint needs room for the
 * nodes that are dirty: for the whole tree at worst, and so many nodes as may be dirty at most. When
 * that, with what the cleaner needs at least, is no longer there nothing may make the tree larger.
 *
 * What users see is less than there is (space_shown()), so that all of it can be written, and written over again for
 * ever: a full file system refuses what is new and never what takes the place of something.
 */
#include "fs/inode_internal.h"

/* Nodes: a checkpoint's own record names at worst one old stripe each, and fits into a log batch. */
#define DIRTY_MOST 20000u

#define FLAG_PENDING 3u /* enum stripe_pending */
#define FLAG_OPEN 4u
#define FLAG_BUSY 8u		  /* rows in flight */
#define PADDING_MOST (1ull << 20) /* blocks: 4 GiB */
#define GROUP_LEAST 257u	  /* blocks of the largest write of a client */
#define HOLES_PART 32u		  /* of a stripe, as holes, is what cleaning does without */

#define FLAG_GUARD 32u /* space_guard() */
#define FLAG_STUCK 16u /* the cleaner could not empty it; cleared when its count changes */

uint64_t space_refuse_at, space_refuse_count;

bool space_refuse(void)
{
	return space_refuse_at && ++space_refuse_count >= space_refuse_at;
}

static bool is_free(const struct space *s, uint64_t stripe)
{
	return s->table[stripe] == 0 && s->flags[stripe] == 0;
}

/* Call after anything that is_free() looks at has changed. */
static void recount(struct space *s, uint64_t stripe, bool was_free)
{
	bool now = is_free(s, stripe);
	if (now == was_free)
		return;
	s->free += now ? 1 : UINT64_MAX;
	s->free_in[stripe / STRIPES_PER_KEY] = (uint8_t)(s->free_in[stripe / STRIPES_PER_KEY] + (now ? 1 : 255));
}

static void flag(struct space *s, uint64_t stripe, uint8_t clear, uint8_t set)
{
	bool was = is_free(s, stripe);
	s->changes++;
	s->flags[stripe] = (uint8_t)((s->flags[stripe] & ~clear) | set);
	recount(s, stripe, was);
}

static void count_live(struct space *s, uint32_t value, bool add)
{
	uint64_t live = stripe_live(value);
	if (!live)
		return;
	uint64_t *sum = stripe_class(value) == STRIPE_NODES ? &s->live_nodes : &s->live_data;
	*sum += add ? live : -live;
	*(stripe_class(value) == STRIPE_NODES ? &s->node_stripes : &s->data_stripes) += add ? 1 : UINT64_MAX;
}

int space_init(struct fs *fs)
{
	struct space *s = &fs->space;

	s->stripes = fs->geometry.stripes;
	s->stripe_blocks = (uint32_t)volume_stripe_blocks(&fs->geometry);
	s->table = calloc(s->stripes, sizeof(s->table[0]));
	s->flags = calloc(s->stripes, 1);
	s->free_in = calloc(s->stripes / STRIPES_PER_KEY + 1, 1);
	if (!s->table || !s->flags || !s->free_in)
		return -ENOMEM;
	fiber_mutex_init(&s->release_lock);
	wait_queue_init(&s->release_idle);
	s->free = s->stripes;
	for (uint64_t g = 0; g * STRIPES_PER_KEY < s->stripes; g++) {
		uint64_t left = s->stripes - g * STRIPES_PER_KEY;
		s->free_in[g] = (uint8_t)(left < STRIPES_PER_KEY ? left : STRIPES_PER_KEY);
	}
	return 0;
}

void space_fini(struct fs *fs)
{
	struct space *s = &fs->space;
	free(s->table);
	free(s->flags);
	free(s->free_in);
	free(s->dropped.of);
	free(s->left.of);
}

/* Dirty nodes are bounded so that two checkpoints fit into the reserve, and their records into the log's margin. */
void space_set_reserve(struct fs *fs)
{
	struct space *s = &fs->space;
	struct tree *t = &fs->tree;
	uint64_t per = s->stripe_blocks / NODE_BLOCKS;
	uint64_t limit = t->nodes_limit / 2;

	if (limit > s->stripes * per / 32)
		limit = s->stripes * per / 32;
	if (limit > DIRTY_MOST)
		limit = DIRTY_MOST;
	if (limit < 32)
		limit = 32;
	t->dirty_limit = limit;
	s->reserve_most = 2 * ((limit + per - 1) / per) + 3;
	/* so many stripes with space_holes_worth() holes each are whole rows less when they are moved */
	s->cleaner_least = (HOLES_PART + fs->geometry.strip_blocks - 1) / fs->geometry.strip_blocks;
	s->cleaner_reserve = s->cleaner_least + 2 + s->stripes / 128;
	s->padding = s->stripes * s->stripe_blocks / 40;
	if (s->padding > PADDING_MOST)
		s->padding = PADDING_MOST;
	s->group = s->stripes * s->stripe_blocks / 128;
	if (s->group < GROUP_LEAST)
		s->group = GROUP_LEAST;
	if (s->group > GROUP_RECORDS)
		s->group = GROUP_RECORDS;
	fs->log.margin = ((limit + limit / per + 1024) * sizeof(struct op_stripe_disk) + BLOCK_BYTES) / BLOCK_BYTES + 1;
	if (fs->log.margin > fs->log.capacity / 8)
		fs->log.margin = fs->log.capacity / 8;
}

#define RESERVE_FRESH 128u /* nodes that a tree may grow by before anybody looks again */

uint64_t space_reserve_stripes(const struct fs *fs)
{
	const struct space *s = &fs->space;
	uint64_t per = s->stripe_blocks / NODE_BLOCKS;
	uint64_t nodes = s->live_nodes / NODE_BLOCKS + fs->tree.fresh + RESERVE_FRESH;
	uint64_t stripes = 2 * ((nodes + per - 1) / per) + 3;

	return stripes < s->reserve_most ? stripes : s->reserve_most;
}

int space_load(struct fs *fs, struct error *err)
{
	struct space *s = &fs->space;
	struct fs_key key = {.type = KEY_STRIPES};
	struct stripes_disk group;

	for (;;) {
		int rc = tree_next(fs, &key, &group, sizeof(group));
		if (rc == -ENOENT || (rc >= 0 && (key.ino != 0 || key.type != KEY_STRIPES)))
			return 0;
		if (rc < 0)
			return error_set(err, rc, "cannot read the stripe counts");
		if (rc != (int)sizeof(group) || key.snap || key.off > (s->stripes - 1) / STRIPES_PER_KEY) {
			if (fs->repair) {
				key.snap++;
				continue;
			}
			return error_set(err, -EIO, "bad stripe counts at group %llu", (unsigned long long)key.off);
		}
		for (unsigned i = 0; i < STRIPES_PER_KEY; i++) {
			uint32_t value = le32_get(group.stripe[i]);
			uint64_t stripe = key.off * STRIPES_PER_KEY + i;
			if (!value)
				continue;
			enum stripe_class class = stripe_class(value);
			if (stripe >= s->stripes || stripe_live(value) == 0 || stripe_live(value) > s->stripe_blocks ||
				(class != STRIPE_DATA && class != STRIPE_NODES)) {
				if (fs->repair)
					continue; /* counted anew */
				return error_set(
					err, -EIO, "bad count of stripe %llu: %#x", (unsigned long long)stripe, value);
			}
			bool was = is_free(s, stripe);
			s->table[stripe] = value;
			count_live(s, value, true);
			recount(s, stripe, was);
		}
		key.off++;
	}
}

/* ------------------------------------------------------------------------------------------------
 * Counts
 */

int space_check_delta(struct fs *fs, uint64_t stripe, int64_t delta, enum stripe_class class)
{
	const struct space *s = &fs->space;
	uint32_t value = s->table[stripe];
	int64_t live = (int64_t)stripe_live(value) + delta;

	if ((live >= 0 && live <= s->stripe_blocks && (!value || stripe_class(value) == class)) || fs->repair)
		return 0;
	log_error("fs", "stripe count would be wrong stripe=%llu live=%u class=%u change=%lld class=%u",
		(unsigned long long)stripe, stripe_live(value), (unsigned)stripe_class(value), (long long)delta,
		(unsigned)class);
	return -EIO;
}

int space_lists_ensure(struct fs *fs, size_t more)
{
	struct space_list *list[2] = {&fs->space.dropped, &fs->space.left};

	for (int i = 0; i < 2; i++) {
		if (list[i]->count + more <= list[i]->room)
			continue;
		size_t room = 2 * list[i]->room + more + 64;
		struct space_dropped *of = realloc(list[i]->of, room * sizeof(*of));
		if (!of)
			return -ENOMEM;
		list[i]->of = of;
		list[i]->room = room;
	}
	return 0;
}

static void pending_add(struct space *s, uint64_t stripe, enum stripe_pending when, uint64_t sequence)
{
	struct space_list *list = when == PENDING_LOG ? &s->dropped : &s->left;

	if ((s->flags[stripe] & FLAG_PENDING) == when) {
		/* rare: it was being filled when it fell to 0 the first time */
		for (size_t i = 0; i < list->count; i++)
			if (list->of[i].stripe == stripe)
				list->of[i].sequence = sequence;
		return;
	}
	assert(list->count < list->room);
	list->of[list->count++] = (struct space_dropped){stripe, sequence};
	flag(s, stripe, FLAG_PENDING, (uint8_t)when);
}

uint32_t space_apply_delta(struct fs *fs, uint64_t stripe, int32_t delta, enum stripe_class class, bool replay)
{
	struct space *s = &fs->space;
	uint32_t old = s->table[stripe];
	int64_t sum = (int64_t)stripe_live(old) + delta;
	/* only a repair lets pass what does not fit */
	uint32_t live = sum < 0 ? 0 : sum > s->stripe_blocks ? s->stripe_blocks : (uint32_t)sum;
	uint32_t value = live ? live | (uint32_t) class << STRIPE_CLASS_SHIFT : 0;

	if (!live && old) {
		/* a replayed record of a checkpoint belongs to the tree that is mounted: nobody needs what it dropped
		 */
		if (class == STRIPE_DATA || (fs->repair && !replay))
			pending_add(s, stripe, PENDING_LOG, replay ? 0 : fs->log.sequence + 1);
		else if (!replay)
			pending_add(s, stripe, PENDING_ROOT, 0);
	}
	bool was = is_free(s, stripe);
	s->changes++;
	s->flags[stripe] = (uint8_t)(s->flags[stripe] & ~FLAG_STUCK);
	count_live(s, old, false);
	s->table[stripe] = value;
	count_live(s, value, true);
	recount(s, stripe, was);
	return value;
}

static int dropped_compare(const void *va, const void *vb)
{
	const struct space_dropped *a = va, *b = vb;
	return a->stripe < b->stripe ? -1 : a->stripe > b->stripe;
}

/* The stripes of the first N in the list are let go: those that are still empty are free, after a discard. Waits. */
static void stripes_release(struct fs *fs, struct space_dropped *of, size_t n)
{
	struct space *s = &fs->space;
	uint64_t start = 0, count = 0;
	size_t empty = 0;

	/* at one instant, without a wait: after it nothing happens to an empty one that is in a list */
	for (size_t i = 0; i < n; i++) {
		if (s->table[of[i].stripe] == 0 && !(s->flags[of[i].stripe] & (FLAG_OPEN | FLAG_BUSY)))
			of[empty++] = of[i];
		else
			flag(s, of[i].stripe, FLAG_PENDING, 0);
	}
	qsort(of, empty, sizeof(of[0]), dropped_compare);
	for (size_t i = 0; i <= empty; i++) {
		if (count && (i == empty || of[i].stripe != start + count)) {
			volume_discard(fs->volume, start, count); /* advice: an error costs nothing */
			for (uint64_t j = start; j < start + count; j++) {
				data_cache_drop(fs, j * s->stripe_blocks, s->stripe_blocks); /* no use to anybody */
				flag(s, j, FLAG_PENDING, 0);
			}
			count = 0;
		}
		if (i < empty && !count++)
			start = of[i].stripe;
	}
}

void space_release_left(struct fs *fs)
{
	struct space_list *left = &fs->space.left;

	/* checkpoints run one at a time: nobody adds meanwhile */
	stripes_release(fs, left->of, left->count);
	left->count = 0;
}

static bool dropped_durable(const struct fs *fs)
{
	const struct space_list *d = &fs->space.dropped;

	for (size_t i = 0; i < d->count; i++)
		if (d->of[i].sequence <= fs->log.durable)
			return true;
	return false;
}

void space_release_dropped(struct fs *fs)
{
	struct space *s = &fs->space;
	struct space_dropped *go = NULL;
	size_t n = 0, kept = 0;

	fiber_lock(&s->release_lock);
	if (!fs->failed && dropped_durable(fs)) {
		uint64_t durable = fs->log.durable;
		/* who saw a block before it was dropped may still be reading it */
		files_read_barrier(fs);
		go = malloc(s->dropped.count * sizeof(*go));
		for (size_t i = 0; i < s->dropped.count; i++) {
			if (go && s->dropped.of[i].sequence <= durable)
				go[n++] = s->dropped.of[i];
			else
				s->dropped.of[kept++] = s->dropped.of[i];
		}
		s->dropped.count = kept;
		if (n)
			stripes_release(fs, go, n);
		free(go);
	}
	fiber_unlock(&s->release_lock);
}

static void release_fiber(void *arg)
{
	struct fs *fs = arg;
	struct space *s = &fs->space;

	for (size_t had = SIZE_MAX; !fs->failed && !s->stopping && dropped_durable(fs) && s->dropped.count != had;) {
		had = s->dropped.count;
		space_release_dropped(fs);
	}
	s->releasing = false;
	wait_queue_wake_all(&s->release_idle);
}

void space_durable(struct fs *fs)
{
	struct space *s = &fs->space;

	if (s->releasing || s->stopping || !s->dropped.count || fs->read_only || fs->failed || !dropped_durable(fs))
		return;
	s->releasing = true;
	if (fiber_spawn(release_fiber, fs))
		s->releasing = false; /* no fiber: the next time */
}

void space_stop(struct fs *fs)
{
	fs->space.stopping = true;
	while (fs->space.releasing)
		wait_queue_wait(&fs->space.release_idle, NEVER);
}

/* ------------------------------------------------------------------------------------------------
 * Rows
 */

static bool find_free(struct space *s, uint64_t *stripe)
{
	uint64_t groups = (s->stripes + STRIPES_PER_KEY - 1) / STRIPES_PER_KEY;

	if (!s->free)
		return false;
	uint64_t g = s->cursor / STRIPES_PER_KEY;
	for (uint64_t n = 0; n <= groups; n++, g++) {
		if (g >= groups)
			g = 0;
		if (!s->free_in[g])
			continue;
		uint64_t from = n == 0 ? s->cursor : g * STRIPES_PER_KEY;
		for (uint64_t i = from; i < (g + 1) * STRIPES_PER_KEY && i < s->stripes; i++) {
			if (is_free(s, i)) {
				*stripe = i;
				s->cursor = i + 1 < s->stripes ? i + 1 : 0;
				return true;
			}
		}
	}
	return false;
}

/* A free stripe to fill: what it held before is forgotten from here on. */
static bool take_free(struct fs *fs, uint64_t *stripe)
{
	if (!find_free(&fs->space, stripe))
		return false;
	data_cache_drop(fs, *stripe * fs->space.stripe_blocks, fs->space.stripe_blocks);
	return true;
}

static struct space_flight *flight_find(struct space *s, uint64_t stripe)
{
	for (unsigned i = 0; i < s->flights; i++)
		if (s->flight[i].stripe == stripe)
			return &s->flight[i];
	return NULL;
}

static void close_open(struct space *s, struct space_open *open)
{
	open->valid = false;
	flag(s, open->stripe, FLAG_OPEN, 0);
}

int space_take_rows(struct fs *fs, enum space_class class, uint32_t rows, struct row_run *run)
{
	struct space *s = &fs->space;
	struct space_open *open = &s->open[class];
	uint32_t strip = fs->geometry.strip_blocks;
	uint64_t leave = class == SPACE_NODES	  ? 0
			 : class == SPACE_CLEANER ? space_reserve_stripes(fs)
						  : space_reserve_stripes(fs) + s->cleaner_reserve;
	bool can_open = s->free > leave;

	if (class != SPACE_NODES && s->flights == SPACE_FLIGHTS)
		return -EAGAIN;
	if (!rows)
		return -EINVAL;
	if (!can_open)
		cleaner_kick(fs);
	if (class == SPACE_STREAM && rows >= strip && can_open) {
		/* a stripe of its own; the open one stays for what is shorter */
		if (!take_free(fs, &run->stripe))
			return -ENOSPC;
		run->row = 0;
		run->rows = strip;
	} else {
		if (!open->valid) {
			uint64_t stripe;
			if (!can_open || !take_free(fs, &stripe))
				return -ENOSPC;
			*open = (struct space_open){true, stripe, 0};
			flag(s, stripe, 0, FLAG_OPEN);
			s->node_taken += class == SPACE_NODES;
			if (space_low(fs))
				cleaner_kick(fs);
		}
		run->stripe = open->stripe;
		run->row = open->row;
		run->rows = rows < strip - open->row ? rows : strip - open->row;
	}
	flag(s, run->stripe, 0, FLAG_BUSY);
	if (class != SPACE_NODES) {
		struct space_flight *f = flight_find(s, run->stripe);
		if (f)
			f->runs++;
		else
			s->flight[s->flights++] = (struct space_flight){run->stripe, 1};
	}
	if (open->valid && open->stripe == run->stripe) {
		open->row += run->rows;
		if (open->row == strip)
			close_open(s, open);
	}
	return 0;
}

void space_rows_done(struct fs *fs, const struct row_run *run)
{
	struct space *s = &fs->space;
	struct space_flight *f = flight_find(s, run->stripe);

	if (f) {
		if (--f->runs)
			return;
		*f = s->flight[--s->flights];
	}
	flag(s, run->stripe, FLAG_BUSY, 0);
}

/* ------------------------------------------------------------------------------------------------
 * What is short, and where it could come from
 */

/*
 * What a checkpoint has taken so far comes back with its end, or nearly. Without a cleaner (a repair) two thirds of the
 * reserve are enough: for two checkpoints, of which each frees stripes.
 */
bool space_nodes_low(const struct fs *fs)
{
	const struct space *s = &fs->space;
	if (!fs->cleaner.started)
		return s->free < space_reserve_stripes(fs) * 2 / 3;
	return s->free + s->node_taken < space_reserve_stripes(fs) + s->cleaner_least;
}

uint32_t space_holes_worth(const struct fs *fs)
{
	return 1 + fs->space.stripe_blocks / HOLES_PART;
}

/* Free stripes that files may have. */
static uint64_t space_spare(const struct fs *fs)
{
	const struct space *s = &fs->space;
	uint64_t leave = space_reserve_stripes(fs) + s->cleaner_reserve;
	return s->free > leave ? s->free - leave : 0;
}

uint64_t space_low_extra;

bool space_low(const struct fs *fs)
{
	const struct space *s = &fs->space;
	return space_spare(fs) < space_low_extra ||
	       space_spare(fs) * s->stripe_blocks < s->padding * 3 / 2 + 4ull * s->stripe_blocks;
}

bool space_urgent(const struct fs *fs)
{
	const struct space *s = &fs->space;
	return space_spare(fs) < 3 + s->stripes / 128 && space_spare(fs) * s->stripe_blocks < PADDING_MOST;
}

static uint64_t open_rest(const struct fs *fs, enum space_class class)
{
	const struct space_open *open = &fs->space.open[class];
	return open->valid ? (uint64_t)(fs->geometry.strip_blocks - open->row) * fs->geometry.k : 0;
}

/*
 * A row may carry one block only, and a promise cannot know: padding is counted at its worst, up to a
 * fortieth of all or 4 GiB. TIGHT: it is not counted, for what it takes can be cleaned; so little room there is always
 * when everybody has waited for the cleaner (space_shown()).
 */
bool space_has_room(const struct fs *fs, uint64_t blocks, bool tight)
{
	const struct space *s = &fs->space;
	uint64_t want = s->promised + blocks, pad = tight ? fs->geometry.k : want * (fs->geometry.k - 1);
	uint64_t room = space_spare(fs) * s->stripe_blocks + open_rest(fs, SPACE_STREAM) + open_rest(fs, SPACE_SMALL);

	return want + (pad < s->padding ? pad : s->padding) + s->stripe_blocks <= room;
}

bool space_rows_fit(const struct fs *fs, uint64_t blocks)
{
	const struct space *s = &fs->space;

	return blocks + fs->geometry.k <= open_rest(fs, SPACE_SMALL) && blocks < s->stripe_blocks
		       ? true
		       : space_spare(fs) >= (blocks + fs->geometry.k) / s->stripe_blocks + 2;
}

uint64_t space_cleaner_blocks(const struct fs *fs)
{
	const struct space *s = &fs->space;
	uint64_t leave = space_reserve_stripes(fs);
	return (s->free > leave ? s->free - leave : 0) * s->stripe_blocks + open_rest(fs, SPACE_CLEANER);
}

unsigned space_victims(const struct fs *fs, enum stripe_class class, uint32_t most, uint64_t *victim, unsigned max)
{
	const struct space *s = &fs->space;
	unsigned n = 0;

	for (uint64_t i = 0; i < s->stripes; i++) {
		uint32_t live = stripe_live(s->table[i]);
		if (stripe_class(s->table[i]) != class || s->flags[i] || live > most)
			continue;
		if (n == max && stripe_live(s->table[victim[n - 1]]) <= live)
			continue;
		unsigned at = n < max ? n++ : n - 1;
		for (; at > 0 && stripe_live(s->table[victim[at - 1]]) > live; at--)
			victim[at] = victim[at - 1];
		victim[at] = i;
	}
	return n;
}

void space_guard(struct fs *fs, uint64_t stripe, bool on)
{
	flag(&fs->space, stripe, FLAG_GUARD, on ? FLAG_GUARD : 0);
}

void space_stuck(struct fs *fs, uint64_t stripe)
{
	if (fs->space.table[stripe])
		fs->space.flags[stripe] |= FLAG_STUCK;
}

/* ------------------------------------------------------------------------------------------------
 * Promises
 */

/*
 * Blocks of the tree that are no user's: as many as the extents of a file system may need that was filled in order and
 * is overwritten at random. So writing and overwriting data takes from what df shows what it says, and nothing more.
 */
static uint64_t nodes_hidden(const struct space *s)
{
	return s->stripes * s->stripe_blocks / 40;
}

/*
 * Blocks that users may see: a tenth less than there are, or more on small file systems. When nothing is under way, and
 * the cleaner and the checkpoint find nothing more to gain,
 *   a stripe of data has at most stripe_blocks / HOLES_PART holes, but for the open ones and such as make one more
 *   of nodes an eighth is holes, but for a few stripes
 * and what is free then beside both reserves must be enough for a group of blocks that take the place of others:
 * then these have left as many holes, and it goes on.
 */
static uint64_t space_shown(const struct space *s)
{
	uint64_t all = s->stripes * s->stripe_blocks, per = s->stripe_blocks / NODE_BLOCKS, shown;
	uint64_t reserve = 2 * ((nodes_hidden(s) / NODE_BLOCKS + RESERVE_FRESH + per - 1) / per) + 3;

	if (reserve > s->reserve_most)
		reserve = s->reserve_most;
	reserve += s->cleaner_reserve + SPACE_CLASSES + 1;	       /* open stripes */
	reserve += nodes_hidden(s) * 8 / 7 / s->stripe_blocks + 1 + 3; /* nodes */
	reserve += s->group / s->stripe_blocks + 1 + 4;		       /* what goes on */
	if (reserve >= s->stripes)
		return 0;
	shown = (s->stripes - reserve) * (s->stripe_blocks - s->stripe_blocks / HOLES_PART);
	return shown < all - all / 10 ? shown : all - all / 10;
}

static uint64_t space_used(const struct space *s)
{
	uint64_t nodes = s->live_nodes > nodes_hidden(s) ? s->live_nodes - nodes_hidden(s) : 0;
	return s->live_data + nodes + s->promised;
}

bool space_promises_hold(const struct fs *fs)
{
	return space_used(&fs->space) <= space_shown(&fs->space);
}

bool space_tree_full(const struct fs *fs)
{
	const struct space *s = &fs->space;
	return s->live_nodes > nodes_hidden(s) && space_used(s) - s->promised >= space_shown(s);
}

int space_reserve(struct fs *fs, uint64_t blocks, uint64_t replaced, bool tight)
{
	struct space *s = &fs->space;

	if (blocks > s->stripes * s->stripe_blocks || space_refuse())
		return -ENOSPC;
	if (!space_has_room(fs, blocks, tight) ||
		(replaced < blocks && space_used(s) + blocks - replaced > space_shown(s))) {
		cleaner_kick(fs);
		return -ENOSPC;
	}
	s->promised += blocks;
	return 0;
}

void space_unreserve(struct fs *fs, uint64_t blocks)
{
	struct space *s = &fs->space;
	assert(blocks <= s->promised);
	s->promised -= blocks;
}

int space_stripe_info(struct fs *fs, uint64_t stripe, uint32_t *live, bool *nodes)
{
	const struct space *s = &fs->space;
	if (stripe >= s->stripes)
		return -EINVAL;
	*live = stripe_live(s->table[stripe]);
	*nodes = stripe_class(s->table[stripe]) == STRIPE_NODES;
	return 0;
}

struct usage_call {
	const struct fs *fs;
	uint64_t first;
	unsigned count;
	bool *used;
};

static void usage_home(void *arg)
{
	struct usage_call *call = arg;
	const struct space *s = &call->fs->space;

	for (unsigned i = 0; i < call->count; i++)
		call->used[i] = call->first + i < s->stripes && !is_free(s, call->first + i);
}

void space_usage(void *arg, uint64_t first, unsigned count, bool *used)
{
	struct usage_call call = {arg, first, count, used};
	reactor_call(call.fs->home, usage_home, &call);
}

static void statfs_home(void *arg)
{
	struct {
		struct fs *fs;
		struct fs_statfs *out;
	} *call = arg;
	const struct space *s = &call->fs->space;
	uint64_t shown = space_shown(s), used = space_used(s);
	uint64_t left = used < shown ? shown - used : 0;

	call->out->bytes_total = shown * BLOCK_BYTES;
	call->out->bytes_free = left * BLOCK_BYTES;
	call->out->bytes_available = left * BLOCK_BYTES;
	/* an inode with its names takes about 512 bytes of the tree */
	call->out->files_free = left * (BLOCK_BYTES / 512);
	call->out->files_total = call->out->files_free + files_inode_count(call->fs);
}

int fs_statfs(struct fs *fs, struct fs_statfs *out)
{
	struct {
		struct fs *fs;
		struct fs_statfs *out;
	} call = {fs, out};
	reactor_call(fs->home, statfs_home, &call);
	return 0;
}
