/*
 * Clients and sessions of NFSv4.1: EXCHANGE_ID and CREATE_SESSION by every case of RFC 8881 18.35 and 18.36, slots,
 * the sizes that a session agrees on, connections that are bound to it, and what happens when one is lost.
 */
#include "tests/server/nfs4_test.h"

/* ------------------------------------------------------------------------------------------------
 * Slots
 */

static void slots(void **state)
{
	struct v4 v;
	uint8_t first[4096];

	(void)state;
	join(&v, "slots", 1);
	v.slot = 3;
	v4_begin(&v);
	v4_put_root(&v, NFS4_EXPORT);
	create(&v, NF4DIR, "again");
	assert_int_equal(v4_run(&v, NULL), NFS4_OK);
	assert_int_equal(v.status, NFS4_OK);
	size_t bytes = (size_t)(v.rpc.in.end - v.rpc.in.base);
	assert_true(bytes <= sizeof(first));
	memcpy(first, v.rpc.in.base, bytes);

	/* the same once more is told the same, byte for byte, also on another connection */
	client_call(&v.rpc);
	assert_int_equal(v.rpc.in.end - v.rpc.in.base, bytes);
	assert_memory_equal(v.rpc.in.base, first, bytes);
	assert_true(client_connect(&v.rpc));
	client_call(&v.rpc);
	assert_memory_equal(v.rpc.in.base, first, bytes);

	/* another request under the same number */
	v4_bare(&v);
	v4_sequence(&v, v.sequence[3]);
	v4_put_root(&v, NFS4_EXPORT);
	create(&v, NF4DIR, "other");
	assert_int_equal(v4_run(&v, NULL), NFS4ERR_SEQ_FALSE_RETRY);
	/* a number too far, an old one, slots that there are not */
	v4_bare(&v);
	v4_sequence(&v, v.sequence[3] + 2);
	assert_int_equal(v4_run(&v, NULL), NFS4ERR_SEQ_MISORDERED);
	v4_bare(&v);
	v4_sequence(&v, v.sequence[3] - 1);
	assert_int_equal(v4_run(&v, NULL), NFS4ERR_SEQ_MISORDERED);
	v.slot = 5000;
	v4_bare(&v);
	v4_sequence(&v, 1);
	assert_int_equal(v4_run(&v, NULL), NFS4ERR_BADSLOT);
	v.slot = 4;

	/* what was not to be kept cannot be told again, and is not done again */
	v.cache = false;
	v4_begin(&v);
	v4_put_root(&v, NFS4_EXPORT);
	put_remove(&v, "again");
	assert_int_equal(v4_run(&v, NULL), NFS4_OK);
	assert_int_equal(v.status, NFS4_OK);
	client_call(&v.rpc);
	v4_head(&v);
	assert_int_equal(v4_result(&v, OP_SEQUENCE), NFS4_OK);
	assert_int_equal(v.status, NFS4ERR_RETRY_UNCACHED_REP);
	v.cache = true;
	assert_int_equal(remove_name(&v, "again"), NFS4ERR_NOENT);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * Clients and sessions
 */

static void clients(void **state)
{
	struct v4 v, other;
	EXCHANGE_ID4resok res;
	(void)state;
	v4_init(&v, run.port, 0, "clients");
	assert_true(client_connect(&v.rpc));
	assert_int_equal(v4_exchange_id(&v, EXCHGID4_FLAG_UPD_CONFIRMED_REC_A, &res), NFS4ERR_NOENT); /* case 7 */
	assert_int_equal(v4_exchange_id(&v, 0x80, &res), NFS4ERR_INVAL);
	assert_int_equal(v4_exchange_id(&v, EXCHGID4_FLAG_CONFIRMED_R, &res), NFS4ERR_INVAL);
	assert_int_equal(v4_exchange_id(&v, 0, &res), NFS4_OK); /* case 1 */
	assert_false(res.eir_flags & EXCHGID4_FLAG_CONFIRMED_R);
	assert_true(res.eir_flags & EXCHGID4_FLAG_USE_NON_PNFS);
	clientid4 first = res.eir_clientid;
	assert_int_equal(v4_exchange_id(&v, 0, &res), NFS4_OK); /* case 4 */
	assert_int_not_equal(res.eir_clientid, first);
	v.id = first;
	assert_int_equal(v4_create_session(&v, res.eir_sequenceid), NFS4ERR_STALE_CLIENTID);
	v.id = res.eir_clientid;
	assert_int_equal(v4_create_session(&v, res.eir_sequenceid + 1), NFS4ERR_SEQ_MISORDERED);
	assert_int_equal(v4_create_session(&v, res.eir_sequenceid - 1), NFS4ERR_SEQ_MISORDERED);
	v.rpc.uid = 7; /* somebody else confirms it */
	assert_int_equal(v4_create_session(&v, res.eir_sequenceid), NFS4ERR_CLID_INUSE);
	v.rpc.uid = 0;
	assert_int_equal(v4_create_session(&v, res.eir_sequenceid), NFS4_OK);
	sessionid4 session;
	memcpy(session, v.session, sizeof(session));
	assert_int_equal(v4_create_session(&v, res.eir_sequenceid), NFS4_OK); /* the same once more: the same session */
	assert_memory_equal(session, v.session, sizeof(session));
	assert_int_equal(v4_create_session(&v, res.eir_sequenceid + 1), NFS4_OK); /* another one */
	assert_memory_not_equal(session, v.session, sizeof(session));
	assert_int_equal(v4_exchange_id(&v, 0, &res), NFS4_OK); /* case 2 */
	assert_int_equal(res.eir_clientid, v.id);
	assert_true(res.eir_flags & EXCHGID4_FLAG_CONFIRMED_R);
	assert_int_equal(v4_exchange_id(&v, EXCHGID4_FLAG_UPD_CONFIRMED_REC_A, &res), NFS4_OK); /* case 6 */
	assert_int_equal(res.eir_clientid, v.id);
	v.verifier = 2;
	assert_int_equal(v4_exchange_id(&v, EXCHGID4_FLAG_UPD_CONFIRMED_REC_A, &res), NFS4ERR_NOT_SAME); /* case 8 */
	v.verifier = 1;
	v.rpc.uid = 7;
	assert_int_equal(v4_exchange_id(&v, EXCHGID4_FLAG_UPD_CONFIRMED_REC_A, &res), NFS4ERR_PERM); /* case 9 */
	v.rpc.uid = 0;

	/* another connection of the same session, asked for and not */
	v4_init(&other, run.port, 0, "clients");
	assert_true(client_connect(&other.rpc));
	memcpy(other.session, v.session, sizeof(v.session));
	other.id = v.id;
	other.slot = 5;
	begin(&other, "");
	expect(&other, NFS4_OK);
	static const struct {
		uint32_t from, to;
	} directions[] = {{CDFC4_FORE, CDFS4_FORE}, {CDFC4_BACK, CDFS4_BACK}, {CDFC4_FORE_OR_BOTH, CDFS4_BOTH},
		{CDFC4_BACK_OR_BOTH, CDFS4_BOTH}};
	for (unsigned i = 0; i < 4; i++) {
		BIND_CONN_TO_SESSION4args bind = {.bctsa_dir = (channel_dir_from_client4)directions[i].from};
		BIND_CONN_TO_SESSION4resok bound;
		memcpy(bind.bctsa_sessid, v.session, sizeof(v.session));
		v4_bare(&other);
		v4_add(&other, BIND_CONN_TO_SESSION, &bind);
		expect(&other, NFS4_OK);
		assert_int_equal(v4_result(&other, OP_BIND_CONN_TO_SESSION), NFS4_OK);
		v4_take(&other, BIND_CONN_TO_SESSION4resok, &bound);
		assert_int_equal(bound.bctsr_dir, directions[i].to);
		assert_memory_equal(bound.bctsr_sessid, v.session, sizeof(v.session));
	}
	BIND_CONN_TO_SESSION4args nobody = {.bctsa_dir = CDFC4_FORE};
	v4_bare(&other);
	v4_add(&other, BIND_CONN_TO_SESSION, &nobody);
	expect(&other, NFS4ERR_BADSESSION);
	BACKCHANNEL_CTL4args control = {.bca_cb_program = 0x40000001};
	callback_sec_parms4 parms = {.cb_secflavor = NFS4_AUTH_NONE};
	control.bca_sec_parms.count = 1;
	control.bca_sec_parms.item = &parms;
	v4_begin(&other);
	v4_add(&other, BACKCHANNEL_CTL, &control);
	expect(&other, NFS4_OK);
	v4_fini(&other);

	/* the end: sessions first; one's own only at the end of a compound */
	DESTROY_CLIENTID4args end = {.dca_clientid = v.id};
	v4_bare(&v);
	v4_add(&v, DESTROY_CLIENTID, &end);
	expect(&v, NFS4ERR_CLIENTID_BUSY);
	DESTROY_SESSION4args destroy;
	memcpy(destroy.dsa_sessionid, v.session, sizeof(v.session));
	v4_begin(&v);
	v4_add(&v, DESTROY_SESSION, &destroy);
	v4_op(&v, OP_PUTROOTFH);
	expect(&v, NFS4ERR_NOT_ONLY_OP);
	v4_begin(&v);
	v4_add(&v, DESTROY_SESSION, &destroy);
	expect(&v, NFS4_OK);
	v4_begin(&v);
	expect(&v, NFS4ERR_BADSESSION);
	v4_bare(&v);
	v4_add(&v, DESTROY_SESSION, &destroy);
	expect(&v, NFS4ERR_BADSESSION);
	memcpy(destroy.dsa_sessionid, session, sizeof(session));
	v4_bare(&v);
	v4_add(&v, DESTROY_SESSION, &destroy);
	expect(&v, NFS4_OK);
	v4_bare(&v);
	v4_add(&v, DESTROY_CLIENTID, &end);
	expect(&v, NFS4_OK);
	v4_bare(&v);
	v4_add(&v, DESTROY_CLIENTID, &end);
	expect(&v, NFS4ERR_STALE_CLIENTID);
	v4_fini(&v);
}

/* A client that restarts: its earlier life ends when the new one is confirmed, and not before (case 5). */
static void restarts(void **state)
{
	struct v4 was, is;
	EXCHANGE_ID4resok res;
	(void)state;
	join(&was, "restarts", 1);
	v4_init(&is, run.port, 0, "restarts");
	is.verifier = 4711;
	assert_true(client_connect(&is.rpc));
	assert_int_equal(v4_exchange_id(&is, 0, &res), NFS4_OK);
	assert_int_not_equal(res.eir_clientid, was.id);
	begin(&was, "");
	expect(&was, NFS4_OK);
	is.id = res.eir_clientid;
	assert_int_equal(v4_create_session(&is, res.eir_sequenceid), NFS4_OK);
	begin(&was, "");
	expect(&was, NFS4ERR_BADSESSION);
	assert_int_equal(v4_reclaim_complete(&is), NFS4_OK);
	assert_int_equal(v4_reclaim_complete(&is), NFS4ERR_COMPLETE_ALREADY);
	begin(&is, "");
	expect(&is, NFS4_OK);
	v4_fini(&was);
	v4_end(&is);
}

/* ------------------------------------------------------------------------------------------------
 * Connections that are lost
 */

/* What was sent last is told again, byte for byte, on this connection and on another. */
static void again(struct v4 *v)
{
	static uint8_t first[1u << 17];
	size_t bytes = (size_t)(v->rpc.in.end - v->rpc.in.base);

	assert_true(bytes <= sizeof(first));
	memcpy(first, v->rpc.in.base, bytes);
	for (unsigned i = 0; i < 2; i++) {
		if (i)
			assert_true(client_connect(&v->rpc));
		client_call(&v->rpc);
		assert_int_equal(v->rpc.in.end - v->rpc.in.base, bytes);
		assert_memory_equal(v->rpc.in.base, first, bytes);
	}
}

static uint32_t flags_of(struct v4 *v)
{
	SEQUENCE4resok res;

	v4_begin(v);
	assert_int_equal(v4_run(v, &res), NFS4_OK);
	return res.sr_status_flags;
}

/* The call arrives, its answer does not: sent again over another connection it is answered, and was done once. */
static void lost_before_the_answer(void **state)
{
	struct v4 v;
	nfsstat4 status;

	(void)state;
	join(&v, "lost", 1);
	for (unsigned i = 0; i < 20; i++) {
		begin(&v, "");
		create(&v, NF4DIR, "once");
		v4_op(&v, OP_GETFH);
		assert_true(client_send(&v.rpc));
		if (i % 2)
			shutdown(v.rpc.fd, SHUT_RDWR);
		do { /* it may still run, on the connection that is gone */
			assert_true(client_connect(&v.rpc));
			status = v4_send(&v);
			if (status == NFS4ERR_DELAY)
				run_pause();
		} while (status == NFS4ERR_DELAY);
		assert_int_equal(status, NFS4_OK);
		again(&v);
		assert_int_equal(remove_name(&v, "once"), NFS4_OK);
	}
	v4_end(&v);
}

/* A session without a way back says so, until it has one. */
static void lost_backchannel(void **state)
{
	struct v4 v;
	const uint32_t down = SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION;
	BIND_CONN_TO_SESSION4args bind = {.bctsa_dir = CDFC4_BACK_OR_BOTH};

	(void)state;
	v4_init(&v, run.port, 0, "lost backchannel");
	v.session_flags = CREATE_SESSION4_FLAG_CONN_BACK_CHAN;
	v4_connect(&v);
	memcpy(bind.bctsa_sessid, v.session, sizeof(v.session));
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(flags_of(&v) & down, 0);
		assert_true(client_connect(&v.rpc));
		/* the server sees the end of the old connection a moment later */
		for (unsigned k = 0; (flags_of(&v) & down) != down; k++) {
			assert_true(k < 500);
			run_pause();
		}
		v4_bare(&v);
		v4_add(&v, BIND_CONN_TO_SESSION, &bind);
		expect(&v, NFS4_OK);
	}
	assert_int_equal(flags_of(&v) & down, 0);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * Sizes
 */

static nfsstat4 small_session(struct v4 *v, uint32_t request, uint32_t reply, uint32_t cached, uint32_t requests)
{
	EXCHANGE_ID4resok ids;
	CREATE_SESSION4resok res;
	assert_int_equal(v4_exchange_id(v, 0, &ids), NFS4_OK);
	v->id = ids.eir_clientid;
	CREATE_SESSION4args args = {.csa_clientid = v->id,
		.csa_sequence = ids.eir_sequenceid,
		.csa_fore_chan_attrs = {.ca_maxrequestsize = request,
			.ca_maxresponsesize = reply,
			.ca_maxresponsesize_cached = cached,
			.ca_maxoperations = 8,
			.ca_maxrequests = requests}};
	v4_bare(v);
	v4_add(v, CREATE_SESSION, &args);
	nfsstat4 status = v4_send(v);
	if (status)
		return status;
	assert_int_equal(v4_result(v, OP_CREATE_SESSION), NFS4_OK);
	v4_take(v, CREATE_SESSION4resok, &res);
	memcpy(v->session, res.csr_sessionid, sizeof(v->session));
	memset(v->sequence, 0, sizeof(v->sequence));
	assert_true(res.csr_fore_chan_attrs.ca_maxrequests <= requests);
	assert_true(res.csr_fore_chan_attrs.ca_maxresponsesize <= reply);
	return NFS4_OK;
}

/* Nothing is done whose answer would not fit. */
static void sizes(void **state)
{
	struct v4 big, v;
	static uint8_t block[8192];
	(void)state;
	join(&big, "big", 1);
	make_file(&big, "sized");
	begin(&big, "sized");
	put_write(&big, 0, block, sizeof(block));
	expect(&big, NFS4_OK);
	v4_init(&v, run.port, 0, "sizes");
	assert_true(client_connect(&v.rpc));
	assert_int_equal(small_session(&v, 10, 4096, 4096, 8), NFS4ERR_TOOSMALL);
	assert_int_equal(small_session(&v, 4096, 10, 4096, 8), NFS4ERR_TOOSMALL);
	assert_int_equal(small_session(&v, 4096, 4096, 4096, 0), NFS4ERR_INVAL);
	assert_int_equal(small_session(&v, 4096, 2048, 1024, V4_SLOTS), NFS4_OK);
	assert_int_equal(v4_reclaim_complete(&v), NFS4_OK);
	v.cache = false;
	READ4args read = {.count = 4096};
	begin(&v, "sized");
	v4_add(&v, READ, &read);
	expect(&v, NFS4ERR_REP_TOO_BIG);
	read.count = 1500;
	begin(&v, "sized");
	v4_add(&v, READ, &read);
	expect(&v, NFS4_OK);
	v.cache = true;
	begin(&v, "sized");
	v4_add(&v, READ, &read);
	expect(&v, NFS4ERR_REP_TOO_BIG_TO_CACHE);
	read.count = 500;
	begin(&v, "sized");
	v4_add(&v, READ, &read);
	expect(&v, NFS4_OK);
	again(&v);
	/* a change behind results that have used up the room is not made */
	begin(&v, "sized");
	read.count = 700;
	v4_add(&v, READ, &read);
	v4_put_root(&v, "data");
	put_remove(&v, "sized");
	expect(&v, NFS4_OK);
	make_file(&big, "sized");
	begin(&big, "sized");
	put_write(&big, 0, block, sizeof(block));
	expect(&big, NFS4_OK);
	begin(&v, "sized");
	read.count = 852;
	v4_add(&v, READ, &read);
	v4_put_root(&v, "data");
	put_remove(&v, "sized");
	expect(&v, NFS4ERR_REP_TOO_BIG_TO_CACHE);
	begin(&big, "sized");
	expect(&big, NFS4_OK); /* still there */
	/* a request that is too long */
	begin(&v, "sized");
	put_write(&v, 0, block, 5000);
	expect(&v, NFS4ERR_REQ_TOO_BIG);
	v.sequence[v.slot]--;
	remove_it(&big, "sized");
	v4_end(&v);
	v4_end(&big);
}

/* ------------------------------------------------------------------------------------------------ */

static int setup(void **state)
{
	(void)state;
	return group_start(RUN_EXPORT_YAML);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots),
		cmocka_unit_test(clients),
		cmocka_unit_test(restarts),
		cmocka_unit_test(lost_before_the_answer),
		cmocka_unit_test(lost_backchannel),
		cmocka_unit_test(sizes),
	};
	return cmocka_run_group_tests(tests, setup, group_stop);
}
