/*
 * The image of a tree node: 16 KiB in an arena buffer, in memory exactly as on the drives.
 *
 * A slotted page: the header, then the slots with their whole keys in ascending order, so that a
 * search touches nothing else; values grow from the end downwards. A removed value leaves garbage,
 * which is squeezed out when its room is needed. Nothing here waits or takes memory, so that a
 * transaction can be applied without a chance to fail.
 *
 * image_verify() is the only gate for what comes from a drive: afterwards every slot is in order and
 * within bounds, and the code above need not look again. Any bytes at all may be handed to it.
 */
#include "fs/fs_internal.h"

#define SLOT_BYTES ((unsigned)sizeof(struct slot_disk))

/* For squeezing: too large for a fiber's stack, and never in use over a wait. */
static _Thread_local uint8_t scratch[TREE_NODE_BYTES];

void image_init(uint8_t *image, unsigned level)
{
	struct node_disk *h = image_header(image);
	memset(image, 0, TREE_NODE_BYTES);
	h->magic = le32_put(NODE_MAGIC);
	h->level = (uint8_t)level;
	h->heap = le16_put(TREE_NODE_BYTES);
}

bool image_find(uint8_t *image, const struct pkey *key, unsigned *slot)
{
	const struct slot_disk *s = image_slots(image);
	unsigned low = 0, high = image_count(image);

	while (low < high) {
		unsigned mid = (low + high) / 2;
		struct pkey k = pkey_read(&s[mid].key);
		int c = pkey_compare(&k, key);
		if (c == 0) {
			*slot = mid;
			return true;
		}
		if (c < 0)
			low = mid + 1;
		else
			high = mid;
	}
	*slot = low;
	return false;
}

unsigned image_child(uint8_t *image, const struct pkey *key)
{
	unsigned slot;
	if (image_find(image, key, &slot) || slot == 0)
		return slot;
	return slot - 1;
}

unsigned image_used(uint8_t *image)
{
	const struct node_disk *h = image_header(image);
	return le16_get(h->count) * SLOT_BYTES + (TREE_NODE_BYTES - le16_get(h->heap)) - le16_get(h->garbage);
}

/* Room between the slots and the heap. */
static unsigned image_gap(uint8_t *image)
{
	const struct node_disk *h = image_header(image);
	return le16_get(h->heap) - (unsigned)sizeof(*h) - le16_get(h->count) * SLOT_BYTES;
}

static void image_squeeze(uint8_t *image)
{
	struct node_disk *h = image_header(image);
	struct slot_disk *s = image_slots(image);
	unsigned count = le16_get(h->count), heap = TREE_NODE_BYTES;

	for (unsigned i = 0; i < count; i++) {
		unsigned len = le16_get(s[i].len);
		heap -= len;
		memcpy(scratch + heap, image + le16_get(s[i].off), len);
		s[i].off = le16_put((uint16_t)heap);
	}
	memcpy(image + heap, scratch + heap, TREE_NODE_BYTES - heap);
	h->heap = le16_put((uint16_t)heap);
	h->garbage = le16_put(0);
}

/* Takes LEN bytes off the heap; the caller has seen that they are there after a squeeze. */
static unsigned image_heap_take(uint8_t *image, unsigned gap_needed, size_t len)
{
	struct node_disk *h = image_header(image);
	if (image_gap(image) < gap_needed)
		image_squeeze(image);
	unsigned heap = le16_get(h->heap) - (unsigned)len;
	h->heap = le16_put((uint16_t)heap);
	return heap;
}

static void image_garbage_add(uint8_t *image, unsigned len)
{
	struct node_disk *h = image_header(image);
	h->garbage = le16_put((uint16_t)(le16_get(h->garbage) + len));
}

bool image_fits(uint8_t *image, size_t len)
{
	return image_used(image) + SLOT_BYTES + len <= NODE_ROOM;
}

