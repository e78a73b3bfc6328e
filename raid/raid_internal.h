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
	uint64_t map_id; /* of the map of what it missed; 0: there is none, it lacks everything */
	uint64_t left;	 /* away: the first event of the others without it. There: since which it is, or before */
};

struct volume_config {
	char name[RAID_NAME_MAX + 1];
	struct uuid uuid;
	uint64_t flags, first_stripe, stripes, log_first, log_chunks, created;
};

struct raid_config {
	uint32_t version; /* of the format */
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
	struct volume_config volume[SUPER_VOLUMES];
	struct member_config member[SUPER_SLOTS];
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
static inline unsigned config_slots_most(const struct raid_config *config)
{
	return config->version == 1 ? SUPER_SLOTS_1 : SUPER_SLOTS;
}
static inline uint64_t super_offset(uint64_t drive_bytes, unsigned copy)
{
	return copy == 0 ? SUPER_OFFSET_0 : (drive_bytes & ~(uint64_t)(SUPER_ALIGN - 1)) - SUPER_ALIGN;
}
/* How long the superblocks of CONFIG are; a multiple of BLOCK_BYTES. */
uint32_t super_bytes(const struct raid_config *config);
/* The superblock of SLOT into RAW, super_bytes() long. */
void super_encode(const struct raid_config *config, unsigned slot, unsigned copy, uint64_t drive_bytes, void *raw);
/* RAW: SUPER_BYTES_MOST from where it begins. WHY says what is wrong with it, for people. */
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
/* A stripe: its positions lie at one offset, on the slots of one group in turn, the first of them TURN slots from its
 * base.
 */
struct stripe_layout {
	unsigned base, width, turn;
	uint64_t offset; /* on each drive */
};
static inline struct stripe_layout layout_stripe(const struct geometry *g, uint64_t stripe)
{
	uint64_t local = stripe - g->first_stripe;
	uint64_t row = g->groups == 1 ? local : local / g->groups;
	unsigned group = g->groups == 1 ? 0 : (unsigned)(local % g->groups);
	unsigned width = g->k + g->m;
	return (struct stripe_layout){
		.base = group * width,
		.width = width,
		.turn = (unsigned)(row % width),
		.offset = g->member_offset + row * g->strip_bytes,
	};
}
static inline unsigned layout_slot(const struct stripe_layout *l, unsigned pos)
{
	unsigned at = pos + l->turn;
	return l->base + (at < l->width ? at : at - l->width);
}
/* Where position POS (data 0..k-1, parity k..k+m-1) of STRIPE begins. */
static inline struct place layout_strip(const struct geometry *g, uint64_t stripe, unsigned pos)
{
	struct stripe_layout l = layout_stripe(g, stripe);
	return (struct place){.slot = layout_slot(&l, pos), .offset = l.offset};
}
/* Where the map of what SLOT missed is kept: on the members [first, end), as number INDEX of theirs. */
struct map_home {
	unsigned first, end, index;
};
struct map_home layout_map(const struct raid_config *config, unsigned slot);
/* Where copy COPY of chunk CHUNK of the log zone begins. */
struct place layout_log(const struct raid_config *config, uint64_t chunk, unsigned copy);
/* What a level makes of COUNT drives in GROUPS (0: as many as fit). 0, or -EINVAL with the reason in WHY. */
int level_geometry(unsigned level, unsigned count, unsigned groups, struct geometry *g, char *why, size_t size);
unsigned level_tolerates(const struct geometry *g);

/* ---- the code that makes redundancy (code.c) ---- */

#define CODE_WIDTH_MAX RAID_GROUP_MAX /* positions of a stripe; sets of them are bits of a uint64_t */
_Static_assert(CODE_WIDTH_MAX <= 64 && CODE_WIDTH_MAX <= MISSED_MAPS, "width");

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

/* ---- gates: who is inside of an operation (gate.c) ---- */

/* Of one reactor, and touched by it alone; two cache lines apart, for processors fetch lines in pairs. */
struct array_gate {
	unsigned epoch;
	unsigned inside[2];   /* operations that entered in an even and in an odd epoch */
	struct fiber *waiter; /* for the last one of the epoch before */
} __attribute__((aligned(128)));

enum zone { ZONE_ROWS, ZONE_LOG }; /* addresses: stripes of the array, chunks of the log zone */

/* What the rebuild is working on: nobody else writes there meanwhile. */
struct array_window {
	_Atomic bool open;
	pthread_mutex_t lock; /* of the rest */
	enum zone zone;
	uint64_t first, end;
	struct list waiters;
};

struct barrier {
	struct fiber_mutex mutex;
	_Atomic unsigned pending;
	struct fiber *waiter;
	struct mail mail[METRIC_SLOTS];
};

/* ---- arrays ---- */

/* health.c */
struct member_health {
	uint64_t reads, read_ns; /* of the drive when it was looked at last */
	unsigned strikes;
	_Atomic bool slow; /* reads go around it */
	bool smart_valid, warned;
	struct drive_smart smart;
};

struct rebuild;
struct scrub;
struct missed;
struct member { /* what every write looks at comes first, in one cache line */
	struct array *array;
	unsigned slot;
	/* NULL: not there. Changed on the home reactor behind array_barrier() only, while the member is not writable,
	 * and under array->table for those who look at it from outside of a gate. A drive that is replaced is exchanged
	 * while the member is ACTIVE: both have the same content then, until the barrier after it */
	struct drive *_Atomic drive;
	struct drive *incoming; /* it takes the drive's place with the commit that is under way; home, under mutex */
	_Atomic uint8_t state;	/* enum format_member_state; reads go to ACTIVE only, writes to REBUILD too */
	_Atomic bool out;	/* not ACTIVE, and the survivors' superblocks say so durably */
	_Atomic uint64_t read_errors, write_errors, checksum_errors, timeouts;
	_Atomic uint64_t error_score; /* read errors, of which one is forgiven every 10 minutes */
	_Atomic uint64_t error_time;
	_Atomic bool told;	     /* that it has too many errors */
	bool stale;		     /* a drive is there, but behind */
	bool fresh;		     /* it is back, and no commit has ended since: it may have none of ours */
	struct missed *missed;	     /* missed.c; NULL: of a spare's slot */
	struct member_health health; /* health.c; home reactor */
	char path[256];
	struct gauge gauge[6];
	char gauge_labels[128];
} __attribute__((aligned(64)));

/* read.c: what a drive could not read, and was made again for a caller who has not said yet that it is right. */
#define UNREAD_MOST 32u
struct unread_run {
	uint64_t block; /* of the volume; of position 0 where all are copies */
	uint32_t blocks;
	unsigned pos; /* that could not be read */
};
struct unread {
	pthread_mutex_t lock;
	_Atomic unsigned count;
	struct unread_run run[UNREAD_MOST];
};

struct volume {
	struct array *array;
	struct volume_owner owner; /* under array->owners; asked by rebuild and scrub */
	unsigned index;		   /* in the volume table */
	char name[2 * RAID_NAME_MAX + 2];
	struct uuid uuid;
	const struct geometry *geo;
	const struct code *code;
	struct volume_geometry geometry;
	uint64_t first_stripe; /* of the array */
	uint64_t log_first;    /* chunk */
	struct unread unread;
};

struct array {
	struct raid_config config; /* home reactor, under mutex; geometry and sizes never change while it is open */
	pthread_mutex_t table; /* held for moments: volume table, member uuids and counts of config, for those who do
				  not wait */
	uint64_t complete;     /* the last event that is on all active members for sure */
	struct code code[SUPER_GEOMETRIES];
	struct reactor *home;
	struct fiber_mutex mutex; /* of fibers of the home reactor */
	_Atomic bool stopped;
	bool look; /* nothing is written: array_look() */
	unsigned open_volumes;
	struct volume *open[RAID_VOLUMES_MAX];

