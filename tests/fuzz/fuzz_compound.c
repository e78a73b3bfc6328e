/*
 * COMPOUND with live state: a whole server without its listeners, on an array of files in a directory of its own, and a
 * client with a session, an open file, a lock and a directory. Compounds go in as a transport hands them over; each
 * must be answered once, with results that are as many as it says, nothing may stay held, and in between an honest
 * client must get its answers.
 *
 * An input is a series of compounds, see compound_read(). Its operations are XDR as on the wire, but for marks that
 * stand for what is alive: 0xfeed00NN and the 8 bytes behind it for the stateid of NN, 0xfeed01NN where a handle begins
 * for that of NN, 0xfeed0200 and 12 bytes for the session, 0xfeed0300 and 4 bytes for the client id.
 *
 * States begin anew with each input; files and other clients that inputs made stay.
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_transport.h"

#include "raid/raid.h"
#include "server/handle_format.h"
#include "server/nfs4_session.h"
#include "server/server_internal.h"
#include "xdr/nfs4.h"

#define DRIVES 3u
#define DRIVE_BYTES (256ull << 20) /* sparse */
#define COMPOUNDS 6u
#define ROOM 16384u
#define MARK 0xfeed0000u

static struct server server;
static bool running;
static char dir[] = "/tmp/furrow-fuzz-XXXXXX";

/* ------------------------------------------------------------------------------------------------
 * The server
 */

static void format(void)
{
	static char path[DRIVES][64];
	const char *drives[DRIVES];
	struct raid_scan scan = {0};
	struct array *array = NULL;
	struct volume *volume = NULL;
	struct error err = {0};
	struct fs_create_options options = {.root_mode = 0777};

	for (unsigned i = 0; i < DRIVES; i++) {
		snprintf(path[i], sizeof(path[i]), "%s/drive%u", dir, i);
		drives[i] = path[i];
		int fd = open(path[i], O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		FUZZ_CHECK(fd >= 0 && !ftruncate(fd, (off_t)DRIVE_BYTES));
		close(fd);
	}
	struct array_create create = {.name = "a0", .level = 5, .drives = drives, .count = DRIVES};
	FUZZ_CHECK(!array_create(&create, &err) && !raid_scan(drives, DRIVES, &scan, &err));
	FUZZ_CHECK(!array_open(&scan, "a0", &array, &err));
	raid_scan_free(&scan);
	FUZZ_CHECK(!volume_create(array, "data", 0, &err) && !volume_open(array, "data", &volume, &err));
	FUZZ_CHECK(!fs_create(volume, &options, &err));
	volume_close(volume);
	array_close(array);
}

static unsigned free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	FUZZ_CHECK(!bind(fd, (struct sockaddr *)&a, sizeof(a)) && !getsockname(fd, (struct sockaddr *)&a, &len));
	close(fd);
	return ntohs(a.sin_port);
}

static void begin(void)
{
	char path[64];
	struct error err = {0};
	static const bool stop;

	FUZZ_CHECK(mkdtemp(dir));
	format();
	snprintf(path, sizeof(path), "%s/furrow.yaml", dir);
	FILE *f = fopen(path, "w");
	FUZZ_CHECK(f);
	fprintf(f,
		"server:\n  listen: [\"127.0.0.1\"]\n  nfs_port: %u\n  rdma_port: off\n  cores: 1\n  memory: 256MiB\n"
		"  control: %s/control.sock\n  metrics: off\n  delegations: write\ndrives: [\"%s/drive*\"]\nexports:\n"
		"  - path: /data\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.1, access: rw, "
		"squash: none}\n"
		"  - path: /deep/er\n    filesystem: a0/data\n    allow:\n      - {clients: 127.0.0.1, access: ro}\n",
		free_port(), dir, dir);
	FUZZ_CHECK(!fclose(f) && !config_load(path, &server.config, &err) && !serve_start(&server, &stop, &err));
}

static void end(void)
{
	static const char *const files[] = {"drive0", "drive1", "drive2", "furrow.yaml", "control.sock"};
	char path[64];

	serve_stop(&server);
	config_free(server.config);
	for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
		unlink(path);
	}
	rmdir(dir);
}

