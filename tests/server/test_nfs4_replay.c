/*
 * What is sent again, over every operation of NFSv4.1 and 4.2: the same call is done once and told the same, on the
 * same connection and on another; under the same number another call is a false retry, and numbers out of order are
 * refused. After the server was killed, what changed the file system is told once more and not done; what changed
 * states is not known any more (RFC 8881 2.10.6).
 *
 * All of it goes over TCP; or, given the address of an RDMA device (tests/vm/nfs4_replay.sh), over RDMA and then over
 * TCP in the same session.
 *
 * Each case of the table has a file, and names, of its own, and a slot: so all of them are sent, the server is killed
 * once, and all of them are sent again.
 */
#include "server/handle_format.h"
#include "tests/server/nfs4_cases.h"
#include "tests/server/nfs_client_rdma.h"

_Static_assert(CASES <= V4_SLOTS - 1, "each case has a slot of its own, and slot 0 is for the way there");

static nfsstat4 status_of(const struct replay_case *what)
{
	return client_over && what->put == put_read_plus ? NFS4ERR_NOTSUPP : what->status;
}

/* ------------------------------------------------------------------------------------------------
 * Calls that are kept
 */

struct sent {
	uint8_t *call, *reply;
	size_t call_bytes, reply_bytes;
	uint32_t xid, data_at, data_bytes;
};

static void sent_keep(struct sent *sent, const struct v4 *v)
{
	sent->call_bytes = (size_t)(v->rpc.out.p - v->rpc.out.base);
	sent->reply_bytes = (size_t)(v->rpc.in.end - v->rpc.in.base);
	sent->call = malloc(sent->call_bytes);
	sent->reply = malloc(sent->reply_bytes);
	assert_true(sent->call && sent->reply);
	memcpy(sent->call, v->rpc.out.base, sent->call_bytes);
	memcpy(sent->reply, v->rpc.in.base, sent->reply_bytes);
	sent->xid = v->rpc.xid;
	sent->data_at = v->rpc.data_at;
	sent->data_bytes = v->rpc.data_bytes;
}

static void sent_free(struct sent *sent)
{
	free(sent->call);
	free(sent->reply);
}

/* The same bytes once more; the reply's head is taken. */
static nfsstat4 send_again(struct v4 *v, const struct sent *sent)
{
	memcpy(v->rpc.out.base, sent->call, sent->call_bytes);
	v->rpc.out.p = v->rpc.out.base + sent->call_bytes;
	v->rpc.xid = sent->xid;
	v->rpc.data_at = sent->data_at;
	v->rpc.data_bytes = sent->data_bytes;
	client_call(&v->rpc);
	return v4_head(v);
}

static void same_bytes(const struct v4 *v, const struct sent *sent)
{
	assert_int_equal(v->rpc.in.end - v->rpc.in.base, sent->reply_bytes);
	assert_memory_equal(v->rpc.in.base, sent->reply, sent->reply_bytes);
}

static void told_the_same(struct v4 *v, const struct sent *sent)
{
	send_again(v, sent);
	same_bytes(v, sent);
}

/* ------------------------------------------------------------------------------------------------
 * Before a restart
 */

static void subject_make(struct v4 *v, struct subject *s, unsigned number)
{
	static uint8_t bytes[SUBJECT_BYTES];
	struct how how = {.access = 3, .create = GUARDED4};

	memset(bytes, 'b', sizeof(bytes));
	*s = (struct subject){.lock = {0}};
	snprintf(s->file, sizeof(s->file), "file%u", number);
	snprintf(s->other, sizeof(s->other), "other%u", number);
	snprintf(s->link, sizeof(s->link), "link%u", number);
	snprintf(s->made, sizeof(s->made), "made%u", number);
	assert_int_equal(open_name(v, s->file, &how, &s->open), NFS4_OK);
	assert_int_equal(open_name(v, s->other, &how, &s->open_other), NFS4_OK);
	begin(v, "");
	create(v, NF4LNK, s->link);
	expect(v, NFS4_OK);
	begin(v, s->file);
	put_write(v, 0, bytes, sizeof(bytes));
	put_setxattr(v, "old", SETXATTR4_EITHER, "o", 1);
	expect(v, NFS4_OK);
	assert_int_equal(lock_it(v, &s->open, WRITE_LT, 0, 10, false, &s->lock), NFS4_OK);
	assert_int_equal(lock_it(v, &s->open_other, WRITE_LT, 0, 10, false, &s->unlocked), NFS4_OK);
	assert_int_equal(unlock_it(v, &s->open_other, 0, 10, &s->unlocked), NFS4_OK);
}

