/*
 * Transactions: passes, what they queue, and how it becomes one change of memory and one redo record.
 *
 * A pass queues its changes straight into the record that goes to the log; beside it stands a list of
 * operations that is sorted by key, so that neighbours find the same leaf in the processor's cache.
 *
 *   pass     reads, queues. A leaf that is not in memory makes it void
 *   prepare  brings every leaf that changes into memory, checks stripe counts, puts spares aside,
 *            reserves room in the log. Whatever waits here makes the pass void too
 *   apply    changes nodes and stripe counts, runs the hooks, copies the record into the batch that
 *            gathers. Neither waits nor fails
 *
 * The order of apply is the order of the log. Changes of stripe counts are logged as differences and
 * not as values: 64 stripes share a value, and those of nodes among them change by checkpoints whose
 * records a replay may have to leave out (checkpoint.c).
 */
#include <stdlib.h>

#include "fs/files_internal.h"
#include "fs/inode_internal.h"

#define RECORD_ROOM 4096u
#define OPS_ROOM 64u
#define TX_IDLE 32u
/* So many runs, and the cache keeps everything until the pass is through: its leaves may be more than the cache holds.
 */
#define RERUNS_HOLD 64u
#define GROWTH_NONE 256 /* bytes */
#define GROWTH_ATTEMPTS 4u
#define RERUNS_MAX 100000u

struct tx *tx_new(struct fs *fs)
{
	struct list_node *idle = list_pop_front(&fs->tx_idle);
	struct tx *tx;

	if (idle) {
		fs->tx_idle_count--;
		tx = container_of(idle, struct tx, node);
	} else {
		tx = calloc(1, sizeof(*tx));
		if (!tx)
			return NULL;
		list_node_init(&tx->node);
		tx->fs = fs;
		tx->room = RECORD_ROOM;
		tx->ops_room = OPS_ROOM;
		tx->record = malloc(tx->room);
		tx->op = malloc(tx->ops_room * sizeof(tx->op[0]));
		if (!tx->record || !tx->op) {
			tx_destroy(tx);
			return NULL;
		}
	}
	tx_reset(tx);
	tx->view = false;
	tx->replay = false;
	tx->hold = false;
	tx->reruns = 0;
	tx->limit = TX_BYTES_MAX;
	tx->checkpoint = 0;
	return tx;
}

void tx_free(struct tx *tx)
{
	struct fs *fs = tx->fs;

	if (tx->hold)
		fs->tree.holds--;
	if (fs->tx_idle_count < TX_IDLE && tx->room <= 4 * RECORD_ROOM) {
		fs->tx_idle_count++;
		list_push_front(&fs->tx_idle, &tx->node);
		return;
	}
	tx_destroy(tx);
}

void tx_destroy(struct tx *tx)
{
	free(tx->record);
	free(tx->op);
	free(tx->share);
	free(tx);
}

void tx_reset(struct tx *tx)
{
	tx->bytes = sizeof(struct record_disk);
	tx->squeezed = tx->stream_blocks = 0;
	tx->ops = 0;
	tx->hooks = 0;
	tx->shares = 0;
	tx->missed = false;
	tx->snap = 0;
	tx->filled.added = 0;
	tx->filled.runs = tx->filled.emptied = 0;
}

struct fs *tx_fs(struct tx *tx)
{
	return tx->fs;
}

/* ------------------------------------------------------------------------------------------------
 * What a pass calls
 */

static int tx_miss(struct tx *tx, const struct pkey *key)
{
	tx->missed = true;
	tx->miss = *key;
	return -EAGAIN;
}

static int tx_get_any(struct tx *tx, const struct fs_key *key, const void **val, size_t *len)
{
	struct pkey p = pkey_pack(key);
	struct tree_path path;
	unsigned slot;

	if (tx->missed)
		return -EAGAIN;
	if (!tree_descend(tx->fs, &p, &path))
		return tx_miss(tx, &p);
	if (!image_find(path.leaf->buf->data, &p, &slot))
		return -ENOENT;
	*val = image_value(path.leaf->buf->data, slot, len);
	return 0;
}

