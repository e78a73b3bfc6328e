/*
 * NVMe drives through their character device (/dev/ngXnY): io_uring passthrough.
 *
 * A command of one piece of memory that lies in a registered piece of the arena is sent with the
 * fixed buffer, which saves the kernel pinning its pages; several pieces go as a vector, which the
 * kernel cannot take together with fixed. The kernel does not split passthrough commands: transfer_max
 * is the least of MDTS, the queue's limit and a piece of the arena, and drive.c cuts by it.
 *
 * Writes that must be durable carry FUA when the drive has a volatile write cache. Without one a write
 * is durable when it ends, and flushes are not sent.
 *
 * The claim: the block device that belongs to the same namespace is found in sysfs, and is
 * held open O_EXCL as long as the drive is ours.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/nvme_ioctl.h>
#include <nvme/types.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "raid/drive_internal.h"

#define CMD_FLUSH 0x00
#define CMD_WRITE 0x01
#define CMD_READ 0x02
#define CMD_DATASET 0x09
#define DATASET_DEALLOCATE (1u << 2)
#define WRITE_FUA (1u << 30)
#define DIR_SIZE (PATH_MAX + 80)

static int line_read(const char *path, char *out, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t n = read(fd, out, size - 1);
	close(fd);
	if (n < 0)
		return -EIO;
	out[n] = 0;
	out[strcspn(out, "\n")] = 0;
	return 0;
}

/*
 * The block device of the namespace behind character device RDEV: it hangs below the same parent
 * in sysfs, bears the same number, and tells the same namespace id.
 */
static int sibling_find(dev_t rdev, uint32_t nsid, char *name, size_t size, dev_t *block, char *dir, size_t dir_size)
{
	char link[64], real[PATH_MAX], text[64], path[PATH_MAX + 320];
	snprintf(link, sizeof(link), "/sys/dev/char/%u:%u", major(rdev), minor(rdev));
	if (!realpath(link, real))
		return -errno;
	char *slash = strrchr(real, '/');
	if (!slash || strncmp(slash + 1, "ng", 2) != 0)
		return -ENODEV; /* not the character device of a namespace */
	char suffix[64];
	snprintf(suffix, sizeof(suffix), "%.60s", slash + 3);
	*slash = 0;
	/* newer kernels put it into a class directory: .../nvme-generic/ng0n1 */
	char *base = strrchr(real, '/');
	if (base && strcmp(base + 1, "nvme-generic") == 0)
		*base = 0;
	DIR *d = opendir(real);
	if (!d)
		return -errno;
	int r = -ENOENT;
	for (struct dirent *e; (e = readdir(d));) {
		if (strncmp(e->d_name, "nvme", 4) != 0 || strcmp(e->d_name + 4, suffix) != 0)
			continue;
		snprintf(path, sizeof(path), "%s/%s/nsid", real, e->d_name);
		if (line_read(path, text, sizeof(text)) == 0 && strtoul(text, NULL, 10) != nsid)
			continue;
		snprintf(path, sizeof(path), "%s/%s/dev", real, e->d_name);
		unsigned ma, mi;
		if (line_read(path, text, sizeof(text)) != 0 || sscanf(text, "%u:%u", &ma, &mi) != 2)
			continue;
		*block = makedev(ma, mi);
		snprintf(name, size, "/dev/%.60s", e->d_name);
		snprintf(dir, dir_size, "%s/%.60s", real, e->d_name);
		r = 0;
		break;
	}
	closedir(d);
	return r;
}

int nvme_node_find(dev_t block, char *path, size_t size)
{
	static const char *const below[] = {"", "/nvme-generic"}; /* where the kernels put it */
	char link[64], real[PATH_MAX], node[PATH_MAX + 96];
	struct stat st;
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(block), minor(block));
	if (!realpath(link, real))
		return -ENOENT;
	char *slash = strrchr(real, '/');
	if (!slash || strncmp(slash + 1, "nvme", 4) != 0)
		return -ENOENT;
	char number[64];
	snprintf(number, sizeof(number), "%.60s", slash + 5);
	*slash = 0;
	for (unsigned i = 0; i < sizeof(below) / sizeof(below[0]); i++) {
		snprintf(node, sizeof(node), "%s%s/ng%s", real, below[i], number);
		if (access(node, F_OK) != 0)
			continue;
		snprintf(path, size, "/dev/ng%s", number);
		return stat(path, &st) == 0 && S_ISCHR(st.st_mode) ? 0 : -ENOENT;
	}
	return -ENOENT;
}

