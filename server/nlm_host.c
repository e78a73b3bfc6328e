/*
 * nlm_host: the clients of NLM, what is kept of them for the time after a restart, and the restart itself.
 *
 * A host is the address a client calls from and the name it gives; both together, since names are not unique
 * ("localhost") and neither are addresses (NAT). It is made by the client's first LOCK and goes when it has had no
 * locks for a while.
 *
 * How much a host has to reclaim is not known, and none ever says that it is done; so the grace period takes its time,
 * unless all hosts of before have restarted themselves.
 *
 * Before a host gets its first lock in a file system, a state record there (STABLE_NSM_HOST) names it, durably. After
 * a restart the records tell whom to call back (SM_NOTIFY, so that they reclaim) and whether there is a grace period at
 * all. A host that reclaimed nothing loses its record right after the grace period: were it kept, the host could
 * reclaim after the next restart what others had meanwhile. Records are written and deleted on reactor 0 alone, under
 * records_lock; who finds its host recorded already does not go there. The deletion therefore takes the mark away
 * first, and only from hosts that no call uses.
 *
 * Hosts are under one mutex, never held over a wait or a call of the lock table. A reference keeps a host.
 *
 * Error policy: a record that cannot be written refuses the lock (-errno); one that cannot be read, or not be deleted,
 * is logged. A file system that is mounted read-only has no records: its locks do not survive.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "server/nlm_internal.h"
#include "server/stable.h"

#define HOSTS_MAX 8192u
#define HOSTS_OF_ADDRESS 256u /* names that one address may have: behind NAT there are several */
#define FIBERS_MAX 256u
#define NOTIFIERS 32u
#define GRACE_NS (45 * NSEC_PER_SEC)
#define SWEEP_NS (30 * NSEC_PER_SEC)
#define IDLE_NS (300 * NSEC_PER_SEC) /* without locks: forgotten */
#define NOTIFY_TRIES 10u
#define NOTIFY_TIMEOUT (5 * NSEC_PER_SEC)
#define NOTIFY_PAUSE_MOST (60 * NSEC_PER_SEC)
#define RECORDED_MAX 8u

struct nlm_host {
	uint64_t client; /* of its lock owners */
	struct in6_addr address, local;
	int32_t state; /* its NSM state number, as far as known; 0: not */
	unsigned refs;
	bool earlier;			 /* known from before the restart, and not seen to have given up what it had */
	bool notify;			 /* is to be told that we restarted */
	uint64_t used_ns;		 /* when the last reference went */
	uint64_t recorded[RECORDED_MAX]; /* fsids where its record is */
	unsigned recorded_count;
	struct list blocks;
	struct htable_node node;
	uint32_t name_len;
	uint8_t name[];
};

/* The data of a record; its name is address and name. Format: docs/format-files.md. */
struct host_disk {
	uint8_t version; /* 1 */
	uint8_t reserved[3];
	le32 state;
	uint8_t local[16];
};

static struct {
	pthread_mutex_t mutex;
	struct htable hosts;
	uint64_t seed;
	int32_t state;
	_Atomic bool stopping;
	_Atomic unsigned fibers;
	struct fiber_mutex records_lock; /* reactor 0 */
	struct list sleepers;
	bool running;
} nlm = {.mutex = PTHREAD_MUTEX_INITIALIZER, .sleepers = LIST_INIT(nlm.sleepers)};

void nlm_lock(void)
{
	pthread_mutex_lock(&nlm.mutex);
}

void nlm_unlock(void)
{
	pthread_mutex_unlock(&nlm.mutex);
}

int32_t nsm_state(void)
{
	return nlm.state;
}

/* ------------------------------------------------------------------------------------------------
 * Addresses, IPv4 as v4-mapped
 */

static struct sockaddr_storage sockaddr_of(const struct in6_addr *a)
{
	struct sockaddr_storage ss = {0};

	if (IN6_IS_ADDR_V4MAPPED(a)) {
		ss.ss_family = AF_INET;
		memcpy(&((struct sockaddr_in *)(void *)&ss)->sin_addr, &a->s6_addr[12], 4);
	} else if (!IN6_IS_ADDR_UNSPECIFIED(a)) {
		ss.ss_family = AF_INET6;
		((struct sockaddr_in6 *)(void *)&ss)->sin6_addr = *a;
	}
	return ss;
}

