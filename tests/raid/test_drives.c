/*
 * The same on real drives: FURROW_TEST_DRIVES="/dev/ng0n1 /dev/ng1n1 ..." (their content is lost). Skipped
 * without it. Meant for the guest with its emulated NVMe drives.
 *
 * For NVMe character devices it also shows that nothing went through the block layer: the counters
 * in /sys/block/NAME/stat stand still, while our own count what was sent.
 */
#include <sys/ioctl.h>

#include "tests/raid/raid_test.h"

static const char *drives[RAID_GROUP_MAX];
static unsigned drive_count;

/* The sum of reads and writes that the block layer has counted for the drive's block device. */
static uint64_t block_layer_count(const char *path)
{
	char file[128];
	const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
	if (strncmp(name, "ng", 2) != 0)
		return 0;
	snprintf(file, sizeof(file), "/sys/block/nvme%.60s/stat", name + 2);
	FILE *f = fopen(file, "r");
	unsigned long long v[8] = {0};
	if (!f)
		return 0;
	for (unsigned i = 0; i < 8; i++)
		if (fscanf(f, "%llu", &v[i]) != 1)
			break;
	fclose(f);
	return v[0] + v[4];
}

static bool blocks_same(struct volume *v, uint64_t block, const struct payload *want)
{
	struct payload have;
	payload_make(&have, want->bytes, 65536, 0);
	int r = volume_read(v, block, have.v, have.n);
	bool same = r == 0 && payload_sum(&have) == payload_sum(want);
	payload_free(&have);
	return same;
}

