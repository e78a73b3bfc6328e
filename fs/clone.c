/*
 * Cloning: a range of a file appears in another one, or elsewhere in the same, and both share the blocks.
 *
 *   alone    with both files: their writers wait, and what is dirty is flushed
 *   share    the blocks of the source that it owns itself go to FS_SHARED_INO (share.c), in transactions of bounded
 *            size; the source then refers to them. That changes how it is written down and not what it says
 *   refer    one transaction takes what the target has there away, and lets it refer to the same numbers
 *
 * A reference covers up to 4 MiB, and a count any stretch, so that one transaction does for some 10 GiB. Where it does
 * not, the last step goes in pieces from the start on: readers of the target wait, and so do new snapshots, until the
 * last one. A crash then leaves a first part of the range, which the call, never answered, did not promise.
 *
 * Errors: as those of any write. Whatever happens in the first two steps leaves both files as they were.
 */
#include "fs/inode_internal.h"

#define SHARE_CELLS 256u /* in a transaction */
#define REFS_MOST 4096u	 /* edits in a transaction */

struct clone_call {
	const struct fs_op *op;
	struct fs_id from_id, to_id;
	uint64_t from_off, to_off, count; /* bytes */
	struct fs_wcc *wcc;
	struct inode *from, *to;
	/* blocks of the source; TO has them at the same distance from its first */
	uint64_t first, end, pos, pos_after, piece;
	unsigned limit;
	struct extent_edit *edit;
	unsigned edits;
	uint64_t added;
	struct change change;
};

/* ------------------------------------------------------------------------------------------------
 * Checks
 */

static int clone_file(struct tx *tx, const struct clone_call *c, struct fs_id id, uint32_t want, struct inode **inode)
{
	int r = inode_get(tx, id, inode);

	if (r < 0)
		return r;
	if ((*inode)->attr.type == FS_DIR)
		return -EISDIR;
	if ((*inode)->attr.type != FS_REG)
		return -EINVAL;
	return attr_data_permission(&(*inode)->attr, c->op, want);
}

static int clone_find_pass(struct tx *tx, void *arg)
{
	struct clone_call *c = arg;
	struct inode *from, *to;
	int r = clone_file(tx, c, c->to_id, FS_MAY_WRITE, &to);

	if (r == 0 || r == -EACCES) {
		wcc_before(c->wcc, &to->attr);
		wcc_after(c->wcc, &to->attr, to->ino);
	}
	if (r == 0)
		r = clone_file(tx, c, c->from_id, FS_MAY_READ, &from);
	if (r < 0)
		return r;
	inode_ref(from);
	inode_ref(to);
	c->from = from;
	c->to = to;
	return 0;
}

/* With both files' sizes at rest. 1: there is nothing to do. */
static int clone_check(struct clone_call *c)
{
	uint64_t size = c->from->attr.size, count = c->count;

	if (c->from_off > size)
		return -EINVAL;
	if (count == 0)
		count = size - c->from_off;
	if (count > size - c->from_off)
		return -EINVAL;
	if (count > FS_SIZE_MAX - c->to_off)
		return -EFBIG;
	/* a part of a block may only be the end of both */
	if (count % BLOCK_BYTES && (c->from_off + count != size || c->to_off + count < c->to->attr.size))
		return -EINVAL;
	if (c->from == c->to && c->from_off < c->to_off + count && c->to_off < c->from_off + count)
		return -EINVAL;
	c->count = count;
	c->first = c->pos = c->from_off / BLOCK_BYTES;
	c->end = (c->from_off + count + BLOCK_BYTES - 1) / BLOCK_BYTES;
	return count == 0;
}

/* ------------------------------------------------------------------------------------------------
 * Sharing and referring
 */

static int share_pass(struct tx *tx, void *arg)
{
	struct clone_call *c = arg;

	if (!space_promises_hold(tx_fs(tx)))
		return -ENOSPC;
	c->pos_after = c->pos;
	return extents_share(tx, c->from->ino, c->from_id.snap, &c->pos_after, c->end, c->limit);
}

static int clone_share(struct fs *fs, struct clone_call *c)
{
	int r = 0;

	c->limit = SHARE_CELLS;
	while (r == 0 && c->pos < c->end) {
		r = fs_transact(fs, share_pass, c, NULL);
		if (r == -E2BIG && c->limit > 1) {
			c->limit /= 2;
			r = 0;
		} else if (r == 0) {
			c->pos = c->pos_after;
		}
	}
	c->pos = c->first;
	return r;
}

/* The target's blocks COUNT from AT of the source on refer to shared ones from BLOCK on; or a hole. */
static void edit_add(struct clone_call *c, uint64_t at, uint64_t count, uint64_t block, bool shared)
{
	uint64_t first = at - c->first + c->to_off / BLOCK_BYTES;

	if (shared)
		c->added += count;
	while (count > 0) {
		struct extent_edit *last = c->edits ? &c->edit[c->edits - 1] : NULL;
		uint64_t room = last ? EXTENT_REF_BLOCKS_MAX - last->count : 0, now;

		if (!shared) {
			c->edit[c->edits++] = (struct extent_edit){.first = first, .count = count};
			return;
		}
		if (!last || !last->shared || last->first + last->count != first ||
			last->block + last->count != block || room == 0) {
			last = &c->edit[c->edits++];
			*last = (struct extent_edit){.first = first, .block = block, .shared = true};
			room = EXTENT_REF_BLOCKS_MAX;
		}
		now = count < room ? count : room;
		last->count += now;
		first += now;
		block += now;
		count -= now;
	}
}

