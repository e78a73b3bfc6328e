/*
 * The keeper: members that join and leave, and the fiber that puts spares into lost slots and rebuilds.
 *
 * All of it is on the array's home reactor. Who changes which drive is in a slot holds array->change around it, and
 * array->mutex for the configuration and its superblocks. A drive is exchanged behind a barrier only, while its
 * member is not writable: whoever could have seen the old one is gone then.
 *
 * A drive that is added is one of these:
 *   - the member that it was, lost meanwhile, with a map of what it missed: those rows are rebuilt. Trusted only if
 *     it has seen its floor, and has not gone on without the others;
 *   - the same without a usable map: rebuilt whole;
 *   - a new one (empty, of the shared pool, or forced): it takes a lost slot, or waits as a spare.
 *
 * The fiber: rebuilds what is in state REBUILD, one slot after the other; else gives a lost slot a spare; else copies a
 * member that is to be replaced. Slots whose member was not there at opening wait for it a while first. In between it
 * looks at the drives' health.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "raid/raid_internal.h"

#define MISSING_GRACE (30 * NSEC_PER_SEC)
#define TICK (2 * NSEC_PER_SEC)
#define RETRY (5 * NSEC_PER_SEC)

static bool state_lost(uint8_t state)
{
	return state == FORMAT_MEMBER_FAILED || state == FORMAT_MEMBER_MISSING;
}

/* What was counted of the drive before. Under the array's table. */
static void member_forget(struct member *member)
{
	memset(&member->health, 0, sizeof(member->health));
	atomic_store(&member->read_errors, 0);
	atomic_store(&member->write_errors, 0);
	atomic_store(&member->checksum_errors, 0);
	atomic_store(&member->timeouts, 0);
	atomic_store(&member->error_score, 0);
	atomic_store(&member->error_time, 0);
	atomic_store(&member->told, false);
	member->stale = false;
}

void member_drive_swap(struct member *member, struct member *spare)
{
	struct array *array = member->array;
	metrics_member_remove(member);
	metrics_member_remove(spare);
	pthread_mutex_lock(&array->table);
	member->drive = spare->drive;
	memcpy(member->path, spare->path, sizeof(member->path));
	member_forget(member);
	spare->drive = NULL;
	spare->path[0] = 0;
	atomic_store(&spare->state, FORMAT_MEMBER_NONE);
	pthread_mutex_unlock(&array->table);
	metrics_member_add(member);
}

/* Puts DRIVE (claimed, or NULL) in the place of MEMBER, which is not writable, and closes what was there. Home, waits.
 */
static void member_drive_set(struct member *member, struct drive *drive, const char *path)
{
	struct array *array = member->array;
	array_barrier(array);
	metrics_member_remove(member);
	pthread_mutex_lock(&array->table);
	struct drive *old = member->drive;
	member->drive = drive;
	if (path != member->path)
		snprintf(member->path, sizeof(member->path), "%s", path);
	if (!drive) {
		pthread_mutex_unlock(&array->table);
		drive_close(old);
		return;
	}
	member_forget(member);
	pthread_mutex_unlock(&array->table);
	drive_close(old);
	metrics_member_add(member);
}

/* SLOT has its drive, and its configuration says so; on the drives, and then for all. Mutex held. */
static int slot_commit(struct array *array, unsigned slot, struct error *err)
{
	struct member *member = &array->member[slot];
	int r = array_commit(array, err);
	uint8_t state = array->config.member[slot].state;
	if (!r && state != FORMAT_MEMBER_REBUILD && state != FORMAT_MEMBER_SPARE)
		r = error_set(err, -EIO, "%s: superblock cannot be written", member->path);
	if (!r) {
		if (state == FORMAT_MEMBER_REBUILD)
			atomic_store(&member->out, false);
		atomic_store(&member->state, state);
		keeper_kick(array);
	}
	return r;
}

/* ---- spares ---- */

static int spare_find(const struct array *array)
{
	for (unsigned i = array->config.members; i < array->config.slots; i++)
		if (array->config.member[i].state == FORMAT_MEMBER_SPARE && array->member[i].drive &&
			!(array->keeper.copy && array->keeper.copy_spare == i) &&
			atomic_load(&array->member[i].state) == FORMAT_MEMBER_SPARE)
			return (int)i;
	return -1;
}