/* ------------------------------------------------------------------------------------------------
 * A client, and what of it is alive
 */

enum alive { ALIVE_OPEN, ALIVE_READER, ALIVE_LOCK, ALIVE_CLOSED, ALIVE_STATEIDS };
enum handle_of { HANDLE_FILE, HANDLE_ROOT, HANDLE_DIR, HANDLES };

struct peer {
	const char *owner;
	uint64_t verifier, id;
	sessionid4 session;
	uint32_t sequence[8];
	stateid4 stateid[ALIVE_STATEIDS];
	uint8_t handle[HANDLES][HANDLE_BYTES];
	struct rpc_connection *conn;
	/* the compound that is made, and the reply to the last */
	uint8_t bytes[ROOM], answer[ROOM];
	struct xdr_out out;
	uint8_t *count_at;
	uint32_t ops, answer_bytes;
	bool bare;
};
static struct peer wild = {.owner = "wild"}, honest = {.owner = "honest"};
static struct peer *asking;

static void compound_begin(struct peer *p, uint32_t minor)
{
	static uint32_t xid;
	struct xdr_out *o = &p->out;
	static const uint32_t head[] = {CALL, RPC_VERSION, NFS4_PROGRAM, NFS_V4, NFSPROC4_COMPOUND, AUTH_SYS, 20, 0, 0,
		0, 0, 0, AUTH_NONE, 0, 0};

	xdr_out_init(o, p->bytes, sizeof(p->bytes));
	xdr_put_u32(o, ++xid);
	for (unsigned i = 0; i < sizeof(head) / sizeof(head[0]); i++)
		xdr_put_u32(o, head[i]);
	xdr_put_u32(o, minor);
	p->count_at = o->p;
	p->ops = 0;
	xdr_put_u32(o, 0);
}

static void op_count(struct peer *p, uint32_t ops)
{
	p->ops = ops;
	ops = __builtin_bswap32(ops);
	memcpy(p->count_at, &ops, 4);
}

static struct xdr_out *put_op(struct peer *p, uint32_t op)
{
	op_count(p, p->ops + 1);
	xdr_put_u32(&p->out, op);
	return &p->out;
}

static void put_sequence(struct peer *p, uint32_t slot, bool cache)
{
	SEQUENCE4args args = {
		.sa_sequenceid = ++p->sequence[slot], .sa_slotid = slot, .sa_highest_slotid = 7, .sa_cachethis = cache};

	memcpy(args.sa_sessionid, p->session, sizeof(args.sa_sessionid));
	FUZZ_CHECK(xdr_encode_SEQUENCE4args(put_op(p, OP_SEQUENCE), &args));
}

static void put_root(struct peer *p)
{
	put_op(p, OP_PUTROOTFH);
	xdr_put_opaque(put_op(p, OP_LOOKUP), "data", 4);
}

static void put_handle(struct peer *p, enum handle_of which)
{
	xdr_put_opaque(put_op(p, OP_PUTFH), p->handle[which], HANDLE_BYTES);
}

static void replied(struct fuzz_call *call, const uint8_t *head, uint32_t bytes)
{
	(void)call;
	asking->answer_bytes = bytes < ROOM ? bytes : ROOM;
	memcpy(asking->answer, head, asking->answer_bytes);
}

/* Sends what was made, and waits for the answer. Its results, from the compound's status on; false: it has none. */
static bool ask(struct peer *p, struct xdr_in *in, struct xdr_pool *pool)
{
	struct fuzz_call c = {.replied = replied};
	uint32_t word = 0;

	asking = p;
	p->answer_bytes = 0;
	c.piece[0] = (struct xdr_piece){p->bytes, (uint32_t)(p->out.p - p->out.base)};
	memcpy(&c.xid, p->bytes, 4);
	c.xid = __builtin_bswap32(c.xid);
	c.call = (struct rpc_call){.conn = p->conn,
		.piece = c.piece,
		.pieces = 1,
		.bytes = c.piece[0].len,
		.reply_head_max = RPC_HEAD_MAX,
		.reply_payload_max = UINT32_MAX,
		.payload_inline = true,
		.held = 4096};
	rpc_call_received(&c.call);
	while (!c.ended)
		fiber_sleep(NSEC_PER_MSEC / 20);
	xdr_in_init(in, p->answer, p->answer_bytes, pool);
	for (unsigned i = 0; i < 6; i++)
		if (!xdr_get_u32(in, &word) || (i == 2 && word) || (i == 5 && word))
			return false;
	return true;
}

