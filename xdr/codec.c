/*
 * The primitives of the codec that are more than a word: opaques, payloads, and the step from one
 * piece of a message to the next.
 *
 * Owns nothing: memory is the caller's message and pool. Runs in any context and never waits. Every
 * length comes from a peer: it is compared with what is left before anything is done with it, in
 * arithmetic that cannot wrap. The error policy is one bit: false, and the caller gives up the message.
 */
#include "xdr/xdr.h"

/* The next piece becomes the window, which must be used up. */
static void in_step(struct xdr_in *in)
{
	in->base_pos += (uint32_t)(in->end - in->base);
	in->base = in->p = in->piece->data + in->piece_off;
	in->end = in->piece->data + in->piece->len;
	in->piece_bytes -= in->piece->len - in->piece_off;
	in->piece_off = 0;
	in->piece++;
}

bool xdr_in_pull(struct xdr_in *in, size_t bytes)
{
	if (bytes > xdr_in_left(in) || !in->piece_bytes)
		return false;
	if (in->p == in->end) {
		do
			in_step(in);
		while (in->p == in->end);
		if ((size_t)(in->end - in->p) >= bytes)
			return true;
	}
	/* The value straddles pieces: a copy of it in the pool becomes the window. */
	uint8_t *to = xdr_pool_take(in->pool, bytes);
	if (!to)
		return false;
	size_t have = (size_t)(in->end - in->p);
	in->base_pos = xdr_in_pos(in);
	memcpy(to, in->p, have);
	while (have < bytes) {
		uint32_t some = in->piece->len - in->piece_off;
		if (some > bytes - have)
			some = (uint32_t)(bytes - have);
		memcpy(to + have, in->piece->data + in->piece_off, some);
		have += some;
		in->piece_off += some;
		in->piece_bytes -= some;
		if (in->piece_off == in->piece->len) {
			in->piece++;
			in->piece_off = 0;
		}
	}
	in->base = in->p = to;
	in->end = to + bytes;
	return true;
}

bool xdr_put_opaque(struct xdr_out *out, const void *data, uint32_t len)
{
	uint32_t total;
	if (!xdr_padded(len, &total) || !xdr_out_room(out, (size_t)total + 4))
		return false;
	xdr_lay_u32(out, len);
	return xdr_put_fixed(out, data, len);
}

bool xdr_get_fixed(struct xdr_in *in, void *to, uint32_t len)
{
	uint32_t total;
	if (!xdr_padded(len, &total) || !xdr_in_room(in, total))
		return false;
	if (len)
		memcpy(to, in->p, len);
	in->p += total;
	return true;
}

bool xdr_put_fixed(struct xdr_out *out, const void *data, uint32_t len)
{
	uint32_t total;
	if (!xdr_padded(len, &total) || !xdr_out_room(out, total))
		return false;
	if (len) {
		memset(out->p + total - 4, 0, 4); /* the padding, then the data over it */
		memcpy(out->p, data, len);
	}
	out->p += total;
	return true;
}

bool xdr_get_payload(struct xdr_in *in, uint32_t max, struct xdr_payload *v)
{
	uint32_t len, total;
	if (!xdr_get_u32(in, &len) || len > max || !xdr_padded(len, &total))
		return false;
	v->len = len;
	v->pos = xdr_in_pos(in) - in->reduced_bytes;
	v->chunk = 0;
	v->inline_data = NULL;
	if (xdr_in_pos(in) == in->reduced_pos) {
		/* RFC 8166 3.4.5: the chunk may hold the padding or not; the stream does not */
		bool fits = in->reduced_len >= len && in->reduced_len <= total;
		v->chunk = ++in->reduced_taken;
		in->reduced_bytes += total;
		in->base_pos += total;
		xdr_in_reduced(in, in->reduced, in->reduced_left);
		return fits;
	}
	if ((size_t)(in->end - in->p) >= total) {
		v->inline_data = in->p;
		in->p += total;
		return true;
	}
	if (total > xdr_in_left(in))
		return false;
	while ((size_t)(in->end - in->p) < total) {
		total -= (uint32_t)(in->end - in->p);
		in->p = in->end;
		in_step(in);
	}
	in->p += total;
	return true;
}

bool xdr_put_payload(struct xdr_out *out, struct xdr_payload *v)
{
	if (out->payloads == XDR_PAYLOADS_MAX || !xdr_put_u32(out, v->len))
		return false;
	v->pos = (uint32_t)(out->p - out->base);
	out->payload[out->payloads++] = *v;
	return true;
}
