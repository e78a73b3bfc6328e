/* The configuration: what is understood, and for every mistake the exact place and a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/server_internal.h"

static char file[64];

static int load(const char *text, size_t length, struct config **config, struct error *err)
{
	strcpy(file, "/tmp/furrow-config-XXXXXX");
	int fd = mkstemp(file);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, length), (ssize_t)length);
	close(fd);
	*config = NULL;
	memset(err, 0, sizeof(*err));
	int rc = config_load(file, config, err);
	unlink(file);
	return rc;
}

static void test_full(void **state)
{
	static const char text[] = "# everything there is\n"
				   "server:\n"
				   "  listen: [\"0.0.0.0\", \"::\"]\n"
				   "  nfs_port: 2050\n"
				   "  rdma_port: off\n"
				   "  dscp: 26\n"
				   "  rdma_timeout: 18\n"
				   "  rdma_retry_count: 5\n"
				   "  cores: 3\n"
				   "  memory: 1.5GiB\n"
				   "  control: /run/x/control.sock\n"
				   "  hook: /usr/local/bin/pager\n"
				   "  lease: 20\n"
				   "  owners: names\n"
				   "  owner_domain: example.org\n"
				   "  metrics: \"[::1]:9999\"\n"
				   "drives: [\"/dev/ng*n1\", /srv/d0.img]\n"
				   "exports:\n"
				   "  - path: /data\n"
				   "    filesystem: a0/data\n"
				   "    allow:\n"
				   "      - {clients: 10.0.0.0/8, access: rw, squash: none, sec: [sys, none]}\n"
				   "      - clients: [192.168.1.7, \"fd00::/8\", \"*\", n7.example, \"@lab\"]\n"
				   "        squash: all\n"
				   "        groups: server\n"
				   "        anonuid: 1000\n"
				   "        anongid: 4294967294\n"
				   "  - {path: /, filesystem: a0/root, allow: {clients: \"*\"}}\n";
	struct config *config;
	struct error err;
	struct in6_addr net;

	(void)state;
	if (load(text, strlen(text), &config, &err) != 0)
		fail_msg("%s", err.text);
	assert_int_equal(config->listen_count, 2);
	assert_string_equal(config->listen[1], "::");
	assert_int_equal(config->nfs_port, 2050);
	assert_int_equal(config->rdma_port, 0);
	assert_true(config->network.dscp_given);
	assert_int_equal(config->network.dscp, 26);
	assert_int_equal(config->network.rdma_timeout, 18);
	assert_int_equal(config->network.rdma_retry_count, 5);
	assert_int_equal(config->cores, 3);
	assert_int_equal(config->memory, 3ull << 29);
	assert_string_equal(config->control, "/run/x/control.sock");
	assert_string_equal(config->hook, "/usr/local/bin/pager");
	assert_int_equal(config->lease, 20);
	assert_true(config->owner_names);
	assert_string_equal(config->owner_domain, "example.org");
	assert_string_equal(config->metrics_address, "::1");
	assert_int_equal(config->metrics_port, 9999);
	assert_int_equal(config->drive_count, 2);
	assert_string_equal(config->drives[1], "/srv/d0.img");
	assert_int_equal(config->export_count, 2);

	const struct config_export *e = &config->exports[0];
	assert_string_equal(e->path, "/data");
	assert_string_equal(e->filesystem, "a0/data");
	assert_int_equal(e->line, 19);
	assert_int_equal(e->allow_count, 2);
	assert_true(e->allow[0].write);
	assert_int_equal(e->allow[0].squash, SQUASH_NONE);
	assert_true(e->allow[0].sec_sys && e->allow[0].sec_none);
	assert_int_equal(e->allow[0].anonuid, 65534);
	assert_int_equal(e->allow[0].clients[0].prefix, 96 + 8);
	assert_string_equal(e->allow[0].clients[0].text, "10.0.0.0/8");
	inet_pton(AF_INET6, "::ffff:10.0.0.0", &net);
	assert_memory_equal(&e->allow[0].clients[0].net, &net, sizeof(net));
	assert_int_equal(e->allow[1].client_count, 5);
	assert_int_equal(e->allow[1].clients[2].kind, CLIENTS_NET);
	assert_int_equal(e->allow[1].clients[3].kind, CLIENTS_HOST);
	assert_int_equal(e->allow[1].clients[4].kind, CLIENTS_NETGROUP);
	assert_int_equal(e->allow[1].clients[0].prefix, 128);
	assert_int_equal(e->allow[1].clients[1].prefix, 8);
	assert_int_equal(e->allow[1].clients[2].prefix, 0);
	assert_false(e->allow[1].write); /* what is not said is read-only */
	assert_int_equal(e->allow[1].squash, SQUASH_ALL);
	assert_true(e->allow[1].server_groups && !e->allow[0].server_groups);
	assert_int_equal(e->allow[1].anonuid, 1000);
	assert_int_equal(e->allow[1].anongid, 4294967294u);
	assert_true(e->allow[1].sec_sys);
	assert_false(e->allow[1].sec_none);
	assert_int_equal(config->exports[1].allow[0].squash, SQUASH_ROOT);
	config_free(config);
}

