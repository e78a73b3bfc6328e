/* Names: lookup, create, link, remove, rename, readdir, permissions, replies; over remounts. */
#include "tests/fs/files_test.h"

/* ------------------------------------------------------------------------------------------------
 */

struct listing {
	unsigned n, room;
	char name[600][64];
	uint64_t cookie[600];
	uint64_t ino[600];
};

static bool listing_add(void *arg, const struct fs_dirent *e)
{
	struct listing *l = arg;

	if (l->n == l->room)
		return false;
	snprintf(l->name[l->n], sizeof(l->name[0]), "%.*s", (int)e->name_len, e->name);
	l->cookie[l->n] = e->cookie;
	l->ino[l->n++] = e->id.ino;
	return true;
}

static int list_dir(
	struct files_test *t, struct fs_id dir, uint64_t cookie, unsigned room, struct listing *l, bool *eof)
{
	l->n = 0;
	l->room = room;
	return fs_readdir(t->fs, &op_root, dir, cookie, true, listing_add, l, eof, NULL);
}

static void body_basic(void *arg)
{
	struct files_test *t = arg;
	struct fs_id a, f, l;
	struct fs_attr attr, dir_attr;
	struct fs_setattr set = {.set = FS_SET_MODE, .mode = 0600};
	char target[FS_SYMLINK_MAX];
	char text[FS_SYMLINK_MAX + 2];
	struct fs_wcc wcc = {0};
	int r;

	CHECK_OK(files_test_create(t, 6));
	CHECK_IS(t_lookup(t, t->root, "a", NULL), -ENOENT);
	CHECK_OK(t_mkdir(t, t->root, "a", &a));
	CHECK_IS(t_mkdir(t, t->root, "a", NULL), -EEXIST);
	CHECK_OK(t_lookup(t, t->root, "a", &attr));
	CHECK_IS(attr.id.ino, a.ino);
	CHECK_IS(attr.type, FS_DIR);
	CHECK_IS(attr.nlink, 2);
	CHECK_IS(attr.mode, 0755);
	CHECK_OK(fs_getattr(t->fs, t->root, &attr));
	CHECK_IS(attr.nlink, 3);
	CHECK_OK(fs_create_file(t->fs, &op_root, a, "f", 1, FS_CREATE_UNCHECKED, &set, 0, &attr, &wcc));
	f = attr.id;
	CHECK(wcc.valid && wcc.after.change > wcc.before.change);
	CHECK_OK(fs_lookup(t->fs, &op_root, a, "..", 2, &attr, &dir_attr));
	CHECK_IS(attr.id.ino, FS_ROOT_INO);
	CHECK_IS(dir_attr.id.ino, a.ino);
	CHECK_OK(fs_lookup(t->fs, &op_root, t->root, "..", 2, &attr, NULL));
	CHECK_IS(attr.id.ino, FS_ROOT_INO);
	dir_attr.id.ino = 0;
	CHECK_IS(fs_lookup(t->fs, &op_root, a, "none", 4, &attr, &dir_attr), -ENOENT);
	CHECK_IS(dir_attr.id.ino, a.ino);
	CHECK_IS(fs_lookup(t->fs, &op_root, f, "x", 1, &attr, NULL), -ENOTDIR);
	/* names that cannot be */
	memset(text, 'n', sizeof(text));
	CHECK_IS(fs_mkdir(t->fs, &op_root, a, text, 256, NULL, &attr, NULL), -ENAMETOOLONG);
	CHECK_OK(fs_mkdir(t->fs, &op_root, a, text, 255, NULL, &attr, NULL));
	CHECK_OK(fs_rmdir(t->fs, &op_root, a, text, 255, NULL));
	CHECK_IS(fs_mkdir(t->fs, &op_root, a, "x/y", 3, NULL, &attr, NULL), -EINVAL);
	CHECK_IS(fs_mkdir(t->fs, &op_root, a, "", 0, NULL, &attr, NULL), -EINVAL);
	CHECK_IS(fs_mkdir(t->fs, &op_root, a, ".", 1, NULL, &attr, NULL), -EEXIST);
	CHECK_IS(fs_mkdir(t->fs, &op_root, a, "a\0b", 3, NULL, &attr, NULL), -EINVAL);
	/* symbolic links */
	CHECK_OK(fs_symlink(t->fs, &op_root, a, "s", 1, "to/there", 8, NULL, &attr, NULL));
	CHECK_IS(fs_readlink(t->fs, &op_root, attr.id, target, sizeof(target), NULL), 8);
	CHECK(memcmp(target, "to/there", 8) == 0);
	CHECK_IS(fs_symlink(t->fs, &op_root, a, "s2", 2, text, FS_SYMLINK_MAX + 1, NULL, &attr, NULL), -ENAMETOOLONG);
	CHECK_OK(fs_symlink(t->fs, &op_root, a, "s2", 2, text, FS_SYMLINK_MAX, NULL, &attr, NULL));
	l = attr.id;
	/* links */
	CHECK_OK(fs_link(t->fs, &op_root, f, t->root, "g", 1, &attr, NULL));
	CHECK_IS(attr.nlink, 2);
	CHECK_IS(fs_link(t->fs, &op_root, a, t->root, "h", 1, &attr, NULL), -EISDIR);
	CHECK_IS(fs_link(t->fs, &op_root, f, t->root, "g", 1, &attr, NULL), -EEXIST);
	/* nodes */
	CHECK_OK(fs_mknod(t->fs, &op_root, a, "dev", 3, FS_BLK, 259, 70000, &set, &attr, NULL));
	CHECK_IS(attr.rdev_minor, 70000);
	CHECK_IS(t_check(t), 0);

	CHECK_OK(files_test_remount(t));
	CHECK_OK(t_lookup(t, a, "dev", &attr));
	CHECK_IS(attr.type, FS_BLK);
	CHECK_IS(attr.rdev_major, 259);
	CHECK_OK(t_lookup(t, t->root, "g", &attr));
	CHECK_IS(attr.id.ino, f.ino);
	CHECK_IS(attr.id.gen, f.gen);
	CHECK_IS(attr.mode, 0600);
	r = fs_readlink(t->fs, &op_root, l, target, sizeof(target), NULL);
	CHECK_IS(r, FS_SYMLINK_MAX);
	CHECK(memcmp(target, text, FS_SYMLINK_MAX) == 0);
	CHECK_IS(t_rmdir(t, t->root, "a"), -ENOTEMPTY);
	CHECK_IS(t_unlink(t, t->root, "a"), -EISDIR);
	CHECK_IS(t_rmdir(t, t->root, "g"), -ENOTDIR);
	CHECK_OK(t_unlink(t, a, "f"));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.nlink, 1);
	CHECK_OK(t_unlink(t, t->root, "g"));
	CHECK_IS(fs_getattr(t->fs, f, &attr), -ESTALE);
	CHECK_OK(t_unlink(t, a, "s"));
	CHECK_OK(t_unlink(t, a, "s2"));
	CHECK_OK(t_unlink(t, a, "dev"));
	CHECK_OK(t_rmdir(t, t->root, "a"));
	CHECK_IS(fs_getattr(t->fs, a, &attr), -ESTALE);
	CHECK_IS(t_mkdir(t, a, "x", NULL), -ESTALE);
	CHECK_OK(fs_getattr(t->fs, t->root, &attr));
	CHECK_IS(attr.nlink, 2);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

