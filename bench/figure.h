/* Figures of a benchmark: each a line of JSON, and a word on stderr where its target is missed; and medians for them.
 */
#ifndef FURROW_BENCH_FIGURE_H
#define FURROW_BENCH_FIGURE_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* LEAST: the target is a lower bound. With a PEER the target is for RATIO, else for VALUE. */
static inline void figure(
	const char *name, double value, const char *unit, double peer, double ratio, double target, bool least)
{
	printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", ", name, value, unit);
	if (peer > 0)
		printf("\"peer\": %.4g, \"ratio\": %.4g, ", peer, ratio);
	printf("\"target\": %.4g}\n", target);
	fflush(stdout);
	double held = peer > 0 ? ratio : value;
	if (least ? held < target : held > target)
		fprintf(stderr, "%s: %s: %.4g, not %s %.4g\n", program_invocation_short_name, name, held,
			least ? "at least" : "at most", target);
}

/* One that nothing is asked of. */
static inline void figure_told(const char *name, double value, const char *unit)
{
	printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\"}\n", name, value, unit);
	fflush(stdout);
}

static inline int figure_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

/* Of N numbers, which it sorts. */
static inline double median(double *v, unsigned n)
{
	qsort(v, n, sizeof(*v), figure_compare);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

#endif
