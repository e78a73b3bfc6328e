/*
 * NFSv4: exports that lie in other exports, several names deep: LOOKUP, LOOKUPP and READDIR cross into them by what the
 * file system has on the way and by what it has not; COPY and CLONE from one export of a file system to another.
 */
#include "tests/server/nfs4_test.h"

static const char exports[] = RUN_EXPORT_YAML
	"  - path: /data/far/away/third\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.1, access: rw, "
	"squash: none}\n"
	"  - path: /data/far/hidden\n    filesystem: a0/data\n    allow:\n      - {clients: 192.0.2.1, access: rw}\n"
	"  - path: /plain\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.1, access: rw, squash: "
	"none}\n"
	"  - path: /nobody\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.1, access: rw, squash: all, "
	"anonuid: 4711}\n"
	"  - path: /ro\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.1, access: ro, squash: none}\n";

/* Begins a compound that has come to EXPORT/NAME. */
static void begin_in(struct v4 *v, const char *export, const char *name)
{
	v4_begin(v);
	v4_put_root(v, export);
	if (name)
		lookup(v, name);
}

static uint64_t number(struct v4 *v, const char *path)
{
	begin(v, path);
	return getattr64(v, FATTR4_FILEID);
}

static uint64_t number_above(struct v4 *v, const char *path)
{
	begin(v, path);
	v4_op(v, OP_LOOKUPP);
	return getattr64(v, FATTR4_FILEID);
}