/* Moves the spare FROM into the lost slot TO. Change held. */
static int spare_use(struct array *array, unsigned from, unsigned to, struct error *err)
{
	struct raid_config *c = &array->config;
	struct member *spare = &array->member[from], *member = &array->member[to];
	char path[sizeof(member->path)];
	array_barrier(array);
	fiber_lock(&array->mutex);
	int r = 0;
	if (array_stopped(array) || !state_lost(c->member[to].state) || c->member[from].state != FORMAT_MEMBER_SPARE)
		r = error_set(err, -EAGAIN, "array %s: its members have changed", c->name);
	if (r) {
		fiber_unlock(&array->mutex);
		return r;
	}
	struct drive *drive = spare->drive;
	struct member_config was = c->member[to];
	snprintf(path, sizeof(path), "%s", spare->path);
	metrics_member_remove(spare);
	pthread_mutex_lock(&array->table);
	spare->drive = NULL;
	spare->path[0] = 0;
	atomic_store(&spare->state, FORMAT_MEMBER_NONE);
	pthread_mutex_unlock(&array->table);
	fiber_unlock(&array->mutex);

	member_drive_set(member, drive, path);

	fiber_lock(&array->mutex);
	pthread_mutex_lock(&array->table);
	c->member[to] = (struct member_config){
		.uuid = c->member[from].uuid,
		.state = FORMAT_MEMBER_REBUILD,
		.events = c->member[from].events,
		.changed = wall_ns(),
		.left = c->events + 1,
	};
	c->member[from] = (struct member_config){.state = FORMAT_MEMBER_NONE};
	pthread_mutex_unlock(&array->table);
	r = slot_commit(array, to, err);
	if (r && c->member[to].state == FORMAT_MEMBER_REBUILD) {
		pthread_mutex_lock(&array->table);
		c->member[to] = was;
		pthread_mutex_unlock(&array->table);
	}
	fiber_unlock(&array->mutex);
	if (r)
		return r;
	log_info("raid", "spare takes over array=%s slot=%u drive=%s", c->name, to, path);
	event_emit(array, "spare-used", member, "takes over slot %u", to);
	return 0;
}

/* ---- adding ---- */

struct add_call {
	struct array *array;
	const char *path;
	struct member_add how;
	unsigned slot;
	struct error *err;
	int result;
};

/* Reads what the drive holds, without claiming it. */
static int peek(struct add_call *call, struct super_found *found, enum super_verdict *verdict, struct drive **drive)
{
	char why[160];
	int r = drive_open(call->path, false, drive, call->err);
	if (r)
		return r;
	r = super_read(*drive, found, verdict, why, sizeof(why));
	if (r) {
		drive_close(*drive);
		*drive = NULL;
		return drive_refused(call->err, r, call->path, "read");
	}
	return 0;
}

/* The slot in which the array lists UUID, or -1. */
static int slot_of(const struct array *array, const struct uuid *uuid)
{
	for (unsigned i = 0; i < array->config.slots; i++)
		if (array->config.member[i].state != FORMAT_MEMBER_NONE &&
			memcmp(&array->config.member[i].uuid, uuid, sizeof(*uuid)) == 0)
			return (int)i;
	return -1;
}

