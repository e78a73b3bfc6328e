/*
 * A furrowd of one's own for tests: file-backed drives in a temporary directory with an array and a file system on
 * them, a configuration, and the process. The program is the one built beside the test.
 */
#ifndef TESTS_FURROWD_RUN_H
#define TESTS_FURROWD_RUN_H

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "server/server_internal.h"
#include "tests/server/nfs_client.h"

#define RUN_DRIVES 4
#ifndef RUN_DRIVE_BYTES
#define RUN_DRIVE_BYTES (512ull << 20) /* sparse */
#endif

/* The export of the file system: root on any machine may do all. */
#define RUN_EXPORT_YAML                                                                                                \
	"  - path: /data\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.0/8, access: rw, squash: "    \
	"none}\n"

struct run {
	char dir[64], program[PATH_MAX], config[128], log[128];
	char tool[PATH_MAX + 160]; /* the tool, as the beginning of a command for the shell */
	uint16_t port;
	uint16_t metrics_port; /* 0: none */
	const char *rdma;      /* the address where it serves RDMA, too, on the same number as TCP; NULL: not */
	const char *server;    /* further lines of "server:", or NULL */
	pid_t pid;
	struct error err;
	int rc;
};

static inline uint16_t run_free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	close(fd);
	return ntohs(a.sin_port);
}

/* The volume of the drives, made first or not, for WORK. */
static inline void run_volume(struct run *run, bool make, void (*work)(struct run *run, struct volume *volume))
{
	char path[RUN_DRIVES][128];
	const char *drives[RUN_DRIVES];
	struct raid_scan scan = {0};
	struct array *array = NULL;
	struct volume *volume = NULL;

	for (unsigned i = 0; i < RUN_DRIVES; i++) {
		snprintf(path[i], sizeof(path[i]), "%s/drive%u", run->dir, i);
		drives[i] = path[i];
	}
	struct array_create create = {.name = "a0", .level = 6, .drives = drives, .count = RUN_DRIVES};
	run->rc = make ? array_create(&create, &run->err) : 0;
	if (!run->rc)
		run->rc = raid_scan(drives, RUN_DRIVES, &scan, &run->err);
	if (!run->rc)
		run->rc = array_open(&scan, "a0", &array, &run->err);
	raid_scan_free(&scan);
	if (!run->rc && make)
		run->rc = volume_create(array, "data", 0, &run->err);
	if (!run->rc)
		run->rc = volume_open(array, "data", &volume, &run->err);
	if (!run->rc)
		work(run, volume);
	if (volume)
		volume_close(volume);
	if (array)
		array_close(array);
}

static inline void run_format(struct run *run, struct volume *volume)
{
	struct fs_create_options options = {.root_mode = 0777};

	run->rc = fs_create(volume, &options, &run->err);
}

static inline void run_format_fiber(void *arg)
{
	run_volume(arg, true, run_format);
}

/* Runs FIBER, which has the run as its argument, in this process. */
static inline void run_core(struct run *run, void (*fiber)(void *run))
{
	struct core_config core = {.reactors = 1, .arena_bytes = 64u << 20};
	struct error err = {0};

	if (core_main(&core, fiber, run, &err) || run->rc)
		fail_msg("the file system cannot be worked on: %s%s", err.text, run->err.text);
}

static inline void run_write_config(const struct run *run, const char *exports)
{
	FILE *f = fopen(run->config, "w");
	char metrics[32] = "off", rdma[32] = "off", address[64] = "";

	assert_non_null(f);
	if (run->metrics_port)
		snprintf(metrics, sizeof(metrics), "127.0.0.1:%u", run->metrics_port);
	if (run->rdma) {
		snprintf(rdma, sizeof(rdma), "%u", run->port);
		snprintf(address, sizeof(address), ", \"%s\"", run->rdma);
	}
	fprintf(f,
		"server:\n  listen: [\"127.0.0.1\"%s]\n  nfs_port: %u\n  rdma_port: %s\n  cores: 2\n  memory: 256MiB\n"
		"  control: %s/control.sock\n  metrics: %s\n%sdrives: [\"%s/drive*\"]\nexports:\n%s",
		address, run->port, rdma, run->dir, metrics, run->server ? run->server : "", run->dir, exports);
	assert_int_equal(fclose(f), 0);
}

