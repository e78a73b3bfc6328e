/*
 * furrow clients, furrow top and the metrics page against the load that made them: a furrowd process, a client that
 * knows to the byte what it asked for.
 */
#include "tests/server/furrowd_run.h"

#include <jansson.h>

static struct run run;
static struct client client;
static struct kept top, file;
static uint64_t reads, read_bytes, writes, written_bytes; /* what was done */

static void do_write(uint64_t off, uint32_t count)
{
	WRITE3args args = {
		.file = fh(&file), .offset = off, .count = count, .stable = UNSTABLE, .data = {.len = count}};
	WRITE3res res;
	struct xdr_out *o = client_begin(&client, NFS_PROGRAM, NFS_V3, NFSPROC3_WRITE);

	assert_true(xdr_encode_WRITE3args(o, &args));
	memset(o->p, 'w', xdr_round(count));
	memset(o->p + count, 0, xdr_round(count) - count);
	o->p += xdr_round(count);
	client_call(&client);
	client_result(&client, WRITE3res, &res);
	assert_int_equal(res.status, NFS3_OK);
	writes++;
	written_bytes += count;
}

static void do_read(uint64_t off, uint32_t count)
{
	READ3args args = {.file = fh(&file), .offset = off, .count = count};
	READ3res res;

	nfs3(&client, READ, &args, &res);
	assert_int_equal(res.status, NFS3_OK);
	reads++;
	read_bytes += res.resok.count;
}

static void do_some(unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		do_write(i * 5003, 1 + i * 997 % 60000);
		do_read(i * 1009, 1 + i * 911 % 70000);
		if (i % 3 == 0)
			do_read(i * 7919, 4096);
	}
}

static json_t *furrow(const char *line)
{
	FILE *f = run_tool_open(&run, line);
	json_t *result = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);

	assert_int_equal(pclose(f), 0);
	assert_non_null(result);
	return result;
}

static uint64_t number(const json_t *object, const char *key)
{
	const json_t *v = json_object_get(object, key);

	if (!json_is_integer(v))
		fail_msg("there is no number \"%s\"", key);
	return (uint64_t)json_integer_value(v);
}

static void check_io(const json_t *io, uint64_t count, uint64_t bytes)
{
	assert_int_equal(number(io, "count"), count);
	assert_int_equal(number(io, "bytes"), bytes);
	assert_true(number(io, "p50_ns") > 0 && number(io, "p50_ns") <= number(io, "p99_ns"));
	assert_true(number(io, "p99_ns") <= number(io, "max_ns"));
	assert_in_range(number(io, "sum_ns"), number(io, "max_ns"), number(io, "max_ns") * count);
}

static void clients(void **state)
{
	(void)state;
	do_some(60);
	client_connect(&client); /* what an ended connection did still counts */
	do_some(30);
	json_t *result = furrow("clients --json");
	const json_t *list = json_object_get(result, "clients"), *c = json_array_get(list, 0);
	assert_int_equal(json_array_size(list), 1);
	assert_string_equal(json_string_value(json_object_get(c, "client")), "127.0.0.1");
	check_io(json_object_get(c, "read"), reads, read_bytes);
	check_io(json_object_get(c, "write"), writes, written_bytes);
	assert_int_equal(number(c, "calls"), reads + writes + 2); /* MNT and CREATE */
	assert_int_equal(number(c, "repeats"), 0);
	assert_true(number(c, "bytes_in") > written_bytes && number(c, "bytes_out") > read_bytes);
	assert_in_range(number(c, "tcp_connections"), 1, 2);

	/* the connection that is open did the second part of it */
	list = json_object_get(result, "connections");
	c = json_array_get(list, json_array_size(list) - 1);
	assert_in_range(number(c, "reads"), 1, reads - 1);
	assert_in_range(number(c, "writes"), 1, writes - 1);
	json_decref(result);
}

/* A CREATE that comes twice is a repetition. */
static void repeats(void **state)
{
	CREATE3args args = {.where = {.dir = fh(&top), .name = text("twice")}, .how = {.mode = GUARDED}};
	CREATE3res res;

	(void)state;
	nfs3(&client, CREATE, &args, &res);
	assert_int_equal(res.status, NFS3_OK);
	client_call(&client);
	client_result(&client, CREATE3res, &res);
	assert_int_equal(res.status, NFS3_OK);
	json_t *result = furrow("clients --json");
	assert_int_equal(number(json_array_get(json_object_get(result, "clients"), 0), "repeats"), 1);
	json_decref(result);
}

static void page_has(const char *page, const char *sample, uint64_t value)
{
	char line[300];

	snprintf(line, sizeof(line), "\n%s %llu\n", sample, (unsigned long long)value);
	if (!strstr(page, line))
		fail_msg("the metrics page lacks:%s", line);
}

static const char *page_get(void)
{
	static char page[1 << 20];
	struct client c = {.fd = -1, .port = run.metrics_port};
	static const char get[] = "GET /metrics HTTP/1.0\r\n\r\n";
	size_t n = 0;
	ssize_t some;

	assert_true(client_connect(&c));
	assert_int_equal(send(c.fd, get, strlen(get), 0), strlen(get));
	while (n < sizeof(page) - 1 && (some = recv(c.fd, page + n, sizeof(page) - 1 - n, 0)) > 0)
		n += (size_t)some;
	page[n] = 0;
	close(c.fd);
	return page;
}