static void test_defaults(void **state)
{
	static const char text[] = "server: {}\n";
	struct config *config;
	struct core_config core;
	struct error err;

	(void)state;
	assert_int_equal(load(text, strlen(text), &config, &err), 0);
	assert_int_equal(config->listen_count, 2);
	assert_int_equal(config->nfs_port, 2049);
	assert_int_equal(config->rdma_port, 20049);
	assert_false(config->network.dscp_given);
	assert_int_equal(config->network.rdma_timeout, 0);
	assert_int_equal(config->network.rdma_retry_count, 0);
	assert_int_equal(config->cores, 0);
	assert_int_equal(config->memory, 0);
	assert_string_equal(config->control, CONTROL_DEFAULT_PATH);
	assert_string_equal(config->metrics_address, "127.0.0.1");
	assert_int_equal(config->metrics_port, 9750);
	assert_int_equal(config->drive_count, 1);
	assert_string_equal(config->drives[0], "/dev/ng*n1");

	config_core(config, &core);
	assert_true(core.reactors >= 1);
	assert_true(core.arena_bytes >= 32u << 20);
	assert_int_equal(core.arena_bytes % ARENA_PIECE, 0);
	/* A size is a hard limit: its parts must fit into it together. */
	config->memory = 1ull << 30;
	config->cores = 4;
	config_core(config, &core);
	assert_int_equal(core.reactors, 4);
	/* caches are in the arena, with room beside them for payload and dirty data; inodes come on top of it */
	assert_true(config_cache_bytes(config) <= core.arena_bytes / 2);
	assert_true(
		core.arena_bytes + config_cache_bytes(config) / 4 + (uint64_t)core.reactors * core.fibers * 64 * 1024 <=
		config->memory * 15 / 16);
	config_free(config);
}

#define EXPORT "exports:\n  - path: /a\n    filesystem: a/b\n    allow:\n"

