/*
 * The redo log: batches of transactions in the mirrored log zone, group commit, and replay.
 *
 * Applied transactions gather in a batch. A writer that is free takes the batch when someone waits for
 * it (or it has grown large), and while it is being written the next one gathers: so many that come
 * together share one write, and one that comes alone waits for nobody. Two writers take turns; a
 * batch counts as durable when it and all before it are written, which is what replay will find.
 *
 *   position  counts blocks from the making of the file system on; the place is position modulo capacity
 *   head      position of the next batch to be taken
 *   tail      where replay of the newest durable root begins: everything before may be overwritten
 *
 * A batch carries its position, the checksum of the batch before and the number of the mount, all
 * under its own checksum, and a checksum for each of its blocks, so that each can come from another copy. So what an
 * earlier lap or an earlier life left behind is never taken for new, whatever it is. Replay stops at the first batch
 * that no copy has.
 *
 * Room is reserved before a transaction is applied: the batch with it must end before tail + capacity, less a
 * margin that is left to the checkpoints' own records. A transaction that finds none starts a
 * checkpoint and waits for it.
 *
 * A log write that fails on all copies ends all changes (fs_fail): nothing after it can be durable.
 */
#include <stdlib.h>

#include "fs/fs_internal.h"

#define LOG_KICK_BYTES (128u * 1024)

static uint32_t blocks_of(uint64_t bytes)
{
	return (uint32_t)((bytes + BLOCK_BYTES - 1) / BLOCK_BYTES);
}

uint64_t log_used(const struct fs *fs)
{
	const struct log *log = &fs->log;
	return log->head - log->tail + (log->gather->records ? blocks_of(log->gather->bytes) : 0);
}

static void batch_reset(struct log_batch *b)
{
	for (unsigned i = 1; i < LOG_BUFS; i++) {
		buf_put(b->buf[i]);
		b->buf[i] = NULL;
	}
	b->bytes = sizeof(struct batch_disk);
	b->records = 0;
	b->written = false;
}

int log_init(struct fs *fs)
{
	struct log *log = &fs->log;

	list_init(&log->idle);
	list_init(&log->flight);
	wait_queue_init(&log->work);
	wait_queue_init(&log->room);
	wait_queue_init(&log->idle_wait);
	log->first = FS_ROOT_SLOTS;
	log->capacity = fs->geometry.log_blocks - FS_ROOT_SLOTS;
	for (unsigned i = 0; i <= LOG_WRITERS; i++) {
		struct log_batch *b = &log->batch[i];
		wait_queue_init(&b->done);
		list_node_init(&b->node);
		b->buf[0] = buf_alloc(LOG_BUF_BYTES);
		batch_reset(b);
		list_push_back(&log->idle, &b->node);
	}
	log->gather = container_of(list_pop_front(&log->idle), struct log_batch, node);
	log->packer = log_packer_new();
	return log->packer ? 0 : -ENOMEM;
}

void log_fini(struct fs *fs)
{
	for (unsigned i = 0; i <= LOG_WRITERS; i++)
		for (unsigned j = 0; j < LOG_BUFS; j++)
			buf_put(fs->log.batch[i].buf[j]);
	log_packer_free(fs->log.packer);
	streams_forget(&fs->log);
}

/* ------------------------------------------------------------------------------------------------
 * Appending
 */

