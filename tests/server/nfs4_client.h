/*
 * A small NFSv4.1 client over TCP for tests: one client of the server with one session; compounds are put together
 * operation by operation, and results are taken in the same order. It fails the test when the transport or the coding
 * does; each status is the test's to judge.
 */
#ifndef TESTS_NFS4_CLIENT_H
#define TESTS_NFS4_CLIENT_H

#include "tests/server/nfs_client.h"
#include "xdr/nfs4.h"

#define V4_SLOTS 64u

struct v4 {
	struct client rpc;
	char owner[64];
	uint64_t verifier;
	clientid4 id;
	sessionid4 session;
	uint32_t slot, sequence[V4_SLOTS];
	uint32_t minor, ops;
	bool cache;
	uint32_t session_flags; /* of CREATE_SESSION */
	uint8_t *count_at;	/* of the compound's operations */
	nfsstat4 status;	/* of the last compound */
};

/* Begins a compound without SEQUENCE. */
static inline void v4_bare(struct v4 *v)
{
	struct xdr_out *o = client_begin(&v->rpc, NFS4_PROGRAM, NFS_V4, NFSPROC4_COMPOUND);

	xdr_put_opaque(o, "", 0);
	xdr_put_u32(o, v->minor);
	v->count_at = o->p;
	xdr_put_u32(o, 0);
	v->ops = 0;
}

/* Adds an operation; its arguments follow by the codec. */
static inline struct xdr_out *v4_op(struct v4 *v, uint32_t opnum)
{
	uint32_t count = htonl(++v->ops);

	memcpy(v->count_at, &count, 4);
	xdr_put_u32(&v->rpc.out, opnum);
	return &v->rpc.out;
}
#define v4_add(v, OP, args) assert_true(xdr_encode_##OP##4args(v4_op(v, OP_##OP), args))

static inline void v4_sequence(struct v4 *v, uint32_t sequence)
{
	SEQUENCE4args args = {.sa_sequenceid = sequence,
		.sa_slotid = v->slot,
		.sa_highest_slotid = V4_SLOTS - 1,
		.sa_cachethis = v->cache};

	memcpy(args.sa_sessionid, v->session, sizeof(args.sa_sessionid));
	v4_add(v, SEQUENCE, &args);
}

/* Begins a compound in the session's slot, with its next number. */
static inline void v4_begin(struct v4 *v)
{
	v4_bare(v);
	v4_sequence(v, ++v->sequence[v->slot]);
}

/* The reply's head; what v4_result() takes follows. */
static inline nfsstat4 v4_head(struct v4 *v)
{
	struct xdr_opaque tag;
	uint32_t status = 0, count = 0;

	assert_int_equal(v->rpc.accept_stat, RPC_SUCCESS);
	assert_true(xdr_get_u32(&v->rpc.in, &status) && xdr_get_opaque(&v->rpc.in, 1024, &tag) &&
		    xdr_get_u32(&v->rpc.in, &count));
	v->status = (nfsstat4)status;
	return v->status;
}

static inline nfsstat4 v4_send(struct v4 *v)
{
	client_call(&v->rpc);
	return v4_head(v);
}

/* The next operation's status; its result follows by the codec. */
static inline nfsstat4 v4_result(struct v4 *v, uint32_t opnum)
{
	uint32_t op = 0, status = 0;

	assert_true(xdr_get_u32(&v->rpc.in, &op) && xdr_get_u32(&v->rpc.in, &status));
	assert_int_equal(op, opnum);
	return (nfsstat4)status;
}
#define v4_take(v, type, res) assert_true(xdr_decode_##type(&(v)->rpc.in, res))

/* Sends a compound that v4_begin() began; what SEQUENCE said, its result taken. */
static inline nfsstat4 v4_run(struct v4 *v, SEQUENCE4resok *sequence)
{
	SEQUENCE4resok local;

	v4_send(v);
	nfsstat4 status = v4_result(v, OP_SEQUENCE);
	if (!status)
		v4_take(v, SEQUENCE4resok, sequence ? sequence : &local);
	return status;
}

