/*
 * A member that works is copied to the drive that takes its place, while it is written, while drives fail and over
 * power cuts: afterwards the new member holds what it should.
 */
#include "tests/raid/rebuild_test.h"

/* Waits for the copy to be in the middle of its work, and holds it there. */
static bool copy_held(struct rig *r, unsigned target)
{
	fault_inject(r->t.path[target], FAULT_DELAY, 70, 300 * NSEC_PER_MSEC);
	for (unsigned i = 0; i < 1000 && !status_get(r)->rebuild.done_bytes; i++)
		fiber_sleep(2 * NSEC_PER_MSEC);
	array_rebuild_pause(r->array, true);
	for (unsigned i = 0; i < 1000 && !status_get(r)->rebuild.paused; i++)
		fiber_sleep(2 * NSEC_PER_MSEC);
	const struct array_status *s = status_get(r);
	return s->rebuild.paused && s->rebuild.copies && s->rebuild.done_bytes < 200u * 65536 && !s->degraded;
}

static void copy_make(struct rig *r, unsigned level, unsigned slot)
{
	struct error err = {0};
	rig_make(r, level, 6, 0, 1);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < 200; i++)
		CHECK(stripe_write(r, i, 1 + i, VOLUME_DURABLE) == 0);
	CHECK(log_write(r, 0, 7) == 0);
	CHECK_OK(array_replace(r->array, slot, r->t.path[5], false, &err), err);
	CHECK(copy_held(r, 5));
}

/* What is written before, behind and where the copy stands is on the new drive; level 0 too. A restart forgets it. */
static void copy_body(void *arg)
{
	unsigned level = *(unsigned *)arg;
	static struct rig r;
	struct error err = {0};
	unsigned slot;
	copy_make(&r, level, 2);
	CHECK(!test_failure[0]);
	CHECK(array_replace(r.array, 3, r.t.path[5], true, &err) == -EEXIST);
	CHECK(array_remove(r.array, 5, &err) == -EBUSY);
	for (unsigned i = 0; i < 220; i += 3)
		CHECK(stripe_write(&r, i, 1000 + i, i & 1 ? VOLUME_DURABLE : 0) == 0);
	CHECK(log_write(&r, 16, 8) == 0 && log_write(&r, 0, 9) == 0);
	rig_close(&r);
	rig_open(&r, false, true);
	CHECK(!test_failure[0]);
	CHECK(status_get(&r)->member[5].state == MEMBER_SPARE && !status_get(&r)->rebuild.running);
	CHECK_OK(array_replace(r.array, 2, NULL, false, &err), err);
	CHECK(copy_held(&r, 5));
	for (unsigned i = 1; i < 220; i += 3)
		CHECK(stripe_write(&r, i, 2000 + i, i & 1 ? VOLUME_DURABLE : 0) == 0);
	CHECK(log_write(&r, 16, 10) == 0);
	/* a block of the old one that cannot be read is made from the others, or is lost where there are none */
	if (level)
		fault_inject(r.t.path[2], FAULT_READ_ERROR, 3, 0);
	array_rebuild_pause(r.array, false);
	CHECK(array_settled(r.array, NULL, NULL) == 0);
	const struct array_status *s = status_get(&r);
	CHECK(strcmp(s->member[2].path, r.t.path[5]) == 0 && s->member[5].state == MEMBER_NONE);
	CHECK(s->rebuild.copies && s->rebuild.lost_rows == 0);
	/* one read for one write, but for what the error made it read; of the log all copies */
	uint64_t log = (uint64_t)r.g->log_blocks * BLOCK_BYTES * r.g->log_copies / s->members + 65536;
	CHECK(s->rebuild.read_bytes <= s->rebuild.written_bytes + r.g->k * 65536u + log * r.g->m);
	CHECK(log_verify(&r, 0, 9) == 0 && log_verify(&r, 16, 10) == 0);
	/* the old one is nobody's */
	CHECK(array_add(r.array, r.t.path[2], NULL, &slot, &err) == -EEXIST);
	fault_inject(r.t.path[2], FAULT_VANISH, 1, 0);
	prove(&r, 2);
	CHECK(!test_failure[0]);
	rig_close(&r);
	rig_open(&r, false, false);
	CHECK(!test_failure[0]);
	CHECK(all_verify(&r) == 0);
	rig_end(&r);
}

