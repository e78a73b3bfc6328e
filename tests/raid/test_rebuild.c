/*
 * Members that go and come back, spares, rebuild: afterwards the new member holds what it should, shown by reading
 * everything with M others gone.
 */
#include "tests/raid/rebuild_test.h"

static void return_body(void *arg)
{
	unsigned level = *(unsigned *)arg;
	static struct rig r;
	struct error err = {0};
	rig_make(&r, level, level == 1 ? 3 : 5, 0, 0);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < STRIPES; i++)
		CHECK(stripe_write(&r, i, 1 + i, VOLUME_DURABLE) == 0);
	CHECK(log_write(&r, 0, 7) == 0 && log_write(&r, 16, 8) == 0);
	vanish(&r, 1);
	for (unsigned i = 10; i < 15; i++)
		CHECK(stripe_write(&r, i, 1000 + i, VOLUME_DURABLE) == 0);
	CHECK(stripe_write(&r, 100, 2000, VOLUME_DURABLE) == 0);
	CHECK(log_write(&r, 16, 9) == 0);
	CHECK(status_get(&r)->member[1].state == MEMBER_FAILED);
	CHECK_OK(come_back(&r, 1, &err), err);
	const struct array_status *s = status_get(&r);
	CHECK(s->rebuild.partial && !s->rebuild.running);
	/* six stripes, and the log zone */
	uint64_t log = (uint64_t)r.g->log_blocks * BLOCK_BYTES * r.g->log_copies / s->members;
	CHECK(s->rebuild.written_bytes <= 6u * r.g->strip_blocks * BLOCK_BYTES + log + 65536);
	CHECK(s->rebuild.written_bytes >= 6u * r.g->strip_blocks * BLOCK_BYTES);
	CHECK(log_verify(&r, 0, 7) == 0 && log_verify(&r, 16, 9) == 0);
	prove(&r, 1);
	CHECK(!test_failure[0]);
	CHECK(log_verify(&r, 0, 7) == 0 && log_verify(&r, 16, 9) == 0);
	rig_end(&r);
}

static void test_return(void **state)
{
	(void)state;
	unsigned level = 6;
	raid_test_run(return_body, &level);
	level = 1;
	raid_test_run(return_body, &level);
}

/* Away over restarts: the map is on the survivors. */
static void restart_body(void *arg)
{
	(void)arg;
	static struct rig r;
	struct error err = {0};
	rig_make(&r, 6, 5, 0, 0);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < STRIPES; i++)
		CHECK(stripe_write(&r, i, 1 + i, 0) == 0);
	vanish(&r, 2);
	CHECK(stripe_write(&r, 3, 1003, VOLUME_DURABLE) == 0);
	rig_close(&r);
	rig_open(&r, false, true);
	CHECK(!test_failure[0]);
	CHECK(stripe_write(&r, 7, 1007, VOLUME_DURABLE) == 0);
	/* a survivor that joined the knowledge later than others */
	rig_close(&r);
	fault_inject(r.t.path[2], FAULT_NONE, 0, 0);
	rig_open(&r, false, true);
	CHECK(!test_failure[0]);
	CHECK(status_get(&r)->member[2].state != MEMBER_ACTIVE);
	CHECK(stripe_write(&r, 9, 1009, VOLUME_DURABLE) == 0);
	CHECK_OK(come_back(&r, 2, &err), err);
	const struct array_status *s = status_get(&r);
	CHECK(s->rebuild.partial);
	prove(&r, 2);
	CHECK(!test_failure[0]);
	rig_end(&r);
}

static void test_away_over_restarts(void **state)
{
	(void)state;
	raid_test_run(restart_body, NULL);
}

