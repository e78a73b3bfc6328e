/*
 * Inside the lock table: the clients that have locks, and what they may take of memory (locks_client.c).
 *
 * All shards of a table share them, under one mutex that nests inside the shards'. Any thread, no wait.
 */
#ifndef FURROW_LOCKS_INTERNAL_H
#define FURROW_LOCKS_INTERNAL_H

#include <pthread.h>

#include "server/locks.h"

struct lock_client {
	uint64_t id;
	enum lock_kind kind;
	unsigned owners; /* that refer to it: under the mutex */
	_Atomic uint64_t bytes;
	struct htable_node node;
};

struct lock_clients {
	pthread_mutex_t mutex;
	struct htable clients;
	struct lock_limits limits;
	_Atomic uint64_t bytes;
};
int lock_clients_init(struct lock_clients *clients, const struct lock_limits *limits); /* -ENOMEM: fini it, too */
void lock_clients_fini(struct lock_clients *clients);
struct lock_clients *lock_table_clients(struct lock_table *table);

/* Counted; NULL: no memory. */
struct lock_client *lock_client_get(struct lock_clients *clients, enum lock_kind kind, uint64_t id);
void lock_client_put(struct lock_clients *clients, struct lock_client *client);
/* BYTES more of memory for the client; false: that is beyond a limit. FORCE: an unlock's, which must not fail. */
bool lock_charge(struct lock_clients *clients, struct lock_client *client, uint64_t bytes, bool force);
void lock_uncharge(struct lock_clients *clients, struct lock_client *client, uint64_t bytes);
uint64_t lock_owner_hash(const struct lock_owner *owner);

#endif
