/*
 * Begin and end of the upper half: the first directory, mount, unmount, the ring of replies, and
 * what it tells of itself.
 */
#include "fs/inode_internal.h"

#define INODE_LIMIT_MIN 4096u
#define INODE_MEMORY 320u /* an inode with its share of the hash table and of malloc */

int files_format(struct tx *tx, const struct fs_create_options *options)
{
	struct fs_key root_key = {.ino = FS_ROOT_INO, .type = KEY_INODE};
	struct fs_key counters_key = {.type = KEY_COUNTERS};
	int64_t now = time_now();
	struct inode_attr attr = {
		.gen = (uint32_t)(hash_u64((uint64_t)now) | 1),
		.nlink = 2,
		.uid = options->root_uid,
		.gid = options->root_gid,
		.mode = (options->root_mode ? options->root_mode : 0755) & 07777,
		.type = FS_DIR,
		.change = fs_change_next(tx_fs(tx)),
		.atime = now,
		.mtime = now,
		.ctime = now,
		.btime = now,
		.aux = FS_ROOT_INO,
		.next_seq = NAME_SEQ_FIRST,
	};
	struct counters_disk counters = {.next_ino = le64_put(FS_ROOT_INO + 1), .inodes = le64_put(1)};
	struct inode_disk disk;
	int r;

	inode_encode(&attr, &disk);
	r = tx_put(tx, &root_key, &disk, sizeof(disk));
	return r < 0 ? r : tx_put(tx, &counters_key, &counters, sizeof(counters));
}

/* ------------------------------------------------------------------------------------------------
 * Replies
 */

static int reply_decode(const struct reply_disk *d, size_t len, struct fs_reply *reply, uint64_t *seq)
{
	if (len != sizeof(*d))
		return -EIO;
	*seq = le64_get(d->seq);
	*reply = (struct fs_reply){
		.client = le64_get(d->client),
		.xid = le32_get(d->xid),
		.proc = le32_get(d->proc),
		.checksum = le32_get(d->checksum),
		.id = {.ino = le64_get(d->ino), .gen = le32_get(d->generation), .snap = le32_get(d->snap)},
		.time_ns = le64_get(d->time_ns),
	};
	return 0;
}

/* Finds where the ring goes on. */
static int replies_mount(struct fs *fs)
{
	struct fs_key key = {.type = KEY_REPLY};
	struct reply_disk disk;
	struct fs_reply reply;
	uint64_t seq;

	for (;;) {
		int r = tree_next(fs, &key, &disk, sizeof(disk));

		if (r == -ENOENT || (r >= 0 && (key.ino != 0 || key.type != KEY_REPLY)))
			return 0;
		if (r < 0)
			return r;
		if (reply_decode(&disk, (size_t)r, &reply, &seq) < 0)
			return -EIO;
		if (seq >= fs->files->reply_seq)
			fs->files->reply_seq = seq + 1;
		key.off++;
		key.snap = 0;
	}
}

struct replies_call {
	void (*fn)(void *arg, const struct fs_reply *reply);
	void *arg;
};

static int replies_run(struct fs *fs, void *arg)
{
	const struct replies_call *c = arg;
	uint64_t next = fs->files->reply_seq;

	for (uint64_t i = next > FS_REPLIES ? next - FS_REPLIES : 0; i < next; i++) {
		struct fs_key key = {.type = KEY_REPLY, .off = i % FS_REPLIES};
		struct reply_disk disk;
		struct fs_reply reply;
		uint64_t seq;
		int r = tree_get(fs, &key, &disk, sizeof(disk));

		if (r >= 0 && reply_decode(&disk, (size_t)r, &reply, &seq) == 0 && seq == i)
			c->fn(c->arg, &reply);
	}
	return 0;
}

void fs_replies_foreach(struct fs *fs, void (*fn)(void *arg, const struct fs_reply *reply), void *arg)
{
	struct replies_call c = {fn, arg};

	files_call(fs, replies_run, &c);
}

/* ------------------------------------------------------------------------------------------------
 * Mount and unmount
 */

/* Whatever the record says, no number is given out that an inode has. */
static int counters_past(struct fs *fs)
{
	struct fs_key last = {.ino = FS_SHARED_INO - 1, .type = UINT8_MAX, .off = UINT64_MAX, .snap = UINT32_MAX};
	uint8_t val[TREE_VALUE_MAX];
	int r = tree_prev(fs, &last, val, sizeof(val));

	if (r >= 0 && last.ino >= fs->files->next_ino) {
		log_error("fs", "the counters are damaged: next inode=%llu, there is one of number=%llu",
			(unsigned long long)fs->files->next_ino, (unsigned long long)last.ino);
		fs->files->next_ino = last.ino + 1;
	}
	return r == -ENOENT || r >= 0 ? 0 : r;
}

static int counters_mount(struct fs *fs)
{
	struct fs_key key = {.type = KEY_COUNTERS};
	struct counters_disk disk;
	int r = tree_get(fs, &key, &disk, sizeof(disk));

	if (r < 0)
		return r == -ENOENT ? -EIO : r;
	if (r != (int)sizeof(disk) || le64_get(disk.next_ino) <= FS_ROOT_INO)
		return -EIO;
	fs->files->next_ino = le64_get(disk.next_ino);
	fs->files->inode_count = le64_get(disk.inodes);
	return counters_past(fs);
}

