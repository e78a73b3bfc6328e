/*
 * Superblocks: between their bytes (raid_format.h) and struct raid_config.
 *
 * What is read from a drive is hostile input: every field is checked before it is used, and the
 * words for what is wrong come from here. The same check runs on what is about to be written, so that
 * a fault of ours does not become a fault on drives.
 *
 * Writing is array.c's: one copy on all members, then the other, so that a torn write leaves one valid.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

static bool fault(char *why, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static bool fault(char *why, size_t size, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(why, size, format, args);
	va_end(args);
	return false;
}

bool raid_name_valid(const char *name)
{
	size_t n = strlen(name);
	if (n == 0 || n > RAID_NAME_MAX || name[0] == '.' || name[0] == '-')
		return false;
	for (size_t i = 0; i < n; i++) {
		char c = name[i];
		bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
			  c == '_' || c == '-';
		if (!ok)
			return false;
	}
	return true;
}

uint64_t config_stripes(const struct raid_config *c)
{
	const struct geometry *g = &c->geometry[c->geometries - 1];
	return g->first_stripe + g->stripes;
}

uint64_t config_log_chunks(const struct raid_config *c)
{
	return c->log_bytes / LOG_CHUNK_BYTES * (c->log_members / c->log_groups) / c->log_copies * c->log_groups;
}

/* ---- checks ---- */

static bool geometry_valid(const struct raid_config *c, unsigned i, char *why, size_t size)
{
	const struct geometry *g = &c->geometry[i];
	if (g->code != FORMAT_CODE_COPY && g->code != FORMAT_CODE_PQ)
		return fault(why, size, "geometry %u: unknown code %u", i, g->code);
	if (g->rotation != FORMAT_ROTATE_ROW)
		return fault(why, size, "geometry %u: unknown rotation %u", i, g->rotation);
	if (g->groups < 1 || g->groups > SUPER_SLOTS || g->k < 1 || g->k + g->m > RAID_GROUP_MAX)
		return fault(why, size, "geometry %u: %u groups of %u+%u", i, g->groups, g->k, g->m);
	if (g->groups * (g->k + g->m) > c->members)
		return fault(why, size, "geometry %u: %u groups of %u+%u in %u members", i, g->groups, g->k, g->m,
			c->members);
	if (g->code == FORMAT_CODE_COPY ? g->k != 1 : g->m > 2)
		return fault(why, size, "geometry %u: code %u with %u+%u", i, g->code, g->k, g->m);
	if (g->strip_bytes < 16384 || g->strip_bytes > (1u << 20) || (g->strip_bytes & (g->strip_bytes - 1)))
		return fault(why, size, "geometry %u: strip of %u bytes", i, g->strip_bytes);
	uint64_t first = i ? c->geometry[i - 1].first_stripe + c->geometry[i - 1].stripes : 0;
	if (g->first_stripe != first || g->stripes == 0 || (i && g->epoch <= c->geometry[i - 1].epoch))
		return fault(why, size, "geometry %u: not behind the one before it", i);
	uint64_t data_end = c->data_offset + c->data_bytes;
	if (g->member_offset < c->data_offset || g->member_offset >= data_end || g->member_offset % BLOCK_BYTES)
		return fault(why, size, "geometry %u: outside of the data zone", i);
	if (i) {
		const struct geometry *p = &c->geometry[i - 1];
		uint64_t rows = (p->stripes + p->groups - 1) / p->groups;
		if (g->member_offset < p->member_offset + rows * p->strip_bytes)
			return fault(why, size, "geometry %u: overlaps the one before it", i);
	}
	uint64_t rows = g->stripes / g->groups + (g->stripes % g->groups != 0);
	if (rows > (data_end - g->member_offset) / g->strip_bytes)
		return fault(why, size, "geometry %u: beyond the end of the data zone", i);
	return true;
}

