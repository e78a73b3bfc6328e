/*
 * What is read from a member, fed with bytes of anybody's choice: used by test_hostile.c with mutations of its own, and
 * by tests/fuzz/fuzz_member.c with those of libFuzzer. Whatever a superblock says that is taken, the arithmetic that
 * follows from it must stay on the drive and inside of the tables.
 */
#ifndef FURROW_FUZZ_MEMBER_H
#define FURROW_FUZZ_MEMBER_H

#include <stdlib.h>

#include "raid/raid_internal.h"

/* Gives RAW the checksum that its bytes need. */
static inline void fuzz_super_sign(uint8_t *raw)
{
	struct format_super *s = (struct format_super *)(void *)raw;
	s->checksum = le64_put(0);
	s->checksum = le64_put(checksum64(raw, SUPER_BYTES, 0));
}

/* What a taken superblock leads to. False: it leads astray. */
static inline bool fuzz_super_follow(const struct super_found *f)
{
	const struct raid_config *c = &f->config;
	uint64_t chunks = config_log_chunks(c), stripes = config_stripes(c);
	(void)config_viable(c);
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
	uint8_t *raw = calloc(1, SUPER_BYTES), *again = malloc(SUPER_BYTES);
	struct super_found *f = calloc(1, sizeof(*f)), *g = calloc(1, sizeof(*g));
	char why[160];
	memcpy(raw, data, size < SUPER_BYTES ? size : SUPER_BYTES);
	memcpy(raw, SUPER_MAGIC, 8);
	if (!(mode & 2))
		fuzz_super_sign(raw);
	if (super_decode(raw, mode & 4 ? 1ull << 23 : 1ull << 62, f, why, sizeof(why)) == SUPER_VALID) {
		good = fuzz_super_follow(f);
		/* what was taken can be written, and says the same then */
		super_encode(&f->config, f->slot, 0, f->drive_bytes, again);
		good = good && super_decode(again, 1ull << 62, g, why, sizeof(why)) == SUPER_VALID;
		super_encode(&g->config, g->slot, 0, g->drive_bytes, raw);
		good = good && memcmp(raw, again, SUPER_BYTES) == 0;
	}
	free(raw);
	free(again);
	free(f);
	free(g);
	return good;
}

#endif
