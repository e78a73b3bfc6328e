/*
 * The drive that fails on purpose: "fault:PATH" keeps its content in the file PATH, and does what
 * fault_inject() and its like asked for.
 *
 * Everything about one path hangs in a fault_state, which outlives the opening and closing of the
 * drive, as a real drive's cache and defects do, until fault_reset(). It is found by the real path of the file. One
 * mutex guards all states, since tests inject from any reactor.
 *
 * A command is carried out at once in submit(), with pread and pwrite on the page cache, and ends
 * through the reactor's mailbox as if the ring had done it: so the order of what happens repeats from
 * run to run, and a test may cut the power between any two commands. A delayed command is carried
 * out at the end of its delay, as a slow drive would: a late read overwrites its buffer late.
 *
 * Power cut: each handle remembers the power cycle in which it was opened, and is dead in any later one.
 * With the volatile cache on, blocks written without FUA are held in memory until a flush, and those with FUA until
 * their completion goes out: a cut in the meantime may leave any part of either on the drive.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "raid/drive_internal.h"

#define KINDS (FAULT_SLOW + 1)

struct fault_block {
	struct htable_node node;
	uint64_t block;
	uint8_t data[BLOCK_BYTES];
};

struct fault_state {
	struct list_node node;
	char path[PATH_MAX];
	struct {
		uint64_t nth, arg; /* nth 0: not armed */
	} fault[KINDS];
	bool vanished;
	uint64_t slow; /* ns */
	bool cache_on;
	uint64_t cycle; /* power cycle of this drive */
	unsigned open;	/* handles */
	struct htable cache;
};

struct fault_handle {
	struct fault_state *state;
	uint64_t cycle, all_cycle;
	int fd;
};

static struct list states = LIST_INIT(states);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static uint64_t all_cycle; /* power cycle of all fault drives together */
static uint64_t writes_total, writes_limit;
static bool overlay; /* everything stays in the caches */

static uint64_t random_next(uint64_t *seed)
{
	*seed += 0x9e3779b97f4a7c15ull;
	return hash_u64(*seed);
}

/* ---- the cache of one drive; under the mutex ---- */

static struct fault_block *cache_find(struct fault_state *state, uint64_t block)
{
	htable_foreach_hash (n, &state->cache, hash_u64(block)) {
		struct fault_block *b = container_of(n, struct fault_block, node);
		if (b->block == block)
			return b;
	}
	return NULL;
}

static void cache_drop(struct fault_state *state, struct fault_block *b)
{
	htable_remove(&state->cache, &b->node);
	free(b);
}

static void cache_clear(struct fault_state *state)
{
	struct htable_cursor cursor = {0};
	struct htable_node *n;
	while ((n = htable_next(&state->cache, &cursor)))
		cache_drop(state, container_of(n, struct fault_block, node));
}

static int cache_put(struct fault_state *state, uint64_t block, const uint8_t *data)
{
	struct fault_block *b = cache_find(state, block);
	if (!b) {
		b = malloc(sizeof(*b));
		if (!b)
			return -ENOMEM;
		b->block = block;
		htable_insert(&state->cache, &b->node, hash_u64(block));
	}
	memcpy(b->data, data, BLOCK_BYTES);
	return 0;
}

static int block_compare(const void *a, const void *b)
{
	const struct fault_block *x = *(struct fault_block *const *)a, *y = *(struct fault_block *const *)b;
	return x->block < y->block ? -1 : x->block > y->block;
}

/* Writes blocks of the cache to the file, each with a chance of KEEP in 1000, and empties it. In order of address, so
 * that a seed repeats. */
static int cache_settle(struct fault_state *state, int fd, uint64_t seed, unsigned keep)
{
	size_t n = 0, count = state->cache.count;
	if (!count)
		return 0;
	struct fault_block **list = calloc(count, sizeof(struct fault_block *));
	if (!list)
		return -ENOMEM;
	struct htable_cursor cursor = {0};
	struct htable_node *node;
	while (n < count && (node = htable_next(&state->cache, &cursor)))
		list[n++] = container_of(node, struct fault_block, node);
	qsort(list, n, sizeof(struct fault_block *), block_compare);
	int r = 0;
	for (size_t i = 0; i < n; i++)
		if (keep >= 1000 || random_next(&seed) % 1000 < keep)
			if (pwrite(fd, list[i]->data, BLOCK_BYTES, (off_t)(list[i]->block << BLOCK_SHIFT)) !=
				(ssize_t)BLOCK_BYTES)
				r = -EIO;
	free(list);
	cache_clear(state);
	return r;
}

