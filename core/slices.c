/*
 * Lists of slices: payload that lies in several buffers. All but the last three are arithmetic on the list; those
 * three touch the bytes, and the two that copy count what they copied, since every copy of payload is a cost that
 * somebody has to answer for.
 */
#include "core/core_internal.h"

#include <string.h>

uint64_t slices_bytes(const struct slice *v, unsigned n)
{
	uint64_t bytes = 0;
	for (unsigned i = 0; i < n; i++)
		bytes += v[i].len;
	return bytes;
}

void slices_put(const struct slice *v, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		buf_put(v[i].buf);
}

/* Where the next part of [off, off+len) lies: the address and, in *part, how much of it is in one slice. */
struct slice_cursor {
	const struct slice *v;
	unsigned n, i;
	uint64_t off, len;
};

static bool cursor_next(struct slice_cursor *c, struct slice *part)
{
	while (c->len && c->i < c->n) {
		const struct slice *s = &c->v[c->i++];
		if (c->off >= s->len) {
			c->off -= s->len;
			continue;
		}
		uint32_t skip = (uint32_t)c->off, len = s->len - skip;
		if (len > c->len)
			len = (uint32_t)c->len;
		*part = (struct slice){s->buf, s->off + skip, len};
		c->off = 0;
		c->len -= len;
		return true;
	}
	return false;
}

int slices_cut(const struct slice *v, unsigned n, uint64_t off, uint64_t len, struct slice *out, unsigned max)
{
	struct slice_cursor c = {v, n, 0, off, len};
	struct slice part;
	unsigned count = 0;
	while (cursor_next(&c, &part)) {
		if (count == max)
			return -ENOSPC;
		out[count++] = part;
	}
	return (int)count;
}

void slices_copy_in(const struct slice *v, unsigned n, uint64_t off, const void *from, uint64_t len)
{
	struct slice_cursor c = {v, n, 0, off, len};
	const uint8_t *src = from;
	struct slice part;
	while (cursor_next(&c, &part)) {
		memcpy(slice_data(&part), src, part.len);
		src += part.len;
	}
	assert(!c.len && "the list holds what is copied");
	counter_add(&metric_copied_bytes, len);
}

void slices_copy_out(const struct slice *v, unsigned n, uint64_t off, void *to, uint64_t len)
{
	struct slice_cursor c = {v, n, 0, off, len};
	uint8_t *dst = to;
	struct slice part;
	while (cursor_next(&c, &part)) {
		memcpy(dst, slice_data(&part), part.len);
		dst += part.len;
	}
	assert(!c.len && "the list holds what is copied");
	counter_add(&metric_copied_bytes, len);
}

void slices_zero(const struct slice *v, unsigned n, uint64_t off, uint64_t len)
{
	struct slice_cursor c = {v, n, 0, off, len};
	struct slice part;
	while (cursor_next(&c, &part))
		memset(slice_data(&part), 0, part.len);
	assert(!c.len && "the list holds what is zeroed");
}
