/*
 * struct fs and what the files of the lower half share: tree.c, cache.c, node.c, transact.c, log.c,
 * checkpoint.c, space.c, mount.c. All of it is touched by fibers of the home reactor only; public
 * functions hop there with reactor_call().
 */
#ifndef FURROW_FS_FS_INTERNAL_H
#define FURROW_FS_FS_INTERNAL_H

#include "core/core.h"
#include "fs/fs.h"
#include "fs/fs_format.h"
#include "fs/tree_internal.h"
#include "raid/raid.h"

/* A key as three integers, in the order of the tree. */
struct pkey {
	uint64_t w[3];
};
static inline int pkey_compare(const struct pkey *a, const struct pkey *b)
{
	for (int i = 0; i < 3; i++)
		if (a->w[i] != b->w[i])
			return a->w[i] < b->w[i] ? -1 : 1;
	return 0;
}
#define PKEY_RESERVED 0xffffffull /* zero, in the last word */
static inline struct pkey pkey_pack(const struct fs_key *key)
{
	return (struct pkey){
		{key->ino, (uint64_t)key->type << 56 | key->off >> 8, key->off << 56 | (uint64_t)key->snap << 24}};
}
static inline struct fs_key pkey_unpack(const struct pkey *p)
{
	return (struct fs_key){.ino = p->w[0],
		.type = (uint8_t)(p->w[1] >> 56),
		.off = p->w[1] << 8 | p->w[2] >> 56,
		.snap = (uint32_t)(p->w[2] >> 24)};
}
static inline struct pkey pkey_read(const struct key_disk *k)
{
	return (struct pkey){{le64_get(k->w[0]), le64_get(k->w[1]), le64_get(k->w[2])}};
}
static inline struct key_disk pkey_write(const struct pkey *p)
{
	return (struct key_disk){{le64_put(p->w[0]), le64_put(p->w[1]), le64_put(p->w[2])}};
}

/* ------------------------------------------------------------------------------------------------
 * node.c: the 16 KiB image of a node. No wait, no memory.
 */

#define NODE_ROOM (TREE_NODE_BYTES - sizeof(struct node_disk))
/* A split leaves this much room in each half at least (node.c): so many inserted bytes later it can be full again. */
#define NODE_SPLIT_ROOM 3000u

static inline struct node_disk *image_header(uint8_t *image)
{
	return (struct node_disk *)(void *)image;
}
static inline struct slot_disk *image_slots(uint8_t *image)
{
	return (struct slot_disk *)(void *)(image + sizeof(struct node_disk));
}
static inline unsigned image_count(uint8_t *image)
{
	return le16_get(image_header(image)->count);
}
static inline struct pkey image_key(uint8_t *image, unsigned i)
{
	return pkey_read(&image_slots(image)[i].key);
}
static inline const void *image_value(uint8_t *image, unsigned i, size_t *len)
{
	const struct slot_disk *s = &image_slots(image)[i];
	*len = le16_get(s->len);
	return image + le16_get(s->off);
}
void image_init(uint8_t *image, unsigned level);
/* The first slot whose key is >= KEY, or the count; true when it is equal. */
bool image_find(uint8_t *image, const struct pkey *key, unsigned *slot);
/* The last slot whose key is <= KEY, and slot 0 when there is none: the child to go down to. */
unsigned image_child(uint8_t *image, const struct pkey *key);
unsigned image_used(uint8_t *image);	     /* bytes of slots and values */
bool image_fits(uint8_t *image, size_t len); /* one more value of LEN bytes */
/* false when there is no room even after compaction. */
bool image_insert(uint8_t *image, unsigned slot, const struct pkey *key, const void *val, size_t len);
bool image_replace(uint8_t *image, unsigned slot, const void *val, size_t len);
void image_set_key(uint8_t *image, unsigned slot, const struct pkey *key);
void image_remove(uint8_t *image, unsigned slot);
/* Where to cut an image into which LEN bytes are to come at SLOT: the first slot that moves to the right. */
unsigned image_split_at(uint8_t *image, unsigned slot, size_t len);
/* Copies the slots FIRST..END of FROM (without END) to the end, where there is room. */
void image_append(uint8_t *image, uint8_t *from, unsigned first, unsigned end);
void image_behead(uint8_t *image, unsigned n); /* the first N slots go */
void image_truncate(uint8_t *image, unsigned count);
void image_seal(uint8_t *image); /* computes the checksum */
/* What a node read from the drives must be. Bounds: lower <= keys < upper, where given. */
struct image_expect {
	const struct uuid *uuid;
	uint64_t block, generation; /* generation 0: any */
	int level;		    /* -1: any */
	bool has_upper;
	struct pkey lower, upper;
};
/* NULL, or what is wrong with it. */
const char *image_verify(uint8_t *image, const struct image_expect *expect);

