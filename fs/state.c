/*
 * State records: small named values that the server keeps in a file system for itself (which clients to tell after a
 * restart), in the same transactions and under the same checksums as everything else. They belong to no inode, so no
 * client can name them, and snapshots do not have them.
 *
 * KEY_STATE, off: kind (8 bits), hash of the name (48 bits), a number that tells names of equal hash apart (8 bits).
 * One value holds name and data. A name is looked for under all numbers of its hash, so that gaps do not matter.
 */
#include "fs/inode_internal.h"

#define STATE_COLLISIONS 256u

struct state_call {
	uint8_t kind;
	const void *name, *data;
	size_t name_len, data_len;
	bool remove;
	uint64_t cookie;
	struct fs_state *record; /* what is to be written, or was read */
};

int state_decode(const void *val, size_t len, struct fs_state *record)
{
	struct state_disk d;

	if (len < sizeof(d))
		return -EIO;
	memcpy(&d, val, sizeof(d));
	record->name_len = le16_get(d.name_len);
	record->data_len = le16_get(d.data_len);
	if (!record->name_len || record->name_len > FS_STATE_NAME_MAX || record->data_len > FS_STATE_DATA_MAX ||
		len != sizeof(d) + record->name_len + record->data_len)
		return -EIO;
	memcpy(record->name, (const uint8_t *)val + sizeof(d), record->name_len);
	memcpy(record->data, (const uint8_t *)val + sizeof(d) + record->name_len, record->data_len);
	return 0;
}

/* The first record from KEY on up to offset LAST. */
static int state_next(struct tx *tx, struct fs_key *key, uint64_t last, struct fs_state *record)
{
	const void *val;
	size_t len;
	int r = tx_next(tx, key, &val, &len);

	if (r == 0 && (key->ino != 0 || key->type != KEY_STATE || key->off > last))
		return -ENOENT;
	if (r == 0 && (r = state_decode(val, len, record)) < 0)
		log_error("fs", "state record makes no sense off=%llx", (unsigned long long)key->off);
	return r;
}

/* 0: KEY and the call's record are what was found. -ENOENT: KEY is where it may go. */
static int state_find(struct tx *tx, const struct state_call *c, struct fs_key *key)
{
	uint64_t hash = name_hash(tx_fs(tx), c->name, c->name_len) & (UINT64_MAX >> 16);
	uint64_t first = (uint64_t)c->kind << 56 | hash << 8, free_at = first;
	struct fs_key at = {.type = KEY_STATE, .off = first};
	int r;

	while ((r = state_next(tx, &at, first + (STATE_COLLISIONS - 1), c->record)) == 0) {
		if (c->record->name_len == c->name_len && !memcmp(c->record->name, c->name, c->name_len)) {
			*key = at;
			return 0;
		}
		if (at.off == free_at)
			free_at++;
		at.off++;
		at.snap = 0;
	}
	*key = (struct fs_key){.type = KEY_STATE, .off = free_at};
	return r == -ENOENT && free_at - first >= STATE_COLLISIONS && !c->remove ? -ENOSPC : r;
}

static int get_pass(struct tx *tx, void *arg)
{
	struct state_call *c = arg;
	struct fs_key key;

	return state_find(tx, c, &key);
}

static int set_pass(struct tx *tx, void *arg)
{
	struct state_call *c = arg;
	struct fs_key key;
	int r = state_find(tx, c, &key);

	if (c->remove)
		return r == -ENOENT ? 0 : r < 0 ? r : tx_delete(tx, &key);
	if (r < 0 && r != -ENOENT)
		return r;
	uint8_t value[TREE_VALUE_MAX];
	struct state_disk head = {
		.name_len = le16_put((uint16_t)c->name_len), .data_len = le16_put((uint16_t)c->data_len)};
	memcpy(value, &head, sizeof(head));
	memcpy(value + sizeof(head), c->name, c->name_len);
	if (c->data_len)
		memcpy(value + sizeof(head) + c->name_len, c->data, c->data_len);
	return tx_put(tx, &key, value, sizeof(head) + c->name_len + c->data_len);
}

static int next_pass(struct tx *tx, void *arg)
{
	struct state_call *c = arg;
	uint64_t first = (uint64_t)c->kind << 56;
	struct fs_key key = {.type = KEY_STATE, .off = first + c->cookie};
	int r = state_next(tx, &key, first | (UINT64_MAX >> 8), c->record);

	if (r == 0)
		c->record->cookie = key.off - first + 1;
	return r;
}

/* With memory for a record, which the caller frees. */
static int state_run(struct fs *fs, struct state_call *c, bool change)
{
	if (!c->name_len || c->name_len > FS_STATE_NAME_MAX || c->data_len > FS_STATE_DATA_MAX)
		return -EINVAL;
	c->record = malloc(sizeof(*c->record));
	if (!c->record)
		return -EAGAIN;
	return change ? files_transact(fs, set_pass, c) : files_view(fs, get_pass, c);
}

int fs_state_put(struct fs *fs, uint8_t kind, const void *name, size_t name_len, const void *data, size_t data_len)
{
	struct state_call c = {.kind = kind, .name = name, .name_len = name_len, .data = data, .data_len = data_len};
	int r = state_run(fs, &c, true);

	free(c.record);
	return r;
}

int fs_state_delete(struct fs *fs, uint8_t kind, const void *name, size_t name_len)
{
	struct state_call c = {.kind = kind, .name = name, .name_len = name_len, .remove = true};
	int r = state_run(fs, &c, true);

	free(c.record);
	return r;
}

int fs_state_get(
	struct fs *fs, uint8_t kind, const void *name, size_t name_len, void *data, size_t room, size_t *data_len)
{
	struct state_call c = {.kind = kind, .name = name, .name_len = name_len};
	int r = state_run(fs, &c, false);

	if (r == 0) {
		*data_len = c.record->data_len;
		if (c.record->data_len <= room)
			memcpy(data, c.record->data, c.record->data_len);
	}
	free(c.record);
	return r;
}

int fs_state_next(struct fs *fs, uint8_t kind, struct fs_state *record)
{
	struct state_call c = {.kind = kind, .cookie = record->cookie, .record = record};

	return files_view(fs, next_pass, &c);
}
