/*
 * nfs: what the parts of the NFS side share: handles, the identity of a caller, the gate, and the pieces of replies.
 */
#ifndef FURROW_NFS_INTERNAL_H
#define FURROW_NFS_INTERNAL_H

#include "server/handle_format.h"
#include "server/server_internal.h"
#include "xdr/nfs3.h"

/* ------------------------------------------------------------------------------------------------
 * Handles (handle.c). No wait.
 */

struct handle {
	uint32_t export_id;
	uint64_t fsid;
	struct fs_id id;
};
uint64_t siphash24(const uint64_t key[2], const void *data, size_t bytes);
/* The key of one file system's handles: the same after every restart. */
void handle_key_make(const struct uuid *uuid, uint64_t fsid, uint64_t key[2]);
void handle_encode(const struct handle *handle, const uint64_t key[2], uint8_t to[HANDLE_BYTES]);
/* The form alone: false when it cannot be one of ours. */
bool handle_parse(const uint8_t *data, uint32_t len, struct handle *handle);
/* The MAC, once the file system it names is known. */
bool handle_verify(const uint8_t data[HANDLE_BYTES], const uint64_t key[2]);

/* ------------------------------------------------------------------------------------------------
 * Who asks (identity.c). No wait.
 */

/* Squashes as RULE says. -EACCES: the rule does not take this flavor. */
int identity_squash(const struct rpc_cred *from, const struct config_allow *rule, struct fs_cred *to);
/* Where RULE says so, the groups that this machine knows in place of those that came. Waits. */
void identity_groups(const struct rpc_cred *from, const struct config_allow *rule, struct fs_cred *to);
/* lookup.c: what other services know, kept for some minutes. They wait. */
void groups_of(uint32_t uid, struct fs_cred *to); /* an unknown user keeps what is in TO */
bool clients_named(const struct config_clients *c, const struct in6_addr *address); /* CLIENTS_HOST, _NETGROUP */
/* The name of a user or group. -ENOENT: it has none; -EAGAIN: only with WAIT can that be found out. */
#define LOOKUP_NAME_MAX 256u
int name_of(uint32_t id, bool group, bool wait, char to[LOOKUP_NAME_MAX]);
bool number_of(const char *name, bool group, uint32_t *id); /* the reverse; false: there is none */
void lookup_fini(void);					    /* at the end of the server */

/* The export named PATH or one that PATH lies in; *REST is then what follows it. NULL: none. */
const struct export *export_find(const struct exports *exports, const char *path, size_t len, const char **rest);
const struct export *export_find_id(const struct exports *exports, uint32_t id);

/* ------------------------------------------------------------------------------------------------
 * The gate (gate.c): every operation with a file handle goes through it, so there is one place that decides.
 */

/*
 * Whether the form, the export and the MAC of a file handle are right. -EBADF: it was never made here; -ESTALE: it
 * leads to nothing that is exported. No wait.
 */
int gate_handle(const struct exports *exports, const uint8_t *data, uint32_t len, struct fs_id *id,
	const struct export **export);
void gate_forget(void); /* what this reactor found in earlier tables of exports */
/*
 * Whether this caller may use EXPORT, by which rule, and as whom. -EACCES: not this client; -EPERM: not with this kind
 * of credential. Waits where the rule wants this machine's groups of a user who was not here for a while.
 */
int gate_caller(const struct rpc_request *req, const struct export *export, const struct config_allow **rule,
	struct fs_cred *cred);

/* ACCESS: what to ask fs_access() for, for rights as the protocols have them; and which of them its answer grants. */
uint32_t gate_rights_need(uint32_t access);
uint32_t gate_rights(uint32_t access, enum fs_type type, uint32_t allowed, const struct config_allow *rule);

/* ------------------------------------------------------------------------------------------------
 * Data (nfs_io.c). Waits.
 */

struct nfs_write {
	struct fs *fs;
	const struct fs_op *op;
	struct fs_id id;
	uint64_t off;
	const struct xdr_payload *data; /* at most NFS_IO_MAX bytes */
	enum fs_stable stable;
	/* out */
	enum fs_stable committed;
	uint64_t verifier;
	struct fs_wcc wcc;
};
#define NFS_IO_MAX (1024u * 1024)
/* -ECONNRESET: the connection was lost, return RPC_DROP. Else 0 or the file system's error. */
int nfs_write(struct rpc_request *req, struct nfs_write *w);
/* Encodes COUNT bytes of V as payload and takes over the references. Not 0: it was not encoded. */
int nfs_put_payload(struct rpc_request *req, uint32_t count, const struct slice *v, unsigned n);

/* ------------------------------------------------------------------------------------------------
 * NFSv3's calls (nfs3.c)
 */

struct nfs3_call {
	struct rpc_request *req;
	struct exports *exports; /* held until nfs3_leave() */
	const struct export *export;
	const struct config_allow *rule;
	struct fs *fs;	 /* NULL until the gate is passed */
	struct fs_id id; /* of the first handle */
	struct fs_cred cred;
	struct fs_reply mark;
	struct fs_op op;
	/* Set for a call that was done before a restart: tell its success again, do nothing. */
	const struct fs_reply *replay;
};

