/*
 * TCP: listening, receiving records (RFC 5531 section 11) and their calls. tcp_send.c sends the replies.
 *
 * Owns: listeners, each on the reactor that made it; connections, each on the reactor that had the fewest when it
 * came; per reactor a ring of receive buffers that all its connections share, so that an idle connection holds none.
 * All of this runs in the loop, outside of fibers.
 *
 * Life of a record: recv into a buffer from the ring, as much as has come -> tcp_consume() cuts it along the record
 * marks -> the bytes of a record stay where they are, as pieces that hold a reference to their buffer. When much of
 * a fragment is still to come, it is received to its end straight into buffers of its own (tcp_receive_direct):
 * so the payload of a large WRITE takes two receives. A record cut into very many fragments is copied together.
 * Complete -> rpc_call_received(); the references go when the call is replied to or dropped.
 *
 * Bounds: a connection stops reading at TCP_CALLS_MAX calls, at its share of what the shard has for calls (rpc.c), or
 * at TCP_UNSENT_MAX bytes of replies that the peer does not read; all stop while calls wait for admission, or when the
 * shard's memory or the arena is used up, and are then looked at again (tcp_shard.starved). While we wait for answers
 * to calls of ours, which stand in the same stream behind the peer's own calls and may be what those wait for, a
 * connection may have TCP_CALLS_MAX more before it stops. A peer that leaves a record unfinished for TCP_RECORD_TIME is
 * closed; the kernel closes one that is dead (keepalive) or takes no data (TCP_USER_TIMEOUT).
 *
 * Errors: a record longer than message_max closes its connection with one line in the log; so does all else that
 * cannot be understood. A connection is freed when it is closed, no call of it is left and no operation in flight.
 */
#include <assert.h>
#include <errno.h>
#include <linux/tcp.h> /* the C library's struct tcp_info is an old one */
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rpcrdma/tcp_internal.h"

#define TCP_CALLS_MAX 128u
#define TCP_UNSENT_MAX (4u << 20)
#define TCP_RING_MAX 256u
#define TCP_DIRECT_LEAST 4096u
#define TCP_STARVED_LOOK (5 * NSEC_PER_MSEC)
#define TCP_RECORD_TIME (60 * NSEC_PER_SEC)
#define TCP_RECORD_TIME_PRESSED (10 * NSEC_PER_SEC)
#define TCP_SWEEP (2 * NSEC_PER_SEC)
#define TCP_FREE_CALLS 256u

static void tcp_read_on(struct tcp_connection *c);

/* ------------------------------------------------------------------------------------------------
 * The ring of receive buffers
 */

static void ring_refill(struct tcp_shard *t)
{
	while (t->missing) {
		struct buf *buf = buf_try_alloc(TCP_RECEIVE_BYTES);
		if (!buf)
			return;
		uint16_t id = t->missing_id[--t->missing];
		t->slot[id] = buf;
		io_uring_buf_ring_add(t->ring, buf->data, buf->size, id, (int)t->entries - 1, 0);
		io_uring_buf_ring_advance(t->ring, 1);
	}
}

/* The buffer that a completion names, with its reference; another takes its place. */
static struct buf *ring_take(struct tcp_shard *t, uint32_t flags)
{
	uint16_t id = (uint16_t)(flags >> IORING_CQE_BUFFER_SHIFT);
	struct buf *buf = t->slot[id];
	t->slot[id] = NULL;
	t->missing_id[t->missing++] = id;
	ring_refill(t);
	return buf;
}

/* Kernels before 5.19 have no such rings: then every connection holds a buffer while it waits. */
static void ring_open(struct tcp_shard *t)
{
	static _Atomic uint32_t groups;
	uint64_t most = t->shard->limit / 8 / TCP_RECEIVE_BYTES;

	t->entries = TCP_RING_MAX;
	while (t->entries > 16 && t->entries > most)
		t->entries /= 2;
	size_t bytes = t->entries * sizeof(struct io_uring_buf);
	if (posix_memalign((void **)&t->ring, 4096, (bytes + 4095) & ~(size_t)4095)) {
		t->ring = NULL;
		return;
	}
	memset(t->ring, 0, bytes);
	t->group = (uint16_t)(atomic_fetch_add(&groups, 1) & 0x7fff);
	struct io_uring_buf_reg reg = {
		.ring_addr = (uint64_t)(uintptr_t)t->ring, .ring_entries = t->entries, .bgid = t->group};
	if (io_uring_register_buf_ring(reactor_ring(), &reg, 0) < 0) {
		free(t->ring);
		t->ring = NULL;
		return;
	}
	io_uring_buf_ring_init(t->ring);
	for (uint32_t i = 0; i < t->entries; i++)
		t->missing_id[t->missing++] = (uint16_t)i;
	ring_refill(t);
}

