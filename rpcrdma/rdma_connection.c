/*
 * One connection over RDMA, from the request of its peer to its end.
 *
 * Opening. The manager made the struct and picked a reactor; a fiber there reserves a place in a lane, takes the first
 * credits (as many as there are receives for), makes the queue pair and accepts. Calls may come before the connection
 * manager says "established", so everything is ready before the peer is answered. A peer that serves no RDMA Reads is
 * refused: its WRITEs could never be fetched. The steps that enter the kernel for long run on a helper thread.
 *
 * Send queue. Its slots are counted: a reply or an RDMA Read is posted when as many as it needs are free, and
 * waits in line otherwise, replies first, calls in reverse last. They come back with completions.
 *
 * Credits. A connection begins with two. One that uses all that it has is given the most at once, and one that for a
 * second had few calls at a time is told of twice as many. So an idle connection holds no more than two receives and a
 * short send queue. What it was told to have less of is free for others only after a while (rdma_connection_look()).
 *
 * Signs of life. A peer that died without a word is found by its silence: after a minute an empty RDMA Write asks its
 * adapter. One that lives and takes no replies (it posts no receives, so that our Sends are retried for ever) is closed
 * after half a minute.
 *
 * Closing, always in this order: the queue pair goes to the error state, so that everything in flight is flushed;
 * the peer is told; all completions are waited for, since until then the adapter may write to our buffers; then the
 * queue pair and the cm id are destroyed, the calls that still run end (their replies go nowhere), and the memory goes.
 * A device that was pulled out completes nothing any more: after a while its queue pairs are destroyed
 * anyway, which stops all access, and what was pending is ended by hand.
 *
 * Everything here runs on the connection's reactor except two messages from the manager's.
 */
#include "rpcrdma/rdma_internal.h"

#include <errno.h>
#include <stdlib.h>

struct rdma_metrics rdma_metrics;
struct rdma_times rdma_times = {.look = 15 * NSEC_PER_SEC, .stall = 30 * NSEC_PER_SEC, .idle = 60 * NSEC_PER_SEC};

#define CREDITS_WINDOW NSEC_PER_SEC
#define CREDITS_BUSY 64u	  /* calls in a window */
#define QP_ETHERNET_MASK 0xe00000 /* the kernel's own bits of ibv_qp_attr_mask */

static void connection_close(void *arg);

/* ------------------------------------------------------------------------------------------------
 * Send queue slots and RDMA Read permissions
 */

static int wait_in_line(struct rdma_connection *conn, struct list *line, uint32_t need)
{
	struct rdma_waiter w = {.need = need, .fiber = fiber_self()};
	list_push_back(line, &w.node);
	while (list_linked(&w.node))
		fiber_suspend();
	(void)conn;
	return w.granted ? 0 : -EIO;
}

static void waiter_end(struct rdma_waiter *w, bool granted)
{
	w->granted = granted;
	list_remove(&w->node);
	fiber_wake(w->fiber);
}

int rdma_slots_take(struct rdma_connection *conn, uint32_t n)
{
	if (conn->failed)
		return -EIO;
	if (n > conn->sq_free || !list_empty(&conn->sends) || !list_empty(&conn->slot_waiters))
		return wait_in_line(conn, &conn->slot_waiters, n);
	conn->sq_free -= n;
	return 0;
}

void rdma_slots_give(struct rdma_connection *conn, uint32_t n)
{
	conn->sq_free += n;
	if (conn->failed) {
		rdma_connection_check(conn);
		return;
	}
	rdma_sends_continue(conn);
	struct list_node *first;
	while (!conn->failed && list_empty(&conn->sends) && (first = list_first(&conn->slot_waiters))) {
		struct rdma_waiter *w = container_of(first, struct rdma_waiter, node);
		if (w->need > conn->sq_free)
			break;
		conn->sq_free -= w->need;
		waiter_end(w, true);
	}
	if (!conn->failed && conn->sq_free)
		rpc_callbacks_run(&conn->rpc);
}

int rdma_reads_take(struct rdma_connection *conn, uint32_t wanted)
{
	if (conn->failed)
		return -EIO;
	if (!conn->reads_free || !list_empty(&conn->read_waiters)) {
		if (wait_in_line(conn, &conn->read_waiters, 1))
			return -EIO;
		wanted--; /* has one; takes more if there are */
		uint32_t more = wanted < conn->reads_free && list_empty(&conn->read_waiters) ? wanted : 0;
		conn->reads_free -= more;
		return (int)(more + 1);
	}
	if (wanted > conn->reads_free)
		wanted = conn->reads_free;
	conn->reads_free -= wanted;
	return (int)wanted;
}

