/*
 * Reading.
 *
 * One pass looks at inode, dirty blocks, extents and the cache of clean data in one go and makes a plan: pieces of
 * memory (referenced at once), holes, and runs on the drives (inside a read section from then on). Then
 * the runs are read, several at a time, into buffers that are as large as the stretch of the file
 * that they hold, and verified block by block. The caller gets references to all of it, so nothing
 * is copied; the one exception is a block of which only a part was written in memory: it is made
 * whole first (record_fill()). What came from the drives goes to the cache at the end of the read section.
 *
 * The plan is made on the home reactor; the drives are read and the data is verified on the reactor
 * that asks, so that this work spreads over all of them.
 *
 * Size, end of file and data are of the same moment: that of the pass.
 *
 * Reading ahead (read_ahead.c decides what) is the same for blocks that are neither in memory nor on their way there,
 * with the cache as the one who asks: it is told what to expect before the drives are read, so that a reader who comes
 * meanwhile waits for that and does not read it twice.
 */
#include "fs/inode_internal.h"

#define READ_BLOCKS_MAX 257u /* 1 MiB at any offset */
#define READ_FIBERS 8u	     /* that read runs of one request side by side */
#define READ_NOW_BLOCKS 4u
#define BUF_BLOCKS (BUF_MAX / BLOCK_BYTES)
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

/* A run on the drives, being read. */
struct read_run {
	uint64_t phys, block;
	uint32_t count;
	unsigned slice, slices; /* of out: that hold its stretch of the file */
	uint64_t skip;		/* bytes of the stretch before the run */
};

/* A buffer for blocks of the drives, full of them. The cache expects it from the plan on. */
struct read_buf {
	struct buf *buf;
	uint64_t block;
	uint32_t count;
	struct data_run *expected;
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
	struct reactor *reactor; /* that asks */
	bool ahead;		 /* what is in memory is not wanted */
	/* the plan */
	struct inode *fill; /* make block FILL_BLOCK of it whole, then plan anew */
	uint64_t fill_block;
	bool loading;	/* wait for what is read ahead, then plan anew */
	uint64_t first; /* block */
	unsigned pieces, bufs;
	bool inside;
	unsigned phase;
	uint32_t hits; /* blocks found in the cache */
	/* the doing */
	unsigned runs, next_run, made; /* made: bufs that have memory */
	bool done;
	struct wait_group group;
	struct fs *fs;
	struct mail end; /* takes the read section's end to the home reactor */
	uint32_t *sum;	 /* of each block, behind the slots */
	/* as many of each as there are blocks */
	struct read_slot {
		struct piece piece;
		struct read_run run;
		struct read_buf buf;
	} slot[];
};

static struct read_call *call_new(struct fs *fs, struct fs_id id, uint64_t off, uint32_t *count)
{
	uint64_t blocks = (off % BLOCK_BYTES + *count + BLOCK_BYTES - 1) / BLOCK_BYTES;
	struct read_call *c;

	if (blocks > READ_BLOCKS_MAX)
		blocks = READ_BLOCKS_MAX;
	c = malloc(sizeof(*c) + blocks * (sizeof(c->slot[0]) + sizeof(c->sum[0])));
	if (!c)
		return NULL;
	c->sum = (uint32_t *)(void *)&c->slot[blocks];
	c->fs = fs;
	c->id = id;
	c->off = off;
	c->count = count;
	c->first = off / BLOCK_BYTES;
	c->reactor = reactor_self();
	c->ahead = c->inside = c->done = false;
	return c;
}

/* ------------------------------------------------------------------------------------------------
 * The plan
 */

