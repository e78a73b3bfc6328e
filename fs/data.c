/*
 * Dirty blocks in memory, and who may touch a file's data when.
 *
 * A block that was written and is not yet in the tree has a record: a reference to the memory it
 * arrived in, and the interval of its bytes that are valid. All records are in one hash table by
 * inode and block. A record is dirty until a flush group takes it; then its memory does not change
 * any more, and a write to the same block makes a new record that stands on it. There are at most
 * these two: a flush takes the upper one only after the lower one is gone, so that an older block
 * never comes to the tree after a newer one.
 *
 * Writers, while they place their blocks, and flush groups are users of an inode's data. Truncation
 * and deletion are alone: they wait until there is no user, and users wait for them. Reads take part
 * in neither: they see one state of memory and tree in a pass without a wait, and hold the buffers
 * and (read_enter()) the physical blocks that they saw.
 *
 * Below the valid bytes of a record lies what the tree has, and beyond the end of a file its last
 * block is zeros on the drives: truncation sees to that before the size shrinks, so growing a file
 * never shows old bytes.
 */
#include "fs/inode_internal.h"

/* ------------------------------------------------------------------------------------------------
 * Users
 */

/* Makes it. NULL: no memory. */
static struct inode_data *data_get(struct fs_files *files, struct inode *inode)
{
	struct inode_data *data = inode->data;

	(void)files;
	if (data)
		return data;
	data = calloc(1, sizeof(*data));
	if (!data)
		return NULL;
	data->inode = inode;
	list_init(&data->dirty);
	list_init(&data->waiters);
	list_node_init(&data->queue_link);
	wait_queue_init(&data->idle);
	inode->data = data;
	list_remove(&inode->lru);
	return data;
}

void data_release(struct fs_files *files, struct inode *inode)
{
	struct inode_data *data = inode->data;

	if (data && (data->records || data->users || data->exclusive || data->closed || data->sleepers ||
			    !list_empty(&data->waiters)))
		return;
	if (data) {
		list_remove(&data->queue_link);
		free(data);
		inode->data = NULL;
	}
	inode_settle(files, inode);
}

static void data_sleep(struct inode_data *data)
{
	data->sleepers++;
	wait_queue_wait(&data->idle, NEVER);
	data->sleepers--;
}

int data_use(struct fs_files *files, struct inode *inode)
{
	struct inode_data *data = data_get(files, inode);

	if (!data)
		return -ENOMEM;
	while (data->exclusive || data->closed)
		data_sleep(data);
	if (inode->gone) {
		data_release(files, inode);
		return -ESTALE;
	}
	data->users++;
	return 0;
}

void data_unuse(struct fs_files *files, struct inode *inode)
{
	struct inode_data *data = inode->data;

	assert(data && data->users > 0);
	if (--data->users == 0)
		wait_queue_wake_all(&data->idle);
	data_release(files, inode);
}

int data_exclude(struct fs_files *files, struct inode *inode)
{
	struct inode_data *data = data_get(files, inode);

	if (!data)
		return -ENOMEM;
	while (data->exclusive || data->closed)
		data_sleep(data);
	if (inode->gone) {
		data_release(files, inode);
		return -ESTALE;
	}
	data->exclusive = true;
	while (data->users > 0)
		data_sleep(data);
	return 0;
}

int data_quiesce(struct fs *fs, struct inode *inode)
{
	struct inode_data *data = data_get(fs->files, inode);
	int r = 0;

	if (!data)
		return -ENOMEM;
	while (data->exclusive || data->closed)
		data_sleep(data);
	data->closed = true;
	do {
		data->exclusive = false;
		while (r == 0 && data->records > 0) {
			flush_want(fs, inode);
			r = flush_wait(fs, inode, 0, UINT64_MAX, fs->files->write_seq);
		}
		/* who was placing blocks before may have brought some more */
		data->exclusive = true;
		while (data->users > 0)
			data_sleep(data);
	} while (r == 0 && data->records > 0);
	data->closed = false;
	if (r == 0 && inode->gone)
		r = -ESTALE;
	if (r < 0)
		data_unexclude(fs, inode);
	return r;
}

