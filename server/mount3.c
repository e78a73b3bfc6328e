/*
 * mount3: the MOUNT protocol, version 3 (RFC 1813 appendix I): from a path to the first file handle.
 *
 * MNT finds the export that the path names or lies in, asks its rule about the client's address, and walks what is left
 * of the path below the export's root, as root does on the server: whoever may mount the export may mount any directory
 * in it. Symbolic links and ".." on that way are refused. What the handle may then be used for is decided by the gate
 * at every call, so a MNT that succeeds gives no right.
 *
 * The list of mounts that DUMP shows is what clients said (MNT, UMNT, UMNTALL) since the start; they may well leave
 * without a word. Nothing depends on it. It is bounded: beyond MOUNTS_MAX the oldest entry makes room. It is shared by
 * all reactors under a mutex that nobody waits under.
 *
 * Error policy: mountstat3 for everything; an answer longer than its room (EXPORT, DUMP) ends early instead of failing.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "server/nfs_internal.h"
#include "xdr/mount3.h"

#define MOUNTS_MAX 1024
#define LIST_BYTES_MAX (60u * 1024) /* of EXPORT and DUMP */

/* ------------------------------------------------------------------------------------------------
 * Who has mounted what
 */

struct mount {
	char host[64];
	char *path;
	struct list_node node;
};
static struct {
	pthread_mutex_t lock;
	struct list list; /* oldest first */
	unsigned count;
} mounts = {.lock = PTHREAD_MUTEX_INITIALIZER, .list = LIST_INIT(mounts.list)};

static void mount_free(struct mount *m)
{
	list_remove(&m->node);
	mounts.count--;
	free(m->path);
	free(m);
}

/* PATH NULL: all of HOST. */
static void mounts_remove(const char *host, const char *path)
{
	pthread_mutex_lock(&mounts.lock);
	list_foreach (n, &mounts.list) {
		struct mount *m = container_of(n, struct mount, node);
		if (!strcmp(m->host, host) && (!path || !strcmp(m->path, path)))
			mount_free(m);
	}
	pthread_mutex_unlock(&mounts.lock);
}

static void mounts_add(const char *host, const char *path)
{
	struct mount *m = calloc(1, sizeof(*m));

	if (m)
		m->path = strdup(path);
	if (!m || !m->path) {
		free(m);
		return; /* the list is for information only */
	}
	snprintf(m->host, sizeof(m->host), "%s", host);
	mounts_remove(host, path); /* twice is once, and now the newest */
	pthread_mutex_lock(&mounts.lock);
	if (mounts.count >= MOUNTS_MAX)
		mount_free(container_of(list_first(&mounts.list), struct mount, node));
	list_push_back(&mounts.list, &m->node);
	mounts.count++;
	pthread_mutex_unlock(&mounts.lock);
}

void mount3_fini(void)
{
	pthread_mutex_lock(&mounts.lock);
	list_foreach (n, &mounts.list)
		mount_free(container_of(n, struct mount, node));
	pthread_mutex_unlock(&mounts.lock);
}

/* ------------------------------------------------------------------------------------------------
 * MNT
 */

/* One slash between components, none at the end: "//data/" is "/data". False: no path of ours. */
static bool path_normalize(const struct xdr_opaque *from, char to[MNTPATHLEN + 2])
{
	size_t len = 0;

	if (!from->len || from->len > MNTPATHLEN || from->data[0] != '/' || memchr(from->data, 0, from->len))
		return false;
	for (uint32_t i = 0; i < from->len; i++)
		if (from->data[i] != '/' || !len || to[len - 1] != '/')
			to[len++] = (char)from->data[i];
	while (len > 1 && to[len - 1] == '/')
		len--;
	to[len] = 0;
	return true;
}

/* Errors that the protocol has no word for become IO: a client shows them to a person. */
static mountstat3 mount_status(int rc)
{
	switch (nfs3_status(rc)) {
	case NFS3_OK:
		return MNT3_OK;
	case NFS3ERR_PERM:
		return MNT3ERR_PERM;
	case NFS3ERR_NOENT:
	case NFS3ERR_STALE:
		return MNT3ERR_NOENT;
	case NFS3ERR_ACCES:
		return MNT3ERR_ACCES;
	case NFS3ERR_NOTDIR:
		return MNT3ERR_NOTDIR;
	case NFS3ERR_INVAL:
		return MNT3ERR_INVAL;
	case NFS3ERR_NAMETOOLONG:
		return MNT3ERR_NAMETOOLONG;
	default:
		return MNT3ERR_IO;
	}
}

