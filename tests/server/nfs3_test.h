/*
 * What the tests of NFSv3 have in common: a server, a client of root and one of another user that joined it, and each
 * procedure as a function of what a test wants to vary. They check what every result must have and return its status.
 * Each test is one program with one server; a function that one test does not use is no mistake.
 */
#ifndef TESTS_NFS3_TEST_H
#define TESTS_NFS3_TEST_H

#include "tests/server/furrowd_run.h"

#pragma GCC diagnostic ignored "-Wunused-function"

static struct run run;
static struct client root, user; /* uid 0, uid 1000 */
static struct kept top;		 /* root directory of /data */

static struct sattr3 with_mode(uint32_t mode)
{
	struct sattr3 s = {.mode = {.set_it = true, .mode = mode}};
	return s;
}

static nfsstat3 lookup(struct client *c, struct kept *dir, const char *name, struct kept *out, struct fattr3 *attr)
{
	LOOKUP3args args = {.what = {.dir = fh(dir), .name = text(name)}};
	LOOKUP3res res;

	nfs3(c, LOOKUP, &args, &res);
	if (!res.status) {
		assert_true(res.resok.obj_attributes.attributes_follow && res.resok.dir_attributes.attributes_follow);
		if (out)
			*out = keep(&res.resok.object);
		if (attr)
			*attr = res.resok.obj_attributes.attributes;
	} else if (res.status != NFS3ERR_STALE && res.status != NFS3ERR_BADHANDLE) {
		assert_true(res.resfail.dir_attributes.attributes_follow);
	}
	return res.status;
}

static nfsstat3 create(struct client *c, struct kept *dir, const char *name, createmode3 mode, const char *verf,
	struct kept *out, struct fattr3 *attr)
{
	CREATE3args args = {.where = {.dir = fh(dir), .name = text(name)}, .how = {.mode = mode}};
	CREATE3res res;

	if (mode == EXCLUSIVE)
		memcpy(args.how.verf, verf, 8);
	else
		args.how.obj_attributes = with_mode(0644);
	nfs3(c, CREATE, &args, &res);
	if (!res.status) {
		assert_true(res.resok.obj.handle_follows && res.resok.obj_attributes.attributes_follow);
		assert_true(res.resok.dir_wcc.after.attributes_follow);
		if (out)
			*out = keep(&res.resok.obj.handle);
		if (attr)
			*attr = res.resok.obj_attributes.attributes;
	}
	return res.status;
}

static nfsstat3 make_dir(struct client *c, struct kept *dir, const char *name, struct kept *out)
{
	MKDIR3args args = {.where = {.dir = fh(dir), .name = text(name)}, .attributes = with_mode(0755)};
	MKDIR3res res;

	nfs3(c, MKDIR, &args, &res);
	if (!res.status && out)
		*out = keep(&res.resok.obj.handle);
	return res.status;
}

static nfsstat3 remove_name(struct client *c, struct kept *dir, const char *name)
{
	REMOVE3args args = {.object = {.dir = fh(dir), .name = text(name)}};
	REMOVE3res res;

	nfs3(c, REMOVE, &args, &res);
	return res.status;
}

static nfsstat3 remove_dir(struct client *c, struct kept *dir, const char *name)
{
	RMDIR3args args = {.object = {.dir = fh(dir), .name = text(name)}};
	RMDIR3res res;

	nfs3(c, RMDIR, &args, &res);
	return res.status;
}

static nfsstat3 rename_name(struct client *c, struct kept *from, const char *a, struct kept *to, const char *b)
{
	RENAME3args args = {.from = {.dir = fh(from), .name = text(a)}, .to = {.dir = fh(to), .name = text(b)}};
	RENAME3res res;

	nfs3(c, RENAME, &args, &res);
	return res.status;
}

static nfsstat3 getattr(struct client *c, struct kept *file, struct fattr3 *attr)
{
	GETATTR3args args = {.object = fh(file)};
	GETATTR3res res;

	nfs3(c, GETATTR, &args, &res);
	if (!res.status && attr)
		*attr = res.resok.obj_attributes;
	return res.status;
}

