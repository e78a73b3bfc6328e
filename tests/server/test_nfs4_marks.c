/*
 * Marks of changes that were made before a restart (nfs4_replay.c), as this server and older ones have written them:
 * the same request is told, whatever way it comes; another one is a false retry, where that can be known.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "server/nfs4_session.h"

#define OLDER_RDMA 0x40000000u /* of struct fs_reply's proc: the checksum is without what chunks brought */
#define SLOT 5u
#define SAME 0x1234567890abcdefull
#define OTHER 0xfedcba0987654321ull

static struct fs_reply mark;

/* Linked in its place: the one mark that the file system has. */
void __wrap_fs_replies_foreach(struct fs *fs, void (*fn)(void *arg, const struct fs_reply *reply), void *arg);
void __wrap_fs_replies_foreach(struct fs *fs, void (*fn)(void *arg, const struct fs_reply *reply), void *arg)
{
	(void)fs;
	fn(arg, &mark);
}

enum way { TCP, RDMA, RDMA_CHUNK };

static nfsstat4 retry(enum way way, uint64_t checksum, uint32_t uid, uint32_t slot)
{
	struct rpc_request req = {.rdma = way != TCP, .cred = {.uid = uid}};
	struct nfs4_compound c = {.req = &req};
	SEQUENCE4args args = {.sa_sequenceid = 7, .sa_slotid = slot};

	req.in.reduced_pos = way == RDMA_CHUNK ? 300 : UINT32_MAX;
	nfs4_mark_begin(&c, &args, checksum);
	nfsstat4 status = nfs4_replay_begin(&c);
	assert_int_equal(c.replay, !status);
	return status;
}

/* Makes the mark of a REMOVE, and has the server know it. */
static void mark_make(uint32_t older)
{
	struct rpc_request req = {.cred = {.uid = 0}};
	struct nfs4_compound c = {.req = &req, .op_index = 2, .opnum = OP_REMOVE};
	SEQUENCE4args args = {.sa_sequenceid = 7, .sa_slotid = SLOT};
	struct export export = {.path = NULL};
	struct exports exports = {.count = 1, .export = &export};

	nfs4_mark_begin(&c, &args, SAME);
	nfs4_mark(&c);
	assert_ptr_equal(c.op.reply, &c.mark);
	assert_false(c.mark.proc & OLDER_RDMA);
	mark = c.mark;
	mark.proc |= older;
	assert_int_equal(nfs4_replay_start(&exports), 0);
}

/* Of this server, and what older ones wrote for TCP. */
static void of_any_transport(void **state)
{
	(void)state;
	mark_make(0);
	for (enum way way = TCP; way <= RDMA_CHUNK; way++) {
		assert_int_equal(retry(way, SAME, 0, SLOT), NFS4_OK);
		assert_int_equal(retry(way, OTHER, 0, SLOT), NFS4ERR_SEQ_FALSE_RETRY);
		assert_int_equal(retry(way, SAME, 77, SLOT), NFS4ERR_SEQ_FALSE_RETRY);
		assert_int_equal(retry(way, SAME, 0, SLOT + 1), NFS4ERR_BADSESSION);
	}
	nfs4_replay_stop();
}

/* Of an older server for RDMA: a request that has come with chunks has another checksum now, and must be told all the
 * same. */
static void of_older_rdma(void **state)
{
	(void)state;
	mark_make(OLDER_RDMA);
	for (enum way way = TCP; way <= RDMA_CHUNK; way++) {
		assert_int_equal(retry(way, SAME, 0, SLOT), NFS4_OK);
		assert_int_equal(retry(way, SAME, 0, SLOT + 1), NFS4ERR_BADSESSION);
	}
	assert_int_equal(retry(TCP, OTHER, 0, SLOT), NFS4_OK);
	assert_int_equal(retry(RDMA_CHUNK, OTHER, 0, SLOT), NFS4_OK);
	assert_int_equal(retry(RDMA, OTHER, 0, SLOT), NFS4ERR_SEQ_FALSE_RETRY);
	assert_int_equal(retry(RDMA, SAME, 77, SLOT), NFS4ERR_SEQ_FALSE_RETRY);
	nfs4_replay_stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_any_transport),
		cmocka_unit_test(of_older_rdma),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
