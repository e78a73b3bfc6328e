/*
 * An array of null drives with one volume, for benchmarks of what the array itself costs. No scan finds such drives,
 * since it looks for names of files: the list of what it would find is made here.
 */
#ifndef FURROW_BENCH_NULL_ARRAY_H
#define FURROW_BENCH_NULL_ARRAY_H

#include <stdio.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

/* What a scan says of a member; its superblock has it. */
static inline int null_drive_find(const char *path, struct drive_info *info, struct error *err)
{
	struct drive *drive;
	enum super_verdict verdict;
	char why[160];
	struct super_found *found = malloc(sizeof(*found));
	int rc = found ? drive_open(path, false, &drive, err) : -ENOMEM;
	if (!rc) {
		rc = super_read(drive, found, &verdict, why, sizeof(why));
		if (rc || verdict != SUPER_VALID) {
			rc = error_set(err, -EIO, "%s: no superblock", path);
		} else {
			snprintf(info->path, sizeof(info->path), "%s", path);
			info->content = DRIVE_MEMBER;
			info->array = found->config.uuid;
			info->member = found->member;
			snprintf(info->array_name, sizeof(info->array_name), "bench");
			info->slot = found->slot;
			info->events = found->config.events;
			info->bytes = drive->bytes;
		}
		drive_close(drive);
	}
	free(found);
	return rc;
}

/*
 * DRIVES of 8 GiB with strips of STRIP bytes, and a volume of BYTES, or of all that there is with 0. Negative errno
 * with ERR filled; what was opened before that stays open, since a benchmark ends then.
 */
static inline int null_array_make(unsigned level, unsigned drives, uint32_t strip, uint64_t bytes, struct array **array,
	struct volume **volume, struct error *err)
{
	static unsigned serial;
	char path[RAID_GROUP_MAX][32];
	const char *paths[RAID_GROUP_MAX];
	struct raid_scan scan = {.count = drives, .drive = calloc(drives, sizeof(*scan.drive))};
	serial++;
	for (unsigned i = 0; i < drives; i++) {
		snprintf(path[i], sizeof(path[i]), "null:8G:%u.%u", serial, i);
		paths[i] = path[i];
	}
	struct array_create create = {
		.name = "bench", .level = level, .strip_bytes = strip, .drives = paths, .count = drives};
	int rc = scan.drive ? array_create(&create, err) : -ENOMEM;
	for (unsigned i = 0; i < drives && !rc; i++)
		rc = null_drive_find(paths[i], &scan.drive[i], err);
	if (!rc)
		rc = array_open(&scan, "bench", array, err);
	free(scan.drive);
	if (!rc)
		rc = volume_create(*array, "v", bytes, err);
	return rc ? rc : volume_open(*array, "v", volume, err);
}

#endif
