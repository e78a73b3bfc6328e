/*
 * What members missed while they were away, so that one that comes back is brought up to date by that alone.
 *
 * The stripes of an array are cut into at most MISSED_BITS regions; a member that goes out gets a map of one bit for
 * each. Before anything is written to a region without the member, its bit is on the survivors (struct
 * format_missed, 4 KiB on each, once for a region and an absence). The map belongs to the absence by its map_id, which
 * stands in the superblocks and is random; so a map of an earlier absence, or of one that the others remember
 * differently, is never taken for it. No map, or one that cannot be
 * read from any survivor: the member is rebuilt from the beginning. The log zone has no bits; it is always copied
 * whole. Survivors are those of the member's group, of which some are left as long as the array runs (layout_map()).
 *
 * Recent writes. What a member has acknowledged but not flushed is lost when it loses power alone. So the regions
 * that were written since the last flush are kept in memory, for all members together, and a member with a volatile
 * cache takes them into its map when it goes. They are kept in three generations; a flush of all members begins a new
 * one, and drops the oldest when it has succeeded: what is in it was acknowledged by the drives before the
 * flush before this one ended. Writers set a bit once per region and generation, else they only look.
 *
 * Bits are atomic. They go to the drives on the home reactor, under array->mutex, all that are waiting at once.
 */
#include <errno.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

#define WORDS (MISSED_BITS / 64)
#define GENERATIONS 3u

struct missed {
	_Atomic uint64_t wanted[WORDS];	 /* lacks it */
	_Atomic uint64_t durable[WORDS]; /* ... and the survivors know */
	uint64_t generation;
};

struct recent {
	_Atomic unsigned current;
	_Atomic bool flushing;
	_Atomic uint64_t bit[GENERATIONS][WORDS];
};

static unsigned region_of(const struct array *array, uint64_t stripe)
{
	return (unsigned)(stripe >> array->region_shift);
}

static bool bit_test(_Atomic uint64_t *bits, unsigned i)
{
	return atomic_load_explicit(&bits[i / 64], memory_order_acquire) & 1ull << (i % 64);
}

static void bit_set(_Atomic uint64_t *bits, unsigned i)
{
	if (!bit_test(bits, i))
		atomic_fetch_or(&bits[i / 64], 1ull << (i % 64));
}

int missed_init(struct array *array)
{
	uint64_t stripes = config_stripes(&array->config);
	array->region_shift = 0;
	while ((stripes - 1) >> array->region_shift >= MISSED_BITS)
		array->region_shift++;
	array->recent = calloc(1, sizeof(*array->recent));
	if (!array->recent)
		return -ENOMEM;
	for (unsigned i = 0; i < array->config.members; i++)
		if (!(array->member[i].missed = calloc(1, sizeof(struct missed))))
			return -ENOMEM;
	return 0;
}

void missed_fini(struct array *array)
{
	for (unsigned i = 0; i < array->config.members; i++)
		free(array->member[i].missed);
	free(array->recent);
}

/* ---- recent writes ---- */

void recent_mark(struct array *array, uint64_t stripe)
{
	struct recent *r = array->recent;
	unsigned current = atomic_load_explicit(&r->current, memory_order_acquire);
	bit_set(r->bit[current], region_of(array, stripe));
}

bool recent_flush_begin(struct array *array)
{
	struct recent *r = array->recent;
	if (atomic_exchange(&r->flushing, true))
		return false;
	unsigned next = (atomic_load(&r->current) + 1) % GENERATIONS;
	/* dropped at the end of the last flush, or kept because that failed: then it becomes current again */
	atomic_store(&r->current, next);
	return true;
}

void recent_flush_end(struct array *array, bool all_well)
{
	struct recent *r = array->recent;
	unsigned oldest = (atomic_load(&r->current) + 1) % GENERATIONS;
	if (all_well)
		for (unsigned i = 0; i < WORDS; i++)
			if (atomic_load_explicit(&r->bit[oldest][i], memory_order_relaxed))
				atomic_store(&r->bit[oldest][i], 0);
	atomic_store(&r->flushing, false);
}

/* ---- maps ---- */

uint64_t missed_id(void)
{
	struct uuid uuid;
	uint64_t id;
	uuid_make(&uuid);
	memcpy(&id, uuid.b, sizeof(id));
	return id ? id : 1;
}

