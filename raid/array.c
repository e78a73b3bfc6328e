/*
 * Arrays: making, closing, wiping them, and what they tell of themselves. Assembly is in assemble.c.
 *
 * Making an array: all drives are opened and claimed, then looked at and measured, and only then is
 * anything written. The places where others keep their marks (the first and last MiB) are
 * overwritten with zeros before the superblocks go out, so that nothing else recognizes the drive as its own.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "raid/raid_internal.h"

#define LOG_MIN (16ull << 20)
#define LOG_MAX (4ull << 30) /* of an array, without copies */
#define STRIPES_MIN 16u

/* A mapping of its own: an array of a few drives never touches most of it. */
struct array *array_make(void)
{
	struct array *array = mmap(NULL, sizeof(*array), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (array == MAP_FAILED)
		return NULL;
	pthread_mutex_init(&array->table, NULL);
	fiber_mutex_init(&array->mutex);
	fiber_mutex_init(&array->owners);
	fiber_mutex_init(&array->change);
	wait_queue_init(&array->keeper.work);
	wait_queue_init(&array->keeper.done);
	gates_init(array);
	array->tuning.latency_target_ns = REBUILD_LATENCY_TARGET;
	array->home = reactor_self();
	return array;
}

void array_members(struct array *array, unsigned from, unsigned count)
{
	for (unsigned i = from; i < count; i++) {
		array->member[i].array = array;
		array->member[i].slot = i;
	}
}

bool array_has_spare(struct array *array)
{
	bool spare = false;
	pthread_mutex_lock(&array->table);
	for (unsigned i = array->config.members; i < array->config.slots; i++)
		spare = spare || atomic_load(&array->member[i].state) == FORMAT_MEMBER_SPARE;
	pthread_mutex_unlock(&array->table);
	return spare;
}

void array_free(struct array *array)
{
	for (unsigned i = 0; i < array->config.slots; i++) {
		metrics_member_remove(&array->member[i]);
		drive_close(array->member[i].drive);
	}
	for (unsigned i = 0; i < SUPER_GEOMETRIES; i++)
		code_fini(&array->code[i]);
	missed_fini(array);
	gates_fini(array);
	pthread_mutex_destroy(&array->table);
	munmap(array, sizeof(*array));
}

/* ---- making ---- */

static int drives_open(struct array *array, const struct array_create *create, struct error *err)
{
	unsigned count = create->count + create->spare_count;
	for (unsigned i = 0; i < count; i++) {
		const char *path = i < create->count ? create->drives[i] : create->spares[i - create->count];
		struct member *member = &array->member[i];
		/* the claim would refuse a second name of the same drive too, but could not say why */
		struct drive *peek;
		int r = drive_open(path, false, &peek, err);
		if (r)
			return r;
		for (unsigned j = 0; j < i; j++)
			if (drive_same(peek, array->member[j].drive)) {
				drive_close(peek);
				return error_set(err, -EEXIST, "%s: is the same drive as %s", path,
					array->member[j].drive->path);
			}
		drive_close(peek);
		if ((r = drive_open(path, true, &peek, err)))
			return r;
		member->drive = peek;
		snprintf(member->path, sizeof(member->path), "%s", path);
	}
	return 0;
}

static int drives_check(struct array *array, unsigned count, bool force, struct error *err)
{
	struct super_found *found = malloc(sizeof(*found));
	if (!found)
		return error_set(err, -ENOMEM, "out of memory");
	int r = 0;
	for (unsigned i = 0; i < count && !r; i++) {
		struct drive *drive = array->member[i].drive;
		enum super_verdict verdict;
		char why[160];
		bool foreign = false;
		if ((r = super_read(drive, found, &verdict, why, sizeof(why)))) {
			drive_refused(err, r, drive->path, "read");
		} else if (verdict == SUPER_VALID) {
			if (!force)
				r = error_set(err, -EEXIST, "%s: holds member %u of array %s", drive->path, found->slot,
					found->config.name);
		} else if (verdict != SUPER_NONE) {
			if (!force)
				r = error_set(err, -EEXIST, "%s: holds a %s", drive->path, why);
		} else if ((r = drive_content_foreign(drive, why, sizeof(why), &foreign))) {
			drive_refused(err, r, drive->path, "read");
		} else if (foreign && !force) {
			r = error_set(err, -EEXIST, "%s: holds something else: %s", drive->path, why);
		}
	}
	free(found);
	return r;
}

static int config_make(struct array *array, const struct array_create *create, struct error *err)
{
	struct raid_config *c = &array->config;
	struct geometry *g = &c->geometry[0];
	unsigned count = create->count + create->spare_count;
	const struct drive *least = array->member[0].drive;
	for (unsigned i = 1; i < count; i++)
		if (array->member[i].drive->bytes < least->bytes)
			least = array->member[i].drive;

	c->version = SUPER_VERSION;
	uuid_make(&c->uuid);
	snprintf(c->name, sizeof(c->name), "%s", create->name);
	c->created = wall_ns();
	c->clean = true;
	c->level = create->level;
	c->members = create->count;
	c->geometries = 1;
	c->log_copies = level_tolerates(g) + 1;
	c->log_members = create->count;
	c->log_groups = g->groups;
	c->member_bytes = least->bytes & ~(uint64_t)(MEMBER_ALIGN - 1);
	uint64_t log = c->member_bytes / 100;
	if (log < LOG_MIN)
		log = LOG_MIN;
	if (log > LOG_MAX * c->log_copies / c->log_members)
		log = LOG_MAX * c->log_copies / c->log_members;
	if (log > c->member_bytes / 8)
		log = c->member_bytes / 8;
	c->log_offset = MEMBER_HEAD_BYTES;
	c->log_bytes = log & ~(uint64_t)(LOG_CHUNK_BYTES - 1);
	c->data_offset = (c->log_offset + c->log_bytes + MEMBER_ALIGN - 1) & ~(uint64_t)(MEMBER_ALIGN - 1);
	g->epoch = 1;
	g->strip_bytes = create->strip_bytes ? create->strip_bytes : 65536;
	g->strip_blocks = g->strip_bytes / BLOCK_BYTES;
	g->member_offset = c->data_offset;
	uint64_t rows = c->member_bytes < c->data_offset + MEMBER_TAIL_BYTES
				? 0
				: (c->member_bytes - MEMBER_TAIL_BYTES - c->data_offset) / g->strip_bytes;
	if (rows < STRIPES_MIN)
		return error_set(
			err, -ENOSPC, "%s: too small (%llu bytes)", least->path, (unsigned long long)least->bytes);
	c->data_bytes = rows * g->strip_bytes;
	g->stripes = rows * g->groups;
	for (unsigned i = 0; i < count; i++) {
		bool spare = i >= create->count;
		c->member[i].state = spare ? FORMAT_MEMBER_SPARE : FORMAT_MEMBER_ACTIVE;
		c->member[i].changed = c->created;
		uuid_make(&c->member[i].uuid);
		atomic_store(&array->member[i].state, c->member[i].state);
	}
	return 0;
}

int array_create(const struct array_create *create, struct error *err)
{
	struct geometry geometry = {0};
	char why[160];
	unsigned count = create->count + create->spare_count;
	if (!create->name || !raid_name_valid(create->name))
		return error_set(err, -EINVAL,
			"%.40s: not a name (1 to %d of A-Z a-z 0-9 . _ -, not beginning with . or -)",
			create->name ? create->name : "", RAID_NAME_MAX);
	struct uuid uuid;
	if (uuid_parse(create->name, &uuid) == 0)
		return error_set(err, -EINVAL, "%s: a name must not look like a UUID", create->name);
	uint32_t strip = create->strip_bytes;
	if (strip && (strip < 16384 || strip > (1u << 20) || (strip & (strip - 1))))
		return error_set(err, -EINVAL, "strip of %u bytes: not a power of two from 16 KiB to 1 MiB", strip);
	if (create->count > RAID_DRIVES_MAX || create->spare_count > RAID_DRIVES_MAX - create->count)
		return error_set(err, -EINVAL, "%u drives, more than the %u of an array", count, RAID_DRIVES_MAX);
	if (level_geometry(create->level, create->count, create->groups, &geometry, why, sizeof(why)))
		return error_set(err, -EINVAL, "%s", why);

	struct array *array = array_make();
	if (!array)
		return error_set(err, -ENOMEM, "array %s: out of memory", create->name);
	array->config.geometry[0] = geometry;
	array->config.slots = count;
	array_members(array, 0, count);
	int r = drives_open(array, create, err);
	if (!r)
		r = drives_check(array, count, create->force, err);
	if (!r)
		r = config_make(array, create, err);
	for (unsigned i = 0; i < count && !r; i++) {
		struct drive *drive = array->member[i].drive;
		r = drive_zero(drive, 0, MEMBER_HEAD_BYTES);
		if (!r)
			r = drive_zero(drive, drive->bytes - MEMBER_TAIL_BYTES, MEMBER_TAIL_BYTES);
		if (!r)
			r = drive_flush(drive);
		if (r)
			drive_refused(err, r, drive->path, "written");
	}
	if (!r && missed_init(array))
		r = error_set(err, -ENOMEM, "array %s: out of memory", create->name);
	if (!r) {
		fiber_lock(&array->mutex);
		r = array_commit(array, err);
		/* a new array is whole or is not */
		for (unsigned i = 0; i < count && !r; i++)
			if (array->config.member[i].state != FORMAT_MEMBER_ACTIVE &&
				array->config.member[i].state != FORMAT_MEMBER_SPARE)
				r = error_set(err, -EIO, "%s: superblock cannot be written", array->member[i].path);
		fiber_unlock(&array->mutex);
	}
	if (!r)
		log_info("raid", "array created array=%s level=%u members=%u spares=%u", create->name, create->level,
			create->count, create->spare_count);
	array_free(array);
	return r;
}

/* ---- closing ---- */

static void close_home(void *arg)
{
	struct array *array = arg;
	keeper_stop(array);
	fiber_lock(&array->mutex);
	if (!array_stopped(array) && !array->look) {
		/* what was written without a flush must not become less durable than a clean superblock says */
		for (unsigned i = 0; i < array->config.members; i++) {
			struct member *member = &array->member[i];
			uint64_t upto;
			if (member_writable(member) && drive_flush_needed(member->drive, &upto) &&
				drive_flush(member->drive))
				log_warning("raid", "flush failed at close array=%s drive=%s", array->config.name,
					member->path);
		}
		array->config.clean = true;
		struct error err = {0};
		if (array_commit(array, &err))
			log_error("raid", "array not closed cleanly array=%s reason=\"%s\"", array->config.name,
				err.text);
	}
	fiber_unlock(&array->mutex);
	array_free(array);
}

void array_close(struct array *array)
{
	if (!array)
		return;
	if (array->open_volumes)
		log_error("raid", "array closed while volumes are open array=%s volumes=%u", array->config.name,
			array->open_volumes);
	reactor_call(array->home, close_home, array);
}

/* ---- status ---- */

void array_status(struct array *array, struct array_status *status)
{
	struct raid_config *c = &array->config;
	const struct geometry *g = &c->geometry[c->geometries - 1];
	memset(status, 0, offsetof(struct array_status, member));
	pthread_mutex_lock(&array->table);
	status->uuid = c->uuid;
	memcpy(status->name, c->name, sizeof(status->name));
	status->level = c->level;
	status->k = g->k;
	status->m = g->m;
	status->groups = g->groups;
	status->members = c->members;
	status->strip_bytes = g->strip_bytes;
	status->events = c->events;
	uint64_t free_stripes = config_stripes(c);
	for (unsigned i = 0; i < SUPER_VOLUMES; i++)
		if (c->volume[i].name[0])
			free_stripes -= c->volume[i].stripes;
	status->data_bytes = config_stripes(c) * g->k * g->strip_bytes;
	status->free_bytes = free_stripes * g->k * g->strip_bytes;
	memset(status->member, 0, c->slots * sizeof(status->member[0]));
	for (unsigned i = 0; i < c->slots; i++) {
		status->member[i].uuid = c->member[i].uuid;
		status->member[i].changed = c->member[i].changed;
	}
	unsigned slots = status->slots = c->slots;
	status->stopped = array_stopped(array);
	rebuild_status_get(array, &status->rebuild);
	status->scrub = array->scrub_last;
	for (unsigned i = 0; i < slots; i++) {
		struct member *member = &array->member[i];
		switch (atomic_load(&member->state)) {
		case FORMAT_MEMBER_ACTIVE:
			status->member[i].state = MEMBER_ACTIVE;
			break;
		case FORMAT_MEMBER_SPARE:
			status->member[i].state = MEMBER_SPARE;
			break;
		case FORMAT_MEMBER_REBUILD:
			status->member[i].state = MEMBER_REBUILDING;
			break;
		case FORMAT_MEMBER_NONE:
			status->member[i].state = MEMBER_NONE;
			break;
		case FORMAT_MEMBER_MISSING:
			status->member[i].state = member->stale ? MEMBER_STALE : MEMBER_MISSING;
			break;
		default:
			status->member[i].state = MEMBER_FAILED;
			break;
		}
		if (i < c->members && status->member[i].state != MEMBER_ACTIVE)
			status->degraded = true;
		status->member[i].slow = atomic_load(&member->health.slow);
		status->member[i].smart_valid = member->health.smart_valid;
		status->member[i].smart = member->health.smart;
		snprintf(status->member[i].path, sizeof(status->member[i].path), "%s", member->path);
		status->member[i].read_errors = atomic_load(&member->read_errors);
		status->member[i].write_errors = atomic_load(&member->write_errors);
		status->member[i].checksum_errors = atomic_load(&member->checksum_errors);
		status->member[i].timeouts = atomic_load(&member->timeouts);
		const struct drive *drive = member->drive;
		if (!drive)
			continue;
		memcpy(status->member[i].model, drive->model, sizeof(status->member[i].model));
		memcpy(status->member[i].serial, drive->serial, sizeof(status->member[i].serial));
		status->member[i].bytes = drive->bytes;
		status->member[i].reads = drive_stat_sum(drive, offsetof(struct drive_stats, reads));
		status->member[i].writes = drive_stat_sum(drive, offsetof(struct drive_stats, writes));
		status->member[i].read_bytes = drive_stat_sum(drive, offsetof(struct drive_stats, read_bytes));
		status->member[i].write_bytes = drive_stat_sum(drive, offsetof(struct drive_stats, write_bytes));
		status->member[i].flushes = drive_stat_sum(drive, offsetof(struct drive_stats, flushes));
		status->member[i].fua_writes = drive_stat_sum(drive, offsetof(struct drive_stats, fua_writes));
	}
	pthread_mutex_unlock(&array->table);
}
