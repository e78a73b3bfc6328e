/*
 * Flush: dirty blocks of many files become rows, extents and one log write.
 *
 * Whoever wants an inode's dirty blocks durable puts it into the flush queue. A group takes what is
 * queued: it collects dirty records of as many inodes as there are, up to GROUP_RECORDS; gives each
 * a place (long runs of one file get whole stripes, all others share rows, many files to one);
 * writes the rows durably; names them in as few transactions as hold them; waits for the log; and
 * lets the waiters go. A few groups are under way at a time. What is wanted meanwhile gathers, so
 * under load many small durable writes share rows and log writes, and without load one goes at once.
 * Only the writing of rows leaves the home reactor.
 *
 * A group is a user of each inode's data from taking the first record to the end. Records being
 * flushed keep serving reads until the group's transactions are durable.
 *
 * If a group fails, its blocks are lost: their writers get the error, and the write verifier
 * changes, so that clients send again what was unstable.
 */
#include "fs/inode_internal.h"

#define TAKE_RECORDS 512u /* so many checksums are computed without letting others run */
#define GROUP_FIBERS 8u	  /* that fill blocks or write rows side by side */
#define RUNS_TOGETHER 4u  /* of strips of 64 KiB as many as the longest drive command holds */
#define FLUSH_AGE (2 * NSEC_PER_SEC)
#define PLACE_ATTEMPTS 10u

struct group_inode {
	struct inode *inode;
	unsigned first, count;	    /* records */
	uint64_t size;		    /* when they were taken */
	uint64_t disk_size, blocks; /* as the transaction leaves them */
	bool changed;
};
struct group_run {
	struct row_run run;
	unsigned first_slice, slices;
};
struct flush_group {
	struct fs *fs;
	bool busy, gathering;
	unsigned n, inodes, runs, slices;
	struct block_record *rec[GROUP_RECORDS];
	struct group_inode inode[GROUP_RECORDS];
	struct group_run run[GROUP_RECORDS + 8];
	struct slice slice[2 * GROUP_RECORDS + 16];
	/* jobs side by side */
	unsigned next_job, jobs;
	int (*job)(struct flush_group *group, unsigned job);
	struct wait_group wait;
	struct {
		struct inode *inode;
		uint64_t block;
	} fill[GROUP_RECORDS];
	/* the part that one transaction names; by number of record, and as extents of one inode */
	le32 sum[GROUP_RECORDS];
	struct extent_edit edit[GROUP_RECORDS];
	unsigned tx_first, tx_end;
	uint64_t seq;
};

/* ------------------------------------------------------------------------------------------------
 * Waiters
 */

static bool waiter_done(struct fs_files *files, struct inode *inode, struct flush_waiter *w)
{
	if (!inode->data || inode->data->records == 0)
		return true;
	if (w->to - w->from >= inode->data->records) {
		/* a long range: rather all records */
		list_foreach (node, &inode->data->dirty) {
			struct block_record *rec = container_of(node, struct block_record, link);

			if (rec->block >= w->from && rec->block <= w->to && rec->seq <= w->seq)
				return false;
		}
		for (unsigned g = 0; g < FLUSH_GROUPS; g++) {
			struct flush_group *group = files->group[g];

			for (unsigned i = 0; group && group->busy && i < group->n; i++) {
				struct block_record *rec = group->rec[i];

				if (rec && rec->inode == inode && rec->block >= w->from && rec->block <= w->to &&
					rec->seq <= w->seq)
					return false;
			}
		}
		return true;
	}
	for (; w->from <= w->to; w->from++) {
		for (struct block_record *rec = record_find(files, inode, w->from); rec; rec = rec->older)
			if (rec->seq <= w->seq)
				return false;
		if (w->from == UINT64_MAX)
			break;
	}
	return true;
}

static void waiter_wake(struct flush_waiter *w)
{
	w->done = true;
	list_remove(&w->link);
	fiber_wake(w->fiber);
}

void flush_check_waiters(struct fs_files *files, struct inode *inode)
{
	if (!inode->data)
		return;
	list_foreach (node, &inode->data->waiters) {
		struct flush_waiter *w = container_of(node, struct flush_waiter, link);

		if (waiter_done(files, inode, w))
			waiter_wake(w);
	}
}

