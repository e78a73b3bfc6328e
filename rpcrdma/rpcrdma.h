/*
 * rpcrdma: ONC RPC (RFC 5531) over two transports, TCP (record marking) and RPC-over-RDMA version 1
 * (RFC 8166, 8267, 8797), with the reply cache and the authentication. It never sees an inode.
 *
 * Life of a call: the connection's reactor receives a message, admits it (memory, credits), and starts a
 * fiber that checks the RPC header and credential, looks into the reply cache, and runs the
 * procedure. The procedure decodes its arguments from req->in, fetches the payload of a WRITE into
 * buffers of its choice, works (waiting as it likes), encodes its results to req->out, may attach the
 * payload of a READ, and returns. Then the transport sends the reply and frees the request.
 *
 * A peer that breaks a rule gets the error the RFC names, or loses its own connection; nothing else.
 */
#ifndef FURROW_RPCRDMA_H
#define FURROW_RPCRDMA_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "core/core.h"
#include "xdr/xdr.h"

/* RFC 5531 section 9 */
enum rpc_accept_stat {
	RPC_SUCCESS,
	RPC_PROG_UNAVAIL,
	RPC_PROG_MISMATCH,
	RPC_PROC_UNAVAIL,
	RPC_GARBAGE_ARGS,
	RPC_SYSTEM_ERR
};
enum rpc_auth_flavor { RPC_AUTH_NONE = 0, RPC_AUTH_SYS = 1, RPC_AUTH_GSS = 6 };
enum rpc_auth_stat {
	RPC_AUTH_OK,
	RPC_AUTH_BADCRED,
	RPC_AUTH_REJECTEDCRED,
	RPC_AUTH_BADVERF,
	RPC_AUTH_REJECTEDVERF,
	RPC_AUTH_TOOWEAK
};
#define RPC_DROP 100	   /* a procedure's return value: send nothing (the client will retransmit) */
#define RPC_AUTH_ERROR 101 /* MSG_DENIED with req->auth_stat */

struct rpc_cred {
	uint32_t flavor;
	uint32_t uid, gid; /* AUTH_SYS */
	uint32_t group_count, groups[16];
};

struct rpc_server;
struct rpc_connection;
struct rpc_request;

#define RPC_PROC_CACHED 1u /* not idempotent: its reply is kept for retransmissions */

struct rpc_procedure {
	const char *name; /* as in the protocol: "GETATTR"; NULL: no such procedure */
	/* Runs in a fiber. Returns an rpc_accept_stat, RPC_DROP or RPC_AUTH_ERROR. */
	int (*run)(struct rpc_request *req);
	uint32_t flags;
	/* Most bytes of its results without payload: room that is made sure of before it runs. */
	uint32_t reply_max;
	/* Further room that the call itself asks for (READDIR's maxcount); NULL: none. Reads the arguments without
	 * consuming them. */
	uint32_t (*reply_more)(const struct rpc_request *req);
};

struct rpc_program {
	uint32_t program, version;
	const char *name; /* "nfs3": label of metrics */
	const struct rpc_procedure *procedure;
	uint32_t procedures;
	/* May refuse a credential for this program; NULL: AUTH_NONE and AUTH_SYS are fine. */
	int (*authorize)(struct rpc_request *req);
};

/* What identifies a call that may come twice (fs.h's struct fs_reply is made from it). */
struct rpc_tag {
	uint64_t client; /* hash of the peer's address without its port */
	uint32_t xid, program, version, procedure;
	uint32_t checksum; /* of the arguments' first 256 bytes and the length */
};

struct rpc_request {
	struct rpc_connection *connection;
	const struct rpc_program *program;
	const struct rpc_procedure *procedure;
	uint32_t xid;
	uint32_t auth_stat;
	struct rpc_cred cred;
	struct rpc_tag tag; /* of a procedure with RPC_PROC_CACHED */
	bool rdma;
	struct xdr_pool pool;
	struct xdr_in in;   /* at the arguments */
	struct xdr_out out; /* at the results */
	/* Most bytes of payload that the reply can carry (what the client's Write chunk holds; UINT32_MAX on TCP). */
	uint32_t reply_payload_max;
	/* For a call that was done before a restart: what rpc_cache_preload() was given; the procedure then only tells
	 * its result again. */
	const void *replay;
	uint32_t replay_bytes;
	uint64_t started; /* now_ns() when the call came */
};

