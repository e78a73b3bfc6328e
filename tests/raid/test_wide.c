/*
 * Arrays of more drives than one group may have: two groups of 64, many small groups, and so many that the superblock
 * is longer than the least one. Every group loses what it may, the array is restarted without them, and they are
 * brought up to date by what they missed; others come back stale, twice, or as members of another array; an empty drive
 * and a spare take over. Also: an array of version 1 of the format goes on as it is.
 */
#include "tests/raid/raid_test.h"

#define BYTES (4ull << 20)
#define STRIP 16384u
#define SPARE_DRIVES 3u /* behind the members: a spare of the array, an empty one, a copy of the last member */
#define LOG_BLOCKS 64u

struct shape {
	unsigned level, drives, groups;
};

struct wide {
	struct shape shape;
	struct raid_test t;
	struct array *array;
	struct volume *v;
	unsigned width, m, stripes;
	uint64_t *content; /* by stripe */
	uint64_t log;
};

static bool stripe_write(struct wide *w, unsigned stripe)
{
	const struct volume_geometry *g = volume_geometry(w->v);
	struct payload p;
	w->content[stripe] += 1000;
	payload_make(&p, volume_stripe_blocks(g) * BLOCK_BYTES, STRIP, w->content[stripe]);
	int r = volume_write_rows(w->v, stripe, 0, g->strip_blocks, p.v, p.n, stripe % 2 ? VOLUME_DURABLE : 0);
	payload_free(&p);
	return r == 0;
}

static bool log_write(struct wide *w)
{
	struct payload p;
	payload_make(&p, LOG_BLOCKS * BLOCK_BYTES, 65536, ++w->log);
	int r = volume_log_write(w->v, 0, p.v, p.n);
	payload_free(&p);
	return r == 0;
}

static bool write_all(struct wide *w)
{
	bool good = true;
	for (unsigned s = 0; s < w->stripes; s++)
		good = good && stripe_write(w, s);
	return good && log_write(w) && volume_flush(w->v) == 0;
}

static bool read_all(struct wide *w)
{
	uint64_t blocks = volume_stripe_blocks(volume_geometry(w->v));
	bool good = true;
	struct payload p, q;
	for (unsigned s = 0; s < w->stripes && good; s++) {
		payload_make(&p, blocks * BLOCK_BYTES, STRIP, w->content[s]);
		payload_make(&q, blocks * BLOCK_BYTES, STRIP, 0);
		good = volume_read(w->v, s * blocks, q.v, q.n) == 0 && payload_sum(&p) == payload_sum(&q);
		payload_free(&p);
		payload_free(&q);
	}
	/* whichever copies of the log are there must be right, and one must be */
	unsigned copies = 0;
	payload_make(&p, LOG_BLOCKS * BLOCK_BYTES, 65536, w->log);
	for (unsigned b = 0; b < LOG_BLOCKS && good; b += 16, copies = 0) {
		for (unsigned copy = 0; copy < volume_geometry(w->v)->log_copies && good; copy++) {
			struct slice slice = {.buf = buf_alloc(65536), .off = 0, .len = 65536};
			int r = volume_log_read(w->v, b, copy, &slice, 1);
			good = r ? r == -EIO : memcmp(slice.buf->data, p.v[b / 16].buf->data, 65536) == 0;
			copies += r == 0;
			buf_put(slice.buf);
		}
		good = good && copies;
	}
	payload_free(&p);
	return good;
}

/* Opens with the drives from FIRST to END, less WITHOUT. */
static int wide_open(struct wide *w, unsigned end, unsigned without, struct error *err)
{
	const char **paths = calloc(w->t.count, sizeof(*paths));
	unsigned n = 0;
	struct raid_scan scan;
	for (unsigned i = 0; i < end; i++)
		if (i != without)
			paths[n++] = w->t.path[i];
	int r = raid_scan(paths, n, &scan, err);
	free((void *)paths);
	if (r)
		return r;
	r = array_open(&scan, "a0", &w->array, err);
	raid_scan_free(&scan);
	if (!r)
		r = volume_open(w->array, "v", &w->v, err);
	if (!r) {
		array_tune(w->array, &(struct rebuild_tuning){.latency_target_ns = 0});
		w->m = volume_geometry(w->v)->m;
		w->width = volume_geometry(w->v)->k + w->m;
	}
	return r;
}

