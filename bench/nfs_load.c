/*
 * nfs_load: a load of NFSv3 calls over TCP on the loopback address, of exact count, for bench/bench_native.
 *
 * One thread keeps DEPTH calls in flight over its connections and counts what comes back. The file and the directory
 * it uses are made by itself (nfs_load.d in the export). --cpu PID adds the server's CPU time. --hold keeps the
 * connections open after the line is printed, until standard input ends.
 *
 *   nfs_load [--address A] [--port P] [--mount-port P] [--depth N] [--connections N] [--count N] [--cpu PID] [--hold]
 * EXPORT TEST
 * TEST: prepare getattr read4k write4k read1m write1m create
 *
 * Prints one line: TEST operations seconds microseconds-of-server-CPU-per-operation bytes
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "xdr/mount3.h"
#include "xdr/nfs3.h"
#include "xdr/rpc.h"

#define FILE_BYTES (64u << 20)
#define RECEIVE_BYTES (4u << 20)
#define MESSAGE_HEAD 512
#define CONNECTIONS_MAX 1024

struct connection {
	int fd;
	uint8_t *in;
	size_t in_used;
	uint8_t *out; /* calls that wait to be sent */
	size_t out_used, out_sent, out_room;
};

static struct connection *connections;
static unsigned connection_count = 1, depth = 1;
static uint32_t xid = 1;
static uint8_t handle_bytes[64], dir_bytes[64];
static nfs_fh3 file_handle, dir_handle;
static uint64_t seed = 88172645463325252ull;
static uint8_t *payload;
static pid_t server_pid;

static uint64_t clock_read(clockid_t id)
{
	struct timespec t;
	return clock_gettime(id, &t) ? 0 : (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
static uint64_t server_cpu(void)
{
	clockid_t id;
	return server_pid && !clock_getcpuclockid(server_pid, &id) ? clock_read(id) : 0;
}
static uint64_t random_next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

static int dial(const char *address, uint16_t port)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	if (inet_pton(AF_INET, address, &a.sin_addr) != 1 || ntohl(a.sin_addr.s_addr) >> 24 != 127)
		errx(2, "%s: only addresses of the loopback network", address);
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)))
		err(1, "connect to %s:%u", address, port);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

/* Starts a call in the connection's queue; the record mark is set by call_end(). */
static struct xdr_out call_begin(
	struct connection *c, uint32_t program, uint32_t version, uint32_t procedure, size_t extra)
{
	struct xdr_out out = {0};
	uint8_t sys[64];
	struct xdr_out cred = {.base = sys, .p = sys, .end = sys + sizeof(sys)};
	authsys_parms parms = {.machinename = {(const uint8_t *)"load", 4}};
	rpc_msg msg = {.xid = xid++, .body = {.mtype = CALL}};

