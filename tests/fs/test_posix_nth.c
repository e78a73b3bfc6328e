/*
 * Errors at the Nth call, for every N: the same operations are done anew for each N until one N lies behind the last
 * call. Refused is space from the Nth time on; or the power fails at the Nth write; or a write or read of one drive or
 * of all fails, where another copy helps and where none does; or the Nth piece of memory is not to be had, alone or
 * with those behind it, in the work, the unmount, the mount and fs check. What was answered before holds; the operation
 * that fails is done or not (data: in part), and succeeds when it comes again where that is possible; after a mount fs
 * check finds nothing and all is as the model says.
 *
 * FURROW_SEED chooses the operations, FURROW_STEPS how many, FURROW_FIRST the first N. FURROW_LONG: every N; else some.
 */
#include "tests/fs/memory_test.h"
#include "tests/fs/model.h"

#define STEPS 100u
#define BURST 20u

enum kind {
	NTH_SPACE,
	NTH_CUT,
	NTH_WRITE,
	NTH_WRITE_MEMBER,
	NTH_READ,
	NTH_READ_MEMBER,
	NTH_MEMORY,
	NTH_MEMORY_BURST,
	NTH_KINDS
};
static const struct {
	const char *name;
	unsigned level;
	bool ends; /* nothing more is done after the first failure */
	int fits[4];
} kinds[NTH_KINDS] = {
	[NTH_SPACE] = {"space", 1, false, {-ENOSPC}},
	[NTH_CUT] = {"power cut", 1, true, {-EIO, -EROFS, -ENODEV, -EAGAIN}},
	[NTH_WRITE] = {"write", 0, true, {-EIO, -EROFS, -ENODEV, -EAGAIN}},
	[NTH_WRITE_MEMBER] = {"write of a member", 1, false, {0}},
	[NTH_READ] = {"read", 0, false, {-EIO, -EAGAIN}},
	[NTH_READ_MEMBER] = {"read of a member", 1, false, {0}},
	[NTH_MEMORY] = {"memory", 1, false, {-EAGAIN}},
	[NTH_MEMORY_BURST] = {"memory for a while", 1, false, {-EAGAIN}},
};
static enum kind kind;

/* ------------------------------------------------------------------------------------------------
 * One fault
 */

static void arm(struct files_test *t, uint64_t n)
{
	space_refuse_count = 0;
	space_refuse_at = kind == NTH_SPACE ? n : UINT64_MAX;
	if (kind == NTH_MEMORY || kind == NTH_MEMORY_BURST)
		memory_refuse(n, kind == NTH_MEMORY ? 1 : BURST);
	if (kind == NTH_CUT)
		fault_write_limit(n);
	for (unsigned i = 0; i < t->count; i++) {
		if (kind == NTH_READ || (kind == NTH_READ_MEMBER && i == 0))
			fault_inject(t->path[i], FAULT_READ_ERROR, n, 0);
		if (kind == NTH_WRITE || (kind == NTH_WRITE_MEMBER && i == 0))
			fault_inject(t->path[i], FAULT_WRITE_ERROR, n, 0);
	}
}

/* Whether it happened, and there may be more behind it. */
static bool fired(const struct files_test *t, uint64_t n, uint64_t writes)
{
	bool all = true;

	if (kind == NTH_SPACE)
		return space_refuse_count >= n;
	if (kind == NTH_MEMORY || kind == NTH_MEMORY_BURST)
		return memory_asked(n);
	if (kind == NTH_CUT)
		return fault_writes() - writes >= n;
	for (unsigned i = 0; i < t->count && (i == 0 || kind == NTH_READ || kind == NTH_WRITE); i++)
		all = all && fault_pending(t->path[i]);
	return !all;
}

static void disarm(void)
{
	space_refuse_at = 0;
	memory_refuse_none();
}

/* ------------------------------------------------------------------------------------------------
 * The work
 */

struct run {
	struct files_test *t;
	struct model m;
	struct model_op op; /* that failed */
	bool open;
	uint64_t seed;
	unsigned steps, failures;
	/* what the model does not know */
	struct fs_id side, held;
	bool hold;
	uint8_t xattr, xattr_tried;
};

static bool data_op(const struct model_op *op)
{
	return op->kind == M_WRITE || op->kind == M_WRITE_COMMIT || op->kind == M_WRITE_UNSTABLE ||
	       op->kind == M_COMMIT || op->kind == M_TRUNCATE || op->kind == M_PUNCH || op->kind == M_ALLOCATE ||
	       op->kind == M_COPY;
}

static bool error_fits(int got)
{
	for (unsigned i = 0; i < 4; i++)
		if (got < 0 && kinds[kind].fits[i] == got)
			return true;
	return false;
}

static void no_snapshot(void *arg, const struct fs_snapshot *snapshot)
{
	*(unsigned *)arg += snapshot->name[0] != 's';
}

