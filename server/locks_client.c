/*
 * locks_client: who has locks, and the memory that they may take together and each.
 *
 * A client is known as long as an owner of it has something in a shard, or a name of it is kept. Memory is charged to
 * it and to the whole table before it is taken, and given back when it is freed.
 *
 * Names (lock_owner_get) are for callers that would otherwise keep copies: one for equal owners, counted. They have
 * nothing to do with what an owner has in the table: one that has nothing can have a name here, and the other way
 * round.
 *
 * Error policy: beyond a limit, or without memory, there is NULL or false; the callers make it -ENOLCK.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/locks_internal.h"

#define TOTAL_BYTES (64ull << 20)

/* What lock_owner_get() gives out. */
struct lock_name {
	struct lock_owner owner;
	struct lock_client *client;
	unsigned refs;
	struct htable_node node;
	uint8_t data[];
};

/* ------------------------------------------------------------------------------------------------
 * Clients and what they may take
 */

static uint64_t client_hash(enum lock_kind kind, uint64_t id)
{
	return hash_u64(id + (uint64_t)kind);
}

/* With the clients' mutex held. */
static struct lock_client *client_get_locked(struct lock_clients *t, enum lock_kind kind, uint64_t id)
{
	uint64_t hash = client_hash(kind, id);
	struct lock_client *client = NULL;

	htable_foreach_hash (n, &t->clients, hash) {
		struct lock_client *c = container_of(n, struct lock_client, node);
		if (c->id == id && c->kind == kind)
			client = c;
	}
	if (!client && (client = calloc(1, sizeof(*client)))) {
		client->id = id;
		client->kind = kind;
		htable_insert(&t->clients, &client->node, hash);
	}
	if (client)
		client->owners++;
	return client;
}

struct lock_client *lock_client_get(struct lock_clients *t, enum lock_kind kind, uint64_t id)
{
	pthread_mutex_lock(&t->mutex);
	struct lock_client *client = client_get_locked(t, kind, id);
	pthread_mutex_unlock(&t->mutex);
	return client;
}

static void client_put_locked(struct lock_clients *t, struct lock_client *client)
{
	if (--client->owners)
		return;
	htable_remove(&t->clients, &client->node);
	free(client);
}

void lock_client_put(struct lock_clients *t, struct lock_client *client)
{
	pthread_mutex_lock(&t->mutex);
	client_put_locked(t, client);
	pthread_mutex_unlock(&t->mutex);
}

void lock_uncharge(struct lock_clients *t, struct lock_client *client, uint64_t bytes)
{
	atomic_fetch_sub(&client->bytes, bytes);
	atomic_fetch_sub(&t->bytes, bytes);
}

/* FORCE: an unlock's. */
bool lock_charge(struct lock_clients *t, struct lock_client *client, uint64_t bytes, bool force)
{
	uint64_t mine = atomic_fetch_add(&client->bytes, bytes) + bytes;
	uint64_t all = atomic_fetch_add(&t->bytes, bytes) + bytes;

	if (force || (mine <= t->limits.client_bytes && all <= t->limits.total_bytes))
		return true;
	lock_uncharge(t, client, bytes);
	return false;
}

uint64_t lock_owner_hash(const struct lock_owner *owner)
{
	return checksum64(owner->data, owner->len, client_hash(owner->kind, owner->client));
}

/* ------------------------------------------------------------------------------------------------
 * Names to keep
 */

static bool owner_equal(const struct lock_owner *a, const struct lock_owner *b)
{
	return a->client == b->client && a->kind == b->kind && a->len == b->len && !memcmp(a->data, b->data, a->len);
}

static struct lock_name *name_make(struct lock_clients *t, const struct lock_owner *owner)
{
	struct lock_name *name = malloc(sizeof(*name) + owner->len);
	struct lock_client *client = name ? client_get_locked(t, owner->kind, owner->client) : NULL;

	if (!client || !lock_charge(t, client, sizeof(*name) + owner->len, false)) {
		if (client)
			client_put_locked(t, client);
		free(name);
		return NULL;
	}
	*name = (struct lock_name){.owner = *owner, .client = client};
	if (owner->len)
		memcpy(name->data, owner->data, owner->len);
	name->owner.data = name->data;
	htable_insert(&t->names, &name->node, lock_owner_hash(owner));
	return name;
}

const struct lock_owner *lock_owner_get(struct lock_table *table, const struct lock_owner *owner)
{
	struct lock_clients *t = lock_table_clients(table);
	uint64_t hash = lock_owner_hash(owner);
	struct lock_name *name = NULL;

	if (owner->len > LOCK_OWNER_MAX)
		return NULL;
	pthread_mutex_lock(&t->mutex);
	htable_foreach_hash (n, &t->names, hash) {
		struct lock_name *o = container_of(n, struct lock_name, node);
		if (owner_equal(&o->owner, owner))
			name = o;
	}
	if (!name)
		name = name_make(t, owner);
	if (name)
		name->refs++;
	pthread_mutex_unlock(&t->mutex);
	return name ? &name->owner : NULL;
}

static void name_free(struct lock_clients *t, struct lock_name *name)
{
	htable_remove(&t->names, &name->node);
	lock_uncharge(t, name->client, sizeof(*name) + name->owner.len);
	client_put_locked(t, name->client);
	free(name);
}

void lock_owner_put(struct lock_table *table, const struct lock_owner *owner)
{
	struct lock_clients *t = lock_table_clients(table);

	if (!owner)
		return;
	struct lock_name *name = (struct lock_name *)(uintptr_t)owner; /* its first member */
	pthread_mutex_lock(&t->mutex);
	if (!--name->refs)
		name_free(t, name);
	pthread_mutex_unlock(&t->mutex);
}

uint64_t lock_client_bytes(struct lock_table *table, enum lock_kind kind, uint64_t id)
{
	struct lock_clients *t = lock_table_clients(table);
	uint64_t hash = client_hash(kind, id), bytes = 0;

	pthread_mutex_lock(&t->mutex);
	htable_foreach_hash (n, &t->clients, hash) {
		struct lock_client *c = container_of(n, struct lock_client, node);
		if (c->id == id && c->kind == kind)
			bytes = atomic_load(&c->bytes);
	}
	pthread_mutex_unlock(&t->mutex);
	return bytes;
}

uint64_t lock_bytes(struct lock_table *table)
{
	return atomic_load(&lock_table_clients(table)->bytes);
}

int lock_clients_init(struct lock_clients *t, const struct lock_limits *limits)
{
	t->limits.total_bytes = limits && limits->total_bytes ? limits->total_bytes : TOTAL_BYTES;
	t->limits.client_bytes = limits && limits->client_bytes ? limits->client_bytes : t->limits.total_bytes / 4;
	pthread_mutex_init(&t->mutex, NULL);
	int rc = htable_init(&t->clients, 64);
	return rc ? rc : htable_init(&t->names, 64);
}

void lock_clients_fini(struct lock_clients *t)
{
	struct htable_cursor cursor = {0};

	for (struct htable_node *n; t->names.bucket && (n = htable_next(&t->names, &cursor));)
		name_free(t, container_of(n, struct lock_name, node));
	htable_fini(&t->names);
	htable_fini(&t->clients);
	pthread_mutex_destroy(&t->mutex);
}
