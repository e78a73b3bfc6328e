/*
 * fs: the file system on a volume. It knows inodes, names and extents, never an NFS type.
 *
 * All functions wait and may be called on any reactor; work on inodes and on the tree runs on the file
 * system's home reactor, drives are read and data is verified on the caller's, and the payload stays where
 * it is in memory. Errors are negative errno, and the set is closed: the server maps exactly these:
 *   EPERM ENOENT EIO EACCES EEXIST EXDEV ENOTDIR EISDIR EINVAL EFBIG ENOSPC EROFS EMLINK
 *   ENAMETOOLONG ENOTEMPTY ESTALE EBADF EOPNOTSUPP EDQUOT EBUSY EAGAIN (EAGAIN: try later, no
 *   memory now)
 *
 * What a function reports as done is durable when it returns, for everything that changes names or
 * attributes, and for writes as far as asked.
 */
#ifndef FURROW_FS_H
#define FURROW_FS_H

#include <time.h>

#include "core/core.h"
#include "raid/raid.h"

#define FS_NAME_MAX 255
#define FS_SYMLINK_MAX 4095
#define FS_LINK_MAX 0x7fffffffu
#define FS_SIZE_MAX ((1ull << 60) - 1)
#define FS_ROOT_INO 2

struct fs;

/* ------------------------------------------------------------------------------------------------
 * Life of a file system
 */

struct fs_create_options {
	uint32_t root_mode; /* 0: 0755 */
	uint32_t root_uid, root_gid;
};
int fs_create(struct volume *volume, const struct fs_create_options *options, struct error *err);
/* What is on VOLUME: 0 when there is a file system, -ENOENT when there is none, else why it cannot be used. */
int fs_probe(struct volume *volume, struct error *err);

struct fs_mount_options {
	bool read_only;	      /* replays in memory and writes nothing */
	uint64_t cache_bytes; /* memory for tree nodes and clean data; 0: 64 MiB */
	uint64_t dirty_bytes; /* most dirty data held in arena buffers; 0: a quarter of the arena */
};
/* Replays the log, makes all copies of its tail equal, and is ready when it returns. */
int fs_mount(struct volume *volume, const struct fs_mount_options *options, struct fs **fs, struct error *err);
/* Flushes, writes a checkpoint and marks it clean. All other calls have ended before. */
int fs_unmount(struct fs *fs);

const struct uuid *fs_uuid(const struct fs *fs);
uint64_t fs_fsid(const struct fs *fs);		 /* from the superblock */
uint64_t fs_write_verifier(const struct fs *fs); /* changes exactly when unstable data may have been lost */

struct fs_statfs {
	uint64_t bytes_total, bytes_free, bytes_available;
	uint64_t files_total, files_free;
};
int fs_statfs(struct fs *fs, struct fs_statfs *out);

/* Counters for `furrow fs status`; all since mount. */
struct fs_status {
	uint64_t checkpoints, transactions, log_bytes, log_used_bytes, log_capacity_bytes;
	uint64_t cached_nodes, dirty_nodes, cached_inodes, dirty_bytes;
	uint64_t stripes_total, stripes_free;
	uint64_t checksum_errors, checksum_repairs;
	uint64_t cache_bytes, cache_limit_bytes;	    /* of clean data */
	uint64_t cache_hits, cache_misses, cache_evictions; /* blocks that readers found in it or not; buffers */
	uint64_t ahead_blocks;				    /* read ahead */
	uint64_t inodes, replayed;
	uint64_t cleaner_moved_blocks, cleaner_freed_stripes;
	bool read_only;
};
void fs_status(struct fs *fs, struct fs_status *out);

/* Verifies every structure and every checksum, of a mounted file system (quiet or busy) or of a read-only mounted one.
 */