/* One whose answer is wanted: the status of the whole. The results follow. */
static nfsstat4 ask_status(struct peer *p, struct xdr_in *in, struct xdr_pool *pool)
{
	uint32_t status = 0, count = 0;
	struct xdr_opaque tag;

	FUZZ_CHECK(ask(p, in, pool) && xdr_get_u32(in, &status) && xdr_get_opaque(in, 1024, &tag) &&
		   xdr_get_u32(in, &count) && count <= p->ops);
	return (nfsstat4)status;
}

static void result_is(struct xdr_in *in, uint32_t want)
{
	uint32_t op, status;

	FUZZ_CHECK(xdr_get_u32(in, &op) && xdr_get_u32(in, &status) && op == want && !status);
}

struct reading {
	struct xdr_in in;
	struct xdr_pool pool;
	uint8_t memory[ROOM];
};
static struct reading *reading(void)
{
	static struct reading r;

	r.pool = (struct xdr_pool){r.memory, 0, sizeof(r.memory)};
	return &r;
}

static nfsstat4 session_new(struct peer *p, uint32_t sequence)
{
	struct reading *r = reading();
	channel_attrs4 channel = {.ca_maxrequestsize = ROOM,
		.ca_maxresponsesize = ROOM,
		.ca_maxresponsesize_cached = 4096,
		.ca_maxoperations = 64,
		.ca_maxrequests = 8};
	CREATE_SESSION4args args = {.csa_clientid = p->id,
		.csa_sequence = sequence,
		.csa_flags = CREATE_SESSION4_FLAG_CONN_BACK_CHAN,
		.csa_fore_chan_attrs = channel,
		.csa_back_chan_attrs = channel};
	CREATE_SESSION4resok res;

	compound_begin(p, 1);
	FUZZ_CHECK(xdr_encode_CREATE_SESSION4args(put_op(p, OP_CREATE_SESSION), &args));
	nfsstat4 status = ask_status(p, &r->in, &r->pool);
	if (status)
		return status;
	result_is(&r->in, OP_CREATE_SESSION);
	FUZZ_CHECK(xdr_decode_CREATE_SESSION4resok(&r->in, &res));
	memcpy(p->session, res.csr_sessionid, sizeof(p->session));
	memset(p->sequence, 0, sizeof(p->sequence));
	return NFS4_OK;
}

static void client_new(struct peer *p)
{
	struct reading *r = reading();
	EXCHANGE_ID4args args = {.eia_clientowner = {.co_ownerid = {.data = (const uint8_t *)p->owner,
							     .len = (uint32_t)strlen(p->owner)}}};
	EXCHANGE_ID4resok res;

	p->verifier++;
	memcpy(args.eia_clientowner.co_verifier, &p->verifier, 8);
	compound_begin(p, 1);
	FUZZ_CHECK(xdr_encode_EXCHANGE_ID4args(put_op(p, OP_EXCHANGE_ID), &args));
	FUZZ_CHECK(ask_status(p, &r->in, &r->pool) == NFS4_OK);
	result_is(&r->in, OP_EXCHANGE_ID);
	FUZZ_CHECK(xdr_decode_EXCHANGE_ID4resok(&r->in, &res));
	p->id = res.eir_clientid;
	FUZZ_CHECK(session_new(p, res.eir_sequenceid) == NFS4_OK);
	compound_begin(p, 1);
	put_sequence(p, 0, false);
	xdr_put_u32(put_op(p, OP_RECLAIM_COMPLETE), 0);
	FUZZ_CHECK(ask_status(p, &r->in, &r->pool) == NFS4_OK);
}

