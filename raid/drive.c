/*
 * Drives: opening them, and the life of a command.
 *
 * A fiber makes a batch, adds requests to it and waits. batch_io() cuts a request into commands that
 * respect the drive's limits (bytes, pieces of memory) and sends each to the calling reactor's
 * ring; the reactor submits them together when the fiber waits. drive_cmd_done() ends
 * a command and wakes the fiber with the last one. All of this is on one reactor: no locks.
 *
 * Joining. Until they are submitted, commands of all batches are held (struct plug), and one that goes on where another
 * ends, on the drive, joins it: the strips that a drive holds of consecutive stripes become one command. What costs the
 * drive and the kernel is a command rather than its bytes. The joined command has no request; when it ends well so do
 * its parts, and when it fails each part is sent by itself, for only one of them may be what the drive cannot do.
 *
 * Commands come from a pool of each reactor and go back to it. They refer to the caller's buffers
 * without a reference of their own, for the caller waits for the batch. Only when the deadline
 * passes, references are taken: the command then owns its buffers and its drive until the kernel
 * gives it back, however late, and the caller goes on with -ETIMEDOUT.
 *
 * Errors: negative errno in the request. -ENOMEM is the machine's fault, all others the drive's.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "raid/drive_internal.h"

#define DEADLINE_NVME (5 * NSEC_PER_SEC)
#define DEADLINE_BLOCK (15 * NSEC_PER_SEC)
#define DEADLINE_FILE (60 * NSEC_PER_SEC) /* writeback of the file system below can stall this long */
#define DEADLINE_GRACE 5 /* part of the time that a command had, which it has once more when it is late */
#define CMD_TRIES 4

_Atomic uint64_t drive_deadline_override;

/* Of this thread; freed with it. A stack, linked by cmd->node.next alone; and what is held. */
struct cmd_pool {
	struct list_node *first;
	struct plug plug;
	struct drive_cmd *held, *held_last;
};
static void held_start(struct plug *plug);
static __thread struct cmd_pool *cmd_pool;
static pthread_key_t cmd_pool_key;
static pthread_once_t cmd_pool_once = PTHREAD_ONCE_INIT;

static void cmd_pool_free(void *arg)
{
	struct cmd_pool *pool = arg;
	while (pool->first) {
		struct drive_cmd *cmd = container_of(pool->first, struct drive_cmd, node);
		pool->first = cmd->node.next;
		free(cmd);
	}
	free(pool);
}

static void cmd_pool_register(void)
{
	(void)pthread_key_create(&cmd_pool_key, cmd_pool_free);
}

static bool cmd_pool_make(void)
{
	pthread_once(&cmd_pool_once, cmd_pool_register);
	struct cmd_pool *pool = calloc(1, sizeof(*pool));
	if (!pool)
		return false;
	pool->plug.start = held_start;
	list_node_init(&pool->plug.node);
	pthread_setspecific(cmd_pool_key, pool);
	cmd_pool = pool;
	return true;
}

static inline struct drive_cmd *cmd_get(void)
{
	if (!cmd_pool && !cmd_pool_make())
		return NULL;
	struct list_node *node = cmd_pool->first;
	if (!node)
		return calloc(1, sizeof(struct drive_cmd));
	cmd_pool->first = node->next;
	return container_of(node, struct drive_cmd, node);
}

static void cmd_put(struct drive_cmd *cmd)
{
	cmd->node.next = cmd_pool->first;
	cmd_pool->first = &cmd->node;
}

/* Only one reactor writes to a slot, so this needs no atomic addition. */
static void stat_add(_Atomic uint64_t *value, uint64_t n)
{
	atomic_store_explicit(value, atomic_load_explicit(value, memory_order_relaxed) + n, memory_order_relaxed);
}

uint64_t drive_stat_sum(const struct drive *drive, size_t offset)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < METRIC_SLOTS; i++) {
		const char *at = (const char *)&drive->stats[i] + offset;
		sum += atomic_load_explicit((const _Atomic uint64_t *)(const void *)at, memory_order_relaxed);
	}
	return sum;
}

