/*
 * raid: drives, and arrays with redundancy over them. It knows blocks, rows and stripes, never a file.
 *
 *   block   4 KiB
 *   strip   what one drive holds of a stripe (64 KiB unless said otherwise)
 *   stripe  one strip of every drive of a group: K of data, M of parity (or copies)
 *   row     the blocks at one depth of a stripe: K data blocks and their M parity blocks
 *
 * Parity is bytewise, so the row is the unit of consistency. Only whole rows are written, and a
 * row that the owner still needs is never written again: the owner (the file system) keeps that
 * rule, and in return there is no read-modify-write and no write hole.
 *
 * An array holds volumes: each is a range of stripes and a range of the mirrored log zone, recorded
 * in the members' superblocks. A volume is what a file system lives on.
 *
 * Addresses inside a volume: the data block D of drive position P in row R of stripe S has the number
 *     S * K * strip_blocks + P * strip_blocks + R
 * so blocks of one strip are consecutive, and so are the strips of a stripe.
 *
 * All functions wait (core.h) and may be called on any reactor unless it says otherwise; a volume's
 * I/O goes out on the calling reactor's own ring. Errors are negative errno:
 *   -EIO      more is lost than the redundancy can bring back
 *   -ENODEV   the array has stopped (too few members left)
 *   -ETIMEDOUT from reading: a drive did not answer, and may still write to the memory it was given.
 *             That member is out now. Put the buffers (they come free when the drive lets go of them),
 *             and call again with others: what it held is then reconstructed.
 */
#ifndef FURROW_RAID_H
#define FURROW_RAID_H

#include "core/core.h"

#define RAID_GROUP_MAX 64u   /* drives of a group */
#define RAID_DRIVES_MAX 936u /* drives of an array, with its spares: 14 groups of 64 and 40 spares, for example */
#define RAID_NAME_MAX 31     /* arrays and volumes: [A-Za-z0-9._-], not beginning with '.' or '-' */
#define RAID_VOLUMES_MAX 32u

struct uuid {
	uint8_t b[16];
};
void uuid_make(struct uuid *uuid);
void uuid_format(const struct uuid *uuid, char text[37]);
int uuid_parse(const char *text, struct uuid *uuid);

/* ------------------------------------------------------------------------------------------------
 * Scanning: what is on the drives. Changes nothing.
 */

enum drive_kind { DRIVE_NVME, DRIVE_BLOCK, DRIVE_FILE };
/* DRIVE_POOL: a spare of the shared pool, which belongs to no array */
enum drive_content { DRIVE_EMPTY, DRIVE_MEMBER, DRIVE_FOREIGN, DRIVE_DAMAGED, DRIVE_UNREADABLE, DRIVE_POOL };

struct drive_info {
	char path[256];
	enum drive_kind kind;
	char model[41], serial[21];
	uint64_t bytes;
	uint32_t lba_bytes;
	uint32_t transfer_max; /* bytes per command (MDTS) */
	bool volatile_cache;
	enum drive_content content;
	char holds[80]; /* for people: "member 3 of array a0", "ext4 file system", "Permission denied" */
	/* of a member */
	struct uuid array, member;
	char array_name[RAID_NAME_MAX + 1];
	unsigned slot;
	uint64_t events;
};

struct raid_scan {
	unsigned count;
	struct drive_info *drive;
};
/*
 * Looks at all drives that match PATTERNS (glob; a pattern that matches nothing is no error). -E2BIG when these match,
 * or walk through, more than a machine has of drives.
 */
int raid_scan(const char *const *patterns, unsigned count, struct raid_scan *scan, struct error *err);
void raid_scan_free(struct raid_scan *scan);
/* Whether two paths are names of the same drive: links, and an NVMe drive's character and block device. */
bool drive_path_same(const char *a, const char *b);

/* ------------------------------------------------------------------------------------------------
 * Arrays
 */

struct array;

struct array_create {
	const char *name;
	unsigned level;	 /* 0, 1, 5, 6, 10, 50 or 60 */
	unsigned groups; /* of levels 10, 50 and 60: the drives in equal parts, in the order given; 0: a choice of ours
			  */
	uint32_t strip_bytes; /* 0: 64 KiB; a power of two from 16 KiB to 1 MiB */
	const char *const *drives;
	unsigned count;
	const char *const *spares;
	unsigned spare_count;
	bool force; /* also over a drive that holds something else (never over one in use) */
};
/* Claims all drives first, then checks all, then writes; fails before anything was written where it can. */
int array_create(const struct array_create *create, struct error *err);

/*
 * Assembles the array NAME_OR_UUID from SCAN and claims its drives. Names in the error which members
 * are missing, stale, foreign or twice there, and refuses what must not be started. -EBUSY: somebody else has a drive;
 * -EAGAIN: somebody else had it until now. Both may pass.
 */
