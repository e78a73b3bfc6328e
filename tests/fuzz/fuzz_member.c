/* What is read from a member of an array; tests/raid/fuzz_member.h has all of it. */
#include "tests/fuzz/fuzz.h"
#include "tests/raid/fuzz_member.h"

static void fuzz_one(const uint8_t *data, size_t bytes)
{
	FUZZ_CHECK(fuzz_member(data, bytes));
}

static void fuzz_seeds(void)
{
}
