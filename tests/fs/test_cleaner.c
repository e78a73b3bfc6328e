/*
 * The cleaner: a file system that is 70 % full is overwritten block by block for several times its size.
 * No write may find it full, every block holds what was written last, and fs check finds nothing
 * wrong. The same with power cuts in the midst of it.
 */
#include "tests/fs/files_test.h"

#define FILES 4u
#define BLOCKS_MAX 8000u

struct world {
	struct files_test t;
	struct fs_id file[FILES];
	uint32_t blocks; /* of each file */
	uint32_t full;	 /* percent of what df shows */
	uint32_t version[FILES][BLOCKS_MAX], tried[FILES][BLOCKS_MAX];
	uint64_t seed;
	uint8_t data[8 * BLOCK_BYTES];
};

static void block_fill(uint8_t *to, unsigned f, uint32_t b, uint32_t version)
{
	uint64_t seed = ((uint64_t)f << 56) + ((uint64_t)b << 32) + version;
	for (unsigned i = 0; i < BLOCK_BYTES; i += 8) {
		uint64_t x = test_random(&seed);
		memcpy(to + i, &x, 8);
	}
	memcpy(to, &version, sizeof(version));
}

static int overwrite(struct world *w, unsigned f, uint32_t b, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		block_fill(w->data + i * BLOCK_BYTES, f, b + i, ++w->tried[f][b + i]);
	int r = t_write(&w->t, w->file[f], (uint64_t)b * BLOCK_BYTES, w->data, n * BLOCK_BYTES, FS_FILE_SYNC);
	for (uint32_t i = 0; i < n && !r; i++)
		w->version[f][b + i] = w->tried[f][b + i];
	return r;
}

static int fill(struct world *w)
{
	struct fs_statfs st;
	int r = fs_statfs(w->t.fs, &st);
	w->blocks = (uint32_t)(st.bytes_available / BLOCK_BYTES * w->full / 100 / FILES) & ~7u;
	if (w->blocks > BLOCKS_MAX)
		return -E2BIG;
	for (unsigned f = 0; f < FILES && !r; f++) {
		char name[8];
		snprintf(name, sizeof(name), "f%u", f);
		r = t_create(&w->t, w->t.root, name, &w->file[f]);
	}
	for (uint32_t b = 0; b < w->blocks && !r; b += 8)
		for (unsigned f = 0; f < FILES && !r; f++)
			r = overwrite(w, f, b, 8);
	return r;
}

static bool all_is_there(struct world *w)
{
	static uint8_t want[BLOCK_BYTES], have[BLOCK_BYTES];
	for (unsigned f = 0; f < FILES; f++) {
		for (uint32_t b = 0; b < w->blocks; b++) {
			uint32_t version;
			if (t_read(&w->t, w->file[f], (uint64_t)b * BLOCK_BYTES, have, BLOCK_BYTES, NULL) !=
				BLOCK_BYTES)
				return false;
			memcpy(&version, have, sizeof(version));
			block_fill(want, f, b, version);
			if (memcmp(want, have, BLOCK_BYTES) || version < w->version[f][b] || version > w->tried[f][b]) {
				fprintf(stderr, "file %u block %u: version %u, acknowledged %u, tried %u\n", f, b,
					version, w->version[f][b], w->tried[f][b]);
				return false;
			}
			w->version[f][b] = version;
		}
	}
	return true;
}

static void laps_body(void *arg)
{
	struct world *w = calloc(1, sizeof(*w));
	(void)arg;
	w->seed = 11;
	w->full = getenv("FURROW_CLEANER_FULL") ? (uint32_t)atoi(getenv("FURROW_CLEANER_FULL")) : 70;
	files_test_drives(&w->t, 5, 24u << 20);
	CHECK_OK(files_test_create(&w->t, 6));
	CHECK_OK(fill(w));
	uint64_t rows = 0, all = w->t.fs->geometry.stripes * w->t.fs->geometry.strip_blocks;
	while (rows < 3 * all) {
		uint32_t n = 1 + test_below(&w->seed, 2);
		/* some files are colder than others */
		unsigned f = test_below(&w->seed, 8) ? 0 : test_below(&w->seed, FILES);
		int r = overwrite(w, f, test_below(&w->seed, w->blocks - n), n);
		if (r) {
			struct space *s = &w->t.fs->space;
			fprintf(stderr, "after %llu rows: free %llu of %llu, live data %llu nodes %llu in %llu\n",
				(unsigned long long)rows, (unsigned long long)s->free, (unsigned long long)s->stripes,
				(unsigned long long)s->live_data, (unsigned long long)s->live_nodes,
				(unsigned long long)s->node_stripes);
		}
		CHECK_OK(r);
		rows++;
	}
	fprintf(stderr, "rounds %llu moved %llu blocks, freed %llu stripes, %llu rows written\n",
		(unsigned long long)w->t.fs->cleaner.rounds, (unsigned long long)w->t.fs->cleaner.moved_blocks,
		(unsigned long long)w->t.fs->cleaner.freed_stripes, (unsigned long long)rows);
	CHECK(w->t.fs->cleaner.freed_stripes > 0);
	CHECK(all_is_there(w));
	CHECK_IS(t_check(&w->t), 0);
	CHECK_OK(files_test_remount(&w->t));
	CHECK(all_is_there(w));
	CHECK_IS(t_check(&w->t), 0);
	files_test_close(&w->t);
	files_test_remove(&w->t);
	free(w);
}

static void test_laps(void **state)
{
	(void)state;
	files_test_run(laps_body, NULL);
}

static void cuts_body(void *arg)
{
	struct world *w = calloc(1, sizeof(*w));
	(void)arg;
	w->seed = 12;
	w->full = 70;
	atomic_store(&log_threshold, -1);
	files_test_drives(&w->t, 4, 16u << 20);
	CHECK_OK(files_test_create(&w->t, 6));
	CHECK_OK(fill(w));
	for (unsigned cycle = 0; cycle < 25; cycle++) {
		for (unsigned i = 0; i < w->t.count; i++)
			fault_volatile_cache(w->t.path[i] + 6, true);
		fault_write_limit(200 + test_below(&w->seed, 3000));
		int r = 0;
		for (unsigned i = 0; i < 4000 && !r; i++)
			r = overwrite(w, test_below(&w->seed, FILES), test_below(&w->seed, w->blocks), 1);
		CHECK(r != -ENOSPC);
		for (unsigned i = 0; i < w->t.count; i++)
			fault_power_cut(w->t.path[i] + 6, test_random(&w->seed), test_below(&w->seed, 3) * 500);
		fault_write_limit(0);
		CHECK_OK(files_test_remount(&w->t));
		CHECK(all_is_there(w));
	}
	CHECK_IS(t_check(&w->t), 0);
	files_test_close(&w->t);
	files_test_remove(&w->t);
	fault_reset();
	free(w);
}

static void test_cuts(void **state)
{
	(void)state;
	files_test_run(cuts_body, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_laps), cmocka_unit_test(test_cuts)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
