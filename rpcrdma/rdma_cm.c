/*
 * The connection manager's side of the RDMA transport: listeners, and the events of every connection.
 *
 * A server has one manager, with one event channel that all of its listeners and connections share; it is made with
 * the first listener and goes with the last connection. Its fiber waits for the channel, takes events on a helper
 * thread (the first of a device opens it), and handles them without waiting: a request becomes a connection
 * with a fiber of its own, everything that ends one becomes a message to its reactor.
 *
 * Every event is acknowledged as soon as it was looked at. rdma_destroy_id() blocks until that is done for its id, and
 * is called on a helper thread only; the manager's fiber never waits for it. Until it returned, the connection that the
 * id's context names is there: that is what makes it safe to look at the context of an event.
 *
 * A listener on a wildcard address also serves devices that come later. One on an address of a device that
 * is pulled out tries every two seconds to listen there again. Where there is no device at all at the start,
 * librdmacm cannot even be opened: the caller gets -ENODEV and serves over TCP.
 */
#include "rpcrdma/rdma_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>

#define EVENT_BATCH 16
#define LISTEN_BACKLOG 256
#define LISTEN_AGAIN (2 * NSEC_PER_SEC)
#define OPENING_MAX 64u /* connections at once; others wait in the kernel's backlog, or their clients ask again */

struct rdma_listener {
	enum rdma_owner owner; /* first */
	struct rpc_listener rpc;
	struct rdma_manager *manager;
	struct sockaddr_storage address;
	char text[64];
	struct rdma_cm_id *id;
	bool stopping, again; /* a fiber tries to listen again */
	struct wait_queue wake;
};

/* One manager for each server of this process. */
static struct {
	pthread_mutex_t lock;
	struct list managers;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER, .managers = LIST_INIT(registry.managers)};

/* ------------------------------------------------------------------------------------------------
 * Events
 */

struct event_batch {
	struct rdma_event_channel *channel;
	struct rdma_cm_event *event[EVENT_BATCH];
	unsigned count;
};

static void events_take(void *arg)
{
	struct event_batch *b = arg;
	while (b->count < EVENT_BATCH && rdma_get_cm_event(b->channel, &b->event[b->count]) == 0)
		b->count++;
}

static void id_refuse(void *arg)
{
	struct rdma_cm_id *id = arg;
	rdma_reject(id, NULL, 0);
	rdma_destroy_id(id);
}

static void id_refuse_fiber(void *arg)
{
	offload(id_refuse, arg);
}

/* On the manager's reactor: finds the device, then hands the connection to the reactor that was picked. */
static void connection_start(void *arg)
{
	struct rdma_connection *conn = arg;
	conn->device = rdma_device_get(conn->manager, conn->id->verbs);
	reactor_spawn(conn->reactor, rdma_connection_open, conn);
}

static void handle_request(struct rdma_manager *m, const struct rdma_cm_event *e)
{
	const struct rdma_conn_param *p = &e->param.conn;
	struct rdma_connection *conn = m->closing || !m->listeners ? NULL : calloc(1, sizeof *conn);
	if (!conn) {
		counter_add(&rdma_metrics.refused, 1);
		reactor_spawn(m->reactor, id_refuse_fiber, e->id);
		return;
	}
	conn->owner = RDMA_OWNER_CONNECTION;
	conn->manager = m;
	conn->reactor = rpc_shard_pick(m->server, true)->reactor;
	conn->id = e->id;
	conn->opening = true;
	conn->peer_depth = p->initiator_depth;
	conn->peer_reads = p->responder_resources;
	rdma_private_decode(&conn->peer, p->private_data, p->private_data_len);
	list_init(&conn->sends);
	list_init(&conn->slot_waiters);
	list_init(&conn->read_waiters);
	list_init(&conn->ops);
	m->connections++;
	atomic_fetch_add(&m->opening, 1);
	e->id->context = conn;
	reactor_spawn(m->reactor, connection_start, conn);
}

static int listener_open(struct rdma_listener *l, struct error *err);

static void listener_id_destroy(void *arg)
{
	rdma_destroy_id(arg);
}

/* The device under a listener went: take the id away, and listen again when the address is back. */
static void listener_again(void *arg)
{
	struct rdma_listener *l = arg;
	offload(listener_id_destroy, l->id);
	l->id = NULL;
	while (!l->stopping) {
		struct error err;
		if (listener_open(l, &err) == 0) {
			log_info("rdma", "listening again address=%s", l->text);
			break;
		}
		wait_queue_wait(&l->wake, now_ns() + LISTEN_AGAIN);
	}
	l->again = false;
	wait_queue_wake_all(&l->wake);
}

