/*
 * What RFC 8881 says that a server knows of its clients, as a model small enough to be read: clients with their leases,
 * opens with share reservations, byte-range locks, delegations, and who may reclaim after a restart. It knows nothing
 * of the server's own data structures.
 *
 * Time is what the server's clock says (now); a lease has either run out for long or not at all, the test sees to that.
 */
#ifndef TESTS_NFS4_MODEL_H
#define TESTS_NFS4_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "xdr/nfs4.h"

#define CLIENTS 4
#define FILES 3
#define OWNERS 2
#define UNITS 13 /* ten bytes each; the last one is all that follows */
#define LEASE 90000000000ull

struct m_open {
	bool there;
	uint32_t access, deny;
	uint16_t asked; /* bit 4 * access + deny: by one OPEN, as far as it is in force */
	stateid4 id;
};

struct m_lock {
	bool there;
	unsigned from; /* open-owner that it came from */
	stateid4 id;
	uint8_t unit[UNITS]; /* 0: none, 1: read, 2: write */
};

struct m_deleg {
	bool there, write, revoked;
	uint64_t recalled; /* 0: not */
	stateid4 id;
};

struct m_client {
	bool known;	/* to the server, with a session; all of the rest is of that */
	bool complete;	/* RECLAIM_COMPLETE was said */
	bool recorded;	/* durably: may reclaim after a restart */
	bool old;	/* the record is of before the restart, and nothing was reclaimed */
	bool reclaimed; /* something was, and it is not complete */
	uint64_t renewed;
	struct m_open open[OWNERS][FILES], had_open[OWNERS][FILES];
	struct m_lock lock[OWNERS][FILES], had_lock[OWNERS][FILES];
	struct m_deleg deleg[FILES];
};

struct model {
	uint64_t now;
	bool grace;
	struct m_client client[CLIENTS];
};

static inline bool m_expired(const struct model *m, unsigned c)
{
	return m->now > m->client[c].renewed + LEASE;
}

/* All that the client held is gone, and so is what the server remembers of it. */
static inline void m_forget(struct m_client *c)
{
	memset(c->open, 0, sizeof(c->open));
	memset(c->lock, 0, sizeof(c->lock));
	memset(c->deleg, 0, sizeof(c->deleg));
}
static inline void m_expel(struct m_client *c)
{
	m_forget(c);
	if (!c->old)
		c->recorded = false;
	c->known = c->complete = c->reclaimed = false;
}

/* A set of clients, as bits. */
typedef unsigned m_set;

/* ------------------------------------------------------------------------------------------------
 * Opens
 */

/* Whose opens are in the way of such an open by the owner. */
static inline m_set m_open_conflicts(
	const struct model *m, unsigned c, unsigned o, unsigned f, uint32_t access, uint32_t deny)
{
	m_set in_the_way = 0;

	for (unsigned k = 0; k < CLIENTS; k++)
		for (unsigned n = 0; n < OWNERS; n++) {
			const struct m_open *open = &m->client[k].open[n][f];

			if (open->there && (k != c || n != o) && ((open->deny & access) || (open->access & deny)))
				in_the_way |= 1u << k;
		}
	return in_the_way;
}

/* Whose delegations are, of an operation that reads or, with CHANGES, changes. */
static inline m_set m_deleg_conflicts(const struct model *m, unsigned c, unsigned f, bool changes)
{
	m_set in_the_way = 0;

	for (unsigned k = 0; k < CLIENTS; k++) {
		const struct m_deleg *deleg = &m->client[k].deleg[f];

		if (deleg->there && !deleg->revoked && k != c && (changes || deleg->write))
			in_the_way |= 1u << k;
	}
	return in_the_way;
}

static inline void m_open_add(struct m_open *open, uint32_t access, uint32_t deny)
{
	open->there = true;
	open->access |= access;
	open->deny |= deny;
	open->asked |= (uint16_t)(1u << (4 * access + deny));
}

static inline bool m_open_downgrade(struct m_open *open, uint32_t access, uint32_t deny)
{
	uint32_t a = 0, d = 0;
	uint16_t within = 0;

	for (unsigned x = 1; x < 4; x++)
		for (unsigned y = 0; y < 4; y++)
			if ((open->asked >> (4 * x + y) & 1) && (x | access) == access && (y | deny) == deny) {
				a |= x;
				d |= y;
				within |= (uint16_t)(1u << (4 * x + y));
			}
	if (a != access || d != deny)
		return false;
	open->access = access;
	open->deny = deny;
	open->asked = within;
	return true;
}

static inline void m_close(struct m_client *c, unsigned o, unsigned f)
{
	for (unsigned l = 0; l < OWNERS; l++)
		if (c->lock[l][f].there && c->lock[l][f].from == o)
			c->lock[l][f] = (struct m_lock){.there = false};
	c->open[o][f] = (struct m_open){.there = false};
}

/* A delegation that the server gave: whether it may. */
static inline bool m_deleg_allowed(const struct model *m, unsigned c, unsigned f, bool write)
{
	for (unsigned k = 0; k < CLIENTS; k++) {
		const struct m_client *other = &m->client[k];

		if (k == c)
			continue;
		if (other->deleg[f].there && !other->deleg[f].revoked && (write || other->deleg[f].write))
			return false;
		for (unsigned n = 0; n < OWNERS; n++)
			if (other->open[n][f].there && (write || (other->open[n][f].access & OPEN4_SHARE_ACCESS_WRITE)))
				return false;
	}
	return !m->client[c].deleg[f].there;
}

/* ------------------------------------------------------------------------------------------------
 * Locks
 */

static inline bool m_lock_held(const struct m_lock *lock)
{
	for (unsigned u = 0; u < UNITS; u++)
		if (lock->unit[u])
			return true;
	return false;
}

static inline m_set m_lock_conflicts(
	const struct model *m, unsigned c, unsigned l, unsigned f, unsigned from, unsigned to, bool write)
{
	m_set in_the_way = 0;

	for (unsigned k = 0; k < CLIENTS; k++)
		for (unsigned n = 0; n < OWNERS; n++)
			for (unsigned u = from; u <= to && (k != c || n != l); u++) {
				uint8_t held = m->client[k].lock[n][f].unit[u];

				if (held == 2 || (held && write))
					in_the_way |= 1u << k;
			}
	return in_the_way;
}

/* ------------------------------------------------------------------------------------------------
 * The server's life
 */

/* What is not reclaimed is lost: those that never came back are forgotten. */
static inline void m_grace_over(struct model *m)
{
	for (unsigned c = 0; c < CLIENTS; c++) {
		struct m_client *client = &m->client[c];

		if (client->old)
			client->recorded = client->old = false;
		client->reclaimed = false;
	}
	m->grace = false;
}

static inline bool m_grace_needed(const struct model *m)
{
	for (unsigned c = 0; c < CLIENTS; c++)
		if (m->client[c].old || m->client[c].reclaimed)
			return true;
	return false;
}

static inline void m_restart(struct model *m)
{
	for (unsigned c = 0; c < CLIENTS; c++) {
		struct m_client *client = &m->client[c];

		if (client->known) { /* else it has not been here since the last one */
			memcpy(client->had_open, client->open, sizeof(client->open));
			memcpy(client->had_lock, client->lock, sizeof(client->lock));
		}
		m_forget(client);
		client->known = client->complete = client->reclaimed = false;
		client->old = client->recorded;
	}
	m->grace = m_grace_needed(m);
}

/* ------------------------------------------------------------------------------------------------
 * Stateids
 */

static inline void m_next(stateid4 *id)
{
	if (++id->seqid == 0)
		id->seqid = 1;
}

#endif
