/*
 * nfs4_client: the clients: EXCHANGE_ID, DESTROY_CLIENTID, RECLAIM_COMPLETE, leases, and the end of a client.
 *
 * A client names itself by an owner string, and tells by a verifier whether it has restarted since. EXCHANGE_ID makes a
 * record, which the first CREATE_SESSION confirms; until then the record that was confirmed before stays in force. So
 * there are at most two records of one owner.
 *
 * A lease lasts as long as the configuration says and is renewed by every SEQUENCE. A client whose lease ran out keeps
 * what it has until somebody else wants it (the state machine then ends the client), until the table is full, or for a
 * day. So a network that was cut for an hour costs nobody anything.
 *
 * A client that ends is first taken out of the tables, so that nothing new begins for it; then what runs is given a
 * moment to end; then its states and its durable record go. Whoever still holds a reference finds it gone.
 *
 * The records are in memory; what must survive a restart is nfs4_grace.c's. Locks: see nfs4_session.h.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_session.h"

#define KEEP_ABSENT (24 * 3600 * NSEC_PER_SEC) /* a client without a lease and without states */
#define WAIT_COMPOUNDS (2 * NSEC_PER_SEC)

struct nfs4_tables nfs4_tables = {.lock = PTHREAD_MUTEX_INITIALIZER};
static unsigned lease_seconds = CONFIG_LEASE_DEFAULT;
static struct nfs4_tables *const t = &nfs4_tables;

/* ------------------------------------------------------------------------------------------------
 * Records
 */

struct nfs4_principal nfs4_principal_of(const struct rpc_request *req)
{
	return (struct nfs4_principal){req->cred.flavor, req->cred.uid, req->cred.gid};
}

bool nfs4_principal_same(const struct nfs4_principal *a, const struct nfs4_principal *b)
{
	return a->flavor == b->flavor && a->uid == b->uid && a->gid == b->gid;
}

struct nfs4_client *nfs4_client_hold(struct nfs4_client *client)
{
	atomic_fetch_add_explicit(&client->refs, 1, memory_order_relaxed);
	return client;
}

void nfs4_client_put(struct nfs4_client *client)
{
	if (client && atomic_fetch_sub_explicit(&client->refs, 1, memory_order_acq_rel) == 1)
		free(client);
}

struct nfs4_client *nfs4_client_lookup(uint64_t id)
{
	htable_foreach_hash (n, &t->clients, hash_u64(id)) {
		struct nfs4_client *client = container_of(n, struct nfs4_client, by_id);
		if (client->id == id)
			return client;
	}
	return NULL;
}

struct nfs4_client *nfs4_client_find(uint64_t id)
{
	pthread_mutex_lock(&t->lock);
	struct nfs4_client *client = nfs4_client_lookup(id);
	if (client)
		nfs4_client_hold(client);
	pthread_mutex_unlock(&t->lock);
	return client;
}

void nfs4_lease_set(unsigned seconds)
{
	lease_seconds = seconds;
}

unsigned nfs4_lease_seconds(void)
{
	return lease_seconds;
}

static uint64_t owner_hash(const uint8_t *owner, uint32_t len)
{
	return checksum64(owner, len, 1);
}

struct nfs4_client *nfs4_owner_lookup(const uint8_t *owner, uint32_t len, bool confirmed)
{
	htable_foreach_hash (n, &t->owners, owner_hash(owner, len)) {
		struct nfs4_client *client = container_of(n, struct nfs4_client, by_owner);
		if (client->confirmed == confirmed && client->owner_len == len && !memcmp(client->owner, owner, len))
			return client;
	}
	return NULL;
}

bool nfs4_client_expired(const struct nfs4_client *client)
{
	uint64_t renewed = atomic_load_explicit(&client->renewed, memory_order_relaxed), now = now_ns();
	return now > renewed && now - renewed > NFS4_LEASE_NS &&
	       !atomic_load_explicit(&client->compounds, memory_order_relaxed);
}

/* People read it: what of the owner string can be. */
static void name_make(char *to, size_t room, const uint8_t *owner, uint32_t len)
{
	size_t n = 0;

	for (uint32_t i = 0; i < len && n + 1 < room; i++)
		to[n++] = isprint(owner[i]) && owner[i] != '"' && owner[i] != '\\' ? (char)owner[i] : '?';
	to[n] = 0;
}

/* Tables locked. NULL: no memory. */
static struct nfs4_client *client_new(struct nfs4_compound *c, const EXCHANGE_ID4args *args)
{
	const struct xdr_opaque *owner = &args->eia_clientowner.co_ownerid;
	struct nfs4_client *client = calloc(1, sizeof(*client));