int array_open(const struct raid_scan *scan, const char *name_or_uuid, struct array **array, struct error *err);
/*
 * The same for whoever only wants to look: nothing is ever written to the drives, so a member that is not there (yet)
 * is not put down as missing, and a later array_open() finds what it would have found. Its volumes must not be written.
 */
int array_look(const struct raid_scan *scan, const char *name_or_uuid, struct array **array, struct error *err);
void array_close(struct array *array); /* after its volumes; writes a clean superblock, unless it was a look */
/* Wipes the superblocks of all members found (it must not be open anywhere). */
int array_destroy(const struct raid_scan *scan, const char *name_or_uuid, struct error *err);
/* Takes a member out, as if it had failed. */
int array_fail(struct array *array, unsigned slot, struct error *err);

/*
 * Life of members, all on an open array. What is written while a member is away is noted, so that the same drive is
 * brought up to date by that; any other one is rebuilt from the beginning, rows in use only.
 */
struct member_add {
	bool force; /* also a drive that holds something else */
	bool spare; /* wait as a spare; else it may take over the slot of a lost member at once */
	int slot;   /* the lost slot that it is for; -1: any */
};
/*
 * DRIVE joins: as the member that it was (*SLOT tells which), or as a new one in a lost slot, or as a spare. -EEXIST
 * when it holds something else and may not be overwritten. The rebuild is the keeper's.
 */
int array_add(struct array *array, const char *drive, const struct member_add *how, unsigned *slot, struct error *err);
/* Lets go of the drive of a lost member or of a spare; the spare is wiped. */
int array_remove(struct array *array, unsigned slot, struct error *err);
/*
 * When the drive of a failed member has left the machine, or another one has its name now: closes what was open of it,
 * for the kernel keeps its name until then, and the member is missing from then on. So it is told from one that failed
 * and is still there: a missing one is welcome when it returns. No error when there is nothing to do.
 */
void array_let_go(struct array *array, unsigned slot);
/*
 * DRIVE, or a spare (DRIVE NULL), takes the place of SLOT's member. One that works is copied to it by the keeper and
 * goes when that is done: the array lacks nothing meanwhile. A lost one is rebuilt on it. One copy at a time (-EBUSY).
 */
int array_replace(struct array *array, unsigned slot, const char *drive, bool force, struct error *err);
/*
 * The keeper of an open array puts spares into lost slots and rebuilds, in the background, until the array is closed.
 * Without it nothing of that happens: who only looks at an array starts none.
 */
int array_keep(struct array *array, struct error *err);
/* Waits until no rebuild is under way or can begin. PROGRESS may be NULL. 0, or -EIO when members are still lost. */
struct rebuild_status;
int array_settled(struct array *array, void (*progress)(void *arg, const struct rebuild_status *status), void *arg);
/* Whether a slot has lost its member and nothing takes its place: no spare of the array, no rebuild. No wait. */
bool array_wants_member(struct array *array);
void array_rebuild_pause(struct array *array, bool pause);
#define REBUILD_LATENCY_TARGET (5 * NSEC_PER_MSEC)
struct rebuild_tuning {
	uint64_t latency_target_ns; /* mean of a drive command of others, above which a rebuild gives way; 0: never */
};
void array_tune(struct array *array, const struct rebuild_tuning *tuning);

/* Drives for all arrays: marked as such, and taken by who keeps an array that lacks a member. */
int pool_add(const char *drive, bool force, struct error *err);
int pool_remove(const char *drive, struct error *err);

enum member_state {
	MEMBER_ACTIVE,
	MEMBER_FAILED,
	MEMBER_MISSING,
	MEMBER_STALE,
	MEMBER_SPARE,
	MEMBER_REBUILDING,
	MEMBER_NONE
};
const char *member_state_name(enum member_state state);

struct rebuild_status {
	bool running, paused;
	bool partial; /* a member that came back: only what it missed */
	bool copies;  /* a member that works, to a spare that will take its place */
	unsigned slot;
	uint64_t done_bytes, total_bytes;   /* of the member; the total as it was counted at the start */
	uint64_t read_bytes, written_bytes; /* by this rebuild */
	uint64_t rate;			    /* bytes of the member a second, lately */
	uint64_t eta_ns;		    /* 0: not known */
	uint64_t lost_rows;		    /* could not be brought back: other members cannot be read there */
};

/* What an NVMe drive tells of its health. */
struct drive_smart {
	uint8_t critical_warning, percent_used, spare_percent, spare_threshold;
	unsigned temperature; /* kelvin */
	uint64_t media_errors, power_on_hours, unsafe_shutdowns;
};

