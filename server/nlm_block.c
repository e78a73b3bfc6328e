/*
 * nlm_block: lock requests that wait, and how their clients are told that they got what they asked for.
 *
 * Life of one: LOCK makes it and queues it in the lock table. When its turn comes the table gives the lock to its
 * owner and calls block_done(), which starts a fiber; the fiber calls GRANTED at the client until it answers. A CANCEL,
 * or the end of its client, takes it out before that.
 *
 * A client that answers "denied" does not wait any more, and the lock must go again, since nobody would ever give it
 * back. But it also says that when it learned of the lock in another way: it asked again, as Linux does every
 * 30 s, and was told. Therefore everything that tells the client what it has, or takes it away, settles the block
 * (nlm_block_settle), and only of one that is not settled does the answer count. One that could not be delivered at all
 * and was not settled within GRANT_TRIES is given back, too: a client that waits asks again much earlier.
 *
 * All under the mutex of nlm_host.c. No errors: who cannot be told is not told.
 */
#include <stdlib.h>

#include "server/nlm_internal.h"

#define GRANT_TRIES 7u
#define GRANTS_OF_HOST 16u /* at a time: one that does not answer must not take all fibers */
#define GRANT_TIMEOUT (5 * NSEC_PER_SEC)
#define GRANT_PAUSE (2 * NSEC_PER_SEC) /* doubled from try to try */

struct nlm_block {
	struct lock_waiter waiter;
	struct nlm_host *host;
	struct list_node node; /* of the host */
	struct lock_file_key key;
	struct lock_range range;
	struct lock_owner owner;
	bool granted, settled;
	uint64_t cookie;
	uint32_t fh_len;
	uint8_t *fh;
	uint8_t data[]; /* of the owner: svid, oh; then the file handle */
};

static _Atomic uint64_t next_cookie = 1;

static void block_unlink(struct nlm_block *b)
{
	nlm_lock();
	list_remove(&b->node);
	nlm_unlock();
}

void nlm_block_free(struct nlm_block *b)
{
	block_unlink(b);
	nlm_host_put(b->host);
	free(b);
}

void nlm_block_free_waiter(struct lock_waiter *waiter)
{
	nlm_block_free(container_of(waiter, struct nlm_block, waiter));
}

struct lock_waiter *nlm_block_waiter(struct nlm_block *b)
{
	return &b->waiter;
}

/* ------------------------------------------------------------------------------------------------
 * GRANTED
 */

static bool put_granted(struct rpc_outgoing *call, const struct nlm_block *b)
{
	struct xdr_out out;
	int32_t svid;

	memcpy(&svid, b->data, sizeof(svid));
	nlm4_testargs args = {
		.cookie = {(const uint8_t *)&b->cookie, sizeof(b->cookie)},
		.exclusive = b->range.exclusive,
		.alock = {.caller_name = {(const uint8_t *)"furrow", 6},
			.fh = {b->fh, b->fh_len},
			.oh = {b->data + sizeof(svid), b->owner.len - (uint32_t)sizeof(svid)},
			.svid = svid,
			.l_offset = b->range.first,
			.l_len = b->range.last == LOCK_TO_END ? 0 : b->range.last - b->range.first + 1},
	};
	xdr_out_init(&out, call->args, sizeof(call->args));
	if (!xdr_encode_nlm4_testargs(&out, &args))
		return false;
	call->args_bytes = (uint32_t)(out.p - out.base);
	return true;
}

/* 0: the client has it; -EACCES: it does not want it; else it could not be asked. */
static int grant_once(struct nlm_block *b, struct rpc_outgoing *call)
{
	struct xdr_in in;
	struct xdr_opaque cookie;
	uint32_t stat;

	nlm_host_outgoing(b->host, NLMPROC4_GRANTED, call);
	call->deadline = now_ns() + GRANT_TIMEOUT;
	if (!put_granted(call, b))
		return -EACCES;
	int rc = rpc_call_out(call);
	if (rc)
		return rc;
	xdr_in_init(&in, call->results, call->results_bytes, NULL);
	if (!xdr_get_opaque(&in, MAXNETOBJ_SZ, &cookie) || !xdr_get_u32(&in, &stat))
		return -EPROTO;
	return stat == NLM4_GRANTED ? 0 : stat == NLM4_DENIED_GRACE_PERIOD ? -EAGAIN : -EACCES;
}

