/*
 * Drives by themselves: commands are cut by the drive's limits and arrive whole; neighbours are joined; ranges and
 * lists that do not fit are refused; claims; what scanning refuses; the null drive, and what a whole-stripe write costs
 * on it.
 */
#include "tests/raid/raid_test.h"

static void split_body(void *arg)
{
	(void)arg;
	struct raid_test t;
	struct error err = {0};
	struct drive *d;
	raid_test_drives(&t, 1, 8 << 20, "");
	CHECK_OK(drive_open(t.path[0], true, &d, &err), err);
	static const struct {
		uint32_t transfer, segments, piece;
		uint64_t commands;
	} cases[] = {
		{262144, 32, 65536, 2}, /* 512 KiB in pieces of 64 KiB, 256 KiB each */
		{32768, 32, 65536, 16}, /* MDTS of 32 KiB cuts pieces */
		{262144, 1, 65536, 8},	/* one piece a command */
		{262144, 2, 4096, 64},	/* pieces of 4 KiB, two a command */
		{40960, 32, 8192, 13},	/* a limit that is no power of two */
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct payload w, r;
		struct slice wv[128], rv[128];
		unsigned n = 0;
		/* pieces that do not lie beside each other in memory: every second part of larger buffers */
		payload_make(&w, 1 << 20, 131072, i + 1);
		payload_make(&r, 1 << 20, 131072, 0);
		for (uint64_t off = 0; off + cases[i].piece <= (1 << 20) && n < (512u << 10) / cases[i].piece;
			off += 2ull * cases[i].piece) {
			struct slice s = w.v[off / 131072];
			s.off = (uint32_t)(off % 131072);
			s.len = cases[i].piece;
			wv[n] = s;
			s.buf = r.v[off / 131072].buf;
			rv[n++] = s;
		}
		d->transfer_max = cases[i].transfer;
		d->segments_max = cases[i].segments;
		uint64_t before = drive_stat_sum(d, offsetof(struct drive_stats, writes));
		struct drive_batch batch;
		struct drive_req req;
		struct slice_cursor c = slice_cursor_at(wv, n);
		batch_init(&batch);
		batch_io(&batch, &req, d, DRIVE_OP_WRITE, 1 << 20, 512 << 10, &c, i & 1);
		batch_wait(&batch);
		CHECK(req.error == 0);
		CHECK(drive_stat_sum(d, offsetof(struct drive_stats, writes)) - before == cases[i].commands);
		c = slice_cursor_at(rv, n);
		batch_init(&batch);
		batch_io(&batch, &req, d, DRIVE_OP_READ, 1 << 20, 512 << 10, &c, false);
		batch_wait(&batch);
		CHECK(req.error == 0);
		for (unsigned j = 0; j < n; j++)
			CHECK(memcmp(slice_data(&wv[j]), slice_data(&rv[j]), wv[j].len) == 0);
		payload_free(&w);
		payload_free(&r);
	}
	/* beyond the end; a list that is too short; one that is cut inside a block */
	struct buf *buf = buf_alloc(65536);
	CHECK(drive_io(d, DRIVE_OP_READ, d->bytes - 4096, buf, 8192, false) == -EIO);
	CHECK(drive_io(d, DRIVE_OP_READ, UINT64_MAX - 4095, buf, 8192, false) == -EIO);
	struct slice two[2] = {{buf, 0, 2048}, {buf, 4096, 4096}};
	struct drive_batch batch;
	struct drive_req req;
	for (unsigned n = 0; n < 2; n++) {
		struct slice_cursor c = slice_cursor_at(two, n);
		batch_init(&batch);
		batch_io(&batch, &req, d, DRIVE_OP_READ, 0, 8192, &c, false);
		batch_wait(&batch);
		CHECK(req.error == -EINVAL);
	}
	buf_put(buf);
	/* claims: of the same file once, also under another name; looking is free */
	struct drive *other;
	char name[220];
	snprintf(name, sizeof(name), "%s/link", t.dir);
	CHECK(symlink(t.path[0], name) == 0);
	CHECK(drive_open(t.path[0], true, &other, &err) == -EBUSY);
	CHECK(drive_open(name, true, &other, &err) == -EBUSY);
	CHECK_OK(drive_open(name, false, &other, &err), err);
	CHECK(drive_same(d, other));
	drive_close(other);
	unlink(name);
	drive_close(d);
	CHECK_OK(drive_open(t.path[0], true, &d, &err), err);
	/* a file that was cut below us is an error, not an endless repetition */
	CHECK(truncate(t.path[0], 4096) == 0);
	buf = buf_alloc(65536);
	CHECK(drive_io(d, DRIVE_OP_READ, 65536, buf, 65536, false) == -EIO);
	buf_put(buf);
	drive_close(d);
	CHECK(drive_open(t.dir, false, &d, &err) == -ENOTBLK);
	raid_test_remove(&t);
}

