/*
 * The drives: one struct drive for whatever holds bytes, and batches of commands to them.
 *
 * A request is a run of bytes of one drive; it is cut into commands. The requests of one operation
 * form a batch, for which one fiber waits. A command that misses its deadline is given up by its
 * batch, but keeps its memory (quarantine) until its completion has really come.
 */
#ifndef FURROW_DRIVE_INTERNAL_H
#define FURROW_DRIVE_INTERNAL_H

#include <sys/types.h>
#include <sys/uio.h>

#include "raid/raid.h"

struct drive;
struct drive_batch;

enum drive_op { DRIVE_OP_READ, DRIVE_OP_WRITE, DRIVE_OP_FLUSH, DRIVE_OP_DISCARD };

/* A place in a scatter/gather list; reading it with a request moves it on. */
struct slice_cursor {
	const struct slice *v;
	unsigned n, i;
	uint32_t off; /* in v[i] */
};
static inline struct slice_cursor slice_cursor_at(const struct slice *v, unsigned n)
{
	return (struct slice_cursor){.v = v, .n = n};
}
static inline void slice_cursor_skip(struct slice_cursor *c, uint64_t bytes)
{
	while (bytes && c->i < c->n) {
		uint32_t left = c->v[c->i].len - c->off;
		if (bytes < left) {
			c->off += (uint32_t)bytes;
			return;
		}
		bytes -= left;
		c->i++;
		c->off = 0;
	}
}
/* Memory at the cursor and how much of it lies in one piece; NULL at the end. */
static inline uint8_t *slice_cursor_peek(const struct slice_cursor *c, uint32_t *bytes)
{
	if (c->i >= c->n) {
		*bytes = 0;
		return NULL;
	}
	*bytes = c->v[c->i].len - c->off;
	return slice_data(&c->v[c->i]) + c->off;
}

struct drive_req {
	struct drive_batch *batch;
	int error;     /* valid after batch_wait(): 0, -ETIMEDOUT, -EIO, -ENODEV, ... */
	bool given_up; /* a command of it is in quarantine: its memory may still be read or written by the drive */
};

#define DRIVE_CMD_IOV 32u
struct drive_cmd {
	struct io io;
	struct list_node node; /* in its batch, or in the pool */
	struct drive *drive;
	struct drive_req *req; /* NULL: given up, in quarantine */
	enum drive_op op;
	bool fua, twin; /* TWIN: the second of two, on drive->twin */
	uint8_t tries;
	uint64_t offset;
	uint64_t bytes;
	unsigned n;
	struct iovec iov[DRIVE_CMD_IOV];
	struct buf *buf[DRIVE_CMD_IOV]; /* referenced by the caller; by us once in quarantine */
	uint32_t dsm[4];		/* the range of an NVMe deallocate */
	/* joining: those that follow it on the drive, and the last of them; all together; the next one held */
	struct drive_cmd *next, *last, *chain;
	uint64_t chain_bytes;
	unsigned chain_n;
	struct drive_cmd *parts; /* what it stands for; it has no request of its own then */
	/* for drives that complete by themselves */
	int verdict;
	struct timer timer;
};

struct drive_batch {
	struct list cmds;
	unsigned pending;
	struct fiber *waiter;
	uint64_t begun; /* when its first request came */
	uint64_t deadline;
	bool background; /* of rebuild or scrub: not counted as others' */
	unsigned slot;	 /* of the reactor, in the drives' stats */
};
void batch_init(struct drive_batch *batch);
/*
 * Cuts BYTES at OFFSET of DRIVE into commands, takes their memory from CURSOR and sends them off.
 * All are multiples of 4 KiB. FUA: durable when it ends. No wait.
 */
void batch_io(struct drive_batch *batch, struct drive_req *req, struct drive *drive, enum drive_op op, uint64_t offset,
	uint64_t bytes, struct slice_cursor *cursor, bool fua);
/* The same for N drives at one OFFSET, as a row lies: REQ, DRIVE and FROM have one entry each. NULL drives are left
 * out. */
void batch_row(struct drive_batch *batch, struct drive_req *req, struct drive *const *drive, unsigned n,
	enum drive_op op, uint64_t offset, uint64_t bytes, struct slice_cursor *from, bool fua);
void batch_flush(struct drive_batch *batch, struct drive_req *req, struct drive *drive);
void batch_discard(
	struct drive_batch *batch, struct drive_req *req, struct drive *drive, uint64_t offset, uint64_t bytes);
/* Fills ERR with why PATH cannot be DONE ("read", "written") and what to do about it; returns CODE. */
int drive_refused(struct error *err, int code, const char *path, const char *done);
/* Waits until all ended or were given up. The first error of any request. */
int batch_wait(struct drive_batch *batch);

struct drive_ops {
	/* These three may block: called through offload(). */
	int (*open)(struct drive *drive, bool claim, struct error *err);
	void (*close)(struct drive *drive);
	/* Sends a command to the calling reactor's ring; it ends in drive_cmd_done(). No wait. */
	void (*submit)(struct drive_cmd *cmd);
	/* 0 or negative errno from io.res; -EAGAIN: send it again. */
	int (*result)(const struct drive_cmd *cmd);
	/* Whether what was opened is still to be had under its name, or NULL: always. May block. */
	bool (*there)(const struct drive *drive);
	/* NULL: it cannot tell. May block. */
	int (*health)(struct drive *drive, struct drive_smart *smart);
};
extern const struct drive_ops drive_nvme_ops, drive_file_ops, drive_fault_ops, drive_null_ops;
/* The character device of the NVMe namespace whose block device is BLOCK: 0 and its path, or -ENOENT. May block. */
int nvme_node_find(dev_t block, char *path, size_t size);

