/*
 * What the metrics page says of clients: the sums of `furrow clients`, one sample for each client that is known. The
 * thread that serves the page gathers them on reactor 0, where the RPC server is started and stopped, so that there is
 * one or there is none.
 */
#include "server/server_internal.h"

#include <stdlib.h>

static struct rpc_server *shown; /* on reactor 0 only */

void traffic_metrics_show(struct rpc_server *rpc)
{
	shown = rpc;
}

struct gathering {
	struct rpc_client_info *client;
	size_t count, room;
};

static void client_gather(void *arg, const struct rpc_client_info *info)
{
	struct gathering *g = arg;

	if (g->count == g->room) {
		size_t room = g->room ? 2 * g->room : 16;
		struct rpc_client_info *grown = realloc(g->client, room * sizeof(*grown));
		if (!grown)
			return;
		g->client = grown;
		g->room = room;
	}
	g->client[g->count++] = *info;
}

static void gather_main(void *arg)
{
	if (shown)
		rpc_clients_foreach(shown, client_gather, arg);
}

#define AT(member) offsetof(struct rpc_client_info, member)

static const struct {
	const char *name, *labels, *help;
	size_t offset; /* of a uint64_t */
} families[] = {
	{"furrow_client_calls_total", "", "Calls by client", AT(calls)},
	{"furrow_client_received_bytes_total", "", "Bytes received by client", AT(bytes_in)},
	{"furrow_client_sent_bytes_total", "", "Bytes sent by client", AT(bytes_out)},
	{"furrow_client_repeats_total", "", "Retransmissions that the reply cache answered or dropped, by client",
		AT(repeats)},
	{"furrow_client_slow_total", "", "Calls that took over a second, by client", AT(slow)},
	{"furrow_client_send_waits_total", "", "Replies that waited for room in a send queue, by client",
		AT(send_waits)},
	{"furrow_client_io_total", ",io=\"read\"", "Reads and writes of files by client", AT(io[RPC_IO_READ].count)},
	{"furrow_client_io_total", ",io=\"write\"", NULL, AT(io[RPC_IO_WRITE].count)},
	{"furrow_client_io_bytes_total", ",io=\"read\"", "Bytes read and written by client", AT(io[RPC_IO_READ].bytes)},
	{"furrow_client_io_bytes_total", ",io=\"write\"", NULL, AT(io[RPC_IO_WRITE].bytes)},
};

void traffic_metrics_write(FILE *out)
{
	struct gathering g = {0};

	reactor_call(reactor_get(0), gather_main, &g);
	for (size_t f = 0; g.count && f < sizeof(families) / sizeof(families[0]); f++) {
		if (families[f].help)
			fprintf(out, "# HELP %s %s.\n# TYPE %s counter\n", families[f].name, families[f].help,
				families[f].name);
		for (size_t i = 0; i < g.count; i++) {
			uint64_t value =
				*(const uint64_t *)(const void *)((const char *)&g.client[i] + families[f].offset);
			fprintf(out, "%s{client=\"%s\"%s} %llu\n", families[f].name, g.client[i].client,
				families[f].labels, (unsigned long long)value);
		}
	}
	free(g.client);
}
