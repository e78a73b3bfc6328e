/*
 * The RPC-over-RDMA header decoder: every legal shape of RFC 8166, every way to break one, and mutated
 * messages that must neither crash it nor make it name a byte or a segment that is not there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rpcrdma/rdma_format.h"

struct message {
	uint8_t data[RDMA_INLINE_MAX + 64];
	uint32_t bytes;
};

static void put(struct message *m, uint32_t v)
{
	assert_true(m->bytes + 4 <= sizeof m->data);
	v = __builtin_bswap32(v);
	memcpy(m->data + m->bytes, &v, 4);
	m->bytes += 4;
}

static void put_fixed(struct message *m, uint32_t version, uint32_t proc)
{
	m->bytes = 0;
	put(m, 0x1234);
	put(m, version);
	put(m, 32);
	put(m, proc);
}

static void put_segment(struct message *m, uint32_t handle, uint32_t length, uint64_t offset)
{
	put(m, handle);
	put(m, length);
	put(m, (uint32_t)(offset >> 32));
	put(m, (uint32_t)offset);
}

static void put_read(struct message *m, uint32_t position, uint32_t handle, uint32_t length, uint64_t offset)
{
	put(m, 1);
	put(m, position);
	put_segment(m, handle, length, offset);
}

/* Decodes from memory of exactly that size, so that the sanitizer sees every byte beyond. */
static enum rdma_verdict decode(struct rdma_header *h, const uint8_t *data, uint32_t bytes)
{
	uint8_t *copy = malloc(bytes ? bytes : 1);
	assert_non_null(copy);
	memcpy(copy, data, bytes);
	memset(h, 0xa5, sizeof *h);
	enum rdma_verdict v = rdma_header_decode(h, copy, bytes);
	free(copy);
	return v;
}

static void check_invariants(const struct rdma_header *h, uint32_t bytes)
{
	unsigned used = 0;
	assert_true(h->bytes >= RDMA_HEADER_MIN && h->bytes <= bytes);
	assert_true(h->read_count <= RDMA_CHUNKS_MAX && h->write_count <= RDMA_CHUNKS_MAX);
	assert_true(h->segment_count <= RDMA_SEGMENTS_MAX);
	for (unsigned i = 0; i < h->read_count + h->write_count + (unsigned)h->has_reply; i++) {
		const struct rdma_chunk *c = i < h->read_count ? &h->read[i]
					     : i < h->read_count + (unsigned)h->write_count
						     ? &h->write[i - h->read_count]
						     : &h->reply;
		uint64_t sum = 0;
		assert_int_equal(c->first, used);
		for (unsigned s = 0; s < c->count; s++) {
			const struct rdma_segment *g = &h->segment[c->first + s];
			assert_true(g->offset + g->length >= g->offset);
			sum += g->length;
		}
		used += c->count;
		assert_int_equal(sum, c->length);
		assert_true(c->length <= RDMA_CHUNK_BYTES_MAX);
		if (i < h->read_count) {
			assert_int_equal(c->position % 4, 0);
			assert_true(!i || h->read[i - 1].position < c->position);
		}
	}
	assert_int_equal(used, h->segment_count);
	assert_int_equal(h->proc == RDMA_NOMSG, h->read_count && h->read[0].position == 0);
}

static void test_plain(void **state)
{
	struct message m;
	struct rdma_header h;
	(void)state;
	put_fixed(&m, 1, RDMA_MSG);
	put(&m, 0), put(&m, 0), put(&m, 0);
	put(&m, 0x77777777);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_OK);
	assert_int_equal(h.xid, 0x1234);
	assert_int_equal(h.credits, 32);
	assert_int_equal(h.bytes, 28);
	assert_int_equal(h.read_count + h.write_count + h.has_reply, 0);
	check_invariants(&h, m.bytes);
	for (uint32_t cut = 0; cut < 28; cut++)
		assert_int_equal(decode(&h, m.data, cut), cut < 16 ? RDMA_HEADER_BROKEN : RDMA_HEADER_CHUNK);
}

