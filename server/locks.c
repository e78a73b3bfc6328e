/*
 * locks: byte-range locks and share reservations (see locks.h).
 *
 * Files are spread over shards by hash; a shard's mutex guards its files, their entries, and the names of the owners
 * that have entries there. An owner is interned once in each shard where it has something, so comparing owners is
 * comparing pointers. An entry is a range that is held, a request that waits, or a share; it hangs in its file's list
 * and in its owner's, and file and owner go when their last entry does.
 *
 * A file's ranges are sorted by their first byte. Ranges of one owner do not overlap, and those of the same type do not
 * touch, so setting a range needs at most two new entries: itself, and the tail of one that it cuts in two. They are
 * taken before anything changes, and by a request that waits already when it is queued: granting it cannot fail.
 *
 * Whoever lets go of something looks through the file's queue in order of arrival, before the mutex is given up. The
 * waiters' callbacks come after that, so that they may use the table. A waiter that is no longer in the queue but not
 * yet told cannot be cancelled; that is why lock_cancel() takes a name and not a pointer.
 *
 * Before a request waits, it is looked for among those whom it would wait for, and whom they wait for (-EDEADLK): over
 * all shards, whose mutexes are held together for this, in their order; nothing else holds two. The search is bounded:
 * what it does not find waits, until somebody gives up.
 *
 * Memory is charged to the client, and so to the table, before it is taken (locks_client.c). Only the cut of an unlock
 * may go beyond a limit: giving back must not fail.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "server/locks_internal.h"

#define SHARDS 32u /* ThreadSanitizer knows 64 mutexes that a thread holds at a time */

struct lock_holder {
	struct lock_client *client;
	struct list entries;
	struct htable_node node;
	uint32_t len;
	uint8_t data[];
};

struct lock_file {
	struct lock_file_key key;
	struct list ranges, waiting, shares;
	struct htable_node node;
};

struct lock_entry {
	struct list_node in_file, in_holder;
	struct lock_file *file;
	struct lock_holder *holder;
	enum lock_state state;
	struct lock_range range;
	uint32_t access, deny;
	struct lock_waiter *waiter;
	struct lock_entry *spare[2]; /* of one that waits */
};

struct lock_shard {
	pthread_mutex_t mutex;
	struct htable files, holders;
} __attribute__((aligned(64)));

struct lock_table {
	struct lock_shard shard[SHARDS];
	struct lock_clients clients;
};

/* One call's way through the table: the shard is locked between enter() and leave(). */
struct lock_op {
	struct lock_table *table;
	struct lock_shard *shard;
	struct lock_file *file;	    /* NULL: nothing is known of it */
	struct lock_holder *holder; /* NULL: it has nothing in this shard */
	bool all;		    /* every shard is locked */
	struct list done;	    /* waiters to tell */
};

