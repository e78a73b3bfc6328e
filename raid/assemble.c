/*
 * Assembly: from what a scan found to a running array, or to the reason why not.
 *
 * Every drive that claims to belong to the array is a candidate. The candidate with the highest event
 * count speaks for the array: its member table says who belongs to it and how far each must have come.
 * A candidate is used if the table lists its UUID in its slot as active, and its own event count is
 * at or above the floor that the table gives for it. All others are told apart for the administrator: stale,
 * failed before, foreign (not of this array any more), twice there.
 *
 * Refused: two halves that went on without each other (same event, different content; or one that is still listed by
 * the other), a drive that somebody else holds, and more missing than the redundancy bears. Of different contents with
 * the same event, those that were never written to all whom they name do not count (config_strayed()). Missing members
 * are written into the superblocks of the others before the array is handed out, unless to one who only looks.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

enum candidate_verdict { CANDIDATE_USE, CANDIDATE_STALE, CANDIDATE_FAILED, CANDIDATE_FOREIGN, CANDIDATE_TWICE };

struct candidate {
	const struct drive_info *info;
	/* from its superblock */
	struct uuid member;
	unsigned slot;
	uint64_t events, common;
	enum candidate_verdict verdict;
};

struct assembly {
	struct candidate *list;
	unsigned count;
	struct candidate *newest;
	struct super_found *top, *one; /* the superblock of the newest, and one that was read just now */
	struct array *array;
};

static void assembly_free(struct assembly *a)
{
	free(a->top);
	free(a->one);
	free(a->list);
}

/* Which array is meant: its UUID. */
static int array_find(const struct raid_scan *scan, const char *name, struct uuid *uuid, struct error *err)
{
	struct uuid wanted;
	bool by_uuid = uuid_parse(name, &wanted) == 0, seen = false;
	for (unsigned i = 0; i < scan->count; i++) {
		const struct drive_info *info = &scan->drive[i];
		if (info->content != DRIVE_MEMBER)
			continue;
		if (by_uuid ? memcmp(&info->array, &wanted, sizeof(wanted)) != 0 : strcmp(info->array_name, name) != 0)
			continue;
		if (seen && memcmp(&info->array, uuid, sizeof(*uuid)) != 0) {
			char a[37], b[37];
			uuid_format(uuid, a);
			uuid_format(&info->array, b);
			return error_set(err, -EEXIST,
				"array %.40s: two arrays have this name, %s and %s; use the UUID", name, a, b);
		}
		*uuid = info->array;
		seen = true;
	}
	if (!seen)
		return error_set(err, -ENOENT, "array %.40s: none of the %u drives scanned is a member of it", name,
			scan->count);
	return 0;
}

/* Reads the superblock of a drive that may have changed since the scan. */
static int candidate_read(
	const char *path, bool claim, struct drive **drive, struct super_found *found, struct error *err)
{
	enum super_verdict verdict;
	char why[160];
	int r = drive_open(path, claim, drive, err);
	if (r)
		return r;
	r = super_read(*drive, found, &verdict, why, sizeof(why));
	if (r)
		error_set(err, r, "%s: %s", path, strerror(-r));
	else if (verdict != SUPER_VALID)
		r = error_set(err, -ENODATA, "%s: %s", path, why[0] ? why : "no superblock any more");
	if (r || !claim) {
		drive_close(*drive);
		*drive = NULL;
	}
	return r;
}

/* What A->ONE says becomes an entry of the list. */
static void candidate_note(struct assembly *a, const struct drive_info *info)
{
	struct candidate *c = &a->list[a->count++];
	struct super_found *found = a->one;
	*c = (struct candidate){
		.info = info,
		.member = found->member,
		.slot = found->slot,
		.events = found->config.events,
		.common = found->common,
	};
	if (a->newest && c->events <= a->newest->events)
		return;
	a->newest = c;
	a->one = a->top;
	a->top = found;
}

static int candidates_collect(
	struct assembly *a, const struct raid_scan *scan, const struct uuid *uuid, struct error *err)
{
	a->list = calloc(scan->count + 1, sizeof(*a->list));
	a->top = malloc(sizeof(*a->top));
	a->one = malloc(sizeof(*a->one));
	if (!a->list || !a->top || !a->one)
		return error_set(err, -ENOMEM, "out of memory");
	for (unsigned i = 0; i < scan->count; i++) {
		const struct drive_info *info = &scan->drive[i];
		if (info->content != DRIVE_MEMBER || memcmp(&info->array, uuid, sizeof(*uuid)) != 0)
			continue;
		struct drive *drive;
		struct error why = {0};
		if (candidate_read(info->path, false, &drive, a->one, &why) ||
			memcmp(&a->one->config.uuid, uuid, sizeof(*uuid)) != 0)
			log_warning("raid", "drive left out array=%s drive=%s reason=\"%s\"", info->array_name,
				info->path, why.code ? why.text : "changed since the scan");
		else
			candidate_note(a, info);
	}
	if (!a->count)
		return error_set(err, -ENOENT, "the members found by the scan cannot be read any more");
	return 0;
}

