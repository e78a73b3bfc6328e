/*
 * What the files of the upper half share: inodes in memory, changes, names, and the data path.
 * All of it belongs to the home reactor; "no wait" as in core.h.
 */
#ifndef FURROW_FS_INODE_INTERNAL_H
#define FURROW_FS_INODE_INTERNAL_H

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fs/files_internal.h"
#include "fs/fs_internal.h"
#include "fs/inode_format.h"

/* ------------------------------------------------------------------------------------------------
 * Inodes (inode.c)
 */

/*
 * As the tree holds it, with what unstable writes changed meanwhile on top. disk_size is the size
 * that the tree has: size is ahead of it while data that makes the file longer is not flushed.
 * It begins with what struct fs_attr has in the same order: attr_fill() then takes few instructions.
 */
struct inode_attr {
	uint32_t gen;
	uint32_t snap; /* 0: live; else it is the one of that snapshot, which nothing changes */
	uint32_t type, mode, nlink, uid, gid, rdev_major, rdev_minor;
	uint32_t flags;
	uint64_t size, disk_size, blocks, change, aux, next_seq;
	int64_t atime, mtime, ctime, btime;
};

struct inode_data;
struct inode {
	struct htable_node node;
	struct list_node lru;	/* in files->lru while nothing holds it in memory */
	struct list_node dirty; /* in files->dirty while something waits to be flushed */
	uint64_t ino;
	uint64_t map; /* changes with its extents: see data_map.c */
	struct inode_attr attr;
	struct inode_data *data; /* dirty blocks; NULL when there are none */
	uint32_t refs;		 /* fibers that keep it over a wait */
	uint32_t holds;		 /* fs_hold() */
	bool attr_dirty;	 /* attr differs from what the tree has (not counting size) */
	bool gone;		 /* no longer in the table: freed with its last ref */
	bool reclaim;		 /* an orphan of the last run that may still be held again */
};
_Static_assert(sizeof(struct inode) <= 256, "an inode's memory");

int inode_decode(const void *val, size_t len, struct inode_attr *attr);
void inode_encode(const struct inode_attr *attr, struct inode_disk *disk);
/* From the table or the tree, whatever its link count. -ENOENT, -EAGAIN, -EIO, -ENOMEM. */
int inode_load(struct tx *tx, uint64_t ino, struct inode **inode);
/* As a file handle names it: -ESTALE when it is not there or not reachable any more. */
int inode_get(struct tx *tx, struct fs_id id, struct inode **inode);
struct inode *inode_cached(struct fs_files *files, uint64_t ino); /* the live one; NULL when not in memory. No wait */
void inode_ref(struct inode *inode);
void inode_unref(struct fs_files *files, struct inode *inode);
/* Puts it where it belongs (LRU or not, dirty list or not) after something that holds it changed. */
void inode_settle(struct fs_files *files, struct inode *inode);
void inode_mark_dirty(struct fs_files *files, struct inode *inode);
void inode_drop(struct fs_files *files, struct inode *inode); /* out of the table: it was deleted */

void attr_fill(const struct inode_attr *from, uint64_t ino, struct fs_attr *to);
int64_t time_pack(const struct timespec *t);
int64_t time_now(void);

/* Permissions */
bool cred_in_group(const struct fs_cred *cred, uint32_t gid);
/* WANT: FS_MAY_READ, WRITE, EXEC together. 0 or -EACCES. */
int attr_permission(const struct inode_attr *attr, const struct fs_cred *cred, uint32_t want);
/* For data: the owner passes with owner_override, and everybody who has it open. */
int attr_data_permission(const struct inode_attr *attr, const struct fs_op *op, uint32_t want);
void attr_kill_suid(struct inode_attr *attr, const struct fs_cred *cred); /* after a write by CRED */

/* ------------------------------------------------------------------------------------------------
 * Changes: the inodes that one pass changes. A pass works on copies, which become the truth when it is applied.
 */

