/*
 * For targets of the codec: a message of a type that the input chooses, whole and in pieces that it cuts. Both ways
 * must come to the same; what is taken can be encoded, and what comes out of that is taken again and gives the same
 * bytes.
 */
#ifndef TESTS_FUZZ_CODEC_H
#define TESTS_FUZZ_CODEC_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/fuzz/fuzz.h"
#include "tests/xdr/random.h"

/* every type is made, not all are used */
#pragma GCC diagnostic ignored "-Wunused-function"

#define FUZZ_WIRE (256u << 10)
#define FUZZ_POOL (1u << 18) /* more than the longest message can need */
#define FUZZ_LONGEST 4096u
#define FUZZ_PIECES 8u
#define FUZZ_VALUE 65536u

static const struct test_type *fuzz_type(const struct test_type *types, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (!strcmp(types[i].name, name)) {
			FUZZ_CHECK(types[i].size <= FUZZ_VALUE);
			return &types[i];
		}
	fprintf(stderr, "there is no type %s\n", name);
	abort();
}
#define FUZZ_TYPE(table, name)                                                                                         \
	fuzz_type(test_types_##table, sizeof(test_types_##table) / sizeof(struct test_type), name)

/* One message, and what is needed to look at it again and again. */
struct fuzz_message {
	const uint8_t *data;
	size_t bytes;
	uint8_t cut[FUZZ_PIECES];
	struct xdr_piece piece[FUZZ_PIECES + 1];
	unsigned pieces;
	struct xdr_in in;
	struct xdr_pool pool;
};

/* Cut where CUT says, each piece in memory of its own; all zeros: in one. */
static void fuzz_message_open(struct fuzz_message *m, const uint8_t *data, size_t bytes, const uint8_t *cut)
{
	static uint8_t *pool;
	size_t at = 0;

	if (!pool)
		pool = malloc(FUZZ_POOL);
	FUZZ_CHECK(pool);
	m->bytes = bytes;
	m->pieces = 0;
	for (unsigned i = 0; i < FUZZ_PIECES && at < bytes; i++) {
		size_t some = cut[i] && cut[i] < bytes - at ? cut[i] : 0;
		if (some)
			m->piece[m->pieces++] = (struct xdr_piece){fuzz_copy(data + at, some), (uint32_t)some};
		at += some;
	}
	m->piece[m->pieces++] = (struct xdr_piece){fuzz_copy(data + at, bytes - at), (uint32_t)(bytes - at)};
	m->pool = (struct xdr_pool){pool, 0, FUZZ_POOL};
	xdr_in_init(&m->in, m->piece[0].data, m->piece[0].len, &m->pool);
	if (m->pieces > 1) {
		m->in.piece = m->piece + 1;
		m->in.piece_bytes = (uint32_t)bytes - m->piece[0].len;
	}
}

static void fuzz_message_close(struct fuzz_message *m)
{
	for (unsigned i = 0; i < m->pieces; i++)
		free((void *)(uintptr_t)m->piece[i].data);
}

/* Decodes a TYPE there, and encodes it to OUT; false: it is none. */
static bool fuzz_decode(struct fuzz_message *m, const struct test_type *type, struct xdr_out *out)
{
	static uint8_t value[FUZZ_VALUE] __attribute__((aligned(16)));

	memset(value, 0xa5, type->size);
	if (!type->decode(&m->in, value))
		return false;
	FUZZ_CHECK(xdr_in_pos(&m->in) <= m->bytes && xdr_in_left(&m->in) == m->bytes - xdr_in_pos(&m->in));
	FUZZ_CHECK(type->encode(out, value));
	return true;
}

/* The encoding with zeros for its payloads; its bytes. */
static size_t fuzz_splice(const struct xdr_out *out, uint8_t *to)
{
	size_t from = 0, at = 0, head = (size_t)(out->p - out->base);

	for (unsigned i = 0; i < out->payloads; i++) {
		const struct xdr_payload *p = &out->payload[i];
		memcpy(to + at, out->base + from, p->pos - from);
		at += p->pos - from;
		from = p->pos;
		memset(to + at, 0, xdr_round(p->len));
		at += xdr_round(p->len);
	}
	memcpy(to + at, out->base + from, head - from);
	return at + head - from;
}

/* A whole message by STEP, which decodes what it likes with fuzz_decode() and says whether that was right. */
typedef bool fuzz_step(struct fuzz_message *m, struct xdr_out *out, const void *arg);

static bool fuzz_pass(const uint8_t *data, size_t bytes, const uint8_t *cut, fuzz_step *step, const void *arg,
	uint8_t *to, size_t *len, size_t *used)
{
	static uint8_t wire[FUZZ_WIRE];
	struct fuzz_message m;
	struct xdr_out out;

	fuzz_message_open(&m, data, bytes, cut);
	xdr_out_init(&out, wire, sizeof(wire));
	bool good = step(&m, &out, arg);
	*used = xdr_in_pos(&m.in);
	*len = fuzz_splice(&out, to);
	fuzz_message_close(&m);
	return good;
}

/* CUT has FUZZ_PIECES bytes; the message is what remains of IN. */
static void fuzz_codec(struct fuzz_input *in, fuzz_step *step, const void *arg)
{
	static const uint8_t whole[FUZZ_PIECES];
	static uint8_t first[FUZZ_WIRE], second[FUZZ_WIRE];
	uint8_t cut[FUZZ_PIECES];
	size_t first_len, second_len, used, again;

	for (unsigned i = 0; i < FUZZ_PIECES; i++)
		cut[i] = fuzz_u8(in);
	if (fuzz_left(in) > FUZZ_LONGEST)
		return;
	bool good = fuzz_pass(in->p, fuzz_left(in), whole, step, arg, first, &first_len, &used);
	bool cut_good = fuzz_pass(in->p, fuzz_left(in), cut, step, arg, second, &second_len, &again);
	FUZZ_CHECK(good == cut_good);
	FUZZ_CHECK(first_len == second_len && !memcmp(first, second, first_len));
	if (!good)
		return;
	FUZZ_CHECK(used == again && used == first_len);
	FUZZ_CHECK(fuzz_pass(first, first_len, whole, step, arg, second, &second_len, &again));
	FUZZ_CHECK(again == first_len && second_len == first_len && !memcmp(first, second, first_len));
}

/* The step of those who have one type for a whole message. */
static bool fuzz_step_type(struct fuzz_message *m, struct xdr_out *out, const void *type)
{
	return fuzz_decode(m, type, out);
}

/* A message of TYPE as short as its random values get, behind HEAD. */
static void fuzz_seed_type(const char *name, const void *head, size_t head_bytes, const struct test_type *type)
{
	static uint8_t value[FUZZ_VALUE] __attribute__((aligned(16))), wire[FUZZ_WIRE], best[FUZZ_WIRE];
	struct test_random random = {.state = 1, .pool = {malloc(FUZZ_POOL), 0, FUZZ_POOL}};
	uint8_t seed[1024];
	size_t least = sizeof(best), bytes;
	struct xdr_out out;

	for (unsigned i = 0; i < 400; i++) {
		random.pool.used = 0;
		memset(value, 0, type->size);
		type->random(&random, value);
		xdr_out_init(&out, wire, sizeof(wire));
		FUZZ_CHECK(type->encode(&out, value));
		/* not so short that nothing is in it */
		if ((bytes = fuzz_splice(&out, best)) >= least || (i > 100 && bytes < 24) || bytes > 800)
			continue;
		least = bytes;
		memset(seed, 0, sizeof(seed));
		memcpy(seed, head, head_bytes);
		memcpy(seed + head_bytes, best, bytes);
	}
	free(random.pool.base);
	if (least < sizeof(best))
		fuzz_seed(name, seed, head_bytes + least);
}

/* What most targets are: the first byte chooses one of TYPES. */
static void fuzz_types_one(const struct test_type *const *types, unsigned count, const uint8_t *data, size_t bytes)
{
	struct fuzz_input in = {data, data + bytes};
	const struct test_type *type = types[fuzz_u8(&in) % count];

	fuzz_codec(&in, fuzz_step_type, type);
}

static void fuzz_types_seeds(const struct test_type *const *types, unsigned count)
{
	uint8_t head[1 + FUZZ_PIECES] = {0, 8, 5, 12};

	for (unsigned i = 0; i < count; i++) {
		head[0] = (uint8_t)i;
		fuzz_seed_type(types[i]->name, head, sizeof(head), types[i]);
	}
}

/* All of a target whose input is an argument of a procedure: TABLE is nfs3 for "xdr/nfs3_test.h"; names follow. */
#define FUZZ_TYPES(table, ...)                                                                                         \
	static const char *const type_names[] = {__VA_ARGS__};                                                         \
	static const struct test_type *const *types_all(void)                                                          \
	{                                                                                                              \
		static const struct test_type *types[sizeof(type_names) / sizeof(type_names[0])];                      \
		for (size_t i = 0; !types[sizeof(types) / sizeof(types[0]) - 1]; i++)                                  \
			types[i] = FUZZ_TYPE(table, type_names[i]);                                                    \
		return types;                                                                                          \
	}                                                                                                              \
	static void fuzz_one(const uint8_t *data, size_t bytes)                                                        \
	{                                                                                                              \
		fuzz_types_one(types_all(), sizeof(type_names) / sizeof(type_names[0]), data, bytes);                  \
	}                                                                                                              \
	static void fuzz_seeds(void)                                                                                   \
	{                                                                                                              \
		fuzz_types_seeds(types_all(), sizeof(type_names) / sizeof(type_names[0]));                             \
	}

#endif
