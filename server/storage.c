/*
 * What is open: the arrays that were assembled from the drives, and the file systems that are mounted on them.
 *
 * furrowd keeps one struct storage for its life, and `furrow` one for the length of a command that it runs
 * without a server. It lives on reactor 0. Opening, mounting and closing wait; the lock is held meanwhile, so that a
 * reload, a command from the control socket and the start never see each other's half. Readers that do not wait
 * while they walk the lists need no lock.
 *
 * An array that an export needs and that cannot be opened is an error with the array, the drive and the reason in
 * it, and the start ends there: a NAS that comes up with some of its exports missing makes clients see
 * stale handles, and administrators find out from users. Without a list of what is needed (the tool) all
 * that can be opened is, and each file system that cannot be mounted keeps its problem in words.
 *
 * The cache is shared out in equal parts when file systems are mounted; one that comes later (reload) gets what is
 * left, and at least CACHE_LEAST.
 */
#include "server/server_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CACHE_LEAST (16ull << 20)

/* ------------------------------------------------------------------------------------------------
 * Find
 */

struct storage_array *storage_array_find(struct storage *storage, const char *name)
{
	list_foreach (n, &storage->arrays) {
		struct storage_array *sa = container_of(n, struct storage_array, node);
		if (!strcmp(sa->name, name))
			return sa;
	}
	return NULL;
}

struct storage_fs *storage_fs_find(struct storage *storage, const char *name)
{
	list_foreach (n, &storage->filesystems) {
		struct storage_fs *sf = container_of(n, struct storage_fs, node);
		if (!strcmp(sf->name, name))
			return sf;
	}
	return NULL;
}

void storage_fs_hold(struct storage_fs *filesystem)
{
	atomic_fetch_add(&filesystem->users, 1);
}

void storage_fs_release(struct storage_fs *filesystem)
{
	atomic_fetch_sub(&filesystem->users, 1);
}

/* Whether FILESYSTEM ("array/volume") lies on ARRAY. */
static bool fs_on_array(const struct storage_fs *filesystem, const char *array)
{
	size_t length = strlen(array);

	return !strncmp(filesystem->name, array, length) && filesystem->name[length] == '/';
}

/* ------------------------------------------------------------------------------------------------
 * Arrays
 */

int storage_volumes_refresh(struct storage *storage, struct storage_array *array, struct error *err)
{
	struct volume_info *info = calloc(RAID_VOLUMES_MAX, sizeof(*info));

	if (!info)
		return error_set(err, -ENOMEM, "array %s: out of memory", array->name);
	unsigned count = volume_list(array->array, info);
	list_foreach (n, &storage->filesystems) {
		struct storage_fs *sf = container_of(n, struct storage_fs, node);
		bool there = false;
		if (!fs_on_array(sf, array->name) || sf->volume)
			continue;
		for (unsigned i = 0; i < count && !there; i++)
			there = !strcmp(sf->name + strlen(array->name) + 1, info[i].name);
		if (!there) {
			list_remove(&sf->node);
			free(sf);
		}
	}
	for (unsigned i = 0; i < count; i++) {
		char name[sizeof(((struct storage_fs *)0)->name)];
		snprintf(name, sizeof(name), "%s/%s", array->name, info[i].name);
		if (storage_fs_find(storage, name))
			continue;
		struct storage_fs *sf = calloc(1, sizeof(*sf));
		if (!sf) {
			free(info);
			return error_set(err, -ENOMEM, "array %s: out of memory", array->name);
		}
		memcpy(sf->name, name, sizeof(sf->name));
		list_push_back(&storage->filesystems, &sf->node);
	}
	free(info);
	return 0;
}

/*
 * An array that lacks members: the reason may lie on drives that were found, but hold something else. Appends these
 * to the sentence, as far as there is room.
 */
