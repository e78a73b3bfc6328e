/*
 * Superblocks: round trip; every flipped bit is noticed; and what has a right checksum but wrong content
 * (a hostile drive) is refused or harmless: whatever is taken must satisfy all the rules that the rest relies on.
 */
#include "tests/raid/fuzz_member.h"
#include "tests/raid/raid_test.h"

static void config_sample(struct raid_config *c)
{
	memset(c, 0, sizeof(*c));
	c->version = SUPER_VERSION;
	uuid_make(&c->uuid);
	snprintf(c->name, sizeof(c->name), "array-1");
	c->events = 77;
	c->created = 1;
	c->updated = 2;
	c->level = 6;
	c->members = 5;
	c->slots = 6;
	c->geometries = 2;
	c->log_copies = 3;
	c->log_members = 5;
	c->log_groups = 1;
	c->log_offset = 1 << 20;
	c->log_bytes = 4 << 20;
	c->data_offset = 5 << 20;
	c->data_bytes = 20 << 20;
	c->member_bytes = 32 << 20;
	c->geometry[0] = (struct geometry){.epoch = 1,
		.code = FORMAT_CODE_PQ,
		.groups = 1,
		.k = 2,
		.m = 2,
		.strip_bytes = 65536,
		.strip_blocks = 16,
		.first_stripe = 0,
		.stripes = 100,
		.member_offset = 5 << 20};
	c->geometry[1] = (struct geometry){.epoch = 2,
		.code = FORMAT_CODE_PQ,
		.groups = 1,
		.k = 3,
		.m = 2,
		.strip_bytes = 65536,
		.strip_blocks = 16,
		.first_stripe = 100,
		.stripes = 200,
		.member_offset = (5 << 20) + 100 * 65536};
	for (unsigned i = 0; i < 6; i++) {
		uuid_make(&c->member[i].uuid);
		c->member[i].state = i == 5   ? FORMAT_MEMBER_SPARE
				     : i == 2 ? FORMAT_MEMBER_FAILED
					      : FORMAT_MEMBER_ACTIVE;
		c->member[i].events = 70 + i;
		c->member[i].rebuild_next = i;
		c->member[i].changed = 9;
	}
	snprintf(c->volume[3].name, sizeof(c->volume[3].name), "data");
	uuid_make(&c->volume[3].uuid);
	c->volume[3].first_stripe = 110;
	c->volume[3].stripes = 50;
	c->volume[3].log_first = 2;
	c->volume[3].log_chunks = 10;
	c->volume[3].created = 3;
}

/* The same array with GROUPS groups of WIDTH, in which each drive has room for as much, and SPARES. */
static void config_widen(struct raid_config *c, unsigned groups, unsigned width, unsigned spares)
{
	for (unsigned e = 0; e < 2; e++) {
		c->geometry[e].groups = groups;
		c->geometry[e].k = width - 2;
	}
	c->level = 60;
	c->members = c->log_members = groups * width;
	c->log_groups = groups;
	c->slots = c->members + spares;
	for (unsigned i = 5; i < c->slots; i++) {
		uuid_make(&c->member[i].uuid);
		c->member[i].state = i < c->members ? FORMAT_MEMBER_ACTIVE : FORMAT_MEMBER_SPARE;
		c->member[i].events = i % 70;
		c->member[i].left = i;
	}
}

static void round_trip(struct raid_config *c, uint32_t bytes)
{
	struct super_found *f = calloc(1, sizeof(*f));
	uint8_t *raw = calloc(1, SUPER_BYTES_MOST), *again = calloc(1, SUPER_BYTES_MOST);
	char why[160];
	assert_int_equal(super_bytes(c), bytes);
	for (unsigned slot = 0; slot < c->slots; slot++) {
		super_encode(c, slot, slot & 1, 33ull << 20, raw);
		enum super_verdict v = super_decode(raw, 33ull << 20, f, why, sizeof(why));
		if (v != SUPER_VALID)
			fail_msg("%s", why);
		assert_int_equal(f->slot, slot);
		assert_int_equal(f->drive_bytes, 33ull << 20);
		assert_memory_equal(&f->config, c, sizeof(*c));
		super_encode(&f->config, f->slot, slot & 1, f->drive_bytes, again);
		assert_memory_equal(raw, again, bytes);
	}
	/* what is common to all members has one checksum, and another one when anything differs */
	uint64_t common = f->common;
	super_encode(c, 0, 1, 40ull << 20, raw);
	assert_int_equal(super_decode(raw, 40ull << 20, f, why, sizeof(why)), SUPER_VALID);
	assert_true(f->common == common);
	c->member[1].state = FORMAT_MEMBER_FAILED;
	super_encode(c, 0, 1, 40ull << 20, raw);
	assert_int_equal(super_decode(raw, 40ull << 20, f, why, sizeof(why)), SUPER_VALID);
	assert_false(f->common == common);
	free(f);
	free(raw);
	free(again);
}

