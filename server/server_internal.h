/*
 * server: the programs that make a NAS of the layers below: configuration, exports, NFS, the control
 * socket, and the admin commands.
 *
 *   config.c    YAML to struct config; every mistake with file:line:column
 *   storage.c   what is open: scan, arrays, volumes, mounted file systems (used by furrowd and by the offline tool)
 *   admin*.c    the commands: a JSON request to a JSON result, on a fiber; run by furrowd for its control
 *               socket, and by `furrow` itself when no server runs
 *   control.c   the control socket (server side), metrics_http.c the /metrics page, storage_metrics.c its part about
 * storage cli*.c      `furrow`: arguments, tables, confirmation, progress, exit status exports.c   which client may do
 * what where; access gate; pseudo-root handle.c    file handles with their MAC nfs3*.c     NFSv3, mount3.c MOUNT 3
 *   locks.c     the lock table of all protocols; nlm*.c, nsm.c locks of NFSv3; grace.c; stable.h what must survive
 *   serve.c     the server's start, reload and stop; main.c furrowd: options, signals; daemon.c leaving the terminal
 */
#ifndef FURROW_SERVER_INTERNAL_H
#define FURROW_SERVER_INTERNAL_H

#include <jansson.h>
#include <netinet/in.h>

#include "core/core.h"
#include "fs/fs.h"
#include "raid/raid.h"
#include "rpcrdma/rpcrdma.h"

#define FURROW_VERSION "0.1.0"
#define CONFIG_DEFAULT_PATH "/etc/furrow/furrow.yaml"
#define CONTROL_DEFAULT_PATH "/run/furrow/control.sock"

/* ------------------------------------------------------------------------------------------------
 * Configuration (config.c)
 */

enum squash { SQUASH_NONE, SQUASH_ROOT, SQUASH_ALL };

#define CLIENTS_TEXT_MAX 256
enum clients_kind { CLIENTS_NET, CLIENTS_HOST, CLIENTS_NETGROUP };
struct config_clients {
	enum clients_kind kind;
	char text[CLIENTS_TEXT_MAX]; /* as written: a host's name, "@netgroup" */
	struct in6_addr net;	     /* IPv4 as v4-mapped */
	unsigned prefix;	     /* of 128 */
};
bool config_clients_same(const struct config_clients *a, const struct config_clients *b);
struct config_allow {
	struct config_clients *clients;
	unsigned client_count;
	bool write;
	enum squash squash;
	uint32_t anonuid, anongid; /* 65534 */
	bool sec_sys, sec_none;
	bool server_groups; /* a user's groups are those that this machine knows, not those of the credential */
};
struct config_export {
	char *path;	  /* "/data" */
	char *filesystem; /* "a0/data" */
	struct config_allow *allow;
	unsigned allow_count;
	unsigned line; /* for messages about it later */
};
#define CONFIG_LEASE_DEFAULT 90u
/* Which delegations NFSv4 clients may get. */
enum delegations { DELEGATIONS_NONE, DELEGATIONS_READ, DELEGATIONS_WRITE };

struct config {
	char *file;
	char **listen;
	unsigned listen_count;
	uint16_t nfs_port, rdma_port; /* 0: that transport is off */
	struct rpc_network network;
	unsigned cores;	 /* 0: auto */
	uint64_t memory; /* bytes; 0: auto */
	char *control;
	enum delegations delegations;
	unsigned lease;	       /* seconds, of NFSv4 clients */
	bool owner_names;      /* NFSv4 clients are told names of owners */
	char *owner_domain;    /* NULL: the machine's */
	char *hook;	       /* a program that is run for each event; NULL: none */
	char *metrics_address; /* "127.0.0.1" */
	uint16_t metrics_port; /* 9750; 0: off */
	char **drives;
	unsigned drive_count;
	struct config_export *exports;
	unsigned export_count;
};
/* Reads and checks FILE; the error names file:line:column. */
int config_load(const char *file, struct config **config, struct error *err);
/* What holds without a file. */
int config_default(struct config **config, struct error *err);
void config_free(struct config *config);
bool config_name_valid(const char *name, size_t length); /* of an array or a volume */
bool config_filesystem_valid(const char *name);		 /* "array/volume" */
#define CONFIG_MEMORY_MIN (128ull << 20)
/* What "auto" comes to on this machine, and the arena's part of memory. */
void config_core(const struct config *config, struct core_config *core);
/* Whether this machine has what the configuration wants. */
int config_memory_check(const struct config *config, struct error *err);
/* The part of the arena that the file systems' caches share: give it to struct storage before storage_open(). */
uint64_t config_cache_bytes(const struct config *config);

