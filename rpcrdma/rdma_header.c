/*
 * The RPC-over-RDMA header: decoding what a peer sent, encoding what it is answered with.
 *
 * Pure functions on bytes: no verbs, no waiting, no allocation. They run on the reactor that received the message,
 * straight from the receive buffer, and everything later (RDMA Reads, RDMA Writes, the reply) trusts their
 * result and never looks at the wire form again.
 *
 * Error policy: the verdict says what the peer is told. A message too short to hold an xid cannot be answered and costs
 * the peer its connection; another version gets ERR_VERS; a list that runs over the end of the message, a chunk that
 * wraps, or more chunks than we handle gets ERR_CHUNK (RFC 8166 4.5). A count is always compared with the bytes that
 * are left before it is used, so the work is linear in the message's length but for the sorting of Read
 * chunks, of which there are few.
 */
#include "rpcrdma/rdma_format.h"

#include <string.h>

#include "core/endian.h"

struct cursor {
	const uint8_t *p, *end;
};

static bool take_u32(struct cursor *c, uint32_t *v)
{
	uint32_t x;
	if (c->end - c->p < 4)
		return false;
	memcpy(&x, c->p, 4);
	c->p += 4;
	*v = __builtin_bswap32(x);
	return true;
}

static bool take_segment(struct cursor *c, struct rdma_segment *s)
{
	uint32_t high, low;
	if (!take_u32(c, &s->handle) || !take_u32(c, &s->length) || !take_u32(c, &high) || !take_u32(c, &low))
		return false;
	s->offset = (uint64_t)high << 32 | low;
	return s->length <= UINT64_MAX - s->offset;
}

/* An optional-data discriminator must be 0 or 1. */
static bool take_more(struct cursor *c, bool *more)
{
	uint32_t v;
	if (!take_u32(c, &v) || v > 1)
		return false;
	*more = v;
	return true;
}

static bool chunk_add(struct rdma_chunk *chunk, uint32_t length)
{
	if (length > RDMA_CHUNK_BYTES_MAX - chunk->length)
		return false;
	chunk->length += length;
	chunk->count++;
	return true;
}

/*
 * The segments of one Read chunk carry the same position, in order; those of several may be interleaved. They are
 * put in place by insertion: runs that come in order, the rule, cost nothing.
 */
static bool decode_read_list(struct rdma_header *h, struct cursor *c)
{
	uint32_t position[RDMA_SEGMENTS_MAX];
	for (;;) {
		bool more;
		struct rdma_segment s;
		uint32_t at;
		if (!take_more(c, &more))
			return false;
		if (!more)
			break;
		if (h->segment_count == RDMA_SEGMENTS_MAX || !take_u32(c, &at) || !take_segment(c, &s) || at % 4)
			return false;
		unsigned i = h->segment_count++;
		for (; i && position[i - 1] > at; i--) {
			position[i] = position[i - 1];
			h->segment[i] = h->segment[i - 1];
		}
		position[i] = at;
		h->segment[i] = s;
	}
	for (unsigned i = 0; i < h->segment_count; i++) {
		struct rdma_chunk *chunk = h->read_count ? &h->read[h->read_count - 1] : NULL;
		if (!chunk || chunk->position != position[i]) {
			if (h->read_count == RDMA_CHUNKS_MAX)
				return false;
			chunk = &h->read[h->read_count++];
			*chunk = (struct rdma_chunk){.position = position[i], .first = (uint16_t)i};
		}
		if (!chunk_add(chunk, h->segment[i].length))
			return false;
	}
	return true;
}

static bool decode_segments(struct rdma_header *h, struct cursor *c, struct rdma_chunk *chunk)
{
	uint32_t count;
	if (!take_u32(c, &count) || count > RDMA_SEGMENTS_MAX - h->segment_count)
		return false;
	*chunk = (struct rdma_chunk){.first = h->segment_count};
	for (; count; count--) {
		struct rdma_segment *s = &h->segment[h->segment_count];
		if (!take_segment(c, s) || !chunk_add(chunk, s->length))
			return false;
		h->segment_count++;
	}
	return true;
}

static bool decode_lists(struct rdma_header *h, struct cursor *c)
{
	bool more;
	if (!decode_read_list(h, c))
		return false;
	for (;;) {
		if (!take_more(c, &more))
			return false;
		if (!more)
			break;
		if (h->write_count == RDMA_CHUNKS_MAX || !decode_segments(h, c, &h->write[h->write_count]))
			return false;
		h->write_count++;
	}
	if (!take_more(c, &h->has_reply))
		return false;
	return !h->has_reply || decode_segments(h, c, &h->reply);
}

enum rdma_verdict rdma_header_decode(struct rdma_header *h, const uint8_t *data, uint32_t bytes)
{
	struct cursor c = {data, data + bytes};
	uint32_t version;

	memset(h, 0, offsetof(struct rdma_header, segment));
	if (bytes < RDMA_HEADER_FIXED)
		return RDMA_HEADER_BROKEN;
	take_u32(&c, &h->xid);
	take_u32(&c, &version);
	take_u32(&c, &h->credits);
	take_u32(&c, &h->proc);
	if (version != RDMA_RPC_VERSION)
		return RDMA_HEADER_VERSION;
	if (h->proc == RDMA_DONE || h->proc == RDMA_ERROR)
		return RDMA_HEADER_SILENT;
	if (h->proc != RDMA_MSG && h->proc != RDMA_NOMSG)
		return RDMA_HEADER_CHUNK;
	if (!decode_lists(h, &c))
		return RDMA_HEADER_CHUNK;
	h->bytes = (uint32_t)(c.p - data);