static bool volumes_valid(const struct raid_config *c, char *why, size_t size)
{
	uint64_t stripes = config_stripes(c), chunks = config_log_chunks(c);
	for (unsigned i = 0; i < SUPER_VOLUMES; i++) {
		const struct volume_config *v = &c->volume[i];
		if (!v->name[0])
			continue;
		if (!raid_name_valid(v->name))
			return fault(why, size, "volume %u: bad name", i);
		if (v->stripes == 0 || v->first_stripe > stripes || v->stripes > stripes - v->first_stripe)
			return fault(why, size, "volume %u: stripes beyond the end", i);
		if (v->log_chunks == 0 || v->log_first > chunks || v->log_chunks > chunks - v->log_first)
			return fault(why, size, "volume %u: log beyond the end", i);
		bool whole = false;
		for (unsigned g = 0; g < c->geometries; g++)
			whole = whole || (v->first_stripe >= c->geometry[g].first_stripe &&
						 v->first_stripe + v->stripes <=
							 c->geometry[g].first_stripe + c->geometry[g].stripes);
		if (!whole)
			return fault(why, size, "volume %u: in two geometries", i);
		for (unsigned j = 0; j < i; j++) {
			const struct volume_config *o = &c->volume[j];
			if (!o->name[0])
				continue;
			if (strcmp(o->name, v->name) == 0)
				return fault(why, size, "volumes %u and %u: same name", j, i);
			if (v->first_stripe < o->first_stripe + o->stripes &&
				o->first_stripe < v->first_stripe + v->stripes)
				return fault(why, size, "volumes %u and %u: overlap", j, i);
			if (v->log_first < o->log_first + o->log_chunks && o->log_first < v->log_first + v->log_chunks)
				return fault(why, size, "volumes %u and %u: logs overlap", j, i);
		}
	}
	return true;
}

bool config_valid(const struct raid_config *c, char *why, size_t size)
{
	const uint64_t most = 1ull << 60;
	if (!raid_name_valid(c->name))
		return fault(why, size, "bad array name");
	if (c->level > 60)
		return fault(why, size, "level %u", c->level);
	if (c->version < 1 || c->version > SUPER_VERSION)
		return fault(why, size, "version %u", c->version);
	if (c->members < 1 || c->slots < c->members || c->slots > config_slots_most(c))
		return fault(why, size, "%u members in %u slots", c->members, c->slots);
	if (c->member_bytes > most || c->log_bytes > most || c->log_offset > most || c->data_offset > most ||
		c->data_bytes > most)
		return fault(why, size, "sizes that cannot be");
	if (c->log_offset < MEMBER_HEAD_BYTES || c->log_offset % BLOCK_BYTES || c->log_bytes < LOG_CHUNK_BYTES ||
		c->log_bytes % LOG_CHUNK_BYTES)
		return fault(why, size, "bad log zone");
	if (c->data_offset < c->log_offset + c->log_bytes || c->data_offset % MEMBER_ALIGN || c->data_bytes == 0 ||
		c->data_offset + c->data_bytes + MEMBER_TAIL_BYTES > c->member_bytes)
		return fault(why, size, "bad data zone");
	if (c->log_groups < 1 || c->log_members > c->members || c->log_members % c->log_groups || c->log_copies < 1 ||
		c->log_members / c->log_groups < c->log_copies || c->log_members / c->log_groups > RAID_GROUP_MAX)
		return fault(why, size, "%u log copies on %u members in %u groups", c->log_copies, c->log_members,
			c->log_groups);
	if (c->geometries < 1 || c->geometries > SUPER_GEOMETRIES)
		return fault(why, size, "%u geometries", c->geometries);
	for (unsigned i = 0; i < c->geometries; i++)
		if (!geometry_valid(c, i, why, size))
			return false;
	for (unsigned i = 0; i < c->slots; i++) {
		const struct member_config *m = &c->member[i];
		if (m->state > FORMAT_MEMBER_SPARE)
			return fault(why, size, "slot %u: state %u", i, m->state);
		if (i < c->members && (m->state == FORMAT_MEMBER_NONE || m->state == FORMAT_MEMBER_SPARE))
			return fault(why, size, "slot %u: state %u", i, m->state);
		if (i >= c->members && m->state != FORMAT_MEMBER_NONE && m->state != FORMAT_MEMBER_SPARE)
			return fault(why, size, "slot %u: state %u of a spare", i, m->state);
		if (m->events > c->events)
			return fault(why, size, "slot %u: from a later event", i);
	}
	return volumes_valid(c, why, size);
}