int log_reserve(struct fs *fs, uint32_t bytes, bool checkpoint)
{
	struct log *log = &fs->log;
	struct log_batch *b = log->gather;
	uint64_t end = log->head + blocks_of(b->bytes + bytes);
	uint64_t margin = checkpoint ? 0 : log->margin;

	if (bytes > LOG_BATCH_BLOCKS * BLOCK_BYTES - sizeof(struct batch_disk))
		return -E2BIG;
	if (fs->failed)
		return fs->failed;
	if (end + margin > log->tail + log->capacity) {
		if (checkpoint)
			return -ENOSPC;
		checkpoint_kick(fs);
		wait_queue_wait(&log->room, NEVER);
		return -EAGAIN;
	}
	if (b->bytes + bytes > LOG_BATCH_BLOCKS * BLOCK_BYTES) {
		log_kick(fs);
		wait_queue_wait(&log->idle_wait, NEVER);
		return fs->failed ? fs->failed : -EAGAIN;
	}
	for (unsigned i = 0; i * LOG_BUF_BYTES < b->bytes + bytes; i++) {
		if (b->buf[i])
			continue;
		b->buf[i] = buf_try_alloc(LOG_BUF_BYTES);
		if (!b->buf[i]) {
			/* the batch may be gone when there is memory again */
			struct buf *buf = buf_alloc(LOG_BUF_BYTES);
			if (log->gather == b && !b->buf[i])
				b->buf[i] = buf;
			else
				buf_put(buf);
			return -EAGAIN;
		}
	}
	return 0;
}

static void batch_copy_in(struct log_batch *b, const void *from, uint32_t len)
{
	const uint8_t *p = from;

	while (len) {
		uint32_t in = b->bytes % LOG_BUF_BYTES;
		uint32_t now = LOG_BUF_BYTES - in < len ? LOG_BUF_BYTES - in : len;
		memcpy(b->buf[b->bytes / LOG_BUF_BYTES]->data + in, p, now);
		b->bytes += now;
		p += now;
		len -= now;
	}
}

/* The operations of a record with streams. */
static void batch_squeeze_in(struct log_batch *b, const uint8_t *record, uint32_t bytes)
{
	uint32_t done = sizeof(struct record_disk);

	for (uint32_t at = done; at < bytes;) {
		struct op_disk d;
		uint8_t value[STREAM_VALUE_MAX];

		if (record[at] == LOG_STRIPE) {
			at += (uint32_t)sizeof(struct op_stripe_disk);
			continue;
		}
		memcpy(&d, record + at, sizeof(d));
		uint32_t end = at + (uint32_t)sizeof(d) + le16_get(d.len);
		if (d.op == LOG_STREAM) {
			uint32_t len = (uint32_t)stream_squeeze(record + at + sizeof(d), value);
			batch_copy_in(b, record + done, at - done);
			d.len = le16_put((uint16_t)len);
			batch_copy_in(b, &d, sizeof(d));
			batch_copy_in(b, value, len);
			done = end;
		}
		at = end;
	}
	batch_copy_in(b, record + done, bytes - done);
}

void log_append(struct fs *fs, struct tx *tx)
{
	struct log *log = &fs->log;
	struct log_batch *b = log->gather;
	struct record_disk h = {.bytes = le32_put(tx->bytes - tx->squeezed),
		.ops = le32_put(tx->ops),
		.sequence = le64_put(++log->sequence),
		.checkpoint = le64_put(tx->checkpoint)};

	if (!b->records++)
		b->first_sequence = log->sequence;
	b->last_sequence = log->sequence;
	batch_copy_in(b, &h, sizeof(h));
	if (tx->squeezed)
		batch_squeeze_in(b, tx->record, tx->bytes);
	else
		batch_copy_in(b, tx->record + sizeof(h), tx->bytes - (uint32_t)sizeof(h));
	log->stream_blocks += tx->stream_blocks;
	if (b->bytes > LOG_KICK_BYTES)
		log_kick(fs);
}

void log_kick(struct fs *fs)
{
	fs->log.kicked = true;
	wait_queue_wake_one(&fs->log.work);
}

int log_wait(struct fs *fs, uint64_t seq)
{
	struct log *log = &fs->log;

	while (log->durable < seq) {
		if (fs->failed)
			return fs->failed;
		struct log_batch *at = log->gather;
		list_foreach (n, &log->flight) {
			struct log_batch *b = container_of(n, struct log_batch, node);
			if (seq <= b->last_sequence) {
				at = b;
				break;
			}
		}
		if (at == log->gather) {
			if (!at->records)
				return -EINVAL; /* was never given out */
			log_kick(fs);
		}
		wait_queue_wait(&at->done, NEVER);
	}
	return 0;
}

