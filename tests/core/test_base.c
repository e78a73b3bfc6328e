/* What needs no reactor: errors, checksums, the hash table, metrics, the log, fields of formats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/core.h"
#include "core/core_internal.h"

/* ---- errors */

static void test_error(void **state)
{
	(void)state;
	struct error e;
	assert_int_equal(error_set(NULL, -EIO, "x"), -EIO);
	assert_int_equal(error_prefix(NULL, "x"), 0);
	assert_int_equal(error_set(&e, -ENOENT, "%s is missing", "a"), -ENOENT);
	assert_int_equal(error_prefix(&e, "line %d", 7), -ENOENT);
	assert_string_equal(e.text, "line 7: a is missing");
	assert_int_equal(e.code, -ENOENT);
	/* Too long: cut, never past the end. */
	char longer[2000];
	memset(longer, 'y', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = 0;
	for (size_t n = 0; n < sizeof(longer); n += 37) {
		error_set(&e, -EIO, "%.*s", (int)n, longer);
		for (int i = 0; i < 5; i++)
			error_prefix(&e, "%.*s", (int)(n / 2), longer);
		assert_true(strlen(e.text) < sizeof(e.text));
		error_prefix(&e, "%s", longer);
		assert_int_equal(e.code, -EIO);
	}
}

/* ---- little-endian fields */

static void test_endian(void **state)
{
	(void)state;
	le64 a = le64_put(0x0102030405060708ull);
	assert_int_equal(a.b[0], 8);
	assert_int_equal(a.b[7], 1);
	assert_true(le64_get(a) == 0x0102030405060708ull);
	assert_int_equal(le32_get(le32_put(0xdeadbeef)), 0xdeadbeef);
	assert_int_equal(le16_put(0x1234).b[0], 0x34);
	assert_int_equal(le16_get(le16_put(0x1234)), 0x1234);
}

/* ---- checksums: the value is part of the format, whatever computes it */

static void test_checksum(void **state)
{
	(void)state;
	uint8_t *data = malloc(300000);
	uint64_t x = 1;
	for (unsigned i = 0; i < 300000; i++)
		data[i] = (uint8_t)(x = hash_u64(x + i));
	static const size_t sizes[] = {0, 1, 3, 4, 8, 9, 16, 17, 64, 127, 128, 129, 239, 240, 241, 255, 256, 511, 512,
		1023, 1024, 1025, 4095, 4096, 4097, 65536, 262144};
	unsigned ran = 0;
	for (unsigned v = 0; v < checksum_variant_count; v++) {
		if (!checksum_variants[v].supported()) {
			print_message("skipped: this CPU has no %s\n", checksum_variants[v].name);
			continue;
		}
		ran++;
		for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
			for (unsigned shift = 0; shift < 3; shift++)
				for (unsigned k = 0; k < 3; k++) {
					uint64_t seed = k == 0 ? 0 : hash_u64(k);
					uint64_t want = checksum64_scalar(data + shift, sizes[s], seed);
					assert_true(checksum_variants[v].fn(data + shift, sizes[s], seed) == want);
					assert_true(checksum64(data + shift, sizes[s], seed) == want);
				}
	}
	assert_true(ran >= 2);
	/* Known answers of XXH3: the empty string, and this library's own input frozen. */
	assert_true(checksum64("", 0, 0) == 0x2d06800538d394c2ull);
	assert_int_equal(checksum32("", 0), 0x38d394c2u);
	uint64_t before = checksum64(data, 4096, 0);
	data[4095] ^= 1;
	assert_true(checksum64(data, 4096, 0) != before);
	assert_true(checksum64(data, 4096, 1) != checksum64(data, 4096, 0));
	free(data);
}

/* ---- hash table against an array */

struct entry {
	struct htable_node node;
	uint64_t key;
	bool in;
	unsigned seen;
};

static void table_model(uint64_t seed, bool collide)
{
	enum { KEYS = 600 };
	struct entry *e = calloc(KEYS, sizeof(*e));
	struct htable t;
	size_t count = 0;
	assert_int_equal(htable_init(&t, seed % 2 ? 0 : 100), 0);
	for (unsigned i = 0; i < KEYS; i++)
		e[i].key = i;
	for (unsigned n = 0; n < 6000; n++) {
		seed = hash_u64(seed + n + 1);
		struct entry *x = &e[seed % KEYS];
		uint64_t hash = collide ? x->key % 3 : hash_u64(x->key);
		if (x->in) {
			htable_remove(&t, &x->node);
			count--;
		} else {
			htable_insert(&t, &x->node, hash);
			count++;
		}
		x->in = !x->in;
		assert_int_equal(t.count, count);
		struct entry *y = &e[(seed >> 20) % KEYS], *found = NULL;
		hash = collide ? y->key % 3 : hash_u64(y->key);
		htable_foreach_hash (h, &t, hash)
			if (container_of(h, struct entry, node)->key == y->key)
				found = container_of(h, struct entry, node);
		assert_ptr_equal(found, y->in ? y : NULL);
	}
	struct htable_cursor c = {0};
	struct htable_node *h;
	size_t visited = 0;
	while ((h = htable_next(&t, &c))) {
		struct entry *x = container_of(h, struct entry, node);
		assert_true(x->in && !x->seen);
		x->seen = 1;
		visited++;
		if (visited % 2)
			htable_remove(&t, h); /* allowed: it was returned already */
	}
	assert_int_equal(visited, count);
	htable_remove(&t, &(struct htable_node){.hash = 5}); /* not there: no effect */
	assert_int_equal(t.count, count / 2);
	htable_fini(&t);
	c = (struct htable_cursor){0};
	free(e);
}

static void test_htable(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 6; seed++)
		table_model(seed, seed % 3 == 0);
}

