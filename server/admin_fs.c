/*
 * Admin commands about file systems. In the server a file system that a command touches stays mounted, so that an
 * export of it can follow by a reload; offline each is mounted for the length of the command, and read-only where
 * the command only looks (the tool says so in struct storage).
 *
 * A check may take hours: it does not hold the storage's lock, but counts as a user of its file system, which
 * keeps it mounted. It ends early when the server stops, or when nobody listens any more. Its faults come from
 * whichever reactor finds them, its progress too; both are left in memory, and a ticker fiber of reactor 0 passes the
 * progress on four times a second.
 */
#include "server/admin_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK_FAULTS_MAX 1000 /* told in words; all are counted */

/* ------------------------------------------------------------------------------------------------
 * What a file system looks like
 */

static json_t *export_paths_json(const struct storage_fs *sf)
{
	struct exports *exports = exports_get();
	json_t *list = json_array();

	for (unsigned i = 0; exports && i < exports->count; i++)
		if (exports->export[i].filesystem == sf)
			json_array_append_new(list, json_string(exports->export[i].path));
	if (exports)
		exports_put(exports);
	return list;
}

static void volume_put(struct admin *admin, const struct storage_fs *sf, json_t *object)
{
	char array[RAID_NAME_MAX + 1];
	struct volume_info *info = calloc(RAID_VOLUMES_MAX, sizeof(*info));

	snprintf(array, sizeof(array), "%.*s", (int)strcspn(sf->name, "/"), sf->name);
	struct storage_array *sa = storage_array_find(admin->storage, array);
	unsigned count = info && sa ? volume_list(sa->array, info) : 0;
	for (unsigned i = 0; i < count; i++) {
		if (strcmp(info[i].name, sf->name + strlen(array) + 1) != 0)
			continue;
		admin_put_number(object, "volume_bytes", info[i].bytes);
		admin_put_uuid(object, "volume_uuid", &info[i].uuid);
	}
	free(info);
}

static void details_put(struct fs *fs, json_t *object)
{
	struct fs_status s = {0};

	fs_status(fs, &s);
	admin_put_uuid(object, "uuid", fs_uuid(fs));
	admin_put(object, "read_only", json_boolean(s.read_only));
	admin_put_number(object, "inodes", s.inodes);
	admin_put_number(object, "checkpoints", s.checkpoints);
	admin_put_number(object, "transactions", s.transactions);
	admin_put_number(object, "log_bytes", s.log_bytes);
	admin_put_number(object, "log_used_bytes", s.log_used_bytes);
	admin_put_number(object, "log_capacity_bytes", s.log_capacity_bytes);
	admin_put_number(object, "cached_nodes", s.cached_nodes);
	admin_put_number(object, "dirty_nodes", s.dirty_nodes);
	admin_put_number(object, "cached_inodes", s.cached_inodes);
	admin_put_number(object, "dirty_bytes", s.dirty_bytes);
	admin_put_number(object, "cache_bytes", s.cache_bytes);
	admin_put_number(object, "cache_limit_bytes", s.cache_limit_bytes);
	admin_put_number(object, "cache_hits", s.cache_hits);
	admin_put_number(object, "cache_misses", s.cache_misses);
	admin_put_number(object, "cache_evictions", s.cache_evictions);
	admin_put_number(object, "read_ahead_blocks", s.ahead_blocks);
	admin_put_number(object, "stripes_total", s.stripes_total);
	admin_put_number(object, "stripes_free", s.stripes_free);
	admin_put_number(object, "checksum_errors", s.checksum_errors);
	admin_put_number(object, "checksum_repairs", s.checksum_repairs);
	admin_put_number(object, "replayed", s.replayed);
}

