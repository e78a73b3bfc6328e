/*
 * serve: the start, the reload and the stop of a server, all in the main fiber of furrowd on reactor 0.
 *
 * The order of the start is that of what could be harmed. What costs nothing to find out comes first: whether the ports
 * and the control socket are free (serve_probe). Then drives are claimed, which fails when another server has them, and
 * file systems are mounted. The calls that were answered before the restart are in the reply cache and the exports are
 * published before the first listener opens, so a client that retransmits right away is told its old result and never
 * another. Registration with rpcbind and the metrics come last, since they invite others; the server is ready when that
 * is done, too. An rpcbind that does not answer holds it up for some seconds, and is then done without.
 *
 * The stop goes the other way: no new calls, the running ones end, then file systems write their checkpoint and
 * arrays their clean superblocks.
 *
 * A reload changes exports: it mounts what new exports need, and puts a new table in the place of the old one; calls
 * that run finish under the old. Every error leaves all as it was. What NFSv4 clients are told of owners and may have
 * of delegations follows; other settings take effect at the next start, and it says so.
 *
 * Error policy: the first failure ends the start, undoes it, and is told in one sentence; a missing RDMA
 * device, IPv6 or rpcbind is no failure.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/nfs4_session.h"
#include "server/nlm_internal.h"
#include "xdr/mount3.h"

/* ------------------------------------------------------------------------------------------------
 * Ports
 */

static bool family_missing(int error)
{
	return error == EAFNOSUPPORT || error == EADDRNOTAVAIL || error == EPROTONOSUPPORT;
}

