/*
 * The image of a node beside a sorted array: random inserts, replacements, removals, splits and
 * joins; then every byte of a good image is damaged in turn, with and without a right checksum.
 */
#include "tests/fs/tree_test.h"

#define MODEL_MAX 600

struct model {
	unsigned count;
	struct {
		struct pkey key;
		uint16_t len;
		uint8_t fill;
	} e[MODEL_MAX];
};
static struct model model;
static uint8_t image[TREE_NODE_BYTES], right_image[TREE_NODE_BYTES], value[TREE_VALUE_MAX];

static struct pkey key_of(uint64_t n)
{
	struct fs_key key = {
		.ino = 1 + n / 1000, .type = (uint8_t)(16 + n % 3), .off = n << 3, .snap = (uint32_t)(n % 2)};
	return pkey_pack(&key);
}

static void image_equals_model(uint8_t *img, const struct model *m, unsigned from, unsigned count)
{
	assert_int_equal(image_count(img), count);
	unsigned used = 0;
	for (unsigned i = 0; i < count; i++) {
		size_t len;
		const uint8_t *v = image_value(img, i, &len);
		struct pkey k = image_key(img, i);
		assert_int_equal(pkey_compare(&k, &m->e[from + i].key), 0);
		assert_int_equal(len, m->e[from + i].len);
		for (size_t j = 0; j < len; j++)
			if (v[j] != m->e[from + i].fill)
				fail_msg("slot %u byte %zu", i, j);
		used += (unsigned)(len + sizeof(struct slot_disk));
	}
	assert_int_equal(image_used(img), used);
}

static const char *verify(uint8_t *img, struct uuid *uuid)
{
	struct image_expect expect = {.uuid = uuid, .block = 0, .level = -1};
	return image_verify(img, &expect);
}

static void test_node_model(void **state)
{
	(void)state;
	uint64_t seed = 1;
	for (unsigned round = 0; round < 20; round++) {
		image_init(image, 0);
		model.count = 0;
		for (unsigned step = 0; step < 3000; step++) {
			struct pkey k = key_of(test_random(&seed) % 500);
			unsigned big = test_random(&seed) % 50 == 0 ? TREE_VALUE_MAX + 1 : 120, slot, at = 0;
			uint16_t len = (uint16_t)(test_random(&seed) % big);
			uint8_t fill = (uint8_t)test_random(&seed);
			memset(value, fill, len);
			while (at < model.count && pkey_compare(&model.e[at].key, &k) < 0)
				at++;
			bool there = at < model.count && pkey_compare(&model.e[at].key, &k) == 0;
			assert_int_equal(image_find(image, &k, &slot), there);
			assert_int_equal(slot, at);
			if (test_random(&seed) % 3 == 0) {
				if (!there)
					continue;
				image_remove(image, slot);
				memmove(&model.e[at], &model.e[at + 1], (--model.count - at) * sizeof(model.e[0]));
			} else if (there) {
				bool fits = image_used(image) - model.e[at].len + len <= NODE_ROOM;
				assert_int_equal(image_replace(image, slot, value, len), fits);
				if (fits) {
					model.e[at].len = len;
					model.e[at].fill = fill;
				}
			} else {
				bool fits = image_used(image) + sizeof(struct slot_disk) + len <= NODE_ROOM;
				assert_int_equal(image_insert(image, slot, &k, value, len), fits);
				if (!fits) {
					/* a split, whose halves hold all of it and have room; then go on with one */
					unsigned cut = image_split_at(image, slot, len);
					image_init(right_image, 0);
					image_append(right_image, image, cut, image_count(image));
					image_truncate(image, cut);
					image_equals_model(image, &model, 0, cut);
					image_equals_model(right_image, &model, cut, model.count - cut);
					bool right = slot > cut ||
						     (slot == cut && image_used(right_image) < image_used(image));
					uint8_t *half = right ? right_image : image;
					assert_true(
						image_used(half) + sizeof(struct slot_disk) + len + NODE_SPLIT_ROOM <=
						NODE_ROOM + TREE_VALUE_MAX);
					assert_true(image_insert(half, right ? slot - cut : slot, &k, value, len));
					assert_true(image_used(image) + NODE_SPLIT_ROOM <= NODE_ROOM);
					assert_true(image_used(right_image) + NODE_SPLIT_ROOM <= NODE_ROOM);
					image_remove(half, right ? slot - cut : slot);
					if (test_random(&seed) % 2) {
						model.count = cut;
					} else {
						memcpy(image, right_image, sizeof(image));
						model.count -= cut;
						memmove(&model.e[0], &model.e[cut], model.count * sizeof(model.e[0]));
					}
					continue;
				}
				memmove(&model.e[at + 1], &model.e[at], (model.count++ - at) * sizeof(model.e[0]));
				model.e[at].key = k;
				model.e[at].len = len;
				model.e[at].fill = fill;
			}
			if (step % 97 == 0)
				image_equals_model(image, &model, 0, model.count);
		}
		image_equals_model(image, &model, 0, model.count);
		struct uuid uuid = {{0}};
		image_seal(image);
		assert_null(verify(image, &uuid));
	}
}