	/* Position zero is the RPC message itself: it comes there or inline, never both and never neither. */
	bool at_zero = h->read_count && h->read[0].position == 0;
	if (at_zero != (h->proc == RDMA_NOMSG))
		return RDMA_HEADER_CHUNK;
	return RDMA_HEADER_OK;
}

/* ------------------------------------------------------------------------------------------------
 * Replies
 */

static uint8_t *put_u32(uint8_t *to, uint32_t v)
{
	v = __builtin_bswap32(v);
	memcpy(to, &v, 4);
	return to + 4;
}

static uint8_t *put_fixed(uint8_t *to, uint32_t xid, uint32_t credits, enum rdma_proc proc)
{
	to = put_u32(to, xid);
	to = put_u32(to, RDMA_RPC_VERSION);
	to = put_u32(to, credits);
	return put_u32(to, proc);
}

uint32_t rdma_header_reply_bytes(const struct rdma_header *call, bool with_reply)
{
	uint32_t bytes = RDMA_HEADER_MIN;
	for (unsigned i = 0; i < call->write_count; i++)
		bytes += 8 + call->write[i].count * RDMA_SEGMENT_BYTES;
	if (with_reply)
		bytes += 4 + call->reply.count * RDMA_SEGMENT_BYTES;
	return bytes;
}

/* A chunk as the requester sent it, with each length replaced by what was written there. */
static uint8_t *put_chunk(uint8_t *to, const struct rdma_header *call, const struct rdma_chunk *chunk, uint32_t written)
{
	to = put_u32(to, 1);
	to = put_u32(to, chunk->count);
	for (unsigned i = 0; i < chunk->count; i++) {
		const struct rdma_segment *s = &call->segment[chunk->first + i];
		uint32_t here = written < s->length ? written : s->length;
		written -= here;
		to = put_u32(to, s->handle);
		to = put_u32(to, here);
		to = put_u32(to, (uint32_t)(s->offset >> 32));
		to = put_u32(to, (uint32_t)s->offset);
	}
	return to;
}

uint32_t rdma_header_encode_reply(uint8_t *to, uint32_t room, const struct rdma_header *call, uint32_t credits,
	const uint32_t *written, bool with_reply, uint32_t reply_written)
{
	uint8_t *p = to;
	if (rdma_header_reply_bytes(call, with_reply) > room)
		return 0;
	p = put_fixed(p, call->xid, credits, with_reply ? RDMA_NOMSG : RDMA_MSG);
	p = put_u32(p, 0); /* no Read list in a reply */
	for (unsigned i = 0; i < call->write_count; i++)
		p = put_chunk(p, call, &call->write[i], written[i]);
	p = put_u32(p, 0);
	if (with_reply)
		p = put_chunk(p, call, &call->reply, reply_written);
	else
		p = put_u32(p, 0);
	return (uint32_t)(p - to);
}

uint32_t rdma_header_encode_inline(uint8_t *to, uint32_t xid, uint32_t credits)
{
	uint8_t *p = put_fixed(to, xid, credits, RDMA_MSG);
	for (unsigned i = 0; i < 3; i++)
		p = put_u32(p, 0);
	return (uint32_t)(p - to);
}

uint32_t rdma_header_encode_error(uint8_t *to, uint32_t xid, uint32_t credits, enum rdma_errcode code)
{
	uint8_t *p = put_fixed(to, xid, credits, RDMA_ERROR);
	p = put_u32(p, code);
	if (code == RDMA_ERR_VERS) { /* lowest and highest version understood */
		p = put_u32(p, RDMA_RPC_VERSION);
		p = put_u32(p, RDMA_RPC_VERSION);
	}
	return (uint32_t)(p - to);
}

/* ------------------------------------------------------------------------------------------------
 * Private data
 */

void rdma_private_decode(struct rdma_private *p, const uint8_t *data, size_t bytes)
{
	*p = (struct rdma_private){.send_bytes = RDMA_INLINE_MIN, .receive_bytes = RDMA_INLINE_MIN};
	for (size_t at = 0; at + RDMA_PRIVATE_BYTES <= bytes; at++) {
		const uint8_t *d = data + at;
		struct cursor c = {d, d + 4};
		uint32_t magic = 0;
		take_u32(&c, &magic);
		if (magic != RDMA_PRIVATE_MAGIC || d[4] != 1)
			continue;
		p->invalidate = d[5] & RDMA_PRIVATE_INVALIDATE;
		p->send_bytes = (d[6] + 1u) * 1024;
		p->receive_bytes = (d[7] + 1u) * 1024;
		return;
	}
}

void rdma_private_encode(uint8_t to[RDMA_PRIVATE_BYTES], const struct rdma_private *p)
{
	put_u32(to, RDMA_PRIVATE_MAGIC);
	to[4] = 1;
	to[5] = p->invalidate ? RDMA_PRIVATE_INVALIDATE : 0;
	to[6] = (uint8_t)(p->send_bytes / 1024 - 1);
	to[7] = (uint8_t)(p->receive_bytes / 1024 - 1);
}
