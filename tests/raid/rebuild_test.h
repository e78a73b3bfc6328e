/*
 * What the tests of rebuild and of replacing share: an array on drives that can fail and be cut off, a volume of which
 * each stripe's content is known, and writers that go on meanwhile. prove() says that a member holds what it should, by
 * reading everything with M others gone.
 */
#ifndef FURROW_REBUILD_TEST_H
#define FURROW_REBUILD_TEST_H

#include "tests/raid/raid_test.h"

#define STRIPES 60u

struct rig {
	struct raid_test t;
	unsigned members, level;
	struct array *array;
	struct volume *v;
	const struct volume_geometry *g;
	_Atomic uint64_t seed[4096]; /* by stripe; 0: never written; the rebuild asks from another reactor */
	bool used_only;
};

static inline void rig_usage(void *arg, uint64_t first, unsigned count, bool *used)
{
	struct rig *r = arg;
	for (unsigned i = 0; i < count; i++)
		used[i] = first + i < 4096 && r->seed[first + i];
}

static inline void rig_open(struct rig *r, bool fresh, bool keep)
{
	struct error err = {0};
	CHECK_OK(raid_test_open_volume(&r->t, fresh, &r->array, &r->v, &err), err);
	r->g = volume_geometry(r->v);
	if (r->used_only)
		volume_set_owner(r->v, &(struct volume_owner){.usage = rig_usage, .arg = r});
	if (keep)
		CHECK_OK(array_keep(r->array, &err), err);
}

/* DRIVES of which the last SPARES are hot spares, and the last LOOSE are not in the array. */
static inline void rig_make(struct rig *r, unsigned level, unsigned drives, unsigned spares, unsigned loose)
{
	struct error err = {0};
	memset(r, 0, sizeof(*r));
	r->level = level;
	r->members = drives - spares - loose;
	r->used_only = true;
	fault_reset();
	raid_test_drives(&r->t, drives, TEST_DRIVE_BYTES, "fault:");
	struct array_create create = {.name = "a0",
		.level = level,
		.drives = r->t.paths,
		.count = r->members,
		.spares = r->t.paths + r->members,
		.spare_count = spares};
	CHECK_OK(array_create(&create, &err), err);
	rig_open(r, true, true);
}

static inline void rig_close(struct rig *r)
{
	volume_set_owner(r->v, NULL);
	volume_close(r->v);
	array_close(r->array);
}

static inline void rig_end(struct rig *r)
{
	rig_close(r);
	raid_test_remove(&r->t);
	fault_reset();
}

static inline int stripe_write(struct rig *r, uint64_t stripe, uint64_t seed, unsigned flags)
{
	struct payload p;
	payload_make(&p, volume_stripe_blocks(r->g) * BLOCK_BYTES, 65536, seed);
	r->seed[stripe] = seed;
	int e = volume_write_rows(r->v, stripe, 0, r->g->strip_blocks, p.v, p.n, flags);
	payload_free(&p);
	return e;
}

static inline int stripe_verify(struct rig *r, uint64_t stripe)
{
	struct payload p, q;
	payload_make(&p, volume_stripe_blocks(r->g) * BLOCK_BYTES, 65536, r->seed[stripe]);
	int e;
	do {
		payload_make(&q, p.bytes, 65536, 0);
		e = volume_read(r->v, stripe * volume_stripe_blocks(r->g), q.v, q.n);
		if (!e)
			e = payload_sum(&p) != payload_sum(&q);
		payload_free(&q);
	} while (e == -ETIMEDOUT);
	payload_free(&p);
	return e;
}

static inline int all_verify(struct rig *r)
{
	for (unsigned i = 0; i < 4096; i++)
		if (r->seed[i] && stripe_verify(r, i))
			return 1;
	return 0;
}

static inline int log_write(struct rig *r, uint64_t block, uint64_t seed)
{
	struct payload p;
	payload_make(&p, 16 * BLOCK_BYTES, 65536, seed);
	int e = volume_log_write(r->v, block, p.v, p.n);
	payload_free(&p);
	return e;
}