void missed_begin(struct member *member, bool was_active)
{
	struct array *array = member->array;
	struct member_config *mc = &array->config.member[member->slot];
	struct missed *m = member->missed;
	if (!member->fresh)
		mc->events = array->complete;
	mc->left = array->config.events + 1;
	if (was_active) {
		mc->map_id = missed_id();
		for (unsigned i = 0; i < WORDS; i++) {
			atomic_store(&m->wanted[i], 0);
			atomic_store(&m->durable[i], 0);
		}
	}
	mc->rebuild_next = 0;
	if (!mc->map_id || !member->drive || !member->drive->volatile_cache)
		return;
	for (unsigned g = 0; g < GENERATIONS; g++)
		for (unsigned i = 0; i < WORDS; i++) {
			uint64_t bits = atomic_load(&array->recent->bit[g][i]);
			if (bits)
				atomic_fetch_or(&m->wanted[i], bits);
		}
}

static bool map_grown(const struct missed *m)
{
	for (unsigned i = 0; i < WORDS; i++)
		if (atomic_load_explicit(&m->wanted[i], memory_order_acquire) &
			~atomic_load_explicit(&m->durable[i], memory_order_relaxed))
			return true;
	return false;
}

static void map_encode(const struct array *array, unsigned slot, const uint64_t *words, struct format_missed *f)
{
	const struct missed *m = array->member[slot].missed;
	memset(f, 0, sizeof(*f));
	memcpy(f->magic, MISSED_MAGIC, 8);
	memcpy(f->array_uuid, array->config.uuid.b, 16);
	f->map_id = le64_put(array->config.member[slot].map_id);
	f->generation = le64_put(m->generation);
	f->slot = le16_put((uint16_t)slot);
	f->copy = m->generation & 1;
	f->shift = (uint8_t)array->region_shift;
	for (unsigned i = 0; i < WORDS; i++) {
		le64 word = le64_put(words[i]);
		memcpy(f->bits + i * 8u, &word, 8);
	}
	f->checksum = le64_put(checksum64(f, sizeof(*f), 0));
}

static int map_write(struct array *array, unsigned slot)
{
	struct missed *m = array->member[slot].missed;
	struct map_home home = layout_map(&array->config, slot);
	struct drive_req *reqs = calloc(home.end - home.first, sizeof(*reqs));
	uint64_t *words = calloc(WORDS, sizeof(*words));
	if (!reqs || !words) {
		free(reqs);
		free(words);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < WORDS; i++)
		words[i] = atomic_load(&m->wanted[i]);
	m->generation++;
	struct buf *buf = buf_alloc(MISSED_BYTES);
	map_encode(array, slot, words, (struct format_missed *)(void *)buf->data);
	struct slice slice = {.buf = buf, .off = 0, .len = MISSED_BYTES};
	uint64_t asked = 0, offset = MISSED_OFFSET + (2ull * home.index + (m->generation & 1)) * MISSED_BYTES;
	struct drive_batch batch;
	batch_init(&batch);
	for (unsigned i = 0; i < home.end - home.first; i++) {
		struct member *member = &array->member[home.first + i];
		if (array->config.member[member->slot].state != FORMAT_MEMBER_ACTIVE)
			continue;
		struct drive *drive = member->incoming ? member->incoming : member->drive;
		struct slice_cursor cursor = slice_cursor_at(&slice, 1);
		batch_io(&batch, &reqs[i], drive, DRIVE_OP_WRITE, offset, MISSED_BYTES, &cursor, true);
		asked |= 1ull << i;
	}
	batch_wait(&batch);
	int lost = 0;
	for (unsigned i = 0; i < home.end - home.first && lost >= 0; i++) {
		struct member *member = &array->member[home.first + i];
		if (!(asked & 1ull << i) || !reqs[i].error)
			continue;
		if (reqs[i].error == -ENOMEM) {
			lost = -ENOMEM;
			break;
		}
		atomic_fetch_add(&member->write_errors, 1);
		char reason[80];
		snprintf(reason, sizeof(reason), "write of the map of missed rows: %s", strerror(-reqs[i].error));
		int r = member_take_out(member, reason);
		lost = r ? r : lost + 1;
	}
	if (lost >= 0)
		for (unsigned i = 0; i < WORDS; i++)
			atomic_store(&m->durable[i], words[i]);
	buf_put(buf);
	free(reqs);
	free(words);
	return lost;
}

int missed_persist(struct array *array)
{
	int lost = 0;
	for (unsigned slot = 0; slot < array->config.members; slot++) {
		const struct member_config *mc = &array->config.member[slot];
		if (mc->state == FORMAT_MEMBER_ACTIVE || !mc->map_id || !map_grown(array->member[slot].missed))
			continue;
		int r = map_write(array, slot);
		if (r < 0)
			return r;
		lost += r;
	}
	return lost;
}

