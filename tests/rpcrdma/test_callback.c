/*
 * Calls in reverse over TCP: the server calls clients on their own connections, while they call it, answer wrongly,
 * late, twice or never, and close. Threads of the test stand for sessions; the test itself is the client.
 */
#include "rpcrdma/rpcrdma.h"

#define PROGRAM 0x20000099u
#define BACK 0x40000000u
#define AT_ONCE 16u /* RPC_CALLBACKS_MAX */

enum { P_NULL, P_LINK, P_ECHO, P_HOLD, P_PROCS };

static struct rpc_link *_Atomic the_link, *_Atomic closed_link;
static _Atomic uint32_t closes;

static int run_null(struct rpc_request *req)
{
	(void)req;
	return RPC_SUCCESS;
}

static int run_link(struct rpc_request *req)
{
	struct rpc_link *link = rpc_link_get(req);
	bool good = xdr_put_u64(&req->out, rpc_link_id(link));
	rpc_link_put(atomic_exchange(&the_link, link));
	return good ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static int run_echo(struct rpc_request *req)
{
	struct xdr_opaque o;
	if (!xdr_get_opaque(&req->in, 3000, &o))
		return RPC_GARBAGE_ARGS;
	return xdr_put_opaque(&req->out, o.data, o.len) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static _Atomic bool let_go;

static int run_hold(struct rpc_request *req)
{
	(void)req;
	while (!atomic_load(&let_go))
		fiber_sleep(NSEC_PER_MSEC);
	return RPC_SUCCESS;
}

static const struct rpc_procedure procedures[P_PROCS] = {
	[P_NULL] = {.name = "NULL", .run = run_null},
	[P_LINK] = {.name = "LINK", .run = run_link, .reply_max = 8},
	[P_ECHO] = {.name = "ECHO", .run = run_echo, .reply_max = 3100},
	[P_HOLD] = {.name = "HOLD", .run = run_hold},
};
static const struct rpc_program version4 = {
	.program = PROGRAM, .version = 4, .name = "test", .procedure = procedures, .procedures = P_PROCS};
static const struct rpc_program *const programs[] = {&version4};

#include "tests/rpcrdma/tcp_fixture.h"

static void on_closed(struct rpc_link *link)
{
	assert(reactor_self());
	assert(rpc_link_closed(link));
	atomic_store(&closed_link, link);
	atomic_fetch_add(&closes, 1);
}

static int begin(void **state)
{
	(void)state;
	atomic_store(&closes, 0);
	return start_with((struct rpc_server_config){.connection_closed = on_closed});
}

static int end(void **state)
{
	rpc_link_put(atomic_exchange(&the_link, NULL));
	return stop(state);
}

/* A connection whose link is the_link. */
static int linked_client(void)
{
	int fd = client();
	uint32_t len;
	send_words(fd, 1, P_LINK, 0, 0, 0);
	uint8_t *p = get_success(fd, 1, &len);
	assert_int_equal(len, 32);
	assert_int_equal((uint64_t)word(p, 6) << 32 | word(p, 7), rpc_link_id(the_link));
	free(p);
	return fd;
}

/* ------------------------------------------------------------------------------------------------
 * Sessions: each calls once
 */

struct session {
	pthread_t thread;
	int reactor; /* -1: the thread itself calls */
	struct rpc_link *link;
	struct rpc_callback call;
	uint32_t args[1100], results[1100], room, bytes;
	int rc;
	_Atomic bool over;
};

static void session_call(void *arg)
{
	struct session *s = arg;
	s->rc = rpc_callback(s->link, &s->call, s->results, s->room, &s->bytes);
	atomic_store(&s->over, true);
}

static void *session_run(void *arg)
{
	struct session *s = arg;
	if (s->reactor < 0)
		session_call(s);
	else
		reactor_call(reactor_get((unsigned)s->reactor), session_call, s);
	return NULL;
}

static void session_init(struct session *s, uint32_t arg, unsigned words)
{
	memset(s, 0, sizeof(*s));
	s->reactor = -1;
	s->link = rpc_link_ref(the_link);
	for (unsigned i = 0; i < words; i++)
		s->args[i] = htonl(arg + i);
	s->call = (struct rpc_callback){.program = BACK,
		.version = 1,
		.procedure = 1,
		.args = s->args,
		.args_bytes = words * 4,
		.deadline = now_ns() + 8 * NSEC_PER_SEC};
	s->room = RPC_CALLBACK_MAX;
}

static void session_start(struct session *s)
{
	pthread_create(&s->thread, NULL, session_run, s);
}

static int session_end(struct session *s)
{
	pthread_join(s->thread, NULL);
	rpc_link_put(s->link);
	return s->rc;
}

static struct session *session(uint32_t arg, unsigned words)
{
	struct session *s = malloc(sizeof(*s));
	session_init(s, arg, words);
	session_start(s);
	return s;
}

static void session_is(struct session *s, int rc)
{
	assert_int_equal(session_end(s), rc);
	free(s);
}

/* ------------------------------------------------------------------------------------------------
 * The client's side
 */

static uint8_t *get_call(int fd, uint32_t *len)
{
	uint8_t *p = get_record(fd, len);
	assert_non_null(p);
	assert_int_equal(word(p, 1), 0);
	assert_int_equal(word(p, 2), 2);
	assert_int_equal(word(p, 3), BACK);
	assert_int_equal(word(p, 4), 1);
	assert_int_equal(word(p, 5), 1);
	return p;
}

static void answer(int fd, uint32_t xid, uint32_t stat, const uint8_t *results, uint32_t bytes)
{
	struct message m = {.bytes = malloc(bytes + 100)};
	xdr_out_init(&m.out, m.bytes + 4, bytes + 96);
	xdr_put_u32(&m.out, xid);
	xdr_put_u32(&m.out, 1);
	for (int i = 0; i < 3; i++)
		xdr_put_u32(&m.out, 0);
	xdr_put_u32(&m.out, stat);
	xdr_put_fixed(&m.out, results, bytes);
	message_send(fd, &m);
}

/* What stands behind the header of a call with AUTH_NONE, sent back. */
static void answer_echo(int fd, const uint8_t *p, uint32_t len)
{
	answer(fd, word(p, 0), 0, p + 40, len - 40);
}

static void alive(int fd)
{
	uint32_t len;
	send_words(fd, 4711, P_NULL, 0, 0, 0);
	free(get_success(fd, 4711, &len));
}

/* ------------------------------------------------------------------------------------------------
 * Tests
 */

static void test_answered(void **state)
{
	(void)state;
	int fd = linked_client();
	for (int reactor = -1; reactor < 2; reactor++)
		for (unsigned words = 0; words <= 1024; words = words * 3 + 1) {
			struct session *s = malloc(sizeof(*s));
			uint32_t len;
			session_init(s, 77, words);
			s->reactor = reactor;
			session_start(s);
			uint8_t *p = get_call(fd, &len);
			assert_int_equal(len, 40 + words * 4);
			for (int i = 6; i < 10; i++)
				assert_int_equal(word(p, (unsigned)i), 0);
			answer_echo(fd, p, len);
			free(p);
			assert_int_equal(session_end(s), 0);
			assert_int_equal(s->bytes, words * 4);
			assert_memory_equal(s->results, s->args, words * 4);
			free(s);
		}
	alive(fd);
	close(fd);
}

static void test_authsys(void **state)
{
	static const uint32_t want[] = {1, 36, 0, 4, 0, 1000, 100, 3, 5, 6, 7, 0, 0};
	(void)state;
	int fd = linked_client();
	struct session *s = malloc(sizeof(*s));
	uint32_t len;
	session_init(s, 9, 1);
	s->call.cred = (struct rpc_cred){
		.flavor = RPC_AUTH_SYS, .uid = 1000, .gid = 100, .group_count = 3, .groups = {5, 6, 7}};
	s->call.machine = "host";
	session_start(s);
	uint8_t *p = get_call(fd, &len);
	assert_int_equal(len, 4 * (6 + 13 + 1));
	for (unsigned i = 0; i < 13; i++)
		if (i == 4)
			assert_memory_equal(p + 40, "host", 4);
		else
			assert_int_equal(word(p, 6 + i), want[i]);
	assert_int_equal(word(p, 19), 9);
	answer(fd, word(p, 0), 0, NULL, 0);
	free(p);
	session_is(s, 0);
	close(fd);
}

/* Many calls both ways on one connection, answered in any order. */
static void test_mixed(void **state)
{
	enum { ROUNDS = 8, BACKS = 24, FORTHS = 20 };
	(void)state;
	int fd = linked_client();
	for (unsigned round = 0; round < ROUNDS; round++) {
		struct session *s[BACKS];
		uint8_t *held = NULL;
		uint32_t len, held_len = 0;
		unsigned backs = 0, forths = 0;
		for (unsigned i = 0; i < BACKS; i++)
			s[i] = session(1000 * i, 1 + i * 40);
		for (unsigned i = 0; i < FORTHS; i++) {
			struct message m;
			message_begin(&m, 4000, 500 + i, 4, P_ECHO);
			xdr_put_opaque(&m.out, s[i]->args, 4 * i);
			message_send(fd, &m);
		}
		while (backs < BACKS || forths < FORTHS) {
			uint8_t *p = get_record(fd, &len);
			assert_non_null(p);
			if (word(p, 1) == 1) {
				assert_in_range(word(p, 0), 500, 500 + FORTHS - 1);
				assert_int_equal(len, 28 + 4 * (word(p, 0) - 500));
				free(p);
				forths++;
				continue;
			}
			backs++;
			if (!held && backs < BACKS) { /* two of them change places */
				held = p;
				held_len = len;
				continue;
			}
			answer_echo(fd, p, len);
			free(p);
			if (held)
				answer_echo(fd, held, held_len);
			free(held);
			held = NULL;
		}
		for (unsigned i = 0; i < BACKS; i++) {
			assert_int_equal(session_end(s[i]), 0);
			assert_int_equal(s[i]->bytes, s[i]->call.args_bytes);
			assert_memory_equal(s[i]->results, s[i]->args, s[i]->bytes);
			free(s[i]);
		}
	}
	alive(fd);
	close(fd);
}

/*
 * Calls of the client that take long, more than it may have at a time; behind them in the stream stands its answer to a
 * call of ours, which they might be waiting for.
 */
static void test_answer_behind_calls(void **state)
{
	enum { HELD = 160 };
	(void)state;
	int fd = linked_client();
	uint32_t len;
	atomic_store(&let_go, false);
	for (unsigned i = 0; i < HELD; i++)
		send_words(fd, 100 + i, P_HOLD, 0, 0, 0);
	struct session *s = session(5, 2);
	uint8_t *p = get_call(fd, &len);
	answer_echo(fd, p, len);
	free(p);
	session_is(s, 0);
	atomic_store(&let_go, true);
	for (unsigned i = 0; i < HELD; i++)
		free(get_record(fd, &len));
	alive(fd);
	close(fd);
}

static void test_errors(void **state)
{
	static const struct {
		uint32_t words, word[8];
		int rc;
	} all[] = {
		{4, {1, 1, 1, 1}, -EACCES},		 /* AUTH_ERROR */
		{6, {1, 1, 0, 2, 2, 2}, -EACCES},	 /* RPC_MISMATCH */
		{5, {1, 0, 0, 0, 1}, -EOPNOTSUPP},	 /* PROG_UNAVAIL */
		{7, {1, 0, 0, 0, 2, 3, 3}, -EOPNOTSUPP}, /* PROG_MISMATCH */
		{5, {1, 0, 0, 0, 3}, -EOPNOTSUPP},	 /* PROC_UNAVAIL */
		{5, {1, 0, 0, 0, 4}, -EPROTO},		 /* GARBAGE_ARGS */
		{5, {1, 0, 0, 0, 5}, -EPROTO},		 /* SYSTEM_ERR */
		{5, {1, 0, 0, 0, 6}, -EPROTO},		 /* what does not exist */
		{5, {1, 2, 0, 0, 0}, -EPROTO},
		{4, {1, 0, 0, 500}, -EPROTO}, /* a verifier that is too long */
		{4, {1, 0, 0, 0}, -EPROTO},   /* too short */
		{1, {1}, -EPROTO},
	};
	(void)state;
	int fd = linked_client();
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct session *s = session(1, 2);
		struct message m = {.bytes = malloc(100)};
		uint32_t len;
		uint8_t *p = get_call(fd, &len);
		xdr_out_init(&m.out, m.bytes + 4, 96);
		xdr_put_u32(&m.out, word(p, 0));
		for (unsigned k = 0; k < all[i].words; k++)
			xdr_put_u32(&m.out, all[i].word[k]);
		message_send(fd, &m);
		free(p);
		session_is(s, all[i].rc);
	}
	alive(fd);
	close(fd);
}

static void test_sizes(void **state)
{
	static const uint8_t zeros[8000];
	(void)state;
	int fd = linked_client();
	uint32_t len, word1 = 0, bytes;
	struct rpc_callback call = {.args = zeros, .args_bytes = RPC_CALLBACK_MAX + 4, .deadline = NEVER};
	assert_int_equal(rpc_callback(the_link, &call, &word1, 4, &bytes), -EMSGSIZE);
	call.args_bytes = 3;
	assert_int_equal(rpc_callback(the_link, &call, &word1, 4, &bytes), -EINVAL);
	for (unsigned words = 1; words < 2000; words += 1900) {
		struct session *s = malloc(sizeof(*s));
		session_init(s, 1, 1);
		s->room = words * 4 - 4 < RPC_CALLBACK_MAX ? words * 4 - 4 : RPC_CALLBACK_MAX;
		session_start(s);
		uint8_t *p = get_call(fd, &len);
		answer(fd, word(p, 0), 0, zeros, words * 4);
		free(p);
		session_is(s, -EMSGSIZE);
	}
	alive(fd);
	close(fd);
}

/* The answer in fragments of one byte, and in one piece with a call behind it. */
static void test_fragments(void **state)
{
	(void)state;
	int fd = linked_client();
	uint32_t len;
	struct session *s = session(5, 300);
	uint8_t *p = get_call(fd, &len), *bytes = malloc(5 * len);
	uint32_t words[6] = {htonl(word(p, 0)), htonl(1)};
	memcpy(p + 16, words, sizeof(words)); /* as long as the header before it */
	for (uint32_t i = 0; i < len - 16; i++) {
		uint32_t mark = htonl(1 | (i == len - 17 ? 0x80000000u : 0));
		memcpy(bytes + 5 * i, &mark, 4);
		bytes[5 * i + 4] = p[16 + i];
	}
	put_all(fd, bytes, 5 * (len - 16));
	alive(fd);
	assert_int_equal(session_end(s), 0);
	assert_memory_equal(s->results, s->args, 1200);
	free(s);
	free(p);
	free(bytes);
	close(fd);
}

/* Some are on their way, the others wait in line; what never goes out is never seen by the client. */
static void test_bound(void **state)
{
	enum { CALLS = AT_ONCE + 5 };
	(void)state;
	int fd = linked_client();
	struct session *s[CALLS];
	uint8_t *p[CALLS];
	uint32_t len[CALLS];
	for (unsigned i = 0; i < CALLS; i++)
		s[i] = session(i, 1);
	for (unsigned i = 0; i < AT_ONCE; i++)
		p[i] = get_call(fd, &len[i]);
	alive(fd);
	assert_true(silent(fd, 50));
	answer_echo(fd, p[0], len[0]);
	p[AT_ONCE] = get_call(fd, &len[AT_ONCE]);
	assert_true(silent(fd, 50));
	close(fd);
	int done = 0, lost = 0;
	for (unsigned i = 0; i < CALLS; i++) {
		int rc = session_end(s[i]);
		done += rc == 0;
		lost += rc == -ENOTCONN;
		free(s[i]);
		if (i <= AT_ONCE)
			free(p[i]);
	}
	assert_int_equal(done, 1);
	assert_int_equal(lost, CALLS - 1);
	assert_int_equal(closes, 1);
}

/* No answer until the deadline. It holds its place until an answer comes, which then is no mistake. */
static void test_deadline(void **state)
{
	(void)state;
	int fd = linked_client();
	uint32_t len, xid[AT_ONCE];
	for (unsigned i = 0; i < AT_ONCE; i++) {
		struct session *s = malloc(sizeof(*s));
		session_init(s, 1, 1);
		s->call.deadline = now_ns() + 5 * NSEC_PER_MSEC;
		session_start(s);
		session_is(s, -ETIMEDOUT);
		uint8_t *p = get_call(fd, &len);
		xid[i] = word(p, 0);
		free(p);
	}
	struct session *s = malloc(sizeof(*s)); /* is not sent */
	session_init(s, 1, 1);
	s->call.deadline = now_ns() + 30 * NSEC_PER_MSEC;
	session_start(s);
	session_is(s, -ETIMEDOUT);
	alive(fd);
	assert_true(silent(fd, 20));
	s = session(1, 1);
	answer(fd, xid[3], 0, NULL, 0);
	uint8_t *p = get_call(fd, &len);
	answer_echo(fd, p, len);
	free(p);
	session_is(s, 0);
	for (unsigned i = 0; i < AT_ONCE; i++)
		if (i != 3)
			answer(fd, xid[i], 0, NULL, 0);
	alive(fd);
	answer(fd, xid[3], 0, NULL, 0); /* one too many */
	assert_true(closed(fd));
	close(fd);
}

static void test_twice(void **state)
{
	(void)state;
	int fd = linked_client();
	uint32_t len;
	struct session *s = session(1, 1);
	uint8_t *p = get_call(fd, &len);
	answer_echo(fd, p, len);
	session_is(s, 0);
	answer_echo(fd, p, len);
	free(p);
	assert_true(closed(fd));
	close(fd);
	null_works();
}

static void test_wrong_xid(void **state)
{
	(void)state;
	int fd = linked_client();
	uint32_t len;
	struct session *s = session(1, 1);
	uint8_t *p = get_call(fd, &len);
	answer(fd, word(p, 0) + 1, 0, NULL, 0);
	free(p);
	assert_true(closed(fd));
	session_is(s, -ENOTCONN);
	close(fd);
}

/* An answer on a connection that was never called. */
static void test_not_asked(void **state)
{
	(void)state;
	int fd = client();
	answer(fd, 1, 0, NULL, 0);
	assert_true(closed(fd));
	close(fd);
	fd = linked_client();
	answer(fd, 1, 0, NULL, 0);
	assert_true(closed(fd));
	close(fd);
}

static void test_closes(void **state)
{
	(void)state;
	for (int round = 0; round < 4; round++) {
		int fd = linked_client();
		uint32_t len, before = closes;
		struct session *s = session(1, 1);
		free(get_call(fd, &len));
		if (round & 1) { /* with a call half sent */
			uint32_t mark = htonl(0x80000100u);
			put_all(fd, &mark, 4);
		}
		if (round & 2)
			shutdown(fd, SHUT_WR);
		else
			close(fd);
		session_is(s, -ENOTCONN);
		wait_for(closes == before + 1);
		assert_ptr_equal(closed_link, the_link);
		assert_true(rpc_link_closed(the_link));
		session_is(session(1, 1), -ENOTCONN);
		if (round & 2)
			close(fd);
	}
	/* who never asked for a link is not told of */
	uint32_t before = closes;
	null_works();
	wait_for(connections_now() == 0);
	assert_int_equal(closes, before);
}

/* A link outlives the server. */
static void test_stop(void **state)
{
	(void)state;
	int fd = linked_client();
	uint32_t len;
	struct session *s = session(1, 1);
	free(get_call(fd, &len));
	reactor_call(reactor_get(0), do_stop, NULL);
	session_is(s, -ENOTCONN);
	session_is(session(1, 1), -ENOTCONN);
	assert_true(closed(fd));
	close(fd);
}

#define with(test) cmocka_unit_test_setup_teardown(test, begin, end)

static int all_tests(void)
{
	const struct CMUnitTest tests[] = {
		with(test_answered),
		with(test_authsys),
		with(test_mixed),
		with(test_answer_behind_calls),
		with(test_errors),
		with(test_sizes),
		with(test_fragments),
		with(test_bound),
		with(test_deadline),
		with(test_twice),
		with(test_wrong_xid),
		with(test_not_asked),
		with(test_closes),
		with(test_stop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
	return fixture_run(all_tests);
}