void log_fail(struct fs *fs)
{
	struct log *log = &fs->log;

	for (unsigned i = 0; i <= LOG_WRITERS; i++)
		wait_queue_wake_all(&log->batch[i].done);
	wait_queue_wake_all(&log->room);
	wait_queue_wake_all(&log->idle_wait);
	wait_queue_wake_all(&log->work);
}

/* ------------------------------------------------------------------------------------------------
 * Writing
 */

static uint8_t *batch_block(struct buf *const *buf, uint32_t i)
{
	return buf[i * BLOCK_BYTES / LOG_BUF_BYTES]->data + i * BLOCK_BYTES % LOG_BUF_BYTES;
}

static uint64_t header_checksum(uint8_t *block)
{
	struct batch_disk *h = (struct batch_disk *)(void *)block;
	le64 kept = h->checksum;
	h->checksum = le64_put(0);
	uint64_t sum = checksum64(block, BLOCK_BYTES, 0);
	h->checksum = kept;
	return sum;
}

static void batch_slices(struct buf *const *buf, struct slice v[LOG_BUFS])
{
	for (unsigned i = 0; i < LOG_BUFS; i++)
		v[i] = (struct slice){buf[i], 0, LOG_BUF_BYTES};
}

/* Packs the records if that saves a block: how many bytes they are then, else 0. */
static uint32_t batch_pack(struct fs *fs, struct log_batch *b)
{
	const uint32_t head = sizeof(struct batch_disk), blocks = blocks_of(b->bytes);
	struct slice v[LOG_BUFS];

	if (blocks < 2)
		return 0;
	batch_slices(b->buf, v);
	return log_pack(fs->log.packer, v, LOG_BUFS, head, b->bytes - head, (blocks - 1) * BLOCK_BYTES - head);
}

/* Takes what gathered; the next batch gathers from here on. No wait. */
static struct log_batch *batch_take(struct fs *fs)
{
	struct log *log = &fs->log;
	struct log_batch *b = log->gather;
	uint32_t packed = batch_pack(fs, b), end = packed ? packed + (uint32_t)sizeof(struct batch_disk) : b->bytes;
	uint32_t rest = end % BLOCK_BYTES;
	struct batch_disk *h = (struct batch_disk *)(void *)b->buf[0]->data;

	if (rest)
		memset(b->buf[end / LOG_BUF_BYTES]->data + end % LOG_BUF_BYTES, 0, BLOCK_BYTES - rest);
	b->blocks = blocks_of(end);
	b->position = log->head;
	*h = (struct batch_disk){.magic = le32_put(LOG_MAGIC),
		.blocks = le32_put(b->blocks),
		.uuid = fs->uuid,
		.position = le64_put(b->position),
		.chain = le64_put(log->chain),
		.mounts = le64_put(fs->mounts),
		.sequence = le64_put(b->first_sequence),
		.bytes = le32_put(b->bytes),
		.records = le32_put(b->records),
		.packed = le32_put(packed)};
	for (uint32_t i = 1; i < b->blocks; i++)
		h->sum[i - 1] = le32_put(checksum32(batch_block(b->buf, i), BLOCK_BYTES));
	log->chain = header_checksum(b->buf[0]->data);
	h->checksum = le64_put(log->chain);
	log->head += b->blocks;
	log->bytes += (uint64_t)b->blocks * BLOCK_BYTES;
	log->kicked = false;
	list_push_back(&log->flight, &b->node);
	log->gather = container_of(list_pop_front(&log->idle), struct log_batch, node);
	wait_queue_wake_all(&log->idle_wait);
	return b;
}

