/*
 * The codec: every type of every .x file with random values there and back, whole and cut into pieces; every prefix of
 * every message refused; damaged messages survived. Messages to decode lie in memory of their exact size, so that
 * the sanitizers see a byte read too many.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/xdr/random.h"

#define SEED 20260731u
#define ROUNDS 60
#define WIRE (256u << 10)
#define POOL (1u << 20)

#include "xdr/mount3_test.h"
#include "xdr/nfs3_test.h"
#include "xdr/nfs4_test.h"
#include "xdr/nlm4_test.h"
#include "xdr/rpc_test.h"
#include "xdr/rpcrdma_test.h"
#include "xdr/sm_inter_test.h"

static struct test_random rnd;
static uint8_t *value_memory, *decode_memory, *wire, *again;
static const char *type_name; /* printed when something fails */

#define check(what)                                                                                                    \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fail_msg("type %s, seed %u: %s", type_name, SEED, #what);                                      \
		}                                                                                                      \
	} while (0)

static void each_type(void (*fn)(const struct test_type *type))
{
	const struct {
		const struct test_type *type;
		size_t count;
	} all[] = {
		{test_types_rpc, sizeof(test_types_rpc) / sizeof(struct test_type)},
		{test_types_rpcrdma, sizeof(test_types_rpcrdma) / sizeof(struct test_type)},
		{test_types_mount3, sizeof(test_types_mount3) / sizeof(struct test_type)},
		{test_types_nfs3, sizeof(test_types_nfs3) / sizeof(struct test_type)},
		{test_types_nfs4, sizeof(test_types_nfs4) / sizeof(struct test_type)},
		{test_types_nlm4, sizeof(test_types_nlm4) / sizeof(struct test_type)},
		{test_types_sm_inter, sizeof(test_types_sm_inter) / sizeof(struct test_type)},
	};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		for (size_t k = 0; k < all[i].count; k++) {
			type_name = all[i].type[k].name;
			rnd.state = SEED + i * 1000 + k;
			fn(&all[i].type[k]);
		}
}

/* Puts the payload of an encoded message in; returns the bytes on the wire. */
static size_t splice(struct xdr_out *out, uint8_t *to)
{
	size_t from = 0, at = 0, head = (size_t)(out->p - out->base);
	for (unsigned i = 0; i < out->payloads; i++) {
		const struct xdr_payload *p = &out->payload[i];
		memcpy(to + at, out->base + from, p->pos - from);
		at += p->pos - from;
		from = p->pos;
		test_random_fill(&rnd, to + at, p->len);
		memset(to + at + p->len, 0, xdr_round(p->len) - p->len);
		at += xdr_round(p->len);
	}
	memcpy(to + at, out->base + from, head - from);
	return at + head - from;
}

/* A random value on the wire; the encoding without payload stays in `wire`. */
static uint8_t *make_message(const struct test_type *type, size_t *bytes, size_t *head)
{
	struct xdr_out out;
	void *value = calloc(1, type->size);

	rnd.pool = (struct xdr_pool){value_memory, 0, POOL};
	type->random(&rnd, value);
	xdr_out_init(&out, wire, WIRE);
	check(type->encode(&out, value));
	free(value);
	*head = (size_t)(out.p - out.base);
	check(*head % 4 == 0);
	if (type->most)
		check(*head <= type->most);
	uint8_t *whole = malloc(WIRE);
	*bytes = splice(&out, whole);
	return realloc(whole, *bytes ? *bytes : 1);
}

static bool decode(const struct test_type *type, struct xdr_in *in, void *value)
{
	static struct xdr_pool pool;
	pool = (struct xdr_pool){decode_memory, 0, POOL};
	in->pool = &pool;
	memset(value, 0xa5, type->size);
	return type->decode(in, value);
}

static void round_trip(const struct test_type *type)
{
	void *value = malloc(type->size);
	for (int i = 0; i < ROUNDS; i++) {
		size_t bytes, head;
		struct xdr_in in;
		struct xdr_out out;
		uint8_t *message = make_message(type, &bytes, &head);

		xdr_in_init(&in, message, bytes, NULL);
		check(decode(type, &in, value));
		check(in.p == in.end);
		xdr_out_init(&out, again, WIRE);
		check(type->encode(&out, value));
		check((size_t)(out.p - out.base) == head && !memcmp(again, wire, head));
		free(message);
	}
	free(value);
}

static void test_round_trip(void **state)
{
	(void)state;
	each_type(round_trip);
}

