/*
 * RDMA devices and lanes: what connections stand on.
 *
 * A device is made when its first connection request comes: one protection domain and one memory region over
 * the whole arena, with local write only. No remote key of ours is ever given out: a peer cannot reach our memory,
 * we reach into the memory that it offers.
 *
 * A lane is a completion queue with its channel and a shared receive queue, on one reactor. It takes as many
 * connections as its completion queue has room for, at the full depth of every queue pair, so that it can never
 * overflow; then the reactor gets another lane. Lanes are polled by the reactor, and armed before it sleeps.
 *
 * Receives. Each posted receive is one arena buffer of 4 KiB. The credits of all connections of a lane together never
 * exceed the receives that it owns (posted, or held by a running call that one credit stands for). Receives are added
 * when credits are granted and there are too few; those that are given back serve the next, and what is far too many is
 * not posted again. What calls give back is posted in batches, so a few more are there than credits; they also show a
 * peer that exceeds its own, before it takes what was promised to another.
 *
 * Completions run outside of fibers. A work request's wr_id names a receive or an operation; the
 * low bits tell which, and whether it is the last work request of the operation, the only one that is signalled.
 * When a queue pair fails, all of them complete with an error: the operation ends with its last one, in
 * any case, so no memory is given back before the adapter let go of it.
 *
 * Error policy: what the device refuses to make costs the connection that wanted it (rejected) and a log line. When
 * the device itself goes, its connections are closed, and the device and its lanes go with the last of them.
 */
#include "rpcrdma/rdma_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define LANE_CQ_ENTRIES 16384u
#define POLL_BATCH 32
#define POLL_MOST 512 /* in one round of the loop: what every peer has sent, so that all take turns */
/* Receives beyond the credits, so that a peer which exceeds its own is seen at once and takes nobody else's. */
#define RECEIVES_BEYOND (8u + RDMA_RECEIVE_BATCH - 1)
#define RECEIVES_KEPT 64u /* beyond these, for the next who asks */
/* Of the arena, for receives; the rest is for payload. */
#define RECEIVE_SHARE 4u

static _Atomic uint64_t receive_bytes; /* on all lanes */

/* ------------------------------------------------------------------------------------------------
 * Receives
 */

static int receive_post(struct rdma_receive *r)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)r->buf->data, .length = RDMA_INLINE_MAX, .lkey = r->lane->device->lkey};
	struct ibv_recv_wr wr = {.wr_id = (uintptr_t)r | RDMA_WR_RECEIVE, .sg_list = &sge, .num_sge = 1}, *bad;
	return -ibv_post_srq_recv(r->lane->srq, &wr, &bad);
}

static void receive_free(struct rdma_receive *r)
{
	r->lane->receives--;
	atomic_fetch_sub(&rdma_metrics.receives, 1);
	list_remove(&r->node);
	atomic_fetch_sub(&receive_bytes, RDMA_INLINE_MAX);
	buf_put(r->buf);
	free(r);
}

/* Those that were released, in one go. */
static void receives_post(struct rdma_lane *lane)
{
	struct ibv_recv_wr wr[RDMA_RECEIVE_BATCH], *bad = NULL;
	struct ibv_sge sge[RDMA_RECEIVE_BATCH];
	uint32_t n = lane->released_count, done = n;
	for (uint32_t i = 0; i < n; i++) {
		struct rdma_receive *r = lane->released[i];
		sge[i] = (struct ibv_sge){
			.addr = (uintptr_t)r->buf->data, .length = RDMA_INLINE_MAX, .lkey = lane->device->lkey};
		wr[i] = (struct ibv_recv_wr){.wr_id = (uintptr_t)r | RDMA_WR_RECEIVE,
			.next = i + 1 < n ? &wr[i + 1] : NULL,
			.sg_list = &sge[i],
			.num_sge = 1};
	}
	lane->released_count = 0;
	if (ibv_post_srq_recv(lane->srq, wr, &bad))
		done = bad ? (uint32_t)(bad - wr) : 0;
	/* The queue is as long as all receives together, so this is a broken device: count what it lost. */
	for (uint32_t i = done; i < n; i++) {
		counter_add(&rdma_metrics.post_errors, 1);
		receive_free(lane->released[i]);
	}
}

