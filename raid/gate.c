/*
 * Gates: who is inside of an operation on an array, and the window that the rebuild works in.
 *
 * Each reactor counts its own operations with plain additions, in two counters by epoch. A barrier asks every
 * reactor to begin a new epoch and to tell when the counter of the old one has come down to nothing: everything that
 * could have seen an old member state or an old drive is over then. Nobody pays for that but who asks.
 *
 * The window makes rebuild and writes exclude each other without a lock on the way of writes. The rebuild sets the
 * window and passes a barrier: writes that began before are over, those that begin later see the window and wait
 * outside of the gate until it has moved on. So a row is either written before it is rebuilt, and is read from the
 * others as it is now, or it is written to the new member too, after the rebuild wrote there.
 *
 * Waiting for the window comes before entering, and a fiber does not switch between the look and the entry: a
 * window set meanwhile has its barrier's message still to come to this reactor.
 */
#include "raid/raid_internal.h"

struct window_waiter {
	struct list_node node;
	struct fiber *fiber;
	struct reactor *reactor;
	struct mail mail;
	bool woken; /* of the waiting reactor */
};

void gates_init(struct array *array)
{
	pthread_mutex_init(&array->window.lock, NULL);
	list_init(&array->window.waiters);
	fiber_mutex_init(&array->barrier.mutex);
}

void gates_fini(struct array *array)
{
	pthread_mutex_destroy(&array->window.lock);
}

/* ---- barrier ---- */

static void barrier_done(void *arg)
{
	struct barrier *barrier = arg;
	fiber_wake(barrier->waiter);
}

static void barrier_here(void *arg)
{
	struct array *array = arg;
	struct array_gate *gate = &array->gate[reactor_index(reactor_self())];
	unsigned old = gate->epoch++ & 1;
	gate->waiter = fiber_self();
	while (gate->inside[old])
		fiber_suspend();
	gate->waiter = NULL;
	if (atomic_fetch_sub(&array->barrier.pending, 1) == 1)
		reactor_post(array->home, barrier_done, &array->barrier);
}

void array_barrier(struct array *array)
{
	struct barrier *barrier = &array->barrier;
	unsigned count = reactor_count();
	fiber_lock(&barrier->mutex);
	atomic_store(&barrier->pending, count + 1);
	barrier->waiter = fiber_self();
	for (unsigned i = 0; i < count; i++) {
		barrier->mail[i] = (struct mail){.fn = barrier_here, .arg = array, .spawn = true};
		reactor_mail(reactor_get(i), &barrier->mail[i]);
	}
	if (atomic_fetch_sub(&barrier->pending, 1) != 1)
		fiber_suspend();
	fiber_unlock(&barrier->mutex);
}

/* ---- window ---- */

static void waiter_wake(void *arg)
{
	struct window_waiter *waiter = arg;
	waiter->woken = true;
	fiber_wake(waiter->fiber);
}

void window_wait(struct array *array, enum zone zone, uint64_t first, uint64_t count)
{
	struct array_window *w = &array->window;
	struct window_waiter waiter;
	for (;;) {
		pthread_mutex_lock(&w->lock);
		bool hit = w->zone == zone && first < w->end && first + count > w->first;
		if (hit) {
			waiter = (struct window_waiter){.fiber = fiber_self(), .reactor = reactor_self()};
			list_push_back(&w->waiters, &waiter.node);
		}
		pthread_mutex_unlock(&w->lock);
		if (!hit)
			return;
		while (!waiter.woken)
			fiber_suspend();
	}
}

void window_move(struct array *array, enum zone zone, uint64_t first, uint64_t end)
{
	struct array_window *w = &array->window;
	struct list woken = LIST_INIT(woken);
	pthread_mutex_lock(&w->lock);
	w->zone = zone;
	w->first = first;
	w->end = end;
	atomic_store(&w->open, first != end);
	for (struct list_node *n; (n = list_pop_front(&w->waiters));)
		list_push_back(&woken, n);
	pthread_mutex_unlock(&w->lock);
	for (struct list_node *n; (n = list_pop_front(&woken));) {
		struct window_waiter *waiter = container_of(n, struct window_waiter, node);
		waiter->mail = (struct mail){.fn = waiter_wake, .arg = waiter};
		reactor_mail(waiter->reactor, &waiter->mail);
	}
	if (first != end)
		array_barrier(array);
}
