/*
 * The power goes in the middle of random operations, and drives lose any part of their caches. What was
 * answered must be there afterwards, what was not may be or not, and fs check finds nothing.
 * Stripes that came free are filled again at once, the cleaner always finds it has to clean, and of whatever is more
 * than a block the log has the checksum of a group only.
 *
 * In some rounds members are lost as well, as many as the level bears: in the middle of the work, or with the power, or
 * both; they come back, and are brought up to date while the next power cut is on its way.
 *
 * Clients send again what they got no answer to, and some of what was answered. A call that must not be done twice is
 * known by its mark when it was done, with the object that it made, and by none when it was not: then doing it now
 * has the result that it would have had.
 * FURROW_SEED and FURROW_ROUNDS choose the run.
 */
#include "tests/fs/model.h"

#define FIBERS 4
#define AGAIN 4u /* calls that are sent again although they were answered */

struct worker {
	struct files_test *t;
	struct model m;
	struct model_op op; /* the one that got no answer */
	bool open;
	struct model_op answered[AGAIN];
	unsigned answers;
	uint64_t seed, client;
	uint32_t xid;
	unsigned done;
	struct wait_group *wait;
	bool *cut;
};
static unsigned sent_again, done_before, losses;

static void worker_answered(struct worker *w)
{
	if (w->op.marked)
		w->answered[w->answers++ % AGAIN] = w->op;
	w->open = false;
}

static void worker_draw(struct worker *w)
{
	model_op_random(&w->m, &w->op, &w->seed, true);
	w->op.marked = model_op_once(&w->op);
	w->op.mark = (struct fs_reply){
		.client = w->client, .xid = ++w->xid, .proc = w->op.kind, .checksum = (uint32_t)hash_u64(w->op.seed)};
	if (test_below(&w->seed, 8) == 0)
		w->t->fs->space.cursor = 0;
}

static void worker_fiber(void *arg)
{
	struct worker *w = arg;

	w->open = false;
	for (unsigned i = 0; i < 4000 && !test_failure[0]; i++) {
		int want, got;

		worker_draw(w);
		got = real_apply(w->t, &w->m, &w->op);
		if (*w->cut || got == -EIO || got == -EROFS || got == -ENODEV) {
			/* an answer that came with or after the cut may tell the truth or not be one */
			w->open = true;
			*w->cut = true;
			if (got == 0 && w->op.kind != M_READ && w->op.kind != M_LOOKUP && w->op.kind != M_SEEK) {
				/* a success is a promise, even now */
				model_apply(&w->m, &w->op);
				worker_answered(w);
			}
			break;
		}
		want = model_apply(&w->m, &w->op);
		if (got != want)
			CHECK_FAILED("step %u: %s: is %d, not %d", i, op_text(&w->op), got, want);
		if (got == 0)
			worker_answered(w);
		w->done++;
	}
	wait_group_done(w->wait, 0);
}

/* ------------------------------------------------------------------------------------------------
 * Calls that come again
 */

struct replies {
	struct fs_reply of[FS_REPLIES];
	unsigned n;
};

static void reply_add(void *arg, const struct fs_reply *reply)
{
	struct replies *r = arg;

	if (r->n < FS_REPLIES)
		r->of[r->n++] = *reply;
}

/* As the cache of calls finds it. */
static const struct fs_reply *reply_find(const struct replies *r, const struct fs_reply *mark)
{
	for (unsigned i = r->n; i-- > 0;)
		if (r->of[i].client == mark->client && r->of[i].xid == mark->xid && r->of[i].proc == mark->proc &&
			r->of[i].checksum == mark->checksum)
			return &r->of[i];
	return NULL;
}

/* What was answered is known, with the object that it made. */
static const char *answered_again(const struct worker *w, const struct replies *replies)
{
	for (unsigned i = 0; i < AGAIN && i < w->answers; i++) {
		const struct model_op *op = &w->answered[i];
		const struct fs_reply *reply = reply_find(replies, &op->mark);

		sent_again++;
		if (!reply)
			return "a call that was answered would be done twice";
		if (op->kind <= M_SYMLINK && (reply->id.ino != op->made.ino || reply->id.gen != op->made.gen))
			return "a call sent again would be told of another object";
	}
	return NULL;
}

/* The open operation is done now. */
static const char *open_again(struct worker *w)
{
	int got, want;

	w->open = false;
	sent_again++;
	got = real_apply(w->t, &w->m, &w->op);
	want = model_apply(&w->m, &w->op);
	if (got != want) {
		fprintf(stderr, "%s: is %d, not %d\n", op_text(&w->op), got, want);
		return "a call sent again ends differently";
	}
	return NULL;
}

/*
 * The open operation changes bytes: any mixture of old and new. Sent again it is done whole, but for a copy within a
 * file, which may read what it wrote: then it is taken as it is.
 */
