/*
 * How a request gets its answer: from the running server, through its control socket, when one answers; otherwise in
 * this process, which then starts one reactor, opens what the command needs, and closes it again. The code that answers
 * is the same (admin.c).
 *
 * Which drives to look at, and where the socket is, comes from the configuration. That it does not exist is fine as
 * long as nobody named it: a machine where nothing is set up yet has drives too.
 */
#include "server/cli_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A check goes through everything, and is worth some memory; all else is over before more would help. */
#define OFFLINE_ARENA (64ull << 20)
#define OFFLINE_ARENA_CHECK (512ull << 20)

static int config_get(struct cli *cli)
{
	const char *file = cli->config_file ? cli->config_file : CONFIG_DEFAULT_PATH;
	struct error err;

	if (cli->config)
		return EXIT_OK;
	int rc = config_load(file, &cli->config, &err);
	if (rc == -ENOENT && !cli->config_file)
		rc = config_default(&cli->config, &err);
	return rc < 0 ? cli_failed(cli, "%s", err.text) : EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------
 * The server
 */

/* A connection; -ENOTCONN: no server runs there; else a negative errno. */
static int server_connect(struct cli *cli, const char **path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	*path = cli->control ? cli->control : cli->config->control;
	if (strlen(*path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	memcpy(address.sun_path, *path, strlen(*path) + 1);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		int rc = -errno;
		close(fd);
		return rc == -ENOENT || rc == -ECONNREFUSED || rc == -ENOTDIR ? -ENOTCONN : rc;
	}
	return fd;
}

bool cli_server_answers(struct cli *cli)
{
	const char *path;

	if (config_get(cli) != EXIT_OK)
		return false;
	int fd = server_connect(cli, &path);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static bool progress_show(void *arg, json_t *progress)
{
	uint64_t done = json_number(progress, "done"), total = json_number(progress, "total");

	(void)arg;
	if (total)
		cli_bar(json_text(progress, "what"), done, total, json_number(progress, "eta_seconds"));
	return true;
}

/* Sends the request and takes lines until one is the answer. Takes over FD. */
static json_t *server_call(int fd, const json_t *request, struct error *err)
{
	char *line = json_dumps(request, JSON_COMPACT);
	json_t *result = NULL;
	bool answered = false, progressed = false;
	size_t room = 0;

	FILE *stream = fdopen(fd, "r+");
	if (!stream || !line) {
		free(line);
		close(fd);
		error_set(err, -ENOMEM, "out of memory");
		return NULL;
	}
	fprintf(stream, "%s\n", line);
	fflush(stream);
	free(line);
	line = NULL;
	while (!answered && getline(&line, &room, stream) > 0) {
		json_t *answer = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
		const json_t *error = json_object_get(answer, "error");
		result = json_incref(json_object_get(answer, "result"));
		if (json_object_get(answer, "progress")) {
			progress_show(NULL, json_object_get(answer, "progress"));
			progressed = true;
		} else {
			answered = true;
		}
		if (answered && error)
			error_set(err, (int)json_integer_value(json_object_get(error, "code")), "%s",
				json_text(error, "text"));
		else if (answered && !result)
			error_set(err, -EPROTO, "the server's answer makes no sense; is it of another version?");
		json_decref(answer);
	}
	if (progressed)
		cli_bar_end();
	if (!answered)
		error_set(err, -ECONNRESET, "the server closed the control connection before it answered");
	free(line);
	fclose(stream);
	return result;
}

/* ------------------------------------------------------------------------------------------------
 * Here
 */

struct here {
	struct cli *cli;
	json_t *request, *result;
	bool read_only, progressed;
	struct error *err;
};

static bool here_progress(void *arg, json_t *progress)
{
	struct here *here = arg;

	here->progressed = true;
	return progress_show(NULL, progress);
}

static void here_main(void *arg)
{
	struct here *here = arg;
	static struct storage storage;
	const char *none[1] = {NULL};
	char **drives = here->cli->config->drives;
	unsigned count = here->cli->config->drive_count;

	if (here->cli->drive_count) {
		drives = (char **)(uintptr_t)here->cli->drives;
		count = here->cli->drive_count;
	}
	storage = (struct storage){.read_only = here->read_only, .cache_bytes = arena_total_bytes() / 2};
	if (storage_open(&storage, drives, count, none, 0, here->err) < 0)
		return;
	here->result = admin_run(NULL, &storage, here->request, here_progress, here, here->err);
	storage_close(&storage);
}

static json_t *here_call(struct cli *cli, json_t *request, bool read_only, struct error *err)
{
	bool check = !strcmp(json_text(request, "command"), "fs.check");
	struct core_config core = {.reactors = 1,
		.arena_bytes = check ? OFFLINE_ARENA_CHECK : OFFLINE_ARENA,
		.fibers = 256,
		.helper_threads = 1};
	struct here here = {.cli = cli, .request = request, .read_only = read_only, .err = err};

	if (core_main(&core, here_main, &here, err) < 0)
		return NULL;
	if (here.progressed)
		cli_bar_end();
	return here.result;
}

json_t *cli_call(struct cli *cli, json_t *request, unsigned flags)
{
	struct error err = {0};
	const char *path = NULL;
	json_t *result = NULL;
	int fd = -ENOTCONN;

	if (config_get(cli) != EXIT_OK) {
		json_decref(request);
		return NULL;
	}
	if (!(flags & CALL_HERE))
		fd = server_connect(cli, &path);
	if (fd >= 0)
		result = server_call(fd, request, &err);
	else if (fd != -ENOTCONN)
		error_set(&err, fd, "control socket %s: %s", path, strerror(-fd));
	else if (flags & CALL_SERVER)
		error_set(&err, -ENOTCONN, "no server answers on the control socket %s", path);
	else
		result = here_call(cli, request, flags & CALL_READ_ONLY, &err);
	json_decref(request);
	if (!result && !(flags & CALL_QUIET))
		cli_failed(cli, "%s", err.text);
	return result;
}

bool cli_confirm(const struct cli *cli, const char *question)
{
	char answer[16];

	if (cli->yes)
		return true;
	if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
		cli_failed(cli, "there is no terminal to ask on, and --yes was not given; nothing was changed");
		return false;
	}
	fprintf(stderr, "%s [y/N] ", question);
	if (fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y'))
		return true;
	cli_failed(cli, "nothing was changed");
	return false;
}