static void files_free(struct fs *fs)
{
	struct fs_files *files = fs->files;
	struct htable_cursor cursor = {0};
	struct htable_node *node;

	if (files->inodes.bucket) {
		while ((node = htable_next(&files->inodes, &cursor)))
			free(container_of(node, struct inode, node));
		htable_fini(&files->inodes);
	}
	if (files->records.bucket)
		htable_fini(&files->records);
	while (files->record_pool) {
		struct block_record *rec = files->record_pool;

		files->record_pool = rec->older;
		free(rec);
	}
	read_ahead_fini(fs);
	data_map_fini(fs);
	data_cache_fini(fs);
	buf_put(files->scratch);
	fs->files = NULL;
	free(files);
}

/* What a failed file system could not flush any more is dropped. */
static void files_drop_dirty(struct fs *fs)
{
	struct fs_files *files = fs->files;

	list_foreach (node, &files->dirty) {
		struct inode *inode = container_of(node, struct inode, dirty);

		inode->attr_dirty = false;
		if (!inode->data)
			continue;
		data_discard(fs, inode, 0);
		data_release(files, inode);
	}
}

int files_mount(struct fs *fs, struct error *err)
{
	struct fs_files *files = calloc(1, sizeof(*files));
	uint64_t limit;
	int r;

	if (!files)
		return error_set(err, -ENOMEM, "no memory for the tables of the file system");
	fs->files = files;
	files->fs = fs;
	list_init(&files->lru);
	list_init(&files->dirty);
	list_init(&files->flush_queue);
	list_init(&files->orphans);
	list_init(&files->reclaims);
	fiber_mutex_init(&files->scratch_lock);
	fiber_mutex_init(&files->room_lock);
	files->scratch = buf_alloc(BLOCK_BYTES);
	wait_queue_init(&files->dirty_wait);
	wait_queue_init(&files->flush_idle);
	wait_queue_init(&files->read_wait);
	wait_queue_init(&files->orphan_idle);
	wait_queue_init(&files->halves_idle);
	memcpy(&files->hash_seed, fs->uuid.b, sizeof(files->hash_seed));
	limit = (fs->options.cache_bytes ? fs->options.cache_bytes : 64ull << 20) / 4 / INODE_MEMORY;
	files->inode_limit = limit < INODE_LIMIT_MIN ? INODE_LIMIT_MIN : limit;
	/* a quarter of it stays for what flushing itself needs: parity, log, nodes */
	files->dirty_limit = (fs->options.dirty_bytes ? fs->options.dirty_bytes : arena_total_bytes() / 4) / 4 * 3;
	r = htable_init(&files->inodes, 1024);
	if (r == 0)
		r = htable_init(&files->records, 1024);
	if (r == 0)
		r = data_cache_init(fs);
	if (r == 0)
		r = data_map_init(fs);
	if (r == 0)
		r = read_ahead_init(fs);
	if (r == 0)
		r = flush_mount(fs);
	if (r == 0)
		r = snapshots_mount(fs);
	if (r == 0)
		r = counters_mount(fs);
	if (r == 0)
		r = replies_mount(fs);
	if (r == 0)
		r = orphans_mount(fs);
	if (r < 0) {
		files->stopping = true;
		snapshots_unmount(fs);
		orphans_unmount(fs);
		flush_unmount(fs);
		files_free(fs);
		return error_set(
			err, r, "the file system's counters, replies or orphans cannot be read: %s", strerror(-r));
	}
	return 0;
}

int files_repair_begin(struct fs *fs)
{
	struct fs_files *files = calloc(1, sizeof(*files));

	if (!files)
		return -ENOMEM;
	files->fs = fs;
	wait_queue_init(&files->read_wait);
	memcpy(&files->hash_seed, fs->uuid.b, sizeof(files->hash_seed));
	fs->files = files;
	return 0;
}

void files_repair_end(struct fs *fs)
{
	free(fs->files);
	fs->files = NULL;
}

int files_unmount(struct fs *fs)
{
	int r = fs->failed ? fs->failed : files_flush_all(fs);

	fs->files->stopping = true;
	snapshots_unmount(fs);
	orphans_unmount(fs);
	flush_unmount(fs);
	files_drop_dirty(fs);
	/* the end of a read that another reactor did may still be on its way */
	while (fs->files->reads[0] + fs->files->reads[1] > 0)
		wait_queue_wait(&fs->files->read_wait, NEVER);
	files_free(fs);
	return r;
}

void files_status(const struct fs *fs, struct fs_status *out)
{
	const struct fs_files *files = fs->files;

	out->cached_inodes = files->inodes.count;
	out->dirty_bytes = files->dirty_bytes;
	out->cache_bytes = files->cache.bytes;
	out->cache_limit_bytes = files->cache.limit;
	out->cache_hits = files->cache.hits;
	out->cache_misses = files->cache.misses;
	out->cache_evictions = files->cache.evictions;
	out->ahead_blocks = files->ahead.blocks;
	out->checksum_errors += __atomic_load_n(&files->checksum_errors, __ATOMIC_RELAXED);
	out->checksum_repairs += __atomic_load_n(&files->checksum_repairs, __ATOMIC_RELAXED);
	out->inodes = files->inode_count;
}

uint32_t fs_stamp(const struct fs *fs)
{
	return fs->files ? fs->files->stamp : 0;
}

uint32_t fs_stamp_floor(const struct fs *fs)
{
	return fs->files ? fs->files->floor : 0;
}

uint64_t files_inode_count(const struct fs *fs)
{
	return fs->files->inode_count;
}
