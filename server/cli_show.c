/*
 * What the tool prints: JSON as it came, or tables whose columns are as wide as what stands in them. Text from drives
 * and peers is shown with its control characters replaced, so that nobody can write to the administrator's terminal.
 */
#include "server/cli_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *json_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

uint64_t json_number(const json_t *object, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(object, key));
}

static bool json_flag(const json_t *object, const char *key)
{
	return json_is_true(json_object_get(object, key));
}

/* ------------------------------------------------------------------------------------------------
 * Tables
 */

static void table_cell(struct table *table, unsigned column, char *text)
{
	if (column == 0) {
		char **grown = realloc(table->cell, (size_t)(table->rows + 1) * table->columns * sizeof(*grown));
		if (!grown)
			abort();
		table->cell = grown;
		memset(&grown[(size_t)table->rows * table->columns], 0, table->columns * sizeof(*grown));
		table->rows++;
	}
	for (char *p = text; p && *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	char **cell = &table->cell[(size_t)(table->rows - 1) * table->columns + column];
	free(*cell);
	*cell = text;
}

/* Column 0 begins a row. */
void table_add(struct table *table, unsigned column, const char *format, ...)
{
	va_list args;
	char *text = NULL;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		text = NULL;
	va_end(args);
	table_cell(table, column, text);
}

void table_add_bytes(struct table *table, unsigned column, uint64_t bytes)
{
	char text[16];

	size_format(bytes, text);
	table_cell(table, column, strdup(text));
}

void table_add_time(struct table *table, unsigned column, uint64_t ns)
{
	if (ns < 10000)
		table_add(table, column, "%.1f us", (double)ns / 1e3);
	else if (ns < 10000000)
		table_add(table, column, "%.0f us", (double)ns / 1e3);
	else
		table_add(table, column, "%.0f ms", (double)ns / 1e6);
}

void table_init(struct table *table, unsigned columns, uint32_t right, const char *const *heading)
{
	*table = (struct table){.columns = columns, .right = right};
	for (unsigned c = 0; heading && c < columns; c++)
		table_cell(table, c, strdup(heading[c]));
}

void table_print(struct table *table, FILE *out)
{
	for (unsigned r = 0; r < table->rows; r++) {
		for (unsigned c = 0; c < table->columns; c++) {
			int width = 0;
			for (unsigned i = 0; i < table->rows; i++) {
				const char *other = table->cell[(size_t)i * table->columns + c];
				int length = other ? (int)strlen(other) : 0;
				width = length > width ? length : width;
			}
			const char *text = table->cell[(size_t)r * table->columns + c];
			bool last = c + 1 == table->columns;
			if (table->right & (1u << c))
				fprintf(out, "%*s", width, text ? text : "");
			else
				fprintf(out, "%-*s", last ? 0 : width, text ? text : "");
			fputs(last ? "\n" : "  ", out);
		}
	}
	for (size_t i = 0; i < (size_t)table->rows * table->columns; i++)
		free(table->cell[i]);
	free(table->cell);
	*table = (struct table){0};
}

void show_json(const json_t *result)
{
	json_dumpf(result, stdout, JSON_INDENT(2));
	putchar('\n');
}

void show_problems(const json_t *result)
{
	const json_t *problems = json_object_get(result, "problems");

	fflush(stdout);
	for (size_t i = 0; i < json_array_size(problems); i++)
		fprintf(stderr, "furrow: %s\n", json_string_value(json_array_get(problems, i)));
}

/* ------------------------------------------------------------------------------------------------
 * Lists
 */

void show_drives(const json_t *list, FILE *out)
{
	static const char *const heading[] = {"DRIVE", "KIND", "SIZE", "MODEL", "SERIAL", "HOLDS"};
	struct table table;

	if (!json_array_size(list)) {
		fprintf(out, "no drives\n");
		return;
	}
	table_init(&table, 6, 1u << 2, heading);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *drive = json_array_get(list, i);
		const char *content = json_text(drive, "content"), *holds = json_text(drive, "holds");
		table_add(&table, 0, "%s", json_text(drive, "path"));
		table_add(&table, 1, "%s", json_text(drive, "kind"));
		table_add_bytes(&table, 2, json_number(drive, "bytes"));
		table_add(&table, 3, "%s", json_text(drive, "model"));
		table_add(&table, 4, "%s", json_text(drive, "serial"));
		table_add(&table, 5, "%s%s", holds[0] ? holds : content, json_flag(drive, "in_use") ? " (in use)" : "");
	}
	table_print(&table, out);
}

