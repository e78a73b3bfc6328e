/*
 * nsm: the Network Status Monitor, version 1 (program 100024): a client that restarted says so (SM_NOTIFY), and its
 * locks are released (nlm_host.c). What we have to say about our own restart is there, too.
 *
 * Over TCP it is a program of the server like the others. But Linux' sm-notify uses UDP only, so there is a small
 * responder for that: a fiber for each address family that receives a call, answers it and receives the next. It knows
 * nothing but this program.
 *
 * Nobody is monitored for others (SM_MON fails): that is what the kernel asks of a statd on its own machine when it is
 * a client, and the kernel's lock manager and this server cannot both be registered with one rpcbind.
 *
 * Error policy: what is not a call, or no call for us, is dropped without a word or a log line.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <unistd.h>

#include "server/nlm_internal.h"
#include "xdr/rpc.h"

#define DATAGRAM_MAX 2048u

/* ------------------------------------------------------------------------------------------------
 * Procedures, from whatever transport
 */

static int nsm_run(const struct sockaddr_storage *peer, uint32_t procedure, struct xdr_in *in, struct xdr_out *out)
{
	struct stat_chge change;
	struct sm_stat_res res = {.res_stat = STAT_FAIL, .state = nsm_state()};
	struct sm_stat state = {.state = nsm_state()};

	switch (procedure) {
	case SM_NULL:
	case SM_SIMU_CRASH:
		return RPC_SUCCESS;
	case SM_STAT:
	case SM_MON:
		return xdr_encode_sm_stat_res(out, &res) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
	case SM_UNMON:
	case SM_UNMON_ALL:
		return xdr_encode_sm_stat(out, &state) ? RPC_SUCCESS : RPC_SYSTEM_ERR;
	case SM_NOTIFY:
		if (!xdr_decode_stat_chge(in, &change))
			return RPC_GARBAGE_ARGS;
		nlm_host_restarted(peer, &change.mon_name, change.state);
		return RPC_SUCCESS;
	default:
		return RPC_PROC_UNAVAIL;
	}
}

static int nsm_tcp(struct rpc_request *req)
{
	return nsm_run(rpc_peer(req), (uint32_t)(req->procedure - req->program->procedure), &req->in, &req->out);
}

static const struct rpc_procedure nsm_procedures[] = {
	[SM_NULL] = {"NULL", nsm_tcp, 0, 0, NULL},
	[SM_STAT] = {"STAT", nsm_tcp, 0, XDR_MAX_sm_stat_res, NULL},
	[SM_MON] = {"MON", nsm_tcp, 0, XDR_MAX_sm_stat_res, NULL},
	[SM_UNMON] = {"UNMON", nsm_tcp, 0, XDR_MAX_sm_stat, NULL},
	[SM_UNMON_ALL] = {"UNMON_ALL", nsm_tcp, 0, XDR_MAX_sm_stat, NULL},
	[SM_SIMU_CRASH] = {"SIMU_CRASH", nsm_tcp, 0, 0, NULL},
	[SM_NOTIFY] = {"NOTIFY", nsm_tcp, 0, 0, NULL},
};

const struct rpc_program nsm_program = {
	.program = SM_PROG,
	.version = SM_VERS,
	.name = "nsm",
	.procedure = nsm_procedures,
	.procedures = sizeof(nsm_procedures) / sizeof(nsm_procedures[0]),
};

/* ------------------------------------------------------------------------------------------------
 * UDP
 */

struct nsm_socket {
	int fd; /* -1: none */
	uint16_t port;
	struct sockaddr_storage peer;
	struct msghdr message;
	struct iovec piece;
	struct io io;
	bool ended, stop;
	uint8_t datagram[DATAGRAM_MAX];
};
static struct nsm_socket sockets[2] = {{.fd = -1}, {.fd = -1}}; /* IPv4, IPv6; reactor 0 */

/* The answer's bytes in place of the call's; 0: none. */
static uint32_t datagram_answer(struct nsm_socket *s, uint32_t bytes)
{
	uint32_t xid, type, version, program, program_version, procedure, flavor;
	struct xdr_opaque body;
	uint8_t results[XDR_MAX_sm_stat_res + 64], pool_room[256];
	struct xdr_pool pool = {.base = pool_room, .room = sizeof(pool_room)};
	struct xdr_in in;
	struct xdr_out out;

	xdr_in_init(&in, s->datagram, bytes, &pool);
	if (!xdr_get_u32(&in, &xid) || !xdr_get_u32(&in, &type) || type != CALL || !xdr_get_u32(&in, &version) ||
		version != RPC_VERSION || !xdr_get_u32(&in, &program) || !xdr_get_u32(&in, &program_version) ||
		!xdr_get_u32(&in, &procedure) || !xdr_get_u32(&in, &flavor) ||
		!xdr_get_opaque(&in, AUTH_BODY_MAX, &body) || !xdr_get_u32(&in, &flavor) ||
		!xdr_get_opaque(&in, AUTH_BODY_MAX, &body))
		return 0;
	xdr_out_init(&out, results, sizeof(results));
	int stat = program != SM_PROG		? RPC_PROG_UNAVAIL
		   : program_version != SM_VERS ? RPC_PROG_MISMATCH
						: nsm_run(&s->peer, procedure, &in, &out);
	uint32_t result_bytes = stat == RPC_SUCCESS ? (uint32_t)(out.p - out.base) : 0;
	xdr_out_init(&out, s->datagram, sizeof(s->datagram));
	xdr_put_u32(&out, xid);
	xdr_put_u32(&out, REPLY);
	xdr_put_u32(&out, MSG_ACCEPTED);
	xdr_put_u32(&out, AUTH_NONE);
	xdr_put_u32(&out, 0);
	xdr_put_u32(&out, (uint32_t)stat);
	if (stat == RPC_PROG_MISMATCH) {
		xdr_put_u32(&out, SM_VERS);
		xdr_put_u32(&out, SM_VERS);
	}
	xdr_put_fixed(&out, results, result_bytes);
	return (uint32_t)(out.p - out.base);
}

