/* XXH3 for CPUs with AVX2; the Makefile compiles this file for them. See checksum.c. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/core_internal.h"

#if defined(__x86_64__)
uint64_t checksum64_avx2(const void *data, size_t bytes, uint64_t seed)
{
	return XXH3_64bits_withSeed(data, bytes, seed);
}
#endif
