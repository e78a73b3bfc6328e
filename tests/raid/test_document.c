/*
 * docs/format-array.md is enough: a script that shares no code with the engine rebuilds rows and log from the drives'
 * files, without each of the members, and with one there that is stale. The script is rebuild_from_document.py.
 */
#include "tests/raid/raid_test.h"

#include <sys/wait.h>

#define ROWS_STRIPES 4u
#define LOG_BLOCKS 40u /* more than two chunks */

struct shape {
	unsigned level, drives;
	unsigned m, groups;
};

struct made {
	const struct shape *shape;
	struct raid_test t;
	char want[160];
	uint64_t blocks;
	unsigned width;
};

static void file_put(const char *path, const struct slice *v, unsigned n)
{
	FILE *f = fopen(path, "a");
	if (!f)
		abort();
	for (unsigned i = 0; i < n; i++)
		if (fwrite(slice_data(&v[i]), v[i].len, 1, f) != 1)
			abort();
	fclose(f);
}

static void make_body(void *arg)
{
	struct made *m = arg;
	struct error err = {0};
	struct array *array;
	struct volume *v;
	raid_test_drives(&m->t, m->shape->drives, 8u << 20, "");
	snprintf(m->want, sizeof(m->want), "%s/want", m->t.dir);
	struct array_create create = {
		.name = "a0",
		.level = m->shape->level,
		.groups = m->shape->groups,
		.strip_bytes = 16384,
		.drives = m->t.paths,
		.count = m->t.count,
	};
	CHECK_OK(array_create(&create, &err), err);
	CHECK_OK(raid_test_open(&m->t, &array, &err), err);
	/* not at the beginning of the array, so that what is relative shows */
	CHECK_OK(volume_create(array, "first", m->shape->drives > TEST_DRIVES_MAX ? 90u << 20 : 1u << 20, &err), err);
	CHECK_OK(volume_create(array, "v", 0, &err), err);
	CHECK_OK(volume_open(array, "v", &v, &err), err);
	const struct volume_geometry *g = volume_geometry(v);
	m->width = g->k + g->m;
	m->blocks = ROWS_STRIPES * volume_stripe_blocks(g);
	struct payload p;
	for (unsigned round = 0; round < 2; round++) {
		/* the second time without a member, whose file is stale from then on */
		if (round && g->m > 1)
			CHECK_OK(array_fail(array, m->shape->drives - 1, &err), err);
		for (unsigned s = 0; s < ROWS_STRIPES; s++) {
			payload_make(&p, volume_stripe_blocks(g) * BLOCK_BYTES, 16384, 1 + s + 100 * round);
			int r = volume_write_rows(v, s, 0, g->strip_blocks, p.v, p.n, VOLUME_DURABLE);
			if (round)
				file_put(m->want, p.v, p.n);
			payload_free(&p);
			CHECK(r == 0);
		}
		payload_make(&p, LOG_BLOCKS * BLOCK_BYTES, 65536, 77 + round);
		int r = volume_log_write(v, 0, p.v, p.n);
		if (round)
			file_put(m->want, p.v, p.n);
		payload_free(&p);
		CHECK(r == 0);
	}
	volume_close(v);
	array_close(array);
}

/* Runs the script without the drive LOST. */
static bool script_agrees(const struct made *m, unsigned lost)
{
	static char command[20000];
	size_t at = (size_t)snprintf(command, sizeof(command),
		"python3 tests/raid/rebuild_from_document.py --volume v --count %llu --log-count %u",
		(unsigned long long)m->blocks, LOG_BLOCKS);
	for (unsigned i = 0; i < m->t.count; i++)
		if (i != lost)
			at += (size_t)snprintf(command + at, sizeof(command) - at, " %s", m->t.path[i]);
	snprintf(command + at, sizeof(command) - at, " 2>/dev/null | cmp -s - %s", m->want);
	int status = system(command); /* NOLINT: a test, and nothing of it comes from outside */
	if (status != 0)
		print_message("%s: status %d\n", command, status);
	return status == 0;
}

static void document_test(const struct shape *shape)
{
	struct made m = {.shape = shape};
	if (access("tests/raid/rebuild_from_document.py", R_OK) != 0 ||
		system("python3 -c 0 >/dev/null 2>&1") != 0) { /* NOLINT */
		print_message("no python3, or not run from the top of the tree\n");
		skip();
	}
	raid_test_run(make_body, &m);
	/* with all there; and each one lost (of many: some), beside the last one that is stale where two may be lost */
	bool good = script_agrees(&m, UINT32_MAX);
	unsigned step = shape->drives > TEST_DRIVES_MAX ? 65 : 1;
	for (unsigned i = step - 1; shape->m && i < shape->drives && good; i += step)
		good = script_agrees(&m, i);
	unlink(m.want);
	raid_test_remove(&m.t);
	assert_true(good);
}

#define DOCUMENT_TEST(name, ...)                                                                                       \
	static void test_##name(void **state)                                                                          \
	{                                                                                                              \
		static const struct shape shape = {__VA_ARGS__};                                                       \
		(void)state;                                                                                           \
		document_test(&shape);                                                                                 \
	}
DOCUMENT_TEST(level_0, 0, 3, 0, 0)
DOCUMENT_TEST(level_1, 1, 3, 2, 0)
DOCUMENT_TEST(level_5, 5, 4, 1, 0)
DOCUMENT_TEST(level_6, 6, 5, 2, 0)
DOCUMENT_TEST(level_10, 10, 4, 1, 0)
DOCUMENT_TEST(level_50, 50, 6, 1, 0)
DOCUMENT_TEST(level_60, 60, 8, 2, 0)
DOCUMENT_TEST(many_drives, 60, 176, 2, 11) /* in a superblock of 20 KiB */

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_level_0),
		cmocka_unit_test(test_level_1),
		cmocka_unit_test(test_level_5),
		cmocka_unit_test(test_level_6),
		cmocka_unit_test(test_level_10),
		cmocka_unit_test(test_level_50),
		cmocka_unit_test(test_level_60),
		cmocka_unit_test(test_many_drives),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
