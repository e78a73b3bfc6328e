/*
 * Who does how much: what each client and each connection called, read and wrote, and how long that took.
 *
 * Owns the table of clients, by address without port. A client has one struct rpc_traffic for each reactor, and the
 * connections of that client there add to it with plain stores: no other writes it, and a listing reads it from
 * anywhere, word by word. A client stays known when its last connection ends, so that its sums do not start anew with
 * each mount; of those without connections only the last CLIENTS_KEPT are kept. The calls, reads and writes of the
 * whole server are the sum of its clients and of those that were forgotten.
 *
 * The table is under its own lock, taken when a connection begins or ends and for a listing, never for a call.
 *
 * Errors: without memory for a new client its connection is refused, and so is one more than a client may have.
 */
#include <errno.h>
#include <stdlib.h>

#include "rpcrdma/rpcrdma_internal.h"

#define CLIENTS_KEPT 256u
#define SLOW_CALL NSEC_PER_SEC
#define BUCKET_FIRST 10u /* log2 of ns: what is shorter stands in the first bucket */

struct rpc_client_now {
	uint32_t tcp, rdma, credits; /* of its connections; for a listing */
};

struct rpc_client {
	struct htable_node hash_node;
	struct list_node node; /* all */
	struct list_node idle; /* those without connections, longest idle first */
	uint32_t connections;
	char text[64];
	struct rpc_client_now now;
	uint64_t since_ns;
	struct rpc_traffic traffic[]; /* by reactor */
};

struct rpc_clients {
	pthread_mutex_t lock;
	struct htable table;
	struct list all, idle;
	uint32_t idle_count;
	struct rpc_client_info forgotten; /* what those did that are known no more */
};

int rpc_clients_new(struct rpc_clients **out)
{
	struct rpc_clients *c = calloc(1, sizeof(*c));
	if (!c || htable_init(&c->table, 64) < 0) {
		free(c);
		return -ENOMEM;
	}
	pthread_mutex_init(&c->lock, NULL);
	list_init(&c->all);
	list_init(&c->idle);
	*out = c;
	return 0;
}

static void client_sum(struct rpc_client_info *info, const struct rpc_client *client, unsigned shards);

static void client_free(struct rpc_clients *c, struct rpc_client *client)
{
	htable_remove(&c->table, &client->hash_node);
	list_remove(&client->node);
	free(client);
}

