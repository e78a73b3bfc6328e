/*
 * nfs4_state: shards, stateids, the check before READ, WRITE and SETATTR, and the end of a client.
 *
 * A stateid's `other` is 12 bytes: the instance (drawn at start, so that an earlier life's are told), shard and index,
 * and the generation of that place, which is never used again. Its seqid counts the changes of the state; a client may
 * send 0 for "the latest" (RFC 8881 8.2.2).
 *
 * Removing takes two steps, since what a state holds of the file system is given back by functions that wait: under
 * the mutex it is taken out of everything (nfs4_state_unlink), and after it dropped (nfs4_state_drop).
 *
 * Errors: a stateid that a client made up is NFS4ERR_BAD_STATEID. No memory is NFS4ERR_DELAY: there may be some later.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "server/nfs4_state.h"

static struct {
	struct nfs4_state_shard shard[NFS4_STATE_SHARDS];
	uint32_t instance;
	bool ready;
	_Atomic uint64_t counted[3]; /* states by kind */
} all;

static double counted_read(void *arg)
{
	return (double)atomic_load((_Atomic uint64_t *)arg);
}

static struct gauge gauges[3] = {
	{.name = "furrow_nfs4_states",
		.labels = "kind=\"open\"",
		.help = "What NFSv4 clients hold.",
		.read = counted_read,
		.arg = &all.counted[NFS4_STATE_OPEN]},
	{.name = "furrow_nfs4_states",
		.labels = "kind=\"lock\"",
		.help = "What NFSv4 clients hold.",
		.read = counted_read,
		.arg = &all.counted[NFS4_STATE_LOCK]},
	{.name = "furrow_nfs4_states",
		.labels = "kind=\"delegation\"",
		.help = "What NFSv4 clients hold.",
		.read = counted_read,
		.arg = &all.counted[NFS4_STATE_DELEG]},
};

#define SHARD_BITS 6
#define INDEX_MAX ((1u << (32 - SHARD_BITS)) - 1)
_Static_assert(NFS4_STATE_SHARDS == 1u << SHARD_BITS, "a stateid has room for the shard");

int nfs4_state_init(void)
{
	if (all.ready)
		return 0;
	if (getrandom(&all.instance, sizeof(all.instance), 0) != sizeof(all.instance))
		all.instance = (uint32_t)wall_ns();
	for (unsigned i = 0; i < NFS4_STATE_SHARDS; i++) {
		struct nfs4_state_shard *shard = &all.shard[i];

		memset(shard, 0, sizeof(*shard));
		pthread_mutex_init(&shard->lock, NULL);
		shard->index = i;
		if (htable_init(&shard->files, 16) || htable_init(&shard->owners, 16))
			return -ENOMEM;
	}
	for (unsigned i = 0; i < 3; i++)
		gauge_register(&gauges[i]);
	all.ready = true;
	return 0;
}

void nfs4_state_fini(void)
{
	struct list dropped;

	if (!all.ready)
		return;
	list_init(&dropped);
	for (unsigned i = 0; i < NFS4_STATE_SHARDS; i++) {
		struct nfs4_state_shard *shard = &all.shard[i];

		pthread_mutex_lock(&shard->lock);
		for (uint32_t k = 0; k < shard->slots; k++)
			if (shard->slot[k])
				nfs4_state_unlink(shard->slot[k], &dropped);
		pthread_mutex_unlock(&shard->lock);
		nfs4_state_drop(&dropped);
		htable_fini(&shard->files);
		htable_fini(&shard->owners);
		free(shard->slot);
		free(shard->generation);
		free(shard->free);
	}
	for (unsigned i = 0; i < 3; i++)
		gauge_remove(&gauges[i]);
	all.ready = false;
}

/* ------------------------------------------------------------------------------------------------
 * Files and states
 */

static uint64_t file_hash(const struct fs *fs, struct fs_id id)
{
	return hash_u64(id.ino * 0x9e3779b97f4a7c15ull + id.gen + (uint64_t)(uintptr_t)fs + ((uint64_t)id.snap << 40));
}

struct nfs4_state_shard *nfs4_shard_lock(struct fs *fs, struct fs_id id)
{
	struct nfs4_state_shard *shard = &all.shard[file_hash(fs, id) >> (64 - SHARD_BITS)];