static void strangers_append(const struct raid_scan *scan, struct error *err)
{
	unsigned told = 0, more = 0;

	for (unsigned i = 0; i < scan->count; i++) {
		const struct drive_info *d = &scan->drive[i];
		size_t length = strlen(err->text);
		if (d->content != DRIVE_FOREIGN && d->content != DRIVE_DAMAGED && d->content != DRIVE_UNREADABLE)
			continue;
		if (told == 4 || length + strlen(d->path) + sizeof(d->holds) + 40 > sizeof(err->text)) {
			more++;
			continue;
		}
		snprintf(err->text + length, sizeof(err->text) - length, "; %s%s%s %s",
			told ? "" : "not members of any array here: ", d->path,
			d->content == DRIVE_UNREADABLE ? " cannot be read:" : " holds", d->holds);
		told++;
	}
	size_t length = strlen(err->text);
	if (more && length + 32 < sizeof(err->text))
		snprintf(err->text + length, sizeof(err->text) - length, "; and %u more", more);
}

static int array_take(struct storage *storage, const struct raid_scan *scan, const char *name,
	struct storage_array **out, struct error *err)
{
	struct storage_array *sa = calloc(1, sizeof(*sa));

	if (!sa)
		return error_set(err, -ENOMEM, "array %s: out of memory", name);
	int rc = (storage->read_only ? array_look : array_open)(scan, name, &sa->array, err);
	if (rc < 0) {
		free(sa);
		if (strncmp(err->text, "array ", 6) != 0)
			error_prefix(err, "array %s", name);
		if (rc == -EIO)
			strangers_append(scan, err);
		return rc;
	}
	snprintf(sa->name, sizeof(sa->name), "%s", name);
	list_push_back(&storage->arrays, &sa->node);
	if (storage->keep && !storage->read_only && (rc = array_keep(sa->array, err)) < 0) {
		storage_array_close(storage, sa);
		return rc;
	}
	rc = storage_volumes_refresh(storage, sa, err);
	if (rc < 0) {
		storage_array_close(storage, sa);
		return rc;
	}
	*out = sa;
	return 0;
}

int storage_array_open(struct storage *storage, const char *name, struct storage_array **array, struct error *err)
{
	struct raid_scan scan = {0};

	*array = storage_array_find(storage, name);
	if (*array)
		return 0;
	int rc = raid_scan((const char *const *)storage->drives, storage->drive_count, &scan, err);
	if (rc < 0)
		return rc;
	bool found = false;
	for (unsigned i = 0; i < scan.count && !found; i++)
		found = scan.drive[i].content == DRIVE_MEMBER && !strcmp(scan.drive[i].array_name, name);
	if (found) {
		rc = array_take(storage, &scan, name, array, err);
	} else {
		rc = error_set(err, -ENOENT, "array %s: none of the %u drives that match %s%s is a member of it", name,
			scan.count, storage->drive_count ? storage->drives[0] : "no pattern",
			storage->drive_count > 1 ? " and the other patterns" : "");
		strangers_append(&scan, err);
	}
	raid_scan_free(&scan);
	return rc;
}

void storage_array_close(struct storage *storage, struct storage_array *array)
{
	list_foreach (n, &storage->filesystems) {
		struct storage_fs *sf = container_of(n, struct storage_fs, node);
		if (!fs_on_array(sf, array->name))
			continue;
		storage_fs_unmount(storage, sf);
		list_remove(&sf->node);
		free(sf);
	}
	list_remove(&array->node);
	array_close(array->array);
	free(array);
}

/* ------------------------------------------------------------------------------------------------
 * File systems
 */

