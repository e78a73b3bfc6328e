/*
 * Rows: what is written comes back, whole and after the loss of every pair of members, for mirrors and
 * for double parity; from every shape of scatter/gather list; and parity on the drives is what an independent slow
 * implementation says.
 */
#include "tests/raid/raid_test.h"

struct shape {
	unsigned level, drives, lose;
	uint32_t strip;
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
	for (unsigned a = 0; a < shape->drives; a++) {
		for (unsigned b = a; b < shape->drives; b++) {
			if (shape->lose < 2 && b > a)
				break;
			raid_test_drives(&t, shape->drives, TEST_DRIVE_BYTES, "");
			CHECK_OK(raid_test_create(&t, shape->level, shape->strip, &err), err);
			CHECK_OK(raid_test_open(&t, &array, &err), err);
			CHECK_OK(volume_create(array, "v", 0, &err), err);
			CHECK_OK(volume_open(array, "v", &v, &err), err);
			rows_write(v, 42 + a);
			rows_verify(v, 42 + a);
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
			CHECK_OK(raid_test_open(&t, &array, &err), err);
			CHECK_OK(volume_open(array, "v", &v, &err), err);
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

static void test_rows_raid6(void **state)
{
	(void)state;
	struct shape shape = {.level = 6, .drives = 5, .lose = 2, .strip = 0};
	raid_test_run(rows_body, &shape);
}

static void test_rows_raid6_small(void **state)
{
	(void)state;
	struct shape shape = {.level = 6, .drives = 4, .lose = 2, .strip = 16384};
	raid_test_run(rows_body, &shape);
}

static void test_rows_raid6_large_strip(void **state)
{
	(void)state;
	struct shape shape = {.level = 6, .drives = 4, .lose = 1, .strip = 1u << 20};
	raid_test_run(rows_body, &shape);
}

static void test_rows_mirror2(void **state)
{
	(void)state;
	struct shape shape = {.level = 1, .drives = 2, .lose = 1, .strip = 0};
	raid_test_run(rows_body, &shape);
}

static void test_rows_mirror3(void **state)
{
	(void)state;
	struct shape shape = {.level = 1, .drives = 3, .lose = 2, .strip = 0};
	raid_test_run(rows_body, &shape);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows_raid6),
		cmocka_unit_test(test_rows_raid6_small),
		cmocka_unit_test(test_rows_raid6_large_strip),
		cmocka_unit_test(test_rows_mirror2),
		cmocka_unit_test(test_rows_mirror3),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