static void pieces(const struct test_type *type)
{
	void *value = malloc(type->size);
	for (int i = 0; i < ROUNDS; i++) {
		size_t bytes, head;
		struct xdr_out out;
		uint8_t *message = make_message(type, &bytes, &head);
		struct xdr_piece piece[64];
		unsigned n = 0, most = 1 + (unsigned)(test_random(&rnd) % 60);

		for (size_t at = 0; at < bytes && n < 64; n++) {
			size_t some = n == 63 || n >= most ? bytes - at : test_random(&rnd) % (2 * bytes / most + 2);
			some = some > bytes - at ? bytes - at : some;
			uint8_t *copy = malloc(some ? some : 1);
			memcpy(copy, message + at, some);
			piece[n] = (struct xdr_piece){copy, (uint32_t)some};
			at += some;
		}
		struct xdr_in in;
		xdr_in_init(&in, n ? piece[0].data : NULL, n ? piece[0].len : 0, NULL);
		if (n > 1) {
			in.piece = piece + 1;
			in.piece_bytes = (uint32_t)(bytes - piece[0].len);
		}
		check(decode(type, &in, value));
		check(!xdr_in_left(&in) && xdr_in_pos(&in) == bytes);
		xdr_out_init(&out, again, WIRE);
		check(type->encode(&out, value));
		check((size_t)(out.p - out.base) == head && !memcmp(again, wire, head));
		for (unsigned k = 0; k < n; k++)
			free((void *)(uintptr_t)piece[k].data);
		free(message);
	}
	free(value);
}

static void test_pieces(void **state)
{
	(void)state;
	each_type(pieces);
}

static void truncated(const struct test_type *type)
{
	void *value = malloc(type->size);
	for (int i = 0; i < 4; i++) {
		size_t bytes, head;
		uint8_t *message = make_message(type, &bytes, &head);
		size_t step = bytes > 600 ? bytes / 300 : 1;
		for (size_t len = 0; len < bytes; len += step) {
			uint8_t *cut = malloc(len ? len : 1);
			struct xdr_in in;
			memcpy(cut, message, len);
			xdr_in_init(&in, cut, len, NULL);
			check(!decode(type, &in, value));
			free(cut);
		}
		free(message);
	}
	free(value);
}

static void test_truncated(void **state)
{
	(void)state;
	each_type(truncated);
}

static void no_room(const struct test_type *type)
{
	size_t bytes, head;
	void *value = calloc(1, type->size);
	uint8_t *message = make_message(type, &bytes, &head);
	struct xdr_in in;
	xdr_in_init(&in, message, bytes, NULL);
	check(decode(type, &in, value));
	for (size_t room = 0; room<head; room += head> 400 ? head / 200 : 1) {
		uint8_t *small = malloc(room ? room : 1);
		struct xdr_out out;
		xdr_out_init(&out, small, room);
		check(!type->encode(&out, value));
		check(out.p <= out.end);
		free(small);
	}
	free(message);
	free(value);
}

static void test_no_room(void **state)
{
	(void)state;
	each_type(no_room);
}

static void damaged(const struct test_type *type)
{
	void *value = malloc(type->size);
	for (int i = 0; i < ROUNDS; i++) {
		size_t bytes, head;
		struct xdr_in in;
		struct xdr_out out;
		uint8_t *message = make_message(type, &bytes, &head);
		for (int flips = 1 + (int)(test_random(&rnd) % 4); flips && bytes; flips--) {
			size_t at = test_random(&rnd) % bytes;
			if (test_random(&rnd) % 3)
				message[at] ^= (uint8_t)(1u << (test_random(&rnd) % 8));
			else
				memset(message + (at & ~(size_t)3), 0xff, 4 <= bytes - (at & ~(size_t)3) ? 4 : 1);
		}
		xdr_in_init(&in, message, bytes, NULL);
		if (decode(type, &in, value)) { /* then it is a message, too */
			xdr_out_init(&out, again, WIRE);
			check(type->encode(&out, value));
		}
		free(message);
	}
	free(value);
}

static void test_damaged(void **state)
{
	(void)state;
	each_type(damaged);
}

