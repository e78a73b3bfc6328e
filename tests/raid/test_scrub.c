/*
 * Scrub: bits flipped behind the array's back are found and made right, with and without an owner that knows its
 * checksums; unreadable blocks are written again; writes that go on meanwhile are no mismatches.
 */
#include "tests/raid/raid_test.h"

#define STRIPES 40u

struct rig {
	struct raid_test t;
	struct array *array;
	struct volume *v;
	const struct volume_geometry *g;
	uint64_t seed[STRIPES];
	bool broken_owner;
	unsigned checks;
};

static void rig_usage(void *arg, uint64_t first, unsigned count, bool *used)
{
	struct rig *r = arg;
	for (unsigned i = 0; i < count; i++)
		used[i] = first + i < STRIPES && r->seed[first + i];
}

static int stripe_read(struct rig *r, uint64_t stripe, bool repair)
{
	struct payload p, q;
	int wrong = 0;
	payload_make(&p, volume_stripe_blocks(r->g) * BLOCK_BYTES, BLOCK_BYTES, 0);
	payload_free(&p);
	payload_make(&p, volume_stripe_blocks(r->g) * BLOCK_BYTES, 65536, r->seed[stripe]);
	for (uint64_t block = 0; block < volume_stripe_blocks(r->g); block++) {
		const uint8_t *right = p.v[block / 16].buf->data + block % 16 * BLOCK_BYTES;
		payload_make(&q, BLOCK_BYTES, BLOCK_BYTES, 0);
		uint64_t at = stripe * volume_stripe_blocks(r->g) + block;
		int e = volume_read(r->v, at, q.v, 1);
		bool same = !e && memcmp(q.v[0].buf->data, right, BLOCK_BYTES) == 0;
		for (unsigned attempt = 1; !same && repair && attempt < 20; attempt++) {
			e = volume_reread(r->v, at, attempt, q.v);
			if (e == -ENOENT)
				break;
			if (e || memcmp(q.v[0].buf->data, right, BLOCK_BYTES) != 0)
				continue;
			same = volume_repair(r->v, at, q.v) == 0;
		}
		wrong += !same;
		payload_free(&q);
	}
	payload_free(&p);
	return wrong;
}

/* An owner that has the checksums, and repairs as a file system does. */
static int rig_check(void *arg, uint64_t stripe, bool *row_used)
{
	struct rig *r = arg;
	r->checks++;
	if (r->broken_owner || stripe >= STRIPES || !r->seed[stripe])
		return -ENOENT;
	for (unsigned i = 0; i < r->g->strip_blocks; i++)
		row_used[i] = true;
	return stripe_read(r, stripe, true) ? -EIO : 0;
}

static int stripe_write(struct rig *r, uint64_t stripe, uint64_t seed)
{
	struct payload p;
	payload_make(&p, volume_stripe_blocks(r->g) * BLOCK_BYTES, 65536, seed);
	int e = volume_write_rows(r->v, stripe, 0, r->g->strip_blocks, p.v, p.n, VOLUME_DURABLE);
	r->seed[stripe] = seed;
	payload_free(&p);
	return e;
}

static void rig_make(struct rig *r, unsigned level, unsigned drives, bool owner)
{
	struct error err = {0};
	memset(r, 0, sizeof(*r));
	fault_reset();
	raid_test_drives(&r->t, drives, TEST_DRIVE_BYTES, "fault:");
	CHECK_OK(raid_test_create(&r->t, level, 0, &err), err);
	CHECK_OK(raid_test_open_volume(&r->t, true, &r->array, &r->v, &err), err);
	r->g = volume_geometry(r->v);
	volume_set_owner(r->v, &(struct volume_owner){.usage = rig_usage, .check = owner ? rig_check : NULL, .arg = r});
	CHECK_OK(array_keep(r->array, &err), err);
	for (unsigned i = 0; i < STRIPES; i++)
		CHECK(stripe_write(r, i, 1 + i) == 0);
}

static void rig_end(struct rig *r)
{
	volume_set_owner(r->v, NULL);
	volume_close(r->v);
	array_close(r->array);
	raid_test_remove(&r->t);
	fault_reset();
}

/* Past the array: one bit in block ROW of position POS of STRIPE. */
static void bit_flip(struct rig *r, uint64_t stripe, unsigned pos, uint32_t row)
{
	struct place p = layout_strip(r->v->geo, stripe + r->v->first_stripe, pos);
	int fd = open(raid_test_file(r->t.path[p.slot]), O_RDWR | O_CLOEXEC);
	off_t at = (off_t)(p.offset + row * BLOCK_BYTES + 77);
	uint8_t byte;
	CHECK(fd >= 0 && pread(fd, &byte, 1, at) == 1);
	byte ^= 0x10;
	CHECK(pwrite(fd, &byte, 1, at) == 1);
	close(fd);
}

static struct scrub_status scrub(struct rig *r)
{
	static struct array_status s;
	struct error err = {0};
	memset(&s, 0, sizeof(s));
	if (array_scrub_start(r->array, &err))
		snprintf(test_failure, sizeof(test_failure), "scrub: %s", err.text);
	do {
		fiber_sleep(5 * NSEC_PER_MSEC);
		array_status(r->array, &s);
	} while (s.scrub.running);
	return s.scrub;
}

