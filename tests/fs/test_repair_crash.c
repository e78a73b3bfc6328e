/*
 * The power goes during a repair, after each of its writes in turn, and drives lose any part of their caches. The
 * repair is run again, and what it then makes of the file system is what one makes that nobody disturbs: the same
 * names, attributes and bytes, live and in each snapshot, the same blocks that cannot be read, and nothing else that fs
 * check finds. A third run has nothing left to do. The same holds when, instead, the Nth piece of memory is not to be
 * had, or that and some behind it (FURROW_LONG: for every N): what could not be looked at for want of memory is no
 * fault.
 */
#include "tests/fs/memory_test.h"

#include "tests/fs/files_test.h"
#include "tests/fs/image_test.h"

#define FILES 40u

static struct fs_id file_id[FILES], dir_id[2];

/* ------------------------------------------------------------------------------------------------
 * A file system with faults
 */

static int file_make(struct files_test *t, unsigned f)
{
	uint8_t data[5 * BLOCK_BYTES];
	char name[60];
	int r;

	snprintf(name, sizeof(name), "file %u", f);
	memset(data, (int)(1 + f), sizeof(data));
	r = t_create(t, dir_id[f % 2], name, &file_id[f]);
	if (r == 0)
		r = t_write(t, file_id[f], 0, data, (1 + f % 5) * BLOCK_BYTES, FS_FILE_SYNC);
	if (r == 0 && f % 5 == 0)
		r = fs_setxattr(t->fs, &op_root, file_id[f], "user.x", 6, data, 7000, FS_XATTR_EITHER, NULL);
	return r;
}

static int world_make(struct files_test *t)
{
	struct fs_id id = {0};
	int r = files_test_create(t, 1);

	r = r ? r : t_mkdir(t, t->root, "one", &dir_id[0]);
	r = r ? r : t_mkdir(t, dir_id[0], "two", &dir_id[1]);
	for (unsigned f = 0; f < FILES && r == 0; f++) {
		r = file_make(t, f);
		if (r == 0 && f == 25)
			r = fs_snapshot_create(t->fs, "older");
		if (r == 0 && f == 32)
			r = fs_snapshot_create(t->fs, "newer");
	}
	for (unsigned f = 0; f < FILES && r == 0; f += 7)
		r = t_truncate(t, file_id[f], 3000);
	for (unsigned f = 1; f < FILES && r == 0; f += 9)
		r = t_write(t, file_id[f], 2 * BLOCK_BYTES, "changed", 7, FS_FILE_SYNC);
	r = r ? r : t_create(t, t->root, "clone", &id);
	r = r ? r : fs_clone(t->fs, &op_root, file_id[4], 0, id, 0, 0, NULL);
	r = r ? r : t_unlink(t, dir_id[0], "file 20");
	r = r ? r : t_create(t, t->root, "held", &id);
	r = r ? r : fs_hold(t->fs, id);
	r = r ? r : t_unlink(t, t->root, "held");
	return r;
}

/* Records that go, and some that say something else: in all versions, or only in the last one. */
static int spoil_pass(struct tx *tx, void *arg)
{
	struct files_test *t = arg;
	struct fs_key gone[] = {
		{.ino = file_id[3].ino, .type = KEY_INODE},
		{.ino = file_id[8].ino, .type = KEY_EXTENT},
		{.ino = file_id[10].ino, .type = KEY_XATTR, .off = name_hash(t->fs, "user.x", 6) << 16 | 1},
		{.ino = dir_id[0].ino, .type = KEY_ENTRY, .off = 6},
		{.ino = dir_id[0].ino, .type = KEY_NAME, .off = name_hash(t->fs, "file 12", 7) << 8},
		{.ino = dir_id[1].ino, .type = KEY_INODE},
		{.ino = file_id[30].ino, .type = KEY_INODE, .snap = 1},
		{.ino = FS_ROOT_INO, .type = KEY_ENTRY, .off = 3},
		{.type = KEY_SHARE},
		{.type = KEY_COUNTERS},
	};
	struct fs_key odd[] = {
		{.ino = file_id[16].ino, .type = KEY_EXTENT},
		{.ino = file_id[17].ino, .type = KEY_INODE},
		{.ino = file_id[18].ino, .type = 77, .off = 3},
	};
	int r = 0;

	for (unsigned i = 0; i < sizeof(gone) / sizeof(gone[0]) && r == 0; i++)
		r = tx_delete_any(tx, &gone[i]);
	for (unsigned i = 0; i < sizeof(odd) / sizeof(odd[0]) && r == 0; i++)
		r = tx_put_any(tx, &odd[i], "this makes no sense", 19);
	return r;
}