/* ---- states ---- */

/* PATH with or without "fault:"; created when it is not known yet. NULL: out of memory. */
static struct fault_state *state_get(const char *path)
{
	char real[PATH_MAX];
	if (strncmp(path, "fault:", 6) == 0)
		path += 6;
	if (realpath(path, real))
		path = real;
	list_foreach (node, &states) {
		struct fault_state *s = container_of(node, struct fault_state, node);
		if (strcmp(s->path, path) == 0)
			return s;
	}
	struct fault_state *s = calloc(1, sizeof(*s));
	if (!s || htable_init(&s->cache, 64)) {
		free(s);
		return NULL;
	}
	snprintf(s->path, sizeof(s->path), "%s", path);
	list_push_back(&states, &s->node);
	return s;
}

int fault_inject(const char *path, enum fault_kind kind, uint64_t nth, uint64_t arg)
{
	int r = 0;
	pthread_mutex_lock(&mutex);
	struct fault_state *s = state_get(path);
	if (!s) {
		r = -ENOMEM;
	} else if (kind == FAULT_NONE) {
		memset(s->fault, 0, sizeof(s->fault));
		s->vanished = false;
		s->slow = 0;
	} else if ((unsigned)kind >= KINDS || nth == 0) {
		r = -EINVAL;
	} else {
		s->fault[kind].nth = nth;
		s->fault[kind].arg = arg;
	}
	pthread_mutex_unlock(&mutex);
	return r;
}

bool fault_pending(const char *path)
{
	bool pending = false;
	pthread_mutex_lock(&mutex);
	struct fault_state *s = state_get(path);
	for (unsigned i = 0; s && i < KINDS; i++)
		pending = pending || s->fault[i].nth;
	pthread_mutex_unlock(&mutex);
	return pending;
}

void fault_volatile_cache(const char *path, bool on)
{
	pthread_mutex_lock(&mutex);
	struct fault_state *s = state_get(path);
	if (s)
		s->cache_on = on;
	pthread_mutex_unlock(&mutex);
}

void fault_power_cut(const char *path, uint64_t seed, unsigned keep)
{
	pthread_mutex_lock(&mutex);
	struct fault_state *s = state_get(path);
	if (s) {
		s->cycle++;
		int fd = open(s->path, O_WRONLY | O_CLOEXEC);
		if (fd >= 0) {
			(void)cache_settle(s, fd, seed, keep);
			close(fd);
		} else {
			cache_clear(s);
		}
	}
	pthread_mutex_unlock(&mutex);
}

void fault_overlay(bool on)
{
	pthread_mutex_lock(&mutex);
	overlay = on;
	pthread_mutex_unlock(&mutex);
}

unsigned fault_cached(const char *path, uint64_t *block, uint8_t (*data)[BLOCK_BYTES], unsigned most)
{
	unsigned n = 0;
	pthread_mutex_lock(&mutex);
	struct fault_state *s = state_get(path);
	struct htable_cursor cursor = {0};
	struct htable_node *node;
	while (s && (node = htable_next(&s->cache, &cursor)) && n < most) {
		struct fault_block *b = container_of(node, struct fault_block, node);
		block[n] = b->block;
		memcpy(data[n++], b->data, BLOCK_BYTES);
	}
	pthread_mutex_unlock(&mutex);
	return n;
}

void fault_write_limit(uint64_t limit)
{
	pthread_mutex_lock(&mutex);
	writes_limit = limit ? writes_total + limit : 0;
	pthread_mutex_unlock(&mutex);
}

uint64_t fault_writes(void)
{
	pthread_mutex_lock(&mutex);
	uint64_t n = writes_total;
	pthread_mutex_unlock(&mutex);
	return n;
}

void fault_reset(void)
{
	pthread_mutex_lock(&mutex);
	list_foreach (node, &states) {
		struct fault_state *s = container_of(node, struct fault_state, node);
		cache_clear(s);
		memset(s->fault, 0, sizeof(s->fault));
		s->vanished = false;
		s->slow = 0;
		s->cache_on = false;
		s->cycle++;
		/* a test of many arrays would look through all that ever were */
		if (!s->open) {
			list_remove(&s->node);
			htable_fini(&s->cache);
			free(s);
		}
	}
	writes_limit = writes_total = 0;
	overlay = false;
	pthread_mutex_unlock(&mutex);
}

