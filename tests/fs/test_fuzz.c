/*
 * Damaged images. A file system with one of everything is made once; then, round after round, bytes or whole blocks of
 * its root records, log, nodes and data are changed, and it is mounted, checked, read, written to, repaired and checked
 * again. No crash, no endless loop (of processor time), and where checksums were not put right with the change, no
 * file shows other bytes than were written to it. In the other rounds they are, so that what lies behind is reached.
 *
 * FURROW_SEED and FURROW_ROUNDS choose the run; the round that fails is told.
 */
#include <signal.h>
#include <sys/time.h>

#include "tests/fs/files_test.h"

#define FILES 60u
#define BLOCKS_MAX 40u
#define ROUNDS 250u
#define ROUND_SECONDS 60 /* of processor time */

struct image {
	uint8_t *bytes[TEST_DRIVES_MAX];
	size_t size;
	/* its blocks, by kind */
	struct place {
		unsigned drive;
		size_t at;
	} * of[4];
	unsigned n[4];
};
enum { PLACE_ROOT, PLACE_LOG, PLACE_NODE, PLACE_DATA };

static struct files_test t;
static struct image image;
static uint64_t seed;
static unsigned round_now;
static struct fs_id file_id[FILES];
static uint32_t file_blocks[FILES];

static void block_fill(uint8_t *to, unsigned file, uint32_t b)
{
	for (unsigned i = 0; i < BLOCK_BYTES; i += 8) {
		uint64_t x = hash_u64((uint64_t)file << 40 | (uint64_t)b << 20 | i | 1ull << 60);
		memcpy(to + i, &x, 8);
	}
}

/* ------------------------------------------------------------------------------------------------
 * The image
 */

static int file_make(struct fs_id dir, unsigned f)
{
	static uint8_t data[BLOCKS_MAX * BLOCK_BYTES];
	struct fs_id id = {0};
	char name[80];
	int r;

	file_blocks[f] = 1 + (uint32_t)f % BLOCKS_MAX;
	for (uint32_t b = 0; b < file_blocks[f]; b++)
		block_fill(data + (size_t)b * BLOCK_BYTES, f, b);
	snprintf(name, sizeof(name), "a file, and this is its name, number %u", f);
	r = t_create(&t, dir, name, &id);
	file_id[f] = id;
	if (r == 0)
		r = t_write(&t, id, 0, data, file_blocks[f] * BLOCK_BYTES, FS_FILE_SYNC);
	if (r == 0 && f % 7 == 0)
		r = fs_setxattr(t.fs, &op_root, id, "user.some", 9, data, 5000, FS_XATTR_EITHER, NULL);
	return r;
}

static int image_fill(void)
{
	struct fs_id dir = t.root, id = {0};
	struct fs_attr attr;
	char name[32];
	int r = files_test_create(&t, 0);

	dir = t.root;
	for (unsigned f = 0; f < FILES && r == 0; f++) {
		if (f % 10 == 0) {
			snprintf(name, sizeof(name), "dir%u", f / 10);
			r = t_mkdir(&t, f % 20 ? t.root : dir, name, &id);
			dir = id;
		}
		if (r == 0)
			r = file_make(dir, f);
		if (r == 0 && f == 30)
			r = fs_symlink(t.fs, &op_root, dir, "link", 4, "somewhere", 9, NULL, &attr, NULL);
		if (r == 0 && f == 35)
			r = fs_snapshot_create(t.fs, "snap");
		if (r == 0 && f == 50)
			r = fs_snapshot_create(t.fs, "later");
	}
	/* what changed between and after them, and a file that is only held */
	for (unsigned f = 0; f < 50 && r == 0; f += 9)
		r = t_truncate(&t, file_id[f], file_blocks[f] * BLOCK_BYTES - 4000);
	if (r == 0)
		r = t_create(&t, t.root, "held", &id);
	if (r == 0)
		r = t_write(&t, id, 0, "held", 4, FS_FILE_SYNC);
	if (r == 0)
		r = fs_hold(t.fs, id);
	if (r == 0)
		r = t_unlink(&t, t.root, "held");
	for (unsigned f = 20; f < 30 && r == 0; f += 3) {
		snprintf(name, sizeof(name), "clone%u", f);
		r = t_create(&t, t.root, name, &id);
		if (r == 0)
			r = fs_clone(t.fs, &op_root, file_id[f], 0, id, 0, 0, NULL);
	}
	/* some of it is in the tree, and some only in the log */
	return r == 0 ? fs_checkpoint(t.fs) : r;
}