static void page_has_all(const char *page)
{
	page_has(page, "furrow_rpc_io_total{io=\"read\"}", reads);
	page_has(page, "furrow_rpc_io_total{io=\"write\"}", writes);
	page_has(page, "furrow_rpc_io_bytes_total{io=\"read\"}", read_bytes);
	page_has(page, "furrow_rpc_io_bytes_total{io=\"write\"}", written_bytes);
	page_has(page, "furrow_rpc_io_seconds_count{io=\"read\"}", reads);
	page_has(page, "furrow_rpc_io_seconds_bucket{io=\"read\",le=\"+Inf\"}", reads);
}

static void metrics_page(void **state)
{
	const char *page = page_get();

	(void)state;
	page_has_all(page);
	page_has(page, "furrow_client_io_total{client=\"127.0.0.1\",io=\"read\"}", reads);
	page_has(page, "furrow_client_io_bytes_total{client=\"127.0.0.1\",io=\"write\"}", written_bytes);
	page_has(page, "furrow_client_repeats_total{client=\"127.0.0.1\"}", 1);
}

/* What top tells of three intervals is not more than was done, and not nothing; its rates are made of it. */
static void rates(void **state)
{
	(void)state;
	uint64_t before = reads, seen = 0;
	FILE *f = run_tool_open(&run, "top --json --interval 0.5 --count 3");
	int fd = fileno(f);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	char text[1 << 16];
	size_t n = 0;
	for (;;) { /* load until top is done */
		ssize_t some = read(fd, text + n, sizeof(text) - 1 - n);
		if (some == 0)
			break;
		n += some > 0 ? (size_t)some : 0;
		do_some(1);
	}
	text[n] = 0;
	assert_int_equal(pclose(f), 0);
	unsigned lines = 0;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
		json_t *r = json_loads(line, 0, NULL);
		assert_non_null(r);
		double seconds = json_real_value(json_object_get(r, "seconds"));
		const json_t *c = json_array_get(json_object_get(r, "clients"), 0), *io = json_object_get(c, "read");
		double rate = json_real_value(json_object_get(io, "per_second")) * seconds;
		assert_true(seconds >= 0.5);
		assert_true(rate > (double)number(io, "count") - 0.5 && rate < (double)number(io, "count") + 0.5);
		seen += number(io, "count");
		json_decref(r);
	}
	assert_int_equal(lines, 3);
	assert_in_range(seen, 1, reads - before);
}

/* The tables hold the client, and a mistake in the command line is one. */
static void tables(void **state)
{
	char text[4096];
	size_t n;

	(void)state;
	FILE *f = run_tool_open(&run, "clients");
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	assert_int_equal(pclose(f), 0);
	assert_true(strstr(text, "CLIENT") && strstr(text, "127.0.0.1"));
	f = run_tool_open(&run, "top --interval 0.1 --count 1");
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	assert_int_equal(pclose(f), 0);
	assert_true(strstr(text, "WRITES/S"));
	f = run_tool_open(&run, "top --interval 0 2>/dev/null");
	assert_int_equal(WEXITSTATUS(pclose(f)), 2);
	f = run_tool_open(&run, "top --count x 2>/dev/null");
	assert_int_equal(WEXITSTATUS(pclose(f)), 2);
}

/* Of hundreds of clients that came and went only the last ones are known; what the others did still counts in all. */
static void forgotten(void **state)
{
	char from[32];
	struct client other = {.fd = -1, .port = run.port, .from = from};
	const char *page = page_get();

	(void)state;
	assert_true(strstr(page, "client=\"127.0.0.1\""));
	close(client.fd);
	client.fd = -1;
	for (unsigned i = 0; i < 400; i++) {
		snprintf(from, sizeof(from), "127.0.%u.%u", 1 + i / 200, 1 + i % 200);
		assert_true(client_connect(&other));
	}
	close(other.fd);
	for (unsigned i = 0; i < 200 && strstr(page = page_get(), "client=\"127.0.0.1\""); i++)
		usleep(100000);
	assert_null(strstr(page, "client=\"127.0.0.1\""));
	page_has_all(page);
}

static int setup(void **state)
{
	CREATE3args args = {.how = {.mode = GUARDED}};
	CREATE3res res;
	mountstat3 status;

	(void)state;
	run_init(&run, RUN_EXPORT_YAML);
	run.metrics_port = run_free_port();
	run_write_config(&run, RUN_EXPORT_YAML);
	run_start(&run);
	client_init(&client, run.port, 0);
	assert_true(client_connect(&client));
	top = client_mount(&client, "/data", &status);
	assert_int_equal(status, MNT3_OK);
	args.where = (diropargs3){.dir = fh(&top), .name = text("file")};
	nfs3(&client, CREATE, &args, &res);
	assert_int_equal(res.status, NFS3_OK);
	file = keep(&res.resok.obj.handle);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	client_fini(&client);
	run_stop(&run, SIGTERM);
	run_fini(&run);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clients),
		cmocka_unit_test(repeats),
		cmocka_unit_test(metrics_page),
		cmocka_unit_test(rates),
		cmocka_unit_test(tables),
		cmocka_unit_test(forgotten),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
