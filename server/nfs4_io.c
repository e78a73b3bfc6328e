/*
 * nfs4_io: data: READ, WRITE, COMMIT, and of minor version 2 SEEK, READ_PLUS, ALLOCATE, DEALLOCATE, COPY, CLONE,
 * IO_ADVISE.
 *
 * Payload takes the way of nfs_io.c: by reference, in both directions. A stateid is checked first (nfs4_state.h); where
 * it names an open of this user, permission was decided then, and the file's mode is not asked again.
 *
 * READ_PLUS tells holes from data by walking extents with fs_seek(), a few segments in a reply. Its data is not for
 * Write chunks (RFC 8267 5), and a client on RDMA is better off with READ: there it is NFS4ERR_NOTSUPP.
 *
 * COPY runs within the server and to its end before it is answered, but no longer than a time: then it tells how far it
 * came, which a client takes as a short copy. What is copied is unstable, as after WRITE. CLONE shares blocks.
 *
 * Error policy: I/O on what is no regular file has errors by type (RFC 8881 18.22.4); else nfs4_status(). A lost
 * connection ends the compound without a reply.
 */
#include <errno.h>

#include "server/nfs4_state.h"

#define COPY_STEP (16ull << 20)
#define COPY_TIME (2 * NSEC_PER_SEC) /* a slot is busy meanwhile */

static nfsstat4 type_status(const struct nfs4_fh *fh, int rc)
{
	struct fs_attr attr;

	if ((rc != -EISDIR && rc != -EINVAL) || fs_getattr(fh->fs, fh->id, &attr))
		return nfs4_status(rc);
	switch (attr.type) {
	case FS_REG:
		return nfs4_status(rc);
	case FS_DIR:
		return NFS4ERR_ISDIR;
	case FS_LNK:
		return NFS4ERR_SYMLINK;
	default:
		return NFS4ERR_WRONG_TYPE;
	}
}

static bool range_fits(uint64_t offset, uint64_t count)
{
	return offset <= FS_SIZE_MAX && count <= FS_SIZE_MAX - offset;
}

/* The operation that the file system is asked for, once the stateid is right. */
static nfsstat4 io_begin(struct nfs4_compound *c, const stateid4 *stateid, uint32_t access, struct fs_op *op)
{
	struct nfs4_stateid_use use = {.opened = false};
	nfsstat4 status = nfs4_stateid_check(c, stateid, access, &use);

	*op = c->op;
	op->opened = use.opened;
	op->owner_override = true;
	return status;
}

/* ------------------------------------------------------------------------------------------------
 * READ
 */

static uint32_t count_of(const struct nfs4_compound *c)
{
	const uint32_t before = NFS4_STATEID_BYTES + 8;
	const uint8_t *at = c->req->in.p;

	if ((size_t)(c->req->in.end - at) < before + 4) { /* they are in two pieces */
		struct xdr_in in = c->req->in;
		if (!xdr_in_room(&in, before + 4))
			return 0;
		at = in.p;
	}
	uint32_t count;
	memcpy(&count, at + before, sizeof(count));
	count = __builtin_bswap32(count);
	return count < NFS_IO_MAX ? count : NFS_IO_MAX;
}

uint32_t nfs4_read_more(struct nfs4_compound *c)
{
	return xdr_round(count_of(c));
}

/*
 * Waits for the connection's share of memory for replies before COUNT bytes are read. A compound that holds some does
 * not wait for more, which another one like it might hold. When the connection is lost meanwhile nothing changes: the
 * slot keeps the answer for another one.
 */
static void payload_reserve(struct nfs4_compound *c, uint32_t count)
{
	if (!c->payload_bytes)
		(void)rpc_payload_reserve(c->req, count);
}