static int xattr_see(struct run *r)
{
	uint8_t value[5000];
	size_t size = 0;
	int got = fs_getxattr(r->t->fs, &op_root, r->side, "user.side", 9, value, sizeof(value), &size);

	if (got == -ENOENT)
		return r->xattr ? -EBADMSG : 0;
	if (got < 0)
		return got;
	if (size != sizeof(value) || (value[0] != r->xattr && value[0] != r->xattr_tried))
		return -EBADMSG;
	for (unsigned i = 1; i < sizeof(value); i++)
		if (value[i] != value[0])
			return -EBADMSG;
	return 0;
}

/* Attributes, snapshots, records of the server's, files that are held: one of them. 0, or how it failed. */
static int side_step(struct run *r, unsigned i)
{
	struct files_test *t = r->t;
	uint8_t value[5000];
	unsigned wrong = 0;
	size_t len = 0;
	int got;

	switch (i % 8) {
	case 0:
		r->xattr_tried = (uint8_t)(1 + i % 250);
		memset(value, r->xattr_tried, sizeof(value));
		got = fs_setxattr(
			t->fs, &op_root, r->side, "user.side", 9, value, sizeof(value), FS_XATTR_EITHER, NULL);
		r->xattr = got == 0 ? r->xattr_tried : r->xattr;
		return got;
	case 1:
		return xattr_see(r);
	case 2:
		got = fs_snapshot_create(t->fs, "snap");
		return got == -EEXIST ? 0 : got;
	case 3:
		got = fs_snapshot_list(t->fs, no_snapshot, &wrong);
		return got == 0 && wrong ? -EBADMSG : got;
	case 4:
		got = fs_state_put(t->fs, 3, "name", 4, "data", 4);
		return got ? got : fs_state_get(t->fs, 3, "name", 4, value, sizeof(value), &len);
	case 5:
		got = t_create(t, t->root, "held", &r->held);
		if (got == 0 || got == -EEXIST)
			got = r->hold ? 0 : fs_hold(t->fs, r->held);
		r->hold = r->hold || got == 0;
		return got;
	case 6:
		got = t_unlink(t, t->root, "held");
		if ((got == 0 || got == -ENOENT) && r->hold) {
			fs_release(t->fs, r->held);
			r->hold = false;
		}
		return got == -ENOENT ? 0 : got;
	default:
		got = fs_snapshot_delete(t->fs, "snap");
		return got == -ENOENT ? 0 : got;
	}
}

static void side_run(struct run *r, unsigned i)
{
	int got = side_step(r, i);

	if (got < 0 && error_fits(got)) {
		r->failures++;
		if (kinds[kind].ends) {
			r->open = true;
			r->op.kind = M_KINDS;
			return;
		}
		if (kind == NTH_SPACE)
			space_refuse_at = 0;
		for (unsigned again = 0; error_fits(got) && again < 2 * BURST; again++)
			got = side_step(r, i);
	}
	if (got != 0)
		CHECK_FAILED("%s: side step %u is %d", kinds[kind].name, i % 8, got);
}

/* A refusal, or a block that could not be read, is no end: the operation comes again. */
static void step_again(struct run *r, unsigned i, int got)
{
	int want;

	space_refuse_at = 0;
	/* each drive has its Nth read, and bursts go on for a while */
	for (unsigned again = 0; again == 0 || (again < 2 * BURST && error_fits(got)); again++)
		got = real_apply(r->t, &r->m, &r->op);
	want = model_apply(&r->m, &r->op);
	if (got != want)
		CHECK_FAILED("step %u again: %s: is %d, not %d", i, op_text(&r->op), got, want);
	r->open = false;
}

/* So that there is something to be read. */
static void step_forget(struct run *r, unsigned i)
{
	int got = 0;

	if (i % 10 != 9) {
		t_forget(r->t);
		return;
	}
	r->hold = false;
	for (unsigned again = 0; again < 4; again++) {
		got = files_test_remount(r->t);
		if (got == 0)
			return;
		r->failures++;
		if (error_fits(got))
			test_failure[0] = 0;
	}
}

/* Until one fails that should not. */
static void steps_run(struct run *r)
{
	r->open = false;
	for (unsigned i = 0; i < r->steps && !test_failure[0]; i++) {
		struct model before;
		int want, got;

		if (i % 3 == 0)
			side_run(r, i / 3);
		if (kind == NTH_READ || kind == NTH_READ_MEMBER)
			step_forget(r, i);
		if (r->open || test_failure[0])
			return;
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
		if (!error_fits(got)) {
			CHECK_FAILED("step %u: %s: is %d, not %d", i, op_text(&r->op), got, want);
			return;
		}
		r->failures++;
		r->open = true;
		if (kinds[kind].ends || (data_op(&r->op) && r->op.kind == M_COPY))
			return;
		step_again(r, i, got);
	}
}

