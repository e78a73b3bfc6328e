/* XXH3 without vector instructions: what the others are compared with. See checksum.c. */
#define XXH_VECTOR 0
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/core_internal.h"

uint64_t checksum64_scalar(const void *data, size_t bytes, uint64_t seed)
{
	return XXH3_64bits_withSeed(data, bytes, seed);
}
