/*
 * Health of drives, looked at by the keeper every few seconds.
 *
 * Slow: the mean of a drive's reads is compared with the median of its peers. One that is many times slower, several
 * times in a row, is slow: reads go around it (read.c, rebuild.c) as long as the others suffice, and it is probed with
 * a few reads of its own until it is as fast as they are again. It stays a member and is written to.
 *
 * SMART: NVMe drives are asked for their health log when the keeper starts and then every ten minutes, with an admin
 * command on a helper thread. What is new and bad is an event.
 */
#include <stdlib.h>

#include "raid/raid_internal.h"

#define READS_LEAST 16u
#define SLOW_TIMES 8u
#define SLOW_LEAST (3 * NSEC_PER_MSEC) /* nothing faster is called slow */
#define STRIKES 3u
#define PROBES 4u
#define PROBES_GOOD 4u /* ticks */
#define SMART_INTERVAL (600 * NSEC_PER_SEC)

/* ---- slow drives ---- */

static int mean_compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

/* Whether MEMBER's group could do without it: with what it has lost and what is slow already. */
static bool group_spares(const struct member *member)
{
	const struct array *array = member->array;
	const struct geometry *g = &array->config.geometry[array->config.geometries - 1];
	unsigned width = g->k + g->m, first = member->slot / width * width, without = 1;
	for (unsigned i = first; i < first + width; i++)
		if (i != member->slot &&
			(!member_active(&array->member[i]) || atomic_load(&array->member[i].health.slow)))
			without++;
	return without <= g->m;
}

static void slow_set(struct member *member, bool slow, uint64_t mean, uint64_t median)
{
	atomic_store(&member->health.slow, slow);
	member->health.strikes = 0;
	log_warning("raid", "drive %s array=%s slot=%u drive=%s read_us=%llu peers_us=%llu",
		slow ? "is slow, reads go around it" : "is as fast as its peers again", member->array->config.name,
		member->slot, member->path, (unsigned long long)(mean / 1000), (unsigned long long)(median / 1000));
	event_emit(member->array, slow ? "drive-slow" : "drive-recovered", member,
		"reads take %llu us, of peers %llu us", (unsigned long long)(mean / 1000),
		(unsigned long long)(median / 1000));
}

/* A slow drive is read by nobody else: a few reads tell whether it still is. */
static void probe(struct member *member, uint64_t median)
{
	struct buf *buf = buf_alloc(BLOCK_BYTES);
	uint64_t sum = 0, seed = now_ns();
	for (unsigned i = 0; i < PROBES && buf; i++) {
		uint64_t begun = now_ns(), span = member->array->config.data_bytes / BLOCK_BYTES;
		seed = hash_u64(seed + i);
		int e = drive_io(member->drive, DRIVE_OP_READ,
			member->array->config.data_offset + seed % span * BLOCK_BYTES, buf, BLOCK_BYTES, false);
		sum += now_ns() - begun;
		if (e) {
			buf_put(buf);
			(void)member_failed(member, MEMBER_READ_ERROR, e);
			return;
		}
	}
	buf_put(buf);
	uint64_t mean = sum / PROBES, bound = 2 * median > SLOW_LEAST ? 2 * median : SLOW_LEAST;
	member->health.strikes = mean <= bound ? member->health.strikes + 1 : 0;
	if (member->health.strikes >= PROBES_GOOD)
		slow_set(member, false, mean, median);
}

