/*
 * nfs4_state: what NFSv4 clients hold on files (RFC 8881 chapters 8 to 10): opens, byte-range locks, delegations, and
 * the stateids that name them.
 *
 * A state belongs to one file, and files are spread over shards, each with one mutex. Everything about a state is read
 * and written under the mutex of its file's shard, which nobody holds over a wait: an operation does its file system
 * work first, takes the mutex, checks and changes, gives it back, and then lets go of what it removed. A stateid tells
 * its shard, so that a READ costs one look into an array.
 *
 * Ranges and share reservations themselves are in the table that NLM uses too (locks.h): who holds what is known in one
 * place. States here are the names by which clients speak of them.
 *
 *   nfs4_state.c   shards, stateids, the check before READ, WRITE and SETATTR, the end of a client
 *   nfs4_open.c    OPEN, OPEN_DOWNGRADE, CLOSE
 *   nfs4_lock.c    LOCK, LOCKT, LOCKU
 *   nfs4_deleg.c   delegations: when they are given, recalled and revoked
 *   nfs4_grace.c   which clients may reclaim after a restart: durable records, and the grace period
 */
#ifndef FURROW_NFS4_STATE_H
#define FURROW_NFS4_STATE_H

#include <pthread.h>

#include "server/locks.h"
#include "server/nfs4_internal.h"

#define NFS4_STATE_SHARDS 64u
#define NFS4_STATES_MAX (1u << 20) /* of all clients; and a quarter of that of one */

enum nfs4_state_kind { NFS4_STATE_OPEN, NFS4_STATE_LOCK, NFS4_STATE_DELEG };

struct nfs4_state_shard;

/* A file that has states. It goes with the last of them. */
struct nfs4_file {
	struct htable_node node;
	struct nfs4_state_shard *shard;
	struct storage_fs *filesystem; /* held */
	struct fs *fs;
	struct fs_id id;
	struct lock_file_key key; /* in the lock table */
	struct list states;
	_Atomic unsigned refs; /* of states, until they are dropped */
	unsigned writers;      /* opens that may write */
	unsigned delegs;       /* delegations that are not revoked */
	unsigned opens;	       /* opens, of all clients */
};

struct nfs4_state {
	enum nfs4_state_kind kind;
	uint32_t index, generation; /* of its place in the shard: the stateid's other field */
	uint32_t seqid;
	struct nfs4_client *client; /* referenced */
	struct nfs4_file *file;
	struct list_node in_file;    /* then in a list of dropped ones */
	struct htable_node by_owner; /* open and lock: shard->owners */
	union {
		struct {
			uint32_t access, deny;
			uint16_t seen;	   /* bit 4 * access + deny: what OPENs asked for, as far as it is in force */
			uint32_t uid;	   /* who opened: permission was checked for it */
			struct list locks; /* lock states that came from it */
		} open;
		struct {
			struct nfs4_state *open;
			struct list_node in_open;
		} lock;
		struct {
			uint64_t recalled;	  /* now_ns() of the recall; 0: none */
			bool revoked;		  /* the client has yet to free the stateid */
			bool write, modified;	  /* modified: the client has written what we do not have yet */
			uint64_t change;	  /* of a write delegation: when it was given */
			uint8_t fh[HANDLE_BYTES]; /* what the client calls the file */
		} deleg;
	};
	uint32_t owner_len;
	uint8_t owner[]; /* open_owner or lock_owner */
};

struct nfs4_state_shard {
	pthread_mutex_t lock;
	unsigned index;
	struct htable files, owners;
	struct nfs4_state **slot;
	uint32_t *generation;
	uint32_t slots, *free, frees;
	uint64_t cooled[64]; /* by hash of a file: no new delegation before then, since one was recalled */
} __attribute__((aligned(64)));

/* ------------------------------------------------------------------------------------------------
 * For the other operations
 */

int nfs4_state_init(void); /* -ENOMEM */
void nfs4_state_fini(void);

