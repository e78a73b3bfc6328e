/*
 * Tree nodes in memory: loading, eviction, spares, and what becomes of a changed image.
 *
 * A node that is in memory hangs in the child array of its parent, which is in memory too. So there
 * is no table of nodes by address, and a clean node may go when none of its children is there and
 * nobody pins it; the least recently used goes first. Dirty and frozen ones stay: their images are
 * not on the drives yet.
 *
 * Every image that comes from a drive is verified before it becomes a node: checksum, file system,
 * address, the generation that its parent recorded (so a write that the drive lost is seen), level,
 * bounds of every slot, and the range of keys. One that does not match is read again every way that
 * the array knows, and the first that verifies is written back. What no way brings back is -EIO for
 * the reader; the place stays unloaded, and the next reader tries again.
 *
 * Applying a transaction never waits and never fails, so memory for splits and for copies of frozen
 * images is put aside before: spares (a node with its buffer) and arrays for children.
 */
#include <stdlib.h>

#include "fs/fs_internal.h"

#define SPARES_CHECKPOINT 64u /* kept for the checkpoint's own transaction */
#define NODES_MIN 128u
#define REREAD_MAX 64u

static struct node *node_alloc(void)
{
	struct node *n = calloc(1, sizeof(*n));
	if (n) {
		list_node_init(&n->node);
		wait_queue_init(&n->loaded);
	}
	return n;
}

static void spare_put(struct tree *t, struct node *n)
{
	list_push_front(&t->spare, &n->node);
	t->spare_count++;
}

static struct node *spare_take(struct tree *t)
{
	struct list_node *at = list_pop_front(&t->spare);
	assert(at); /* tree_spares_ensure() came before */
	t->spare_count--;
	return container_of(at, struct node, node);
}

static void spare_free(struct tree *t)
{
	struct node *n = spare_take(t);
	buf_put(n->buf);
	free(n);
}

static int array_put_new(struct tree *t)
{
	struct list_node *a = calloc(NODE_FANOUT, sizeof(struct node *));
	if (!a)
		return -ENOMEM;
	list_push_front(&t->arrays, a);
	t->array_count++;
	return 0;
}

static struct node **cache_array_new(struct fs *fs)
{
	struct list_node *a = list_pop_front(&fs->tree.arrays);
	assert(a);
	fs->tree.array_count--;
	memset(a, 0, NODE_FANOUT * sizeof(struct node *));
	return (struct node **)(void *)a;
}

void cache_array_free(struct fs *fs, struct node **array)
{
	struct tree *t = &fs->tree;
	if (!array)
		return;
	if (t->array_count >= 64) {
		free(array);
		return;
	}
	list_push_front(&t->arrays, (struct list_node *)(void *)array);
	t->array_count++;
}

int cache_init(struct fs *fs)
{
	struct tree *t = &fs->tree;
	uint64_t bytes = fs->options.cache_bytes ? fs->options.cache_bytes : 64ull << 20;

	list_init(&t->lru);
	list_init(&t->dirty);
	list_init(&t->frozen);
	list_init(&t->dead);
	list_init(&t->spare);
	list_init(&t->arrays);
	if (bytes > arena_total_bytes() / 2)
		bytes = arena_total_bytes() / 2;
	fs->cache_data_bytes = bytes / 2;
	t->nodes_limit = bytes / 2 / TREE_NODE_BYTES;
	if (t->nodes_limit < NODES_MIN)
		t->nodes_limit = NODES_MIN;
	t->stamp = 1;
	struct tree_need need = {.nodes = SPARES_CHECKPOINT, .arrays = 16};
	int rc;
	while ((rc = tree_spares_ensure(fs, &need, true)) == -EAGAIN)
		;
	return rc;
}

static void node_free_tree(struct fs *fs, struct node *n)
{
	for (unsigned i = 0; n->child && i < NODE_FANOUT; i++)
		if (n->child[i])
			node_free_tree(fs, n->child[i]);
	free(n->child);
	buf_put(n->buf);
	free(n);
}

void cache_fini(struct fs *fs)
{
	struct tree *t = &fs->tree;
	if (!t->stamp)
		return; /* there was no memory for what is made before it */
	if (t->root)
		node_free_tree(fs, t->root);
	t->root = NULL;
	while (!list_empty(&t->dead))
		free(container_of(list_pop_front(&t->dead), struct node, node));
	while (!list_empty(&t->spare))
		spare_free(t);
	while (!list_empty(&t->arrays))
		free(list_pop_front(&t->arrays));
}

/* ------------------------------------------------------------------------------------------------
 * Reading
 */

