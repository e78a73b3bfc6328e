/*
 * The RPC server as a whole: start and stop, its shards (one per reactor), the list of connections, addresses.
 *
 * Who touches what: a shard belongs to its reactor; only its list of connections is read by others, under the
 * shard's lock, which is held for the moments of adding, removing and listing. The list of listeners is under the
 * server's lock. Counters are core's.
 *
 * Stop, in order: listeners go; new calls are dropped and waiting ones with them; running ones have five
 * seconds; connections are closed and their last sends awaited. A procedure that does not end keeps the memory of
 * the server (one log line says so): to free it under a running fiber would be worse.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "rpcrdma/rpcrdma_internal.h"

#define STOP_CALLS (5 * NSEC_PER_SEC)
#define STOP_CONNECTIONS (3 * NSEC_PER_SEC)
#define STOP_LOOK (2 * NSEC_PER_MSEC)
#define IDLE_CLOSE (300 * NSEC_PER_SEC)
#define IDLE_LOOK (100 * NSEC_PER_MSEC)
#define CACHE_KEEP (120 * NSEC_PER_SEC) /* longer than a client tries to reconnect before it repeats a call */
#define CACHE_PART 256u			/* of the arena's size: what the reply cache may take beside it */
#define CACHE_ENTRIES_MIN 8192u
#define CACHE_ENTRIES_MAX (1u << 20)

/* ------------------------------------------------------------------------------------------------
 * Addresses
 */

/* The IPv4 address inside of an IPv4-mapped IPv6 one counts as itself. Returns the family's bytes. */
static const void *address_bytes(const struct sockaddr *address, int *family, unsigned *bytes)
{
	*family = address->sa_family;
	if (address->sa_family == AF_INET6) {
		const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
		if (!IN6_IS_ADDR_V4MAPPED(a)) {
			*bytes = 16;
			return a;
		}
		*family = AF_INET;
		*bytes = 4;
		return a->s6_addr + 12;
	}
	*bytes = address->sa_family == AF_INET ? 4 : 0;
	return &((const struct sockaddr_in *)(const void *)address)->sin_addr;
}

void rpc_address_text(const struct sockaddr *address, char *text, size_t room)
{
	int family;
	unsigned bytes;
	const void *a = address_bytes(address, &family, &bytes);
	if (!bytes || !inet_ntop(family, a, text, (socklen_t)room))
		snprintf(text, room, "unknown");
}

void rpc_address_mapped(const struct sockaddr *address, struct in6_addr *to)
{
	memset(to, 0, sizeof(*to));
	if (address->sa_family == AF_INET6) {
		*to = ((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
	} else if (address->sa_family == AF_INET) {
		to->s6_addr[10] = to->s6_addr[11] = 0xff;
		memcpy(&to->s6_addr[12], &((const struct sockaddr_in *)(const void *)address)->sin_addr, 4);
	}
}

/* Of an address without its port, the same after a restart. */
static uint64_t address_hash(const struct sockaddr *address)
{
	int family;
	unsigned bytes;
	const void *a = address_bytes(address, &family, &bytes);
	return checksum64(a, bytes, 0);
}

int rpc_address_parse(
	const char *text, uint16_t port, struct sockaddr_storage *address, socklen_t *bytes, struct error *err)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)address;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)address;

	memset(address, 0, sizeof(*address));
	if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(port);
		*bytes = sizeof(*v4);
		return 0;
	}
	if (inet_pton(AF_INET6, text, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons(port);
		*bytes = sizeof(*v6);
		return 0;
	}
	return error_set(err, -EINVAL, "%s is not a numeric IPv4 or IPv6 address", text);
}

/* ------------------------------------------------------------------------------------------------
 * Connections
 */

struct rpc_shard *rpc_shard_self(struct rpc_server *server)
{
	return &server->shard[reactor_index(reactor_self())];
}

struct rpc_shard *rpc_shard_pick(struct rpc_server *server, bool rdma)
{
	static _Atomic unsigned turn; /* so that equal ones take turns */
	unsigned first = atomic_fetch_add_explicit(&turn, 1, memory_order_relaxed);
	struct rpc_shard *best = server->shard;
	uint32_t least = UINT32_MAX;
	for (unsigned i = 0; i < server->shards; i++) {
		struct rpc_shard *s = &server->shard[(first + i) % server->shards];
		uint32_t n =
			atomic_load_explicit(rdma ? &s->rdma_connections : &s->tcp_connections, memory_order_relaxed);
		n += rdma ? 0 : atomic_load_explicit(&s->tcp_arriving, memory_order_relaxed);
		if (n < least) {
			best = s;
			least = n;
		}
	}
	return best;
}

