/*
 * NFSv3 and MOUNT from end to end: a furrowd process on file-backed drives, a client of our own over loopback, every
 * procedure with the errors RFC 1813 names, and with arguments that make no sense.
 */
#include "tests/server/nfs3_test.h"

static const char exports_yaml[] =
	"  - path: /data\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.0/8, access: rw, squash: "
	"none, sec: [sys]}\n"
	"  - path: /ro\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.0/8, access: ro, squash: none}\n"
	"  - path: /squash\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.0/8, access: rw, squash: "
	"root}\n"
	"  - path: /far\n    filesystem: a0/data\n    allow:\n      - {clients: 192.0.2.0/24, access: rw}\n"
	"  - path: /anon\n    filesystem: a0/data\n    allow:\n"
	"      - {clients: 127.0.0.1, access: rw, sec: [sys, none], anonuid: 77, anongid: 78}\n";

/* ------------------------------------------------------------------------------------------------
 * MOUNT, and who may
 */

static void mounting(void **state)
{
	mountstat3 status;
	struct kept sub, again;
	struct client *c = &root;

	(void)state;
	top = client_mount(c, "/data", &status);
	assert_int_equal(status, MNT3_OK);
	again = client_mount(c, "//data///", &status);
	assert_int_equal(status, MNT3_OK);
	assert_true(again.len == top.len && !memcmp(again.data, top.data, top.len));

	client_mount(c, "/nothing", &status);
	assert_int_equal(status, MNT3ERR_NOENT);
	client_mount(c, "", &status);
	assert_int_equal(status, MNT3ERR_NOENT);
	client_mount(c, "/database", &status);
	assert_int_equal(status, MNT3ERR_NOENT);
	client_mount(c, "/far", &status);
	assert_int_equal(status, MNT3ERR_ACCES);

	assert_int_equal(make_dir(c, &top, "sub", &sub), NFS3_OK);
	assert_int_equal(create(c, &sub, "plain", GUARDED, NULL, NULL, NULL), NFS3_OK);
	again = client_mount(c, "/data/sub", &status);
	assert_int_equal(status, MNT3_OK);
	assert_true(again.len == sub.len && !memcmp(again.data, sub.data, sub.len));
	client_mount(c, "/data/sub/plain", &status);
	assert_int_equal(status, MNT3ERR_NOTDIR);
	client_mount(c, "/data/sub/absent", &status);
	assert_int_equal(status, MNT3ERR_NOENT);
	client_mount(c, "/data/sub/../sub", &status);
	assert_int_equal(status, MNT3ERR_INVAL);

	mountlist list;
	client_begin(c, MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_DUMP);
	client_call(c);
	client_result(c, mountlist, &list);
	unsigned mounts = 0;
	for (; list; list = list->ml_next, mounts++)
		assert_int_equal(list->ml_hostname.len, strlen("127.0.0.1"));
	assert_int_equal(mounts, 2);
	dirpath path = text("/data/sub");
	assert_true(xdr_encode_dirpath(client_begin(c, MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_UMNT), &path));
	client_call(c);
	client_begin(c, MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_DUMP);
	client_call(c);
	client_result(c, mountlist, &list);
	assert_true(list && !list->ml_next);
	client_begin(c, MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_UMNTALL);
	client_call(c);
	client_begin(c, MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_DUMP);
	client_call(c);
	client_result(c, mountlist, &list);
	assert_null(list);

	exportlist exports;
	client_begin(c, MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_EXPORT);
	client_call(c);
	client_result(c, exportlist, &exports);
	unsigned count = 0;
	for (; exports; exports = exports->ex_next, count++)
		assert_non_null(exports->ex_groups);
	assert_int_equal(count, 5);
}

static void access_of_exports(void **state)
{
	mountstat3 status;
	struct kept ro = client_mount(&root, "/ro", &status), squash, anon, k;
	struct fattr3 attr;
	struct sattr3 set = with_mode(0700);

	(void)state;
	assert_int_equal(status, MNT3_OK);
	assert_int_equal(getattr(&root, &ro, NULL), NFS3_OK);
	assert_int_equal(create(&root, &ro, "x", UNCHECKED, NULL, NULL, NULL), NFS3ERR_ROFS);
	assert_int_equal(make_dir(&root, &ro, "x", NULL), NFS3ERR_ROFS);
	assert_int_equal(remove_name(&root, &ro, "sub"), NFS3ERR_ROFS);
	assert_int_equal(remove_dir(&root, &ro, "sub"), NFS3ERR_ROFS);
	assert_int_equal(rename_name(&root, &ro, "sub", &ro, "y"), NFS3ERR_ROFS);
	assert_int_equal(setattr(&root, &ro, &set, NULL), NFS3ERR_ROFS);
	assert_int_equal(write_file(&root, &ro, 0, 4, 0, FILE_SYNC, NULL), NFS3ERR_ROFS);
	/* a handle is of one export: the way from the read-only one to the other is closed */
	assert_int_equal(rename_name(&root, &top, "sub", &ro, "y"), NFS3ERR_XDEV);
	ACCESS3args aa = {.object = fh(&ro), .access = 0x3f};
	ACCESS3res ar;
	nfs3(&root, ACCESS, &aa, &ar);
	assert_int_equal(ar.status, NFS3_OK);
	assert_int_equal(ar.resok.access, ACCESS3_READ | ACCESS3_LOOKUP);

	squash = client_mount(&root, "/squash", &status);
	assert_int_equal(create(&root, &squash, "squashed", GUARDED, NULL, NULL, &attr), NFS3_OK);
	assert_true(attr.uid == 65534 && attr.gid == 65534);
	assert_int_equal(create(&user, &squash, "own", GUARDED, NULL, NULL, &attr), NFS3_OK);
	assert_true(attr.uid == 1000 && attr.gid == 1000);

	anon = client_mount(&root, "/anon", &status);
	root.flavor = RPC_AUTH_NONE;
	assert_int_equal(create(&root, &anon, "nobody", GUARDED, NULL, NULL, &attr), NFS3_OK);
	assert_true(attr.uid == 77 && attr.gid == 78);
	assert_int_equal(getattr(&root, &top, NULL), NFS3ERR_ACCES);
	root.flavor = RPC_AUTH_SYS;

	/* 4294967294 is a user like others */
	user.uid = 4294967294u;
	assert_int_equal(create(&user, &top, "large", GUARDED, NULL, &k, &attr), NFS3_OK);
	assert_true(attr.uid == 4294967294u);
	assert_int_equal(getattr(&user, &k, &attr), NFS3_OK);
	assert_true(attr.uid == 4294967294u);
	user.uid = 1000;
}

