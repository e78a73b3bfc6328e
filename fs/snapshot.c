/*
 * Snapshots: versions of the keys of inodes, and which of them who sees.
 *
 * There is one tree. A key of an inode has, besides what it names, the stamp of the time in which its
 * record was written; the file system counts one number, the stamp, and making a snapshot N raises it to N. So:
 *
 *   the live file system sees of each key the version of the highest stamp
 *   snapshot N sees the one of the highest stamp below N
 *   a change writes its record under the number of the newest snapshot that is kept: the first one after a
 *     snapshot leaves the older version where it is. A version of that stamp or a higher one is seen by no
 *     snapshot, and is replaced where it lies
 *   a deletion takes such a version away, and hides an older one, if there is one, by an empty record (of an
 *     extent: one with EXTENT_HOLE)
 *
 * Making a snapshot is therefore one small transaction, whatever the size of the file system, and what is new costs
 * nothing more for it: only what is deleted and was seen leaves a mark. tx_get() and its like (transact.c) do all of
 * this, for passes that know nothing of it; extents have ranges, and extent_edit.c keeps them such that they need not
 * be compared. A file handle carries N, inode_get() turns the pass's view to it, and anything that is no mere view is
 * refused there (-EROFS).
 *
 * Deleting a snapshot marks it as such, durably; from then on nobody sees it. Then a fiber goes
 * through all keys in the background, in transactions of bounded size, and takes out the versions that
 * nobody sees any more: a version of stamp C, followed by one of stamp D, is seen by the snapshots N with
 * C < N <= D; the last one is the live one's; and an empty record with nothing below it hides nothing. That
 * asks only which snapshots there are, so they go in any order, several at once, and after a crash
 * the walk simply starts anew. The record of the snapshot itself goes when it is through.
 *
 * `.snapshot` in the root directory is made up: lookup finds it, no listing shows it. Inode 1 stands for it.
 */
#include <limits.h>

#include "fs/inode_internal.h"

#define GC_KEYS 512u /* looked at by one transaction */

struct snapshot_table {
	unsigned count;
	bool running; /* the fiber */
	bool again;
	struct wait_queue idle;
	struct snapshot {
		uint32_t id;
		uint8_t state;
		uint64_t created_ns;
		uint16_t len;
		char name[FS_NAME_MAX + 1];
	} of[FS_SNAPSHOTS_MAX]; /* ascending by id */
};

uint64_t fs_snapshot_fsid(uint64_t fsid, uint32_t snap)
{
	uint64_t own = snap ? hash_u64(fsid ^ hash_u64(snap)) : fsid;

	return own == fsid && snap ? own + 1 : own;
}

static struct snapshot *find_id(struct fs_files *files, uint32_t id)
{
	struct snapshot_table *t = files->snapshots;

	for (unsigned i = 0; i < t->count; i++)
		if (t->of[i].id == id)
			return &t->of[i];
	return NULL;
}

static void floor_set(struct fs_files *files)
{
	const struct snapshot_table *t = files->snapshots;

	files->floor = 0;
	for (unsigned i = 0; i < t->count; i++)
		if (t->of[i].state == SNAPSHOT_KEPT)
			files->floor = t->of[i].id;
}

bool snapshot_exists(struct fs_files *files, uint32_t id)
{
	const struct snapshot *s = find_id(files, id);

	return s && s->state == SNAPSHOT_KEPT;
}

uint32_t snapshot_named(struct fs_files *files, const char *name, size_t len)
{
	const struct snapshot_table *t = files->snapshots;

	for (unsigned i = 0; i < t->count; i++)
		if (t->of[i].state == SNAPSHOT_KEPT && t->of[i].len == len && memcmp(t->of[i].name, name, len) == 0)
			return t->of[i].id;
	return 0;
}

uint32_t snapshot_after(struct fs_files *files, uint32_t id, const char **name, size_t *len)
{
	const struct snapshot_table *t = files->snapshots;

	for (unsigned i = 0; i < t->count; i++) {
		if (t->of[i].id <= id || t->of[i].state != SNAPSHOT_KEPT)
			continue;
		*name = t->of[i].name;
		*len = t->of[i].len;
		return t->of[i].id;
	}
	return 0;
}