/* ------------------------------------------------------------------------------------------------
 * cache.c and tree.c
 */

enum node_state {
	NODE_LOADING, /* a place among its parent's children while it is being read */
	NODE_CLEAN,   /* as on the drives, in the LRU list */
	NODE_DIRTY,   /* changed since the last freeze, in the dirty list */
	NODE_FROZEN,  /* a checkpoint writes its image; in the frozen list */
	NODE_DEAD     /* dropped from the tree; its place on the drives is given up by the next checkpoint */
};

struct node {
	struct buf *buf;
	struct node *parent;
	struct node **child;	    /* of an internal node, by slot; NULL: not in memory */
	uint64_t block, generation; /* its newest place on the drives; block 0 with generation 0: none yet */
	uint64_t stamp;		    /* last transaction that counted it */
	uint32_t pins;
	uint16_t children; /* in memory */
	uint8_t level;
	uint8_t state;
	int error; /* of the load */
	struct list_node node;
	struct wait_queue loaded;
};
#define NODE_FANOUT ((unsigned)(NODE_ROOM / (sizeof(struct slot_disk) + sizeof(struct child_disk))))

struct tree {
	struct node *root;
	struct list lru; /* clean ones, last used first */
	struct list dirty, frozen, dead;
	struct list spare;  /* nodes with a buffer, for splits and copies of frozen ones */
	struct list arrays; /* child arrays, linked by a list_node in their first bytes */
	size_t nodes;	    /* in memory, without spares */
	size_t dirty_count, frozen_count, dead_count, spare_count, array_count;
	size_t nodes_limit, dirty_limit;
	size_t fresh;	/* of all nodes: without a place on the drives yet */
	unsigned holds; /* eviction is off: of passes that found no end */
	uint64_t stamp;
	uint64_t checksum_errors, checksum_repairs;
};

/* A way down: the leaf, and the bounds of its keys. */
struct tree_path {
	struct node *leaf;
	bool has_lower, has_upper;
	struct pkey lower, upper; /* lower <= key < upper */
	struct node *miss;	  /* when the leaf is NULL: the node whose child SLOT is not in memory */
	unsigned slot;
};
struct node *tree_descend(struct fs *fs, const struct pkey *key, struct tree_path *path); /* no wait */
int tree_load(struct fs *fs, const struct pkey *key); /* waits until the leaf of KEY is in memory */
/* The value at or after (before) P, which is replaced by its key; -EAGAIN when the leaf of P is not in memory. No wait.
 */
int tree_seek(struct fs *fs, struct pkey *p, bool forward, const void **val, size_t *len);
/* Makes the node that holds KEY at LEVEL dirty if it still lies at BLOCK. Waits. */
int tree_move_node(struct fs *fs, const struct pkey *key, unsigned level, uint64_t block);
/*
 * Packs dirty leaves that lie one beside the other where that makes them fewer, from *FROM on: about a hundred of them,
 * then it returns true and *FROM says where to go on. No wait, no spares; nothing may be frozen.
 */