	if (c->out_room - c->out_used < MESSAGE_HEAD + extra) {
		c->out_room = 2 * (c->out_room + MESSAGE_HEAD + extra);
		c->out = realloc(c->out, c->out_room);
		if (!c->out)
			err(1, "realloc");
	}
	xdr_encode_authsys_parms(&cred, &parms);
	msg.body.cbody = (call_body){
		2, program, version, procedure, {.flavor = AUTH_SYS, .body = {sys, (uint32_t)(cred.p - sys)}}, {0}};
	out.base = out.p = c->out + c->out_used + 4;
	out.end = c->out + c->out_room;
	xdr_encode_rpc_msg(&out, &msg);
	return out;
}
static void call_end(struct connection *c, struct xdr_out *out, const uint8_t *data, uint32_t len)
{
	uint32_t bytes;
	if (data) {
		memcpy(out->p, data, len);
		out->p += len;
	}
	bytes = htonl(0x80000000u | (uint32_t)(out->p - out->base));
	memcpy(out->base - 4, &bytes, 4);
	c->out_used += (size_t)(out->p - out->base) + 4;
}
static void connection_send(struct connection *c)
{
	while (c->out_sent < c->out_used) {
		ssize_t n = send(c->fd, c->out + c->out_sent, c->out_used - c->out_sent, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0)
			err(1, "send");
		c->out_sent += (size_t)n;
	}
	c->out_used = c->out_sent = 0;
}
/* One whole reply at the start of the buffer: its results in IN; 0 when there is none yet. */
static size_t reply_take(struct connection *c, size_t at, struct xdr_in *in)
{
	uint32_t mark, word[6];
	size_t bytes;

	if (c->in_used - at < 4)
		return 0;
	memcpy(&mark, c->in + at, 4);
	bytes = ntohl(mark) & 0x7fffffff;
	if (!(ntohl(mark) >> 31) || bytes > RECEIVE_BYTES - 4)
		errx(1, "a reply of %zu bytes, in fragments or too long", bytes);
	if (c->in_used - at < 4 + bytes)
		return 0;
	in->base = in->p = c->in + at + 4;
	in->end = in->base + bytes;
	in->reduced_pos = UINT32_MAX;
	for (int i = 0; i < 6; i++)
		if (!xdr_get_u32(in, &word[i]))
			errx(1, "a short reply");
	if (word[1] != REPLY || word[2] != MSG_ACCEPTED || word[4] != 0 || word[5] != SUCCESS)
		errx(1, "the call was not accepted (%u %u)", word[2], word[5]);
	return 4 + bytes;
}
static void receive(struct connection *c)
{
	ssize_t n = recv(c->fd, c->in + c->in_used, RECEIVE_BYTES - c->in_used, 0);
	if (n <= 0)
		errx(1, "the server closed the connection");
	c->in_used += (size_t)n;
}
static struct xdr_in call_wait(struct connection *c)
{
	struct xdr_in in = {0};
	connection_send(c);
	c->in_used = 0;
	while (!reply_take(c, 0, &in))
		receive(c);
	c->in_used = 0;
	return in;
}
static void handle_keep(nfs_fh3 *fh, uint8_t room[64], struct xdr_opaque from)
{
	memcpy(room, from.data, from.len);
	fh->data = (struct xdr_opaque){room, from.len};
}

static void mount_export(const char *address, uint16_t port, const char *path)
{
	static uint8_t pool_room[4096];
	struct xdr_pool pool = {pool_room, 0, sizeof(pool_room)};
	struct connection c = {.fd = dial(address, port), .in = malloc(RECEIVE_BYTES)};
	struct xdr_opaque dir = {(const uint8_t *)path, (uint32_t)strlen(path)};
	struct xdr_out out = call_begin(&c, MOUNT_PROGRAM, MOUNT_V3, MOUNTPROC3_MNT, 0);
	struct xdr_in in;
	mountres3 res;

	xdr_encode_dirpath(&out, &dir);
	call_end(&c, &out, NULL, 0);
	in = call_wait(&c);
	in.pool = &pool;
	if (!xdr_decode_mountres3(&in, &res) || res.fhs_status != MNT3_OK)
		errx(1, "MNT %s: status %d", path, (int)res.fhs_status);
	handle_keep(&dir_handle, dir_bytes, res.mountinfo.fhandle);
	close(c.fd);
	free(c.in);
	free(c.out);
}

