/*
 * RPC over TCP, what goes over a connection: records and their fragments, calls and payload, the errors of RPC and of
 * credentials, and bytes that are no calls.
 */
#include "tests/rpcrdma/tcp_program.h"

#define SEED 20260812u

static void test_calls(void **state)
{
	(void)state;
	null_works();
	int fd = client();
	for (uint32_t n = 0; n <= 3000; n += n < 20 ? 1 : 497) {
		struct message m;
		uint32_t len;
		uint8_t data[3000];
		memset(data, (int)n, sizeof(data));
		message_begin(&m, 4000, n + 1, 4, P_ECHO);
		xdr_put_opaque(&m.out, data, n);
		message_send(fd, &m);
		uint8_t *p = get_success(fd, n + 1, &len);
		assert_int_equal(len, 28 + xdr_round(n));
		assert_memory_equal(p + 28, data, n);
		free(p);
	}
	struct rpc_status s;
	rpc_status(server, &s);
	assert_int_equal(s.requests, s.replies);
	assert_true(s.bytes_in > 0 && s.bytes_out > 0);
	close(fd);
}

static void test_ipv6(void **state)
{
	(void)state;
	struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	uint32_t len = 0;
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		skip();
	send_words(fd, 1, P_NULL, 0, 0, 0);
	free(get_success(fd, 1, &len));
	close(fd);
}

/* The record cut into two fragments at every byte, with and without a pause between, and into fragments of one byte. */
static void test_fragments(void **state)
{
	(void)state;
	int fd = client();
	struct message m;
	uint32_t len;
	uint8_t text[50];
	memset(text, 'f', sizeof(text));
	message_begin(&m, 200, 99, 4, P_ECHO);
	xdr_put_opaque(&m.out, text, sizeof(text));
	uint32_t whole = message_len(&m);
	for (uint32_t cut = 0; cut <= whole; cut++)
		for (int pause = 0; pause < 2; pause++) {
			uint8_t bytes[400];
			uint32_t first = htonl(cut), last = htonl((whole - cut) | 0x80000000u);
			memcpy(bytes, &first, 4);
			memcpy(bytes + 4, m.out.base, cut);
			memcpy(bytes + 4 + cut, &last, 4);
			memcpy(bytes + 8 + cut, m.out.base + cut, whole - cut);
			if (pause) {
				put_all(fd, bytes, cut + 2);
				usleep(200);
				put_all(fd, bytes + cut + 2, whole + 8 - cut - 2);
			} else {
				put_all(fd, bytes, whole + 8);
			}
			uint8_t *p = get_success(fd, 99, &len);
			assert_int_equal(len, 80);
			assert_memory_equal(p + 28, text, sizeof(text));
			free(p);
		}
	uint8_t *tiny = malloc(whole * 5);
	for (uint32_t i = 0; i < whole; i++) {
		uint32_t mark = htonl(1 | (i + 1 == whole ? 0x80000000u : 0));
		memcpy(tiny + 5 * i, &mark, 4);
		tiny[5 * i + 4] = m.out.base[i];
	}
	for (int once = 0; once < 2; once++) {
		for (uint32_t i = 0; i < 5 * whole; i += once ? 5 * whole : 7)
			put_all(fd, tiny + i, once ? 5 * whole : 5 * whole - i < 7 ? 5 * whole - i : 7);
		uint8_t *p = get_success(fd, 99, &len);
		assert_memory_equal(p + 28, text, sizeof(text));
		free(p);
	}
	free(tiny);
	free(m.bytes);
	close(fd);
}

static void test_many_in_one(void **state)
{
	(void)state;
	enum { CALLS = 600 };
	int fd = client();
	uint8_t *all = malloc(CALLS * 100), seen[CALLS] = {0};
	size_t bytes = 0;
	for (uint32_t i = 0; i < CALLS; i++) {
		struct message m;
		message_begin(&m, 100, i + 1, 4, P_ECHO);
		xdr_put_opaque(&m.out, &i, 4);
		uint32_t n = message_mark(&m);
		memcpy(all + bytes, m.bytes, n);
		bytes += n;
		free(m.bytes);
	}
	put_all(fd, all, bytes);
	for (uint32_t i = 0; i < CALLS; i++) {
		uint32_t len;
		uint8_t *p = get_success(fd, 0, &len);
		uint32_t xid = word(p, 0), value;
		memcpy(&value, p + 28, 4);
		assert_int_equal(value + 1, xid);
		assert_int_equal(seen[xid - 1]++, 0);
		free(p);
	}
	free(all);
	close(fd);
}

