/*
 * A server that was killed leaves its registrations with rpcbind. The next one called what it found there as a status
 * monitor, which was itself, took it for another one and left the UDP port of the dead one registered: no restart of a
 * client was heard. And it took each registration away before it made it again, so that who asked meanwhile was told
 * that there is no such program. An rpcbind that hangs held up a start for 3 s with each registration.
 *
 * The rpcbind is a child process on a /run and in a network of the test's own.
 */
#include "tests/server/furrowd_run.h"

#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/un.h>

#include "xdr/nfs4.h"
#include "xdr/nlm4.h"
#include "xdr/rpc.h"
#include "xdr/sm_inter.h"

#define KNOWN 32u

/* What the rpcbind has seen and knows; shared with the test. */
struct book {
	_Atomic uint32_t connections, removed;
	struct known {
		uint32_t program, version, port; /* port 0: unused */
		char netid[16];
	} known[KNOWN];
};
static struct book *book;
static struct run run;
static bool apart; /* /run and network are the test's own */

static const char exports_yaml[] = "  - path: /data\n    filesystem: a0/data\n    allow:\n      - {clients: "
				   "127.0.0.0/8, access: rw, squash: none}\n";

/* ------------------------------------------------------------------------------------------------
 * The rpcbind
 */

static struct known *find(uint32_t program, uint32_t version, const char *netid)
{
	for (unsigned i = 0; i < KNOWN; i++) {
		struct known *k = &book->known[i];
		if (k->port && k->program == program && k->version == version && !strcmp(k->netid, netid))
			return k;
	}
	return NULL;
}

static bool get_text(struct xdr_in *in, char *to, uint32_t room)
{
	struct xdr_opaque text;

	if (!xdr_get_opaque(in, room - 1, &text))
		return false;
	memcpy(to, text.data, text.len);
	to[text.len] = 0;
	return true;
}

/* RPCBPROC_SET (1) as rpcbind does it: the same again is good, another address is refused. RPCBPROC_UNSET (2). */
static uint32_t set_or_unset(struct xdr_in *in, bool set)
{
	uint32_t program, version;
	unsigned a, b, free_one = 0;
	char netid[16], address[64];

	if (!xdr_get_u32(in, &program) || !xdr_get_u32(in, &version) || !get_text(in, netid, sizeof(netid)) ||
		!get_text(in, address, sizeof(address)))
		return 0;
	struct known *k = find(program, version, netid);
	if (!set) {
		book->removed += k != NULL;
		if (k)
			k->port = 0;
		return k != NULL;
	}
	if (sscanf(address, "0.0.0.0.%u.%u", &a, &b) != 2)
		return 0;
	if (k)
		return k->port == (a << 8 | b);
	while (book->known[free_one].port)
		free_one++;
	k = &book->known[free_one];
	*k = (struct known){program, version, a << 8 | b, ""};
	memcpy(k->netid, netid, sizeof(netid));
	return 1;
}

/* One call of a connection, to rpcbind's socket (LOCAL) or to port 111; false: the connection has ended. */
static bool answer(int fd, bool local)
{
	uint8_t record[1024];
	uint32_t mark, xid = 0, word, version, procedure, program, result = 0;
	struct xdr_opaque body;
	struct xdr_in in;
	struct xdr_out out;

	if (recv(fd, &mark, 4, MSG_WAITALL) != 4 || (mark = ntohl(mark) & 0x7fffffffu) > sizeof(record) ||
		recv(fd, record, mark, MSG_WAITALL) != (ssize_t)mark)
		return false;
	xdr_in_init(&in, record, mark, NULL);
	bool good = xdr_get_u32(&in, &xid) && xdr_get_u32(&in, &word) && xdr_get_u32(&in, &word) &&
		    xdr_get_u32(&in, &word) && xdr_get_u32(&in, &version) && xdr_get_u32(&in, &procedure) &&
		    xdr_get_u32(&in, &word) && xdr_get_opaque(&in, AUTH_BODY_MAX, &body) && xdr_get_u32(&in, &word) &&
		    xdr_get_opaque(&in, AUTH_BODY_MAX, &body);
	if (good && local) {
		result = set_or_unset(&in, procedure == 1);
	} else if (good && xdr_get_u32(&in, &program) && xdr_get_u32(&in, &version)) { /* PMAPPROC_GETPORT, of TCP */
		struct known *k = find(program, version, "tcp");
		result = k ? k->port : 0;
	}
	xdr_out_init(&out, record, sizeof(record));
	const uint32_t head[] = {0x80000000u | 28, xid, REPLY, MSG_ACCEPTED, AUTH_NONE, 0, SUCCESS, result};
	for (unsigned i = 0; i < sizeof(head) / sizeof(head[0]); i++)
		xdr_put_u32(&out, head[i]);
	return send(fd, record, sizeof(head), MSG_NOSIGNAL) == (ssize_t)sizeof(head);
}

