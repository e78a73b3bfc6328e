/*
 * The cache of clean data: blocks of files as the drives hold them, in the buffers they came in.
 *
 * What it holds was verified when it was read, or is what a flush has just made durable. A reader gets references to
 * the buffers; nobody writes to them. So a hit costs neither a drive command, nor a checksum, nor a copy.
 *
 * A block is known by its place on the volume. Snapshots and copies that share a block so share its memory, a write
 * takes nothing out (it goes to another place), and a block is out of date only when its place is written again. That
 * happens when a free stripe is taken: space.c drops all of it then. For this to be enough nobody may put a block in
 * that was read before: readers put theirs in before they leave their read section, for which a freed stripe waits, and
 * a flush does before it lets go of its rows. As a second line, a block is found only if its checksum is the one that
 * the extent names; one that does not fit is a fault of ours, counted as stale and not used. What the cleaner moves
 * moves in here too, while its rows are in flight: what was warm stays so.
 *
 * Unit is the buffer: an entry (struct data_run) holds one, with all of its blocks that are worth anything, and counts
 * for all its memory. Entries leave in the manner of S3-FIFO (Yang et al., SOSP 2023): new ones go through a small
 * queue, a tenth of all; those that were used again meanwhile move to the main queue, the others leave a ghost: a
 * fingerprint and the time. Who comes back while his ghost is remembered goes to the main queue at once, where an
 * entry gets another round for each use. So what is read once, however much of it, only passes through the small
 * queue. Reading on in an entry, block after block, is the same use of it.
 *
 * An entry without a buffer is being read, for a reader or ahead of one (read_ahead.c): whoever else wants its blocks
 * waits for it.
 *
 * Memory: at most the file system's part of the caches, less what tree nodes have taken of it; nothing grows while less
 * than an eighth of the arena is free; and the arena takes back what it needs at once (struct buf_reserve). Without
 * memory for an entry the data is just not kept.
 *
 * Home reactor only. Nothing here waits but data_cache_fini().
 */
#include "fs/inode_internal.h"

#define SMALL_PART 10u
#define FREE_PART 8u
#define USES_MOST 3u
#define GHOSTS_MIN 1024u

struct data_block {
	struct htable_node node;
	uint64_t phys;
	uint32_t sum;
	uint16_t index; /* in the entry */
	uint16_t at;	/* in the buffer, in blocks; UINT16_MAX: dropped */
};

struct data_run {
	struct list_node link; /* in a queue; in none while it is being read */
	struct buf *buf;
	uint32_t bytes; /* of the buffer */
	uint16_t count, live;
	uint16_t next; /* a read of a block before this one uses the entry again */
	uint8_t uses;
	bool main;
	struct data_block block[];
};

struct data_ghost {
	uint32_t print, when;
};

/* Of an entry's first block: for ghosts, who need all of the bits. */
static uint64_t print_hash(uint64_t phys)
{
	return hash_u64(phys + 0x9e3779b97f4a7c15ull);
}

static struct data_run *run_of(struct data_block *b)
{
	return container_of(b - b->index, struct data_run, block);
}

/* ------------------------------------------------------------------------------------------------
 * Entries
 */

static void block_forget(struct data_cache *c, struct data_block *b)
{
	htable_remove(&c->blocks, &b->node);
	b->at = UINT16_MAX;
	run_of(b)->live--;
}

static void run_free(struct data_cache *c, struct data_run *run)
{
	for (unsigned i = 0; i < run->count; i++)
		if (run->block[i].at != UINT16_MAX)
			block_forget(c, &run->block[i]);
	if (run->buf) {
		list_remove(&run->link);
		c->bytes -= run->bytes;
		if (!run->main)
			c->small_bytes -= run->bytes;
		c->runs--;
	}
	buf_put(run->buf);
	free(run);
}

static void ghost_add(struct data_cache *c, const struct data_run *run)
{
	uint64_t hash = print_hash(run->block[0].phys);

	c->ghost_clock += run->bytes / BLOCK_BYTES;
	c->ghost[hash & c->ghost_mask] = (struct data_ghost){(uint32_t)(hash >> 32) | 1, c->ghost_clock};
}

/* As many bytes may have left after it as the main queue has. */
static bool ghost_known(const struct data_cache *c, uint64_t phys)
{
	uint64_t hash = print_hash(phys);
	const struct data_ghost *g = &c->ghost[hash & c->ghost_mask];

	return g->print == ((uint32_t)(hash >> 32) | 1) && c->ghost_clock - g->when <= c->limit / BLOCK_BYTES;
}

