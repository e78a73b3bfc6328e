/*
 * Hostile bytes for a whole server: random calls of every program, with arguments that the codec made, with handles and
 * stateids that are alive, whole and damaged, over connections that come and go. Between them an honest client must get
 * its answers, and in the end the server must stop as it should and leave a file system without faults.
 *
 * FURROW_FUZZ_SECONDS says for how long (else a fixed number of calls), FURROW_SEED where to begin. What the sanitizers
 * find ends the server, and so the test.
 */
#include <poll.h>

#include "tests/server/furrowd_run.h"
#include "tests/server/nfs4_client.h"
#include "tests/xdr/random.h"
#include "xdr/nlm4.h"
#include "xdr/sm_inter.h"

/* every type is made, not all are used */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "xdr/mount3_test.h"
#include "xdr/nfs3_test.h"
#include "xdr/nfs4_test.h"
#include "xdr/nlm4_test.h"
#include "xdr/sm_inter_test.h"

#define CALLS 4000u
#define HONEST_EVERY 200u
#define POOL (1u << 20)

static struct run run;
static struct test_random rnd;
static uint8_t value[1u << 16] __attribute__((aligned(16)));
static struct v4 honest, wild;
static struct kept top; /* of NFSv3 and of NFSv4 */
static stateid4 alive;	/* of an open file of wild */
static struct kept alive_file;
static uint64_t calls, answered, closed;

/* ------------------------------------------------------------------------------------------------
 * Making calls
 */

static const struct test_type *type_find(const struct test_type *types, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (!strcmp(types[i].name, name))
			return &types[i];
	return NULL;
}
#define TYPE(table, name) type_find(test_types_##table, sizeof(test_types_##table) / sizeof(struct test_type), name)

/* Random arguments of a type behind what is there. */
static void put_random(struct xdr_out *out, const struct test_type *type)
{
	assert_true(type->size <= sizeof(value));
	rnd.pool.used = 0;
	memset(value, 0, type->size);
	type->random(&rnd, value);
	uint8_t *at = out->p;
	if (!type->encode(out, value))
		out->p = at; /* too long for a call: a short one then */
}

static const struct {
	uint32_t program, version, procedure;
	const char *type; /* of the arguments */
} procedures[] = {
#define P(PROC)                                                                                                        \
	{                                                                                                              \
		NFS_PROGRAM, NFS_V3, NFSPROC3_##PROC, #PROC "3args"                                                    \
	}
	P(GETATTR),
	P(SETATTR),
	P(LOOKUP),
	P(ACCESS),
	P(READLINK),
	P(READ),
	P(WRITE),
	P(CREATE),
	P(MKDIR),
	P(SYMLINK),
	P(MKNOD),
	P(REMOVE),
	P(RMDIR),
	P(RENAME),
	P(LINK),
	P(READDIR),
	P(READDIRPLUS),
	P(FSSTAT),
	P(FSINFO),
	P(PATHCONF),
	P(COMMIT),
#undef P
	{MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_MNT, "dirpath"},
	{MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_DUMP, NULL},
	{MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_UMNT, "dirpath"},
	{MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_EXPORT, NULL},
	{100021, 4, 1, "nlm4_testargs"},
	{100021, 4, 2, "nlm4_lockargs"},
	{100021, 4, 3, "nlm4_cancargs"},
	{100021, 4, 4, "nlm4_unlockargs"},
	{100021, 4, 7, "nlm4_lockargs"},
	{100021, 4, 11, "nlm4_testres"},
	{100021, 4, 15, "nlm4_res"},
	{100021, 4, 20, "nlm4_shareargs"},
	{100021, 4, 21, "nlm4_shareargs"},
	{100021, 4, 23, "nlm4_notify"},
};

static const struct test_type *type_any(const char *name)
{
	const struct test_type *type = TYPE(nfs3, name);

	if (!type)
		type = TYPE(mount3, name);
	if (!type)
		type = TYPE(nlm4, name);
	if (!type)
		fail_msg("there is no type %s", name);
	return type;
}