static uint32_t connections_count(struct rpc_server *server, bool rdma)
{
	uint32_t n = 0;
	for (unsigned i = 0; i < server->shards; i++) {
		struct rpc_shard *s = &server->shard[i];
		n += atomic_load_explicit(rdma ? &s->rdma_connections : &s->tcp_connections, memory_order_relaxed);
	}
	return n;
}

/* On the shard's reactor, which alone changes the list: no lock. */
static void shard_close_idle(void *arg)
{
	struct rpc_shard *shard = arg;
	struct rpc_server *server = shard->server;
	uint64_t now = now_ns();
	list_foreach (n, &shard->connections) {
		struct rpc_connection *c = container_of(n, struct rpc_connection, node);
		if (c->closing || c->calls || now - c->last_call_ns < server->config.idle_close)
			continue;
		counter_add(&server->idle_closed, 1);
		log_info("rpc", "closing an idle connection to make room peer=%s transport=%s", c->peer_text,
			c->transport->name);
		c->transport->close(c);
	}
}

/* There are too many: whoever was refused finds room when he tries again. */
static void connections_short(struct rpc_server *server)
{
	uint64_t now = now_ns(), last = atomic_load(&server->idle_looked);
	if (now - last < IDLE_LOOK || !atomic_compare_exchange_strong(&server->idle_looked, &last, now))
		return;
	for (unsigned i = 0; i < server->shards; i++)
		reactor_post(server->shard[i].reactor, shard_close_idle, &server->shard[i]);
}