static void starved_look(struct timer *timer);
static void records_sweep(struct timer *timer);

static struct tcp_shard *tcp_shard_of(struct rpc_shard *shard)
{
	if (shard->tcp)
		return shard->tcp;
	struct tcp_shard *t = calloc(1, sizeof(*t));
	if (!t)
		return NULL;
	t->shard = shard;
	list_init(&t->starved);
	list_init(&t->free_calls);
	list_init(&t->free_sends);
	timer_init(&t->look, starved_look);
	timer_init(&t->sweep, records_sweep);
	ring_open(t);
	shard->tcp = t;
	return t;
}

void tcp_shard_fini(struct rpc_shard *shard)
{
	struct tcp_shard *t = shard->tcp;
	if (!t)
		return;
	timer_stop(&t->look);
	timer_stop(&t->sweep);
	if (t->ring) {
		io_uring_unregister_buf_ring(reactor_ring(), t->group);
		for (uint32_t i = 0; i < t->entries; i++)
			buf_put(t->slot[i]);
		free(t->ring);
	}
	struct list_node *n;
	while ((n = list_pop_front(&t->free_calls)))
		free(container_of(n, struct tcp_call, node));
	while ((n = list_pop_front(&t->free_sends)))
		free(container_of(n, struct tcp_send, node));
	free(t);
	shard->tcp = NULL;
}

/* ------------------------------------------------------------------------------------------------
 * Records being put together
 */

static struct tcp_call *call_new(struct tcp_connection *c)
{
	struct list_node *n = list_pop_front(&c->tcp->free_calls);
	struct tcp_call *call = n ? container_of(n, struct tcp_call, node) : malloc(sizeof(*call));
	if (!call)
		return NULL;
	if (n)
		c->tcp->free_calls_count--;
	memset(&call->call, 0, sizeof(call->call));
	list_node_init(&call->node);
	call->call.conn = &c->conn;
	call->pieces = 0;
	call->bytes = 0;
	call->taken = call->held = 0;
	call->copying = false;
	return call;
}

static void call_put_pieces(struct tcp_call *call)
{
	for (unsigned i = 0; i < call->pieces; i++)
		buf_put(call->buf[i]);
	call->pieces = 0;
}

static void call_recycle(struct tcp_shard *t, struct tcp_call *call)
{
	if (t->free_calls_count >= TCP_FREE_CALLS) {
		free(call);
		return;
	}
	t->free_calls_count++;
	list_push_front(&t->free_calls, &call->node);
}

void tcp_call_done(struct tcp_call *call)
{
	struct tcp_shard *t = tcp_of(call->call.conn)->tcp;
	call_put_pieces(call);
	rpc_call_free(&call->call);
	call_recycle(t, call);
}

/* The piece takes over the reference. */
static void piece_put(struct tcp_call *call, struct buf *buf, const uint8_t *data, uint32_t len)
{
	call->piece[call->pieces] = (struct xdr_piece){data, len};
	call->buf[call->pieces] = buf;
	call->pieces++;
}

