/*
 * The configuration: YAML to struct config.
 *
 * libyaml composes the document into nodes that remember where they stood, and the readers below walk the nodes
 * with the schema in mind. Whatever is not in the schema is a mistake: an unknown or repeated key, a value of the
 * wrong kind, a number out of range, a network with bits set beyond its prefix. Each mistake is one sentence
 * "FILE:LINE:COLUMN: what is wrong; what is expected", and the first one ends the reading. Nothing is guessed:
 * a server that starts with half of what its administrator meant would be worse than one that says why it did not.
 *
 * A reader takes the node of a value and returns 0 or a negative errno with the error filled in. Everything read
 * so far hangs in the struct config, so that config_free() is the one way out after an error. Aliases (`*name`) are
 * resolved by libyaml to the same node; the schema has a fixed depth, so that not even a cycle of them leads anywhere.
 */
#include "server/config_internal.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

#define CONFIG_BYTES_MAX (1024 * 1024)
#define CONFIG_LIST_MAX 4096

/* ------------------------------------------------------------------------------------------------
 * Nodes
 */

void mistake_set(struct reader *r, const yaml_node_t *node, const char *format, ...)
{
	char text[400];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	error_set(r->err, -EINVAL, "%s:%zu:%zu: %s", r->file, node->start_mark.line + 1, node->start_mark.column + 1,
		text);
}

static yaml_node_t *node_get(struct reader *r, int index)
{
	return yaml_document_get_node(r->document, index);
}

static const char *node_kind(const yaml_node_t *node)
{
	switch (node->type) {
	case YAML_SCALAR_NODE:
		return "a single value";
	case YAML_SEQUENCE_NODE:
		return "a list";
	case YAML_MAPPING_NODE:
		return "a section of keys";
	default:
		return "nothing";
	}
}

/* What a message shows of a value: printable and short, whatever was in the file. */
const char *node_quote(const yaml_node_t *node, char text[48])
{
	const char *value = (const char *)node->data.scalar.value;
	size_t n = 0;

	for (; n < 40 && n < node->data.scalar.length; n++)
		text[n] = (char)(isprint((unsigned char)value[n]) ? value[n] : '?');
	if (n < node->data.scalar.length) {
		memcpy(text + n, "...", 3);
		n += 3;
	}
	text[n] = 0;
	return text;
}

/* The text of a scalar. EXPECTED ends the sentence "expected ...". */
int scalar_get(struct reader *r, const yaml_node_t *node, const char *expected, const char **text)
{
	if (node->type != YAML_SCALAR_NODE)
		return mistake(r, node, "this is %s; expected %s", node_kind(node), expected);
	const char *value = (const char *)node->data.scalar.value;
	bool plain = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
	if (!node->data.scalar.length || (plain && (!strcmp(value, "~") || !strcmp(value, "null"))))
		return mistake(r, node, "the value is empty; expected %s", expected);
	if (strlen(value) != node->data.scalar.length)
		return mistake(r, node, "the value holds a NUL character; expected %s", expected);
	*text = value;
	return 0;
}

int string_read(struct reader *r, const yaml_node_t *node, const char *expected, char **out)
{
	const char *text;
	int rc = scalar_get(r, node, expected, &text);

	if (rc < 0)
		return rc;
	*out = strdup(text);
	return *out ? 0 : error_set(r->err, -ENOMEM, "%s: out of memory", r->file);
}

int number_read(
	struct reader *r, const yaml_node_t *node, const char *expected, uint64_t min, uint64_t max, uint64_t *out)
{
	char quote[48];
	const char *text;
	int rc = scalar_get(r, node, expected, &text);

	if (rc < 0)
		return rc;
	uint64_t value = 0;
	const char *p = text;
	for (; isdigit((unsigned char)*p) && value <= UINT32_MAX; p++)
		value = value * 10 + (unsigned)(*p - '0');
	if (*p || p == text || value < min || value > max)
		return mistake(r, node, "\"%s\" is not valid; expected %s", node_quote(node, quote), expected);
	*out = value;
	return 0;
}

