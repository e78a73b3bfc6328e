/*
 * Drives that are slow, and drives that lie: read around, reported, recovered; replaced by a spare past the threshold.
 */
#include "tests/raid/raid_test.h"

static char events[4096];
static pthread_mutex_t events_mutex = PTHREAD_MUTEX_INITIALIZER;

static void hear(void *arg, const char *event, const char *array, const char *member, const char *detail)
{
	(void)arg;
	(void)array;
	(void)member;
	(void)detail;
	pthread_mutex_lock(&events_mutex);
	size_t n = strlen(events);
	snprintf(events + n, sizeof(events) - n, "%s ", event);
	pthread_mutex_unlock(&events_mutex);
}

static bool heard(const char *event)
{
	pthread_mutex_lock(&events_mutex);
	bool there = strstr(events, event) != NULL;
	pthread_mutex_unlock(&events_mutex);
	return there;
}

static int stripe_io(struct volume *v, uint64_t stripe, uint64_t seed, bool write)
{
	const struct volume_geometry *g = volume_geometry(v);
	struct payload p, q;
	payload_make(&p, volume_stripe_blocks(g) * BLOCK_BYTES, 65536, seed);
	int e = 0;
	if (write) {
		e = volume_write_rows(v, stripe, 0, g->strip_blocks, p.v, p.n, 0);
	} else {
		payload_make(&q, p.bytes, 65536, 0);
		e = volume_read(v, stripe * volume_stripe_blocks(g), q.v, q.n);
		if (!e)
			e = payload_sum(&p) != payload_sum(&q);
		payload_free(&q);
	}
	payload_free(&p);
	return e;
}

static uint64_t reads_of(struct array *array, unsigned slot, bool *slow)
{
	static struct array_status s;
	array_status(array, &s);
	*slow = s.member[slot].slow;
	return s.member[slot].reads;
}

static void slow_body(void *arg)
{
	unsigned level = *(unsigned *)arg;
	struct raid_test t;
	struct error err = {0};
	struct array *array;
	struct volume *v;
	bool slow;
	fault_reset();
	events[0] = 0;
	raid_events_listen(hear, NULL);
	raid_test_drives(&t, level == 1 ? 3 : 5, TEST_DRIVE_BYTES, "fault:");
	CHECK_OK(raid_test_create(&t, level, 0, &err), err);
	CHECK_OK(raid_test_open_volume(&t, true, &array, &v, &err), err);
	for (unsigned i = 0; i < 20; i++)
		CHECK(stripe_io(v, i, 1 + i, true) == 0);
	CHECK(volume_flush(v) == 0);
	for (unsigned i = 0; i < 20; i++)
		CHECK(stripe_io(v, i, 1 + i, false) == 0);
	health_tick(array);
	fault_inject(t.path[2], FAULT_SLOW, 1, 30 * NSEC_PER_MSEC);
	for (unsigned tick = 0; tick < 12; tick++) {
		for (unsigned i = 0; i < 20; i++)
			CHECK(stripe_io(v, i, 1 + i, false) == 0);
		health_tick(array);
		(void)reads_of(array, 2, &slow);
		if (slow)
			break;
	}
	uint64_t before = reads_of(array, 2, &slow), begun = now_ns();
	CHECK(slow && heard("drive-slow"));
	for (unsigned i = 0; i < 20; i++)
		CHECK(stripe_io(v, i, 1 + i, false) == 0);
	/* nobody waits for it, though it is a member, and is written to */
	CHECK(reads_of(array, 2, &slow) == before);
	CHECK(now_ns() - begun < 600 * NSEC_PER_MSEC);
	CHECK(stripe_io(v, 3, 99, true) == 0 && stripe_io(v, 3, 99, false) == 0);
	health_tick(array);
	(void)reads_of(array, 2, &slow);
	CHECK(slow);
	/* another member is lost: the slow one is needed, and right */
	if (level != 1) {
		CHECK_OK(array_fail(array, 0, &err), err);
		CHECK_OK(array_fail(array, 1, &err), err);
		CHECK(stripe_io(v, 3, 99, false) == 0 && stripe_io(v, 4, 5, false) == 0);
		health_tick(array);
		(void)reads_of(array, 2, &slow);
		CHECK(!slow);
	} else {
		fault_inject(t.path[2], FAULT_NONE, 1, 0);
		for (unsigned tick = 0; tick < 12 && slow; tick++) {
			health_tick(array);
			(void)reads_of(array, 2, &slow);
		}
		CHECK(!slow);
	}
	CHECK(heard("drive-recovered"));
	volume_close(v);
	array_close(array);
	raid_test_remove(&t);
	raid_events_listen(NULL, NULL);
	fault_reset();
}

static void test_slow(void **state)
{
	(void)state;
	unsigned level = 6;
	raid_test_run(slow_body, &level);
	level = 1;
	raid_test_run(slow_body, &level);
}

/* Blocks whose checksum is wrong again and again: with a spare, the drive goes. */
static void lies_body(void *arg)
{
	bool spare = *(bool *)arg;
	struct raid_test t;
	struct error err = {0};
	struct array *array;
	struct volume *v;
	static struct array_status s;
	fault_reset();
	events[0] = 0;
	raid_events_listen(hear, NULL);
	raid_test_drives(&t, 6, TEST_DRIVE_BYTES, "fault:");
	struct array_create create = {
		.name = "a0", .level = 6, .drives = t.paths, .count = 5, .spares = t.paths + 5, .spare_count = spare};
	CHECK_OK(array_create(&create, &err), err);
	CHECK_OK(raid_test_open(&t, &array, &err), err);
	CHECK_OK(volume_create(array, "v", 4 << 20, &err), err);
	CHECK_OK(volume_open(array, "v", &v, &err), err);
	CHECK_OK(array_keep(array, &err), err);
	for (unsigned i = 0; i < 10; i++)
		CHECK(stripe_io(v, i, 1 + i, true) == 0);
	struct payload p;
	payload_make(&p, BLOCK_BYTES, BLOCK_BYTES, 0);
	for (unsigned i = 0; i < 40; i++) {
		CHECK(volume_reread(v, 0, 1, p.v) == 0);
		CHECK(volume_repair(v, 0, p.v) == 0);
	}
	payload_free(&p);
	fiber_sleep(10 * NSEC_PER_MSEC);
	CHECK(array_settled(array, NULL, NULL) == 0);
	array_status(array, &s);
	CHECK(!s.degraded);
	CHECK(spare == (strcmp(s.member[0].path, t.path[5]) == 0));
	CHECK(heard(spare ? "rebuild-done" : "drive-warning"));
	for (unsigned i = 0; i < 10; i++)
		CHECK(stripe_io(v, i, 1 + i, false) == 0);
	volume_close(v);
	array_close(array);
	raid_test_remove(&t);
	raid_events_listen(NULL, NULL);
	fault_reset();
}

static void test_lies(void **state)
{
	(void)state;
	bool spare = true;
	raid_test_run(lies_body, &spare);
	spare = false;
	raid_test_run(lies_body, &spare);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slow),
		cmocka_unit_test(test_lies),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