/* A drive that was not there at opening, and one that went on by itself. */
static void apart_body(void *arg)
{
	(void)arg;
	static struct rig r;
	struct error err = {0};
	rig_make(&r, 1, 2, 0, 0);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < STRIPES; i++)
		CHECK(stripe_write(&r, i, 1 + i, VOLUME_DURABLE) == 0);
	rig_close(&r);
	/* the first half alone */
	r.t.count = 1;
	rig_open(&r, false, true);
	CHECK(!test_failure[0]);
	CHECK(status_get(&r)->member[1].state == MEMBER_MISSING);
	CHECK(stripe_write(&r, 5, 5005, VOLUME_DURABLE) == 0);
	CHECK_OK(come_back(&r, 1, &err), err);
	CHECK(status_get(&r)->rebuild.partial);
	CHECK(all_verify(&r) == 0);
	rig_close(&r);
	rig_open(&r, false, true);
	CHECK(stripe_write(&r, 6, 6006, VOLUME_DURABLE) == 0);
	rig_close(&r);
	/* the second half alone, then the first with the second added: it saw events of its own */
	const char *first = r.t.paths[0];
	r.t.paths[0] = r.t.paths[1];
	struct rig other = {0};
	other.t = r.t;
	other.t.paths[0] = r.t.path[1];
	CHECK_OK(raid_test_open(&other.t, &other.array, &err), err);
	array_close(other.array);
	r.t.paths[0] = first;
	CHECK_OK(raid_test_open(&r.t, &other.array, &err), err);
	int e = array_add(other.array, r.t.path[1], NULL, NULL, &err);
	CHECK(e == -EUCLEAN);
	struct member_add how = {.force = true, .slot = -1};
	CHECK_OK(array_add(other.array, r.t.path[1], &how, NULL, &err), err);
	array_close(other.array);
	r.t.count = 2;
	rig_open(&r, false, true);
	CHECK(!test_failure[0]);
	CHECK(array_settled(r.array, NULL, NULL) == 0);
	CHECK(!status_get(&r)->rebuild.partial);
	prove(&r, 1);
	CHECK(!test_failure[0]);
	rig_end(&r);
}

static void test_went_on_apart(void **state)
{
	(void)state;
	raid_test_run(apart_body, NULL);
}

static void spare_body(void *arg)
{
	unsigned level = *(unsigned *)arg;
	static struct rig r;
	unsigned members = level == 1 ? 2 : 5;
	rig_make(&r, level, members + 1, 1, 0);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < STRIPES; i++)
		CHECK(stripe_write(&r, i * 3, 1 + i, VOLUME_DURABLE) == 0);
	CHECK(log_write(&r, 0, 7) == 0);
	const struct array_status *s = status_get(&r);
	CHECK(s->slots == members + 1 && s->member[members].state == MEMBER_SPARE);
	vanish(&r, 0);
	CHECK(stripe_write(&r, 1, 99, VOLUME_DURABLE) == 0);
	fiber_sleep(10 * NSEC_PER_MSEC);
	CHECK(array_settled(r.array, NULL, NULL) == 0);
	s = status_get(&r);
	CHECK(s->member[0].state == MEMBER_ACTIVE && strcmp(s->member[0].path, r.t.path[members]) == 0);
	CHECK(s->member[members].state == MEMBER_NONE);
	CHECK(!s->rebuild.partial && s->rebuild.lost_rows == 0);
	/* rows in use only, and K reads for one write; of the log all other copies */
	uint64_t strip = r.g->strip_blocks * BLOCK_BYTES;
	uint64_t log = (uint64_t)r.g->log_blocks * BLOCK_BYTES * r.g->log_copies / s->members + 65536;
	CHECK(s->rebuild.written_bytes <= 61 * strip + log);
	CHECK(s->rebuild.read_bytes <= 61 * strip * r.g->k + log * r.g->m);
	CHECK(log_verify(&r, 0, 7) == 0);
	prove(&r, 0);
	CHECK(!test_failure[0]);
	/* and all of it after a restart */
	rig_close(&r);
	rig_open(&r, false, false);
	CHECK(!test_failure[0]);
	CHECK(all_verify(&r) == 0);
	rig_end(&r);
}

static void test_spare(void **state)
{
	(void)state;
	unsigned level = 6;
	raid_test_run(spare_body, &level);
	level = 1;
	raid_test_run(spare_body, &level);
}