static const char *data_again(struct worker *w)
{
	struct model_node *n = &w->m.node[w->op.node];
	struct fs_attr attr;
	const char *wrong = NULL;
	uint8_t *buf;

	if (w->op.kind != M_COPY || w->op.node != w->op.node2)
		wrong = open_again(w);
	if (wrong || n->type != FS_REG)
		return wrong;
	buf = calloc(1, MODEL_BYTES);
	if (fs_getattr(w->t->fs, n->id, &attr) < 0 || attr.size > MODEL_BYTES ||
		t_read(w->t, n->id, 0, buf, MODEL_BYTES, NULL) < 0)
		wrong = "the file with the open write cannot be read";
	else if (!w->open && (attr.size != n->size || memcmp(buf, n->data, n->size) != 0))
		wrong = "the file with the open write is not as it should be when that was sent again";
	if (!wrong) {
		n->size = (uint32_t)attr.size;
		memset(buf + n->size, 0, MODEL_BYTES - n->size);
		memcpy(n->data, buf, MODEL_BYTES);
	}
	free(buf);
	return wrong;
}

/* Without a mark it may be done or not; the model becomes what it is. */
static const char *unmarked_settle(struct worker *w)
{
	const struct model_op *op = &w->op;
	struct model other;
	struct model_maybe maybe = {.node = op->node, .other = &other};
	const char *wrong;
	/* a clone is whole or not there */
	bool data = op->kind == M_WRITE || op->kind == M_WRITE_COMMIT || op->kind == M_TRUNCATE ||
		    op->kind == M_PUNCH || op->kind == M_ALLOCATE || op->kind == M_COPY;

	maybe.torn = op->kind == M_WRITE || op->kind == M_WRITE_COMMIT || op->kind == M_COPY;
	model_clone(&other, &w->m);
	w->op.made = (struct fs_id){0};
	if (model_apply(&other, &w->op) != 0) {
		model_free(&other);
		return model_compare(w->t, &w->m, NULL);
	}
	wrong = model_compare(w->t, &w->m, data ? &maybe : NULL);
	if (wrong && !data && !model_compare(w->t, &other, NULL)) {
		model_free(&w->m);
		w->m = other;
		return NULL;
	}
	if (wrong)
		fprintf(stderr, "open: %s\n", op_text(&w->op));
	model_free(&other);
	return !wrong && data ? data_again(w) : wrong;
}

static const char *worker_settle(struct worker *w, const struct replies *replies)
{
	const char *wrong = answered_again(w, replies);
	const struct fs_reply *reply;

	if (wrong)
		return wrong;
	if (!w->open)
		return model_compare(w->t, &w->m, NULL);
	reply = w->op.marked ? reply_find(replies, &w->op.mark) : NULL;
	if (reply) {
		done_before++;
		w->op.made = reply->id;
		if (model_apply(&w->m, &w->op) != 0)
			return "a call is known that cannot have been done";
	} else if (!w->op.marked || w->op.kind == M_TRUNCATE) {
		return unmarked_settle(w);
	} else {
		w->op.made = (struct fs_id){0};
		wrong = open_again(w);
	}
	return wrong ? wrong : model_compare(w->t, &w->m, NULL);
}

/* ------------------------------------------------------------------------------------------------
 * Members that are lost
 */

#define LOST_MOST 2u

struct loss {
	unsigned n, drive[LOST_MOST];
	bool away; /* they do not come back with the power */
};

/* What this round loses: mostly nothing. */
static void loss_draw(const struct files_test *t, struct loss *loss, uint64_t *seed)
{
	struct array_status *status = calloc(1, sizeof(*status));
	bool whole;

	array_status(t->array, status);
	whole = !status->degraded && !status->rebuild.running;
	free(status);
	*loss = (struct loss){.n = whole && test_below(seed, 3) == 0 ? 1 + test_below(seed, LOST_MOST) : 0};
	loss->drive[0] = test_below(seed, t->count);
	loss->drive[1] = (loss->drive[0] + 1 + test_below(seed, t->count - 1)) % t->count;
	loss->away = test_below(seed, 2);
	losses += loss->n > 0;
	for (unsigned i = 0; i < loss->n; i++)
		if (!loss->away || test_below(seed, 2))
			fault_inject(t->path[loss->drive[i]], FAULT_VANISH, 1 + test_below(seed, 200), 0);
}

static int loss_move(const struct files_test *t, const struct loss *loss, bool away)
{
	int r = 0;

	for (unsigned i = 0; i < loss->n && loss->away; i++) {
		const char *path = files_test_file(t->path[loss->drive[i]]);
		char other[300];

		snprintf(other, sizeof(other), "%s.away", path);
		r |= away ? rename(path, other) : rename(other, path);
	}
	return r;
}

/* All that are not there come back, with what they held; WAIT: until they are up to date. */
static int members_return(struct files_test *t, bool wait)
{
	struct array_status *status = calloc(1, sizeof(*status));
	struct rebuild_tuning tuning = {0};
	struct error err = {0};
	int r = array_keep(t->array, &err);

	array_tune(t->array, &tuning);
	array_status(t->array, status);
	for (unsigned i = 0; i < t->count && r == 0; i++) {
		struct member_add how = {.slot = -1};
		unsigned slot;

		if (status->member[i].state != MEMBER_ACTIVE && status->member[i].state != MEMBER_REBUILDING)
			r = array_add(t->array, t->path[i], &how, &slot, &err);
	}
	if (r == 0 && wait)
		r = array_settled(t->array, NULL, NULL);
	if (r < 0)
		CHECK_FAILED("members that come back: %d %s", r, err.text);
	free(status);
	return r;
}

