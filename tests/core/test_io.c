/* io_uring and timers: completions reach their owners, on every kind of ring, and a deadline or a cancel ends a wait.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/core.h"
#include "core/core_internal.h"

static void run_with(void (*fn)(void *arg), unsigned reactors)
{
	struct error err = {0};
	struct core_config config = {.reactors = reactors, .arena_bytes = 4 << 20};
	int rc = core_main(&config, fn, NULL, &err);
	if (rc < 0)
		fail_msg("core_main: %s", err.text);
}

/* ---- a file through the arena, with registered buffers where there are some */

static int rw(int fd, bool write, struct buf *buf, uint64_t off)
{
	struct io io = {0};
	struct io_uring_sqe *sqe = io_start(&io);
	if (buf->fixed_index >= 0 && write)
		io_uring_prep_write_fixed(sqe, fd, buf->data, buf->size, off, buf->fixed_index);
	else if (buf->fixed_index >= 0)
		io_uring_prep_read_fixed(sqe, fd, buf->data, buf->size, off, buf->fixed_index);
	else if (write)
		io_uring_prep_write(sqe, fd, buf->data, buf->size, off);
	else
		io_uring_prep_read(sqe, fd, buf->data, buf->size, off);
	io_link(sqe, &io);
	return io_wait(&io);
}

struct file_job {
	int fd;
	unsigned id;
	struct wait_group *group;
};

static void file_worker(void *arg)
{
	struct file_job *job = arg;
	for (unsigned i = 0; i < 10; i++) {
		struct buf *out = buf_alloc(16384), *in = buf_alloc(16384);
		memset(out->data, (int)(job->id * 16 + i), out->size);
		uint64_t off = (uint64_t)job->id * 16384;
		assert_int_equal(rw(job->fd, true, out, off), 16384);
		assert_int_equal(rw(job->fd, false, in, off), 16384);
		assert_memory_equal(out->data, in->data, 16384);
		buf_put(out);
		buf_put(in);
	}
	wait_group_done(job->group, 0);
}

static void file_main(void *arg)
{
	(void)arg;
	int fd = memfd_create("test", 0);
	struct file_job jobs[20];
	struct wait_group group;
	wait_group_init(&group);
	for (unsigned i = 0; i < 20; i++) {
		jobs[i] = (struct file_job){fd, i, &group};
		wait_group_add(&group, 1);
		assert_int_equal(fiber_spawn(file_worker, &jobs[i]), 0);
	}
	wait_group_wait(&group);
	close(fd);

	struct buf *b = buf_alloc(4096);
	assert_int_equal(rw(-1, false, b, 0), -EBADF);
	buf_put(b);
}

static void test_file(void **state)
{
	(void)state;
	run_with(file_main, 1);
}

/* ---- more operations than the ring holds, all started before any is waited for */

#define MANY 6000

static unsigned many_done;

static void many_one(struct io *io)
{
	assert_null(fiber_self());
	assert_int_equal(io->res, 0);
	many_done++;
}

static void many_main(void *arg)
{
	(void)arg;
	struct io *io = calloc(MANY, sizeof(*io));
	many_done = 0;
	for (unsigned i = 0; i < MANY; i++) {
		io[i].done = many_one;
		struct io_uring_sqe *sqe = io_start(&io[i]);
		io_uring_prep_nop(sqe);
		io_link(sqe, &io[i]);
	}
	uint64_t end = now_ns() + 5 * NSEC_PER_SEC;
	while (many_done < MANY && now_ns() < end)
		fiber_yield();
	assert_int_equal(many_done, MANY);
	assert_int_equal(reactor_self()->io_inflight, 1); /* the mailbox's */
	free(io);
}

static void test_many(void **state)
{
	(void)state;
	run_with(many_main, 1);
}

/* ---- deadline, cancel */

