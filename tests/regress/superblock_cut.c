/*
 * Superblocks that were written to some members only, when the power went. A member that had one was refused when the
 * others had gone on without it meanwhile: they had used the same event number again. And the other way round, one
 * that had gone on without the others from an older event was taken back where its numbers were lower than theirs.
 */
#include "tests/raid/rebuild_test.h"

enum cut { CUT_FAIL, CUT_VOLUME, CUT_OPEN, CUT_CLOSE, CUT_KINDS };

struct round {
	unsigned level, drives;
	enum cut cut;
	unsigned writes; /* that reach a drive before the power goes */
	unsigned away;	 /* not there when the array is opened after that */
	bool again;	 /* the power goes a second time, before the others have written another superblock */
};

static struct rig rig;
static unsigned opened, returned;

/* The power goes; what was written is there. */
static void power_off(struct rig *r)
{
	fault_write_limit(0);
	for (unsigned i = 0; i < r->t.count; i++)
		fault_power_cut(r->t.path[i], 0, 1000);
	if (r->v)
		volume_close(r->v);
	if (r->array)
		array_close(r->array);
	r->v = NULL;
	r->array = NULL;
}

/* Opens what is there, of which DRIVES has a bit each. */
static int open_of(struct rig *r, unsigned drives, struct error *err)
{
	struct raid_scan scan;
	const char *paths[TEST_DRIVES_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < r->t.count; i++)
		if (drives & 1u << i)
			paths[n++] = r->t.path[i];
	int e = raid_scan(paths, n, &scan, err);
	if (e)
		return e;
	e = array_open(&scan, "a0", &r->array, err);
	raid_scan_free(&scan);
	if (!e)
		e = volume_open(r->array, "v", &r->v, err);
	if (!e)
		r->g = volume_geometry(r->v);
	return e;
}

#define ALL(r) ((1u << (r)->t.count) - 1)

static void cut_now(struct rig *r, const struct round *round)
{
	struct error err = {0};

	if (round->cut == CUT_OPEN) {
		power_off(r);
		fault_write_limit(round->writes);
		(void)open_of(r, ALL(r), &err);
	} else {
		fault_write_limit(round->writes);
		if (round->cut == CUT_FAIL)
			(void)array_fail(r->array, r->t.count - 1, &err);
		if (round->cut == CUT_VOLUME)
			(void)volume_create(r->array, "w", 1u << 20, &err);
		if (round->cut == CUT_CLOSE) {
			volume_close(r->v);
			array_close(r->array);
			r->v = NULL;
			r->array = NULL;
		}
	}
	power_off(r);
}

/* Opens all that there is; who is away comes back with what it missed. */
static void all_return(struct rig *r)
{
	struct error err = {0};
	unsigned back = 0;

	CHECK_OK(open_of(r, ALL(r), &err), err);
	CHECK_OK(array_keep(r->array, &err), err);
	for (unsigned i = 0; i < r->t.count; i++)
		if (status_get(r)->member[i].state != MEMBER_ACTIVE) {
			back++;
			CHECK_OK(array_add(r->array, r->t.path[i], NULL, NULL, &err), err);
		}
	CHECK(array_settled(r->array, NULL, NULL) == 0);
	CHECK(!back || status_get(r)->rebuild.partial);
	returned += back;
}

static void rows_write(struct rig *r, unsigned first, unsigned end, uint64_t seed)
{
	for (unsigned i = first; i < end; i++)
		CHECK(stripe_write(r, i, seed + i, VOLUME_DURABLE) == 0);
}

static void begin(struct rig *r, unsigned level, unsigned drives)
{
	struct error err = {0};

	memset(r, 0, sizeof(*r));
	raid_test_drives(&r->t, drives, TEST_DRIVE_BYTES, "fault:");
	CHECK_OK(raid_test_create(&r->t, level, 0, &err), err);
	CHECK_OK(raid_test_open(&r->t, &r->array, &err), err);
	CHECK_OK(volume_create(r->array, "v", 8u << 20, &err), err);
	CHECK_OK(volume_open(r->array, "v", &r->v, &err), err);
	r->g = volume_geometry(r->v);
	rows_write(r, 0, 4, 1);
}

static void round_run(struct rig *r, const struct round *round)
{
	struct error err = {0};

	begin(r, round->level, round->drives);
	CHECK(!test_failure[0]);
	cut_now(r, round);
	if (open_of(r, ALL(r) & ~(1u << round->away), &err) == 0) {
		opened++;
		rows_write(r, 2, 6, 100);
		if (!round->again) {
			volume_close(r->v);
			array_close(r->array);
			r->v = NULL;
			r->array = NULL;
		}
	} else if (round->cut != CUT_FAIL || round->level != 5 || err.code != -EIO) {
		CHECK_OK(err.code, err); /* else another has failed: it cannot do without this one */
	}
	power_off(r);
	all_return(r);
	CHECK(!test_failure[0]);
	prove(r, round->away);
	CHECK(!test_failure[0]);
	rig_end(r);
}