/* Whether RDEV is the character device of a namespace: others may do something when they are opened (a watchdog). */
static bool namespace_node(dev_t rdev)
{
	char link[64], real[PATH_MAX];
	snprintf(link, sizeof(link), "/sys/dev/char/%u:%u", major(rdev), minor(rdev));
	char *slash = realpath(link, real) ? strrchr(real, '/') : NULL;
	return slash && strncmp(slash, "/ng", 3) == 0;
}

static void text_copy(char *out, const char *from, size_t n)
{
	memcpy(out, from, n);
	out[n] = 0;
	for (size_t i = 0; i < n; i++)
		if (out[i] < ' ' || out[i] > '~')
			out[i] = ' ';
	while (n && out[n - 1] == ' ')
		out[--n] = 0;
}

/* 0, a positive NVMe status, or negative errno. */
static int identify(int fd, uint32_t nsid, uint32_t what, void *out)
{
	struct nvme_admin_cmd cmd = {
		.opcode = 0x06,
		.nsid = nsid,
		.addr = (uint64_t)(uintptr_t)out,
		.data_len = 4096,
		.cdw10 = what,
	};
	int r = ioctl(fd, NVME_IOCTL_ADMIN_CMD, &cmd);
	return r < 0 ? -errno : r;
}

static int identify_all(struct drive *drive, struct error *err)
{
	const char *path = drive->path;
	struct nvme_id_ctrl *ctrl = calloc(1, sizeof(*ctrl));
	struct nvme_id_ns *ns = calloc(1, sizeof(*ns));
	int r = 0;
	if (!ctrl || !ns) {
		r = error_set(err, -ENOMEM, "%s: out of memory", path);
		goto out;
	}
	int status = identify(drive->fd, 0, 1, ctrl);
	if (!status)
		status = identify(drive->fd, drive->nsid, 0, ns);
	if (status) {
		r = status < 0 ? status : -EIO;
		error_set(err, r, "%s: Identify failed: %s (status %d)", path, strerror(-r), status);
		goto out;
	}
	unsigned format = ns->flbas & 0xfu;
	unsigned shift = ns->lbaf[format].ds;
	if (shift < 9 || shift > BLOCK_SHIFT || ns->lbaf[format].ms) {
		r = error_set(err, -ENOTSUP, "%s: LBA format of 2^%u bytes with %u bytes of metadata is not supported",
			path, shift, (unsigned)le16toh(ns->lbaf[format].ms));
		goto out;
	}
	uint64_t blocks = le64toh(ns->nsze);
	if (blocks > (UINT64_MAX >> 12)) {
		r = error_set(err, -ENOTSUP, "%s: tells a size that cannot be", path);
		goto out;
	}
	drive->lba_shift = (uint8_t)shift;
	drive->lba_bytes = 1u << shift;
	drive->bytes = (blocks << shift) & ~(uint64_t)(BLOCK_BYTES - 1);
	drive->volatile_cache = ctrl->vwc & 1;
	/* only where what was deallocated reads the same each time: parity and scrub would not agree with anything else
	 */
	unsigned after = ns->dlfeat & 7u;
	drive->can_discard = (le16toh(ctrl->oncs) & (1u << 2)) && (after == 1 || after == 2);
	/* in units of the least page size, which is 4 KiB wherever Linux runs it */
	if (ctrl->mdts && ctrl->mdts < 16 && (BLOCK_BYTES << ctrl->mdts) < drive->transfer_max)
		drive->transfer_max = BLOCK_BYTES << ctrl->mdts;
	text_copy(drive->model, ctrl->mn, 40);
	text_copy(drive->serial, ctrl->sn, 20);
out:
	free(ctrl);
	free(ns);
	return r;
}

/* What the block layer would not let through of a passthrough command either. */
static void queue_limits(struct drive *drive, const char *dir)
{
	char path[DIR_SIZE + 64], text[32];
	snprintf(path, sizeof(path), "%s/queue/max_hw_sectors_kb", dir);
	if (line_read(path, text, sizeof(text)) == 0) {
		unsigned long kb = strtoul(text, NULL, 10);
		if (kb >= 4 && kb < drive->transfer_max / 1024)
			drive->transfer_max = (uint32_t)(kb * 1024) & ~(BLOCK_BYTES - 1);
	}
	snprintf(path, sizeof(path), "%s/queue/max_segments", dir);
	if (line_read(path, text, sizeof(text)) == 0) {
		unsigned long n = strtoul(text, NULL, 10);
		if (n >= 1 && n < drive->segments_max)
			drive->segments_max = (uint32_t)n;
		/* each page can be a segment of its own */
		if (n >= 2 && (n - 1) * BLOCK_BYTES < drive->transfer_max)
			drive->transfer_max = (uint32_t)((n - 1) * BLOCK_BYTES);
	}
}

