/*
 * nfs4: what the parts of NFSv4.1 and 4.2 share (RFC 8881, 7862, 8276). Who owns what:
 *
 *   nfs4.c           the program; COMPOUND: operations one after the other, their table, room for replies
 *   nfs4_client.c    clients: EXCHANGE_ID, DESTROY_CLIENTID, RECLAIM_COMPLETE, leases, expulsion
 *   nfs4_session.c   sessions: CREATE_SESSION, SEQUENCE with slots and their replies, connections
 *   nfs4_replay.c    changes made before a restart: told once more, not done twice
 *   nfs4_callback.c  calls to clients: CB_COMPOUND over a backchannel of theirs
 *   nfs4_fh.c        filehandles, current and saved; the pseudo file system that joins the exports
 *   nfs4_attr.c      attributes, both ways
 *   nfs4_file.c      operations on one object;  nfs4_name.c on names;  nfs4_readdir.c;  nfs4_io.c data;  nfs4_xattr.c
 *   nfs4_state.h     states (opens, locks, delegations) and the grace period: nfs4_state.c, _open.c, _lock.c, _deleg.c,
 *                    _grace.c
 *
 * A COMPOUND runs in one fiber of its connection's reactor. The engine reads an operation's number, looks it up, checks
 * what the table says about it (minor version, session, filehandle, room for its result), writes number and a place for
 * the status, and calls the handler. The handler decodes its arguments from c->req->in (NFS4ERR_BADXDR when that
 * fails), works, waiting as it likes, encodes what follows the status to c->req->out, and returns the status. With an
 * error whatever it encoded is taken back, unless it set c->keep_result (SETATTR, LOCK's denial). That the result fits
 * was made sure of before the handler ran: what an encoder says is then ours to get right, and nfs4_fits() turns its
 * bool into a status. Nothing of one operation's arguments is used by the next, so memory of the pool is used again.
 *
 * Clients and sessions are known to all reactors. Their tables are under one mutex, held for moments and never over a
 * wait; a compound holds references to its session and client until it ends. States have mutexes of their own
 * (nfs4_state.h), which are never held together with this one.
 */
#ifndef FURROW_NFS4_INTERNAL_H
#define FURROW_NFS4_INTERNAL_H

#include <pthread.h>

#include "core/htable.h"
#include "server/nfs_internal.h"
#include "xdr/nfs4.h"

#define NFS4_DIR_MAX (64u * 1024) /* largest result of READDIR and LISTXATTRS */
#define NFS4_OPS_MAX 64u	  /* of one compound */

struct nfs4_client;
struct nfs4_session;
struct nfs4_slot;

/* ------------------------------------------------------------------------------------------------
 * Filehandles (nfs4_fh.c)
 */

enum nfs4_fh_kind {
	NFS4_FH_NONE,
	NFS4_FH_PSEUDO, /* a directory above the exports: path is its first path_len bytes */
	NFS4_FH_FILE,
};
struct nfs4_fh {
	enum nfs4_fh_kind kind;
	/* NFS4_FH_FILE */
	const struct export *export;
	const struct config_allow *rule;
	struct fs *fs;
	struct fs_id id;
	struct fs_cred cred; /* squashed as the rule says */
	/* NFS4_FH_PSEUDO; "" is the root */
	const char *path;
	size_t path_len;
};

/* ------------------------------------------------------------------------------------------------
 * A compound
 */

