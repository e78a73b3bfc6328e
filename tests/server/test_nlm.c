/*
 * NLM 4 and NSM from end to end: a furrowd process, clients of our own that call from several loopback addresses, and
 * behind these addresses what a client's machine has: rpcbind, a lock manager that is called back, a status monitor.
 *
 * The machines need port 111 of their addresses; where that cannot be had, the tests that call back are skipped.
 */
#include "tests/server/furrowd_run.h"

#include <poll.h>
#include <pthread.h>

#include "xdr/nlm4.h"
#include "xdr/sm_inter.h"

#define MACHINES 3u
#define CALLS 2048u
#define RPCBIND 100000u

static struct run run;
static struct client host[MACHINES]; /* of alpha, beta, gamma */
static const char *const names[MACHINES] = {"alpha", "beta", "gamma.example"};
static const char *const addresses[MACHINES] = {"127.0.0.2", "127.0.0.3", "127.0.0.4"};
static struct kept top, file, other;

static const char exports_yaml[] = RUN_EXPORT_YAML
	"  - path: /far\n    filesystem: a0/data\n    allow:\n      - {clients: 192.0.2.0/24, access: rw}\n";

/* ------------------------------------------------------------------------------------------------
 * The clients' machines
 */

struct called {
	unsigned machine;
	uint32_t program, procedure;
	uint8_t args[1024];
	uint32_t bytes;
};
static struct {
	pthread_t thread;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	int listener[2 * MACHINES]; /* rpcbind, programs */
	uint16_t port[MACHINES];
	bool there;
	_Atomic bool stop;
	nlm4_stats granted_answer;
	struct called call[CALLS]; /* not yet looked at */
	unsigned calls;
} machines = {.mutex = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};

static int listen_at(const char *address, uint16_t *port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(*port)};
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	inet_pton(AF_INET, address, &a.sin_addr);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 16) ||
		getsockname(fd, (struct sockaddr *)&a, &len)) {
		close(fd);
		return -1;
	}
	*port = ntohs(a.sin_port);
	return fd;
}

