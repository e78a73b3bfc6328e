/*
 * Admin commands about snapshots, and the dump. Making one first writes what clients have written, which may take as
 * long as that takes: so, as with a check, the storage's lock is not held meanwhile, and the file system stays mounted
 * by a hold.
 */
#include "server/admin_internal.h"

#include <errno.h>
#include <string.h>

static struct storage_fs *filesystem_hold(struct admin *admin, const char *name)
{
	fiber_lock(&admin->storage->lock);
	struct storage_fs *sf = admin_filesystem(admin, name);
	if (sf && storage_fs_mount(admin->storage, sf, storage_cache_left(admin->storage), admin->err) < 0)
		sf = NULL;
	if (sf)
		storage_fs_hold(sf);
	fiber_unlock(&admin->storage->lock);
	return sf;
}

static json_t *snapshot_change(struct admin *admin, int (*change)(struct fs *fs, const char *name))
{
	const char *name = admin_string(admin, "name");
	const char *snapshot = name ? admin_string(admin, "snapshot") : NULL;
	struct storage_fs *sf = snapshot ? filesystem_hold(admin, name) : NULL;

	if (!sf)
		return NULL;
	int rc = change(sf->fs, snapshot);
	/* nobody waits for space in a server; the tool alone would end before it is back */
	if (rc == 0 && !admin->server)
		rc = fs_snapshots_wait(sf->fs);
	storage_fs_release(sf);
	if (rc < 0) {
		error_set(admin->err, rc, "file system %s, snapshot %.255s: %s", name, snapshot,
			rc == -EEXIST	      ? "exists already"
			: rc == -ENOENT	      ? "there is none of that name"
			: rc == -EINVAL	      ? "not a name for a snapshot: it must not begin with a dot or have a /"
			: rc == -EMLINK	      ? "there are as many as there may be; delete one first"
			: rc == -ENAMETOOLONG ? "the name is too long, at most 255 bytes"
					      : strerror(-rc));
		return NULL;
	}
	json_t *result = json_object();
	admin_put_string(result, "name", name);
	admin_put_string(result, "snapshot", snapshot);
	return result;
}

json_t *admin_snapshot_create(struct admin *admin)
{
	json_t *result = snapshot_change(admin, fs_snapshot_create);

	if (result)
		log_info("admin", "snapshot made fs=%s snapshot=%s", admin_string(admin, "name"),
			admin_string(admin, "snapshot"));
	return result;
}

json_t *admin_snapshot_delete(struct admin *admin)
{
	json_t *result = snapshot_change(admin, fs_snapshot_delete);

	if (result)
		log_warning("admin", "snapshot deleted fs=%s snapshot=%s", admin_string(admin, "name"),
			admin_string(admin, "snapshot"));
	return result;
}

static void snapshot_add(void *arg, const struct fs_snapshot *snapshot)
{
	json_t *list = arg, *object = json_object();

	admin_put_string(object, "snapshot", snapshot->name);
	admin_put_number(object, "id", snapshot->id);
	admin_put_number(object, "created", snapshot->created_ns / NSEC_PER_SEC);
	admin_put(object, "deleting", json_boolean(snapshot->deleting));
	json_array_append_new(list, object);
}

json_t *admin_snapshot_list(struct admin *admin)
{
	const char *name = admin_string(admin, "name");
	struct storage_fs *sf = name ? filesystem_hold(admin, name) : NULL;

	if (!sf)
		return NULL;
	json_t *result = json_object(), *list = json_array();
	fs_snapshot_list(sf->fs, snapshot_add, list);
	storage_fs_release(sf);
	admin_put_string(result, "name", name);
	admin_put(result, "snapshots", list);
	return result;
}

#define DUMP_LINES_MAX 20000

static bool dump_line(void *arg, const char *line)
{
	json_t *list = arg;

	json_array_append_new(list, json_string(line));
	return json_array_size(list) < DUMP_LINES_MAX;
}

json_t *admin_fs_dump(struct admin *admin)
{
	const char *name = admin_string(admin, "name");
	const char *what = name ? admin_string(admin, "what") : NULL;
	uint64_t ino = 0;

	if (!what || admin_number(admin, "inode", &ino) < 0)
		return NULL;
	struct storage_fs *sf = filesystem_hold(admin, name);
	if (!sf)
		return NULL;
	json_t *result = json_object(), *list = json_array();
	int rc = fs_dump(sf->fs, what, ino, dump_line, list);
	storage_fs_release(sf);
	admin_put_string(result, "name", name);
	admin_put(result, "whole", json_boolean(json_array_size(list) < DUMP_LINES_MAX));
	admin_put(result, "lines", list);
	if (rc < 0) {
		json_decref(result);
		error_set(admin->err, rc,
			rc == -EINVAL
				? "file system %s: \"%.64s\" cannot be dumped; expected root, log, nodes, stripes, "
				  "owners, snapshots, orphans, replies, state, counters, inode, dir, xattrs or extents"
				: "file system %s: the dump of %.64s could not be finished",
			name, what);
		return NULL;
	}
	return result;
}
