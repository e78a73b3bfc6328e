/*
 * Making arrays and putting them together again: what is refused and with which words, members that are
 * missing, stale, foreign, doubled or damaged, claims, volumes.
 */
#include "tests/raid/raid_test.h"

#define EXPECT(call, code, words)                                                                                      \
	do {                                                                                                           \
		struct error expect_err_ = {0};                                                                        \
		struct error *err_ = &expect_err_;                                                                     \
		int expect_r_ = (call);                                                                                \
		if (expect_r_ != (code) || !strstr(expect_err_.text, words)) {                                         \
			if (!test_failure[0])                                                                          \
				snprintf(test_failure, sizeof(test_failure), "%s:%d: %s gave %d \"%s\"", __FILE__,     \
					__LINE__, #call, expect_r_, expect_err_.text);                                 \
			return;                                                                                        \
		}                                                                                                      \
	} while (0)

static void bytes_write(const char *path, off_t at, const void *data, size_t n)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || pwrite(fd, data, n, at) != (ssize_t)n)
		abort();
	close(fd);
}

static void file_copy(const char *from, const char *to)
{
	static uint8_t piece[1 << 20];
	int a = open(from, O_RDONLY | O_CLOEXEC), b = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (a < 0 || b < 0)
		abort();
	for (ssize_t n; (n = read(a, piece, sizeof(piece))) > 0;)
		if (write(b, piece, (size_t)n) != n)
			abort();
	close(a);
	close(b);
}

/* Of all that is in it. */
static uint64_t file_sum(const char *path)
{
	static uint8_t piece[1 << 20];
	uint64_t sum = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		abort();
	for (ssize_t n; (n = read(fd, piece, sizeof(piece))) > 0;)
		sum = checksum64(piece, (size_t)n, sum);
	close(fd);
	return sum;
}

static void row_write(struct volume *v, uint64_t seed, int *result)
{
	const struct volume_geometry *g = volume_geometry(v);
	struct payload p;
	payload_make(&p, (uint64_t)g->k * BLOCK_BYTES, BLOCK_BYTES, seed);
	*result = volume_write_rows(v, 0, 0, 1, p.v, p.n, VOLUME_DURABLE);
	payload_free(&p);
}

static bool row_same(struct volume *v, uint64_t seed)
{
	const struct volume_geometry *g = volume_geometry(v);
	struct payload p, q;
	bool same = true;
	payload_make(&p, (uint64_t)g->k * BLOCK_BYTES, BLOCK_BYTES, seed);
	for (unsigned i = 0; i < g->k && same; i++) {
		payload_make(&q, BLOCK_BYTES, BLOCK_BYTES, 0);
		same = volume_read(v, (uint64_t)i * g->strip_blocks, q.v, 1) == 0 &&
		       memcmp(q.v[0].buf->data, p.v[i].buf->data, BLOCK_BYTES) == 0;
		payload_free(&q);
	}
	payload_free(&p);
	return same;
}