static int tx_step(struct tx *tx, struct fs_key *key, bool forward, const void **val, size_t *len)
{
	struct pkey p = pkey_pack(key);

	if (tx->missed)
		return -EAGAIN;
	int rc = tree_seek(tx->fs, &p, forward, val, len);
	if (rc == -EAGAIN)
		return tx_miss(tx, &p);
	if (!rc)
		*key = pkey_unpack(&p);
	return rc;
}

int tx_next_any(struct tx *tx, struct fs_key *key, const void **val, size_t *len)
{
	return tx_step(tx, key, true, val, len);
}

int tx_prev_any(struct tx *tx, struct fs_key *key, const void **val, size_t *len)
{
	return tx_step(tx, key, false, val, len);
}

/* ------------------------------------------------------------------------------------------------
 * Versions (snapshot.c has the rules). Until a first snapshot is made every key has one, and none of this is done.
 */

static bool tx_versioned(const struct tx *tx, const struct fs_key *key)
{
	return key->ino != 0 && fs_stamp(tx->fs) != 0;
}

/* The highest stamp that the pass sees. */
static uint32_t tx_limit(const struct tx *tx)
{
	return tx->snap ? tx->snap - 1 : fs_stamp(tx->fs);
}

static bool same_name(const struct fs_key *a, const struct fs_key *b)
{
	return a->ino == b->ino && a->type == b->type && a->off == b->off;
}

/* Hides an older version, and is nothing itself. (References have 4 bytes more for this.) */
static bool value_empty(const struct fs_key *key, size_t len)
{
	return len == 0 || (key->type == KEY_EXTENT && len == sizeof(struct extent_disk));
}

/* The version of KEY that has at most stamp LIMIT. -ENOENT: none; it may be empty. */
static int tx_version(struct tx *tx, struct fs_key *key, uint32_t limit, const void **val, size_t *len)
{
	struct fs_key at = *key;
	int rc;

	at.snap = limit;
	rc = tx_step(tx, &at, false, val, len);
	if (!rc && !same_name(&at, key))
		rc = -ENOENT;
	if (!rc)
		*key = at;
	return rc;
}

int tx_get(struct tx *tx, const struct fs_key *key, const void **val, size_t *len)
{
	struct fs_key at = *key;

	if (!tx_versioned(tx, key))
		return tx_get_any(tx, key, val, len);
	int rc = tx_version(tx, &at, tx_limit(tx), val, len);
	return !rc && value_empty(&at, *len) ? -ENOENT : rc;
}

/* What lies behind the keys of one type of an inode is given as it is: whoever finds it only sees that these ended. */
int tx_next(struct tx *tx, struct fs_key *key, const void **val, size_t *len)
{
	struct fs_key start = *key;

	if (!tx_versioned(tx, key))
		return tx_step(tx, key, true, val, len);
	for (;;) {
		int rc = tx_step(tx, key, true, val, len);
		if (rc || key->ino != start.ino || key->type != start.type)
			return rc;
		rc = key->snap == tx_limit(tx) ? 0 : tx_version(tx, key, tx_limit(tx), val, len);
		if (rc && rc != -ENOENT)
			return rc;
		key->snap = 0;
		if (!rc && !value_empty(key, *len))
			return 0;
		if (++key->off == 0)
			key->type++;
	}
}

int tx_prev(struct tx *tx, struct fs_key *key, const void **val, size_t *len)
{
	struct fs_key start = *key;

	if (!tx_versioned(tx, key))
		return tx_step(tx, key, false, val, len);
	for (;;) {
		key->snap = UINT32_MAX;
		int rc = tx_step(tx, key, false, val, len);
		if (rc || key->ino != start.ino || key->type != start.type)
			return rc;
		if (key->snap > tx_limit(tx))
			rc = tx_version(tx, key, tx_limit(tx), val, len);
		if (rc && rc != -ENOENT)
			return rc;
		if (!rc && !value_empty(key, *len)) {
			key->snap = 0;
			return 0;
		}
		if (key->off-- == 0)
			key->type--;
	}
}

