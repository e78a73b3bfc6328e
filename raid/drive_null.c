/*
 * A drive that swallows writes and returns zeros, for benchmarks: "null:SIZE:NAME" (SIZE with K, M, G
 * or T). Only the places of the superblocks are kept, in memory, so that an array can be made of such
 * drives. They lose data by design, so raid_null_allow() must have been called.
 *
 * Commands end inside of submit(). The registry is shared by all reactors: a mutex, on the rare path only.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "raid/drive_internal.h"
#include "raid/raid_format.h"

struct null_state {
	struct list_node node;
	char path[256];
	bool claimed;
	uint64_t bytes;
	uint8_t kept[2][SUPER_BYTES_MOST];
};
static struct list null_states = LIST_INIT(null_states);
static pthread_mutex_t null_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool null_allowed;

void raid_null_allow(bool allow)
{
	atomic_store(&null_allowed, allow);
}

static uint64_t size_parse(const char *text)
{
	char *end;
	unsigned long long v = strtoull(text, &end, 10);
	unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : *end == 'T' ? 40 : 0;
	return v > (UINT64_MAX >> 1 >> shift) ? 0 : (uint64_t)v << shift;
}

static int null_open(struct drive *drive, bool claim, struct error *err)
{
	if (!atomic_load(&null_allowed))
		return error_set(err, -EPERM, "%s: null drives lose all data and are for benchmarks only", drive->path);
	uint64_t bytes = size_parse(drive->path + 5) & ~(uint64_t)(BLOCK_BYTES - 1);
	if (bytes < (1u << 20))
		return error_set(err, -EINVAL, "%s: not null:SIZE:NAME with a size of 1M or more", drive->path);
	int r = 0;
	struct null_state *state = NULL;
	pthread_mutex_lock(&null_mutex);
	list_foreach (node, &null_states) {
		struct null_state *s = container_of(node, struct null_state, node);
		if (strcmp(s->path, drive->path) == 0)
			state = s;
	}
	if (!state) {
		state = calloc(1, sizeof(*state));
		if (state) {
			snprintf(state->path, sizeof(state->path), "%s", drive->path);
			state->bytes = bytes;
			list_push_back(&null_states, &state->node);
		} else {
			r = error_set(err, -ENOMEM, "%s: out of memory", drive->path);
		}
	}
	if (state && claim) {
		if (state->claimed)
			r = error_set(err, -EBUSY, "%s: in use", drive->path);
		else
			state->claimed = true;
	}
	pthread_mutex_unlock(&null_mutex);
	if (r)
		return r;
	drive->kind = DRIVE_FILE;
	drive->instant = true;
	drive->bytes = bytes;
	drive->data = state;
	drive->id_dev = (dev_t)-1;
	drive->id_ino = (ino_t)(uintptr_t)state;
	snprintf(drive->model, sizeof(drive->model), "null");
	return 0;
}

static void null_close(struct drive *drive)
{
	struct null_state *state = drive->data;
	if (drive->read_only)
		return;
	pthread_mutex_lock(&null_mutex);
	state->claimed = false;
	pthread_mutex_unlock(&null_mutex);
}

static uint64_t kept_offset(const struct null_state *state, unsigned copy)
{
	return copy == 0 ? SUPER_OFFSET_0 : (state->bytes & ~(uint64_t)(SUPER_ALIGN - 1)) - SUPER_ALIGN;
}

/* What is read, and what is kept. */
static __attribute__((noinline)) void null_content(struct drive_cmd *cmd)
{
	struct null_state *state = cmd->drive->data;
	if (cmd->op == DRIVE_OP_READ)
		for (unsigned i = 0; i < cmd->n; i++)
			memset(cmd->iov[i].iov_base, 0, cmd->iov[i].iov_len);
	for (unsigned copy = 0; copy < 2; copy++) {
		if (cmd->offset != kept_offset(state, copy) || cmd->bytes > SUPER_BYTES_MOST || cmd->n != 1)
			continue;
		pthread_mutex_lock(&null_mutex);
		if (cmd->op == DRIVE_OP_READ)
			memcpy(cmd->iov[0].iov_base, state->kept[copy], cmd->bytes);
		else
			memcpy(state->kept[copy], cmd->iov[0].iov_base, cmd->bytes);
		pthread_mutex_unlock(&null_mutex);
	}
}

static void null_submit(struct drive_cmd *cmd)
{
	bool ends = cmd->offset < MEMBER_HEAD_BYTES || cmd->offset >= cmd->drive->bytes - MEMBER_TAIL_BYTES;
	if (cmd->op == DRIVE_OP_READ || (cmd->op == DRIVE_OP_WRITE && ends))
		null_content(cmd);
	drive_cmd_done(cmd, 0);
}

static int null_result(const struct drive_cmd *cmd)
{
	return cmd->verdict;
}

const struct drive_ops drive_null_ops = {
	.open = null_open,
	.close = null_close,
	.submit = null_submit,
	.result = null_result,
};
