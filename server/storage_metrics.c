/*
 * What the metrics page says of arrays and file systems. Their state lives on reactors and some of it can only be asked
 * for by waiting, so it cannot be read by the thread that serves the page, as ordinary gauges are: that thread has a
 * fiber on reactor 0 write this part, and waits for it. Nothing is gathered between two scrapes.
 *
 * The text is complete or it is not there: while the storage opens or closes, the part is left out.
 */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct storage *shown; /* on reactor 0 only */

void storage_metrics_show(struct storage *storage)
{
	shown = storage;
}

/* ------------------------------------------------------------------------------------------------
 * The families: one head, then a sample for each array or file system
 */

struct fs_sample {
	struct list_node node;
	char name[2 * RAID_NAME_MAX + 3];
	struct fs_statfs space;
	struct fs_status status;
};

struct array_sample {
	struct list_node node;
	char name[RAID_NAME_MAX + 1];
	unsigned members[MEMBER_SPARE + 1];
	bool degraded, stopped;
	uint64_t data_bytes, free_bytes;
};

#define FS(member) offsetof(struct fs_sample, member)

static const struct {
	const char *name, *type, *help;
	size_t offset; /* of a uint64_t */
} fs_families[] = {
	{"furrow_fs_size_bytes", "gauge", "Size of a file system", FS(space.bytes_total)},
	{"furrow_fs_free_bytes", "gauge", "Free space of a file system", FS(space.bytes_free)},
	{"furrow_fs_available_bytes", "gauge", "Space that users may still fill", FS(space.bytes_available)},
	{"furrow_fs_files", "gauge", "Inodes in use", FS(status.inodes)},
	{"furrow_fs_files_free", "gauge", "Inodes that may still be made", FS(space.files_free)},
	{"furrow_fs_stripes", "gauge", "Stripes of a file system", FS(status.stripes_total)},
	{"furrow_fs_stripes_free", "gauge", "Stripes that hold nothing", FS(status.stripes_free)},
	{"furrow_fs_dirty_bytes", "gauge", "Data in memory that is not on the drives yet", FS(status.dirty_bytes)},
	{"furrow_fs_cached_nodes", "gauge", "Tree nodes in memory", FS(status.cached_nodes)},
	{"furrow_fs_dirty_nodes", "gauge", "Tree nodes that wait for a checkpoint", FS(status.dirty_nodes)},
	{"furrow_fs_cached_inodes", "gauge", "Inodes in memory", FS(status.cached_inodes)},
	{"furrow_fs_cache_bytes", "gauge", "Clean data in memory", FS(status.cache_bytes)},
	{"furrow_fs_cache_limit_bytes", "gauge", "Most of it there may be now", FS(status.cache_limit_bytes)},
	{"furrow_fs_cache_hits_total", "counter", "Blocks that readers found in memory", FS(status.cache_hits)},
	{"furrow_fs_cache_misses_total", "counter", "Blocks that readers took from the drives",
		FS(status.cache_misses)},
	{"furrow_fs_cache_evictions_total", "counter", "Buffers of clean data that left memory for others",
		FS(status.cache_evictions)},
	{"furrow_fs_read_ahead_blocks_total", "counter", "Blocks read before somebody asked for them",
		FS(status.ahead_blocks)},
	{"furrow_fs_log_used_bytes", "gauge", "Redo log since the last checkpoint", FS(status.log_used_bytes)},
	{"furrow_fs_log_capacity_bytes", "gauge", "Size of the redo log", FS(status.log_capacity_bytes)},
	{"furrow_fs_log_written_bytes_total", "counter", "Bytes written to the redo log", FS(status.log_bytes)},
	{"furrow_fs_transactions_total", "counter", "Transactions since the mount", FS(status.transactions)},
	{"furrow_fs_checkpoints_total", "counter", "Checkpoints since the mount", FS(status.checkpoints)},
	{"furrow_fs_cleaner_moved_blocks_total", "counter", "Blocks moved out of sparse stripes",
		FS(status.cleaner_moved_blocks)},
	{"furrow_fs_cleaner_freed_stripes_total", "counter", "Stripes that the cleaner emptied",
		FS(status.cleaner_freed_stripes)},
	{"furrow_fs_checksum_errors_total", "counter", "Blocks that did not match their checksum",
		FS(status.checksum_errors)},
	{"furrow_fs_checksum_repairs_total", "counter", "Of these, made again from redundancy",
		FS(status.checksum_repairs)},
};

static void head_write(FILE *out, const char *name, const char *type, const char *help)
{
	fprintf(out, "# HELP %s %s.\n# TYPE %s %s\n", name, help, name, type);
}

static void filesystems_write(FILE *out, const struct list *samples)
{
	for (size_t f = 0; f < sizeof(fs_families) / sizeof(fs_families[0]) && !list_empty(samples); f++) {
		head_write(out, fs_families[f].name, fs_families[f].type, fs_families[f].help);
		list_foreach (n, samples) {
			const struct fs_sample *s = container_of(n, struct fs_sample, node);
			uint64_t value;
			memcpy(&value, (const char *)s + fs_families[f].offset, sizeof(value));
			fprintf(out, "%s{fs=\"%s\"} %llu\n", fs_families[f].name, s->name, (unsigned long long)value);
		}
	}
}