static void test_round_trip(void **state)
{
	(void)state;
	struct raid_config *c = calloc(1, sizeof(*c));
	config_sample(c);
	round_trip(c, 16384);
	config_sample(c);
	c->version = 1;
	round_trip(c, 16384);
	config_sample(c);
	config_widen(c, 2, 64, 40); /* 168 slots, which is what the least one has room for */
	round_trip(c, 16384);
	config_sample(c);
	config_widen(c, 2, 64, 41);
	round_trip(c, 20480);
	config_sample(c);
	config_widen(c, 14, 64, 40);
	round_trip(c, 65536);
	free(c);
}

/* What is too much for a group, for the table, and for version 1. */
static void test_bounds(void **state)
{
	(void)state;
	struct raid_config *c = calloc(1, sizeof(*c));
	char why[160];
	config_sample(c);
	config_widen(c, 2, 64, 0);
	assert_true(config_valid(c, why, sizeof(why)));
	c->version = 1;
	assert_false(config_valid(c, why, sizeof(why)));
	c->version = SUPER_VERSION + 1;
	assert_false(config_valid(c, why, sizeof(why)));
	config_sample(c);
	config_widen(c, 2, 65, 0);
	assert_false(config_valid(c, why, sizeof(why)));
	config_sample(c);
	config_widen(c, 14, 64, 0);
	c->log_groups = 7; /* 128 members share the chunks of one group */
	assert_false(config_valid(c, why, sizeof(why)));
	c->log_groups = 14;
	assert_true(config_valid(c, why, sizeof(why)));
	c->slots = SUPER_SLOTS + 1;
	assert_false(config_valid(c, why, sizeof(why)));
	struct geometry g = {0};
	assert_int_equal(level_geometry(60, 128, 2, &g, why, sizeof(why)), 0);
	assert_int_equal(g.k, 62);
	assert_int_equal(level_geometry(60, 130, 2, &g, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, "more than 64"));
	assert_int_equal(level_geometry(6, 64, 0, &g, why, sizeof(why)), 0);
	assert_int_equal(level_geometry(6, 65, 0, &g, why, sizeof(why)), -EINVAL);
	assert_int_equal(level_geometry(1, 65, 0, &g, why, sizeof(why)), -EINVAL);
	assert_int_equal(level_geometry(10, 936, 0, &g, why, sizeof(why)), 0);
	assert_int_equal(g.groups, 468);
	free(c);
}

/* The map of what a member missed is with its group; in version 1 with all. */
static void test_map_places(void **state)
{
	(void)state;
	struct raid_config *c = calloc(1, sizeof(*c));
	config_sample(c);
	config_widen(c, 3, 20, 2);
	struct map_home home = layout_map(c, 59);
	assert_true(home.first == 40 && home.end == 60 && home.index == 19);
	home = layout_map(c, 20);
	assert_true(home.first == 20 && home.end == 40 && home.index == 0);
	c->version = 1;
	home = layout_map(c, 59);
	assert_true(home.first == 0 && home.end == 60 && home.index == 59);
	free(c);
}

