/*
 * What the lower half of the file system puts on the drives: root records, tree nodes, the redo log,
 * stripe counts and block owners. Byte for byte in docs/format-fs.md. All integers are little-endian.
 * The values that give the tree its meaning (inodes, names, extents) stand in inode_format.h.
 */
#ifndef FURROW_FS_FS_FORMAT_H
#define FURROW_FS_FS_FORMAT_H

#include <assert.h>
#include <string.h>

#include "core/core.h"
#include "fs/tree_internal.h"
#include "raid/raid.h"

#define FS_FORMAT_VERSION 1u
/* Features that a reader must know to read at all, to write, or not at all. */
#define FS_INCOMPAT_SNAPSHOTS 1u      /* keys of inodes may have versions */
#define FS_INCOMPAT_CLONES 2u	      /* extents may refer to shared ones */
#define FS_INCOMPAT_SUMMARIES 0x10u   /* KEY_SUMMARY may have several runs */
#define FS_INCOMPAT_LOG_PACKED 0x20u  /* batches of the log may be packed */
#define FS_INCOMPAT_LOG_STREAMS 0x40u /* the log may have LOG_STREAM */
#define FS_INCOMPAT_WRITTEN	      /* set by every mount that writes */                                             \
	(FS_INCOMPAT_SUMMARIES | FS_INCOMPAT_LOG_PACKED | FS_INCOMPAT_LOG_STREAMS)
#define FS_INCOMPAT_KNOWN (FS_INCOMPAT_SNAPSHOTS | FS_INCOMPAT_CLONES | FS_INCOMPAT_WRITTEN)
#define FS_RO_COMPAT_KNOWN 0u

/* ------------------------------------------------------------------------------------------------
 * Root records: superblock and root of the tree in one block, in a ring at the start of the log zone.
 * Record number G lies in block G % FS_ROOT_SLOTS; the highest number that verifies counts.
 */

#define FS_ROOT_MAGIC "FURROWFS"
#define FS_ROOT_SLOTS 8u

struct root_disk {
	uint8_t magic[8];
	le64 checksum; /* checksum64() of the bytes from here to the end of the block */
	le32 version;
	le32 incompat, ro_compat, compat;
	struct uuid uuid;	 /* of the file system */
	struct uuid volume_uuid; /* a record of another volume, which lay here before, is none */
	le64 fsid;
	le64 created_ns;
	/* the geometry that block numbers rest on */
	le32 k, strip_blocks;
	le64 stripes, log_blocks;
	/* what changes */
	le64 generation; /* the record's number */
	le64 written_ns;
	le64 mounts; /* goes up with every mount that writes; log batches carry it */
	le64 verifier;
	le64 change;	 /* the change attribute goes on from here */
	le64 checkpoint; /* number of the record that first named this tree */
	le64 tree_block, tree_generation;
	le64 log_position, log_chain; /* the first batch to replay, and the checksum of the one before */
	le64 log_sequence;	      /* the last transaction that is in the tree */
	le64 log_needed;	      /* replay must get this far, or the log has lost something */
	uint8_t tree_level;
	uint8_t clean; /* 1: unmounted in order */
	uint8_t reserved[6];
	uint8_t zero[BLOCK_BYTES - 208];
};
_Static_assert(sizeof(struct root_disk) == BLOCK_BYTES, "root_disk");
#define FS_ROOT_CHECKED offsetof(struct root_disk, version)

/* ------------------------------------------------------------------------------------------------
 * Nodes: header, slots in ascending order of their keys, free room, values from the end downwards.
 */

#define NODE_MAGIC 0x444e5546u /* "FUND" */
#define NODE_BLOCKS (TREE_NODE_BYTES / BLOCK_BYTES)
#define NODE_LEVELS 12u

struct node_disk {
	le32 magic;
	uint8_t level; /* 0: leaf */
	uint8_t flags; /* 0 */
	le16 count;    /* slots */
	le64 checksum; /* checksum64() of the whole node, taken with 0 here */
	struct uuid uuid;
	le64 block;	 /* its own first block */
	le64 generation; /* number of the checkpoint that wrote it */
	le16 heap;	 /* offset of the lowest value */
	le16 garbage;	 /* bytes between heap and the end that no slot refers to */
	uint8_t reserved[12];
};
_Static_assert(sizeof(struct node_disk) == 64, "node_disk");

