/*
 * Layout: which drive holds what. Pure arithmetic, no state.
 *
 * Stripes are dealt to the groups in turn. Inside a group the positions of a stripe rotate by one
 * member per stripe, so that parity and the load of short reads spread over all drives. The log zone deals copies
 * of 64 KiB chunks to the members in turn: consecutive copies are on different drives.
 */
#include <errno.h>

#include "raid/raid_internal.h"

struct place layout_strip(const struct geometry *g, uint64_t stripe, unsigned pos)
{
	uint64_t local = stripe - g->first_stripe;
	uint64_t row = g->groups == 1 ? local : local / g->groups;
	unsigned group = g->groups == 1 ? 0 : (unsigned)(local % g->groups);
	unsigned width = g->k + g->m;
	return (struct place){
		.slot = group * width + (unsigned)((pos + row) % width),
		.offset = g->member_offset + row * g->strip_bytes,
	};
}

struct place layout_log(const struct raid_config *config, uint64_t chunk, unsigned copy)
{
	uint64_t q = chunk * config->log_copies + copy;
	return (struct place){
		.slot = (unsigned)(q % config->log_members),
		.offset = config->log_offset + q / config->log_members * LOG_CHUNK_BYTES,
	};
}

int level_geometry(unsigned level, unsigned count, struct geometry *g, char *why, size_t size)
{
	g->groups = 1;
	g->rotation = FORMAT_ROTATE_ROW;
	switch (level) {
	case 1:
		if (count < 2) {
			snprintf(why, size, "level 1 needs at least 2 drives, %u given", count);
			return -EINVAL;
		}
		g->code = FORMAT_CODE_COPY;
		g->k = 1;
		g->m = count - 1;
		break;
	case 6:
		if (count < 4) {
			snprintf(why, size, "level 6 needs at least 4 drives, %u given", count);
			return -EINVAL;
		}
		g->code = FORMAT_CODE_PQ;
		g->k = count - 2;
		g->m = 2;
		break;
	default:
		snprintf(why, size, "level %u is not supported (1 and 6 are)", level);
		return -EINVAL;
	}
	if (count > RAID_MEMBERS_MAX) {
		snprintf(why, size, "%u drives, more than %u", count, RAID_MEMBERS_MAX);
		return -EINVAL;
	}
	return 0;
}

unsigned level_tolerates(const struct geometry *g)
{
	return g->m;
}
