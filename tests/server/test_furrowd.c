/*
 * furrowd as a process: starts that must fail with one line that says why, another table of exports by SIGHUP, and the
 * start that detaches. An NFSv3 client tells that it serves, or goes on serving.
 */
#include "tests/server/nfs3_test.h"

/* Waits for the process; its status. */
static int end_status(pid_t pid)
{
	int status = -1;

	for (int i = 0; i < 1000; i++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
		run_pause();
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return -1;
}

static void start_errors(void **state)
{
	char log[128];
	struct run second = run;

	(void)state;
	snprintf(log, sizeof(log), "%s/log2", run.dir);
	/* the port is taken, with and without a terminal to stay in */
	static const char *const stay[] = {"--foreground", NULL};
	for (unsigned i = 0; i < 2; i++) {
		unlink(log);
		assert_int_equal(end_status(run_spawn(&run, stay[i], log)), 1);
		assert_true(run_log_has(log, "cannot listen on 127.0.0.1 port"));
	}
	unlink(log);
	assert_int_equal(end_status(run_spawn(&run, "--config", log)), 2); /* an option without its value */

	/* another port does not help: the drives are taken */
	second.port = run_free_port();
	unlink(log);
	run_write_config(&second, RUN_EXPORT_YAML);
	assert_int_equal(end_status(run_spawn(&second, "--foreground", log)), 1);
	assert_true(run_log_has(log, "furrowd: "));
	assert_int_equal(end_status(run_spawn(&second, "--check", log)), 0);
	run_write_config(&run, RUN_EXPORT_YAML);
	assert_int_equal(getattr(&root, &top, NULL), NFS3_OK);

	/* a configuration with a mistake names the place */
	run_write_config(&run, "  - path: /data\n    filesystem: a0/data\n    alow: []\n");
	unlink(log);
	assert_int_equal(end_status(run_spawn(&run, "--check", log)), 1);
	assert_true(run_log_has(log, "furrow.yaml:"));
	run_write_config(&run, RUN_EXPORT_YAML);
}

static void reload(void **state)
{
	mountstat3 status;
	char more[sizeof(RUN_EXPORT_YAML) + 200];

	(void)state;
	client_mount(&root, "/later", &status);
	assert_int_equal(status, MNT3ERR_NOENT);
	snprintf(more, sizeof(more),
		"%s  - path: /later\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.1, access: ro}\n",
		RUN_EXPORT_YAML);
	run_write_config(&run, more);
	kill(run.pid, SIGHUP);
	run_wait_log(&run, "exports reloaded");
	struct kept later = client_mount(&root, "/later", &status);
	assert_int_equal(status, MNT3_OK);
	assert_int_equal(getattr(&root, &top, NULL), NFS3_OK);

	/* what cannot be made whole changes nothing */
	run_write_config(&run,
		"  - path: /later\n    filesystem: a0/none\n    allow:\n      - {clients: 127.0.0.1, access: rw}\n");
	kill(run.pid, SIGHUP);
	run_wait_log(&run, "reload refused");
	assert_int_equal(getattr(&root, &later, NULL), NFS3_OK);
	assert_int_equal(getattr(&root, &top, NULL), NFS3_OK);

	/* what only a start puts in force is told */
	run.server = "  lease: 60\n";
	run_write_config(&run, more);
	kill(run.pid, SIGHUP);
	run_wait_log(&run, "settings that have changed take effect at the next start");
	run.server = NULL;

	/* an export that is taken back: its handles lead nowhere */
	run_write_config(&run, RUN_EXPORT_YAML);
	kill(run.pid, SIGHUP);
	for (int i = 0; i < 1000 && getattr(&root, &later, NULL) == NFS3_OK; i++)
		run_pause();
	assert_int_equal(getattr(&root, &later, NULL), NFS3ERR_STALE);
	assert_int_equal(getattr(&root, &top, NULL), NFS3_OK);
}

/* Detached, with the caller's exit status that of the start. */
static void daemonized(void **state)
{
	char log[128];

	(void)state;
	run_stop(&run, SIGTERM);
	snprintf(log, sizeof(log), "%s/log2", run.dir);
	unlink(log);
	int status = end_status(run_spawn(&run, NULL, log));
	if (status)
		run_log_show(log);
	assert_int_equal(status, 0);
	assert_true(client_connect(&root)); /* it listens before the caller is let go */
	assert_int_equal(getattr(&root, &top, NULL), NFS3_OK);

	/* stop it: it is no child of ours, so find it by what it holds */
	char line[128];
	snprintf(line, sizeof(line), "%s/drive0", run.dir);
	FILE *f = fopen("/proc/locks", "r");
	pid_t found = 0;
	struct stat st;
	assert_int_equal(stat(line, &st), 0);
	char row[200];
	while (f && fgets(row, sizeof(row), f)) {
		unsigned long ino;
		int owner;
		if (sscanf(row, "%*d: FLOCK %*s %*s %d %*x:%*x:%lu", &owner, &ino) == 2 && ino == st.st_ino)
			found = owner;
	}
	if (f)
		fclose(f);
	assert_true(found > 1);
	kill(found, SIGTERM);
	for (int i = 0; i < 2000 && !run_log_has(log, "stopped"); i++)
		run_pause();
	assert_true(run_log_has(log, "stopped"));
	for (int i = 0; i < 1000 && !kill(found, 0); i++)
		run_pause();
}

static int setup(void **state)
{
	(void)state;
	return group_start(RUN_EXPORT_YAML);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(start_errors),
		cmocka_unit_test(reload),
		cmocka_unit_test(daemonized),
	};
	return cmocka_run_group_tests(tests, setup, group_end);
}