static void create_body(void *arg)
{
	(void)arg;
	struct raid_test t;
	struct error err = {0};
	struct array *array;
	raid_test_drives(&t, 6, TEST_DRIVE_BYTES, "");
	struct array_create c = {.name = "a0", .level = 6, .drives = t.paths, .count = 4};
	c.name = "a/0";
	EXPECT(array_create(&c, err_), -EINVAL, "not a name");
	c.name = "a0";
	c.level = 4;
	EXPECT(array_create(&c, err_), -EINVAL, "level 4 is not one of");
	c.level = 5;
	c.groups = 2;
	EXPECT(array_create(&c, err_), -EINVAL, "level 5 has one group");
	c.groups = 0;
	c.level = 6;
	c.count = 3;
	EXPECT(array_create(&c, err_), -EINVAL, "at least 4 drives, 3 given");
	c.level = 1;
	c.count = 1;
	EXPECT(array_create(&c, err_), -EINVAL, "at least 2 drives");
	c.level = 6;
	c.count = 4;
	c.strip_bytes = 48 * 1024;
	EXPECT(array_create(&c, err_), -EINVAL, "strip of 49152");
	c.strip_bytes = 0;
	/* one drive twice, by another name */
	char link_path[220];
	snprintf(link_path, sizeof(link_path), "%s/again", t.dir);
	CHECK(link(t.path[1], link_path) == 0);
	const char *twice[4] = {t.path[0], t.path[1], t.path[2], link_path};
	c.drives = twice;
	EXPECT(array_create(&c, err_), -EEXIST, "again: is the same drive as");
	unlink(link_path);
	c.drives = t.paths;
	/* something of others on one of them: nothing is written to any */
	bytes_write(t.path[2], 1080, "\x53\xef", 2);
	EXPECT(array_create(&c, err_), -EEXIST, "d02: holds something else: ext2 file system");
	struct raid_scan scan;
	CHECK_OK(raid_scan(t.paths, 6, &scan, &err), err);
	CHECK(scan.count == 6 && scan.drive[0].content == DRIVE_EMPTY && scan.drive[2].content == DRIVE_FOREIGN);
	raid_scan_free(&scan);
	c.force = true;
	c.spares = t.paths + 4;
	c.spare_count = 1;
	CHECK_OK(array_create(&c, &err), err);
	c.force = false;
	EXPECT(array_create(&c, err_), -EEXIST, "d00: holds member 0 of array a0");
	/* the same name again on other drives, as on a machine that got another one's drives */
	CHECK_OK(raid_scan(t.paths, 6, &scan, &err), err);
	CHECK(scan.drive[4].content == DRIVE_MEMBER && strcmp(scan.drive[4].holds, "spare of array a0") == 0);
	CHECK(scan.drive[5].content == DRIVE_EMPTY);
	CHECK_OK(array_open(&scan, "a0", &array, &err), err);
	/* claimed: neither again, nor wiped, nor made new, nor by force */
	struct array *other;
	EXPECT(array_open(&scan, "a0", &other, err_), -EBUSY, "in use");
	EXPECT(array_destroy(&scan, "a0", err_), -EBUSY, "in use");
	c.force = true;
	EXPECT(array_create(&c, err_), -EBUSY, "in use");
	/* but scanning goes on */
	raid_scan_free(&scan);
	CHECK_OK(raid_scan(t.paths, 6, &scan, &err), err);
	CHECK(scan.drive[0].content == DRIVE_MEMBER);
	struct array_status *s = calloc(1, sizeof(*s));
	array_status(array, s);
	bool ok = s->level == 6 && s->k == 2 && s->m == 2 && s->members == 4 && !s->degraded &&
		  s->member[3].state == MEMBER_ACTIVE && s->member[4].state == MEMBER_SPARE &&
		  s->free_bytes == s->data_bytes && s->data_bytes > (40u << 20);
	free(s);
	CHECK(ok);
	array_close(array);
	EXPECT(array_open(&scan, "a1", &other, err_), -ENOENT, "none of the 6 drives");
	CHECK_OK(array_destroy(&scan, "a0", &err), err);
	raid_scan_free(&scan);
	CHECK_OK(raid_scan(t.paths, 6, &scan, &err), err);
	for (unsigned i = 0; i < 6; i++)
		CHECK(scan.drive[i].content == DRIVE_EMPTY);
	raid_scan_free(&scan);
	/* too small; not a drive; not there */
	CHECK(truncate(t.path[0], 2 << 20) == 0);
	c.force = false;
	EXPECT(array_create(&c, err_), -ENOSPC, "d00: too small");
	twice[0] = "/dev/null";
	c.drives = twice;
	c.spare_count = 0;
	EXPECT(array_create(&c, err_), -ENOTBLK, "/dev/null: a character device, but not of an NVMe namespace");
	twice[0] = "/nonexistent";
	EXPECT(array_create(&c, err_), -ENOENT, "/nonexistent: No such file");
	raid_test_remove(&t);
}