int choice_read(struct reader *r, const yaml_node_t *node, const struct choice *choices, const char *expected, int *out)
{
	char quote[48];
	const char *text;
	int rc = scalar_get(r, node, expected, &text);

	if (rc < 0)
		return rc;
	for (const struct choice *c = choices; c->name; c++) {
		if (!strcmp(c->name, text)) {
			*out = c->value;
			return 0;
		}
	}
	return mistake(r, node, "\"%s\" is not valid; expected %s", node_quote(node, quote), expected);
}

/* A list, or a single value that stands for a list of one. Calls FN for each item. */
int list_read(struct reader *r, yaml_node_t *node, const char *expected, bool single,
	int (*fn)(struct reader *r, yaml_node_t *item, void *arg), void *arg)
{
	if (node->type != YAML_SEQUENCE_NODE) {
		if (single)
			return fn(r, node, arg);
		return mistake(r, node, "this is %s; expected %s", node_kind(node), expected);
	}
	if (node->data.sequence.items.top - node->data.sequence.items.start > CONFIG_LIST_MAX)
		return mistake(r, node, "the list has more than %d entries", CONFIG_LIST_MAX);
	for (yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++) {
		int rc = fn(r, node_get(r, *item), arg);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* A section: each key at most once, and none that KEYS does not have. SEEN, one bit for each of KEYS, may be NULL. */
int section_read(
	struct reader *r, yaml_node_t *node, const char *what, const struct key *keys, void *arg, unsigned *seen_out)
{
	unsigned seen = 0;

	if (node->type != YAML_MAPPING_NODE)
		return mistake(r, node, "%s is %s; expected a section of keys", what, node_kind(node));
	for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++) {
		yaml_node_t *key = node_get(r, pair->key), *value = node_get(r, pair->value);
		char quote[48], known[300] = "";
		unsigned i;

		if (key->type != YAML_SCALAR_NODE)
			return mistake(r, key, "a key of %s is %s; expected a name", what, node_kind(key));
		for (i = 0; keys[i].name; i++) {
			if (!strcmp(keys[i].name, (char *)key->data.scalar.value))
				break;
			snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", i ? ", " : "",
				keys[i].name);
		}
		if (!keys[i].name)
			return mistake(r, key, "unknown key \"%s\" in %s; expected one of: %s", node_quote(key, quote),
				what, known);
		if (seen & (1u << i))
			return mistake(r, key, "key \"%s\" stands twice in %s; expected it once", keys[i].name, what);
		seen |= 1u << i;
		int rc = keys[i].read(r, value, arg);
		if (rc < 0)
			return rc;
	}
	if (seen_out)
		*seen_out = seen;
	return 0;
}

/* Room for one more in an array that grows by doubling. */
void *grow(struct reader *r, void *array, unsigned count, size_t size)
{
	if (count & (count - 1))
		return array; /* not a power of two: there is room up to the next one */
	void *p = realloc(array, (count ? 2 * (size_t)count : 1) * size);
	if (!p)
		error_set(r->err, -ENOMEM, "%s: out of memory", r->file);
	return p;
}

static int strings_append(
	struct reader *r, const yaml_node_t *node, const char *expected, char ***list, unsigned *count)
{
	char **grown = grow(r, *list, *count, sizeof(**list));

	if (!grown)
		return -ENOMEM;
	*list = grown;
	int rc = string_read(r, node, expected, &grown[*count]);
	if (rc == 0)
		(*count)++;
	return rc;
}

/* ------------------------------------------------------------------------------------------------
 * server:
 */

#define EXPECT_LISTEN "a numeric IPv4 or IPv6 address"
#define EXPECT_PORT "a port from 1 to 65535, or off"
#define EXPECT_METRICS "ADDRESS:PORT such as 127.0.0.1:9750 or [::1]:9750, or off"

bool address_parse(const char *text, struct in6_addr *out, bool *v4)
{
	struct in_addr in4;

	if (inet_pton(AF_INET, text, &in4) == 1) {
		memset(out, 0, sizeof(*out));
		out->s6_addr[10] = out->s6_addr[11] = 0xff;
		memcpy(out->s6_addr + 12, &in4, 4);
		*v4 = true;
		return true;
	}
	*v4 = false;
	return inet_pton(AF_INET6, text, out) == 1;
}

