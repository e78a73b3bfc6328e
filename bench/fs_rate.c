/*
 * The file system by itself, on files as drives and one core: what a written byte costs in bytes of drives, and the
 * patterns that break other servers. Prints a line of JSON for each figure: name, value, unit, peer, ratio, target.
 *
 *   fs_rate [--only PART] [--mib N] [--percent N] [--long]
 *
 * PART: seqwrite, overwrite, smallfile, create, metadata, patterns, lookup, inode, readdir. --mib: size of each of the
 * ten drives (RAID 6, 8+2); they are sparse files in $TMPDIR, /dev/shm or /tmp, and go at the end. --long: 10 million
 * files instead of 300,000, and random overwriting at 80, 90 and 100 % too;
 * --percent: at N % alone.
 *
 * Bytes and writes are those of all drives: parity, copies of the log and the last checkpoint are in them. Rates are
 * of processor time and not of a clock, so that others on the machine do not count; where two patterns are compared,
 * they take turns. Instructions are counted one by one (steps.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench/figure.h"
#include "bench/steps.h"
#include "core/core.h"
#include "fs/fs.h"
#include "raid/raid.h"

#define DRIVES 10u
#define LOG_COPIES 3u /* of level 6 */
#define MIB (1u << 20)

static uint64_t drive_mib = 256;
static unsigned only_percent;
static bool long_form, failed;
static const char *only;

static const struct fs_cred root_cred;
static const struct fs_op op = {.cred = &root_cred};

static bool give_up(const char *what, int error, const char *why)
{
	fprintf(stderr, "fs_rate: %s: %s\n", what, why && *why ? why : strerror(-error));
	failed = true;
	return false;
}

/* ---- a file system on ten files ---- */

struct rig {
	char dir[200], path[DRIVES][232];
	const char *paths[DRIVES];
	struct array *array;
	struct volume *volume;
	struct fs *fs;
	struct fs_id root;
	struct fs_mount_options options;
};