	/* gate.c */
	struct array_gate gate[METRIC_SLOTS];
	struct array_window window;
	struct barrier barrier;
	/* missed.c */
	struct recent *recent;
	unsigned region_shift; /* a region is 1 << region_shift stripes */
	/* keeper.c: home reactor */
	struct fiber_mutex owners; /* volume owners are asked and changed under it */
	struct fiber_mutex change; /* held by who adds, removes or replaces a member, around array->mutex */
	struct keeper {
		bool on, running, closing, paused, kicked;
		struct wait_queue work, done;
		bool copy; /* slot COPY_SLOT is to be copied to the spare COPY_SPARE and replaced by it */
		unsigned copy_slot, copy_spare;
		struct rebuild *rebuild;    /* the one that runs */
		struct rebuild_status last; /* what the last one came to */
	} keeper;
	struct scrub *scrub;		/* scrub.c */
	struct scrub_status scrub_last; /* of the one that runs, or ran last; under table */
	struct rebuild_tuning tuning;
	/* health.c */
	uint64_t peers_ns; /* the median of the members' mean read */
	uint64_t smart_at; /* when drives are asked next */

	struct member member[RAID_DRIVES_MAX]; /* those of the slots in use are made: array_members() */
};

static inline bool member_active(const struct member *member)
{
	return atomic_load_explicit(&member->state, memory_order_acquire) == FORMAT_MEMBER_ACTIVE;
}
static inline bool array_stopped(const struct array *array)
{
	return atomic_load_explicit(&array->stopped, memory_order_acquire);
}
/* Whether reads should go to it: not to a slow drive where others suffice. */
static inline bool member_preferred(const struct member *member)
{
	return member_active(member) && !atomic_load_explicit(&member->health.slow, memory_order_relaxed);
}
/* Whether what is written must reach it. */
static inline bool member_writable(const struct member *member)
{
	uint8_t state = atomic_load_explicit(&member->state, memory_order_acquire);
	return state == FORMAT_MEMBER_ACTIVE || state == FORMAT_MEMBER_REBUILD;
}

/*
 * Every operation on a volume that looks at member states or at their drives is inside of the gate of its reactor
 * meanwhile; two plain additions. array_barrier() returns when all that were inside when it was called have
 * left: home reactor, waits, no array->mutex held.
 */
static inline unsigned gate_enter(struct array *array)
{
	struct array_gate *gate = &array->gate[reactor_index(reactor_self())];
	unsigned epoch = gate->epoch & 1;
	gate->inside[epoch]++;
	return epoch;
}
static inline void gate_leave(struct array *array, unsigned epoch)
{
	struct array_gate *gate = &array->gate[reactor_index(reactor_self())];
	if (--gate->inside[epoch] == 0 && gate->waiter && epoch != (gate->epoch & 1))
		fiber_wake(gate->waiter);
}
void window_wait(struct array *array, enum zone zone, uint64_t first, uint64_t count);
/* As gate_enter() for one who will write [FIRST, FIRST+COUNT) of ZONE: waits while the rebuild works there. */
static inline unsigned gate_enter_write(struct array *array, enum zone zone, uint64_t first, uint64_t count)
{
	if (atomic_load_explicit(&array->window.open, memory_order_acquire))
		window_wait(array, zone, first, count);
	return gate_enter(array);
}
void gates_init(struct array *array);
void gates_fini(struct array *array);
void array_barrier(struct array *array);
/* Nobody writes [first, end) when it returns, until it is moved or closed (FIRST == END). Home reactor, waits. */
void window_move(struct array *array, enum zone zone, uint64_t first, uint64_t end);

/* ---- what members missed (missed.c) ---- */

int missed_init(struct array *array); /* for the members that the configuration has; 0 or -ENOMEM */
void missed_fini(struct array *array);
/*
 * MEMBER lacks what was or will be written to STRIPE: returns when its loss and that are durable on the others, so that
 * the write may be acknowledged. Any reactor, waits.
 */
int member_lacks(struct member *member, uint64_t stripe);
/* Rows of STRIPE were written, not durably. After member->written has counted them, and before states are looked at. */
void recent_mark(struct array *array, uint64_t stripe);
/* Around a flush of all members: true when this one may settle what was written before. */
bool recent_flush_begin(struct array *array);
void recent_flush_end(struct array *array, bool all_well);
uint64_t missed_id(void); /* a map_id: random, so that those of two halves of an array differ */
/* MEMBER has gone out now: what it may have lost with its cache is noted. Home reactor, mutex held. */
void missed_begin(struct member *member, bool was_active);
/* Writes maps that have grown. How many members were taken out over it, or negative errno. Home reactor, mutex held. */
int missed_persist(struct array *array);
/* The member of TO has become active: the maps that it should have are written with the next commit, to it too. Home
 * reactor, mutex held. */
void missed_spread(struct array *array, unsigned to);
/* After the members were claimed at opening: reads the map of each that is away. Waits. */
void missed_load(struct array *array);
bool missed_region(const struct member *member, uint64_t stripe);

/* ---- life of members (keeper.c, rebuild.c, scrub.c, health.c) ---- */

enum stripe_use { STRIPE_UNUSED, STRIPE_USED };
/* Sets USED[i] for each of COUNT stripes of the array from FIRST on. Home reactor, waits. */
void array_usage(struct array *array, uint64_t first, unsigned count, bool *used);
/* The rebuild of SLOT, which is in state REBUILD: 0 when it is active now, or what went wrong. Waits. */
int rebuild_run(struct array *array, unsigned slot);
/* The same for SLOT that is active: it is copied to SPARE, and they change places. */
int copy_run(struct array *array, unsigned slot, unsigned spare);
/* A lost member could be rebuilt on a spare: that is more urgent than a copy. */
bool keeper_urgent(const struct array *array);
void rebuild_status_get(const struct array *array, struct rebuild_status *status); /* no wait, any thread */
int keeper_start(struct array *array);
void keeper_stop(struct array *array); /* waits; also ends rebuild and scrub */
void keeper_kick(struct array *array); /* home reactor */
void scrub_stop(struct array *array);  /* waits for its end */
void health_tick(struct array *array);
/* MEMBER, which is ACTIVE, gives up its drive for that of SPARE; the caller closes it behind a barrier. Mutex held. */
void member_drive_swap(struct member *member, struct member *spare);
/* 0 and the UUID of a spare of the shared pool, -ENODATA when DRIVE is none. Waits. */
int pool_spare_read(struct drive *drive, struct uuid *uuid);
/* An event for whoever listens: log and hook are the caller's. Any thread. */
void event_emit(const struct array *array, const char *event, const struct member *member, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

enum member_error { MEMBER_READ_ERROR, MEMBER_WRITE_ERROR };
/*
 * A command to MEMBER failed with ERROR. Counts it, and takes the member out when it was a write, a
 * time-out or a vanished drive, or when read errors are too many. Waits.
 * Returns 0 when the array goes on (and, if it went out, that is durable), -ENODEV when it stopped.
 */
int member_failed(struct member *member, enum member_error what, int error);
/* What MEMBER returned had a wrong checksum: counts it; past the threshold it goes, if a spare is there. Waits. */
void member_lied(struct member *member);
/* Returns when the loss of MEMBER is durable on the survivors: before a write without it is acknowledged. Waits. */
int member_settle(struct member *member);
/* On the home reactor, with the mutex: writes the superblocks with the next event count to all members that are there.
 */
int array_commit(struct array *array, struct error *err);
/* Changes the state of a writable member to FAILED, or stops the array. Home reactor, mutex held. */
int member_take_out(struct member *member, const char *reason);
/* Whether what is ACTIVE in CONFIG holds everything: no group has lost more than M, no chunk of the log all copies. */
bool config_viable(const struct raid_config *config);
/*
 * Whether the drive of SLOT, whose superblock is THEIRS, may have gone on with an array that is not OURS. It has not
 * when we know that it had that event, or when a member that its superblock names as active is so with us and has been
 * all the time: then that superblock is ours, or its writing never ended and nothing was built on it.
 */
bool config_strayed(const struct raid_config *ours, unsigned slot, const struct raid_config *theirs);
struct array *array_make(void); /* NULL: out of memory */
/* The slots of the configuration have grown to COUNT: makes the members from FROM on. */
void array_members(struct array *array, unsigned from, unsigned count);
/* Whether a spare of its own waits. Any thread. */
bool array_has_spare(struct array *array);
void array_free(struct array *array); /* closes the drives, waits */
/* Allocates all of BUFS without holding some while it waits for others. Waits. */
void bufs_alloc(struct buf **bufs, unsigned n, uint32_t size);
/* Checks a range and counts it: 0, -EINVAL, or -ENODEV of a stopped array. */
int volume_range(const struct volume *volume, uint64_t block, uint64_t limit, const struct slice *v, unsigned n,
	uint64_t *blocks);
void metrics_member_add(struct member *member);
void metrics_member_remove(struct member *member);

#endif
