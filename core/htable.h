/*
 * The one hash table: intrusive, chained, grows by doubling. The caller hashes and compares. Not
 * for several threads at once.
 */
#ifndef FURROW_CORE_HTABLE_H
#define FURROW_CORE_HTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct htable_node {
	struct htable_node *next;
	uint64_t hash;
};
struct htable {
	struct htable_node **bucket;
	size_t mask, count;
};

int htable_init(struct htable *t, size_t expected); /* -ENOMEM */
void htable_fini(struct htable *t);		    /* frees the buckets, not the nodes */
void htable_grow(struct htable *t);		    /* for htable_insert() */
void htable_remove(struct htable *t, struct htable_node *n);

static inline void htable_insert(struct htable *t, struct htable_node *n, uint64_t hash)
{
	if (__builtin_expect(t->count > t->mask, 0))
		htable_grow(t);
	struct htable_node **b = &t->bucket[hash & t->mask];
	n->hash = hash;
	n->next = *b;
	*b = n;
	t->count++;
}

static inline struct htable_node *htable_bucket(const struct htable *t, uint64_t hash)
{
	return t->bucket[hash & t->mask];
}
/* Visits the nodes of equal hash; the caller compares keys. N must not be removed inside the loop and then used. */
#define htable_foreach_hash(n, t, h)                                                                                   \
	for (struct htable_node *n = htable_bucket(t, h); n; n = n->next)                                              \
		if (n->hash == (h))

/* Visits all: SLOT starts at 0; returns NULL at the end. The node returned may be removed before the next call. */
struct htable_cursor {
	size_t bucket;
	struct htable_node *next;
};
struct htable_node *htable_next(const struct htable *t, struct htable_cursor *c);

/* splitmix64: spreads integer keys. */
static inline uint64_t hash_u64(uint64_t x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* Fibonacci hashing: for numbers that count up, alone or in strides; two instructions. */
static inline uint64_t hash_place(uint64_t x)
{
	return (x * 0x9e3779b97f4a7c15ull) >> 24;
}

#endif