/* What `.snapshot` looks like: it changes with the snapshots. */
void snapshot_dir_attr(struct fs *fs, struct inode_attr *attr)
{
	const struct snapshot_table *t = fs->files->snapshots;
	int64_t time = (int64_t)fs->created_ns;
	unsigned kept = 0;

	for (unsigned i = 0; i < t->count; i++) {
		kept += t->of[i].state == SNAPSHOT_KEPT;
		if ((int64_t)t->of[i].created_ns > time)
			time = (int64_t)t->of[i].created_ns;
	}
	*attr = (struct inode_attr){.gen = 1,
		.nlink = 2 + kept,
		.mode = 0555,
		.type = FS_DIR,
		.size = kept,
		.change = ((uint64_t)fs->files->stamp << 32) + fs->files->snapshot_changes,
		.aux = FS_ROOT_INO,
		.next_seq = NAME_SEQ_FIRST,
		.atime = time,
		.mtime = time,
		.ctime = time,
		.btime = (int64_t)fs->created_ns};
}

static void dir_changed(struct fs *fs)
{
	struct inode *dir = inode_cached(fs->files, FS_SNAPDIR_INO);

	fs->files->snapshot_changes++;
	if (dir)
		snapshot_dir_attr(fs, &dir->attr);
}

/* ------------------------------------------------------------------------------------------------
 * Making and marking
 */

struct snapshot_call {
	struct fs *fs;
	const char *name;
	size_t len;
	struct snapshot made;
	unsigned index;
};

static int snapshot_put(struct tx *tx, const struct snapshot *s)
{
	struct fs_key key = {.type = KEY_SNAPSHOT, .off = s->id};
	struct {
		struct snapshot_disk head;
		char name[FS_NAME_MAX];
	} d = {.head = {.created_ns = le64_put(s->created_ns), .state = s->state, .name_len = le16_put(s->len)}};

	memcpy(d.name, s->name, s->len);
	return tx_put(tx, &key, &d, sizeof(d.head) + s->len);
}

static void create_applied(void *arg)
{
	struct snapshot_call *c = arg;
	struct snapshot_table *t = c->fs->files->snapshots;

	t->of[t->count++] = c->made;
	c->fs->files->stamp = c->made.id;
	floor_set(c->fs->files);
	dir_changed(c->fs);
}

static int create_pass(struct tx *tx, void *arg)
{
	struct snapshot_call *c = arg;
	struct fs_files *files = tx_fs(tx)->files;
	struct fs_key key = {.type = KEY_SNAPSHOT};
	struct stamp_disk d;
	int r;

	if (snapshot_named(files, c->name, c->len))
		return -EEXIST;
	if (files->halves)
		return -EBUSY;
	if (files->snapshots->count == FS_SNAPSHOTS_MAX)
		return -EMLINK;
	if (files->stamp >= UINT32_MAX - 1 || !space_promises_hold(tx_fs(tx)))
		return -ENOSPC;
	c->made = (struct snapshot){
		.id = files->stamp + 1, .state = SNAPSHOT_KEPT, .created_ns = wall_ns(), .len = (uint16_t)c->len};
	memcpy(c->made.name, c->name, c->len);
	d.stamp = le32_put(c->made.id);
	r = tx_put(tx, &key, &d, sizeof(d));
	if (r == 0)
		r = snapshot_put(tx, &c->made);
	return r < 0 ? r : tx_on_apply(tx, create_applied, c);
}

static int create_run(struct fs *fs, void *arg)
{
	/* what was written before the call belongs to it */
	int r = files_flush_all(fs);

	if (r == 0 && !(fs->incompat & FS_INCOMPAT_SNAPSHOTS)) {
		/* a program that knows nothing of versions must not even replay them */
		fs->incompat |= FS_INCOMPAT_SNAPSHOTS;
		fs->checkpoint.changed = true;
		r = fs_checkpoint(fs);
	}
	while (r == 0) {
		r = fs_transact_durable(fs, create_pass, arg);
		if (r != -EBUSY)
			break;
		r = fs->failed;
		if (r == 0)
			wait_queue_wait(&fs->files->halves_idle, NEVER);
	}
	return r;
}