/* Appends by copying, to buffers that double in size. */
static bool call_copy(struct tcp_call *call, const uint8_t *data, uint32_t len)
{
	while (len) {
		struct buf *tail = call->pieces ? call->buf[call->pieces - 1] : NULL;
		struct xdr_piece *piece = call->pieces ? &call->piece[call->pieces - 1] : NULL;
		if (!piece || piece->len == tail->size) {
			uint32_t size = tail ? tail->size * 2 : TCP_RECEIVE_BYTES;
			if (call->pieces == TCP_PIECES || !(tail = buf_try_alloc(size > BUF_MAX ? BUF_MAX : size)))
				return false;
			piece_put(call, tail, tail->data, 0);
			call->held += tail->size;
			piece = &call->piece[call->pieces - 1];
		}
		uint32_t some = tail->size - piece->len < len ? tail->size - piece->len : len;
		memcpy(tail->data + piece->len, data, some);
		piece->len += some;
		data += some;
		len -= some;
	}
	return true;
}

/* From pieces to copies: the record comes in so many fragments that there is no room to name them all. */
static bool call_copy_begin(struct tcp_call *call)
{
	unsigned pieces = call->pieces;
	struct xdr_piece piece[TCP_PIECES];
	struct buf *buf[TCP_PIECES];
	bool good = true;

	memcpy(piece, call->piece, sizeof(piece));
	memcpy(buf, call->buf, sizeof(buf));
	call->pieces = 0;
	call->held = 0;
	call->copying = true;
	for (unsigned i = 0; i < pieces; i++) {
		good = good && call_copy(call, piece[i].data, piece[i].len);
		buf_put(buf[i]);
	}
	return good;
}

static bool call_append(struct tcp_call *call, struct buf *buf, const uint8_t *data, uint32_t len)
{
	call->bytes += len;
	if (!call->copying && call->pieces) {
		struct xdr_piece *last = &call->piece[call->pieces - 1];
		if (call->buf[call->pieces - 1] == buf && last->data + last->len == data) {
			last->len += len;
			return true;
		}
	}
	if (!call->copying && call->pieces == TCP_PIECES && !call_copy_begin(call))
		return false;
	if (call->copying)
		return call_copy(call, data, len);
	piece_put(call, buf_ref(buf), data, len);
	/* The whole buffer counts for the first record in it. */
	call->held += data <= buf->data + 4 ? buf->size : len;
	return true;
}

static void peer_broke(struct tcp_connection *c, const char *why)
{
	rpc_bad_call(c->conn.server);
	log_warning("rpc", "connection closed: %s peer=%s transport=tcp", why, c->conn.peer_text);
	tcp_close(&c->conn);
}

/* The answer to a call in reverse; the transport is done with it at once. */
static void answer_deliver(struct tcp_connection *c, struct tcp_call *call)
{
	if (!rpc_callback_answered(&c->conn, call->piece, call->pieces, call->bytes))
		peer_broke(c, "an answer that nobody asked for");
	call_put_pieces(call);
	call_recycle(c->tcp, call);
}

/* The second word of the record, which may lie in several pieces, is the message type REPLY. */
static bool record_is_answer(const struct tcp_call *call)
{
	uint32_t at = 0, type = 0;

	if (call->bytes < 8)
		return false;
	for (unsigned i = 0; i < call->pieces && at < 8; i++)
		for (uint32_t k = 0; k < call->piece[i].len && at < 8; k++, at++)
			type = type << 8 | call->piece[i].data[k];
	return type == 1;
}

/* CALL holds a whole record. */
static void call_deliver(struct tcp_connection *c, struct tcp_call *call)
{
	struct rpc_call *rc = &call->call;

	rpc_memory_give(c->conn.shard, call->taken);
	if (c->conn.link && record_is_answer(call)) {
		answer_deliver(c, call);
		return;
	}
	rc->held = call->held + call->taken;
	call->taken = 0;
	rc->piece = call->piece;
	rc->pieces = call->pieces;
	rc->bytes = call->bytes;
	rc->reply_head_max = RPC_HEAD_MAX;
	rc->reply_payload_max = UINT32_MAX;
	rc->received = c->tcp->now;
	rpc_call_received(rc);
}

static void record_deliver(struct tcp_connection *c)
{
	struct tcp_call *call = c->call;

	c->call = NULL;
	c->in_record = false;
	call_deliver(c, call);
}

