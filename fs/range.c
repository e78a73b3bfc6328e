/*
 * Ranges of a file: allocate, punch, seek, copy (what NFSv4.2 calls ALLOCATE, DEALLOCATE, SEEK and COPY).
 *
 * Punching first writes zeros over the parts of blocks at both edges, as any writer would, and then is
 * alone with the file's data, as truncation is, and takes the whole blocks out, in transactions of bounded size from
 * the end down. A crash in between leaves a part of the range punched; the call was not answered then.
 *
 * Every write goes to a new place, so space for later overwriting cannot be kept by blocks that lie
 * there already: allocating makes the file long enough and fails when the holes do not fit on the
 * file system now.
 *
 * Copying reads and writes in pieces, so it costs no network and passes all the checks of both.
 */
#include "fs/inode_internal.h"

#define PUNCH_EXTENTS 48u /* in a transaction */
#define COPY_BYTES (1u << 20)

struct range_call {
	const struct fs_op *op;
	struct fs_id id;
	uint64_t off, end; /* bytes */
	struct fs_wcc *wcc;
	struct inode *inode;
	uint64_t size, holes;
	/* punch */
	uint64_t from, to, to_after; /* blocks; from *to* on all is done */
	unsigned limit;
	bool last, discarded;
	struct change change;
	/* seek */
	enum fs_seek what;
	uint64_t found;
	bool eof, dirty;
	struct fs_attr *attr;
};

static int range_file(struct tx *tx, struct range_call *c, uint32_t want)
{
	struct inode *inode;
	int r = inode_get(tx, c->id, &inode);

	if (r < 0)
		return r;
	wcc_before(c->wcc, &inode->attr);
	wcc_after(c->wcc, &inode->attr, inode->ino);
	attr_fill(&inode->attr, inode->ino, c->attr);
	if (inode->attr.type == FS_DIR)
		return -EISDIR;
	if (inode->attr.type != FS_REG)
		return -EINVAL;
	c->inode = inode;
	c->size = inode->attr.size;
	return attr_data_permission(&inode->attr, c->op, want);
}

/* ------------------------------------------------------------------------------------------------
 * Seek
 */

/* The first dirty block from BLOCK on; there are few, since the file was flushed just before. */
static uint64_t dirty_next(const struct fs_files *files, const struct inode *inode, uint64_t block)
{
	struct htable_cursor cursor = {0};
	struct htable_node *node;
	uint64_t first = UINT64_MAX;

	if (!inode->data || inode->data->records == 0)
		return first;
	while ((node = htable_next(&files->records, &cursor))) {
		const struct block_record *rec = container_of(node, struct block_record, node);

		if (rec->inode == inode && rec->block >= block && rec->block < first)
			first = rec->block;
	}
	return first;
}

static int seek_pass(struct tx *tx, void *arg)
{
	struct range_call *c = arg;
	uint64_t block = c->off / BLOCK_BYTES, dirty, blocks;
	int r = range_file(tx, c, FS_MAY_READ);

	if (r < 0)
		return r;
	c->eof = true;
	c->found = c->size;
	if (c->off >= c->size)
		return 0;
	blocks = (c->size + BLOCK_BYTES - 1) / BLOCK_BYTES;
	dirty = dirty_next(tx_fs(tx)->files, c->inode, block);
	for (;;) {
		struct extent e;

		r = extent_find(tx, c->inode->ino, block, &e);
		if (r < 0 && r != -ENOENT)
			return r;
		if (r == -ENOENT) {
			e.first = UINT64_MAX;
			e.count = 0;
		}
		if (c->what == FS_SEEK_DATA) {
			if (e.first > dirty)
				e.first = dirty;
			block = e.first > block ? e.first : block;
			break;
		}
		if (e.first <= block) {
			block = e.first + e.count;
		} else if (dirty == block) {
			block++;
		} else {
			break;
		}
		if (block >= blocks)
			break;
		if (dirty < block)
			dirty = dirty_next(tx_fs(tx)->files, c->inode, block);
	}
	if (block >= blocks)
		return 0; /* the end of the file is where its last hole begins */
	c->eof = false;
	c->found = block * BLOCK_BYTES > c->off ? block * BLOCK_BYTES : c->off;
	return 0;
}

/* What is dirty goes out first: then nearly all of the answer is in the tree. */
static int seek_flush_pass(struct tx *tx, void *arg)
{
	struct range_call *c = arg;
	int r = range_file(tx, c, FS_MAY_READ);

	if (r == 0)
		inode_ref(c->inode);
	return r;
}

static int seek_run(struct fs *fs, void *arg)
{
	struct range_call *c = arg;
	int r = fs_view(fs, seek_flush_pass, c);

	if (r < 0)
		return r;
	if (c->inode->data && c->inode->data->records > 0 && !fs->read_only) {
		flush_want(fs, c->inode);
		r = flush_wait(fs, c->inode, 0, UINT64_MAX, fs->files->write_seq);
	}
	inode_unref(fs->files, c->inode);
	return r < 0 ? r : fs_view(fs, seek_pass, c);
}

