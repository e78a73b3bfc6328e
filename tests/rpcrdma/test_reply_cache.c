/*
 * The reply cache, over TCP: a call that comes again is answered as it was, from whatever connection it comes, and runs
 * once; also when a file system kept the mark of it over a restart.
 */
#include "tests/rpcrdma/tcp_program.h"

static void test_duplicates(void **state)
{
	(void)state;
	int a = client(), b = client();
	atomic_store(&counted, 100);
	send_words(a, 8, P_COUNT, 1, 0, 0);
	assert_int_equal(get_count(a, 8), 101);
	/* again, on the same connection and on another: the same answer, not a second run */
	send_words(a, 8, P_COUNT, 1, 0, 0);
	assert_int_equal(get_count(a, 8), 101);
	send_words(b, 8, P_COUNT, 1, 0, 0);
	assert_int_equal(get_count(b, 8), 101);
	/* other arguments, another xid, another version: other calls */
	send_words(b, 8, P_COUNT, 1, 1, 0);
	assert_int_equal(get_count(b, 8), 102);
	send_words(b, 9, P_COUNT, 1, 0, 0);
	assert_int_equal(get_count(b, 9), 103);
	assert_int_equal(atomic_load(&counted), 103);
	/* while it runs: dropped */
	send_words(a, 10, P_COUNT, 1, 200, 0);
	wait_for(atomic_load(&counted) == 104);
	send_words(a, 10, P_COUNT, 1, 200, 0);
	send_words(b, 10, P_COUNT, 1, 200, 0);
	assert_int_equal(get_count(a, 10), 104);
	assert_true(silent(a, 30) && silent(b, 30));
	send_words(b, 10, P_COUNT, 1, 200, 0);
	assert_int_equal(get_count(b, 10), 104);
	assert_int_equal(atomic_load(&counted), 104);
	/* the answer is kept even if nobody was there to read it */
	send_words(a, 11, P_COUNT, 1, 50, 0);
	wait_for(atomic_load(&counted) == 105);
	close(a);
	usleep(80000);
	send_words(b, 11, P_COUNT, 1, 50, 0);
	assert_int_equal(get_count(b, 11), 105);
	/* what is not cached runs again; a call that failed, too */
	struct rpc_status s;
	rpc_status(server, &s);
	assert_int_equal(s.cache_hits, 6);
	close(b);
}

/* The cache is bounded, and the oldest go first. */
static void test_cache_bound(void **state)
{
	(void)state;
	int fd = client();
	enum { CALLS = 12000 };
	atomic_store(&counted, 0);
	for (uint32_t i = 0; i < CALLS; i += 100) {
		for (uint32_t k = 1; k <= 100; k++)
			send_words(fd, i + k, P_COUNT, 1, 0, 0);
		for (uint32_t k = 1; k <= 100; k++)
			get_count(fd, 0);
	}
	assert_int_equal(atomic_load(&counted), CALLS);
	send_words(fd, CALLS, P_COUNT, 1, 0, 0);
	get_count(fd, CALLS);
	assert_int_equal(atomic_load(&counted), CALLS);
	send_words(fd, 1, P_COUNT, 1, 0, 0); /* long gone */
	get_count(fd, 1);
	assert_int_equal(atomic_load(&counted), CALLS + 1);
	close(fd);
}

static void do_preload(void *arg)
{
	struct rpc_tag *tag = arg;
	uint32_t value = 4242;
	assert(rpc_cache_preload(server, tag, &value, sizeof(value)) == 0);
	assert(rpc_cache_preload(server, tag, &value, sizeof(value)) == -EEXIST);
}

static void test_replay(void **state)
{
	(void)state;
	/* The tag as a file system would have kept it. */
	uint8_t address[4] = {127, 0, 0, 1}, args[4] = {0};
	struct rpc_tag tag = {.client = checksum64(address, 4, 0),
		.xid = 77,
		.program = PROGRAM,
		.version = 4,
		.procedure = P_COUNT,
		.checksum = (uint32_t)checksum64(args, 4, 4)};
	reactor_call(reactor_get(1), do_preload, &tag);
	int fd = client();
	atomic_store(&counted, 0);
	atomic_store(&replayed, 0);
	for (int i = 0; i < 3; i++) {
		send_words(fd, 77, P_COUNT, 1, 0, 0);
		assert_int_equal(get_count(fd, 77), 4242);
	}
	assert_int_equal(atomic_load(&counted), 0);
	assert_int_equal(atomic_load(&replayed), 1);
	close(fd);
}

static int all_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_duplicates, start, stop),
		cmocka_unit_test_setup_teardown(test_cache_bound, start, stop),
		cmocka_unit_test_setup_teardown(test_replay, start, stop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
	return fixture_run(all_tests);
}
