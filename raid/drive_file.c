/*
 * Block devices and regular files: read, write and fsync on the ring.
 *
 * O_DIRECT is used where it works: what lies in the page cache would be there twice, and a write
 * would not be on the drive when it ends. File systems without it (some tmpfs, overlays) get
 * buffered I/O. Durability is RWF_DSYNC for one write and fdatasync for all before it; the kernel turns
 * them into FUA or a flush as the drive below needs.
 *
 * The claim: O_EXCL on a block device, which also keeps mount and mkfs away; flock on a file.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "raid/drive_internal.h"

/* A line of sysfs about block device DEV, without blanks at the end; empty when there is none. */
static void sysfs_read(dev_t dev, const char *name, char *out, size_t size)
{
	char path[128];
	out[0] = 0;
	snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s", major(dev), minor(dev), name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	ssize_t n = read(fd, out, size - 1);
	close(fd);
	out[n > 0 ? n : 0] = 0;
	for (size_t len = strlen(out); len && (out[len - 1] == '\n' || out[len - 1] == ' '); len--)
		out[len - 1] = 0;
}

static int open_fd(const char *path, bool claim, bool block, bool direct)
{
	int flags = O_CLOEXEC | (claim ? O_RDWR : O_RDONLY) | (claim && block ? O_EXCL : 0) | (direct ? O_DIRECT : 0);
	return open(path, flags);
}

/* Whether O_DIRECT reads of 4 KiB work on FD, which some file systems deny only when asked. */
static bool direct_works(int fd)
{
	void *page = NULL;
	if (posix_memalign(&page, BLOCK_BYTES, BLOCK_BYTES))
		return false;
	ssize_t n = pread(fd, page, BLOCK_BYTES, 0);
	free(page);
	return n >= 0;
}

static int file_open(struct drive *drive, bool claim, struct error *err)
{
	const char *path = drive->path;
	struct stat st;
	if (stat(path, &st) != 0)
		return error_set(err, -errno, "%s: %s", path, strerror(errno));
	bool block = S_ISBLK(st.st_mode);
	drive->kind = block ? DRIVE_BLOCK : DRIVE_FILE;
	drive->joins = true;

	int fd = open_fd(path, claim, block, true);
	if (fd >= 0 && !block && !direct_works(fd)) {
		close(fd);
		fd = -1;
		errno = EINVAL;
	}
	if (fd < 0 && errno == EINVAL)
		fd = open_fd(path, claim, block, false);
	if (fd < 0) {
		int e = errno;
		if (e == EBUSY)
			return error_set(err, -EBUSY, "%s: in use (mounted, or held by another program)", path);
		return error_set(err, -e, "%s: %s", path, strerror(e));
	}
	int r = 0;
	if (claim && !block && flock(fd, LOCK_EX | LOCK_NB) != 0) {
		r = error_set(err, -EBUSY, "%s: in use by another server or tool", path);
		goto fail;
	}
	if (fstat(fd, &st) != 0) {
		r = error_set(err, -errno, "%s: %s", path, strerror(errno));
		goto fail;
	}
	if (block) {
		uint64_t bytes = 0;
		int lba = 512;
		if (ioctl(fd, BLKGETSIZE64, &bytes) != 0 || ioctl(fd, BLKSSZGET, &lba) != 0) {
			r = error_set(err, -errno, "%s: cannot ask for its size: %s", path, strerror(errno));
			goto fail;
		}
		if (lba > (int)BLOCK_BYTES) {
			r = error_set(err, -ENOTSUP, "%s: logical blocks of %d bytes, more than 4096", path, lba);
			goto fail;
		}
		drive->bytes = bytes;
		drive->lba_bytes = (uint32_t)lba;
		drive->id_dev = st.st_rdev;
		char model[64];
		sysfs_read(st.st_rdev, "device/model", model, sizeof(model));
		snprintf(drive->model, sizeof(drive->model), "%.40s", model);
		sysfs_read(st.st_rdev, "device/serial", model, sizeof(model));
		snprintf(drive->serial, sizeof(drive->serial), "%.20s", model);
		sysfs_read(st.st_rdev, "queue/write_cache", model, sizeof(model));
		drive->volatile_cache = strcmp(model, "write through") != 0;
		/* a hole that is punched reads as zeros, or the kernel refuses; it must not write them, though */
		sysfs_read(st.st_rdev, "queue/discard_max_bytes", model, sizeof(model));
		bool unmaps = strtoull(model, NULL, 10) > 0;
		sysfs_read(st.st_rdev, "queue/write_zeroes_max_bytes", model, sizeof(model));
		drive->can_discard = unmaps && strtoull(model, NULL, 10) > 0;
	} else {
		drive->bytes = (uint64_t)st.st_size;
		drive->id_dev = st.st_dev;
		drive->id_ino = st.st_ino;
		drive->volatile_cache = true;
		drive->can_discard = true;
		snprintf(drive->model, sizeof(drive->model), "file");
	}
	drive->bytes &= ~(uint64_t)(BLOCK_BYTES - 1);
	drive->fd = fd;
	return 0;
fail:
	close(fd);
	return r;
}

