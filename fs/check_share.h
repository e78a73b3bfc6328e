/*
 * Shared blocks as fs check sees them: what refers to them, what counts that, what has their places.
 */
#ifndef FURROW_FS_CHECK_SHARE_H
#define FURROW_FS_CHECK_SHARE_H

#include <stdbool.h>
#include <stdint.h>

struct share_seen {
	enum share_kind { SHARE_REF, SHARE_COUNT, SHARE_OWNED, SHARE_LOST } kind;
	uint32_t refs; /* of a count */
	uint64_t first, count;
	uint64_t ino, file_block; /* of a reference */
};
struct check_shares {
	struct share_seen *of;
	unsigned long n, room;
};
int shares_seen(struct check_shares *s, const struct share_seen *seen); /* -ENOMEM */
void shares_clear(struct check_shares *s);				/* keeps the memory */
void shares_free(struct check_shares *s);
typedef void shares_fault_fn(void *arg, bool lost, const char *problem);
int shares_compare(const struct check_shares *s, shares_fault_fn *fault, void *arg); /* -ENOMEM */

#endif