/* A new session of the client that there is, or, where an input has ended that, a new client. */
static void client_anew(struct peer *p)
{
	struct nfs4_client *client = nfs4_client_find(p->id);
	struct list_node *n;

	if (!client) {
		client_new(p);
		return;
	}
	nfs4_state_client_gone(client);
	uint32_t sequence = 0;
	for (;;) {
		pthread_mutex_lock(&nfs4_tables.lock);
		n = list_first(&client->sessions);
		struct nfs4_session *session = n ? container_of(n, struct nfs4_session, in_client) : NULL;
		if (session)
			nfs4_session_unlink(session);
		sequence = client->create_sequence;
		pthread_mutex_unlock(&nfs4_tables.lock);
		if (!session)
			break;
		nfs4_session_put(session);
	}
	nfs4_client_put(client);
	if (session_new(p, sequence) != NFS4_OK)
		client_new(p);
}

static void take_handle(struct xdr_in *in, uint8_t to[HANDLE_BYTES])
{
	GETFH4resok res;

	result_is(in, OP_GETFH);
	FUZZ_CHECK(xdr_decode_GETFH4resok(in, &res) && res.object.len == HANDLE_BYTES);
	memcpy(to, res.object.data, HANDLE_BYTES);
}

static void take_sequence(struct xdr_in *in)
{
	SEQUENCE4resok res;

	result_is(in, OP_SEQUENCE);
	FUZZ_CHECK(xdr_decode_SEQUENCE4resok(in, &res));
}

static void open_file(struct peer *p, const char *name, uint32_t access, enum alive which)
{
	struct reading *r = reading();
	OPEN4args args = {.share_access = access | OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
		.owner = {.clientid = p->id, .owner = {.data = (const uint8_t *)&which, .len = 1}},
		.openhow = {.opentype = OPEN4_CREATE, .how = {.mode = UNCHECKED4}},
		.claim = {.claim = CLAIM_NULL, .file = {.data = (const uint8_t *)name, .len = (uint32_t)strlen(name)}}};
	OPEN4resok res;

	compound_begin(p, 1);
	put_sequence(p, 0, false);
	put_root(p);
	FUZZ_CHECK(xdr_encode_OPEN4args(put_op(p, OP_OPEN), &args));
	put_op(p, OP_GETFH);
	nfsstat4 status = ask_status(p, &r->in, &r->pool);
	if (status) /* an input has made something else of that name, or another client has it */
		return;
	take_sequence(&r->in);
	result_is(&r->in, OP_PUTROOTFH);
	result_is(&r->in, OP_LOOKUP);
	result_is(&r->in, OP_OPEN);
	FUZZ_CHECK(xdr_decode_OPEN4resok(&r->in, &res));
	p->stateid[which] = res.stateid;
	take_handle(&r->in, p->handle[HANDLE_FILE]);
}

static void lock_file(struct peer *p)
{
	struct reading *r = reading();
	LOCK4args args = {.locktype = READ_LT, .offset = 10, .length = 10, .locker = {.new_lock_owner = true}};
	LOCK4resok res;

	args.locker.open_owner.open_stateid = p->stateid[ALIVE_OPEN];
	args.locker.open_owner.lock_owner =
		(lock_owner4){.clientid = p->id, .owner = {.data = (const uint8_t *)"l", .len = 1}};
	compound_begin(p, 1);
	put_sequence(p, 0, false);
	put_handle(p, HANDLE_FILE);
	FUZZ_CHECK(xdr_encode_LOCK4args(put_op(p, OP_LOCK), &args));
	if (ask_status(p, &r->in, &r->pool))
		return;
	take_sequence(&r->in);
	result_is(&r->in, OP_PUTFH);
	result_is(&r->in, OP_LOCK);
	FUZZ_CHECK(xdr_decode_LOCK4resok(&r->in, &res));
	p->stateid[ALIVE_LOCK] = res.lock_stateid;
}