/* Address of the peer, IPv4-mapped IPv6 shown as IPv4. No wait. */
const struct sockaddr_storage *rpc_peer(const struct rpc_request *req);
const struct in6_addr *rpc_peer_address(const struct rpc_request *req); /* without port, IPv4 as IPv4-mapped */
/* Our own address of that connection. No wait. */
const struct sockaddr_storage *rpc_local(const struct rpc_request *req);
void rpc_peer_text(const struct rpc_request *req, char *text, size_t room); /* without port */

/*
 * Brings the payload of a decoded WRITE to where it will stay: an RDMA Read into TO, or the one copy from the
 * TCP receive buffer. TO holds PAYLOAD->len bytes in all. On the connection's reactor, as what follows, and where
 * procedures run. Waits. -EIO: the connection is lost, return RPC_DROP.
 */
int rpc_payload_fetch(struct rpc_request *req, const struct xdr_payload *payload, const struct slice *to, unsigned n);
/*
 * For a procedure that will attach payload, before it takes memory for it: waits while this connection (whose peer
 * may not read its replies) or this reactor holds too much. What is not attached in the end is given back with the
 * reply. -EIO: the connection is lost, return RPC_DROP.
 */
int rpc_payload_reserve(struct rpc_request *req, uint32_t bytes);
/*
 * The bytes of the payload just encoded with xdr_put_payload(). Takes over the references of V and puts them when the
 * reply has been sent. Several (COMPOUND) in order of encoding. No wait.
 */
int rpc_payload_attach(struct rpc_request *req, const struct slice *v, unsigned n);
/* The bytes of the payload that was attached as number I go to TO, for a reply that is kept. No wait. */
void rpc_payload_copy(const struct rpc_request *req, unsigned i, void *to);

/*
 * For procedures whose reply grows as they go (COMPOUND), on the connection's reactor:
 *   rpc_payload_room  most bytes that the next payload can have: what its Write chunk holds (they are filled in order
 *                     of encoding, an unused one goes back with a length of zero), else what is left of the message;
 *                     UINT32_MAX on TCP. No wait.
 *   rpc_reply_room    bytes of results that the peer and one buffer can still take, payload in line counted. Look here
 *                     before a change is made whose result would not fit. No wait.
 *   rpc_reply_grow    makes sure that BYTES more can be encoded at out.p. Waits for memory; then out.base moves, so
 *                     keep offsets and no pointers. -EMSGSIZE: more than rpc_reply_room().
 */
uint32_t rpc_payload_room(const struct rpc_request *req);
uint32_t rpc_reply_room(const struct rpc_request *req);
int rpc_reply_grow(struct rpc_request *req, uint32_t bytes);

/* ------------------------------------------------------------------------------------------------
 * Calls in reverse: from us to a client, on the connection that it made (RFC 8881 2.10.3.1, RFC 8167)
 */

/*
 * The identity of a connection. It outlives connection and server as long as somebody holds a reference, keeps
 * neither of them open, and is the same for all requests of a connection. All of these from any reactor, no wait.
 */
struct rpc_link;
struct rpc_link *rpc_link_get(struct rpc_request *req); /* on the connection's reactor; NULL: no memory */
struct rpc_link *rpc_link_ref(struct rpc_link *link);
void rpc_link_put(struct rpc_link *link);	   /* NULL is ignored */
uint64_t rpc_link_id(const struct rpc_link *link); /* never used again in this process */
/*
 * Becomes true before config.connection_closed is called. So who stores a link where that hook looks, and then
 * finds it not closed, will be told.
 */
bool rpc_link_closed(const struct rpc_link *link);

#define RPC_CALLBACK_MAX 4096u /* bytes of arguments and of results */

