/*
 * The hash table: chains in an array of a power of two, doubled when there is more than one node to a chain. When
 * there is no memory to double it stays as it is and its chains grow: an insertion never fails.
 */
#include "core/htable.h"

#include <errno.h>
#include <stdlib.h>

int htable_init(struct htable *t, size_t expected)
{
	size_t size = 8;
	while (size < expected)
		size *= 2;
	t->bucket = calloc(size, sizeof(*t->bucket));
	t->mask = size - 1;
	t->count = 0;
	return t->bucket ? 0 : -ENOMEM;
}

void htable_fini(struct htable *t)
{
	free(t->bucket);
	t->bucket = NULL;
	t->mask = t->count = 0;
}

void htable_grow(struct htable *t)
{
	size_t old = t->mask + 1;
	struct htable_node **bucket = calloc(2 * old, sizeof(*bucket));
	if (!bucket)
		return;
	for (size_t i = 0; i < old; i++) {
		/* Each chain goes to two, in its order. */
		struct htable_node **low = &bucket[i], **high = &bucket[i + old];
		for (struct htable_node *n = t->bucket[i]; n; n = n->next) {
			struct htable_node ***to = n->hash & old ? &high : &low;
			**to = n;
			*to = &n->next;
		}
		*low = *high = NULL;
	}
	free(t->bucket);
	t->bucket = bucket;
	t->mask = 2 * old - 1;
}

void htable_remove(struct htable *t, struct htable_node *n)
{
	for (struct htable_node **p = &t->bucket[n->hash & t->mask]; *p; p = &(*p)->next)
		if (*p == n) {
			*p = n->next;
			n->next = NULL;
			t->count--;
			return;
		}
}

struct htable_node *htable_next(const struct htable *t, struct htable_cursor *c)
{
	while (!c->next) {
		if (c->bucket > t->mask || !t->bucket)
			return NULL;
		c->next = t->bucket[c->bucket++];
	}
	struct htable_node *n = c->next;
	c->next = n->next;
	return n;
}