static void handles(void **state)
{
	struct kept k, file;
	struct fattr3 attr;

	(void)state;
	for (unsigned bit = 0; bit < top.len * 8; bit += 3) {
		k = top;
		k.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
		nfsstat3 status = getattr(&root, &k, NULL);
		/* another export or file system cannot be told from one that is gone */
		bool names = bit / 8 >= 4 && bit / 8 < 16;
		assert_int_equal(status, names ? NFS3ERR_STALE : NFS3ERR_BADHANDLE);
	}
	for (uint32_t len = 0; len < 64; len += 4) {
		k = top;
		k.len = len;
		if (len != top.len)
			assert_int_equal(getattr(&root, &k, NULL), NFS3ERR_BADHANDLE);
	}
	assert_int_equal(create(&root, &top, "mortal", GUARDED, NULL, &file, NULL), NFS3_OK);
	assert_int_equal(rename_name(&root, &top, "mortal", &top, "renamed"), NFS3_OK);
	assert_int_equal(getattr(&root, &file, &attr), NFS3_OK);
	assert_int_equal(remove_name(&root, &top, "renamed"), NFS3_OK);
	assert_int_equal(getattr(&root, &file, NULL), NFS3ERR_STALE);
	assert_int_equal(write_file(&root, &file, 0, 4, 0, FILE_SYNC, NULL), NFS3ERR_STALE);
	/* a new file of the name is another file */
	assert_int_equal(create(&root, &top, "mortal", GUARDED, NULL, &k, NULL), NFS3_OK);
	assert_true(memcmp(k.data, file.data, k.len));
	assert_int_equal(getattr(&root, &file, NULL), NFS3ERR_STALE);
	assert_int_equal(remove_name(&root, &top, "mortal"), NFS3_OK);
}

static void null_and_unknown(void **state)
{
	(void)state;
	client_begin(&root, NFS_PROGRAM, NFS_V3, NFSPROC3_NULL);
	client_call(&root);
	assert_int_equal(xdr_in_left(&root.in), 0);
	client_begin(&root, NFS_PROGRAM, NFS_V3, 22);
	assert_true(client_try(&root));
	assert_int_equal(root.accept_stat, RPC_PROC_UNAVAIL);
	client_begin(&root, NFS_PROGRAM, NFS_V3, NFSPROC3_GETATTR); /* no arguments */
	assert_true(client_try(&root));
	assert_int_equal(root.accept_stat, RPC_GARBAGE_ARGS);
	client_begin(&root, NFS_PROGRAM, 2, 0);
	assert_true(client_try(&root));
	assert_int_equal(root.accept_stat, RPC_PROG_MISMATCH);
	client_begin(&root, 100227, 3, 0); /* NFS_ACL, which clients ask for at every mount: told at once */
	assert_true(client_try(&root));
	assert_int_equal(root.accept_stat, RPC_PROG_UNAVAIL);
}

/* ------------------------------------------------------------------------------------------------
 * Names
 */

static void create_modes(void **state)
{
	struct kept dir, a, b;
	struct fattr3 attr;
	char longest[300];

	(void)state;
	assert_int_equal(make_dir(&root, &top, "create", &dir), NFS3_OK);
	assert_int_equal(create(&root, &dir, "f", UNCHECKED, NULL, &a, &attr), NFS3_OK);
	assert_true(attr.type == NF3REG && attr.mode == 0644 && attr.nlink == 1 && attr.size == 0);
	assert_int_equal(write_file(&root, &a, 0, 10, 1, FILE_SYNC, NULL), NFS3_OK);
	assert_int_equal(create(&root, &dir, "f", UNCHECKED, NULL, &b, &attr), NFS3_OK);
	assert_true(attr.size == 10 && !memcmp(a.data, b.data, a.len));
	assert_int_equal(create(&root, &dir, "f", GUARDED, NULL, NULL, NULL), NFS3ERR_EXIST);

	/* O_TRUNC */
	CREATE3args args = {.where = {.dir = fh(&dir), .name = text("f")}, .how = {.mode = UNCHECKED}};
	CREATE3res res;
	args.how.obj_attributes = with_mode(0600);
	args.how.obj_attributes.size.set_it = true;
	nfs3(&root, CREATE, &args, &res);
	assert_int_equal(res.status, NFS3_OK);
	assert_int_equal(getattr(&root, &a, &attr), NFS3_OK);
	assert_true(attr.size == 0 && attr.mode == 0644);

	assert_int_equal(create(&root, &dir, "x", EXCLUSIVE, "verifier", &a, NULL), NFS3_OK);
	assert_int_equal(create(&root, &dir, "x", EXCLUSIVE, "verifier", &b, NULL), NFS3_OK); /* the reply was lost */
	assert_true(!memcmp(a.data, b.data, a.len));
	assert_int_equal(create(&root, &dir, "x", EXCLUSIVE, "another1", NULL, NULL), NFS3ERR_EXIST);
	assert_int_equal(create(&root, &dir, "f", EXCLUSIVE, "verifier", NULL, NULL), NFS3ERR_EXIST);

	assert_int_equal(create(&root, &dir, ".", UNCHECKED, NULL, NULL, NULL), NFS3ERR_EXIST);
	assert_int_equal(create(&root, &dir, "..", GUARDED, NULL, NULL, NULL), NFS3ERR_EXIST);
	assert_int_equal(create(&root, &dir, "", GUARDED, NULL, NULL, NULL), NFS3ERR_INVAL);
	assert_int_equal(create(&root, &dir, "a/b", GUARDED, NULL, NULL, NULL), NFS3ERR_INVAL);
	memset(longest, 'l', sizeof(longest));
	longest[256] = 0;
	assert_int_equal(create(&root, &dir, longest, GUARDED, NULL, NULL, NULL), NFS3ERR_NAMETOOLONG);
	longest[255] = 0;
	assert_int_equal(create(&root, &dir, longest, GUARDED, NULL, NULL, NULL), NFS3_OK);
	assert_int_equal(lookup(&root, &dir, longest, NULL, NULL), NFS3_OK);
	assert_int_equal(remove_name(&root, &dir, longest), NFS3_OK);
	assert_int_equal(create(&root, &a, "in-a-file", GUARDED, NULL, NULL, NULL), NFS3ERR_NOTDIR);
	/* the directory is root's */
	assert_int_equal(create(&user, &dir, "mine", GUARDED, NULL, NULL, NULL), NFS3ERR_ACCES);
	assert_int_equal(create(&root, &top, "create", UNCHECKED, NULL, NULL, NULL), NFS3ERR_EXIST);

	args.where.name = text("bad-time");
	args.how.obj_attributes.mtime = (set_mtime){.set_it = SET_TO_CLIENT_TIME, .mtime = {.nseconds = 1000000000}};
	nfs3(&root, CREATE, &args, &res);
	assert_int_equal(res.status, NFS3ERR_INVAL);
	assert_true(res.resfail.dir_wcc.after.attributes_follow);
}

