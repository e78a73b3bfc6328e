/*
 * What the tests of RPC over TCP share: a server on two reactors, and blocking clients on the test's own thread. Each
 * test ends with all connections closed and every buffer back in the arena. Who includes it has defined PROGRAM and
 * programs[] before; a function that one test does not use is no mistake.
 */
#ifndef FURROW_TESTS_TCP_FIXTURE_H
#define FURROW_TESTS_TCP_FIXTURE_H

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

#pragma GCC diagnostic ignored "-Wunused-function"

/* ------------------------------------------------------------------------------------------------
 * The server, and the reactors it runs on
 */

static pthread_t core_thread;
static _Atomic bool core_up, core_end;
static struct rpc_server *server;
static struct rpc_server_config config;
static uint16_t port;
static uint64_t free_before;

static void core_fiber(void *arg)
{
	(void)arg;
	atomic_store(&core_up, true);
	while (!atomic_load(&core_end))
		fiber_sleep(2 * NSEC_PER_MSEC);
}

static void *core_run_thread(void *arg)
{
	struct core_config c = {.reactors = 2, .arena_bytes = 96ull << 20};
	struct error err;
	(void)arg;
	if (core_main(&c, core_fiber, NULL, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	return NULL;
}

static void do_start(void *arg)
{
	struct error err;
	(void)arg;
	free_before = arena_free_bytes();
	assert(rpc_server_start(&config, &server, &err) == 0);
	int rc = -EADDRINUSE;
	for (int i = 0; i < 50 && rc == -EADDRINUSE; i++) {
		port = (uint16_t)(20000 + (getpid() * 7 + i * 101) % 12000);
		rc = rpc_listen_tcp(server, "127.0.0.1", port, &err);
	}
	if (rc == 0)
		rc = rpc_listen_tcp(server, "::1", port, &err);
	if (rc < 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
}

static void do_stop(void *arg)
{
	(void)arg;
	rpc_server_stop(server);
	server = NULL;
}

/* The programs are put in. */
static int start_with(struct rpc_server_config c)
{
	config = c;
	config.programs = programs;
	config.program_count = sizeof(programs) / sizeof(programs[0]);
	reactor_call(reactor_get(0), do_start, NULL);
	return 0;
}

static int start(void **state)
{
	(void)state;
	return start_with((struct rpc_server_config){0});
}

static uint64_t connections_now(void)
{
	struct rpc_status s;
	rpc_status(server, &s);
	return s.tcp_connections;
}

#define wait_for(condition)                                                                                            \
	do {                                                                                                           \
		uint64_t deadline_ = now_ns() + 5 * NSEC_PER_SEC;                                                      \
		while (!(condition)) {                                                                                 \
			if (now_ns() > deadline_)                                                                      \
				fail_msg("waited in vain for %s", #condition);                                         \
			usleep(1000);                                                                                  \
		}                                                                                                      \
	} while (0)

static int stop(void **state)
{
	(void)state;
	if (server) {
		wait_for(connections_now() == 0);
		reactor_call(reactor_get(0), do_stop, NULL);
	}
	/* the caches of the reactors count as free, but are only counted now and then */
	wait_for(arena_free_bytes() == free_before);
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * A client
 */

static int client(void)
{
	struct sockaddr_in a = {
		.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	struct timeval limit = {.tv_sec = 8};
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	return fd;
}

static void put_all(int fd, const void *data, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = send(fd, (const char *)data + at, len - at, MSG_NOSIGNAL);
		assert_true(n > 0);
		at += (size_t)n;
	}
}

static bool get_all(int fd, void *data, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = recv(fd, (char *)data + at, len - at, 0);
		if (n <= 0)
			return false;
		at += (size_t)n;
	}
	return true;
}

/* A record as the peer sent it; free() it. NULL: closed. */
static uint8_t *get_record(int fd, uint32_t *len)
{
	uint32_t mark;
	if (!get_all(fd, &mark, 4))
		return NULL;
	mark = ntohl(mark);
	assert_true(mark & 0x80000000u);
	*len = mark & 0x7fffffff;
	uint8_t *p = malloc(*len + 1);
	if (!get_all(fd, p, *len)) {
		free(p);
		return NULL;
	}
	return p;
}

/* Messages are built behind 4 bytes for the mark. */
struct message {
	uint8_t *bytes;
	struct xdr_out out;
};

static void message_begin(struct message *m, size_t room, uint32_t xid, uint32_t version, uint32_t procedure)
{
	m->bytes = malloc(room + 200);
	xdr_out_init(&m->out, m->bytes + 4, room + 196);
	xdr_put_u32(&m->out, xid);
	xdr_put_u32(&m->out, 0);
	xdr_put_u32(&m->out, 2);
	xdr_put_u32(&m->out, PROGRAM);
	xdr_put_u32(&m->out, version);
	xdr_put_u32(&m->out, procedure);
	for (int i = 0; i < 4; i++)
		xdr_put_u32(&m->out, 0);
}

static uint32_t message_len(const struct message *m)
{
	return (uint32_t)(m->out.p - m->out.base);
}

static uint32_t message_mark(struct message *m)
{
	uint32_t mark = htonl(message_len(m) | 0x80000000u);
	memcpy(m->bytes, &mark, 4);
	return message_len(m) + 4;
}

static void message_send(int fd, struct message *m)
{
	uint32_t len = message_mark(m);
	put_all(fd, m->bytes, len);
	free(m->bytes);
}

static void send_words(int fd, uint32_t xid, uint32_t procedure, unsigned n, uint32_t first, uint32_t second)
{
	struct message m;
	message_begin(&m, 100, xid, 4, procedure);
	if (n > 0)
		xdr_put_u32(&m.out, first);
	if (n > 1)
		xdr_put_u32(&m.out, second);
	message_send(fd, &m);
}

/* The words of a reply that must be accepted with success; returns its results' length. */
static uint8_t *get_success(int fd, uint32_t xid, uint32_t *len)
{
	uint8_t *p = get_record(fd, len);
	assert_non_null(p);
	uint32_t words[6];
	assert_true(*len >= sizeof(words));
	memcpy(words, p, sizeof(words));
	for (int i = 0; i < 6; i++)
		words[i] = ntohl(words[i]);
	if (xid)
		assert_int_equal(words[0], xid);
	assert_int_equal(words[1], 1);
	for (int i = 2; i < 6; i++)
		assert_int_equal(words[i], 0);
	return p;
}

static uint32_t word(const uint8_t *p, unsigned i)
{
	uint32_t x;
	memcpy(&x, p + 4 * i, 4);
	return ntohl(x);
}

static uint32_t get_count(int fd, uint32_t xid)
{
	uint32_t len;
	uint8_t *p = get_success(fd, xid, &len);
	assert_int_equal(len, 28);
	uint32_t value = word(p, 6);
	free(p);
	return value;
}

static bool silent(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	return poll(&p, 1, ms) == 0;
}

static bool closed(int fd)
{
	char c;
	ssize_t n = recv(fd, &c, 1, 0);
	return n == 0 || (n < 0 && errno != EAGAIN);
}

static void null_works(void)
{
	int fd = client();
	uint32_t len;
	send_words(fd, 4711, P_NULL, 0, 0, 0);
	free(get_success(fd, 4711, &len));
	assert_int_equal(len, 24);
	close(fd);
}

/* For main(): runs TESTS while the reactors run. */
static int fixture_run(int (*run)(void))
{
	atomic_store(&log_threshold, LOG_ERROR);
	pthread_create(&core_thread, NULL, core_run_thread, NULL);
	while (!atomic_load(&core_up))
		usleep(1000);
	int rc = run();
	atomic_store(&core_end, true);
	pthread_join(core_thread, NULL);
	return rc;
}

#endif