static void run_to_main(struct data_cache *c, struct data_run *run)
{
	run->main = true;
	run->uses = 0;
	list_push_back(&c->main, &run->link);
}

static bool evict_small(struct data_cache *c)
{
	struct list_node *n;

	while ((n = list_first(&c->small))) {
		struct data_run *run = container_of(n, struct data_run, link);

		if (run->uses == 0) {
			ghost_add(c, run);
			run_free(c, run);
			return true;
		}
		list_remove(n);
		c->small_bytes -= run->bytes;
		run_to_main(c, run);
	}
	return false;
}

static bool evict_main(struct data_cache *c)
{
	struct list_node *n;

	while ((n = list_first(&c->main))) {
		struct data_run *run = container_of(n, struct data_run, link);

		if (run->uses == 0) {
			run_free(c, run);
			return true;
		}
		run->uses--;
		list_remove(n);
		list_push_back(&c->main, n);
	}
	return false;
}

static bool evict_one(struct data_cache *c)
{
	bool done = (c->small_bytes > c->limit / SMALL_PART && evict_small(c)) || evict_main(c) || evict_small(c) ||
		    evict_main(c); /* all of the small queue may have moved */

	c->evictions += done;
	return done;
}

static uint64_t cache_give(struct buf_reserve *reserve, uint64_t bytes)
{
	struct data_cache *c = container_of(reserve, struct data_cache, reserve);
	uint64_t had = c->bytes;

	while (had - c->bytes < bytes && evict_one(c))
		;
	return had - c->bytes;
}

/* What tree nodes do not use of their half is ours. */
static uint64_t cache_limit(const struct fs *fs)
{
	uint64_t half = fs->cache_data_bytes, nodes = fs->tree.nodes * TREE_NODE_BYTES;

	return nodes < half ? 2 * half - nodes : half;
}

static bool memory_short(void)
{
	return arena_free_bytes() < arena_total_bytes() / FREE_PART;
}

/* Makes room for BYTES more; false when there is none for them. */
static bool cache_room(struct fs *fs, uint64_t bytes)
{
	struct data_cache *c = &fs->files->cache;
	uint64_t had = c->bytes;

	c->limit = cache_limit(fs);
	if (bytes > c->limit / 2 || buf_wanted())
		return false;
	while (c->bytes + bytes > c->limit && evict_one(c))
		;
	/* while memory is short something new takes the place of twice as much */
	while (memory_short() && had - c->bytes < 2 * bytes)
		if (!evict_one(c))
			return false;
	return c->bytes + bytes <= c->limit;
}

/* ------------------------------------------------------------------------------------------------
 * Looking up and putting in
 */

static struct data_block *block_find(const struct data_cache *c, uint64_t phys)
{
	htable_foreach_hash (node, &c->blocks, hash_place(phys)) {
		struct data_block *b = container_of(node, struct data_block, node);

		if (b->phys == phys)
			return b;
	}
	return NULL;
}

static void run_use(struct data_run *run, const struct data_block *b, struct slice *at)
{
	if (b->index < run->next && run->uses < USES_MOST)
		run->uses++;
	run->next = (uint16_t)(b->index + 1);
	*at = (struct slice){run->buf, (uint32_t)b->at * BLOCK_BYTES, BLOCK_BYTES};
}

bool data_cache_peek(struct fs *fs, uint64_t phys, uint32_t sum, struct slice *at)
{
	struct data_block *b = block_find(&fs->files->cache, phys);

	if (!b || b->sum != sum || !run_of(b)->buf)
		return false;
	run_use(run_of(b), b, at);
	return true;
}

enum data_found data_cache_find(struct fs *fs, uint64_t phys, uint32_t sum, struct slice *at)
{
	struct data_cache *c = &fs->files->cache;
	struct data_block *b = block_find(c, phys);
	struct data_run *run;

	if (!b)
		return DATA_NONE;
	run = run_of(b);
	if (b->sum != sum) {
		c->stale++;
		log_error("fs", "a block in the cache is not what it should be: it is read again physical=%llu",
			(unsigned long long)phys);
		block_forget(c, b);
		if (run->buf && run->live == 0)
			run_free(c, run);
		return DATA_NONE;
	}
	if (!run->buf)
		return DATA_LOADING;
	run_use(run, b, at);
	return DATA_THERE;
}

bool data_cache_has(struct fs *fs, uint64_t phys)
{
	return block_find(&fs->files->cache, phys) != NULL;
}

/* An entry for those of the N places that are not there yet, or NULL. */
static struct data_run *run_new(struct data_cache *c, const struct data_place *place, unsigned n)
{
	struct data_run *run = malloc(sizeof(*run) + n * sizeof(run->block[0]));

