/*
 * Reading.
 *
 * One pass looks at inode, dirty blocks and extents in one go and makes a plan: pieces of memory
 * (referenced at once), holes, and runs on the drives (inside a read section from then on). Then
 * the runs are read, several at a time, into buffers that are as large as the stretch of the file
 * that they hold, and verified block by block. The caller gets references to all of it, so nothing
 * is copied; the one exception is a block of which only a part was written in memory: it is made
 * whole first (record_fill()).
 *
 * The plan is made on the home reactor; the drives are read and the data is verified on the reactor
 * that asks, so that this work spreads over all of them.
 *
 * Size, end of file and data are of the same moment: that of the pass.
 */
#include "fs/inode_internal.h"

#define READ_BLOCKS_MAX 257u /* 1 MiB at any offset */
#define READ_FIBERS 8u	     /* that read runs of one request side by side */
#define ATIME_MAX_AGE ((int64_t)(24 * 3600 * NSEC_PER_SEC))

enum piece_kind { PIECE_HOLE, PIECE_MEMORY, PIECE_DRIVE };
struct piece {
	uint64_t block; /* of the file */
	uint32_t count;
	enum piece_kind kind;
	struct buf *buf; /* of memory */
	uint32_t off;
	uint64_t phys; /* on the drives */
};

struct read_call {
	const struct fs_op *op;
	struct fs_id id;
	uint64_t off;
	uint32_t *count;
	struct slice *out;
	unsigned *n;
	bool *eof;
	struct fs_attr *attr;
	/* the plan */
	struct inode *fill; /* make block FILL_BLOCK of it whole, then plan anew */
	uint64_t fill_block;
	uint64_t first; /* block */
	unsigned pieces;
	bool inside;
	unsigned phase;
	struct piece piece[READ_BLOCKS_MAX];
	uint32_t sum[READ_BLOCKS_MAX];
	/* the runs being read */
	struct read_run {
		uint64_t phys, block;
		uint32_t count;
		unsigned slice, slices; /* of out: that hold its stretch of the file */
		uint64_t skip;		/* bytes of the stretch before the run */
	} run[READ_BLOCKS_MAX];
	unsigned runs, next_run;
	struct wait_group group;
	struct fs *fs;
	struct mail end; /* takes the read section's end to the home reactor */
};

/* ------------------------------------------------------------------------------------------------
 * The plan
 */

static void plan_add(struct read_call *c, const struct piece *add)
{
	struct piece *last = c->pieces ? &c->piece[c->pieces - 1] : NULL;

	if (last && last->kind == add->kind) {
		bool joins = false;

		if (add->kind == PIECE_HOLE)
			joins = true;
		else if (add->kind == PIECE_MEMORY)
			joins = last->buf == add->buf && last->off + last->count * BLOCK_BYTES == add->off;
		else
			joins = last->phys + last->count == add->phys;
		if (joins) {
			last->count += add->count;
			return;
		}
	}
	c->piece[c->pieces++] = *add;
}

/* The bytes of RECORD that the request wants are all valid. */
static bool record_serves(const struct block_record *rec, uint64_t off, uint64_t end)
{
	uint64_t start = rec->block * BLOCK_BYTES;
	uint64_t lo = off > start ? off - start : 0, hi = end - start < BLOCK_BYTES ? end - start : BLOCK_BYTES;

	return rec->lo <= lo && rec->hi >= hi;
}

static int plan_blocks(struct tx *tx, struct read_call *c, struct inode *inode, uint64_t end)
{
	struct fs_files *files = tx_fs(tx)->files;
	uint64_t last = (end - 1) / BLOCK_BYTES;
	struct extent e = {0};
	bool have = false;
	int r;

	for (uint64_t b = c->first; b <= last; b++) {
		struct block_record *rec = record_find(files, inode, b);
		struct piece piece = {.block = b, .count = 1};

		if (rec) {
			if (rec->state == RECORD_DIRTY && !record_serves(rec, c->off, end)) {
				c->fill = inode;
				c->fill_block = b;
				return 0;
			}
			piece.kind = PIECE_MEMORY;
			piece.buf = rec->buf;
			piece.off = rec->off;
			plan_add(c, &piece);
			continue;
		}
		if (!have || (b >= e.first && b - e.first >= e.count)) {
			r = extent_find(tx, inode->ino, b, &e);
			if (r == -ENOENT) {
				e.first = UINT64_MAX;
				e.count = 0;
			} else if (r < 0) {
				return r;
			}
			have = true;
		}
		if (b < e.first) {
			piece.kind = PIECE_HOLE;
		} else {
			piece.kind = PIECE_DRIVE;
			piece.phys = e.block + (b - e.first);
			c->sum[b - c->first] = extent_sum(&e, (uint32_t)(b - e.first));
		}
		plan_add(c, &piece);
	}
	return 0;
}