#define CHANGE_INODES 6
struct change {
	struct fs *fs;
	int64_t now;
	unsigned n;
	struct {
		struct inode *inode; /* NULL: a new one */
		uint64_t ino;
		bool removed;
		struct inode_attr attr;
	} of[CHANGE_INODES];
	uint64_t next_ino, inodes; /* counters after it */
	bool counters;
	bool reply;
	/* what else happens in apply */
	void (*applied)(struct change *change, void *arg);
	void *applied_arg;
};
void change_begin(struct change *change, struct tx *tx);
/* The copy to work on; one for each inode. */
struct inode_attr *change_inode(struct change *change, struct inode *inode);
/* A new inode: the copy is zeroed but for gen, times, change and nlink. *INO is its number. */
struct inode_attr *change_create(struct change *change, enum fs_type type, uint64_t *ino);
void change_remove(struct change *change, struct inode *inode);		      /* its record goes, the cache drops it */
void change_touch(struct change *change, struct inode_attr *attr, bool data); /* ctime, change; with DATA also mtime */
/* Queues everything, the reply of OP too when it has one. Last call of a pass. */
int change_finish(struct change *change, struct tx *tx, const struct fs_op *op, struct fs_id reply_id);

void wcc_before(struct fs_wcc *wcc, const struct inode_attr *attr);
void wcc_after(struct fs_wcc *wcc, const struct inode_attr *attr, uint64_t ino);

/* ------------------------------------------------------------------------------------------------
 * Names (dir.c)
 */

struct dirent {
	uint64_t ino, seq, slot; /* slot: off of its KEY_NAME */
	uint32_t gen;
	uint8_t type;
};
extern uint64_t name_hash_mask; /* tests make it 0 to have every name collide */
uint64_t name_hash(struct fs *fs, const char *name, size_t len);
int name_check(const char *name, size_t len);
bool name_is_dots(const char *name, size_t len);
/* -ENOENT when there is no such name. */
int dirent_find(struct tx *tx, uint64_t dir, const char *name, size_t len, struct dirent *ent);
/* The slot of KEY_NAME that a new name may take. -ENOSPC. */
int dirent_slot(struct tx *tx, uint64_t dir, const char *name, size_t len, uint64_t *slot);
int dirent_put(struct tx *tx, uint64_t dir, const char *name, size_t len, const struct dirent *ent);
int dirent_delete(struct tx *tx, uint64_t dir, const struct dirent *ent);
int name_decode(const void *val, size_t len, struct dirent *ent, const char **name, size_t *name_len);
int entry_decode(const void *val, size_t len, struct dirent *ent, const char **name, size_t *name_len);
/* DIR as a directory in which OP may look up (and change names, with WRITE). */
int dir_get(struct tx *tx, struct fs_id id, const struct fs_op *op, uint32_t want, struct inode **dir);
/* May OP take CHILD out of DIR (sticky bit)? */
int dir_sticky(const struct inode_attr *dir, const struct inode_attr *child, const struct fs_cred *cred);

/* remove.c: one link of INODE (not a directory) goes, in CHANGE: the file too when it was the last one and nothing
 * needs it. */
int unlink_inode(struct tx *tx, struct change *change, struct inode *inode);
void orphan_queue(struct fs *fs, uint64_t ino); /* to be deleted in the background. No wait */
int orphans_mount(struct fs *fs);
void orphans_unmount(struct fs *fs);

/* ------------------------------------------------------------------------------------------------
 * Data (data.c: dirty blocks; extent.c: extents; read.c, write.c, flush.c)
 */

enum record_state { RECORD_DIRTY, RECORD_FLUSHING };

/* One block of a file in memory. The table has the newest of a block; a dirty one may stand on one being flushed. */
struct block_record {
	struct htable_node node;
	struct list_node link; /* of a dirty one: in data->dirty */
	struct inode *inode;
	uint64_t block;
	struct buf *buf; /* referenced; the block's memory begins at off */
	uint32_t off;
	uint16_t lo, hi; /* the bytes that are valid */
	uint8_t state;
	uint32_t sum;
	struct block_record *older; /* being flushed */
	struct block_record *newer; /* that stands on it: then only that one is in the table */
	uint64_t seq;		    /* of the first write that it holds */
	uint64_t phys;		    /* where it was flushed to */
};

