/*
 * locks: byte-range locks and share reservations of all files, for NLM and NFSv4 together. It knows no protocol.
 *
 * A lock belongs to an owner on a file. Ranges of one owner never conflict with each other: a new one replaces what it
 * covers, as POSIX has it. Ranges of two owners conflict when they overlap and one is exclusive. All functions may be
 * called on any thread, do not wait, and take one mutex for the file's shard of the table
 * (lock_set() with a waiter: those of all). Errors are negative errno.
 */
#ifndef FURROW_LOCKS_H
#define FURROW_LOCKS_H

#include "core/core.h"
#include "fs/fs.h"

#define LOCK_OWNER_MAX 1024u
#define LOCK_TO_END UINT64_MAX

struct lock_table;

/* A file: fs_fsid() of its file system, and its identity there. Locks are on live files: fs_id.snap is left out. */
struct lock_file_key {
	uint64_t fsid, ino;
	uint32_t gen;
};
static inline struct lock_file_key lock_file_key(uint64_t fsid, struct fs_id id)
{
	return (struct lock_file_key){fsid, id.ino, id.gen};
}

/* Whose it is: DATA (at most LOCK_OWNER_MAX bytes) tells the owners of a client apart. The table copies it. */
enum lock_kind { LOCK_KIND_NLM, LOCK_KIND_NFS4 };
struct lock_owner {
	enum lock_kind kind;
	uint64_t client;
	const void *data;
	uint32_t len;
};

/* FIRST to LAST, both included; LAST LOCK_TO_END: whatever the file's size is. */
struct lock_range {
	uint64_t first, last;
	bool exclusive;
};
/* From offset and length, where TO_END says that the protocol's length means "to the end". -EINVAL: empty, or their sum
 * is beyond 64 bits.
 */
int lock_range_set(struct lock_range *range, uint64_t offset, uint64_t length, bool to_end, bool exclusive);

/* Who is in the way. */
struct lock_conflict {
	struct lock_range range;
	enum lock_kind kind;
	uint64_t client;
	uint32_t owner_len;
	uint8_t owner[LOCK_OWNER_MAX];
};

/*
 * A request that waits in the table. It lies in memory of the caller, which stays the table's until DONE is called or
 * lock_cancel() returned it. DONE comes on any thread, with no mutex held, must not wait, and may free it:
 *   0           the owner has the lock now; with notify_only: it could have had it, and is to ask again
 *   -ECANCELED  the owner, or its client, was released
 */
struct lock_waiter {
	void (*done)(struct lock_waiter *waiter, int result);
	bool notify_only;
	/* the table's: */
	struct lock_file_key key;
	struct lock_range range;
	struct lock_entry *entry;
	struct list_node node;
	int result;
};

/* Memory that all records together, and those of one client, may take. 0: 64 MiB, and a quarter of all. */
struct lock_limits {
	uint64_t total_bytes, client_bytes;
};
struct lock_table *lock_table_create(const struct lock_limits *limits); /* NULL: no memory */
void lock_table_destroy(struct lock_table *table);			/* waiters are dropped without a word */

/*
 * Takes RANGE, or changes what the owner has there. Where somebody is in the way:
 *   -EAGAIN       CONFLICT (which may be NULL) says who. WAITER was NULL
 *   -EINPROGRESS  WAITER is queued now. Those that wait for a file get it in their order as soon as nothing is in their
 *                 way; who asks in between does not queue up behind them
 *   -EALREADY     this owner waits for this range already, CONFLICT says for whom; WAITER was not used
 *   -EDEADLK      somebody in the way waits for this owner in turn (not with notify_only); WAITER was not used
 * -ENOLCK: too many locks. -EINVAL: the owner's name is too long.
 */
int lock_set(struct lock_table *table, const struct lock_file_key *key, const struct lock_owner *owner,
	const struct lock_range *range, struct lock_waiter *waiter, struct lock_conflict *conflict);
/* 0: RANGE could be had; -EAGAIN: CONFLICT is in the way. */
int lock_test(struct lock_table *table, const struct lock_file_key *key, const struct lock_owner *owner,
	const struct lock_range *range, struct lock_conflict *conflict);
/* Gives RANGE back, whatever of it is held (range->exclusive does not matter). -ENOLCK: no memory to cut a lock in two.
 */
int lock_unset(struct lock_table *table, const struct lock_file_key *key, const struct lock_owner *owner,
	const struct lock_range *range);
/* Takes the owner's request for exactly RANGE out of the queue. NULL: there is none (any more). */
struct lock_waiter *lock_cancel(struct lock_table *table, const struct lock_file_key *key,
	const struct lock_owner *owner, const struct lock_range *range);
/* How many ranges of the file the owner has. */
unsigned lock_count(struct lock_table *table, const struct lock_file_key *key, const struct lock_owner *owner);
/* All ranges and waiting requests of an owner on a file (not its share); all that a client has, anywhere. */
void lock_release_owner(struct lock_table *table, const struct lock_file_key *key, const struct lock_owner *owner);
void lock_release_client(struct lock_table *table, enum lock_kind kind, uint64_t client);

/*
 * Share reservations: each owner has at most one on a file: what it does, and what it denies to others. Two owners
 * conflict when one does what the other denies.
 */
#define LOCK_SHARE_READ 1u
#define LOCK_SHARE_WRITE 2u
/* Sets, or replaces, the owner's. -EAGAIN: somebody is in the way (CONFLICT's range means nothing); the owner's stays
 * as it was. -ENOLCK. */
int lock_share_set(struct lock_table *table, const struct lock_file_key *key, const struct lock_owner *owner,
	uint32_t access, uint32_t deny, struct lock_conflict *conflict);
/* 0 or -EAGAIN; OWNER NULL: somebody who has none. */
int lock_share_test(struct lock_table *table, const struct lock_file_key *key, const struct lock_owner *owner,
	uint32_t access, uint32_t deny);
/* What the owner has; false: none. */
bool lock_share_get(struct lock_table *table, const struct lock_file_key *key, const struct lock_owner *owner,
	uint32_t *access, uint32_t *deny);
void lock_share_unset(struct lock_table *table, const struct lock_file_key *key, const struct lock_owner *owner);

/* All that is in the table, file by file. FN is called under the shard's mutex: it must not wait nor use the table. */
enum lock_state { LOCK_STATE_HELD, LOCK_STATE_WAITING, LOCK_STATE_SHARE };
struct lock_info {
	struct lock_file_key key;
	struct lock_owner owner;
	enum lock_state state;
	struct lock_range range; /* held, waiting */
	uint32_t access, deny;	 /* share */
};
void lock_foreach(struct lock_table *table, void (*fn)(void *arg, const struct lock_info *info), void *arg);
uint64_t lock_bytes(struct lock_table *table); /* memory that the records take */
uint64_t lock_client_bytes(struct lock_table *table, enum lock_kind kind, uint64_t client); /* 0: it has nothing */

/* The server's one table: made by serve_start(), NULL before and after. */
struct lock_table *lock_server_table(void);
void lock_server_table_set(struct lock_table *table);

#endif