static void test_read_chunks(void **state)
{
	struct message m;
	struct rdma_header h;
	(void)state;
	/* two chunks of two segments each, interleaved and out of order */
	put_fixed(&m, 1, RDMA_MSG);
	put_read(&m, 400, 11, 100, 0x1000);
	put_read(&m, 200, 21, 7, 0x100002000ull);
	put_read(&m, 400, 12, 50, 0x2000);
	put_read(&m, 200, 22, 9, 0x3000);
	put(&m, 0), put(&m, 0), put(&m, 0);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_OK);
	check_invariants(&h, m.bytes);
	assert_int_equal(h.read_count, 2);
	assert_int_equal(h.read[0].position, 200);
	assert_int_equal(h.read[0].length, 16);
	assert_int_equal(h.read[1].length, 150);
	assert_int_equal(h.segment[0].handle, 21);
	assert_int_equal(h.segment[0].offset, 0x100002000ull);
	assert_int_equal(h.segment[1].handle, 22);
	assert_int_equal(h.segment[2].handle, 11);
	assert_int_equal(h.segment[3].handle, 12);
	for (uint32_t cut = 16; cut < m.bytes; cut++)
		assert_int_equal(decode(&h, m.data, cut), RDMA_HEADER_CHUNK);
}

static void test_write_and_reply(void **state)
{
	struct message m;
	struct rdma_header h;
	(void)state;
	put_fixed(&m, 1, RDMA_MSG);
	put_read(&m, 96, 5, 4096, 0);
	put(&m, 0);
	put(&m, 1), put(&m, 2), put_segment(&m, 31, 1000, 1), put_segment(&m, 32, 2000, 2);
	put(&m, 1), put(&m, 0);
	put(&m, 1), put(&m, 1), put_segment(&m, 33, 10, 3);
	put(&m, 0);
	put(&m, 1), put(&m, 3), put_segment(&m, 41, 10, 4), put_segment(&m, 42, 20, 5), put_segment(&m, 43, 30, 6);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_OK);
	check_invariants(&h, m.bytes);
	assert_int_equal(h.bytes, m.bytes);
	assert_int_equal(h.write_count, 3);
	assert_int_equal(h.write[0].length, 3000);
	assert_int_equal(h.write[1].count, 0);
	assert_int_equal(h.write[2].length, 10);
	assert_true(h.has_reply);
	assert_int_equal(h.reply.length, 60);

	/* the answer decodes to the same chunks with what was written in them */
	uint8_t reply[512];
	uint32_t written[3] = {1500, 0, 10};
	struct rdma_header r;
	uint32_t bytes = rdma_header_encode_reply(reply, sizeof reply, &h, 7, written, false, 0);
	assert_int_equal(bytes, rdma_header_reply_bytes(&h, false));
	assert_int_equal(rdma_header_encode_reply(reply, bytes - 1, &h, 7, written, false, 0), 0);
	assert_int_equal(decode(&r, reply, bytes), RDMA_HEADER_OK);
	assert_int_equal(r.credits, 7);
	assert_int_equal(r.xid, 0x1234);
	assert_int_equal(r.proc, RDMA_MSG);
	assert_false(r.has_reply);
	assert_int_equal(r.write_count, 3);
	assert_int_equal(r.segment[0].length, 1000);
	assert_int_equal(r.segment[1].length, 500);
	assert_int_equal(r.segment[1].handle, 32);
	assert_int_equal(r.write[2].length, 10);

	/* a long reply is an RDMA_NOMSG, which as a call would be illegal: look at it by hand */
	bytes = rdma_header_encode_reply(reply, sizeof reply, &h, 7, written, true, 25);
	assert_int_equal(bytes, rdma_header_reply_bytes(&h, true));
	assert_int_equal(reply[15], RDMA_NOMSG);
	reply[15] = RDMA_MSG;
	assert_int_equal(decode(&r, reply, bytes), RDMA_HEADER_OK);
	assert_true(r.has_reply);
	assert_int_equal(r.segment[r.reply.first].length, 10);
	assert_int_equal(r.segment[r.reply.first + 1].length, 15);
	assert_int_equal(r.segment[r.reply.first + 2].length, 0);
}

static void test_long_call(void **state)
{
	struct message m;
	struct rdma_header h;
	(void)state;
	put_fixed(&m, 1, RDMA_NOMSG);
	put_read(&m, 0, 5, 3000, 0), put_read(&m, 0, 6, 5000, 0), put_read(&m, 128, 7, 100, 0);
	put(&m, 0), put(&m, 0), put(&m, 0);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_OK);
	check_invariants(&h, m.bytes);
	assert_int_equal(h.read_count, 2);
	assert_int_equal(h.read[0].length, 8000);

	/* position zero in an RDMA_MSG, none in an RDMA_NOMSG */
	m.data[15] = RDMA_MSG;
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_CHUNK);
	put_fixed(&m, 1, RDMA_NOMSG);
	put(&m, 0), put(&m, 0), put(&m, 0);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_CHUNK);
	put_fixed(&m, 1, RDMA_NOMSG);
	put_read(&m, 4, 5, 3000, 0), put(&m, 0), put(&m, 0), put(&m, 0);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_CHUNK);
}