static int listen_item_read(struct reader *r, yaml_node_t *node, void *arg)
{
	struct config *config = r->config;
	struct in6_addr address, other;
	char quote[48];
	bool v4;

	(void)arg;
	int rc = strings_append(r, node, EXPECT_LISTEN, &config->listen, &config->listen_count);
	if (rc < 0)
		return rc;
	const char *text = config->listen[config->listen_count - 1];
	if (!address_parse(text, &address, &v4))
		return mistake(r, node, "\"%s\" is not an address; expected " EXPECT_LISTEN, node_quote(node, quote));
	for (unsigned i = 0; i + 1 < config->listen_count; i++)
		if (address_parse(config->listen[i], &other, &v4) && !memcmp(&address, &other, sizeof(address)))
			return mistake(r, node, "address %s stands twice in listen; expected it once", text);
	return 0;
}

static int listen_read(struct reader *r, yaml_node_t *node, void *arg)
{
	int rc = list_read(r, node, EXPECT_LISTEN, true, listen_item_read, arg);

	if (rc == 0 && !r->config->listen_count)
		return mistake(r, node, "listen is empty; expected at least one address");
	return rc;
}

static int port_read(struct reader *r, const yaml_node_t *node, uint16_t *port)
{
	uint64_t value;

	if (node->type == YAML_SCALAR_NODE && !strcmp((char *)node->data.scalar.value, "off")) {
		*port = 0;
		return 0;
	}
	int rc = number_read(r, node, EXPECT_PORT, 1, 65535, &value);
	if (rc == 0)
		*port = (uint16_t)value;
	return rc;
}

static int nfs_port_read(struct reader *r, yaml_node_t *node, void *arg)
{
	(void)arg;
	return port_read(r, node, &r->config->nfs_port);
}

static int rdma_port_read(struct reader *r, yaml_node_t *node, void *arg)
{
	(void)arg;
	return port_read(r, node, &r->config->rdma_port);
}

/* A number that a byte of the network's settings holds. */
static int network_read(
	struct reader *r, const yaml_node_t *node, const char *expected, uint8_t min, uint8_t max, uint8_t *out)
{
	uint64_t value;
	int rc = number_read(r, node, expected, min, max, &value);

	if (rc == 0)
		*out = (uint8_t)value;
	return rc;
}

static int dscp_read(struct reader *r, yaml_node_t *node, void *arg)
{
	(void)arg;
	r->config->network.dscp_given = true;
	return network_read(r, node, "a DSCP from 0 to 63", 0, 63, &r->config->network.dscp);
}

static int rdma_timeout_read(struct reader *r, yaml_node_t *node, void *arg)
{
	(void)arg;
	return network_read(
		r, node, "an exponent from 1 to 31, for 4.096 us x 2^N", 1, 31, &r->config->network.rdma_timeout);
}

static int rdma_retry_count_read(struct reader *r, yaml_node_t *node, void *arg)
{
	(void)arg;
	return network_read(r, node, "a number from 1 to 7", 1, 7, &r->config->network.rdma_retry_count);
}

static int cores_read(struct reader *r, yaml_node_t *node, void *arg)
{
	uint64_t value;

	(void)arg;
	if (node->type == YAML_SCALAR_NODE && !strcmp((char *)node->data.scalar.value, "auto"))
		return 0;
	int rc = number_read(r, node, "auto, or a number from 1 to 64", 1, METRIC_SLOTS - 1, &value);
	if (rc == 0)
		r->config->cores = (unsigned)value;
	return rc;
}

static int memory_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const char expected[] = "auto, or a size such as 8GiB (units are KiB, MiB, GiB, TiB)";
	char quote[48];
	const char *text;

	(void)arg;
	int rc = scalar_get(r, node, expected, &text);
	if (rc < 0)
		return rc;
	if (!strcmp(text, "auto"))
		return 0;
	if (size_parse(text, &r->config->memory) < 0)
		return mistake(r, node, "\"%s\" is not a size; expected %s", node_quote(node, quote), expected);
	if (r->config->memory < CONFIG_MEMORY_MIN)
		return mistake(r, node, "%s is too little to run in; expected at least 128MiB", text);
	return 0;
}

