/*
 * Admin commands as the tool runs them without a server: admin_run() over file drives, from making an array to
 * destroying it, and what must be refused. Whatever is refused must have written nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/server_internal.h"

#define DRIVES 5
#define DRIVE_BYTES (128ull << 20)

static char directory[64], drive[DRIVES][96], pattern[96];

/* ------------------------------------------------------------------------------------------------
 * One command, as `furrow` runs it
 */

struct command {
	json_t *request, *result;
	struct error err;
	unsigned progressed;
	bool read_only;
	struct server *server; /* as the server runs it: what is opened stays open for THEN */
	json_t *then, *then_result;
	struct error then_err;
};

static bool progress_count(void *arg, json_t *progress)
{
	struct command *command = arg;

	assert_true(json_integer_value(json_object_get(progress, "total")) > 0);
	command->progressed++;
	return true;
}

static void command_main(void *arg)
{
	static struct storage storage;
	struct command *command = arg;
	char *patterns[] = {pattern};
	const char *none[1] = {NULL};

	storage = (struct storage){.read_only = command->read_only};
	if (storage_open(&storage, patterns, 1, none, 0, &command->err) < 0)
		return;
	command->result =
		admin_run(command->server, &storage, command->request, progress_count, command, &command->err);
	if (command->then)
		command->then_result =
			admin_run(command->server, &storage, command->then, NULL, NULL, &command->then_err);
	storage_close(&storage);
}

static void command_run(struct command *command)
{
	struct core_config core = {.reactors = 1, .arena_bytes = 16 << 20, .fibers = 128, .helper_threads = 1};
	struct error err = {0};

	if (core_main(&core, command_main, command, &err) < 0)
		fail_msg("%s", err.text);
	json_decref(command->request);
	json_decref(command->then);
}

/* The result of a command that must succeed; FORMAT is one of json_pack(). */
#define run_good(...) run_good_at(__LINE__, json_pack(__VA_ARGS__))
static json_t *run_good_at(int line, json_t *request)
{
	struct command command = {.request = request};

	assert_non_null(request);
	command_run(&command);
	if (!command.result)
		fail_msg("line %d: %s", line, command.err.text);
	return command.result;
}

/* A command that must fail with CODE, in one line in which SAYS stands. */
#define run_bad(code, says, ...) run_bad_at(__LINE__, code, says, json_pack(__VA_ARGS__))
static void run_bad_at(int line, int code, const char *says, json_t *request)
{
	struct command command = {.request = request};

	assert_non_null(request);
	command_run(&command);
	if (command.result)
		fail_msg("line %d: succeeded", line);
	if (command.err.code != code || !strstr(command.err.text, says) || strchr(command.err.text, '\n'))
		fail_msg("line %d: expected %d \"%s\", got %d \"%s\"", line, code, says, command.err.code,
			command.err.text);
}

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "";
}

static json_int_t number_of(const json_t *object, const char *key)
{
	return json_integer_value(json_object_get(object, key));
}

/* Of what is not a hole, and where it stands. */
static uint64_t drive_sum(unsigned i)
{
	static uint8_t block[1 << 16];
	uint64_t sum = 0;
	off_t at = 0;
	ssize_t n;
	int fd = open(drive[i], O_RDONLY);

	assert_true(fd >= 0);
	while ((at = lseek(fd, at, SEEK_DATA)) >= 0 && (n = pread(fd, block, sizeof(block), at)) > 0) {
		sum = checksum64(block, (size_t)n, sum ^ (uint64_t)at);
		at += n;
	}
	close(fd);
	return sum;
}

static void drive_make(unsigned i)
{
	int fd = open(drive[i], O_RDWR | O_CREAT | O_TRUNC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, DRIVE_BYTES), 0);
	close(fd);
}

static json_t *four_drives(void)
{
	return json_pack("[s,s,s,s]", drive[0], drive[1], drive[2], drive[3]);
}

static void array_make(void)
{
	for (unsigned i = 0; i < DRIVES; i++)
		drive_make(i);
	json_decref(run_good(
		"{s:s,s:s,s:i,s:o}", "command", "array.create", "name", "a0", "level", 6, "drives", four_drives()));
}

/* ------------------------------------------------------------------------------------------------ */