static void test_create(void **state)
{
	(void)state;
	raid_test_run(create_body, NULL);
}

static struct array *open_some(struct raid_test *t, uint64_t without, int expect, const char *text)
{
	const char *paths[TEST_DRIVES_MAX];
	unsigned n = 0;
	struct raid_scan scan;
	struct error err = {0};
	struct array *array = NULL;
	for (unsigned i = 0; i < t->count; i++)
		if (!(without & 1ull << i))
			paths[n++] = t->path[i];
	int r = raid_scan(paths, n, &scan, &err);
	if (!r)
		r = array_open(&scan, "a0", &array, &err);
	raid_scan_free(&scan);
	if ((r != expect || (text && !strstr(err.text, text))) && !test_failure[0])
		snprintf(test_failure, sizeof(test_failure), "open without %llx: %d \"%s\"",
			(unsigned long long)without, r, err.text);
	return array;
}

static enum member_state member_state_of(struct array *array, unsigned slot)
{
	struct array_status *s = calloc(1, sizeof(*s));
	array_status(array, s);
	enum member_state state = s->member[slot].state;
	free(s);
	return state;
}

/* A volume "v" with a row. */
static void volume_make(struct raid_test *t)
{
	struct error err = {0};
	struct volume *v;
	int r;
	struct array *array = open_some(t, 0, 0, NULL);
	CHECK(array);
	CHECK_OK(volume_create(array, "v", 0, &err), err);
	CHECK_OK(volume_open(array, "v", &v, &err), err);
	row_write(v, 1, &r);
	CHECK(r == 0);
	volume_close(v);
	array_close(array);
}

static void missing_body(void *arg)
{
	(void)arg;
	struct raid_test t;
	struct error err = {0};
	struct array *array;
	struct volume *v;
	int r;
	raid_test_drives(&t, 5, TEST_DRIVE_BYTES, "");
	CHECK_OK(raid_test_create(&t, 6, 0, &err), err);
	volume_make(&t);
	CHECK(!test_failure[0]);
	/* three of five are too few, and looking does no harm */
	CHECK(!open_some(&t, 0x7, -EIO, "member 0 missing; member 1 missing; member 2 missing"));
	CHECK(!test_failure[0]);
	/* two missing: works, and they are stale afterwards */
	array = open_some(&t, 0x3, 0, NULL);
	CHECK(array);
	CHECK_OK(volume_open(array, "v", &v, &err), err);
	CHECK(row_same(v, 1));
	row_write(v, 2, &r);
	CHECK(r == 0);
	volume_close(v);
	array_close(array);
	array = open_some(&t, 0, 0, NULL);
	CHECK(array);
	CHECK(member_state_of(array, 0) == MEMBER_STALE && member_state_of(array, 1) == MEMBER_STALE);
	CHECK(member_state_of(array, 2) == MEMBER_ACTIVE);
	CHECK_OK(volume_open(array, "v", &v, &err), err);
	CHECK(row_same(v, 2));
	volume_close(v);
	array_close(array);
	/* the stale ones do not help when another is gone */
	CHECK(!open_some(&t, 0x4, -EIO, "stale"));
	/* nor can they be opened alone as they are fewer */
	CHECK(!open_some(&t, 0x1c, -EIO, "missing"));
	CHECK(!test_failure[0]);
	raid_test_remove(&t);
}

static void test_missing_and_stale(void **state)
{
	(void)state;
	raid_test_run(missing_body, NULL);
}