static void test_split_and_claim(void **state)
{
	(void)state;
	raid_test_run(split_body, NULL);
}

#define STRIP 65536u
#define STRIPS 8u

/* Strips of OP at AT, each a request of its own, the odd ones last if SCATTERED; returns how many commands they took.
 */
static uint64_t strips_run(struct drive *d, enum drive_op op, uint64_t at, const struct payload *p, bool scattered,
	const bool *fua, struct drive_req *req)
{
	size_t counter =
		op == DRIVE_OP_READ ? offsetof(struct drive_stats, reads) : offsetof(struct drive_stats, writes);
	uint64_t before = drive_stat_sum(d, counter);
	struct drive_batch batch;
	batch_init(&batch);
	for (unsigned n = 0; n < STRIPS; n++) {
		unsigned i = scattered ? n * 2 % STRIPS + n * 2 / STRIPS : n;
		struct slice_cursor c = slice_cursor_at(&p->v[i], 1);
		batch_io(&batch, &req[i], d, op, at + i * STRIP, STRIP, &c, fua && fua[i]);
	}
	batch_wait(&batch);
	return drive_stat_sum(d, counter) - before;
}

static void join_body(void *arg)
{
	(void)arg;
	struct raid_test t;
	struct error err = {0};
	struct drive *d;
	struct drive_req req[STRIPS];
	struct payload w, r;
	static const bool fua[STRIPS] = {true, true, false, false, false, true, true, true};
	raid_test_drives(&t, 1, 8 << 20, "");
	CHECK_OK(drive_open(t.path[0], true, &d, &err), err);
	/* pieces of memory that do not lie beside each other: the first halves of larger buffers */
	payload_make(&w, STRIPS * 2 * STRIP, 2 * STRIP, 1);
	payload_make(&r, STRIPS * 2 * STRIP, 2 * STRIP, 0);
	CHECK(w.n == STRIPS && r.n == STRIPS);
	for (unsigned i = 0; i < STRIPS; i++)
		w.v[i].len = r.v[i].len = STRIP;

	/* as many as a command may have bytes; none that lies elsewhere, or is to be durable when the other is not */
	CHECK(strips_run(d, DRIVE_OP_WRITE, 1 << 20, &w, false, NULL, req) == 2);
	CHECK(strips_run(d, DRIVE_OP_READ, 1 << 20, &r, false, NULL, req) == 2);
	for (unsigned i = 0; i < STRIPS; i++)
		CHECK(!req[i].error && memcmp(slice_data(&w.v[i]), slice_data(&r.v[i]), STRIP) == 0);
	CHECK(strips_run(d, DRIVE_OP_WRITE, 2 << 20, &w, true, NULL, req) == STRIPS);
	CHECK(strips_run(d, DRIVE_OP_WRITE, 3 << 20, &w, false, fua, req) == 3);
	for (unsigned mib = 2; mib <= 3; mib++) {
		for (unsigned i = 0; i < STRIPS; i++)
			memset(slice_data(&r.v[i]), 0, STRIP);
		CHECK(strips_run(d, DRIVE_OP_READ, (uint64_t)mib << 20, &r, mib == 2, NULL, req) ==
			(mib == 2 ? STRIPS : 2));
		for (unsigned i = 0; i < STRIPS; i++)
			CHECK(!req[i].error && memcmp(slice_data(&w.v[i]), slice_data(&r.v[i]), STRIP) == 0);
	}

	/* when the drive cannot do it, only those fail that it cannot do by themselves either */
	CHECK(truncate(t.path[0], (1 << 20) + 6 * STRIP) == 0);
	strips_run(d, DRIVE_OP_READ, 1 << 20, &r, false, NULL, req);
	for (unsigned i = 0; i < STRIPS; i++)
		CHECK(req[i].error == (i < 6 ? 0 : -EIO));
	payload_free(&w);
	payload_free(&r);
	drive_close(d);
	raid_test_remove(&t);
}

static void test_join(void **state)
{
	(void)state;
	raid_test_run(join_body, NULL);
}