/* At a position, around the end of the circle where needed. */
static int log_io(struct fs *fs, bool write, unsigned copy, uint64_t position, struct buf *const *buf, uint32_t blocks)
{
	struct log *log = &fs->log;
	struct slice all[LOG_BUFS], part[LOG_BUFS];
	unsigned n = 0;
	int rc = 0;

	for (uint32_t left = blocks * BLOCK_BYTES; left; n++) {
		all[n] = (struct slice){buf[n], 0, left < LOG_BUF_BYTES ? left : LOG_BUF_BYTES};
		left -= all[n].len;
	}
	uint64_t done = 0;
	while (!rc && done < blocks) {
		uint64_t in = (position + done) % log->capacity;
		uint64_t now = log->capacity - in < blocks - done ? log->capacity - in : blocks - done;
		int parts = slices_cut(all, n, done * BLOCK_BYTES, now * BLOCK_BYTES, part, LOG_BUFS);
		if (parts < 0)
			return parts;
		rc = write ? volume_log_write(fs->volume, log->first + in, part, (unsigned)parts)
			   : volume_log_read(fs->volume, log->first + in, copy, part, (unsigned)parts);
		done += now;
	}
	return rc;
}

static void writer(void *arg)
{
	struct fs *fs = arg;
	struct log *log = &fs->log;

	for (;;) {
		bool wanted = log->gather->records && (log->kicked || log->stop);
		if (fs->failed || (log->stop && !wanted))
			break;
		/* a batch that waits for the one before it keeps its place: then there is none to gather in */
		if (!wanted || list_empty(&log->idle)) {
			wait_queue_wait(&log->work, NEVER);
			continue;
		}
		struct log_batch *b = batch_take(fs);
		int rc = log_io(fs, true, 0, b->position, b->buf, b->blocks);
		if (rc) {
			fs_fail(fs, rc, "log write failed");
			break;
		}
		b->written = true;
		while (!list_empty(&log->flight)) {
			struct log_batch *first = container_of(list_first(&log->flight), struct log_batch, node);
			if (!first->written)
				break;
			log->durable = first->last_sequence;
			list_remove(&first->node);
			batch_reset(first);
			list_push_back(&log->idle, &first->node);
			wait_queue_wake_all(&first->done);
		}
		space_durable(fs);
		if (log->kicked || log->stop)
			wait_queue_wake_all(&log->work);
		/* more than half: begin to make room while there still is some */
		if (log_used(fs) > log->capacity / 2)
			checkpoint_kick(fs);
	}
	log->writers--;
	wait_queue_wake_all(&log->idle_wait);
}

int log_start(struct fs *fs)
{
	for (unsigned i = 0; i < LOG_WRITERS; i++) {
		fs->log.writers++;
		int rc = fiber_spawn(writer, fs);
		if (rc) {
			fs->log.writers--;
			return fs->log.writers ? 0 : rc;
		}
	}
	return 0;
}

void log_stop(struct fs *fs)
{
	fs->log.stop = true;
	wait_queue_wake_all(&fs->log.work);
	while (fs->log.writers)
		wait_queue_wait(&fs->log.idle_wait, NEVER);
}

/* ------------------------------------------------------------------------------------------------
 * Replay
 */

static bool header_verify(struct fs *fs, uint8_t *block, uint64_t position, uint64_t chain)
{
	const struct batch_disk *h = (const struct batch_disk *)(void *)block;
	uint32_t blocks = le32_get(h->blocks), packed = le32_get(h->packed), bytes = le32_get(h->bytes);
	uint64_t end = packed ? sizeof(*h) + (uint64_t)packed : bytes;

	return le32_get(h->magic) == LOG_MAGIC && !memcmp(&h->uuid, &fs->uuid, sizeof(h->uuid)) &&
	       le64_get(h->position) == position && le64_get(h->chain) == chain && blocks > 0 &&
	       blocks <= LOG_BATCH_BLOCKS && blocks <= fs->log.capacity && bytes >= sizeof(*h) &&
	       bytes <= LOG_BATCH_BLOCKS * BLOCK_BYTES && blocks_of(end) == blocks &&
	       header_checksum(block) == le64_get(h->checksum);
}

/* One copy of BLOCKS blocks. What a drive did not answer in time counts as missing, and the memory is another then. */
static int copy_read(struct fs *fs, unsigned copy, uint64_t position, struct buf **buf, uint32_t blocks)
{
	int rc = log_io(fs, false, copy, position, buf, blocks);

	for (uint32_t i = 0; rc == -ETIMEDOUT && i * LOG_BUF_BYTES < blocks * BLOCK_BYTES; i++)
		buf_renew(&buf[i], false);
	return rc;
}

