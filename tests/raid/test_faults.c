/*
 * Drives that fail, each in its way: the data stays right, the member is treated as it should be, and what
 * the survivors' superblocks say is never behind what was acknowledged.
 */
#include "tests/raid/raid_test.h"

struct rig {
	struct raid_test t;
	struct array *array;
	struct volume *v;
	const struct volume_geometry *g;
};

static void rig_open(struct rig *r, bool volume_new)
{
	struct error err = {0};
	CHECK_OK(raid_test_open_volume(&r->t, volume_new, &r->array, &r->v, &err), err);
	r->g = volume_geometry(r->v);
}

static void rig_make(struct rig *r, unsigned level, unsigned drives)
{
	struct error err = {0};
	fault_reset();
	raid_test_drives(&r->t, drives, TEST_DRIVE_BYTES, "fault:");
	CHECK_OK(raid_test_create(&r->t, level, 0, &err), err);
	rig_open(r, true);
}

static void rig_close(struct rig *r)
{
	volume_close(r->v);
	array_close(r->array);
}

static void rig_end(struct rig *r)
{
	rig_close(r);
	raid_test_remove(&r->t);
	fault_reset();
}

static int stripe_write(struct rig *r, uint64_t stripe, uint64_t seed, unsigned flags)
{
	struct payload p;
	payload_make(&p, volume_stripe_blocks(r->g) * BLOCK_BYTES, 65536, seed);
	int e = volume_write_rows(r->v, stripe, 0, r->g->strip_blocks, p.v, p.n, flags);
	payload_free(&p);
	return e;
}

/* 0: read and right; 1: read and wrong; or the error. Comes back with new buffers after a time-out, as the contract
 * says. */
static int stripe_verify(struct rig *r, uint64_t stripe, uint64_t seed)
{
	struct payload p, q;
	payload_make(&p, volume_stripe_blocks(r->g) * BLOCK_BYTES, 65536, seed);
	int e;
	do {
		payload_make(&q, p.bytes, 65536, 0);
		e = volume_read(r->v, stripe * volume_stripe_blocks(r->g), q.v, q.n);
		if (!e)
			e = payload_sum(&p) != payload_sum(&q);
		if (!e)
			volume_verified(r->v, stripe * volume_stripe_blocks(r->g), q.v, q.n);
		payload_free(&q);
	} while (e == -ETIMEDOUT);
	payload_free(&p);
	return e;
}

static void status_of(
	struct rig *r, unsigned slot, enum member_state *state, uint64_t *reads, uint64_t *writes, uint64_t *timeouts)
{
	struct array_status *s = calloc(1, sizeof(*s));
	array_status(r->array, s);
	*state = s->member[slot].state;
	if (reads)
		*reads = s->member[slot].read_errors;
	if (writes)
		*writes = s->member[slot].write_errors;
	if (timeouts)
		*timeouts = s->member[slot].timeouts;
	free(s);
}

/* What the superblock on drive ON says about slot SLOT, read past the fault drive. */
static int state_on_drive(struct rig *r, unsigned on, unsigned slot)
{
	struct drive *drive;
	struct super_found *f = malloc(sizeof(*f));
	enum super_verdict verdict;
	char why[160];
	int state = -1;
	if (drive_open(raid_test_file(r->t.path[on]), false, &drive, NULL) == 0) {
		if (super_read(drive, f, &verdict, why, sizeof(why)) == 0 && verdict == SUPER_VALID)
			state = f->config.member[slot].state;
		drive_close(drive);
	}
	free(f);
	return state;
}

static void read_error_body(void *arg)
{
	unsigned level = *(unsigned *)arg;
	struct rig r;
	enum member_state state;
	uint64_t reads;
	rig_make(&r, level, level == 1 ? 3 : 5);
	CHECK(!test_failure[0]);
	CHECK(stripe_write(&r, 0, 1, 0) == 0);
	/* one bad sector: served from the others, written back, and the member stays */
	uint64_t writes = fault_writes();
	fault_inject(r.t.path[0], FAULT_READ_ERROR, 1, 0);
	CHECK(stripe_verify(&r, 0, 1) == 0);
	status_of(&r, 0, &state, &reads, NULL, NULL);
	CHECK(state == MEMBER_ACTIVE && reads == 1);
	CHECK(fault_writes() == writes + 1);
	/* two bad at once in the same rows */
	fault_inject(r.t.path[0], FAULT_READ_ERROR, 1, 0);
	fault_inject(r.t.path[1], FAULT_READ_ERROR, 1, 0);
	CHECK(stripe_verify(&r, 0, 1) == 0);
	status_of(&r, 0, &state, &reads, NULL, NULL);
	CHECK(state == MEMBER_ACTIVE && reads == 2);
	/* one that never ends to fail is taken out in the end */
	for (unsigned i = 0; i < 40; i++) {
		fault_inject(r.t.path[0], FAULT_READ_ERROR, 1, 0);
		CHECK(stripe_verify(&r, 0, 1) == 0);
	}
	status_of(&r, 0, &state, &reads, NULL, NULL);
	CHECK(state == MEMBER_FAILED);
	rig_end(&r);
}