/* ---- bytes ---- */

uint32_t super_bytes(const struct raid_config *c)
{
	uint32_t bytes = SUPER_MEMBERS_AT + c->slots * (uint32_t)sizeof(struct format_member);
	if (c->version == 1 || bytes < SUPER_BYTES_LEAST)
		return SUPER_BYTES_LEAST;
	return (bytes + BLOCK_BYTES - 1) & ~(BLOCK_BYTES - 1u);
}

/* A table of a superblock: where that of members and that of volumes lies depends on the version. */
static void *table_of(const void *raw, uint32_t version, uint32_t at, uint32_t at_1)
{
	return (uint8_t *)(uintptr_t)raw + (version == 1 ? at_1 : at);
}

void super_encode(const struct raid_config *c, unsigned slot, unsigned copy, uint64_t drive_bytes, void *raw)
{
	struct format_super *s = raw;
	uint32_t bytes = super_bytes(c);
	struct format_member *members = table_of(raw, c->version, SUPER_MEMBERS_AT, SUPER_MEMBERS_AT_1);
	struct format_volume *volumes = table_of(raw, c->version, SUPER_VOLUMES_AT, SUPER_VOLUMES_AT_1);
	memset(raw, 0, bytes);
	memcpy(s->magic, SUPER_MAGIC, 8);
	s->version = le32_put(c->version);
	s->bytes = le32_put(bytes);
	s->compat = le64_put(c->compat);
	memcpy(s->array_uuid, c->uuid.b, 16);
	memcpy(s->name, c->name, strlen(c->name));
	s->events = le64_put(c->events);
	s->created = le64_put(c->created);
	s->updated = le64_put(c->updated);
	memcpy(s->member_uuid, c->member[slot].uuid.b, 16);
	s->slot = le16_put((uint16_t)slot);
	s->copy = (uint8_t)copy;
	s->clean = c->clean;
	s->level = le32_put(c->level);
	s->drive_bytes = le64_put(drive_bytes);
	s->member_bytes = le64_put(c->member_bytes);
	s->log_offset = le64_put(c->log_offset);
	s->log_bytes = le64_put(c->log_bytes);
	s->data_offset = le64_put(c->data_offset);
	s->data_bytes = le64_put(c->data_bytes);
	s->log_chunk = le32_put(LOG_CHUNK_BYTES);
	s->log_copies = le16_put((uint16_t)c->log_copies);
	s->log_members = le16_put((uint16_t)c->log_members);
	s->log_groups = le16_put((uint16_t)c->log_groups);
	s->members = le16_put((uint16_t)c->members);
	s->slots = le16_put((uint16_t)c->slots);
	s->geometries = le16_put((uint16_t)c->geometries);
	for (unsigned i = 0; i < c->geometries; i++) {
		const struct geometry *g = &c->geometry[i];
		s->geometry[i] = (struct format_geometry){
			.epoch = le32_put(g->epoch),
			.code = g->code,
			.rotation = g->rotation,
			.groups = le16_put((uint16_t)g->groups),
			.k = le16_put((uint16_t)g->k),
			.m = le16_put((uint16_t)g->m),
			.strip_bytes = le32_put(g->strip_bytes),
			.first_stripe = le64_put(g->first_stripe),
			.stripes = le64_put(g->stripes),
			.member_offset = le64_put(g->member_offset),
		};
	}
	for (unsigned i = 0; i < c->slots; i++) {
		const struct member_config *m = &c->member[i];
		struct format_member *f = &members[i];
		memcpy(f->uuid, m->uuid.b, 16);
		f->state = m->state;
		f->events = le64_put(m->events);
		f->rebuild_next = le64_put(m->rebuild_next);
		f->changed = le64_put(m->changed);
		f->map_id = le64_put(m->map_id);
		f->left = le64_put(m->left);
	}
	for (unsigned i = 0; i < SUPER_VOLUMES; i++) {
		const struct volume_config *v = &c->volume[i];
		struct format_volume *f = &volumes[i];
		if (!v->name[0])
			continue;
		memcpy(f->name, v->name, strlen(v->name));
		memcpy(f->uuid, v->uuid.b, 16);
		f->flags = le64_put(v->flags);
		f->first_stripe = le64_put(v->first_stripe);
		f->stripes = le64_put(v->stripes);
		f->log_first = le64_put(v->log_first);
		f->log_chunks = le64_put(v->log_chunks);
		f->created = le64_put(v->created);
	}
	s->checksum = le64_put(checksum64(raw, bytes, 0));
}