static void test_life(void **state)
{
	(void)state;
	array_make();

	json_t *result = run_good("{s:s}", "command", "drive.list");
	const json_t *drives = json_object_get(result, "drives");
	assert_int_equal(json_array_size(drives), DRIVES);
	assert_string_equal(text_of(json_array_get(drives, 0), "content"), "member");
	assert_string_equal(text_of(json_array_get(drives, 0), "array"), "a0");
	assert_string_equal(text_of(json_array_get(drives, 4), "content"), "empty");
	json_decref(result);

	result = run_good("{s:s,s:s}", "command", "array.status", "name", "a0");
	const json_t *array = json_array_get(json_object_get(result, "arrays"), 0);
	assert_string_equal(text_of(array, "state"), "healthy");
	assert_int_equal(number_of(array, "level"), 6);
	assert_int_equal(number_of(array, "k"), 2);
	assert_int_equal(number_of(array, "m"), 2);
	assert_int_equal(json_array_size(json_object_get(array, "members")), 4);
	assert_string_equal(text_of(json_array_get(json_object_get(array, "members"), 3), "state"), "active");
	json_int_t free_bytes = number_of(array, "free_bytes");
	assert_true(free_bytes > (json_int_t)DRIVE_BYTES && free_bytes <= 2 * (json_int_t)DRIVE_BYTES);
	json_decref(result);

	json_decref(
		run_good("{s:s,s:s,s:I}", "command", "fs.create", "name", "a0/one", "bytes", (json_int_t)(96 << 20)));
	run_bad(-EEXIST, "a0/one exists already", "{s:s,s:s}", "command", "fs.create", "name", "a0/one");
	json_decref(run_good("{s:s,s:s}", "command", "fs.create", "name", "a0/two"));
	run_bad(-ENOSPC, "a0/three", "{s:s,s:s}", "command", "fs.create", "name", "a0/three");

	result = run_good("{s:s}", "command", "fs.list");
	assert_int_equal(json_array_size(json_object_get(result, "filesystems")), 2);
	assert_string_equal(text_of(json_array_get(json_object_get(result, "filesystems"), 0), "name"), "a0/one");
	json_decref(result);

	json_decref(run_good("{s:s,s:s,s:s}", "command", "snapshot.create", "name", "a0/one", "snapshot", "monday"));
	run_bad(-EEXIST, "a0/one, snapshot monday: exists already", "{s:s,s:s,s:s}", "command", "snapshot.create",
		"name", "a0/one", "snapshot", "monday");
	run_bad(-EINVAL, "not a name for a snapshot", "{s:s,s:s,s:s}", "command", "snapshot.create", "name", "a0/one",
		"snapshot", ".x");
	run_bad(-ENOENT, "none of that name", "{s:s,s:s,s:s}", "command", "snapshot.delete", "name", "a0/one",
		"snapshot", "sunday");
	result = run_good("{s:s,s:s}", "command", "snapshot.list", "name", "a0/one");
	assert_int_equal(json_array_size(json_object_get(result, "snapshots")), 1);
	assert_string_equal(text_of(json_array_get(json_object_get(result, "snapshots"), 0), "snapshot"), "monday");
	json_decref(result);
	json_decref(run_good("{s:s,s:s,s:s}", "command", "snapshot.delete", "name", "a0/one", "snapshot", "monday"));
	result = run_good("{s:s,s:s}", "command", "snapshot.list", "name", "a0/one");
	assert_int_equal(json_array_size(json_object_get(result, "snapshots")), 0);
	json_decref(result);

	result = run_good("{s:s,s:s}", "command", "fs.check", "name", "a0/one");
	assert_int_equal(number_of(result, "errors"), 0);
	assert_int_equal(json_array_size(json_object_get(result, "faults")), 0);
	json_decref(result);

	result = run_good("{s:s}", "command", "status");
	assert_true(json_is_null(json_object_get(result, "server")));
	assert_int_equal(json_array_size(json_object_get(result, "arrays")), 1);
	assert_int_equal(json_array_size(json_object_get(result, "filesystems")), 2);
	json_decref(result);

	json_decref(run_good("{s:s,s:s}", "command", "fs.destroy", "name", "a0/one"));
	run_bad(-ENOENT, "a0/one", "{s:s,s:s}", "command", "fs.status", "name", "a0/one");
	json_decref(
		run_good("{s:s,s:s,s:I}", "command", "fs.create", "name", "a0/one", "bytes", (json_int_t)(64 << 20)));

	json_decref(run_good("{s:s,s:s}", "command", "array.destroy", "name", "a0"));
	run_bad(-ENOENT, "a0", "{s:s,s:s}", "command", "array.status", "name", "a0");
	result = run_good("{s:s}", "command", "drive.list");
	for (unsigned i = 0; i < DRIVES; i++)
		assert_string_equal(text_of(json_array_get(json_object_get(result, "drives"), i), "content"), "empty");
	json_decref(result);
}