/* Four bytes of record mark are there. */
static bool record_mark(struct tcp_connection *c)
{
	uint32_t mark =
		(uint32_t)c->mark[0] << 24 | (uint32_t)c->mark[1] << 16 | (uint32_t)c->mark[2] << 8 | c->mark[3];
	uint32_t len = mark & 0x7fffffff, have = c->call ? c->call->bytes : 0;

	c->mark_have = 0;
	if (len > c->conn.server->config.message_max - have) {
		peer_broke(c, "a record that is too long");
		return false;
	}
	if (!c->call && !(c->call = call_new(c))) {
		tcp_close(&c->conn);
		return false;
	}
	if (!c->in_record) {
		c->in_record = true;
		c->record_started = c->tcp->now;
		tcp_sweep_soon(c->tcp);
	}
	c->last_fragment = mark >> 31;
	c->fragment_left = len;
	c->in_fragment = true;
	return true;
}

/* The records that lie in [DATA, DATA + LEN) as most do, whole and of one fragment; returns the bytes of them. */
static uint32_t records_whole(struct tcp_connection *c, struct buf *buf, const uint8_t *data, uint32_t len)
{
	uint32_t at = 0, mark;

	if (c->in_fragment || c->mark_have || c->call)
		return 0;
	while (len - at >= 4 && !c->conn.closing) {
		memcpy(&mark, data + at, 4);
		uint32_t bytes = be32toh(mark) & 0x7fffffff;
		if (!(be32toh(mark) >> 31) || !bytes || bytes > len - at - 4 ||
			bytes > c->conn.server->config.message_max)
			break;
		struct tcp_call *call = call_new(c);
		if (!call) {
			tcp_close(&c->conn);
			break;
		}
		piece_put(call, buf_ref(buf), data + at + 4, bytes);
		call->bytes = bytes;
		call->held = at ? bytes : buf->size; /* the whole buffer counts for the first record in it */
		at += 4 + bytes;
		call_deliver(c, call);
	}
	return at;
}