static void body_exclusive(void *arg)
{
	struct files_test *t = arg;
	struct fs_attr attr, again;
	struct fs_setattr size = {.set = FS_SET_SIZE, .size = 0};

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(fs_create_file(t->fs, &op_root, t->root, "x", 1, FS_CREATE_EXCLUSIVE, NULL, 77, &attr, NULL));
	CHECK_OK(fs_create_file(t->fs, &op_root, t->root, "x", 1, FS_CREATE_EXCLUSIVE, NULL, 77, &again, NULL));
	CHECK_IS(again.id.ino, attr.id.ino);
	CHECK_IS(
		fs_create_file(t->fs, &op_root, t->root, "x", 1, FS_CREATE_EXCLUSIVE, NULL, 78, &again, NULL), -EEXIST);
	CHECK_OK(files_test_remount(t));
	CHECK_OK(fs_create_file(t->fs, &op_root, t->root, "x", 1, FS_CREATE_EXCLUSIVE, NULL, 77, &again, NULL));
	CHECK_IS(again.id.ino, attr.id.ino);
	CHECK_IS(fs_create_file(t->fs, &op_root, t->root, "x", 1, FS_CREATE_GUARDED, NULL, 0, &again, NULL), -EEXIST);
	CHECK_IS(t_write(t, attr.id, 0, "hello", 5, FS_FILE_SYNC), 0);
	CHECK_OK(fs_create_file(t->fs, &op_root, t->root, "x", 1, FS_CREATE_UNCHECKED, NULL, 0, &again, NULL));
	CHECK_IS(again.size, 5);
	CHECK_OK(fs_create_file(t->fs, &op_root, t->root, "x", 1, FS_CREATE_UNCHECKED, &size, 0, &again, NULL));
	CHECK_IS(again.size, 0);
	CHECK_IS(again.id.ino, attr.id.ino);
	CHECK_OK(t_mkdir(t, t->root, "d", NULL));
	CHECK_IS(fs_create_file(t->fs, &op_root, t->root, "d", 1, FS_CREATE_UNCHECKED, NULL, 0, &again, NULL), -EISDIR);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

static void body_rename(void *arg)
{
	struct files_test *t = arg;
	struct fs_id a, b, c, f, g;
	struct fs_attr attr;

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_mkdir(t, t->root, "a", &a));
	CHECK_OK(t_mkdir(t, a, "b", &b));
	CHECK_OK(t_mkdir(t, b, "c", &c));
	CHECK_OK(t_create(t, t->root, "f", &f));
	CHECK_OK(t_create(t, t->root, "g", &g));
	/* below itself */
	CHECK_IS(t_rename(t, t->root, "a", a, "x"), -EINVAL);
	CHECK_IS(t_rename(t, t->root, "a", c, "x"), -EINVAL);
	CHECK_IS(t_rename(t, t->root, "none", a, "x"), -ENOENT);
	CHECK_IS(t_rename(t, t->root, "f", t->root, "a"), -EISDIR);
	CHECK_IS(t_rename(t, t->root, "a", t->root, "f"), -ENOTDIR);
	CHECK_IS(t_rename(t, b, "c", t->root, "a"), -ENOTEMPTY);
	CHECK_IS(t_rename(t, t->root, ".", t->root, "z"), -EINVAL);
	/* over a file */
	CHECK_OK(t_rename(t, t->root, "f", t->root, "g"));
	CHECK_IS(t_lookup(t, t->root, "f", NULL), -ENOENT);
	CHECK_OK(t_lookup(t, t->root, "g", &attr));
	CHECK_IS(attr.id.ino, f.ino);
	CHECK_IS(fs_getattr(t->fs, g, &attr), -ESTALE);
	/* two links of one file: nothing happens */
	CHECK_OK(fs_link(t->fs, &op_root, f, a, "f2", 2, NULL, NULL));
	CHECK_OK(t_rename(t, a, "f2", t->root, "g"));
	CHECK_OK(t_lookup(t, a, "f2", &attr));
	CHECK_IS(attr.nlink, 2);
	/* a directory to another parent */
	CHECK_OK(t_rename(t, b, "c", t->root, "c"));
	CHECK_OK(t_lookup(t, c, "..", &attr));
	CHECK_IS(attr.id.ino, FS_ROOT_INO);
	CHECK_IS(attr.nlink, 4);
	CHECK_OK(fs_getattr(t->fs, b, &attr));
	CHECK_IS(attr.nlink, 2);
	/* a directory over an empty one */
	CHECK_OK(t_rename(t, t->root, "c", a, "b"));
	CHECK_OK(t_lookup(t, a, "b", &attr));
	CHECK_IS(attr.id.ino, c.ino);
	CHECK_IS(fs_getattr(t->fs, b, &attr), -ESTALE);
	CHECK_OK(fs_getattr(t->fs, a, &attr));
	CHECK_IS(attr.nlink, 3);
	CHECK_OK(t_rename(t, a, "b", a, "b"));
	CHECK_IS(t_check(t), 0);
	CHECK_OK(files_test_remount(t));
	CHECK_IS(t_check(t), 0);
	CHECK_OK(t_lookup(t, c, "..", &attr));
	CHECK_IS(attr.id.ino, a.ino);
	files_test_close(t);
}