static void test_read_error(void **state)
{
	(void)state;
	unsigned level = 6;
	raid_test_run(read_error_body, &level);
	level = 1;
	raid_test_run(read_error_body, &level);
}

/* A write to drive 1 goes wrong in the way KIND. */
static void write_fault_body(void *arg)
{
	enum fault_kind kind = *(enum fault_kind *)arg;
	struct rig r;
	enum member_state state;
	rig_make(&r, 6, 5);
	CHECK(!test_failure[0]);
	CHECK(stripe_write(&r, 0, 1, VOLUME_DURABLE) == 0);
	fault_inject(r.t.path[1], kind, 1, 0);
	CHECK(stripe_write(&r, 1, 2, VOLUME_DURABLE) == 0);
	status_of(&r, 1, &state, NULL, NULL, NULL);
	CHECK(state == MEMBER_FAILED);
	/* it was acknowledged, so the survivors must know */
	for (unsigned on = 0; on < 5; on++)
		CHECK(on == 1 || state_on_drive(&r, on, 1) == FORMAT_MEMBER_FAILED);
	CHECK(stripe_verify(&r, 0, 1) == 0 && stripe_verify(&r, 1, 2) == 0);
	/* a second one */
	fault_inject(r.t.path[3], kind, 1, 0);
	CHECK(stripe_write(&r, 2, 3, VOLUME_DURABLE) == 0);
	CHECK(stripe_verify(&r, 0, 1) == 0 && stripe_verify(&r, 1, 2) == 0 && stripe_verify(&r, 2, 3) == 0);
	/* the third is one too many: not acknowledged, and nothing more is */
	fault_inject(r.t.path[4], kind, 1, 0);
	CHECK(stripe_write(&r, 3, 4, VOLUME_DURABLE) == -ENODEV);
	CHECK(stripe_write(&r, 0, 5, VOLUME_DURABLE) == -ENODEV);
	CHECK(stripe_verify(&r, 0, 1) == -ENODEV);
	CHECK(volume_flush(r.v) == -ENODEV);
	CHECK(state_on_drive(&r, 0, 4) == FORMAT_MEMBER_ACTIVE);
	rig_close(&r);
	/* all drives back, as after a power cycle of their box: what was acknowledged is there */
	fault_reset();
	rig_open(&r, false);
	CHECK(!test_failure[0]);
	CHECK(stripe_verify(&r, 0, 1) == 0 && stripe_verify(&r, 1, 2) == 0 && stripe_verify(&r, 2, 3) == 0);
	rig_end(&r);
}

static void test_write_faults(void **state)
{
	(void)state;
	static enum fault_kind kinds[] = {FAULT_WRITE_ERROR, FAULT_TORN_WRITE, FAULT_VANISH};
	for (unsigned i = 0; i < 3; i++)
		raid_test_run(write_fault_body, &kinds[i]);
}