	pthread_mutex_lock(&shard->lock);
	return shard;
}

void nfs4_shard_unlock(struct nfs4_state_shard *shard)
{
	pthread_mutex_unlock(&shard->lock);
}

struct nfs4_file *nfs4_file_find(struct nfs4_state_shard *shard, struct fs *fs, struct fs_id id)
{
	uint64_t hash = file_hash(fs, id);

	htable_foreach_hash (n, &shard->files, hash) {
		struct nfs4_file *file = container_of(n, struct nfs4_file, node);

		if (file->fs == fs && file->id.ino == id.ino && file->id.gen == id.gen && file->id.snap == id.snap)
			return file;
	}
	return NULL;
}

static struct nfs4_file *file_new(struct nfs4_state_shard *shard, const struct export *export, struct fs_id id)
{
	struct nfs4_file *file = calloc(1, sizeof(*file));

	if (!file)
		return NULL;
	file->shard = shard;
	file->filesystem = export->filesystem;
	file->fs = export->fs;
	file->id = id;
	file->key = lock_file_key(export->fsid, id);
	list_init(&file->states);
	storage_fs_hold(file->filesystem);
	htable_insert(&shard->files, &file->node, file_hash(file->fs, id));
	return file;
}

static void file_put(struct nfs4_file *file)
{
	if (atomic_fetch_sub(&file->refs, 1) > 1)
		return;
	storage_fs_release(file->filesystem);
	free(file);
}

static uint64_t owner_hash(const struct nfs4_file *file, const struct nfs4_client *client, enum nfs4_state_kind kind,
	const struct xdr_opaque *owner)
{
	return hash_u64(checksum64(owner->data, owner->len, (uint64_t)(uintptr_t)file) +
			(uint64_t)(uintptr_t)client * 4 + kind);
}

struct nfs4_state *nfs4_state_by_owner(
	struct nfs4_file *file, struct nfs4_client *client, enum nfs4_state_kind kind, const struct xdr_opaque *owner)
{
	if (!file)
		return NULL;
	uint64_t hash = owner_hash(file, client, kind, owner);

	htable_foreach_hash (n, &file->shard->owners, hash) {
		struct nfs4_state *state = container_of(n, struct nfs4_state, by_owner);

		if (state->file == file && state->client == client && state->kind == kind &&
			state->owner_len == owner->len && !memcmp(state->owner, owner->data, owner->len))
			return state;
	}
	return NULL;
}

/* Makes room for one more state; places that were used come first in no particular order. */
static int shard_room(struct nfs4_state_shard *shard)
{
	uint32_t slots = shard->slots ? shard->slots * 2 : 64;
	struct nfs4_state **slot;
	uint32_t *generation, *unused;

	if (shard->frees)
		return 0;
	if (slots > INDEX_MAX)
		return -ENOMEM;
	slot = realloc(shard->slot, slots * sizeof(*slot));
	if (slot)
		shard->slot = slot;
	generation = realloc(shard->generation, slots * sizeof(*generation));
	if (generation)
		shard->generation = generation;
	unused = realloc(shard->free, slots * sizeof(*unused));
	if (unused)
		shard->free = unused;
	if (!slot || !generation || !unused)
		return -ENOMEM;
	for (uint32_t k = slots; k-- > shard->slots;) {
		slot[k] = NULL;
		generation[k] = 0;
		unused[shard->frees++] = k;
	}
	shard->slots = slots;
	return 0;
}

static bool too_many(struct nfs4_client *client)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < 3; i++)
		sum += atomic_load_explicit(&all.counted[i], memory_order_relaxed);
	return sum >= NFS4_STATES_MAX || atomic_load(&client->states) >= NFS4_STATES_MAX / 4;
}

struct nfs4_state *nfs4_state_new(struct nfs4_state_shard *shard, const struct export *export, struct fs_id id,
	struct nfs4_client *client, enum nfs4_state_kind kind, const struct xdr_opaque *owner)
{
	struct nfs4_file *file;
	struct nfs4_state *state = NULL;

