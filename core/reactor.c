/*
 * Reactors: the loop, the mailbox between them, when to sleep, start and stop.
 *
 * A round of the loop: completions, messages, timers, pollers, then every fiber that is runnable once. What the round
 * started on the ring goes to the kernel in one system call, which is also the one that sleeps when nothing is left
 * to do: everything that can end the sleep is a completion on the ring (sockets, drives, the mailbox's eventfd, the
 * descriptors that pollers armed) or the time of the first timer. Nothing wakes up periodically.
 *
 * Before it sleeps a reactor spins for a while, but only while it has a poller or waits for another reactor's
 * answer: then an event may come without the kernel, and sleeping costs more than it saves. How long follows what
 * lately happened; on ordinary sockets and drives it goes to sleep at once, in the call that submits.
 *
 * The mailbox is a stack that any thread pushes to and that the reactor takes whole and reverses. `sleeping` is
 * set before the last look at the mailbox and read after each push, both in the one total order, so either the
 * reactor sees the message or the sender sees that it has to write to the eventfd.
 *
 * The end: when MAIN returns, all reactors are told to stop and leave their loops at the next round; what still
 * waits is dropped with its stacks. Rings are closed before the stacks go, since the kernel writes there.
 */
#include "core/core_internal.h"

#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define SPIN_MOST 50000u /* ns */
#define SPIN_LEAST 2000u
#define SUBMIT_BATCH 32u /* while fibers run on, so many operations are worth a system call */
#define SUBMIT_ROUNDS 8u /* and so many rounds the longest that one of them waits for it */
#define MAIL_POOL 512u

static struct {
	struct reactor *reactors;
	unsigned count;
	bool pin, spin;
	uint32_t fibers, stack_bytes;
	void (*main)(void *arg);
	void *main_arg;
	void (*signal_fn)(int signal, void *arg);
	void *signal_arg;
	struct io signal_io;
	int signal_fd;
	bool signal_masked;
	sigset_t signal_old;
} core = {.signal_fd = -1};

_Thread_local struct reactor *reactor_current;

unsigned reactor_fibers(void)
{
	return core.fibers;
}

unsigned reactor_count(void)
{
	return core.count;
}

struct reactor *reactor_get(unsigned index)
{
	assert(index < core.count);
	return &core.reactors[index];
}

struct reactor *reactor_self(void)
{
	return reactor_current;
}

unsigned reactor_index(const struct reactor *reactor)
{
	return reactor->index;
}

/* ------------------------------------------------------------------------------------------------
 * Mailbox
 */

