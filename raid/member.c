/*
 * Members: their failures, and the superblocks that remember them.
 *
 * Any reactor may find that a command failed. It calls member_failed(), which counts and decides; to
 * take a member out, it goes to the array's home reactor. There, under the mutex, the state is
 * changed first (so that no further I/O goes to the member), then the superblocks of all others are
 * written, and only then member->out is set. A writer that skipped or lost a member acknowledges nothing
 * before it has seen member->out: so after a crash, no member that lacks an acknowledged write
 * can look current.
 *
 * The event count: each commit writes the next one to all members, together with a floor per member,
 * the last event that all active members have for certain. A crash in the middle of a commit leaves
 * members one event apart, all of them at or above the floor: none is stale. One below it is.
 *
 * A commit that was cut short may have reached a member alone that is not there when the array is opened again. The
 * others then use its number once more, and both have the same one with different content, though nobody went on
 * without anybody: what ends only when all that it names have it has not ended while one of them has not. So a number
 * alone does not tell who went on without us, but the members that were named do: config_strayed().
 *
 * When more would be lost than the redundancy bears, nothing is written any more: the array stops, and
 * the superblocks stay as they are, so that drives which come back after a reboot are taken again.
 */
#include <errno.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

#define ERROR_LIMIT 32u
#define ERROR_FORGIVE (600 * NSEC_PER_SEC)

bool config_viable(const struct raid_config *c)
{
	for (unsigned i = 0; i < c->geometries; i++) {
		const struct geometry *g = &c->geometry[i];
		unsigned width = g->k + g->m;
		for (unsigned group = 0; group < g->groups; group++) {
			unsigned lost = 0;
			for (unsigned j = 0; j < width; j++)
				lost += c->member[group * width + j].state != FORMAT_MEMBER_ACTIVE;
			if (lost > g->m)
				return false;
		}
	}
	unsigned width = c->log_members / c->log_groups;
	for (unsigned first = 0; first < c->log_members; first++) {
		unsigned lost = 0, group = first / width * width;
		for (unsigned j = 0; j < c->log_copies; j++)
			lost += c->member[group + (first - group + j) % width].state != FORMAT_MEMBER_ACTIVE;
		if (lost == c->log_copies)
			return false;
	}
	return true;
}

bool config_strayed(const struct raid_config *ours, unsigned slot, const struct raid_config *theirs)
{
	const struct member_config *m = &ours->member[slot];
	bool away = m->state == FORMAT_MEMBER_FAILED || m->state == FORMAT_MEMBER_MISSING;
	unsigned both = ours->slots < theirs->slots ? ours->slots : theirs->slots;
	if (theirs->events <= m->events)
		return false;
	if (away && m->left && theirs->events > m->left)
		return true;
	for (unsigned i = 0; i < both; i++) {
		const struct member_config *a = &ours->member[i], *b = &theirs->member[i];
		if (i != slot && a->state == FORMAT_MEMBER_ACTIVE && b->state == FORMAT_MEMBER_ACTIVE &&
			a->left <= m->events && memcmp(&a->uuid, &b->uuid, sizeof(a->uuid)) == 0)
			return false;
	}
	return true;
}

static void array_stop(struct array *array, const struct member *member, const char *reason)
{
	if (atomic_exchange(&array->stopped, true))
		return;
	log_error("raid",
		"array stopped: more members lost than the redundancy bears array=%s slot=%u drive=%s reason=\"%s\"",
		array->config.name, member->slot, member->path, reason);
}

int member_take_out(struct member *member, const char *reason)
{
	struct array *array = member->array;
	struct member_config *mc = &array->config.member[member->slot];
	uint8_t was = mc->state;
	mc->state = FORMAT_MEMBER_FAILED;
	if (!config_viable(&array->config)) {
		mc->state = was;
		array_stop(array, member, reason);
		event_emit(array, "array-stopped", member, "%s", reason);
		return -ENODEV;
	}
	mc->changed = wall_ns();
	atomic_store(&member->state, FORMAT_MEMBER_FAILED);
	missed_begin(member, was == FORMAT_MEMBER_ACTIVE);
	log_error("raid", "member ejected array=%s slot=%u drive=%s reason=\"%s\"", array->config.name, member->slot,
		member->path, reason);
	event_emit(array, "member-failed", member, "%s", reason);
	keeper_kick(array);
	return 0;
}