static void silent_body(void *arg)
{
	(void)arg;
	struct rig r;
	rig_make(&r, 6, 5);
	CHECK(!test_failure[0]);
	CHECK(stripe_write(&r, 0, 1, 0) == 0);
	fault_inject(r.t.path[1], FAULT_LOST_WRITE, 1, 0);
	CHECK(stripe_write(&r, 0, 2, 0) == 0);
	/* position 1 of stripe 0 lies on slot 1: its old content comes back, and only a checksum can tell */
	CHECK(stripe_verify(&r, 0, 2) == 1);
	struct payload want, have;
	payload_make(&want, volume_stripe_blocks(r.g) * BLOCK_BYTES, 65536, 2);
	payload_make(&have, BLOCK_BYTES, BLOCK_BYTES, 0);
	uint64_t block = r.g->strip_blocks + 3;
	const uint8_t *right = want.v[1].buf->data + 3 * BLOCK_BYTES;
	CHECK(volume_reread(r.v, block, 0, have.v) == 0);
	CHECK(memcmp(have.v[0].buf->data, right, BLOCK_BYTES) != 0);
	/* 4 others, 3 needed: four ways, all of them right */
	for (unsigned attempt = 1; attempt <= 4; attempt++) {
		CHECK(volume_reread(r.v, block, attempt, have.v) == 0);
		CHECK(memcmp(have.v[0].buf->data, right, BLOCK_BYTES) == 0);
	}
	CHECK(volume_reread(r.v, block, 5, have.v) == -ENOENT);
	CHECK(volume_repair(r.v, block, have.v) == 0);
	CHECK(volume_read(r.v, block, have.v, 1) == 0);
	CHECK(memcmp(have.v[0].buf->data, right, BLOCK_BYTES) == 0);
	/* a bit flips on the way: the second look is right */
	fault_inject(r.t.path[0], FAULT_BIT_FLIP, 1, 12345);
	CHECK(volume_read(r.v, 0, have.v, 1) == 0);
	CHECK(memcmp(have.v[0].buf->data, want.v[0].buf->data, BLOCK_BYTES) != 0);
	CHECK(volume_reread(r.v, 0, 0, have.v) == 0);
	CHECK(memcmp(have.v[0].buf->data, want.v[0].buf->data, BLOCK_BYTES) == 0);
	payload_free(&want);
	payload_free(&have);
	struct array_status *s = calloc(1, sizeof(*s));
	array_status(r.array, s);
	uint64_t repaired = s->member[1].checksum_errors;
	free(s);
	CHECK(repaired == 1);
	rig_end(&r);
}

/*
 * One drive cannot read its block, another lies about its own: what is made of both is wrong. Nobody writes that
 * anywhere; only what the caller found right is written.
 */
static void unverified_body(void *arg)
{
	(void)arg;
	struct rig r;
	struct payload want, have;
	enum member_state state;
	uint64_t reads;
	rig_make(&r, 6, 5);
	CHECK(!test_failure[0]);
	CHECK(stripe_write(&r, 0, 1, 0) == 0);
	fault_inject(r.t.path[1], FAULT_LOST_WRITE, 1, 0);
	CHECK(stripe_write(&r, 0, 2, 0) == 0);
	uint64_t writes = fault_writes();
	payload_make(&want, volume_stripe_blocks(r.g) * BLOCK_BYTES, 65536, 2);
	const uint8_t *right = want.v[0].buf->data;
	/* position 0 lies on slot 0, the lie is position 1 */
	payload_make(&have, BLOCK_BYTES, BLOCK_BYTES, 0);
	fault_inject(r.t.path[0], FAULT_READ_ERROR, 1, 0);
	CHECK(volume_read(r.v, 0, have.v, 1) == 0);
	status_of(&r, 0, &state, &reads, NULL, NULL);
	CHECK(state == MEMBER_ACTIVE && reads == 1);
	CHECK(memcmp(have.v[0].buf->data, right, BLOCK_BYTES) != 0 && fault_writes() == writes);
	fault_inject(r.t.path[0], FAULT_READ_ERROR, 1, 0);
	CHECK(volume_reread(r.v, 0, 0, have.v) == -EIO);
	unsigned attempt = 1, wrong = 0;
	for (; attempt <= 4; attempt++) {
		CHECK(volume_reread(r.v, 0, attempt, have.v) == 0);
		if (memcmp(have.v[0].buf->data, right, BLOCK_BYTES) == 0)
			break;
		wrong++;
	}
	CHECK(wrong >= 1 && attempt <= 4 && fault_writes() == writes);
	CHECK(volume_repair(r.v, 0, have.v) == 0 && fault_writes() == writes + 1);
	/* that was a read error and not a wrong checksum, and it is settled */
	struct array_status *s = calloc(1, sizeof(*s));
	array_status(r.array, s);
	uint64_t lied = s->member[0].checksum_errors;
	free(s);
	CHECK(lied == 0);
	volume_verified(r.v, 0, have.v, 1);
	CHECK(fault_writes() == writes + 1);
	/* of many blocks that could not be read, those are written that are said to be right, once */
	payload_free(&have);
	payload_make(&have, 8 * BLOCK_BYTES, 8192, 0);
	fault_inject(r.t.path[2], FAULT_READ_ERROR, 1, 0);
	CHECK(volume_read(r.v, 2 * r.g->strip_blocks + 4, have.v, have.n) == 0);
	/* (made from the lie, but here that does not matter) */
	CHECK(fault_writes() == writes + 1);
	volume_verified(r.v, 2 * r.g->strip_blocks + 6, have.v + 1, 1);
	volume_verified(r.v, 2 * r.g->strip_blocks + 4, have.v, have.n);
	CHECK(fault_writes() == writes + 2);
	payload_free(&have);
	payload_free(&want);
	rig_end(&r);
}