struct nfs4_compound {
	struct rpc_request *req;
	uint32_t minor;
	uint32_t op_index, op_count; /* position in the compound */
	uint32_t opnum;
	struct exports *exports;     /* held until the end */
	const struct fs_reply *told; /* the operation was done by it: only its success is told */
	bool replay;		     /* of an earlier life's session */
	/* The current stateid (RFC 8881 16.2.3.1.2) goes with the filehandle: nfs4_fh_changed() forgets it. */
	bool current_stateid_valid, saved_stateid_valid;
	bool keep_result;	      /* set by a handler whose result goes with an error */
	struct nfs4_session *session; /* NULL outside of one */
	struct nfs4_client *client;   /* of the session */
	struct nfs4_slot *slot;
	bool cache;	  /* SEQUENCE: sa_cachethis */
	uint32_t out_max; /* most bytes of the whole RPC reply, payload included */
	uint32_t cache_max;
	uint32_t payload_bytes; /* attached so far */
	size_t start;		/* of the results, in req->out */
	bool uncached;		/* a retry whose reply was not kept: the next operation says so */
	bool replayed;		/* the reply was told again: nothing more to do */
	bool drop;		/* the connection is lost: no reply */
	/* Not cleared at the beginning: the stateids have no meaning before they are valid, ... */
	stateid4 current_stateid, saved_stateid;
	/* ... the mark and the slot's number, for changes that must not be done twice, before nfs4_mark_begin(), ... */
	struct fs_reply mark;
	uint32_t slot_id;
	/* ... and these, which are large, while the filehandle's kind is none. */
	struct nfs4_fh current, saved;
	struct fs_op op; /* for operations on the current filehandle; cred is current.cred */
};

#define NFS4_OP_FH 1u	      /* needs a current filehandle */
#define NFS4_OP_SAVED 2u      /* and a saved one */
#define NFS4_OP_CHANGES 4u    /* changes the file system: not on a read-only export, not in the pseudo file system */
#define NFS4_OP_NO_SESSION 8u /* may also come alone, without SEQUENCE */
#define NFS4_OP_V42 16u	      /* minor version 2 */
#define NFS4_OP_FILE 32u      /* the current filehandle is no pseudo directory, else NFS4ERR_WRONG_TYPE or so */
#define NFS4_OP_MARKED 64u    /* what it changes must not be changed twice, over a restart either (nfs4_replay.c) */
#define NFS4_OP_REPLAYED 128u /* changes nothing, and needs no session: may run in one of an earlier life */
#define NFS4_OP_DATA 256u     /* returns data, which takes what room the transport has, and is no part of the head */
struct nfs4_op {
	const char *name;
	nfsstat4 (*run)(struct nfs4_compound *c);
	uint32_t flags;
	uint32_t result_max;	/* most bytes of its result, after the status */
	nfsstat4 pseudo_status; /* NFS4_OP_FILE: what a pseudo directory gets */
	/* What the arguments ask for beyond that, payload included. Reads a copy of c->req->in. NULL: nothing. */
	uint32_t (*result_more)(struct nfs4_compound *c);
};

/* ENCODED, else a fault of ours that is logged: NFS4ERR_SERVERFAULT. */
nfsstat4 nfs4_fits(struct nfs4_compound *c, bool encoded);
/* The one table from errno to the wire: 0 or negative errno in. */
nfsstat4 nfs4_status(int result);
/* Bytes that this result can still take, as the session and the peer have it. Payload too. */
uint32_t nfs4_result_room(const struct nfs4_compound *c);
/* A name that an entry is looked up, made or removed under. */
nfsstat4 nfs4_name_check(const struct xdr_opaque *name);

/* ID of the same export and caller is the current file now. */
void nfs4_fh_move(struct nfs4_compound *c, struct fs_id id);
void nfs4_fh_changed(struct nfs4_compound *c); /* after current was set: op, and the current stateid */
/* What is known of the current object; of a pseudo directory too. NFS4ERR_STALE when it is gone. Waits. */
nfsstat4 nfs4_fh_attr(struct nfs4_compound *c, struct fs_attr *attr);
/* The handle of a file, as LOOKUP and CB_RECALL have it. */
void nfs4_fh_encode(const struct nfs4_fh *fh, uint8_t to[HANDLE_BYTES]);
bool nfs4_put_fh(struct xdr_out *out, const struct nfs4_fh *fh); /* NFS4_FH_BYTES at most */
#define NFS4_FH_BYTES (4u + HANDLE_BYTES)
/* The directory above becomes the current filehandle. Waits. */
nfsstat4 nfs4_fh_parent(struct nfs4_compound *c);
/*
 * The name NAME in the directory FH, where it is the root of an export, or in a pseudo directory leads to one: becomes
 * FH. NFS4ERR_NOENT: it is not; NFS4ERR_WRONGSEC: it is, and FH is set, but not for this caller. Waits.
 */
