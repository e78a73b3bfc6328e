/*
 * The world of the model test: the server with a clock that can be set forward, its clients and what the model says of
 * them, calls with the callbacks that are served meanwhile, and how clients and the server come and go.
 *
 * The server is the test program itself under another name. The page that both have, "ahead", says by how much its
 * monotonic clock is set forward; the test's own clock is the same.
 */
#ifndef TESTS_NFS4_WORLD_H
#define TESTS_NFS4_WORLD_H

int furrowd_main(int argc, char **argv);
#define main furrowd_main
#include "server/main.c"
#undef main

#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "raid/drive_internal.h"
#include "tests/server/nfs4_model.h"
#include "tests/server/nfs4_test.h"

#define SECOND 1000000000ull
#define JUMP (120 * SECOND)
#define PAUSE (11 * SECOND) /* after which a file whose delegation was recalled may be delegated again */

static _Atomic uint64_t *ahead;

int clock_gettime(clockid_t id, struct timespec *t)
{
	int rc = (int)syscall(SYS_clock_gettime, id, t);

	if (!rc && id == CLOCK_MONOTONIC && ahead) {
		uint64_t ns = (uint64_t)t->tv_sec * SECOND + (uint64_t)t->tv_nsec + atomic_load(ahead);
		*t = (struct timespec){.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)};
	}
	return rc;
}

static void clock_share(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0 || ftruncate(fd, 4096))
		abort();
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		abort();
	close(fd);
	ahead = page;
}

/* ------------------------------------------------------------------------------------------------
 * The world
 */

static struct {
	struct v4 v[CLIENTS], probe; /* probe has nothing and wants nothing: it asks whether there is grace */
	struct kept fh[FILES];
	struct model m;
	bool keeps;		  /* whoever is asked for a delegation keeps it, in this step */
	bool back_fault[CLIENTS]; /* the server asks for a new session, since it lost a callback */
	bool leapt[CLIENTS]; /* time made a leap since it last asked: a callback on the way was lost by it, if there was
				one */
	uint64_t restarted;
	char fault[300];
	/* what the step that runs waits for; FILES: nothing */
	unsigned actor, file;
	bool changes;
	bool asked_back; /* a delegation of that file, while it waited: whether it is back soon enough is a matter of
			    time */
} w;

static uint64_t asked, recalls, denials, expelled, revocations, reclaims, given, grace_refusals;

static bool wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool wrong(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	if (!w.fault[0])
		vsnprintf(w.fault, sizeof(w.fault), format, ap);
	va_end(ap);
	return false;
}
static bool same(const char *what, uint32_t got, uint32_t want)
{
	return got == want || wrong("%s: the server says %u, the model %u", what, got, want);
}

static void tick(void)
{
	w.m.now = now_ns();
}

/* ------------------------------------------------------------------------------------------------
 * Calls, and what the server calls meanwhile
 */

static bool deleg_return(unsigned c, unsigned f);

static struct m_deleg *deleg_named(unsigned c, const stateid4 *id, unsigned *file)
{
	for (unsigned f = 0; f < FILES; f++)
		if (w.m.client[c].deleg[f].there && !memcmp(w.m.client[c].deleg[f].id.other, id->other, 12)) {
			*file = f;
			return &w.m.client[c].deleg[f];
		}
	return NULL;
}

/* The head of an answer to the call that v has received; what it holds is decoded by the caller. */
static void callback_answer(struct v4 *v, uint32_t xid, const CB_SEQUENCE4args *sequence, uint32_t op)
{
	uint8_t bytes[512];
	struct xdr_out o;
	CB_SEQUENCE4resok res = {.csr_sequenceid = sequence->csa_sequenceid,
		.csr_slotid = sequence->csa_slotid,
		.csr_highest_slotid = sequence->csa_highest_slotid,
		.csr_target_highest_slotid = sequence->csa_highest_slotid};

	memcpy(res.csr_sessionid, sequence->csa_sessionid, sizeof(res.csr_sessionid));
	xdr_out_init(&o, bytes, sizeof(bytes));
	for (unsigned i = 0; i < 7; i++) /* record mark, xid, REPLY, accepted, verifier of no flavor, success */
		xdr_put_u32(&o, i == 1 ? xid : i == 2);
	bool ok = xdr_put_u32(&o, NFS4_OK) && xdr_put_opaque(&o, "", 0) && xdr_put_u32(&o, 2) &&
		  xdr_put_u32(&o, OP_CB_SEQUENCE) && xdr_put_u32(&o, NFS4_OK) &&
		  xdr_encode_CB_SEQUENCE4resok(&o, &res) && xdr_put_u32(&o, op) && xdr_put_u32(&o, NFS4_OK);
	assert_true(ok);
	uint32_t mark = htonl(0x80000000u | (uint32_t)(o.p - o.base - 4));
	memcpy(o.base, &mark, 4);
	assert_int_equal(send(v->rpc.fd, o.base, (size_t)(o.p - o.base), MSG_NOSIGNAL), o.p - o.base);
}