void rdma_receive_release(struct rdma_receive *r)
{
	struct rdma_lane *lane = r->lane;
	if (lane->surplus) {
		lane->surplus--;
		receive_free(r);
		return;
	}
	lane->released[lane->released_count++] = r;
	if (lane->released_count == RDMA_RECEIVE_BATCH)
		receives_post(lane);
}

/* Posts up to COUNT more; returns how many. No wait. */
static uint32_t receives_add(struct rdma_lane *lane, uint32_t count)
{
	uint32_t added = 0;
	uint64_t limit = arena_total_bytes() / RECEIVE_SHARE;
	for (; added < count && lane->receives < lane->receives_max; added++) {
		if (atomic_fetch_add(&receive_bytes, RDMA_INLINE_MAX) + RDMA_INLINE_MAX > limit)
			goto full;
		struct rdma_receive *r = calloc(1, sizeof *r);
		struct buf *buf = r ? buf_try_alloc(RDMA_INLINE_MAX) : NULL;
		if (!buf) {
			free(r);
			goto full;
		}
		r->lane = lane;
		r->buf = buf;
		if (receive_post(r)) {
			buf_put(buf);
			free(r);
			goto full;
		}
		list_push_back(&lane->all_receives, &r->node);
		lane->receives++;
		atomic_fetch_add(&rdma_metrics.receives, 1);
	}
	return added;
full:
	atomic_fetch_sub(&receive_bytes, RDMA_INLINE_MAX);
	return added;
}

uint32_t rdma_lane_grant(struct rdma_lane *lane, uint32_t wanted)
{
	lane->surplus = 0;
	uint32_t spare = lane->receives - lane->granted;
	/* When they run short everybody gets less, and nobody is turned away for long. */
	uint64_t limit = arena_total_bytes() / RECEIVE_SHARE, used = atomic_load(&receive_bytes);
	uint64_t left = spare + (used < limit ? (limit - used) / RDMA_INLINE_MAX : 0);
	if (wanted > RDMA_CREDITS_LEAST && wanted > left / 4)
		wanted = left / 4 > RDMA_CREDITS_LEAST ? (uint32_t)(left / 4) : RDMA_CREDITS_LEAST;
	if (spare < wanted + RECEIVES_BEYOND)
		spare += receives_add(lane, wanted + RECEIVES_BEYOND - spare);
	if (spare > wanted)
		spare = wanted;
	lane->granted += spare;
	return spare;
}

void rdma_lane_ungrant(struct rdma_lane *lane, uint32_t credits)
{
	lane->granted -= credits;
	uint32_t wanted = lane->granted + RECEIVES_BEYOND + RECEIVES_KEPT;
	lane->surplus = lane->receives > wanted ? lane->receives - wanted : 0;
}

/* ------------------------------------------------------------------------------------------------
 * Completions
 */

static void complete(const struct ibv_wc *wc)
{
	void *p = (void *)(uintptr_t)(wc->wr_id & ~(uint64_t)RDMA_WR_MASK);
	if ((wc->wr_id & RDMA_WR_MASK) == RDMA_WR_RECEIVE) {
		rdma_receive_complete(p, wc);
		return;
	}
	struct rdma_op *op = p;
	struct rdma_connection *conn = op->conn;
	if (wc->status != IBV_WC_SUCCESS) {
		if (wc->status == IBV_WC_RNR_RETRY_EXC_ERR)
			counter_add(&rdma_metrics.rnr_errors, 1);
		if (wc->status != IBV_WC_WR_FLUSH_ERR) {
			counter_add(&rdma_metrics.completion_errors, 1);
			log_debug("rdma", "work request failed peer=%s status=\"%s\" vendor=%#x", conn->text,
				ibv_wc_status_str(wc->status), wc->vendor_err);
		}
		op->error = -EIO;
		rdma_connection_fail(conn, ibv_wc_status_str(wc->status));
	}
	if ((wc->wr_id & RDMA_WR_MASK) == RDMA_WR_LAST)
		rdma_op_complete(op);
}

static int lane_poll(struct poller *poller)
{
	struct rdma_lane *lane = container_of(poller, struct rdma_lane, poller);
	struct ibv_wc wc[POLL_BATCH];
	int n, all = 0;
	lane->round++;
	do {
		n = ibv_poll_cq(lane->cq, POLL_BATCH, wc);
		if (n < 0) {
			log_error("rdma", "completion queue failed device=%s", lane->device->name);
			return 0;
		}
		for (int i = 0; i < n; i++)
			complete(&wc[i]);
		all += n;
	} while (n == POLL_BATCH && all < POLL_MOST);
	return all;
}