static void plan_add(struct read_call *c, const struct piece *add)
{
	struct piece *last = c->pieces ? &c->slot[c->pieces - 1].piece : NULL;

	if (last && last->kind == add->kind && last->block + last->count == add->block) {
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
	c->slot[c->pieces++].piece = *add;
}

/* The bytes of RECORD that the request wants are all valid. */
static bool record_serves(const struct block_record *rec, uint64_t off, uint64_t end)
{
	uint64_t start = rec->block * BLOCK_BYTES;
	uint64_t lo = off > start ? off - start : 0, hi = end - start < BLOCK_BYTES ? end - start : BLOCK_BYTES;

	return rec->lo <= lo && rec->hi >= hi;
}

/* A block in memory that was written and is not flushed yet. False: it must be made whole first. */
static bool plan_record(struct read_call *c, struct inode *inode, struct block_record *rec, uint64_t end)
{
	struct piece piece = {.block = rec->block, .count = 1, .kind = PIECE_MEMORY, .buf = rec->buf, .off = rec->off};

	if (c->ahead)
		return true;
	if (rec->state == RECORD_DIRTY && !record_serves(rec, c->off, end)) {
		c->fill = inode;
		c->fill_block = rec->block;
		return false;
	}
	plan_add(c, &piece);
	return true;
}

/* A block that extent E has: in the cache or on the drives. False: it comes to the cache soon. */
static bool plan_extent(
	struct fs *fs, struct read_call *c, const struct inode *inode, const struct extent *e, uint64_t b)
{
	struct piece piece = {.block = b, .count = 1, .kind = PIECE_DRIVE, .phys = e->block + (b - e->first)};
	uint32_t sum = extent_sum(e, (uint32_t)(b - e->first));
	struct slice at;

	c->sum[b - c->first] = sum;
	if (c->ahead) {
		if (!data_cache_has(fs, piece.phys))
			plan_add(c, &piece);
		return true;
	}
	switch (data_cache_find(fs, piece.phys, sum, &at)) {
	case DATA_LOADING:
		c->loading = true;
		return false;
	case DATA_THERE:
		piece.kind = PIECE_MEMORY;
		piece.buf = at.buf;
		piece.off = at.off;
		c->hits++;
		data_map_put(fs, inode, b, piece.phys, sum);
		break;
	case DATA_NONE:
		break;
	}
	plan_add(c, &piece);
	return true;
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

		if (rec) {
			if (!plan_record(c, inode, rec, end))
				return 0;
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
		if (b >= e.first) {
			if (!plan_extent(tx_fs(tx), c, inode, &e, b))
				return 0;
		} else if (!c->ahead) {
			struct piece hole = {.block = b, .count = 1, .kind = PIECE_HOLE};

			plan_add(c, &hole);
		}
	}
	return 0;
}

/* Where the blocks of B lie, for the cache. *PIECE is where to look first, and the next time. */
static unsigned buf_places(const struct read_call *c, const struct read_buf *b, unsigned *piece, struct data_place *to)
{
	unsigned n = 0;

	while (n < b->count) {
		const struct piece *p = &c->slot[*piece].piece;
		uint64_t block = b->block + n;

		if (p->kind != PIECE_DRIVE || block < p->block || block - p->block >= p->count) {
			++*piece;
			continue;
		}
		to[n] = (struct data_place){p->phys + (block - p->block), c->sum[block - c->first], n};
		n++;
	}
	return n;
}

/* The end of the pieces from FROM on that lie one after the other in the file, all of them on the drives. */
static unsigned stretch_end(const struct read_call *c, unsigned from)
{
	unsigned to = from + 1;

	for (; to < c->pieces && c->slot[to].piece.kind == PIECE_DRIVE; to++)
		if (c->slot[to].piece.block != c->slot[to - 1].piece.block + c->slot[to - 1].piece.count)
			break;
	return to;
}

/* A stretch is read into few large buffers, without waste. */
static uint64_t stretch_plan(struct read_call *c, unsigned from, unsigned to)
{
	const struct piece *last = &c->slot[to - 1].piece;
	uint64_t block = c->slot[from].piece.block, end = last->block + last->count, all = end - block;

	while (block < end) {
		uint32_t blocks = BUF_BLOCKS;

		while (blocks > end - block)
			blocks /= 2;
		c->slot[c->bufs++].buf = (struct read_buf){.block = block, .count = blocks};
		block += blocks;
	}
	return all;
}

/* What the plan found is kept over the waits to come; others who want what it will read wait for that. */
static void plan_take(struct fs *fs, struct read_call *c)
{
	struct fs_files *files = fs->files;
	struct data_place place[BUF_BLOCKS];
	uint64_t missed = 0;

	for (unsigned i = 0; i < c->pieces;) {
		const struct piece *p = &c->slot[i].piece;
		unsigned to = p->kind == PIECE_DRIVE ? stretch_end(c, i) : i + 1;

		if (p->kind == PIECE_MEMORY)
			buf_ref(p->buf);
		else if (p->kind == PIECE_DRIVE)
			missed += stretch_plan(c, i, to);
		i = to;
	}
	for (unsigned i = 0, piece = 0; i < c->bufs; i++) {
		struct read_buf *b = &c->slot[i].buf;

		b->expected = data_cache_expect(fs, place, buf_places(c, b, &piece, place));
	}
	if (missed > 0) {
		c->inside = true;
		c->phase = read_enter(files);
	}
	if (!c->ahead) {
		files->cache.hits += c->hits;
		files->cache.misses += missed;
	}
}

/* On the home reactor: the end of the read section, with the data or without. */
static void plan_end(struct read_call *c)
{
	for (unsigned i = 0; i < c->bufs; i++) {
		struct read_buf *b = &c->slot[i].buf;

		if (b->expected)
			data_cache_expected(c->fs, b->expected, c->done ? b->buf : NULL, !c->ahead);
		if (c->done)
			buf_put(b->buf);
	}
	if (c->inside)
		read_leave(c->fs->files, c->phase);
	c->inside = false;
	c->bufs = 0;
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

static void plan_begin(struct read_call *c)
{
	c->pieces = c->bufs = 0;
	c->hits = 0;
	c->fill = NULL;
	c->inside = c->loading = c->done = false;
}

static int read_pass(struct tx *tx, void *arg)
{
	struct read_call *c = arg;
	uint64_t size, end, max;
	struct inode *inode;
	int r;

	plan_begin(c);
	r = inode_get(tx, c->id, &inode);
	if (r < 0)
		return r;
	if (inode->attr.type != FS_REG) {
		attr_fill(&inode->attr, inode->ino, c->attr);
		return inode->attr.type == FS_DIR ? -EISDIR : -EINVAL;
	}
	r = attr_data_permission(&inode->attr, c->op, FS_MAY_READ);
	size = inode->attr.size;
	if (r == 0 && inode->data && inode->data->half) {
		/* as if a block were to be made whole: waits until this is over */
		c->fill = inode;
		c->fill_block = c->first;
		inode_ref(inode);
		return 0;
	}
	if (r < 0 || c->off >= size || *c->count == 0) {
		attr_fill(&inode->attr, inode->ino, c->attr);
		if (r == 0) {
			*c->count = 0;
			*c->eof = c->off >= size;
		}
		return r;
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
	if (c->loading)
		return 0;
	*c->eof = end == size;
	*c->count = (uint32_t)(end - c->off);
	plan_take(tx_fs(tx), c);
	read_touch(tx_fs(tx), inode);
	attr_fill(&inode->attr, inode->ino, c->attr);
	read_ahead_seen(tx_fs(tx), &inode->attr, c->id, c->off, *c->count, c->inside, c->reactor);
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
		r = read_one_run(c, &c->slot[c->next_run++].run);
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
 * Memory for the pieces FROM..TO, a stretch. Never waits: that would be inside of a read section, for which a
 * checkpoint waits, for which what holds the buffers may be waiting.
 */
static bool stretch_make(struct read_call *c, unsigned from, unsigned to)
{
	const struct piece *last = &c->slot[to - 1].piece;
	uint64_t start = c->slot[from].piece.block, end = last->block + last->count;
	unsigned slice = *c->n;

	for (; c->made < c->bufs && c->slot[c->made].buf.block < end; c->made++) {
		struct read_buf *b = &c->slot[c->made].buf;

		b->buf = buf_try_alloc(b->count * BLOCK_BYTES);
		if (!b->buf)
			return false;
		c->out[(*c->n)++] = (struct slice){b->buf, 0, b->count * BLOCK_BYTES};
	}
	for (unsigned i = from; i < to; i++) {
		const struct piece *p = &c->slot[i].piece;

		c->slot[c->runs++].run = (struct read_run){.phys = p->phys,
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
		if (c->slot[i].piece.kind == PIECE_MEMORY)
			buf_put(c->slot[i].piece.buf);
}

/* Fills OUT: with what is there, and with buffers for what is not. False: there are no buffers now. */
static bool read_make(struct read_call *c)
{
	unsigned *n = c->n;

	c->runs = c->made = 0;
	for (unsigned i = 0, to; i < c->pieces; i = to) {
		const struct piece *p = &c->slot[i].piece;

		to = i + 1;
		if (p->kind == PIECE_MEMORY) {
			c->out[(*n)++] = (struct slice){p->buf, p->off, p->count * BLOCK_BYTES};
		} else if (p->kind == PIECE_HOLE) {
			for (uint32_t left = p->count * BLOCK_BYTES; left > 0;) {
				uint32_t len = left < BUF_MAX ? left : BUF_MAX;

				c->out[(*n)++] = (struct slice){buf_ref(buf_zero()), 0, len};
				left -= len;
			}
		} else {
			to = stretch_end(c, i);
			if (!stretch_make(c, i, to)) {
				pieces_put(c, to);
				return false;
			}
		}
	}
	return true;
}

/* -ENOBUFS: there are no buffers now. */
static int read_do(struct read_call *c)
{
	unsigned *n = c->n;
	uint32_t skip;

	if (!read_make(c))
		return -ENOBUFS;
	if (c->runs > 0) {
		int r = read_runs(c);

		if (r < 0)
			return r;
		for (unsigned i = 0; i < c->bufs; i++)
			buf_ref(c->slot[i].buf.buf); /* until plan_end() */
		c->done = true;
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
		if (r < 0)
			return r;
		if (c->fill)
			r = read_fill(c);
		else if (c->loading)
			data_cache_wait(fs);
		else
			return 0;
	} while (r == 0);
	return r;
}

static int read_give_up(struct fs *fs, void *arg)
{
	(void)fs;
	plan_end(arg);
	return 0;
}

static void read_end(void *arg)
{
	plan_end(arg);
	free(arg);
}

static int read_run(struct fs *fs, struct read_call *c)
{
	uint32_t count = *c->count;
	unsigned timeouts = 0;
	int r;

	for (;;) {
		*c->count = count;
		plan_begin(c);
		r = files_call(fs, read_plan, c);
		if (r < 0 || c->pieces == 0)
			return r;
		r = read_do(c);
		if (r == 0)
			return 0;
		slices_put(c->out, *c->n);
		*c->n = 0;
		if (r != -ENOBUFS && !read_again(r, &timeouts))
			return r;
		if (c->bufs > 0)
			files_call(fs, read_give_up, c);
		if (r == -ENOBUFS)
			buf_put(buf_alloc(BUF_MAX)); /* waits until there are some */
	}
}

/* The blocks of [OFF, END) from the cache, each with a reference; how many, or 0 when one is not there. */
static __attribute__((noinline)) unsigned blocks_now(
	struct fs *fs, const struct inode *inode, uint64_t off, uint64_t end, struct slice *out)
{
	unsigned n = 0;

	for (uint64_t b = off / BLOCK_BYTES; b * BLOCK_BYTES < end; b++, n++) {
		if (record_find(fs->files, inode, b) || !data_map_find(fs, inode, b, &out[n])) {
			slices_put(out, n);
			return 0;
		}
		buf_ref(out[n].buf);
	}
	return n;
}

/* A few blocks that are in the cache, where the last reader of them left word (data_map.c). False: not so. */
static bool read_now(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, uint32_t *count,
	struct slice *out, unsigned *n, bool *eof, struct fs_attr *attr)
{
	struct inode *inode = inode_cached(fs->files, id.ino);
	uint64_t end, size, skip = off % BLOCK_BYTES;
	unsigned blocks;

	if (!inode || inode->attr.gen != id.gen || inode->attr.nlink == 0 || inode->attr.type != FS_REG ||
		(inode->data && inode->data->half) || attr_data_permission(&inode->attr, op, FS_MAY_READ) < 0)
		return false;
	size = inode->attr.size;
	if (off >= size || *count == 0 || *count > READ_NOW_BLOCKS * BLOCK_BYTES)
		return false;
	end = *count < size - off ? off + *count : size;
	blocks = blocks_now(fs, inode, off, end, out);
	if (blocks == 0)
		return false;
	*eof = end == size;
	*count = (uint32_t)(end - off);
	*n = blocks;
	out[0].off += (uint32_t)skip;
	out[0].len -= (uint32_t)skip;
	out[blocks - 1].len -= (uint32_t)(-end % BLOCK_BYTES);
	fs->files->cache.hits += blocks;
	read_touch(fs, inode);
	attr_fill(&inode->attr, inode->ino, attr);
	return true;
}

/* Everything else: a plan, and what it wants from the drives. Apart, since it needs far more of the stack. */
static __attribute__((noinline)) int read_planned(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off,
	uint32_t *count, struct slice *out, unsigned *n, bool *eof, struct fs_attr *attr)
{
	struct read_call *c = call_new(fs, id, off, count);
	int r;

	*n = 0;
	if (!c)
		return -EAGAIN;
	c->op = op;
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

int fs_read(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, uint32_t *count, struct slice *out,
	unsigned *n, bool *eof, struct fs_attr *attr)
{
	if (reactor_self() == fs->home && id.snap == 0 && read_now(fs, op, id, off, count, out, n, eof, attr))
		return 0;
	return read_planned(fs, op, id, off, count, out, n, eof, attr);
}

/* ------------------------------------------------------------------------------------------------
 * Reading ahead
 */

static int ahead_pass(struct tx *tx, void *arg)
{
	struct read_call *c = arg;
	struct inode *inode;
	int r;

	plan_begin(c);
	r = inode_get(tx, c->id, &inode);
	if (r < 0)
		return r;
	if (inode->attr.type != FS_REG || c->off >= inode->attr.size || (inode->data && inode->data->half))
		return -ENOENT;
	r = plan_blocks(tx, c, inode, *c->count < inode->attr.size - c->off ? c->off + *c->count : inode->attr.size);
	if (r == 0)
		plan_take(tx_fs(tx), c);
	return r;
}

static void ahead_read(void *arg)
{
	struct read_call *c = arg;

	c->done = read_runs(c) == 0;
}

int read_ahead(struct fs *fs, struct fs_id id, uint64_t off, uint32_t count, struct reactor *reactor)
{
	struct read_call *c = call_new(fs, id, off, &count);
	struct slice *out = malloc(READ_BLOCKS_MAX * sizeof(*out));
	unsigned n = 0;
	int r = -ENOMEM;

	if (c && out) {
		c->ahead = true;
		c->out = out;
		c->n = &n;
		c->reactor = reactor;
		r = fs_view(fs, ahead_pass, c);
	}
	if (r == 0) {
		for (unsigned i = 0; i < c->pieces; i++)
			r += (int)c->slot[i].piece.count;
		if (read_make(c) && c->runs > 0)
			reactor_call(reactor, ahead_read, c);
		if (!c->done)
			slices_put(out, n);
		plan_end(c);
	}
	free(out);
	free(c);
	return r;
}
