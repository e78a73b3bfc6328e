/*
 * Members that say anything: superblocks, maps and marks with bytes changed, fields set to awkward values, blocks
 * exchanged between drives and put back from an earlier time, with checksums made right again. The array must be
 * refused or start, and reading from it must end; where only one member was damaged (and cannot have been forged), it
 * must start and give what was written. Then the same bytes through the decoders alone, in greater number.
 *
 * FURROW_LONG: 20,000 arrays and 2,000,000 superblocks, else 480 and 20,000. SEED sets the seed.
 */
#include "tests/raid/fuzz_member.h"
#include "tests/raid/raid_test.h"

#define BYTES (4ull << 20)
#define HEAD MEMBER_HEAD_BYTES

struct hostile {
	struct raid_test t;
	uint64_t seed;
	uint8_t *now[TEST_DRIVES_MAX], *then[TEST_DRIVES_MAX]; /* the drives as they are, and at an earlier event */
	bool forged;
	unsigned refused, started;
};

static uint64_t draw(struct hostile *h, uint64_t below)
{
	return test_random(&h->seed) % below;
}

static void drives_io(struct hostile *h, uint8_t **images, bool write)
{
	for (unsigned i = 0; i < h->t.count; i++) {
		int fd = open(raid_test_file(h->t.path[i]), O_RDWR | O_CLOEXEC);
		ssize_t n = write ? pwrite(fd, images[i], BYTES, 0) : pread(fd, images[i], BYTES, 0);
		if (n != (ssize_t)BYTES)
			abort();
		close(fd);
	}
}

/* Changes bytes of one drive, in IMAGE, and writes them. */
static void mutate(struct hostile *h, unsigned drive)
{
	static const uint64_t awkward[] = {0, 1, 2, 3, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0xffff, 0x10000, 0x7fffffff,
		0xffffffff, 0x100000000, 0x7fffffffffffffff, 0xffffffffffffffff};
	uint64_t place[] = {super_offset(BYTES, 0), super_offset(BYTES, 1), MISSED_OFFSET + draw(h, 12) * MISSED_BYTES};
	unsigned which = (unsigned)draw(h, 8);
	which = which < 4 ? 0 : which < 6 ? 1 : 2;
	uint64_t at = place[which];
	uint32_t size = which < 2 ? SUPER_BYTES_LEAST : MISSED_BYTES;
	static uint8_t raw[SUPER_BYTES_MOST];
	memcpy(raw, h->now[drive] + at, size);
	for (unsigned n = (unsigned)draw(h, 4) + 1; n; n--) {
		unsigned other = (unsigned)draw(h, h->t.count);
		/* where something stands: the header, the tables' beginnings */
		uint32_t off = (uint32_t)(draw(h, 2)   ? draw(h, 512)
					  : draw(h, 3) ? draw(h, 10000)
						       : draw(h, size)) %
			       size;
		switch (draw(h, 6)) {
		case 0:
			raw[off] = (uint8_t)(raw[off] ^ 1u << draw(h, 8));
			break;
		case 1:
			raw[off] = (uint8_t)draw(h, 256);
			break;
		case 2: {
			uint64_t v = awkward[draw(h, 16)];
			uint32_t width = 1u << draw(h, 4);
			off &= ~(width - 1);
			memcpy(raw + off, &v, width);
			break;
		}
		case 3: {
			uint64_t v;
			off &= ~7u;
			memcpy(&v, raw + off, 8);
			v += draw(h, 5) - 2;
			memcpy(raw + off, &v, 8);
			break;
		}
		case 4:
			memcpy(raw, h->now[other] + at, size);
			h->forged = true;
			break;
		default:
			memcpy(raw, h->then[other] + at, size);
			h->forged = true;
			break;
		}
	}
	if (draw(h, 4)) {
		h->forged = true;
		if (which < 2) {
			fuzz_super_sign(raw);
		} else {
			struct format_missed *f = (struct format_missed *)(void *)raw;
			f->checksum = le64_put(0);
			f->checksum = le64_put(checksum64(raw, MISSED_BYTES, 0));
		}
	}
	int fd = open(raid_test_file(h->t.path[drive]), O_RDWR | O_CLOEXEC);
	if (pwrite(fd, raw, size, (off_t)at) != (ssize_t)size)
		abort();
	/* both copies, so that the good one does not stand in */
	if (which < 2 && draw(h, 2) && pwrite(fd, raw, size, (off_t)place[!which]) != (ssize_t)size)
		abort();
	close(fd);
}

static int rows_io(struct volume *v, bool write, bool *right)
{
	const struct volume_geometry *g = volume_geometry(v);
	struct payload p, q;
	int r = 0;
	for (uint64_t s = 0; s < 3 && s < g->stripes && !r; s++) {
		uint64_t bytes = volume_stripe_blocks(g) * BLOCK_BYTES;
		if (bytes > 64 * 65536ull)
			bytes = 64 * 65536ull;
		payload_make(&p, bytes, 65536, 900 + s);
		if (write) {
			r = volume_write_rows(v, s, 0, g->strip_blocks, p.v, p.n, VOLUME_DURABLE);
		} else {
			payload_make(&q, bytes, 65536, 0);
			r = volume_read(v, s * volume_stripe_blocks(g), q.v, q.n);
			*right = *right && payload_sum(&p) == payload_sum(&q);
			payload_free(&q);
		}
		payload_free(&p);
	}
	return r;
}