	if (!client)
		return NULL;
	atomic_init(&client->refs, 1);
	client->id = t->boot << 32 | ++t->next_client;
	memcpy(client->verifier, args->eia_clientowner.co_verifier, sizeof(client->verifier));
	client->principal = nfs4_principal_of(c->req);
	client->create_sequence = 1;
	atomic_init(&client->renewed, now_ns());
	client->created = wall_ns();
	rpc_peer_text(c->req, client->peer, sizeof(client->peer));
	memcpy(client->owner, owner->data, owner->len);
	client->owner_len = owner->len;
	name_make(client->name, sizeof(client->name), owner->data, owner->len);
	list_init(&client->sessions);
	htable_insert(&t->clients, &client->by_id, hash_u64(client->id));
	htable_insert(&t->owners, &client->by_owner, owner_hash(owner->data, owner->len));
	list_push_back(&t->list, &client->node);
	t->count++;
	return client;
}

/* ------------------------------------------------------------------------------------------------
 * The end of a client
 */

/* Tables locked: out of them, with all its sessions, which go to SESSIONS. */
static void client_unlink(struct nfs4_client *client, struct list *sessions)
{
	client->gone = true;
	htable_remove(&t->clients, &client->by_id);
	htable_remove(&t->owners, &client->by_owner);
	list_remove(&client->node);
	t->count--;
	list_foreach (n, &client->sessions) {
		struct nfs4_session *session = container_of(n, struct nfs4_session, in_client);
		nfs4_session_unlink(session);
		list_push_back(sessions, &session->in_client);
	}
}

int nfs4_client_expel(struct nfs4_client *client)
{
	struct list sessions;
	struct list_node *n;

	list_init(&sessions);
	pthread_mutex_lock(&t->lock);
	bool gone = client->gone;
	if (!gone)
		client_unlink(client, &sessions);
	pthread_mutex_unlock(&t->lock);
	if (gone)
		return -ENOENT;
	while ((n = list_pop_front(&sessions)))
		nfs4_session_put(container_of(n, struct nfs4_session, in_client));
	/* not for ever: it may wait for the one that asks */
	uint64_t until = now_ns() + WAIT_COMPOUNDS;
	while (atomic_load(&client->compounds) && now_ns() < until)
		fiber_sleep(NSEC_PER_MSEC);
	nfs4_state_client_gone(client);
	if (client->confirmed)
		nfs4_client_record_delete(client);
	nfs4_client_put(client);
	return 0;
}

void nfs4_clients_foreach(void (*fn)(void *arg, struct nfs4_client *client), void *arg)
{
	pthread_mutex_lock(&t->lock);
	list_foreach (n, &t->list) {
		struct nfs4_client *client = container_of(n, struct nfs4_client, node);
		if (client->confirmed)
			fn(arg, client);
	}
	pthread_mutex_unlock(&t->lock);
}

/* Somebody whom nobody misses, with a reference; FULL: with less patience. */
static struct nfs4_client *client_unused(bool full)
{
	uint64_t now = now_ns();
	struct nfs4_client *found = NULL;

	pthread_mutex_lock(&t->lock);
	list_foreach (n, &t->list) {
		struct nfs4_client *client = container_of(n, struct nfs4_client, node);
		uint64_t absent = now - atomic_load_explicit(&client->renewed, memory_order_relaxed);
		if (now < atomic_load_explicit(&client->renewed, memory_order_relaxed) || !nfs4_client_expired(client))
			continue;
		if (!client->confirmed || full || (absent > KEEP_ABSENT && !atomic_load(&client->states))) {
			found = nfs4_client_hold(client);
			break;
		}
	}
	pthread_mutex_unlock(&t->lock);
	return found;
}

static void clients_clean(bool full)
{
	struct nfs4_client *client;

	while ((client = client_unused(full))) {
		nfs4_client_expel(client);
		nfs4_client_put(client);
		if (full)
			return; /* one place was wanted */
	}
}

/* One more client finds a place, if anybody is not missed. */
static void clients_make_room(void)
{
	pthread_mutex_lock(&t->lock);
	bool full = t->count >= NFS4_CLIENTS_MAX;
	pthread_mutex_unlock(&t->lock);
	if (full)
		clients_clean(true);
}

/* ------------------------------------------------------------------------------------------------
 * EXCHANGE_ID (RFC 8881 18.35)
 */