bool image_insert(uint8_t *image, unsigned slot, const struct pkey *key, const void *val, size_t len)
{
	struct node_disk *h = image_header(image);
	struct slot_disk *s = image_slots(image);
	unsigned count = le16_get(h->count);

	if (!image_fits(image, len))
		return false;
	unsigned off = image_heap_take(image, SLOT_BYTES + (unsigned)len, len);
	if (len)
		memcpy(image + off, val, len);
	memmove(s + slot + 1, s + slot, (count - slot) * SLOT_BYTES);
	s[slot] = (struct slot_disk){pkey_write(key), le16_put((uint16_t)off), le16_put((uint16_t)len)};
	h->count = le16_put((uint16_t)(count + 1));
	return true;
}

bool image_replace(uint8_t *image, unsigned slot, const void *val, size_t len)
{
	struct slot_disk *s = image_slots(image) + slot;
	unsigned old = le16_get(s->len);

	if (len <= old) {
		if (len)
			memcpy(image + le16_get(s->off), val, len);
		image_garbage_add(image, old - (unsigned)len);
		s->len = le16_put((uint16_t)len);
		return true;
	}
	if (image_used(image) - old + len > NODE_ROOM)
		return false;
	image_garbage_add(image, old);
	s->len = le16_put(0);
	unsigned off = image_heap_take(image, (unsigned)len, len);
	if (len)
		memcpy(image + off, val, len);
	s->off = le16_put((uint16_t)off);
	s->len = le16_put((uint16_t)len);
	return true;
}

void image_set_key(uint8_t *image, unsigned slot, const struct pkey *key)
{
	image_slots(image)[slot].key = pkey_write(key);
}

void image_remove(uint8_t *image, unsigned slot)
{
	struct node_disk *h = image_header(image);
	struct slot_disk *s = image_slots(image);
	unsigned count = le16_get(h->count);

	image_garbage_add(image, le16_get(s[slot].len));
	memmove(s + slot, s + slot + 1, (count - slot - 1) * SLOT_BYTES);
	h->count = le16_put((uint16_t)(count - 1));
	if (count == 1) {
		h->heap = le16_put(TREE_NODE_BYTES);
		h->garbage = le16_put(0);
	}
}

/*
 * In the middle by bytes; but where the new entry comes to the end, keys are likely to go on in
 * ascending order, and the left half keeps four fifths. Either way both halves keep
 * NODE_SPLIT_ROOM free: an entry has at most 3,100 of 16,320 bytes.
 */
unsigned image_split_at(uint8_t *image, unsigned slot, size_t len)
{
	const struct slot_disk *s = image_slots(image);
	unsigned count = image_count(image), total = image_used(image) + SLOT_BYTES + (unsigned)len;
	unsigned want = slot == count ? (unsigned)NODE_ROOM * 4 / 5 : total / 2;
	unsigned left = 0, i;

	for (i = 0; i + 1 < count; i++) {
		unsigned entry = SLOT_BYTES + le16_get(s[i].len);
		if (i == slot)
			left += SLOT_BYTES + (unsigned)len;
		if (i > 0 && left + entry > want)
			break;
		left += entry;
	}
	return i > 0 ? i : 1;
}

void image_append(uint8_t *image, uint8_t *from, unsigned first, unsigned end)
{
	struct node_disk *h = image_header(image);
	const struct slot_disk *s = image_slots(from);
	struct slot_disk *to = image_slots(image);
	unsigned into = le16_get(h->count), bytes = 0;

	for (unsigned i = first; i < end; i++)
		bytes += le16_get(s[i].len);
	if (image_gap(image) < bytes + (end - first) * SLOT_BYTES)
		image_squeeze(image);
	unsigned heap = le16_get(h->heap);
	for (unsigned i = first; i < end; i++) {
		unsigned len = le16_get(s[i].len);
		heap -= len;
		memcpy(image + heap, from + le16_get(s[i].off), len);
		to[into] = s[i];
		to[into++].off = le16_put((uint16_t)heap);
	}
	h->heap = le16_put((uint16_t)heap);
	h->count = le16_put((uint16_t)into);
}

void image_behead(uint8_t *image, unsigned n)
{
	struct node_disk *h = image_header(image);
	struct slot_disk *s = image_slots(image);
	unsigned count = le16_get(h->count), bytes = 0;

	for (unsigned i = 0; i < n; i++)
		bytes += le16_get(s[i].len);
	image_garbage_add(image, bytes);
	memmove(s, s + n, (count - n) * SLOT_BYTES);
	h->count = le16_put((uint16_t)(count - n));
}

