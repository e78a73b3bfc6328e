/*
 * What lies in the tree's values: inodes, names, extents, orphans, replies, counters. Written up in
 * docs/format-files.md. Every reader checks what it reads with the *_decode() functions, which
 * mount, the operations and fs_check share.
 */
#ifndef FURROW_FS_INODE_FORMAT_H
#define FURROW_FS_INODE_FORMAT_H

#include "core/endian.h"

/* KEY_INODE, off 0 */
#define INODE_FLAG_VERIFIER 1u /* aux is the verifier of an exclusive create */
#define INODE_FLAG_XATTR 2u    /* has had an extended attribute */
struct inode_disk {
	le32 generation; /* never 0 */
	uint8_t type;	 /* enum fs_type */
	uint8_t reserved0;
	le16 mode; /* the low 12 bits */
	le32 nlink, uid, gid;
	le32 rdev_major, rdev_minor;
	le32 flags;  /* INODE_FLAG_* */
	le64 size;   /* of a file in bytes, of a symbolic link its length, of a directory the number of entries */
	le64 blocks; /* live data blocks */
	le64 change;
	le64 atime, mtime, ctime, btime; /* signed nanoseconds since 1970 */
	le64 aux;			 /* of a directory its parent, of a file the verifier (INODE_FLAG_VERIFIER) */
	le64 next_seq;			 /* of a directory: sequence of the next entry, from 3 on */
	le64 reserved1;
};
_Static_assert(sizeof(struct inode_disk) == 112, "inode_disk");

/* KEY_NAME of a directory, off: hash of the name << 8 | n */
struct name_disk {
	le64 ino;
	le64 seq;
	le32 generation;
	uint8_t type;
	uint8_t reserved;
	le16 len;
	/* len bytes of name */
};
_Static_assert(sizeof(struct name_disk) == 24, "name_disk");
#define NAME_COLLISIONS 256u
#define NAME_SEQ_FIRST 3u
#define NAME_SEQ_MAX ((1ull << 63) - 1)

/* KEY_ENTRY of a directory, off: sequence */
struct entry_disk {
	le64 ino;
	le32 generation;
	uint8_t type;
	uint8_t reserved;
	le16 len;
	/* len bytes of name */
};
_Static_assert(sizeof(struct entry_disk) == 16, "entry_disk");

/* KEY_EXTENT, off: first block of the file */
#define EXTENT_BLOCKS_MAX 128u
#define EXTENT_REF_BLOCKS_MAX 1024u
#define EXTENT_HOLE 1u	 /* hides what an older version has there */
#define EXTENT_SHARED 2u /* refers to blocks of FS_SHARED_INO, which has places and checksums */
struct extent_disk {
	le64 block; /* of the volume; of FS_SHARED_INO */
	le32 count; /* 1 .. EXTENT_BLOCKS_MAX; of the other kinds up to EXTENT_REF_BLOCKS_MAX */
	le32 flags; /* 0, or EXTENT_HOLE: then no block and no checksums, or EXTENT_SHARED: then 4 reserved bytes */
		    /* count le32: checksum32() of each block */
};
_Static_assert(sizeof(struct extent_disk) == 16, "extent_disk");
#define EXTENT_REF_BYTES (sizeof(struct extent_disk) + 4)

/* Owns what several files (or one, several times) refer to. It has extents, of stamp 0, and nothing else. */
#define FS_SHARED_INO UINT64_MAX
/* KEY_SHARE, off: first of a range of blocks of FS_SHARED_INO: so many records of extents refer to each of them */
struct share_disk {
	le64 count; /* blocks */
	le32 refs;  /* not 0 */
	le32 reserved;
};
_Static_assert(sizeof(struct share_disk) == 16, "share_disk");

/* KEY_XATTR, off: hash << 16 | n << 8 | piece. Piece 0 begins with this and the name; the value follows, and goes on */
struct xattr_disk {
	le32 size; /* of the value */
	le16 name_len;
	uint8_t reserved[2];
};
_Static_assert(sizeof(struct xattr_disk) == 8, "xattr_disk");

/* KEY_ORPHAN, off: inode number, whose link count is 0 */
#define ORPHAN_HELD 0u	 /* was in use when its last name went: whole */
#define ORPHAN_DELETE 1u /* its deletion may have begun */
struct orphan_disk {
	uint8_t state;
	uint8_t reserved[7];
};
_Static_assert(sizeof(struct orphan_disk) == 8, "orphan_disk");

/* KEY_REPLY, off: sequence modulo FS_REPLIES */
struct reply_disk {
	le64 seq;
	le64 client;
	le32 xid, proc, checksum, generation;
	le64 ino;
	le64 time_ns;
	le32 snap;
	le32 reserved;
};
_Static_assert(sizeof(struct reply_disk) == 56, "reply_disk");

/* KEY_SNAPSHOT, off 0: the stamp of what changes now; as many snapshots were ever made */
struct stamp_disk {
	le32 stamp;
};
_Static_assert(sizeof(struct stamp_disk) == 4, "stamp_disk");
/* KEY_SNAPSHOT, off: its number */
#define SNAPSHOT_KEPT 0u
#define SNAPSHOT_GOING 1u /* deleted: only its space is still to be returned */
struct snapshot_disk {
	le64 created_ns;
	uint8_t state;
	uint8_t reserved[5];
	le16 name_len;
	/* name_len bytes of name */
};
_Static_assert(sizeof(struct snapshot_disk) == 16, "snapshot_disk");

/* KEY_STATE, off: kind << 56 | hash << 8 | n */
struct state_disk {
	le16 name_len, data_len;
	uint8_t reserved[4];
	/* name_len bytes of name, data_len bytes of data */
};
_Static_assert(sizeof(struct state_disk) == 8, "state_disk");

/* KEY_COUNTERS, off 0 */
struct counters_disk {
	le64 next_ino;
	le64 inodes;
	le64 reserved[2];
};
_Static_assert(sizeof(struct counters_disk) == 32, "counters_disk");

#endif