int flush_wait(struct fs *fs, struct inode *inode, uint64_t from, uint64_t to, uint64_t seq)
{
	struct flush_waiter w = {.from = from, .to = to, .seq = seq, .fiber = fiber_self()};

	if (waiter_done(fs->files, inode, &w))
		return 0;
	list_push_back(&inode->data->waiters, &w.link);
	while (!w.done)
		fiber_suspend();
	data_release(fs->files, inode);
	return w.error;
}

/* The block of REC will not become durable. */
static void record_fail(struct fs *fs, struct block_record *rec, int error)
{
	list_foreach (node, &rec->inode->data->waiters) {
		struct flush_waiter *w = container_of(node, struct flush_waiter, link);

		if (rec->block >= w->from && rec->block <= w->to && rec->seq <= w->seq && w->error == 0)
			w->error = error;
	}
	record_remove(fs, rec);
}

/* ------------------------------------------------------------------------------------------------
 * Jobs side by side
 */

static int group_jobs_loop(struct flush_group *group)
{
	int r = 0;

	while (r == 0 && group->next_job < group->jobs) {
		unsigned job = group->next_job++;

		r = group->job(group, job);
	}
	return r;
}

static void group_jobs_fiber(void *arg)
{
	struct flush_group *group = arg;

	wait_group_done(&group->wait, group_jobs_loop(group));
}

static int group_run_jobs(struct flush_group *group, unsigned jobs, int (*job)(struct flush_group *group, unsigned job))
{
	int r, error;

	group->jobs = jobs;
	group->next_job = 0;
	group->job = job;
	if (jobs <= 1)
		return group_jobs_loop(group);
	wait_group_init(&group->wait);
	/* all of them new, so that they run in one round: drives join what is sent to them then */
	for (unsigned i = 0; i < GROUP_FIBERS && i < jobs; i++) {
		wait_group_add(&group->wait, 1);
		if (fiber_spawn(group_jobs_fiber, group) < 0) {
			wait_group_done(&group->wait, 0);
			break;
		}
	}
	error = wait_group_wait(&group->wait);
	r = group_jobs_loop(group); /* what is left when there were no fibers */
	return r < 0 ? r : error;
}

/* ------------------------------------------------------------------------------------------------
 * Taking records
 */

static int fill_job(struct flush_group *group, unsigned job)
{
	struct fs *fs = group->fs;
	struct inode *inode = group->fill[job].inode;
	uint64_t block = group->fill[job].block;
	int r = record_fill(fs, inode, block);

	if (r < 0) {
		struct block_record *rec = record_find(fs->files, inode, block);

		log_error("fs",
			"a written part of a block is lost, for the rest of it cannot be read ino=%llu block=%llu",
			(unsigned long long)inode->ino, (unsigned long long)block);
		if (rec && rec->state == RECORD_DIRTY) {
			record_fail(fs, rec, r);
			fs_verifier_change(fs);
			flush_check_waiters(fs->files, inode);
		}
	}
	data_unuse(fs->files, inode);
	inode_unref(fs->files, inode);
	return 0;
}

/* Makes whole what is queued and partial. Waits only if there is any. */
static void group_fill(struct flush_group *group)
{
	struct fs_files *files = group->fs->files;
	unsigned n = 0, seen = 0;

	list_foreach (node, &files->flush_queue) {
		struct inode_data *data = container_of(node, struct inode_data, queue_link);

		if (data->exclusive)
			continue;
		list_foreach (rec_node, &data->dirty) {
			struct block_record *rec = container_of(rec_node, struct block_record, link);

			if (n == GROUP_RECORDS || ++seen > 2 * GROUP_RECORDS)
				break;
			if (rec->older || record_complete(rec))
				continue;
			data->users++;
			inode_ref(data->inode);
			group->fill[n].inode = data->inode;
			group->fill[n].block = rec->block;
			n++;
		}
	}
	if (n > 0)
		group_run_jobs(group, n, fill_job);
}

static int record_order(const void *a, const void *b)
{
	const struct block_record *const *x = a, *const *y = b;

	return (*x)->block < (*y)->block ? -1 : (*x)->block > (*y)->block;
}

enum take_result {
	TAKE_DONE,
	TAKE_FULL,   /* some is left because the group is full */
	TAKE_PARTIAL /* some is left because it became partial, or came, while the group filled others */
};

