/*
 * NFSv4: owners as text: numbers and names of users and groups, taken, and given as the configuration says.
 */
#include <grp.h>
#include <pwd.h>

#include "tests/server/nfs4_test.h"

#define USER 1u /* every system has it */
static char user[64], group[64];

static void configure(const char *owners)
{
	char lines[128];

	snprintf(lines, sizeof(lines), "  owner_domain: Example.test\n  owners: %s\n", owners);
	run.server = lines;
	run_write_config(&run, RUN_EXPORT_YAML);
	run.server = NULL;
	assert_int_equal(kill(run.pid, SIGHUP), 0);
}

static nfsstat4 set_owner(struct v4 *v, unsigned bit, const char *owner)
{
	uint8_t bytes[400];
	struct xdr_out out;

	xdr_out_init(&out, bytes, sizeof(bytes));
	assert_true(xdr_put_opaque(&out, owner, (uint32_t)strlen(owner)));
	return setattr(v, "file", bit, bytes, (uint32_t)(out.p - bytes));
}

/* Whether the attribute is told as OWNER. */
static bool owner_is(struct v4 *v, unsigned bit, const char *owner)
{
	uint32_t len = (uint32_t)strlen(owner), padded = xdr_round(len);
	struct xdr_opaque text;

	begin(v, "file");
	put_getattr(v, bit);
	expect(v, NFS4_OK);
	if (xdr_in_left(&v->rpc.in) < 4 + padded)
		return false;
	at_end(v, 4 + padded);
	return xdr_get_opaque(&v->rpc.in, 1024, &text) && text.len == len && !memcmp(text.data, owner, len);
}

/* Reload is told to the process alone: so until it has done it. */
static void owner_becomes(struct v4 *v, unsigned bit, const char *owner)
{
	for (unsigned i = 0; i < 500 && !owner_is(v, bit, owner); i++)
		run_pause();
	assert_true(owner_is(v, bit, owner));
}

static const char *at(const char *name, const char *domain)
{
	static char text[200];

	snprintf(text, sizeof(text), "%s@%s", name, domain);
	return text;
}

static void taken(void **state)
{
	struct v4 v;
	char longer[300];
	(void)state;
	join(&v, "taken", 1);
	make_file(&v, "file");
	assert_int_equal(set_owner(&v, FATTR4_OWNER, at(user, "Example.test")), NFS4_OK);
	assert_true(owner_is(&v, FATTR4_OWNER, "1"));
	assert_int_equal(set_owner(&v, FATTR4_OWNER, "0"), NFS4_OK);
	assert_true(owner_is(&v, FATTR4_OWNER, "0"));
	assert_int_equal(set_owner(&v, FATTR4_OWNER, at(user, "eXAMPLE.TEST")), NFS4_OK);
	assert_true(owner_is(&v, FATTR4_OWNER, "1"));
	assert_int_equal(set_owner(&v, FATTR4_OWNER_GROUP, at(group, "Example.test")), NFS4_OK);
	assert_true(owner_is(&v, FATTR4_OWNER_GROUP, "1"));
	const char *const bad[] = {"@Example.test", "@", user, "nobody-has-this@Example.test", "1@Example.test",
		"root@", "root@example", "root@example.test.org", "-1", "1 ", "4294967296"};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(set_owner(&v, FATTR4_OWNER, bad[i]), NFS4ERR_BADOWNER);
	memset(longer, 'n', sizeof(longer));
	snprintf(longer + 280, 20, "@Example.test");
	assert_int_equal(set_owner(&v, FATTR4_OWNER, longer), NFS4ERR_BADOWNER);
	assert_true(owner_is(&v, FATTR4_OWNER, "1"));
	remove_it(&v, "file");
	v4_end(&v);
}

