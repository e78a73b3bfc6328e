/*
 * A small NFSv3 client for tests, over TCP unless it has another transport: one connection, one call at a time,
 * arguments and results as the generated codec has them. It fails the test when the transport or the RPC layer does;
 * the NFS status is the test's to judge.
 */
#ifndef TESTS_NFS_CLIENT_H
#define TESTS_NFS_CLIENT_H

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "rpcrdma/rpcrdma.h"
#include "xdr/mount3.h"
#include "xdr/nfs3.h"

#define CLIENT_ROOM (2u << 20)

struct client;
struct peer;

/* Another transport than TCP (nfs_client_rdma.h). */
struct client_transport {
	bool (*connect)(struct client *c);
	bool (*send)(struct client *c);	   /* the call that was put together; false: the connection is lost */
	bool (*receive)(struct client *c); /* the next reply */
	void (*close)(struct client *c);
};

struct client {
	const struct client_transport *over; /* NULL: TCP */
	struct peer *peer;		     /* the transport's */
	int fd;
	uint16_t port;
	const char *from; /* the address that it calls from; NULL: any */
	uint32_t xid, flavor, uid, gid;
	uint8_t *call, *reply, *memory;
	struct xdr_out out;
	/* Data in the call that a transport may send apart from it (a Read chunk), if data_bytes is not 0. */
	uint32_t data_at, data_bytes;
	struct xdr_in in;
	struct xdr_pool pool;
	int accept_stat; /* of the last call; -1: denied */
};

/* Of clients that are made from now on. */
static const struct client_transport *client_over;