/* A stream that goes on: rather whole stripes now, and the rest with what follows. */
static void group_give_back(struct flush_group *group, struct inode_data *data)
{
	unsigned stripe = (unsigned)volume_stripe_blocks(&group->fs->geometry);
	unsigned keep = group->n >= stripe ? group->n / stripe * stripe : group->n;

	while (group->n > keep) {
		struct block_record *rec = group->rec[--group->n];

		rec->state = RECORD_DIRTY;
		list_push_front(&data->dirty, &rec->link);
	}
}

/*
 * Takes what it may of one inode. What stands on a record that another group has under way is left,
 * and queued again when that group ends.
 */
static enum take_result group_take_inode(struct flush_group *group, struct inode_data *data)
{
	enum take_result result = TAKE_DONE;
	struct inode *inode = data->inode;
	unsigned first = group->n;
	bool sorted = true;

	list_foreach (node, &data->dirty) {
		struct block_record *rec = container_of(node, struct block_record, link);

		if (rec->older)
			continue;
		if (!record_complete(rec)) {
			result = TAKE_PARTIAL;
			continue;
		}
		if (group->n == group->fs->space.group) {
			result = TAKE_FULL;
			break;
		}
		list_remove(&rec->link);
		rec->state = RECORD_FLUSHING;
		if (rec->hi < BLOCK_BYTES)
			memset(record_data(rec) + rec->hi, 0, BLOCK_BYTES - rec->hi);
		rec->hi = BLOCK_BYTES;
		rec->sum = checksum32(record_data(rec), BLOCK_BYTES);
		if (group->n > first && group->rec[group->n - 1]->block > rec->block)
			sorted = false;
		group->rec[group->n++] = rec;
	}
	if (!sorted)
		qsort(group->rec + first, group->n - first, sizeof(group->rec[0]), record_order);
	if (result == TAKE_FULL && first == 0)
		group_give_back(group, data);
	if (group->n > first) {
		group->inode[group->inodes++] = (struct group_inode){
			.inode = inode, .first = first, .count = group->n - first, .size = inode->attr.size};
		data->users++;
		inode_ref(inode);
	}
	return result;
}

static void group_take(struct flush_group *group)
{
	struct fs_files *files = group->fs->files;
	struct list queue, again;
	struct list_node *node;
	unsigned pause = TAKE_RECORDS;

	list_init(&queue);
	list_init(&again);
	group->n = group->inodes = group->runs = group->slices = 0;
	group_fill(group);
	/* what comes during a pause is for the next group: no inode twice, for a pass does not see its own changes */
	list_append(&queue, &files->flush_queue);
	while (group->n < group->fs->space.group && (node = list_pop_front(&queue))) {
		struct inode_data *data = container_of(node, struct inode_data, queue_link);
		enum take_result result;

		if (data->exclusive)
			continue; /* data_unexclude() queues it again */
		result = group_take_inode(group, data);
		if (result == TAKE_PARTIAL)
			list_push_back(&again, &data->queue_link);
		if (result == TAKE_FULL) {
			list_push_front(&queue, &data->queue_link);
			break;
		}
		if (group->n >= pause) {
			pause = group->n + TAKE_RECORDS;
			fiber_yield();
		}
	}
	list_append(&queue, &files->flush_queue);
	list_append(&queue, &again);
	list_append(&files->flush_queue, &queue);
	group->gathering = false;
}

/* ------------------------------------------------------------------------------------------------
 * Places
 */

static void group_slice(struct flush_group *group, struct buf *buf, uint32_t off, uint32_t len)
{
	struct group_run *run = &group->run[group->runs - 1];
	struct slice *last = run->slices ? &group->slice[group->slices - 1] : NULL;

	if (last && last->buf == buf && last->off + last->len == off && last->len + len <= BUF_MAX) {
		last->len += len;
		return;
	}
	group->slice[group->slices++] = (struct slice){buf, off, len};
	run->slices++;
}

