/*
 * nfs4_grace: which clients may take back, after a restart, what they held before it (RFC 8881 8.4.2).
 *
 * Before the first state of a client on a file system is granted, the client's name is written there, durably: one
 * record per client and file system, by fs_state_put(), so that it moves with the drives. At start the records tell who
 * may reclaim. As long as some of those have not said RECLAIM_COMPLETE, and for a lease at most, nothing new is given
 * to anybody (NFS4ERR_GRACE). That is the lease that they were told, should the configuration have another one now: so
 * the longest that a client may have heard of stands on the file systems, too. What is then not taken back is
 * forgotten: the record is deleted before anybody may have what it stood for, since a client that comes later, even
 * after yet another restart, must not believe that it still has it.
 *
 * A record is ours (CURRENT), or of the earlier life: nothing reclaimed yet (OLD), or something (RECLAIMING).
 *
 * Records in memory are under one mutex, held for moments. What is written or deleted durably goes through reactor 0,
 * one after the other, so that a client that comes back while its former self is cleared away finds an order in this.
 *
 * Errors: a record that cannot be written means that the state is not given (NFS4ERR_DELAY, or what the file system
 * says); one that cannot be read at start is logged: its client will find its state lost, which it can tell.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/grace.h"
#include "server/nfs4_state.h"
#include "server/stable.h"

enum record_state { RECORD_OLD, RECORD_RECLAIMING, RECORD_CURRENT };

struct record {
	struct htable_node node;
	struct storage_fs *filesystem; /* held */
	struct fs *fs;
	enum record_state state;
	uint64_t client; /* whose it is now; 0: nobody came yet */
	uint32_t owner_len;
	uint8_t owner[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct htable records;
static unsigned pending; /* records that are not CURRENT */
static _Atomic bool active;
static bool started, stopping;
static struct fiber_mutex durable; /* on reactor 0 */
static struct wait_group fiber;
static unsigned grace_seconds;

bool nfs4_grace_active(void)
{
	return atomic_load_explicit(&active, memory_order_relaxed) || grace_active();
}

/* ------------------------------------------------------------------------------------------------
 * Records in memory; the mutex is held
 */

static uint64_t owner_hash(const void *owner, uint32_t len)
{
	return checksum64(owner, len, 0);
}

static struct record *record_find(const void *owner, uint32_t len, const struct fs *fs)
{
	uint64_t hash = owner_hash(owner, len);

	if (!started)
		return NULL;
	htable_foreach_hash (n, &records, hash) {
		struct record *record = container_of(n, struct record, node);

		if (record->owner_len == len && !memcmp(record->owner, owner, len) && (!fs || record->fs == fs))
			return record;
	}
	return NULL;
}

static struct record *record_add(
	const void *owner, uint32_t len, struct storage_fs *filesystem, enum record_state state)
{
	struct record *record = calloc(1, sizeof(*record) + len);

	if (!record)
		return NULL;
	record->filesystem = filesystem;
	record->fs = filesystem->fs;
	record->state = state;
	record->owner_len = len;
	memcpy(record->owner, owner, len);
	storage_fs_hold(filesystem);
	htable_insert(&records, &record->node, owner_hash(owner, len));
	pending += state != RECORD_CURRENT;
	return record;
}

static void record_free(struct record *record)
{
	storage_fs_release(record->filesystem);
	free(record);
}

static void record_settle(struct record *record, enum record_state state)
{
	pending -= record->state != RECORD_CURRENT;
	pending += state != RECORD_CURRENT;
	record->state = state;
}

/* The next record that WANTED picks, taken out of the table. */
static struct record *record_take(bool (*wanted)(const struct record *record, const void *arg), const void *arg)
{
	struct htable_cursor cursor = {0};
	struct record *found = NULL;

	pthread_mutex_lock(&lock);
	for (struct htable_node *n; started && !found && (n = htable_next(&records, &cursor));) {
		struct record *record = container_of(n, struct record, node);

		if (wanted(record, arg)) {
			htable_remove(&records, n);
			record_settle(record, RECORD_CURRENT);
			found = record;
		}
	}
	pthread_mutex_unlock(&lock);
	return found;
}

/* ------------------------------------------------------------------------------------------------
 * Durably: on reactor 0
 */

struct drop_call {
	bool (*wanted)(const struct record *record, const void *arg);
	const void *arg;
};

static void drop_run(void *arg)
{
	const struct drop_call *call = arg;
	struct record *record;

	fiber_lock(&durable);
	while ((record = record_take(call->wanted, call->arg))) {
		int rc = fs_state_delete(record->fs, STABLE_NFS4_CLIENT, record->owner, record->owner_len);

		if (rc)
			log_error("nfs4", "the record of a client could not be deleted filesystem=%s errno=%d",
				record->filesystem->name, -rc);
		record_free(record);
	}
	fiber_unlock(&durable);
}

static void records_drop(bool (*wanted)(const struct record *record, const void *arg), const void *arg)
{
	struct drop_call call = {wanted, arg};

	reactor_call(reactor_get(0), drop_run, &call);
}

struct put_call {
	struct nfs4_client *client;
	struct storage_fs *filesystem;
	int result;
};

static void put_run(void *arg)
{
	struct put_call *call = arg;
	const struct nfs4_client *client = call->client;
	struct record *record;

	fiber_lock(&durable);
	pthread_mutex_lock(&lock);
	record = record_find(client->owner, client->owner_len, call->filesystem->fs);
	pthread_mutex_unlock(&lock);
	/* nobody but this reactor adds or removes records */
	if (!record)
		call->result = fs_state_put(call->filesystem->fs, STABLE_NFS4_CLIENT, client->owner, client->owner_len,
			client->name, strlen(client->name));
	pthread_mutex_lock(&lock);
	if (!call->result && !record)
		record = record_add(client->owner, client->owner_len, call->filesystem, RECORD_CURRENT);
	if (record) {
		record->client = nfs4_client_id(client);
		if (record->state == RECORD_OLD)
			record_settle(
				record, atomic_load(&client->reclaim_complete) ? RECORD_CURRENT : RECORD_RECLAIMING);
	} else if (!call->result) {
		call->result = -EAGAIN;
	}
	pthread_mutex_unlock(&lock);
	fiber_unlock(&durable);
}

nfsstat4 nfs4_client_record_put(struct nfs4_client *client, const struct export *export)
{
	struct put_call call = {.client = client, .filesystem = export->filesystem};
	struct record *record;

	pthread_mutex_lock(&lock);
	record = record_find(client->owner, client->owner_len, export->fs);
	bool there = record && record->client == nfs4_client_id(client) && record->state != RECORD_OLD;
	pthread_mutex_unlock(&lock);
	if (!there)
		reactor_call(reactor_get(0), put_run, &call);
	/* a file system that cannot be written has no state worth a record */
	return call.result == -EROFS ? NFS4_OK : nfs4_status(call.result);
}

static bool of_client(const struct record *record, const void *arg)
{
	return record->client == nfs4_client_id(arg);
}

void nfs4_client_record_delete(struct nfs4_client *client)
{
	records_drop(of_client, client);
}

/* ------------------------------------------------------------------------------------------------
 * The lease that clients were told, le32 seconds
 */

static const char lease_name[] = "lease";
#define LEASE_UNNOTED 45u /* what servers told that noted none: it was their default */

static unsigned lease_known(struct fs *fs)
{
	le32 seconds;
	size_t len;

	if (fs_state_get(fs, STABLE_NFS4_SERVER, lease_name, strlen(lease_name), &seconds, sizeof(seconds), &len) ||
		len != sizeof(seconds))
		return LEASE_UNNOTED;
	return le32_get(seconds);
}

/* A longer one before anybody hears of it; a shorter one when nobody counts on the longer any more. */
static void lease_keep(const struct exports *exports, bool shorter)
{
	const le32 seconds = le32_put(nfs4_lease_seconds());

	for (unsigned i = 0; exports && i < exports->count; i++) {
		struct fs *fs = exports->export[i].fs;
		unsigned known = lease_known(fs);

		if (known == nfs4_lease_seconds() || (known > nfs4_lease_seconds() && !shorter))
			continue;
		int rc =
			fs_state_put(fs, STABLE_NFS4_SERVER, lease_name, strlen(lease_name), &seconds, sizeof(seconds));
		if (rc && rc != -EROFS)
			log_error("nfs4", "the lease could not be noted filesystem=%s errno=%d",
				exports->export[i].filesystem->name, -rc);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Grace
 */

nfsstat4 nfs4_grace_new(struct nfs4_client *client)
{
	return nfs4_grace_active() || !atomic_load(&client->reclaim_complete) ? NFS4ERR_GRACE : NFS4_OK;
}

nfsstat4 nfs4_grace_reclaim(struct nfs4_client *client)
{
	bool known;

	if (!atomic_load(&active) || atomic_load(&client->reclaim_complete))
		return NFS4ERR_NO_GRACE;
	pthread_mutex_lock(&lock);
	known = record_find(client->owner, client->owner_len, NULL);
	pthread_mutex_unlock(&lock);
	return known ? NFS4_OK : NFS4ERR_NO_GRACE;
}

/* What the client had and did not take back. */
static bool left_over(const struct record *record, const void *arg)
{
	const struct nfs4_client *client = arg;

	return record->state == RECORD_OLD && record->owner_len == client->owner_len &&
	       !memcmp(record->owner, client->owner, client->owner_len);
}

void nfs4_grace_reclaim_complete(struct nfs4_client *client)
{
	struct htable_cursor cursor = {0};

	if (!atomic_load(&active))
		return;
	records_drop(left_over, client);
	pthread_mutex_lock(&lock);
	for (struct htable_node *n; started && (n = htable_next(&records, &cursor));) {
		struct record *record = container_of(n, struct record, node);

		if (record->client == nfs4_client_id(client))
			record_settle(record, RECORD_CURRENT);
	}
	pthread_mutex_unlock(&lock);
}

static bool never_came(const struct record *record, const void *arg)
{
	(void)arg;
	return record->state == RECORD_OLD;
}

static unsigned grace_pending(void)
{
	unsigned n;

	pthread_mutex_lock(&lock);
	n = pending;
	pthread_mutex_unlock(&lock);
	return n;
}

static void grace_fiber(void *arg)
{
	uint64_t until = now_ns() + grace_seconds * NSEC_PER_SEC;

	(void)arg;
	while (!stopping && now_ns() < until && grace_pending())
		fiber_sleep(20 * NSEC_PER_MSEC);
	if (!stopping) {
		struct htable_cursor cursor = {0};

		records_drop(never_came, NULL);
		/* who began to reclaim keeps its record: it holds something */
		pthread_mutex_lock(&lock);
		for (struct htable_node *n; (n = htable_next(&records, &cursor));)
			record_settle(container_of(n, struct record, node), RECORD_CURRENT);
		pthread_mutex_unlock(&lock);
		struct exports *exports = exports_get();
		lease_keep(exports, true);
		exports_put(exports);
		atomic_store(&active, false);
		grace_done(GRACE_NFS4);
		log_info("nfs4", "grace is over");
	}
	wait_group_done(&fiber, 0);
}

static int records_load(const struct export *export)
{
	struct fs_state *record = calloc(1, sizeof(*record));
	int rc = -ENOMEM;

	while (record && (rc = fs_state_next(export->fs, STABLE_NFS4_CLIENT, record)) == 0)
		if (!record_find(record->name, (uint32_t)record->name_len, export->fs) &&
			!record_add(record->name, (uint32_t)record->name_len, export->filesystem, RECORD_OLD))
			rc = -ENOMEM;
	free(record);
	return rc == -ENOENT ? 0 : rc;
}

int nfs4_grace_start(const struct exports *exports)
{
	if (htable_init(&records, 64))
		return -ENOMEM;
	started = true;
	stopping = false;
	pending = 0;
	fiber_mutex_init(&durable);
	wait_group_init(&fiber);
	grace_seconds = nfs4_lease_seconds();
	for (unsigned i = 0; i < exports->count; i++) {
		int rc = records_load(&exports->export[i]);
		unsigned known = lease_known(exports->export[i].fs);

		if (rc)
			log_error("nfs4",
				"the records of clients cannot be read, they cannot reclaim filesystem=%s errno=%d",
				exports->export[i].filesystem->name, -rc);
		if (known > grace_seconds)
			grace_seconds = known;
	}
	lease_keep(exports, !pending);
	if (!pending)
		return 0;
	atomic_store(&active, true);
	grace_begin(GRACE_NFS4,
		now_ns() + 2 * grace_seconds * NSEC_PER_SEC); /* it is done earlier: when the fiber has cleared up */
	log_info("nfs4", "grace for clients of before the restart records=%u seconds=%u", pending, grace_seconds);
	wait_group_add(&fiber, 1);
	if (fiber_spawn(grace_fiber, NULL)) {
		wait_group_done(&fiber, 0);
		atomic_store(&active, false);
		grace_done(GRACE_NFS4);
		return -EAGAIN;
	}
	return 0;
}

void nfs4_grace_stop(void)
{
	struct htable_cursor cursor = {0};

	if (!started)
		return;
	stopping = true;
	wait_group_wait(&fiber);
	pthread_mutex_lock(&lock);
	for (struct htable_node *n; (n = htable_next(&records, &cursor));) {
		htable_remove(&records, n);
		record_free(container_of(n, struct record, node));
	}
	started = false;
	pthread_mutex_unlock(&lock);
	htable_fini(&records);
	atomic_store(&active, false);
	grace_done(GRACE_NFS4);
}
