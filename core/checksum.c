/*
 * XXH3 with 64 bits, compiled in. The same code is compiled once for each instruction set (this file: what every
 * CPU of the architecture has) and the widest that this CPU runs is chosen before main(). All give the same value,
 * which is on drives, so it is the algorithm that is fixed, not the code.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/core_internal.h"

static uint64_t checksum64_base(const void *data, size_t bytes, uint64_t seed)
{
	return XXH3_64bits_withSeed(data, bytes, seed);
}

static bool always(void)
{
	return true;
}

#if defined(__x86_64__)
static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}

static bool has_avx512(void)
{
	return __builtin_cpu_supports("avx512f");
}
#endif

/* The best last. */
const struct checksum_variant checksum_variants[] = {
	{"scalar", checksum64_scalar, always},
	{"base", checksum64_base, always},
#if defined(__x86_64__)
	{"avx2", checksum64_avx2, has_avx2},
	{"avx512", checksum64_avx512, has_avx512},
#endif
};
const unsigned checksum_variant_count = sizeof(checksum_variants) / sizeof(checksum_variants[0]);

static uint64_t (*checksum_chosen)(const void *data, size_t bytes, uint64_t seed) = checksum64_base;

__attribute__((constructor)) static void checksum_choose(void)
{
#if defined(__x86_64__)
	__builtin_cpu_init();
#endif
	for (unsigned i = 0; i < checksum_variant_count; i++)
		if (checksum_variants[i].supported())
			checksum_chosen = checksum_variants[i].fn;
}

uint64_t checksum64(const void *data, size_t bytes, uint64_t seed)
{
	return checksum_chosen(data, bytes, seed);
}

uint32_t checksum32(const void *data, size_t bytes)
{
	return (uint32_t)checksum_chosen(data, bytes, 0);
}