/* (ino), (type, high 56 bits of off), (low 8 bits of off, snap, 24 zero bits): ascending as integers. */
struct key_disk {
	le64 w[3];
};
struct slot_disk {
	struct key_disk key;
	le16 off, len; /* of the value */
};
_Static_assert(sizeof(struct slot_disk) == 28, "slot_disk");

/* The value in a node of level > 0. The generation tells a write that the drive lost. */
struct child_disk {
	le64 block, generation;
};
_Static_assert(sizeof(struct child_disk) == 16, "child_disk");

/* ------------------------------------------------------------------------------------------------
 * Redo log: batches of whole blocks, one after the other in a circle behind the root records.
 */

#define LOG_MAGIC 0x474c5546u /* "FULG" */
#define LOG_BATCH_BLOCKS 128u /* most blocks of a batch */

struct batch_disk {
	le32 magic;
	le32 blocks;   /* with this header */
	le64 checksum; /* checksum64() of the first block, taken with 0 here */
	struct uuid uuid;
	le64 position; /* counted in blocks since the file system was made */
	le64 chain;    /* checksum of the batch before */
	le64 mounts;   /* of the root record in force */
	le64 sequence; /* of the first record */
	le32 bytes;    /* of header and records, before packing; the rest is zero */
	le32 records;
	le32 sum[LOG_BATCH_BLOCKS -
		 1]; /* checksum32() of the blocks after the first: each may come from another copy */
	le32 packed; /* bytes behind the header, a deflate stream of the records; 0: these are as they are */
};
_Static_assert(sizeof(struct batch_disk) == 584, "batch_disk");

struct record_disk {
	le32 bytes; /* with this header */
	le32 ops;
	le64 sequence;
	le64 checkpoint; /* not 0: only for trees of this checkpoint or a later one */
};
_Static_assert(sizeof(struct record_disk) == 24, "record_disk");

/*
 * LOG_STREAM is a LOG_PUT of a KEY_EXTENT whose value has, instead of a checksum for each block, one for each
 * STREAM_GROUP of them: checksum32() of their checksums.
 */
enum log_op { LOG_PUT = 1, LOG_DELETE = 2, LOG_STRIPE = 3, LOG_STREAM = 4 };
#define STREAM_GROUP 16u
struct op_disk { /* LOG_PUT, LOG_STREAM and LOG_DELETE */
	uint8_t op;
	uint8_t reserved;
	le16 len;
	struct key_disk key;
	/* len bytes of value */
};
_Static_assert(sizeof(struct op_disk) == 28, "op_disk");
struct op_stripe_disk { /* LOG_STRIPE: so many blocks more are live; it becomes of this class */
	uint8_t op;
	uint8_t class;
	uint8_t reserved[2];
	le32 delta; /* signed */
	le64 stripe;
};
_Static_assert(sizeof(struct op_stripe_disk) == 16, "op_stripe_disk");

/* ------------------------------------------------------------------------------------------------
 * Space
 */

#define STRIPES_PER_KEY 64u
enum stripe_class { STRIPE_FREE = 0, STRIPE_DATA = 1, STRIPE_NODES = 2 };
struct stripes_disk { /* KEY_STRIPES; low 24 bits: live blocks; high 8 bits: enum stripe_class */
	le32 stripe[STRIPES_PER_KEY];
};
_Static_assert(sizeof(struct stripes_disk) == 256, "stripes_disk");
#define STRIPE_LIVE_MASK 0xffffffu
#define STRIPE_CLASS_SHIFT 24

/*
 * KEY_SUMMARY; off: the first block of a run of blocks; snap 1: of FS_SHARED_INO. As many of these as one transaction
 * filled in the stripe, up to SUMMARY_MAX. A hint: the owner's extent decides.
 */
#define SUMMARY_MAX 64u
struct summary_disk {
	le64 ino, file_block;
	le16 count, ahead; /* the run begins so many blocks behind that of the key */
};
_Static_assert(sizeof(struct summary_disk) == 20, "summary_disk");
/* How many runs a value of LEN bytes has; 0: it makes no sense. */
static inline unsigned summary_runs(size_t len)
{
	return len % sizeof(struct summary_disk) || len > SUMMARY_MAX * sizeof(struct summary_disk)
		       ? 0
		       : (unsigned)(len / sizeof(struct summary_disk));
}
static inline struct summary_disk summary_run(const void *val, unsigned i)
{
	struct summary_disk d;
	memcpy(&d, (const uint8_t *)val + i * sizeof(d), sizeof(d));
	return d;
}

#endif
