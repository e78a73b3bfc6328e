/*
 * nfs4_replay: changes that an earlier life of the server made, and whose replies did not reach the client.
 *
 * A client that loses its connection sends what was not answered again, with the same session, slot and sequence. While
 * the server lives, the slot knows the answer. After a restart there is no such session, and a client that were told
 * only that would do the change anew in a new session: a REMOVE that was done would fail.
 *
 * So a change of names carries a mark (struct fs_reply) into its transaction: session, slot, sequence and operation.
 * The marks are read at start. A SEQUENCE whose session is unknown, but which has a mark, runs once more, as what it
 * was (RFC 8881 2.10.6.5): operations with a mark tell their success, the others, which change nothing or were not
 * reached, run. Anything else in an unknown session is NFS4ERR_BADSESSION: the client makes a new one and reclaims its
 * state.
 *
 * OPEN is not among them: its stateid is gone, so the client has to open anew, and an exclusive create knows its file
 * by the verifier. Attributes and data may be set twice.
 *
 * The table is made at start and read afterwards: no lock. Session ids are never used again.
 */
#include <errno.h>
#include <stdlib.h>

#include "server/nfs4_session.h"

#define MARK_NFS4 0x80000000u /* tells marks from those of NFSv3, whose procedure numbers are small */

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

static uint32_t mark_proc(uint32_t slot, uint32_t opnum)
{
	return MARK_NFS4 | slot << 8 | opnum;
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
	htable_insert(&table, &known->node, mark_hash(reply->client, reply->xid, (reply->proc & ~MARK_NFS4) >> 8));
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

static const struct fs_reply *known_find(const struct nfs4_compound *c, uint32_t proc)
{
	uint64_t hash = mark_hash(c->mark.client, c->mark.xid, c->slot_id);

	htable_foreach_hash (n, &table, hash) {
		const struct fs_reply *reply = &container_of(n, struct known, node)->reply;

		if (reply->client == c->mark.client && reply->xid == c->mark.xid &&
			(proc ? reply->proc == proc : (reply->proc & ~MARK_NFS4) >> 8 == c->slot_id))
			return reply;
	}
	return NULL;
}

void nfs4_mark_begin(struct nfs4_compound *c, const SEQUENCE4args *args)
{
	c->slot_id = args->sa_slotid;
	c->mark = (struct fs_reply){.client = nfs4_session_hash(args->sa_sessionid), .xid = args->sa_sequenceid};
}

bool nfs4_replay_begin(struct nfs4_compound *c, const SEQUENCE4args *args)
{
	nfs4_mark_begin(c, args);
	c->replay = ready && args->sa_slotid < NFS4_SLOTS_MAX && known_find(c, 0);
	return c->replay;
}

/* Only what needs no session can run in one that is gone; clients do not mix the changes above with more. */
bool nfs4_replay_allows(uint32_t opnum)
{
	switch (opnum) {
	case OP_SEQUENCE:
	case OP_PUTFH:
	case OP_PUTROOTFH:
	case OP_SAVEFH:
	case OP_RESTOREFH:
	case OP_GETFH:
	case OP_GETATTR:
	case OP_LOOKUP:
	case OP_ACCESS:
	case OP_CREATE:
	case OP_REMOVE:
	case OP_RENAME:
	case OP_LINK:
		return true;
	default:
		return false;
	}
}

const struct fs_op *nfs4_marked(struct nfs4_compound *c)
{
	c->mark.proc = mark_proc(c->slot_id, c->opnum);
	c->mark.time_ns = wall_ns();
	c->op.reply = &c->mark;
	return &c->op;
}

bool nfs4_was_done(const struct nfs4_compound *c, struct fs_id *made)
{
	const struct fs_reply *reply = c->replay ? known_find(c, mark_proc(c->slot_id, c->opnum)) : NULL;

	if (reply && made)
		*made = reply->id;
	return reply;
}
