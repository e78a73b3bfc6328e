/* Reactors among each other: messages, calls, spawns, offload, pollers, signals, and the silence of an idle one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/core.h"
#include "core/core_internal.h"

static void run_with(void (*fn)(void *arg), unsigned reactors)
{
	struct error err = {0};
	struct core_config config = {.reactors = reactors, .arena_bytes = 4 << 20, .helper_threads = 2};
	int rc = core_main(&config, fn, NULL, &err);
	if (rc < 0)
		fail_msg("core_main: %s", err.text);
}

static void spin_until(const _Atomic unsigned *value, unsigned want)
{
	uint64_t end = now_ns() + 8 * NSEC_PER_SEC;
	while (atomic_load(value) != want && now_ns() < end)
		fiber_sleep(NSEC_PER_MSEC / 4);
	assert_int_equal(atomic_load(value), want);
}

/* ---- calls under load: each reactor's state is touched by its own fibers only, so it needs no lock */

#define CALLERS 16
#define CALLS 300

static struct {
	uint64_t value;
	unsigned inside;
} owned[3] __attribute__((aligned(64)));
static _Atomic unsigned callers_done;

struct add {
	unsigned target;
	uint64_t by, result;
};

static void owned_add(void *arg)
{
	struct add *add = arg;
	assert_int_equal(reactor_index(reactor_self()), add->target);
	uint64_t v = owned[add->target].value;
	owned[add->target].value = v + add->by;
	add->result = v + add->by;
	if (v % 5 == 0)
		fiber_yield();
}

static void caller(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg;
	unsigned self = reactor_index(reactor_self());
	for (unsigned i = 0; i < CALLS; i++) {
		seed = hash_u64(seed + i + 1);
		struct add add = {.target = (unsigned)(seed % reactor_count()), .by = 1};
		reactor_call(reactor_get(add.target), owned_add, &add);
		assert_true(add.result > 0);
		assert_int_equal(reactor_index(reactor_self()), self);
	}
	atomic_fetch_add(&callers_done, 1);
}

static void calls_main(void *arg)
{
	(void)arg;
	memset(owned, 0, sizeof(owned));
	atomic_store(&callers_done, 0);
	for (unsigned i = 0; i < CALLERS; i++)
		reactor_spawn(reactor_get(i % reactor_count()), caller, (void *)(uintptr_t)(i + 1));
	spin_until(&callers_done, CALLERS);
	uint64_t sum = 0;
	for (unsigned i = 0; i < 3; i++)
		sum += owned[i].value;
	assert_int_equal(sum, CALLERS * CALLS);
}

static void test_calls(void **state)
{
	(void)state;
	for (unsigned n = 1; n <= 3; n++)
		run_with(calls_main, n);
}

/* ---- messages of one sender arrive in order, from reactors and from other threads */

#define POSTS 5000

static unsigned next_from[4];
static _Atomic unsigned posts_seen, posts_wrong;

static void post_arrived(void *arg)
{
	unsigned sender = (unsigned)((uintptr_t)arg >> 32), n = (unsigned)(uintptr_t)arg;
	if (fiber_self() || next_from[sender] != n)
		atomic_fetch_add(&posts_wrong, 1);
	next_from[sender] = n + 1;
	atomic_fetch_add(&posts_seen, 1);
}

static void post_many(void *arg)
{
	for (uintptr_t i = 0; i < POSTS; i++) {
		reactor_post(reactor_get(0), post_arrived, (void *)((uintptr_t)arg << 32 | i));
		if (i % 97 == 0 && fiber_self())
			fiber_yield();
	}
}

static void *post_thread(void *arg)
{
	post_many(arg);
	return NULL;
}

static void posts_main(void *arg)
{
	(void)arg;
	memset(next_from, 0, sizeof(next_from));
	atomic_store(&posts_seen, 0);
	atomic_store(&posts_wrong, 0);
	for (uintptr_t i = 0; i < 3; i++)
		reactor_spawn(reactor_get((unsigned)i), post_many, (void *)i);
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, post_thread, (void *)3), 0);
	spin_until(&posts_seen, 4 * POSTS);
	assert_int_equal(atomic_load(&posts_wrong), 0);
	pthread_join(thread, NULL);
}