static void lookups(void **state)
{
	struct kept dir, k;
	struct fattr3 attr, up;
	char longest[300];

	(void)state;
	assert_int_equal(make_dir(&root, &top, "lookup", &dir), NFS3_OK);
	assert_int_equal(lookup(&root, &dir, "absent", NULL, NULL), NFS3ERR_NOENT);
	assert_int_equal(lookup(&root, &dir, ".", &k, &attr), NFS3_OK);
	assert_true(!memcmp(k.data, dir.data, k.len));
	assert_int_equal(lookup(&root, &dir, "..", &k, &up), NFS3_OK);
	assert_true(!memcmp(k.data, top.data, k.len) && up.fileid != attr.fileid && up.fsid == attr.fsid);
	assert_int_equal(lookup(&root, &top, "..", &k, NULL), NFS3_OK);
	assert_true(!memcmp(k.data, top.data, k.len));
	memset(longest, 'l', sizeof(longest));
	longest[256] = 0;
	assert_int_equal(lookup(&root, &dir, longest, NULL, NULL), NFS3ERR_NAMETOOLONG);
	assert_int_equal(create(&root, &dir, "f", GUARDED, NULL, &k, NULL), NFS3_OK);
	assert_int_equal(lookup(&root, &k, "f", NULL, NULL), NFS3ERR_NOTDIR);
}

static void directories(void **state)
{
	struct kept d, e;
	struct fattr3 attr;

	(void)state;
	assert_int_equal(make_dir(&root, &top, "dirs", &d), NFS3_OK);
	assert_int_equal(make_dir(&root, &d, "e", &e), NFS3_OK);
	assert_int_equal(make_dir(&root, &d, "e", NULL), NFS3ERR_EXIST);
	assert_int_equal(make_dir(&root, &d, ".", NULL), NFS3ERR_EXIST);
	assert_int_equal(getattr(&root, &d, &attr), NFS3_OK);
	assert_true(attr.type == NF3DIR && attr.nlink == 3 && attr.mode == 0755);
	assert_int_equal(remove_dir(&root, &top, "dirs"), NFS3ERR_NOTEMPTY);
	assert_int_equal(remove_dir(&root, &d, "."), NFS3ERR_INVAL);
	assert_int_equal(remove_dir(&root, &d, ".."), NFS3ERR_EXIST);
	assert_int_equal(remove_dir(&root, &d, "absent"), NFS3ERR_NOENT);
	assert_int_equal(create(&root, &d, "f", GUARDED, NULL, NULL, NULL), NFS3_OK);
	assert_int_equal(remove_dir(&root, &d, "f"), NFS3ERR_NOTDIR);
	nfsstat3 status = remove_name(&root, &d, "e");
	assert_true(status == NFS3ERR_ISDIR || status == NFS3ERR_PERM);
	assert_int_equal(remove_name(&root, &d, "absent"), NFS3ERR_NOENT);
	assert_int_equal(remove_name(&root, &d, "."), NFS3ERR_ACCES);
	assert_int_equal(remove_dir(&root, &d, "e"), NFS3_OK);
	assert_int_equal(getattr(&root, &e, NULL), NFS3ERR_STALE);
	assert_int_equal(getattr(&root, &d, &attr), NFS3_OK);
	assert_int_equal(attr.nlink, 2);
	assert_int_equal(remove_name(&root, &d, "f"), NFS3_OK);
	assert_int_equal(remove_dir(&root, &top, "dirs"), NFS3_OK);
}

