/*
 * The tree: one ordered map from keys to values that holds everything of a file system, and the
 * transactions that change it.
 *
 * Files: tree.c (lookup, changes), cache.c (nodes in memory), node.c (layout of a node), transact.c
 * (passes), log.c (redo log, group commit, replay), checkpoint.c (dirty nodes to rows, root flip),
 * space.c (stripes), mount.c (root records, life of a file system). All of it runs on the file system's home reactor.
 *
 * A transaction is a function, the pass: it reads with tx_get/tx_next/tx_prev and queues changes with
 * tx_put/tx_delete. A read of a node that is not in memory waits, and then the pass is void: the call
 * returns -EAGAIN, the pass returns it, and fs_transact() runs it again from the start. A pass that
 * got through without a wait has seen one state; then the queued changes are applied to that very
 * state and appended to the log as one redo record, again without a wait. So transactions are
 * atomic and serial without a lock, and between two waits a pass may also read and (after its last
 * -EAGAIN point: in apply hooks) change what is in memory.
 *
 * A pass does not see its own queued changes. A later tx_put of the same key in one pass wins.
 */
#ifndef FURROW_FS_TREE_INTERNAL_H
#define FURROW_FS_TREE_INTERNAL_H

#include "fs/fs.h"

/* Ordered by ino, type, off, snap. */
struct fs_key {
	uint64_t ino;
	uint64_t off;
	uint32_t snap;
	uint8_t type;
};
int fs_key_compare(const struct fs_key *a, const struct fs_key *b);

enum fs_key_type {
	/* ino 0: of the file system itself */
	KEY_STRIPES = 1,  /* off: stripe / 64 -> live blocks and state of 64 stripes (fs_format.h) */
	KEY_SUMMARY = 2,  /* off: first block of a run of blocks -> its owner, as a hint for the cleaner */
	KEY_SNAPSHOT = 3, /* off: snapshot id */
	KEY_ORPHAN = 4,	  /* off: inode number; no value */
	KEY_REPLY = 5,	  /* off: 0 .. FS_REPLIES-1, a ring -> struct fs_reply on disk */
	KEY_COUNTERS = 6, /* next inode number, generation, counts of inodes, bytes used */
	KEY_STATE = 7,	  /* off: kind << 56 | hash << 8 | n -> name and data of the server's */
	KEY_SHARE = 8,	  /* off: first of a range of shared blocks -> how often each is referred to */
	/* ino: an inode number */
	KEY_INODE = 16,	  /* off 0 -> the inode */
	KEY_SYMLINK = 17, /* off 0 -> the target's bytes */
	KEY_NAME = 18,	  /* of a directory; off: hash << 8 | n -> inode, sequence (to verify: name at that sequence) */
	KEY_ENTRY = 19,	  /* of a directory; off: sequence -> inode, type, name */
	KEY_XATTR = 20,
	KEY_EXTENT = 21 /* off: first file block -> physical block, count, checksums */
};

#define TREE_NODE_BYTES (16u * 1024)
#define TREE_VALUE_MAX 3072u /* bytes of one value */

struct tx;
typedef int tx_pass(struct tx *tx,
	void *arg); /* 0: apply; -EAGAIN: run again; else fs_transact() returns it and nothing happened */

/*
 * Runs PASS until it succeeds or fails, reserves log space first (so it waits while a checkpoint makes
 * room), applies, appends. *SEQ is the transaction's number for log_wait(). Home reactor.
 */
int fs_transact(struct fs *fs, tx_pass *pass, void *arg, uint64_t *seq);
/* As fs_transact, and waits until it is durable: many that come together share one log write. */
int fs_transact_durable(struct fs *fs, tx_pass *pass, void *arg);
/* Waits until transaction SEQ and all before it are durable. */
int log_wait(struct fs *fs, uint64_t seq);

/* *VAL points into a node and is valid until the pass returns or gets -EAGAIN. -ENOENT; -EAGAIN: run again; -EIO. */
int tx_get(struct tx *tx, const struct fs_key *key, const void **val, size_t *len);
/* The first key >= KEY (replaced by what was found), or the last key <= KEY. */
int tx_next(struct tx *tx, struct fs_key *key, const void **val, size_t *len);
int tx_prev(struct tx *tx, struct fs_key *key, const void **val, size_t *len);
/* VAL is copied. -ENOMEM, -E2BIG when the record grows beyond TX_BYTES_MAX (the pass must then do less). */
int tx_put(struct tx *tx, const struct fs_key *key, const void *val, size_t len);
int tx_delete(struct tx *tx, const struct fs_key *key); /* no error when it is not there */
#define TX_BYTES_MAX (256u * 1024)
/*
 * The keys of inodes have versions (snapshot.c): the functions above show those that the transaction looks at, and
 * change those of the current stamp. These see and change records as they lie in the tree.
 */