/* Writers on both reactors while the rebuild runs. */
static void busy_body(void *arg)
{
	bool second = *(bool *)arg;
	static struct rig r;
	rig_make(&r, 6, second ? 7 : 6, second ? 2 : 1, 0);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < 200; i++)
		CHECK(stripe_write(&r, i, 1 + i, VOLUME_DURABLE) == 0);
	struct writers w;
	writers_start(&w, &r);
	fiber_sleep(20 * NSEC_PER_MSEC);
	vanish(&r, 3);
	fiber_sleep(30 * NSEC_PER_MSEC);
	if (second)
		vanish(&r, 1);
	for (unsigned i = 0; i < 200 && status_get(&r)->degraded; i++)
		fiber_sleep(20 * NSEC_PER_MSEC);
	fiber_sleep(20 * NSEC_PER_MSEC);
	CHECK(writers_stop(&w));
	CHECK(array_settled(r.array, NULL, NULL) == 0);
	CHECK(writers_verify(&w));
	prove(&r, 3);
	CHECK(!test_failure[0]);
	rig_end(&r);
}

static void test_writes_during_rebuild(void **state)
{
	(void)state;
	bool second = false;
	raid_test_run(busy_body, &second);
	second = true;
	raid_test_run(busy_body, &second);
}

/* Stopped in the middle, it goes on from there; the member fails in the middle, it begins anew. */
static void resume_body(void *arg)
{
	(void)arg;
	static struct rig r;
	struct error err = {0};
	rig_make(&r, 6, 6, 1, 0);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < 200; i++)
		CHECK(stripe_write(&r, i, 1 + i, VOLUME_DURABLE) == 0);
	/* one command that takes long, somewhere in the middle */
	fault_inject(r.t.path[5], FAULT_DELAY, 70, 300 * NSEC_PER_MSEC);
	vanish(&r, 3);
	CHECK(stripe_write(&r, 0, 99, VOLUME_DURABLE) == 0);
	for (unsigned i = 0; i < 100 && status_get(&r)->rebuild.done_bytes == 0; i++)
		fiber_sleep(2 * NSEC_PER_MSEC);
	CHECK(status_get(&r)->rebuild.running && status_get(&r)->member[3].state == MEMBER_REBUILDING);
	array_rebuild_pause(r.array, true);
	fiber_sleep(400 * NSEC_PER_MSEC);
	CHECK(status_get(&r)->rebuild.paused);
	uint64_t done = status_get(&r)->rebuild.done_bytes;
	CHECK(done > 0 && done < 200u * 65536);
	rig_close(&r);
	rig_open(&r, false, false);
	CHECK(!test_failure[0]);
	CHECK(status_get(&r)->member[3].state == MEMBER_REBUILDING);
	CHECK(stripe_write(&r, 1, 98, VOLUME_DURABLE) == 0);
	CHECK_OK(array_keep(r.array, &err), err);
	CHECK(array_settled(r.array, NULL, NULL) == 0);
	const struct array_status *s = status_get(&r);
	uint64_t log = (uint64_t)r.g->log_blocks * BLOCK_BYTES * r.g->log_copies / s->members + 65536;
	CHECK(s->rebuild.written_bytes < 200u * 65536 - done / 2 + log);
	prove(&r, 3);
	CHECK(!test_failure[0]);
	rig_end(&r);
}

static void test_resume(void **state)
{
	(void)state;
	raid_test_run(resume_body, NULL);
}