static void bit_flips(struct raid_config *c)
{
	struct super_found *f = calloc(1, sizeof(*f));
	uint8_t *raw = calloc(1, SUPER_BYTES_MOST), *newer = calloc(1, SUPER_BYTES_MOST),
		*torn = malloc(SUPER_BYTES_MOST);
	uint32_t bytes = super_bytes(c);
	char why[160];
	uint64_t seed = 3;
	super_encode(c, 1, 0, 33ull << 20, raw);
	for (unsigned i = 0; i < 3000; i++) {
		uint64_t bit = i < 1024 ? i : test_random(&seed) % (bytes * 8);
		raw[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		assert_int_not_equal(super_decode(raw, 33ull << 20, f, why, sizeof(why)), SUPER_VALID);
		raw[bit / 8] ^= (uint8_t)(1u << (bit % 8));
	}
	/* torn: only a part of a newer one arrived, which differs in the head and in the last members */
	c->events++;
	c->volume[3].stripes++;
	c->member[c->slots - 1].changed++;
	super_encode(c, 1, 0, 33ull << 20, newer);
	for (unsigned cut = 512; cut < bytes; cut += 512) {
		memcpy(torn, raw, SUPER_BYTES_MOST);
		memcpy(torn, newer, cut);
		if (memcmp(torn, newer, bytes) != 0)
			assert_int_equal(super_decode(torn, 33ull << 20, f, why, sizeof(why)), SUPER_DAMAGED);
	}
	/* and one that has become longer */
	unsigned slots = c->slots;
	while (c->slots < SUPER_SLOTS && super_bytes(c) == bytes)
		c->member[c->slots++] = (struct member_config){.state = FORMAT_MEMBER_NONE};
	if (super_bytes(c) > bytes) {
		super_encode(c, 1, 0, 33ull << 20, newer);
		memcpy(torn, raw, SUPER_BYTES_MOST);
		memcpy(torn, newer, bytes);
		torn[bytes] = 1; /* what lay behind the old one */
		assert_int_equal(super_decode(torn, 33ull << 20, f, why, sizeof(why)), SUPER_DAMAGED);
		assert_int_equal(super_decode(newer, 33ull << 20, f, why, sizeof(why)), SUPER_VALID);
		assert_int_equal(f->config.slots, c->slots);
	}
	c->slots = slots;
	free(newer);
	free(torn);
	free(f);
	free(raw);
}

static void test_bit_flips(void **state)
{
	(void)state;
	struct raid_config *c = calloc(1, sizeof(*c));
	config_sample(c);
	bit_flips(c);
	config_sample(c);
	config_widen(c, 4, 50, 3);
	bit_flips(c);
	config_sample(c);
	c->version = 1;
	bit_flips(c);
	free(c);
}

/* What the rest of raid/ computes from a superblock must stay inside of the drive. */
static void places_check(const struct raid_config *c)
{
	for (unsigned i = 0; i < c->geometries; i++) {
		const struct geometry *g = &c->geometry[i];
		for (unsigned pos = 0; pos < g->k + g->m; pos++) {
			struct place p = layout_strip(g, g->first_stripe + g->stripes - 1, pos);
			assert_true(p.slot < c->members);
			assert_true(p.offset + g->strip_bytes <= c->data_offset + c->data_bytes);
			assert_true(p.offset >= c->data_offset);
		}
	}
	for (unsigned copy = 0; copy < c->log_copies && config_log_chunks(c); copy++) {
		struct place p = layout_log(c, config_log_chunks(c) - 1, copy);
		assert_true(p.slot < c->members);
		assert_true(p.offset + LOG_CHUNK_BYTES <= c->log_offset + c->log_bytes);
	}
	(void)config_viable(c);
}

static void hostile(struct raid_config *c)
{
	struct super_found *f = calloc(1, sizeof(*f));
	uint8_t *good = calloc(1, SUPER_BYTES_MOST), *raw = malloc(SUPER_BYTES_MOST);
	char why[160];
	uint64_t seed = 4;
	unsigned taken = 0;
	static const uint64_t nasty[] = {0, 1, 2, 63, 64, 65, 255, 0xffff, 0x10000, 0x7fffffff, 0xffffffff, 1ull << 32,
		1ull << 52, 1ull << 63, UINT64_MAX, UINT64_MAX - 4095};
	super_encode(c, 1, 0, 33ull << 20, good);
	print_message("seed %llu\n", (unsigned long long)seed);
	for (unsigned i = 0; i < 20000; i++) {
		memcpy(raw, good, SUPER_BYTES_MOST);
		for (uint64_t n = test_random(&seed) % 3 + 1; n; n--) {
			/* the tables in use, mostly */
			uint64_t r = test_random(&seed) % 8;
			size_t at = r < 3   ? 16 + test_random(&seed) % 200
				    : r < 5 ? 512 + test_random(&seed) % 128
				    : r < 7 ? 1536 + test_random(&seed) % 400
					    : 5632 + test_random(&seed) % 512;
			if (test_random(&seed) % 2) {
				raw[at] = (uint8_t)test_random(&seed);
			} else {
				uint64_t v = nasty[test_random(&seed) % (sizeof(nasty) / sizeof(nasty[0]))];
				memcpy(raw + (at & ~(size_t)7), &v, 8);
			}
		}
		fuzz_super_sign(raw);
		if (super_decode(raw, 33ull << 20, f, why, sizeof(why)) == SUPER_VALID) {
			taken++;
			assert_true(config_valid(&f->config, why, sizeof(why)));
			places_check(&f->config);
		} else {
			assert_true(memcmp(raw, SUPER_MAGIC, 8) != 0 || why[0]);
		}
	}
	assert_true(taken > 0 && taken < 20000);
	free(f);
	free(good);
	free(raw);
}

static void test_hostile(void **state)
{
	(void)state;
	struct raid_config *c = calloc(1, sizeof(*c));
	config_sample(c);
	hostile(c);
	config_widen(c, 3, 64, 5);
	hostile(c);
	config_sample(c);
	c->version = 1;
	hostile(c);
	free(c);
}

static void test_newer_version(void **state)
{
	(void)state;
	struct raid_config *c = calloc(1, sizeof(*c));
	struct super_found *f = calloc(1, sizeof(*f));
	uint8_t *raw = calloc(1, SUPER_BYTES_MOST);
	struct format_super *s = (struct format_super *)(void *)raw;
	char why[160];
	config_sample(c);
	super_encode(c, 1, 0, 33ull << 20, raw);
	s->incompat = le64_put(4);
	fuzz_super_sign(raw);
	assert_int_equal(super_decode(raw, 33ull << 20, f, why, sizeof(why)), SUPER_NEWER);
	super_encode(c, 1, 0, 33ull << 20, raw);
	s->compat = le64_put(4);
	fuzz_super_sign(raw);
	assert_int_equal(super_decode(raw, 33ull << 20, f, why, sizeof(why)), SUPER_VALID);
	assert_int_equal(f->config.compat, 4); /* kept when it is written again */
	super_encode(c, 1, 0, 33ull << 20, raw);
	assert_int_equal(super_decode(raw, 31ull << 20, f, why, sizeof(why)), SUPER_DAMAGED);
	/* a version to come, of another size */
	super_encode(c, 1, 0, 33ull << 20, raw);
	s->version = le32_put(SUPER_VERSION + 1);
	s->bytes = le32_put(40960);
	fuzz_super_sign(raw);
	assert_int_equal(super_decode(raw, 33ull << 20, f, why, sizeof(why)), SUPER_NEWER);
	assert_non_null(strstr(why, "newer version (3"));
	free(c);
	free(f);
	free(raw);
}

static void test_names_and_uuids(void **state)
{
	(void)state;
	struct uuid a, b;
	char text[37];
	uuid_make(&a);
	uuid_format(&a, text);
	assert_int_equal(strlen(text), 36);
	assert_int_equal(uuid_parse(text, &b), 0);
	assert_memory_equal(&a, &b, sizeof(a));
	text[35] = 'g';
	assert_int_equal(uuid_parse(text, &b), -EINVAL);
	assert_int_equal(uuid_parse("", &b), -EINVAL);
	assert_int_equal(uuid_parse("0123", &b), -EINVAL);
	assert_true(raid_name_valid("a0") && raid_name_valid("A.b_c-9"));
	assert_false(raid_name_valid("") || raid_name_valid(".a") || raid_name_valid("-a") || raid_name_valid("a/b"));
	assert_true(raid_name_valid("1234567890123456789012345678901"));
	assert_false(raid_name_valid("12345678901234567890123456789012"));
}

static void test_content(void **state)
{
	(void)state;
	static uint8_t head[256 * 1024], tail[128 * 1024];
	char text[80];
	static const struct {
		size_t at;
		const char *bytes;
		size_t n;
		const char *expect;
	} cases[] = {
		{512, "EFI PART", 8, "GPT partition table"},
		{0, "XFSB", 4, "XFS file system"},
		{0x10040, "_BHRfS_M", 8, "btrfs file system"},
		{1080, "\x53\xef", 2, "ext2 file system"},
		{0, "LUKS\xba\xbe", 6, "LUKS encrypted volume"},
		{4086, "SWAPSPACE2", 10, "swap space"},
		{536 - 24, "LABELONE", 8, "LVM physical volume"},
		{4096, "\xfc\x4e\x2b\xa9", 4, "member of an md array"},
		{100, "x", 1, "unknown data"},
	};
	assert_false(content_identify(head, sizeof(head), tail, sizeof(tail), text, sizeof(text)));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		memset(head, 0, sizeof(head));
		memcpy(head + cases[i].at, cases[i].bytes, cases[i].n);
		assert_true(content_identify(head, sizeof(head), tail, sizeof(tail), text, sizeof(text)));
		assert_string_equal(text, cases[i].expect);
	}
	memset(head, 0, sizeof(head));
	memcpy(tail + sizeof(tail) - 512, "EFI PART", 8);
	assert_true(content_identify(head, sizeof(head), tail, sizeof(tail), text, sizeof(text)));
	memset(tail, 0, sizeof(tail));
	memcpy(tail + 65536, "\xfc\x4e\x2b\xa9", 4);
	assert_true(content_identify(head, sizeof(head), tail, sizeof(tail), text, sizeof(text)));
	/* tiny and odd sizes are looked at without going beyond them */
	for (size_t n = 0; n < 6000; n += 7)
		(void)content_identify(head, n, tail, n / 2, text, sizeof(text));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_map_places),
		cmocka_unit_test(test_bit_flips),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_newer_version),
		cmocka_unit_test(test_names_and_uuids),
		cmocka_unit_test(test_content),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
