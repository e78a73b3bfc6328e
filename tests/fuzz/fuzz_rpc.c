/*
 * Calls as a transport hands them over: RPC header and credential, arguments in pieces, payloads in Read chunks, what
 * the peer can take of a reply, retransmissions. The transport is one of ours that loses nothing, so each call must
 * come back exactly once, with an answer that fits, and in the end nothing is held any more.
 *
 * The programs are a few procedures that use all that the RPC layer has for them.
 *
 * An input is a series of calls, each with a head of its own: see call_read().
 */
#include <errno.h>
#include <netinet/in.h>

#include "tests/fuzz/fuzz_transport.h"

#include "xdr/nfs3.h"
#include "xdr/rpc.h"

#define PROGRAM 100003u
#define CALLS 4u
#define HEAD 20u /* bytes of a call in the input before its message */

/* ------------------------------------------------------------------------------------------------
 * Programs
 */

static int proc_null(struct rpc_request *req)
{
	(void)req;
	return RPC_SUCCESS;
}

static int proc_write(struct rpc_request *req)
{
	WRITE3args args;

	if (!xdr_decode_WRITE3args(&req->in, &args))
		return RPC_GARBAGE_ARGS;
	if (args.data.len > BUF_MAX)
		return RPC_SYSTEM_ERR;
	struct buf *buf = buf_alloc(args.data.len ? args.data.len : 1);
	struct slice to = {.buf = buf, .len = args.data.len};
	int rc = rpc_payload_fetch(req, &args.data, &to, 1);
	rpc_io_count(req, RPC_IO_WRITE, args.data.len);
	buf_put(buf);
	if (rc)
		return RPC_DROP;
	return xdr_put_u32(&req->out, args.data.len) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

/* As many payloads as the arguments say, each of the length that stands there. */
static int proc_read(struct rpc_request *req)
{
	uint32_t count, bytes;

	if (!xdr_get_u32(&req->in, &count))
		return RPC_GARBAGE_ARGS;
	for (uint32_t i = 0; i < count; i++) {
		if (!xdr_get_u32(&req->in, &bytes))
			return RPC_GARBAGE_ARGS;
		uint32_t room = rpc_payload_room(req);
		bytes = bytes < room ? bytes : room;
		bytes = bytes < BUF_MAX ? bytes : BUF_MAX;
		if (rpc_reply_room(req) < 8 || rpc_reply_grow(req, 8) || req->out.payloads == XDR_PAYLOADS_MAX)
			return RPC_SYSTEM_ERR;
		struct xdr_payload payload = {.len = bytes};
		struct slice v = {.buf = buf_zero(), .len = bytes};
		if (rpc_payload_reserve(req, bytes))
			return RPC_DROP;
		if (!xdr_put_payload(&req->out, &payload))
			return RPC_SYSTEM_ERR;
		buf_ref(v.buf);
		FUZZ_CHECK(rpc_payload_attach(req, &v, 1) == 0);
	}
	return RPC_SUCCESS;
}

/* A result that grows as far as there is room. */
static int proc_grow(struct rpc_request *req)
{
	uint32_t bytes;

	while (xdr_get_u32(&req->in, &bytes)) {
		bytes %= 65536;
		int rc = rpc_reply_grow(req, 4 + xdr_round(bytes));
		FUZZ_CHECK(!rc == (4 + xdr_round(bytes) <= rpc_reply_room(req)) || !rc);
		if (rc)
			return xdr_put_u32(&req->out, 0) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
		FUZZ_CHECK(xdr_put_u32(&req->out, bytes) && xdr_out_room(&req->out, xdr_round(bytes)));
		memset(req->out.p, 0x5a, xdr_round(bytes));
		req->out.p += xdr_round(bytes);
	}
	return RPC_SUCCESS;
}

/* Whatever the arguments say. */
static int proc_fail(struct rpc_request *req)
{
	uint32_t what;

	if (!xdr_get_u32(&req->in, &what))
		return RPC_GARBAGE_ARGS;
	req->auth_stat = what >> 8 & 7;
	return (int)(what & 0xff);
}

static uint32_t read_more(const struct rpc_request *req)
{
	struct xdr_in in = req->in;
	uint8_t room[64];
	struct xdr_pool pool = {room, 0, sizeof(room)};
	uint32_t v = 0;

	in.pool = &pool;
	return xdr_get_u32(&in, &v) ? v : 0;
}

static const struct rpc_procedure procedures[] = {
	{"NULL", proc_null, 0, 0, NULL},
	{"WRITE", proc_write, RPC_PROC_CACHED, 4, NULL},
	{"READ", proc_read, 0, 8, NULL},
	{"GROW", proc_grow, 0, 4, read_more},
	{"FAIL", proc_fail, RPC_PROC_CACHED, 4, NULL},
	{NULL, NULL, 0, 0, NULL},
	{"GROW_CACHED", proc_grow, RPC_PROC_CACHED, 400, NULL},
};
static int authorize(struct rpc_request *req)
{
	return req->cred.flavor == RPC_AUTH_SYS && req->cred.uid == 13 ? RPC_AUTH_TOOWEAK : 0;
}
static const struct rpc_program one = {PROGRAM, 3, "one", procedures, sizeof(procedures) / sizeof(procedures[0]), NULL};
static const struct rpc_program two = {
	PROGRAM, 5, "two", procedures, sizeof(procedures) / sizeof(procedures[0]), authorize};
static const struct rpc_program *const programs[] = {&one, &two};

static struct rpc_server *server;

/* ------------------------------------------------------------------------------------------------
 * Inputs
 */

/*
 * The head: the message's length, flags, what the peer takes, where it is cut, and its Read chunks. The chunks' bytes
 * are left out of the message already. False: there is none.
 */
static bool call_read(struct fuzz_call *c, struct fuzz_input *in)
{
	if (fuzz_left(in) < HEAD)
		return false;
	struct fuzz_input head = {in->p, in->p + HEAD};
	in->p += HEAD;
	uint16_t bytes = fuzz_u16(&head);
	uint8_t flags = fuzz_u8(&head), cut[PIECES - 1];
	memset(c, 0, sizeof(*c));
	c->call.reply_head_max = flags & 1 ? RPC_HEAD_MAX : fuzz_u8(&head) * 8u;
	c->call.payload_inline = flags & 2;
	c->call.reply_payload_max = flags & 4 ? UINT32_MAX : fuzz_u8(&head) * 64u;
	for (unsigned i = 0; i < PIECES - 1; i++)
		cut[i] = fuzz_u8(&head);
	c->call.reduced_count = (flags >> 3) % (REDUCED + 1);
	c->call.reduced = c->reduced;
	uint32_t pos = 0;
	for (unsigned i = 0; i < c->call.reduced_count; i++) {
		c->reduced[i].pos = pos += 4u * fuzz_u8(&head);
		c->reduced[i].len = fuzz_u16(&head);
		pos += xdr_round(c->reduced[i].len) + 4;
	}
	if (bytes > fuzz_left(in))
		bytes = (uint16_t)fuzz_left(in);
	c->call.bytes = bytes;
	c->call.held = 4096;
	c->call.piece = c->piece;
	const uint8_t *at = in->p;
	if (bytes >= 4) {
		memcpy(&c->xid, at, 4);
		c->xid = __builtin_bswap32(c->xid);
	}
	for (unsigned i = 0; i < PIECES; i++) {
		size_t left = (size_t)(in->p + bytes - at), some = i == PIECES - 1 || cut[i] > left ? left : cut[i];
		if (!some)
			continue;
		c->piece[c->call.pieces++] = (struct xdr_piece){fuzz_copy(at, some), (uint32_t)some};
		at += some;
	}
	in->p += bytes;
	return true;
}

static void run(void *arg)
{
	struct fuzz_input *in = arg;
	struct rpc_connection *conn = calloc(1, sizeof(*conn));
	struct fuzz_call *call = calloc(CALLS, sizeof(*call));
	static const struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {0x0100007f} /* 127.0.0.1 */};
	const struct sockaddr *peer = (const struct sockaddr *)(const void *)&address;
	static uint64_t client;
	unsigned calls = 0;

	FUZZ_CHECK(conn && call);
	FUZZ_CHECK(rpc_connection_begin(conn, server, &transport, peer, peer) == 0);
	struct rpc_shard *shard = conn->shard;
	conn->client = ++client; /* what an earlier input was answered is none of this one's business */
	while (calls < CALLS && call_read(&call[calls], in)) {
		call[calls].call.conn = conn;
		rpc_call_received(&call[calls].call);
		if (calls++ % 2)
			fiber_yield();
	}
	while (conn->calls)
		fiber_sleep(NSEC_PER_MSEC / 10);
	for (unsigned i = 0; i < calls; i++) {
		FUZZ_CHECK(call[i].ended);
		for (unsigned k = 0; k < call[i].call.pieces; k++)
			free((void *)(uintptr_t)call[i].piece[k].data);
	}
	rpc_connection_closing(conn);
	rpc_connection_end(conn);
	FUZZ_CHECK(!shard->used && !shard->payload && !shard->running && list_empty(&shard->waiting));
	free(call);
	free(conn);
}