/* What all that the case may change has changed so often. */
struct changes {
	uint64_t root, file, other;
};
static uint64_t change_of(struct v4 *v, const char *path)
{
	begin(v, path);
	put_getattr(v, FATTR4_CHANGE);
	if (v4_send(v))
		return 0;
	at_end(v, 8);
	uint64_t value = 0;
	assert_true(xdr_get_u64(&v->rpc.in, &value));
	return value;
}
static struct changes changes_of(struct v4 *v, const struct subject *s)
{
	return (struct changes){change_of(v, ""), change_of(v, s->file), change_of(v, s->other)};
}

static void refused(struct v4 *v, uint32_t slot, uint32_t sequence, const struct replay_case *what,
	const struct subject *s, bool more, nfsstat4 want)
{
	uint32_t was = v->slot;

	v->slot = slot;
	v4_bare(v);
	v4_sequence(v, sequence);
	what->put(v, s);
	if (more)
		v4_op(v, OP_PUTROOTFH);
	v4_send(v);
	assert_int_equal(v4_result(v, OP_SEQUENCE), want);
	v->slot = was;
}

/* Sends what is put together twice before the first answer; whoever comes first does it, the other is told the same. */
static void send_twice(struct v4 *v, nfsstat4 want, struct sent *sent)
{
	unsigned told = 0;

	assert_true(client_send(&v->rpc) && client_send(&v->rpc));
	for (unsigned i = 0; i < 2; i++) {
		assert_true(client_receive(&v->rpc));
		client_reply(&v->rpc);
		if (v4_head(v) == NFS4ERR_DELAY) /* the other one is being done */
			continue;
		assert_int_equal(v->status, want);
		if (told++)
			same_bytes(v, sent);
		else
			sent_keep(sent, v);
	}
	assert_true(told);
}

/* A client that has RDMA speaks TCP for a while, in the same session. */
static bool tcp_begin(struct v4 *v)
{
	if (!client_over)
		return false;
	v->rpc.over = NULL;
	assert_true(client_connect(&v->rpc));
	return true;
}

static void tcp_end(struct v4 *v)
{
	v->rpc.over = client_over;
}

/* The case, in the slot: once done, and told again in every way. */
static void case_run(struct v4 *v, const struct replay_case *what, const struct subject *s, struct sent *sent)
{
	uint32_t number = ++v->sequence[v->slot], slot = v->slot;

	print_message("%s\n", what->name);
	refused(v, slot, number + 1, what, s, false, NFS4ERR_SEQ_MISORDERED); /* it came before the one before it */
	v4_bare(v);
	v4_sequence(v, number);
	what->put(v, s);
	send_twice(v, status_of(what), sent);
	v->slot = 0;
	struct changes before = changes_of(v, s);
	told_the_same(v, sent);
	assert_true(client_connect(&v->rpc));
	told_the_same(v, sent);
	if (tcp_begin(v)) {
		told_the_same(v, sent);
		refused(v, slot, number, what, s, true, NFS4ERR_SEQ_FALSE_RETRY);
		v->rpc.uid = 77;
		refused(v, slot, number, what, s, false, NFS4ERR_SEQ_FALSE_RETRY);
		v->rpc.uid = 0;
		tcp_end(v);
	}
	refused(v, slot, number, what, s, true, NFS4ERR_SEQ_FALSE_RETRY);
	v->rpc.uid = 77;
	refused(v, slot, number, what, s, false, NFS4ERR_SEQ_FALSE_RETRY);
	v->rpc.uid = 0;
	refused(v, slot, number - 1, what, s, false, NFS4ERR_SEQ_MISORDERED);
	refused(v, slot, number + 2, what, s, false, NFS4ERR_SEQ_MISORDERED);
	told_the_same(v, sent);
	struct changes after = changes_of(v, s);
	assert_memory_equal(&before, &after, sizeof(before));
}

