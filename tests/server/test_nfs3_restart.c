/*
 * NFSv3 over restarts: what a client holds stays good when the server ends or crashes, and what it sends again, since
 * it got no answer, is not done twice.
 */
#include "tests/server/nfs3_test.h"

/* The last call of C again, on a new connection. */
static void retransmit(struct client *c)
{
	assert_true(client_connect(c));
	client_call(c);
}

static void retransmission(void **state)
{
	REMOVE3res res;
	REMOVE3args args = {.object = {.dir = fh(&top), .name = text("again")}};

	(void)state;
	assert_int_equal(create(&root, &top, "again", GUARDED, NULL, NULL, NULL), NFS3_OK);
	nfs3(&root, REMOVE, &args, &res);
	assert_int_equal(res.status, NFS3_OK);
	retransmit(&root);
	client_result(&root, REMOVE3res, &res);
	assert_int_equal(res.status, NFS3_OK);
	/* another call is no retransmission */
	nfs3(&root, REMOVE, &args, &res);
	assert_int_equal(res.status, NFS3ERR_NOENT);
}

static void clean_restart(void **state)
{
	struct kept f;
	struct fattr3 before, after;
	WRITE3resok ok;

	(void)state;
	assert_int_equal(create(&root, &top, "kept", GUARDED, NULL, &f, NULL), NFS3_OK);
	assert_int_equal(write_file(&root, &f, 0, 300000, 4, UNSTABLE, &ok), NFS3_OK);
	assert_int_equal(commit(&root, &f) == 0, 0);
	assert_int_equal(getattr(&root, &f, &before), NFS3_OK);
	run_stop(&run, SIGTERM);
	run_start(&run);
	reconnect();
	assert_int_equal(getattr(&root, &f, &after), NFS3_OK);
	assert_true(before.fileid == after.fileid && before.size == after.size && before.fsid == after.fsid);
	assert_memory_equal(&before.mtime, &after.mtime, sizeof(before.mtime));
	check_read(&root, &f, 0, 400000, 300000, true, 4);
}

/*
 * A crash after every kind of call that must not be done twice, each by its own client whose reply is lost with the
 * server: the same call again must tell success, and do nothing.
 */
#define TWICE 9

static void crash(void **state)
{
	static const char *const names[TWICE] = {
		"create", "mkdir", "symlink", "mknod", "remove", "rmdir", "rename", "link", "setattr"};
	struct kept d, f, g, k, made[4];
	struct client c[TWICE];
	WRITE3resok ok;
	SYMLINK3res sr;
	uint64_t verifier, v2;
	nfsstat3 status;

	(void)state;
	assert_int_equal(make_dir(&root, &top, "twice", &d), NFS3_OK);
	assert_int_equal(create(&root, &d, "crash", GUARDED, NULL, &f, NULL), NFS3_OK);
	assert_int_equal(write_file(&root, &f, 0, 5000, 8, FILE_SYNC, &ok), NFS3_OK);
	memcpy(&verifier, ok.verf, 8);
	assert_int_equal(create(&root, &d, "excl", EXCLUSIVE, "12345678", &g, NULL), NFS3_OK);
	assert_int_equal(create(&root, &d, "gone", GUARDED, NULL, NULL, NULL), NFS3_OK);
	assert_int_equal(make_dir(&root, &d, "gonedir", NULL), NFS3_OK);
	assert_int_equal(create(&root, &d, "from", GUARDED, NULL, NULL, NULL), NFS3_OK);
	for (unsigned i = 0; i < TWICE; i++) {
		client_init(&c[i], run.port, 0);
		c[i].xid = 77000 + 100 * i;
		assert_true(client_connect(&c[i]));
	}
	assert_int_equal(create(&c[0], &d, "create", GUARDED, NULL, &made[0], NULL), NFS3_OK);
	assert_int_equal(make_dir(&c[1], &d, "mkdir", &made[1]), NFS3_OK);
	assert_int_equal(make_symlink(&c[2], &d, "symlink", "target", 6, &sr), NFS3_OK);
	made[2] = keep(&sr.resok.obj.handle);
	MKNOD3args ma = {.where = {.dir = fh(&d), .name = text("mknod")}, .what = {.type = NF3FIFO}};
	MKNOD3res mr;
	nfs3(&c[3], MKNOD, &ma, &mr);
	assert_int_equal(mr.status, NFS3_OK);
	made[3] = keep(&mr.resok.obj.handle);
	assert_int_equal(remove_name(&c[4], &d, "gone"), NFS3_OK);
	assert_int_equal(remove_dir(&c[5], &d, "gonedir"), NFS3_OK);
	assert_int_equal(rename_name(&c[6], &d, "from", &d, "to"), NFS3_OK);
	LINK3args la = {.file = fh(&f), .link = {.dir = fh(&d), .name = text("hard")}};
	LINK3res lr;
	nfs3(&c[7], LINK, &la, &lr);
	assert_int_equal(lr.status, NFS3_OK);
	struct fattr3 attr;
	assert_int_equal(getattr(&root, &f, &attr), NFS3_OK);
	struct sattr3 set = with_mode(0640);
	assert_int_equal(setattr(&c[8], &f, &set, &attr.ctime), NFS3_OK);
	run_stop(&run, SIGKILL);
	run_start(&run);

	for (unsigned i = 0; i < TWICE; i++) {
		retransmit(&c[i]);
		CREATE3res cr;
		SETATTR3res ar;
		RENAME3res rr;
		switch (i) {
		case 0:
		case 1:
		case 2:
		case 3: /* four results of one form */
			client_result(&c[i], CREATE3res, &cr);
			status = cr.status;
			assert_int_equal(status, NFS3_OK);
			k = keep(&cr.resok.obj.handle);
			assert_true(k.len == made[i].len && !memcmp(k.data, made[i].data, k.len));
			assert_true(
				cr.resok.obj_attributes.attributes_follow && cr.resok.dir_wcc.after.attributes_follow);
			break;
		case 6:
			client_result(&c[i], RENAME3res, &rr);
			status = rr.status;
			break;
		case 7:
			client_result(&c[i], LINK3res, &lr);
			status = lr.status;
			break;
		default: /* the object's attributes around the change, and nothing else */
			client_result(&c[i], SETATTR3res, &ar);
			status = ar.status;
		}
		if (status)
			fail_msg("%s sent again after the crash: %d", names[i], status);
		client_fini(&c[i]);
	}

	reconnect();
	assert_int_equal(create(&root, &d, "create", GUARDED, NULL, NULL, NULL), NFS3ERR_EXIST);
	assert_int_equal(getattr(&root, &f, &attr), NFS3_OK);
	assert_true(attr.nlink == 2 && attr.mode == 0640);
	check_read(&root, &f, 0, 6000, 5000, true, 8);
	assert_int_equal(create(&root, &d, "excl", EXCLUSIVE, "12345678", &k, NULL), NFS3_OK);
	assert_true(!memcmp(k.data, g.data, k.len));
	assert_int_equal(write_file(&root, &f, 0, 5000, 8, UNSTABLE, &ok), NFS3_OK);
	memcpy(&v2, ok.verf, 8);
	assert_true(v2 != verifier);
}

static int setup(void **state)
{
	(void)state;
	return group_start(RUN_EXPORT_YAML);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(retransmission),
		cmocka_unit_test(clean_restart),
		cmocka_unit_test(crash),
	};
	return cmocka_run_group_tests(tests, setup, group_end);
}