static void test_posts(void **state)
{
	(void)state;
	run_with(posts_main, 3);
}

/* ---- a thread that is no reactor calls one */

static void add_one(void *arg)
{
	assert_non_null(fiber_self());
	fiber_sleep(NSEC_PER_MSEC);
	++*(unsigned *)arg;
}

static sem_t outsider_go;
static _Atomic unsigned outsider_done;

static void *outsider(void *arg)
{
	unsigned n = 0;
	for (unsigned i = 0; i < 20; i++)
		reactor_call(reactor_get(i % 2), add_one, &n);
	assert_int_equal(n, 20);
	atomic_store(&outsider_done, 1);
	return arg;
}

static void outsider_main(void *arg)
{
	(void)arg;
	pthread_t thread;
	sem_init(&outsider_go, 0, 0);
	atomic_store(&outsider_done, 0);
	pthread_create(&thread, NULL, outsider, NULL);
	spin_until(&outsider_done, 1);
	pthread_join(thread, NULL);
}

static void test_outsider(void **state)
{
	(void)state;
	run_with(outsider_main, 2);
}

/* ---- mail in the caller's memory, sent back and forth */

struct ball {
	struct mail mail;
	unsigned hops;
	struct wait_group *group;
};

static void ball_hit(void *arg)
{
	struct ball *ball = arg;
	unsigned self = reactor_index(reactor_self());
	if (++ball->hops >= 1000 && self == 0) {
		wait_group_done(ball->group, 0);
		return;
	}
	ball->mail = (struct mail){.fn = ball_hit, .arg = ball};
	reactor_mail(reactor_get((self + 1) % reactor_count()), &ball->mail);
}

static void balls_main(void *arg)
{
	(void)arg;
	struct wait_group group;
	struct ball ball[5] = {0};
	wait_group_init(&group);
	wait_group_add(&group, 5);
	for (int i = 0; i < 5; i++) {
		ball[i].group = &group;
		ball[i].mail = (struct mail){.fn = ball_hit, .arg = &ball[i]};
		reactor_mail(reactor_get(1), &ball[i].mail);
	}
	assert_int_equal(wait_group_wait(&group), 0);
}

static void test_mail(void **state)
{
	(void)state;
	run_with(balls_main, 2);
}

/* ---- offload */

static _Atomic unsigned offload_running, offload_most, offload_done;

static void blocking(void *arg)
{
	assert_null(reactor_self());
	unsigned n = atomic_fetch_add(&offload_running, 1) + 1;
	unsigned most = atomic_load(&offload_most);
	while (n > most && !atomic_compare_exchange_weak(&offload_most, &most, n))
		;
	struct timespec t = {0, 5000000};
	nanosleep(&t, NULL);
	atomic_fetch_sub(&offload_running, 1);
	++*(unsigned *)arg;
}

static void offloader(void *arg)
{
	(void)arg;
	unsigned n = 0;
	for (int i = 0; i < 3; i++)
		offload(blocking, &n);
	assert_int_equal(n, 3);
	atomic_fetch_add(&offload_done, 1);
}

static unsigned ticks;

static void tick(struct timer *timer)
{
	ticks++;
	timer_start(timer, now_ns() + NSEC_PER_MSEC);
}

static void offload_main(void *arg)
{
	(void)arg;
	struct timer timer;
	atomic_store(&offload_done, 0);
	ticks = 0;
	timer_init(&timer, tick);
	timer_start(&timer, now_ns() + NSEC_PER_MSEC);
	for (unsigned i = 0; i < 6; i++)
		reactor_spawn(reactor_get(i % 2), offloader, NULL);
	spin_until(&offload_done, 6);
	timer_stop(&timer);
	assert_int_equal(atomic_load(&offload_most), 2); /* as many as there are helpers */
	assert_true(ticks > 10); /* the reactor went on meanwhile: 18 jobs of 5 ms, two at a time */
}

static void test_offload(void **state)
{
	(void)state;
	run_with(offload_main, 2);
}

/* ---- pollers */

struct pretend_queue {
	struct poller poller;
	_Atomic unsigned events; /* what "hardware" has put there */
	unsigned taken, polls, arms;
	_Atomic bool armed;
	int fd; /* its interrupt */
	struct io io;
	uint64_t value;
};