static void strings_join(const json_t *list, char *text, size_t room)
{
	text[0] = 0;
	for (size_t i = 0; i < json_array_size(list); i++)
		snprintf(text + strlen(text), room - strlen(text), "%s%s", i ? ", " : "",
			json_string_value(json_array_get(list, i)));
}

void show_arrays(const json_t *list, FILE *out)
{
	static const char *const heading[] = {"ARRAY", "STATE", "LEVEL", "DRIVES", "DATA", "FREE", "FILE SYSTEMS"};
	struct table table;

	if (!json_array_size(list)) {
		fprintf(out, "no arrays\n");
		return;
	}
	table_init(&table, 7, 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5, heading);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *array = json_array_get(list, i);
		char names[300];
		bool known = json_object_get(array, "level") != NULL;
		strings_join(json_object_get(array, "filesystems"), names, sizeof(names));
		table_add(&table, 0, "%s", json_text(array, "name"));
		table_add(&table, 1, "%s", json_text(array, "state"));
		if (known)
			table_add(&table, 2, "%llu", (unsigned long long)json_number(array, "level"));
		table_add(&table, 3, "%zu", json_array_size(json_object_get(array, "members")));
		if (known) {
			table_add_bytes(&table, 4, json_number(array, "data_bytes"));
			table_add_bytes(&table, 5, json_number(array, "free_bytes"));
		}
		table_add(&table, 6, "%s", names);
	}
	table_print(&table, out);
}

void show_array_members(const json_t *array, FILE *out)
{
	static const char *const heading[] = {"SLOT", "STATE", "DRIVE", "SIZE", "MODEL", "SERIAL", "READ ERR",
		"WRITE ERR", "CHECKSUM ERR", "TIMEOUTS"};
	const json_t *members = json_object_get(array, "members");
	char names[300], data[16], available[16], strip[16], groups[24] = "";
	struct table table;

	strings_join(json_object_get(array, "filesystems"), names, sizeof(names));
	size_format(json_number(array, "data_bytes"), data);
	size_format(json_number(array, "free_bytes"), available);
	size_format(json_number(array, "strip_bytes"), strip);
	if (json_number(array, "groups") > 1)
		snprintf(groups, sizeof(groups), "%llu x ", (unsigned long long)json_number(array, "groups"));
	if (json_object_get(array, "level"))
		fprintf(out, "array %s: %s, level %llu, %s%llu+%llu, strip %s, %s of data, %s free\n",
			json_text(array, "name"), json_text(array, "state"),
			(unsigned long long)json_number(array, "level"), groups,
			(unsigned long long)json_number(array, "k"), (unsigned long long)json_number(array, "m"), strip,
			data, available);
	else
		fprintf(out, "array %s: %s\n", json_text(array, "name"), json_text(array, "state"));
	if (json_text(array, "problem")[0])
		fprintf(out, "problem: %s\n", json_text(array, "problem"));
	if (names[0])
		fprintf(out, "file systems: %s\n", names);
	show_array_work(array, out);
	table_init(&table, 10, 1u << 0 | 1u << 3 | 0xfu << 6, heading);
	for (size_t i = 0; i < json_array_size(members); i++) {
		const json_t *m = json_array_get(members, i);
		const char *path = json_text(m, "path");
		table_add(&table, 0, "%llu", (unsigned long long)json_number(m, "slot"));
		table_add(&table, 1, "%s%s", json_text(m, "state"), json_flag(m, "slow") ? " (slow)" : "");
		table_add(&table, 2, "%s", path[0] ? path : "-");
		table_add_bytes(&table, 3, json_number(m, "bytes"));
		table_add(&table, 4, "%s", json_text(m, "model"));
		table_add(&table, 5, "%s", json_text(m, "serial"));
		table_add(&table, 6, "%llu", (unsigned long long)json_number(m, "read_errors"));
		table_add(&table, 7, "%llu", (unsigned long long)json_number(m, "write_errors"));
		table_add(&table, 8, "%llu", (unsigned long long)json_number(m, "checksum_errors"));
		table_add(&table, 9, "%llu", (unsigned long long)json_number(m, "timeouts"));
	}
	table_print(&table, out);
}