static void cancel_main(void *arg)
{
	(void)arg;
	int fds[2];
	char byte = 0;
	assert_int_equal(pipe(fds), 0);

	struct io io = {0};
	struct io_uring_sqe *sqe = io_start(&io);
	io_uring_prep_read(sqe, fds[0], &byte, 1, 0);
	io_link(sqe, &io);
	uint64_t start = now_ns();
	assert_int_equal(io_wait_until(&io, start + 5 * NSEC_PER_MSEC), -ETIME);
	assert_true(now_ns() - start >= 5 * NSEC_PER_MSEC);
	assert_true(io.pending);
	assert_int_equal(io_wait_until(&io, now_ns() - 1), -ETIME);
	/* It still owns its memory and completes when there is something. */
	assert_int_equal(write(fds[1], "x", 1), 1);
	assert_int_equal(io_wait_until(&io, now_ns() + 5 * NSEC_PER_SEC), 1);
	assert_int_equal(byte, 'x');

	sqe = io_start(&io);
	io_uring_prep_read(sqe, fds[0], &byte, 1, 0);
	io_link(sqe, &io);
	assert_int_equal(io_wait_until(&io, now_ns() + NSEC_PER_MSEC), -ETIME);
	io_cancel(&io);
	assert_int_equal(io_wait(&io), -ECANCELED);
	io_cancel(&io); /* nothing in flight: no effect */

	/* Many at once, cancelled in the order of a seed. */
	struct io many[32] = {0};
	char bytes[32];
	for (int i = 0; i < 32; i++) {
		sqe = io_start(&many[i]);
		io_uring_prep_read(sqe, fds[0], &bytes[i], 1, 0);
		io_link(sqe, &many[i]);
	}
	fiber_sleep(NSEC_PER_MSEC);
	for (int i = 0; i < 32; i++)
		io_cancel(&many[(i * 13) % 32]);
	for (int i = 0; i < 32; i++)
		assert_int_equal(io_wait(&many[i]), -ECANCELED);
	close(fds[0]);
	close(fds[1]);
}

static void test_cancel(void **state)
{
	(void)state;
	run_with(cancel_main, 1);
}

/* ---- sockets, chains, multishot */

static unsigned polls_seen;

static void poll_seen(struct io *io)
{
	if (io->res > 0)
		polls_seen++;
}