static void read_touch(struct fs *fs, struct inode *inode)
{
	int64_t now = time_now();

	if (fs->read_only || fs->failed || inode->attr.snap)
		return;
	if (inode->attr.atime > inode->attr.mtime && inode->attr.atime > inode->attr.ctime &&
		now - inode->attr.atime < ATIME_MAX_AGE)
		return;
	inode->attr.atime = now;
	inode->attr_dirty = true;
	inode_mark_dirty(fs->files, inode);
}

static int read_pass(struct tx *tx, void *arg)
{
	struct read_call *c = arg;
	struct fs_files *files = tx_fs(tx)->files;
	uint64_t size, end, max;
	struct inode *inode;
	int r;

	c->pieces = 0;
	c->fill = NULL;
	c->inside = false;
	r = inode_get(tx, c->id, &inode);
	if (r < 0)
		return r;
	attr_fill(&inode->attr, inode->ino, c->attr);
	if (inode->attr.type == FS_DIR)
		return -EISDIR;
	if (inode->attr.type != FS_REG)
		return -EINVAL;
	r = attr_data_permission(&inode->attr, c->op, FS_MAY_READ);
	if (r < 0)
		return r;
	size = inode->attr.size;
	c->first = c->off / BLOCK_BYTES;
	if (inode->data && inode->data->half) {
		/* as if a block were to be made whole: waits until this is over */
		c->fill = inode;
		c->fill_block = c->first;
		inode_ref(inode);
		return 0;
	}
	if (c->off >= size || *c->count == 0) {
		*c->count = 0;
		*c->eof = c->off >= size;
		return 0;
	}
	end = *c->count < size - c->off ? c->off + *c->count : size;
	max = (c->first + READ_BLOCKS_MAX) * BLOCK_BYTES;
	if (end > max)
		end = max;
	r = plan_blocks(tx, c, inode, end);
	if (r < 0)
		return r;
	if (c->fill) {
		inode_ref(inode);
		return 0;
	}
	*c->eof = end == size;
	*c->count = (uint32_t)(end - c->off);
	for (unsigned i = 0; i < c->pieces; i++) {
		if (c->piece[i].kind == PIECE_MEMORY)
			buf_ref(c->piece[i].buf);
		else if (c->piece[i].kind == PIECE_DRIVE)
			c->inside = true;
	}
	if (c->inside)
		c->phase = read_enter(files);
	read_touch(tx_fs(tx), inode);
	attr_fill(&inode->attr, inode->ino, c->attr);
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Doing it
 */

static int read_one_run(struct read_call *c, const struct read_run *run)
{
	struct slice to[16];
	int n = slices_cut(c->out + run->slice, run->slices, run->skip, (uint64_t)run->count * BLOCK_BYTES, to, 16);

	if (n < 0)
		return n;
	return blocks_read_verified(
		c->fs, c->id.ino, run->block, run->phys, run->count, c->sum + (run->block - c->first), to, (unsigned)n);
}

static int read_runs_loop(struct read_call *c)
{
	int r = 0;

	while (r == 0 && c->next_run < c->runs)
		r = read_one_run(c, &c->run[c->next_run++]);
	return r;
}

static void read_runs_fiber(void *arg)
{
	struct read_call *c = arg;

	wait_group_done(&c->group, read_runs_loop(c));
}

static int read_runs(struct read_call *c)
{
	int r, error;

	c->next_run = 0;
	if (c->runs <= 1)
		return read_runs_loop(c);
	wait_group_init(&c->group);
	for (unsigned i = 1; i < READ_FIBERS && i < c->runs; i++) {
		wait_group_add(&c->group, 1);
		if (fiber_spawn(read_runs_fiber, c) < 0) {
			wait_group_done(&c->group, 0);
			break;
		}
	}
	r = read_runs_loop(c);
	error = wait_group_wait(&c->group);
	return r < 0 ? r : error;
}

/*
 * Buffers for COUNT blocks, in few large pieces and without waste. Never waits: that would be inside
 * of a read section, for which a checkpoint waits, for which what holds the buffers may be waiting.
 */
static bool stretch_alloc(struct read_call *c, uint32_t count)
{
	while (count > 0) {
		uint32_t blocks = BUF_MAX / BLOCK_BYTES;
		struct buf *buf;

		while (blocks > count)
			blocks /= 2;
		buf = buf_try_alloc(blocks * BLOCK_BYTES);
		if (!buf)
			return false;
		c->out[(*c->n)++] = (struct slice){buf, 0, blocks * BLOCK_BYTES};
		count -= blocks;
	}
	return true;
}

static bool stretch_make(struct read_call *c, unsigned from, unsigned to)
{
	unsigned slice = *c->n;
	uint64_t start = c->piece[from].block;

	if (!stretch_alloc(c, (uint32_t)(c->piece[to - 1].block + c->piece[to - 1].count - start)))
		return false;
	for (unsigned i = from; i < to; i++) {
		const struct piece *p = &c->piece[i];

		c->run[c->runs++] = (struct read_run){.phys = p->phys,
			.block = p->block,
			.count = p->count,
			.slice = slice,
			.slices = *c->n - slice,
			.skip = (p->block - start) * BLOCK_BYTES};
	}
	return true;
}

/* The plan's pieces from FROM on are not needed. */
static void pieces_put(struct read_call *c, unsigned from)
{
	for (unsigned i = from; i < c->pieces; i++)
		if (c->piece[i].kind == PIECE_MEMORY)
			buf_put(c->piece[i].buf);
}

/* -ENOBUFS: there are no buffers now. */
static int read_do(struct read_call *c)
{
	unsigned *n = c->n;
	uint32_t skip;

	c->runs = 0;
	for (unsigned i = 0; i < c->pieces;) {
		const struct piece *p = &c->piece[i];
		unsigned to = i + 1;

		if (p->kind == PIECE_MEMORY) {
			c->out[(*n)++] = (struct slice){p->buf, p->off, p->count * BLOCK_BYTES};
		} else if (p->kind == PIECE_HOLE) {
			for (uint32_t left = p->count * BLOCK_BYTES; left > 0;) {
				uint32_t len = left < BUF_MAX ? left : BUF_MAX;

				c->out[(*n)++] = (struct slice){buf_ref(buf_zero()), 0, len};
				left -= len;
			}
		} else {
			while (to < c->pieces && c->piece[to].kind == PIECE_DRIVE)
				to++;
			if (!stretch_make(c, i, to)) {
				pieces_put(c, to);
				return -ENOBUFS;
			}
		}
		i = to;
	}
	if (c->runs > 0) {
		int r = read_runs(c);

		if (r < 0)
			return r;
	}
	/* only the bytes asked for: a part of the first and of the last block */
	skip = (uint32_t)(c->off % BLOCK_BYTES);
	c->out[0].off += skip;
	c->out[0].len -= skip;
	c->out[*n - 1].len -= (uint32_t)(slices_bytes(c->out, *n) - *c->count);
	return 0;
}

/* Makes whole the block that the plan found to be partial. */
static int read_fill(struct read_call *c)
{
	struct fs_files *files = c->fs->files;
	struct inode *inode = c->fill;
	int r = data_use(files, inode);

	if (r == 0) {
		r = record_fill(c->fs, inode, c->fill_block);
		data_unuse(files, inode);
	}
	inode_unref(files, inode);
	return r;
}

/* On the home reactor: a plan, inside of a read section if it needs one. */
static int read_plan(struct fs *fs, void *arg)
{
	struct read_call *c = arg;
	int r;

	do {
		r = fs_view(fs, read_pass, c);
		if (r < 0 || !c->fill)
			return r;
		r = read_fill(c);
	} while (r == 0);
	return r;
}

static int read_leave_run(struct fs *fs, void *arg)
{
	const struct read_call *c = arg;

	read_leave(fs->files, c->phase);
	return 0;
}

static void read_end(void *arg)
{
	struct read_call *c = arg;

	if (c->inside)
		read_leave(c->fs->files, c->phase);
	free(c);
}

static int read_run(struct fs *fs, struct read_call *c)
{
	uint32_t count = *c->count;
	int r;

	for (;;) {
		*c->count = count;
		c->inside = false;
		c->pieces = 0;
		r = files_call(fs, read_plan, c);
		if (r < 0 || c->pieces == 0)
			return r;
		r = read_do(c);
		if (r == 0)
			return 0;
		slices_put(c->out, *c->n);
		*c->n = 0;
		if (r != -ENOBUFS)
			return r;
		if (c->inside)
			files_call(fs, read_leave_run, c);
		c->inside = false;
		buf_put(buf_alloc(BUF_MAX)); /* waits until there are some */
	}
}

int fs_read(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, uint32_t *count, struct slice *out,
	unsigned *n, bool *eof, struct fs_attr *attr)
{
	struct read_call *c = malloc(sizeof(*c));
	int r;

	*n = 0;
	if (!c)
		return -EAGAIN;
	c->fs = fs;
	c->op = op;
	c->id = id;
	c->off = off;
	c->count = count;
	c->out = out;
	c->n = n;
	c->eof = eof;
	c->attr = attr;
	r = read_run(fs, c);
	if (!c->inside || reactor_self() == fs->home) {
		read_end(c);
	} else {
		c->end = (struct mail){.fn = read_end, .arg = c};
		reactor_mail(fs->home, &c->end);
	}
	return files_error(r);
}
