/*
 * Memory that is not to be had: pieces FROM..TO of all that are asked for, once memory_refuse() has been called. The
 * program is linked with --wrap (Makefile); the test's own memory is not refused. Include it before anything else.
 */
#ifndef FURROW_MEMORY_TEST_H
#define FURROW_MEMORY_TEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct buf;
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *at, size_t size);
struct buf *__real_buf_try_alloc(uint32_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *at, size_t size);
struct buf *__wrap_buf_try_alloc(uint32_t size);

static atomic_ullong memory_calls, memory_from, memory_to;

/* From here on the Nth piece is refused, and all COUNT from it on. */
static inline void memory_refuse(uint64_t n, uint64_t count)
{
	atomic_store(&memory_calls, 0);
	atomic_store(&memory_to, n + count);
	atomic_store(&memory_from, n);
}
static inline void memory_refuse_none(void)
{
	atomic_store(&memory_to, 0);
}
/* Whether the Nth piece was asked for. */
static inline bool memory_asked(uint64_t n)
{
	return atomic_load(&memory_calls) >= n;
}

static inline bool memory_refused(void)
{
	unsigned long long n = atomic_fetch_add(&memory_calls, 1) + 1;

	return n >= atomic_load(&memory_from) && n < atomic_load(&memory_to);
}
void *__wrap_malloc(size_t size)
{
	return memory_refused() ? NULL : __real_malloc(size);
}
void *__wrap_calloc(size_t n, size_t size)
{
	return memory_refused() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *at, size_t size)
{
	return memory_refused() ? NULL : __real_realloc(at, size);
}
struct buf *__wrap_buf_try_alloc(uint32_t size)
{
	return memory_refused() ? NULL : __real_buf_try_alloc(size);
}

#define malloc(size) __real_malloc(size)
#define calloc(n, size) __real_calloc(n, size)

#endif