/* Who looks before all drives are there does no harm to those that come later. */
static void look_body(void *arg)
{
	(void)arg;
	struct raid_test t;
	struct error err = {0};
	struct array *array;
	struct raid_scan scan;
	struct volume *v;
	uint64_t before[4];
	raid_test_drives(&t, 4, TEST_DRIVE_BYTES, "");
	CHECK_OK(raid_test_create(&t, 6, 0, &err), err);
	volume_make(&t);
	CHECK(!test_failure[0]);
	for (unsigned i = 0; i < 4; i++)
		before[i] = file_sum(t.path[i]);
	CHECK_OK(raid_scan(t.paths + 1, 3, &scan, &err), err);
	CHECK_OK(array_look(&scan, "a0", &array, &err), err);
	raid_scan_free(&scan);
	CHECK(member_state_of(array, 0) == MEMBER_MISSING && member_state_of(array, 1) == MEMBER_ACTIVE);
	CHECK_OK(volume_open(array, "v", &v, &err), err);
	CHECK(row_same(v, 1));
	volume_close(v);
	EXPECT(volume_destroy(array, "v", err_), -EROFS, "open for reading only");
	array_close(array);
	for (unsigned i = 0; i < 4; i++)
		CHECK(file_sum(t.path[i]) == before[i]);
	array = open_some(&t, 0, 0, NULL);
	CHECK(array);
	for (unsigned i = 0; i < 4; i++)
		CHECK(member_state_of(array, i) == MEMBER_ACTIVE);
	array_close(array);
	CHECK(!test_failure[0]);
	raid_test_remove(&t);
}

static void test_look(void **state)
{
	(void)state;
	raid_test_run(look_body, NULL);
}

static void split_body(void *arg)
{
	(void)arg;
	struct raid_test t;
	struct error err = {0};
	struct array *array;
	raid_test_drives(&t, 4, TEST_DRIVE_BYTES, "");
	CHECK_OK(raid_test_create(&t, 6, 0, &err), err);
	/* each half goes on without the other, equally far */
	array = open_some(&t, 0x3, 0, NULL);
	CHECK(array);
	array_close(array);
	array = open_some(&t, 0xc, 0, NULL);
	CHECK(array);
	array_close(array);
	CHECK(!open_some(&t, 0, -EUCLEAN, "went on without each other"));
	/* one side further: it wins, the other is stale */
	array = open_some(&t, 0xc, 0, NULL);
	CHECK(array);
	array_close(array);
	array = open_some(&t, 0, 0, NULL);
	CHECK(array);
	CHECK(member_state_of(array, 0) == MEMBER_ACTIVE && member_state_of(array, 2) == MEMBER_STALE);
	array_close(array);
	CHECK(!test_failure[0]);
	raid_test_remove(&t);
}

static void test_split(void **state)
{
	(void)state;
	raid_test_run(split_body, NULL);
}

static void doubles_body(void *arg)
{
	(void)arg;
	struct raid_test t, u;
	struct error err = {0};
	struct array *array;
	raid_test_drives(&t, 5, TEST_DRIVE_BYTES, "");
	t.count = 4;
	CHECK_OK(raid_test_create(&t, 6, 0, &err), err);
	/* an equal copy of member 1: neither is used, the array opens without */
	file_copy(t.path[1], t.path[4]);
	t.count = 5;
	array = open_some(&t, 0, 0, NULL);
	CHECK(array);
	CHECK(member_state_of(array, 1) == MEMBER_MISSING && member_state_of(array, 0) == MEMBER_ACTIVE);
	array_close(array);
	/* an old copy of member 2 beside the member itself: the newer is used */
	file_copy(t.path[2], t.path[4]);
	array = open_some(&t, 0x10, 0, NULL);
	CHECK(array);
	array_close(array);
	array = open_some(&t, 0, 0, NULL);
	CHECK(array);
	CHECK(member_state_of(array, 2) == MEMBER_ACTIVE);
	array_close(array);
	/* the old copy alone is stale: not below the floor by one event only */
	array = open_some(&t, 0x4, 0, NULL);
	CHECK(array);
	CHECK(member_state_of(array, 2) == MEMBER_STALE);
	array_close(array);
	CHECK(!test_failure[0]);
	/* two arrays of one name are told apart by UUID only */
	raid_test_drives(&u, 2, TEST_DRIVE_BYTES, "");
	CHECK_OK(raid_test_create(&u, 1, 0, &err), err);
	const char *all[] = {t.path[0], t.path[3], u.path[0], u.path[1]};
	struct raid_scan scan;
	CHECK_OK(raid_scan(all, 4, &scan, &err), err);
	EXPECT(array_open(&scan, "a0", &array, err_), -EEXIST, "two arrays have this name");
	char uuid[37];
	uuid_format(&scan.drive[2].array, uuid);
	CHECK_OK(array_open(&scan, uuid, &array, &err), err);
	array_close(array);
	raid_scan_free(&scan);
	raid_test_remove(&t);
	raid_test_remove(&u);
}

