/*
 * Rows: what is written comes back, whole and after the loss of every member and every pair that the level outlives;
 * from every shape of scatter/gather list; and parity on the drives is what an independent slow
 * implementation says.
 */
#include "tests/raid/raid_test.h"

struct shape {
	unsigned level, drives;
	uint32_t strip;
	unsigned groups;
};

/* Writes stripe 0 whole and some rows of stripe 1, reads all back in several ways. */
static void rows_write(struct volume *v, uint64_t seed)
{
	const struct volume_geometry *g = volume_geometry(v);
	uint64_t stripe_bytes = volume_stripe_blocks(g) * BLOCK_BYTES;
	struct payload p;
	payload_make(&p, stripe_bytes, 65536, seed);
	int r = volume_write_rows(v, 0, 0, g->strip_blocks, p.v, p.n, 0);
	payload_free(&p);
	CHECK(r == 0);
	payload_make(&p, (uint64_t)g->k * 3 * BLOCK_BYTES, BLOCK_BYTES, seed + 1000);
	r = volume_write_rows(v, 1, 1, 3, p.v, p.n, VOLUME_DURABLE);
	payload_free(&p);
	CHECK(r == 0);
	CHECK(volume_flush(v) == 0);
}

static void rows_verify(struct volume *v, uint64_t seed)
{
	const struct volume_geometry *g = volume_geometry(v);
	uint64_t blocks = volume_stripe_blocks(g), stripe_bytes = blocks * BLOCK_BYTES;
	struct payload want, have;
	payload_make(&want, stripe_bytes, 65536, seed);
	uint8_t *flat = malloc(stripe_bytes), *got = malloc(stripe_bytes);
	slices_copy_out(want.v, want.n, 0, flat, stripe_bytes);
	/* all at once, in uneven pieces, and block by block */
	payload_make(&have, stripe_bytes, 65536, 0);
	int r = volume_read(v, 0, have.v, have.n);
	slices_copy_out(have.v, have.n, 0, got, stripe_bytes);
	bool same = memcmp(flat, got, stripe_bytes) == 0;
	for (uint64_t at = 0, n = 1; at < blocks && !r && same; at += n, n = n * 3 % 7 + 1) {
		n = n < blocks - at ? n : blocks - at;
		struct payload part;
		payload_make(&part, n * BLOCK_BYTES, 8192, 0);
		r = volume_read(v, at, part.v, part.n);
		slices_copy_out(part.v, part.n, 0, got, part.bytes);
		same = memcmp(flat + at * BLOCK_BYTES, got, part.bytes) == 0;
		payload_free(&part);
	}
	payload_free(&have);
	payload_free(&want);
	/* the rows of stripe 1 */
	payload_make(&want, (uint64_t)g->k * 3 * BLOCK_BYTES, BLOCK_BYTES, seed + 1000);
	for (unsigned d = 0; d < g->k && !r && same; d++) {
		payload_make(&have, 3 * BLOCK_BYTES, BLOCK_BYTES, 0);
		r = volume_read(v, blocks + (uint64_t)d * g->strip_blocks + 1, have.v, have.n);
		slices_copy_out(have.v, have.n, 0, got, have.bytes);
		slices_copy_out(want.v, want.n, (uint64_t)d * 3 * BLOCK_BYTES, flat, have.bytes);
		same = memcmp(flat, got, have.bytes) == 0;
		payload_free(&have);
	}
	payload_free(&want);
	free(flat);
	free(got);
	CHECK(r == 0);
	CHECK(same);
}

static void rows_body(void *arg)
{
	const struct shape *shape = arg;
	struct raid_test t;
	struct error err = {0};
	struct array *array;
	struct volume *v;
	struct geometry geometry;
	char why[160];
	CHECK(level_geometry(shape->level, shape->drives, shape->groups, &geometry, why, sizeof(why)) == 0);
	unsigned width = geometry.k + geometry.m;
	for (unsigned a = 0; a < shape->drives; a++) {
		for (unsigned b = a; b < shape->drives; b++) {
			/* one lost, or two, in one group or in two */
			if (b != a && geometry.m < 2 && a / width == b / width)
				continue;
			raid_test_drives(&t, shape->drives, TEST_DRIVE_BYTES, "");
			struct array_create create = {
				.name = "a0",
				.level = shape->level,
				.groups = shape->groups,
				.strip_bytes = shape->strip,
				.drives = t.paths,
				.count = t.count,
			};
			CHECK_OK(array_create(&create, &err), err);
			CHECK_OK(raid_test_open_volume(&t, true, &array, &v, &err), err);
			rows_write(v, 42 + a);
			rows_verify(v, 42 + a);
			if (!geometry.m) {
				CHECK(array_fail(array, a, &err) == -EBUSY);
				volume_close(v);
				array_close(array);
				raid_test_remove(&t);
				break;
			}
			CHECK_OK(array_fail(array, a, &err), err);
			if (b != a)
				CHECK_OK(array_fail(array, b, &err), err);
			rows_verify(v, 42 + a);
			CHECK(!test_failure[0]);
			/* written while degraded, read while degraded */
			rows_write(v, 77 + b);
			rows_verify(v, 77 + b);
			CHECK(!test_failure[0]);
			volume_close(v);
			array_close(array);
			/* and after assembly without them */
			CHECK_OK(raid_test_open_volume(&t, false, &array, &v, &err), err);
			rows_verify(v, 77 + b);
			CHECK(!test_failure[0]);
			struct array_status *status = calloc(1, sizeof(*status));
			array_status(array, status);
			bool ok = status->degraded && !status->stopped && status->member[a].state == MEMBER_FAILED;
			free(status);
			CHECK(ok);
			volume_close(v);
			array_close(array);
			raid_test_remove(&t);
		}
	}
}