int fs_seek(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, enum fs_seek what, uint64_t *found,
	bool *eof, struct fs_attr *attr)
{
	struct range_call c = {.op = op, .id = id, .off = off, .what = what, .attr = attr};
	int r = files_call(fs, seek_run, &c);

	*found = c.found;
	*eof = c.eof;
	return r;
}

/* ------------------------------------------------------------------------------------------------
 * Punch
 */

static void punch_applied(struct change *change, void *arg)
{
	struct range_call *c = arg;
	struct inode *inode = c->inode;

	c->to = c->to_after;
	if (c->discarded || !inode->data)
		return;
	/* nothing is being flushed: it is alone with the data */
	list_foreach (node, &inode->data->dirty) {
		struct block_record *rec = container_of(node, struct block_record, link);

		if (rec->block >= c->from && rec->block < c->end / BLOCK_BYTES)
			record_remove(change->fs, rec);
	}
	c->discarded = true;
}

static int punch_pass(struct tx *tx, void *arg)
{
	struct range_call *c = arg;
	uint64_t blocks = 0, to = c->to, end;
	struct inode_attr *attr;
	int r;

	change_begin(&c->change, tx);
	c->change.applied = punch_applied;
	c->change.applied_arg = c;
	attr = change_inode(&c->change, c->inode);
	r = extents_remove(tx, c->inode->ino, c->from, &to, c->limit, &blocks);
	if (r < 0)
		return r;
	c->to_after = to;
	c->last = to <= c->from;
	attr->blocks -= blocks < attr->blocks ? blocks : attr->blocks;
	/* the size that dirty blocks would have brought to the tree */
	end = c->end < attr->size ? c->end : attr->size;
	if (end > attr->disk_size)
		attr->disk_size = end;
	attr_kill_suid(attr, c->op->cred);
	change_touch(&c->change, attr, true);
	wcc_after(c->wcc, attr, c->inode->ino);
	return change_finish(&c->change, tx, c->last ? c->op : NULL, c->id);
}

static int punch_find_pass(struct tx *tx, void *arg)
{
	struct range_call *c = arg;
	int r = range_file(tx, c, FS_MAY_WRITE);

	if (r == 0)
		inode_ref(c->inode);
	return r;
}

static int punch_run(struct fs *fs, void *arg)
{
	struct range_call *c = arg;
	uint64_t seq = 0;
	int r = fs_view(fs, punch_find_pass, c);

	if (r < 0)
		return r;
	if (c->inode->data && c->inode->data->records > 0) {
		flush_want(fs, c->inode);
		r = flush_wait(fs, c->inode, 0, c->from > 0 ? c->from - 1 : 0, fs->files->write_seq);
	}
	if (r == 0)
		r = data_exclude(fs->files, c->inode);
	if (r == 0) {
		c->limit = PUNCH_EXTENTS;
		c->last = false;
		do {
			r = fs_transact(fs, punch_pass, c, &seq);
			if (r == -E2BIG && c->limit > 1) {
				c->limit /= 2;
				c->last = false;
				r = 0;
			}
		} while (r == 0 && !c->last);
		data_unexclude(fs, c->inode);
	}
	inode_unref(fs->files, c->inode);
	return r == 0 ? log_wait(fs, seq) : r;
}

/* Zeros over a part of a block, unless it is in a hole. */
static int punch_edge(struct fs *fs, const struct range_call *c, uint64_t off, uint64_t end)
{
	uint64_t found;
	struct slice v[2];
	bool eof;
	int n, r;

	if (off >= end)
		return 0;
	r = fs_seek(fs, c->op, c->id, off, FS_SEEK_DATA, &found, &eof, NULL);
	if (r < 0 || eof || found >= end)
		return r == -EACCES ? 0 : r;
	n = fs_write_buffers(off, (uint32_t)(end - off), v, 2);
	if (n < 0)
		return n;
	slices_zero(v, (unsigned)n, 0, end - off);
	r = fs_write(fs, c->op, c->id, off, v, (unsigned)n, FS_FILE_SYNC, NULL, NULL);
	slices_put(v, (unsigned)n);
	return r;
}

