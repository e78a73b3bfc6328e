/* Between the admin*.c files: one command on its way, and what they share. */
#ifndef FURROW_ADMIN_INTERNAL_H
#define FURROW_ADMIN_INTERNAL_H

#include "server/server_internal.h"

struct admin {
	struct server *server; /* NULL offline */
	struct storage *storage;
	const json_t *request;
	admin_progress_fn *progress;
	void *progress_arg;
	struct error *err;
	json_t *problems; /* sentences about what the result leaves out; becomes "problems" of the result unless empty
			   */
};

/* Arguments of the request. A missing or wrong one fills err: NULL, or a negative errno. */
const char *admin_string(struct admin *admin, const char *key); /* required */
int admin_string_optional(struct admin *admin, const char *key, const char **value);
int admin_number(struct admin *admin, const char *key, uint64_t *value); /* left alone when not there */
int admin_bool(struct admin *admin, const char *key, bool *value);	 /* the same */
/* A list of strings, the list itself to be freed by the caller, the strings not; NULL and 0 when not there. */
int admin_strings(struct admin *admin, const char *key, const char ***list, unsigned *count);

/* json_object_set_new() for what may not fit into memory, or is no UTF-8: the latter is shown with '?'. */
void admin_put(json_t *object, const char *key, json_t *value);
void admin_put_string(json_t *object, const char *key, const char *value);
void admin_put_number(json_t *object, const char *key, uint64_t value);
void admin_put_uuid(json_t *object, const char *key, const struct uuid *uuid);

/* An array that a command needs: open already, or opened now. Under the storage's lock. */
struct storage_array *admin_array(struct admin *admin, const char *name);
/* A file system by "array/name", its array opened where needed. Under the storage's lock. */
struct storage_fs *admin_filesystem(struct admin *admin, const char *name);
/* True, with the error that says by what, when it is in use. Under the storage's lock. */
bool admin_filesystem_busy(struct admin *admin, const struct storage_fs *sf);

/* Parts of `status`. Under the storage's lock. */
json_t *admin_arrays_json(struct admin *admin, const char *only, bool scan_too);
json_t *admin_filesystems_json(struct admin *admin, const char *only, bool details);

json_t *admin_array_create(struct admin *admin);
json_t *admin_array_list(struct admin *admin);
json_t *admin_array_status(struct admin *admin);
json_t *admin_array_examine(struct admin *admin);
json_t *admin_array_fail(struct admin *admin);
json_t *admin_array_destroy(struct admin *admin);
json_t *admin_array_add(struct admin *admin);
json_t *admin_array_remove(struct admin *admin);
json_t *admin_array_replace(struct admin *admin);
json_t *admin_array_rebuild(struct admin *admin);
json_t *admin_array_scrub(struct admin *admin);
json_t *admin_rebuild_json(const struct rebuild_status *status);
json_t *admin_scrub_json(const struct scrub_status *status);
/* The member that "slot" or "drive" of the request means. 0, or a negative errno in err. */
int admin_slot(struct admin *admin, struct array_status *status, unsigned *slot);
json_t *admin_drive_list(struct admin *admin);
json_t *admin_drive_spare(struct admin *admin);
json_t *admin_drive_release(struct admin *admin);
json_t *admin_storage_rescan(struct admin *admin);

json_t *admin_fs_create(struct admin *admin);
json_t *admin_fs_list(struct admin *admin);
json_t *admin_fs_status(struct admin *admin);
json_t *admin_fs_check(struct admin *admin); /* takes the lock itself */
json_t *admin_fs_destroy(struct admin *admin);
/* These take the lock themselves. */
json_t *admin_snapshot_create(struct admin *admin);
json_t *admin_snapshot_delete(struct admin *admin);
json_t *admin_fs_dump(struct admin *admin);
json_t *admin_snapshot_list(struct admin *admin);
json_t *admin_connections_json(struct server *server); /* SERVER may be NULL */
json_t *admin_operations_json(struct server *server);
json_t *admin_traffic(struct admin *admin);
json_t *admin_state_list(struct admin *admin);
json_t *admin_state_expel(struct admin *admin);

#endif