int storage_fs_mount(struct storage *storage, struct storage_fs *filesystem, uint64_t cache_bytes, struct error *err)
{
	char array[RAID_NAME_MAX + 1];
	unsigned mounted = 1;

	if (filesystem->fs)
		return 0;
	snprintf(array, sizeof(array), "%.*s", (int)strcspn(filesystem->name, "/"), filesystem->name);
	struct storage_array *sa = storage_array_find(storage, array);
	if (!sa)
		return error_set(err, -ENODEV, "file system %s: array %s is not open", filesystem->name, array);
	list_foreach (n, &storage->filesystems)
		mounted += container_of(n, struct storage_fs, node)->fs != NULL;

	int rc = volume_open(sa->array, strchr(filesystem->name, '/') + 1, &filesystem->volume, err);
	if (rc == 0) {
		struct fs_mount_options options = {
			.read_only = storage->read_only,
			.cache_bytes = cache_bytes,
			.dirty_bytes = arena_total_bytes() / (mounted > 1 ? 4 * mounted : 4),
		};
		rc = fs_mount(filesystem->volume, &options, &filesystem->fs, err);
		if (rc < 0) {
			filesystem->fs = NULL;
			volume_close(filesystem->volume);
		}
	}
	if (rc < 0) {
		filesystem->volume = NULL;
		if (!strstr(err->text, filesystem->name))
			error_prefix(err, "file system %s", filesystem->name);
		snprintf(filesystem->problem, sizeof(filesystem->problem), "%.255s", err->text);
		return rc;
	}
	filesystem->problem[0] = 0;
	filesystem->cache_bytes = cache_bytes;
	storage->cache_given += cache_bytes;
	return 0;
}

int storage_fs_repair(struct storage *storage, struct storage_fs *filesystem, fs_check_report_fn *report, void *arg,
	struct fs_repair_result *result, struct error *err)
{
	char array[RAID_NAME_MAX + 1];

	snprintf(array, sizeof(array), "%.*s", (int)strcspn(filesystem->name, "/"), filesystem->name);
	struct storage_array *sa = storage_array_find(storage, array);
	if (!sa)
		return error_set(err, -ENODEV, "file system %s: array %s is not open", filesystem->name, array);
	if (storage->read_only)
		return error_set(err, -EROFS, "file system %s: the array is open for reading only", filesystem->name);
	storage_fs_unmount(storage, filesystem);
	struct volume *volume;
	int rc = volume_open(sa->array, strchr(filesystem->name, '/') + 1, &volume, err);
	if (rc < 0)
		return rc;
	rc = fs_repair(volume, report, arg, result, err);
	volume_close(volume);
	return rc;
}

int storage_fs_unmount(struct storage *storage, struct storage_fs *filesystem)
{
	int rc = 0;

	if (filesystem->fs) {
		rc = fs_unmount(filesystem->fs);
		if (rc < 0)
			log_error("storage", "file system did not end cleanly, its log will be replayed fs=%s error=%s",
				filesystem->name, strerror(-rc));
		filesystem->fs = NULL;
		storage->cache_given -= filesystem->cache_bytes;
	}
	if (filesystem->volume)
		volume_close(filesystem->volume);
	filesystem->volume = NULL;
	return rc;
}

/* Cache for each of COUNT file systems that are to be mounted now. */
static uint64_t cache_share(const struct storage *storage, unsigned count)
{
	uint64_t all = storage->cache_bytes ? storage->cache_bytes : 4 * CACHE_LEAST;
	uint64_t left = all > storage->cache_given ? all - storage->cache_given : 0;
	uint64_t share = count ? left / count : left;

	return share > CACHE_LEAST ? share : CACHE_LEAST;
}

uint64_t storage_cache_left(const struct storage *storage)
{
	return cache_share(storage, 1);
}

static int mount_named(struct storage *storage, const char *name, uint64_t cache_bytes, struct error *err)
{
	char array[RAID_NAME_MAX + 1];
	struct storage_array *sa;

	snprintf(array, sizeof(array), "%.*s", (int)strcspn(name, "/"), name);
	int rc = storage_array_open(storage, array, &sa, err);
	if (rc < 0)
		return rc;
	struct storage_fs *sf = storage_fs_find(storage, name);
	if (!sf)
		return error_set(err, -ENOENT,
			"file system %s: array %s has none of that name (furrow fs create %s makes it)", name, array,
			name);
	return storage_fs_mount(storage, sf, cache_bytes, err);
}