#define ROWS_TEST(name, ...)                                                                                           \
	static void test_rows_##name(void **state)                                                                     \
	{                                                                                                              \
		(void)state;                                                                                           \
		struct shape shape = {__VA_ARGS__};                                                                    \
		raid_test_run(rows_body, &shape);                                                                      \
	}
ROWS_TEST(raid0, .level = 0, .drives = 3)
ROWS_TEST(raid0_single, .level = 0, .drives = 1)
ROWS_TEST(mirror2, .level = 1, .drives = 2)
ROWS_TEST(mirror3, .level = 1, .drives = 3)
ROWS_TEST(raid5, .level = 5, .drives = 4)
ROWS_TEST(raid5_small, .level = 5, .drives = 3, .strip = 16384)
ROWS_TEST(raid6, .level = 6, .drives = 5)
ROWS_TEST(raid6_small, .level = 6, .drives = 4, .strip = 16384)
ROWS_TEST(raid6_large_strip, .level = 6, .drives = 4, .strip = 1u << 20)
ROWS_TEST(raid10, .level = 10, .drives = 4)
ROWS_TEST(raid10_three_copies, .level = 10, .drives = 6, .groups = 2)
ROWS_TEST(raid50, .level = 50, .drives = 6)
ROWS_TEST(raid60, .level = 60, .drives = 8)

/* What a level makes of a number of drives, and what it refuses. */
static void test_geometry(void **state)
{
	(void)state;
	static const struct {
		unsigned level, drives, asked;
		int result;
		unsigned groups, k, m;
	} cases[] = {
		{0, 1, 0, 0, 1, 1, 0},
		{0, 64, 0, 0, 1, 64, 0},
		{0, 0, 0, -EINVAL, 0, 0, 0},
		{1, 5, 0, 0, 1, 1, 4},
		{1, 4, 2, -EINVAL, 0, 0, 0},
		{5, 2, 0, -EINVAL, 0, 0, 0},
		{5, 64, 0, 0, 1, 63, 1},
		{6, 64, 1, 0, 1, 62, 2},
		{10, 4, 0, 0, 2, 1, 1},
		{10, 6, 2, 0, 2, 1, 2},
		{10, 5, 0, -EINVAL, 0, 0, 0},
		{10, 64, 0, 0, 32, 1, 1},
		{10, 4, 1, -EINVAL, 0, 0, 0},
		{50, 6, 0, 0, 2, 2, 1},
		{50, 24, 0, 0, 2, 11, 1},
		{50, 24, 8, 0, 8, 2, 1},
		{50, 36, 0, 0, 3, 11, 1},
		{50, 7, 0, -EINVAL, 0, 0, 0},
		{50, 12, 5, -EINVAL, 0, 0, 0},
		{60, 8, 0, 0, 2, 2, 2},
		{60, 48, 0, 0, 3, 14, 2},
		{60, 60, 0, 0, 4, 13, 2},
		{60, 12, 4, -EINVAL, 0, 0, 0},
		{6, 65, 0, -EINVAL, 0, 0, 0},
		{4, 5, 0, -EINVAL, 0, 0, 0},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct geometry g = {0};
		char why[160] = "";
		int r = level_geometry(cases[i].level, cases[i].drives, cases[i].asked, &g, why, sizeof(why));
		if (r != cases[i].result ||
			(!r && (g.groups != cases[i].groups || g.k != cases[i].k || g.m != cases[i].m)))
			fail_msg("level %u, %u drives, %u groups: %d %s, %u x %u+%u", cases[i].level, cases[i].drives,
				cases[i].asked, r, why, g.groups, g.k, g.m);
		assert_true(r == 0 || why[0]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_geometry),
		cmocka_unit_test(test_rows_raid0),
		cmocka_unit_test(test_rows_raid0_single),
		cmocka_unit_test(test_rows_mirror2),
		cmocka_unit_test(test_rows_mirror3),
		cmocka_unit_test(test_rows_raid5),
		cmocka_unit_test(test_rows_raid5_small),
		cmocka_unit_test(test_rows_raid6),
		cmocka_unit_test(test_rows_raid6_small),
		cmocka_unit_test(test_rows_raid6_large_strip),
		cmocka_unit_test(test_rows_raid10),
		cmocka_unit_test(test_rows_raid10_three_copies),
		cmocka_unit_test(test_rows_raid50),
		cmocka_unit_test(test_rows_raid60),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