/* ---- metrics */

static struct counter m_reads, m_writes;
static struct histogram m_lat, m_lat2;

static double seven(void *arg)
{
	return *(double *)arg;
}

static void *count_much(void *arg)
{
	for (int i = 0; i < 20000; i++) {
		counter_add(&m_reads, 2);
		histogram_record(&m_lat2, 100);
	}
	return arg;
}

static void count_on_reactor(void *arg)
{
	count_much(arg);
}

static void count_main(void *arg)
{
	pthread_t t[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, count_much, NULL);
	for (unsigned i = 0; i < reactor_count(); i++)
		reactor_call(reactor_get(i), count_on_reactor, arg);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
}

static char *metrics_text(void)
{
	char *text = NULL;
	size_t bytes;
	FILE *f = open_memstream(&text, &bytes);
	metrics_write(f);
	fclose(f);
	return text;
}

static unsigned occurrences(const char *text, const char *what)
{
	unsigned n = 0;
	while ((text = strstr(text, what))) {
		n++;
		text++;
	}
	return n;
}

/* Every line is a comment or NAME[{LABELS}] NUMBER, and the samples of a family stand together under its TYPE. */
static void exposition_check(const char *text)
{
	char family[128] = "", seen[64][128];
	unsigned families = 0;
	for (const char *line = text; *line; line = strchr(line, '\n') + 1) {
		char name[256];
		double value;
		if (sscanf(line, "# TYPE %127s", family) == 1) {
			for (unsigned i = 0; i < families; i++)
				assert_string_not_equal(seen[i], family);
			strcpy(seen[families++], family);
			continue;
		}
		if (*line == '#')
			continue;
		size_t n = strcspn(line, "{ ");
		assert_true(n < sizeof(name) && strncmp(line, family, strlen(family)) == 0);
		const char *p = line + n;
		if (*p == '{')
			p = strchr(p, '}') + 1;
		assert_int_equal(*p, ' ');
		char *end;
		value = strtod(p + 1, &end);
		assert_int_equal(*end, '\n');
		assert_true(value >= 0);
	}
	assert_true(families > 3);
}

static void test_metrics(void **state)
{
	(void)state;
	struct error err;
	static double value = 7.5;
	struct gauge g = {.name = "test_gauge", .help = "A gauge.", .read = seven, .arg = &value};
	counter_register(&m_reads, "test_ops_total", "op=\"read\"", "Operations.");
	gauge_register(&g);
	counter_register(&m_writes, "test_ops_total", "op=\"write\"", "Operations.");
	counter_register(&m_writes, "test_ops_total", "op=\"write\"", "Operations.");
	assert_int_equal(histogram_register(&m_lat, "test_latency_seconds", "op=\"read\"", "Latency."), 0);
	assert_int_equal(histogram_register(&m_lat2, "test_latency_seconds", "op=\"write\"", "Latency."), 0);

	struct core_config config = {.reactors = 3, .arena_bytes = 2 << 20};
	assert_int_equal(core_main(&config, count_main, NULL, &err), 0);
	assert_int_equal(counter_read(&m_reads), 5 * 20000 * 2);
	assert_int_equal(histogram_count(&m_lat2), 100000);
	counter_add(&m_writes, 3);

	assert_int_equal(histogram_quantile(&m_lat, 0.5), 0);
	for (uint64_t i = 1; i <= 100000; i++)
		histogram_record(&m_lat, i * 1000);
	for (unsigned p = 1; p < 100; p++) {
		double want = p * 1e6, got = (double)histogram_quantile(&m_lat, p / 100.0);
		assert_true(fabs(got - want) <= want * 0.126); /* a bucket is an eighth wide */
	}
	assert_int_equal(histogram_quantile(&m_lat, 1.0), 100000000);
	histogram_record(&m_lat, 0);
	histogram_record(&m_lat, UINT64_MAX / 2);
	for (unsigned s = 0; s < 64; s++)
		histogram_record(&m_lat, 1ull << s);

	char *text = metrics_text();
	exposition_check(text);
	assert_non_null(strstr(text,
		"# TYPE test_ops_total counter\ntest_ops_total{op=\"read\"} 200000\ntest_ops_total{op=\"write\"} 3\n"));
	assert_non_null(strstr(text, "# TYPE test_gauge gauge\ntest_gauge 7.5\n"));
	assert_int_equal(occurrences(text, "# HELP test_latency_seconds"), 1);
	assert_non_null(strstr(text, "test_latency_seconds_bucket{op=\"write\",le=\"1.024e-06\"} 100000\n"));
	assert_non_null(strstr(text, "test_latency_seconds_bucket{op=\"write\",le=\"+Inf\"} 100000\n"));
	assert_non_null(strstr(text, "test_latency_seconds_sum{op=\"write\"} 0.010000000\n"));
	assert_non_null(strstr(text, "test_latency_seconds_count{op=\"write\"} 100000\n"));
	assert_non_null(strstr(text, "furrow_copied_bytes_total "));
	free(text);

	counter_remove(&m_reads);
	counter_remove(&m_writes);
	gauge_remove(&g);
	histogram_remove(&m_lat);
	histogram_remove(&m_lat2);
	histogram_record(&m_lat, 1); /* no slots: no effect */
	text = metrics_text();
	assert_null(strstr(text, "test_"));
	free(text);
}