struct fs_check_result {
	uint64_t inodes, directories, extents, data_blocks, nodes, errors;
};
typedef void fs_check_report_fn(void *arg, const char *problem); /* one call per fault found */
/* Called often, on a reactor of the file system's choice. false: the check is to end now, with -ECANCELED. */
typedef bool fs_check_progress_fn(void *arg, uint64_t done, uint64_t total);
int fs_check(struct fs *fs, bool data, fs_check_report_fn *report, fs_check_progress_fn *progress, void *arg,
	struct fs_check_result *result);

/*
 * Makes what is on VOLUME fit together again, as far as that goes; nobody has it mounted. REPORT is told what was done
 * and what is lost. Run fs_check() after it: what it still finds is lost data, by file. -EIO: there is no root that can
 * be read.
 */
struct fs_repair_result {
	uint64_t repaired, lost; /* lines of either kind */
};
int fs_repair(struct volume *volume, fs_check_report_fn *report, void *arg, struct fs_repair_result *result,
	struct error *err);

/*
 * What lies on the drives, a line for each record, until FN returns false. WHAT: root, log, nodes, stripes, owners,
 * shares, snapshots, orphans, replies, state, counters; of inode INO (0: the root directory): inode, dir, xattrs,
 * extents. -EINVAL.
 */
typedef bool fs_dump_fn(void *arg, const char *line); /* must not wait */
int fs_dump(struct fs *fs, const char *what, uint64_t ino, fs_dump_fn *fn, void *arg);

/*
 * Snapshots: the file system as it was, read-only, found as `.snapshot/NAME` in the root directory. Made at once;
 * everything that was written before the call is in it. The space of a deleted one comes back in the background.
 * Names are those of files, but do not begin with a dot. -EEXIST, -ENOENT; -EMLINK: there are FS_SNAPSHOTS_MAX.
 */
#define FS_SNAPSHOTS_MAX 100u
struct fs_snapshot {
	uint32_t id; /* fs_id.snap */
	const char *name;
	uint64_t created_ns, fsid;
	bool deleting; /* gone, but for its space */
};
int fs_snapshot_create(struct fs *fs, const char *name);
int fs_snapshot_delete(struct fs *fs, const char *name);
int fs_snapshot_list(struct fs *fs, void (*fn)(void *arg, const struct fs_snapshot *snapshot), void *arg);
int fs_snapshots_wait(struct fs *fs);			 /* until the space of deleted ones is back */
uint64_t fs_snapshot_fsid(uint64_t fsid, uint32_t snap); /* what attributes of fs_id.snap SNAP show; 0: FSID itself */

/* ------------------------------------------------------------------------------------------------
 * Names for files, who asks, and what is known about a file
 */

/* What a file handle carries. gen tells a reused inode number apart; -ESTALE when it does not match. */
struct fs_id {
	uint64_t ino;
	uint32_t gen;
	uint32_t snap; /* 0: the live file system */
};

/* Who asks. The server has squashed it already. uid 0 passes all permission checks. */
#define FS_GROUPS_MAX 64
struct fs_cred {
	uint32_t uid, gid;
	uint32_t group_count;
	uint32_t groups[FS_GROUPS_MAX];
};

/*
 * The mark of a call that must not be done twice. A changing operation stores it, with its result,
 * in the same transaction; fs_replies_foreach() returns the latest FS_REPLIES of them after a mount.
 */
#define FS_REPLIES 4096
struct fs_reply {
	uint64_t client; /* hash of the client's address */
	uint32_t xid, proc, checksum;
	int32_t status;	  /* 0: only successes are stored */
	struct fs_id id;  /* the object that was made or changed */
	uint64_t time_ns; /* wall clock */
};
void fs_replies_foreach(struct fs *fs, void (*fn)(void *arg, const struct fs_reply *reply), void *arg);

/* Every operation gets one. reply may be NULL. */
struct fs_op {
	const struct fs_cred *cred;
	const struct fs_reply *reply; /* client, xid, proc, checksum filled in */
	bool owner_override;	      /* the owner may always read and write (NFSv3 has no open) */
	bool opened; /* for data: the caller has the file open, and permission was decided then (NFSv4) */
};

