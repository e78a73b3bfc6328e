/*
 * Life of a file system: making, probing, mounting, unmounting; root records.
 *
 * A root record is superblock and root of the tree in one: what the file system is, and where its
 * newest durable tree and log begin. Record number G goes to slot G % FS_ROOT_SLOTS of a ring in the
 * mirrored log zone, so that the newest ones before it stay whole whatever becomes of a write.
 *
 * Mounting reads all slots of all copies and takes the highest number that verifies, reads the tree's
 * root and the stripe counts, replays the log, and then writes a record of its own: it carries a new
 * number of the mount, which every log batch repeats, so that no batch of an earlier life fits behind a
 * new one. Only then transactions may run.
 *
 * After an unclean stop the write verifier is a new random number (clients send again what they had
 * not committed), and the change attribute goes on 2^32 higher, since clients may have seen values that
 * no transaction holds.
 *
 * What the record asks for and this program does not know is refused by name.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "fs/files_internal.h"
#include "fs/fs_internal.h"

#define LOG_BLOCKS_MIN 264u
#define STRIPES_MIN 16u
#define CHANGE_JUMP (1ull << 32)

static uint64_t random64(void)
{
	struct uuid u;
	uint64_t x;
	uuid_make(&u);
	/* the first half has no bits of version or variant in its low 32 and high 8 ones; fold both */
	memcpy(&x, u.b, sizeof(x));
	uint64_t y;
	memcpy(&y, u.b + 8, sizeof(y));
	return hash_u64(x) ^ y;
}

/* ------------------------------------------------------------------------------------------------
 * Records
 */

static uint64_t root_checksum(const struct root_disk *r)
{
	return checksum64((const uint8_t *)r + FS_ROOT_CHECKED, sizeof(*r) - FS_ROOT_CHECKED, 0);
}

int root_write(struct fs *fs, bool clean)
{
	struct checkpoint *c = &fs->checkpoint;
	struct buf *buf = buf_alloc(BLOCK_BYTES);
	struct root_disk *r = (struct root_disk *)(void *)buf->data;
	struct slice from = {buf, 0, BLOCK_BYTES};
	uint64_t generation = c->generation + 1;

	memset(r, 0, sizeof(*r));
	memcpy(r->magic, FS_ROOT_MAGIC, sizeof(r->magic));
	r->version = le32_put(FS_FORMAT_VERSION);
	r->incompat = le32_put(fs->incompat);
	r->compat = le32_put(fs->compat);
	r->uuid = fs->uuid;
	r->volume_uuid = *volume_uuid(fs->volume);
	r->fsid = le64_put(fs->fsid);
	r->created_ns = le64_put(fs->created_ns);
	r->k = le32_put(fs->geometry.k);
	r->strip_blocks = le32_put(fs->geometry.strip_blocks);
	r->stripes = le64_put(fs->geometry.stripes);
	r->log_blocks = le64_put(fs->geometry.log_blocks);
	r->generation = le64_put(generation);
	r->written_ns = le64_put(wall_ns());
	r->mounts = le64_put(fs->mounts);
	r->verifier = le64_put(fs->verifier);
	r->change = le64_put(fs->change);
	r->checkpoint = le64_put(c->tree_checkpoint);
	r->tree_block = le64_put(c->tree_block);
	r->tree_generation = le64_put(c->tree_generation);
	r->tree_level = c->tree_level;
	r->log_position = le64_put(c->log_position);
	r->log_chain = le64_put(c->log_chain);
	r->log_sequence = le64_put(c->log_sequence);
	r->log_needed = le64_put(c->log_needed);
	r->clean = clean;
	r->checksum = le64_put(root_checksum(r));
	uint64_t sum = le64_get(r->checksum);
	int rc = volume_log_write(fs->volume, generation % FS_ROOT_SLOTS, &from, 1);
	buf_put(buf);
	if (!rc) {
		c->generation = generation;
		c->root_sum = sum;
	}
	return rc;
}