static void socket_main(void *arg)
{
	(void)arg;
	int fds[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	char in[8] = {0};

	/* what the ring has no room for is submitted meanwhile */
	struct io nop[1020] = {0};
	for (int i = 0; i < 1020; i++) {
		struct io_uring_sqe *sqe = io_start(&nop[i]);
		io_uring_prep_nop(sqe);
		io_link(sqe, &nop[i]);
	}
	struct io send1 = {0}, send2 = {0}, recv1 = {0};
	struct io_uring_sqe *sqe = io_start(&send1);
	io_uring_prep_send(sqe, fds[0], "abc", 3, 0);
	io_link(sqe, &send1);
	assert_int_equal(io_wait(&send1), 3);
	sqe = io_start(&send2);
	io_uring_prep_send(sqe, fds[0], "de", 2, 0);
	io_link(sqe, &send2);
	assert_int_equal(io_wait(&send2), 2);
	for (int i = 0; i < 1020; i++)
		assert_int_equal(io_wait(&nop[i]), 0);
	sqe = io_start(&recv1);
	io_uring_prep_recv(sqe, fds[1], in, sizeof(in), 0);
	io_link(sqe, &recv1);
	assert_int_equal(io_wait(&recv1), 5);
	assert_string_equal(in, "abcde");

	struct io poll = {.done = poll_seen};
	polls_seen = 0;
	sqe = io_start(&poll);
	io_uring_prep_poll_multishot(sqe, fds[1], POLLIN);
	io_link(sqe, &poll);
	fiber_sleep(NSEC_PER_MSEC);
	for (unsigned i = 0; i < 5; i++) {
		assert_int_equal(write(fds[0], "y", 1), 1);
		fiber_sleep(NSEC_PER_MSEC);
		assert_true(polls_seen >= i + 1);
		assert_true(poll.pending);
		assert_int_equal(read(fds[1], in, 1), 1);
	}
	io_cancel(&poll);
	uint64_t end = now_ns() + NSEC_PER_SEC;
	while (poll.pending && now_ns() < end)
		fiber_sleep(NSEC_PER_MSEC);
	assert_false(poll.pending);
	close(fds[0]);
	close(fds[1]);
}

static void test_socket(void **state)
{
	(void)state;
	struct error err = {0};
	struct core_config config = {.reactors = 1, .arena_bytes = 4 << 20, .stack_bytes = 256 << 10};
	assert_int_equal(core_main(&config, socket_main, NULL, &err), 0);
}

/* ---- rings of older kernels */

static bool want_passthrough;

static void nothing(void *arg)
{
	(void)arg;
	fiber_yield();
}

static void old_main(void *arg)
{
	assert_int_equal(reactor_has_passthrough(), want_passthrough);
	file_main(arg);
	many_main(arg);
	cancel_main(arg);
	reactor_call(reactor_get(1), file_main, NULL);
	/* Messages wake it. */
	for (unsigned i = 0; i < 50; i++) {
		reactor_call(reactor_get(1), nothing, NULL);
		fiber_sleep(i * 10000u);
	}
}

static void test_old_rings(void **state)
{
	(void)state;
	static const struct {
		unsigned without;
		bool passthrough;
	} kernels[] = {
		{IORING_SETUP_DEFER_TASKRUN, true},
		{IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER, true},
		{IORING_SETUP_SQE128, false},
		{IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER, false},
		{IORING_SETUP_SQE128 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN, false},
		{~0u, false},
	};
	for (unsigned i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++) {
		ring_flags_allowed = ~kernels[i].without;
		want_passthrough = kernels[i].passthrough;
		run_with(old_main, 2);
	}
	ring_flags_allowed = ~0u;
}

/* ---- timers against a model */

#define TIMERS 400

static struct timer timers[TIMERS];
static uint64_t armed_for[TIMERS]; /* 0: not armed */
static unsigned fired;
static uint64_t last_fired;

static void timer_fired(struct timer *timer)
{
	unsigned i = (unsigned)(timer - timers);
	assert_int_equal(timer->slot, 0);
	assert_true(armed_for[i] && armed_for[i] == timer->expires);
	assert_true(now_ns() >= timer->expires);
	assert_true(timer->expires >= last_fired);
	last_fired = timer->expires;
	armed_for[i] = 0;
	fired++;
}

static void timers_main(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg;
	fired = 0;
	last_fired = 0;
	memset(armed_for, 0, sizeof(armed_for));
	for (unsigned i = 0; i < TIMERS; i++)
		timer_init(&timers[i], timer_fired);
	uint64_t base = now_ns() + 20 * NSEC_PER_MSEC;
	for (unsigned n = 0; n < 5000; n++) {
		seed = hash_u64(seed + n + 1);
		unsigned i = (unsigned)(seed % TIMERS);
		if (seed >> 32 & 3) {
			armed_for[i] = base + (seed >> 8) % (10 * NSEC_PER_MSEC);
			timer_start(&timers[i], armed_for[i]);
		} else {
			armed_for[i] = 0;
			timer_stop(&timers[i]);
		}
		if (n % 100)
			continue;
		struct reactor *r = reactor_self();
		for (unsigned s = 2; s <= r->heap_count; s++)
			assert_true(r->heap[s / 2]->expires <= r->heap[s]->expires && r->heap[s]->slot == s);
	}
	unsigned armed = 0;
	for (unsigned i = 0; i < TIMERS; i++)
		armed += armed_for[i] != 0;
	assert_true(armed > TIMERS / 4);
	uint64_t end = base + 10 * NSEC_PER_MSEC, now = now_ns();
	fiber_sleep(end > now ? end - now : 0); /* a slow machine is there already */
	fiber_sleep(NSEC_PER_MSEC);
	assert_int_equal(fired, armed);
	for (unsigned i = 0; i < TIMERS; i++)
		assert_int_equal(armed_for[i], 0);
	assert_int_equal(reactor_self()->heap_count, 0);
}

static void test_timers(void **state)
{
	(void)state;
	struct error err = {0};
	struct core_config config = {.reactors = 1, .arena_bytes = 4 << 20};
	for (uintptr_t seed = 1; seed <= 3; seed++) {
		print_message("seed %u\n", (unsigned)seed);
		assert_int_equal(core_main(&config, timers_main, (void *)seed, &err), 0);
	}
}

/* ---- more timers than the heap starts with */

static void heap_main(void *arg)
{
	(void)arg;
	unsigned n = 5000;
	struct timer *many = calloc(n, sizeof(*many));
	for (unsigned i = 0; i < n; i++) {
		timer_init(&many[i], timer_fired);
		timer_start(&many[i], now_ns() + 1000 * NSEC_PER_SEC - (i * 7919ull) % n);
	}
	for (unsigned i = 0; i < n; i++)
		timer_stop(&many[(i * 31) % n]);
	assert_int_equal(reactor_self()->heap_count, 0);
	free(many);
}

static void test_heap(void **state)
{
	(void)state;
	run_with(heap_main, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_file),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_cancel),
		cmocka_unit_test(test_socket),
		cmocka_unit_test(test_old_rings),
		cmocka_unit_test(test_timers),
		cmocka_unit_test(test_heap),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
