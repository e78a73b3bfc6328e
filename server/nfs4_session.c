/*
 * nfs4_session: sessions (RFC 8881 2.10): CREATE_SESSION and DESTROY_SESSION, and SEQUENCE with its slots, which make
 * that a request is done once however often it comes.
 *
 * A slot runs one request at a time and knows the sequence number of the last. A request with the next number is new;
 * one with the same number is told again what the last was answered, if that was to be kept (sa_cachethis), and
 * NFS4ERR_RETRY_UNCACHED_REP otherwise; one that is not the same request is NFS4ERR_SEQ_FALSE_RETRY. What is kept are
 * the results in XDR, not bytes of a transport: the retry may come over another. A kept reply is never changed; whoever
 * tells it again holds a reference while the slot may have gone on.
 *
 * A request is known by its user, its length and its beginning. They are the same over every transport, but for data
 * that an RDMA Read chunk brings, which has not come when SEQUENCE runs: a slot's checksum ends before it. For a mark
 * that outlives the server (nfs4_replay.c) the beginning of that data is fetched.
 *
 * Slots come and go in chunks. A client that uses all gets more, up to NFS4_SLOTS_MAX, while memory for kept replies is
 * not short; one that uses few for long is told a lower target, and when it says that it has heard, the upper ones go.
 *
 * A compound whose connection is lost in the middle of a WRITE has done nothing yet that its retry would do twice; then
 * the slot goes back to where it was.
 *
 * Locks: see nfs4_session.h. SEQUENCE takes the tables' to find the session, and the session's for the slot.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_session.h"

#define REQUEST_LEAST 256u
#define REQUEST_MAX (NFS_IO_MAX + 8192u)
#define REPLY_LEAST 256u
#define REPLY_MAX (NFS_IO_MAX + 65536u)
#define CHECKSUM_BYTES 256u
#define IDLE_REQUESTS 4096u /* without use of the upper half: then it goes */

static struct nfs4_tables *const t = &nfs4_tables;

/* ------------------------------------------------------------------------------------------------
 * Replies that are kept
 */

static void reply_put(struct nfs4_reply *reply)
{
	if (reply && atomic_fetch_sub_explicit(&reply->refs, 1, memory_order_acq_rel) == 1) {
		uint64_t bytes = sizeof(*reply) + reply->bytes;
		for (uint32_t i = 0; i < reply->payloads; i++)
			bytes += reply->payload[i].len;
		atomic_fetch_sub_explicit(&t->cache_bytes, bytes, memory_order_relaxed);
		free(reply);
	}
}

/* What the compound has encoded, from its status on. NULL: no memory. */
static struct nfs4_reply *reply_keep(const struct nfs4_compound *c)
{
	const struct xdr_out *out = &c->req->out;
	uint32_t bytes = (uint32_t)(out->p - out->base - (ptrdiff_t)c->start), data = 0;

	for (unsigned i = 0; i < out->payloads; i++)
		data += out->payload[i].len;
	struct nfs4_reply *reply = malloc(sizeof(*reply) + bytes + data);
	if (!reply)
		return NULL;
	atomic_init(&reply->refs, 1);
	reply->bytes = bytes;
	reply->payloads = out->payloads;
	memcpy(reply->data, out->base + c->start, bytes);
	for (unsigned i = 0, at = bytes; i < out->payloads; i++) {
		reply->payload[i].pos = out->payload[i].pos - (uint32_t)c->start;
		reply->payload[i].len = out->payload[i].len;
		reply->payload[i].at = at;
		rpc_payload_copy(c->req, i, reply->data + at);
		at += out->payload[i].len;
	}
	atomic_fetch_add_explicit(&t->cache_bytes, sizeof(*reply) + bytes + data, memory_order_relaxed);
	return reply;
}

/* The payload of a kept reply, again in a buffer of the arena. */
static int payload_tell(struct nfs4_compound *c, const struct nfs4_reply *reply, unsigned i)
{
	struct rpc_request *req = c->req;
	uint32_t len = reply->payload[i].len;
	struct slice v = {.buf = buf_alloc(len ? len : 1), .off = 0, .len = len};

	memcpy(v.buf->data, reply->data + reply->payload[i].at, len);
	req->out.payload[req->out.payloads++] =
		(struct xdr_payload){.len = len, .pos = (uint32_t)c->start + reply->payload[i].pos};
	if (!len)
		buf_put(v.buf);
	return rpc_payload_attach(req, &v, len ? 1 : 0);
}

