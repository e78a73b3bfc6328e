/* The lock table: random calls against a model of bytes, the queue's order, shares, limits, and several threads. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "server/grace.h"
#include "server/locks.h"

static const struct lock_file_key file_a = {7, 100, 1};

static struct lock_owner owner(uint64_t client, const char *name)
{
	return (struct lock_owner){LOCK_KIND_NLM, client, name, (uint32_t)strlen(name)};
}

static struct lock_range range(uint64_t first, uint64_t last, bool exclusive)
{
	return (struct lock_range){first, last, exclusive};
}

/* ------------------------------------------------------------------------------------------------
 * The model: PLACES bytes, of which the last stands for all from there to the end
 */

#define PLACES 24u
#define OWNERS 5u
#define WAITERS 64u

enum held { FREE, SHARED, EXCLUSIVE };
struct model_waiter {
	struct lock_waiter waiter;
	bool used, told;
	int result;
	unsigned owner, from, to;
	bool exclusive;
	unsigned long order;
};
static struct {
	enum held held[OWNERS][PLACES];
	struct model_waiter waiter[WAITERS];
	unsigned long order;
	struct lock_owner owner[OWNERS];
	unsigned long dead;
} model;

static struct lock_range places(unsigned from, unsigned to, bool exclusive)
{
	return range(from, to == PLACES - 1 ? LOCK_TO_END : to, exclusive);
}

static bool model_free_for(unsigned who, unsigned from, unsigned to, bool exclusive)
{
	for (unsigned o = 0; o < OWNERS; o++)
		for (unsigned p = from; p <= to; p++)
			if (o != who && model.held[o][p] != FREE && (exclusive || model.held[o][p] == EXCLUSIVE))
				return false;
	return true;
}

static void model_mark(unsigned who, unsigned from, unsigned to, enum held what)
{
	for (unsigned p = from; p <= to; p++)
		model.held[who][p] = what;
}

static void told(struct lock_waiter *w, int result)
{
	struct model_waiter *m = container_of(w, struct model_waiter, waiter);
	assert_false(m->told);
	m->told = true;
	m->result = result;
}

static struct model_waiter *model_oldest(unsigned long after)
{
	struct model_waiter *best = NULL;
	for (unsigned i = 0; i < WAITERS; i++) {
		struct model_waiter *m = &model.waiter[i];
		if (m->used && m->order > after && (!best || m->order < best->order))
			best = m;
	}
	return best;
}

/* Whoever can go, goes, in order; again while one of them went, who may have less now than before. */
static bool model_pass(void)
{
	unsigned long after = 0;
	bool any = false;
	for (struct model_waiter *m; (m = model_oldest(after));) {
		after = m->order;
		if (!model_free_for(m->owner, m->from, m->to, m->exclusive))
			continue;
		model_mark(m->owner, m->from, m->to, m->exclusive ? EXCLUSIVE : SHARED);
		assert_true(m->told);
		assert_int_equal(m->result, 0);
		m->used = false;
		any = true;
	}
	return any;
}

/* The table must have told exactly those who can go. */
static void model_look(void)
{
	while (model_pass())
		;
	for (unsigned i = 0; i < WAITERS; i++)
		assert_false(model.waiter[i].used && model.waiter[i].told);
}

static void model_drop_waiters(unsigned who)
{
	for (unsigned i = 0; i < WAITERS; i++) {
		struct model_waiter *m = &model.waiter[i];
		if (!m->used || m->owner != who)
			continue;
		assert_true(m->told);
		assert_int_equal(m->result, -ECANCELED);
		m->used = false;
	}
}

struct seen {
	enum held held[OWNERS][PLACES];
	unsigned waiting;
	struct lock_range last[OWNERS];
	bool any[OWNERS];
	unsigned long order;
};

static unsigned owner_index(const struct lock_owner *o)
{
	for (unsigned i = 0; i < OWNERS; i++)
		if (o->client == model.owner[i].client && o->len == model.owner[i].len &&
			!memcmp(o->data, model.owner[i].data, o->len))
			return i;
	fail_msg("an owner that nobody named");
	return 0;
}

