/*
 * Streams in the log. What a flush writes in long runs costs 4 bytes of checksum for each block, and the log M+1 times
 * that: most of what a large file has of metadata. The rows are durable before the record that names them is, so the
 * record need not hold what can be had from them: for STREAM_GROUP blocks (a strip, mostly) it has one checksum, that
 * of their checksums. The tree in memory has all of them, and the next checkpoint writes them.
 *
 *   log_append()     squeezes the value of a LOG_STREAM: stream_squeeze()
 *   replay           puts an extent with each group's checksum in the place of each block's (stream_expand()), and
 * notes it (stream_note()) streams_resolve  when all of the log is replayed: what still is as it was noted is read,
 * verified and gets the checksums of its blocks. What was dropped meanwhile is not looked at, for its place may hold
 *                    something else by now; whatever else happened to it said the checksums in its own record
 *
 * How much that may be bounds the time of a mount: a checkpoint is due when STREAM_BLOCKS_MOST are in the log.
 *
 * A group that does not match is read every other way that the array knows, and repaired. One that no way brings back
 * is lost: its blocks get checksums that do not match what is there, so that reading them stays an error.
 *
 * Home reactor, during the mount, before anybody else uses the tree.
 */
#include <stdlib.h>

#include "fs/fs_internal.h"
#include "fs/inode_format.h"

#define STREAM_BLOCKS_MOST (2ull << 30 >> BLOCK_SHIFT) /* as long as that is read for a second or two */
#define READERS 4u
#define REREAD_ATTEMPTS 64u /* bounds the loop; the array says -ENOENT long before */
_Static_assert(STREAM_VALUE_MAX == sizeof(struct extent_disk) + EXTENT_BLOCKS_MAX * sizeof(le32), "an extent");
#define BUFS (EXTENT_BLOCKS_MAX * BLOCK_BYTES / BUF_MAX)
#define GROUP_BYTES (STREAM_GROUP * BLOCK_BYTES)

uint32_t stream_least = STREAM_GROUP;

struct stream {
	struct pkey key;
	struct extent_disk head;
	le32 group[EXTENT_BLOCKS_MAX / STREAM_GROUP];
};

static uint32_t stream_groups(uint32_t count)
{
	return (count + STREAM_GROUP - 1) / STREAM_GROUP;
}

static uint32_t group_blocks(uint32_t count, uint32_t group)
{
	uint32_t left = count - group * STREAM_GROUP;

	return left < STREAM_GROUP ? left : STREAM_GROUP;
}

uint32_t stream_count(const void *val)
{
	struct extent_disk head;

	memcpy(&head, val, sizeof(head));
	return le32_get(head.count);
}

bool streams_many(const struct fs *fs)
{
	return fs->log.stream_blocks > STREAM_BLOCKS_MOST;
}

size_t stream_squeezed(size_t len)
{
	return sizeof(struct extent_disk) +
	       stream_groups((uint32_t)((len - sizeof(struct extent_disk)) / sizeof(le32))) * sizeof(le32);
}

size_t stream_squeeze(const uint8_t *val, uint8_t *out)
{
	uint32_t count = stream_count(val);
	const uint8_t *sums = val + sizeof(struct extent_disk);
	size_t len = sizeof(struct extent_disk);

	memcpy(out, val, len);
	for (uint32_t g = 0; g < stream_groups(count); g++, len += sizeof(le32)) {
		le32 sum = le32_put(checksum32(
			sums + (size_t)g * STREAM_GROUP * sizeof(le32), group_blocks(count, g) * sizeof(le32)));
		memcpy(out + len, &sum, sizeof(sum));
	}
	return len;
}

int stream_expand(const uint8_t *val, size_t len, uint8_t *out)
{
	struct extent_disk head;
	uint32_t count;

	if (len < sizeof(head))
		return -EIO;
	memcpy(&head, val, sizeof(head));
	count = le32_get(head.count);
	if (!count || count > EXTENT_BLOCKS_MAX || le32_get(head.flags) ||
		len != sizeof(head) + stream_groups(count) * sizeof(le32))
		return -EIO;
	memcpy(out, &head, sizeof(head));
	for (uint32_t i = 0; i < count; i++)
		memcpy(out + sizeof(head) + i * sizeof(le32), val + sizeof(head) + i / STREAM_GROUP * sizeof(le32),
			sizeof(le32));
	return (int)(sizeof(head) + count * sizeof(le32));
}

