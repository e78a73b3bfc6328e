/*
 * Random operations beside a simple model: the model knows for each row and each block of the log which
 * writes it may show. Drives have volatile caches and lose power; members fail and go stale. Seeds are fixed and
 * printed.
 *
 * After a power cut, a row written but not made durable may hold anything; it is unknown until it is
 * written again. All others must be what was written last.
 */
#include "tests/raid/raid_test.h"

#define STRIPES 6u
#define ROWS_MAX 16u
#define LOG_BLOCKS 80u

struct model {
	struct raid_test t;
	struct array *array;
	struct volume *v;
	struct volume_geometry g;
	uint64_t seed;
	uint64_t row[STRIPES][ROWS_MAX]; /* seed of the content; 0: unknown */
	bool dirty[STRIPES][ROWS_MAX];
	uint64_t log[LOG_BLOCKS];
	unsigned lost;
	unsigned ops;
};

static void block_fill(uint8_t *to, uint64_t seed, unsigned pos)
{
	test_fill(to, BLOCK_BYTES, seed * 131 + pos + 1);
}

static bool block_is(const uint8_t *at, uint64_t seed, unsigned pos)
{
	static uint8_t want[2][BLOCK_BYTES];
	uint8_t *w = want[reactor_index(reactor_self()) & 1];
	block_fill(w, seed, pos);
	return memcmp(at, w, BLOCK_BYTES) == 0;
}

static bool model_open(struct model *m, bool make)
{
	struct error err = {0};
	if (raid_test_open(&m->t, &m->array, &err) || (make && volume_create(m->array, "v", 0, &err)) ||
		volume_open(m->array, "v", &m->v, &err)) {
		if (!test_failure[0])
			snprintf(test_failure, sizeof(test_failure), "open: %s (op %u)", err.text, m->ops);
		return false;
	}
	m->g = *volume_geometry(m->v);
	return true;
}

static bool model_write(struct model *m)
{
	uint64_t s = test_random(&m->seed) % STRIPES;
	uint32_t row = (uint32_t)(test_random(&m->seed) % m->g.strip_blocks);
	uint32_t rows = (uint32_t)(test_random(&m->seed) % (m->g.strip_blocks - row)) + 1;
	if (test_random(&m->seed) % 4 == 0) {
		row = 0;
		rows = m->g.strip_blocks;
	}
	uint64_t content = test_random(&m->seed) | 1;
	bool durable = test_random(&m->seed) % 2;
	/* each strip in one buffer, cut into slices at random block bounds */
	struct buf *bufs[8];
	struct slice v[8 * ROWS_MAX];
	unsigned n = 0;
	for (unsigned d = 0; d < m->g.k; d++) {
		bufs[d] = buf_alloc(rows * BLOCK_BYTES);
		for (uint32_t i = 0; i < rows; i++)
			block_fill(bufs[d]->data + (size_t)i * BLOCK_BYTES, content + i, d);
		for (uint32_t at = 0; at < rows;) {
			uint32_t len = (uint32_t)(test_random(&m->seed) % (rows - at)) + 1;
			v[n++] = (struct slice){.buf = bufs[d], .off = at * BLOCK_BYTES, .len = len * BLOCK_BYTES};
			at += len;
		}
	}
	int r = volume_write_rows(m->v, s, row, rows, v, n, durable ? VOLUME_DURABLE : 0);
	for (unsigned d = 0; d < m->g.k; d++)
		buf_put(bufs[d]);
	CHECK_R(r == 0, false);
	for (uint32_t i = 0; i < rows; i++) {
		m->row[s][row + i] = content + i;
		m->dirty[s][row + i] = !durable;
	}
	return true;
}

static bool model_read(struct model *m)
{
	uint64_t stripe_blocks = volume_stripe_blocks(&m->g), all = stripe_blocks * STRIPES;
	uint64_t block = test_random(&m->seed) % all;
	uint64_t n = test_random(&m->seed) % 40 + 1;
	n = n < all - block ? n : all - block;
	struct payload p;
	payload_make(&p, n * BLOCK_BYTES, test_random(&m->seed) % 2 ? 65536 : 8192, 0);
	int r = volume_read(m->v, block, p.v, p.n);
	CHECK_R(r == 0, false);
	uint8_t *flat = malloc(p.bytes);
	slices_copy_out(p.v, p.n, 0, flat, p.bytes);
	bool same = true;
	for (uint64_t i = 0; i < n && same; i++) {
		uint64_t in = (block + i) % stripe_blocks, s = (block + i) / stripe_blocks;
		uint64_t content = m->row[s][in % m->g.strip_blocks];
		same = !content || block_is(flat + i * BLOCK_BYTES, content, (unsigned)(in / m->g.strip_blocks));
	}
	free(flat);
	payload_free(&p);
	CHECK_R(same, false);
	/* the same block in all ways that there are */
	uint64_t s = block / stripe_blocks, in = block % stripe_blocks, content = m->row[s][in % m->g.strip_blocks];
	payload_make(&p, BLOCK_BYTES, BLOCK_BYTES, 0);
	unsigned ways = 0;
	for (unsigned attempt = 0; content && attempt < 20; attempt++) {
		r = volume_reread(m->v, block, attempt, p.v);
		if (r == -ENOENT)
			break;
		CHECK_R(r == 0 || r == -EIO, false);
		CHECK_R(r || block_is(p.v[0].buf->data, content, (unsigned)(in / m->g.strip_blocks)), false);
		ways += r == 0;
	}
	payload_free(&p);
	CHECK_R(!content || ways >= 1, false);
	return true;
}