bool drive_flush_needed(const struct drive *drive, uint64_t *upto)
{
	*upto = drive_stat_sum(drive, offsetof(struct drive_stats, volatile_writes));
	return drive->volatile_cache && *upto > atomic_load(&drive->flushed);
}

void drive_flush_ended(struct drive *drive, uint64_t upto)
{
	uint64_t old = atomic_load(&drive->flushed);
	while (old < upto && !atomic_compare_exchange_weak(&drive->flushed, &old, upto))
		;
}

/* ---- the life of a command ---- */

static void drive_unref(struct drive *drive)
{
	if (atomic_fetch_sub(&drive->refs, 1) == 1) {
		free(drive->owned);
		free(drive);
	}
}

static void cmd_failed(struct drive_cmd *cmd, int error)
{
	if (cmd->twin) {
		atomic_store(&cmd->drive->twin_failed, true);
		if (!atomic_load(&cmd->drive->twin_counts))
			return;
	}
	if (!cmd->req->error)
		cmd->req->error = error;
}

/* A command that was given up has come back at last. */
static __attribute__((noinline)) void cmd_quarantine_end(struct drive_cmd *cmd)
{
	for (unsigned i = 0; i < cmd->n; i++)
		buf_put(cmd->buf[i]);
	atomic_fetch_sub(&cmd->drive->quarantined, 1);
	drive_unref(cmd->drive);
	cmd_put(cmd);
}

/* Of a drive that takes its time. */
static __attribute__((noinline)) void cmd_timed_end(struct drive_cmd *cmd, const struct drive_batch *batch)
{
	struct drive_stats *stats = &cmd->drive->stats[batch->slot];
	list_remove(&cmd->node);
	if (cmd->twin || (cmd->op != DRIVE_OP_READ && cmd->op != DRIVE_OP_WRITE))
		return;
	uint64_t took = now_ns() - batch->begun;
	if (!batch->background) {
		stat_add(&stats->others, 1);
		stat_add(&stats->others_ns, took);
	}
	if (cmd->op == DRIVE_OP_READ) {
		stat_add(&stats->timed_reads, 1);
		stat_add(&stats->read_ns, took);
	}
}

static void joined_done(struct drive_cmd *whole, int error);

void drive_cmd_done(struct drive_cmd *cmd, int error)
{
	if (cmd->parts) {
		joined_done(cmd, error);
		return;
	}
	if (error && (error == -EAGAIN || error == -EINTR) && ++cmd->tries < CMD_TRIES) {
		cmd->drive->ops->submit(cmd);
		return;
	}
	struct drive_req *req = cmd->req;
	if (!req) {
		cmd_quarantine_end(cmd);
		return;
	}
	struct drive_batch *batch = req->batch;
	if (error)
		cmd_failed(cmd, error);
	else if (cmd->op == DRIVE_OP_WRITE && !cmd->fua)
		stat_add(&cmd->drive->stats[batch->slot].volatile_writes, 1);
	if (!cmd->drive->instant)
		cmd_timed_end(cmd, batch);
	cmd_put(cmd);
	if (--batch->pending == 0 && batch->waiter)
		fiber_wake(batch->waiter);
}

void drive_cmd_io_done(struct io *io)
{
	struct drive_cmd *cmd = container_of(io, struct drive_cmd, io);
	drive_cmd_done(cmd, cmd->drive->ops->result(cmd));
}

/* To the drive, now. */
static inline void cmd_submit(struct drive_cmd *cmd, struct drive_stats *stats)
{
	switch (cmd->op) {
	case DRIVE_OP_READ:
		stat_add(&stats->reads, 1);
		stat_add(&stats->read_bytes, cmd->bytes);
		break;
	case DRIVE_OP_WRITE:
		stat_add(&stats->writes, 1);
		stat_add(&stats->write_bytes, cmd->bytes);
		if (cmd->fua)
			stat_add(&stats->fua_writes, 1);
		break;
	case DRIVE_OP_FLUSH:
		stat_add(&stats->flushes, 1);
		break;
	case DRIVE_OP_DISCARD:
		break;
	}
	cmd->drive->ops->submit(cmd);
}

