/*
 * Summaries of stripes as fs check sees them: every block that an extent has is named by one, or the cleaner would
 * never empty its stripe, and a repair would not find it again.
 */
#ifndef FURROW_FS_CHECK_SUMMARY_H
#define FURROW_FS_CHECK_SUMMARY_H

#include "fs/inode_internal.h"

struct summary_seen {
	uint64_t block, ino, file_block;
	uint32_t count;
};
struct check_summaries {
	struct {
		struct summary_seen *of;
		unsigned long n, room;
		bool sorted;
	} side[2]; /* of files, and of FS_SHARED_INO */
};
bool summary_good(const struct fs *fs, const struct fs_key *key, const void *val, size_t len);
/* -EIO: the value makes no sense; -ENOMEM. */
int summaries_seen(
	struct check_summaries *s, const struct fs *fs, const struct fs_key *key, const void *val, size_t len);
void summaries_clear(struct check_summaries *s); /* keeps the memory */
void summaries_free(struct check_summaries *s);
/*
 * 0: each block of extent E at KEY is named; else the number of the first one in the file that is not goes to *MISSING,
 * and the result is 1. What changed since it was seen is looked up in the tree. Waits.
 */
int summaries_missing(
	struct check_summaries *s, struct fs *fs, const struct fs_key *key, const struct extent *e, uint64_t *missing);

#endif