/* ------------------------------------------------------------------------------------------------
 * Fibers of ours
 */

bool nlm_stopping(void)
{
	return atomic_load(&nlm.stopping);
}

bool nlm_fiber_start(struct reactor *reactor, void (*fn)(void *arg), void *arg)
{
	unsigned running = atomic_fetch_add(&nlm.fibers, 1);

	if (nlm_stopping() || running >= FIBERS_MAX) {
		nlm_fiber_end();
		return false;
	}
	reactor_spawn(reactor, fn, arg);
	return true;
}

void nlm_fiber_end(void)
{
	atomic_fetch_sub(&nlm.fibers, 1);
}

/* One of our fibers that sleeps, on its stack: the stop wakes it early. */
struct sleeper {
	struct list_node node;
	struct fiber *fiber;
	struct reactor *reactor;
	bool posted, arrived;
};

static void sleeper_wake(void *arg)
{
	struct sleeper *s = arg;

	s->arrived = true;
	fiber_wake(s->fiber);
}

static void sleepers_wake(void)
{
	nlm_lock();
	list_foreach (n, &nlm.sleepers) {
		struct sleeper *s = container_of(n, struct sleeper, node);
		list_remove(n);
		s->posted = true;
		reactor_post(s->reactor, sleeper_wake, s);
	}
	nlm_unlock();
}

bool nlm_pause(uint64_t ns)
{
	struct sleeper s = {.fiber = fiber_self(), .reactor = reactor_self()};

	nlm_lock();
	if (nlm_stopping()) {
		nlm_unlock();
		return false;
	}
	list_push_back(&nlm.sleepers, &s.node);
	nlm_unlock();
	(void)fiber_suspend_until(now_ns() + ns);
	nlm_lock();
	list_remove(&s.node);
	bool posted = s.posted;
	nlm_unlock();
	while (posted && !s.arrived)
		fiber_suspend(); /* the wake is on its way, and refers to this stack */
	return !nlm_stopping();
}

/* ------------------------------------------------------------------------------------------------
 * Hosts
 */

static uint64_t client_of(const struct in6_addr *address, const void *name, uint32_t len)
{
	return checksum64(name, len, checksum64(address, sizeof(*address), nlm.seed));
}

uint64_t nlm_client(const struct rpc_request *req, const struct xdr_opaque *name)
{
	return client_of(rpc_peer_address(req), name->data, name->len);
}

/* With the mutex held. */
static struct nlm_host *host_find(const struct in6_addr *address, const void *name, uint32_t len)
{
	uint64_t client = client_of(address, name, len);

	htable_foreach_hash (n, &nlm.hosts, client) {
		struct nlm_host *h = container_of(n, struct nlm_host, node);
		if (h->name_len == len && !memcmp(h->name, name, len) &&
			!memcmp(&h->address, address, sizeof(*address)))
			return h;
	}
	return NULL;
}

/* With the mutex held. */
static bool host_may_be_made(const struct in6_addr *address)
{
	struct htable_cursor cursor = {0};
	unsigned count = 0;

	if (nlm.hosts.count >= HOSTS_MAX)
		return false;
	for (struct htable_node *n; (n = htable_next(&nlm.hosts, &cursor));)
		count += !memcmp(&container_of(n, struct nlm_host, node)->address, address, sizeof(*address));
	return count < HOSTS_OF_ADDRESS;
}

/* With the mutex held. */
static struct nlm_host *host_make(const struct in6_addr *address, const void *name, uint32_t len)
{
	struct nlm_host *h = host_find(address, name, len);

	if (h)
		return h;
	if (!host_may_be_made(address) || !(h = calloc(1, sizeof(*h) + len)))
		return NULL;
	h->client = client_of(address, name, len);
	h->address = *address;
	h->name_len = len;
	memcpy(h->name, name, len);
	h->used_ns = now_ns();
	list_init(&h->blocks);
	htable_insert(&nlm.hosts, &h->node, h->client);
	return h;
}

