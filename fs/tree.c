/*
 * The tree: ways down, and changes to nodes that are in memory.
 *
 * A B+tree whose leaves hold the values. An internal node's slot I holds the lowest key that its
 * child I may have; the key of slot 0 is not looked at, since the bound comes from above. The range of
 * a child can only grow while it stays (a neighbour is merged or dropped), never shrink except by
 * its own split: so what was true of a key and a node stays true over a wait for that node.
 *
 * Changes (tree_apply_*) come from transactions that are prepared: the whole way to the key is in
 * memory and spares are there. They make the way dirty from the root down, since every node whose
 * child moves must name its new place at the next checkpoint. A leaf that gets empty is dropped, with every
 * parent that gets empty by it; one that gets sparse takes up a neighbour that is in memory.
 *
 * Splits leave leaves half full, and what is written to many files at a time splits everywhere. So before a checkpoint
 * writes what is dirty, leaves that lie one beside the other are packed (tree_pack()): fewer nodes to write, to read
 * and to keep.
 */
#include <stdlib.h>

#include "fs/fs_internal.h"

int fs_key_compare(const struct fs_key *a, const struct fs_key *b)
{
	struct pkey pa = pkey_pack(a), pb = pkey_pack(b);
	return pkey_compare(&pa, &pb);
}

unsigned node_index(struct node *n)
{
	struct node *p = n->parent;

	/* the first key leads there, but for a node that is being read or has become empty */
	if (n->buf && n->state != NODE_LOADING && image_count(n->buf->data)) {
		struct pkey first = image_key(n->buf->data, 0);
		unsigned i = image_child(p->buf->data, &first);
		if (p->child[i] == n)
			return i;
	}
	for (unsigned i = 0; i < image_count(p->buf->data); i++)
		if (p->child[i] == n)
			return i;
	assert(false && "child without a slot");
	return 0;
}

/* Goes down to LEVEL. */
static struct node *descend(struct fs *fs, const struct pkey *key, unsigned level, struct tree_path *path)
{
	struct node *n = fs->tree.root;

	*path = (struct tree_path){.leaf = NULL};
	while (n->level > level) {
		unsigned i = image_child(n->buf->data, key);
		if (i > 0) {
			path->lower = image_key(n->buf->data, i);
			path->has_lower = true;
		}
		if (i + 1 < image_count(n->buf->data)) {
			path->upper = image_key(n->buf->data, i + 1);
			path->has_upper = true;
		}
		struct node *child = n->child[i];
		if (!child || child->state == NODE_LOADING) {
			path->miss = n;
			path->slot = i;
			return NULL;
		}
		n = child;
	}
	path->leaf = n;
	return n;
}

struct node *tree_descend(struct fs *fs, const struct pkey *key, struct tree_path *path)
{
	struct node *leaf = descend(fs, key, 0, path);
	if (leaf)
		cache_use(fs, leaf);
	return leaf;
}

static int load_level(struct fs *fs, const struct pkey *key, unsigned level, struct node **found)
{
	struct tree_path path;

	while (!(*found = descend(fs, key, level, &path))) {
		size_t len;
		const struct child_disk *c = image_value(path.miss->buf->data, path.slot, &len);
		struct image_expect expect = {.uuid = &fs->uuid,
			.block = le64_get(c->block),
			.generation = le64_get(c->generation),
			.level = path.miss->level - 1,
			.has_upper = path.has_upper,
			.upper = path.upper};
		if (path.has_lower)
			expect.lower = path.lower;
		int rc = cache_load_child(fs, path.miss, path.slot, &expect);
		if (rc)
			return rc;
	}
	return 0;
}

int tree_load(struct fs *fs, const struct pkey *key)
{
	struct node *leaf;
	return load_level(fs, key, 0, &leaf);
}