#define FLAGS_KNOWN                                                                                                    \
	(EXCHGID4_FLAG_SUPP_MOVED_REFER | EXCHGID4_FLAG_SUPP_MOVED_MIGR | EXCHGID4_FLAG_BIND_PRINC_STATEID |           \
		EXCHGID4_FLAG_MASK_PNFS | EXCHGID4_FLAG_UPD_CONFIRMED_REC_A)

/* Tables locked. Cases 1 to 9 of 18.35.4. *OLD: a record that this one replaces, to be ended. */
static nfsstat4 client_choose(
	struct nfs4_compound *c, const EXCHANGE_ID4args *args, struct nfs4_client **client, struct nfs4_client **old)
{
	const struct xdr_opaque *owner = &args->eia_clientowner.co_ownerid;
	struct nfs4_principal principal = nfs4_principal_of(c->req);
	struct nfs4_client *conf = nfs4_owner_lookup(owner->data, owner->len, true);
	struct nfs4_client *unconf = nfs4_owner_lookup(owner->data, owner->len, false);
	bool update = args->eia_flags & EXCHGID4_FLAG_UPD_CONFIRMED_REC_A;
	bool same = conf && nfs4_principal_same(&principal, &conf->principal);
	bool verifier = conf && !memcmp(conf->verifier, args->eia_clientowner.co_verifier, sizeof(conf->verifier));

	*old = NULL;
	if (update) {
		if (!conf)
			return NFS4ERR_NOENT; /* case 7 */
		if (!verifier)
			return NFS4ERR_NOT_SAME; /* case 8 */
		if (!same)
			return NFS4ERR_PERM; /* case 9 */
		*client = conf;		     /* case 6 */
		return NFS4_OK;
	}
	if (conf && !same) { /* case 3: somebody else took the name */
		if (atomic_load(&conf->states) && !nfs4_client_expired(conf))
			return NFS4ERR_CLID_INUSE;
		*old = conf;
	} else if (conf && verifier) { /* case 2 */
		*client = conf;
		return NFS4_OK;
	}
	/* case 1, or 4: without confirmation the later one counts, or 5: the client has restarted */
	if (unconf && !*old)
		*old = unconf;
	else if (unconf)
		atomic_store(&unconf->renewed, 0); /* goes with the next cleaning */
	*client = client_new(c, args);
	return *client ? NFS4_OK : NFS4ERR_DELAY;
}

static bool put_exchanged(struct nfs4_compound *c, uint64_t id, uint32_t sequence, bool confirmed)
{
	struct xdr_out *out = &c->req->out;
	uint32_t flags = EXCHGID4_FLAG_USE_NON_PNFS | (confirmed ? EXCHGID4_FLAG_CONFIRMED_R : 0);
	uint32_t len = (uint32_t)strlen(t->server);
	static const char domain[] = "furrow", name[] = "Furrow " FURROW_VERSION;

	return xdr_put_u64(out, id) && xdr_put_u32(out, sequence) && xdr_put_u32(out, flags) &&
	       xdr_put_u32(out, SP4_NONE) && xdr_put_u64(out, 0) && xdr_put_opaque(out, t->server, len) &&
	       xdr_put_opaque(out, t->server, len) && xdr_put_u32(out, 1) &&
	       xdr_put_opaque(out, domain, sizeof(domain) - 1) && xdr_put_opaque(out, name, sizeof(name) - 1) &&
	       xdr_put_i64(out, 0) && xdr_put_u32(out, 0);
}