struct rpc_callback {
	uint32_t program, version, procedure;
	struct rpc_cred cred; /* RPC_AUTH_NONE, or RPC_AUTH_SYS with machine as its name (NULL: "") */
	const char *machine;
	const void *args; /* encoded; a multiple of 4 bytes */
	uint32_t args_bytes;
	uint64_t deadline; /* now_ns() + ... */
};
/*
 * Calls the client and waits for its answer, in a fiber of any reactor. 0: the results are in RESULTS, their number in
 * *BYTES. Some calls of a connection are on their way at once (over RDMA as many as the client takes), more wait in
 * line.
 *   -ENOTCONN    the connection is closed, or closes meanwhile; whether the call was done is not known
 *   -ETIMEDOUT   no answer until the deadline; the same. An answer that still comes is ignored
 *   -EACCES      the client denies it (MSG_DENIED)
 *   -EOPNOTSUPP  it does not have the program, version or procedure
 *   -EPROTO      it could not decode it, failed, or its answer cannot be read
 *   -EMSGSIZE    the call is too long for this client, or the results for ROOM
 *   -ENOMEM
 */
int rpc_callback(struct rpc_link *link, const struct rpc_callback *call, void *results, uint32_t room, uint32_t *bytes);

/* ------------------------------------------------------------------------------------------------
 * The server
 */

/* How what is sent is marked, and how long it is sent again. All zero: as the system has it. */
struct rpc_network {
	bool dscp_given; /* else TCP is not marked, and RDMA as the client marks its side */
	uint8_t dscp;	 /* 0 to 63, of TCP and RDMA (RFC 2474; the upper six bits of an InfiniBand traffic class) */
	/* Of RDMA, both told to adapters as they are (InfiniBand 9.7.6.1.3); 0: as the connection manager finds fit. */
	uint8_t rdma_timeout;	  /* for an acknowledgement: 4.096 us x 2^N, 1 to 31 */
	uint8_t rdma_retry_count; /* how often without one, 1 to 7 */
};

struct rpc_server_config {
	const struct rpc_program *const *programs; /* several versions of one program are several entries */
	unsigned program_count;
	uint64_t memory; /* most bytes that requests may hold, over all connections; 0: half of the arena */
	/*
	 * Most connections over each transport, 0: 4096, and of one client over both, 0: 2048. At either limit those
	 * make room that had no call for idle_close (ns, 0: five minutes; Linux clients close theirs then by
	 * themselves).
	 */
	uint32_t connections, client_connections;
	uint64_t idle_close;
	uint32_t rdma_credits; /* most per connection; 0: 64 */
	uint32_t message_max;  /* longest call without payload + 1 MiB payload; 0: 1 MiB + 64 KiB */
	/* Of the reply cache; 0: as many as fit 1/256 of the arena, 8192 at least and a million at most. */
	uint32_t cache_entries;
	struct rpc_network network;
	/* A connection that rpc_link_get() was used on closes. On its reactor; must not wait. May be NULL. */
	void (*connection_closed)(struct rpc_link *link);
};
int rpc_server_start(const struct rpc_server_config *config, struct rpc_server **server, struct error *err);
/* ADDRESS is numeric, IPv4 or IPv6. An IPv6 listener takes no IPv4 (both are listed in the configuration). */
int rpc_listen_tcp(struct rpc_server *server, const char *address, uint16_t port, struct error *err);
/*
 * Listens with rdma_cm where there is a device; -ENODEV with a sentence when there is none at all. A
 * device that is set up later is served when it comes, if its address is among the wildcard's.
 */
int rpc_listen_rdma(struct rpc_server *server, const char *address, uint16_t port, struct error *err);
/* Takes no new calls, ends those that run (5 s at most), closes all connections. */
void rpc_server_stop(struct rpc_server *server);

/* A call of an earlier life of this server: a retransmission of it runs with req->replay set. No wait. */
int rpc_cache_preload(struct rpc_server *server, const struct rpc_tag *tag, const void *replay, uint32_t bytes);

