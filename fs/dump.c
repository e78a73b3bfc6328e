/*
 * fs dump: what lies in the tree, in words, for whoever looks for a fault.
 *
 * A walk over the keys that were asked for, as they lie there: all versions, and values that make no
 * sense as bytes. Each becomes one line. Nothing is changed, and what changes meanwhile may be seen before or after.
 */
#include <inttypes.h>
#include <stdarg.h>

#include "fs/inode_internal.h"

struct dump {
	const char *what;
	uint64_t ino;
	fs_dump_fn *fn;
	void *arg;
	bool full; /* FN has no room left */
	struct fs *fs;
	uint8_t value[TREE_VALUE_MAX];
	char line[1200];
	size_t used;
};

static void put(struct dump *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct dump *d, const char *format, ...)
{
	va_list args;
	int n;

	va_start(args, format);
	n = vsnprintf(d->line + d->used, sizeof(d->line) - d->used, format, args);
	va_end(args);
	if (n > 0)
		d->used += (size_t)n < sizeof(d->line) - d->used ? (size_t)n : sizeof(d->line) - d->used - 1;
}

/* Names as they are, but one line must stay one line. */
static void put_name(struct dump *d, const char *name, size_t len)
{
	put(d, "\"");
	for (size_t i = 0; i < len; i++) {
		uint8_t c = (uint8_t)name[i];

		put(d, c < 32 || c >= 127 || c == '"' || c == '\\' ? "\\x%02x" : "%c", c);
	}
	put(d, "\"");
}

static void line_end(struct dump *d)
{
	d->full = !d->fn(d->arg, d->line);
	d->used = 0;
}

/* ------------------------------------------------------------------------------------------------
 * Values
 */

static bool put_inode(struct dump *d, size_t len)
{
	struct inode_attr a;

	if (inode_decode(d->value, len, &a) < 0)
		return false;
	put(d,
		"type=%u mode=%04o nlink=%u uid=%u gid=%u gen=%u size=%" PRIu64 " blocks=%" PRIu64 " change=%" PRIu64
		" flags=%u aux=%" PRIu64 " next_seq=%" PRIu64 " atime=%" PRId64 " mtime=%" PRId64 " ctime=%" PRId64
		" btime=%" PRId64,
		a.type, a.mode, a.nlink, a.uid, a.gid, a.gen, a.size, a.blocks, a.change, a.flags, a.aux, a.next_seq,
		a.atime, a.mtime, a.ctime, a.btime);
	if (a.type == FS_CHR || a.type == FS_BLK)
		put(d, " device=%u:%u", a.rdev_major, a.rdev_minor);
	return true;
}

static bool put_dirent(struct dump *d, const struct fs_key *key, size_t len)
{
	struct dirent ent = {.seq = key->off};
	const char *name;
	size_t n;
	int r = key->type == KEY_NAME ? name_decode(d->value, len, &ent, &name, &n)
				      : entry_decode(d->value, len, &ent, &name, &n);

	if (r < 0)
		return false;
	put(d, "seq=%" PRIu64 " ino=%" PRIu64 " gen=%u type=%u name=", ent.seq, ent.ino, ent.gen, ent.type);
	put_name(d, name, n);
	return true;
}

static bool put_extent(struct dump *d, const struct fs_key *key, size_t len)
{
	uint64_t stripe = volume_stripe_blocks(&d->fs->geometry);
	struct extent e;

	if (extent_decode(&d->fs->geometry, key, d->value, len, &e) < 0)
		return false;
	if (e.hole)
		put(d, "count=%u hides", e.count);
	else if (e.shared)
		put(d, "count=%u shared=%" PRIu64, e.count, e.block);
	else
		put(d, "count=%u physical=%" PRIu64 " stripe=%" PRIu64 " first_sum=%08x", e.count, e.block,
			e.block / stripe, extent_sum(&e, 0));
	return true;
}

static bool put_state(struct dump *d, const struct fs_key *key, size_t len)
{
	struct fs_state record;

	if (state_decode(d->value, len, &record) < 0)
		return false;
	put(d, "kind=%u name=", (unsigned)(key->off >> 56));
	put_name(d, (const char *)record.name, record.name_len);
	put(d, " bytes=%zu", record.data_len);
	return true;
}