struct nlm_host *nlm_host_get(const struct rpc_request *req, const struct xdr_opaque *name, int32_t state)
{
	const struct in6_addr *address = rpc_peer_address(req);

	nlm_lock();
	struct nlm_host *h = host_make(address, name->data, name->len);
	if (h) {
		h->refs++;
		rpc_address_mapped((const struct sockaddr *)rpc_local(req), &h->local);
		if (state)
			h->state = state;
	}
	nlm_unlock();
	return h;
}

struct nlm_host *nlm_host_find(const struct rpc_request *req, const struct xdr_opaque *name)
{
	const struct in6_addr *address = rpc_peer_address(req);

	nlm_lock();
	struct nlm_host *h = host_find(address, name->data, name->len);
	if (h)
		h->refs++;
	nlm_unlock();
	return h;
}

void nlm_host_hold(struct nlm_host *h)
{
	nlm_lock();
	h->refs++;
	nlm_unlock();
}

void nlm_host_put(struct nlm_host *h)
{
	if (!h)
		return;
	nlm_lock();
	h->refs--;
	h->used_ns = now_ns();
	nlm_unlock();
}

uint64_t nlm_host_client(const struct nlm_host *h)
{
	return h->client;
}

struct list *nlm_host_blocks(struct nlm_host *h)
{
	return &h->blocks;
}

void nlm_host_outgoing(const struct nlm_host *h, uint32_t procedure, struct rpc_outgoing *call)
{
	nlm_lock();
	call->to = sockaddr_of(&h->address);
	call->from = sockaddr_of(&h->local);
	nlm_unlock();
	call->program = NLM_PROG;
	call->version = NLM_V4;
	call->procedure = procedure;
}

/* An address or a name that was known is enough: a client may come back by another way. */
bool nlm_host_may_reclaim(const struct nlm_host *h)
{
	struct htable_cursor cursor = {0};
	bool may = false;

	nlm_lock();
	for (struct htable_node *n; !may && (n = htable_next(&nlm.hosts, &cursor));) {
		const struct nlm_host *o = container_of(n, struct nlm_host, node);
		may = o->earlier && (!memcmp(&o->address, &h->address, sizeof(o->address)) ||
					    (o->name_len == h->name_len && !memcmp(o->name, h->name, o->name_len)));
	}
	nlm_unlock();
	return may;
}

/* Up to the first dot: the same host may call itself by a short name here and by a long one there. */
static bool name_similar(const struct nlm_host *h, const struct xdr_opaque *name)
{
	const uint8_t *dot_a = memchr(h->name, '.', h->name_len);
	const uint8_t *dot_b = name->len ? memchr(name->data, '.', name->len) : NULL;
	uint32_t a = dot_a ? (uint32_t)(dot_a - h->name) : h->name_len;
	uint32_t b = dot_b ? (uint32_t)(dot_b - name->data) : name->len;

	return a == b && !memcmp(h->name, name->data, a);
}

/*
 * Only what comes from the host's own address counts, for else anybody could free its locks. When several share the
 * address, the name decides.
 */
static unsigned restarted_clients(
	const struct in6_addr *address, const struct xdr_opaque *name, int32_t state, uint64_t *client, unsigned room)
{
	unsigned there = 0, named = 0, count = 0;

	nlm_lock();
	for (unsigned pass = 0; pass < 2; pass++) {
		struct htable_cursor cursor = {0};
		for (struct htable_node *n; (n = htable_next(&nlm.hosts, &cursor));) {
			struct nlm_host *h = container_of(n, struct nlm_host, node);
			if (memcmp(&h->address, address, sizeof(*address)))
				continue;
			bool similar = name_similar(h, name);
			if (!pass) {
				there++;
				named += similar;
			} else if ((named ? similar : there == 1) && (!state || h->state != state) && count < room) {
				h->state = state;
				h->earlier = false; /* it has nothing to reclaim */
				client[count++] = h->client;
			}
		}
	}
	nlm_unlock();
	return count;
}

