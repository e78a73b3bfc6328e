/*
 * grace: the grace period (see grace.h): a deadline for each protocol, 0 when it waits for nobody. No errors.
 *
 * A reclaim is allowed while any part lasts (grace_active): what nobody could have taken meanwhile is still the
 * client's.
 */
#include <stdatomic.h>

#include "core/core.h"
#include "server/grace.h"

static _Atomic uint64_t deadlines[GRACE_KINDS];

void grace_begin(enum grace_kind kind, uint64_t deadline)
{
	uint64_t now = atomic_load(&deadlines[kind]);

	while (now < deadline && !atomic_compare_exchange_weak(&deadlines[kind], &now, deadline))
		;
}

void grace_done(enum grace_kind kind)
{
	atomic_store(&deadlines[kind], 0);
}

bool grace_active_of(enum grace_kind kind)
{
	uint64_t deadline = atomic_load_explicit(&deadlines[kind], memory_order_relaxed);

	return deadline && now_ns() < deadline;
}

bool grace_active(void)
{
	for (unsigned i = 0; i < GRACE_KINDS; i++)
		if (grace_active_of((enum grace_kind)i))
			return true;
	return false;
}

uint64_t grace_left_ns(void)
{
	uint64_t last = 0, now = now_ns();

	for (unsigned i = 0; i < GRACE_KINDS; i++) {
		uint64_t deadline = atomic_load(&deadlines[i]);
		if (deadline > last)
			last = deadline;
	}
	return last > now ? last - now : 0;
}