int fs_punch(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, uint64_t count, struct fs_wcc *wcc)
{
	struct range_call c = {.op = op, .id = id, .off = off, .wcc = wcc};
	uint64_t first = (off + BLOCK_BYTES - 1) / BLOCK_BYTES, last;
	struct fs_attr attr;
	int r;

	if (fs->read_only || id.snap)
		return -EROFS;
	if (off > FS_SIZE_MAX)
		return -EINVAL;
	r = fs_getattr(fs, id, &attr);
	if (r < 0)
		return r;
	if (attr.type != FS_REG)
		return attr.type == FS_DIR ? -EISDIR : -EINVAL;
	c.end = count > FS_SIZE_MAX - off ? FS_SIZE_MAX : off + count;
	/* behind the end of the file all is zero already; the rest of its last block too */
	if (c.end >= attr.size)
		c.end = (attr.size + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
	last = c.end / BLOCK_BYTES;
	if (off < c.end && off / BLOCK_BYTES == c.end / BLOCK_BYTES) {
		r = punch_edge(fs, &c, off, c.end);
	} else if (off < c.end) {
		r = punch_edge(fs, &c, off, first * BLOCK_BYTES < attr.size ? first * BLOCK_BYTES : attr.size);
		if (r == 0)
			r = punch_edge(fs, &c, last * BLOCK_BYTES, c.end);
	}
	if (r < 0)
		return r;
	c.from = first;
	c.to = last > first ? last : first;
	c.end = c.to * BLOCK_BYTES;
	return files_call(fs, punch_run, &c);
}

/* ------------------------------------------------------------------------------------------------
 * Allocate
 */

static int allocate_pass(struct tx *tx, void *arg)
{
	struct range_call *c = arg;
	uint64_t block = c->off / BLOCK_BYTES, last = (c->end + BLOCK_BYTES - 1) / BLOCK_BYTES;
	int r = range_file(tx, c, FS_MAY_WRITE);

	if (r < 0)
		return r;
	c->holes = 0;
	while (block < last) {
		struct extent e;

		r = extent_find(tx, c->inode->ino, block, &e);
		if (r < 0 && r != -ENOENT)
			return r;
		if (r == -ENOENT || e.first >= last) {
			c->holes += last - block;
			break;
		}
		if (e.first > block)
			c->holes += e.first - block;
		block = e.first + e.count;
	}
	return 0;
}

static int allocate_run(struct fs *fs, void *arg)
{
	struct range_call *c = arg;
	int r = fs_view(fs, allocate_pass, c);

	if (r < 0)
		return r;
	r = space_reserve(fs, c->holes, 0, false);
	if (r == -ENOSPC && cleaner_wait(fs, c->holes) == 0 && fs_checkpoint(fs) == 0)
		r = space_reserve(fs, c->holes, 0, true);
	if (r == 0)
		space_unreserve(fs, c->holes);
	return r;
}

int fs_allocate(
	struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, uint64_t count, struct fs_wcc *wcc)
{
	struct range_call c = {.op = op, .id = id, .off = off, .wcc = wcc};
	struct fs_setattr set = {.set = FS_SET_SIZE};
	int r;

	if (fs->read_only || id.snap)
		return -EROFS;
	if (off > FS_SIZE_MAX || count > FS_SIZE_MAX - off)
		return -EFBIG;
	c.end = set.size = off + count;
	r = files_call(fs, allocate_run, &c);
	if (r < 0 || c.end <= c.size)
		return r;
	return data_grow(fs, op, id, &set, wcc);
}

/* ------------------------------------------------------------------------------------------------
 * Copy
 */

static int copy_piece(struct fs *fs, const struct fs_op *op, struct fs_id from, uint64_t from_off, struct fs_id to,
	uint64_t to_off, uint32_t *count, struct slice *in, struct slice *out, struct fs_wcc *wcc)
{
	uint32_t got = *count;
	unsigned n;
	bool eof;
	int r, m;

	*count = 0;
	r = fs_read(fs, op, from, from_off, &got, in, &n, &eof, NULL);
	if (r < 0 || got == 0)
		return r;
	m = fs_write_buffers(to_off, got, out, FS_READ_SLICES);
	if (m < 0) {
		slices_put(in, n);
		return m;
	}
	for (unsigned i = 0, at = 0; i < n; at += in[i++].len)
		slices_copy_in(out, (unsigned)m, at, slice_data(&in[i]), in[i].len);
	slices_put(in, n);
	r = fs_write(fs, op, to, to_off, out, (unsigned)m, FS_UNSTABLE, NULL, wcc);
	slices_put(out, (unsigned)m);
	if (r == 0)
		*count = got;
	return r;
}

int fs_copy(struct fs *fs, const struct fs_op *op, struct fs_id from, uint64_t from_off, struct fs_id to,
	uint64_t to_off, uint64_t count, uint64_t *copied, struct fs_wcc *wcc)
{
	struct slice *v = malloc(2 * FS_READ_SLICES * sizeof(*v));
	int r = 0;

	*copied = 0;
	if (!v)
		return -EAGAIN;
	if (from.ino == to.ino && from.snap == to.snap) {
		/* the source ends where it ended before the copy made it longer */
		struct fs_attr attr;

		r = from_off < to_off + count && to_off < from_off + count ? -EINVAL : fs_getattr(fs, from, &attr);
		if (r == 0 && from_off < attr.size && count > attr.size - from_off)
			count = attr.size - from_off;
	}
	while (r == 0 && *copied < count) {
		uint32_t piece = count - *copied < COPY_BYTES ? (uint32_t)(count - *copied) : COPY_BYTES;

		/* pieces end at blocks of the target: no block is written twice */
		if (piece == COPY_BYTES)
			piece -= (uint32_t)((to_off + *copied + piece) % BLOCK_BYTES);
		r = copy_piece(
			fs, op, from, from_off + *copied, to, to_off + *copied, &piece, v, v + FS_READ_SLICES, wcc);
		if (r == 0 && piece == 0)
			break; /* the end of the source */
		*copied += piece;
	}
	free(v);
	return r < 0 && *copied == 0 ? r : 0;
}