uint32_t root_copies_wrong(struct fs *fs)
{
	const struct checkpoint *c = &fs->checkpoint;
	struct buf *buf = buf_alloc(BLOCK_BYTES);
	uint32_t wrong = 0;

	for (unsigned copy = 0; copy < fs->geometry.log_copies && copy < 32; copy++) {
		struct slice to = {buf, 0, BLOCK_BYTES};
		const struct root_disk *r = (const struct root_disk *)(const void *)buf->data;
		uint64_t generation = c->generation, sum = c->root_sum;
		int rc = volume_log_read(fs->volume, generation % FS_ROOT_SLOTS, copy, &to, 1);

		if (rc == -ETIMEDOUT)
			buf_renew(&buf, false);
		/* others may have been written meanwhile, also in its place */
		if (rc || c->generation - generation >= FS_ROOT_SLOTS - 1)
			continue;
		if (memcmp(r->magic, FS_ROOT_MAGIC, sizeof(r->magic)) || le64_get(r->checksum) != sum ||
			root_checksum(r) != sum)
			wrong |= 1u << copy;
	}
	buf_put(buf);
	return wrong;
}

/* The newest record that verifies, into *BEST. -ENOENT: none was ever written; -EIO: none can be read or verified. */
static int root_read(struct volume *volume, struct root_disk *best, struct error *err)
{
	const struct volume_geometry *g = volume_geometry(volume);
	struct buf *buf = buf_alloc(BLOCK_BYTES);
	const struct root_disk *r = (const struct root_disk *)(const void *)buf->data;
	struct slice to = {buf, 0, BLOCK_BYTES};
	unsigned unreadable = 0, damaged = 0, found = 0;

	for (unsigned copy = 0; copy < g->log_copies; copy++) {
		for (unsigned slot = 0; slot < FS_ROOT_SLOTS; slot++) {
			int rc = slot >= g->log_blocks ? -EIO : volume_log_read(volume, slot, copy, &to, 1);
			if (rc == -ETIMEDOUT) {
				buf_renew(&buf, false); /* other copies are read into another one */
				to.buf = buf;
				r = (const struct root_disk *)(const void *)buf->data;
			}
			if (rc) {
				unreadable++;
				continue;
			}
			if (memcmp(r->magic, FS_ROOT_MAGIC, sizeof(r->magic)))
				continue;
			if (le64_get(r->checksum) != root_checksum(r)) {
				damaged++;
				continue;
			}
			if (memcmp(&r->volume_uuid, volume_uuid(volume), sizeof(r->volume_uuid)))
				continue;
			if (found++ && le64_get(r->generation) <= le64_get(best->generation))
				continue;
			memcpy(best, r, sizeof(*best));
		}
	}
	buf_put(buf);
	if (found)
		return 0;
	if (damaged)
		return error_set(err, -EIO, "%s: all root records of the file system are damaged", volume_name(volume));
	if (unreadable == g->log_copies * FS_ROOT_SLOTS)
		return error_set(err, -EIO, "%s: the log zone cannot be read", volume_name(volume));
	return error_set(err, -ENOENT, "%s: there is no file system", volume_name(volume));
}

static int geometry_check(struct volume *volume, struct error *err)
{
	const struct volume_geometry *g = volume_geometry(volume);

	if (g->log_blocks < LOG_BLOCKS_MIN)
		return error_set(err, -ENOSPC,
			"%s: the log zone is too small: %" PRIu64 " blocks, at least %u are needed",
			volume_name(volume), g->log_blocks, LOG_BLOCKS_MIN);
	if (g->stripes < STRIPES_MIN || g->stripes > UINT64_MAX / BLOCK_BYTES / volume_stripe_blocks(g))
		return error_set(err, -ENOSPC, "%s: too small: %" PRIu64 " stripes, at least %u are needed",
			volume_name(volume), g->stripes, STRIPES_MIN);
	if (g->strip_blocks % NODE_BLOCKS || !g->strip_blocks || volume_stripe_blocks(g) > STRIPE_LIVE_MASK)
		return error_set(err, -EINVAL, "%s: unusable geometry: %u strips of %u blocks", volume_name(volume),
			g->k, g->strip_blocks);
	return 0;
}

