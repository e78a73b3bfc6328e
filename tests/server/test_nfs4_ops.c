/*
 * NFSv4.1 and 4.2, operation by operation: what each answers when something is wrong, and when all is well; the pseudo
 * file system. Sessions, states, and what is sent again have tests of their own (test_nfs4_session.c, test_nfs4.c,
 * test_nfs4_replay.c).
 *
 * Most compounds here are a way to a file and one operation, so their status is that operation's.
 */
#include "server/handle_format.h"
#include "tests/server/nfs4_test.h"

static const char exports[] = RUN_EXPORT_YAML
	"  - path: /srv/deep/two\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.1, access: ro, "
	"squash: "
	"none}\n"
	"  - path: /srv/hidden\n    filesystem: a0/data\n    allow:\n      - {clients: 192.0.2.1, access: rw}\n"
	"  - path: /data/inner\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.1, access: rw, squash: "
	"none}\n";

/* ------------------------------------------------------------------------------------------------
 * The engine
 */

static void engine(void **state)
{
	struct v4 v;
	(void)state;
	join(&v, "engine", 1);

	static const uint32_t versions[] = {0, 3, 77};
	for (unsigned i = 0; i < 3; i++) {
		v.minor = versions[i];
		v4_bare(&v);
		v4_op(&v, OP_PUTROOTFH);
		expect(&v, NFS4ERR_MINOR_VERS_MISMATCH);
		assert_int_equal(xdr_in_left(&v.rpc.in), 0); /* and no results */
	}
	v.minor = 1;
	v4_bare(&v);
	expect(&v, NFS4_OK); /* nothing to do is done */
	v4_bare(&v);
	v4_op(&v, OP_PUTROOTFH);
	expect(&v, NFS4ERR_OP_NOT_IN_SESSION);
	v4_begin(&v);
	v4_sequence(&v, 7);
	expect(&v, NFS4ERR_SEQUENCE_POS);

	/* what is no operation at all, and what is none of this minor version */
	static const uint32_t illegal[] = {0, 2, 59, OP_SEEK, OP_REMOVEXATTR, 76, 4711, OP_ILLEGAL, UINT32_MAX};
	for (unsigned i = 0; i < sizeof(illegal) / sizeof(illegal[0]); i++) {
		v4_begin(&v);
		v4_op(&v, illegal[i]);
		expect(&v, NFS4ERR_OP_ILLEGAL);
		at_end(&v, 8);
		assert_int_equal(v4_result(&v, OP_ILLEGAL), NFS4ERR_OP_ILLEGAL);
	}
	static const uint32_t unserved[] = {OP_OPENATTR, OP_LAYOUTGET, OP_GETDEVICEINFO, OP_SETCLIENTID, OP_RENEW,
		OP_OPEN_CONFIRM, OP_RELEASE_LOCKOWNER, OP_SET_SSV, OP_WANT_DELEGATION, OP_GET_DIR_DELEGATION};
	for (unsigned i = 0; i < sizeof(unserved) / sizeof(unserved[0]); i++) {
		begin(&v, "");
		v4_op(&v, unserved[i]);
		expect(&v, NFS4ERR_NOTSUPP);
	}
	/* operations that have arguments, without them; and those that need a filehandle, without one */
	for (uint32_t op = OP_ACCESS; op <= OP_RECLAIM_COMPLETE; op++) {
		static const uint32_t free_ones[] = {OP_PUTFH, OP_PUTPUBFH, OP_PUTROOTFH, OP_RESTOREFH, OP_EXCHANGE_ID,
			OP_CREATE_SESSION, OP_DESTROY_SESSION, OP_DESTROY_CLIENTID, OP_BIND_CONN_TO_SESSION,
			OP_BACKCHANNEL_CTL, OP_SEQUENCE, OP_TEST_STATEID, OP_FREE_STATEID, OP_RECLAIM_COMPLETE};
		static const uint32_t bare_ones[] = {OP_GETFH, OP_LOOKUPP, OP_SAVEFH, OP_RESTOREFH, OP_PUTROOTFH,
			OP_PUTPUBFH, OP_READLINK, OP_SEQUENCE, OP_BIND_CONN_TO_SESSION, OP_LINK, OP_RENAME};
		bool unserved_one = op == OP_DELEGPURGE || op == OP_GETDEVICELIST || op == OP_LAYOUTCOMMIT ||
				    op == OP_LAYOUTRETURN || op == OP_SETCLIENTID_CONFIRM,
		     without_fh = false, without_args = false;
		for (unsigned i = 0; i < sizeof(unserved) / sizeof(unserved[0]); i++)
			unserved_one = unserved_one || unserved[i] == op;
		for (unsigned i = 0; i < sizeof(free_ones) / sizeof(free_ones[0]); i++)
			without_fh = without_fh || free_ones[i] == op;
		for (unsigned i = 0; i < sizeof(bare_ones) / sizeof(bare_ones[0]); i++)
			without_args = without_args || bare_ones[i] == op;
		if (unserved_one)
			continue;
		if (!without_fh) {
			v4_begin(&v);
			v4_op(&v, op);
			expect(&v, NFS4ERR_NOFILEHANDLE);
		}
		if (!without_args) {
			begin(&v, "");
			v4_op(&v, op);
			assert_int_equal(v4_send(&v), NFS4ERR_BADXDR);
		}
	}
	/* alone or not at all */
	v4_bare(&v);
	DESTROY_CLIENTID4args nobody = {.dca_clientid = 1};
	v4_add(&v, DESTROY_CLIENTID, &nobody);
	v4_op(&v, OP_PUTROOTFH);
	expect(&v, NFS4ERR_NOT_ONLY_OP);
	BIND_CONN_TO_SESSION4args bind = {.bctsa_dir = CDFC4_FORE};
	v4_begin(&v);
	v4_add(&v, BIND_CONN_TO_SESSION, &bind);
	expect(&v, NFS4ERR_NOT_ONLY_OP);
	/* more than the session allows: the slot's number is not used up */
	v4_begin(&v);
	for (unsigned i = 0; i < 20; i++)
		v4_op(&v, OP_PUTROOTFH);
	expect(&v, NFS4ERR_TOO_MANY_OPS);
	v.sequence[v.slot]--;
	begin(&v, "");
	expect(&v, NFS4_OK);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * The pseudo file system
 */

static void pseudo(void **state)
{
	struct v4 v;
	(void)state;
	join(&v, "pseudo", 1);

	begin(&v, NULL);
	uint64_t root = getattr64(&v, FATTR4_FILEID);
	begin(&v, NULL);
	v4_op(&v, OP_LOOKUPP);
	expect(&v, NFS4ERR_NOENT);
	static const char *const missing[] = {"nothing", "srv2", "dat", "data2"};
	for (unsigned i = 0; i < 4; i++) {
		begin(&v, NULL);
		lookup(&v, missing[i]);
		expect(&v, NFS4ERR_NOENT);
	}
	/* what only another client may use is not there */
	begin(&v, NULL);
	lookup(&v, "srv");
	lookup(&v, "hidden");
	expect(&v, NFS4ERR_NOENT);
	/* down to an export, and up again */
	begin(&v, NULL);
	lookup(&v, "srv");
	lookup(&v, "deep");
	uint64_t deep = getattr64(&v, FATTR4_FILEID);
	begin(&v, NULL);
	lookup(&v, "srv");
	lookup(&v, "deep");
	lookup(&v, "two");
	assert_int_equal(getattr64(&v, FATTR4_FILEID), FS_ROOT_INO);
	begin(&v, NULL);
	lookup(&v, "srv");
	lookup(&v, "deep");
	lookup(&v, "two");
	uint64_t under = getattr64(&v, FATTR4_MOUNTED_ON_FILEID);
	assert_true(under != FS_ROOT_INO && under != deep);
	begin(&v, NULL);
	lookup(&v, "srv");
	lookup(&v, "deep");
	lookup(&v, "two");
	v4_op(&v, OP_LOOKUPP);
	assert_int_equal(getattr64(&v, FATTR4_FILEID), deep);
	begin(&v, "");
	v4_op(&v, OP_LOOKUPP);
	assert_int_equal(getattr64(&v, FATTR4_FILEID), root);
	/* an export in another's root */
	begin(&v, "inner");
	v4_op(&v, OP_LOOKUPP);
	assert_int_equal(getattr64(&v, FATTR4_FILEID), FS_ROOT_INO);
	begin(&v, "");
	put_remove(&v, "inner");
	expect(&v, NFS4ERR_XDEV);
	begin(&v, "");
	create(&v, NF4DIR, "inner");
	expect(&v, NFS4ERR_EXIST);
	/* read-only: the directories themselves, and an export that is */
	begin(&v, NULL);
	create(&v, NF4DIR, "x");
	expect(&v, NFS4ERR_ROFS);
	begin(&v, NULL);
	lookup(&v, "srv");
	lookup(&v, "deep");
	lookup(&v, "two");
	create(&v, NF4DIR, "x");
	expect(&v, NFS4ERR_ROFS);
	begin(&v, NULL);
	open_create(&v, "x");
	assert_int_not_equal(v4_send(&v), NFS4_OK);
	begin(&v, NULL);
	open_create(&v, "data");
	assert_int_not_equal(v4_send(&v), NFS4_OK);
	begin(&v, NULL);
	put_write(&v, 0, "x", 1);
	expect(&v, NFS4ERR_ISDIR);

	/* a handle that nobody gave out, one that is cut off, one with a byte changed */
	struct xdr_opaque handle = {.len = 0};
	begin(&v, "");
	v4_op(&v, OP_GETFH);
	expect(&v, NFS4_OK);
	at_end(&v, 4 + HANDLE_BYTES);
	assert_true(xdr_get_opaque(&v.rpc.in, 128, &handle));
	uint8_t bytes[HANDLE_BYTES];
	memcpy(bytes, handle.data, sizeof(bytes));
	PUTFH4args put = {.object = {.data = bytes, .len = sizeof(bytes)}};
	for (unsigned i = 0; i < sizeof(bytes); i++) {
		bytes[i] ^= 1;
		v4_begin(&v);
		v4_add(&v, PUTFH, &put);
		nfsstat4 got = v4_send(&v);
		assert_true(got == NFS4ERR_BADHANDLE || got == NFS4ERR_STALE);
		bytes[i] ^= 1;
	}
	for (uint32_t len = 0; len < sizeof(bytes); len++) {
		put.object.len = len;
		v4_begin(&v);
		v4_add(&v, PUTFH, &put);
		expect(&v, NFS4ERR_BADHANDLE);
	}
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * Names
 */

static void names(void **state)
{
	struct v4 v;
	char longer[300];
	(void)state;
	join(&v, "names", 1);
	make_file(&v, "file");
	make_dir(&v, "dir");
	begin(&v, "");
	create(&v, NF4LNK, "link");
	expect(&v, NFS4_OK);

	memset(longer, 'n', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = 0;
	const struct {
		const char *name;
		nfsstat4 status;
	} bad[] = {{"", NFS4ERR_INVAL}, {".", NFS4ERR_BADNAME}, {"..", NFS4ERR_BADNAME}, {"a/b", NFS4ERR_BADCHAR},
		{longer, NFS4ERR_NAMETOOLONG}};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		begin(&v, "");
		lookup(&v, bad[i].name);
		expect(&v, bad[i].status);
		begin(&v, "");
		create(&v, NF4DIR, bad[i].name);
		expect(&v, bad[i].status);
		begin(&v, "");
		put_remove(&v, bad[i].name);
		expect(&v, bad[i].status);
		RENAME4args to = {.oldname = text("file"), .newname = text(bad[i].name)};
		begin(&v, "");
		v4_op(&v, OP_SAVEFH);
		v4_add(&v, RENAME, &to);
		expect(&v, bad[i].status);
		LINK4args link = {.newname = text(bad[i].name)};
		begin(&v, "file");
		v4_op(&v, OP_SAVEFH);
		v4_put_root(&v, "data");
		v4_add(&v, LINK, &link);
		expect(&v, bad[i].status);
		SECINFO4args sec = {.name = text(bad[i].name)};
		begin(&v, "");
		v4_add(&v, SECINFO, &sec);
		expect(&v, bad[i].status);
	}
	begin(&v, "file");
	lookup(&v, "x");
	expect(&v, NFS4ERR_NOTDIR);
	begin(&v, "link");
	lookup(&v, "x");
	expect(&v, NFS4ERR_SYMLINK);
	begin(&v, "file");
	v4_op(&v, OP_LOOKUPP);
	expect(&v, NFS4ERR_NOTDIR);
	begin(&v, "file");
	create(&v, NF4DIR, "x");
	expect(&v, NFS4ERR_NOTDIR);
	begin(&v, "");
	create(&v, NF4REG, "x");
	expect(&v, NFS4ERR_BADTYPE);
	begin(&v, "");
	create(&v, NF4NAMEDATTR, "x");
	expect(&v, NFS4ERR_BADTYPE);
	begin(&v, "");
	create(&v, NF4DIR, "file");
	expect(&v, NFS4ERR_EXIST);
	begin(&v, "");
	put_remove(&v, "nothing");
	expect(&v, NFS4ERR_NOENT);
	begin(&v, "dir");
	create(&v, NF4DIR, "sub");
	expect(&v, NFS4_OK);
	begin(&v, "");
	put_remove(&v, "dir");
	expect(&v, NFS4ERR_NOTEMPTY);

	/* LINK */
	LINK4args link = {.newname = text("hard")};
	begin(&v, "file");
	v4_op(&v, OP_SAVEFH);
	v4_put_root(&v, "data");
	v4_add(&v, LINK, &link);
	expect(&v, NFS4_OK);
	begin(&v, "file");
	v4_op(&v, OP_SAVEFH);
	v4_put_root(&v, "data");
	v4_add(&v, LINK, &link);
	expect(&v, NFS4ERR_EXIST);
	begin(&v, "dir");
	v4_op(&v, OP_SAVEFH);
	v4_put_root(&v, "data");
	link.newname = text("hard2");
	v4_add(&v, LINK, &link);
	expect(&v, NFS4ERR_ISDIR);
	begin(&v, "file");
	v4_op(&v, OP_SAVEFH);
	v4_add(&v, LINK, &link);
	expect(&v, NFS4ERR_NOTDIR);
	begin(&v, "file");
	v4_op(&v, OP_SAVEFH);
	v4_put_root(&v, "data");
	lookup(&v, "inner");
	v4_add(&v, LINK, &link);
	expect(&v, NFS4ERR_XDEV);
	begin(&v, "");
	v4_add(&v, LINK, &link);
	expect(&v, NFS4ERR_NOFILEHANDLE);

	/* RENAME: a directory over a file, a file over a directory, into itself */
	RENAME4args rename = {.oldname = text("dir"), .newname = text("file")};
	begin(&v, "");
	v4_op(&v, OP_SAVEFH);
	v4_add(&v, RENAME, &rename);
	expect(&v, NFS4ERR_EXIST);
	rename = (RENAME4args){.oldname = text("file"), .newname = text("dir")};
	begin(&v, "");
	v4_op(&v, OP_SAVEFH);
	v4_add(&v, RENAME, &rename);
	expect(&v, NFS4ERR_EXIST);
	rename = (RENAME4args){.oldname = text("dir"), .newname = text("in")};
	begin(&v, "");
	v4_op(&v, OP_SAVEFH);
	lookup(&v, "dir");
	v4_add(&v, RENAME, &rename);
	expect(&v, NFS4ERR_INVAL);
	rename = (RENAME4args){.oldname = text("nothing"), .newname = text("x")};
	begin(&v, "");
	v4_op(&v, OP_SAVEFH);
	v4_add(&v, RENAME, &rename);
	expect(&v, NFS4ERR_NOENT);
	begin(&v, "file");
	v4_op(&v, OP_SAVEFH);
	v4_put_root(&v, "data");
	v4_add(&v, RENAME, &rename);
	expect(&v, NFS4ERR_NOTDIR);
	begin(&v, "");
	v4_op(&v, OP_RESTOREFH);
	expect(&v, NFS4ERR_NOFILEHANDLE);

	/* READLINK of what is no link; SECINFO takes the filehandle with it */
	begin(&v, "file");
	v4_op(&v, OP_READLINK);
	expect(&v, NFS4ERR_WRONG_TYPE);
	begin(&v, "link");
	v4_op(&v, OP_READLINK);
	expect(&v, NFS4_OK);
	at_end(&v, 12);
	struct xdr_opaque target;
	assert_true(xdr_get_opaque(&v.rpc.in, 100, &target) && target.len == 6);
	assert_memory_equal(target.data, "target", 6);
	SECINFO4args sec = {.name = text("file")};
	begin(&v, "");
	v4_add(&v, SECINFO, &sec);
	v4_op(&v, OP_GETFH);
	expect(&v, NFS4ERR_NOFILEHANDLE);
	begin(&v, "dir");
	put_remove(&v, "sub");
	expect(&v, NFS4_OK);
	remove_it(&v, "dir");
	remove_it(&v, "file");
	remove_it(&v, "hard");
	remove_it(&v, "link");
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * Attributes
 */

static void attributes(void **state)
{
	struct v4 v;
	uint32_t word;
	uint64_t hyper;
	(void)state;
	join(&v, "attributes", 1);
	make_file(&v, "file");
	make_dir(&v, "dir");

	word = htonl(0640);
	assert_int_equal(setattr(&v, "file", FATTR4_MODE, &word, 4), NFS4_OK);
	at_end(&v, 12); /* which were set: two words, the mode alone */
	uint32_t count = 0, first = 1, second = 0;
	assert_true(
		xdr_get_u32(&v.rpc.in, &count) && xdr_get_u32(&v.rpc.in, &first) && xdr_get_u32(&v.rpc.in, &second));
	assert_int_equal(count, 2);
	assert_int_equal(first, 0);
	assert_int_equal(second, 1u << (FATTR4_MODE - 32));
	word = htonl(0200000);
	assert_int_equal(setattr(&v, "file", FATTR4_MODE, &word, 4), NFS4ERR_INVAL);
	assert_int_equal(setattr(&v, "file", FATTR4_MODE, &word, 0), NFS4ERR_BADXDR);
	hyper = 0;
	assert_int_equal(setattr(&v, "file", FATTR4_MODE, &hyper, 8), NFS4ERR_BADXDR);
	assert_int_equal(setattr(&v, "file", FATTR4_CHANGE, &hyper, 8), NFS4ERR_INVAL);
	assert_int_equal(setattr(&v, "file", FATTR4_ACL, &hyper, 4), NFS4ERR_ATTRNOTSUPP);
	assert_int_equal(setattr(&v, "file", FATTR4_MODE_UMASK, &hyper, 8), NFS4ERR_ATTRNOTSUPP); /* is of 4.2 */
	assert_int_equal(setattr(&v, "dir", FATTR4_SIZE, &hyper, 8), NFS4ERR_ISDIR);
	assert_int_equal(setattr(&v, "file", FATTR4_SIZE, &hyper, 8), NFS4_OK);
	hyper = UINT64_MAX;
	assert_int_equal(setattr(&v, "file", FATTR4_SIZE, &hyper, 8), NFS4ERR_FBIG);
	assert_int_equal(setattr(&v, "file", FATTR4_OWNER, "\0\0\0\4nobo", 8), NFS4ERR_BADOWNER);
	assert_int_equal(setattr(&v, "file", FATTR4_OWNER, "\0\0\0\0", 4), NFS4ERR_BADOWNER);
	assert_int_equal(setattr(&v, "file", FATTR4_OWNER, "\0\0\0\0124294967296\0\0", 16), NFS4ERR_BADOWNER);
	assert_int_equal(setattr(&v, "file", FATTR4_OWNER, "\0\0\0\0124294967294\0\0", 16), NFS4_OK);
	assert_int_equal(setattr(&v, NULL, FATTR4_MODE, &word, 4), NFS4ERR_ROFS);
	uint8_t when[16] = {0, 0, 0, 1, [12] = 0x7f};
	assert_int_equal(setattr(&v, "file", FATTR4_TIME_MODIFY_SET, when, 16), NFS4ERR_INVAL);
	when[12] = 0;
	when[3] = 2;
	assert_int_equal(setattr(&v, "file", FATTR4_TIME_MODIFY_SET, when, 16), NFS4ERR_BADXDR);
	when[3] = 1;
	assert_int_equal(setattr(&v, "file", FATTR4_TIME_MODIFY_SET, when, 16), NFS4_OK);

	/* asking for what can only be set */
	begin(&v, "file");
	put_getattr(&v, FATTR4_TIME_MODIFY_SET);
	expect(&v, NFS4ERR_INVAL);
	/* what nobody knows is left out */
	begin(&v, "file");
	put_getattr(&v, 95);
	expect(&v, NFS4_OK);

	/* VERIFY and NVERIFY */
	static const struct {
		uint32_t op;
		nfsstat4 same, other;
	} compare[] = {{OP_VERIFY, NFS4_OK, NFS4ERR_NOT_SAME}, {OP_NVERIFY, NFS4ERR_SAME, NFS4_OK}};
	for (unsigned i = 0; i < 2; i++) {
		word = htonl(NF4REG);
		begin(&v, "file");
		put_fattr(v4_op(&v, compare[i].op), FATTR4_TYPE, &word, 4);
		expect(&v, compare[i].same);
		word = htonl(NF4DIR);
		begin(&v, "file");
		put_fattr(v4_op(&v, compare[i].op), FATTR4_TYPE, &word, 4);
		expect(&v, compare[i].other);
		begin(&v, "file");
		put_fattr(v4_op(&v, compare[i].op), FATTR4_RDATTR_ERROR, &word, 4);
		expect(&v, NFS4ERR_INVAL);
		begin(&v, "file");
		put_fattr(v4_op(&v, compare[i].op), FATTR4_TIME_ACCESS_SET, &word, 4);
		expect(&v, NFS4ERR_INVAL);
		begin(&v, "file");
		put_fattr(v4_op(&v, compare[i].op), FATTR4_ACL, &word, 4);
		expect(&v, NFS4ERR_ATTRNOTSUPP);
	}
	/* ACCESS */
	ACCESS4args access = {.access = 0x1000};
	begin(&v, "file");
	v4_add(&v, ACCESS, &access);
	expect(&v, NFS4ERR_INVAL);
	remove_it(&v, "file");
	remove_it(&v, "dir");
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * READDIR
 */

struct page {
	unsigned entries;
	uint64_t cookie;
	bool eof;
};

static nfsstat4 readdir_page(struct v4 *v, uint64_t cookie, uint32_t maxcount, bool seen[], struct page *page)
{
	READDIR4args args = {.cookie = cookie, .dircount = maxcount, .maxcount = maxcount};
	READDIR4resok res;
	uint32_t mask = 1u << FATTR4_RDATTR_ERROR | 1u << FATTR4_FILEID;

	args.attr_request.count = 1;
	args.attr_request.item = &mask;
	begin(v, "many");
	v4_add(v, READDIR, &args);
	nfsstat4 status = v4_send(v);
	if (status)
		return status;
	SEQUENCE4resok sequence;
	assert_int_equal(v4_result(v, OP_SEQUENCE), NFS4_OK);
	v4_take(v, SEQUENCE4resok, &sequence);
	v4_took_root(v);
	assert_int_equal(v4_result(v, OP_LOOKUP), NFS4_OK);
	assert_int_equal(v4_result(v, OP_READDIR), NFS4_OK);
	size_t from = xdr_in_left(&v->rpc.in);
	v4_take(v, READDIR4resok, &res);
	assert_true(from - xdr_in_left(&v->rpc.in) <= maxcount);
	page->entries = 0;
	page->eof = res.reply.eof;
	for (entry4 *e = res.reply.entries; e; e = e->nextentry) {
		int number = -1;
		assert_true(e->cookie > page->cookie && e->cookie > 2);
		page->cookie = e->cookie;
		page->entries++;
		char name[16] = "";
		assert_true(e->name.len < sizeof(name));
		memcpy(name, e->name.data, e->name.len);
		assert_int_equal(sscanf(name, "f%d", &number), 1);
		assert_in_range(number, 0, 99);
		assert_false(seen[number]);
		seen[number] = true;
		assert_int_equal(e->attrs.attr_vals.len, 12);
	}
	return status;
}

static void directories(void **state)
{
	struct v4 v;
	struct page page = {0};
	bool seen[100] = {false};
	char name[16];
	(void)state;
	join(&v, "directories", 1);
	make_dir(&v, "many");
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		begin(&v, "many");
		create(&v, NF4FIFO, name);
		expect(&v, NFS4_OK);
	}
	for (unsigned pages = 0; !page.eof; pages++) {
		assert_true(pages < 100);
		assert_int_equal(readdir_page(&v, page.cookie, 300, seen, &page), NFS4_OK);
		assert_true(page.entries || page.eof);
		if (pages == 2) { /* what goes and comes meanwhile moves nothing */
			begin(&v, "many");
			put_remove(&v, "f0");
			expect(&v, NFS4_OK);
		}
	}
	for (int i = 0; i < 100; i++)
		assert_true(seen[i]);
	memset(seen, 0, sizeof(seen));
	page = (struct page){0};
	v.cache = false; /* what a slot keeps is shorter */
	assert_int_equal(readdir_page(&v, 0, 30000, seen, &page), NFS4_OK);
	assert_int_equal(page.entries, 99);
	assert_true(page.eof);
	assert_int_equal(readdir_page(&v, page.cookie, 300, seen, &page), NFS4_OK);
	assert_true(page.eof && !page.entries);
	assert_int_equal(readdir_page(&v, 0, 40, seen, &page), NFS4ERR_TOOSMALL);
	assert_int_equal(readdir_page(&v, 0, 8, seen, &page), NFS4ERR_TOOSMALL);
	assert_int_equal(readdir_page(&v, 1, 300, seen, &page), NFS4ERR_BAD_COOKIE);
	assert_int_equal(readdir_page(&v, 2, 300, seen, &page), NFS4ERR_BAD_COOKIE);
	READDIR4args args = {.cookie = 5, .cookieverf = {1}, .maxcount = 300};
	begin(&v, "many");
	v4_add(&v, READDIR, &args);
	expect(&v, NFS4ERR_NOT_SAME);
	args = (READDIR4args){.maxcount = 300};
	begin(&v, "many/f1");
	v4_add(&v, READDIR, &args);
	expect(&v, NFS4ERR_NOTDIR);
	/* the root of all: data and srv */
	begin(&v, NULL);
	v4_add(&v, READDIR, &args);
	expect(&v, NFS4_OK);
	for (int i = 1; i < 100; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		begin(&v, "many");
		put_remove(&v, name);
		expect(&v, NFS4_OK);
	}
	remove_it(&v, "many");
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * Data
 */

static void data(void **state)
{
	struct v4 v;
	(void)state;
	join(&v, "data", 1);
	make_file(&v, "file");
	make_dir(&v, "dir");
	begin(&v, "");
	create(&v, NF4LNK, "link");
	expect(&v, NFS4_OK);
	begin(&v, "");
	create(&v, NF4FIFO, "pipe");
	expect(&v, NFS4_OK);

	uint64_t written = 0, committed = 1;
	begin(&v, "file");
	put_write(&v, 3, "hello", 5);
	expect(&v, NFS4_OK);
	at_end(&v, 8);
	assert_true(xdr_get_u64(&v.rpc.in, &written));
	COMMIT4args commit = {.offset = 0, .count = 0};
	begin(&v, "file");
	v4_add(&v, COMMIT, &commit);
	expect(&v, NFS4_OK);
	at_end(&v, 8);
	assert_true(xdr_get_u64(&v.rpc.in, &committed));
	assert_int_equal(written, committed);
	commit = (COMMIT4args){.offset = UINT64_MAX, .count = 2};
	begin(&v, "file");
	v4_add(&v, COMMIT, &commit);
	expect(&v, NFS4ERR_INVAL);
	commit.offset = 0;
	static const struct {
		const char *path;
		nfsstat4 status;
	} others[] = {{"dir", NFS4ERR_ISDIR}, {"link", NFS4ERR_SYMLINK}, {"pipe", NFS4ERR_WRONG_TYPE}};
	for (unsigned i = 0; i < 3; i++) {
		begin(&v, others[i].path);
		v4_add(&v, COMMIT, &commit);
		expect(&v, others[i].status);
		READ4args read = {.count = 10};
		begin(&v, others[i].path);
		v4_add(&v, READ, &read);
		assert_int_not_equal(v4_send(&v), NFS4_OK);
		begin(&v, others[i].path);
		put_write(&v, 0, "x", 1);
		assert_int_not_equal(v4_send(&v), NFS4_OK);
	}
	/* the end of the file, to the byte */
	static const struct {
		uint64_t offset;
		uint32_t count, got;
		bool eof;
	} reads[] = {{0, 8, 8, true}, {0, 7, 7, false}, {7, 1, 1, true}, {7, 100, 1, true}, {8, 1, 0, true},
		{8, 0, 0, true}, {0, 0, 0, false}, {UINT64_MAX, 10, 0, true}};
	for (unsigned i = 0; i < sizeof(reads) / sizeof(reads[0]); i++) {
		READ4args read = {.offset = reads[i].offset, .count = reads[i].count};
		bool eof = false;
		uint32_t got = 0;
		begin(&v, "file");
		v4_add(&v, READ, &read);
		expect(&v, NFS4_OK);
		at_end(&v, 8 + xdr_round(reads[i].got));
		assert_true(xdr_get_bool(&v.rpc.in, &eof) && xdr_get_u32(&v.rpc.in, &got));
		assert_int_equal(got, reads[i].got);
		assert_int_equal(eof, reads[i].eof);
	}
	begin(&v, "file");
	put_write(&v, UINT64_MAX - 2, "hello", 5);
	expect(&v, NFS4ERR_FBIG);
	remove_it(&v, "file");
	remove_it(&v, "dir");
	remove_it(&v, "link");
	remove_it(&v, "pipe");
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * Minor version 2
 */

static nfsstat4 seek(struct v4 *v, uint64_t offset, uint32_t what, uint64_t *found)
{
	begin(v, "file");
	struct xdr_out *o = v4_op(v, OP_SEEK);
	xdr_encode_stateid4(o, &anonymous);
	xdr_put_u64(o, offset);
	xdr_put_u32(o, what);
	nfsstat4 status = v4_send(v);
	if (!status) {
		at_end(v, 8);
		assert_true(xdr_get_u64(&v->rpc.in, found));
	}
	return status;
}

static void ranges(void **state)
{
	struct v4 v;
	uint8_t block[4096];
	uint64_t found = 0;
	(void)state;
	join(&v, "ranges", 2);
	make_file(&v, "file");
	make_file(&v, "other");
	make_dir(&v, "dir");
	memset(block, 'd', sizeof(block));
	begin(&v, "file");
	put_write(&v, 8192, block, sizeof(block));
	expect(&v, NFS4_OK);
	begin(&v, "file");
	put_range(&v, OP_ALLOCATE, 0, 16384);
	expect(&v, NFS4_OK);

	assert_int_equal(seek(&v, 0, NFS4_CONTENT_DATA, &found), NFS4_OK);
	assert_int_equal(found, 8192);
	assert_int_equal(seek(&v, 8192, NFS4_CONTENT_HOLE, &found), NFS4_OK);
	assert_int_equal(found, 12288);
	assert_int_equal(seek(&v, 0, NFS4_CONTENT_HOLE, &found), NFS4_OK);
	assert_int_equal(found, 0);
	assert_int_equal(seek(&v, 16384, NFS4_CONTENT_DATA, &found), NFS4ERR_NXIO);
	assert_int_equal(seek(&v, UINT64_MAX, NFS4_CONTENT_HOLE, &found), NFS4ERR_NXIO);
	assert_int_equal(seek(&v, 0, 7, &found), NFS4ERR_UNION_NOTSUPP);

	/* READ_PLUS: a hole, data, a hole */
	v.cache = false;
	begin(&v, "file");
	struct xdr_out *o = v4_op(&v, OP_READ_PLUS);
	xdr_encode_stateid4(o, &anonymous);
	xdr_put_u64(o, 4096);
	xdr_put_u32(o, 65536);
	expect(&v, NFS4_OK);
	at_end(&v, 8 + 20 + 16 + 4096 + 20);
	uint32_t word[6];
	uint64_t hyper[6];
	struct xdr_opaque bytes;
	struct xdr_in *in = &v.rpc.in;
	assert_true(xdr_get_u32(in, &word[0]) && xdr_get_u32(in, &word[1]) && xdr_get_u32(in, &word[2]) &&
		    xdr_get_u64(in, &hyper[0]) && xdr_get_u64(in, &hyper[1]) && xdr_get_u32(in, &word[3]) &&
		    xdr_get_u64(in, &hyper[2]) && xdr_get_opaque(in, 4096, &bytes) && xdr_get_u32(in, &word[4]) &&
		    xdr_get_u64(in, &hyper[3]) && xdr_get_u64(in, &hyper[4]));
	assert_int_equal(word[0], true);
	assert_int_equal(word[1], 3);
	assert_int_equal(word[2], NFS4_CONTENT_HOLE);
	assert_int_equal(hyper[0], 4096);
	assert_int_equal(hyper[1], 4096);
	assert_int_equal(word[3], NFS4_CONTENT_DATA);
	assert_int_equal(hyper[2], 8192);
	assert_int_equal(bytes.len, 4096);
	assert_memory_equal(bytes.data, block, sizeof(block));
	assert_int_equal(word[4], NFS4_CONTENT_HOLE);
	assert_int_equal(hyper[3], 12288);
	assert_int_equal(hyper[4], 4096);
	v.cache = true;

	begin(&v, "file");
	put_range(&v, OP_ALLOCATE, 0, 0);
	expect(&v, NFS4ERR_INVAL);
	begin(&v, "file");
	put_range(&v, OP_ALLOCATE, 1, UINT64_MAX);
	expect(&v, NFS4ERR_FBIG);
	begin(&v, "file");
	put_range(&v, OP_DEALLOCATE, 0, 0);
	expect(&v, NFS4ERR_INVAL);
	begin(&v, "dir");
	put_range(&v, OP_DEALLOCATE, 0, 4096);
	expect(&v, NFS4ERR_ISDIR);
	begin(&v, NULL);
	put_range(&v, OP_ALLOCATE, 0, 4096);
	assert_int_not_equal(v4_send(&v), NFS4_OK);

	/* COPY and CLONE */
	assert_int_equal(copy(&v, OP_COPY, "file", 8192, "other", 0, 4096), NFS4_OK);
	begin(&v, "other");
	assert_int_equal(getattr64(&v, FATTR4_SIZE), 4096);
	assert_int_equal(copy(&v, OP_COPY, "file", 8192, "other", 0, 0), NFS4_OK); /* up to the end */
	begin(&v, "other");
	assert_int_equal(getattr64(&v, FATTR4_SIZE), 8192);
	assert_int_equal(copy(&v, OP_COPY, "file", 16385, "other", 0, 1), NFS4ERR_INVAL);
	assert_int_equal(copy(&v, OP_COPY, "file", 0, "other", 0, UINT64_MAX), NFS4ERR_INVAL);
	assert_int_equal(copy(&v, OP_COPY, "dir", 0, "other", 0, 1), NFS4ERR_WRONG_TYPE);
	assert_int_equal(copy(&v, OP_COPY, "file", 0, "dir", 0, 1), NFS4ERR_WRONG_TYPE);
	assert_int_equal(copy(&v, OP_COPY, "file", 0, "file", 100, 4096), NFS4ERR_INVAL);
	assert_int_equal(copy(&v, OP_CLONE, "file", 8192, "other", 4096, 4096), NFS4_OK);
	assert_int_equal(copy(&v, OP_CLONE, "file", 100, "other", 0, 4096), NFS4ERR_INVAL);
	assert_int_equal(copy(&v, OP_CLONE, "file", 0, "other", 0, 1u << 30), NFS4ERR_INVAL);
	assert_int_equal(copy(&v, OP_CLONE, "file", 0, "dir", 0, 4096), NFS4ERR_WRONG_TYPE);
	static const uint32_t refused[] = {
		OP_COPY_NOTIFY, OP_OFFLOAD_STATUS, OP_OFFLOAD_CANCEL, OP_WRITE_SAME, OP_LAYOUTSTATS, OP_LAYOUTERROR};
	for (unsigned i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
		begin(&v, "file");
		v4_op(&v, refused[i]);
		expect(&v, NFS4ERR_NOTSUPP);
	}
	remove_it(&v, "file");
	remove_it(&v, "other");
	remove_it(&v, "dir");
	v4_end(&v);
}

static void xattrs(void **state)
{
	struct v4 v;
	static uint8_t large[FS_XATTR_MAX + 1];
	char longer[300];
	(void)state;
	join(&v, "xattrs", 2);
	make_file(&v, "file");
	memset(longer, 'n', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = 0;

	begin(&v, "file");
	put_setxattr(&v, "a", SETXATTR4_REPLACE, "1", 1);
	expect(&v, NFS4ERR_NOXATTR);
	begin(&v, "file");
	put_setxattr(&v, "a", SETXATTR4_CREATE, "1", 1);
	expect(&v, NFS4_OK);
	begin(&v, "file");
	put_setxattr(&v, "a", SETXATTR4_CREATE, "2", 1);
	expect(&v, NFS4ERR_EXIST);
	begin(&v, "file");
	put_setxattr(&v, "a", 3, "2", 1);
	expect(&v, NFS4ERR_BADXDR);
	begin(&v, "file");
	put_setxattr(&v, "", SETXATTR4_EITHER, "2", 1);
	expect(&v, NFS4ERR_INVAL);
	begin(&v, "file");
	put_setxattr(&v, longer, SETXATTR4_EITHER, "2", 1);
	expect(&v, NFS4ERR_NAMETOOLONG);
	begin(&v, "file");
	put_setxattr(&v, "large", SETXATTR4_EITHER, large, sizeof(large));
	expect(&v, NFS4ERR_XATTR2BIG);
	begin(&v, "file");
	put_setxattr(&v, "large", SETXATTR4_EITHER, large, FS_XATTR_MAX);
	expect(&v, NFS4_OK);
	GETXATTR4args none = {.gxa_name = text("empty")};
	uint32_t bytes = 1;
	begin(&v, "file");
	put_setxattr(&v, "empty", SETXATTR4_CREATE, "", 0);
	v4_add(&v, GETXATTR, &none);
	expect(&v, NFS4_OK);
	at_end(&v, 4);
	assert_true(xdr_get_u32(&v.rpc.in, &bytes) && bytes == 0);
	REMOVEXATTR4args gone = {.rxa_name = text("empty")};
	begin(&v, "file");
	v4_add(&v, REMOVEXATTR, &gone);
	expect(&v, NFS4_OK);
	GETXATTR4args get = {.gxa_name = text("large")};
	v.cache = false; /* or it would be too big to be kept */
	begin(&v, "file");
	v4_add(&v, GETXATTR, &get);
	expect(&v, NFS4_OK);
	at_end(&v, FS_XATTR_MAX);
	assert_memory_equal(v.rpc.in.p, large, FS_XATTR_MAX);
	v.cache = true;
	begin(&v, "file");
	v4_add(&v, GETXATTR, &get);
	expect(&v, NFS4ERR_REP_TOO_BIG_TO_CACHE);
	get.gxa_name = text("nothing");
	begin(&v, "file");
	v4_add(&v, GETXATTR, &get);
	expect(&v, NFS4ERR_NOXATTR);
	REMOVEXATTR4args remove = {.rxa_name = text("nothing")};
	begin(&v, "file");
	v4_add(&v, REMOVEXATTR, &remove);
	expect(&v, NFS4ERR_NOXATTR);

	/* listed in pieces: every name once */
	char name[16];
	for (int i = 0; i < 50; i++) {
		snprintf(name, sizeof(name), "x%d", i);
		begin(&v, "file");
		put_setxattr(&v, name, SETXATTR4_EITHER, "v", 1);
		expect(&v, NFS4_OK);
	}
	LISTXATTRS4args list = {.lxa_maxcount = 60};
	bool seen[50] = {false};
	unsigned count = 0;
	for (bool eof = false; !eof;) {
		LISTXATTRS4resok res;
		SEQUENCE4resok sequence;
		begin(&v, "file");
		v4_add(&v, LISTXATTRS, &list);
		expect(&v, NFS4_OK);
		assert_int_equal(v4_result(&v, OP_SEQUENCE), NFS4_OK);
		v4_take(&v, SEQUENCE4resok, &sequence);
		v4_took_root(&v);
		assert_int_equal(v4_result(&v, OP_LOOKUP), NFS4_OK);
		assert_int_equal(v4_result(&v, OP_LISTXATTRS), NFS4_OK);
		v4_take(&v, LISTXATTRS4resok, &res);
		for (uint32_t i = 0; i < res.lxr_names.count; i++, count++) {
			int number = -1;
			memset(name, 0, sizeof(name));
			memcpy(name, res.lxr_names.item[i].data, res.lxr_names.item[i].len);
			if (sscanf(name, "x%d", &number) == 1) {
				assert_false(seen[number]);
				seen[number] = true;
			}
		}
		assert_true(res.lxr_names.count || res.lxr_eof);
		list.lxa_cookie = res.lxr_cookie;
		eof = res.lxr_eof;
	}
	assert_int_equal(count, 52);
	list.lxa_maxcount = 8;
	begin(&v, "file");
	v4_add(&v, LISTXATTRS, &list);
	expect(&v, NFS4ERR_TOOSMALL);
	remove_it(&v, "file");
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------ */

static int setup(void **state)
{
	(void)state;
	return group_start(exports);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(engine),
		cmocka_unit_test(pseudo),
		cmocka_unit_test(names),
		cmocka_unit_test(attributes),
		cmocka_unit_test(directories),
		cmocka_unit_test(data),
		cmocka_unit_test(ranges),
		cmocka_unit_test(xattrs),
	};
	return cmocka_run_group_tests(tests, setup, group_stop);
}