static void test_unverified(void **state)
{
	(void)state;
	raid_test_run(unverified_body, NULL);
}

/* A member goes out while a caller looks for the right content: the ways that are left are all tried. */
static void silent_vanish_body(void *arg)
{
	const unsigned *shape = arg;
	struct rig r;
	rig_make(&r, shape[0], shape[1]);
	CHECK(!test_failure[0]);
	CHECK(stripe_write(&r, 0, 1, 0) == 0);
	fault_inject(r.t.path[0], FAULT_LOST_WRITE, 1, 0);
	CHECK(stripe_write(&r, 0, 2, 0) == 0);
	struct payload want, have;
	payload_make(&want, volume_stripe_blocks(r.g) * BLOCK_BYTES, 65536, 2);
	payload_make(&have, BLOCK_BYTES, BLOCK_BYTES, 0);
	/* position 0 of stripe 0 lies on slot 0, which lies; the first of the others is gone when it is asked */
	fault_inject(r.t.path[1], FAULT_VANISH, 1, 0);
	unsigned right = 0, closed = 0;
	int e = 0;
	for (unsigned attempt = 0; e != -ENOENT && attempt < 20; attempt++) {
		e = volume_reread(r.v, 0, attempt, have.v);
		closed += e == -EIO;
		right += e == 0 && memcmp(have.v[0].buf->data, want.v[0].buf->data, BLOCK_BYTES) == 0;
	}
	CHECK(e == -ENOENT && closed >= 1 && right == 1);
	payload_free(&want);
	payload_free(&have);
	rig_end(&r);
}

static void test_silent_vanish(void **state)
{
	(void)state;
	unsigned mirror[] = {1, 3}, parity[] = {6, 5};
	raid_test_run(silent_vanish_body, mirror);
	raid_test_run(silent_vanish_body, parity);
}

static void test_silent_faults(void **state)
{
	(void)state;
	raid_test_run(silent_body, NULL);
}

static void timeout_body(void *arg)
{
	(void)arg;
	struct rig r;
	enum member_state state;
	uint64_t timeouts;
	rig_make(&r, 6, 5);
	CHECK(!test_failure[0]);
	CHECK(stripe_write(&r, 0, 1, 0) == 0);
	atomic_store(&drive_deadline_override, 50 * NSEC_PER_MSEC);
	uint64_t before = arena_free_bytes();
	fault_inject(r.t.path[0], FAULT_DELAY, 1, 1000 * NSEC_PER_MSEC);
	uint64_t t0 = now_ns();
	struct payload q;
	payload_make(&q, volume_stripe_blocks(r.g) * BLOCK_BYTES, 65536, 0);
	CHECK(volume_read(r.v, 0, q.v, q.n) == -ETIMEDOUT);
	payload_free(&q);
	/* the buffer of the slow command is not free, so nobody else gets it and the late data harms nobody */
	CHECK(arena_free_bytes() <= before - 65536);
	CHECK(stripe_verify(&r, 0, 1) == 0);
	CHECK(now_ns() - t0 < 900 * NSEC_PER_MSEC);
	status_of(&r, 0, &state, NULL, NULL, &timeouts);
	CHECK(state == MEMBER_FAILED && timeouts == 1);
	for (unsigned on = 1; on < 5; on++)
		CHECK(state_on_drive(&r, on, 0) == FORMAT_MEMBER_FAILED);
	/* a write that hangs: acknowledged without the drive, once the others know */
	fault_inject(r.t.path[1], FAULT_DELAY, 1, 1000 * NSEC_PER_MSEC);
	CHECK(stripe_write(&r, 1, 2, 0) == 0);
	CHECK(state_on_drive(&r, 2, 1) == FORMAT_MEMBER_FAILED);
	CHECK(stripe_verify(&r, 1, 2) == 0);
	fiber_sleep(1200 * NSEC_PER_MSEC);
	CHECK(stripe_verify(&r, 0, 1) == 0 && stripe_verify(&r, 1, 2) == 0);
	/* and in the end everything is free again */
	CHECK(arena_free_bytes() >= before);
	atomic_store(&drive_deadline_override, 0);
	rig_end(&r);
}