int fs_snapshot_create(struct fs *fs, const char *name)
{
	struct snapshot_call c = {.fs = fs, .name = name, .len = strlen(name)};
	int r = name_check(name, c.len);

	if (r < 0)
		return r;
	if (name[0] == '.')
		return -EINVAL;
	return fs->read_only ? -EROFS : files_call(fs, create_run, &c);
}

static void delete_applied(void *arg)
{
	struct snapshot_call *c = arg;
	struct fs_files *files = c->fs->files;

	files->snapshots->of[c->index].state = SNAPSHOT_GOING;
	floor_set(files);
	/* its inodes in memory are of no use any more */
	list_foreach (node, &files->lru) {
		struct inode *inode = container_of(node, struct inode, lru);

		if (inode->attr.snap == c->made.id)
			inode_drop(files, inode);
	}
	dir_changed(c->fs);
}

static int delete_pass(struct tx *tx, void *arg)
{
	struct snapshot_call *c = arg;
	struct fs_files *files = tx_fs(tx)->files;
	uint32_t id = snapshot_named(files, c->name, c->len);
	int r;

	if (!id)
		return -ENOENT;
	c->made = *find_id(files, id);
	c->index = (unsigned)(find_id(files, id) - files->snapshots->of);
	c->made.state = SNAPSHOT_GOING;
	r = snapshot_put(tx, &c->made);
	return r < 0 ? r : tx_on_apply(tx, delete_applied, c);
}

static void gc_start(struct fs *fs);

static int delete_run(struct fs *fs, void *arg)
{
	int r = fs_transact_durable(fs, delete_pass, arg);

	if (r == 0)
		gc_start(fs);
	return r;
}

int fs_snapshot_delete(struct fs *fs, const char *name)
{
	struct snapshot_call c = {.fs = fs, .name = name, .len = strlen(name)};

	return fs->read_only ? -EROFS : files_call(fs, delete_run, &c);
}

/* ------------------------------------------------------------------------------------------------
 * Taking out what nobody sees
 */

struct gc {
	struct fs_key at, next; /* where the walk is, and where it goes on when the transaction is applied */
	bool end;
	unsigned limit, drops;		  /* keys, and versions taken out, of one transaction */
	uint32_t going[FS_SNAPSHOTS_MAX]; /* when the walk began */
	unsigned n;
};
struct gc_version {
	struct fs_key key;
	bool empty, shared;
	uint64_t block;
	uint32_t count; /* 0: no extent */
};

/* Is there a snapshot that sees a version of stamp FROM that one of stamp TO follows? */
static bool gc_seen(const struct snapshot_table *t, uint32_t from, uint32_t to)
{
	for (unsigned i = 0; i < t->count; i++)
		if (t->of[i].state == SNAPSHOT_KEPT && t->of[i].id > from && t->of[i].id <= to)
			return true;
	return false;
}

/* V is followed by version NEXT of its key (NULL: it is the last one). *KEPT: how many versions below it stay. 1: it
 * goes. */
static int gc_version(struct tx *tx, const struct gc_version *v, const struct fs_key *next, unsigned *kept)
{
	int r = 0;

	if ((!next || gc_seen(tx_fs(tx)->files->snapshots, v->key.snap, next->snap)) && !(v->empty && *kept == 0)) {
		++*kept;
		return 0;
	}
	if (v->shared)
		r = tx_share(tx, v->block, v->count, -1);
	else if (v->count && !v->empty)
		r = tx_blocks_drop(tx, v->block, v->count);
	if (r == 0)
		r = tx_delete_any(tx, &v->key);
	return r < 0 ? r : 1;
}