int rpc_connection_begin(struct rpc_connection *conn, struct rpc_server *server, const struct rpc_transport *transport,
	const struct sockaddr *peer, const struct sockaddr *local)
{
	struct rpc_shard *shard = rpc_shard_self(server);

	if (atomic_load(&server->stopping))
		return -ESHUTDOWN;
	memset(conn, 0, sizeof(*conn));
	conn->transport = transport;
	conn->server = server;
	conn->shard = shard;
	memcpy(&conn->peer, peer,
		peer->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
	memcpy(&conn->local, local,
		local->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
	rpc_address_mapped(peer, &conn->peer_address);
	rpc_address_text(peer, conn->peer_text, sizeof(conn->peer_text));
	conn->client = address_hash(peer);
	conn->since_ns = conn->last_call_ns = now_ns();
	int rc = connections_count(server, transport->rdma) < server->config.connections ? rpc_client_begin(conn)
											 : -EMFILE;
	if (rc == -EMFILE)
		connections_short(server);
	if (rc < 0)
		return rc;
	wait_queue_init(&conn->payload_queue);
	list_init(&conn->parked);
	list_node_init(&conn->turn_node);
	atomic_fetch_add(transport->rdma ? &shard->rdma_connections : &shard->tcp_connections, 1);
	pthread_mutex_lock(&shard->lock);
	list_push_back(&shard->connections, &conn->node);
	pthread_mutex_unlock(&shard->lock);
	return 0;
}

void rpc_connection_end(struct rpc_connection *conn)
{
	struct rpc_shard *shard = conn->shard;
	assert(!conn->calls);
	if (list_linked(&conn->turn_node))
		list_remove(&conn->turn_node);
	rpc_link_put(conn->link);
	conn->link = NULL;
	pthread_mutex_lock(&shard->lock);
	list_remove(&conn->node);
	pthread_mutex_unlock(&shard->lock);
	rpc_client_end(conn);
	atomic_fetch_sub(conn->transport->rdma ? &shard->rdma_connections : &shard->tcp_connections, 1);
}

void rpc_bytes_in(struct rpc_connection *conn, uint64_t bytes)
{
	rpc_stat_add(&conn->bytes_in, bytes);
	rpc_stat_add(&conn->traffic->bytes_in, bytes);
	counter_add(&conn->server->bytes_in, bytes);
}

void rpc_bytes_out(struct rpc_connection *conn, uint64_t bytes)
{
	rpc_stat_add(&conn->bytes_out, bytes);
	rpc_stat_add(&conn->traffic->bytes_out, bytes);
	counter_add(&conn->server->bytes_out, bytes);
}

void rpc_bad_call(struct rpc_server *server)
{
	counter_add(&server->bad_calls, 1);
}

void rpc_connections_foreach(
	struct rpc_server *server, void (*fn)(void *arg, const struct rpc_connection_info *info), void *arg)
{
	for (unsigned i = 0; i < server->shards; i++) {
		struct rpc_shard *shard = &server->shard[i];
		pthread_mutex_lock(&shard->lock);
		list_foreach (n, &shard->connections) {
			struct rpc_connection *c = container_of(n, struct rpc_connection, node);
			struct rpc_connection_info info = {.rdma = c->transport->rdma,
				.reactor = i,
				.calls = atomic_load_explicit(&c->calls_total, memory_order_relaxed),
				.bytes_in = atomic_load_explicit(&c->bytes_in, memory_order_relaxed),
				.bytes_out = atomic_load_explicit(&c->bytes_out, memory_order_relaxed),
				.since_ns = c->since_ns,
				.repeats = atomic_load_explicit(&c->repeats, memory_order_relaxed),
				.send_waits = atomic_load_explicit(&c->send_waits, memory_order_relaxed),
				.credits = atomic_load_explicit(&c->credits, memory_order_relaxed)};
			for (unsigned k = 0; k < RPC_IOS; k++) {
				info.io_count[k] = atomic_load_explicit(&c->io[k].count, memory_order_relaxed);
				info.io_bytes[k] = atomic_load_explicit(&c->io[k].bytes, memory_order_relaxed);
			}
			memcpy(info.peer, c->peer_text, sizeof(info.peer));
			fn(arg, &info);
		}
		pthread_mutex_unlock(&shard->lock);
	}
}

const struct sockaddr_storage *rpc_peer(const struct rpc_request *req)
{
	return &req->connection->peer;
}

const struct in6_addr *rpc_peer_address(const struct rpc_request *req)
{
	return &req->connection->peer_address;
}

const struct sockaddr_storage *rpc_local(const struct rpc_request *req)
{
	return &req->connection->local;
}

void rpc_peer_text(const struct rpc_request *req, char *text, size_t room)
{
	snprintf(text, room, "%s", req->connection->peer_text);
}

void rpc_status(struct rpc_server *server, struct rpc_status *status)
{
	*status = (struct rpc_status){.requests = counter_read(&server->requests),
		.replies = counter_read(&server->replies),
		.cache_hits = counter_read(&server->cache_hits),
		.bad_calls = counter_read(&server->bad_calls),
		.bytes_in = counter_read(&server->bytes_in),
		.bytes_out = counter_read(&server->bytes_out)};
	for (unsigned i = 0; i < server->shards; i++) {
		status->tcp_connections +=
			atomic_load_explicit(&server->shard[i].tcp_connections, memory_order_relaxed);
		status->rdma_connections +=
			atomic_load_explicit(&server->shard[i].rdma_connections, memory_order_relaxed);
	}
}

int rpc_cache_preload(struct rpc_server *server, const struct rpc_tag *tag, const void *replay, uint32_t bytes)
{
	return rpc_cache_put_replay(server->cache, tag, replay, bytes);
}

/* ------------------------------------------------------------------------------------------------
 * Start
 */

static void waiting_retry(struct timer *timer)
{
	rpc_waiting_run(container_of(timer, struct rpc_shard, retry));
}

static void metrics_register(struct rpc_server *server)
{
	server->requests.read = rpc_calls;
	server->requests.arg = server;
	counter_register(&server->requests, "furrow_rpc_requests_total", NULL, "RPC messages received");
	counter_register(&server->replies, "furrow_rpc_replies_total", NULL, "RPC replies made");
	counter_register(&server->cache_hits, "furrow_rpc_cache_hits_total", NULL,
		"Retransmitted calls that the reply cache answered or dropped");
	counter_register(
		&server->bad_calls, "furrow_rpc_bad_calls_total", NULL, "RPC calls that broke a rule of the protocol");
	counter_register(&server->idle_closed, "furrow_rpc_idle_closed_total", NULL,
		"Idle connections that were closed, since there were too many");
	counter_register(
		&server->bytes_in, "furrow_rpc_received_bytes_total", NULL, "Bytes received by all transports");
	counter_register(&server->bytes_out, "furrow_rpc_sent_bytes_total", NULL, "Bytes sent by all transports");
}

static int io_register(struct rpc_server *server)
{
	static const char *const labels[RPC_IOS] = {"io=\"read\"", "io=\"write\""};
	counter_register(&server->slow, "furrow_rpc_slow_total", NULL, "Calls that took over a second");
	for (unsigned i = 0; i < RPC_IOS; i++) {
		struct rpc_io_metrics *io = &server->io[i];
		io->server = server;
		io->io = i;
		io->calls.arg = io->bytes.arg = io->latency.arg = io;
		io->calls.read = rpc_io_calls;
		io->bytes.read = rpc_io_bytes;
		io->latency.gather = rpc_io_latency;
		counter_register(&io->calls, "furrow_rpc_io_total", labels[i], "Reads and writes of files");
		counter_register(&io->bytes, "furrow_rpc_io_bytes_total", labels[i], "Bytes of them");
		if (histogram_register(&io->latency, "furrow_rpc_io_seconds", labels[i],
			    "Reads and writes of files, from the arrival of their call to its reply") < 0)
			return -ENOMEM;
	}
	return 0;
}

static int procedures_register(struct rpc_server *server)
{
	for (unsigned i = 0; i < server->config.program_count; i++) {
		const struct rpc_program *p = server->config.programs[i];
		struct rpc_procedure_metrics *m = server->metrics[i] =
			calloc(p->procedures ? p->procedures : 1, sizeof(*m));
		if (!m)
			return -ENOMEM;
		for (uint32_t k = 0; k < p->procedures; k++) {
			if (!p->procedure[k].name)
				continue;
			snprintf(m[k].labels, sizeof(m[k].labels), "program=\"%s\",procedure=\"%s\"", p->name,
				p->procedure[k].name);
			counter_register(&m[k].calls, "furrow_rpc_calls_total", m[k].labels, "Calls by procedure");
			counter_register(
				&m[k].errors, "furrow_rpc_errors_total", m[k].labels, "Calls that failed as RPC");
			if (histogram_register(&m[k].latency, "furrow_rpc_latency_seconds", m[k].labels,
				    "From the arrival of a call to its reply") < 0)
				return -ENOMEM;
		}
	}
	return 0;
}

static void server_free(struct rpc_server *server)
{
	for (unsigned i = 0; server->metrics && i < server->config.program_count; i++) {
		const struct rpc_program *p = server->config.programs[i];
		struct rpc_procedure_metrics *m = server->metrics[i];
		for (uint32_t k = 0; m && k < p->procedures; k++) {
			if (!m[k].calls.name)
				continue;
			counter_remove(&m[k].calls);
			counter_remove(&m[k].errors);
			if (m[k].latency.slot)
				histogram_remove(&m[k].latency);
		}
		free(m);
	}
	free(server->metrics);
	struct counter *all[] = {&server->requests, &server->replies, &server->cache_hits, &server->bad_calls,
		&server->bytes_in, &server->bytes_out, &server->slow, &server->idle_closed, &server->io[0].calls,
		&server->io[0].bytes, &server->io[1].calls, &server->io[1].bytes};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i]->name)
			counter_remove(all[i]);
	for (unsigned i = 0; i < RPC_IOS; i++)
		if (server->io[i].latency.slot)
			histogram_remove(&server->io[i].latency);
	rpc_clients_destroy(server->clients);
	rpc_cache_destroy(server->cache);
	for (unsigned i = 0; server->shard && i < server->shards; i++)
		pthread_mutex_destroy(&server->shard[i].lock);
	free(server->shard);
	pthread_mutex_destroy(&server->lock);
	free(server);
}