static const struct bad {
	const char *text;
	unsigned line, column;
	const char *says;
} bad[] = {
	/* the document */
	{"", 1, 1, "empty"},
	{"# nothing\n", 1, 1, "empty"},
	{"just words\n", 1, 1, "expected a section"},
	{"- a\n- b\n", 1, 1, "expected a section"},
	{"server: {}\n---\nserver: {}\n", 2, 1, "second document"},
	{"server: [\n", 2, 1, "expected valid YAML"},
	{"server:\n\tlisten: x\n", 2, 1, "expected valid YAML"},
	{"server: {}\nport: 3\n", 2, 1,
		"unknown key \"port\" in the configuration; expected one of: server, drives, exports"},
	{"server: {}\ndrives: [/a]\nserver: {}\n", 3, 1, "stands twice"},
	{"server:\n", 1, 8, "expected a section"},
	{"server: {listen: \"\\0\"}\n", 1, 18, "NUL"},
	{"? [a]\n: b\n", 1, 3, "expected a name"},
	/* server */
	{"server:\n  nfs_prot: 1\n", 2, 3, "unknown key \"nfs_prot\" in server"},
	{"server:\n  nfs_port: 0\n", 2, 13, "expected a port from 1 to 65535, or off"},
	{"server:\n  nfs_port: 65536\n", 2, 13, "expected a port"},
	{"server:\n  nfs_port: -1\n", 2, 13, "expected a port"},
	{"server:\n  nfs_port: 20 49\n", 2, 13, "expected a port"},
	{"server:\n  nfs_port: 99999999999999999999999999\n", 2, 13, "expected a port"},
	{"server:\n  nfs_port: [2049]\n", 2, 13, "this is a list; expected a port"},
	{"server:\n  nfs_port:\n", 2, 12, "empty"},
	{"server:\n  nfs_port: ~\n", 2, 13, "empty"},
	{"server:\n  nfs_port: off\n  rdma_port: off\n", 2, 3, "both off"},
	{"server:\n  listen: localhost\n", 2, 11, "\"localhost\" is not an address"},
	{"server:\n  listen: [\"::\", 10.0.0.256]\n", 2, 18, "not an address"},
	{"server:\n  listen: [\"::\", \"0::0\"]\n", 2, 18, "twice"},
	{"server:\n  listen: []\n", 2, 11, "empty"},
	{"server:\n  listen: {a: b}\n", 2, 11, "a section of keys; expected a numeric"},
	{"server:\n  dscp: 64\n", 2, 9, "expected a DSCP from 0 to 63"},
	{"server:\n  dscp: AF31\n", 2, 9, "\"AF31\" is not valid; expected a DSCP"},
	{"server:\n  rdma_timeout: 0\n", 2, 17, "expected an exponent from 1 to 31"},
	{"server:\n  rdma_timeout: 32\n", 2, 17, "expected an exponent"},
	{"server:\n  rdma_timeout: 100ms\n", 2, 17, "expected an exponent"},
	{"server:\n  rdma_retry_count: 8\n", 2, 21, "expected a number from 1 to 7"},
	{"server:\n  rdma_retry_count: 0\n", 2, 21, "expected a number"},
	{"server:\n  cores: 0\n", 2, 10, "expected auto, or a number from 1 to 64"},
	{"server:\n  cores: 65\n", 2, 10, "expected auto"},
	{"server:\n  cores: many\n", 2, 10, "expected auto"},
	{"server:\n  memory: 8GB\n", 2, 11, "\"8GB\" is not a size"},
	{"server:\n  memory: 1MiB\n", 2, 11, "at least 128MiB"},
	{"server:\n  control: run/x\n", 2, 12, "absolute path"},
	{"server:\n  hook: pager\n", 2, 9, "absolute path"},
	{"server:\n  hook: [a]\n", 2, 9, "absolute path"},
	{"server:\n  control: "
	 "/12345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
	 "\n",
		2, 12, "107 characters"},
	{"server:\n  metrics: 9750\n", 2, 12, "ADDRESS:PORT"},
	{"server:\n  metrics: localhost:9750\n", 2, 12, "ADDRESS:PORT"},
	{"server:\n  metrics: 127.0.0.1:0\n", 2, 12, "ADDRESS:PORT"},
	{"server:\n  metrics: 127.0.0.1:70000\n", 2, 12, "ADDRESS:PORT"},
	{"server:\n  metrics: \"::1:9750\"\n", 2, 12, "ADDRESS:PORT"},
	{"server:\n  metrics: \"[::1]\"\n", 2, 12, "ADDRESS:PORT"},
	/* drives */
	{"drives: []\n", 1, 9, "empty"},
	{"drives: [nvme0]\n", 1, 10, "absolute path"},
	{"drives:\n  - /dev/a\n  - [/dev/b]\n", 3, 5, "this is a list"},
	/* exports */
	{"exports: {}\n", 1, 10, "expected a list of exports"},
	{"exports:\n  - /data\n", 2, 5, "an export is a single value"},
	{"exports:\n  - path: /data\n    filesystem: a/b\n", 2, 5, "allow is missing"},
	{"exports:\n  - filesystem: a/b\n    allow: [{clients: \"*\"}]\n", 2, 5, "path is missing"},
	{"exports:\n  - path: data\n", 2, 11, "absolute path"},
	{"exports:\n  - path: /data/\n", 2, 11, "absolute path"},
	{"exports:\n  - path: /data//x\n", 2, 11, "absolute path"},
	{"exports:\n  - path: /data/../x\n", 2, 11, "absolute path"},
	{"exports:\n  - path: /./x\n", 2, 11, "absolute path"},
	{"exports:\n  - path: /a\n    filesystem: data\n", 3, 17, "expected ARRAY/NAME"},
	{"exports:\n  - path: /a\n    filesystem: a/b/c\n", 3, 17, "expected ARRAY/NAME"},
	{"exports:\n  - path: /a\n    filesystem: a/.b\n", 3, 17, "expected ARRAY/NAME"},
	{"exports:\n  - path: /a\n    filesystem: a/12345678901234567890123456789012\n", 3, 17, "expected ARRAY/NAME"},
	{"exports:\n  - path: /a\n    path: /b\n", 3, 5, "twice"},
	{"exports:\n  - {path: /a, filesystem: a/b, allow: [{clients: \"*\"}]}\n"
	 "  - {path: /a, filesystem: a/c, allow: [{clients: \"*\"}]}\n",
		3, 12, "exported twice (first on line 2)"},
	{EXPORT "      []\n", 5, 7, "allow is empty"},
	{EXPORT "      - access: rw\n", 5, 9, "clients is missing"},
	{EXPORT "      - {clients: []}\n", 5, 19, "clients is empty"},
	{EXPORT "      - {clients: host..example}\n", 5, 19, "expected an address, a network"},
	{EXPORT "      - {clients: 10.1.2}\n", 5, 19, "expected an address, a network"},
	{EXPORT "      - {clients: -host}\n", 5, 19, "expected an address, a network"},
	{EXPORT "      - {clients: \"@\"}\n", 5, 19, "expected an address, a network"},
	{EXPORT "      - {clients: \"@a b\"}\n", 5, 19, "expected an address, a network"},
	{EXPORT "      - {clients: [host, \"@host\", HOST]}\n", 5, 9, "clients HOST stand twice"},
	{EXPORT "      - {clients: 10.0.0.0/33}\n", 5, 19, "prefix length; expected a number from 0 to 32"},
	{EXPORT "      - {clients: 10.0.0.0/}\n", 5, 19, "prefix length"},
	{EXPORT "      - {clients: 10.0.0.0/8x}\n", 5, 19, "prefix length"},
	{EXPORT "      - {clients: 10.1.0.0/8}\n", 5, 19, "expected 10.0.0.0/8"},
	{EXPORT "      - {clients: \"fd00::1/8\"}\n", 5, 19, "expected fd00::/8"},
	{EXPORT "      - {clients: \"fd00::/129\"}\n", 5, 19, "from 0 to 128"},
	{EXPORT "      - {clients: [10.0.0.0/8, 10.0.0.0/8]}\n", 5, 9, "stand twice"},
	{EXPORT "      - {clients: 10.0.0.1}\n      - {clients: 10.0.0.1/32}\n", 6, 9, "stand twice"},
	{EXPORT "      - {clients: \"*\", access: yes}\n", 5, 32, "expected ro or rw"},
	{EXPORT "      - {clients: \"*\", squash: nobody}\n", 5, 32, "expected root, all or none"},
	{EXPORT "      - {clients: \"*\", groups: all}\n", 5, 32, "expected client or server"},
	{EXPORT "      - {clients: \"*\", anonuid: -1}\n", 5, 33, "4294967294"},
	{EXPORT "      - {clients: \"*\", anongid: 4294967295}\n", 5, 33, "4294967294"},
	{EXPORT "      - {clients: \"*\", sec: krb5}\n", 5, 29, "expected sys or none"},
	{EXPORT "      - {clients: \"*\", sec: [sys, sys]}\n", 5, 35, "twice"},
	{EXPORT "      - {clients: \"*\", sec: []}\n", 5, 29, "sec is empty"},
	{EXPORT "      - {clients: \"*\", acess: rw}\n", 5, 24, "unknown key \"acess\" in allow"},
};