/* A drive loses power alone: what it had acknowledged without a flush is gone, and it must not be trusted for it. */
static void cache_body(void *arg)
{
	(void)arg;
	static struct rig r;
	struct error err = {0};
	rig_make(&r, 6, 5, 0, 0);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < 5; i++)
		fault_volatile_cache(r.t.path[i], true);
	for (unsigned i = 0; i < STRIPES; i++)
		CHECK(stripe_write(&r, i, 1 + i, 0) == 0);
	CHECK(volume_flush(r.v) == 0 && volume_flush(r.v) == 0 && volume_flush(r.v) == 0);
	for (unsigned i = 20; i < 24; i++)
		CHECK(stripe_write(&r, i, 1000 + i, 0) == 0);
	fault_power_cut(r.t.path[2], 1, 0);
	/* nothing is written without it: what it lacks is what was in its cache */
	CHECK(volume_flush(r.v) == 0);
	CHECK(status_get(&r)->member[2].state == MEMBER_FAILED);
	CHECK_OK(come_back(&r, 2, &err), err);
	const struct array_status *s = status_get(&r);
	CHECK(s->rebuild.partial);
	uint64_t log = (uint64_t)r.g->log_blocks * BLOCK_BYTES * r.g->log_copies / s->members + 65536;
	CHECK(s->rebuild.written_bytes <= 4 * 65536 + log);
	prove(&r, 2);
	CHECK(!test_failure[0]);
	rig_end(&r);
}

static void test_lost_cache(void **state)
{
	(void)state;
	raid_test_run(cache_body, NULL);
}

/* Power cuts at every write of a run in which a member goes, rows are written, and it returns. */
static void cuts_body(void *arg)
{
	(void)arg;
	static struct rig r;
	struct error err = {0};
	unsigned limit, ended = 0;
	for (limit = 1; limit < 400 && !ended; limit += limit < 60 ? 1 : 7) {
		uint64_t done[6] = {0};
		rig_make(&r, 6, 5, 0, 0);
		CHECK(!test_failure[0]);
		for (unsigned i = 0; i < 6; i++)
			CHECK(stripe_write(&r, i, done[i] = 1 + i, VOLUME_DURABLE) == 0);
		for (unsigned i = 0; i < 5; i++)
			fault_volatile_cache(r.t.path[i], true);
		fault_write_limit(limit);
		vanish(&r, 1);
		for (unsigned i = 0; i < 4; i++)
			if (stripe_write(&r, i, 100 + i, VOLUME_DURABLE) == 0)
				done[i] = 100 + i;
		fault_inject(r.t.path[1], FAULT_NONE, 0, 0);
		ended = come_back(&r, 1, &err) == 0;
		if (ended)
			for (unsigned i = 4; i < 6; i++)
				if (stripe_write(&r, i, 200 + i, VOLUME_DURABLE) == 0)
					done[i] = 200 + i;
		rig_close(&r);
		for (unsigned i = 0; i < 5; i++)
			fault_power_cut(r.t.path[i], limit, (unsigned)(limit % 3) * 500);
		fault_reset();
		/* whatever state it is in: what was acknowledged is there, and still when all is rebuilt */
		rig_open(&r, false, true);
		CHECK(!test_failure[0]);
		for (unsigned round = 0; round < 2; round++) {
			for (unsigned i = 0; i < 6; i++) {
				uint64_t latest = r.seed[i];
				r.seed[i] = done[i];
				int wrong = stripe_verify(&r, i);
				r.seed[i] = latest;
				if (wrong && latest != done[i])
					wrong = stripe_verify(&r, i);
				/* a write that was cut may have left some of its rows: the owner writes them again */
				if (wrong && latest != done[i])
					wrong = 0;
				CHECK(!wrong);
			}
			if (round == 0) {
				enum member_state s1 = status_get(&r)->member[1].state;
				if (s1 != MEMBER_ACTIVE && s1 != MEMBER_REBUILDING)
					CHECK_OK(come_back(&r, 1, &err), err);
				CHECK(array_settled(r.array, NULL, NULL) == 0);
				CHECK_OK(array_fail(r.array, 0, &err), err);
				CHECK_OK(array_fail(r.array, 3, &err), err);
			}
		}
		rig_end(&r);
	}
	CHECK(ended);
}

static void test_power_cuts(void **state)
{
	(void)state;
	raid_test_run(cuts_body, NULL);
}

