/*
 * The admin commands: dispatch, arguments, and those about the server as a whole.
 *
 * A command is a JSON object with "command" and its arguments, and becomes a JSON object or an error with one
 * sentence. The same code runs in furrowd, for its control socket, and in `furrow` when no server runs: what differs is
 * only who opened the storage. Commands run on fibers of reactor 0, one at a time under the storage's lock, except for
 * those marked `unlocked`, which take long or need the lock elsewhere (a check of a file system, a reload).
 *
 * Requests come from a socket of mode 0600, and are checked like any other input all the same: each argument's
 * type, and no argument that the command does not know.
 */
#include "server/admin_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------------
 * Arguments and results
 */

const char *admin_string(struct admin *admin, const char *key)
{
	const char *value = NULL;

	if (admin_string_optional(admin, key, &value) < 0)
		return NULL;
	if (!value)
		error_set(admin->err, -EINVAL, "argument \"%s\" is missing", key);
	return value;
}

int admin_string_optional(struct admin *admin, const char *key, const char **value)
{
	const json_t *v = json_object_get(admin->request, key);

	if (!v)
		return 0;
	if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
		return error_set(admin->err, -EINVAL, "argument \"%s\" must be a string", key);
	*value = json_string_value(v);
	return 0;
}

int admin_number(struct admin *admin, const char *key, uint64_t *value)
{
	const json_t *v = json_object_get(admin->request, key);

	if (!v)
		return 0;
	if (!json_is_integer(v) || json_integer_value(v) < 0)
		return error_set(admin->err, -EINVAL, "argument \"%s\" must be a number, 0 or greater", key);
	*value = (uint64_t)json_integer_value(v);
	return 0;
}

int admin_bool(struct admin *admin, const char *key, bool *value)
{
	const json_t *v = json_object_get(admin->request, key);

	if (!v)
		return 0;
	if (!json_is_boolean(v))
		return error_set(admin->err, -EINVAL, "argument \"%s\" must be true or false", key);
	*value = json_is_true(v);
	return 0;
}

int admin_strings(struct admin *admin, const char *key, const char ***list, unsigned *count)
{
	const json_t *v = json_object_get(admin->request, key);
	size_t size = json_array_size(v);

	*list = NULL;
	*count = 0;
	if (!v)
		return 0;
	if (!json_is_array(v) || size > 1024)
		return error_set(admin->err, -EINVAL, "argument \"%s\" must be a list of at most 1024 strings", key);
	const char **strings = calloc(size ? size : 1, sizeof(*strings));
	if (!strings)
		return error_set(admin->err, -ENOMEM, "out of memory");
	for (size_t i = 0; i < size; i++) {
		const json_t *item = json_array_get(v, i);
		if (!json_is_string(item) || strlen(json_string_value(item)) != json_string_length(item)) {
			free(strings);
			return error_set(admin->err, -EINVAL, "argument \"%s\" must be a list of strings", key);
		}
		strings[i] = json_string_value(item);
	}
	*list = strings;
	*count = (unsigned)size;
	return 0;
}

void admin_put(json_t *object, const char *key, json_t *value)
{
	json_object_set_new(object, key, value ? value : json_null());
}

void admin_put_string(json_t *object, const char *key, const char *value)
{
	json_t *string = json_string(value);

	if (!string) {
		/* A drive's serial number or a path may hold any bytes. */
		char *copy = strdup(value);
		for (char *p = copy; p && *p; p++)
			if ((unsigned char)*p >= 0x80)
				*p = '?';
		string = json_string(copy ? copy : "");
		free(copy);
	}
	admin_put(object, key, string);
}

void admin_put_number(json_t *object, const char *key, uint64_t value)
{
	admin_put(object, key, json_integer((json_int_t)(value > INT64_MAX ? INT64_MAX : value)));
}

void admin_put_uuid(json_t *object, const char *key, const struct uuid *uuid)
{
	char text[37];

	uuid_format(uuid, text);
	admin_put_string(object, key, text);
}

struct storage_array *admin_array(struct admin *admin, const char *name)
{
	struct storage_array *sa = NULL;

	if (!config_name_valid(name, strlen(name))) {
		error_set(admin->err, -EINVAL, "\"%.64s\" is not the name of an array", name);
		return NULL;
	}
	return storage_array_open(admin->storage, name, &sa, admin->err) < 0 ? NULL : sa;
}

struct storage_fs *admin_filesystem(struct admin *admin, const char *name)
{
	char array[RAID_NAME_MAX + 1];

	if (!config_filesystem_valid(name)) {
		error_set(admin->err, -EINVAL, "\"%.64s\" is not the name of a file system; expected ARRAY/NAME", name);
		return NULL;
	}
	snprintf(array, sizeof(array), "%.*s", (int)strcspn(name, "/"), name);
	if (!admin_array(admin, array))
		return NULL;
	struct storage_fs *sf = storage_fs_find(admin->storage, name);
	if (!sf)
		error_set(admin->err, -ENOENT, "file system %s: array %s has none of that name", name, array);
	return sf;
}