/*
 * A call of the server's lies in v's buffer. BUSY: the client waits for the answer to a call of its own, and makes no
 * other meanwhile: what it is asked for it keeps for now.
 */
static void callback_serve(unsigned c, bool busy)
{
	struct v4 *v = &w.v[c];
	struct xdr_in *in = &v->rpc.in;
	uint32_t xid = 0, word = 0, op = 0, flavor = 0;
	struct xdr_opaque body;
	CB_COMPOUND4args_head head;
	CB_SEQUENCE4args sequence;
	CB_RECALL4args recall;
	unsigned file = 0;

	assert_true(xdr_get_u32(in, &xid));
	for (unsigned i = 0; i < 5; i++)
		assert_true(xdr_get_u32(in, &word));
	for (unsigned i = 0; i < 2; i++)
		assert_true(xdr_get_u32(in, &flavor) && xdr_get_opaque(in, 400, &body));
	assert_true(xdr_decode_CB_COMPOUND4args_head(in, &head) && head.argarray_count == 2);
	assert_true(xdr_get_u32(in, &op) && op == OP_CB_SEQUENCE && xdr_decode_CB_SEQUENCE4args(in, &sequence));
	assert_memory_equal(sequence.csa_sessionid, v->session, sizeof(v->session));
	assert_true(xdr_get_u32(in, &op));
	if (op == OP_CB_RECALL)
		assert_true(xdr_decode_CB_RECALL4args(in, &recall));
	stateid4 id = recall.stateid;
	callback_answer(v, xid, &sequence, op);
	if (op != OP_CB_RECALL)
		return; /* a hint that a lock may be free */
	struct m_deleg *deleg = deleg_named(c, &id, &file);
	if (!deleg)
		return; /* it has crossed with the return */
	recalls++;
	w.asked_back = w.asked_back || file == w.file;
	tick();
	deleg->recalled = w.m.now;
	if (!busy && (!w.keeps || deleg->revoked))
		deleg_return(c, file);
}

static bool is_call(const struct client *c)
{
	return c->reply[4] == 0 && c->reply[5] == 0 && c->reply[6] == 0 && c->reply[7] == 0;
}

/* Whether all that is still in the step's way was asked for and is kept: then only time helps. */
static bool stuck(void)
{
	m_set in_the_way = w.file < FILES ? m_deleg_conflicts(&w.m, w.actor, w.file, w.changes) : 0;

	for (unsigned k = 0; k < CLIENTS; k++)
		if ((in_the_way >> k & 1) && !w.m.client[k].deleg[w.file].recalled)
			return false;
	return in_the_way;
}

/*
 * Sends the call and serves callbacks until it is answered. Where only time helps, the clock is set forward beyond the
 * patience that the server has with recalls, and no further: a server that is given no processor for a while must not
 * find that a lease has gone by.
 */
static void call(struct v4 *v)
{
	static unsigned depth;
	struct pollfd p[CLIENTS + 1];
	unsigned quiet = 0, pushes = 0;

	asked++;
	depth++;
	assert_true(client_send(&v->rpc));
	for (bool done = false; !done;) {
		p[CLIENTS] = (struct pollfd){.fd = v->rpc.fd, .events = POLLIN};
		for (unsigned k = 0; k < CLIENTS; k++)
			p[k] = (struct pollfd){.fd = depth > 1 || &w.v[k] == v ? -1 : w.v[k].rpc.fd, .events = POLLIN};
		int n = poll(p, CLIENTS + 1, 1);
		assert_true(n >= 0 && quiet < 60000);
		quiet = n ? 0 : quiet + 1;
		if (quiet > 2 && depth == 1 && pushes < 10 && stuck()) {
			atomic_fetch_add(ahead, 30000000);
			pushes++;
		}
		if (p[CLIENTS].revents) {
			assert_true(client_receive(&v->rpc));
			done = !is_call(&v->rpc);
			if (!done)
				callback_serve((unsigned)(v - w.v), true);
		}
		for (unsigned k = 0; k < CLIENTS; k++)
			if (p[k].fd >= 0 && p[k].revents) {
				assert_true(client_receive(&w.v[k].rpc));
				callback_serve(k, false);
			}
	}
	client_reply(&v->rpc);
	depth--;
}

static struct v4 *start(unsigned c)
{
	v4_begin(&w.v[c]);
	return &w.v[c];
}