/* Whatever the bytes are, verification ends, and what passes can be used without leaving the image. */
static void test_node_hostile(void **state)
{
	(void)state;
	struct uuid uuid = {{0}};
	uint64_t seed = 2;
	uint8_t *good = malloc(TREE_NODE_BYTES), *bad = malloc(TREE_NODE_BYTES);
	image_init(good, 0);
	for (unsigned i = 0; i < 60; i++) {
		struct pkey k = key_of(i * 7);
		unsigned slot;
		image_find(good, &k, &slot);
		image_insert(good, slot, &k, value, i * 3);
	}
	image_seal(good);
	assert_null(verify(good, &uuid));
	for (unsigned i = 0; i < TREE_NODE_BYTES; i += i < 2000 ? 1 : 61) {
		memcpy(bad, good, TREE_NODE_BYTES);
		bad[i] = (uint8_t)(bad[i] ^ (1u << i % 8));
		assert_non_null(verify(bad, &uuid));
	}
	for (unsigned n = 0; n < 20000; n++) {
		memcpy(bad, good, TREE_NODE_BYTES);
		for (unsigned c = 0; c < 1 + n % 3; c++)
			bad[test_random(&seed) % 1800] = (uint8_t)test_random(&seed);
		memcpy(bad, good, 4);
		image_seal(bad);
		struct image_expect expect = {.uuid = (struct uuid *)(void *)&image_header(bad)->uuid,
			.block = le64_get(image_header(bad)->block),
			.level = -1};
		if (image_verify(bad, &expect))
			continue;
		/* what is taken as good must stand use */
		unsigned slot;
		struct pkey k = key_of(test_random(&seed) % 500);
		if (!image_find(bad, &k, &slot) && image_fits(bad, 3000))
			image_insert(bad, slot, &k, value, 3000);
		while (image_count(bad) > 1)
			image_remove(bad, image_count(bad) / 2);
	}
	free(good);
	free(bad);
}

/* Sums that fit do not hide that two values share bytes: writing one would change the other. */
static void test_node_overlap(void **state)
{
	(void)state;
	struct uuid uuid = {{0}};
	struct slot_disk *s;
	image_init(image, 0);
	for (unsigned i = 0; i < 3; i++) {
		struct pkey k = key_of(i * 3);
		image_insert(image, i, &k, value, 40);
	}
	image_seal(image);
	assert_null(verify(image, &uuid));
	s = image_slots(image);
	for (unsigned by = 0; by < 40; by += 13) {
		s[1].off = le16_put((uint16_t)(le16_get(s[0].off) - by));
		image_seal(image);
		assert_string_equal(verify(image, &uuid), "values overlap");
	}
	s[1].off = le16_put((uint16_t)(le16_get(s[0].off) - 40));
	image_seal(image);
	assert_null(verify(image, &uuid));
	s[2].key.w[2] = le64_put(le64_get(s[2].key.w[2]) | 1);
	image_seal(image);
	assert_string_equal(verify(image, &uuid), "a key has reserved bits");
}

int main(void)
{
	struct core_config config = {.reactors = 1, .arena_bytes = 8u << 20};
	struct error err;
	if (core_init(&config, &err))
		return 1;
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_node_model), cmocka_unit_test(test_node_hostile),
		cmocka_unit_test(test_node_overlap)};
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	core_fini();
	return rc;
}
