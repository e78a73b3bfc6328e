/*
 * The tool as its user meets it: exit status, one line on stderr that says what and where, and what is printed. Runs
 * the program that lies beside this test in the build.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

static char program[4096], directory[64];
static char out[1 << 18], complaint[1 << 16];
static int status;

static void slurp(const char *name, char *text, size_t room)
{
	char path[128];
	ssize_t n;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	int fd = open(path, O_RDONLY);
	n = fd >= 0 ? read(fd, text, room - 1) : 0;
	text[n > 0 ? n : 0] = 0;
	close(fd);
}

/* Runs `furrow LINE`, in the directory of the drives, without a terminal. The shell splits the line. */
static void furrow(const char *format, ...)
{
	char line[4096], command[9000];
	va_list args;

	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	snprintf(command, sizeof(command), "cd %s && exec %s --control %s/no.sock >out 2>err </dev/null %s", directory,
		program, directory, line);
	int rc = system(command);
	assert_true(WIFEXITED(rc));
	status = WEXITSTATUS(rc);
	slurp("out", out, sizeof(out));
	slurp("err", complaint, sizeof(complaint));
}

static void expect_line(int line, int wanted, const char *says)
{
	char *end = strchr(complaint, '\n');

	if (status != wanted || !strstr(complaint, says) || strncmp(complaint, "furrow: ", 8) != 0 || !end || end[1])
		fail_msg("line %d: expected status %d and one line with \"%s\"; got %d and:\n%s", line, wanted, says,
			status, complaint);
	if (out[0])
		fail_msg("line %d: printed, though it failed:\n%s", line, out);
}
#define expect(wanted, says) expect_line(__LINE__, wanted, says)

static void expect_good_line(int line, const char *says)
{
	if (status != 0 || complaint[0] || !strstr(out, says))
		fail_msg("line %d: expected \"%s\"; got status %d and:\n%s%s", line, says, status, out, complaint);
}
#define expect_good(says) expect_good_line(__LINE__, says)

