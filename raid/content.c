/*
 * What others have written on a drive: partition tables, file systems, volume managers, by their magic
 * numbers. It is asked before a drive is taken for an array, so that nobody's data is lost by a typing
 * mistake. Only the first 256 KiB and the last 128 KiB are looked at. What is not recognized but is not
 * zeros either is reported as unknown data.
 */
#include <errno.h>

#include "raid/drive_internal.h"
#include "raid/raid_format.h"

#define HEAD (256u * 1024)
#define TAIL (128u * 1024)

static const struct magic {
	uint32_t offset;
	uint8_t bytes;
	const char *magic;
	const char *name;
} magics[] = {
	{0, 6, "LUKS\xba\xbe", "LUKS encrypted volume"},
	{0, 4, "XFSB", "XFS file system"},
	{0, 8, "SPDKBLOB", "SPDK blob store"},
	{0, 22, "bluestore block device", "Ceph BlueStore"},
	{0x10040, 8, "_BHRfS_M", "btrfs file system"},
	{1024, 4, "\x10\x20\xf5\xf2", "F2FS file system"},
	{4086, 10, "SWAPSPACE2", "swap space"},
	{4086, 10, "SWAP-SPACE", "swap space"},
	{4096, 4, "\xfc\x4e\x2b\xa9", "member of an md array"},
	{0, 4, "\xfc\x4e\x2b\xa9", "member of an md array"},
	{4120, 16, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "bcache device"},
	{4120, 16, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "bcachefs file system"},
	{32769, 5, "CD001", "ISO 9660 file system"},
	{3, 8, "NTFS    ", "NTFS file system"},
	{3, 8, "EXFAT   ", "exFAT file system"},
	{82, 8, "FAT32   ", "FAT file system"},
	{54, 5, "FAT16", "FAT file system"},
	{54, 5, "FAT12", "FAT file system"},
	{512, 8, "EFI PART", "GPT partition table"},
	{4096, 8, "EFI PART", "GPT partition table"},
};

static bool bytes_zero(const uint8_t *p, size_t n)
{
	return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0);
}

static bool head_identify(const uint8_t *head, size_t n, char *text, size_t size)
{
	for (size_t i = 0; i < sizeof(magics) / sizeof(magics[0]); i++) {
		const struct magic *m = &magics[i];
		if (m->offset + m->bytes <= n && memcmp(head + m->offset, m->magic, m->bytes) == 0) {
			snprintf(text, size, "%s", m->name);
			return true;
		}
	}
	for (uint32_t sector = 0; sector < 4 && (sector + 1) * 512 <= n; sector++)
		if (memcmp(head + sector * 512, "LABELONE", 8) == 0) {
			snprintf(text, size, "LVM physical volume");
			return true;
		}
	if (n >= 2048 && head[1080] == 0x53 && head[1081] == 0xef) {
		bool extents = head[1024 + 96] & 0x40, journal = head[1024 + 92] & 4;
		snprintf(text, size, "%s file system", extents ? "ext4" : journal ? "ext3" : "ext2");
		return true;
	}
	/* ZFS: uberblocks in the second half of the first label */
	for (size_t at = 128u * 1024; at + 8 <= n && at < 256u * 1024; at += 1024)
		if (memcmp(head + at, "\x0c\xb1\xba\x00\x00\x00\x00\x00", 8) == 0 ||
			memcmp(head + at, "\x00\x00\x00\x00\x00\xba\xb1\x0c", 8) == 0) {
			snprintf(text, size, "ZFS pool member");
			return true;
		}
	if (n >= 512 && head[510] == 0x55 && head[511] == 0xaa)
		for (unsigned i = 0; i < 4; i++)
			if (head[446 + i * 16 + 4]) {
				snprintf(text, size, "MBR partition table");
				return true;
			}
	return false;
}

bool content_identify(
	const uint8_t *head, size_t head_bytes, const uint8_t *tail, size_t tail_bytes, char *text, size_t size)
{
	if (head_identify(head, head_bytes, text, size))
		return true;
	if ((tail_bytes >= 512 && memcmp(tail + tail_bytes - 512, "EFI PART", 8) == 0) ||
		(tail_bytes >= 4096 && memcmp(tail + tail_bytes - 4096, "EFI PART", 8) == 0)) {
		snprintf(text, size, "GPT partition table (the copy at the end)");
		return true;
	}
	/* md keeps older superblocks on a multiple of 4 KiB somewhere in the last 128 KiB */
	for (size_t at = 0; at + 4 <= tail_bytes; at += 4096)
		if (memcmp(tail + at, "\xfc\x4e\x2b\xa9", 4) == 0) {
			snprintf(text, size, "member of an md array");
			return true;
		}
	if (!bytes_zero(head, head_bytes < SUPER_OFFSET_0 ? head_bytes : SUPER_OFFSET_0)) {
		snprintf(text, size, "unknown data");
		return true;
	}
	return false;
}

int drive_content_foreign(struct drive *drive, char *text, size_t size, bool *found)
{
	uint32_t head_bytes = drive->bytes < HEAD ? (uint32_t)drive->bytes : HEAD;
	uint32_t tail_bytes = drive->bytes < TAIL ? (uint32_t)drive->bytes : TAIL;
	*found = false;
	text[0] = 0;
	if (!head_bytes)
		return 0;
	struct buf *head = buf_alloc(HEAD), *tail = buf_alloc(TAIL);
	int r = drive_io(drive, DRIVE_OP_READ, 0, head, head_bytes, false);
	if (!r)
		r = drive_io(drive, DRIVE_OP_READ, drive->bytes - tail_bytes, tail, tail_bytes, false);
	if (!r)
		*found = content_identify(head->data, head_bytes, tail->data, tail_bytes, text, size);
	buf_put(head);
	buf_put(tail);
	return r;
}