/* 0 or -errno, of an attempt to listen that is given up again at once. */
static int probe_one(const char *address, uint16_t port)
{
	struct sockaddr_storage ss = {0};
	socklen_t len;
	int on = 1, rc = 0;

	if (strchr(address, ':')) {
		struct sockaddr_in6 *a = (struct sockaddr_in6 *)(void *)&ss;
		a->sin6_family = AF_INET6;
		a->sin6_port = htons(port);
		len = sizeof(*a);
		if (inet_pton(AF_INET6, address, &a->sin6_addr) != 1)
			return -EINVAL;
	} else {
		struct sockaddr_in *a = (struct sockaddr_in *)(void *)&ss;
		a->sin_family = AF_INET;
		a->sin_port = htons(port);
		len = sizeof(*a);
		if (inet_pton(AF_INET, address, &a->sin_addr) != 1)
			return -EINVAL;
	}
	int fd = socket(ss.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (ss.ss_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	if (bind(fd, (struct sockaddr *)&ss, len) || listen(fd, 1))
		rc = -errno;
	close(fd);
	return rc;
}

static int listen_error(const char *address, uint16_t port, int rc, struct error *err)
{
	return error_set(err, rc, "cannot listen on %s port %u: %s%s", address, port, strerror(-rc),
		rc == -EADDRINUSE ? " (is another furrowd or the kernel's nfsd running?)" : "");
}

/*
 * The kernel takes down a process's io_uring after the process is gone, and with it the listening sockets and the
 * claims on drives: they stay for some milliseconds more. So a server that starts right after another's crash asks a
 * few times. A `furrow` command that found no server has the drives for longer, or had them a moment ago.
 */
#define TAKEN_TRIES 10
#define DRIVES_TRIES 50
#define TAKEN_PAUSE (100 * NSEC_PER_MSEC)

static bool pause_for(int rc, unsigned *tries)
{
	const struct timespec pause = {.tv_nsec = TAKEN_PAUSE};

	if (rc != -EADDRINUSE || (*tries)++ >= TAKEN_TRIES)
		return false;
	nanosleep(&pause, NULL);
	return true;
}

static int probe_patiently(const char *address, uint16_t port)
{
	unsigned tries = 0;
	int rc;

	do
		rc = probe_one(address, port);
	while (pause_for(rc, &tries));
	return rc;
}

static int probe_tcp(const struct config *config, struct error *err)
{
	unsigned possible = 0;

	if (!config->nfs_port)
		return 0;
	for (unsigned i = 0; i < config->listen_count; i++) {
		int rc = probe_patiently(config->listen[i], config->nfs_port);
		if (!rc)
			possible++;
		else if (!strchr(config->listen[i], ':') || !family_missing(-rc))
			return listen_error(config->listen[i], config->nfs_port, rc, err);
	}
	if (!possible && config->listen_count)
		return error_set(err, -EADDRNOTAVAIL, "none of the addresses to listen on exists on this machine");
	return 0;
}

int serve_probe(const struct config *config, struct error *err)
{
	unsigned tries = 0;
	int rc = config_memory_check(config, err);

	if (!rc)
		rc = probe_tcp(config, err);
	if (rc)
		return rc;
	do
		rc = control_probe(config->control, err);
	while (pause_for(rc, &tries));
	if (rc)
		return rc;
	tries = 0;
	do
		rc = metrics_http_probe(config, err);
	while (pause_for(rc, &tries));
	return rc;
}

static int listen_tcp(struct server *server, struct error *err)
{
	const struct config *config = server->config;

	if (!config->nfs_port)
		return 0;
	for (unsigned i = 0; i < config->listen_count; i++) {
		struct error why = {0};
		int rc = rpc_listen_tcp(server->rpc, config->listen[i], config->nfs_port, &why);
		if (!rc) {
			log_info("server", "listening transport=tcp address=%s port=%u", config->listen[i],
				config->nfs_port);
			continue;
		}
		if (!strchr(config->listen[i], ':') || !family_missing(-rc)) {
			*err = why;
			return rc;
		}
		log_info("server", "no IPv6 on this machine address=%s", config->listen[i]);
	}
	return 0;
}

static void listen_rdma(struct server *server)
{
	const struct config *config = server->config;
	unsigned listening = 0;
	struct error why = {0};

	if (!config->rdma_port)
		return;
	for (unsigned i = 0; i < config->listen_count; i++) {
		int rc = rpc_listen_rdma(server->rpc, config->listen[i], config->rdma_port, &why);
		if (!rc) {
			log_info("server", "listening transport=rdma address=%s port=%u", config->listen[i],
				config->rdma_port);
			listening++;
		} else if (rc == -ENODEV) {
			break; /* one line is enough */
		} else if (!strchr(config->listen[i], ':') || !family_missing(-rc)) {
			log_warning("server", "no RDMA address=%s port=%u error=\"%s\"", config->listen[i],
				config->rdma_port, why.text);
		}
	}
	server->rdma = listening;
	if (!listening)
		log_info("server", "serving over TCP alone reason=\"%s\"", why.text);
}

/* ------------------------------------------------------------------------------------------------
 * rpcbind
 */

struct registration {
	uint32_t program, version;
	const char *netid;
	bool rdma, udp;
};
static const struct registration registrations[] = {
	{NFS_PROGRAM, NFS_V3, "tcp", false, false},
	{NFS_PROGRAM, NFS_V3, "tcp6", false, false},
	{MOUNT_PROGRAM, MOUNT_V3, "tcp", false, false},
	{MOUNT_PROGRAM, MOUNT_V3, "tcp6", false, false},
	{NFS_PROGRAM, NFS_V3, "rdma", true, false},
	{NFS_PROGRAM, NFS_V3, "rdma6", true, false},
	{NLM_PROG, NLM_V4, "tcp", false, false},
	{NLM_PROG, NLM_V4, "tcp6", false, false},
	{SM_PROG, SM_VERS, "tcp", false, false},
	{SM_PROG, SM_VERS, "tcp6", false, false},
	{SM_PROG, SM_VERS, "udp", false, true},
	{SM_PROG, SM_VERS, "udp6", false, true},
	{NFS4_PROGRAM, NFS_V4, "tcp", false, false},
	{NFS4_PROGRAM, NFS_V4, "tcp6", false, false},
	{NFS4_PROGRAM, NFS_V4, "rdma", true, false},
	{NFS4_PROGRAM, NFS_V4, "rdma6", true, false},
};

#define RPCBIND_PATIENCE (5 * NSEC_PER_SEC)

static bool listens_on(const struct config *config, bool v6)
{
	for (unsigned i = 0; i < config->listen_count; i++)
		if (!strchr(config->listen[i], ':') == !v6)
			return true;
	return false;
}

static void rpcbind_register(struct server *server)
{
	const struct config *config = server->config;
	bool other_statd = nsm_registered_by_other(config->nfs_port);
	uint64_t deadline = now_ns() + RPCBIND_PATIENCE;

	if (other_statd)
		log_warning("server",
			"another statd runs on this machine: locks of clients that restart stay until they ask "
			"again; stop it (rpc-statd.service) and restart furrowd");
	server->statd = !other_statd;
	for (unsigned i = 0; i < sizeof(registrations) / sizeof(registrations[0]); i++) {
		const struct registration *r = &registrations[i];
		bool v6 = strchr(r->netid, '6');
		uint16_t port = r->rdma ? config->rdma_port : r->udp ? nsm_udp_port(v6) : config->nfs_port;
		if (!port || (r->rdma && !server->rdma) || !listens_on(config, v6) ||
			(r->program == SM_PROG && other_statd))
			continue;
		int rc = now_ns() > deadline ? -EIO : rpc_rpcbind_set(r->program, r->version, r->netid, port);
		if (rc == -ENOENT) {
			log_info("server", "no rpcbind here: clients mount with port=%u,mountport=%u,nolock",
				config->nfs_port, config->nfs_port);
			return;
		}
		if (rc == -EIO) {
			log_warning("server",
				"rpcbind does not answer in time: clients do not find all that is here; mend it and "
				"restart furrowd");
			return;
		}
		if (rc)
			log_warning("server", "rpcbind refused program=%u version=%u netid=%s error=\"%s\"", r->program,
				r->version, r->netid, strerror(-rc));
		else
			server->rpcbind = true;
	}
}

static void rpcbind_unregister(struct server *server)
{
	for (unsigned i = 0; i < sizeof(registrations) / sizeof(registrations[0]) && server->rpcbind; i++)
		if ((!registrations[i].rdma || server->rdma) && (registrations[i].program != SM_PROG || server->statd))
			server->rpcbind = rpc_rpcbind_unset(registrations[i].program, registrations[i].version,
						  registrations[i].netid) == 0;
	server->rpcbind = false;
}

/* ------------------------------------------------------------------------------------------------
 * Exports
 */

/* What storage has to mount for CONFIG. The names stay the configuration's. */
static const char **filesystem_names(const struct config *config)
{
	const char **names = calloc(config->export_count ? config->export_count : 1, sizeof(*names));

	for (unsigned i = 0; names && i < config->export_count; i++)
		names[i] = config->exports[i].filesystem;
	return names;
}

/* Of the file systems that OLD (may be NULL) did not serve yet, each once. */
static void replies_load(struct server *server, const struct exports *exports, const struct exports *old)
{
	for (unsigned i = 0; i < exports->count; i++) {
		const struct export *e = &exports->export[i];
		bool known = false;
		for (unsigned j = 0; j < i && !known; j++)
			known = exports->export[j].fs == e->fs;
		for (unsigned j = 0; old && j < old->count && !known; j++)
			known = old->export[j].fs == e->fs;
		if (!known)
			nfs3_replies_load(server->rpc, e->filesystem->name, e->fs);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Start and stop
 */

enum stage { STAGE_NONE, STAGE_STORAGE, STAGE_NFS4, STAGE_RPC, STAGE_CONTROL, STAGE_ALL };

static void hook_end(void *arg)
{
	(void)arg;
	hook_stop();
}

static void undo(struct server *server, enum stage stage)
{
	rpcbind_unregister(server);
	if (stage >= STAGE_ALL)
		metrics_http_stop();
	if (stage >= STAGE_CONTROL)
		control_stop(server);
	nsm_udp_stop();
	if (stage >= STAGE_RPC) {
		traffic_metrics_show(NULL);
		rpc_server_stop(server->rpc);
		server->rpc = NULL;
	}
	if (stage >= STAGE_NFS4) {
		nlm_stop();
		nfs4_grace_stop();
		nfs4_stop();
		lock_table_destroy(lock_server_table());
		lock_server_table_set(NULL);
	}
	exports_publish(NULL);
	if (stage >= STAGE_STORAGE)
		storage_close(&server->storage);
	offload(hook_end, NULL);
	mount3_fini();
	lookup_fini();
	for (unsigned i = 0; i < server->retired_count; i++)
		config_free(server->retired[i]);
	free(server->retired);
	server->retired = NULL;
	server->retired_count = 0;
}

#define LOCKS_PART 24 /* of the arena's size: what locks may take beside it */

/* What clients hold on files: nothing yet, but who may reclaim it is known before the first call. */
static int states_start(const struct config *config, const struct exports *exports, struct error *err)
{
	struct lock_limits limits = {.total_bytes = arena_total_bytes() / LOCKS_PART};
	struct lock_table *locks = lock_table_create(&limits);

	if (!locks)
		return error_set(err, -ENOMEM, "out of memory");
	lock_server_table_set(locks);
	nfs4_deleg_policy(config->delegations);
	nfs4_lease_set(config->lease);
	nfs4_owners_set(config);
	int rc = nfs4_start(exports);
	if (!rc)
		rc = nfs4_grace_start(exports);
	if (!rc)
		rc = nlm_start(exports);
	if (!rc)
		return 0;
	nlm_stop();
	lock_server_table_set(NULL);
	lock_table_destroy(locks);
	return error_set(err, rc, "cannot start the lock managers: %s", strerror(-rc));
}

static int start(struct server *server, const bool *stop, enum stage *stage, struct error *err)
{
	const struct config *config = server->config;
	static const struct rpc_program *const programs[] = {
		&nfs3_program, &nfs4_program, &mount3_program, &nlm4_program, &nsm_program};
	const struct rpc_server_config rpc = {.programs = programs,
		.program_count = sizeof(programs) / sizeof(programs[0]),
		.network = config->network,
		.connection_closed = nfs4_connection_closed};

	const char **names = filesystem_names(config);
	if (!names)
		return error_set(err, -ENOMEM, "out of memory");
	int rc = hook_start(config->hook, err);
	if (rc) {
		free(names);
		return rc;
	}
	server->storage.cache_bytes = config_cache_bytes(config);
	server->storage.keep = true;
	rc = storage_open(&server->storage, config->drives, config->drive_count, names, config->export_count, err);
	for (unsigned i = 0; (rc == -EBUSY || rc == -EAGAIN) && i < DRIVES_TRIES && !*stop; i++) {
		if (!i)
			log_info("server", "waiting for drives reason=\"%s\"", err->text);
		fiber_sleep(TAKEN_PAUSE);
		rc = storage_open(
			&server->storage, config->drives, config->drive_count, names, config->export_count, err);
	}
	free(names);
	if (rc)
		return rc;
	*stage = STAGE_STORAGE;
	if (*stop)
		return -ECANCELED;

	struct exports *exports = exports_build(config, &server->storage, err);
	if (!exports)
		return err->code;
	rc = states_start(config, exports, err);
	if (!rc) {
		*stage = STAGE_NFS4;
		rc = rpc_server_start(&rpc, &server->rpc, err);
	}
	if (rc) {
		exports_put(exports);
		return rc;
	}
	*stage = STAGE_RPC;
	traffic_metrics_show(server->rpc);
	replies_load(server, exports, NULL);
	exports_publish(exports);

	server->started = wall_ns();
	rc = control_start(server, err);
	if (rc)
		return rc;
	*stage = STAGE_CONTROL;
	rc = listen_tcp(server, err);
	if (rc)
		return rc;
	listen_rdma(server);
	if (*stop)
		return -ECANCELED;
	rc = metrics_http_start(config, err);
	if (rc)
		return rc;
	*stage = STAGE_ALL;
	nsm_udp_start(config);
	rpcbind_register(server);
	nlm_notify_hosts();
	return 0;
}

int serve_start(struct server *server, const bool *stop, struct error *err)
{
	enum stage stage = STAGE_NONE;

	fiber_mutex_init(&server->reload_lock);
	server->reload = serve_reload;
	err->code = 0;
	err->text[0] = 0;
	int rc = start(server, stop, &stage, err);
	if (rc)
		undo(server, stage);
	return rc;
}

void serve_stop(struct server *server)
{
	undo(server, STAGE_ALL);
}

/* ------------------------------------------------------------------------------------------------
 * Reload
 */

struct loading {
	const char *file;
	struct config *config;
	struct error *err;
	int rc;
};

static void load_config(void *arg)
{
	struct loading *l = arg;
	l->rc = config_load(l->file, &l->config, l->err);
}

static bool strings_same(char *const *a, unsigned na, char *const *b, unsigned nb)
{
	bool same = na == nb;

	for (unsigned i = 0; same && i < na; i++)
		same = !strcmp(a[i], b[i]);
	return same;
}

/* Of those that a reload does not put in force. */
static bool server_settings_same(const struct config *a, const struct config *b)
{
	return strings_same(a->listen, a->listen_count, b->listen, b->listen_count) &&
	       strings_same(a->drives, a->drive_count, b->drives, b->drive_count) && a->nfs_port == b->nfs_port &&
	       a->rdma_port == b->rdma_port && a->cores == b->cores && a->memory == b->memory && a->lease == b->lease &&
	       !strcmp(a->control, b->control) && !strcmp(a->hook ? a->hook : "", b->hook ? b->hook : "") &&
	       !strcmp(a->metrics_address, b->metrics_address) && a->metrics_port == b->metrics_port;
}

/* With the lock held. Takes over CONFIG when it succeeds. */
static int reload_exports(struct server *server, struct config *config, struct error *err)
{
	const char **names = filesystem_names(config);
	struct config **retired = realloc(server->retired, (server->retired_count + 1) * sizeof(*server->retired));

	if (retired)
		server->retired = retired;
	if (!names || !retired) {
		free(names);
		return error_set(err, -ENOMEM, "out of memory");
	}
	int rc = storage_mount(&server->storage, names, config->export_count, err);
	free(names);
	if (rc)
		return rc;
	struct exports *exports = exports_build(config, &server->storage, err);
	if (!exports)
		return err->code;
	struct exports *old = exports_get();
	replies_load(server, exports, old);
	nlm_reloaded(exports, old);
	exports_put(old);
	exports_publish(exports);
	if (!server_settings_same(server->config, config))
		log_warning("server", "settings that have changed take effect at the next start");
	server->retired[server->retired_count++] = server->config;
	server->config = config;
	return 0;
}

int serve_reload(struct server *server, struct error *err)
{
	fiber_lock(&server->reload_lock);
	struct loading l = {.file = server->config->file, .err = err};
	offload(load_config, &l);
	int rc = l.rc;
	if (!rc) {
		rc = reload_exports(server, l.config, err);
		if (rc) {
			config_free(l.config);
		} else {
			nfs4_deleg_policy(server->config->delegations);
			nfs4_owners_set(server->config);
			log_info("server", "exports reloaded file=%s exports=%u", server->config->file,
				server->config->export_count);
		}
	}
	fiber_unlock(&server->reload_lock);
	return rc;
}
