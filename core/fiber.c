/*
 * Fibers: stacks, the switch between them, and the order in which they run.
 *
 * Owns: per reactor the pool of fibers (struct fiber_pool), their stacks, and the lists of those that will run.
 * Nothing here is touched by another thread.
 *
 * Stacks come from slabs of 16: one mapping whose lowest page cannot be touched. A page for each stack would cost
 * two mappings a fiber, and the kernel allows a process 65,530, so inside of a slab an overflow is found by canary
 * words at the low end of each stack, looked at whenever the fiber is left. A broken canary ends the process: what
 * lay below has been overwritten already.
 *
 * A round: the loop moves `runnable` to `batch` and switches to the first; each that waits switches on to the next, the
 * last one back to the loop. Starts come before those that go on. What becomes runnable in a round runs in the next
 * one, and the loop looks at the ring and at its timers in between.
 *
 * A start (fiber_spawn() and its kin) is only a function in a queue, with a stack counted for it. In its turn it runs
 * on the fiber whose own function has just returned, without a switch, or on one of the free list (last in first out,
 * so that its stack is still in the cache). So a hundred calls that come together and do not wait run one after the
 * other on one fiber. One that is free keeps the frame of fiber_main().
 *
 * Two kinds of waits are kept apart. fiber_suspend() ends with fiber_wake(), which is remembered when it came
 * first. Waits of core's own (locks, io, sleeps) park: their one waker has found this very wait in some list. A
 * fiber_wake() during these is kept for the next fiber_suspend() and never ends them early.
 */
#include "core/core_internal.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if CORE_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if CORE_TSAN
#include <sanitizer/tsan_interface.h>
#endif
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define VALGRIND_STACK_REGISTER(low, high) 0u
#define VALGRIND_STACK_DEREGISTER(id) ((void)(id))
#endif

#define SLAB_FIBERS 16u
#define CANARY_WORDS 4u
#define CANARY 0xfeedc0dedeadfa11ull

struct fiber_slab {
	struct list_node node;
	void *mapping;
	size_t bytes;
	unsigned valgrind[SLAB_FIBERS];
	struct fiber fiber[SLAB_FIBERS];
};

/* ------------------------------------------------------------------------------------------------
 * The switch
 */

#if !CORE_UCONTEXT
void fiber_switch(void **save, void *load);
#endif

static void canary_set(const struct context *context)
{
	for (unsigned i = 0; i < CANARY_WORDS; i++)
		((uint64_t *)(void *)context->stack_low)[i] = CANARY;
}

/* The word nearest to the frames is the first that an overflow reaches; all are looked at where a fiber becomes free.
 */
static inline void canary_check(const struct context *context, unsigned words)
{
	const uint64_t *low = (const uint64_t *)(const void *)context->stack_low;
	for (unsigned i = CANARY_WORDS - words; i < CANARY_WORDS; i++)
		if (__builtin_expect(low[i] != CANARY, 0))
			core_panic("a fiber's stack of %zu bytes overflowed", context->stack_bytes);
}

#if CORE_TSAN
__attribute__((no_sanitize("thread")))
#endif
static void
context_switch(struct context *from, struct context *to)
{
#if CORE_ASAN
	__sanitizer_start_switch_fiber(&from->asan_fake, to->stack_low, to->stack_bytes);
#endif
#if CORE_TSAN
	__tsan_switch_to_fiber(to->tsan, 0);
#endif
#if CORE_UCONTEXT
	swapcontext(&from->uc, &to->uc);
#else
	fiber_switch(&from->sp, to->sp);
#endif
#if CORE_ASAN
	__sanitizer_finish_switch_fiber(from->asan_fake, NULL, NULL);
#endif
}

static void fiber_main(void);

/* Lays out a new stack as if fiber_switch() had left it just before the first instruction of fiber_main(). */
static void fiber_prepare(struct fiber *fiber)
{
	struct context *c = &fiber->context;
	canary_set(c);
#if CORE_UCONTEXT
	getcontext(&c->uc);
	c->uc.uc_stack.ss_sp = c->stack_low;
	c->uc.uc_stack.ss_size = c->stack_bytes;
	c->uc.uc_link = NULL;
	makecontext(&c->uc, fiber_main, 0);
#else
	/* Tops of stacks 64 KiB apart would all compete for the same few lines of the cache. */
	uint64_t color = (uintptr_t)c->stack_low / c->stack_bytes % SLAB_FIBERS;
	uint64_t *top = (uint64_t *)(void *)(c->stack_low + c->stack_bytes - 128ull * color);
	uint32_t mxcsr;
	uint16_t x87;
	__asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(mxcsr), "=m"(x87));
	*--top = 0; /* the return address of fiber_main: where a backtrace ends */
	*--top = (uint64_t)(uintptr_t)fiber_main;
	for (int i = 0; i < 6; i++)
		*--top = 0;
	*--top = (uint64_t)x87 << 32 | mxcsr;
	c->sp = top;
#endif
#if CORE_TSAN
	c->tsan = __tsan_create_fiber(0);
#endif
	fiber->started = true;
}