static int root_check(struct volume *volume, const struct root_disk *r, bool read_only, struct error *err)
{
	const struct volume_geometry *g = volume_geometry(volume);
	const char *name = volume_name(volume);
	uint32_t unknown;

	if (le32_get(r->version) != FS_FORMAT_VERSION)
		return error_set(err, -EOPNOTSUPP, "%s: format version %u, this program knows %u", name,
			le32_get(r->version), FS_FORMAT_VERSION);
	if ((unknown = le32_get(r->incompat) & ~FS_INCOMPAT_KNOWN) != 0)
		return error_set(err, -EOPNOTSUPP, "%s: made with features that this program does not know (%#x)", name,
			unknown);
	if (!read_only && (unknown = le32_get(r->ro_compat) & ~FS_RO_COMPAT_KNOWN) != 0)
		return error_set(err, -EOPNOTSUPP,
			"%s: made with features that this program does not know (%#x); it can be mounted read-only",
			name, unknown);
	if (le32_get(r->k) != g->k || le32_get(r->strip_blocks) != g->strip_blocks ||
		le64_get(r->stripes) != g->stripes || le64_get(r->log_blocks) != g->log_blocks)
		return error_set(err, -EIO, "%s: the file system was made for another geometry of the volume", name);
	if (r->tree_level >= NODE_LEVELS)
		return error_set(err, -EIO, "%s: bad root record: tree of %u levels", name, r->tree_level);
	return 0;
}

/* The record is 4 KiB: too large for a fiber's stack. */
static int root_find(struct volume *volume, bool read_only, struct root_disk **record, struct error *err)
{
	*record = malloc(sizeof(**record));
	if (!*record)
		return error_set(err, -ENOMEM, "no memory");
	int rc = root_read(volume, *record, err);
	if (!rc)
		rc = root_check(volume, *record, read_only, err);
	if (!rc)
		rc = geometry_check(volume, err);
	if (rc) {
		free(*record);
		*record = NULL;
	}
	return rc;
}

int fs_probe(struct volume *volume, struct error *err)
{
	struct root_disk *r;
	int rc = root_find(volume, true, &r, err);
	free(r);
	return rc;
}

/* ------------------------------------------------------------------------------------------------
 * struct fs
 */

static void fs_free(struct fs *fs)
{
	log_fini(fs);
	cache_fini(fs);
	space_fini(fs);
	while (!list_empty(&fs->tx_idle))
		tx_destroy(container_of(list_pop_front(&fs->tx_idle), struct tx, node));
	free(fs);
}

static struct fs *fs_new(struct volume *volume, const struct fs_mount_options *options, struct error *err)
{
	struct fs *fs = calloc(1, sizeof(*fs));

	if (!fs) {
		error_set(err, -ENOMEM, "no memory");
		return NULL;
	}
	fs->volume = volume;
	fs->geometry = *volume_geometry(volume);
	fs->home = reactor_self();
	if (options)
		fs->options = *options;
	fs->read_only = fs->options.read_only;
	list_init(&fs->tx_idle);
	fs->checkpoint.fs = fs;
	wait_queue_init(&fs->checkpoint.work);
	wait_queue_init(&fs->checkpoint.done);
	wait_queue_init(&fs->cleaner.work);
	wait_queue_init(&fs->cleaner.done);
	int rc = log_init(fs);
	if (!rc)
		rc = cache_init(fs);
	if (!rc)
		rc = space_init(fs);
	if (rc) {
		error_set(err, rc, "%s: no memory for the file system", volume_name(volume));
		fs_free(fs);
		return NULL;
	}
	space_set_reserve(fs);
	return fs;
}

static int fs_start(struct fs *fs)
{
	int rc = log_start(fs);
	if (!rc)
		rc = checkpoint_start(fs);
	return rc;
}

