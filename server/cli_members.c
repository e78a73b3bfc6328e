/*
 * The commands about the life of members: add, remove, replace, spare, rebuild, scrub, and the shared pool. With
 * --wait they stay until it is done, with a bar on a terminal; `rebuild` and `scrub` wait for the server's work by
 * asking it twice a second.
 */
#include "server/cli_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 40

static void eta_format(uint64_t seconds, char text[40])
{
	if (!seconds)
		text[0] = 0;
	else if (seconds < 120)
		snprintf(text, 40, ", %u s left", (unsigned)seconds);
	else if (seconds < 7200)
		snprintf(text, 40, ", %u min left", (unsigned)(seconds / 60));
	else
		snprintf(text, 40, ", %llu h left", (unsigned long long)(seconds / 3600));
}

void cli_bar(const char *what, uint64_t done, uint64_t total, uint64_t eta_seconds)
{
	char bar[BAR_WIDTH + 1], eta[40];
	unsigned filled = !total || done >= total ? BAR_WIDTH : (unsigned)(done * BAR_WIDTH / total);

	if (!isatty(STDERR_FILENO))
		return;
	memset(bar, '.', BAR_WIDTH);
	memset(bar, '#', filled);
	bar[BAR_WIDTH] = 0;
	eta_format(eta_seconds, eta);
	fprintf(stderr, "\r%s [%s] %3u %%%s\033[K", what, bar,
		(unsigned)(!total || done >= total ? 100 : done * 100 / total), eta);
}

void cli_bar_end(void)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r\033[K");
}

/* DRIVE|SLOT into the request. */
static void member_put(json_t *request, const char *which)
{
	if (strspn(which, "0123456789") == strlen(which) && strlen(which) < 5)
		json_object_set_new(request, "slot", json_integer(strtol(which, NULL, 10)));
	else
		request_put(request, "drive", which);
}

/* While a rebuild of array NAME runs on the server. False when it could not be asked. */
static bool rebuild_follow(struct cli *cli, const char *name)
{
	bool running = true, shown = false;

	while (running) {
		json_t *request = request_make("array.rebuild");
		request_put(request, "name", name);
		json_t *result = cli_call(cli, request, 0);
		if (!result)
			return false;
		const json_t *rebuild = json_object_get(result, "rebuild");
		running = json_is_true(json_object_get(rebuild, "running")) &&
			  !json_is_true(json_object_get(rebuild, "paused"));
		if (running) {
			cli_bar("rebuild", json_number(rebuild, "done_bytes"), json_number(rebuild, "total_bytes"),
				json_number(rebuild, "eta_seconds"));
			shown = true;
			usleep(500000);
		}
		json_decref(result);
	}
	if (shown)
		cli_bar_end();
	return true;
}

static void rebuild_line(const json_t *rebuild, FILE *out)
{
	uint64_t done = json_number(rebuild, "done_bytes"), total = json_number(rebuild, "total_bytes");
	char eta[40], rate[16], written[16];

	size_format(json_number(rebuild, "rate"), rate);
	size_format(json_number(rebuild, "written_bytes"), written);
	eta_format(json_number(rebuild, "eta_seconds"), eta);
	const char *what = json_is_true(json_object_get(rebuild, "partial"))  ? " (what it missed)"
			   : json_is_true(json_object_get(rebuild, "copies")) ? " (copied, to be replaced)"
									      : "";
	if (json_is_true(json_object_get(rebuild, "running")))
		fprintf(out, "rebuild of slot %llu%s: %u %%, %s/s%s%s\n",
			(unsigned long long)json_number(rebuild, "slot"), what,
			(unsigned)(!total	   ? 0
				   : done >= total ? 100
						   : done * 100 / total),
			rate, eta, json_is_true(json_object_get(rebuild, "paused")) ? ", paused" : "");
	else if (json_number(rebuild, "written_bytes"))
		fprintf(out, "last rebuild: slot %llu, %s written%s\n",
			(unsigned long long)json_number(rebuild, "slot"), written, what);
	if (json_number(rebuild, "lost_rows"))
		fprintf(out, "%llu rows could not be brought back\n",
			(unsigned long long)json_number(rebuild, "lost_rows"));
}