nfsstat4 nfs4_fh_cross(struct nfs4_compound *c, struct nfs4_fh *fh, const struct xdr_opaque *name);
/* The same for a name that the file system does not have: it may lie above an export. Waits. */
nfsstat4 nfs4_fh_cross_missing(struct nfs4_compound *c, struct nfs4_fh *fh, const struct xdr_opaque *name);
/* The exports in the current directory, where it is one of files. *LIST is the caller's to free. -ENOMEM. Waits. */
struct nfs4_crossing {
	const char *name;
	struct nfs4_fh fh;
	struct fs_attr attr;
};
int nfs4_fh_exports_in(struct nfs4_compound *c, struct nfs4_crossing **list, unsigned *count);
/* OPEN of a name in a pseudo directory: NFS4ERR_ISDIR when there is such a directory, else NFS4ERR_NOENT. */
nfsstat4 nfs4_pseudo_open(struct nfs4_compound *c, const struct xdr_opaque *name);
/* The names in the pseudo directory FH after COOKIE, one at a time; false: there are no more. */
struct nfs4_pseudo_entry {
	uint64_t cookie;
	const char *name;
	size_t name_len;
	struct nfs4_fh fh;
};
bool nfs4_pseudo_next(struct nfs4_compound *c, uint64_t cookie, struct nfs4_pseudo_entry *entry);
void nfs4_pseudo_attr(const struct nfs4_compound *c, const struct nfs4_fh *fh, struct fs_attr *attr);
uint64_t nfs4_pseudo_fileid(const char *path, size_t len);
#define NFS4_PSEUDO_FSID 0x46757272ull /* major and minor: no file system's, since their minor is 0 */

/* ------------------------------------------------------------------------------------------------
 * Attributes (nfs4_attr.c)
 */

#define NFS4_BITMAP_WORDS 3u
struct nfs4_bits {
	uint32_t word[NFS4_BITMAP_WORDS];
};
static inline bool nfs4_bit(const struct nfs4_bits *bits, unsigned bit)
{
	return bits->word[bit / 32] >> (bit % 32) & 1;
}
static inline void nfs4_bit_set(struct nfs4_bits *bits, unsigned bit)
{
	bits->word[bit / 32] |= 1u << (bit % 32);
}
bool nfs4_put_bits(struct xdr_out *out, const struct nfs4_bits *bits); /* at most NFS4_BITS_BYTES */
struct nfs4_bits nfs4_get_bits(const bitmap4 *from);		       /* without the words that we know nothing of */
/* An object whose attributes are told. */
struct nfs4_object {
	const struct nfs4_fh *fh; /* of the object; or of another of its export: then ATTR's id counts */
	const struct fs_attr *attr;
	const struct fs_statfs *statfs; /* nfs4_statfs_wanted(): else NULL */
};
bool nfs4_statfs_wanted(const struct nfs4_bits *wanted);
nfsstat4 nfs4_fh_statfs(struct nfs4_compound *c, struct fs_statfs *statfs); /* of the current filehandle. Waits */
/* fattr4 of what is wanted and supported. */
bool nfs4_put_fattr(
	struct nfs4_compound *c, struct xdr_out *out, const struct nfs4_bits *wanted, const struct nfs4_object *object);
