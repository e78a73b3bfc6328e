/*
 * A drive does not answer a read in time, and may write into the memory of that read as long as it likes. The file
 * system takes other memory, reads again without the drive, and nobody notices: at a mount, at a write of a part of a
 * block, while the cleaner and a check read.
 */
#include "raid/raid_internal.h"
#include "tests/fs/files_test.h"

#define DEADLINE (500 * NSEC_PER_MSEC)
#define DELAY (1200 * NSEC_PER_MSEC)
#define BYTES (256u << 10)

static uint8_t want[BYTES], got[BYTES];

/* Mounts while the drive DRIVE is late with its NTH command. */
static int open_late(struct files_test *t, unsigned drive, unsigned nth)
{
	struct error err = {0};
	int r = files_test_open_volume(t, &err);

	if (r == 0)
		fault_inject(t->path[drive], FAULT_DELAY, nth, DELAY);
	if (r == 0)
		r = fs_mount(t->volume, &t->options, &t->fs, &err);
	if (r < 0)
		CHECK_FAILED("mount: %d %s", r, err.text);
	return r;
}

static unsigned timeouts(struct files_test *t)
{
	struct array_status *s = calloc(1, sizeof(*s));
	uint64_t n = 0;

	array_status(t->array, s);
	for (unsigned i = 0; i < t->count; i++)
		n += s->member[i].timeouts;
	free(s);
	return (unsigned)n;
}

static void body_timeout(void *arg)
{
	struct files_test *t = arg;
	struct fs_attr attr;
	struct fs_id f;
	uint64_t seed = 3;

	for (unsigned i = 0; i < BYTES; i++)
		want[i] = (uint8_t)test_random(&seed);
	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "file", &f));
	CHECK_OK(t_write(t, f, 0, want, BYTES, FS_FILE_SYNC));
	files_test_close(t);
	atomic_store(&drive_deadline_override, DEADLINE);
	/* the first look at the root records */
	CHECK_OK(open_late(t, 0, 1));
	CHECK_OK(t_lookup(t, t->root, "file", &attr));
	/* parts of blocks, whose rest has to be read: some of it from the drive that is late now */
	fault_inject(t->path[1], FAULT_DELAY, 1, DELAY);
	for (unsigned i = 0; i < 48; i++) {
		memset(want + i * 5000 + 100, (int)i, 50);
		CHECK_OK(t_write(t, f, i * 5000 + 100, want + i * 5000 + 100, 50, FS_FILE_SYNC));
	}
	CHECK(timeouts(t) >= 1);
	CHECK_IS(t_check(t), 0);
	CHECK_IS(t_read(t, f, 0, got, BYTES, NULL), BYTES);
	CHECK(memcmp(got, want, BYTES) == 0);
	atomic_store(&drive_deadline_override, 0);
	fiber_sleep(DELAY); /* until the late ones have come */
	files_test_close(t);
	fault_reset();
}

/* A check meets it while it reads nodes and data. */
static void body_check(void *arg)
{
	struct files_test *t = arg;
	struct fs_id f;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_create(t, t->root, "file", &f));
	CHECK_OK(t_write(t, f, 0, want, BYTES, FS_FILE_SYNC));
	CHECK_OK(files_test_remount(t));
	atomic_store(&drive_deadline_override, DEADLINE);
	for (unsigned drive = 0; drive < 2; drive++) {
		fault_inject(t->path[2 * drive], FAULT_DELAY, 1, DELAY);
		CHECK_IS(t_check(t), 0);
	}
	CHECK(timeouts(t) == 2);
	atomic_store(&drive_deadline_override, 0);
	fiber_sleep(DELAY);
	files_test_close(t);
	fault_reset();
}

static void run(void (*body)(void *))
{
	static struct files_test t;

	atomic_store(&log_threshold, -1);
	files_test_drives(&t, 5, 64ull << 20);
	files_test_run(body, &t);
	files_test_remove(&t);
}

static void test_timeout(void **state)
{
	(void)state;
	run(body_timeout);
}

static void test_timeout_check(void **state)
{
	(void)state;
	run(body_check);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_timeout),
		cmocka_unit_test(test_timeout_check),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
