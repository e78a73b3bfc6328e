/*
 * For the tests of raid/: drives in a directory of their own, and running a test body in a fiber.
 *
 * The drives are sparse files, in memory where there is a /dev/shm (flushes are free there), else in TMPDIR
 * or /tmp. A body fails by CHECK(), which records the place and leaves the fiber's function; cmocka's own
 * asserts longjmp and must not be used inside a fiber.
 */
#ifndef FURROW_RAID_TEST_H
#define FURROW_RAID_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "raid/raid_internal.h"

#define TEST_DRIVES_MAX 12 /* of most tests */
#define TEST_DRIVE_BYTES (32ull << 20)

struct raid_test {
	char dir[128];
	char (*path)[200];
	const char **paths;
	unsigned count;
};

static char test_failure[600];

#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			if (!test_failure[0])                                                                          \
				snprintf(test_failure, sizeof(test_failure), "%s:%d: %s", __FILE__, __LINE__, #cond);  \
			return;                                                                                        \
		}                                                                                                      \
	} while (0)
#define CHECK_R(cond, result)                                                                                          \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			if (!test_failure[0])                                                                          \
				snprintf(test_failure, sizeof(test_failure), "%s:%d: %s", __FILE__, __LINE__, #cond);  \
			return result;                                                                                 \
		}                                                                                                      \
	} while (0)
/* The same for a function that gives 0 or a negative errno and fills ERR. */
#define CHECK_OK(call, err)                                                                                            \
	do {                                                                                                           \
		int check_r_ = (call);                                                                                 \
		if (check_r_) {                                                                                        \
			if (!test_failure[0])                                                                          \
				snprintf(test_failure, sizeof(test_failure), "%s:%d: %s: %d %.400s", __FILE__,         \
					__LINE__, #call, check_r_, (err).text);                                        \
			return;                                                                                        \
		}                                                                                                      \
	} while (0)

static inline uint64_t test_random(uint64_t *seed)
{
	*seed += 0x9e3779b97f4a7c15ull;
	return hash_u64(*seed);
}

static inline void test_fill(void *to, size_t bytes, uint64_t seed)
{
	uint8_t *p = to;
	for (size_t i = 0; i + 8 <= bytes; i += 8) {
		uint64_t x = test_random(&seed);
		memcpy(p + i, &x, 8);
	}
}

/* Makes COUNT sparse drives; PREFIX "" or "fault:". */
__attribute__((noinline, unused)) static void raid_test_drives(
	struct raid_test *t, unsigned count, uint64_t bytes, const char *prefix)
{
	const char *base = getenv("FURROW_TEST_DIR")	   ? getenv("FURROW_TEST_DIR")
			   : access("/dev/shm", W_OK) == 0 ? "/dev/shm"
			   : getenv("TMPDIR")		   ? getenv("TMPDIR")
							   : "/tmp";
	memset(t, 0, sizeof(*t));
	snprintf(t->dir, sizeof(t->dir), "%.90s/furrow-raid-XXXXXX", base);
	if (!mkdtemp(t->dir))
		abort();
	t->count = count;
	t->path = calloc(count, sizeof(*t->path));
	t->paths = calloc(count, sizeof(*t->paths));
	for (unsigned i = 0; i < count; i++) {
		snprintf(t->path[i], sizeof(t->path[i]), "%s%s/d%02u", prefix, t->dir, i);
		t->paths[i] = t->path[i];
		int fd = open(t->path[i] + strlen(prefix), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || ftruncate(fd, (off_t)bytes))
			abort();
		close(fd);
	}
}

static inline const char *raid_test_file(const char *path)
{
	return strncmp(path, "fault:", 6) == 0 ? path + 6 : path;
}

static inline void raid_test_remove(struct raid_test *t)
{
	for (unsigned i = 0; i < t->count; i++)
		unlink(raid_test_file(t->path[i]));
	rmdir(t->dir);
	free(t->path);
	free((void *)t->paths);
}

static inline int raid_test_create(struct raid_test *t, unsigned level, uint32_t strip, struct error *err)
{
	struct array_create create = {
		.name = "a0", .level = level, .strip_bytes = strip, .drives = t->paths, .count = t->count};
	return array_create(&create, err);
}

static inline int raid_test_open(struct raid_test *t, struct array **array, struct error *err)
{
	struct raid_scan scan;
	int r = raid_scan(t->paths, t->count, &scan, err);
	if (r)
		return r;
	r = array_open(&scan, "a0", array, err);
	raid_scan_free(&scan);
	return r;
}

/* The same with its volume "v", which is made first when it is to be FRESH. */
static inline int raid_test_open_volume(
	struct raid_test *t, bool fresh, struct array **array, struct volume **v, struct error *err)
{
	int r = raid_test_open(t, array, err);
	if (r == 0 && fresh)
		r = volume_create(*array, "v", 0, err);
	return r ? r : volume_open(*array, "v", v, err);
}

/* BYTES of payload in buffers of PIECE bytes, filled from SEED. */
struct payload {
	struct slice v[64];
	unsigned n;
	uint64_t bytes;
};
static inline void payload_make(struct payload *p, uint64_t bytes, uint32_t piece, uint64_t seed)
{
	p->n = 0;
	p->bytes = bytes;
	while (bytes) {
		uint32_t len = bytes < piece ? (uint32_t)bytes : piece;
		struct buf *buf = buf_alloc(len);
		if (seed)
			test_fill(buf->data, len, seed + p->n);
		else
			memset(buf->data, 0xee, len);
		p->v[p->n++] = (struct slice){.buf = buf, .off = 0, .len = len};
		bytes -= len;
	}
}
static inline void payload_free(struct payload *p)
{
	slices_put(p->v, p->n);
	p->n = 0;
}
static inline uint64_t payload_sum(const struct payload *p)
{
	uint64_t sum = 0;
	uint8_t *flat = malloc(p->bytes);
	slices_copy_out(p->v, p->n, 0, flat, p->bytes);
	sum = checksum64(flat, p->bytes, 0);
	free(flat);
	return sum;
}

static inline void raid_test_run(void (*body)(void *), void *arg)
{
	struct core_config config = {.reactors = 2, .arena_bytes = 64u << 20, .fibers = 128};
	struct error err = {0};
	test_failure[0] = 0;
	if (core_main(&config, body, arg, &err))
		fail_msg("core: %s", err.text);
	if (test_failure[0])
		fail_msg("%s", test_failure);
}

#endif