#define NFS3_WRITES 1u	       /* the procedure changes something: refused on a read-only export */
#define NFS3_OWNER_OVERRIDE 2u /* the owner may read and write whatever the mode says (RFC 1813 4.4) */
/*
 * Fills CALL for the handle FH. nfs3_leave() follows in any case. Not NFS3_OK: the status to answer; when call->fs is
 * set, attributes of call->id may go with it.
 */
nfsstat3 nfs3_enter(struct nfs3_call *call, struct rpc_request *req, const struct nfs_fh3 *fh, unsigned needs);
/* The second handle of RENAME and LINK: of the same export, else NFS3ERR_XDEV. */
nfsstat3 nfs3_enter_second(struct nfs3_call *call, const struct nfs_fh3 *fh, struct fs_id *id);
/*
 * Before a change: clients of NFSv4 give back their delegations of ID, or of the file that NAME leads to.
 * NFS3ERR_JUKEBOX: they have not yet. Waits a moment.
 */
nfsstat3 nfs3_deleg_break(struct nfs3_call *call, struct fs_id id);
nfsstat3 nfs3_deleg_break_name(struct nfs3_call *call, struct fs_id dir, const struct xdr_opaque *name);
/* Gives back what the gate took; ENCODED tells whether the reply fitted. Returns what the procedure returns. */
int nfs3_leave(struct nfs3_call *call, bool encoded);

/* The one table from errno to the wire: 0 or negative errno in. */
nfsstat3 nfs3_status(int result);
/* A name that an entry is to be made or removed under. Lookup knows "." and ".."; others give DOTS for them. */
nfsstat3 nfs3_name_check(const struct xdr_opaque *name, nfsstat3 dots);

/* ------------------------------------------------------------------------------------------------
 * Pieces of replies (nfs3_codec.c). A struct fs_attr whose type is 0 is "not known" and is left out.
 */

#define NFS3_FATTR_BYTES 84u
#define NFS3_POST_ATTR_BYTES (4u + NFS3_FATTR_BYTES)
#define NFS3_WCC_BYTES (4u + 24u + NFS3_POST_ATTR_BYTES)
#define NFS3_HANDLE_BYTES (4u + HANDLE_BYTES)

bool nfs3_put_fattr(struct xdr_out *out, uint64_t fsid, const struct fs_attr *attr);
bool nfs3_put_post_attr(struct xdr_out *out, uint64_t fsid, const struct fs_attr *attr);
bool nfs3_put_handle(struct xdr_out *out, const struct export *export, struct fs_id id);
/* Attributes of ID for a reply: taken only where ATTR does not have them already. Waits. */
void nfs3_fill_attr(struct nfs3_call *call, struct fs_id id, struct fs_attr *attr);
/* wcc_data; where the operation left none, the attributes of ID as they are now. Waits. */
bool nfs3_put_wcc(struct nfs3_call *call, struct fs_id id, struct fs_wcc *wcc);
/* NFS3ERR_INVAL for a time that is none. */
nfsstat3 nfs3_get_sattr(const struct sattr3 *from, struct fs_setattr *to);

/* ------------------------------------------------------------------------------------------------
 * Procedures: nfs3_file.c, nfs3_io.c, nfs3_name.c, nfs3_readdir.c
 */

#define NFS3_DIR_MAX (64u * 1024) /* largest reply of READDIR and READDIRPLUS */

int nfs3_getattr(struct rpc_request *req);
int nfs3_setattr(struct rpc_request *req);
int nfs3_access(struct rpc_request *req);
int nfs3_readlink(struct rpc_request *req);
int nfs3_fsstat(struct rpc_request *req);
int nfs3_fsinfo(struct rpc_request *req);
int nfs3_pathconf(struct rpc_request *req);
int nfs3_read(struct rpc_request *req);
int nfs3_write(struct rpc_request *req);
int nfs3_commit(struct rpc_request *req);
int nfs3_lookup(struct rpc_request *req);
int nfs3_create(struct rpc_request *req);
int nfs3_mkdir(struct rpc_request *req);
int nfs3_symlink(struct rpc_request *req);
int nfs3_mknod(struct rpc_request *req);
int nfs3_remove(struct rpc_request *req);
int nfs3_rmdir(struct rpc_request *req);
int nfs3_rename(struct rpc_request *req);
int nfs3_link(struct rpc_request *req);
int nfs3_readdir(struct rpc_request *req);
int nfs3_readdirplus(struct rpc_request *req);
uint32_t nfs3_readdir_more(const struct rpc_request *req);
uint32_t nfs3_readdirplus_more(const struct rpc_request *req);

/* Forgets who has mounted what: at the end of the server. */
void mount3_fini(void);

/*
 * For `furrow state`: who the NLM client of that number is, as "name address"; false: it is not known (any more). And
 * an administrator's word that it is gone: its locks are released. No wait.
 */
bool nlm_client_text(uint64_t client, char *text, size_t room);
bool nlm_client_expel(uint64_t client, char *text, size_t room);

/* Tells the reply cache which calls on this file system were done before it was mounted. */
void nfs3_replies_load(struct rpc_server *rpc, const char *name, struct fs *fs);

#endif