void rdma_reads_give(struct rdma_connection *conn, uint32_t n)
{
	struct list_node *first;
	conn->reads_free += n;
	while (!conn->failed && conn->reads_free && (first = list_first(&conn->read_waiters))) {
		conn->reads_free--;
		waiter_end(container_of(first, struct rdma_waiter, node), true);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Operations
 */

void rdma_post(
	struct rdma_connection *conn, struct rdma_op *op, struct ibv_send_wr *wr, uint32_t n, uint32_t completions)
{
	struct ibv_send_wr *bad;
	for (uint32_t i = 0; i + 1 < n; i++)
		wr[i].next = &wr[i + 1];
	wr[n - 1].next = NULL;
	op->conn = conn;
	if (list_empty(&conn->ops))
		conn->progress = now_ns();
	if (!op->pending)
		list_push_back(&conn->ops, &op->node);
	op->pending += completions;
	counter_add(&rdma_metrics.posts, 1);
	int rc = ibv_post_send(conn->qp, wr, &bad);
	if (!rc)
		return;
	/* What was not posted never completes: it is ended when the queue pair is gone. */
	counter_add(&rdma_metrics.post_errors, 1);
	rdma_connection_fail(conn, strerror(rc));
}

void rdma_op_complete(struct rdma_op *op)
{
	struct rdma_connection *conn = op->conn;
	uint32_t slots = op->slots;
	conn->progress = now_ns();
	if (--op->pending == 0)
		list_remove(&op->node);
	op->done(op);
	rdma_slots_give(conn, slots);
}

/* ------------------------------------------------------------------------------------------------
 * Credits
 */

/*
 * Whoever has as many calls here as he may have is told of all, and so is whoever asks for much: behind a long link his
 * calls arrive one after the other, however many he could do with.
 */
uint32_t rdma_credits_tell(struct rdma_connection *conn)
{
	uint32_t most = conn->busiest;
	bool busy = ++conn->answered >= CREDITS_BUSY;

	if ((busy || conn->outstanding >= conn->told) && conn->told < conn->credits_max) {
		uint32_t more = conn->credits_max - conn->credits;
		if (more && (more = rdma_lane_grant(conn->lane, more))) {
			conn->credits += more;
			atomic_fetch_add(&rdma_metrics.credits, more);
		}
		conn->told = conn->credits;
		conn->window = conn->progress;
		conn->answered = 0;
	} else if (conn->progress - conn->window > CREDITS_WINDOW) {
		conn->window = conn->progress;
		conn->busiest = conn->outstanding;
		conn->answered = 0;
		if (most < RDMA_CREDITS_LEAST / 2)
			most = RDMA_CREDITS_LEAST / 2;
		if (!busy && most * 2 < conn->told)
			conn->told = most * 2;
	} else {
		return conn->told;
	}
	if (conn->told > conn->told_most)
		conn->told_most = conn->told;
	atomic_store_explicit(&conn->rpc.credits, conn->told, memory_order_relaxed);
	return conn->told;
}

/*
 * What the peer was not told to have for a whole look is not expected any more: others may have these receives. A peer
 * may have sent calls before it read of a smaller grant, so that number holds until then.
 */
static void credits_release(struct rdma_connection *conn)
{
	if (conn->credits > conn->told_most && conn->outstanding <= conn->told_most && list_empty(&conn->ops)) {
		rdma_lane_ungrant(conn->lane, conn->credits - conn->told_most);
		atomic_fetch_sub(&rdma_metrics.credits, conn->credits - conn->told_most);
		conn->credits = conn->told_most;
	}
	conn->told_most = conn->told;
}

/* ------------------------------------------------------------------------------------------------
 * Signs of life
 */

static void probe_done(struct rdma_op *op)
{
	(void)op; /* when it failed the connection is closing already */
}

void rdma_connection_look(struct rdma_connection *conn, uint64_t now)
{
	if (conn->failed || !conn->accepted)
		return;
	credits_release(conn);
	if (!list_empty(&conn->ops)) {
		if (now - conn->progress < rdma_times.stall)
			return;
		counter_add(&rdma_metrics.stalls, 1);
		log_warning("rdma", "peer takes no replies peer=%s", conn->text);
		rdma_connection_fail(conn, "its work makes no progress");
		return;
	}
	if (now - conn->progress < rdma_times.idle || !conn->sq_free)
		return;
	counter_add(&rdma_metrics.probes, 1);
	conn->sq_free--;
	conn->probe = (struct rdma_op){.slots = 1, .done = probe_done};
	conn->lane->wr[0] = (struct ibv_send_wr){.wr_id = (uintptr_t)&conn->probe | RDMA_WR_LAST,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED};
	rdma_post(conn, &conn->probe, conn->lane->wr, 1, 1);
}

/* ------------------------------------------------------------------------------------------------
 * Opening
 */

/*
 * The queue pair's next state, with what the connection manager found out about path and peer, and what the
 * configuration says instead. librdmacm is not told of the queue pair: it would go through the states by itself, and in
 * those after them none of this can be changed. Settings that the kernel has no use for (iWARP) are not in its mask.
 */
static int qp_step(struct rdma_connection *conn, enum ibv_qp_state state)
{
	const struct rpc_network *network = &conn->manager->server->config.network;
	struct ibv_qp_attr attr = {.qp_state = state};
	struct ibv_port_attr port;
	int mask;
	if (rdma_init_qp_attr(conn->id, &attr, &mask))
		return -errno;
	/* these kernels say that MAC addresses and VLANs are there, also where there is no Ethernet */
	if (!ibv_query_port(conn->id->verbs, conn->id->port_num, &port) && port.link_layer == IBV_LINK_LAYER_INFINIBAND)
		mask &= ~QP_ETHERNET_MASK;
	if (mask & IBV_QP_MIN_RNR_TIMER)
		attr.min_rnr_timer = RDMA_MIN_RNR_TIMER;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
		attr.max_dest_rd_atomic = (uint8_t)conn->peer_reads;
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
		attr.max_rd_atomic = (uint8_t)conn->read_depth;
	if ((mask & IBV_QP_AV) && attr.ah_attr.is_global && network->dscp_given)
		attr.ah_attr.grh.traffic_class =
			(uint8_t)(network->dscp << 2 | (attr.ah_attr.grh.traffic_class & 3)); /* ECN stays */
	if ((mask & IBV_QP_TIMEOUT) && network->rdma_timeout)
		attr.timeout = network->rdma_timeout;
	if ((mask & IBV_QP_RETRY_CNT) && network->rdma_retry_count)
		attr.retry_cnt = network->rdma_retry_count;
	return -ibv_modify_qp(conn->qp, &attr, mask);
}

/* On a helper thread. */
static void verbs_create(void *arg)
{
	struct rdma_connection *conn = arg;
	struct ibv_qp_init_attr attr = {
		.qp_context = conn,
		.send_cq = conn->lane->cq,
		.recv_cq = conn->lane->cq,
		.srq = conn->lane->srq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = conn->sq_depth, .max_send_sge = conn->device->sge_write},
	};
	conn->qp = ibv_create_qp(conn->device->pd, &attr);
}

struct accept {
	struct rdma_connection *conn;
	int rc;
};

static void verbs_accept(void *arg)
{
	struct accept *a = arg;
	struct rdma_connection *conn = a->conn;
	uint8_t data[RDMA_PRIVATE_BYTES];
	struct rdma_private mine = {.send_bytes = RDMA_INLINE_MAX,
		.receive_bytes = RDMA_INLINE_MAX,
		.invalidate = conn->device->send_invalidate};
	rdma_private_encode(data, &mine);
	struct rdma_conn_param param = {
		.private_data = data,
		.private_data_len = sizeof data,
		.responder_resources = (uint8_t)conn->peer_reads,
		.initiator_depth = (uint8_t)conn->read_depth,
		.flow_control = 1,
		.rnr_retry_count = 7,
		.srq = 1,
		.qp_num = conn->qp->qp_num,
	};
	static const enum ibv_qp_state states[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
	for (unsigned i = 0; i < sizeof states / sizeof *states && !a->rc; i++)
		a->rc = qp_step(conn, states[i]);
	if (!a->rc && rdma_accept(conn->id, &param))
		a->rc = -errno;
}

static void verbs_reject(void *arg)
{
	struct rdma_connection *conn = arg;
	rdma_reject(conn->id, NULL, 0);
}

/* 0, or why it is refused. */
static const char *open_steps(struct rdma_connection *conn)
{
	struct rpc_server *server = conn->manager->server;
	conn->read_depth = conn->peer_depth < conn->device->read_depth ? conn->peer_depth : conn->device->read_depth;
	conn->reads_free = conn->read_depth;
	if (!conn->read_depth)
		return "it serves no RDMA Reads";
	if (conn->peer_reads > conn->device->reads_in_max)
		conn->peer_reads = conn->device->reads_in_max;
	conn->sq_depth = RDMA_SQ_DEPTH < conn->device->sq_max ? RDMA_SQ_DEPTH : conn->device->sq_max;
	conn->sq_free = conn->sq_depth;
	conn->inline_send = conn->peer.receive_bytes < RDMA_INLINE_MAX ? conn->peer.receive_bytes : RDMA_INLINE_MAX;
	conn->invalidate = conn->peer.invalidate && conn->device->send_invalidate;
	conn->lane = rdma_lane_reserve(conn->device, conn->sq_depth);
	if (!conn->lane)
		return "no completion queue for it";
	conn->credits_max = server->config.rdma_credits;
	conn->credits = rdma_lane_grant(
		conn->lane, conn->credits_max < RDMA_CREDITS_LEAST ? conn->credits_max : RDMA_CREDITS_LEAST);
	conn->told = conn->told_most = conn->credits;
	atomic_fetch_add(&rdma_metrics.credits, conn->credits);
	if (!conn->credits)
		return "no receive buffers for it";
	offload(verbs_create, conn);
	if (!conn->qp)
		return "no queue pair";
	if (conn->failed)
		return "it went away";
	int rc = rpc_connection_begin(
		&conn->rpc, server, &rdma_rpc_transport, rdma_get_peer_addr(conn->id), rdma_get_local_addr(conn->id));
	if (rc)
		return rc == -EMFILE ? "too many connections" : rc == -ENOMEM ? "no memory for it" : "the server stops";
	conn->began = true;
	atomic_store(&conn->rpc.credits, conn->told);
	conn->number = conn->qp->qp_num;
	conn->window = conn->progress = now_ns();
	rdma_lane_list(conn->lane, conn, true);
	struct accept a = {.conn = conn};
	offload(verbs_accept, &a);
	if (a.rc)
		return strerror(-a.rc);
	conn->accepted = true;
	return NULL;
}

void rdma_connection_open(void *arg)
{
	struct rdma_connection *conn = arg;
	rpc_address_text(rdma_get_peer_addr(conn->id), conn->text, sizeof conn->text);
	atomic_fetch_add(&rdma_metrics.connections, 1);
	const char *refused = conn->device ? open_steps(conn) : "its device cannot be used";
	conn->opening = false;
	atomic_fetch_sub(&conn->manager->opening, 1);
	if (!refused && !conn->failed) {
		counter_add(&rdma_metrics.accepted, 1);
		log_info("rdma", "connected peer=%s device=%s credits=%u inline=%u read_depth=%u invalidate=%d",
			conn->text, conn->device->name, conn->credits_max, conn->inline_send, conn->read_depth,
			conn->invalidate);
		return;
	}
	if (refused) {
		counter_add(&rdma_metrics.refused, 1);
		log_info("rdma", "connection refused peer=%s reason=\"%s\"", conn->text, refused);
		if (!conn->accepted)
			offload(verbs_reject, conn);
	}
	if (!conn->failed) {
		conn->opening = true; /* this fiber closes it */
		rdma_connection_fail(conn, refused);
		conn->opening = false;
	}
	connection_close(conn);
}

/* ------------------------------------------------------------------------------------------------
 * Closing
 */

void rdma_connection_fail(struct rdma_connection *conn, const char *why)
{
	struct list_node *n;
	if (conn->failed)
		return;
	conn->failed = true;
	if (conn->began)
		rpc_connection_closing(&conn->rpc);
	else
		conn->rpc.closing = true;
	snprintf(conn->reason, sizeof conn->reason, "%s", why);
	if (conn->qp) {
		struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
		ibv_modify_qp(conn->qp, &attr, IBV_QP_STATE);
	}
	while ((n = list_first(&conn->slot_waiters)))
		waiter_end(container_of(n, struct rdma_waiter, node), false);
	while ((n = list_first(&conn->read_waiters)))
		waiter_end(container_of(n, struct rdma_waiter, node), false);
	rdma_sends_continue(conn); /* drops them */
	if (!conn->opening)
		reactor_spawn(conn->reactor, connection_close, conn);
}

void rdma_connection_check(struct rdma_connection *conn)
{
	if (conn->closer)
		fiber_wake(conn->closer);
}

static void message_fail(void *arg)
{
	struct rdma_connection *conn = arg;
	rdma_connection_fail(conn, "disconnected");
	atomic_fetch_sub(&conn->messages, 1);
	rdma_connection_check(conn);
}

static void message_drained(void *arg)
{
	struct rdma_connection *conn = arg;
	conn->last_receive_flushed = true;
	atomic_fetch_sub(&conn->messages, 1);
	rdma_connection_check(conn);
}

void rdma_connection_lost(struct rdma_connection *conn)
{
	atomic_fetch_add(&conn->messages, 1);
	reactor_post(conn->reactor, message_fail, conn);
}

void rdma_connection_drained(struct rdma_connection *conn)
{
	atomic_fetch_add(&conn->messages, 1);
	reactor_post(conn->reactor, message_drained, conn);
}

static void verbs_disconnect(void *arg)
{
	struct rdma_connection *conn = arg;
	rdma_disconnect(conn->id);
}

static void verbs_destroy(void *arg)
{
	struct rdma_connection *conn = arg;
	if (conn->qp)
		ibv_destroy_qp(conn->qp);
	rdma_destroy_id(conn->id); /* waits until the manager acknowledged all of its events */
}

static void connection_close(void *arg)
{
	struct rdma_connection *conn = arg;
	bool served = conn->accepted;
	conn->closer = fiber_self();
	if (conn->accepted)
		offload(verbs_disconnect, conn);

	uint64_t deadline = now_ns() + (conn->device && conn->device->gone ? NSEC_PER_SEC : RDMA_DRAIN_WAIT);
	while (conn->qp && conn->sq_free < conn->sq_depth && fiber_suspend_until(deadline) == 0)
		;
	/* The receives that it took from the shared queue: most adapters tell when the last one was flushed. */
	deadline = now_ns() + RDMA_FLUSH_WAIT;
	while (served && !conn->last_receive_flushed && fiber_suspend_until(deadline) == 0)
		;
	if (conn->lane)
		rdma_lane_drain(conn->lane);
	offload(verbs_destroy, conn);
	conn->qp = NULL;
	if (conn->lane)
		rdma_lane_drain(conn->lane);
	if (conn->began)
		rdma_lane_list(conn->lane, conn, false);
	struct list_node *n;
	while ((n = list_first(&conn->ops))) { /* nothing reaches our memory any more */
		struct rdma_op *op = container_of(n, struct rdma_op, node);
		op->error = -EIO;
		rdma_op_complete(op);
	}
	while (conn->calls || conn->rpc.calls || atomic_load(&conn->messages))
		fiber_suspend();
	if (conn->lane)
		rdma_lane_release(conn->lane, conn->sq_depth, conn->credits + conn->answers);
	atomic_fetch_sub(&rdma_metrics.credits, conn->credits);
	atomic_fetch_sub(&rdma_metrics.connections, 1);
	if (served) {
		counter_add(&rdma_metrics.closed, 1);
		log_info("rdma", "closed peer=%s reason=\"%s\"", conn->text, conn->reason);
	}
	rdma_manager_connection_gone(conn);
	if (conn->began) /* last: a server that stops goes on when the devices are closed */
		rpc_connection_end(&conn->rpc);
	free(conn);
}

static void transport_close(struct rpc_connection *rpc)
{
	rdma_connection_fail(rdma_connection_of(rpc), "closed here");
}

static void transport_call_ended(struct rpc_connection *rpc)
{
	rdma_connection_check(rdma_connection_of(rpc));
}

const struct rpc_transport rdma_rpc_transport = {
	.name = "rdma",
	.rdma = true,
	.reply = rdma_reply,
	.drop = rdma_drop,
	.payload_fetch = rdma_payload_fetch,
	.close = transport_close,
	.call_ended = transport_call_ended,
	.callback = rdma_callback,
	.chunk_room = rdma_chunk_room,
};