/* ---- the drive ---- */

static int fault_open(struct drive *drive, bool claim, struct error *err)
{
	const char *path = drive->path + 6;
	struct stat st;
	int fd = open(path, (claim ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (fd < 0)
		return error_set(err, -errno, "%s: %s", drive->path, strerror(errno));
	int r;
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		r = error_set(err, -ENOTBLK, "%s: not a regular file", drive->path);
		goto fail;
	}
	if (claim && flock(fd, LOCK_EX | LOCK_NB) != 0) {
		r = error_set(err, -EBUSY, "%s: in use by another server or tool", drive->path);
		goto fail;
	}
	struct fault_handle *handle = calloc(1, sizeof(*handle));
	if (!handle) {
		r = error_set(err, -ENOMEM, "%s: out of memory", drive->path);
		goto fail;
	}
	pthread_mutex_lock(&mutex);
	handle->state = state_get(path);
	if (handle->state) {
		handle->cycle = handle->state->cycle;
		handle->state->open++;
	}
	handle->all_cycle = all_cycle;
	pthread_mutex_unlock(&mutex);
	if (!handle->state) {
		free(handle);
		r = error_set(err, -ENOMEM, "%s: out of memory", drive->path);
		goto fail;
	}
	handle->fd = fd;
	drive->kind = DRIVE_FILE;
	drive->bytes = (uint64_t)st.st_size & ~(uint64_t)(BLOCK_BYTES - 1);
	drive->volatile_cache = true;
	drive->id_dev = st.st_dev;
	drive->id_ino = st.st_ino;
	drive->data = drive->owned = handle;
	snprintf(drive->model, sizeof(drive->model), "fault");
	return 0;
fail:
	close(fd);
	return r;
}

static void fault_close(struct drive *drive)
{
	struct fault_handle *handle = drive->data;
	pthread_mutex_lock(&mutex);
	close(handle->fd);
	handle->fd = -1; /* a delayed command that comes later finds nothing, and does not look at the state */
	handle->state->open--;
	pthread_mutex_unlock(&mutex);
}

/* Counts down; true for the command that was meant. */
static bool fault_hits(struct fault_state *s, enum fault_kind kind)
{
	return s->fault[kind].nth && --s->fault[kind].nth == 0;
}

static int transfer(struct fault_state *s, int fd, struct drive_cmd *cmd, uint64_t limit)
{
	uint64_t at = cmd->offset, end = cmd->offset + limit;
	bool cached = s->cache_on || overlay;
	for (unsigned i = 0; i < cmd->n && at < end; i++) {
		uint8_t *p = cmd->iov[i].iov_base;
		uint64_t len = cmd->iov[i].iov_len < end - at ? cmd->iov[i].iov_len : end - at;
		if (cmd->op == DRIVE_OP_READ && pread(fd, p, len, (off_t)at) != (ssize_t)len)
			return -EIO;
		if (cmd->op == DRIVE_OP_WRITE && !cached && pwrite(fd, p, len, (off_t)at) != (ssize_t)len)
			return -EIO;
		if (cached || s->cache.count) {
			for (uint64_t o = 0; o + BLOCK_BYTES <= len; o += BLOCK_BYTES) {
				uint64_t block = (at + o) >> BLOCK_SHIFT;
				struct fault_block *b = cache_find(s, block);
				if (cmd->op == DRIVE_OP_READ && b)
					memcpy(p + o, b->data, BLOCK_BYTES);
				if (cmd->op == DRIVE_OP_WRITE && cached && cache_put(s, block, p + o))
					return -ENOMEM;
				if (cmd->op == DRIVE_OP_WRITE && !cached && b)
					cache_drop(s, b);
			}
		}
		at += len;
	}
	return 0;
}

static bool handle_alive(const struct fault_handle *handle)
{
	const struct fault_state *s = handle->state;
	return handle->fd >= 0 && handle->cycle == s->cycle && handle->all_cycle == all_cycle && !s->vanished;
}

/* Carries a command out; under the mutex. */
static int command_run(struct fault_handle *handle, struct drive_cmd *cmd)
{
	struct fault_state *s = handle->state;
	if (!handle_alive(handle))
		return -ENODEV;
	if (fault_hits(s, FAULT_VANISH)) {
		s->vanished = true;
		return -ENODEV;
	}
	if (cmd->op == DRIVE_OP_READ) {
		if (fault_hits(s, FAULT_READ_ERROR))
			return -EIO;
		int r = transfer(s, handle->fd, cmd, cmd->bytes);
		if (fault_hits(s, FAULT_BIT_FLIP)) {
			uint64_t bit = s->fault[FAULT_BIT_FLIP].arg % (cmd->iov[0].iov_len * 8);
			uint8_t *byte = (uint8_t *)cmd->iov[0].iov_base + bit / 8;
			*byte = (uint8_t)(*byte ^ (1u << (bit % 8)));
		}
		return r;
	}
	if (cmd->op == DRIVE_OP_FLUSH)
		return overlay ? 0 : cache_settle(s, handle->fd, 0, 1000);
	if (cmd->op == DRIVE_OP_DISCARD)
		return 0;
	if (writes_limit && writes_total >= writes_limit) {
		/* the lights go out for all fault drives */
		writes_limit = 0;
		all_cycle++;
		return -ENODEV;
	}
	writes_total++;
	if (fault_hits(s, FAULT_WRITE_ERROR))
		return -EIO;
	if (fault_hits(s, FAULT_TORN_WRITE)) {
		(void)transfer(s, handle->fd, cmd, cmd->bytes / 2);
		s->vanished = true;
		return -ENODEV;
	}
	if (fault_hits(s, FAULT_LOST_WRITE))
		return 0;
	int r = transfer(s, handle->fd, cmd, cmd->bytes);
	return fault_hits(s, FAULT_FALSE_ERROR) ? -EIO : r;
}

/* A write with FUA ends well: it becomes durable now, if the power is still on. Under the mutex. */
static int fua_settle(struct fault_handle *handle, const struct drive_cmd *cmd)
{
	struct fault_state *s = handle->state;
	if (!handle_alive(handle))
		return -ENODEV;
	for (uint64_t at = cmd->offset; at < cmd->offset + cmd->bytes && !overlay; at += BLOCK_BYTES) {
		struct fault_block *b = cache_find(s, at >> BLOCK_SHIFT);
		if (!b)
			continue;
		if (pwrite(handle->fd, b->data, BLOCK_BYTES, (off_t)at) != (ssize_t)BLOCK_BYTES)
			return -EIO;
		cache_drop(s, b);
	}
	return 0;
}

static void command_end(void *arg)
{
	struct drive_cmd *cmd = arg;
	pthread_mutex_lock(&mutex);
	if (cmd->op == DRIVE_OP_WRITE && cmd->fua && !cmd->verdict)
		cmd->verdict = fua_settle(cmd->drive->data, cmd);
	pthread_mutex_unlock(&mutex);
	drive_cmd_done(cmd, cmd->verdict);
}

static void command_late(struct timer *timer)
{
	struct drive_cmd *cmd = container_of(timer, struct drive_cmd, timer);
	pthread_mutex_lock(&mutex);
	cmd->verdict = command_run(cmd->drive->data, cmd);
	if (cmd->op == DRIVE_OP_WRITE && cmd->fua && !cmd->verdict)
		cmd->verdict = fua_settle(cmd->drive->data, cmd);
	pthread_mutex_unlock(&mutex);
	drive_cmd_done(cmd, cmd->verdict);
}

static void fault_submit(struct drive_cmd *cmd)
{
	struct fault_handle *handle = cmd->drive->data;
	pthread_mutex_lock(&mutex);
	struct fault_state *s = handle->state;
	if (fault_hits(s, FAULT_SLOW))
		s->slow = s->fault[FAULT_SLOW].arg;
	uint64_t delay = fault_hits(s, FAULT_DELAY) ? s->fault[FAULT_DELAY].arg : s->slow;
	if (delay) {
		pthread_mutex_unlock(&mutex);
		timer_init(&cmd->timer, command_late);
		timer_start(&cmd->timer, now_ns() + delay);
		return;
	}
	cmd->verdict = command_run(handle, cmd);
	pthread_mutex_unlock(&mutex);
	reactor_post(reactor_self(), command_end, cmd);
}

static int fault_result(const struct drive_cmd *cmd)
{
	return cmd->verdict;
}

const struct drive_ops drive_fault_ops = {
	.open = fault_open,
	.close = fault_close,
	.submit = fault_submit,
	.result = fault_result,
};