#define NFS4_BITS_BYTES (4u + 4u * NFS4_BITMAP_WORDS)
#define NFS4_CHANGE_INFO_BYTES 20u
#define NFS4_STATEID_BYTES 16u
/* Where the operation left no attributes from before: not atomic. */
bool nfs4_put_change_info(struct xdr_out *out, const struct fs_wcc *wcc);
/*
 * What a SETATTR, CREATE or OPEN sets. *BITS: the attributes that SET covers. NFS4ERR_ATTRNOTSUPP, _INVAL (not
 * settable, or no value), _BADXDR, _BADOWNER. EXCLUSIVE: only what suppattr_exclcreat has.
 */
nfsstat4 nfs4_get_setattr(
	struct nfs4_compound *c, const fattr4 *from, bool exclusive, struct fs_setattr *set, struct nfs4_bits *bits);
/* At creation who is not root gives nothing away: takes from SET (and BITS) what the caller may not set. */
void nfs4_setattr_restrict(const struct fs_cred *cred, struct fs_setattr *set, struct nfs4_bits *bits);

/* ------------------------------------------------------------------------------------------------
 * Owners (nfs4_owner.c)
 */

void nfs4_owners_set(const struct config *config); /* which lives until the end; any time */
uint32_t nfs4_owner_bytes(void);		   /* most that nfs4_put_owner() writes */
/* Whether nfs4_put_owner() would give what it should of ATTR's owners. No wait; nfs4_owners_ask() does, and then it
 * would. */
bool nfs4_owners_known(const struct nfs4_bits *wanted, const struct fs_attr *attr);
void nfs4_owners_ask(const struct nfs4_bits *wanted, const struct fs_attr *attr);
bool nfs4_put_owner(struct xdr_out *out, uint32_t id, bool group);		  /* no wait */
nfsstat4 nfs4_get_owner(const struct xdr_opaque *text, bool group, uint32_t *id); /* NFS4ERR_BADOWNER. Waits */

/* ------------------------------------------------------------------------------------------------
 * Clients (nfs4_client.c). Any reactor; no wait unless it says so.
 */

/* Who made a client or session: only the same may change it. */
struct nfs4_principal {
	uint32_t flavor, uid, gid;
};

struct nfs4_client {
	_Atomic unsigned refs;
	struct htable_node by_id, by_owner;
	struct list_node node; /* in the list of all */
	uint64_t id;
	verifier4 verifier;
	struct nfs4_principal principal;
	bool confirmed;
	bool gone;		       /* no longer in the tables */
	_Atomic uint32_t backs;	       /* connections that it can be called on */
	_Atomic bool reclaim_complete; /* RECLAIM_COMPLETE was done */
	_Atomic uint32_t revoked;      /* nfs4_deleg.c's: revoked delegations not yet freed: SEQUENCE tells it */
	_Atomic uint32_t states;       /* nfs4_state.c's: opens, locks, delegations */
	_Atomic uint32_t compounds;    /* that run now */
	_Atomic uint64_t renewed;      /* now_ns() of its last SEQUENCE */
	uint64_t created;	       /* wall_ns() */
	char peer[64];		       /* where it came from, for people */
	char name[96];		       /* its owner string, made printable */
	struct list sessions;
	/* CREATE_SESSION's slot: the next sequence, and the reply to the last */
	uint32_t create_sequence;
	bool create_replied;
	nfsstat4 create_status;
	CREATE_SESSION4resok create_reply;
	uint32_t create_ird;
	uint32_t owner_len;
	uint8_t owner[NFS4_OPAQUE_LIMIT]; /* co_ownerid */
};

static inline uint64_t nfs4_client_id(const struct nfs4_client *client)
{
	return client->id;
}
struct nfs4_client *nfs4_client_hold(struct nfs4_client *client);
void nfs4_client_put(struct nfs4_client *client);
/* By id, with a reference; NULL: none (any more). */
struct nfs4_client *nfs4_client_find(uint64_t id);
/* It has not renewed its lease. What it holds is kept until somebody else wants it. */
bool nfs4_client_expired(const struct nfs4_client *client);
/*
 * Ends the client: it is out of the tables, its sessions are gone, compounds of it that still run have ended or will
 * fail, nfs4_state_client_gone() has been called and its record deleted. -ENOENT: somebody did so before. Waits.
 */
