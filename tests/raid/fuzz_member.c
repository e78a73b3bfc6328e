/*
 * The libFuzzer program; tests/raid/fuzz_smoke.sh builds and runs it. Its first input is a good superblock, so that it
 * begins behind the checks that random bytes do not pass.
 */
#include "tests/raid/fuzz_member.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!fuzz_member(data, size))
		abort();
	return 0;
}