static void device_gone(struct rdma_manager *m, struct ibv_context *verbs)
{
	list_foreach (n, &m->devices) {
		struct rdma_device *d = container_of(n, struct rdma_device, node);
		if (d->verbs == verbs && !d->gone) {
			d->gone = true;
			log_warning("rdma", "device removed device=%s", d->name);
		}
	}
}

static void handle_event(struct rdma_manager *m, const struct rdma_cm_event *e)
{
	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		handle_request(m, e);
		return;
	}
	if (e->event == RDMA_CM_EVENT_DEVICE_REMOVAL)
		device_gone(m, e->id->verbs);
	const enum rdma_owner *owner = e->id->context;
	if (*owner == RDMA_OWNER_LISTENER) {
		struct rdma_listener *l = e->id->context;
		if (e->event == RDMA_CM_EVENT_DEVICE_REMOVAL && l->id == e->id && !l->again && !l->stopping) {
			l->again = true;
			reactor_spawn(m->reactor, listener_again, l);
		}
		return;
	}
	struct rdma_connection *conn = e->id->context;
	switch (e->event) {
	case RDMA_CM_EVENT_ESTABLISHED:
	case RDMA_CM_EVENT_ADDR_CHANGE:
		break;
	default: /* disconnected, refused, unreachable, removed, its time-wait is over */
		rdma_connection_lost(conn);
	}
}

static void channel_watch(struct rdma_manager *m)
{
	struct io_uring_sqe *sqe = io_start(&m->watch);
	io_uring_prep_poll_add(sqe, m->channel->fd, POLLIN);
	io_link(sqe, &m->watch);
	io_wait(&m->watch);
}

static void channel_destroy(void *arg)
{
	rdma_destroy_event_channel(arg);
}

/* A device that was removed, and that no connection uses, closes here too. False: there is none (any more). */
static bool devices_sweep(struct rdma_manager *m)
{
	list_foreach (n, &m->devices) {
		struct rdma_device *d = container_of(n, struct rdma_device, node);
		if (d->gone && !d->users && !d->closing) {
			rdma_device_close(d);
			return true;
		}
	}
	return false;
}

void rdma_manager_device_failed(struct rdma_manager *m)
{
	io_cancel(&m->watch); /* it looks around and waits anew */
}

static void manager_main(void *arg)
{
	struct rdma_manager *m = arg;
	m->fiber = fiber_self();
	while (!m->closing) {
		if (atomic_load(&m->opening) >= OPENING_MAX) {
			fiber_sleep(NSEC_PER_MSEC);
			continue;
		}
		struct event_batch b = {.channel = m->channel};
		offload(events_take, &b);
		for (unsigned i = 0; i < b.count; i++) {
			handle_event(m, b.event[i]);
			rdma_ack_cm_event(b.event[i]);
		}
		bool swept = devices_sweep(m);
		if (!b.count && !swept && !m->closing)
			channel_watch(m);
	}
	struct list_node *n;
	while ((n = list_first(&m->devices)))
		rdma_device_close(container_of(n, struct rdma_device, node));
	offload(channel_destroy, m->channel);
	m->ended = true;
	wait_queue_wake_all(&m->end);
}

/* ------------------------------------------------------------------------------------------------
 * The manager's life: on its reactor
 */

/* With the last listener and the last connection the manager goes, and its devices: whoever was the last waits for
 * that. */
static void manager_check(struct rdma_manager *m)
{
	if (m->listeners || m->connections || m->closing)
		return;
	pthread_mutex_lock(&registry.lock);
	list_remove(&m->node);
	pthread_mutex_unlock(&registry.lock);
	m->closing = true;
	io_cancel(&m->watch);
	while (!m->ended)
		wait_queue_wait(&m->end, NEVER);
	free(m);
}

static void connection_gone(void *arg)
{
	struct rdma_connection *conn = arg;
	struct rdma_manager *m = conn->manager;
	if (conn->device)
		rdma_device_put(conn->device);
	m->connections--;
	manager_check(m);
}

void rdma_manager_connection_gone(struct rdma_connection *conn)
{
	reactor_call(conn->manager->reactor, connection_gone, conn);
}