static const unsigned shapes[][2] = {{1, 3}, {5, 3}, {6, 5}};
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* One that had it is not there when the others go on. */
static void returns_body(void *arg)
{
	struct round round = {0};

	(void)arg;
	for (unsigned s = 0; s < SHAPES; s++) {
		round.level = shapes[s][0];
		round.drives = shapes[s][1];
		for (unsigned i = 0; i < CUT_KINDS * 2 * round.drives && !test_failure[0]; i++) {
			round.cut = (enum cut)(i % CUT_KINDS);
			round.again = i / CUT_KINDS % 2;
			round.away = i / CUT_KINDS / 2;
			if (round.away && round.away < round.drives - 1 && !getenv("FURROW_LONG"))
				continue;
			for (round.writes = 1; round.writes <= 2 * round.drives && !test_failure[0]; round.writes++) {
				round_run(&rig, &round);
				if (test_failure[0])
					fprintf(stderr, "level %u, cut %d after %u writes, away %u, again %d\n",
						round.level, (int)round.cut, round.writes, round.away, round.again);
			}
		}
	}
	CHECK(!test_failure[0]);
	CHECK(opened > 100 && returned > 100);
}

static void test_returns(void **state)
{
	(void)state;
	raid_test_run(returns_body, NULL);
}

/* The write of a superblock to BAD fails, though it may be done; the array goes on, and then the power goes or not. */
static void failed_run(struct rig *r, const unsigned *shape, unsigned bad, enum fault_kind kind, unsigned nth, bool cut)
{
	struct error err = {0};

	begin(r, shape[0], shape[1]);
	CHECK(!test_failure[0]);
	fault_inject(r->t.path[bad], kind, nth, 200 * NSEC_PER_MSEC);
	if (kind == FAULT_DELAY)
		atomic_store(&drive_deadline_override, 50 * NSEC_PER_MSEC);
	CHECK_OK(volume_create(r->array, "w", 1u << 20, &err), err);
	CHECK(kind == FAULT_DELAY || status_get(r)->member[bad].state == MEMBER_FAILED);
	rows_write(r, 2, 6, 100);
	if (kind == FAULT_DELAY) /* it is done late */
		fiber_sleep(300 * NSEC_PER_MSEC);
	atomic_store(&drive_deadline_override, 0);
	if (cut) {
		power_off(r);
		CHECK_OK(open_of(r, ALL(r) & ~(1u << bad), &err), err);
		rows_write(r, 5, 7, 200);
	}
	power_off(r);
	all_return(r);
	CHECK(!test_failure[0]);
	prove(r, bad);
	CHECK(!test_failure[0]);
	rig_end(r);
}

static void failed_body(void *arg)
{
	static const enum fault_kind kinds[] = {FAULT_WRITE_ERROR, FAULT_FALSE_ERROR, FAULT_DELAY};

	(void)arg;
	for (unsigned i = 0; i < SHAPES * 3 * 2 * 2 && !test_failure[0]; i++)
		for (unsigned nth = 1; nth <= 2 && !test_failure[0]; nth++) {
			const unsigned *shape = shapes[i % SHAPES];
			unsigned bad = i / SHAPES / 3 % 2 ? shape[1] - 1 : 0;

			failed_run(&rig, shape, bad, kinds[i / SHAPES % 3], nth, i / SHAPES / 6);
			if (test_failure[0])
				fprintf(stderr, "level %u, drive %u, fault %d, write %u\n", shape[0], bad,
					(int)kinds[i / SHAPES % 3], nth);
		}
}

static void test_failed(void **state)
{
	(void)state;
	raid_test_run(failed_body, NULL);
}

/* Those of DRIVES are there alone, take a write, and stop. */
static void alone(struct rig *r, unsigned drives, unsigned row, uint64_t seed)
{
	struct error err = {0};

	CHECK_OK(open_of(r, drives, &err), err);
	rows_write(r, row, row + 1, seed);
	power_off(r);
}

