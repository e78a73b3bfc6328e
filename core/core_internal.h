/*
 * What the files of core share among themselves: the reactor, the fiber, and the few calls between the loop
 * (reactor.c) and those that live in it. Nobody outside of core/ includes this, but for the tests of core.
 */
#ifndef FURROW_CORE_INTERNAL_H
#define FURROW_CORE_INTERNAL_H

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "core/core.h"

#if defined(__SANITIZE_ADDRESS__)
#define CORE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CORE_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define CORE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CORE_TSAN 1
#endif
#endif
#ifndef CORE_ASAN
#define CORE_ASAN 0
#endif
#ifndef CORE_TSAN
#define CORE_TSAN 0
#endif

#if !defined(__x86_64__) || defined(CORE_FIBER_UCONTEXT)
#define CORE_UCONTEXT 1
#include <ucontext.h>
#else
#define CORE_UCONTEXT 0
#endif

#define CACHE_LINE 64
#define REACTORS_MAX (METRIC_SLOTS - 1)
#define BUF_CLASSES 7 /* 4 KiB << 0..6 */

/* ------------------------------------------------------------------------------------------------
 * Fibers (fiber.c)
 */

/* A stack and where on it to go on. The loop has one too: the stack of its thread. */
struct context {
	void *sp;
	uint8_t *stack_low;
	size_t stack_bytes;
	void *asan_fake; /* ASan's own stack of this context while it is switched away */
	void *tsan;
#if CORE_UCONTEXT
	ucontext_t uc;
#endif
};

enum fiber_state {
	FIBER_FREE,
	FIBER_READY,	 /* runs, or is in the list of those that will */
	FIBER_PARKED,	 /* in a wait of core's own, whose one waker knows it: fiber_unpark() */
	FIBER_SUSPENDED, /* in fiber_suspend() */
};

struct fiber {
	struct context context;
	struct list_node node; /* runnable, batch or free list */
	void (*fn)(void *arg);
	void *arg;
	enum fiber_state state;
	bool wake_pending; /* fiber_wake() came while it was not suspended */
	bool started;	   /* its stack holds the frame of fiber_main() */
	struct reactor *reactor;
};

struct mail_queue {
	struct mail *first, **last;
};
static inline void mail_queue_init(struct mail_queue *q)
{
	q->first = NULL;
	q->last = &q->first;
}
static inline void mail_queue_push(struct mail_queue *q, struct mail *mail)
{
	mail->next = NULL;
	*q->last = mail;
	q->last = &mail->next;
}
static inline struct mail *mail_queue_pop(struct mail_queue *q) /* it is not empty */
{
	struct mail *mail = q->first;
	q->first = mail->next;
	if (!q->first)
		q->last = &q->first;
	return mail;
}
/* Moves all of FROM to the end of TO. */
static inline void mail_queue_append(struct mail_queue *to, struct mail_queue *from)
{
	if (!from->first)
		return;
	*to->last = from->first;
	to->last = from->last;
	mail_queue_init(from);
}

struct fiber_pool {
	struct list runnable; /* will run in the next round */
	struct list batch;    /* run in this round */
	struct list free;
	struct list slabs;
	struct mail_queue starts;   /* functions that will begin in the next round */
	struct mail_queue starting; /* in this one, before the batch */
	struct mail_queue waiting;  /* for a fiber to end */
	uint32_t made, limit, stack_bytes;
	uint32_t used; /* by what began, and by starts */
};

int fiber_pool_init(struct fiber_pool *pool, struct reactor *reactor, uint32_t limit, uint32_t stack_bytes);
void fiber_pool_fini(struct fiber_pool *pool);
/* Runs every fiber that is runnable now once. Called by the loop. */
bool fibers_run(struct reactor *reactor);
void fiber_spawn_mail(struct reactor *reactor, struct mail *mail);
void fiber_loop_context_init(struct reactor *reactor);

/* Waits in core: the waker must have found this very wait, so no wake is ever taken for another. */
void fiber_park(void);
void fiber_unpark(struct fiber *fiber);

/* One fiber in a wait queue; lies on its stack. */
struct waiter {
	struct list_node node;
	struct fiber *fiber;
	bool timed_out;
};

/* ------------------------------------------------------------------------------------------------
 * Reactor (reactor.c)
 */

/* A completion that had to be taken from the ring while its callback could not run yet. */
struct cqe_copy {
	uint64_t user_data;
	int32_t res;
	uint32_t flags;
	uint64_t extra[2];
};

struct buf_cache {
	struct list list;
	_Atomic uint32_t count; /* written by its reactor alone */
};

