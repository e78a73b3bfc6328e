/*
 * Timers of one reactor: a binary heap ordered by expiry, looked at once a round by the loop, whose sleep ends at the
 * first of them. Slot 0 of the heap is not used, so that a timer's slot of 0 means that it is not armed. Only
 * the reactor itself touches its heap; fn runs in the loop, where the timer is no longer armed and may be armed
 * again or freed.
 */
#include "core/core_internal.h"

#include <string.h>
#include <time.h>

#define HEAP_START 1024u

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

uint64_t wall_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_nsec;
}

int timers_init(struct reactor *r)
{
	r->heap = malloc(HEAP_START * sizeof(*r->heap));
	r->heap_size = HEAP_START;
	r->heap_count = 0;
	return r->heap ? 0 : -ENOMEM;
}

void timers_fini(struct reactor *r)
{
	for (uint32_t i = 1; i <= r->heap_count; i++)
		r->heap[i]->slot = 0;
	free(r->heap);
	r->heap = NULL;
	r->heap_count = 0;
}

static inline void heap_put(struct reactor *r, uint32_t slot, struct timer *t)
{
	r->heap[slot] = t;
	t->slot = slot;
}

static void heap_up(struct reactor *r, uint32_t slot, struct timer *t)
{
	for (; slot > 1 && r->heap[slot / 2]->expires > t->expires; slot /= 2)
		heap_put(r, slot, r->heap[slot / 2]);
	heap_put(r, slot, t);
}

static void heap_down(struct reactor *r, uint32_t slot, struct timer *t)
{
	for (;;) {
		uint32_t child = slot * 2;
		if (child > r->heap_count)
			break;
		if (child < r->heap_count && r->heap[child + 1]->expires < r->heap[child]->expires)
			child++;
		if (r->heap[child]->expires >= t->expires)
			break;
		heap_put(r, slot, r->heap[child]);
		slot = child;
	}
	heap_put(r, slot, t);
}

void timer_init(struct timer *timer, void (*fn)(struct timer *timer))
{
	timer->expires = NEVER;
	timer->fn = fn;
	timer->slot = 0;
	timer->reactor = NULL;
}

void timer_start(struct timer *timer, uint64_t expires)
{
	struct reactor *r = reactor_current;
	assert(r);
	if (timer->slot) {
		assert(timer->reactor == r);
		uint64_t old = timer->expires;
		timer->expires = expires;
		if (expires < old)
			heap_up(r, timer->slot, timer);
		else
			heap_down(r, timer->slot, timer);
		return;
	}
	if (r->heap_count + 1 >= r->heap_size) {
		struct timer **heap = realloc(r->heap, 2ull * r->heap_size * sizeof(*heap));
		if (!heap)
			core_panic("no memory for %u timers", r->heap_count);
		r->heap = heap;
		r->heap_size *= 2;
	}
	timer->reactor = r;
	timer->expires = expires;
	heap_up(r, ++r->heap_count, timer);
}

void timer_stop(struct timer *timer)
{
	if (!timer->slot)
		return;
	struct reactor *r = timer->reactor;
	assert(r == reactor_current);
	uint32_t slot = timer->slot;
	struct timer *last = r->heap[r->heap_count--];
	timer->slot = 0;
	if (last == timer)
		return;
	if (slot > 1 && r->heap[slot / 2]->expires > last->expires)
		heap_up(r, slot, last);
	else
		heap_down(r, slot, last);
}

/* Runs what has expired; a timer that arms itself for the past comes in the next round. */
unsigned timers_run(struct reactor *r)
{
	if (!r->heap_count)
		return 0;
	uint64_t now = now_ns();
	unsigned ran = 0, most = r->heap_count;
	while (r->heap_count && r->heap[1]->expires <= now && ran < most) {
		struct timer *t = r->heap[1];
		timer_stop(t);
		ran++;
		t->fn(t);
	}
	return ran;
}