static bool read_all(int fd, void *to, size_t bytes)
{
	for (size_t done = 0; done < bytes;) {
		ssize_t n = recv(fd, (uint8_t *)to + done, bytes - done, 0);
		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	return true;
}

static void note(unsigned machine, uint32_t program, uint32_t procedure, const struct xdr_in *in)
{
	pthread_mutex_lock(&machines.mutex);
	if (machines.calls < CALLS && in->end - in->p <= 1024) {
		struct called *c = &machines.call[machines.calls++];
		c->machine = machine;
		c->program = program;
		c->procedure = procedure;
		c->bytes = (uint32_t)(in->end - in->p);
		memcpy(c->args, in->p, c->bytes);
	}
	pthread_cond_broadcast(&machines.cond);
	pthread_mutex_unlock(&machines.mutex);
}

static void results(struct xdr_out *out, unsigned machine, uint32_t program, uint32_t procedure, struct xdr_in *in)
{
	struct xdr_opaque cookie;

	if (program == RPCBIND) {
		xdr_put_u32(out, machines.port[machine]);
		return;
	}
	note(machine, program, procedure, in);
	if (program == NLM_PROG && procedure == NLMPROC4_GRANTED && xdr_get_opaque(in, 1024, &cookie)) {
		xdr_put_opaque(out, cookie.data, cookie.len);
		xdr_put_u32(out, machines.granted_answer);
	}
}

/* One call of a connection. */
static void answer(int fd, unsigned machine)
{
	uint8_t message[8192], reply[4096];
	uint32_t mark, xid = 0, v[5] = {0}, flavor;
	struct xdr_opaque body;
	struct xdr_in in;
	struct xdr_out out;

	if (!read_all(fd, &mark, 4) || (mark = ntohl(mark) & 0x7fffffff) > sizeof(message) ||
		!read_all(fd, message, mark))
		return;
	xdr_in_init(&in, message, mark, NULL);
	bool ok = xdr_get_u32(&in, &xid);
	for (unsigned i = 0; i < 5; i++)
		ok = ok && xdr_get_u32(&in, &v[i]); /* CALL, 2, program, version, procedure */
	for (unsigned i = 0; i < 2; i++)
		ok = ok && xdr_get_u32(&in, &flavor) && xdr_get_opaque(&in, 400, &body);
	if (!ok)
		return;
	xdr_out_init(&out, reply + 4, sizeof(reply) - 4);
	xdr_put_u32(&out, xid);
	xdr_put_u32(&out, 1);
	for (unsigned i = 0; i < 4; i++)
		xdr_put_u32(&out, 0);
	results(&out, machine, v[2], v[4], &in);
	mark = htonl(0x80000000u | (uint32_t)(out.p - out.base));
	memcpy(reply, &mark, 4);
	(void)!write(fd, reply, (size_t)(out.p - reply));
}

static void *machines_run(void *arg)
{
	struct pollfd p[2 * MACHINES];

	(void)arg;
	for (unsigned i = 0; i < 2 * MACHINES; i++)
		p[i] = (struct pollfd){.fd = machines.listener[i], .events = POLLIN};
	while (!machines.stop) {
		poll(p, 2 * MACHINES, 50);
		for (unsigned i = 0; i < 2 * MACHINES; i++) {
			if (!(p[i].revents & POLLIN))
				continue;
			struct timeval limit = {.tv_sec = 5};
			int fd = accept(p[i].fd, NULL, NULL);
			setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
			answer(fd, i / 2);
			close(fd);
		}
	}
	return NULL;
}

static void machines_start(void)
{
	machines.there = true;
	for (unsigned i = 0; i < MACHINES; i++) {
		uint16_t rpcbind = 111;
		machines.listener[2 * i] = listen_at(addresses[i], &rpcbind);
		machines.listener[2 * i + 1] = listen_at(addresses[i], &machines.port[i]);
		machines.there = machines.there && machines.listener[2 * i] >= 0 && machines.listener[2 * i + 1] >= 0;
	}
	if (machines.there)
		assert_int_equal(pthread_create(&machines.thread, NULL, machines_run, NULL), 0);
}

static void machines_stop(void)
{
	if (machines.there) {
		machines.stop = true;
		pthread_join(machines.thread, NULL);
	}
	for (unsigned i = 0; i < 2 * MACHINES; i++)
		if (machines.listener[i] >= 0)
			close(machines.listener[i]);
}

/* The next call of that kind that came to a machine; whatever else came before it is forgotten. */
static struct called await(unsigned machine, uint32_t program, uint32_t procedure)
{
	struct called found = {0};
	struct timespec until;
	bool have = false;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	pthread_mutex_lock(&machines.mutex);
	while (!have && !rc) {
		unsigned i = 0;
		for (; i < machines.calls && !have; i++) {
			found = machines.call[i];
			have = found.machine == machine && found.program == program && found.procedure == procedure;
		}
		memmove(machines.call, machines.call + i, (machines.calls - i) * sizeof(machines.call[0]));
		machines.calls -= i;
		if (!have)
			rc = pthread_cond_timedwait(&machines.cond, &machines.mutex, &until);
	}
	pthread_mutex_unlock(&machines.mutex);
	if (!have) {
		run_log_show(run.log);
		fail_msg("no call of program %u procedure %u came to %s", program, procedure, names[machine]);
	}
	return found;
}

/* ------------------------------------------------------------------------------------------------
 * Short forms. An owner is a machine and a svid.
 */

static const char cookie_text[] = "cookie";

static nlm4_lock lock_of(unsigned machine, int svid, const struct kept *k, uint64_t off, uint64_t len)
{
	static char oh[MACHINES][10][64];
	char *o = oh[machine][svid];

	snprintf(o, sizeof(oh[0][0]), "%d@%s", svid, names[machine]);
	return (nlm4_lock){.caller_name = text(names[machine]),
		.fh = fh(k).data,
		.oh = text(o),
		.svid = svid,
		.l_offset = off,
		.l_len = len};
}

#define nlm4(c, NAME, argtype, args, restype, res)                                                                     \
	do {                                                                                                           \
		assert_true(xdr_encode_##argtype(client_begin(c, NLM_PROG, NLM_V4, NLMPROC4_##NAME), args));           \
		client_call(c);                                                                                        \
		client_result(c, restype, res);                                                                        \
	} while (0)

static void check_cookie(const netobj *cookie)
{
	assert_int_equal(cookie->len, sizeof(cookie_text));
	assert_memory_equal(cookie->data, cookie_text, sizeof(cookie_text));
}
static const netobj cookie_obj = {(const uint8_t *)cookie_text, sizeof(cookie_text)};

static nlm4_stats take(unsigned m, const nlm4_lock *lock, bool exclusive, bool block, bool reclaim)
{
	nlm4_lockargs args = {cookie_obj, block, exclusive, *lock, reclaim, 5};
	nlm4_res res;

	nlm4(&host[m], LOCK, nlm4_lockargs, &args, nlm4_res, &res);
	check_cookie(&res.cookie);
	return res.stat;
}

static nlm4_stats give(unsigned m, const nlm4_lock *lock)
{
	nlm4_unlockargs args = {cookie_obj, *lock};
	nlm4_res res;

	nlm4(&host[m], UNLOCK, nlm4_unlockargs, &args, nlm4_res, &res);
	check_cookie(&res.cookie);
	return res.stat;
}

static nlm4_stats cancel(unsigned m, const nlm4_lock *lock, bool exclusive)
{
	nlm4_cancargs args = {cookie_obj, true, exclusive, *lock};
	nlm4_res res;

	nlm4(&host[m], CANCEL, nlm4_cancargs, &args, nlm4_res, &res);
	return res.stat;
}

/* Who has it; the svid, or -1: it is free. */
static int holder_of(unsigned m, const nlm4_lock *lock, nlm4_holder *holder)
{
	nlm4_testargs args = {cookie_obj, true, *lock};
	nlm4_testres res;

	nlm4(&host[m], TEST, nlm4_testargs, &args, nlm4_testres, &res);
	check_cookie(&res.cookie);
	if (res.test_stat.stat == NLM4_GRANTED)
		return -1;
	assert_int_equal(res.test_stat.stat, NLM4_DENIED);
	if (holder)
		*holder = res.test_stat.holder;
	return res.test_stat.holder.svid;
}

/* Until the range is free, or SVID's: what comes of a call of the server's takes a moment. */
static void await_holder(unsigned m, const nlm4_lock *lock, int svid)
{
	int now = -2;

	for (int i = 0; i < 2000 && (now = holder_of(m, lock, NULL)) != svid; i++)
		run_pause();
	assert_int_equal(now, svid);
}

static void needs_machines(void)
{
	if (!machines.there)
		skip();
}

static void notify(unsigned m, const char *name, int32_t state)
{
	stat_chge change = {text(name), state};

	assert_true(xdr_encode_stat_chge(client_begin(&host[m], SM_PROG, SM_VERS, SM_NOTIFY), &change));
	client_call(&host[m]);
	assert_int_equal(xdr_in_left(&host[m].in), 0);
}

static struct kept make(const char *name)
{
	CREATE3args args = {.where = {.dir = fh(&top), .name = text(name)}, .how = {.mode = UNCHECKED}};
	CREATE3res res;

	args.how.obj_attributes.mode.set_it = true;
	args.how.obj_attributes.mode.mode = 0644;
	nfs3(&host[0], CREATE, &args, &res);
	assert_int_equal(res.status, NFS3_OK);
	return keep(&res.resok.obj.handle);
}

/* ------------------------------------------------------------------------------------------------
 * Tests
 */

static void locks_and_holders(void **state)
{
	nlm4_holder h;
	nlm4_lock a = lock_of(0, 1, &file, 10, 10), a_all = lock_of(0, 1, &file, 0, 0);

	(void)state;
	assert_int_equal(holder_of(0, &a, NULL), -1);
	assert_int_equal(take(0, &a, true, false, false), NLM4_GRANTED);
	assert_int_equal(take(0, &a, true, false, false), NLM4_GRANTED);
	assert_int_equal(holder_of(0, &a, NULL), -1); /* one's own is no obstacle */
	/* another process of the machine, another machine */
	nlm4_lock b = lock_of(0, 2, &file, 19, 1);
	assert_int_equal(take(0, &b, false, false, false), NLM4_DENIED);
	nlm4_lock c = lock_of(1, 1, &file, 5, 6);
	assert_int_equal(take(1, &c, false, false, false), NLM4_DENIED);
	assert_int_equal(holder_of(1, &c, &h), 1);
	assert_true(h.exclusive && h.l_offset == 10 && h.l_len == 10);
	assert_int_equal(h.oh.len, strlen("1@alpha"));
	assert_memory_equal(h.oh.data, "1@alpha", h.oh.len);
	nlm4_lock beside = lock_of(1, 1, &file, 0, 10), behind = lock_of(1, 1, &file, 20, 0);
	nlm4_lock elsewhere = lock_of(1, 1, &other, 10, 10);
	assert_int_equal(take(1, &beside, true, false, false), NLM4_GRANTED);
	assert_int_equal(take(1, &behind, true, false, false), NLM4_GRANTED);
	assert_int_equal(take(1, &elsewhere, true, false, false), NLM4_GRANTED);
	nlm4_lock far = lock_of(0, 1, &file, UINT64_MAX - 10, 5);
	assert_int_equal(holder_of(0, &far, &h), 1);
	assert_true(h.l_offset == 20 && h.l_len == 0);
	/* a part is given back: what is left holds */
	nlm4_lock middle = lock_of(0, 1, &file, 12, 3), left = lock_of(1, 9, &file, 11, 1),
		  gap = lock_of(1, 9, &file, 12, 3);
	assert_int_equal(give(0, &middle), NLM4_GRANTED);
	assert_int_equal(holder_of(1, &left, NULL), 1);
	assert_int_equal(holder_of(1, &gap, NULL), -1);
	/* shared */
	assert_int_equal(give(0, &a_all), NLM4_GRANTED);
	assert_int_equal(give(0, &a_all), NLM4_GRANTED);
	assert_int_equal(take(0, &a, false, false, false), NLM4_GRANTED);
	assert_int_equal(take(0, &b, false, false, false), NLM4_GRANTED);
	assert_int_equal(take(0, &b, true, false, false), NLM4_DENIED);
	assert_int_equal(take(0, &a, true, false, false), NLM4_DENIED);
	assert_int_equal(give(0, &b), NLM4_GRANTED);
	assert_int_equal(take(0, &a, true, false, false), NLM4_GRANTED);
	notify(0, "alpha", 7);
	notify(1, "beta", 7);
	assert_int_equal(holder_of(2, &a_all, NULL), -1);
}

static void refusals(void **state)
{
	nlm4_lock a = lock_of(0, 1, &file, UINT64_MAX - 3, 10);
	struct kept bad = file, dir = top;
	nlm4_testres tres;
	nlm4_res res;

	(void)state;
	assert_int_equal(take(0, &a, true, false, false), NLM4_FBIG);
	bad.data[8] ^= 1;
	nlm4_lock b = lock_of(0, 1, &bad, 0, 1), d = lock_of(0, 1, &dir, 0, 1), ok = lock_of(0, 1, &file, 0, 1);
	assert_int_equal(take(0, &b, true, false, false), NLM4_STALE_FH);
	assert_int_equal(give(0, &b), NLM4_STALE_FH);
	assert_int_equal(take(0, &d, true, false, false), NLM4_FAILED);
	/* nothing is reclaimed outside of a grace period */
	assert_int_equal(take(0, &ok, true, false, true), NLM4_DENIED_GRACE_PERIOD);
	/* a file that the caller may neither read nor write */
	SETATTR3args set = {.object = fh(&file)};
	SETATTR3res set_res;
	set.new_attributes.mode.set_it = true;
	nfs3(&host[0], SETATTR, &set, &set_res);
	host[0].uid = host[0].gid = 1000;
	assert_int_equal(take(0, &ok, true, false, false), NLM4_FAILED);
	host[0].uid = host[0].gid = 0;
	set.new_attributes.mode.mode = 0644;
	nfs3(&host[0], SETATTR, &set, &set_res);
	/* an owner's name that is too long; arguments that are none; what is no server's business */
	uint8_t long_oh[1024] = {0};
	nlm4_lock l = ok;
	l.oh = (netobj){long_oh, sizeof(long_oh)};
	assert_int_equal(take(0, &l, true, false, false), NLM4_DENIED_NOLOCKS);
	xdr_put_u32(client_begin(&host[0], NLM_PROG, NLM_V4, NLMPROC4_LOCK), 5000);
	assert_true(client_try(&host[0]));
	assert_int_equal(host[0].accept_stat, RPC_GARBAGE_ARGS);
	client_begin(&host[0], NLM_PROG, NLM_V4, 17);
	assert_true(client_try(&host[0]));
	assert_int_equal(host[0].accept_stat, RPC_PROC_UNAVAIL);
	client_begin(&host[0], NLM_PROG, 3, 1);
	assert_true(client_try(&host[0]));
	assert_int_equal(host[0].accept_stat, RPC_PROG_MISMATCH);
	nlm4_testargs granted = {cookie_obj, true, ok};
	nlm4(&host[0], GRANTED, nlm4_testargs, &granted, nlm4_res, &res);
	assert_int_equal(res.stat, NLM4_DENIED);
	assert_int_equal(cancel(0, &ok, true), NLM4_DENIED); /* nothing waits */
	nlm4(&host[0], TEST, nlm4_testargs, &granted, nlm4_testres, &tres);
	assert_int_equal(tres.test_stat.stat, NLM4_GRANTED);
}

/* A waits for B: B's end is told to A, and A has it. */
static void blocked_and_granted(void **state)
{
	nlm4_lock a = lock_of(0, 1, &file, 0, 100);
	nlm4_testargs args;
	uint8_t room[4096];
	struct xdr_pool pool = {room, 0, sizeof(room)};
	struct xdr_in in;

	(void)state;
	needs_machines();
	machines.granted_answer = NLM4_GRANTED;
	assert_int_equal(take(0, &a, true, true, false), NLM4_GRANTED);
	nlm4_lock b = lock_of(1, 2, &file, 50, 0);
	assert_int_equal(take(1, &b, false, true, false), NLM4_BLOCKED);
	assert_int_equal(take(1, &b, false, true, false), NLM4_BLOCKED); /* it asks again after a while */
	assert_int_equal(give(0, &a), NLM4_GRANTED);
	struct called c = await(1, NLM_PROG, NLMPROC4_GRANTED);
	xdr_in_init(&in, c.args, c.bytes, &pool);
	assert_true(xdr_decode_nlm4_testargs(&in, &args) && !xdr_in_left(&in));
	assert_false(args.exclusive);
	assert_true(args.alock.l_offset == 50 && args.alock.l_len == 0 && args.alock.svid == 2);
	assert_int_equal(args.alock.fh.len, file.len);
	assert_memory_equal(args.alock.fh.data, file.data, file.len);
	assert_int_equal(args.alock.oh.len, strlen("2@beta"));
	assert_memory_equal(args.alock.oh.data, "2@beta", args.alock.oh.len);
	assert_int_equal(holder_of(0, &a, NULL), 2);
	assert_int_equal(give(1, &b), NLM4_GRANTED);
	assert_int_equal(holder_of(0, &a, NULL), -1);
}

/* Who does not wait any more says so, and what it was given goes to the next. */
static void granted_and_refused(void **state)
{
	(void)state;
	needs_machines();
	machines.granted_answer = NLM4_DENIED;
	nlm4_lock a = lock_of(0, 1, &file, 0, 100);
	assert_int_equal(take(0, &a, true, true, false), NLM4_GRANTED);
	nlm4_lock b = lock_of(1, 2, &file, 0, 100);
	assert_int_equal(take(1, &b, true, true, false), NLM4_BLOCKED);
	nlm4_lock c = lock_of(2, 3, &file, 0, 100);
	assert_int_equal(take(2, &c, true, true, false), NLM4_BLOCKED);
	assert_int_equal(give(0, &a), NLM4_GRANTED);
	(void)await(1, NLM_PROG, NLMPROC4_GRANTED);
	(void)await(2, NLM_PROG, NLMPROC4_GRANTED);
	await_holder(0, &a, -1);
}

/* Each has what the other waits for: the one who would close the ring is told. */
static void deadlock(void **state)
{
	nlm4_lock a = lock_of(0, 1, &file, 0, 10), a_next = lock_of(0, 1, &other, 0, 0);
	nlm4_lock b = lock_of(1, 2, &other, 5, 1), b_next = lock_of(1, 2, &file, 9, 10);

	(void)state;
	assert_int_equal(take(0, &a, true, true, false), NLM4_GRANTED);
	assert_int_equal(take(1, &b, true, true, false), NLM4_GRANTED);
	assert_int_equal(take(0, &a_next, false, true, false), NLM4_BLOCKED);
	assert_int_equal(take(1, &b_next, false, true, false), NLM4_DEADLCK);
	assert_int_equal(take(1, &b_next, false, false, false), NLM4_DENIED);
	nlm4_lock process = lock_of(1, 3, &file, 9, 10); /* another process of that machine is in nobody's way */
	assert_int_equal(take(1, &process, false, true, false), NLM4_BLOCKED);
	assert_int_equal(cancel(1, &process, false), NLM4_GRANTED);
	assert_int_equal(cancel(0, &a_next, false), NLM4_GRANTED);
	assert_int_equal(take(1, &b_next, false, true, false), NLM4_BLOCKED);
	assert_int_equal(cancel(1, &b_next, false), NLM4_GRANTED);
	assert_int_equal(give(0, &a), NLM4_GRANTED);
	assert_int_equal(give(1, &b), NLM4_GRANTED);
}

static void cancelled(void **state)
{
	(void)state;
	nlm4_lock a = lock_of(0, 1, &file, 0, 0);
	assert_int_equal(take(0, &a, true, false, false), NLM4_GRANTED);
	nlm4_lock b = lock_of(1, 2, &file, 0, 10);
	assert_int_equal(take(1, &b, true, true, false), NLM4_BLOCKED);
	assert_int_equal(cancel(1, &b, false), NLM4_DENIED); /* not what it asked for */
	assert_int_equal(cancel(1, &b, true), NLM4_GRANTED);
	assert_int_equal(cancel(1, &b, true), NLM4_DENIED);
	assert_int_equal(give(0, &a), NLM4_GRANTED);
	assert_int_equal(holder_of(0, &a, NULL), -1);
}

/* The answers of _MSG calls come as calls. */
static void messages(void **state)
{
	nlm4_lock a = lock_of(0, 1, &file, 0, 10);
	nlm4_lockargs args = {cookie_obj, false, true, a, false, 0};
	nlm4_unlockargs unlock = {cookie_obj, a};
	struct called c;
	struct xdr_in in;
	nlm4_res res;
	nlm4_testres tres;

	(void)state;
	needs_machines();
	assert_true(xdr_encode_nlm4_lockargs(client_begin(&host[0], NLM_PROG, NLM_V4, NLMPROC4_LOCK_MSG), &args));
	client_call(&host[0]);
	assert_int_equal(xdr_in_left(&host[0].in), 0);
	c = await(0, NLM_PROG, NLMPROC4_LOCK_RES);
	xdr_in_init(&in, c.args, c.bytes, NULL);
	assert_true(xdr_decode_nlm4_res(&in, &res) && !xdr_in_left(&in));
	check_cookie(&res.cookie);
	assert_int_equal(res.stat, NLM4_GRANTED);
	nlm4_lock b = lock_of(1, 2, &file, 5, 1);
	nlm4_testargs test = {cookie_obj, true, b};
	assert_true(xdr_encode_nlm4_testargs(client_begin(&host[1], NLM_PROG, NLM_V4, NLMPROC4_TEST_MSG), &test));
	client_call(&host[1]);
	c = await(1, NLM_PROG, NLMPROC4_TEST_RES);
	xdr_in_init(&in, c.args, c.bytes, NULL);
	assert_true(xdr_decode_nlm4_testres(&in, &tres) && !xdr_in_left(&in));
	assert_int_equal(tres.test_stat.stat, NLM4_DENIED);
	assert_int_equal(tres.test_stat.holder.svid, 1);
	assert_true(xdr_encode_nlm4_unlockargs(client_begin(&host[0], NLM_PROG, NLM_V4, NLMPROC4_UNLOCK_MSG), &unlock));
	client_call(&host[0]);
	(void)await(0, NLM_PROG, NLMPROC4_UNLOCK_RES);
	await_holder(1, &b, -1);
}

static nlm4_stats share(unsigned m, bool undo, fsh4_mode mode, fsh4_access access)
{
	nlm4_shareargs args = {cookie_obj,
		{.caller_name = text(names[m]),
			.fh = fh(&file).data,
			.oh = text("share"),
			.mode = mode,
			.access = access},
		false};
	nlm4_shareres res;

	if (undo)
		nlm4(&host[m], UNSHARE, nlm4_shareargs, &args, nlm4_shareres, &res);
	else
		nlm4(&host[m], SHARE, nlm4_shareargs, &args, nlm4_shareres, &res);
	check_cookie(&res.cookie);
	return res.stat;
}

static void shares(void **state)
{
	(void)state;
	assert_int_equal(share(0, false, fsm_DW, fsa_R), NLM4_GRANTED);
	assert_int_equal(share(1, false, fsm_DN, fsa_RW), NLM4_DENIED);
	assert_int_equal(share(1, false, fsm_DR, fsa_R), NLM4_DENIED);
	assert_int_equal(share(1, false, fsm_DW, fsa_R), NLM4_GRANTED);
	assert_int_equal(share(0, true, fsm_DW, fsa_R), NLM4_GRANTED);
	assert_int_equal(share(1, false, fsm_DRW, fsa_RW), NLM4_GRANTED); /* changed */
	assert_int_equal(share(0, false, fsm_DN, fsa_R), NLM4_DENIED);
	notify(1, "beta", 9);
	assert_int_equal(share(0, false, fsm_DN, fsa_R), NLM4_GRANTED);
	assert_int_equal(share(0, true, fsm_DN, fsa_R), NLM4_GRANTED);
}

static void clients_that_restart(void **state)
{
	nlm4_res res;

	(void)state;
	nlm4_lock c = lock_of(2, 3, &file, 0, 10);
	assert_int_equal(take(2, &c, true, false, false), NLM4_GRANTED);
	notify(0, "gamma.example", 21); /* anybody could say so: it counts from its own address only */
	assert_int_equal(holder_of(0, &c, NULL), 3);
	notify(2, "gamma", 21); /* names itself shorter than before */
	assert_int_equal(holder_of(0, &c, NULL), -1);
	assert_int_equal(take(2, &c, true, false, false), NLM4_GRANTED);
	notify(2, "gamma", 5); /* the state that its locks are from: an old message */
	assert_int_equal(holder_of(0, &c, NULL), 3);
	/* without a monitor: by name */
	nlm4_lock n = lock_of(0, 4, &other, 0, 1);
	nlm4_lockargs args = {cookie_obj, false, true, n, false, 0};
	nlm4(&host[0], NM_LOCK, nlm4_lockargs, &args, nlm4_res, &res);
	assert_int_equal(res.stat, NLM4_GRANTED);
	nlm4_notify free_all = {text("alpha"), 0};
	assert_true(xdr_encode_nlm4_notify(client_begin(&host[1], NLM_PROG, NLM_V4, NLMPROC4_FREE_ALL), &free_all));
	client_call(&host[1]);
	assert_int_equal(holder_of(1, &n, NULL), 4); /* beta is not alpha */
	assert_true(xdr_encode_nlm4_notify(client_begin(&host[0], NLM_PROG, NLM_V4, NLMPROC4_FREE_ALL), &free_all));
	client_call(&host[0]);
	assert_int_equal(holder_of(1, &n, NULL), -1);
	notify(2, "gamma", 23);
}

/* What `furrow ARGUMENTS` prints. */
static void furrow(const char *arguments, char *text, size_t room)
{
	FILE *out = run_tool_open(&run, arguments);
	size_t n = fread(text, 1, room - 1, out);
	text[n] = 0;
	assert_int_equal(pclose(out), 0);
}

/* The administrator sees who has what, and may end it. */
static void seen_and_expelled(void **state)
{
	nlm4_lock a = lock_of(0, 1, &file, 3, 4), b = lock_of(1, 2, &file, 0, 0);
	char text[8192], client[32], command[80];

	(void)state;
	assert_int_equal(take(0, &a, true, false, false), NLM4_GRANTED);
	assert_int_equal(take(1, &b, false, true, false), NLM4_BLOCKED);
	assert_int_equal(share(1, false, fsm_DW, fsa_R), NLM4_GRANTED);
	furrow("state list", text, sizeof(text));
	const char *lock = strstr(text, "\nlock ");
	assert_non_null(lock);
	assert_non_null(strstr(lock, "write, bytes 3 to 6, by alpha 127.0.0.2"));
	assert_non_null(strstr(text, "read, from byte 0 on, by beta 127.0.0.3"));
	assert_non_null(strstr(text, "read, denies write, by beta 127.0.0.3"));
	assert_int_equal(sscanf(lock, " lock %31s", client), 1);
	snprintf(command, sizeof(command), "state expel %s --yes", client);
	furrow(command, text, sizeof(text));
	assert_int_equal(share(1, true, fsm_DW, fsa_R), NLM4_GRANTED);
	(void)cancel(1, &b, false);
	assert_int_equal(give(1, &b), NLM4_GRANTED);
	assert_int_equal(holder_of(2, &a, NULL), -1);
	furrow("state list", text, sizeof(text));
	assert_non_null(strstr(text, "no locks"));
}

/* Arguments that are cut short, damaged or made up: an answer each, and nothing that anybody else would notice. */
static void hostile(void **state)
{
	nlm4_lock lock = lock_of(2, 3, &other, 0, 10);
	nlm4_lockargs args = {cookie_obj, true, false, lock, false, 0};
	nlm4_lock mine = lock_of(0, 1, &file, 0, 10);
	unsigned seed = 20261130;
	uint8_t good[4096];
	struct xdr_out out;

	(void)state;
	xdr_out_init(&out, good, sizeof(good));
	assert_true(xdr_encode_nlm4_lockargs(&out, &args));
	uint32_t bytes = (uint32_t)(out.p - out.base);
	assert_int_equal(take(0, &mine, true, false, false), NLM4_GRANTED);
	for (unsigned i = 0; i < 4000; i++) {
		uint8_t bad[4096];
		uint32_t len = i % 3 ? bytes : (uint32_t)rand_r(&seed) % (bytes + 1);
		bool nsm = i % 16 == 15;
		memcpy(bad, good, bytes);
		for (int n = rand_r(&seed) % 4; n > 0; n--)
			bad[(unsigned)rand_r(&seed) % bytes] = (uint8_t)rand_r(&seed);
		struct xdr_out *o = nsm ? client_begin(&host[2], SM_PROG, SM_VERS, (uint32_t)rand_r(&seed) % 8)
					: client_begin(&host[2], NLM_PROG, NLM_V4, (uint32_t)rand_r(&seed) % 25);
		xdr_put_fixed(o, bad, len & ~3u);
		assert_true(client_try(&host[2]));
		assert_true(host[2].accept_stat == RPC_SUCCESS || host[2].accept_stat == RPC_GARBAGE_ARGS ||
			    host[2].accept_stat == RPC_PROC_UNAVAIL);
	}
	assert_int_equal(holder_of(1, &mine, NULL), 1);
	assert_int_equal(give(0, &mine), NLM4_GRANTED);
	char text[65536];
	furrow("state list", text, sizeof(text));
	/* whatever names it gave: all are of its address */
	assert_null(strstr(text, "127.0.0.2"));
	notify(2, "gamma", 1000);
}

static int32_t awaited_state(unsigned machine)
{
	struct called c = await(machine, SM_PROG, SM_NOTIFY);
	struct xdr_in in;
	stat_chge change;

	xdr_in_init(&in, c.args, c.bytes, NULL);
	assert_true(xdr_decode_stat_chge(&in, &change) && !xdr_in_left(&in));
	assert_true(change.mon_name.len > 0);
	return change.state;
}

static void reconnect(void)
{
	for (unsigned i = 0; i < MACHINES; i++)
		assert_true(client_connect(&host[i]));
}

/* A restart that was planned, with no locks held: nobody waits for anybody. */
static void planned_restart(void **state)
{
	nlm4_lock a = lock_of(0, 1, &file, 0, 10);

	(void)state;
	assert_int_equal(take(0, &a, true, false, false), NLM4_GRANTED);
	assert_int_equal(give(0, &a), NLM4_GRANTED);
	run_stop(&run, SIGTERM);
	run_start(&run);
	reconnect();
	assert_int_equal(take(0, &a, true, false, false), NLM4_GRANTED);
	assert_int_equal(give(0, &a), NLM4_GRANTED);
}

/* A file that is removed while somebody has it locked: no new locks, and what is held can be given back. */
static void removed_while_locked(void **state)
{
	struct kept gone = make("gone");
	nlm4_lock a = lock_of(0, 1, &gone, 0, 10), b = lock_of(1, 2, &gone, 5, 1);
	REMOVE3args args = {.object = {.dir = fh(&top), .name = text("gone")}};
	REMOVE3res res;
	char text[8192];

	(void)state;
	assert_int_equal(take(0, &a, true, false, false), NLM4_GRANTED);
	nfs3(&host[1], REMOVE, &args, &res);
	assert_int_equal(res.status, NFS3_OK);
	struct kept again = make("gone"); /* another file, of which nobody has locked anything */
	nlm4_lock c = lock_of(1, 2, &again, 0, 0);
	assert_int_equal(take(1, &c, true, false, false), NLM4_GRANTED);
	assert_int_equal(give(1, &c), NLM4_GRANTED);
	assert_int_equal(take(1, &b, true, false, false), NLM4_STALE_FH);
	assert_int_equal(give(0, &a), NLM4_GRANTED);
	furrow("state list", text, sizeof(text));
	assert_non_null(strstr(text, "no locks"));
}

/* Who had locks before the server was killed restarted too: there is nothing to wait for. */
static void grace_ends_early(void **state)
{
	nlm4_lock a = lock_of(0, 1, &file, 0, 10), b = lock_of(1, 2, &file, 5, 1);

	(void)state;
	assert_int_equal(take(0, &a, true, false, false), NLM4_GRANTED);
	run_stop(&run, SIGKILL);
	run_start(&run);
	reconnect();
	assert_int_equal(take(1, &b, true, false, false), NLM4_DENIED_GRACE_PERIOD);
	notify(0, "alpha", 31);
	assert_int_equal(take(0, &a, true, false, true), NLM4_DENIED_GRACE_PERIOD); /* it is over */
	assert_int_equal(take(1, &b, true, false, false), NLM4_GRANTED);
	assert_int_equal(give(1, &b), NLM4_GRANTED);
}

/* Killed: who had locks is called back and reclaims; nobody takes them meanwhile. */
static void restarts(void **state)
{
	int32_t before = 0, now;

	(void)state;
	needs_machines();
	nlm4_lock a = lock_of(0, 1, &file, 0, 10);
	assert_int_equal(take(0, &a, true, false, false), NLM4_GRANTED);
	for (unsigned i = 0; i < 2; i++) {
		run_stop(&run, i ? SIGTERM : SIGKILL);
		run_start(&run);
		reconnect();
		now = awaited_state(0);
		assert_true(now % 2 && now > before);
		before = now;
		nlm4_lock b = lock_of(1, 2, &file, 5, 1), c = lock_of(2, 3, &other, 0, 1);
		assert_int_equal(take(1, &b, true, false, false), NLM4_DENIED_GRACE_PERIOD);
		assert_int_equal(take(2, &c, true, false, false), NLM4_DENIED_GRACE_PERIOD);
		assert_int_equal(take(0, &a, true, false, true), NLM4_GRANTED);
		assert_int_equal(take(1, &b, true, false, true), NLM4_DENIED);
		assert_int_equal(give(0, &a), NLM4_GRANTED);
		assert_int_equal(take(0, &a, true, false, true), NLM4_GRANTED);
	}
}

/* ------------------------------------------------------------------------------------------------ */

static int setup(void **state)
{
	mountstat3 status;

	(void)state;
	machines_start();
	run_init(&run, exports_yaml);
	run_start(&run);
	for (unsigned i = 0; i < MACHINES; i++) {
		client_init(&host[i], run.port, 0);
		host[i].from = addresses[i];
		host[i].xid += i << 20;
	}
	reconnect();
	top = client_mount(&host[0], "/data", &status);
	assert_int_equal(status, MNT3_OK);
	file = make("file");
	other = make("other");
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (unsigned i = 0; i < MACHINES; i++)
		client_fini(&host[i]);
	if (run.pid > 0)
		run_stop(&run, SIGTERM);
	run_fini(&run);
	machines_stop();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(locks_and_holders),
		cmocka_unit_test(refusals),
		cmocka_unit_test(blocked_and_granted),
		cmocka_unit_test(granted_and_refused),
		cmocka_unit_test(deadlock),
		cmocka_unit_test(cancelled),
		cmocka_unit_test(messages),
		cmocka_unit_test(shares),
		cmocka_unit_test(clients_that_restart),
		cmocka_unit_test(seen_and_expelled),
		cmocka_unit_test(planned_restart),
		cmocka_unit_test(grace_ends_early),
		cmocka_unit_test(removed_while_locked),
		cmocka_unit_test(hostile),
		cmocka_unit_test(restarts),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
