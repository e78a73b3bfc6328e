/*
 * A peer that floods, among others that ask for one thing at a time: shown by counting in which order calls run. The
 * reactor is held still while all of them send, so that nothing depends on who is faster.
 */
#include "rpcrdma/rpcrdma.h"

#define PROGRAM 0x20000099u

enum { P_NULL, P_WHERE, P_HOLD, P_MARK, P_PROCS };

static _Atomic bool held, release;
static _Atomic uint32_t marks;
static uint32_t mark_log[4096];

static int run_null(struct rpc_request *req)
{
	(void)req;
	return RPC_SUCCESS;
}

static int run_where(struct rpc_request *req)
{
	return xdr_put_u32(&req->out, reactor_index(reactor_self())) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

/* Keeps the whole reactor from going on, which no procedure may do; without a system call, in which it would receive.
 */
static int run_hold(struct rpc_request *req)
{
	(void)req;
	atomic_store(&held, true);
	while (!atomic_load(&release))
		;
	return RPC_SUCCESS;
}

static int run_mark(struct rpc_request *req)
{
	uint32_t who;
	if (!xdr_get_u32(&req->in, &who))
		return RPC_GARBAGE_ARGS;
	mark_log[atomic_fetch_add(&marks, 1) % 4096] = who;
	return RPC_SUCCESS;
}

static const struct rpc_procedure procedures[P_PROCS] = {
	[P_NULL] = {.name = "NULL", .run = run_null},
	[P_WHERE] = {.name = "WHERE", .run = run_where, .reply_max = 4},
	[P_HOLD] = {.name = "HOLD", .run = run_hold},
	[P_MARK] = {.name = "MARK", .run = run_mark},
};
static const struct rpc_program version4 = {
	.program = PROGRAM, .version = 4, .name = "test", .procedure = procedures, .procedures = P_PROCS};
static const struct rpc_program *const programs[] = {&version4};

#include "tests/rpcrdma/tcp_fixture.h"

static int elsewhere[64];
static unsigned elsewhere_count;

/* A connection that the first reactor serves; those of the other one stay, or the next would be there again. */
static int client_here(void)
{
	for (;;) {
		uint32_t len;
		int fd = client();
		send_words(fd, 1, P_WHERE, 0, 0, 0);
		uint8_t *p = get_success(fd, 1, &len);
		uint32_t where = word(p, 6);
		free(p);
		if (where == 0)
			return fd;
		assert_true(elsewhere_count < 64);
		elsewhere[elsewhere_count++] = fd;
	}
}

static int end(void **state)
{
	while (elsewhere_count)
		close(elsewhere[--elsewhere_count]);
	return stop(state);
}

static void test_flood(void **state)
{
	enum { FLOOD = 100, OTHERS = 10 };
	(void)state;
	int holder = client_here(), flooder = client_here(), other[OTHERS];
	uint32_t len;
	for (int i = 0; i < OTHERS; i++)
		other[i] = client_here();
	for (int round = 0; round < 5; round++) {
		atomic_store(&marks, 0);
		atomic_store(&held, false);
		atomic_store(&release, false);
		send_words(holder, 1, P_HOLD, 0, 0, 0);
		wait_for(atomic_load(&held));
		for (uint32_t i = 0; i < FLOOD; i++)
			send_words(flooder, 100 + i, P_MARK, 1, 1000, 0);
		for (uint32_t i = 0; i < OTHERS; i++)
			send_words(other[i], 1, P_MARK, 1, i, 0);
		atomic_store(&release, true);
		free(get_success(holder, 1, &len));
		for (uint32_t i = 0; i < FLOOD; i++)
			free(get_success(flooder, 100 + i, &len)); /* in order, too */
		for (uint32_t i = 0; i < OTHERS; i++)
			free(get_success(other[i], 1, &len));
		assert_int_equal(marks, FLOOD + OTHERS);
		uint32_t floods = 0, others = 0;
		for (uint32_t i = 0; others < OTHERS; i++)
			*(mark_log[i] == 1000 ? &floods : &others) += 1;
		if (floods > 1) /* between two of its calls each of the others had one */
			fail_msg("the flooder had %u calls before each of the others had one", floods);
	}
	for (int i = 0; i < OTHERS; i++)
		close(other[i]);
	close(holder);
	close(flooder);
}

/* Alone, all of it enters at once: replies leave together. Then it goes away with calls parked. */
static void test_alone(void **state)
{
	(void)state;
	int fd = client_here();
	uint32_t len;
	for (uint32_t i = 0; i < 100; i++)
		send_words(fd, 100 + i, P_MARK, 1, 1, 0);
	for (uint32_t i = 0; i < 100; i++)
		free(get_success(fd, 100 + i, &len));
	close(fd);
	for (int round = 0; round < 20; round++) {
		int holder = client_here();
		fd = client_here();
		atomic_store(&held, false);
		atomic_store(&release, false);
		send_words(holder, 1, P_HOLD, 0, 0, 0);
		wait_for(atomic_load(&held));
		for (uint32_t i = 0; i < 100; i++)
			send_words(fd, 100 + i, P_MARK, 1, 1, 0);
		if (round & 1)
			close(fd);
		atomic_store(&release, true);
		if (!(round & 1))
			close(fd);
		free(get_success(holder, 1, &len));
		close(holder);
	}
}

#define with(test) cmocka_unit_test_setup_teardown(test, start, end)

static int all_tests(void)
{
	const struct CMUnitTest tests[] = {
		with(test_flood),
		with(test_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
	return fixture_run(all_tests);
}
