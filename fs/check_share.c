/*
 * fs check of shared blocks (share.c): each is referred to exactly as often as KEY_SHARE counts, and one extent of
 * FS_SHARED_INO has its place. The walk only collects; at its end all of it is put in order of the numbers, and one
 * sweep over the edges compares the three sums. Ranges whose data cannot be read are told by the files that refer to
 * them.
 *
 * Memory: 40 bytes for each record that refers, counts or owns, and as much again in the end.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/core.h"
#include "fs/check_share.h"

#define ULL(x) ((unsigned long long)(x))

int shares_seen(struct check_shares *s, const struct share_seen *seen)
{
	if (s->n == s->room) {
		unsigned long room = 2 * s->room + 64;
		struct share_seen *of = realloc(s->of, room * sizeof(*of));

		if (!of)
			return -ENOMEM;
		s->of = of;
		s->room = room;
	}
	s->of[s->n++] = *seen;
	return 0;
}

void shares_clear(struct check_shares *s)
{
	s->n = 0;
}

void shares_free(struct check_shares *s)
{
	free(s->of);
	s->of = NULL;
	s->n = s->room = 0;
}

struct edge {
	uint64_t at;
	int64_t delta;
	enum share_kind kind;
};

static int edge_compare(const void *va, const void *vb)
{
	const struct edge *a = va, *b = vb;

	return a->at < b->at ? -1 : a->at > b->at;
}

struct sums {
	int64_t refs, count, owned;
};

static void range_report(uint64_t from, uint64_t end, const struct sums *is, shares_fault_fn *fault, void *arg)
{
	char text[160];

	if (is->refs != is->count) {
		snprintf(text, sizeof(text),
			"shared blocks %llu to %llu: %lld records refer to them, the count says %lld", ULL(from),
			ULL(end - 1), (long long)is->refs, (long long)is->count);
		fault(arg, false, text);
	}
	if (is->owned == 0 && (is->refs || is->count)) {
		snprintf(text, sizeof(text), "shared blocks %llu to %llu: no extent has their place", ULL(from),
			ULL(end - 1));
		fault(arg, false, text);
	}
	if (is->owned && !is->refs && !is->count) {
		snprintf(text, sizeof(text), "shared blocks %llu to %llu: nobody refers to them", ULL(from),
			ULL(end - 1));
		fault(arg, false, text);
	}
}

static void lost_report(const struct check_shares *s, const struct share_seen *lost, shares_fault_fn *fault, void *arg)
{
	uint64_t end = lost->first + lost->count;
	char text[160];

	for (unsigned long i = 0; i < s->n; i++) {
		const struct share_seen *r = &s->of[i];
		uint64_t from = r->first > lost->first ? r->first : lost->first,
			 to = r->first + r->count < end ? r->first + r->count : end;

		if (r->kind != SHARE_REF || from >= to)
			continue;
		snprintf(text, sizeof(text), "inode %llu: data of blocks %llu to %llu, which it shares, cannot be read",
			ULL(r->ino), ULL(r->file_block + (from - r->first)), ULL(r->file_block + (to - r->first) - 1));
		fault(arg, true, text);
	}
}

static bool same(const struct sums *a, const struct sums *b)
{
	return a->refs == b->refs && a->count == b->count && a->owned == b->owned;
}

int shares_compare(const struct check_shares *s, shares_fault_fn *fault, void *arg)
{
	struct edge *edge = malloc((2 * s->n + 1) * sizeof(*edge));
	struct sums is = {0}, run = {0};
	uint64_t from = 0;
	unsigned long n = 0;

	if (!edge)
		return -ENOMEM;
	for (unsigned long i = 0; i < s->n; i++) {
		const struct share_seen *r = &s->of[i];
		int64_t delta = r->kind == SHARE_COUNT ? (int64_t)r->refs : 1;

		if (r->kind == SHARE_LOST) {
			lost_report(s, r, fault, arg);
			continue;
		}
		edge[n++] = (struct edge){r->first, delta, r->kind};
		edge[n++] = (struct edge){r->first + r->count, -delta, r->kind};
	}
	qsort(edge, n, sizeof(*edge), edge_compare);
	for (unsigned long i = 0; i < n; i++) {
		int64_t *sum = edge[i].kind == SHARE_REF     ? &is.refs
			       : edge[i].kind == SHARE_COUNT ? &is.count
							     : &is.owned;

		*sum += edge[i].delta;
		if (i + 1 < n && edge[i + 1].at == edge[i].at)
			continue;
		if (same(&is, &run))
			continue;
		range_report(from, edge[i].at, &run, fault, arg);
		from = edge[i].at;
		run = is;
	}
	free(edge);
	return 0;
}
