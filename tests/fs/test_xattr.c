/*
 * Extended attributes against a table in memory: all operations at random with values of all sizes,
 * names that share a hash, crashes and remounts; then permissions and limits.
 */
#include "tests/fs/files_test.h"

#define NAMES 12u

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

static bool count_name(void *arg, const char *name, size_t len)
{
	unsigned *bits = arg, n = 0;

	for (size_t i = strlen("user.name"); i < len; i++)
		n = n * 10 + (unsigned)(name[i] - '0');
	*bits |= 1u << n % 32;
	return true;
}

static void compare(struct files_test *t, struct fs_id id, const struct shadow *s, uint8_t *a, uint8_t *b)
{
	unsigned want = 0, got = 0;
	uint64_t cookie = 0;
	char name[32];
	size_t size;
	bool eof;

	for (unsigned i = 0; i < NAMES; i++) {
		snprintf(name, sizeof(name), "user.name%u", i);
		CHECK_IS(fs_getxattr(t->fs, &op_root, id, name, strlen(name), a, FS_XATTR_MAX, &size),
			s[i].there ? 0 : -ENOENT);
		if (!s[i].there)
			continue;
		want |= 1u << i;
		CHECK_IS(size, s[i].size);
		fill(b, size, s[i].seed);
		CHECK(memcmp(a, b, size) == 0);
	}
	CHECK_OK(fs_listxattr(t->fs, &op_root, id, &cookie, count_name, &got, &eof));
	CHECK(eof);
	CHECK_IS(got, want);
}

static void body_model(void *arg)
{
	struct files_test *t = arg;
	struct shadow s[NAMES] = {{0}};
	uint8_t *a = malloc(FS_XATTR_MAX), *b = malloc(FS_XATTR_MAX);
	uint64_t seed = getenv("FURROW_SEED") ? strtoull(getenv("FURROW_SEED"), NULL, 0) : 20261130;
	struct fs_id id;
	char name[32];

	printf("seed %llu\n", (unsigned long long)seed);
	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "a", &id));
	for (unsigned step = 0; step < 300; step++) {
		unsigned i = test_below(&seed, NAMES);
		struct shadow next = {true, test_below(&seed, test_below(&seed, 2) ? 200 : FS_XATTR_MAX + 1), seed};
		enum fs_xattr_mode mode = (enum fs_xattr_mode)test_below(&seed, 3);
		int want = 0;

		snprintf(name, sizeof(name), "user.name%u", i);
		if (test_below(&seed, 3) == 0) {
			CHECK_IS(fs_removexattr(t->fs, &op_root, id, name, strlen(name), NULL),
				s[i].there ? 0 : -ENOENT);
			s[i].there = false;
		} else {
			if (mode == FS_XATTR_CREATE && s[i].there)
				want = -EEXIST;
			if (mode == FS_XATTR_REPLACE && !s[i].there)
				want = -ENOENT;
			fill(a, next.size, next.seed);
			CHECK_IS(fs_setxattr(t->fs, &op_root, id, name, strlen(name), a, next.size, mode, NULL), want);
			if (want == 0)
				s[i] = next;
		}
		if (step % 60 == 30) {
			/* the power goes: what was answered is there */
			files_test_close(t);
			for (unsigned d = 0; d < t->count; d++)
				fault_volatile_cache(t->path[d], true);
			CHECK_OK(files_test_open(t));
		}
		if (step % 60 == 59) {
			fault_write_limit(1);
			fs_removexattr(t->fs, &op_root, id, "user.none", 9, NULL);
			for (unsigned d = 0; d < t->count; d++)
				fault_power_cut(t->path[d], seed, 500);
			files_test_close(t);
			fault_reset();
			CHECK_OK(files_test_open(t));
			compare(t, id, s, a, b);
			CHECK(!test_failure[0]);
			CHECK_IS(t_check(t), 0);
		}
	}
	compare(t, id, s, a, b);
	CHECK_OK(t_unlink(t, t->root, "a"));
	CHECK_IS(t_check(t), 0);
	free(a);
	free(b);
	files_test_close(t);
}

