/*
 * What the files of repair share: repair.c (nodes, log, space, shared blocks), repair_files.c (values, names, inodes),
 * repair_view.c (what the live file system and each snapshot see).
 */
#ifndef FURROW_FS_REPAIR_INTERNAL_H
#define FURROW_FS_REPAIR_INTERNAL_H

#include "fs/inode_internal.h"

/* A range of keys whose node is gone: FROM <= key < TO. */
struct repair_gap {
	struct pkey from, to;
	bool has_to;
};
/* Blocks of a file that are lost: reading them is to fail, not to show zeros. HIDE: a stamp whose views had nothing
 * there; 0: none. */
struct repair_loss {
	uint64_t ino, first, count;
	uint32_t stamp, hide;
};
struct repair_inode {
	struct htable_node node;
	uint64_t ino, parent, named_in, named_seq;
	uint64_t size, blocks, next_seq, change;
	uint64_t entries, max_seq, data_blocks, extent_end, symlink_bytes; /* as found */
	uint32_t gen, nlink, flags;
	uint32_t links, subdirs, walk;
	uint32_t entry_gen;
	uint8_t type, entry_type;
	bool found, orphan, reachable, has_extents, has_entries, has_xattrs;
};
struct repair {
	struct fs *fs;
	fs_check_report_fn *report;
	void *arg;
	struct fs_repair_result *result;
	struct repair_gap *gap;
	unsigned gaps, gaps_room;
	struct repair_loss *loss;
	unsigned losses, losses_room, losses_said;
	struct fs_key *twice; /* extents whose blocks another one has too, or the tree */
	unsigned twices, twices_room;
	uint8_t *bitmap; /* of blocks that nodes and extents have */
	uint32_t *live;	 /* of each stripe, as stripes_disk */
	struct htable inodes;
	uint32_t stamp, stamp_said;	 /* the highest one that a record has, and what KEY_SNAPSHOT says */
	uint32_t kept[FS_SNAPSHOTS_MAX]; /* snapshots, ascending */
	unsigned kept_count;
	uint32_t view, limit, floor; /* the snapshot (0: the live file system) that is repaired, the highest stamp that
					it sees, and the lowest that older ones do not see */
	uint64_t last_ino;	     /* the highest number seen */
	uint64_t share_next;	     /* number of a shared block that nobody has */
	uint64_t cell_ino, cell_first, cell_end; /* extents of the walk over values */
	struct repair_counting *counting;
	struct check_summaries *summaries;
	uint8_t value[TREE_VALUE_MAX];
};

#define ULL(x) ((unsigned long long)(x))

/* A line for the report: what was put right; LOST: what could not be. */
void repair_say(struct repair *r, bool lost, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Calls FN for each key of the tree from *FROM on, in order; FN may change the tree and wait. */
typedef int repair_fn(struct repair *r, const struct fs_key *key, size_t len);
int repair_walk(struct repair *r, const struct fs_key *from, repair_fn *fn);
/* One record as it lies in the tree; VAL NULL: it goes. */
int repair_raw(struct repair *r, const struct fs_key *key, const void *val, size_t len);
/* The same through the versions: the one that the view sees. */
int repair_put(struct repair *r, const struct fs_key *key, const void *val, size_t len);
int repair_lose(struct repair *r, const struct repair_loss *loss);   /* marks and remembers it */
int repair_drop(struct repair *r, const struct extent_edit *blocks); /* FIRST and COUNT of the volume are not live */
bool repair_extent_good(const struct repair *r, const struct fs_key *key, size_t len, struct extent *e);

/* repair_view.c. The version of KEY that the view sees, which may be empty (0), and its stamp; -ENOENT. */
int repair_view_version(struct repair *r, struct fs_key *key, void *val, size_t room);
int repair_view_get(struct repair *r, const struct fs_key *key, void *val, size_t room); /* an empty one is -ENOENT */
bool repair_view_sees(struct repair *r, const struct fs_key *key, size_t len); /* this version, and not an empty one */
int repair_view_put(struct repair *r, const struct fs_key *key, const void *val, size_t len); /* of a snapshot */
int repair_view_blocks(struct repair *r, struct repair_inode *ri); /* it has fewer than it says */
int repair_view_xattrs_drop(struct repair *r, uint64_t ino);
int repair_view_xattrs(struct repair *r, uint64_t ino); /* those of which a piece is missing go */

/* repair_files.c, in this order */
int repair_values(struct repair *r); /* what makes no sense goes */
int repair_names(struct repair *r);  /* and inodes, in each view */
void repair_inodes_free(struct repair *r);

#endif