static int listener_local(void)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX, .sun_path = "/run/rpcbind.sock"};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	unlink(a.sun_path);
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(fd, 64), 0);
	return fd;
}

static int listener_tcp(void)
{
	struct sockaddr_in a = {
		.sin_family = AF_INET, .sin_port = htons(111), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(fd, 64), 0);
	return fd;
}

/* HANGS: takes connections to its socket, and says nothing. */
static pid_t rpcbind_start(bool hangs)
{
	struct pollfd p[2] = {{.fd = listener_local(), .events = POLLIN}, {.fd = listener_tcp(), .events = POLLIN}};
	pid_t pid = fork();

	if (!pid)
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves none */
	while (!pid && poll(p, 2, -1) > 0)
		for (unsigned i = 0; i < 2; i++) {
			int fd = p[i].revents ? accept(p[i].fd, NULL, NULL) : -1;
			if (fd < 0)
				continue;
			book->connections += i == 0;
			if (hangs && i == 0)
				continue; /* kept open */
			while (answer(fd, i == 0))
				;
			close(fd);
		}
	assert_true(pid > 0);
	for (unsigned i = 0; i < 2; i++)
		close(p[i].fd);
	return pid;
}

static void rpcbind_end(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* ------------------------------------------------------------------------------------------------
 * Tests
 */

static void need_apart(void)
{
	if (!apart)
		skip();
}

/* The server has said that it is ready: all is registered. */
static void all_known(void)
{
	static const uint32_t over_tcp[][2] = {{NFS_PROGRAM, NFS_V3}, {NFS4_PROGRAM, NFS_V4}, {MOUNT_PROGRAM, MOUNT_V3},
		{NLM_PROG, NLM_V4}, {SM_PROG, SM_VERS}};

	for (unsigned i = 0; i < sizeof(over_tcp) / sizeof(over_tcp[0]); i++) {
		struct known *k = find(over_tcp[i][0], over_tcp[i][1], "tcp");
		if (!k || k->port != run.port)
			fail_msg("program %u is not registered", over_tcp[i][0]);
	}
	assert_non_null(find(SM_PROG, SM_VERS, "udp"));
}

static void test_killed_server_is_no_other_statd(void **state)
{
	(void)state;
	need_apart();
	pid_t rpcbind = rpcbind_start(false);
	run_start(&run);
	all_known();
	uint32_t udp = find(SM_PROG, SM_VERS, "udp")->port, removed = book->removed;
	int keeps = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	run_stop(&run, SIGKILL);
	/* the port of the dead one is somebody else's now */
	struct sockaddr_in a = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)udp), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	for (unsigned i = 0; bind(keeps, (struct sockaddr *)&a, sizeof(a)); i++) {
		assert_int_equal(errno, EADDRINUSE); /* io_uring gives it back a moment later */
		assert_true(i < 1000);
		run_pause();
	}
	run_start(&run);
	all_known();
	assert_false(run_log_has(run.log, "another statd"));
	assert_int_not_equal(find(SM_PROG, SM_VERS, "udp")->port, udp);
	assert_int_equal(book->removed - removed, 1); /* that of UDP alone: the others were good */
	run_stop(&run, SIGTERM);
	for (unsigned i = 0; i < KNOWN; i++)
		assert_int_equal(book->known[i].port, 0);
	close(keeps);
	rpcbind_end(rpcbind);
}

static void test_hanging_rpcbind_is_asked_once(void **state)
{
	(void)state;
	need_apart();
	pid_t rpcbind = rpcbind_start(true);
	uint32_t connections = book->connections;
	run_start(&run);
	assert_true(run_log_has(run.log, "rpcbind does not answer"));
	run_stop(&run, SIGTERM);
	assert_int_equal(book->connections - connections, 1);
	rpcbind_end(rpcbind);
}

static bool go_apart(void)
{
	struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};

	if (unshare(CLONE_NEWNS | CLONE_NEWNET) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
		mount("tmpfs", "/run", "tmpfs", 0, NULL))
		return false;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool up = !ioctl(fd, SIOCSIFFLAGS, &lo);
	close(fd);
	return up;
}

static int setup(void **state)
{
	(void)state;
	apart = go_apart();
	book = mmap(NULL, sizeof(*book), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(book != MAP_FAILED);
	if (apart)
		run_init(&run, exports_yaml);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (apart)
		run_fini(&run);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_killed_server_is_no_other_statd),
		cmocka_unit_test(test_hanging_rpcbind_is_asked_once),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
