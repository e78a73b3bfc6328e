/*
 * What the tests of the RDMA transport share: a server in this process on two reactors, messages and their answers, for
 * a peer of bare verbs on the test's thread. Who includes it defines PROGRAM and PORT before, and programs[] somewhere;
 * a function that one test does not use is no mistake.
 */
#ifndef FURROW_TESTS_RDMA_FIXTURE_H
#define FURROW_TESTS_RDMA_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

#include "rdma_peer.h"
#include "rpcrdma/rdma_internal.h"
#include "rpcrdma/rpcrdma.h"

#pragma GCC diagnostic ignored "-Wunused-function"

#ifndef LISTEN
#define LISTEN "0.0.0.0"
#endif
#define CREDITS 16
#define TAKE 5000 /* ms */

static const char *address = "10.99.0.1";
static const struct rpc_program *const programs[1];
static struct rpc_server_config fixture_config;

static struct rpc_server *server;
static sem_t ready, stop, stopped;
static int listen_rc;
static struct error listen_err;

static uint8_t pattern(uint32_t seed, uint32_t i)
{
	return (uint8_t)((i * 2654435761u + seed * 40503u) >> 13);
}

static void slices_release(struct slice *v, unsigned n)
{
	slices_put(v, n);
}

/* Buffers for BYTES, in pieces of an odd size so that they do not match segments. */
static unsigned slices_make(struct slice *v, unsigned max, uint32_t bytes, uint32_t each)
{
	unsigned n = 0;
	for (; bytes && n < max; n++) {
		uint32_t some = bytes < each ? bytes : each;
		v[n] = (struct slice){.buf = buf_alloc(some), .len = some};
		bytes -= some;
	}
	return n;
}

#define SLICES 80
#define EACH 20000u

static int fetch_and_sum(struct rpc_request *req, const struct xdr_payload *payload)
{
	struct slice v[SLICES] = {0};
	unsigned n = slices_make(v, SLICES, payload->len, EACH);
	int rc = rpc_payload_fetch(req, payload, v, n);
	if (rc) {
		slices_release(v, n);
		return RPC_DROP;
	}
	uint64_t sum = payload->len;
	for (unsigned i = 0; i < n; i++)
		for (uint32_t k = 0; k < v[i].len; k++)
			sum = sum * 31 + slice_data(&v[i])[k];
	slices_release(v, n);
	xdr_put_u32(&req->out, payload->len);
	return xdr_put_u64(&req->out, sum) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

/* Procedures that more than one program has: nothing; MS -> nothing, after so long; no answer. */
static int p_null(struct rpc_request *req)
{
	(void)req;
	return RPC_SUCCESS;
}

static int p_slow(struct rpc_request *req)
{
	uint32_t ms;
	if (!xdr_get_u32(&req->in, &ms))
		return RPC_GARBAGE_ARGS;
	fiber_sleep(ms * NSEC_PER_MSEC);
	return RPC_SUCCESS;
}

static int p_drop(struct rpc_request *req)
{
	(void)req;
	return RPC_DROP;
}

static void server_main(void *arg)
{
	struct rpc_server_config config = fixture_config;
	(void)arg;
	config.programs = programs;
	config.program_count = 1;
	config.rdma_credits = CREDITS;
	listen_rc = rpc_server_start(&config, &server, &listen_err);
	if (!listen_rc)
		listen_rc = rpc_listen_rdma(server, LISTEN, PORT, &listen_err);
	sem_post(&ready);
	while (sem_trywait(&stop))
		fiber_sleep(2 * NSEC_PER_MSEC);
	if (server)
		rpc_server_stop(server);
}

static void *server_thread(void *arg)
{
	struct core_config config = {.reactors = 2, .arena_bytes = 64u << 20};
	struct error err = {0};
	(void)arg;
	if (core_main(&config, server_main, NULL, &err)) {
		listen_rc = err.code;
		listen_err = err;
		sem_post(&ready);
	}
	sem_post(&stopped);
	return NULL;
}

static bool have_server;
static pthread_t thread;

static int setup(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	if (getenv("FURROW_RDMA_ADDRESS"))
		address = getenv("FURROW_RDMA_ADDRESS");
	inet_pton(AF_INET, address, &a.sin_addr);
	sem_init(&ready, 0, 0);
	sem_init(&stop, 0, 0);
	sem_init(&stopped, 0, 0);
	log_open(false);
	atomic_store(&log_threshold, getenv("LOG") ? LOG_DEBUG : LOG_WARNING);
	if (pthread_create(&thread, NULL, server_thread, NULL))
		return -1;
	sem_wait(&ready);
	if (listen_rc == -ENODEV) {
		printf("# no RDMA device: %s\n", listen_err.text);
		return 0;
	}
	if (listen_rc) {
		printf("# %s\n", listen_err.text);
		return -1;
	}
	struct rdma_cm_id *id;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP))
		return -1;
	have_server = rdma_bind_addr(id, (struct sockaddr *)&a) == 0 && id->verbs;
	if (!have_server)
		printf("# no RDMA device has the address %s\n", address);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	sem_post(&stop);
	pthread_join(thread, NULL);
	return 0;
}