struct inode_data {
	struct inode *inode;
	struct list dirty; /* records, in order of their first write */
	unsigned records;  /* all */
	unsigned users;	   /* writers that place blocks, flush groups: exclusive waits for them */
	bool exclusive;	   /* truncation: new users wait */
	bool closed;	   /* new users wait, but for flush groups */
	bool half;	   /* in the middle of a change that no reader is to see */
	unsigned sleepers; /* fibers in idle */
	struct wait_queue idle;
	struct list waiters;	     /* struct flush_waiter */
	struct list_node queue_link; /* in files->flush_queue */
};

/* A fiber that waits until what was written up to SEQ in blocks FROM..TO (inclusive) is durable. */
struct flush_waiter {
	struct list_node link;
	uint64_t from, to, seq;
	int error;
	bool done;
	struct fiber *fiber;
};

void data_release(struct fs_files *files, struct inode *inode); /* frees it when it holds nothing. No wait */
int data_use(struct fs_files *files, struct inode *inode);	/* as a user. Waits */
void data_unuse(struct fs_files *files, struct inode *inode);
int data_exclude(struct fs_files *files, struct inode *inode); /* alone. Waits */
int data_quiesce(struct fs *fs, struct inode *inode);	       /* alone, and nothing is dirty; waits, flushes */
void data_unexclude(struct fs *fs, struct inode *inode);
struct block_record *record_find(const struct fs_files *files, const struct inode *inode, uint64_t block);
struct block_record *record_alloc(struct fs_files *files);
void record_free(struct fs_files *files, struct block_record *rec); /* memory of one that is in no table */
/* BELOW: what record_find() says. */
void record_insert(struct fs *fs, struct inode *inode, struct block_record *rec, struct block_record *below);
void record_remove(struct fs *fs, struct block_record *rec); /* out of the table and its list, freed, unreserved */
static inline uint8_t *record_data(const struct block_record *rec)
{
	return rec->buf->data + rec->off;
}
bool record_complete(const struct block_record *rec); /* holds all bytes of its block up to the end of the file */
/* Makes a dirty partial block whole from what is below it. The caller is a user of the data. Waits. */
int record_fill(struct fs *fs, struct inode *inode, uint64_t block);
struct buf *scratch_get(struct fs_files *files); /* waits, but never for memory */
void scratch_put(struct fs_files *files, struct buf *buf);
void scratch_renew(struct fs_files *files, struct buf **buf); /* after a read that was -ETIMEDOUT. Waits */
/* Block BLOCK as the tree (not memory) has it, zeros in a hole. Waits. */
int block_read(struct fs *fs, struct inode *inode, uint64_t block, struct buf *to, uint32_t off, bool *hole);
/* Drops dirty records from block FROM on. No wait; the caller is exclusive. */
void data_discard(struct fs *fs, struct inode *inode, uint64_t from);

/* Extents */
struct extent {
	uint64_t first, block;
	uint32_t count;
	bool hole;	     /* hides what older versions have there */
	bool shared;	     /* block is one of FS_SHARED_INO, and there are no sums */
	const uint8_t *sums; /* 4 bytes each, in the value */
};
static inline uint32_t extent_sum(const struct extent *e, uint32_t i)
{
	le32 v;
	memcpy(v.b, e->sums + (size_t)i * 4, 4);
	return le32_get(v);
}
int extent_decode(
	const struct volume_geometry *g, const struct fs_key *key, const void *val, size_t len, struct extent *e);
/* The extent that has BLOCK, or else the first one after it; of a shared one the part from BLOCK on that one extent
 * owns. -ENOENT when there is none. */
int extent_find(struct tx *tx, uint64_t ino, uint64_t block, struct extent *e);
int extent_find_record(struct tx *tx, uint64_t ino, uint64_t block, struct extent *e); /* as the file has it */
/* extent_edit.c. One call a range and pass: a pass does not see what it queued.
 * New blocks, or shared ones, take the place of whatever the file has there; without both there is a hole then. */
struct extent_edit {
	uint64_t first, count; /* of the file; with sums at most EXTENT_BLOCKS_MAX, shared EXTENT_REF_BLOCKS_MAX */
	uint64_t block;	       /* of the volume, or of FS_SHARED_INO */
	const uint8_t *sums;   /* 4 bytes each */
	bool shared;
};
#define EXTENT_END ((FS_SIZE_MAX >> BLOCK_SHIFT) + 1) /* behind the last block that a file may have */
#define EXTENT_VERSIONS_MAX (FS_SNAPSHOTS_MAX + 2u)
/* The N edits, ascending and apart, happen to the live file; counts and summaries too. *DROPPED grows by the blocks
 * that it had there. */