static void renames(void **state)
{
	struct kept d, e, f, g, k;

	(void)state;
	assert_int_equal(make_dir(&root, &top, "rename", &d), NFS3_OK);
	assert_int_equal(make_dir(&root, &d, "e", &e), NFS3_OK);
	assert_int_equal(create(&root, &d, "f", GUARDED, NULL, &f, NULL), NFS3_OK);
	assert_int_equal(create(&root, &d, "g", GUARDED, NULL, &g, NULL), NFS3_OK);
	assert_int_equal(rename_name(&root, &d, "f", &e, "f2"), NFS3_OK);
	assert_int_equal(lookup(&root, &d, "f", NULL, NULL), NFS3ERR_NOENT);
	assert_int_equal(lookup(&root, &e, "f2", &k, NULL), NFS3_OK);
	assert_true(!memcmp(k.data, f.data, k.len));
	assert_int_equal(rename_name(&root, &e, "f2", &d, "g"), NFS3_OK); /* over another */
	assert_int_equal(getattr(&root, &g, NULL), NFS3ERR_STALE);
	assert_int_equal(rename_name(&root, &d, "g", &d, "g"), NFS3_OK);
	assert_int_equal(rename_name(&root, &d, "absent", &d, "h"), NFS3ERR_NOENT);
	assert_int_equal(rename_name(&root, &d, ".", &d, "h"), NFS3ERR_INVAL);
	assert_int_equal(rename_name(&root, &d, "g", &d, ".."), NFS3ERR_INVAL);
	nfsstat3 status = rename_name(&root, &d, "g", &d, "e");
	assert_true(status == NFS3ERR_ISDIR || status == NFS3ERR_EXIST);
	status = rename_name(&root, &d, "e", &d, "g");
	assert_true(status == NFS3ERR_NOTDIR || status == NFS3ERR_EXIST);
	assert_int_equal(rename_name(&root, &top, "rename", &e, "loop"), NFS3ERR_INVAL);
	k = d;
	k.data[k.len - 1] ^= 1;
	assert_int_equal(rename_name(&root, &d, "g", &k, "h"), NFS3ERR_BADHANDLE);

	LINK3args la = {.file = fh(&f), .link = {.dir = fh(&e), .name = text("hard")}};
	LINK3res lr;
	nfs3(&root, LINK, &la, &lr);
	assert_int_equal(lr.status, NFS3_OK);
	assert_true(lr.resok.file_attributes.attributes_follow && lr.resok.file_attributes.attributes.nlink == 2);
	nfs3(&root, LINK, &la, &lr);
	assert_int_equal(lr.status, NFS3ERR_EXIST);
	la.file = fh(&e); /* directories have one name */
	la.link.name = text("dirlink");
	nfs3(&root, LINK, &la, &lr);
	assert_true(lr.status == NFS3ERR_PERM || lr.status == NFS3ERR_ISDIR || lr.status == NFS3ERR_INVAL);
	assert_int_equal(remove_name(&root, &d, "g"), NFS3_OK);
	assert_int_equal(getattr(&root, &f, NULL), NFS3_OK);
	assert_int_equal(remove_name(&root, &e, "hard"), NFS3_OK);
	assert_int_equal(getattr(&root, &f, NULL), NFS3ERR_STALE);
}

static void symlinks_and_nodes(void **state)
{
	struct kept d, k;
	SYMLINK3res res;
	char target[4200];

	(void)state;
	assert_int_equal(make_dir(&root, &top, "nodes", &d), NFS3_OK);
	memset(target, 't', sizeof(target));
	for (unsigned len = 1; len <= 4095; len = len * 2 + 1) {
		char name[16];
		snprintf(name, sizeof(name), "l%u", len);
		assert_int_equal(make_symlink(&root, &d, name, target, len, &res), NFS3_OK);
		assert_true(res.resok.obj_attributes.attributes.type == NF3LNK &&
			    res.resok.obj_attributes.attributes.size == len);
		k = keep(&res.resok.obj.handle);
		READLINK3args ra = {.symlink = fh(&k)};
		READLINK3res rr;
		nfs3(&root, READLINK, &ra, &rr);
		assert_int_equal(rr.status, NFS3_OK);
		assert_int_equal(rr.resok.data.len, len);
		assert_memory_equal(rr.resok.data.data, target, len);
		assert_int_equal(make_symlink(&root, &d, name, target, len, &res), NFS3ERR_EXIST);
	}
	assert_int_equal(make_symlink(&root, &d, "long", target, 4097, &res), NFS3ERR_NAMETOOLONG);
	assert_int_equal(make_symlink(&root, &d, "none", target, 0, &res), NFS3ERR_INVAL);
	assert_int_equal(make_symlink(&root, &d, "nul", "a\0b", 3, &res), NFS3ERR_INVAL);
	READLINK3args ra = {.symlink = fh(&d)};
	READLINK3res rr;
	nfs3(&root, READLINK, &ra, &rr);
	assert_int_equal(rr.status, NFS3ERR_INVAL);

	static const ftype3 types[] = {NF3CHR, NF3BLK, NF3SOCK, NF3FIFO};
	for (unsigned i = 0; i < 4; i++) {
		char name[16];
		snprintf(name, sizeof(name), "n%u", i);
		MKNOD3args ma = {.where = {.dir = fh(&d), .name = text(name)}, .what = {.type = types[i]}};
		MKNOD3res mr;
		if (i < 2) {
			ma.what.device.dev_attributes = with_mode(0600);
			ma.what.device.spec = (specdata3){259, 70000};
		} else {
			ma.what.pipe_attributes = with_mode(0600);
		}
		nfs3(&root, MKNOD, &ma, &mr);
		assert_int_equal(mr.status, NFS3_OK);
		const struct fattr3 *a = &mr.resok.obj_attributes.attributes;
		assert_true(a->type == types[i] && a->mode == 0600);
		assert_true(a->rdev.specdata1 == (i < 2 ? 259 : 0) && a->rdev.specdata2 == (i < 2 ? 70000 : 0));
		nfs3(&root, MKNOD, &ma, &mr);
		assert_int_equal(mr.status, NFS3ERR_EXIST);
	}
	MKNOD3args ma = {.where = {.dir = fh(&d), .name = text("bad")}, .what = {.type = NF3DIR}};
	MKNOD3res mr;
	nfs3(&root, MKNOD, &ma, &mr);
	assert_int_equal(mr.status, NFS3ERR_BADTYPE);
	ma.where.dir = fh(&top);
	ma.what.type = NF3CHR;
	nfs3(&user, MKNOD, &ma, &mr);
	assert_int_equal(mr.status, NFS3ERR_PERM);
}

/* ------------------------------------------------------------------------------------------------
 * Attributes
 */