void show_filesystems(const json_t *list, FILE *out)
{
	static const char *const heading[] = {"FILE SYSTEM", "STATE", "SIZE", "USED", "AVAILABLE", "USE", "EXPORTS"};
	struct table table;

	if (!json_array_size(list)) {
		fprintf(out, "no file systems\n");
		return;
	}
	table_init(&table, 7, 0xfu << 2, heading);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *fs = json_array_get(list, i);
		uint64_t total = json_number(fs, "bytes_total"), used = total - json_number(fs, "bytes_free");
		char names[600];
		strings_join(json_object_get(fs, "exports"), names, sizeof(names));
		table_add(&table, 0, "%s", json_text(fs, "name"));
		table_add(&table, 1, "%s",
			json_flag(fs, "mounted")      ? (json_flag(fs, "read_only") ? "read-only" : "mounted")
			: json_text(fs, "problem")[0] ? "failed"
						      : "not mounted");
		if (json_object_get(fs, "bytes_total")) {
			table_add_bytes(&table, 2, total);
			table_add_bytes(&table, 3, used);
			table_add_bytes(&table, 4, json_number(fs, "bytes_available"));
			table_add(&table, 5, "%u %%", total ? (unsigned)((double)used * 100 / (double)total + 0.5) : 0);
		} else {
			table_add_bytes(&table, 2, json_number(fs, "volume_bytes"));
		}
		table_add(&table, 6, "%s", json_text(fs, "problem")[0] ? json_text(fs, "problem") : names);
	}
	table_print(&table, out);
}

void show_filesystem_details(const json_t *fs, FILE *out)
{
	static const struct {
		const char *key, *label;
		bool bytes;
	} row[] = {
		{"bytes_total", "size", true},
		{"bytes_free", "free", true},
		{"bytes_available", "available", true},
		{"volume_bytes", "volume", true},
		{"inodes", "inodes", false},
		{"files_free", "inodes free", false},
		{"stripes_total", "stripes", false},
		{"stripes_free", "stripes free", false},
		{"transactions", "transactions", false},
		{"checkpoints", "checkpoints", false},
		{"log_used_bytes", "log used", true},
		{"log_capacity_bytes", "log size", true},
		{"log_bytes", "log written", true},
		{"dirty_bytes", "dirty data", true},
		{"cached_inodes", "cached inodes", false},
		{"cached_nodes", "cached nodes", false},
		{"dirty_nodes", "dirty nodes", false},
		{"cache_bytes", "cached data", true},
		{"cache_limit_bytes", "cached data, most", true},
		{"cache_hits", "blocks read from memory", false},
		{"cache_misses", "blocks read from drives", false},
		{"read_ahead_blocks", "blocks read ahead", false},
		{"replayed", "replayed at mount", false},
		{"checksum_errors", "checksum errors", false},
		{"checksum_repairs", "repaired", false},
	};
	char names[600];
	struct table table;

	strings_join(json_object_get(fs, "exports"), names, sizeof(names));
	fprintf(out, "file system %s: %s%s%s\n", json_text(fs, "name"),
		json_flag(fs, "mounted") ? (json_flag(fs, "read_only") ? "mounted read-only" : "mounted")
					 : "not mounted",
		names[0] ? ", exported as " : "", names);
	if (json_text(fs, "problem")[0])
		fprintf(out, "problem: %s\n", json_text(fs, "problem"));
	table_init(&table, 2, 1u << 1, NULL);
	for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
		if (!json_object_get(fs, row[i].key))
			continue;
		table_add(&table, 0, "%s", row[i].label);
		if (row[i].bytes)
			table_add_bytes(&table, 1, json_number(fs, row[i].key));
		else
			table_add(&table, 1, "%llu", (unsigned long long)json_number(fs, row[i].key));
	}
	table_print(&table, out);
}

/* ------------------------------------------------------------------------------------------------
 * All at a glance
 */

static void duration_format(uint64_t seconds, char text[32])
{
	if (seconds < 120)
		snprintf(text, 32, "%u s", (unsigned)seconds);
	else if (seconds < 7200)
		snprintf(text, 32, "%u min", (unsigned)(seconds / 60));
	else if (seconds < 2 * 86400)
		snprintf(text, 32, "%u h %u min", (unsigned)(seconds / 3600), (unsigned)(seconds / 60 % 60));
	else
		snprintf(text, 32, "%u days %u h", (unsigned)(seconds / 86400 % 1000000),
			(unsigned)(seconds / 3600 % 24));
}

