/* Sizes as people write them, and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/server_internal.h"

static void test_parse(void **state)
{
	static const struct {
		const char *text;
		int rc;
		uint64_t bytes;
	} cases[] = {
		{"0", 0, 0},
		{"4096", 0, 4096},
		{"4096B", 0, 4096},
		{"64KiB", 0, 65536},
		{"64K", 0, 65536},
		{"64k", 0, 65536},
		{"1.5TiB", 0, 3ull << 39},
		{"1.5 TiB", 0, 3ull << 39},
		{"10G", 0, 10ull << 30},
		{"0.5P", 0, 1ull << 49},
		{"15EiB", 0, 15ull << 60},
		{"18446744073709551615", 0, UINT64_MAX},
		{"18446744073709551616", -ERANGE, 0},
		{"16EiB", -ERANGE, 0},
		{"99999999999999999999999999", -ERANGE, 0},
		{"", -EINVAL, 0},
		{" 1", -EINVAL, 0},
		{"-1", -EINVAL, 0},
		{"+1", -EINVAL, 0},
		{"1.", -EINVAL, 0},
		{".5G", -EINVAL, 0},
		{"1.5", -EINVAL, 0},
		{"1.5B", -EINVAL, 0},
		{"1KB", -EINVAL, 0},
		{"1Ki", -EINVAL, 0},
		{"1GiBB", -EINVAL, 0},
		{"1 G x", -EINVAL, 0},
		{"1Z", -EINVAL, 0},
		{"0x10", -EINVAL, 0},
		{"1.123456789012345678901G", -EINVAL, 0},
	};

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t bytes = 77;
		int rc = size_parse(cases[i].text, &bytes);
		if (rc != cases[i].rc || (rc == 0 && bytes != cases[i].bytes))
			fail_msg("\"%s\": rc %d, bytes %llu", cases[i].text, rc, (unsigned long long)bytes);
		if (rc < 0)
			assert_int_equal(bytes, 77); /* a failure leaves the result alone */
	}
}

static void test_format(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} cases[] = {
		{0, "0 B"},
		{1023, "1023 B"},
		{1024, "1 KiB"},
		{1536, "1.5 KiB"},
		{65536, "64 KiB"},
		{1048575, "1 MiB"},
		{1ull << 40, "1 TiB"},
		{3ull << 39, "1.5 TiB"},
		{UINT64_MAX, "16 EiB"},
	};
	char text[16];

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		size_format(cases[i].bytes, text);
		assert_string_equal(text, cases[i].text);
	}
}

/* What is shown can be typed in again, and is within half of the last digit shown. */
static void test_round_trip(void **state)
{
	unsigned seed = 20260101;
	char text[16];

	(void)state;
	print_message("seed %u\n", seed);
	srandom(seed);
	for (int i = 0; i < 20000; i++) {
		uint64_t bytes = ((uint64_t)random() << 32 ^ (uint64_t)random()) >> (random() % 60), back;
		if (bytes > 15ull << 60)
			continue;
		size_format(bytes, text);
		if (size_parse(text, &back) != 0)
			fail_msg("%llu is shown as \"%s\", which cannot be parsed", (unsigned long long)bytes, text);
		uint64_t off = back > bytes ? back - bytes : bytes - back;
		if (off > bytes / 19 + 1)
			fail_msg("%llu is shown as \"%s\"", (unsigned long long)bytes, text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parse),
		cmocka_unit_test(test_format),
		cmocka_unit_test(test_round_trip),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