/* Entries come once each, in order, and stay where they are whatever comes and goes around them. */
static void body_readdir(void *arg)
{
	struct files_test *t = arg;
	struct listing *l = malloc(sizeof(*l)), *rest = malloc(sizeof(*rest));
	struct fs_id d, id;
	struct fs_attr attr;
	uint64_t cookie;
	bool eof;
	char name[64];

	CHECK_OK(files_test_create(t, 6));
	CHECK_OK(t_mkdir(t, t->root, "d", &d));
	CHECK_OK(list_dir(t, d, 0, 600, l, &eof));
	CHECK(eof && l->n == 2 && l->cookie[0] == 1 && l->cookie[1] == 2 && l->ino[1] == FS_ROOT_INO);
	for (unsigned i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "file-with-a-long-name-to-fill-nodes-%u", i);
		CHECK_OK(t_create(t, d, name, &id));
	}
	CHECK_OK(list_dir(t, d, 0, 600, l, &eof));
	CHECK(eof && l->n == 302);
	for (unsigned i = 3; i < l->n; i++)
		CHECK(l->cookie[i] > l->cookie[i - 1]);
	/* in pieces */
	cookie = 0;
	for (unsigned i = 0; i < 302; i += 7) {
		CHECK_OK(list_dir(t, d, cookie, 7, rest, &eof));
		CHECK(rest->n == (302 - i < 7 ? 302 - i : 7));
		for (unsigned j = 0; j < rest->n; j++)
			CHECK(strcmp(rest->name[j], l->name[i + j]) == 0);
		cookie = rest->cookie[rest->n - 1];
	}
	CHECK_OK(list_dir(t, d, cookie, 7, rest, &eof));
	CHECK(eof && rest->n == 0);
	/* what was there all the time comes once, with other names coming and going */
	CHECK_OK(list_dir(t, d, 0, 100, rest, &eof));
	CHECK(!eof && rest->n == 100);
	cookie = rest->cookie[99];
	CHECK_OK(t_unlink(t, d, l->name[99])); /* the cookie's own entry */
	CHECK_OK(t_unlink(t, d, l->name[50]));
	CHECK_OK(t_unlink(t, d, l->name[100]));
	CHECK_OK(t_create(t, d, l->name[50], &id));
	CHECK_OK(t_create(t, d, "new", &id));
	CHECK_OK(t_rename(t, d, l->name[200], d, l->name[201]));
	CHECK_OK(files_test_remount(t));
	CHECK_OK(list_dir(t, d, cookie, 600, rest, &eof));
	CHECK(eof && rest->n == 302 - 101 - 1 + 2);
	CHECK(strcmp(rest->name[0], l->name[101]) == 0);
	CHECK(strcmp(rest->name[98], l->name[199]) == 0);
	CHECK(strcmp(rest->name[99], l->name[201]) == 0);
	CHECK(strcmp(rest->name[rest->n - 1], "new") == 0);
	for (unsigned i = 1; i < rest->n; i++)
		CHECK(rest->cookie[i] > rest->cookie[i - 1]);
	CHECK_OK(fs_getattr(t->fs, d, &attr));
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	free(l);
	free(rest);
}

