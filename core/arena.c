/*
 * The buffer arena: where all payload lives.
 *
 * One mapping, cut into pieces of 256 KiB. A piece that is in use serves one size class (4 KiB << 0..6) and goes back
 * to the list of empty ones when all of its buffers are free; allocations come from the fullest piece of the class,
 * so that the emptiest drain. The header of a buffer stands in an array beside the data, at the index of its
 * first 4 KiB block, and costs 1 % of the arena.
 *
 * Who touches what: pieces, headers of free buffers and the queues of waiters are under one mutex, held for a few
 * instructions. Before it stands, on each reactor, a small cache per class: last in, first out, without a lock,
 * filled and emptied in batches.
 *
 * When there is none: a fiber in buf_alloc() queues with a ticket and asks every reactor to empty its cache. From
 * then on, while anybody waits, freed buffers pass by the caches, and each is given to the oldest waiter that it can
 * serve: a buffer in a piece serves its class, an empty piece serves any. So memory cannot hide in a cache, and no
 * later request overtakes an earlier one of its size. Caches of the layers above (struct buf_reserve) are asked too, on
 * their reactors, and give until nobody waits any more or they are empty.
 *
 * The mapping is registered with every ring in pieces, or with none (fixed_index -1 everywhere): the layers above
 * then use ordinary addresses, which costs the kernel a page look-up for each command.
 */
#include "core/core_internal.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#if CORE_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

#define HUGE_PAGE (2ull << 20)
#define PIECE_BLOCKS (ARENA_PIECE / BLOCK_BYTES)
#define REGISTER_MOST 16384u /* what the kernel takes */
#define FULLNESS 4	     /* lists of a class: 0 is the fullest */
#define CACHE_CLASS_MOST (1u << 20)

struct piece {
	struct list_node node; /* `empty` or a list of its class; in none when full */
	uint64_t used;	       /* a bit for each buffer */
	uint8_t class, count, total;
};

struct buf_waiter {
	struct list_node node;
	unsigned class;
	uint64_t ticket;
	struct buf *buf;
	struct reactor *reactor;
	struct fiber *fiber;
	struct mail mail;
};

static struct {
	uint8_t *base, *mapping;
	uint64_t bytes, mapping_bytes, bufs_bytes;
	unsigned pieces, reactors;
	struct piece *piece;
	struct buf *bufs;
	struct buf *zero;
	bool registered;
	unsigned cache_most[BUF_CLASSES];

	pthread_mutex_t lock;
	struct list empty;
	struct list partial[BUF_CLASSES][FULLNESS];
	struct list waiters[BUF_CLASSES];
	struct list reserves; /* struct buf_reserve */
	uint64_t ticket;
	_Atomic unsigned waiting;
	_Atomic uint64_t free_bytes; /* but for the caches */
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ------------------------------------------------------------------------------------------------
 * Pieces: under the lock
 */

static inline uint32_t class_bytes(unsigned class)
{
	return BLOCK_BYTES << class;
}

static inline unsigned class_of(uint32_t size)
{
	return size <= BLOCK_BYTES ? 0 : 32u - (unsigned)__builtin_clz((size - 1) >> BLOCK_SHIFT);
}

static struct list *piece_list(const struct piece *p)
{
	unsigned room = (unsigned)(p->total - p->count) * FULLNESS / (p->total + 1u);
	return &arena.partial[p->class][room];
}

static struct piece *class_fullest(unsigned class)
{
	for (unsigned i = 0; i < FULLNESS; i++) {
		struct list_node *n = list_first(&arena.partial[class][i]);
		if (n)
			return container_of(n, struct piece, node);
	}
	return NULL;
}

static bool class_has(unsigned class)
{
	return !list_empty(&arena.empty) || class_fullest(class);
}

static struct buf *piece_alloc(unsigned class)
{
	struct piece *p = class_fullest(class);
	if (!p) {
		struct list_node *n = list_first(&arena.empty);
		if (!n)
			return NULL;
		p = container_of(n, struct piece, node);
		p->class = (uint8_t) class;
		p->total = (uint8_t)(PIECE_BLOCKS >> class);
		p->count = 0;
		p->used = 0;
	}
	unsigned i = (unsigned)__builtin_ctzll(~p->used);
	p->used |= 1ull << i;
	p->count++;
	list_remove(&p->node);
	if (p->count < p->total)
		list_push_front(piece_list(p), &p->node);
	atomic_fetch_sub_explicit(&arena.free_bytes, class_bytes(class), memory_order_relaxed);

