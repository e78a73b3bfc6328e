/*
 * Extents: which physical blocks hold a file's blocks, with a checksum of each; and verified reads.
 *
 * KEY_EXTENT of an inode, off: its first block, says that up to 128 blocks of the file lie in
 * physical blocks one after the other. Extents of a file never overlap; a hole has none. They are
 * only changed in transactions, together with the live counts of the stripes. Where a file refers to shared
 * blocks (share.c), extent_find() goes on to the extent that owns them and shows the part they have in common.
 *
 * Physical blocks that a read saw in the tree may be given up before the drive has answered. So a
 * read is inside a read section from the look at the tree to the last byte, and a checkpoint waits
 * in files_read_barrier() for the sections that began before it, before it gives a stripe to
 * somebody else. Sections are counted in two phases: the barrier changes the phase and waits for
 * the old one to drain.
 *
 * A block whose checksum does not match is read again in every way the array knows; the first
 * content that matches goes back to the drive. If none does, the read is -EIO. It is -ETIMEDOUT when a drive
 * keeps the memory: whoever gave it takes other memory and comes again (read_again()).
 */
#include "fs/inode_internal.h"

int extent_decode(
	const struct volume_geometry *g, const struct fs_key *key, const void *val, size_t len, struct extent *e)
{
	uint64_t total = volume_stripe_blocks(g) * g->stripes;
	struct extent_disk d;

	if (len < sizeof(d))
		return -EIO;
	memcpy(&d, val, sizeof(d));
	e->first = key->off;
	e->block = le64_get(d.block);
	e->count = le32_get(d.count);
	e->sums = (const uint8_t *)val + sizeof(d);
	e->hole = le32_get(d.flags) == EXTENT_HOLE;
	e->shared = le32_get(d.flags) == EXTENT_SHARED;
	if (e->hole || e->shared)
		return e->count == 0 || e->count > EXTENT_REF_BLOCKS_MAX || e->first > EXTENT_END - e->count ||
				       (e->hole && (e->block != 0 || len != sizeof(d))) ||
				       (e->shared && (len != EXTENT_REF_BYTES || e->block > EXTENT_END - e->count ||
							     key->ino == FS_SHARED_INO))
			       ? -EIO
			       : 0;
	if (e->count == 0 || e->count > EXTENT_BLOCKS_MAX || le32_get(d.flags) != 0 ||
		len != sizeof(d) + (size_t)e->count * 4 || e->block >= total || e->count > total - e->block ||
		e->first > EXTENT_END - e->count)
		return -EIO;
	return 0;
}

static int extent_check(struct tx *tx, const struct fs_key *key, const void *val, size_t len, struct extent *e)
{
	int r = extent_decode(&tx_fs(tx)->geometry, key, val, len, e);

	if (r < 0)
		log_error("fs", "extent record makes no sense ino=%llu block=%llu", (unsigned long long)key->ino,
			(unsigned long long)key->off);
	return r;
}

int extent_find_record(struct tx *tx, uint64_t ino, uint64_t block, struct extent *e)
{
	struct fs_key key = {.ino = ino, .type = KEY_EXTENT, .off = block};
	const void *val;
	size_t len;
	int r = tx_prev(tx, &key, &val, &len);

	if (r < 0 && r != -ENOENT)
		return r;
	if (r == 0 && key.ino == ino && key.type == KEY_EXTENT) {
		r = extent_check(tx, &key, val, len, e);
		if (r < 0)
			return r;
		if (block < e->first + e->count)
			return 0;
	}
	key = (struct fs_key){.ino = ino, .type = KEY_EXTENT, .off = block};
	r = tx_next(tx, &key, &val, &len);
	if (r < 0)
		return r;
	if (key.ino != ino || key.type != KEY_EXTENT)
		return -ENOENT;
	return extent_check(tx, &key, val, len, e);
}