/* All names share one hash: 256 of them fit, and each is found, replaced and removed. */
static void body_collisions(void *arg)
{
	struct files_test *t = arg;
	struct fs_id id[NAME_COLLISIONS];
	struct fs_attr attr;
	char name[32];

	CHECK_OK(files_test_create(t, 6));
	name_hash_mask = 0;
	for (unsigned i = 0; i < NAME_COLLISIONS; i++) {
		snprintf(name, sizeof(name), "c%u", i);
		CHECK_OK(t_create(t, t->root, name, &id[i]));
	}
	CHECK_IS(t_create(t, t->root, "more", &id[0]), -ENOSPC);
	CHECK_OK(files_test_remount(t));
	for (unsigned i = 0; i < NAME_COLLISIONS; i++) {
		snprintf(name, sizeof(name), "c%u", i);
		CHECK_OK(t_lookup(t, t->root, name, &attr));
		if (i > 0)
			CHECK_IS(attr.id.ino, id[i].ino);
	}
	CHECK_OK(t_unlink(t, t->root, "c17"));
	CHECK_OK(t_unlink(t, t->root, "c200"));
	CHECK_OK(t_rename(t, t->root, "c3", t->root, "renamed"));
	CHECK_OK(t_rename(t, t->root, "c4", t->root, "c5"));
	CHECK_OK(t_create(t, t->root, "again", &id[0]));
	CHECK_IS(t_lookup(t, t->root, "c17", &attr), -ENOENT);
	CHECK_OK(t_lookup(t, t->root, "renamed", &attr));
	CHECK_IS(attr.id.ino, id[3].ino);
	CHECK_OK(t_lookup(t, t->root, "c5", &attr));
	CHECK_IS(attr.id.ino, id[4].ino);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

/* ------------------------------------------------------------------------------------------------
 * Permissions
 */

static int make_as(struct files_test *t, const struct fs_op *op, struct fs_id dir, const char *name, uint32_t mode,
	struct fs_attr *attr)
{
	struct fs_setattr set = {.set = FS_SET_MODE, .mode = mode};

	return fs_create_file(t->fs, op, dir, name, strlen(name), FS_CREATE_GUARDED, &set, 0, attr, NULL);
}

static int set_as(struct files_test *t, const struct fs_op *op, struct fs_id id, struct fs_setattr set)
{
	return fs_setattr(t->fs, op, id, &set, NULL, NULL);
}

static void body_permissions(void *arg)
{
	struct files_test *t = arg;
	struct fs_cred alice = {.uid = 1000, .gid = 1000, .group_count = 1, .groups = {500}};
	struct fs_cred bob = {.uid = 1001, .gid = 1001};
	struct fs_op as_alice = {.cred = &alice}, as_bob = {.cred = &bob};
	struct fs_op owner = {.cred = &alice, .owner_override = true};
	struct fs_attr attr, sub;
	struct fs_id tmp, f;
	struct fs_setattr dir_mode = {.set = FS_SET_MODE, .mode = 0755};
	struct slice v[4];
	uint32_t allowed, count;
	unsigned n;
	bool eof;
	int nv;

	CHECK_OK(files_test_create(t, 6));
	CHECK_IS(make_as(t, &as_alice, t->root, "x", 0644, &attr), -EACCES);
	CHECK_OK(t_mkdir(t, t->root, "tmp", &tmp));
	CHECK_OK(set_as(t, &op_root, tmp, (struct fs_setattr){.set = FS_SET_MODE, .mode = 01777}));
	CHECK_OK(make_as(t, &as_alice, tmp, "x", 0640, &attr));
	f = attr.id;
	CHECK_IS(attr.uid, 1000);
	CHECK_IS(attr.gid, 1000);
	/* sticky */
	CHECK_IS(fs_unlink(t->fs, &as_bob, tmp, "x", 1, NULL), -EPERM);
	CHECK_IS(fs_rename(t->fs, &as_bob, tmp, "x", 1, tmp, "y", 1, NULL, NULL), -EPERM);
	CHECK_OK(make_as(t, &as_bob, tmp, "b", 0644, &sub));
	CHECK_IS(fs_rename(t->fs, &as_bob, tmp, "b", 1, tmp, "x", 1, NULL, NULL), -EPERM);
	/* chmod, chown */
	CHECK_IS(set_as(t, &as_bob, f, (struct fs_setattr){.set = FS_SET_MODE, .mode = 0777}), -EPERM);
	CHECK_IS(set_as(t, &as_alice, f, (struct fs_setattr){.set = FS_SET_UID, .uid = 1001}), -EPERM);
	CHECK_OK(set_as(t, &as_alice, f, (struct fs_setattr){.set = FS_SET_GID, .gid = 500}));
	CHECK_IS(set_as(t, &as_alice, f, (struct fs_setattr){.set = FS_SET_GID, .gid = 501}), -EPERM);
	CHECK_OK(set_as(t, &as_alice, f, (struct fs_setattr){.set = FS_SET_MODE, .mode = 06755}));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.mode, 06755);
	/* a write by somebody else than root takes the rights away */
	nv = fs_write_buffers(0, 100, v, 4);
	memset(slice_data(&v[0]), 'x', 100);
	CHECK_IS(fs_write(t->fs, &as_bob, f, 0, v, (unsigned)nv, FS_FILE_SYNC, NULL, NULL), -EACCES);
	CHECK_OK(fs_write(t->fs, &op_root, f, 0, v, (unsigned)nv, FS_FILE_SYNC, NULL, NULL));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.mode, 06755);
	CHECK_OK(fs_write(t->fs, &as_alice, f, 0, v, (unsigned)nv, FS_FILE_SYNC, NULL, NULL));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.mode, 0755);
	CHECK_OK(set_as(t, &as_alice, f, (struct fs_setattr){.set = FS_SET_MODE, .mode = 06755}));
	CHECK_OK(set_as(t, &op_root, f, (struct fs_setattr){.set = FS_SET_UID, .uid = 1000}));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.mode, 0755);
	/* setgid of a group that the owner is not in */
	CHECK_OK(set_as(t, &op_root, f, (struct fs_setattr){.set = FS_SET_GID, .gid = 7}));
	CHECK_OK(set_as(t, &as_alice, f, (struct fs_setattr){.set = FS_SET_MODE, .mode = 02755}));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.mode, 0755);
	/* the owner's rights */
	CHECK_OK(set_as(t, &as_alice, f, (struct fs_setattr){.set = FS_SET_MODE, .mode = 0}));
	CHECK_IS(fs_write(t->fs, &as_alice, f, 0, v, (unsigned)nv, FS_FILE_SYNC, NULL, NULL), -EACCES);
	CHECK_OK(fs_write(t->fs, &owner, f, 0, v, (unsigned)nv, FS_FILE_SYNC, NULL, NULL));
	slices_put(v, (unsigned)nv);
	count = 10;
	{
		struct slice out[FS_READ_SLICES];

		CHECK_IS(fs_read(t->fs, &as_alice, f, 0, &count, out, &n, &eof, NULL), -EACCES);
		CHECK_OK(fs_read(t->fs, &owner, f, 0, &count, out, &n, &eof, NULL));
		slices_put(out, n);
	}
	CHECK_IS(set_as(t, &as_alice, f, (struct fs_setattr){.set = FS_SET_SIZE, .size = 1}), -EACCES);
	CHECK_OK(set_as(t, &owner, f, (struct fs_setattr){.set = FS_SET_SIZE, .size = 1}));
	/* times */
	CHECK_IS(set_as(t, &as_bob, f, (struct fs_setattr){.set = FS_SET_MTIME_NOW}), -EACCES);
	CHECK_IS(set_as(t, &as_bob, f, (struct fs_setattr){.set = FS_SET_MTIME, .mtime = {5, 6}}), -EPERM);
	CHECK_OK(set_as(t, &as_alice, f, (struct fs_setattr){.set = FS_SET_MTIME, .mtime = {-5, 6}}));
	CHECK_OK(set_as(t, &as_alice, f, (struct fs_setattr){.set = FS_SET_MODE, .mode = 0666}));
	CHECK_OK(fs_getattr(t->fs, f, &attr));
	CHECK_IS(attr.mtime.tv_sec, -5);
	CHECK_IS(attr.mtime.tv_nsec, 6);
	CHECK_OK(set_as(t, &as_bob, f, (struct fs_setattr){.set = FS_SET_MTIME_NOW}));
	/* a guard that does not hold */
	{
		struct timespec wrong = {1, 1};
		struct fs_setattr set = {.set = FS_SET_MODE, .mode = 0600};
		struct fs_wcc wcc = {0};

		CHECK_IS(fs_setattr(t->fs, &as_alice, f, &set, &wrong, &wcc), -EBUSY);
		CHECK(wcc.valid);
		CHECK_OK(fs_setattr(t->fs, &as_alice, f, &set, &wcc.after.ctime, &wcc));
	}
	/* setgid directories */
	CHECK_OK(fs_mkdir(t->fs, &op_root, t->root, "shared", 6, &dir_mode, &attr, NULL));
	CHECK_OK(set_as(t, &op_root, attr.id, (struct fs_setattr){.set = FS_SET_GID, .gid = 500}));
	CHECK_OK(set_as(t, &op_root, attr.id, (struct fs_setattr){.set = FS_SET_MODE, .mode = 02775}));
	CHECK_IS(make_as(t, &as_bob, attr.id, "no", 0644, &sub), -EACCES);
	CHECK_OK(make_as(t, &as_alice, attr.id, "yes", 0644, &sub));
	CHECK_IS(sub.gid, 500);
	CHECK_OK(fs_mkdir(t->fs, &as_alice, attr.id, "d", 1, &dir_mode, &sub, NULL));
	CHECK_IS(sub.gid, 500);
	CHECK_IS(sub.mode, 02755);
	/* access */
	CHECK_OK(fs_access(t->fs, &as_bob, attr.id, 15, &allowed, NULL));
	CHECK_IS(allowed, FS_MAY_READ | FS_MAY_EXEC);
	CHECK_OK(fs_access(t->fs, &as_alice, attr.id, 15, &allowed, NULL));
	CHECK_IS(allowed, 15);
	CHECK_OK(fs_access(t->fs, &op_root, f, 7, &allowed, NULL));
	CHECK_IS(allowed, FS_MAY_READ | FS_MAY_WRITE);
	/* search */
	CHECK_OK(set_as(t, &op_root, attr.id, (struct fs_setattr){.set = FS_SET_MODE, .mode = 0770}));
	CHECK_IS(fs_lookup(t->fs, &as_bob, attr.id, "yes", 3, &sub, NULL), -EACCES);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