static void test_procedures_and_versions(void **state)
{
	static const struct {
		uint32_t version, proc;
		enum rdma_verdict verdict;
	} row[] = {{0, RDMA_MSG, RDMA_HEADER_VERSION}, {2, RDMA_MSG, RDMA_HEADER_VERSION}, {2, 99, RDMA_HEADER_VERSION},
		{1, RDMA_MSGP, RDMA_HEADER_CHUNK}, {1, RDMA_DONE, RDMA_HEADER_SILENT},
		{1, RDMA_ERROR, RDMA_HEADER_SILENT}, {1, 5, RDMA_HEADER_CHUNK}, {1, UINT32_MAX, RDMA_HEADER_CHUNK}};
	struct message m;
	struct rdma_header h;
	(void)state;
	for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
		put_fixed(&m, row[i].version, row[i].proc);
		put(&m, 0), put(&m, 0), put(&m, 0);
		assert_int_equal(decode(&h, m.data, m.bytes), row[i].verdict);
		assert_int_equal(h.xid, 0x1234);
	}
	uint8_t e[28];
	assert_int_equal(rdma_header_encode_error(e, 0x99, 3, RDMA_ERR_VERS), 28);
	assert_int_equal(e[15], RDMA_ERROR);
	assert_int_equal(e[19], 1);
	assert_int_equal(e[23], 1);
	assert_int_equal(rdma_header_encode_error(e, 0x99, 3, RDMA_ERR_CHUNK), 20);
	assert_int_equal(e[19], 2);
}

static void test_bad_chunks(void **state)
{
	struct message m;
	struct rdma_header h;
	(void)state;
	/* a position that no XDR item can have */
	put_fixed(&m, 1, RDMA_MSG);
	put_read(&m, 97, 5, 3000, 0), put(&m, 0), put(&m, 0), put(&m, 0);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_CHUNK);
	/* an address range that wraps */
	put_fixed(&m, 1, RDMA_MSG);
	put_read(&m, 96, 5, 3000, UINT64_MAX - 2999), put(&m, 0), put(&m, 0), put(&m, 0);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_CHUNK);
	/* lengths whose sum wraps 32 bits */
	put_fixed(&m, 1, RDMA_MSG);
	for (int i = 0; i < 4; i++)
		put_read(&m, 96, 5, 1u << 30, 0);
	put(&m, 0), put(&m, 0), put(&m, 0);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_CHUNK);
	put_fixed(&m, 1, RDMA_MSG);
	put(&m, 0), put(&m, 1), put(&m, 2), put_segment(&m, 1, UINT32_MAX, 0), put_segment(&m, 1, 2, 0), put(&m, 0),
		put(&m, 0);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_CHUNK);
	/* counts larger than the message */
	for (uint32_t count = 1; count; count <<= 1) {
		put_fixed(&m, 1, RDMA_MSG);
		put(&m, 0), put(&m, 1), put(&m, count | 3), put_segment(&m, 1, 1, 0), put_segment(&m, 1, 2, 0);
		assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_CHUNK);
		put_fixed(&m, 1, RDMA_MSG);
		put(&m, 0), put(&m, 0), put(&m, 1), put(&m, count | 3), put_segment(&m, 1, 1, 0);
		assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_CHUNK);
	}
	/* a discriminator that is neither 0 nor 1 */
	for (unsigned at = 16; at < 28; at += 4) {
		put_fixed(&m, 1, RDMA_MSG);
		put(&m, 0), put(&m, 0), put(&m, 0);
		m.data[at + 3] = 2;
		assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_CHUNK);
	}
	/* as many chunks as we handle, and one more */
	for (uint32_t n = RDMA_CHUNKS_MAX; n <= RDMA_CHUNKS_MAX + 1; n++) {
		enum rdma_verdict want = n > RDMA_CHUNKS_MAX ? RDMA_HEADER_CHUNK : RDMA_HEADER_OK;
		put_fixed(&m, 1, RDMA_MSG);
		for (uint32_t i = n; i; i--)
			put_read(&m, 4 * i, 5, 4, 0);
		put(&m, 0), put(&m, 0), put(&m, 0);
		assert_int_equal(decode(&h, m.data, m.bytes), want);
		put_fixed(&m, 1, RDMA_MSG);
		put(&m, 0);
		for (uint32_t i = 0; i < n; i++)
			put(&m, 1), put(&m, 1), put_segment(&m, 5, 4, 0);
		put(&m, 0), put(&m, 0);
		assert_int_equal(decode(&h, m.data, m.bytes), want);
	}
	/* the most segments that a message can hold, in the worst order */
	put_fixed(&m, 1, RDMA_MSG);
	for (uint32_t i = 0; i < 168; i++)
		put_read(&m, 4 * (16 - i % 16), i, 4, i);
	put(&m, 0), put(&m, 0), put(&m, 0);
	assert_int_equal(decode(&h, m.data, m.bytes), RDMA_HEADER_OK);
	check_invariants(&h, m.bytes);
	assert_int_equal(h.segment_count, 168);
}