/* The least recently used one of some. No wait. */
static bool evict_one(struct fs *fs)
{
	struct tree *t = &fs->tree;

	for (unsigned looks = 64; looks && !list_empty(&t->lru); looks--) {
		struct node *n = container_of(list_last(&t->lru), struct node, node);
		list_remove(&n->node);
		/* one with the newest stamp belongs to a transaction that is being prepared */
		if (n->pins || n->children || n == t->root || n->stamp == t->stamp) {
			list_push_front(&t->lru, &n->node);
			continue;
		}
		n->parent->child[node_index(n)] = NULL;
		n->parent->children--;
		cache_array_free(fs, n->child);
		buf_put(n->buf);
		free(n);
		t->nodes--;
		return true;
	}
	return false;
}

/* After -ETIMEDOUT another buffer. */
static bool node_read_again(int rc, unsigned *times, struct buf **buf, struct slice *to)
{
	if (!read_again(rc, times))
		return false;
	buf_renew(buf, false);
	to->buf = *buf;
	return true;
}

/* Reads and verifies a node, tries all ways, repairs. */
static int cache_read(struct fs *fs, struct buf **buf, const struct image_expect *expect)
{
	struct slice to = {*buf, 0, TREE_NODE_BYTES};
	unsigned times = 0;
	int rc;
	const struct volume_geometry *g = &fs->geometry;
	uint64_t blocks = volume_stripe_blocks(g) * g->stripes;

	if (expect->block % NODE_BLOCKS || expect->block > blocks - NODE_BLOCKS) {
		log_error("fs", "tree refers to a node outside of the volume block=%llu",
			(unsigned long long)expect->block);
		return -EIO;
	}
	do {
		rc = volume_read(fs->volume, expect->block, &to, 1);
	} while (node_read_again(rc, &times, buf, &to));
	const char *wrong = rc ? "cannot be read" : image_verify(to.buf->data, expect);
	if (!wrong) {
		if (!fs->read_only)
			volume_verified(fs->volume, expect->block, &to, 1);
		return 0;
	}
	log_warning("fs", "tree node %s block=%llu", wrong, (unsigned long long)expect->block);
	fs->tree.checksum_errors++;
	for (unsigned attempt = 0; attempt < REREAD_MAX; attempt++) {
		do {
			rc = volume_reread(fs->volume, expect->block, attempt, &to);
		} while (node_read_again(rc, &times, buf, &to));
		if (rc == -ENOENT || rc == -ETIMEDOUT)
			break;
		if (rc || image_verify(to.buf->data, expect))
			continue;
		fs->tree.checksum_repairs++;
		if (!fs->read_only)
			rc = volume_repair(fs->volume, expect->block, &to);
		if (rc)
			log_warning("fs", "tree node could not be repaired block=%llu error=%d",
				(unsigned long long)expect->block, rc);
		return 0;
	}
	log_error("fs", "tree node is lost block=%llu reason=\"%s\"", (unsigned long long)expect->block, wrong);
	return -EIO;
}

static void node_unpin(struct node *n)
{
	if (--n->pins == 0 && n->error)
		free(n);
}

/* When the arena is used up, clean nodes go before anybody waits. NULL: there was none to evict. No wait. */
static struct buf *node_buf_try(struct fs *fs)
{
	struct buf *buf;

	cache_trim(fs);
	while (!(buf = buf_try_alloc(TREE_NODE_BYTES)))
		if (!evict_one(fs))
			break;
	return buf;
}

/* Waits for memory where there is none: everything may have changed after. */
static struct buf *node_buf(struct fs *fs)
{
	struct buf *buf = node_buf_try(fs);
	return buf ? buf : buf_alloc(TREE_NODE_BYTES);
}

int cache_load_child(struct fs *fs, struct node *parent, unsigned slot, const struct image_expect *expect)
{
	struct tree *t = &fs->tree;
	struct node *n = parent->child[slot];

	if (n) {
		if (n->state != NODE_LOADING)
			return 0;
		n->pins++;
		while (n->state == NODE_LOADING && !n->error)
			wait_queue_wait(&n->loaded, NEVER);
		int rc = n->error;
		node_unpin(n);
		return rc;
	}
	n = node_alloc();
	if (!n)
		return -ENOMEM;
	n->state = NODE_LOADING;
	n->parent = parent;
	n->level = (uint8_t)(parent->level - 1);
	n->block = expect->block;
	n->generation = expect->generation;
	n->pins = 1;
	parent->child[slot] = n;
	parent->children++;
	int rc = 0;
	if (n->level && t->array_count == 0)
		rc = array_put_new(t);
	if (n->level && !rc)
		n->child = cache_array_new(fs);
	if (!rc) {
		n->buf = node_buf(fs);
		rc = cache_read(fs, &n->buf, expect);
	}
	if (rc) {
		parent = n->parent;
		parent->child[node_index(n)] = NULL;
		parent->children--;
		cache_array_free(fs, n->child);
		buf_put(n->buf);
		n->child = NULL;
		n->buf = NULL;
		n->error = rc;
	} else {
		n->state = NODE_CLEAN;
		list_push_front(&t->lru, &n->node);
		t->nodes++;
	}
	wait_queue_wake_all(&n->loaded);
	node_unpin(n);
	return rc;
}