static int control_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const char expected[] = "the absolute path of a socket, at most 107 characters";
	char quote[48];

	(void)arg;
	int rc = string_read(r, node, expected, &r->config->control);
	if (rc < 0)
		return rc;
	if (r->config->control[0] != '/' || strlen(r->config->control) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return mistake(r, node, "\"%s\" is not valid; expected %s", node_quote(node, quote), expected);
	return 0;
}

static int hook_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const char expected[] = "the absolute path of a program, at most 500 characters";
	char quote[48];

	(void)arg;
	int rc = string_read(r, node, expected, &r->config->hook);
	if (rc < 0)
		return rc;
	if (r->config->hook[0] != '/' || strlen(r->config->hook) > 500)
		return mistake(r, node, "\"%s\" is not valid; expected %s", node_quote(node, quote), expected);
	return 0;
}

static int delegations_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const struct choice choices[] = {
		{"none", DELEGATIONS_NONE}, {"read", DELEGATIONS_READ}, {"write", DELEGATIONS_WRITE}, {NULL, 0}};
	int value;
	int rc = choice_read(r, node, choices, "none, read or write", &value);

	(void)arg;
	if (rc == 0)
		r->config->delegations = (enum delegations)value;
	return rc;
}

static int lease_read(struct reader *r, yaml_node_t *node, void *arg)
{
	uint64_t value;
	int rc = number_read(r, node, "a number of seconds from 5 to 600", 5, 600, &value);

	(void)arg;
	if (rc == 0)
		r->config->lease = (unsigned)value;
	return rc;
}

static int owners_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const struct choice choices[] = {{"numbers", false}, {"names", true}, {NULL, 0}};
	int value;
	int rc = choice_read(r, node, choices, "numbers or names", &value);

	(void)arg;
	if (rc == 0)
		r->config->owner_names = value;
	return rc;
}

static int owner_domain_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const char expected[] = "a domain such as example.org, at most 128 characters";
	char quote[48];
	int rc = string_read(r, node, expected, &r->config->owner_domain);

	(void)arg;
	if (rc < 0)
		return rc;
	const char *p = r->config->owner_domain;
	size_t length = strlen(p);
	bool good = length && length <= 128;
	for (; good && *p; p++)
		good = isalnum((unsigned char)*p) || *p == '.' || *p == '-' || *p == '_';
	return good ? 0 : mistake(r, node, "\"%s\" is not valid; expected %s", node_quote(node, quote), expected);
}

static int metrics_read(struct reader *r, yaml_node_t *node, void *arg)
{
	struct config *config = r->config;
	struct in6_addr address;
	char quote[48], host[64];
	const char *text;
	bool v4;

	(void)arg;
	int rc = scalar_get(r, node, EXPECT_METRICS, &text);
	if (rc < 0)
		return rc;
	if (!strcmp(text, "off")) {
		config->metrics_port = 0;
		return 0;
	}
	const char *colon = strrchr(text, ':');
	size_t length = colon ? (size_t)(colon - text) : 0;
	bool bracket = length > 2 && text[0] == '[' && text[length - 1] == ']';
	if (bracket) {
		text++;
		length -= 2;
	}
	if (!colon || length >= sizeof(host))
		return mistake(r, node, "\"%s\" is not valid; expected " EXPECT_METRICS, node_quote(node, quote));
	memcpy(host, text, length);
	host[length] = 0;
	char *end;
	unsigned long port = isdigit((unsigned char)colon[1]) ? strtoul(colon + 1, &end, 10) : 0;
	if (!address_parse(host, &address, &v4) || v4 == bracket || !port || port > 65535 || *end)
		return mistake(r, node, "\"%s\" is not valid; expected " EXPECT_METRICS, node_quote(node, quote));
	config->metrics_address = strdup(host);
	config->metrics_port = (uint16_t)port;
	return config->metrics_address ? 0 : error_set(r->err, -ENOMEM, "%s: out of memory", r->file);
}

/* Whether the metrics would be served where NFS is. An empty list is all addresses. */
static bool metrics_collide(const struct config *config)
{
	/* what is not written yet will be the default, see below */
	const char *address = config->metrics_address ? config->metrics_address : "127.0.0.1";
	bool same = !config->listen_count;

	for (unsigned i = 0; i < config->listen_count && !same; i++)
		same = !strcmp(config->listen[i], address) || !strcmp(config->listen[i], "0.0.0.0") ||
		       !strcmp(config->listen[i], "::");
	return same && config->metrics_port && config->metrics_port == config->nfs_port;
}

