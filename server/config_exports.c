/*
 * The part `exports:` of the configuration: who may do what with which file system.
 *
 * Clients are addresses and networks, names of hosts, and netgroups. Names are not looked up here: whether one exists
 * is known only when somebody comes, and may change.
 */
#include "server/config_internal.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT_PATH_MAX 1023 /* MNTPATHLEN of RFC 1813 is 1024 */

#define EXPECT_CLIENTS                                                                                                 \
	"an address, a network such as 10.0.0.0/8 or fd00::/8, a host's name, a netgroup such as @lab, or \"*\" for "  \
	"everybody"

/* Letters, digits, - and _ between dots, and not only numbers: that would be a mistyped address. */
static bool host_name_valid(const char *name)
{
	size_t label = 0;
	bool letter = false;

	for (const char *p = name; *p; p++) {
		if (*p == '.') {
			if (!label)
				return false;
			label = 0;
			continue;
		}
		if (!isalnum((unsigned char)*p) && *p != '_' && (*p != '-' || !label))
			return false;
		letter = letter || isalpha((unsigned char)*p);
		if (++label > 63)
			return false;
	}
	return letter && label;
}

static bool netgroup_valid(const char *name)
{
	if (!*name)
		return false;
	for (; *name; name++)
		if (!isalnum((unsigned char)*name) && !strchr("-_.", *name))
			return false;
	return true;
}

static int network_read(struct reader *r, const yaml_node_t *node, const char *text, struct config_clients *c)
{
	char quote[48], host[64];
	const char *slash = strchr(text, '/');
	size_t length = slash ? (size_t)(slash - text) : strlen(text);
	bool v4 = false;

	if (length >= sizeof(host))
		return mistake(r, node, "\"%s\" is not valid; expected " EXPECT_CLIENTS, node_quote(node, quote));
	memcpy(host, text, length);
	host[length] = 0;
	if (!address_parse(host, &c->net, &v4))
		return mistake(r, node, "\"%s\" is not valid; expected " EXPECT_CLIENTS, node_quote(node, quote));
	unsigned longest = v4 ? 32 : 128, prefix = longest;
	if (slash) {
		char *end = NULL;
		unsigned long n = isdigit((unsigned char)slash[1]) ? strtoul(slash + 1, &end, 10) : 999;
		if (n > longest || !end || *end)
			return mistake(r, node, "\"%s\" has a bad prefix length; expected a number from 0 to %u",
				node_quote(node, quote), longest);
		prefix = (unsigned)n;
	}
	c->prefix = prefix + 128 - longest;
	struct in6_addr masked = c->net;
	for (unsigned bit = c->prefix; bit < 128; bit++)
		masked.s6_addr[bit / 8] &= (uint8_t) ~(0x80u >> (bit % 8));
	if (memcmp(&masked, &c->net, sizeof(masked)) != 0) {
		char name[INET6_ADDRSTRLEN];
		inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? (void *)(masked.s6_addr + 12) : (void *)&masked, name,
			sizeof(name));
		return mistake(r, node, "\"%s\" has bits set beyond its prefix; expected %s/%u",
			node_quote(node, quote), name, prefix);
	}
	return 0;
}

static int clients_item_read(struct reader *r, yaml_node_t *node, void *arg)
{
	struct config_allow *allow = arg;
	char quote[48];
	const char *text;

	int rc = scalar_get(r, node, EXPECT_CLIENTS, &text);
	if (rc < 0)
		return rc;
	struct config_clients *grown = grow(r, allow->clients, allow->client_count, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	allow->clients = grown;
	struct config_clients *c = &grown[allow->client_count];
	memset(c, 0, sizeof(*c));
	if (strlen(text) >= sizeof(c->text))
		return mistake(r, node, "\"%s\" is too long; expected " EXPECT_CLIENTS, node_quote(node, quote));
	snprintf(c->text, sizeof(c->text), "%s", text);
	if (text[0] == '@' && netgroup_valid(text + 1))
		c->kind = CLIENTS_NETGROUP;
	else if (host_name_valid(text))
		c->kind = CLIENTS_HOST;
	else if (strcmp(text, "*"))
		rc = network_read(r, node, text, c);
	if (!rc)
		allow->client_count++;
	return rc;
}

bool config_clients_same(const struct config_clients *a, const struct config_clients *b)
{
	if (a->kind != b->kind)
		return false;
	return a->kind == CLIENTS_NET	 ? a->prefix == b->prefix && !memcmp(&a->net, &b->net, sizeof(a->net))
	       : a->kind == CLIENTS_HOST ? !strcasecmp(a->text, b->text)
					 : !strcmp(a->text, b->text);
}

static int clients_read(struct reader *r, yaml_node_t *node, void *arg)
{
	struct config_allow *allow = arg;
	int rc = list_read(r, node, EXPECT_CLIENTS, true, clients_item_read, arg);

	if (rc == 0 && !allow->client_count)
		return mistake(r, node, "clients is empty; expected " EXPECT_CLIENTS);
	return rc;
}

static int access_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const struct choice choices[] = {{"ro", false}, {"rw", true}, {NULL, 0}};
	struct config_allow *allow = arg;
	int value;
	int rc = choice_read(r, node, choices, "ro or rw", &value);

	if (rc == 0)
		allow->write = value;
	return rc;
}

