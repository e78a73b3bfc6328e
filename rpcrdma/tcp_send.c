/*
 * TCP: replies, and calls in reverse, which go through the same queue.
 *
 * A connection has a queue of replies and at most one sendmsg in flight, made of as many of them as fit its iovecs and
 * TCP_SEND_BYTES. It is built once a round (tcp_posted), after all fibers have run, and again when the one before is
 * done: so replies that are ready together leave in one system call, and their order is that of the queue.
 *
 * Nothing is copied: the record mark goes into the headroom of the reply's head, the payload is sent from where it
 * lies. A reply's memory is freed when the kernel has taken its last byte.
 *
 * Errors: a send that fails closes the connection; the calls whose replies were queued are freed. The peer comes
 * again with a new connection, and the reply cache knows what was done.
 */
#include <errno.h>
#include <stdlib.h>

#include "rpcrdma/tcp_internal.h"

#define TCP_SEND_BYTES (2u << 20)
#define TCP_FREE_SENDS 64u

/* It was sent, or never will be. */
static void reply_over(struct rpc_reply *reply)
{
	if (reply->call)
		tcp_call_done(container_of(reply->call, struct tcp_call, call));
	else
		rpc_callback_sent(reply);
}

/* ------------------------------------------------------------------------------------------------
 * From replies to iovecs
 */

struct iov_list {
	struct iovec *iov;
	unsigned count;
	uint32_t skip; /* bytes that were sent before */
	uint64_t bytes;
};

/* False when it is full. */
static inline bool iov_add(struct iov_list *l, const void *data, uint32_t len)
{
	if (__builtin_expect(l->skip > 0, 0)) {
		uint32_t some = l->skip < len ? l->skip : len;
		l->skip -= some;
		data = (const uint8_t *)data + some;
		len -= some;
	}
	if (!len)
		return true;
	if (l->count == TCP_SEND_IOVS || l->bytes >= TCP_SEND_BYTES)
		return false;
	l->iov[l->count++] = (struct iovec){(uint8_t *)(uintptr_t)data, len};
	l->bytes += len;
	return true;
}

static bool iov_payload(struct iov_list *l, const struct rpc_reply_payload *p)
{
	static const uint8_t padding[4];

	for (unsigned k = 0; k < p->n; k++)
		if (!iov_add(l, slice_data(&p->v[k]), p->v[k].len))
			return false;
	return iov_add(l, padding, xdr_round(p->len) - p->len);
}

static bool iov_reply(struct iov_list *l, const struct rpc_reply *reply)
{
	const uint8_t *at = reply->head - 4, *end = reply->head + reply->len;

	for (uint32_t i = 0; i < reply->payloads; i++) {
		const uint8_t *before = reply->head + reply->payload[i].pos;
		if (!iov_add(l, at, (uint32_t)(before - at)) || !iov_payload(l, &reply->payload[i]))
			return false;
		at = before;
	}
	return iov_add(l, at, (uint32_t)(end - at));
}

/* ------------------------------------------------------------------------------------------------
 * Sends
 */

static void send_done(struct io *io);

static struct tcp_send *send_new(struct tcp_shard *t)
{
	struct list_node *n = list_pop_front(&t->free_sends);
	if (n) {
		t->free_sends_count--;
		return container_of(n, struct tcp_send, node);
	}
	struct tcp_send *s = malloc(sizeof(*s));
	if (s) {
		list_node_init(&s->node);
		s->io = (struct io){.done = send_done};
	}
	return s;
}

static void send_recycle(struct tcp_shard *t, struct tcp_send *s)
{
	if (t->free_sends_count >= TCP_FREE_SENDS) {
		free(s);
		return;
	}
	t->free_sends_count++;
	list_push_front(&t->free_sends, &s->node);
}

/* Starts a send of what is queued, unless there is one. */
static void send_start(struct tcp_connection *c)
{
	if (c->send || c->conn.closing || list_empty(&c->replies))
		return;
	struct tcp_send *s = send_new(c->tcp);
	if (!s) {
		tcp_close(&c->conn);
		return;
	}
	struct iov_list l = {.iov = s->iov, .skip = c->first_sent};
	list_foreach (n, &c->replies)
		if (!iov_reply(&l, container_of(n, struct rpc_reply, node)))
			break;
	s->connection = c;
	s->msg = (struct msghdr){.msg_iov = s->iov, .msg_iovlen = l.count};
	c->send = s;
	tcp_sweep_soon(c->tcp);
	struct io_uring_sqe *sqe = io_start(&s->io);
	io_uring_prep_sendmsg(sqe, c->fd, &s->msg, MSG_NOSIGNAL | MSG_WAITALL);
	io_link(sqe, &s->io);
}

/* Frees the replies whose last byte has left. */
static void replies_sent(struct tcp_connection *c, uint32_t bytes)
{
	c->unsent -= bytes;
	bytes += c->first_sent;
	struct list_node *n;
	while ((n = list_first(&c->replies))) {
		struct rpc_reply *reply = container_of(n, struct rpc_reply, node);
		if (bytes < reply->bytes)
			break;
		bytes -= reply->bytes;
		list_remove(n);
		reply_over(reply);
	}
	c->first_sent = bytes;
}

static void send_done(struct io *io)
{
	struct tcp_send *s = container_of(io, struct tcp_send, io);
	struct tcp_connection *c = s->connection;
	int res = io->res;

	c->send = NULL;
	send_recycle(c->tcp, s);
	c->busy++;
	if (res > 0) {
		rpc_bytes_out(&c->conn, (uint32_t)res);
		replies_sent(c, (uint32_t)res);
		send_start(c);
	} else if (res == -EINTR || res == -EAGAIN) {
		send_start(c);
	} else {
		tcp_close(&c->conn);
	}
	c->busy--;
	tcp_settle(c);
}

void tcp_send_abandon(struct tcp_connection *c)
{
	if (c->send)
		return;
	struct list_node *n;
	c->busy++;
	while ((n = list_pop_front(&c->replies)))
		reply_over(container_of(n, struct rpc_reply, node));
	c->busy--;
	c->first_sent = 0;
	c->unsent = 0;
}

void tcp_post(struct tcp_connection *c)
{
	if (c->posted)
		return;
	c->posted = true;
	reactor_mail(c->tcp->shard->reactor, &c->mail);
}

void tcp_posted(void *arg)
{
	struct tcp_connection *c = arg;
	c->posted = false;
	c->busy++;
	send_start(c);
	c->busy--;
	tcp_settle(c);
}

static inline void reply_queue(struct tcp_connection *c, struct rpc_reply *reply)
{
	uint32_t bytes = rpc_reply_bytes(reply), mark = __builtin_bswap32(bytes | 0x80000000u);
	memcpy(reply->head - 4, &mark, 4);
	reply->bytes = bytes + 4;
	list_push_back(&c->replies, &reply->node);
	c->unsent += reply->bytes;
	if (!c->send)
		tcp_post(c);
}

int tcp_callback(struct rpc_connection *conn, struct rpc_reply *message)
{
	reply_queue(tcp_of(conn), message);
	return 0;
}

void tcp_reply(struct rpc_call *call, struct rpc_reply *reply)
{
	struct tcp_call *tc = container_of(call, struct tcp_call, call);
	struct tcp_connection *c = tcp_of(call->conn);

	if (c->conn.closing || reply->too_long) {
		tcp_call_done(tc);
		return;
	}
	tcp_call_release_message(tc);
	reply_queue(c, reply);
}
