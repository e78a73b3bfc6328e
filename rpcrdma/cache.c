/*
 * The reply cache: what was answered to calls that must not be done twice.
 *
 * Owns a fixed number of entries, cut into shards by a hash of the call. A client's connections may lie on different
 * reactors, and a retransmission may come on another than the call did, so every shard has a mutex; it is held for a
 * look-up and the copy of some hundred bytes, never over a wait.
 *
 * Life of an entry: free -> running (rpc_cache_begin: the call was new) -> done (rpc_cache_store: kept) -> reused.
 * Entries that run are never reused. A call known from before a restart enters as `told` and becomes running when it
 * comes again.
 *
 * Which one is reused: the oldest of the shard if it is older than anybody repeats a call (keep_ns). Else, since a
 * client that was cut off for some seconds must find its own whatever others did meanwhile, the oldest of the client
 * that has the most; `by_count` finds it without a search.
 *
 * What identifies a call is struct rpc_tag: client, xid, program, version, procedure, and a checksum of the
 * arguments, since xids come round and some clients start them at the same number after a reboot.
 *
 * Errors: a full shard means that a call is not remembered (it runs all the same); a reply that is longer than
 * RPC_CACHE_REPLY_MAX is not kept.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "rpcrdma/rpcrdma_internal.h"

#define CACHE_SHARDS 64u
#define RPC_CACHE_REPLY_MAX 3584u /* and so one fits the room that every request has */
#define CACHE_INLINE 448u	  /* holds every NFSv3 reply that is cached: a handle, attributes and two wcc_data */

enum entry_state { ENTRY_FREE, ENTRY_RUNNING, ENTRY_DONE, ENTRY_TOLD };

struct rpc_cache_entry {
	struct htable_node hash_node;
	struct list_node node; /* free or kept */
	struct list_node own;  /* of its client, when it is kept */
	struct cache_client *client;
	uint64_t since_ns;
	struct rpc_tag tag;
	enum entry_state state;
	uint32_t bytes;
	uint8_t *more; /* in place of data, when that is too small */
	uint8_t data[CACHE_INLINE] __attribute__((aligned(16)));
};

/* Who has entries that are kept in a shard: here as long as he has. */
struct cache_client {
	struct htable_node hash_node;
	struct list_node node; /* by_count[count] */
	struct list own;       /* oldest first */
	uint64_t id;	       /* rpc_tag.client */
	uint32_t count;
};

struct cache_shard {
	pthread_mutex_t lock;
	struct htable table, clients;
	struct list free, kept; /* oldest first */
	struct list *by_count;	/* clients by how many entries of theirs are kept */
	uint32_t most;		/* of one client */
} __attribute__((aligned(64)));

struct rpc_cache {
	struct cache_shard shard[CACHE_SHARDS];
	struct rpc_cache_entry *entry;
	struct list *counts; /* what by_count points into */
	uint32_t entries;
	uint64_t keep_ns;
	struct counter early; /* reused before keep_ns */
};

static uint64_t tag_hash(const struct rpc_tag *t)
{
	return hash_u64(
		t->client ^ hash_u64(t->xid | (uint64_t)t->procedure << 32 | (uint64_t)t->version << 48) ^ t->program);
}

static bool tag_equal(const struct rpc_tag *a, const struct rpc_tag *b)
{
	return a->client == b->client && a->xid == b->xid && a->program == b->program && a->version == b->version &&
	       a->procedure == b->procedure && a->checksum == b->checksum;
}

static struct cache_shard *shard_of(struct rpc_cache *cache, uint64_t hash)
{
	return &cache->shard[hash >> 58];
}

size_t rpc_cache_entry_bytes(void)
{
	return sizeof(struct rpc_cache_entry);
}

