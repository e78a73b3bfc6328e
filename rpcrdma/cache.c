/*
 * The reply cache: what was answered to calls that must not be done twice.
 *
 * Owns a fixed number of entries, cut into shards by a hash of the call. A client's connections may lie on different
 * reactors, and a retransmission may come on another than the call did, so every shard has a mutex; it is held for a
 * look-up and the copy of some hundred bytes, never over a wait.
 *
 * Life of an entry: free -> running (rpc_cache_begin: the call was new) -> done (rpc_cache_store: in the LRU list) ->
 * reused as the oldest of its shard. Entries that run are in no list and are never reused. A call known from before a
 * restart enters as `told` and becomes running when it comes again.
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
	struct list_node node; /* free or lru */
	struct rpc_tag tag;
	enum entry_state state;
	uint32_t bytes;
	uint8_t *more; /* in place of data, when that is too small */
	uint8_t data[CACHE_INLINE] __attribute__((aligned(16)));
};

struct cache_shard {
	pthread_mutex_t lock;
	struct htable table;
	struct list free, lru; /* oldest first */
} __attribute__((aligned(64)));

struct rpc_cache {
	struct cache_shard shard[CACHE_SHARDS];
	struct rpc_cache_entry *entry;
	uint32_t entries;
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

int rpc_cache_new(uint32_t entries, struct rpc_cache **out)
{
	struct rpc_cache *cache = aligned_alloc(64, sizeof(*cache));
	if (!cache)
		return -ENOMEM;
	memset(cache, 0, sizeof(*cache));
	cache->entries = entries < CACHE_SHARDS ? CACHE_SHARDS : entries;
	cache->entry = calloc(cache->entries, sizeof(*cache->entry)); /* pages come as they are used */
	bool failed = !cache->entry;
	for (unsigned i = 0; i < CACHE_SHARDS; i++) {
		struct cache_shard *s = &cache->shard[i];
		pthread_mutex_init(&s->lock, NULL);
		list_init(&s->free);
		list_init(&s->lru);
		if (!failed && htable_init(&s->table, cache->entries / CACHE_SHARDS) < 0)
			failed = true;
	}
	if (failed) {
		rpc_cache_destroy(cache);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < cache->entries; i++)
		list_push_back(&cache->shard[i % CACHE_SHARDS].free, &cache->entry[i].node);
	*out = cache;
	return 0;
}

void rpc_cache_destroy(struct rpc_cache *cache)
{
	if (!cache)
		return;
	for (unsigned i = 0; i < CACHE_SHARDS; i++) {
		if (cache->shard[i].table.bucket)
			htable_fini(&cache->shard[i].table);
		pthread_mutex_destroy(&cache->shard[i].lock);
	}
	for (uint32_t i = 0; cache->entry && i < cache->entries; i++)
		free(cache->entry[i].more);
	free(cache->entry);
	free(cache);
}

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
static struct rpc_cache_entry *entry_take(struct cache_shard *s, uint64_t hash, const struct rpc_tag *tag)
{
	struct list_node *n = list_pop_front(&s->free);
	if (!n) {
		n = list_pop_front(&s->lru);
		if (!n)
			return NULL;
		entry_clear(s, container_of(n, struct rpc_cache_entry, node));
	}
	struct rpc_cache_entry *e = container_of(n, struct rpc_cache_entry, node);
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
		e = entry_take(s, hash, tag);
		if (e)
			e->state = ENTRY_RUNNING;
		*entry = e;
	} else if (e->state == ENTRY_RUNNING) {
		answer = RPC_CACHE_RUNNING;
	} else if (e->state == ENTRY_TOLD) {
		list_remove(&e->node);
		e->state = ENTRY_RUNNING;
		*replay = e->more ? e->more : e->data; /* stays until _store() or _forget() */
		*replay_bytes = e->bytes;
		*entry = e;
		answer = RPC_CACHE_REPLAY;
	} else {
		*bytes = e->bytes;
		if (e->bytes <= room)
			memcpy(reply, e->more ? e->more : e->data, e->bytes);
		list_remove(&e->node);
		list_push_back(&s->lru, &e->node);
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
	if (entry_fill(e, reply, bytes)) {
		e->state = ENTRY_DONE;
		list_push_back(&s->lru, &e->node);
	} else {
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
	} else if (!(e = entry_take(s, hash, tag))) {
		rc = -ENOBUFS;
	} else if (!entry_fill(e, replay, bytes)) {
		entry_clear(s, e);
		list_push_front(&s->free, &e->node);
		rc = -EMSGSIZE;
	} else {
		e->state = ENTRY_TOLD;
		list_push_back(&s->lru, &e->node);
	}
	pthread_mutex_unlock(&s->lock);
	return rc;
}
