/*
 * Registration with rpcbind (RFC 1833), through libtirpc, whose calls block and therefore run on a helper thread.
 *
 * Owns nothing that lasts. The netconfig entry is made here and not looked up, since no /etc/netconfig names "rdma"
 * and small systems have no such file. An older registration of the same program, version and netid is replaced:
 * it is from a server that ended without a word.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include <netconfig.h>
#include <rpc/rpc.h>

#include "core/core.h"

/* As in rpcrdma.h, whose names libtirpc's headers take for themselves. */
int rpc_rpcbind_set(uint32_t program, uint32_t version, const char *netid, uint16_t port);
int rpc_rpcbind_unset(uint32_t program, uint32_t version, const char *netid);

struct rpcbind_request {
	uint32_t program, version;
	const char *netid;
	uint16_t port; /* 0: unset */
	int result;
};

static void rpcbind_do(void *arg)
{
	struct rpcbind_request *r = arg;
	char netid[32], inet[] = NC_INET, inet6[] = NC_INET6, tcp[] = NC_TCP, none[] = "";
	size_t len = strlen(r->netid);

	if (len + 1 > sizeof(netid)) {
		r->result = -EINVAL;
		return;
	}
	memcpy(netid, r->netid, len + 1);
	bool v6 = len && netid[len - 1] == '6';
	struct netconfig config = {.nc_netid = netid,
		.nc_semantics = NC_TPI_COTS_ORD,
		.nc_flag = NC_VISIBLE,
		.nc_protofmly = v6 ? inet6 : inet,
		.nc_proto = tcp,
		.nc_device = none};
	struct sockaddr_in any4 = {.sin_family = AF_INET, .sin_port = htons(r->port)};
	struct sockaddr_in6 any6 = {.sin6_family = AF_INET6, .sin6_port = htons(r->port)};
	struct netbuf address = {.maxlen = v6 ? sizeof(any6) : sizeof(any4), .len = v6 ? sizeof(any6) : sizeof(any4)};
	address.buf = v6 ? (void *)&any6 : (void *)&any4;

	/* RPCBPROC_UNSET of what is not set is refused, which tells nothing; whether anybody answers is what counts. */
	rpc_createerr.cf_stat = RPC_SUCCESS;
	bool done = rpcb_unset(r->program, r->version, &config);
	if (r->port)
		done = rpcb_set(r->program, r->version, &config, &address);
	if (done)
		r->result = 0;
	else if (rpc_createerr.cf_stat != RPC_SUCCESS)
		r->result = -ENOENT;
	else
		r->result = r->port ? -EACCES : 0;
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