nfsstat4 nfs4_op_read(struct nfs4_compound *c)
{
	READ4args args;
	struct fs_op op;
	struct slice v[FS_READ_SLICES];
	unsigned n = FS_READ_SLICES;
	bool eof = false;

	if (!xdr_decode_READ4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = io_begin(c, &args.stateid, OPEN4_SHARE_ACCESS_READ, &op);
	if (status)
		return status;
	uint32_t count = args.count < NFS_IO_MAX ? args.count : NFS_IO_MAX, room = rpc_payload_room(c->req);
	if (count && !room)
		return NFS4ERR_REP_TOO_BIG;
	if (count > room)
		count = room;
	/* no file is longer, so what lies beyond reads as the end */
	uint64_t off = args.offset < FS_SIZE_MAX ? args.offset : FS_SIZE_MAX;
	if (count > FS_SIZE_MAX - off)
		count = (uint32_t)(FS_SIZE_MAX - off);
	payload_reserve(c, count);
	int rc = fs_read(c->current.fs, &op, c->current.id, off, &count, v, &n, &eof, NULL);
	if (rc)
		return type_status(&c->current, rc);
	if (!xdr_put_bool(&c->req->out, eof)) {
		slices_put(v, n);
		return nfs4_fits(c, false);
	}
	c->payload_bytes += xdr_round(count);
	return nfs4_fits(c, !nfs_put_payload(c->req, count, v, n));
}

/* ------------------------------------------------------------------------------------------------
 * READ_PLUS
 */

uint32_t nfs4_read_plus_more(struct nfs4_compound *c)
{
	uint32_t room = nfs4_result_room(c), want = xdr_round(count_of(c));

	/* it may tell less, so what the session has room for is enough */
	if (room < 8 + NFS4_READ_PLUS_HEADS)
		return NFS4_READ_PLUS_HEADS;
	room -= 8 + NFS4_READ_PLUS_HEADS;
	return NFS4_READ_PLUS_HEADS + (want < room ? want : room);
}

struct segments {
	struct nfs4_compound *c;
	const struct fs_op *op;
	uint64_t off, end;
	uint32_t told; /* segments */
	uint32_t room; /* for data */
	bool eof;
};

static bool put_hole(struct segments *s, uint64_t to)
{
	struct xdr_out *out = &s->c->req->out;
	bool ok = xdr_put_u32(out, NFS4_CONTENT_HOLE) && xdr_put_u64(out, s->off) && xdr_put_u64(out, to - s->off);

	s->off = to;
	s->told++;
	return ok;
}

static int put_data(struct segments *s, uint64_t to)
{
	struct xdr_out *out = &s->c->req->out;
	struct slice v[FS_READ_SLICES];
	unsigned n = FS_READ_SLICES;
	uint64_t want = to - s->off;
	uint32_t count = want < s->room ? (uint32_t)want : s->room, room = rpc_payload_room(s->c->req);

	if (count > room)
		count = room;
	payload_reserve(s->c, count);
	int rc = fs_read(s->c->current.fs, s->op, s->c->current.id, s->off, &count, v, &n, &s->eof, NULL);
	if (rc)
		return rc;
	if (!count || !xdr_put_u32(out, NFS4_CONTENT_DATA) || !xdr_put_u64(out, s->off)) {
		slices_put(v, n);
		return 0;
	}
	s->c->payload_bytes += xdr_round(count);
	s->off += count;
	s->room -= count;
	s->told++;
	return nfs_put_payload(s->c->req, count, v, n);
}

/* One hole, data, or the end. */
static int segment_next(struct segments *s)
{
	const struct nfs4_fh *fh = &s->c->current;
	uint64_t data, hole;
	bool no_data, no_hole;
	struct fs_attr attr;

	int rc = fs_seek(fh->fs, s->op, fh->id, s->off, FS_SEEK_DATA, &data, &no_data, &attr);
	if (rc == -EINVAL || (!rc && s->off >= attr.size)) { /* beyond the end */
		s->eof = true;
		return 0;
	}
	if (rc)
		return rc;
	if (no_data || data > s->off) {
		uint64_t to = no_data ? attr.size : data;
		if (to > s->end)
			to = s->end;
		s->eof = to >= attr.size;
		return put_hole(s, to) ? 0 : -EMSGSIZE;
	}
	rc = fs_seek(fh->fs, s->op, fh->id, s->off, FS_SEEK_HOLE, &hole, &no_hole, NULL);
	if (rc)
		return rc;
	return put_data(s, hole < s->end ? hole : s->end);
}

nfsstat4 nfs4_op_read_plus(struct nfs4_compound *c)
{
	READ_PLUS4args args;
	struct fs_op op;
	struct xdr_out *out = &c->req->out;
	int rc = 0;

	if (!xdr_decode_READ_PLUS4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (c->req->rdma)
		return NFS4ERR_NOTSUPP;
	nfsstat4 status = io_begin(c, &args.rpa_stateid, OPEN4_SHARE_ACCESS_READ, &op);
	if (status)
		return status;
	struct segments s = {.c = c, .op = &op, .off = args.rpa_offset, .end = FS_SIZE_MAX};
	uint32_t count = args.rpa_count < NFS_IO_MAX ? args.rpa_count : NFS_IO_MAX;
	uint32_t room = nfs4_result_room(c);
	if (s.off > FS_SIZE_MAX)
		s.off = FS_SIZE_MAX;
	if (count < s.end - s.off)
		s.end = s.off + count;
	s.room = room > 8 + NFS4_READ_PLUS_HEADS ? room - 8 - NFS4_READ_PLUS_HEADS : 0;
	size_t at = (size_t)(out->p - out->base);
	uint32_t before = UINT32_MAX;
	out->p += 8; /* eof, number of segments: known at the end */
	do {
		before = s.told;
		rc = segment_next(&s);
	} while (!rc && !s.eof && s.off < s.end && s.told > before && s.told < NFS4_READ_PLUS_SEGMENTS &&
		 out->payloads < XDR_PAYLOADS_MAX);
	if (rc && !s.told)
		return type_status(&c->current, rc);
	uint32_t words[2] = {__builtin_bswap32(s.eof && !rc), __builtin_bswap32(s.told)};
	memcpy(out->base + at, words, sizeof(words));
	return NFS4_OK;
}

/* ------------------------------------------------------------------------------------------------
 * WRITE and COMMIT
 */

static stable_how4 stable_of(enum fs_stable stable)
{
	return stable == FS_UNSTABLE ? UNSTABLE4 : stable == FS_DATA_SYNC ? DATA_SYNC4 : FILE_SYNC4;
}

static bool put_verifier(struct xdr_out *out, uint64_t verifier)
{
	return xdr_put_u64(out, verifier);
}

nfsstat4 nfs4_op_write(struct nfs4_compound *c)
{
	WRITE4args args;
	struct fs_op op;
	struct xdr_out *out = &c->req->out;

	if (!xdr_decode_WRITE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (args.data.len > NFS_IO_MAX)
		return NFS4ERR_INVAL; /* more than maxwrite */
	if (!range_fits(args.offset, args.data.len))
		return NFS4ERR_FBIG;
	nfsstat4 status = io_begin(c, &args.stateid, OPEN4_SHARE_ACCESS_WRITE, &op);
	if (status)
		return status;
	struct nfs_write w = {
		.fs = c->current.fs,
		.op = &op,
		.id = c->current.id,
		.off = args.offset,
		.data = &args.data,
		.stable = args.stable == UNSTABLE4    ? FS_UNSTABLE
			  : args.stable == DATA_SYNC4 ? FS_DATA_SYNC
						      : FS_FILE_SYNC,
	};
	int rc = nfs_write(c->req, &w);
	if (rc == -ECONNRESET) {
		c->drop = true;
		return NFS4ERR_IO;
	}
	if (rc)
		return type_status(&c->current, rc);
	return nfs4_fits(c, xdr_put_u32(out, args.data.len) && xdr_put_u32(out, stable_of(w.committed)) &&
				    put_verifier(out, w.verifier));
}

nfsstat4 nfs4_op_commit(struct nfs4_compound *c)
{
	COMMIT4args args;

	if (!xdr_decode_COMMIT4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (args.offset + args.count < args.offset)
		return NFS4ERR_INVAL;
	/* count 0: from there to the end of the file */
	int rc = fs_commit(c->current.fs, &c->op, c->current.id, args.offset, args.count, NULL);
	if (rc)
		return type_status(&c->current, rc);
	return nfs4_fits(c, put_verifier(&c->req->out, fs_write_verifier(c->current.fs)));
}

/* ------------------------------------------------------------------------------------------------
 * Ranges
 */

nfsstat4 nfs4_op_allocate(struct nfs4_compound *c)
{
	ALLOCATE4args args;
	struct fs_op op;

	if (!xdr_decode_ALLOCATE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (c->told)
		return NFS4_OK;
	if (!args.aa_length)
		return NFS4ERR_INVAL;
	if (!range_fits(args.aa_offset, args.aa_length))
		return NFS4ERR_FBIG;
	nfsstat4 status = io_begin(c, &args.aa_stateid, OPEN4_SHARE_ACCESS_WRITE, &op);
	if (status)
		return status;
	return type_status(
		&c->current, fs_allocate(c->current.fs, &op, c->current.id, args.aa_offset, args.aa_length, NULL));
}

nfsstat4 nfs4_op_deallocate(struct nfs4_compound *c)
{
	DEALLOCATE4args args;
	struct fs_op op;

	if (!xdr_decode_DEALLOCATE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (c->told)
		return NFS4_OK;
	if (!args.da_length)
		return NFS4ERR_INVAL;
	if (args.da_offset > FS_SIZE_MAX)
		return NFS4ERR_FBIG;
	if (args.da_length > FS_SIZE_MAX - args.da_offset)
		args.da_length = FS_SIZE_MAX - args.da_offset;
	nfsstat4 status = io_begin(c, &args.da_stateid, OPEN4_SHARE_ACCESS_WRITE, &op);
	if (status)
		return status;
	return type_status(
		&c->current, fs_punch(c->current.fs, &op, c->current.id, args.da_offset, args.da_length, NULL));
}

nfsstat4 nfs4_op_seek(struct nfs4_compound *c)
{
	SEEK4args args;
	struct fs_op op;
	struct fs_attr attr;
	uint64_t found = 0;
	bool eof = false;

	if (!xdr_decode_SEEK4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (args.sa_what != NFS4_CONTENT_DATA && args.sa_what != NFS4_CONTENT_HOLE)
		return NFS4ERR_UNION_NOTSUPP;
	nfsstat4 status = io_begin(c, &args.sa_stateid, OPEN4_SHARE_ACCESS_READ, &op);
	if (status)
		return status;
	if (args.sa_offset > FS_SIZE_MAX)
		return NFS4ERR_NXIO;
	int rc = fs_seek(c->current.fs, &op, c->current.id, args.sa_offset,
		args.sa_what == NFS4_CONTENT_DATA ? FS_SEEK_DATA : FS_SEEK_HOLE, &found, &eof, &attr);
	if (rc)
		return type_status(&c->current, rc);
	if (args.sa_offset >= attr.size)
		return NFS4ERR_NXIO;
	/* the hole at the end of a file is not the end of what lies before it (RFC 7862 15.11.3) */
	return nfs4_fits(c, xdr_put_bool(&c->req->out, eof) && xdr_put_u64(&c->req->out, found));
}

nfsstat4 nfs4_op_io_advise(struct nfs4_compound *c)
{
	static const struct nfs4_bits none; /* no advice is followed: reads are seen to be sequential by themselves */
	IO_ADVISE4args args;
	struct fs_op op;

	if (!xdr_decode_IO_ADVISE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = io_begin(c, &args.iaa_stateid, 0, &op);
	return status ? status : nfs4_fits(c, nfs4_put_bits(&c->req->out, &none));
}

/* ------------------------------------------------------------------------------------------------
 * From one file to another: the saved filehandle is the source
 */

/* Of two exports each has its own idea of who the caller is, and fs/ can check one alone. */
static nfsstat4 pair_access(const struct nfs4_fh *fh, bool opened, uint32_t wanted)
{
	struct fs_op op = {.cred = &fh->cred};
	struct fs_attr attr;
	uint32_t allowed;

	if (opened)
		return NFS4_OK;
	int rc = fs_access(fh->fs, &op, fh->id, wanted, &allowed, &attr);
	if (rc)
		return nfs4_status(rc);
	return allowed == wanted || attr.uid == fh->cred.uid ? NFS4_OK : NFS4ERR_ACCESS;
}

/* Both stateids. The state machine looks at the current filehandle, so the source becomes it for a moment. */
static nfsstat4 pair_begin(struct nfs4_compound *c, const stateid4 *from, const stateid4 *to, struct fs_op *op)
{
	struct nfs4_stateid_use use = {.opened = false};
	struct nfs4_fh target = c->current;
	stateid4 current = c->current_stateid;
	bool valid = c->current_stateid_valid;

	*op = c->op;
	if (c->saved.kind != NFS4_FH_FILE)
		return NFS4ERR_WRONG_TYPE;
	if (c->saved.fs != target.fs)
		return NFS4ERR_XDEV;
	c->current = c->saved;
	c->current_stateid = c->saved_stateid;
	c->current_stateid_valid = c->saved_stateid_valid;
	nfsstat4 status = nfs4_stateid_check(c, from, OPEN4_SHARE_ACCESS_READ, &use);
	c->current = target;
	c->current_stateid = current;
	c->current_stateid_valid = valid;
	if (!status)
		status = io_begin(c, to, OPEN4_SHARE_ACCESS_WRITE, op);
	if (!status && c->saved.export != target.export) {
		status = pair_access(&c->saved, use.opened, FS_MAY_READ);
		if (!status)
			status = pair_access(&c->current, op->opened, FS_MAY_WRITE);
		use.opened = op->opened = true;
	}
	op->opened = op->opened && use.opened;
	return status;
}

/* What the two files are, when the file system says that they cannot be used. */
static nfsstat4 pair_status(const struct nfs4_compound *c, int rc)
{
	nfsstat4 status = type_status(&c->saved, rc);

	if (status == nfs4_status(rc))
		status = type_status(&c->current, rc);
	return status == NFS4ERR_ISDIR || status == NFS4ERR_SYMLINK ? NFS4ERR_WRONG_TYPE : status;
}

static int copy_run(
	struct nfs4_compound *c, const COPY4args *args, const struct fs_op *op, uint64_t count, uint64_t *done)
{
	uint64_t until = now_ns() + COPY_TIME;
	int rc = 0;

	while (!rc && *done < count && (!*done || now_ns() < until)) {
		uint64_t step = count - *done < COPY_STEP ? count - *done : COPY_STEP, copied = 0;
		rc = fs_copy(c->current.fs, op, c->saved.id, args->ca_src_offset + *done, c->current.id,
			args->ca_dst_offset + *done, step, &copied, NULL);
		if (rc)
			break;
		*done += copied;
		if (copied < step)
			break;
	}
	return *done ? 0 : rc; /* the client meets the error when it asks for the rest */
}

static nfsstat4 copy_check(const struct nfs4_compound *c, const COPY4args *args, uint64_t *count)
{
	struct fs_attr attr;

	if (args->ca_source_server.count)
		return NFS4ERR_NOTSUPP; /* from another server */
	int rc = fs_getattr(c->current.fs, c->saved.id, &attr);
	if (rc)
		return nfs4_status(rc);
	if (attr.type != FS_REG)
		return NFS4ERR_WRONG_TYPE;
	if (args->ca_src_offset > attr.size)
		return NFS4ERR_INVAL;
	*count = args->ca_count;
	if (!*count) /* all that is left */
		*count = attr.size - args->ca_src_offset;
	else if (*count > attr.size - args->ca_src_offset)
		return NFS4ERR_INVAL;
	if (!range_fits(args->ca_dst_offset, *count))
		return NFS4ERR_FBIG;
	return NFS4_OK;
}

nfsstat4 nfs4_op_copy(struct nfs4_compound *c)
{
	COPY4args args;
	struct fs_op op;
	struct xdr_out *out = &c->req->out;
	uint64_t count = 0, done = 0;

	if (!xdr_decode_COPY4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	nfsstat4 status = pair_begin(c, &args.ca_src_stateid, &args.ca_dst_stateid, &op);
	if (!status)
		status = copy_check(c, &args, &count);
	if (status)
		return status;
	uint64_t verifier = fs_write_verifier(c->current.fs);
	int rc = copy_run(c, &args, &op, count, &done);
	if (rc)
		return pair_status(c, rc);
	return nfs4_fits(c, xdr_put_u32(out, 0) && xdr_put_u64(out, done) && xdr_put_u32(out, UNSTABLE4) &&
				    put_verifier(out, verifier) && xdr_put_bool(out, true) && xdr_put_bool(out, true));
}

nfsstat4 nfs4_op_clone(struct nfs4_compound *c)
{
	CLONE4args args;
	struct fs_op op;

	if (!xdr_decode_CLONE4args(&c->req->in, &args))
		return NFS4ERR_BADXDR;
	if (c->told)
		return NFS4_OK;
	nfsstat4 status = pair_begin(c, &args.cl_src_stateid, &args.cl_dst_stateid, &op);
	if (status)
		return status;
	if (!range_fits(args.cl_dst_offset, args.cl_count))
		return NFS4ERR_FBIG;
	int rc = fs_clone(c->current.fs, &op, c->saved.id, args.cl_src_offset, c->current.id, args.cl_dst_offset,
		args.cl_count, NULL);
	return rc ? pair_status(c, rc) : NFS4_OK;
}