/* Cuts what was received along the record marks. The bytes are in BUF; references are taken as needed. */
static void tcp_consume(struct tcp_connection *c, struct buf *buf, const uint8_t *data, uint32_t len)
{
	uint32_t whole = records_whole(c, buf, data, len);

	data += whole;
	len -= whole;
	while (!c->conn.closing) {
		if (!c->in_fragment) {
			if (len >= 4 && !c->mark_have) {
				memcpy(c->mark, data, 4);
				c->mark_have = 4;
				data += 4;
				len -= 4;
			}
			while (len && c->mark_have < 4) {
				c->mark[c->mark_have++] = *data++;
				len--;
			}
			if (c->mark_have < 4 || !record_mark(c))
				return;
		}
		uint32_t some = len < c->fragment_left ? len : c->fragment_left;
		if (some && !call_append(c->call, buf, data, some)) {
			log_warning("rpc", "connection closed: no memory for its record peer=%s", c->conn.peer_text);
			tcp_close(&c->conn);
			return;
		}
		c->fragment_left -= some;
		data += some;
		len -= some;
		if (c->fragment_left)
			return;
		c->in_fragment = false;
		if (c->last_fragment)
			record_deliver(c);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Receiving
 */

static void receive_failed(struct tcp_connection *c, int res)
{
	if (res == 0)
		c->eof = true; /* half-closed: what was asked is still answered */
	else if (res == -ENOBUFS || res == -EAGAIN || res == -ENOMEM)
		tcp_starve(c);
	else if (res != -EINTR)
		tcp_close(&c->conn);
}

static void receive_done(struct io *io)
{
	struct tcp_connection *c = container_of(io, struct tcp_connection, receive);
	struct buf *buf = c->receive_buf;
	int res = io->res;

	c->receive_buf = NULL;
	if (io->flags & IORING_CQE_F_BUFFER)
		buf = ring_take(c->tcp, io->flags);
	c->more_came = io->flags & IORING_CQE_F_SOCK_NONEMPTY;
	c->tcp->now = now_ns();
	c->busy++;
	if (res > 0) {
		rpc_bytes_in(&c->conn, (uint32_t)res);
		c->conn.turn = false;
		tcp_consume(c, buf, buf->data, (uint32_t)res);
	} else {
		receive_failed(c, res);
	}
	buf_put(buf);
	c->busy--;
	tcp_settle(c);
}

/* The bytes of a direct receive became pieces of the record as it was started; now they are there. */
static void direct_done(struct io *io)
{
	struct tcp_connection *c = container_of(io, struct tcp_connection, receive);
	struct tcp_direct *d = c->direct;
	int res = io->res;

	c->more_came = io->flags & IORING_CQE_F_SOCK_NONEMPTY;
	c->tcp->now = now_ns();
	c->busy++;
	if (res > 0) {
		uint32_t left = (uint32_t)res;
		rpc_bytes_in(&c->conn, left);
		while (left) {
			struct iovec *v = &d->iov[d->first];
			uint32_t some = left < v->iov_len ? left : (uint32_t)v->iov_len;
			v->iov_base = (uint8_t *)v->iov_base + some;
			v->iov_len -= some;
			left -= some;
			if (!v->iov_len)
				d->first++;
		}
		c->fragment_left -= (uint32_t)res;
	} else {
		receive_failed(c, res);
	}
	if (!c->fragment_left) {
		free(d);
		c->direct = NULL;
		c->in_fragment = false;
		if (c->last_fragment && !c->conn.closing)
			record_deliver(c);
	}
	c->busy--;
	tcp_settle(c);
}

static void direct_start(struct tcp_connection *c)
{
	struct tcp_direct *d = c->direct;
	d->msg = (struct msghdr){.msg_iov = d->iov + d->first, .msg_iovlen = d->count - d->first};
	c->receive.done = direct_done;
	struct io_uring_sqe *sqe = io_start(&c->receive);
	io_uring_prep_recvmsg(sqe, c->fd, &d->msg, MSG_WAITALL);
	io_link(sqe, &c->receive);
}

/* Buffers for the rest of the fragment, and its receive. False: no memory now. */
static bool direct_begin(struct tcp_connection *c)
{
	struct tcp_call *call = c->call;
	uint32_t left = c->fragment_left, held = 0;
	unsigned count = 0;
	struct buf *buf[TCP_PIECES];

	if (!rpc_memory_take(c->conn.shard, left))
		return false;
	struct tcp_direct *d = malloc(sizeof(*d));
	for (uint32_t size; d && left; left -= size, count++) {
		size = left < BUF_MAX ? left : BUF_MAX;
		buf[count] = buf_try_alloc(size);
		if (!buf[count])
			break;
		d->iov[count] = (struct iovec){buf[count]->data, size};
		held += size;
	}
	if (!d || left) {
		while (count)
			buf_put(buf[--count]);
		free(d);
		rpc_memory_give(c->conn.shard, c->fragment_left);
		return false;
	}
	call->taken += held;
	call->bytes += held;
	for (unsigned i = 0; i < count; i++)
		piece_put(call, buf[i], buf[i]->data, (uint32_t)d->iov[i].iov_len);
	d->first = 0;
	d->count = count;
	c->direct = d;
	direct_start(c);
	return true;
}

static bool direct_wanted(const struct tcp_connection *c)
{
	return c->in_fragment && c->fragment_left >= TCP_DIRECT_LEAST && !c->call->copying &&
	       c->call->pieces + c->fragment_left / BUF_MAX + 1 < TCP_PIECES;
}

/* Whether it is read for the sake of an answer, though it has what it may have. */
static bool answer_comes(const struct tcp_connection *c)
{
	return c->conn.link && rpc_callbacks_sent(&c->conn) && c->conn.calls < 2 * TCP_CALLS_MAX &&
	       c->unsent < 2 * TCP_UNSENT_MAX;
}

/* Starts the next receive, if this connection may have one now. */
static void tcp_read_on(struct tcp_connection *c)
{
	struct tcp_shard *t = c->tcp;

	if (c->receive.pending || c->conn.closing || c->eof || list_linked(&c->node))
		return;
	if (c->direct) {
		direct_start(c);
		return;
	}
	if ((c->conn.calls >= TCP_CALLS_MAX || c->unsent >= TCP_UNSENT_MAX || !list_empty(&c->conn.parked)) &&
		!answer_comes(c))
		return;
	if (!list_empty(&t->shard->waiting) && !answer_comes(c)) {
		tcp_starve(c);
		return;
	}
	if (direct_wanted(c)) {
		if (!direct_begin(c))
			tcp_starve(c);
		return;
	}
	if (!t->ring && !(c->receive_buf = buf_try_alloc(TCP_RECEIVE_BYTES))) {
		tcp_starve(c);
		return;
	}
	if (t->ring && t->missing == t->entries) {
		ring_refill(t);
		if (t->missing == t->entries) {
			tcp_starve(c);
			return;
		}
	}
	c->receive.done = receive_done;
	struct io_uring_sqe *sqe = io_start(&c->receive);
	if (t->ring) {
		io_uring_prep_recv(sqe, c->fd, NULL, TCP_RECEIVE_BYTES, 0);
		sqe->flags |= IOSQE_BUFFER_SELECT;
		sqe->buf_group = t->group;
		if (!c->more_came)
			sqe->ioprio |= IORING_RECVSEND_POLL_FIRST;
	} else {
		io_uring_prep_recv(sqe, c->fd, c->receive_buf->data, TCP_RECEIVE_BYTES, 0);
	}
	io_link(sqe, &c->receive);
}

/* ------------------------------------------------------------------------------------------------
 * Connections that wait for memory
 */

void tcp_starve(struct tcp_connection *c)
{
	if (list_linked(&c->node))
		return;
	list_push_back(&c->tcp->starved, &c->node);
	if (!c->tcp->look.slot)
		timer_start(&c->tcp->look, now_ns() + TCP_STARVED_LOOK);
}

static void starved_look(struct timer *timer)
{
	struct tcp_shard *t = container_of(timer, struct tcp_shard, look);
	struct list again;

	list_init(&again);
	list_append(&again, &t->starved);
	ring_refill(t);
	struct list_node *n;
	while ((n = list_pop_front(&again)))
		tcp_settle(container_of(n, struct tcp_connection, node));
}

static bool pressed(const struct tcp_shard *t)
{
	return !list_empty(&t->starved) || !list_empty(&t->shard->waiting) ||
	       !list_empty(&t->shard->payload_queue.waiters);
}

void tcp_sweep_soon(struct tcp_shard *t)
{
	if (!t->sweep.slot)
		timer_start(&t->sweep, now_ns() + TCP_SWEEP);
}

/* Has the peer taken anything since the last sweep? */
static bool send_moves(struct tcp_connection *c)
{
	struct tcp_info info = {0};
	socklen_t bytes = sizeof(info);
	if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) < 0)
		return true;
	bool moves = !c->sweep_seen || info.tcpi_bytes_acked != c->sweep_acked;
	c->sweep_seen = true;
	c->sweep_acked = info.tcpi_bytes_acked;
	return moves;
}