static void begin(void)
{
	const struct rpc_server_config config = {.programs = programs, .program_count = 2, .cache_entries = 64};
	struct error err;

	FUZZ_CHECK(rpc_server_start(&config, &server, &err) == 0);
}

static void end(void)
{
	rpc_server_stop(server);
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
	struct fuzz_input in = {data, data + bytes};

	if (!server)
		fuzz_core_start(32u << 20, begin, end);
	fuzz_core_call(run, &in);
}

/* ------------------------------------------------------------------------------------------------
 * Seeds
 */

struct seed {
	uint8_t bytes[1024];
	size_t len;
};

static void put(struct seed *s, uint32_t v)
{
	v = __builtin_bswap32(v);
	memcpy(s->bytes + s->len, &v, 4);
	s->len += 4;
}

/* A call with ARGS words; CHUNK: behind them stands a length, and its payload is in a Read chunk. */
static void call_seed(struct seed *s, uint32_t xid, uint32_t version, uint32_t procedure, bool sys,
	const uint32_t *args, unsigned count, uint32_t chunk)
{
	size_t head = s->len;

	s->len += HEAD;
	put(s, xid);
	put(s, CALL);
	put(s, RPC_VERSION);
	put(s, PROGRAM);
	put(s, version);
	put(s, procedure);
	put(s, sys ? AUTH_SYS : AUTH_NONE);
	put(s, sys ? 28 : 0);
	for (unsigned i = 0; sys && i < 7; i++)
		put(s, i == 4 ? 2 : 0); /* two groups, and no name */
	put(s, AUTH_NONE);
	put(s, 0);
	for (unsigned i = 0; i < count; i++)
		put(s, args[i]);
	uint16_t bytes = (uint16_t)(s->len - head - HEAD);
	uint8_t h[HEAD] = {(uint8_t)(bytes >> 8), (uint8_t)bytes, (uint8_t)(chunk ? 1 << 3 | 5 : 5), 10, 0, 8, 0,
		(uint8_t)(bytes / 4), (uint8_t)(chunk >> 8), (uint8_t)chunk};
	memcpy(s->bytes + head, h, HEAD);
}

