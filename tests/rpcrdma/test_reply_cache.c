/*
 * The reply cache, over TCP: a call that comes again is answered as it was, from whatever connection it comes, and runs
 * once; also when a file system kept the mark of it over a restart.
 */
#include "rpcrdma/rpcrdma_internal.h"
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

static struct rpc_tag tag_of(uint64_t client, uint32_t xid)
{
	return (struct rpc_tag){.client = client, .xid = xid, .program = PROGRAM, .version = 4, .procedure = P_COUNT};
}

/* What the cache has of a call: the reply's first byte; or, when it is new, that is run and replied to with VALUE. */
static int call_cached(struct rpc_cache *cache, struct rpc_tag tag, uint8_t value)
{
	struct rpc_cache_entry *entry;
	const void *replay;
	uint8_t reply[600] = {value};
	uint32_t replay_bytes, bytes = 0;
	enum rpc_cache_answer answer =
		rpc_cache_begin(cache, &tag, &entry, &replay, &replay_bytes, reply, sizeof(reply), &bytes);
	if (answer == RPC_CACHE_HIT)
		return reply[0];
	assert_int_equal(answer, RPC_CACHE_RUN);
	assert_non_null(entry);
	if (value)
		rpc_cache_store(cache, entry, reply, tag.xid % 7 ? 100 : sizeof(reply));
	else
		rpc_cache_forget(cache, entry);
	return -1;
}

/* How many calls of CLIENT are known. To ask for one that is not may cost another: one in each of the 64 shards. */
static unsigned cached(struct rpc_cache *cache, uint64_t client, uint32_t from, uint32_t to)
{
	unsigned n = 0;
	for (uint32_t xid = from; xid < to; xid++)
		n += call_cached(cache, tag_of(client, xid), 0) == (int)(client + 1);
	return n;
}

/* A client that was cut off finds its replies, however much others did meanwhile. */
static void test_others_flood(void **state)
{
	struct rpc_cache *cache;
	(void)state;
	assert_int_equal(rpc_cache_new(1024, 3600 * NSEC_PER_SEC, &cache), 0);
	for (uint32_t xid = 0; xid < 100; xid++)
		assert_int_equal(call_cached(cache, tag_of(1, xid), 2), -1);
	for (uint32_t xid = 0; xid < 20000; xid++)
		assert_int_equal(call_cached(cache, tag_of(2 + xid % 2, xid), (uint8_t)(3 + xid % 2)), -1);
	assert_int_equal(cached(cache, 1, 0, 100), 100);
	/* those who flood have the rest, each the same, and the newest of it */
	unsigned two = cached(cache, 2, 0, 20000), three = cached(cache, 3, 0, 20000);
	assert_in_range(two + three, 1024 - 100 - 64, 1024 - 100);
	assert_in_range(two, 368, 524);
	assert_int_equal(cached(cache, 2, 19800, 20000), 100);
	/* more clients than there is room for: every one is served, and the first ones are not known any more */
	for (uint32_t client = 10; client < 5010; client++)
		assert_int_equal(call_cached(cache, tag_of(client, 1), 9), -1);
	assert_true(cached(cache, 1, 0, 100) < 100);
	rpc_cache_destroy(cache);
}

/* What nobody asks for any more goes first, also that of a client who has little. */
static void test_old_first(void **state)
{
	struct rpc_cache *cache;
	(void)state;
	assert_int_equal(rpc_cache_new(1024, 1, &cache), 0);
	for (uint32_t xid = 0; xid < 100; xid++)
		call_cached(cache, tag_of(1, xid), 2);
	for (uint32_t xid = 0; xid < 20000; xid++)
		call_cached(cache, tag_of(2, xid), 3);
	assert_int_equal(cached(cache, 1, 0, 100), 0);
	assert_in_range(cached(cache, 2, 19000, 20000), 800, 1000);
	rpc_cache_destroy(cache);
}

static int all_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_duplicates, start, stop),
		cmocka_unit_test_setup_teardown(test_cache_bound, start, stop),
		cmocka_unit_test_setup_teardown(test_replay, start, stop),
		cmocka_unit_test(test_others_flood),
		cmocka_unit_test(test_old_first),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
	return fixture_run(all_tests);
}