int extents_edit(struct tx *tx, uint64_t ino, const struct extent_edit *edit, unsigned n, uint64_t *dropped);
/* Blocks FROM..*TO go, from the end, LIMIT extents at most: *TO becomes the end of what is left to do (FROM: nothing).
 */
int extents_remove(struct tx *tx, uint64_t ino, uint64_t from, uint64_t *to, unsigned limit, uint64_t *dropped);
/* Blocks that lie at FROM still with the same SUM, in whatever version, lie at TO. The N moves ascend by block of the
 * file. */
struct extent_move {
	uint64_t file_block, from, to;
	uint32_t sum; /* FROM may have been given back meanwhile, and hold something newer of the same file */
};
int extents_move(struct tx *tx, uint64_t ino, const struct extent_move *move, unsigned n, unsigned *moved);
/* FN sees the places of blocks *BLOCK..END in all versions, until it returns false; *BLOCK is where to go on. */
typedef bool extent_owned_fn(void *arg, uint64_t file_block, uint64_t block, uint32_t sum);
int extents_owned(struct tx *tx, uint64_t ino, uint64_t *block, uint64_t end, extent_owned_fn *fn, void *arg);
/* Blocks BLOCK..*END, of which *END is brought nearer: does the live file alone have blocks of its own there? When
 * these are written anew, as many come back. */
int extents_alone(struct tx *tx, uint64_t ino, uint64_t block, uint64_t *end, bool *alone);
/* What snapshot SNAP (0: the live file) sees of blocks *BLOCK..END becomes shared, LIMIT cells a call; *BLOCK is where
 * to go on. What the file says stays the same. */
int extents_share(struct tx *tx, uint64_t ino, uint32_t snap, uint64_t *block, uint64_t end, unsigned limit);

/* share.c */
int share_decode(const struct fs_key *key, const void *val, size_t len, uint64_t *end, uint32_t *refs);
int share_end(struct tx *tx, uint64_t *end);		      /* numbers from *END on are free */
int share_new(struct tx *tx, uint64_t first, uint64_t count); /* COUNT numbers with one reference each */

/*
 * The cache of clean data (data_cache.c). No wait but where it says so. Insert inside of the read section in which the
 * blocks were found, or while their rows are in flight.
 */
struct data_place {
	uint64_t phys;
	uint32_t sum;
	uint32_t at; /* in the buffer, in blocks */
};
struct data_run;
struct data_ghost;
struct data_cache {
	struct htable blocks;
	struct list small, main; /* entries, the oldest first */
	uint64_t bytes, small_bytes, limit, runs;
	struct data_ghost *ghost;
	uint64_t ghost_mask;
	uint32_t ghost_clock; /* blocks that left the small queue */
	struct buf_reserve reserve;
	struct wait_queue loaded;		 /* something that was expected came, or did not */
	uint64_t hits, misses, evictions, stale; /* hits, misses: blocks of clean data that readers wanted */
};
enum data_found { DATA_NONE, DATA_THERE, DATA_LOADING };
/* A hit gives the block's memory, valid until the next wait unless a reference is taken. */
enum data_found data_cache_find(struct fs *fs, uint64_t phys, uint32_t sum, struct slice *at);
/* The same for a place that may be out of date: then it is just not there. */
bool data_cache_peek(struct fs *fs, uint64_t phys, uint32_t sum, struct slice *at);
bool data_cache_has(struct fs *fs, uint64_t phys); /* or is about to have it; no use of it */
/* Takes a reference of BUF, with N blocks in it. */
void data_cache_add(struct fs *fs, struct buf *buf, const struct data_place *place, unsigned n);
/* An entry to which the buffer comes later; every one ends with expected(), without BUF when there is none. USED:
 * somebody wanted it. NULL: not needed, or no memory. */