/* ---- joining ---- */

static struct drive_stats *stats_here(const struct drive_cmd *cmd)
{
	return &cmd->drive->stats[reactor_index(reactor_self())];
}

/* One command for FIRST and those that follow it; NULL: no memory. */
static struct drive_cmd *cmd_join(struct drive_cmd *first)
{
	struct drive_cmd *whole = cmd_get();
	if (!whole)
		return NULL;
	whole->drive = first->drive;
	whole->req = NULL;
	whole->op = first->op;
	whole->fua = first->fua;
	whole->twin = false;
	whole->tries = 0;
	whole->offset = first->offset;
	whole->bytes = first->chain_bytes;
	whole->verdict = 0;
	whole->parts = first;
	whole->n = 0;
	for (const struct drive_cmd *part = first; part; part = part->next)
		for (unsigned i = 0; i < part->n; i++) {
			struct iovec *last = whole->n ? &whole->iov[whole->n - 1] : NULL;
			if (last && whole->buf[whole->n - 1] == part->buf[i] &&
				(uint8_t *)last->iov_base + last->iov_len == part->iov[i].iov_base) {
				last->iov_len += part->iov[i].iov_len;
				continue;
			}
			whole->iov[whole->n] = part->iov[i];
			whole->buf[whole->n++] = part->buf[i];
		}
	return whole;
}

static void joined_done(struct drive_cmd *whole, int error)
{
	struct drive_cmd *part = whole->parts, *next;
	cmd_put(whole);
	for (; part; part = next) {
		next = part->next;
		if (error && part->req)
			cmd_submit(part, stats_here(part));
		else
			drive_cmd_done(part, 0);
	}
}

static void held_start(struct plug *plug)
{
	struct cmd_pool *pool = container_of(plug, struct cmd_pool, plug);
	struct drive_cmd *first = pool->held, *chain;
	pool->held = NULL;
	for (; first; first = chain) {
		struct drive_stats *stats = stats_here(first);
		struct drive_cmd *whole = first->next ? cmd_join(first) : NULL, *next;
		chain = first->chain;
		stats->held = NULL;
		if (whole) {
			cmd_submit(whole, stats);
			continue;
		}
		for (struct drive_cmd *cmd = first; cmd; cmd = next) {
			next = cmd->next;
			cmd_submit(cmd, stats);
		}
	}
}

/* Until the reactor submits. */
static void cmd_hold(struct drive_cmd *cmd, struct drive_stats *stats)
{
	struct drive_cmd *first = stats->held;
	const struct drive *drive = cmd->drive;
	cmd->next = NULL;
	if (first && first->op == cmd->op && first->fua == cmd->fua &&
		first->offset + first->chain_bytes == cmd->offset &&
		first->chain_bytes + cmd->bytes <= drive->transfer_max &&
		first->chain_n + cmd->n <= drive->segments_max) {
		first->last->next = cmd;
		first->last = cmd;
		first->chain_bytes += cmd->bytes;
		first->chain_n += cmd->n;
	} else {
		cmd->last = cmd;
		cmd->chain = NULL;
		cmd->chain_bytes = cmd->bytes;
		cmd->chain_n = cmd->n;
		stats->held = cmd;
		if (cmd_pool->held)
			cmd_pool->held_last->chain = cmd;
		else
			cmd_pool->held = cmd;
		cmd_pool->held_last = cmd;
	}
	plug_hold(&cmd_pool->plug);
}