int tx_next_any(struct tx *tx, struct fs_key *key, const void **val, size_t *len);
int tx_prev_any(struct tx *tx, struct fs_key *key, const void **val, size_t *len);
int tx_put_any(struct tx *tx, const struct fs_key *key, const void *val, size_t len);
int tx_delete_any(struct tx *tx, const struct fs_key *key);
uint32_t fs_stamp(const struct fs *fs); /* grows with every snapshot; no record has a higher one */
/* Number of the newest snapshot that is kept: versions of this stamp or a higher one are seen by the live file system
 * alone, and change in place; what is new gets it. */
uint32_t fs_stamp_floor(const struct fs *fs);
/* Runs in apply, after the changes are in memory: it cannot fail and must not wait. At most 8 a pass. */
int tx_on_apply(struct tx *tx, void (*fn)(void *arg), void *arg);
struct fs *tx_fs(struct tx *tx);

/* Reads outside of transactions: as the above, but they wait where needed and copy the value out. Return its length. */
int tree_get(struct fs *fs, const struct fs_key *key, void *val, size_t room);
int tree_next(struct fs *fs, struct fs_key *key, void *val, size_t room);
int tree_prev(struct fs *fs, struct fs_key *key, void *val, size_t room);

/* ------------------------------------------------------------------------------------------------
 * Space: blocks of the parity zone. Physical block numbers are the volume's (raid.h).
 *
 * A stripe is free, or holds data, or holds nodes; its live count is kept in KEY_STRIPES. Data
 * stripes' counts change in the transactions that add or drop extents; node stripes' counts change
 * in checkpoints only (checkpoint.c tells why the two never share a stripe). A stripe whose count
 * falls to 0 becomes free when the root that no longer needs it is durable.
 */

/* ROWS whole rows of one stripe, to be written by the caller and then named in a transaction. */
struct row_run {
	uint64_t stripe;
	uint32_t row, rows;
};
enum space_class { SPACE_STREAM, SPACE_SMALL, SPACE_NODES, SPACE_CLEANER };
/*
 * Takes up to ROWS rows (at least 1) from the open stripe of CLASS: a stream gets whole stripes as
 * far as they go. The rows are the caller's until space_rows_done(), and the stripe is not freed
 * before that. -ENOSPC. No wait.
 */
int space_take_rows(struct fs *fs, enum space_class class, uint32_t rows, struct row_run *run);
void space_rows_done(struct fs *fs, const struct row_run *run);
/* Queue in TX: COUNT blocks from BLOCK on became live, or dead. May return -EAGAIN as tx_get. */
int tx_blocks_add(struct tx *tx, uint64_t block, uint32_t count);
int tx_blocks_drop(struct tx *tx, uint64_t block, uint32_t count);
/* So many references more, or fewer, to shared blocks: added up over the pass and applied with it (share.c). */
int tx_share(struct tx *tx, uint64_t first, uint64_t count, int32_t delta);
/* Who owns COUNT blocks from BLOCK on: queue it with tx_blocks_add(). Need not be taken back with tx_blocks_drop(). */
int tx_summary_add(struct tx *tx, uint64_t block, uint32_t count, uint64_t ino, uint64_t file_block);
/*
 * Promise of space: BLOCKS more blocks can be written later (delayed allocation). -ENOSPC now rather
 * than then. REPLACED of them take the place of blocks that come back then, and are no more of what df shows. TIGHT:
 * the cleaner and a checkpoint have done what they can. Deletion and checkpoints have a reserve of their own. No wait.
 */
int space_reserve(struct fs *fs, uint64_t blocks, uint64_t replaced, bool tight);
void space_unreserve(struct fs *fs, uint64_t blocks);
/* Is there room for all that is promised if nothing comes back by it? A snapshot or a clone may keep what there is. */
bool space_promises_hold(const struct fs *fs);
/* Nothing is shown to be left, and the tree has used up what is its own: new names would take what overwriting needs.
 */
bool space_tree_full(const struct fs *fs);

#endif