static bool file_there(const struct drive *drive)
{
	struct stat st;
	if (stat(drive->path, &st) != 0)
		return false;
	return S_ISBLK(st.st_mode) ? st.st_rdev == drive->id_dev
				   : st.st_dev == drive->id_dev && st.st_ino == drive->id_ino;
}

static void file_close(struct drive *drive)
{
	if (drive->fd >= 0)
		close(drive->fd);
	drive->fd = -1;
}

static void file_submit(struct drive_cmd *cmd)
{
	struct drive *drive = cmd->drive;
	cmd->io.done = drive_cmd_io_done;
	struct io_uring_sqe *sqe = io_start(&cmd->io);
	int index = cmd->n == 1 ? cmd->buf[0]->fixed_index : -1;
	switch (cmd->op) {
	case DRIVE_OP_READ:
		if (index >= 0)
			io_uring_prep_read_fixed(
				sqe, drive->fd, cmd->iov[0].iov_base, (unsigned)cmd->bytes, cmd->offset, index);
		else
			io_uring_prep_readv(sqe, drive->fd, cmd->iov, cmd->n, cmd->offset);
		break;
	case DRIVE_OP_WRITE:
		if (index >= 0)
			io_uring_prep_write_fixed(
				sqe, drive->fd, cmd->iov[0].iov_base, (unsigned)cmd->bytes, cmd->offset, index);
		else
			io_uring_prep_writev(sqe, drive->fd, cmd->iov, cmd->n, cmd->offset);
		if (cmd->fua)
			sqe->rw_flags = RWF_DSYNC;
		break;
	case DRIVE_OP_FLUSH:
		io_uring_prep_fsync(sqe, drive->fd, IORING_FSYNC_DATASYNC);
		break;
	case DRIVE_OP_DISCARD:
		io_uring_prep_fallocate(sqe, drive->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)cmd->offset,
			(off_t)cmd->bytes);
		break;
	}
	io_link(sqe, &cmd->io);
}

static int file_result(const struct drive_cmd *cmd)
{
	int32_t res = cmd->io.res;
	if (res < 0)
		return res;
	if (cmd->op == DRIVE_OP_READ || cmd->op == DRIVE_OP_WRITE) {
		if ((uint64_t)res == cmd->bytes)
			return 0;
		/* A short transfer is repeated as a whole; at the end of a file that was cut it stays short. */
		return cmd->tries + 1 < 4 ? -EAGAIN : -EIO;
	}
	return 0;
}

const struct drive_ops drive_file_ops = {
	.open = file_open,
	.close = file_close,
	.submit = file_submit,
	.result = file_result,
	.there = file_there,
};