static void body_rules(void *arg)
{
	struct files_test *t = arg;
	static const struct fs_cred user = {.uid = 1000, .gid = 1000};
	static const struct fs_op op = {.cred = &user};
	struct fs_setattr set = {.set = FS_SET_MODE, .mode = 0604};
	uint8_t *big = calloc(1, FS_XATTR_MAX + 1);
	struct fs_attr before, after, link;
	unsigned names = 0;
	uint64_t cookie = 0;
	char name[32], value[8];
	struct fs_id id, dir;
	size_t size;
	bool eof;
	int r = 0;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "a", &id));
	CHECK_OK(t_mkdir(t, t->root, "d", &dir));
	CHECK_OK(fs_symlink(t->fs, &op_root, t->root, "l", 1, "x", 1, NULL, &link, NULL));
	CHECK_OK(fs_setattr(t->fs, &op_root, id, &set, NULL, NULL));
	CHECK_OK(fs_getattr(t->fs, id, &before));
	CHECK_OK(fs_setxattr(t->fs, &op_root, id, "user.a", 6, "1", 1, FS_XATTR_EITHER, NULL));
	CHECK_OK(fs_setxattr(t->fs, &op_root, id, "trusted.a", 9, "2", 1, FS_XATTR_EITHER, NULL));
	CHECK_OK(fs_setxattr(t->fs, &op_root, id, "security.a", 10, "", 0, FS_XATTR_EITHER, NULL));
	CHECK_OK(fs_getattr(t->fs, id, &after));
	CHECK(after.change > before.change && after.mtime.tv_nsec == before.mtime.tv_nsec);
	CHECK_OK(fs_getxattr(t->fs, &op, id, "user.a", 6, value, sizeof(value), &size));
	CHECK(size == 1 && value[0] == '1');
	CHECK_OK(fs_getxattr(t->fs, &op, id, "security.a", 10, value, sizeof(value), &size));
	CHECK_IS(size, 0);
	CHECK_IS(fs_getxattr(t->fs, &op, id, "trusted.a", 9, value, sizeof(value), &size), -ENOENT);
	CHECK_IS(fs_setxattr(t->fs, &op, id, "user.a", 6, "3", 1, FS_XATTR_EITHER, NULL), -EACCES);
	CHECK_IS(fs_setxattr(t->fs, &op, id, "trusted.a", 9, "3", 1, FS_XATTR_EITHER, NULL), -EPERM);
	CHECK_IS(fs_removexattr(t->fs, &op, id, "security.a", 10, NULL), -EPERM);
	CHECK_IS(fs_setxattr(t->fs, &op_root, link.id, "user.a", 6, "3", 1, FS_XATTR_EITHER, NULL), -EPERM);
	CHECK_IS(fs_setxattr(t->fs, &op_root, id, "other.a", 7, "3", 1, FS_XATTR_EITHER, NULL), -EOPNOTSUPP);
	CHECK_IS(fs_setxattr(t->fs, &op_root, id, "user.", 5, "3", 1, FS_XATTR_EITHER, NULL), -EINVAL);
	CHECK_IS(fs_setxattr(t->fs, &op_root, id, "user.a", 6, big, FS_XATTR_MAX + 1, FS_XATTR_EITHER, NULL), -EFBIG);
	CHECK_OK(fs_getxattr(t->fs, &op_root, id, "user.a", 6, NULL, 0, &size));
	CHECK_IS(size, 1);
	CHECK_OK(fs_listxattr(t->fs, &op, id, &cookie, count_name, &names, &eof));
	CHECK(eof);
	/* as many as an inode may have, and all go with it */
	for (unsigned i = 0; i < 600 && r == 0; i++) {
		snprintf(name, sizeof(name), "user.name%u", i);
		r = fs_setxattr(t->fs, &op_root, dir, name, strlen(name), big, 1000, FS_XATTR_CREATE, NULL);
	}
	CHECK_IS(r, -ENOSPC);
	CHECK_IS(t_check(t), 0);
	CHECK_OK(t_rmdir(t, t->root, "d"));
	CHECK_IS(t_check(t), 0);
	free(big);
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