static void channel_create(void *arg)
{
	struct rdma_manager *m = arg;
	m->channel = rdma_create_event_channel();
	if (!m->channel)
		return;
	int flags = fcntl(m->channel->fd, F_GETFL);
	fcntl(m->channel->fd, F_SETFL, flags | O_NONBLOCK);
}

static int manager_get(struct rpc_server *server, struct rdma_manager **manager, struct error *err)
{
	struct rdma_manager *m = NULL;
	pthread_mutex_lock(&registry.lock);
	list_foreach (n, &registry.managers) {
		struct rdma_manager *found = container_of(n, struct rdma_manager, node);
		if (found->server == server)
			m = found;
	}
	pthread_mutex_unlock(&registry.lock);
	if (!m) {
		m = calloc(1, sizeof *m);
		if (!m)
			return error_set(err, -ENOMEM, "no memory for the RDMA connection manager");
		m->server = server;
		m->reactor = reactor_self();
		list_init(&m->devices);
		fiber_mutex_init(&m->device_lock);
		wait_queue_init(&m->end);
		offload(channel_create, m);
		if (!m->channel) {
			free(m);
			return error_set(err, -ENODEV,
				"there is no RDMA here: no device is set up (a network adapter's, or rdma_rxe over an "
				"Ethernet port), or the "
				"modules rdma_ucm and ib_uverbs are missing");
		}
		rdma_metrics_register();
		pthread_mutex_lock(&registry.lock);
		list_push_back(&registry.managers, &m->node);
		pthread_mutex_unlock(&registry.lock);
		reactor_spawn(m->reactor, manager_main, m);
	}
	*manager = m;
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Listeners
 */

struct listen {
	struct rdma_listener *listener;
	struct rdma_cm_id *id;
	const char *step;
	int rc;
};

/* On a helper thread. */
static void verbs_listen(void *arg)
{
	struct listen *w = arg;
	struct rdma_listener *l = w->listener;
	int only = 1;
	w->step = "make an id";
	if (rdma_create_id(l->manager->channel, &w->id, l, RDMA_PS_TCP))
		goto failed;
	w->step = "keep IPv4 and IPv6 apart";
	if (l->address.ss_family == AF_INET6 &&
		rdma_set_option(w->id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof only))
		goto failed;
	w->step = "bind";
	if (rdma_bind_addr(w->id, (struct sockaddr *)&l->address))
		goto failed;
	w->step = "listen";
	if (rdma_listen(w->id, LISTEN_BACKLOG))
		goto failed;
	return;
failed:
	w->rc = errno ? -errno : -EIO;
	if (w->id)
		rdma_destroy_id(w->id);
}

static int listener_open(struct rdma_listener *l, struct error *err)
{
	struct listen w = {.listener = l};
	offload(verbs_listen, &w);
	if (w.rc == -ENODEV || w.rc == -EADDRNOTAVAIL)
		return error_set(err, -ENODEV, "no RDMA device has the address %s", l->text);
	if (w.rc)
		return error_set(err, w.rc, "cannot %s for RDMA on %s: %s", w.step, l->text, strerror(-w.rc));
	l->id = w.id;
	return 0;
}

static void listener_close(void *arg)
{
	struct rdma_listener *l = arg;
	struct rdma_manager *m = l->manager;
	l->stopping = true;
	wait_queue_wake_all(&l->wake);
	while (l->again)
		wait_queue_wait(&l->wake, NEVER);
	if (l->id)
		offload(listener_id_destroy, l->id);
	free(l);
	m->listeners--;
	/* the server may go when it sees no connections: those on their way must be seen */
	while (!m->listeners && atomic_load(&m->opening))
		fiber_sleep(NSEC_PER_MSEC);
	manager_check(m);
}

static void listener_stop(struct rpc_listener *rpc)
{
	struct rdma_listener *l = container_of(rpc, struct rdma_listener, rpc);
	reactor_call(l->manager->reactor, listener_close, l);
}

struct listen_call {
	struct rdma_listener *listener;
	struct error *err;
	int rc;
};

static void listen_start(void *arg)
{
	struct listen_call *c = arg;
	struct rdma_manager *m = c->listener->manager;
	m->listeners++;
	c->rc = listener_open(c->listener, c->err);
	if (c->rc) {
		m->listeners--;
		manager_check(m);
	}
}

int rpc_listen_rdma(struct rpc_server *server, const char *address, uint16_t port, struct error *err)
{
	struct rdma_listener *l = calloc(1, sizeof *l);
	if (!l)
		return error_set(err, -ENOMEM, "no memory for a listener");
	socklen_t bytes;
	l->owner = RDMA_OWNER_LISTENER;
	l->rpc.stop = listener_stop;
	wait_queue_init(&l->wake);
	int rc = rpc_address_parse(address, port, &l->address, &bytes, err);
	if (!rc) {
		rpc_address_text((struct sockaddr *)&l->address, l->text, sizeof l->text);
		rc = manager_get(server, &l->manager, err);
	}
	if (!rc) {
		struct listen_call c = {.listener = l, .err = err};
		reactor_call(l->manager->reactor, listen_start, &c);
		rc = c.rc;
	}
	if (rc) {
		free(l);
		return rc;
	}
	rpc_listener_add(server, &l->rpc);
	log_info("rdma", "listening address=%s port=%u", l->text, port);
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Metrics
 */

static double gauge_read_i64(void *arg)
{
	return (double)atomic_load((_Atomic int64_t *)arg);
}

void rdma_metrics_register(void)
{
	static _Atomic bool done;
	static const struct {
		struct counter *counter;
		const char *name, *help;
	} counters[] = {
		{&rdma_metrics.accepted, "furrow_rdma_accepted_total", "Connections over RDMA that were accepted"},
		{&rdma_metrics.refused, "furrow_rdma_refused_total", "Connection requests over RDMA that were refused"},
		{&rdma_metrics.closed, "furrow_rdma_closed_total", "Connections over RDMA that ended"},
		{&rdma_metrics.credit_violations, "furrow_rdma_credit_violations_total",
			"Connections closed since the peer exceeded its credits"},
		{&rdma_metrics.header_errors, "furrow_rdma_header_errors_total", "Transport headers that were refused"},
		{&rdma_metrics.posts, "furrow_rdma_posts_total", "Calls that posted work requests, one or a chain"},
		{&rdma_metrics.reads, "furrow_rdma_reads_total", "RDMA Reads posted"},
		{&rdma_metrics.read_bytes, "furrow_rdma_read_bytes_total", "Bytes fetched by RDMA Read"},
		{&rdma_metrics.read_deadlines, "furrow_rdma_read_deadlines_total",
			"Connections closed since an RDMA Read took too long"},
		{&rdma_metrics.writes, "furrow_rdma_writes_total", "RDMA Writes posted"},
		{&rdma_metrics.write_bytes, "furrow_rdma_write_bytes_total", "Bytes delivered by RDMA Write"},
		{&rdma_metrics.sends, "furrow_rdma_sends_total", "Replies sent"},
		{&rdma_metrics.sends_queued, "furrow_rdma_sends_queued_total",
			"Replies that waited for room in the send queue"},
		{&rdma_metrics.callbacks, "furrow_rdma_callbacks_total", "Calls in reverse, to clients"},
		{&rdma_metrics.invalidations, "furrow_rdma_invalidations_total",
			"Sends that invalidated a handle of the peer"},
		{&rdma_metrics.rnr_errors, "furrow_rdma_rnr_errors_total",
			"Work requests given up since the peer had no receive posted"},
		{&rdma_metrics.completion_errors, "furrow_rdma_completion_errors_total",
			"Work requests that failed, without those flushed"},
		{&rdma_metrics.post_errors, "furrow_rdma_post_errors_total", "Work requests that could not be posted"},
		{&rdma_metrics.stalls, "furrow_rdma_stalls_total", "Connections closed since the peer took no replies"},
		{&rdma_metrics.probes, "furrow_rdma_probes_total", "Signs of life asked of idle peers"},
	};
	static struct gauge gauges[] = {
		{.name = "furrow_rdma_connections", .help = "Connections over RDMA", .arg = &rdma_metrics.connections},
		{.name = "furrow_rdma_credits",
			.help = "Credits granted to all connections",
			.arg = &rdma_metrics.credits},
		{.name = "furrow_rdma_receives",
			.help = "Receives that were posted to back credits",
			.arg = &rdma_metrics.receives},
		{.name = "furrow_rdma_calls_in_flight_most",
			.help = "Most calls of one connection that were there at once",
			.arg = &rdma_metrics.in_flight_most},
	};
	if (atomic_exchange(&done, true))
		return;
	for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
		counter_register(counters[i].counter, counters[i].name, NULL, counters[i].help);
	for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++) {
		gauges[i].read = gauge_read_i64;
		gauge_register(&gauges[i]);
	}
}
