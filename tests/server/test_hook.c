/*
 * The hook program: its arguments, one that hangs, one that does not exist, more events than the queue holds, and a
 * server that stops right after an event.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "raid/raid_internal.h"
#include "server/server_internal.h"

static char dir[100], program[130], out[130];

static void program_make(const char *body)
{
	FILE *f = fopen(program, "w");
	assert_non_null(f);
	fprintf(f, "#!/bin/sh\n%s\n", body);
	fclose(f);
	assert_int_equal(chmod(program, 0700), 0);
}

static bool out_has(const char *text, double seconds)
{
	for (double waited = 0; waited < seconds; waited += 0.05) {
		char have[65536] = "";
		FILE *f = fopen(out, "r");
		if (f) {
			size_t n = fread(have, 1, sizeof(have) - 1, f);
			have[n] = 0;
			fclose(f);
			if (strstr(have, text))
				return true;
		}
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	}
	return false;
}

static void emit(const char *event, const char *detail)
{
	static struct array array;
	static struct member member;
	snprintf(array.config.name, sizeof(array.config.name), "a0");
	snprintf(member.path, sizeof(member.path), "/dev/x y");
	event_emit(&array, event, &member, "%s", detail);
}

static void test_arguments(void **state)
{
	struct error err;
	char body[300];
	(void)state;
	snprintf(body, sizeof(body), "echo \"$#|$1|$2|$3|$4\" >>%s", out);
	program_make(body);
	assert_int_equal(hook_start(program, &err), 0);
	emit("member-failed", "it's; gone $(touch x) \"quoted\"");
	assert_true(out_has("4|member-failed|a0|/dev/x y|it's; gone $(touch x) \"quoted\"", 10));
	hook_stop();
	emit("member-failed", "nobody listens");
}

static void test_flood(void **state)
{
	struct error err;
	char body[300];
	(void)state;
	unlink(out);
	snprintf(body, sizeof(body), "[ \"$4\" = first ] && sleep 1; echo \"$4\" >>%s; exit 3", out);
	program_make(body);
	assert_int_equal(hook_start(program, &err), 0);
	uint64_t begun = now_ns();
	emit("e", "first");
	for (unsigned i = 0; i < 1000; i++)
		emit("e", "more");
	/* whoever tells of events is not held up */
	assert_true(now_ns() - begun < 500 * NSEC_PER_MSEC);
	assert_true(out_has("first", 10));
	hook_stop();
}

static void test_stop(void **state)
{
	struct error err;
	char body[300];
	(void)state;
	snprintf(body, sizeof(body), "echo \"heard $4\" >>%s", out);
	program_make(body);
	assert_int_equal(hook_start(program, &err), 0);
	emit("e", "one");
	emit("e", "two");
	emit("e", "the last");
	hook_stop();
	assert_true(out_has("heard the last", 0.1));
}

static void test_missing(void **state)
{
	struct error err;
	(void)state;
	assert_int_equal(hook_start("/nonexistent/program", &err), 0);
	emit("e", "x");
	hook_stop();
	assert_int_equal(hook_start(NULL, &err), 0);
	emit("e", "x");
	hook_stop();
}

static void test_hangs(void **state)
{
	struct error err;
	(void)state;
	program_make("exec sleep 100");
	assert_int_equal(hook_start(program, &err), 0);
	emit("e", "x");
	nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
	uint64_t begun = now_ns();
	hook_stop();
	assert_true(now_ns() - begun < 10 * NSEC_PER_SEC);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_arguments),
		cmocka_unit_test(test_flood),
		cmocka_unit_test(test_stop),
		cmocka_unit_test(test_missing),
		cmocka_unit_test(test_hangs),
	};
	snprintf(dir, sizeof(dir), "/tmp/furrow-hook-XXXXXX");
	if (!mkdtemp(dir))
		abort();
	snprintf(program, sizeof(program), "%s/hook", dir);
	snprintf(out, sizeof(out), "%s/out", dir);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(program);
	unlink(out);
	rmdir(dir);
	return failed;
}
