/*
 * Layout: which drive holds what. Pure arithmetic, no state. What every read and write asks is inline, in
 * raid_internal.h.
 *
 * Stripes are dealt to the groups in turn. Inside a group the positions of a stripe rotate by one
 * member per stripe, so that parity and the load of short reads spread over all drives. The log zone deals its
 * chunks of 64 KiB to the groups in turn too, and their copies to the members of the group: all copies of a chunk
 * are on different drives of one group, so that what a group outlives, the log in it outlives.
 */
#include <errno.h>

#include "raid/raid_internal.h"

struct place layout_log(const struct raid_config *config, uint64_t chunk, unsigned copy)
{
	unsigned groups = config->log_groups, width = config->log_members / groups;
	uint64_t q = chunk / groups * config->log_copies + copy;
	return (struct place){
		.slot = (unsigned)(chunk % groups) * width + (unsigned)(q % width),
		.offset = config->log_offset + q / width * LOG_CHUNK_BYTES,
	};
}

struct map_home layout_map(const struct raid_config *config, unsigned slot)
{
	const struct geometry *g = &config->geometry[config->geometries - 1];
	unsigned width = config->version == 1 ? config->members : g->k + g->m, first = slot / width * width;
	unsigned left = config->members - first;
	return (struct map_home){.first = first, .end = first + (left < width ? left : width), .index = slot - first};
}

/* What the levels are. */
static const struct level {
	unsigned level, least; /* drives of a group */
	uint8_t code, m;       /* M 255: all but one are copies */
	bool striped;	       /* over groups */
	unsigned wide;	       /* drives of a group at most, where the number of groups is ours to choose */
} levels[] = {
	{0, 1, FORMAT_CODE_PQ, 0, false, 0},
	{1, 2, FORMAT_CODE_COPY, 255, false, 0},
	{5, 3, FORMAT_CODE_PQ, 1, false, 0},
	{6, 4, FORMAT_CODE_PQ, 2, false, 0},
	{10, 2, FORMAT_CODE_COPY, 255, true, 2},
	{50, 3, FORMAT_CODE_PQ, 1, true, 12},
	{60, 4, FORMAT_CODE_PQ, 2, true, 16},
};

/* The fewest groups, two or more, that share COUNT drives evenly and are neither too small nor too wide. */
static unsigned groups_choose(const struct level *l, unsigned count)
{
	for (unsigned groups = 2; groups * l->least <= count; groups++)
		if (count % groups == 0 && count / groups <= l->wide)
			return groups;
	return 0;
}

int level_geometry(unsigned level, unsigned count, unsigned groups, struct geometry *g, char *why, size_t size)
{
	const struct level *l = NULL;
	for (unsigned i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
		if (levels[i].level == level)
			l = &levels[i];
	if (!l) {
		snprintf(why, size, "level %u is not one of 0, 1, 5, 6, 10, 50 and 60", level);
		return -EINVAL;
	}
	if (!l->striped && groups > 1) {
		snprintf(why, size, "level %u has one group; levels 10, 50 and 60 have more", level);
		return -EINVAL;
	}
	unsigned least = l->least * (l->striped ? 2 : 1);
	if (count < least) {
		snprintf(why, size, "level %u needs at least %u drive%s, %u given", level, least, least == 1 ? "" : "s",
			count);
		return -EINVAL;
	}
	if (l->striped && groups == 1) {
		snprintf(why, size, "level %u needs at least 2 groups; level %u has one", level, level / 10);
		return -EINVAL;
	}
	if (!groups)
		groups = l->striped ? groups_choose(l, count) : 1;
	if (!groups) {
		if (l->least == l->wide)
			snprintf(why, size, "%u drives do not make groups of %u; say how many groups", count, l->least);
		else
			snprintf(why, size, "%u drives cannot be shared out to groups of %u to %u; say how many groups",
				count, l->least, l->wide);
		return -EINVAL;
	}
	if (count % groups || count / groups < l->least) {
		snprintf(why, size, "%u drives do not make %u equal groups of at least %u", count, groups, l->least);
		return -EINVAL;
	}
	unsigned width = count / groups;
	if (width > RAID_GROUP_MAX) {
		snprintf(why, size, "a group of %u drives, more than %u%s", width, RAID_GROUP_MAX,
			l->striped ? "; make more groups" : "; levels 10, 50 and 60 take more drives, in groups");
		return -EINVAL;
	}
	g->groups = groups;
	g->rotation = FORMAT_ROTATE_ROW;
	g->code = l->code;
	g->m = l->m == 255 ? width - 1 : l->m;
	g->k = width - g->m;
	return 0;
}

unsigned level_tolerates(const struct geometry *g)
{
	return g->m;
}