static json_t *filesystem_json(struct admin *admin, struct storage_fs *sf, bool details)
{
	json_t *object = json_object();
	struct fs_statfs space = {0};

	admin_put_string(object, "name", sf->name);
	admin_put(object, "mounted", json_boolean(sf->fs != NULL));
	if (sf->problem[0])
		admin_put_string(object, "problem", sf->problem);
	volume_put(admin, sf, object);
	if (sf->fs && fs_statfs(sf->fs, &space) == 0) {
		admin_put_number(object, "bytes_total", space.bytes_total);
		admin_put_number(object, "bytes_free", space.bytes_free);
		admin_put_number(object, "bytes_available", space.bytes_available);
		admin_put_number(object, "files_total", space.files_total);
		admin_put_number(object, "files_free", space.files_free);
	}
	if (sf->fs && details)
		details_put(sf->fs, object);
	admin_put(object, "exports", admin->server ? export_paths_json(sf) : json_array());
	return object;
}

json_t *admin_filesystems_json(struct admin *admin, const char *only, bool details)
{
	json_t *list = json_array();

	list_foreach (n, &admin->storage->filesystems) {
		struct storage_fs *sf = container_of(n, struct storage_fs, node);
		if (!only || !strcmp(sf->name, only))
			json_array_append_new(list, filesystem_json(admin, sf, details));
	}
	return list;
}

/* Offline: opens every array that the drives hold; those that cannot be opened are problems of the result. */
static int arrays_open(struct admin *admin)
{
	json_t *arrays;

	if (admin->server)
		return 0;
	arrays = admin_arrays_json(admin, NULL, true);
	if (!arrays)
		return -EIO;
	for (size_t i = 0; i < json_array_size(arrays); i++) {
		const char *problem = json_string_value(json_object_get(json_array_get(arrays, i), "problem"));
		if (problem)
			json_array_append_new(admin->problems, json_string(problem));
	}
	json_decref(arrays);
	return 0;
}

json_t *admin_fs_list(struct admin *admin)
{
	if (arrays_open(admin) < 0)
		return NULL;
	json_t *result = json_object();
	admin_put(result, "filesystems", admin_filesystems_json(admin, NULL, false));
	return result;
}

json_t *admin_fs_status(struct admin *admin)
{
	const char *name = NULL;
	struct error why;

	if (admin_string_optional(admin, "name", &name) < 0)
		return NULL;
	if (name) {
		struct storage_fs *sf = admin_filesystem(admin, name);
		if (!sf || (!admin->server && storage_fs_mount(admin->storage, sf, storage_cache_left(admin->storage),
						      admin->err) < 0))
			return NULL;
	} else if (!admin->server) {
		if (arrays_open(admin) < 0)
			return NULL;
		list_foreach (n, &admin->storage->filesystems)
			if (storage_fs_mount(admin->storage, container_of(n, struct storage_fs, node), 1, &why) < 0)
				json_array_append_new(admin->problems, json_string(why.text));
	}
	json_t *result = json_object();
	admin_put(result, "filesystems", admin_filesystems_json(admin, name, true));
	return result;
}

/* ------------------------------------------------------------------------------------------------
 * Create and destroy
 */

/* A volume of that name is there: only one without a file system, left by a creation that was cut short, may be used.
 */
static int leftover_check(struct admin *admin, struct storage_fs *sf, struct volume *volume)
{
	struct error why = {0};
	int rc = fs_probe(volume, &why);

	if (rc == -ENOENT)
		return 0;
	if (rc == 0)
		return error_set(admin->err, -EEXIST,
			"file system %s exists already; furrow fs destroy %s would remove it", sf->name, sf->name);
	return error_set(
		admin->err, -EEXIST, "file system %s exists already, but cannot be used: %.300s", sf->name, why.text);
}