static inline void cmd_send(struct drive_batch *batch, struct drive_cmd *cmd)
{
	struct drive_stats *stats = &cmd->drive->stats[batch->slot];
	if (!cmd->drive->instant) /* else it ends before anybody could give it up */
		list_push_back(&batch->cmds, &cmd->node);
	batch->pending++;
	if (cmd->drive->joins && (cmd->op == DRIVE_OP_READ || cmd->op == DRIVE_OP_WRITE))
		cmd_hold(cmd, stats);
	else
		cmd_submit(cmd, stats);
}

/* ---- batches ---- */

void batch_init(struct drive_batch *batch)
{
	list_init(&batch->cmds);
	batch->pending = 0;
	batch->waiter = NULL;
	batch->begun = batch->deadline = 0;
	batch->background = false;
	const struct reactor *self = reactor_self();
	batch->slot = self ? reactor_index(self) : METRIC_SLOTS - 1;
}

static inline struct drive_cmd *batch_cmd(struct drive_req *req, struct drive *drive, enum drive_op op, uint64_t offset)
{
	struct drive_cmd *cmd = cmd_get();
	if (!cmd) {
		req->error = -ENOMEM;
		return NULL;
	}
	cmd->drive = drive;
	cmd->req = req;
	cmd->op = op;
	cmd->fua = cmd->twin = false;
	cmd->tries = 0;
	cmd->offset = offset;
	cmd->bytes = 0;
	cmd->n = 0;
	cmd->verdict = 0;
	cmd->parts = NULL;
	return cmd;
}

static inline void batch_req(struct drive_batch *batch, struct drive_req *req, struct drive *drive)
{
	req->batch = batch;
	req->error = 0;
	req->given_up = false;
	if (drive->instant) /* nobody waits for it */
		return;
	uint64_t wait = atomic_load_explicit(&drive_deadline_override, memory_order_relaxed);
	if (!batch->begun)
		batch->begun = now_ns();
	uint64_t deadline = batch->begun + (wait ? wait : drive->deadline_ns);
	if (deadline > batch->deadline)
		batch->deadline = deadline;
}

/* Fills CMD with up to ROOM bytes from CURSOR; returns how many. */
static uint64_t cmd_fill(struct drive_cmd *cmd, uint64_t room, struct slice_cursor *cursor)
{
	uint64_t taken = 0;
	while (taken < room && cursor->i < cursor->n) {
		uint32_t len;
		uint8_t *data = slice_cursor_peek(cursor, &len);
		struct buf *buf = cursor->v[cursor->i].buf;
		if (len > room - taken)
			len = (uint32_t)(room - taken);
		struct iovec *last = cmd->n ? &cmd->iov[cmd->n - 1] : NULL;
		if (last && cmd->buf[cmd->n - 1] == buf && (uint8_t *)last->iov_base + last->iov_len == data) {
			last->iov_len += len;
		} else if (cmd->n < cmd->drive->segments_max) {
			cmd->iov[cmd->n].iov_base = data;
			cmd->iov[cmd->n].iov_len = len;
			cmd->buf[cmd->n++] = buf;
		} else {
			break;
		}
		taken += len;
		slice_cursor_skip(cursor, len);
	}
	return taken;
}

/* The commands of batch_io(), to DRIVE or, as its twin, to another one. */
static void batch_cmds(struct drive_batch *batch, struct drive_req *req, struct drive *drive, enum drive_op op,
	uint64_t offset, uint64_t bytes, struct slice_cursor *cursor, bool fua, bool twin)
{
	while (bytes) {
		struct drive_cmd *cmd = batch_cmd(req, drive, op, offset);
		if (!cmd)
			return;
		cmd->fua = fua && op == DRIVE_OP_WRITE;
		cmd->twin = twin;
		uint64_t room = bytes < drive->transfer_max ? bytes : drive->transfer_max;
		uint64_t taken = cmd_fill(cmd, room, cursor);
		if (taken == 0 || taken % BLOCK_BYTES) {
			/* the caller's list is short, or cut inside a block */
			cmd_put(cmd);
			req->error = -EINVAL;
			return;
		}
		cmd->bytes = taken;
		offset += taken;
		bytes -= taken;
		cmd_send(batch, cmd);
	}
}

