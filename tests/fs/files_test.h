/*
 * For the tests of the upper half of fs/: an array on sparse files behind the fault-injecting drive, a
 * volume and a file system on it, and short ways to call fs.
 *
 * A body runs in a fiber and fails by CHECK(), which records the place and returns; cmocka's own asserts
 * longjmp and must not be used inside a fiber.
 */
#ifndef FURROW_FILES_TEST_H
#define FURROW_FILES_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/inode_internal.h"

#define TEST_DRIVES_MAX 10

struct files_test {
	char dir[128];
	char path[TEST_DRIVES_MAX][200];
	const char *paths[TEST_DRIVES_MAX];
	unsigned count;
	struct array *array;
	struct volume *volume;
	struct fs *fs;
	struct fs_mount_options options;
	struct fs_id root;
};

static char test_failure[800];

#define CHECK_FAILED(...)                                                                                              \
	do {                                                                                                           \
		if (!test_failure[0])                                                                                  \
			snprintf(test_failure, sizeof(test_failure), __VA_ARGS__);                                     \
	} while (0)
#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			CHECK_FAILED("%s:%d: %s", __FILE__, __LINE__, #cond);                                          \
			return;                                                                                        \
		}                                                                                                      \
	} while (0)
#define CHECK_R(cond, result)                                                                                          \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			CHECK_FAILED("%s:%d: %s", __FILE__, __LINE__, #cond);                                          \
			return result;                                                                                 \
		}                                                                                                      \
	} while (0)