/* Whether the superblocks that are written go to a slot in this state. */
static bool state_listed(uint8_t state)
{
	return state == FORMAT_MEMBER_ACTIVE || state == FORMAT_MEMBER_REBUILD || state == FORMAT_MEMBER_SPARE;
}

/* Superblocks go out in waves: the memory that they take is bounded, however many and long they are. */
#define WAVE_BYTES (1u << 20)
#define WAVE_MOST (WAVE_BYTES / SUPER_BYTES_LEAST)

/* Copy COPY to the listed slots of [FIRST, END). ERRORS: by slot. */
static void commit_wave(struct array *array, unsigned copy, unsigned first, unsigned end, int *errors)
{
	const struct raid_config *c = &array->config;
	struct drive_req reqs[WAVE_MOST];
	struct buf *bufs[WAVE_MOST];
	unsigned slots[WAVE_MOST], count = 0;
	uint32_t bytes = super_bytes(c);
	for (unsigned i = first; i < end; i++)
		if (state_listed(c->member[i].state) && (array->member[i].incoming || array->member[i].drive))
			slots[count++] = i;
	bufs_alloc(bufs, count, bytes);
	struct drive_batch batch;
	batch_init(&batch);
	for (unsigned i = 0; i < count; i++) {
		struct member *member = &array->member[slots[i]];
		struct drive *drive = member->incoming ? member->incoming : member->drive;
		struct slice slice = {.buf = bufs[i], .off = 0, .len = bytes};
		struct slice_cursor cursor = slice_cursor_at(&slice, 1);
		super_encode(c, slots[i], copy, drive->bytes, bufs[i]->data);
		batch_io(&batch, &reqs[i], drive, DRIVE_OP_WRITE, super_offset(drive->bytes, copy), bytes, &cursor,
			true);
	}
	batch_wait(&batch);
	for (unsigned i = 0; i < count; i++) {
		errors[slots[i]] = reqs[i].error;
		buf_put(bufs[i]);
	}
}

/* A superblock could not be written to SLOT. 0, or -ENODEV. */
static int commit_failed(struct array *array, unsigned slot, int error)
{
	struct member_config *mc = &array->config.member[slot];
	struct member *member = &array->member[slot];
	atomic_fetch_add(&member->write_errors, 1);
	if (error == -ETIMEDOUT)
		atomic_fetch_add(&member->timeouts, 1);
	if (mc->state == FORMAT_MEMBER_SPARE) {
		log_error("raid", "spare lost array=%s slot=%u drive=%s", array->config.name, slot, member->path);
		event_emit(array, "spare-lost", member, "%s", strerror(-error));
		*mc = (struct member_config){.state = FORMAT_MEMBER_NONE};
		atomic_store(&member->state, FORMAT_MEMBER_NONE);
		return 0;
	}
	char reason[80];
	snprintf(reason, sizeof(reason), "superblock write: %s", strerror(-error));
	return member_take_out(member, reason);
}

/*
 * One copy of the superblock to all members that are there. Returns how many failed, or -ENODEV, -ENOMEM. Whoever fails
 * is taken out when all are written: until then the content is the same for all.
 */
static int commit_copy(struct array *array, unsigned copy)
{
	unsigned slots = array->config.slots, wave = WAVE_BYTES / super_bytes(&array->config);
	int failed = 0, *errors = calloc(slots, sizeof(*errors));
	if (!errors)
		return -ENOMEM;
	for (unsigned first = 0; first < slots; first += wave)
		commit_wave(array, copy, first, first + wave < slots ? first + wave : slots, errors);
	for (unsigned i = 0; i < slots && failed >= 0; i++)
		if (errors[i]) {
			int r = commit_failed(array, i, errors[i]);
			failed = r ? r : failed + 1;
		}
	free(errors);
	return failed;
}