/* The member of SLOT is back. Change held. */
static int member_return(struct add_call *call, unsigned slot, const struct super_found *found)
{
	struct array *array = call->array;
	struct raid_config *c = &array->config;
	struct member *member = &array->member[slot];
	struct member_config *mc = &c->member[slot];
	struct drive *drive;
	bool spare = mc->state == FORMAT_MEMBER_SPARE;
	if (spare ? atomic_load(&member->state) == FORMAT_MEMBER_SPARE : !state_lost(mc->state))
		return error_set(call->err, -EEXIST, "%s: is member %u of array %s already", call->path, slot, c->name);
	bool strayed = !spare && config_strayed(c, slot, &found->config);
	if (strayed && !call->how.force)
		return error_set(call->err, -EUCLEAN,
			"%s: member %u of array %s went on without the others (event %llu, they went on at %llu); with "
			"--force it is rebuilt from them",
			call->path, slot, c->name, (unsigned long long)found->config.events,
			(unsigned long long)mc->left);
	if (member->drive && atomic_load(&member->drive->quarantined))
		return error_set(call->err, -EAGAIN, "%s: commands from before are still on their way", call->path);
	/* we may still hold it ourselves */
	member_drive_set(member, NULL, member->path);
	int r = drive_open(call->path, true, &drive, call->err);
	if (r)
		return r;
	struct super_found *again = malloc(sizeof(*again));
	enum super_verdict verdict;
	char why[160];
	if (!again || super_read(drive, again, &verdict, why, sizeof(why)) || verdict != SUPER_VALID ||
		memcmp(&again->member, &found->member, sizeof(found->member)) != 0 ||
		again->config.events != found->config.events || drive->bytes < c->member_bytes) {
		free(again);
		drive_close(drive);
		return error_set(call->err, -EAGAIN, "%s: changed while it was looked at", call->path);
	}
	free(again);
	member_drive_set(member, drive, call->path);
	fiber_lock(&array->mutex);
	if (array_stopped(array)) {
		fiber_unlock(&array->mutex);
		return error_set(call->err, -ENODEV, "array %s has stopped", c->name);
	}
	struct member_config was = *mc;
	if (!spare) {
		if (strayed || found->config.events < mc->events)
			mc->map_id = 0;
		if (strayed) /* what it was with others it is no witness for */
			mc->left = c->events + 1;
		member->fresh = !strayed;
		mc->state = FORMAT_MEMBER_REBUILD;
		mc->rebuild_next = 0;
		mc->changed = wall_ns();
	}
	bool partial = mc->map_id != 0;
	r = slot_commit(array, slot, call->err);
	if (r && mc->state == FORMAT_MEMBER_REBUILD)
		*mc = was;
	fiber_unlock(&array->mutex);
	call->slot = slot;
	if (!r && !spare) {
		log_info("raid", "member returns array=%s slot=%u drive=%s %s", c->name, slot, call->path,
			partial ? "lacks what it missed" : "rebuilt whole");
		event_emit(array, "member-returned", member, "slot %u, %s", slot,
			partial ? "lacks what it missed" : "rebuilt whole");
	}
	return r;
}

/* What it holds does not forbid to take it. */
static int content_check(
	const struct add_call *call, struct drive *drive, enum super_verdict verdict, const struct super_found *found)
{
	char holds[80];
	bool foreign;
	struct uuid uuid;
	if (call->how.force || pool_spare_read(drive, &uuid) == 0)
		return 0;
	if (verdict == SUPER_VALID)
		return error_set(call->err, -EEXIST, "%s: holds member %u of array %s; --force overwrites it",
			call->path, found->slot, found->config.name);
	if (verdict != SUPER_NONE)
		return error_set(call->err, -EEXIST, "%s: holds a damaged or newer superblock; --force overwrites it",
			call->path);
	int r = drive_content_foreign(drive, holds, sizeof(holds), &foreign);
	if (r)
		return drive_refused(call->err, r, call->path, "read");
	if (foreign)
		return error_set(
			call->err, -EEXIST, "%s: holds something: %s; --force overwrites it", call->path, holds);
	return 0;
}

static int slot_choose(const struct add_call *call, bool *lost)
{
	const struct raid_config *c = &call->array->config;
	*lost = true;
	if (call->how.slot >= 0)
		return call->how.slot < (int)c->members && state_lost(c->member[call->how.slot].state) ? call->how.slot
												       : -1;
	for (unsigned i = 0; i < c->members && !call->how.spare; i++)
		if (state_lost(c->member[i].state))
			return (int)i;
	*lost = false;
	for (unsigned i = c->members; i < config_slots_most(c); i++)
		if (i >= c->slots || c->member[i].state == FORMAT_MEMBER_NONE)
			return (int)i;
	return -1;
}

static int wipe_ends(struct drive *drive)
{
	int r = drive_zero(drive, 0, MEMBER_HEAD_BYTES);
	if (!r)
		r = drive_zero(drive, drive->bytes - MEMBER_TAIL_BYTES, MEMBER_TAIL_BYTES);
	return r ? r : drive_flush(drive);
}

