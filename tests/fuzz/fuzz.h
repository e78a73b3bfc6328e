/*
 * The frame of the libFuzzer targets: each tests/fuzz/fuzz_NAME.c is one, built with clang, AddressSanitizer, UBSan and
 * coverage by `make fuzz-build`, run by fuzz_smoke.sh.
 *
 * A target defines two functions:
 *   fuzz_one()    tries one input. It is the same for the same bytes: nothing is kept from one to the next. What it
 * finds wrong it says with FUZZ_CHECK() fuzz_seeds()  gives good inputs to fuzz_seed(), for a fuzzer to begin with:
 * FURROW_FUZZ_SEEDS=DIR fuzz_NAME writes them and ends. tests/fuzz/corpus/NAME holds these and what was found since
 *
 * Targets that need a reactor have fuzz_core.h, those of the codec fuzz_codec.h.
 */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fuzz_one(const uint8_t *data, size_t bytes);
static void fuzz_seeds(void);

#define FUZZ_CHECK(what)                                                                                               \
	do {                                                                                                           \
		if (!(what)) {                                                                                         \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                                     \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

/* An input that is read from its front; at its end come zeros. */
struct fuzz_input {
	const uint8_t *p, *end;
};
static inline uint8_t fuzz_u8(struct fuzz_input *in)
{
	return in->p < in->end ? *in->p++ : 0;
}
static inline uint16_t fuzz_u16(struct fuzz_input *in)
{
	uint16_t high = fuzz_u8(in);

	return (uint16_t)(high << 8 | fuzz_u8(in));
}
static inline size_t fuzz_left(const struct fuzz_input *in)
{
	return (size_t)(in->end - in->p);
}

/* In memory of exactly that size, so that a byte read too many is seen. To be freed. */
static inline uint8_t *fuzz_copy(const uint8_t *data, size_t bytes)
{
	uint8_t *copy = malloc(bytes ? bytes : 1);

	FUZZ_CHECK(copy);
	if (bytes)
		memcpy(copy, data, bytes);
	return copy;
}

static inline void fuzz_seed(const char *name, const void *data, size_t bytes)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", getenv("FURROW_FUZZ_SEEDS"), name);
	FILE *f = fopen(path, "w");
	FUZZ_CHECK(f && fwrite(data, 1, bytes, f) == bytes && fclose(f) == 0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	if (getenv("FURROW_FUZZ_SEEDS")) {
		fuzz_seeds();
		_Exit(0);
	}
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	fuzz_one(data, bytes);
	return 0;
}

#endif
