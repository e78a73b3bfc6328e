/* The one list: intrusive, doubly linked, circular through its head. A node that is in no list is linked to itself. */
#ifndef FURROW_CORE_LIST_H
#define FURROW_CORE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list_node {
	struct list_node *next, *prev;
};
struct list {
	struct list_node head;
};

#define LIST_INIT(l)                                                                                                   \
	{                                                                                                              \
		{                                                                                                      \
			&(l).head, &(l).head                                                                           \
		}                                                                                                      \
	}
#define container_of(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void list_init(struct list *l)
{
	l->head.next = l->head.prev = &l->head;
}
static inline void list_node_init(struct list_node *n)
{
	n->next = n->prev = n;
}
static inline bool list_empty(const struct list *l)
{
	return l->head.next == &l->head;
}
static inline bool list_linked(const struct list_node *n)
{
	return n->next != n;
}
static inline void list_insert_after(struct list_node *at, struct list_node *n)
{
	n->next = at->next;
	n->prev = at;
	at->next->prev = n;
	at->next = n;
}
static inline void list_push_front(struct list *l, struct list_node *n)
{
	list_insert_after(&l->head, n);
}
static inline void list_push_back(struct list *l, struct list_node *n)
{
	list_insert_after(l->head.prev, n);
}
static inline void list_remove(struct list_node *n)
{
	n->next->prev = n->prev;
	n->prev->next = n->next;
	list_node_init(n);
}
static inline struct list_node *list_first(const struct list *l)
{
	return list_empty(l) ? NULL : l->head.next;
}
static inline struct list_node *list_last(const struct list *l)
{
	return list_empty(l) ? NULL : l->head.prev;
}
static inline struct list_node *list_pop_front(struct list *l)
{
	struct list_node *n = list_first(l);
	if (n)
		list_remove(n);
	return n;
}
/* Moves everything from FROM to the end of TO. */
static inline void list_append(struct list *to, struct list *from)
{
	if (list_empty(from))
		return;
	from->head.next->prev = to->head.prev;
	to->head.prev->next = from->head.next;
	from->head.prev->next = &to->head;
	to->head.prev = from->head.prev;
	list_init(from);
}

/* N may be removed inside the loop. */
#define list_foreach(n, l)                                                                                             \
	for (struct list_node *n = (l)->head.next, *n##_next = n->next; n != &(l)->head;                               \
		n = n##_next, n##_next = n->next)

#endif