/* When nobody is left who may have something to reclaim, nobody needs to wait for them. */
static void grace_end_early(void)
{
	struct htable_cursor cursor = {0};
	bool left = false;

	if (!grace_active_of(GRACE_NLM))
		return;
	nlm_lock();
	for (struct htable_node *n; !left && (n = htable_next(&nlm.hosts, &cursor));)
		left = container_of(n, struct nlm_host, node)->earlier;
	nlm_unlock();
	if (left)
		return;
	grace_done(GRACE_NLM);
	log_info("nlm", "all clients of before have restarted too: the grace period is over");
}

void nlm_host_restarted(const struct sockaddr_storage *peer, const struct xdr_opaque *name, int32_t state)
{
	struct in6_addr address;

	rpc_address_mapped((const struct sockaddr *)peer, &address);
	char text[64];
	uint64_t client[16];
	unsigned count = restarted_clients(&address, name, state, client, 16);

	rpc_address_text((const struct sockaddr *)peer, text, sizeof(text));
	for (unsigned i = 0; i < count; i++) {
		log_info("nlm", "a client restarted, its locks are released client=%s", text);
		lock_release_client(lock_server_table(), LOCK_KIND_NLM, client[i]);
	}
	if (count)
		grace_end_early();
}

/* With the mutex held. */
static struct nlm_host *host_of_client(uint64_t client)
{
	htable_foreach_hash (n, &nlm.hosts, client)
		return container_of(n, struct nlm_host, node);
	return NULL;
}

/* Its name is its own word: what is not printable does not get to a terminal. */
bool nlm_client_text(uint64_t client, char *text, size_t room)
{
	char name[64], address[64];
	unsigned len = 0;

	nlm_lock();
	struct nlm_host *h = nlm.running ? host_of_client(client) : NULL;
	if (h) {
		struct sockaddr_storage ss = sockaddr_of(&h->address);
		for (; len < h->name_len && len < sizeof(name) - 1; len++)
			name[len] = h->name[len] > ' ' && h->name[len] < 0x7f ? (char)h->name[len] : '?';
		rpc_address_text((const struct sockaddr *)&ss, address, sizeof(address));
	}
	nlm_unlock();
	name[len] = 0;
	if (h)
		snprintf(text, room, "%s %s", name, address);
	return h != NULL;
}

bool nlm_client_expel(uint64_t client, char *text, size_t room)
{
	if (!nlm_client_text(client, text, room))
		return false;
	log_info("nlm", "locks of a client are released by command client=\"%s\"", text);
	lock_release_client(lock_server_table(), LOCK_KIND_NLM, client);
	return true;
}

/* ------------------------------------------------------------------------------------------------
 * Records
 */

static uint32_t record_name(const struct nlm_host *h, uint8_t name[FS_STATE_NAME_MAX])
{
	memcpy(name, &h->address, sizeof(h->address));
	memcpy(name + sizeof(h->address), h->name, h->name_len);
	return (uint32_t)sizeof(h->address) + h->name_len;
}

/* With the mutex held. */
static bool recorded_in(const struct nlm_host *h, uint64_t fsid)
{
	for (unsigned i = 0; i < h->recorded_count; i++)
		if (h->recorded[i] == fsid)
			return true;
	return false;
}

static void recorded_add(struct nlm_host *h, uint64_t fsid)
{
	if (!recorded_in(h, fsid) && h->recorded_count < RECORDED_MAX)
		h->recorded[h->recorded_count++] = fsid;
}

struct record_put {
	struct nlm_host *host;
	struct fs *fs;
	int rc;
};

static void record_put(void *arg)
{
	struct record_put *p = arg;
	struct host_disk disk = {.version = 1};
	uint8_t name[FS_STATE_NAME_MAX];

	nlm_lock();
	disk.state = le32_put((uint32_t)p->host->state);
	memcpy(disk.local, &p->host->local, sizeof(disk.local));
	nlm_unlock();
	fiber_lock(&nlm.records_lock);
	p->rc = fs_state_put(p->fs, STABLE_NSM_HOST, name, record_name(p->host, name), &disk, sizeof(disk));
	if (p->rc == -EROFS)
		p->rc = 0;
	nlm_lock();
	if (!p->rc)
		recorded_add(p->host, fs_fsid(p->fs));
	nlm_unlock();
	fiber_unlock(&nlm.records_lock);
}