/* The usual case: one command, and its memory in one piece. False: it is not that, and nothing was done. */
static inline bool piece_send(struct drive_batch *batch, struct drive_req *req, struct drive *drive, enum drive_op op,
	uint64_t offset, uint64_t bytes, const struct slice_cursor *cursor, bool fua)
{
	uint32_t len;
	uint8_t *data = slice_cursor_peek(cursor, &len);
	if (len < bytes || bytes > drive->transfer_max || bytes % BLOCK_BYTES || !bytes || bytes > drive->bytes ||
		offset > drive->bytes - bytes || atomic_load_explicit(&drive->twin, memory_order_acquire))
		return false;
	struct drive_cmd *cmd = batch_cmd(req, drive, op, offset);
	if (!cmd)
		return false;
	batch_req(batch, req, drive);
	cmd->fua = fua && op == DRIVE_OP_WRITE;
	cmd->iov[0].iov_base = data;
	cmd->iov[0].iov_len = bytes;
	cmd->buf[0] = cursor->v[cursor->i].buf;
	cmd->n = 1;
	cmd->bytes = bytes;
	cmd_send(batch, cmd);
	return true;
}

void batch_row(struct drive_batch *batch, struct drive_req *req, struct drive *const *drive, unsigned n,
	enum drive_op op, uint64_t offset, uint64_t bytes, struct slice_cursor *from, bool fua)
{
	for (unsigned i = 0; i < n; i++) {
		req[i].error = 0;
		if (drive[i] && !piece_send(batch, &req[i], drive[i], op, offset, bytes, &from[i], fua))
			batch_io(batch, &req[i], drive[i], op, offset, bytes, &from[i], fua);
	}
}

void batch_io(struct drive_batch *batch, struct drive_req *req, struct drive *drive, enum drive_op op, uint64_t offset,
	uint64_t bytes, struct slice_cursor *cursor, bool fua)
{
	batch_req(batch, req, drive);
	if (offset > drive->bytes || bytes > drive->bytes - offset) {
		req->error = -EIO;
		return;
	}
	struct drive *twin = op == DRIVE_OP_WRITE ? atomic_load_explicit(&drive->twin, memory_order_acquire) : NULL;
	if (twin && offset >= drive->twin_from && offset + bytes <= drive->twin_to) {
		struct slice_cursor again = *cursor;
		batch_cmds(batch, req, twin, op, offset, bytes, &again, true, true);
	}
	batch_cmds(batch, req, drive, op, offset, bytes, cursor, fua, false);
}

void batch_flush(struct drive_batch *batch, struct drive_req *req, struct drive *drive)
{
	batch_req(batch, req, drive);
	struct drive_cmd *cmd = batch_cmd(req, drive, DRIVE_OP_FLUSH, 0);
	if (cmd)
		cmd_send(batch, cmd);
}

void batch_discard(
	struct drive_batch *batch, struct drive_req *req, struct drive *drive, uint64_t offset, uint64_t bytes)
{
	const uint64_t most = 1ull << 30;
	batch_req(batch, req, drive);
	while (bytes && drive->can_discard) {
		struct drive_cmd *cmd = batch_cmd(req, drive, DRIVE_OP_DISCARD, offset);
		if (!cmd)
			return;
		cmd->bytes = bytes < most ? bytes : most;
		offset += cmd->bytes;
		bytes -= cmd->bytes;
		cmd_send(batch, cmd);
	}
}

/* Gives up all commands that have not ended: they keep their buffers and their drive. */
static void batch_give_up(struct drive_batch *batch)
{
	list_foreach (node, &batch->cmds) {
		struct drive_cmd *cmd = container_of(node, struct drive_cmd, node);
		list_remove(node);
		cmd_failed(cmd, -ETIMEDOUT);
		cmd->req->given_up = true;
		cmd->req = NULL;
		for (unsigned i = 0; i < cmd->n; i++)
			buf_ref(cmd->buf[i]);
		atomic_fetch_add(&cmd->drive->refs, 1);
		atomic_fetch_add(&cmd->drive->quarantined, 1);
		log_warning("raid", "drive command timed out drive=%s op=%d offset=%llu bytes=%llu", cmd->drive->path,
			(int)cmd->op, (unsigned long long)cmd->offset, (unsigned long long)cmd->bytes);
	}
	batch->pending = 0;
}