/* "64KiB", "1.5TiB", "10G" (powers of 1024), plain bytes; and back, for people. */
int size_parse(const char *text, uint64_t *bytes);
void size_format(uint64_t bytes, char text[16]);

/* ------------------------------------------------------------------------------------------------
 * What is open (storage.c). On reactor 0 only.
 */

struct storage_fs {
	char name[2 * RAID_NAME_MAX + 3]; /* "array/volume" */
	struct volume *volume;
	struct fs *fs; /* NULL: not mounted, see problem */
	char problem[256];
	/* Who needs it mounted besides the storage itself: export tables in use, a running check. It is not unmounted
	 * before. */
	_Atomic unsigned users;
	uint64_t cache_bytes; /* its part of the storage's */
	struct list_node node;
};
struct storage_array {
	struct array *array;
	char name[RAID_NAME_MAX + 1];
	struct list_node node;
};
struct storage {
	char **drives; /* patterns */
	unsigned drive_count;
	struct list arrays, filesystems; /* the volumes of all open arrays, mounted or not */
	struct fiber_mutex lock;	 /* held by whoever changes the lists, or waits while it walks them */
	uint64_t cache_given;		 /* of cache_bytes, to those mounted */
	uint64_t cache_bytes;		 /* for all file systems; 0: a default. Set it before storage_open() */
	bool keep;		     /* arrays take spares and rebuild by themselves. Set it before storage_open() */
	struct storage_watch *watch; /* storage_watch.c */
	bool read_only;		     /* mount so that nothing is written to the volumes. Set it before storage_open() */
};
/* Assembles the arrays that FILESYSTEMS ("array/name") need, or all found when it is NULL, and mounts those file
 * systems. */
int storage_open(struct storage *storage, char **drives, unsigned drive_count, const char *const *filesystems,
	unsigned count, struct error *err);
/* More of the same after storage_open(): on reload, before exports_build(). What is mounted already stays as it is. */
int storage_mount(struct storage *storage, const char *const *filesystems, unsigned count, struct error *err);
void storage_close(struct storage *storage); /* unmounts, closes */
/* Opens the array NAME if the drives hold it; the lock is held. */
int storage_array_open(struct storage *storage, const char *name, struct storage_array **array, struct error *err);
void storage_array_close(struct storage *storage, struct storage_array *array); /* unmounts what is on it, too */
int storage_fs_mount(struct storage *storage, struct storage_fs *filesystem, uint64_t cache_bytes, struct error *err);
/* What a file system that is mounted alone, by command, may have of the cache. */
uint64_t storage_cache_left(const struct storage *storage);
int storage_fs_unmount(struct storage *storage, struct storage_fs *filesystem);
/* Unmounts it, which nobody uses, and repairs it; it is not mounted after. */
int storage_fs_repair(struct storage *storage, struct storage_fs *filesystem, fs_check_report_fn *report, void *arg,
	struct fs_repair_result *result, struct error *err);
/* After a volume was made or destroyed. */
int storage_volumes_refresh(struct storage *storage, struct storage_array *array, struct error *err);
/*
 * While an array lacks members: looks for drives that return and for spares of the shared pool (storage_watch.c). Only
 * of a storage that keeps its arrays.
 */
void storage_watch_start(struct storage *storage);
void storage_watch_stop(struct storage *storage); /* waits */
/* The metrics of arrays and file systems, from a thread that is no reactor; of the storage that was shown last (NULL:
 * none). */
void storage_metrics_show(struct storage *storage);
void storage_metrics_write(FILE *out);
/* The same of clients; RPC is a server, or NULL. */
void traffic_metrics_show(struct rpc_server *rpc);
void traffic_metrics_write(FILE *out);
/* exports_build() takes one for each export, and the last exports_put() gives it back. Any thread. */
void storage_fs_hold(struct storage_fs *filesystem);
void storage_fs_release(struct storage_fs *filesystem);
struct storage_array *storage_array_find(struct storage *storage, const char *name);
struct storage_fs *storage_fs_find(struct storage *storage, const char *name);

