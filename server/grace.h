/*
 * grace: the time after a start in which only those may lock (or open) who could before it, one for all protocols.
 *
 * Each protocol that finds clients of an earlier run begins its part, and ends it early when all of them have reclaimed
 * what they had. New locks of every protocol wait until no part is left. All functions: any thread, no wait.
 */
#ifndef FURROW_GRACE_H
#define FURROW_GRACE_H

#include <stdbool.h>
#include <stdint.h>

enum grace_kind { GRACE_NLM, GRACE_NFS4, GRACE_KINDS };

/* Until DEADLINE (now_ns()) at the latest, or the later of two. */
void grace_begin(enum grace_kind kind, uint64_t deadline);
void grace_done(enum grace_kind kind);
bool grace_active(void);
/* Whether KIND's own clients may still reclaim. */
bool grace_active_of(enum grace_kind kind);
uint64_t grace_left_ns(void); /* 0: none */

#endif