/* What the source says of blocks c->pos .. *STOP, as edits of the target. *STOP becomes less when there is much. */
static int edits_collect(struct tx *tx, struct clone_call *c, uint64_t *stop)
{
	uint64_t at = c->pos;

	c->edits = 0;
	c->added = 0;
	tx->snap = c->from_id.snap;
	while (at < *stop) {
		struct extent e;
		uint64_t end;
		int r = extent_find_record(tx, c->from->ino, at, &e);

		if (r < 0 && r != -ENOENT)
			return r;
		if (r == -ENOENT)
			e.first = UINT64_MAX;
		if (c->edits + 3 > REFS_MOST) {
			*stop = at;
			break;
		}
		end = e.first < *stop ? e.first : *stop;
		if (end > at)
			edit_add(c, at, end - at, 0, false);
		else
			end = at;
		if (end < *stop) {
			uint64_t skip = end - e.first;

			if (!e.shared)
				return -EIO; /* clone_share() saw to that, and nobody writes */
			at = e.first + e.count < *stop ? e.first + e.count : *stop;
			edit_add(c, end, at - end, e.block + skip, true);
		} else {
			at = end;
		}
	}
	tx->snap = 0;
	return 0;
}

static void clone_applied(struct change *change, void *arg)
{
	struct clone_call *c = arg;

	(void)change;
	c->pos = c->pos_after;
}

static int clone_pass(struct tx *tx, void *arg)
{
	struct clone_call *c = arg;
	uint64_t stop = c->end - c->pos > c->piece ? c->pos + c->piece : c->end, dropped = 0, end;
	struct inode_attr *attr;
	int r = edits_collect(tx, c, &stop);

	if (r < 0)
		return r;
	c->pos_after = stop;
	change_begin(&c->change, tx);
	c->change.applied = clone_applied;
	c->change.applied_arg = c;
	attr = change_inode(&c->change, c->to);
	r = extents_edit(tx, c->to->ino, c->edit, c->edits, &dropped);
	if (r < 0)
		return r;
	attr->blocks += c->added;
	attr->blocks -= dropped < attr->blocks ? dropped : attr->blocks;
	end = stop == c->end ? c->to_off + c->count : c->to_off + (stop - c->first) * BLOCK_BYTES;
	if (end > attr->size)
		attr->size = end;
	attr->disk_size = attr->size;
	attr_kill_suid(attr, c->op->cred);
	change_touch(&c->change, attr, true);
	wcc_after(c->wcc, attr, c->to->ino);
	return change_finish(&c->change, tx, stop == c->end ? c->op : NULL, c->to_id);
}

static int clone_refer(struct fs *fs, struct clone_call *c, uint64_t *seq)
{
	struct inode_data *data = c->to->data;
	int r = 0;

	c->piece = c->end - c->first;
	while (r == 0 && c->pos < c->end) {
		r = fs_transact(fs, clone_pass, c, seq);
		if (r == -E2BIG && c->piece > 1) {
			c->piece /= 2;
			r = 0;
		}
		if (r == 0 && c->pos > c->first && c->pos < c->end && !data->half) {
			data->half = true;
			fs->files->halves++;
		}
	}
	if (data->half) {
		data->half = false;
		if (--fs->files->halves == 0)
			wait_queue_wake_all(&fs->files->halves_idle);
	}
	return r;
}

/* ------------------------------------------------------------------------------------------------
 * The call
 */

static int clone_alone(struct fs *fs, struct clone_call *c)
{
	uint64_t seq = 0;
	int r = clone_check(c);

	if (r != 0)
		return r < 0 ? r : 0;
	if (!(fs->incompat & FS_INCOMPAT_CLONES)) {
		/* a program that knows nothing of references must not even replay them */
		fs->incompat |= FS_INCOMPAT_CLONES;
		fs->checkpoint.changed = true;
		r = fs_checkpoint(fs);
		if (r < 0)
			return r;
	}
	c->edit = malloc(REFS_MOST * sizeof(*c->edit));
	if (!c->edit)
		return -ENOMEM;
	r = clone_share(fs, c);
	if (r == 0)
		r = clone_refer(fs, c, &seq);
	free(c->edit);
	return r == 0 ? log_wait(fs, seq) : r;
}

static int clone_run(struct fs *fs, void *arg)
{
	struct clone_call *c = arg;
	struct inode *lock[2] = {NULL, NULL};
	int r = fs_view(fs, clone_find_pass, c), n = 0;

	if (r < 0)
		return r;
	/* in order of their numbers: two calls that meet do not wait for each other. Snapshots stand still anyway */
	lock[0] = c->to;
	if (!c->from->attr.snap && c->from != c->to)
		lock[c->from->ino > c->to->ino] = c->from, lock[c->from->ino < c->to->ino] = c->to;
	for (; n < 2 && lock[n] && r == 0; n++)
		r = data_quiesce(fs, lock[n]);
	if (r == 0)
		r = clone_alone(fs, c);
	else
		n--;
	while (n > 0)
		data_unexclude(fs, lock[--n]);
	inode_unref(fs->files, c->from);
	inode_unref(fs->files, c->to);
	return r;
}

int fs_clone(struct fs *fs, const struct fs_op *op, struct fs_id from, uint64_t from_off, struct fs_id to,
	uint64_t to_off, uint64_t count, struct fs_wcc *wcc)
{
	struct clone_call c = {.op = op,
		.from_id = from,
		.to_id = to,
		.from_off = from_off,
		.to_off = to_off,
		.count = count,
		.wcc = wcc};

	if (fs->read_only || to.snap)
		return -EROFS;
	if (from_off % BLOCK_BYTES || to_off % BLOCK_BYTES)
		return -EINVAL;
	if (from_off > FS_SIZE_MAX || to_off > FS_SIZE_MAX)
		return -EFBIG;
	return files_call(fs, clone_run, &c);
}