/* A handle that is alive in place of the random one that the arguments begin with. */
static void handle_alive(struct xdr_out *out, uint8_t *at)
{
	uint32_t len;

	memcpy(&len, at, 4);
	len = ntohl(len);
	if (out->p - at < 4 || len > 128)
		return;
	uint32_t old = 4 + xdr_round(len), new = 4 + xdr_round(top.len), rest = (uint32_t)(out->p - at) - old;
	memmove(at + new, at + old, rest);
	len = htonl(top.len);
	memcpy(at, &len, 4);
	memcpy(at + 4, top.data, top.len);
	out->p = at + new + rest;
}

static void call_make(struct client *c)
{
	size_t i = test_random(&rnd) % (sizeof(procedures) / sizeof(procedures[0]));
	struct xdr_out *out = client_begin(c, procedures[i].program, procedures[i].version, procedures[i].procedure);
	uint8_t *at = out->p;

	if (procedures[i].type)
		put_random(out, type_any(procedures[i].type));
	if (procedures[i].program == NFS_PROGRAM && test_random(&rnd) % 4)
		handle_alive(out, at);
}

/* Operations of NFSv4; where in their arguments a stateid stands, or -1. */
static const struct {
	uint32_t op;
	const char *type;
	int stateid;
} operations[] = {
	{OP_ACCESS, "ACCESS4args", -1},
	{OP_CLOSE, "CLOSE4args", 4},
	{OP_COMMIT, "COMMIT4args", -1},
	{OP_CREATE, "CREATE4args", -1},
	{OP_DELEGRETURN, "DELEGRETURN4args", 0},
	{OP_GETATTR, "GETATTR4args", -1},
	{OP_GETFH, NULL, -1},
	{OP_LINK, "LINK4args", -1},
	{OP_LOCK, "LOCK4args", -1},
	{OP_LOCKT, "LOCKT4args", -1},
	{OP_LOCKU, "LOCKU4args", 8},
	{OP_LOOKUP, "LOOKUP4args", -1},
	{OP_LOOKUPP, NULL, -1},
	{OP_NVERIFY, "NVERIFY4args", -1},
	{OP_OPEN, "OPEN4args", -1},
	{OP_OPEN_DOWNGRADE, "OPEN_DOWNGRADE4args", 0},
	{OP_PUTFH, "PUTFH4args", -1},
	{OP_PUTROOTFH, NULL, -1},
	{OP_READ, "READ4args", 0},
	{OP_READDIR, "READDIR4args", -1},
	{OP_READLINK, NULL, -1},
	{OP_REMOVE, "REMOVE4args", -1},
	{OP_RENAME, "RENAME4args", -1},
	{OP_RESTOREFH, NULL, -1},
	{OP_SAVEFH, NULL, -1},
	{OP_SECINFO, "SECINFO4args", -1},
	{OP_SETATTR, "SETATTR4args", 0},
	{OP_VERIFY, "VERIFY4args", -1},
	{OP_WRITE, "WRITE4args", 0},
	{OP_BACKCHANNEL_CTL, "BACKCHANNEL_CTL4args", -1},
	{OP_BIND_CONN_TO_SESSION, "BIND_CONN_TO_SESSION4args", -1},
	{OP_EXCHANGE_ID, "EXCHANGE_ID4args", -1},
	{OP_CREATE_SESSION, "CREATE_SESSION4args", -1},
	{OP_DESTROY_SESSION, "DESTROY_SESSION4args", -1},
	{OP_FREE_STATEID, "FREE_STATEID4args", 0},
	{OP_SECINFO_NO_NAME, "SECINFO_NO_NAME4args", -1},
	{OP_TEST_STATEID, "TEST_STATEID4args", 4},
	{OP_DESTROY_CLIENTID, "DESTROY_CLIENTID4args", -1},
	{OP_RECLAIM_COMPLETE, "RECLAIM_COMPLETE4args", -1},
	{OP_ALLOCATE, "ALLOCATE4args", 0},
	{OP_COPY, "COPY4args", 0},
	{OP_DEALLOCATE, "DEALLOCATE4args", 0},
	{OP_IO_ADVISE, "IO_ADVISE4args", 0},
	{OP_READ_PLUS, "READ_PLUS4args", 0},
	{OP_SEEK, "SEEK4args", 0},
	{OP_CLONE, "CLONE4args", 0},
	{OP_GETXATTR, "GETXATTR4args", -1},
	{OP_SETXATTR, "SETXATTR4args", -1},
	{OP_LISTXATTRS, "LISTXATTRS4args", -1},
	{OP_REMOVEXATTR, "REMOVEXATTR4args", -1},
};

