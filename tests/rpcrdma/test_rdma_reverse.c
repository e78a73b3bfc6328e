/*
 * Calls in reverse over RDMA (RFC 8167), and what a COMPOUND needs: many payloads in Read and Write chunks, replies
 * that grow. The peer of bare verbs answers right, wrong, late, with chunks, with RDMA_ERROR, or goes away. Needs a
 * device as test_rdma_wire does.
 */
#include "rpcrdma/rpcrdma.h"

#define PROGRAM 0x20000f78u
#define PORT 20950
#define BACK 0x40000000u

#include "rdma_fixture.h"

/* ------------------------------------------------------------------------------------------------
 * The program
 */

enum { P_NULL, P_LINK, P_PUTS, P_GETS, P_COUNT };

static struct rpc_link *_Atomic the_link;
static _Atomic uint32_t closes;

static int p_link(struct rpc_request *req)
{
	rpc_link_put(atomic_exchange(&the_link, rpc_link_get(req)));
	return RPC_SUCCESS;
}

/* count, then so often: number, payload; answers with each one's length, sum and number */
static int p_puts(struct rpc_request *req)
{
	struct xdr_payload p[10];
	uint32_t n, number[10];
	if (!xdr_get_u32(&req->in, &n) || n > 10)
		return RPC_GARBAGE_ARGS;
	for (uint32_t i = 0; i < n; i++)
		if (!xdr_get_u32(&req->in, &number[i]) || !xdr_get_payload(&req->in, SLICES * EACH, &p[i]))
			return RPC_GARBAGE_ARGS;
	if (xdr_in_left(&req->in))
		return RPC_GARBAGE_ARGS;
	uint8_t *out = req->out.p;
	for (uint32_t i = n; i--; req->out.p = out) { /* in any order */
		int rc = fetch_and_sum(req, &p[i]);
		if (rc)
			return rc;
	}
	for (uint32_t i = 0; i < n; i++) {
		int rc = fetch_and_sum(req, &p[i]);
		if (rc || !xdr_put_u32(&req->out, number[i]))
			return rc ? rc : RPC_SYSTEM_ERR;
	}
	return RPC_SUCCESS;
}

/*
 * count, then so often: length. Answers with as many as there is room for: length, payload of at most that length, and
 * 300 words behind it; then how many they were
 */