/* The array runs as the first drive knows it, and does not take SLOT back as if nothing had been. */
static void strayed_check(struct rig *r, unsigned slot)
{
	struct member_add how = {.force = true, .slot = -1};
	struct error err = {0};

	CHECK_OK(array_keep(r->array, &err), err);
	CHECK(status_get(r)->member[slot].state != MEMBER_ACTIVE && all_verify(r) == 0);
	CHECK(array_add(r->array, r->t.path[slot], NULL, NULL, &err) == -EUCLEAN);
	CHECK_OK(array_add(r->array, r->t.path[slot], &how, NULL, &err), err);
	CHECK(array_settled(r->array, NULL, NULL) == 0 && !status_get(r)->rebuild.partial);
	prove(r, slot);
	CHECK(!test_failure[0]);
	rig_end(r);
}

/* The second of two goes on alone, without what the first wrote, and both come together. */
static void second_strays(struct rig *r)
{
	struct error err = {0};

	alone(r, 2, 6, 200);
	r->seed[6] = 0;
	CHECK_OK(open_of(r, ALL(r), &err), err);
	strayed_check(r, 1);
}

/* The second failed while a superblock was written: it is two events behind when it goes on alone. */
static void behind_body(void *arg)
{
	struct rig *r = &rig;
	struct error err = {0};

	(void)arg;
	begin(r, 1, 2);
	CHECK(!test_failure[0]);
	fault_inject(r->t.path[1], FAULT_WRITE_ERROR, 1, 0);
	CHECK_OK(volume_create(r->array, "w", 1u << 20, &err), err);
	rows_write(r, 5, 6, 100);
	power_off(r);
	second_strays(r);
}

/* A superblock reached the first alone, which then went on, and so did the second. */
static void both_body(void *arg)
{
	struct round round = {.cut = CUT_VOLUME, .writes = 1};
	struct rig *r = &rig;

	(void)arg;
	begin(r, 1, 2);
	CHECK(!test_failure[0]);
	cut_now(r, &round);
	alone(r, 1, 5, 100);
	second_strays(r);
}

/* Two superblocks reached the first alone, and name the second, which went on with the number of the first of them. */
static void named_body(void *arg)
{
	struct round round = {.cut = CUT_VOLUME, .writes = 1};
	struct rig *r = &rig;
	struct error err = {0};

	(void)arg;
	begin(r, 1, 2);
	CHECK(!test_failure[0]);
	cut_now(r, &round);
	round.cut = CUT_OPEN;
	cut_now(r, &round);
	alone(r, 2, 6, 200);
	CHECK(open_of(r, ALL(r), &err) == -EUCLEAN && strstr(err.text, "went on without each other"));
	r->array = NULL;
	/* one side alone is there */
	CHECK_OK(open_of(r, 2, &err), err);
	CHECK(all_verify(r) == 0);
	rig_end(r);
}

/* Two of three went on without the third; that got one of them by force, which is no witness for the other. */
static void witness_body(void *arg)
{
	struct member_add how = {.force = true, .slot = -1};
	struct rig *r = &rig;
	struct error err = {0};

	(void)arg;
	begin(r, 1, 3);
	CHECK(!test_failure[0]);
	power_off(r);
	alone(r, 6, 5, 100);
	r->seed[5] = 0;
	alone(r, 1, 6, 200);
	CHECK(open_of(r, ALL(r), &err) == -EUCLEAN);
	r->array = NULL;
	CHECK_OK(open_of(r, 1, &err), err);
	CHECK_OK(array_keep(r->array, &err), err);
	CHECK(array_add(r->array, r->t.path[1], NULL, NULL, &err) == -EUCLEAN);
	CHECK_OK(array_add(r->array, r->t.path[1], &how, NULL, &err), err);
	while (status_get(r)->member[1].state != MEMBER_ACTIVE)
		fiber_sleep(NSEC_PER_MSEC);
	strayed_check(r, 2);
}

/* The second does not get the superblock with which it is taken back, and goes on alone up to the number before. */
static void fresh_body(void *arg)
{
	struct rig *r = &rig;
	struct error err = {0};

	(void)arg;
	begin(r, 1, 2);
	CHECK(!test_failure[0]);
	CHECK_OK(array_fail(r->array, 1, &err), err);
	rows_write(r, 5, 6, 100);
	fault_inject(r->t.path[1], FAULT_WRITE_ERROR, 1, 0);
	CHECK(array_add(r->array, r->t.path[1], NULL, NULL, &err) == -EIO);
	power_off(r);
	second_strays(r);
}

static void test_apart(void **state)
{
	(void)state;
	raid_test_run(fresh_body, NULL);
	raid_test_run(behind_body, NULL);
	raid_test_run(both_body, NULL);
	raid_test_run(named_body, NULL);
	raid_test_run(witness_body, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_returns),
		cmocka_unit_test(test_failed),
		cmocka_unit_test(test_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
