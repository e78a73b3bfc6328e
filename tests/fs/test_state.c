/*
 * State records against a table in memory: puts, deletes and walks at random, names that share a hash, power cuts;
 * then limits, and what a read-only mount allows.
 */
#include "tests/fs/files_test.h"

#define NAMES 10u
#define KINDS 2u

struct shadow {
	bool there;
	size_t size;
	uint64_t seed;
};

static void fill(uint8_t *to, size_t size, uint64_t seed)
{
	for (size_t i = 0; i < size; i++)
		to[i] = (uint8_t)(hash_u64(seed + i / 8) >> (i % 8 * 8));
}

/* The shortest, and the longest, among others. */
static size_t name_of(unsigned i, uint8_t *name)
{
	size_t len = i == NAMES - 1 ? FS_STATE_NAME_MAX : 1 + i * 20;

	memset(name, 0, len);
	name[len - 1] = (uint8_t)i;
	return len;
}

static void compare(struct files_test *t, struct shadow s[KINDS][NAMES])
{
	uint8_t name[FS_STATE_NAME_MAX], a[FS_STATE_DATA_MAX], b[FS_STATE_DATA_MAX];

	for (unsigned k = 0; k < KINDS; k++) {
		struct fs_state record = {0};
		unsigned want = 0, got = 0;
		size_t size;
		int r;
		for (unsigned i = 0; i < NAMES; i++) {
			size_t len = name_of(i, name);
			CHECK_IS(fs_state_get(t->fs, (uint8_t)(k + 1), name, len, a, sizeof(a), &size),
				s[k][i].there ? 0 : -ENOENT);
			if (!s[k][i].there)
				continue;
			want |= 1u << i;
			CHECK_IS(size, s[k][i].size);
			fill(b, size, s[k][i].seed);
			CHECK(memcmp(a, b, size) == 0);
		}
		while ((r = fs_state_next(t->fs, (uint8_t)(k + 1), &record)) == 0) {
			unsigned i = record.name[record.name_len - 1];
			CHECK(i < NAMES && !(got & 1u << i));
			CHECK_IS(record.name_len, name_of(i, name));
			CHECK_IS(record.data_len, s[k][i].size);
			got |= 1u << i;
		}
		CHECK_IS(r, -ENOENT);
		CHECK_IS(got, want);
	}
}

static void body_model(void *arg)
{
	struct files_test *t = arg;
	struct shadow s[KINDS][NAMES] = {{{0}}};
	uint8_t name[FS_STATE_NAME_MAX], data[FS_STATE_DATA_MAX];
	uint64_t seed = 20261130;

	CHECK_OK(files_test_create(t, 6));
	for (unsigned step = 0; step < 300; step++) {
		unsigned k = test_below(&seed, KINDS), i = test_below(&seed, NAMES);
		struct shadow next = {true, test_below(&seed, FS_STATE_DATA_MAX + 1), seed};
		size_t len = name_of(i, name);

		if (test_below(&seed, 3) == 0) {
			CHECK_OK(fs_state_delete(t->fs, (uint8_t)(k + 1), name, len));
			s[k][i].there = false;
		} else {
			fill(data, next.size, next.seed);
			CHECK_OK(fs_state_put(t->fs, (uint8_t)(k + 1), name, len, data, next.size));
			s[k][i] = next;
		}
		if (step == 50)
			CHECK_OK(fs_snapshot_create(t->fs, "s")); /* it has none of them, and they none of it */
		if (step % 60 == 30) {
			files_test_close(t);
			for (unsigned d = 0; d < t->count; d++)
				fault_volatile_cache(t->path[d], true);
			CHECK_OK(files_test_open(t));
		}
		if (step % 60 == 59) {
			/* the power goes: what was answered is there */
			fault_write_limit(1);
			fs_state_put(t->fs, 9, "x", 1, NULL, 0);
			for (unsigned d = 0; d < t->count; d++)
				fault_power_cut(t->path[d], seed, 500);
			files_test_close(t);
			fault_reset();
			CHECK_OK(files_test_open(t));
			compare(t, s);
			CHECK(!test_failure[0]);
			CHECK_IS(t_check(t), 0);
		}
	}
	compare(t, s);
	files_test_close(t);
}

static void body_rules(void *arg)
{
	struct files_test *t = arg;
	uint8_t big[FS_STATE_DATA_MAX + 1] = {0};
	struct fs_attr attr;
	size_t size;

	CHECK_OK(files_test_create(t, 6));
	CHECK_IS(fs_state_put(t->fs, 1, "", 0, "d", 1), -EINVAL);
	CHECK_IS(fs_state_put(t->fs, 1, big, FS_STATE_NAME_MAX + 1, "d", 1), -EINVAL);
	CHECK_IS(fs_state_put(t->fs, 1, "n", 1, big, sizeof(big)), -EINVAL);
	CHECK_OK(fs_state_delete(t->fs, 1, "n", 1));
	CHECK_OK(fs_state_put(t->fs, 1, "n", 1, "data", 4));
	/* told its size, not given more than there is room for */
	CHECK_OK(fs_state_get(t->fs, 1, "n", 1, big, 3, &size));
	CHECK(size == 4 && !big[0]);
	CHECK_IS(fs_state_get(t->fs, 0, "n", 1, big, 4, &size), -ENOENT);
	/* no client has a way to it */
	CHECK_IS(fs_getattr(t->fs, (struct fs_id){.ino = 0}, &attr), -ESTALE);
	t->options.read_only = true;
	CHECK_OK(files_test_remount(t));
	CHECK_OK(fs_state_get(t->fs, 1, "n", 1, big, 4, &size));
	CHECK_IS(fs_state_put(t->fs, 1, "n", 1, "new", 3), -EROFS);
	CHECK_IS(fs_state_delete(t->fs, 1, "n", 1), -EROFS);
	files_test_close(t);
}

static void run(void (*body)(void *))
{
	static struct files_test t;
	int threshold = atomic_load(&log_threshold);

	atomic_store(&log_threshold, -1);
	files_test_drives(&t, 5, 128ull << 20);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
	atomic_store(&log_threshold, threshold);
}

static void test_model(void **state)
{
	(void)state;
	run(body_model);
}

/* All names have one hash. */
static void test_model_collisions(void **state)
{
	(void)state;
	name_hash_mask = 0;
	run(body_model);
	name_hash_mask = UINT64_MAX;
}

static void test_rules(void **state)
{
	(void)state;
	run(body_rules);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_model_collisions),
		cmocka_unit_test(test_rules),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
