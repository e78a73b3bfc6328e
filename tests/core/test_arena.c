/* The buffer arena and slices: sizes, exhaustion, fairness, freeing across reactors, and a random model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"
#include "core/core_internal.h"

#define ARENA (8u << 20)

static void run_with(void (*fn)(void *arg), unsigned reactors, void *arg)
{
	struct error err = {0};
	struct core_config config = {.reactors = reactors, .arena_bytes = ARENA};
	int rc = core_main(&config, fn, arg, &err);
	if (rc < 0)
		fail_msg("core_main: %s", err.text);
}

static uint64_t all_free(void)
{
	return arena_total_bytes() - ARENA_PIECE; /* the zero buffer */
}

/* ---- sizes and alignment */

static void sizes_main(void *arg)
{
	(void)arg;
	static const struct {
		uint32_t ask, get;
	} sizes[] = {{0, 4096}, {1, 4096}, {4096, 4096}, {4097, 8192}, {8192, 8192}, {8193, 16384}, {65536, 65536},
		{65537, 131072}, {BUF_MAX - 1, BUF_MAX}, {BUF_MAX, BUF_MAX}};
	void *base;
	uint64_t bytes;
	arena_region(&base, &bytes);
	assert_int_equal(bytes, ARENA);
	assert_int_equal(arena_free_bytes(), all_free());
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct buf *b = buf_alloc(sizes[i].ask);
		assert_int_equal(b->size, sizes[i].get);
		assert_int_equal((uintptr_t)b->data % b->size, 0);
		assert_int_equal(b->refs, 1);
		uint64_t off = (uint64_t)(b->data - (uint8_t *)base);
		assert_true(off + b->size <= bytes);
		assert_int_equal(off / ARENA_PIECE, (off + b->size - 1) / ARENA_PIECE);
		if (b->fixed_index >= 0)
			assert_int_equal(b->fixed_index, off / ARENA_PIECE);
		memset(b->data, 0xa5, b->size);
		assert_int_equal(arena_free_bytes(), all_free() - b->size);
		buf_ref(b);
		buf_put(b);
		assert_int_equal(arena_free_bytes(), all_free() - b->size);
		buf_put(b);
		assert_int_equal(arena_free_bytes(), all_free());
	}
	buf_put(NULL);
	/* What was just freed is used again first. */
	struct buf *a = buf_alloc(4096);
	buf_put(a);
	assert_ptr_equal(buf_alloc(4096), a);
	buf_put(a);

	struct buf *z = buf_zero();
	assert_int_equal(z->size, BUF_MAX);
	for (unsigned i = 0; i < BUF_MAX; i += 512)
		assert_int_equal(z->data[i], 0);
	/* whoever only shows it to somebody leaves nothing behind */
	uint32_t refs = atomic_load(&z->refs);
	assert_ptr_equal(buf_zero(), z);
	assert_int_equal(atomic_load(&z->refs), refs);
	buf_put(buf_ref(z));
	assert_int_equal(atomic_load(&z->refs), refs);
}

static void test_sizes(void **state)
{
	(void)state;
	run_with(sizes_main, 1, NULL);
}

/* ---- exhaustion: every size can have the whole arena, also what caches of this and other reactors held */

static struct buf *held[ARENA / 4096];

static unsigned take_all(uint32_t size)
{
	unsigned n = 0;
	while ((held[n] = buf_try_alloc(size)))
		n++;
	return n;
}

static void fill_cache(void *arg)
{
	(void)arg;
	struct buf *b[64];
	for (unsigned c = 0; c < BUF_CLASSES; c++) {
		unsigned n = 64u >> c ? 64u >> c : 1;
		for (unsigned i = 0; i < n; i++)
			b[i] = buf_alloc(4096u << c);
		for (unsigned i = 0; i < n; i++)
			buf_put(b[i]);
	}
}

static void exhaust_main(void *arg)
{
	(void)arg;
	for (unsigned c = 0; c < BUF_CLASSES; c++) {
		uint32_t size = 4096u << c;
		fill_cache(NULL);
		for (unsigned i = 1; i < reactor_count(); i++)
			reactor_call(reactor_get(i), fill_cache, NULL);
		unsigned got = take_all(size);
		/* The first failure asked the others for what they hold. */
		for (int tries = 0; tries < 50 && got < all_free() / size; tries++) {
			fiber_sleep(NSEC_PER_MSEC);
			struct buf *b;
			while ((b = buf_try_alloc(size)))
				held[got++] = b;
		}
		assert_int_equal(got, all_free() / size);
		assert_int_equal(arena_free_bytes(), 0);
		for (unsigned i = 0; i < got; i++)
			buf_put(held[i]);
		assert_int_equal(arena_free_bytes(), all_free());
	}
}