static void test_write(void **state)
{
	(void)state;
	int fd = client();
	static const uint32_t lens[] = {
		0, 1, 3, 4, 100, 4095, 4096, 8100, 8140, 8190, 8192, 20000, 65536, 262144, 1000001, MIB};
	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		write_once(fd, lens[i], 1);
		write_once(fd, lens[i], 3);
		write_once(fd, lens[i], 40);
	}
	write_once(fd, 50000, 10000);
	write_once(fd, MIB, 9000);
	close(fd);
}

static void test_read(void **state)
{
	(void)state;
	int fd = client();
	static const uint32_t lens[] = {0, 1, 2, 3, 4, 4096, 65537, 262143, 262144, 262145, 1000003, MIB};
	uint32_t len;
	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		send_words(fd, i + 1, P_READ, 2, lens[i], i);
		uint8_t *p = get_success(fd, i + 1, &len);
		read_check(p, len, lens[i], i);
		free(p);
	}
	send_words(fd, 50, P_READ2, 2, 1001, 5);
	uint8_t *p = get_success(fd, 50, &len);
	assert_int_equal(len, 24 + 4 + 1004 + 4 + 500 + 4);
	assert_int_equal(p[28 + 1000], pattern(5, 1000));
	assert_int_equal(word(p, (28 + 1004) / 4), 500);
	assert_int_equal(p[28 + 1004 + 4], pattern(6, 0));
	assert_int_equal(word(p, (28 + 1004 + 4 + 500) / 4), 77);
	free(p);
	/* results without payload beyond one page, up to the longest */
	static const uint32_t bigs[] = {0, 4000, 60000, BUF_MAX - 300};
	for (unsigned i = 0; i < 4; i++) {
		send_words(fd, 60 + i, P_BIG, 1, bigs[i], 0);
		p = get_success(fd, 60 + i, &len);
		assert_int_equal(len, 24 + bigs[i]);
		for (uint32_t k = 0; k < bigs[i] / 4; k++)
			assert_int_equal(word(p, 6 + k), k);
		free(p);
	}
	send_words(fd, 70, P_BIG, 1, 400000, 0);
	p = get_record(fd, &len);
	assert_int_equal(word(p, 5), RPC_SYSTEM_ERR);
	free(p);
	close(fd);
}

static uint64_t bad_calls(void)
{
	struct rpc_status s;
	rpc_status(server, &s);
	return s.bad_calls;
}

static void test_nonsense(void **state)
{
	(void)state;
	static const struct {
		uint32_t len;
		uint8_t bytes[44];
	} all[] = {
		{4, {0xff, 0xff, 0xff, 0xff}},		       /* a record of 2 GiB */
		{4, {0x00, 0x11, 0x00, 0x01}},		       /* one byte more than message_max */
		{4, {0x80, 0, 0, 0}},			       /* an empty record */
		{8, {0x80, 0, 0, 4, 1, 2, 3, 4}},	       /* an xid and no more */
		{12, {0x80, 0, 0, 8, 1, 2, 3, 4, 0, 0, 0, 1}}, /* a reply */
		{12, {0x80, 0, 0, 8, 1, 2, 3, 4, 0, 0, 0, 0}}, /* a call without header */
		{20, {0x80, 0, 0, 16, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 9}},
		{16, {'G', 'E', 'T', ' ', '/', ' ', 'H', 'T', 'T', 'P', '/', '1', '.', '0', '\r', '\n'}},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		uint64_t before = bad_calls();
		int fd = client();
		put_all(fd, all[i].bytes, all[i].len);
		assert_true(closed(fd));
		close(fd);
		assert_true(bad_calls() > before);
	}
	/* A long record in many fragments: the sum counts. */
	int fd = client();
	static uint8_t block[65536 + 4] = {0, 1, 0, 0};
	bool cut = false;
	for (int i = 0; i < 40 && !cut; i++)
		for (size_t at = 0; at < sizeof(block) && !cut;) {
			ssize_t n = send(fd, block + at, sizeof(block) - at, MSG_NOSIGNAL);
			cut = n <= 0;
			at += cut ? 0 : (size_t)n;
		}
	assert_true(cut || closed(fd));
	close(fd);
	null_works();
}

