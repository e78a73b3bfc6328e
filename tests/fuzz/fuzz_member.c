/* What is read from a member of an array; tests/raid/fuzz_member.h has all of it. */
#include "tests/fuzz/fuzz.h"
#include "tests/raid/fuzz_member.h"

static void fuzz_one(const uint8_t *data, size_t bytes)
{
	FUZZ_CHECK(fuzz_member(data, bytes));
}

/* Arrays that the target makes by itself; what is changed of them is in the reserved part of the head. */
static void fuzz_seeds(void)
{
	static const char *const names[] = {"small", "14-groups", "3-groups", "version-1"};
	for (uint8_t i = 0; i < 4; i++) {
		uint8_t input[11] = {(uint8_t)(i << 4 | 8), 0x02, 0x01};
		fuzz_seed(names[i], input, sizeof(input));
	}
}