int batch_wait(struct drive_batch *batch)
{
	bool late = false;
	while (batch->pending) {
		batch->waiter = fiber_self();
		int r = fiber_suspend_until(batch->deadline);
		batch->waiter = NULL;
		if (r != -ETIME || !batch->pending || now_ns() < batch->deadline)
			continue;
		if (late) {
			batch_give_up(batch);
		} else {
			/* perhaps it was not the drive that stood still but the machine, as a paused guest does: now
			 * that both go on, the drive has a moment to answer */
			late = true;
			batch->deadline = now_ns() + (batch->deadline - batch->begun) / DEADLINE_GRACE;
		}
	}
	return 0;
}

int drive_io(struct drive *drive, enum drive_op op, uint64_t offset, struct buf *buf, uint32_t bytes, bool fua)
{
	struct drive_batch batch;
	struct drive_req req;
	struct slice slice = {.buf = buf, .off = 0, .len = bytes};
	struct slice_cursor cursor = slice_cursor_at(&slice, 1);
	batch_init(&batch);
	batch_io(&batch, &req, drive, op, offset, bytes, &cursor, fua);
	batch_wait(&batch);
	return req.error;
}

int drive_refused(struct error *err, int code, const char *path, const char *done)
{
	const char *advice = "";
	if (code == -EIO)
		advice = " (the drive fails; the kernel's log says how: use another one)";
	else if (code == -ENODEV || code == -ENXIO)
		advice = " (it has left the machine)";
	else if (code == -ETIMEDOUT)
		advice = " (it does not answer: use another one)";
	return error_set(err, code, "%s: cannot be %s: %s%s", path, done, strerror(-code), advice);
}

int drive_flush(struct drive *drive)
{
	struct drive_batch batch;
	struct drive_req req;
	batch_init(&batch);
	batch_flush(&batch, &req, drive);
	batch_wait(&batch);
	return req.error;
}

int drive_zero(struct drive *drive, uint64_t offset, uint64_t bytes)
{
	struct buf *zero = buf_zero();
	int r = 0;
	while (bytes && !r) {
		uint32_t n = bytes < BUF_MAX ? (uint32_t)bytes : BUF_MAX;
		r = drive_io(drive, DRIVE_OP_WRITE, offset, zero, n, false);
		offset += n;
		bytes -= n;
	}
	return r;
}

/* ---- open and close ---- */

struct open_call {
	struct drive *drive;
	bool claim, passthrough;
	struct error *err;
	int result;
};

/* Whether PATH, a link such as those in /dev/disk/by-id, leads to the block device BLOCK of an NVMe drive that has a
 * character device. Who names a block device itself means that one. */
static bool link_to_nvme(const char *path, dev_t block, char *node, size_t size)
{
	struct stat st;
	return lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && nvme_node_find(block, node, size) == 0;
}