/*
 * Puts together the batch at POSITION from the copies, block by block, in BUF; SPARE is for reading.
 * False when the copies do not hold all of it. *BAD: some copy that can be read is not as it should
 * be (looked at only with ALL; else the first good block will do).
 */
static bool batch_find(
	struct fs *fs, uint64_t position, uint64_t chain, struct buf **buf, struct buf **spare, bool all, bool *bad)
{
	const struct batch_disk *h = (const struct batch_disk *)(void *)buf[0]->data;
	bool have[LOG_BATCH_BLOCKS] = {false};
	unsigned copies = fs->geometry.log_copies;

	*bad = false;
	for (unsigned copy = 0; copy < copies && (all || !have[0]); copy++) {
		if (copy_read(fs, copy, position, spare, 1))
			continue;
		if (!header_verify(fs, spare[0]->data, position, chain)) {
			*bad = true;
		} else if (!have[0]) {
			have[0] = true;
			memcpy(buf[0]->data, spare[0]->data, BLOCK_BYTES);
		} else if (memcmp(buf[0]->data, spare[0]->data, BLOCK_BYTES)) {
			*bad = true;
		}
	}
	if (!have[0])
		return false;
	uint32_t blocks = le32_get(h->blocks), missing = blocks - 1;
	for (unsigned copy = 0; copy < copies && blocks > 1 && (all || missing); copy++) {
		/* a copy's blocks lie on several members: one that is missing hides its own only */
		bool whole = copy_read(fs, copy, position, spare, blocks) == 0;
		for (uint32_t i = 1; i < blocks; i++) {
			uint8_t *block = batch_block(spare, i);
			if (!whole) {
				if (copy_read(fs, copy, position + i, spare, 1))
					continue;
				block = spare[0]->data;
			}
			if (checksum32(block, BLOCK_BYTES) != le32_get(h->sum[i - 1])) {
				*bad = true;
			} else if (!have[i]) {
				have[i] = true;
				missing--;
				memcpy(batch_block(buf, i), block, BLOCK_BYTES);
			}
		}
	}
	return missing == 0;
}

static int replay_record(struct fs *fs, const uint8_t *record, uint32_t bytes)
{
	struct tx *tx = tx_new(fs);
	int rc;

	if (!tx)
		return -ENOMEM;
	tx->limit = LOG_BATCH_BLOCKS * BLOCK_BYTES;
	tx->replay = true;
	do {
		rc = tx_parse(tx, record, bytes);
		if (!rc)
			rc = tx_prepare(tx, false);
	} while (rc == -EAGAIN);
	if (!rc)
		tx_apply(tx, true);
	for (unsigned i = 0; !rc && i < tx->ops; i++)
		if (tx->op[i].stream)
			rc = stream_note(fs, &tx->op[i].key, tx->record + tx->op[i].off);
	tx_free(tx);
	return rc;
}

/* The batch lies in BUF. */
static int replay_batch(struct fs *fs, struct buf **buf, uint64_t checkpoint, uint64_t skip, uint64_t *records)
{
	const struct batch_disk *h = (const struct batch_disk *)(void *)buf[0]->data;
	uint32_t left = le32_get(h->bytes) - (uint32_t)sizeof(*h), count = le32_get(h->records);
	uint64_t sequence = le64_get(h->sequence);
	struct slice v[LOG_BUFS];

	batch_slices(buf, v);
	const uint8_t *at = log_unpack(fs->log.packer, v, LOG_BUFS, sizeof(*h), le32_get(h->packed), left);
	if (!at)
		return -EIO;
	for (uint32_t i = 0; i < count; i++, sequence++) {
		struct record_disk r;
		if (left < sizeof(r))
			return -EIO;
		memcpy(&r, at, sizeof(r));
		uint32_t len = le32_get(r.bytes);
		if (len < sizeof(r) || len > left || le64_get(r.sequence) != sequence)
			return -EIO;
		fs->log.sequence = sequence;
		const uint8_t *record = at;
		at += len;
		left -= len;
		if (sequence <= skip || le64_get(r.checkpoint) > checkpoint)
			continue;
		int rc = replay_record(fs, record, len);
		if (rc && rc != -ENOMEM && fs->repair) {
			repair_log_skip(fs, sequence, rc);
			continue;
		}
		if (rc)
			return rc;
		*records += le64_get(r.checkpoint) == 0;
	}
	return left ? -EIO : 0;
}