/*
 * Closes those whose peer began a record long ago, while we were ready to read it; and, when others wait for the
 * memory, those that hold replies which their peer does not take.
 */
static void records_sweep(struct timer *timer)
{
	struct tcp_shard *t = container_of(timer, struct tcp_shard, sweep);
	uint64_t now = now_ns();
	bool some = false, press = pressed(t);

	list_foreach (n, &t->shard->connections) {
		struct rpc_connection *conn = container_of(n, struct rpc_connection, node);
		if (conn->transport != &tcp_transport || conn->closing)
			continue;
		struct tcp_connection *c = tcp_of(conn);
		some = some || c->in_record || c->send;
		if (c->in_record && c->receive.pending &&
			now - c->record_started > (press ? TCP_RECORD_TIME_PRESSED : TCP_RECORD_TIME))
			peer_broke(c, "a record that does not end");
		else if (!c->send)
			c->sweep_seen = false;
		else if (!send_moves(c) && press)
			peer_broke(c, "a client that does not read its replies, while others wait");
	}
	if (some)
		timer_start(&t->sweep, now + TCP_SWEEP);
}

/* ------------------------------------------------------------------------------------------------
 * Connections
 */

void tcp_close(struct rpc_connection *conn)
{
	struct tcp_connection *c = tcp_of(conn);
	if (!conn->closing) {
		rpc_connection_closing(conn);
		shutdown(c->fd, SHUT_RDWR); /* what is in flight ends now */
	}
	tcp_post(c); /* not from here: the caller may still look at it */
}