static void see(void *arg, const struct lock_info *info)
{
	struct seen *s = arg;
	unsigned o = owner_index(&info->owner);
	unsigned to = info->range.last == LOCK_TO_END ? PLACES - 1 : (unsigned)info->range.last;

	if (info->state == LOCK_STATE_WAITING) {
		struct model_waiter *m = model_oldest(s->order);
		assert_non_null(m);
		assert_int_equal(m->owner, o);
		assert_int_equal(m->from, info->range.first);
		s->order = m->order;
		s->waiting++;
		return;
	}
	/* Sorted, apart, and no two that could be one. */
	if (s->any[o]) {
		assert_true(s->last[o].last < info->range.first);
		if (s->last[o].exclusive == info->range.exclusive)
			assert_true(s->last[o].last + 1 < info->range.first);
	}
	s->any[o] = true;
	s->last[o] = info->range;
	for (unsigned p = (unsigned)info->range.first; p <= to; p++)
		s->held[o][p] = info->range.exclusive ? EXCLUSIVE : SHARED;
}

static void compare(struct lock_table *t)
{
	struct seen seen = {0};
	unsigned waiting = 0;

	lock_foreach(t, see, &seen);
	assert_memory_equal(seen.held, model.held, sizeof(model.held));
	for (unsigned i = 0; i < WAITERS; i++)
		waiting += model.waiter[i].used;
	assert_int_equal(seen.waiting, waiting);
}

static bool model_waits(unsigned who, unsigned from, unsigned to, bool exclusive, struct model_waiter **found)
{
	for (unsigned i = 0; i < WAITERS; i++) {
		struct model_waiter *m = &model.waiter[i];
		if (m->used && m->owner == who && m->from == from && m->to == to && m->exclusive == exclusive) {
			*found = m;
			return true;
		}
	}
	return false;
}

/* Whether O keeps WHO from it. */
static bool model_blocks(unsigned o, unsigned who, unsigned from, unsigned to, bool exclusive)
{
	for (unsigned p = from; o != who && p <= to; p++)
		if (model.held[o][p] != FREE && (exclusive || model.held[o][p] == EXCLUSIVE))
			return true;
	return false;
}

/* Whether one that is in the way waits for WHO, or for one who does. */
static bool model_deadlock(unsigned who, unsigned from, unsigned to, bool exclusive)
{
	bool met[OWNERS] = {false}, more = true;

	for (unsigned o = 0; o < OWNERS; o++)
		met[o] = model_blocks(o, who, from, to, exclusive);
	while (more) {
		more = false;
		for (unsigned i = 0; i < WAITERS; i++) {
			const struct model_waiter *m = &model.waiter[i];
			for (unsigned o = 0; m->used && met[m->owner] && o < OWNERS; o++)
				if (!met[o] && model_blocks(o, m->owner, m->from, m->to, m->exclusive))
					met[o] = more = true;
		}
	}
	return met[who];
}

static void step_set(struct lock_table *t, unsigned who, unsigned from, unsigned to, bool exclusive, bool wait)
{
	struct lock_range r = places(from, to, exclusive);
	struct model_waiter *m = NULL, *same;
	struct lock_conflict conflict;

	for (unsigned i = 0; wait && i < WAITERS && !m; i++)
		if (!model.waiter[i].used)
			m = &model.waiter[i];
	if (m)
		*m = (struct model_waiter){
			.waiter = {.done = told}, .owner = who, .from = from, .to = to, .exclusive = exclusive};
	int rc = lock_set(t, &file_a, &model.owner[who], &r, m ? &m->waiter : NULL, &conflict);
	bool waits = m && model_waits(who, from, to, exclusive, &same);
	if (!waits && model_free_for(who, from, to, exclusive)) {
		assert_int_equal(rc, 0);
		model_mark(who, from, to, exclusive ? EXCLUSIVE : SHARED);
		model_look();
	} else {
		struct lock_owner by = {conflict.kind, conflict.client, conflict.owner, conflict.owner_len};
		unsigned o = owner_index(&by), at = from > conflict.range.first ? from : (unsigned)conflict.range.first;
		bool dead = m && !waits && model_deadlock(who, from, to, exclusive);
		model.dead += dead;
		assert_int_equal(rc, waits ? -EALREADY : dead ? -EDEADLK : m ? -EINPROGRESS : -EAGAIN);
		assert_int_not_equal(o, who);
		assert_true(at <= to);
		assert_int_equal(model.held[o][at], conflict.range.exclusive ? EXCLUSIVE : SHARED);
		if (m && !waits && !dead) {
			m->used = true;
			m->order = ++model.order;
		}
	}
}