/* Random bytes and damaged calls, each on a connection of its own. */
static void test_fuzz(void **state)
{
	(void)state;
	unsigned seed = SEED;
	for (int i = 0; i < 300; i++) {
		int fd = client();
		struct message m;
		message_begin(&m, 600, (uint32_t)i, 4, (uint32_t)rand_r(&seed) % P_PROCS);
		xdr_put_u32(&m.out, (uint32_t)rand_r(&seed) % 300);
		for (int k = rand_r(&seed) % 100; k; k--)
			xdr_put_u32(&m.out, (uint32_t)rand_r(&seed) >> (rand_r(&seed) % 32));
		uint32_t len = message_mark(&m);
		for (int k = rand_r(&seed) % 6; k; k--)
			m.bytes[(uint32_t)rand_r(&seed) % len] ^= (uint8_t)(1 << rand_r(&seed) % 8);
		m.bytes[24] |= m.bytes[27] == P_SLEEP || m.bytes[27] == P_COUNT; /* no long sleeps */
		send(fd, m.bytes, (uint32_t)rand_r(&seed) % 8 ? len : (uint32_t)rand_r(&seed) % len, MSG_NOSIGNAL);
		free(m.bytes);
		if (rand_r(&seed) % 2)
			silent(fd, 2);
		close(fd);
	}
	null_works();
}

static uint8_t *raw_call(int fd, uint32_t rpcvers, uint32_t program, uint32_t version, uint32_t procedure,
	uint32_t flavor, const void *body, uint32_t body_len, uint32_t verf_flavor, uint32_t *len)
{
	struct message m = {.bytes = malloc(1000)};
	xdr_out_init(&m.out, m.bytes + 4, 990);
	uint32_t words[] = {5, 0, rpcvers, program, version, procedure, flavor};
	for (int i = 0; i < 7; i++)
		xdr_put_u32(&m.out, words[i]);
	xdr_put_opaque(&m.out, body, body_len);
	xdr_put_u32(&m.out, verf_flavor);
	xdr_put_u32(&m.out, 0);
	message_send(fd, &m);
	uint8_t *p = get_record(fd, len);
	assert_non_null(p);
	assert_int_equal(word(p, 0), 5);
	assert_int_equal(word(p, 1), 1);
	return p;
}

static void expect(uint8_t *p, const uint32_t *len, unsigned n, ...)
{
	va_list args;
	va_start(args, n);
	assert_int_equal(*len, 8 + 4 * n);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(word(p, 2 + i), va_arg(args, unsigned));
	va_end(args);
	free(p);
}

