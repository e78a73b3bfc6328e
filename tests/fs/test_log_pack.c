/*
 * Packing of log batches: whatever was packed comes back, and a damaged stream is refused or unpacks to as many bytes
 * as were asked for, never to more. And space that comes back with the log alone: a file system is written over many
 * times without a checkpoint, the power goes, and the replay over the old tree finds the last state.
 */
#include "tests/fs/files_test.h"

#define BYTES (LOG_BATCH_BLOCKS * BLOCK_BYTES - 584u)
#define CYCLES 14u
#define FILE_MIB 12u

static uint8_t plain[BYTES];

/* Like records: numbers that differ little, and now and then some bytes that cannot be packed. */
static void plain_make(uint64_t *seed, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i += 8) {
		uint64_t v = test_below(seed, 4) ? 1000000 + i / 64 : test_random(seed);
		memcpy(plain + i, &v, bytes - i < 8 ? bytes - i : 8);
	}
}

static void body_pack(void *arg)
{
	struct log_packer *p = log_packer_new();
	struct slice v[LOG_BUFS];
	uint64_t seed = 11;
	unsigned packs = 0, refused = 0;

	(void)arg;
	CHECK(p);
	for (unsigned i = 0; i < LOG_BUFS; i++)
		v[i] = (struct slice){buf_alloc(LOG_BUF_BYTES), 0, LOG_BUF_BYTES};
	for (unsigned round = 0; round < 200; round++) {
		uint32_t bytes = 1 + test_below(&seed, round % 2 ? BYTES : 9000), packed;
		const uint8_t *back;

		plain_make(&seed, bytes);
		slices_copy_in(v, LOG_BUFS, 584, plain, bytes);
		packed = log_pack(p, v, LOG_BUFS, 584, bytes, bytes);
		if (!packed) {
			/* then nothing was changed */
			back = log_unpack(p, v, LOG_BUFS, 584, 0, bytes);
			CHECK(back && memcmp(back, plain, bytes) == 0);
			continue;
		}
		packs++;
		CHECK(packed <= bytes);
		back = log_unpack(p, v, LOG_BUFS, 584, packed, bytes);
		CHECK(back && memcmp(back, plain, bytes) == 0);
		/* not as long as the header says */
		CHECK(!log_unpack(p, v, LOG_BUFS, 584, packed, bytes + 1));
		CHECK(!log_unpack(p, v, LOG_BUFS, 584, packed, bytes - 1));
		for (unsigned i = 0; i < 8; i++) {
			uint32_t at = 584 + test_below(&seed, packed);
			uint8_t *byte = v[at / LOG_BUF_BYTES].buf->data + at % LOG_BUF_BYTES, was = *byte;

			*byte ^= (uint8_t)(1u << test_below(&seed, 8));
			back = log_unpack(p, v, LOG_BUFS, 584, packed, bytes);
			refused += !back || memcmp(back, plain, bytes) != 0;
			*byte = was;
		}
	}
	CHECK(packs > 100 && refused > 500);
	slices_put(v, LOG_BUFS);
	log_packer_free(p);
}

static int file_write(struct files_test *t, unsigned cycle, uint8_t *data)
{
	struct fs_id id;
	char name[32];
	int r;

	snprintf(name, sizeof(name), "file%u", cycle);
	r = t_create(t, t->root, name, &id);
	for (unsigned i = 0; i < FILE_MIB && r == 0; i++) {
		memset(data, (int)(cycle * 16 + i), 1u << 20);
		r = t_write(t, id, (uint64_t)i << 20, data, 1u << 20, FS_FILE_SYNC);
	}
	return r;
}

static void body_reuse(void *arg)
{
	struct files_test *t = arg;
	struct fs_status before, after;
	struct fs_statfs s;
	struct fs_attr attr;
	uint8_t *data = malloc(1u << 20), *back = malloc(1u << 20);
	char name[32];

	checkpoint_delay_ns = 3600 * NSEC_PER_SEC;
	CHECK_OK(files_test_create(t, 6));
	for (unsigned i = 0; i < t->count; i++)
		fault_volatile_cache(t->path[i], true);
	CHECK_OK(files_test_remount(t));
	CHECK_OK(fs_statfs(t->fs, &s));
	CHECK(s.bytes_total < (uint64_t)CYCLES * FILE_MIB << 20);
	fs_status(t->fs, &before);
	for (unsigned i = 0; i < CYCLES; i++) {
		CHECK_OK(file_write(t, i, data));
		if (i > 0) {
			snprintf(name, sizeof(name), "file%u", i - 1);
			CHECK_OK(t_unlink(t, t->root, name));
		}
		/* the deletion is work of the background */
		for (unsigned wait = 0; wait < 200 && !list_empty(&t->fs->files->orphans); wait++)
			fiber_sleep(NSEC_PER_MSEC);
	}
	fs_status(t->fs, &after);
	CHECK_IS(after.checkpoints, before.checkpoints);
	for (unsigned i = 0; i < t->count; i++)
		fault_power_cut(t->path[i], 77 + i, 500);
	files_test_close(t);
	fault_reset();
	CHECK_OK(files_test_open(t));
	fs_status(t->fs, &after);
	CHECK(after.replayed > CYCLES);
	CHECK_IS(t_check(t), 0);
	snprintf(name, sizeof(name), "file%u", CYCLES - 1);
	CHECK_OK(t_lookup(t, t->root, name, &attr));
	for (unsigned i = 0; i < FILE_MIB; i++) {
		memset(data, (int)((CYCLES - 1) * 16 + i), 1u << 20);
		CHECK_IS(t_read(t, attr.id, (uint64_t)i << 20, back, 1u << 20, NULL), 1 << 20);
		CHECK(memcmp(data, back, 1u << 20) == 0);
	}
	files_test_close(t);
	free(data);
	free(back);
}

static void run(void (*body)(void *), uint64_t drive_bytes)
{
	static struct files_test t;

	atomic_store(&log_threshold, -1);
	files_test_drives(&t, 5, drive_bytes);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
}

static void test_pack(void **state)
{
	(void)state;
	run(body_pack, 1u << 20);
}

static void test_reuse_without_checkpoint(void **state)
{
	(void)state;
	run(body_reuse, 56ull << 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pack),
		cmocka_unit_test(test_reuse_without_checkpoint),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