static void op_make(struct v4 *v)
{
	size_t i = test_random(&rnd) % (sizeof(operations) / sizeof(operations[0]));
	struct xdr_out *out = v4_op(v, operations[i].op);
	uint8_t *at = out->p;
	const struct test_type *type = operations[i].type ? TYPE(nfs4, operations[i].type) : NULL;

	if (operations[i].type && !type)
		fail_msg("there is no type %s", operations[i].type);
	if (type)
		put_random(out, type);
	if (operations[i].stateid >= 0 && test_random(&rnd) % 4 && out->p - at >= operations[i].stateid + 16) {
		uint32_t seqid = test_random(&rnd) % 2 ? 0 : htonl(alive.seqid);
		memcpy(at + operations[i].stateid, &seqid, 4);
		memcpy(at + operations[i].stateid + 4, alive.other, sizeof(alive.other));
	}
}

static void compound_make(struct v4 *v)
{
	unsigned ops = 1 + (unsigned)(test_random(&rnd) % 6);

	if (test_random(&rnd) % 16)
		v4_begin(v);
	else
		v4_bare(v);
	if (test_random(&rnd) % 8) {
		PUTFH4args args = {.object = {.data = alive_file.data, .len = alive_file.len}};
		if (test_random(&rnd) % 2)
			v4_put_root(v, "data");
		else
			v4_add(v, PUTFH, &args);
	}
	while (ops--)
		op_make(v);
}

/* A few bytes, a length, the end. */
static void damage(struct xdr_out *out)
{
	static const uint32_t edges[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffffc, 65536, 4096};
	size_t bytes = (size_t)(out->p - out->base);

	for (unsigned n = 1 + (unsigned)(test_random(&rnd) % 4); n-- && bytes > 44;) {
		/* behind the RPC header, most often: what lies in it is soon refused */
		size_t from = test_random(&rnd) % 8 ? 40 : 0, at = from + test_random(&rnd) % (bytes - from);
		uint32_t edge = htonl(edges[test_random(&rnd) % 8]);

		switch (test_random(&rnd) % 4) {
		case 0:
			out->base[at] = (uint8_t)test_random(&rnd);
			break;
		case 1:
			at &= ~(size_t)3;
			memcpy(out->base + at, &edge, at + 4 <= bytes ? 4 : bytes - at);
			break;
		case 2:
			out->base[at] ^= (uint8_t)(1u << test_random(&rnd) % 8);
			break;
		default:
			if (test_random(&rnd) % 4 == 0)
				bytes = at;
			break;
		}
	}
	out->p = out->base + bytes;
}

/* ------------------------------------------------------------------------------------------------
 * Sending
 */

static bool wild_connect(void)
{
	EXCHANGE_ID4resok res;

	if (!client_connect(&wild.rpc))
		return false;
	/* its session may have been destroyed, or its client id: then there is a new one */
	v4_begin(&wild);
	v4_put_root(&wild, "data");
	if (client_try(&wild.rpc) && wild.rpc.accept_stat == RPC_SUCCESS && v4_head(&wild) == NFS4_OK)
		return true;
	wild.verifier++;
	if (!client_connect(&wild.rpc))
		return false;
	assert_int_equal(v4_exchange_id(&wild, 0, &res), NFS4_OK);
	wild.id = res.eir_clientid;
	assert_int_equal(v4_create_session(&wild, res.eir_sequenceid), NFS4_OK);
	return true;
}