void rdma_lane_drain(struct rdma_lane *lane)
{
	while (lane_poll(&lane->poller) > 0)
		;
}

static bool lane_arm(struct poller *poller)
{
	struct rdma_lane *lane = container_of(poller, struct rdma_lane, poller);
	if (!lane->armed) {
		if (ibv_req_notify_cq(lane->cq, 0)) {
			log_error("rdma", "completion queue cannot be armed device=%s", lane->device->name);
			return false;
		}
		lane->armed = true;
	}
	return lane_poll(poller) > 0;
}

static void watch_start(struct io *io, int fd)
{
	struct io_uring_sqe *sqe = io_start(io);
	io_uring_prep_poll_add(sqe, fd, POLLIN);
	io_link(sqe, io);
}

/* A device that was removed has nothing to tell any more: its descriptors have an error, and watching would not wait.
 */
static bool watch_ends(const struct io *io, bool closing)
{
	return closing || io->res < 0 || (io->res & (POLLERR | POLLHUP));
}

/* The channel's descriptor became readable: that is what ended the sleep. The poller looks at the queue itself. */
static void lane_event(struct io *io)
{
	struct rdma_lane *lane = container_of(io, struct rdma_lane, watch);
	struct ibv_cq *cq;
	void *context;
	if (watch_ends(io, lane->closing)) {
		lane->watching = false;
		if (lane->closer)
			fiber_wake(lane->closer);
		return;
	}
	while (ibv_get_cq_event(lane->channel, &cq, &context) == 0) {
		ibv_ack_cq_events(cq, 1);
		lane->armed = false;
	}
	watch_start(io, lane->channel->fd);
}

/* ------------------------------------------------------------------------------------------------
 * Lanes
 */

static int set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);
	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

/* On a helper thread: making queues can take milliseconds on a real adapter. */
static void lane_verbs_open(void *arg)
{
	struct rdma_lane *lane = arg;
	struct rdma_device *device = lane->device;
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = lane->receives_max, .max_sge = 1}};
	lane->error = -ENOMEM;
	lane->channel = ibv_create_comp_channel(device->verbs);
	if (!lane->channel || set_nonblocking(lane->channel->fd))
		return;
	int vectors = device->verbs->num_comp_vectors; /* interrupts, spread over the reactors */
	lane->cq = ibv_create_cq(device->verbs, (int)lane->cq_entries, NULL, lane->channel,
		vectors > 0 ? (int)lane->reactor % vectors : 0);
	lane->srq = lane->cq ? ibv_create_srq(device->pd, &srq) : NULL;
	lane->error = lane->srq ? 0 : -errno;
}

static void lane_verbs_close(void *arg)
{
	struct rdma_lane *lane = arg;
	if (lane->srq)
		ibv_destroy_srq(lane->srq);
	if (lane->cq)
		ibv_destroy_cq(lane->cq);
	if (lane->channel)
		ibv_destroy_comp_channel(lane->channel);
}

static void lane_free(struct rdma_lane *lane)
{
	offload(lane_verbs_close, lane);
	atomic_fetch_sub(&rdma_metrics.receives, lane->receives);
	list_foreach (n, &lane->all_receives) {
		struct rdma_receive *r = container_of(n, struct rdma_receive, node);
		atomic_fetch_sub(&receive_bytes, RDMA_INLINE_MAX);
		buf_put(r->buf);
		free(r);
	}
	list_foreach (n, &lane->free_calls)
		rdma_call_destroy(container_of(n, struct rdma_call, node));
	htable_fini(&lane->connections);
	free(lane->sge);
	free(lane->wr);
	free(lane);
}

/* The one thing here that wakes an idle server: four times a minute, while a connection is there. */
static void lane_look(struct timer *timer)
{
	struct rdma_lane *lane = container_of(timer, struct rdma_lane, look);
	struct htable_cursor cursor = {0};
	struct htable_node *n;
	uint64_t now = now_ns();
	while ((n = htable_next(&lane->connections, &cursor)))
		rdma_connection_look(container_of(n, struct rdma_connection, by_number), now);
	timer_start(timer, now + rdma_times.look);
}