/* Gives the N records from REC on places in rows of CLASS, filling up with zeros. */
static int group_place(struct flush_group *group, enum space_class class, struct block_record **rec, unsigned n)
{
	const struct volume_geometry *g = &group->fs->geometry;

	while (n > 0) {
		uint32_t rows = (n + g->k - 1) / g->k, count, pad;
		struct group_run *run = &group->run[group->runs];
		int r;

		if (rows > g->strip_blocks)
			rows = g->strip_blocks;
		r = space_take_rows(group->fs, class, rows, &run->run);
		if (r < 0)
			return r;
		run->first_slice = group->slices;
		run->slices = 0;
		group->runs++;
		count = run->run.rows * g->k;
		pad = count > n ? count - n : 0;
		count -= pad;
		uint64_t strip = run->run.stripe * volume_stripe_blocks(g) + run->run.row;
		for (uint32_t i = 0; i < count; strip += g->strip_blocks) {
			for (uint32_t row = 0; row < run->run.rows && i < count; row++, i++) {
				rec[i]->phys = strip + row;
				group_slice(group, rec[i]->buf, rec[i]->off, BLOCK_BYTES);
			}
		}
		for (; pad > 0; pad--) {
			/* never joined to more than the zeros there are */
			struct slice *last = &group->slice[group->slices - 1];

			if (last->buf == buf_zero() && last->len < BUF_MAX) {
				last->len += BLOCK_BYTES;
			} else {
				group->slice[group->slices++] = (struct slice){buf_zero(), 0, BLOCK_BYTES};
				run->slices++;
			}
		}
		rec += count;
		n -= count;
	}
	return 0;
}

/* Whole stripes for long runs; then what is left of all inodes, in order, shares rows. */
static int group_place_once(struct flush_group *group)
{
	unsigned stripe = (unsigned)volume_stripe_blocks(&group->fs->geometry), small = 0;
	struct block_record **rest = malloc(sizeof(*rest) * (group->n ? group->n : 1));
	int r = 0;

	if (!rest)
		return -ENOMEM;
	for (unsigned i = 0; i < group->n && r == 0;) {
		unsigned end = i + 1, whole;

		while (end < group->n && group->rec[end]->inode == group->rec[i]->inode &&
			group->rec[end]->block == group->rec[end - 1]->block + 1)
			end++;
		whole = (end - i) / stripe * stripe;
		if (whole > 0)
			r = group_place(group, SPACE_STREAM, group->rec + i, whole);
		for (i += whole; i < end; i++)
			rest[small++] = group->rec[i];
	}
	if (r == 0)
		r = group_place(group, SPACE_SMALL, rest, small);
	free(rest);
	return r;
}

/*
 * Space was promised when the blocks were written, but it may still hang in stripes that only a
 * checkpoint frees, or that the cleaner has to empty first. Rows are taken when there are enough for all, for those
 * that are taken in vain are holes.
 */
static int group_place_all(struct flush_group *group)
{
	struct fs *fs = group->fs;
	int r = 0;

	for (unsigned attempt = 0; r == 0; attempt++) {
		if (space_rows_fit(fs, group->n) || attempt == PLACE_ATTEMPTS) {
			r = group_place_once(group);
			if (r != -ENOSPC || attempt == PLACE_ATTEMPTS || fs->failed)
				return r;
			for (unsigned i = 0; i < group->runs; i++)
				space_rows_done(fs, &group->run[i].run);
			group->runs = group->slices = 0;
		}
		r = cleaner_wait(fs, group->n);
		if (r == 0 && !space_rows_fit(fs, group->n))
			r = fs_checkpoint(fs);
	}
	return r;
}

struct run_write {
	struct flush_group *group;
	const struct group_run *run;
	int result;
};

static void run_write_here(void *arg)
{
	struct run_write *c = arg;
	const struct row_run *run = &c->run->run;

	c->result = volume_write_rows(c->group->fs->volume, run->stripe, run->row, run->rows,
		c->group->slice + c->run->first_slice, c->run->slices, VOLUME_DURABLE);
}

/*
 * Parity and drive commands of a stream are work for all reactors; a single run is quicker here. Neighbours go to the
 * same one as far as there are enough for all: drives join their commands.
 */
static int write_job(struct flush_group *group, unsigned job)
{
	struct run_write c = {.group = group, .run = &group->run[job]};
	unsigned reactors = reactor_count(), together = group->runs / reactors;

	if (together > RUNS_TOGETHER)
		together = RUNS_TOGETHER;
	if (together == 0)
		together = 1;
	if (group->runs > 1 && reactors > 1)
		reactor_call(
			reactor_get((reactor_index(reactor_self()) + job / together) % reactors), run_write_here, &c);
	else
		run_write_here(&c);
	return c.result;
}