static void states_make(struct peer *p)
{
	struct reading *r = reading();

	compound_begin(p, 1);
	put_sequence(p, 0, false);
	put_root(p);
	put_op(p, OP_GETFH);
	FUZZ_CHECK(ask_status(p, &r->in, &r->pool) == NFS4_OK);
	take_sequence(&r->in);
	result_is(&r->in, OP_PUTROOTFH);
	result_is(&r->in, OP_LOOKUP);
	take_handle(&r->in, p->handle[HANDLE_ROOT]);
	memset(p->stateid, 0, sizeof(p->stateid));
	open_file(p, "reader", 1, ALIVE_READER);
	memcpy(p->handle[HANDLE_DIR], p->handle[HANDLE_FILE], HANDLE_BYTES);
	open_file(p, "file", 3, ALIVE_OPEN);
	lock_file(p);
	p->stateid[ALIVE_CLOSED] = p->stateid[ALIVE_OPEN];
	p->stateid[ALIVE_CLOSED].other[8]++;
}

/* ------------------------------------------------------------------------------------------------
 * Inputs
 */

static void fill_in(struct peer *p, uint8_t *bytes, size_t len)
{
	for (size_t at = 0; at + 4 <= len; at += 4) {
		uint32_t word, which;
		size_t left = len - at;

		memcpy(&word, bytes + at, 4);
		word = __builtin_bswap32(word);
		which = word & 0xff;
		switch (word & 0xffffff00u) {
		case MARK:
			if (left >= 12)
				memcpy(bytes + at, p->stateid[which % ALIVE_STATEIDS].other, 12);
			break;
		case MARK | 0x100:
			if (left >= HANDLE_BYTES)
				memcpy(bytes + at, p->handle[which % HANDLES], HANDLE_BYTES);
			break;
		case MARK | 0x200:
			if (left >= NFS4_SESSIONID_SIZE)
				memcpy(bytes + at, p->session, NFS4_SESSIONID_SIZE);
			break;
		case MARK | 0x300: {
			uint64_t id = htobe64(p->id);
			if (left >= 8)
				memcpy(bytes + at, &id, 8);
			break;
		}
		default:
			break;
		}
	}
}

/*
 * A compound of the input: the length of its operations in words (2 bytes), how many it says they are, flags, then the
 * operations. The flags: 3 a slot; 4 without SEQUENCE; 8 the root, or else the file, is the filehandle to begin with;
 * 16 that none is; 32 the reply is kept; 64 minor version 1; 128 the whole is sent twice. False: there is none.
 */
static bool compound_read(struct peer *p, struct fuzz_input *in, bool *twice)
{
	if (fuzz_left(in) < 4)
		return false;
	size_t bytes = fuzz_u16(in) * 4u;
	uint8_t count = fuzz_u8(in), flags = fuzz_u8(in);
	if (bytes > fuzz_left(in))
		bytes = fuzz_left(in);
	compound_begin(p, flags & 64 ? 1 : 2);
	p->bare = flags & 4;
	if (!p->bare)
		put_sequence(p, flags & 3, flags & 32);
	if (!(flags & 20)) {
		if (flags & 8)
			put_root(p);
		else
			put_handle(p, HANDLE_FILE);
	}
	op_count(p, p->ops + count);
	size_t room = (size_t)(p->out.end - p->out.p);
	if (bytes > room)
		bytes = room & ~(size_t)3;
	memcpy(p->out.p, in->p, bytes);
	fill_in(p, p->out.p, bytes);
	p->out.p += bytes & ~(size_t)3;
	in->p += bytes;
	*twice = flags & 128;
	return true;
}

/* The head of an answer to COMPOUND: as many results as there are, the last of which has the status of all. */
static void answer_check(struct peer *p, struct xdr_in *in)
{
	uint32_t status = 0, count = 0;
	struct xdr_opaque tag;

	FUZZ_CHECK(xdr_get_u32(in, &status) && xdr_get_opaque(in, 1024, &tag) && xdr_get_u32(in, &count));
	FUZZ_CHECK(count <= p->ops && (status || count == p->ops));
	FUZZ_CHECK(!count == (xdr_in_left(in) == 0));
}

