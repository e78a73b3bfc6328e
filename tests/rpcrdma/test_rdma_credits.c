/*
 * How many calls a peer may have at once over RDMA, and in which order those of many peers run: credits that grow with
 * use and shrink without, what exceeds them, and turns. Against bare verbs; skipped without an RDMA device.
 */
#define PROGRAM 0x20000077u
#define PORT 20951

#include "rdma_fixture.h"

enum { P_NULL, P_SLOW, P_DROP, P_WHERE, P_HOLD, P_MARK, P_COUNT };

static _Atomic bool held, release;
static _Atomic uint32_t marks;
static uint32_t mark_log[4096];

static int p_where(struct rpc_request *req)
{
	return xdr_put_u32(&req->out, reactor_index(reactor_self())) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

/* Keeps the whole reactor from going on, which no procedure may do. */
static int p_hold(struct rpc_request *req)
{
	(void)req;
	atomic_store(&held, true);
	while (!atomic_load(&release))
		usleep(1000);
	return RPC_SUCCESS;
}

static int p_mark(struct rpc_request *req)
{
	uint32_t who;
	if (!xdr_get_u32(&req->in, &who))
		return RPC_GARBAGE_ARGS;
	mark_log[atomic_fetch_add(&marks, 1) % 4096] = who;
	return RPC_SUCCESS;
}

static const struct rpc_procedure procedures[P_COUNT] = {
	[P_NULL] = {"NULL", p_null, 0, 0, NULL},
	[P_SLOW] = {"SLOW", p_slow, 0, 16, NULL},
	[P_DROP] = {"DROP", p_drop, 0, 16, NULL},
	[P_WHERE] = {"WHERE", p_where, 0, 16, NULL},
	[P_HOLD] = {"HOLD", p_hold, 0, 16, NULL},
	[P_MARK] = {"MARK", p_mark, 0, 16, NULL},
};
static const struct rpc_program program = {PROGRAM, 1, "test", procedures, P_COUNT, NULL};
static const struct rpc_program *const programs[] = {&program};

static uint32_t granted_once(struct peer *p)
{
	call(p, P_SLOW, 0);
	return granted(p);
}

static void exceed(struct peer *p, unsigned calls)
{
	uint64_t before = counter_read(&rdma_metrics.credit_violations);
	for (unsigned i = 0; i < calls; i++)
		call(p, P_SLOW, 300);
	assert_true(peer_wait_lost(p, TAKE));
	assert_int_equal(counter_read(&rdma_metrics.credit_violations), before + 1);
	peer_close(p);
	check_server(0);
}

static void test_credits(void **state)
{
	(void)state;
	struct peer p;
	open_busy(&p, P_SLOW);
	/* as many as were granted, again and again */
	for (unsigned round = 0; round < 5; round++) {
		for (unsigned i = 0; i < CREDITS; i++)
			call(&p, P_SLOW, 20);
		for (unsigned i = 0; i < CREDITS; i++)
			assert_int_equal(granted(&p), CREDITS);
	}
	exceed(&p, CREDITS + 1);
	open_peer(&p);
	exceed(&p, RDMA_CREDITS_LEAST + 1);
	/* a call that is never answered gives its credit back */
	open_peer(&p);
	for (unsigned i = 0; i < 3 * CREDITS; i++) {
		call(&p, P_DROP, 0);
		ping(&p);
	}
	peer_close(&p);
}

static bool reserved(int64_t credits)
{
	for (int i = 0; i < 500 && atomic_load(&rdma_metrics.credits) != credits; i++)
		peer_sleep_us(10000);
	return atomic_load(&rdma_metrics.credits) == credits;
}

/* Receives follow the load: those of a peer that asks for one thing now and then are for others. */
static void test_grow_and_shrink(void **state)
{
	(void)state;
	struct rdma_times normal = rdma_times;
	struct peer p;
	rdma_times.look = 50 * NSEC_PER_MSEC;
	check_server(0);
	assert_true(reserved(0));
	open_peer(&p);
	for (unsigned round = 0; round < 3; round++) {
		for (unsigned i = 0; i < 20; i++)
			assert_int_equal(granted_once(&p), RDMA_CREDITS_LEAST);
		assert_int_equal(atomic_load(&rdma_metrics.credits), RDMA_CREDITS_LEAST);
		use_all(&p, P_SLOW);
		assert_int_equal(atomic_load(&rdma_metrics.credits), CREDITS);
		assert_int_equal(granted_once(&p), CREDITS); /* for a while */
		/* told of fewer when it had no use for them, and then they are free for others */
		for (unsigned i = 0; i < 100 && granted_once(&p) > RDMA_CREDITS_LEAST; i++)
			peer_sleep_us(100000);
		assert_true(reserved(RDMA_CREDITS_LEAST));
	}
	exceed(&p, RDMA_CREDITS_LEAST + 1);
	/* who is behind a long link is never seen to have two calls here, and has use for more all the same */
	open_peer(&p);
	unsigned calls = 0;
	while (calls < 5000 && granted_once(&p) < CREDITS)
		calls++;
	assert_in_range(calls, 21, 4999);
	peer_close(&p);
	rdma_times = normal;
}

static struct peer elsewhere[32];
static unsigned elsewhere_count;

/* A peer that the first reactor serves; those of the other one stay, or the next would be there again. */
static void open_here(struct peer *p)
{
	struct answer a;
	for (;;) {
		open_peer(p);
		call(p, P_WHERE, 0);
		answer_take(p, &a);
		if (word(results(a.rpc, next_xid), 0) == 0)
			return;
		assert_true(elsewhere_count < 32);
		elsewhere[elsewhere_count++] = *p;
	}
}

/*
 * One floods with all it may have, others ask for one thing each, and the reactor is held still while all of them
 * send. Between two calls of the one runs one of every other.
 */
static void test_turns(void **state)
{
	enum { OTHERS = 6 };
	(void)state;
	static struct peer holder, flooder, other[OTHERS];
	open_here(&holder);
	open_here(&flooder);
	for (unsigned i = 0; i < OTHERS; i++)
		open_here(&other[i]);
	use_all(&flooder, P_SLOW);
	for (int round = 0; round < 5; round++) {
		uint32_t floods = 0, others = 0;
		atomic_store(&marks, 0);
		atomic_store(&held, false);
		atomic_store(&release, false);
		call(&holder, P_HOLD, 0);
		for (int i = 0; i < TAKE && !atomic_load(&held); i++)
			peer_sleep_us(1000);
		for (unsigned i = 0; i < CREDITS; i++)
			call(&flooder, P_MARK, 1000);
		for (unsigned i = 0; i < OTHERS; i++) {
			call(&other[i], P_MARK, i);
			call(&other[i], P_MARK, i);
		}
		peer_sleep_us(200000);
		atomic_store(&release, true);
		granted(&holder);
		for (unsigned i = 0; i < CREDITS; i++)
			granted(&flooder);
		for (unsigned i = 0; i < 2 * OTHERS; i++)
			granted(&other[i / 2]);
		assert_int_equal(atomic_load(&marks), CREDITS + 2 * OTHERS);
		for (uint32_t i = 0; others < 2 * OTHERS; i++)
			*(mark_log[i] == 1000 ? &floods : &others) += 1;
		if (floods > 2)
			fail_msg("the flooder had %u calls before each of the others had two", floods);
	}
	for (unsigned i = 0; i < OTHERS; i++)
		peer_close(&other[i]);
	peer_close(&flooder);
	peer_close(&holder);
	while (elsewhere_count)
		peer_close(&elsewhere[--elsewhere_count]);
}

/* A peer that goes away with calls that wait for their turn. */
static void test_parked_loss(void **state)
{
	(void)state;
	for (int round = 0; round < 10; round++) {
		struct peer holder, p;
		open_here(&holder);
		open_here(&p);
		use_all(&p, P_SLOW);
		atomic_store(&held, false);
		atomic_store(&release, false);
		call(&holder, P_HOLD, 0);
		for (int i = 0; i < TAKE && !atomic_load(&held); i++)
			peer_sleep_us(1000);
		for (unsigned i = 0; i < CREDITS; i++)
			call(&p, P_MARK, 1);
		peer_sleep_us(20000);
		atomic_store(&release, true);
		peer_close(&p);
		granted(&holder);
		peer_close(&holder);
		while (elsewhere_count)
			peer_close(&elsewhere[--elsewhere_count]);
	}
	check_server(0);
	assert_int_equal(atomic_load(&rdma_metrics.credits), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_credits),
		cmocka_unit_test(test_grow_and_shrink),
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_parked_loss),
	};
	if (getenv("TEST"))
		cmocka_set_test_filter(getenv("TEST"));
	if (!fixture_begin())
		return fixture_rc;
	return cmocka_run_group_tests(tests, NULL, teardown);
}