int rpc_cache_new(uint32_t entries, uint64_t keep_ns, struct rpc_cache **out)
{
	struct rpc_cache *cache = aligned_alloc(64, sizeof(*cache));
	if (!cache)
		return -ENOMEM;
	memset(cache, 0, sizeof(*cache));
	uint32_t each = entries < CACHE_SHARDS ? 1 : entries / CACHE_SHARDS;
	cache->entries = each * CACHE_SHARDS;
	cache->keep_ns = keep_ns;
	cache->entry = calloc(cache->entries, sizeof(*cache->entry)); /* pages come as they are used */
	cache->counts = calloc(cache->entries + CACHE_SHARDS, sizeof(*cache->counts));
	bool failed = !cache->entry || !cache->counts;
	for (unsigned i = 0; i < CACHE_SHARDS; i++) {
		struct cache_shard *s = &cache->shard[i];
		pthread_mutex_init(&s->lock, NULL);
		list_init(&s->free);
		list_init(&s->kept);
		if (failed || htable_init(&s->table, each) < 0 || htable_init(&s->clients, 16) < 0) {
			failed = true;
			continue;
		}
		s->by_count = &cache->counts[i * (each + 1)];
		for (uint32_t n = 0; n <= each; n++)
			list_init(&s->by_count[n]);
	}
	if (failed) {
		rpc_cache_destroy(cache);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < cache->entries; i++)
		list_push_back(&cache->shard[i % CACHE_SHARDS].free, &cache->entry[i].node);
	counter_register(&cache->early, "furrow_rpc_cache_early_total", NULL,
		"Replies forgotten before their client could no longer ask for them again: more memory keeps more");
	*out = cache;
	return 0;
}

void rpc_cache_destroy(struct rpc_cache *cache)
{
	if (!cache)
		return;
	if (cache->early.name)
		counter_remove(&cache->early);
	for (unsigned i = 0; i < CACHE_SHARDS; i++) {
		struct cache_shard *s = &cache->shard[i];
		for (uint32_t n = 1; s->by_count && n <= s->most; n++)
			for (struct list_node *c; (c = list_pop_front(&s->by_count[n]));)
				free(container_of(c, struct cache_client, node));
		if (s->table.bucket)
			htable_fini(&s->table);
		if (s->clients.bucket)
			htable_fini(&s->clients);
		pthread_mutex_destroy(&s->lock);
	}
	for (uint32_t i = 0; cache->entry && i < cache->entries; i++)
		free(cache->entry[i].more);
	free(cache->counts);
	free(cache->entry);
	free(cache);
}

/* ------------------------------------------------------------------------------------------------
 * Who keeps what. All under the shard's lock
 */

static struct cache_client *client_get(struct cache_shard *s, uint64_t id)
{
	uint64_t hash = hash_u64(id);
	htable_foreach_hash (n, &s->clients, hash) {
		struct cache_client *c = container_of(n, struct cache_client, hash_node);
		if (c->id == id)
			return c;
	}
	struct cache_client *c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->id = id;
	list_init(&c->own);
	list_push_back(&s->by_count[0], &c->node);
	htable_insert(&s->clients, &c->hash_node, hash);
	return c;
}

static void client_count(struct cache_shard *s, struct cache_client *c, uint32_t count)
{
	list_remove(&c->node);
	c->count = count;
	if (count) {
		list_push_back(&s->by_count[count], &c->node);
		if (count > s->most)
			s->most = count;
	} else {
		htable_remove(&s->clients, &c->hash_node);
		free(c);
	}
	while (s->most && list_empty(&s->by_count[s->most]))
		s->most--;
}

/* False: no memory to know its client. */
static bool entry_keep(struct cache_shard *s, struct rpc_cache_entry *e, enum entry_state state)
{
	struct cache_client *c = client_get(s, e->tag.client);
	if (!c)
		return false;
	e->state = state;
	e->client = c;
	e->since_ns = now_ns();
	list_push_back(&s->kept, &e->node);
	list_push_back(&c->own, &e->own);
	client_count(s, c, c->count + 1);
	return true;
}

static void entry_unkeep(struct cache_shard *s, struct rpc_cache_entry *e)
{
	list_remove(&e->node);
	list_remove(&e->own);
	client_count(s, e->client, e->client->count - 1);
	e->client = NULL;
}

/* The one to reuse; NULL when every one of the shard runs. */
static struct rpc_cache_entry *entry_least(struct rpc_cache *cache, struct cache_shard *s)
{
	struct list_node *n = list_first(&s->kept);
	if (!n)
		return NULL;
	struct rpc_cache_entry *e = container_of(n, struct rpc_cache_entry, node);
	if (now_ns() - e->since_ns >= cache->keep_ns)
		return e;
	counter_add(&cache->early, 1);
	struct cache_client *c = container_of(list_first(&s->by_count[s->most]), struct cache_client, node);
	return container_of(list_first(&c->own), struct rpc_cache_entry, own);
}

/* ------------------------------------------------------------------------------------------------
 * Entries
 */

static struct rpc_cache_entry *entry_find(struct cache_shard *s, uint64_t hash, const struct rpc_tag *tag)
{
	htable_foreach_hash (n, &s->table, hash) {
		struct rpc_cache_entry *e = container_of(n, struct rpc_cache_entry, hash_node);
		if (tag_equal(&e->tag, tag))
			return e;
	}
	return NULL;
}