static void file_write(const char *name, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void test_usage(void **state)
{
	static const struct {
		const char *line, *says;
	} cases[] = {
		{"", "a command is missing"},
		{"nonsense", "unknown command \"nonsense\""},
		{"array", "expected one of: create, list, status, examine, fail, add, spare, remove, replace, rebuild, "
			  "scrub, destroy"},
		{"array make", "unknown command \"array make\""},
		{"fs", "needs a verb"},
		{"fs check $(printf 'a\\377/b')", "argument 5 is not valid UTF-8"},
		{"--nonsense", "unknown option \"--nonsense\""},
		{"status --nonsense=3", "unknown option \"--nonsense=3\""},
		{"status -x", "unknown option \"-x\""},
		{"status more", "too many arguments, \"more\" is the first"},
		{"status --json=yes", "--json takes no value"},
		{"status --json --json", "--json stands twice"},
		{"status --config", "--config needs a value"},
		{"status --yes", "it has no option --yes"},
		{"status --level 6", "it has no option --level"},
		{"fs check a0/x --size 3", "it has no option --size"},
		{"array create a0", "too few arguments; expected NAME --level"},
		{"array create a0 d0 d1", "--level is missing"},
		{"array create a0 --level six d0 d1", "--level six is not valid"},
		{"array create a0 --level 6x d0 d1", "--level 6x is not valid"},
		{"array create a0 --level -6 d0 d1", "--level -6 is not valid"},
		{"array create a0 --level '' d0 d1", "--level  is not valid"},
		{"array create a0 --level 6 --strip 64KB d0 d1", "--strip 64KB is not a size"},
		{"array create a/0 --level 6 d0 d1", "\"a/0\" is not a name"},
		{"array create -- -a --level 6 d0", "is not a name"},
		{"array create a0 --level 1 d0 d0 --yes", "drive d0 is named twice"},
		{"array fail a0", "too few arguments"},
		{"array examine", "too few arguments"},
		{"fs create data --yes", "expected ARRAY/NAME"},
		{"fs create a0/x --size 3XB --yes", "--size 3XB is not a size"},
		{"fs create a0/x --size 0 --yes", "--size 0 is not a size"},
		{"fs check", "too few arguments"},
		{"fs check a0", "expected ARRAY/NAME"},
		{"fs destroy /x --yes", "expected ARRAY/NAME"},
		{"snapshot create a0/x", "too few arguments"},
		{"snapshot delete a0 s --yes", "expected ARRAY/NAME"},
		{"snapshot list a0/x --yes", "it has no option --yes"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		furrow("%s", cases[i].line);
		char *end = strchr(complaint, '\n');
		if (status != 2 || !strstr(complaint, cases[i].says) || !end || end[1] || out[0])
			fail_msg("furrow %s: expected status 2 and \"%s\"; got %d and:\n%s%s", cases[i].line,
				cases[i].says, status, complaint, out);
	}
}

static void test_help(void **state)
{
	(void)state;
	furrow("help");
	expect_good("furrow SUBJECT VERB");
	assert_non_null(strstr(out, "fs check"));
	furrow("--help");
	expect_good("furrow SUBJECT VERB");
	furrow("help array create");
	expect_good("--level 0|1|5|6|10|50|60");
	furrow("array create --help");
	expect_good("--level 0|1|5|6|10|50|60");
	furrow("help fs");
	expect_good("fs destroy");
	furrow("help nonsense");
	expect(1, "there is no command");
	furrow("version");
	expect_good("furrow 0.");
	furrow("--version");
	expect_good("furrow 0.");
	furrow("status >/dev/full");
	assert_int_equal(status, 1); /* what nobody could read was not told */
}

static void test_configuration(void **state)
{
	(void)state;
	furrow("status --config nowhere.yaml");
	expect(1, "nowhere.yaml: cannot read the configuration: No such file");
	file_write("bad.yaml", "server:\n  nfs_prot: 2049\n");
	furrow("status --config bad.yaml");
	expect(1, "bad.yaml:2:3: unknown key \"nfs_prot\"");
	furrow("reload --drives x");
	expect(1, "no server answers on the control socket");
}

static void test_life(void **state)
{
	(void)state;
	for (int i = 0; i < 5; i++) {
		char path[128];
		snprintf(path, sizeof(path), "%s/d%d", directory, i);
		int fd = open(path, O_RDWR | O_CREAT, 0600);
		assert_int_equal(ftruncate(fd, 128 << 20), 0);
		close(fd);
	}
	furrow("drive list --drives 'd*'");
	expect_good("DRIVE  KIND     SIZE  MODEL  SERIAL  HOLDS\nd0     file  128 MiB");
	furrow("array list --drives 'd*'");
	expect_good("no arrays");

	/* refused before anything is asked or written */
	furrow("array create a0 --level 6 d0 d1 d2 d3");
	assert_int_equal(status, 1); /* nobody to ask */
	assert_non_null(strstr(complaint, "there is no terminal to ask on, and --yes was not given"));
	furrow("array create a0 --level 6 d0 d1 d2 nowhere --yes");
	expect(1, "drive nowhere: No such file or directory");
	file_write("script", "#!/bin/sh\nexit 0\n");
	furrow("array create a0 --level 6 d0 d1 d2 . --yes");
	expect(1, "drive .");
	furrow("drive list --drives 'd*' --json");
	expect_good("\"content\": \"empty\"");
	assert_null(strstr(out, "member"));

	furrow("array create a0 --level 6 --strip 64KiB d0 d1 d2 d3 --yes");
	expect_good("array a0 is made of 4 drives");
	furrow("array create b0 --level 1 d3 d4 --yes");
	expect(1, "drive d3 holds something: member 3 of array a0; --force overwrites it");
	furrow("array status --drives 'd*'");
	expect_good("array a0: healthy, level 6, 2+2, strip 64 KiB");
	furrow("array status nowhere --drives 'd*'");
	expect(1, "array nowhere: none of the 5 drives");
	/* nor is a drive taken by the commands that add one */
	furrow("array add a0 d4 --force --drives 'd*'");
	expect(1, "there is no terminal to ask on");
	furrow("array spare a0 d4 --force --drives 'd*'");
	expect(1, "there is no terminal to ask on");
	furrow("array replace a0 0 d4 --force --drives 'd*'");
	expect(1, "there is no terminal to ask on");
	furrow("array examine d0");
	expect_good("a0");
	furrow("array examine d4");
	expect_good("d4");
	furrow("array examine nowhere");
	expect(1, "nowhere: No such file");
	furrow("fs create a0/data --yes --size 64MiB --drives 'd*'");
	expect_good("file system a0/data is made, 6");
	furrow("fs create a0/data --yes --drives 'd*'");
	expect(1, "file system a0/data exists already");
	furrow("fs create a9/data --yes --drives 'd*'");
	expect(1, "array a9: none of the 5 drives");
	furrow("fs list --drives 'd*'");
	expect_good("a0/data      not mounted");
	furrow("fs status a0/data --drives 'd*'");
	expect_good("mounted read-only");
	furrow("fs check a0/data --drives 'd*'");
	expect_good("no faults");
	furrow("fs check a0/data --quick --drives 'd*'");
	expect_good("no faults");
	furrow("fs check a0/data --repair --drives 'd*'");
	expect_good("no faults");
	furrow("array fail a0 9 --drives 'd*'");
	expect(1, "there is no such slot");
	furrow("array fail a0 1 --drives 'd*'");
	expect_good("the array is degraded");
	furrow("array status --drives 'd*'");
	expect_good("degraded");

	/* JSON is JSON */
	static const char *const listings[] = {"status", "array list", "array status", "fs list", "fs status",
		"drive list", "array examine d0", "version", "fs check a0/data"};
	for (size_t i = 0; i < sizeof(listings) / sizeof(listings[0]); i++) {
		furrow("%s --json --drives 'd*'", listings[i]);
		json_error_t why;
		json_t *json = json_loads(out, JSON_REJECT_DUPLICATES, &why);
		if (status != 0 || !json_is_object(json))
			fail_msg(
				"furrow %s --json: status %d, %s\n%s%s", listings[i], status, why.text, out, complaint);
		json_decref(json);
	}

	/* drives that another program holds */
	char path[128];
	snprintf(path, sizeof(path), "%s/d0", directory);
	int fd = open(path, O_RDWR);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	furrow("fs check a0/data --drives 'd*'");
	expect(1, "d0: in use by another server or tool");
	furrow("array destroy a0 --yes --drives 'd*'");
	expect(1, "d0");
	close(fd);

	furrow("array destroy a0 --drives 'd*'");
	assert_int_equal(status, 1);
	furrow("fs destroy a0/data --drives 'd*'");
	assert_int_equal(status, 1);
	furrow("fs destroy a0/data --yes --drives 'd*'");
	expect_good("file system a0/data is destroyed");
	furrow("array destroy a0 --yes --drives 'd*'");
	expect_good("array a0 is destroyed");
	furrow("status --drives 'd*'");
	expect_good("server      not running\n\nno arrays\n\nno file systems\n");
}

static int setup(void **state)
{
	(void)state;
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 32);
	if (n < 0)
		return -1;
	program[n] = 0;
	for (int i = 0; i < 3; i++) /* BUILD/tests/server/test_cli */
		*strrchr(program, '/') = 0;
	strcat(program, "/furrow");
	if (access(program, X_OK) < 0) {
		print_message("%s is missing; build it first\n", program);
		return -1;
	}
	strcpy(directory, "/tmp/furrow-cli-XXXXXX");
	return mkdtemp(directory) ? 0 : -1;
}

static int teardown(void **state)
{
	char command[100];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", directory);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_usage),
		cmocka_unit_test(test_help),
		cmocka_unit_test(test_configuration),
		cmocka_unit_test(test_life),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
