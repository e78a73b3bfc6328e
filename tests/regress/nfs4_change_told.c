/*
 * While a client with a write delegation had changed a file, others were told a change attribute that grew with each
 * look, and of which the file knew nothing: once the delegation was back they were told smaller ones, and then the same
 * numbers again for other contents.
 */
#include "tests/server/nfs4_test.h"

/* Takes the server's CB_GETATTR and says that the file has this change and 5000 bytes. */
static void answer_getattr(struct v4 *v, uint64_t change)
{
	struct xdr_in *in = &v->rpc.in;
	uint32_t xid = 0, word = 0, op = 0;
	struct xdr_opaque body;
	CB_COMPOUND4args_head head;
	CB_SEQUENCE4args sequence;
	uint8_t bytes[512], values[16];
	struct xdr_out o;

	assert_true(client_receive(&v->rpc));
	assert_true(xdr_get_u32(in, &xid));
	for (unsigned i = 0; i < 5; i++)
		assert_true(xdr_get_u32(in, &word));
	for (unsigned i = 0; i < 2; i++)
		assert_true(xdr_get_u32(in, &word) && xdr_get_opaque(in, 400, &body));
	assert_true(xdr_decode_CB_COMPOUND4args_head(in, &head) && head.argarray_count == 2);
	assert_true(xdr_get_u32(in, &op) && op == OP_CB_SEQUENCE && xdr_decode_CB_SEQUENCE4args(in, &sequence));
	assert_true(xdr_get_u32(in, &op));
	assert_int_equal(op, OP_CB_GETATTR);

	CB_SEQUENCE4resok res = {.csr_sequenceid = sequence.csa_sequenceid, .csr_slotid = sequence.csa_slotid};
	memcpy(res.csr_sessionid, sequence.csa_sessionid, sizeof(res.csr_sessionid));
	xdr_out_init(&o, values, sizeof(values));
	assert_true(xdr_put_u64(&o, change) && xdr_put_u64(&o, 5000));
	xdr_out_init(&o, bytes, sizeof(bytes));
	for (unsigned i = 0; i < 7; i++) /* record mark, xid, REPLY, accepted, verifier of no flavor, success */
		xdr_put_u32(&o, i == 1 ? xid : i == 2);
	bool ok = xdr_put_u32(&o, NFS4_OK) && xdr_put_opaque(&o, "", 0) && xdr_put_u32(&o, 2) &&
		  xdr_put_u32(&o, OP_CB_SEQUENCE) && xdr_put_u32(&o, NFS4_OK) &&
		  xdr_encode_CB_SEQUENCE4resok(&o, &res) && xdr_put_u32(&o, op) && xdr_put_u32(&o, NFS4_OK) &&
		  xdr_put_u32(&o, 1) && xdr_put_u32(&o, 1u << FATTR4_CHANGE | 1u << FATTR4_SIZE) &&
		  xdr_put_opaque(&o, values, sizeof(values));
	assert_true(ok);
	uint32_t mark = htonl(0x80000000u | (uint32_t)(o.p - o.base - 4));
	memcpy(o.base, &mark, 4);
	assert_int_equal(send(v->rpc.fd, o.base, (size_t)(o.p - o.base), MSG_NOSIGNAL), o.p - o.base);
}

/* The file's change attribute; HOLDER is asked for what it has, which is HELD. */
static uint64_t look(struct v4 *v, struct v4 *holder, uint64_t held)
{
	uint64_t change = 0;

	begin(v, "file");
	put_getattr(v, FATTR4_CHANGE);
	if (holder) {
		assert_true(client_send(&v->rpc));
		answer_getattr(holder, held);
		assert_true(client_receive(&v->rpc));
		client_reply(&v->rpc);
		assert_int_equal(v4_head(v), NFS4_OK);
	} else {
		expect(v, NFS4_OK);
	}
	at_end(v, 8);
	assert_true(xdr_get_u64(&v->rpc.in, &change));
	return change;
}

static void grows(void **state)
{
	struct v4 a, b;
	DELEGRETURN4args back;

	(void)state;
	join(&b, "looks", 1);
	make_file(&b, "file");
	uint64_t first = look(&b, NULL, 0);
	back.deleg_stateid = join_delegated(&a, "holds", "file", OPEN4_SHARE_ACCESS_BOTH);
	assert_int_equal(look(&b, &a, first), first); /* nothing is changed yet */
	uint64_t last = first;
	for (unsigned i = 0; i < 3; i++) {
		uint64_t now = look(&b, &a, first + 1);
		assert_true(now > last);
		last = now;
	}
	begin(&a, "file");
	v4_add(&a, DELEGRETURN, &back);
	expect(&a, NFS4_OK);
	uint64_t now = look(&b, NULL, 0);
	assert_true(now >= last);
	begin(&b, "file");
	put_write(&b, 0, "x", 1);
	expect(&b, NFS4_OK);
	assert_true(look(&b, NULL, 0) > now);
	v4_fini(&a);
	v4_fini(&b);
}

static int setup(void **state)
{
	(void)state;
	run_init(&run, RUN_EXPORT_YAML);
	run.server = "  delegations: write\n";
	run_write_config(&run, RUN_EXPORT_YAML);
	run_start(&run);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(grows)};

	return cmocka_run_group_tests(tests, setup, group_stop);
}