/* ------------------------------------------------------------------------------------------------
 * Exports and handles (exports.c, handle.c)
 */

struct export
{
	uint32_t id; /* stable: hash of path; in file handles */
	char *path;
	struct storage_fs *filesystem;
	struct config_allow *allow; /* copied from the configuration */
	unsigned allow_count;
	struct fs *fs; /* that of filesystem */
	uint64_t fsid;
	uint64_t handle_key[2]; /* of its file handles' MAC */
	bool by_address; /* its rules go by address alone: a client has the same one as long as the table lives */
};
/* The whole table is replaced on SIGHUP; readers on any reactor take a reference for the time of a call. */
struct exports {
	_Atomic unsigned refs;
	unsigned count;
	struct export *export;
};
struct exports *exports_build(const struct config *config, struct storage *storage, struct error *err);
void exports_publish(struct exports *exports); /* takes over the reference. Waits, in a fiber */
/* Any thread; NULL: none now. The reference is given back on the same reactor, or by no reactor either. */
struct exports *exports_get(void);
void exports_put(struct exports *exports);
/*
 * The rule that covers PEER: an address or a host's name comes first, then a netgroup, then networks, the smallest
 * first. NULL: this client has no access. Waits where names are in the rules and were not asked for in a while.
 */
const struct config_allow *export_rule(const struct export *export, const struct sockaddr_storage *peer);
const struct config_allow *export_rule_of(const struct export *export, const struct in6_addr *address);

/* ------------------------------------------------------------------------------------------------
 * The server (main.c) and the admin commands (admin.c)
 */

struct server {
	struct config *config;
	struct storage storage;
	struct rpc_server *rpc;
	uint64_t started; /* wall_ns() */
	bool rdma, rpcbind;
	bool statd;	       /* NSM is ours here */
	_Atomic bool stopping; /* commands that take long (a check) end early; any reactor */
	/* Configurations that a reload replaced: what was made from them may still point into them. Freed at the end.
	 */
	struct config **retired;
	unsigned retired_count;
	struct fiber_mutex reload_lock;
	/* What SIGHUP does, for `furrow reload`: reads the configuration again and publishes its exports. Waits; set by
	 * main.c. */
	int (*reload)(struct server *server, struct error *err);
};

extern const struct rpc_program nfs3_program, mount3_program, nlm4_program, nsm_program;
/*
 * From a configuration to a server that answers, and back (serve.c). All three wait, on reactor 0.
 * serve_start() undoes what it did when it fails; it gives up with -ECANCELED between its steps once *STOP is set.
 */
int serve_start(struct server *server, const bool *stop, struct error *err);
void serve_stop(struct server *server);
int serve_reload(struct server *server, struct error *err);
/*
 * Before anything is opened, and so before anything is written: whether the listening addresses, that of the metrics
 * and the control socket can be had. Blocks for 1 s when one is taken; needs no reactor.
 */
int serve_probe(const struct config *config, struct error *err);

/*
 * Runs one admin command. REQUEST is {"command": "array.status", ...arguments}; the result is an object, or NULL with
 * ERR filled. SERVER is NULL offline: STORAGE then is what the tool opened itself. Progress is told by PROGRESS
 * (may be NULL) as objects {"done":, "total":, "what":}; it returns false when nobody listens any more, and what only
 * looks then ends. Waits; on reactor 0.
 */
typedef bool admin_progress_fn(void *arg, json_t *progress);
json_t *admin_run(struct server *server, struct storage *storage, json_t *request, admin_progress_fn *progress,
	void *arg, struct error *err);

/* The control socket: one JSON request line, then progress lines and a result line. -EADDRINUSE: another server runs.
 */
int control_start(struct server *server, struct error *err);
int control_probe(const char *path, struct error *err); /* whether it could start there. Blocks; needs no reactor */
void control_stop(struct server *server);
int metrics_http_probe(const struct config *config, struct error *err); /* the same */
/* Hears what happens to arrays, and runs PROGRAM (NULL: none) for each event, on a thread of its own (hook.c). */
int hook_start(const char *program, struct error *err);
void hook_stop(void); /* may block for some seconds: through offload() */
int metrics_http_start(const struct config *config, struct error *err);
void metrics_http_stop(void);

#endif