int flush_one_block(struct fs *fs, const struct slice *block, uint64_t *phys, struct row_run *run)
{
	const struct volume_geometry *g = &fs->geometry;
	struct slice slice[4];
	unsigned n = 1;
	uint32_t pad = (g->k - 1) * BLOCK_BYTES;
	int r = space_refuse() ? -ENOSPC : space_take_rows(fs, SPACE_SMALL, 1, run);

	if (r < 0)
		return r;
	slice[0] = *block;
	while (pad > 0 && n < 4) {
		uint32_t len = pad < BUF_MAX ? pad : BUF_MAX;

		slice[n++] = (struct slice){buf_zero(), 0, len};
		pad -= len;
	}
	*phys = run->stripe * volume_stripe_blocks(g) + run->row;
	r = volume_write_rows(fs->volume, run->stripe, run->row, 1, slice, n, VOLUME_DURABLE);
	if (r < 0)
		space_rows_done(fs, run);
	return r;
}

/* ------------------------------------------------------------------------------------------------
 * The transaction
 */

/* Names the new places of records FIRST..END of one inode. */
static int group_name(
	struct tx *tx, struct flush_group *group, uint64_t ino, unsigned first, unsigned end, uint64_t *dropped)
{
	unsigned n = 0;

	for (unsigned i = first; i < end; n++) {
		const struct block_record *rec = group->rec[i];
		struct extent_edit *e = &group->edit[n];

		*e = (struct extent_edit){.first = rec->block, .block = rec->phys, .sums = group->sum[i].b};
		while (i < end && e->count < EXTENT_BLOCKS_MAX && group->rec[i]->block == e->first + e->count &&
			group->rec[i]->phys == e->block + e->count) {
			group->sum[i] = le32_put(group->rec[i]->sum);
			e->count++;
			i++;
		}
	}
	return extents_edit(tx, ino, group->edit, n, dropped);
}

static int group_put_inode(struct tx *tx, struct group_inode *gi, uint64_t last_block, uint64_t added, uint64_t dropped)
{
	struct fs_key key = {.ino = gi->inode->ino, .type = KEY_INODE};
	uint64_t end = (last_block + 1) * BLOCK_BYTES;
	struct inode_attr attr = gi->inode->attr;
	struct inode_disk disk;

	if (end > gi->size)
		end = gi->size;
	if (end > attr.disk_size)
		attr.disk_size = end;
	attr.blocks += added;
	attr.blocks -= dropped < attr.blocks ? dropped : attr.blocks;
	gi->disk_size = attr.disk_size;
	gi->blocks = attr.blocks;
	gi->changed = true;
	inode_encode(&attr, &disk);
	return tx_put(tx, &key, &disk, sizeof(disk));
}

static void group_applied(void *arg)
{
	struct flush_group *group = arg;

	for (unsigned i = 0; i < group->inodes; i++) {
		struct group_inode *gi = &group->inode[i];

		if (!gi->changed)
			continue;
		gi->inode->attr.disk_size = gi->disk_size;
		gi->inode->attr.blocks = gi->blocks;
		gi->inode->attr_dirty = false;
		gi->changed = false;
	}
}

static int group_pass(struct tx *tx, void *arg)
{
	struct flush_group *group = arg;
	int r;

	for (unsigned i = 0; i < group->inodes; i++) {
		struct group_inode *gi = &group->inode[i];
		unsigned first = gi->first, end = gi->first + gi->count;
		uint64_t dropped = 0;

		gi->changed = false;
		if (first < group->tx_first)
			first = group->tx_first;
		if (end > group->tx_end)
			end = group->tx_end;
		if (first >= end)
			continue;
		r = group_name(tx, group, gi->inode->ino, first, end, &dropped);
		if (r == 0)
			r = group_put_inode(tx, gi, group->rec[end - 1]->block, end - first, dropped);
		if (r < 0)
			return r;
	}
	return tx_on_apply(tx, group_applied, group);
}

static int group_commit(struct flush_group *group)
{
	struct fs_files *files = group->fs->files;
	unsigned count = files->tx_records;

	group->tx_first = 0;
	while (group->tx_first < group->n) {
		int r;

		group->tx_end = group->tx_first + count;
		if (group->tx_end > group->n)
			group->tx_end = group->n;
		r = fs_transact(group->fs, group_pass, group, &group->seq);
		if (r == -E2BIG && count > 1) {
			count = (group->tx_end - group->tx_first + 1) / 2;
			files->tx_records = count;
			continue;
		}
		if (r < 0)
			return r;
		group->tx_first = group->tx_end;
		if (count < GROUP_RECORDS)
			count = files->tx_records = count + count / 8 + 1;
	}
	return log_wait(group->fs, group->seq);
}