static void test_doubles(void **state)
{
	(void)state;
	raid_test_run(doubles_body, NULL);
}

static void damage_body(void *arg)
{
	(void)arg;
	struct raid_test t;
	struct error err = {0};
	struct array *array;
	static const uint8_t junk[SUPER_BYTES_LEAST] = "FurrowAr junk";
	raid_test_drives(&t, 4, TEST_DRIVE_BYTES, "");
	CHECK_OK(raid_test_create(&t, 6, 0, &err), err);
	/* one copy is enough */
	bytes_write(t.path[0], SUPER_OFFSET_0, junk, sizeof(junk));
	bytes_write(t.path[1], (off_t)super_offset(TEST_DRIVE_BYTES, 1), junk, sizeof(junk));
	array = open_some(&t, 0, 0, NULL);
	CHECK(array);
	CHECK(member_state_of(array, 0) == MEMBER_ACTIVE && member_state_of(array, 1) == MEMBER_ACTIVE);
	array_close(array);
	/* both damaged: the drive says so, and the array opens without it */
	bytes_write(t.path[0], SUPER_OFFSET_0, junk, sizeof(junk));
	bytes_write(t.path[0], (off_t)super_offset(TEST_DRIVE_BYTES, 1), junk, sizeof(junk));
	struct raid_scan scan;
	CHECK_OK(raid_scan(t.paths, 4, &scan, &err), err);
	CHECK(scan.drive[0].content == DRIVE_DAMAGED);
	raid_scan_free(&scan);
	array = open_some(&t, 0, 0, NULL);
	CHECK(array);
	CHECK(member_state_of(array, 0) == MEMBER_MISSING);
	array_close(array);
	/* a member that was cut short is no member */
	CHECK(truncate(t.path[3], 30 << 20) == 0);
	array = open_some(&t, 0, 0, NULL);
	CHECK(array);
	CHECK(member_state_of(array, 3) == MEMBER_MISSING);
	array_close(array);
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	CHECK_OK(drive_examine(t.path[1], out, &err), err);
	fclose(out);
	bool ok = strstr(text, "copy 1 at") && strstr(text, "1 x 2+2") && strstr(text, "slot 0     ") &&
		  strstr(text, "missing");
	free(text);
	CHECK(ok);
	CHECK(!test_failure[0]);
	raid_test_remove(&t);
}

static void test_damage(void **state)
{
	(void)state;
	raid_test_run(damage_body, NULL);
}