static void given(void **state)
{
	static const uint32_t mask[] = {0, 1u << (FATTR4_OWNER - 32) | 1u << (FATTR4_OWNER_GROUP - 32)};
	struct v4 v;
	(void)state;
	join(&v, "given", 1);
	make_file(&v, "file");
	assert_int_equal(set_owner(&v, FATTR4_OWNER, "1"), NFS4_OK);
	assert_int_equal(set_owner(&v, FATTR4_OWNER_GROUP, "1"), NFS4_OK);
	configure("names");
	owner_becomes(&v, FATTR4_OWNER, at(user, "Example.test"));
	assert_true(owner_is(&v, FATTR4_OWNER_GROUP, at(group, "Example.test")));
	/* what has no name is a number */
	assert_int_equal(set_owner(&v, FATTR4_OWNER, "4000000001"), NFS4_OK);
	assert_true(owner_is(&v, FATTR4_OWNER, "4000000001"));

	/* READDIR: each page ends before an owner that nobody has asked for yet, and the next one has it */
	char name[16], number[16];
	for (unsigned i = 0; i < 5; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		make_file(&v, "file2");
		snprintf(number, sizeof(number), "%u", i < 3 ? USER : 4000000100u + i);
		RENAME4args rename = {.oldname = text("file2"), .newname = text(name)};
		uint8_t bytes[32];
		struct xdr_out out;
		xdr_out_init(&out, bytes, sizeof(bytes));
		xdr_put_opaque(&out, number, (uint32_t)strlen(number));
		assert_int_equal(setattr(&v, "file2", FATTR4_OWNER, bytes, (uint32_t)(out.p - bytes)), NFS4_OK);
		begin(&v, "");
		v4_op(&v, OP_SAVEFH);
		v4_add(&v, RENAME, &rename);
		expect(&v, NFS4_OK);
	}
	READDIR4args args = {.dircount = 8192, .maxcount = 8192};
	args.attr_request.count = 2;
	args.attr_request.item = (uint32_t *)(uintptr_t)mask;
	READDIR4resok res = {.reply = {.eof = false}};
	SEQUENCE4resok sequence;
	unsigned names = 0, numbers = 0;
	v.cache = false;
	for (unsigned pages = 0; !res.reply.eof; pages++) {
		assert_true(pages < 20);
		begin(&v, "");
		v4_add(&v, READDIR, &args);
		expect(&v, NFS4_OK);
		assert_int_equal(v4_result(&v, OP_SEQUENCE), NFS4_OK);
		v4_take(&v, SEQUENCE4resok, &sequence);
		v4_took_root(&v);
		assert_int_equal(v4_result(&v, OP_READDIR), NFS4_OK);
		v4_take(&v, READDIR4resok, &res);
		for (const entry4 *e = res.reply.entries; e; e = e->nextentry) {
			args.cookie = e->cookie;
			struct xdr_opaque owner = {.len = 0};
			struct xdr_in in;
			xdr_in_init(&in, e->attrs.attr_vals.data, e->attrs.attr_vals.len, NULL);
			assert_true(xdr_get_opaque(&in, 1024, &owner));
			if (e->name.data[0] != 'f' || e->name.len != 2)
				continue;
			const char *want = at(user, "Example.test");
			if (owner.len == strlen(want) && !memcmp(owner.data, want, owner.len))
				names++;
			else if (owner.len == 10 && !memcmp(owner.data, "40000001", 8))
				numbers++;
		}
	}
	assert_int_equal(names, 3);
	assert_int_equal(numbers, 2);
	v.cache = true;
	for (unsigned i = 0; i < 5; i++) {
		snprintf(name, sizeof(name), "f%u", i);
		remove_it(&v, name);
	}
	assert_int_equal(set_owner(&v, FATTR4_OWNER, at(user, "Example.test")), NFS4_OK);
	configure("numbers");
	owner_becomes(&v, FATTR4_OWNER, "1");
	remove_it(&v, "file");
	v4_end(&v);
}

static int setup(void **state)
{
	const struct passwd *u = getpwuid(USER);
	const struct group *g = getgrgid(USER);

	(void)state;
	if (!u || !g)
		return -1;
	snprintf(user, sizeof(user), "%s", u->pw_name);
	snprintf(group, sizeof(group), "%s", g->gr_name);
	int rc = group_start(RUN_EXPORT_YAML);
	if (!rc)
		configure("numbers");
	return rc;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(taken),
		cmocka_unit_test(given),
	};
	return cmocka_run_group_tests(tests, setup, group_stop);
}