static int squash_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const struct choice choices[] = {
		{"none", SQUASH_NONE}, {"root", SQUASH_ROOT}, {"all", SQUASH_ALL}, {NULL, 0}};
	struct config_allow *allow = arg;
	int value;
	int rc = choice_read(r, node, choices, "root, all or none", &value);

	if (rc == 0)
		allow->squash = (enum squash)value;
	return rc;
}

static int groups_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const struct choice choices[] = {{"client", false}, {"server", true}, {NULL, 0}};
	struct config_allow *allow = arg;
	int value;
	int rc = choice_read(r, node, choices, "client or server", &value);

	if (rc == 0)
		allow->server_groups = value;
	return rc;
}

static int id_read(struct reader *r, const yaml_node_t *node, uint32_t *id)
{
	uint64_t value;
	int rc = number_read(r, node, "a number from 0 to 4294967294", 0, UINT32_MAX - 1, &value);

	if (rc == 0)
		*id = (uint32_t)value;
	return rc;
}

static int anonuid_read(struct reader *r, yaml_node_t *node, void *arg)
{
	return id_read(r, node, &((struct config_allow *)arg)->anonuid);
}

static int anongid_read(struct reader *r, yaml_node_t *node, void *arg)
{
	return id_read(r, node, &((struct config_allow *)arg)->anongid);
}

static int sec_item_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const struct choice choices[] = {{"sys", 1}, {"none", 2}, {NULL, 0}};
	struct config_allow *allow = arg;
	int value;
	int rc = choice_read(r, node, choices, "sys or none", &value);

	if (rc < 0)
		return rc;
	if (value == 1 ? allow->sec_sys : allow->sec_none)
		return mistake(r, node, "%s stands twice in sec; expected it once", choices[value - 1].name);
	if (value == 1)
		allow->sec_sys = true;
	else
		allow->sec_none = true;
	return 0;
}

static int sec_read(struct reader *r, yaml_node_t *node, void *arg)
{
	struct config_allow *allow = arg;

	allow->sec_sys = allow->sec_none = false;
	int rc = list_read(r, node, "sys or none", true, sec_item_read, arg);
	if (rc == 0 && !allow->sec_sys && !allow->sec_none)
		return mistake(r, node, "sec is empty; expected sys or none");
	return rc;
}

static int allow_item_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const struct key keys[] = {
		{"clients", clients_read},
		{"access", access_read},
		{"squash", squash_read},
		{"anonuid", anonuid_read},
		{"anongid", anongid_read},
		{"sec", sec_read},
		{"groups", groups_read},
		{NULL, NULL},
	};
	struct config_export *export = arg;
	unsigned seen;

	struct config_allow *grown = grow(r, export->allow, export->allow_count, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	export->allow = grown;
	/* What is not said is the careful choice. */
	struct config_allow *allow = &grown[export->allow_count++];
	*allow = (struct config_allow){.squash = SQUASH_ROOT, .anonuid = 65534, .anongid = 65534, .sec_sys = true};
	int rc = section_read(r, node, "allow", keys, allow, &seen);
	if (rc < 0)
		return rc;
	if (!(seen & 1))
		return mistake(r, node, "clients is missing; expected clients: with " EXPECT_CLIENTS);

	/* One client, one rule: the same network in two rules would leave open which of them counts. */
	for (unsigned i = 0; i < allow->client_count; i++) {
		for (unsigned a = 0; a < export->allow_count; a++) {
			const struct config_allow *other = &export->allow[a];
			unsigned end = other == allow ? i : other->client_count;
			for (unsigned j = 0; j < end; j++)
				if (config_clients_same(&other->clients[j], &allow->clients[i]))
					return mistake(r, node,
						"clients %s stand twice in one export; expected one rule for them",
						allow->clients[i].text);
		}
	}
	return 0;
}