/* Reads the superblock of C again. */
static int candidate_again(const struct candidate *c, struct super_found *found, struct error *err)
{
	struct drive *drive;
	int r = candidate_read(c->info->path, false, &drive, found, err);
	if (!r && (memcmp(&found->member, &c->member, 16) != 0 || found->config.events != c->events ||
			  found->common != c->common))
		r = error_set(err, -EAGAIN, "%s: changed while the array was being opened", c->info->path);
	return r;
}

static int apart(const struct assembly *a, const struct candidate *x, const struct candidate *y, struct error *err)
{
	return error_set(err, -EUCLEAN,
		"array %s: %s and %s went on without each other (at events %llu and %llu); start one side only",
		a->top->config.name, x->info->path, y->info->path, (unsigned long long)x->events,
		(unsigned long long)y->events);
}

/* Of those with most events some have another content than A->NEWEST, and all of these were left behind: 0. */
static int newest_check(struct assembly *a, struct error *err)
{
	const struct raid_config *top = &a->top->config;
	for (unsigned i = 0; i < a->count; i++) {
		const struct candidate *c = &a->list[i];
		unsigned slot = 0;
		if (c->events != top->events || c->common == a->newest->common)
			continue;
		while (slot < top->slots && memcmp(&top->member[slot].uuid, &c->member, sizeof(c->member)) != 0)
			slot++;
		uint8_t state = slot < top->slots ? top->member[slot].state : FORMAT_MEMBER_NONE;
		if (state != FORMAT_MEMBER_FAILED && state != FORMAT_MEMBER_MISSING && state != FORMAT_MEMBER_SPARE)
			return apart(a, a->newest, c, err);
		int r = candidate_again(c, a->one, err);
		if (r)
			return r;
		if (config_strayed(top, slot, &a->one->config))
			return apart(a, a->newest, c, err);
	}
	return 0;
}

/* Whose content speaks for the array, if there are several with most events. */
static int newest_choose(struct assembly *a, struct error *err)
{
	uint64_t events = a->newest->events, tried = a->newest->common;
	struct error why = {0};
	int r = newest_check(a, err);
	for (unsigned i = 0; i < a->count && r == -EUCLEAN; i++) {
		struct candidate *c = &a->list[i];
		if (c->events != events || c->common == tried)
			continue;
		tried = c->common;
		a->newest = c;
		r = candidate_again(c, a->top, err);
		if (!r)
			r = newest_check(a, &why);
	}
	return r;
}

/* C is to be used though it is behind: it did not get that far without the newest. A->TOP is that one's. */
static int candidate_check(struct assembly *a, const struct candidate *c, struct error *err)
{
	const struct raid_config *top = &a->top->config;
	const struct member_config *m = &top->member[c->slot];
	if (c->events >= top->events || c->events <= m->events || m->state == FORMAT_MEMBER_SPARE)
		return 0;
	int r = candidate_again(c, a->one, err);
	if (!r && config_strayed(top, c->slot, &a->one->config))
		r = apart(a, a->newest, c, err);
	return r;
}

