/*
 * Errors at the Nth call, for every N: the same operations are done anew for each N, with space that is refused from
 * the Nth time on, a write that fails like a power cut, or a read that fails. What was answered before holds; the
 * operation that fails is done or not (data: in part); after a mount fs check finds nothing and all is as the model
 * says. FURROW_SEED chooses the operations, FURROW_STEPS how many.
 */
#include "tests/fs/model.h"

#define STEPS 100u
#define READS 40u

enum kind { NTH_SPACE, NTH_WRITE, NTH_READ, NTH_KINDS };
static const char *const kinds[] = {"space", "write", "read"};

struct run {
	struct files_test *t;
	struct model m;
	struct model_op op; /* that failed */
	bool open;
	uint64_t seed;
	unsigned steps;
};

static bool data_op(const struct model_op *op)
{
	return op->kind == M_WRITE || op->kind == M_WRITE_COMMIT || op->kind == M_WRITE_UNSTABLE ||
	       op->kind == M_COMMIT || op->kind == M_TRUNCATE || op->kind == M_PUNCH || op->kind == M_ALLOCATE ||
	       op->kind == M_COPY;
}

static bool error_fits(enum kind kind, int got)
{
	return kind == NTH_SPACE ? got == -ENOSPC : got == -EIO || got == -EROFS || got == -ENODEV || got == -EAGAIN;
}

/* Until one fails that should not. */
static void steps_run(struct run *r, enum kind kind)
{
	r->open = false;
	for (unsigned i = 0; i < r->steps && !test_failure[0]; i++) {
		struct model before;
		int want, got;

		model_op_random(&r->m, &r->op, &r->seed, true);
		got = real_apply(r->t, &r->m, &r->op);
		model_clone(&before, &r->m);
		want = model_apply(&r->m, &r->op);
		if (got == want) {
			model_free(&before);
			continue;
		}
		model_free(&r->m);
		r->m = before;
		if (!error_fits(kind, got)) {
			CHECK_FAILED("step %u: %s: is %d, not %d", i, op_text(&r->op), got, want);
			return;
		}
		r->open = true;
		if (kind == NTH_WRITE)
			return;
		/* a refusal, or a block that could not be read, is no end: the operation comes again */
		space_refuse_at = 0;
		if (data_op(&r->op))
			return;
		/* each drive has its Nth read */
		for (unsigned again = 0; again == 0 || (again < 3 && kind == NTH_READ && got == -EIO); again++)
			got = real_apply(r->t, &r->m, &r->op);
		want = model_apply(&r->m, &r->op);
		if (got != want)
			CHECK_FAILED("step %u again: %s: is %d, not %d", i, op_text(&r->op), got, want);
		r->open = false;
	}
}

static const char *settle(struct run *r)
{
	struct model other;
	struct model_maybe maybe = {.node = r->op.node, .other = &other};
	const char *wrong;

	if (!r->open)
		return model_compare(r->t, &r->m, NULL);
	model_clone(&other, &r->m);
	r->op.made = (struct fs_id){0};
	model_apply(&other, &r->op);
	wrong = model_compare(r->t, &r->m, data_op(&r->op) ? &maybe : NULL);
	if (wrong && !data_op(&r->op))
		wrong = model_compare(r->t, &other, NULL);
	model_free(&other);
	return wrong;
}

/* false: nothing failed, so N is behind the last call. */
static bool nth(struct files_test *t, enum kind kind, uint64_t n)
{
	struct run r = {.t = t};
	struct fs_id dir = {0};
	const char *wrong;
	bool hit;

	r.seed = getenv("FURROW_SEED") ? strtoull(getenv("FURROW_SEED"), NULL, 0) : 20261130;
	r.steps = getenv("FURROW_STEPS") ? (unsigned)atoi(getenv("FURROW_STEPS")) : STEPS;
	files_test_drives(t, 2, 40ull << 20);
	t->options.cache_bytes = 1u << 20;
	CHECK_R(files_test_create(t, kind == NTH_READ ? 0 : 1) == 0, false);
	CHECK_R(t_mkdir(t, t->root, "dir", &dir) == 0, false);
	model_init(&r.m, dir);
	space_refuse_at = UINT64_MAX;
	if (kind == NTH_READ)
		steps_run(&r, kind); /* so that there is something to be read */
	CHECK_R(files_test_remount(t) == 0, false);
	space_refuse_count = 0;
	space_refuse_at = kind == NTH_SPACE ? n : UINT64_MAX;
	if (kind == NTH_WRITE)
		fault_write_limit(n);
	for (unsigned i = 0; i < t->count && kind == NTH_READ; i++)
		fault_inject(t->path[i], FAULT_READ_ERROR, n, 0);
	steps_run(&r, kind);
	hit = r.open || (kind == NTH_SPACE && space_refuse_count >= n);
	space_refuse_at = 0;
	if (kind == NTH_WRITE)
		for (unsigned i = 0; i < t->count; i++)
			fault_power_cut(t->path[i], n, 500);
	files_test_close(t);
	fault_reset();
	if (!test_failure[0] && files_test_open(t) == 0) {
		wrong = settle(&r);
		if (wrong)
			CHECK_FAILED("%s %llu: %s; open: %s", kinds[kind], (unsigned long long)n, wrong,
				r.open ? op_text(&r.op) : "none");
		if (t_check(t) != 0)
			CHECK_FAILED("%s %llu: fs check finds faults", kinds[kind], (unsigned long long)n);
	}
	model_free(&r.m);
	files_test_close(t);
	files_test_remove(t);
	return hit;
}

static enum kind kind_now;
static void body_nth(void *arg)
{
	uint64_t n = 1, step = 1, hits = 0;

	/* every one of the first hundred; behind them some */
	for (unsigned misses = 0; misses < 3 && n < 100000 && !test_failure[0]; n += step) {
		bool hit = nth(arg, kind_now, n);

		hits += hit;
		/* a read that fails is done again, and mostly nobody sees it: so these end by their number */
		misses = hit || (kind_now == NTH_READ && n < READS) ? 0 : misses + 1;
		if (n >= 100)
			step = 1 + n / 8;
	}
	printf("%s: %llu times, up to call %llu\n", kinds[kind_now], (unsigned long long)hits, (unsigned long long)n);
	CHECK(hits > (kind_now == NTH_READ ? 0 : 3));
}

static void run_kind(enum kind kind)
{
	static struct files_test t;
	int threshold = atomic_load(&log_threshold);

	kind_now = kind;
	if (!getenv("FURROW_LOG"))
		atomic_store(&log_threshold, -1);
	files_test_run(body_nth, &t);
	atomic_store(&log_threshold, threshold);
}
static void test_space(void **state)
{
	(void)state;
	run_kind(NTH_SPACE);
}
static void test_write(void **state)
{
	(void)state;
	run_kind(NTH_WRITE);
}
static void test_read(void **state)
{
	(void)state;
	run_kind(NTH_READ);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_space),
		cmocka_unit_test(test_write),
		cmocka_unit_test(test_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
