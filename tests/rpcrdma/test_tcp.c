/*
 * RPC over TCP: a server with a small program on two reactors, and blocking clients on the test's own thread. Each test
 * ends with all connections closed and every buffer back in the arena.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "rpcrdma/rpcrdma.h"

#define SEED 20260812u
#define PROGRAM 0x20000099u
#define MIB (1u << 20)

/* ------------------------------------------------------------------------------------------------
 * The program
 */

enum { P_NULL, P_ECHO, P_WRITE, P_READ, P_COUNT, P_SLEEP, P_NONE, P_BIG, P_DROP, P_READ2, P_CRED, P_SPOILED, P_PROCS };

static _Atomic uint32_t counted, slept, reads, refused, replayed;

static uint8_t pattern(uint32_t seed, uint32_t at)
{
	return (uint8_t)(seed * 31 + at * 7 + (at >> 8));
}

static uint64_t pattern_sum(uint32_t seed, uint32_t len)
{
	uint8_t *p = malloc(len + 1);
	for (uint32_t i = 0; i < len; i++)
		p[i] = pattern(seed, i);
	uint64_t sum = checksum64(p, len, 0);
	free(p);
	return sum;
}

static int run_null(struct rpc_request *req)
{
	(void)req;
	return RPC_SUCCESS;
}