static void wide_close(struct wide *w)
{
	volume_close(w->v);
	array_close(w->array);
	w->v = NULL;
	w->array = NULL;
}

static enum member_state state_of(struct wide *w, unsigned slot)
{
	struct array_status *s = malloc(sizeof(*s));
	array_status(w->array, s);
	enum member_state state = s->member[slot].state;
	free(s);
	return state;
}

static bool rebuilt_in_part(struct wide *w)
{
	struct array_status *s = malloc(sizeof(*s));
	array_status(w->array, s);
	bool partial = s->rebuild.partial && s->rebuild.lost_rows == 0;
	free(s);
	return partial;
}

/* The I-th loss of GROUP in round ROUND: other members each round, the group's last one in the first. */
static unsigned lost_slot(const struct wide *w, unsigned group, unsigned i, unsigned round)
{
	return (group + 1) * w->width - 1 - (i + round * w->m) % w->width;
}

static bool lose_all(struct wide *w, unsigned round)
{
	struct error err = {0};
	bool good = true;
	for (unsigned g = 0; g < w->shape.groups && good; g++)
		for (unsigned i = 0; i < w->m && good; i++)
			good = array_fail(w->array, lost_slot(w, g, i, round), &err) == 0;
	/* and nobody bears one more */
	return good && array_fail(w->array, lost_slot(w, w->shape.groups - 1, w->m, round), &err) == -EBUSY;
}

static bool return_all(struct wide *w, unsigned round)
{
	struct error err = {0};
	bool good = true;
	unsigned slot;
	for (unsigned g = 0; g < w->shape.groups && good; g++)
		for (unsigned i = 0; i < w->m && good; i++) {
			unsigned at = lost_slot(w, g, i, round);
			good = array_add(w->array, w->t.path[at], NULL, &slot, &err) == 0 && slot == at;
		}
	return good && array_keep(w->array, &err) == 0 && array_settled(w->array, NULL, NULL) == 0;
}

static int wide_make(struct wide *w, struct error *err)
{
	raid_test_drives(&w->t, w->shape.drives + SPARE_DRIVES, BYTES, "");
	struct array_create create = {
		.name = "a0",
		.level = w->shape.level,
		.groups = w->shape.groups,
		.strip_bytes = STRIP,
		.drives = w->t.paths,
		.count = w->shape.drives,
	};
	w->stripes = 2 * w->shape.groups + 1;
	w->content = calloc(w->stripes, sizeof(*w->content));
	for (unsigned s = 0; s < w->stripes; s++)
		w->content[s] = 1 + 64 * s;
	int r = array_create(&create, err);
	struct raid_scan scan;
	if (!r)
		r = raid_scan(w->t.paths, w->shape.drives, &scan, err);
	if (r)
		return r;
	r = array_open(&scan, "a0", &w->array, err);
	raid_scan_free(&scan);
	if (r)
		return r;
	r = volume_create(w->array, "v", 0, err);
	array_close(w->array);
	return r;
}

/* All groups lose members, it is restarted without them, and they come back. */
static void losses_test(struct wide *w)
{
	struct error err = {0};
	CHECK_OK(wide_open(w, w->shape.drives, UINT32_MAX, &err), err);
	CHECK(write_all(w) && read_all(w));
	CHECK(lose_all(w, 0));
	CHECK(read_all(w));
	/* each group's missing ones lack something, and the last stripe's only a part */
	CHECK(write_all(w) && read_all(w));
	wide_close(w);
	CHECK_OK(wide_open(w, w->shape.drives, UINT32_MAX, &err), err);
	CHECK(state_of(w, w->shape.drives - 1) == MEMBER_FAILED && read_all(w));
	CHECK(stripe_write(w, w->stripes - 1) && stripe_write(w, 0));
	CHECK(return_all(w, 0));
	CHECK(rebuilt_in_part(w));
	/* what was rebuilt is relied on now */
	CHECK(lose_all(w, 1));
	CHECK(read_all(w));
	CHECK(return_all(w, 1) && read_all(w));
	wide_close(w);
}

static void file_copy(const char *from, const char *to)
{
	uint8_t *all = malloc(BYTES);
	int a = open(from, O_RDONLY | O_CLOEXEC), b = open(to, O_WRONLY | O_CLOEXEC);
	if (a < 0 || b < 0 || pread(a, all, BYTES, 0) != (ssize_t)BYTES || pwrite(b, all, BYTES, 0) != (ssize_t)BYTES)
		abort();
	close(a);
	close(b);
	free(all);
}