/* What a stateid allows. ACCESS: OPEN4_SHARE_ACCESS_READ or _WRITE, 0: any. */
struct nfs4_stateid_use {
	bool opened; /* an open by this user with that access: permission was decided then */
};
/*
 * Whether STATEID (special ones included) may be used on the current file. Takes the current stateid where STATEID says
 * so. Waits only for a write without an open, to have delegations returned.
 */
nfsstat4 nfs4_stateid_check(
	struct nfs4_compound *c, const stateid4 *stateid, uint32_t access, struct nfs4_stateid_use *use);

/* Drops all that CLIENT holds. Waits. Called once, when it is destroyed or expelled; no operation of it runs. */
void nfs4_state_client_gone(struct nfs4_client *client);

/*
 * Before an operation changes a file, or removes or adds a name of it: asks other clients to return delegations that it
 * would break, and waits a moment for them. 0, or NFS4ERR_DELAY (NFSv3: JUKEBOX): they have not yet. CLIENT may be
 * NULL (NFSv3).
 */
nfsstat4 nfs4_deleg_break(struct fs *fs, struct fs_id id, struct nfs4_client *client);
/* The same for the file that a name leads to, if it leads to one. */
nfsstat4 nfs4_deleg_break_name(struct fs *fs, const struct fs_op *op, struct fs_id dir, const struct xdr_opaque *name,
	struct nfs4_client *client);

/* As nfs4_deleg_break(), before an operation reads: only write delegations are in the way. */
nfsstat4 nfs4_deleg_break_read(struct fs *fs, struct fs_id id, struct nfs4_client *client);
/*
 * GETATTR: what a client with a write delegation has changed meanwhile goes into ATTR (size, change, times). It is
 * asked (CB_GETATTR); NFS4ERR_DELAY: it does not answer, and its delegation is recalled. Waits.
 */
nfsstat4 nfs4_deleg_getattr(struct fs *fs, struct fs_id id, struct nfs4_client *client, struct fs_attr *attr);
/* Once there is a client that may get delegations: from then on nfs4_deleg_break() looks. No wait. */
void nfs4_deleg_enable(void);
void nfs4_deleg_stop(void);			 /* before the end of the states. Waits for recalls to end */
void nfs4_deleg_policy(enum delegations policy); /* of the configuration; any time */

/*
 * Grace and the durable records of clients (nfs4_grace.c). A record is written before the first state of a client on a
 * file system, and tells the next life of the server that this client may reclaim.
 */
int nfs4_grace_start(const struct exports *exports); /* reads the records; there is grace if there are any. Waits */
void nfs4_grace_stop(void);
bool nfs4_grace_active(void);
nfsstat4 nfs4_grace_new(struct nfs4_client *client);	      /* may it have new state now? NFS4ERR_GRACE */
nfsstat4 nfs4_grace_reclaim(struct nfs4_client *client);      /* may it reclaim now? NFS4ERR_NO_GRACE */
void nfs4_grace_reclaim_complete(struct nfs4_client *client); /* the client is done. Waits */
nfsstat4 nfs4_client_record_put(struct nfs4_client *client, const struct export *export); /* durable. Waits */
void nfs4_client_record_delete(struct nfs4_client *client);				  /* durable. Waits */

/* For `furrow state`: each state. FN is called under a mutex: no wait. */
struct nfs4_state_info {
	enum nfs4_state_kind kind;
	uint64_t client, fsid, ino;
	uint32_t access, deny;
	bool recalled, revoked;
};
void nfs4_state_foreach(void (*fn)(void *arg, const struct nfs4_state_info *info), void *arg);
struct nfs4_state_counts {
	uint64_t opens, locks, delegations, given, recalled, revoked;
};
void nfs4_state_counts(struct nfs4_state_counts *counts);