nfsstat4 nfs4_op_exchange_id(struct nfs4_compound *c)
{
	EXCHANGE_ID4args args;
	struct nfs4_client *client = NULL, *old = NULL;

	if (!xdr_decode_EXCHANGE_ID4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (args.eia_flags & ~(uint32_t)(c->minor >= 2 ? FLAGS_KNOWN | EXCHGID4_FLAG_SUPP_FENCE_OPS : FLAGS_KNOWN))
		return NFS4ERR_INVAL;
	if (args.eia_state_protect.spa_how == SP4_MACH_CRED)
		return NFS4ERR_INVAL; /* needs RPCSEC_GSS (18.35.3) */
	if (args.eia_state_protect.spa_how == SP4_SSV)
		return NFS4ERR_ENCR_ALG_UNSUPP;
	clients_make_room();
	pthread_mutex_lock(&t->lock);
	nfsstat4 status = t->count < NFS4_CLIENTS_MAX ? client_choose(c, &args, &client, &old) : NFS4ERR_DELAY;
	uint64_t id = 0;
	uint32_t sequence = 0;
	bool confirmed = false;
	if (!status) {
		id = client->id;
		sequence = client->create_sequence;
		confirmed = client->confirmed;
		atomic_store(&client->renewed, now_ns());
	}
	if (old)
		nfs4_client_hold(old);
	pthread_mutex_unlock(&t->lock);
	if (old) {
		nfs4_client_expel(old);
		nfs4_client_put(old);
	}
	if (status)
		return status;
	nfs4_deleg_enable();
	return nfs4_fits(c, put_exchanged(c, id, sequence, confirmed));
}

nfsstat4 nfs4_op_destroy_clientid(struct nfs4_compound *c)
{
	DESTROY_CLIENTID4args args;

	if (!xdr_decode_DESTROY_CLIENTID4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	pthread_mutex_lock(&t->lock);
	struct nfs4_client *client = nfs4_client_lookup(args.dca_clientid);
	nfsstat4 status = !client ? NFS4ERR_STALE_CLIENTID : NFS4_OK;
	if (client && (!list_empty(&client->sessions) || atomic_load(&client->states)))
		status = NFS4ERR_CLIENTID_BUSY;
	if (!status)
		nfs4_client_hold(client);
	pthread_mutex_unlock(&t->lock);
	if (status)
		return status;
	int rc = nfs4_client_expel(client);
	nfs4_client_put(client);
	return rc ? NFS4ERR_STALE_CLIENTID : NFS4_OK;
}

nfsstat4 nfs4_op_reclaim_complete(struct nfs4_compound *c)
{
	RECLAIM_COMPLETE4args args;

	if (!xdr_decode_RECLAIM_COMPLETE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (args.rca_one_fs) /* of a file system that moved here: none does */
		return c->current.kind == NFS4_FH_NONE ? NFS4ERR_NOFILEHANDLE : NFS4_OK;
	if (atomic_exchange(&c->client->reclaim_complete, true))
		return NFS4ERR_COMPLETE_ALREADY;
	nfs4_grace_reclaim_complete(c->client);
	return NFS4_OK;
}

/* ------------------------------------------------------------------------------------------------
 * Start, stop, and the cleaning in between, in a fiber of reactor 0
 */

static struct {
	struct wait_queue queue;
	bool stop, runs;
} cleaner;

static void cleaner_fiber(void *arg)
{
	(void)arg;
	while (!cleaner.stop) {
		wait_queue_wait(&cleaner.queue, now_ns() + NFS4_LEASE_NS);
		if (!cleaner.stop)
			clients_clean(false);
	}
	cleaner.runs = false;
}

/* The same after every restart, and for all addresses: from the file system with the lowest identity. */
static void server_name(const struct exports *exports)
{
	uint64_t least = UINT64_MAX;

	for (unsigned i = 0; exports && i < exports->count; i++)
		if (exports->export[i].fsid < least)
			least = exports->export[i].fsid;
	snprintf(t->server, sizeof(t->server), "furrow-%016llx", (unsigned long long)least);
}

int nfs4_clients_init(const struct exports *exports)
{
	list_init(&t->list);
	t->count = 0;
	t->boot = (uint32_t)(wall_ns() >> 20); /* milliseconds: no two starts have the same */
	t->next_client = t->next_session = 0;
	server_name(exports);
	struct htable *tables[] = {&t->clients, &t->owners, &t->sessions, &t->backs};
	for (unsigned i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
		if (htable_init(tables[i], 64)) {
			while (i)
				htable_fini(tables[--i]);
			return -ENOMEM;
		}
	wait_queue_init(&cleaner.queue);
	cleaner.stop = false;
	cleaner.runs = !fiber_spawn(cleaner_fiber, NULL);
	return 0;
}

void nfs4_clients_fini(void)
{
	struct list sessions;
	struct list_node *n;

	cleaner.stop = true;
	wait_queue_wake_all(&cleaner.queue);
	while (cleaner.runs)
		fiber_sleep(NSEC_PER_MSEC);
	nfs4_callbacks_wait();
	list_init(&sessions);
	pthread_mutex_lock(&t->lock);
	while ((n = list_first(&t->list))) {
		struct nfs4_client *client = container_of(n, struct nfs4_client, node);
		client_unlink(client, &sessions);
		nfs4_client_put(client);
	}
	pthread_mutex_unlock(&t->lock);
	while ((n = list_pop_front(&sessions)))
		nfs4_session_put(container_of(n, struct nfs4_session, in_client));
	htable_fini(&t->clients);
	htable_fini(&t->owners);
	htable_fini(&t->sessions);
	htable_fini(&t->backs);
}