/* ------------------------------------------------------------------------------------------------
 * What is there
 */

struct seen {
	struct files_test *t;
	struct fs_id queue[500];
	unsigned n;
	uint64_t sum, names;
};

static void seen_add(struct seen *s, const void *data, size_t len)
{
	s->sum = checksum64(data, len, s->sum);
}

static bool seen_entry(void *arg, const struct fs_dirent *e)
{
	struct seen *s = arg;
	struct {
		uint64_t ino, size;
		uint32_t type, mode, nlink;
	} is = {e->id.ino, e->attr->size, e->attr->type, e->attr->mode, e->attr->nlink};

	if (e->cookie <= 2)
		return true;
	s->names++;
	seen_add(s, e->name, e->name_len);
	seen_add(s, &is, sizeof(is));
	if (s->n < 500)
		s->queue[s->n++] = e->id;
	return true;
}

static bool seen_xattr(void *arg, const char *name, size_t len)
{
	seen_add(arg, name, len);
	return true;
}

static void seen_one(struct seen *s, struct fs_id id)
{
	uint64_t cookie = 0;
	struct fs_attr attr;
	bool eof;

	if (fs_getattr(s->t->fs, id, &attr) < 0) {
		CHECK_FAILED("inode %llu of snapshot %u has no attributes", (unsigned long long)id.ino, id.snap);
		return;
	}
	fs_listxattr(s->t->fs, &op_root, id, &cookie, seen_xattr, s, &eof);
	if (attr.type == FS_DIR) {
		if (fs_readdir(s->t->fs, &op_root, id, 0, true, seen_entry, s, &eof, NULL) < 0)
			CHECK_FAILED("directory %llu cannot be read", (unsigned long long)id.ino);
		return;
	}
	for (uint64_t b = 0; b < 6 && attr.type == FS_REG; b++) {
		uint8_t block[BLOCK_BYTES] = {0};
		int n = t_read(s->t, id, b * BLOCK_BYTES, block, BLOCK_BYTES, NULL);

		seen_add(s, &n, sizeof(n));
		if (n > 0)
			seen_add(s, block, (size_t)n);
	}
}

static uint64_t seen_all(struct files_test *t, uint64_t *names)
{
	static const char *const snapshots[] = {"older", "newer"};
	struct seen *s = calloc(1, sizeof(*s));
	struct fs_attr root, attr;
	uint64_t sum;

	s->t = t;
	if (fs_root(t->fs, &root) < 0)
		CHECK_FAILED("there is no root directory");
	s->queue[s->n++] = root.id;
	for (unsigned i = 0; i < 2; i++)
		if (t_lookup(t, root.id, ".snapshot", &attr) == 0 && t_lookup(t, attr.id, snapshots[i], &attr) == 0)
			s->queue[s->n++] = attr.id;
		else
			CHECK_FAILED("snapshot %s is gone", snapshots[i]);
	for (unsigned i = 0; i < s->n; i++)
		seen_one(s, s->queue[i]);
	sum = s->sum;
	*names = s->names;
	free(s);
	return sum;
}

/* ------------------------------------------------------------------------------------------------
 * Repairing
 */

static unsigned lines;
static void line_count(void *arg, const char *problem)
{
	(void)arg;
	if (getenv("FURROW_SAID"))
		fprintf(stderr, "%s\n", problem);
	lines++;
}

/* MEMORY: the piece of it that is refused, with COUNT behind it; 0: none. */
static int repair_without(struct files_test *t, uint64_t memory, uint64_t count)
{
	struct fs_repair_result result;
	struct error err = {0};
	int r = files_test_open_volume(t, &err);

	lines = 0;
	if (memory)
		memory_refuse(memory, count);
	if (r == 0)
		r = fs_repair(t->volume, line_count, NULL, &result, &err);
	memory_refuse_none();
	files_test_close(t);
	return r;
}

static int repair(struct files_test *t)
{
	return repair_without(t, 0, 0);
}

static void other_problems(void *arg, const char *problem)
{
	if (strstr(problem, "cannot be read") || strstr(problem, "no extent has their place"))
		return;
	fprintf(stderr, "fs check: %s\n", problem);
	++*(unsigned *)arg;
}