static void attributes(void **state)
{
	struct kept f;
	struct fattr3 before, attr;
	struct sattr3 set = {0};
	struct nfstime3 guard;

	(void)state;
	assert_int_equal(create(&user, &top, "attr", GUARDED, NULL, &f, &before), NFS3_OK);
	set = (struct sattr3){.mode = {.set_it = true, .mode = 04711},
		.size = {.set_it = true, .size = 12345},
		.atime = {.set_it = SET_TO_CLIENT_TIME, .atime = {1, 2}},
		.mtime = {.set_it = SET_TO_CLIENT_TIME, .mtime = {UINT32_MAX, 999999999}}};
	assert_int_equal(setattr(&user, &f, &set, NULL), NFS3_OK);
	assert_int_equal(getattr(&user, &f, &attr), NFS3_OK);
	assert_int_equal(attr.mode & 0777, 0711);
	assert_int_equal(attr.size, 12345);
	assert_true(attr.atime.seconds == 1 && attr.atime.nseconds == 2);
	assert_true(attr.mtime.seconds == UINT32_MAX && attr.mtime.nseconds == 999999999);
	assert_true(attr.ctime.seconds > before.ctime.seconds ||
		    (attr.ctime.seconds == before.ctime.seconds && attr.ctime.nseconds > before.ctime.nseconds));

	guard = before.ctime;
	set = with_mode(0600);
	assert_int_equal(setattr(&user, &f, &set, &guard), NFS3ERR_NOT_SYNC);
	guard = attr.ctime;
	assert_int_equal(setattr(&user, &f, &set, &guard), NFS3_OK);
	set = (struct sattr3){.mtime = {.set_it = SET_TO_SERVER_TIME}, .atime = {.set_it = SET_TO_SERVER_TIME}};
	assert_int_equal(setattr(&user, &f, &set, NULL), NFS3_OK);
	assert_int_equal(getattr(&user, &f, &attr), NFS3_OK);
	assert_true(attr.mtime.seconds < UINT32_MAX && attr.mtime.seconds > 1000000);

	set = (struct sattr3){.uid = {.set_it = true, .uid = 0}};
	assert_int_equal(setattr(&user, &f, &set, NULL), NFS3ERR_PERM);
	assert_int_equal(setattr(&root, &f, &set, NULL), NFS3_OK);
	set = with_mode(0777);
	assert_int_equal(setattr(&user, &f, &set, NULL), NFS3ERR_PERM);
	set = (struct sattr3){.size = {.set_it = true, .size = UINT64_MAX}};
	assert_int_equal(setattr(&root, &f, &set, NULL), NFS3ERR_FBIG);
	set = (struct sattr3){.atime = {.set_it = SET_TO_CLIENT_TIME, .atime = {1, 1000000000}}};
	assert_int_equal(setattr(&root, &f, &set, NULL), NFS3ERR_INVAL);
}

static uint32_t access_bits(struct client *c, struct kept *k, uint32_t wanted)
{
	ACCESS3args args = {.object = fh(k), .access = wanted};
	ACCESS3res res;

	nfs3(c, ACCESS, &args, &res);
	assert_int_equal(res.status, NFS3_OK);
	assert_true(res.resok.obj_attributes.attributes_follow);
	return res.resok.access;
}

static void access_rights(void **state)
{
	struct kept d, f;
	struct sattr3 set = with_mode(0754);
	const uint32_t all = 0x3f;

	(void)state;
	assert_int_equal(make_dir(&root, &top, "rights", &d), NFS3_OK);
	assert_int_equal(create(&root, &d, "f", GUARDED, NULL, &f, NULL), NFS3_OK);
	assert_int_equal(setattr(&root, &f, &set, NULL), NFS3_OK);
	assert_int_equal(access_bits(&user, &d, all), ACCESS3_READ | ACCESS3_LOOKUP);
	assert_int_equal(access_bits(&user, &f, all), ACCESS3_READ);
	assert_int_equal(access_bits(&user, &f, ACCESS3_EXECUTE), 0);
	user.gid = 0;
	assert_int_equal(access_bits(&user, &f, all), ACCESS3_READ | ACCESS3_EXECUTE);
	user.gid = 1000;
	assert_int_equal(access_bits(&root, &f, all), ACCESS3_READ | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_EXECUTE);
	assert_int_equal(access_bits(&root, &d, all),
		ACCESS3_READ | ACCESS3_LOOKUP | ACCESS3_MODIFY | ACCESS3_EXTEND | ACCESS3_DELETE);

	/* no open in this protocol: the owner gets at his file whatever the mode, and who may execute may read */
	READ3res res;
	assert_int_equal(make_dir(&root, &top, "owned", &d), NFS3_OK);
	set = with_mode(0777);
	assert_int_equal(setattr(&root, &d, &set, NULL), NFS3_OK);
	assert_int_equal(create(&user, &d, "shut", GUARDED, NULL, &f, NULL), NFS3_OK);
	set = with_mode(0);
	assert_int_equal(setattr(&user, &f, &set, NULL), NFS3_OK);
	assert_int_equal(write_file(&user, &f, 0, 100, 3, FILE_SYNC, NULL), NFS3_OK);
	check_read(&user, &f, 0, 200, 100, true, 3);
	user.uid = 1001;
	assert_int_equal(read_file(&user, &f, 0, 10, &res), NFS3ERR_ACCES);
	assert_int_equal(write_file(&user, &f, 0, 4, 3, FILE_SYNC, NULL), NFS3ERR_ACCES);
	set = with_mode(0111);
	assert_int_equal(setattr(&root, &f, &set, NULL), NFS3_OK);
	check_read(&user, &f, 0, 200, 100, true, 3);
	user.uid = 1000;
}

static void whole_file_system(void **state)
{
	FSSTAT3args sa = {.fsroot = fh(&top)};
	FSINFO3args ia = {.fsroot = fh(&top)};
	PATHCONF3args pa = {.object = fh(&top)};
	FSSTAT3res sr;
	FSINFO3res ir;
	PATHCONF3res pr;

	(void)state;
	nfs3(&root, FSSTAT, &sa, &sr);
	assert_int_equal(sr.status, NFS3_OK);
	assert_true(sr.resok.tbytes > 0 && sr.resok.fbytes <= sr.resok.tbytes && sr.resok.abytes <= sr.resok.fbytes);
	assert_true(sr.resok.tfiles > 0 && sr.resok.ffiles <= sr.resok.tfiles);
	nfs3(&root, FSINFO, &ia, &ir);
	assert_int_equal(ir.status, NFS3_OK);
	assert_true(ir.resok.rtmax == 1 << 20 && ir.resok.wtmax == 1 << 20 && ir.resok.dtpref == 65536);
	assert_int_equal(ir.resok.properties, 0x1b);
	assert_true(ir.resok.time_delta.seconds == 0 && ir.resok.time_delta.nseconds == 1);
	nfs3(&root, PATHCONF, &pa, &pr);
	assert_int_equal(pr.status, NFS3_OK);
	assert_true(pr.resok.name_max == 255 && pr.resok.no_trunc && !pr.resok.case_insensitive &&
		    pr.resok.case_preserving);
}