static void test_errors(void **state)
{
	(void)state;
	int fd = client();
	uint32_t len;
	/* MSG_DENIED, RPC_MISMATCH, low, high */
	expect(raw_call(fd, 3, PROGRAM, 4, 0, 0, "", 0, 0, &len), &len, 4, 1, 0, 2, 2);
	/* MSG_ACCEPTED, verifier, PROG_UNAVAIL and so on */
	expect(raw_call(fd, 2, PROGRAM + 1, 4, 0, 0, "", 0, 0, &len), &len, 4, 0, 0, 0, RPC_PROG_UNAVAIL);
	expect(raw_call(fd, 2, PROGRAM, 3, 0, 0, "", 0, 0, &len), &len, 6, 0, 0, 0, RPC_PROG_MISMATCH, 2, 4);
	expect(raw_call(fd, 2, PROGRAM, 4, P_PROCS, 0, "", 0, 0, &len), &len, 4, 0, 0, 0, RPC_PROC_UNAVAIL);
	expect(raw_call(fd, 2, PROGRAM, 4, P_NONE, 0, "", 0, 0, &len), &len, 4, 0, 0, 0, RPC_PROC_UNAVAIL);
	expect(raw_call(fd, 2, PROGRAM, 4, P_ECHO, 0, "", 0, 0, &len), &len, 4, 0, 0, 0, RPC_GARBAGE_ARGS);
	expect(raw_call(fd, 2, PROGRAM, 4, P_SPOILED, 0, "", 0, 0, &len), &len, 4, 0, 0, 0, RPC_SYSTEM_ERR);
	/* MSG_DENIED, AUTH_ERROR, why */
	expect(raw_call(fd, 2, PROGRAM, 4, 0, 99, "", 0, 0, &len), &len, 3, 1, 1, RPC_AUTH_BADCRED);
	expect(raw_call(fd, 2, PROGRAM, 4, 0, 2, "", 0, 0, &len), &len, 3, 1, 1, RPC_AUTH_REJECTEDCRED);
	expect(raw_call(fd, 2, PROGRAM, 4, 0, 0, "abcd", 4, 0, &len), &len, 3, 1, 1, RPC_AUTH_BADCRED);
	expect(raw_call(fd, 2, PROGRAM, 4, 0, 1, "abcd", 4, 0, &len), &len, 3, 1, 1, RPC_AUTH_BADCRED);
	expect(raw_call(fd, 2, PROGRAM, 2, 0, 0, "", 0, 0, &len), &len, 3, 1, 1, RPC_AUTH_TOOWEAK);
	assert_int_equal(atomic_load(&refused), 1);
	/* AUTH_SYS: stamp, machine, uid 2^32-2, gid, groups */
	uint8_t body[400];
	struct xdr_out out;
	for (uint32_t groups = 0; groups <= 17; groups++) {
		xdr_out_init(&out, body, sizeof(body));
		xdr_put_u32(&out, 1);
		xdr_put_opaque(&out, "machine", 7);
		xdr_put_u32(&out, 0xfffffffeu);
		xdr_put_u32(&out, 100);
		xdr_put_u32(&out, groups);
		for (uint32_t i = 0; i < groups; i++)
			xdr_put_u32(&out, i + 1000);
		uint32_t bytes = (uint32_t)(out.p - out.base);
		uint8_t *p = raw_call(fd, 2, PROGRAM, 2, P_CRED, 1, body, bytes, 0, &len);
		if (groups == 17) {
			expect(p, &len, 3, 1, 1, RPC_AUTH_BADCRED);
			continue;
		}
		assert_int_equal(len, 24 + 16 + 4 * groups);
		assert_int_equal(word(p, 6), 1);
		assert_int_equal(word(p, 7), 0xfffffffeu);
		assert_int_equal(word(p, 8), 100);
		assert_int_equal(word(p, 9), groups);
		for (uint32_t i = 0; i < groups; i++)
			assert_int_equal(word(p, 10 + i), i + 1000);
		free(p);
		expect(raw_call(fd, 2, PROGRAM, 2, P_CRED, 1, body, bytes - 4, 0, &len), &len, 3, 1, 1,
			RPC_AUTH_BADCRED);
		expect(raw_call(fd, 2, PROGRAM, 2, P_CRED, 1, body, bytes, 1, &len), &len, 3, 1, 1, RPC_AUTH_BADVERF);
	}
	/* A credential longer than 400 bytes */
	static const uint8_t zeros[404];
	uint8_t *p = raw_call(fd, 2, PROGRAM, 4, 0, 1, zeros, sizeof(zeros), 0, &len);
	expect(p, &len, 3, 1, 1, RPC_AUTH_BADCRED);
	close(fd);
}

static int all_tests(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_calls, start, stop),
		cmocka_unit_test_setup_teardown(test_ipv6, start, stop),
		cmocka_unit_test_setup_teardown(test_fragments, start, stop),
		cmocka_unit_test_setup_teardown(test_many_in_one, start, stop),
		cmocka_unit_test_setup_teardown(test_write, start, stop),
		cmocka_unit_test_setup_teardown(test_read, start, stop),
		cmocka_unit_test_setup_teardown(test_nonsense, start, stop),
		cmocka_unit_test_setup_teardown(test_fuzz, start, stop),
		cmocka_unit_test_setup_teardown(test_errors, start, stop),
	};
	printf("seed %u\n", SEED);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
	return fixture_run(all_tests);
}