static nfsstat3 setattr(struct client *c, struct kept *file, const struct sattr3 *set, const struct nfstime3 *guard)
{
	SETATTR3args args = {.object = fh(file), .new_attributes = *set};
	SETATTR3res res;

	if (guard) {
		args.guard.check = true;
		args.guard.obj_ctime = *guard;
	}
	nfs3(c, SETATTR, &args, &res);
	if (!res.status)
		assert_true(res.resok.obj_wcc.before.attributes_follow && res.resok.obj_wcc.after.attributes_follow);
	return res.status;
}

/* The byte of a file at OFF that pattern SEED writes. */
static uint8_t pattern(uint64_t off, uint32_t seed)
{
	return (uint8_t)(off * 7 + (off >> 8) * 13 + seed);
}

static nfsstat3 write_file(struct client *c, struct kept *file, uint64_t off, uint32_t count, uint32_t seed,
	stable_how stable, WRITE3resok *ok)
{
	WRITE3args args = {.file = fh(file), .offset = off, .count = count, .stable = stable, .data = {.len = count}};
	WRITE3res res;
	struct xdr_out *o = client_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_WRITE);

	assert_true(xdr_encode_WRITE3args(o, &args));
	for (uint32_t i = 0; i < count; i++)
		*o->p++ = pattern(off + i, seed);
	for (; count & 3; count++)
		*o->p++ = 0;
	client_call(c);
	client_result(c, WRITE3res, &res);
	if (!res.status) {
		assert_int_equal(res.resok.count, args.count);
		if (ok)
			*ok = res.resok;
	}
	return res.status;
}

/* The payload is res->resok.data.inline_data. */
static nfsstat3 read_file(struct client *c, struct kept *file, uint64_t off, uint32_t count, READ3res *res)
{
	READ3args args = {.file = fh(file), .offset = off, .count = count};

	nfs3(c, READ, &args, res);
	if (!res->status)
		assert_int_equal(res->resok.count, res->resok.data.len);
	return res->status;
}

static void check_read(
	struct client *c, struct kept *file, uint64_t off, uint32_t count, uint32_t expected, bool eof, uint32_t seed)
{
	READ3res res;

	assert_int_equal(read_file(c, file, off, count, &res), NFS3_OK);
	if (res.resok.count != expected || res.resok.eof != eof)
		fail_msg("read of %u at %llu: %u bytes, eof %d instead of %u, %d", count, (unsigned long long)off,
			res.resok.count, res.resok.eof, expected, eof);
	for (uint32_t i = 0; i < expected; i++)
		if (res.resok.data.inline_data[i] != pattern(off + i, seed))
			fail_msg("wrong byte at %llu", (unsigned long long)(off + i));
}

static uint64_t commit(struct client *c, struct kept *file)
{
	COMMIT3args args = {.file = fh(file)};
	COMMIT3res res;
	uint64_t verifier;

	nfs3(c, COMMIT, &args, &res);
	assert_int_equal(res.status, NFS3_OK);
	memcpy(&verifier, res.resok.verf, 8);
	return verifier;
}

static nfsstat3 make_symlink(
	struct client *c, struct kept *dir, const char *name, const char *target, uint32_t len, SYMLINK3res *res)
{
	SYMLINK3args args = {.where = {.dir = fh(dir), .name = text(name)},
		.symlink = {.symlink_attributes = with_mode(0777), .symlink_data = {.len = len}}};
	struct xdr_out *o = client_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_SYMLINK);

	assert_true(xdr_encode_SYMLINK3args(o, &args));
	memcpy(o->p, target, len);
	memset(o->p + len, 0, 3);
	o->p += xdr_round(len);
	client_call(c);
	client_result(c, SYMLINK3res, res);
	return res->status;
}

static void reconnect(void)
{
	assert_true(client_connect(&root) && client_connect(&user));
}

/* For the setup of a group: EXPORTS must have /data. */
static int group_start(const char *exports)
{
	mountstat3 status;

	run_init(&run, exports);
	run_start(&run);
	client_init(&root, run.port, 0);
	client_init(&user, run.port, 1000);
	reconnect();
	top = client_mount(&root, "/data", &status);
	assert_int_equal(status, MNT3_OK);
	return 0;
}

static int group_end(void **state)
{
	(void)state;
	client_fini(&root);
	client_fini(&user);
	if (run.pid > 0)
		run_stop(&run, SIGTERM);
	run_fini(&run);
	return 0;
}

#endif