int nlm_host_record(struct nlm_host *h, struct fs *fs)
{
	nlm_lock();
	bool done = recorded_in(h, fs_fsid(fs));
	nlm_unlock();
	if (done)
		return 0;
	struct record_put p = {.host = h, .fs = fs};
	reactor_call(reactor_get(0), record_put, &p);
	return p.rc;
}

/* With records_lock held: those of a host that no call uses. */
static void records_delete(const struct exports *exports, const uint8_t *name, uint32_t len)
{
	for (unsigned i = 0; i < exports->count; i++) {
		int rc = fs_state_delete(exports->export[i].fs, STABLE_NSM_HOST, name, len);
		if (rc && rc != -EROFS)
			log_warning("nlm", "cannot forget a client filesystem=%s error=\"%s\"",
				exports->export[i].filesystem->name, strerror(-rc));
	}
}

/* ------------------------------------------------------------------------------------------------
 * Who has no locks any more is forgotten
 */

static bool host_done(const struct nlm_host *h, bool at_once)
{
	if (at_once)
		return !h->refs;
	return !h->refs && (h->earlier || now_ns() - h->used_ns > IDLE_NS) && !h->notify;
}

/* One host that may go, its name and whether records of it may be there. */
static bool sweep_one(uint8_t name[FS_STATE_NAME_MAX], uint32_t *len, uint64_t *skip, bool at_once)
{
	struct htable_cursor cursor = {0};
	uint64_t client = 0, at = 0, used = 0;

	nlm_lock();
	for (struct htable_node *n; !client && (n = htable_next(&nlm.hosts, &cursor));) {
		struct nlm_host *h = container_of(n, struct nlm_host, node);
		if (at++ < *skip || !host_done(h, at_once))
			continue;
		client = h->client;
		used = h->used_ns;
		*len = record_name(h, name);
	}
	nlm_unlock();
	*skip = at;
	if (!client)
		return false;
	if (lock_client_bytes(lock_server_table(), LOCK_KIND_NLM, client)) {
		*len = 0;
		return true;
	}
	/* It may have come back meanwhile. */
	nlm_lock();
	struct in6_addr address;
	memcpy(&address, name, sizeof(address));
	struct nlm_host *h = host_find(&address, name + sizeof(address), *len - (uint32_t)sizeof(address));
	if (h && host_done(h, at_once) && h->used_ns == used) {
		htable_remove(&nlm.hosts, &h->node);
		free(h);
		(*skip)--;
	} else {
		*len = 0;
	}
	nlm_unlock();
	return true;
}

/* AT_ONCE: at the stop, so that a restart that was planned needs no grace period for those who have nothing. */
static void sweep(bool at_once)
{
	uint8_t name[FS_STATE_NAME_MAX];
	uint32_t len = 0;
	uint64_t skip = 0;
	struct exports *exports = exports_get();

	if (!exports)
		return;
	fiber_lock(&nlm.records_lock);
	while ((at_once || !nlm_stopping()) && sweep_one(name, &len, &skip, at_once))
		if (len)
			records_delete(exports, name, len);
	fiber_unlock(&nlm.records_lock);
	exports_put(exports);
}

/* What a host reclaimed it holds as anybody does. */
static void earlier_end(void)
{
	struct htable_cursor cursor = {0};

	nlm_lock();
	for (struct htable_node *n; (n = htable_next(&nlm.hosts, &cursor));) {
		struct nlm_host *h = container_of(n, struct nlm_host, node);
		h->earlier = false;
	}
	nlm_unlock();
}

static void sweep_fiber(void *arg)
{
	bool grace = true;

	(void)arg;
	for (;;) {
		uint64_t left = grace_left_ns();
		if (!nlm_pause(left ? left : SWEEP_NS))
			break;
		if (grace_active())
			continue;
		sweep(false);
		if (grace)
			earlier_end();
		grace = false;
	}
	nlm_fiber_end();
}

/* ------------------------------------------------------------------------------------------------
 * After a restart
 */

