/*
 * Registration with rpcbind (RFC 1833), through libtirpc, whose calls block and therefore run on a helper thread.
 *
 * Owns nothing that lasts: each call connects to rpcbind's own socket, by which it knows that root asks, and goes
 * again. libtirpc's rpcb_set() is not used, since it makes addresses of the netids of /etc/netconfig only, and "rdma"
 * is not there. An older registration of the same program, version and netid with another port is replaced: it is from
 * a server that ended without a word.
 *
 * Errors: -ENOENT when no rpcbind runs here; -EIO when it does not answer within RPCBIND_TIMEOUT, and as little will
 * the next time; -EACCES when it refuses.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <rpc/rpc.h>
#include <rpc/rpcb_prot.h>

#include "core/core.h"

/* As in rpcrdma.h, whose names libtirpc's headers take for themselves. */
int rpc_rpcbind_set(uint32_t program, uint32_t version, const char *netid, uint16_t port);
int rpc_rpcbind_unset(uint32_t program, uint32_t version, const char *netid);

#define RPCBIND_TIMEOUT 3 /* s */

struct rpcbind_request {
	uint32_t program, version;
	const char *netid;
	uint16_t port; /* 0: unset */
	int result;
};

/* RPCBPROC_SET and _UNSET take a struct rpcb and answer with a bool. */
static int rpcbind_call(CLIENT *client, rpcproc_t procedure, struct rpcb *what, bool_t *done)
{
	struct timeval limit = {.tv_sec = RPCBIND_TIMEOUT};
	*done = FALSE;
	if (clnt_call(client, procedure, (xdrproc_t)xdr_rpcb, (char *)what, (xdrproc_t)xdr_bool, (char *)done, limit) !=
		RPC_SUCCESS)
		return -EIO;
	return 0;
}

static int rpcbind_talk(CLIENT *client, const struct rpcbind_request *r)
{
	char address[64], netid[32], owner[] = "superuser";
	size_t len = strlen(r->netid);
	bool_t done;

	if (!len || len + 1 > sizeof(netid))
		return -EINVAL;
	memcpy(netid, r->netid, len + 1);
	/* A universal address: the any-address, then the port in two decimal bytes (RFC 5665 section 5.2.3). */
	snprintf(address, sizeof(address), "%s.%d.%d", netid[len - 1] == '6' ? "::" : "0.0.0.0", r->port >> 8,
		r->port & 255);
	struct rpcb what = {
		.r_prog = r->program, .r_vers = r->version, .r_netid = netid, .r_addr = address, .r_owner = owner};
	/* What is set already is set again: others who ask meanwhile are never told that it is not there. */
	int rc = r->port ? rpcbind_call(client, RPCBPROC_SET, &what, &done) : 0;
	if (rc < 0 || (r->port && done))
		return rc;
	/* To unset what is not set is refused, which does not matter. */
	rc = rpcbind_call(client, RPCBPROC_UNSET, &what, &done);
	if (rc < 0 || !r->port)
		return rc;
	rc = rpcbind_call(client, RPCBPROC_SET, &what, &done);
	return rc < 0 ? rc : done ? 0 : -EACCES;
}

static void rpcbind_connect(struct rpcbind_request *r)
{
	struct sockaddr_un socket_name = {.sun_family = AF_UNIX, .sun_path = _PATH_RPCBINDSOCK};
	struct netbuf peer = {.maxlen = sizeof(socket_name), .len = sizeof(socket_name), .buf = &socket_name};
	struct timeval limit = {.tv_sec = RPCBIND_TIMEOUT}; /* one that accepts nothing lets connect() wait, too */
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	r->result = -EIO;
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 ||
		connect(fd, (struct sockaddr *)&socket_name, sizeof(socket_name)) < 0) {
		if (errno == ENOENT || errno == ECONNREFUSED)
			r->result = -ENOENT;
		if (fd >= 0)
			close(fd);
		return;
	}
	CLIENT *client = clnt_vc_create(fd, &peer, RPCBPROG, RPCBVERS, 0, 0);
	if (client) {
		r->result = rpcbind_talk(client, r);
		clnt_destroy(client);
	}
	close(fd);
}

/* libtirpc writes without MSG_NOSIGNAL: should rpcbind end at this moment, the signal would end us. */
static void rpcbind_do(void *arg)
{
	static const struct timespec at_once;
	sigset_t pipe, before;

	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, &before);
	rpcbind_connect(arg);
	while (sigtimedwait(&pipe, NULL, &at_once) == SIGPIPE)
		;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int rpc_rpcbind_set(uint32_t program, uint32_t version, const char *netid, uint16_t port)
{
	struct rpcbind_request r = {program, version, netid, port, 0};
	if (!port)
		return -EINVAL;
	offload(rpcbind_do, &r);
	return r.result;
}

int rpc_rpcbind_unset(uint32_t program, uint32_t version, const char *netid)
{
	struct rpcbind_request r = {program, version, netid, 0, 0};
	offload(rpcbind_do, &r);
	return r.result;
}