struct data_run *data_cache_expect(struct fs *fs, const struct data_place *place, unsigned n);
void data_cache_expected(struct fs *fs, struct data_run *run, struct buf *buf, bool used);
void data_cache_wait(struct fs *fs); /* until something expected came. Waits */
void data_cache_drop(struct fs *fs, uint64_t phys, uint64_t count);
void data_cache_move(struct fs *fs, uint64_t from, uint64_t to, uint32_t sum); /* while the rows of TO are in flight */
void data_cache_clear(struct fs *fs);
int data_cache_init(struct fs *fs);
void data_cache_fini(struct fs *fs); /* waits */

/* Where blocks were found (data_map.c). No wait */
struct map_slot;
struct data_map {
	struct map_slot *slot;
	uint64_t mask, clock, floor; /* clock: of changes; before floor: nothing is known any more */
};
uint64_t data_map_new(struct fs *fs); /* for inode.map */
void data_map_forget(struct fs *fs);  /* all of it */
void data_map_put(struct fs *fs, const struct inode *inode, uint64_t block, uint64_t phys, uint32_t sum);
bool data_map_find(struct fs *fs, const struct inode *inode, uint64_t block, struct slice *at); /* clean, in memory */
int data_map_init(struct fs *fs);
void data_map_fini(struct fs *fs);

/* Reading ahead: read_ahead.c sees each read (MISSED: of something that was not in memory) and calls read_ahead(). */
struct read_stream;
struct ahead {
	struct read_stream *stream;
	uint32_t clock, running;
	uint64_t bytes, blocks; /* under way; read so far */
};
void read_ahead_seen(struct fs *fs, const struct inode_attr *attr, struct fs_id id, uint64_t off, uint32_t len,
	bool missed, struct reactor *reactor);
/* Brings COUNT bytes (1 MiB at most) at OFF into the cache, read and verified on REACTOR. Returns the blocks that were
 * missing. Waits. */
int read_ahead(struct fs *fs, struct fs_id id, uint64_t off, uint32_t count, struct reactor *reactor);
int read_ahead_init(struct fs *fs);
void read_ahead_fini(struct fs *fs); /* waits until nothing is under way */

/* Reads verified blocks: SUMS has one le32 a block. Repairs. Waits; the caller is inside a read section. */
int blocks_read_verified(struct fs *fs, uint64_t ino, uint64_t file_block, uint64_t phys, uint32_t count,
	const uint32_t *sums, const struct slice *to, unsigned n);
unsigned read_enter(struct fs_files *files); /* no wait: in one go with the look at the tree */
void read_leave(struct fs_files *files, unsigned phase);

/* Flush */
void flush_want(struct fs *fs, struct inode *inode); /* queue all that is dirty of it, and see that it is taken */
void flush_dirty_all(struct fs *fs);		     /* wants everything */
int flush_wait(struct fs *fs, struct inode *inode, uint64_t from, uint64_t to, uint64_t seq);
void flush_check_waiters(struct fs_files *files, struct inode *inode);
int flush_mount(struct fs *fs);
void flush_unmount(struct fs *fs);
void flush_timer_arm(struct fs *fs);
/* Writes one block durably into a row of its own. The caller names it in a transaction, then calls space_rows_done().
 */
int flush_one_block(struct fs *fs, const struct slice *block, uint64_t *phys, struct row_run *run);

/* snapshot.c. No wait but for mount and unmount */
#define FS_SNAPDIR_INO 1u /* `.snapshot`, which no key of the tree has */
#define FS_SNAPDIR_NAME ".snapshot"
bool snapshot_exists(struct fs_files *files, uint32_t id);
uint32_t snapshot_named(struct fs_files *files, const char *name, size_t len); /* 0: none */
uint32_t snapshot_after(
	struct fs_files *files, uint32_t id, const char **name, size_t *len); /* the next one; 0: none */
void snapshot_dir_attr(struct fs *fs, struct inode_attr *attr);
int snapshot_decode(const void *val, size_t len, uint8_t *state, uint64_t *created_ns, const char **name, size_t *n);
int snapshots_mount(struct fs *fs);
void snapshots_unmount(struct fs *fs);
static inline bool name_is_snapdir(const char *name, size_t len)
{
	return len == sizeof(FS_SNAPDIR_NAME) - 1 && memcmp(name, FS_SNAPDIR_NAME, len) == 0;
}
/* A name that no file can have. */
static inline bool name_is_reserved(struct fs_id dir, const char *name, size_t len)
{
	return dir.ino == FS_ROOT_INO && dir.snap == 0 && name_is_snapdir(name, len);
}

