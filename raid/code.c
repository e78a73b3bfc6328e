/*
 * The codes: how M positions of redundancy follow from K of data, and how any K bring back the rest.
 *
 * Every code is a matrix of (K+M) x K coefficients in GF(2^8), polynomial 0x11d: the identity above, and
 * one row for each redundant position. P is the row of ones (plain XOR), Q the row of 2^i. From any
 * K rows that are left, the inverse gives the data, and with it every other position. Copies are the code
 * with K = 1 and all coefficients 1. isa-l does the arithmetic, with the instructions that the processor has.
 *
 * No waits, no state but the tables made at start.
 */
#include <errno.h>
#include <stdlib.h>

#include <isa-l/erasure_code.h>
#include <isa-l/raid.h>

#include "raid/raid_internal.h"

#define TABLE_BYTES 32u /* isa-l's expansion of one coefficient */

static int tables_make(const uint8_t *matrix, unsigned k, unsigned rows, uint8_t **tables)
{
	*tables = aligned_alloc(64, (size_t)TABLE_BYTES * k * rows + 64 - (size_t)TABLE_BYTES * k * rows % 64);
	if (!*tables)
		return -ENOMEM;
	ec_init_tables((int)k, (int)rows, (unsigned char *)(uintptr_t)matrix, *tables);
	return 0;
}

static int pq_init(struct code *code)
{
	unsigned k = code->k, m = code->m;
	memset(code->matrix, 0, (size_t)(k + m) * k);
	for (unsigned i = 0; i < k; i++)
		code->matrix[i * k + i] = 1;
	uint8_t power = 1;
	for (unsigned i = 0; i < k; i++) {
		if (m > 0)
			code->matrix[k * k + i] = 1;
		if (m > 1)
			code->matrix[(k + 1) * k + i] = power;
		power = gf_mul(power, 2);
	}
	return m ? tables_make(code->matrix + (size_t)k * k, k, m, &code->tables) : 0;
}

/*
 * isa-l's RAID routines are several times as fast as its erasure code ones while the data is in the cache, but
 * need 64-byte aligned pointers, whole vectors, and two sources. The others take anything.
 */
static bool vectors_whole(uint8_t *const *v, unsigned n, size_t len)
{
	uintptr_t bits = len;
	for (unsigned i = 0; i < n; i++)
		bits |= (uintptr_t)v[i];
	return (bits & 63) == 0;
}

/*
 * isa-l leaves the upper halves of the vector registers in use, and until they are cleared the compiler's SSE code is
 * slower on many processors.
 */
static void vectors_done(void)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vzeroupper" ::: "memory");
#endif
}

static void pq_encode(const struct code *code, uint8_t *const *data, uint8_t *const *parity, size_t len)
{
	unsigned k = code->k, m = code->m;
	if (m == 0)
		return;
	if (k >= 2 && vectors_whole(data, k, len) && vectors_whole(parity, m, len)) {
		void *v[CODE_WIDTH_MAX];
		memcpy(v, data, k * sizeof(v[0]));
		memcpy(v + k, parity, m * sizeof(v[0]));
		if (m == 1)
			xor_gen((int)k + 1, (int)len, v);
		else
			pq_gen((int)k + 2, (int)len, v);
	} else {
		ec_encode_data((int)len, (int)k, (int)m, code->tables, (unsigned char **)(uintptr_t)data,
			(unsigned char **)(uintptr_t)parity);
	}
	vectors_done();
}

static int copy_init(struct code *code)
{
	memset(code->matrix, 1, code->m + 1);
	return 0;
}

static void copy_encode(const struct code *code, uint8_t *const *data, uint8_t *const *parity, size_t len)
{
	for (unsigned i = 0; i < code->m; i++)
		memcpy(parity[i], data[0], len);
}

static int matrix_plan(const struct code *code, struct code_plan *plan, const uint8_t *wanted)
{
	unsigned k = code->k;
	size_t square = (size_t)k * k;
	uint8_t *work = malloc(2 * square + (size_t)plan->wanted * k);
	if (!work)
		return -ENOMEM;
	uint8_t *from = work, *inverse = work + square, *rows = work + 2 * square;
	int r = 0;
	for (unsigned i = 0; i < k; i++)
		memcpy(from + (size_t)i * k, code->matrix + (size_t)plan->source[i] * k, k);
	if (gf_invert_matrix(from, inverse, (int)k) != 0) {
		r = -EIO;
		goto out;
	}
	for (unsigned w = 0; w < plan->wanted; w++) {
		const uint8_t *row = code->matrix + (size_t)wanted[w] * k;
		for (unsigned j = 0; j < k; j++) {
			uint8_t sum = 0;
			for (unsigned i = 0; i < k; i++)
				sum ^= gf_mul(row[i], inverse[(size_t)i * k + j]);
			rows[(size_t)w * k + j] = sum;
		}
	}
	plan->plain = plan->wanted == 1 && k >= 2;
	for (unsigned j = 0; j < k; j++)
		plan->plain = plan->plain && rows[j] == 1;
	r = tables_make(rows, k, plan->wanted, &plan->tables);
out:
	free(work);
	return r;
}

static void matrix_apply(const struct code_plan *plan, uint8_t *const *from, uint8_t *const *to, size_t len)
{
	/* one lost data strip from the others and P */
	if (plan->plain && vectors_whole(from, plan->sources, len) && vectors_whole(to, 1, len)) {
		void *v[CODE_WIDTH_MAX];
		memcpy(v, from, plan->sources * sizeof(v[0]));
		v[plan->sources] = to[0];
		xor_gen((int)plan->sources + 1, (int)len, v);
	} else {
		ec_encode_data((int)len, (int)plan->sources, (int)plan->wanted, plan->tables,
			(unsigned char **)(uintptr_t)from, (unsigned char **)(uintptr_t)to);
	}
	vectors_done();
}

static void copy_apply(const struct code_plan *plan, uint8_t *const *from, uint8_t *const *to, size_t len)
{
	for (unsigned i = 0; i < plan->wanted; i++)
		memcpy(to[i], from[0], len);
}

static const struct code_ops pq_ops = {
	.name = "pq",
	.init = pq_init,
	.encode = pq_encode,
	.plan = matrix_plan,
	.apply = matrix_apply,
};
static const struct code_ops copy_ops = {
	.name = "copy",
	.copies = true,
	.init = copy_init,
	.encode = copy_encode,
	.plan = matrix_plan,
	.apply = copy_apply,
};

int code_init(struct code *code, uint8_t format_code, unsigned k, unsigned m)
{
	memset(code, 0, sizeof(*code));
	code->ops = format_code == FORMAT_CODE_COPY ? &copy_ops : &pq_ops;
	code->k = k;
	code->m = m;
	code->matrix = malloc((size_t)(k + m) * k);
	if (!code->matrix)
		return -ENOMEM;
	int r = code->ops->init(code);
	if (r)
		code_fini(code);
	return r;
}

void code_fini(struct code *code)
{
	free(code->matrix);
	free(code->tables);
	code->matrix = code->tables = NULL;
}

int code_plan(const struct code *code, struct code_plan *plan, const uint8_t *source, const uint8_t *wanted,
	unsigned wanted_count)
{
	plan->code = code;
	plan->sources = code->k;
	plan->wanted = wanted_count;
	plan->tables = NULL;
	plan->plain = false;
	memcpy(plan->source, source, code->k);
	return code->ops->plan(code, plan, wanted);
}

void code_plan_free(struct code_plan *plan)
{
	free(plan->tables);
	plan->tables = NULL;
}