static int gc_read(struct tx *tx, const struct fs_key *key, const void *val, size_t len, struct gc_version *v)
{
	struct extent e;

	*v = (struct gc_version){.key = *key, .empty = len == 0};
	if (key->type != KEY_EXTENT)
		return 0;
	if (extent_decode(&tx_fs(tx)->geometry, key, val, len, &e) < 0)
		return -EIO;
	v->empty = e.hole;
	v->shared = e.shared;
	v->block = e.block;
	v->count = e.count;
	return 0;
}

static int gc_pass(struct tx *tx, void *arg)
{
	struct gc *g = arg;
	struct fs_key key = g->at;
	struct gc_version last = {.key = {.ino = 0}};
	unsigned kept = 0, drops = 0;
	int r = 0;

	g->end = false;
	for (unsigned n = 0;; n++) {
		const void *val;
		size_t len;
		bool same;

		r = tx_next_any(tx, &key, &val, &len);
		if (r < 0 && r != -ENOENT)
			return r;
		g->end = r == -ENOENT;
		same = !g->end && key.ino == last.key.ino && key.type == last.key.type && key.off == last.key.off;
		if (last.key.ino)
			r = gc_version(tx, &last, same ? &key : NULL, &kept);
		else
			r = 0;
		if (r < 0)
			return r;
		drops += (unsigned)r;
		if (drops == g->drops) {
			/* again from this key on: what is seen does not depend on what went */
			g->end = false;
			g->next = last.key;
			g->next.snap = 0;
			return 0;
		}
		if (!same)
			kept = 0;
		if (g->end || (!same && n >= g->limit))
			break;
		r = gc_read(tx, &key, val, len, &last);
		if (r < 0)
			return r;
		key.snap++; /* no stamp is that high */
	}
	g->next = key;
	g->next.snap = 0;
	return 0;
}

static void gc_done_applied(void *arg)
{
	struct snapshot_call *c = arg;
	struct snapshot_table *t = c->fs->files->snapshots;
	struct snapshot *s = find_id(c->fs->files, c->made.id);

	memmove(s, s + 1, (size_t)(t->of + t->count - s - 1) * sizeof(*s));
	t->count--;
}

static int gc_done_pass(struct tx *tx, void *arg)
{
	struct snapshot_call *c = arg;
	struct fs_key key = {.type = KEY_SNAPSHOT, .off = c->made.id};
	int r = tx_delete(tx, &key);

	return r < 0 ? r : tx_on_apply(tx, gc_done_applied, c);
}

static int gc_walk(struct fs *fs, struct gc *g)
{
	const struct snapshot_table *t = fs->files->snapshots;
	int r = 0;

	*g = (struct gc){.at = {.ino = 1}, .limit = GC_KEYS, .drops = UINT_MAX};
	for (unsigned i = 0; i < t->count; i++)
		if (t->of[i].state == SNAPSHOT_GOING)
			g->going[g->n++] = t->of[i].id;
	while (g->n && !fs->files->stopping) {
		r = fs_transact(fs, gc_pass, g, NULL);
		if (r == -E2BIG && (g->limit > 1 || g->drops > 1)) {
			if (g->limit > 1)
				g->limit /= 2;
			else
				g->drops = 1;
			continue;
		}
		if (r < 0)
			return r;
		if (g->end)
			break;
		g->at = g->next;
		fiber_yield();
	}
	for (unsigned i = 0; i < g->n && r == 0 && g->end; i++) {
		struct snapshot_call c = {.fs = fs, .made = {.id = g->going[i]}};

		r = fs_transact(fs, gc_done_pass, &c, NULL);
	}
	return r;
}

static void gc_fiber(void *arg)
{
	struct fs *fs = arg;
	struct snapshot_table *t = fs->files->snapshots;
	struct gc *g = malloc(sizeof(*g));
	int r = g ? 0 : -ENOMEM;

	while (r == 0 && t->again && !fs->files->stopping) {
		t->again = false;
		r = gc_walk(fs, g);
	}
	if (r < 0)
		log_error("fs", "space of deleted snapshots cannot be returned, the next mount tries again error=%s",
			strerror(-r));
	free(g);
	t->running = false;
	wait_queue_wake_all(&t->idle);
}