static int datagram_io(struct nsm_socket *s, bool send, uint32_t bytes)
{
	s->piece = (struct iovec){s->datagram, bytes};
	s->message.msg_name = &s->peer;
	if (!send)
		s->message.msg_namelen = sizeof(s->peer);
	s->message.msg_iov = &s->piece;
	s->message.msg_iovlen = 1;
	s->message.msg_control = NULL;
	s->message.msg_controllen = 0;
	struct io_uring_sqe *sqe = io_start(&s->io);
	if (send)
		io_uring_prep_sendmsg(sqe, s->fd, &s->message, MSG_NOSIGNAL);
	else
		io_uring_prep_recvmsg(sqe, s->fd, &s->message, 0);
	io_link(sqe, &s->io);
	return io_wait(&s->io);
}

static void udp_fiber(void *arg)
{
	struct nsm_socket *s = arg;

	while (!s->stop) {
		int n = datagram_io(s, false, sizeof(s->datagram));
		if (n < 0 && !s->stop)
			fiber_sleep(100 * NSEC_PER_MSEC); /* out of memory, or so: not a busy loop */
		uint32_t bytes = n > 0 ? datagram_answer(s, (uint32_t)n) : 0;
		if (bytes && !s->stop)
			(void)datagram_io(s, true, bytes);
	}
	s->ended = true;
}

static void socket_start(struct nsm_socket *s, const char *address)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} a = {0};
	bool v6 = strchr(address, ':');
	socklen_t len = v6 ? sizeof(a.v6) : sizeof(a.v4);
	int on = 1;

	a.any.sa_family = v6 ? AF_INET6 : AF_INET;
	if (inet_pton(a.any.sa_family, address, v6 ? (void *)&a.v6.sin6_addr : (void *)&a.v4.sin_addr) != 1)
		return;
	s->fd = socket(a.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s->fd < 0)
		return;
	if (v6)
		setsockopt(s->fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	s->stop = s->ended = false;
	if (bind(s->fd, &a.any, len) || getsockname(s->fd, &a.any, &len) || fiber_spawn(udp_fiber, s)) {
		log_warning("nsm", "no status monitor over UDP address=%s error=\"%s\"", address, strerror(errno));
		close(s->fd);
		s->fd = -1;
		return;
	}
	s->port = ntohs(v6 ? a.v6.sin6_port : a.v4.sin_port);
}

void nsm_udp_start(const struct config *config)
{
	for (unsigned i = 0; i < config->listen_count; i++) {
		struct nsm_socket *s = &sockets[strchr(config->listen[i], ':') != NULL];
		if (s->fd < 0)
			socket_start(s, config->listen[i]);
	}
}

void nsm_udp_stop(void)
{
	for (unsigned i = 0; i < 2; i++) {
		struct nsm_socket *s = &sockets[i];
		if (s->fd < 0)
			continue;
		s->stop = true;
		while (!s->ended) {
			if (s->io.pending)
				io_cancel(&s->io);
			fiber_sleep(NSEC_PER_MSEC);
		}
		close(s->fd);
		s->fd = -1;
		s->port = 0;
	}
}

uint16_t nsm_udp_port(bool v6)
{
	return sockets[v6].port;
}

/*
 * One that was killed may have left its registration: so it is called. What is at OUR_PORT was this server before it
 * was killed, and would answer as it is now.
 */
bool nsm_registered_by_other(uint16_t our_port)
{
	struct rpc_outgoing *call = calloc(1, sizeof(*call));
	struct sockaddr_in *to = call ? (struct sockaddr_in *)(void *)&call->to : NULL;

	if (!call)
		return false;
	to->sin_family = AF_INET;
	to->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	call->program = SM_PROG;
	call->version = SM_VERS;
	call->procedure = SM_NULL;
	call->deadline = now_ns() + 2 * NSEC_PER_SEC;
	int rc = rpc_port_ask(call);
	if (rc > 0 && rc != our_port) {
		to->sin_port = htons((uint16_t)rc);
		rc = rpc_call_out(call);
	}
	free(call);
	return !rc;
}