static int pretend_poll(struct poller *p)
{
	struct pretend_queue *q = container_of(p, struct pretend_queue, poller);
	q->polls++;
	unsigned n = atomic_exchange(&q->events, 0);
	q->taken += n;
	return (int)n;
}

static void pretend_watch(struct pretend_queue *q);

static void pretend_interrupt(struct io *io)
{
	pretend_watch(container_of(io, struct pretend_queue, io));
}

static void pretend_watch(struct pretend_queue *q)
{
	q->io.done = pretend_interrupt;
	struct io_uring_sqe *sqe = io_start(&q->io);
	io_uring_prep_read(sqe, q->fd, &q->value, sizeof(q->value), 0);
	io_link(sqe, &q->io);
}

static bool pretend_arm(struct poller *p)
{
	struct pretend_queue *q = container_of(p, struct pretend_queue, poller);
	q->arms++;
	atomic_store(&q->armed, true);
	return atomic_load(&q->events) != 0;
}

static void *pretend_hardware(void *arg)
{
	struct pretend_queue *q = arg;
	uint64_t one = 1;
	for (unsigned i = 0; i < 300; i++) {
		atomic_fetch_add(&q->events, 1);
		if (atomic_exchange(&q->armed, false) && write(q->fd, &one, sizeof(one)) != sizeof(one))
			break;
		struct timespec t = {0, i % 3 ? 20000 : 200000};
		nanosleep(&t, NULL);
	}
	return NULL;
}

#include <sys/eventfd.h>

static void pollers_main(void *arg)
{
	(void)arg;
	struct pretend_queue q = {.poller = {.poll = pretend_poll, .arm = pretend_arm}, .fd = eventfd(0, 0)};
	pthread_t thread;
	poller_add(&q.poller);
	pretend_watch(&q);
	pthread_create(&thread, NULL, pretend_hardware, &q);
	uint64_t end = now_ns() + 8 * NSEC_PER_SEC;
	while (q.taken < 300 && now_ns() < end)
		fiber_sleep(20 * NSEC_PER_MSEC);
	assert_int_equal(q.taken, 300);
	pthread_join(thread, NULL);

	/* Armed and quiet: nothing polls. */
	fiber_sleep(30 * NSEC_PER_MSEC);
	unsigned polls = q.polls;
	fiber_sleep(50 * NSEC_PER_MSEC);
	assert_in_range(q.polls - polls, 0, 2000);
	poller_remove(&q.poller);
	polls = q.polls;
	fiber_sleep(NSEC_PER_MSEC);
	assert_int_equal(q.polls, polls);
	io_cancel(&q.io);
	q.io.done = NULL;
	assert_int_equal(io_wait(&q.io), -ECANCELED);
	close(q.fd);
}

static void test_pollers(void **state)
{
	(void)state;
	run_with(pollers_main, 1);
}

/* ---- plugs: what is held is started before the reactor sleeps, and what ends at once wakes whom it concerns */

struct pretend_plug {
	struct plug plug;
	struct fiber *waiter;
	unsigned started;
};

static void plug_start(struct plug *plug)
{
	struct pretend_plug *p = container_of(plug, struct pretend_plug, plug);
	p->started++;
	fiber_wake(p->waiter);
}

static void plugs_main(void *arg)
{
	struct pretend_plug p = {.plug.start = plug_start, .waiter = fiber_self()};
	uint64_t begun = now_ns();
	(void)arg;
	list_node_init(&p.plug.node);
	for (unsigned i = 0; i < 100; i++) {
		plug_hold(&p.plug);
		fiber_suspend();
		assert_int_equal(p.started, i + 1);
	}
	/* nothing but the alarm would have ended a sleep */
	assert_true(now_ns() - begun < 20 * NSEC_PER_SEC);
}

static void test_plugs(void **state)
{
	(void)state;
	alarm(30);
	run_with(plugs_main, 1);
	alarm(0);
}

/* ---- signals */

static int signals_seen[65];

static void on_signal(int sig, void *arg)
{
	assert_null(fiber_self());
	signals_seen[sig]++;
	fiber_wake(arg);
}