static void test_exhaust(void **state)
{
	(void)state;
	run_with(exhaust_main, 1, NULL);
	run_with(exhaust_main, 3, NULL);
}

/* ---- reserves: a cache gives what it holds to whoever finds nothing, wherever that runs */

struct hoard {
	struct buf_reserve reserve;
	struct buf *buf[ARENA / 4096];
	unsigned n, asked;
};

static uint64_t hoard_give(struct buf_reserve *reserve, uint64_t bytes)
{
	struct hoard *h = container_of(reserve, struct hoard, reserve);
	uint64_t given = 0;

	h->asked++;
	while (h->n && given < bytes) {
		given += h->buf[--h->n]->size;
		buf_put(h->buf[h->n]);
	}
	return given;
}

static void hoard_fill(void *arg)
{
	struct hoard *h = arg;

	h->reserve.give = hoard_give;
	buf_reserve_add(&h->reserve);
	while (!h->asked) {
		struct buf *buf = buf_try_alloc(h->n % 3 ? 4096 : 16384);
		if (!buf)
			break;
		h->buf[h->n++] = buf;
	}
	h->asked = 0;
}

static void hoard_end(void *arg)
{
	struct hoard *h = arg;

	buf_reserve_remove(&h->reserve);
	hoard_give(&h->reserve, UINT64_MAX);
}

static void reserve_main(void *arg)
{
	struct hoard *h = calloc(1, sizeof(*h));
	struct reactor *where = reactor_get(*(unsigned *)arg);

	for (unsigned c = 0; c < BUF_CLASSES; c++) {
		h->asked = 0;
		reactor_call(where, hoard_fill, h);
		/* all of it is in the reserve's hands: half of the arena in the largest size must come all the same */
		unsigned most = (unsigned)(all_free() / 2 / (4096u << c));
		for (unsigned i = 0; i < most; i++)
			held[i] = buf_alloc(4096u << c);
		assert_true(h->asked > 0);
		assert_false(buf_wanted());
		for (unsigned i = 0; i < most; i++)
			buf_put(held[i]);
		reactor_call(where, hoard_end, h);
		for (int tries = 0; tries < 500 && arena_free_bytes() != all_free(); tries++)
			fiber_sleep(NSEC_PER_MSEC);
		assert_int_equal(arena_free_bytes(), all_free());
	}
	free(h);
}

static void test_reserve(void **state)
{
	unsigned where = 0;

	(void)state;
	run_with(reserve_main, 1, &where);
	run_with(reserve_main, 3, &where);
	where = 2;
	run_with(reserve_main, 3, &where);
}

/* ---- waiting: first come, first served, across reactors */

static _Atomic unsigned served, served_next;
static unsigned served_order[16];
static struct buf *served_buf[16];

static void alloc_waiter(void *arg)
{
	unsigned id = (unsigned)(uintptr_t)arg;
	struct buf *b = buf_alloc(65536);
	unsigned n = atomic_fetch_add(&served_next, 1);
	served_order[n] = id;
	served_buf[n] = b;
	atomic_fetch_add(&served, 1);
}

static void put_remote(void *arg)
{
	buf_put(arg);
}

static void wait_for(unsigned n)
{
	uint64_t end = now_ns() + 5 * NSEC_PER_SEC;
	while (atomic_load(&served) < n && now_ns() < end)
		fiber_sleep(NSEC_PER_MSEC / 2);
	assert_int_equal(atomic_load(&served), n);
}

static void fair_main(void *arg)
{
	(void)arg;
	atomic_store(&served, 0);
	atomic_store(&served_next, 0);
	unsigned n = take_all(65536);
	assert_int_equal(n, all_free() / 65536);
	for (uintptr_t i = 0; i < 8; i++) {
		/* each queues before the next starts, however busy the machine is */
		uint64_t waits = counter_read(&metric_buf_waits), end = now_ns() + 5 * NSEC_PER_SEC;
		reactor_spawn(reactor_get((unsigned)i % reactor_count()), alloc_waiter, (void *)i);
		while (counter_read(&metric_buf_waits) == waits && now_ns() < end)
			fiber_sleep(NSEC_PER_MSEC / 4);
	}
	assert_int_equal(atomic_load(&served), 0);
	assert_null(buf_try_alloc(65536));
	for (unsigned i = 0; i < 8; i++) {
		if (i % 2)
			buf_put(held[i]);
		else
			reactor_call(reactor_get(i % reactor_count()), put_remote, held[i]);
		assert_null(buf_try_alloc(65536)); /* it is the waiter's, who comes first */
		wait_for(i + 1);
		assert_int_equal(served_order[i], i);
	}
	for (unsigned i = 8; i < n; i++)
		buf_put(held[i]);
	for (unsigned i = 0; i < 8; i++)
		buf_put(served_buf[i]);
	assert_int_equal(arena_free_bytes(), all_free());
}