static int candidates_judge(struct assembly *a, struct error *err)
{
	assert(a->newest); /* candidates_collect() found one */
	int r = newest_choose(a, err);
	if (r)
		return r;
	const struct raid_config *top = &a->top->config;
	for (unsigned i = 0; i < a->count; i++) {
		struct candidate *c = &a->list[i];
		/* a spare that took over a slot may not have been told yet */
		for (unsigned slot = 0; slot < top->slots; slot++)
			if (top->member[slot].state != FORMAT_MEMBER_NONE &&
				memcmp(&top->member[slot].uuid, &c->member, sizeof(c->member)) == 0)
				c->slot = slot;
		const struct member_config *m = c->slot < top->slots ? &top->member[c->slot] : NULL;
		if (!m || memcmp(&m->uuid, &c->member, sizeof(m->uuid)) != 0)
			c->verdict = CANDIDATE_FOREIGN;
		else if (m->state == FORMAT_MEMBER_FAILED)
			c->verdict = CANDIDATE_FAILED;
		else if (m->state == FORMAT_MEMBER_MISSING || c->events < m->events)
			c->verdict = CANDIDATE_STALE;
		else if (m->state == FORMAT_MEMBER_ACTIVE || m->state == FORMAT_MEMBER_SPARE ||
			 m->state == FORMAT_MEMBER_REBUILD)
			c->verdict = CANDIDATE_USE;
		else
			c->verdict = CANDIDATE_STALE;
	}
	for (unsigned i = 0; i < a->count; i++)
		for (unsigned j = 0; j < i; j++) {
			struct candidate *x = &a->list[i], *y = &a->list[j];
			if (x->slot != y->slot || memcmp(&x->member, &y->member, 16) != 0 ||
				x->verdict == CANDIDATE_STALE || y->verdict == CANDIDATE_STALE)
				continue;
			/* a copy that was left behind is stale; of two equal ones nobody knows which is right */
			if (x->events < y->events)
				x->verdict = CANDIDATE_STALE;
			else if (x->events > y->events)
				y->verdict = CANDIDATE_STALE;
			else
				x->verdict = y->verdict = CANDIDATE_TWICE;
		}
	for (unsigned i = 0; i < a->count && !r; i++)
		if (a->list[i].verdict == CANDIDATE_USE)
			r = candidate_check(a, &a->list[i], err);
	return r;
}

static const char *candidate_word(enum candidate_verdict verdict)
{
	static const char *const words[] = {"good", "stale", "failed before", "foreign", "there twice"};
	return words[verdict];
}

/* "member 2 missing; member 3 (/dev/x) stale": for the log or the error. */
static void losses_describe(const struct assembly *a, char *out, size_t size)
{
	const struct raid_config *top = &a->top->config;
	size_t at = 0;
	out[0] = 0;
	for (unsigned slot = 0; slot < top->members; slot++) {
		bool good = false, seen = false;
		for (unsigned i = 0; i < a->count; i++)
			good = good || (a->list[i].slot == slot && a->list[i].verdict == CANDIDATE_USE);
		for (unsigned i = 0; i < a->count && !good && at < size; i++) {
			const struct candidate *c = &a->list[i];
			if (c->slot != slot)
				continue;
			int n = snprintf(out + at, size - at, "%smember %u (%s) %s", at ? "; " : "", slot,
				c->info->path, candidate_word(c->verdict));
			at += n > 0 ? (size_t)n : 0;
			seen = true;
		}
		if (!good && !seen && at < size) {
			int n = snprintf(out + at, size - at, "%smember %u missing", at ? "; " : "", slot);
			at += n > 0 ? (size_t)n : 0;
		}
	}
}

static int members_claim(struct assembly *a, struct error *err)
{
	struct array *array = a->array;
	struct super_found *again = a->one;
	int r = 0;
	for (unsigned i = 0; i < a->count && !r; i++) {
		struct candidate *c = &a->list[i];
		if (c->verdict != CANDIDATE_USE)
			continue;
		struct member *member = &array->member[c->slot];
		struct drive *drive = NULL;
		r = candidate_read(c->info->path, true, &drive, again, err);
		member->drive = drive;
		if (!r && (memcmp(&again->member, &c->member, 16) != 0 || again->config.events != c->events))
			r = error_set(err, -EAGAIN, "%s: changed while the array was being opened", c->info->path);
		snprintf(member->path, sizeof(member->path), "%s", c->info->path);
	}
	return r;
}

