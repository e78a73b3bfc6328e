/*
 * For targets that need a reactor: one, on a thread of its own, for as long as the program runs. libFuzzer's thread
 * calls into it with fuzz_core_call(), for each input once.
 *
 * Fibers that wait have their stacks where the search for leaks does not look, so it is made only at the end, when the
 * reactor is gone (fuzz_smoke.sh says -detect_leaks=0): what an input leaves behind a target checks itself.
 */
#ifndef TESTS_FUZZ_CORE_H
#define TESTS_FUZZ_CORE_H

#include <pthread.h>
#include <sched.h>

#include "core/core.h"
#include "tests/fuzz/fuzz.h"

static struct {
	pthread_t thread;
	uint64_t arena_bytes;
	void (*enter)(void); /* first of all, in the thread, before there is a reactor; may be NULL */
	void (*begin)(void), (*end)(void);
	_Atomic bool up, stop;
} fuzz_core;

static void fuzz_core_main(void *arg)
{
	(void)arg;
	if (fuzz_core.begin)
		fuzz_core.begin();
	atomic_store(&fuzz_core.up, true);
	while (!atomic_load(&fuzz_core.stop))
		fiber_sleep(20 * NSEC_PER_MSEC);
	if (fuzz_core.end)
		fuzz_core.end();
}

static void *fuzz_core_thread(void *arg)
{
	struct core_config config = {.reactors = 1, .arena_bytes = fuzz_core.arena_bytes, .fibers = 256};
	struct error err = {0};

	(void)arg;
	if (fuzz_core.enter)
		fuzz_core.enter();
	if (core_main(&config, fuzz_core_main, NULL, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		abort();
	}
	return NULL;
}

static void fuzz_core_stop(void)
{
	atomic_store(&fuzz_core.stop, true);
	pthread_join(fuzz_core.thread, NULL);
}

/* BEGIN and END (either may be NULL) run in a fiber, first and last of all. Log lines are left out. */
static inline void fuzz_core_start(uint64_t arena_bytes, void (*begin)(void), void (*end)(void))
{
	atomic_store(&log_threshold, -1);
	fuzz_core.arena_bytes = arena_bytes;
	fuzz_core.begin = begin;
	fuzz_core.end = end;
	FUZZ_CHECK(pthread_create(&fuzz_core.thread, NULL, fuzz_core_thread, NULL) == 0);
	while (!atomic_load(&fuzz_core.up))
		sched_yield();
	FUZZ_CHECK(atexit(fuzz_core_stop) == 0);
}

/* FN(ARG) in a fiber; returns when it has. */
static inline void fuzz_core_call(void (*fn)(void *arg), void *arg)
{
	reactor_call(reactor_get(0), fn, arg);
}

#endif
