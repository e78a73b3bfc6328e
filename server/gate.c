/*
 * gate: the only way to a file system, for every program and every operation that has a file handle.
 *
 * It decides, in this order: is the handle ours (form, export, MAC), may this client use the export, is its kind of
 * credential taken; then it makes the caller's identity. Whether the export may be written is the caller's question, of
 * rule->write: only it knows which operations change something.
 *
 * Error policy: what differs between the protocols' errors differs here: see nfs_internal.h.
 *
 * No state; fibers of all reactors run here, and nothing waits.
 */
#include <errno.h>

#include "server/nfs_internal.h"

int gate_handle(const struct exports *exports, const uint8_t *data, uint32_t len, struct fs_id *id,
	const struct export **export)
{
	struct handle handle;

	if (!handle_parse(data, len, &handle))
		return -EBADF;
	const struct export *e = export_find_id(exports, handle.export_id);
	if (!e || e->fsid != handle.fsid)
		return -ESTALE; /* no longer exported, or the path names another file system now */
	if (!handle_verify(data, e->handle_key))
		return -EBADF;
	*id = handle.id;
	*export = e;
	return 0;
}

int gate_caller(const struct rpc_request *req, const struct export *export, const struct config_allow **rule,
	struct fs_cred *cred)
{
	*rule = export_rule(export, rpc_peer(req));
	if (!*rule)
		return -EACCES;
	return identity_squash(&req->cred, *rule, cred) ? -EPERM : 0;
}