enum fs_type { FS_REG = 1, FS_DIR, FS_LNK, FS_CHR, FS_BLK, FS_FIFO, FS_SOCK };

struct fs_attr {
	struct fs_id id;
	enum fs_type type;
	uint32_t mode; /* the low 12 bits */
	uint32_t nlink, uid, gid;
	uint32_t rdev_major, rdev_minor;
	uint64_t size, used_bytes;
	uint64_t change; /* grows with every change of data or attributes */
	struct timespec atime, mtime, ctime, btime;
};

/* Attributes of a file (or directory) around a change, taken in the same transaction. */
struct fs_wcc {
	bool valid;
	struct {
		uint64_t size, change;
		struct timespec mtime, ctime;
	} before;
	struct fs_attr after;
};

#define FS_SET_MODE 1u
#define FS_SET_UID 2u
#define FS_SET_GID 4u
#define FS_SET_SIZE 8u
#define FS_SET_ATIME 16u
#define FS_SET_MTIME 32u
#define FS_SET_ATIME_NOW 64u
#define FS_SET_MTIME_NOW 128u
struct fs_setattr {
	uint32_t set; /* FS_SET_* */
	uint32_t mode, uid, gid;
	uint64_t size;
	struct timespec atime, mtime;
};

/* ------------------------------------------------------------------------------------------------
 * Operations. Results that a pointer may take are left out where it is NULL.
 */

int fs_root(struct fs *fs, struct fs_attr *attr); /* the root directory: where every way into the file system begins */
int fs_getattr(struct fs *fs, struct fs_id id, struct fs_attr *attr);
/* With GUARD_CTIME, a file whose ctime differs is left alone: -EBUSY (NFS3ERR_NOT_SYNC, RFC 1813 3.3.2). */
int fs_setattr(struct fs *fs, const struct fs_op *op, struct fs_id id, const struct fs_setattr *set,
	const struct timespec *guard_ctime, struct fs_wcc *wcc);

#define FS_MAY_READ 1u
#define FS_MAY_WRITE 2u
#define FS_MAY_EXEC 4u	 /* or search, of a directory */
#define FS_MAY_DELETE 8u /* entries of this directory */
/* Which of WANTED are allowed; never fails with -EACCES. */
int fs_access(struct fs *fs, const struct fs_op *op, struct fs_id id, uint32_t wanted, uint32_t *allowed,
	struct fs_attr *attr);

/* NAME is NAME_LEN bytes, no NUL and no '/' (-EINVAL); "." and ".." are understood by lookup only. dir_attr also on
 * -ENOENT. */
int fs_lookup(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	struct fs_attr *attr, struct fs_attr *dir_attr);

/* Room for FS_SYMLINK_MAX bytes; returns the length. */
int fs_readlink(
	struct fs *fs, const struct fs_op *op, struct fs_id id, char *target, size_t room, struct fs_attr *attr);

/*
 * Reads up to *COUNT bytes at OFF. Fills OUT[0..*N) (room for *N slices in, used out) with referenced
 * slices that together hold exactly *COUNT bytes; the caller puts them (slices_put). Holes are zeros.
 * *EOF is right for the size at the time of the read.
 */
#define FS_READ_SLICES 272 /* always enough for 1 MiB at any offset */
int fs_read(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, uint32_t *count, struct slice *out,
	unsigned *n, bool *eof, struct fs_attr *attr);

/*
 * Writes the bytes of FROM at OFF. Rule of place: the first byte lies in its buffer at an address
 * that equals OFF modulo 4 KiB, and each further slice begins on a 4 KiB boundary of its buffer and
 * of the file; whole blocks are then kept by reference, and only edges are ever copied. The
 * buffers' other bytes in the edge blocks may be used by the file system: nobody else uses these
 * buffers. FROM's references stay with the caller, who puts them after the call. -EINVAL: another place, what is no
 * regular file, or more than 4 MiB. *COMMITTED is at least STABLE.
 */