static void config_from(const struct format_super *s, struct raid_config *c)
{
	memset(c, 0, sizeof(*c));
	c->version = le32_get(s->version);
	c->compat = le64_get(s->compat);
	memcpy(c->uuid.b, s->array_uuid, 16);
	memcpy(c->name, s->name, SUPER_NAME);
	c->name[RAID_NAME_MAX] = 0;
	c->events = le64_get(s->events);
	c->created = le64_get(s->created);
	c->updated = le64_get(s->updated);
	c->clean = s->clean != 0;
	c->level = le32_get(s->level);
	c->member_bytes = le64_get(s->member_bytes);
	c->log_offset = le64_get(s->log_offset);
	c->log_bytes = le64_get(s->log_bytes);
	c->data_offset = le64_get(s->data_offset);
	c->data_bytes = le64_get(s->data_bytes);
	c->log_copies = le16_get(s->log_copies);
	c->log_members = le16_get(s->log_members);
	c->log_groups = le16_get(s->log_groups) ? le16_get(s->log_groups) : 1;
	c->members = le16_get(s->members);
	c->slots = le16_get(s->slots);
	c->geometries = le16_get(s->geometries);
	for (unsigned i = 0; i < SUPER_GEOMETRIES; i++) {
		const struct format_geometry *f = &s->geometry[i];
		struct geometry *g = &c->geometry[i];
		g->epoch = le32_get(f->epoch);
		g->code = f->code;
		g->rotation = f->rotation;
		g->groups = le16_get(f->groups);
		g->k = le16_get(f->k);
		g->m = le16_get(f->m);
		g->strip_bytes = le32_get(f->strip_bytes);
		g->strip_blocks = g->strip_bytes / BLOCK_BYTES;
		g->first_stripe = le64_get(f->first_stripe);
		g->stripes = le64_get(f->stripes);
		g->member_offset = le64_get(f->member_offset);
	}
	const struct format_member *members = table_of(s, c->version, SUPER_MEMBERS_AT, SUPER_MEMBERS_AT_1);
	const struct format_volume *volumes = table_of(s, c->version, SUPER_VOLUMES_AT, SUPER_VOLUMES_AT_1);
	unsigned most = config_slots_most(c);
	for (unsigned i = 0; i < c->slots && i < most; i++) {
		const struct format_member *f = &members[i];
		struct member_config *m = &c->member[i];
		memcpy(m->uuid.b, f->uuid, 16);
		m->state = f->state;
		m->events = le64_get(f->events);
		m->rebuild_next = le64_get(f->rebuild_next);
		m->changed = le64_get(f->changed);
		m->map_id = le64_get(f->map_id);
		m->left = le64_get(f->left);
	}
	for (unsigned i = 0; i < SUPER_VOLUMES; i++) {
		const struct format_volume *f = &volumes[i];
		struct volume_config *v = &c->volume[i];
		memcpy(v->name, f->name, SUPER_NAME);
		v->name[RAID_NAME_MAX] = 0;
		memcpy(v->uuid.b, f->uuid, 16);
		v->flags = le64_get(f->flags);
		v->first_stripe = le64_get(f->first_stripe);
		v->stripes = le64_get(f->stripes);
		v->log_first = le64_get(f->log_first);
		v->log_chunks = le64_get(f->log_chunks);
		v->created = le64_get(f->created);
	}
}