/* FIBER goes on with the start that came first. There is one. */
static inline void start_take(struct fiber *fiber)
{
	struct reactor *r = fiber->reactor;
	struct mail *mail = mail_queue_pop(&r->fibers.starting);

	fiber->fn = mail->fn;
	fiber->arg = mail->arg;
	fiber->state = FIBER_READY;
	fiber->wake_pending = false;
	mail_release(r, mail);
}

/* Who runs next in this round; NULL: it is over. */
static inline struct fiber *fiber_next(struct reactor *r)
{
	struct fiber_pool *pool = &r->fibers;
	struct list_node *n = list_pop_front(pool->starting.first ? &pool->free : &pool->batch);

	if (!n)
		return NULL;
	struct fiber *f = container_of(n, struct fiber, node);
	if (pool->starting.first) {
		if (!f->started)
			fiber_prepare(f);
		start_take(f);
	}
	return f;
}

/* Leaves FIBER, whose state says already where it waits, for the next of this round or for the loop. */
static inline void fiber_leave(struct fiber *fiber)
{
	struct reactor *r = fiber->reactor;
	struct fiber *next = fiber_next(r);

	canary_check(&fiber->context, 1);
	r->current = next;
	context_switch(&fiber->context, next ? &next->context : &r->loop);
}

bool fibers_run(struct reactor *r)
{
	list_append(&r->fibers.batch, &r->fibers.runnable);
	mail_queue_append(&r->fibers.starting, &r->fibers.starts);
	r->current = fiber_next(r);
	if (!r->current)
		return false;
	context_switch(&r->loop, &r->current->context);
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * Birth and death
 */

/* The fiber is done with its function: it goes on with another, or is free. */
static void fiber_end(struct fiber *fiber)
{
	struct fiber_pool *pool = &fiber->reactor->fibers;

	if (pool->waiting.first)
		mail_queue_push(&pool->starts, mail_queue_pop(&pool->waiting)); /* has the stack that was this one's */
	else
		pool->used--;
	if (pool->starting.first) {
		canary_check(&fiber->context, 1);
		start_take(fiber);
		return;
	}
	canary_check(&fiber->context, CANARY_WORDS);
	fiber->state = FIBER_FREE;
	list_push_front(&pool->free, &fiber->node);
	fiber_leave(fiber);
}

/* The lowest frame of every fiber. It is entered by the first switch to a new stack and never returns. */
static void fiber_main(void)
{
	struct fiber *fiber = reactor_current->current;
#if CORE_ASAN
	__sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
	for (;;) {
		fiber->fn(fiber->arg);
		fiber_end(fiber);
	}
}

static int slab_make(struct reactor *r)
{
	struct fiber_pool *pool = &r->fibers;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct fiber_slab *slab = calloc(1, sizeof(*slab));
	if (!slab)
		return -ENOMEM;
	slab->bytes = page + (size_t)SLAB_FIBERS * pool->stack_bytes;
	slab->mapping =
		mmap(NULL, slab->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (slab->mapping == MAP_FAILED) {
		free(slab);
		return -ENOMEM;
	}
	/* Huge pages under stacks would make each fiber cost what 32 do. */
	madvise(slab->mapping, slab->bytes, MADV_NOHUGEPAGE);
	if (mprotect(slab->mapping, page, PROT_NONE) < 0) {
		munmap(slab->mapping, slab->bytes);
		free(slab);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < SLAB_FIBERS; i++) {
		struct fiber *f = &slab->fiber[i];
		f->reactor = r;
		f->context.stack_low = (uint8_t *)slab->mapping + page + (size_t)i * pool->stack_bytes;
		f->context.stack_bytes = pool->stack_bytes;
		slab->valgrind[i] = VALGRIND_STACK_REGISTER(
			f->context.stack_low, f->context.stack_low + f->context.stack_bytes - 1);
		list_push_back(&pool->free, &f->node);
	}
	pool->made += SLAB_FIBERS;
	list_push_back(&pool->slabs, &slab->node);
	return 0;
}

int fiber_pool_init(struct fiber_pool *pool, struct reactor *r, uint32_t limit, uint32_t stack_bytes)
{
	memset(pool, 0, sizeof(*pool));
	list_init(&pool->runnable);
	list_init(&pool->batch);
	list_init(&pool->free);
	list_init(&pool->slabs);
	mail_queue_init(&pool->starts);
	mail_queue_init(&pool->starting);
	mail_queue_init(&pool->waiting);
	pool->limit = limit;
	/* Instrumented frames are several times as large. */
	pool->stack_bytes = stack_bytes * (CORE_ASAN || CORE_TSAN ? 4u : 1u);
	return slab_make(r);
}

void fiber_pool_fini(struct fiber_pool *pool)
{
	list_foreach (n, &pool->slabs) {
		struct fiber_slab *slab = container_of(n, struct fiber_slab, node);
		for (unsigned i = 0; i < SLAB_FIBERS; i++) {
			VALGRIND_STACK_DEREGISTER(slab->valgrind[i]);
#if CORE_TSAN
			if (slab->fiber[i].context.tsan)
				__tsan_destroy_fiber(slab->fiber[i].context.tsan);
#endif
		}
#if CORE_ASAN
		__asan_unpoison_memory_region(slab->mapping, slab->bytes);
#endif
		munmap(slab->mapping, slab->bytes);
		list_remove(&slab->node);
		free(slab);
	}
}

/* Counts a stack for a start. False: the limit is reached or memory is out. */
static inline bool start_admit(struct reactor *r)
{
	struct fiber_pool *pool = &r->fibers;

	if (pool->used >= pool->limit || (pool->used == pool->made && slab_make(r) < 0))
		return false;
	pool->used++;
	return true;
}

static inline void start_queue(struct reactor *r, struct mail *mail)
{
	mail_queue_push(&r->fibers.starts, mail);
	counter_add(&metric_fibers_started, 1);
}

int fiber_start(struct mail *mail)
{
	struct reactor *r = reactor_current;
	assert(r);
	if (!start_admit(r))
		return -EAGAIN;
	start_queue(r, mail);
	return 0;
}

int fiber_spawn(void (*fn)(void *arg), void *arg)
{
	struct reactor *r = reactor_current;
	assert(r);
	if (!start_admit(r))
		return -EAGAIN;
	start_queue(r, mail_make(fn, arg, true));
	return 0;
}

/* Starts the fiber that MAIL asks for, or keeps MAIL until a fiber ends. */
void fiber_spawn_mail(struct reactor *r, struct mail *mail)
{
	if (r->fibers.waiting.first || !start_admit(r))
		mail_queue_push(&r->fibers.waiting, mail);
	else
		start_queue(r, mail);
}

void fiber_loop_context_init(struct reactor *r)
{
	memset(&r->loop, 0, sizeof(r->loop));
#if CORE_ASAN
	pthread_attr_t attr;
	void *low = NULL;
	size_t bytes = 0;
	if (pthread_getattr_np(pthread_self(), &attr) == 0) {
		pthread_attr_getstack(&attr, &low, &bytes);
		pthread_attr_destroy(&attr);
	}
	r->loop.stack_low = low;
	r->loop.stack_bytes = bytes;
#endif
#if CORE_TSAN
	r->loop.tsan = __tsan_get_current_fiber();
#endif
}

/* ------------------------------------------------------------------------------------------------
 * Waits
 */

struct fiber *fiber_self(void)
{
	return reactor_current ? reactor_current->current : NULL;
}

static inline struct fiber *fiber_must(void)
{
	struct fiber *f = fiber_self();
	assert(f && "this waits: only a fiber may call it");
	return f;
}

static inline void fiber_ready(struct fiber *f)
{
	f->state = FIBER_READY;
	list_push_back(&f->reactor->fibers.runnable, &f->node);
}

void fiber_park(void)
{
	struct fiber *f = fiber_must();
	f->state = FIBER_PARKED;
	fiber_leave(f);
}

void fiber_unpark(struct fiber *f)
{
	assert(f->reactor == reactor_current && f->state == FIBER_PARKED);
	fiber_ready(f);
}

void fiber_yield(void)
{
	struct fiber *f = fiber_must();
	fiber_ready(f);
	fiber_leave(f);
}

void fiber_suspend(void)
{
	struct fiber *f = fiber_must();
	if (f->wake_pending) {
		f->wake_pending = false;
		return;
	}
	f->state = FIBER_SUSPENDED;
	fiber_leave(f);
}

void fiber_wake(struct fiber *f)
{
	assert(f->reactor == reactor_current);
	if (f->state == FIBER_SUSPENDED)
		fiber_ready(f);
	else
		f->wake_pending = true;
}

struct fiber_alarm {
	struct timer timer;
	struct fiber *fiber;
	bool rang;
};

static void sleep_over(struct timer *timer)
{
	fiber_unpark(container_of(timer, struct fiber_alarm, timer)->fiber);
}

void fiber_sleep(uint64_t ns)
{
	struct fiber_alarm a = {.fiber = fiber_must()};
	uint64_t now = now_ns();
	timer_init(&a.timer, sleep_over);
	timer_start(&a.timer, ns < NEVER - now ? now + ns : NEVER - 1);
	fiber_park();
}

static void suspend_over(struct timer *timer)
{
	struct fiber_alarm *a = container_of(timer, struct fiber_alarm, timer);
	if (a->fiber->state == FIBER_SUSPENDED) {
		a->rang = true;
		fiber_ready(a->fiber);
	}
}

int fiber_suspend_until(uint64_t deadline)
{
	struct fiber *f = fiber_must();
	if (deadline == NEVER || f->wake_pending) {
		fiber_suspend();
		return 0;
	}
	struct fiber_alarm a = {.fiber = f};
	timer_init(&a.timer, suspend_over);
	timer_start(&a.timer, deadline);
	f->state = FIBER_SUSPENDED;
	fiber_leave(f);
	timer_stop(&a.timer);
	if (a.rang && f->wake_pending) {
		/* Woken between the alarm and now. */
		f->wake_pending = false;
		return 0;
	}
	return a.rang ? -ETIME : 0;
}