/* For `furrow status`. No wait. */
struct rpc_status {
	uint64_t tcp_connections, rdma_connections, requests, replies, cache_hits, bad_calls;
	uint64_t bytes_in, bytes_out;
};
void rpc_status(struct rpc_server *server, struct rpc_status *status);

/*
 * READ and WRITE of files, of whatever version. The procedure of REQ says that it read or wrote BYTES of one: a call
 * may do so several times. Counted with the time from the call to its reply, for its connection and client. No wait.
 */
enum rpc_io { RPC_IO_READ, RPC_IO_WRITE, RPC_IOS };
void rpc_io_count(struct rpc_request *req, enum rpc_io io, uint32_t bytes);

#define RPC_IO_BUCKETS 104u
struct rpc_io_info {
	uint64_t count, bytes, sum_ns, max_ns;
	uint64_t bucket[RPC_IO_BUCKETS]; /* of rpc_io_quantile() */
};
uint64_t rpc_io_quantile(const struct rpc_io_info *io, double q); /* ns, to a fourth of a doubling */

/*
 * Every client (an address), with what all of its connections did since it is known, also those that have ended. One
 * without connections is forgotten when 256 others came after it. FN must not wait.
 */
struct rpc_client_info {
	char client[64];
	uint32_t tcp_connections, rdma_connections;
	uint32_t credits; /* of all its RDMA connections */
	uint64_t calls, bytes_in, bytes_out, since_ns;
	uint64_t repeats;    /* retransmissions that the reply cache answered or dropped */
	uint64_t slow;	     /* calls that took over a second */
	uint64_t send_waits; /* replies that waited for room in a send queue (RDMA) */
	struct rpc_io_info io[RPC_IOS];
};
void rpc_clients_foreach(
	struct rpc_server *server, void (*fn)(void *arg, const struct rpc_client_info *info), void *arg);

/* Every connection: transport, peer, reactor, calls, bytes. FN must not wait. */
struct rpc_connection_info {
	char peer[64];
	bool rdma;
	unsigned reactor;
	uint64_t calls, bytes_in, bytes_out, since_ns;
	uint64_t io_count[RPC_IOS], io_bytes[RPC_IOS], repeats, send_waits;
	uint32_t credits;
};
void rpc_connections_foreach(
	struct rpc_server *server, void (*fn)(void *arg, const struct rpc_connection_info *info), void *arg);

/*
 * A call of ours to another host, over TCP. Waits until call->deadline at most. Filled in by the caller: TO (port 0:
 * its rpcbind is asked), FROM (family 0: any address of ours; its port does not matter), what is called, and the
 * encoded arguments; then there are the results. -ETIME, or what connecting failed with: it cannot be reached; -ENOENT:
 * no such program there; -EREMOTEIO: it refused; -EPROTO: it talks nonsense.
 */
struct rpc_outgoing {
	struct sockaddr_storage to, from;
	uint32_t program, version, procedure;
	uint64_t deadline; /* now_ns() */
	uint32_t args_bytes, results_bytes;
	uint8_t args[4608], results[2560];
};
int rpc_call_out(struct rpc_outgoing *call);
/* The port at which the rpcbind of call->to knows what is called; the errors are those of rpc_call_out(). */
int rpc_port_ask(const struct rpc_outgoing *call);
void rpc_address_portless(struct sockaddr_storage *address); /* its port becomes 0 */
/* "192.0.2.1", "2001:db8::1"; IPv4-mapped as IPv4. Any thread. */
void rpc_address_text(const struct sockaddr *address, char *text, size_t room);
/* Without port; IPv4 becomes IPv4-mapped, and what is neither ::. Any thread. */
void rpc_address_mapped(const struct sockaddr *address, struct in6_addr *to);

/*
 * rpcbind, through libtirpc on a helper thread: -ENOENT when none runs here, -EIO when it does not answer within some
 * seconds, -EACCES when it refuses.
 */
int rpc_rpcbind_set(uint32_t program, uint32_t version, const char *netid, uint16_t port);
int rpc_rpcbind_unset(uint32_t program, uint32_t version, const char *netid);

#endif