/* ------------------------------------------------------------------------------------------------
 * Replies
 */

struct reply_seen {
	unsigned n;
	uint32_t first, last;
	struct fs_id id;
};

static void reply_see(void *arg, const struct fs_reply *reply)
{
	struct reply_seen *seen = arg;

	if (seen->n++ == 0)
		seen->first = reply->xid;
	seen->last = reply->xid;
	seen->id = reply->id;
}

static void body_replies(void *arg)
{
	struct files_test *t = arg;
	struct fs_reply reply = {.client = 9, .proc = 8, .checksum = 7};
	struct fs_op op = {.cred = &cred_root, .reply = &reply};
	struct reply_seen seen = {0};
	struct fs_attr attr = {0};
	char name[32];

	CHECK_OK(files_test_create(t, 1));
	for (unsigned i = 0; i < FS_REPLIES + 50; i++) {
		reply.xid = i;
		snprintf(name, sizeof(name), "n%u", i % 10);
		if (i % 20 < 10)
			CHECK_OK(fs_mkdir(t->fs, &op, t->root, name, strlen(name), NULL, &attr, NULL));
		else
			CHECK_OK(fs_rmdir(t->fs, &op, t->root, name, strlen(name), NULL));
	}
	CHECK_OK(files_test_remount(t));
	fs_replies_foreach(t->fs, reply_see, &seen);
	CHECK_IS(seen.n, FS_REPLIES);
	CHECK_IS(seen.first, 50);
	CHECK_IS(seen.last, FS_REPLIES + 49);
	reply.xid = 99999;
	CHECK_OK(fs_mkdir(t->fs, &op, t->root, "last", 4, NULL, &attr, NULL));
	CHECK_OK(files_test_remount(t));
	seen.n = 0;
	fs_replies_foreach(t->fs, reply_see, &seen);
	CHECK_IS(seen.n, FS_REPLIES);
	CHECK_IS(seen.last, 99999);
	CHECK_IS(seen.id.ino, attr.id.ino);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
}

static void run(void (*body)(void *), unsigned drives)
{
	static struct files_test t;

	files_test_drives(&t, drives, 64ull << 20);
	name_hash_mask = UINT64_MAX;
	files_test_run(body, &t);
	name_hash_mask = UINT64_MAX;
	fault_reset();
	files_test_remove(&t);
}

static void test_basic(void **state)
{
	(void)state;
	run(body_basic, 4);
}
static void test_exclusive(void **state)
{
	(void)state;
	run(body_exclusive, 4);
}
static void test_rename(void **state)
{
	(void)state;
	run(body_rename, 4);
}
static void test_readdir(void **state)
{
	(void)state;
	run(body_readdir, 4);
}
static void test_collisions(void **state)
{
	(void)state;
	run(body_collisions, 4);
}
static void test_permissions(void **state)
{
	(void)state;
	run(body_permissions, 4);
}
static void test_replies(void **state)
{
	(void)state;
	run(body_replies, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_basic),
		cmocka_unit_test(test_exclusive),
		cmocka_unit_test(test_rename),
		cmocka_unit_test(test_readdir),
		cmocka_unit_test(test_collisions),
		cmocka_unit_test(test_permissions),
		cmocka_unit_test(test_replies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