static void drives_body(void *arg)
{
	(void)arg;
	struct error err = {0};
	struct array *array, *other;
	struct volume *v;
	uint64_t before[RAID_GROUP_MAX];
	unsigned n = drive_count;
	struct array_create create = {.name = "a0", .level = 6, .drives = drives, .count = n, .force = true};
	for (unsigned i = 0; i < n; i++)
		before[i] = block_layer_count(drives[i]);
	CHECK_OK(array_create(&create, &err), err);

	struct raid_scan scan;
	CHECK_OK(raid_scan(drives, n, &scan, &err), err);
	CHECK(scan.count == n);
	for (unsigned i = 0; i < n; i++) {
		const struct drive_info *d = &scan.drive[i];
		printf("# %s kind=%d model=\"%s\" serial=\"%s\" bytes=%llu lba=%u transfer_max=%u cache=%d: %s\n",
			d->path, (int)d->kind, d->model, d->serial, (unsigned long long)d->bytes, d->lba_bytes,
			d->transfer_max, d->volatile_cache, d->holds);
		CHECK(d->content == DRIVE_MEMBER);
	}
	CHECK_OK(array_open(&scan, "a0", &array, &err), err);
	/* a second claim is refused, ours or anybody's */
	CHECK(array_open(&scan, "a0", &other, &err) == -EBUSY);
	printf("# second claim: %s\n", err.text);
	CHECK(array_create(&create, &err) == -EBUSY);
	CHECK_OK(volume_create(array, "v", 0, &err), err);
	CHECK_OK(volume_open(array, "v", &v, &err), err);
	const struct volume_geometry *g = volume_geometry(v);
	uint64_t blocks = volume_stripe_blocks(g);

	/* whole stripes from one piece per strip (fixed), from 4 KiB pieces (vectors), and from the middle of pieces */
	struct payload whole, pieces, odd;
	payload_make(&whole, blocks * BLOCK_BYTES, 65536, 11);
	payload_make(&pieces, (uint64_t)g->k * 5 * BLOCK_BYTES, BLOCK_BYTES, 12);
	payload_make(&odd, (uint64_t)g->k * BLOCK_BYTES * 4, 262144, 13);
	CHECK(volume_write_rows(v, 0, 0, g->strip_blocks, whole.v, whole.n, 0) == 0);
	CHECK(volume_write_rows(v, 1, 2, 5, pieces.v, pieces.n, VOLUME_DURABLE) == 0);
	CHECK(volume_write_rows(v, g->stripes - 1, 0, 4, odd.v, odd.n, 0) == 0);
	CHECK(volume_flush(v) == 0);
	CHECK(blocks_same(v, 0, &whole));
	struct payload log;
	payload_make(&log, 200 * 1024, 65536, 14);
	CHECK(volume_log_write(v, 3, log.v, log.n) == 0);
	for (unsigned copy = 0; copy < g->log_copies; copy++) {
		struct payload have;
		payload_make(&have, log.bytes, 8192, 0);
		CHECK(volume_log_read(v, 3, copy, have.v, have.n) == 0);
		CHECK(payload_sum(&have) == payload_sum(&log));
		payload_free(&have);
	}
	/* many commands at once */
	uint64_t t0 = now_ns(), stripes = g->stripes / 2 < 32 ? g->stripes / 2 : 32;
	for (uint64_t s = 2; s < 2 + stripes; s++)
		CHECK(volume_write_rows(v, s, 0, g->strip_blocks, whole.v, whole.n, 0) == 0);
	CHECK(volume_flush(v) == 0);
	printf("# %llu stripes of %llu KiB written in %.1f ms\n", (unsigned long long)stripes,
		(unsigned long long)(blocks * 4), (double)(now_ns() - t0) / 1e6);
	for (uint64_t s = 2; s < 2 + stripes; s++)
		CHECK(blocks_same(v, s * blocks, &whole));
	CHECK(volume_discard(v, 2, stripes) == 0);

	/* without two members: read, write, read */
	CHECK_OK(array_fail(array, 0, &err), err);
	CHECK_OK(array_fail(array, n - 1, &err), err);
	CHECK(blocks_same(v, 0, &whole));
	CHECK(volume_write_rows(v, 3, 0, g->strip_blocks, whole.v, whole.n, VOLUME_DURABLE) == 0);
	CHECK(blocks_same(v, 3 * blocks, &whole));
	struct array_status *status = calloc(1, sizeof(*status));
	array_status(array, status);
	for (unsigned i = 0; i < n; i++) {
		uint64_t moved = block_layer_count(drives[i]) - before[i];
		printf("# slot %u: reads=%llu writes=%llu flushes=%llu fua=%llu; block layer counted %llu\n", i,
			(unsigned long long)status->member[i].reads, (unsigned long long)status->member[i].writes,
			(unsigned long long)status->member[i].flushes, (unsigned long long)status->member[i].fua_writes,
			(unsigned long long)moved);
		CHECK(status->member[i].reads > 0 && status->member[i].writes > 0);
		CHECK(scan.drive[i].kind != DRIVE_NVME || moved == 0);
	}
	free(status);
	payload_free(&whole);
	payload_free(&pieces);
	payload_free(&odd);
	payload_free(&log);
	volume_close(v);
	array_close(array);
	raid_scan_free(&scan);
	drive_examine(drives[1], stdout, &err);
	CHECK_OK(raid_scan(drives, n, &scan, &err), err);
	CHECK_OK(array_destroy(&scan, "a0", &err), err);
	raid_scan_free(&scan);
}

static void test_drives_real(void **state)
{
	(void)state;
	if (!drive_count)
		skip();
	raid_test_run(drives_body, NULL);
}

int main(void)
{
	char *list = getenv("FURROW_TEST_DRIVES");
	char *copy = list ? strdup(list) : NULL, *save = NULL;
	for (char *p = copy ? strtok_r(copy, " ", &save) : NULL; p && drive_count < RAID_GROUP_MAX;
		p = strtok_r(NULL, " ", &save))
		drives[drive_count++] = p;
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_drives_real)};
	int r = cmocka_run_group_tests(tests, NULL, NULL);
	free(copy);
	return r;
}