int array_commit(struct array *array, struct error *err)
{
	struct raid_config *c = &array->config;
	if (array->look)
		return error_set(err, -EROFS, "array %s is open for reading only", c->name);
	for (;;) {
		if (array_stopped(array))
			return error_set(err, -ENODEV, "array %s has stopped", c->name);
		/* what those lack who are out is on record before it is on record that they are */
		int lost = missed_persist(array);
		if (lost < 0)
			return error_set(err, lost, "array %s: %s", c->name,
				lost == -ENODEV ? "too few members left" : strerror(-lost));
		if (lost)
			continue;
		pthread_mutex_lock(&array->table);
		c->events++;
		c->updated = wall_ns();
		for (unsigned i = 0; i < c->slots; i++)
			if (state_listed(c->member[i].state) && !array->member[i].fresh)
				c->member[i].events = array->complete;
		pthread_mutex_unlock(&array->table);
		char why[160];
		if (!config_valid(c, why, sizeof(why))) {
			log_error("raid", "superblock not written: it would be invalid array=%s reason=\"%s\"", c->name,
				why);
			return error_set(err, -EINVAL, "array %s: %s", c->name, why);
		}
		int failed = commit_copy(array, 0);
		if (failed == 0)
			failed = commit_copy(array, 1);
		if (failed < 0)
			return error_set(err, failed, "array %s: %s", c->name,
				failed == -ENODEV ? "too few members left" : strerror(-failed));
		if (failed == 0)
			break;
		/* whoever is left must know of those that failed now */
	}
	array->complete = c->events;
	for (unsigned i = 0; i < c->members; i++) {
		array->member[i].fresh = false;
		if (c->member[i].state != FORMAT_MEMBER_ACTIVE && c->member[i].state != FORMAT_MEMBER_REBUILD)
			atomic_store(&array->member[i].out, true);
	}
	return 0;
}

struct eject_call {
	struct member *member;
	const char *reason; /* NULL: only wait for a loss that is under way */
	int result;
};

static void eject_home(void *arg)
{
	struct eject_call *call = arg;
	struct member *member = call->member;
	struct array *array = member->array;
	fiber_lock(&array->mutex);
	if (array_stopped(array)) {
		call->result = -ENODEV;
	} else if (!atomic_load(&member->out)) {
		if (call->reason && member_writable(member))
			call->result = member_take_out(member, call->reason);
		if (!call->result && !member_writable(member)) {
			if (array->look) /* it is lost to this process alone */
				atomic_store(&member->out, true);
			else
				call->result = array_commit(array, NULL);
		}
	}
	fiber_unlock(&array->mutex);
}

int member_settle(struct member *member)
{
	if (atomic_load(&member->out))
		return array_stopped(member->array) ? -ENODEV : 0;
	struct eject_call call = {.member = member};
	reactor_call(member->array->home, eject_home, &call);
	return call.result;
}

static int member_eject(struct member *member, const char *reason)
{
	struct eject_call call = {.member = member, .reason = reason};
	reactor_call(member->array->home, eject_home, &call);
	return call.result;
}

/* A few read errors are what repair is for; many at once are a dying drive. Races between reactors only blur the count.
 */
static bool errors_too_many(struct member *member)
{
	uint64_t now = now_ns(), since = atomic_load(&member->error_time);
	uint64_t score = atomic_load(&member->error_score);
	uint64_t forgiven = since ? (now - since) / ERROR_FORGIVE : 0;
	score = score > forgiven ? score - forgiven : 0;
	if (!since || forgiven)
		atomic_store(&member->error_time, now);
	atomic_store(&member->error_score, score + 1);
	return score + 1 > ERROR_LIMIT;
}

int member_failed(struct member *member, enum member_error what, int error)
{
	if (error == -ENOMEM)
		return 0; /* not the drive's fault; whoever wrote must fail the write */
	atomic_fetch_add(what == MEMBER_READ_ERROR ? &member->read_errors : &member->write_errors, 1);
	if (error == -ETIMEDOUT)
		atomic_fetch_add(&member->timeouts, 1);
	bool gone = error == -ETIMEDOUT || error == -ENODEV || error == -ENXIO;
	bool many = what == MEMBER_READ_ERROR && !gone && errors_too_many(member);
	if (what == MEMBER_READ_ERROR && !gone && !many) {
		log_warning("raid", "read error array=%s slot=%u drive=%s error=\"%s\"", member->array->config.name,
			member->slot, member->path, strerror(-error));
		return array_stopped(member->array) ? -ENODEV : 0;
	}
	char reason[80];
	snprintf(reason, sizeof(reason), "%s: %s",
		many			    ? "too many read errors"
		: what == MEMBER_READ_ERROR ? "read"
					    : "write",
		strerror(-error));
	return member_eject(member, reason);
}