static void host_load(const struct fs *fs, const struct fs_state *record)
{
	struct in6_addr address;
	struct host_disk disk;

	if (record->name_len <= sizeof(address) || record->data_len < sizeof(disk) || record->data[0] != 1) {
		log_warning("nlm", "a client's record makes no sense and is ignored");
		return;
	}
	memcpy(&address, record->name, sizeof(address));
	memcpy(&disk, record->data, sizeof(disk));
	nlm_lock();
	struct nlm_host *h =
		host_make(&address, record->name + sizeof(address), (uint32_t)(record->name_len - sizeof(address)));
	if (h) {
		h->earlier = h->notify = true;
		memcpy(&h->local, disk.local, sizeof(h->local));
		h->state = (int32_t)le32_get(disk.state);
		recorded_add(h, fs_fsid(fs));
	}
	nlm_unlock();
}

static unsigned hosts_load(const struct export *e)
{
	struct fs_state *record = calloc(1, sizeof(*record));
	unsigned count = 0;
	int rc = record ? 0 : -ENOMEM;

	while (!rc && !(rc = fs_state_next(e->fs, STABLE_NSM_HOST, record))) {
		host_load(e->fs, record);
		count++;
	}
	free(record);
	if (rc != -ENOENT)
		log_error("nlm", "cannot read who had locks filesystem=%s error=\"%s\"", e->filesystem->name,
			strerror(-rc));
	return count;
}

static const struct export *export_first(const struct exports *exports, unsigned i, const struct exports *old)
{
	const struct export *e = &exports->export[i];

	for (unsigned j = 0; j < i; j++)
		if (exports->export[j].fs == e->fs)
			return NULL;
	for (unsigned j = 0; old && j < old->count; j++)
		if (old->export[j].fs == e->fs)
			return NULL;
	return e;
}

static int32_t state_get(struct fs *fs)
{
	le32 disk;
	size_t len;

	if (fs_state_get(fs, STABLE_NSM_STATE, "state", 5, &disk, sizeof(disk), &len) || len != sizeof(disk))
		return 0;
	return (int32_t)(le32_get(disk) & 0x7fffffff);
}

/* Where it cannot be written, first locks will be refused; that is no reason not to serve files. */
static void state_put(const struct export *e)
{
	le32 disk = le32_put((uint32_t)nlm.state);
	int rc = fs_state_put(e->fs, STABLE_NSM_STATE, "state", 5, &disk, sizeof(disk));

	if (rc && rc != -EROFS)
		log_error("nlm", "cannot write down that the lock manager starts filesystem=%s error=\"%s\"",
			e->filesystem->name, strerror(-rc));
}

/* File systems that OLD does not have: whom they know of, and a state number that none of them has seen. */
static void load(const struct exports *exports, const struct exports *old)
{
	unsigned count = 0;

	for (unsigned i = 0; i < exports->count; i++) {
		const struct export *e = export_first(exports, i, old);
		int32_t state = e ? state_get(e->fs) : 0;
		if (e)
			count += hosts_load(e);
		if (state >= nlm.state)
			nlm.state = state >= INT32_MAX - 2 ? 1 : ((state + 1) | 1);
	}
	for (unsigned i = 0; i < exports->count; i++) {
		const struct export *e = export_first(exports, i, old);
		if (e)
			state_put(e);
	}
	if (count) {
		grace_begin(GRACE_NLM, now_ns() + GRACE_NS);
		log_info("nlm", "clients had locks before: a grace period begins clients=%u seconds=%u", count,
			(unsigned)(GRACE_NS / NSEC_PER_SEC));
	}
}

int nlm_start(const struct exports *exports)
{
	if (htable_init(&nlm.hosts, 64))
		return -ENOMEM;
	nlm.seed = hash_u64(wall_ns()) ^ (uintptr_t)exports;
	nlm.state = 1;
	atomic_store(&nlm.stopping, false);
	fiber_mutex_init(&nlm.records_lock);
	nlm.running = true;
	load(exports, NULL);
	nlm_fiber_start(reactor_get(0), sweep_fiber, NULL);
	return 0;
}