/* Numbers that interoperability depends on, from the RFCs and not from the generator. */
static void test_wire(void **state)
{
	(void)state;
	uint8_t bytes[200];
	struct xdr_out out;

	assert_int_equal(XDR_MAX_fattr3, 84);
	assert_int_equal(XDR_MAX_nfs_fh3, 68);
	assert_int_equal(XDR_MAX_wcc_data, 4 + 24 + 4 + 84);
	assert_int_equal(XDR_MAX_GETATTR3res, 88);
	assert_int_equal(XDR_MAX_READ3res, 4 + 4 + 84 + 4 + 4 + 4);
	assert_int_equal(NFS_PROGRAM, 100003);
	assert_int_equal(NFSPROC3_COMMIT, 21);
	assert_int_equal(MOUNT_PROGRAM, 100005);
	assert_int_equal(NFS3ERR_JUKEBOX, 10008);

	static const uint8_t write_args[] = {
		0, 0, 0, 5, 'h', 'a', 'n', 'd', 'l', 0, 0, 0, /* file */
		0, 0, 0, 1, 0, 0, 0, 2,			      /* offset */
		0, 0, 0, 3,				      /* count */
		0, 0, 0, 2,				      /* FILE_SYNC */
		0, 0, 0, 3, 'x', 'y', 'z', 0,		      /* data */
	};
	struct xdr_in in;
	WRITE3args args;
	xdr_in_init(&in, write_args, sizeof(write_args), NULL);
	assert_true(xdr_decode_WRITE3args(&in, &args));
	assert_ptr_equal(in.p, in.end);
	assert_int_equal(args.file.data.len, 5);
	assert_memory_equal(args.file.data.data, "handl", 5);
	assert_int_equal(args.offset, 0x100000002ull);
	assert_int_equal(args.stable, FILE_SYNC);
	assert_int_equal(args.data.len, 3);
	assert_int_equal(args.data.pos, 32);
	assert_memory_equal(args.data.inline_data, "xyz", 3);

	READ3res res = {.status = NFS3_OK, .resok = {.count = 3, .eof = true, .data = {.len = 3}}};
	static const uint8_t read_res[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 3};
	xdr_out_init(&out, bytes, sizeof(bytes));
	assert_true(xdr_encode_READ3res(&out, &res));
	assert_int_equal(out.p - out.base, sizeof(read_res));
	assert_memory_equal(bytes, read_res, sizeof(read_res));
	assert_int_equal(out.payloads, 1);
	assert_int_equal(out.payload[0].pos, sizeof(read_res));
	assert_int_equal(out.payload[0].len, 3);
}

/* A payload that a Read chunk took out: the stream goes on behind it (RFC 8166 3.4.5). */
static void test_reduced(void **state)
{
	(void)state;
	static const uint8_t stream[] = {
		0,
		0,
		0,
		4,
		'h',
		'a',
		'n',
		'd',
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		5,
		0,
		0,
		0,
		0,
		0,
		0,
		0,
		5,
	};
	for (uint32_t chunk = 3; chunk < 11; chunk++) {
		struct xdr_in in;
		WRITE3args args;
		xdr_in_init(&in, stream, sizeof(stream), NULL);
		in.reduced_pos = sizeof(stream);
		in.reduced_len = chunk;
		/* with or without its padding, but not more or less */
		assert_int_equal(xdr_decode_WRITE3args(&in, &args), chunk >= 5 && chunk <= 8);
		if (chunk >= 5 && chunk <= 8) {
			assert_null(args.data.inline_data);
			assert_int_equal(args.data.pos, sizeof(stream));
			assert_ptr_equal(in.p, in.end);
		}
	}
}

/* Several payloads, of which chunks took some out: positions count what is left. */
static void test_many_reduced(void **state)
{
	(void)state;
	for (unsigned set = 0; set < 16; set++) {
		static const uint32_t len[4] = {5, 8, 0, 7};
		struct xdr_reduced reduced[4];
		uint8_t stream[100];
		struct xdr_out out;
		struct xdr_in in;
		uint32_t n = 0, pos = 0;
		xdr_out_init(&out, stream, sizeof(stream));
		for (unsigned i = 0; i < 4; i++) {
			xdr_put_u32(&out, i);
			if (set >> i & 1) {
				xdr_put_u32(&out, len[i]);
				reduced[n++] = (struct xdr_reduced){pos + 8, i & 1 ? len[i] : xdr_round(len[i])};
			} else {
				xdr_put_opaque(&out, "12345678", len[i]);
			}
			pos += 8 + xdr_round(len[i]);
		}
		xdr_in_init(&in, stream, (size_t)(out.p - stream), NULL);
		xdr_in_reduced(&in, reduced, n);
		pos = 0;
		uint32_t taken = 0, taken_bytes = 0;
		for (unsigned i = 0; i < 4; i++) {
			struct xdr_payload p;
			uint32_t number = 99;
			assert_true(xdr_get_u32(&in, &number) && number == i);
			assert_true(xdr_get_payload(&in, 100, &p));
			assert_int_equal(p.len, len[i]);
			assert_int_equal(p.pos, pos + 8 - taken_bytes);
			if (set >> i & 1) {
				assert_null(p.inline_data);
				assert_int_equal(p.chunk, ++taken);
				taken_bytes += xdr_round(len[i]);
			} else {
				assert_memory_equal(p.inline_data, "12345678", len[i]);
				assert_int_equal(p.chunk, 0);
			}
			pos += 8 + xdr_round(len[i]);
		}
		assert_ptr_equal(in.p, in.end);
		assert_int_equal(xdr_in_pos(&in), pos);
	}
}