	size_t index = (size_t)(p - arena.piece);
	struct buf *buf = &arena.bufs[index * PIECE_BLOCKS + ((size_t)i << class)];
	buf->data = arena.base + index * ARENA_PIECE + (size_t)i * class_bytes(class);
	buf->size = class_bytes(class);
	buf->fixed_index = arena.registered && index < REGISTER_MOST ? (int32_t)index : -1;
	list_node_init(&buf->node);
	return buf;
}

static void piece_free(struct buf *buf)
{
	size_t block = (size_t)(buf - arena.bufs);
	struct piece *p = &arena.piece[block / PIECE_BLOCKS];
	uint64_t bit = 1ull << ((block % PIECE_BLOCKS) >> p->class);

	assert(p->used & bit);
	p->used &= ~bit;
	p->count--;
	list_remove(&p->node);
	list_push_front(p->count ? piece_list(p) : &arena.empty, &p->node);
	atomic_fetch_add_explicit(&arena.free_bytes, buf->size, memory_order_relaxed);
}

/* ------------------------------------------------------------------------------------------------
 * Waiters
 */

static void waiter_granted(void *arg)
{
	struct buf_waiter *w = arg;
	fiber_unpark(w->fiber);
}

/* Gives what became free to those who wait for it, the oldest first. Under the lock. */
static void waiters_serve(void)
{
	while (atomic_load_explicit(&arena.waiting, memory_order_relaxed)) {
		struct buf_waiter *oldest = NULL;
		for (unsigned c = 0; c < BUF_CLASSES; c++) {
			struct list_node *n = list_first(&arena.waiters[c]);
			if (!n || !class_has(c))
				continue;
			struct buf_waiter *w = container_of(n, struct buf_waiter, node);
			if (!oldest || w->ticket < oldest->ticket)
				oldest = w;
		}
		if (!oldest)
			return;
		list_remove(&oldest->node);
		atomic_fetch_sub(&arena.waiting, 1);
		oldest->buf = piece_alloc(oldest->class);
		/* The waiter may be gone as soon as its reactor has the message. */
		oldest->mail = (struct mail){.fn = waiter_granted, .arg = oldest};
		reactor_mail(oldest->reactor, &oldest->mail);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Caches: each touched by its reactor only
 */

static inline uint32_t cache_count(const struct buf_cache *c)
{
	return atomic_load_explicit(&c->count, memory_order_relaxed);
}

/* The count after CHANGE. */
static inline uint32_t cache_change(struct buf_cache *c, int change)
{
	uint32_t count = cache_count(c) + (uint32_t)change;
	atomic_store_explicit(&c->count, count, memory_order_relaxed);
	return count;
}

/* Gives back all but KEEP buffers of a class, the oldest first. Under the lock. */
static void cache_shrink(struct reactor *r, unsigned class, unsigned keep)
{
	struct buf_cache *c = &r->cache[class];
	while (cache_count(c) > keep) {
		struct list_node *n = list_last(&c->list);
		list_remove(n);
		cache_change(c, -1);
		piece_free(container_of(n, struct buf, node));
	}
}

static void cache_flush(struct reactor *r)
{
	for (unsigned c = 0; c < BUF_CLASSES; c++)
		cache_shrink(r, c, 0);
}

static void flush_on_reactor(void *arg)
{
	struct reactor *r = arg;
	atomic_store(&r->flush_posted, false);
	pthread_mutex_lock(&arena.lock);
	cache_flush(r);
	waiters_serve();
	pthread_mutex_unlock(&arena.lock);
}

static void flush_others(struct reactor *self)
{
	for (unsigned i = 0; i < reactor_count(); i++) {
		struct reactor *r = reactor_get(i);
		if (r == self || atomic_exchange(&r->flush_posted, true))
			continue;
		r->flush_mail = (struct mail){.fn = flush_on_reactor, .arg = r};
		reactor_mail(r, &r->flush_mail);
	}
}

/* A few more for the cache, in the same hold of the lock; only while nobody waits. */
static void cache_fill(struct reactor *r, unsigned class)
{
	struct buf_cache *c = &r->cache[class];
	unsigned want = (64u * 1024) / class_bytes(class), most = arena.cache_most[class] / 2;
	if (want > most)
		want = most;
	if (atomic_load_explicit(&arena.waiting, memory_order_relaxed))
		return;
	for (unsigned i = 1; i < want && class_fullest(class); i++) {
		struct buf *buf = piece_alloc(class);
		list_push_back(&c->list, &buf->node);
		cache_change(c, 1);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Reserves: the list and `posted` are under the lock; whoever gives does it without
 */

#define GIVE_BYTES (1u << 20)	     /* asked of a reserve at a time */
#define GIVE_MOST (16u * GIVE_BYTES) /* before its reactor turns to something else */
#define RESERVES_OWN 16u	     /* of one reactor that are asked by a fiber of it */

static void reserve_run(void *arg);

/* Asks those of other reactors. Under the lock. */
static void reserves_post(struct reactor *self)
{
	list_foreach (n, &arena.reserves) {
		struct buf_reserve *reserve = container_of(n, struct buf_reserve, node);

		if (reserve->reactor == self || reserve->posted)
			continue;
		reserve->posted = true;
		reserve->mail = (struct mail){.fn = reserve_run, .arg = reserve};
		reactor_mail(reserve->reactor, &reserve->mail);
	}
}

/* For a request of another reactor, which may wait or may only have tried: gives a little, or until nobody waits. */
static void reserve_run(void *arg)
{
	struct buf_reserve *reserve = arg;
	uint64_t given = 0, now = 0;

	while (!reserve->removed && given < GIVE_MOST) {
		now = reserve->give(reserve, GIVE_BYTES);
		given += now;
		if (!now || !atomic_load(&arena.waiting))
			break;
	}
	pthread_mutex_lock(&arena.lock);
	cache_flush(reserve->reactor);
	waiters_serve();
	reserve->posted = false;
	if (now && !reserve->removed && atomic_load(&arena.waiting)) {
		reserve->posted = true;
		reactor_mail(reserve->reactor, &reserve->mail);
	}
	pthread_mutex_unlock(&arena.lock);
}

void buf_reserve_add(struct buf_reserve *reserve)
{
	reserve->reactor = reactor_current;
	reserve->posted = reserve->removed = false;
	pthread_mutex_lock(&arena.lock);
	list_push_back(&arena.reserves, &reserve->node);
	pthread_mutex_unlock(&arena.lock);
}

void buf_reserve_remove(struct buf_reserve *reserve)
{
	bool posted;

	pthread_mutex_lock(&arena.lock);
	list_remove(&reserve->node);
	reserve->removed = true;
	pthread_mutex_unlock(&arena.lock);
	do {
		pthread_mutex_lock(&arena.lock);
		posted = reserve->posted;
		pthread_mutex_unlock(&arena.lock);
		if (posted)
			fiber_yield();
	} while (posted);
}

/* ------------------------------------------------------------------------------------------------
 * Buffers
 */

static inline struct buf *buf_hand_out(struct buf *buf)
{
	ASAN_UNPOISON_MEMORY_REGION(buf->data, buf->size);
	atomic_store_explicit(&buf->refs, 1, memory_order_relaxed);
	return buf;
}

static inline struct buf *cache_take(struct reactor *r, unsigned class)
{
	struct list_node *n = r ? list_pop_front(&r->cache[class].list) : NULL;
	if (!n)
		return NULL;
	cache_change(&r->cache[class], -1);
	return container_of(n, struct buf, node);
}

/* From the pieces, after this reactor's own cache if there is no other way. Under the lock. */
static struct buf *buf_find(struct reactor *r, unsigned class)
{
	struct buf *buf = piece_alloc(class);
	if (buf && r)
		cache_fill(r, class);
	if (!buf && r) {
		cache_flush(r);
		waiters_serve();
		buf = piece_alloc(class);
	}
	return buf;
}

/* When there is none: from what reserves of this reactor give, and others are asked for the next time. */
static struct buf *buf_from_reserves(struct reactor *r, unsigned class)
{
	struct buf_reserve *own[RESERVES_OWN];
	struct buf *buf = NULL;
	unsigned n = 0;

	pthread_mutex_lock(&arena.lock);
	list_foreach (node, &arena.reserves) {
		struct buf_reserve *reserve = container_of(node, struct buf_reserve, node);

		if (r && reserve->reactor == r && n < RESERVES_OWN)
			own[n++] = reserve;
	}
	reserves_post(r);
	pthread_mutex_unlock(&arena.lock);
	for (unsigned i = 0; i < n && !buf; i++) {
		while (!buf && own[i]->give(own[i], GIVE_BYTES)) {
			pthread_mutex_lock(&arena.lock);
			buf = buf_find(r, class);
			pthread_mutex_unlock(&arena.lock);
		}
	}
	return buf;
}

/* The cache of R has none. */
static __attribute__((noinline)) struct buf *buf_try_find(struct reactor *r, unsigned class)
{
	pthread_mutex_lock(&arena.lock);
	struct buf *buf = buf_find(r, class);
	pthread_mutex_unlock(&arena.lock);
	if (!buf)
		buf = buf_from_reserves(r, class);
	if (buf)
		return buf_hand_out(buf);
	flush_others(r);
	return NULL;
}

struct buf *buf_try_alloc(uint32_t size)
{
	struct reactor *r = reactor_current;
	unsigned class = class_of(size);
	assert(size <= BUF_MAX);

	struct buf *buf = cache_take(r, class);
	return buf ? buf_hand_out(buf) : buf_try_find(r, class);
}

struct buf *buf_alloc(uint32_t size)
{
	struct reactor *r = reactor_current;
	unsigned class = class_of(size);
	assert(r && r->current && size <= BUF_MAX);

	struct buf *buf = cache_take(r, class);
	if (buf)
		return buf_hand_out(buf);
	struct buf_waiter w = {.class = class, .reactor = r, .fiber = r->current};
	pthread_mutex_lock(&arena.lock);
	buf = buf_find(r, class);
	pthread_mutex_unlock(&arena.lock);
	if (buf || (buf = buf_from_reserves(r, class)))
		return buf_hand_out(buf);
	pthread_mutex_lock(&arena.lock);
	buf = buf_find(r, class);
	if (!buf) {
		w.ticket = arena.ticket++;
		list_push_back(&arena.waiters[class], &w.node);
		atomic_fetch_add(&arena.waiting, 1);
		reserves_post(r); /* again: those that ran meanwhile saw nobody wait */
	}
	pthread_mutex_unlock(&arena.lock);
	if (!buf) {
		counter_add(&metric_buf_waits, 1);
		flush_others(r);
		fiber_park();
		buf = w.buf;
		assert(buf);
	}
	return buf_hand_out(buf);
}

struct buf *buf_ref(struct buf *buf)
{
	uint32_t old = atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);
	assert(old > 0);
	(void)old;
	return buf;
}

/* What is rare stands apart: the way into a cache and out of it needs no room on the stack. */
static __attribute__((noinline)) void cache_spill(struct reactor *r, unsigned class, unsigned keep)
{
	pthread_mutex_lock(&arena.lock);
	cache_shrink(r, class, keep);
	waiters_serve();
	pthread_mutex_unlock(&arena.lock);
}

static __attribute__((noinline)) void piece_give(struct buf *buf)
{
	pthread_mutex_lock(&arena.lock);
	piece_free(buf);
	waiters_serve();
	pthread_mutex_unlock(&arena.lock);
}

/* Nobody holds BUF any more. */
static inline void buf_free(struct buf *buf)
{
	struct reactor *r = reactor_current;
	unsigned class = class_of(buf->size), most = arena.cache_most[class];

	ASAN_POISON_MEMORY_REGION(buf->data, buf->size);
	if (r && most && !atomic_load_explicit(&arena.waiting, memory_order_relaxed)) {
		list_push_front(&r->cache[class].list, &buf->node);
		if (cache_change(&r->cache[class], 1) > most)
			cache_spill(r, class, most / 2);
	} else {
		piece_give(buf);
	}
}

void buf_put(struct buf *buf)
{
	if (!buf)
		return;
	/* The last reference is the caller's own, and nobody can take another from it: no locked instruction then. */
	uint32_t old = atomic_load_explicit(&buf->refs, memory_order_acquire);
	if (old == 1)
		atomic_store_explicit(&buf->refs, 0, memory_order_relaxed);
	else
		old = atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel);
	assert(old > 0);
	if (old == 1)
		buf_free(buf);
}

struct buf *buf_zero(void)
{
	return arena.zero;
}

void arena_region(void **base, uint64_t *bytes)
{
	*base = arena.base;
	*bytes = arena.bytes;
}

bool buf_wanted(void)
{
	return atomic_load_explicit(&arena.waiting, memory_order_relaxed) != 0;
}

uint64_t arena_total_bytes(void)
{
	return arena.bytes;
}

uint64_t arena_free_bytes(void)
{
	uint64_t bytes = atomic_load_explicit(&arena.free_bytes, memory_order_relaxed);
	for (unsigned i = 0; i < reactor_count(); i++)
		for (unsigned c = 0; c < BUF_CLASSES; c++)
			bytes += (uint64_t)cache_count(&reactor_get(i)->cache[c]) * class_bytes(c);
	return bytes;
}

/* ------------------------------------------------------------------------------------------------
 * Start and stop
 */

/* Huge pages if some were set aside, else ordinary ones that the kernel may join. */
static int arena_map(uint64_t bytes)
{
	int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	uint8_t *p = mmap(NULL, bytes, prot, flags | MAP_HUGETLB | (21 << MAP_HUGE_SHIFT), -1, 0);
	if (p != MAP_FAILED) {
		arena.mapping = arena.base = p;
		arena.mapping_bytes = bytes;
	} else {
		p = mmap(NULL, bytes + HUGE_PAGE, prot, flags, -1, 0);
		if (p == MAP_FAILED)
			return -ENOMEM;
		arena.mapping = p;
		arena.mapping_bytes = bytes + HUGE_PAGE;
		arena.base = (uint8_t *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
		madvise(arena.base, bytes, MADV_HUGEPAGE);
	}
	/* A child would share pages that the devices write to; and a core dump need not hold the users' data. */
	madvise(arena.base, bytes, MADV_DONTFORK);
	madvise(arena.base, bytes, MADV_DONTDUMP);
	arena.bytes = bytes;
	return 0;
}

int arena_init(uint64_t bytes, unsigned reactors, struct error *err)
{
	bytes = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
	if (arena_map(bytes) < 0)
		return error_set(err, -ENOMEM, "no memory for an arena of %llu MiB", (unsigned long long)(bytes >> 20));
	arena.pieces = (unsigned)(bytes / ARENA_PIECE);
	arena.reactors = reactors;
	arena.registered = false;
	arena.bufs_bytes = bytes / BLOCK_BYTES * sizeof(*arena.bufs);
	arena.bufs = mmap(NULL, arena.bufs_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (arena.bufs == MAP_FAILED)
		arena.bufs = NULL;
	arena.piece = calloc(arena.pieces, sizeof(*arena.piece));
	if (!arena.bufs || !arena.piece) {
		arena_fini();
		return error_set(err, -ENOMEM, "no memory for the headers of the arena");
	}
	list_init(&arena.empty);
	list_init(&arena.reserves);
	for (unsigned c = 0; c < BUF_CLASSES; c++) {
		for (unsigned i = 0; i < FULLNESS; i++)
			list_init(&arena.partial[c][i]);
		list_init(&arena.waiters[c]);
		/* All caches together hold a quarter of the arena at most. */
		uint64_t share = bytes / 4 / reactors / BUF_CLASSES;
		if (share > CACHE_CLASS_MOST)
			share = CACHE_CLASS_MOST;
		arena.cache_most[c] = (unsigned)(share / class_bytes(c));
	}
	for (unsigned i = 0; i < arena.pieces; i++)
		list_push_back(&arena.empty, &arena.piece[i].node);
	atomic_store(&arena.free_bytes, bytes);
	atomic_store(&arena.waiting, 0);
	ASAN_POISON_MEMORY_REGION(arena.base, bytes);
	arena.zero = buf_hand_out(piece_alloc(BUF_CLASSES - 1));
	return 0;
}

void arena_fini(void)
{
	if (!arena.mapping)
		return;
	ASAN_UNPOISON_MEMORY_REGION(arena.base, arena.bytes);
	munmap(arena.mapping, arena.mapping_bytes);
	if (arena.bufs)
		munmap(arena.bufs, arena.bufs_bytes);
	free(arena.piece);
	arena.mapping = NULL;
	arena.bufs = NULL;
	arena.piece = NULL;
	arena.bytes = 0;
	atomic_store(&arena.free_bytes, 0);
}

void arena_reactor_init(struct reactor *r)
{
	for (unsigned c = 0; c < BUF_CLASSES; c++) {
		list_init(&r->cache[c].list);
		atomic_store(&r->cache[c].count, 0);
	}
	atomic_store(&r->flush_posted, false);
}

void arena_reactor_fini(struct reactor *r)
{
	if (!r->cache[0].list.head.next || !arena.mapping)
		return;
	pthread_mutex_lock(&arena.lock);
	cache_flush(r);
	/* Fibers that waited have been dropped, and their queues with them. */
	for (unsigned c = 0; c < BUF_CLASSES; c++)
		list_init(&arena.waiters[c]);
	atomic_store(&arena.waiting, 0);
	pthread_mutex_unlock(&arena.lock);
}

static void memlock_raise(void)
{
	struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
	if (setrlimit(RLIMIT_MEMLOCK, &limit) == 0 || getrlimit(RLIMIT_MEMLOCK, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_MEMLOCK, &limit);
}

int arena_register(struct reactor *reactors, unsigned count)
{
	unsigned n = arena.pieces < REGISTER_MOST ? arena.pieces : REGISTER_MOST;
	struct iovec *iov = calloc(n, sizeof(*iov));
	int rc = iov ? 0 : -ENOMEM;

	memlock_raise();
	for (unsigned i = 0; iov && i < n; i++)
		iov[i] = (struct iovec){arena.base + (size_t)i * ARENA_PIECE, ARENA_PIECE};
	for (unsigned i = 0; i < count && rc == 0; i++) {
		rc = io_uring_register_buffers(&reactors[i].ring, iov, n);
		if (rc < 0)
			for (unsigned k = 0; k < i; k++)
				io_uring_unregister_buffers(&reactors[k].ring);
	}
	free(iov);
	arena.registered = rc == 0;
	/* The one buffer that was handed out before this was known. */
	arena.zero->fixed_index = rc == 0 ? (int32_t)((arena.zero - arena.bufs) / (ptrdiff_t)PIECE_BLOCKS) : -1;
	if (rc < 0)
		log_warning("core", "the arena is not registered with io_uring: drive commands cost more error=\"%s\"",
			strerror(-rc));
	return rc;
}
