/*
 * What an array writes on its drives: the superblock. docs/format-array.md tells it in words.
 *
 *   0                      zeros (where others keep partition tables and superblocks)
 *   64 KiB                 superblock, copy 0
 *   128 KiB                maps of what others missed
 *   1 MiB                  log zone (log_bytes)
 *   data_offset            strips (data_bytes); a multiple of 1 MiB
 *   end - 64 KiB, rounded  superblock, copy 1 (down to a multiple of 64 KiB)
 *
 * All integers are little-endian. All that is reserved is zero, and is not looked at: what may be
 * ignored by older code uses reserved fields and a COMPAT flag, what may not an INCOMPAT flag.
 *
 * Version 2 is what arrays are made with: its member table comes last, and the superblock is as long as that needs.
 * Arrays of version 1, which had room for 64 slots, stay what they are.
 */
#ifndef FURROW_RAID_FORMAT_H
#define FURROW_RAID_FORMAT_H

#include "core/endian.h"

#define SUPER_MAGIC "FurrowAr"
#define SUPER_VERSION 2u
#define SUPER_BYTES_LEAST 16384u
#define SUPER_BYTES_MOST 65536u
#define SUPER_ALIGN 65536u
#define SUPER_OFFSET_0 65536u
#define SUPER_GEOMETRIES 16u
#define SUPER_SLOTS 936u
#define SUPER_SLOTS_1 64u /* of version 1 */
#define SUPER_VOLUMES 32u
#define SUPER_NAME 32u
#define MEMBER_HEAD_BYTES (1u << 20) /* before the log zone */
#define MEMBER_TAIL_BYTES (1u << 20) /* behind the strips */
#define MEMBER_ALIGN (1u << 20)
#define LOG_CHUNK_BYTES 65536u

/* How the redundancy of a geometry is made. */
enum format_code {
	FORMAT_CODE_COPY = 1, /* M further copies of the one data strip (K = 1) */
	FORMAT_CODE_PQ = 2,   /* M = 0: none; P = XOR; Q = sum of 2^i * D_i in GF(2^8) with polynomial 0x11d; M <= 2 */
};

/* How the strips of a stripe are laid onto the members of their group. */
enum format_rotation {
	FORMAT_ROTATE_ROW = 0, /* position p of the group's stripe number r lies on its member (p + r) mod (K + M) */
};

/* The state of a slot. */
enum format_member_state {
	FORMAT_MEMBER_NONE = 0,	   /* nobody has this slot */
	FORMAT_MEMBER_ACTIVE = 1,  /* holds all that was acknowledged */
	FORMAT_MEMBER_FAILED = 2,  /* ejected after an error or by command */
	FORMAT_MEMBER_MISSING = 3, /* was not there, or was stale, when the array was opened */
	FORMAT_MEMBER_REBUILD = 4, /* gets all that is written; of what was there before, stripes below rebuild_next are
				      valid. Not read from */
	FORMAT_MEMBER_SPARE = 5,   /* waits to take over a slot */
};

struct format_geometry {
	le32 epoch;
	uint8_t code;	  /* enum format_code */
	uint8_t rotation; /* enum format_rotation */
	le16 groups;	  /* stripe s belongs to group (s - first_stripe) mod groups; group g has the slots g*(k+m) and
			     following */
	le16 k;
	le16 m;
	le32 strip_bytes;
	le64 first_stripe; /* of the array's stripes, which are counted through all geometries */
	le64 stripes;
	le64 member_offset; /* where its strips begin on each member, from the start of the drive */
	uint8_t reserved[24];
};
_Static_assert(sizeof(struct format_geometry) == 64, "geometry");

struct format_member {
	uint8_t uuid[16];
	uint8_t state; /* enum format_member_state */
	uint8_t reserved0[7];
	le64 events;	   /* the member must have seen at least this event to be used */
	le64 rebuild_next; /* stripe */
	le64 changed;	   /* when it came into this state, ns since 1970 */
	le64 map_id;	   /* of the map of what it missed (struct format_missed); 0: it lacks everything */
	le64 left;	   /* the first event that it cannot have seen */
};
_Static_assert(sizeof(struct format_member) == 64, "member");

struct format_volume {
	char name[SUPER_NAME]; /* padded with zeros; empty: the entry is free */
	uint8_t uuid[16];
	le64 flags; /* zero */
	le64 first_stripe;
	le64 stripes;
	le64 log_first; /* in chunks of the log zone */
	le64 log_chunks;
	le64 created; /* ns since 1970 */
	uint8_t reserved[32];
};
_Static_assert(sizeof(struct format_volume) == 128, "volume");