static void entry_clear(struct cache_shard *s, struct rpc_cache_entry *e)
{
	htable_remove(&s->table, &e->hash_node);
	free(e->more);
	e->more = NULL;
	e->bytes = 0;
	e->state = ENTRY_FREE;
}

/* An entry for TAG, in the table and in no list; NULL when every one of the shard runs. */
static struct rpc_cache_entry *entry_take(
	struct rpc_cache *cache, struct cache_shard *s, uint64_t hash, const struct rpc_tag *tag)
{
	struct list_node *n = list_pop_front(&s->free);
	struct rpc_cache_entry *e = n ? container_of(n, struct rpc_cache_entry, node) : entry_least(cache, s);
	if (!e)
		return NULL;
	if (!n) {
		entry_unkeep(s, e);
		entry_clear(s, e);
	}
	e->tag = *tag;
	htable_insert(&s->table, &e->hash_node, hash);
	return e;
}

static bool entry_fill(struct rpc_cache_entry *e, const void *data, uint32_t bytes)
{
	if (bytes > CACHE_INLINE) {
		if (bytes > RPC_CACHE_REPLY_MAX || !(e->more = malloc(bytes)))
			return false;
	}
	memcpy(e->more ? e->more : e->data, data, bytes);
	e->bytes = bytes;
	return true;
}

enum rpc_cache_answer rpc_cache_begin(struct rpc_cache *cache, const struct rpc_tag *tag,
	struct rpc_cache_entry **entry, const void **replay, uint32_t *replay_bytes, uint8_t *reply, uint32_t room,
	uint32_t *bytes)
{
	uint64_t hash = tag_hash(tag);
	struct cache_shard *s = shard_of(cache, hash);
	enum rpc_cache_answer answer = RPC_CACHE_RUN;

	*entry = NULL;
	pthread_mutex_lock(&s->lock);
	struct rpc_cache_entry *e = entry_find(s, hash, tag);
	if (!e) {
		e = entry_take(cache, s, hash, tag);
		if (e)
			e->state = ENTRY_RUNNING;
		*entry = e;
	} else if (e->state == ENTRY_RUNNING) {
		answer = RPC_CACHE_RUNNING;
	} else if (e->state == ENTRY_TOLD) {
		entry_unkeep(s, e);
		e->state = ENTRY_RUNNING;
		*replay = e->more ? e->more : e->data; /* stays until _store() or _forget() */
		*replay_bytes = e->bytes;
		*entry = e;
		answer = RPC_CACHE_REPLAY;
	} else {
		*bytes = e->bytes;
		if (e->bytes <= room)
			memcpy(reply, e->more ? e->more : e->data, e->bytes);
		answer = RPC_CACHE_HIT;
	}
	pthread_mutex_unlock(&s->lock);
	return answer;
}

void rpc_cache_store(struct rpc_cache *cache, struct rpc_cache_entry *e, const uint8_t *reply, uint32_t bytes)
{
	struct cache_shard *s = shard_of(cache, e->hash_node.hash);
	pthread_mutex_lock(&s->lock);
	assert(e->state == ENTRY_RUNNING);
	free(e->more);
	e->more = NULL;
	if (!entry_fill(e, reply, bytes) || !entry_keep(s, e, ENTRY_DONE)) {
		entry_clear(s, e);
		list_push_front(&s->free, &e->node);
	}
	pthread_mutex_unlock(&s->lock);
}

void rpc_cache_forget(struct rpc_cache *cache, struct rpc_cache_entry *e)
{
	struct cache_shard *s = shard_of(cache, e->hash_node.hash);
	pthread_mutex_lock(&s->lock);
	assert(e->state == ENTRY_RUNNING);
	entry_clear(s, e);
	list_push_front(&s->free, &e->node);
	pthread_mutex_unlock(&s->lock);
}

int rpc_cache_put_replay(struct rpc_cache *cache, const struct rpc_tag *tag, const void *replay, uint32_t bytes)
{
	uint64_t hash = tag_hash(tag);
	struct cache_shard *s = shard_of(cache, hash);
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	struct rpc_cache_entry *e = entry_find(s, hash, tag);
	if (e) {
		rc = -EEXIST;
	} else if (!(e = entry_take(cache, s, hash, tag))) {
		rc = -ENOBUFS;
	} else if (!entry_fill(e, replay, bytes) || !entry_keep(s, e, ENTRY_TOLD)) {
		entry_clear(s, e);
		list_push_front(&s->free, &e->node);
		rc = -EMSGSIZE;
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}