/* Ends the fibers; with CLEAN, after a last checkpoint. */
static int fs_stop(struct fs *fs, bool clean)
{
	int rc = 0;

	cleaner_stop(fs);
	if (fs->checkpoint.started)
		checkpoint_stop(fs);
	if (clean)
		rc = checkpoint_run(fs, true);
	if (fs->log.writers)
		log_stop(fs);
	space_stop(fs);
	return rc;
}

void fs_fail(struct fs *fs, int rc, const char *what)
{
	if (fs->failed)
		return;
	fs->failed = rc;
	log_error("fs", "%s, no further changes are taken filesystem=%s error=%d", what, volume_name(fs->volume), rc);
	log_fail(fs);
	wait_queue_wake_all(&fs->checkpoint.work);
	wait_queue_wake_all(&fs->checkpoint.done);
	wait_queue_wake_all(&fs->cleaner.work);
	wait_queue_wake_all(&fs->cleaner.done);
}

/* ------------------------------------------------------------------------------------------------
 * Making
 */

static int format_pass(struct tx *tx, void *arg)
{
	return files_format(tx, arg);
}

/* Nothing of an earlier file system may count any more. */
static int slots_clear(struct volume *volume)
{
	struct slice zero = {buf_zero(), 0, FS_ROOT_SLOTS * BLOCK_BYTES};
	return volume_log_write(volume, 0, &zero, 1);
}

int fs_create(struct volume *volume, const struct fs_create_options *options, struct error *err)
{
	struct fs_create_options defaults = {0};
	struct fs_mount_options mount = {.cache_bytes = 4u << 20};
	int rc = geometry_check(volume, err);

	if (rc)
		return rc;
	if (options)
		defaults = *options;
	if (!defaults.root_mode)
		defaults.root_mode = 0755;
	struct fs *fs = fs_new(volume, &mount, err);
	if (!fs)
		return err && err->code ? err->code : -ENOMEM;
	uuid_make(&fs->uuid);
	fs->fsid = random64();
	fs->verifier = random64();
	fs->created_ns = wall_ns();
	fs->mounts = 1;
	fs->incompat = FS_INCOMPAT_WRITTEN;
	fs->log.chain = checksum64(&fs->uuid, sizeof(fs->uuid), 0);
	struct tree_need need = {.nodes = 1};
	while ((rc = tree_spares_ensure(fs, &need, false)) == -EAGAIN)
		;
	if (!rc) {
		fs->tree.root = cache_node_new(fs, 0);
		fs->checkpoint.changed = true;
		rc = slots_clear(volume);
	}
	if (!rc)
		rc = fs_start(fs);
	if (!rc)
		rc = fs_transact(fs, format_pass, &defaults, NULL);
	int stop = fs_stop(fs, rc == 0);
	if (!rc)
		rc = stop;
	fs_free(fs);
	return rc ? error_set(err, rc, "%s: cannot write the file system: %s", volume_name(volume), strerror(-rc)) : 0;
}

/* ------------------------------------------------------------------------------------------------
 * Mounting
 */

static void root_take(struct fs *fs, const struct root_disk *r)
{
	struct checkpoint *c = &fs->checkpoint;

	fs->uuid = r->uuid;
	fs->fsid = le64_get(r->fsid);
	fs->created_ns = le64_get(r->created_ns);
	fs->incompat = le32_get(r->incompat);
	fs->compat = le32_get(r->compat);
	fs->mounts = le64_get(r->mounts);
	fs->verifier = le64_get(r->verifier);
	fs->change = le64_get(r->change);
	c->generation = le64_get(r->generation);
	c->tree_checkpoint = le64_get(r->checkpoint);
	c->tree_generation = le64_get(r->tree_generation);
	c->tree_block = le64_get(r->tree_block);
	c->tree_level = r->tree_level;
	c->log_position = le64_get(r->log_position);
	c->log_chain = le64_get(r->log_chain);
	c->log_sequence = le64_get(r->log_sequence);
	c->log_needed = le64_get(r->log_needed);
	fs->log.head = fs->log.tail = c->log_position;
	fs->log.chain = c->log_chain;
	fs->log.sequence = c->log_sequence;
}