/* By command: replace a member that works, add, remove, a drive of the pool; other machines, other paths. */
static void command_body(void *arg)
{
	(void)arg;
	static struct rig r;
	struct error err = {0};
	rig_make(&r, 6, 8, 0, 3);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < STRIPES; i++)
		CHECK(stripe_write(&r, i, 1 + i, VOLUME_DURABLE) == 0);
	CHECK(array_replace(r.array, 2, NULL, false, &err) == -ENOENT);
	CHECK_OK(array_replace(r.array, 2, r.t.path[5], false, &err), err);
	CHECK(array_settled(r.array, NULL, NULL) == 0);
	CHECK(strcmp(status_get(&r)->member[2].path, r.t.path[5]) == 0);
	CHECK(!status_get(&r)->degraded && all_verify(&r) == 0);
	/* the one that was replaced is nobody's now, but not empty either */
	CHECK(array_add(r.array, r.t.path[2], NULL, NULL, &err) == -EEXIST);
	struct member_add force = {.force = true, .spare = true, .slot = -1};
	unsigned slot;
	CHECK_OK(array_add(r.array, r.t.path[2], &force, &slot, &err), err);
	CHECK(slot == 5 && status_get(&r)->member[5].state == MEMBER_SPARE);
	CHECK(array_add(r.array, r.t.path[2], NULL, NULL, &err) == -EEXIST);
	CHECK(array_remove(r.array, 1, &err) == -EBUSY);
	CHECK_OK(array_remove(r.array, 5, &err), err);
	CHECK(status_get(&r)->member[5].state == MEMBER_NONE);
	/* from the pool */
	CHECK_OK(pool_add(r.t.path[6], false, &err), err);
	struct raid_scan scan;
	CHECK_OK(raid_scan(r.t.paths, 8, &scan, &err), err);
	unsigned pool = 0;
	for (unsigned i = 0; i < scan.count; i++)
		pool += scan.drive[i].content == DRIVE_POOL;
	raid_scan_free(&scan);
	CHECK(pool == 1);
	CHECK(pool_remove(r.t.path[7], &err) == -ENODATA);
	CHECK_OK(array_fail(r.array, 4, &err), err);
	CHECK_OK(array_remove(r.array, 4, &err), err);
	CHECK_OK(array_add(r.array, r.t.path[6], NULL, &slot, &err), err);
	CHECK(slot == 4);
	CHECK(array_settled(r.array, NULL, NULL) == 0);
	prove(&r, 4);
	CHECK(!test_failure[0]);
	rig_close(&r);
	/* the drives in another machine, under other names and in another order */
	for (unsigned i = 0; i < 8; i++) {
		char old[200];
		snprintf(old, sizeof(old), "%s", raid_test_file(r.t.path[i]));
		snprintf(r.t.path[i], sizeof(r.t.path[i]), "%.120s/moved%u", r.t.dir, 7 - i);
		CHECK(rename(old, r.t.path[i]) == 0);
	}
	rig_open(&r, false, false);
	CHECK(!test_failure[0]);
	CHECK(all_verify(&r) == 0);
	rig_end(&r);
}

static void test_commands(void **state)
{
	(void)state;
	raid_test_run(command_body, NULL);
}

/*
 * A bit flips on its way from a survivor to the rebuild, and the log has two other copies or more: they are
 * compared, so the new one is right. (Rows are not: they have the checksums of who reads them.)
 */
struct flip {
	unsigned level, drives, from, nth;
};

static void flip_body(void *arg)
{
	const struct flip *f = arg;
	static struct rig r;
	struct error err = {0};
	rig_make(&r, f->level, f->drives, 0, 0);
	CHECK(!test_failure[0]);
	CHECK_OK(array_fail(r.array, 0, &err), err);
	for (unsigned i = 0; i < 10; i++)
		CHECK(log_write(&r, i * 16, 100 + i) == 0);
	/* no row is in use: what the rebuild reads is the log */
	fault_inject(r.t.path[f->from], FAULT_BIT_FLIP, f->nth, 77777);
	CHECK_OK(come_back(&r, 0, &err), err);
	fault_inject(r.t.path[f->from], FAULT_NONE, 0, 0);
	CHECK(status_get(&r)->rebuild.written_bytes > 0 && status_get(&r)->rebuild.lost_rows == 0);
	for (unsigned i = 0; i < 10; i++)
		CHECK(log_verify(&r, i * 16, 100 + i) == 0);
	rig_end(&r);
}

