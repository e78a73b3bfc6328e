/*
 * Writing: bytes become dirty blocks in memory, by reference.
 *
 * A write checks, waits while too much is dirty, gets the promise of space for its blocks, becomes
 * a user of the inode's data and then places all its blocks in one go without a wait: whole blocks
 * by reference to the caller's buffers, an edge merged into the dirty block that is there. Bytes
 * of an edge that touch nothing valid need what lies between first: record_fill(). The size, the
 * times and the change attribute move in memory with the data and reach the tree with the flush.
 *
 * A stable write then has its blocks flushed and waits; an unstable one leaves them to the flush
 * that comes when half the limit is dirty, or when they have aged, or with a commit.
 */
#include "fs/inode_internal.h"

#define WRITE_BLOCKS_MAX 1025u

struct write_call {
	const struct fs_op *op;
	struct fs_id id;
	uint64_t off, len;
	const struct slice *from;
	unsigned n;
	enum fs_stable stable;
	struct fs_wcc *wcc;
	struct inode *inode;
	/* records made beforehand, so that placing cannot fail */
	struct block_record *spare;
	uint64_t reserved;
	uint64_t replaced; /* blocks */
	uint64_t seq;
};

/* ------------------------------------------------------------------------------------------------
 * Checks
 */

static int write_check_place(const struct write_call *c)
{
	uint64_t at = c->off;

	for (unsigned i = 0; i < c->n; i++) {
		if (c->from[i].len == 0 || c->from[i].off % BLOCK_BYTES != at % BLOCK_BYTES ||
			(i > 0 && at % BLOCK_BYTES != 0))
			return -EINVAL;
		at += c->from[i].len;
	}
	return 0;
}

