/*
 * Who does how much: the parts of `status` about connections and operations, and the command `traffic`, from which
 * `furrow clients` and `furrow top` are made. All numbers are sums since the start; rates are the reader's to make.
 */
#include "server/admin_internal.h"

static void connection_put(void *arg, const struct rpc_connection_info *info)
{
	json_t *list = arg, *object = json_object();
	uint64_t now = now_ns();

	admin_put_string(object, "peer", info->peer);
	admin_put_string(object, "transport", info->rdma ? "rdma" : "tcp");
	admin_put_number(object, "reactor", info->reactor);
	admin_put_number(object, "calls", info->calls);
	admin_put_number(object, "bytes_in", info->bytes_in);
	admin_put_number(object, "bytes_out", info->bytes_out);
	admin_put_number(object, "credits", info->credits);
	admin_put_number(object, "reads", info->io_count[RPC_IO_READ]);
	admin_put_number(object, "read_bytes", info->io_bytes[RPC_IO_READ]);
	admin_put_number(object, "writes", info->io_count[RPC_IO_WRITE]);
	admin_put_number(object, "write_bytes", info->io_bytes[RPC_IO_WRITE]);
	admin_put_number(object, "repeats", info->repeats);
	admin_put_number(object, "send_waits", info->send_waits);
	admin_put_number(object, "seconds", now > info->since_ns ? (now - info->since_ns) / NSEC_PER_SEC : 0);
	json_array_append_new(list, object);
}

/* One procedure's latency; those that nobody called are left out. */
static void operation_put(void *arg, const struct histogram *histogram)
{
	json_t *list = arg;
	char program[32] = "", procedure[32] = "";
	uint64_t count = histogram_count(histogram);

	if (!count || !histogram->labels ||
		sscanf(histogram->labels, "program=\"%31[^\"]\",procedure=\"%31[^\"]\"", program, procedure) != 2)
		return;
	json_t *object = json_object();
	admin_put_string(object, "program", program);
	admin_put_string(object, "procedure", procedure);
	admin_put_number(object, "calls", count);
	admin_put_number(object, "p50_ns", histogram_quantile(histogram, 0.5));
	admin_put_number(object, "p99_ns", histogram_quantile(histogram, 0.99));
	admin_put_number(object, "max_ns", histogram_quantile(histogram, 1));
	json_array_append_new(list, object);
}

json_t *admin_connections_json(struct server *server)
{
	json_t *list = json_array();

	if (server && server->rpc)
		rpc_connections_foreach(server->rpc, connection_put, list);
	return list;
}

json_t *admin_operations_json(struct server *server)
{
	json_t *list = json_array();

	if (server)
		histograms_foreach("furrow_rpc_latency_seconds", operation_put, list);
	return list;
}

static json_t *io_json(const struct rpc_io_info *io)
{
	json_t *object = json_object();

	admin_put_number(object, "count", io->count);
	admin_put_number(object, "bytes", io->bytes);
	admin_put_number(object, "sum_ns", io->sum_ns);
	admin_put_number(object, "p50_ns", rpc_io_quantile(io, 0.5));
	admin_put_number(object, "p99_ns", rpc_io_quantile(io, 0.99));
	admin_put_number(object, "max_ns", io->max_ns);
	return object;
}

static void client_put(void *arg, const struct rpc_client_info *info)
{
	json_t *list = arg, *object = json_object();
	uint64_t now = now_ns();

	admin_put_string(object, "client", info->client);
	admin_put_number(object, "tcp_connections", info->tcp_connections);
	admin_put_number(object, "rdma_connections", info->rdma_connections);
	admin_put_number(object, "credits", info->credits);
	admin_put_number(object, "seconds", now > info->since_ns ? (now - info->since_ns) / NSEC_PER_SEC : 0);
	admin_put_number(object, "calls", info->calls);
	admin_put_number(object, "bytes_in", info->bytes_in);
	admin_put_number(object, "bytes_out", info->bytes_out);
	admin_put_number(object, "repeats", info->repeats);
	admin_put_number(object, "slow", info->slow);
	admin_put_number(object, "send_waits", info->send_waits);
	admin_put(object, "read", io_json(&info->io[RPC_IO_READ]));
	admin_put(object, "write", io_json(&info->io[RPC_IO_WRITE]));
	json_array_append_new(list, object);
}

json_t *admin_traffic(struct admin *admin)
{
	json_t *result = json_object(), *clients = json_array();

	if (admin->server && admin->server->rpc)
		rpc_clients_foreach(admin->server->rpc, client_put, clients);
	admin_put_number(result, "time_ns", now_ns());
	admin_put(result, "clients", clients);
	admin_put(result, "connections", admin_connections_json(admin->server));
	admin_put(result, "operations", admin_operations_json(admin->server));
	return result;
}
