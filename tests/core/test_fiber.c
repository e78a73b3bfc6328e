/* Fibers and what they wait for among themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"
#include "core/core_internal.h"

static void run_with(void (*fn)(void *arg), unsigned reactors, unsigned fibers)
{
	struct error err = {0};
	struct core_config config = {.reactors = reactors, .arena_bytes = 4 << 20, .fibers = fibers};
	int rc = core_main(&config, fn, NULL, &err);
	if (rc < 0)
		fail_msg("core_main: %s", err.text);
}

/* ---- order, yield, reuse */

static int order[64], order_count;

static void note(void *arg)
{
	int id = (int)(intptr_t)arg;
	order[order_count++] = id;
	fiber_yield();
	order[order_count++] = id + 100;
}

static void order_main(void *arg)
{
	(void)arg;
	order_count = 0;
	for (int i = 0; i < 5; i++)
		assert_int_equal(fiber_spawn(note, (void *)(intptr_t)i), 0);
	assert_int_equal(order_count, 0); /* a new fiber runs when this one waits */
	fiber_yield();
	fiber_yield();
	assert_int_equal(order_count, 10);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(order[i], i);
		assert_int_equal(order[i + 5], i + 100);
	}
}

static void test_order(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++) /* core starts again in one process */
		run_with(order_main, 1, 0);
}

/* ---- registers, floating point state and deep stacks survive switches */

static unsigned churn_left;

static unsigned rounding_set(unsigned mode)
{
#if defined(__x86_64__)
	unsigned old = __builtin_ia32_stmxcsr();
	__builtin_ia32_ldmxcsr((old & ~0x6000u) | mode);
	return old & 0x6000u;
#else
	return mode;
#endif
}

static unsigned churn_deep(unsigned depth, unsigned seed)
{
	volatile uint8_t local[200];
	memset((void *)local, (int)(seed & 0xff), sizeof(local));
	if (depth)
		seed = churn_deep(depth - 1, seed * 1103515245u + 12345u);
	if (seed % 3 == 0)
		fiber_yield();
	for (unsigned i = 1; i < sizeof(local); i++)
		assert_int_equal(local[i], local[0]);
	return seed + 1;
}

static void churn(void *arg)
{
	unsigned id = (unsigned)(uintptr_t)arg;
	double x = id;
	for (unsigned i = 0; i < 20; i++) {
		rounding_set(id % 2 ? 0x2000 : 0x4000);
		churn_deep(20, id * 31 + i);
		x = x * 1.5 + id;
		fiber_yield();
		assert_int_equal(rounding_set(0), id % 2 ? 0x2000 : 0x4000);
	}
	assert_true(x > 0 || id == 0);
	churn_left--;
}

static void churn_main(void *arg)
{
	(void)arg;
	for (unsigned round = 0; round < 3; round++) {
		churn_left = 100;
		for (unsigned i = 0; i < 100; i++)
			assert_int_equal(fiber_spawn(churn, (void *)(uintptr_t)i), 0);
		while (churn_left)
			fiber_yield();
	}
}

static void test_churn(void **state)
{
	(void)state;
	run_with(churn_main, 1, 0);
}

/* ---- wake and suspend */

static struct fiber *sleeper;
static int steps;

static void suspender(void *arg)
{
	(void)arg;
	sleeper = fiber_self();
	fiber_suspend();
	steps++;
	fiber_suspend(); /* woken while it sleeps below: remembered */
	steps++;
	fiber_sleep(2 * NSEC_PER_MSEC);
	steps++;
	fiber_suspend();
	steps++;
	assert_int_equal(fiber_suspend_until(now_ns() + NSEC_PER_MSEC), -ETIME);
	assert_int_equal(fiber_suspend_until(now_ns()), -ETIME);
	steps++;
	assert_int_equal(fiber_suspend_until(now_ns() + 10 * NSEC_PER_SEC), 0);
	steps++;
}

static void suspend_main(void *arg)
{
	(void)arg;
	steps = 0;
	fiber_spawn(suspender, NULL);
	fiber_yield();
	fiber_yield();
	assert_int_equal(steps, 0);
	fiber_wake(sleeper);
	fiber_wake(sleeper); /* two wakes, the second before the second suspend */
	fiber_yield();
	assert_int_equal(steps, 2);
	fiber_wake(sleeper); /* in fiber_sleep(): must not end it early */
	fiber_yield();
	assert_int_equal(steps, 2);
	uint64_t end = now_ns() + 5 * NSEC_PER_SEC;
	while (steps < 5 && now_ns() < end)
		fiber_sleep(NSEC_PER_MSEC);
	assert_int_equal(steps, 5);
	fiber_wake(sleeper);
	fiber_yield();
	assert_int_equal(steps, 6);

	/* A wake of oneself is remembered too. */
	fiber_wake(fiber_self());
	fiber_suspend();
	fiber_wake(fiber_self());
	assert_int_equal(fiber_suspend_until(now_ns() + NSEC_PER_SEC), 0);
	uint64_t start = now_ns();
	assert_int_equal(fiber_suspend_until(start + 3 * NSEC_PER_MSEC), -ETIME);
	assert_true(now_ns() - start >= 3 * NSEC_PER_MSEC);
}

static void test_suspend(void **state)
{
	(void)state;
	run_with(suspend_main, 1, 0);
}

