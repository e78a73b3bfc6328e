/*
 * Watching for drives while an array lacks members: a member that was pulled and comes back is taken in again, and a
 * spare of the shared pool takes over for one that does not.
 *
 * One fiber of reactor 0. Every second it asks the arrays whether they want a member; only then does it look which
 * paths match the patterns of `drives:`, and only when those have changed, or now and then, does it read the
 * drives. A member that was failed while its drive stayed where it was (errors, or by command) is not taken back by
 * itself: that is for an administrator to say (furrow array add). Once its drive has left, it is missing.
 *
 * Under the storage's lock, as commands are. What does not work is logged and tried again when the drives change.
 */
#include "server/server_internal.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WATCH_INTERVAL NSEC_PER_SEC
#define SCAN_AGAIN (20 * NSEC_PER_SEC)
#define MISSING_GRACE (30 * NSEC_PER_SEC)

struct storage_watch {
	bool stopping, running;
	struct wait_queue work, done;
	uint64_t paths;	  /* a hash of what matched the patterns last */
	uint64_t scanned; /* when */
	uint64_t started; /* when, ns since 1970 */
	struct array_status *status;
};

struct paths_call {
	char **patterns;
	unsigned count;
	uint64_t hash;
};

static void paths_hash(void *arg)
{
	struct paths_call *call = arg;
	call->hash = 1;
	for (unsigned i = 0; i < call->count; i++) {
		const char *pattern = call->patterns[i];
		glob_t found;
		if (!strncmp(pattern, "fault:", 6))
			pattern += 6;
		if (glob(pattern, 0, NULL, &found))
			continue;
		for (size_t j = 0; j < found.gl_pathc; j++) {
			struct stat st;
			if (stat(found.gl_pathv[j], &st) < 0)
				continue;
			call->hash = checksum64(found.gl_pathv[j], strlen(found.gl_pathv[j]), call->hash);
			call->hash ^= hash_u64((uint64_t)st.st_ino * 31 + (uint64_t)st.st_rdev);
		}
		globfree(&found);
	}
}

static const struct drive_info *scan_member(
	const struct raid_scan *scan, const struct uuid *array, const struct uuid *member)
{
	for (unsigned i = 0; i < scan->count; i++)
		if (scan->drive[i].content == DRIVE_MEMBER && !memcmp(&scan->drive[i].array, array, sizeof(*array)) &&
			!memcmp(&scan->drive[i].member, member, sizeof(*member)))
			return &scan->drive[i];
	return NULL;
}

static void array_supply(struct storage_watch *watch, struct storage_array *sa, const struct raid_scan *scan)
{
	struct array_status *s = watch->status;
	bool lost = false;

	for (unsigned i = 0; i < s->members; i++) {
		enum member_state state = s->member[i].state;
		bool failed = state == MEMBER_FAILED;
		if (!failed && state != MEMBER_MISSING && state != MEMBER_STALE)
			continue;
		const struct drive_info *drive = scan_member(scan, &s->uuid, &s->member[i].uuid);
		struct error err = {0};
		if (drive && !failed) {
			if (array_add(sa->array, drive->path, NULL, NULL, &err) == 0)
				continue;
			log_warning("storage", "drive that returned is not taken array=%s drive=%s reason=\"%s\"",
				sa->name, drive->path, err.text);
		}
		/* who was missing from the start may still be on the way */
		lost = lost || failed || s->member[i].changed > watch->started ||
		       wall_ns() - watch->started > MISSING_GRACE;
	}
	for (unsigned i = 0; i < scan->count && lost && array_wants_member(sa->array); i++) {
		struct error err = {0};
		if (scan->drive[i].content != DRIVE_POOL)
			continue;
		if (array_add(sa->array, scan->drive[i].path, NULL, NULL, &err) < 0)
			log_warning("storage", "spare of the pool is not taken array=%s drive=%s reason=\"%s\"",
				sa->name, scan->drive[i].path, err.text);
		else
			scan->drive[i].content = DRIVE_MEMBER;
	}
}

static void watch_look(struct storage *storage)
{
	struct storage_watch *watch = storage->watch;
	struct paths_call paths = {storage->drives, storage->drive_count, 0};
	bool wanted = false;

	list_foreach (n, &storage->arrays) {
		struct storage_array *sa = container_of(n, struct storage_array, node);
		wanted = wanted || array_wants_member(sa->array);
	}
	if (!wanted) {
		watch->paths = 0;
		return;
	}
	fiber_lock(&storage->lock);
	list_foreach (n, &storage->arrays) {
		struct storage_array *sa = container_of(n, struct storage_array, node);
		if (!array_wants_member(sa->array))
			continue;
		array_status(sa->array, watch->status);
		for (unsigned i = 0; i < watch->status->members; i++) {
			if (watch->status->member[i].state == MEMBER_FAILED)
				array_let_go(sa->array, i);
		}
	}
	offload(paths_hash, &paths);
	struct raid_scan scan = {0};
	if ((paths.hash != watch->paths || now_ns() - watch->scanned > SCAN_AGAIN) &&
		raid_scan((const char *const *)storage->drives, storage->drive_count, &scan, NULL) == 0) {
		watch->paths = paths.hash;
		watch->scanned = now_ns();
		list_foreach (n, &storage->arrays) {
			struct storage_array *sa = container_of(n, struct storage_array, node);
			if (!array_wants_member(sa->array))
				continue;
			array_status(sa->array, watch->status);
			array_supply(watch, sa, &scan);
		}
		raid_scan_free(&scan);
	}
	fiber_unlock(&storage->lock);
}

static void watch_fiber(void *arg)
{
	struct storage *storage = arg;
	struct storage_watch *watch = storage->watch;

	while (!watch->stopping) {
		watch_look(storage);
		if (!watch->stopping)
			(void)wait_queue_wait(&watch->work, now_ns() + WATCH_INTERVAL);
	}
	watch->running = false;
	wait_queue_wake_all(&watch->done);
}

void storage_watch_start(struct storage *storage)
{
	storage->watch = NULL;
	if (!storage->keep || storage->read_only)
		return;
	struct storage_watch *watch = calloc(1, sizeof(*watch));
	if (watch)
		watch->status = calloc(1, sizeof(*watch->status));
	if (!watch || !watch->status) {
		free(watch);
		log_error("storage", "out of memory, drives that return are not noticed");
		return;
	}
	wait_queue_init(&watch->work);
	wait_queue_init(&watch->done);
	storage->watch = watch;
	watch->started = wall_ns();
	watch->running = true;
	if (fiber_spawn(watch_fiber, storage)) {
		free(watch->status);
		free(watch);
		storage->watch = NULL;
		log_error("storage", "no fiber to watch drives with");
	}
}

void storage_watch_stop(struct storage *storage)
{
	struct storage_watch *watch = storage->watch;

	if (!watch)
		return;
	watch->stopping = true;
	wait_queue_wake_all(&watch->work);
	while (watch->running)
		wait_queue_wait(&watch->done, now_ns() + NSEC_PER_SEC);
	free(watch->status);
	free(watch);
	storage->watch = NULL;
}
