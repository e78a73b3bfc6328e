/*
 * What a COMPOUND needs, over TCP: a reply that grows while it is made, and several payloads each way in one message,
 * cut at any place. Over RDMA it is test_rdma_reverse that shows this.
 */
#include "rpcrdma/rpcrdma.h"

#define PROGRAM 0x20000099u
#define PAYLOAD_BYTES 70000u

enum { P_NULL, P_GROW, P_BOTH, P_PROCS };

static _Atomic uint32_t most_room;

static int run_null(struct rpc_request *req)
{
	(void)req;
	return RPC_SUCCESS;
}

/* count, step: so many numbers, of which STEP bytes are made room for at a time; then how many there were */
static int run_grow(struct rpc_request *req)
{
	uint32_t count, step, done = 0;
	if (!xdr_get_u32(&req->in, &count) || !xdr_get_u32(&req->in, &step))
		return RPC_GARBAGE_ARGS;
	atomic_store(&most_room, rpc_reply_room(req));
	while (done < count) {
		uint32_t room = rpc_reply_room(req);
		int rc = rpc_reply_grow(req, step + 4);
		if ((rc == 0) != (room >= step + 4))
			return RPC_SYSTEM_ERR;
		if (rc == -EMSGSIZE)
			break;
		for (uint32_t i = 0; i < step / 4 && done < count; i++)
			if (!xdr_put_u32(&req->out, done++))
				return RPC_SYSTEM_ERR;
	}
	return xdr_put_u32(&req->out, done) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

/* payloads, each sent back with the number that stood before it, and 1000 bytes more of head for each */
static int run_both(struct rpc_request *req)
{
	struct xdr_payload p[XDR_PAYLOADS_MAX + 1];
	uint32_t n, number[XDR_PAYLOADS_MAX + 1];
	if (!xdr_get_u32(&req->in, &n) || n > XDR_PAYLOADS_MAX)
		return RPC_GARBAGE_ARGS;
	for (uint32_t i = 0; i < n; i++)
		if (!xdr_get_u32(&req->in, &number[i]) || !xdr_get_payload(&req->in, PAYLOAD_BYTES, &p[i]))
			return RPC_GARBAGE_ARGS;
	for (uint32_t i = 0; i < n; i++) {
		struct slice v = {buf_alloc(p[i].len ? p[i].len : 1), 0, p[i].len};
		struct xdr_payload out = {.len = p[i].len};
		if (rpc_payload_room(req) != UINT32_MAX || rpc_payload_fetch(req, &p[i], &v, 1) ||
			rpc_reply_grow(req, 1008) || !xdr_put_u32(&req->out, number[i]) ||
			!xdr_put_payload(&req->out, &out)) {
			buf_put(v.buf);
			return RPC_SYSTEM_ERR;
		}
		if (rpc_payload_attach(req, &v, 1))
			return RPC_SYSTEM_ERR;
		for (uint32_t k = 0; k < 250; k++)
			xdr_put_u32(&req->out, k);
	}
	return RPC_SUCCESS;
}

static const struct rpc_procedure procedures[P_PROCS] = {
	[P_NULL] = {.name = "NULL", .run = run_null},
	[P_GROW] = {.name = "GROW", .run = run_grow, .reply_max = 4},
	[P_BOTH] = {.name = "BOTH", .run = run_both, .reply_max = 4},
};
static const struct rpc_program version4 = {
	.program = PROGRAM, .version = 4, .name = "test", .procedure = procedures, .procedures = P_PROCS};
static const struct rpc_program *const programs[] = {&version4};

#include "tests/rpcrdma/tcp_fixture.h"

static void test_grow(void **state)
{
	static const uint32_t steps[] = {4, 100, 4000, 65536, 200000};
	(void)state;
	int fd = client();
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		for (uint32_t count = 0; count < 100000; count = count * 5 + 1) {
			uint32_t len, done;
			send_words(fd, 5, P_GROW, 2, count, steps[i]);
			uint8_t *p = get_success(fd, 5, &len);
			done = word(p, len / 4 - 1);
			assert_int_equal(len, 24 + 4 * done + 4);
			for (uint32_t k = 0; k < done; k++)
				assert_int_equal(word(p, 6 + k), k);
			uint32_t whole = (most_room - 4) / (steps[i] & ~3u) * (steps[i] / 4);
			assert_int_equal(done, count < whole ? count : whole);
			free(p);
		}
	assert_true(most_room > 200000 && most_room < BUF_MAX);
	close(fd);
}

static void test_payloads(void **state)
{
	(void)state;
	int fd = client();
	for (uint32_t n = 0; n <= XDR_PAYLOADS_MAX; n++)
		for (unsigned cut = 0; cut < 3; cut++) {
			struct message m;
			uint8_t *data = malloc(PAYLOAD_BYTES);
			uint32_t len;
			message_begin(&m, n * (PAYLOAD_BYTES + 8) + 4, 9, 4, P_BOTH);
			xdr_put_u32(&m.out, n);
			for (uint32_t i = 0; i < n; i++) {
				for (uint32_t k = 0; k < PAYLOAD_BYTES; k++)
					data[k] = (uint8_t)(i * 77 + k * 13 + (k >> 8));
				xdr_put_u32(&m.out, i + 1000);
				xdr_put_opaque(&m.out, data, cut ? (i * 9241 + n) % PAYLOAD_BYTES : i);
			}
			len = message_mark(&m);
			for (uint32_t at = 0, some; at < len; at += some) { /* so that it arrives in pieces */
				some = cut < 2 ? len : 2999;
				if (some > len - at)
					some = len - at;
				put_all(fd, m.bytes + at, some);
				if (cut == 2)
					usleep(200);
			}
			uint8_t *p = get_success(fd, 9, &len), *at = p + 24;
			for (uint32_t i = 0; i < n; i++) {
				uint32_t want = cut ? (i * 9241 + n) % PAYLOAD_BYTES : i;
				assert_int_equal(word(at, 0), i + 1000);
				assert_int_equal(word(at, 1), want);
				for (uint32_t k = 0; k < want; k++)
					assert_int_equal(at[8 + k], (uint8_t)(i * 77 + k * 13 + (k >> 8)));
				at += 8 + xdr_round(want);
				for (uint32_t k = 0; k < 250; k++)
					assert_int_equal(word(at, k), k);
				at += 1000;
			}
			assert_int_equal(at - p, len);
			free(p);
			free(data);
			free(m.bytes);
		}
	close(fd);
}

#define with(test) cmocka_unit_test_setup_teardown(test, start, stop)

static int all_tests(void)
{
	const struct CMUnitTest tests[] = {
		with(test_grow),
		with(test_payloads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
	return fixture_run(all_tests);
}
