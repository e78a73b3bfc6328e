/*
 * Admin commands about drives and arrays. What is known comes from two places: the arrays that are open here tell
 * everything about themselves, and a scan of the drives tells of those that are not (another host's, one that
 * is not needed, one that cannot start). Offline, `array.status` opens what it shows, for a member's true state
 * is only known to an assembled array; the server shows what it holds and opens nothing because somebody looked.
 *
 * Under the storage's lock; everything here may wait. A struct array_status is some 30 KiB: it lives on the heap.
 */
#include "server/admin_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------
 * What an array looks like
 */

static json_t *member_json(const struct array_status *status, unsigned slot)
{
	json_t *object = json_object();

	admin_put_number(object, "slot", slot);
	admin_put_string(object, "state", member_state_name(status->member[slot].state));
	admin_put_string(object, "path", status->member[slot].path);
	admin_put_string(object, "model", status->member[slot].model);
	admin_put_string(object, "serial", status->member[slot].serial);
	admin_put_uuid(object, "uuid", &status->member[slot].uuid);
	admin_put_number(object, "bytes", status->member[slot].bytes);
	admin_put_number(object, "read_errors", status->member[slot].read_errors);
	admin_put_number(object, "write_errors", status->member[slot].write_errors);
	admin_put_number(object, "checksum_errors", status->member[slot].checksum_errors);
	admin_put_number(object, "timeouts", status->member[slot].timeouts);
	admin_put(object, "slow", json_boolean(status->member[slot].slow));
	if (status->member[slot].smart_valid) {
		const struct drive_smart *smart = &status->member[slot].smart;
		json_t *health = json_object();
		admin_put_number(health, "critical_warning", smart->critical_warning);
		admin_put_number(
			health, "temperature_celsius", smart->temperature > 273 ? smart->temperature - 273 : 0);
		admin_put_number(health, "percent_used", smart->percent_used);
		admin_put_number(health, "spare_percent", smart->spare_percent);
		admin_put_number(health, "spare_threshold", smart->spare_threshold);
		admin_put_number(health, "media_errors", smart->media_errors);
		admin_put_number(health, "power_on_hours", smart->power_on_hours);
		admin_put_number(health, "unsafe_shutdowns", smart->unsafe_shutdowns);
		admin_put(object, "health", health);
	}
	admin_put_number(object, "reads", status->member[slot].reads);
	admin_put_number(object, "writes", status->member[slot].writes);
	admin_put_number(object, "read_bytes", status->member[slot].read_bytes);
	admin_put_number(object, "write_bytes", status->member[slot].write_bytes);
	admin_put_number(object, "flushes", status->member[slot].flushes);
	admin_put_number(object, "fua_writes", status->member[slot].fua_writes);
	return object;
}

static const char *array_state(const struct array_status *status)
{
	return status->stopped ? "stopped" : status->degraded ? "degraded" : "healthy";
}

static json_t *array_json(struct admin *admin, struct storage_array *sa)
{
	struct array_status *status = calloc(1, sizeof(*status));
	json_t *object = json_object(), *members = json_array(), *filesystems = json_array();
	size_t length = strlen(sa->name);

	if (status) {
		array_status(sa->array, status);
		admin_put_string(object, "name", sa->name);
		admin_put_uuid(object, "uuid", &status->uuid);
		admin_put_string(object, "state", array_state(status));
		admin_put_number(object, "level", status->level);
		admin_put_number(object, "groups", status->groups);
		admin_put_number(object, "k", status->k);
		admin_put_number(object, "m", status->m);
		admin_put_number(object, "strip_bytes", status->strip_bytes);
		admin_put_number(object, "events", status->events);
		admin_put_number(object, "data_bytes", status->data_bytes);
		admin_put_number(object, "free_bytes", status->free_bytes);
		admin_put(object, "rebuild", admin_rebuild_json(&status->rebuild));
		admin_put(object, "scrub", admin_scrub_json(&status->scrub));
		for (unsigned i = 0; i < status->slots && i < RAID_DRIVES_MAX; i++)
			if (status->member[i].state != MEMBER_NONE)
				json_array_append_new(members, member_json(status, i));
		free(status);
	}
	list_foreach (n, &admin->storage->filesystems) {
		const struct storage_fs *sf = container_of(n, struct storage_fs, node);
		if (!strncmp(sf->name, sa->name, length) && sf->name[length] == '/')
			json_array_append_new(filesystems, json_string(sf->name + length + 1));
	}
	admin_put(object, "members", members);
	admin_put(object, "filesystems", filesystems);
	return object;
}

