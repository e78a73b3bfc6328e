/*
 * nlm: the locks of NFSv3 clients. NLM 4 (nlm4.c) is how they ask for them, NSM (nsm.c) how client and server tell each
 * other that they restarted; nlm_block.c has the requests that wait, nlm_host.c the clients. The locks themselves are
 * in the table of locks.h.
 *
 * All may be called on any reactor, unless it says otherwise. The hosts and their requests are under one mutex that
 * nobody waits under, and that is never held over a call of the lock table, whose callbacks take it.
 */
#ifndef FURROW_NLM_INTERNAL_H
#define FURROW_NLM_INTERNAL_H

#include "server/grace.h"
#include "server/locks.h"
#include "server/nfs_internal.h"
#include "xdr/nlm4.h"
#include "xdr/sm_inter.h"

/* ------------------------------------------------------------------------------------------------
 * Hosts (nlm_host.c)
 */

struct nlm_host; /* a client: an address and the name it calls itself by */

/* Waits, on reactor 0: records of an earlier run are read, and the grace period begins when there are any. */
int nlm_start(const struct exports *exports);
/* File systems that a reload brought: as above. Waits, on reactor 0. */
void nlm_reloaded(const struct exports *exports, const struct exports *old);
void nlm_notify_hosts(void); /* tells those of earlier runs that we are back. Once we can be called. On reactor 0 */
void nlm_stop(void);	     /* waits, on reactor 0; no call runs any more, and the lock table is still there */

/* lock_owner.client of the client that calls itself NAME. No wait. */
uint64_t nlm_client(const struct rpc_request *req, const struct xdr_opaque *name);
/* The host itself, counted. NULL: too many, or no memory. No wait. */
struct nlm_host *nlm_host_get(const struct rpc_request *req, const struct xdr_opaque *name, int32_t state);
/* The same, of one that is known already: else NULL. */
struct nlm_host *nlm_host_find(const struct rpc_request *req, const struct xdr_opaque *name);
void nlm_host_hold(struct nlm_host *host);
void nlm_host_put(struct nlm_host *host); /* NULL is ignored */
uint64_t nlm_host_client(const struct nlm_host *host);
/* Makes sure that FS knows of the host before it gets a lock there. Durable on return; waits. */
int nlm_host_record(struct nlm_host *host, struct fs *fs);
/* Whether the host was known before the restart, and so may have something to reclaim. No wait. */
bool nlm_host_may_reclaim(const struct nlm_host *host);
/* A call to the host: procedure PROCEDURE of NLM 4, or of another program; the arguments are the caller's to encode. */
void nlm_host_outgoing(const struct nlm_host *host, uint32_t procedure, struct rpc_outgoing *call);
/* The client at PEER says that it restarted: its locks go. No wait. */
void nlm_host_restarted(const struct sockaddr_storage *peer, const struct xdr_opaque *name, int32_t state);

int32_t nsm_state(void); /* ours: odd, higher with every start */

/* Fibers of ours that nlm_stop() waits for: they look at nlm_stopping() when they waited. False: too many, or stopping.
 */
bool nlm_fiber_start(struct reactor *reactor, void (*fn)(void *arg), void *arg);
void nlm_fiber_end(void);
bool nlm_stopping(void);
/* Waits; false: it is over. */
bool nlm_pause(uint64_t ns);

/* ------------------------------------------------------------------------------------------------
 * Requests that wait (nlm_block.c). No wait.
 */

struct nlm_block;

/* Of HOST, which it counts. It is known to the functions below from now on. NULL: no memory. */
struct nlm_block *nlm_block_new(
	struct nlm_host *host, const struct lock_file_key *key, const nlm4_lock *lock, const struct lock_range *range);
struct lock_waiter *nlm_block_waiter(struct nlm_block *block);
void nlm_block_free(struct nlm_block *block);		/* one that the lock table does not have */
void nlm_block_free_waiter(struct lock_waiter *waiter); /* the same, by what lock_cancel() returned */
/*
 * The client knows what it has of RANGE now (it was answered, or gave it up), whatever it will say to a GRANTED that is
 * on its way. REQUEST: range is that of a request that does not wait in the table (any more). True: there was one.
 */
bool nlm_block_settle(struct nlm_host *host, const struct lock_file_key *key, const struct lock_owner *owner,
	const struct lock_range *range, bool request);
struct list *nlm_host_blocks(struct nlm_host *host); /* with the mutex held */
void nlm_lock(void);				     /* the mutex */
void nlm_unlock(void);

/* ------------------------------------------------------------------------------------------------
 * NSM (nsm.c)
 */

/* Sockets for NSM over UDP on the addresses to listen on; nobody but Linux' sm-notify uses it. On reactor 0, waits. */
void nsm_udp_start(const struct config *config);
void nsm_udp_stop(void);
uint16_t nsm_udp_port(bool v6);			 /* 0: none */
bool nsm_registered_by_other(uint16_t our_port); /* another statd runs on this machine. Waits */

#endif
