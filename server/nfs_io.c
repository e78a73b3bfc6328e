/*
 * nfs_io: what READ and WRITE of all versions have in common.
 *
 * WRITE: only the head of the call has been decoded; the payload still is in the client's memory (RDMA) or in the
 * receive buffer (TCP). Buffers are taken whose place fits the file offset, the payload is fetched into them, and fs/
 * keeps them by reference. The gate comes first, so nothing is fetched for a caller who may not write.
 *
 * The write verifier tells a client whether unstable data may have been lost between its WRITE and its COMMIT. A loss
 * must never fall between reading it and the promise: so it is read before a WRITE, and after a COMMIT.
 *
 * No state. Waits, in the fiber of the call.
 */
#include <errno.h>

#include "server/nfs_internal.h"

/* As many as the smallest buffers need for the largest WRITE at any offset. */
#define WRITE_SLICES 258

int nfs_write(struct rpc_request *req, struct nfs_write *w)
{
	struct slice v[WRITE_SLICES];
	uint32_t count = w->data->len;

	w->committed = FS_FILE_SYNC;
	int n = count ? fs_write_buffers(w->off, count, v, WRITE_SLICES) : 0;
	if (n < 0)
		return n;
	if (n && rpc_payload_fetch(req, w->data, v, (unsigned)n)) {
		slices_put(v, (unsigned)n);
		return -ECONNRESET;
	}
	w->verifier = fs_write_verifier(w->fs);
	int rc = fs_write(w->fs, w->op, w->id, w->off, v, (unsigned)n, w->stable, &w->committed, &w->wcc);
	slices_put(v, (unsigned)n);
	if (!rc)
		rpc_io_count(req, RPC_IO_WRITE, count);
	return rc;
}

int nfs_put_payload(struct rpc_request *req, uint32_t count, const struct slice *v, unsigned n)
{
	struct xdr_payload payload = {.len = count};

	if (!xdr_put_payload(&req->out, &payload)) {
		slices_put(v, n);
		return -EMSGSIZE;
	}
	rpc_io_count(req, RPC_IO_READ, count);
	return rpc_payload_attach(req, v, n); /* takes the references over, also when it fails */
}
