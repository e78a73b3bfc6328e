/*
 * The codes against a slow implementation of the same mathematics, written from the definition: multiplication in
 * GF(2^8) bit by bit with polynomial 0x11d, P = sum of D_i, Q = sum of 2^i * D_i.
 */
#include "tests/raid/raid_test.h"

static uint8_t slow_mul(uint8_t a, uint8_t b)
{
	unsigned product = 0, x = a;
	for (; b; b = (uint8_t)(b >> 1), x <<= 1)
		if (b & 1)
			product ^= x;
	for (int bit = 14; bit >= 8; bit--)
		if (product & (1u << bit))
			product ^= 0x11du << (bit - 8);
	return (uint8_t)product;
}

#define LEN 4096u

struct strips {
	uint8_t *v[CODE_WIDTH_MAX];
	unsigned n;
};

static void strips_make(struct strips *s, unsigned n)
{
	s->n = n;
	for (unsigned i = 0; i < n; i++)
		s->v[i] = aligned_alloc(64, LEN);
}

static void strips_free(struct strips *s)
{
	for (unsigned i = 0; i < s->n; i++)
		free(s->v[i]);
}

static void parity_check(unsigned k, unsigned m, uint64_t seed)
{
	struct code code;
	struct strips s;
	assert_int_equal(code_init(&code, FORMAT_CODE_PQ, k, m), 0);
	strips_make(&s, k + m);
	for (unsigned i = 0; i < k; i++)
		test_fill(s.v[i], LEN, seed + i);
	code.ops->encode(&code, s.v, s.v + k, LEN);
	for (unsigned at = 0; at < LEN; at++) {
		uint8_t p = 0, q = 0, g = 1;
		for (unsigned i = 0; i < k; i++) {
			p ^= s.v[i][at];
			q ^= slow_mul(g, s.v[i][at]);
			g = slow_mul(g, 2);
		}
		assert_int_equal(s.v[k][at], p);
		if (m > 1)
			assert_int_equal(s.v[k + 1][at], q);
	}
	/* every pair of positions, from the others; and one alone from every set of K others */
	uint8_t *a = aligned_alloc(64, LEN), *b = aligned_alloc(64, LEN);
	for (unsigned x = 0; x < k + m; x++) {
		for (unsigned y = x; y < k + m; y++) {
			if (m < 2 && y > x)
				break;
			uint8_t source[CODE_WIDTH_MAX], wanted[2] = {(uint8_t)x, (uint8_t)y};
			unsigned n = 0;
			for (unsigned i = 0; i < k + m && n < k; i++)
				if (i != x && i != y)
					source[n++] = (uint8_t)i;
			assert_int_equal(n, k);
			struct code_plan plan;
			assert_int_equal(code_plan(&code, &plan, source, wanted, x == y ? 1 : 2), 0);
			uint8_t *from[CODE_WIDTH_MAX], *to[2] = {a, b};
			for (unsigned i = 0; i < k; i++)
				from[i] = s.v[source[i]];
			code.ops->apply(&plan, from, to, LEN);
			assert_memory_equal(a, s.v[x], LEN);
			if (x != y)
				assert_memory_equal(b, s.v[y], LEN);
			code_plan_free(&plan);
		}
	}
	free(a);
	free(b);
	strips_free(&s);
	code_fini(&code);
}

static void test_parity_and_recovery(void **state)
{
	(void)state;
	static const unsigned ks[] = {1, 2, 3, 4, 8, 14, 30, 62};
	for (unsigned i = 0; i < sizeof(ks) / sizeof(ks[0]); i++)
		for (unsigned m = 1; m <= 2; m++)
			parity_check(ks[i], m, 1000 * i + m);
}

static void test_short_and_unaligned(void **state)
{
	(void)state;
	struct code code;
	uint8_t data[3][256], parity[2][256];
	assert_int_equal(code_init(&code, FORMAT_CODE_PQ, 3, 2), 0);
	for (unsigned off = 0; off < 16; off += 5) {
		for (size_t len = 1; len + off < 256; len += 37) {
			uint8_t *from[3], *to[2] = {parity[0] + off, parity[1] + off};
			for (unsigned i = 0; i < 3; i++) {
				test_fill(data[i], sizeof(data[i]), len + i);
				from[i] = data[i] + off;
			}
			code.ops->encode(&code, from, to, len);
			for (size_t at = off; at < off + len; at++) {
				assert_int_equal(parity[0][at], data[0][at] ^ data[1][at] ^ data[2][at]);
				assert_int_equal(parity[1][at],
					data[0][at] ^ slow_mul(2, data[1][at]) ^ slow_mul(4, data[2][at]));
			}
		}
	}
	code_fini(&code);
}