/* Room for one operation and MORE bytes of record. */
static int tx_room(struct tx *tx, size_t more)
{
	if (tx->bytes + more > tx->limit)
		return -E2BIG;
	if (tx->bytes + more > tx->room) {
		uint32_t room = tx->room;
		while (room < tx->bytes + more)
			room *= 2;
		uint8_t *record = realloc(tx->record, room);
		if (!record)
			return -ENOMEM;
		tx->record = record;
		tx->room = room;
	}
	if (tx->ops == tx->ops_room) {
		struct tx_op *op = realloc(tx->op, 2ul * tx->ops_room * sizeof(tx->op[0]));
		if (!op)
			return -ENOMEM;
		tx->op = op;
		tx->ops_room *= 2;
	}
	return 0;
}

static int tx_queue(struct tx *tx, enum log_op kind, const struct pkey *p, const void *val, size_t len)
{
	if (tx->view)
		return -EROFS;
	if (len > TREE_VALUE_MAX)
		return -E2BIG;
	int rc = tx_room(tx, sizeof(struct op_disk) + len);
	if (rc)
		return rc;
	struct op_disk d = {.op = (uint8_t)kind, .len = le16_put((uint16_t)len), .key = pkey_write(p)};
	memcpy(tx->record + tx->bytes, &d, sizeof(d));
	tx->bytes += (uint32_t)sizeof(d);
	tx->op[tx->ops] = (struct tx_op){.key = *p,
		.off = tx->bytes,
		.len = (uint16_t)len,
		.op = kind == LOG_STREAM ? LOG_PUT : (uint8_t)kind,
		.stream = kind == LOG_STREAM,
		.order = tx->ops};
	tx->ops++;
	if (len)
		memcpy(tx->record + tx->bytes, val, len);
	tx->bytes += (uint32_t)len;
	return 0;
}

int tx_put_any(struct tx *tx, const struct fs_key *key, const void *val, size_t len)
{
	struct pkey p = pkey_pack(key);
	return tx_queue(tx, LOG_PUT, &p, val, len);
}

int tx_stream_put(struct tx *tx, const struct fs_key *key, const void *val, size_t len)
{
	struct pkey p = pkey_pack(key);
	int rc = tx_queue(tx, LOG_STREAM, &p, val, len);

	if (!rc) {
		tx->squeezed += (uint32_t)(len - stream_squeezed(len));
		tx->stream_blocks += stream_count(val);
	}
	return rc;
}

int tx_delete_any(struct tx *tx, const struct fs_key *key)
{
	struct pkey p = pkey_pack(key);
	return tx_queue(tx, LOG_DELETE, &p, NULL, 0);
}

/* The stamp of the version of KEY that the live file system may change: that of its last one, if no snapshot sees it.
 */
static int tx_slot(struct tx *tx, struct fs_key *key)
{
	struct fs_key last = *key;
	const void *val;
	size_t len;

	int rc = tx_version(tx, &last, fs_stamp(tx->fs), &val, &len);
	if (rc && rc != -ENOENT)
		return rc;
	key->snap = fs_stamp_floor(tx->fs);
	if (!rc && last.snap > key->snap)
		key->snap = last.snap;
	return 0;
}

int tx_put(struct tx *tx, const struct fs_key *key, const void *val, size_t len)
{
	struct fs_key at = *key;

	if (tx_versioned(tx, key)) {
		int rc = tx_slot(tx, &at);
		if (rc)
			return rc;
	}
	return tx_put_any(tx, &at, val, len);
}

int tx_delete(struct tx *tx, const struct fs_key *key)
{
	struct fs_key at = *key, older = *key;
	const void *val;
	size_t len;

	if (!tx_versioned(tx, key))
		return tx_delete_any(tx, key);
	int rc = tx_slot(tx, &at);
	if (rc)
		return rc;
	if (!at.snap)
		return tx_delete_any(tx, &at);
	rc = tx_version(tx, &older, at.snap - 1, &val, &len);
	if (rc && rc != -ENOENT)
		return rc;
	return rc || value_empty(&older, len) ? tx_delete_any(tx, &at) : tx_put_any(tx, &at, NULL, 0);
}

int tx_on_apply(struct tx *tx, void (*fn)(void *arg), void *arg)
{
	if (tx->hooks == sizeof(tx->hook) / sizeof(tx->hook[0]))
		return -E2BIG;
	tx->hook[tx->hooks].fn = fn;
	tx->hook[tx->hooks++].arg = arg;
	return 0;
}