static void test_bad(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct config *config;
		struct error err;
		char where[120];
		int rc = load(bad[i].text, strlen(bad[i].text), &config, &err);
		if (rc == 0)
			fail_msg("accepted:\n%s", bad[i].text);
		snprintf(where, sizeof(where), "%s:%u:%u: ", file, bad[i].line, bad[i].column);
		if (strncmp(err.text, where, strlen(where)) != 0 || !strstr(err.text, bad[i].says))
			fail_msg(
				"expected %s ... %s\n     got %s\nfor:\n%s", where, bad[i].says, err.text, bad[i].text);
		if (strchr(err.text, '\n'))
			fail_msg("more than one line: %s", err.text);
		assert_null(config);
	}
}

static void test_unreadable(void **state)
{
	struct config *config = NULL;
	struct error err;

	(void)state;
	assert_int_equal(config_load("/nonexistent/furrow.yaml", &config, &err), -ENOENT);
	assert_non_null(strstr(err.text, "/nonexistent/furrow.yaml: cannot read the configuration"));
	assert_int_equal(config_load("/tmp", &config, &err), -EISDIR);
	assert_int_equal(config_load("/dev/null", &config, &err), -EINVAL);
	assert_null(config);
	/* no text at all */
	char bytes[2000];
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (char)(i * 7 + 128);
	assert_true(load(bytes, sizeof(bytes), &config, &err) < 0);
	assert_null(strchr(err.text, '\n'));
	/* a list deeper than any parser should follow, and one that refers to itself */
	memset(bytes, '[', sizeof(bytes));
	assert_true(load(bytes, sizeof(bytes), &config, &err) < 0);
	assert_true(load("drives: &a [*a]\n", 16, &config, &err) < 0);
}

/* Any bytes of a good file changed: an answer, and no more than that. */
static void test_mutations(void **state)
{
	static const char good[] = "server: {listen: [\"::\"], memory: 1GiB, metrics: \"[::1]:97\"}\n"
				   "drives: [/dev/x]\n" EXPORT "      - {clients: [10.0.0.0/8, \"*\"], sec: [sys]}\n";
	unsigned seed = 20260102;
	char text[sizeof(good)];

	(void)state;
	print_message("seed %u\n", seed);
	srandom(seed);
	for (int i = 0; i < 3000; i++) {
		struct config *config;
		struct error err;
		memcpy(text, good, sizeof(good));
		for (long n = random() % 4; n >= 0; n--)
			text[(size_t)random() % (sizeof(good) - 1)] =
				(char)(random() % 3 ? random() % 95 + 32 : random());
		if (load(text, sizeof(good) - 1, &config, &err) == 0)
			config_free(config);
		else if (!err.text[0] || strchr(err.text, '\n'))
			fail_msg("no sentence for:\n%s", text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_bad),
		cmocka_unit_test(test_unreadable),
		cmocka_unit_test(test_mutations),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