static void step_rest(struct lock_table *t, unsigned what, unsigned who, unsigned from, unsigned to, bool exclusive)
{
	struct lock_range r = places(from, to, exclusive);
	struct model_waiter *m;

	switch (what) {
	case 0:
		if (model_waits(who, from, to, exclusive, &m)) {
			assert_ptr_equal(lock_cancel(t, &file_a, &model.owner[who], &r), &m->waiter);
			m->used = false;
		} else {
			assert_null(lock_cancel(t, &file_a, &model.owner[who], &r));
		}
		break;
	case 1:
		assert_int_equal(lock_test(t, &file_a, &model.owner[who], &r, NULL),
			model_free_for(who, from, to, exclusive) ? 0 : -EAGAIN);
		break;
	case 2:
		lock_release_owner(t, &file_a, &model.owner[who]);
		model_mark(who, 0, PLACES - 1, FREE);
		model_drop_waiters(who);
		model_look();
		break;
	case 3:
		lock_release_client(t, LOCK_KIND_NFS4, model.owner[who].client); /* of the other protocol: nothing */
		lock_release_client(t, LOCK_KIND_NLM, model.owner[who].client);
		for (unsigned o = 0; o < OWNERS; o++)
			if (model.owner[o].client == model.owner[who].client) {
				model_mark(o, 0, PLACES - 1, FREE);
				model_drop_waiters(o);
			}
		model_look();
		break;
	default:
		assert_int_equal(lock_unset(t, &file_a, &model.owner[who], &r), 0);
		model_mark(who, from, to, FREE);
		model_look();
	}
}

static void random_calls(void **state)
{
	static const char *const names[OWNERS] = {"", "a", "b", "ab", "a"};
	struct lock_table *t = lock_table_create(NULL);
	unsigned seed = 20261130;

	(void)state;
	for (unsigned i = 0; i < OWNERS; i++)
		model.owner[i] = owner(i < 2 ? 1 : i < 4 ? 2 : 3, names[i]);
	for (unsigned n = 0; n < 200000; n++) {
		unsigned who = (unsigned)rand_r(&seed) % OWNERS, what = (unsigned)rand_r(&seed) % 100;
		unsigned a = (unsigned)rand_r(&seed) % PLACES, b = (unsigned)rand_r(&seed) % PLACES;
		unsigned from = a < b ? a : b, to = a < b ? b : a;
		bool exclusive = rand_r(&seed) & 1;
		if (to - from > 8 && what % 4)
			to = from + to % 8; /* mostly short ones, so that there is something to split and to merge */
		if (what < 50)
			step_set(t, who, from, to, exclusive, what < 20);
		else
			step_rest(t,
				what < 52   ? 2
				: what < 53 ? 3
				: what < 60 ? 0
				: what < 65 ? 1
					    : 4,
				who, from, to, exclusive);
		compare(t);
	}
	for (unsigned i = 0; i < OWNERS; i++)
		step_rest(t, 3, i, 0, 0, false);
	compare(t);
	assert_true(model.dead > 100);
	assert_int_equal(lock_bytes(t), 0);
	lock_table_destroy(t);
}

/* ------------------------------------------------------------------------------------------------
 * What the model leaves out
 */

