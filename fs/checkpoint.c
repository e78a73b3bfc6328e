/*
 * Checkpoints: from time to time the dirty nodes go to the drives and a new root record names them,
 * so that the log before it can be forgotten.
 *
 *   pack     dirty leaves side by side become fewer (tree_pack())
 *   plan     take rows for all dirty nodes, and make the transaction T that moves the live counts
 *            from the old places to the new; bring what T changes into memory
 *   freeze   at one instant, without a wait: give every dirty node its new place and name it in its
 *            parent, freeze the images, note the root, the last transaction S in it and the place in
 *            the log; apply T, which is the first transaction after S
 *   write    the frozen images as whole rows, zero-padded; wait for T in the log; flush
 *   flip     write the root record; then free the log up to S and the stripes that nobody needs now
 *
 * Transactions go on all the time; one that changes a frozen node copies it first.
 *
 * T is marked with the number of this checkpoint, and replay applies it only to a tree of this
 * checkpoint or a later one: to the tree before, its moves have never happened. That is why node
 * stripes hold nothing but nodes, and why stripe counts are logged as differences.
 *
 * A checkpoint is due when the log is half full, when three quarters of the dirty nodes allowed are dirty, when
 * a replay would have to read much (log_stream.c), 30 seconds after the first change, and at unmount. T itself makes
 * nodes dirty but does not count as a change: an idle file system stays idle.
 *
 * Nodes leave holes behind in their stripes. Before a checkpoint, while free stripes are few or
 * node stripes are mostly holes, the sparsest ones are emptied: a node says by its own header which
 * level and key it has, so the tree can be asked whether it is still there, and is made dirty.
 *
 * Whatever fails in here ends all changes (fs_fail): the last root and the log stay good.
 */
#include <stdlib.h>

#include "fs/files_internal.h"
#include "fs/fs_internal.h"

#define WRITERS 4u
#define MEMORY_PAUSE (20 * NSEC_PER_MSEC)
#define CLEAN_STRIPES 32u /* emptied per checkpoint at most */

uint64_t checkpoint_delay_ns = 30 * NSEC_PER_SEC;

struct frozen {
	struct buf *buf;
	uint64_t block;
};
struct plan {
	struct fs *fs;
	struct frozen *frozen;
	size_t nodes, nodes_room; /* nodes: assigned so far */
	struct row_run *run;
	size_t runs, runs_room;
	size_t capacity; /* nodes that fit into the runs */
	int64_t *delta;	 /* stripe, count pairs */
	size_t deltas, deltas_room;
	struct tx *tx;
	/* writing */
	size_t next_run, next_node;
	struct wait_group group;
};

static void plan_free(struct plan *p)
{
	for (size_t i = 0; i < p->nodes; i++)
		buf_put(p->frozen[i].buf);
	free(p->frozen);
	free(p->run);
	free(p->delta);
	if (p->tx)
		tx_free(p->tx);
}

/* Places of a run: position by position, in each the groups of rows one below the other. */
static size_t run_nodes(const struct fs *fs, const struct row_run *run)
{
	return (size_t)fs->geometry.k * (run->rows / NODE_BLOCKS);
}

static uint64_t run_block(const struct fs *fs, const struct row_run *run, size_t i)
{
	const struct volume_geometry *g = &fs->geometry;
	size_t groups = run->rows / NODE_BLOCKS;
	return run->stripe * volume_stripe_blocks(g) + i / groups * g->strip_blocks + run->row +
	       i % groups * NODE_BLOCKS;
}

static int grow(void *array, size_t *room, size_t want, size_t size)
{
	void **at = array;
	if (want <= *room)
		return 0;
	void *more = realloc(*at, (want + want / 2) * size);
	if (!more)
		return -ENOMEM;
	*at = more;
	*room = want + want / 2;
	return 0;
}

static int delta_compare(const void *va, const void *vb)
{
	const int64_t *a = va, *b = vb;
	return a[0] < b[0] ? -1 : a[0] > b[0];
}