void rpc_clients_destroy(struct rpc_clients *c)
{
	struct list_node *n;
	if (!c)
		return;
	while ((n = list_first(&c->all)))
		client_free(c, container_of(n, struct rpc_client, node));
	htable_fini(&c->table);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static struct rpc_client *client_find(struct rpc_clients *c, const struct rpc_connection *conn)
{
	htable_foreach_hash (n, &c->table, conn->client) {
		struct rpc_client *client = container_of(n, struct rpc_client, hash_node);
		if (strcmp(client->text, conn->peer_text) == 0)
			return client;
	}
	return NULL;
}

static struct rpc_client *client_new(unsigned shards)
{
	size_t bytes = sizeof(struct rpc_client) + shards * sizeof(struct rpc_traffic); /* a multiple of 64 */
	struct rpc_client *client = aligned_alloc(64, bytes);
	if (client)
		memset(client, 0, bytes);
	return client;
}

int rpc_client_begin(struct rpc_connection *conn)
{
	struct rpc_server *server = conn->server;
	struct rpc_clients *c = server->clients;
	int rc = 0;

	pthread_mutex_lock(&c->lock);
	struct rpc_client *client = client_find(c, conn);
	if (!client && (client = client_new(server->shards))) {
		memcpy(client->text, conn->peer_text, sizeof(client->text));
		client->since_ns = conn->since_ns;
		list_node_init(&client->idle);
		list_push_back(&c->all, &client->node);
		htable_insert(&c->table, &client->hash_node, conn->client);
	} else if (client && list_linked(&client->idle)) {
		list_remove(&client->idle);
		c->idle_count--;
	}
	if (client && client->connections >= server->config.client_connections) {
		rc = -EMFILE;
	} else if (client) {
		client->connections++;
		conn->of = client;
		conn->traffic = &client->traffic[conn->shard - server->shard];
	} else {
		rc = -ENOMEM;
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}

void rpc_client_end(struct rpc_connection *conn)
{
	struct rpc_clients *c = conn->server->clients;
	struct rpc_client *client = conn->of;

	pthread_mutex_lock(&c->lock);
	if (--client->connections == 0) {
		list_push_back(&c->idle, &client->idle);
		if (++c->idle_count > CLIENTS_KEPT) {
			struct rpc_client *oldest = container_of(list_pop_front(&c->idle), struct rpc_client, idle);
			client_sum(&c->forgotten, oldest, conn->server->shards);
			client_free(c, oldest);
			c->idle_count--;
		}
	}
	pthread_mutex_unlock(&c->lock);
}

/* ------------------------------------------------------------------------------------------------
 * Counting, on the connection's reactor
 */

/* Four to each doubling. */
static unsigned bucket_of(uint64_t ns)
{
	if (ns < 1ull << BUCKET_FIRST)
		return 0;
	unsigned log = 63 - (unsigned)__builtin_clzll(ns);
	unsigned b = (log - BUCKET_FIRST) * 4 + (unsigned)(ns >> (log - 2) & 3) + 1;
	return b < RPC_IO_BUCKETS ? b : RPC_IO_BUCKETS - 1;
}

static uint64_t bucket_end(unsigned b)
{
	return b ? (4ull + (b - 1) % 4 + 1) << (BUCKET_FIRST + (b - 1) / 4 - 2) : 1ull << BUCKET_FIRST;
}

__attribute__((noinline)) void rpc_io_record(
	struct rpc_connection *conn, enum rpc_io io, uint32_t count, uint64_t bytes, uint64_t ns)
{
	struct rpc_traffic *t = conn->traffic;

	rpc_stat_add(&conn->io[io].count, count);
	rpc_stat_add(&conn->io[io].bytes, bytes);
	rpc_stat_add(&t->io[io].count, count);
	rpc_stat_add(&t->io[io].bytes, bytes);
	rpc_stat_add(&t->io[io].sum_ns, ns * count);
	rpc_stat_add(&t->io[io].bucket[bucket_of(ns)], count);
	if (ns > atomic_load_explicit(&t->io[io].max_ns, memory_order_relaxed))
		atomic_store_explicit(&t->io[io].max_ns, ns, memory_order_relaxed);
}

void rpc_slow_count(struct rpc_connection *conn, uint64_t ns)
{
	if (ns < SLOW_CALL)
		return;
	rpc_stat_add(&conn->traffic->slow, 1);
	counter_add(&conn->server->slow, 1);
}

void rpc_repeat_count(struct rpc_connection *conn)
{
	rpc_stat_add(&conn->repeats, 1);
	rpc_stat_add(&conn->traffic->repeats, 1);
	counter_add(&conn->server->cache_hits, 1);
}

void rpc_send_wait_count(struct rpc_connection *conn)
{
	rpc_stat_add(&conn->send_waits, 1);
	rpc_stat_add(&conn->traffic->send_waits, 1);
}

/* ------------------------------------------------------------------------------------------------
 * Listing
 */

static uint64_t stat_read(const _Atomic uint64_t *value)
{
	return atomic_load_explicit(value, memory_order_relaxed);
}

static void traffic_sum(struct rpc_client_info *info, const struct rpc_traffic *t)
{
	info->calls += stat_read(&t->calls);
	info->bytes_in += stat_read(&t->bytes_in);
	info->bytes_out += stat_read(&t->bytes_out);
	info->repeats += stat_read(&t->repeats);
	info->slow += stat_read(&t->slow);
	info->send_waits += stat_read(&t->send_waits);
	for (unsigned i = 0; i < RPC_IOS; i++) {
		struct rpc_io_info *io = &info->io[i];
		io->count += stat_read(&t->io[i].count);
		io->bytes += stat_read(&t->io[i].bytes);
		io->sum_ns += stat_read(&t->io[i].sum_ns);
		uint64_t max = stat_read(&t->io[i].max_ns);
		io->max_ns = max > io->max_ns ? max : io->max_ns;
		for (unsigned b = 0; b < RPC_IO_BUCKETS; b++)
			io->bucket[b] += stat_read(&t->io[i].bucket[b]);
	}
}

static void client_sum(struct rpc_client_info *info, const struct rpc_client *client, unsigned shards)
{
	for (unsigned i = 0; i < shards; i++)
		traffic_sum(info, &client->traffic[i]);
}

/* All that was done so far, by whomever. */
static struct rpc_client_info clients_total(const struct rpc_server *server)
{
	struct rpc_clients *c = server->clients;

	pthread_mutex_lock(&c->lock);
	struct rpc_client_info sum = c->forgotten;
	list_foreach (n, &c->all)
		client_sum(&sum, container_of(n, struct rpc_client, node), server->shards);
	pthread_mutex_unlock(&c->lock);
	return sum;
}

static struct rpc_io_info io_total(const struct rpc_io_metrics *m)
{
	return clients_total(m->server).io[m->io];
}

uint64_t rpc_calls(void *server)
{
	return clients_total(server).calls;
}

uint64_t rpc_io_calls(void *metrics)
{
	return io_total(metrics).count;
}

uint64_t rpc_io_bytes(void *metrics)
{
	return io_total(metrics).bytes;
}

/* The steps here are wider than those of a histogram, and end where some of those do. */
void rpc_io_latency(void *metrics, struct histogram_slot *to)
{
	const struct rpc_io_info io = io_total(metrics);

	atomic_store_explicit(&to->sum, io.sum_ns, memory_order_relaxed);
	atomic_store_explicit(&to->max, io.max_ns, memory_order_relaxed);
	for (unsigned b = 0; b < RPC_IO_BUCKETS; b++)
		atomic_store_explicit(
			&to->bucket[histogram_bucket(bucket_end(b) - 1)], io.bucket[b], memory_order_relaxed);
}

uint64_t rpc_io_quantile(const struct rpc_io_info *io, double q)
{
	uint64_t count = 0, seen = 0;
	for (unsigned b = 0; b < RPC_IO_BUCKETS; b++)
		count += io->bucket[b];
	uint64_t rank = (uint64_t)(q * (double)count);
	for (unsigned b = 0; b < RPC_IO_BUCKETS; b++) {
		seen += io->bucket[b];
		if (seen > rank || (count && seen == count))
			return bucket_end(b) < io->max_ns ? bucket_end(b) : io->max_ns;
	}
	return 0;
}

/* What stands in each client's `now`; the lock of the clients is held, so that none ends. */
static void connections_sum(struct rpc_server *server)
{
	list_foreach (n, &server->clients->all)
		memset(&container_of(n, struct rpc_client, node)->now, 0, sizeof(struct rpc_client_now));
	for (unsigned i = 0; i < server->shards; i++) {
		struct rpc_shard *shard = &server->shard[i];
		pthread_mutex_lock(&shard->lock);
		list_foreach (n, &shard->connections) {
			const struct rpc_connection *conn = container_of(n, struct rpc_connection, node);
			struct rpc_client_now *now = &conn->of->now;
			*(conn->transport->rdma ? &now->rdma : &now->tcp) += 1;
			now->credits += atomic_load_explicit(&conn->credits, memory_order_relaxed);
		}
		pthread_mutex_unlock(&shard->lock);
	}
}

void rpc_clients_foreach(
	struct rpc_server *server, void (*fn)(void *arg, const struct rpc_client_info *info), void *arg)
{
	struct rpc_clients *c = server->clients;

	pthread_mutex_lock(&c->lock);
	connections_sum(server);
	list_foreach (n, &c->all) {
		const struct rpc_client *client = container_of(n, struct rpc_client, node);
		struct rpc_client_info info = {.tcp_connections = client->now.tcp,
			.rdma_connections = client->now.rdma,
			.credits = client->now.credits,
			.since_ns = client->since_ns};
		memcpy(info.client, client->text, sizeof(info.client));
		client_sum(&info, client, server->shards);
		fn(arg, &info);
	}
	pthread_mutex_unlock(&c->lock);
}