/* Looks NAME up in the root, or makes it; leaves its handle in FH. */
static void object_find(const char *name, bool directory, nfs_fh3 *fh, uint8_t room[64])
{
	struct connection *c = &connections[0];
	struct xdr_opaque n = {(const uint8_t *)name, (uint32_t)strlen(name)};
	LOOKUP3args look = {.what = {dir_handle, n}};
	LOOKUP3res found;
	struct xdr_out out = call_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_LOOKUP, 0);
	struct xdr_in in;

	xdr_encode_LOOKUP3args(&out, &look);
	call_end(c, &out, NULL, 0);
	in = call_wait(c);
	if (xdr_decode_LOOKUP3res(&in, &found) && found.status == NFS3_OK) {
		handle_keep(fh, room, found.resok.object.data);
		return;
	}
	if (directory) {
		MKDIR3args args = {.where = {dir_handle, n}, .attributes = {.mode = {true, {0777}}}};
		MKDIR3res res;
		out = call_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_MKDIR, 0);
		xdr_encode_MKDIR3args(&out, &args);
		call_end(c, &out, NULL, 0);
		in = call_wait(c);
		if (!xdr_decode_MKDIR3res(&in, &res) || res.status != NFS3_OK)
			errx(1, "MKDIR %s: status %d", name, (int)res.status);
		handle_keep(fh, room, res.resok.obj.handle.data);
	} else {
		CREATE3args args = {.where = {dir_handle, n},
			.how = {.mode = UNCHECKED, {.obj_attributes = {.mode = {true, {0666}}}}}};
		CREATE3res res;
		out = call_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_CREATE, 0);
		xdr_encode_CREATE3args(&out, &args);
		call_end(c, &out, NULL, 0);
		in = call_wait(c);
		if (!xdr_decode_CREATE3res(&in, &res) || res.status != NFS3_OK)
			errx(1, "CREATE %s: status %d", name, (int)res.status);
		handle_keep(fh, room, res.resok.obj.handle.data);
	}
}

enum test { GETATTR, READ4K, WRITE4K, READ1M, WRITE1M, CREATE, TESTS };
static const char *const test_name[TESTS] = {"getattr", "read4k", "write4k", "read1m", "write1m", "create"};

static void call_start(struct connection *c, enum test test, uint64_t number)
{
	uint32_t bytes = test == READ1M || test == WRITE1M ? 1u << 20 : 4096;
	uint64_t offset = random_next() % (FILE_BYTES / bytes) * bytes;
	struct xdr_out out;

	if (test == WRITE1M)
		offset = number * bytes % FILE_BYTES;
	switch (test) {
	case GETATTR: {
		GETATTR3args args = {.object = file_handle};
		out = call_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_GETATTR, 0);
		xdr_encode_GETATTR3args(&out, &args);
		call_end(c, &out, NULL, 0);
		break;
	}
	case READ4K:
	case READ1M: {
		READ3args args = {file_handle, offset, bytes};
		out = call_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_READ, 0);
		xdr_encode_READ3args(&out, &args);
		call_end(c, &out, NULL, 0);
		break;
	}
	case WRITE4K:
	case WRITE1M: {
		WRITE3args args = {file_handle, offset, bytes, FILE_SYNC, {.len = bytes}};
		out = call_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_WRITE, bytes);
		memcpy(payload, &number, sizeof(number));
		xdr_encode_WRITE3args(&out, &args);
		call_end(c, &out, payload, bytes);
		break;
	}
	default: {
		char name[32];
		int len = snprintf(name, sizeof(name), "c%" PRIu64 ".%d", number, (int)getpid());
		CREATE3args args = {.where = {dir_handle, {(uint8_t *)name, (uint32_t)len}},
			.how = {.mode = UNCHECKED, {.obj_attributes = {.mode = {true, {0644}}}}}};
		out = call_begin(c, NFS_PROGRAM, NFS_V3, NFSPROC3_CREATE, 0);
		xdr_encode_CREATE3args(&out, &args);
		call_end(c, &out, NULL, 0);
	}
	}
}
/* False: the server wants it asked again (NFS-Ganesha does now and then, for a CREATE). */
static bool reply_check(struct xdr_in *in, enum test test)
{
	uint32_t status = 0;
	if (!xdr_get_u32(in, &status) || (status != NFS3_OK && status != NFS3ERR_JUKEBOX))
		errx(1, "%s: status %u", test_name[test], status);
	return status == NFS3_OK;
}

