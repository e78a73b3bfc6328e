/*
 * Arrays from inside: configuration, geometry, members, and the code that makes redundancy.
 *
 * What is read on every I/O (member states, whether the array runs) is atomic. What is changed is
 * changed on the array's home reactor, under array->mutex, and goes to the superblocks there.
 */
#ifndef FURROW_RAID_INTERNAL_H
#define FURROW_RAID_INTERNAL_H

#include <pthread.h>

#include "raid/drive_internal.h"
#include "raid/raid_format.h"

/* ---- configuration: a superblock in the machine's own integers (superblock.c) ---- */

struct geometry {
	uint32_t epoch;
	uint8_t code, rotation;
	uint32_t groups, k, m;
	uint32_t strip_bytes, strip_blocks;
	uint64_t first_stripe, stripes;
	uint64_t member_offset;
};

struct member_config {
	struct uuid uuid;
	uint8_t state; /* enum format_member_state */
	uint64_t events, rebuild_next, changed;
};

struct volume_config {
	char name[RAID_NAME_MAX + 1];
	struct uuid uuid;
	uint64_t flags, first_stripe, stripes, log_first, log_chunks, created;
};

struct raid_config {
	uint64_t compat;
	struct uuid uuid;
	char name[RAID_NAME_MAX + 1];
	uint64_t events, created, updated;
	bool clean;
	uint32_t level;
	uint64_t member_bytes, log_offset, log_bytes, data_offset, data_bytes;
	uint32_t log_copies, log_members, log_groups;
	uint32_t members, slots, geometries;
	struct geometry geometry[SUPER_GEOMETRIES];
	struct member_config member[SUPER_MEMBERS];
	struct volume_config volume[SUPER_VOLUMES];
};

/* One superblock as it was found on a drive. */
struct super_found {
	struct raid_config config;
	unsigned slot;
	struct uuid member;
	uint64_t drive_bytes;
	uint64_t common; /* checksum of what all members have in common: differs at equal events after a split */
};

enum super_verdict { SUPER_VALID, SUPER_NONE, SUPER_DAMAGED, SUPER_NEWER };

bool raid_name_valid(const char *name);
static inline uint64_t super_offset(uint64_t drive_bytes, unsigned copy)
{
	return copy == 0 ? SUPER_OFFSET_0 : (drive_bytes & ~(uint64_t)(SUPER_ALIGN - 1)) - SUPER_ALIGN;
}
void super_encode(const struct raid_config *config, unsigned slot, unsigned copy, uint64_t drive_bytes, void *raw);
/* WHY says what is wrong with it, for people. */
enum super_verdict super_decode(
	const void *raw, uint64_t drive_bytes, struct super_found *found, char *why, size_t size);
/* The newer valid one of the two copies. 0 and *verdict, or the error of reading. Waits. */
int super_read(struct drive *drive, struct super_found *found, enum super_verdict *verdict, char *why, size_t size);
/* Whether CONFIG is consistent in itself; WHY as above. */
bool config_valid(const struct raid_config *config, char *why, size_t size);
uint64_t config_stripes(const struct raid_config *config);
uint64_t config_log_chunks(const struct raid_config *config);

/* ---- layout (layout.c) ---- */

struct place {
	unsigned slot;
	uint64_t offset; /* on the drive */
};
/* Where position POS (data 0..k-1, parity k..k+m-1) of STRIPE begins. */
struct place layout_strip(const struct geometry *g, uint64_t stripe, unsigned pos);
/* Where copy COPY of chunk CHUNK of the log zone begins. */
struct place layout_log(const struct raid_config *config, uint64_t chunk, unsigned copy);
/* What a level makes of COUNT drives in GROUPS (0: as many as fit). 0, or -EINVAL with the reason in WHY. */
int level_geometry(unsigned level, unsigned count, unsigned groups, struct geometry *g, char *why, size_t size);
unsigned level_tolerates(const struct geometry *g);

/* ---- the code that makes redundancy (code.c) ---- */

#define CODE_WIDTH_MAX RAID_MEMBERS_MAX