bool tree_pack(struct fs *fs, struct pkey *from);
/* For repair: the node on the way to KEY that cannot be read goes out of the tree. FROM <= key < TO is what is lost. */
int tree_cut(struct fs *fs, const struct pkey *key, struct pkey *from, struct pkey *to, bool *has_to);
unsigned node_index(struct node *n); /* its slot in its parent */
/* What preparing a transaction adds up over its operations; tree_spares_ensure() then provides it. */
struct tree_need {
	size_t nodes, arrays, bytes;
};
/* Counts the way to KEY (false: it is not in memory). ALL_FROZEN: every node is to be copied. */
bool tree_count_path(struct fs *fs, const struct pkey *key, bool all_frozen, struct tree_need *need);
/* 0; -EAGAIN after a wait (look again); -ENOMEM. RESERVED spares are left for checkpoints. */
int tree_spares_ensure(struct fs *fs, const struct tree_need *need, bool checkpoint);
/* Changes in memory: the way to the key is in memory and spares are there. No wait, no failure. */
void tree_apply_put(struct fs *fs, const struct pkey *key, const void *val, size_t len);
/* Is the leaf empty by it? It stays until all changes of the transaction are made, so that its range stays in memory.
 */
bool tree_apply_delete(struct fs *fs, const struct pkey *key);
void tree_apply_drop(struct fs *fs, const struct pkey *key); /* then it goes, if KEY's is empty still */
void tree_apply_stripe(struct fs *fs, uint64_t stripe, uint32_t value);

int cache_init(struct fs *fs);
void cache_fini(struct fs *fs);
struct node *cache_node_new(struct fs *fs, unsigned level); /* from the spares; dirty */
void cache_node_dirty(struct fs *fs, struct node *n);	    /* N alone; copies a frozen image */
void cache_node_dead(struct fs *fs, struct node *n);
int cache_load_child(struct fs *fs, struct node *parent, unsigned slot, const struct image_expect *expect); /* waits */
int cache_load_root(struct fs *fs, uint64_t block, uint64_t generation, unsigned level);
void cache_use(struct fs *fs, struct node *leaf);
void cache_trim(struct fs *fs);
void cache_array_free(struct fs *fs, struct node **array);

/* ------------------------------------------------------------------------------------------------
 * transact.c
 */

struct tx_op {
	struct pkey key;
	uint32_t off; /* of the value in the record */
	uint16_t len;
	uint8_t op, class;
	bool stream; /* LOG_STREAM in the record; op is LOG_PUT */
	int32_t delta;
	uint32_t order;
};
#define FILLED_STRIPES 64u
struct tx {
	struct fs *fs;
	uint8_t *record; /* as it goes to the log, with its header */
	uint32_t bytes, room, limit;
	uint32_t squeezed,
		stream_blocks; /* bytes that the record is shorter in the log, by streams of so many blocks */
	struct tx_op *op;
	unsigned ops, ops_room;
	struct {
		void (*fn)(void *arg);
		void *arg;
	} hook[8];
	unsigned hooks;
	struct share_delta {
		uint64_t first, end;
		int32_t delta;
	} * share;
	unsigned shares, shares_room;
	bool missed, view, hold, replay;
	uint32_t snap; /* what the pass looks at: 0 the live file system, else a snapshot */
	unsigned reruns;
	struct pkey miss;
	uint64_t checkpoint; /* tag of the record */
	struct list_node node;
	/* gathers what the pass says of blocks one after the other: one operation for each stripe (tx_blocks_end()) */
	struct {
		uint64_t stripe, block; /* of the summary's key */
		int32_t added;
		bool shared; /* owned by FS_SHARED_INO */
		unsigned runs, emptied;
		struct summary_disk run[SUMMARY_MAX];
		uint64_t was_empty[FILLED_STRIPES];
	} filled;
};
struct tx *tx_new(struct fs *fs); /* NULL: no memory */
void tx_free(struct tx *tx);
void tx_destroy(struct tx *tx); /* its memory */
void tx_reset(struct tx *tx);
int tx_stream_put(struct tx *tx, const struct fs_key *key, const void *val, size_t len); /* log_stream.c */
int tx_stripe_delta(struct tx *tx, uint64_t stripe, int32_t delta, enum stripe_class class);
int tx_parse(
	struct tx *tx, const uint8_t *record, size_t bytes); /* a record read from the log: -EIO when it is malformed */