static void tcp_free(struct tcp_connection *c)
{
	if (list_linked(&c->node))
		list_remove(&c->node);
	if (c->call) {
		rpc_memory_give(c->conn.shard, c->call->taken);
		call_put_pieces(c->call);
		call_recycle(c->tcp, c->call);
	}
	rpc_connection_end(&c->conn);
	buf_put(c->receive_buf);
	free(c->direct);
	close(c->fd);
	free(c);
}

void tcp_settle(struct tcp_connection *c)
{
	if (c->busy)
		return;
	if (c->conn.closing)
		tcp_send_abandon(c);
	else if (c->eof && !c->conn.calls)
		rpc_connection_closing(&c->conn);
	if (!c->conn.closing) {
		tcp_read_on(c);
		return;
	}
	if (!c->conn.calls && !c->receive.pending && !c->send && !c->posted)
		tcp_free(c);
}

static void tcp_drop(struct rpc_call *call)
{
	tcp_call_done(container_of(call, struct tcp_call, call));
}

static void tcp_call_ended(struct rpc_connection *conn)
{
	struct tcp_connection *c = tcp_of(conn);
	struct tcp_shard *t = c->tcp;
	tcp_settle(c);
	if (!list_empty(&t->starved) && list_empty(&t->shard->waiting))
		timer_start(&t->look, now_ns()); /* in the next round: not on top of this stack */
}

const struct rpc_transport tcp_transport = {
	.name = "tcp",
	.reply = tcp_reply,
	.drop = tcp_drop,
	.close = tcp_close,
	.call_ended = tcp_call_ended,
	.callback = tcp_callback,
};

void tcp_call_release_message(struct tcp_call *call)
{
	call_put_pieces(call);
}

struct tcp_arrival {
	struct mail mail;
	struct rpc_server *server;
	int fd;
};

static void tcp_arrive(void *arg)
{
	struct tcp_arrival *a = arg;
	struct rpc_server *server = a->server;
	int fd = a->fd;
	union {
		struct sockaddr_storage storage;
		struct sockaddr any;
	} peer = {0}, local = {0};
	socklen_t bytes = sizeof(peer.storage), local_bytes = bytes;

	free(a);
	atomic_fetch_sub(&rpc_shard_self(server)->tcp_arriving, 1);
	struct tcp_shard *t = tcp_shard_of(rpc_shard_self(server));
	struct tcp_connection *c = t ? calloc(1, sizeof(*c)) : NULL;
	if (!c || getpeername(fd, &peer.any, &bytes) < 0 || getsockname(fd, &local.any, &local_bytes) < 0) {
		free(c);
		close(fd);
		return;
	}
	int rc = rpc_connection_begin(&c->conn, server, &tcp_transport, &peer.any, &local.any);
	if (rc < 0) {
		if (rc == -EMFILE)
			log_warning("rpc", "connection refused: too many peer=%s limit=%u limit_of_client=%u",
				c->conn.peer_text, server->config.connections, server->config.client_connections);
		free(c);
		close(fd);
		return;
	}
	c->tcp = t;
	c->fd = fd;
	list_init(&c->replies);
	list_node_init(&c->node);
	c->mail.fn = tcp_posted;
	c->mail.arg = c;
	tcp_read_on(c);
}

/* ------------------------------------------------------------------------------------------------
 * Listeners
 */

struct tcp_listener {
	struct rpc_listener listener;
	struct rpc_server *server;
	struct reactor *reactor;
	int fd;
	bool single, stopping; /* single: a kernel without multishot accept */
	struct io accept;
	struct timer again;
};

static void accept_start(struct tcp_listener *l);

static void accept_again(struct timer *timer)
{
	accept_start(container_of(timer, struct tcp_listener, again));
}