static void test_copies(void **state)
{
	(void)state;
	struct code code;
	struct code_plan plan;
	struct strips s;
	assert_int_equal(code_init(&code, FORMAT_CODE_COPY, 1, 3), 0);
	assert_true(code.ops->copies);
	strips_make(&s, 4);
	test_fill(s.v[0], LEN, 5);
	code.ops->encode(&code, s.v, s.v + 1, LEN);
	for (unsigned i = 1; i < 4; i++)
		assert_memory_equal(s.v[0], s.v[i], LEN);
	uint8_t source = 3, wanted = 0;
	memset(s.v[0], 0, LEN);
	assert_int_equal(code_plan(&code, &plan, &source, &wanted, 1), 0);
	code.ops->apply(&plan, &s.v[3], &s.v[0], LEN);
	assert_memory_equal(s.v[0], s.v[1], LEN);
	code_plan_free(&plan);
	strips_free(&s);
	code_fini(&code);
}

static void test_layout(void **state)
{
	(void)state;
	/* every position of a stripe is on another member; each member's strips follow each other without a gap */
	struct geometry g = {
		.groups = 2, .k = 3, .m = 2, .strip_bytes = 65536, .first_stripe = 100, .member_offset = 1 << 20};
	uint64_t next[10];
	for (unsigned i = 0; i < 10; i++)
		next[i] = g.member_offset;
	unsigned parity[10] = {0};
	for (uint64_t s = 100; s < 100 + 2 * 50; s++) {
		uint64_t seen = 0;
		for (unsigned pos = 0; pos < 5; pos++) {
			struct place p = layout_strip(&g, s, pos);
			assert_true(p.slot < 10);
			assert_int_equal(p.slot / 5, (s - 100) % 2);
			assert_false(seen & 1ull << p.slot);
			seen |= 1ull << p.slot;
			assert_int_equal(p.offset, next[p.slot]);
			next[p.slot] += g.strip_bytes;
			parity[p.slot] += pos >= 3;
		}
	}
	for (unsigned i = 1; i < 10; i++)
		assert_int_equal(parity[i], parity[0]);
	/* copies of a chunk of the log are on different members, and no two chunks share a place */
	struct raid_config *c = calloc(1, sizeof(*c));
	c->log_offset = 1 << 20;
	c->log_bytes = 10 * LOG_CHUNK_BYTES;
	c->log_copies = 3;
	c->log_members = 5;
	c->log_groups = 1;
	uint64_t chunks = config_log_chunks(c);
	assert_int_equal(chunks, 16);
	uint8_t used[6][10] = {{0}};
	for (uint64_t chunk = 0; chunk < chunks; chunk++) {
		uint64_t seen = 0;
		for (unsigned copy = 0; copy < 3; copy++) {
			struct place p = layout_log(c, chunk, copy);
			assert_true(p.slot < 5 && p.offset >= c->log_offset && p.offset < c->log_offset + c->log_bytes);
			assert_false(seen & 1ull << p.slot);
			seen |= 1ull << p.slot;
			assert_int_equal(used[p.slot][(p.offset - c->log_offset) / LOG_CHUNK_BYTES]++, 0);
		}
	}
	/* with groups, all copies of a chunk are in one */
	memset(used, 0, sizeof(used));
	c->log_copies = 2;
	c->log_members = 6;
	c->log_groups = 2;
	chunks = config_log_chunks(c);
	assert_int_equal(chunks, 30);
	for (uint64_t chunk = 0; chunk < chunks; chunk++) {
		struct place a = layout_log(c, chunk, 0), b = layout_log(c, chunk, 1);
		assert_true(a.slot != b.slot && a.slot / 3 == chunk % 2 && b.slot / 3 == chunk % 2);
		assert_int_equal(used[a.slot][(a.offset - c->log_offset) / LOG_CHUNK_BYTES]++, 0);
		assert_int_equal(used[b.slot][(b.offset - c->log_offset) / LOG_CHUNK_BYTES]++, 0);
	}
	free(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parity_and_recovery),
		cmocka_unit_test(test_short_and_unaligned),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_layout),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
