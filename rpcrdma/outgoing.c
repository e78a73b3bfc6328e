/*
 * Calls of ours to programs of other hosts, over TCP: what NLM and NSM have to tell their clients.
 *
 * Each call has a connection of its own, from the address that the other side knows us by, with a privileged port
 * where one can be had. Its program's port is asked of the rpcbind there when it is not known. It runs in the caller's
 * fiber with a deadline over all of it, so a host that is gone costs a fiber and a socket for that long, and no reactor
 * anything.
 *
 * Errors: -ETIME, and what connect() says, for a host that cannot be reached; -ENOENT when the program is not
 * registered there; -EPROTO for an answer that makes no sense or does not fit; -EREMOTEIO when the call was refused.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <unistd.h>

#include "rpcrdma/rpcrdma_internal.h"
#include "xdr/rpc.h"

#define RPCBIND_PORT 111
#define RPCBIND_PROGRAM 100000
#define PORTMAP_VERSION 2
#define PORTMAP_GETPORT 3
#define RPCBIND_VERSION 3
#define RPCBIND_GETADDR 3
#define HEADER_BYTES 512u /* of a call: name of the machine included */
#define RESERVED_TRIES 8

union address {
	struct sockaddr_storage storage;
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

static socklen_t address_len(const union address *a)
{
	return a->any.sa_family == AF_INET6 ? sizeof(a->v6) : sizeof(a->v4);
}

static void address_set_port(union address *a, uint16_t port)
{
	if (a->any.sa_family == AF_INET6)
		a->v6.sin6_port = htons(port);
	else
		a->v4.sin_port = htons(port);
}

static uint16_t address_port(const union address *a)
{
	return ntohs(a->any.sa_family == AF_INET6 ? a->v6.sin6_port : a->v4.sin_port);
}

/* ------------------------------------------------------------------------------------------------
 * A connection for one call
 */

/* The result of an operation that owns memory of this fiber: it has ended in any case. */
static int io_end(struct io *io, uint64_t deadline)
{
	int r = io_wait_until(io, deadline);

	if (!io->pending)
		return r;
	io_cancel(io);
	io_wait(io);
	return -ETIME;
}

/* Privileged ports are asked for, since some hosts take calls from no others. */
static int bind_from(int fd, union address *from)
{
	for (unsigned i = 0; i < RESERVED_TRIES; i++) {
		address_set_port(from, (uint16_t)(600 + hash_u64(now_ns() + i) % 424));
		if (!bind(fd, &from->any, address_len(from)))
			return 0;
		if (errno == EACCES)
			break;
	}
	address_set_port(from, 0);
	return bind(fd, &from->any, address_len(from)) ? -errno : 0;
}

static int connect_to(const union address *to, const struct sockaddr_storage *local, uint64_t deadline)
{
	union address from = {.storage = *local};
	struct io io = {0};
	int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (from.any.sa_family != to->any.sa_family) {
		memset(&from, 0, sizeof(from));
		from.any.sa_family = to->any.sa_family;
	}
	int r = bind_from(fd, &from);
	if (!r) {
		struct io_uring_sqe *sqe = io_start(&io);
		io_uring_prep_connect(sqe, fd, &to->any, address_len(to));
		io_link(sqe, &io);
		r = io_end(&io, deadline);
	}
	if (r < 0) {
		close(fd);
		return r;
	}
	return fd;
}

static int send_all(int fd, const uint8_t *data, size_t bytes, uint64_t deadline)
{
	while (bytes) {
		struct io io = {0};
		struct io_uring_sqe *sqe = io_start(&io);
		io_uring_prep_send(sqe, fd, data, bytes, MSG_NOSIGNAL);
		io_link(sqe, &io);
		int n = io_end(&io, deadline);
		if (n <= 0)
			return n < 0 ? n : -EPIPE;
		data += n;
		bytes -= (size_t)n;
	}
	return 0;
}

static int receive_all(int fd, uint8_t *data, size_t bytes, uint64_t deadline)
{
	while (bytes) {
		struct io io = {0};
		struct io_uring_sqe *sqe = io_start(&io);
		io_uring_prep_recv(sqe, fd, data, bytes, 0);
		io_link(sqe, &io);
		int n = io_end(&io, deadline);
		if (n <= 0)
			return n < 0 ? n : -ECONNRESET;
		data += n;
		bytes -= (size_t)n;
	}
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * A call on it
 */

static bool put_header(struct xdr_out *out, uint32_t xid, uint32_t program, uint32_t version, uint32_t procedure)
{
	char name[AUTH_SYS_NAME_MAX + 1] = "";

	if (gethostname(name, 64))
		name[0] = 0;
	uint32_t len = (uint32_t)strnlen(name, 64);
	return xdr_put_u32(out, xid) && xdr_put_u32(out, CALL) && xdr_put_u32(out, RPC_VERSION) &&
	       xdr_put_u32(out, program) && xdr_put_u32(out, version) && xdr_put_u32(out, procedure) &&
	       xdr_put_u32(out, AUTH_SYS) && xdr_put_u32(out, 4 + 4 + xdr_round(len) + 4 + 4 + 4) &&
	       xdr_put_u32(out, 0) && xdr_put_opaque(out, name, len) && xdr_put_u32(out, 0) && xdr_put_u32(out, 0) &&
	       xdr_put_u32(out, 0) && xdr_put_u32(out, AUTH_NONE) && xdr_put_u32(out, 0);
}

/* The reply's record, in whatever fragments, to BUFFER. */
static int receive_record(int fd, uint8_t *buffer, uint32_t room, uint64_t deadline)
{
	uint32_t got = 0, mark = 0;

	for (unsigned i = 0; !(mark & 0x80000000u); i++) {
		int r = receive_all(fd, (uint8_t *)&mark, 4, deadline);
		if (r)
			return r;
		mark = ntohl(mark);
		uint32_t len = mark & 0x7fffffffu;
		if (len > room - got || i > 64)
			return -EPROTO;
		r = receive_all(fd, buffer + got, len, deadline);
		if (r)
			return r;
		got += len;
	}
	return (int)got;
}

/* Leaves the results in call->results. */
static int parse_reply(struct rpc_outgoing *call, uint32_t xid, const uint8_t *reply, uint32_t bytes)
{
	uint32_t got_xid, type, stat, flavor, accept;
	struct xdr_opaque verifier;
	struct xdr_in in;

	xdr_in_init(&in, reply, bytes, NULL);
	if (!xdr_get_u32(&in, &got_xid) || !xdr_get_u32(&in, &type) || !xdr_get_u32(&in, &stat) || got_xid != xid ||
		type != REPLY)
		return -EPROTO;
	if (stat != MSG_ACCEPTED)
		return -EREMOTEIO;
	if (!xdr_get_u32(&in, &flavor) || !xdr_get_opaque(&in, AUTH_BODY_MAX, &verifier) || !xdr_get_u32(&in, &accept))
		return -EPROTO;
	if (accept != SUCCESS)
		return -EREMOTEIO;
	uint32_t left = (uint32_t)xdr_in_left(&in);
	if (left > sizeof(call->results))
		return -EPROTO;
	memcpy(call->results, in.p, left);
	call->results_bytes = left;
	return 0;
}

static int call_on(
	int fd, struct rpc_outgoing *call, uint32_t program, uint32_t version, uint32_t procedure, uint64_t deadline)
{
	uint32_t xid = (uint32_t)hash_u64(now_ns() ^ (uintptr_t)call), room = HEADER_BYTES + sizeof(call->args);
	uint8_t *buffer = malloc(4 + room);
	struct xdr_out out;
	int r = -EAGAIN;

	if (!buffer)
		return r;
	xdr_out_init(&out, buffer + 4, room);
	if (put_header(&out, xid, program, version, procedure) && xdr_put_fixed(&out, call->args, call->args_bytes)) {
		uint32_t mark = htonl(0x80000000u | (uint32_t)(out.p - out.base));
		memcpy(buffer, &mark, 4);
		r = send_all(fd, buffer, 4 + (size_t)(out.p - out.base), deadline);
		if (!r)
			r = receive_record(fd, buffer, room, deadline);
		if (r >= 0)
			r = parse_reply(call, xid, buffer, (uint32_t)r);
	}
	free(buffer);
	return r;
}

/* ------------------------------------------------------------------------------------------------
 * rpcbind there
 */

/* "192.0.2.1.8.1": the port is in the last two numbers (RFC 5665 section 5.2.3). */
static int port_of_universal(const struct xdr_opaque *address)
{
	unsigned value[2] = {0, 0}, digits[2] = {0, 0};
	uint32_t at = address->len;

	for (unsigned i = 0; i < 2; i++) {
		unsigned scale = 1;
		while (at && address->data[at - 1] >= '0' && address->data[at - 1] <= '9' && digits[i] < 3) {
			value[i] += (unsigned)(address->data[--at] - '0') * scale;
			scale *= 10;
			digits[i]++;
		}
		if (!digits[i] || value[i] > 255 || !at || address->data[--at] != '.')
			return -ENOENT;
	}
	int port = (int)(value[1] << 8 | value[0]);
	return port ? port : -ENOENT;
}

int rpc_port_ask(const struct rpc_outgoing *call)
{
	union address to = {.storage = call->to};
	bool v6 = to.any.sa_family == AF_INET6;
	struct rpc_outgoing *ask = calloc(1, sizeof(*ask));
	struct xdr_out out;
	struct xdr_in in;

	if (!ask)
		return -EAGAIN;
	xdr_out_init(&out, ask->args, sizeof(ask->args));
	xdr_put_u32(&out, call->program);
	xdr_put_u32(&out, call->version);
	if (v6) {
		xdr_put_opaque(&out, "tcp6", 4);
		xdr_put_opaque(&out, "", 0);
		xdr_put_opaque(&out, "", 0);
	} else {
		xdr_put_u32(&out, IPPROTO_TCP);
		xdr_put_u32(&out, 0);
	}
	ask->args_bytes = (uint32_t)(out.p - out.base);
	address_set_port(&to, RPCBIND_PORT);
	int r = connect_to(&to, &call->from, call->deadline);
	if (r >= 0) {
		int fd = r;
		r = call_on(fd, ask, RPCBIND_PROGRAM, v6 ? RPCBIND_VERSION : PORTMAP_VERSION,
			v6 ? RPCBIND_GETADDR : PORTMAP_GETPORT, call->deadline);
		close(fd);
	}
	if (!r) {
		struct xdr_opaque text;
		uint32_t port = 0;
		xdr_in_init(&in, ask->results, ask->results_bytes, NULL);
		if (v6)
			r = xdr_get_opaque(&in, 128, &text) ? port_of_universal(&text) : -EPROTO;
		else if (!xdr_get_u32(&in, &port))
			r = -EPROTO;
		else
			r = port && port < 65536 ? (int)port : -ENOENT;
	}
	free(ask);
	return r;
}

void rpc_address_portless(struct sockaddr_storage *address)
{
	union address a = {.storage = *address};

	address_set_port(&a, 0);
	*address = a.storage;
}

int rpc_call_out(struct rpc_outgoing *call)
{
	union address to = {.storage = call->to};

	if (!address_port(&to)) {
		int port = rpc_port_ask(call);
		if (port < 0)
			return port;
		address_set_port(&to, (uint16_t)port);
	}
	int fd = connect_to(&to, &call->from, call->deadline);
	if (fd < 0)
		return fd;
	int r = call_on(fd, call, call->program, call->version, call->procedure, call->deadline);
	close(fd);
	return r;
}