/* A command that only looks writes nothing, not even a mark that it was there. */
static void test_looking_writes_nothing(void **state)
{
	uint64_t sums[DRIVES];

	(void)state;
	array_make();
	json_decref(run_good("{s:s,s:s}", "command", "fs.create", "name", "a0/data"));
	for (unsigned i = 0; i < DRIVES; i++)
		sums[i] = drive_sum(i);
	json_decref(run_good("{s:s}", "command", "drive.list"));
	json_decref(run_good("{s:s,s:[s]}", "command", "array.examine", "drives", drive[0]));
	for (unsigned i = 0; i < DRIVES; i++)
		assert_true(sums[i] == drive_sum(i));
}

static void test_refused(void **state)
{
	uint64_t sums[DRIVES];
	char missing[128];

	(void)state;
	array_make();
	for (unsigned i = 0; i < DRIVES; i++)
		sums[i] = drive_sum(i);

	/* a drive of another array, a foreign one, one in use, one too many, one that is not there */
	run_bad(-EEXIST, drive[0], "{s:s,s:s,s:i,s:o}", "command", "array.create", "name", "b0", "level", 6, "drives",
		four_drives());
	int fd = open(drive[4], O_RDWR);
	assert_true(fd >= 0);
	uint8_t magic[2] = {0x53, 0xef}; /* of an ext4 superblock */
	assert_int_equal(pwrite(fd, magic, 2, 1024 + 56), 2);
	sums[4] = drive_sum(4);
	run_bad(-EEXIST, drive[4], "{s:s,s:s,s:i,s:[s,s]}", "command", "array.create", "name", "b0", "level", 1,
		"drives", drive[4], drive[4]);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	run_bad(-EBUSY, drive[4], "{s:s,s:s,s:i,s:b,s:[s,s]}", "command", "array.create", "name", "b0", "level", 1,
		"force", 1, "drives", drive[4], drive[3]);
	close(fd);
	snprintf(missing, sizeof(missing), "%s/nowhere", directory);
	run_bad(-ENOENT, missing, "{s:s,s:s,s:i,s:b,s:[s,s]}", "command", "array.create", "name", "b0", "level", 1,
		"force", 1, "drives", missing, drive[4]);
	run_bad(-ENOTBLK, "/dev/null", "{s:s,s:s,s:i,s:[s,s]}", "command", "array.create", "name", "b0", "level", 1,
		"drives", "/dev/null", drive[4]);
	/* sizes and names that make no sense */
	run_bad(-EINVAL, "name", "{s:s,s:s,s:i,s:b,s:o}", "command", "array.create", "name", "../x", "level", 6,
		"force", 1, "drives", four_drives());
	run_bad(-EINVAL, "", "{s:s,s:s,s:i,s:b,s:o}", "command", "array.create", "name", "b0", "level", 7, "force", 1,
		"drives", four_drives());
	run_bad(-EINVAL, "strip", "{s:s,s:s,s:i,s:i,s:b,s:o}", "command", "array.create", "name", "b0", "level", 6,
		"strip_bytes", 5000, "force", 1, "drives", four_drives());
	run_bad(-EINVAL, "", "{s:s,s:s,s:i,s:b,s:[s]}", "command", "array.create", "name", "b0", "level", 6, "force", 1,
		"drives", drive[4]);
	for (unsigned i = 0; i < DRIVES; i++)
		if (sums[i] != drive_sum(i))
			fail_msg("drive %u was written to", i);
}