static int all_read(struct rig *r)
{
	int wrong = 0;
	for (unsigned i = 0; i < STRIPES; i++)
		wrong += stripe_read(r, i, false);
	return wrong;
}

struct flips_arg {
	unsigned level, drives;
	bool owner, resolves;
};

static void flips_body(void *arg)
{
	const struct flips_arg *a = arg;
	static struct rig r;
	rig_make(&r, a->level, a->drives, a->owner);
	CHECK(!test_failure[0]);
	struct scrub_status s = scrub(&r);
	CHECK(!test_failure[0]);
	CHECK(s.mismatches == 0 && s.unresolved == 0 && s.done_stripes == s.total_stripes);
	CHECK(s.read_bytes == (uint64_t)STRIPES * (r.g->k + r.g->m) * r.g->strip_blocks * BLOCK_BYTES);
	CHECK(r.checks == 0);
	/* data here, parity there */
	bit_flip(&r, 3, 0, 2);
	bit_flip(&r, 7, r.g->k - 1, 15);
	bit_flip(&r, 9, r.g->k, 0);
	bit_flip(&r, 11, r.g->k + r.g->m - 1, 7);
	CHECK(!test_failure[0]);
	s = scrub(&r);
	CHECK(s.mismatches == 4);
	CHECK(s.repaired == (a->resolves ? 4 : 0) && s.unresolved == (a->resolves ? 0 : 4));
	CHECK(a->owner == (r.checks > 0));
	if (a->resolves) {
		s = scrub(&r);
		CHECK(s.mismatches == 0);
		CHECK(all_read(&r) == 0);
		/* the parity is right too: read without a member, and another */
		struct error err = {0};
		for (unsigned slot = 0; slot < r.g->m; slot++)
			CHECK_OK(array_fail(r.array, slot, &err), err);
		CHECK(all_read(&r) == 0);
	}
	rig_end(&r);
}

static void test_flips(void **state)
{
	(void)state;
	struct flips_arg args[] = {
		{6, 6, false, true},
		{6, 6, true, true},
		{5, 4, true, true},
		{5, 4, false, false},
		{1, 3, false, true},
		{1, 2, true, true},
		{1, 2, false, false},
		{50, 6, true, true},
		{60, 8, false, true},
	};
	for (unsigned i = 0; i < sizeof(args) / sizeof(args[0]); i++)
		raid_test_run(flips_body, &args[i]);
}

static void unread_body(void *arg)
{
	(void)arg;
	static struct rig r;
	rig_make(&r, 6, 6, true);
	CHECK(!test_failure[0]);
	/* bad once for the piece, once when the row is looked at: then it is written again */
	fault_inject(r.t.path[2], FAULT_READ_ERROR, 5, 0);
	struct scrub_status s = scrub(&r);
	CHECK(s.mismatches == 0 && s.unresolved == 0);
	CHECK(all_read(&r) == 0);
	rig_end(&r);
}

static void test_unreadable(void **state)
{
	(void)state;
	raid_test_run(unread_body, NULL);
}

/* Stripes are written all the time: nothing of that is a mismatch. A member is lost and a pause is made meanwhile. */
struct busy {
	struct rig *rig;
	bool stop;
	int result;
	unsigned rounds;
	struct wait_group group;
};

static void busy_fiber(void *arg)
{
	struct busy *b = arg;
	uint64_t seed = 5;
	while (!b->stop && !b->result) {
		b->result = stripe_write(b->rig, test_random(&seed) % STRIPES, 1 + test_random(&seed) % 1000);
		b->rounds++;
		fiber_yield();
	}
	wait_group_done(&b->group, 0);
}

static void busy_body(void *arg)
{
	(void)arg;
	static struct rig r;
	struct error err = {0};
	rig_make(&r, 6, 6, false);
	CHECK(!test_failure[0]);
	struct busy b = {.rig = &r};
	wait_group_init(&b.group);
	wait_group_add(&b.group, 1);
	CHECK(fiber_spawn(busy_fiber, &b) == 0);
	for (unsigned i = 0; i < 5; i++) {
		struct scrub_status s = scrub(&r);
		CHECK(!test_failure[0]);
		CHECK(s.mismatches == 0 && s.unresolved == 0);
	}
	array_scrub_stop(r.array);
	CHECK_OK(array_scrub_start(r.array, &err), err);
	array_scrub_pause(r.array, true);
	static struct array_status st;
	fiber_sleep(20 * NSEC_PER_MSEC);
	array_status(r.array, &st);
	CHECK(st.scrub.running && st.scrub.paused);
	uint64_t done = st.scrub.done_stripes;
	fiber_sleep(20 * NSEC_PER_MSEC);
	array_status(r.array, &st);
	CHECK(st.scrub.done_stripes == done);
	array_scrub_pause(r.array, false);
	CHECK_OK(array_fail(r.array, 1, &err), err);
	array_scrub_stop(r.array);
	array_status(r.array, &st);
	CHECK(!st.scrub.running);
	b.stop = true;
	wait_group_wait(&b.group);
	CHECK(b.result == 0 && b.rounds > 5);
	CHECK(all_read(&r) == 0);
	rig_end(&r);
}

static void test_busy(void **state)
{
	(void)state;
	raid_test_run(busy_body, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_flips),
		cmocka_unit_test(test_unreadable),
		cmocka_unit_test(test_busy),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
