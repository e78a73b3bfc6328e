/*
 * exports: which client may do what with which file system.
 *
 * The table is made from the configuration once and then never changed; SIGHUP makes a new one. Readers on any reactor
 * hold a reference for the time of a call, so a call sees one table from its gate to its reply, and
 * an old table goes when its last call has ended. While the table lives its file systems stay mounted
 * (storage_fs_hold).
 *
 * Every call takes such a reference, on every core, so a count that all of them share would be the busiest word of the
 * server. Each reactor has counts of its own instead (struct hold): it refers to a table once, and counts its
 * calls on it without atomics, which is safe because fibers never migrate. Whoever publishes a new table visits all
 * reactors, so that none clings to an old one out of idleness. Threads that are no reactors count on the table itself,
 * under a lock held for two instructions: between reading the pointer and counting, the last other reference must not
 * go.
 *
 * An export is a whole file system, so a handle cannot lead out of it.
 *
 * Error policy: a table that cannot be made whole is not made at all, and the error names the place in the file. What a
 * peer sends is looked up and compared only.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "server/nfs_internal.h"

static pthread_spinlock_t current_lock;
static struct exports *current;
static _Atomic uint64_t current_serial; /* grows with every table published */

__attribute__((constructor)) static void exports_lock_init(void)
{
	pthread_spin_init(&current_lock, PTHREAD_PROCESS_PRIVATE);
}

static void exports_free(struct exports *exports)
{
	for (unsigned i = 0; i < exports->count; i++) {
		struct export *e = &exports->export[i];
		if (e->filesystem)
			storage_fs_release(e->filesystem);
		for (unsigned j = 0; j < e->allow_count; j++)
			free(e->allow[j].clients);
		free(e->allow);
		free(e->path);
	}
	free(exports->export);
	free(exports);
}

static void table_put(struct exports *exports)
{
	if (exports && atomic_fetch_sub_explicit(&exports->refs, 1, memory_order_acq_rel) == 1)
		exports_free(exports);
}

/* The current table with a reference; *SERIAL tells it from all others. */
static struct exports *table_get(uint64_t *serial)
{
	pthread_spin_lock(&current_lock);
	struct exports *e = current;
	if (e)
		atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
	*serial = atomic_load_explicit(&current_serial, memory_order_relaxed);
	pthread_spin_unlock(&current_lock);
	return e;
}

/* One for each table that calls on this reactor see: the current one, and old ones until their last call ends. */
#define HOLDS 8
struct hold {
	struct exports *table; /* with one reference */
	uint64_t serial;
	unsigned calls;
};
static __thread struct hold holds[HOLDS];
static __thread struct hold *newest; /* the one of the last exports_get(); NULL: none */

static void hold_drop(struct hold *h)
{
	if (newest == h)
		newest = NULL;
	table_put(h->table);
	h->table = NULL;
}

static void hold_put(struct hold *h)
{
	h->calls--;
	if (!h->calls && h->serial != atomic_load_explicit(&current_serial, memory_order_relaxed))
		hold_drop(h);
}

/*
 * The rules that were found last. What they point to may be freed memory, and another table's later: so they are
 * forgotten when this reactor takes a table, before which nothing of that can be asked for here.
 */
#define RULES 16u
static __thread struct rule_known {
	const struct export *export;
	struct in6_addr client;
	const struct config_allow *rule;
} rules[RULES];

static struct exports *hold_take(void)
{
	struct hold *free_one = NULL;
	uint64_t serial;
	struct exports *table = table_get(&serial);

	memset(rules, 0, sizeof(rules));
	gate_forget();
	if (!table)
		return NULL;
	for (unsigned i = 0; i < HOLDS; i++) {
		if (holds[i].table && !holds[i].calls)
			hold_drop(&holds[i]);
		if (!holds[i].table)
			free_one = &holds[i];
	}
	/* so many reloads while one call ran: the client asks again */
	if (!free_one) {
		table_put(table);
		return NULL;
	}
	*free_one = (struct hold){.table = table, .serial = serial, .calls = 1};
	newest = free_one;
	return table;
}

static void holds_flush(void *arg)
{
	(void)arg;
	for (unsigned i = 0; i < HOLDS; i++)
		if (holds[i].table && !holds[i].calls)
			hold_drop(&holds[i]);
}