static int fs_recover(struct fs *fs, const struct root_disk *r, struct error *err)
{
	struct checkpoint *c = &fs->checkpoint;
	const char *name = volume_name(fs->volume);
	bool clean = r->clean == 1;
	int rc = cache_load_root(fs, c->tree_block, c->tree_generation, c->tree_level);

	if (rc)
		return error_set(err, rc, "%s: cannot read the root of the tree", name);
	if (fs->repair)
		rc = repair_look(fs);
	if (!rc)
		rc = space_load(fs, err);
	if (!rc)
		rc = log_replay(fs, c->tree_checkpoint, !fs->read_only, &fs->replayed, err);
	if (rc && err->code)
		error_prefix(err, "%s", name);
	else if (rc)
		error_set(err, rc, "%s: %s", name, strerror(-rc));
	if (rc)
		return rc; /* whatever the text says */
	if (fs->repair && (fs->log.sequence < c->log_needed || log_goes_on(fs)))
		repair_log_skip(fs, fs->log.sequence + 1, -EIO);
	else if (fs->log.sequence < c->log_needed)
		return error_set(err, -EIO,
			"%s: the log is damaged: it ends at transaction %" PRIu64 ", and reached %" PRIu64 " before",
			name, fs->log.sequence, c->log_needed);
	else if (!fs->read_only && log_goes_on(fs))
		return error_set(err, -EIO,
			"%s: the log is damaged: what was acknowledged after transaction %" PRIu64
			" cannot be read; a read-only mount shows what there is",
			name, fs->log.sequence);
	/* what was dropped before the stop was free then, and checkpoints count on as much */
	if (!fs->read_only)
		space_release_dropped(fs);
	c->log_needed = fs->log.sequence;
	if (fs->replayed)
		clean = false;
	if (!clean) {
		fs->verifier = random64();
		fs->change += CHANGE_JUMP;
		log_info("fs", "was not unmounted in order filesystem=%s replayed=%" PRIu64, name, fs->replayed);
	}
	return 0;
}

int fs_mount(struct volume *volume, const struct fs_mount_options *options, struct fs **out, struct error *err)
{
	struct root_disk *r;
	struct error ignored;

	*out = NULL;
	if (!err)
		err = &ignored;
	err->code = 0;
	int rc = root_find(volume, options && options->read_only, &r, err);
	if (rc)
		return rc;
	struct fs *fs = fs_new(volume, options, err);
	if (!fs) {
		free(r);
		return err->code;
	}
	root_take(fs, r);
	rc = fs_recover(fs, r, err);
	free(r);
	if (!rc && !fs->read_only) {
		fs->mounts++;
		fs->incompat |= FS_INCOMPAT_WRITTEN;
		rc = root_write(fs, false);
		if (!rc)
			rc = fs_start(fs);
		if (rc)
			error_set(err, rc, "%s: cannot write: %s", volume_name(volume), strerror(-rc));
		else if (fs->replayed)
			checkpoint_changed(fs);
	}
	if (!rc) {
		rc = files_mount(fs, err);
		if (rc && !err->code)
			error_set(err, rc, "%s: cannot mount: %s", volume_name(volume), strerror(-rc));
	}
	if (!rc && !fs->read_only) {
		rc = cleaner_start(fs);
		if (rc) {
			error_set(err, rc, "%s: cannot start", volume_name(volume));
			files_unmount(fs);
		}
	}
	if (rc) {
		fs_stop(fs, false);
		fs_free(fs);
		return rc;
	}
	if (!fs->read_only)
		volume_set_owner(
			volume, &(struct volume_owner){.usage = space_usage, .check = fs_stripe_check, .arg = fs});
	*out = fs;
	return 0;
}

