/* Who may do what: the rule that covers a client, squashing, paths below exports, tables that must be refused; and
 * errors on the wire. */
#include <arpa/inet.h>
#include <errno.h>
#include <grp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "server/nfs_internal.h"

static struct config_clients clients(const char *net, unsigned prefix)
{
	struct config_clients c = {.prefix = prefix};
	struct in_addr v4;

	snprintf(c.text, sizeof(c.text), "%s/%u", net, prefix);
	if (inet_pton(AF_INET, net, &v4) == 1) {
		c.net.s6_addr[10] = c.net.s6_addr[11] = 0xff;
		memcpy(&c.net.s6_addr[12], &v4, 4);
		c.prefix += 96;
	} else {
		assert_int_equal(inet_pton(AF_INET6, net, &c.net), 1);
	}
	return c;
}

static struct sockaddr_storage peer(const char *address)
{
	struct sockaddr_storage ss = {0};
	struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)&ss;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)&ss;

	if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
	} else {
		assert_int_equal(inet_pton(AF_INET6, address, &v6->sin6_addr), 1);
		v6->sin6_family = AF_INET6;
	}
	return ss;
}

static void longest_prefix(void **state)
{
	struct config_clients any[] = {clients("0.0.0.0", 0), clients("::", 0)};
	struct config_clients ten[] = {clients("10.0.0.0", 8)};
	struct config_clients odd[] = {clients("10.1.2.128", 25), clients("2001:db8::", 33)};
	struct config_clients one[] = {clients("10.1.2.200", 32), clients("2001:db8:0:1::5", 128)};
	struct config_allow allow[] = {
		{.clients = any, .client_count = 2},
		{.clients = one, .client_count = 2},
		{.clients = ten, .client_count = 1},
		{.clients = odd, .client_count = 2},
	};
	struct export all = {.allow = allow, .allow_count = 4}, some = {.allow = allow + 1, .allow_count = 3};
	static const struct {
		const char *address;
		int rule; /* of all; some has no rule where it is 0 */
	} cases[] = {
		{"192.0.2.1", 0},
		{"10.1.2.3", 2},
		{"10.1.2.127", 2},
		{"10.1.2.128", 3},
		{"10.1.2.255", 3},
		{"10.1.2.200", 1},
		{"11.0.0.0", 0},
		{"9.255.255.255", 0},
		{"2001:db8:7fff::", 3},
		{"2001:db8:8000::", 0},
		{"2001:db8:0:1::5", 1},
		{"2001:db8:0:1::4", 3},
		{"::1", 0},
		{"::ffff:10.1.2.200", 1},
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct sockaddr_storage p = peer(cases[i].address);
		const struct config_allow *rule = export_rule(&all, &p);
		assert_non_null(rule);
		if (rule != &allow[cases[i].rule])
			fail_msg("%s: rule %d instead of %d", cases[i].address, (int)(rule - allow), cases[i].rule);
		assert_ptr_equal(export_rule(&some, &p), cases[i].rule ? &allow[cases[i].rule] : NULL);
	}
	struct sockaddr_storage local = {.ss_family = AF_UNIX};
	assert_null(export_rule(&all, &local));
}

/* 0.0.0.0/0 is all of IPv4, and nothing of IPv6. */
/* Names, as far as this machine has one that leads to itself. */
static void hosts_by_name(void **state)
{
	struct config_clients local[] = {{.kind = CLIENTS_HOST, .text = "localhost"}};
	struct config_clients unknown[] = {{.kind = CLIENTS_HOST, .text = "host.invalid"},
		{.kind = CLIENTS_NETGROUP, .text = "@no-such-netgroup"}};
	struct config_clients net[] = {clients("127.0.0.0", 8), clients("192.0.2.0", 31)};
	struct config_allow allow[] = {{.clients = net, .client_count = 2}, {.clients = unknown, .client_count = 2},
		{.clients = local, .client_count = 1}};
	struct export e = {.allow = allow, .allow_count = 3};
	struct sockaddr_storage p = peer("127.0.0.1"), beside = peer("127.0.0.9"), far = peer("192.0.2.1");

	(void)state;
	for (unsigned i = 0; i < 2; i++) { /* asked for, and kept */
		assert_ptr_equal(export_rule(&e, &p), &allow[2]);
		assert_ptr_equal(export_rule(&e, &beside), &allow[0]);
		assert_ptr_equal(export_rule(&e, &far), &allow[0]);
	}
	e.allow++;
	e.allow_count = 1;
	assert_null(export_rule(&e, &p));
	lookup_fini();
}