/* For main(): starts the server. False: the test ends with fixture_rc. */
static int fixture_rc;
static bool fixture_begin(void)
{
	fixture_rc = 1;
	if (setup())
		return false;
	fflush(stdout);
	if (!have_server) { /* cmocka would show it as "not ok" */
		printf("1..1\nok 1 # SKIP needs an RDMA device\n");
		teardown(NULL);
		fixture_rc = 0;
	}
	return have_server;
}

/* ------------------------------------------------------------------------------------------------
 * Messages
 */

struct message {
	uint8_t data[PEER_SLOT];
	uint32_t bytes;
};

static uint32_t next_xid = 0x1000;

static void put(struct message *m, uint32_t v)
{
	assert_true(m->bytes + 4 <= sizeof m->data);
	v = htonl(v);
	memcpy(m->data + m->bytes, &v, 4);
	m->bytes += 4;
}

static uint32_t word(const uint8_t *m, unsigned i)
{
	uint32_t v;
	memcpy(&v, m + 4 * i, 4);
	return ntohl(v);
}

struct chunk_segment {
	uint32_t offset, length; /* in the peer's memory */
};

static void put_segment(struct peer *p, struct message *m, struct chunk_segment s)
{
	uint64_t at = (uintptr_t)p->memory + s.offset;
	put(m, p->mr->rkey);
	put(m, s.length);
	put(m, (uint32_t)(at >> 32));
	put(m, (uint32_t)at);
}

static void header_begin(struct message *m, uint32_t proc)
{
	m->bytes = 0;
	put(m, ++next_xid);
	put(m, 1);
	put(m, 1000); /* credits asked for */
	put(m, proc);
}

static void put_read(struct peer *p, struct message *m, uint32_t position, struct chunk_segment s)
{
	put(m, 1);
	put(m, position);
	put_segment(p, m, s);
}

static void put_write(struct peer *p, struct message *m, const struct chunk_segment *s, unsigned n)
{
	put(m, 1);
	put(m, n);
	for (unsigned i = 0; i < n; i++)
		put_segment(p, m, s[i]);
}

#define RPC_CALL_BYTES 40u
static void put_call(struct message *m, uint32_t procedure)
{
	put(m, next_xid);
	put(m, 0);
	put(m, 2);
	put(m, PROGRAM);
	put(m, 1);
	put(m, procedure);
	put(m, 0), put(m, 0), put(m, 0), put(m, 0);
}

static void put_empty_lists(struct message *m)
{
	put(m, 0), put(m, 0), put(m, 0);
}

/* A reply as it came, taken apart. */
struct answer {
	uint8_t data[PEER_SLOT];
	int bytes;
	struct rdma_header header; /* with RDMA_NOMSG shown as RDMA_MSG */
	bool nomsg;
	const uint8_t *rpc; /* the RPC reply in line */
	uint32_t rpc_bytes;
};

static void answer_take(struct peer *p, struct answer *a)
{
	memset(a, 0, sizeof *a);
	a->bytes = peer_take(p, a->data, TAKE);
	if (a->bytes < 0)
		fail_msg("no answer: %s", a->bytes == -1 ? "connection lost" : "time is up");
	assert_true(a->bytes >= 16);
	assert_int_equal(word(a->data, 1), 1);
	assert_in_range(word(a->data, 2), 1, CREDITS);
	if (word(a->data, 3) == RDMA_ERROR)
		return;
	a->nomsg = word(a->data, 3) == RDMA_NOMSG;
	if (a->nomsg)
		a->data[15] = RDMA_MSG;
	assert_int_equal(rdma_header_decode(&a->header, a->data, (uint32_t)a->bytes), RDMA_HEADER_OK);
	a->rpc = a->data + a->header.bytes;
	a->rpc_bytes = (uint32_t)a->bytes - a->header.bytes;
}