void data_unexclude(struct fs *fs, struct inode *inode)
{
	struct inode_data *data = inode->data;

	assert(data && data->exclusive);
	data->exclusive = false;
	wait_queue_wake_all(&data->idle);
	flush_check_waiters(fs->files, inode);
	if (!list_empty(&data->waiters) && !list_empty(&data->dirty))
		flush_want(fs, inode);
	data_release(fs->files, inode);
}

/* ------------------------------------------------------------------------------------------------
 * Records
 */

#define RECORD_POOL_MAX 4096u

static uint64_t record_hash(const struct inode *inode, uint64_t block)
{
	return hash_place(inode->node.hash + block);
}

struct block_record *record_find(const struct fs_files *files, const struct inode *inode, uint64_t block)
{
	if (!inode->data || inode->data->records == 0)
		return NULL;

	uint64_t hash = record_hash(inode, block);

	htable_foreach_hash (node, &files->records, hash) {
		struct block_record *rec = container_of(node, struct block_record, node);

		if (rec->inode == inode && rec->block == block)
			return rec;
	}
	return NULL;
}

struct block_record *record_alloc(struct fs_files *files)
{
	struct block_record *rec = files->record_pool;

	if (rec) {
		files->record_pool = rec->older;
		files->record_pool_size--;
	} else {
		rec = malloc(sizeof(*rec));
		if (!rec)
			return NULL;
	}
	memset(rec, 0, sizeof(*rec));
	list_node_init(&rec->link);
	return rec;
}

void record_free(struct fs_files *files, struct block_record *rec)
{
	if (files->record_pool_size >= RECORD_POOL_MAX) {
		free(rec);
		return;
	}
	rec->older = files->record_pool;
	files->record_pool = rec;
	files->record_pool_size++;
}

void record_insert(struct fs *fs, struct inode *inode, struct block_record *rec, struct block_record *below)
{
	struct fs_files *files = fs->files;

	if (below) {
		assert(below->state == RECORD_FLUSHING);
		htable_remove(&files->records, &below->node);
		below->newer = rec;
	}
	rec->inode = inode;
	rec->state = RECORD_DIRTY;
	rec->older = below;
	htable_insert(&files->records, &rec->node, record_hash(inode, rec->block));
	list_push_back(&inode->data->dirty, &rec->link);
	inode->data->records++;
	files->dirty_bytes += BLOCK_BYTES;
	inode_mark_dirty(files, inode);
}

void record_remove(struct fs *fs, struct block_record *rec)
{
	struct fs_files *files = fs->files;
	struct inode *inode = rec->inode;

	if (rec->newer) {
		rec->newer->older = NULL;
	} else {
		htable_remove(&files->records, &rec->node);
		if (rec->older) {
			rec->older->newer = NULL;
			htable_insert(&files->records, &rec->older->node, rec->node.hash);
		}
	}
	list_remove(&rec->link);
	inode->data->records--;
	files->dirty_bytes -= BLOCK_BYTES;
	space_unreserve(fs, 1);
	buf_put(rec->buf);
	record_free(files, rec);
	if (files->dirty_bytes < files->dirty_limit)
		wait_queue_wake_all(&files->dirty_wait);
}

bool record_complete(const struct block_record *rec)
{
	uint64_t start = rec->block * BLOCK_BYTES, size = rec->inode->attr.size;
	uint64_t need = size <= start ? 0 : size - start;

	return rec->lo == 0 && rec->hi >= (need < BLOCK_BYTES ? need : BLOCK_BYTES);
}