bool tree_count_path(struct fs *fs, const struct pkey *key, bool all_frozen, struct tree_need *need)
{
	struct tree_path path;
	uint64_t stamp = fs->tree.stamp;

	struct node *n = tree_descend(fs, key, &path);
	if (!n)
		return false;
	for (; n && n->stamp != stamp; n = n->parent) {
		n->stamp = stamp;
		need->nodes += all_frozen || n->state == NODE_FROZEN ? 2 : 1;
		if (n->level)
			need->arrays++;
	}
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * Changes
 */

static void dirty_way(struct fs *fs, struct node *n)
{
	for (; n && n->state != NODE_DIRTY; n = n->parent)
		cache_node_dirty(fs, n);
}

static void child_insert(struct node *parent, unsigned slot, const struct pkey *key, struct node *child)
{
	struct child_disk ref = {le64_put(child->block), le64_put(child->generation)};
	unsigned count = image_count(parent->buf->data);

	bool done = image_insert(parent->buf->data, slot, key, &ref, sizeof(ref));
	assert(done);
	(void)done;
	memmove(parent->child + slot + 1, parent->child + slot, (count - slot) * sizeof(parent->child[0]));
	parent->child[slot] = child;
	parent->children++;
	child->parent = parent;
}

static void child_remove(struct node *parent, unsigned slot)
{
	unsigned count = image_count(parent->buf->data);
	struct pkey bound = image_key(parent->buf->data, 0);

	image_remove(parent->buf->data, slot);
	/* what is first has all from there on: when it is split, what comes behind it may begin below its old key */
	if (slot == 0 && count > 1)
		image_set_key(parent->buf->data, 0, &bound);
	if (parent->child[slot])
		parent->children--;
	memmove(parent->child + slot, parent->child + slot + 1, (count - slot - 1) * sizeof(parent->child[0]));
	parent->child[count - 1] = NULL;
}

/* Copies the slots of FROM from FIRST on to the end of N, and moves the children that are there. */
static void slots_append(struct node *n, struct node *from, unsigned first)
{
	unsigned count = image_count(from->buf->data), into = image_count(n->buf->data);

	image_append(n->buf->data, from->buf->data, first, count);
	if (!n->level)
		return;
	for (unsigned i = first; i < count; i++) {
		struct node *c = from->child[i];
		n->child[into + i - first] = c;
		from->child[i] = NULL;
		if (c) {
			c->parent = n;
			from->children--;
			n->children++;
		}
	}
}

/* Splits N so that LEN bytes fit in at KEY; returns the half where they belong. */
static struct node *split(struct fs *fs, struct node *n, const struct pkey *key, size_t len)
{
	struct node *parent = n->parent;
	unsigned slot;

	if (!parent) {
		/* a new root above */
		parent = cache_node_new(fs, n->level + 1u);
		struct pkey zero = {{0}};
		child_insert(parent, 0, &zero, n);
		fs->tree.root = parent;
	}
	image_find(n->buf->data, key, &slot);
	unsigned at = image_split_at(n->buf->data, slot, len);
	struct node *right = cache_node_new(fs, n->level);
	slots_append(right, n, at);
	image_truncate(n->buf->data, at);
	struct pkey separator = image_key(right->buf->data, 0);
	bool to_right = slot > at || (slot == at && image_used(right->buf->data) < image_used(n->buf->data));
	if (to_right && pkey_compare(key, &separator) < 0)
		separator = *key;
	if (!image_fits(parent->buf->data, sizeof(struct child_disk)))
		parent = split(fs, parent, &separator, sizeof(struct child_disk));
	/* a split of the parent between N and its new neighbour leaves N in the left half */
	child_insert(parent, n->parent == parent ? node_index(n) + 1 : 0, &separator, right);
	return to_right ? right : n;
}

/* While the root has but one child, that is the root. */
static void collapse(struct fs *fs)
{
	struct node *root = fs->tree.root;

	while (root->level && image_count(root->buf->data) == 1 && root->child[0] &&
		root->child[0]->state != NODE_LOADING) {
		struct node *child = root->child[0];
		child->parent = NULL;
		root->child[0] = NULL;
		root->children = 0;
		fs->tree.root = child;
		cache_node_dead(fs, root);
		root = child;
	}
}

/* A sparse node joins a neighbour that is in memory. No image is copied for it: the right one is only read. */
static void merge(struct fs *fs, struct node *n)
{
	struct node *parent = n->parent;
	unsigned used = image_used(n->buf->data);

	if (!parent || used > NODE_ROOM / 4)
		return;
	unsigned i = node_index(n);
	for (int side = 1; side >= -1; side -= 2) {
		if (side < 0 ? i == 0 : i + 1 >= image_count(parent->buf->data))
			continue;
		unsigned at = side > 0 ? i : i - 1; /* slot of the left one */
		struct node *left = parent->child[at], *right = parent->child[at + 1];
		struct node *other = side > 0 ? right : left;
		if (!other || other->state == NODE_LOADING || other->pins || left->state == NODE_FROZEN ||
			image_used(other->buf->data) + used > NODE_ROOM * 3 / 4)
			continue;
		unsigned joint = image_count(left->buf->data);
		struct pkey bound = image_key(parent->buf->data, at + 1);
		cache_node_dirty(fs, left);
		slots_append(left, right, 0);
		if (left->level)
			image_set_key(left->buf->data, joint, &bound); /* was slot 0, whose key was no bound */
		child_remove(parent, at + 1);
		cache_node_dead(fs, right);
		merge(fs, parent);
		return;
	}
}

/* Takes an empty node out, and its parents as far as they get empty by it. */
static void drop(struct fs *fs, struct node *n)
{
	while (n->parent && image_count(n->buf->data) == 0) {
		struct node *parent = n->parent;
		child_remove(parent, node_index(n));
		cache_node_dead(fs, n);
		n = parent;
	}
	if (image_count(n->buf->data)) {
		merge(fs, n);
	} else if (n->level) {
		/* the root of an empty tree is a leaf */
		cache_array_free(fs, n->child);
		n->child = NULL;
		n->level = 0;
		image_init(n->buf->data, 0);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Packing
 */

#define PACK_FULL (NODE_ROOM - NODE_ROOM / 16) /* the rest is for a few more entries */
#define PACK_STEP 128u			       /* leaves looked at without a wait */

static bool leaf_packable(const struct node *n)
{
	return n && n->state == NODE_DIRTY && !n->pins;
}

/* The first entries of RIGHT become the last of LEFT, as many as fit. */
static void leaf_fill(struct node *left, struct node *right)
{
	const struct slot_disk *s = image_slots(right->buf->data);
	unsigned used = image_used(left->buf->data), count = image_count(right->buf->data), n = 0;

	for (; n < count; n++) {
		used += (unsigned)sizeof(*s) + le16_get(s[n].len);
		if (used > PACK_FULL)
			break;
	}
	image_append(left->buf->data, right->buf->data, 0, n);
	image_behead(right->buf->data, n);
}

/* Leaves FIRST..END of PARENT: their entries move to the left, and who has none left goes. Returns how many stay. */
static unsigned leaves_pack(struct fs *fs, struct node *parent, unsigned first, unsigned end)
{
	unsigned at = first;

	while (at + 1 < end) {
		struct node *right = parent->child[at + 1];

		leaf_fill(parent->child[at], right);
		if (image_count(right->buf->data)) {
			struct pkey bound = image_key(right->buf->data, 0);
			image_set_key(parent->buf->data, ++at, &bound);
		} else {
			child_remove(parent, at + 1);
			cache_node_dead(fs, right);
			end--;
		}
	}
	return end - first;
}

static void children_pack(struct fs *fs, struct node *parent)
{
	for (unsigned first = 0; first < image_count(parent->buf->data);) {
		unsigned end = first, used = 0;

		for (; end < image_count(parent->buf->data) && leaf_packable(parent->child[end]); end++)
			used += image_used(parent->child[end]->buf->data);
		if (used <= (end - first) * PACK_FULL && (end - first) * PACK_FULL - used >= PACK_FULL)
			end = first + leaves_pack(fs, parent, first, end);
		first = end + 1;
	}
}

/*
 * Below N, whose keys end at UPPER (NULL: never), the first dirty parent of leaves that has keys from FROM on. *NEXT:
 * where it ends, unless *LAST.
 */
static struct node *dirty_parent_find(
	struct node *n, const struct pkey *from, const struct pkey *upper, struct pkey *next, bool *last)
{
	unsigned count = image_count(n->buf->data);

	if (n->level == 1) {
		*last = !upper;
		if (upper)
			*next = *upper;
		return n;
	}
	for (unsigned i = image_child(n->buf->data, from); i < count; i++) {
		struct node *c = n->child[i];
		struct pkey bound;

		if (!c || c->state != NODE_DIRTY)
			continue;
		if (i + 1 < count)
			bound = image_key(n->buf->data, i + 1);
		c = dirty_parent_find(c, from, i + 1 < count ? &bound : upper, next, last);
		if (c)
			return c;
	}
	return NULL;
}

bool tree_pack(struct fs *fs, struct pkey *from)
{
	for (unsigned looked = 0; looked < PACK_STEP;) {
		struct node *root = fs->tree.root, *parent = NULL;
		struct pkey next;
		bool last;

		if (root->level > 0 && root->state == NODE_DIRTY)
			parent = dirty_parent_find(root, from, NULL, &next, &last);
		if (!parent)
			return false;
		looked += parent->children + 1u;
		children_pack(fs, parent);
		merge(fs, parent);
		collapse(fs);
		if (last)
			return false;
		*from = next;
	}
	return true;
}

int tree_cut(struct fs *fs, const struct pkey *key, struct pkey *from, struct pkey *to, bool *has_to)
{
	struct tree_need need = {.nodes = 2 * NODE_LEVELS, .arrays = 2 * NODE_LEVELS};
	struct tree_path path;
	int rc;

	while ((rc = tree_spares_ensure(fs, &need, false)) == -EAGAIN)
		;
	if (rc)
		return rc;
	if (descend(fs, key, 0, &path))
		return -EINVAL; /* the whole way can be read */
	*from = path.has_lower ? path.lower : (struct pkey){{0}};
	*to = path.upper;
	*has_to = path.has_upper;
	dirty_way(fs, path.miss);
	child_remove(path.miss, path.slot);
	drop(fs, path.miss);
	collapse(fs);
	return 0;
}

void tree_apply_put(struct fs *fs, const struct pkey *key, const void *val, size_t len)
{
	struct tree_path path;
	struct node *leaf = tree_descend(fs, key, &path);
	unsigned slot;

	assert(leaf);
	dirty_way(fs, leaf);
	if (image_find(leaf->buf->data, key, &slot)) {
		if (image_replace(leaf->buf->data, slot, val, len))
			return;
		image_remove(leaf->buf->data, slot);
	}
	if (!image_fits(leaf->buf->data, len)) {
		leaf = split(fs, leaf, key, len);
		image_find(leaf->buf->data, key, &slot);
	}
	bool done = image_insert(leaf->buf->data, slot, key, val, len);
	assert(done);
	(void)done;
}

bool tree_apply_delete(struct fs *fs, const struct pkey *key)
{
	struct tree_path path;
	struct node *leaf = tree_descend(fs, key, &path);
	unsigned slot;

	assert(leaf);
	if (!image_find(leaf->buf->data, key, &slot))
		return false;
	dirty_way(fs, leaf);
	image_remove(leaf->buf->data, slot);
	if (image_count(leaf->buf->data) == 0)
		return true;
	merge(fs, leaf);
	collapse(fs);
	return false;
}

void tree_apply_drop(struct fs *fs, const struct pkey *key)
{
	struct tree_path path;
	struct node *leaf = tree_descend(fs, key, &path);

	if (!leaf || image_count(leaf->buf->data))
		return;
	drop(fs, leaf);
	collapse(fs);
}

void tree_apply_stripe(struct fs *fs, uint64_t stripe, uint32_t value)
{
	struct fs_key key = {.type = KEY_STRIPES, .off = stripe / STRIPES_PER_KEY};
	struct pkey p = pkey_pack(&key);
	struct tree_path path;
	struct node *leaf = tree_descend(fs, &p, &path);
	struct stripes_disk *group, fresh;
	unsigned slot;

	assert(leaf);
	if (image_find(leaf->buf->data, &p, &slot) &&
		le16_get(image_slots(leaf->buf->data)[slot].len) == sizeof(*group)) {
		dirty_way(fs, leaf);
		group = (struct stripes_disk *)(void *)(leaf->buf->data +
							le16_get(image_slots(leaf->buf->data)[slot].off));
		group->stripe[stripe % STRIPES_PER_KEY] = le32_put(value);
		return;
	}
	memset(&fresh, 0, sizeof(fresh));
	fresh.stripe[stripe % STRIPES_PER_KEY] = le32_put(value);
	tree_apply_put(fs, &p, &fresh, sizeof(fresh));
}

/* ------------------------------------------------------------------------------------------------
 * Reads outside of transactions
 */

int tree_get(struct fs *fs, const struct fs_key *key, void *val, size_t room)
{
	struct pkey p = pkey_pack(key);
	struct tree_path path;
	unsigned slot;
	size_t len;

	while (!tree_descend(fs, &p, &path)) {
		int rc = tree_load(fs, &p);
		if (rc)
			return rc;
	}
	if (!image_find(path.leaf->buf->data, &p, &slot))
		return -ENOENT;
	const void *at = image_value(path.leaf->buf->data, slot, &len);
	memcpy(val, at, len < room ? len : room);
	return (int)len;
}

/* A step of a walk: the value at or after (before) P, which is replaced by its key. -EAGAIN: P's leaf is not in memory.
 */
int tree_seek(struct fs *fs, struct pkey *p, bool forward, const void **val, size_t *len)
{
	struct tree_path path;
	unsigned slot;

	for (;;) {
		struct node *leaf = tree_descend(fs, p, &path);
		if (!leaf)
			return -EAGAIN;
		bool equal = image_find(leaf->buf->data, p, &slot);
		if (forward ? slot < image_count(leaf->buf->data) : equal || slot > 0) {
			if (!forward && !equal)
				slot--;
			*p = image_key(leaf->buf->data, slot);
			*val = image_value(leaf->buf->data, slot, len);
			return 0;
		}
		if (forward) {
			if (!path.has_upper)
				return -ENOENT;
			*p = path.upper;
		} else {
			if (!path.has_lower)
				return -ENOENT;
			*p = path.lower;
			for (int i = 2; i >= 0 && p->w[i]-- == 0; i--)
				;
		}
	}
}

static int tree_step(struct fs *fs, struct fs_key *key, bool forward, void *val, size_t room)
{
	struct pkey p = pkey_pack(key);
	const void *at;
	size_t len;
	int rc;

	while ((rc = tree_seek(fs, &p, forward, &at, &len)) == -EAGAIN)
		if ((rc = tree_load(fs, &p)) != 0)
			return rc;
	if (rc)
		return rc;
	*key = pkey_unpack(&p);
	memcpy(val, at, len < room ? len : room);
	return (int)len;
}

int tree_next(struct fs *fs, struct fs_key *key, void *val, size_t room)
{
	return tree_step(fs, key, true, val, room);
}

int tree_prev(struct fs *fs, struct fs_key *key, void *val, size_t room)
{
	return tree_step(fs, key, false, val, room);
}

/* One level after the other, each node found anew by its range, since the tree may change while FN waits. */
int tree_walk_nodes(struct fs *fs, int (*fn)(void *arg, uint64_t block, unsigned blocks, unsigned level), void *arg)
{
	for (unsigned level = 0; level <= fs->tree.root->level; level++) {
		struct pkey p = {{0}};
		for (;;) {
			struct tree_path path;
			struct node *n;
			int rc = load_level(fs, &p, level, &n);
			if (rc)
				return rc;
			n = descend(fs, &p, level, &path);
			if (n->generation) /* else it is new, and has no place yet */
				rc = fn(arg, n->block, NODE_BLOCKS, level);
			if (rc)
				return rc;
			cache_trim(fs);
			if (!path.has_upper)
				break;
			p = path.upper;
		}
	}
	return 0;
}

/* For the node cleaner: makes the node at BLOCK dirty if the tree still has it there. Waits. */
int tree_move_node(struct fs *fs, const struct pkey *key, unsigned level, uint64_t block)
{
	struct node *n;

	if (level > fs->tree.root->level)
		return 0;
	int rc = load_level(fs, key, level, &n);
	if (rc || n->block != block || n->state == NODE_DIRTY || !n->generation)
		return rc;
	for (struct node *up = n; up; up = up->parent)
		if (up->state == NODE_FROZEN)
			return 0;
	dirty_way(fs, n);
	return 0;
}