	if (too_many(client) || shard_room(shard))
		return NULL;
	file = nfs4_file_find(shard, export->fs, id);
	if (!file)
		file = file_new(shard, export, id);
	if (file)
		state = calloc(1, sizeof(*state) + owner->len);
	if (!state) {
		if (file && list_empty(&file->states)) {
			htable_remove(&shard->files, &file->node);
			atomic_store(&file->refs, 1);
			file_put(file);
		}
		return NULL;
	}
	state->kind = kind;
	state->index = shard->free[--shard->frees];
	state->generation = ++shard->generation[state->index];
	state->seqid = 1;
	state->client = nfs4_client_hold(client);
	state->file = file;
	state->owner_len = owner->len;
	memcpy(state->owner, owner->data, owner->len);
	atomic_fetch_add(&file->refs, 1);
	list_push_back(&file->states, &state->in_file);
	shard->slot[state->index] = state;
	if (kind == NFS4_STATE_OPEN) {
		list_init(&state->open.locks);
		file->opens++;
	}
	if (kind == NFS4_STATE_LOCK)
		list_node_init(&state->lock.in_open);
	if (kind != NFS4_STATE_DELEG)
		htable_insert(&shard->owners, &state->by_owner, owner_hash(file, client, kind, owner));
	atomic_fetch_add(&all.counted[kind], 1);
	atomic_fetch_add(&client->states, 1);
	return state;
}

struct lock_owner nfs4_lock_owner(const struct nfs4_state *state)
{
	return (struct lock_owner){.kind = LOCK_KIND_NFS4,
		.client = nfs4_client_id(state->client),
		.data = state->owner,
		.len = state->owner_len};
}

void nfs4_state_unlink(struct nfs4_state *state, struct list *dropped)
{
	struct nfs4_file *file = state->file;
	struct lock_owner owner = nfs4_lock_owner(state);

	switch (state->kind) {
	case NFS4_STATE_OPEN:
		list_foreach (n, &state->open.locks)
			nfs4_state_unlink(container_of(n, struct nfs4_state, lock.in_open), dropped);
		if (state->open.access & OPEN4_SHARE_ACCESS_WRITE)
			file->writers--;
		file->opens--;
		lock_share_unset(lock_server_table(), &file->key, &owner);
		break;
	case NFS4_STATE_LOCK:
		lock_release_owner(lock_server_table(), &file->key, &owner);
		break;
	case NFS4_STATE_DELEG:
		nfs4_deleg_unlinked(state);
		break;
	}
	nfs4_state_forget(state, dropped);
}

void nfs4_state_forget(struct nfs4_state *state, struct list *dropped)
{
	struct nfs4_file *file = state->file;
	struct nfs4_state_shard *shard = file->shard;

	if (state->kind == NFS4_STATE_LOCK)
		list_remove(&state->lock.in_open);
	if (state->kind != NFS4_STATE_DELEG)
		htable_remove(&shard->owners, &state->by_owner);
	shard->slot[state->index] = NULL;
	shard->free[shard->frees++] = state->index;
	list_remove(&state->in_file);
	list_push_back(dropped, &state->in_file);
	if (list_empty(&file->states))
		htable_remove(&shard->files, &file->node);
	atomic_fetch_sub(&all.counted[state->kind], 1);
	atomic_fetch_sub(&state->client->states, 1);
}