/* Sorts, brings what is needed into memory: 0 when it may be applied now, -EAGAIN after a wait. */
int tx_prepare(struct tx *tx, bool checkpoint);
void tx_apply(struct tx *tx, bool replay);

/* ------------------------------------------------------------------------------------------------
 * log.c
 */

#define LOG_BUF_BYTES (64u * 1024)
#define LOG_BUFS (LOG_BATCH_BLOCKS * BLOCK_BYTES / LOG_BUF_BYTES)
#define LOG_WRITERS 2u

struct log_batch {
	struct buf *buf[LOG_BUFS];
	uint32_t bytes, blocks, records;
	uint64_t first_sequence, last_sequence;
	uint64_t position;
	bool written;
	struct wait_queue done;
	struct list_node node;
};
struct log {
	uint64_t first, capacity; /* of the circle, in blocks of the log zone */
	uint64_t head, tail;	  /* positions: of the next batch; of the first that replay needs */
	uint64_t chain;		  /* checksum of the last batch before head */
	uint64_t sequence;	  /* of the last transaction applied */
	uint64_t durable;	  /* all up to this one are durable */
	uint64_t margin;	  /* blocks left for checkpoints' own records */
	struct log_batch batch[LOG_WRITERS + 1];
	struct log_batch *gather; /* collects */
	struct list idle, flight; /* flight: in order of position */
	bool kicked, stop;
	unsigned writers;
	struct wait_queue work, room, idle_wait;
	uint64_t bytes;
	struct log_packer *packer;
	uint64_t stream_blocks; /* a replay would have to read, by what was appended since the last freeze */
	struct stream *stream;	/* of a replay */
	size_t streams, streams_room;
};
int log_init(struct fs *fs);
void log_fini(struct fs *fs);
int log_start(struct fs *fs);
void log_stop(struct fs *fs); /* writes what is there; waits */
/* 0; -EAGAIN after a wait for room or memory; -E2BIG. */
int log_reserve(struct fs *fs, uint32_t bytes, bool checkpoint);
void log_append(struct fs *fs, struct tx *tx); /* gives it its sequence number. No wait: reserved before */
void log_kick(struct fs *fs);
void log_fail(struct fs *fs);		/* wakes all who wait, for the file system has failed */
uint64_t log_used(const struct fs *fs); /* blocks, with what gathers */
/* Replays into the tree; REPAIR makes all copies equal. Moves head, chain, sequence on. RECORDS: without those of
 * checkpoints. */
/* After a replay: are there batches behind its end that prove it to be a hole in what was durable? */
bool log_goes_on(struct fs *fs);
int log_replay(struct fs *fs, uint64_t checkpoint, bool repair, uint64_t *records, struct error *err);

/*
 * log_stream.c. Extents of long runs are logged without their blocks' checksums. Only for blocks that are durable.
 * squeezed, squeeze: LEN bytes of value are so many in the log. expand: the way back for a replay, with the group's
 * checksum in each place, to STREAM_VALUE_MAX bytes; -EIO: it makes no sense.
 */
#define STREAM_VALUE_MAX 528u
extern uint32_t stream_least;		/* blocks of an extent from which on it is a stream; tests take all */
uint32_t stream_count(const void *val); /* blocks */
size_t stream_squeezed(size_t len);
size_t stream_squeeze(const uint8_t *val, uint8_t *out);
int stream_expand(const uint8_t *val, size_t len, uint8_t *out);
int stream_note(struct fs *fs, const struct pkey *key, const uint8_t *val); /* -ENOMEM */
int streams_resolve(struct fs *fs); /* the noted ones get their checksums. Waits */
void streams_forget(struct log *log);
bool streams_many(const struct fs *fs); /* a mount would read for a second or so */