static void test_timeout(void **state)
{
	(void)state;
	raid_test_run(timeout_body, NULL);
	atomic_store(&drive_deadline_override, 0);
}

/* Closing while a command is out: its buffers and its drive must outlive the array. */
static void close_body(void *arg)
{
	(void)arg;
	struct rig r;
	rig_make(&r, 6, 4);
	CHECK(!test_failure[0]);
	CHECK(stripe_write(&r, 0, 1, 0) == 0);
	atomic_store(&drive_deadline_override, 20 * NSEC_PER_MSEC);
	fault_inject(r.t.path[0], FAULT_DELAY, 1, 200 * NSEC_PER_MSEC);
	CHECK(stripe_verify(&r, 0, 1) == 0);
	atomic_store(&drive_deadline_override, 0);
	rig_close(&r);
	fiber_sleep(300 * NSEC_PER_MSEC);
	raid_test_remove(&r.t);
	fault_reset();
}

static void test_close_in_quarantine(void **state)
{
	(void)state;
	raid_test_run(close_body, NULL);
}

static void cache_body(void *arg)
{
	(void)arg;
	struct rig r;
	rig_make(&r, 6, 5);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < 5; i++)
		fault_volatile_cache(r.t.path[i], true);
	for (unsigned keep = 0; keep <= 500; keep += 500) {
		CHECK(stripe_write(&r, 0, 1, VOLUME_DURABLE) == 0);
		CHECK(stripe_write(&r, 1, 2, 0) == 0);
		CHECK(volume_flush(r.v) == 0);
		CHECK(stripe_write(&r, 2, 3, VOLUME_DURABLE) == 0);
		CHECK(stripe_write(&r, 3, 4 + keep, 0) == 0); /* this one may go */
		CHECK(stripe_verify(&r, 3, 4 + keep) == 0);
		for (unsigned i = 0; i < 5; i++)
			fault_power_cut(r.t.path[i], 7 + i, keep);
		CHECK(stripe_write(&r, 4, 9, 0) == -ENODEV);
		rig_close(&r);
		rig_open(&r, false);
		CHECK(!test_failure[0]);
		struct array_status *s = calloc(1, sizeof(*s));
		array_status(r.array, s);
		bool degraded = s->degraded;
		free(s);
		CHECK(!degraded);
		CHECK(stripe_verify(&r, 0, 1) == 0 && stripe_verify(&r, 1, 2) == 0 && stripe_verify(&r, 2, 3) == 0);
		CHECK(stripe_verify(&r, 3, 4 + keep) == 1);
	}
	rig_end(&r);
}

static void test_volatile_cache(void **state)
{
	(void)state;
	raid_test_run(cache_body, NULL);
}

/* The power goes at every write of a run that also loses a member: what was acknowledged is always there afterwards. */
static void every_write_body(void *arg)
{
	(void)arg;
	struct rig r;
	rig_make(&r, 6, 5);
	CHECK(!test_failure[0]);
	CHECK(stripe_write(&r, 0, 1, VOLUME_DURABLE) == 0);
	rig_close(&r);
	for (unsigned limit = 1; limit < 60; limit++) {
		uint64_t acknowledged[4] = {0};
		unsigned done = 0;
		fault_reset();
		/* from the same start each time: a fresh array */
		raid_test_remove(&r.t);
		rig_make(&r, 6, 5);
		CHECK(!test_failure[0]);
		fault_write_limit(limit);
		fault_inject(r.t.path[limit % 5], FAULT_WRITE_ERROR, 2, 0);
		for (unsigned i = 0; i < 4; i++) {
			if (stripe_write(&r, i, 100 * limit + i, VOLUME_DURABLE))
				break;
			acknowledged[done++] = 100 * limit + i;
		}
		rig_close(&r);
		fault_reset();
		rig_open(&r, false);
		CHECK(!test_failure[0]);
		for (unsigned i = 0; i < done; i++)
			CHECK(stripe_verify(&r, i, acknowledged[i]) == 0);
		rig_close(&r);
	}
	raid_test_remove(&r.t);
	fault_reset();
}

static void test_power_cut_at_every_write(void **state)
{
	(void)state;
	raid_test_run(every_write_body, NULL);
}