static void test_replace(void **state)
{
	(void)state;
	const unsigned levels[] = {6, 0, 1};
	for (unsigned i = 0; i < 3; i++)
		raid_test_run(copy_body, (void *)&levels[i]);
}

/* One of the two drives fails in the middle: the new one, and nothing has happened; the old one, and it is rebuilt. */
static void copy_fails_body(void *arg)
{
	bool old = *(bool *)arg;
	static struct rig r;
	copy_make(&r, 6, 2);
	CHECK(!test_failure[0]);
	vanish(&r, old ? 2 : 5);
	for (unsigned i = 0; i < 200; i += 5)
		CHECK(stripe_write(&r, i, 1000 + i, VOLUME_DURABLE) == 0);
	CHECK(status_get(&r)->degraded == old);
	array_rebuild_pause(r.array, false);
	CHECK(array_settled(r.array, NULL, NULL) == 0);
	const struct array_status *s = status_get(&r);
	CHECK(strcmp(s->member[2].path, r.t.path[old ? 5 : 2]) == 0 && s->member[5].state == MEMBER_NONE);
	CHECK(s->rebuild.copies == !old);
	prove(&r, 2);
	CHECK(!test_failure[0]);
	rig_end(&r);
}

static void test_replace_fails(void **state)
{
	(void)state;
	bool old = false;
	raid_test_run(copy_fails_body, &old);
	old = true;
	raid_test_run(copy_fails_body, &old);
}

/* Another member fails: its rebuild on a second spare comes first, then the copy. */
static void copy_waits_body(void *arg)
{
	(void)arg;
	static struct rig r;
	struct error err = {0};
	rig_make(&r, 6, 7, 1, 1);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < 200; i++)
		CHECK(stripe_write(&r, i, 1 + i, VOLUME_DURABLE) == 0);
	CHECK_OK(array_replace(r.array, 2, r.t.path[6], false, &err), err);
	CHECK(copy_held(&r, 6));
	vanish(&r, 0);
	CHECK(stripe_write(&r, 0, 1000, VOLUME_DURABLE) == 0);
	array_rebuild_pause(r.array, false);
	CHECK(array_settled(r.array, NULL, NULL) == 0);
	const struct array_status *s = status_get(&r);
	CHECK(strcmp(s->member[0].path, r.t.path[5]) == 0 && strcmp(s->member[2].path, r.t.path[6]) == 0);
	CHECK(s->rebuild.copies);
	prove(&r, 2);
	CHECK(!test_failure[0]);
	rig_end(&r);
}

static void test_replace_waits(void **state)
{
	(void)state;
	raid_test_run(copy_waits_body, NULL);
}

/* Writers on both reactors meanwhile. */
static void copy_busy_body(void *arg)
{
	(void)arg;
	static struct rig r;
	struct error err = {0};
	rig_make(&r, 6, 6, 0, 1);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < 200; i++)
		CHECK(stripe_write(&r, i, 1 + i, VOLUME_DURABLE) == 0);
	struct writers w;
	writers_start(&w, &r);
	/* there and back again */
	for (unsigned round = 0; round < 4; round++) {
		unsigned from = round & 1 ? 5 : 3, to = round & 1 ? 3 : 5;
		CHECK_OK(array_replace(r.array, 3, r.t.path[to], true, &err), err);
		CHECK(array_settled(r.array, NULL, NULL) == 0);
		CHECK(strcmp(status_get(&r)->member[3].path, r.t.path[to]) == 0 && !status_get(&r)->degraded);
		fault_inject(r.t.path[from], FAULT_VANISH, 1, 0); /* it may as well be away */
		fault_inject(r.t.path[from], FAULT_NONE, 0, 0);
	}
	CHECK(writers_stop(&w));
	CHECK(writers_verify(&w));
	prove(&r, 3);
	CHECK(!test_failure[0]);
	rig_end(&r);
}