/* Operations (nfs4_open.c, nfs4_lock.c, nfs4_deleg.c, nfs4_state.c) */
nfsstat4 nfs4_op_open(struct nfs4_compound *c);
nfsstat4 nfs4_op_open_downgrade(struct nfs4_compound *c);
nfsstat4 nfs4_op_close(struct nfs4_compound *c);
nfsstat4 nfs4_op_lock(struct nfs4_compound *c);
nfsstat4 nfs4_op_lockt(struct nfs4_compound *c);
nfsstat4 nfs4_op_locku(struct nfs4_compound *c);
nfsstat4 nfs4_op_test_stateid(struct nfs4_compound *c);
nfsstat4 nfs4_op_free_stateid(struct nfs4_compound *c);
nfsstat4 nfs4_op_delegreturn(struct nfs4_compound *c);

/* ------------------------------------------------------------------------------------------------
 * Between the files of the state machine. "Locked": the shard's mutex is held.
 */

struct nfs4_state_shard *nfs4_shard_lock(struct fs *fs, struct fs_id id);
/* The shard of a stateid, locked, and the state. On an error nothing is locked. SEQID is checked (RFC 8881 8.2.2). */
nfsstat4 nfs4_state_find(struct nfs4_compound *c, const stateid4 *stateid, struct nfs4_state **state);
void nfs4_shard_unlock(struct nfs4_state_shard *shard);

struct nfs4_file *nfs4_file_find(struct nfs4_state_shard *shard, struct fs *fs, struct fs_id id); /* locked */
/* Locked. A new state of FILE, made if it is not there. NULL: too many, or no memory. */
struct nfs4_state *nfs4_state_new(struct nfs4_state_shard *shard, const struct export *export, struct fs_id id,
	struct nfs4_client *client, enum nfs4_state_kind kind, const struct xdr_opaque *owner);
struct nfs4_state *nfs4_state_by_owner(struct nfs4_file *file, struct nfs4_client *client, enum nfs4_state_kind kind,
	const struct xdr_opaque *owner); /* locked; FILE may be NULL */
/*
 * Locked: takes STATE out of everything. The memory, the client's reference and an open's hold of the file go with
 * nfs4_state_drop(), which waits: after the mutex was given back.
 */
void nfs4_state_unlink(struct nfs4_state *state, struct list *dropped);
void nfs4_state_forget(struct nfs4_state *state, struct list *dropped); /* as unlink, but ranges and waiters stay */
void nfs4_state_drop(struct list *dropped);
void nfs4_state_bump(struct nfs4_state *state);			     /* locked: the next seqid */
void nfs4_stateid_put(const struct nfs4_state *state, stateid4 *to); /* locked */
void nfs4_stateid_put_stale(struct fs_id id, stateid4 *to);	     /* of an earlier life: nobody knows it */
bool nfs4_file_is_current(const struct nfs4_file *file, const struct nfs4_compound *c);
bool nfs4_stateid_exists(const stateid4 *stateid); /* no wait */
void nfs4_current_stateid_set(struct nfs4_compound *c, const stateid4 *stateid);
/* Ends the client ID if its lease ran out: what it holds gives way to others. True: try again. Waits. */
bool nfs4_expel_absent(uint64_t id);

nfsstat4 nfs4_deleg_break_open(struct fs *fs, struct fs_id id, struct nfs4_client *client, uint32_t access,
	uint32_t deny); /* before such an OPEN */
/* Locked: whether a delegation of another client is in the way of such an open. */
bool nfs4_deleg_conflicts(struct nfs4_state_shard *shard, struct fs *fs, struct fs_id id,
	const struct nfs4_client *client, uint32_t access, uint32_t deny);
/*
 * Locked: gives the client of OPEN a delegation when that is wise, and says in *TO what came of it. ARGS are those of
 * the OPEN; CAN_CALLBACK was asked before; ATTR are the file's.
 */
void nfs4_deleg_offer(struct nfs4_compound *c, struct nfs4_state *open, const OPEN4args *args, bool can_callback,
	const struct fs_attr *attr, open_delegation4 *to);
void nfs4_deleg_unlinked(struct nfs4_state *deleg); /* locked: it is going */
void nfs4_deleg_counts(struct nfs4_state_counts *counts);
struct lock_owner nfs4_lock_owner(const struct nfs4_state *state);

#endif