static void test_fair(void **state)
{
	(void)state;
	run_with(fair_main, 1, NULL);
	run_with(fair_main, 2, NULL);
}

/* A waiter for a whole piece gets one though small buffers come and go all the time. */
static _Atomic unsigned small_stop, small_running;

static void small_churn(void *arg)
{
	(void)arg;
	while (!atomic_load(&small_stop)) {
		struct buf *b = buf_alloc(4096);
		fiber_yield();
		buf_put(b);
	}
	atomic_fetch_sub(&small_running, 1);
}

static void whole_main(void *arg)
{
	(void)arg;
	unsigned n = take_all(4096);
	/* one block in use in each piece but a few: no piece is empty */
	for (unsigned i = 0; i < n; i++)
		if (i % 64 > 3)
			buf_put(held[i]);
	atomic_store(&small_stop, 0);
	atomic_store(&small_running, 10);
	for (unsigned i = 0; i < 10; i++)
		reactor_spawn(reactor_get(i % reactor_count()), small_churn, NULL);
	fiber_sleep(NSEC_PER_MSEC);
	for (unsigned i = 0; i < n; i++)
		if (i % 64 <= 3) {
			buf_put(held[i]);
			if (i % 64 == 3 && i < 64 * 20) {
				struct buf *b = buf_alloc(BUF_MAX);
				buf_put(b);
			}
		}
	atomic_store(&small_stop, 1);
	while (atomic_load(&small_running))
		fiber_sleep(NSEC_PER_MSEC);
}

static void test_whole(void **state)
{
	(void)state;
	run_with(whole_main, 2, NULL);
}

/* ---- random operations against a model: every byte belongs to one owner */

#define OWNED 200

struct model_job {
	uint64_t seed;
	_Atomic unsigned *left;
};

static void check_and_put(void *arg)
{
	struct buf *b = arg;
	uint64_t tag;
	memcpy(&tag, b->data + b->size - 8, 8);
	for (uint32_t off = 0; off < b->size; off += 1024) {
		uint64_t v;
		memcpy(&v, b->data + off, 8);
		assert_int_equal(v, tag);
	}
	buf_put(b);
}

static void model_worker(void *arg)
{
	struct model_job *job = arg;
	uint64_t seed = job->seed;
	struct buf **mine = calloc(OWNED, sizeof(struct buf *));
	for (unsigned n = 0; n < 4000; n++) {
		seed = hash_u64(seed + n + 1);
		unsigned i = (unsigned)(seed % OWNED);
		if (mine[i]) {
			if (seed >> 20 & 1)
				check_and_put(mine[i]);
			else
				reactor_post(
					reactor_get((unsigned)(seed >> 24) % reactor_count()), check_and_put, mine[i]);
			mine[i] = NULL;
		} else {
			uint32_t size = 4096u << (seed >> 32 & 7) % BUF_CLASSES;
			/* Who waits holds nothing that others wait for. */
			mine[i] = buf_try_alloc(size);
			if (!mine[i]) {
				for (unsigned k = 0; k < OWNED; k++)
					if (mine[k]) {
						check_and_put(mine[k]);
						mine[k] = NULL;
					}
				mine[i] = buf_alloc(size);
			}
			for (uint32_t off = 0; off < mine[i]->size; off += 1024)
				memcpy(mine[i]->data + off, &seed, 8);
			memcpy(mine[i]->data + mine[i]->size - 8, &seed, 8);
		}
		if ((seed >> 40) % 8 == 0)
			fiber_yield();
	}
	for (unsigned k = 0; k < OWNED; k++)
		if (mine[k])
			check_and_put(mine[k]);
	free(mine);
	atomic_fetch_sub(job->left, 1);
}

static void model_main(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg;
	_Atomic unsigned left = 6;
	struct model_job job[6];
	for (unsigned i = 0; i < 6; i++) {
		job[i] = (struct model_job){seed * 100 + i, &left};
		reactor_spawn(reactor_get(i % reactor_count()), model_worker, &job[i]);
	}
	uint64_t end = now_ns() + 9 * NSEC_PER_SEC;
	while (atomic_load(&left) && now_ns() < end)
		fiber_sleep(NSEC_PER_MSEC);
	assert_int_equal(atomic_load(&left), 0);
	while (arena_free_bytes() != all_free() && now_ns() < end) /* posted buffers arrive */
		fiber_sleep(NSEC_PER_MSEC);
	assert_int_equal(arena_free_bytes(), all_free());
	assert_true(counter_read(&metric_buf_waits) > 20); /* the model did run into the end of memory */
}