static void honest_check(void)
{
	struct reading *r = reading();

	compound_begin(&honest, 1);
	put_sequence(&honest, 0, true);
	put_root(&honest);
	put_op(&honest, OP_GETFH);
	FUZZ_CHECK(ask_status(&honest, &r->in, &r->pool) == NFS4_OK);
}

static void connection_new(struct peer *p)
{
	static const struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {0x0100007f} /* 127.0.0.1 */};
	const struct sockaddr *at = (const struct sockaddr *)(const void *)&address;

	p->conn = calloc(1, sizeof(*p->conn));
	FUZZ_CHECK(p->conn && rpc_connection_begin(p->conn, server.rpc, &transport, at, at) == 0);
}

static void connection_drop(struct peer *p)
{
	struct rpc_shard *shard = p->conn->shard;

	rpc_connection_closing(p->conn);
	rpc_connection_end(p->conn);
	free(p->conn);
	p->conn = NULL;
	FUZZ_CHECK(!shard->used && !shard->payload && !shard->running && list_empty(&shard->waiting));
}

static void run(void *arg)
{
	struct fuzz_input *in = arg;
	bool twice = false;

	connection_new(&wild);
	client_anew(&wild);
	states_make(&wild);
	for (unsigned i = 0; i < COMPOUNDS && compound_read(&wild, in, &twice); i++) {
		struct reading *r = reading();
		for (unsigned k = 0; k < 1u + twice; k++)
			if (ask(&wild, &r->in, &r->pool))
				answer_check(&wild, &r->in);
	}
	connection_drop(&wild);
	connection_new(&honest);
	struct nfs4_client *known = nfs4_client_find(honest.id);
	if (!known) /* the first input; or another has named itself so */
		client_new(&honest);
	nfs4_client_put(known);
	honest_check();
	connection_drop(&honest);
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
	struct fuzz_input in = {data, data + bytes};

	if (!running) {
		fuzz_core_start(96u << 20, begin, end);
		running = true;
	}
	fuzz_core_call(run, &in);
}

/* ------------------------------------------------------------------------------------------------
 * Seeds: one compound for each operation, with what is alive
 */

/* Arguments as words: S a stateid (4 words), H a handle, I the client id, N a name of one letter; else the number. */
static const struct {
	uint32_t op;
	const char *args;
} seeds[] = {
	{OP_ACCESS, "63"},
	{OP_CLOSE, "0 S"},
	{OP_COMMIT, "0 0 0"},
	{OP_CREATE, "2 N 0 0"},
	{OP_CREATE, "5 N N 0 0"},
	{OP_DELEGRETURN, "S"},
	{OP_GETATTR, "2 4294967295 4294967295"},
	{OP_GETFH, ""},
	{OP_LINK, "N"},
	{OP_LOCK, "1 0 0 5 0 5 0 0 S"},
	{OP_LOCK, "2 0 0 50 0 5 1 0 S 0 I N"},
	{OP_LOCKT, "2 0 0 0 90 I N"},
	{OP_LOCKU, "1 0 S 0 10 0 5"},
	{OP_LOOKUP, "N"},
	{OP_LOOKUPP, ""},
	{OP_NVERIFY, "1 2 4 1"},
	{OP_OPEN, "0 1 0 I N 0 0 N"},
	{OP_OPEN, "0 3 0 I N 1 0 0 0 0 N"},
	{OP_OPEN, "0 3 0 I N 1 3 7 7 0 0 0 N"},
	{OP_OPEN, "0 1 0 I N 0 4"},
	{OP_OPEN_DOWNGRADE, "S 0 1 0"},
	{OP_PUTFH, "H"},
	{OP_PUTROOTFH, ""},
	{OP_READ, "S 0 0 100"},
	{OP_READDIR, "0 0 0 0 100 1000 1 26"},
	{OP_READLINK, ""},
	{OP_REMOVE, "N"},
	{OP_RENAME, "N N"},
	{OP_RESTOREFH, ""},
	{OP_SAVEFH, ""},
	{OP_SECINFO, "N"},
	{OP_SETATTR, "S 2 0 2 4 420"},
	{OP_SETATTR, "S 1 16 8 0 77"},
	{OP_VERIFY, "1 2 4 1"},
	{OP_WRITE, "S 0 5 2 N"},
	{OP_BACKCHANNEL_CTL, "1073741824 1 0"},
	{OP_BIND_CONN_TO_SESSION, "X 3 0"},
	{OP_EXCHANGE_ID, "1 2 N 0 0 0"},
	{OP_CREATE_SESSION, "I 3 2 0 4096 4096 4096 8 8 0 0 4096 4096 4096 8 8 0 9 0"},
	{OP_DESTROY_SESSION, "X"},
	{OP_FREE_STATEID, "S"},
	{OP_SECINFO_NO_NAME, "0"},
	{OP_TEST_STATEID, "2 S S"},
	{OP_DESTROY_CLIENTID, "I"},
	{OP_RECLAIM_COMPLETE, "0"},
	{OP_ALLOCATE, "S 0 0 0 9000"},
	{OP_COPY, "S S 0 0 0 8192 0 5 1 1 0"},
	{OP_DEALLOCATE, "S 0 0 0 9000"},
	{OP_IO_ADVISE, "S 0 0 0 9000 1 2"},
	{OP_READ_PLUS, "S 0 0 9000"},
	{OP_SEEK, "S 0 0 0"},
	{OP_CLONE, "S S 0 0 0 4096 0 4096"},
	{OP_GETXATTR, "N"},
	{OP_SETXATTR, "0 N N"},
	{OP_LISTXATTRS, "0 0 1000"},
	{OP_REMOVEXATTR, "N"},
};