static void plan_delta(struct plan *p, uint64_t block, int64_t blocks)
{
	p->delta[2 * p->deltas] = (int64_t)(block / p->fs->space.stripe_blocks);
	p->delta[2 * p->deltas + 1] = blocks;
	p->deltas++;
}

/* Makes T for what is dirty now. 0, with no wait since; -EAGAIN after a wait; else it fails. */
static int plan_try(struct plan *p)
{
	struct fs *fs = p->fs;
	struct tree *t = &fs->tree;
	size_t want = t->dirty_count;

	if (grow(&p->frozen, &p->nodes_room, want, sizeof(p->frozen[0])) ||
		grow(&p->delta, &p->deltas_room, 2 * want + t->dead_count, 2 * sizeof(p->delta[0])))
		return -ENOMEM;
	while (p->capacity < want) {
		struct row_run run;
		size_t groups = (want - p->capacity + fs->geometry.k - 1) / fs->geometry.k;
		uint32_t strip = fs->geometry.strip_blocks;
		if (grow(&p->run, &p->runs_room, p->runs + 1, sizeof(run)))
			return -ENOMEM;
		int rc = space_take_rows(
			fs, SPACE_NODES, groups > strip / NODE_BLOCKS ? strip : (uint32_t)groups * NODE_BLOCKS, &run);
		if (rc)
			return rc;
		p->run[p->runs++] = run;
		p->capacity += run_nodes(fs, &run);
	}
	p->deltas = 0;
	size_t run = 0, in = 0;
	list_foreach (at, &t->dirty) {
		const struct node *n = container_of(at, struct node, node);
		if (n->generation)
			plan_delta(p, n->block, -(int64_t)NODE_BLOCKS);
		if (in == run_nodes(fs, &p->run[run])) {
			run++;
			in = 0;
		}
		plan_delta(p, run_block(fs, &p->run[run], in++), NODE_BLOCKS);
	}
	list_foreach (at, &t->dead)
		plan_delta(p, container_of(at, struct node, node)->block, -(int64_t)NODE_BLOCKS);
	if (p->deltas)
		qsort(p->delta, p->deltas, 2 * sizeof(p->delta[0]), delta_compare);
	tx_reset(p->tx);
	for (size_t i = 0; i < p->deltas;) {
		int64_t sum = 0, stripe = p->delta[2 * i];
		for (; i < p->deltas && p->delta[2 * i] == stripe; i++)
			sum += p->delta[2 * i + 1];
		if (!sum)
			continue;
		int rc = tx_stripe_delta(p->tx, (uint64_t)stripe, (int32_t)sum, STRIPE_NODES);
		if (rc)
			return rc;
	}
	int rc = tx_prepare(p->tx, true);
	return rc ? rc : log_reserve(fs, p->tx->bytes, true);
}

static void freeze_node(struct plan *p, struct node *n, uint64_t generation)
{
	struct fs *fs = p->fs;
	uint8_t *image = n->buf->data;

	for (unsigned i = 0; n->level && i < image_count(image); i++) {
		struct node *c = n->child[i];
		if (!c || c->state != NODE_DIRTY)
			continue;
		freeze_node(p, c, generation);
		struct child_disk ref = {le64_put(c->block), le64_put(c->generation)};
		memcpy(image + le16_get(image_slots(image)[i].off), &ref, sizeof(ref));
	}
	if (p->next_node == run_nodes(fs, &p->run[p->next_run])) {
		p->next_run++;
		p->next_node = 0;
	}
	if (!n->generation)
		fs->tree.fresh--;
	n->block = run_block(fs, &p->run[p->next_run], p->next_node++);
	n->generation = generation;
	struct node_disk *h = image_header(image);
	h->uuid = fs->uuid;
	h->block = le64_put(n->block);
	h->generation = le64_put(generation);
	list_remove(&n->node);
	list_push_back(&fs->tree.frozen, &n->node);
	n->state = NODE_FROZEN;
	fs->tree.dirty_count--;
	fs->tree.frozen_count++;
	p->frozen[p->nodes++] = (struct frozen){buf_ref(n->buf), n->block};
}

