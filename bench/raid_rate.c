/*
 * What the array costs beside the arithmetic: whole stripes onto null drives against bare isa-l on the same
 * buffers, in the same process, turn about in short slices, so that a busy machine slows both alike; what degraded
 * reads cost in reads of drives; and how many locked instructions a whole stripe takes, counted one by one under
 * ptrace. Prints a line of JSON for each figure: name, value, unit, peer, ratio, target.
 *
 *   raid_rate [--rounds N] [--only PART]     PART: stripes, reads, reactors, locked
 *
 * "hot" writes the same stripe again and again; "cold" goes round more memory than the caches hold.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <isa-l/raid.h>

#include "bench/figure.h"
#include "bench/null_array.h"
#include "bench/steps.h"

#define STRIP 65536u
#define COLD_BYTES (768ull << 20)
#define SLICE_NS (300 * 1000ull) /* short: what disturbs one side disturbs the other, or one pair only */

static unsigned rounds = 1000;
static bool failed;

static void give_up(const char *what, const struct error *err)
{
	fprintf(stderr, "raid_rate: %s: %s\n", what, err->text);
	failed = true;
}

struct rig {
	unsigned level, drives;
	struct array *array;
	struct volume *v;
	const struct volume_geometry *g;
};

static bool rig_make(struct rig *r, unsigned level, unsigned drives)
{
	struct error err = {0};
	r->level = level;
	r->drives = drives;
	if (null_array_make(level, drives, STRIP, 0, &r->array, &r->v, &err)) {
		give_up("array", &err);
		return false;
	}
	r->g = volume_geometry(r->v);
	return true;
}

static void rig_end(struct rig *r)
{
	volume_close(r->v);
	array_close(r->array);
}

static void rig_reads(struct rig *r, uint64_t *commands, uint64_t *bytes)
{
	struct array_status *s = calloc(1, sizeof(*s));
	array_status(r->array, s);
	*commands = *bytes = 0;
	for (unsigned i = 0; i < r->drives; i++) {
		*commands += s->member[i].reads;
		*bytes += s->member[i].read_bytes;
	}
	free(s);
}

/* ---- whole stripes ---- */

struct load {
	unsigned k, m, sets; /* stripes of data to go round */
	struct slice *data;  /* sets x k strips */
	struct buf *parity[2];
	struct rig *rig;
	uint64_t stripe, stripe_step;
	unsigned at;
	int error;
};

static void load_make(struct load *l, struct rig *rig, uint64_t bytes)
{
	memset(l, 0, sizeof(*l));
	l->rig = rig;
	l->k = rig->g->k;
	l->m = rig->g->m;
	l->stripe_step = 1;
	l->sets = bytes ? (unsigned)(bytes / ((uint64_t)l->k * STRIP)) : 1;
	l->data = calloc((size_t)l->sets * l->k, sizeof(*l->data));
	for (unsigned i = 0; i < l->sets * l->k; i++) {
		struct buf *buf = buf_alloc(STRIP);
		memset(buf->data, (int)(i * 37 + 1), STRIP);
		l->data[i] = (struct slice){.buf = buf, .off = 0, .len = STRIP};
	}
	for (unsigned j = 0; j < l->m; j++)
		l->parity[j] = buf_alloc(STRIP);
}

static void load_end(struct load *l)
{
	slices_put(l->data, l->sets * l->k);
	for (unsigned j = 0; j < l->m; j++)
		buf_put(l->parity[j]);
	free(l->data);
}

static void load_bare(struct load *l)
{
	void *v[CODE_WIDTH_MAX];
	for (unsigned i = 0; i < l->k; i++)
		v[i] = slice_data(&l->data[(size_t)l->at * l->k + i]);
	for (unsigned j = 0; j < l->m; j++)
		v[l->k + j] = l->parity[j]->data;
	if (l->m == 1)
		xor_gen((int)l->k + 1, (int)STRIP, v);
	else
		pq_gen((int)l->k + 2, (int)STRIP, v);
	l->at = l->at + 1 < l->sets ? l->at + 1 : 0;
}

static void load_array(struct load *l)
{
	int r = volume_write_rows(
		l->rig->v, l->stripe, 0, l->rig->g->strip_blocks, &l->data[(size_t)l->at * l->k], l->k, 0);
	if (r)
		l->error = r;
	l->stripe += l->stripe_step;
	if (l->stripe >= l->rig->g->stripes)
		l->stripe %= l->stripe_step;
	l->at = l->at + 1 < l->sets ? l->at + 1 : 0;
}

