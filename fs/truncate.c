/*
 * The size of a file, set.
 *
 * Whoever sets a size is alone with the file's data: no writer places blocks, no flush group has
 * any. When the file becomes shorter and its new end lies inside a block, that block is written
 * anew with zeros behind the end and takes its place in the transaction that sets the size: so
 * beyond the end there are only zeros on the drives, and growing again shows no old bytes.
 *
 * The extents behind the end go in transactions of bounded size, from the last one down, each of
 * which lowers the size in the tree to what is left: a crash in between leaves a file that is
 * shorter than before and whole up to there, and the call that was never answered comes again. The
 * size that others see moves with the last transaction, together with all other attributes of the
 * call. So a file may grow again at once; nothing is left to be done in the background.
 */
#include "fs/inode_internal.h"

#define TRUNCATE_EXTENTS 48u /* in a transaction */

struct size_call {
	const struct fs_op *op;
	struct fs_id id;
	const struct fs_setattr *set;
	const struct timespec *guard;
	struct fs_wcc *wcc;
	struct fs_attr *attr;
	struct inode *inode;
	/* the block with the new end, when it was written anew */
	bool tail;
	uint64_t tail_phys;
	uint32_t tail_sum;
	unsigned limit;
	uint64_t left, left_after; /* blocks from here on are gone */
	bool last, grow;
	struct change change;
};

static int size_check(struct size_call *c, struct inode *inode)
{
	struct inode_attr copy = inode->attr;

	wcc_before(c->wcc, &inode->attr);
	wcc_after(c->wcc, &inode->attr, inode->ino);
	if (c->guard && time_pack(c->guard) != inode->attr.ctime)
		return -EBUSY;
	return attr_set(&copy, c->op, c->set, time_now());
}

static int size_find_pass(struct tx *tx, void *arg)
{
	struct size_call *c = arg;
	struct inode *inode;
	int r = inode_get(tx, c->id, &inode);

	if (r == 0)
		r = size_check(c, inode);
	if (r < 0)
		return r;
	inode_ref(inode);
	c->inode = inode;
	return 0;
}

/* What memory holds behind the new end goes, in one go with the transaction. */
static void size_applied(struct change *change, void *arg)
{
	struct size_call *c = arg;
	uint64_t size = c->set->size, block = size / BLOCK_BYTES;
	uint32_t cut = (uint32_t)(size % BLOCK_BYTES);
	struct block_record *rec;

	data_discard(change->fs, c->inode, cut ? block + 1 : block);
	rec = cut ? record_find(change->fs->files, c->inode, block) : NULL;
	if (!rec)
		return;
	if (rec->lo >= cut)
		record_remove(change->fs, rec);
	else if (rec->hi > cut)
		rec->hi = (uint16_t)cut;
}

static void size_part_applied(struct change *change, void *arg)
{
	struct size_call *c = arg;

	(void)change;
	c->left = c->left_after;
}

static int size_pass(struct tx *tx, void *arg)
{
	struct size_call *c = arg;
	uint64_t size = c->set->size, block = size / BLOCK_BYTES, from = block, blocks = 0, left = c->left;
	struct inode_attr *attr;
	int r;

	change_begin(&c->change, tx);
	attr = change_inode(&c->change, c->inode);
	c->last = false;
	if (size % BLOCK_BYTES)
		from++; /* the block with the new end stays, or is written anew */
	r = extents_remove(tx, c->inode->ino, from, &left, c->limit, &blocks);
	if (r < 0)
		return r;
	attr->blocks -= blocks < attr->blocks ? blocks : attr->blocks;
	c->left_after = left;
	/* the last pass of several writes the new end: what is cut is not to be cut again in one pass */
	if (left > from || (c->tail && blocks > 0)) {
		if (attr->disk_size > left * BLOCK_BYTES)
			attr->disk_size = left * BLOCK_BYTES;
		c->change.applied = size_part_applied;
		c->change.applied_arg = c;
		return change_finish(&c->change, tx, NULL, c->id);
	}
	c->last = true;
	if (c->tail) {
		le32 sum = le32_put(c->tail_sum);
		struct extent_edit e = {.first = block, .count = 1, .block = c->tail_phys, .sums = sum.b};

		blocks = 0;
		r = extents_edit(tx, c->inode->ino, &e, 1, &blocks);
		if (r < 0)
			return r;
		attr->blocks += 1 - blocks;
	}
	/* permissions counted when the call came (size_check) */
	attr_set(attr, c->op, c->set, c->change.now);
	attr->size = attr->disk_size = size;
	change_touch(&c->change, attr, false);
	wcc_after(c->wcc, attr, c->inode->ino);
	attr_fill(attr, c->inode->ino, c->attr);
	c->change.applied = size_applied;
	c->change.applied_arg = c;
	return change_finish(&c->change, tx, c->op, c->id);
}