static int tail_fill(void)
{
	struct fs_id dir = {0}, id = {0};
	char name[32];
	int r = t_mkdir(&t, t.root, "tail", &dir);

	for (unsigned i = 0; i < 20 && r == 0; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		r = t_create(&t, dir, name, &id);
		if (r == 0 && i % 3 == 0)
			r = t_unlink(&t, dir, name);
	}
	return r;
}

static void place_add(int kind, unsigned drive, size_t at)
{
	image.of[kind] = realloc(image.of[kind], (image.n[kind] + 1) * sizeof(struct place));
	image.of[kind][image.n[kind]++] = (struct place){drive, at};
}

static void image_scan(unsigned drive, size_t at, int *last_node)
{
	static const uint8_t zero[BLOCK_BYTES];
	const uint8_t *b = image.bytes[drive] + at;
	const struct node_disk *h = (const void *)b;

	if (memcmp(b, FS_ROOT_MAGIC, 8) == 0) {
		place_add(PLACE_ROOT, drive, at);
	} else if (le32_get(h->magic) == NODE_MAGIC) {
		place_add(PLACE_NODE, drive, at);
		*last_node = 4;
	} else if (le32_get(((const struct batch_disk *)(const void *)b)->magic) == LOG_MAGIC) {
		place_add(PLACE_LOG, drive, at);
	} else if (*last_node <= 0 && at > (1u << 20) && memcmp(b, zero, BLOCK_BYTES) != 0) {
		place_add(PLACE_DATA, drive, at);
	}
	--*last_node;
}

static int image_take(void)
{
	for (unsigned i = 0; i < t.count; i++) {
		int fd = open(files_test_file(t.path[i]), O_RDONLY | O_CLOEXEC), last_node = 0;
		struct stat st;

		if (fd < 0 || fstat(fd, &st) < 0)
			return -EIO;
		image.size = (size_t)st.st_size;
		image.bytes[i] = malloc(image.size);
		if (pread(fd, image.bytes[i], image.size, 0) != (ssize_t)image.size)
			return -EIO;
		close(fd);
		for (size_t at = 0; at + BLOCK_BYTES <= image.size; at += BLOCK_BYTES)
			image_scan(i, at, &last_node);
	}
	return image.n[PLACE_ROOT] && image.n[PLACE_LOG] && image.n[PLACE_NODE] && image.n[PLACE_DATA] ? 0 : -ENOENT;
}