static int passthrough_open(struct drive *drive, bool claim, struct error *err)
{
	const char *path = drive->path;
	struct stat st;
	drive->kind = DRIVE_NVME;
	drive->joins = true;
	if (stat(drive->device, &st) == 0 && !namespace_node(st.st_rdev))
		return error_set(err, -ENOTBLK,
			"%s: a character device, but not of an NVMe namespace (such as /dev/ng0n1)", path);
	drive->fd = open(drive->device, (claim ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (drive->fd < 0 || fstat(drive->fd, &st) != 0) {
		int r = error_set(err, -errno, "%s: %s", path, strerror(errno));
		if (drive->fd >= 0)
			close(drive->fd);
		return r;
	}
	int nsid = ioctl(drive->fd, NVME_IOCTL_ID);
	int r;
	if (nsid <= 0) {
		r = error_set(err, -ENOTBLK, "%s: not an NVMe namespace", path);
		goto fail;
	}
	drive->nsid = (uint32_t)nsid;
	drive->node = st.st_rdev;
	if ((r = identify_all(drive, err)))
		goto fail;
	char block[96] = "", *dir = malloc(DIR_SIZE);
	dev_t block_dev = 0;
	if (!dir) {
		r = error_set(err, -ENOMEM, "%s: out of memory", path);
		goto fail;
	}
	int found = sibling_find(st.st_rdev, drive->nsid, block, sizeof(block), &block_dev, dir, DIR_SIZE);
	if (found == 0)
		queue_limits(drive, dir);
	free(dir);
	drive->id_dev = found == 0 ? block_dev : st.st_rdev;
	if (claim) {
		if (found) {
			r = error_set(
				err, found, "%s: its block device is not in sysfs, so it cannot be claimed", path);
			goto fail;
		}
		drive->claim_fd = open(block, O_RDONLY | O_EXCL | O_CLOEXEC);
		if (drive->claim_fd < 0) {
			int e = errno;
			r = error_set(err, -e, "%s: %s: %s", path, block,
				e == EBUSY ? "in use (mounted, or held by another program)" : strerror(e));
			goto fail;
		}
		if (fstat(drive->claim_fd, &st) != 0 || !S_ISBLK(st.st_mode) || st.st_rdev != block_dev) {
			r = error_set(err, -ENODEV, "%s: %s is not its block device", path, block);
			close(drive->claim_fd);
			goto fail;
		}
	}
	return 0;
fail:
	close(drive->fd);
	drive->fd = drive->claim_fd = -1;
	return r;
}

static void passthrough_close(struct drive *drive)
{
	if (drive->fd >= 0)
		close(drive->fd);
	if (drive->claim_fd >= 0)
		close(drive->claim_fd);
	drive->fd = drive->claim_fd = -1;
}

static void passthrough_submit(struct drive_cmd *cmd)
{
	struct drive *drive = cmd->drive;
	cmd->io.done = drive_cmd_io_done;
	struct io_uring_sqe *sqe = io_start(&cmd->io);
	sqe->opcode = IORING_OP_URING_CMD;
	sqe->fd = drive->fd;
	sqe->cmd_op = NVME_URING_CMD_IO;
	struct nvme_uring_cmd *nvme = (struct nvme_uring_cmd *)(void *)sqe->cmd;
	memset(nvme, 0, sizeof(*nvme));
	nvme->nsid = drive->nsid;
	if (cmd->op == DRIVE_OP_READ || cmd->op == DRIVE_OP_WRITE) {
		uint64_t lba = cmd->offset >> drive->lba_shift;
		uint32_t count = (uint32_t)(cmd->bytes >> drive->lba_shift);
		nvme->opcode = cmd->op == DRIVE_OP_READ ? CMD_READ : CMD_WRITE;
		nvme->cdw10 = (uint32_t)lba;
		nvme->cdw11 = (uint32_t)(lba >> 32);
		nvme->cdw12 = (count - 1) | (cmd->fua && drive->volatile_cache ? WRITE_FUA : 0);
		if (cmd->n == 1) {
			nvme->addr = (uint64_t)(uintptr_t)cmd->iov[0].iov_base;
			nvme->data_len = (uint32_t)cmd->bytes;
			if (cmd->buf[0]->fixed_index >= 0) {
				sqe->uring_cmd_flags = IORING_URING_CMD_FIXED;
				sqe->buf_index = (uint16_t)cmd->buf[0]->fixed_index;
			}
		} else {
			sqe->cmd_op = NVME_URING_CMD_IO_VEC;
			nvme->addr = (uint64_t)(uintptr_t)cmd->iov;
			nvme->data_len = cmd->n;
		}
	} else if (cmd->op == DRIVE_OP_FLUSH) {
		nvme->opcode = CMD_FLUSH;
	} else {
		uint64_t lba = cmd->offset >> drive->lba_shift;
		cmd->dsm[0] = 0;
		cmd->dsm[1] = htole32((uint32_t)(cmd->bytes >> drive->lba_shift));
		cmd->dsm[2] = htole32((uint32_t)lba);
		cmd->dsm[3] = htole32((uint32_t)(lba >> 32));
		nvme->opcode = CMD_DATASET;
		nvme->addr = (uint64_t)(uintptr_t)cmd->dsm;
		nvme->data_len = sizeof(cmd->dsm);
		nvme->cdw10 = 0; /* one range */
		nvme->cdw11 = DATASET_DEALLOCATE;
	}
	io_link(sqe, &cmd->io);
}

/* The low 64 bits of a 128-bit count. */
static uint64_t count_get(const uint8_t *bytes)
{
	uint64_t v;
	memcpy(&v, bytes, sizeof(v));
	return le64toh(v);
}

static int passthrough_health(struct drive *drive, struct drive_smart *smart)
{
	struct nvme_smart_log *log = calloc(1, sizeof(*log));
	if (!log)
		return -ENOMEM;
	struct nvme_admin_cmd cmd = {
		.opcode = 0x02, /* Get Log Page */
		.nsid = 0xffffffff,
		.addr = (uint64_t)(uintptr_t)log,
		.data_len = sizeof(*log),
		.cdw10 = (uint32_t)(sizeof(*log) / 4 - 1) << 16 | 0x02, /* SMART / Health Information */
	};
	int r = ioctl(drive->fd, NVME_IOCTL_ADMIN_CMD, &cmd);
	if (r == 0)
		*smart = (struct drive_smart){
			.critical_warning = log->critical_warning,
			.percent_used = log->percent_used,
			.spare_percent = log->avail_spare,
			.spare_threshold = log->spare_thresh,
			.temperature = (unsigned)log->temperature[0] | (unsigned)log->temperature[1] << 8,
			.media_errors = count_get(log->media_errors),
			.power_on_hours = count_get(log->power_on_hours),
			.unsafe_shutdowns = count_get(log->unsafe_shutdowns),
		};
	else
		r = r < 0 ? -errno : -EIO;
	free(log);
	return r;
}

/* Whether the kernel still knows the drive. Does not wait: sysfs is memory. */
static bool passthrough_there(const struct drive *drive)
{
	char link[64];
	snprintf(link, sizeof(link), "/sys/dev/char/%u:%u", major(drive->node), minor(drive->node));
	return access(link, F_OK) == 0;
}

static int passthrough_result(const struct drive_cmd *cmd)
{
	int32_t res = cmd->io.res;
	if (res == 0 || res == -EAGAIN || res == -ENOMEM)
		return res;
	/* commands that end in removal get all kinds of errors */
	if (!passthrough_there(cmd->drive))
		return -ENODEV;
	/*
	 * A drive that two controllers may share is reached by paths, and the kernel says EINVAL when there is none. It
	 * says so of a malformed command too, but ours keep within the drive's limits.
	 */
	if (res < 0)
		return res == -EINVAL ? -EIO : res;
	/* status code type and code; the drive's own error, not the kernel's */
	log_debug("raid", "nvme command failed drive=%s op=%d status=0x%x", cmd->drive->path, (int)cmd->op,
		(unsigned)res);
	return -EIO;
}

const struct drive_ops drive_nvme_ops = {
	.open = passthrough_open,
	.close = passthrough_close,
	.submit = passthrough_submit,
	.result = passthrough_result,
	.there = passthrough_there,
	.health = passthrough_health,
};
