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
 * and hyper as in C; T<> a count and a pointer (.count, .item); T * a pointer or NULL; `T *next` at the end of a
 * struct a linked list; a union its discriminant and an unnamed C union (res.status, res.resok). Identifiers
 * are those of the protocol. XDR_MAX_T counts a payload's length word, not the payload.
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
 * fields become one. Decoded: len bytes that stand at pos in the message as it came, or in a Read
 * chunk (RFC 8166 3.4). Encoded: len bytes (and padding) to be put in at pos.
 */
struct xdr_payload {
	uint32_t len;
	/*
	 * Decoded: bytes from the start of the RPC message, where what chunks took out takes no room. Encoded: bytes
	 * from xdr_out.base, where payloads before it take no room.
	 */
	uint32_t pos;
	uint32_t chunk;		    /* decoded: which of xdr_in_reduced() it is, from 1 on; 0: it came inline */
	const uint8_t *inline_data; /* where they are, when they came inline and in one piece, else NULL */
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

/* A run of bytes of a message that was received into several buffers. */
struct xdr_piece {
	const uint8_t *data;
	uint32_t len;
};

/* LEN bytes that a Read chunk took out of the stream at POS, which counts the stream as it was before. */
struct xdr_reduced {
	uint32_t pos, len;
};

/*
 * A message being read: the window [p, end), then the pieces. A value that straddles two pieces is put
 * together in the pool, so that everything but a payload is read contiguously, whatever the cuts are. A copy of
 * the struct reads on by itself (with its own pool, if its memory is not to stay).
 */
struct xdr_in {
	const uint8_t *base, *p, *end;
	struct xdr_pool *pool;
	uint32_t reduced_pos; /* the next data that a Read chunk took out of the stream; UINT32_MAX: none */
	uint32_t reduced_len;
	const struct xdr_reduced *reduced; /* those behind it, in order of pos */
	uint32_t reduced_left;
	uint32_t reduced_taken; /* chunks that became a payload */
	uint32_t reduced_bytes; /* of them, with padding */
	uint32_t base_pos;    /* position of base in the RPC message; 0 unless there are pieces, or chunks before it */
	uint32_t piece_off;   /* bytes of the first piece that were taken already */
	uint32_t piece_bytes; /* bytes that all pieces still hold */
	const struct xdr_piece *piece; /* what follows end; NULL: nothing */
};
static inline void xdr_in_init(struct xdr_in *in, const void *data, size_t len, struct xdr_pool *pool)
{
	*in = (struct xdr_in){
		.base = data, .p = data, .end = (const uint8_t *)data + len, .pool = pool, .reduced_pos = UINT32_MAX};
}
/* Chunks took N payloads out of the message; V stays. */
static inline void xdr_in_reduced(struct xdr_in *in, const struct xdr_reduced *v, uint32_t n)
{
	in->reduced_pos = n ? v[0].pos : UINT32_MAX;
	in->reduced_len = n ? v[0].len : 0;
	in->reduced = v + (n > 0);
	in->reduced_left = n - (n > 0);
}
/* Position in the RPC message. */
static inline uint32_t xdr_in_pos(const struct xdr_in *in)
{
	return in->base_pos + (uint32_t)(in->p - in->base);
}
/* Bytes that are left, in all pieces. */
static inline size_t xdr_in_left(const struct xdr_in *in)
{
	return (size_t)(in->end - in->p) + in->piece_bytes;
}
bool xdr_in_pull(struct xdr_in *in, size_t bytes); /* the slow half of xdr_in_room() */

/* A message being written; several payloads (NFSv4 COMPOUND) at most. */
#define XDR_PAYLOADS_MAX 8
struct xdr_out {
	uint8_t *base, *p, *end;
	struct xdr_payload payload[XDR_PAYLOADS_MAX];
	unsigned payloads;
};

static inline void xdr_out_init(struct xdr_out *out, void *data, size_t room)
{
	out->base = out->p = data;
	out->end = out->base + room;
	out->payloads = 0;
}

/* True when BYTES can be read at p without a further check. */
static inline bool xdr_in_room(struct xdr_in *in, size_t bytes)
{
	return (size_t)(in->end - in->p) >= bytes || xdr_in_pull(in, bytes);
}
static inline bool xdr_out_room(const struct xdr_out *out, size_t bytes)
{
	return (size_t)(out->end - out->p) >= bytes;
}

/* take and lay: after a check of room. */
static inline uint32_t xdr_take_u32(struct xdr_in *in)
{
	uint32_t x;
	memcpy(&x, in->p, 4);
	in->p += 4;
	return __builtin_bswap32(x);
}
static inline uint64_t xdr_take_u64(struct xdr_in *in)
{
	uint64_t x;
	memcpy(&x, in->p, 8);
	in->p += 8;
	return __builtin_bswap64(x);
}
static inline int32_t xdr_take_i32(struct xdr_in *in)
{
	return (int32_t)xdr_take_u32(in);
}
static inline int64_t xdr_take_i64(struct xdr_in *in)
{
	return (int64_t)xdr_take_u64(in);
}
/* LEN: a multiple of four */
static inline void xdr_take_fixed(struct xdr_in *in, void *to, uint32_t len)
{
	memcpy(to, in->p, len);
	in->p += len;
}
static inline void xdr_lay_u32(struct xdr_out *out, uint32_t v)
{
	v = __builtin_bswap32(v);
	memcpy(out->p, &v, 4);
	out->p += 4;
}
static inline void xdr_lay_u64(struct xdr_out *out, uint64_t v)
{
	v = __builtin_bswap64(v);
	memcpy(out->p, &v, 8);
	out->p += 8;
}
static inline void xdr_lay_i32(struct xdr_out *out, int32_t v)
{
	xdr_lay_u32(out, (uint32_t)v);
}
static inline void xdr_lay_i64(struct xdr_out *out, int64_t v)
{
	xdr_lay_u64(out, (uint64_t)v);
}
static inline void xdr_lay_fixed(struct xdr_out *out, const void *data, uint32_t len)
{
	memcpy(out->p, data, len);
	out->p += len;
}

/* get and put: false when there is no room. */
static inline bool xdr_get_u32(struct xdr_in *in, uint32_t *v)
{
	if (!xdr_in_room(in, 4))
		return false;
	*v = xdr_take_u32(in);
	return true;
}
static inline bool xdr_get_u64(struct xdr_in *in, uint64_t *v)
{
	if (!xdr_in_room(in, 8))
		return false;
	*v = xdr_take_u64(in);
	return true;
}
static inline bool xdr_get_i32(struct xdr_in *in, int32_t *v)
{
	if (!xdr_in_room(in, 4))
		return false;
	*v = xdr_take_i32(in);
	return true;
}
static inline bool xdr_get_i64(struct xdr_in *in, int64_t *v)
{
	if (!xdr_in_room(in, 8))
		return false;
	*v = xdr_take_i64(in);
	return true;
}
/* Only 0 and 1 are values of a bool. */
static inline bool xdr_get_bool(struct xdr_in *in, bool *v)
{
	uint32_t x;
	if (!xdr_get_u32(in, &x) || x > 1)
		return false;
	*v = x != 0;
	return true;
}
static inline bool xdr_put_u32(struct xdr_out *out, uint32_t v)
{
	if (!xdr_out_room(out, 4))
		return false;
	xdr_lay_u32(out, v);
	return true;
}
static inline bool xdr_put_u64(struct xdr_out *out, uint64_t v)
{
	if (!xdr_out_room(out, 8))
		return false;
	xdr_lay_u64(out, v);
	return true;
}
static inline bool xdr_put_i32(struct xdr_out *out, int32_t v)
{
	return xdr_put_u32(out, (uint32_t)v);
}
static inline bool xdr_put_i64(struct xdr_out *out, int64_t v)
{
	return xdr_put_u64(out, (uint64_t)v);
}
static inline bool xdr_put_bool(struct xdr_out *out, bool v)
{
	return xdr_put_u32(out, v);
}
static inline uint32_t xdr_round(uint32_t len)
{
	return (len + 3) & ~3u;
}
/* Bytes with padding; false when no message can be that long. */
static inline bool xdr_padded(uint32_t len, uint32_t *total)
{
	*total = xdr_round(len);
	return *total >= len;
}
/* LEN <= MAX is checked; padding must be inside the message. */
static inline bool xdr_get_opaque(struct xdr_in *in, uint32_t max, struct xdr_opaque *v)
{
	uint32_t len, total;
	if (!xdr_get_u32(in, &len) || len > max || !xdr_padded(len, &total) || !xdr_in_room(in, total))
		return false;
	v->data = in->p;
	v->len = len;
	in->p += total;
	return true;
}
bool xdr_put_opaque(struct xdr_out *out, const void *data, uint32_t len);
bool xdr_get_fixed(struct xdr_in *in, void *to, uint32_t len);
bool xdr_put_fixed(struct xdr_out *out, const void *data, uint32_t len);
bool xdr_get_payload(struct xdr_in *in, uint32_t max, struct xdr_payload *v);
/* Writes the length, sets v->pos, and notes *v in out->payload[]; the bytes themselves are not the codec's. */
bool xdr_put_payload(struct xdr_out *out, struct xdr_payload *v);

#endif