static void edges(void **state)
{
	struct lock_range r;

	(void)state;
	assert_int_equal(lock_range_set(&r, 5, 0, false, true), -EINVAL);
	assert_int_equal(lock_range_set(&r, 5, UINT64_MAX - 4, false, true), -EINVAL);
	assert_int_equal(lock_range_set(&r, 5, UINT64_MAX - 5, false, true), 0);
	assert_int_equal(r.last, UINT64_MAX - 1);
	assert_int_equal(lock_range_set(&r, UINT64_MAX, 1, false, true), -EINVAL);
	assert_int_equal(lock_range_set(&r, 7, 0, true, false), 0);
	assert_true(r.first == 7 && r.last == LOCK_TO_END);

	struct lock_table *t = lock_table_create(NULL);
	struct lock_owner a = owner(1, "a"), b = owner(1, "b");
	struct lock_range last = range(UINT64_MAX, LOCK_TO_END, true), all = range(0, LOCK_TO_END, false);
	struct lock_file_key other[] = {{8, 100, 1}, {7, 101, 1}, {7, 100, 2}};
	assert_int_equal(lock_set(t, &file_a, &a, &last, NULL, NULL), 0);
	assert_int_equal(lock_test(t, &file_a, &b, &all, NULL), -EAGAIN);
	assert_int_equal(lock_set(t, &file_a, &a, &all, NULL, NULL), 0); /* one shared lock now */
	assert_int_equal(lock_test(t, &file_a, &b, &all, NULL), 0);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(lock_test(t, &other[i], &b, &last, NULL), 0);
		assert_false(lock_count(t, &other[i], &a));
	}
	assert_true(lock_count(t, &file_a, &a));
	assert_false(lock_count(t, &file_a, &b));
	/* The same client and name in the other protocol is another owner. */
	struct lock_owner v4 = a;
	v4.kind = LOCK_KIND_NFS4;
	assert_int_equal(lock_test(t, &file_a, &v4, &last, NULL), -EAGAIN);
	/* The table is destroyed with what is in it. */
	struct lock_waiter w = {.done = told};
	assert_int_equal(lock_set(t, &file_a, &v4, &last, &w, NULL), -EINPROGRESS);
	lock_table_destroy(t);
}

static void only_notified(void **state)
{
	struct lock_table *t = lock_table_create(NULL);
	struct lock_owner a = owner(1, "a"), b = owner(2, "b"), c = owner(3, "c");
	struct lock_range r = range(0, 9, true);
	struct model_waiter wb = {.waiter = {.done = told, .notify_only = true}}, wc = {.waiter = {.done = told}};

	(void)state;
	assert_int_equal(lock_set(t, &file_a, &a, &r, NULL, NULL), 0);
	assert_int_equal(lock_set(t, &file_a, &b, &r, &wb.waiter, NULL), -EINPROGRESS);
	assert_int_equal(lock_set(t, &file_a, &c, &r, &wc.waiter, NULL), -EINPROGRESS);
	assert_int_equal(lock_unset(t, &file_a, &a, &r), 0);
	assert_true(wb.told && !wb.result); /* told, but it is the next one's */
	assert_true(wc.told && !wc.result);
	assert_int_equal(lock_set(t, &file_a, &b, &r, NULL, NULL), -EAGAIN);
	assert_true(lock_count(t, &file_a, &c));
	lock_table_destroy(t);
}

static void dropped(struct lock_waiter *w, int result)
{
	(void)w;
	(void)result;
}

/* A ring of LENGTH owners, each with a file of its own: the last request closes it. */
static void ring(struct lock_table *t, unsigned length, bool notify_only, int expected)
{
	struct lock_waiter *waiter = calloc(length, sizeof(*waiter));
	struct lock_range all = range(0, LOCK_TO_END, true);
	char name[128][16];
	int rc = 0;

	for (unsigned i = 0; i < length; i++) {
		struct lock_file_key key = {7, 1000 + i, 1};
		snprintf(name[i], sizeof(name[i]), "r%u", i);
		struct lock_owner o = owner(10 + i % 3, name[i]);
		assert_int_equal(lock_set(t, &key, &o, &all, NULL, NULL), 0);
	}
	for (unsigned i = 0; i < length; i++) {
		struct lock_file_key key = {7, 1000 + (i + 1) % length, 1};
		struct lock_owner o = owner(10 + i % 3, name[i]);
		waiter[i].done = dropped;
		waiter[i].notify_only = notify_only && !i;
		rc = lock_set(t, &key, &o, &all, &waiter[i], NULL);
		if (i < length - 1)
			assert_int_equal(rc, -EINPROGRESS);
	}
	assert_int_equal(rc, expected);
	for (unsigned c = 10; c < 13; c++)
		lock_release_client(t, LOCK_KIND_NLM, c);
	assert_int_equal(lock_bytes(t), 0);
	free(waiter);
}