/* ---- queue, mutex, condition */

static struct wait_queue queue;
static struct fiber_mutex mutex;
static int inside, turns[40], turn_count;

static void queue_waiter(void *arg)
{
	wait_queue_wait(&queue, NEVER);
	turns[turn_count++] = (int)(intptr_t)arg;
}

static void mutex_user(void *arg)
{
	fiber_lock(&mutex);
	assert_int_equal(inside, 0);
	inside++;
	fiber_yield();
	assert_false(fiber_self() != mutex.owner);
	inside--;
	turns[turn_count++] = (int)(intptr_t)arg;
	fiber_unlock(&mutex);
}

static void queue_main(void *arg)
{
	(void)arg;
	wait_queue_init(&queue);
	turn_count = 0;
	assert_false(wait_queue_wake_one(&queue));
	for (int i = 0; i < 10; i++)
		fiber_spawn(queue_waiter, (void *)(intptr_t)i);
	fiber_yield();
	assert_true(wait_queue_wake_one(&queue));
	fiber_yield();
	assert_int_equal(turn_count, 1);
	wait_queue_wake_all(&queue);
	fiber_yield();
	assert_int_equal(turn_count, 10);
	for (int i = 0; i < 10; i++)
		assert_int_equal(turns[i], i);
	assert_int_equal(wait_queue_wait(&queue, now_ns() + NSEC_PER_MSEC), -ETIME);
	assert_true(list_empty(&queue.waiters));

	fiber_mutex_init(&mutex);
	turn_count = 0;
	fiber_lock(&mutex);
	for (int i = 0; i < 10; i++)
		fiber_spawn(mutex_user, (void *)(intptr_t)i);
	fiber_yield();
	fiber_unlock(&mutex);
	assert_false(fiber_trylock(&mutex)); /* handed over, not free */
	for (int i = 0; i < 30 && turn_count < 10; i++)
		fiber_yield();
	assert_int_equal(turn_count, 10);
	for (int i = 0; i < 10; i++)
		assert_int_equal(turns[i], i);
	assert_true(fiber_trylock(&mutex));
	assert_ptr_equal(mutex.owner, fiber_self());
	fiber_unlock(&mutex);
}

static void test_queue(void **state)
{
	(void)state;
	run_with(queue_main, 1, 0);
}

/* ---- wait group */

static struct wait_group group;

static void group_part(void *arg)
{
	fiber_yield();
	wait_group_done(&group, (int)(intptr_t)arg);
}

static void group_main(void *arg)
{
	(void)arg;
	wait_group_init(&group);
	assert_int_equal(wait_group_wait(&group), 0);
	wait_group_add(&group, 3);
	fiber_spawn(group_part, NULL);
	fiber_spawn(group_part, (void *)(intptr_t)-EIO);
	fiber_spawn(group_part, (void *)(intptr_t)-ENOSPC);
	assert_int_equal(wait_group_wait(&group), -EIO);
	/* It can be used again, without the old error. */
	wait_group_add(&group, 1);
	fiber_spawn(group_part, NULL);
	assert_int_equal(wait_group_wait(&group), 0);
}

static void test_group(void **state)
{
	(void)state;
	run_with(group_main, 1, 0);
}

/* ---- all fibers taken */

static int started;

static void hold(void *arg)
{
	started++;
	wait_queue_wait(arg, NEVER);
}

static void limit_main(void *arg)
{
	(void)arg;
	struct wait_queue q;
	wait_queue_init(&q);
	started = 0;
	int n = 0;
	while (fiber_spawn(hold, &q) == 0)
		n++;
	assert_int_equal(n, 39); /* and main */
	assert_int_equal(fiber_spawn(hold, &q), -EAGAIN);
	for (int i = 0; i < 10; i++)
		reactor_spawn(reactor_self(), hold, &q);
	fiber_yield();
	fiber_yield();
	assert_int_equal(started, 39);
	assert_int_equal(fiber_spawn(hold, &q), -EAGAIN);
	for (int i = 0; i < 10; i++) {
		wait_queue_wake_one(&q);
		fiber_yield();
		fiber_yield();
		assert_int_equal(started, 40 + i); /* one ends, one of those that waited starts */
	}
	wait_queue_wake_all(&q);
	fiber_yield();
	assert_int_equal(fiber_spawn(hold, &q), 0);
	fiber_yield();
	wait_queue_wake_all(&q);
	fiber_yield();
}

static void test_limit(void **state)
{
	(void)state;
	run_with(limit_main, 1, 40);
}

/* ---- an overflow is noticed */

static void overflow_main(void *arg)
{
	(void)arg;
	uint8_t *low = fiber_self()->context.stack_low;
	memset(low, 0x55, 64);
	fiber_yield();
	_exit(7);
}

static void test_overflow(void **state)
{
	(void)state;
	pid_t pid = fork();
	if (pid == 0) {
		signal(SIGABRT, SIG_DFL);
		int null = dup2(STDERR_FILENO, 100);
		(void)null;
		close(STDERR_FILENO);
		struct core_config config = {.reactors = 1, .arena_bytes = 2 << 20};
		core_main(&config, overflow_main, NULL, NULL);
		_exit(8);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_churn),
		cmocka_unit_test(test_suspend),
		cmocka_unit_test(test_queue),
		cmocka_unit_test(test_group),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_overflow),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