/* What was not to be kept is not told again, and not done again either. */
static void case_uncached(struct v4 *v, const struct replay_case *what, const struct subject *s)
{
	struct sent sent;

	v->cache = false;
	v4_begin(v);
	what->put(v, s);
	expect(v, status_of(what));
	sent_keep(&sent, v);
	v->slot = 0;
	v->cache = true;
	struct changes before = changes_of(v, s);
	SEQUENCE4resok res;
	nfsstat4 status = send_again(v, &sent);
	if (what->put == put_sequence_alone) {
		assert_int_equal(status, NFS4_OK); /* it costs nothing to keep */
	} else {
		nfsstat4 want = what->put == put_illegal ? NFS4ERR_OP_ILLEGAL : NFS4ERR_RETRY_UNCACHED_REP;
		uint32_t op, second;
		assert_int_equal(status, want);
		assert_int_equal(v4_result(v, OP_SEQUENCE), NFS4_OK);
		v4_take(v, SEQUENCE4resok, &res);
		assert_true(xdr_get_u32(&v->rpc.in, &op) && xdr_get_u32(&v->rpc.in, &second));
		assert_int_equal(second, want);
	}
	struct changes after = changes_of(v, s);
	assert_memory_equal(&before, &after, sizeof(before));
	sent_free(&sent);
}

/* ------------------------------------------------------------------------------------------------
 * After one
 */

static void killed(struct v4 *helper)
{
	static unsigned life;
	char owner[32];

	kill_and_start();
	snprintf(owner, sizeof(owner), "helper%u", life++);
	v4_fini(helper);
	v4_init(helper, run.port, 0, owner);
	helper->minor = 2;
	v4_connect(helper);
}

/* Another call, and one of another user, under the number of one that was done. */
static void others_refused(struct v4 *v, const struct replay_case *what, const struct subject *s)
{
	refused(v, v->slot, v->sequence[v->slot], what, s, true, NFS4ERR_SEQ_FALSE_RETRY);
	v->rpc.uid = 77;
	refused(v, v->slot, v->sequence[v->slot], what, s, false, NFS4ERR_SEQ_FALSE_RETRY);
	v->rpc.uid = 0;
}

static void case_told(struct v4 *v, const struct replay_case *what, const struct subject *s, const struct sent *sent)
{
	/* all but its last operation were done; the second of two REMOVEs had failed, and now it is not tried again */
	nfsstat4 want = what->status ? NFS4ERR_DELAY : NFS4_OK;

	assert_int_equal(send_again(v, sent), want);
	if (!want && sent->reply_bytes > HANDLE_BYTES) /* GETFH comes last where there is one */
		if (!memcmp(sent->call + sent->call_bytes - 4, "\0\0\0\12", 4))
			assert_memory_equal(v->rpc.in.end - HANDLE_BYTES,
				sent->reply + sent->reply_bytes - HANDLE_BYTES, HANDLE_BYTES);
	others_refused(v, what, s);
	assert_int_equal(send_again(v, sent), want);
	if (tcp_begin(v)) {
		assert_int_equal(send_again(v, sent), want);
		others_refused(v, what, s);
		assert_int_equal(send_again(v, sent), want);
		tcp_end(v);
	}
}