enum fs_stable { FS_UNSTABLE, FS_DATA_SYNC, FS_FILE_SYNC };
int fs_write(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, const struct slice *from, unsigned n,
	enum fs_stable stable, enum fs_stable *committed, struct fs_wcc *wcc);
int fs_commit(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, uint64_t count, struct fs_wcc *wcc);
/* Buffers for a write of COUNT bytes at OFF, placed by the rule above. Fills OUT, returns the number of slices (or
 * -ENOSPC). */
int fs_write_buffers(uint64_t off, uint32_t count, struct slice *out, unsigned max);

/*
 * Ranges. A punched range reads as zeros and gives its whole blocks back; the size stays. Allocating makes the file
 * long enough; -ENOSPC when its holes would not fit now. (Each write needs new space here, so none is put aside.)
 */
int fs_punch(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, uint64_t count, struct fs_wcc *wcc);
int fs_allocate(
	struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, uint64_t count, struct fs_wcc *wcc);
/* The first byte of data, or of a hole, from OFF on. *EOF: there is none before the end of the file, *FOUND is its
 * size. */
enum fs_seek { FS_SEEK_DATA, FS_SEEK_HOLE };
int fs_seek(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t off, enum fs_seek what, uint64_t *found,
	bool *eof, struct fs_attr *attr);
/* Copies up to the end of the source, unstable (fs_commit() as after writes). Ranges of one file must not overlap. An
 * error after a part was copied is not told: the next call meets it. */
int fs_copy(struct fs *fs, const struct fs_op *op, struct fs_id from, uint64_t from_off, struct fs_id to,
	uint64_t to_off, uint64_t count, uint64_t *copied, struct fs_wcc *wcc);

/*
 * Bytes FROM_OFF.. of FROM appear at TO_OFF of TO without being copied: both then share their blocks, until one of them
 * is written there. Offsets are multiples of 4 KiB, and so is COUNT (0: up to the end of FROM) unless it ends where
 * FROM ends and TO has nothing behind it (RFC 7862, 15.13). -EINVAL also when it ends behind the end of FROM, or when
 * ranges of one file overlap. All or nothing, and durable: readers, snapshots and crashes see it done or not, unless it
 * takes more than one transaction (some 10 GiB, of fragmented files less): after a crash a first part may be done then.
 */
int fs_clone(struct fs *fs, const struct fs_op *op, struct fs_id from, uint64_t from_off, struct fs_id to,
	uint64_t to_off, uint64_t count, struct fs_wcc *wcc);

enum fs_create_mode { FS_CREATE_UNCHECKED, FS_CREATE_GUARDED, FS_CREATE_EXCLUSIVE };
/*
 * UNCHECKED: an existing regular file is opened, and only FS_SET_SIZE of SET is applied to it.
 * EXCLUSIVE: VERIFIER is stored durably in the inode; the same one again finds the file (no -EEXIST).
 */
int fs_create_file(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	enum fs_create_mode mode, const struct fs_setattr *set, uint64_t verifier, struct fs_attr *attr,
	struct fs_wcc *dir_wcc);
int fs_mkdir(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	const struct fs_setattr *set, struct fs_attr *attr, struct fs_wcc *dir_wcc);
int fs_symlink(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	const char *target, size_t target_len, const struct fs_setattr *set, struct fs_attr *attr,
	struct fs_wcc *dir_wcc);
int fs_mknod(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	enum fs_type type, uint32_t major, uint32_t minor, const struct fs_setattr *set, struct fs_attr *attr,
	struct fs_wcc *dir_wcc);
/* A file that something still uses (fs_hold) stays readable by its handle until released, also over a restart. */
int fs_unlink(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	struct fs_wcc *dir_wcc);
int fs_rmdir(struct fs *fs, const struct fs_op *op, struct fs_id dir, const char *name, size_t name_len,
	struct fs_wcc *dir_wcc);
int fs_rename(struct fs *fs, const struct fs_op *op, struct fs_id from_dir, const char *from, size_t from_len,
	struct fs_id to_dir, const char *to, size_t to_len, struct fs_wcc *from_wcc, struct fs_wcc *to_wcc);