struct shape {
	unsigned level, drives;
};

static void hostile_body(void *arg)
{
	const struct shape *shape = arg;
	struct error err = {0};
	struct hostile *h = calloc(1, sizeof(*h));
	struct array *array;
	struct volume *v;
	h->seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 5;
	fault_reset();
	raid_test_drives(&h->t, shape->drives, BYTES, "fault:");
	CHECK_OK(raid_test_create(&h->t, shape->level, 16384, &err), err);
	for (unsigned i = 0; i < shape->drives; i++) {
		h->now[i] = malloc(BYTES);
		h->then[i] = malloc(BYTES);
	}
	CHECK_OK(raid_test_open_volume(&h->t, true, &array, &v, &err), err);
	drives_io(h, h->then, false);
	CHECK(rows_io(v, true, NULL) == 0);
	/* with a member away and something that it missed, every second time */
	bool degraded = shape->level == 6;
	if (degraded)
		CHECK_OK(array_fail(array, 1, &err), err);
	CHECK(rows_io(v, true, NULL) == 0);
	volume_close(v);
	array_close(array);
	drives_io(h, h->now, false);
	unsigned rounds = getenv("FURROW_LONG") ? 5000 : 120;
	for (unsigned i = 0; i < rounds && !test_failure[0]; i++) {
		uint64_t seed = h->seed;
		unsigned drives = draw(h, 4) ? 1 : (unsigned)draw(h, shape->drives) + 1;
		h->forged = false;
		for (unsigned d = 0; d < drives; d++)
			mutate(h, (unsigned)draw(h, shape->drives));
		fault_overlay(true);
		int r = raid_test_open(&h->t, &array, &err);
		bool right = true;
		if (!r) {
			struct volume_info list[RAID_VOLUMES_MAX];
			unsigned n = volume_list(array, list);
			h->started++;
			if (draw(h, 4) == 0 && array_keep(array, &err) == 0)
				(void)array_settled(array, NULL, NULL);
			for (unsigned j = 0; j < n; j++) {
				r = volume_open(array, list[j].name, &v, &err);
				if (r)
					continue;
				r = rows_io(v, false, &right);
				volume_close(v);
			}
			array_close(array);
		} else {
			h->refused++;
		}
		for (unsigned d = 0; d < shape->drives; d++)
			fault_power_cut(h->t.path[d], 0, 0);
		fault_overlay(false);
		drives_io(h, h->now, true);
		if (drives == 1 && !h->forged && (r || !right))
			snprintf(test_failure, sizeof(test_failure), "level %u, seed %llu: one damaged member: %d %s",
				shape->level, (unsigned long long)seed, r, r ? err.text : "wrong data");
	}
	print_message("level %u: %u started, %u refused\n", shape->level, h->started, h->refused);
	raid_test_remove(&h->t);
	fault_reset();
	for (unsigned i = 0; i < shape->drives; i++) {
		free(h->now[i]);
		free(h->then[i]);
	}
	free(h);
}

static void test_arrays(void **state)
{
	(void)state;
	static struct shape shapes[] = {{5, 3}, {6, 5}, {1, 2}, {50, 6}};
	atomic_store(&log_threshold, -1);
	for (unsigned i = 0; i < 4; i++)
		raid_test_run(hostile_body, &shapes[i]);
}

static void test_decoders(void **state)
{
	(void)state;
	uint8_t data[1 + 10 * 4], *good = calloc(1, SUPER_BYTES_MOST + 1);
	struct super_found *f = calloc(1, sizeof(*f));
	uint64_t seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : 5;
	unsigned rounds = getenv("FURROW_LONG") ? 2000000 : 20000;
	char why[160];
	for (unsigned base = 0; base < 4; base++) {
		fuzz_super_base(base, good + 1);
		if (super_decode(good + 1, 65 << 20, f, why, sizeof(why)) != SUPER_VALID)
			fail_msg("%s", why);
		good[0] = 0;
		assert_true(fuzz_member(good, SUPER_BYTES_MOST + 1));
	}
	for (unsigned i = 0; i < rounds; i++) {
		uint64_t at = seed;
		unsigned n = (unsigned)(test_random(&seed) % 4) + 1;
		/* small ones mostly: the large ones take their time */
		unsigned base = (unsigned)(test_random(&seed) % 16);
		base = base == 1 || base == 2 ? base : base & 1 ? 3 : 0;
		data[0] = (uint8_t)(base << 4 | 8 | (test_random(&seed) % 16 == 0));
		for (unsigned j = 0; j < n; j++) {
			uint64_t off = test_random(&seed) % (test_random(&seed) % 2 ? 640 : SUPER_BYTES_MOST - 8);
			uint64_t v = test_random(&seed);
			v >>= test_random(&seed) % 64;
			data[1 + 10 * j] = (uint8_t)off;
			data[2 + 10 * j] = (uint8_t)(off >> 8);
			memcpy(data + 3 + 10 * j, &v, 8);
		}
		if (!fuzz_member(data, 1 + 10 * n))
			fail_msg("seed %llu", (unsigned long long)at);
	}
	free(f);
	free(good);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_decoders),
		cmocka_unit_test(test_arrays),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