/* How often somebody else took this core away from us. Waiting of our own is not in it. */
static long interruptions(void)
{
	struct rusage u;
	getrusage(RUSAGE_THREAD, &u);
	return u.ru_nivcsw;
}

/* Bytes of data per ns, for NS or a little more; negative when the core was taken away meanwhile. */
static double load_run(struct load *l, void (*one)(struct load *l), uint64_t ns)
{
	long before = interruptions();
	uint64_t begin = now_ns(), end, n = 0;
	do {
		for (unsigned i = 0; i < 8; i++)
			one(l);
		n += 8;
		end = now_ns();
	} while (end - begin < ns);
	double rate = (double)(n * l->k * STRIP) / (double)(end - begin);
	return interruptions() == before ? rate : -rate;
}

/*
 * The medians of COUNT pairs and of their ratios. Pairs that somebody else disturbed are left out while enough others
 * are there: the machine may be busy with other things.
 */
static void pairs_judge(
	const double *ours, const double *bare, unsigned count, double *value, double *peer, double *ratio)
{
	double *v = calloc(count, 3 * sizeof(double)), *o = v, *b = v + count, *r = v + 2 * count;
	unsigned n = 0;
	for (unsigned pass = 0; pass < 2 && n < count / 8 + 1; pass++) {
		n = 0;
		for (unsigned i = 0; i < count; i++) {
			if (!pass && (ours[i] < 0 || bare[i] < 0))
				continue;
			o[n] = fabs(ours[i]);
			b[n] = fabs(bare[i]);
			r[n] = o[n] / b[n];
			n++;
		}
	}
	*value = median(o, n);
	*peer = median(b, n);
	*ratio = median(r, n);
	free(v);
}

static void stripes_measure(unsigned level, unsigned drives, bool cold)
{
	struct rig rig;
	struct load load;
	double *ours = calloc(rounds, sizeof(double)), *bare = calloc(rounds, sizeof(double)), value, peer, ratio;
	if (!rig_make(&rig, level, drives))
		return;
	load_make(&load, &rig, cold ? COLD_BYTES : 0);
	load_run(&load, load_array, SLICE_NS);
	load_run(&load, load_bare, SLICE_NS);
	for (unsigned i = 0; i < rounds; i++) {
		bare[i] = load_run(&load, load_bare, SLICE_NS);
		ours[i] = load_run(&load, load_array, SLICE_NS);
	}
	char name[64];
	snprintf(name, sizeof(name), "raid.stripe_%u+%u.%s", load.k, load.m, cold ? "cold" : "hot");
	if (load.error)
		fprintf(stderr, "raid_rate: %s: %s\n", name, strerror(-load.error));
	failed = failed || load.error;
	pairs_judge(ours, bare, rounds, &value, &peer, &ratio);
	figure(name, value, "GB/s", peer, ratio, 0.9, true);
	load_end(&load);
	rig_end(&rig);
	free(ours);
	free(bare);
}

/* ---- degraded reads ---- */

static void read_one(struct rig *r, uint64_t block, uint32_t blocks)
{
	struct slice v[64];
	unsigned n = 0;
	for (uint32_t at = 0; at < blocks; at += v[n - 1].len / BLOCK_BYTES) {
		uint32_t left = blocks - at, step = left < STRIP / BLOCK_BYTES ? left : STRIP / BLOCK_BYTES;
		v[n++] = (struct slice){.buf = buf_alloc(step * BLOCK_BYTES), .off = 0, .len = step * BLOCK_BYTES};
	}
	int e = volume_read(r->v, block, v, n);
	if (e) {
		fprintf(stderr, "raid_rate: read: %s\n", strerror(-e));
		failed = true;
	}
	slices_put(v, n);
}

