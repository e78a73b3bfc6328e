/*
 * The commands about snapshots, and the dump of a file system's records.
 */
#include "server/cli_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

static json_t *snapshot_call(struct cli *cli, const char *command, unsigned flags)
{
	json_t *request = request_make(command);

	request_put(request, "name", cli->args[0]);
	if (cli->arg_count > 1)
		request_put(request, "snapshot", cli->args[1]);
	return cli_call(cli, request, flags);
}

static int snapshot_done(const struct cli *cli, json_t *result, const char *what)
{
	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		printf("snapshot %s of file system %s is %s\n", cli->args[1], cli->args[0], what);
	json_decref(result);
	return EXIT_OK;
}

int snapshot_create_run(struct cli *cli)
{
	if (fs_name_check(cli) != EXIT_OK)
		return EXIT_USAGE;
	return snapshot_done(cli, snapshot_call(cli, "snapshot.create", 0), "made");
}

int snapshot_delete_run(struct cli *cli)
{
	char question[600];

	if (fs_name_check(cli) != EXIT_OK)
		return EXIT_USAGE;
	snprintf(question, sizeof(question),
		"What only snapshot %.255s of file system %s holds will be lost. Delete it?", cli->args[1],
		cli->args[0]);
	if (!cli_confirm(cli, question))
		return EXIT_FAILED;
	return snapshot_done(
		cli, snapshot_call(cli, "snapshot.delete", 0), "deleted; its space comes back in the background");
}

int snapshot_list_run(struct cli *cli)
{
	static const char *const heading[] = {"SNAPSHOT", "MADE", "STATE"};
	struct table table;

	if (fs_name_check(cli) != EXIT_OK)
		return EXIT_USAGE;
	json_t *result = snapshot_call(cli, "snapshot.list", CALL_READ_ONLY);
	if (!result)
		return EXIT_FAILED;
	const json_t *list = json_object_get(result, "snapshots");
	if (cli->json) {
		show_json(result);
	} else if (!json_array_size(list)) {
		printf("no snapshots\n");
	} else {
		table_init(&table, 3, 0, heading);
		for (size_t i = 0; i < json_array_size(list); i++) {
			const json_t *s = json_array_get(list, i);
			time_t made = (time_t)json_number(s, "created");
			char text[40] = "";
			struct tm tm;
			if (localtime_r(&made, &tm))
				strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm);
			table_add(&table, 0, "%s", json_text(s, "snapshot"));
			table_add(&table, 1, "%s", text);
			table_add(&table, 2, "%s",
				json_is_true(json_object_get(s, "deleting")) ? "deleted, space returning" : "kept");
		}
		table_print(&table, stdout);
	}
	json_decref(result);
	return EXIT_OK;
}

int fs_dump_run(struct cli *cli)
{
	char *end = NULL;
	uint64_t ino = 0;

	if (fs_name_check(cli) != EXIT_OK)
		return EXIT_USAGE;
	if (cli->arg_count > 2) {
		ino = strtoull(cli->args[2], &end, 10);
		if (!ino || *end)
			return cli_usage(cli, "\"%s\" is not the number of an inode", cli->args[2]);
	}
	json_t *request = request_make("fs.dump");
	request_put(request, "name", cli->args[0]);
	request_put(request, "what", cli->args[1]);
	json_object_set_new(request, "inode", json_integer((json_int_t)ino));
	json_t *result = cli_call(cli, request, CALL_READ_ONLY);
	if (!result)
		return EXIT_FAILED;
	const json_t *lines = json_object_get(result, "lines");
	if (cli->json) {
		show_json(result);
	} else {
		for (size_t i = 0; i < json_array_size(lines); i++)
			printf("%s\n", json_string_value(json_array_get(lines, i)));
		if (!json_is_true(json_object_get(result, "whole")))
			printf("... and more\n");
	}
	json_decref(result);
	return EXIT_OK;
}