/* ------------------------------------------------------------------------------------------------
 * Data
 */

static void read_edges(void **state)
{
	struct kept f;
	READ3res res;
	static const uint32_t sizes[] = {1, 3, 4095, 4096, 4097, 65536, 1048577};

	(void)state;
	assert_int_equal(create(&root, &top, "edges", GUARDED, NULL, &f, NULL), NFS3_OK);
	check_read(&root, &f, 0, 4096, 0, true, 0);
	check_read(&root, &f, 0, 0, 0, true, 0);
	uint32_t size = 0;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t more = sizes[i] - size;
		for (uint32_t at = 0; at < more; at += 1 << 20)
			assert_int_equal(write_file(&root, &f, size + at, more - at < 1 << 20 ? more - at : 1 << 20, 9,
						 FILE_SYNC, NULL),
				NFS3_OK);
		size = sizes[i];
		check_read(&root, &f, size, 4096, 0, true, 9);
		check_read(&root, &f, size - 1, 4096, 1, true, 9);
		check_read(&root, &f, size - 1, 1, 1, true, 9);
		check_read(&root, &f, size + 1, 4096, 0, true, 9);
		check_read(&root, &f, 0, 0, 0, false, 9);
		check_read(&root, &f, 0, size > 1 << 20 ? 1 << 20 : size, size > 1 << 20 ? 1 << 20 : size,
			size <= 1 << 20, 9);
		if (size > 2)
			check_read(&root, &f, 1, size - 2 < 5000 ? size - 2 : 5000, size - 2 < 5000 ? size - 2 : 5000,
				false, 9);
		check_read(&root, &f, UINT64_MAX, 4096, 0, true, 9);
		check_read(&root, &f, UINT64_MAX - 100, UINT32_MAX, 0, true, 9);
	}
	/* more than the server gives at once */
	assert_int_equal(read_file(&root, &f, 0, UINT32_MAX, &res), NFS3_OK);
	assert_true(res.resok.count == 1 << 20 && !res.resok.eof);
	assert_int_equal(read_file(&root, &top, 0, 10, &res), NFS3ERR_INVAL);
	assert_true(res.resfail.file_attributes.attributes_follow);

	/* a hole, and what a cut leaves behind the end */
	struct sattr3 set = {.size = {.set_it = true, .size = 5}};
	assert_int_equal(setattr(&root, &f, &set, NULL), NFS3_OK);
	set.size.size = 100000;
	assert_int_equal(setattr(&root, &f, &set, NULL), NFS3_OK);
	assert_int_equal(read_file(&root, &f, 0, 200000, &res), NFS3_OK);
	assert_true(res.resok.count == 100000 && res.resok.eof);
	for (uint32_t i = 0; i < 100000; i++)
		assert_int_equal(res.resok.data.inline_data[i], i < 5 ? pattern(i, 9) : 0);
}

static void writes(void **state)
{
	struct kept f;
	WRITE3resok ok;
	struct fattr3 attr;
	uint64_t verifier, v2;

	(void)state;
	assert_int_equal(create(&root, &top, "writes", GUARDED, NULL, &f, NULL), NFS3_OK);
	assert_int_equal(write_file(&root, &f, 0, 10000, 5, UNSTABLE, &ok), NFS3_OK);
	assert_true(ok.file_wcc.before.attributes_follow && ok.file_wcc.before.attributes.size == 0);
	assert_true(ok.file_wcc.after.attributes_follow && ok.file_wcc.after.attributes.size == 10000);
	memcpy(&verifier, ok.verf, 8);
	assert_int_equal(write_file(&root, &f, 10000, 777, 5, UNSTABLE, &ok), NFS3_OK);
	check_read(&root, &f, 0, 20000, 10777, true, 5);
	assert_true(commit(&root, &f) == verifier);
	assert_int_equal(write_file(&root, &f, 1 << 20, 1 << 20, 5, DATA_SYNC, &ok), NFS3_OK);
	assert_true(ok.committed != UNSTABLE);
	memcpy(&v2, ok.verf, 8);
	assert_true(v2 == verifier);
	assert_int_equal(write_file(&root, &f, 10777, (1 << 20) - 10777, 5, FILE_SYNC, &ok), NFS3_OK);
	assert_int_equal(ok.committed, FILE_SYNC);
	check_read(&root, &f, 0, 1 << 20, 1 << 20, false, 5);
	check_read(&root, &f, 1 << 20, 1 << 20, 1 << 20, true, 5);
	assert_int_equal(write_file(&root, &f, 4095, 2, 6, FILE_SYNC, NULL), NFS3_OK);
	check_read(&root, &f, 4095, 2, 2, false, 6);
	check_read(&root, &f, 4097, 1000, 1000, false, 5);
	assert_int_equal(write_file(&root, &f, 0, 0, 5, FILE_SYNC, NULL), NFS3_OK);
	assert_int_equal(getattr(&root, &f, &attr), NFS3_OK);
	assert_int_equal(attr.size, 2 << 20);
	assert_int_equal(write_file(&root, &f, UINT64_MAX - 10, 4, 5, FILE_SYNC, NULL), NFS3ERR_FBIG);
	assert_int_equal(write_file(&root, &top, 0, 4, 5, FILE_SYNC, NULL), NFS3ERR_INVAL);

	/* count and data disagree */
	WRITE3args args = {.file = fh(&f), .offset = 0, .count = 8, .stable = FILE_SYNC, .data = {.len = 4}};
	WRITE3res res;
	struct xdr_out *o = client_begin(&root, NFS_PROGRAM, NFS_V3, NFSPROC3_WRITE);
	assert_true(xdr_encode_WRITE3args(o, &args));
	o->p += 4;
	client_call(&root);
	client_result(&root, WRITE3res, &res);
	assert_int_equal(res.status, NFS3ERR_INVAL);
}