/* log_pack.c. No wait. BYTES at FROM of the slices: packed in place; how many these are then, 0: more than MOST. */
struct log_packer *log_packer_new(void); /* NULL: no memory */
void log_packer_free(struct log_packer *p);
uint32_t log_pack(
	struct log_packer *p, const struct slice *v, unsigned n, uint32_t from, uint32_t bytes, uint32_t most);
/* The way back: BYTES of PACKED ones at FROM (0: they are plain). Valid until the next call; NULL: it makes no sense.
 */
const uint8_t *log_unpack(
	struct log_packer *p, const struct slice *v, unsigned n, uint32_t from, uint32_t packed, uint32_t bytes);

/* ------------------------------------------------------------------------------------------------
 * space.c
 */

enum stripe_pending { PENDING_NONE, PENDING_LOG, PENDING_ROOT };
struct space_dropped {
	uint64_t stripe, sequence;
};
struct space_list {
	struct space_dropped *of;
	size_t count, room;
};
struct space_open {
	bool valid;
	uint64_t stripe;
	uint32_t row;
};
struct space_flight {
	uint64_t stripe;
	uint32_t runs;
};
#define SPACE_FLIGHTS 1024u
#define SPACE_CLASSES 4u
/* Blocks that are given places at a time, at most. Of streams; what many writers write is less, and each group costs a
 * log batch. */
#define GROUP_RECORDS 4096u

struct space {
	uint64_t stripes, free, live_data, live_nodes; /* stripes free; blocks live */
	uint64_t node_stripes, data_stripes;	       /* with anything live */
	uint64_t reserve_most;	  /* free stripes that only nodes may take: see space_reserve_stripes() */
	uint64_t cleaner_reserve; /* more of them that the cleaner may take too */
	uint64_t cleaner_least;	  /* of these: with so many it can gain something whenever there is something */
	uint64_t node_taken;	  /* stripes taken by the checkpoint that runs */
	uint64_t group;		  /* of GROUP_RECORDS, what is worth it on so small a file system */
	uint64_t changes;	  /* of counts and flags */
	uint64_t padding;	  /* blocks: most that is kept for the padding of promised ones */
	uint64_t promised;	  /* blocks */
	uint32_t stripe_blocks;
	uint32_t *table; /* per stripe, as stripes_disk */
	uint8_t *flags;	 /* per stripe: enum stripe_pending, open, in flight */
	uint64_t cursor;
	uint8_t *free_in; /* free stripes of each 64 */
	struct space_open open[SPACE_CLASSES];
	struct space_list dropped; /* of data, fell to 0: free when that transaction is durable */
	struct space_list left;	   /* of nodes, by the checkpoint that runs: free when its root is durable */
	struct fiber_mutex release_lock;
	struct wait_queue release_idle;
	bool releasing, stopping; /* a fiber of its own gives back what is dropped */
	struct space_flight flight[SPACE_FLIGHTS];
	unsigned flights;
};
int space_init(struct fs *fs);
void space_fini(struct fs *fs);
int space_load(struct fs *fs, struct error *err); /* from the tree */
void space_set_reserve(struct fs *fs);
uint64_t space_reserve_stripes(const struct fs *fs); /* free ones that only checkpoints may take now */
static inline uint32_t stripe_live(uint32_t value)
{
	return value & STRIPE_LIVE_MASK;
}
static inline enum stripe_class stripe_class(uint32_t value)
{
	return (enum stripe_class)(value >> STRIPE_CLASS_SHIFT);
}
int space_check_delta(struct fs *fs, uint64_t stripe, int64_t delta, enum stripe_class class); /* -EIO */
int space_lists_ensure(struct fs *fs, size_t more);
/*
 * Applies, returns the new value for the tree. Called before the transaction is in the log. Node stripes that fall to 0
 * belong to the checkpoint that freezes now.
 */