/* Writes the kept reply over what the compound has begun. */
static nfsstat4 reply_tell(struct nfs4_compound *c, const struct nfs4_reply *reply)
{
	struct xdr_out *out = &c->req->out;

	out->p = out->base + c->start;
	if (rpc_reply_grow(c->req, reply->bytes))
		return NFS4ERR_REP_TOO_BIG;
	memcpy(out->p, reply->data, reply->bytes);
	out->p += reply->bytes;
	c->replayed = true;
	for (unsigned i = 0; i < reply->payloads; i++)
		if (payload_tell(c, reply, i))
			c->drop = true;
	return NFS4_OK;
}

/* ------------------------------------------------------------------------------------------------
 * Sessions
 */

#define CHUNK_BYTES (NFS4_SLOT_CHUNK * sizeof(struct nfs4_slot))

static struct nfs4_slot *slot_of(struct nfs4_session *session, uint32_t slot)
{
	return &session->chunk[slot / NFS4_SLOT_CHUNK][slot % NFS4_SLOT_CHUNK];
}

static void chunk_free(struct nfs4_session *session, uint32_t chunk)
{
	if (!session->chunk[chunk])
		return;
	for (unsigned i = 0; i < NFS4_SLOT_CHUNK; i++)
		reply_put(session->chunk[chunk][i].reply);
	atomic_fetch_sub_explicit(&t->cache_bytes, CHUNK_BYTES, memory_order_relaxed);
	free(session->chunk[chunk]);
	session->chunk[chunk] = NULL;
}

static bool slots_grow(struct nfs4_session *session, uint32_t slots)
{
	for (uint32_t i = 0; i * NFS4_SLOT_CHUNK < slots; i++) {
		if (session->chunk[i])
			continue;
		session->chunk[i] = calloc(NFS4_SLOT_CHUNK, sizeof(struct nfs4_slot));
		if (!session->chunk[i])
			return false;
		atomic_fetch_add_explicit(&t->cache_bytes, CHUNK_BYTES, memory_order_relaxed);
	}
	session->slots = slots;
	return true;
}

void nfs4_session_put(struct nfs4_session *session)
{
	if (!session || atomic_fetch_sub_explicit(&session->refs, 1, memory_order_acq_rel) != 1)
		return;
	for (uint32_t i = 0; i < NFS4_SLOT_CHUNKS; i++)
		chunk_free(session, i);
	pthread_mutex_destroy(&session->lock);
	nfs4_client_put(session->client);
	free(session);
}

uint64_t nfs4_session_hash(const uint8_t *id)
{
	uint64_t word[2];

	memcpy(word, id, sizeof(word));
	return hash_u64(hash_u64(word[0]) ^ word[1]);
}

/* Tables locked; no reference. */
static struct nfs4_session *session_lookup(const uint8_t *id)
{
	htable_foreach_hash (n, &t->sessions, nfs4_session_hash(id)) {
		struct nfs4_session *session = container_of(n, struct nfs4_session, by_id);
		if (!memcmp(session->id, id, NFS4_SESSIONID_SIZE))
			return session;
	}
	return NULL;
}

void nfs4_session_unlink(struct nfs4_session *session)
{
	pthread_mutex_lock(&session->lock);
	session->gone = true;
	pthread_mutex_unlock(&session->lock);
	htable_remove(&t->sessions, &session->by_id);
	list_remove(&session->in_client);
	list_foreach (n, &session->backs)
		nfs4_back_unlink(container_of(n, struct nfs4_back, in_session));
}

/* With a reference; the tables are not locked. */
static struct nfs4_session *session_find(const uint8_t *id)
{
	pthread_mutex_lock(&t->lock);
	struct nfs4_session *session = session_lookup(id);
	if (session)
		atomic_fetch_add_explicit(&session->refs, 1, memory_order_relaxed);
	pthread_mutex_unlock(&t->lock);
	return session;
}

/* ------------------------------------------------------------------------------------------------
 * CREATE_SESSION (RFC 8881 18.36)
 */

static uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static nfsstat4 channels_agree(const CREATE_SESSION4args *args, channel_attrs4 *fore, channel_attrs4 *back)
{
	*fore = args->csa_fore_chan_attrs;
	*back = args->csa_back_chan_attrs;
	if (fore->ca_maxrequestsize < REQUEST_LEAST || fore->ca_maxresponsesize < REPLY_LEAST)
		return NFS4ERR_TOOSMALL;
	if (!fore->ca_maxrequests || !fore->ca_maxoperations)
		return NFS4ERR_INVAL;
	bool short_of_memory = atomic_load_explicit(&t->cache_bytes, memory_order_relaxed) > NFS4_CACHE_BYTES;
	fore->ca_headerpadsize = 0;
	fore->ca_maxrequestsize = least(fore->ca_maxrequestsize, REQUEST_MAX);
	fore->ca_maxresponsesize = least(fore->ca_maxresponsesize, REPLY_MAX);
	fore->ca_maxresponsesize_cached = least(fore->ca_maxresponsesize_cached, NFS4_CACHED_MAX);
	fore->ca_maxoperations = least(fore->ca_maxoperations, NFS4_OPS_MAX);
	fore->ca_maxrequests = least(fore->ca_maxrequests, short_of_memory ? NFS4_SLOTS_FEW : NFS4_SLOT_CHUNK);
	fore->ca_rdma_ird.count = 0;
	/* who wants no backchannel may leave it empty */
	if (back->ca_maxrequestsize || (args->csa_flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN)) {
		if (back->ca_maxrequestsize < REQUEST_LEAST || back->ca_maxresponsesize < REPLY_LEAST ||
			back->ca_maxoperations < 2)
			return NFS4ERR_TOOSMALL;
		if (!back->ca_maxrequests)
			return NFS4ERR_INVAL;
	}
	back->ca_headerpadsize = 0;
	back->ca_maxrequestsize = least(back->ca_maxrequestsize, RPC_CALLBACK_MAX);
	back->ca_maxresponsesize = least(back->ca_maxresponsesize, RPC_CALLBACK_MAX);
	back->ca_maxresponsesize_cached = least(back->ca_maxresponsesize_cached, RPC_CALLBACK_MAX);
	back->ca_maxrequests = least(back->ca_maxrequests, NFS4_CB_SLOTS);
	back->ca_rdma_ird.count = 0;
	return NFS4_OK;
}

/* AUTH_SYS where the client offers it, else AUTH_NONE. */
static void cb_cred_set(struct nfs4_session *session, const callback_sec_parms4 *parms, uint32_t count)
{
	session->cb_cred = (struct rpc_cred){.flavor = RPC_AUTH_NONE};
	session->cb_machine[0] = 0;
	for (uint32_t i = 0; i < count; i++) {
		const authsys_parms4 *sys = &parms[i].cbsp_sys_cred;
		if (parms[i].cb_secflavor != NFS4_AUTH_SYS)
			continue;
		session->cb_cred = (struct rpc_cred){.flavor = RPC_AUTH_SYS, .uid = sys->uid, .gid = sys->gid};
		for (uint32_t g = 0; g < sys->gids.count && g < 16; g++)
			session->cb_cred.groups[session->cb_cred.group_count++] = sys->gids.item[g];
		size_t len = least(sys->machinename.len, sizeof(session->cb_machine) - 1);
		memcpy(session->cb_machine, sys->machinename.data, len);
		session->cb_machine[len] = 0;
		return;
	}
}

/* Tables locked. NULL: no memory. Its one reference is the tables'. */
static struct nfs4_session *session_new(struct nfs4_compound *c, struct nfs4_client *client,
	const CREATE_SESSION4args *args, const channel_attrs4 *fore, const channel_attrs4 *back)
{
	struct nfs4_session *session = calloc(1, sizeof(*session));

	if (!session || !slots_grow(session, fore->ca_maxrequests)) {
		free(session);
		return NULL;
	}
	atomic_init(&session->refs, 1);
	pthread_mutex_init(&session->lock, NULL);
	session->target = session->slots - 1;
	session->client = nfs4_client_hold(client);
	session->minor = c->minor;
	uint64_t id[2] = {client->id, (uint64_t)++t->next_session << 32 | (uint32_t)hash_u64(now_ns())};
	memcpy(session->id, id, sizeof(session->id));
	session->fore = *fore;
	session->back = *back;
	session->cb_program = args->csa_cb_program;
	session->cb_slots = back->ca_maxrequests;
	cb_cred_set(session, args->csa_sec_parms.item, args->csa_sec_parms.count);
	list_init(&session->backs);
	htable_insert(&t->sessions, &session->by_id, nfs4_session_hash(session->id));
	list_push_back(&client->sessions, &session->in_client);
	return session;
}