/* ------------------------------------------------------------------------------------------------
 * A group's life
 */

/* What is on the drives now stays in memory as clean data: a buffer's blocks together. */
static void group_cache(struct flush_group *group)
{
	struct data_place place[BUF_MAX / BLOCK_BYTES];

	for (unsigned i = 0; i < group->n;) {
		struct buf *buf = group->rec[i]->buf;
		unsigned n = 0;

		for (; i < group->n && group->rec[i]->buf == buf; i++)
			place[n++] = (struct data_place){
				group->rec[i]->phys, group->rec[i]->sum, group->rec[i]->off / BLOCK_BYTES};
		data_cache_add(group->fs, buf, place, n);
	}
}

static void group_end(struct flush_group *group, int error)
{
	struct fs *fs = group->fs;
	struct fs_files *files = fs->files;

	if (!error)
		group_cache(group); /* while the rows are in flight still: nobody may have written over them */
	for (unsigned i = 0; i < group->runs; i++)
		space_rows_done(fs, &group->run[i].run);
	for (unsigned i = 0; i < group->n; i++) {
		if (error)
			record_fail(fs, group->rec[i], error);
		else
			record_remove(fs, group->rec[i]);
		group->rec[i] = NULL;
	}
	if (error) {
		log_error("fs", "written data could not be stored blocks=%u error=%s", group->n, strerror(-error));
		fs_verifier_change(fs);
	}
	group->n = 0;
	for (unsigned i = 0; i < group->inodes; i++) {
		struct inode *inode = group->inode[i].inode;

		flush_check_waiters(files, inode);
		if (!list_empty(&inode->data->waiters) && !list_empty(&inode->data->dirty))
			flush_want(fs, inode);
		data_unuse(files, inode);
		inode_unref(files, inode);
	}
}

static void flush_kick(struct fs *fs);

static void flush_fiber(void *arg)
{
	struct flush_group *group = arg;
	struct fs *fs = group->fs;
	struct fs_files *files = fs->files;
	int r;

	group_take(group);
	if (!list_empty(&files->flush_queue))
		flush_kick(fs);
	if (group->n > 0) {
		r = group_place_all(group);
		if (r == 0)
			r = group_run_jobs(group, group->runs, write_job);
		if (r == 0)
			r = group_commit(group);
		group_end(group, r);
	}
	group->busy = false;
	files->groups_busy--;
	wait_queue_wake_all(&files->flush_idle);
	if (!list_empty(&files->flush_queue))
		flush_kick(fs);
}

static void flush_kick(struct fs *fs)
{
	struct fs_files *files = fs->files;

	for (unsigned i = 0; i < FLUSH_GROUPS; i++) {
		struct flush_group *group = files->group[i];

		if (!group || group->busy)
			continue;
		group->busy = group->gathering = true;
		group->n = group->inodes = 0;
		files->groups_busy++;
		if (fiber_spawn(flush_fiber, group) < 0)
			reactor_spawn(fs->home, flush_fiber, group);
		return;
	}
}

void flush_want(struct fs *fs, struct inode *inode)
{
	struct fs_files *files = fs->files;

	if (!inode->data || list_empty(&inode->data->dirty))
		return;
	if (!list_linked(&inode->data->queue_link))
		list_push_back(&files->flush_queue, &inode->data->queue_link);
	/* a group that gathers takes this one too, as far as it has room */
	for (unsigned i = 0; i < FLUSH_GROUPS; i++)
		if (files->group[i] && files->group[i]->gathering)
			return;
	flush_kick(fs);
}