static void gc_start(struct fs *fs)
{
	struct snapshot_table *t = fs->files->snapshots;

	t->again = true;
	if (t->running || fs->files->stopping || fs->read_only)
		return;
	t->running = true;
	reactor_spawn(fs->home, gc_fiber, fs);
}

static int wait_run(struct fs *fs, void *arg)
{
	struct snapshot_table *t = fs->files->snapshots;

	(void)arg;
	while (t->running)
		wait_queue_wait(&t->idle, NEVER);
	return fs->failed;
}

int fs_snapshots_wait(struct fs *fs)
{
	return files_call(fs, wait_run, NULL);
}

/* ------------------------------------------------------------------------------------------------
 * Listing, mount, unmount
 */

struct list_call {
	void (*fn)(void *arg, const struct fs_snapshot *snapshot);
	void *arg;
};

static int list_run(struct fs *fs, void *arg)
{
	const struct list_call *c = arg;
	const struct snapshot_table *t = fs->files->snapshots;

	for (unsigned i = 0; i < t->count; i++) {
		struct fs_snapshot s = {.id = t->of[i].id,
			.name = t->of[i].name,
			.created_ns = t->of[i].created_ns,
			.fsid = fs_snapshot_fsid(fs->fsid, t->of[i].id),
			.deleting = t->of[i].state == SNAPSHOT_GOING};

		c->fn(c->arg, &s);
	}
	return 0;
}

int fs_snapshot_list(struct fs *fs, void (*fn)(void *arg, const struct fs_snapshot *snapshot), void *arg)
{
	struct list_call c = {fn, arg};

	return files_call(fs, list_run, &c);
}

int snapshot_decode(const void *val, size_t len, uint8_t *state, uint64_t *created_ns, const char **name, size_t *n)
{
	struct snapshot_disk d;

	if (len < sizeof(d))
		return -EIO;
	memcpy(&d, val, sizeof(d));
	*state = d.state;
	*created_ns = le64_get(d.created_ns);
	*n = le16_get(d.name_len);
	*name = (const char *)val + sizeof(d);
	return d.state > SNAPSHOT_GOING || len != sizeof(d) + *n || name_check(*name, *n) < 0 ? -EIO : 0;
}

int snapshots_mount(struct fs *fs)
{
	struct fs_key key = {.type = KEY_SNAPSHOT};
	struct snapshot_table *t = calloc(1, sizeof(*t));
	uint8_t val[sizeof(struct snapshot_disk) + FS_NAME_MAX];
	bool going = false;

	if (!t)
		return -ENOMEM;
	fs->files->snapshots = t;
	wait_queue_init(&t->idle);
	for (;; key.off++, key.snap = 0) {
		int r = tree_next(fs, &key, val, sizeof(val));
		struct stamp_disk stamp;
		struct snapshot *s;
		const char *name;
		size_t len;

		if (r == -ENOENT || (r >= 0 && (key.ino != 0 || key.type != KEY_SNAPSHOT)))
			break;
		if (r < 0)
			return r;
		if (key.off == 0) {
			memcpy(&stamp, val, sizeof(stamp));
			fs->files->stamp = le32_get(stamp.stamp);
			if (r != (int)sizeof(stamp))
				return -EIO;
			continue;
		}
		if (key.off > fs->files->stamp || t->count == FS_SNAPSHOTS_MAX || (size_t)r > sizeof(val))
			return -EIO;
		s = &t->of[t->count++];
		s->id = (uint32_t)key.off;
		r = snapshot_decode(val, (size_t)r, &s->state, &s->created_ns, &name, &len);
		if (r < 0)
			return r;
		s->len = (uint16_t)len;
		memcpy(s->name, name, len);
		going |= s->state == SNAPSHOT_GOING;
	}
	floor_set(fs->files);
	if (going)
		gc_start(fs);
	return 0;
}

void snapshots_unmount(struct fs *fs)
{
	struct snapshot_table *t = fs->files->snapshots;

	while (t && t->running)
		wait_queue_wait(&t->idle, NEVER);
	free(t);
	fs->files->snapshots = NULL;
}