int tx_stripe_delta(struct tx *tx, uint64_t stripe, int32_t delta, enum stripe_class class)
{
	struct fs_key key = {.type = KEY_STRIPES, .off = stripe / STRIPES_PER_KEY};

	if (tx->view)
		return -EROFS;
	int rc = tx_room(tx, sizeof(struct op_stripe_disk));
	if (rc)
		return rc;
	struct op_stripe_disk d = {.op = LOG_STRIPE,
		.class = (uint8_t) class,
		.delta = le32_put((uint32_t)delta),
		.stripe = le64_put(stripe)};
	memcpy(tx->record + tx->bytes, &d, sizeof(d));
	tx->bytes += (uint32_t)sizeof(d);
	struct tx_op *op = &tx->op[tx->ops];
	*op = (struct tx_op){.key = pkey_pack(&key),
		.off = (uint32_t)(stripe % STRIPES_PER_KEY),
		.op = LOG_STRIPE,
		.class = (uint8_t) class,
		.delta = delta,
		.order = tx->ops};
	op->key.w[2] |= stripe % STRIPES_PER_KEY; /* bits that no key has: sorts the stripes, leads to the same leaf */
	tx->ops++;
	return 0;
}

/* Queues what was said of the stripe that is being filled. */
static int tx_blocks_end(struct tx *tx)
{
	int32_t added = tx->filled.added;
	unsigned runs = tx->filled.runs;
	int rc = 0;

	tx->filled.added = 0;
	tx->filled.runs = 0;
	if (added)
		rc = tx_stripe_delta(tx, tx->filled.stripe, added, STRIPE_DATA);
	if (!rc && runs) {
		struct fs_key key = {.type = KEY_SUMMARY, .off = tx->filled.block, .snap = tx->filled.shared};
		rc = tx_put(tx, &key, tx->filled.run, runs * sizeof(tx->filled.run[0]));
	}
	return rc;
}

/* What follows is of STRIPE. */
static int tx_blocks_turn(struct tx *tx, uint64_t stripe)
{
	int rc = tx->filled.stripe == stripe ? 0 : tx_blocks_end(tx);

	tx->filled.stripe = stripe;
	return rc;
}

static int tx_blocks(struct tx *tx, uint64_t block, uint32_t count, int sign)
{
	const struct volume_geometry *g = &tx->fs->geometry;
	uint64_t per = volume_stripe_blocks(g);

	if (block >= per * g->stripes || count > per * g->stripes - block) {
		log_error("fs", "extent outside of the volume block=%llu count=%u", (unsigned long long)block, count);
		return -EIO;
	}
	while (count) {
		uint64_t in = block % per;
		uint32_t now = per - in < count ? (uint32_t)(per - in) : count;
		int rc;
		if (sign > 0) {
			rc = tx_blocks_turn(tx, block / per);
			tx->filled.added += (int32_t)now;
		} else {
			rc = tx_stripe_delta(tx, block / per, -(int32_t)now, STRIPE_DATA);
		}
		if (rc)
			return rc;
		block += now;
		count -= now;
	}
	return 0;
}

int tx_blocks_add(struct tx *tx, uint64_t block, uint32_t count)
{
	return tx_blocks(tx, block, count, 1);
}

int tx_blocks_drop(struct tx *tx, uint64_t block, uint32_t count)
{
	return tx_blocks(tx, block, count, -1);
}

int tx_share(struct tx *tx, uint64_t first, uint64_t count, int32_t delta)
{
	if (tx->view)
		return -EROFS;
	if (tx->shares == tx->shares_room) {
		unsigned room = 2 * tx->shares_room + 16;
		struct share_delta *share = realloc(tx->share, room * sizeof(*share));
		if (!share)
			return -ENOMEM;
		tx->share = share;
		tx->shares_room = room;
	}
	tx->share[tx->shares++] = (struct share_delta){first, first + count, delta};
	return 0;
}