static void fuzz_seeds(void)
{
	static const uint32_t write_inline[] = {4, 77, 0, 0, 8, 2, 8, 1, 2}, write_chunk[] = {4, 77, 0, 0, 512, 2, 512},
			      reads[] = {3, 100, 9, 5}, grow[] = {100, 5000, 60000}, fail[] = {0x101};
	struct seed s = {.len = 0};

	call_seed(&s, 1, 3, 0, false, NULL, 0, 0);
	call_seed(&s, 2, 3, 1, true, write_inline, 9, 0);
	call_seed(&s, 2, 3, 1, true, write_inline, 9, 0);
	fuzz_seed("write", s.bytes, s.len);
	s.len = 0;
	call_seed(&s, 3, 5, 1, true, write_chunk, 7, 512);
	call_seed(&s, 4, 3, 2, true, reads, 4, 0);
	fuzz_seed("chunks", s.bytes, s.len);
	s.len = 0;
	call_seed(&s, 5, 3, 3, false, grow, 3, 0);
	call_seed(&s, 6, 3, 6, false, grow, 3, 0);
	call_seed(&s, 7, 3, 4, true, fail, 1, 0);
	fuzz_seed("grow", s.bytes, s.len);
	s.len = 0;
	call_seed(&s, 8, 4, 0, true, NULL, 0, 0);
	call_seed(&s, 9, 3, 9, true, NULL, 0, 0);
	fuzz_seed("refused", s.bytes, s.len);
}