void nfs4_state_drop(struct list *dropped)
{
	for (struct list_node *n; (n = list_pop_front(dropped));) {
		struct nfs4_state *state = container_of(n, struct nfs4_state, in_file);

		if (state->kind == NFS4_STATE_OPEN)
			fs_release(state->file->fs, state->file->id);
		file_put(state->file);
		nfs4_client_put(state->client);
		free(state);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Stateids
 */

void nfs4_state_bump(struct nfs4_state *state)
{
	if (++state->seqid == 0)
		state->seqid = 1;
}

static void put_le32(uint8_t *to, uint32_t v)
{
	v = htole32(v);
	memcpy(to, &v, 4);
}

static uint32_t get_le32(const uint8_t *from)
{
	uint32_t v;

	memcpy(&v, from, 4);
	return le32toh(v);
}

void nfs4_stateid_put(const struct nfs4_state *state, stateid4 *to)
{
	to->seqid = state->seqid;
	put_le32(to->other, all.instance);
	put_le32(to->other + 4, state->file->shard->index << (32 - SHARD_BITS) | state->index);
	put_le32(to->other + 8, state->generation);
}

void nfs4_stateid_put_stale(struct fs_id id, stateid4 *to)
{
	to->seqid = 1;
	put_le32(to->other, ~all.instance);
	put_le32(to->other + 4, (uint32_t)(id.ino ^ id.ino >> 32));
	put_le32(to->other + 8, id.gen);
}

enum stateid_special { STATEID_NORMAL, STATEID_ANONYMOUS, STATEID_BYPASS, STATEID_CURRENT, STATEID_INVALID };

static inline enum stateid_special stateid_special(const stateid4 *id)
{
	static const stateid4 zeros, ones = {.other = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}};

	if (!memcmp(id->other, zeros.other, sizeof(id->other)))
		return id->seqid == 0 ? STATEID_ANONYMOUS : id->seqid == 1 ? STATEID_CURRENT : STATEID_INVALID;
	if (!memcmp(id->other, ones.other, sizeof(id->other)))
		return id->seqid == UINT32_MAX ? STATEID_BYPASS : STATEID_INVALID;
	return STATEID_NORMAL;
}

/* Locked on success. Any client's, any seqid. */
static inline struct nfs4_state *state_at(const stateid4 *id)
{
	uint32_t place = get_le32(id->other + 4), index = place & INDEX_MAX;
	struct nfs4_state_shard *shard = &all.shard[place >> (32 - SHARD_BITS)];
	struct nfs4_state *state;

	if (get_le32(id->other) != all.instance)
		return NULL;
	pthread_mutex_lock(&shard->lock);
	state = index < shard->slots ? shard->slot[index] : NULL;
	if (state && state->generation == get_le32(id->other + 8))
		return state;
	pthread_mutex_unlock(&shard->lock);
	return NULL;
}

bool nfs4_stateid_exists(const stateid4 *stateid)
{
	struct nfs4_state *state = state_at(stateid);

	if (state)
		pthread_mutex_unlock(&state->file->shard->lock);
	return state;
}

static nfsstat4 seqid_check(const struct nfs4_state *state, uint32_t seqid)
{
	if (seqid == 0 || seqid == state->seqid)
		return NFS4_OK;
	/* it may have wrapped */
	return (int32_t)(seqid - state->seqid) < 0 ? NFS4ERR_OLD_STATEID : NFS4ERR_BAD_STATEID;
}

/* nfs4_state_find() of a stateid that is none of the special ones. */
static inline nfsstat4 state_find(struct nfs4_compound *c, const stateid4 *stateid, struct nfs4_state **found)
{
	struct nfs4_state *state = state_at(stateid);

	if (!state)
		return NFS4ERR_BAD_STATEID;
	nfsstat4 status = state->client != c->client ? NFS4ERR_BAD_STATEID : seqid_check(state, stateid->seqid);
	if (status == NFS4_OK && state->kind == NFS4_STATE_DELEG && state->deleg.revoked)
		status = NFS4ERR_DELEG_REVOKED;
	if (status != NFS4_OK) {
		pthread_mutex_unlock(&state->file->shard->lock);
		return status;
	}
	*found = state;
	return NFS4_OK;
}

nfsstat4 nfs4_state_find(struct nfs4_compound *c, const stateid4 *stateid, struct nfs4_state **found)
{
	switch (stateid_special(stateid)) {
	case STATEID_CURRENT:
		if (!c->current_stateid_valid)
			return NFS4ERR_BAD_STATEID;
		stateid = &c->current_stateid;
		if (stateid_special(stateid) != STATEID_NORMAL)
			return NFS4ERR_BAD_STATEID;
		break;
	case STATEID_NORMAL:
		break;
	case STATEID_ANONYMOUS:
	case STATEID_BYPASS:
	case STATEID_INVALID:
		return NFS4ERR_BAD_STATEID;
	}
	return state_find(c, stateid, found);
}

bool nfs4_file_is_current(const struct nfs4_file *file, const struct nfs4_compound *c)
{
	return c->current.kind == NFS4_FH_FILE && file->fs == c->current.fs && file->id.ino == c->current.id.ino &&
	       file->id.gen == c->current.id.gen && file->id.snap == c->current.id.snap;
}

void nfs4_current_stateid_set(struct nfs4_compound *c, const stateid4 *stateid)
{
	c->current_stateid = *stateid;
	c->current_stateid_valid = true;
}

/* What the state allows. A file that is open for writing may be read: a client that caches has to (RFC 8881 9.1.2). */
static nfsstat4 state_allows(const struct nfs4_state *state, uint32_t access, uint32_t uid, bool *opened)
{
	const struct nfs4_state *open = state->kind == NFS4_STATE_LOCK ? state->lock.open : state;

	if (state->kind == NFS4_STATE_DELEG)
		return (access & OPEN4_SHARE_ACCESS_WRITE) && !state->deleg.write ? NFS4ERR_OPENMODE : NFS4_OK;
	if ((access & OPEN4_SHARE_ACCESS_WRITE) && !(open->open.access & OPEN4_SHARE_ACCESS_WRITE))
		return NFS4ERR_OPENMODE;
	*opened = open->open.uid == uid && (access & ~open->open.access) == 0;
	return NFS4_OK;
}

/* No open: other clients' opens may deny it, and their delegations are in the way of a write. */
static nfsstat4 anonymous_check(struct nfs4_compound *c, uint32_t access)
{
	struct lock_file_key key = lock_file_key(c->current.export->fsid, c->current.id);

	if (nfs4_grace_active())
		return NFS4ERR_GRACE;
	if (lock_share_test(lock_server_table(), &key, NULL, access, 0))
		return NFS4ERR_LOCKED;
	return access & OPEN4_SHARE_ACCESS_WRITE ? nfs4_deleg_break(c->current.fs, c->current.id, c->client)
						 : nfs4_deleg_break_read(c->current.fs, c->current.id, c->client);
}

nfsstat4 nfs4_stateid_check(
	struct nfs4_compound *c, const stateid4 *stateid, uint32_t access, struct nfs4_stateid_use *use)
{
	struct nfs4_state *state;
	nfsstat4 status;
	enum stateid_special special = stateid_special(stateid);

	use->opened = false;
	if (special == STATEID_CURRENT && c->current_stateid_valid) {
		stateid = &c->current_stateid;
		special = stateid_special(stateid);
	}
	if (special == STATEID_ANONYMOUS || (special == STATEID_BYPASS && (access & OPEN4_SHARE_ACCESS_WRITE)))
		return anonymous_check(c, access);
	if (special == STATEID_BYPASS)
		return nfs4_grace_active() ? NFS4ERR_GRACE
					   : nfs4_deleg_break_read(c->current.fs, c->current.id, c->client);
	if (special != STATEID_NORMAL)
		return NFS4ERR_BAD_STATEID;
	status = state_find(c, stateid, &state);
	if (status != NFS4_OK)
		return status;
	status = nfs4_file_is_current(state->file, c) ? state_allows(state, access, c->current.cred.uid, &use->opened)
						      : NFS4ERR_BAD_STATEID;
	pthread_mutex_unlock(&state->file->shard->lock);
	return status;
}

nfsstat4 nfs4_op_test_stateid(struct nfs4_compound *c)
{
	TEST_STATEID4args args;

	if (!xdr_decode_TEST_STATEID4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	bool ok = xdr_put_u32(&c->req->out, args.ts_stateids.count);
	for (uint32_t i = 0; i < args.ts_stateids.count; i++) {
		struct nfs4_state *state;
		nfsstat4 status = nfs4_state_find(c, &args.ts_stateids.item[i], &state);

		if (status == NFS4_OK)
			pthread_mutex_unlock(&state->file->shard->lock);
		ok = ok && xdr_put_u32(&c->req->out, status);
	}
	return nfs4_fits(c, ok);
}

/* Frees what the client knows to be of no use: a lock state without locks, a revoked delegation (RFC 8881 18.38). */
nfsstat4 nfs4_op_free_stateid(struct nfs4_compound *c)
{
	FREE_STATEID4args args;
	struct nfs4_state *state;
	struct list dropped;
	nfsstat4 status;

	if (!xdr_decode_FREE_STATEID4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	list_init(&dropped);
	if (stateid_special(&args.fsa_stateid) != STATEID_NORMAL &&
		(stateid_special(&args.fsa_stateid) != STATEID_CURRENT || !c->current_stateid_valid))
		return NFS4ERR_BAD_STATEID;
	state = state_at(
		stateid_special(&args.fsa_stateid) == STATEID_CURRENT ? &c->current_stateid : &args.fsa_stateid);
	if (!state)
		return NFS4ERR_BAD_STATEID;
	struct nfs4_state_shard *shard = state->file->shard;
	struct lock_owner owner = nfs4_lock_owner(state);

	status = state->client != c->client ? NFS4ERR_BAD_STATEID : seqid_check(state, args.fsa_stateid.seqid);
	if (status == NFS4_OK) {
		bool held = state->kind == NFS4_STATE_OPEN ||
			    (state->kind == NFS4_STATE_LOCK &&
				    lock_count(lock_server_table(), &state->file->key, &owner)) ||
			    (state->kind == NFS4_STATE_DELEG && !state->deleg.revoked);

		status = held ? NFS4ERR_LOCKS_HELD : NFS4_OK;
	}
	if (status == NFS4_OK)
		nfs4_state_unlink(state, &dropped);
	pthread_mutex_unlock(&shard->lock);
	nfs4_state_drop(&dropped);
	return status;
}

/* ------------------------------------------------------------------------------------------------
 * A client, as a whole
 */

/* Visits the states of CLIENT until FN says false. FN may unlink the state it is given. */
static void client_states(
	struct nfs4_client *client, bool (*fn)(struct nfs4_state *state, struct list *dropped), struct list *dropped)
{
	bool more = true;

	for (unsigned i = 0; i < NFS4_STATE_SHARDS && more && atomic_load(&client->states); i++) {
		struct nfs4_state_shard *shard = &all.shard[i];

		pthread_mutex_lock(&shard->lock);
		for (uint32_t k = 0; k < shard->slots && more; k++)
			if (shard->slot[k] && shard->slot[k]->client == client)
				more = fn(shard->slot[k], dropped);
		pthread_mutex_unlock(&shard->lock);
		if (dropped)
			nfs4_state_drop(dropped);
	}
}

static bool gone_state(struct nfs4_state *state, struct list *dropped)
{
	nfs4_state_unlink(state, dropped);
	return true;
}

void nfs4_state_client_gone(struct nfs4_client *client)
{
	struct list dropped;

	list_init(&dropped);
	client_states(client, gone_state, &dropped);
	lock_release_client(lock_server_table(), LOCK_KIND_NFS4, nfs4_client_id(client));
}

bool nfs4_expel_absent(uint64_t id)
{
	struct nfs4_client *client = id ? nfs4_client_find(id) : NULL;
	bool gone = client && nfs4_client_expired(client) && nfs4_client_expel(client) == 0;

	if (gone)
		log_warning("nfs4",
			"a client was silent beyond its lease, and others have what it held client=%s address=%s",
			client->name, client->peer);
	if (client)
		nfs4_client_put(client);
	return gone;
}

/* ------------------------------------------------------------------------------------------------
 * For people
 */

void nfs4_state_foreach(void (*fn)(void *arg, const struct nfs4_state_info *info), void *arg)
{
	for (unsigned i = 0; i < NFS4_STATE_SHARDS; i++) {
		struct nfs4_state_shard *shard = &all.shard[i];

		pthread_mutex_lock(&shard->lock);
		for (uint32_t k = 0; k < shard->slots; k++) {
			const struct nfs4_state *state = shard->slot[k];
			struct nfs4_state_info info;

			if (!state)
				continue;
			info = (struct nfs4_state_info){
				.kind = state->kind,
				.client = nfs4_client_id(state->client),
				.fsid = state->file->key.fsid,
				.ino = state->file->id.ino,
			};
			if (state->kind == NFS4_STATE_OPEN) {
				info.access = state->open.access;
				info.deny = state->open.deny;
			} else if (state->kind == NFS4_STATE_DELEG) {
				info.access = state->deleg.write ? OPEN4_SHARE_ACCESS_WRITE : OPEN4_SHARE_ACCESS_READ;
				info.recalled = state->deleg.recalled != 0;
				info.revoked = state->deleg.revoked;
			}
			fn(arg, &info);
		}
		pthread_mutex_unlock(&shard->lock);
	}
}

void nfs4_state_counts(struct nfs4_state_counts *counts)
{
	*counts = (struct nfs4_state_counts){
		.opens = atomic_load(&all.counted[NFS4_STATE_OPEN]),
		.locks = atomic_load(&all.counted[NFS4_STATE_LOCK]),
		.delegations = atomic_load(&all.counted[NFS4_STATE_DELEG]),
	};
	nfs4_deleg_counts(counts);
}