static void deadlocks(void **state)
{
	struct lock_table *t = lock_table_create(NULL);

	(void)state;
	ring(t, 2, false, -EDEADLK);
	ring(t, 3, false, -EDEADLK);
	ring(t, 50, false, -EDEADLK);
	ring(t, 100, false, -EINPROGRESS); /* longer than anybody looks for */
	ring(t, 3, true, -EINPROGRESS);	   /* one of them does not wait: it only wants to be told */
	lock_table_destroy(t);
}

static void shares(void **state)
{
	struct lock_table *t = lock_table_create(NULL);
	struct lock_owner a = owner(1, "a"), b = owner(2, "b");
	struct lock_conflict conflict;
	uint32_t access, deny;

	(void)state;
	/* All pairs, each way: the second gets in exactly when neither denies what the other does. */
	for (uint32_t n = 0; n < 256; n++) {
		uint32_t aa = n & 3, ad = n >> 2 & 3, ba = n >> 4 & 3, bd = n >> 6;
		bool fits = !(aa & bd) && !(ad & ba);
		assert_int_equal(lock_share_set(t, &file_a, &a, aa, ad, NULL), 0);
		assert_int_equal(lock_share_test(t, &file_a, NULL, ba, bd), fits ? 0 : -EAGAIN);
		assert_int_equal(lock_share_test(t, &file_a, &a, ba, bd), 0);
		assert_int_equal(lock_share_set(t, &file_a, &b, ba, bd, &conflict), fits ? 0 : -EAGAIN);
		if (!fits)
			assert_int_equal(conflict.client, 1);
		assert_int_equal(lock_share_get(t, &file_a, &b, &access, &deny), fits);
		if (fits)
			assert_true(access == ba && deny == bd);
		lock_share_unset(t, &file_a, &b);
		lock_share_unset(t, &file_a, &a);
	}
	/* A change that is refused changes nothing; ranges and shares do not know each other. */
	struct lock_range r = range(0, LOCK_TO_END, true);
	assert_int_equal(lock_share_set(t, &file_a, &a, LOCK_SHARE_READ, 0, NULL), 0);
	assert_int_equal(lock_share_set(t, &file_a, &b, LOCK_SHARE_READ, LOCK_SHARE_WRITE, NULL), 0);
	assert_int_equal(lock_share_set(t, &file_a, &a, LOCK_SHARE_READ | LOCK_SHARE_WRITE, 0, NULL), -EAGAIN);
	assert_true(lock_share_get(t, &file_a, &a, &access, &deny) && access == LOCK_SHARE_READ && !deny);
	assert_int_equal(lock_set(t, &file_a, &a, &r, NULL, NULL), 0);
	lock_release_owner(t, &file_a, &a);
	assert_true(lock_share_get(t, &file_a, &a, &access, &deny));
	lock_release_client(t, LOCK_KIND_NLM, 1);
	assert_false(lock_share_get(t, &file_a, &a, &access, &deny));
	lock_share_unset(t, &file_a, &b);
	assert_int_equal(lock_bytes(t), 0);
	lock_table_destroy(t);
}

/* One client fills its part: the other still gets its own, and what is full can still give back, in pieces. */
static void limits(void **state)
{
	struct lock_limits limit = {.total_bytes = 256 << 10, .client_bytes = 128 << 10};
	struct lock_table *t = lock_table_create(&limit);
	struct lock_owner a = owner(1, "a"), b = owner(2, "b");
	char long_name[LOCK_OWNER_MAX + 1] = {1};
	struct lock_range r = range(0, 8, true), middle = range(4, 4, true);
	uint64_t n = 0;
	int rc;

	(void)state;
	while (!(rc = lock_set(t, &file_a, &a, &r, NULL, NULL))) {
		n++;
		r = range(n * 10, n * 10 + 8, true);
		assert_true(n < 10000);
	}
	assert_int_equal(rc, -ENOLCK);
	assert_true(n > 100);
	assert_true(lock_bytes(t) <= limit.client_bytes);
	assert_int_equal(lock_share_set(t, &file_a, &a, 1, 0, NULL), 0); /* two entries were asked for before */
	while (!(rc = lock_set(t, &file_a, &b, &r, NULL, NULL))) {
		n++;
		r = range(n * 10, n * 10 + 8, true);
	}
	assert_int_equal(rc, -ENOLCK);
	assert_true(lock_bytes(t) <= limit.total_bytes);
	assert_int_equal(lock_unset(t, &file_a, &a, &middle), 0);
	assert_int_equal(lock_test(t, &file_a, &b, &middle, NULL), 0);
	struct lock_owner too_long = {LOCK_KIND_NLM, 5, long_name, LOCK_OWNER_MAX + 1};
	assert_int_equal(lock_set(t, &file_a, &too_long, &middle, NULL, NULL), -EINVAL);
	lock_release_client(t, LOCK_KIND_NLM, 1);
	lock_release_client(t, LOCK_KIND_NLM, 2);
	assert_int_equal(lock_bytes(t), 0);
	too_long.len--;
	assert_int_equal(lock_set(t, &file_a, &too_long, &middle, NULL, NULL), 0);
	lock_table_destroy(t);
}