static int array_start(struct assembly *a, struct error *err)
{
	struct array *array = a->array;
	struct raid_config *c = &array->config;
	char losses[300];
	unsigned lost = 0;
	*c = a->top->config;
	array_members(array, 0, c->slots);
	array->complete = c->events;
	for (unsigned i = 0; i < a->count; i++) {
		const struct candidate *x = &a->list[i];
		if (x->verdict == CANDIDATE_USE && x->events < array->complete)
			array->complete = x->events;
	}
	for (unsigned slot = 0; slot < c->slots; slot++) {
		struct member_config *m = &c->member[slot];
		bool good = false, failed = false;
		for (unsigned i = 0; i < a->count; i++) {
			good = good || (a->list[i].slot == slot && a->list[i].verdict == CANDIDATE_USE);
			if (a->list[i].slot == slot && a->list[i].verdict == CANDIDATE_STALE)
				array->member[slot].stale = true;
			if (a->list[i].slot == slot && a->list[i].verdict == CANDIDATE_FAILED) {
				failed = true;
				snprintf(array->member[slot].path, sizeof(array->member[slot].path), "%s",
					a->list[i].info->path);
			}
		}
		/* one that failed is not taken back by itself while its drive is where it was */
		if (m->state == FORMAT_MEMBER_FAILED && !failed)
			m->state = FORMAT_MEMBER_MISSING;
		if (slot < c->members && !good && m->state != FORMAT_MEMBER_FAILED &&
			m->state != FORMAT_MEMBER_MISSING) {
			/* from now on it misses what is written; a rebuild that was under way begins again */
			if (m->state == FORMAT_MEMBER_ACTIVE)
				m->map_id = missed_id();
			m->left = c->events + 1;
			m->rebuild_next = 0;
			m->state = FORMAT_MEMBER_MISSING;
			m->changed = wall_ns();
		}
		if (slot < c->members && m->state != FORMAT_MEMBER_ACTIVE)
			lost++;
		/* a spare that is not there today stays on the list */
		atomic_store(&array->member[slot].state, good				   ? m->state
							 : m->state == FORMAT_MEMBER_SPARE ? FORMAT_MEMBER_NONE
											   : m->state);
	}
	losses_describe(a, losses, sizeof(losses));
	if (!config_viable(c))
		return error_set(err, -EIO, "array %s: too many members are lost: %s", c->name, losses);
	for (unsigned i = 0; i < c->geometries; i++)
		if (code_init(&array->code[i], c->geometry[i].code, c->geometry[i].k, c->geometry[i].m))
			return error_set(err, -ENOMEM, "array %s: out of memory", c->name);
	if (missed_init(array))
		return error_set(err, -ENOMEM, "array %s: out of memory", c->name);
	int r = members_claim(a, err);
	if (r)
		return r;
	missed_load(array);
	bool clean = c->clean;
	c->clean = false;
	if (!array->look) {
		fiber_lock(&array->mutex);
		r = array_commit(array, err);
		fiber_unlock(&array->mutex);
	}
	if (r)
		return r;
	for (unsigned i = 0; i < c->slots; i++)
		metrics_member_add(&array->member[i]);
	if (lost)
		log_warning("raid", "array opened degraded array=%s lost=%u %s", c->name, lost, losses);
	else
		log_info("raid", "array opened array=%s level=%u members=%u clean=%d", c->name, c->level, c->members,
			clean);
	return 0;
}

static int assemble(
	const struct raid_scan *scan, const char *name_or_uuid, bool look, struct array **array_out, struct error *err)
{
	struct assembly a = {0};
	struct uuid uuid;
	*array_out = NULL;
	int r = array_find(scan, name_or_uuid, &uuid, err);
	if (!r)
		r = candidates_collect(&a, scan, &uuid, err);
	if (!r)
		r = candidates_judge(&a, err);
	if (!r) {
		a.array = array_make();
		if (!a.array) {
			r = error_set(err, -ENOMEM, "array %.40s: out of memory", name_or_uuid);
		} else {
			a.array->look = look;
			r = array_start(&a, err);
		}
	}
	if (!r)
		*array_out = a.array;
	else if (a.array)
		array_free(a.array);
	assembly_free(&a);
	return r;
}

int array_open(const struct raid_scan *scan, const char *name_or_uuid, struct array **array, struct error *err)
{
	return assemble(scan, name_or_uuid, false, array, err);
}

int array_look(const struct raid_scan *scan, const char *name_or_uuid, struct array **array, struct error *err)
{
	return assemble(scan, name_or_uuid, true, array, err);
}

int array_destroy(const struct raid_scan *scan, const char *name_or_uuid, struct error *err)
{
	struct uuid uuid;
	int r = array_find(scan, name_or_uuid, &uuid, err);
	if (r)
		return r;
	struct drive **drives = calloc(scan->count + 1, sizeof(struct drive *));
	if (!drives)
		return error_set(err, -ENOMEM, "out of memory");
	/* all are claimed before the first is wiped: an array in use stays whole */
	for (unsigned i = 0; i < scan->count && !r; i++) {
		const struct drive_info *info = &scan->drive[i];
		if (info->content == DRIVE_MEMBER && memcmp(&info->array, &uuid, sizeof(uuid)) == 0)
			r = drive_open(info->path, true, &drives[i], err);
	}
	for (unsigned i = 0; i < scan->count && !r; i++) {
		if (!drives[i])
			continue;
		struct buf *zero = buf_zero();
		for (unsigned copy = 0; copy < 2; copy++) {
			int e = drive_io(drives[i], DRIVE_OP_WRITE, super_offset(drives[i]->bytes, copy), zero,
				SUPER_BYTES_MOST, true);
			if (e && !r)
				r = error_set(err, e, "%s: cannot be wiped: %s", drives[i]->path, strerror(-e));
		}
	}
	for (unsigned i = 0; i < scan->count; i++)
		drive_close(drives[i]);
	free(drives);
	return r;
}
