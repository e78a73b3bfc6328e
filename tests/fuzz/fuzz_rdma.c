/*
 * The RPC-over-RDMA header and the connection manager's private data. What is taken names only bytes and segments that
 * are there, and what answers it can be read again.
 */
#include "tests/fuzz/fuzz.h"

#include "rpcrdma/rdma_format.h"

static void chunk_check(const struct rdma_header *h, const struct rdma_chunk *c, unsigned *used)
{
	uint64_t sum = 0;

	FUZZ_CHECK(c->first == *used && c->first + c->count <= h->segment_count);
	for (unsigned i = 0; i < c->count; i++) {
		const struct rdma_segment *s = &h->segment[c->first + i];
		FUZZ_CHECK(s->offset + s->length >= s->offset);
		sum += s->length;
	}
	*used += c->count;
	FUZZ_CHECK(sum == c->length && sum <= RDMA_CHUNK_BYTES_MAX);
}

static void header_check(const struct rdma_header *h, size_t bytes)
{
	unsigned used = 0;

	FUZZ_CHECK(h->bytes >= RDMA_HEADER_MIN && h->bytes <= bytes);
	FUZZ_CHECK(h->read_count <= RDMA_CHUNKS_MAX && h->write_count <= RDMA_CHUNKS_MAX);
	FUZZ_CHECK(h->segment_count <= RDMA_SEGMENTS_MAX);
	for (unsigned i = 0; i < h->read_count; i++) {
		chunk_check(h, &h->read[i], &used);
		FUZZ_CHECK(h->read[i].position % 4 == 0 && (!i || h->read[i - 1].position < h->read[i].position));
	}
	for (unsigned i = 0; i < h->write_count; i++)
		chunk_check(h, &h->write[i], &used);
	if (h->has_reply)
		chunk_check(h, &h->reply, &used);
	FUZZ_CHECK(used == h->segment_count);
	FUZZ_CHECK((h->proc == RDMA_NOMSG) == (h->read_count && !h->read[0].position));
}

/* A reply has Write list and Reply chunk as a call has them, but for the lengths. */
static void reply_check(const struct rdma_header *h, bool with_reply)
{
	static uint8_t to[RDMA_INLINE_MAX];
	static struct rdma_header again;
	uint32_t written[RDMA_CHUNKS_MAX], reply_written = with_reply ? h->reply.length / 2 : 0;

	for (unsigned i = 0; i < h->write_count; i++)
		written[i] = h->write[i].length / (i + 1);
	uint32_t bytes = rdma_header_encode_reply(to, sizeof(to), h, 7, written, with_reply, reply_written);
	FUZZ_CHECK(!bytes || bytes == rdma_header_reply_bytes(h, with_reply));
	if (!bytes) {
		FUZZ_CHECK(rdma_header_reply_bytes(h, with_reply) > sizeof(to));
		return;
	}
	uint8_t *copy = fuzz_copy(to, bytes);
	copy[15] = RDMA_MSG; /* as a call: it has no Read list, so it is no RDMA_NOMSG */
	FUZZ_CHECK(rdma_header_decode(&again, copy, bytes) == RDMA_HEADER_OK && again.bytes == bytes);
	FUZZ_CHECK(again.xid == h->xid && again.credits == 7 && !again.read_count);
	FUZZ_CHECK(again.write_count == h->write_count && again.has_reply == with_reply);
	for (unsigned i = 0; i < h->write_count; i++)
		FUZZ_CHECK(again.write[i].length == written[i] && again.write[i].count == h->write[i].count);
	FUZZ_CHECK(!with_reply || again.reply.length == reply_written);
	free(copy);
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
	static struct rdma_header h;
	struct rdma_private private;
	uint8_t *copy = fuzz_copy(data, bytes);

	rdma_private_decode(&private, copy, bytes);
	FUZZ_CHECK(private.send_bytes >= RDMA_INLINE_MIN && private.receive_bytes >= RDMA_INLINE_MIN);
	memset(&h, 0xa5, sizeof(h));
	enum rdma_verdict verdict = rdma_header_decode(&h, copy, (uint32_t)bytes);
	free(copy);
	FUZZ_CHECK((verdict == RDMA_HEADER_BROKEN) == (bytes < RDMA_HEADER_FIXED));
	if (verdict != RDMA_HEADER_OK)
		return;
	header_check(&h, bytes);
	reply_check(&h, false);
	if (h.has_reply)
		reply_check(&h, true);
}

static size_t words(uint8_t *to, const uint32_t *v, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t w = __builtin_bswap32(v[i]);
		memcpy(to + 4 * i, &w, 4);
	}
	return 4 * n;
}
#define SEED(name, ...)                                                                                                \
	do {                                                                                                           \
		const uint32_t v[] = {__VA_ARGS__};                                                                    \
		fuzz_seed(name, to, words(to, v, sizeof(v) / 4));                                                      \
	} while (0)

static void fuzz_seeds(void)
{
	static const struct rdma_private private = {4096, 4096, true};
	uint8_t to[RDMA_INLINE_MAX];

	SEED("plain", 1, 1, 32, RDMA_MSG, 0, 0, 0, 77);
	SEED("version", 1, 2, 32, RDMA_MSG, 0, 0, 0);
	SEED("error", 1, 1, 32, RDMA_ERROR, RDMA_ERR_CHUNK);
	SEED("read", 1, 1, 32, RDMA_MSG, 1, 8, 5, 100, 0, 4096, 1, 4, 6, 30, 0, 8192, 1, 8, 7, 10, 1, 0, 0, 0, 0, 77);
	SEED("write", 1, 1, 32, RDMA_MSG, 0, 1, 2, 5, 4096, 0, 0, 6, 4096, 1, 0, 1, 0, 1, 1, 7, 9, 0, 12, 0, 0, 77);
	SEED("long", 1, 1, 32, RDMA_NOMSG, 1, 0, 5, 8192, 0, 4096, 0, 0, 1, 2, 8, 4096, 2, 0, 9, 4096, 3, 0);
	rdma_private_encode(to, &private);
	fuzz_seed("private", to, RDMA_PRIVATE_BYTES);
}
