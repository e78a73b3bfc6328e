/*
 * How the memory of a machine is shared out. `memory` (auto: half of what this process may use) is a hard limit, and
 * is cut once, at start:
 *
 *   3/4  the arena, on huge pages: payload on its way between wire and drives, dirty data (a quarter of it), and the
 *        file systems' caches (half of it): nodes of their trees with the checksums
 *   1/4  everything else: inodes in memory (3/32), fiber stacks (1/16), connections, the reply cache, the program
 *
 * What this process may use is the smallest of the machine's RAM and the limits of the control groups that it is in
 * (version 2: memory.max of its group and of every one above; version 1: memory.limit_in_bytes).
 */
#include "server/server_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

static uint64_t limit_read(const char *directory, const char *file)
{
	char path[600], text[32];
	uint64_t limit = UINT64_MAX;

	snprintf(path, sizeof(path), "%s/%s", directory, file);
	FILE *in = fopen(path, "re");
	if (!in)
		return limit;
	if (fgets(text, sizeof(text), in) && text[0] >= '0' && text[0] <= '9')
		limit = strtoull(text, NULL, 10);
	fclose(in);
	return limit;
}

/* The least limit of the group at ROOT/GROUP and of those above it. */
static uint64_t group_limit(const char *root, const char *group, const char *file)
{
	char path[512];
	uint64_t least = UINT64_MAX;
	size_t root_length = strlen(root);

	if ((size_t)snprintf(path, sizeof(path), "%s%s", root, group) >= sizeof(path))
		return least;
	for (;;) {
		uint64_t limit = limit_read(path, file);
		if (limit < least)
			least = limit;
		char *slash = strrchr(path, '/');
		if (!slash || (size_t)(slash - path) < root_length)
			return least;
		*slash = 0;
	}
}

static uint64_t memory_available(void)
{
	struct sysinfo info;
	char line[512];
	uint64_t least = UINT64_MAX;

	if (sysinfo(&info) == 0)
		least = (uint64_t)info.totalram * info.mem_unit;
	FILE *in = fopen("/proc/self/cgroup", "re");
	while (in && fgets(line, sizeof(line), in)) {
		uint64_t limit = UINT64_MAX;
		char *controllers = strchr(line, ':'), *group;
		line[strcspn(line, "\n")] = 0;
		if (!controllers || !(group = strchr(controllers + 1, ':')))
			continue;
		*group++ = 0;
		if (!strcmp(controllers, ":"))
			limit = group_limit("/sys/fs/cgroup", group, "memory.max");
		else if (strstr(controllers, "memory"))
			limit = group_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
		if (limit < least)
			least = limit;
	}
	if (in)
		fclose(in);
	return least;
}

static uint64_t memory_total(const struct config *config)
{
	uint64_t memory = config->memory;

	if (!memory)
		memory = memory_available() / 2;
	return memory < CONFIG_MEMORY_MIN ? CONFIG_MEMORY_MIN : memory;
}

int config_memory_check(const struct config *config, struct error *err)
{
	char wanted[16], there[16];
	uint64_t available = memory_available();

	if (config->memory <= available)
		return 0;
	size_format(config->memory, wanted);
	size_format(available, there);
	return error_set(err, -ENOMEM, "%s: memory: %s is more than this machine has, %s", config->file, wanted, there);
}

void config_core(const struct config *config, struct core_config *core)
{
	uint64_t memory = memory_total(config);
	unsigned reactors = config->cores;
	cpu_set_t cpus;

	if (!reactors && sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
		reactors = (unsigned)CPU_COUNT(&cpus);
	if (!reactors)
		reactors = 1;
	if (reactors > METRIC_SLOTS - 1)
		reactors = METRIC_SLOTS - 1;

	/* How many calls may run at once is bounded by the memory for their stacks. */
	uint64_t fibers = memory / 16 / reactors / (64 * 1024);
	*core = (struct core_config){
		.reactors = reactors,
		.arena_bytes = memory / 4 * 3 / ARENA_PIECE * ARENA_PIECE,
		.fibers = fibers < 64	  ? 64
			  : fibers > 4096 ? 4096
					  : (unsigned)fibers,
		.pin = true,
	};
}

uint64_t config_cache_bytes(const struct config *config)
{
	return memory_total(config) / 8 * 3;
}
