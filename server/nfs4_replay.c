/*
 * nfs4_replay: changes that an earlier life of the server made, and whose replies did not reach the client.
 *
 * A client that loses its connection sends what was not answered again, with the same session, slot and sequence. While
 * the server lives, the slot knows the answer. After a restart there is no such session, and a client that were told
 * only that would do the change anew in a new session: a REMOVE that was done would fail.
 *
 * So a change carries a mark (struct fs_reply) into its transaction, where the client wanted its reply kept: session,
 * slot, sequence, which operation of the compound it was, and a checksum of the request and its user, which is the same
 * over every transport. Which operations do is said in nfs4_ops[] (NFS4_OP_MARKED): all that change names, attributes,
 * extended attributes or ranges of a file. Not WRITE and COPY: what they have not made stable a client must send anew
 * anyway, since the verifier is another, and a mark for each would double what a small WRITE costs the log. Nor what
 * changes states alone: they are gone, and reclaimed.
 *
 * The marks are read at start. A SEQUENCE whose session is unknown, but which has a mark, is what it was before (RFC
 * 8881 2.10.6.5): operations with a mark tell their success, and those that change nothing run once more. What was not
 * reached, or needs the session, is NFS4ERR_DELAY: nothing is done in a session that is gone. Another request under the
 * number of one with a mark is NFS4ERR_SEQ_FALSE_RETRY; anything else in an unknown session NFS4ERR_BADSESSION: the
 * client makes a new one and reclaims its state.
 *
 * An OPEN with a mark made or truncated its file. It is told with a stateid that nobody knows any more: the client
 * finds that out as it does with all the others that it had, and reclaims the open by the filehandle.
 *
 * The table is made at start and read afterwards: no lock. Session ids are never used again.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_session.h"

#define MARK_NFS4 0x80000000u /* tells marks from those of NFSv3, whose procedure numbers are small */
#define MARK_RDMA 0x40000000u /* older: came over RDMA, and the checksum is without what Read chunks brought */
#define MARK_SLOT 14	      /* then the operation's place in the compound, and its number */
#define MARK_PLACE 8
_Static_assert(NFS4_SLOTS_MAX <= 1u << (30 - MARK_SLOT) && NFS4_OPS_MAX <= 1u << (MARK_SLOT - MARK_PLACE) &&
		       OP_REMOVEXATTR < 1u << MARK_PLACE,
	"a mark has room for them");

struct known {
	struct htable_node node;
	struct fs_reply reply;
};
static struct htable table;
static bool ready;

bool nfs4_reply_is_ours(const struct fs_reply *reply)
{
	return reply->proc & MARK_NFS4;
}

static uint32_t mark_slot(const struct fs_reply *mark)
{
	return (mark->proc & ~(MARK_NFS4 | MARK_RDMA)) >> MARK_SLOT;
}

static uint32_t mark_place(const struct fs_reply *mark)
{
	return mark->proc >> MARK_PLACE & (NFS4_OPS_MAX - 1);
}

static uint64_t mark_hash(uint64_t client, uint32_t sequence, uint32_t slot)
{
	return hash_u64(client ^ ((uint64_t)slot << 32 | sequence));
}

static void load_one(void *arg, const struct fs_reply *reply)
{
	struct known *known;
	unsigned *count = arg;

	if (!nfs4_reply_is_ours(reply))
		return;
	known = malloc(sizeof(*known));
	if (!known)
		return; /* then it is as if the mark had been too old to be kept */
	known->reply = *reply;
	htable_insert(&table, &known->node, mark_hash(reply->client, reply->xid, mark_slot(reply)));
	(*count)++;
}

int nfs4_replay_start(const struct exports *exports)
{
	unsigned count = 0;

	if (htable_init(&table, FS_REPLIES))
		return -ENOMEM;
	ready = true;
	for (unsigned i = 0; i < exports->count; i++) {
		bool before = false; /* two exports may be of one file system */

		for (unsigned k = 0; k < i; k++)
			before = before || exports->export[k].fs == exports->export[i].fs;
		if (!before)
			fs_replies_foreach(exports->export[i].fs, load_one, &count);
	}
	if (count)
		log_info("nfs4", "changes made before the restart are known changes=%u", count);
	return 0;
}

void nfs4_replay_stop(void)
{
	struct htable_cursor cursor = {0};

	for (struct htable_node *n; ready && (n = htable_next(&table, &cursor));) {
		htable_remove(&table, n);
		free(container_of(n, struct known, node));
	}
	if (ready)
		htable_fini(&table);
	ready = false;
}

/* The mark of the operation at PLACE, or of the first behind it that has one. */
static const struct fs_reply *known_find(const struct nfs4_compound *c, uint32_t place, bool exactly)
{
	uint64_t hash = mark_hash(c->mark.client, c->mark.xid, c->slot_id);

	htable_foreach_hash (n, &table, hash) {
		const struct fs_reply *reply = &container_of(n, struct known, node)->reply;

		if (reply->client == c->mark.client && reply->xid == c->mark.xid && mark_slot(reply) == c->slot_id &&
			(exactly ? mark_place(reply) == place : mark_place(reply) >= place))
			return reply;
	}
	return NULL;
}

void nfs4_mark_begin(struct nfs4_compound *c, const SEQUENCE4args *args, uint64_t checksum)
{
	uint64_t sum = checksum ^ hash_u64(c->req->cred.uid);

	c->slot_id = args->sa_slotid;
	c->mark = (struct fs_reply){.client = nfs4_session_hash(args->sa_sessionid),
		.xid = args->sa_sequenceid,
		.checksum = (uint32_t)(sum ^ sum >> 32)};
}

nfsstat4 nfs4_replay_begin(struct nfs4_compound *c)
{
	const struct fs_reply *known = ready && c->slot_id < NFS4_SLOTS_MAX ? known_find(c, 0, false) : NULL;

	if (!known)
		return NFS4ERR_BADSESSION;
	bool comparable = !(known->proc & MARK_RDMA) || (c->req->rdma && c->req->in.reduced_pos == UINT32_MAX);
	if (known->checksum != c->mark.checksum && comparable)
		return NFS4ERR_SEQ_FALSE_RETRY;
	c->replay = true;
	return NFS4_OK;
}

nfsstat4 nfs4_replay_op(struct nfs4_compound *c, uint32_t flags)
{
	c->told = flags & NFS4_OP_MARKED ? known_find(c, c->op_index, true) : NULL;
	return c->told || (flags & NFS4_OP_REPLAYED) ? NFS4_OK : NFS4ERR_DELAY;
}

bool nfs4_replay_passed(const struct nfs4_compound *c)
{
	return c->replay && known_find(c, c->op_index, false);
}

void nfs4_mark(struct nfs4_compound *c)
{
	c->mark.proc = MARK_NFS4 | c->slot_id << MARK_SLOT | c->op_index << MARK_PLACE | c->opnum;
	c->op.reply = &c->mark;
}