static bool block_settled(const struct nlm_block *b)
{
	nlm_lock();
	bool settled = b->settled;
	nlm_unlock();
	return settled;
}

static void grant_fiber(void *arg)
{
	struct nlm_block *b = arg;
	struct rpc_outgoing *call = malloc(sizeof(*call));
	uint64_t pause = GRANT_PAUSE;
	int rc = -EAGAIN;

	for (unsigned i = 0; call && i < GRANT_TRIES && !block_settled(b); i++) {
		rc = grant_once(b, call);
		if (!rc || rc == -EACCES || !nlm_pause(pause))
			break;
		pause *= 2;
	}
	free(call);
	bool keep = !rc || block_settled(b) || nlm_stopping();
	if (!keep) {
		log_info("nlm", "lock given back that its client did not take error=\"%s\"",
			rc == -EACCES ? "refused" : strerror(-rc));
		lock_unset(lock_server_table(), &b->key, &b->owner, &b->range);
	}
	nlm_block_free(b);
	nlm_fiber_end();
}

static void block_done(struct lock_waiter *waiter, int result)
{
	struct nlm_block *b = container_of(waiter, struct nlm_block, waiter);

	if (result) {
		nlm_block_free(b);
		return;
	}
	unsigned granted = 0;
	nlm_lock();
	b->granted = true;
	list_foreach (n, nlm_host_blocks(b->host))
		granted += container_of(n, struct nlm_block, node)->granted;
	nlm_unlock();
	if (granted > GRANTS_OF_HOST ||
		!nlm_fiber_start(reactor_get((unsigned)(b->owner.client % reactor_count())), grant_fiber, b))
		nlm_block_free(b); /* the client asks again */
}

/* ------------------------------------------------------------------------------------------------
 * Life
 */

struct nlm_block *nlm_block_new(
	struct nlm_host *host, const struct lock_file_key *key, const nlm4_lock *lock, const struct lock_range *range)
{
	uint32_t owner_len = (uint32_t)sizeof(lock->svid) + lock->oh.len;
	struct nlm_block *b = calloc(1, sizeof(*b) + owner_len + lock->fh.len);

	if (!b)
		return NULL;
	b->waiter.done = block_done;
	b->host = host;
	b->key = *key;
	b->range = *range;
	b->cookie = atomic_fetch_add(&next_cookie, 1);
	memcpy(b->data, &lock->svid, sizeof(lock->svid));
	if (lock->oh.len)
		memcpy(b->data + sizeof(lock->svid), lock->oh.data, lock->oh.len);
	b->owner = (struct lock_owner){LOCK_KIND_NLM, nlm_host_client(host), b->data, owner_len};
	b->fh = b->data + owner_len;
	b->fh_len = lock->fh.len;
	memcpy(b->fh, lock->fh.data, lock->fh.len);
	nlm_host_hold(host);
	nlm_lock();
	list_push_back(nlm_host_blocks(host), &b->node);
	nlm_unlock();
	return b;
}

static bool block_is(const struct nlm_block *b, const struct lock_file_key *key, const struct lock_owner *owner)
{
	return b->key.ino == key->ino && b->key.fsid == key->fsid && b->key.gen == key->gen &&
	       b->owner.len == owner->len && !memcmp(b->data, owner->data, owner->len);
}

bool nlm_block_settle(struct nlm_host *host, const struct lock_file_key *key, const struct lock_owner *owner,
	const struct lock_range *range, bool request)
{
	bool found = false;

	nlm_lock();
	list_foreach (n, nlm_host_blocks(host)) {
		struct nlm_block *b = container_of(n, struct nlm_block, node);
		if (b->settled || !block_is(b, key, owner))
			continue;
		/* The request itself: it is not in the queue, so it was granted, though block_done() may be still to
		 * come. */
		bool same = request && b->range.first == range->first && b->range.last == range->last &&
			    b->range.exclusive == range->exclusive;
		bool overlaps = b->range.first <= range->last && range->first <= b->range.last;
		if (!same && !(b->granted && overlaps))
			continue;
		b->settled = true;
		found = true;
	}
	nlm_unlock();
	return found;
}