/* A file of wild's that is open, for stateids and handles that are alive. */
static void wild_open(void)
{
	OPEN4args args = {.share_access = OPEN4_SHARE_ACCESS_BOTH | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
		.owner = {.clientid = wild.id, .owner = text("wild")},
		.openhow = {.opentype = OPEN4_CREATE, .how = {.mode = UNCHECKED4}},
		.claim = {.claim = CLAIM_NULL, .file = text("wild")}};
	OPEN4resok res;
	GETFH4resok got;

	v4_reclaim_complete(&wild);
	v4_begin(&wild);
	v4_put_root(&wild, "data");
	v4_add(&wild, OPEN, &args);
	v4_op(&wild, OP_GETFH);
	if (v4_run(&wild, NULL) || wild.status)
		return;
	v4_took_root(&wild);
	v4_result(&wild, OP_OPEN);
	v4_take(&wild, OPEN4resok, &res);
	alive = res.stateid;
	assert_int_equal(v4_result(&wild, OP_GETFH), NFS4_OK);
	v4_take(&wild, GETFH4resok, &got);
	alive_file.len = got.object.len;
	memcpy(alive_file.data, got.object.data, got.object.len);
}

/* Sends what was made. An answer is taken as it comes, if it comes: the server may drop calls and close connections. */
static void wild_send(void)
{
	struct pollfd p = {.fd = wild.rpc.fd, .events = POLLIN};
	uint8_t bytes[65536];

	calls++;
	if (client_send(&wild.rpc) && poll(&p, 1, 300) > 0 && recv(wild.rpc.fd, bytes, sizeof(bytes), 0) > 0) {
		answered++;
		while (recv(wild.rpc.fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
			;
		return;
	}
	closed++;
	if (!wild_connect()) {
		run_log_show(run.log);
		fail_msg("the server is gone after call %llu", (unsigned long long)calls);
	}
}

static void honest_check(void)
{
	v4_begin(&honest);
	v4_put_root(&honest, "data");
	v4_op(&honest, OP_GETFH);
	assert_int_equal(v4_run(&honest, NULL), NFS4_OK);
	assert_int_equal(honest.status, NFS4_OK);
}

static void fuzz(void **state)
{
	const char *seconds = getenv("FURROW_FUZZ_SECONDS"), *seed = getenv("FURROW_SEED");
	uint64_t until = seconds ? now_ns() + strtoull(seconds, NULL, 10) * NSEC_PER_SEC : 0;
	mountstat3 status;

	(void)state;
	rnd.state = seed ? strtoull(seed, NULL, 0) : 20261130;
	rnd.pool = (struct xdr_pool){.base = malloc(POOL), .room = POOL};
	assert_non_null(rnd.pool.base);
	v4_init(&honest, run.port, 0, "honest");
	v4_connect(&honest);
	v4_init(&wild, run.port, 0, "wild");
	v4_connect(&wild);
	assert_true(client_connect(&honest.rpc));
	top = client_mount(&honest.rpc, "/data", &status);
	assert_int_equal(status, MNT3_OK);
	while (seconds ? now_ns() < until : calls < CALLS) {
		if (calls % 100 == 0 || calls < 2)
			wild_open();
		if (test_random(&rnd) % 3)
			compound_make(&wild);
		else
			call_make(&wild.rpc);
		if (test_random(&rnd) % 2)
			damage(&wild.rpc.out);
		wild_send();
		if (calls % HONEST_EVERY == 0)
			honest_check();
	}
	honest_check();
	printf("%llu calls, %llu answered, %llu dropped or closed\n", (unsigned long long)calls,
		(unsigned long long)answered, (unsigned long long)closed);
	/* a test that is refused at the door tests nothing */
	assert_true(answered > calls / 4);
	v4_fini(&honest);
	v4_fini(&wild);
	free(rnd.pool.base);
}

/* What is left is a file system without faults. */
static void checked(void **state)
{
	(void)state;
	run_stop(&run, SIGTERM);
	assert_int_equal(run_tool(&run, "fs check a0/data"), 0);
}

static int setup(void **state)
{
	(void)state;
	run_init(&run, RUN_EXPORT_YAML);
	run_start(&run);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	run_fini(&run);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(fuzz), cmocka_unit_test(checked)};

	return cmocka_run_group_tests(tests, setup, teardown);
}