static void test_missing_members(void **state)
{
	char away[128];

	(void)state;
	array_make();
	json_decref(run_good("{s:s,s:s}", "command", "fs.create", "name", "a0/data"));

	/* two of four may be missing */
	for (unsigned i = 0; i < 2; i++) {
		snprintf(away, sizeof(away), "%s/away%u", directory, i);
		assert_int_equal(rename(drive[i], away), 0);
	}
	json_t *result = run_good("{s:s}", "command", "array.status");
	const json_t *array = json_array_get(json_object_get(result, "arrays"), 0);
	assert_string_equal(text_of(array, "state"), "degraded");
	json_decref(result);
	result = run_good("{s:s,s:s}", "command", "fs.check", "name", "a0/data");
	assert_int_equal(number_of(result, "errors"), 0);
	json_decref(result);

	/* three are too many: said with the array's name, and the list still shows it */
	uint64_t sum = drive_sum(3);
	snprintf(away, sizeof(away), "%s/away2", directory);
	assert_int_equal(rename(drive[2], away), 0);
	run_bad(-EIO, "array a0: ", "{s:s,s:s}", "command", "fs.check", "name", "a0/data");
	result = run_good("{s:s}", "command", "array.status");
	array = json_array_get(json_object_get(result, "arrays"), 0);
	assert_string_equal(text_of(array, "state"), "failed");
	assert_non_null(strstr(text_of(array, "problem"), "too many members"));
	json_decref(result);
	assert_true(sum == drive_sum(3));

	/* a drive that is there, but holds something else by now, is named */
	uint8_t magic[2] = {0x53, 0xef};
	drive_make(2);
	int fd = open(drive[2], O_RDWR);
	assert_int_equal(pwrite(fd, magic, 2, 1024 + 56), 2);
	close(fd);
	run_bad(-EIO, drive[2], "{s:s,s:s}", "command", "fs.check", "name", "a0/data");

	for (unsigned i = 0; i < 3; i++) {
		snprintf(away, sizeof(away), "%s/away%u", directory, i);
		unlink(away);
	}
}

static void test_fail_member(void **state)
{
	(void)state;
	array_make();
	run_bad(-ENOENT, "slot", "{s:s,s:s,s:i}", "command", "array.fail", "name", "a0", "slot", 4);
	run_bad(-ENOENT, "/dev/x", "{s:s,s:s,s:s}", "command", "array.fail", "name", "a0", "drive", "/dev/x");
	json_t *result = run_good("{s:s,s:s,s:s}", "command", "array.fail", "name", "a0", "drive", drive[1]);
	assert_int_equal(number_of(result, "slot"), 1);
	assert_string_equal(text_of(result, "state"), "degraded");
	json_decref(result);
	result = run_good("{s:s}", "command", "array.status");
	const json_t *array = json_array_get(json_object_get(result, "arrays"), 0);
	const json_t *member = json_array_get(json_object_get(array, "members"), 1);
	assert_string_equal(text_of(array, "state"), "degraded");
	assert_string_not_equal(text_of(member, "state"), "active");
	json_decref(result);
}

/* In the server what a command opened stays open, and what is in use is not destroyed. */
static void test_in_server(void **state)
{
	static struct config config;
	static struct server server;

	(void)state;
	array_make();
	server.config = &config;
	struct command command = {.server = &server,
		.request = json_pack("{s:s,s:s}", "command", "fs.create", "name", "a0/data"),
		.then = json_pack("{s:s}", "command", "fs.status")};
	command_run(&command);
	if (!command.result)
		fail_msg("%s", command.err.text);
	const json_t *fs = json_array_get(json_object_get(command.then_result, "filesystems"), 0);
	assert_string_equal(text_of(fs, "name"), "a0/data");
	assert_true(json_is_true(json_object_get(fs, "mounted")));
	assert_true(number_of(fs, "bytes_total") > 0);
	json_decref(command.result);
	json_decref(command.then_result);

	/* the same array cannot be opened by another process meanwhile: claims are by open file */
	int fd = open(drive[0], O_RDWR);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	run_bad(-EBUSY, "a0", "{s:s,s:s}", "command", "fs.check", "name", "a0/data");
	close(fd);

	command = (struct command){.server = &server,
		.request = json_pack("{s:s}", "command", "storage.rescan"),
		.then = json_pack("{s:s,s:s}", "command", "array.destroy", "name", "a0")};
	command_run(&command);
	assert_string_equal(json_string_value(json_array_get(json_object_get(command.result, "opened"), 0)), "a0");
	if (!command.then_result)
		fail_msg("%s", command.then_err.text);
	json_decref(command.result);
	json_decref(command.then_result);
}

/* ------------------------------------------------------------------------------------------------ */

static int setup(void **state)
{
	(void)state;
	strcpy(directory, "/tmp/furrow-admin-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	for (unsigned i = 0; i < DRIVES; i++)
		snprintf(drive[i], sizeof(drive[i]), "%s/d%u", directory, i);
	snprintf(pattern, sizeof(pattern), "%s/d*", directory);
	atomic_store(&log_threshold, -1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (unsigned i = 0; i < DRIVES; i++)
		unlink(drive[i]);
	return rmdir(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_life),
		cmocka_unit_test(test_looking_writes_nothing),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_missing_members),
		cmocka_unit_test(test_fail_member),
		cmocka_unit_test(test_in_server),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
