/* One figure of a benchmark: a line of JSON, and a word on stderr where its target is missed. */
#ifndef FURROW_BENCH_FIGURE_H
#define FURROW_BENCH_FIGURE_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>

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

#endif