int storage_mount(struct storage *storage, const char *const *filesystems, unsigned count, struct error *err)
{
	unsigned fresh = 0;
	struct error local;
	int rc = 0;

	if (!err)
		err = &local;
	fiber_lock(&storage->lock);
	for (unsigned i = 0; i < count; i++) {
		struct storage_fs *sf = storage_fs_find(storage, filesystems[i]);
		bool before = sf && sf->fs;
		for (unsigned j = 0; j < i && !before; j++)
			before = !strcmp(filesystems[i], filesystems[j]);
		fresh += !before;
	}
	uint64_t share = cache_share(storage, fresh);
	for (unsigned i = 0; i < count && rc == 0; i++)
		rc = mount_named(storage, filesystems[i], share, err);
	fiber_unlock(&storage->lock);
	return rc;
}

/* All that the drives hold, as far as it can be opened. */
static int open_all(struct storage *storage, struct error *err)
{
	struct raid_scan scan = {0};
	struct storage_array *sa;
	unsigned count = 0;

	int rc = raid_scan((const char *const *)storage->drives, storage->drive_count, &scan, err);
	if (rc < 0)
		return rc;
	for (unsigned i = 0; i < scan.count; i++) {
		struct error why;
		bool tried = false;
		if (scan.drive[i].content != DRIVE_MEMBER)
			continue;
		for (unsigned j = 0; j < i && !tried; j++)
			tried = scan.drive[j].content == DRIVE_MEMBER &&
				!strcmp(scan.drive[j].array_name, scan.drive[i].array_name);
		if (!tried && array_take(storage, &scan, scan.drive[i].array_name, &sa, &why) < 0)
			log_warning("storage", "%s", why.text);
	}
	raid_scan_free(&scan);
	list_foreach (n, &storage->filesystems) {
		(void)n;
		count++;
	}
	uint64_t share = cache_share(storage, count);
	list_foreach (n, &storage->filesystems) {
		struct error why;
		if (storage_fs_mount(storage, container_of(n, struct storage_fs, node), share, &why) < 0)
			log_warning("storage", "%s", why.text);
	}
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Open and close
 */

static void drives_free(struct storage *storage)
{
	for (unsigned i = 0; storage->drives && i < storage->drive_count; i++)
		free(storage->drives[i]);
	free(storage->drives);
	storage->drives = NULL;
	storage->drive_count = 0;
}

int storage_open(struct storage *storage, char **drives, unsigned drive_count, const char *const *filesystems,
	unsigned count, struct error *err)
{
	struct error local;
	int rc;

	if (!err)
		err = &local;
	list_init(&storage->arrays);
	list_init(&storage->filesystems);
	fiber_mutex_init(&storage->lock);
	storage->cache_given = 0;
	storage->drive_count = 0;
	storage->drives = calloc(drive_count ? drive_count : 1, sizeof(*storage->drives));
	if (!storage->drives)
		return error_set(err, -ENOMEM, "out of memory");
	for (; storage->drive_count < drive_count; storage->drive_count++) {
		char *copy = strdup(drives[storage->drive_count]);
		if (!copy) {
			drives_free(storage);
			return error_set(err, -ENOMEM, "out of memory");
		}
		storage->drives[storage->drive_count] = copy;
	}
	if (filesystems) {
		rc = storage_mount(storage, filesystems, count, err);
	} else {
		fiber_lock(&storage->lock);
		rc = open_all(storage, err);
		fiber_unlock(&storage->lock);
	}
	if (rc < 0) {
		storage_close(storage);
		return rc;
	}
	storage_metrics_show(storage);
	storage_watch_start(storage);
	return 0;
}

void storage_close(struct storage *storage)
{
	storage_metrics_show(NULL);
	storage_watch_stop(storage);
	fiber_lock(&storage->lock);
	for (struct list_node *n; (n = list_pop_front(&storage->arrays));)
		storage_array_close(storage, container_of(n, struct storage_array, node));
	fiber_unlock(&storage->lock);
	drives_free(storage);
}