/*
 * Tables locked: whether the client may, whose turn it is, and whether this was answered before. *OLD: the client's
 * earlier life, to be ended first; then it is looked at again.
 */
static nfsstat4 create_check(struct nfs4_compound *c, const CREATE_SESSION4args *args, struct nfs4_client **client,
	struct nfs4_client **old, bool *again)
{
	struct nfs4_principal principal = nfs4_principal_of(c->req);
	struct nfs4_client *found = nfs4_client_lookup(args->csa_clientid);

	*old = NULL;
	*again = false;
	*client = found;
	if (!found || (!found->confirmed && nfs4_client_expired(found)))
		return NFS4ERR_STALE_CLIENTID;
	if (args->csa_sequence == found->create_sequence - 1 && found->create_replied) {
		*again = true;
		return NFS4_OK;
	}
	if (args->csa_sequence != found->create_sequence)
		return NFS4ERR_SEQ_MISORDERED;
	if (!found->confirmed) {
		if (!nfs4_principal_same(&principal, &found->principal))
			return NFS4ERR_CLID_INUSE;
		struct nfs4_client *before = nfs4_owner_lookup(found->owner, found->owner_len, true);
		if (before)
			*old = nfs4_client_hold(before);
	}
	return NFS4_OK;
}

static bool put_channel(struct xdr_out *out, const channel_attrs4 *attrs)
{
	return xdr_encode_channel_attrs4(out, attrs);
}

static bool put_created(struct xdr_out *out, const CREATE_SESSION4resok *res)
{
	return xdr_put_fixed(out, res->csr_sessionid, NFS4_SESSIONID_SIZE) && xdr_put_u32(out, res->csr_sequence) &&
	       xdr_put_u32(out, res->csr_flags) && put_channel(out, &res->csr_fore_chan_attrs) &&
	       put_channel(out, &res->csr_back_chan_attrs);
}

/* Tables locked: all is checked. */
static nfsstat4 create_run(struct nfs4_compound *c, const CREATE_SESSION4args *args, struct nfs4_client *client,
	const channel_attrs4 *fore, const channel_attrs4 *back, struct rpc_link *link)
{
	struct nfs4_session *session = session_new(c, client, args, fore, back);

	if (!session)
		return NFS4ERR_DELAY;
	client->confirmed = true;
	client->create_sequence++;
	client->create_replied = true;
	session->cb_wanted = args->csa_flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
	uint32_t flags = 0;
	if (session->cb_wanted && link && nfs4_back_bind(session, link))
		flags |= CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
	CREATE_SESSION4resok *res = &client->create_reply;
	memcpy(res->csr_sessionid, session->id, sizeof(res->csr_sessionid));
	res->csr_sequence = args->csa_sequence;
	res->csr_flags = flags;
	res->csr_fore_chan_attrs = *fore;
	res->csr_back_chan_attrs = *back;
	atomic_store(&client->renewed, now_ns());
	return NFS4_OK;
}

static unsigned sessions_count(const struct nfs4_client *client)
{
	unsigned count = 0;

	list_foreach (n, &client->sessions)
		count++;
	return count;
}