/* The last member is stale, is there twice, is one of another array, and is another drive. */
static void strangers_test(struct wide *w)
{
	struct error err = {0};
	unsigned last = w->shape.drives - 1, slot;
	const char *copy = w->t.path[last + 3];
	CHECK_OK(wide_open(w, last, UINT32_MAX, &err), err);
	CHECK(state_of(w, last) == MEMBER_MISSING);
	CHECK(write_all(w));
	wide_close(w);
	CHECK_OK(wide_open(w, last + 1, UINT32_MAX, &err), err);
	CHECK(state_of(w, last) == MEMBER_STALE && read_all(w));
	CHECK_OK(array_add(w->array, w->t.path[last], NULL, &slot, &err), err);
	CHECK(slot == last && array_keep(w->array, &err) == 0 && array_settled(w->array, NULL, NULL) == 0);
	CHECK(rebuilt_in_part(w) && read_all(w));
	wide_close(w);
	/* an equal copy: nobody knows which of the two is right */
	file_copy(w->t.path[last], copy);
	CHECK_OK(wide_open(w, w->t.count, UINT32_MAX, &err), err);
	CHECK(state_of(w, last) == MEMBER_MISSING && read_all(w));
	/* an empty drive takes its slot, whole; a spare waits behind the members */
	struct member_add how = {.spare = true, .slot = -1};
	CHECK_OK(array_add(w->array, w->t.path[last + 1], NULL, &slot, &err), err);
	CHECK(slot == last);
	CHECK_OK(array_add(w->array, w->t.path[last + 2], &how, &slot, &err), err);
	CHECK(slot == last + 1 && state_of(w, slot) == MEMBER_SPARE);
	CHECK(array_keep(w->array, &err) == 0 && array_settled(w->array, NULL, NULL) == 0);
	CHECK(!rebuilt_in_part(w) && state_of(w, last) == MEMBER_ACTIVE);
	/* and the spare takes over from the first one */
	CHECK_OK(array_fail(w->array, 0, &err), err);
	CHECK(array_settled(w->array, NULL, NULL) == 0 && state_of(w, 0) == MEMBER_ACTIVE);
	CHECK(read_all(w));
	wide_close(w);
	/* the drives that have left are foreign now */
	CHECK_OK(wide_open(w, w->t.count, UINT32_MAX, &err), err);
	CHECK(state_of(w, 0) == MEMBER_ACTIVE && state_of(w, last) == MEMBER_ACTIVE);
	CHECK(read_all(w));
	wide_close(w);
}

static void wide_body(void *arg)
{
	struct wide w = {.shape = *(const struct shape *)arg};
	struct error err = {0};
	CHECK_OK(wide_make(&w, &err), err);
	losses_test(&w);
	if (!test_failure[0])
		strangers_test(&w);
	raid_test_remove(&w.t);
	free(w.content);
}

/* ---- version 1 ---- */

/* As the array was made when there was no other version. */
static bool version_lower(const char *path)
{
	struct super_found *found = malloc(sizeof(*found));
	struct drive *drive;
	enum super_verdict verdict;
	struct error err = {0};
	char why[160];
	bool good = drive_open(path, true, &drive, &err) == 0 &&
		    super_read(drive, found, &verdict, why, sizeof(why)) == 0 && verdict == SUPER_VALID;
	found->config.version = 1;
	for (unsigned copy = 0; copy < 2 && good; copy++) {
		struct buf *buf = buf_alloc(SUPER_BYTES_LEAST);
		super_encode(&found->config, found->slot, copy, drive->bytes, buf->data);
		good = drive_io(drive, DRIVE_OP_WRITE, super_offset(drive->bytes, copy), buf, SUPER_BYTES_LEAST,
			       true) == 0;
		buf_put(buf);
	}
	drive_close(drive);
	free(found);
	return good;
}

/* How many maps of missed rows lie on the drives of the FIRST group, and of the others. */
static unsigned maps_count(const struct wide *w, unsigned from, unsigned to, unsigned place)
{
	unsigned n = 0;
	for (unsigned i = from; i < to; i++) {
		struct format_missed map[2];
		int fd = open(w->t.path[i], O_RDONLY | O_CLOEXEC);
		if (pread(fd, map, sizeof(map), MISSED_OFFSET + 2 * place * MISSED_BYTES) != (ssize_t)sizeof(map))
			abort();
		close(fd);
		n += memcmp(map[0].magic, MISSED_MAGIC, 8) == 0 || memcmp(map[1].magic, MISSED_MAGIC, 8) == 0;
	}
	return n;
}

