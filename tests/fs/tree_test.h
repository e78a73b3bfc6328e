/*
 * For the tests of the lower half of fs/: an array of small file drives with a volume, and a
 * stand-in for the upper half that does next to nothing, so that these tests run on the tree alone.
 */
#ifndef FURROW_TREE_TEST_H
#define FURROW_TREE_TEST_H

#include "fs/files_internal.h"
#include "fs/inode_internal.h"
#include "tests/raid/raid_test.h"

int files_format(struct tx *tx, const struct fs_create_options *options)
{
	struct fs_key key = {.ino = FS_ROOT_INO, .type = KEY_INODE};
	return tx_put(tx, &key, &options->root_mode, sizeof(options->root_mode));
}
int files_mount(struct fs *fs, struct error *err)
{
	(void)err;
	fs->files = calloc(1, sizeof(*fs->files));
	if (!fs->files)
		return -ENOMEM;
	wait_queue_init(&fs->files->read_wait);
	return 0;
}
int files_unmount(struct fs *fs)
{
	free(fs->files);
	fs->files = NULL;
	return 0;
}
void files_extent_changed(struct fs *fs, uint64_t ino)
{
	(void)fs;
	(void)ino;
}
int files_flush_all(struct fs *fs)
{
	(void)fs;
	return 0;
}
void files_status(const struct fs *fs, struct fs_status *out)
{
	(void)fs;
	(void)out;
}
uint32_t fs_stamp(const struct fs *fs)
{
	(void)fs;
	return 0;
}
uint32_t fs_stamp_floor(const struct fs *fs)
{
	(void)fs;
	return 0;
}
int files_repair_begin(struct fs *fs)
{
	(void)fs;
	return 0;
}
void files_repair_end(struct fs *fs)
{
	(void)fs;
}
int repair_look(struct fs *fs)
{
	(void)fs;
	return 0;
}
void repair_log_skip(struct fs *fs, uint64_t sequence, int error)
{
	(void)fs;
	(void)sequence;
	(void)error;
}
uint64_t files_inode_count(const struct fs *fs)
{
	(void)fs;
	return 1;
}

struct tree_test {
	struct raid_test drives;
	struct array *array;
	struct volume *volume;
	struct fs *fs;
	uint64_t cache_bytes;
	struct error err;
};

/* A new array with a new file system, mounted. */
static inline int tree_test_make(
	struct tree_test *t, unsigned level, unsigned drives, uint64_t bytes, const char *prefix)
{
	memset(t, 0, sizeof(*t));
	t->cache_bytes = 16u << 20;
	raid_test_drives(&t->drives, drives, bytes, prefix);
	int rc = raid_test_create(&t->drives, level, 65536, &t->err);
	if (!rc)
		rc = raid_test_open_volume(&t->drives, true, &t->array, &t->volume, &t->err);
	if (!rc)
		rc = fs_create(t->volume, NULL, &t->err);
	return rc;
}

static inline int tree_test_mount(struct tree_test *t)
{
	struct fs_mount_options options = {.cache_bytes = t->cache_bytes};
	return fs_mount(t->volume, &options, &t->fs, &t->err);
}

static inline int tree_test_unmount(struct tree_test *t)
{
	int rc = t->fs ? fs_unmount(t->fs) : 0;
	t->fs = NULL;
	return rc;
}

static inline void tree_test_close(struct tree_test *t)
{
	if (t->volume)
		volume_close(t->volume);
	if (t->array)
		array_close(t->array);
	t->volume = NULL;
	t->array = NULL;
}

static inline int tree_test_open(struct tree_test *t)
{
	return raid_test_open_volume(&t->drives, false, &t->array, &t->volume, &t->err);
}

static inline void tree_test_end(struct tree_test *t)
{
	tree_test_unmount(t);
	tree_test_close(t);
	raid_test_remove(&t->drives);
}

/* Live counts and free stripes against the nodes that the tree has. */
struct node_census {
	struct fs *fs;
	uint32_t *live; /* per stripe */
	uint64_t nodes;
	int bad;
};
static inline int node_census_add(void *arg, uint64_t block, unsigned blocks, unsigned level)
{
	struct node_census *c = arg;
	(void)level;
	if (block / c->fs->space.stripe_blocks >= c->fs->space.stripes)
		return -EIO;
	c->live[block / c->fs->space.stripe_blocks] += blocks;
	c->nodes++;
	return 0;
}
/* Right after a checkpoint, when nothing but its own transaction is dirty: block counts are exactly those of the tree's
 * nodes. */
static inline bool tree_test_space_is_right(struct fs *fs)
{
	struct node_census c = {.fs = fs, .live = calloc(fs->space.stripes, sizeof(uint32_t))};
	bool right = tree_walk_nodes(fs, node_census_add, &c) == 0;
	uint64_t free_stripes = 0, in_groups = 0;
	for (uint64_t i = 0; right && i < fs->space.stripes; i++) {
		uint32_t live;
		bool nodes;
		space_stripe_info(fs, i, &live, &nodes);
		free_stripes += fs->space.table[i] == 0 && fs->space.flags[i] == 0;
		if ((nodes || c.live[i]) && (!nodes || live != c.live[i])) {
			fprintf(stderr, "stripe %llu: counted %u, recorded %u\n", (unsigned long long)i, c.live[i],
				live);
			right = false;
		}
	}
	for (uint64_t g = 0; g <= fs->space.stripes / STRIPES_PER_KEY; g++)
		in_groups += fs->space.free_in[g];
	if (free_stripes != fs->space.free || in_groups != free_stripes) {
		fprintf(stderr, "free: counted %llu, recorded %llu, in groups %llu\n", (unsigned long long)free_stripes,
			(unsigned long long)fs->space.free, (unsigned long long)in_groups);
		right = false;
	}
	free(c.live);
	return right;
}

#endif