/* Sends what start() began. The rest of the results follows. */
static bool finish(unsigned c)
{
	struct v4 *v = &w.v[c];
	struct m_client *client = &w.m.client[c];
	SEQUENCE4resok res;
	uint64_t before = now_ns();
	bool revoked = false;

	for (unsigned f = 0; f < FILES; f++)
		revoked = revoked || (client->deleg[f].there && client->deleg[f].revoked);
	call(v);
	v4_head(v);
	if (!same("SEQUENCE", v4_result(v, OP_SEQUENCE), NFS4_OK))
		return false;
	v4_take(v, SEQUENCE4resok, &res);
	client->renewed = before;
	tick();
	if (res.sr_status_flags & SEQ4_STATUS_BACKCHANNEL_FAULT)
		w.back_fault[c] = true;
	if ((res.sr_status_flags & (SEQ4_STATUS_CB_PATH_DOWN | SEQ4_STATUS_CB_PATH_DOWN_SESSION)) && !w.back_fault[c]) {
		if (!w.leapt[c])
			return wrong("the server does not see client %u's backchannel", c);
		w.back_fault[c] = true;
	}
	w.leapt[c] = false;
	return same("SEQ4_STATUS_RECALLABLE_STATE_REVOKED",
		(res.sr_status_flags & SEQ4_STATUS_RECALLABLE_STATE_REVOKED) != 0, revoked);
}

/* The status of the operation behind PUTFH. */
static bool took(unsigned c, uint32_t op, nfsstat4 *status)
{
	if (!finish(c) || !same("PUTFH", v4_result(&w.v[c], OP_PUTFH), NFS4_OK))
		return false;
	*status = v4_result(&w.v[c], op);
	return true;
}

static struct v4 *start_at(unsigned c, unsigned f)
{
	struct v4 *v = start(c);

	put_fh(v, &w.fh[f]);
	return v;
}

static bool touch(unsigned c)
{
	start(c);
	return finish(c);
}

/* Clients that may have been expelled or not: the standard leaves it open which conflict is met first. */
static bool settle(m_set maybe)
{
	for (unsigned k = 0; k < CLIENTS; k++) {
		if (!(maybe >> k & 1) || !w.m.client[k].known)
			continue;
		struct v4 *v = start(k);
		call(v);
		v4_head(v);
		nfsstat4 status = v4_result(v, OP_SEQUENCE);
		if (status == NFS4ERR_BADSESSION)
			m_expel(&w.m.client[k]);
		else if (status != NFS4_OK)
			return same("SEQUENCE of a silent client", status, NFS4_OK);
		else
			w.m.client[k].renewed = w.m.now;
	}
	return true;
}

static m_set absent_of(m_set set)
{
	m_set absent = 0;

	for (unsigned k = 0; k < CLIENTS; k++)
		if ((set >> k & 1) && m_expired(&w.m, k))
			absent |= 1u << k;
	return absent;
}
static void expel(m_set set)
{
	for (unsigned k = 0; k < CLIENTS; k++)
		if (set >> k & 1) {
			m_expel(&w.m.client[k]);
			expelled++;
		}
}

/* ------------------------------------------------------------------------------------------------
 * Clients and the server come and go
 */

static bool grace_now(void)
{
	struct opened none;
	nfsstat4 status = open_name(&w.probe, "nothing", &(struct how){.access = 1, .create = -1}, &none);

	assert_true(status == NFS4ERR_GRACE || status == NFS4ERR_NOENT);
	return status == NFS4ERR_GRACE;
}

/* The server sees that all is reclaimed, or that the time is over, a moment later. */
static bool grace_wait(void)
{
	for (unsigned i = 0; i < 2000; i++) {
		if (!grace_now()) {
			m_grace_over(&w.m);
			return true;
		}
		run_pause();
	}
	return wrong("grace does not end");
}

static bool connect_client(unsigned c, bool new_life)
{
	struct v4 *v = &w.v[c];
	struct m_client *client = &w.m.client[c];
	EXCHANGE_ID4resok res;
	clientid4 before = v->id;

	if (v->rpc.fd >= 0 && !client->known) { /* what it had is gone */
		start(c);
		call(v);
		v4_head(v);
		if (!same("SEQUENCE of one that is gone", v4_result(v, OP_SEQUENCE), NFS4ERR_BADSESSION))
			return false;
	}
	if (new_life)
		v->verifier++;
	if (!client_connect(&v->rpc))
		return wrong("no connection");
	uint64_t now = now_ns();
	if (!same("EXCHANGE_ID", v4_exchange_id(v, 0, &res), NFS4_OK))
		return false;
	v->id = res.eir_clientid;
	bool kept = client->known && !new_life;
	if (!same("the client id is the one before", v->id == before, kept) ||
		!same("EXCHGID4_FLAG_CONFIRMED_R", (res.eir_flags & EXCHGID4_FLAG_CONFIRMED_R) != 0, kept))
		return false;
	if (!same("CREATE_SESSION", v4_create_session(v, res.eir_sequenceid), NFS4_OK))
		return false;
	if (!kept) {
		if (client->known)
			m_expel(client);
		client->complete = false;
	}
	if (new_life) {
		memset(client->had_open, 0, sizeof(client->had_open));
		memset(client->had_lock, 0, sizeof(client->had_lock));
	}
	client->known = true;
	client->renewed = now;
	return !w.m.grace || m_grace_needed(&w.m) || grace_wait();
}