struct seed {
	uint8_t bytes[512];
	size_t len;
};

static void put_word(struct seed *s, uint32_t v)
{
	v = __builtin_bswap32(v);
	FUZZ_CHECK(s->len + 4 <= sizeof(s->bytes));
	memcpy(s->bytes + s->len, &v, 4);
	s->len += 4;
}

static void put_args(struct seed *s, uint32_t op, const char *args)
{
	put_word(s, op);
	for (const char *a = args; *a; a += strcspn(a, " "), a += *a == ' ') {
		unsigned words = *a == 'S' ? 3 : *a == 'X' ? 4 : *a == 'I' ? 2 : *a == 'H' ? HANDLE_BYTES / 4 : 1;
		uint32_t kind = *a == 'X' ? 2 : *a == 'I' ? 3 : *a == 'H' ? 1 : 0;

		if (*a == 'S')
			put_word(s, 0); /* the latest */
		if (*a == 'H')
			put_word(s, HANDLE_BYTES);
		if (*a == 'N') {
			put_word(s, 1);
			put_word(s, 'f' << 24);
		} else if (*a >= '0' && *a <= '9') {
			put_word(s, (uint32_t)strtoul(a, NULL, 10));
		} else {
			put_word(s, MARK | kind << 8);
			for (unsigned i = 1; i < words; i++)
				put_word(s, 0);
		}
	}
}

static void fuzz_seeds(void)
{
	char name[32];

	for (unsigned i = 0; i < sizeof(seeds) / sizeof(seeds[0]); i++)
		for (unsigned kind = 0; kind < 2;
			kind++) { /* on the file; with a saved filehandle, in the root, twice */
			struct seed s = {.len = 4};
			uint32_t ops = 1;
			if (kind) {
				put_word(&s, OP_SAVEFH);
				ops++;
			}
			put_args(&s, seeds[i].op, seeds[i].args);
			if (kind) {
				put_args(&s, OP_GETATTR, "1 26");
				ops++;
			}
			uint8_t head[4] = {0, (uint8_t)((s.len - 4) / 4), (uint8_t)ops, kind ? 8 | 32 | 128 : 0};
			memcpy(s.bytes, head, 4);
			snprintf(name, sizeof(name), "%s%u-%u", "op", i, kind);
			fuzz_seed(name, s.bytes, s.len);
		}
}