/* Scrub: reads all rows in use and compares them with their parity. */
struct scrub_status {
	bool running, paused;
	uint64_t done_stripes, total_stripes, eta_ns;
	uint64_t started, ended; /* ns since 1970; 0: never */
	uint64_t read_bytes;
	uint64_t mismatches;	  /* rows that did not fit together */
	uint64_t repaired;	  /* ... of which the wrong block was found, and made right */
	uint64_t unresolved;	  /* ... of which nobody can tell what is wrong */
	uint64_t unread_repaired; /* blocks that could not be read, and were written again */
};
int array_scrub_start(struct array *array, struct error *err);
void array_scrub_pause(struct array *array, bool pause);
void array_scrub_stop(struct array *array);

/*
 * What happens to arrays: "member-failed", "member-returned", "rebuild-started", "rebuild-done", "rebuild-failed",
 * "spare-used", "spare-lost", "no-spare", "drive-added", "spare-added", "drive-slow", "drive-recovered",
 * "drive-warning", "scrub-done", "array-stopped". FN is called on any reactor, and must not wait. MEMBER is a path, or
 * "". One listener; NULL: none.
 */
typedef void raid_event_fn(void *arg, const char *event, const char *array, const char *member, const char *detail);
void raid_events_listen(raid_event_fn *fn, void *arg);

struct array_status {
	struct uuid uuid;
	char name[RAID_NAME_MAX + 1];
	unsigned level, groups, k, m, members; /* K and M of one group */
	uint32_t strip_bytes;
	uint64_t events;
	uint64_t data_bytes, free_bytes; /* of data in stripes; not given to a volume */
	bool degraded, stopped;
	unsigned slots; /* MEMBERS and the spares behind them; entries of member[] */
	struct rebuild_status rebuild;
	struct scrub_status scrub;
	struct {
		enum member_state state;
		uint64_t changed; /* when it came into this state, ns since 1970 */
		bool slow;	  /* reads go around it */
		bool smart_valid;
		struct drive_smart smart;
		char path[256], model[41], serial[21];
		struct uuid uuid;
		uint64_t bytes, read_errors, write_errors, checksum_errors, timeouts;
		/* drive commands since the start */
		uint64_t reads, writes, read_bytes, write_bytes, flushes, fua_writes;
	} member[RAID_DRIVES_MAX];
};
/* No wait. STATUS is too large for a stack; entries of member[] from SLOTS on are left alone. */
void array_status(struct array *array, struct array_status *status);

/* ------------------------------------------------------------------------------------------------
 * Volumes
 */

struct volume;

struct volume_geometry {
	uint32_t k, m;	       /* data strips and parity strips (or further copies) */
	uint32_t strip_blocks; /* rows of a stripe */
	uint64_t stripes;
	uint64_t log_blocks; /* of the mirrored log zone; each block is kept M+1 times */
	unsigned log_copies; /* M+1 */
	uint32_t epoch;	     /* geometry in force for new stripes */
};
static inline uint64_t volume_stripe_blocks(const struct volume_geometry *g)
{
	return (uint64_t)g->k * g->strip_blocks;
}

struct volume_info {
	char name[RAID_NAME_MAX + 1];
	struct uuid uuid;
	uint64_t bytes; /* of data in its stripes */
	bool open;
};
/* BYTES 0: all that is free. The log zone is shared out in proportion. */
int volume_create(struct array *array, const char *name, uint64_t bytes, struct error *err);
int volume_destroy(struct array *array, const char *name, struct error *err);
unsigned volume_list(struct array *array, struct volume_info list[RAID_VOLUMES_MAX]); /* no wait */
int volume_open(struct array *array, const char *name, struct volume **volume, struct error *err);
void volume_close(struct volume *volume);

/*
 * What the owner of a volume knows of it, for rebuild and scrub. All may wait; they are called on the array's home
 * reactor. Cleared (NULL) before the owner goes: that waits for calls that are under way.
 */
struct volume_owner {
	/* Sets USED[i] for each of the COUNT stripes from FIRST on, of which some row is needed or is being written. */
	void (*usage)(void *arg, uint64_t first, unsigned count, bool *used);
	/*
	 * Reads all that is needed of STRIPE and repairs what its checksums find wrong. 0: the data of all rows in use
	 * is right now, and ROW_USED[row] tells which these are; else it cannot tell.
	 */
	int (*check)(void *arg, uint64_t stripe, bool *row_used);
	void *arg;
};
void volume_set_owner(struct volume *volume, const struct volume_owner *owner);

const struct volume_geometry *volume_geometry(const struct volume *volume); /* no wait */
const struct uuid *volume_uuid(const struct volume *volume);
const char *volume_name(const struct volume *volume); /* "array/volume" */