static int server_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const struct key keys[] = {
		{"listen", listen_read},
		{"nfs_port", nfs_port_read},
		{"rdma_port", rdma_port_read},
		{"dscp", dscp_read},
		{"rdma_timeout", rdma_timeout_read},
		{"rdma_retry_count", rdma_retry_count_read},
		{"cores", cores_read},
		{"memory", memory_read},
		{"control", control_read},
		{"delegations", delegations_read},
		{"lease", lease_read},
		{"owners", owners_read},
		{"owner_domain", owner_domain_read},
		{"hook", hook_read},
		{"metrics", metrics_read},
		{NULL, NULL},
	};
	int rc = section_read(r, node, "server", keys, arg, NULL);

	if (rc == 0 && metrics_collide(r->config))
		return mistake(r, node, "nfs_port and metrics have the same port %u; expected two different ones",
			r->config->nfs_port);
	if (rc == 0 && !r->config->nfs_port && !r->config->rdma_port)
		return mistake(r, node, "nfs_port and rdma_port are both off; expected at least one of them on");
	return rc;
}

/* ------------------------------------------------------------------------------------------------
 * drives:
 */

static int drive_item_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const char expected[] = "the absolute path of a drive, or a pattern such as /dev/ng*n1";
	struct config *config = r->config;
	char quote[48];

	(void)arg;
	int rc = strings_append(r, node, expected, &config->drives, &config->drive_count);
	if (rc < 0)
		return rc;
	const char *text = config->drives[config->drive_count - 1];
	if (text[0] != '/' && strncmp(text, "fault:", 6) != 0)
		return mistake(
			r, node, "\"%s\" is not an absolute path; expected %s", node_quote(node, quote), expected);
	return 0;
}

static int drives_read(struct reader *r, yaml_node_t *node, void *arg)
{
	int rc = list_read(r, node, "a list of drives", true, drive_item_read, arg);

	if (rc == 0 && !r->config->drive_count)
		return mistake(r, node, "drives is empty; expected at least one path or pattern");
	return rc;
}

/* ------------------------------------------------------------------------------------------------
 * The file
 */

static int root_read(struct reader *r, yaml_node_t *root)
{
	static const struct key keys[] = {
		{"server", server_read},
		{"drives", drives_read},
		{"exports", exports_read},
		{NULL, NULL},
	};
	return section_read(r, root, "the configuration", keys, NULL, NULL);
}

static char *first_line(const char *text, char *out, size_t room)
{
	snprintf(out, room, "%s", text ? text : "not readable as YAML");
	out[strcspn(out, "\n")] = 0;
	return out;
}

static int parser_mistake(const char *file, const yaml_parser_t *parser, struct error *err)
{
	char problem[200];

	first_line(parser->problem, problem, sizeof(problem));
	if (parser->error == YAML_READER_ERROR)
		return error_set(err, -EINVAL, "%s:1:1: byte %zu: %s; expected text in UTF-8", file,
			parser->problem_offset + 1, problem);
	return error_set(err, -EINVAL, "%s:%zu:%zu: %s; expected valid YAML", file, parser->problem_mark.line + 1,
		parser->problem_mark.column + 1, problem);
}

static int document_read(const char *file, yaml_parser_t *parser, struct config *config, struct error *err)
{
	yaml_document_t document;
	int rc;

	if (!yaml_parser_load(parser, &document))
		return parser_mistake(file, parser, err);
	yaml_node_t *root = yaml_document_get_root_node(&document);
	if (root) {
		struct reader r = {.file = file, .document = &document, .config = config, .err = err};
		rc = root_read(&r, root);
	} else {
		rc = error_set(err, -EINVAL, "%s:1:1: the file is empty; expected server:, drives: and exports:", file);
	}
	yaml_document_delete(&document);
	if (rc < 0)
		return rc;

	if (!yaml_parser_load(parser, &document))
		return parser_mistake(file, parser, err);
	root = yaml_document_get_root_node(&document);
	if (root)
		rc = error_set(err, -EINVAL, "%s:%zu:1: a second document begins here; expected one", file,
			document.start_mark.line + 1);
	yaml_document_delete(&document);
	return rc;
}