static int p_gets(struct rpc_request *req)
{
	uint32_t n, done = 0, len;
	if (!xdr_get_u32(&req->in, &n))
		return RPC_GARBAGE_ARGS;
	for (; done < n && xdr_get_u32(&req->in, &len); done++) {
		if (rpc_reply_room(req) < 4 + 1200 + 4 || rpc_payload_room(req) < len)
			break;
		if (rpc_reply_grow(req, 4 + 1200 + 4))
			return RPC_SYSTEM_ERR;
		struct slice v[SLICES];
		struct xdr_payload payload = {.len = len};
		unsigned k = slices_make(v, SLICES, len, EACH);
		uint32_t at = 0;
		for (unsigned i = 0; i < k; i++)
			for (uint32_t b = 0; b < v[i].len; b++)
				slice_data(&v[i])[b] = pattern(done, at++);
		if (!xdr_put_payload(&req->out, &payload)) {
			slices_put(v, k);
			break;
		}
		if (rpc_payload_attach(req, v, k))
			return RPC_SYSTEM_ERR;
		for (uint32_t i = 0; i < 300; i++)
			xdr_put_u32(&req->out, i);
	}
	return xdr_put_u32(&req->out, done) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static const struct rpc_procedure procedures[P_COUNT] = {
	[P_NULL] = {"NULL", p_null, 0, 0, NULL},
	[P_LINK] = {"LINK", p_link, 0, 0, NULL},
	[P_PUTS] = {"PUTS", p_puts, 0, 400, NULL},
	[P_GETS] = {"GETS", p_gets, 0, 16, NULL},
};
static const struct rpc_program program = {PROGRAM, 1, "test", procedures, P_COUNT, NULL};
static const struct rpc_program *const programs[] = {&program};

static void on_closed(struct rpc_link *link)
{
	if (rpc_link_closed(link))
		atomic_fetch_add(&closes, 1);
}

/* ------------------------------------------------------------------------------------------------
 * Sessions: threads that call once
 */

struct session {
	pthread_t thread;
	struct rpc_link *link;
	struct rpc_callback call;
	uint32_t args[1024], results[1024], bytes;
	int rc;
};

static void *session_run(void *arg)
{
	struct session *s = arg;
	s->rc = rpc_callback(s->link, &s->call, s->results, RPC_CALLBACK_MAX, &s->bytes);
	return NULL;
}

static struct session *session(uint32_t arg, uint32_t words, uint32_t ms)
{
	struct session *s = calloc(1, sizeof(*s));
	s->link = rpc_link_ref(the_link);
	for (uint32_t i = 0; i < words; i++)
		s->args[i] = htonl(arg + i);
	s->call = (struct rpc_callback){.program = BACK,
		.version = 1,
		.procedure = 1,
		.args = s->args,
		.args_bytes = 4 * words,
		.deadline = now_ns() + ms * NSEC_PER_MSEC};
	pthread_create(&s->thread, NULL, session_run, s);
	return s;
}

static void session_is(struct session *s, int rc)
{
	pthread_join(s->thread, NULL);
	assert_int_equal(s->rc, rc);
	if (!rc) {
		assert_int_equal(s->bytes, s->call.args_bytes);
		assert_memory_equal(s->results, s->args, s->bytes);
	}
	rpc_link_put(s->link);
	free(s);
}

/* ------------------------------------------------------------------------------------------------
 * The peer's side
 */

static void open_linked(struct peer *p)
{
	struct message m;
	struct answer a;
	open_peer(p);
	header_begin(&m, RDMA_MSG);
	put_empty_lists(&m);
	put_call(&m, P_LINK);
	assert_true(peer_send(p, m.data, m.bytes));
	answer_take(p, &a);
	results(a.rpc, next_xid);
}

struct back {
	uint8_t data[PEER_SLOT];
	uint32_t bytes, xid;
};

static void back_take(struct peer *p, struct back *b)
{
	int bytes = peer_take(p, b->data, TAKE);
	assert_true(bytes >= 28 + 40);
	b->bytes = (uint32_t)bytes;
	b->xid = word(b->data, 0);
	assert_int_equal(word(b->data, 1), 1);
	assert_int_equal(word(b->data, 2), 16); /* asked for */
	for (unsigned i = 3; i < 7; i++)
		assert_int_equal(word(b->data, i), 0); /* RDMA_MSG without chunks */
	assert_int_equal(word(b->data, 7), b->xid);
	assert_int_equal(word(b->data, 8), 0);
	assert_int_equal(word(b->data, 10), BACK);
}

static void answer_begin(struct message *m, uint32_t xid, uint32_t credits)
{
	m->bytes = 0;
	put(m, xid), put(m, 1), put(m, credits), put(m, RDMA_MSG);
	put_empty_lists(m);
	put(m, xid), put(m, 1), put(m, 0), put(m, 0), put(m, 0), put(m, 0);
}

static void back_answer(struct peer *p, const struct back *b, uint32_t credits)
{
	struct message m;
	answer_begin(&m, b->xid, credits);
	for (unsigned i = 17; i < b->bytes / 4; i++)
		put(&m, word(b->data, i));
	assert_true(peer_send(p, m.data, m.bytes));
}

static bool quiet(struct peer *p)
{
	uint8_t data[PEER_SLOT];
	return peer_take(p, data, 50) == -2;
}

/* ------------------------------------------------------------------------------------------------
 * Tests
 */

static void test_call(void **state)
{
	(void)state;
	struct peer p;
	struct back b;
	open_linked(&p);
	for (uint32_t words = 0; words < 1000; words = words * 2 + 1) {
		struct session *s = session(5, words, TAKE);
		back_take(&p, &b);
		assert_int_equal(b.bytes, 28 + 40 + 4 * words);
		ping(&p); /* a call of the peer while ours runs */
		back_answer(&p, &b, 4);
		session_is(s, 0);
	}
	session_is(session(1, 1020, TAKE), -EMSGSIZE); /* more than an inline message holds */
	ping(&p);
	peer_close(&p);
	check_server(0);
}

/* One until the peer says how many; then that many, and not one more. Forward credits are apart. */
static void test_credits(void **state)
{
	enum { CALLS = 12 };
	(void)state;
	struct peer p;
	struct back b[CALLS];
	struct session *s[CALLS];
	open_linked(&p);
	for (unsigned i = 0; i < CALLS; i++)
		s[i] = session(100 * i, 3, TAKE);
	back_take(&p, &b[0]);
	assert_true(quiet(&p));
	back_answer(&p, &b[0], 4);
	for (unsigned i = 1; i <= 4; i++)
		back_take(&p, &b[i]);
	assert_true(quiet(&p));
	for (unsigned i = 0; i < 3; i++)
		ping(&p);
	back_answer(&p, &b[4], 2); /* fewer: three are out, so none follows, nor after the next */
	back_answer(&p, &b[3], 2);
	back_take(&p, &b[5]);
	assert_true(quiet(&p));
	back_answer(&p, &b[2], 1000);
	back_answer(&p, &b[1], 1000);
	back_answer(&p, &b[5], 1000);
	for (unsigned i = 6; i < CALLS; i++)
		back_take(&p, &b[i]);
	for (unsigned i = CALLS; i-- > 6;)
		back_answer(&p, &b[i], 0);
	for (unsigned i = 0; i < CALLS; i++)
		session_is(s[i], 0);
	peer_close(&p);
	check_server(0);
}

static void test_deadline(void **state)
{
	(void)state;
	struct peer p;
	struct back b, late;
	open_linked(&p);
	session_is(session(1, 1, 30), -ETIMEDOUT);
	back_take(&p, &late);
	session_is(session(1, 1, 30), -ETIMEDOUT); /* the only credit is not back */
	assert_true(quiet(&p));
	struct session *s = session(7, 7, TAKE);
	back_answer(&p, &late, 1);
	back_take(&p, &b);
	back_answer(&p, &b, 1);
	session_is(s, 0);
	ping(&p);
	peer_close(&p);
	check_server(0);
}

static void test_wrong(void **state)
{
	(void)state;
	struct peer p;
	struct back b;
	struct message m;
	for (unsigned kind = 0; kind < 7; kind++) {
		open_linked(&p);
		struct session *s = session(7, 7, TAKE);
		back_take(&p, &b);
		m.bytes = 0;
		switch (kind) {
		case 0: /* ERR_CHUNK: the call failed, the connection lives */
		case 1: /* so does one that names no call of ours */
			put(&m, kind ? b.xid + 1 : b.xid), put(&m, 1), put(&m, 1), put(&m, RDMA_ERROR), put(&m, 2);
			assert_true(peer_send(&p, m.data, m.bytes));
			if (kind)
				back_answer(&p, &b, 1);
			session_is(s, kind ? 0 : -EPROTO);
			ping(&p);
			peer_close(&p);
			continue;
		case 2: /* another xid */
			b.xid++;
			back_answer(&p, &b, 1);
			break;
		case 3: /* twice */
			back_answer(&p, &b, 1);
			session_is(s, 0);
			s = NULL;
			back_answer(&p, &b, 1);
			break;
		case 4: /* with a Read chunk */
		case 5: /* with a Write chunk */
			put(&m, b.xid), put(&m, 1), put(&m, 1), put(&m, RDMA_MSG);
			if (kind == 4)
				put_read(&p, &m, 24, (struct chunk_segment){0, 100});
			put(&m, 0);
			if (kind == 5)
				put_write(&p, &m, &(struct chunk_segment){0, 100}, 1);
			put(&m, 0), put(&m, 0);
			put(&m, b.xid), put(&m, 1), put(&m, 0), put(&m, 0), put(&m, 0), put(&m, 0);
			assert_true(peer_send(&p, m.data, m.bytes));
			break;
		case 6: /* denied */
			answer_begin(&m, b.xid, 1);
			m.bytes -= 16;
			put(&m, 1), put(&m, 1), put(&m, 1);
			assert_true(peer_send(&p, m.data, m.bytes));
			session_is(s, -EACCES);
			ping(&p);
			peer_close(&p);
			continue;
		}
		assert_true(peer_wait_lost(&p, TAKE));
		if (s)
			session_is(s, -ENOTCONN);
		peer_close(&p);
	}
	/* an answer before there was a call */
	open_linked(&p);
	answer_begin(&m, 1, 1);
	assert_true(peer_send(&p, m.data, m.bytes));
	assert_true(peer_wait_lost(&p, TAKE));
	peer_close(&p);
	check_server(0);
}

static void test_disconnect(void **state)
{
	(void)state;
	for (unsigned round = 0; round < 10; round++) {
		struct peer p;
		struct back b;
		struct session *s[3];
		uint32_t before = closes;
		open_linked(&p);
		for (unsigned i = 0; i < 3; i++)
			s[i] = session(i, 1 + 100 * i, TAKE);
		if (round & 1)
			back_take(&p, &b);
		peer_sleep_us(round * 300);
		peer_close(&p);
		for (unsigned i = 0; i < 3; i++)
			session_is(s[i], -ENOTCONN);
		assert_true(rpc_link_closed(the_link));
		assert_int_equal(closes, before + 1);
	}
	check_server(0);
	assert_int_equal(atomic_load(&rdma_metrics.credits), 0);
}

/* N payloads: long ones in Read chunks, odd lengths, short ones in line or in chunks. */
static void test_puts(void **state)
{
	(void)state;
	struct peer p;
	open_peer(&p);
	for (uint32_t n = 1; n <= 10; n++)
		for (unsigned kind = 0; kind < 3; kind++) { /* all in chunks; every other one in line; short chunks */
			struct message m, tail = {.bytes = 0};
			struct answer a;
			uint32_t len[10], pos = RPC_CALL_BYTES + 4;
			header_begin(&m, RDMA_MSG);
			put(&tail, n);
			for (uint32_t i = 0; i < n; i++) {
				bool chunk = kind != 1 || i % 2;
				len[i] = !chunk ? 33 + i : kind == 2 && i % 3 ? 77 + i : 5001 + 1000 * i;
				put(&tail, i), put(&tail, len[i]);
				pos += 8;
				if (chunk) {
					fill(&p, i << 16, len[i], i);
					put_read(&p, &m, pos, (struct chunk_segment){i << 16, len[i]});
				} else {
					for (uint32_t k = 0; k < xdr_round(len[i]); k++)
						tail.data[tail.bytes++] = k < len[i] ? pattern(i, k) : 0;
				}
				pos += xdr_round(len[i]);
			}
			put_empty_lists(&m);
			put_call(&m, P_PUTS);
			memcpy(m.data + m.bytes, tail.data, tail.bytes);
			m.bytes += tail.bytes;
			assert_true(peer_send(&p, m.data, m.bytes));
			answer_take(&p, &a);
			const uint8_t *r = results(a.rpc, next_xid);
			assert_int_equal(a.rpc_bytes, 24 + 16 * n);
			for (uint32_t i = 0; i < n; i++) {
				assert_int_equal(word(r, 4 * i), len[i]);
				assert_int_equal(u64_of(r, 4 * i + 1), sum_of(i, len[i]));
				assert_int_equal(word(r, 4 * i + 3), i);
			}
		}
	peer_close(&p);
}

/* The first WRITES payloads go to Write chunks, the others in line behind them, into a Reply chunk of ROOM bytes. */
static void gets(struct peer *p, uint32_t n, uint32_t len, uint32_t writes, uint32_t room, uint32_t want)
{
	struct message m;
	struct answer a;
	memset(p->memory, 0xee, PEER_MEMORY);
	header_begin(&m, RDMA_MSG);
	put(&m, 0);
	for (uint32_t i = 0; i < writes; i++)
		put_write(p, &m, &(struct chunk_segment){(i + 1) << 20, len}, 1);
	put(&m, 0);
	put(&m, room != 0);
	if (room) {
		put(&m, 1);
		put_segment(p, &m, (struct chunk_segment){0, room});
	}
	put_call(&m, P_GETS);
	put(&m, n);
	for (uint32_t i = 0; i < n; i++)
		put(&m, len);
	assert_true(peer_send(p, m.data, m.bytes));
	answer_take(p, &a);
	assert_int_equal(a.nomsg, room != 0);
	assert_int_equal(a.header.write_count, writes);
	const uint8_t *r = results(room ? p->memory : a.rpc, next_xid);
	for (uint32_t i = 0; i < want; i++) {
		assert_int_equal(word(r, 0), len);
		r += 4;
		const uint8_t *data = i < writes ? p->memory + ((i + 1) << 20) : r;
		for (uint32_t k = 0; k < len; k++)
			assert_int_equal(data[k], pattern(i, k));
		if (i < writes)
			assert_int_equal(a.header.write[i].length, len);
		else
			r += xdr_round(len);
		assert_int_equal(word(r, 299), 299);
		r += 1200;
	}
	for (uint32_t i = want; i < writes; i++)
		assert_int_equal(a.header.write[i].length, 0);
	assert_int_equal(word(r, 0), want);
}

static void test_gets(void **state)
{
	(void)state;
	struct peer p;
	open_peer(&p);
	gets(&p, 1, 70001, 1, 0, 1);
	gets(&p, 4, 70001, 4, 0, 3); /* a fourth head is more than an inline reply holds */
	gets(&p, 6, 70001, 6, 30000, 6);
	gets(&p, 2, 1001, 4, 0, 2);
	gets(&p, 3, 1001, 1, 20000, 3); /* two in line */
	gets(&p, 8, 5000, 2, 30000, 6); /* as many as the Reply chunk takes */
	gets(&p, 8, 1, 0, 20000, 8);
	peer_close(&p);
	check_server(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_call),
		cmocka_unit_test(test_credits),
		cmocka_unit_test(test_deadline),
		cmocka_unit_test(test_wrong),
		cmocka_unit_test(test_disconnect),
		cmocka_unit_test(test_puts),
		cmocka_unit_test(test_gets),
	};
	fixture_config.connection_closed = on_closed;
	if (getenv("TEST"))
		cmocka_set_test_filter(getenv("TEST"));
	if (!fixture_begin())
		return fixture_rc;
	int rc = cmocka_run_group_tests(tests, NULL, teardown);
	rpc_link_put(the_link);
	return rc;
}