static void nested(void **state)
{
	struct v4 v;
	(void)state;
	join(&v, "nested", 1);

	/* nothing on the way is there: directories that only lead to it */
	uint64_t far = number(&v, "far"), away = number(&v, "far/away");
	assert_true(far >> 63 && away >> 63 && far != away);
	assert_int_equal(number(&v, "far/away/third"), FS_ROOT_INO);
	assert_int_equal(number_above(&v, "far/away/third"), away);
	assert_int_equal(number_above(&v, "far/away"), far);
	assert_int_equal(number_above(&v, "far"), FS_ROOT_INO);
	begin(&v, "far");
	create(&v, NF4DIR, "x");
	expect(&v, NFS4ERR_ROFS);
	static const char *const missing[] = {"fa", "far/hidden", "far/third", "far/away/thir", "away", "third"};
	for (unsigned i = 0; i < sizeof(missing) / sizeof(missing[0]); i++) {
		begin(&v, missing[i]);
		expect(&v, NFS4ERR_NOENT);
	}

	/* then the first of them is */
	make_dir(&v, "far");
	uint64_t real_far = number(&v, "far");
	assert_false(real_far >> 63);
	assert_int_equal(number(&v, "far/away"), away);
	assert_int_equal(number_above(&v, "far/away"), real_far);
	assert_int_equal(number(&v, "far/away/third"), FS_ROOT_INO);
	begin(&v, "far/hidden");
	expect(&v, NFS4ERR_NOENT);

	/* and the second: now the export lies in a real directory */
	begin(&v, "far");
	create(&v, NF4DIR, "away");
	expect(&v, NFS4_OK);
	uint64_t real_away = number(&v, "far/away");
	assert_false(real_away >> 63);
	assert_int_equal(number(&v, "far/away/third"), FS_ROOT_INO);
	assert_int_equal(number_above(&v, "far/away/third"), real_away);
	/* not in another one of that name */
	make_dir(&v, "away");
	begin(&v, "away/third");
	expect(&v, NFS4ERR_NOENT);
	/* nor by a way into the same file system that is another export's */
	begin_in(&v, "plain", "far");
	lookup(&v, "away");
	lookup(&v, "third");
	expect(&v, NFS4ERR_NOENT);

	begin(&v, "far/away");
	open_create(&v, "third");
	expect(&v, NFS4ERR_ISDIR);
	/* what the file system has there is covered, and safe from being made or removed */
	begin_in(&v, "plain", "far");
	lookup(&v, "away");
	create(&v, NF4DIR, "third");
	expect(&v, NFS4_OK);
	assert_int_equal(number(&v, "far/away/third"), FS_ROOT_INO);
	begin(&v, "far/away");
	put_remove(&v, "third");
	expect(&v, NFS4ERR_XDEV);
	begin(&v, "far/away");
	open_create(&v, "third");
	assert_int_not_equal(v4_send(&v), NFS4_OK);

	/* READDIR has the export's root, and what the file system has under the name elsewhere */
	uint64_t number_there[2];
	for (unsigned i = 0; i < 2; i++) {
		READDIR4args args = {.dircount = 4096, .maxcount = 4096};
		uint32_t mask = 1u << FATTR4_FILEID;
		args.attr_request.count = 1;
		args.attr_request.item = &mask;
		if (i)
			begin_in(&v, "plain", "far");
		else
			begin(&v, "far");
		lookup(&v, "away");
		v4_add(&v, READDIR, &args);
		expect(&v, NFS4_OK);
		at_end(&v, 8 + 8); /* the one entry's number, and the list's end */
		assert_true(xdr_get_u64(&v.rpc.in, &number_there[i]));
	}
	assert_int_equal(number_there[0], FS_ROOT_INO);
	assert_int_not_equal(number_there[1], FS_ROOT_INO);
	begin_in(&v, "plain", "far");
	lookup(&v, "away");
	put_remove(&v, "third");
	expect(&v, NFS4_OK);
	begin(&v, "far");
	put_remove(&v, "away");
	expect(&v, NFS4_OK);
	assert_int_equal(number(&v, "far/away"), away);
	remove_it(&v, "far");
	remove_it(&v, "away");
	assert_int_equal(number(&v, "far/away/third"), FS_ROOT_INO);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * From one export to another of the same file system
 */

static nfsstat4 copy_between(
	struct v4 *v, uint32_t op, const char *from_export, const char *from, const char *to_export, const char *to)
{
	begin_in(v, from_export, from);
	v4_op(v, OP_SAVEFH);
	v4_put_root(v, to_export);
	lookup(v, to);
	struct xdr_out *o = v4_op(v, op);
	xdr_encode_stateid4(o, &anonymous);
	xdr_encode_stateid4(o, &anonymous);
	xdr_put_u64(o, 0);
	xdr_put_u64(o, 0);
	xdr_put_u64(o, 4096);
	if (op == OP_COPY) {
		xdr_put_u32(o, 1);
		xdr_put_u32(o, 1);
		xdr_put_u32(o, 0);
	}
	return v4_send(v);
}

static void copies(void **state)
{
	static const uint32_t ops[] = {OP_COPY, OP_CLONE};
	static uint8_t block[4096];
	struct v4 v;
	(void)state;
	join(&v, "copies", 2);
	make_file(&v, "from");
	make_file(&v, "to");
	memset(block, 'c', sizeof(block));
	begin(&v, "from");
	put_write(&v, 0, block, sizeof(block));
	expect(&v, NFS4_OK);
	const uint8_t open_all[4] = {0, 0, 0666 >> 8, 0666 & 0xff}, owner_only[4] = {0, 0, 0600 >> 8, 0600 & 0xff};

	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(copy_between(&v, ops[i], "data", "from", "plain", "to"), NFS4_OK);
		begin(&v, "to");
		assert_int_equal(getattr64(&v, FATTR4_SIZE), 4096);
		/* out of an export for reading, not into one */
		assert_int_equal(copy_between(&v, ops[i], "ro", "from", "data", "to"), NFS4_OK);
		assert_int_equal(copy_between(&v, ops[i], "data", "from", "ro", "to"), NFS4ERR_ROFS);
		/* each file by whom the caller is in its export: root here, and nobody there */
		assert_int_equal(setattr(&v, "from", FATTR4_MODE, owner_only, 4), NFS4_OK);
		assert_int_equal(setattr(&v, "to", FATTR4_MODE, open_all, 4), NFS4_OK);
		assert_int_equal(copy_between(&v, ops[i], "nobody", "from", "data", "to"), NFS4ERR_ACCESS);
		assert_int_equal(copy_between(&v, ops[i], "data", "from", "nobody", "to"), NFS4_OK);
		assert_int_equal(setattr(&v, "from", FATTR4_MODE, open_all, 4), NFS4_OK);
		assert_int_equal(setattr(&v, "to", FATTR4_MODE, owner_only, 4), NFS4_OK);
		assert_int_equal(copy_between(&v, ops[i], "nobody", "from", "data", "to"), NFS4_OK);
		assert_int_equal(copy_between(&v, ops[i], "data", "from", "nobody", "to"), NFS4ERR_ACCESS);
	}
	remove_it(&v, "from");
	remove_it(&v, "to");
	v4_end(&v);
}

static int setup(void **state)
{
	(void)state;
	return group_start(exports);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nested),
		cmocka_unit_test(copies),
	};
	return cmocka_run_group_tests(tests, setup, group_stop);
}