static inline nfsstat4 v4_exchange_id(struct v4 *v, uint32_t flags, EXCHANGE_ID4resok *res)
{
	EXCHANGE_ID4args args = {.eia_clientowner = {.co_ownerid = text(v->owner)}, .eia_flags = flags};
	nfsstat4 status;

	memcpy(args.eia_clientowner.co_verifier, &v->verifier, 8);
	v4_bare(v);
	v4_add(v, EXCHANGE_ID, &args);
	v4_send(v);
	status = v4_result(v, OP_EXCHANGE_ID);
	if (!status)
		v4_take(v, EXCHANGE_ID4resok, res);
	return status;
}

static inline nfsstat4 v4_create_session(struct v4 *v, uint32_t sequence)
{
	channel_attrs4 channel = {.ca_maxrequestsize = 1u << 20,
		.ca_maxresponsesize = 1u << 20,
		.ca_maxresponsesize_cached = 4096,
		.ca_maxoperations = 16,
		.ca_maxrequests = V4_SLOTS};
	CREATE_SESSION4args args = {.csa_clientid = v->id,
		.csa_sequence = sequence,
		.csa_flags = v->session_flags,
		.csa_fore_chan_attrs = channel,
		.csa_back_chan_attrs = {.ca_maxrequestsize = 4096,
			.ca_maxresponsesize = 4096,
			.ca_maxresponsesize_cached = 4096,
			.ca_maxoperations = 2,
			.ca_maxrequests = 1},
		.csa_cb_program = 0x40000000};
	CREATE_SESSION4resok res;
	nfsstat4 status;

	v4_bare(v);
	v4_add(v, CREATE_SESSION, &args);
	v4_send(v);
	status = v4_result(v, OP_CREATE_SESSION);
	if (!status) {
		v4_take(v, CREATE_SESSION4resok, &res);
		memcpy(v->session, res.csr_sessionid, sizeof(v->session));
		memset(v->sequence, 0, sizeof(v->sequence));
	}
	return status;
}

static inline nfsstat4 v4_reclaim_complete(struct v4 *v)
{
	RECLAIM_COMPLETE4args args = {.rca_one_fs = false};

	v4_begin(v);
	v4_add(v, RECLAIM_COMPLETE, &args);
	return v4_run(v, NULL) ? v->status : v4_result(v, OP_RECLAIM_COMPLETE);
}

/* Client id and session. */
static inline void v4_connect(struct v4 *v)
{
	EXCHANGE_ID4resok res;

	assert_true(client_connect(&v->rpc));
	assert_int_equal(v4_exchange_id(v, 0, &res), NFS4_OK);
	v->id = res.eir_clientid;
	assert_int_equal(v4_create_session(v, res.eir_sequenceid), NFS4_OK);
}

static inline void v4_init(struct v4 *v, uint16_t port, uint32_t uid, const char *owner)
{
	*v = (struct v4){.minor = 1, .verifier = 1, .cache = true};
	snprintf(v->owner, sizeof(v->owner), "%s", owner);
	client_init(&v->rpc, port, uid);
}

static inline void v4_fini(struct v4 *v)
{
	client_fini(&v->rpc);
}

/* Ends session and client id, and so what the server remembers of the client. It must hold nothing any more. */
static inline void v4_end(struct v4 *v)
{
	DESTROY_SESSION4args session;
	DESTROY_CLIENTID4args client = {.dca_clientid = v->id};

	memcpy(session.dsa_sessionid, v->session, sizeof(session.dsa_sessionid));
	v4_bare(v);
	v4_add(v, DESTROY_SESSION, &session);
	assert_int_equal(v4_send(v), NFS4_OK);
	v4_bare(v);
	v4_add(v, DESTROY_CLIENTID, &client);
	assert_int_equal(v4_send(v), NFS4_OK);
	v4_fini(v);
}

/* PUTROOTFH and a LOOKUP of the export: the way to its root. */
static inline void v4_put_root(struct v4 *v, const char *export)
{
	LOOKUP4args args = {.objname = text(export)};

	v4_op(v, OP_PUTROOTFH);
	v4_add(v, LOOKUP, &args);
}
static inline void v4_took_root(struct v4 *v)
{
	assert_int_equal(v4_result(v, OP_PUTROOTFH), NFS4_OK);
	assert_int_equal(v4_result(v, OP_LOOKUP), NFS4_OK);
}

#endif