void data_discard(struct fs *fs, struct inode *inode, uint64_t from)
{
	list_foreach (node, &inode->data->dirty) {
		struct block_record *rec = container_of(node, struct block_record, link);

		if (rec->block >= from)
			record_remove(fs, rec);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Making partial blocks whole
 */

struct locate_call {
	struct inode *inode;
	uint64_t block, phys;
	uint8_t *to;
	uint32_t sum;
	unsigned phase;
	bool hole, cached;
};

static int locate_pass(struct tx *tx, void *arg)
{
	struct locate_call *c = arg;
	struct extent e;
	struct slice at;
	int r = extent_find(tx, c->inode->ino, c->block, &e);

	if (r < 0 && r != -ENOENT)
		return r;
	c->hole = r == -ENOENT || e.first > c->block;
	if (!c->hole) {
		c->phys = e.block + (c->block - e.first);
		c->sum = extent_sum(&e, (uint32_t)(c->block - e.first));
		c->cached = data_cache_find(tx_fs(tx), c->phys, c->sum, &at) == DATA_THERE;
		if (c->cached)
			memcpy(c->to, slice_data(&at), BLOCK_BYTES);
		else
			c->phase = read_enter(tx_fs(tx)->files);
	}
	return 0;
}

int block_read(struct fs *fs, struct inode *inode, uint64_t block, struct buf *to, uint32_t off, bool *hole)
{
	struct slice slice = {to, off, BLOCK_BYTES};
	struct locate_call c = {.inode = inode, .block = block, .to = to->data + off};
	int r = fs_view(fs, locate_pass, &c);

	*hole = c.hole;
	if (r < 0 || c.cached)
		return r;
	if (c.hole) {
		memset(to->data + off, 0, BLOCK_BYTES);
		return 0;
	}
	r = blocks_read_verified(fs, inode->ino, block, c.phys, 1, &c.sum, &slice, 1);
	read_leave(fs->files, c.phase);
	return r;
}

/*
 * A buffer of one block for a moment. Flushing must not wait for memory that the flush itself gives
 * back, so there is one for when there is none.
 */
struct buf *scratch_get(struct fs_files *files)
{
	struct buf *buf = buf_try_alloc(BLOCK_BYTES);

	if (buf)
		return buf;
	fiber_lock(&files->scratch_lock);
	return files->scratch;
}

void scratch_put(struct fs_files *files, struct buf *buf)
{
	if (buf && buf == files->scratch)
		fiber_unlock(&files->scratch_lock);
	else
		buf_put(buf);
}

void scratch_renew(struct fs_files *files, struct buf **buf)
{
	bool last = *buf == files->scratch;

	buf_renew(buf, false);
	if (last)
		files->scratch = *buf;
}

static void record_fill_from(struct block_record *rec, struct buf *from, uint32_t off)
{
	struct slice slice = {rec->buf, rec->off, BLOCK_BYTES};

	slices_copy_in(&slice, 1, 0, from->data + off, rec->lo);
	slices_copy_in(&slice, 1, rec->hi, from->data + off + rec->hi, BLOCK_BYTES - rec->hi);
	rec->lo = 0;
	rec->hi = BLOCK_BYTES;
}

int record_fill(struct fs *fs, struct inode *inode, uint64_t block)
{
	struct buf *buf = NULL;
	unsigned times = 0;
	int r = 0;

	for (;;) {
		struct block_record *rec = record_find(fs->files, inode, block);
		uint64_t seq;
		bool hole;

		if (!rec || rec->state != RECORD_DIRTY || (rec->lo == 0 && rec->hi == BLOCK_BYTES))
			break;
		if (rec->older) {
			record_fill_from(rec, rec->older->buf, rec->older->off);
			break;
		}
		seq = rec->seq;
		if (!buf) {
			buf = scratch_get(fs->files);
			continue;
		}
		r = block_read(fs, inode, block, buf, 0, &hole);
		if (read_again(r, &times)) {
			scratch_renew(fs->files, &buf);
			continue;
		}
		if (r < 0)
			break;
		/* no other write may have been flushed meanwhile: then what was read is too old */
		if (record_find(fs->files, inode, block) == rec && rec->state == RECORD_DIRTY && rec->seq == seq) {
			record_fill_from(rec, buf, 0);
			break;
		}
	}
	scratch_put(fs->files, buf);
	return r;
}