/* Drives, array, file system, configuration: everything but the process. */
static inline void run_init(struct run *run, const char *exports)
{
	char self[PATH_MAX], *build;

	memset(run, 0, sizeof(*run));
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	assert_true(n > 0);
	self[n] = 0;
	build = dirname(dirname(dirname(self)));
	snprintf(run->program, sizeof(run->program), "%.3900s/furrowd", build);
	if (access(run->program, X_OK))
		fail_msg("%s is not there: build it first", run->program);
	snprintf(run->dir, sizeof(run->dir), "/tmp/furrow-test-XXXXXX");
	assert_non_null(mkdtemp(run->dir));
	snprintf(run->config, sizeof(run->config), "%s/furrow.yaml", run->dir);
	snprintf(run->log, sizeof(run->log), "%s/log", run->dir);
	snprintf(run->tool, sizeof(run->tool), "%.3900s/furrow --config %s", build, run->config);
	for (unsigned i = 0; i < RUN_DRIVES; i++) {
		char path[128];
		snprintf(path, sizeof(path), "%s/drive%u", run->dir, i);
		int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		assert_true(fd >= 0 && !ftruncate(fd, (off_t)RUN_DRIVE_BYTES));
		close(fd);
	}
	run_core(run, run_format_fiber);
	run->port = run_free_port();
	run_write_config(run, exports);
}

/* A process with standard error in LOG and one more OPTION, or none with NULL. */
static inline pid_t run_spawn(const struct run *run, const char *option, const char *log)
{
	pid_t pid = fork();

	if (!pid) {
		int fd = open(log, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
		dup2(fd, STDERR_FILENO);
		execl(run->program, "furrowd", "--config", run->config, option, (char *)NULL);
		_exit(127);
	}
	return pid;
}

static inline void run_log_show(const char *log)
{
	char line[600];
	FILE *f = fopen(log, "r");

	while (f && fgets(line, sizeof(line), f))
		fputs(line, stderr);
	if (f)
		fclose(f);
}

static inline bool run_log_has(const char *log, const char *words)
{
	char line[600];
	bool has = false;
	FILE *f = fopen(log, "r");

	while (f && !has && fgets(line, sizeof(line), f))
		has = strstr(line, words);
	if (f)
		fclose(f);
	return has;
}

static inline void run_pause(void)
{
	struct timespec t = {.tv_nsec = 10 * 1000 * 1000};
	nanosleep(&t, NULL);
}

/* Waits until WORDS stand in the log. */
static inline void run_wait_log(const struct run *run, const char *words)
{
	for (int i = 0; i < 2000; i++) {
		if (run_log_has(run->log, words))
			return;
		if (run->pid > 0 && waitpid(run->pid, NULL, WNOHANG) == run->pid)
			break;
		run_pause();
	}
	run_log_show(run->log);
	fail_msg("furrowd has not logged \"%s\"", words);
}

static inline void run_start(struct run *run)
{
	unlink(run->log);
	run->pid = run_spawn(run, "--foreground", run->log);
	assert_true(run->pid > 0);
	run_wait_log(run, "ready version");
}

/* SIGTERM must end in status 0, which a sanitizer's complaint is not; SIGKILL is a crash. */
static inline void run_stop(struct run *run, int sig)
{
	int status = -1;

	kill(run->pid, sig);
	for (int i = 0; i < 2000 && waitpid(run->pid, &status, WNOHANG) != run->pid; i++)
		run_pause();
	run->pid = 0;
	if (sig == SIGTERM && status) {
		run_log_show(run->log);
		fail_msg("furrowd ended with status %#x", (unsigned)status);
	}
}

/* `furrow ARGUMENTS`; standard output is to be read, and pclose() tells its status. */
static inline FILE *run_tool_open(const struct run *run, const char *arguments)
{
	char command[sizeof(run->tool) + 400];

	snprintf(command, sizeof(command), "%s %s", run->tool, arguments);
	FILE *f = popen(command, "r");
	assert_non_null(f);
	return f;
}

/* `furrow ARGUMENTS`, all that it says in DIR/log2; its status as of wait(). */
static inline int run_tool(const struct run *run, const char *arguments)
{
	char line[400];

	snprintf(line, sizeof(line), "%s >> %s/log2 2>&1", arguments, run->dir);
	return pclose(run_tool_open(run, line));
}

static inline void run_fini(struct run *run)
{
	static const char *const files[] = {
		"drive0", "drive1", "drive2", "drive3", "furrow.yaml", "log", "log2", "control.sock"};

	if (run->pid > 0)
		run_stop(run, SIGKILL);
	for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		char path[128];
		snprintf(path, sizeof(path), "%s/%s", run->dir, files[i]);
		unlink(path);
	}
	rmdir(run->dir);
}

#endif