static void show_server(const json_t *server, FILE *out)
{
	char uptime[32], in[16], to[16], arena[16], arena_free[16], listen[300];

	if (!json_is_object(server)) {
		fprintf(out, "server      not running\n");
		return;
	}
	duration_format(json_number(server, "uptime_seconds"), uptime);
	size_format(json_number(server, "bytes_in"), in);
	size_format(json_number(server, "bytes_out"), to);
	size_format(json_number(server, "arena_bytes"), arena);
	size_format(json_number(server, "arena_free_bytes"), arena_free);
	strings_join(json_object_get(server, "listen"), listen, sizeof(listen));
	fprintf(out, "server      Furrow %s, up %s, process %llu, %llu reactors\n", json_text(server, "version"),
		uptime, (unsigned long long)json_number(server, "pid"),
		(unsigned long long)json_number(server, "reactors"));
	fprintf(out, "listening   %s:", listen);
	if (json_number(server, "nfs_port"))
		fprintf(out, " TCP port %llu%s", (unsigned long long)json_number(server, "nfs_port"),
			json_number(server, "rdma_port") ? "," : "");
	if (json_number(server, "rdma_port"))
		fprintf(out, " RDMA port %llu%s", (unsigned long long)json_number(server, "rdma_port"),
			json_flag(server, "rdma") ? "" : " (no device)");
	fprintf(out, "%s\n", json_flag(server, "rpcbind") ? ", registered with rpcbind" : "");
	fprintf(out, "clients     %llu over TCP, %llu over RDMA\n",
		(unsigned long long)json_number(server, "tcp_connections"),
		(unsigned long long)json_number(server, "rdma_connections"));
	fprintf(out, "calls       %llu; %s in, %s out; %llu retransmissions answered from the cache, %llu bad calls\n",
		(unsigned long long)json_number(server, "requests"), in, to,
		(unsigned long long)json_number(server, "cache_hits"),
		(unsigned long long)json_number(server, "bad_calls"));
	fprintf(out, "arena       %s, %s free\n", arena, arena_free);
}

static void show_exports(const json_t *list, FILE *out)
{
	static const char *const heading[] = {"EXPORT", "FILE SYSTEM", "CLIENTS", "ACCESS", "SQUASH"};
	struct table table;

	if (!json_array_size(list))
		return;
	table_init(&table, 5, 0, heading);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *export = json_array_get(list, i), *allow = json_object_get(export, "allow");
		for (size_t a = 0; a < json_array_size(allow); a++) {
			const json_t *rule = json_array_get(allow, a);
			char clients[300];
			strings_join(json_object_get(rule, "clients"), clients, sizeof(clients));
			table_add(&table, 0, "%s", a ? "" : json_text(export, "path"));
			table_add(&table, 1, "%s", a ? "" : json_text(export, "filesystem"));
			table_add(&table, 2, "%s", clients);
			table_add(&table, 3, "%s", json_text(rule, "access"));
			table_add(&table, 4, "%s", json_text(rule, "squash"));
		}
	}
	fputc('\n', out);
	table_print(&table, out);
}

static void show_connections(const json_t *list, FILE *out)
{
	static const char *const heading[] = {"CLIENT", "TRANSPORT", "SINCE", "CALLS", "IN", "OUT", "REACTOR"};
	struct table table;

	if (!json_array_size(list))
		return;
	table_init(&table, 7, 0x1fu << 2, heading);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *c = json_array_get(list, i);
		char since[32];
		duration_format(json_number(c, "seconds"), since);
		table_add(&table, 0, "%s", json_text(c, "peer"));
		table_add(&table, 1, "%s", json_text(c, "transport"));
		table_add(&table, 2, "%s", since);
		table_add(&table, 3, "%llu", (unsigned long long)json_number(c, "calls"));
		table_add_bytes(&table, 4, json_number(c, "bytes_in"));
		table_add_bytes(&table, 5, json_number(c, "bytes_out"));
		table_add(&table, 6, "%llu", (unsigned long long)json_number(c, "reactor"));
	}
	fputc('\n', out);
	table_print(&table, out);
}

static void show_operations(const json_t *list, FILE *out)
{
	static const char *const heading[] = {"OPERATION", "PROGRAM", "CALLS", "MEDIAN", "99 %", "SLOWEST"};
	struct table table;

	if (!json_array_size(list))
		return;
	table_init(&table, 6, 0xfu << 2, heading);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *op = json_array_get(list, i);
		table_add(&table, 0, "%s", json_text(op, "procedure"));
		table_add(&table, 1, "%s", json_text(op, "program"));
		table_add(&table, 2, "%llu", (unsigned long long)json_number(op, "calls"));
		table_add_time(&table, 3, json_number(op, "p50_ns"));
		table_add_time(&table, 4, json_number(op, "p99_ns"));
		table_add_time(&table, 5, json_number(op, "max_ns"));
	}
	fputc('\n', out);
	table_print(&table, out);
}

void show_status(const json_t *status, FILE *out)
{
	show_server(json_object_get(status, "server"), out);
	fputc('\n', out);
	show_arrays(json_object_get(status, "arrays"), out);
	fputc('\n', out);
	show_filesystems(json_object_get(status, "filesystems"), out);
	show_exports(json_object_get(status, "exports"), out);
	show_connections(json_object_get(status, "connections"), out);
	show_operations(json_object_get(status, "operations"), out);
}