/* What an earlier life of STRIPE left goes with the first transaction of a new one. */
static int summaries_drop(struct tx *tx, uint64_t stripe)
{
	uint64_t per = tx->fs->space.stripe_blocks;
	struct fs_key key = {.type = KEY_SUMMARY, .off = stripe * per};

	if (stripe_live(tx->fs->space.table[stripe]) || tx->filled.emptied == FILLED_STRIPES)
		return 0;
	for (unsigned i = 0; i < tx->filled.emptied; i++)
		if (tx->filled.was_empty[i] == stripe)
			return 0;
	tx->filled.was_empty[tx->filled.emptied++] = stripe;
	for (;;) {
		const void *val;
		size_t len;
		int rc = tx_next_any(tx, &key, &val, &len);
		if (rc == -ENOENT || (!rc && (key.ino || key.type != KEY_SUMMARY || key.off >= (stripe + 1) * per)))
			return 0;
		if (!rc)
			rc = tx_delete_any(tx, &key);
		if (rc)
			return rc;
		key.snap++;
	}
}

int tx_summary_add(struct tx *tx, uint64_t block, uint32_t count, uint64_t ino, uint64_t file_block)
{
	uint64_t per = tx->fs->space.stripe_blocks;

	/* each stripe's own: who empties one looks at its summaries only */
	while (count) {
		uint32_t now = per - block % per < count ? (uint32_t)(per - block % per) : count;
		int rc = tx_blocks_turn(tx, block / per);
		if (!rc)
			rc = summaries_drop(tx, block / per);
		if (!rc && tx->filled.runs &&
			(tx->filled.runs == SUMMARY_MAX || block < tx->filled.block ||
				tx->filled.shared != (ino == FS_SHARED_INO)))
			rc = tx_blocks_end(tx);
		if (rc)
			return rc;
		if (!tx->filled.runs) {
			tx->filled.block = block;
			tx->filled.shared = ino == FS_SHARED_INO;
		}
		tx->filled.run[tx->filled.runs++] = (struct summary_disk){le64_put(ino), le64_put(file_block),
			le16_put((uint16_t)now), le16_put((uint16_t)(block - tx->filled.block))};
		block += now;
		file_block += now;
		count -= now;
	}
	return 0;
}

/* ------------------------------------------------------------------------------------------------
 * Records from the log
 */

static int tx_parse_stream(struct tx *tx, const struct pkey *p, const uint8_t *val, size_t len)
{
	uint8_t full[STREAM_VALUE_MAX];
	int rc = p->w[1] >> 56 == KEY_EXTENT ? stream_expand(val, len, full) : -EIO;

	return rc < 0 ? rc : tx_queue(tx, LOG_STREAM, p, full, (size_t)rc);
}

int tx_parse(struct tx *tx, const uint8_t *record, size_t bytes)
{
	struct record_disk h;
	const struct volume_geometry *g = &tx->fs->geometry;
	size_t at = sizeof(h);

	tx_reset(tx);
	memcpy(&h, record, sizeof(h));
	for (uint32_t i = 0; i < le32_get(h.ops); i++) {
		int rc;
		if (at == bytes)
			return -EIO;
		if (record[at] == LOG_STRIPE) {
			struct op_stripe_disk d;
			if (bytes - at < sizeof(d))
				return -EIO;
			memcpy(&d, record + at, sizeof(d));
			at += sizeof(d);
			if (le64_get(d.stripe) >= g->stripes || (d.class != STRIPE_DATA && d.class != STRIPE_NODES))
				return -EIO;
			rc = tx_stripe_delta(
				tx, le64_get(d.stripe), (int32_t)le32_get(d.delta), (enum stripe_class)d.class);
		} else {
			struct op_disk d;
			if (bytes - at < sizeof(d))
				return -EIO;
			memcpy(&d, record + at, sizeof(d));
			at += sizeof(d);
			size_t len = le16_get(d.len);
			if (bytes - at < len || len > TREE_VALUE_MAX || (d.op == LOG_DELETE && len))
				return -EIO;
			struct pkey p = pkey_read(&d.key);
			if (p.w[2] & PKEY_RESERVED)
				return -EIO;
			if (d.op == LOG_STREAM)
				rc = tx_parse_stream(tx, &p, record + at, len);
			else if (d.op == LOG_PUT || d.op == LOG_DELETE)
				rc = tx_queue(tx, (enum log_op)d.op, &p, record + at, len);
			else
				rc = -EIO;
			at += len;
		}
		if (rc)
			return rc == -E2BIG ? -EIO : rc;
	}
	return at == bytes ? 0 : -EIO;
}

/* ------------------------------------------------------------------------------------------------
 * Prepare and apply
 */