static void signals_main(void *arg)
{
	(void)arg;
	signals_watch(on_signal, fiber_self());
	kill(getpid(), SIGHUP);
	fiber_suspend();
	assert_int_equal(signals_seen[SIGHUP], 1);
	kill(getpid(), SIGTERM);
	fiber_suspend();
	kill(getpid(), SIGINT);
	fiber_suspend();
	assert_int_equal(signals_seen[SIGTERM], 1);
	assert_int_equal(signals_seen[SIGINT], 1);
}

static void test_signals(void **state)
{
	(void)state;
	run_with(signals_main, 2);
	sigset_t now;
	pthread_sigmask(SIG_BLOCK, NULL, &now);
	assert_false(sigismember(&now, SIGTERM));
}

/* ---- idle */

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

static void nothing(void *arg)
{
	(void)arg;
}

static void idle_main(void *arg)
{
	(void)arg;
	/* After work of all kinds, since what keeps a reactor awake is left behind by something. */
	for (unsigned i = 0; i < 2000; i++)
		reactor_call(reactor_get(1 + i % 2), nothing, NULL);
	fiber_sleep(20 * NSEC_PER_MSEC);
	uint64_t cpu = cpu_ns(), sleeps = counter_read(&metric_sleeps);
	fiber_sleep(300 * NSEC_PER_MSEC);
	cpu = cpu_ns() - cpu;
	sleeps = counter_read(&metric_sleeps) - sleeps;
	if (cpu > 5 * NSEC_PER_MSEC || sleeps > 5)
		fail_msg("idle for 300 ms used %llu us of CPU and slept %llu times", (unsigned long long)cpu / 1000,
			(unsigned long long)sleeps);
}

static void test_idle(void **state)
{
	(void)state;
	run_with(idle_main, 3);
}

/* ---- a sleeping reactor is woken soon, again and again (a lost wake shows as a time-out) */

static void ping_main(void *arg)
{
	(void)arg;
	uint64_t start = now_ns();
	for (unsigned i = 0; i < 3000; i++) {
		reactor_call(reactor_get(1 + i % 2), nothing, NULL);
		if (i % 100 == 0)
			fiber_sleep(200000);
	}
	print_message("call to another reactor: %llu ns\n", (unsigned long long)(now_ns() - start) / 3000);
	assert_true(now_ns() - start < 8 * NSEC_PER_SEC);
}

static void test_ping(void **state)
{
	(void)state;
	run_with(ping_main, 3);
}

/* ---- one core_init, several core_run; fibers that wait at the end are dropped */

static void abandoned(void *arg)
{
	(void)arg;
	struct wait_queue q;
	wait_queue_init(&q);
	wait_queue_wait(&q, NEVER);
	abort();
}

static void abandon_main(void *arg)
{
	++*(int *)arg;
	for (unsigned i = 0; i < 10; i++)
		reactor_spawn(reactor_get(i % 2), abandoned, NULL);
	fiber_sleep(NSEC_PER_MSEC);
	for (unsigned i = 0; i < 10; i++) {
		reactor_spawn(reactor_get(i % 2), abandoned, NULL);
		reactor_post(reactor_get(i % 2), nothing, NULL);
	}
}

static void test_again(void **state)
{
	(void)state;
	struct core_config config = {.reactors = 2, .arena_bytes = 4 << 20, .pin = true};
	struct error err = {0};
	int runs = 0;
	assert_int_equal(core_init(&config, &err), 0);
	assert_int_equal(core_init(&config, &err), -EBUSY);
	for (int i = 0; i < 3; i++)
		core_run(abandon_main, &runs);
	core_fini();
	assert_int_equal(runs, 3);
	config.reactors = 65;
	assert_int_equal(core_init(&config, &err), -EINVAL);
	assert_non_null(strstr(err.text, "64"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_calls),
		cmocka_unit_test(test_posts),
		cmocka_unit_test(test_outsider),
		cmocka_unit_test(test_mail),
		cmocka_unit_test(test_offload),
		cmocka_unit_test(test_pollers),
		cmocka_unit_test(test_plugs),
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_idle),
		cmocka_unit_test(test_ping),
		cmocka_unit_test(test_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