/* ---- log */

static int stderr_saved;
static char log_path[] = "/tmp/furrow-test-log-XXXXXX";

static void log_capture(void)
{
	fflush(stderr);
	stderr_saved = dup(STDERR_FILENO);
	int fd = mkstemp(log_path);
	dup2(fd, STDERR_FILENO);
	close(fd);
}

static char *log_captured(void)
{
	static char text[65536];
	int fd = open(log_path, O_RDONLY);
	ssize_t n = read(fd, text, sizeof(text) - 1);
	close(fd);
	unlink(log_path);
	strcpy(log_path + strlen(log_path) - 6, "XXXXXX");
	dup2(stderr_saved, STDERR_FILENO);
	close(stderr_saved);
	text[n < 0 ? 0 : n] = 0;
	return text;
}

static void log_some(int n)
{
	for (int i = 0; i < n; i++)
		log_info("raid", "noise n=%d", i);
}

static void test_log(void **state)
{
	(void)state;
	log_capture();
	errno = EBUSY;
	log_warning("raid", "drive left the array drive=%s error=\"%s\"", "nvme0", "a\nb\033[1m\177");
	int kept = errno;
	log_debug("raid", "not at this level");
	char *text = log_captured();
	assert_int_equal(kept, EBUSY);
	assert_int_equal(occurrences(text, "\n"), 1);
	assert_int_equal(text[4], '-');
	assert_int_equal(text[10], 'T');
	assert_int_equal(text[19], '.');
	assert_int_equal(text[23], 'Z');
	assert_string_equal(text + 24, " WARNING raid: drive left the array drive=nvme0 error=\"a?b?[1m?\"\n");

	/* A burst of ten, then silence, then one a second which says what was left out. */
	log_capture();
	log_some(500);
	text = log_captured();
	assert_int_equal(occurrences(text, "noise"), 10);
	assert_non_null(strstr(text, "n=9\n"));
	log_capture();
	usleep(1100000);
	log_some(5);
	text = log_captured();
	assert_int_equal(occurrences(text, "noise"), 1);
	assert_non_null(strstr(text, "noise n=0 left_out=490\n"));

	/* A line that is too long is cut and still is one line. */
	log_capture();
	char longer[4000];
	memset(longer, 'z', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = 0;
	log_error("fs", "%s", longer);
	text = log_captured();
	assert_int_equal(occurrences(text, "\n"), 1);
	assert_in_range(strlen(text), 900, 1024);

	log_open(true);
	log_capture();
	log_error("fs", "gone");
	text = log_captured();
	log_open(false);
	assert_string_equal(text, "<3>fs: gone\n");

	int before = log_threshold;
	log_threshold = LOG_ERROR;
	log_capture();
	log_info("fs", "unwanted");
	text = log_captured();
	log_threshold = before;
	assert_string_equal(text, "");
}

/* A standard error that nobody reads stops nobody. */
static void test_log_full(void **state)
{
	(void)state;
	int fds[2];
	assert_int_equal(pipe(fds), 0);
	fcntl(fds[1], F_SETPIPE_SZ, 4096);
	int saved = dup(STDERR_FILENO);
	fflush(stderr);
	dup2(fds[1], STDERR_FILENO);
	core_metrics_init();
	uint64_t dropped = counter_read(&metric_log_dropped);
	char filler[900];
	memset(filler, 'f', sizeof(filler));
	filler[899] = 0;
	for (int i = 0; i < 10; i++)
		log_error("fs", "%s", filler);
	dropped = counter_read(&metric_log_dropped) - dropped;
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(fds[0]);
	close(fds[1]);
	assert_in_range(dropped, 5, 9);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_error),
		cmocka_unit_test(test_endian),
		cmocka_unit_test(test_checksum),
		cmocka_unit_test(test_htable),
		cmocka_unit_test(test_metrics),
		cmocka_unit_test(test_log),
		cmocka_unit_test(test_log_full),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