static void version_body(void *arg)
{
	uint32_t version = *(const uint32_t *)arg;
	struct wide w = {.shape = {50, 6, 2}};
	struct error err = {0};
	CHECK_OK(wide_make(&w, &err), err);
	for (unsigned i = 0; i < 6 && version == 1; i++)
		CHECK(version_lower(w.t.path[i]));
	CHECK_OK(wide_open(&w, 6, UINT32_MAX, &err), err);
	CHECK(w.array->config.version == version && write_all(&w));
	CHECK_OK(array_fail(w.array, 4, &err), err);
	CHECK(write_all(&w));
	wide_close(&w);
	/* version 1: with all the others, by its slot; else with its group, by its number there */
	CHECK(maps_count(&w, 0, 3, 4) == (version == 1 ? 3 : 0));
	CHECK(maps_count(&w, 3, 6, 4) == (version == 1 ? 2 : 0));
	CHECK(maps_count(&w, 0, 3, 1) == 0);
	CHECK(maps_count(&w, 3, 6, 1) == (version == 1 ? 0 : 2));
	CHECK_OK(wide_open(&w, 6, UINT32_MAX, &err), err);
	CHECK(w.array->config.version == version && read_all(&w));
	CHECK_OK(array_add(w.array, w.t.path[4], NULL, NULL, &err), err);
	CHECK(array_keep(w.array, &err) == 0 && array_settled(w.array, NULL, NULL) == 0);
	CHECK(rebuilt_in_part(&w) && read_all(&w));
	CHECK_OK(array_fail(w.array, 5, &err), err);
	CHECK(read_all(&w));
	wide_close(&w);
	char *text = NULL, want[32];
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	CHECK(drive_examine(w.t.path[0], f, &err) == 0);
	fclose(f);
	snprintf(want, sizeof(want), "format     version %u,", version);
	CHECK(strstr(text, want));
	free(text);
	raid_test_remove(&w.t);
	free(w.content);
}

static void test_versions(void **state)
{
	(void)state;
	for (uint32_t version = 1; version <= SUPER_VERSION; version++)
		raid_test_run(version_body, &version);
}

/* ---- too many ---- */

static void bounds_body(void *arg)
{
	struct error err = {0};
	const char *paths[RAID_DRIVES_MAX + 2];
	(void)arg;
	for (unsigned i = 0; i < RAID_DRIVES_MAX + 2; i++)
		paths[i] = "/nonexistent";
	struct array_create create = {.name = "a0", .level = 10, .drives = paths, .count = RAID_DRIVES_MAX + 2};
	CHECK(array_create(&create, &err) == -EINVAL && strstr(err.text, "938 drives, more than the 936 of an array"));
	create.level = 6;
	create.count = 65;
	CHECK(array_create(&create, &err) == -EINVAL &&
		strstr(err.text, "a group of 65 drives, more than 64; levels 10, 50 and 60 take more drives"));
	create.level = 60;
	create.count = 130;
	create.groups = 2;
	CHECK(array_create(&create, &err) == -EINVAL && strstr(err.text, "make more groups"));
}

static void test_bounds(void **state)
{
	(void)state;
	raid_test_run(bounds_body, NULL);
}

#define WIDE_TEST(name, ...)                                                                                           \
	static void test_##name(void **state)                                                                          \
	{                                                                                                              \
		static struct shape shape = {__VA_ARGS__};                                                             \
		(void)state;                                                                                           \
		raid_test_run(wide_body, &shape);                                                                      \
	}
WIDE_TEST(two_of_64, 60, 128, 2)
WIDE_TEST(many_of_3, 50, 66, 22)
WIDE_TEST(pairs, 10, 66, 33)
WIDE_TEST(long_superblock, 50, 171, 3)

int main(void)
{
	atomic_store(&log_threshold, -1);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bounds),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_many_of_3),
		cmocka_unit_test(test_two_of_64),
		cmocka_unit_test(test_pairs),
		cmocka_unit_test(test_long_superblock),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