static void arrays_write(FILE *out, const struct list *samples)
{
	if (list_empty(samples))
		return;
	head_write(out, "furrow_array_degraded", "gauge", "1 while an array lacks a member");
	list_foreach (n, samples) {
		const struct array_sample *s = container_of(n, struct array_sample, node);
		fprintf(out, "furrow_array_degraded{array=\"%s\"} %d\n", s->name, s->degraded || s->stopped);
	}
	head_write(out, "furrow_array_stopped", "gauge", "1 when an array has lost too many members to go on");
	list_foreach (n, samples) {
		const struct array_sample *s = container_of(n, struct array_sample, node);
		fprintf(out, "furrow_array_stopped{array=\"%s\"} %d\n", s->name, s->stopped);
	}
	head_write(out, "furrow_array_members", "gauge", "Members by state");
	list_foreach (n, samples) {
		const struct array_sample *s = container_of(n, struct array_sample, node);
		for (int state = MEMBER_ACTIVE; state <= MEMBER_SPARE; state++)
			fprintf(out, "furrow_array_members{array=\"%s\",state=\"%s\"} %u\n", s->name,
				member_state_name((enum member_state)state), s->members[state]);
	}
	head_write(out, "furrow_array_data_bytes", "gauge", "Capacity of an array for data");
	list_foreach (n, samples) {
		const struct array_sample *s = container_of(n, struct array_sample, node);
		fprintf(out, "furrow_array_data_bytes{array=\"%s\"} %llu\n", s->name,
			(unsigned long long)s->data_bytes);
	}
}

static void process_write(FILE *out)
{
	unsigned long long pages = 0;
	struct timespec cpu;

	FILE *in = fopen("/proc/self/statm", "re");
	if (in) {
		if (fscanf(in, "%*u %llu", &pages) != 1)
			pages = 0;
		fclose(in);
	}
	head_write(out, "process_resident_memory_bytes", "gauge", "Resident memory");
	fprintf(out, "process_resident_memory_bytes %llu\n", pages * (unsigned long long)sysconf(_SC_PAGESIZE));
	if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) {
		head_write(out, "process_cpu_seconds_total", "counter", "CPU time of all threads");
		fprintf(out, "process_cpu_seconds_total %lld.%03ld\n", (long long)cpu.tv_sec, cpu.tv_nsec / 1000000);
	}
	head_write(out, "furrow_build_info", "gauge", "1, with the version as a label");
	fprintf(out, "furrow_build_info{version=\"" FURROW_VERSION "\"} 1\n");
}

/* ------------------------------------------------------------------------------------------------
 * Gathering, in a fiber of reactor 0
 */

struct gathering {
	struct list arrays, filesystems;
};

static void array_gather(struct gathering *g, struct storage_array *sa, struct array_status *status)
{
	struct array_sample *sample = calloc(1, sizeof(*sample));

	if (!sample)
		return;
	array_status(sa->array, status);
	memcpy(sample->name, sa->name, sizeof(sample->name));
	sample->degraded = status->degraded;
	sample->stopped = status->stopped;
	sample->data_bytes = status->data_bytes;
	sample->free_bytes = status->free_bytes;
	for (unsigned i = 0; i < status->members && i < RAID_DRIVES_MAX; i++)
		if ((unsigned)status->member[i].state <= MEMBER_SPARE)
			sample->members[status->member[i].state]++;
	list_push_back(&g->arrays, &sample->node);
}

static void gather_main(void *arg)
{
	struct gathering *g = arg;
	struct array_status *status = calloc(1, sizeof(*status));

	if (!shown || !status) {
		free(status);
		return;
	}
	struct storage *storage = shown;
	fiber_lock(&storage->lock);
	list_foreach (n, &storage->arrays)
		array_gather(g, container_of(n, struct storage_array, node), status);
	list_foreach (n, &storage->filesystems) {
		struct storage_fs *sf = container_of(n, struct storage_fs, node);
		struct fs_sample *sample = sf->fs ? calloc(1, sizeof(*sample)) : NULL;
		if (!sample)
			continue;
		memcpy(sample->name, sf->name, sizeof(sample->name));
		fs_status(sf->fs, &sample->status);
		if (fs_statfs(sf->fs, &sample->space) < 0) {
			free(sample);
			continue;
		}
		list_push_back(&g->filesystems, &sample->node);
	}
	fiber_unlock(&storage->lock);
	free(status);
}

void storage_metrics_write(FILE *out)
{
	struct gathering g;

	list_init(&g.arrays);
	list_init(&g.filesystems);
	reactor_call(reactor_get(0), gather_main, &g);
	arrays_write(out, &g.arrays);
	filesystems_write(out, &g.filesystems);
	process_write(out);
	list_foreach (n, &g.arrays)
		free(container_of(n, struct array_sample, node));
	list_foreach (n, &g.filesystems)
		free(container_of(n, struct fs_sample, node));
}