static uint32_t cache_entries(void)
{
	uint64_t n = arena_total_bytes() / CACHE_PART / rpc_cache_entry_bytes();
	return n < CACHE_ENTRIES_MIN ? CACHE_ENTRIES_MIN : n > CACHE_ENTRIES_MAX ? CACHE_ENTRIES_MAX : (uint32_t)n;
}

/* A descriptor for every connection, and some for all else; as many as are allowed. */
static void descriptors_raise(uint32_t connections)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= connections + 1024ull)
		return;
	limit.rlim_cur = connections + 1024ull < limit.rlim_max ? connections + 1024ull : limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

int rpc_server_start(const struct rpc_server_config *config, struct rpc_server **out, struct error *err)
{
	struct rpc_server *server = aligned_alloc(64, (sizeof(*server) + 63) & ~(size_t)63);
	if (!server)
		return error_set(err, -ENOMEM, "no memory for the RPC server");
	memset(server, 0, sizeof(*server));
	server->config = *config;
	struct rpc_server_config *c = &server->config;
	c->memory = c->memory ? c->memory : arena_total_bytes() / 2;
	c->connections = c->connections ? c->connections : 4096;
	c->client_connections = c->client_connections ? c->client_connections : 2048;
	c->idle_close = c->idle_close ? c->idle_close : IDLE_CLOSE;
	c->rdma_credits = c->rdma_credits ? c->rdma_credits : 64;
	c->message_max = c->message_max ? c->message_max : (1u << 20) + (64u << 10);
	c->cache_entries = c->cache_entries ? c->cache_entries : cache_entries();
	descriptors_raise(c->connections);

	pthread_mutex_init(&server->lock, NULL);
	list_init(&server->listeners);
	server->shards = reactor_count();
	server->shard = aligned_alloc(64, server->shards * sizeof(*server->shard));
	server->metrics = calloc(c->program_count + 1, sizeof(*server->metrics));
	if (!server->shard || !server->metrics) {
		server_free(server);
		return error_set(err, -ENOMEM, "no memory for the RPC server");
	}
	memset(server->shard, 0, server->shards * sizeof(*server->shard));
	for (unsigned i = 0; i < server->shards; i++) {
		struct rpc_shard *s = &server->shard[i];
		s->server = server;
		s->reactor = reactor_get(i);
		s->limit = c->memory / server->shards;
		pthread_mutex_init(&s->lock, NULL);
		list_init(&s->connections);
		list_init(&s->waiting);
		wait_queue_init(&s->payload_queue);
		timer_init(&s->retry, waiting_retry);
		list_init(&s->turns);
		timer_init(&s->turn, rpc_turns_run);
	}
	if (rpc_clients_new(&server->clients) < 0 || io_register(server) < 0 || procedures_register(server) < 0 ||
		rpc_cache_new(c->cache_entries, CACHE_KEEP, &server->cache) < 0) {
		server_free(server);
		return error_set(err, -ENOMEM, "no memory for the RPC server");
	}
	metrics_register(server);
	*out = server;
	return 0;
}