static int op_compare(const void *va, const void *vb)
{
	const struct tx_op *a = va, *b = vb;
	int c = pkey_compare(&a->key, &b->key);
	return c ? c : (a->order < b->order ? -1 : 1);
}

static void tx_sort(struct tx *tx)
{
	if (tx->ops > 24) {
		qsort(tx->op, tx->ops, sizeof(tx->op[0]), op_compare);
		return;
	}
	for (unsigned i = 1; i < tx->ops; i++) {
		struct tx_op op = tx->op[i];
		unsigned at = i;
		for (; at > 0 && op_compare(&tx->op[at - 1], &op) > 0; at--)
			tx->op[at] = tx->op[at - 1];
		tx->op[at] = op;
	}
}

static uint64_t op_stripe(const struct tx_op *op)
{
	return (op->key.w[1] << 8 | op->key.w[2] >> 56) * STRIPES_PER_KEY + op->off;
}

/* The sum of the operations on one stripe that begin at I; *NEXT is the first of another. */
static int64_t tx_stripe_sum(const struct tx *tx, unsigned i, unsigned *next, enum stripe_class *class)
{
	int64_t sum = 0;
	const struct tx_op *first = &tx->op[i];

	for (; i < tx->ops && tx->op[i].op == LOG_STRIPE && !pkey_compare(&tx->op[i].key, &first->key); i++) {
		sum += tx->op[i].delta;
		*class = (enum stripe_class)tx->op[i].class;
	}
	*next = i;
	return sum;
}

/* Would it make the tree larger while there is hardly room for checkpoints? Some bytes more are none of that. */
static bool tx_grows(const struct tx *tx)
{
	struct fs *fs = tx->fs;
	int64_t more = 0;

	if ((!space_refuse() && !space_nodes_low(fs)) || tx->replay || fs->cleaner.fiber == fiber_self())
		return false;
	for (unsigned i = 0; i < tx->ops; i++) {
		const struct tx_op *op = &tx->op[i];
		struct tree_path path;
		unsigned slot;
		if (op->op == LOG_STRIPE)
			continue;
		struct node *leaf = tree_descend(fs, &op->key, &path);
		if (image_find(leaf->buf->data, &op->key, &slot))
			more -= (int64_t)sizeof(struct slot_disk) + le16_get(image_slots(leaf->buf->data)[slot].len);
		if (op->op == LOG_PUT)
			more += (int64_t)sizeof(struct slot_disk) + op->len;
	}
	return more > GROWTH_NONE;
}

int tx_prepare(struct tx *tx, bool checkpoint)
{
	struct fs *fs = tx->fs;
	struct tree_need need = {0};
	unsigned missing = 0, stripes = 0;

	tx_sort(tx);
	fs->tree.stamp++;
	for (unsigned i = 0; i < tx->ops; i++) {
		const struct tx_op *op = &tx->op[i];
		if (!tree_count_path(fs, &op->key, checkpoint, &need))
			missing++;
		need.bytes += sizeof(struct slot_disk);
		if (op->op == LOG_STRIPE) {
			stripes++;
			need.bytes += sizeof(struct stripes_disk);
		}
		need.bytes += op->len;
	}
	if (missing) {
		for (unsigned i = 0; i < tx->ops; i++) {
			struct pkey key = tx->op[i].key;
			int rc = tree_load(fs, &key);
			if (rc)
				return rc;
		}
		return -EAGAIN;
	}
	for (unsigned i = 0; i < tx->ops;) {
		enum stripe_class class = STRIPE_DATA;
		unsigned next = i + 1;
		if (tx->op[i].op == LOG_STRIPE) {
			int64_t sum = tx_stripe_sum(tx, i, &next, &class);
			int rc = space_check_delta(fs, op_stripe(&tx->op[i]), sum, class);
			if (rc)
				return rc;
		}
		i = next;
	}
	int rc = space_lists_ensure(fs, stripes);
	if (rc)
		return rc;
	if (!checkpoint && tx_grows(tx))
		return -ENOSPC;
	return tree_spares_ensure(fs, &need, checkpoint);
}

