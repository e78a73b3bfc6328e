/*
 * nfs4_session: what nfs4_client.c, nfs4_session.c and nfs4_callback.c have between them: the tables of clients and
 * sessions, slots, and the connections of backchannels.
 *
 * Two mutexes, both held for moments and never over a wait. The tables' (nfs4_tables.lock) guards which clients,
 * sessions and backchannel connections there are, and everything in them that is not said otherwise. A session's own
 * guards its slots; it may be taken while the tables' is held, not the other way. A slot that is busy belongs to its
 * request, which gives it back without the mutex.
 */
#ifndef FURROW_NFS4_SESSION_H
#define FURROW_NFS4_SESSION_H

#include "server/nfs4_state.h"

#define NFS4_SLOT_CHUNK 64u
#define NFS4_SLOT_CHUNKS 16u
#define NFS4_SLOTS_MAX (NFS4_SLOT_CHUNK * NFS4_SLOT_CHUNKS)
#define NFS4_CB_SLOTS 16u
#define NFS4_CLIENTS_MAX 4096u
#define NFS4_SESSIONS_MAX 16u /* of one client */
#define NFS4_SESSIONS_ALL 8192u
#define NFS4_CACHED_MAX 8192u /* largest reply that a slot keeps */
/* Memory for slots and their replies: beyond it new sessions get few slots, and others are asked to use fewer. */
#define NFS4_CACHE_BYTES (64ull << 20)
#define NFS4_SLOTS_FEW 8u

/* A reply that was sent: the results, from the compound's status on. Shared by the slot and those who tell it again. */
struct nfs4_reply {
	_Atomic unsigned refs;
	uint32_t bytes; /* of results */
	uint32_t payloads;
	struct {
		uint32_t pos, len; /* in the results; where in data it lies, behind them */
		uint32_t at;
	} payload[XDR_PAYLOADS_MAX];
	uint8_t data[];
};

/* What a request is known by: a retry must be the same. */
struct nfs4_request_sum {
	uint64_t checksum;
	uint32_t bytes; /* that it covers */
};

struct nfs4_slot {
	uint32_t sequence; /* of the last request */
	bool used;	   /* there was one */
	_Atomic bool busy; /* it runs, and its reply is the request's: see nfs4_sequence_end() */
	uint32_t uid;
	struct nfs4_request_sum sum;
	struct nfs4_reply *reply; /* to the last request; NULL: not kept */
};

/* A connection that the server may call a client on. */
struct nfs4_back {
	struct rpc_link *link;
	struct nfs4_session *session;
	struct list_node in_session;
	struct htable_node by_link;
};

struct nfs4_session {
	_Atomic unsigned refs;
	struct htable_node by_id;
	struct list_node in_client;
	struct nfs4_client *client; /* referenced */
	sessionid4 id;
	uint32_t minor;
	bool gone; /* no longer in the tables. Under either mutex */
	channel_attrs4 fore, back;

	pthread_mutex_t lock;
	struct nfs4_slot *chunk[NFS4_SLOT_CHUNKS];
	uint32_t slots;	       /* that there are */
	uint32_t target;       /* the highest that the client should use */
	_Atomic uint32_t busy; /* slots that are */
	uint32_t idle;	       /* requests since the upper half was last in use */

	/* backchannel */
	uint32_t cb_program;
	struct rpc_cred cb_cred;
	char cb_machine[64];
	_Atomic bool cb_wanted;	     /* like the two that follow, read without a lock */
	_Atomic bool cb_fault;	     /* calls were not answered, and slots are lost */
	_Atomic unsigned back_count; /* of backs */
	struct {
		uint32_t sequence;
		bool busy;
	} cb_slot[NFS4_CB_SLOTS];
	uint32_t cb_slots;
	struct list backs;
};

struct nfs4_tables {
	pthread_mutex_t lock;
	struct htable clients, owners, sessions, backs; /* by id, by co_ownerid, by id, by link */
	struct list list;				/* all clients, the oldest first */
	unsigned count;
	uint64_t boot; /* high half of client ids */
	uint32_t next_client, next_session;
	char server[48]; /* owner and scope */
	_Atomic uint64_t cache_bytes;
};
extern struct nfs4_tables nfs4_tables;

/* Principal of a call. */
struct nfs4_principal nfs4_principal_of(const struct rpc_request *req);
bool nfs4_principal_same(const struct nfs4_principal *a, const struct nfs4_principal *b);
/* Tables locked: by id; no reference. */
struct nfs4_client *nfs4_client_lookup(uint64_t id);
/* Tables locked: the confirmed, or the unconfirmed, client of that owner. */
struct nfs4_client *nfs4_owner_lookup(const uint8_t *owner, uint32_t len, bool confirmed);

/* Tables locked: takes the session out of them; its reference is the caller's to put, after unlocking. */
void nfs4_session_unlink(struct nfs4_session *session);
void nfs4_session_put(struct nfs4_session *session);
/* Of a session id: the server has made it, of numbers that are its own. The same after a restart. */
uint64_t nfs4_session_hash(const uint8_t *id);
/* Tables locked. Makes the connection of REQ one of the session's backchannel. False: no memory, or it is closed. */
bool nfs4_back_bind(struct nfs4_session *session, struct rpc_link *link);
void nfs4_back_unlink(struct nfs4_back *back); /* tables locked; frees it */
void nfs4_callbacks_wait(void);		       /* until none is out; connections are closed. Waits */
/* For struct rpc_server_config */
void nfs4_connection_closed(struct rpc_link *link);
/* SEQ4_STATUS_ bits about the backchannel. No lock. */
uint32_t nfs4_back_status(const struct nfs4_session *session);

#endif