nfsstat4 nfs4_op_create_session(struct nfs4_compound *c)
{
	CREATE_SESSION4args args;
	channel_attrs4 fore, back;
	struct nfs4_client *client, *old;
	CREATE_SESSION4resok res;
	bool again;
	nfsstat4 status;

	if (!xdr_decode_CREATE_SESSION4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	struct rpc_link *link = args.csa_flags & CREATE_SESSION4_FLAG_CONN_BACK_CHAN ? rpc_link_get(c->req) : NULL;
	for (;;) {
		pthread_mutex_lock(&t->lock);
		status = create_check(c, &args, &client, &old, &again);
		if (!old)
			break;
		pthread_mutex_unlock(&t->lock);
		nfs4_client_expel(old); /* the client's earlier life */
		nfs4_client_put(old);
	}
	if (!status && !again) {
		if (args.csa_flags & ~(uint32_t)(CREATE_SESSION4_FLAG_PERSIST | CREATE_SESSION4_FLAG_CONN_BACK_CHAN |
						 CREATE_SESSION4_FLAG_CONN_RDMA))
			status = NFS4ERR_INVAL;
		if (!status)
			status = channels_agree(&args, &fore, &back);
		if (!status && (sessions_count(client) >= NFS4_SESSIONS_MAX || t->sessions.count >= NFS4_SESSIONS_ALL))
			status = NFS4ERR_NOSPC;
		if (!status)
			status = create_run(c, &args, client, &fore, &back, link);
	}
	if (!status)
		res = client->create_reply;
	pthread_mutex_unlock(&t->lock);
	rpc_link_put(link);
	return status ? status : nfs4_fits(c, put_created(&c->req->out, &res));
}

/* ------------------------------------------------------------------------------------------------
 * DESTROY_SESSION (RFC 8881 18.37)
 */

nfsstat4 nfs4_op_destroy_session(struct nfs4_compound *c)
{
	DESTROY_SESSION4args args;

	if (!xdr_decode_DESTROY_SESSION4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	bool own = c->session && !memcmp(c->session->id, args.dsa_sessionid, NFS4_SESSIONID_SIZE);
	if (own && c->op_index + 1 != c->op_count)
		return NFS4ERR_NOT_ONLY_OP;
	pthread_mutex_lock(&t->lock);
	struct nfs4_session *session = session_lookup(args.dsa_sessionid);
	nfsstat4 status = session ? NFS4_OK : NFS4ERR_BADSESSION;
	if (session) {
		pthread_mutex_lock(&session->lock);
		if (session->busy > (own ? 1u : 0u))
			status = NFS4ERR_DELAY;
		pthread_mutex_unlock(&session->lock);
	}
	for (uint32_t i = 0; session && i < session->cb_slots && !status; i++)
		if (session->cb_slot[i].busy && !session->cb_fault)
			status = NFS4ERR_BACK_CHAN_BUSY;
	if (!status)
		nfs4_session_unlink(session);
	pthread_mutex_unlock(&t->lock);
	if (!status)
		nfs4_session_put(session);
	return status;
}

/* ------------------------------------------------------------------------------------------------
 * SEQUENCE (RFC 8881 18.46)
 */

/* Bytes that follow SEQUENCE, with all that Read chunks bring. */
static inline uint32_t request_left(const struct xdr_in *in)
{
	uint32_t left = (uint32_t)xdr_in_left(in);

	if (in->reduced_pos == UINT32_MAX)
		return left;
	left += xdr_round(in->reduced_len);
	for (uint32_t i = 0; i < in->reduced_left; i++)
		left += xdr_round(in->reduced[i].len);
	return left;
}

static inline uint64_t request_seed(const struct nfs4_compound *c, uint32_t left)
{
	return left ^ (uint64_t)c->op_count << 32;
}

/* The first BYTES, in one piece: where they are, or in COPY. NULL cannot be: they are there. */
static const uint8_t *request_bytes_at(const struct xdr_in *in, uint32_t bytes, uint8_t copy[CHECKSUM_BYTES])
{
	struct xdr_pool pool = {copy, 0, CHECKSUM_BYTES};
	struct xdr_in pieces = *in;

	pieces.pool = &pool;
	return xdr_in_room(&pieces, bytes) ? pieces.p : NULL;
}

static __attribute__((noinline)) uint64_t checksum_pieces(const struct xdr_in *in, uint32_t bytes, uint64_t seed)
{
	uint8_t copy[CHECKSUM_BYTES];
	const uint8_t *at = request_bytes_at(in, bytes, copy);

	return at ? checksum64(at, bytes, seed) : 0;
}

/* Of what follows SEQUENCE: how much, and its beginning, as far as MOST or to the first chunk. */
static struct nfs4_request_sum request_sum(const struct nfs4_compound *c, uint32_t most)
{
	const struct xdr_in *in = &c->req->in;
	uint32_t left = request_left(in), bytes = least(left, most) & ~3u;
	uint32_t to_chunk = in->reduced_pos - xdr_in_pos(in); /* much, if there is none or it is behind us */
	uint64_t seed = request_seed(c, left);

	if (to_chunk < bytes)
		bytes = to_chunk & ~3u;
	bool together = (size_t)(in->end - in->p) >= bytes;
	uint64_t checksum = together ? checksum64(in->p, bytes, seed) : checksum_pieces(in, bytes, seed);
	return (struct nfs4_request_sum){checksum, bytes};
}

/*
 * The same as if nothing had come in chunks. SUM: as far as the first. The chunks that are left to fetch are longer
 * than what is wanted here (rdma_call.c). False: the connection is lost. Waits.
 */
static bool request_sum_whole(struct nfs4_compound *c, struct nfs4_request_sum *sum)
{
	const struct xdr_in *in = &c->req->in;
	uint32_t left = request_left(in), bytes = least(left, CHECKSUM_BYTES) & ~3u;
	uint8_t copy[CHECKSUM_BYTES], whole[CHECKSUM_BYTES];

	if (sum->bytes == bytes)
		return true;
	struct slice rest = {.buf = buf_alloc(bytes - sum->bytes), .len = bytes - sum->bytes};
	struct xdr_payload data = {.len = rest.len, .chunk = in->reduced_taken + 1};
	const uint8_t *at = request_bytes_at(in, sum->bytes, copy);
	int rc = at ? rpc_payload_fetch(c->req, &data, &rest, 1) : -EIO;

	if (!rc) {
		memcpy(whole, at, sum->bytes);
		memcpy(whole + sum->bytes, slice_data(&rest), rest.len);
		*sum = (struct nfs4_request_sum){checksum64(whole, bytes, request_seed(c, left)), bytes};
	}
	buf_put(rest.buf);
	return !rc;
}

/* Whether the slot's last request may be this one. If that came without the chunk that this one has, nobody can say. */
static bool request_same(const struct nfs4_compound *c, const struct nfs4_slot *slot)
{
	struct nfs4_request_sum sum = request_sum(c, slot->sum.bytes);

	return slot->uid == c->req->cred.uid && (sum.bytes < slot->sum.bytes || sum.checksum == slot->sum.checksum);
}

static uint32_t request_bytes(const struct nfs4_compound *c)
{
	const struct xdr_in *in = &c->req->in;
	uint64_t bytes = (uint64_t)xdr_in_pos(in) + xdr_in_left(in);
	return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

/* Session locked: what the client says of its slots moves the target. */
static void slots_adapt(struct nfs4_session *session, uint32_t highest)
{
	bool memory_short = atomic_load_explicit(&t->cache_bytes, memory_order_relaxed) > NFS4_CACHE_BYTES;

	if (highest + 1 >= session->slots && session->target + 1 == session->slots && !memory_short) {
		uint32_t more = session->slots + NFS4_SLOT_CHUNK;
		if (more <= NFS4_SLOTS_MAX && session->slots % NFS4_SLOT_CHUNK == 0 && slots_grow(session, more))
			session->target = session->slots - 1;
	}
	session->idle = highest >= session->slots / 2 ? 0 : session->idle + 1;
	if (session->target + 1 < session->slots && highest <= session->target && session->busy <= 1) {
		/* it has heard: nothing is on its way there */
		for (uint32_t i = session->target / NFS4_SLOT_CHUNK + 1; i < NFS4_SLOT_CHUNKS; i++)
			chunk_free(session, i);
		for (uint32_t i = session->target + 1; i < session->slots && i % NFS4_SLOT_CHUNK; i++) {
			reply_put(slot_of(session, i)->reply);
			*slot_of(session, i) = (struct nfs4_slot){0};
		}
		session->slots = session->target + 1;
		session->idle = 0;
	}
	if (memory_short && session->target >= NFS4_SLOTS_FEW)
		session->target = NFS4_SLOTS_FEW - 1;
	else if (session->idle > IDLE_REQUESTS && session->target >= 2 * NFS4_SLOT_CHUNK)
		session->target = session->target / 2 / NFS4_SLOT_CHUNK * NFS4_SLOT_CHUNK + NFS4_SLOT_CHUNK - 1;
}

/* Bytes of the shortest reply that there can be: SEQUENCE, and an error of what follows. */
static uint32_t least_reply(const struct nfs4_compound *c)
{
	uint32_t bytes = (uint32_t)(c->req->out.p - c->req->out.base) + NFS4_SESSIONID_SIZE + 5 * 4;
	return c->op_count > 1 ? bytes + 12 : bytes;
}

/* Session locked. *AGAIN: it was done; *REPLY then, with a reference, where it was kept. */
static nfsstat4 slot_check(struct nfs4_compound *c, struct nfs4_session *session, const SEQUENCE4args *args,
	struct nfs4_request_sum sum, bool *again, struct nfs4_reply **reply)
{
	if (session->gone)
		return NFS4ERR_BADSESSION;
	if (args->sa_slotid >= session->slots)
		return NFS4ERR_BADSLOT;
	if (args->sa_highest_slotid < args->sa_slotid || args->sa_highest_slotid >= NFS4_SLOTS_MAX)
		return NFS4ERR_BAD_HIGH_SLOT;
	struct nfs4_slot *slot = slot_of(session, args->sa_slotid);
	if (args->sa_sequenceid == slot->sequence && slot->busy)
		return NFS4ERR_DELAY;
	if (args->sa_sequenceid == slot->sequence && slot->used) {
		if (!request_same(c, slot))
			return NFS4ERR_SEQ_FALSE_RETRY;
		*again = true;
		*reply = slot->reply;
		if (*reply)
			atomic_fetch_add_explicit(&(*reply)->refs, 1, memory_order_relaxed);
		return NFS4_OK;
	}
	if (args->sa_sequenceid != slot->sequence + 1 || slot->busy)
		return NFS4ERR_SEQ_MISORDERED;
	if (c->op_count > session->fore.ca_maxoperations)
		return NFS4ERR_TOO_MANY_OPS;
	if (request_bytes(c) > session->fore.ca_maxrequestsize)
		return NFS4ERR_REQ_TOO_BIG;
	if (args->sa_cachethis && least_reply(c) > session->fore.ca_maxresponsesize_cached)
		return NFS4ERR_REP_TOO_BIG_TO_CACHE;
	slot->busy = true;
	slot->used = true;
	slot->sequence = args->sa_sequenceid;
	slot->sum = sum;
	slot->uid = c->req->cred.uid;
	session->busy++;
	c->slot = slot;
	slots_adapt(session, args->sa_highest_slotid);
	return NFS4_OK;
}

static uint32_t status_flags(const struct nfs4_session *session)
{
	return nfs4_back_status(session) | (atomic_load_explicit(&session->client->revoked, memory_order_relaxed)
							   ? SEQ4_STATUS_RECALLABLE_STATE_REVOKED
							   : 0);
}

static bool put_sequence(
	struct xdr_out *out, const SEQUENCE4args *args, uint32_t highest, uint32_t target, uint32_t flags)
{
	if (!xdr_out_room(out, NFS4_SESSIONID_SIZE + 5 * 4))
		return false;
	xdr_lay_fixed(out, args->sa_sessionid, NFS4_SESSIONID_SIZE);
	xdr_lay_u32(out, args->sa_sequenceid);
	xdr_lay_u32(out, args->sa_slotid);
	xdr_lay_u32(out, highest);
	xdr_lay_u32(out, target);
	xdr_lay_u32(out, flags);
	return true;
}

/* What of the request a restart must not make forgotten. False: the connection is lost. Waits. */
static bool mark_begin(struct nfs4_compound *c, const SEQUENCE4args *args, struct nfs4_request_sum sum)
{
	c->drop = !request_sum_whole(c, &sum);
	if (!c->drop)
		nfs4_mark_begin(c, args, sum.checksum);
	return !c->drop;
}

nfsstat4 nfs4_op_sequence(struct nfs4_compound *c)
{
	SEQUENCE4args args;
	struct xdr_out *out = &c->req->out;
	struct nfs4_reply *reply = NULL;
	bool again = false;

	if (!xdr_decode_SEQUENCE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	struct nfs4_session *session = session_find(args.sa_sessionid);
	struct nfs4_request_sum sum = request_sum(c, CHECKSUM_BYTES);
	nfsstat4 status;

	if (!session) {
		if (!mark_begin(c, &args, sum))
			return NFS4ERR_DELAY;
		status = nfs4_replay_begin(c);
		return status ? status : nfs4_fits(c, put_sequence(out, &args, args.sa_slotid, args.sa_slotid, 0));
	}
	pthread_mutex_lock(&session->lock);
	status = slot_check(c, session, &args, sum, &again, &reply);
	uint32_t slots = session->slots, target = session->target;
	pthread_mutex_unlock(&session->lock);
	if (status) {
		nfs4_session_put(session);
		return status;
	}
	c->session = session;
	c->client = session->client;
	atomic_store_explicit(&c->client->renewed, now_ns(), memory_order_relaxed);
	atomic_fetch_add(&c->client->compounds, 1);
	if (reply) {
		status = reply_tell(c, reply);
		reply_put(reply);
		return status;
	}
	c->uncached = again;
	c->cache = args.sa_cachethis;
	if (c->cache && !mark_begin(c, &args, sum))
		return NFS4ERR_DELAY;
	c->out_max = session->fore.ca_maxresponsesize;
	c->cache_max = session->fore.ca_maxresponsesize_cached;
	return nfs4_fits(c, put_sequence(out, &args, slots - 1, target, status_flags(session)));
}

void nfs4_sequence_end(struct nfs4_compound *c, int rc)
{
	struct nfs4_session *session = c->session;
	struct nfs4_reply *reply = NULL, *before;

	if (!session)
		return;
	if (c->slot) {
		/* a lone SEQUENCE is as good as kept: it costs next to nothing */
		if (rc == RPC_SUCCESS && (c->cache || c->op_count == 1))
			reply = reply_keep(c);
		before = NULL;
		if (rc == RPC_SUCCESS) {
			before = c->slot->reply;
			c->slot->reply = reply;
		} else {
			pthread_mutex_lock(&session->lock);
			c->slot->sequence--;
			pthread_mutex_unlock(&session->lock);
		}
		/* in this order, and nothing of the slot is touched after */
		atomic_store_explicit(&c->slot->busy, false, memory_order_release);
		atomic_fetch_sub_explicit(&session->busy, 1, memory_order_release);
		reply_put(before);
	}
	atomic_fetch_sub(&c->client->compounds, 1);
	nfs4_session_put(session);
}

/* ------------------------------------------------------------------------------------------------
 * Connections and the backchannel (RFC 8881 18.33, 18.34)
 */

nfsstat4 nfs4_op_bind_conn_to_session(struct nfs4_compound *c)
{
	BIND_CONN_TO_SESSION4args args;
	struct xdr_out *out = &c->req->out;
	uint32_t dir = CDFS4_FORE;

	if (!xdr_decode_BIND_CONN_TO_SESSION4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	struct rpc_link *link = args.bctsa_dir & CDFC4_BACK ? rpc_link_get(c->req) : NULL;
	pthread_mutex_lock(&t->lock);
	struct nfs4_session *session = session_lookup(args.bctsa_sessid);
	if (session && link) {
		session->cb_wanted = true;
		if (nfs4_back_bind(session, link))
			dir = args.bctsa_dir == CDFC4_BACK ? CDFS4_BACK : CDFS4_BOTH;
	}
	pthread_mutex_unlock(&t->lock);
	rpc_link_put(link);
	if (!session)
		return NFS4ERR_BADSESSION;
	return nfs4_fits(c, xdr_put_fixed(out, args.bctsa_sessid, NFS4_SESSIONID_SIZE) && xdr_put_u32(out, dir) &&
				    xdr_put_bool(out, false));
}

nfsstat4 nfs4_op_backchannel_ctl(struct nfs4_compound *c)
{
	BACKCHANNEL_CTL4args args;

	if (!xdr_decode_BACKCHANNEL_CTL4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	pthread_mutex_lock(&t->lock);
	c->session->cb_program = args.bca_cb_program;
	cb_cred_set(c->session, args.bca_sec_parms.item, args.bca_sec_parms.count);
	pthread_mutex_unlock(&t->lock);
	return NFS4_OK;
}