static char *default_string(char *value, const char *text)
{
	return value ? value : strdup(text);
}

/* What was not said. The drives' default is the one for NVMe drives. */
static int defaults_fill(struct config *config)
{
	if (!config->listen_count) {
		config->listen = calloc(2, sizeof(*config->listen));
		if (!config->listen)
			return -ENOMEM;
		config->listen[config->listen_count++] = strdup("0.0.0.0");
		config->listen[config->listen_count++] = strdup("::");
	}
	if (!config->drive_count) {
		config->drives = calloc(1, sizeof(*config->drives));
		if (!config->drives)
			return -ENOMEM;
		config->drives[config->drive_count++] = strdup("/dev/ng*n1");
	}
	config->control = default_string(config->control, CONTROL_DEFAULT_PATH);
	config->metrics_address = default_string(config->metrics_address, "127.0.0.1");
	if (!config->control || !config->metrics_address || !config->drives[0] || !config->listen[0] ||
		(config->listen_count == 2 && !config->listen[1]))
		return -ENOMEM;
	return 0;
}

/* What holds where the file says nothing. */
static void defaults_begin(struct config *config)
{
	config->nfs_port = 2049;
	config->rdma_port = 20049;
	config->metrics_port = 9750;
	config->delegations = DELEGATIONS_READ;
	config->lease = CONFIG_LEASE_DEFAULT;
}

int config_default(struct config **out, struct error *err)
{
	struct config *config = calloc(1, sizeof(*config));

	if (!config)
		return error_set(err, -ENOMEM, "out of memory");
	defaults_begin(config);
	if (defaults_fill(config) < 0) {
		config_free(config);
		return error_set(err, -ENOMEM, "out of memory");
	}
	*out = config;
	return 0;
}

int config_load(const char *file, struct config **out, struct error *err)
{
	struct config *config = NULL;
	yaml_parser_t parser;
	struct stat st;
	int rc;

	FILE *in = fopen(file, "re");
	if (!in)
		return error_set(err, -errno, "%s: cannot read the configuration: %s", file, strerror(errno));
	if (fstat(fileno(in), &st) < 0 || S_ISDIR(st.st_mode) || st.st_size > CONFIG_BYTES_MAX) {
		fclose(in);
		if (S_ISDIR(st.st_mode))
			return error_set(err, -EISDIR, "%s: is a directory; expected a text file", file);
		return error_set(err, -EINVAL, "%s: not a configuration; expected a text file of at most 1 MiB", file);
	}
	if (!yaml_parser_initialize(&parser)) {
		fclose(in);
		return error_set(err, -ENOMEM, "%s: out of memory", file);
	}
	yaml_parser_set_input_file(&parser, in);

	config = calloc(1, sizeof(*config));
	if (config) {
		defaults_begin(config);
		config->file = strdup(file);
		rc = config->file ? document_read(file, &parser, config, err) : -ENOMEM;
		if (rc == 0)
			rc = defaults_fill(config);
	} else {
		rc = -ENOMEM;
	}
	yaml_parser_delete(&parser);
	fclose(in);
	if (rc < 0) {
		config_free(config);
		return rc == -ENOMEM ? error_set(err, -ENOMEM, "%s: out of memory", file) : rc;
	}
	*out = config;
	return 0;
}

void config_free(struct config *config)
{
	if (!config)
		return;
	for (unsigned i = 0; i < config->listen_count; i++)
		free(config->listen[i]);
	for (unsigned i = 0; i < config->drive_count; i++)
		free(config->drives[i]);
	for (unsigned i = 0; i < config->export_count; i++) {
		struct config_export *e = &config->exports[i];
		for (unsigned a = 0; a < e->allow_count; a++)
			free(e->allow[a].clients);
		free(e->allow);
		free(e->path);
		free(e->filesystem);
	}
	free(config->listen);
	free(config->drives);
	free(config->exports);
	free(config->control);
	free(config->hook);
	free(config->owner_domain);
	free(config->metrics_address);
	free(config->file);
	free(config);
}