/* A new drive. Change held. */
static int member_new(struct add_call *call, const struct super_found *found)
{
	struct array *array = call->array;
	struct raid_config *c = &array->config;
	struct drive *drive;
	enum super_verdict verdict;
	char why[160];
	bool lost;
	int slot = slot_choose(call, &lost);
	if (slot < 0 && call->how.slot < 0)
		return error_set(call->err, -ENOSPC, "array %s: has %u drives already, and none is lost", c->name,
			config_slots_most(c));
	if (slot < 0)
		return error_set(
			call->err, -EINVAL, "array %s: slot %d has not lost its member", c->name, call->how.slot);
	struct super_found *again = malloc(sizeof(*again));
	if (!again)
		return error_set(call->err, -ENOMEM, "out of memory");
	(void)found;
	int r = drive_open(call->path, true, &drive, call->err);
	if (r) {
		free(again);
		return r;
	}
	r = super_read(drive, again, &verdict, why, sizeof(why));
	if (r)
		drive_refused(call->err, r, call->path, "read");
	else
		r = content_check(call, drive, verdict, again);
	free(again);
	if (!r && drive->bytes < c->member_bytes)
		r = error_set(call->err, -ENOSPC, "%s: smaller (%llu bytes) than array %s needs (%llu)", call->path,
			(unsigned long long)drive->bytes, c->name, (unsigned long long)c->member_bytes);
	if (!r && (r = wipe_ends(drive)))
		drive_refused(call->err, r, call->path, "written");
	if (r) {
		drive_close(drive);
		return r;
	}
	struct member *member = &array->member[slot];
	unsigned slots = c->slots;
	array_members(array, slots, (unsigned)slot + 1);
	member_drive_set(member, drive, call->path);
	fiber_lock(&array->mutex);
	struct member_config was = c->member[slot];
	pthread_mutex_lock(&array->table);
	c->member[slot] = (struct member_config){
		.state = lost ? FORMAT_MEMBER_REBUILD : FORMAT_MEMBER_SPARE, .changed = wall_ns()};
	uuid_make(&c->member[slot].uuid);
	if ((unsigned)slot >= c->slots)
		c->slots = (unsigned)slot + 1;
	pthread_mutex_unlock(&array->table);
	r = slot_commit(array, (unsigned)slot, call->err);
	if (r) {
		pthread_mutex_lock(&array->table);
		if (c->member[slot].state == FORMAT_MEMBER_REBUILD || c->member[slot].state == FORMAT_MEMBER_SPARE)
			c->member[slot] = was;
		c->slots = slots;
		pthread_mutex_unlock(&array->table);
	}
	fiber_unlock(&array->mutex);
	call->slot = (unsigned)slot;
	if (!r) {
		log_info("raid", "drive added array=%s slot=%d drive=%s %s", c->name, slot, call->path,
			lost ? "takes over" : "spare");
		event_emit(array, lost ? "drive-added" : "spare-added", member, "slot %d", slot);
	} else {
		member_drive_set(member, NULL, "");
	}
	return r;
}

static void add_home(void *arg)
{
	struct add_call *call = arg;
	struct array *array = call->array;
	struct super_found *found = malloc(sizeof(*found));
	struct drive *drive;
	enum super_verdict verdict;
	if (!found) {
		call->result = error_set(call->err, -ENOMEM, "out of memory");
		return;
	}
	fiber_lock(&array->change);
	call->result = peek(call, found, &verdict, &drive);
	if (!call->result) {
		int slot = -1;
		bool held = false;
		if (verdict == SUPER_VALID &&
			memcmp(&found->config.uuid, &array->config.uuid, sizeof(array->config.uuid)) == 0)
			slot = slot_of(array, &found->member);
		for (unsigned i = 0; i < array->config.slots; i++)
			held = held ||
			       ((int)i != slot && array->member[i].drive && drive_same(array->member[i].drive, drive));
		drive_close(drive);
		if (held)
			call->result = error_set(
				call->err, -EEXIST, "%s: array %s holds it already", call->path, array->config.name);
		else if (slot >= 0)
			call->result = member_return(call, (unsigned)slot, found);
		else
			call->result = member_new(call, found);
	}
	fiber_unlock(&array->change);
	free(found);
}

int array_add(struct array *array, const char *drive, const struct member_add *how, unsigned *slot, struct error *err)
{
	struct error local = {0};
	struct add_call call = {.array = array, .path = drive, .how = {.slot = -1}, .err = err ? err : &local};
	if (how)
		call.how = *how;
	reactor_call(array->home, add_home, &call);
	if (slot)
		*slot = call.slot;
	return call.result;
}

/* ---- removing and replacing ---- */

