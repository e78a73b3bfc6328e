/*
 * Where blocks of files were found: from inode and block to place and checksum, for blocks of the cache of clean data.
 *
 * A reader who finds a block here and in the cache needs no look at the tree and no pass. It is a table without chains,
 * in which a newer entry takes the place of an older one. A file's blocks follow one another from a slot that its inode
 * number gives, so those of one file are never in each other's way as long as the table has room for all of it.
 *
 * What it says is right as long as no extent of the inode changed. So each inode in memory has a number, given when it
 * came into memory and anew with each change of an extent of its own that is applied; an entry has the one of its
 * time. Blocks that files share belong to a hidden inode, and when an extent of that changes, nobody knows whose
 * blocks these were: then all entries are void. Numbers are never used twice.
 *
 * Home reactor only. No wait.
 */
#include "fs/inode_internal.h"

#define SLOTS_MIN 1024u
#define SLOTS_MOST (1u << 20)

struct map_slot {
	uint64_t ino, block, version, clock, phys;
	uint32_t sum;
};

static struct map_slot *slot_of(const struct data_map *m, const struct inode *inode, uint64_t block)
{
	return &m->slot[(inode->node.hash + block) & m->mask];
}

uint64_t data_map_new(struct fs *fs)
{
	return ++fs->files->map.clock;
}

void data_map_forget(struct fs *fs)
{
	fs->files->map.floor = ++fs->files->map.clock;
}

void data_map_put(struct fs *fs, const struct inode *inode, uint64_t block, uint64_t phys, uint32_t sum)
{
	struct data_map *m = &fs->files->map;

	*slot_of(m, inode, block) = (struct map_slot){inode->ino, block, inode->map, m->clock, phys, sum};
}

bool data_map_find(struct fs *fs, const struct inode *inode, uint64_t block, struct slice *at)
{
	const struct data_map *m = &fs->files->map;
	const struct map_slot *s = slot_of(m, inode, block);

	return s->version == inode->map && s->block == block && s->ino == inode->ino && s->clock >= m->floor &&
	       data_cache_peek(fs, s->phys, s->sum, at);
}

int data_map_init(struct fs *fs)
{
	struct data_map *m = &fs->files->map;
	size_t slots = SLOTS_MIN;

	while (slots < fs->files->cache.limit / BLOCK_BYTES && slots < SLOTS_MOST)
		slots *= 2;
	m->slot = calloc(slots, sizeof(m->slot[0]));
	m->mask = slots - 1;
	return m->slot ? 0 : -ENOMEM;
}

void data_map_fini(struct fs *fs)
{
	free(fs->files->map.slot);
	fs->files->map.slot = NULL;
}