static const char *settle(struct run *r)
{
	struct model other;
	struct model_maybe maybe = {.node = r->op.node, .other = &other};
	const char *wrong;

	if (!r->open || r->op.kind == M_KINDS)
		return model_compare(r->t, &r->m, NULL);
	model_clone(&other, &r->m);
	r->op.made = (struct fs_id){0};
	model_apply(&other, &r->op);
	maybe.torn = data_op(&r->op);
	wrong = model_compare(r->t, &r->m, data_op(&r->op) ? &maybe : NULL);
	if (wrong && !data_op(&r->op))
		wrong = model_compare(r->t, &other, NULL);
	model_free(&other);
	return wrong;
}

static bool run_begin(struct run *r)
{
	struct files_test *t = r->t;
	struct fs_id dir = {0};

	r->seed = getenv("FURROW_SEED") ? strtoull(getenv("FURROW_SEED"), NULL, 0) : 20261130;
	r->steps = getenv("FURROW_STEPS") ? (unsigned)atoi(getenv("FURROW_STEPS")) : STEPS;
	files_test_drives(t, 2, 40ull << 20);
	t->options.cache_bytes = 1u << 20;
	CHECK_R(files_test_create(t, kinds[kind].level) == 0, false);
	CHECK_R(t_mkdir(t, t->root, "dir", &dir) == 0, false);
	CHECK_R(t_create(t, t->root, "side", &r->side) == 0, false);
	model_init(&r->m, dir);
	space_refuse_at = UINT64_MAX;
	if (kind == NTH_READ || kind == NTH_READ_MEMBER)
		steps_run(r); /* so that there is something to be read */
	return !test_failure[0] && files_test_remount(t) == 0;
}

/* The mount and a check, which memory is refused to as well; then once more without. */
static int run_open(struct files_test *t)
{
	struct fs_check_result result;
	unsigned problems = 0;
	int r = files_test_open(t);

	if (r < 0 && kind >= NTH_MEMORY) {
		test_failure[0] = 0;
		files_test_close(t);
		disarm();
		r = files_test_open(t);
	}
	if (r == 0 && kind >= NTH_MEMORY) {
		r = fs_check(t->fs, true, t_check_report, NULL, &problems, &result);
		if (problems || (r < 0 && r != -EAGAIN))
			CHECK_FAILED("fs check without memory: %d, %u problems", r, problems);
		r = 0;
	}
	return r;
}

/* false: nothing failed, so N is behind the last call. */
static bool nth(struct files_test *t, uint64_t n, unsigned *failures)
{
	struct run r = {.t = t};
	const char *wrong;
	uint64_t writes;
	bool hit;

	CHECK_R(run_begin(&r), false);
	writes = fault_writes();
	arm(t, n);
	steps_run(&r);
	if (kind < NTH_MEMORY)
		disarm();
	hit = fired(t, n, writes);
	for (unsigned i = 0; i < t->count && kind == NTH_CUT; i++)
		fault_power_cut(t->path[i], n, 500);
	files_test_close(t);
	fault_reset();
	if (!test_failure[0] && run_open(t) == 0) {
		hit = hit || (kind >= NTH_MEMORY && fired(t, n, writes));
		disarm();
		wrong = settle(&r);
		if (wrong)
			CHECK_FAILED("%s; open: %s", wrong, r.open ? op_text(&r.op) : "none");
		if (xattr_see(&r) != 0)
			CHECK_FAILED("the extended attribute is not as it was");
		if (t_check(t) != 0)
			CHECK_FAILED("fs check finds faults");
	}
	disarm();
	*failures += r.failures;
	model_free(&r.m);
	files_test_close(t);
	files_test_remove(t);
	return hit;
}

static void body_nth(void *arg)
{
	uint64_t n = getenv("FURROW_FIRST") ? strtoull(getenv("FURROW_FIRST"), NULL, 0) : 1, step = 1, hits = 0;
	unsigned failures = 0;

	for (unsigned misses = 0; misses < 3 && !test_failure[0]; n += step) {
		bool hit = nth(arg, n, &failures);

		hits += hit;
		misses = hit ? 0 : misses + 1;
		if (test_failure[0]) {
			print_error("%s, call %llu\n", kinds[kind].name, (unsigned long long)n);
			return;
		}
		if (n >= 10 && !getenv("FURROW_LONG"))
			step = 1 + n / 4;
	}
	printf("%s: happened %llu times, the last one was call %llu; %u operations failed\n", kinds[kind].name,
		(unsigned long long)hits, (unsigned long long)(n - 3 * step - 1), failures);
	CHECK(hits > 3);
}

static void test_nth(void **state)
{
	static struct files_test t;
	int threshold = atomic_load(&log_threshold);

	kind = *(enum kind *)*state;
	if (!getenv("FURROW_LOG"))
		atomic_store(&log_threshold, -1);
	files_test_run(body_nth, &t);
	atomic_store(&log_threshold, threshold);
}

int main(void)
{
	static enum kind of[NTH_KINDS];
	struct CMUnitTest tests[NTH_KINDS];

	for (unsigned i = 0; i < NTH_KINDS; i++) {
		of[i] = (enum kind)i;
		tests[i] = (struct CMUnitTest){kinds[i].name, test_nth, NULL, NULL, &of[i]};
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