static void freeze(struct plan *p, uint64_t generation)
{
	struct fs *fs = p->fs;
	struct tree *t = &fs->tree;
	struct checkpoint *c = &fs->checkpoint;

	assert(fs->space.left.count == 0);
	p->next_run = p->next_node = 0;
	if (t->root->state == NODE_DIRTY)
		freeze_node(p, t->root, generation);
	assert(t->dirty_count == 0);
	while (!list_empty(&t->dead))
		free(container_of(list_pop_front(&t->dead), struct node, node));
	t->dead_count = 0;
	c->tree_checkpoint = generation;
	c->tree_generation = t->root->generation;
	c->tree_block = t->root->block;
	c->tree_level = t->root->level;
	c->log_position = fs->log.head; /* of the batch that gathers: what it holds up to S is skipped */
	c->log_chain = fs->log.chain;
	c->log_sequence = fs->log.sequence;
	fs->log.stream_blocks = 0; /* the tree that is written has their checksums */
	c->changed = false;
	timer_stop(&c->timer);
	if (p->tx->ops) {
		tx_apply(p->tx, false);
		log_append(fs, p->tx);
	}
	c->log_needed = fs->log.sequence;
	for (size_t i = 0; i < p->runs; i++)
		space_rows_done(fs, &p->run[i]);
	wait_queue_wake_all(&fs->log.room);
}

/* Writes runs until none is left; WRITERS of these run side by side. */
static void run_writer(void *arg)
{
	struct plan *p = arg;
	struct fs *fs = p->fs;
	int rc = 0;

	while (!rc && p->next_run < p->runs && p->next_node < p->nodes) {
		const struct row_run *run = &p->run[p->next_run++];
		size_t first = p->next_node, room = run_nodes(fs, run);
		struct slice *v;
		p->next_node += room;
		while (!(v = malloc(room * sizeof(*v))))
			fiber_sleep(MEMORY_PAUSE);
		for (size_t i = 0; i < room; i++) {
			bool used = first + i < p->nodes;
			v[i] = (struct slice){used ? p->frozen[first + i].buf : buf_zero(), 0, TREE_NODE_BYTES};
			if (used)
				image_seal(v[i].buf->data);
		}
		rc = volume_write_rows(fs->volume, run->stripe, run->row, run->rows, v, (unsigned)room, 0);
		free(v);
	}
	wait_group_done(&p->group, rc);
}

static int plan_write(struct plan *p)
{
	p->next_run = p->next_node = 0;
	wait_group_init(&p->group);
	size_t writers = p->runs < WRITERS ? p->runs : WRITERS;
	for (size_t i = 0; i < writers; i++) {
		wait_group_add(&p->group, 1);
		if (i + 1 == writers || fiber_spawn(run_writer, p))
			run_writer(p);
	}
	return wait_group_wait(&p->group);
}

/* ------------------------------------------------------------------------------------------------
 * Emptying sparse node stripes
 */

static int clean_stripe(struct fs *fs, uint64_t stripe)
{
	struct row_run all = {stripe, 0, fs->geometry.strip_blocks};
	struct buf *buf = buf_alloc(TREE_NODE_BYTES);
	struct slice to = {buf, 0, TREE_NODE_BYTES};
	int rc = 0;

	for (size_t i = 0; !rc && i < run_nodes(fs, &all); i++) {
		struct image_expect expect = {.uuid = &fs->uuid, .block = run_block(fs, &all, i), .level = -1};
		unsigned times = 0;
		while (read_again(rc = volume_read(fs->volume, expect.block, &to, 1), &times)) {
			buf_renew(&buf, false);
			to.buf = buf;
		}
		if (rc == -ETIMEDOUT)
			break; /* the buffer is not ours any more: the next checkpoint may try again */
		/* what does not verify is no node that the tree would find there: a hole, or damaged and left to its
		 * reader */
		if (rc || image_verify(buf->data, &expect)) {
			rc = 0;
			continue;
		}
		struct pkey key = {{0}};
		if (image_count(buf->data))
			key = image_key(buf->data, 0);
		rc = tree_move_node(fs, &key, image_header(buf->data)->level, expect.block);
	}
	buf_put(buf);
	return rc;
}