static void scrub_line(const json_t *scrub, FILE *out)
{
	uint64_t done = json_number(scrub, "done_stripes"), total = json_number(scrub, "total_stripes");
	char eta[40];
	bool running = json_is_true(json_object_get(scrub, "running"));

	eta_format(json_number(scrub, "eta_seconds"), eta);
	if (!running && !json_number(scrub, "started"))
		return;
	if (running)
		fprintf(out, "scrub: %u %%%s%s, ",
			(unsigned)(!total	   ? 0
				   : done >= total ? 100
						   : done * 100 / total),
			eta, json_is_true(json_object_get(scrub, "paused")) ? ", paused" : "");
	else
		fprintf(out, "last scrub: ");
	fprintf(out, "%llu rows did not fit, %llu repaired, %llu unresolved; %llu unreadable blocks written again\n",
		(unsigned long long)json_number(scrub, "mismatches"),
		(unsigned long long)json_number(scrub, "repaired"),
		(unsigned long long)json_number(scrub, "unresolved"),
		(unsigned long long)json_number(scrub, "unread_repaired"));
}

void show_array_work(const json_t *array, FILE *out)
{
	rebuild_line(json_object_get(array, "rebuild"), out);
	scrub_line(json_object_get(array, "scrub"), out);
}

/* Shows what became of a slot; follows the rebuild with --wait. */
static int slot_show(struct cli *cli, json_t *result, const char *what)
{
	if (!result)
		return EXIT_FAILED;
	if (cli->wait && !rebuild_follow(cli, cli->args[0])) {
		json_decref(result);
		return EXIT_FAILED;
	}
	if (cli->json)
		show_json(result);
	else
		printf("array %s: %s %s, slot %llu is %s; the array is %s\n", cli->args[0], json_text(result, "drive"),
			what, (unsigned long long)json_number(result, "slot"), json_text(result, "member_state"),
			json_text(result, "state"));
	json_decref(result);
	return EXIT_OK;
}

/* With --force the drive may hold something. */
static bool overwrite_confirm(const struct cli *cli, const char *drive)
{
	char question[400];

	snprintf(question, sizeof(question), "All that drive %.200s holds will be lost. Add it to array %s?", drive,
		cli->args[0]);
	return !cli->force || cli_confirm(cli, question);
}

int array_add_run(struct cli *cli)
{
	if (!overwrite_confirm(cli, cli->args[1]))
		return EXIT_FAILED;
	json_t *request = request_make("array.add");
	request_put(request, "name", cli->args[0]);
	request_put(request, "drive", cli->args[1]);
	json_object_set_new(request, "force", json_boolean(cli->force));
	return slot_show(cli, cli_call(cli, request, 0), "is added");
}

int array_spare_run(struct cli *cli)
{
	int status = EXIT_OK;

	for (unsigned i = 1; i < cli->arg_count && status == EXIT_OK; i++) {
		if (!overwrite_confirm(cli, cli->args[i]))
			return EXIT_FAILED;
		json_t *request = request_make("array.add");
		request_put(request, "name", cli->args[0]);
		request_put(request, "drive", cli->args[i]);
		json_object_set_new(request, "force", json_boolean(cli->force));
		json_object_set_new(request, "spare", json_true());
		status = slot_show(cli, cli_call(cli, request, 0), "is added");
	}
	return status;
}

int array_remove_run(struct cli *cli)
{
	json_t *request = request_make("array.remove");

	request_put(request, "name", cli->args[0]);
	member_put(request, cli->args[1]);
	json_t *result = cli_call(cli, request, 0);
	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		printf("array %s: slot %llu has no drive now; the array is %s\n", cli->args[0],
			(unsigned long long)json_number(result, "slot"), json_text(result, "state"));
	json_decref(result);
	return EXIT_OK;
}

int array_replace_run(struct cli *cli)
{
	if (cli->arg_count > 2 && !overwrite_confirm(cli, cli->args[2]))
		return EXIT_FAILED;
	json_t *request = request_make("array.replace");
	request_put(request, "name", cli->args[0]);
	member_put(request, cli->args[1]);
	if (cli->arg_count > 2)
		request_put(request, "with", cli->args[2]);
	json_object_set_new(request, "force", json_boolean(cli->force));
	return slot_show(cli, cli_call(cli, request, 0), "takes over");
}