static bool model_log(struct model *m)
{
	uint64_t block = test_random(&m->seed) % LOG_BLOCKS, n = test_random(&m->seed) % 20 + 1;
	n = n < LOG_BLOCKS - block ? n : LOG_BLOCKS - block;
	struct payload p;
	payload_make(&p, n * BLOCK_BYTES, test_random(&m->seed) % 2 ? 65536 : BLOCK_BYTES, 0);
	uint8_t *flat = malloc(p.bytes);
	if (test_random(&m->seed) % 2) {
		for (uint64_t i = 0; i < n; i++) {
			m->log[block + i] = test_random(&m->seed) | 1;
			block_fill(flat + i * BLOCK_BYTES, m->log[block + i], 0);
		}
		slices_copy_in(p.v, p.n, 0, flat, p.bytes);
		CHECK_R(volume_log_write(m->v, block, p.v, p.n) == 0, false);
	}
	unsigned copies = 0;
	for (unsigned copy = 0; copy < m->g.log_copies; copy++) {
		int r = volume_log_read(m->v, block, copy, p.v, p.n);
		CHECK_R(r == 0 || (r == -EIO && m->lost), false);
		if (r)
			continue;
		copies++;
		slices_copy_out(p.v, p.n, 0, flat, p.bytes);
		for (uint64_t i = 0; i < n; i++)
			CHECK_R(!m->log[block + i] || block_is(flat + i * BLOCK_BYTES, m->log[block + i], 0), false);
	}
	/* of one block at least one copy is left always */
	CHECK_R(n > 1 || copies >= 1, false);
	CHECK_R(m->lost || copies == m->g.log_copies, false);
	free(flat);
	payload_free(&p);
	return true;
}

static bool model_step(struct model *m)
{
	unsigned slot = (unsigned)(test_random(&m->seed) % m->t.count);
	struct error err = {0};
	uint64_t dice = test_random(&m->seed) % 100;
	m->ops++;
	if (dice < 35)
		return model_write(m);
	if (dice < 65)
		return model_read(m);
	if (dice < 85)
		return model_log(m);
	if (dice < 90) {
		CHECK_R(volume_flush(m->v) == 0, false);
		memset(m->dirty, 0, sizeof(m->dirty));
		return true;
	}
	if (dice < 92) {
		/* a read error on the way */
		if (m->lost == m->g.m)
			return true;
		fault_inject(m->t.path[slot], FAULT_READ_ERROR, 1 + test_random(&m->seed) % 3, 0);
		bool good = model_read(m);
		fault_inject(m->t.path[slot], FAULT_NONE, 0, 0);
		return good;
	}
	if (dice < 94 && m->lost < m->g.m) {
		/* by command, or by a fault that comes later */
		if (dice == 92) {
			CHECK_R(array_fail(m->array, slot, &err) == 0, false);
		} else {
			fault_inject(m->t.path[slot], FAULT_WRITE_ERROR, 1, 0);
			if (!model_write(m))
				return false;
			fault_inject(m->t.path[slot], FAULT_NONE, 0, 0);
		}
		struct array_status *s = calloc(1, sizeof(*s));
		array_status(m->array, s);
		m->lost = 0;
		for (unsigned i = 0; i < m->t.count; i++)
			m->lost += s->member[i].state != MEMBER_ACTIVE;
		free(s);
		return true;
	}
	if (dice < 97) {
		volume_close(m->v);
		array_close(m->array);
		memset(m->dirty, 0, sizeof(m->dirty));
		return model_open(m, false);
	}
	for (unsigned i = 0; i < m->t.count; i++)
		fault_power_cut(m->t.path[i], test_random(&m->seed), (unsigned)(test_random(&m->seed) % 1001));
	volume_close(m->v);
	array_close(m->array);
	for (unsigned s = 0; s < STRIPES; s++)
		for (unsigned r = 0; r < ROWS_MAX; r++)
			if (m->dirty[s][r]) {
				m->row[s][r] = 0;
				m->dirty[s][r] = false;
			}
	return model_open(m, false);
}

struct shape {
	unsigned level, drives;
	uint64_t seed;
};

static void model_body(void *arg)
{
	const struct shape *shape = arg;
	struct error err = {0};
	struct model *m = calloc(1, sizeof(*m));
	fault_reset();
	m->seed = shape->seed;
	raid_test_drives(&m->t, shape->drives, TEST_DRIVE_BYTES, "fault:");
	CHECK_OK(raid_test_create(&m->t, shape->level, 65536, &err), err);
	for (unsigned i = 0; i < shape->drives; i++)
		fault_volatile_cache(m->t.path[i], true);
	if (model_open(m, true))
		for (unsigned i = 0; i < 250; i++)
			if (!model_step(m)) {
				size_t at = strlen(test_failure);
				snprintf(test_failure + at, sizeof(test_failure) - at,
					" (level %u, %u drives, seed %llu, op %u)", shape->level, shape->drives,
					(unsigned long long)shape->seed, m->ops);
				return;
			}
	if (m->v)
		volume_close(m->v);
	if (m->array)
		array_close(m->array);
	raid_test_remove(&m->t);
	fault_reset();
	free(m);
}

static void test_model(void **state)
{
	(void)state;
	uint64_t base = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 20;
	print_message("seed %llu\n", (unsigned long long)base);
	for (unsigned i = 0; i < 4; i++) {
		struct shape shapes[] = {{6, 5, base + i}, {6, 4, base + 100 + i}, {1, 2, base + 200 + i},
			{1, 3, base + 300 + i}, {6, 8, base + 400 + i}};
		for (unsigned j = 0; j < 5; j++)
			raid_test_run(model_body, &shapes[j]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_model)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
