/*
 * The program of the tests of RPC over TCP: procedures that echo, take and give payload, count, wait, and do what they
 * should not; and what a client does to write and to read.
 */
#ifndef FURROW_TESTS_TCP_PROGRAM_H
#define FURROW_TESTS_TCP_PROGRAM_H

#include "rpcrdma/rpcrdma.h"

#include <stdlib.h>
#include <string.h>

#define PROGRAM 0x20000099u
#define MIB (1u << 20)

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

/* WRITE of LEN bytes in a record of so many FRAGMENTS; all must have come. */
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

/* The LEN bytes of a reply at P are those of a READ of BYTES bytes. */
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

#endif