static void slow_tick(struct array *array)
{
	uint64_t *means = malloc(2ull * array->config.members * sizeof(*means));
	if (!means)
		return;
	uint64_t *sorted = means + array->config.members;
	unsigned n = 0;
	for (unsigned i = 0; i < array->config.members; i++) {
		struct member *m = &array->member[i];
		means[i] = 0;
		if (!member_active(m))
			continue;
		uint64_t reads = drive_stat_sum(m->drive, offsetof(struct drive_stats, timed_reads));
		uint64_t ns = drive_stat_sum(m->drive, offsetof(struct drive_stats, read_ns));
		uint64_t fresh = reads - m->health.reads;
		if (m->health.reads && fresh >= READS_LEAST && fresh < 1ull << 40)
			sorted[n++] = means[i] = (ns - m->health.read_ns) / fresh;
		if (fresh >= READS_LEAST || !m->health.reads) {
			m->health.reads = reads;
			m->health.read_ns = ns;
		}
	}
	/* of a slow one its own mean means little; peers are three at least, else who is the odd one? */
	if (n >= 3) {
		qsort(sorted, n, sizeof(sorted[0]), mean_compare);
		array->peers_ns = sorted[n / 2];
	}
	for (unsigned i = 0; i < array->config.members; i++) {
		struct member *m = &array->member[i];
		if (!member_active(m))
			continue;
		if (atomic_load(&m->health.slow)) {
			if (!group_spares(m)) /* it is needed: slow is better than not at all */
				slow_set(m, false, means[i], array->peers_ns);
			else
				probe(m, array->peers_ns);
			continue;
		}
		if (!means[i] || n < 3)
			continue;
		bool outlier = means[i] > SLOW_LEAST && means[i] > SLOW_TIMES * array->peers_ns;
		m->health.strikes = outlier ? m->health.strikes + 1 : 0;
		if (m->health.strikes >= STRIKES && group_spares(m))
			slow_set(m, true, means[i], array->peers_ns);
	}
	free(means);
}

/* ---- SMART ---- */

struct smart_call {
	struct drive *drive;
	struct drive_smart smart;
	int result;
};

static void smart_blocking(void *arg)
{
	struct smart_call *call = arg;
	call->result = call->drive->ops->health(call->drive, &call->smart);
}

static void smart_judge(struct member *m, const struct drive_smart *now)
{
	const struct drive_smart *was = &m->health.smart;
	bool known = m->health.smart_valid;
	bool worn = now->percent_used >= 100 || now->spare_percent < now->spare_threshold;
	bool bad = now->critical_warning || worn;
	if (bad && !m->health.warned) {
		log_warning("raid", "drive warns of itself array=%s slot=%u drive=%s warning=0x%x used=%u spare=%u",
			m->array->config.name, m->slot, m->path, now->critical_warning, now->percent_used,
			now->spare_percent);
		event_emit(m->array, "drive-warning", m, "critical warning 0x%x, %u %% used, %u %% spare",
			now->critical_warning, now->percent_used, now->spare_percent);
	} else if (known && now->media_errors > was->media_errors) {
		log_warning("raid", "drive counts media errors array=%s slot=%u drive=%s errors=%llu",
			m->array->config.name, m->slot, m->path, (unsigned long long)now->media_errors);
		event_emit(m->array, "drive-warning", m, "%llu media errors", (unsigned long long)now->media_errors);
	}
	m->health.warned = bad;
}

static void smart_tick(struct array *array)
{
	if (now_ns() < array->smart_at)
		return;
	array->smart_at = now_ns() + SMART_INTERVAL;
	fiber_lock(&array->change); /* drives stay where they are */
	for (unsigned i = 0; i < array->config.slots; i++) {
		struct member *m = &array->member[i];
		struct smart_call call = {.drive = m->drive};
		uint8_t state = atomic_load(&m->state);
		if (!m->drive || !m->drive->ops->health ||
			(state != FORMAT_MEMBER_ACTIVE && state != FORMAT_MEMBER_REBUILD &&
				state != FORMAT_MEMBER_SPARE))
			continue;
		offload(smart_blocking, &call);
		if (call.result)
			continue;
		smart_judge(m, &call.smart);
		pthread_mutex_lock(&array->table);
		m->health.smart = call.smart;
		m->health.smart_valid = true;
		pthread_mutex_unlock(&array->table);
	}
	fiber_unlock(&array->change);
}

void health_tick(struct array *array)
{
	if (array_stopped(array))
		return;
	slow_tick(array);
	smart_tick(array);
}