void exports_publish(struct exports *exports)
{
	pthread_spin_lock(&current_lock);
	struct exports *old = current;
	current = exports;
	atomic_fetch_add_explicit(&current_serial, 1, memory_order_release);
	pthread_spin_unlock(&current_lock);
	table_put(old);
	if (fiber_self())
		for (unsigned i = 0; i < reactor_count(); i++)
			reactor_call(reactor_get(i), holds_flush, NULL);
}

struct exports *exports_get(void)
{
	uint64_t serial;

	if (!reactor_self())
		return table_get(&serial);
	if (newest && newest->serial == atomic_load_explicit(&current_serial, memory_order_acquire)) {
		newest->calls++;
		return newest->table;
	}
	return hold_take();
}

void exports_put(struct exports *exports)
{
	if (!exports)
		return;
	if (!reactor_self()) {
		table_put(exports);
		return;
	}
	if (newest && newest->table == exports && newest->calls) {
		hold_put(newest);
		return;
	}
	for (unsigned i = 0; i < HOLDS; i++) {
		if (holds[i].table == exports && holds[i].calls) {
			hold_put(&holds[i]);
			return;
		}
	}
	table_put(exports); /* it was made here and never published */
}

/* ------------------------------------------------------------------------------------------------
 * Making the table
 */

static int allow_copy(struct export *to, const struct config_export *from)
{
	to->allow = calloc(from->allow_count ? from->allow_count : 1, sizeof(*to->allow));
	if (!to->allow)
		return -ENOMEM;
	to->by_address = true;
	for (unsigned i = 0; i < from->allow_count; i++) {
		struct config_allow *a = &to->allow[i];
		size_t bytes = from->allow[i].client_count * sizeof(*a->clients);
		*a = from->allow[i];
		a->clients = malloc(bytes ? bytes : 1);
		if (!a->clients)
			return -ENOMEM;
		if (bytes)
			memcpy(a->clients, from->allow[i].clients, bytes);
		for (unsigned j = 0; j < a->client_count; j++)
			to->by_address &= a->clients[j].kind == CLIENTS_NET;
		to->allow_count = i + 1;
	}
	return 0;
}

/* Two rules for the same clients contradict each other, and which one counts would be a matter of their order. */
static const struct config_clients *allow_twice(const struct export *e)
{
	for (unsigned a = 0; a < e->allow_count; a++)
		for (unsigned b = 0; b <= a; b++)
			for (unsigned i = 0; i < e->allow[a].client_count; i++)
				for (unsigned j = 0; j < (a == b ? i : e->allow[b].client_count); j++) {
					const struct config_clients *x = &e->allow[a].clients[i];
					const struct config_clients *y = &e->allow[b].clients[j];
					if (config_clients_same(x, y))
						return x;
				}
	return NULL;
}

static int export_make(struct export *e, const struct config_export *from, const char *file, struct storage *storage,
	struct error *err)
{
	size_t len = strlen(from->path);

	if (from->path[0] != '/')
		return error_set(
			err, -EINVAL, "%s:%u: export path \"%s\" does not begin with /", file, from->line, from->path);
	while (len > 1 && from->path[len - 1] == '/')
		len--;
	e->path = strndup(from->path, len);
	if (!e->path || allow_copy(e, from))
		return error_set(err, -ENOMEM, "%s:%u: out of memory", file, from->line);
	e->id = checksum32(e->path, len);

	const struct config_clients *twice = allow_twice(e);
	if (twice)
		return error_set(err, -EINVAL, "%s:%u: export %s: clients %s stand there twice", file, from->line,
			e->path, twice->text);

	struct storage_fs *filesystem = storage_fs_find(storage, from->filesystem);
	if (!filesystem)
		return error_set(err, -ENOENT, "%s:%u: export %s: no file system %s on the drives found", file,
			from->line, e->path, from->filesystem);
	if (!filesystem->fs)
		return error_set(err, -EIO, "%s:%u: export %s: file system %s: %s", file, from->line, e->path,
			from->filesystem, filesystem->problem[0] ? filesystem->problem : "not mounted");
	storage_fs_hold(filesystem);
	e->filesystem = filesystem;
	e->fs = filesystem->fs;
	e->fsid = fs_fsid(e->fs);
	handle_key_make(fs_uuid(e->fs), e->fsid, e->handle_key);
	return 0;
}

struct exports *exports_build(const struct config *config, struct storage *storage, struct error *err)
{
	struct exports *exports = calloc(1, sizeof(*exports));
	int rc = 0;

