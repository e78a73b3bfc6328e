/*
 * locks_client: who has locks, and the memory that they may take together and each.
 *
 * A client is known as long as an owner of it has something in a shard. Memory is charged to it and to the whole table
 * before it is taken, and given back when it is freed.
 *
 * Error policy: beyond a limit, or without memory, there is NULL or false; the callers make it -ENOLCK.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/locks_internal.h"

#define TOTAL_BYTES (64ull << 20)

/* ------------------------------------------------------------------------------------------------
 * Clients and what they may take
 */

static uint64_t client_hash(enum lock_kind kind, uint64_t id)
{
	return hash_u64(id + (uint64_t)kind);
}

struct lock_client *lock_client_get(struct lock_clients *t, enum lock_kind kind, uint64_t id)
{
	uint64_t hash = client_hash(kind, id);
	struct lock_client *client = NULL;

	pthread_mutex_lock(&t->mutex);
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
	pthread_mutex_unlock(&t->mutex);
	return client;
}

void lock_client_put(struct lock_clients *t, struct lock_client *client)
{
	pthread_mutex_lock(&t->mutex);
	if (!--client->owners) {
		htable_remove(&t->clients, &client->node);
		free(client);
	}
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
	return htable_init(&t->clients, 64);
}

void lock_clients_fini(struct lock_clients *t)
{
	htable_fini(&t->clients);
	pthread_mutex_destroy(&t->mutex);
}
