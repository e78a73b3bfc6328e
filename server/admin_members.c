/*
 * Admin commands about the life of members: adding, removing and replacing drives, spares of an array and of the
 * shared pool, rebuild and scrub.
 *
 * In the server these return when the change is made; what follows from it (a rebuild) goes on by itself and is seen
 * by `array.status`. Without a server nothing would go on once the tool has ended: there the command keeps the
 * array, waits until all is rebuilt, and tells its progress.
 */
#include "server/admin_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

json_t *admin_rebuild_json(const struct rebuild_status *status)
{
	json_t *object = json_object();

	admin_put(object, "running", json_boolean(status->running));
	admin_put(object, "paused", json_boolean(status->paused));
	admin_put(object, "partial", json_boolean(status->partial));
	admin_put(object, "copies", json_boolean(status->copies));
	admin_put_number(object, "slot", status->slot);
	admin_put_number(object, "done_bytes", status->done_bytes);
	admin_put_number(object, "total_bytes", status->total_bytes);
	admin_put_number(object, "read_bytes", status->read_bytes);
	admin_put_number(object, "written_bytes", status->written_bytes);
	admin_put_number(object, "rate", status->rate);
	admin_put_number(object, "eta_seconds", status->eta_ns / NSEC_PER_SEC);
	admin_put_number(object, "lost_rows", status->lost_rows);
	return object;
}

json_t *admin_scrub_json(const struct scrub_status *status)
{
	json_t *object = json_object();

	admin_put(object, "running", json_boolean(status->running));
	admin_put(object, "paused", json_boolean(status->paused));
	admin_put_number(object, "done_stripes", status->done_stripes);
	admin_put_number(object, "total_stripes", status->total_stripes);
	admin_put_number(object, "eta_seconds", status->eta_ns / NSEC_PER_SEC);
	admin_put_number(object, "started", status->started / NSEC_PER_SEC);
	admin_put_number(object, "ended", status->ended / NSEC_PER_SEC);
	admin_put_number(object, "read_bytes", status->read_bytes);
	admin_put_number(object, "mismatches", status->mismatches);
	admin_put_number(object, "repaired", status->repaired);
	admin_put_number(object, "unresolved", status->unresolved);
	admin_put_number(object, "unread_repaired", status->unread_repaired);
	return object;
}

int admin_slot(struct admin *admin, struct array_status *status, unsigned *slot)
{
	const char *drive = NULL;
	uint64_t number = UINT64_MAX;

	if (admin_number(admin, "slot", &number) < 0 || admin_string_optional(admin, "drive", &drive) < 0)
		return admin->err->code;
	for (unsigned i = 0; drive && i < status->slots; i++)
		if (status->member[i].state != MEMBER_NONE && !strcmp(status->member[i].path, drive))
			number = i;
	/* by another name of it, such as a link */
	for (unsigned i = 0; drive && number == UINT64_MAX && i < status->slots; i++)
		if (status->member[i].state != MEMBER_NONE && drive_path_same(status->member[i].path, drive))
			number = i;
	if (drive && number == UINT64_MAX)
		return error_set(admin->err, -ENOENT, "array %s: drive %.200s is no member of it", status->name, drive);
	if (number >= status->slots || status->member[number].state == MEMBER_NONE)
		return error_set(admin->err, -ENOENT, "array %s: there is no such slot; it has 0 to %u", status->name,
			status->members - 1);
	*slot = (unsigned)number;
	return 0;
}

static void settle_progress(void *arg, const struct rebuild_status *status)
{
	struct admin *admin = arg;

	if (!admin->progress || !status->running)
		return;
	json_t *object = json_object();
	admin_put_number(object, "done", status->done_bytes);
	admin_put_number(object, "total", status->total_bytes);
	admin_put_number(object, "eta_seconds", status->eta_ns / NSEC_PER_SEC);
	admin_put_string(object, "what", "rebuild");
	admin->progress(admin->progress_arg, object);
	json_decref(object);
}

/* Without a server: what was begun is carried out here. */
static int settle_here(struct admin *admin, struct storage_array *sa)
{
	if (admin->server)
		return 0;
	int rc = array_keep(sa->array, admin->err);
	if (rc < 0)
		return rc;
	(void)array_settled(sa->array, settle_progress, admin);
	return 0;
}

static json_t *slot_result(struct storage_array *sa, struct array_status *status, unsigned slot)
{
	json_t *result = json_object();

	array_status(sa->array, status);
	admin_put_string(result, "name", sa->name);
	admin_put_number(result, "slot", slot);
	admin_put_string(result, "member_state", member_state_name(status->member[slot].state));
	admin_put_string(result, "drive", status->member[slot].path);
	admin_put_string(result, "state", status->stopped ? "stopped" : status->degraded ? "degraded" : "healthy");
	admin_put(result, "rebuild", admin_rebuild_json(&status->rebuild));
	return result;
}

/* The array that is named in the request, and its status on the heap. */
static struct storage_array *array_named(struct admin *admin, struct array_status **status)
{
	const char *name = admin_string(admin, "name");
	struct storage_array *sa = name ? admin_array(admin, name) : NULL;

	*status = sa ? calloc(1, sizeof(**status)) : NULL;
	if (!*status)
		return NULL;
	array_status(sa->array, *status);
	return sa;
}

json_t *admin_array_add(struct admin *admin)
{
	struct array_status *status;
	struct member_add how = {.slot = -1};
	const char *drive = admin_string(admin, "drive");
	unsigned slot = 0;
	json_t *result = NULL;
	struct storage_array *sa = drive ? array_named(admin, &status) : NULL;

	if (!sa)
		return NULL;
	if (admin_bool(admin, "force", &how.force) == 0 && admin_bool(admin, "spare", &how.spare) == 0 &&
		array_add(sa->array, drive, &how, &slot, admin->err) == 0 && settle_here(admin, sa) == 0)
		result = slot_result(sa, status, slot);
	free(status);
	return result;
}