	if (!run)
		return NULL;
	*run = (struct data_run){.count = 0};
	list_node_init(&run->link);
	for (unsigned i = 0; i < n; i++) {
		struct data_block *b = &run->block[run->count];

		if (block_find(c, place[i].phys))
			continue;
		*b = (struct data_block){
			.phys = place[i].phys, .sum = place[i].sum, .index = run->count++, .at = (uint16_t)place[i].at};
		htable_insert(&c->blocks, &b->node, hash_place(b->phys));
	}
	run->live = run->count;
	if (run->count == 0) {
		free(run);
		return NULL;
	}
	return run;
}

static void run_settle(struct data_cache *c, struct data_run *run, struct buf *buf, bool used)
{
	run->buf = buf_ref(buf);
	run->bytes = buf->size;
	run->next = used ? run->count : 0;
	c->bytes += run->bytes;
	c->runs++;
	if (ghost_known(c, run->block[0].phys)) {
		run_to_main(c, run);
	} else {
		c->small_bytes += run->bytes;
		list_push_back(&c->small, &run->link);
	}
}

void data_cache_add(struct fs *fs, struct buf *buf, const struct data_place *place, unsigned n)
{
	struct data_cache *c = &fs->files->cache;
	struct data_run *run;

	if (!cache_room(fs, buf->size))
		return;
	run = run_new(c, place, n);
	if (run)
		run_settle(c, run, buf, false);
}

struct data_run *data_cache_expect(struct fs *fs, const struct data_place *place, unsigned n)
{
	return run_new(&fs->files->cache, place, n);
}

void data_cache_expected(struct fs *fs, struct data_run *run, struct buf *buf, bool used)
{
	struct data_cache *c = &fs->files->cache;

	if (buf && run->live > 0 && cache_room(fs, buf->size))
		run_settle(c, run, buf, used);
	else
		run_free(c, run);
	if (!list_empty(&c->loaded.waiters))
		wait_queue_wake_all(&c->loaded);
}

void data_cache_wait(struct fs *fs)
{
	wait_queue_wait(&fs->files->cache.loaded, NEVER);
}

void data_cache_drop(struct fs *fs, uint64_t phys, uint64_t count)
{
	struct data_cache *c = fs->files ? &fs->files->cache : NULL; /* the last checkpoint comes when it is gone */

	for (uint64_t end = phys + count; c && phys < end && c->blocks.count > 0;) {
		struct data_block *b = block_find(c, phys);
		struct data_run *run;

		if (!b) {
			phys++;
			continue;
		}
		run = run_of(b);
		do { /* most entries go on with the next place */
			block_forget(c, b++);
			phys++;
		} while (phys < end && b < run->block + run->count && b->phys == phys && b->at != UINT16_MAX);
		if (run->buf && run->live == 0)
			run_free(c, run);
	}
}

void data_cache_move(struct fs *fs, uint64_t from, uint64_t to, uint32_t sum)
{
	struct data_cache *c = &fs->files->cache;
	struct data_block *b = block_find(c, from);

	if (!b || b->sum != sum)
		return;
	assert(!block_find(c, to)); /* a stripe that is filled was dropped before */
	htable_remove(&c->blocks, &b->node);
	b->phys = to;
	htable_insert(&c->blocks, &b->node, hash_place(to));
}

void data_cache_clear(struct fs *fs)
{
	while (evict_one(&fs->files->cache))
		;
}

/* ------------------------------------------------------------------------------------------------
 * Begin and end
 */

int data_cache_init(struct fs *fs)
{
	struct data_cache *c = &fs->files->cache;
	size_t ghosts = GHOSTS_MIN;

	list_init(&c->small);
	list_init(&c->main);
	wait_queue_init(&c->loaded);
	c->limit = cache_limit(fs);
	while (ghosts < c->limit / BLOCK_BYTES)
		ghosts *= 2;
	c->ghost = calloc(ghosts, sizeof(c->ghost[0]));
	c->ghost_mask = ghosts - 1;
	if (!c->ghost || htable_init(&c->blocks, 1024) < 0)
		return -ENOMEM;
	c->reserve.give = cache_give;
	buf_reserve_add(&c->reserve);
	return 0;
}

void data_cache_fini(struct fs *fs)
{
	struct data_cache *c = &fs->files->cache;

	if (c->blocks.bucket) {
		buf_reserve_remove(&c->reserve);
		data_cache_clear(fs);
		htable_fini(&c->blocks);
	}
	free(c->ghost);
	c->ghost = NULL;
}
