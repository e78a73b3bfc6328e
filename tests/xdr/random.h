/* Random values of the protocols' types: what the generated NAME_test.h stand on. Include cmocka.h before. */
#ifndef TESTS_XDR_RANDOM_H
#define TESTS_XDR_RANDOM_H

#include "xdr/xdr.h"

struct test_random {
	uint64_t state;
	struct xdr_pool pool; /* of values */
};

static inline uint64_t test_random(struct test_random *r)
{
	r->state += 0x9e3779b97f4a7c15ull;
	uint64_t x = r->state;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}
static inline uint32_t test_random_count(struct test_random *r, uint32_t max)
{
	/* often an edge */
	switch (test_random(r) % 8) {
	case 0:
		return 0;
	case 1:
		return max;
	default:
		return (uint32_t)(test_random(r) % (max + 1ull));
	}
}
static inline void test_random_fill(struct test_random *r, void *to, size_t len)
{
	for (size_t i = 0; i < len; i++)
		((uint8_t *)to)[i] = (uint8_t)test_random(r);
}
static inline void *test_random_take(struct test_random *r, size_t len)
{
	void *p = xdr_pool_take(&r->pool, len ? len : 1);
	assert_non_null(p);
	return p;
}
static inline const uint8_t *test_random_bytes(struct test_random *r, uint32_t len)
{
	uint8_t *p = test_random_take(r, len);
	test_random_fill(r, p, len);
	return p;
}

struct test_type {
	const char *name;
	size_t size;
	uint32_t most; /* XDR_MAX, 0: unbounded */
	bool (*decode)(struct xdr_in *in, void *value);
	bool (*encode)(struct xdr_out *out, const void *value);
	void (*random)(struct test_random *r, void *value);
};

#endif
