/* File handles: what was made here is taken, and nothing else is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "server/nfs_internal.h"

static const uint64_t key[2] = {0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull};
static const struct handle sample = {
	.export_id = 0x89abcdef,
	.fsid = 0x1122334455667788ull,
	.id = {.ino = 0xfedcba9876543210ull, .gen = 0xffffffff, .snap = 3},
};

/* The vectors of the SipHash paper's reference code: messages 00, 00 01, ... under the key 00 01 .. 0f. */
static void siphash_vectors(void **state)
{
	static const struct {
		size_t bytes;
		uint64_t mac;
	} vectors[] = {
		{0, 0x726fdb47dd0e0e31ull},
		{1, 0x74f839c593dc67fdull},
		{7, 0xab0200f58b01d137ull},
		{8, 0x93f5f5799a932462ull},
		{15, 0xa129ca6149be45e5ull},
	};
	uint8_t message[16];

	(void)state;
	for (unsigned i = 0; i < sizeof(message); i++)
		message[i] = (uint8_t)i;
	for (unsigned i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
		assert_true(siphash24(key, message, vectors[i].bytes) == vectors[i].mac);
}

static void round_trip(void **state)
{
	uint8_t bytes[HANDLE_BYTES];
	struct handle back;

	(void)state;
	handle_encode(&sample, key, bytes);
	assert_true(handle_parse(bytes, sizeof(bytes), &back));
	assert_true(handle_verify(bytes, key));
	assert_true(back.export_id == sample.export_id && back.fsid == sample.fsid && back.id.ino == sample.id.ino &&
		    back.id.gen == sample.id.gen && back.id.snap == sample.id.snap);
}

/* Handles outlive the server, so their bytes must be the same in all versions and on all machines. */
static void bytes_are_fixed(void **state)
{
	static const uint8_t expected[HANDLE_BYTES - 8] = {1, 0, 0, 0, 0xef, 0xcd, 0xab, 0x89, 0x88, 0x77, 0x66, 0x55,
		0x44, 0x33, 0x22, 0x11, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0xff, 0xff, 0xff, 0xff, 3, 0, 0,
		0};
	uint8_t bytes[HANDLE_BYTES];

	(void)state;
	handle_encode(&sample, key, bytes);
	assert_memory_equal(bytes, expected, sizeof(expected));
}

static void every_bit_counts(void **state)
{
	uint8_t bytes[HANDLE_BYTES];
	struct handle back;

	(void)state;
	for (unsigned bit = 0; bit < HANDLE_BYTES * 8; bit++) {
		handle_encode(&sample, key, bytes);
		bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
		assert_false(handle_parse(bytes, sizeof(bytes), &back) && handle_verify(bytes, key));
	}
}

static void wrong_lengths(void **state)
{
	uint8_t bytes[HANDLE_BYTES + 24];
	struct handle back;

	(void)state;
	handle_encode(&sample, key, bytes);
	memset(bytes + HANDLE_BYTES, 0, 24);
	for (uint32_t len = 0; len <= 64; len++)
		assert_int_equal(handle_parse(bytes, len, &back), len == HANDLE_BYTES);
}

static void keys_differ(void **state)
{
	struct uuid a = {{1, 2, 3}}, b = {{1, 2, 4}};
	uint64_t ka[2], kb[2], kc[2], again[2];
	uint8_t bytes[HANDLE_BYTES];

	(void)state;
	handle_key_make(&a, 7, ka);
	handle_key_make(&b, 7, kb);
	handle_key_make(&a, 8, kc);
	handle_key_make(&a, 7, again);
	assert_memory_equal(ka, again, sizeof(ka));
	assert_memory_not_equal(ka, kb, sizeof(ka));
	assert_memory_not_equal(ka, kc, sizeof(ka));
	assert_true(ka[0] != ka[1]);
	handle_encode(&sample, ka, bytes);
	assert_true(handle_verify(bytes, ka));
	assert_false(handle_verify(bytes, kb));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(siphash_vectors),
		cmocka_unit_test(round_trip),
		cmocka_unit_test(bytes_are_fixed),
		cmocka_unit_test(every_bit_counts),
		cmocka_unit_test(wrong_lengths),
		cmocka_unit_test(keys_differ),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