json_t *admin_fs_create(struct admin *admin)
{
	char array[RAID_NAME_MAX + 1];
	/* Whoever makes it is the one who may write to it, before others are let in. */
	struct fs_create_options options = {.root_uid = geteuid(), .root_gid = getegid()};
	const char *name = admin_string(admin, "name");
	struct volume *volume = NULL;
	uint64_t bytes = 0;
	bool made = false;

	if (!name || admin_number(admin, "bytes", &bytes) < 0)
		return NULL;
	if (!config_filesystem_valid(name)) {
		error_set(admin->err, -EINVAL, "\"%.64s\" is not a name for a file system; expected ARRAY/NAME", name);
		return NULL;
	}
	snprintf(array, sizeof(array), "%.*s", (int)strcspn(name, "/"), name);
	const char *volume_part = name + strlen(array) + 1;
	struct storage_array *sa = admin_array(admin, array);
	if (!sa)
		return NULL;
	struct storage_fs *sf = storage_fs_find(admin->storage, name);
	if (sf && sf->fs) {
		error_set(admin->err, -EEXIST, "file system %s exists already and is mounted", name);
		return NULL;
	}
	int rc = 0;
	if (!sf) {
		rc = volume_create(sa->array, volume_part, bytes, admin->err);
		made = rc == 0;
	}
	if (rc == 0)
		rc = volume_open(sa->array, volume_part, &volume, admin->err);
	if (rc == 0 && sf)
		rc = leftover_check(admin, sf, volume);
	if (rc == 0)
		rc = fs_create(volume, &options, admin->err);
	if (volume)
		volume_close(volume);
	if (rc == 0)
		rc = storage_volumes_refresh(admin->storage, sa, admin->err);
	else if (made)
		volume_destroy(sa->array, volume_part, NULL);
	if (rc < 0) {
		if (!strstr(admin->err->text, volume_part))
			error_prefix(admin->err, "file system %s", name);
		return NULL;
	}
	sf = storage_fs_find(admin->storage, name);
	/* The server mounts it, ready to be exported; that this works is worth knowing now. */
	if (admin->server && sf &&
		storage_fs_mount(admin->storage, sf, storage_cache_left(admin->storage), admin->err) < 0)
		return NULL;
	log_info("admin", "file system created fs=%s", name);
	json_t *result = json_object();
	admin_put_string(result, "name", name);
	if (sf)
		volume_put(admin, sf, result);
	return result;
}

json_t *admin_fs_destroy(struct admin *admin)
{
	const char *name = admin_string(admin, "name");
	struct storage_fs *sf = name ? admin_filesystem(admin, name) : NULL;
	char array[RAID_NAME_MAX + 1];

	if (!sf)
		return NULL;
	if (admin_filesystem_busy(admin, sf))
		return NULL;
	snprintf(array, sizeof(array), "%.*s", (int)strcspn(name, "/"), name);
	struct storage_array *sa = storage_array_find(admin->storage, array);
	storage_fs_unmount(admin->storage, sf);
	if (volume_destroy(sa->array, name + strlen(array) + 1, admin->err) < 0 ||
		storage_volumes_refresh(admin->storage, sa, admin->err) < 0)
		return NULL;
	log_warning("admin", "file system destroyed fs=%s", name);
	json_t *result = json_object();
	admin_put_string(result, "name", name);
	return result;
}

/* ------------------------------------------------------------------------------------------------
 * Check
 */

struct check {
	struct admin *admin;
	pthread_mutex_t lock; /* of faults: any reactor may find one */
	json_t *faults;
	_Atomic uint64_t done, total;
	_Atomic bool ended, alone; /* alone: nobody listens any more */
	struct wait_queue end;	   /* the ticker sleeps here */
	struct wait_group ticking;
};

static void check_report(void *arg, const char *problem)
{
	struct check *check = arg;

	pthread_mutex_lock(&check->lock);
	if (json_array_size(check->faults) < CHECK_FAULTS_MAX)
		json_array_append_new(check->faults, json_string(problem));
	pthread_mutex_unlock(&check->lock);
}

static bool check_stopped(const struct check *check)
{
	return check->admin->server && atomic_load(&check->admin->server->stopping);
}

static bool check_progress(void *arg, uint64_t done, uint64_t total)
{
	struct check *check = arg;

	atomic_store_explicit(&check->done, done, memory_order_relaxed);
	atomic_store_explicit(&check->total, total, memory_order_relaxed);
	return !check_stopped(check) && !atomic_load(&check->alone);
}