/* A stream of whole stripes, about 2 MiB at a time, with LOST members gone: bytes read per byte. */
static double stream_cost(struct rig *rig, unsigned lost)
{
	struct error err = {0};
	uint64_t commands, bytes, bytes0, stripe_blocks = volume_stripe_blocks(rig->g);
	uint64_t piece = stripe_blocks > 512 ? stripe_blocks : 512 / stripe_blocks * stripe_blocks;
	const unsigned pieces = 256;
	for (unsigned i = 0; i < lost; i++)
		if (array_fail(rig->array, 3 + i * 3, &err))
			give_up("fail", &err);
	rig_reads(rig, &commands, &bytes0);
	for (unsigned i = 0; i < pieces; i++)
		read_one(rig, (uint64_t)i * piece, (uint32_t)piece);
	rig_reads(rig, &commands, &bytes);
	return (double)(bytes - bytes0) / ((double)pieces * (double)piece * BLOCK_BYTES);
}

static void reads_measure(void)
{
	struct rig rig;
	uint64_t commands, bytes, commands0, bytes0, seed = 1;
	double worst = 0;
	static const struct {
		unsigned level, drives, lost;
	} shapes[] = {{6, 9, 1}, {6, 10, 2}, {5, 25, 1}, {6, 48, 2}, {5, 9, 1}};
	for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		if (i)
			rig_end(&rig);
		if (!rig_make(&rig, shapes[i].level, shapes[i].drives))
			return;
		double cost = stream_cost(&rig, shapes[i].lost);
		worst = cost > worst ? cost : worst;
	}
	figure("raid.degraded_read.bytes", worst, "bytes/byte", 0, 0, 1.02, false);
	const unsigned many = 20000;
	rig_reads(&rig, &commands0, &bytes0);
	for (unsigned i = 0; i < many; i++) {
		seed += 0x9e3779b97f4a7c15ull;
		read_one(&rig, hash_u64(seed) % (rig.g->stripes * volume_stripe_blocks(rig.g)), 1);
	}
	rig_reads(&rig, &commands, &bytes);
	figure("raid.degraded_4k.reads", (double)(commands - commands0) / many, "reads/read", 0, 0, 1.8, false);
	rig_end(&rig);
}

/* ---- two reactors ---- */

struct worker {
	struct load load;
	_Atomic unsigned *ready;
	unsigned *turns;
	double *bare, *ours;
	unsigned index;
	struct reactor *home;
	struct wait_group *group;
	struct rig *rig;
};

static void worker_done(void *arg)
{
	wait_group_done(arg, 0);
}

/* Both begin each slice together. Spinning is fair here: each has its core for itself. */
static void worker_meet(struct worker *w, unsigned turn)
{
	atomic_fetch_add(w->ready, 1);
	uint64_t since = now_ns();
	while (atomic_load(w->ready) < 2 * (turn + 1) && now_ns() - since < 5 * NSEC_PER_SEC)
		__builtin_ia32_pause();
}

static void worker_fiber(void *arg)
{
	struct worker *w = arg;
	load_make(&w->load, w->rig, 0);
	w->load.stripe = w->index;
	w->load.stripe_step = 2;
	load_run(&w->load, load_array, SLICE_NS);
	for (unsigned i = 0; i < rounds; i++) {
		worker_meet(w, 2 * i);
		w->bare[i] = load_run(&w->load, load_bare, SLICE_NS);
		worker_meet(w, 2 * i + 1);
		w->ours[i] = load_run(&w->load, load_array, SLICE_NS);
	}
	load_end(&w->load);
	reactor_post(w->home, worker_done, w->group);
}

static void reactors_measure(void)
{
	struct rig rig;
	struct worker w[2];
	struct wait_group group;
	_Atomic unsigned ready = 0;
	double *ours = calloc(rounds, sizeof(double)), *bare = calloc(rounds, sizeof(double)), value, peer, ratio;
	if (!rig_make(&rig, 6, 10))
		return;
	wait_group_init(&group);
	wait_group_add(&group, 2);
	for (unsigned i = 0; i < 2; i++) {
		memset(&w[i], 0, sizeof(w[i]));
		w[i].ready = &ready;
		w[i].bare = calloc(rounds, sizeof(double));
		w[i].ours = calloc(rounds, sizeof(double));
		w[i].index = i;
		w[i].home = reactor_self();
		w[i].group = &group;
		w[i].rig = &rig;
		reactor_spawn(reactor_get(i), worker_fiber, &w[i]);
	}
	wait_group_wait(&group);
	for (unsigned i = 0; i < rounds; i++) {
		bool well = w[0].ours[i] > 0 && w[1].ours[i] > 0 && w[0].bare[i] > 0 && w[1].bare[i] > 0;
		ours[i] = (fabs(w[0].ours[i]) + fabs(w[1].ours[i])) * (well ? 1 : -1);
		bare[i] = fabs(w[0].bare[i]) + fabs(w[1].bare[i]);
	}
	pairs_judge(ours, bare, rounds, &value, &peer, &ratio);
	figure("raid.two_reactors", value, "GB/s", peer, ratio, 0.95, true);
	for (unsigned i = 0; i < 2; i++) {
		failed = failed || w[i].load.error;
		free(w[i].bare);
		free(w[i].ours);
	}
	free(ours);
	free(bare);
	rig_end(&rig);
}