/* Every copy that can be read is SEED's, and at least one can. */
static inline int log_verify(struct rig *r, uint64_t block, uint64_t seed)
{
	struct payload p, q;
	unsigned good = 0, wrong = 0;
	payload_make(&p, 16 * BLOCK_BYTES, 65536, seed);
	for (unsigned copy = 0; copy < r->g->log_copies; copy++) {
		payload_make(&q, 16 * BLOCK_BYTES, 65536, 0);
		int e = volume_log_read(r->v, block, copy, q.v, q.n);
		if (!e && payload_sum(&p) == payload_sum(&q))
			good++;
		else if (!e)
			wrong++;
		payload_free(&q);
	}
	payload_free(&p);
	return !good || wrong;
}

static inline struct array_status *status_get(struct rig *r)
{
	static struct array_status s;
	array_status(r->array, &s);
	return &s;
}

/* Everything is right, also with M members but not KEEP gone, which must be possible. */
static inline void prove(struct rig *r, unsigned keep)
{
	struct error err = {0};
	unsigned m = r->g->m, taken = 0;
	const struct array_status *s = status_get(r);
	for (unsigned i = 0; i < s->members; i++)
		CHECK(s->member[i].state == MEMBER_ACTIVE);
	CHECK(!s->degraded && all_verify(r) == 0);
	for (unsigned i = 0; i < s->members && taken < m; i++) {
		unsigned slot = (keep + 1 + i) % s->members;
		if (slot == keep)
			continue;
		CHECK_OK(array_fail(r->array, slot, &err), err);
		taken++;
	}
	CHECK(taken == m && all_verify(r) == 0);
}

static inline void vanish(struct rig *r, unsigned drive)
{
	fault_inject(r->t.path[drive], FAULT_VANISH, 1, 0);
}

static inline int come_back(struct rig *r, unsigned drive, struct error *err)
{
	fault_inject(r->t.path[drive], FAULT_NONE, 0, 0);
	unsigned slot;
	int e = array_add(r->array, r->t.path[drive], NULL, &slot, err);
	return e ? e : array_settled(r->array, NULL, NULL);
}

/* Writes and verifies the same stripes again and again. */
struct writer {
	struct rig *rig;
	unsigned first, count, rounds;
	_Atomic bool *stop;
	int result;
	struct wait_group *group;
	struct reactor *home;
};

static inline void writer_done(void *arg)
{
	wait_group_done(arg, 0);
}

static inline void writer_fiber(void *arg)
{
	struct writer *w = arg;
	uint64_t seed = w->first;
	while (!w->result && !atomic_load(w->stop)) {
		uint64_t stripe = w->first + test_random(&seed) % w->count;
		w->result = stripe_write(w->rig, stripe, 1 + test_random(&seed) % 1000000, w->rounds & 1);
		if (!w->result)
			w->result = stripe_verify(w->rig, stripe);
		if (!w->result && w->rounds % 7 == 0)
			w->result = log_write(w->rig, w->first / w->count * 16, 77 + w->rounds);
		w->rounds++;
		fiber_yield();
	}
	reactor_post(w->home, writer_done, w->group);
}

/* Each has stripes and a block of the log of its own; all have the first 200 stripes, which are written before. */
#define WRITERS 4u
#define WRITER_STRIPES 50u

struct writers {
	struct writer w[WRITERS];
	struct wait_group group;
	_Atomic bool stop;
};

/* Starts them on both reactors. */
static inline void writers_start(struct writers *all, struct rig *r)
{
	wait_group_init(&all->group);
	wait_group_add(&all->group, WRITERS);
	atomic_store(&all->stop, false);
	for (unsigned i = 0; i < WRITERS; i++) {
		all->w[i] = (struct writer){.rig = r,
			.first = i * WRITER_STRIPES,
			.count = WRITER_STRIPES,
			.stop = &all->stop,
			.group = &all->group,
			.home = reactor_self()};
		reactor_spawn(reactor_get(i % reactor_count()), writer_fiber, &all->w[i]);
	}
}

/* True when each came round and saw nothing wrong. */
static inline bool writers_stop(struct writers *all)
{
	bool good = true;
	atomic_store(&all->stop, true);
	wait_group_wait(&all->group);
	for (unsigned i = 0; i < WRITERS; i++)
		good = good && all->w[i].result == 0 && all->w[i].rounds > 2;
	return good;
}

/* What they wrote last into the log is there. */
static inline bool writers_verify(struct writers *all)
{
	for (unsigned i = 0; i < WRITERS; i++)
		if (log_verify(all->w[i].rig, 16 * i, 77 + (all->w[i].rounds - 1) / 7 * 7))
			return false;
	return true;
}

#endif