/* Mounts and looks: no faults but lost data. */
static void look(struct files_test *t, uint64_t *sum, uint64_t *names)
{
	struct fs_check_result result;
	unsigned problems = 0;

	CHECK_OK(files_test_open(t));
	CHECK_OK(fs_check(t->fs, true, other_problems, NULL, &problems, &result));
	CHECK_IS(problems, 0);
	*sum = seen_all(t, names);
	files_test_close(t);
}

/* true: the repair got to its end before the cut. */
static bool cut(struct files_test *t, uint64_t n, unsigned keep, uint64_t want)
{
	uint64_t sum = 0, names = 0;
	int first;

	CHECK_R(image_put(t) == 0, true);
	for (unsigned i = 0; i < t->count; i++)
		fault_volatile_cache(t->path[i], true);
	fault_write_limit(n);
	first = repair(t);
	for (unsigned i = 0; i < t->count; i++)
		fault_power_cut(t->path[i], hash_u64(n + i), keep);
	fault_reset();
	if (repair(t) < 0)
		CHECK_FAILED("the repair after cut %llu fails", (unsigned long long)n);
	CHECK_R(!test_failure[0], true);
	look(t, &sum, &names);
	if (sum != want)
		CHECK_FAILED("after cut %llu the repair makes something else: %llu names", (unsigned long long)n,
			(unsigned long long)names);
	return first == 0;
}

/* true: there was no Nth piece any more. */
static bool refused(struct files_test *t, uint64_t n, uint64_t count, uint64_t want, unsigned *failures)
{
	uint64_t sum = 0, names = 0;
	bool end;
	int r;

	CHECK_R(image_put(t) == 0, true);
	r = repair_without(t, n, count);
	end = !memory_asked(n);
	*failures += r < 0;
	if (r < 0 && r != -ENOMEM && r != -EAGAIN)
		CHECK_FAILED("without memory %llu the repair is %d", (unsigned long long)n, r);
	if (r < 0 && repair(t) < 0)
		CHECK_FAILED("the repair after one without memory %llu fails", (unsigned long long)n);
	CHECK_R(!test_failure[0], true);
	look(t, &sum, &names);
	if (sum != want)
		CHECK_FAILED("without memory %llu the repair (%d) makes something else: %llu names",
			(unsigned long long)n, r, (unsigned long long)names);
	return end;
}

static void refuse_everywhere(struct files_test *t, uint64_t count, uint64_t want)
{
	uint64_t n = 1, step = 1;
	unsigned failures = 0;

	for (; !refused(t, n, count, want, &failures) && !test_failure[0]; n += step)
		if (count > 1 && !getenv("FURROW_LONG"))
			step = 1 + n / 4;
	printf("memory: up to piece %llu; %u repairs failed\n", (unsigned long long)n, failures);
	CHECK(!test_failure[0] && n > 100 && failures > 10);
}

static void body(void *arg)
{
	struct files_test *t = arg;
	uint64_t want = 0, names = 0, n = 1;

	CHECK_OK(world_make(t));
	CHECK_IS(t_check(t), 0);
	CHECK_OK(fs_transact_durable(t->fs, spoil_pass, t));
	CHECK(t_check(t) > 10);
	files_test_close(t);
	CHECK_OK(image_take(t));
	CHECK_OK(repair(t));
	CHECK(lines > 10);
	look(t, &want, &names);
	CHECK(!test_failure[0] && names > 3 * 30);
	CHECK_OK(repair(t));
	CHECK_IS(lines, 0);
	for (bool end = false; !end && !test_failure[0]; n++)
		for (unsigned keep = 0; keep <= 1000 && !test_failure[0]; keep += 500)
			end = cut(t, n, keep, want);
	printf("%llu cuts\n", (unsigned long long)n);
	CHECK(!test_failure[0] && n > 10);
	refuse_everywhere(t, 1, want);
	refuse_everywhere(t, 20, want);
	for (unsigned i = 0; i < t->count; i++)
		free(image[i]);
}

static void test_cut_everywhere(void **state)
{
	static struct files_test t;
	int threshold = atomic_load(&log_threshold);

	(void)state;
	atomic_store(&log_threshold, -1);
	files_test_drives(&t, 2, 40ull << 20);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
	atomic_store(&log_threshold, threshold);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cut_everywhere),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
