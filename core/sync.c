/*
 * What fibers of one reactor wait for among themselves: queues, locks, groups.
 *
 * A struct waiter on the stack of each fiber that waits hangs in the queue. Who wakes takes it out of the queue and
 * makes the fiber runnable; what was waited for (the lock) is handed over at that moment, so nobody who comes later
 * can take it first, and all waits end in order of arrival. Only one reactor touches any of these, so there are no
 * atomics here.
 */
#include "core/core_internal.h"

static void waiter_wake(struct waiter *w)
{
	list_remove(&w->node);
	fiber_unpark(w->fiber);
}

static struct waiter *queue_first(struct wait_queue *queue)
{
	struct list_node *n = list_first(&queue->waiters);
	return n ? container_of(n, struct waiter, node) : NULL;
}

void wait_queue_init(struct wait_queue *queue)
{
	list_init(&queue->waiters);
}

struct timed_waiter {
	struct waiter waiter;
	struct timer timer;
};

static void waiter_late(struct timer *timer)
{
	struct waiter *w = &container_of(timer, struct timed_waiter, timer)->waiter;
	if (list_linked(&w->node)) { /* else it was woken and has not run yet */
		w->timed_out = true;
		waiter_wake(w);
	}
}

int wait_queue_wait(struct wait_queue *queue, uint64_t deadline)
{
	struct timed_waiter w = {.waiter.fiber = fiber_self()};

	list_push_back(&queue->waiters, &w.waiter.node);
	if (deadline == NEVER) {
		fiber_park();
		return 0;
	}
	timer_init(&w.timer, waiter_late);
	timer_start(&w.timer, deadline);
	fiber_park();
	timer_stop(&w.timer);
	return w.waiter.timed_out ? -ETIME : 0;
}

bool wait_queue_wake_one(struct wait_queue *queue)
{
	struct waiter *w = queue_first(queue);
	if (!w)
		return false;
	waiter_wake(w);
	return true;
}

void wait_queue_wake_all(struct wait_queue *queue)
{
	while (wait_queue_wake_one(queue))
		;
}

/* ------------------------------------------------------------------------------------------------
 * Mutex
 */

void fiber_mutex_init(struct fiber_mutex *mutex)
{
	mutex->owner = NULL;
	wait_queue_init(&mutex->queue);
}

bool fiber_trylock(struct fiber_mutex *mutex)
{
	if (mutex->owner)
		return false;
	mutex->owner = fiber_self();
	assert(mutex->owner);
	return true;
}

void fiber_lock(struct fiber_mutex *mutex)
{
	if (fiber_trylock(mutex))
		return;
	assert(mutex->owner != fiber_self());
	wait_queue_wait(&mutex->queue, NEVER);
	assert(mutex->owner == fiber_self());
}

void fiber_unlock(struct fiber_mutex *mutex)
{
	assert(mutex->owner == fiber_self());
	struct waiter *w = queue_first(&mutex->queue);
	mutex->owner = w ? w->fiber : NULL;
	if (w)
		waiter_wake(w);
}

/* ------------------------------------------------------------------------------------------------
 * Wait group
 */

void wait_group_init(struct wait_group *group)
{
	group->pending = 0;
	group->error = 0;
	group->waiter = NULL;
}

void wait_group_add(struct wait_group *group, unsigned count)
{
	group->pending += count;
}

void wait_group_done(struct wait_group *group, int error)
{
	assert(group->pending);
	if (error && !group->error)
		group->error = error;
	if (--group->pending == 0 && group->waiter) {
		struct fiber *f = group->waiter;
		group->waiter = NULL;
		fiber_unpark(f); /* the group may be gone once that fiber runs */
	}
}

int wait_group_wait(struct wait_group *group)
{
	while (group->pending) {
		assert(!group->waiter && "one fiber waits for a group");
		group->waiter = fiber_self();
		fiber_park();
	}
	int error = group->error;
	group->error = 0;
	return error;
}
