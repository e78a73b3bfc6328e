/*
 * A delegation was to be recalled while its client could not be reached. The server tried again at ever longer
 * intervals, up to 25 s, so that a client that was back had no time left to answer in before it was revoked, and lost
 * what it had locked under it.
 */
#include <poll.h>

#include "tests/server/nfs4_test.h"

static nfsstat4 write_to(struct v4 *v, const char *name)
{
	begin(v, name);
	put_write(v, 0, "x", 1);
	return v4_send(v);
}

static void reconnects(void **state)
{
	BIND_CONN_TO_SESSION4args bind = {.bctsa_dir = CDFC4_BACK_OR_BOTH};
	struct v4 a, b;

	(void)state;
	join(&b, "writer", 1);
	make_file(&b, "file");
	join_delegated(&a, "holder", "file", OPEN4_SHARE_ACCESS_READ);
	/* the new connection is not the backchannel's; and the server has seen the end of the old one */
	assert_true(client_connect(&a.rpc));
	SEQUENCE4resok sequence = {.sr_status_flags = 0};
	while (!(sequence.sr_status_flags & SEQ4_STATUS_CB_PATH_DOWN)) {
		run_pause();
		v4_begin(&a);
		assert_int_equal(v4_run(&a, &sequence), NFS4_OK);
	}

	/* long enough for the intervals to have grown */
	uint64_t until = now_ns() + 3400 * NSEC_PER_MSEC;
	while (now_ns() < until) {
		assert_int_equal(write_to(&b, "file"), NFS4ERR_DELAY);
		run_pause();
	}
	memcpy(bind.bctsa_sessid, a.session, sizeof(a.session));
	v4_bare(&a);
	v4_add(&a, BIND_CONN_TO_SESSION, &bind);
	expect(&a, NFS4_OK);
	struct pollfd called = {.fd = a.rpc.fd, .events = POLLIN};
	assert_int_equal(poll(&called, 1, 2500), 1);
	v4_fini(&a);
	v4_fini(&b);
}

static int setup(void **state)
{
	(void)state;
	return group_start(RUN_EXPORT_YAML);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(reconnects)};

	return cmocka_run_group_tests(tests, setup, group_stop);
}