	if (exports)
		exports->export = calloc(config->export_count ? config->export_count : 1, sizeof(*exports->export));
	if (!exports || !exports->export) {
		free(exports);
		error_set(err, -ENOMEM, "%s: out of memory", config->file);
		return NULL;
	}
	atomic_init(&exports->refs, 1);
	for (unsigned i = 0; i < config->export_count && !rc; i++) {
		const struct config_export *from = &config->exports[i];
		struct export *e = &exports->export[i];
		exports->count = i + 1;
		rc = export_make(e, from, config->file, storage, err);
		for (unsigned j = 0; j < i && !rc; j++) {
			if (!strcmp(e->path, exports->export[j].path))
				rc = error_set(err, -EEXIST, "%s:%u: export %s stands there twice, first in line %u",
					config->file, from->line, e->path, config->exports[j].line);
			else if (e->id == exports->export[j].id)
				rc = error_set(err, -EEXIST,
					"%s:%u: export %s: its path has the same checksum as %s; choose another path",
					config->file, from->line, e->path, exports->export[j].path);
		}
	}
	if (rc) {
		exports_free(exports);
		return NULL;
	}
	return exports;
}

/* ------------------------------------------------------------------------------------------------
 * Looking up
 */

const struct export *export_find_id(const struct exports *exports, uint32_t id)
{
	for (unsigned i = 0; i < exports->count; i++)
		if (exports->export[i].id == id)
			return &exports->export[i];
	return NULL;
}

const struct export *export_find(const struct exports *exports, const char *path, size_t len, const char **rest)
{
	const struct export *best = NULL;
	size_t best_len = 0;

	for (unsigned i = 0; i < exports->count; i++) {
		const struct export *e = &exports->export[i];
		size_t own = strlen(e->path);
		if (own == 1)
			own = 0; /* "/": everything lies in it */
		if (own > len || memcmp(path, e->path, own) || (own < len && path[own] != '/'))
			continue;
		if (!best || own > best_len) {
			best = e;
			best_len = own;
		}
	}
	if (best)
		*rest = path + best_len;
	return best;
}

static bool prefix_covers(const struct config_clients *c, const struct in6_addr *address)
{
	unsigned bytes = c->prefix / 8, bits = c->prefix % 8;

	if (c->prefix > 128 || memcmp(&c->net, address, bytes))
		return false;
	return !bits || !((c->net.s6_addr[bytes] ^ address->s6_addr[bytes]) >> (8 - bits));
}

/* How well C names ADDRESS; 0: not at all. Where LEAST is reached already, no service is asked. */
static unsigned clients_fit(const struct config_clients *c, const struct in6_addr *address, unsigned least)
{
	enum { NETGROUP_FIT = 129, HOST_FIT };
	unsigned fit;

	if (c->kind == CLIENTS_NET) {
		fit = c->prefix == 128 ? HOST_FIT : c->prefix + 1;
		return fit > least && prefix_covers(c, address) ? fit : 0;
	}
	fit = c->kind == CLIENTS_HOST ? HOST_FIT : NETGROUP_FIT;
	return fit > least && clients_named(c, address) ? fit : 0;
}

static const struct config_allow *rule_find(const struct export *export, const struct in6_addr *address)
{
	const struct config_allow *best = NULL;
	unsigned best_fit = 0;

	for (unsigned i = 0; i < export->allow_count; i++)
		for (unsigned j = 0; j < export->allow[i].client_count; j++) {
			unsigned fit = clients_fit(&export->allow[i].clients[j], address, best_fit);
			if (fit) {
				best = &export->allow[i];
				best_fit = fit;
			}
		}
	return best;
}

static const struct config_allow *rule_renew(
	struct rule_known *k, const struct export *export, const struct in6_addr *address)
{
	k->rule = rule_find(export, address);
	k->export = export;
	k->client = *address;
	return k->rule;
}

const struct config_allow *export_rule_of(const struct export *export, const struct in6_addr *address)
{
	if (!reactor_self() || !export->by_address)
		return rule_find(export, address);
	struct rule_known *k = &rules[(address->s6_addr[15] ^ export->id) % RULES];
	if (k->export != export || memcmp(&k->client, address, sizeof(*address)))
		return rule_renew(k, export, address);
	return k->rule;
}

const struct config_allow *export_rule(const struct export *export, const struct sockaddr_storage *peer)
{
	struct in6_addr address;

	if (peer->ss_family != AF_INET && peer->ss_family != AF_INET6)
		return NULL;
	rpc_address_mapped((const struct sockaddr *)peer, &address);
	return export_rule_of(export, &address);
}
