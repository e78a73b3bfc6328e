/*
 * One io_uring per reactor: how it is made, how operations enter it, how their completions reach their owners.
 *
 * Only the reactor's own thread touches its ring once it runs. The ring is made by core_init() on another thread,
 * disabled, and enabled by its own: the kernel takes that one for the single issuer it is told of.
 *
 * The life of an operation: io_start() takes an SQE (submitting the others first when the ring is full), the owner
 * fills it in, the loop submits it together with all others of the round, and ring_reap() later finds the completion,
 * copies it into the struct io and either calls done() or makes the waiting fiber runnable. user_data is the address
 * of the struct io; 0 is an operation whose completion interests nobody (a cancellation).
 *
 * Rings are asked for with everything that helps and then with less, down to what Linux 5.11 has: SQEs of 128 bytes
 * carry NVMe commands; a single issuer with deferred task work has completions handled when this thread asks for
 * them, all at once, instead of interrupting it for each.
 */
#include "core/core_internal.h"

#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define RUNNING_ON_VALGRIND 0
#endif

#define RING_SQES 1024u
#define RING_SQES_LEAST 128u
#define REAP_MOST 4096u

#define F_WIDE (IORING_SETUP_SQE128 | IORING_SETUP_CQE32)
#define F_DEFER                                                                                                        \
	(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN |                         \
		IORING_SETUP_TASKRUN_FLAG)
#define F_SINGLE (IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG)
#define F_COOP (IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG)
#define F_BASE (IORING_SETUP_R_DISABLED | IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE)

unsigned ring_flags_allowed = ~0u;

/* ------------------------------------------------------------------------------------------------
 * The ring
 */

static const unsigned ring_ladder[] = {
	F_BASE | F_WIDE | F_DEFER,  /* 6.1 */
	F_BASE | F_WIDE | F_SINGLE, /* 6.0 */
	F_BASE | F_WIDE | F_COOP,   /* 5.19 */
	F_BASE | F_WIDE,	    /* under valgrind */
	F_BASE | F_DEFER,
	F_BASE | F_COOP,
	F_BASE,
	0,
};

int ring_open(struct reactor *r, struct error *err)
{
	int rc = -EINVAL;
	/* Who polls a ring is not told of work that is deferred until its thread enters the kernel. */
	unsigned allowed = ring_flags_allowed;
	if (RUNNING_ON_VALGRIND)
		allowed &= ~F_DEFER;
	unsigned sqes = RING_SQES;
	for (unsigned i = 0; i < sizeof(ring_ladder) / sizeof(ring_ladder[0]); i++) {
		struct io_uring_params p = {.flags = ring_ladder[i], .cq_entries = 4 * sqes};
		if (p.flags & ~allowed)
			continue;
		if (!(p.flags & IORING_SETUP_CQSIZE))
			p.cq_entries = 0;
		rc = io_uring_queue_init_params(sqes, &r->ring, &p);
		if (rc == 0) {
			if (!(p.features & IORING_FEAT_EXT_ARG) || !(p.features & IORING_FEAT_NODROP)) {
				io_uring_queue_exit(&r->ring);
				return error_set(err, -ENOSYS, "io_uring of this kernel is too old: 5.11 is needed");
			}
			r->ring_flags = ring_ladder[i];
			break;
		}
		if (rc == -ENOMEM && sqes > RING_SQES_LEAST) {
			/* Some kernels count rings as locked memory. */
			sqes /= 2;
			i--;
		} else if (rc != -EINVAL) {
			break;
		}
	}
	if (rc == -EPERM || rc == -EACCES)
		return error_set(err, rc,
			"io_uring is not permitted here: see the sysctl kernel.io_uring_disabled and the seccomp "
			"filter of the container");
	if (rc == -ENOMEM)
		return error_set(err, rc, "no memory for an io_uring: is the limit of locked memory very low?");
	if (rc == -ENOSYS)
		return error_set(err, rc, "this kernel has no io_uring");
	if (rc < 0)
		return error_set(err, rc, "cannot make an io_uring: %s", strerror(-rc));

	r->passthrough = (r->ring_flags & F_WIDE) == F_WIDE;
	r->deferred = r->ring_flags & IORING_SETUP_DEFER_TASKRUN;
	r->taskrun_flag = r->ring_flags & IORING_SETUP_TASKRUN_FLAG;
	r->stash_size = *r->ring.cq.kring_entries;
	r->stash_first = r->stash_count = 0;
	r->stash = calloc(r->stash_size, sizeof(*r->stash));
	if (!r->stash) {
		io_uring_queue_exit(&r->ring);
		return error_set(err, -ENOMEM, "no memory for a ring");
	}
	r->io_inflight = 0;
	r->rounds_unsubmitted = 0;
	r->ring_open = true;
	return 0;
}

