/*
 * Volumes: ranges of stripes and of the log zone, kept in the volume table of the superblocks.
 *
 * The table is changed on the array's home reactor under its mutex, and a change counts when
 * array_commit() has written it; if that fails the change is taken back. An open volume is a
 * struct of its own with everything that I/O needs, so that the table is not looked at on the way.
 */
#include <errno.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

#define LOG_CHUNKS_MIN 4u

struct volume_call {
	struct array *array;
	const char *name;
	uint64_t bytes;
	struct volume **volume;
	struct error *err;
	int result;
};

static int table_find(const struct raid_config *c, const char *name)
{
	for (unsigned i = 0; i < SUPER_VOLUMES; i++)
		if (c->volume[i].name[0] && strcmp(c->volume[i].name, name) == 0)
			return (int)i;
	return -1;
}

/*
 * Free ranges between what volumes use, of stripes or of log chunks, inside [first, end). The lowest one of at
 * least WANT (start in *at), else the largest; returns its length, 0 when there is none.
 */
static uint64_t hole_find(
	const struct raid_config *c, bool log, uint64_t first, uint64_t end, uint64_t want, uint64_t *at)
{
	uint64_t best = 0, from = first;
	*at = first;
	while (from < end) {
		/* what lies over FROM, or begins next behind it */
		uint64_t next = end, over = 0;
		for (unsigned i = 0; i < SUPER_VOLUMES; i++) {
			const struct volume_config *v = &c->volume[i];
			if (!v->name[0])
				continue;
			uint64_t a = log ? v->log_first : v->first_stripe, b = a + (log ? v->log_chunks : v->stripes);
			if (a <= from && from < b)
				over = b;
			else if (a > from && a < next)
				next = a;
		}
		if (over) {
			from = over;
			continue;
		}
		if (next - from > best) {
			best = next - from;
			*at = from;
			if (want && best >= want)
				return best;
		}
		from = next;
	}
	return best;
}

static void create_home(void *arg)
{
	struct volume_call *call = arg;
	struct array *array = call->array;
	struct raid_config *c = &array->config;
	fiber_lock(&array->mutex);
	unsigned i = 0;
	while (i < SUPER_VOLUMES && c->volume[i].name[0])
		i++;
	if (table_find(c, call->name) >= 0) {
		call->result = error_set(call->err, -EEXIST, "%s/%s: exists", c->name, call->name);
		goto out;
	}
	if (i == SUPER_VOLUMES) {
		call->result = error_set(call->err, -ENOSPC, "array %s has %u volumes already", c->name, SUPER_VOLUMES);
		goto out;
	}
	const struct geometry *g = &c->geometry[c->geometries - 1];
	uint64_t stripe_bytes = (uint64_t)g->k * g->strip_bytes;
	uint64_t want = call->bytes / stripe_bytes + (call->bytes % stripe_bytes != 0);
	uint64_t at, log_at;
	uint64_t found = hole_find(c, false, g->first_stripe, g->first_stripe + g->stripes, want, &at);
	if (found == 0 || found < want) {
		call->result = error_set(call->err, -ENOSPC,
			"%s/%s: %llu bytes wanted, the largest free range has %llu", c->name, call->name,
			(unsigned long long)call->bytes, (unsigned long long)(found * stripe_bytes));
		goto out;
	}
	uint64_t stripes = want ? want : found;
	uint64_t chunks = config_log_chunks(c);
	uint64_t log_want = (uint64_t)((double)chunks * (double)stripes / (double)config_stripes(c));
	if (stripes == config_stripes(c))
		log_want = chunks;
	if (log_want < LOG_CHUNKS_MIN)
		log_want = LOG_CHUNKS_MIN;
	uint64_t log_found = hole_find(c, true, 0, chunks, log_want, &log_at);
	if (log_found < LOG_CHUNKS_MIN || log_found < log_want / 4) {
		call->result = error_set(call->err, -ENOSPC, "%s/%s: no room in the log zone", c->name, call->name);
		goto out;
	}
	struct volume_config v = {
		.first_stripe = at,
		.stripes = stripes,
		.log_first = log_at,
		.log_chunks = log_found < log_want ? log_found : log_want,
		.created = wall_ns(),
	};
	snprintf(v.name, sizeof(v.name), "%s", call->name);
	uuid_make(&v.uuid);
	pthread_mutex_lock(&array->table);
	c->volume[i] = v;
	pthread_mutex_unlock(&array->table);
	call->result = array_commit(array, call->err);
	if (call->result) {
		pthread_mutex_lock(&array->table);
		memset(&c->volume[i], 0, sizeof(c->volume[i]));
		pthread_mutex_unlock(&array->table);
	}
out:
	fiber_unlock(&array->mutex);
}

int volume_create(struct array *array, const char *name, uint64_t bytes, struct error *err)
{
	if (!raid_name_valid(name))
		return error_set(err, -EINVAL,
			"%.40s: not a name (1 to %d of A-Z a-z 0-9 . _ -, not beginning with . or -)", name,
			RAID_NAME_MAX);
	struct volume_call call = {.array = array, .name = name, .bytes = bytes, .err = err};
	reactor_call(array->home, create_home, &call);
	return call.result;
}