void missed_spread(struct array *array, unsigned to)
{
	for (unsigned slot = 0; slot < array->config.members; slot++) {
		struct map_home home = layout_map(&array->config, slot);
		if (to >= home.first && to < home.end && array->config.member[slot].map_id &&
			array->config.member[slot].state != FORMAT_MEMBER_ACTIVE)
			for (unsigned i = 0; i < WORDS; i++)
				atomic_store(&array->member[slot].missed->durable[i], 0);
	}
}

struct lacks_call {
	struct member *member;
	unsigned region;
	int result;
};

static void lacks_home(void *arg)
{
	struct lacks_call *call = arg;
	struct array *array = call->member->array;
	struct missed *m = call->member->missed;
	fiber_lock(&array->mutex);
	if (array_stopped(array)) {
		call->result = -ENODEV;
	} else if (!array->config.member[call->member->slot].map_id) {
		bit_set(m->durable, call->region); /* it lacks everything, and they know that */
	} else if (!bit_test(m->durable, call->region)) {
		call->result = missed_persist(array);
		/* who failed over it must be known to the others, which also writes what that one lost */
		if (call->result > 0)
			call->result = array_commit(array, NULL);
	}
	fiber_unlock(&array->mutex);
}

int member_lacks(struct member *member, uint64_t stripe)
{
	int r = member_settle(member);
	struct missed *m = member->missed;
	unsigned region = region_of(member->array, stripe);
	if (r || bit_test(m->durable, region))
		return r;
	struct lacks_call call = {.member = member, .region = region};
	bit_set(m->wanted, region);
	reactor_call(member->array->home, lacks_home, &call);
	return call.result;
}

/* ---- at opening ---- */

/* What one survivor knows about the map of SLOT, its number INDEX: adds its bits. False: it cannot tell. */
static bool map_read(struct array *array, struct drive *drive, unsigned slot, unsigned index, struct buf *buf)
{
	struct missed *m = array->member[slot].missed;
	const struct member_config *mc = &array->config.member[slot];
	struct format_missed *best = NULL, *f = (struct format_missed *)(void *)buf->data;
	if (drive_io(drive, DRIVE_OP_READ, MISSED_OFFSET + 2ull * index * MISSED_BYTES, buf, 2 * MISSED_BYTES, false))
		return false;
	unsigned damaged = 0;
	for (unsigned copy = 0; copy < 2; copy++, f++) {
		uint64_t sum = le64_get(f->checksum);
		f->checksum = le64_put(0);
		bool blank = memcmp(f->magic, MISSED_MAGIC, 8) != 0;
		if (blank || checksum64(f, sizeof(*f), 0) != sum) {
			damaged += !blank;
			continue;
		}
		if (memcmp(f->array_uuid, array->config.uuid.b, 16) != 0 || le16_get(f->slot) != slot ||
			le64_get(f->map_id) != mc->map_id)
			continue;
		if (f->shift != array->region_shift)
			return false;
		if (!best || le64_get(f->generation) > le64_get(best->generation))
			best = f;
	}
	/* one torn write is the newest, which nobody was told of; two are a fault */
	if (damaged > 1)
		return false;
	if (!best)
		return true;
	if (le64_get(best->generation) > m->generation)
		m->generation = le64_get(best->generation);
	for (unsigned i = 0; i < WORDS; i++) {
		le64 word;
		memcpy(&word, best->bits + i * 8u, 8);
		uint64_t bits = le64_get(word);
		if (bits)
			atomic_fetch_or(&m->wanted[i], bits);
	}
	return true;
}

void missed_load(struct array *array)
{
	struct buf *buf = buf_alloc(2 * MISSED_BYTES);
	for (unsigned slot = 0; slot < array->config.members; slot++) {
		struct member_config *mc = &array->config.member[slot];
		bool known = false;
		if (mc->state == FORMAT_MEMBER_ACTIVE || !mc->map_id)
			continue;
		struct map_home home = layout_map(&array->config, slot);
		for (unsigned i = home.first; i < home.end; i++)
			if (array->config.member[i].state == FORMAT_MEMBER_ACTIVE && array->member[i].drive)
				known = map_read(array, array->member[i].drive, slot, home.index, buf) || known;
		if (!known) {
			log_warning("raid",
				"what a member missed cannot be read, it would be rebuilt whole array=%s slot=%u",
				array->config.name, slot);
			mc->map_id = 0;
			mc->rebuild_next = 0;
		}
	}
	buf_put(buf);
}

bool missed_region(const struct member *member, uint64_t stripe)
{
	return !member->array->config.member[member->slot].map_id ||
	       bit_test(member->missed->wanted, region_of(member->array, stripe));
}