void member_lied(struct member *member)
{
	atomic_fetch_add(&member->checksum_errors, 1);
	if (!errors_too_many(member))
		return;
	if (array_has_spare(member->array))
		(void)member_eject(member, "too many wrong checksums");
	else if (!atomic_exchange(&member->told, true))
		event_emit(member->array, "drive-warning", member, "too many wrong checksums, and no spare");
}

/* ---- by command ---- */

struct fail_call {
	struct array *array;
	unsigned slot;
	struct error *err;
	int result;
};

static void fail_home(void *arg)
{
	struct fail_call *call = arg;
	struct array *array = call->array;
	struct raid_config *c = &array->config;
	fiber_lock(&array->mutex);
	if (array_stopped(array)) {
		call->result = error_set(call->err, -ENODEV, "array %s has stopped", c->name);
	} else if (call->slot >= c->members) {
		call->result = error_set(call->err, -EINVAL, "array %s has no member %u", c->name, call->slot);
	} else if (c->member[call->slot].state == FORMAT_MEMBER_ACTIVE ||
		   c->member[call->slot].state == FORMAT_MEMBER_REBUILD) {
		uint8_t was = c->member[call->slot].state;
		c->member[call->slot].state = FORMAT_MEMBER_FAILED;
		bool viable = config_viable(c);
		c->member[call->slot].state = was;
		if (!viable) {
			call->result = error_set(
				call->err, -EBUSY, "array %s cannot do without member %u", c->name, call->slot);
		} else {
			call->result = member_take_out(&array->member[call->slot], "by command");
			if (!call->result)
				call->result = array_commit(array, call->err);
		}
	}
	fiber_unlock(&array->mutex);
}

int array_fail(struct array *array, unsigned slot, struct error *err)
{
	struct fail_call call = {.array = array, .slot = slot, .err = err};
	reactor_call(array->home, fail_home, &call);
	return call.result;
}

const char *member_state_name(enum member_state state)
{
	static const char *const names[] = {"active", "failed", "missing", "stale", "spare", "rebuilding", "none"};
	return (unsigned)state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

/* ---- metrics ---- */

static const struct member_metric {
	const char *name, *help;
	size_t offset;
} member_metrics[] = {
	{"furrow_drive_reads", "Read commands sent to the drive.", offsetof(struct drive_stats, reads)},
	{"furrow_drive_writes", "Write commands sent to the drive.", offsetof(struct drive_stats, writes)},
	{"furrow_drive_read_bytes", "Bytes read from the drive.", offsetof(struct drive_stats, read_bytes)},
	{"furrow_drive_write_bytes", "Bytes written to the drive.", offsetof(struct drive_stats, write_bytes)},
	{"furrow_drive_flushes", "Flush commands sent to the drive.", offsetof(struct drive_stats, flushes)},
	{"furrow_drive_fua_writes", "Write commands sent to the drive that were durable by themselves.",
		offsetof(struct drive_stats, fua_writes)},
};

#define METRIC_READ(i)                                                                                                 \
	static double metric_read_##i(void *arg)                                                                       \
	{                                                                                                              \
		return (double)drive_stat_sum(arg, member_metrics[i].offset);                                          \
	}
METRIC_READ(0)
METRIC_READ(1)
METRIC_READ(2)
METRIC_READ(3)
METRIC_READ(4)
METRIC_READ(5)

void metrics_member_add(struct member *member)
{
	static double (*const reads[])(void *) = {
		metric_read_0, metric_read_1, metric_read_2, metric_read_3, metric_read_4, metric_read_5};
	if (!member->drive)
		return;
	snprintf(member->gauge_labels, sizeof(member->gauge_labels), "array=\"%s\",slot=\"%u\"",
		member->array->config.name, member->slot);
	for (unsigned i = 0; i < 6; i++) {
		member->gauge[i] = (struct gauge){
			.name = member_metrics[i].name,
			.labels = member->gauge_labels,
			.help = member_metrics[i].help,
			.read = reads[i],
			.arg = member->drive,
		};
		gauge_register(&member->gauge[i]);
	}
}

void metrics_member_remove(struct member *member)
{
	if (!member->gauge[0].name)
		return;
	for (unsigned i = 0; i < 6; i++)
		gauge_remove(&member->gauge[i]);
	member->gauge[0].name = NULL;
}