int nfs4_client_expel(struct nfs4_client *client);
/* All confirmed clients; FN is called under the table's mutex. */
void nfs4_clients_foreach(void (*fn)(void *arg, struct nfs4_client *client), void *arg);

/* Seconds that a client may be silent for; set before nfs4_start(). */
void nfs4_lease_set(unsigned seconds);
unsigned nfs4_lease_seconds(void);
#define NFS4_LEASE_NS (nfs4_lease_seconds() * NSEC_PER_SEC)

/* serve_start(), before the first call. EXPORTS: the first table. -ENOMEM. Waits */
int nfs4_start(const struct exports *exports);
void nfs4_stop(void); /* after the last call. Waits */

/* ------------------------------------------------------------------------------------------------
 * Calls to a client (nfs4_callback.c). Waits: in a fiber of any reactor.
 */

/* Whether there is a backchannel that works. No wait. */
bool nfs4_client_can_callback(struct nfs4_client *client);
/*
 * CB_COMPOUND of CB_SEQUENCE and the operation OPNUM, whose encoded arguments are ARGS. 0: it was done, RESULT is the
 * operation's: its status, and the beginning of what followed. -ENOTCONN: there is no backchannel, or none answered.
 * Tries until DEADLINE (now_ns()) at the latest: -ETIMEDOUT.
 */
struct nfs4_cb_result {
	nfsstat4 status;
	uint32_t bytes;
	uint8_t data[256];
};
int nfs4_client_callback(struct nfs4_client *client, uint32_t opnum, const void *args, uint32_t bytes,
	uint64_t deadline, struct nfs4_cb_result *result);

/* ------------------------------------------------------------------------------------------------
 * Sessions, for the engine (nfs4_session.c)
 */

/* SEQUENCE; on a replay the whole reply was written: c->replayed. */
nfsstat4 nfs4_op_sequence(struct nfs4_compound *c);
/* The compound ends, with what its procedure returns: keeps the reply in the slot, lets session and client go. */
void nfs4_sequence_end(struct nfs4_compound *c, int rc);
extern const struct nfs4_op nfs4_ops[];
int nfs4_clients_init(const struct exports *exports); /* tables of clients and sessions */
void nfs4_clients_fini(void);

/* What arguments ask for (struct nfs4_op's result_more) */
uint32_t nfs4_getattr_more(struct nfs4_compound *c);
uint32_t nfs4_readlink_more(struct nfs4_compound *c);
uint32_t nfs4_read_more(struct nfs4_compound *c);
uint32_t nfs4_read_plus_more(struct nfs4_compound *c);
uint32_t nfs4_readdir_more(struct nfs4_compound *c);
uint32_t nfs4_getxattr_more(struct nfs4_compound *c);
uint32_t nfs4_listxattrs_more(struct nfs4_compound *c);
/* The segments of READ_PLUS, without data */
#define NFS4_READ_PLUS_SEGMENTS 4u
#define NFS4_READ_PLUS_HEADS (NFS4_READ_PLUS_SEGMENTS * 20u)

/*
 * Changes that were made before a restart (nfs4_replay.c). SEQUENCE notes what it is in the compound's mark, and in an
 * unknown session asks nfs4_replay_begin() whether it is known all the same: then each operation is what
 * nfs4_replay_op() says. c->told, if it is set, is the mark of the operation, whose success is told, and nothing done.
 * Else nfs4_mark() puts the mark into c->op for the transaction of the change. No wait.
 */