int array_rebuild_run(struct cli *cli)
{
	const char *action = cli->arg_count > 1 ? cli->args[1] : "status";
	json_t *request = request_make("array.rebuild");
	char *end;

	request_put(request, "name", cli->args[0]);
	request_put(request, "action", action);
	if (cli->latency) {
		double ms = strtod(cli->latency, &end);
		if (end == cli->latency || (*end && strcmp(end, "ms") != 0) || !(ms >= 0 && ms < 1e6)) {
			json_decref(request);
			return cli_usage(cli, "--latency %s is not a number of milliseconds", cli->latency);
		}
		json_object_set_new(request, "latency_us", json_integer((json_int_t)(ms * 1000)));
	}
	json_t *result = cli_call(cli, request, 0);
	if (result && cli->wait) {
		json_decref(result);
		if (!rebuild_follow(cli, cli->args[0]))
			return EXIT_FAILED;
		request = request_make("array.rebuild");
		request_put(request, "name", cli->args[0]);
		result = cli_call(cli, request, 0);
	}
	if (!result)
		return EXIT_FAILED;
	bool degraded = strcmp(json_text(result, "state"), "healthy") != 0;
	if (cli->json) {
		show_json(result);
	} else {
		printf("array %s: %s\n", cli->args[0], json_text(result, "state"));
		rebuild_line(json_object_get(result, "rebuild"), stdout);
	}
	json_decref(result);
	return cli->wait && degraded ? EXIT_FAILED : EXIT_OK;
}

int array_scrub_run(struct cli *cli)
{
	const char *action = cli->arg_count > 1 ? cli->args[1] : "start";
	bool shown = false;
	json_t *result;

	for (;;) {
		json_t *request = request_make("array.scrub");
		request_put(request, "name", cli->args[0]);
		request_put(request, "action", action);
		result = cli_call(cli, request, 0);
		const json_t *scrub = json_object_get(result, "scrub");
		if (!result || !cli->wait || !json_is_true(json_object_get(scrub, "running")) ||
			json_is_true(json_object_get(scrub, "paused")))
			break;
		cli_bar("scrub", json_number(scrub, "done_stripes"), json_number(scrub, "total_stripes"),
			json_number(scrub, "eta_seconds"));
		shown = true;
		action = "status";
		json_decref(result);
		usleep(500000);
	}
	if (shown)
		cli_bar_end();
	if (!result)
		return EXIT_FAILED;
	const json_t *scrub = json_object_get(result, "scrub");
	bool bad = json_number(scrub, "unresolved") > 0;
	if (cli->json) {
		show_json(result);
	} else if (!json_number(scrub, "started")) {
		printf("array %s: no scrub since the start\n", cli->args[0]);
	} else {
		printf("array %s: ", cli->args[0]);
		scrub_line(scrub, stdout);
	}
	json_decref(result);
	return bad ? EXIT_FAILED : EXIT_OK;
}

static int pool_run(struct cli *cli, const char *command, const char *what)
{
	json_t *request = request_make(command), *list = json_array();
	char question[100];

	for (unsigned i = 0; i < cli->arg_count; i++)
		json_array_append_new(list, json_string(cli->args[i]));
	json_object_set_new(request, "drives", list);
	if (!strcmp(command, "drive.spare")) {
		json_object_set_new(request, "force", json_boolean(cli->force));
		snprintf(question, sizeof(question), "All that these %u drives hold will be lost. Go on?",
			cli->arg_count);
		if (!cli_confirm(cli, question)) {
			json_decref(request);
			return EXIT_FAILED;
		}
	}
	json_t *result = cli_call(cli, request, 0);
	if (!result)
		return EXIT_FAILED;
	if (cli->json)
		show_json(result);
	else
		printf("%u drives %s the shared pool of spares\n", cli->arg_count, what);
	json_decref(result);
	return EXIT_OK;
}

int drive_spare_run(struct cli *cli)
{
	return pool_run(cli, "drive.spare", "are in");
}

int drive_release_run(struct cli *cli)
{
	return pool_run(cli, "drive.release", "have left");
}