/* Writes the block that has the new end anew, if the drives have something behind that end. */
static int size_tail(struct fs *fs, struct size_call *c, struct row_run *run)
{
	uint64_t size = c->set->size, block = size / BLOCK_BYTES;
	uint32_t cut = (uint32_t)(size % BLOCK_BYTES);
	struct slice slice = {NULL, 0, BLOCK_BYTES};
	unsigned times = 0;
	bool hole;
	int r;

	c->tail = false;
	if (cut == 0 || size >= c->inode->attr.size)
		return 0;
	slice.buf = scratch_get(fs->files);
	while (read_again(r = block_read(fs, c->inode, block, slice.buf, 0, &hole), &times))
		scratch_renew(fs->files, &slice.buf);
	if (r == 0 && !hole && memcmp(slice.buf->data + cut, buf_zero()->data, BLOCK_BYTES - cut) != 0) {
		memset(slice.buf->data + cut, 0, BLOCK_BYTES - cut);
		c->tail_sum = checksum32(slice.buf->data, BLOCK_BYTES);
		r = flush_one_block(fs, &slice, &c->tail_phys, run);
		c->tail = r == 0;
	}
	scratch_put(fs->files, slice.buf);
	return r;
}

static int size_alone(struct fs *fs, struct size_call *c)
{
	struct row_run run;
	uint64_t seq = 0;
	int r;

	/* again, for the wait for the others may have been long */
	r = size_check(c, c->inode);
	if (r == 0 && c->grow && c->set->size <= c->inode->attr.size)
		return 0;
	if (r == 0)
		r = size_tail(fs, c, &run);
	if (r < 0)
		return r;
	c->limit = TRUNCATE_EXTENTS;
	c->left = EXTENT_END;
	do {
		r = fs_transact(fs, size_pass, c, &seq);
		if (r == -E2BIG && c->limit > 1) {
			c->limit /= 2;
			c->last = false;
			r = 0;
		}
	} while (r == 0 && !c->last);
	if (c->tail)
		space_rows_done(fs, &run);
	return r == 0 ? log_wait(fs, seq) : r;
}

static int size_run(struct fs *fs, void *arg)
{
	struct size_call *c = arg;
	int r = fs_view(fs, size_find_pass, c);

	if (r < 0)
		return r;
	r = data_exclude(fs->files, c->inode);
	if (r == 0) {
		r = size_alone(fs, c);
		data_unexclude(fs, c->inode);
	}
	inode_unref(fs->files, c->inode);
	return r;
}

int data_set_size(struct fs *fs, const struct fs_op *op, struct fs_id id, const struct fs_setattr *set,
	const struct timespec *guard, struct fs_wcc *wcc, struct fs_attr *attr)
{
	struct size_call c = {.op = op, .id = id, .set = set, .guard = guard, .wcc = wcc, .attr = attr};

	if (fs->read_only || id.snap)
		return -EROFS;
	return files_call(fs, size_run, &c);
}

int data_grow(struct fs *fs, const struct fs_op *op, struct fs_id id, const struct fs_setattr *set, struct fs_wcc *wcc)
{
	struct size_call c = {.op = op, .id = id, .set = set, .wcc = wcc, .grow = true};

	return files_call(fs, size_run, &c);
}
