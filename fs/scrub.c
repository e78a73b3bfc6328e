/*
 * What the file system tells a scrub of its array: a stripe has rows that do not fit their parity, and the array cannot
 * tell which block is wrong. Here every live block of the stripe is read and verified by its checksum, which also
 * repairs it where another way to reconstruct it matches; afterwards the data is right, and what still does not fit is
 * the parity's fault.
 *
 * Who owns a block is found as the cleaner finds it: by KEY_SUMMARY, then by the owner's extents. Blocks that no
 * summary explains leave the answer open. Nodes of the tree carry their own checksum and place.
 *
 * On the file system's home reactor, inside of a read section: stripes that are dropped meanwhile are not reused.
 */
#include "fs/inode_internal.h"

struct live_block {
	uint64_t ino, file_block;
	uint32_t sum;
	bool live;
};

struct stripe_check {
	struct fs *fs;
	uint64_t stripe;
	bool *row_used;
	int result;
	/* data stripes */
	struct live_block *block;
	struct fs_key next;
	unsigned next_run; /* of the summary there */
	struct owner_seen {
		uint64_t ino, file_block;
		uint32_t count;
		bool valid;
	} owner;
	uint64_t at;
	uint64_t found;
};

/* The next run that the summaries of the stripe tell of. */
static int owner_pass(struct tx *tx, void *arg)
{
	struct stripe_check *c = arg;
	uint64_t end = (c->stripe + 1) * tx_fs(tx)->space.stripe_blocks;
	struct fs_key key = c->next;

	c->owner.valid = false;
	for (;;) {
		const void *val;
		size_t len;
		int rc = tx_next(tx, &key, &val, &len);
		if (rc == -ENOENT || (!rc && (key.ino || key.type != KEY_SUMMARY || key.off >= end)))
			return 0;
		if (rc)
			return rc;
		if (key.off != c->next.off || key.snap != c->next.snap)
			c->next_run = 0;
		c->next = key;
		if (c->next_run < summary_runs(len)) {
			struct summary_disk d = summary_run(val, c->next_run++);
			c->owner =
				(struct owner_seen){le64_get(d.ino), le64_get(d.file_block), le16_get(d.count), true};
			return 0;
		}
		key.snap++; /* the one of FS_SHARED_INO may stand beside it */
	}
}

static bool live_add(void *arg, uint64_t file_block, uint64_t block, uint32_t sum)
{
	struct stripe_check *c = arg;
	uint64_t first = c->stripe * c->fs->space.stripe_blocks;

	if (block >= first && block - first < c->fs->space.stripe_blocks) {
		c->found += !c->block[block - first].live;
		c->block[block - first] = (struct live_block){c->owner.ino, file_block, sum, true};
	}
	return true;
}

static int live_pass(struct tx *tx, void *arg)
{
	struct stripe_check *c = arg;
	uint64_t block = c->at;
	int rc = extents_owned(tx, c->owner.ino, &block, c->owner.file_block + c->owner.count, live_add, c);

	if (!rc)
		c->at = block;
	return rc;
}

static int data_check(struct stripe_check *c)
{
	struct fs *fs = c->fs;
	uint32_t blocks = fs->space.stripe_blocks, strip = fs->geometry.strip_blocks;
	uint64_t first = c->stripe * blocks;
	int result = 0;

	c->block = calloc(blocks, sizeof(*c->block));
	if (!c->block)
		return -ENOMEM;
	c->next = (struct fs_key){.type = KEY_SUMMARY, .off = first};
	for (;;) {
		int rc = fs_view(fs, owner_pass, c);
		if (rc) {
			free(c->block);
			return rc;
		}
		if (!c->owner.valid)
			break;
		c->at = c->owner.file_block;
		while (!rc && c->at < c->owner.file_block + c->owner.count) {
			uint64_t before = c->at;
			rc = fs_view(fs, live_pass, c);
			if (c->at == before)
				break;
		}
		if (rc && rc != -ENOENT)
			result = rc;
	}
	if (c->found < stripe_live(fs->space.table[c->stripe]))
		result = -ENOENT; /* some are not explained */
	struct buf *buf = buf_alloc(BLOCK_BYTES);
	struct slice to = {buf, 0, BLOCK_BYTES};
	for (uint32_t i = 0; i < blocks; i++) {
		const struct live_block *b = &c->block[i];
		if (!b->live)
			continue;
		c->row_used[i % strip] = true;
		int rc = blocks_read_verified(fs, b->ino, b->file_block, first + i, 1, &b->sum, &to, 1);
		if (rc == -ETIMEDOUT) {
			buf_put(buf);
			buf = to.buf = buf_alloc(BLOCK_BYTES);
			rc = blocks_read_verified(fs, b->ino, b->file_block, first + i, 1, &b->sum, &to, 1);
		}
		if (rc)
			result = rc;
	}
	buf_put(buf);
	free(c->block);
	return result;
}

/* A place of the stripe holds a node, or what was one, or nothing of ours: only the first kind says so itself. */
static int nodes_check(struct stripe_check *c)
{
	struct fs *fs = c->fs;
	uint32_t blocks = fs->space.stripe_blocks, strip = fs->geometry.strip_blocks;
	uint64_t first = c->stripe * blocks;
	struct buf *buf = buf_alloc(TREE_NODE_BYTES);
	int result = 0;

	for (uint32_t i = 0; i + NODE_BLOCKS <= blocks; i += NODE_BLOCKS) {
		struct image_expect expect = {.uuid = &fs->uuid, .block = first + i, .level = -1};
		struct slice to = {buf, 0, TREE_NODE_BYTES};
		int rc = volume_read(fs->volume, expect.block, &to, 1);
		bool good = !rc && !image_verify(buf->data, &expect);
		if (good)
			volume_verified(fs->volume, expect.block, &to, 1);
		for (unsigned attempt = 1; !good && attempt < 64; attempt++) {
			rc = volume_reread(fs->volume, expect.block, attempt, &to);
			if (rc == -ENOENT || rc == -ETIMEDOUT)
				break;
			if (rc || image_verify(buf->data, &expect))
				continue;
			good = true;
			fs->tree.checksum_errors++;
			fs->tree.checksum_repairs++;
			rc = volume_repair(fs->volume, expect.block, &to);
			if (rc)
				result = rc;
		}
		if (rc == -ETIMEDOUT) {
			buf_put(buf);
			buf = buf_alloc(TREE_NODE_BYTES);
			result = -EIO;
		}
		for (unsigned j = 0; good && j < NODE_BLOCKS; j++)
			c->row_used[(i + j) % strip] = true;
	}
	buf_put(buf);
	return result;
}

static void check_home(void *arg)
{
	struct stripe_check *c = arg;
	struct fs *fs = c->fs;

	if (c->stripe >= fs->space.stripes || fs->failed) {
		c->result = -ENOENT;
		return;
	}
	unsigned phase = read_enter(fs->files);
	uint32_t value = fs->space.table[c->stripe];
	if (!stripe_live(value))
		c->result = fs->space.flags[c->stripe] ? -ENOENT : 0;
	else
		c->result = stripe_class(value) == STRIPE_NODES ? nodes_check(c) : data_check(c);
	read_leave(fs->files, phase);
}

int fs_stripe_check(void *arg, uint64_t stripe, bool *row_used)
{
	struct stripe_check c = {.fs = arg, .stripe = stripe, .row_used = row_used};

	reactor_call(c.fs->home, check_home, &c);
	return c.result;
}
