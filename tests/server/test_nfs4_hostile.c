/*
 * Hostile arguments: well-formed compounds of every operation of NFSv4.2 on a few names, with some bytes changed. The
 * server answers each, lives, and stops as it should.
 */
#include "tests/server/nfs4_test.h"

static uint64_t dice = 88172645463325252ull;
static uint32_t roll(uint32_t sides)
{
	dice ^= dice << 13;
	dice ^= dice >> 7;
	dice ^= dice << 17;
	return (uint32_t)(dice >> 32) % sides;
}

/* Something of each operation, on a few names. */
static void any_op(struct v4 *v)
{
	static const char *const names[] = {"h0", "h1", "h2", "h3"};
	const char *name = names[roll(4)];
	static const uint8_t block[1000];
	uint32_t op = 3 + roll(OP_REMOVEXATTR - 2);

	switch (op) {
	case OP_CREATE:
		create(v, 2 + roll(6), name);
		break;
	case OP_OPEN:
		open_create(v, name);
		break;
	case OP_WRITE:
		put_write(v, roll(100000), block, roll(1000));
		break;
	case OP_SETXATTR:
		put_setxattr(v, name, roll(3), block, roll(1000));
		break;
	case OP_LOOKUP:
	case OP_REMOVE:
	case OP_SECINFO:
	case OP_GETXATTR:
	case OP_REMOVEXATTR:
	case OP_LINK:
		xdr_put_opaque(v4_op(v, op), name, 2);
		break;
	case OP_RENAME: {
		struct xdr_out *o = v4_op(v, op);
		xdr_put_opaque(o, name, 2);
		xdr_put_opaque(o, names[roll(4)], 2);
		break;
	}
	case OP_SETATTR: {
		uint64_t size = htobe64(roll(1u << 20));
		xdr_encode_stateid4(v4_op(v, op), &anonymous);
		put_fattr(&v->rpc.out, FATTR4_SIZE, &size, 8);
		break;
	}
	case OP_GETATTR:
	case OP_TEST_STATEID: {
		struct xdr_out *o = v4_op(v, op);
		uint32_t words = roll(5);
		xdr_put_u32(o, words);
		for (uint32_t i = 0; i < words; i++)
			xdr_put_u32(o, roll(UINT32_MAX));
		break;
	}
	case OP_READDIR: {
		READDIR4args args = {.cookie = roll(8), .maxcount = roll(4000)};
		v4_add(v, READDIR, &args);
		break;
	}
	case OP_DESTROY_CLIENTID:
	case OP_DESTROY_SESSION:
		break;
	default: { /* numbers that mean little */
		struct xdr_out *o = v4_op(v, op);
		xdr_encode_stateid4(o, &anonymous);
		for (uint32_t i = roll(12); i; i--)
			xdr_put_u32(o, roll(4) ? roll(3) * 4096 : roll(UINT32_MAX));
	}
	}
}

static void hostile(void **state)
{
	struct v4 v;
	(void)state;
	join(&v, "hostile", 2);
	for (unsigned i = 0; i < 1500; i++) {
		v.cache = roll(2);
		v4_begin(&v);
		uint8_t *from = v.rpc.out.p;
		v4_put_root(&v, "data");
		for (uint32_t ops = 1 + roll(6); ops; ops--) {
			any_op(&v);
			if (!roll(5))
				v4_op(&v, OP_SAVEFH);
		}
		for (uint32_t changes = roll(4); changes; changes--)
			from[roll((uint32_t)(v.rpc.out.p - from))] = (uint8_t)roll(256);
		if (!roll(10))
			v.rpc.out.p -= 4 * roll((uint32_t)(v.rpc.out.p - from) / 4);
		if (!client_try(&v.rpc)) {
			assert_true(client_connect(&v.rpc));
			client_call(&v.rpc);
		}
		assert_int_equal(v.rpc.accept_stat, RPC_SUCCESS);
		v4_head(&v);
		if (v4_result(&v, OP_SEQUENCE) != NFS4_OK)
			v.sequence[v.slot]--;
	}
	/* it lives, and what it keeps is sound */
	begin(&v, "");
	expect(&v, NFS4_OK);
	v4_fini(&v);
}

static int setup(void **state)
{
	(void)state;
	return group_start(RUN_EXPORT_YAML);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(hostile)};

	return cmocka_run_group_tests(tests, setup, group_stop);
}