#define CHECK_IS(call, expected)                                                                                       \
	do {                                                                                                           \
		long long check_r_ = (long long)(call), check_e_ = (long long)(expected);                              \
		if (check_r_ != check_e_) {                                                                            \
			CHECK_FAILED("%s:%d: %s is %lld, not %lld", __FILE__, __LINE__, #call, check_r_, check_e_);    \
			return;                                                                                        \
		}                                                                                                      \
	} while (0)
#define CHECK_OK(call) CHECK_IS(call, 0)

static inline uint64_t test_random(uint64_t *seed)
{
	*seed += 0x9e3779b97f4a7c15ull;
	return hash_u64(*seed);
}
static inline uint32_t test_below(uint64_t *seed, uint32_t n)
{
	return (uint32_t)(test_random(seed) % n);
}

/* ------------------------------------------------------------------------------------------------
 * Life
 */

static inline const char *files_test_file(const char *path)
{
	return strncmp(path, "fault:", 6) == 0 ? path + 6 : path;
}

static inline void files_test_drives(struct files_test *t, unsigned count, uint64_t bytes)
{
	const char *base = getenv("FURROW_TEST_DIR");

	if (!base)
		base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";
	memset(t, 0, sizeof(*t));
	snprintf(t->dir, sizeof(t->dir), "%.90s/furrow-files-XXXXXX", base);
	if (!mkdtemp(t->dir))
		abort();
	t->count = count;
	for (unsigned i = 0; i < count; i++) {
		int fd;

		snprintf(t->path[i], sizeof(t->path[i]), "fault:%s/d%02u", t->dir, i);
		t->paths[i] = t->path[i];
		fd = open(files_test_file(t->path[i]), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || ftruncate(fd, (off_t)bytes))
			abort();
		close(fd);
	}
}

static inline void files_test_remove(struct files_test *t)
{
	for (unsigned i = 0; i < t->count; i++)
		unlink(files_test_file(t->path[i]));
	rmdir(t->dir);
}

/* The array and its volume, without a mount. */
static inline int files_test_open_volume(struct files_test *t, struct error *err)
{
	struct raid_scan scan;
	int r = raid_scan(t->paths, t->count, &scan, err);

	if (r == 0) {
		r = array_open(&scan, "a0", &t->array, err);
		raid_scan_free(&scan);
	}
	return r == 0 ? volume_open(t->array, "v", &t->volume, err) : r;
}

static inline int files_test_create(struct files_test *t, unsigned level)
{
	struct array_create create = {.name = "a0", .level = level, .drives = t->paths, .count = t->count};
	struct raid_scan scan;
	struct error err = {0};
	int r = array_create(&create, &err);

	if (r == 0)
		r = raid_scan(t->paths, t->count, &scan, &err);
	if (r == 0) {
		r = array_open(&scan, "a0", &t->array, &err);
		raid_scan_free(&scan);
	}
	if (r == 0)
		r = volume_create(t->array, "v", 0, &err);
	if (r == 0)
		r = volume_open(t->array, "v", &t->volume, &err);
	if (r == 0)
		r = fs_create(t->volume, NULL, &err);
	if (r == 0)
		r = fs_mount(t->volume, &t->options, &t->fs, &err);
	if (r == 0) {
		struct fs_attr attr;
		static const struct fs_cred root_cred;
		struct fs_op op = {.cred = &root_cred};
		struct fs_id id = {.ino = FS_ROOT_INO};
		struct fs_key key = {.ino = FS_ROOT_INO, .type = KEY_INODE};
		struct inode_disk disk;

		r = tree_get(t->fs, &key, &disk, sizeof(disk));
		id.gen = le32_get(disk.generation);
		r = r < 0 ? r : fs_lookup(t->fs, &op, id, ".", 1, &attr, NULL);
		t->root = attr.id;
	}
	if (r < 0)
		CHECK_FAILED("create: %d %s", r, err.text);
	return r;
}

/* Unmounts (unless a power cut came first) and opens everything anew. */
static inline void files_test_close(struct files_test *t)
{
	/* whatever a test does, the cache never had a block that was out of date */
	if (t->fs && t->fs->files->cache.stale)
		CHECK_FAILED("%llu stale blocks were in the cache", (unsigned long long)t->fs->files->cache.stale);
	if (t->fs)
		fs_unmount(t->fs);
	if (t->volume)
		volume_close(t->volume);
	if (t->array)
		array_close(t->array);
	t->fs = NULL;
	t->volume = NULL;
	t->array = NULL;
}
static inline int files_test_open(struct files_test *t)
{
	struct error err = {0};
	int r = files_test_open_volume(t, &err);

	if (r == 0)
		r = fs_mount(t->volume, &t->options, &t->fs, &err);
	if (r < 0)
		CHECK_FAILED("mount: %d %s", r, err.text);
	return r;
}
static inline int files_test_remount(struct files_test *t)
{
	files_test_close(t);
	return files_test_open(t);
}

static inline void files_test_run(void (*body)(void *), void *arg)
{
	struct core_config config = {.reactors = 2, .arena_bytes = 96u << 20, .fibers = 256};
	struct error err = {0};

	test_failure[0] = 0;
	if (core_main(&config, body, arg, &err))
		fail_msg("core: %s", err.text);
	if (test_failure[0])
		fail_msg("%s", test_failure);
}

/* ------------------------------------------------------------------------------------------------
 * Short ways to call
 */

static const struct fs_cred cred_root = {.uid = 0, .gid = 0};
static const struct fs_op op_root = {.cred = &cred_root};

static inline int t_create(struct files_test *t, struct fs_id dir, const char *name, struct fs_id *id)
{
	struct fs_setattr set = {.set = FS_SET_MODE, .mode = 0644};
	struct fs_attr attr;
	int r = fs_create_file(t->fs, &op_root, dir, name, strlen(name), FS_CREATE_GUARDED, &set, 0, &attr, NULL);

	if (r == 0)
		*id = attr.id;
	return r;
}
static inline int t_mkdir(struct files_test *t, struct fs_id dir, const char *name, struct fs_id *id)
{
	struct fs_setattr set = {.set = FS_SET_MODE, .mode = 0755};
	struct fs_attr attr;
	int r = fs_mkdir(t->fs, &op_root, dir, name, strlen(name), &set, &attr, NULL);

	if (r == 0 && id)
		*id = attr.id;
	return r;
}
static inline int t_lookup(struct files_test *t, struct fs_id dir, const char *name, struct fs_attr *attr)
{
	struct fs_attr scratch;

	return fs_lookup(t->fs, &op_root, dir, name, strlen(name), attr ? attr : &scratch, NULL);
}
static inline int t_unlink(struct files_test *t, struct fs_id dir, const char *name)
{
	return fs_unlink(t->fs, &op_root, dir, name, strlen(name), NULL);
}
static inline int t_rmdir(struct files_test *t, struct fs_id dir, const char *name)
{
	return fs_rmdir(t->fs, &op_root, dir, name, strlen(name), NULL);
}
static inline int t_rename(struct files_test *t, struct fs_id from, const char *a, struct fs_id to, const char *b)
{
	return fs_rename(t->fs, &op_root, from, a, strlen(a), to, b, strlen(b), NULL, NULL);
}
static inline int t_write(
	struct files_test *t, struct fs_id id, uint64_t off, const void *data, uint32_t len, enum fs_stable stable)
{
	struct slice v[64];
	int n = fs_write_buffers(off, len, v, 64), r;

	if (n < 0)
		return n;
	slices_copy_in(v, (unsigned)n, 0, data, len);
	r = fs_write(t->fs, &op_root, id, off, v, (unsigned)n, stable, NULL, NULL);
	slices_put(v, (unsigned)n);
	return r;
}
/* Returns the count read. */
static inline int t_read(struct files_test *t, struct fs_id id, uint64_t off, void *data, uint32_t len, bool *eof)
{
	struct slice v[FS_READ_SLICES];
	uint32_t count = len;
	bool end;
	unsigned n;
	int r = fs_read(t->fs, &op_root, id, off, &count, v, &n, eof ? eof : &end, NULL);

	if (r < 0)
		return r;
	if (slices_bytes(v, n) != count)
		return -EBADMSG;
	slices_copy_out(v, n, 0, data, count);
	slices_put(v, n);
	return (int)count;
}
static inline int t_truncate(struct files_test *t, struct fs_id id, uint64_t size)
{
	struct fs_setattr set = {.set = FS_SET_SIZE, .size = size};

	return fs_setattr(t->fs, &op_root, id, &set, NULL, NULL);
}
static inline void t_forget_home(void *arg)
{
	data_cache_clear(arg);
}
/* The next read goes to the drives. */
static inline void t_forget(struct files_test *t)
{
	reactor_call(t->fs->home, t_forget_home, t->fs);
}
static inline int t_commit(struct files_test *t, struct fs_id id)
{
	return fs_commit(t->fs, &op_root, id, 0, 0, NULL);
}

static inline void t_check_report(void *arg, const char *problem)
{
	unsigned *problems = arg;

	if (++*problems <= 20)
		fprintf(stderr, "fs check: %s\n", problem);
}
/* The number of faults that fs_check finds. */
static inline int t_check(struct files_test *t)
{
	struct fs_check_result result;
	unsigned problems = 0;
	int r = fs_check(t->fs, true, t_check_report, NULL, &problems, &result);

	return r < 0 ? r : (int)problems;
}

#endif
