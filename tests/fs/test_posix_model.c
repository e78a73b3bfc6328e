/*
 * Random operations of several fibers on a file system and on a model of it, each fiber in a directory of
 * its own; with remounts in between. FURROW_SEED and FURROW_STEPS choose the run.
 */
#include "tests/fs/model.h"

#define FIBERS 6

struct worker {
	struct files_test *t;
	struct model m;
	uint64_t seed;
	unsigned steps;
	struct wait_group *wait;
};
static bool elsewhere; /* the workers run on another reactor than the file system */
static bool failing;   /* drives vanish in the middle, as many as the level bears */

static void worker_run(void *arg)
{
	struct worker *w = arg;
	struct model_op *op = malloc(sizeof(*op));

	for (unsigned i = 0; i < w->steps && !test_failure[0]; i++) {
		int want, got;

		model_op_random(&w->m, op, &w->seed, false);
		got = real_apply(w->t, &w->m, op);
		want = model_apply(&w->m, op);
		if (got != want)
			CHECK_FAILED("step %u: %s: is %d, not %d", i, op_text(op), got, want);
	}
	free(op);
}

static void worker_fiber(void *arg)
{
	struct worker *w = arg;

	if (elsewhere)
		reactor_call(reactor_get(1), worker_run, w);
	else
		worker_run(w);
	wait_group_done(w->wait, 0);
}

static void body_model(void *arg)
{
	struct files_test *t = arg;
	struct worker *w = calloc(FIBERS, sizeof(*w));
	uint64_t seed = getenv("FURROW_SEED") ? strtoull(getenv("FURROW_SEED"), NULL, 0) : 20261130;
	unsigned steps = getenv("FURROW_STEPS") ? (unsigned)atoi(getenv("FURROW_STEPS")) : 150;
	struct wait_group wait;
	char name[16];

	printf("seed %llu\n", (unsigned long long)seed);
	t->options.cache_bytes = 1u << 20;
	t->options.dirty_bytes = 1u << 20;
	CHECK_OK(files_test_create(t, 6));
	for (unsigned i = 0; i < FIBERS; i++) {
		struct fs_id id = {0};

		snprintf(name, sizeof(name), "fiber%u", i);
		CHECK_OK(t_mkdir(t, t->root, name, &id));
		model_init(&w[i].m, id);
		w[i].t = t;
		w[i].seed = seed + i;
		w[i].steps = steps;
		w[i].wait = &wait;
	}
	for (unsigned round = 0; round < 6; round++) {
		wait_group_init(&wait);
		for (unsigned i = 0; i < FIBERS; i++) {
			wait_group_add(&wait, 1);
			CHECK_OK(fiber_spawn(worker_fiber, &w[i]));
		}
		if (failing && round < 2) {
			fiber_yield();
			CHECK_OK(fault_inject(t->path[round * 2], FAULT_VANISH, 20, 0));
		}
		wait_group_wait(&wait);
		CHECK(!test_failure[0]);
		if (round % 2)
			CHECK_OK(files_test_remount(t));
		for (unsigned i = 0; i < FIBERS; i++) {
			const char *wrong = model_compare(t, &w[i].m, NULL);

			if (wrong)
				CHECK_FAILED(
					"seed %llu round %u fiber %u: %s", (unsigned long long)seed, round, i, wrong);
		}
		CHECK(!test_failure[0]);
		CHECK_IS(t_check(t), 0);
	}
	for (unsigned i = 0; i < FIBERS; i++)
		model_free(&w[i].m);
	free(w);
	files_test_close(t);
}

static void run(void (*body)(void *), unsigned drives, uint64_t bytes)
{
	static struct files_test t;

	files_test_drives(&t, drives, bytes);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
}

static void test_model(void **state)
{
	(void)state;
	run(body_model, 5, 128ull << 20);
}

/* The same with few hashes, so that names collide all the time. */
static void test_model_collisions(void **state)
{
	(void)state;
	name_hash_mask = 1;
	run(body_model, 4, 128ull << 20);
	name_hash_mask = UINT64_MAX;
}

static void test_model_elsewhere(void **state)
{
	(void)state;
	elsewhere = true;
	run(body_model, 5, 128ull << 20);
	elsewhere = false;
}

static void test_model_failing(void **state)
{
	int threshold = atomic_load(&log_threshold);

	(void)state;
	failing = true;
	atomic_store(&log_threshold, -1);
	run(body_model, 6, 128ull << 20);
	atomic_store(&log_threshold, threshold);
	failing = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_model_collisions),
		cmocka_unit_test(test_model_elsewhere),
		cmocka_unit_test(test_model_failing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