/* ------------------------------------------------------------------------------------------------
 * Reading directories
 */

#define ENTRIES 300

/* All names by READDIR or READDIRPLUS with replies of COUNT bytes; returns how many, and checks order and attributes.
 */
static unsigned list_all(struct kept *dir, bool plus, uint32_t dircount, uint32_t count, unsigned *calls)
{
	uint64_t cookie = 0;
	unsigned entries = 0;
	char seen[ENTRIES] = {0};
	bool eof = false;

	*calls = 0;
	while (!eof) {
		size_t left;
		if (plus) {
			READDIRPLUS3args args = {
				.dir = fh(dir), .cookie = cookie, .dircount = dircount, .maxcount = count};
			READDIRPLUS3res res;
			assert_true(xdr_encode_READDIRPLUS3args(
				client_begin(&root, NFS_PROGRAM, NFS_V3, NFSPROC3_READDIRPLUS), &args));
			client_call(&root);
			left = xdr_in_left(&root.in);
			client_result(&root, READDIRPLUS3res, &res);
			assert_int_equal(res.status, NFS3_OK);
			assert_true(res.resok.dir_attributes.attributes_follow);
			eof = res.resok.reply.eof;
			assert_true(res.resok.reply.entries || eof);
			for (entryplus3 *e = res.resok.reply.entries; e; e = e->nextentry, entries++) {
				unsigned n;
				cookie = e->cookie;
				assert_true(e->name_attributes.attributes_follow && e->name_handle.handle_follows);
				assert_int_equal(e->name_attributes.attributes.fileid, e->fileid);
				if (e->name.len > 2 && sscanf((const char *)e->name.data, "entry%3u", &n) == 1)
					seen[n]++;
			}
		} else {
			READDIR3args args = {.dir = fh(dir), .cookie = cookie, .count = count};
			READDIR3res res;
			assert_true(xdr_encode_READDIR3args(
				client_begin(&root, NFS_PROGRAM, NFS_V3, NFSPROC3_READDIR), &args));
			client_call(&root);
			left = xdr_in_left(&root.in);
			client_result(&root, READDIR3res, &res);
			assert_int_equal(res.status, NFS3_OK);
			eof = res.resok.reply.eof;
			assert_true(res.resok.reply.entries || eof);
			for (entry3 *e = res.resok.reply.entries; e; e = e->nextentry, entries++) {
				unsigned n;
				cookie = e->cookie;
				if (e->name.len > 2 && sscanf((const char *)e->name.data, "entry%3u", &n) == 1)
					seen[n]++;
			}
		}
		assert_true(left - 4 <= count);
		++*calls;
	}
	for (unsigned i = 0; i < ENTRIES; i++)
		assert_int_equal(seen[i], 1);
	return entries;
}

static void reading_directories(void **state)
{
	struct kept d, f;
	unsigned calls;
	char name[32];

	(void)state;
	assert_int_equal(make_dir(&root, &top, "list", &d), NFS3_OK);
	for (unsigned i = 0; i < ENTRIES; i++) {
		snprintf(name, sizeof(name), "entry%03u", i);
		assert_int_equal(create(&root, &d, name, GUARDED, NULL, &f, NULL), NFS3_OK);
	}
	assert_int_equal(list_all(&d, false, 0, 65536, &calls), ENTRIES + 2);
	assert_int_equal(calls, 1);
	assert_int_equal(list_all(&d, false, 0, 1024, &calls), ENTRIES + 2);
	assert_true(calls > 5);
	assert_int_equal(list_all(&d, false, 0, 140, &calls), ENTRIES + 2); /* one by one */
	assert_int_equal(calls, ENTRIES + 2);
	assert_int_equal(list_all(&d, true, 65536, 65536, &calls), ENTRIES + 2);
	assert_int_equal(list_all(&d, true, 4096, 1 << 20, &calls), ENTRIES + 2);
	assert_true(calls > 1);
	assert_int_equal(list_all(&d, true, 0, 65536, &calls), ENTRIES + 2); /* a wish that cannot be granted */
	assert_int_equal(list_all(&d, true, 65536, 290, &calls), ENTRIES + 2);

	READDIR3args args = {.dir = fh(&d), .count = 100};
	READDIR3res res;
	for (args.count = 0; args.count < 132; args.count += 11) {
		nfs3(&root, READDIR, &args, &res);
		assert_int_equal(res.status, NFS3ERR_TOOSMALL);
	}
	READDIRPLUS3args pa = {.dir = fh(&d), .dircount = 1000, .maxcount = 200};
	READDIRPLUS3res pr;
	nfs3(&root, READDIRPLUS, &pa, &pr);
	assert_int_equal(pr.status, NFS3ERR_TOOSMALL);
	args.count = 4096;
	args.cookie = 5;
	args.cookieverf[3] = 1;
	nfs3(&root, READDIR, &args, &res);
	assert_int_equal(res.status, NFS3ERR_BAD_COOKIE);
	args.cookieverf[3] = 0;
	args.cookie = UINT64_MAX; /* behind the end */
	nfs3(&root, READDIR, &args, &res);
	assert_int_equal(res.status, NFS3_OK);
	assert_true(!res.resok.reply.entries && res.resok.reply.eof);
	args.dir = fh(&f);
	args.cookie = 0;
	nfs3(&root, READDIR, &args, &res);
	assert_int_equal(res.status, NFS3ERR_NOTDIR);

	/* cookies stay good while entries come and go */
	args = (READDIR3args){.dir = fh(&d), .count = 1024};
	nfs3(&root, READDIR, &args, &res);
	unsigned entries = 0;
	for (entry3 *e = res.resok.reply.entries; e; e = e->nextentry, entries++)
		args.cookie = e->cookie;
	for (unsigned i = 0; i < ENTRIES; i += 2) {
		snprintf(name, sizeof(name), "entry%03u", i);
		assert_int_equal(remove_name(&root, &d, name), NFS3_OK);
	}
	args.count = 65536;
	nfs3(&root, READDIR, &args, &res);
	assert_true(res.resok.reply.eof);
	unsigned rest = 0;
	for (entry3 *e = res.resok.reply.entries; e; e = e->nextentry, rest++)
		assert_true(e->cookie > args.cookie);
	assert_in_range(rest, (ENTRIES + 2 - entries) / 2, (ENTRIES + 2 - entries) / 2 + 1);
}