json_t *admin_array_remove(struct admin *admin)
{
	struct array_status *status;
	unsigned slot = 0;
	json_t *result = NULL;
	struct storage_array *sa = array_named(admin, &status);

	if (!sa)
		return NULL;
	if (admin_slot(admin, status, &slot) == 0 && array_remove(sa->array, slot, admin->err) == 0)
		result = slot_result(sa, status, slot);
	free(status);
	return result;
}

json_t *admin_array_replace(struct admin *admin)
{
	struct array_status *status;
	const char *with = NULL;
	bool force = false;
	unsigned slot = 0;
	json_t *result = NULL;
	struct storage_array *sa = array_named(admin, &status);

	if (!sa)
		return NULL;
	if (admin_slot(admin, status, &slot) == 0 && admin_string_optional(admin, "with", &with) == 0 &&
		admin_bool(admin, "force", &force) == 0 &&
		array_replace(sa->array, slot, with, force, admin->err) == 0 && settle_here(admin, sa) == 0)
		result = slot_result(sa, status, slot);
	free(status);
	return result;
}

json_t *admin_array_rebuild(struct admin *admin)
{
	struct array_status *status;
	const char *action = NULL;
	uint64_t target = UINT64_MAX;
	json_t *result = NULL;
	struct storage_array *sa = array_named(admin, &status);

	if (!sa)
		return NULL;
	if (admin_string_optional(admin, "action", &action) < 0 || admin_number(admin, "latency_us", &target) < 0)
		goto out;
	if (target != UINT64_MAX) {
		struct rebuild_tuning tuning = {.latency_target_ns = target * 1000};
		array_tune(sa->array, &tuning);
	}
	if (!action || !strcmp(action, "status")) {
		if (settle_here(admin, sa) < 0)
			goto out;
	} else if (!strcmp(action, "pause") || !strcmp(action, "resume")) {
		array_rebuild_pause(sa->array, action[0] == 'p');
	} else {
		error_set(admin->err, -EINVAL, "\"%.40s\" is not an action; expected status, pause or resume", action);
		goto out;
	}
	array_status(sa->array, status);
	result = json_object();
	admin_put_string(result, "name", sa->name);
	admin_put_string(result, "state", status->stopped ? "stopped" : status->degraded ? "degraded" : "healthy");
	admin_put(result, "rebuild", admin_rebuild_json(&status->rebuild));
out:
	free(status);
	return result;
}

json_t *admin_array_scrub(struct admin *admin)
{
	struct array_status *status;
	const char *action = "status";
	json_t *result = NULL;
	int rc = 0;
	struct storage_array *sa = array_named(admin, &status);

	if (!sa)
		return NULL;
	if (admin_string_optional(admin, "action", &action) < 0)
		goto out;
	if (!strcmp(action, "start"))
		rc = array_scrub_start(sa->array, admin->err);
	else if (!strcmp(action, "stop"))
		array_scrub_stop(sa->array);
	else if (!strcmp(action, "pause") || !strcmp(action, "resume"))
		array_scrub_pause(sa->array, action[0] == 'p');
	else if (strcmp(action, "status") != 0)
		rc = error_set(admin->err, -EINVAL,
			"\"%.40s\" is not an action; expected start, pause, resume, stop or status", action);
	if (rc < 0)
		goto out;
	array_status(sa->array, status);
	while (!admin->server && status->scrub.running) {
		if (admin->progress) {
			json_t *object = json_object();
			admin_put_number(object, "done", status->scrub.done_stripes);
			admin_put_number(object, "total", status->scrub.total_stripes);
			admin_put_number(object, "eta_seconds", status->scrub.eta_ns / NSEC_PER_SEC);
			admin_put_string(object, "what", "scrub");
			admin->progress(admin->progress_arg, object);
			json_decref(object);
		}
		fiber_sleep(100 * NSEC_PER_MSEC);
		array_status(sa->array, status);
	}
	result = json_object();
	admin_put_string(result, "name", sa->name);
	admin_put(result, "scrub", admin_scrub_json(&status->scrub));
out:
	free(status);
	return result;
}

/* Marks drives as spares of the shared pool, or takes the mark away. */
static json_t *pool_change(struct admin *admin, bool add)
{
	const char **drives;
	unsigned count;
	bool force = false;
	json_t *list = json_array();

	if (admin_strings(admin, "drives", &drives, &count) < 0 || admin_bool(admin, "force", &force) < 0 || !count) {
		if (!count && !admin->err->code)
			error_set(admin->err, -EINVAL, "argument \"drives\" is missing");
		json_decref(list);
		return NULL;
	}
	for (unsigned i = 0; i < count; i++) {
		int rc = add ? pool_add(drives[i], force, admin->err) : pool_remove(drives[i], admin->err);
		if (rc < 0) {
			free(drives);
			json_decref(list);
			return NULL;
		}
		log_info("admin", "shared pool %s drive=%s", add ? "has a new spare" : "gives up a spare", drives[i]);
		json_array_append_new(list, json_string(drives[i]));
	}
	free(drives);
	json_t *result = json_object();
	admin_put(result, "drives", list);
	return result;
}

json_t *admin_drive_spare(struct admin *admin)
{
	return pool_change(admin, true);
}

json_t *admin_drive_release(struct admin *admin)
{
	return pool_change(admin, false);
}