/* Worth it: free stripes are few, or more than half of what nodes take is holes; and the last try gained something. */
static bool clean_due(const struct fs *fs)
{
	const struct space *s = &fs->space;
	uint64_t room = s->node_stripes * s->stripe_blocks;

	if (s->node_stripes < 4 || room - s->live_nodes < 2ull * s->stripe_blocks)
		return false;
	return s->live_nodes * 2 < room || (space_low(fs) && s->free != fs->checkpoint.stuck);
}

static int clean_nodes(struct fs *fs)
{
	struct space *s = &fs->space;
	struct tree *t = &fs->tree;
	uint64_t victim[CLEAN_STRIPES], nodes = t->dirty_count;
	uint64_t most = s->free > 2 ? (s->free - 2) * (s->stripe_blocks / NODE_BLOCKS) / 2 : 0;
	unsigned n = space_victims(fs, STRIPE_NODES, s->stripe_blocks - s->stripe_blocks / 8, victim, CLEAN_STRIPES);

	if (most > t->dirty_limit)
		most = t->dirty_limit;
	for (unsigned i = 0; i < n; i++) {
		/* with its parents, a node makes two dirty at worst */
		nodes += 2 * stripe_live(s->table[victim[i]]) / NODE_BLOCKS;
		if (nodes > most)
			break;
		int rc = clean_stripe(fs, victim[i]);
		if (rc)
			return rc;
		fs->checkpoint.cleaned = true;
	}
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * The whole of it
 */

static void thaw(struct fs *fs)
{
	struct tree *t = &fs->tree;

	for (struct list_node *at; (at = list_pop_front(&t->frozen)) != NULL;) {
		struct node *n = container_of(at, struct node, node);
		n->state = NODE_CLEAN;
		list_push_front(&t->lru, &n->node);
	}
	t->frozen_count = 0;
	cache_trim(fs);
}

int checkpoint_run(struct fs *fs, bool clean)
{
	struct checkpoint *c = &fs->checkpoint;
	struct tree *t = &fs->tree;
	struct plan p = {.fs = fs};
	struct pkey packed = {{0}};
	uint64_t generation = c->generation + 1, had = fs->space.free;
	int rc;

	if (fs->failed)
		return fs->failed;
	bool due = clean_due(fs);
	if (!c->changed && !due && t->dirty_count + t->dead_count <= t->dirty_limit / 2) {
		rc = clean ? root_write(fs, true) : 0;
		goto out;
	}
	c->cleaned = false;
	rc = due ? clean_nodes(fs) : 0;
	if (rc)
		log_warning("fs", "sparse node stripes could not be emptied error=%d", rc);
	while (tree_pack(fs, &packed))
		fiber_yield();
	while (!(p.tx = tx_new(fs)))
		fiber_sleep(MEMORY_PAUSE);
	p.tx->limit = LOG_BATCH_BLOCKS * BLOCK_BYTES - 2 * BLOCK_BYTES;
	p.tx->checkpoint = generation;
	do {
		rc = fs->failed ? fs->failed : plan_try(&p);
		if (rc == -ENOMEM)
			fiber_sleep(MEMORY_PAUSE); /* nothing is lost as long as it waits */
	} while (rc == -EAGAIN || rc == -ENOMEM);
	if (!rc) {
		freeze(&p, generation);
		log_kick(fs);
		rc = plan_write(&p);
		if (!rc)
			rc = log_wait(fs, c->log_needed);
		if (!rc)
			rc = volume_flush(fs->volume);
		if (!rc)
			rc = root_write(fs, clean);
	}
	plan_free(&p);
	if (!rc) {
		c->count++;
		fs->log.tail = c->log_position;
		thaw(fs);
		space_release_left(fs);
		fs->space.node_taken = 0;
		space_release_dropped(fs);
		c->stuck = c->cleaned && fs->space.free <= had ? fs->space.free : UINT64_MAX;
		if (c->cleaned && space_nodes_low(fs) && clean_due(fs) && c->wanted <= c->begun)
			c->wanted = c->begun + 1;
	}
out:
	if (rc && !fs->failed)
		fs_fail(fs, rc, "checkpoint failed");
	wait_queue_wake_all(&fs->log.room);
	return rc;
}

static void fiber_main(void *arg)
{
	struct fs *fs = arg;
	struct checkpoint *c = &fs->checkpoint;

	while (!c->stop) {
		if (c->wanted <= c->begun) {
			wait_queue_wait(&c->work, NEVER);
			continue;
		}
		c->begun++;
		c->running = true;
		checkpoint_run(fs, false);
		c->running = false;
		c->ended = c->begun;
		wait_queue_wake_all(&c->done);
		if (c->changed && !c->timer.slot)
			timer_start(&c->timer, now_ns() + checkpoint_delay_ns);
	}
	c->started = false;
	wait_queue_wake_all(&c->done);
}

static void timer_due(struct timer *timer)
{
	checkpoint_kick(container_of(timer, struct checkpoint, timer)->fs);
}

int checkpoint_start(struct fs *fs)
{
	struct checkpoint *c = &fs->checkpoint;

	c->fs = fs;
	timer_init(&c->timer, timer_due);
	wait_queue_init(&c->work);
	wait_queue_init(&c->done);
	c->started = true;
	int rc = fiber_spawn(fiber_main, fs);
	if (rc)
		c->started = false;
	return rc;
}

void checkpoint_stop(struct fs *fs)
{
	struct checkpoint *c = &fs->checkpoint;

	c->stop = true;
	wait_queue_wake_all(&c->work);
	while (c->started)
		wait_queue_wait(&c->done, NEVER);
	timer_stop(&c->timer);
}

void checkpoint_kick(struct fs *fs)
{
	struct checkpoint *c = &fs->checkpoint;

	/* one that runs will wake those who wait; they look again */
	if (c->running || c->wanted > c->begun)
		return;
	c->wanted = c->begun + 1;
	wait_queue_wake_all(&c->work);
}

int fs_checkpoint(struct fs *fs)
{
	struct checkpoint *c = &fs->checkpoint;
	assert(reactor_self() == fs->home);
	if (fs->read_only)
		return -EROFS;
	/* who asks for space by asking for a checkpoint gets what cleaning can give */
	if (space_low(fs))
		cleaner_wait(fs, 0);
	uint64_t ticket = c->begun + 1;
	if (c->wanted < ticket)
		c->wanted = ticket;
	wait_queue_wake_all(&c->work);
	while (c->ended < ticket && c->started && !fs->failed)
		wait_queue_wait(&c->done, NEVER);
	return fs->failed;
}

void checkpoint_changed(struct fs *fs)
{
	struct checkpoint *c = &fs->checkpoint;

	if (!c->changed) {
		c->changed = true;
		if (!c->running)
			timer_start(&c->timer, now_ns() + checkpoint_delay_ns);
	}
	if (fs->tree.dirty_count + fs->tree.dead_count > fs->tree.dirty_limit * 3 / 4 || streams_many(fs))
		checkpoint_kick(fs);
}

bool checkpoint_behind(const struct fs *fs)
{
	return fs->tree.dirty_count + fs->tree.dead_count > fs->tree.dirty_limit;
}