static const char *content_name(enum drive_content content)
{
	switch (content) {
	case DRIVE_EMPTY:
		return "empty";
	case DRIVE_MEMBER:
		return "member";
	case DRIVE_FOREIGN:
		return "foreign";
	case DRIVE_DAMAGED:
		return "damaged";
	case DRIVE_UNREADABLE:
		return "unreadable";
	case DRIVE_POOL:
		return "pool";
	}
	return "unknown";
}

static json_t *drive_json(struct admin *admin, const struct drive_info *drive)
{
	static const char *const kinds[] = {"nvme", "block", "file"};
	json_t *object = json_object();
	bool used = drive->content == DRIVE_MEMBER && storage_array_find(admin->storage, drive->array_name);

	admin_put_string(object, "path", drive->path);
	admin_put_string(object, "kind", (unsigned)drive->kind < 3 ? kinds[drive->kind] : "unknown");
	admin_put_string(object, "model", drive->model);
	admin_put_string(object, "serial", drive->serial);
	admin_put_number(object, "bytes", drive->bytes);
	admin_put_number(object, "lba_bytes", drive->lba_bytes);
	admin_put_number(object, "transfer_max", drive->transfer_max);
	admin_put(object, "volatile_cache", json_boolean(drive->volatile_cache));
	admin_put_string(object, "content", content_name(drive->content));
	admin_put_string(object, "holds", drive->holds);
	admin_put(object, "in_use", json_boolean(used && admin->server));
	if (drive->content == DRIVE_MEMBER) {
		admin_put_string(object, "array", drive->array_name);
		admin_put_uuid(object, "array_uuid", &drive->array);
		admin_put_uuid(object, "member_uuid", &drive->member);
		admin_put_number(object, "slot", drive->slot);
		admin_put_number(object, "events", drive->events);
	}
	return object;
}

static int scan_storage(struct admin *admin, struct raid_scan *scan)
{
	return raid_scan((const char *const *)admin->storage->drives, admin->storage->drive_count, scan, admin->err);
}

/* The first drive of each array that the scan found and that is not open here. */
static bool scan_first_of_closed(struct admin *admin, const struct raid_scan *scan, unsigned i)
{
	if (scan->drive[i].content != DRIVE_MEMBER || storage_array_find(admin->storage, scan->drive[i].array_name))
		return false;
	for (unsigned j = 0; j < i; j++)
		if (scan->drive[j].content == DRIVE_MEMBER &&
			!memcmp(&scan->drive[j].array, &scan->drive[i].array, sizeof(struct uuid)))
			return false;
	return true;
}

static json_t *closed_array_json(const struct raid_scan *scan, unsigned first, const char *problem)
{
	json_t *object = json_object(), *members = json_array();

	admin_put_string(object, "name", scan->drive[first].array_name);
	admin_put_uuid(object, "uuid", &scan->drive[first].array);
	admin_put_string(object, "state", problem ? "failed" : "not open");
	if (problem)
		admin_put_string(object, "problem", problem);
	for (unsigned i = first; i < scan->count; i++) {
		const struct drive_info *drive = &scan->drive[i];
		if (drive->content != DRIVE_MEMBER ||
			memcmp(&drive->array, &scan->drive[first].array, sizeof(struct uuid)) != 0)
			continue;
		json_t *member = json_object();
		admin_put_number(member, "slot", drive->slot);
		admin_put_string(member, "state", "found");
		admin_put_string(member, "path", drive->path);
		admin_put_string(member, "model", drive->model);
		admin_put_string(member, "serial", drive->serial);
		admin_put_uuid(member, "uuid", &drive->member);
		admin_put_number(member, "bytes", drive->bytes);
		json_array_append_new(members, member);
	}
	admin_put(object, "members", members);
	admin_put(object, "filesystems", json_array());
	return object;
}