static bool reclaim_complete(unsigned c)
{
	RECLAIM_COMPLETE4args args = {.rca_one_fs = false};
	struct m_client *client = &w.m.client[c];

	v4_add(start(c), RECLAIM_COMPLETE, &args);
	if (!finish(c) || !same("RECLAIM_COMPLETE", v4_result(&w.v[c], OP_RECLAIM_COMPLETE),
				  client->complete ? NFS4ERR_COMPLETE_ALREADY : NFS4_OK))
		return false;
	client->complete = true;
	if (client->old)
		client->recorded = client->old = false;
	client->reclaimed = false;
	return !w.m.grace || m_grace_needed(&w.m) || grace_wait();
}

/* Another connection in place of the one that was lost. */
static bool rebind(unsigned c)
{
	struct v4 *v = &w.v[c];
	BIND_CONN_TO_SESSION4args args = {.bctsa_dir = CDFC4_FORE_OR_BOTH};
	BIND_CONN_TO_SESSION4resok res;

	memcpy(args.bctsa_sessid, v->session, sizeof(v->session));
	if (!client_connect(&v->rpc))
		return wrong("no connection");
	v4_bare(v);
	v4_add(v, BIND_CONN_TO_SESSION, &args);
	call(v);
	v4_head(v);
	if (!same("BIND_CONN_TO_SESSION", v4_result(v, OP_BIND_CONN_TO_SESSION), NFS4_OK))
		return false;
	v4_take(v, BIND_CONN_TO_SESSION4resok, &res);
	return same("direction", res.bctsr_dir, CDFS4_BOTH) && touch(c);
}

/* What the server has called meanwhile. */
static void drain(void)
{
	struct pollfd p[CLIENTS];
	int n;

	do {
		for (unsigned k = 0; k < CLIENTS; k++)
			p[k] = (struct pollfd){.fd = w.v[k].rpc.fd, .events = POLLIN};
		n = poll(p, CLIENTS, 0);
		for (unsigned k = 0; k < CLIENTS && n > 0; k++)
			if (p[k].revents && client_receive(&w.v[k].rpc))
				callback_serve(k, false);
	} while (n > 0);
}

static bool new_session(unsigned c)
{
	DESTROY_SESSION4args args;
	nfsstat4 status = NFS4ERR_BACK_CHAN_BUSY;

	memcpy(args.dsa_sessionid, w.v[c].session, sizeof(args.dsa_sessionid));
	for (unsigned i = 0; i < 1000 && status == NFS4ERR_BACK_CHAN_BUSY; i++) {
		drain();
		v4_bare(&w.v[c]);
		v4_add(&w.v[c], DESTROY_SESSION, &args);
		call(&w.v[c]);
		v4_head(&w.v[c]);
		status = v4_result(&w.v[c], OP_DESTROY_SESSION);
	}
	w.back_fault[c] = false;
	return same("DESTROY_SESSION", status, NFS4_OK) && connect_client(c, false);
}

static void probe_connect(void)
{
	if (w.probe.rpc.call)
		v4_fini(&w.probe);
	v4_init(&w.probe, run.port, 0, "probe");
	v4_connect(&w.probe);
	assert_int_equal(v4_reclaim_complete(&w.probe), NFS4_OK);
}

static bool restart(bool planned)
{
	run_stop(&run, planned ? SIGTERM : SIGKILL);
	run_start(&run);
	m_restart(&w.m);
	for (unsigned c = 0; c < CLIENTS; c++)
		assert_true(client_connect(&w.v[c].rpc));
	probe_connect();
	tick();
	w.restarted = w.m.now;
	return w.m.grace || !grace_now() || wrong("grace, and nobody has anything to reclaim");
}

static void leap(uint64_t ns)
{
	for (unsigned c = 0; c < CLIENTS; c++)
		w.leapt[c] = true;
	atomic_fetch_add(ahead, ns);
}

/* Longer than a lease: whoever says nothing from now on is absent, and grace is over. */
static bool jump(void)
{
	leap(JUMP);
	tick();
	return !w.m.grace || grace_wait();
}

#endif