struct format_super {
	char magic[8];
	le64 checksum; /* checksum64 of its BYTES with this field zero, seed 0 */
	le32 version;
	le32 bytes;    /* of the whole: a multiple of 4096 */
	le64 incompat; /* unknown bit: do not touch */
	le64 compat;   /* unknown bit: ignore */
	le64 ro;       /* unknown bit: do not write */
	uint8_t array_uuid[16];
	char name[SUPER_NAME];
	le64 events; /* counts the writes of superblocks */
	le64 created;
	le64 updated;
	/* of this drive alone */
	uint8_t member_uuid[16];
	le16 slot;
	uint8_t copy; /* 0 or 1 */
	/* of the array again */
	uint8_t clean; /* 1: closed in order */
	le32 level;
	le64 drive_bytes;  /* of this drive */
	le64 member_bytes; /* what the array counts on from each drive */
	le64 log_offset;
	le64 log_bytes; /* of each member */
	le64 data_offset;
	le64 data_bytes; /* of each member */
	le32 log_chunk;
	le16 log_copies;
	le16 log_members;
	le16 members; /* slots 0 .. members-1 hold strips; those behind are spares */
	le16 slots;   /* used entries of the member table */
	le16 geometries;
	le16 log_groups; /* chunk c belongs to group g = c mod log_groups, of log_members / log_groups = w slots; its
			    copy j has the number q = c / log_groups * log_copies + j there: slot g * w + q mod w, as
			    chunk q / w of that member's log zone. 0 is 1 */
	uint8_t reserved0[304];
	struct format_geometry geometry[SUPER_GEOMETRIES]; /* by rising epoch */
	uint8_t rest[];					   /* two tables, of members and of volumes */
};
_Static_assert(offsetof(struct format_super, array_uuid) == 48, "super");
_Static_assert(offsetof(struct format_super, member_uuid) == 120, "super");
_Static_assert(offsetof(struct format_super, drive_bytes) == 144, "super");
_Static_assert(offsetof(struct format_super, geometry) == 512, "super");
_Static_assert(sizeof(struct format_super) == 1536, "super");

/* Where the tables lie: volumes and then members, or the other way round in version 1. */
#define SUPER_VOLUMES_AT 1536u
#define SUPER_MEMBERS_AT 5632u
#define SUPER_MEMBERS_AT_1 1536u
#define SUPER_VOLUMES_AT_1 5632u
_Static_assert(SUPER_VOLUMES_AT + SUPER_VOLUMES * sizeof(struct format_volume) == SUPER_MEMBERS_AT, "super");
_Static_assert(SUPER_MEMBERS_AT + SUPER_SLOTS * sizeof(struct format_member) <= SUPER_BYTES_MOST, "super");
_Static_assert(SUPER_MEMBERS_AT_1 + SUPER_SLOTS_1 * sizeof(struct format_member) == SUPER_VOLUMES_AT_1, "super");
_Static_assert(SUPER_BYTES_MOST <= SUPER_ALIGN, "super");

/*
 * The map of what the member in SLOT missed, on each of the others of its group: with I its number in the group (of
 * the last geometry) at MISSED_OFFSET + (2 * I + copy) * 4096, written in turn to copy 0 and 1. Bit i, counted from the
 * lowest of the first byte on: the stripes of the array from i << shift on, 1 << shift of them. In version 1 it is on
 * all others, and I is the slot.
 */
#define MISSED_OFFSET 131072u
#define MISSED_BYTES 4096u
#define MISSED_MAGIC "FurrowMm"
#define MISSED_BITS 30720u
struct format_missed {
	char magic[8];
	le64 checksum; /* of the MISSED_BYTES with this field zero */
	uint8_t array_uuid[16];
	le64 map_id;
	le64 generation;
	le16 slot;
	uint8_t copy; /* the lowest bit of generation */
	uint8_t shift;
	uint8_t reserved[204];
	uint8_t bits[MISSED_BITS / 8];
};
_Static_assert(sizeof(struct format_missed) == MISSED_BYTES, "missed");
#define MISSED_MAPS 64u /* members of a group, and slots of version 1 */
_Static_assert(SUPER_OFFSET_0 + SUPER_BYTES_MOST <= MISSED_OFFSET, "missed");
_Static_assert(MISSED_OFFSET + 2 * MISSED_MAPS * MISSED_BYTES <= MEMBER_HEAD_BYTES, "missed");

/* A drive of the shared pool of spares bears this where copy 0 of a superblock would be, and belongs to no array. */
#define SPARE_MAGIC "FurrowSp"
struct format_spare {
	char magic[8];
	le64 checksum; /* of the SPARE_BYTES with this field zero */
	le32 version;  /* 1 */
	le32 bytes;
	uint8_t uuid[16];
	le64 created;
	uint8_t reserved[4048];
};
#define SPARE_BYTES 4096u
_Static_assert(sizeof(struct format_spare) == SPARE_BYTES, "spare");

#endif