int fs_link(struct fs *fs, const struct fs_op *op, struct fs_id id, struct fs_id dir, const char *name, size_t name_len,
	struct fs_attr *attr, struct fs_wcc *dir_wcc);

/*
 * Lists DIR from the entry after COOKIE on (0: from the start), in order of creation. "." and ".."
 * come first with cookies 1 and 2; the others' cookies are sequence numbers from 3 on, never used
 * twice. FN returns false when it has no room; that entry is then the first one of the next call.
 * *EOF tells whether the directory ended. attr is given when WITH_ATTR (READDIRPLUS). FN must not wait.
 */
struct fs_dirent {
	const char *name;
	size_t name_len;
	struct fs_id id;
	uint64_t cookie;
	enum fs_type type;
	const struct fs_attr *attr; /* NULL without WITH_ATTR */
};
typedef bool fs_readdir_fn(void *arg, const struct fs_dirent *entry);
int fs_readdir(struct fs *fs, const struct fs_op *op, struct fs_id dir, uint64_t cookie, bool with_attr,
	fs_readdir_fn *fn, void *arg, bool *eof, struct fs_attr *dir_attr);

/*
 * Extended attributes: user., security. and trusted. names (others: -EOPNOTSUPP), values up to FS_XATTR_MAX bytes.
 * No such attribute is -ENOENT; with CREATE one that is there is -EEXIST. fs_getxattr() always tells the size and
 * gives the value when there is room for it. fs_listxattr() goes on at *COOKIE (first 0) until FN returns false.
 */
#define FS_XATTR_MAX 65536u
enum fs_xattr_mode { FS_XATTR_EITHER, FS_XATTR_CREATE, FS_XATTR_REPLACE };
int fs_getxattr(struct fs *fs, const struct fs_op *op, struct fs_id id, const char *name, size_t name_len, void *value,
	size_t room, size_t *size);
int fs_setxattr(struct fs *fs, const struct fs_op *op, struct fs_id id, const char *name, size_t name_len,
	const void *value, size_t size, enum fs_xattr_mode mode, struct fs_wcc *wcc);
int fs_removexattr(
	struct fs *fs, const struct fs_op *op, struct fs_id id, const char *name, size_t name_len, struct fs_wcc *wcc);
typedef bool fs_listxattr_fn(void *arg, const char *name, size_t name_len); /* must not wait */
int fs_listxattr(struct fs *fs, const struct fs_op *op, struct fs_id id, uint64_t *cookie, fs_listxattr_fn *fn,
	void *arg, bool *eof);

/*
 * Records of the server's own, which no client can see: a KIND of the server's choice, a name, and data. They are
 * durable when put or deleted; -EROFS of what is mounted read-only. fs_state_get() as fs_getxattr(). fs_state_next():
 * the first (record->cookie 0), then the next of a kind, in no order that means anything, until -ENOENT; records may
 * come and go meanwhile. How many there are is the server's business.
 */
#define FS_STATE_NAME_MAX 1088u
#define FS_STATE_DATA_MAX 1900u
struct fs_state {
	uint64_t cookie;
	size_t name_len, data_len;
	uint8_t name[FS_STATE_NAME_MAX], data[FS_STATE_DATA_MAX];
};
int fs_state_put(struct fs *fs, uint8_t kind, const void *name, size_t name_len, const void *data, size_t data_len);
int fs_state_get(
	struct fs *fs, uint8_t kind, const void *name, size_t name_len, void *data, size_t room, size_t *data_len);
int fs_state_delete(struct fs *fs, uint8_t kind, const void *name, size_t name_len); /* none: 0 */
int fs_state_next(struct fs *fs, uint8_t kind, struct fs_state *record);

/* Keeps an unlinked file alive while it is held (opens of NFSv4, locks). Counted. */
int fs_hold(struct fs *fs, struct fs_id id);
void fs_release(struct fs *fs, struct fs_id id);

#endif