/* One for all: it lasts until the last part of it ended. */
static void grace(void **state)
{
	uint64_t far = now_ns() + 3600 * NSEC_PER_SEC;

	(void)state;
	assert_false(grace_active());
	grace_begin(GRACE_NLM, far);
	grace_begin(GRACE_NLM, now_ns());
	grace_begin(GRACE_NFS4, far - 1);
	assert_true(grace_active() && grace_active_of(GRACE_NLM) && grace_active_of(GRACE_NFS4));
	assert_true(grace_left_ns() > 0 && grace_left_ns() <= 3600 * NSEC_PER_SEC);
	grace_done(GRACE_NLM);
	assert_true(grace_active() && !grace_active_of(GRACE_NLM));
	grace_done(GRACE_NFS4);
	assert_false(grace_active());
	assert_int_equal(grace_left_ns(), 0);
	grace_begin(GRACE_NFS4, now_ns());
	assert_false(grace_active());
	grace_done(GRACE_NFS4);
}

/* ------------------------------------------------------------------------------------------------
 * Several threads: what is locked exclusively is counted up without any other protection
 */

#define THREADS 4u
#define TURNS 5000u
#define FILES 3u
static struct lock_table *shared;
static unsigned guarded[FILES];
struct thread_waiter {
	struct lock_waiter waiter;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	bool done;
};

static void thread_told(struct lock_waiter *w, int result)
{
	struct thread_waiter *tw = container_of(w, struct thread_waiter, waiter);
	assert_int_equal(result, 0);
	pthread_mutex_lock(&tw->mutex);
	tw->done = true;
	pthread_cond_signal(&tw->cond);
	pthread_mutex_unlock(&tw->mutex);
}

static void *contend(void *arg)
{
	struct lock_owner me = owner((uint64_t)(uintptr_t)arg, "thread");
	struct thread_waiter w = {{.done = thread_told}, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
	struct lock_range r = range(5, 5, true);

	for (unsigned i = 0; i < TURNS; i++) {
		struct lock_file_key key = {1, i % FILES, 1};
		w.done = false;
		int rc = lock_set(shared, &key, &me, &r, &w.waiter, NULL);
		if (rc == -EINPROGRESS) {
			pthread_mutex_lock(&w.mutex);
			while (!w.done)
				pthread_cond_wait(&w.cond, &w.mutex);
			pthread_mutex_unlock(&w.mutex);
		} else {
			assert_int_equal(rc, 0);
		}
		guarded[i % FILES]++;
		assert_int_equal(lock_unset(shared, &key, &me, &r), 0);
	}
	return NULL;
}

static void threads(void **state)
{
	pthread_t thread[THREADS];
	unsigned sum = 0;

	(void)state;
	shared = lock_table_create(NULL);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, contend, (void *)i), 0);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	for (unsigned i = 0; i < FILES; i++)
		sum += guarded[i];
	assert_int_equal(sum, THREADS * TURNS);
	assert_int_equal(lock_bytes(shared), 0);
	lock_table_destroy(shared);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_calls),
		cmocka_unit_test(edges),
		cmocka_unit_test(only_notified),
		cmocka_unit_test(deadlocks),
		cmocka_unit_test(shares),
		cmocka_unit_test(limits),
		cmocka_unit_test(grace),
		cmocka_unit_test(threads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