static void image_put(void)
{
	static const uint8_t zero[BLOCK_BYTES];

	for (unsigned i = 0; i < t.count; i++) {
		int fd = open(files_test_file(t.path[i]), O_RDWR | O_TRUNC | O_CLOEXEC);

		if (ftruncate(fd, (off_t)image.size) < 0)
			abort();
		for (size_t at = 0; at < image.size; at += BLOCK_BYTES)
			if (memcmp(image.bytes[i] + at, zero, BLOCK_BYTES) != 0 &&
				pwrite(fd, image.bytes[i] + at, BLOCK_BYTES, (off_t)at) != BLOCK_BYTES)
				abort();
		close(fd);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Damage
 */

static const uint64_t odd[] = {0, 1, 2, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0xffff, 0x10000, 0x7fffffff, 0x80000000,
	0xffffffff, 0x100000000, 0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff};

/* A few bytes somewhere in BYTES, rather where there is something. */
static void spoil_bytes(uint8_t *bytes, size_t len)
{
	size_t at = test_below(&seed, (uint32_t)len), width = 1u << test_below(&seed, 4);
	uint64_t value =
		test_below(&seed, 2) ? odd[test_below(&seed, sizeof(odd) / sizeof(odd[0]))] : test_random(&seed);

	for (unsigned i = 0; i < 50 && bytes[at] == 0; i++)
		at = test_below(&seed, (uint32_t)len);
	if (test_below(&seed, 3) == 0) {
		bytes[at] ^= (uint8_t)(1u << test_below(&seed, 8));
		return;
	}
	at = at / width * width;
	memcpy(bytes + at, &value, at + width <= len ? width : len - at);
}

static void spoil_value(uint8_t *node)
{
	unsigned count = image_count(node);
	struct slot_disk *s;
	uint32_t off, len;

	if (count == 0)
		return;
	s = &image_slots(node)[test_below(&seed, count)];
	off = le16_get(s->off);
	len = le16_get(s->len);
	if (test_below(&seed, 8) == 0)
		s->len = le16_put((uint16_t)(len - test_below(&seed, len + 1)));
	else if (test_below(&seed, 8) == 0)
		spoil_bytes((uint8_t *)s, sizeof(*s));
	else if (len && off + len <= TREE_NODE_BYTES)
		spoil_bytes(node + off, len);
}

static void seal(int kind, uint8_t *b)
{
	if (kind == PLACE_NODE) {
		image_seal(b);
	} else if (kind == PLACE_ROOT) {
		struct root_disk *r = (void *)b;

		r->checksum = le64_put(checksum64(b + FS_ROOT_CHECKED, sizeof(*r) - FS_ROOT_CHECKED, 0));
	} else if (kind == PLACE_LOG) {
		struct batch_disk *h = (void *)b;

		h->checksum = le64_put(0);
		h->checksum = le64_put(checksum64(b, BLOCK_BYTES, 0));
	}
}

static bool damage(void)
{
	static uint8_t work[TREE_NODE_BYTES];
	bool sealed = test_below(&seed, 3) != 0;
	unsigned times = 1 + test_below(&seed, 4);

	for (unsigned i = 0; i < times; i++) {
		int kind = test_below(&seed, 2) ? PLACE_NODE : (int)test_below(&seed, 4);
		const struct place *p = &image.of[kind][test_below(&seed, image.n[kind])];
		size_t len = kind == PLACE_NODE ? TREE_NODE_BYTES : BLOCK_BYTES;
		int fd = open(files_test_file(t.path[p->drive]), O_RDWR | O_CLOEXEC);

		if (pread(fd, work, len, (off_t)p->at) != (ssize_t)len)
			abort();
		if (!sealed && test_below(&seed, 4) == 0)
			memset(work, (int)test_below(&seed, 256), len);
		else if (kind == PLACE_NODE && sealed && test_below(&seed, 4))
			spoil_value(work);
		else
			spoil_bytes(work, kind == PLACE_LOG ? 700 : kind == PLACE_ROOT ? 208 : len);
		if (sealed)
			seal(kind, work);
		if (pwrite(fd, work, len, (off_t)p->at) != (ssize_t)len)
			abort();
		close(fd);
	}
	return sealed;
}

/* ------------------------------------------------------------------------------------------------
 * Use
 */

struct walk {
	struct fs_id queue[400];
	enum fs_type type[400];
	unsigned n;
	uint64_t entries;
	bool sealed;
};

static bool walk_entry(void *arg, const struct fs_dirent *e)
{
	struct walk *w = arg;

	if (e->cookie > 2 && w->n < 400) {
		w->type[w->n] = e->type;
		w->queue[w->n++] = e->id;
	}
	return ++w->entries < 100000;
}

static bool walk_xattr(void *arg, const char *name, size_t len)
{
	(void)name;
	(void)len;
	return ++*(unsigned *)arg < 1000;
}

/* Every block is what was written to the file of this number, or cannot be read. */
static void read_file(struct walk *w, struct fs_id id)
{
	uint8_t block[BLOCK_BYTES], want[BLOCK_BYTES];
	struct fs_attr attr;

	if (fs_getattr(t.fs, id, &attr) < 0)
		return;
	for (uint32_t b = 0; b < BLOCKS_MAX + 2; b++) {
		int r = t_read(&t, id, (uint64_t)b * BLOCK_BYTES, block, BLOCK_BYTES, NULL);

		if (r <= 0 || w->sealed)
			continue;
		for (unsigned f = 0; f < FILES; f++) {
			if (file_id[f].ino != id.ino)
				continue;
			block_fill(want, f, b);
			if (b >= file_blocks[f] || memcmp(block, want, (size_t)r) != 0)
				CHECK_FAILED("round %u: block %u of file %u is not what was written", round_now, b, f);
		}
	}
}

static void read_all(struct walk *w)
{
	struct fs_attr attr;

	if (fs_root(t.fs, &attr) < 0)
		return;
	w->n = 1;
	w->queue[0] = attr.id;
	w->type[0] = FS_DIR;
	if (t_lookup(&t, attr.id, ".snapshot", &attr) == 0 && t_lookup(&t, attr.id, "snap", &attr) == 0) {
		w->queue[w->n] = attr.id;
		w->type[w->n++] = FS_DIR;
	}
	for (unsigned i = 0; i < w->n; i++) {
		char target[FS_SYMLINK_MAX];
		uint64_t cookie = 0;
		unsigned xattrs = 0;
		bool eof = false;

		fs_listxattr(t.fs, &op_root, w->queue[i], &cookie, walk_xattr, &xattrs, &eof);
		fs_getxattr(t.fs, &op_root, w->queue[i], "user.some", 9, NULL, 0, &(size_t){0});
		if (w->type[i] == FS_DIR)
			fs_readdir(t.fs, &op_root, w->queue[i], 0, i % 2, walk_entry, w, &eof, NULL);
		else if (w->type[i] == FS_LNK)
			fs_readlink(t.fs, &op_root, w->queue[i], target, sizeof(target), NULL);
		else
			read_file(w, w->queue[i]);
	}
}

static bool dump_line(void *arg, const char *line)
{
	(void)line;
	return ++*(unsigned *)arg < 20000;
}

/* Whatever it answers: it is not to crash. */
static void use(struct walk *w)
{
	static const char *const what[] = {"root", "log", "nodes", "stripes", "owners", "shares", "snapshots",
		"orphans", "replies", "counters", "inode", "dir", "xattrs", "extents"};
	struct fs_attr root;
	struct fs_id id = {0};
	uint8_t data[20000] = {1};
	unsigned lines = 0;

	for (unsigned i = 0; i < sizeof(what) / sizeof(what[0]); i++)
		fs_dump(t.fs, what[i], 0, dump_line, &lines);
	if (fs_root(t.fs, &root) < 0)
		return;
	if (t_create(&t, root.id, "new", &id) == 0) {
		t_write(&t, id, 100, data, sizeof(data), FS_FILE_SYNC);
		fs_clone(t.fs, &op_root, id, 0, id, 8 * BLOCK_BYTES, 4 * BLOCK_BYTES, NULL);
	}
	for (unsigned i = 1; i < w->n; i += 1 + test_below(&seed, 3)) {
		t_write(&t, w->queue[i], 5000, data, 5000, FS_UNSTABLE);
		if (i % 3 == 0)
			t_truncate(&t, w->queue[i], 3000);
		if (i % 5 == 0 && w->type[i] == FS_REG)
			fs_clone(t.fs, &op_root, w->queue[i], 0, id, 0, 0, NULL);
		if (i % 7 == 0)
			fs_setxattr(t.fs, &op_root, w->queue[i], "user.y", 6, data, 9000, FS_XATTR_EITHER, NULL);
	}
	t_rename(&t, root.id, "new", root.id, "clone20");
	t_unlink(&t, root.id, "clone23");
	t_rmdir(&t, root.id, "dir1");
	fs_snapshot_create(t.fs, "two");
	fs_snapshot_delete(t.fs, "snap");
	fs_snapshots_wait(t.fs);
}

static unsigned left_data, left_other;
static void left_report(void *arg, const char *problem)
{
	bool data = strstr(problem, "cannot be read") || strstr(problem, "no extent has their place");

	++*(unsigned *)arg;
	left_data += data;
	left_other += !data;
	if (!data && getenv("FURROW_SAID"))
		fprintf(stderr, "round %u: left: %s\n", round_now, problem);
}

static void no_report(void *arg, const char *problem)
{
	if (getenv("FURROW_SAID") && getenv("FURROW_FIRST"))
		fprintf(stderr, "round %u: %s\n", round_now, problem);
	++*(unsigned *)arg;
}

static void timer_set(int seconds)
{
	struct itimerval it = {.it_value = {.tv_sec = seconds}};

	setitimer(ITIMER_PROF, &it, NULL);
}

static void timed_out(int sig)
{
	char text[100];
	int n = snprintf(text, sizeof(text), "round %u goes on for ever\n", round_now);

	(void)sig;
	if (write(2, text, (size_t)n) < 0)
		_exit(99);
	abort();
}

static unsigned counts[6];

static void round_run(struct walk *w)
{
	struct fs_check_result result;
	struct fs_repair_result repair;
	struct error err = {0};
	unsigned found = 0;

	image_put();
	memset(w, 0, sizeof(*w));
	w->sealed = damage();
	CHECK_OK(files_test_open_volume(&t, &err));
	t.options.read_only = test_below(&seed, 8) == 0;
	timer_set(ROUND_SECONDS);
	if (fs_mount(t.volume, &t.options, &t.fs, &err) == 0) {
		counts[0]++;
		if (test_below(&seed, 2))
			fs_check(t.fs, true, no_report, NULL, &found, &result);
		counts[1] += found > 0;
		read_all(w);
		if (!t.options.read_only && test_below(&seed, 2))
			use(w);
		fs_unmount(t.fs);
		t.fs = NULL;
	} else {
		t.fs = NULL;
	}
	/* and what a repair makes of it */
	t.options.read_only = false;
	found = 0;
	if (fs_repair(t.volume, no_report, &found, &repair, &err) == 0) {
		counts[2]++;
		found = 0;
		if (fs_mount(t.volume, &t.options, &t.fs, &err) == 0) {
			counts[3]++;
			fs_check(t.fs, true, left_report, NULL, &found, &result);
			counts[4] += found > 0;
			fs_unmount(t.fs);
		}
		t.fs = NULL;
	}
	timer_set(0);
	files_test_close(&t);
}

/* Rounds that have shown faults of the repair, all of another kind. */
static const struct {
	uint64_t base;
	unsigned round;
} once[] = {{7001, 997}, {300000, 1393}, {400000, 717}, {900000, 1434}, {1100000, 2163}};

static void body_fuzz(void *arg)
{
	unsigned rounds = getenv("FURROW_ROUNDS") ? (unsigned)atoi(getenv("FURROW_ROUNDS")) : ROUNDS, first = 0;
	uint64_t base = getenv("FURROW_SEED") ? strtoull(getenv("FURROW_SEED"), NULL, 0) : 20261130;
	struct walk *w = malloc(sizeof(*w));

	(void)arg;
	if (getenv("FURROW_FIRST"))
		first = (unsigned)atoi(getenv("FURROW_FIRST"));
	CHECK_OK(image_fill());
	CHECK_OK(tail_fill());
	for (unsigned i = 0; i < t.count; i++)
		fault_power_cut(t.path[i], 1, 1000);
	files_test_close(&t);
	fault_reset();
	CHECK_OK(image_take());
	for (unsigned i = 0; i < sizeof(once) / sizeof(once[0]) && !getenv("FURROW_SEED"); i++) {
		round_now = once[i].round;
		seed = hash_u64(once[i].base + round_now);
		round_run(w);
	}
	for (unsigned i = first; i < first + rounds && !test_failure[0]; i++) {
		round_now = i;
		seed = hash_u64(base + i);
		round_run(w);
	}
	printf("seed %llu: %u rounds, %u mounted, %u of those checked had faults, %u repaired, %u mounted then, %u had "
	       "faults left\n",
		(unsigned long long)base, rounds, counts[0], counts[1], counts[2], counts[3], counts[4]);
	if (left_other)
		CHECK_FAILED(
			"%u faults that a repair left are not of lost data (FURROW_SAID=1 names them)", left_other);
	CHECK(counts[0] > rounds / 10 && counts[3] > rounds / 4);
	for (unsigned i = 0; i < t.count; i++)
		free(image.bytes[i]);
	for (unsigned i = 0; i < 4; i++)
		free(image.of[i]);
	free(w);
}

static void test_fuzz(void **state)
{
	int threshold = atomic_load(&log_threshold);

	(void)state;
	atomic_store(&log_threshold, -1);
	signal(SIGPROF, timed_out);
	files_test_drives(&t, 2, 24u << 20);
	files_test_run(body_fuzz, NULL);
	fault_reset();
	files_test_remove(&t);
	atomic_store(&log_threshold, threshold);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_fuzz)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