static void test_model(void **state)
{
	(void)state;
	for (uintptr_t seed = 1; seed <= 3; seed++) {
		print_message("seed %u\n", (unsigned)seed);
		run_with(model_main, (unsigned)seed, (void *)seed);
	}
}

/* ---- a user who may lock no memory: everything works, without registered buffers */

static void unregistered_main(void *arg)
{
	struct buf *b = buf_alloc(BUF_MAX), *z = buf_zero();
	*(int *)arg = b->fixed_index == -1 && z->fixed_index == -1 ? 0 : 3;
	buf_put(b);
}

static void test_unregistered(void **state)
{
	(void)state;
	if (getuid() != 0) {
		print_message("skipped: needs root to give up its rights\n");
		skip();
	}
	pid_t pid = fork();
	if (pid == 0) {
		int result = 4;
		struct rlimit limit = {512 << 10, 512 << 10}; /* two small rings, no arena */
		struct core_config config = {.reactors = 2, .arena_bytes = ARENA};
		/* what a user has locked is counted over all processes, so this one is a user of its own */
		uid_t uid = 100000 + (uid_t)getpid();
		close(STDERR_FILENO);
		if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 || setresuid(uid, uid, uid) < 0)
			_exit(5);
		if (core_main(&config, unregistered_main, &result, NULL) < 0)
			_exit(6);
		_exit(result);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- slices against plain bytes */

static void slices_main(void *arg)
{
	uint64_t seed = (uint64_t)(uintptr_t)arg;
	for (unsigned round = 0; round < 200; round++) {
		struct slice v[8], cut[8];
		unsigned n = 1 + (unsigned)((seed = hash_u64(seed + 1)) % 8);
		uint64_t total = 0;
		uint8_t *model = malloc(8 * 4096), *copy = malloc(8 * 4096);
		for (unsigned i = 0; i < n; i++) {
			struct buf *b = buf_alloc(4096);
			seed = hash_u64(seed + 1);
			v[i].buf = b;
			v[i].off = (uint32_t)(seed % 4096);
			v[i].len = (uint32_t)(seed >> 16) % (4097 - v[i].off); /* may be empty */
			total += v[i].len;
		}
		assert_int_equal(slices_bytes(v, n), total);
		for (uint64_t i = 0; i < total; i++)
			model[i] = (uint8_t)(seed = hash_u64(seed + i));
		uint64_t copied = counter_read(&metric_copied_bytes);
		slices_copy_in(v, n, 0, model, total);
		slices_copy_out(v, n, 0, copy, total);
		assert_memory_equal(model, copy, total);
		assert_int_equal(counter_read(&metric_copied_bytes) - copied, 2 * total);
		if (total) {
			uint64_t off = (seed >> 8) % total, len = (seed >> 32) % (total - off + 1);
			slices_copy_out(v, n, off, copy, len);
			assert_memory_equal(model + off, copy, len);
			int c = slices_cut(v, n, off, len, cut, 8);
			assert_true(c >= 0 && (unsigned)c <= n);
			assert_int_equal(slices_bytes(cut, (unsigned)c), len);
			uint64_t at = off;
			for (int i = 0; i < c; i++) {
				assert_true(cut[i].len > 0);
				assert_memory_equal(slice_data(&cut[i]), model + at, cut[i].len);
				at += cut[i].len;
			}
			if (c > 1)
				assert_int_equal(slices_cut(v, n, off, len, cut, (unsigned)c - 1), -ENOSPC);
			slices_zero(v, n, off, len);
			memset(model + off, 0, len);
			slices_copy_out(v, n, 0, copy, total);
			assert_memory_equal(model, copy, total);
			for (uint64_t i = 0; i < len; i++)
				model[off + i] = (uint8_t)i;
			slices_copy_in(v, n, off, model + off, len);
			slices_copy_out(v, n, 0, copy, total);
			assert_memory_equal(model, copy, total);
		}
		slices_put(v, n);
		free(model);
		free(copy);
	}
	assert_int_equal(arena_free_bytes(), all_free());
}

static void test_slices(void **state)
{
	(void)state;
	for (uintptr_t seed = 11; seed < 14; seed++) {
		print_message("seed %u\n", (unsigned)seed);
		run_with(slices_main, 1, (void *)seed);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_exhaust),
		cmocka_unit_test(test_reserve),
		cmocka_unit_test(test_fair),
		cmocka_unit_test(test_whole),
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_unregistered),
		cmocka_unit_test(test_slices),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
