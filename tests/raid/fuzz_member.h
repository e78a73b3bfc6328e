/*
 * What is read from a member, fed with bytes of anybody's choice: used by test_hostile.c with mutations of its own, and
 * by tests/fuzz/fuzz_member.c with those of libFuzzer. Whatever a superblock says that is taken, the arithmetic that
 * follows from it must stay on the drive and inside of the tables.
 */
#ifndef FURROW_FUZZ_MEMBER_H
#define FURROW_FUZZ_MEMBER_H

#include <stdlib.h>

#include "raid/raid_internal.h"

/* Gives RAW, of SUPER_BYTES_MOST, the checksum that its bytes need. */
static inline void fuzz_super_sign(uint8_t *raw)
{
	struct format_super *s = (struct format_super *)(void *)raw;
	uint32_t bytes = le32_get(s->bytes);
	s->checksum = le64_put(0);
	s->checksum = le64_put(checksum64(raw, bytes < SUPER_BYTES_MOST ? bytes : SUPER_BYTES_MOST, 0));
}

/* A good superblock, of slot 2 of an array with GROUPS groups of WIDTH at level 60 and one spare. */
static inline void fuzz_super_good(uint32_t version, unsigned groups, unsigned width, uint8_t *raw)
{
	struct raid_config *c = calloc(1, sizeof(*c));
	char why[160];
	c->version = version;
	snprintf(c->name, sizeof(c->name), "a0");
	c->level = 60;
	c->members = c->log_members = groups * width;
	c->log_groups = groups;
	c->slots = c->members + 1;
	c->geometries = 1;
	c->events = 9;
	c->member_bytes = 64 << 20;
	c->log_offset = 1 << 20;
	c->log_bytes = 4 << 20;
	c->log_copies = 3;
	c->data_offset = 5 << 20;
	c->data_bytes = 50 << 20;
	(void)level_geometry(60, c->members, groups, &c->geometry[0], why, sizeof(why));
	c->geometry[0].epoch = 1;
	c->geometry[0].strip_bytes = 65536;
	c->geometry[0].strip_blocks = 16;
	c->geometry[0].member_offset = 5 << 20;
	c->geometry[0].stripes = 800 * groups;
	for (unsigned i = 0; i < c->slots; i++) {
		c->member[i].uuid.b[0] = (uint8_t)(i + 1);
		c->member[i].uuid.b[1] = (uint8_t)((i + 1) >> 8);
		c->member[i].state = i == c->members ? FORMAT_MEMBER_SPARE : FORMAT_MEMBER_ACTIVE;
	}
	snprintf(c->volume[0].name, sizeof(c->volume[0].name), "v");
	c->volume[0].stripes = 1000;
	c->volume[0].log_chunks = 50;
	super_encode(c, 2, 0, 65 << 20, raw);
	free(c);
}

/* The array that an input of mode 8 changes: large and small ones, and one of version 1. */
static inline void fuzz_super_base(unsigned which, uint8_t *raw)
{
	static const struct {
		uint32_t version;
		unsigned groups, width;
	} bases[] = {{2, 2, 5}, {2, 14, 64}, {2, 3, 64}, {1, 2, 8}};
	fuzz_super_good(bases[which % 4].version, bases[which % 4].groups, bases[which % 4].width, raw);
}

/* RAW is changed as DATA says: entries of two bytes of place and eight of content. */
static inline void fuzz_super_patch(uint8_t *raw, const uint8_t *data, size_t size)
{
	for (; size >= 10; data += 10, size -= 10) {
		size_t at = (size_t)data[0] | (size_t)data[1] << 8;
		memcpy(raw + (at < SUPER_BYTES_MOST - 8 ? at : SUPER_BYTES_MOST - 8), data + 2, 8);
	}
}

/* What a taken superblock leads to. False: it leads astray. */
static inline bool fuzz_super_follow(const struct super_found *f)
{
	const struct raid_config *c = &f->config;
	uint64_t chunks = config_log_chunks(c), stripes = config_stripes(c);
	(void)config_viable(c);
	for (unsigned slot = 0; slot < c->members; slot++) {
		struct map_home home = layout_map(c, slot);
		if (slot < home.first || slot >= home.end || home.end > c->members || home.index >= MISSED_MAPS)
			return false;
	}
	for (unsigned i = 0; i < 64; i++) {
		uint64_t chunk = i < 32 ? i : chunks - 1 - (i - 32);
		for (unsigned copy = 0; chunk < chunks && copy < c->log_copies; copy++) {
			struct place p = layout_log(c, chunk, copy);
			if (p.slot >= c->members || p.offset < c->log_offset ||
				p.offset + LOG_CHUNK_BYTES > c->log_offset + c->log_bytes)
				return false;
		}
	}
	for (unsigned e = 0; e < c->geometries; e++) {
		const struct geometry *g = &c->geometry[e];
		for (unsigned i = 0; i < 64; i++) {
			uint64_t stripe = g->first_stripe + (i < 32 ? i : g->stripes - 1 - (i - 32));
			if (stripe < g->first_stripe || stripe >= g->first_stripe + g->stripes || stripe >= stripes)
				continue;
			for (unsigned pos = 0; pos < g->k + g->m; pos++) {
				struct place p = layout_strip(g, stripe, pos);
				if (p.slot >= c->members || p.offset < c->data_offset ||
					p.offset + g->strip_bytes > c->data_offset + c->data_bytes ||
					p.offset + g->strip_bytes > c->member_bytes)
					return false;
			}
		}
		struct code code;
		if (code_init(&code, g->code, g->k, g->m) == 0)
			code_fini(&code);
	}
	return true;
}

/* One input. The first byte says how it is meant. False: a fault was found. */
static inline bool fuzz_member(const uint8_t *data, size_t size)
{
	bool good = true;
	if (!size)
		return true;
	uint8_t mode = data[0];
	data++;
	size--;
	if (mode & 1) {
		char text[80];
		size_t head = size / 2;
		(void)content_identify(data, head, data + head, size - head, text, sizeof(text));
		return true;
	}
	uint8_t *raw = calloc(1, SUPER_BYTES_MOST), *again = calloc(1, SUPER_BYTES_MOST);
	struct super_found *f = calloc(1, sizeof(*f)), *g = calloc(1, sizeof(*g));
	char why[160];
	if (mode & 8) {
		fuzz_super_base(mode >> 4, raw);
		fuzz_super_patch(raw, data, size);
	} else {
		memcpy(raw, data, size < SUPER_BYTES_MOST ? size : SUPER_BYTES_MOST);
	}
	memcpy(raw, SUPER_MAGIC, 8);
	if (!(mode & 2))
		fuzz_super_sign(raw);
	if (super_decode(raw, mode & 4 ? 1ull << 23 : 1ull << 62, f, why, sizeof(why)) == SUPER_VALID) {
		good = fuzz_super_follow(f);
		/* what was taken can be written, and says the same then */
		super_encode(&f->config, f->slot, 0, f->drive_bytes, again);
		good = good && super_decode(again, 1ull << 62, g, why, sizeof(why)) == SUPER_VALID;
		super_encode(&g->config, g->slot, 0, g->drive_bytes, raw);
		good = good && memcmp(raw, again, super_bytes(&f->config)) == 0;
	}
	free(raw);
	free(again);
	free(f);
	free(g);
	return good;
}

#endif
