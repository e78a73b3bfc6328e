/*
 * gate: the only way to a file system, for every program and every operation that has a file handle.
 *
 * It decides, in this order: is the handle ours (form, export, MAC), may this client use the export, is its kind of
 * credential taken; then it makes the caller's identity. Whether the export may be written is the caller's question, of
 * rule->write: only it knows which operations change something.
 *
 * Error policy: what differs between the protocols' errors differs here: see nfs_internal.h.
 *
 * No state but what was found last; fibers of all reactors run here. Nothing waits, except for groups that this machine
 * is to be asked for.
 */
#include <errno.h>

#include "server/nfs_internal.h"
#include "xdr/nfs4.h"

_Static_assert(
	ACCESS4_READ == ACCESS3_READ && ACCESS4_EXECUTE == ACCESS3_EXECUTE, "versions 3 and 4 have the same rights");

/*
 * The last handles that were good, of each reactor: the same again costs no MAC. All of a handle and the table of
 * exports are compared, without a branch before the end. What an entry points to lives as long as its table; when this
 * reactor takes a new table, which may lie where an old one was, all are forgotten.
 */
#define KNOWN 256u /* as many as a byte counts */
static __thread struct known {
	uint64_t handle[5];
	const struct exports *exports;
	const struct export *export;
	struct fs_id id;
} known[KNOWN];
_Static_assert(sizeof(known[0].handle) == HANDLE_BYTES, "all of it is compared");

void gate_forget(void)
{
	memset(known, 0, sizeof(known));
}

static int handle_check(const struct exports *exports, const uint8_t *data, uint32_t len, struct fs_id *id,
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

static inline uint64_t word_at(const uint8_t *data, unsigned i)
{
	uint64_t word;

	memcpy(&word, data + 8 * i, sizeof(word));
	return word;
}

static int known_renew(struct known *k, const struct exports *exports, const uint8_t data[HANDLE_BYTES],
	struct fs_id *id, const struct export **export)
{
	int rc = handle_check(exports, data, HANDLE_BYTES, id, export);

	if (rc)
		return rc;
	memcpy(k->handle, data, HANDLE_BYTES);
	k->exports = exports;
	k->export = *export;
	k->id = *id;
	return 0;
}

int gate_handle(const struct exports *exports, const uint8_t *data, uint32_t len, struct fs_id *id,
	const struct export **export)
{
	if (len != HANDLE_BYTES || !reactor_self())
		return handle_check(exports, data, len, id, export);
	struct known *k = &known[(word_at(data, 2) * 0x9e3779b97f4a7c15ull) >> 56]; /* of the inode */
	if ((word_at(data, 0) ^ k->handle[0]) | (word_at(data, 1) ^ k->handle[1]) | (word_at(data, 2) ^ k->handle[2]) |
		(word_at(data, 3) ^ k->handle[3]) | (word_at(data, 4) ^ k->handle[4]) |
		((uintptr_t)exports ^ (uintptr_t)k->exports))
		return known_renew(k, exports, data, id, export);
	*id = k->id;
	*export = k->export;
	return 0;
}

int gate_caller(const struct rpc_request *req, const struct export *export, const struct config_allow **rule,
	struct fs_cred *cred)
{
	*rule = export_rule_of(export, rpc_peer_address(req));
	if (!*rule)
		return -EACCES;
	if (identity_squash(&req->cred, *rule, cred))
		return -EPERM;
	identity_groups(&req->cred, *rule, cred);
	return 0;
}

/*
 * What the protocols' rights mean for directories and for all else (RFC 1813 3.3.4, RFC 8881 18.1, RFC 8276 8.4.1). A
 * right that makes no sense for the type is not granted, as the RFCs want.
 */
static const struct access_right {
	uint32_t right, may;
	bool on_dir, on_file, writes;
} access_rights[] = {
	{ACCESS4_READ, FS_MAY_READ, true, true, false},
	{ACCESS4_LOOKUP, FS_MAY_EXEC, true, false, false},
	{ACCESS4_MODIFY, FS_MAY_WRITE, true, true, true},
	{ACCESS4_EXTEND, FS_MAY_WRITE, true, true, true},
	{ACCESS4_DELETE, FS_MAY_DELETE, true, false, true},
	{ACCESS4_EXECUTE, FS_MAY_EXEC, false, true, false},
	{ACCESS4_XAREAD, FS_MAY_READ, true, true, false},
	{ACCESS4_XAWRITE, FS_MAY_WRITE, true, true, true},
	{ACCESS4_XALIST, FS_MAY_READ, true, true, false},
};
#define RIGHTS (sizeof(access_rights) / sizeof(access_rights[0]))

uint32_t gate_rights_need(uint32_t access)
{
	uint32_t need = 0;

	for (unsigned i = 0; i < RIGHTS; i++)
		if (access & access_rights[i].right)
			need |= access_rights[i].may | (access_rights[i].writes ? FS_MAY_EXEC : 0);
	return need;
}

uint32_t gate_rights(uint32_t access, enum fs_type type, uint32_t allowed, const struct config_allow *rule)
{
	uint32_t granted = 0;

	for (unsigned i = 0; i < RIGHTS; i++) {
		const struct access_right *r = &access_rights[i];
		bool fits = type == FS_DIR ? r->on_dir : r->on_file;
		/* what changes a directory's entries also needs to search it */
		uint32_t needs = r->may | (type == FS_DIR && r->writes ? FS_MAY_EXEC : 0);
		if ((access & r->right) && fits && (allowed & needs) == needs && !(r->writes && !rule->write))
			granted |= r->right;
	}
	return granted;
}