int repair_mount(struct volume *volume, struct repair *repair, struct fs **out, struct error *err)
{
	struct root_disk *r;
	int rc = root_find(volume, false, &r, err);

	if (rc)
		return rc;
	struct fs *fs = fs_new(volume, NULL, err);
	if (!fs) {
		free(r);
		return err->code;
	}
	fs->repair = repair;
	root_take(fs, r);
	/* what marks lost data */
	fs->incompat |= FS_INCOMPAT_CLONES;
	rc = fs_recover(fs, r, err);
	free(r);
	if (!rc)
		rc = files_repair_begin(fs);
	if (!rc) {
		fs->mounts++;
		rc = root_write(fs, false);
		if (!rc)
			rc = fs_start(fs);
		if (rc)
			error_set(err, rc, "%s: cannot write: %s", volume_name(volume), strerror(-rc));
	}
	if (rc) {
		if (!err->code)
			error_set(err, rc, "%s: %s", volume_name(volume), strerror(-rc));
		fs_stop(fs, false);
		files_repair_end(fs);
		fs_free(fs);
		return rc;
	}
	*out = fs;
	return 0;
}

int repair_unmount(struct fs *fs, int rc)
{
	int stop;

	fs->checkpoint.changed = true;
	stop = fs_stop(fs, rc == 0);
	files_repair_end(fs);
	fs_free(fs);
	return rc ? rc : stop;
}

struct unmount {
	struct fs *fs;
	int rc;
};

static void unmount_home(void *arg)
{
	struct unmount *u = arg;
	struct fs *fs = u->fs;

	volume_set_owner(fs->volume, NULL);
	if (!fs->read_only && !fs->failed)
		u->rc = files_flush_all(fs);
	cleaner_stop(fs); /* it reads through the upper half */
	space_stop(fs);
	int rc = files_unmount(fs);
	if (!u->rc)
		u->rc = rc;
	rc = fs_stop(fs, !fs->read_only && !fs->failed);
	if (!u->rc)
		u->rc = rc ? rc : fs->failed;
	fs_free(fs);
}

int fs_unmount(struct fs *fs)
{
	struct unmount u = {fs, 0};
	reactor_call(fs->home, unmount_home, &u);
	return u.rc;
}

/* ------------------------------------------------------------------------------------------------
 * Small things
 */

const struct uuid *fs_uuid(const struct fs *fs)
{
	return &fs->uuid;
}

uint64_t fs_fsid(const struct fs *fs)
{
	return fs->fsid;
}

uint64_t fs_write_verifier(const struct fs *fs)
{
	return __atomic_load_n(&fs->verifier, __ATOMIC_RELAXED); /* asked by other reactors too */
}

void fs_verifier_change(struct fs *fs)
{
	__atomic_store_n(&fs->verifier, random64(), __ATOMIC_RELAXED);
}

uint64_t fs_change_next(struct fs *fs)
{
	return __atomic_add_fetch(&fs->change, 1, __ATOMIC_RELAXED); /* inodes live on all reactors */
}

struct status_call {
	struct fs *fs;
	struct fs_status *out;
};

static void status_home(void *arg)
{
	struct status_call *call = arg;
	const struct fs *fs = call->fs;
	struct fs_status *out = call->out;

	*out = (struct fs_status){.checkpoints = fs->checkpoint.count,
		.transactions = fs->transactions,
		.log_bytes = fs->log.bytes,
		.log_used_bytes = log_used(fs) * BLOCK_BYTES,
		.log_capacity_bytes = fs->log.capacity * BLOCK_BYTES,
		.cached_nodes = fs->tree.nodes,
		.dirty_nodes = fs->tree.dirty_count,
		.stripes_total = fs->space.stripes,
		.stripes_free = fs->space.free,
		.replayed = fs->replayed,
		.cleaner_moved_blocks = fs->cleaner.moved_blocks,
		.cleaner_freed_stripes = fs->cleaner.freed_stripes,
		.read_only = fs->read_only || fs->failed};
	files_status(fs, out);
	out->checksum_errors += fs->tree.checksum_errors;
	out->checksum_repairs += fs->tree.checksum_repairs;
}

void fs_status(struct fs *fs, struct fs_status *out)
{
	struct status_call call = {fs, out};
	reactor_call(fs->home, status_home, &call);
}