/* Their requests leave the lock table, and block_done() frees them. */
static void hosts_free(void)
{
	struct htable_cursor cursor = {0};

	for (struct htable_node *n; (n = htable_next(&nlm.hosts, &cursor));) {
		struct nlm_host *h = container_of(n, struct nlm_host, node);
		if (!list_empty(&h->blocks))
			lock_release_client(lock_server_table(), LOCK_KIND_NLM, h->client);
	}
	cursor = (struct htable_cursor){0};
	for (struct htable_node *n; (n = htable_next(&nlm.hosts, &cursor));)
		free(container_of(n, struct nlm_host, node));
	htable_fini(&nlm.hosts);
}

void nlm_stop(void)
{
	if (!nlm.running)
		return;
	atomic_store(&nlm.stopping, true);
	sleepers_wake();
	while (atomic_load(&nlm.fibers))
		fiber_sleep(10 * NSEC_PER_MSEC);
	if (!grace_active())
		sweep(true);
	hosts_free();
	grace_done(GRACE_NLM);
	nlm.running = false;
}

/* ------------------------------------------------------------------------------------------------
 * SM_NOTIFY to those who had locks
 */

/* One that is to be told and that no other fiber tells. */
static struct nlm_host *notify_next(void)
{
	struct htable_cursor cursor = {0};
	struct nlm_host *found = NULL;

	nlm_lock();
	for (struct htable_node *n; !found && (n = htable_next(&nlm.hosts, &cursor));) {
		struct nlm_host *h = container_of(n, struct nlm_host, node);
		if (h->notify) {
			h->notify = false;
			h->refs++;
			found = h;
		}
	}
	nlm_unlock();
	return found;
}

static int notify_once(struct nlm_host *h, struct rpc_outgoing *call)
{
	char name[256] = "";
	struct xdr_out out;

	if (gethostname(name, sizeof(name) - 1))
		name[0] = 0;
	struct stat_chge change = {.mon_name = {(const uint8_t *)name, (uint32_t)strlen(name)}, .state = nsm_state()};
	nlm_host_outgoing(h, SM_NOTIFY, call);
	call->program = SM_PROG;
	call->version = SM_VERS;
	call->deadline = now_ns() + NOTIFY_TIMEOUT;
	xdr_out_init(&out, call->args, sizeof(call->args));
	if (!xdr_encode_stat_chge(&out, &change))
		return -EPROTO;
	call->args_bytes = (uint32_t)(out.p - out.base);
	return rpc_call_out(call);
}

static void notify_host(struct nlm_host *h, struct rpc_outgoing *call)
{
	struct sockaddr_storage to = sockaddr_of(&h->address);
	uint64_t pause = NSEC_PER_SEC;
	char text[64];
	int rc = 0;

	rpc_address_text((const struct sockaddr *)&to, text, sizeof(text));
	for (unsigned i = 0; i < NOTIFY_TRIES; i++) {
		rc = notify_once(h, call);
		if (!rc || !nlm_pause(pause))
			break;
		pause = 2 * pause < NOTIFY_PAUSE_MOST ? 2 * pause : NOTIFY_PAUSE_MOST;
	}
	if (rc)
		log_warning("nlm", "cannot tell a client that this server restarted client=%s error=\"%s\"", text,
			strerror(-rc));
	else
		log_info("nlm", "told a client that this server restarted client=%s", text);
}

static void notify_fiber(void *arg)
{
	struct rpc_outgoing *call = malloc(sizeof(*call));
	struct nlm_host *h;

	(void)arg;
	while (call && !nlm_stopping() && (h = notify_next())) {
		notify_host(h, call);
		nlm_host_put(h);
	}
	free(call);
	nlm_fiber_end();
}

void nlm_notify_hosts(void)
{
	struct htable_cursor cursor = {0};
	unsigned count = 0;

	nlm_lock();
	for (struct htable_node *n; (n = htable_next(&nlm.hosts, &cursor));)
		count += container_of(n, struct nlm_host, node)->notify;
	nlm_unlock();
	for (unsigned i = 0; i < count && i < NOTIFIERS; i++)
		nlm_fiber_start(reactor_get(i % reactor_count()), notify_fiber, NULL);
}

void nlm_reloaded(const struct exports *exports, const struct exports *old)
{
	load(exports, old);
	nlm_notify_hosts();
}