int stream_note(struct fs *fs, const struct pkey *key, const uint8_t *val)
{
	struct log *log = &fs->log;
	struct stream s = {.key = *key};

	if (log->streams == log->streams_room) {
		size_t room = 2 * log->streams_room + 64;
		struct stream *more = realloc(log->stream, room * sizeof(*more));
		if (!more)
			return -ENOMEM;
		log->stream = more;
		log->streams_room = room;
	}
	memcpy(&s.head, val, sizeof(s.head));
	for (uint32_t g = 0; g < stream_groups(le32_get(s.head.count)); g++)
		memcpy(&s.group[g], val + sizeof(s.head) + (size_t)g * STREAM_GROUP * sizeof(le32), sizeof(le32));
	log->stream[log->streams++] = s;
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * After the replay
 */

struct resolve {
	struct fs *fs;
	size_t next; /* of the noted ones */
	uint64_t blocks, repaired, lost;
	struct wait_group group;
};
/* One reader's memory: what an extent holds, and a group read another way. */
struct reader {
	struct resolve *r;
	struct buf *buf[BUFS], *other;
	uint8_t value[STREAM_VALUE_MAX];
};

static struct slice block_at(const struct reader *w, uint32_t i)
{
	return (struct slice){w->buf[i * BLOCK_BYTES / BUF_MAX], i * BLOCK_BYTES % BUF_MAX, BLOCK_BYTES};
}

static void sums_make(const uint8_t *data, uint32_t n, uint8_t *sums)
{
	for (uint32_t i = 0; i < n; i++) {
		le32 sum = le32_put(checksum32(data + (size_t)i * BLOCK_BYTES, BLOCK_BYTES));
		memcpy(sums + i * sizeof(sum), &sum, sizeof(sum));
	}
}

static bool sums_match(const uint8_t *sums, uint32_t n, le32 want)
{
	return checksum32(sums, n * sizeof(le32)) == le32_get(want);
}

/* COUNT blocks from PHYS on to the reader's memory, from its first block on. */
static int blocks_read(struct reader *w, uint64_t phys, uint32_t count)
{
	unsigned times = 0;
	int rc;

	do {
		struct slice to[BUFS];
		unsigned n = 0;

		for (uint32_t left = count * BLOCK_BYTES; left; left -= to[n++].len)
			to[n] = (struct slice){w->buf[n], 0, left < BUF_MAX ? left : BUF_MAX};
		rc = volume_read(w->r->fs->volume, phys, to, n);
		for (unsigned i = 0; rc == -ETIMEDOUT && i < n; i++)
			buf_renew(&w->buf[i], false);
	} while (read_again(rc, &times));
	return rc;
}

/* N blocks of one group another way, to other; a way goes within strips. */
static int group_reread(struct reader *w, uint64_t phys, uint32_t n, unsigned attempt)
{
	const struct fs *fs = w->r->fs;
	uint32_t strip = fs->geometry.strip_blocks;
	int rc = 0;

	for (uint32_t i = 0, now; i < n && !rc; i += now) {
		now = strip - (uint32_t)((phys + i) % strip);
		if (now > n - i)
			now = n - i;
		struct slice to = {w->other, i * BLOCK_BYTES, now * BLOCK_BYTES};
		rc = volume_reread(fs->volume, phys + i, attempt, &to);
	}
	if (rc == -ETIMEDOUT)
		buf_renew(&w->other, false);
	return rc;
}

/* The blocks of a group that are not the same another way are written back where they belong. */
static void group_repair(struct reader *w, uint64_t phys, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n && !w->r->fs->read_only; i++) {
		struct slice was = block_at(w, first + i), is = {w->other, i * BLOCK_BYTES, BLOCK_BYTES};

		if (memcmp(slice_data(&was), slice_data(&is), BLOCK_BYTES) &&
			volume_repair(w->r->fs->volume, phys + i, &is))
			log_warning("fs", "wrong data from a drive could not be repaired physical=%llu",
				(unsigned long long)(phys + i));
	}
}