struct reactor {
	unsigned index;
	int cpu; /* to bind it to, or -1 */
	pthread_t thread;

	struct context loop;
	struct fiber *current; /* NULL in the loop */
	struct fiber_pool fibers;

	/* timers: a binary heap, slot 0 is not used */
	struct timer **heap;
	uint32_t heap_count, heap_size;

	/* ring */
	struct io_uring ring;
	bool ring_open, passthrough, deferred, taskrun_flag;
	unsigned ring_flags;
	unsigned rounds_unsubmitted;
	struct list plugs; /* that hold operations back */
	unsigned held;	   /* so many */
	struct cqe_copy *stash;
	uint32_t stash_first, stash_count, stash_size;
	uint64_t io_inflight;
	struct io wake_io;
	uint64_t wake_value;
	int wake_fd;

	struct list pollers;
	unsigned calls_out;	 /* fibers here that wait for another reactor's answer */
	uint64_t spin_ns;	 /* adaptive */
	struct mail_queue local; /* from itself */
	struct mail *mail_pool;
	unsigned mail_pool_count;

	struct buf_cache cache[BUF_CLASSES];
	struct mail flush_mail;
	_Atomic bool flush_posted;

	bool stopped; /* seen by its loop */

	/* written by others */
	_Atomic(struct mail *) mailbox __attribute__((aligned(CACHE_LINE)));
	_Atomic bool sleeping;
	_Atomic bool stop;
} __attribute__((aligned(CACHE_LINE)));

extern _Thread_local struct reactor *reactor_current;
/* A message of the pool. Never fails. */
struct mail *mail_make(void (*fn)(void *arg), void *arg, bool spawn);
/* The message was read: back to the pool, when it is from there. */
void mail_release(struct reactor *reactor, struct mail *mail);
extern _Thread_local unsigned metric_slot; /* of this thread: its reactor's index, or the shared one */

/* io.c: the ring of a reactor. Opened disabled by any thread, enabled on its own. */
int ring_open(struct reactor *reactor, struct error *err);
int ring_enable(struct reactor *reactor);
void ring_close(struct reactor *reactor);
extern unsigned ring_flags_allowed; /* tests take away what old kernels do not have */
/* Hands every completion that is there to its owner; returns how many. */
unsigned ring_reap(struct reactor *reactor);
/* Starts what plugs hold. */
void ring_unplug(struct reactor *reactor);
/* Submits what was started, without waiting; runs deferred work of the kernel. */
void ring_submit(struct reactor *reactor);
bool ring_has_completions(const struct reactor *reactor);
bool ring_has_deferred(const struct reactor *reactor);
/* Submits and waits for one completion, until DEADLINE. */
void ring_wait(struct reactor *reactor, uint64_t deadline);

/* timer.c */
int timers_init(struct reactor *reactor);
void timers_fini(struct reactor *reactor);
unsigned timers_run(struct reactor *reactor);
static inline uint64_t timers_next(const struct reactor *reactor)
{
	return reactor->heap_count ? reactor->heap[1]->expires : NEVER;
}

/* offload.c */
void offload_init(unsigned threads);
void offload_fini(void);

/* arena.c */
int arena_init(uint64_t bytes, unsigned reactors, struct error *err);
void arena_fini(void);
void arena_reactor_init(struct reactor *reactor);
void arena_reactor_fini(struct reactor *reactor); /* gives its cache back; no reactor runs */
/* 0, or why the rings cannot have it; it is then registered nowhere. */
int arena_register(struct reactor *reactors, unsigned count);

/* metrics.c */
void core_metrics_init(void);
extern struct counter metric_copied_bytes, metric_sleeps, metric_rounds, metric_fibers_started, metric_io_started,
	metric_submits, metric_wakes, metric_log_dropped, metric_buf_waits;

/* checksum.c */
struct checksum_variant {
	const char *name;
	uint64_t (*fn)(const void *data, size_t bytes, uint64_t seed);
	bool (*supported)(void);
};
extern const struct checksum_variant checksum_variants[];
extern const unsigned checksum_variant_count;
uint64_t checksum64_scalar(const void *data, size_t bytes, uint64_t seed);
uint64_t checksum64_avx2(const void *data, size_t bytes, uint64_t seed);
uint64_t checksum64_avx512(const void *data, size_t bytes, uint64_t seed);

/* For what cannot happen and must not go on: a broken stack, no memory for a timer. Writes the line and aborts. */
void core_panic(const char *what, ...) __attribute__((noreturn, format(printf, 1, 2)));

#endif