bool admin_filesystem_busy(struct admin *admin, const struct storage_fs *sf)
{
	bool exported = false;

	if (!atomic_load(&sf->users))
		return false;
	struct exports *exports = exports_get();
	for (unsigned i = 0; exports && i < exports->count; i++)
		exported = exported || exports->export[i].filesystem == sf;
	exports_put(exports);
	if (exported)
		error_set(admin->err, -EBUSY,
			"file system %s is in use; take its exports out of the configuration and reload first",
			sf->name);
	else
		error_set(admin->err, -EBUSY,
			"file system %s is in use; clients still have files of it open (furrow state list), or a "
			"check of it runs",
			sf->name);
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * The server as a whole
 */

static json_t *exports_json(void)
{
	static const char *const squash_name[] = {"none", "root", "all"};
	struct exports *exports = exports_get();
	json_t *list = json_array();

	for (unsigned i = 0; exports && i < exports->count; i++) {
		const struct export *e = &exports->export[i];
		json_t *object = json_object(), *rules = json_array();
		admin_put_string(object, "path", e->path);
		admin_put_string(object, "filesystem", e->filesystem ? e->filesystem->name : "");
		for (unsigned a = 0; a < e->allow_count; a++) {
			json_t *rule = json_object(), *clients = json_array();
			for (unsigned c = 0; c < e->allow[a].client_count; c++)
				json_array_append_new(clients, json_string(e->allow[a].clients[c].text));
			admin_put(rule, "clients", clients);
			admin_put_string(rule, "access", e->allow[a].write ? "rw" : "ro");
			admin_put_string(rule, "squash", squash_name[e->allow[a].squash % 3]);
			json_array_append_new(rules, rule);
		}
		admin_put(object, "allow", rules);
		json_array_append_new(list, object);
	}
	if (exports)
		exports_put(exports);
	return list;
}

static json_t *server_json(struct server *server)
{
	const struct config *config = server->config;
	json_t *object = json_object(), *listen = json_array();
	struct rpc_status rpc = {0};
	uint64_t now = wall_ns();

	admin_put_string(object, "version", FURROW_VERSION);
	admin_put_number(object, "pid", (uint64_t)getpid());
	admin_put_number(object, "started", server->started / NSEC_PER_SEC);
	admin_put_number(object, "uptime_seconds", now > server->started ? (now - server->started) / NSEC_PER_SEC : 0);
	admin_put_number(object, "reactors", reactor_count());
	admin_put_number(object, "arena_bytes", arena_total_bytes());
	admin_put_number(object, "arena_free_bytes", arena_free_bytes());
	if (config) {
		for (unsigned i = 0; i < config->listen_count; i++)
			json_array_append_new(listen, json_string(config->listen[i]));
		admin_put_string(object, "config", config->file ? config->file : "");
		admin_put_number(object, "nfs_port", config->nfs_port);
		admin_put_number(object, "rdma_port", config->rdma_port);
		admin_put_number(object, "metrics_port", config->metrics_port);
	}
	admin_put(object, "listen", listen);
	admin_put(object, "rdma", json_boolean(server->rdma));
	admin_put(object, "rpcbind", json_boolean(server->rpcbind));
	if (server->rpc)
		rpc_status(server->rpc, &rpc);
	admin_put_number(object, "tcp_connections", rpc.tcp_connections);
	admin_put_number(object, "rdma_connections", rpc.rdma_connections);
	admin_put_number(object, "requests", rpc.requests);
	admin_put_number(object, "replies", rpc.replies);
	admin_put_number(object, "cache_hits", rpc.cache_hits);
	admin_put_number(object, "bad_calls", rpc.bad_calls);
	admin_put_number(object, "bytes_in", rpc.bytes_in);
	admin_put_number(object, "bytes_out", rpc.bytes_out);
	return object;
}

static json_t *status_run(struct admin *admin)
{
	json_t *result = json_object();

	if (admin->server) {
		admin_put(result, "server", server_json(admin->server));
		admin_put(result, "exports", exports_json());
	} else {
		admin_put(result, "server", json_null());
		admin_put(result, "exports", json_array());
	}
	admin_put(result, "connections", admin_connections_json(admin->server));
	admin_put(result, "operations", admin_operations_json(admin->server));
	/* What the server does not use is no part of its state, and to look for it would make every drive work. */
	admin_put(result, "arrays", admin_arrays_json(admin, NULL, !admin->server));
	admin_put(result, "filesystems", admin_filesystems_json(admin, NULL, true));
	return result;
}

static json_t *version_run(struct admin *admin)
{
	json_t *result = json_object();

	admin_put_string(result, "version", FURROW_VERSION);
	admin_put(result, "server", json_boolean(admin->server != NULL));
	return result;
}

static json_t *reload_run(struct admin *admin)
{
	if (!admin->server || !admin->server->reload) {
		error_set(admin->err, -ENOTCONN, "no server is running that could reload its configuration");
		return NULL;
	}
	if (admin->server->reload(admin->server, admin->err) < 0)
		return NULL;
	json_t *result = json_object();
	admin_put(result, "exports", exports_json());
	return result;
}

/* ------------------------------------------------------------------------------------------------
 * Dispatch
 */

struct admin_command {
	const char *name;
	const char *arguments; /* the keys it knows, each between blanks */
	json_t *(*run)(struct admin *admin);
	bool unlocked;
};

static const struct admin_command commands[] = {
	{"array.create", " name level groups strip_bytes drives spares force ", admin_array_create, false},
	{"array.list", " ", admin_array_list, false},
	{"array.status", " name ", admin_array_status, false},
	{"array.examine", " drives ", admin_array_examine, true},
	{"array.fail", " name slot drive ", admin_array_fail, false},
	{"array.destroy", " name ", admin_array_destroy, false},
	{"array.add", " name drive force spare ", admin_array_add, false},
	{"array.remove", " name slot drive ", admin_array_remove, false},
	{"array.replace", " name slot drive with force ", admin_array_replace, false},
	{"array.rebuild", " name action latency_us ", admin_array_rebuild, false},
	{"array.scrub", " name action ", admin_array_scrub, false},
	{"drive.list", " drives ", admin_drive_list, false},
	{"drive.spare", " drives force ", admin_drive_spare, false},
	{"drive.release", " drives ", admin_drive_release, false},
	{"storage.rescan", " ", admin_storage_rescan, false},
	{"fs.create", " name bytes ", admin_fs_create, false},
	{"fs.list", " ", admin_fs_list, false},
	{"fs.status", " name ", admin_fs_status, false},
	{"fs.check", " name data repair ", admin_fs_check, true},
	{"fs.destroy", " name ", admin_fs_destroy, false},
	{"fs.dump", " name what inode ", admin_fs_dump, true},
	{"snapshot.create", " name snapshot ", admin_snapshot_create, true},
	{"snapshot.delete", " name snapshot ", admin_snapshot_delete, true},
	{"snapshot.list", " name ", admin_snapshot_list, true},
	{"state.list", " ", admin_state_list, true},
	{"state.expel", " client ", admin_state_expel, true},
	{"status", " ", status_run, false},
	{"traffic", " ", admin_traffic, true},
	{"version", " ", version_run, true},
	{"server.reload", " ", reload_run, true},
};

static int arguments_check(const struct admin_command *command, json_t *request, struct error *err)
{
	const char *key;
	json_t *value;

	json_object_foreach(request, key, value)
	{
		char word[40];
		if (!strcmp(key, "command"))
			continue;
		snprintf(word, sizeof(word), " %.36s ", key);
		if (strlen(key) > 36 || strchr(key, ' ') || !strstr(command->arguments, word))
			return error_set(err, -EINVAL, "command \"%s\" has no argument \"%.64s\"", command->name, key);
	}
	return 0;
}

json_t *admin_run(struct server *server, struct storage *storage, json_t *request, admin_progress_fn *progress,
	void *arg, struct error *err)
{
	const char *name = json_string_value(json_object_get(request, "command"));
	const struct admin_command *command = NULL;
	struct error local;

	if (!err)
		err = &local;
	err->code = 0;
	err->text[0] = 0;
	if (!name) {
		error_set(err, -EINVAL, "the request has no \"command\"");
		return NULL;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]) && !command; i++)
		if (!strcmp(commands[i].name, name))
			command = &commands[i];
	if (!command) {
		error_set(err, -EOPNOTSUPP, "unknown command \"%.64s\"", name);
		return NULL;
	}
	if (arguments_check(command, request, err) < 0)
		return NULL;

	struct admin admin = {
		.server = server,
		.storage = storage,
		.request = request,
		.progress = progress,
		.progress_arg = arg,
		.err = err,
		.problems = json_array(),
	};
	if (!command->unlocked)
		fiber_lock(&storage->lock);
	json_t *result = command->run(&admin);
	if (!command->unlocked)
		fiber_unlock(&storage->lock);
	if (!result && !err->code)
		error_set(err, -ENOMEM, "out of memory");
	if (result && json_array_size(admin.problems))
		admin_put(result, "problems", admin.problems);
	else
		json_decref(admin.problems);
	/* cppcheck-suppress returnDanglingLifetime ; a result is made of its own memory, never of the command's */
	return result;
}