static void remove_home(void *arg)
{
	struct add_call *call = arg;
	struct array *array = call->array;
	struct raid_config *c = &array->config;
	unsigned slot = call->slot;
	fiber_lock(&array->change);
	if (slot >= c->slots || c->member[slot].state == FORMAT_MEMBER_NONE) {
		call->result = error_set(call->err, -EINVAL, "array %s has no member %u", c->name, slot);
	} else if (array->keeper.copy && array->keeper.copy_spare == slot) {
		call->result = error_set(call->err, -EBUSY, "array %s: member %u is being copied to %s", c->name,
			array->keeper.copy_slot, array->member[slot].path);
	} else if (c->member[slot].state == FORMAT_MEMBER_SPARE) {
		struct member *member = &array->member[slot];
		struct drive *drive = member->drive;
		fiber_lock(&array->mutex);
		pthread_mutex_lock(&array->table);
		c->member[slot] = (struct member_config){.state = FORMAT_MEMBER_NONE};
		atomic_store(&member->state, FORMAT_MEMBER_NONE);
		pthread_mutex_unlock(&array->table);
		call->result = array_commit(array, call->err);
		fiber_unlock(&array->mutex);
		if (drive)
			(void)wipe_ends(drive);
		member_drive_set(member, NULL, "");
	} else if (!state_lost(c->member[slot].state)) {
		call->result =
			error_set(call->err, -EBUSY, "array %s: member %u is in use; fail it first", c->name, slot);
	} else {
		member_drive_set(&array->member[slot], NULL, "");
	}
	fiber_unlock(&array->change);
}

struct there_call {
	const struct drive *drive;
	const char *path;
	bool there;
};

static void there_blocking(void *arg)
{
	struct there_call *call = arg;
	const char *path = strncmp(call->path, "fault:", 6) == 0 ? call->path + 6 : call->path;
	if (call->drive && call->drive->ops->there)
		call->there = call->drive->ops->there(call->drive);
	else
		call->there = access(path, F_OK) == 0;
}

static void let_go_home(void *arg)
{
	struct add_call *call = arg;
	struct array *array = call->array;
	struct member *member = &array->member[call->slot];
	struct member_config *mc = &array->config.member[call->slot];
	fiber_lock(&array->change);
	if (call->slot < array->config.members && mc->state == FORMAT_MEMBER_FAILED && member->path[0]) {
		struct there_call look = {.drive = member->drive, .path = member->path};
		offload(there_blocking, &look);
		if (!look.there) {
			log_info("raid", "the drive of a failed member has left array=%s slot=%u drive=%s",
				array->config.name, call->slot, member->path);
			member_drive_set(member, NULL, member->path);
			fiber_lock(&array->mutex);
			mc->state = FORMAT_MEMBER_MISSING;
			atomic_store(&member->state, FORMAT_MEMBER_MISSING);
			(void)array_commit(array, NULL); /* it is lost either way */
			fiber_unlock(&array->mutex);
		}
	}
	fiber_unlock(&array->change);
}

void array_let_go(struct array *array, unsigned slot)
{
	struct add_call call = {.array = array, .slot = slot};
	reactor_call(array->home, let_go_home, &call);
}

int array_remove(struct array *array, unsigned slot, struct error *err)
{
	struct add_call call = {.array = array, .slot = slot, .err = err};
	reactor_call(array->home, remove_home, &call);
	return call.result;
}

struct spare_call {
	struct array *array;
	unsigned slot;
	int spare;
	struct error *err;
	int result;
};

/* SLOT is to be copied to SPARE, or to any when it is -1. Change held. */
static int copy_want(struct spare_call *call, int spare)
{
	struct array *array = call->array;
	struct keeper *k = &array->keeper;
	if (spare < 0)
		spare = spare_find(array);
	if (k->copy)
		return error_set(call->err, -EBUSY, "array %s: member %u is being copied, one at a time",
			array->config.name, k->copy_slot);
	if (spare < 0)
		return error_set(call->err, -ENOENT, "array %s has no spare", array->config.name);
	if (array->config.member[spare].state != FORMAT_MEMBER_SPARE) /* the keeper was first */
		return array->config.member[call->slot].state == FORMAT_MEMBER_REBUILD
			       ? 0
			       : error_set(call->err, -EBUSY, "array %s: the spare has taken over a lost member",
					 array->config.name);
	if (array->config.member[call->slot].state != FORMAT_MEMBER_ACTIVE)
		return spare_use(array, (unsigned)spare, call->slot, call->err);
	k->copy = true;
	k->copy_slot = call->slot;
	k->copy_spare = (unsigned)spare;
	keeper_kick(array);
	return 0;
}