/* ------------------------------------------------------------------------------------------------
 * Snapshots
 */

/* The file system as it was, through the names and handles of its snapshot. */
static void snapshots(void **state)
{
	struct kept dir, file, snapdir, snap, old_dir, old;
	struct fattr3 attr, before, other;

	(void)state;
	assert_int_equal(make_dir(&root, &top, "snapped", &dir), NFS3_OK);
	assert_int_equal(create(&root, &dir, "f", UNCHECKED, NULL, &file, NULL), NFS3_OK);
	assert_int_equal(write_file(&root, &file, 0, 5000, 1, UNSTABLE, NULL), NFS3_OK);
	assert_int_equal(getattr(&root, &file, &before), NFS3_OK);
	assert_int_equal(run_tool(&run, "snapshot create a0/data one"), 0);
	assert_int_not_equal(run_tool(&run, "snapshot create a0/data one"), 0);
	assert_int_equal(write_file(&root, &file, 0, 9000, 2, FILE_SYNC, NULL), NFS3_OK);
	assert_int_equal(lookup(&root, &top, ".snapshot", &snapdir, &attr), NFS3_OK);
	assert_true(attr.type == NF3DIR && attr.fsid == before.fsid);
	assert_int_equal(lookup(&root, &snapdir, "one", &snap, &attr), NFS3_OK);
	assert_true(attr.type == NF3DIR && attr.fsid != before.fsid);
	assert_int_equal(lookup(&root, &snap, "snapped", &old_dir, NULL), NFS3_OK);
	assert_int_equal(lookup(&root, &old_dir, "f", &old, &other), NFS3_OK);
	assert_true(other.size == 5000 && other.fsid == attr.fsid && other.fileid == before.fileid);
	check_read(&root, &old, 0, 5000, 5000, true, 1);
	assert_int_equal(write_file(&root, &old, 0, 10, 3, FILE_SYNC, NULL), NFS3ERR_ROFS);
	assert_int_equal(create(&root, &old_dir, "g", UNCHECKED, NULL, NULL, NULL), NFS3ERR_ROFS);
	assert_int_equal(remove_name(&root, &old_dir, "f"), NFS3ERR_ROFS);
	assert_int_equal(make_dir(&root, &snapdir, "two", NULL), NFS3ERR_ROFS);
	assert_int_equal(remove_name(&root, &dir, "f"), NFS3_OK);
	check_read(&root, &old, 0, 5000, 5000, true, 1);
	assert_int_equal(run_tool(&run, "snapshot list a0/data"), 0);
	assert_int_equal(run_tool(&run, "snapshot delete --yes a0/data one"), 0);
	assert_int_equal(getattr(&root, &old, &attr), NFS3ERR_STALE);
	assert_int_equal(lookup(&root, &snapdir, "one", NULL, NULL), NFS3ERR_NOENT);
}

/* ------------------------------------------------------------------------------------------------
 * Arguments that nobody in his right mind sends
 */

static uint64_t noise_state;
static uint32_t noise(void)
{
	return (uint32_t)hash_u64(++noise_state);
}

/* Every procedure with arguments cut, changed and extended: an answer to each, and a server that goes on. */
static void hostile_arguments(void **state)
{
	static const struct {
		uint32_t program, procedures;
	} programs[] = {{NFS_PROGRAM, 22}, {MOUNT_PROGRAM, 6}};
	const uint64_t seed = 20261130;
	unsigned answers = 0;

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	noise_state = seed;
	for (unsigned i = 0; i < 4000; i++) {
		unsigned p = i % 8 == 7;
		uint32_t procedure = noise() % programs[p].procedures;
		struct xdr_out *o = client_begin(&user, programs[p].program, 3, procedure);
		uint8_t *start = o->p;
		/* a good handle and a name first, or many procedures would not get far */
		if (noise() % 8)
			xdr_put_opaque(o, top.data, top.len);
		if (noise() % 2)
			xdr_put_opaque(o, "hostile", noise() % 8);
		for (unsigned words = noise() % 40; words; words--)
			xdr_put_u32(o, noise() % 3 ? noise() % 4 : noise() % 2 ? noise() : UINT32_MAX - noise() % 8);
		for (unsigned flips = noise() % 3; flips && o->p > start; flips--)
			start[noise() % (uint32_t)(o->p - start)] ^= (uint8_t)(1u << noise() % 8);
		o->p -= noise() % 4 ? 0 : (uint32_t)(o->p - start) / 4 % 5 * 4;
		if (!client_try(&user)) /* it may throw us out, but no more */
			assert_true(client_connect(&user));
		else
			answers++;
	}
	assert_true(answers > 2000);
	assert_int_equal(getattr(&root, &top, NULL), NFS3_OK);
}

static int setup(void **state)
{
	(void)state;
	return group_start(exports_yaml);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mounting),
		cmocka_unit_test(access_of_exports),
		cmocka_unit_test(handles),
		cmocka_unit_test(null_and_unknown),
		cmocka_unit_test(create_modes),
		cmocka_unit_test(lookups),
		cmocka_unit_test(directories),
		cmocka_unit_test(renames),
		cmocka_unit_test(symlinks_and_nodes),
		cmocka_unit_test(attributes),
		cmocka_unit_test(access_rights),
		cmocka_unit_test(whole_file_system),
		cmocka_unit_test(read_edges),
		cmocka_unit_test(writes),
		cmocka_unit_test(reading_directories),
		cmocka_unit_test(snapshots),
		cmocka_unit_test(hostile_arguments),
	};
	return cmocka_run_group_tests(tests, setup, group_end);
}
