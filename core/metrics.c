/*
 * Metrics: counters and histograms with a slot for each reactor, gauges that are read when asked for.
 *
 * A reactor adds to its own slot with an ordinary load and store; all other threads share the last slot and add to
 * it atomically. Reading sums the slots and may be a moment behind. The three lists of what is registered are under
 * one mutex, which no hot path takes. metrics_write() prints each family once with all of its label sets, as the
 * text format demands; histograms are exported at powers of four (finer ones would cost a scraper more than they
 * tell), in seconds.
 */
#include "core/core_internal.h"

#include <string.h>

#define SHARED_SLOT (METRIC_SLOTS - 1)

_Thread_local unsigned metric_slot = SHARED_SLOT;

static struct {
	pthread_mutex_t lock;
	struct list counters, gauges, histograms;
} metrics = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.counters = LIST_INIT(metrics.counters),
	.gauges = LIST_INIT(metrics.gauges),
	.histograms = LIST_INIT(metrics.histograms),
};

static bool list_has(const struct list *l, const struct list_node *node)
{
	list_foreach (n, l)
		if (n == node)
			return true;
	return false;
}

static void metric_insert(struct list *l, struct list_node *node)
{
	pthread_mutex_lock(&metrics.lock);
	if (!list_has(l, node))
		list_push_back(l, node);
	pthread_mutex_unlock(&metrics.lock);
}

static void metric_remove(struct list *l, struct list_node *node)
{
	pthread_mutex_lock(&metrics.lock);
	if (list_has(l, node))
		list_remove(node);
	pthread_mutex_unlock(&metrics.lock);
}

static inline void slot_add(_Atomic uint64_t *slot, uint64_t value)
{
	if (__builtin_expect(metric_slot == SHARED_SLOT, 0))
		atomic_fetch_add_explicit(slot, value, memory_order_relaxed);
	else
		atomic_store_explicit(
			slot, atomic_load_explicit(slot, memory_order_relaxed) + value, memory_order_relaxed);
}

/* ------------------------------------------------------------------------------------------------
 * Counters and gauges
 */

void counter_register(struct counter *counter, const char *name, const char *labels, const char *help)
{
	counter->name = name;
	counter->labels = labels;
	counter->help = help;
	metric_insert(&metrics.counters, &counter->node);
}

void counter_remove(struct counter *counter)
{
	metric_remove(&metrics.counters, &counter->node);
}

void counter_add(struct counter *counter, uint64_t value)
{
	slot_add(&counter->slot[metric_slot].value, value);
}

uint64_t counter_read(const struct counter *counter)
{
	uint64_t sum = 0;
	if (counter->read)
		return counter->read(counter->arg);
	for (unsigned i = 0; i < METRIC_SLOTS; i++)
		sum += atomic_load_explicit(&counter->slot[i].value, memory_order_relaxed);
	return sum;
}

void gauge_register(struct gauge *gauge)
{
	metric_insert(&metrics.gauges, &gauge->node);
}

void gauge_remove(struct gauge *gauge)
{
	metric_remove(&metrics.gauges, &gauge->node);
}

/* ------------------------------------------------------------------------------------------------
 * Histograms
 */

int histogram_register(struct histogram *histogram, const char *name, const char *labels, const char *help)
{
	histogram->name = name;
	histogram->labels = labels;
	histogram->help = help;
	if (!histogram->slot)
		histogram->slot = calloc(METRIC_SLOTS, sizeof(*histogram->slot));
	if (!histogram->slot)
		return -ENOMEM;
	metric_insert(&metrics.histograms, &histogram->node);
	return 0;
}

void histogram_remove(struct histogram *histogram)
{
	metric_remove(&metrics.histograms, &histogram->node);
	free(histogram->slot);
	histogram->slot = NULL;
}

/* Values below 8 have a bucket each, then each doubling has 8. */
unsigned histogram_bucket(uint64_t ns)
{
	if (ns < 8)
		return (unsigned)ns;
	unsigned shift = 60u - (unsigned)__builtin_clzll(ns); /* to where 8 to 15 are left */
	unsigned b = shift * 8 + (unsigned)(ns >> shift);
	return b < HISTOGRAM_BUCKETS ? b : HISTOGRAM_BUCKETS - 1;
}

/* The first value that is above bucket B. */
static uint64_t bucket_end(unsigned b)
{
	b++;
	if (b < 8)
		return b;
	return (8ull + b % 8) << (b / 8 - 1);
}