static int write_pass(struct tx *tx, void *arg)
{
	struct write_call *c = arg;
	struct inode *inode;
	int r = inode_get(tx, c->id, &inode);

	if (r < 0)
		return r;
	wcc_before(c->wcc, &inode->attr);
	wcc_after(c->wcc, &inode->attr, inode->ino);
	if (inode->attr.type == FS_DIR)
		return -EISDIR;
	if (inode->attr.type != FS_REG)
		return -EINVAL;
	r = attr_data_permission(&inode->attr, c->op, FS_MAY_WRITE);
	if (r < 0)
		return r;
	inode_ref(inode);
	c->inode = inode;
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Placing
 */

static bool record_touches(const struct block_record *rec, uint32_t lo, uint32_t hi)
{
	return lo <= rec->hi && hi >= rec->lo;
}

/* Adds bytes LO..HI, which are at the same place in the block at OFF of BUF, to a dirty record whose bytes they touch.
 */
static void record_merge(struct block_record *rec, struct buf *buf, uint32_t off, uint32_t lo, uint32_t hi)
{
	uint32_t new_lo = lo < rec->lo ? lo : rec->lo, new_hi = hi > rec->hi ? hi : rec->hi;
	struct slice old = {rec->buf, rec->off, BLOCK_BYTES}, new = {buf, off, BLOCK_BYTES};

	if (hi - lo >= (new_hi - new_lo) - (hi - lo)) {
		/* fewer old bytes are kept than new ones come: the new memory takes over */
		slices_copy_in(&new, 1, new_lo, slice_data(&old) + new_lo, lo - new_lo);
		slices_copy_in(&new, 1, hi, slice_data(&old) + hi, new_hi - hi);
		buf_ref(buf);
		buf_put(rec->buf);
		rec->buf = buf;
		rec->off = off;
	} else {
		slices_copy_in(&old, 1, lo, slice_data(&new) + lo, hi - lo);
	}
	rec->lo = (uint16_t)new_lo;
	rec->hi = (uint16_t)new_hi;
}

static void write_place_block(
	struct fs *fs, struct write_call *c, uint64_t block, struct buf *buf, uint32_t off, uint32_t lo, uint32_t hi)
{
	struct block_record *rec = record_find(fs->files, c->inode, block), *below;

	if (rec && rec->state == RECORD_DIRTY) {
		record_merge(rec, buf, off, lo, hi);
		return;
	}
	below = rec;
	rec = c->spare;
	c->spare = rec->older;
	rec->older = NULL;
	rec->block = block;
	rec->buf = buf_ref(buf);
	rec->off = off;
	rec->lo = (uint16_t)lo;
	rec->hi = (uint16_t)hi;
	rec->seq = c->seq;
	record_insert(fs, c->inode, rec, below);
	c->reserved--;
}

static void write_place(struct fs *fs, struct write_call *c)
{
	struct inode_attr *attr = &c->inode->attr;
	uint64_t at = c->off;

	c->seq = ++fs->files->write_seq;
	wcc_before(c->wcc, attr);
	/* first, for what is complete depends on it */
	if (c->off + c->len > attr->size)
		attr->size = c->off + c->len;
	for (unsigned i = 0; i < c->n; i++) {
		const struct slice *s = &c->from[i];

		for (uint32_t done = 0; done < s->len;) {
			uint32_t lo = (uint32_t)(at % BLOCK_BYTES), len = BLOCK_BYTES - lo;

			if (len > s->len - done)
				len = s->len - done;
			write_place_block(fs, c, at / BLOCK_BYTES, s->buf, s->off + done - lo, lo, lo + len);
			done += len;
			at += len;
		}
	}
	attr_kill_suid(attr, c->op->cred);
	attr->mtime = attr->ctime = time_now();
	attr->change = fs_change_next(fs);
	c->inode->attr_dirty = true;
	inode_mark_dirty(fs->files, c->inode);
	wcc_after(c->wcc, attr, c->inode->ino);
}

/* Makes way for bytes LO..HI of BLOCK: 1 when it waited (so look at everything again). */
static int write_edge(struct fs *fs, struct write_call *c, uint64_t block, uint32_t lo, uint32_t hi)
{
	struct block_record *rec = record_find(fs->files, c->inode, block);
	int r;

	if (!rec || rec->state != RECORD_DIRTY || record_touches(rec, lo, hi))
		return 0;
	r = record_fill(fs, c->inode, block);
	return r < 0 ? r : 1;
}

static int write_edges(struct fs *fs, struct write_call *c)
{
	uint64_t end = c->off + c->len, first = c->off / BLOCK_BYTES, last = (end - 1) / BLOCK_BYTES;
	uint32_t lo = (uint32_t)(c->off % BLOCK_BYTES), hi = (uint32_t)(end - last * BLOCK_BYTES);
	int r;

	do {
		r = write_edge(fs, c, first, lo, first == last ? hi : BLOCK_BYTES);
		if (r == 0 && first != last)
			r = write_edge(fs, c, last, 0, hi);
	} while (r > 0);
	return r;
}

/* ------------------------------------------------------------------------------------------------
 * Room
 */

static void write_spares_free(struct fs *fs, struct write_call *c)
{
	while (c->spare) {
		struct block_record *rec = c->spare;

		c->spare = rec->older;
		record_free(fs->files, rec);
	}
}

static int write_spares(struct fs *fs, struct write_call *c, uint64_t blocks)
{
	for (uint64_t i = 0; i < blocks; i++) {
		struct block_record *rec = record_alloc(fs->files);

		if (!rec)
			return -ENOMEM;
		rec->older = c->spare;
		c->spare = rec;
	}
	return 0;
}

static void write_throttle(struct fs *fs)
{
	struct fs_files *files = fs->files;

	while (files->dirty_bytes >= files->dirty_limit && !fs->failed) {
		flush_dirty_all(fs);
		wait_queue_wait(&files->dirty_wait, now_ns() + NSEC_PER_SEC);
	}
}

#define RESERVE_ATTEMPTS 4u

/* Counts the blocks that take the place of others, which come back then: who writes over what is there needs no more of
 * what df shows. */
static int replaced_pass(struct tx *tx, void *arg)
{
	struct write_call *c = arg;
	uint64_t block = c->off / BLOCK_BYTES, end = (c->off + c->len - 1) / BLOCK_BYTES + 1;

	c->replaced = 0;
	while (block < end) {
		uint64_t stop = end;
		bool alone;
		int r = extents_alone(tx, c->inode->ino, block, &stop, &alone);

		if (r < 0)
			return r;
		for (; block < stop; block++)
			c->replaced += alone || record_find(tx_fs(tx)->files, c->inode, block);
	}
	return 0;
}

static int write_reserve_try(struct fs *fs, struct write_call *c, uint64_t blocks, bool tight)
{
	int r = space_reserve(fs, blocks, 0, tight);

	if (r == -ENOSPC && !fs->failed) {
		r = fs_view(fs, replaced_pass, c);
		if (r == 0)
			r = space_reserve(fs, blocks, c->replaced, tight);
	}
	return r;
}

/*
 * What was overwritten and deleted is free after a flush, or when the cleaner has been there, or with a checkpoint. The
 * cleaner comes first, for it may only be behind, and all who wait for it go on together.
 */
static int write_reserve_wait(struct fs *fs, struct write_call *c, uint64_t blocks)
{
	int r = write_reserve_try(fs, c, blocks, false);

	if (r == -ENOSPC && !fs->failed && cleaner_wait(fs, blocks) == 0)
		r = write_reserve_try(fs, c, blocks, true);
	for (unsigned attempt = 0; r == -ENOSPC && attempt < RESERVE_ATTEMPTS && !fs->failed; attempt++) {
		bool room = space_has_room(fs, blocks, true);

		/* then nothing is promised, and a whole pass of the cleaner says what there is */
		files_flush_all(fs);
		r = fs_checkpoint(fs);
		if (r == 0)
			r = cleaner_wait(fs, blocks);
		if (r == 0)
			r = write_reserve_try(fs, c, blocks, true);
		if (room)
			break; /* it is not places that are short, but what df shows */
	}
	return r;
}

/* Who waits for room is passed by nobody: else small writes would take what a large one waits for. */
static int write_reserve(struct fs *fs, struct write_call *c, uint64_t blocks)
{
	struct fs_files *files = fs->files;
	int r = files->room_waiters ? -ENOSPC : write_reserve_try(fs, c, blocks, false);

	if (r != -ENOSPC)
		return r;
	files->room_waiters++;
	fiber_lock(&files->room_lock);
	r = write_reserve_wait(fs, c, blocks);
	fiber_unlock(&files->room_lock);
	files->room_waiters--;
	return r;
}

/* ------------------------------------------------------------------------------------------------
 * The call
 */

static int write_complete(struct fs *fs, struct write_call *c, uint64_t block)
{
	struct block_record *rec = record_find(fs->files, c->inode, block);

	if (!rec || rec->state != RECORD_DIRTY || record_complete(rec))
		return 0;
	return record_fill(fs, c->inode, block);
}

static int write_placed(struct fs *fs, struct write_call *c)
{
	uint64_t first = c->off / BLOCK_BYTES, last = (c->off + c->len - 1) / BLOCK_BYTES;
	int r = data_use(fs->files, c->inode);

	if (r < 0)
		return r;
	r = write_edges(fs, c);
	if (r == 0) {
		write_place(fs, c);
		if (c->stable != FS_UNSTABLE) {
			/* here, where every writer does it at the same time, rather than in the flush */
			r = write_complete(fs, c, first);
			if (r == 0 && last != first)
				r = write_complete(fs, c, last);
		}
	}
	data_unuse(fs->files, c->inode);
	return r;
}

static int write_run(struct fs *fs, void *arg)
{
	struct write_call *c = arg;
	struct fs_files *files = fs->files;
	uint64_t first = c->off / BLOCK_BYTES, last, blocks;
	int r;

	r = fs_view(fs, write_pass, c);
	if (r < 0)
		return r;
	if (c->len == 0)
		goto out;
	last = (c->off + c->len - 1) / BLOCK_BYTES;
	blocks = last - first + 1;
	write_throttle(fs);
	r = fs->failed ? -EIO : write_reserve(fs, c, blocks);
	if (r < 0)
		goto out;
	c->reserved = blocks;
	r = write_spares(fs, c, blocks);
	if (r == 0)
		r = write_placed(fs, c);
	space_unreserve(fs, c->reserved);
	write_spares_free(fs, c);
	if (r < 0)
		goto out;
	if (c->stable != FS_UNSTABLE) {
		flush_want(fs, c->inode);
		r = flush_wait(fs, c->inode, first, last, c->seq);
	} else if (files->dirty_bytes > files->dirty_limit / 2) {
		flush_dirty_all(fs);
	}
out:
	inode_unref(files, c->inode);
	return r;
}

int fs_write(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, const struct slice *from, unsigned n,
	enum fs_stable stable, enum fs_stable *committed, struct fs_wcc *wcc)
{
	struct write_call c = {.op = op, .id = id, .off = off, .from = from, .n = n, .stable = stable, .wcc = wcc};
	int r;

	c.len = slices_bytes(from, n);
	if (fs->read_only || id.snap)
		return -EROFS;
	if (off > FS_SIZE_MAX || c.len > FS_SIZE_MAX - off)
		return -EFBIG;
	r = write_check_place(&c);
	if (r < 0)
		return r;
	if (c.len > (uint64_t)(WRITE_BLOCKS_MAX - 1) * BLOCK_BYTES)
		return -EINVAL;
	r = files_call(fs, write_run, &c);
	if (r == 0 && committed)
		*committed = stable == FS_UNSTABLE ? FS_UNSTABLE : FS_FILE_SYNC;
	return r;
}

int fs_write_buffers(uint64_t off, uint32_t count, struct slice *out, unsigned max)
{
	unsigned n = 0;

	while (count > 0) {
		uint32_t skip = (uint32_t)(off % BLOCK_BYTES), len = BUF_MAX - skip, size;

		if (len > count)
			len = count;
		if (n == max) {
			slices_put(out, n);
			return -ENOSPC;
		}
		/* large first, so that a whole request takes few buffers and wastes less than its last block */
		size = BUF_MAX;
		while (size / 2 >= skip + len && size > BLOCK_BYTES)
			size /= 2;
		if (size > skip + len && size > BLOCK_BYTES && size / 2 >= skip + BLOCK_BYTES) {
			size /= 2;
			len = size - skip;
		}
		out[n++] = (struct slice){buf_alloc(size), skip, len};
		off += len;
		count -= len;
	}
	return (int)n;
}

/* ------------------------------------------------------------------------------------------------
 * Commit
 */

struct commit_call {
	struct fs_id id;
	uint64_t off, count;
	struct fs_wcc *wcc;
	struct inode *inode;
};

static int commit_pass(struct tx *tx, void *arg)
{
	struct commit_call *c = arg;
	int r = inode_get(tx, c->id, &c->inode);

	if (r < 0)
		return r;
	wcc_before(c->wcc, &c->inode->attr);
	wcc_after(c->wcc, &c->inode->attr, c->inode->ino);
	if (c->inode->attr.type == FS_DIR)
		return -EISDIR;
	if (c->inode->attr.type != FS_REG)
		return -EINVAL;
	inode_ref(c->inode);
	return 0;
}

static int commit_run(struct fs *fs, void *arg)
{
	struct commit_call *c = arg;
	uint64_t first = c->off / BLOCK_BYTES, last = UINT64_MAX;
	int r = fs_view(fs, commit_pass, c);

	if (r < 0)
		return r;
	/* RFC 1813, 3.3.21: a count of 0 means up to the end of the file */
	if (c->count > 0 && c->off + c->count > c->off)
		last = (c->off + c->count - 1) / BLOCK_BYTES;
	if (c->inode->data && c->inode->data->records > 0) {
		flush_want(fs, c->inode);
		r = flush_wait(fs, c->inode, first, last, fs->files->write_seq);
	}
	wcc_after(c->wcc, &c->inode->attr, c->inode->ino);
	inode_unref(fs->files, c->inode);
	return r;
}

int fs_commit(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, uint64_t count, struct fs_wcc *wcc)
{
	struct commit_call c = {.id = id, .off = off, .count = count, .wcc = wcc};

	(void)op;
	if (fs->read_only || id.snap)
		return -EROFS;
	return files_call(fs, commit_run, &c);
}