void image_truncate(uint8_t *image, unsigned count)
{
	struct node_disk *h = image_header(image);
	const struct slot_disk *s = image_slots(image);
	unsigned bytes = 0;

	for (unsigned i = count; i < le16_get(h->count); i++)
		bytes += le16_get(s[i].len);
	image_garbage_add(image, bytes);
	h->count = le16_put((uint16_t)count);
}

static uint64_t image_checksum(uint8_t *image)
{
	struct node_disk *h = image_header(image);
	le64 kept = h->checksum;
	h->checksum = le64_put(0);
	uint64_t sum = checksum64(image, TREE_NODE_BYTES, 0);
	h->checksum = kept;
	return sum;
}

void image_seal(uint8_t *image)
{
	image_header(image)->checksum = le64_put(image_checksum(image));
}

/* No byte belongs to two values, which lie inside of the node. */
static bool values_apart(uint8_t *image)
{
	const struct slot_disk *s = image_slots(image);
	uint64_t taken[TREE_NODE_BYTES / 64] = {0};
	unsigned count = image_count(image);

	for (unsigned i = 0; i < count; i++) {
		unsigned off = le16_get(s[i].off), end = off + le16_get(s[i].len);

		while (off < end) {
			unsigned bit = off % 64, n = end - off < 64 - bit ? end - off : 64 - bit;
			uint64_t mask = (n == 64 ? UINT64_MAX : (1ull << n) - 1) << bit;

			if (taken[off / 64] & mask)
				return false;
			taken[off / 64] |= mask;
			off += n;
		}
	}
	return true;
}

const char *image_verify(uint8_t *image, const struct image_expect *expect)
{
	const struct node_disk *h = image_header(image);
	const struct slot_disk *s = image_slots(image);
	unsigned count = le16_get(h->count), heap = le16_get(h->heap);
	size_t values = 0;
	struct pkey last = {{0}};

	if (le32_get(h->magic) != NODE_MAGIC)
		return "no node magic";
	if (le64_get(h->checksum) != image_checksum(image))
		return "checksum does not match";
	if (memcmp(&h->uuid, expect->uuid, sizeof(h->uuid)))
		return "belongs to another file system";
	if (le64_get(h->block) != expect->block)
		return "written for another place";
	if (expect->generation && le64_get(h->generation) != expect->generation)
		return "stale (a lost write)";
	if (expect->level >= 0 ? h->level != expect->level : h->level >= NODE_LEVELS)
		return "wrong level";
	if (h->flags || count > NODE_ROOM / SLOT_BYTES)
		return "bad header";
	if (heap > TREE_NODE_BYTES || heap < sizeof(*h) + count * SLOT_BYTES)
		return "heap outside of its bounds";
	if (h->level && (count == 0 || count > NODE_FANOUT))
		return "bad number of children";
	for (unsigned i = 0; i < count; i++) {
		unsigned off = le16_get(s[i].off), len = le16_get(s[i].len);
		struct pkey k = pkey_read(&s[i].key);
		if (off < heap || off > TREE_NODE_BYTES || len > TREE_NODE_BYTES - off || len > TREE_VALUE_MAX)
			return "value outside of the node";
		if (h->level && len != sizeof(struct child_disk))
			return "bad length of a child";
		if (i && pkey_compare(&last, &k) >= 0)
			return "keys out of order";
		if (!h->level && k.w[2] & PKEY_RESERVED)
			return "a key has reserved bits";
		last = k;
		values += len;
	}
	if (values + le16_get(h->garbage) != TREE_NODE_BYTES - heap || !values_apart(image))
		return "values overlap";
	if (count) {
		struct pkey first = pkey_read(&s[0].key);
		if (pkey_compare(&first, &expect->lower) < 0 ||
			(expect->has_upper && pkey_compare(&last, &expect->upper) >= 0))
			return "keys outside of the node's range";
	}
	return NULL;
}