static void families_apart(void **state)
{
	struct config_clients any[] = {clients("0.0.0.0", 0)};
	struct config_allow allow[] = {{.clients = any, .client_count = 1}};
	struct export e = {.allow = allow, .allow_count = 1};
	struct sockaddr_storage v4 = peer("203.0.113.9"), v6 = peer("2001:db8::1");

	(void)state;
	assert_non_null(export_rule(&e, &v4));
	assert_null(export_rule(&e, &v6));
}

static void squashing(void **state)
{
	struct rpc_cred user = {
		.flavor = RPC_AUTH_SYS, .uid = 4294967294u, .gid = 100, .group_count = 3, .groups = {7, 0, 9}};
	struct rpc_cred root = {.flavor = RPC_AUTH_SYS, .uid = 0, .gid = 0};
	struct rpc_cred none = {.flavor = RPC_AUTH_NONE}, gss = {.flavor = RPC_AUTH_GSS};
	struct rpc_cred wild = {.flavor = RPC_AUTH_SYS, .uid = 1, .gid = 1, .group_count = UINT32_MAX};
	struct config_allow rule = {.squash = SQUASH_ROOT, .anonuid = 65534, .anongid = 65533, .sec_sys = true};
	struct fs_cred c;

	(void)state;
	assert_int_equal(identity_squash(&user, &rule, &c), 0);
	assert_true(c.uid == 4294967294u && c.gid == 100 && c.group_count == 3);
	assert_true(c.groups[0] == 7 && c.groups[1] == 65533 && c.groups[2] == 9);
	assert_int_equal(identity_squash(&root, &rule, &c), 0);
	assert_true(c.uid == 65534 && c.gid == 65533 && c.group_count == 0);
	assert_int_equal(identity_squash(&wild, &rule, &c), 0);
	assert_true(c.group_count <= FS_GROUPS_MAX);

	rule.squash = SQUASH_NONE;
	assert_int_equal(identity_squash(&root, &rule, &c), 0);
	assert_true(c.uid == 0 && c.gid == 0);
	rule.squash = SQUASH_ALL;
	assert_int_equal(identity_squash(&user, &rule, &c), 0);
	assert_true(c.uid == 65534 && c.gid == 65533 && c.group_count == 0);

	/* who says nothing about himself comes in only where the rule says so, and as nobody */
	assert_int_equal(identity_squash(&none, &rule, &c), -EACCES);
	assert_int_equal(identity_squash(&gss, &rule, &c), -EACCES);
	rule.sec_none = true;
	rule.sec_sys = false;
	rule.squash = SQUASH_NONE;
	assert_int_equal(identity_squash(&none, &rule, &c), 0);
	assert_true(c.uid == 65534 && c.gid == 65533);
	assert_int_equal(identity_squash(&user, &rule, &c), -EACCES);
}