int cache_load_root(struct fs *fs, uint64_t block, uint64_t generation, unsigned level)
{
	struct image_expect expect = {.uuid = &fs->uuid, .block = block, .generation = generation, .level = (int)level};
	struct tree *t = &fs->tree;
	struct node *n = node_alloc();

	if (!n)
		return -ENOMEM;
	n->level = (uint8_t)level;
	n->block = block;
	n->generation = generation;
	n->buf = node_buf(fs);
	int rc = cache_read(fs, &n->buf, &expect);
	if (!rc && level && !t->array_count)
		rc = array_put_new(t);
	if (rc) {
		buf_put(n->buf);
		free(n);
		return rc;
	}
	if (level)
		n->child = cache_array_new(fs);
	n->state = NODE_CLEAN;
	list_push_front(&t->lru, &n->node);
	t->nodes++;
	t->root = n;
	return 0;
}

void cache_use(struct fs *fs, struct node *leaf)
{
	if (leaf->state != NODE_CLEAN || fs->tree.lru.head.next == &leaf->node)
		return;
	list_remove(&leaf->node);
	list_push_front(&fs->tree.lru, &leaf->node);
}

/* Evicts what is over the limit, unless a pass has run too often (transact.c). No wait. */
void cache_trim(struct fs *fs)
{
	struct tree *t = &fs->tree;
	unsigned many = 64;

	while (t->nodes > t->nodes_limit && !t->holds && many-- && evict_one(fs))
		;
}

/* ------------------------------------------------------------------------------------------------
 * Spares, and changes of state
 */

int tree_spares_ensure(struct fs *fs, const struct tree_need *need, bool checkpoint)
{
	struct tree *t = &fs->tree;
	size_t nodes = need->nodes + need->bytes / NODE_SPLIT_ROOM + NODE_LEVELS + 2;
	size_t arrays = need->arrays + need->bytes / NODE_SPLIT_ROOM / 64 + 4;

	if (!checkpoint)
		nodes += SPARES_CHECKPOINT;
	while (t->array_count < arrays)
		if (array_put_new(t))
			return -ENOMEM;
	while (t->spare_count < nodes) {
		struct node *n = node_alloc();
		if (!n)
			return -ENOMEM;
		n->buf = node_buf_try(fs);
		if (!n->buf) {
			n->buf = buf_alloc(TREE_NODE_BYTES);
			spare_put(t, n);
			return -EAGAIN;
		}
		spare_put(t, n);
	}
	while (t->spare_count > nodes + 256)
		spare_free(t);
	return 0;
}

struct node *cache_node_new(struct fs *fs, unsigned level)
{
	struct tree *t = &fs->tree;
	struct node *n = spare_take(t);

	image_init(n->buf->data, level);
	n->level = (uint8_t)level;
	if (level)
		n->child = cache_array_new(fs);
	n->state = NODE_DIRTY;
	list_push_back(&t->dirty, &n->node);
	t->dirty_count++;
	t->nodes++;
	t->fresh++;
	return n;
}

void cache_node_dirty(struct fs *fs, struct node *n)
{
	struct tree *t = &fs->tree;

	if (n->state == NODE_DIRTY)
		return;
	if (n->state == NODE_FROZEN) {
		/* the checkpoint holds the old image by a reference of its own */
		struct node *spare = spare_take(t);
		memcpy(spare->buf->data, n->buf->data, TREE_NODE_BYTES);
		buf_put(n->buf);
		n->buf = spare->buf;
		free(spare);
		t->frozen_count--;
	}
	list_remove(&n->node);
	n->state = NODE_DIRTY;
	list_push_back(&t->dirty, &n->node);
	t->dirty_count++;
}

/* N is out of its parent already. Its place on the drives, if it has one, is given up by the next checkpoint. */
void cache_node_dead(struct fs *fs, struct node *n)
{
	struct tree *t = &fs->tree;

	list_remove(&n->node);
	if (n->state == NODE_DIRTY)
		t->dirty_count--;
	if (n->state == NODE_FROZEN)
		t->frozen_count--;
	t->nodes--;
	cache_array_free(fs, n->child);
	buf_put(n->buf);
	n->child = NULL;
	n->buf = NULL;
	n->state = NODE_DEAD;
	if (n->generation) {
		list_push_back(&t->dead, &n->node);
		t->dead_count++;
	} else {
		t->fresh--;
		free(n);
	}
}