static void check_ticker(void *arg)
{
	struct check *check = arg;

	while (!atomic_load(&check->ended)) {
		wait_queue_wait(&check->end, now_ns() + 250 * NSEC_PER_MSEC);
		if (atomic_load(&check->ended) || !atomic_load(&check->total))
			continue;
		json_t *progress = json_object();
		admin_put_string(progress, "what", "checking");
		admin_put_number(progress, "done", atomic_load(&check->done));
		admin_put_number(progress, "total", atomic_load(&check->total));
		if (!check->admin->progress(check->admin->progress_arg, progress))
			atomic_store(&check->alone, true);
		json_decref(progress);
	}
	wait_group_done(&check->ticking, 0);
}

static json_t *check_result_json(const char *name, const struct fs_check_result *result, json_t *faults)
{
	json_t *object = json_object();

	admin_put_string(object, "name", name);
	admin_put_number(object, "inodes", result->inodes);
	admin_put_number(object, "directories", result->directories);
	admin_put_number(object, "extents", result->extents);
	admin_put_number(object, "data_blocks", result->data_blocks);
	admin_put_number(object, "nodes", result->nodes);
	admin_put_number(object, "errors", result->errors);
	admin_put(object, "faults", faults);
	return object;
}

/* The lines go to CHECK's faults. The storage is locked. */
static int repair_run(struct admin *admin, struct storage_fs *sf, struct check *check)
{
	struct fs_repair_result result;

	if (admin_filesystem_busy(admin, sf))
		return -EBUSY;
	log_warning("admin", "file system is being repaired fs=%s", sf->name);
	return storage_fs_repair(admin->storage, sf, check_report, check, &result, admin->err);
}

json_t *admin_fs_check(struct admin *admin)
{
	const char *name = admin_string(admin, "name");
	struct check check = {.admin = admin, .lock = PTHREAD_MUTEX_INITIALIZER};
	struct fs_check_result result = {0};
	json_t *repairs = NULL;
	bool data = true, repair = false;
	int rc = 0;

	if (!name || admin_bool(admin, "data", &data) < 0 || admin_bool(admin, "repair", &repair) < 0)
		return NULL;
	fiber_lock(&admin->storage->lock);
	struct storage_fs *sf = admin_filesystem(admin, name);
	if (sf && repair) {
		repairs = check.faults = json_array();
		rc = repair_run(admin, sf, &check);
	}
	if (rc == 0)
		rc = sf ? storage_fs_mount(admin->storage, sf, storage_cache_left(admin->storage), admin->err)
			: -ENOENT;
	if (rc == 0)
		storage_fs_hold(sf);
	fiber_unlock(&admin->storage->lock);
	if (rc < 0) {
		json_decref(repairs);
		return NULL;
	}

	check.faults = json_array();
	wait_queue_init(&check.end);
	wait_group_init(&check.ticking);
	if (admin->progress) {
		wait_group_add(&check.ticking, 1);
		if (fiber_spawn(check_ticker, &check) < 0)
			wait_group_done(&check.ticking, 0);
	}
	rc = fs_check(sf->fs, data, check_report, check_progress, &check, &result);
	atomic_store(&check.ended, true);
	wait_queue_wake_all(&check.end);
	wait_group_wait(&check.ticking);
	storage_fs_release(sf);
	/* A check that found faults has done its work; one that could not read on has not. */
	if (rc < 0 && !result.errors) {
		json_decref(check.faults);
		json_decref(repairs);
		error_set(admin->err, rc, "file system %s: the check could not be finished: %s", name,
			rc == -ECANCELED ? "the server is stopping" : strerror(-rc));
		return NULL;
	}
	json_t *object = check_result_json(name, &result, check.faults);
	if (repairs)
		admin_put(object, "repairs", repairs);
	return object;
}