/* The checksums of N blocks from FIRST on, which lie in memory, as far as they could be READ; WANT: the group's. */
static void group_resolve(struct reader *w, uint64_t phys, uint32_t first, uint32_t n, le32 want, bool read)
{
	struct resolve *r = w->r;
	uint8_t *sums = w->value + sizeof(struct extent_disk) + first * sizeof(le32);
	struct slice data = block_at(w, first);

	data.len = n * BLOCK_BYTES;
	sums_make(slice_data(&data), n, sums);
	if (read && sums_match(sums, n, want)) {
		if (!r->fs->read_only)
			volume_verified(r->fs->volume, phys, &data, 1);
		return;
	}
	for (unsigned attempt = 0; attempt < REREAD_ATTEMPTS; attempt++) {
		uint8_t other[STREAM_GROUP * sizeof(le32)];
		int rc = group_reread(w, phys, n, attempt);

		if (rc == -ENOENT)
			break;
		if (rc)
			continue;
		sums_make(w->other->data, n, other);
		if (!sums_match(other, n, want))
			continue;
		memcpy(sums, other, n * sizeof(le32));
		group_repair(w, phys, first, n);
		r->repaired++;
		return;
	}
	/* what is there is wrong, or not to be had: it must not be taken for right */
	for (uint32_t i = 0; i < n * sizeof(le32); i++)
		sums[i] = (uint8_t)~sums[i];
	log_error("fs", "data is lost: it does not match the log's checksum physical=%llu blocks=%u",
		(unsigned long long)phys, n);
	r->lost++;
}

static int value_put(struct reader *w, const struct pkey *p, size_t len)
{
	struct fs *fs = w->r->fs;
	struct fs_key key = pkey_unpack(p);
	struct tx *tx = tx_new(fs);
	int rc;

	if (!tx)
		return -ENOMEM;
	tx->replay = true;
	do {
		tx_reset(tx);
		rc = tx_put_any(tx, &key, w->value, len);
		if (!rc)
			rc = tx_prepare(tx, false);
	} while (rc == -EAGAIN);
	if (!rc)
		tx_apply(tx, true);
	tx_free(tx);
	return rc;
}

static int stream_resolve(struct reader *w, const struct stream *s)
{
	struct fs_key key = pkey_unpack(&s->key);
	uint32_t count = le32_get(s->head.count);
	uint64_t phys = le64_get(s->head.block);
	uint8_t squeezed[sizeof(s->head) + sizeof(s->group)], noted[STREAM_VALUE_MAX];

	memcpy(squeezed, &s->head, sizeof(s->head));
	memcpy(squeezed + sizeof(s->head), s->group, sizeof(s->group));
	int len = stream_expand(squeezed, sizeof(s->head) + stream_groups(count) * sizeof(le32), noted);
	if (len < 0)
		return len;
	int rc = tree_get(w->r->fs, &key, w->value, sizeof(w->value));
	if (rc != len || memcmp(w->value, noted, (size_t)len))
		return rc < 0 && rc != -ENOENT ? rc : 0;
	bool read = blocks_read(w, phys, count) == 0;
	for (uint32_t g = 0; g < stream_groups(count); g++)
		group_resolve(w, phys + g * STREAM_GROUP, g * STREAM_GROUP, group_blocks(count, g), s->group[g], read);
	w->r->blocks += count;
	return value_put(w, &s->key, (size_t)len);
}

static void reader_run(void *arg)
{
	struct resolve *r = arg;
	struct reader *w = calloc(1, sizeof(*w));
	int rc = w ? 0 : -ENOMEM;

	for (unsigned i = 0; !rc && i < BUFS; i++)
		w->buf[i] = buf_alloc(BUF_MAX);
	if (!rc) {
		w->r = r;
		w->other = buf_alloc(GROUP_BYTES);
	}
	while (!rc && r->next < r->fs->log.streams) {
		const struct stream s = r->fs->log.stream[r->next++];

		rc = stream_resolve(w, &s);
		cache_trim(r->fs);
	}
	for (unsigned i = 0; w && i < BUFS; i++)
		buf_put(w->buf[i]);
	if (w)
		buf_put(w->other);
	free(w);
	wait_group_done(&r->group, rc);
}

int streams_resolve(struct fs *fs)
{
	struct log *log = &fs->log;
	struct resolve r = {.fs = fs};

	if (!log->streams)
		return 0;
	wait_group_init(&r.group);
	for (unsigned i = 0; i < READERS; i++) {
		wait_group_add(&r.group, 1);
		if (i + 1 == READERS || fiber_spawn(reader_run, &r))
			reader_run(&r);
	}
	int rc = wait_group_wait(&r.group);
	if (r.repaired || r.lost)
		log_warning("fs", "what the log's tail wrote did not match everywhere repaired=%llu lost=%llu",
			(unsigned long long)r.repaired, (unsigned long long)r.lost);
	fs->tree.checksum_errors += r.repaired + r.lost;
	fs->tree.checksum_repairs += r.repaired;
	streams_forget(log);
	return rc;
}

void streams_forget(struct log *log)
{
	free(log->stream);
	log->stream = NULL;
	log->streams = log->streams_room = 0;
}