int lock_range_set(struct lock_range *range, uint64_t offset, uint64_t length, bool to_end, bool exclusive)
{
	if (!to_end && (!length || length > UINT64_MAX - offset))
		return -EINVAL;
	*range = (struct lock_range){offset, to_end ? LOCK_TO_END : offset + (length - 1), exclusive};
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Files, owners, entries
 */

static uint64_t key_hash(const struct lock_file_key *key)
{
	return hash_u64(key->ino ^ hash_u64(key->fsid + key->gen));
}

static bool key_equal(const struct lock_file_key *a, const struct lock_file_key *b)
{
	return a->ino == b->ino && a->gen == b->gen && a->fsid == b->fsid;
}

static struct lock_file *file_find(struct lock_shard *shard, const struct lock_file_key *key)
{
	uint64_t hash = key_hash(key);

	htable_foreach_hash (n, &shard->files, hash) {
		struct lock_file *f = container_of(n, struct lock_file, node);
		if (key_equal(&f->key, key))
			return f;
	}
	return NULL;
}

static struct lock_holder *holder_find(struct lock_shard *shard, const struct lock_owner *owner)
{
	uint64_t hash = lock_owner_hash(owner);

	htable_foreach_hash (n, &shard->holders, hash) {
		struct lock_holder *h = container_of(n, struct lock_holder, node);
		if (h->client->id == owner->client && h->client->kind == owner->kind && h->len == owner->len &&
			!memcmp(h->data, owner->data, h->len))
			return h;
	}
	return NULL;
}

static uint64_t holder_bytes(uint32_t len)
{
	return sizeof(struct lock_holder) + len;
}

/* Without entries it goes again in leave(). */
static int holder_make(struct lock_op *op, const struct lock_owner *owner)
{
	if (op->holder)
		return 0;
	struct lock_holder *h = malloc(holder_bytes(owner->len));
	struct lock_client *client = h ? lock_client_get(&op->table->clients, owner->kind, owner->client) : NULL;
	if (!client || !lock_charge(&op->table->clients, client, holder_bytes(owner->len), false)) {
		if (client)
			lock_client_put(&op->table->clients, client);
		free(h);
		return -ENOLCK;
	}
	h->client = client;
	list_init(&h->entries);
	h->len = owner->len;
	if (h->len)
		memcpy(h->data, owner->data, h->len);
	htable_insert(&op->shard->holders, &h->node, lock_owner_hash(owner));
	op->holder = h;
	return 0;
}

static int file_make(struct lock_op *op, const struct lock_file_key *key)
{
	if (op->file)
		return 0;
	struct lock_file *f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOLCK;
	f->key = *key;
	list_init(&f->ranges);
	list_init(&f->waiting);
	list_init(&f->shares);
	htable_insert(&op->shard->files, &f->node, key_hash(key));
	op->file = f;
	return 0;
}

static void holder_drop_if_idle(struct lock_op *op, struct lock_holder *h)
{
	if (!list_empty(&h->entries))
		return;
	htable_remove(&op->shard->holders, &h->node);
	lock_uncharge(&op->table->clients, h->client, holder_bytes(h->len));
	lock_client_put(&op->table->clients, h->client);
	if (op->holder == h)
		op->holder = NULL;
	free(h);
}

static void file_drop_if_idle(struct lock_op *op, struct lock_file *f)
{
	if (!list_empty(&f->ranges) || !list_empty(&f->waiting) || !list_empty(&f->shares))
		return;
	htable_remove(&op->shard->files, &f->node);
	if (op->file == f)
		op->file = NULL;
	free(f);
}

/* A file's own memory is charged with its entries: one file at most for each. */
#define ENTRY_BYTES (sizeof(struct lock_entry) + sizeof(struct lock_file))

/* An entry of op's holder and file, in no list yet. */
static struct lock_entry *entry_alloc(struct lock_op *op, bool force)
{
	struct lock_client *client = op->holder->client;

	if (!lock_charge(&op->table->clients, client, ENTRY_BYTES, force))
		return NULL;
	struct lock_entry *e = calloc(1, sizeof(*e));
	if (!e) {
		lock_uncharge(&op->table->clients, client, ENTRY_BYTES);
		return NULL;
	}
	e->file = op->file;
	e->holder = op->holder;
	list_node_init(&e->in_file);
	list_node_init(&e->in_holder);
	return e;
}

static void entry_free(struct lock_op *op, struct lock_entry *e)
{
	if (!e)
		return;
	for (unsigned i = 0; i < 2; i++)
		entry_free(op, e->spare[i]);
	list_remove(&e->in_file);
	list_remove(&e->in_holder);
	lock_uncharge(&op->table->clients, e->holder->client, ENTRY_BYTES);
	free(e);
}

static void range_insert(struct lock_entry *e)
{
	struct list_node *at = e->file->ranges.head.prev;

	e->state = LOCK_STATE_HELD;
	while (at != &e->file->ranges.head &&
		container_of(at, struct lock_entry, in_file)->range.first > e->range.first)
		at = at->prev;
	list_insert_after(at, &e->in_file);
	list_push_back(&e->holder->entries, &e->in_holder);
}

/* ------------------------------------------------------------------------------------------------
 * The way in and out
 */

static void enter_shard(struct lock_op *op, struct lock_table *t, struct lock_shard *shard)
{
	*op = (struct lock_op){.table = t, .shard = shard};
	list_init(&op->done);
	pthread_mutex_lock(&shard->mutex);
}

static void enter(
	struct lock_op *op, struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner)
{
	enter_shard(op, t, &t->shard[key_hash(key) >> 32 & (SHARDS - 1)]);
	op->file = file_find(op->shard, key);
	op->holder = owner ? holder_find(op->shard, owner) : NULL;
}

/* The same, with all shards locked. */
static void enter_all(
	struct lock_op *op, struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner)
{
	for (unsigned i = 0; i < SHARDS; i++)
		pthread_mutex_lock(&t->shard[i].mutex);
	*op = (struct lock_op){.table = t, .shard = &t->shard[key_hash(key) >> 32 & (SHARDS - 1)], .all = true};
	list_init(&op->done);
	op->file = file_find(op->shard, key);
	op->holder = holder_find(op->shard, owner);
}

/* Forgets what is not needed, gives the mutex up and then tells the waiters. */
static int leave(struct lock_op *op, int rc)
{
	if (op->file)
		file_drop_if_idle(op, op->file);
	if (op->holder)
		holder_drop_if_idle(op, op->holder);
	for (unsigned i = 0; op->all && i < SHARDS; i++)
		pthread_mutex_unlock(&op->table->shard[i].mutex);
	if (!op->all)
		pthread_mutex_unlock(&op->shard->mutex);
	list_foreach (n, &op->done) {
		struct lock_waiter *w = container_of(n, struct lock_waiter, node);
		list_remove(n);
		w->done(w, w->result);
	}
	return rc;
}

static void conflict_fill(struct lock_conflict *conflict, const struct lock_entry *e)
{
	if (!conflict)
		return;
	conflict->range = e->range;
	conflict->kind = e->holder->client->kind;
	conflict->client = e->holder->client->id;
	conflict->owner_len = e->holder->len;
	memcpy(conflict->owner, e->holder->data, e->holder->len);
}

/* ------------------------------------------------------------------------------------------------
 * Ranges
 */

static bool overlap(const struct lock_range *a, const struct lock_range *b)
{
	return a->first <= b->last && b->first <= a->last;
}

static bool touch(const struct lock_range *a, const struct lock_range *b)
{
	return overlap(a, b) || (a->last != LOCK_TO_END && a->last + 1 == b->first) ||
	       (b->last != LOCK_TO_END && b->last + 1 == a->first);
}

/* The first that keeps HOLDER (NULL: somebody who has nothing) from RANGE. */
static struct lock_entry *range_conflict(
	const struct lock_file *f, const struct lock_holder *holder, const struct lock_range *range)
{
	if (!f)
		return NULL;
	list_foreach (n, &f->ranges) {
		struct lock_entry *e = container_of(n, struct lock_entry, in_file);
		if (e->range.first > range->last)
			break;
		if (e->holder != holder && overlap(&e->range, range) && (e->range.exclusive || range->exclusive))
			return e;
	}
	return NULL;
}

/* Takes RANGE out of E, which overlaps it; *TAIL becomes what lies behind, when something lies before too. */
static void range_cut(
	struct lock_op *op, struct lock_entry *e, const struct lock_range *range, struct lock_entry **tail)
{
	bool before = e->range.first<range->first, behind = e->range.last> range->last;

	if (before && behind) {
		struct lock_entry *t = *tail;
		*tail = NULL;
		t->range = e->range;
		t->range.first = range->last + 1;
		e->range.last = range->first - 1;
		range_insert(t);
	} else if (before) {
		e->range.last = range->first - 1;
	} else if (behind) {
		/* Its place in the order changes. */
		e->range.first = range->last + 1;
		list_remove(&e->in_file);
		list_remove(&e->in_holder);
		range_insert(e);
	} else {
		entry_free(op, e);
	}
}

/*
 * SPARE[0] becomes HOLDER's lock on RANGE; what it had there goes, and what touches it and is of the same type becomes
 * part of it. Both spares are used or freed.
 */
static void range_apply(
	struct lock_op *op, struct lock_holder *holder, const struct lock_range *range, struct lock_entry *spare[2])
{
	struct lock_entry *lock = spare[0], *tail = spare[1];
	struct list mine;

	list_init(&mine);
	lock->range = *range;
	/* First those that are concerned, then their change, which moves entries in the list. */
	list_foreach (n, &lock->file->ranges) {
		struct lock_entry *e = container_of(n, struct lock_entry, in_file);
		if (e->holder == holder && touch(&e->range, range)) {
			list_remove(&e->in_file);
			list_push_back(&mine, &e->in_file);
		}
	}
	for (struct list_node *n; (n = list_pop_front(&mine));) {
		struct lock_entry *e = container_of(n, struct lock_entry, in_file);
		if (e->range.exclusive == range->exclusive) {
			if (e->range.first < lock->range.first)
				lock->range.first = e->range.first;
			if (e->range.last > lock->range.last)
				lock->range.last = e->range.last;
			entry_free(op, e);
			continue;
		}
		list_remove(&e->in_holder);
		range_insert(e);
		if (overlap(&e->range, range))
			range_cut(op, e, range, &tail);
	}
	range_insert(lock);
	entry_free(op, tail);
	spare[0] = spare[1] = NULL;
}

/* ------------------------------------------------------------------------------------------------
 * Waiting requests
 */

static void waiter_end(struct lock_op *op, struct lock_entry *e, int result)
{
	struct lock_waiter *w = e->waiter;

	w->entry = NULL;
	w->result = result;
	list_push_back(&op->done, &w->node);
	entry_free(op, e);
}

/* One pass in order of arrival; true: somebody got something, which may be less than that owner had. */
static bool waiters_pass(struct lock_op *op, struct lock_file *file)
{
	bool granted = false;

	list_foreach (n, &file->waiting) {
		struct lock_entry *e = container_of(n, struct lock_entry, in_file);
		struct lock_holder *holder = e->holder;
		if (range_conflict(file, holder, &e->range))
			continue;
		if (!e->waiter->notify_only) {
			range_apply(op, holder, &e->range, e->spare);
			granted = true;
		}
		waiter_end(op, e, 0);
		holder_drop_if_idle(op, holder);
	}
	return granted;
}

/* After something was given back on FILE. */
static void waiters_look(struct lock_op *op, struct lock_file *file)
{
	while (!list_empty(&file->waiting) && waiters_pass(op, file))
		;
}

static bool range_equal(const struct lock_range *a, const struct lock_range *b)
{
	return a->first == b->first && a->last == b->last && a->exclusive == b->exclusive;
}

static struct lock_entry *waiter_find(const struct lock_op *op, const struct lock_range *range)
{
	if (!op->file || !op->holder)
		return NULL;
	list_foreach (n, &op->file->waiting) {
		struct lock_entry *e = container_of(n, struct lock_entry, in_file);
		if (e->holder == op->holder && range_equal(&e->range, range))
			return e;
	}
	return NULL;
}

/* Queues WAITER with its two spares. */
static int waiter_queue(
	struct lock_op *op, const struct lock_range *range, struct lock_waiter *waiter, struct lock_entry *spare[2])
{
	struct lock_entry *e = entry_alloc(op, false);

	if (!e)
		return -ENOLCK;
	e->state = LOCK_STATE_WAITING;
	e->range = *range;
	e->waiter = waiter;
	memcpy(e->spare, spare, sizeof(e->spare));
	spare[0] = spare[1] = NULL;
	waiter->key = op->file->key;
	waiter->range = *range;
	waiter->entry = e;
	list_node_init(&waiter->node);
	list_push_back(&op->file->waiting, &e->in_file);
	list_push_back(&op->holder->entries, &e->in_holder);
	return -EINPROGRESS;
}

/* ------------------------------------------------------------------------------------------------
 * Deadlocks
 */

#define CHASE_OWNERS 64u
#define CHASE_STEPS 8192u

/* Those whom WANTING would wait for, in the order in which they were met, each in the shard where that was. */
struct chase {
	const struct lock_holder *wanting;
	const struct lock_holder *met[CHASE_OWNERS];
	unsigned count, steps;
	bool found;
};

static bool owner_same(const struct lock_holder *a, const struct lock_holder *b)
{
	return a == b || (a->client == b->client && a->len == b->len && !memcmp(a->data, b->data, a->len));
}

static void chase_meet(struct chase *c, const struct lock_holder *holder)
{
	if (owner_same(holder, c->wanting))
		c->found = true;
	for (unsigned i = 0; i < c->count; i++)
		if (owner_same(holder, c->met[i]))
			return;
	if (c->count < CHASE_OWNERS)
		c->met[c->count++] = holder;
}

/* Everybody who keeps HOLDER from RANGE. */
static void chase_blockers(
	struct chase *c, const struct lock_file *file, const struct lock_holder *holder, const struct lock_range *range)
{
	list_foreach (n, &file->ranges) {
		struct lock_entry *e = container_of(n, struct lock_entry, in_file);
		if (e->range.first > range->last || c->found || c->steps++ > CHASE_STEPS)
			return;
		if (e->holder != holder && overlap(&e->range, range) && (e->range.exclusive || range->exclusive))
			chase_meet(c, e->holder);
	}
}

/* Whether somebody in the way of RANGE waits, by way of others maybe, for op's holder. All shards are locked. */
static bool deadlock(struct lock_op *op, const struct lock_range *range)
{
	struct chase c = {.wanting = op->holder};

	chase_blockers(&c, op->file, op->holder, range);
	for (unsigned i = 0; i < c.count && !c.found; i++) {
		const struct lock_owner owner = {
			c.met[i]->client->kind, c.met[i]->client->id, c.met[i]->data, c.met[i]->len};
		for (unsigned s = 0; s < SHARDS && !c.found; s++) {
			struct lock_holder *h = holder_find(&op->table->shard[s], &owner);
			if (!h)
				continue;
			list_foreach (n, &h->entries) {
				struct lock_entry *e = container_of(n, struct lock_entry, in_holder);
				if (c.steps++ > CHASE_STEPS)
					return false;
				if (e->state == LOCK_STATE_WAITING && !e->waiter->notify_only)
					chase_blockers(&c, e->file, h, &e->range);
			}
		}
	}
	return c.found;
}

/* ------------------------------------------------------------------------------------------------
 * The calls for ranges
 */

static int set_or_queue(
	struct lock_op *op, const struct lock_range *range, struct lock_waiter *waiter, struct lock_conflict *conflict)
{
	struct lock_entry *spare[2] = {entry_alloc(op, false), entry_alloc(op, false)};
	int rc = -ENOLCK;

	if (spare[0] && spare[1]) {
		struct lock_entry *other = range_conflict(op->file, op->holder, range);
		if (!other) {
			range_apply(op, op->holder, range, spare);
			waiters_look(op, op->file); /* it may be less than before */
			rc = 0;
		} else {
			conflict_fill(conflict, other);
			rc = !waiter			      ? -EAGAIN
			     : op->all && deadlock(op, range) ? -EDEADLK
							      : waiter_queue(op, range, waiter, spare);
		}
	}
	entry_free(op, spare[0]);
	entry_free(op, spare[1]);
	return rc;
}

int lock_set(struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner,
	const struct lock_range *range, struct lock_waiter *waiter, struct lock_conflict *conflict)
{
	struct lock_op op;

	if (owner->len > LOCK_OWNER_MAX || range->first > range->last)
		return -EINVAL;
	if (waiter && !waiter->notify_only)
		enter_all(&op, t, key, owner);
	else
		enter(&op, t, key, owner);
	struct lock_entry *other = waiter && waiter_find(&op, range) ? range_conflict(op.file, op.holder, range) : NULL;
	if (other) {
		conflict_fill(conflict, other);
		return leave(&op, -EALREADY);
	}
	int rc = file_make(&op, key);
	if (!rc)
		rc = holder_make(&op, owner);
	if (!rc)
		rc = set_or_queue(&op, range, waiter, conflict);
	return leave(&op, rc);
}

int lock_test(struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner,
	const struct lock_range *range, struct lock_conflict *conflict)
{
	struct lock_op op;

	enter(&op, t, key, owner);
	struct lock_entry *other = range_conflict(op.file, op.holder, range);
	if (other)
		conflict_fill(conflict, other);
	return leave(&op, other ? -EAGAIN : 0);
}

int lock_unset(struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner,
	const struct lock_range *range)
{
	struct lock_op op;

	enter(&op, t, key, owner);
	if (!op.file || !op.holder)
		return leave(&op, 0);
	struct lock_entry *tail = entry_alloc(&op, true);
	if (!tail)
		return leave(&op, -ENOLCK);
	list_foreach (n, &op.file->ranges) {
		struct lock_entry *e = container_of(n, struct lock_entry, in_file);
		/* A tail that was put behind is met again, and does not overlap. */
		if (e->holder == op.holder && overlap(&e->range, range))
			range_cut(&op, e, range, &tail);
	}
	entry_free(&op, tail);
	waiters_look(&op, op.file);
	return leave(&op, 0);
}

struct lock_waiter *lock_cancel(struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner,
	const struct lock_range *range)
{
	struct lock_op op;
	struct lock_waiter *waiter = NULL;

	enter(&op, t, key, owner);
	struct lock_entry *e = waiter_find(&op, range);
	if (e) {
		waiter = e->waiter;
		waiter->entry = NULL;
		entry_free(&op, e);
	}
	leave(&op, 0);
	return waiter;
}

unsigned lock_count(struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner)
{
	struct lock_op op;
	unsigned count = 0;

	enter(&op, t, key, owner);
	if (op.file && op.holder)
		list_foreach (n, &op.holder->entries) {
			struct lock_entry *e = container_of(n, struct lock_entry, in_holder);
			count += e->file == op.file && e->state == LOCK_STATE_HELD;
		}
	leave(&op, 0);
	return count;
}

/* All that HOLDER has (on FILE; NULL: in the shard). Others' requests are looked at afterwards. */
static void holder_release(struct lock_op *op, struct lock_holder *holder, const struct lock_file *file, bool shares)
{
	list_foreach (n, &holder->entries) {
		struct lock_entry *e = container_of(n, struct lock_entry, in_holder);
		if ((file && e->file != file) || (e->state == LOCK_STATE_SHARE && !shares))
			continue;
		if (e->state == LOCK_STATE_WAITING)
			waiter_end(op, e, -ECANCELED);
		else
			entry_free(op, e);
	}
}

void lock_release_owner(struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner)
{
	struct lock_op op;

	enter(&op, t, key, owner);
	if (op.file && op.holder) {
		holder_release(&op, op.holder, op.file, false);
		waiters_look(&op, op.file);
	}
	leave(&op, 0);
}

static void shard_release(struct lock_op *op, enum lock_kind kind, uint64_t client)
{
	struct htable_cursor cursor = {0};

	for (struct htable_node *n; (n = htable_next(&op->shard->holders, &cursor));) {
		struct lock_holder *h = container_of(n, struct lock_holder, node);
		if (h->client->id != client || h->client->kind != kind)
			continue;
		holder_release(op, h, NULL, true);
		holder_drop_if_idle(op, h);
	}
	cursor = (struct htable_cursor){0};
	for (struct htable_node *n; (n = htable_next(&op->shard->files, &cursor));) {
		struct lock_file *f = container_of(n, struct lock_file, node);
		waiters_look(op, f);
		file_drop_if_idle(op, f);
	}
}

void lock_release_client(struct lock_table *t, enum lock_kind kind, uint64_t client)
{
	for (unsigned i = 0; i < SHARDS; i++) {
		struct lock_op op;
		enter_shard(&op, t, &t->shard[i]);
		shard_release(&op, kind, client);
		leave(&op, 0);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Shares
 */

static struct lock_entry *share_find(const struct lock_op *op)
{
	if (!op->file || !op->holder)
		return NULL;
	list_foreach (n, &op->file->shares) {
		struct lock_entry *e = container_of(n, struct lock_entry, in_file);
		if (e->holder == op->holder)
			return e;
	}
	return NULL;
}

static struct lock_entry *share_conflict(const struct lock_op *op, uint32_t access, uint32_t deny)
{
	if (!op->file)
		return NULL;
	list_foreach (n, &op->file->shares) {
		struct lock_entry *e = container_of(n, struct lock_entry, in_file);
		if (e->holder != op->holder && ((access & e->deny) || (deny & e->access)))
			return e;
	}
	return NULL;
}

static int share_add(
	struct lock_op *op, const struct lock_file_key *key, const struct lock_owner *owner, struct lock_entry **share)
{
	int rc = file_make(op, key);

	if (!rc)
		rc = holder_make(op, owner);
	if (rc)
		return rc;
	struct lock_entry *e = entry_alloc(op, false);
	if (!e)
		return -ENOLCK;
	e->state = LOCK_STATE_SHARE;
	list_push_back(&op->file->shares, &e->in_file);
	list_push_back(&op->holder->entries, &e->in_holder);
	*share = e;
	return 0;
}

int lock_share_set(struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner,
	uint32_t access, uint32_t deny, struct lock_conflict *conflict)
{
	struct lock_op op;

	if (owner->len > LOCK_OWNER_MAX)
		return -EINVAL;
	enter(&op, t, key, owner);
	struct lock_entry *other = share_conflict(&op, access, deny);
	if (other) {
		conflict_fill(conflict, other);
		return leave(&op, -EAGAIN);
	}
	struct lock_entry *mine = share_find(&op);
	int rc = mine ? 0 : share_add(&op, key, owner, &mine);
	if (!rc) {
		mine->access = access;
		mine->deny = deny;
	}
	return leave(&op, rc);
}

int lock_share_test(struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner,
	uint32_t access, uint32_t deny)
{
	struct lock_op op;

	enter(&op, t, key, owner);
	return leave(&op, share_conflict(&op, access, deny) ? -EAGAIN : 0);
}

bool lock_share_get(struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner,
	uint32_t *access, uint32_t *deny)
{
	struct lock_op op;

	enter(&op, t, key, owner);
	struct lock_entry *mine = share_find(&op);
	if (mine) {
		*access = mine->access;
		*deny = mine->deny;
	}
	leave(&op, 0);
	return mine != NULL;
}

void lock_share_unset(struct lock_table *t, const struct lock_file_key *key, const struct lock_owner *owner)
{
	struct lock_op op;

	enter(&op, t, key, owner);
	entry_free(&op, share_find(&op));
	leave(&op, 0);
}

/* ------------------------------------------------------------------------------------------------
 * The table as a whole
 */

struct lock_table *lock_table_create(const struct lock_limits *limits)
{
	struct lock_table *t = aligned_alloc(64, sizeof(*t));

	if (!t)
		return NULL;
	memset(t, 0, sizeof(*t));
	int rc = lock_clients_init(&t->clients, limits);
	for (unsigned i = 0; i < SHARDS; i++) {
		pthread_mutex_init(&t->shard[i].mutex, NULL);
		if (!rc)
			rc = htable_init(&t->shard[i].files, 16);
		if (!rc)
			rc = htable_init(&t->shard[i].holders, 16);
	}
	if (rc) {
		lock_table_destroy(t);
		return NULL;
	}
	return t;
}

static void shard_fini(struct lock_op *op)
{
	struct htable_cursor cursor = {0};

	for (struct htable_node *n; op->shard->holders.bucket && (n = htable_next(&op->shard->holders, &cursor));) {
		struct lock_holder *h = container_of(n, struct lock_holder, node);
		holder_release(op, h, NULL, true);
		holder_drop_if_idle(op, h);
	}
	cursor = (struct htable_cursor){0};
	for (struct htable_node *n; op->shard->files.bucket && (n = htable_next(&op->shard->files, &cursor));)
		file_drop_if_idle(op, container_of(n, struct lock_file, node));
}

void lock_table_destroy(struct lock_table *t)
{
	if (!t)
		return;
	for (unsigned i = 0; i < SHARDS; i++) {
		struct lock_op op = {.table = t, .shard = &t->shard[i]};
		list_init(&op.done);
		shard_fini(&op);
		htable_fini(&t->shard[i].files);
		htable_fini(&t->shard[i].holders);
		pthread_mutex_destroy(&t->shard[i].mutex);
	}
	lock_clients_fini(&t->clients);
	free(t);
}

static void entries_tell(const struct list *entries, void (*fn)(void *arg, const struct lock_info *info), void *arg)
{
	list_foreach (n, entries) {
		const struct lock_entry *e = container_of(n, struct lock_entry, in_file);
		const struct lock_holder *h = e->holder;
		struct lock_info info = {e->file->key, {h->client->kind, h->client->id, h->data, h->len}, e->state,
			e->range, e->access, e->deny};
		fn(arg, &info);
	}
}

void lock_foreach(struct lock_table *t, void (*fn)(void *arg, const struct lock_info *info), void *arg)
{
	for (unsigned i = 0; i < SHARDS; i++) {
		struct lock_op op;
		struct htable_cursor cursor = {0};
		enter_shard(&op, t, &t->shard[i]);
		for (struct htable_node *n; (n = htable_next(&op.shard->files, &cursor));) {
			struct lock_file *f = container_of(n, struct lock_file, node);
			entries_tell(&f->ranges, fn, arg);
			entries_tell(&f->waiting, fn, arg);
			entries_tell(&f->shares, fn, arg);
		}
		leave(&op, 0);
	}
}

struct lock_clients *lock_table_clients(struct lock_table *t)
{
	return &t->clients;
}

static struct lock_table *_Atomic server_table;

struct lock_table *lock_server_table(void)
{
	return atomic_load(&server_table);
}

void lock_server_table_set(struct lock_table *table)
{
	atomic_store(&server_table, table);
}
