/*
 * The lines that fs check has to report, kept until another walk says whether they count (check.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/check_problems.h"

int problems_init(struct problems *p)
{
	list_init(&p->list);
	return htable_init(&p->table, 16);
}

struct problem *problem_find(const struct problems *p, const char *text, uint64_t hash)
{
	htable_foreach_hash (node, &p->table, hash) {
		struct problem *problem = container_of(node, struct problem, node);

		if (strcmp(problem->text, text) == 0)
			return problem;
	}
	return NULL;
}

void problems_clear(struct problems *p)
{
	struct list_node *node;

	while ((node = list_pop_front(&p->list))) {
		struct problem *problem = container_of(node, struct problem, link);

		htable_remove(&p->table, &problem->node);
		free(problem);
	}
	p->count = 0;
}

int problems_add(struct problems *p, bool lost, uint32_t snap, const char *format, va_list args)
{
	struct problem *problem = calloc(1, sizeof(*problem));
	uint64_t hash;
	int prefix = 0;

	if (!problem)
		return -ENOMEM;
	if (snap)
		prefix = snprintf(problem->text, sizeof(problem->text), "snapshot %u: ", snap);
	vsnprintf(problem->text + prefix, sizeof(problem->text) - (size_t)prefix, format, args);
	hash = checksum64(problem->text, strlen(problem->text), 0);
	if (p->count >= CHECK_PROBLEMS || problem_find(p, problem->text, hash)) {
		free(problem);
		return 0;
	}
	problem->lost = lost;
	htable_insert(&p->table, &problem->node, hash);
	list_push_back(&p->list, &problem->link);
	p->count++;
	return 0;
}