/* Groups of this machine, for a user that it knows; squashing holds for them too. */
static void groups_of_this_machine(void **state)
{
	struct rpc_cred root = {.flavor = RPC_AUTH_SYS, .group_count = 2, .groups = {7, 8}};
	struct rpc_cred unknown = {.flavor = RPC_AUTH_SYS, .uid = 4000000001u, .group_count = 2, .groups = {7, 8}};
	struct config_allow rule = {.sec_sys = true, .squash = SQUASH_NONE, .anonuid = 65534, .anongid = 65534};
	gid_t group[FS_GROUPS_MAX];
	int count = FS_GROUPS_MAX;
	struct fs_cred c;

	(void)state;
	assert_true(getgrouplist("root", 0, group, &count) > 0);
	for (unsigned i = 0; i < 4; i++) {
		rule.server_groups = i > 0; /* twice: looked up, and kept */
		assert_int_equal(identity_squash(&root, &rule, &c), 0);
		identity_groups(&root, &rule, &c);
		if (!rule.server_groups) {
			assert_int_equal(c.group_count, 2);
			continue;
		}
		assert_int_equal(c.group_count, count);
		for (int g = 0; g < count; g++)
			assert_int_equal(c.groups[g], group[g]);
		assert_int_equal(identity_squash(&unknown, &rule, &c), 0);
		identity_groups(&unknown, &rule, &c);
		assert_true(c.group_count == 2 && c.groups[0] == 7 && c.groups[1] == 8);
	}
	rule.squash = SQUASH_ROOT;
	assert_int_equal(identity_squash(&root, &rule, &c), 0);
	identity_groups(&root, &rule, &c);
	assert_true(c.group_count == 2 && c.groups[0] == 7);
}

static void paths(void **state)
{
	struct export e[] = {{.id = 1, .path = (char *)"/data"}, {.id = 2, .path = (char *)"/data/deep"},
		{.id = 3, .path = (char *)"/x"}};
	struct exports table = {.count = 3, .export = e};
	static const struct {
		const char *path;
		uint32_t id;
		const char *rest;
	} cases[] = {
		{"/data", 1, ""},
		{"/data/a/b", 1, "/a/b"},
		{"/data/deep", 2, ""},
		{"/data/deep/c", 2, "/c"},
		{"/data/deeper", 1, "/deeper"},
		{"/database", 0, NULL},
		{"/dat", 0, NULL},
		{"/", 0, NULL},
	};
	const char *rest;

	(void)state;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct export *found = export_find(&table, cases[i].path, strlen(cases[i].path), &rest);
		assert_int_equal(found ? found->id : 0, cases[i].id);
		if (found)
			assert_string_equal(rest, cases[i].rest);
	}
	struct export root = {.id = 9, .path = (char *)"/"};
	struct exports only = {.count = 1, .export = &root};
	assert_ptr_equal(export_find(&only, "/", 1, &rest), &root);
	assert_ptr_equal(export_find(&only, "/a", 2, &rest), &root);
	assert_string_equal(rest, "/a");
	assert_ptr_equal(export_find_id(&table, 2), &e[1]);
	assert_null(export_find_id(&table, 4));
}

/* What cannot be served is refused with the place in the file. */
static void tables_refused(void **state)
{
	struct config_clients twice[] = {clients("10.0.0.0", 8), clients("10.0.0.0", 8)};
	struct config_allow allow[] = {{.clients = twice, .client_count = 2}};
	struct config_export export[] = {{.path = (char *)"/data", .filesystem = (char *)"a0/data", .line = 12}};
	struct config config = {.file = (char *)"furrow.yaml", .exports = export, .export_count = 1};
	struct storage storage = {0};
	struct storage_fs broken = {.name = "a0/data", .problem = "two drives are missing"};
	struct error err;

	(void)state;
	list_init(&storage.arrays);
	list_init(&storage.filesystems);
	assert_null(exports_build(&config, &storage, &err));
	assert_non_null(strstr(err.text, "furrow.yaml:12: "));
	assert_non_null(strstr(err.text, "a0/data"));

	list_push_back(&storage.filesystems, &broken.node);
	assert_null(exports_build(&config, &storage, &err));
	assert_non_null(strstr(err.text, "two drives are missing"));
	assert_int_equal(broken.users, 0);

	export[0].allow = allow;
	export[0].allow_count = 1;
	assert_null(exports_build(&config, &storage, &err));
	assert_non_null(strstr(err.text, "10.0.0.0/8"));

	export[0].path = (char *)"data";
	assert_null(exports_build(&config, &storage, &err));
	assert_int_equal(err.code, -EINVAL);

	config.export_count = 0;
	struct exports *empty = exports_build(&config, &storage, &err);
	assert_non_null(empty);
	exports_publish(empty);
	struct exports *got = exports_get();
	assert_ptr_equal(got, empty);
	exports_publish(NULL);
	assert_null(exports_get());
	assert_int_equal(got->count, 0); /* still ours */
	exports_put(got);
}

