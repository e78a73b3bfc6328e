/*
 * furrow clients and furrow top: who does how much. Both come from the command `traffic`, which tells sums; top asks
 * twice, INTERVAL apart, and shows the differences as rates. With --json it prints them as one object for each
 * interval, on a line of its own.
 */
#include "server/cli_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t io_number(const json_t *client, const char *io, const char *key)
{
	return json_number(json_object_get(client, io), key);
}

static json_t *traffic_ask(struct cli *cli)
{
	return cli_call(cli, request_make("traffic"), CALL_SERVER);
}

int clients_run(struct cli *cli)
{
	static const char *const heading[] = {"CLIENT", "TCP", "RDMA", "CREDITS", "CALLS", "READS", "READ", "MEDIAN",
		"99 %", "WRITES", "WRITTEN", "MEDIAN", "99 %", "REPEATS", "SLOW"};
	static const char *const ios[] = {"read", "write"};
	json_t *result = traffic_ask(cli);
	const json_t *list = json_object_get(result, "clients");
	struct table table;

	if (!result)
		return EXIT_FAILED;
	if (cli->json) {
		json_object_del(result, "operations");
		show_json(result);
	} else if (!json_array_size(list)) {
		printf("no clients\n");
	} else {
		table_init(&table, 15, 0x7ffeu, heading);
		for (size_t i = 0; i < json_array_size(list); i++) {
			const json_t *c = json_array_get(list, i);
			static const char *const keys[] = {"tcp_connections", "rdma_connections", "credits", "calls"};
			table_add(&table, 0, "%s", json_text(c, "client"));
			for (unsigned k = 0; k < 4; k++)
				table_add(&table, 1 + k, "%llu", (unsigned long long)json_number(c, keys[k]));
			for (unsigned k = 0; k < 2; k++) {
				table_add(&table, 5 + 4 * k, "%llu", (unsigned long long)io_number(c, ios[k], "count"));
				table_add_bytes(&table, 6 + 4 * k, io_number(c, ios[k], "bytes"));
				table_add_time(&table, 7 + 4 * k, io_number(c, ios[k], "p50_ns"));
				table_add_time(&table, 8 + 4 * k, io_number(c, ios[k], "p99_ns"));
			}
			table_add(&table, 13, "%llu", (unsigned long long)json_number(c, "repeats"));
			table_add(&table, 14, "%llu", (unsigned long long)json_number(c, "slow"));
		}
		table_print(&table, stdout);
	}
	json_decref(result);
	return EXIT_OK;
}

/* ------------------------------------------------------------------------------------------------
 * Rates
 */

/* The object of LIST whose KEYS are those of LIKE. */
static const json_t *same_in(const json_t *list, const json_t *like, const char *key, const char *second)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *o = json_array_get(list, i);
		if (!strcmp(json_text(o, key), json_text(like, key)) &&
			(!second || !strcmp(json_text(o, second), json_text(like, second))))
			return o;
	}
	return NULL;
}

/* How much KEY grew; all of it when the server was started anew meanwhile. */
static uint64_t grown(const json_t *now, const json_t *before, const char *key)
{
	uint64_t a = json_number(now, key), b = json_number(before, key);
	return a >= b ? a - b : a;
}

static void put_rate(json_t *to, const char *name, uint64_t n, double seconds)
{
	json_object_set_new(to, name, json_real((double)n / seconds));
}

static json_t *io_rates(const json_t *now, const json_t *before, double seconds)
{
	json_t *to = json_object();
	uint64_t count = grown(now, before, "count");

	json_object_set_new(to, "count", json_integer((json_int_t)count));
	json_object_set_new(to, "bytes", json_integer((json_int_t)grown(now, before, "bytes")));
	put_rate(to, "per_second", count, seconds);
	put_rate(to, "bytes_per_second", grown(now, before, "bytes"), seconds);
	json_object_set_new(
		to, "mean_ns", json_integer((json_int_t)(count ? grown(now, before, "sum_ns") / count : 0)));
	return to;
}

static json_t *clients_rates(const json_t *now, const json_t *before, double seconds)
{
	json_t *list = json_array();

	for (size_t i = 0; i < json_array_size(now); i++) {
		const json_t *c = json_array_get(now, i), *b = same_in(before, c, "client", NULL);
		json_t *to = json_object();
		json_object_set(to, "client", json_object_get(c, "client"));
		json_object_set(to, "tcp_connections", json_object_get(c, "tcp_connections"));
		json_object_set(to, "rdma_connections", json_object_get(c, "rdma_connections"));
		json_object_set_new(to, "calls", json_integer((json_int_t)grown(c, b, "calls")));
		put_rate(to, "calls_per_second", grown(c, b, "calls"), seconds);
		json_object_set_new(to, "repeats", json_integer((json_int_t)grown(c, b, "repeats")));
		json_object_set_new(to, "send_waits", json_integer((json_int_t)grown(c, b, "send_waits")));
		json_object_set_new(to, "slow", json_integer((json_int_t)grown(c, b, "slow")));
		json_object_set_new(
			to, "read", io_rates(json_object_get(c, "read"), json_object_get(b, "read"), seconds));
		json_object_set_new(
			to, "write", io_rates(json_object_get(c, "write"), json_object_get(b, "write"), seconds));
		json_array_append_new(list, to);
	}
	return list;
}