static bool rig_files(struct rig *r, uint64_t mib)
{
	const char *base = getenv("TMPDIR");

	if (!base)
		base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
	snprintf(r->dir, sizeof(r->dir), "%.150s/furrow-rate-XXXXXX", base);
	if (!mkdtemp(r->dir))
		return give_up(r->dir, -errno, NULL);
	for (unsigned i = 0; i < DRIVES; i++) {
		snprintf(r->path[i], sizeof(r->path[i]), "%s/drive%u", r->dir, i);
		r->paths[i] = r->path[i];
		int fd = open(r->path[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0 || ftruncate(fd, (off_t)(mib * MIB)))
			return give_up(r->path[i], -errno, NULL);
		close(fd);
	}
	return true;
}

static bool rig_mount(struct rig *r)
{
	struct raid_scan scan;
	struct error err = {0};
	struct fs_attr attr;
	int e = raid_scan(r->paths, DRIVES, &scan, &err);

	if (e == 0) {
		e = array_open(&scan, "bench", &r->array, &err);
		raid_scan_free(&scan);
	}
	if (e == 0)
		e = volume_open(r->array, "v", &r->volume, &err);
	if (e == 0)
		e = fs_mount(r->volume, &r->options, &r->fs, &err);
	if (e == 0)
		e = fs_root(r->fs, &attr);
	r->root = attr.id;
	return e ? give_up("mount", e, err.text) : true;
}

/* CACHE_MIB: for nodes and clean data together. */
static bool rig_make(struct rig *r, uint64_t mib, unsigned cache_mib)
{
	struct error err = {0};
	struct raid_scan scan;

	memset(r, 0, sizeof(*r));
	r->options.cache_bytes = (uint64_t)cache_mib * MIB;
	if (!rig_files(r, mib))
		return false;
	struct array_create create = {.name = "bench", .level = 6, .drives = r->paths, .count = DRIVES};
	int e = array_create(&create, &err);
	if (e == 0)
		e = raid_scan(r->paths, DRIVES, &scan, &err);
	if (e == 0) {
		e = array_open(&scan, "bench", &r->array, &err);
		raid_scan_free(&scan);
	}
	if (e == 0)
		e = volume_create(r->array, "v", 0, &err);
	if (e == 0)
		e = volume_open(r->array, "v", &r->volume, &err);
	if (e == 0)
		e = fs_create(r->volume, NULL, &err);
	if (e)
		return give_up("make", e, err.text);
	volume_close(r->volume);
	array_close(r->array);
	return rig_mount(r);
}

static void rig_unmount(struct rig *r)
{
	int e = r->fs ? fs_unmount(r->fs) : 0;

	if (e)
		give_up("unmount", e, NULL);
	r->fs = NULL;
}

static void rig_close(struct rig *r)
{
	rig_unmount(r);
	if (r->volume)
		volume_close(r->volume);
	if (r->array)
		array_close(r->array);
	r->volume = NULL;
	r->array = NULL;
}

static void rig_remove(struct rig *r)
{
	for (unsigned i = 0; i < DRIVES && r->paths[i]; i++)
		unlink(r->path[i]);
	rmdir(r->dir);
}

static void rig_end(struct rig *r)
{
	rig_close(r);
	rig_remove(r);
}

struct count {
	uint64_t reads, read_bytes, writes, write_bytes, log_bytes; /* log_bytes: of one copy */
};

static struct count rig_count(struct rig *r)
{
	struct array_status *s = calloc(1, sizeof(*s));
	struct count c = {0};

	array_status(r->array, s);
	for (unsigned i = 0; i < DRIVES; i++) {
		c.reads += s->member[i].reads;
		c.read_bytes += s->member[i].read_bytes;
		c.writes += s->member[i].writes;
		c.write_bytes += s->member[i].write_bytes;
	}
	free(s);
	if (r->fs) {
		struct fs_status status;
		fs_status(r->fs, &status);
		c.log_bytes = status.log_bytes;
	}
	return c;
}

/* ---- many at a time ---- */

struct crew {
	struct rig *rig;
	unsigned workers;
	uint64_t next, jobs;
	int (*job)(struct crew *crew, unsigned worker, uint64_t n);
	/* what jobs look at */
	struct fs_id id, dir[64];
	uint64_t blocks, seed, done[64]; /* done: by each worker */
	uint32_t bytes;
	enum fs_stable stable;
	bool hard;
	struct wait_group wait;
};
struct crew_worker {
	struct crew *crew;
	unsigned index;
};

static void crew_fiber(void *arg)
{
	struct crew_worker *w = arg;
	struct crew *c = w->crew;
	int e = 0;

	while (e == 0 && c->next < c->jobs)
		e = c->job(c, w->index, c->next++);
	wait_group_done(&c->wait, e);
}

static bool crew_run(struct crew *c, uint64_t jobs)
{
	struct crew_worker worker[64];

	wait_group_init(&c->wait);
	c->next = 0;
	c->jobs = jobs;
	for (unsigned i = 0; i < c->workers; i++) {
		worker[i] = (struct crew_worker){c, i};
		wait_group_add(&c->wait, 1);
		if (fiber_spawn(crew_fiber, &worker[i]))
			wait_group_done(&c->wait, -EAGAIN);
	}
	int e = wait_group_wait(&c->wait);
	return e ? give_up("operation", e, NULL) : true;
}

static int file_write(struct rig *r, struct fs_id id, uint64_t off, uint32_t bytes, enum fs_stable stable)
{
	static uint64_t stamp;
	struct slice v[16];
	int n = fs_write_buffers(off, bytes, v, 16);

	if (n < 0)
		return n;
	/* no two blocks are the same, nor are their checksums, which else would be packed to nothing */
	for (int i = 0; i < n; i++)
		for (uint32_t at = 0; at < v[i].len; at += BLOCK_BYTES, stamp++)
			memcpy(slice_data(&v[i]) + at, &stamp,
				v[i].len - at < sizeof(stamp) ? v[i].len - at : sizeof(stamp));
	int e = fs_write(r->fs, &op, id, off, v, (unsigned)n, stable, NULL, NULL);
	slices_put(v, (unsigned)n);
	return e;
}

static int file_make(struct rig *r, struct fs_id dir, const char *name, struct fs_id *id)
{
	struct fs_setattr set = {.set = FS_SET_MODE, .mode = 0644};
	struct fs_attr attr;
	int e = fs_create_file(r->fs, &op, dir, name, strlen(name), FS_CREATE_GUARDED, &set, 0, &attr, NULL);

	*id = attr.id;
	return e;
}

static bool dir_make(struct rig *r, const char *name, struct fs_id *id)
{
	struct fs_setattr set = {.set = FS_SET_MODE, .mode = 0755};
	struct fs_attr attr;
	int e = fs_mkdir(r->fs, &op, r->root, name, strlen(name), &set, &attr, NULL);

	*id = attr.id;
	return e ? give_up(name, e, NULL) : true;
}

/* Pieces of BYTES one after the other. */
static int job_sequential(struct crew *c, unsigned worker, uint64_t n)
{
	(void)worker;
	return file_write(c->rig, c->id, n * c->bytes, c->bytes, c->stable);
}

static int job_overwrite(struct crew *c, unsigned worker, uint64_t n)
{
	(void)worker;
	(void)n;
	c->seed += 0x9e3779b97f4a7c15ull;
	return file_write(c->rig, c->id, hash_u64(c->seed) % c->blocks * BLOCK_BYTES, BLOCK_BYTES, FS_FILE_SYNC);
}

/* A file of BYTES in the worker's directory. */
static int job_create(struct crew *c, unsigned worker, uint64_t n)
{
	struct fs_id id;
	char name[32];

	snprintf(name, sizeof(name), "file%09llu", (unsigned long long)n);
	int e = file_make(c->rig, c->dir[worker], name, &id);
	for (uint64_t off = 0; e == 0 && off < c->bytes; off += MIB)
		e = file_write(c->rig, id, off, c->bytes - off < MIB ? (uint32_t)(c->bytes - off) : MIB, FS_FILE_SYNC);
	return e;
}

/* ---- amplification ---- */

static bool fill(struct rig *r, struct crew *c, const char *name, uint64_t bytes, enum fs_stable stable)
{
	*c = (struct crew){.rig = r, .workers = 8, .job = job_sequential, .bytes = MIB, .stable = stable};
	int e = file_make(r, r->root, name, &c->id);
	if (e)
		return give_up(name, e, NULL);
	if (!crew_run(c, bytes / MIB))
		return false;
	e = fs_commit(r->fs, &op, c->id, 0, 0, NULL);
	return e ? give_up("commit", e, NULL) : true;
}

static void seqwrite_measure(void)
{
	struct rig r;
	struct crew c;
	struct fs_statfs s;

	if (!rig_make(&r, drive_mib, 64))
		return;
	fs_statfs(r.fs, &s);
	struct count before = rig_count(&r), after;
	uint64_t bytes = s.bytes_available / 2 / MIB * MIB;
	if (fill(&r, &c, "file", bytes, FS_UNSTABLE)) {
		rig_unmount(&r);
		after = rig_count(&r);
		figure("fs.seqwrite.amplification", (double)(after.write_bytes - before.write_bytes) / (double)bytes,
			"bytes/byte", 0, 0, 1.25 * 1.02, false);
	}
	rig_end(&r);
}

/* Writes JOBS random blocks and tells the drive bytes for a byte. */
static double overwrite_cost(struct crew *c, uint64_t jobs, unsigned depth, double *reads)
{
	struct count before = rig_count(c->rig), after;

	c->workers = depth;
	c->job = job_overwrite;
	if (!crew_run(c, jobs))
		return 0;
	after = rig_count(c->rig);
	if (reads)
		*reads = (double)(after.reads - before.reads) / (double)jobs;
	return (double)(after.write_bytes - before.write_bytes) / ((double)jobs * BLOCK_BYTES);
}

static void overwrite_measure(unsigned percent)
{
	struct rig r;
	struct crew c;
	struct fs_statfs s;
	struct fs_status status;
	char name[64];
	double reads = 0, worst = 0;

	if (!rig_make(&r, drive_mib, 256))
		return;
	fs_statfs(r.fs, &s);
	uint64_t bytes = s.bytes_available / 100 * percent / MIB * MIB, written = 0, piece;
	if (!fill(&r, &c, "file", bytes, FS_UNSTABLE))
		goto out;
	c.blocks = bytes / BLOCK_BYTES;
	piece = c.blocks / 16;
	snprintf(name, sizeof(name), percent == 70 ? "fs.overwrite4k.amplification" : "fs.overwrite4k_%u.amplification",
		percent);
	while (written < 3 * c.blocks && !failed) {
		double cost = overwrite_cost(&c, piece, 32, &reads);
		written += piece;
		fs_status(r.fs, &status);
		if (status.cleaner_moved_blocks == 0 && reads > worst)
			worst = reads;
		if (getenv("FS_RATE_VERBOSE"))
			fprintf(stderr,
				"%5.2f cost %.3f reads %.3f free %llu/%llu nodes %llu dirty %llu ckpt %llu moved "
				"%llu\n",
				(double)written / (double)c.blocks, cost, reads,
				(unsigned long long)status.stripes_free, (unsigned long long)status.stripes_total,
				(unsigned long long)status.cached_nodes, (unsigned long long)status.dirty_nodes,
				(unsigned long long)status.checkpoints,
				(unsigned long long)status.cleaner_moved_blocks);
	}
	double cost = overwrite_cost(&c, c.blocks, 32, NULL); /* the cleaner works in bursts: many of them */
	if (percent == 70) {
		figure(name, cost, "bytes/byte", 0, 0, 2.7, false);
		figure("fs.overwrite4k.reads", worst, "reads/write", 0, 0, 0.05, false);
		figure_told("fs.overwrite4k_depth1.amplification", overwrite_cost(&c, c.blocks / 32, 1, NULL),
			"bytes/byte");
	} else {
		figure_told(name, cost, "bytes/byte");
	}
out:
	rig_end(&r);
}

/* Files of BYTES, WORKERS at a time, in one directory; with the unmount. Below 4 GiB a file system makes smaller groups
 * of what is flushed, which cost more log each. */
static struct count files_cost(uint64_t files, uint32_t bytes, unsigned workers)
{
	struct rig r;
	struct crew c = {.rig = &r, .workers = workers, .job = job_create, .bytes = bytes};
	struct count before = {0}, after = {0};

	if (rig_make(&r, 2 * drive_mib, 128) && dir_make(&r, "dir", &c.dir[0])) {
		for (unsigned i = 1; i < workers; i++)
			c.dir[i] = c.dir[0];
		before = rig_count(&r);
		crew_run(&c, files);
		after = rig_count(&r);
		before.log_bytes = after.log_bytes - before.log_bytes;
		rig_unmount(&r);
		after = rig_count(&r);
	}
	rig_end(&r);
	return (struct count){.writes = after.writes - before.writes,
		.write_bytes = after.write_bytes - before.write_bytes,
		.log_bytes = before.log_bytes};
}

static void smallfile_measure(void)
{
	const uint64_t files = 30000;
	struct count c = files_cost(files, 3901, 64);

	figure("fs.smallfile.amplification", (double)c.write_bytes / (3901.0 * (double)files), "bytes/byte", 0, 0, 1.7,
		false);
}

static void create_measure(void)
{
	const uint64_t files = 50000;
	struct count c = files_cost(files, 0, 64);

	figure("fs.create.drive_writes", (double)c.writes / (double)files, "writes/create", 0, 0, 0.1, false);
	figure_told("fs.create.drive_bytes", (double)c.write_bytes / (double)files, "bytes/create");
}

static void metadata_measure(void)
{
	const uint64_t files = 768;
	struct count c = files_cost(files, MIB, 32);
	double data = (double)files * MIB, all = (double)c.write_bytes / data - 1.25,
	       log = (double)(c.log_bytes * LOG_COPIES) / data;

	figure("fs.metadata_1m", all * 100, "% of data", 0, 0, 0.5, false);
	figure_told("fs.metadata_1m.log", log * 100, "% of data");
	figure_told("fs.metadata_1m.tree", (all - log) * 100, "% of data");
}

/* ---- patterns ---- */

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

#define WRITERS 32u
#define HARD_BYTES 47008u

/* HARD: each writer's next piece of one shared file; else a whole MiB of the writer's own file. */
static int job_ior(struct crew *c, unsigned worker, uint64_t n)
{
	if (c->hard)
		return file_write(c->rig, c->id, n * HARD_BYTES, HARD_BYTES, FS_UNSTABLE);
	return file_write(c->rig, c->dir[worker], c->done[worker]++ * MIB, MIB, FS_UNSTABLE);
}

static double ior_rate(struct rig *r, bool hard, uint64_t bytes)
{
	struct crew c = {.rig = r, .workers = WRITERS, .job = job_ior, .hard = hard};
	uint64_t jobs = bytes / (hard ? HARD_BYTES : MIB);
	unsigned files = hard ? 1 : WRITERS;
	char name[32];
	int e = 0;

	for (unsigned i = 0; i < files && e == 0; i++) {
		snprintf(name, sizeof(name), "ior%u", i);
		e = file_make(r, r->root, name, &c.dir[i]);
	}
	c.id = c.dir[0];
	double begin = cpu_s();
	if (e == 0)
		crew_run(&c, jobs);
	for (unsigned i = 0; i < files && e == 0; i++)
		e = fs_commit(r->fs, &op, c.dir[i], 0, 0, NULL);
	double rate = (double)(jobs * (hard ? HARD_BYTES : MIB)) / (cpu_s() - begin) / 1e6;
	for (unsigned i = 0; i < files && e == 0; i++) {
		snprintf(name, sizeof(name), "ior%u", i);
		e = fs_unlink(r->fs, &op, r->root, name, strlen(name), NULL);
	}
	if (e)
		give_up("ior", e, NULL);
	return rate;
}

static double mdtest_rate(struct rig *r, bool hard, uint32_t bytes, uint64_t files)
{
	static unsigned serial;
	struct crew c = {.rig = r, .workers = WRITERS, .job = job_create, .bytes = bytes};
	char name[32];

	for (unsigned i = 0; i < WRITERS; i++) {
		snprintf(name, sizeof(name), "md%u", serial++);
		if (hard && i > 0)
			c.dir[i] = c.dir[0];
		else if (!dir_make(r, name, &c.dir[i]))
			return 1;
	}
	double begin = cpu_s();
	crew_run(&c, files);
	return (double)files / (cpu_s() - begin);
}

static void patterns_measure(void)
{
	enum { ROUNDS = 5 };
	struct rig r;
	double hard[ROUNDS], easy[ROUNDS], ratio[ROUNDS];
	const uint64_t files = 10000, bytes = 256u * MIB;

	if (!rig_make(&r, drive_mib, 128))
		return;
	for (unsigned i = 0; i < ROUNDS && !failed; i++) {
		easy[i] = ior_rate(&r, false, bytes);
		hard[i] = ior_rate(&r, true, bytes);
		ratio[i] = hard[i] / easy[i];
	}
	if (!failed)
		figure("fs.ior_hard_over_easy", median(hard, ROUNDS), "MB/cpu-s", median(easy, ROUNDS),
			median(ratio, ROUNDS), 0.5, true);
	for (unsigned i = 0; i < ROUNDS && !failed; i++) {
		easy[i] = mdtest_rate(&r, false, 3901, files);
		hard[i] = mdtest_rate(&r, true, 3901, files);
		ratio[i] = hard[i] / easy[i];
	}
	if (!failed)
		figure("fs.mdtest_hard_over_easy", median(hard, ROUNDS), "files/cpu-s", median(easy, ROUNDS),
			median(ratio, ROUNDS), 0.5, true);
	for (unsigned i = 0; i < ROUNDS && !failed; i++)
		hard[i] = mdtest_rate(&r, true, 0, files);
	if (!failed)
		figure("fs.create_rate", median(hard, ROUNDS), "creates/cpu-s", 0, 0, 36000, true);
	rig_end(&r);
}

/* ---- names and inodes ---- */

#define LOOKUPS 200u

struct names {
	const struct core_config *config;
	uint64_t files;
	char dir[200];
	struct rig *rig; /* shared with the child, so that the parent can remove its files */
};

static bool names_make(struct rig *r, uint64_t files, unsigned cache_mib, struct fs_id *dir)
{
	struct crew c = {.rig = r, .workers = 64, .job = job_create};
	uint64_t need = files * 700 / DRIVES * 2 / MIB + 64;

	if (!rig_make(r, need > drive_mib ? need : drive_mib, cache_mib) || !dir_make(r, "dir", dir))
		return false;
	for (unsigned i = 0; i < c.workers; i++)
		c.dir[i] = *dir;
	return crew_run(&c, files);
}

static void lookup_one(struct rig *r, struct fs_id dir, uint64_t n)
{
	struct fs_attr attr;
	char name[32];

	snprintf(name, sizeof(name), "file%09llu", (unsigned long long)n);
	int e = fs_lookup(r->fs, &op, dir, name, strlen(name), &attr, NULL);
	if (e == 0)
		e = fs_getattr(r->fs, attr.id, &attr);
	if (e)
		give_up(name, e, NULL);
}

static void lookup_load(void *arg)
{
	struct names *n = arg;
	struct rig r;
	struct fs_id dir;

	if (names_make(&r, n->files, 256, &dir)) {
		for (unsigned i = 0; i < LOOKUPS; i++)
			lookup_one(&r, dir, hash_u64(i) % n->files);
		steps_ready();
		mark_begin();
		for (unsigned i = 0; i < LOOKUPS; i++)
			lookup_one(&r, dir, hash_u64(i) % n->files);
		mark_end();
	}
	rig_end(&r);
	_exit(failed);
}

static void lookup_child(void *arg)
{
	struct names *n = arg;
	struct error err = {0};

	(void)core_main(n->config, lookup_load, n, &err);
}

static void lookup_measure(const struct core_config *config)
{
	struct names few = {.config = config, .files = 10000},
		     many = {.config = config, .files = long_form ? 10000000 : 300000};
	int64_t a = steps_count(lookup_child, NULL, &few), b = steps_count(lookup_child, NULL, &many);

	failed = failed || a < 0 || b < 0;
	if (a > 0 && b > 0)
		figure(long_form ? "fs.lookup_10m_over_10k" : "fs.lookup_300k_over_10k", (double)b / LOOKUPS,
			"instructions", (double)a / LOOKUPS, (double)b / (double)a, 1.3, false);
}

struct listing {
	uint64_t n;
	struct fs_id *id;
};

static bool listing_add(void *arg, const struct fs_dirent *entry)
{
	struct listing *l = arg;

	if (l->id && entry->cookie > 2)
		l->id[l->n] = entry->id;
	l->n += entry->cookie > 2;
	return true;
}

static void inode_measure(void)
{
	const uint64_t files = 20000;
	struct rig r;
	struct fs_id dir;
	struct fs_attr attr;
	struct fs_status before, after;
	struct listing l = {.id = calloc(files, sizeof(struct fs_id))};
	bool eof;

	if (names_make(&r, files, 128, &dir)) {
		rig_close(&r);
		rig_mount(&r);
	}
	if (!failed) {
		/* the nodes first, and no inode but the directory's */
		fs_readdir(r.fs, &op, dir, 0, false, listing_add, &l, &eof, &attr);
		fs_status(r.fs, &before);
		uint64_t bytes = mallinfo2().uordblks;
		for (uint64_t i = 0; i < l.n; i++)
			fs_getattr(r.fs, l.id[i], &attr);
		bytes = mallinfo2().uordblks - bytes;
		fs_status(r.fs, &after);
		figure("fs.inode_bytes", (double)bytes / (double)(after.cached_inodes - before.cached_inodes), "bytes",
			0, 0, 256, false);
	}
	free(l.id);
	rig_end(&r);
}

static void readdir_measure(void)
{
	const uint64_t files = long_form ? 1000000 : 200000;
	struct rig r;
	struct fs_id dir;
	struct fs_attr attr;
	double rate[5];
	bool eof;

	if (names_make(&r, files, long_form ? 1024 : 512, &dir))
		for (unsigned i = 0; i < 6; i++) {
			struct listing l = {0};
			double begin = cpu_s();

			int e = fs_readdir(r.fs, &op, dir, 0, true, listing_add, &l, &eof, &attr);
			if (e || l.n != files)
				give_up("readdir", e, NULL);
			if (i > 0)
				rate[i - 1] = (double)files / (cpu_s() - begin);
		}
	if (!failed)
		figure("fs.readdirplus_rate", median(rate, 5), "entries/cpu-s", 0, 0, 1e6, true);
	rig_end(&r);
}

/* ---- main ---- */

static bool wanted(const char *part)
{
	return !only || strcmp(only, part) == 0;
}

static void bench_main(void *arg)
{
	unsigned from = only_percent ? only_percent : 70, to = only_percent || !long_form ? from : 100;

	(void)arg;
	if (wanted("seqwrite"))
		seqwrite_measure();
	if (wanted("smallfile"))
		smallfile_measure();
	if (wanted("create"))
		create_measure();
	if (wanted("metadata"))
		metadata_measure();
	if (wanted("patterns"))
		patterns_measure();
	if (wanted("inode"))
		inode_measure();
	if (wanted("readdir"))
		readdir_measure();
	if (wanted("overwrite"))
		for (unsigned percent = from; percent <= to; percent += 10)
			overwrite_measure(percent);
}

int main(int argc, char **argv)
{
	struct core_config config = {.reactors = 1, .arena_bytes = 1u << 30, .fibers = 512};
	struct error err = {0};

	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
			only = argv[++i];
		} else if (strcmp(argv[i], "--mib") == 0 && i + 1 < argc) {
			drive_mib = strtoull(argv[++i], NULL, 10);
		} else if (strcmp(argv[i], "--percent") == 0 && i + 1 < argc) {
			only_percent = (unsigned)atoi(argv[++i]);
		} else if (strcmp(argv[i], "--long") == 0) {
			long_form = true;
		} else {
			fprintf(stderr, "usage: fs_rate [--only PART] [--mib N] [--long]\n");
			return 2;
		}
	}
	if (long_form && wanted("readdir"))
		config.arena_bytes = 2ull << 30; /* a million entries lie in 350 MiB of nodes */
	atomic_store(&log_threshold, LOG_WARNING);
	log_open(false);
	if (wanted("lookup"))
		lookup_measure(&config);
	if (!(only && strcmp(only, "lookup") == 0) && core_main(&config, bench_main, NULL, &err)) {
		fprintf(stderr, "fs_rate: %s\n", err.text);
		return 1;
	}
	return failed;
}