static bool put_global(struct dump *d, const struct fs_key *key, size_t len)
{
	const struct counters_disk *counters = (const void *)d->value;
	const struct reply_disk *reply = (const void *)d->value;
	uint64_t created;
	const char *name;
	uint8_t state;
	uint32_t refs;
	size_t n;

	switch (key->type) {
	case KEY_SHARE:
		if (share_decode(key, d->value, len, &created, &refs) < 0)
			return false;
		put(d, "count=%" PRIu64 " references=%u", created - key->off, refs);
		return true;
	case KEY_SUMMARY:
		for (unsigned i = 0; i < summary_runs(len); i++) {
			struct summary_disk s = summary_run(d->value, i);
			put(d, "%sino=%" PRIu64 " block=%" PRIu64 " count=%u ahead=%u", i ? " " : "", le64_get(s.ino),
				le64_get(s.file_block), le16_get(s.count), le16_get(s.ahead));
		}
		return summary_runs(len) > 0;
	case KEY_SNAPSHOT:
		if (key->off == 0) {
			put(d, "stamp=%u", fs_stamp(d->fs));
			return true;
		}
		if (snapshot_decode(d->value, len, &state, &created, &name, &n) < 0)
			return false;
		put(d, "state=%u created=%" PRIu64 " name=", state, created);
		put_name(d, name, n);
		return true;
	case KEY_ORPHAN:
		put(d, "state=%u", d->value[0]);
		return len == sizeof(struct orphan_disk);
	case KEY_REPLY:
		if (len != sizeof(*reply))
			return false;
		put(d, "seq=%" PRIu64 " client=%016" PRIx64 " xid=%08x procedure=%u ino=%" PRIu64, le64_get(reply->seq),
			le64_get(reply->client), le32_get(reply->xid), le32_get(reply->proc), le64_get(reply->ino));
		return true;
	case KEY_STATE:
		return put_state(d, key, len);
	case KEY_COUNTERS:
		if (len != sizeof(*counters))
			return false;
		put(d, "next_ino=%" PRIu64 " inodes=%" PRIu64, le64_get(counters->next_ino),
			le64_get(counters->inodes));
		return true;
	default:
		return false;
	}
}

static bool put_value(struct dump *d, const struct fs_key *key, size_t len)
{
	size_t size, n;
	const char *name;

	if (key->ino == 0)
		return put_global(d, key, len);
	if (len == 0) {
		put(d, "hides");
		return true;
	}
	switch (key->type) {
	case KEY_INODE:
		return put_inode(d, len);
	case KEY_SYMLINK:
		put(d, "target=");
		put_name(d, (const char *)d->value, len);
		return true;
	case KEY_NAME:
	case KEY_ENTRY:
		return put_dirent(d, key, len);
	case KEY_XATTR:
		if (key->off % 256) {
			put(d, "piece=%u bytes=%zu", (unsigned)(key->off % 256), len);
			return true;
		}
		if (xattr_decode(d->value, len, &size, &name, &n) < 0)
			return false;
		put(d, "size=%zu name=", size);
		put_name(d, name, n);
		return true;
	case KEY_EXTENT:
		return put_extent(d, key, len);
	default:
		return false;
	}
}