/* Arrays that are open, and with SCAN those that the drives hold. With ONLY, that one; an empty list when it is
 * nowhere. */
json_t *admin_arrays_json(struct admin *admin, const char *only, bool scan_too)
{
	json_t *list = json_array();
	struct raid_scan scan = {0};

	if (scan_too && scan_storage(admin, &scan) < 0) {
		json_decref(list);
		return NULL;
	}
	for (unsigned i = 0; i < scan.count; i++) {
		const char *name = scan.drive[i].array_name;
		struct storage_array *sa;
		struct error why;
		if (!scan_first_of_closed(admin, &scan, i) || (only && strcmp(name, only) != 0))
			continue;
		/* Offline nobody else may have it, so it is opened; where that fails, the reason is what matters. */
		if (admin->server)
			json_array_append_new(list, closed_array_json(&scan, i, NULL));
		else if (storage_array_open(admin->storage, name, &sa, &why) < 0)
			json_array_append_new(list, closed_array_json(&scan, i, why.text));
	}
	list_foreach (n, &admin->storage->arrays) {
		struct storage_array *sa = container_of(n, struct storage_array, node);
		if (!only || !strcmp(sa->name, only))
			json_array_append_new(list, array_json(admin, sa));
	}
	raid_scan_free(&scan);
	return list;
}

json_t *admin_array_status(struct admin *admin)
{
	const char *name = NULL;

	if (admin_string_optional(admin, "name", &name) < 0)
		return NULL;
	json_t *list = admin_arrays_json(admin, name, true);
	if (!list)
		return NULL;
	if (name && !json_array_size(list)) {
		struct storage_array *sa;
		json_decref(list);
		storage_array_open(admin->storage, name, &sa, admin->err); /* says that it is nowhere */
		return NULL;
	}
	json_t *result = json_object();
	admin_put(result, "arrays", list);
	return result;
}

json_t *admin_array_list(struct admin *admin)
{
	json_t *list = admin_arrays_json(admin, NULL, true);

	if (!list)
		return NULL;
	json_t *result = json_object();
	admin_put(result, "arrays", list);
	return result;
}

json_t *admin_array_examine(struct admin *admin)
{
	const char **drives;
	unsigned count;
	json_t *list = json_array();

	if (admin_strings(admin, "drives", &drives, &count) < 0 || !count) {
		if (!count && !admin->err->code)
			error_set(admin->err, -EINVAL, "argument \"drives\" is missing");
		json_decref(list);
		return NULL;
	}
	for (unsigned i = 0; i < count; i++) {
		char *text = NULL;
		size_t bytes = 0;
		FILE *out = open_memstream(&text, &bytes);
		int rc = out ? drive_examine(drives[i], out, admin->err)
			     : error_set(admin->err, -ENOMEM, "out of memory");
		if (out)
			fclose(out);
		if (rc < 0) {
			free(text);
			free(drives);
			json_decref(list);
			return NULL;
		}
		json_t *object = json_object();
		admin_put_string(object, "path", drives[i]);
		admin_put_string(object, "text", text ? text : "");
		json_array_append_new(list, object);
		free(text);
	}
	free(drives);
	json_t *result = json_object();
	admin_put(result, "drives", list);
	return result;
}

json_t *admin_drive_list(struct admin *admin)
{
	const char **drives;
	unsigned count;
	struct raid_scan scan = {0};

	if (admin_strings(admin, "drives", &drives, &count) < 0)
		return NULL;
	int rc = count ? raid_scan(drives, count, &scan, admin->err) : scan_storage(admin, &scan);
	free(drives);
	if (rc < 0)
		return NULL;
	json_t *list = json_array();
	for (unsigned i = 0; i < scan.count; i++)
		json_array_append_new(list, drive_json(admin, &scan.drive[i]));
	raid_scan_free(&scan);
	json_t *result = json_object(), *patterns = json_array();
	for (unsigned i = 0; i < admin->storage->drive_count; i++)
		json_array_append_new(patterns, json_string(admin->storage->drives[i]));
	admin_put(result, "patterns", patterns);
	admin_put(result, "drives", list);
	return result;
}

/* ------------------------------------------------------------------------------------------------
 * What changes arrays
 */

