/*
 * The shared pool of spares: drives that bear a mark of ours and belong to no array, until one that has lost a
 * member takes them. Marking a drive overwrites its first and last MiB, like making it a member.
 */
#include <errno.h>
#include <stdlib.h>

#include "raid/raid_internal.h"

int pool_spare_read(struct drive *drive, struct uuid *uuid)
{
	if (drive->bytes < 2 * SUPER_ALIGN + SUPER_BYTES_MOST)
		return -ENODATA;
	struct buf *buf = buf_alloc(SPARE_BYTES);
	int r = drive_io(drive, DRIVE_OP_READ, SUPER_OFFSET_0, buf, SPARE_BYTES, false);
	if (!r) {
		struct format_spare *f = (struct format_spare *)(void *)buf->data;
		uint64_t sum = le64_get(f->checksum);
		f->checksum = le64_put(0);
		if (memcmp(f->magic, SPARE_MAGIC, 8) != 0 || checksum64(f, sizeof(*f), 0) != sum ||
			le32_get(f->version) != 1 || le32_get(f->bytes) != SPARE_BYTES)
			r = -ENODATA;
		else
			memcpy(uuid->b, f->uuid, 16);
	}
	buf_put(buf);
	return r;
}

static int pool_mark(struct drive *drive)
{
	struct buf *buf = buf_alloc(SPARE_BYTES);
	struct format_spare *f = (struct format_spare *)(void *)buf->data;
	struct uuid uuid;
	memset(f, 0, sizeof(*f));
	uuid_make(&uuid);
	memcpy(f->magic, SPARE_MAGIC, 8);
	f->version = le32_put(1);
	f->bytes = le32_put(SPARE_BYTES);
	memcpy(f->uuid, uuid.b, 16);
	f->created = le64_put(wall_ns());
	f->checksum = le64_put(checksum64(f, sizeof(*f), 0));
	int r = drive_zero(drive, 0, MEMBER_HEAD_BYTES);
	if (!r)
		r = drive_zero(drive, drive->bytes - MEMBER_TAIL_BYTES, MEMBER_TAIL_BYTES);
	if (!r)
		r = drive_flush(drive);
	if (!r)
		r = drive_io(drive, DRIVE_OP_WRITE, SUPER_OFFSET_0, buf, SPARE_BYTES, true);
	buf_put(buf);
	return r;
}

int pool_add(const char *path, bool force, struct error *err)
{
	struct super_found *found = malloc(sizeof(*found));
	struct drive *drive;
	enum super_verdict verdict;
	char why[160];
	bool foreign = false;
	if (!found)
		return error_set(err, -ENOMEM, "out of memory");
	int r = drive_open(path, true, &drive, err);
	if (r) {
		free(found);
		return r;
	}
	r = super_read(drive, found, &verdict, why, sizeof(why));
	if (r)
		drive_refused(err, r, path, "read");
	else if (drive->bytes < 2 * (MEMBER_HEAD_BYTES + MEMBER_TAIL_BYTES))
		r = error_set(err, -ENOSPC, "%s: too small", path);
	else if (verdict == SUPER_VALID && !force)
		r = error_set(err, -EEXIST, "%s: holds member %u of array %s; --force overwrites it", path, found->slot,
			found->config.name);
	else if (verdict != SUPER_NONE && !force)
		r = error_set(err, -EEXIST, "%s: holds a %s; --force overwrites it", path, why);
	else if (!force && (r = drive_content_foreign(drive, why, sizeof(why), &foreign)))
		drive_refused(err, r, path, "read");
	else if (foreign)
		r = error_set(err, -EEXIST, "%s: holds something: %.79s; --force overwrites it", path, why);
	if (!r && (r = pool_mark(drive)))
		drive_refused(err, r, path, "written");
	free(found);
	drive_close(drive);
	return r;
}

int pool_remove(const char *path, struct error *err)
{
	struct drive *drive;
	struct uuid uuid;
	int r = drive_open(path, true, &drive, err);
	if (r)
		return r;
	r = pool_spare_read(drive, &uuid);
	if (r == -ENODATA)
		error_set(err, r, "%s: is no spare of the shared pool", path);
	else if (!r)
		r = drive_zero(drive, SUPER_OFFSET_0, SPARE_BYTES);
	if (r && r != -ENODATA)
		error_set(err, r, "%s: %s", path, strerror(-r));
	drive_close(drive);
	return r;
}