int nfs4_replay_start(const struct exports *exports); /* -ENOMEM */
void nfs4_replay_stop(void);
bool nfs4_reply_is_ours(const struct fs_reply *reply);
void nfs4_mark_begin(struct nfs4_compound *c, const SEQUENCE4args *args, uint64_t checksum);
nfsstat4 nfs4_replay_begin(struct nfs4_compound *c);		  /* NFS4ERR_BADSESSION, _SEQ_FALSE_RETRY */
nfsstat4 nfs4_replay_op(struct nfs4_compound *c, uint32_t flags); /* of the operation; NFS4ERR_DELAY: not now */
bool nfs4_replay_passed(const struct nfs4_compound *c);		  /* what follows was done, so this had succeeded */
void nfs4_mark(struct nfs4_compound *c);

/* Operations */
nfsstat4 nfs4_op_exchange_id(struct nfs4_compound *c);
nfsstat4 nfs4_op_destroy_clientid(struct nfs4_compound *c);
nfsstat4 nfs4_op_reclaim_complete(struct nfs4_compound *c);
nfsstat4 nfs4_op_create_session(struct nfs4_compound *c);
nfsstat4 nfs4_op_destroy_session(struct nfs4_compound *c);
nfsstat4 nfs4_op_bind_conn_to_session(struct nfs4_compound *c);
nfsstat4 nfs4_op_backchannel_ctl(struct nfs4_compound *c);
nfsstat4 nfs4_op_putfh(struct nfs4_compound *c);
nfsstat4 nfs4_op_putrootfh(struct nfs4_compound *c);
nfsstat4 nfs4_op_savefh(struct nfs4_compound *c);
nfsstat4 nfs4_op_restorefh(struct nfs4_compound *c);
nfsstat4 nfs4_op_getfh(struct nfs4_compound *c);
nfsstat4 nfs4_op_lookup(struct nfs4_compound *c);
nfsstat4 nfs4_op_lookupp(struct nfs4_compound *c);
nfsstat4 nfs4_op_secinfo(struct nfs4_compound *c);
nfsstat4 nfs4_op_secinfo_no_name(struct nfs4_compound *c);
nfsstat4 nfs4_op_access(struct nfs4_compound *c);
nfsstat4 nfs4_op_getattr(struct nfs4_compound *c);
nfsstat4 nfs4_op_setattr(struct nfs4_compound *c);
nfsstat4 nfs4_op_verify(struct nfs4_compound *c);
nfsstat4 nfs4_op_nverify(struct nfs4_compound *c);
nfsstat4 nfs4_op_readlink(struct nfs4_compound *c);
nfsstat4 nfs4_op_create(struct nfs4_compound *c);
nfsstat4 nfs4_op_remove(struct nfs4_compound *c);
nfsstat4 nfs4_op_rename(struct nfs4_compound *c);
nfsstat4 nfs4_op_link(struct nfs4_compound *c);
nfsstat4 nfs4_op_readdir(struct nfs4_compound *c);
nfsstat4 nfs4_op_read(struct nfs4_compound *c);
nfsstat4 nfs4_op_write(struct nfs4_compound *c);
nfsstat4 nfs4_op_commit(struct nfs4_compound *c);
nfsstat4 nfs4_op_seek(struct nfs4_compound *c);
nfsstat4 nfs4_op_allocate(struct nfs4_compound *c);
nfsstat4 nfs4_op_deallocate(struct nfs4_compound *c);
nfsstat4 nfs4_op_copy(struct nfs4_compound *c);
nfsstat4 nfs4_op_clone(struct nfs4_compound *c);
nfsstat4 nfs4_op_read_plus(struct nfs4_compound *c);
nfsstat4 nfs4_op_io_advise(struct nfs4_compound *c);
nfsstat4 nfs4_op_getxattr(struct nfs4_compound *c);
nfsstat4 nfs4_op_setxattr(struct nfs4_compound *c);
nfsstat4 nfs4_op_listxattrs(struct nfs4_compound *c);
nfsstat4 nfs4_op_removexattr(struct nfs4_compound *c);

extern const struct rpc_program nfs4_program;

#endif