int ring_enable(struct reactor *r)
{
	if (!(r->ring_flags & IORING_SETUP_R_DISABLED))
		return 0;
	/* liburing 2.3 declares io_uring_enable_rings() but does not export it. */
	long rc = syscall(__NR_io_uring_register, r->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
	return rc < 0 ? -errno : 0;
}

void ring_close(struct reactor *r)
{
	if (!r->ring_open)
		return;
	r->ring_open = false;
	io_uring_queue_exit(&r->ring);
	free(r->stash);
	r->stash = NULL;
}

bool reactor_has_passthrough(void)
{
	assert(reactor_current);
	return reactor_current->passthrough;
}

struct io_uring *reactor_ring(void)
{
	assert(reactor_current);
	return &reactor_current->ring;
}

/* ------------------------------------------------------------------------------------------------
 * Completions
 */

static void io_complete(struct reactor *r, const struct cqe_copy *c)
{
	if (!c->user_data || c->user_data == LIBURING_UDATA_TIMEOUT)
		return;
	struct io *io = (struct io *)(uintptr_t)c->user_data;
	/* The notification of a zero-copy send ends it, but its result came before. */
	if (!(c->flags & IORING_CQE_F_NOTIF)) {
		io->res = c->res;
		io->extra[0] = c->extra[0];
		io->extra[1] = c->extra[1];
	}
	io->flags = c->flags;
	if (!(c->flags & IORING_CQE_F_MORE)) {
		io->pending = false;
		r->io_inflight--;
	}
	if (io->done) {
		io->done(io);
	} else if (!io->pending && io->waiter) {
		struct fiber *f = io->waiter;
		io->waiter = NULL;
		fiber_unpark(f);
	}
}

static inline void cqe_copy(const struct reactor *r, const struct io_uring_cqe *cqe, struct cqe_copy *to)
{
	to->user_data = cqe->user_data;
	to->res = cqe->res;
	to->flags = cqe->flags;
	to->extra[0] = r->passthrough ? cqe->big_cqe[0] : 0;
	to->extra[1] = r->passthrough ? cqe->big_cqe[1] : 0;
}

unsigned ring_reap(struct reactor *r)
{
	unsigned count = 0;
	struct cqe_copy c;

	while (r->stash_count && count < REAP_MOST) {
		c = r->stash[r->stash_first];
		r->stash_first = (r->stash_first + 1) % r->stash_size;
		r->stash_count--;
		count++;
		io_complete(r, &c);
	}
	/* done() may start operations, and these may have to take completions off: the head is moved one by one. */
	while (count < REAP_MOST && io_uring_cq_ready(&r->ring)) {
		unsigned head = *r->ring.cq.khead;
		cqe_copy(r, &r->ring.cq.cqes[io_uring_cqe_index(&r->ring, head, *r->ring.cq.kring_mask)], &c);
		io_uring_cq_advance(&r->ring, 1);
		count++;
		io_complete(r, &c);
	}
	return count;
}

/* Takes completions off the ring without running their callbacks, so that the kernel accepts submissions again. */
static void ring_stash(struct reactor *r)
{
	while (r->stash_count < r->stash_size && io_uring_cq_ready(&r->ring)) {
		unsigned head = *r->ring.cq.khead;
		cqe_copy(r, &r->ring.cq.cqes[io_uring_cqe_index(&r->ring, head, *r->ring.cq.kring_mask)],
			&r->stash[(r->stash_first + r->stash_count) % r->stash_size]);
		r->stash_count++;
		io_uring_cq_advance(&r->ring, 1);
	}
}

static inline unsigned sq_flags(const struct reactor *r)
{
	return atomic_load_explicit((const _Atomic unsigned *)(const void *)r->ring.sq.kflags, memory_order_relaxed);
}

bool ring_has_completions(const struct reactor *r)
{
	return r->stash_count || io_uring_cq_ready(&r->ring);
}

/*
 * The kernel has work that it does when this thread asks. Only a hint: the kernel may set the flag just after the
 * thread took that work, and it then stays until there is more. So nobody may go round in circles on it; the wait
 * looks at the work itself.
 */
bool ring_has_deferred(const struct reactor *r)
{
	return sq_flags(r) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW);
}

void plug_hold(struct plug *plug)
{
	struct reactor *r = reactor_current;
	r->held++;
	if (!list_linked(&plug->node))
		list_push_back(&r->plugs, &plug->node);
}

void ring_unplug(struct reactor *r)
{
	struct list_node *n;
	while ((n = list_pop_front(&r->plugs))) {
		struct plug *plug = container_of(n, struct plug, node);
		plug->start(plug);
	}
	r->held = 0;
}

void ring_submit(struct reactor *r)
{
	ring_unplug(r);
	unsigned ready = io_uring_sq_ready(&r->ring);
	bool events = ring_has_deferred(r);
	if (!ready && !events)
		return;
	r->rounds_unsubmitted = 0;
	counter_add(&metric_submits, 1);
	/* What could not be submitted (no memory, too many completions waiting) stays in the ring for the next round.
	 */
	if (events)
		io_uring_submit_and_get_events(&r->ring);
	else
		io_uring_submit(&r->ring);
}