static void accept_done(struct io *io)
{
	struct tcp_listener *l = container_of(io, struct tcp_listener, accept);
	int fd = io->res;

	if (fd >= 0) {
		struct tcp_arrival *a = l->stopping ? NULL : malloc(sizeof(*a));
		if (a) {
			*a = (struct tcp_arrival){.mail = {.fn = tcp_arrive, .arg = a}, .server = l->server, .fd = fd};
			struct rpc_shard *shard = rpc_shard_pick(l->server, false);
			atomic_fetch_add(&shard->tcp_arriving, 1);
			reactor_mail(shard->reactor, &a->mail);
		} else {
			close(fd);
		}
	}
	if (io->pending)
		return;
	if (l->stopping)
		return;
	if (fd == -EINVAL && !l->single) {
		l->single = true;
		accept_start(l);
	} else if (fd >= 0 || fd == -ECONNABORTED || fd == -EINTR) {
		accept_start(l);
	} else { /* no descriptors, no memory: those that come wait in the backlog */
		log_warning("rpc", "cannot accept connections for now: %s", strerror(-fd));
		timer_start(&l->again, now_ns() + 100 * NSEC_PER_MSEC);
	}
}

static void accept_start(struct tcp_listener *l)
{
	struct io_uring_sqe *sqe = io_start(&l->accept);
	if (l->single)
		io_uring_prep_accept(sqe, l->fd, NULL, NULL, SOCK_CLOEXEC);
	else
		io_uring_prep_multishot_accept(sqe, l->fd, NULL, NULL, SOCK_CLOEXEC);
	io_link(sqe, &l->accept);
}

static void listener_stop_here(void *arg)
{
	struct tcp_listener *l = arg;
	l->stopping = true;
	timer_stop(&l->again);
	while (l->accept.pending) {
		io_cancel(&l->accept);
		fiber_sleep(NSEC_PER_MSEC);
	}
	close(l->fd);
	free(l);
}

static void listener_stop(struct rpc_listener *listener)
{
	struct tcp_listener *l = container_of(listener, struct tcp_listener, listener);
	reactor_call(l->reactor, listener_stop_here, l);
}

/* Accepted sockets inherit all of these. */
static void socket_options(int fd, int family, const struct rpc_network *network)
{
	static const struct {
		int level, option, value;
	} all[] = {
		{IPPROTO_TCP, TCP_NODELAY, 1},
		{SOL_SOCKET, SO_KEEPALIVE, 1},
		{IPPROTO_TCP, TCP_KEEPIDLE, 60},
		{IPPROTO_TCP, TCP_KEEPINTVL, 15},
		{IPPROTO_TCP, TCP_KEEPCNT, 4},
		{IPPROTO_TCP, TCP_USER_TIMEOUT, 60000},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		setsockopt(fd, all[i].level, all[i].option, &all[i].value, sizeof(all[i].value));
	int class = network->dscp << 2;
	if (network->dscp_given)
		setsockopt(fd, family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP,
			family == AF_INET6 ? IPV6_TCLASS : IP_TOS, &class, sizeof(class));
}

int rpc_listen_tcp(struct rpc_server *server, const char *address, uint16_t port, struct error *err)
{
	union {
		struct sockaddr_storage storage;
		struct sockaddr any;
	} a;
	socklen_t bytes;
	int one = 1, rc = rpc_address_parse(address, port, &a.storage, &bytes, err);

	if (rc < 0)
		return rc;
	if (server->config.message_max > (TCP_PIECES - 8) * BUF_MAX)
		return error_set(err, -EINVAL, "messages of %u bytes are too long for TCP", server->config.message_max);
	int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return error_set(err, -errno, "cannot make a socket for %s: %s", address, strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (a.any.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	socket_options(fd, a.any.sa_family, &server->config.network);
	struct tcp_listener *l = calloc(1, sizeof(*l));
	if (!l || bind(fd, &a.any, bytes) < 0 || listen(fd, 1024) < 0) {
		rc = error_set(err, l ? -errno : -ENOMEM, "cannot listen on %s port %u: %s", address, port,
			l ? strerror(errno) : "no memory");
		free(l);
		close(fd);
		return rc;
	}
	l->server = server;
	l->reactor = reactor_self();
	l->fd = fd;
	l->listener.stop = listener_stop;
	l->accept.done = accept_done;
	timer_init(&l->again, accept_again);
	accept_start(l);
	rpc_listener_add(server, &l->listener);
	return 0;
}