void histogram_record(struct histogram *histogram, uint64_t ns)
{
	if (!histogram->slot)
		return;
	struct histogram_slot *s = &histogram->slot[metric_slot];
	slot_add(&s->sum, ns);
	slot_add(&s->bucket[histogram_bucket(ns)], 1);
	uint64_t max = atomic_load_explicit(&s->max, memory_order_relaxed);
	while (__builtin_expect(ns > max, 0) &&
		!atomic_compare_exchange_weak_explicit(&s->max, &max, ns, memory_order_relaxed, memory_order_relaxed))
		;
}

static uint64_t bucket_read(const struct histogram *h, unsigned b)
{
	uint64_t sum = 0;
	for (unsigned i = 0; i < METRIC_SLOTS; i++)
		sum += atomic_load_explicit(&h->slot[i].bucket[b], memory_order_relaxed);
	return sum;
}

uint64_t histogram_quantile(const struct histogram *histogram, double q)
{
	uint64_t count = histogram_count(histogram), max = 0, seen = 0;
	if (!count)
		return 0;
	for (unsigned i = 0; i < METRIC_SLOTS; i++) {
		uint64_t m = atomic_load_explicit(&histogram->slot[i].max, memory_order_relaxed);
		max = m > max ? m : max;
	}
	uint64_t rank = (uint64_t)(q * (double)count);
	if (rank >= count)
		rank = count - 1;
	for (unsigned b = 0; b < HISTOGRAM_BUCKETS; b++) {
		seen += bucket_read(histogram, b);
		if (seen > rank) {
			uint64_t value = bucket_end(b) - 1;
			return value < max ? value : max;
		}
	}
	return max;
}

/* ------------------------------------------------------------------------------------------------
 * Export
 */

static void sample_write(FILE *out, const char *name, const char *labels)
{
	if (labels && *labels)
		fprintf(out, "%s{%s} ", name, labels);
	else
		fprintf(out, "%s ", name);
}

static void histogram_write(FILE *out, const void *metric)
{
	const struct histogram *h = metric;
	const char *labels = h->labels ? h->labels : "", *comma = *labels ? "," : "";
	uint64_t below = 0, sum = 0;
	unsigned b = 0;

	if (h->gather)
		h->gather(h->arg, &h->slot[SHARED_SLOT]);
	/* 1 us to 17 s */
	for (unsigned e = 10; e <= 34; e += 2) {
		for (; b < HISTOGRAM_BUCKETS && bucket_end(b) <= 1ull << e; b++)
			below += bucket_read(h, b);
		fprintf(out, "%s_bucket{%s%sle=\"%.9g\"} %llu\n", h->name, labels, comma, (double)(1ull << e) / 1e9,
			(unsigned long long)below);
	}
	for (; b < HISTOGRAM_BUCKETS; b++)
		below += bucket_read(h, b);
	for (unsigned i = 0; i < METRIC_SLOTS; i++)
		sum += atomic_load_explicit(&h->slot[i].sum, memory_order_relaxed);
	fprintf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", h->name, labels, comma, (unsigned long long)below);
	const char *open = *labels ? "{" : "", *close = *labels ? "}" : "";
	fprintf(out, "%s_sum%s%s%s %.9f\n", h->name, open, labels, close, (double)sum / 1e9);
	fprintf(out, "%s_count%s%s%s %llu\n", h->name, open, labels, close, (unsigned long long)below);
}

/* What the three kinds have in common: they start with the same fields. */
struct metric_head {
	const char *name, *labels, *help;
};

struct metric_kind {
	struct list *list;
	size_t node; /* offset in the struct */
	const char *type;
	void (*write)(FILE *out, const void *metric);
};

#define HEAD_ASSERT(type)                                                                                              \
	_Static_assert(offsetof(type, name) == offsetof(struct metric_head, name) &&                                   \
			       offsetof(type, labels) == offsetof(struct metric_head, labels) &&                       \
			       offsetof(type, help) == offsetof(struct metric_head, help),                             \
		"a metric starts as metric_head")
HEAD_ASSERT(struct counter);
HEAD_ASSERT(struct gauge);
HEAD_ASSERT(struct histogram);