uint32_t space_apply_delta(struct fs *fs, uint64_t stripe, int32_t delta, enum stripe_class class, bool replay);
bool space_nodes_low(const struct fs *fs); /* the tree may not grow any more */
bool space_low(const struct fs *fs);	   /* time to clean */
extern uint64_t space_low_extra;	   /* also when less than so many stripes are free: for tests */
bool space_urgent(const struct fs *fs);	   /* writers may have to wait for it */
bool space_has_room(const struct fs *fs, uint64_t blocks, bool tight); /* who writes so many blocks more need not */
bool space_rows_fit(const struct fs *fs, uint64_t blocks); /* the rows for so many blocks can be taken now */
uint32_t space_holes_worth(const struct fs *fs); /* of a stripe, for which it is emptied when writers wait for it */
/* The sparsest stripes of CLASS with at most MOST live blocks, MAX of them, into VICTIM in ascending order of live
 * blocks. */
unsigned space_victims(const struct fs *fs, enum stripe_class class, uint32_t most, uint64_t *victim, unsigned max);
uint64_t space_cleaner_blocks(const struct fs *fs); /* that the cleaner can write now */
void space_stuck(struct fs *fs, uint64_t stripe);   /* could not be emptied: not a victim until its count changes */
void space_release_left(struct fs *fs);		    /* the root is durable. Waits (discards) */
void space_release_dropped(struct fs *fs);	    /* as far as the log is durable. Waits (reads, discards) */
void space_durable(struct fs *fs); /* the log is durable up to here: the same in the background. No wait */
void space_stop(struct fs *fs);	   /* ends that; before the upper half goes. Waits */
/* For tests: from the Nth time on that new space is asked for, there is none. 0: never; the times are counted. */
extern uint64_t space_refuse_at, space_refuse_count;
bool space_refuse(void);
void space_guard(struct fs *fs, uint64_t stripe, bool on); /* is not to be written to, whatever its count says */

/* ------------------------------------------------------------------------------------------------
 * checkpoint.c and mount.c
 */

extern uint64_t checkpoint_delay_ns; /* from the first change; tests make it short */

struct checkpoint {
	uint64_t generation;	  /* of the last root record */
	uint64_t root_sum;	  /* its checksum */
	uint64_t tree_checkpoint; /* of the one that first named the tree on the drives */
	uint64_t tree_generation; /* of its root node, which may be older */
	uint64_t tree_block, log_chain, log_sequence, log_position, log_needed;
	uint8_t tree_level;
	uint64_t wanted, begun, ended; /* tickets */
	bool changed;		       /* by others than checkpoints, since the last freeze */
	bool running, stop, started, cleaned;
	uint64_t stuck; /* free stripes when emptying node stripes last gained nothing */
	struct timer timer;
	struct fs *fs;
	struct wait_queue work, done;
	uint64_t count;
};
int checkpoint_start(struct fs *fs);
void checkpoint_stop(struct fs *fs); /* waits */
void checkpoint_kick(struct fs *fs); /* no wait */
int checkpoint_run(
	struct fs *fs, bool clean); /* waits; one at a time: the fiber of checkpoint_start(), or nobody else */
/* Everything applied before the call is in a durable tree when it returns. */
int fs_checkpoint(struct fs *fs);
void checkpoint_changed(struct fs *fs); /* a transaction was applied */
/* True while transactions must wait: too many nodes are dirty. */
bool checkpoint_behind(const struct fs *fs);

/* ------------------------------------------------------------------------------------------------
 * cleaner.c
 */