void tx_apply(struct tx *tx, bool replay)
{
	struct fs *fs = tx->fs;
	bool emptied = false;

	for (unsigned i = 0; i < tx->ops;) {
		const struct tx_op *op = &tx->op[i];
		unsigned next = i + 1;
		if (op->key.w[1] >> 56 == KEY_EXTENT && (i == 0 || op->key.w[0] != tx->op[i - 1].key.w[0] ||
								tx->op[i - 1].key.w[1] >> 56 != KEY_EXTENT))
			files_extent_changed(fs, op->key.w[0]);
		if (op->op == LOG_PUT) {
			tree_apply_put(fs, &op->key, tx->record + op->off, op->len);
		} else if (op->op == LOG_DELETE) {
			emptied |= tree_apply_delete(fs, &op->key);
		} else {
			enum stripe_class class = STRIPE_DATA;
			int64_t sum = tx_stripe_sum(tx, i, &next, &class);
			uint32_t value = space_apply_delta(fs, op_stripe(op), (int32_t)sum, class, replay);
			tree_apply_stripe(fs, op_stripe(op), value);
		}
		i = next;
	}
	for (unsigned i = 0; emptied && i < tx->ops; i++)
		if (tx->op[i].op == LOG_DELETE)
			tree_apply_drop(fs, &tx->op[i].key);
	for (unsigned i = 0; i < tx->hooks; i++)
		tx->hook[i].fn(tx->hook[i].arg);
}

/* Runs PASS until it sees one state. After it nothing may wait before what it found is used. */
static int tx_run(struct tx *tx, tx_pass *pass, void *arg)
{
	while (tx->reruns++ < RERUNS_MAX) {
		if (tx->reruns > RERUNS_HOLD && !tx->hold) {
			tx->hold = true;
			tx->fs->tree.holds++;
		}
		tx_reset(tx);
		int rc = pass(tx, arg);
		if (!rc && tx->shares)
			rc = shares_resolve(tx);
		if (!rc && !tx->missed)
			rc = tx_blocks_end(tx);
		if (!tx->missed) {
			if (rc != -EAGAIN)
				return rc;
			fiber_yield();
			continue;
		}
		cache_trim(tx->fs);
		rc = tree_load(tx->fs, &tx->miss);
		if (rc)
			return rc == -ENOMEM ? -EAGAIN : rc;
	}
	return -EAGAIN;
}

int fs_view(struct fs *fs, tx_pass *pass, void *arg)
{
	struct tx *tx = tx_new(fs);

	if (!tx)
		return -EAGAIN;
	assert(reactor_self() == fs->home);
	tx->view = true;
	int rc = tx_run(tx, pass, arg);
	for (unsigned i = 0; !rc && i < tx->hooks; i++)
		tx->hook[i].fn(tx->hook[i].arg);
	tx_free(tx);
	return rc;
}

int fs_transact(struct fs *fs, tx_pass *pass, void *arg, uint64_t *seq)
{
	int rc;
	unsigned cleaned = 0;

	assert(reactor_self() == fs->home);
	if (fs->read_only)
		return -EROFS;
	struct tx *tx = tx_new(fs);
	if (!tx)
		return -EAGAIN;
	for (;;) {
		while (!fs->failed && checkpoint_behind(fs)) {
			checkpoint_kick(fs);
			wait_queue_wait(&fs->log.room, NEVER);
		}
		rc = fs->failed ? fs->failed : tx_run(tx, pass, arg);
		if (rc)
			break;
		if (tx->ops) {
			rc = tx_prepare(tx, false);
			if (!rc)
				rc = log_reserve(fs, tx->bytes, false);
			if (rc == -EAGAIN)
				continue;
			/* what was deleted comes back with a checkpoint, what is sparse with the cleaner */
			if (rc == -ENOSPC && cleaned++ < GROWTH_ATTEMPTS && !fs_checkpoint(fs))
				continue;
			if (rc)
				break;
		}
		tx_apply(tx, false);
		if (tx->ops) {
			log_append(fs, tx);
			fs->transactions++;
			checkpoint_changed(fs);
		}
		if (seq)
			*seq = fs->log.sequence;
		break;
	}
	tx_free(tx);
	return rc == -ENOMEM ? -EAGAIN : rc;
}

int fs_transact_durable(struct fs *fs, tx_pass *pass, void *arg)
{
	uint64_t seq;
	int rc = fs_transact(fs, pass, arg, &seq);
	return rc ? rc : log_wait(fs, seq);
}