/*
 * Reads the blocks from BLOCK on into TO, whose lengths are multiples of 4 KiB. Reconstructs what a
 * missing or failing member held. The content is not checked here: the caller has the checksums.
 */
int volume_read(struct volume *volume, uint64_t block, const struct slice *to, unsigned n);
/*
 * What volume_read() gave is right, says the caller, who has not changed it and still needs these blocks: what a drive
 * could not read of it, so that it was made from others, is written to that drive again now. Costs nothing when there
 * is nothing of that.
 */
void volume_verified(struct volume *volume, uint64_t block, const struct slice *from, unsigned n);

/*
 * The same block another way, for a caller whose checksum did not match: attempt 0 reads its member
 * again, the next ones reconstruct it from different sets of the others. -EIO: this way is closed, there may be
 * others; -ENOENT when no way is left. TO is one slice of N * 4 KiB, all in one strip. Nothing is written.
 */
int volume_reread(struct volume *volume, uint64_t block, unsigned attempt, const struct slice *to);
/* The content of BLOCK that the caller verified after volume_reread(): writes it back where it belongs and counts the
 * error. */
int volume_repair(struct volume *volume, uint64_t block, const struct slice *from);

#define VOLUME_DURABLE 1u /* returns when it will survive a power cut; else after the next volume_flush() */
/*
 * Writes rows ROW .. ROW+ROWS-1 of STRIPE with their parity. FROM holds K * ROWS blocks strip by
 * strip: first ROWS blocks of data position 0, and so on. A slice must not cross from one strip to
 * the next inside a block; any split at block bounds is fine. Unused blocks of a row are given as
 * zeros (buf_zero()). While members are missing the row goes to the others, after the loss is
 * durable in their superblocks.
 */
int volume_write_rows(struct volume *volume, uint64_t stripe, uint32_t row, uint32_t rows, const struct slice *from,
	unsigned n, unsigned flags);
int volume_flush(struct volume *volume); /* all that was written before is durable when it returns */
/* The content of these stripes is not needed any more. */
int volume_discard(struct volume *volume, uint64_t stripe, uint64_t count);

/* Writes to the log zone: durable on all copies that have a member when it returns. BLOCK counts from 0 to log_blocks.
 */
int volume_log_write(struct volume *volume, uint64_t block, const struct slice *from, unsigned n);
/* COPY 0 .. log_copies-1 names one copy: -EIO when its member is not there. Other copies are not tried. */
int volume_log_read(struct volume *volume, uint64_t block, unsigned copy, const struct slice *to, unsigned n);

/* ------------------------------------------------------------------------------------------------
 * For `furrow array examine`: the superblocks of one drive in words, without opening anything.
 */
int drive_examine(const char *path, FILE *out, struct error *err);

/* ------------------------------------------------------------------------------------------------
 * Fault injection, for tests: a drive path "fault:PATH" opens the file PATH through the
 * fault-injecting drive, which is controlled by its path.
 */
enum fault_kind {
	FAULT_NONE,
	FAULT_READ_ERROR,  /* the Nth read from now fails with -EIO */
	FAULT_WRITE_ERROR, /* the Nth write fails and changes nothing */
	FAULT_TORN_WRITE,  /* the Nth write is done for its first half, then the drive is gone */
	FAULT_LOST_WRITE,  /* the Nth write says it succeeded and did nothing */
	FAULT_FALSE_ERROR, /* the Nth write is done, and says it failed */
	FAULT_BIT_FLIP,	   /* the Nth read returns one bit wrong */
	FAULT_DELAY,	   /* the Nth command completes after ARG ns */
	FAULT_VANISH,	   /* from the Nth command on everything fails with -ENODEV */
	FAULT_SLOW	   /* from the Nth command on every one takes ARG ns longer */
};
int fault_inject(const char *path, enum fault_kind kind, uint64_t nth, uint64_t arg);
bool fault_pending(const char *path); /* something injected has not happened yet */
/*
 * With a volatile cache, writes without FUA live in memory until a flush. fault_power_cut() loses
 * each of those with a chance drawn from SEED (so any subset may survive) and makes every command
 * fail until the drive is opened anew. KEEP 0: all are lost; 1000: all survive (per mille).
 */
void fault_volatile_cache(const char *path, bool on);
void fault_power_cut(const char *path, uint64_t seed, unsigned keep);
/* All commands on "fault:" drives are counted; after LIMIT more writes everything fails as after a power cut. 0: no
 * limit. */
void fault_write_limit(uint64_t limit);
uint64_t fault_writes(void);
void fault_reset(void); /* forgets all injected faults, as on a new machine */
/* Drives "null:SIZE:NAME" swallow writes and return zeros, for benchmarks. They are refused until allowed here. */
void raid_null_allow(bool allow);

#endif
