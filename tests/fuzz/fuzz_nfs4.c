/*
 * COMPOUND: its head, then operations with their arguments, as many as it says; and what a client answers to our calls.
 */
#include "tests/fuzz/fuzz_codec.h"

#include "xdr/nfs4.h"
#include "xdr/nfs4_test.h"

#define MODES 2u /* the input's first byte: a call of theirs, or an answer to one of ours */

static const struct {
	uint32_t op;
	const char *args; /* NULL: none */
} operations[] = {
#define O(OP)                                                                                                          \
	{                                                                                                              \
		OP_##OP, #OP "4args"                                                                                   \
	}
	O(ACCESS), O(CLOSE), O(COMMIT), O(CREATE), O(DELEGRETURN), O(GETATTR), O(LINK), O(LOCK), O(LOCKT), O(LOCKU),
	O(LOOKUP), O(NVERIFY), O(OPEN), O(OPEN_DOWNGRADE), O(PUTFH), O(READ), O(READDIR), O(REMOVE), O(RENAME),
	O(SECINFO), O(SETATTR), O(VERIFY), O(WRITE), O(BACKCHANNEL_CTL), O(BIND_CONN_TO_SESSION), O(EXCHANGE_ID),
	O(CREATE_SESSION), O(DESTROY_SESSION), O(FREE_STATEID), O(SECINFO_NO_NAME), O(SEQUENCE), O(TEST_STATEID),
	O(DESTROY_CLIENTID), O(RECLAIM_COMPLETE), O(ALLOCATE), O(COPY), O(DEALLOCATE), O(IO_ADVISE), O(READ_PLUS),
	O(SEEK), O(CLONE), O(GETXATTR), O(SETXATTR), O(LISTXATTRS), O(REMOVEXATTR),
#undef O
	{OP_GETFH, NULL}, {OP_LOOKUPP, NULL}, {OP_PUTROOTFH, NULL}, {OP_READLINK, NULL}, {OP_RESTOREFH, NULL},
	{OP_SAVEFH, NULL}};
#define OPERATIONS (sizeof(operations) / sizeof(operations[0]))

static bool op_step(struct fuzz_message *m, struct xdr_out *out)
{
	uint32_t op;

	if (!xdr_get_u32(&m->in, &op))
		return false;
	for (unsigned i = 0; i < OPERATIONS; i++)
		if (operations[i].op == op) {
			FUZZ_CHECK(xdr_put_u32(out, op));
			return !operations[i].args || fuzz_decode(m, FUZZ_TYPE(nfs4, operations[i].args), out);
		}
	return false;
}

static bool compound(struct fuzz_message *m, struct xdr_out *out, const void *arg)
{
	uint32_t count;

	(void)arg;
	if (!fuzz_decode(m, FUZZ_TYPE(nfs4, "COMPOUND4args_head"), out))
		return false;
	memcpy(&count, out->p - 4, 4);
	count = __builtin_bswap32(count);
	for (uint32_t i = 0; i < count; i++)
		/* of so many payloads no reply is made */
		if (out->payloads == XDR_PAYLOADS_MAX || !op_step(m, out))
			return false;
	return true;
}

static bool answer(struct fuzz_message *m, struct xdr_out *out, const void *arg)
{
	(void)arg;
	return fuzz_decode(m, FUZZ_TYPE(nfs4, "CB_COMPOUND4res_head"), out) &&
	       fuzz_decode(m, FUZZ_TYPE(nfs4, "CB_SEQUENCE4resok"), out);
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
	struct fuzz_input in = {data, data + bytes};
	uint8_t mode = fuzz_u8(&in);

	fuzz_codec(&in, mode % MODES ? answer : compound, NULL);
}

static void fuzz_seeds(void)
{
	/* mode, cuts, tag of two bytes, minor version, one operation */
	uint8_t head[1 + FUZZ_PIECES + 20] = {0, 9, 11, [12] = 2, 't', 'g', [20] = 2, [24] = 1};

	for (unsigned i = 0; i < OPERATIONS; i++) {
		uint32_t op = __builtin_bswap32(operations[i].op);
		memcpy(head + sizeof(head) - 4, &op, 4);
		if (operations[i].args)
			fuzz_seed_type(operations[i].args, head, sizeof(head), FUZZ_TYPE(nfs4, operations[i].args));
		else
			fuzz_seed("no_args", head, sizeof(head));
	}
	head[0] = 1;
	fuzz_seed_type("CB_COMPOUND4res_head", head, 1 + FUZZ_PIECES, FUZZ_TYPE(nfs4, "CB_COMPOUND4res_head"));
}