int log_replay(struct fs *fs, uint64_t checkpoint, bool repair, uint64_t *records, struct error *err)
{
	struct log *log = &fs->log;
	struct buf *buf[2][LOG_BUFS];
	uint64_t skip = log->sequence, repaired = 0;
	int rc = 0;

	for (unsigned i = 0; i < 2 * LOG_BUFS; i++)
		buf[i / LOG_BUFS][i % LOG_BUFS] = buf_alloc(LOG_BUF_BYTES);
	*records = 0;
	while (!rc) {
		bool bad;
		if (!batch_find(fs, log->head, log->chain, buf[0], buf[1], repair, &bad))
			break;
		const struct batch_disk *h = (const struct batch_disk *)(void *)buf[0][0]->data;
		uint32_t blocks = le32_get(h->blocks);
		uint64_t sum = le64_get(h->checksum);
		if (repair && bad) {
			rc = log_io(fs, true, 0, log->head, buf[0], blocks);
			if (rc) {
				error_set(err, rc, "cannot repair the log at position %llu",
					(unsigned long long)log->head);
				break;
			}
			repaired++;
		}
		rc = replay_batch(fs, buf[0], checkpoint, skip, records);
		if (rc) {
			error_set(err, rc, "cannot replay the log at position %llu", (unsigned long long)log->head);
			break;
		}
		log->chain = sum;
		log->head += blocks;
	}
	if (!rc && (rc = streams_resolve(fs)) != 0)
		error_set(err, rc, "cannot read what the log's tail wrote");
	if (rc == -ENOMEM && err && !err->code)
		error_set(err, rc, "no memory to replay the log");
	log->durable = log->sequence;
	if (repaired)
		log_info("fs", "log copies made equal batches=%llu", (unsigned long long)repaired);
	for (unsigned i = 0; i < 2 * LOG_BUFS; i++)
		buf_put(buf[i / LOG_BUFS][i % LOG_BUFS]);
	return rc;
}

/*
 * A power cut can leave the last batch away and the one behind it there, since two may be in flight;
 * it cannot leave two behind a hole, for the second is only written when what is before the first is
 * durable. So two batches of the last life behind the end mean that acknowledged ones are lost.
 */
bool log_goes_on(struct fs *fs)
{
	struct log *log = &fs->log;
	struct buf *buf[LOG_BUFS];
	unsigned found = 0;
	uint64_t last = 0;
	/* the hole and the one behind it are as long as batches may be */
	uint64_t scan = 3 * LOG_BATCH_BLOCKS;

	if (scan > log->capacity)
		scan = log->capacity;
	for (unsigned i = 0; i < LOG_BUFS; i++)
		buf[i] = buf_alloc(LOG_BUF_BYTES);
	for (uint64_t at = log->head; at < log->head + scan && found < 2; at += LOG_BATCH_BLOCKS) {
		uint32_t blocks = LOG_BATCH_BLOCKS;
		if (blocks > log->head + scan - at)
			blocks = (uint32_t)(log->head + scan - at);
		for (unsigned copy = 0; copy < fs->geometry.log_copies && found < 2; copy++) {
			if (copy_read(fs, copy, at, buf, blocks))
				continue;
			for (uint32_t i = 0; i < blocks; i++) {
				const struct batch_disk *h = (const struct batch_disk *)(void *)batch_block(buf, i);
				if (le64_get(h->mounts) != fs->mounts || at + i == log->head || at + i == last ||
					!header_verify(fs, batch_block(buf, i), at + i, le64_get(h->chain)))
					continue;
				last = at + i;
				found++;
			}
		}
	}
	for (unsigned i = 0; i < LOG_BUFS; i++)
		buf_put(buf[i]);
	return found >= 2;
}
