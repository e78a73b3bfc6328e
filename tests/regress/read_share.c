/*
 * READs did not ask for their connection's share of the memory for replies: some clients that asked for much and read
 * nothing held all of it, and calls of everybody else waited until those were closed.
 */
#include "tests/server/nfs3_test.h"

#define SLOW 8u
#define CALLS 120u /* of each, of 1 MiB: far more than there is */
#define FILE_MIB 4u

static struct kept file;

static void read_send(struct client *c, uint32_t n)
{
	READ3args args = {.file = fh(&file), .offset = (uint64_t)(n % FILE_MIB) << 20, .count = 1 << 20};

	assert_true(xdr_encode_READ3args(client_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_READ), &args));
	assert_true(client_send(c));
}

static void others_go_on(void **state)
{
	struct client slow[SLOW];

	(void)state;
	assert_int_equal(create(&root, &top, "f", GUARDED, NULL, &file, NULL), NFS3_OK);
	for (unsigned i = 0; i < FILE_MIB; i++)
		assert_int_equal(write_file(&root, &file, (uint64_t)i << 20, 1 << 20, 1, UNSTABLE, NULL), NFS3_OK);
	commit(&root, &file);
	for (unsigned i = 0; i < SLOW; i++) {
		client_init(&slow[i], run.port, 0);
		assert_true(client_connect(&slow[i]));
		for (unsigned k = 0; k < CALLS; k++)
			read_send(&slow[i], k);
	}
	for (unsigned i = 0; i < 20;
		i++) { /* connections on both reactors, each with an answer within client_connect()'s 20 s */
		assert_true(client_connect(&user));
		check_read(&user, &file, i * 100, 65536, 65536, false, 1);
	}
	/* and they get all of it when they do read */
	for (unsigned i = 0; i < SLOW; i++) {
		for (unsigned k = 0; k < CALLS; k++)
			assert_true(client_receive(&slow[i]));
		client_fini(&slow[i]);
	}
}

static int setup(void **state)
{
	(void)state;
	return group_start(RUN_EXPORT_YAML);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(others_go_on)};

	return cmocka_run_group_tests(tests, setup, group_end);
}