/* Stripes share a value: a line for each that is not free. */
static void dump_stripes(struct dump *d, const struct fs_key *key, size_t len)
{
	const struct stripes_disk *group = (const void *)d->value;

	for (unsigned i = 0; i < STRIPES_PER_KEY && len == sizeof(*group) && !d->full; i++) {
		uint32_t value = le32_get(group->stripe[i]);

		if (!value)
			continue;
		put(d, "stripe %" PRIu64 " live=%u class=%u", key->off * STRIPES_PER_KEY + i, stripe_live(value),
			(unsigned)stripe_class(value));
		line_end(d);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Walks
 */

static const struct {
	const char *what, *label;
	bool inode;
	uint8_t from, to; /* types */
} walks[] = {
	{"inode", "inode", true, KEY_INODE, KEY_SYMLINK},
	{"dir", "name", true, KEY_NAME, KEY_ENTRY},
	{"xattrs", "xattr", true, KEY_XATTR, KEY_XATTR},
	{"extents", "extent", true, KEY_EXTENT, KEY_EXTENT},
	{"stripes", "stripe", false, KEY_STRIPES, KEY_STRIPES},
	{"owners", "run", false, KEY_SUMMARY, KEY_SUMMARY},
	{"shares", "share", false, KEY_SHARE, KEY_SHARE},
	{"snapshots", "snapshot", false, KEY_SNAPSHOT, KEY_SNAPSHOT},
	{"orphans", "orphan", false, KEY_ORPHAN, KEY_ORPHAN},
	{"replies", "reply", false, KEY_REPLY, KEY_REPLY},
	{"state", "state", false, KEY_STATE, KEY_STATE},
	{"counters", "counters", false, KEY_COUNTERS, KEY_COUNTERS},
};

static int dump_keys(struct dump *d, const char *label, uint64_t ino, uint8_t from, uint8_t to)
{
	struct fs_key key = {.ino = ino, .type = from};

	while (!d->full) {
		int r = tree_next(d->fs, &key, d->value, sizeof(d->value));

		if (r == -ENOENT || (r >= 0 && (key.ino != ino || key.type > to)))
			return 0;
		if (r < 0)
			return r;
		if (key.type == KEY_STRIPES && ino == 0) {
			dump_stripes(d, &key, (size_t)r);
		} else {
			put(d, "%s %s%" PRIx64 " stamp=%u ", key.type == KEY_ENTRY ? "entry" : label,
				key.type == KEY_EXTENT || ino == 0 ? "0x" : "", key.off, key.snap);
			if (!put_value(d, &key, (size_t)r)) {
				put(d, "makes no sense:");
				for (int i = 0; i < r && i < 64; i++)
					put(d, " %02x", d->value[i]);
			}
			line_end(d);
		}
		if (++key.snap == 0 && ++key.off == 0)
			key.type++;
	}
	return 0;
}

static int dump_node(void *arg, uint64_t block, unsigned blocks, unsigned level)
{
	struct dump *d = arg;

	put(d, "node block=%" PRIu64 " blocks=%u level=%u", block, blocks, level);
	line_end(d);
	return d->full ? -EAGAIN : 0;
}

static int dump_root(struct dump *d)
{
	const struct fs *fs = d->fs;
	const struct checkpoint *c = &fs->checkpoint;

	put(d,
		"root generation=%" PRIu64 " checkpoint=%" PRIu64 " tree_block=%" PRIu64 " tree_generation=%" PRIu64
		" tree_level=%u mounts=%" PRIu64 " incompat=%#x compat=%#x",
		c->generation, c->tree_checkpoint, c->tree_block, c->tree_generation, c->tree_level, fs->mounts,
		fs->incompat, fs->compat);
	line_end(d);
	put(d,
		"log replay_position=%" PRIu64 " replay_sequence=%" PRIu64 " head=%" PRIu64 " tail=%" PRIu64
		" sequence=%" PRIu64 " durable=%" PRIu64 " capacity=%" PRIu64 " used=%" PRIu64 " streams=%" PRIu64,
		c->log_position, c->log_sequence, fs->log.head, fs->log.tail, fs->log.sequence, fs->log.durable,
		fs->log.capacity, log_used(fs), fs->log.stream_blocks);
	line_end(d);
	return 0;
}

static int dump_run(struct fs *fs, void *arg)
{
	struct dump *d = arg;

	d->fs = fs;
	if (strcmp(d->what, "root") == 0 || strcmp(d->what, "log") == 0)
		return dump_root(d);
	if (strcmp(d->what, "nodes") == 0) {
		int r = tree_walk_nodes(fs, dump_node, d);
		return d->full ? 0 : r;
	}
	for (unsigned i = 0; i < sizeof(walks) / sizeof(walks[0]); i++)
		if (strcmp(d->what, walks[i].what) == 0)
			return dump_keys(d, walks[i].label, walks[i].inode ? d->ino : 0, walks[i].from, walks[i].to);
	return -EINVAL;
}

int fs_dump(struct fs *fs, const char *what, uint64_t ino, fs_dump_fn *fn, void *arg)
{
	struct dump *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return -EAGAIN;
	d->what = what;
	d->ino = ino ? ino : FS_ROOT_INO;
	d->fn = fn;
	d->arg = arg;
	r = files_call(fs, dump_run, d);
	free(d);
	return r;
}