static void destroy_home(void *arg)
{
	struct volume_call *call = arg;
	struct array *array = call->array;
	struct raid_config *c = &array->config;
	fiber_lock(&array->mutex);
	int i = table_find(c, call->name);
	if (i < 0) {
		call->result = error_set(call->err, -ENOENT, "%s/%.40s: no such volume", c->name, call->name);
	} else if (array->open[i]) {
		call->result = error_set(call->err, -EBUSY, "%s/%s: in use", c->name, call->name);
	} else {
		struct volume_config old = c->volume[i];
		pthread_mutex_lock(&array->table);
		memset(&c->volume[i], 0, sizeof(c->volume[i]));
		pthread_mutex_unlock(&array->table);
		call->result = array_commit(array, call->err);
		if (call->result) {
			pthread_mutex_lock(&array->table);
			c->volume[i] = old;
			pthread_mutex_unlock(&array->table);
		}
	}
	fiber_unlock(&array->mutex);
}

int volume_destroy(struct array *array, const char *name, struct error *err)
{
	struct volume_call call = {.array = array, .name = name, .err = err};
	reactor_call(array->home, destroy_home, &call);
	return call.result;
}

unsigned volume_list(struct array *array, struct volume_info list[RAID_VOLUMES_MAX])
{
	struct raid_config *c = &array->config;
	const struct geometry *g = &c->geometry[c->geometries - 1];
	unsigned n = 0;
	pthread_mutex_lock(&array->table);
	for (unsigned i = 0; i < SUPER_VOLUMES; i++) {
		const struct volume_config *v = &c->volume[i];
		if (!v->name[0])
			continue;
		memset(&list[n], 0, sizeof(list[n]));
		snprintf(list[n].name, sizeof(list[n].name), "%s", v->name);
		list[n].uuid = v->uuid;
		list[n].bytes = v->stripes * g->k * g->strip_bytes;
		list[n].open = array->open[i] != NULL;
		n++;
	}
	pthread_mutex_unlock(&array->table);
	return n;
}

static void open_home(void *arg)
{
	struct volume_call *call = arg;
	struct array *array = call->array;
	struct raid_config *c = &array->config;
	fiber_lock(&array->mutex);
	int i = table_find(c, call->name);
	if (i < 0) {
		call->result = error_set(call->err, -ENOENT, "%s/%.40s: no such volume", c->name, call->name);
		goto out;
	}
	if (array->open[i]) {
		call->result = error_set(call->err, -EBUSY, "%s/%s: in use", c->name, call->name);
		goto out;
	}
	struct volume *volume = calloc(1, sizeof(*volume));
	if (!volume) {
		call->result = error_set(call->err, -ENOMEM, "%s/%s: out of memory", c->name, call->name);
		goto out;
	}
	const struct volume_config *v = &c->volume[i];
	unsigned e = c->geometries - 1;
	while (e && v->first_stripe < c->geometry[e].first_stripe)
		e--;
	const struct geometry *g = &c->geometry[e];
	pthread_mutex_init(&volume->unread.lock, NULL);
	volume->array = array;
	volume->index = (unsigned)i;
	snprintf(volume->name, sizeof(volume->name), "%s/%s", c->name, v->name);
	volume->uuid = v->uuid;
	volume->geo = g;
	volume->code = &array->code[e];
	volume->first_stripe = v->first_stripe;
	volume->log_first = v->log_first;
	volume->geometry = (struct volume_geometry){
		.k = g->k,
		.m = g->m,
		.strip_blocks = g->strip_blocks,
		.stripes = v->stripes,
		.log_blocks = v->log_chunks * (LOG_CHUNK_BYTES / BLOCK_BYTES),
		.log_copies = c->log_copies,
		.epoch = g->epoch,
	};
	pthread_mutex_lock(&array->table);
	array->open[i] = volume;
	array->open_volumes++;
	pthread_mutex_unlock(&array->table);
	*call->volume = volume;
out:
	fiber_unlock(&array->mutex);
}

int volume_open(struct array *array, const char *name, struct volume **volume, struct error *err)
{
	struct volume_call call = {.array = array, .name = name, .volume = volume, .err = err};
	*volume = NULL;
	reactor_call(array->home, open_home, &call);
	return call.result;
}

static void close_home(void *arg)
{
	struct volume *volume = arg;
	struct array *array = volume->array;
	fiber_lock(&array->mutex);
	pthread_mutex_lock(&array->table);
	array->open[volume->index] = NULL;
	array->open_volumes--;
	pthread_mutex_unlock(&array->table);
	fiber_unlock(&array->mutex);
}

void volume_close(struct volume *volume)
{
	if (!volume)
		return;
	reactor_call(volume->array->home, close_home, volume);
	pthread_mutex_destroy(&volume->unread.lock);
	free(volume);
}

const struct volume_geometry *volume_geometry(const struct volume *volume)
{
	return &volume->geometry;
}

const struct uuid *volume_uuid(const struct volume *volume)
{
	return &volume->uuid;
}

const char *volume_name(const struct volume *volume)
{
	return volume->name;
}

int volume_range(const struct volume *volume, uint64_t block, uint64_t limit, const struct slice *v, unsigned n,
	uint64_t *blocks)
{
	uint64_t bytes = slices_bytes(v, n);
	if (bytes == 0 || bytes % BLOCK_BYTES)
		return -EINVAL;
	*blocks = bytes / BLOCK_BYTES;
	if (block > limit || *blocks > limit - block)
		return -EINVAL;
	return array_stopped(volume->array) ? -ENODEV : 0;
}
