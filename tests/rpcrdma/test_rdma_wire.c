/*
 * The RDMA transport as a peer sees it: every way in which RFC 8166 lets a call and a reply travel, what is refused and
 * how, and connections that break at bad moments. A bare-verbs peer on this thread talks to a server in this process.
 *
 * Needs an RDMA device with an IPv4 address (FURROW_RDMA_ADDRESS, or 10.99.0.1 where a soft-RoCE device has it):
 * without one it says so and ends. tests/vm/rdma_wire.sh runs it in a guest.
 */
#include "rpcrdma/rpcrdma.h"

#define PROGRAM 0x20000f77u
#define PORT 20949

/* ------------------------------------------------------------------------------------------------
 * The server and its program
 */

#include "rdma_fixture.h"

enum { P_NULL, P_PUT, P_GET, P_LONG_REPLY, P_LONG_CALL, P_SLOW, P_DROP, P_PUT2, P_GET2, P_COUNT };

/* number, payload, number -> length, sum, second number */
static int p_put(struct rpc_request *req)
{
	uint32_t before, after;
	struct xdr_payload payload;
	if (!xdr_get_u32(&req->in, &before) || !xdr_get_payload(&req->in, SLICES * EACH, &payload) ||
		!xdr_get_u32(&req->in, &after))
		return RPC_GARBAGE_ARGS;
	int rc = fetch_and_sum(req, &payload);
	return rc ? rc : xdr_put_u32(&req->out, after) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static int p_put2(struct rpc_request *req)
{
	struct xdr_payload a, b;
	uint32_t between, after;
	if (!xdr_get_payload(&req->in, SLICES * EACH, &a) || !xdr_get_u32(&req->in, &between) ||
		!xdr_get_payload(&req->in, SLICES * EACH, &b) || !xdr_get_u32(&req->in, &after))
		return RPC_GARBAGE_ARGS;
	int rc = fetch_and_sum(req, &a);
	rc = rc ? rc : fetch_and_sum(req, &b);
	xdr_put_u32(&req->out, between);
	return rc ? rc : xdr_put_u32(&req->out, after) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static int get_one(struct rpc_request *req, uint32_t count, uint32_t seed)
{
	struct slice v[SLICES];
	if (count > req->reply_payload_max)
		count = req->reply_payload_max;
	if (count > SLICES * EACH)
		count = SLICES * EACH;
	unsigned n = slices_make(v, SLICES, count, EACH);
	uint32_t at = 0;
	for (unsigned i = 0; i < n; i++)
		for (uint32_t k = 0; k < v[i].len; k++)
			slice_data(&v[i])[k] = pattern(seed, at++);
	struct xdr_payload payload = {.len = count};
	if (!xdr_put_payload(&req->out, &payload)) {
		slices_release(v, n);
		return RPC_SYSTEM_ERR;
	}
	return rpc_payload_attach(req, v, n) ? RPC_SYSTEM_ERR : RPC_SUCCESS;
}

/* count, seed -> seed, payload, ~seed */
static int p_get(struct rpc_request *req)
{
	uint32_t count, seed;
	if (!xdr_get_u32(&req->in, &count) || !xdr_get_u32(&req->in, &seed))
		return RPC_GARBAGE_ARGS;
	xdr_put_u32(&req->out, seed);
	int rc = get_one(req, count, seed);
	return rc ? rc : xdr_put_u32(&req->out, ~seed) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static int p_get2(struct rpc_request *req)
{
	uint32_t first, second, seed;
	if (!xdr_get_u32(&req->in, &first) || !xdr_get_u32(&req->in, &second) || !xdr_get_u32(&req->in, &seed))
		return RPC_GARBAGE_ARGS;
	int rc = get_one(req, first, seed);
	rc = rc ? rc : get_one(req, second, seed + 1);
	return rc ? rc : xdr_put_u32(&req->out, ~seed) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static uint32_t long_reply_more(const struct rpc_request *req)
{
	struct xdr_in in = req->in;
	uint32_t count;
	return xdr_get_u32(&in, &count) && count < 1u << 20 ? count : 0;
}

static int p_long_reply(struct rpc_request *req)
{
	uint32_t count, seed;
	if (!xdr_get_u32(&req->in, &count) || !xdr_get_u32(&req->in, &seed))
		return RPC_GARBAGE_ARGS;
	if (count > 1u << 20)
		return RPC_SYSTEM_ERR;
	uint8_t *bytes = malloc(count + 1);
	for (uint32_t i = 0; i < count; i++)
		bytes[i] = pattern(seed, i);
	bool fits = xdr_put_opaque(&req->out, bytes, count);
	free(bytes);
	return fits ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

/* numbers until the end -> how many, and their sum */
static int p_long_call(struct rpc_request *req)
{
	uint32_t n = 0, v;
	uint64_t sum = 0;
	for (; xdr_get_u32(&req->in, &v); n++)
		sum = sum * 31 + v;
	xdr_put_u32(&req->out, n);
	return xdr_put_u64(&req->out, sum) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static const struct rpc_procedure procedures[P_COUNT] = {
	[P_NULL] = {"NULL", p_null, 0, 0, NULL},
	[P_PUT] = {"PUT", p_put, 0, 64, NULL},
	[P_GET] = {"GET", p_get, 0, 16, NULL},
	[P_LONG_REPLY] = {"LONG_REPLY", p_long_reply, 0, 16, long_reply_more},
	[P_LONG_CALL] = {"LONG_CALL", p_long_call, 0, 64, NULL},
	[P_SLOW] = {"SLOW", p_slow, 0, 16, NULL},
	[P_DROP] = {"DROP", p_drop, 0, 16, NULL},
	[P_PUT2] = {"PUT2", p_put2, 0, 64, NULL},
	[P_GET2] = {"GET2", p_get2, 0, 16, NULL},
};
static const struct rpc_program program = {PROGRAM, 1, "test", procedures, P_COUNT, NULL};
static const struct rpc_program *const programs[] = {&program};

/* ------------------------------------------------------------------------------------------------
 * Calls
 */

static void test_null(void **state)
{
	(void)state;
	struct peer p;
	open_peer(&p);
	struct rdma_private d;
	rdma_private_decode(&d, p.private_data, p.private_bytes);
	assert_int_equal(d.send_bytes, 4096);
	assert_int_equal(d.receive_bytes, 4096);
	for (int i = 0; i < 100; i++)
		ping(&p);
	peer_close(&p);
}

static void put_inline(struct message *m, uint32_t seed, uint32_t bytes)
{
	put(m, bytes);
	for (uint32_t i = 0; i < xdr_round(bytes); i++)
		m->data[m->bytes++] = i < bytes ? pattern(seed, i) : 0;
}

static void check_put(struct peer *p, uint32_t seed, uint32_t bytes, uint32_t after)
{
	struct answer a;
	answer_take(p, &a);
	const uint8_t *r = results(a.rpc, next_xid);
	assert_int_equal(word(r, 0), bytes);
	assert_int_equal(u64_of(r, 1), sum_of(seed, bytes));
	assert_int_equal(word(r, 3), after);
}

static void test_put_inline(void **state)
{
	(void)state;
	static const uint32_t sizes[] = {0, 1, 3, 4, 1000, 1001, 3900};
	struct peer p;
	open_peer(&p);
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		struct message m;
		header_begin(&m, RDMA_MSG);
		put_empty_lists(&m);
		put_call(&m, P_PUT);
		put(&m, 7);
		put_inline(&m, i, sizes[i]);
		put(&m, 0x11223344);
		assert_true(peer_send(&p, m.data, m.bytes));
		check_put(&p, i, sizes[i], 0x11223344);
	}
	peer_close(&p);
}

static void put_chunked(struct peer *p, uint32_t seed, uint32_t bytes, unsigned segments, bool padded)
{
	struct message m;
	struct chunk_segment s[64];
	uint32_t chunk = padded ? xdr_round(bytes) : bytes;
	spread(p, s, segments, 4096, chunk, seed, true);
	header_begin(&m, RDMA_MSG);
	for (unsigned i = 0; i < segments; i++)
		put_read(p, &m, RPC_CALL_BYTES + 8, s[i]);
	put_empty_lists(&m);
	put_call(&m, P_PUT);
	put(&m, 7);
	put(&m, bytes);
	put(&m, 0x55667788); /* what follows the data stands in line, without padding before it */
	assert_true(peer_send(p, m.data, m.bytes));
	check_put(p, seed, bytes, 0x55667788);
}

static void test_put_chunk(void **state)
{
	(void)state;
	struct peer p;
	open_peer(&p);
	put_chunked(&p, 1, 1u << 20, 1, false);
	put_chunked(&p, 2, 100001, 1, false);
	put_chunked(&p, 3, 100001, 1, true);
	put_chunked(&p, 4, 100002, 7, false);
	put_chunked(&p, 5, 100003, 7, true);
	put_chunked(&p, 6, 1u << 20, 40, false);
	put_chunked(&p, 7, 1, 1, false);
	peer_close(&p);
}

/* A chunk for what the procedure does not fetch by itself (the path of a SYMLINK): it becomes part of the message. */
static void test_short_chunk(void **state)
{
	(void)state;
	struct peer p;
	open_peer(&p);
	for (uint32_t words = 1; words <= 1023; words += 146) {
		struct message m;
		struct answer a;
		uint64_t sum = 5;
		for (uint32_t k = 0; k < words; k++) {
			uint32_t v = htonl(k * 99);
			memcpy(p.memory + 4 * k, &v, 4);
			sum = sum * 31 + k * 99;
		}
		sum = sum * 31 + 6;
		header_begin(&m, RDMA_MSG);
		put_read(&p, &m, RPC_CALL_BYTES + 4, (struct chunk_segment){0, 2});
		put_read(&p, &m, RPC_CALL_BYTES + 4, (struct chunk_segment){2, 4 * words - 2});
		put_empty_lists(&m);
		put_call(&m, P_LONG_CALL);
		put(&m, 5);
		put(&m, 6);
		assert_true(peer_send(&p, m.data, m.bytes));
		answer_take(&p, &a);
		const uint8_t *r = results(a.rpc, next_xid);
		assert_int_equal(word(r, 0), words + 2);
		assert_int_equal(u64_of(r, 1), sum);
	}
	peer_close(&p);
}

/* Two payloads in two chunks: the longer is fetched in place, the other put into the message. */
static void test_put_two_chunks(void **state)
{
	(void)state;
	struct peer p;
	open_peer(&p);
	for (unsigned round = 0; round < 4; round++) {
		uint32_t a = round & 1 ? 5001 : 70002, b = round & 1 ? 90003 : 6000;
		struct message m;
		fill(&p, 0, a, 1);
		fill(&p, 1u << 20, b, 2);
		struct chunk_segment sa = {0, a}, sb = {1u << 20, b};
		uint32_t first = RPC_CALL_BYTES + 4, second = first + xdr_round(a) + 8;
		header_begin(&m, RDMA_MSG);
		if (round & 2) /* the list may be in any order */
			put_read(&p, &m, second, sb);
		put_read(&p, &m, first, sa);
		if (!(round & 2))
			put_read(&p, &m, second, sb);
		put_empty_lists(&m);
		put_call(&m, P_PUT2);
		put(&m, a);
		put(&m, 0xaaaa);
		put(&m, b);
		put(&m, 0xbbbb);
		assert_true(peer_send(&p, m.data, m.bytes));
		struct answer r;
		answer_take(&p, &r);
		const uint8_t *v = results(r.rpc, next_xid);
		assert_int_equal(word(v, 0), a);
		assert_int_equal(u64_of(v, 1), sum_of(1, a));
		assert_int_equal(word(v, 3), b);
		assert_int_equal(u64_of(v, 4), sum_of(2, b));
		assert_int_equal(word(v, 6), 0xaaaa);
		assert_int_equal(word(v, 7), 0xbbbb);
	}
	peer_close(&p);
}

/* A call whose message is too long for a Send: position zero, in several segments, with and without a payload chunk. */
static void test_long_call(void **state)
{
	(void)state;
	static const uint32_t words[] = {1, 1000, 2000, 100000, 260000};
	struct peer p;
	open_peer(&p);
	for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
		struct message m, call = {.bytes = 0};
		struct answer a;
		uint64_t sum = 0;
		header_begin(&m, RDMA_NOMSG);
		put_call(&call, P_LONG_CALL);
		uint8_t *stream = malloc(RPC_CALL_BYTES + 4 * words[i]);
		memcpy(stream, call.data, RPC_CALL_BYTES);
		for (uint32_t k = 0; k < words[i]; k++) {
			uint32_t v = htonl(k * 77 + i);
			memcpy(stream + RPC_CALL_BYTES + 4 * k, &v, 4);
			sum = sum * 31 + k * 77 + i;
		}
		/* segments that end in the middle of words */
		uint32_t bytes = RPC_CALL_BYTES + 4 * words[i], cut = bytes / 3 + 1;
		struct chunk_segment s[3] = {{0, cut}, {3u << 20, cut}, {6u << 20, bytes - 2 * cut}};
		memcpy(p.memory, stream, cut);
		memcpy(p.memory + s[1].offset, stream + cut, cut);
		memcpy(p.memory + s[2].offset, stream + 2 * cut, bytes - 2 * cut);
		free(stream);
		for (unsigned k = 0; k < 3; k++)
			put_read(&p, &m, 0, s[k]);
		put_empty_lists(&m);
		assert_true(peer_send(&p, m.data, m.bytes));
		answer_take(&p, &a);
		const uint8_t *r = results(a.rpc, next_xid);
		assert_int_equal(word(r, 0), words[i]);
		assert_int_equal(u64_of(r, 1), sum);
	}
	/* the message at position zero, its payload in a chunk of its own */
	for (uint32_t bytes = 30000; bytes < 30004; bytes++) {
		struct message m, call = {.bytes = 0};
		header_begin(&m, RDMA_NOMSG);
		put_call(&call, P_PUT);
		put(&call, 7);
		put(&call, bytes);
		put(&call, 0xcafe);
		memcpy(p.memory, call.data, call.bytes);
		fill(&p, 65536, bytes, bytes);
		put_read(&p, &m, 0, (struct chunk_segment){0, call.bytes});
		put_read(&p, &m, RPC_CALL_BYTES + 8, (struct chunk_segment){65536, bytes});
		put_empty_lists(&m);
		assert_true(peer_send(&p, m.data, m.bytes));
		check_put(&p, bytes, bytes, 0xcafe);
	}
	peer_close(&p);
}

/* ------------------------------------------------------------------------------------------------
 * Replies
 */

static void check_memory(struct peer *p, const struct chunk_segment *s, unsigned n, uint32_t seed, uint32_t bytes)
{
	uint32_t at = 0;
	for (unsigned i = 0; i < n; i++) {
		for (uint32_t k = 0; k < s[i].length + 77; k++) {
			uint8_t have = p->memory[s[i].offset + k],
				want = k < s[i].length && at + k < bytes ? pattern(seed, at + k) : 0xee;
			if (have != want)
				fail_msg("segment %u byte %u is %#x and not %#x", i, k, have, want);
		}
		at += s[i].length;
	}
}

static void get_chunked(struct peer *p, uint32_t count, uint32_t room, unsigned segments)
{
	struct message m;
	struct answer a;
	struct chunk_segment s[64];
	uint32_t got = count < room ? count : room, written = 0;
	memset(p->memory, 0xee, PEER_MEMORY);
	spread(p, s, segments, 4096, room, 0, false);
	header_begin(&m, RDMA_MSG);
	put(&m, 0);
	put_write(p, &m, s, segments);
	put(&m, 0);
	put(&m, 0);
	put_call(&m, P_GET);
	put(&m, count);
	put(&m, count);
	assert_true(peer_send(p, m.data, m.bytes));
	answer_take(p, &a);
	assert_false(a.nomsg);
	const uint8_t *r = results(a.rpc, next_xid);
	assert_int_equal(a.rpc_bytes, 24 + 12);
	assert_int_equal(word(r, 0), count);
	assert_int_equal(word(r, 1), got);
	assert_int_equal(word(r, 2), ~count);
	assert_int_equal(a.header.write_count, 1);
	assert_int_equal(a.header.write[0].count, segments);
	for (unsigned i = 0; i < segments; i++) {
		uint32_t here = got - written < s[i].length ? got - written : s[i].length;
		assert_int_equal(a.header.segment[i].length, here);
		written += here;
	}
	check_memory(p, s, segments, count, got);
}

static void test_get_write_chunk(void **state)
{
	(void)state;
	struct peer p;
	open_peer(&p);
	get_chunked(&p, 1u << 20, 1u << 20, 1);
	get_chunked(&p, 100001, 1u << 20, 1);
	get_chunked(&p, 100001, 200000, 5);
	get_chunked(&p, 1000000, 1000000, 60);
	get_chunked(&p, 5000, 3001, 2); /* what the chunk holds is what the procedure gives */
	get_chunked(&p, 0, 4096, 1);
	get_chunked(&p, 1, 4096, 1);
	peer_close(&p);
}

/* Without a Write chunk the payload comes in line, with its padding, or in the Reply chunk. */
static void test_get_inline(void **state)
{
	(void)state;
	struct peer p;
	open_peer(&p);
	for (uint32_t count = 1000; count < 1004; count++) {
		struct message m;
		struct answer a;
		header_begin(&m, RDMA_MSG);
		put_empty_lists(&m);
		put_call(&m, P_GET);
		put(&m, count);
		put(&m, 5);
		assert_true(peer_send(&p, m.data, m.bytes));
		answer_take(&p, &a);
		const uint8_t *r = results(a.rpc, next_xid);
		assert_int_equal(a.rpc_bytes, 24 + 12 + xdr_round(count));
		assert_int_equal(word(r, 1), count);
		for (uint32_t i = 0; i < xdr_round(count); i++)
			assert_int_equal(r[8 + i], i < count ? pattern(5, i) : 0);
		assert_int_equal(word(r, 2 + xdr_round(count) / 4), ~5u);
	}
	/* more than fits is cut to what does */
	struct message m;
	struct answer a;
	header_begin(&m, RDMA_MSG);
	put_empty_lists(&m);
	put_call(&m, P_GET);
	put(&m, 50000);
	put(&m, 6);
	assert_true(peer_send(&p, m.data, m.bytes));
	answer_take(&p, &a);
	uint32_t got = word(results(a.rpc, next_xid), 1);
	assert_in_range(got, 3900, 4096 - 64);

	memset(p.memory, 0xee, PEER_MEMORY);
	struct chunk_segment s[3];
	spread(&p, s, 3, 4096, 60000, 0, false);
	header_begin(&m, RDMA_MSG);
	put(&m, 0), put(&m, 0);
	put_write(&p, &m, s, 3);
	put_call(&m, P_GET);
	put(&m, 50001);
	put(&m, 9);
	assert_true(peer_send(&p, m.data, m.bytes));
	answer_take(&p, &a);
	assert_true(a.nomsg);
	assert_int_equal(a.rpc_bytes, 0);
	assert_int_equal(a.header.reply.length, 24 + 12 + 50004);
	uint8_t *stream = malloc(60000);
	memcpy(stream, p.memory + s[0].offset, s[0].length);
	memcpy(stream + s[0].length, p.memory + s[1].offset, s[1].length);
	memcpy(stream + s[0].length + s[1].length, p.memory + s[2].offset, s[2].length);
	const uint8_t *r = results(stream, next_xid);
	assert_int_equal(word(r, 1), 50001);
	for (uint32_t i = 0; i < 50004; i++)
		assert_int_equal(r[8 + i], i < 50001 ? pattern(9, i) : 0);
	assert_int_equal(word(r, 2 + 50004 / 4), ~9u);
	free(stream);
	peer_close(&p);
}

static void test_get_two_write_chunks(void **state)
{
	(void)state;
	struct peer p;
	struct message m;
	struct answer a;
	open_peer(&p);
	memset(p.memory, 0xee, PEER_MEMORY);
	struct chunk_segment first[2] = {{0, 20000}, {1u << 20, 20000}}, second = {2u << 20, 70000},
			     third = {3u << 20, 65000};
	header_begin(&m, RDMA_MSG);
	put(&m, 0);
	put_write(&p, &m, first, 2);
	put_write(&p, &m, &second, 1);
	put_write(&p, &m, &third, 1);
	put(&m, 0), put(&m, 0);
	put_call(&m, P_GET2);
	put(&m, 30001), put(&m, 39000), put(&m, 4);
	assert_true(peer_send(&p, m.data, m.bytes));
	answer_take(&p, &a);
	assert_int_equal(a.header.write_count, 3);
	assert_int_equal(a.header.write[0].length, 30001);
	assert_int_equal(a.header.write[1].length, 39000);
	assert_int_equal(a.header.write[2].length, 0); /* not used */
	check_memory(&p, first, 2, 4, 30001);
	check_memory(&p, &second, 1, 5, 39000);
	check_memory(&p, &third, 1, 0, 0);

	/* a procedure without payload returns the chunk with a length of zero */
	header_begin(&m, RDMA_MSG);
	put(&m, 0);
	put_write(&p, &m, &third, 1);
	put(&m, 0), put(&m, 0);
	put_call(&m, P_NULL);
	assert_true(peer_send(&p, m.data, m.bytes));
	answer_take(&p, &a);
	results(a.rpc, next_xid);
	assert_int_equal(a.header.write_count, 1);
	assert_int_equal(a.header.write[0].length, 0);
	peer_close(&p);
}

static void long_reply(struct peer *p, uint32_t count, uint32_t room, bool chunk)
{
	struct message m;
	struct chunk_segment s[2] = {{0, room / 2}, {1u << 20, room - room / 2}};
	memset(p->memory, 0xee, PEER_MEMORY);
	header_begin(&m, RDMA_MSG);
	put(&m, 0), put(&m, 0);
	if (chunk)
		put_write(p, &m, s, 2);
	else
		put(&m, 0);
	put_call(&m, P_LONG_REPLY);
	put(&m, count);
	put(&m, 3);
	assert_true(peer_send(p, m.data, m.bytes));
}

static void test_long_reply(void **state)
{
	(void)state;
	struct peer p;
	struct answer a;
	open_peer(&p);
	long_reply(&p, 100000, 120000, true);
	answer_take(&p, &a);
	assert_true(a.nomsg);
	assert_int_equal(a.header.reply.length, 24 + 4 + 100000);
	assert_int_equal(a.header.reply.count, 2);
	assert_int_equal(word(results(p.memory, next_xid), 0), 100000);
	for (uint32_t i = 0; i < 100000; i++) {
		uint32_t at = i + 28;
		assert_int_equal(p.memory[at < 60000 ? at : at - 60000 + (1u << 20)], pattern(3, i));
	}
	/* short enough: in line, and the Reply chunk is not returned */
	long_reply(&p, 1000, 120000, true);
	answer_take(&p, &a);
	assert_false(a.nomsg);
	assert_false(a.header.has_reply);
	assert_int_equal(word(results(a.rpc, next_xid), 0), 1000);
	/* too long for what was offered */
	long_reply(&p, 100000, 5000, true);
	answer_take(&p, &a);
	if (word(a.data, 3) != RDMA_ERROR)
		assert_int_equal(word(a.rpc, 5), RPC_SYSTEM_ERR);
	long_reply(&p, 100000, 0, false);
	answer_take(&p, &a);
	if (word(a.data, 3) != RDMA_ERROR)
		assert_int_equal(word(a.rpc, 5), RPC_SYSTEM_ERR);
	ping(&p);
	peer_close(&p);
}

/* A peer that says nothing of its buffers takes 1024 bytes. */
static void test_small_inline(void **state)
{
	(void)state;
	struct peer p;
	struct message m;
	struct answer a;
	struct peer_options o = {.no_private = true};
	assert_true(peer_open(&p, address, PORT, o));
	ping(&p);
	header_begin(&m, RDMA_MSG);
	put_empty_lists(&m);
	put_call(&m, P_GET);
	put(&m, 4000);
	put(&m, 6);
	assert_true(peer_send(&p, m.data, m.bytes));
	answer_take(&p, &a);
	assert_in_range(a.bytes, 900, 1024);
	results(a.rpc, next_xid);
	peer_close(&p);
}

/* ------------------------------------------------------------------------------------------------
 * What is refused
 */

static void test_bad_headers(void **state)
{
	(void)state;
	struct peer p;
	struct message m;
	open_peer(&p);
	header_begin(&m, RDMA_MSG);
	put_empty_lists(&m);
	put_call(&m, P_NULL);
	m.data[7] = 2; /* version */
	assert_true(peer_send(&p, m.data, m.bytes));
	expect_error(&p, next_xid, RDMA_ERR_VERS);
	m.data[7] = 1;
	m.data[15] = RDMA_MSGP;
	assert_true(peer_send(&p, m.data, m.bytes));
	expect_error(&p, next_xid, RDMA_ERR_CHUNK);
	m.data[15] = RDMA_DONE; /* silently dropped */
	assert_true(peer_send(&p, m.data, m.bytes));
	ping(&p);
	/* lists cut off at every word */
	for (uint32_t cut = 16; cut < 28; cut += 4) {
		header_begin(&m, RDMA_MSG);
		put_empty_lists(&m);
		assert_true(peer_send(&p, m.data, cut));
		expect_error(&p, next_xid, RDMA_ERR_CHUNK);
	}
	/* a position behind the end of the message; a call longer than any */
	header_begin(&m, RDMA_MSG);
	put_read(&p, &m, 4000, (struct chunk_segment){0, 100});
	put_empty_lists(&m);
	put_call(&m, P_NULL);
	assert_true(peer_send(&p, m.data, m.bytes));
	expect_error(&p, next_xid, RDMA_ERR_CHUNK);
	header_begin(&m, RDMA_MSG);
	put_read(&p, &m, 48, (struct chunk_segment){0, 1u << 29});
	put_empty_lists(&m);
	put_call(&m, P_PUT);
	put(&m, 0), put(&m, 1u << 29);
	assert_true(peer_send(&p, m.data, m.bytes));
	expect_error(&p, next_xid, RDMA_ERR_CHUNK);
	/* a second chunk inside of the first one's data */
	header_begin(&m, RDMA_MSG);
	put_read(&p, &m, 44, (struct chunk_segment){0, 1000});
	put_read(&p, &m, 48, (struct chunk_segment){0, 1000});
	put_empty_lists(&m);
	put_call(&m, P_PUT2);
	put(&m, 1000);
	assert_true(peer_send(&p, m.data, m.bytes));
	expect_error(&p, next_xid, RDMA_ERR_CHUNK);
	ping(&p);
	peer_close(&p);
	check_server(0);
}

static void expect_closed(struct peer *p)
{
	assert_true(peer_wait_lost(p, TAKE));
	peer_close(p);
	check_server(0);
}

static void test_garbage_closes(void **state)
{
	(void)state;
	struct peer p;
	struct message m = {.bytes = 0};
	open_peer(&p);
	assert_true(peer_send(&p, m.data, 12)); /* no xid to answer */
	expect_closed(&p);
	open_peer(&p);
	memset(m.data, 0, sizeof m.data);
	assert_true(peer_send(&p, m.data, 5000)); /* more than any receive holds */
	expect_closed(&p);
	open_peer(&p);
	header_begin(&m, RDMA_MSG);
	put_empty_lists(&m);
	put_call(&m, P_NULL);
	m.data[28 + 7] = 1; /* a reply, which nobody asked for */
	assert_true(peer_send(&p, m.data, m.bytes));
	expect_closed(&p);
}

/* Handles that are no handles cost the peer its connection, and the server nothing. */
static void test_bad_handles(void **state)
{
	(void)state;
	for (unsigned round = 0; round < 3; round++) {
		struct peer p;
		struct message m;
		struct chunk_segment s = {0, 100000};
		open_peer(&p);
		p.mr->rkey ^= 0x5500;
		header_begin(&m, RDMA_MSG);
		if (round == 0)
			put_read(&p, &m, 48, s);
		put(&m, 0);
		if (round == 1)
			put_write(&p, &m, &s, 1);
		put(&m, 0);
		if (round == 2)
			put_write(&p, &m, &s, 1);
		else
			put(&m, 0);
		put_call(&m, round == 0 ? P_PUT : round == 1 ? P_GET : P_LONG_REPLY);
		put(&m, round == 0 ? 7 : 50000);
		put(&m, round == 0 ? 100000 : 1);
		put(&m, 0);
		p.mr->rkey ^= 0x5500;
		assert_true(peer_send(&p, m.data, m.bytes));
		expect_closed(&p);
	}
}

static void test_no_reads_refused(void **state)
{
	(void)state;
	struct peer p;
	struct peer_options o = {.no_reads = true};
	uint64_t before = counter_read(&rdma_metrics.refused);
	assert_false(peer_open(&p, address, PORT, o));
	assert_int_equal(counter_read(&rdma_metrics.refused), before + 1);
	check_server(0);
}

/* ------------------------------------------------------------------------------------------------
 * Connections
 */

static void test_many_connections(void **state)
{
	(void)state;
	enum { N = 24 };
	static struct peer p[N];
	for (unsigned i = 0; i < N; i++)
		open_peer(&p[i]);
	check_server(N);
	for (unsigned round = 0; round < 3; round++)
		for (unsigned i = 0; i < N; i++)
			ping(&p[i]);
	for (unsigned i = 0; i < N; i++)
		peer_close(&p[i]);
	check_server(0);
}

static uint64_t rng_state;
static uint32_t rng(void)
{
	rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(rng_state >> 33);
}

/* Peers that go away at any moment: with calls running, reads and writes in flight, replies waiting. */
static void test_disconnects(void **state)
{
	(void)state;
	const char *env = getenv("SEED");
	rng_state = env ? strtoull(env, NULL, 0) : 0xd15c;
	print_message("# seed %#llx\n", (unsigned long long)rng_state);
	check_server(0);
	peer_sleep_us(50000);
	uint64_t before = arena_free_bytes(), receives = (uint64_t)atomic_load(&rdma_metrics.receives);
	for (unsigned round = 0; round < 40; round++) {
		struct peer p;
		open_busy(&p, P_SLOW);
		for (uint32_t n = rng() % CREDITS; n; n--) {
			struct message m;
			struct chunk_segment s = {0, 1u << 20};
			uint32_t kind = rng() % 4;
			header_begin(&m, kind == 3 ? RDMA_NOMSG : RDMA_MSG);
			if (kind == 0)
				put_read(&p, &m, 48, s);
			if (kind == 3)
				put_read(&p, &m, 0, s);
			put(&m, 0);
			if (kind == 1)
				put_write(&p, &m, &s, 1);
			put(&m, 0), put(&m, 0);
			if (kind != 3) {
				put_call(&m, kind == 0 ? P_PUT : kind == 1 ? P_GET : P_SLOW);
				put(&m, kind == 1 ? 1u << 20 : kind == 2 ? rng() % 50 : 0);
				put(&m, 1u << 20);
				put(&m, 0);
			}
			assert_true(peer_send(&p, m.data, m.bytes));
		}
		peer_sleep_us(rng() % 20000);
		peer_close(&p);
	}
	check_server(0);
	assert_int_equal(atomic_load(&rdma_metrics.connections), 0);
	assert_int_equal(atomic_load(&rdma_metrics.credits), 0);
	/* no buffer was lost: what is missing is what receives and contexts took for good */
	uint64_t more = ((uint64_t)atomic_load(&rdma_metrics.receives) - receives) * 4096;
	for (int i = 0; i < 300 && arena_free_bytes() + more + (256u << 10) < before; i++)
		peer_sleep_us(10000);
	assert_true(arena_free_bytes() + more + (256u << 10) >= before);
}

/* A peer that takes no replies, and one that died without a word. */
static void test_signs_of_life(void **state)
{
	(void)state;
	struct rdma_times normal = rdma_times;
	struct peer p, q;
	struct peer_options mute = {.no_receives = true}, dead = {.few_retries = true};
	struct message m;
	check_server(0);
	rdma_times = (struct rdma_times){.look = 100 * NSEC_PER_MSEC, .stall = NSEC_PER_SEC, .idle = NSEC_PER_SEC};
	assert_true(peer_open(&p, address, PORT, mute));
	header_begin(&m, RDMA_MSG);
	put_empty_lists(&m);
	put_call(&m, P_NULL);
	assert_true(peer_send(&p, m.data, m.bytes));
	assert_true(peer_wait_lost(&p, TAKE));
	assert_int_equal(counter_read(&rdma_metrics.stalls), 1);
	peer_close(&p);

	/* an idle peer that lives stays connected */
	assert_true(peer_open(&p, address, PORT, dead));
	assert_true(peer_open(&q, address, PORT, dead));
	ping(&p);
	ping(&q);
	for (int i = 0; i < 300 && counter_read(&rdma_metrics.probes) < 2; i++)
		peer_sleep_us(10000);
	peer_sleep_us(300000);
	ping(&p);
	ping(&q);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	assert_int_equal(ibv_modify_qp(p.id->qp, &attr, IBV_QP_STATE), 0);
	rdma_times.stall = 60 * NSEC_PER_SEC; /* so that it is the probe that fails */
	struct rpc_status s = {0};
	for (int i = 0; i < 2000; i++) {
		rpc_status(server, &s);
		if (s.rdma_connections == 1)
			break;
		peer_sleep_us(10000);
	}
	assert_int_equal(s.rdma_connections, 1);
	ping(&q);
	rdma_times = normal;
	peer_close(&p);
	peer_close(&q);
	check_server(0);
}

/* Whatever stands in a message: mutated calls of every kind. */
static void test_hostile_bytes(void **state)
{
	(void)state;
	const char *env = getenv("SEED");
	rng_state = env ? strtoull(env, NULL, 0) : 0xbadb17e5;
	print_message("# seed %#llx\n", (unsigned long long)rng_state);
	uint8_t take[PEER_SLOT];
	struct peer p;
	unsigned lost = 0;
	open_busy(&p, P_SLOW);
	for (unsigned round = 0; round < 400; round++) {
		struct message m;
		struct chunk_segment s[2] = {{0, rng() % 3000}, {65536, rng() % 70000}};
		uint32_t kind = rng() % P_COUNT;
		header_begin(&m, rng() % 6 ? RDMA_MSG : RDMA_NOMSG);
		for (uint32_t n = rng() % 3; n; n--)
			put_read(&p, &m, rng() % 2 ? 48 : 4 * (rng() % 20), s[rng() % 2]);
		put(&m, 0);
		for (uint32_t n = rng() % 3; n; n--)
			put_write(&p, &m, s, rng() % 3);
		put(&m, 0);
		if (rng() % 2)
			put_write(&p, &m, s, rng() % 3);
		else
			put(&m, 0);
		uint32_t rpc = m.bytes;
		put_call(&m, kind == P_SLOW ? P_NULL : kind);
		for (uint32_t n = rng() % 8; n; n--)
			put(&m, rng() % 2 ? rng() % 2000 : rng());
		for (uint32_t n = rng() % 4; n; n--) {
			uint32_t at = rng() % 3 ? rng() % m.bytes : rpc + rng() % (m.bytes - rpc);
			m.data[at] = (uint8_t)(rng() % 2 ? m.data[at] ^ (1u << rng() % 8) : rng());
		}
		if (!peer_send(&p, m.data, rng() % 8 ? m.bytes : 1 + rng() % m.bytes))
			p.lost = true;
		while (!p.lost && peer_take(&p, take, 3) > 0)
			;
		if (p.lost ||
			round % 8 == 7) { /* dropped calls keep their credits: begin anew before they are used up */
			lost += p.lost;
			peer_close(&p);
			open_busy(&p, P_SLOW);
		}
	}
	print_message("# %u connections lost\n", lost);
	ping(&p);
	peer_close(&p);
	check_server(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_null),
		cmocka_unit_test(test_put_inline),
		cmocka_unit_test(test_put_chunk),
		cmocka_unit_test(test_short_chunk),
		cmocka_unit_test(test_put_two_chunks),
		cmocka_unit_test(test_long_call),
		cmocka_unit_test(test_get_write_chunk),
		cmocka_unit_test(test_get_inline),
		cmocka_unit_test(test_get_two_write_chunks),
		cmocka_unit_test(test_long_reply),
		cmocka_unit_test(test_small_inline),
		cmocka_unit_test(test_bad_headers),
		cmocka_unit_test(test_garbage_closes),
		cmocka_unit_test(test_bad_handles),
		cmocka_unit_test(test_no_reads_refused),
		cmocka_unit_test(test_many_connections),
		cmocka_unit_test(test_disconnects),
		cmocka_unit_test(test_signs_of_life),
		cmocka_unit_test(test_hostile_bytes),
	};
	if (getenv("TEST"))
		cmocka_set_test_filter(getenv("TEST"));
	if (!fixture_begin())
		return fixture_rc;
	return cmocka_run_group_tests(tests, NULL, teardown);
}