static void null_body(void *arg)
{
	(void)arg;
	struct error err = {0};
	struct array *array;
	struct volume *v;
	static const char *const paths[] = {"null:1G:0", "null:1G:1", "null:1G:2", "null:1G:3", "null:1G:4",
		"null:1G:5", "null:1G:6", "null:1G:7", "null:1G:8", "null:1G:9"};
	struct array_create c = {.name = "n0", .level = 6, .drives = paths, .count = 10};
	CHECK(array_create(&c, &err) == -EPERM);
	raid_null_allow(true);
	CHECK_OK(array_create(&c, &err), err);
	struct raid_scan scan;
	CHECK_OK(raid_scan(paths, 10, &scan, &err), err);
	CHECK_OK(array_open(&scan, "n0", &array, &err), err);
	CHECK(array_create(&c, &err) < 0);
	raid_scan_free(&scan);
	CHECK_OK(volume_create(array, "v", 0, &err), err);
	CHECK_OK(volume_open(array, "v", &v, &err), err);
	const struct volume_geometry *g = volume_geometry(v);
	struct payload p;
	payload_make(&p, volume_stripe_blocks(g) * BLOCK_BYTES, 65536, 1);
	uint64_t t0 = now_ns();
	for (unsigned i = 0; i < 500; i++)
		CHECK(volume_write_rows(v, i % 1000, 0, g->strip_blocks, p.v, p.n, 0) == 0);
	uint64_t t1 = now_ns();
	print_message("whole stripes of 8+2: %.0f MB/s\n", 500.0 * (double)p.bytes / (double)(t1 - t0) * 1e3);
	CHECK(volume_read(v, 0, p.v, p.n) == 0);
	CHECK(p.v[0].buf->data[100] == 0);
	payload_free(&p);
	volume_close(v);
	array_close(array);
	raid_null_allow(false);
}

static void test_null(void **state)
{
	(void)state;
	raid_test_run(null_body, NULL);
}

/* What is no drive is said to be none and is not opened (a watchdog would begin to count); patterns have bounds. */
static void scan_body(void *arg)
{
	(void)arg;
	struct raid_test t;
	struct error err = {0};
	struct drive *d;
	struct raid_scan scan;
	char path[260], pattern[600];
	raid_test_drives(&t, 2, 8 << 20, "");
	const char *const chars[] = {"/dev/null"};
	CHECK(drive_open("/dev/null", false, &d, &err) == -ENOTBLK);
	CHECK(strstr(err.text, "NVMe namespace"));
	CHECK_OK(raid_scan(chars, 1, &scan, &err), err);
	CHECK(scan.count == 1 && scan.drive[0].content == DRIVE_UNREADABLE);
	CHECK(strstr(scan.drive[0].holds, "NVMe namespace") && !strstr(scan.drive[0].holds, "/dev/null"));
	raid_scan_free(&scan);

	/* a link is a name like any other, and the same drive is listed once */
	snprintf(path, sizeof(path), "%s/link", t.dir);
	CHECK(symlink(t.path[1], path) == 0);
	const char *const twice[] = {path, t.path[0], t.path[1]};
	CHECK_OK(raid_scan(twice, 3, &scan, &err), err);
	CHECK(scan.count == 2 && strcmp(scan.drive[0].path, path) == 0);
	CHECK(drive_path_same(path, t.path[1]) && !drive_path_same(path, t.path[0]));
	raid_scan_free(&scan);
	CHECK(unlink(path) == 0);

	/* too many paths; too many entries on the way to none */
	for (unsigned i = 0; i < 4200; i++) {
		snprintf(path, sizeof(path), "%s/x%04u", t.dir, i);
		CHECK(mkdir(path, 0700) == 0);
	}
	snprintf(pattern, sizeof(pattern), "%s/x*", t.dir);
	const char *const many[] = {pattern};
	CHECK(raid_scan(many, 1, &scan, &err) == -E2BIG);
	CHECK(strstr(err.text, "name fewer"));
	snprintf(pattern, sizeof(pattern), "%s/*/../*/../*/../none", t.dir);
	CHECK(raid_scan(many, 1, &scan, &err) == -E2BIG);
	CHECK(scan.count == 0 && !scan.drive);
	for (unsigned i = 0; i < 4200; i++) {
		snprintf(path, sizeof(path), "%s/x%04u", t.dir, i);
		CHECK(rmdir(path) == 0);
	}
	raid_test_remove(&t);
}

static void test_scan_bounds(void **state)
{
	(void)state;
	raid_test_run(scan_body, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_split_and_claim),
		cmocka_unit_test(test_join),
		cmocka_unit_test(test_null),
		cmocka_unit_test(test_scan_bounds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