static struct rdma_lane *lane_create(struct rdma_device *device)
{
	struct rdma_lane *lane = calloc(1, sizeof *lane);
	if (!lane)
		return NULL;
	list_init(&lane->all_receives);
	list_init(&lane->free_calls);
	lane->device = device;
	lane->reactor = reactor_index(reactor_self());
	lane->cq_entries = device->cq_max < LANE_CQ_ENTRIES ? device->cq_max : LANE_CQ_ENTRIES;
	lane->receives_max = lane->cq_entries / 4 < device->srq_max ? lane->cq_entries / 4 : device->srq_max;
	lane->cq_free = lane->cq_entries - lane->receives_max;
	lane->wr = calloc(RDMA_WRS_MAX, sizeof *lane->wr);
	lane->sge = calloc((size_t)RDMA_WRS_MAX * RDMA_SGES_MAX, sizeof *lane->sge);
	if (htable_init(&lane->connections, 64) || !lane->wr || !lane->sge) {
		lane_free(lane);
		return NULL;
	}
	offload(lane_verbs_open, lane);
	if (lane->error) {
		log_warning("rdma", "no queues device=%s error=\"%s\"", device->name, strerror(-lane->error));
		lane_free(lane);
		return NULL;
	}
	lane->poller = (struct poller){.poll = lane_poll, .arm = lane_arm};
	poller_add(&lane->poller);
	timer_init(&lane->look, lane_look);
	lane->watch.done = lane_event;
	lane->watching = true;
	watch_start(&lane->watch, lane->channel->fd);
	return lane;
}

struct rdma_lane *rdma_lane_reserve(struct rdma_device *device, uint32_t cq_entries)
{
	struct rdma_reactor *here = &device->reactor[reactor_index(reactor_self())];
	struct rdma_lane *lane = NULL;
	fiber_lock(&here->lock);
	list_foreach (n, &here->lanes) {
		struct rdma_lane *l = container_of(n, struct rdma_lane, node);
		if (l->cq_free >= cq_entries && l->granted < l->receives_max) {
			lane = l;
			break;
		}
	}
	if (!lane) {
		lane = lane_create(device);
		if (lane)
			list_push_back(&here->lanes, &lane->node);
	}
	if (lane && lane->cq_free < cq_entries)
		lane = NULL;
	if (lane) {
		lane->cq_free -= cq_entries;
	}
	fiber_unlock(&here->lock);
	return lane;
}

void rdma_lane_release(struct rdma_lane *lane, uint32_t cq_entries, uint32_t credits)
{
	lane->cq_free += cq_entries;
	rdma_lane_ungrant(lane, credits);
}

void rdma_lane_list(struct rdma_lane *lane, struct rdma_connection *conn, bool listed)
{
	if (listed)
		htable_insert(&lane->connections, &conn->by_number, hash_u64(conn->number));
	else
		htable_remove(&lane->connections, &conn->by_number);
	if (!lane->connections.count)
		timer_stop(&lane->look);
	else if (!lane->look.slot)
		timer_start(&lane->look, now_ns() + rdma_times.look);
}