static inline bool client_connect(struct client *c)
{
	struct sockaddr_in to = {
		.sin_family = AF_INET, .sin_port = htons(c->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval limit = {.tv_sec = 20};

	if (c->over)
		return c->over->connect(c);
	if (c->fd >= 0)
		close(c->fd);
	c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	struct sockaddr_in from = {.sin_family = AF_INET};
	if (c->from && (inet_pton(AF_INET, c->from, &from.sin_addr) != 1 ||
			       bind(c->fd, (struct sockaddr *)&from, sizeof(from))))
		return false;
	return !connect(c->fd, (struct sockaddr *)&to, sizeof(to));
}

static inline void client_init(struct client *c, uint16_t port, uint32_t uid)
{
	*c = (struct client){.over = client_over,
		.fd = -1,
		.port = port,
		.xid = 1000 * uid + 7,
		.flavor = RPC_AUTH_SYS,
		.uid = uid,
		.gid = uid};
	c->call = malloc(CLIENT_ROOM);
	c->reply = malloc(CLIENT_ROOM);
	c->memory = malloc(CLIENT_ROOM);
	assert_true(c->call && c->reply && c->memory);
}

static inline void client_fini(struct client *c)
{
	if (c->over)
		c->over->close(c);
	if (c->fd >= 0)
		close(c->fd);
	free(c->call);
	free(c->reply);
	free(c->memory);
}

/* The call's header; its arguments follow by the codec. */
static inline struct xdr_out *client_begin(struct client *c, uint32_t program, uint32_t version, uint32_t procedure)
{
	struct xdr_out *o = &c->out;

	c->data_bytes = 0;
	xdr_out_init(o, c->call + 4, CLIENT_ROOM - 4);
	xdr_put_u32(o, ++c->xid);
	xdr_put_u32(o, 0);
	xdr_put_u32(o, 2);
	xdr_put_u32(o, program);
	xdr_put_u32(o, version);
	xdr_put_u32(o, procedure);
	xdr_put_u32(o, c->flavor);
	if (c->flavor == RPC_AUTH_SYS) {
		xdr_put_u32(o, 4 + 4 + 8 + 4 + 4 + 4);
		xdr_put_u32(o, 0);
		xdr_put_opaque(o, "testhost", 8);
		xdr_put_u32(o, c->uid);
		xdr_put_u32(o, c->gid);
		xdr_put_u32(o, 0);
	} else {
		xdr_put_u32(o, 0);
	}
	xdr_put_u32(o, RPC_AUTH_NONE);
	xdr_put_u32(o, 0);
	return o;
}

static inline bool client_read(struct client *c, uint8_t *to, size_t bytes)
{
	while (bytes) {
		ssize_t n = recv(c->fd, to, bytes, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		to += n;
		bytes -= (size_t)n;
	}
	return true;
}

static inline bool client_send(struct client *c)
{
	if (c->over)
		return c->over->send(c);
	size_t bytes = (size_t)(c->out.p - c->out.base), done = 0;
	uint32_t mark = htonl(0x80000000u | (uint32_t)bytes);

	memcpy(c->call, &mark, 4);
	while (done < bytes + 4) {
		ssize_t n = send(c->fd, c->call + done, bytes + 4 - done, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		done += (size_t)n;
	}
	return true;
}

/* The next message: a reply, or a call of the server's. False: the connection is lost. */
static inline bool client_receive(struct client *c)
{
	if (c->over)
		return c->over->receive(c);
	size_t got = 0;
	uint32_t word = 0;

	while (!(word & 0x80000000u)) {
		if (!client_read(c, (uint8_t *)&word, 4))
			return false;
		word = ntohl(word);
		size_t len = word & 0x7fffffffu;
		assert_true(got + len <= CLIENT_ROOM);
		if (!client_read(c, c->reply + got, len))
			return false;
		got += len;
	}
	c->pool = (struct xdr_pool){.base = c->memory, .room = CLIENT_ROOM};
	xdr_in_init(&c->in, c->reply, got, &c->pool);
	return true;
}

/* The head of the reply that was received. */
static inline void client_reply(struct client *c)
{
	uint32_t xid = 0, v = 0;

	assert_true(xdr_get_u32(&c->in, &xid) && xid == c->xid);
	assert_true(xdr_get_u32(&c->in, &v) && v == 1);
	assert_true(xdr_get_u32(&c->in, &v));
	if (v) {
		c->accept_stat = -1;
		return;
	}
	assert_true(xdr_get_u32(&c->in, &v) && xdr_get_u32(&c->in, &v) && v == 0); /* verifier: none */
	assert_true(xdr_get_u32(&c->in, &v));
	c->accept_stat = (int)v;
}

/* Sends what client_begin() started (again) and receives the reply. False: the connection is lost. */
static inline bool client_try(struct client *c)
{
	if (!client_send(c) || !client_receive(c))
		return false;
	client_reply(c);
	return true;
}

static inline void client_call(struct client *c)
{
	if (!client_try(c))
		fail_msg("no reply to call %u: %s", c->xid, strerror(errno));
	assert_int_equal(c->accept_stat, RPC_SUCCESS);
}

/* The whole result must be there and nothing more. */
#define client_result(c, type, res)                                                                                    \
	do {                                                                                                           \
		assert_true(xdr_decode_##type(&(c)->in, res));                                                         \
		assert_int_equal(xdr_in_left(&(c)->in), 0);                                                            \
	} while (0)

/* nfs3(c, GETATTR, &args, &res) */
#define nfs3(c, PROC, args, res)                                                                                       \
	do {                                                                                                           \
		struct xdr_out *o_ = client_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_##PROC);                            \
		assert_true(xdr_encode_##PROC##3args(o_, args));                                                       \
		client_call(c);                                                                                        \
		client_result(c, PROC##3res, res);                                                                     \
	} while (0)

/* A handle that stays: results point into the reply. */
struct kept {
	uint32_t len;
	uint8_t data[64];
};
static inline struct kept keep(const struct nfs_fh3 *fh)
{
	struct kept k = {.len = fh->data.len};
	assert_true(k.len <= 64);
	memcpy(k.data, fh->data.data, k.len);
	return k;
}
static inline struct nfs_fh3 fh(const struct kept *k)
{
	return (struct nfs_fh3){.data = {.data = k->data, .len = k->len}};
}
static inline struct xdr_opaque text(const char *s)
{
	return (struct xdr_opaque){.data = (const uint8_t *)s, .len = (uint32_t)strlen(s)};
}

/* MNT; *STATUS, and the root when it is MNT3_OK. */
static inline struct kept client_mount(struct client *c, const char *path, mountstat3 *status)
{
	mountres3 res;
	dirpath p = text(path);
	struct kept k = {0};

	assert_true(xdr_encode_dirpath(client_begin(c, MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_MNT), &p));
	client_call(c);
	client_result(c, mountres3, &res);
	*status = res.fhs_status;
	if (res.fhs_status == MNT3_OK) {
		nfs_fh3 h = {.data = res.mountinfo.fhandle};
		k = keep(&h);
	}
	return k;
}

#endif