static void replace_home(void *arg)
{
	struct spare_call *call = arg;
	fiber_lock(&call->array->change);
	call->result = copy_want(call, call->spare);
	fiber_unlock(&call->array->change);
}

int array_replace(struct array *array, unsigned slot, const char *drive, bool force, struct error *err)
{
	struct error local = {0};
	if (!err)
		err = &local;
	if (slot >= array->config.members)
		return error_set(err, -EINVAL, "array %s has no member %u", array->config.name, slot);
	struct spare_call call = {.array = array, .slot = slot, .spare = -1, .err = err};
	bool rebuilding = atomic_load(&array->member[slot].state) == FORMAT_MEMBER_REBUILD;
	if (drive) {
		struct member_add how = {.force = force, .spare = true, .slot = -1};
		unsigned as_spare = 0;
		int r = array_add(array, drive, &how, &as_spare, err);
		if (r)
			return r;
		if (as_spare < array->config.members)
			return 0; /* it was a lost member itself */
		call.spare = (int)as_spare;
	}
	/* a rebuild that is under way begins anew on the other drive */
	call.result = rebuilding ? array_fail(array, slot, err) : 0;
	if (!call.result)
		reactor_call(array->home, replace_home, &call);
	if (call.result && drive)
		(void)array_remove(array, (unsigned)call.spare, NULL);
	return call.result;
}

/* ---- the fiber ---- */

void keeper_kick(struct array *array)
{
	array->keeper.kicked = true; /* it may be at something that waits, and not in the queue */
	wait_queue_wake_all(&array->keeper.work);
}

static int slot_in_rebuild(const struct array *array)
{
	for (unsigned i = 0; i < array->config.members; i++)
		if (array->config.member[i].state == FORMAT_MEMBER_REBUILD &&
			atomic_load(&array->member[i].state) == FORMAT_MEMBER_REBUILD)
			return (int)i;
	return -1;
}

/* A lost slot that should have a spare now. */
static int slot_to_fill(const struct array *array, uint64_t opened)
{
	for (unsigned i = 0; i < array->config.members; i++) {
		uint8_t state = array->config.member[i].state;
		if (state == FORMAT_MEMBER_FAILED ||
			(state == FORMAT_MEMBER_MISSING && now_ns() - opened > MISSING_GRACE))
			return (int)i;
	}
	return -1;
}

bool keeper_urgent(const struct array *array)
{
	bool lost = false;
	for (unsigned i = 0; i < array->config.members; i++)
		lost = lost || array->config.member[i].state == FORMAT_MEMBER_FAILED;
	return lost && spare_find(array) >= 0;
}

/* The spare of SLOT failed while it was copied to. */
static void spare_drop(struct array *array, unsigned slot)
{
	struct member *spare = &array->member[slot];
	fiber_lock(&array->change);
	fiber_lock(&array->mutex);
	bool listed = array->config.member[slot].state == FORMAT_MEMBER_SPARE;
	if (listed) {
		log_error("raid", "spare lost array=%s slot=%u drive=%s", array->config.name, slot, spare->path);
		event_emit(array, "spare-lost", spare, "it failed while member %u was copied to it",
			array->keeper.copy_slot);
		pthread_mutex_lock(&array->table);
		array->config.member[slot] = (struct member_config){.state = FORMAT_MEMBER_NONE};
		atomic_store(&spare->state, FORMAT_MEMBER_NONE);
		pthread_mutex_unlock(&array->table);
		(void)array_commit(array, NULL);
	}
	fiber_unlock(&array->mutex);
	if (listed)
		member_drive_set(spare, NULL, "");
	fiber_unlock(&array->change);
}

/* Copies the member that is to be replaced. When something more urgent ends it, it is tried again later. */
static void keeper_copy(struct array *array)
{
	struct keeper *k = &array->keeper;
	const struct member *member = &array->member[k->copy_slot], *spare = &array->member[k->copy_spare];
	bool possible = member_active(member) && spare->drive && atomic_load(&spare->state) == FORMAT_MEMBER_SPARE;
	if (possible && copy_run(array, k->copy_slot, k->copy_spare) == 0)
		possible = false;
	else if (possible && atomic_load(&spare->drive->twin_failed))
		spare_drop(array, k->copy_spare);
	k->copy = possible && member_active(member) && atomic_load(&spare->state) == FORMAT_MEMBER_SPARE;
}