static void lanes_close(void *arg)
{
	struct rdma_device *device = arg;
	struct rdma_reactor *here = &device->reactor[reactor_index(reactor_self())];
	struct list_node *n;
	while ((n = list_pop_front(&here->lanes))) {
		struct rdma_lane *lane = container_of(n, struct rdma_lane, node);
		poller_remove(&lane->poller);
		lane->closing = true;
		lane->closer = fiber_self();
		io_cancel(&lane->watch);
		while (lane->watching)
			fiber_suspend();
		lane_free(lane);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Devices: on the reactor of the connection manager
 */

static uint32_t least(uint32_t a, int b)
{
	return b > 0 && (uint32_t)b < a ? (uint32_t)b : a;
}

static void device_verbs_open(void *arg)
{
	struct rdma_device *device = arg;
	struct ibv_device_attr attr;
	void *base;
	uint64_t bytes;
	arena_region(&base, &bytes);
	int rc = ibv_query_device(device->verbs, &attr);
	if (rc) {
		device->error = -rc;
		return;
	}
	snprintf(device->name, sizeof device->name, "%s", ibv_get_device_name(device->verbs->device));
	device->sge_write = least(RDMA_SGES_MAX, attr.max_sge);
	device->sge_read = least(device->sge_write, attr.max_sge_rd);
	device->read_depth = least(RDMA_READ_DEPTH_MAX, attr.max_qp_init_rd_atom);
	device->reads_in_max = least(255, attr.max_qp_rd_atom);
	device->sq_max = least(UINT32_MAX, attr.max_qp_wr);
	device->cq_max = least(UINT32_MAX, attr.max_cqe);
	device->srq_max = least(UINT32_MAX, attr.max_srq_wr);
	device->send_invalidate = attr.device_cap_flags & IBV_DEVICE_MEM_MGT_EXTENSIONS;
	if (!attr.max_srq) {
		device->error = -EOPNOTSUPP;
		return;
	}
	device->pd = ibv_alloc_pd(device->verbs);
	device->mr = device->pd ? ibv_reg_mr(device->pd, base, bytes, IBV_ACCESS_LOCAL_WRITE) : NULL;
	if (!device->mr) {
		device->error = errno ? -errno : -ENOMEM;
		return;
	}
	device->lkey = device->mr->lkey;
	device->error = set_nonblocking(device->verbs->async_fd);
}

static void device_verbs_close(void *arg)
{
	struct rdma_device *device = arg;
	if (device->mr)
		ibv_dereg_mr(device->mr);
	if (device->pd)
		ibv_dealloc_pd(device->pd);
}

/*
 * Asynchronous events: that a queue pair's last receive was flushed matters, since its receives can be lost when it is
 * destroyed before. Failures of a queue show in its completions. That of a device the connection manager tells to those
 * who have connections on it; one without any closes here.
 */
static void device_async(struct io *io)
{
	struct rdma_device *device = container_of(io, struct rdma_device, watch);
	struct ibv_async_event e;
	while (!device->closing && io->res > 0 && ibv_get_async_event(device->verbs, &e) == 0) {
		if (e.event_type == IBV_EVENT_QP_LAST_WQE_REACHED)
			rdma_connection_drained(e.element.qp->qp_context);
		else
			log_info("rdma", "device event device=%s event=\"%s\"", device->name,
				ibv_event_type_str(e.event_type));
		if (e.event_type == IBV_EVENT_DEVICE_FATAL) {
			device->gone = true;
			rdma_manager_device_failed(device->manager);
		}
		ibv_ack_async_event(&e);
	}
	if (!watch_ends(io, device->closing)) {
		watch_start(io, device->verbs->async_fd);
		return;
	}
	device->watching = false;
	if (device->closer)
		fiber_wake(device->closer);
}

struct rdma_device *rdma_device_get(struct rdma_manager *manager, struct ibv_context *verbs)
{
	struct rdma_device *device = NULL;
	fiber_lock(&manager->device_lock);
	list_foreach (n, &manager->devices) {
		struct rdma_device *d = container_of(n, struct rdma_device, node);
		if (d->verbs == verbs && !d->gone)
			device = d;
	}
	if (!device && (device = calloc(1, sizeof *device + reactor_count() * sizeof device->reactor[0]))) {
		device->manager = manager;
		device->verbs = verbs;
		device->zeros = buf_ref(buf_zero());
		for (unsigned i = 0; i < reactor_count(); i++) {
			list_init(&device->reactor[i].lanes);
			fiber_mutex_init(&device->reactor[i].lock);
		}
		offload(device_verbs_open, device);
		if (device->error) {
			log_warning("rdma", "device cannot be used device=%s error=\"%s\"",
				ibv_get_device_name(verbs->device), strerror(-device->error));
			offload(device_verbs_close, device);
			buf_put(device->zeros);
			free(device);
			device = NULL;
		} else {
			list_push_back(&manager->devices, &device->node);
			device->watch.done = device_async;
			device->watching = true;
			watch_start(&device->watch, verbs->async_fd);
			log_info("rdma", "device opened device=%s read_depth=%u sges=%u", device->name,
				device->read_depth, device->sge_write);
		}
	}
	if (device)
		device->users++;
	fiber_unlock(&manager->device_lock);
	return device;
}

void rdma_device_put(struct rdma_device *device)
{
	if (--device->users == 0 && device->gone)
		rdma_device_close(device);
}

void rdma_device_close(struct rdma_device *device)
{
	list_remove(&device->node);
	for (unsigned i = 0; i < reactor_count(); i++)
		reactor_call(reactor_get(i), lanes_close, device);
	device->closing = true;
	device->closer = fiber_self();
	io_cancel(&device->watch);
	while (device->watching)
		fiber_suspend();
	offload(device_verbs_close, device);
	log_info("rdma", "device closed device=%s", device->name);
	buf_put(device->zeros);
	free(device);
}