enum super_verdict super_decode(
	const void *raw, uint64_t drive_bytes, struct super_found *found, char *why, size_t size)
{
	const struct format_super *s = raw;
	why[0] = 0;
	if (memcmp(s->magic, SUPER_MAGIC, 8) != 0)
		return SUPER_NONE;
	uint32_t version = le32_get(s->version), bytes = le32_get(s->bytes);
	if (bytes < SUPER_BYTES_LEAST || bytes > SUPER_BYTES_MOST || bytes % BLOCK_BYTES) {
		fault(why, size, "superblock of version %u with %u bytes", version, bytes);
		return SUPER_DAMAGED;
	}
	struct format_super *work = malloc(bytes);
	if (!work) {
		fault(why, size, "out of memory");
		return SUPER_DAMAGED;
	}
	enum super_verdict verdict = SUPER_DAMAGED;
	memcpy(work, s, bytes);
	work->checksum = le64_put(0);
	if (le64_get(s->checksum) != checksum64(work, bytes, 0)) {
		fault(why, size, "superblock with a wrong checksum");
		goto out;
	}
	if (version > SUPER_VERSION || le64_get(s->incompat) || le64_get(s->ro)) {
		fault(why, size, "superblock of a newer version (%u, incompat 0x%llx, ro 0x%llx)", version,
			(unsigned long long)le64_get(s->incompat), (unsigned long long)le64_get(s->ro));
		verdict = SUPER_NEWER;
		goto out;
	}
	struct raid_config *c = &found->config;
	config_from(s, c);
	if (le32_get(s->log_chunk) != LOG_CHUNK_BYTES) {
		fault(why, size, "log chunk of %u bytes", le32_get(s->log_chunk));
		goto out;
	}
	if (!config_valid(c, why, size))
		goto out;
	if (super_bytes(c) != bytes) {
		fault(why, size, "%u slots in a superblock of %u bytes", c->slots, bytes);
		goto out;
	}
	found->slot = le16_get(s->slot);
	memcpy(found->member.b, s->member_uuid, 16);
	found->drive_bytes = le64_get(s->drive_bytes);
	if (found->slot >= c->slots || memcmp(found->member.b, c->member[found->slot].uuid.b, 16) != 0) {
		fault(why, size, "superblock that does not list its own drive");
		goto out;
	}
	if (drive_bytes < c->member_bytes) {
		fault(why, size, "drive smaller (%llu bytes) than the array needs (%llu)",
			(unsigned long long)drive_bytes, (unsigned long long)c->member_bytes);
		goto out;
	}
	memset(work->member_uuid, 0, sizeof(work->member_uuid));
	work->slot = le16_put(0);
	work->copy = 0;
	work->drive_bytes = le64_put(0);
	found->common = checksum64(work, bytes, 0);
	verdict = SUPER_VALID;
out:
	free(work);
	return verdict;
}

int super_read(struct drive *drive, struct super_found *found, enum super_verdict *verdict, char *why, size_t size)
{
	*verdict = SUPER_NONE;
	why[0] = 0;
	if (drive->bytes < 2 * SUPER_ALIGN + SUPER_BYTES_MOST)
		return 0;
	struct super_found *one = malloc(sizeof(*one));
	if (!one)
		return -ENOMEM;
	struct buf *buf = buf_alloc(SUPER_BYTES_MOST);
	int error = 0;
	for (unsigned copy = 0; copy < 2; copy++) {
		char text[160];
		int r = drive_io(drive, DRIVE_OP_READ, super_offset(drive->bytes, copy), buf, SUPER_BYTES_MOST, false);
		if (r) {
			error = r;
			continue;
		}
		enum super_verdict v = super_decode(buf->data, drive->bytes, one, text, sizeof(text));
		if (v == SUPER_VALID && (*verdict != SUPER_VALID || one->config.events > found->config.events)) {
			*found = *one;
			*verdict = SUPER_VALID;
			why[0] = 0;
		} else if (v != SUPER_NONE && v != SUPER_VALID && *verdict == SUPER_NONE) {
			*verdict = v;
			snprintf(why, size, "%s", text);
		}
	}
	buf_put(buf);
	free(one);
	/* one copy is enough */
	return *verdict == SUPER_VALID ? 0 : error;
}