static void test_bounds(void **state)
{
	(void)state;
	struct xdr_in in;
	static uint8_t small[64];
	struct xdr_pool pool = {small, 0, sizeof(small)};
	xdr_write_chunk chunk;
	authsys_parms parms;
	nfs_fh3 fh;
	post_op_attr attr;
	xdr_write_list list;

	/* A count that no message can hold takes no memory and does not wrap. */
	static const uint8_t huge[] = {0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
	xdr_in_init(&in, huge, sizeof(huge), &pool);
	assert_false(xdr_decode_xdr_write_chunk(&in, &chunk));
	assert_int_equal(pool.used, 0);
	/* 17 groups, 65 bytes of handle, a length whose padding wraps, a bool of 2 */
	uint8_t groups[4 * 5 + 4 * 17] = {[19] = 17};
	xdr_in_init(&in, groups, sizeof(groups), &pool);
	assert_false(xdr_decode_authsys_parms(&in, &parms));
	uint8_t handle[72] = {[3] = 65};
	xdr_in_init(&in, handle, sizeof(handle), &pool);
	assert_false(xdr_decode_nfs_fh3(&in, &fh));
	static const uint8_t wraps[] = {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0};
	filename3 name;
	xdr_in_init(&in, wraps, sizeof(wraps), &pool);
	assert_false(xdr_decode_filename3(&in, &name));
	static const uint8_t two[] = {0, 0, 0, 2, 0, 0, 0, 0};
	xdr_in_init(&in, two, sizeof(two), &pool);
	assert_false(xdr_decode_post_op_attr(&in, &attr));
	/* An enum that is not one; an RPC flavor that is new. */
	stable_how how;
	xdr_in_init(&in, two, sizeof(two), &pool);
	assert_true(xdr_decode_stable_how(&in, &how));
	static const uint8_t three[] = {0, 0, 0, 3};
	xdr_in_init(&in, three, sizeof(three), &pool);
	assert_false(xdr_decode_stable_how(&in, &how));
	static const uint8_t flavor[] = {0, 0, 0, 99, 0, 0, 0, 0};
	opaque_auth auth;
	xdr_in_init(&in, flavor, sizeof(flavor), &pool);
	assert_true(xdr_decode_opaque_auth(&in, &auth));

	/* The pool bounds a list, whose length the peer chooses. */
	static uint8_t endless[1 << 16];
	for (size_t i = 0; i + 8 <= sizeof(endless); i += 8)
		endless[i + 7] = 1; /* no segments; one more */
	xdr_in_init(&in, endless, sizeof(endless), &pool);
	assert_false(xdr_decode_xdr_write_list(&in, &list));
}

/* A long list is a loop, not a recursion: a stack of 64 KiB would not hold a hundred thousand frames. */
static void test_long_list(void **state)
{
	(void)state;
	enum { NODES = 100000 };
	size_t bytes = NODES * 12 + 4;
	uint8_t *message = calloc(1, bytes);
	for (size_t i = 0; i < NODES; i++)
		message[i * 12 + 3] = 1; /* two empty strings each */
	struct xdr_pool pool = {malloc(NODES * 64), 0, NODES * 64};
	struct xdr_in in;
	mountlist list;
	xdr_in_init(&in, message, bytes, &pool);
	assert_true(xdr_decode_mountlist(&in, &list));
	size_t n = 0;
	for (mountbody *m = list; m; m = m->ml_next)
		n++;
	assert_int_equal(n, NODES);
	struct xdr_out out;
	uint8_t *copy = malloc(bytes);
	xdr_out_init(&out, copy, bytes);
	assert_true(xdr_encode_mountlist(&out, (const mountlist *)&list));
	assert_memory_equal(copy, message, bytes);
	free(copy);
	free(message);
	free(pool.base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_wire),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_truncated),
		cmocka_unit_test(test_no_room),
		cmocka_unit_test(test_damaged),
		cmocka_unit_test(test_reduced),
		cmocka_unit_test(test_many_reduced),
		cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_long_list),
	};
	printf("seed %u\n", SEED);
	value_memory = malloc(POOL);
	decode_memory = malloc(POOL);
	wire = malloc(WIRE);
	again = malloc(WIRE);
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	free(value_memory);
	free(decode_memory);
	free(wire);
	free(again);
	return rc;
}
