/*
 * The power goes in the middle of random operations, and drives lose any part of their caches. What was
 * answered must be there afterwards, what was not may be or not, and fs check finds nothing.
 * Stripes that came free are filled again at once, the cleaner always finds it has to clean, and of whatever is more
 * than a block the log has the checksum of a group only.
 * FURROW_SEED and FURROW_ROUNDS choose the run.
 */
#include "tests/fs/model.h"

#define FIBERS 4

struct worker {
	struct files_test *t;
	struct model m;
	struct model_op op; /* the one that got no answer */
	bool open;
	uint64_t seed;
	unsigned done;
	struct wait_group *wait;
	bool *cut;
};

static void worker_fiber(void *arg)
{
	struct worker *w = arg;

	w->open = false;
	for (unsigned i = 0; i < 4000 && !test_failure[0]; i++) {
		int want, got;

		model_op_random(&w->m, &w->op, &w->seed, true);
		if (test_below(&w->seed, 8) == 0)
			w->t->fs->space.cursor = 0;
		got = real_apply(w->t, &w->m, &w->op);
		if (*w->cut || got == -EIO || got == -EROFS || got == -ENODEV) {
			/* an answer that came with or after the cut may tell the truth or not be one */
			w->open = true;
			*w->cut = true;
			if (got == 0 && w->op.kind != M_READ && w->op.kind != M_LOOKUP && w->op.kind != M_SEEK) {
				/* a success is a promise, even now */
				model_apply(&w->m, &w->op);
				w->open = false;
			}
			break;
		}
		want = model_apply(&w->m, &w->op);
		if (got != want)
			CHECK_FAILED("step %u: %s: is %d, not %d", i, op_text(&w->op), got, want);
		w->done++;
	}
	wait_group_done(w->wait, 0);
}

/* Which of the two states it is; the model becomes that. */
static const char *worker_settle(struct worker *w)
{
	struct model other;
	const char *wrong = NULL, *wrong2;
	struct model_maybe maybe = {.node = w->op.node, .other = &other};

	maybe.torn = w->op.kind == M_WRITE || w->op.kind == M_WRITE_COMMIT || w->op.kind == M_COPY;
	bool data = w->op.kind == M_WRITE || w->op.kind == M_WRITE_COMMIT || w->op.kind == M_TRUNCATE ||
		    w->op.kind == M_PUNCH || w->op.kind == M_ALLOCATE ||
		    w->op.kind == M_COPY; /* a clone is whole or not there */

	if (!w->open)
		return model_compare(w->t, &w->m, NULL);
	model_clone(&other, &w->m);
	w->op.made = (struct fs_id){0};
	if (model_apply(&other, &w->op) != 0) {
		model_free(&other);
		return model_compare(w->t, &w->m, NULL);
	}
	wrong = model_compare(w->t, &w->m, data ? &maybe : NULL);
	if (wrong && !data) {
		char text[200];

		snprintf(text, sizeof(text), "%s", wrong);
		wrong2 = model_compare(w->t, &other, NULL);
		if (!wrong2) {
			model_free(&w->m);
			w->m = other;
			return NULL;
		}
		fprintf(stderr, "without: %s\nwith: %s\nopen: %s\n", text, wrong2, op_text(&w->op));
	} else if (!wrong && data) {
		/* any mixture of old and new: take what it is */
		struct model_node *n = &w->m.node[w->op.node];
		struct fs_attr attr;

		if (fs_getattr(w->t->fs, n->id, &attr) < 0 || attr.size > MODEL_BYTES ||
			t_read(w->t, n->id, 0, n->data, MODEL_BYTES, NULL) < 0)
			wrong = "the file with the open write cannot be read";
		n->size = (uint32_t)attr.size;
		memset(n->data + n->size, 0, MODEL_BYTES - n->size);
	}
	if (wrong && data)
		fprintf(stderr, "open: %s\n", op_text(&w->op));
	model_free(&other);
	return wrong;
}

static void body_crash(void *arg)
{
	struct files_test *t = arg;
	struct worker *w = calloc(FIBERS, sizeof(*w));
	uint64_t seed = getenv("FURROW_SEED") ? strtoull(getenv("FURROW_SEED"), NULL, 0) : 20261130, rounds_seed;
	unsigned rounds = getenv("FURROW_ROUNDS") ? (unsigned)atoi(getenv("FURROW_ROUNDS")) : 15, done = 0;
	struct wait_group wait;
	struct fs_status status;
	uint64_t moved = 0;
	bool cut;
	char name[16];

	printf("seed %llu\n", (unsigned long long)seed);
	rounds_seed = seed;
	t->options.cache_bytes = 1u << 20;
	space_low_extra = UINT64_MAX;
	stream_least = 2;
	CHECK_OK(files_test_create(t, 6));
	for (unsigned i = 0; i < FIBERS; i++) {
		struct fs_id id = {0};

		snprintf(name, sizeof(name), "fiber%u", i);
		CHECK_OK(t_mkdir(t, t->root, name, &id));
		model_init(&w[i].m, id);
		w[i].t = t;
		w[i].seed = seed + i;
		w[i].wait = &wait;
		w[i].cut = &cut;
	}
	for (unsigned round = 0; round < rounds; round++) {
		unsigned keep = test_below(&rounds_seed, 3) * 500;

		cut = false;
		files_test_close(t);
		for (unsigned i = 0; i < t->count; i++)
			fault_volatile_cache(t->path[i], true);
		CHECK_OK(files_test_open(t));
		fault_write_limit(1 + test_below(&rounds_seed, round % 3 == 0 ? 3000 : 400));
		wait_group_init(&wait);
		for (unsigned i = 0; i < FIBERS; i++) {
			w[i].done = 0;
			wait_group_add(&wait, 1);
			CHECK_OK(fiber_spawn(worker_fiber, &w[i]));
		}
		wait_group_wait(&wait);
		fs_status(t->fs, &status);
		moved += status.cleaner_moved_blocks;
		CHECK(!test_failure[0]);
		for (unsigned i = 0; i < t->count; i++)
			fault_power_cut(t->path[i], test_random(&rounds_seed), keep);
		files_test_close(t);
		fault_reset();
		if (files_test_open(t) < 0)
			CHECK_FAILED("seed %llu round %u: no mount", (unsigned long long)seed, round);
		CHECK(!test_failure[0]);
		for (unsigned i = 0; i < FIBERS; i++) {
			const char *wrong = worker_settle(&w[i]);

			done += w[i].done;
			if (wrong)
				CHECK_FAILED(
					"seed %llu round %u fiber %u: %s", (unsigned long long)seed, round, i, wrong);
		}
		CHECK(!test_failure[0]);
		CHECK_IS(t_check(t), 0);
	}
	printf("operations %u, blocks moved %llu\n", done, (unsigned long long)moved);
	CHECK(done > rounds * 10 && moved > 0);
	for (unsigned i = 0; i < FIBERS; i++)
		model_free(&w[i].m);
	free(w);
	files_test_close(t);
}

static void test_crash(void **state)
{
	static struct files_test t;

	(void)state;
	atomic_store(&log_threshold, -1);
	files_test_drives(&t, 5, 128ull << 20);
	files_test_run(body_crash, &t);
	fault_reset();
	files_test_remove(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crash),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