/* ------------------------------------------------------------------------------------------------
 * Rounds
 */

struct crash {
	struct files_test *t;
	struct worker w[FIBERS];
	struct wait_group wait;
	struct replies replies;
	uint64_t seed, moved;
	unsigned done;
	bool cut;
};

static void workers_init(struct crash *c)
{
	uint64_t seed = c->seed;

	for (unsigned i = 0; i < FIBERS; i++) {
		struct fs_id id = {0};
		char name[16];

		snprintf(name, sizeof(name), "fiber%u", i);
		CHECK_OK(t_mkdir(c->t, c->t->root, name, &id));
		model_init(&c->w[i].m, id);
		c->w[i].t = c->t;
		c->w[i].seed = seed + i;
		c->w[i].client = 1000 + i;
		c->w[i].wait = &c->wait;
		c->w[i].cut = &c->cut;
	}
}

/* Work until the power is gone. */
static void round_work(struct crash *c, unsigned round, struct loss *loss)
{
	unsigned keep = test_below(&c->seed, 3) * 500;
	struct files_test *t = c->t;
	bool lost = loss->n > 0, wait = test_below(&c->seed, 2);
	struct fs_status status;

	c->cut = false;
	files_test_close(t);
	for (unsigned i = 0; i < t->count; i++)
		fault_volatile_cache(t->path[i], true);
	CHECK_OK(files_test_open(t));
	CHECK_OK(members_return(t, wait));
	/* whole again, with equal copies of everything */
	if (lost && wait)
		CHECK_IS(t_check(t), 0);
	loss_draw(t, loss, &c->seed);
	fault_write_limit(1 + test_below(&c->seed, round % 3 == 0 ? 3000 : 400));
	wait_group_init(&c->wait);
	for (unsigned i = 0; i < FIBERS; i++) {
		c->w[i].done = 0;
		wait_group_add(&c->wait, 1);
		CHECK_OK(fiber_spawn(worker_fiber, &c->w[i]));
	}
	wait_group_wait(&c->wait);
	fs_status(t->fs, &status);
	c->moved += status.cleaner_moved_blocks;
	for (unsigned i = 0; i < t->count; i++)
		fault_power_cut(t->path[i], test_random(&c->seed), keep);
	files_test_close(t);
	fault_reset();
}

/* What is left. */
static void round_look(struct crash *c, unsigned round, const struct loss *loss)
{
	if (loss_move(c->t, loss, true) || files_test_open(c->t) < 0)
		CHECK_FAILED("round %u: no mount", round);
	CHECK(!test_failure[0]);
	c->replies.n = 0;
	fs_replies_foreach(c->t->fs, reply_add, &c->replies);
	for (unsigned i = 0; i < FIBERS; i++) {
		const char *wrong = worker_settle(&c->w[i], &c->replies);

		c->done += c->w[i].done;
		if (wrong)
			CHECK_FAILED("round %u fiber %u, %u members lost: %s", round, i, loss->n, wrong);
	}
	CHECK(!test_failure[0]);
	CHECK_IS(t_check(c->t), 0);
	CHECK_OK(loss_move(c->t, loss, false));
}

static void body_crash(void *arg)
{
	struct crash *c = calloc(1, sizeof(*c));
	unsigned rounds = getenv("FURROW_ROUNDS") ? (unsigned)atoi(getenv("FURROW_ROUNDS")) : 15;
	struct loss loss = {0};

	c->t = arg;
	c->seed = getenv("FURROW_SEED") ? strtoull(getenv("FURROW_SEED"), NULL, 0) : 20261130;
	printf("seed %llu\n", (unsigned long long)c->seed);
	c->t->options.cache_bytes = 1u << 20;
	space_low_extra = UINT64_MAX;
	stream_least = 2;
	CHECK_OK(files_test_create(c->t, 6));
	workers_init(c);
	for (unsigned round = 0; round < rounds && !test_failure[0]; round++) {
		round_work(c, round, &loss);
		CHECK(!test_failure[0]);
		round_look(c, round, &loss);
		if (round % 100 == 99)
			fprintf(stderr, "%u cuts\n", round + 1);
	}
	CHECK(!test_failure[0]);
	printf("%u cuts, %u of them with members lost; operations %u, sent again %u, of those done before the cut "
	       "without "
	       "an answer %u; blocks moved %llu\n",
		rounds, losses, c->done, sent_again, done_before, (unsigned long long)c->moved);
	CHECK(c->done > rounds * 10 && c->moved > 0 && losses > rounds / 10 && sent_again > rounds);
	CHECK_OK(members_return(c->t, true));
	CHECK_IS(t_check(c->t), 0);
	for (unsigned i = 0; i < FIBERS; i++)
		model_free(&c->w[i].m);
	free(c);
	files_test_close(arg);
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