static void open_blocking(void *arg)
{
	struct open_call *call = arg;
	struct drive *drive = call->drive;
	const char *path = drive->path;
	struct stat st;

	if (strncmp(path, "fault:", 6) == 0) {
		drive->ops = &drive_fault_ops;
	} else if (strncmp(path, "null:", 5) == 0) {
		drive->ops = &drive_null_ops;
	} else if (stat(path, &st) != 0) {
		call->result = error_set(call->err, -errno, "%s: %s", path, strerror(errno));
		return;
	} else if (S_ISCHR(st.st_mode)) {
		snprintf(drive->device, sizeof(drive->device), "%s", path);
		drive->ops = &drive_nvme_ops;
		drive->deadline_ns = DEADLINE_NVME;
	} else if (S_ISBLK(st.st_mode) && call->passthrough &&
		   link_to_nvme(path, st.st_rdev, drive->device, sizeof(drive->device))) {
		drive->ops = &drive_nvme_ops;
		drive->deadline_ns = DEADLINE_NVME;
	} else if (S_ISBLK(st.st_mode) || S_ISREG(st.st_mode)) {
		drive->ops = &drive_file_ops;
		drive->deadline_ns = S_ISBLK(st.st_mode) ? DEADLINE_BLOCK : DEADLINE_FILE;
	} else {
		call->result = error_set(call->err, -ENOTBLK,
			"%s: neither an NVMe namespace (such as /dev/ng0n1), a block device nor a file", path);
		return;
	}
	call->result = drive->ops->open(drive, call->claim, call->err);
}

static void close_blocking(void *arg)
{
	struct drive *drive = arg;
	drive->ops->close(drive);
}

int drive_open(const char *path, bool claim, struct drive **drive_out, struct error *err)
{
	*drive_out = NULL;
	if (strlen(path) >= sizeof(((struct drive *)NULL)->path))
		return error_set(err, -ENAMETOOLONG, "%.100s...: path too long for a drive", path);
	struct drive *drive = aligned_alloc(64, (sizeof(*drive) + 63) & ~(size_t)63);
	if (!drive)
		return error_set(err, -ENOMEM, "%s: out of memory", path);
	memset(drive, 0, sizeof(*drive));
	snprintf(drive->path, sizeof(drive->path), "%s", path);
	drive->fd = drive->claim_fd = -1;
	drive->refs = 1;
	drive->read_only = !claim;
	drive->lba_bytes = 512;
	drive->transfer_max = BUF_MAX;
	drive->segments_max = DRIVE_CMD_IOV;
	drive->deadline_ns = DEADLINE_FILE;

	struct open_call call = {.drive = drive, .claim = claim, .passthrough = reactor_has_passthrough(), .err = err};
	offload(open_blocking, &call);
	if (!call.result && drive->ops == &drive_nvme_ops && !reactor_has_passthrough()) {
		call.result = error_set(err, -EOPNOTSUPP,
			"%s: this kernel has no io_uring passthrough (128-byte entries); use the block device", path);
		offload(close_blocking, drive);
	}
	if (call.result) {
		free(drive);
		return call.result;
	}
	*drive_out = drive;
	return 0;
}

struct same_call {
	const char *path[2];
	bool same;
};

/* What stat() says of PATH; of the block device of an NVMe drive, what it says of the character device. */
static bool node_stat(const char *path, struct stat *st)
{
	char node[80];
	if (stat(strncmp(path, "fault:", 6) == 0 ? path + 6 : path, st) != 0)
		return false;
	return !S_ISBLK(st->st_mode) || nvme_node_find(st->st_rdev, node, sizeof(node)) != 0 || stat(node, st) == 0;
}

static void same_blocking(void *arg)
{
	struct same_call *call = arg;
	struct stat a, b;
	if (!node_stat(call->path[0], &a) || !node_stat(call->path[1], &b) ||
		(a.st_mode & S_IFMT) != (b.st_mode & S_IFMT))
		return;
	call->same = S_ISREG(a.st_mode) ? a.st_dev == b.st_dev && a.st_ino == b.st_ino : a.st_rdev == b.st_rdev;
}

bool drive_path_same(const char *a, const char *b)
{
	struct same_call call = {.path = {a, b}};
	if (strcmp(a, b) == 0)
		return true;
	offload(same_blocking, &call);
	return call.same;
}

void drive_close(struct drive *drive)
{
	if (!drive)
		return;
	offload(close_blocking, drive);
	drive_unref(drive);
}

bool drive_same(const struct drive *a, const struct drive *b)
{
	return a->id_dev == b->id_dev && a->id_ino == b->id_ino;
}