void rpc_listener_add(struct rpc_server *server, struct rpc_listener *listener)
{
	pthread_mutex_lock(&server->lock);
	list_push_back(&server->listeners, &listener->node);
	pthread_mutex_unlock(&server->lock);
}

/* ------------------------------------------------------------------------------------------------
 * Stop: each step runs on the shard's reactor
 */

struct stop_step {
	struct rpc_shard *shard;
	uint32_t count;
};

static void stop_waiting(void *arg)
{
	struct stop_step *step = arg;
	rpc_waiting_run(step->shard);
	step->count = step->shard->running;
}

static void stop_connections(void *arg)
{
	struct stop_step *step = arg;
	/* This reactor alone changes the list, and close() may do so: no lock. */
	list_foreach (n, &step->shard->connections) {
		struct rpc_connection *c = container_of(n, struct rpc_connection, node);
		c->transport->close(c);
	}
	step->count = atomic_load(&step->shard->tcp_connections) + atomic_load(&step->shard->rdma_connections);
}

static void stop_shard(void *arg)
{
	struct stop_step *step = arg;
	timer_stop(&step->shard->retry);
	timer_stop(&step->shard->turn);
	tcp_shard_fini(step->shard);
}

static uint32_t stop_each(struct rpc_server *server, void (*fn)(void *arg))
{
	uint32_t count = 0;
	for (unsigned i = 0; i < server->shards; i++) {
		struct stop_step step = {.shard = &server->shard[i]};
		reactor_call(step.shard->reactor, fn, &step);
		count += step.count;
	}
	return count;
}

static uint32_t stop_until(struct rpc_server *server, void (*fn)(void *arg), uint64_t ns)
{
	uint64_t deadline = now_ns() + ns;
	uint32_t left;
	while ((left = stop_each(server, fn)) && now_ns() < deadline)
		fiber_sleep(STOP_LOOK);
	return left;
}

void rpc_server_stop(struct rpc_server *server)
{
	for (;;) {
		pthread_mutex_lock(&server->lock);
		struct list_node *n = list_pop_front(&server->listeners);
		pthread_mutex_unlock(&server->lock);
		if (!n)
			break;
		struct rpc_listener *listener = container_of(n, struct rpc_listener, node);
		listener->stop(listener);
	}
	atomic_store(&server->stopping, true);
	uint32_t calls = stop_until(server, stop_waiting, STOP_CALLS);
	if (calls)
		log_warning("rpc", "calls still run after %llu s calls=%u", STOP_CALLS / NSEC_PER_SEC, calls);
	uint32_t connections = stop_until(server, stop_connections, STOP_CONNECTIONS);
	if (connections) {
		log_error("rpc", "connections did not end, their memory is kept connections=%u", connections);
		return;
	}
	stop_each(server, stop_shard);
	server_free(server);
}