struct code {
	const struct code_ops *ops;
	unsigned k, m;
	uint8_t *matrix; /* (k + m) x k: how each position follows from the data */
	uint8_t *tables; /* of its last m rows, expanded for isa-l */
};
/* How to make WANTED positions from K present ones; made once for a number of calls. */
struct code_plan {
	const struct code *code;
	unsigned sources, wanted;
	bool plain; /* XOR of all sources */
	uint8_t source[CODE_WIDTH_MAX];
	uint8_t *tables; /* sources x wanted */
};
struct code_ops {
	const char *name;
	bool copies; /* every position holds the same */
	int (*init)(struct code *code);
	/* data[k] to parity[m], LEN bytes each; 64-byte alignment and multiples where possible */
	void (*encode)(const struct code *code, uint8_t *const *data, uint8_t *const *parity, size_t len);
	/* SOURCE: k different positions */
	int (*plan)(const struct code *code, struct code_plan *plan, const uint8_t *wanted);
	void (*apply)(const struct code_plan *plan, uint8_t *const *from, uint8_t *const *to, size_t len);
};
int code_init(struct code *code, uint8_t format_code, unsigned k, unsigned m);
void code_fini(struct code *code);
/* -EIO when these sources do not determine it (cannot be with k different ones). */
int code_plan(const struct code *code, struct code_plan *plan, const uint8_t *source, const uint8_t *wanted,
	unsigned wanted_count);
void code_plan_free(struct code_plan *plan);

/* ---- arrays ---- */

struct member {
	struct array *array;
	unsigned slot;
	struct drive *drive;	  /* NULL: not there. Stays until the array is closed */
	_Atomic uint8_t state;	  /* enum format_member_state; I/O goes to ACTIVE only */
	_Atomic bool out;	  /* not ACTIVE, and the survivors' superblocks say so durably */
	_Atomic uint64_t read_errors, write_errors, checksum_errors, timeouts;
	_Atomic uint64_t error_score; /* read errors, of which one is forgiven every 10 minutes */
	_Atomic uint64_t error_time;
	bool stale; /* a drive is there, but behind */
	char path[256];
	struct gauge gauge[6];
	char gauge_labels[128];
};

struct volume {
	struct array *array;
	unsigned index; /* in the volume table */
	char name[2 * RAID_NAME_MAX + 2];
	struct uuid uuid;
	const struct geometry *geo;
	const struct code *code;
	struct volume_geometry geometry;
	uint64_t first_stripe; /* of the array */
	uint64_t log_first;    /* chunk */
};

struct array {
	struct raid_config config; /* home reactor, under mutex; geometry and sizes never change while it is open */
	pthread_mutex_t table; /* held for moments: volume table, member uuids and counts of config, for those who do
				  not wait */
	uint64_t complete;     /* the last event that is on all active members for sure */
	struct code code[SUPER_GEOMETRIES];
	struct member member[RAID_MEMBERS_MAX];
	struct reactor *home;
	struct fiber_mutex mutex; /* of fibers of the home reactor */
	_Atomic bool stopped;
	unsigned open_volumes;
	struct volume *open[RAID_VOLUMES_MAX];
};

static inline bool member_active(const struct member *member)
{
	return atomic_load_explicit(&member->state, memory_order_acquire) == FORMAT_MEMBER_ACTIVE;
}
static inline bool array_stopped(const struct array *array)
{
	return atomic_load_explicit(&array->stopped, memory_order_acquire);
}
enum member_error { MEMBER_READ_ERROR, MEMBER_WRITE_ERROR };
/*
 * A command to MEMBER failed with ERROR. Counts it, and takes the member out when it was a write, a
 * time-out or a vanished drive, or when read errors are too many. Waits.
 * Returns 0 when the array goes on (and, if it went out, that is durable), -ENODEV when it stopped.
 */
int member_failed(struct member *member, enum member_error what, int error);
/* Returns when the loss of MEMBER is durable on the survivors: before a write without it is acknowledged. Waits. */
int member_settle(struct member *member);
/* On the home reactor, with the mutex: writes the superblocks with the next event count to all members that are there.
 */
int array_commit(struct array *array, struct error *err);
/* Whether what is ACTIVE in CONFIG holds everything: no group has lost more than M, no chunk of the log all copies. */
bool config_viable(const struct raid_config *config);
struct array *array_make(void);	      /* NULL: out of memory */
void array_free(struct array *array); /* closes the drives, waits */
/* Allocates all of BUFS without holding some while it waits for others. Waits. */
void bufs_alloc(struct buf **bufs, unsigned n, uint32_t size);
/* Checks a range and counts it: 0, -EINVAL, or -ENODEV of a stopped array. */
int volume_range(const struct volume *volume, uint64_t block, uint64_t limit, const struct slice *v, unsigned n,
	uint64_t *blocks);
void metrics_member_add(struct member *member);
void metrics_member_remove(struct member *member);

#endif