/* A write that begins while another one is still putting the loss of a member on record waits for that record too. */
struct slow_loss {
	struct rig *rig;
	struct wait_group group;
	int result;
};

static void slow_loss_fiber(void *arg)
{
	struct slow_loss *s = arg;
	s->result = stripe_write(s->rig, 0, 1, VOLUME_DURABLE);
	wait_group_done(&s->group, 0);
}

static void order_body(void *arg)
{
	(void)arg;
	struct rig r;
	rig_make(&r, 6, 5);
	CHECK(!test_failure[0]);
	struct slow_loss s = {.rig = &r};
	wait_group_init(&s.group);
	wait_group_add(&s.group, 1);
	fault_inject(r.t.path[1], FAULT_WRITE_ERROR, 1, 0);
	/* the row, then the superblock, which takes its time on this drive */
	fault_inject(r.t.path[2], FAULT_DELAY, 2, 200 * NSEC_PER_MSEC);
	CHECK(fiber_spawn(slow_loss_fiber, &s) == 0);
	fiber_sleep(50 * NSEC_PER_MSEC);
	CHECK(stripe_write(&r, 1, 2, VOLUME_DURABLE) == 0);
	CHECK(state_on_drive(&r, 2, 1) == FORMAT_MEMBER_FAILED);
	struct payload p;
	payload_make(&p, BLOCK_BYTES, BLOCK_BYTES, 3);
	CHECK(volume_log_write(r.v, 0, p.v, 1) == 0);
	payload_free(&p);
	wait_group_wait(&s.group);
	CHECK(s.result == 0);
	CHECK(stripe_verify(&r, 0, 1) == 0 && stripe_verify(&r, 1, 2) == 0);
	rig_end(&r);
}

static void test_ejection_order(void **state)
{
	(void)state;
	raid_test_run(order_body, NULL);
}

/* Two reactors write and read while members fail on both: no deadlock, no wrong data. */
struct storm {
	struct rig *rig;
	unsigned first, count;
	int result;
	struct wait_group *group;
	struct reactor *home;
};

static void storm_done(void *arg)
{
	wait_group_done(arg, 0);
}

static void storm_fiber(void *arg)
{
	struct storm *s = arg;
	for (unsigned round = 0; round < 20 && !s->result; round++)
		for (unsigned i = s->first; i < s->first + s->count && !s->result; i++) {
			s->result = stripe_write(s->rig, i, 1000 * round + i + 1, round & 1 ? VOLUME_DURABLE : 0);
			if (!s->result && round % 5 == 0)
				s->result = volume_flush(s->rig->v);
			if (!s->result)
				s->result = stripe_verify(s->rig, i, 1000 * round + i + 1);
		}
	reactor_post(s->home, storm_done, s->group);
}

static void storm_body(void *arg)
{
	(void)arg;
	struct rig r;
	rig_make(&r, 6, 6);
	CHECK(!test_failure[0]);
	struct storm storm[6];
	struct wait_group group;
	wait_group_init(&group);
	wait_group_add(&group, 6);
	for (unsigned i = 0; i < 6; i++) {
		storm[i] =
			(struct storm){.rig = &r, .first = i * 4, .count = 3, .group = &group, .home = reactor_self()};
		reactor_spawn(reactor_get(i % reactor_count()), storm_fiber, &storm[i]);
	}
	fault_inject(r.t.path[2], FAULT_WRITE_ERROR, 60, 0);
	fault_inject(r.t.path[4], FAULT_VANISH, 120, 0);
	wait_group_wait(&group);
	for (unsigned i = 0; i < 6; i++)
		CHECK(storm[i].result == 0);
	enum member_state state;
	status_of(&r, 2, &state, NULL, NULL, NULL);
	CHECK(state == MEMBER_FAILED);
	status_of(&r, 4, &state, NULL, NULL, NULL);
	CHECK(state == MEMBER_FAILED);
	rig_end(&r);
}

static void test_storm(void **state)
{
	(void)state;
	raid_test_run(storm_body, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_read_error),
		cmocka_unit_test(test_write_faults),
		cmocka_unit_test(test_silent_faults),
		cmocka_unit_test(test_silent_vanish),
		cmocka_unit_test(test_unverified),
		cmocka_unit_test(test_timeout),
		cmocka_unit_test(test_close_in_quarantine),
		cmocka_unit_test(test_volatile_cache),
		cmocka_unit_test(test_power_cut_at_every_write),
		cmocka_unit_test(test_ejection_order),
		cmocka_unit_test(test_storm),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