/* The set of fs.h maps to distinct words of the protocol, and nothing else gets through as a number. */
static void errno_table(void **state)
{
	static const struct {
		int error;
		nfsstat3 status;
	} set[] = {{EPERM, 1}, {ENOENT, 2}, {EIO, 5}, {EACCES, 13}, {EEXIST, 17}, {EXDEV, 18}, {ENOTDIR, 20},
		{EISDIR, 21}, {EINVAL, 22}, {EFBIG, 27}, {ENOSPC, 28}, {EROFS, 30}, {EMLINK, 31}, {ENAMETOOLONG, 63},
		{ENOTEMPTY, 66}, {EDQUOT, 69}, {ESTALE, 70}, {EBADF, 10001}, {EOPNOTSUPP, 10004}, {EBUSY, 10008},
		{EAGAIN, 10008}};

	(void)state;
	atomic_store(&log_threshold, -1);
	for (int error = 1; error < 200; error++) {
		nfsstat3 expected = NFS3ERR_SERVERFAULT;
		for (unsigned i = 0; i < sizeof(set) / sizeof(set[0]); i++)
			if (set[i].error == error)
				expected = set[i].status;
		assert_int_equal(nfs3_status(-error), expected);
	}
	assert_int_equal(nfs3_status(0), NFS3_OK);
	assert_int_equal(nfs3_status(17), NFS3_OK); /* a length */
}

static nfsstat3 name_status(const char *name, size_t len, nfsstat3 dots)
{
	struct xdr_opaque o = {.data = (const uint8_t *)name, .len = (uint32_t)len};
	return nfs3_name_check(&o, dots);
}

static void names(void **state)
{
	char longest[257];

	(void)state;
	memset(longest, 'n', sizeof(longest));
	assert_int_equal(name_status(longest, 255, NFS3ERR_EXIST), NFS3_OK);
	assert_int_equal(name_status(longest, 256, NFS3ERR_EXIST), NFS3ERR_NAMETOOLONG);
	assert_int_equal(name_status("", 0, NFS3ERR_EXIST), NFS3ERR_INVAL);
	assert_int_equal(name_status("a/b", 3, NFS3ERR_EXIST), NFS3ERR_INVAL);
	assert_int_equal(name_status("a\0b", 3, NFS3ERR_EXIST), NFS3ERR_INVAL);
	assert_int_equal(name_status(".", 1, NFS3ERR_EXIST), NFS3ERR_EXIST);
	assert_int_equal(name_status("..", 2, NFS3ERR_EXIST), NFS3ERR_EXIST);
	assert_int_equal(name_status("..", 2, NFS3_OK), NFS3_OK);
	assert_int_equal(name_status("...", 3, NFS3ERR_EXIST), NFS3_OK);
	assert_int_equal(name_status("\xff\xfe", 2, NFS3ERR_EXIST), NFS3_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(longest_prefix),
		cmocka_unit_test(families_apart),
		cmocka_unit_test(hosts_by_name),
		cmocka_unit_test(squashing),
		cmocka_unit_test(groups_of_this_machine),
		cmocka_unit_test(paths),
		cmocka_unit_test(tables_refused),
		cmocka_unit_test(errno_table),
		cmocka_unit_test(names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