int extent_find(struct tx *tx, uint64_t ino, uint64_t block, struct extent *e)
{
	struct extent own;
	uint64_t skip = 0, in;
	int r = extent_find_record(tx, ino, block, e);

	if (r < 0 || !e->shared)
		return r;
	if (block > e->first)
		skip = block - e->first;
	r = extent_find_record(tx, FS_SHARED_INO, e->block + skip, &own);
	if (r == -ENOENT || (r == 0 && own.first > e->block + skip)) {
		log_error("fs", "refers to shared blocks that are not there ino=%llu block=%llu",
			(unsigned long long)ino, (unsigned long long)(e->first + skip));
		return -EIO;
	}
	if (r < 0)
		return r;
	in = e->block + skip - own.first;
	e->first += skip;
	e->count -= (uint32_t)skip;
	if (e->count > own.count - in)
		e->count = (uint32_t)(own.count - in);
	e->block = own.block + in;
	e->sums = own.sums + in * 4;
	e->shared = false;
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Read sections
 */

unsigned read_enter(struct fs_files *files)
{
	files->reads[files->read_phase]++;
	return files->read_phase;
}

void read_leave(struct fs_files *files, unsigned phase)
{
	assert(files->reads[phase] > 0);
	if (--files->reads[phase] == 0)
		wait_queue_wake_all(&files->read_wait);
}

void files_read_barrier(struct fs *fs)
{
	struct fs_files *files = fs->files;
	unsigned old;

	if (!files)
		return;
	old = files->read_phase;
	files->read_phase = !old;
	while (files->reads[old] > 0)
		wait_queue_wait(&files->read_wait, NEVER);
}

/* ------------------------------------------------------------------------------------------------
 * Verified reads
 */

#define REREAD_ATTEMPTS 64u /* bounds the loop; the array says -ENOENT long before */

static int block_recover(
	struct fs *fs, uint64_t ino, uint64_t file_block, uint64_t phys, uint32_t sum, const struct slice *to)
{
	struct fs_files *files = fs->files;
	int r;

	__atomic_fetch_add(&files->checksum_errors, 1, __ATOMIC_RELAXED); /* reads run on all reactors */
	for (unsigned attempt = 0; attempt < REREAD_ATTEMPTS; attempt++) {
		r = volume_reread(fs->volume, phys, attempt, to);
		if (r == -ETIMEDOUT)
			return r;
		if (r == -ENOENT)
			break;
		if (r < 0 || checksum32(slice_data(to), BLOCK_BYTES) != sum)
			continue;
		r = volume_repair(fs->volume, phys, to);
		if (r == 0)
			__atomic_fetch_add(&files->checksum_repairs, 1, __ATOMIC_RELAXED);
		log_warning("fs", "wrong data from a drive, %s ino=%llu block=%llu physical=%llu",
			r == 0 ? "repaired" : "could not be repaired but was read another way", (unsigned long long)ino,
			(unsigned long long)file_block, (unsigned long long)phys);
		return 0;
	}
	log_error("fs", "data is lost: no copy has the right checksum ino=%llu block=%llu physical=%llu",
		(unsigned long long)ino, (unsigned long long)file_block, (unsigned long long)phys);
	return -EIO;
}

int blocks_read_verified(struct fs *fs, uint64_t ino, uint64_t file_block, uint64_t phys, uint32_t count,
	const uint32_t *sums, const struct slice *to, unsigned n)
{
	uint32_t i = 0;
	int r = volume_read(fs->volume, phys, to, n);

	if (r < 0)
		return r;
	for (unsigned s = 0; s < n; s++) {
		for (uint32_t off = 0; off < to[s].len; off += BLOCK_BYTES, i++) {
			struct slice block = {to[s].buf, to[s].off + off, BLOCK_BYTES};

			if (i >= count || checksum32(slice_data(&block), BLOCK_BYTES) == sums[i])
				continue;
			r = block_recover(fs, ino, file_block + i, phys + i, sums[i], &block);
			if (r < 0)
				return r;
		}
	}
	if (i <= count)
		volume_verified(fs->volume, phys, to, n);
	return 0;
}