static void test_writes_during_replace(void **state)
{
	(void)state;
	raid_test_run(copy_busy_body, NULL);
}

/* Replaces a member and writes rows; DONE is what was acknowledged. True when all of it was. */
static bool copy_run_written(struct rig *r, uint64_t *done)
{
	struct error err = {0};
	bool begun = array_replace(r->array, 1, r->t.path[3], true, &err) == 0;
	for (unsigned i = 0; i < 4; i++)
		if (stripe_write(r, i, 100 + i, VOLUME_DURABLE) == 0)
			done[i] = 100 + i;
	bool settled = array_settled(r->array, NULL, NULL) == 0 && begun && !status_get(r)->degraded &&
		       strcmp(status_get(r)->member[1].path, r->t.path[3]) == 0;
	for (unsigned i = 4; i < 6; i++)
		if (stripe_write(r, i, 200 + i, VOLUME_DURABLE) == 0)
			done[i] = 200 + i;
	return settled && done[5] == 205;
}

/*
 * Power cuts in a run in which a member is replaced and rows are written: some while it is copied, and one at every
 * write towards the end, where the drives change places. LIMIT 0: no cut; returns how many writes there were.
 */
static uint64_t copy_cut(uint64_t limit)
{
	static struct rig r;
	struct error err = {0};
	uint64_t done[6] = {0};
	rig_make(&r, 5, 4, 0, 1);
	CHECK_R(!test_failure[0], 0);
	for (unsigned i = 0; i < 6; i++)
		CHECK_R(stripe_write(&r, i, done[i] = 1 + i, VOLUME_DURABLE) == 0, 0);
	for (unsigned i = 0; i < 4; i++)
		fault_volatile_cache(r.t.path[i], true);
	uint64_t before = fault_writes();
	fault_write_limit(limit);
	bool whole = copy_run_written(&r, done);
	uint64_t writes = fault_writes() - before;
	CHECK_R(whole || limit, 0);
	rig_close(&r);
	for (unsigned i = 0; i < 4; i++)
		fault_power_cut(r.t.path[i], limit, (unsigned)(limit % 3) * 500);
	fault_reset();
	/* whoever member 1 is now: what was acknowledged is there, also when another one is lost */
	rig_open(&r, false, false);
	CHECK_R(!test_failure[0], 0);
	for (unsigned i = 0; i < 3; i++)
		CHECK_R(status_get(&r)->member[i].state == MEMBER_ACTIVE, 0);
	for (unsigned round = 0; round < 2; round++) {
		/* a write that was cut may have left some of its rows: the owner writes them again */
		for (unsigned i = 0; i < 6; i++)
			CHECK_R(r.seed[i] != done[i] || stripe_verify(&r, i) == 0, 0);
		if (round == 0 && array_fail(r.array, limit & 1 ? 0 : 2, &err))
			CHECK_R(false, 0);
	}
	rig_end(&r);
	return writes;
}

static void copy_cuts_body(void *arg)
{
	(void)arg;
	uint64_t writes = copy_cut(0);
	CHECK(!test_failure[0] && writes > 50);
	for (uint64_t limit = 1; limit <= writes; limit += limit + 50 < writes ? 17 : 1) {
		copy_cut(limit);
		CHECK(!test_failure[0]);
	}
}

static void test_replace_power_cuts(void **state)
{
	(void)state;
	raid_test_run(copy_cuts_body, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_replace),
		cmocka_unit_test(test_replace_fails),
		cmocka_unit_test(test_replace_waits),
		cmocka_unit_test(test_writes_during_replace),
		cmocka_unit_test(test_replace_power_cuts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