static void volumes_body(void *arg)
{
	(void)arg;
	struct raid_test t;
	struct error err = {0};
	struct array *array;
	struct volume *a, *b, *c;
	struct volume_info list[RAID_VOLUMES_MAX];
	int r;
	raid_test_drives(&t, 4, TEST_DRIVE_BYTES, "");
	CHECK_OK(raid_test_create(&t, 6, 16384, &err), err);
	array = open_some(&t, 0, 0, NULL);
	CHECK(array);
	EXPECT(volume_create(array, "", 0, err_), -EINVAL, "not a name");
	EXPECT(volume_create(array, "x", 1ull << 50, err_), -ENOSPC, "wanted");
	CHECK_OK(volume_create(array, "a", 10 << 20, &err), err);
	CHECK_OK(volume_create(array, "b", 5 << 20, &err), err);
	EXPECT(volume_create(array, "b", 5 << 20, err_), -EEXIST, "a0/b: exists");
	CHECK_OK(volume_create(array, "c", 0, &err), err);
	EXPECT(volume_create(array, "d", 1, err_), -ENOSPC, "wanted");
	CHECK_OK(volume_open(array, "a", &a, &err), err);
	CHECK_OK(volume_open(array, "b", &b, &err), err);
	CHECK_OK(volume_open(array, "c", &c, &err), err);
	EXPECT(volume_open(array, "a", &(struct volume *){NULL}, err_), -EBUSY, "in use");
	EXPECT(volume_open(array, "z", &(struct volume *){NULL}, err_), -ENOENT, "no such volume");
	EXPECT(volume_destroy(array, "a", err_), -EBUSY, "in use");
	CHECK(strcmp(volume_name(b), "a0/b") == 0);
	CHECK(volume_geometry(a)->stripes == (10u << 20) / 32768 && volume_geometry(b)->stripes == (5u << 20) / 32768);
	/* they do not see each other, in rows and in logs */
	row_write(a, 1, &r);
	CHECK(r == 0);
	row_write(b, 2, &r);
	CHECK(r == 0);
	row_write(c, 3, &r);
	CHECK(r == 0);
	struct volume *all[3] = {a, b, c};
	for (unsigned i = 0; i < 3; i++) {
		struct payload p;
		payload_make(&p, BLOCK_BYTES, BLOCK_BYTES, 50 + i);
		CHECK(volume_log_write(all[i], 0, p.v, 1) == 0);
		CHECK(volume_log_write(all[i], volume_geometry(all[i])->log_blocks - 1, p.v, 1) == 0);
		CHECK(volume_log_write(all[i], volume_geometry(all[i])->log_blocks, p.v, 1) == -EINVAL);
		CHECK(volume_read(all[i],
			      volume_geometry(all[i])->stripes * volume_stripe_blocks(volume_geometry(all[i])), p.v,
			      1) == -EINVAL);
		payload_free(&p);
	}
	for (unsigned i = 0; i < 3; i++) {
		struct payload p, q;
		payload_make(&p, BLOCK_BYTES, BLOCK_BYTES, 50 + i);
		payload_make(&q, BLOCK_BYTES, BLOCK_BYTES, 0);
		CHECK(volume_log_read(all[i], 0, 1, q.v, 1) == 0 && payload_sum(&p) == payload_sum(&q));
		CHECK(volume_log_read(all[i], volume_geometry(all[i])->log_blocks - 1, 2, q.v, 1) == 0 &&
			payload_sum(&p) == payload_sum(&q));
		CHECK(volume_log_read(all[i], 0, 3, q.v, 1) == -EINVAL);
		payload_free(&p);
		payload_free(&q);
	}
	CHECK(row_same(a, 1) && row_same(b, 2) && row_same(c, 3));
	for (unsigned i = 0; i < 3; i++)
		volume_close(all[i]);
	/* a gap is filled again; the table survives */
	CHECK_OK(volume_destroy(array, "b", &err), err);
	EXPECT(volume_destroy(array, "b", err_), -ENOENT, "no such volume");
	CHECK_OK(volume_create(array, "e", 0, &err), err);
	array_close(array);
	array = open_some(&t, 0, 0, NULL);
	CHECK(array);
	CHECK(volume_list(array, list) == 3);
	CHECK(strcmp(list[0].name, "a") == 0 && strcmp(list[1].name, "e") == 0 && strcmp(list[2].name, "c") == 0);
	CHECK(list[1].bytes == 5 << 20 && !list[1].open);
	CHECK_OK(volume_open(array, "a", &a, &err), err);
	CHECK_OK(volume_open(array, "c", &c, &err), err);
	CHECK(row_same(a, 1) && row_same(c, 3));
	volume_close(a);
	volume_close(c);
	array_close(array);
	raid_test_remove(&t);
}

static void test_volumes(void **state)
{
	(void)state;
	raid_test_run(volumes_body, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create),
		cmocka_unit_test(test_missing_and_stale),
		cmocka_unit_test(test_look),
		cmocka_unit_test(test_split),
		cmocka_unit_test(test_doubles),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_volumes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
