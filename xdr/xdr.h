/*
 * xdr: the codec (RFC 4506) that xdrgen.py makes from the .x files.
 *
 * For every type T of a .x file there are, in "xdr/NAME.h" (made at build time):
 *     bool xdr_decode_T(struct xdr_in *in, T *value);
 *     bool xdr_encode_T(struct xdr_out *out, const T *value);
 *     #define XDR_MAX_T  most bytes of its encoding, where it is bounded
 * Decoding checks every length before use and takes memory for arrays and lists from in->pool only;
 * strings and opaques point into the message. Encoding fails instead of writing beyond its room.
 * Both are ordinary code: no callback, no recursion on what a peer sends (a list is a loop), no abort.
 *
 * Types: opaque<> and string<> become struct xdr_opaque, opaque[n] an array of bytes; bool, enum, int
 * and hyper as in C; T<> a count and a pointer; `T *next` at the end of a struct a linked list; a
 * union its discriminant and a C union. Identifiers are those of the protocol.
 */
#ifndef FURROW_XDR_H
#define FURROW_XDR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct xdr_opaque {
	const uint8_t *data;
	uint32_t len;
};

/*
 * The bulk of a READ or WRITE, which is not copied through the codec. xdrgen.py is told which opaque
 * fields become one. Decoded: len bytes that stand at pos in the message's XDR stream, or in a Read
 * chunk with that position (RFC 8166 3.4). Encoded: len bytes (and padding) to be put in at pos.
 */
struct xdr_payload {
	uint32_t len;
	uint32_t pos;          /* bytes from the start of the RPC message */
	const uint8_t *inline_data; /* where they are in the message when they came inline, else NULL */
};

/* Memory of one message: a bump allocator over room that its owner provides. */
struct xdr_pool {
	uint8_t *base;
	size_t used, room;
};
static inline void *xdr_pool_take(struct xdr_pool *pool, size_t bytes)
{
	size_t at = (pool->used + 15) & ~(size_t)15;
	if (bytes > pool->room || at > pool->room - bytes)
		return NULL;
	pool->used = at + bytes;
	return pool->base + at;
}

/* A message being read. base is the start of the RPC message, for positions. */
struct xdr_in {
	const uint8_t *base, *p, *end;
	struct xdr_pool *pool;
	uint32_t reduced_pos;  /* position of the data that a Read chunk took out of the stream; UINT32_MAX: none */
	uint32_t reduced_len;  /* its bytes */
};
/* A message being written; several payloads (NFSv4 COMPOUND) at most. */
#define XDR_PAYLOADS_MAX 8
struct xdr_out {
	uint8_t *base, *p, *end;
	struct xdr_payload payload[XDR_PAYLOADS_MAX];
	unsigned payloads;
};

static inline bool xdr_in_room(const struct xdr_in *in, size_t bytes)
{
	return (size_t)(in->end - in->p) >= bytes;
}
static inline bool xdr_get_u32(struct xdr_in *in, uint32_t *v)
{
	uint32_t x;
	if (!xdr_in_room(in, 4))
		return false;
	memcpy(&x, in->p, 4);
	in->p += 4;
	*v = __builtin_bswap32(x);
	return true;
}
static inline bool xdr_get_u64(struct xdr_in *in, uint64_t *v)
{
	uint64_t x;
	if (!xdr_in_room(in, 8))
		return false;
	memcpy(&x, in->p, 8);
	in->p += 8;
	*v = __builtin_bswap64(x);
	return true;
}
static inline bool xdr_put_u32(struct xdr_out *out, uint32_t v)
{
	if ((size_t)(out->end - out->p) < 4)
		return false;
	v = __builtin_bswap32(v);
	memcpy(out->p, &v, 4);
	out->p += 4;
	return true;
}
static inline bool xdr_put_u64(struct xdr_out *out, uint64_t v)
{
	if ((size_t)(out->end - out->p) < 8)
		return false;
	v = __builtin_bswap64(v);
	memcpy(out->p, &v, 8);
	out->p += 8;
	return true;
}
static inline uint32_t xdr_round(uint32_t len)
{
	return (len + 3) & ~3u;
}
/* LEN <= MAX is checked; padding must be inside the message. */
bool xdr_get_opaque(struct xdr_in *in, uint32_t max, struct xdr_opaque *v);
bool xdr_put_opaque(struct xdr_out *out, const void *data, uint32_t len);
bool xdr_get_fixed(struct xdr_in *in, void *to, uint32_t len);
bool xdr_put_fixed(struct xdr_out *out, const void *data, uint32_t len);
bool xdr_get_payload(struct xdr_in *in, uint32_t max, struct xdr_payload *v);
bool xdr_put_payload(struct xdr_out *out, struct xdr_payload *v);

#endif