static void cases_after(struct v4 *v, struct v4 *helper, const struct subject *subjects, const struct sent *sent)
{
	assert_true(client_connect(&v->rpc));
	for (unsigned i = 0; i < CASES; i++) {
		struct changes before = changes_of(helper, &subjects[i]);

		print_message("%s\n", cases[i].name);
		v->slot = 1 + i;
		if (cases[i].told) {
			case_told(v, &cases[i], &subjects[i], &sent[i]);
		} else {
			assert_int_equal(send_again(v, &sent[i]), NFS4ERR_BADSESSION);
			refused(v, v->slot, v->sequence[v->slot], &cases[i], &subjects[i], true, NFS4ERR_BADSESSION);
		}
		/* and the next one, which is new, has no session */
		refused(v, v->slot, v->sequence[v->slot] + 1, &cases[i], &subjects[i], false, NFS4ERR_BADSESSION);
		struct changes after = changes_of(helper, &subjects[i]);
		assert_memory_equal(&before, &after, sizeof(before));
	}
}

static struct subject subjects[2 * CASES];
static struct sent sent[CASES];

static void every_operation(void **state)
{
	struct v4 v, helper;

	(void)state;
	join(&v, "every", 2);
	v4_init(&helper, run.port, 0, "helper");
	for (unsigned i = 0; i < CASES; i++) {
		v.slot = 0;
		subject_make(&v, &subjects[CASES + i], (unsigned)CASES + i);
		v.slot = 1 + i;
		case_uncached(&v, &cases[i], &subjects[CASES + i]);
	}
	for (unsigned i = 0; i < CASES; i++) {
		v.slot = 0;
		subject_make(&v, &subjects[i], i);
		v.slot = 1 + i;
		case_run(&v, &cases[i], &subjects[i], &sent[i]);
	}
	/* two lives later it is still known */
	for (unsigned life = 0; life < 2; life++) {
		killed(&helper);
		cases_after(&v, &helper, subjects, sent);
	}
	for (unsigned i = 0; i < CASES; i++)
		sent_free(&sent[i]);
	v4_fini(&helper);
	/* it wants nothing of what it had: nobody needs to wait for it */
	v4_connect(&v);
	assert_int_equal(v4_reclaim_complete(&v), NFS4_OK);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * Data that comes apart from the call: over RDMA in a Read chunk, over TCP in line
 */

#define VALUE_BYTES 6001u
static uint8_t value_first;

static void put_setxattr_apart(struct v4 *v, const struct subject *s)
{
	static uint8_t value[VALUE_BYTES];

	value[0] = value_first;
	put_fh(v, &s->open.fh);
	put_setxattr(v, "much", SETXATTR4_CREATE, value, sizeof(value));
	v->rpc.data_bytes = sizeof(value);
	v->rpc.data_at = (uint32_t)(v->rpc.out.p - v->rpc.out.base) - xdr_round(sizeof(value));
}

static void other_data_refused(struct v4 *v, const struct replay_case *what, const struct subject *s)
{
	value_first++;
	refused(v, v->slot, v->sequence[v->slot], what, s, false, NFS4ERR_SEQ_FALSE_RETRY);
	value_first--;
}

/* Whether it came in a chunk or not, after a restart it is known over both transports, and its data too. */
static void data_apart(void **state)
{
	static const struct replay_case much = {"SETXATTR of much", put_setxattr_apart, NFS4_OK, true};
	struct subject s[2];
	struct sent kept[2];
	struct v4 v;

	(void)state;
	join(&v, "apart", 2);
	subject_make(&v, &s[0], 1001);
	subject_make(&v, &s[1], 1002);
	v.slot = 1;
	case_run(&v, &much, &s[0], &kept[0]);
	bool both = tcp_begin(&v);
	v.slot = 2;
	v4_begin(&v);
	much.put(&v, &s[1]);
	expect(&v, NFS4_OK);
	sent_keep(&kept[1], &v);
	if (both)
		tcp_end(&v);
	kill_and_start();
	assert_true(client_connect(&v.rpc));
	for (unsigned i = 0; i < 2; i++) {
		v.slot = 1 + i;
		case_told(&v, &much, &s[i], &kept[i]);
		other_data_refused(&v, &much, &s[i]);
		if (tcp_begin(&v)) {
			other_data_refused(&v, &much, &s[i]);
			tcp_end(&v);
		}
		sent_free(&kept[i]);
	}
	v4_connect(&v); /* it wants nothing of what it had */
	assert_int_equal(v4_reclaim_complete(&v), NFS4_OK);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------
 * The open of a file that was made before the restart
 */

/* It is told with a stateid that is as gone as all the others, and reclaimed like them. */
static void made_and_reclaimed(void **state)
{
	struct v4 v;
	struct opened file, again;
	OPEN4resok res;
	struct sent kept;

	(void)state;
	join(&v, "maker", 1);
	v.slot = 3;
	begin(&v, "");
	put_open(&v, "mine", &(struct how){.access = 3, .create = GUARDED4});
	v4_op(&v, OP_GETFH);
	expect(&v, NFS4_OK);
	sent_keep(&kept, &v);
	kill_and_start();
	assert_true(client_connect(&v.rpc));
	assert_int_equal(send_again(&v, &kept), NFS4_OK);
	SEQUENCE4resok sequence;
	assert_int_equal(v4_result(&v, OP_SEQUENCE), NFS4_OK);
	v4_take(&v, SEQUENCE4resok, &sequence);
	v4_took_root(&v);
	assert_int_equal(v4_result(&v, OP_OPEN), NFS4_OK);
	v4_take(&v, OPEN4resok, &res);
	file.stateid = res.stateid;
	take_fh(&v, &file.fh);
	assert_false(res.rflags & OPEN4_RESULT_CONFIRM);
	v4_connect(&v); /* the session is gone: a new one */
	struct how how = {.access = 3, .create = -1, .reclaim = &file.fh};
	assert_int_equal(open_name(&v, NULL, &how, &again), NFS4_OK);
	assert_int_equal(v4_reclaim_complete(&v), NFS4_OK);
	assert_int_equal(write_it(&v, &file, "stale"), NFS4ERR_BAD_STATEID);
	assert_int_equal(write_it(&v, &again, "reclaimed"), NFS4_OK);
	assert_int_equal(close_it(&v, &again), NFS4_OK);
	assert_int_equal(remove_name(&v, "mine"), NFS4_OK);
	sent_free(&kept);
	v4_end(&v);
}

/* A client that makes a new session and does it again there finds its own file by the verifier. */
static void exclusive_after_restart(void **state)
{
	struct v4 v;
	struct opened first, again;
	struct how how = {.access = 3, .create = EXCLUSIVE4_1, .verifier = 0x1234567890abcdef};

	(void)state;
	join(&v, "exclusive", 1);
	assert_int_equal(open_name(&v, "once", &how, &first), NFS4_OK);
	kill_and_start();
	v4_fini(&v);
	join(&v, "exclusive", 1); /* it does not want what it had */
	assert_int_equal(open_name(&v, "once", &how, &again), NFS4_OK);
	assert_memory_equal(first.fh.data, again.fh.data, first.fh.len);
	how.verifier++;
	assert_int_equal(open_name(&v, "once", &how, &first), NFS4ERR_EXIST);
	assert_int_equal(close_it(&v, &again), NFS4_OK);
	assert_int_equal(remove_name(&v, "once"), NFS4_OK);
	v4_end(&v);
}

/* ------------------------------------------------------------------------------------------------ */

static int setup(void **state)
{
	static const char exports[] = RUN_EXPORT_YAML "      - {clients: 10.0.0.0/8, access: rw, squash: none}\n";

	(void)state;
	run_init(&run, exports);
	run.rdma = rdma_client_address;
	run_write_config(&run, exports);
	run_start(&run);
	rdma_client_port = run.port;
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		rdma_client_address = argv[1];
		client_over = &rdma_client;
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_operation),
		cmocka_unit_test(data_apart),
		cmocka_unit_test(made_and_reclaimed),
		cmocka_unit_test(exclusive_after_restart),
	};
	return cmocka_run_group_tests(tests, setup, group_stop);
}