static void test_flip_in_the_log(void **state)
{
	(void)state;
	static const struct flip shapes[] = {{.level = 6, .drives = 5}, {.level = 1, .drives = 3}};
	for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
		for (unsigned from = 1; from < shapes[i].drives; from++)
			for (unsigned nth = 1; nth <= 4; nth++) {
				struct flip f = shapes[i];
				f.from = from;
				f.nth = nth;
				raid_test_run(flip_body, &f);
			}
}

/* A block that was repaired, and the repair was still in the drive's cache when the drive lost power: it is missed. */
static void repair_lost_body(void *arg)
{
	(void)arg;
	static struct rig r;
	struct error err = {0};
	struct payload p;
	rig_make(&r, 1, 2, 0, 0);
	CHECK(!test_failure[0]);
	fault_volatile_cache(r.t.path[0], true);
	CHECK(stripe_write(&r, 0, 1, VOLUME_DURABLE) == 0);
	/* position 0 of stripe 0 lies on slot 0, which keeps the old content */
	fault_inject(r.t.path[0], FAULT_LOST_WRITE, 1, 0);
	CHECK(stripe_write(&r, 0, 2, VOLUME_DURABLE) == 0);
	CHECK(stripe_verify(&r, 0) == 1);
	for (unsigned row = 0; row < r.g->strip_blocks; row++) {
		payload_make(&p, BLOCK_BYTES, BLOCK_BYTES, 0);
		CHECK(volume_reread(r.v, row, 1, p.v) == 0 && volume_repair(r.v, row, p.v) == 0);
		payload_free(&p);
	}
	CHECK(stripe_verify(&r, 0) == 0);
	fault_power_cut(r.t.path[0], 1, 0);
	CHECK(stripe_write(&r, 40, 3, VOLUME_DURABLE) == 0);
	CHECK(status_get(&r)->member[0].state == MEMBER_FAILED);
	CHECK_OK(come_back(&r, 0, &err), err);
	CHECK(status_get(&r)->rebuild.partial && all_verify(&r) == 0);
	rig_end(&r);
}

static void test_lost_repair(void **state)
{
	(void)state;
	raid_test_run(repair_lost_body, NULL);
}

/*
 * One stripe of those that are rebuilt at a time has to be computed another way, since a survivor cannot read it. The
 * lost strip has the same position in all of them.
 */
static void bad_sector_body(void *arg)
{
	static struct rig r;
	struct error err = {0};
	rig_make(&r, 6, 6, 0, 0);
	CHECK(!test_failure[0]);
	CHECK_OK(array_fail(r.array, 0, &err), err);
	for (unsigned i = 0; i < STRIPES; i++)
		CHECK(stripe_write(&r, i * 6, 1 + i, VOLUME_DURABLE) == 0);
	fault_inject(r.t.path[1], FAULT_READ_ERROR, *(unsigned *)arg, 0);
	CHECK_OK(come_back(&r, 0, &err), err);
	fault_inject(r.t.path[1], FAULT_NONE, 0, 0);
	CHECK(status_get(&r)->rebuild.lost_rows == 0);
	prove(&r, 0);
	rig_end(&r);
}

static void test_bad_sector(void **state)
{
	(void)state;
	for (unsigned nth = 1; nth <= 40; nth += 3)
		raid_test_run(bad_sector_body, &nth);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_return),
		cmocka_unit_test(test_away_over_restarts),
		cmocka_unit_test(test_went_on_apart),
		cmocka_unit_test(test_spare),
		cmocka_unit_test(test_writes_during_rebuild),
		cmocka_unit_test(test_resume),
		cmocka_unit_test(test_lost_cache),
		cmocka_unit_test(test_power_cuts),
		cmocka_unit_test(test_commands),
		cmocka_unit_test(test_flip_in_the_log),
		cmocka_unit_test(test_lost_repair),
		cmocka_unit_test(test_bad_sector),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