/* Counted by each reactor for itself. Two cache lines; a write touches the first alone. */
struct drive_stats {
	_Atomic uint64_t reads, writes, read_bytes, write_bytes, fua_writes;
	_Atomic uint64_t volatile_writes;      /* that ended without being durable */
	_Atomic uint64_t others, others_ns;    /* commands that are not of rebuild or scrub, and how long they took */
	_Atomic uint64_t timed_reads, read_ns; /* all reads */
	_Atomic uint64_t flushes;
	struct drive_cmd *held; /* the first of those that the next command may join */
} __attribute__((aligned(64)));

struct drive { /* what every command looks at comes first, in one cache line */
	const struct drive_ops *ops;
	void *data;
	uint64_t bytes; /* a multiple of 4 KiB */
	uint64_t deadline_ns;
	uint32_t transfer_max; /* bytes of a command */
	uint32_t segments_max; /* pieces of memory of a command, at most DRIVE_CMD_IOV */
	int fd;
	uint32_t nsid;
	uint8_t lba_shift;
	bool volatile_cache; /* writes need FUA or a flush to survive a power cut */
	bool instant;	     /* ends commands inside of submit(): not worth a clock */
	bool can_discard;
	bool joins;	/* neighbours that are sent together become one command */
	bool read_only; /* opened to look only */
	/*
	 * While the drive of a member is replaced: what is written to [twin_from, twin_to) of this one is written to
	 * TWIN too, durably, with the same request. Set and cleared behind array_barrier().
	 */
	struct drive *_Atomic twin;
	/* the rest */
	int claim_fd;
	uint32_t lba_bytes;
	enum drive_kind kind;
	char path[256];	  /* the name that it was opened by */
	char device[256]; /* the node of an NVMe drive: a symbolic link to its block device means the character device
			   */
	char model[41], serial[21];
	/* what it really is, whatever its path: device number, and inode of a file */
	dev_t id_dev;
	ino_t id_ino;
	dev_t node; /* of the character device */
	uint64_t twin_from, twin_to;
	_Atomic bool twin_failed; /* of a twin: something that was written did not reach it */
	_Atomic bool twin_counts; /* of a twin: its errors are the request's, too */
	void *owned;		  /* freed with the drive, after the last command in quarantine */
	_Atomic uint32_t refs;	  /* the owner and each command in quarantine */
	_Atomic uint32_t quarantined;
	_Atomic uint64_t flushed; /* so many of its volatile_writes are durable */
	struct drive_stats stats[METRIC_SLOTS];
};

/*
 * Opens PATH: an NVMe character device, a block device, a file, or "fault:PATH" or "null:SIZE:NAME".
 * CLAIM: nobody else can have it then (-EBUSY when somebody has); else it is only looked at. Waits.
 */
int drive_open(const char *path, bool claim, struct drive **drive, struct error *err);
void drive_close(struct drive *drive); /* waits */
bool drive_same(const struct drive *a, const struct drive *b);
/* One request to one drive. Waits. */
int drive_io(struct drive *drive, enum drive_op op, uint64_t offset, struct buf *buf, uint32_t bytes, bool fua);
int drive_flush(struct drive *drive);
/* Overwrites [offset, offset+bytes) with zeros. Waits. */
int drive_zero(struct drive *drive, uint64_t offset, uint64_t bytes);

/* For drive_*.c: a command has ended. No wait; in the loop or in submit(). */
void drive_cmd_done(struct drive_cmd *cmd, int error);
/* For drive_*.c that use the ring: the done function of cmd->io. */
void drive_cmd_io_done(struct io *io);
uint64_t drive_stat_sum(const struct drive *drive, size_t offset);
/* Whether writes wait for a flush; UPTO is then what to tell drive_flush_ended() when it has succeeded. */
bool drive_flush_needed(const struct drive *drive, uint64_t *upto);
void drive_flush_ended(struct drive *drive, uint64_t upto);

/* 0: as the kind of drive says. For tests. */
extern _Atomic uint64_t drive_deadline_override;

/* drive_fault.c, for tests of power cuts: what lies in the volatile cache of a drive, and how many blocks it is. */
unsigned fault_cached(const char *path, uint64_t *block, uint8_t (*data)[BLOCK_BYTES], unsigned most);
/* While it is on, nothing reaches the files: fault_power_cut() takes all back that was written. */
void fault_overlay(bool on);

/* content.c: what of others lies on the drive, in words ("ext4 file system"); false: nothing known. Waits. */
int drive_content_foreign(struct drive *drive, char *text, size_t size, bool *found);
/* The same on bytes: HEAD is the start of the drive, TAIL its last bytes. */
bool content_identify(
	const uint8_t *head, size_t head_bytes, const uint8_t *tail, size_t tail_bytes, char *text, size_t size);

#endif