void flush_dirty_all(struct fs *fs)
{
	list_foreach (node, &fs->files->dirty) {
		struct inode *inode = container_of(node, struct inode, dirty);

		flush_want(fs, inode);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Attributes alone, and the background
 */

struct attrs_call {
	struct inode *inode[CHANGE_INODES];
	unsigned n;
	struct change change;
};

static int attrs_pass(struct tx *tx, void *arg)
{
	struct attrs_call *c = arg;

	change_begin(&c->change, tx);
	for (unsigned i = 0; i < c->n; i++)
		if (!c->inode[i]->gone)
			change_inode(&c->change, c->inode[i]);
	return change_finish(&c->change, tx, NULL, (struct fs_id){0});
}

/* Brings attributes to the tree that no data waits for (access times). */
static int flush_attrs_all(struct fs *fs, uint64_t *seq)
{
	struct fs_files *files = fs->files;
	struct attrs_call *c = malloc(sizeof(*c));
	int r = 0;

	if (!c)
		return -ENOMEM;
	do {
		c->n = 0;
		list_foreach (node, &files->dirty) {
			struct inode *inode = container_of(node, struct inode, dirty);

			if (!inode->attr_dirty || (inode->data && inode->data->records > 0))
				continue;
			inode_ref(inode);
			c->inode[c->n++] = inode;
			if (c->n == CHANGE_INODES)
				break;
		}
		if (c->n > 0)
			r = fs_transact(fs, attrs_pass, c, seq);
		for (unsigned i = 0; i < c->n; i++)
			inode_unref(files, c->inode[i]);
	} while (r == 0 && c->n == CHANGE_INODES);
	free(c);
	return r;
}

static bool flush_all_clean(const struct fs_files *files)
{
	return files->dirty_bytes == 0 && files->groups_busy == 0;
}

int files_flush_all(struct fs *fs)
{
	struct fs_files *files = fs->files;
	uint64_t target = files->write_seq, seq = 0;
	int r;

	if (fs->read_only)
		return 0;
	/* what is written meanwhile need not be waited for: look only at what is older */
	for (unsigned round = 0; round < 100000 && !flush_all_clean(files) && !fs->failed; round++) {
		bool older = files->groups_busy > 0;

		flush_dirty_all(fs);
		list_foreach (node, &files->dirty) {
			struct inode *inode = container_of(node, struct inode, dirty);
			struct list_node *first = inode->data ? list_first(&inode->data->dirty) : NULL;

			if (first && container_of(first, struct block_record, link)->seq <= target)
				older = true;
		}
		if (!older)
			break;
		wait_queue_wait(&files->flush_idle, now_ns() + 10 * NSEC_PER_MSEC);
	}
	r = flush_attrs_all(fs, &seq);
	if (r == 0 && seq)
		r = log_wait(fs, seq);
	return r < 0 ? r : fs->failed;
}

static void flush_background(void *arg)
{
	struct fs *fs = arg;
	struct fs_files *files = fs->files;
	uint64_t seq;

	if (!files->stopping && !fs->failed) {
		flush_dirty_all(fs);
		flush_attrs_all(fs, &seq);
	}
	files->flush_timer_armed = files->flush_background = false;
	if (!files->stopping && !fs->failed && !list_empty(&files->dirty))
		flush_timer_arm(fs);
	wait_queue_wake_all(&files->flush_idle);
}

static void flush_timer_fired(struct timer *timer)
{
	struct fs_files *files = container_of(timer, struct fs_files, flush_timer);

	files->flush_background = true;
	reactor_spawn(files->fs->home, flush_background, files->fs);
}

void flush_timer_arm(struct fs *fs)
{
	struct fs_files *files = fs->files;

	if (files->flush_timer_armed || files->stopping || fs->read_only)
		return;
	files->flush_timer_armed = true;
	timer_start(&files->flush_timer, now_ns() + files->flush_age_ns);
}

int flush_mount(struct fs *fs)
{
	struct fs_files *files = fs->files;

	files->flush_age_ns = FLUSH_AGE;
	files->tx_records = GROUP_RECORDS;
	timer_init(&files->flush_timer, flush_timer_fired);
	if (fs->read_only)
		return 0;
	for (unsigned i = 0; i < FLUSH_GROUPS; i++) {
		files->group[i] = calloc(1, sizeof(struct flush_group));
		if (!files->group[i])
			return -ENOMEM;
		files->group[i]->fs = fs;
	}
	return 0;
}

void flush_unmount(struct fs *fs)
{
	struct fs_files *files = fs->files;

	files->stopping = true;
	timer_stop(&files->flush_timer);
	while (files->groups_busy > 0 || files->flush_background)
		wait_queue_wait(&files->flush_idle, NEVER);
	for (unsigned i = 0; i < FLUSH_GROUPS; i++)
		free(files->group[i]);
}
