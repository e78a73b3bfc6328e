/*
 * furrow, the administrator's tool: start and the commands.
 *
 * Each command is one function: it asks where something would be lost, makes requests (cli_call.c) that a running
 * server or this process answers (admin.c), and shows the result (cli_show.c). What goes wrong is one line on stderr;
 * the exit status is 0 when what was asked is done, 1 when it is not (or a check found faults), and 2 for a command
 * line that makes no sense.
 */
#include "server/cli_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

json_t *request_make(const char *command)
{
	json_t *request = json_object();

	json_object_set_new(request, "command", json_string(command));
	return request;
}

/* Arguments are UTF-8: cli_parse() saw to it. */
void request_put(json_t *request, const char *key, const char *value)
{
	json_object_set_new(request, key, json_string(value));
}

static json_t *strings_json(const char *const *list, unsigned count)
{
	json_t *array = json_array();

	for (unsigned i = 0; i < count; i++)
		json_array_append_new(array, json_string(list[i]));
	return array;
}

/* Shows a listing in the form that was asked for. */
static int list_show(
	const struct cli *cli, json_t *result, const char *key, void (*show)(const json_t *list, FILE *out))
{
	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		show(json_object_get(result, key), stdout);
	show_problems(result);
	json_decref(result);
	return EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------
 * Arrays
 */

/* Whether NAME may be overwritten; says why not. */
static bool drive_usable(const struct cli *cli, const char *name, const json_t *drive)
{
	const char *content = json_text(drive, "content"), *holds = json_text(drive, "holds");

	if (!strcmp(content, "unreadable"))
		cli_failed(cli, "drive %s: %s", name, holds);
	else if (strcmp(content, "empty") != 0 && !cli->force)
		cli_failed(cli, "drive %s holds something: %s; --force overwrites it", name, holds);
	else
		return true;
	return false;
}

/* Looks at the drives that are to be overwritten and asks. */
static int array_create_confirm(struct cli *cli)
{
	const char *drives[2 * CLI_LIST_MAX];
	unsigned count = 0;
	char question[200];

	for (unsigned i = 1; i < cli->arg_count; i++)
		drives[count++] = cli->args[i];
	for (unsigned i = 0; i < cli->spare_count; i++)
		drives[count++] = cli->spares[i];
	for (unsigned i = 0; i < count; i++)
		for (unsigned j = 0; j < i; j++)
			if (!strcmp(drives[i], drives[j]))
				return cli_usage(cli, "drive %s is named twice", drives[i]);

	json_t *request = request_make("drive.list");
	json_object_set_new(request, "drives", strings_json(drives, count));
	json_t *result = cli_call(cli, request, CALL_HERE);
	if (!result)
		return EXIT_FAILED;
	const json_t *found = json_object_get(result, "drives");
	int status = EXIT_OK;
	for (unsigned i = 0; i < count && status == EXIT_OK; i++) {
		const char *path = !strncmp(drives[i], "fault:", 6) ? drives[i] + 6 : drives[i];
		const json_t *drive = NULL;
		for (size_t j = 0; j < json_array_size(found) && !drive; j++)
			if (!strcmp(json_text(json_array_get(found, j), "path"), drives[i]))
				drive = json_array_get(found, j);
		if (drive)
			status = drive_usable(cli, drives[i], drive) ? EXIT_OK : EXIT_FAILED;
		else if (access(path, F_OK) < 0)
			status = cli_failed(cli, "drive %s: %s", drives[i], strerror(errno));
		else
			status = cli_failed(
				cli, "drive %s is neither an NVMe drive, a block device nor a file", drives[i]);
	}
	if (status == EXIT_OK && !cli->yes)
		show_drives(found, stderr);
	json_decref(result);
	if (status != EXIT_OK)
		return status;
	snprintf(question, sizeof(question), "All that these %u drives hold will be lost. Make array %s?", count,
		cli->args[0]);
	return cli_confirm(cli, question) ? EXIT_OK : EXIT_FAILED;
}

static int array_create_run(struct cli *cli)
{
	uint64_t strip = 0;
	unsigned long groups = 0;
	char *end;

	if (!config_name_valid(cli->args[0], strlen(cli->args[0])))
		return cli_usage(cli,
			"\"%s\" is not a name for an array; expected at most %d letters, digits, '.', '_' or '-'",
			cli->args[0], RAID_NAME_MAX);
	if (!cli->level)
		return cli_usage(cli, "--level is missing; expected 0, 1, 5, 6, 10, 50 or 60");
	unsigned long level = strtoul(cli->level, &end, 10);
	if (*end || end == cli->level || cli->level[0] == '-' || level > 100)
		return cli_usage(cli, "--level %s is not valid; expected 0, 1, 5, 6, 10, 50 or 60", cli->level);
	if (cli->groups) {
		groups = strtoul(cli->groups, &end, 10);
		if (*end || end == cli->groups || cli->groups[0] == '-' || groups < 1 || groups > RAID_DRIVES_MAX)
			return cli_usage(cli, "--groups %s is not valid; expected a number from 1 to %u", cli->groups,
				RAID_DRIVES_MAX);
	}
	if (cli->strip && (size_parse(cli->strip, &strip) < 0 || !strip || strip > UINT32_MAX))
		return cli_usage(cli, "--strip %s is not a size; expected one such as 64KiB", cli->strip);

	int status = array_create_confirm(cli);
	if (status != EXIT_OK)
		return status;
	json_t *request = request_make("array.create");
	request_put(request, "name", cli->args[0]);
	json_object_set_new(request, "level", json_integer((json_int_t)level));
	if (groups)
		json_object_set_new(request, "groups", json_integer((json_int_t)groups));
	json_object_set_new(request, "strip_bytes", json_integer((json_int_t)strip));
	json_object_set_new(request, "force", json_boolean(cli->force));
	json_object_set_new(request, "drives", strings_json(cli->args + 1, cli->arg_count - 1));
	json_object_set_new(request, "spares", strings_json(cli->spares, cli->spare_count));
	json_t *result = cli_call(cli, request, CALL_HERE);
	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		printf("array %s is made of %u drives\n", cli->args[0], cli->arg_count - 1);
	json_decref(result);
	if (cli_server_answers(cli))
		json_decref(cli_call(cli, request_make("storage.rescan"), CALL_SERVER));
	return EXIT_OK;
}

static int array_list_run(struct cli *cli)
{
	return list_show(cli, cli_call(cli, request_make("array.list"), CALL_READ_ONLY), "arrays", show_arrays);
}

/* 1 when one of the arrays is not what it should be, so that a script can tell. */
static int arrays_exit_status(const json_t *arrays)
{
	int status = EXIT_OK;

	for (size_t i = 0; i < json_array_size(arrays); i++) {
		const char *state = json_text(json_array_get(arrays, i), "state");
		if (!strcmp(state, "failed") || !strcmp(state, "stopped"))
			status = EXIT_FAILED;
	}
	return status;
}

static int array_status_run(struct cli *cli)
{
	json_t *request = request_make("array.status");

	if (cli->arg_count)
		request_put(request, "name", cli->args[0]);
	json_t *result = cli_call(cli, request, CALL_READ_ONLY);
	if (!result)
		return EXIT_FAILED;
	const json_t *arrays = json_object_get(result, "arrays");
	if (cli->json) {
		show_json(result);
	} else {
		if (!json_array_size(arrays))
			printf("no arrays\n");
		for (size_t i = 0; i < json_array_size(arrays); i++) {
			if (i)
				putchar('\n');
			show_array_members(json_array_get(arrays, i), stdout);
		}
	}
	show_problems(result);
	int status = arrays_exit_status(arrays);
	json_decref(result);
	return status;
}

static int array_examine_run(struct cli *cli)
{
	json_t *request = request_make("array.examine");

	json_object_set_new(request, "drives", strings_json(cli->args, cli->arg_count));
	json_t *result = cli_call(cli, request, CALL_HERE | CALL_READ_ONLY);
	if (!result)
		return EXIT_FAILED;
	const json_t *drives = json_object_get(result, "drives");
	if (cli->json)
		show_json(result);
	for (size_t i = 0; !cli->json && i < json_array_size(drives); i++) {
		const json_t *drive = json_array_get(drives, i);
		printf("%s%s:\n%s", i ? "\n" : "", json_text(drive, "path"), json_text(drive, "text"));
	}
	json_decref(result);
	return EXIT_OK;
}

static int array_fail_run(struct cli *cli)
{
	const char *which = cli->args[1];
	json_t *request = request_make("array.fail");

	request_put(request, "name", cli->args[0]);
	if (strspn(which, "0123456789") == strlen(which))
		json_object_set_new(request, "slot", json_integer(strtol(which, NULL, 10)));
	else
		request_put(request, "drive", which);
	json_t *result = cli_call(cli, request, 0);
	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		printf("array %s: the member in slot %llu is taken out; the array is %s\n", cli->args[0],
			(unsigned long long)json_number(result, "slot"), json_text(result, "state"));
	json_decref(result);
	return EXIT_OK;
}

static int array_destroy_run(struct cli *cli)
{
	char question[200];
	json_t *request = request_make("array.status");

	request_put(request, "name", cli->args[0]);
	json_t *result = cli_call(cli, request, CALL_READ_ONLY);
	if (!result)
		return EXIT_FAILED;
	if (!cli->yes)
		show_array_members(json_array_get(json_object_get(result, "arrays"), 0), stderr);
	json_decref(result);
	snprintf(question, sizeof(question), "Array %s and all file systems on it will be lost. Destroy it?",
		cli->args[0]);
	if (!cli_confirm(cli, question))
		return EXIT_FAILED;
	request = request_make("array.destroy");
	request_put(request, "name", cli->args[0]);
	result = cli_call(cli, request, 0);
	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		printf("array %s is destroyed\n", cli->args[0]);
	json_decref(result);
	return EXIT_OK;
}

static int drive_list_run(struct cli *cli)
{
	json_t *request = request_make("drive.list");

	if (cli->drive_count)
		json_object_set_new(request, "drives", strings_json(cli->drives, cli->drive_count));
	json_t *result = cli_call(cli, request, CALL_READ_ONLY);
	const json_t *patterns = json_object_get(result, "patterns");
	if (result && !cli->json && !json_array_size(json_object_get(result, "drives")) && !cli->drive_count) {
		printf("no drives match");
		for (size_t i = 0; i < json_array_size(patterns); i++)
			printf(" %s", json_string_value(json_array_get(patterns, i)));
		printf(" (drives: in the configuration, or --drives)\n");
		json_decref(result);
		return EXIT_OK;
	}
	return list_show(cli, result, "drives", show_drives);
}

/* ------------------------------------------------------------------------------------------------
 * File systems
 */

int fs_name_check(const struct cli *cli)
{
	if (config_filesystem_valid(cli->args[0]))
		return EXIT_OK;
	return cli_usage(cli, "\"%s\" is not the name of a file system; expected ARRAY/NAME", cli->args[0]);
}

static int fs_create_run(struct cli *cli)
{
	char question[300], free_text[16], size_text[16];
	uint64_t bytes = 0;
	json_t *request, *result;

	if (fs_name_check(cli) != EXIT_OK)
		return EXIT_USAGE;
	if (cli->size && (size_parse(cli->size, &bytes) < 0 || !bytes))
		return cli_usage(cli, "--size %s is not a size; expected one such as 500GiB", cli->size);
	if (!cli->yes) {
		request = request_make("array.status");
		json_object_set_new(request, "name", json_stringn(cli->args[0], strcspn(cli->args[0], "/")));
		result = cli_call(cli, request, CALL_READ_ONLY);
		if (!result)
			return EXIT_FAILED;
		uint64_t available = json_number(json_array_get(json_object_get(result, "arrays"), 0), "free_bytes");
		json_decref(result);
		size_format(available, free_text);
		size_format(bytes ? bytes : available, size_text);
		snprintf(question, sizeof(question),
			"File system %s will take %s of the %s that are free on its array; nothing is overwritten. "
			"Make it?",
			cli->args[0], size_text, free_text);
		if (!cli_confirm(cli, question))
			return EXIT_FAILED;
	}
	request = request_make("fs.create");
	request_put(request, "name", cli->args[0]);
	json_object_set_new(request, "bytes", json_integer((json_int_t)bytes));
	result = cli_call(cli, request, 0);
	if (!result)
		return EXIT_FAILED;
	size_format(json_number(result, "volume_bytes"), size_text);
	if (cli->json)
		show_json(result);
	else
		printf("file system %s is made, %s; to serve it, add it to exports: and run furrow reload\n",
			cli->args[0], size_text);
	json_decref(result);
	return EXIT_OK;
}

static int fs_check_run(struct cli *cli)
{
	if (fs_name_check(cli) != EXIT_OK)
		return EXIT_USAGE;
	json_t *request = request_make("fs.check");
	request_put(request, "name", cli->args[0]);
	json_object_set_new(request, "data", json_boolean(!cli->quick));
	if (cli->repair)
		json_object_set_new(request, "repair", json_true());
	json_t *result = cli_call(cli, request, cli->repair ? 0 : CALL_READ_ONLY);
	if (!result)
		return EXIT_FAILED;
	uint64_t errors = json_number(result, "errors");
	const json_t *faults = json_object_get(result, "faults"), *repairs = json_object_get(result, "repairs");
	if (cli->json) {
		show_json(result);
	} else {
		for (size_t i = 0; i < json_array_size(repairs); i++)
			printf("repair: %s\n", json_string_value(json_array_get(repairs, i)));
		for (size_t i = 0; i < json_array_size(faults); i++)
			printf("%s\n", json_string_value(json_array_get(faults, i)));
		if (errors > json_array_size(faults))
			printf("... and %llu more\n", (unsigned long long)(errors - json_array_size(faults)));
		printf("file system %s: %llu inodes (%llu directories), %llu extents, %llu blocks of data%s, %llu "
		       "nodes: ",
			cli->args[0], (unsigned long long)json_number(result, "inodes"),
			(unsigned long long)json_number(result, "directories"),
			(unsigned long long)json_number(result, "extents"),
			(unsigned long long)json_number(result, "data_blocks"), cli->quick ? " (not read)" : "",
			(unsigned long long)json_number(result, "nodes"));
		if (errors)
			printf("%llu faults\n", (unsigned long long)errors);
		else
			printf("no faults\n");
	}
	json_decref(result);
	return errors ? EXIT_FAILED : EXIT_OK;
}

static int fs_list_run(struct cli *cli)
{
	return list_show(cli, cli_call(cli, request_make("fs.list"), CALL_READ_ONLY), "filesystems", show_filesystems);
}

static int fs_status_run(struct cli *cli)
{
	if (cli->arg_count && fs_name_check(cli) != EXIT_OK)
		return EXIT_USAGE;
	json_t *request = request_make("fs.status");
	if (cli->arg_count)
		request_put(request, "name", cli->args[0]);
	json_t *result = cli_call(cli, request, CALL_READ_ONLY);
	if (!result)
		return EXIT_FAILED;
	const json_t *list = json_object_get(result, "filesystems");
	if (cli->json) {
		show_json(result);
	} else if (cli->arg_count && json_array_size(list)) {
		show_filesystem_details(json_array_get(list, 0), stdout);
	} else {
		show_filesystems(list, stdout);
	}
	show_problems(result);
	json_decref(result);
	return EXIT_OK;
}

static int fs_destroy_run(struct cli *cli)
{
	char question[200];

	if (fs_name_check(cli) != EXIT_OK)
		return EXIT_USAGE;
	snprintf(question, sizeof(question), "File system %s and all files on it will be lost. Destroy it?",
		cli->args[0]);
	if (!cli_confirm(cli, question))
		return EXIT_FAILED;
	json_t *request = request_make("fs.destroy");
	request_put(request, "name", cli->args[0]);
	json_t *result = cli_call(cli, request, 0);
	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		printf("file system %s is destroyed\n", cli->args[0]);
	json_decref(result);
	return EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------
 * The whole
 */

static int status_run(struct cli *cli)
{
	json_t *result = cli_call(cli, request_make("status"), CALL_READ_ONLY);

	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		show_status(result, stdout);
	show_problems(result);
	int status = arrays_exit_status(json_object_get(result, "arrays"));
	json_decref(result);
	return status;
}

static int reload_run(struct cli *cli)
{
	json_t *result = cli_call(cli, request_make("server.reload"), CALL_SERVER);

	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		printf("the configuration is in force, %zu exports\n",
			json_array_size(json_object_get(result, "exports")));
	json_decref(result);
	return EXIT_OK;
}

static int version_run(struct cli *cli)
{
	if (cli->json)
		printf("{\"version\": \"%s\"}\n", FURROW_VERSION);
	else
		printf("furrow %s\n", FURROW_VERSION);
	return EXIT_OK;
}

static int help_run(struct cli *cli)
{
	return cli_help(cli->arg_count > 0 ? cli->args[0] : NULL, cli->arg_count > 1 ? cli->args[1] : NULL, stdout);
}

const struct cli_command cli_commands[] = {
	{"status", NULL, "", "the server, its arrays, file systems, exports and clients", OPT_JSON, 0, 0, status_run},
	{"array", "create",
		"NAME --level 0|1|5|6|10|50|60 [--groups N] [--strip SIZE] [--spare DRIVE]... [--force] [--yes] "
		"DRIVE...",
		"make an array of drives",
		OPT_LEVEL | OPT_GROUPS | OPT_STRIP | OPT_SPARE | OPT_FORCE | OPT_YES | OPT_JSON, 2, CLI_LIST_MAX,
		array_create_run},
	{"array", "list", "", "the arrays that the drives hold", OPT_JSON, 0, 0, array_list_run},
	{"array", "status", "[NAME]", "arrays with their members", OPT_JSON, 0, 1, array_status_run},
	{"array", "examine", "DRIVE...", "what stands in a drive's superblocks", OPT_JSON, 1, CLI_LIST_MAX,
		array_examine_run},
	{"array", "fail", "NAME DRIVE|SLOT", "take a member out, as if it had failed", OPT_JSON, 2, 2, array_fail_run},
	{"array", "add", "NAME DRIVE [--wait] [--force [--yes]]",
		"give an array a drive: a member that returns, or one for a lost slot, or a spare",
		OPT_WAIT | OPT_FORCE | OPT_YES | OPT_JSON, 2, 2, array_add_run},
	{"array", "spare", "NAME DRIVE... [--force [--yes]]", "give an array hot spares",
		OPT_FORCE | OPT_YES | OPT_JSON, 2, CLI_LIST_MAX, array_spare_run},
	{"array", "remove", "NAME DRIVE|SLOT", "let go of the drive of a failed member, or of a spare", OPT_JSON, 2, 2,
		array_remove_run},
	{"array", "replace", "NAME DRIVE|SLOT [DRIVE] [--wait] [--force [--yes]]",
		"put a spare, or the drive given, in the place of a member", OPT_WAIT | OPT_FORCE | OPT_YES | OPT_JSON,
		2, 3, array_replace_run},
	{"array", "rebuild", "NAME [status|pause|resume] [--latency MS] [--wait]",
		"how far a rebuild is; --latency: the latency of others above which it gives way",
		OPT_LATENCY | OPT_WAIT | OPT_JSON, 1, 2, array_rebuild_run},
	{"array", "scrub", "NAME [start|pause|resume|stop|status] [--wait]",
		"read all rows in use, compare them with their parity, and repair", OPT_WAIT | OPT_JSON, 1, 2,
		array_scrub_run},
	{"array", "destroy", "NAME [--yes]", "remove an array and all that is on it", OPT_YES | OPT_JSON, 1, 1,
		array_destroy_run},
	{"fs", "create", "ARRAY/NAME [--size SIZE] [--yes]", "make a file system (of all that is free)",
		OPT_SIZE | OPT_YES | OPT_JSON, 1, 1, fs_create_run},
	{"fs", "list", "", "the file systems", OPT_JSON, 0, 0, fs_list_run},
	{"fs", "status", "[ARRAY/NAME]", "space, and what a file system is doing", OPT_JSON, 0, 1, fs_status_run},
	{"fs", "check", "ARRAY/NAME [--quick] [--repair]",
		"verify every structure and checksum (--quick: no file data; --repair: first put right what can be)",
		OPT_QUICK | OPT_REPAIR | OPT_JSON, 1, 1, fs_check_run},
	{"fs", "dump",
		"ARRAY/NAME "
		"root|log|nodes|stripes|owners|shares|snapshots|orphans|replies|state|counters|inode|dir|xattrs|"
		"extents "
		"[INODE]",
		"what lies on the drives, record by record", OPT_JSON, 2, 3, fs_dump_run},
	{"fs", "destroy", "ARRAY/NAME [--yes]", "remove a file system and all files on it", OPT_YES | OPT_JSON, 1, 1,
		fs_destroy_run},
	{"snapshot", "create", "ARRAY/NAME SNAPSHOT",
		"keep the file system as it is now, read-only in .snapshot/SNAPSHOT", OPT_JSON, 2, 2,
		snapshot_create_run},
	{"snapshot", "list", "ARRAY/NAME", "the snapshots of a file system", OPT_JSON, 1, 1, snapshot_list_run},
	{"snapshot", "delete", "ARRAY/NAME SNAPSHOT [--yes]", "remove a snapshot and return what only it holds",
		OPT_YES | OPT_JSON, 2, 2, snapshot_delete_run},
	{"state", "list", "",
		"clients of NFSv4 with their leases, and the opens, locks and delegations that clients hold", OPT_JSON,
		0, 0, state_list_run},
	{"state", "expel", "CLIENT [--yes]", "end a client and all that it holds", OPT_YES | OPT_JSON, 1, 1,
		state_expel_run},
	{"drive", "list", "", "the drives and what they hold", OPT_JSON, 0, 0, drive_list_run},
	{"drive", "spare", "DRIVE... [--force] [--yes]", "put drives into the shared pool of spares",
		OPT_FORCE | OPT_YES | OPT_JSON, 1, CLI_LIST_MAX, drive_spare_run},
	{"drive", "release", "DRIVE...", "take drives out of the shared pool", OPT_JSON, 1, CLI_LIST_MAX,
		drive_release_run},
	{"clients", NULL, "", "who reads and writes how much, and how long that takes", OPT_JSON, 0, 0, clients_run},
	{"top", NULL, "[--interval SECONDS] [--count N]", "the same as rates, again and again (--count: so many times)",
		OPT_INTERVAL | OPT_JSON, 0, 0, top_run},
	{"reload", NULL, "", "make the server read its configuration again", OPT_JSON, 0, 0, reload_run},
	{"version", NULL, "", "the version of this tool", OPT_JSON, 0, 0, version_run},
	{"help", NULL, "[SUBJECT [VERB]]", "this text, or more about one command", 0, 0, 2, help_run},
	{NULL, NULL, NULL, NULL, 0, 0, 0, NULL},
};

int main(int argc, char **argv)
{
	struct cli *cli = calloc(1, sizeof(*cli));
	int status;

	if (!cli) {
		fprintf(stderr, "furrow: out of memory\n");
		return EXIT_FAILED;
	}
	/* The one line about a failure comes from here; what the layers below would log says the same in other words.
	 */
	atomic_store(&log_threshold, -1);
	status = cli_parse(argc, argv, cli);
	if (status == EXIT_OK && cli->help)
		status = cli_help(
			cli->command ? cli->command->subject : NULL, cli->command ? cli->command->verb : NULL, stdout);
	else if (status == EXIT_OK)
		status = cli->command->run(cli);
	config_free(cli->config);
	free(cli);
	/* A full disk or a closed pipe is a failure too: what was asked for did not arrive. */
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "furrow: cannot write the output: %s\n", strerror(errno));
		status = status == EXIT_OK ? EXIT_FAILED : status;
	}
	return status;
}