/* xattr.c */
int state_decode(const void *val, size_t len, struct fs_state *record); /* -EIO: it makes no sense */
int xattrs_delete(struct tx *tx, uint64_t ino);				/* all of an inode that goes */
int xattr_decode(const void *val, size_t len, size_t *size, const char **name, size_t *name_len);
size_t xattr_piece_bytes(size_t name_len, size_t size, unsigned piece); /* 0: there is no such piece */
uint64_t xattr_hash(struct fs *fs, const char *name, size_t len);

/* truncate.c: SET_SIZE, with all the other attributes of SET. */
int data_set_size(struct fs *fs, const struct fs_op *op, struct fs_id id, const struct fs_setattr *set,
	const struct timespec *guard, struct fs_wcc *wcc, struct fs_attr *attr);
/* The same, but a file that is as long or longer meanwhile stays as it is. */
int data_grow(struct fs *fs, const struct fs_op *op, struct fs_id id, const struct fs_setattr *set, struct fs_wcc *wcc);
/* Checks SET by OP against ATTR and applies it to ATTR but for the size. */
int attr_set(struct inode_attr *attr, const struct fs_op *op, const struct fs_setattr *set, int64_t now);

/* ------------------------------------------------------------------------------------------------
 */

#define FLUSH_GROUPS 3 /* under way at a time; more would only make them smaller */
struct flush_group;

struct fs_files {
	struct fs *fs;
	struct htable inodes;
	struct list lru;   /* least recently used first */
	struct list dirty; /* inodes, first dirtied first */
	size_t inode_limit;
	uint64_t hash_seed;

	uint64_t next_ino, inode_count; /* KEY_COUNTERS */
	uint64_t reply_seq;
	uint32_t stamp; /* the number of snapshots that were ever made */
	uint32_t floor; /* the newest one that is kept; 0: none is */
	uint32_t snapshot_changes;
	unsigned halves; /* inodes whose data is in the middle of a change that no snapshot may see */
	struct wait_queue halves_idle;
	struct snapshot_table *snapshots;

	struct htable records;
	struct block_record *record_pool;
	unsigned record_pool_size;
	uint64_t dirty_bytes, dirty_limit;
	uint64_t write_seq;
	struct buf *scratch; /* see scratch_get() */
	struct fiber_mutex scratch_lock;
	struct fiber_mutex room_lock; /* of the writer that waits for room; the others queue here */
	unsigned room_waiters;
	struct wait_queue dirty_wait; /* writers that wait for dirty_bytes to fall */

	struct list flush_queue; /* inode_data */
	struct flush_group *group[FLUSH_GROUPS];
	unsigned groups_busy;
	struct wait_queue flush_idle; /* a group ended */
	struct timer flush_timer;
	bool flush_timer_armed, flush_background, stopping;
	unsigned tx_records; /* how many records of a group one transaction has room for: learnt */
	uint64_t flush_age_ns;

	unsigned read_phase, reads[2]; /* see files_read_barrier() */
	struct wait_queue read_wait;

	struct list orphans;  /* struct orphan: to be deleted */
	struct list reclaims; /* struct orphan: of the last run, may be held again until reclaim_timer fires */
	bool orphan_running;
	struct wait_queue orphan_idle;
	struct timer reclaim_timer;
	bool reclaim_armed;

	struct data_cache cache;
	struct data_map map;
	struct ahead ahead;

	uint64_t checksum_errors, checksum_repairs;
};
extern uint64_t orphan_reclaim_ns; /* how long orphans of the last run wait to be held again; tests make it short */

/* Runs FN(FS, ARG) on the home reactor. -ENOMEM becomes -EAGAIN, anything unknown -EIO. */
int files_call(struct fs *fs, int (*fn)(struct fs *fs, void *arg), void *arg);
int files_error(int r);
/* As above for one durable transaction, and for a pass that only reads. */
int files_transact(struct fs *fs, tx_pass *pass, void *arg);
int files_view(struct fs *fs, tx_pass *pass, void *arg);

#endif