static void keeper_fiber(void *arg)
{
	struct array *array = arg;
	struct keeper *k = &array->keeper;
	uint64_t opened = now_ns(), retry = 0;
	bool told = false;
	while (!k->closing) {
		k->kicked = false;
		if (!array_stopped(array) && !k->paused && now_ns() >= retry) {
			int slot = slot_in_rebuild(array);
			if (slot >= 0) {
				if (rebuild_run(array, (unsigned)slot))
					retry = now_ns() + NSEC_PER_SEC;
				continue;
			}
			slot = slot_to_fill(array, opened);
			int spare = slot < 0 ? -1 : spare_find(array);
			if (spare >= 0) {
				fiber_lock(&array->change);
				int r = spare_use(array, (unsigned)spare, (unsigned)slot, NULL);
				fiber_unlock(&array->change);
				if (r)
					retry = now_ns() + RETRY;
				continue;
			}
			if (k->copy) {
				keeper_copy(array);
				if (k->copy)
					retry = now_ns() + NSEC_PER_SEC;
				continue;
			}
			if (slot < 0)
				told = false;
			else if (!told) {
				event_emit(array, "no-spare", &array->member[slot], "slot %d stays empty", slot);
				told = true;
			}
		}
		health_tick(array);
		uint64_t until = now_ns() + TICK;
		if (!k->kicked)
			(void)wait_queue_wait(&k->work, retry > now_ns() && retry < until ? retry : until);
	}
	k->running = false;
	wait_queue_wake_all(&k->done);
}

static void keep_home(void *arg)
{
	struct spare_call *call = arg;
	struct keeper *k = &call->array->keeper;
	if (k->running)
		return;
	k->on = k->running = true;
	call->result = fiber_spawn(keeper_fiber, call->array);
	if (call->result)
		k->on = k->running = false;
}

int array_keep(struct array *array, struct error *err)
{
	struct spare_call call = {.array = array};
	reactor_call(array->home, keep_home, &call);
	return call.result ? error_set(err, call.result, "array %s: cannot start its keeper: %s", array->config.name,
				     strerror(-call.result))
			   : 0;
}

void keeper_stop(struct array *array)
{
	array->keeper.closing = true;
	keeper_kick(array);
	scrub_stop(array);
	while (array->keeper.running)
		wait_queue_wait(&array->keeper.done, now_ns() + NSEC_PER_SEC);
}

bool array_wants_member(struct array *array)
{
	bool lost = false;
	if (array_stopped(array))
		return false;
	for (unsigned i = 0; i < array->config.members; i++)
		lost = lost || state_lost(atomic_load(&array->member[i].state));
	return lost && !array_has_spare(array);
}

struct pause_call {
	struct array *array;
	bool pause;
};

static void pause_home(void *arg)
{
	struct pause_call *call = arg;
	call->array->keeper.paused = call->pause;
	keeper_kick(call->array);
}

void array_rebuild_pause(struct array *array, bool pause)
{
	struct pause_call call = {array, pause};
	reactor_call(array->home, pause_home, &call);
}

void array_tune(struct array *array, const struct rebuild_tuning *tuning)
{
	array->tuning = *tuning;
}

struct settle_call {
	struct array *array;
	struct rebuild_status status;
	bool busy, lost;
};

static void settled_home(void *arg)
{
	struct settle_call *call = arg;
	struct array *array = call->array;
	call->lost = false;
	for (unsigned i = 0; i < array->config.members; i++)
		call->lost = call->lost || state_lost(array->config.member[i].state);
	call->busy = !array_stopped(array) && !array->keeper.paused &&
		     (slot_in_rebuild(array) >= 0 || array->keeper.rebuild || array->keeper.copy ||
			     array->change.owner || (call->lost && spare_find(array) >= 0));
	pthread_mutex_lock(&array->table);
	rebuild_status_get(array, &call->status);
	pthread_mutex_unlock(&array->table);
}

int array_settled(struct array *array, void (*progress)(void *arg, const struct rebuild_status *status), void *arg)
{
	struct settle_call call = {.array = array};
	for (;;) {
		reactor_call(array->home, settled_home, &call);
		if (progress)
			progress(arg, &call.status);
		if (!call.busy)
			return call.lost || array_stopped(array) ? -EIO : 0;
		fiber_sleep(20 * NSEC_PER_MSEC);
	}
}