static void test_private_data(void **state)
{
	struct rdma_private p = {.send_bytes = 4096, .receive_bytes = 4096, .invalidate = true};
	uint8_t d[56] = {0};
	(void)state;
	rdma_private_encode(d + 3, &p);
	struct rdma_private q;
	rdma_private_decode(&q, d, sizeof d);
	assert_int_equal(q.send_bytes, 4096);
	assert_int_equal(q.receive_bytes, 4096);
	assert_true(q.invalidate);
	d[7] = 2; /* another version */
	rdma_private_decode(&q, d, sizeof d);
	assert_int_equal(q.send_bytes, 1024);
	assert_false(q.invalidate);
	rdma_private_decode(&q, d, 0);
	assert_int_equal(q.receive_bytes, 1024);
	/* a magic at the very end is no private data */
	memset(d, 0, sizeof d);
	memcpy(d + 52, "\xf6\xab\x0e\x18", 4);
	rdma_private_decode(&q, d, sizeof d);
	assert_int_equal(q.receive_bytes, 1024);
}

static uint64_t rng_state;
static uint32_t rng(void)
{
	rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(rng_state >> 33);
}

static void test_fuzz(void **state)
{
	const char *env = getenv("SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0) : 0x5eed;
	unsigned accepted = 0;
	(void)state;
	printf("seed %#llx\n", (unsigned long long)seed);
	rng_state = seed;
	for (unsigned round = 0; round < 200000; round++) {
		struct message m;
		struct rdma_header h;
		put_fixed(&m, 1, rng() % 8 ? RDMA_MSG : RDMA_NOMSG);
		for (uint32_t n = rng() % 4; n; n--)
			put_read(&m, 4 * (rng() % 6), rng(), rng() % 100000, rng());
		put(&m, 0);
		for (uint32_t n = rng() % 3; n; n--) {
			uint32_t s = rng() % 4;
			put(&m, 1), put(&m, s);
			while (s--)
				put_segment(&m, rng(), rng() % 100000, rng());
		}
		put(&m, 0);
		if (rng() % 2) {
			put(&m, 1), put(&m, 1), put_segment(&m, 1, rng(), rng());
		} else {
			put(&m, 0);
		}
		for (uint32_t n = rng() % 4; n; n--) {
			uint32_t at = rng() % m.bytes;
			m.data[at] = (uint8_t)(rng() % 3 ? m.data[at] ^ (1u << rng() % 8) : rng());
		}
		uint32_t bytes = rng() % 4 ? m.bytes : rng() % (m.bytes + 1);
		if (decode(&h, m.data, bytes) != RDMA_HEADER_OK)
			continue;
		accepted++;
		check_invariants(&h, bytes);
		uint8_t reply[RDMA_INLINE_MAX];
		uint32_t written[RDMA_CHUNKS_MAX];
		for (unsigned i = 0; i < RDMA_CHUNKS_MAX; i++)
			written[i] = rng();
		uint32_t room = rng() % sizeof reply;
		assert_true(rdma_header_encode_reply(reply, room, &h, 1, written, h.has_reply, rng()) <= room);
	}
	assert_true(accepted > 10000); /* else the mutations reach nothing */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain),
		cmocka_unit_test(test_read_chunks),
		cmocka_unit_test(test_write_and_reply),
		cmocka_unit_test(test_long_call),
		cmocka_unit_test(test_procedures_and_versions),
		cmocka_unit_test(test_bad_chunks),
		cmocka_unit_test(test_private_data),
		cmocka_unit_test(test_fuzz),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