static int allow_read(struct reader *r, yaml_node_t *node, void *arg)
{
	struct config_export *export = arg;
	int rc = list_read(r, node, "a list of rules", true, allow_item_read, arg);

	if (rc == 0 && !export->allow_count)
		return mistake(r, node, "allow is empty; expected at least one rule");
	return rc;
}

static int export_path_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const char expected[] = "an absolute path without //, . or .. in it, such as /data";
	struct config_export *export = arg;
	char quote[48];
	int rc = string_read(r, node, expected, &export->path);

	if (rc < 0)
		return rc;
	const char *p = export->path;
	size_t length = strlen(p);
	bool good = p[0] == '/' && length <= EXPORT_PATH_MAX && (length == 1 || p[length - 1] != '/');
	for (size_t i = 0; good && i < length; i++) {
		if ((unsigned char)p[i] < ' ' || p[i] == 0x7f)
			good = false;
		if (p[i] != '/')
			continue;
		const char *name = p + i + 1;
		size_t n = strcspn(name, "/");
		if ((n == 0 && length > 1) || n > FS_NAME_MAX || (n == 1 && name[0] == '.') ||
			(n == 2 && name[0] == '.' && name[1] == '.'))
			good = false;
	}
	if (!good)
		return mistake(r, node, "\"%s\" is not valid; expected %s", node_quote(node, quote), expected);
	for (const struct config_export *other = r->config->exports; other < export; other++)
		if (other->path && !strcmp(other->path, export->path))
			return mistake(r, node, "path %s is exported twice (first on line %u); expected it once",
				export->path, other->line);
	return 0;
}

bool config_name_valid(const char *name, size_t length)
{
	if (!length || length > RAID_NAME_MAX || name[0] == '.' || name[0] == '-')
		return false;
	for (size_t i = 0; i < length; i++)
		if (!isalnum((unsigned char)name[i]) && name[i] != '.' && name[i] != '_' && name[i] != '-')
			return false;
	return true;
}

bool config_filesystem_valid(const char *name)
{
	const char *slash = strchr(name, '/');

	return slash && config_name_valid(name, (size_t)(slash - name)) &&
	       config_name_valid(slash + 1, strlen(slash + 1));
}

static int filesystem_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const char expected[] = "ARRAY/NAME, such as a0/data";
	struct config_export *export = arg;
	char quote[48];
	int rc = string_read(r, node, expected, &export->filesystem);

	if (rc == 0 && !config_filesystem_valid(export->filesystem))
		return mistake(r, node, "\"%s\" is not the name of a file system; expected %s", node_quote(node, quote),
			expected);
	return rc;
}

static int export_item_read(struct reader *r, yaml_node_t *node, void *arg)
{
	static const struct key keys[] = {
		{"path", export_path_read},
		{"filesystem", filesystem_read},
		{"allow", allow_read},
		{NULL, NULL},
	};
	struct config *config = r->config;
	unsigned seen;

	(void)arg;
	struct config_export *grown = grow(r, config->exports, config->export_count, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	config->exports = grown;
	struct config_export *export = &grown[config->export_count++];
	memset(export, 0, sizeof(*export));
	export->line = (unsigned)node->start_mark.line + 1;
	int rc = section_read(r, node, "an export", keys, export, &seen);
	if (rc < 0)
		return rc;
	for (unsigned i = 0; keys[i].name; i++)
		if (!(seen & (1u << i)))
			return mistake(r, node, "%s is missing in this export; expected path, filesystem and allow",
				keys[i].name);
	return 0;
}

int exports_read(struct reader *r, yaml_node_t *node, void *arg)
{
	return list_read(r, node, "a list of exports", false, export_item_read, arg);
}