static uint64_t run(enum test test, uint64_t count)
{
	struct pollfd *fds = calloc(connection_count, sizeof(*fds));
	uint64_t started = 0, done = 0, bytes = 0, again = 0;

	if (!fds)
		err(1, "calloc");
	for (unsigned i = 0; i < connection_count; i++)
		fds[i] = (struct pollfd){.fd = connections[i].fd, .events = POLLIN};
	while (started < depth && started < count)
		call_start(&connections[started % connection_count], test, started), started++;
	for (unsigned i = 0; i < connection_count; i++)
		connection_send(&connections[i]);
	while (done < count) {
		if (poll(fds, connection_count, 30000) <= 0)
			errx(1, "no reply within 30 s");
		for (unsigned i = 0; i < connection_count; i++) {
			struct connection *c = &connections[i];
			struct xdr_in in = {0};
			size_t at = 0, n;
			if (fds[i].revents & (POLLIN | POLLHUP | POLLERR))
				receive(c);
			while ((n = reply_take(c, at, &in))) {
				at += n;
				bytes += n;
				if (!reply_check(&in, test)) {
					if (again == count)
						errx(1, "%s: the server does none of it", test_name[test]);
					call_start(c, test, count + again++);
					continue;
				}
				done++;
				if (started < count)
					call_start(c, test, started++);
			}
			memmove(c->in, c->in + at, c->in_used - at);
			c->in_used -= at;
			connection_send(c);
			fds[i].events = (short)(POLLIN | (c->out_used ? POLLOUT : 0));
		}
	}
	free(fds);
	return bytes;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"address", 1, NULL, 'a'}, {"port", 1, NULL, 'p'},
		{"mount-port", 1, NULL, 'm'}, {"depth", 1, NULL, 'd'}, {"connections", 1, NULL, 'n'},
		{"count", 1, NULL, 'c'}, {"cpu", 1, NULL, 'u'}, {"hold", 0, NULL, 'h'}, {0}};
	const char *address = "127.0.0.1", *name;
	uint16_t port = 2049, mount_port = 0;
	uint64_t count = 10000, start, cpu, bytes;
	unsigned test;
	bool hold = false;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'a':
			address = optarg;
			break;
		case 'p':
			port = (uint16_t)atoi(optarg);
			break;
		case 'm':
			mount_port = (uint16_t)atoi(optarg);
			break;
		case 'd':
			depth = (unsigned)atoi(optarg);
			break;
		case 'n':
			connection_count = (unsigned)atoi(optarg);
			break;
		case 'c':
			count = strtoull(optarg, NULL, 0);
			break;
		case 'h':
			hold = true;
			break;
		case 'u':
			server_pid = atoi(optarg);
			break;
		default:
			return 2;
		}
	}
	if (argc - optind != 2 || !depth || !connection_count || connection_count > CONNECTIONS_MAX)
		errx(2, "usage: nfs_load [OPTIONS] EXPORT TEST");
	name = argv[optind + 1];
	payload = malloc(1u << 20);
	connections = calloc(connection_count, sizeof(*connections));
	if (!payload || !connections)
		err(1, "malloc");
	for (size_t i = 0; i < 1u << 20; i += 8) {
		uint64_t v = random_next();
		memcpy(payload + i, &v, 8);
	}
	struct rlimit files = {CONNECTIONS_MAX + 64, CONNECTIONS_MAX + 64};
	if (setrlimit(RLIMIT_NOFILE, &files))
		warn("setrlimit");
	mount_export(address, mount_port ? mount_port : port, argv[optind]);
	for (unsigned i = 0; i < connection_count; i++) {
		connections[i].fd = dial(address, port);
		connections[i].in = malloc(RECEIVE_BYTES);
	}
	object_find("nfs_load.file", false, &file_handle, handle_bytes);
	object_find("nfs_load.d", true, &dir_handle, dir_bytes);
	if (!strcmp(name, "prepare")) {
		depth = 8;
		run(WRITE1M, FILE_BYTES >> 20);
		return 0;
	}
	for (test = 0; test < TESTS && strcmp(name, test_name[test]); test++)
		;
	if (test == TESTS)
		errx(2, "no test named %s", name);
	cpu = server_cpu();
	start = clock_read(CLOCK_MONOTONIC);
	bytes = run((enum test)test, count);
	start = clock_read(CLOCK_MONOTONIC) - start;
	printf("%s %" PRIu64 " %.6f %.3f %" PRIu64 "\n", name, count, (double)start / 1e9,
		(double)(server_cpu() - cpu) / 1e3 / (double)count, bytes);
	fflush(stdout);
	while (hold && getchar() != EOF)
		;
	return 0;
}