static json_t *operations_rates(const json_t *now, const json_t *before, double seconds)
{
	json_t *list = json_array();

	for (size_t i = 0; i < json_array_size(now); i++) {
		const json_t *o = json_array_get(now, i), *b = same_in(before, o, "procedure", "program");
		uint64_t calls = grown(o, b, "calls");
		if (!calls)
			continue;
		json_t *to = json_object();
		json_object_set(to, "program", json_object_get(o, "program"));
		json_object_set(to, "procedure", json_object_get(o, "procedure"));
		json_object_set_new(to, "calls", json_integer((json_int_t)calls));
		put_rate(to, "per_second", calls, seconds);
		json_array_append_new(list, to);
	}
	return list;
}

static json_t *rates(const json_t *now, const json_t *before)
{
	json_t *to = json_object();
	uint64_t ns = grown(now, before, "time_ns");
	double seconds = ns ? (double)ns / 1e9 : 1;

	json_object_set_new(to, "seconds", json_real(seconds));
	json_object_set_new(to, "clients",
		clients_rates(json_object_get(now, "clients"), json_object_get(before, "clients"), seconds));
	json_object_set_new(to, "operations",
		operations_rates(json_object_get(now, "operations"), json_object_get(before, "operations"), seconds));
	return to;
}

/* ------------------------------------------------------------------------------------------------
 * Top
 */

static void show_top(const json_t *r)
{
	static const char *const heading[] = {
		"CLIENT", "CALLS/S", "READS/S", "READ/S", "MEAN", "WRITES/S", "WRITTEN/S", "MEAN", "REPEATS", "SLOW"};
	static const char *const below[] = {"OPERATION", "PROGRAM", "CALLS/S"};
	static const char *const ios[] = {"read", "write"};
	const json_t *list = json_object_get(r, "clients");
	struct table table;

	table_init(&table, 10, 0x3feu, heading);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *c = json_array_get(list, i);
		if (!json_number(c, "calls"))
			continue;
		table_add(&table, 0, "%s", json_text(c, "client"));
		table_add(&table, 1, "%.0f", json_real_value(json_object_get(c, "calls_per_second")));
		for (unsigned k = 0; k < 2; k++) {
			const json_t *io = json_object_get(c, ios[k]);
			table_add(&table, 2 + 3 * k, "%.0f", json_real_value(json_object_get(io, "per_second")));
			table_add_bytes(
				&table, 3 + 3 * k, (uint64_t)json_real_value(json_object_get(io, "bytes_per_second")));
			table_add_time(&table, 4 + 3 * k, json_number(io, "mean_ns"));
		}
		table_add(&table, 8, "%llu", (unsigned long long)json_number(c, "repeats"));
		table_add(&table, 9, "%llu", (unsigned long long)json_number(c, "slow"));
	}
	table_print(&table, stdout);
	list = json_object_get(r, "operations");
	putchar('\n');
	table_init(&table, 3, 1u << 2, below);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *o = json_array_get(list, i);
		table_add(&table, 0, "%s", json_text(o, "procedure"));
		table_add(&table, 1, "%s", json_text(o, "program"));
		table_add(&table, 2, "%.0f", json_real_value(json_object_get(o, "per_second")));
	}
	table_print(&table, stdout);
}

/* A number from LEAST on, or EXIT_USAGE after a line on stderr. */
static int number_option(const struct cli *cli, const char *name, const char *text, double least, double *value)
{
	char *end;

	if (!text)
		return EXIT_OK;
	*value = strtod(text, &end);
	if (*end || end == text || !(*value >= least) || *value > 1e6)
		return cli_usage(cli, "%s %s is not valid; expected a number of at least %g", name, text, least);
	return EXIT_OK;
}

int top_run(struct cli *cli)
{
	double interval = 2, count = 0;

	if (number_option(cli, "--interval", cli->interval, 0.1, &interval) != EXIT_OK ||
		number_option(cli, "--count", cli->count, 1, &count) != EXIT_OK)
		return EXIT_USAGE;
	struct timespec pause = {(time_t)interval, (long)((interval - (double)(time_t)interval) * 1e9)};
	json_t *before = traffic_ask(cli);
	for (double done = 0; before && (!count || done < count); done++) {
		nanosleep(&pause, NULL);
		json_t *now = traffic_ask(cli), *r = now ? rates(now, before) : NULL;
		json_decref(before);
		before = now;
		if (!r)
			break;
		if (cli->json) {
			json_dumpf(r, stdout, JSON_COMPACT);
			putchar('\n');
		} else {
			if (isatty(STDOUT_FILENO))
				fputs("\033[H\033[J", stdout); /* in place of what was there */
			show_top(r);
		}
		json_decref(r);
		if (fflush(stdout) != 0)
			break;
	}
	int status = before ? EXIT_OK : EXIT_FAILED;
	json_decref(before);
	return status;
}