static void counter_write(FILE *out, const void *metric)
{
	const struct counter *c = metric;
	sample_write(out, c->name, c->labels);
	fprintf(out, "%llu\n", (unsigned long long)counter_read(c));
}

static void gauge_write(FILE *out, const void *metric)
{
	const struct gauge *g = metric;
	sample_write(out, g->name, g->labels);
	fprintf(out, "%.15g\n", g->read(g->arg));
}

static const struct metric_head *node_metric(const struct metric_kind *kind, const struct list_node *node)
{
	return (const struct metric_head *)(const void *)((const char *)node - kind->node);
}

/* The members of a family stand together, where the first of them is in the list. */
static void kind_write(FILE *out, const struct metric_kind *kind)
{
	list_foreach (n, kind->list) {
		const struct metric_head *m = node_metric(kind, n);
		const struct list_node *first = kind->list->head.next;
		while (strcmp(node_metric(kind, first)->name, m->name) != 0)
			first = first->next;
		if (first != n)
			continue;
		fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", m->name, m->help ? m->help : m->name, m->name, kind->type);
		for (const struct list_node *k = n; k != &kind->list->head; k = k->next)
			if (strcmp(node_metric(kind, k)->name, m->name) == 0)
				kind->write(out, node_metric(kind, k));
	}
}

void metrics_write(FILE *out)
{
	static const struct metric_kind kinds[] = {
		{&metrics.counters, offsetof(struct counter, node), "counter", counter_write},
		{&metrics.gauges, offsetof(struct gauge, node), "gauge", gauge_write},
		{&metrics.histograms, offsetof(struct histogram, node), "histogram", histogram_write},
	};
	pthread_mutex_lock(&metrics.lock);
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		kind_write(out, &kinds[i]);
	pthread_mutex_unlock(&metrics.lock);
}

uint64_t histogram_count(const struct histogram *histogram)
{
	uint64_t count = 0;

	for (unsigned b = 0; histogram->slot && b < HISTOGRAM_BUCKETS; b++)
		count += bucket_read(histogram, b);
	return count;
}

void histograms_foreach(const char *name, void (*fn)(void *arg, const struct histogram *histogram), void *arg)
{
	pthread_mutex_lock(&metrics.lock);
	list_foreach (n, &metrics.histograms) {
		const struct histogram *h = container_of(n, struct histogram, node);
		if (strcmp(h->name, name) == 0)
			fn(arg, h);
	}
	pthread_mutex_unlock(&metrics.lock);
}

/* ------------------------------------------------------------------------------------------------
 * What core itself counts
 */

struct counter metric_copied_bytes, metric_sleeps, metric_rounds, metric_fibers_started, metric_io_started,
	metric_submits, metric_wakes, metric_log_dropped, metric_buf_waits;

static double arena_free_read(void *arg)
{
	(void)arg;
	return (double)arena_free_bytes();
}

static double arena_total_read(void *arg)
{
	(void)arg;
	return (double)arena_total_bytes();
}

static struct gauge gauge_free = {
	.name = "furrow_arena_free_bytes", .help = "Payload memory that is not in use.", .read = arena_free_read};
static struct gauge gauge_total = {
	.name = "furrow_arena_bytes", .help = "Payload memory in all.", .read = arena_total_read};

void core_metrics_init(void)
{
	static const struct {
		struct counter *counter;
		const char *name, *help;
	} own[] = {
		{&metric_copied_bytes, "furrow_copied_bytes_total", "Payload bytes copied in memory."},
		{&metric_rounds, "furrow_reactor_rounds_total", "Rounds of the reactors' loops."},
		{&metric_sleeps, "furrow_reactor_sleeps_total", "Times that a reactor went to sleep."},
		{&metric_wakes, "furrow_reactor_wakes_total", "Times that a sleeping reactor was woken by a message."},
		{&metric_fibers_started, "furrow_fibers_started_total", "Fibers started."},
		{&metric_io_started, "furrow_io_started_total", "Operations given to io_uring."},
		{&metric_submits, "furrow_io_submits_total", "System calls into io_uring."},
		{&metric_buf_waits, "furrow_arena_waits_total", "Times that a fiber waited for payload memory."},
		{&metric_log_dropped, "furrow_log_dropped_total", "Log lines that standard error did not take."},
	};
	for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		counter_register(own[i].counter, own[i].name, NULL, own[i].help);
	gauge_register(&gauge_free);
	gauge_register(&gauge_total);
}
