/*
 * files: the upper half of fs. It gives the tree's keys their meaning: inodes, names, data.
 *
 * The lower half (tree, log, space, mount: tree_internal.h, fs_internal.h) calls what stands in the
 * first part of this header. All of it runs in fibers of the file system's home reactor.
 */
#ifndef FURROW_FS_FILES_INTERNAL_H
#define FURROW_FS_FILES_INTERNAL_H

#include "fs/fs.h"
#include "fs/tree_internal.h"

struct fs_files;

/* In the first transaction of a new file system: the root directory and the counters. A pass, or called by one. */
int files_format(struct tx *tx, const struct fs_create_options *options);
/* After the replay, with a tree that answers and (unless read-only) transactions that run. Fills fs->files. */
int files_mount(struct fs *fs, struct error *err);
/* Before the last checkpoint, no call is left: flushes (unless read-only), ends all background work, frees fs->files.
 */
int files_unmount(struct fs *fs);
/* For repair: stamps and hashes, and nothing else of the upper half. */
int files_repair_begin(struct fs *fs);
void files_repair_end(struct fs *fs);
/* All data and attributes that were dirty when it was called are in durable transactions when it returns. Waits. */
int files_flush_all(struct fs *fs);
/*
 * Waits until every read of physical blocks that began before the call has ended. The checkpoint
 * calls it after its root is durable and before the stripes that fell to 0 live blocks become free:
 * whoever saw a block in the tree before its drop may still be reading it.
 */
void files_read_barrier(struct fs *fs);
/* A change of an extent of INO is being applied to the tree. No wait. */
void files_extent_changed(struct fs *fs, uint64_t ino);
/* Fills in cached_inodes, dirty_bytes, checksum_errors, checksum_repairs, inodes. No wait. */
void files_status(const struct fs *fs, struct fs_status *out);
/* What the pass queued with tx_share() becomes changes of counts, and of extents that nobody refers to any more. */
int shares_resolve(struct tx *tx);
/* Number of inodes. No wait. */
uint64_t files_inode_count(const struct fs *fs);

/*
 * Rules of the lower half that are relied on: within one pass a later put or delete of a key wins over an earlier one;
 * calls of tx_blocks_add/drop for blocks of the same stripe add up; fs_transact() of a read-only mount is -EROFS.
 */

#endif
