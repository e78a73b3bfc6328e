/*
 * What one walk of fs check found: lines of text, each once.
 */
#ifndef FURROW_FS_CHECK_PROBLEMS_H
#define FURROW_FS_CHECK_PROBLEMS_H

#include <stdarg.h>

#include "core/core.h"
#include "core/htable.h"
#include "core/list.h"

#define CHECK_PROBLEMS 10000u /* kept of one walk */

struct problem {
	struct htable_node node;
	struct list_node link;
	bool lost; /* for good */
	char text[200];
};
struct problems {
	struct htable table;
	struct list list;
	unsigned count;
};

int problems_init(struct problems *p); /* -ENOMEM */
/* SNAP: the snapshot that has it; 0: none. -ENOMEM. */
int problems_add(struct problems *p, bool lost, uint32_t snap, const char *format, va_list args);
struct problem *problem_find(const struct problems *p, const char *text, uint64_t hash);
void problems_clear(struct problems *p);

#endif