/*
 * The same for valgrind, which runs one thread at a time and does not know that io_uring_enter() may block: no other
 * thread would run until the wait ends. It knows of poll, and a ring can be polled.
 */
static void ring_wait_polling(struct reactor *r, const struct __kernel_timespec *timeout)
{
	struct pollfd p = {.fd = r->ring.ring_fd, .events = POLLIN};
	struct timespec ts = {0};
	if (timeout) {
		ts.tv_sec = timeout->tv_sec;
		ts.tv_nsec = timeout->tv_nsec;
	}
	io_uring_submit(&r->ring);
	if (!io_uring_cq_ready(&r->ring))
		ppoll(&p, 1, timeout ? &ts : NULL, NULL);
	io_uring_get_events(&r->ring);
}

void ring_wait(struct reactor *r, uint64_t deadline)
{
	struct io_uring_cqe *cqe;
	struct __kernel_timespec ts, *timeout = NULL;

	if (deadline != NEVER) {
		uint64_t now = now_ns(), ns = deadline > now ? deadline - now : 0;
		ts.tv_sec = (int64_t)(ns / NSEC_PER_SEC);
		ts.tv_nsec = (int64_t)(ns % NSEC_PER_SEC);
		timeout = &ts;
	}
	r->rounds_unsubmitted = 0;
	counter_add(&metric_submits, 1);
	if (RUNNING_ON_VALGRIND) {
		ring_wait_polling(r, timeout);
		return;
	}
	int rc = io_uring_submit_and_wait_timeout(&r->ring, &cqe, 1, timeout, NULL);
	if (rc == -EAGAIN || rc == -ENOMEM)
		usleep(1000); /* the kernel has no memory for a request: no use in asking at once */
}

/* ------------------------------------------------------------------------------------------------
 * Operations
 */

static void ring_make_room(struct reactor *r)
{
	for (unsigned tries = 0; !io_uring_sq_space_left(&r->ring); tries++) {
		counter_add(&metric_submits, 1);
		int rc = io_uring_submit(&r->ring);
		if (rc == -EBUSY || rc == -EAGAIN) {
			io_uring_get_events(&r->ring);
			ring_stash(r);
			if (rc == -EAGAIN && tries > 10)
				usleep(1000);
		} else if (rc < 0 && rc != -EINTR) {
			core_panic("io_uring accepts nothing any more: %s", strerror(-rc));
		}
	}
}

static struct io_uring_sqe *sqe_take(struct reactor *r)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->ring);
	if (!sqe) {
		ring_make_room(r);
		sqe = io_uring_get_sqe(&r->ring);
	}
	memset(sqe, 0, r->passthrough ? 2 * sizeof(*sqe) : sizeof(*sqe));
	counter_add(&metric_io_started, 1);
	return sqe;
}

struct io_uring_sqe *io_start(struct io *io)
{
	struct reactor *r = reactor_current;
	assert(r && !io->pending);
	struct io_uring_sqe *sqe = sqe_take(r);
	io->res = 0;
	io->flags = 0;
	io->waiter = NULL;
	io->pending = true;
	r->io_inflight++;
	sqe->user_data = (uintptr_t)io;
	return sqe;
}

void io_link(struct io_uring_sqe *sqe, struct io *io)
{
	sqe->user_data = (uintptr_t)io;
}

int io_wait(struct io *io)
{
	while (io->pending) {
		assert(!io->done && !io->waiter);
		io->waiter = fiber_self();
		fiber_park();
	}
	return io->res;
}

struct io_alarm {
	struct timer timer;
	struct io *io;
	bool rang;
};

static void io_late(struct timer *timer)
{
	struct io_alarm *a = container_of(timer, struct io_alarm, timer);
	struct fiber *f = a->io->waiter;
	if (f) { /* else it completed and its fiber has not run yet */
		a->io->waiter = NULL;
		a->rang = true;
		fiber_unpark(f);
	}
}

int io_wait_until(struct io *io, uint64_t deadline)
{
	if (deadline == NEVER || !io->pending)
		return io_wait(io);
	assert(!io->done && !io->waiter);
	struct io_alarm a = {.io = io};
	timer_init(&a.timer, io_late);
	timer_start(&a.timer, deadline);
	io->waiter = fiber_self();
	fiber_park();
	timer_stop(&a.timer);
	/* It may have completed between the alarm and now. */
	return io->pending ? -ETIME : io->res;
}

void io_cancel(struct io *io)
{
	struct reactor *r = reactor_current;
	if (!io->pending)
		return;
	struct io_uring_sqe *sqe = sqe_take(r);
	sqe->opcode = IORING_OP_ASYNC_CANCEL;
	sqe->fd = -1;
	sqe->addr = (uintptr_t)io;
}