json_t *admin_array_create(struct admin *admin)
{
	const char **drives = NULL, **spares = NULL;
	struct array_create create = {0};
	uint64_t level = 0, groups = 0, strip = 0;
	json_t *result = NULL;

	create.name = admin_string(admin, "name");
	if (!create.name || admin_number(admin, "level", &level) < 0 || admin_number(admin, "groups", &groups) < 0 ||
		admin_number(admin, "strip_bytes", &strip) < 0 || admin_bool(admin, "force", &create.force) < 0 ||
		admin_strings(admin, "drives", &drives, &create.count) < 0 ||
		admin_strings(admin, "spares", &spares, &create.spare_count) < 0)
		goto out;
	if (!config_name_valid(create.name, strlen(create.name))) {
		error_set(admin->err, -EINVAL,
			"\"%.64s\" is not a name for an array; expected at most %d letters, digits, '.', '_' or '-'",
			create.name, RAID_NAME_MAX);
		goto out;
	}
	if (level > UINT32_MAX || groups > UINT32_MAX || strip > UINT32_MAX) {
		error_set(admin->err, -EINVAL, "array %s: level, groups or strip is out of range", create.name);
		goto out;
	}
	create.level = (unsigned)level;
	create.groups = (unsigned)groups;
	create.strip_bytes = (uint32_t)strip;
	create.drives = drives;
	create.spares = spares;
	if (array_create(&create, admin->err) < 0)
		goto out;
	result = json_object();
	admin_put_string(result, "name", create.name);
	log_info("admin", "array created array=%s level=%u drives=%u", create.name, create.level, create.count);
out:
	free(drives);
	free(spares);
	return result;
}

json_t *admin_storage_rescan(struct admin *admin)
{
	struct raid_scan scan = {0};
	json_t *opened = json_array();

	if (scan_storage(admin, &scan) < 0) {
		json_decref(opened);
		return NULL;
	}
	for (unsigned i = 0; i < scan.count; i++) {
		struct storage_array *sa;
		struct error why;
		if (!scan_first_of_closed(admin, &scan, i))
			continue;
		if (storage_array_open(admin->storage, scan.drive[i].array_name, &sa, &why) == 0)
			json_array_append_new(opened, json_string(sa->name));
		else
			json_array_append_new(admin->problems, json_string(why.text));
	}
	raid_scan_free(&scan);
	json_t *result = json_object();
	admin_put(result, "opened", opened);
	return result;
}

json_t *admin_array_fail(struct admin *admin)
{
	const char *name = admin_string(admin, "name");
	struct storage_array *sa = name ? admin_array(admin, name) : NULL;
	struct array_status *status = sa ? calloc(1, sizeof(*status)) : NULL;
	json_t *result = NULL;
	unsigned slot = 0;

	if (!status)
		return NULL;
	array_status(sa->array, status);
	if (admin_slot(admin, status, &slot) == 0 && array_fail(sa->array, slot, admin->err) == 0) {
		array_status(sa->array, status);
		log_warning("admin", "member taken out by command array=%s slot=%u drive=%s", name, slot,
			status->member[slot].path);
		result = json_object();
		admin_put_string(result, "name", name);
		admin_put_number(result, "slot", slot);
		admin_put_string(result, "state", array_state(status));
	}
	free(status);
	return result;
}

json_t *admin_array_destroy(struct admin *admin)
{
	struct storage *storage = admin->storage;
	struct raid_scan scan = {0};
	const char *name = admin_string(admin, "name");

	if (!name)
		return NULL;
	size_t length = strlen(name);
	list_foreach (n, &storage->filesystems) {
		const struct storage_fs *sf = container_of(n, struct storage_fs, node);
		if (!strncmp(sf->name, name, length) && sf->name[length] == '/' && admin_filesystem_busy(admin, sf))
			return NULL;
	}
	struct storage_array *sa = storage_array_find(storage, name);
	if (sa)
		storage_array_close(storage, sa);
	if (scan_storage(admin, &scan) < 0)
		return NULL;
	int rc = array_destroy(&scan, name, admin->err);
	raid_scan_free(&scan);
	if (rc < 0)
		return NULL;
	log_warning("admin", "array destroyed array=%s", name);
	json_t *result = json_object();
	admin_put_string(result, "name", name);
	return result;
}
