/*
 * fs check of summaries (check_summary.h). Those that the walk meets, before any extent, are put in order of their
 * blocks: what is there when an extent is met is found by halving. Of what is not, the summaries of its stripe are read
 * anew, and then the extent: as long as that is the same its summary has to be there, whatever else goes on.
 *
 * Memory: 32 bytes for each run.
 */
#include "fs/check_summary.h"

bool summary_good(const struct fs *fs, const struct fs_key *key, const void *val, size_t len)
{
	uint64_t per = fs->space.stripe_blocks, room = per - key->off % per;
	unsigned runs = summary_runs(len);

	for (unsigned i = 0; i < runs; i++) {
		struct summary_disk d = summary_run(val, i);
		uint32_t count = le16_get(d.count), ahead = le16_get(d.ahead);

		if (count == 0 || ahead >= room || count > room - ahead || le64_get(d.ino) == 0 ||
			(le64_get(d.ino) == FS_SHARED_INO) != (key->snap == 1))
			return false;
	}
	return runs > 0 && key->snap <= 1 && key->off / per < fs->space.stripes;
}

int summaries_seen(
	struct check_summaries *s, const struct fs *fs, const struct fs_key *key, const void *val, size_t len)
{
	typeof(s->side[0]) *side = &s->side[key->snap == 1];

	if (!summary_good(fs, key, val, len))
		return -EIO;
	for (unsigned i = 0; i < summary_runs(len); i++) {
		struct summary_disk d = summary_run(val, i);

		if (side->n == side->room) {
			unsigned long more = 2 * side->room + 64;
			struct summary_seen *of = realloc(side->of, more * sizeof(*of));

			if (!of)
				return -ENOMEM;
			side->of = of;
			side->room = more;
		}
		side->of[side->n++] = (struct summary_seen){
			key->off + le16_get(d.ahead), le64_get(d.ino), le64_get(d.file_block), le16_get(d.count)};
		side->sorted = false;
	}
	return 0;
}

void summaries_clear(struct check_summaries *s)
{
	s->side[0].n = s->side[1].n = 0;
}

void summaries_free(struct check_summaries *s)
{
	free(s->side[0].of);
	free(s->side[1].of);
}

static int seen_compare(const void *va, const void *vb)
{
	const struct summary_seen *a = va, *b = vb;

	return a->block < b->block ? -1 : a->block > b->block;
}

static bool seen_names(const struct summary_seen *run, uint64_t ino, uint64_t file_block, uint64_t block)
{
	return run->ino == ino && block - run->block < run->count &&
	       run->file_block + (block - run->block) == file_block;
}

/* As the walk saw it. */
static bool named_before(struct check_summaries *s, uint64_t ino, uint64_t file_block, uint64_t block)
{
	unsigned side = ino == FS_SHARED_INO;
	const struct summary_seen *of = s->side[side].of;
	unsigned long low = 0, high = s->side[side].n;

	if (!s->side[side].sorted && high)
		qsort(s->side[side].of, high, sizeof(*of), seen_compare);
	s->side[side].sorted = true;
	while (low < high) {
		unsigned long mid = (low + high) / 2;

		if (of[mid].block <= block)
			low = mid + 1;
		else
			high = mid;
	}
	return low > 0 && seen_names(&of[low - 1], ino, file_block, block);
}

/* As it is now. 1: yes; 0: no. */
static int named_now(struct fs *fs, uint64_t ino, uint64_t file_block, uint64_t block)
{
	uint64_t per = fs->space.stripe_blocks;
	struct fs_key key = {.type = KEY_SUMMARY, .off = block / per * per};
	uint8_t val[TREE_VALUE_MAX];

	for (;; key.snap++) {
		int n = tree_next(fs, &key, val, sizeof(val));

		if (n == -ENOENT || (n >= 0 && (key.ino || key.type != KEY_SUMMARY || key.off > block)))
			return 0;
		if (n < 0)
			return n;
		for (unsigned i = 0; i < summary_runs((size_t)n); i++) {
			struct summary_disk d = summary_run(val, i);
			struct summary_seen run = {key.off + le16_get(d.ahead), le64_get(d.ino), le64_get(d.file_block),
				le16_get(d.count)};

			if (seen_names(&run, ino, file_block, block))
				return 1;
		}
	}
}

/* Whether KEY still has extent E. */
static int extent_stands(struct fs *fs, const struct fs_key *key, const struct extent *e)
{
	struct fs_key at = *key;
	uint8_t val[TREE_VALUE_MAX];
	struct extent is;
	int n = tree_next(fs, &at, val, sizeof(val));

	if (n < 0)
		return n == -ENOENT ? 0 : n;
	return at.ino == key->ino && at.type == key->type && at.off == key->off && at.snap == key->snap &&
	       extent_decode(&fs->geometry, &at, val, (size_t)n, &is) == 0 && is.block == e->block &&
	       is.count == e->count && !is.hole && !is.shared;
}

int summaries_missing(
	struct check_summaries *s, struct fs *fs, const struct fs_key *key, const struct extent *e, uint64_t *missing)
{
	for (uint32_t i = 0; i < e->count; i++) {
		int rc;

		if (named_before(s, key->ino, e->first + i, e->block + i))
			continue;
		*missing = e->first + i;
		rc = named_now(fs, key->ino, e->first + i, e->block + i);
		if (rc == 0)
			return extent_stands(fs, key, e);
		if (rc < 0)
			return rc;
	}
	return 0;
}