/* ---- locked instructions ---- */

static void locked_load(void *arg)
{
	struct rig rig;
	struct load load;
	(void)arg;
	if (!rig_make(&rig, 6, 10))
		_exit(1);
	load_make(&load, &rig, 0);
	for (unsigned i = 0; i < 100; i++)
		load_array(&load);
	steps_ready();
	mark_begin();
	load_array(&load);
	mark_end();
	_exit(load.error != 0);
}

/* Whether the instruction at CODE locks the bus: a LOCK prefix, or XCHG with memory. */
static bool code_locks(const uint8_t *code)
{
	unsigned i = 0;
	for (; i < 12; i++) {
		static const uint8_t prefixes[] = {0x66, 0x67, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65};
		if (code[i] == 0xf0)
			return true;
		if (!memchr(prefixes, code[i], sizeof(prefixes)))
			break;
	}
	if ((code[i] & 0xf0) == 0x40)
		i++;
	return (code[i] == 0x86 || code[i] == 0x87) && (code[i + 1] & 0xc0) != 0xc0;
}

struct locked {
	const struct core_config *config;
	uint64_t count;
};

static void locked_child(void *arg)
{
	struct core_config one = *((struct locked *)arg)->config;
	struct error err = {0};
	one.reactors = 1;
	one.arena_bytes = 64u << 20;
	(void)core_main(&one, locked_load, NULL, &err);
}

static void locked_look(void *arg, uint64_t address, const uint8_t *code)
{
	struct locked *l = arg;
	if (!code_locks(code))
		return;
	l->count++;
	fprintf(stderr, "raid_rate: locked instruction at %#llx\n", (unsigned long long)address);
}

static void locked_measure(const struct core_config *config)
{
	struct locked l = {.config = config};
	int64_t steps = steps_count(locked_child, locked_look, &l);
	failed = failed || steps < 0;
	if (steps < 0)
		return;
	figure("raid.stripe.locked_instructions", (double)l.count, "per stripe of 8+2", 0, 0, 0, false);
	printf("{\"name\": \"raid.stripe.instructions\", \"value\": %lld, \"unit\": \"per stripe of 8+2\"}\n",
		(long long)steps);
}

/* ---- main ---- */

static const char *only;

static bool wanted(const char *part)
{
	return !only || strcmp(only, part) == 0;
}

static void bench_main(void *arg)
{
	(void)arg;
	if (wanted("stripes")) {
		for (unsigned cold = 0; cold < 2; cold++) {
			stripes_measure(5, 9, cold);
			stripes_measure(6, 10, cold);
		}
	}
	if (wanted("reads"))
		reads_measure();
	if (wanted("reactors") && reactor_count() >= 2)
		reactors_measure();
}

int main(int argc, char **argv)
{
	struct core_config config = {.reactors = 2, .arena_bytes = COLD_BYTES + (128u << 20), .pin = true};
	struct error err = {0};
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
			rounds = (unsigned)strtoul(argv[++i], NULL, 10);
		} else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
			only = argv[++i];
		} else {
			fprintf(stderr, "usage: raid_rate [--rounds N] [--only stripes|reads|reactors|locked]\n");
			return 2;
		}
	}
	if (rounds < 1 || rounds > 100000)
		rounds = 1000;
	atomic_store(&log_threshold, LOG_WARNING - 1);
	raid_null_allow(true);
	if (wanted("locked"))
		locked_measure(&config);
	if (!(only && strcmp(only, "locked") == 0) && core_main(&config, bench_main, NULL, &err)) {
		fprintf(stderr, "raid_rate: %s\n", err.text);
		return 1;
	}
	return failed;
}