/* Results of an accepted call. */
static const uint8_t *results(const uint8_t *rpc, uint32_t xid)
{
	assert_int_equal(word(rpc, 0), xid);
	assert_int_equal(word(rpc, 1), 1);
	assert_int_equal(word(rpc, 2), 0);
	assert_int_equal(word(rpc, 5), RPC_SUCCESS);
	return rpc + 24;
}

static void expect_error(struct peer *p, uint32_t xid, uint32_t code)
{
	struct answer a;
	answer_take(p, &a);
	assert_int_equal(word(a.data, 0), xid);
	assert_int_equal(word(a.data, 3), RDMA_ERROR);
	assert_int_equal(word(a.data, 4), code);
	if (code == RDMA_ERR_VERS) {
		assert_int_equal(a.bytes, 28);
		assert_int_equal(word(a.data, 5), 1);
		assert_int_equal(word(a.data, 6), 1);
	}
}

static void open_peer(struct peer *p)
{
	struct peer_options o = {0};
	assert_true(peer_open(p, address, PORT, o));
}

static void ping(struct peer *p)
{
	struct message m;
	struct answer a;
	header_begin(&m, RDMA_MSG);
	put_empty_lists(&m);
	put_call(&m, 0);
	assert_true(peer_send(p, m.data, m.bytes));
	answer_take(p, &a);
	results(a.rpc, next_xid);
	assert_int_equal(a.rpc_bytes, 24);
}

static void call(struct peer *p, uint32_t procedure, uint32_t argument)
{
	struct message m;
	header_begin(&m, RDMA_MSG);
	put_empty_lists(&m);
	put_call(&m, procedure);
	put(&m, argument);
	assert_true(peer_send(p, m.data, m.bytes));
}

/* What an answer grants. */
static uint32_t granted(struct peer *p)
{
	struct answer a;
	answer_take(p, &a);
	return word(a.data, 2);
}

/* Who uses what it has gets all. SLOW is the number of p_slow(). */
static void use_all(struct peer *p, uint32_t slow)
{
	uint32_t most = 0;
	/* longer each time: on a slow machine one may be answered before the next is there */
	for (uint32_t ms = 10; most < CREDITS && ms < 5000; ms *= 2) {
		for (unsigned i = 0; i < RDMA_CREDITS_LEAST; i++)
			call(p, slow, ms);
		for (unsigned i = 0; i < RDMA_CREDITS_LEAST; i++) {
			uint32_t now = granted(p);
			most = now > most ? now : most;
		}
	}
	assert_int_equal(most, CREDITS);
}

static void open_busy(struct peer *p, uint32_t slow)
{
	open_peer(p);
	use_all(p, slow);
}

/* The server lives, and has forgotten all connections but those that are OPEN. */
static void check_server(unsigned open)
{
	struct peer p;
	struct rpc_status s;
	open_peer(&p);
	ping(&p);
	peer_close(&p);
	for (int i = 0; i < 500; i++) {
		rpc_status(server, &s);
		if (s.rdma_connections == open)
			break;
		peer_sleep_us(10000);
	}
	assert_int_equal(s.rdma_connections, open);
}

static void fill(struct peer *p, uint32_t offset, uint32_t bytes, uint32_t seed)
{
	for (uint32_t i = 0; i < bytes; i++)
		p->memory[offset + i] = pattern(seed, i);
}

static uint64_t sum_of(uint32_t seed, uint32_t bytes)
{
	uint64_t sum = bytes;
	for (uint32_t i = 0; i < bytes; i++)
		sum = sum * 31 + pattern(seed, i);
	return sum;
}

/* Lays BYTES of a pattern over N segments with gaps between them; returns the segments. */
static void spread(
	struct peer *p, struct chunk_segment *s, unsigned n, uint32_t at, uint32_t bytes, uint32_t seed, bool write)
{
	uint32_t done = 0;
	for (unsigned i = 0; i < n; i++) {
		uint32_t some = i + 1 == n ? bytes - done : bytes / n + (i % 2 ? 3 : 0) - (i % 3 ? 5 : 0);
		s[i] = (struct chunk_segment){at, some};
		for (uint32_t k = 0; write && k < some; k++)
			p->memory[at + k] = pattern(seed, done + k);
		done += some;
		at += some + 77;
	}
}

static uint64_t u64_of(const uint8_t *m, unsigned i)
{
	return (uint64_t)word(m, i) << 32 | word(m, i + 1);
}

#endif