struct cleaner {
	struct fiber *fiber;
	bool started, stop;
	bool stuck, stuck_urgent; /* nothing was to be gained, when space was like this: */
	uint64_t stuck_live, stuck_free, stuck_changes;
	unsigned waiters;
	uint64_t need; /* blocks that these wait for, the most of all */
	uint64_t wanted, begun, ended;
	struct wait_queue work, done;
	uint64_t rounds, moved_blocks, freed_stripes;
};
int cleaner_start(struct fs *fs);
void cleaner_stop(struct fs *fs); /* waits */
void cleaner_kick(struct fs *fs); /* no wait */
/* Until there is room for BLOCKS, or all stripes that can be emptied are. */
int cleaner_wait(struct fs *fs, uint64_t blocks);

struct fs {
	struct volume *volume;
	struct volume_geometry geometry;
	struct reactor *home;
	struct fs_mount_options options;
	bool read_only;
	int failed; /* an error that ended all changes */
	struct uuid uuid;
	uint64_t fsid, verifier, created_ns, mounts;
	uint64_t change;	   /* last value given out */
	uint64_t cache_data_bytes; /* the part of cache_bytes that is not for nodes */
	uint64_t replayed, transactions;
	uint32_t incompat, compat; /* features */
	struct fs_files *files;
	struct repair *repair; /* repair.c is at work: what makes no sense is told and borne */
	struct tree tree;
	struct log log;
	struct space space;
	struct checkpoint checkpoint;
	struct cleaner cleaner;
	struct list tx_idle;
	unsigned tx_idle_count;
};

/* For repair.c: mounts without the upper half and bears what it can; ends it, with a checkpoint unless RC is an error.
 */
struct repair;
int repair_mount(struct volume *volume, struct repair *repair, struct fs **fs, struct error *err);
int repair_unmount(struct fs *fs, int rc);
int repair_look(struct fs *fs);					   /* after the root is loaded */
void repair_log_skip(struct fs *fs, uint64_t sequence, int error); /* told */

/* Writes a root record with what fs->checkpoint says; on success it counts. Waits. */
int root_write(struct fs *fs, bool clean);
uint32_t root_copies_wrong(struct fs *fs); /* a bit for each copy of it that can be read and is another. Waits */
/* Ends all changes: what is in memory goes no further. RC negative. No wait. */
void fs_fail(struct fs *fs, int rc, const char *what);

/*
 * A read was -ETIMEDOUT: a drive may write into its memory at any time, and keeps it for that. True when it is to be
 * done again, with other memory (buf_renew()); *TIMES begins with 0, and there is an end to it.
 */
static inline bool read_again(int rc, unsigned *times)
{
	return rc == -ETIMEDOUT && (*times)++ < 4;
}
/* Another buffer of its size for *BUF. Waits; with TRY it does not, and false means that there is none now. */
static inline bool buf_renew(struct buf **buf, bool try)
{
	struct buf *other = try ? buf_try_alloc((*buf)->size) : buf_alloc((*buf)->size);

	if (!other)
		return false;
	buf_put(*buf);
	*buf = other;
	return true;
}

/* For the upper half. */
uint64_t fs_change_next(struct fs *fs); /* next value of the change attribute. No wait */
void fs_verifier_change(struct fs *fs); /* unstable data was lost (a flush failed). No wait */
/* A pass that only reads; also on a read-only mount. */
int fs_view(struct fs *fs, tx_pass *pass, void *arg);
/* Calls FN for every node of the tree, leaves too; the tree may change meanwhile (then a node may be missed or come
 * twice). */
int tree_walk_nodes(struct fs *fs, int (*fn)(void *arg, uint64_t block, unsigned blocks, unsigned level), void *arg);
/* For volume_set_owner(): ARG is the fs. Any reactor, waits. */
int fs_stripe_check(void *arg, uint64_t stripe, bool *row_used); /* scrub.c; the same */
void space_usage(void *arg, uint64_t first, unsigned count, bool *used);
int space_stripe_info(struct fs *fs, uint64_t stripe, uint32_t *live, bool *nodes);

#endif