static mountstat3 path_walk(const struct export *export, const char *rest, struct fs_id *id)
{
	struct fs_cred root = {.uid = 0};
	struct fs_op op = {.cred = &root};
	struct fs_attr attr, dir_attr;

	int rc = fs_root(export->fs, &attr);
	if (rc)
		return mount_status(rc);
	while (*rest) {
		if (*rest == '/') {
			rest++;
			continue;
		}
		size_t len = strcspn(rest, "/");
		if (len == 2 && rest[0] == '.' && rest[1] == '.')
			return MNT3ERR_INVAL;
		if (len > FS_NAME_MAX)
			return MNT3ERR_NAMETOOLONG;
		rc = fs_lookup(export->fs, &op, attr.id, rest, len, &attr, &dir_attr);
		if (rc)
			return mount_status(rc);
		if (attr.type != FS_DIR)
			return MNT3ERR_NOTDIR;
		rest += len;
	}
	*id = attr.id;
	return MNT3_OK;
}

static int mount3_mnt(struct rpc_request *req)
{
	dirpath arg;
	char path[MNTPATHLEN + 2], host[64];
	const struct export *export = NULL;
	const struct config_allow *rule = NULL;
	const char *rest = NULL;
	struct fs_id id = {0};
	mountstat3 status = MNT3_OK;
	struct xdr_out *out = &req->out;

	if (!xdr_decode_dirpath(&req->in, &arg))
		return RPC_GARBAGE_ARGS;
	rpc_peer_text(req, host, sizeof(host));
	struct exports *exports = exports_get();
	if (!exports)
		return RPC_DROP; /* not yet, or no longer: the client asks again */
	if (!path_normalize(&arg, path))
		status = MNT3ERR_NOENT;
	if (!status) {
		export = export_find(exports, path, strlen(path), &rest);
		if (!export)
			status = MNT3ERR_NOENT;
	}
	if (!status) {
		rule = export_rule(export, rpc_peer(req));
		if (!rule)
			status = MNT3ERR_ACCES;
	}
	if (!status)
		status = path_walk(export, rest, &id);
	bool ok = xdr_put_u32(out, status);
	if (!status) {
		ok = ok && nfs3_put_handle(out, export, id) &&
		     xdr_put_u32(out, (uint32_t)rule->sec_sys + rule->sec_none);
		if (rule->sec_sys)
			ok = ok && xdr_put_u32(out, RPC_AUTH_SYS);
		if (rule->sec_none)
			ok = ok && xdr_put_u32(out, RPC_AUTH_NONE);
		mounts_add(host, path);
		log_info("mount3", "mounted path=%s client=%s", export->path, host);
	} else {
		log_info("mount3", "mount refused client=%s export=%s status=%d", host, export ? export->path : "-",
			status);
	}
	exports_put(exports);
	return ok ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

/* ------------------------------------------------------------------------------------------------
 * The rest
 */

static int mount3_null(struct rpc_request *req)
{
	(void)req;
	return RPC_SUCCESS;
}

static int mount3_umnt(struct rpc_request *req)
{
	dirpath arg;
	char path[MNTPATHLEN + 2], host[64];

	if (!xdr_decode_dirpath(&req->in, &arg))
		return RPC_GARBAGE_ARGS;
	rpc_peer_text(req, host, sizeof(host));
	if (path_normalize(&arg, path))
		mounts_remove(host, path);
	return RPC_SUCCESS;
}

static int mount3_umntall(struct rpc_request *req)
{
	char host[64];

	rpc_peer_text(req, host, sizeof(host));
	mounts_remove(host, NULL);
	return RPC_SUCCESS;
}

static bool put_string(struct xdr_out *out, const char *text)
{
	return xdr_put_opaque(out, text, (uint32_t)strlen(text));
}

/* All entries that fit, and the end. */
static int mount3_dump(struct rpc_request *req)
{
	struct xdr_out out = req->out;

	if (out.end - out.p < 4)
		return RPC_SYSTEM_ERR;
	out.end -= 4;
	pthread_mutex_lock(&mounts.lock);
	list_foreach (n, &mounts.list) {
		const struct mount *m = container_of(n, struct mount, node);
		uint8_t *start = out.p;
		if (!(xdr_put_u32(&out, 1) && put_string(&out, m->host) && put_string(&out, m->path))) {
			out.p = start;
			break;
		}
	}
	pthread_mutex_unlock(&mounts.lock);
	req->out.p = out.p;
	return xdr_put_u32(&req->out, 0) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static uint32_t string_bytes(const char *text)
{
	return 4 + xdr_round((uint32_t)strlen(text));
}

static uint32_t mount3_dump_more(const struct rpc_request *req)
{
	uint64_t bytes = 0;

	(void)req;
	pthread_mutex_lock(&mounts.lock);
	list_foreach (n, &mounts.list) {
		const struct mount *m = container_of(n, struct mount, node);
		bytes += 4 + string_bytes(m->host) + string_bytes(m->path);
	}
	pthread_mutex_unlock(&mounts.lock);
	return bytes < LIST_BYTES_MAX ? (uint32_t)bytes : LIST_BYTES_MAX;
}

static bool put_export(struct xdr_out *out, const struct export *e)
{
	bool ok = xdr_put_u32(out, 1) && put_string(out, e->path);

	for (unsigned i = 0; i < e->allow_count; i++)
		for (unsigned j = 0; j < e->allow[i].client_count; j++)
			ok = ok && xdr_put_u32(out, 1) && put_string(out, e->allow[i].clients[j].text);
	return ok && xdr_put_u32(out, 0);
}

static int mount3_export(struct rpc_request *req)
{
	struct xdr_out out = req->out;
	struct exports *exports = exports_get();

	if (!exports)
		return RPC_DROP;
	if (out.end - out.p >= 4) {
		out.end -= 4;
		for (unsigned i = 0; i < exports->count; i++) {
			uint8_t *start = out.p;
			if (!put_export(&out, &exports->export[i])) {
				out.p = start;
				break;
			}
		}
		req->out.p = out.p;
	}
	exports_put(exports);
	return xdr_put_u32(&req->out, 0) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
}

static uint32_t mount3_export_more(const struct rpc_request *req)
{
	uint64_t bytes = 0;
	struct exports *exports = exports_get();

	(void)req;
	if (!exports)
		return 0;
	for (unsigned i = 0; i < exports->count; i++) {
		const struct export *e = &exports->export[i];
		bytes += 4 + string_bytes(e->path) + 4;
		for (unsigned a = 0; a < e->allow_count; a++)
			for (unsigned j = 0; j < e->allow[a].client_count; j++)
				bytes += 4 + string_bytes(e->allow[a].clients[j].text);
	}
	exports_put(exports);
	return bytes < LIST_BYTES_MAX ? (uint32_t)bytes : LIST_BYTES_MAX;
}

static const struct rpc_procedure mount3_procedures[] = {
	[MOUNTPROC3_NULL] = {"NULL", mount3_null, 0, 0, NULL},
	[MOUNTPROC3_MNT] = {"MNT", mount3_mnt, 0, 4 + NFS3_HANDLE_BYTES + 4 + 2 * 4, NULL},
	[MOUNTPROC3_DUMP] = {"DUMP", mount3_dump, 0, 4, mount3_dump_more},
	[MOUNTPROC3_UMNT] = {"UMNT", mount3_umnt, 0, 0, NULL},
	[MOUNTPROC3_UMNTALL] = {"UMNTALL", mount3_umntall, 0, 0, NULL},
	[MOUNTPROC3_EXPORT] = {"EXPORT", mount3_export, 0, 4, mount3_export_more},
};

const struct rpc_program mount3_program = {
	.program = MOUNT_PROGRAM,
	.version = MOUNT_V3,
	.name = "mount3",
	.procedure = mount3_procedures,
	.procedures = sizeof(mount3_procedures) / sizeof(mount3_procedures[0]),
};