static int run_echo(struct rpc_request *req)
{
	struct xdr_opaque o;
	if (!xdr_get_opaque(&req->in, 3000, &o))
		return RPC_GARBAGE_ARGS;
	return xdr_put_opaque(&req->out, o.data, o.len) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static unsigned buffers_for(uint32_t len, struct slice *v)
{
	unsigned n = 0;
	for (uint32_t some; len; len -= some) {
		some = len < BUF_MAX ? len : BUF_MAX;
		v[n++] = (struct slice){buf_alloc(some), 0, some};
	}
	return n;
}

/* A payload and a word behind it; answers with length, checksum and the word. */
static int run_write(struct rpc_request *req)
{
	struct xdr_payload p;
	uint32_t tail;
	struct slice v[8];
	if (!xdr_get_payload(&req->in, 2 * MIB, &p) || !xdr_get_u32(&req->in, &tail))
		return RPC_GARBAGE_ARGS;
	unsigned n = buffers_for(p.len, v);
	int rc = rpc_payload_fetch(req, &p, v, n);
	uint8_t *flat = malloc(p.len + 1);
	slices_copy_out(v, n, 0, flat, p.len);
	uint64_t sum = checksum64(flat, p.len, 0);
	free(flat);
	slices_put(v, n);
	if (rc < 0)
		return RPC_DROP;
	return xdr_put_u32(&req->out, p.len) && xdr_put_u64(&req->out, sum) && xdr_put_u32(&req->out, tail)
		       ? RPC_SUCCESS
		       : RPC_SYSTEM_ERR;
}

static bool attach(struct rpc_request *req, uint32_t seed, uint32_t len)
{
	struct slice v[8];
	struct xdr_payload p = {.len = len};
	uint32_t at = 0;
	unsigned n = buffers_for(len, v);
	for (unsigned i = 0; i < n; i++)
		for (uint32_t k = 0; k < v[i].len; k++)
			slice_data(&v[i])[k] = pattern(seed, at++);
	if (xdr_put_payload(&req->out, &p))
		return rpc_payload_attach(req, v, n) == 0;
	slices_put(v, n);
	return false;
}

static int run_read(struct rpc_request *req)
{
	uint32_t len, seed;
	if (!xdr_get_u32(&req->in, &len) || !xdr_get_u32(&req->in, &seed) || len > MIB)
		return RPC_GARBAGE_ARGS;
	if (rpc_payload_reserve(req, len) < 0)
		return RPC_DROP;
	atomic_fetch_add(&reads, 1);
	return attach(req, seed, len) && xdr_put_u32(&req->out, ~seed) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static int run_read2(struct rpc_request *req)
{
	uint32_t len, seed;
	if (!xdr_get_u32(&req->in, &len) || !xdr_get_u32(&req->in, &seed) || len > MIB)
		return RPC_GARBAGE_ARGS;
	return attach(req, seed, len) && attach(req, seed + 1, len / 2) && xdr_put_u32(&req->out, 77) ? RPC_SUCCESS
												      : RPC_SYSTEM_ERR;
}

/* Gives up after the payload was attached: it must not go out with the error. */
static int run_spoiled(struct rpc_request *req)
{
	return attach(req, 1, 5000) ? RPC_SYSTEM_ERR : RPC_SUCCESS;
}

static int run_count(struct rpc_request *req)
{
	uint32_t ms, value;
	if (!xdr_get_u32(&req->in, &ms))
		return RPC_GARBAGE_ARGS;
	if (req->replay) {
		memcpy(&value, req->replay, sizeof(value));
		atomic_fetch_add(&replayed, 1);
	} else {
		value = atomic_fetch_add(&counted, 1) + 1;
		if (ms)
			fiber_sleep(ms * NSEC_PER_MSEC);
	}
	return xdr_put_u32(&req->out, value) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static int run_sleep(struct rpc_request *req)
{
	uint32_t ms;
	if (!xdr_get_u32(&req->in, &ms))
		return RPC_GARBAGE_ARGS;
	atomic_fetch_add(&slept, 1);
	fiber_sleep(ms * NSEC_PER_MSEC);
	return RPC_SUCCESS;
}

static uint32_t more_big(const struct rpc_request *req)
{
	struct xdr_in in = req->in;
	uint32_t len;
	return xdr_get_u32(&in, &len) ? len : 0;
}

static int run_big(struct rpc_request *req)
{
	uint32_t len;
	if (!xdr_get_u32(&req->in, &len))
		return RPC_GARBAGE_ARGS;
	for (uint32_t i = 0; i < len / 4; i++)
		if (!xdr_put_u32(&req->out, i))
			return RPC_SYSTEM_ERR;
	return RPC_SUCCESS;
}

static int run_drop(struct rpc_request *req)
{
	(void)req;
	return RPC_DROP;
}

static int run_cred(struct rpc_request *req)
{
	bool good = xdr_put_u32(&req->out, req->cred.flavor) && xdr_put_u32(&req->out, req->cred.uid) &&
		    xdr_put_u32(&req->out, req->cred.gid) && xdr_put_u32(&req->out, req->cred.group_count);
	for (uint32_t i = 0; i < req->cred.group_count; i++)
		good = good && xdr_put_u32(&req->out, req->cred.groups[i]);
	return good ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

/* Version 2 wants AUTH_SYS. */
static int authorize(struct rpc_request *req)
{
	if (req->cred.flavor == RPC_AUTH_SYS)
		return 0;
	atomic_fetch_add(&refused, 1);
	req->auth_stat = RPC_AUTH_TOOWEAK;
	return -1;
}

static const struct rpc_procedure procedures[P_PROCS] = {
	[P_NULL] = {.name = "NULL", .run = run_null},
	[P_ECHO] = {.name = "ECHO", .run = run_echo, .reply_max = 3100},
	[P_WRITE] = {.name = "WRITE", .run = run_write, .reply_max = 16},
	[P_READ] = {.name = "READ", .run = run_read, .reply_max = 16},
	[P_COUNT] = {.name = "COUNT", .run = run_count, .flags = RPC_PROC_CACHED, .reply_max = 4},
	[P_SLEEP] = {.name = "SLEEP", .run = run_sleep},
	[P_BIG] = {.name = "BIG", .run = run_big, .reply_more = more_big},
	[P_DROP] = {.name = "DROP", .run = run_drop},
	[P_READ2] = {.name = "READ2", .run = run_read2, .reply_max = 32},
	[P_SPOILED] = {.name = "SPOILED", .run = run_spoiled, .reply_max = 16},
	[P_CRED] = {.name = "CRED", .run = run_cred, .reply_max = 100},
};
static const struct rpc_program version2 = {.program = PROGRAM,
	.version = 2,
	.name = "test2",
	.procedure = procedures,
	.procedures = P_PROCS,
	.authorize = authorize};
static const struct rpc_program version4 = {
	.program = PROGRAM, .version = 4, .name = "test4", .procedure = procedures, .procedures = P_PROCS};
static const struct rpc_program *const programs[] = {&version2, &version4};

#include "tests/rpcrdma/tcp_fixture.h"

static int start_shares(void **state)
{
	(void)state;
	return start_with((struct rpc_server_config){.memory = 16 * MIB});
}

static int start_small(void **state)
{
	(void)state;
	return start_with((struct rpc_server_config){.memory = 2 * MIB, .tcp_connections = 8});
}

/* ------------------------------------------------------------------------------------------------
 * Tests
 */

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

static void write_once(int fd, uint32_t len, uint32_t fragments)
{
	struct message m;
	uint32_t reply;
	message_begin(&m, len + 100, len + 7, 4, P_WRITE);
	xdr_put_u32(&m.out, len);
	for (uint32_t i = 0; i < len; i++)
		m.out.p[i] = pattern(len, i);
	memset(m.out.p + len, 0, 4);
	m.out.p += xdr_round(len);
	xdr_put_u32(&m.out, 0xabcd0000u + len);
	uint32_t whole = message_len(&m), at = 0;
	for (uint32_t i = 1; i <= fragments; i++) {
		uint32_t some = i == fragments ? whole - at : whole / fragments,
			 mark = htonl(some | (i == fragments ? 0x80000000u : 0));
		put_all(fd, &mark, 4);
		put_all(fd, m.out.base + at, some);
		at += some;
	}
	free(m.bytes);
	uint8_t *p = get_success(fd, len + 7, &reply);
	assert_int_equal(reply, 24 + 16);
	assert_int_equal(word(p, 6), len);
	assert_true(((uint64_t)word(p, 7) << 32 | word(p, 8)) == pattern_sum(len, len));
	assert_int_equal(word(p, 9), 0xabcd0000u + len);
	free(p);
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

static void read_check(const uint8_t *p, uint32_t len, uint32_t bytes, uint32_t seed)
{
	assert_int_equal(len, 24 + 4 + xdr_round(bytes) + 4);
	assert_int_equal(word(p, 6), bytes);
	for (uint32_t i = 0; i < bytes; i++)
		if (p[28 + i] != pattern(seed, i))
			fail_msg("byte %u of %u differs", i, bytes);
	for (uint32_t i = bytes; i < xdr_round(bytes); i++)
		assert_int_equal(p[28 + i], 0);
	assert_int_equal(word(p, 7 + xdr_round(bytes) / 4), ~seed);
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

/* A peer that asks for a lot and reads nothing: bounded, and the others go on. */
static void test_slow_reader(void **state)
{
	(void)state;
	enum { CALLS = 100 };
	int fd = client(), small = 65536;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	atomic_store(&reads, 0);
	for (uint32_t i = 0; i < CALLS; i++)
		send_words(fd, i + 1, P_READ, 2, MIB, i);
	wait_for(atomic_load(&reads) >= 4);
	usleep(300000);
	assert_true(atomic_load(&reads) < 30); /* what the sockets and the connection's share of memory take */
	null_works();
	for (uint32_t i = 0; i < CALLS; i++) {
		uint32_t len;
		uint8_t *p = get_success(fd, 0, &len);
		read_check(p, len, MIB, word(p, 0) - 1);
		free(p);
	}
	assert_int_equal(atomic_load(&reads), CALLS);
	close(fd);
}

/* How long a few short calls of new clients take. */
static uint64_t others_take(void)
{
	uint64_t before = now_ns();
	uint32_t len;
	for (int i = 0; i < 10; i++) {
		int fd = client();
		send_words(fd, 1, P_NULL, 0, 0, 0);
		free(get_success(fd, 1, &len));
		send_words(fd, 2, P_READ, 2, 65536, 1);
		free(get_success(fd, 2, &len));
		close(fd);
	}
	return now_ns() - before;
}

/* Peers that ask for a lot and read nothing: others do not notice, long before those are closed. */
static void test_shares(void **state)
{
	(void)state;
	enum { SLOW = 8, CALLS = 120 };
	int slow[SLOW], small = 65536;
	uint32_t len;
	uint64_t alone = others_take(); /* the machine may be busy */
	for (int i = 0; i < SLOW; i++) {
		slow[i] = client();
		setsockopt(slow[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
		for (uint32_t k = 0; k < CALLS; k++)
			send_words(slow[i], k + 1, P_READ, 2, MIB, k);
	}
	for (uint32_t before = UINT32_MAX; before != atomic_load(&reads);) { /* until none of them gets more */
		before = atomic_load(&reads);
		usleep(300000);
	}
	assert_true(others_take() < 1500 * NSEC_PER_MSEC + 20 * alone);
	/* and they get all of it when they do read */
	for (uint32_t k = 0; k < CALLS; k++)
		free(get_success(slow[0], 0, &len));
	for (int i = 0; i < SLOW; i++)
		close(slow[i]);
}

/* As above, and goes away without reading. */
static void test_rude_reader(void **state)
{
	(void)state;
	struct linger rst = {.l_onoff = 1};
	for (int reset = 0; reset < 2; reset++) {
		int fd = client();
		for (uint32_t i = 0; i < 60; i++)
			send_words(fd, i + 1, P_READ, 2, MIB, i);
		usleep(30000);
		if (reset)
			setsockopt(fd, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst));
		close(fd);
		wait_for(connections_now() == 0);
	}
	null_works();
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

static void test_drop_and_half_close(void **state)
{
	(void)state;
	int fd = client();
	uint32_t len;
	send_words(fd, 1, P_DROP, 0, 0, 0);
	assert_true(silent(fd, 30));
	/* Everything was sent, and the other direction still works. */
	send_words(fd, 2, P_SLEEP, 1, 40, 0);
	send_words(fd, 3, P_READ, 2, MIB, 9);
	shutdown(fd, SHUT_WR);
	for (int i = 0; i < 2; i++) {
		uint8_t *p = get_success(fd, 0, &len);
		free(p);
	}
	assert_true(closed(fd));
	close(fd);
}

static void test_parallel(void **state)
{
	(void)state;
	int fd = client();
	uint32_t len;
	uint64_t begin = now_ns();
	for (uint32_t i = 1; i <= 100; i++)
		send_words(fd, i, P_SLEEP, 1, 100, 0);
	for (uint32_t i = 1; i <= 100; i++)
		free(get_success(fd, 0, &len));
	assert_true(now_ns() - begin < 3 * NSEC_PER_SEC); /* one after the other: 10 s */
	close(fd);
}

static void test_close_midway(void **state)
{
	(void)state;
	for (int i = 0; i < 30; i++) {
		int fd = client();
		struct message m;
		message_begin(&m, MIB + 100, 5, 4, P_WRITE);
		xdr_put_u32(&m.out, MIB);
		m.out.p += MIB;
		memset(m.out.p - MIB, 1, MIB);
		xdr_put_u32(&m.out, 1);
		uint32_t len = message_mark(&m);
		put_all(fd, m.bytes, len * (uint32_t)i / 30);
		if (i % 3 == 0)
			send_words(fd, 1, P_SLEEP, 1, 20, 0);
		close(fd);
		free(m.bytes);
	}
	int fd = client();
	send_words(fd, 1, P_SLEEP, 1, 30, 0);
	close(fd);
	null_works();
}

struct listing {
	unsigned count, on[2];
	uint64_t calls;
};

static void list_one(void *arg, const struct rpc_connection_info *info)
{
	struct listing *l = arg;
	assert(!strcmp(info->peer, "127.0.0.1") && !info->rdma);
	l->count++;
	l->on[info->reactor]++;
	l->calls += info->calls;
}

static void test_connections(void **state)
{
	(void)state;
	enum { N = 200 };
	int fd[N];
	uint32_t len;
	uint64_t free_idle = arena_free_bytes();
	for (int i = 0; i < N; i++)
		fd[i] = client();
	wait_for(connections_now() == N);
	/* An idle connection holds no buffer: only the rings of the two reactors are there. */
	assert_true(free_idle - arena_free_bytes() <= 2 * 256 * 8192 + 65536);
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < N; i++)
			send_words(fd[i], (uint32_t)(i + 1), round % 2 ? P_NULL : P_READ, 2, 10000, 3);
		for (int i = 0; i < N; i++)
			free(get_success(fd[i], (uint32_t)(i + 1), &len));
	}
	struct listing l = {0};
	rpc_connections_foreach(server, list_one, &l);
	assert_int_equal(l.count, N);
	assert_int_equal(l.calls, 5 * N);
	assert_true(l.on[0] >= 80 && l.on[1] >= 80);
	for (int i = 0; i < N; i++)
		close(fd[i]);
}

static void test_stop_running(void **state)
{
	(void)state;
	int fd = client(), idle = client(), partial = client(), blocked = client();
	uint32_t len;
	atomic_store(&slept, 0);
	put_all(partial, "\200\0\1\0abc", 7);
	for (uint32_t i = 0; i < 20; i++)
		send_words(blocked, i + 1, P_READ, 2, MIB, i);
	for (uint32_t i = 1; i <= 10; i++)
		send_words(fd, i, P_SLEEP, 1, 150, 0);
	wait_for(atomic_load(&slept) == 10);
	uint64_t begin = now_ns();
	/* so that replies which nobody reads do not hold it up for the whole grace */
	close(blocked);
	reactor_call(reactor_get(1), do_stop, NULL);
	assert_true(now_ns() - begin < 4 * NSEC_PER_SEC);
	/* those that ran were answered */
	for (uint32_t i = 1; i <= 10; i++)
		free(get_success(fd, 0, &len));
	assert_true(closed(fd) && closed(idle) && closed(partial));
	close(fd);
	close(idle);
	close(partial);
}

/* With hardly any memory everything is answered all the same, only later. */
static void test_little_memory(void **state)
{
	(void)state;
	enum { N = 8 };
	int fd[N];
	uint32_t len;
	for (int i = 0; i < N; i++)
		fd[i] = client();
	for (uint32_t round = 0; round < 40; round++)
		for (int i = 0; i < N; i++)
			send_words(fd[i], round + 1, round % 4 ? P_READ : P_SLEEP, 2, round % 4 ? 300000 : 1, round);
	/* Reads where there is something: who lets one connection wait for another holds memory that the other needs.
	 */
	struct pollfd p[N];
	for (int i = 0; i < N; i++)
		p[i] = (struct pollfd){.fd = fd[i], .events = POLLIN};
	for (int left = 40 * N; left;) {
		assert_true(poll(p, N, 5000) > 0);
		for (int i = 0; i < N; i++)
			if (p[i].revents) {
				free(get_success(fd[i], 0, &len));
				left--;
			}
	}
	/* and beyond the limit of connections one is closed at once */
	int more = client();
	assert_true(closed(more));
	close(more);
	for (int i = 1; i < N; i++)
		close(fd[i]);
	wait_for(connections_now() == 1);
	write_once(fd[0], MIB, 1);
	write_once(fd[0], MIB, 100);
	close(fd[0]);
}

/* Hundreds of calls that wait for admission, dropped at once: their connections close, or the server stops. */
static void test_waiting_dropped(void **state)
{
	(void)state;
	enum { N = 8 };
	for (int how = 0; how < 2; how++) {
		int fd[N];
		atomic_store(&slept, 0);
		for (int i = 0; i < N; i++)
			fd[i] = client();
		for (int i = 0; i < N; i++)
			for (uint32_t k = 1; k <= 128; k++)
				send_words(fd[i], k, P_SLEEP, 1, 400, 0);
		wait_for(atomic_load(&slept) >= 150);
		assert_true(atomic_load(&slept) <= 2 * MIB / 8192 + 2);
		if (how == 1)
			reactor_call(reactor_get(0), do_stop, NULL);
		for (int i = 0; i < N; i++)
			close(fd[i]);
		if (how == 0)
			wait_for(connections_now() == 0);
	}
}

#define with(test) cmocka_unit_test_setup_teardown(test, start, stop)

static int all_tests(void)
{
	const struct CMUnitTest tests[] = {
		with(test_calls),
		with(test_ipv6),
		with(test_fragments),
		with(test_many_in_one),
		with(test_write),
		with(test_read),
		with(test_slow_reader),
		cmocka_unit_test_setup_teardown(test_shares, start_shares, stop),
		with(test_rude_reader),
		with(test_nonsense),
		with(test_fuzz),
		with(test_errors),
		with(test_duplicates),
		with(test_cache_bound),
		with(test_replay),
		with(test_drop_and_half_close),
		with(test_parallel),
		with(test_close_midway),
		with(test_connections),
		with(test_stop_running),
		cmocka_unit_test_setup_teardown(test_little_memory, start_small, stop),
		cmocka_unit_test_setup_teardown(test_waiting_dropped, start_small, stop),
	};
	printf("seed %u\n", SEED);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
	return fixture_run(all_tests);
}