static void reactor_ring_bell(struct reactor *r)
{
	uint64_t one = 1;
	if (atomic_load(&r->sleeping) && atomic_exchange(&r->sleeping, false)) {
		counter_add(&metric_wakes, 1);
		while (write(r->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	}
}

void reactor_mail(struct reactor *r, struct mail *mail)
{
	assert(r);
	if (r == reactor_current) {
		mail_queue_push(&r->local, mail);
		return;
	}
	struct mail *top = atomic_load_explicit(&r->mailbox, memory_order_relaxed);
	do {
		mail->next = top;
	} while (!atomic_compare_exchange_weak(&r->mailbox, &top, mail));
	/* From here on MAIL belongs to the reactor and may be gone. */
	reactor_ring_bell(r);
}

struct mail *mail_make(void (*fn)(void *arg), void *arg, bool spawn)
{
	struct reactor *r = reactor_current;
	struct mail *mail = r ? r->mail_pool : NULL;
	if (mail) {
		r->mail_pool = mail->next;
		r->mail_pool_count--;
	} else {
		/* To post never fails, so that nobody needs a path for it; memory comes back or the process dies. */
		while (!(mail = malloc(sizeof(*mail))))
			usleep(1000);
	}
	*mail = (struct mail){.fn = fn, .arg = arg, .spawn = spawn, .pooled = true};
	return mail;
}

void mail_release(struct reactor *r, struct mail *mail)
{
	if (!mail->pooled)
		return;
	if (r->mail_pool_count >= MAIL_POOL) {
		free(mail);
		return;
	}
	mail->next = r->mail_pool;
	r->mail_pool = mail;
	r->mail_pool_count++;
}

void reactor_post(struct reactor *r, void (*fn)(void *arg), void *arg)
{
	reactor_mail(r, mail_make(fn, arg, false));
}

void reactor_spawn(struct reactor *r, void (*fn)(void *arg), void *arg)
{
	reactor_mail(r, mail_make(fn, arg, true));
}

static void mail_read(struct reactor *r, struct mail *mail)
{
	if (mail->spawn) {
		fiber_spawn_mail(r, mail);
		return;
	}
	void (*fn)(void *arg) = mail->fn;
	void *arg = mail->arg;
	mail_release(r, mail);
	fn(arg);
}

static inline bool mailbox_empty(struct reactor *r)
{
	return !atomic_load_explicit(&r->mailbox, memory_order_relaxed);
}

/* What others pushed, oldest first. */
static struct mail *mailbox_take(struct reactor *r)
{
	if (mailbox_empty(r))
		return NULL;
	struct mail *stack = atomic_exchange(&r->mailbox, NULL), *first = NULL;
	while (stack) {
		struct mail *next = stack->next;
		stack->next = first;
		first = stack;
		stack = next;
	}
	return first;
}

static void mailbox_run(struct reactor *r)
{
	struct mail *local = r->local.first, *remote = mailbox_take(r), *next;
	mail_queue_init(&r->local);
	for (; local; local = next) {
		next = local->next;
		mail_read(r, local);
	}
	for (; remote; remote = next) {
		next = remote->next;
		mail_read(r, remote);
	}
}

/* At the end: what nobody will read. Memory of others is left alone, it may be gone. */
static void mail_discard(struct reactor *r, struct mail *mail)
{
	for (struct mail *next; mail; mail = next) {
		next = mail->next;
		if (mail->pooled)
			free(mail);
	}
	(void)r;
}

/* ------------------------------------------------------------------------------------------------
 * Calls to another reactor
 */

struct call {
	struct mail mail;
	void (*fn)(void *arg);
	void *arg;
	struct reactor *from;
	struct fiber *fiber;
	bool answered;
	sem_t answer; /* when a thread that is no reactor waits */
};

static void call_answer(void *arg)
{
	struct call *call = arg;
	fiber_unpark(call->fiber);
}

static void call_run(void *arg)
{
	struct call *call = arg;
	call->fn(call->arg);
	if (!call->from) {
		sem_post(&call->answer);
		return;
	}
	call->mail = (struct mail){.fn = call_answer, .arg = call};
	reactor_mail(call->from, &call->mail);
}

void reactor_call(struct reactor *r, void (*fn)(void *arg), void *arg)
{
	struct call call = {.mail = {.spawn = true, .fn = call_run, .arg = &call}, .fn = fn, .arg = arg};
	struct reactor *self = reactor_current;

	if (r == self) {
		fn(arg);
		return;
	}
	if (!self) {
		sem_init(&call.answer, 0, 0);
		reactor_mail(r, &call.mail);
		while (sem_wait(&call.answer) < 0)
			;
		sem_destroy(&call.answer);
		return;
	}
	call.from = self;
	call.fiber = fiber_self();
	self->calls_out++;
	reactor_mail(r, &call.mail);
	fiber_park();
	self->calls_out--;
}

/* ------------------------------------------------------------------------------------------------
 * Pollers
 */

void poller_add(struct poller *poller)
{
	list_push_back(&reactor_current->pollers, &poller->node);
}

void poller_remove(struct poller *poller)
{
	list_remove(&poller->node);
}

static int pollers_run(struct reactor *r)
{
	int events = 0;
	list_foreach (n, &r->pollers) {
		struct poller *p = container_of(n, struct poller, node);
		events += p->poll(p);
	}
	return events;
}

/* True when one of them has events after all. */
static bool pollers_arm(struct reactor *r)
{
	list_foreach (n, &r->pollers) {
		struct poller *p = container_of(n, struct poller, node);
		if (p->arm(p))
			return true;
	}
	return false;
}

/* ------------------------------------------------------------------------------------------------
 * The loop
 */

static inline bool reactor_has_work(struct reactor *r)
{
	return !list_empty(&r->fibers.runnable) || r->fibers.starts.first || r->local.first || !mailbox_empty(r) ||
	       atomic_load_explicit(&r->stop, memory_order_relaxed);
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* True when something came within the time that lately was worth it. */
static bool reactor_spin(struct reactor *r, uint64_t start)
{
	uint64_t end = start + r->spin_ns, next = timers_next(r);
	if (next < end)
		end = next;
	bool asked = false;
	ring_submit(r);
	do {
		if (ring_has_completions(r) || pollers_run(r) > 0 || reactor_has_work(r))
			return true;
		if (!asked && ring_has_deferred(r)) {
			ring_submit(r);
			asked = true; /* the flag may be stale */
			if (ring_has_completions(r))
				return true;
		}
		cpu_relax();
	} while (now_ns() < end);
	return false;
}

static void reactor_sleep(struct reactor *r)
{
	if (pollers_arm(r))
		return;
	atomic_store(&r->sleeping, true);
	if (atomic_load(&r->mailbox) || reactor_has_work(r)) {
		atomic_store(&r->sleeping, false);
		return;
	}
	counter_add(&metric_sleeps, 1);
	ring_wait(r, timers_next(r));
	atomic_store_explicit(&r->sleeping, false, memory_order_relaxed);
}

static void reactor_idle(struct reactor *r)
{
	ring_unplug(r); /* what is started may end at once, or make room by taking completions */
	if (reactor_has_work(r))
		return;
	if (ring_has_completions(r)) {
		ring_submit(r);
		return;
	}
	bool spin = core.spin && (r->calls_out || !list_empty(&r->pollers));
	if (!spin) {
		reactor_sleep(r);
		return;
	}
	uint64_t start = now_ns();
	if (r->spin_ns && reactor_spin(r, start))
		return;
	reactor_sleep(r);
	if (now_ns() - start < SPIN_MOST)
		r->spin_ns = r->spin_ns * 2 < SPIN_LEAST  ? SPIN_LEAST
			     : r->spin_ns * 2 > SPIN_MOST ? SPIN_MOST
							  : r->spin_ns * 2;
	else
		r->spin_ns = r->spin_ns / 2 < SPIN_LEAST ? 0 : r->spin_ns / 2;
}

static void wake_arm(struct reactor *r);

static void wake_done(struct io *io)
{
	struct reactor *r = container_of(io, struct reactor, wake_io);
	if (io->res < 0 && io->res != -EINTR && io->res != -EAGAIN)
		core_panic("the mailbox's eventfd fails: %s", strerror(-io->res));
	wake_arm(r);
}

static void wake_arm(struct reactor *r)
{
	struct io_uring_sqe *sqe = io_start(&r->wake_io);
	io_uring_prep_read(sqe, r->wake_fd, &r->wake_value, sizeof(r->wake_value), 0);
	io_link(sqe, &r->wake_io);
}

static void reactor_loop(struct reactor *r)
{
	while (!atomic_load_explicit(&r->stop, memory_order_relaxed)) {
		counter_add(&metric_rounds, 1);
		ring_reap(r);
		mailbox_run(r);
		timers_run(r);
		int events = pollers_run(r);
		fibers_run(r);
		if (events > 0 || reactor_has_work(r)) {
			if (io_uring_sq_ready(&r->ring) + r->held >= SUBMIT_BATCH ||
				++r->rounds_unsubmitted >= SUBMIT_ROUNDS) {
				ring_submit(r);
				r->rounds_unsubmitted = 0;
			}
			continue;
		}
		reactor_idle(r);
	}
}

static void reactor_run(struct reactor *r)
{
	reactor_current = r;
	metric_slot = r->index;
	if (core.pin && r->cpu >= 0) {
		cpu_set_t set;
		CPU_ZERO(&set);
		CPU_SET((unsigned)r->cpu, &set);
		sched_setaffinity(0, sizeof(set), &set);
	}
	int rc = ring_enable(r);
	if (rc < 0)
		core_panic("cannot enable an io_uring: %s", strerror(-rc));
	fiber_loop_context_init(r);
	r->wake_io = (struct io){.done = wake_done};
	wake_arm(r);
	reactor_loop(r);
	ring_unplug(r); /* nobody waits for it any more, but no plug is left linked */
	reactor_current = NULL;
	metric_slot = METRIC_SLOTS - 1;
}

static void *reactor_thread(void *arg)
{
	struct reactor *r = arg;
	char name[16];
	snprintf(name, sizeof(name), "reactor-%u", r->index);
	pthread_setname_np(pthread_self(), name);
	reactor_run(r);
	return NULL;
}

/* ------------------------------------------------------------------------------------------------
 * Signals
 */

static void signals_arm(void)
{
	struct io_uring_sqe *sqe = io_start(&core.signal_io);
	io_uring_prep_poll_add(sqe, core.signal_fd, POLLIN);
	io_link(sqe, &core.signal_io);
}

static void signals_done(struct io *io)
{
	struct signalfd_siginfo info;
	(void)io;
	while (read(core.signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
		core.signal_fn((int)info.ssi_signo, core.signal_arg);
	signals_arm();
}

static void signals_start(void *arg)
{
	(void)arg;
	if (core.signal_fd >= 0)
		return; /* a second call only changed the function */
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, &core.signal_old);
	core.signal_masked = true;
	core.signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (core.signal_fd < 0) {
		log_error("core", "cannot watch signals error=\"%s\"", strerror(errno));
		return;
	}
	core.signal_io = (struct io){.done = signals_done};
	signals_arm();
}

void signals_watch(void (*fn)(int signal, void *arg), void *arg)
{
	core.signal_fn = fn;
	core.signal_arg = arg;
	if (reactor_current && reactor_current->index == 0)
		signals_start(NULL);
	else
		reactor_post(reactor_get(0), signals_start, NULL);
}

static void signals_end(void)
{
	if (core.signal_fd >= 0)
		close(core.signal_fd);
	core.signal_fd = -1;
	if (core.signal_masked)
		pthread_sigmask(SIG_SETMASK, &core.signal_old, NULL);
	core.signal_masked = false;
}

/* ------------------------------------------------------------------------------------------------
 * Start and stop
 */

static int reactor_open(struct reactor *r, struct error *err)
{
	list_init(&r->pollers);
	list_init(&r->plugs);
	r->held = 0;
	mail_queue_init(&r->local);
	r->current = NULL;
	r->calls_out = 0;
	r->spin_ns = 0;
	atomic_store(&r->stop, false);
	atomic_store(&r->sleeping, false);
	arena_reactor_init(r);
	r->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (r->wake_fd < 0)
		return error_set(err, -errno, "cannot make an eventfd: %s", strerror(errno));
	int rc = fiber_pool_init(&r->fibers, r, core.fibers, core.stack_bytes);
	if (rc == 0)
		rc = timers_init(r);
	if (rc < 0)
		return error_set(err, rc, "no memory for the fibers of a reactor");
	return ring_open(r, err);
}

static void reactor_close(struct reactor *r)
{
	ring_close(r);
	if (r->heap)
		timers_fini(r);
	if (r->fibers.made) {
		mail_discard(r, r->fibers.starts.first);
		mail_discard(r, r->fibers.starting.first);
		mail_discard(r, r->fibers.waiting.first);
		fiber_pool_fini(&r->fibers);
		r->fibers.made = 0;
	}
	mail_discard(r, r->local.first);
	mail_discard(r, mailbox_take(r));
	mail_discard(r, r->mail_pool);
	mail_queue_init(&r->local);
	r->mail_pool = NULL;
	r->mail_pool_count = 0;
	if (r->wake_fd >= 0)
		close(r->wake_fd);
	r->wake_fd = -1;
}

static int reactors_open(struct error *err)
{
	for (unsigned i = 0; i < core.count; i++) {
		int rc = reactor_open(&core.reactors[i], err);
		if (rc < 0)
			return rc;
	}
	/* Not being able to register is only slower. */
	arena_register(core.reactors, core.count);
	return 0;
}

static void reactors_close(void)
{
	for (unsigned i = 0; i < core.count; i++)
		arena_reactor_fini(&core.reactors[i]);
	for (unsigned i = 0; i < core.count; i++)
		reactor_close(&core.reactors[i]);
}

int core_init(const struct core_config *config, struct error *err)
{
	cpu_set_t cpus;
	if (core.reactors)
		return error_set(err, -EBUSY, "core runs already");
	CPU_ZERO(&cpus);
	if (sched_getaffinity(0, sizeof(cpus), &cpus) < 0)
		CPU_SET(0, &cpus);
	unsigned have = (unsigned)CPU_COUNT(&cpus);
	unsigned count = config->reactors ? config->reactors : have;
	if (count > REACTORS_MAX) {
		if (config->reactors)
			return error_set(err, -EINVAL, "%u reactors: there may be at most %u", count, REACTORS_MAX);
		count = REACTORS_MAX;
	}

	core_metrics_init();
	signal(SIGPIPE, SIG_IGN);
	core.pin = config->pin;
	/* On one CPU a spinning reactor only keeps away whoever would bring the event. */
	core.spin = have > 1 && count <= have;
	core.fibers = config->fibers ? config->fibers : 4096;
	core.stack_bytes = config->stack_bytes ? (config->stack_bytes + 4095u) & ~4095u : 65536;
	if (core.stack_bytes < 16384)
		core.stack_bytes = 16384;
	core.reactors = aligned_alloc(CACHE_LINE, count * sizeof(*core.reactors));
	if (!core.reactors)
		return error_set(err, -ENOMEM, "no memory for %u reactors", count);
	memset(core.reactors, 0, count * sizeof(*core.reactors));
	core.count = count;
	int cpu = -1;
	for (unsigned i = 0; i < count; i++) {
		core.reactors[i].index = i;
		core.reactors[i].wake_fd = -1;
		if (i < have)
			for (cpu++; cpu < CPU_SETSIZE - 1 && !CPU_ISSET((unsigned)cpu, &cpus); cpu++)
				;
		core.reactors[i].cpu = i < have ? cpu : -1;
	}
	int rc = arena_init(config->arena_bytes ? config->arena_bytes : 64ull << 20, count, err);
	if (rc == 0)
		rc = reactors_open(err);
	if (rc < 0) {
		core_fini();
		return rc;
	}
	offload_init(config->helper_threads ? config->helper_threads : 4);
	return 0;
}

static void core_stop(void)
{
	for (unsigned i = 0; i < core.count; i++) {
		atomic_store(&core.reactors[i].stop, true);
		reactor_ring_bell(&core.reactors[i]);
	}
}

static void main_fiber(void *arg)
{
	(void)arg;
	core.main(core.main_arg);
	core_stop();
}

void core_run(void (*main)(void *arg), void *arg)
{
	struct error err;
	cpu_set_t cpus;
	sigset_t all, old;
	bool have_cpus = sched_getaffinity(0, sizeof(cpus), &cpus) == 0;

	assert(core.reactors && !reactor_current);
	if (!core.reactors[0].ring_open && reactors_open(&err) < 0)
		core_panic("%s", err.text);
	core.main = main;
	core.main_arg = arg;
	reactor_spawn(&core.reactors[0], main_fiber, NULL);

	/* Signals are for reactor 0 alone. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (unsigned i = 1; i < core.count; i++) {
		int rc = pthread_create(&core.reactors[i].thread, NULL, reactor_thread, &core.reactors[i]);
		if (rc)
			core_panic("cannot start the thread of reactor %u: %s", i, strerror(rc));
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);

	reactor_run(&core.reactors[0]);

	for (unsigned i = 1; i < core.count; i++)
		pthread_join(core.reactors[i].thread, NULL);
	offload_fini();
	signals_end();
	reactors_close();
	if (core.pin && have_cpus)
		sched_setaffinity(0, sizeof(cpus), &cpus);
}

void core_fini(void)
{
	reactors_close();
	arena_fini();
	free(core.reactors);
	core.reactors = NULL;
	core.count = 0;
}

int core_main(const struct core_config *config, void (*main)(void *arg), void *arg, struct error *err)
{
	int rc = core_init(config, err);
	if (rc < 0)
		return rc;
	core_run(main, arg);
	core_fini();
	return 0;
}
