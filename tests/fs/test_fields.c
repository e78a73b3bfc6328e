/*
 * One fault for each field of each structure on the drives: fs check names it, or the mount refuses it. The table has
 * every byte of every structure, so that a new field without a row fails this test; a row without a word is of a field
 * that may have any value.
 *
 * Each fault is planted alone in a file system with one of everything, which then is mounted and checked. Where it lies
 * below the tree (root records, nodes) it is planted in the drives' files, with the checksums put right.
 */
#include "tests/fs/files_test.h"
#include "tests/fs/image_test.h"

#define FILES 60u

static struct fs_id file, clone_id, dir, deep, link_id, held;
static uint64_t many_first;

/* ------------------------------------------------------------------------------------------------
 * A file system with one of everything
 */

static int world_make(struct files_test *t)
{
	static const struct fs_reply reply = {.client = 5, .xid = 6, .proc = 7, .checksum = 8};
	const struct fs_op op = {.cred = &cred_root, .reply = &reply};
	uint8_t data[4 * BLOCK_BYTES];
	struct fs_attr attr;
	struct fs_id id = {0};
	char name[80];
	int r = files_test_create(t, 1);

	memset(data, 7, sizeof(data));
	r = r ? r : t_mkdir(t, t->root, "dir", &dir);
	r = r ? r : t_mkdir(t, dir, "deep", &deep);
	r = r ? r : t_create(t, dir, "file", &file);
	r = r ? r : t_write(t, file, 0, data, sizeof(data), FS_FILE_SYNC);
	r = r ? r : fs_setxattr(t->fs, &op_root, file, "user.x", 6, data, 9000, FS_XATTR_EITHER, NULL);
	r = r ? r : fs_symlink(t->fs, &op_root, dir, "link", 4, "somewhere", 9, NULL, &attr, NULL);
	link_id = attr.id;
	r = r ? r : t_create(t, dir, "source", &id);
	r = r ? r : t_write(t, id, 0, data, sizeof(data), FS_FILE_SYNC);
	r = r ? r : t_create(t, dir, "clone", &clone_id);
	r = r ? r : fs_clone(t->fs, &op_root, id, 0, clone_id, 0, 0, NULL);
	r = r ? r : fs_snapshot_create(t->fs, "snapshot");
	r = r ? r : fs_state_put(t->fs, 3, "name", 4, "data", 4);
	r = r ? r : fs_mkdir(t->fs, &op, t->root, "marked", 6, NULL, &attr, NULL);
	for (unsigned i = 0; i < FILES && r == 0; i++) {
		snprintf(name, sizeof(name), "one of many files with a name of some length, this is number %u", i);
		r = t_create(t, t->root, name, &id);
		if (i == 0)
			many_first = id.ino;
		r = r ? r : t_write(t, id, 0, data, 5000, FS_FILE_SYNC);
	}
	r = r ? r : t_create(t, t->root, "held", &held);
	r = r ? r : fs_hold(t->fs, held);
	return r ? r : t_unlink(t, t->root, "held");
}

/* ------------------------------------------------------------------------------------------------
 * The table
 */

enum where { IN_TREE, IN_ROOT, IN_NODE };
struct row {
	const char *structure, *field;
	unsigned off, len;
	uint64_t value; /* or the bits that change, when that is what it is */
	const char *word;
};
struct structure {
	const char *name;
	enum where where;
	size_t bytes;
	struct fs_key key; /* of a record in the tree */
	bool next;	   /* the first record from there on */
};

#define S(type) sizeof(struct type)
static struct structure structures[] = {
	{"root_disk", IN_ROOT, 208, {0}, false},
	{"node_disk", IN_NODE, S(node_disk), {0}, false},
	{"slot_disk", IN_NODE, S(slot_disk), {0}, false},
	{"inode_disk of a file", IN_TREE, S(inode_disk), {.type = KEY_INODE}, false},
	{"inode_disk of a directory", IN_TREE, S(inode_disk), {.type = KEY_INODE}, false},
	{"name_disk", IN_TREE, S(name_disk), {.type = KEY_NAME}, true},
	{"entry_disk", IN_TREE, S(entry_disk), {.type = KEY_ENTRY, .off = 4}, false},
	{"extent_disk", IN_TREE, S(extent_disk) + 4, {.type = KEY_EXTENT}, false},
	{"extent_disk shared", IN_TREE, EXTENT_REF_BYTES, {.type = KEY_EXTENT}, false},
	{"share_disk", IN_TREE, S(share_disk), {.type = KEY_SHARE}, true},
	{"xattr_disk", IN_TREE, S(xattr_disk) + 6, {.type = KEY_XATTR}, true},
	{"orphan_disk", IN_TREE, S(orphan_disk), {.type = KEY_ORPHAN}, true},
	{"reply_disk", IN_TREE, S(reply_disk), {.type = KEY_REPLY}, true},
	{"stamp_disk", IN_TREE, S(stamp_disk), {.type = KEY_SNAPSHOT}, false},
	{"snapshot_disk", IN_TREE, S(snapshot_disk), {.type = KEY_SNAPSHOT, .off = 1}, false},
	{"state_disk", IN_TREE, S(state_disk), {.type = KEY_STATE}, true},
	{"counters_disk", IN_TREE, S(counters_disk), {.type = KEY_COUNTERS}, false},
	{"stripes_disk", IN_TREE, 4, {.type = KEY_STRIPES}, false},
	{"summary_disk", IN_TREE, S(summary_disk), {.type = KEY_SUMMARY}, true},
};

#define F(type, field, value, word)                                                                                    \
	{                                                                                                              \
#type, #field, offsetof(struct type, field), sizeof(((struct type *)0)->field), value, word            \
	}
#define G(name, type, field, value, word)                                                                              \
	{                                                                                                              \
		name, #field, offsetof(struct type, field), sizeof(((struct type *)0)->field), value, word             \
	}
#define ROOT(field) F(root_disk, field, 0x5a, "root record: copy")
#define FILE_(field, value, word) G("inode_disk of a file", inode_disk, field, value, word)
#define DIR_(field, value, word) G("inode_disk of a directory", inode_disk, field, value, word)
#define REF_(field, value, word) G("extent_disk shared", extent_disk, field, value, word)
static const struct row rows[] = {
	ROOT(magic),
	ROOT(checksum),
	ROOT(version),
	ROOT(incompat),
	ROOT(ro_compat),
	ROOT(compat),
	ROOT(uuid),
	ROOT(volume_uuid),
	ROOT(fsid),
	ROOT(created_ns),
	ROOT(k),
	ROOT(strip_blocks),
	ROOT(stripes),
	ROOT(log_blocks),
	ROOT(generation),
	ROOT(written_ns),
	ROOT(mounts),
	ROOT(verifier),
	ROOT(change),
	ROOT(checkpoint),
	ROOT(tree_block),
	ROOT(tree_generation),
	ROOT(log_position),
	ROOT(log_chain),
	ROOT(log_sequence),
	ROOT(log_needed),
	ROOT(tree_level),
	ROOT(clean),
	ROOT(reserved),
	F(node_disk, magic, 1, "cannot be read"),
	F(node_disk, level, 3, "cannot be read"),
	F(node_disk, flags, 1, "cannot be read"),
	F(node_disk, count, 1, "cannot be read"),
	F(node_disk, checksum, 1, "cannot be read"),
	F(node_disk, uuid, 1, "cannot be read"),
	F(node_disk, block, 1, "cannot be read"),
	F(node_disk, generation, 1, "cannot be read"),
	F(node_disk, heap, 1, "cannot be read"),
	F(node_disk, garbage, 1, "cannot be read"),
	F(node_disk, reserved, 0, NULL),
	F(slot_disk, key, 0x80, "cannot be read"),
	F(slot_disk, off, 1, "cannot be read"),
	F(slot_disk, len, 1, "cannot be read"),
	FILE_(generation, 12345, "not what its name says"),
	FILE_(type, FS_FIFO, "has data but is no file"),
	FILE_(reserved0, 0, NULL),
	FILE_(mode, 0xf000, "makes no sense"),
	FILE_(nlink, 2, "links"),
	FILE_(uid, 0, NULL),
	FILE_(gid, 0, NULL),
	FILE_(rdev_major, 0, NULL),
	FILE_(rdev_minor, 0, NULL),
	FILE_(flags, 0, "does not say so"),
	FILE_(size, 5, "data goes up to"),
	FILE_(blocks, 9, "blocks of data"),
	FILE_(change, 0, NULL),
	FILE_(atime, 0, NULL),
	FILE_(mtime, 0, NULL),
	FILE_(ctime, 0, NULL),
	FILE_(btime, 0, NULL),
	FILE_(aux, 0, NULL) /* the verifier of a create */,
	FILE_(next_seq, 0, NULL) /* of directories only */,
	FILE_(reserved1, 0, NULL),
	DIR_(generation, 12345, "not what its name says"),
	DIR_(type, FS_REG, "has names but is no directory"),
	DIR_(reserved0, 0, NULL),
	DIR_(mode, 0xf000, "makes no sense"),
	DIR_(nlink, 9, "links"),
	DIR_(uid, 0, NULL),
	DIR_(gid, 0, NULL),
	DIR_(rdev_major, 0, NULL),
	DIR_(rdev_minor, 0, NULL),
	DIR_(flags, 0, NULL),
	DIR_(size, 50, "entries"),
	DIR_(blocks, 3, "blocks of data"),
	DIR_(change, 0, NULL),
	DIR_(atime, 0, NULL),
	DIR_(mtime, 0, NULL),
	DIR_(ctime, 0, NULL),
	DIR_(btime, 0, NULL),
	DIR_(aux, 77, "parent"),
	DIR_(next_seq, 4, "the next one is"),
	DIR_(reserved1, 0, NULL),
	F(name_disk, ino, 99, "differ"),
	F(name_disk, seq, 99, "has no entry"),
	F(name_disk, generation, 99, "differ"),
	F(name_disk, type, FS_SOCK, "differ"),
	F(name_disk, reserved, 0, NULL),
	F(name_disk, len, 2, "makes no sense"),
	F(entry_disk, ino, 99, "differ"),
	F(entry_disk, generation, 99, "differ"),
	F(entry_disk, type, FS_SOCK, "differ"),
	F(entry_disk, reserved, 0, NULL),
	F(entry_disk, len, 2, "makes no sense"),
	F(extent_disk, block, 33, "cannot be read"),
	F(extent_disk, count, 3, "makes no sense"),
	F(extent_disk, flags, 9, "makes no sense"),
	{"extent_disk", "sums", 16, 4, 1, "cannot be read"},
	REF_(block, 999, "no extent has their place"),
	REF_(count, 3, "records refer to them"),
	REF_(flags, 9, "makes no sense"),
	{"extent_disk shared", "reserved", 16, 4, 0, NULL},
	F(share_disk, count, 3, "records refer to them"),
	F(share_disk, refs, 9, "records refer to them"),
	F(share_disk, reserved, 0, NULL),
	F(xattr_disk, size, 8999, "does not fit"),
	F(xattr_disk, name_len, 0, "makes no sense"),
	F(xattr_disk, reserved, 0, NULL),
	{"xattr_disk", "name", 8, 6, 1, "wrong hash"},
	F(orphan_disk, state, 9, "makes no sense"),
	F(orphan_disk, reserved, 0, NULL),
	F(reply_disk, seq, 5, "makes no sense"),
	F(reply_disk, client, 0, NULL),
	F(reply_disk, xid, 0, NULL),
	F(reply_disk, proc, 0, NULL),
	F(reply_disk, checksum, 0, NULL),
	F(reply_disk, generation, 0, NULL),
	F(reply_disk, ino, 0, NULL),
	F(reply_disk, time_ns, 0, NULL),
	F(reply_disk, snap, 0, NULL),
	F(reply_disk, reserved, 0, NULL),
	F(stamp_disk, stamp, 0, "makes no sense"),
	F(snapshot_disk, created_ns, 0, NULL),
	F(snapshot_disk, state, 9, "makes no sense"),
	F(snapshot_disk, reserved, 0, NULL),
	F(snapshot_disk, name_len, 3, "makes no sense"),
	F(state_disk, name_len, 3, "makes no sense"),
	F(state_disk, data_len, 9, "makes no sense"),
	F(state_disk, reserved, 0, NULL),
	F(counters_disk, next_ino, 3, "the counters say"),
	F(counters_disk, inodes, 3, "the counter"),
	F(counters_disk, reserved, 0, NULL),
	{"stripes_disk", "live", 0, 3, 1, "live blocks"},
	{"stripes_disk", "class", 3, 1, 9, ""},
	F(summary_disk, ino, 99, "named by no summary"),
	F(summary_disk, file_block, 99, "named by no summary"),
	F(summary_disk, count, 0, "makes no sense"),
	F(summary_disk, ahead, 60000, "makes no sense"),
};

static void structures_key(struct files_test *t)
{
	for (unsigned i = 0; i < sizeof(structures) / sizeof(structures[0]); i++) {
		struct structure *s = &structures[i];

		if (s->key.type < KEY_INODE)
			continue;
		s->key.ino = strstr(s->name, "shared") ? clone_id.ino
			     : strstr(s->name, "directory") || s->key.type == KEY_NAME || s->key.type == KEY_ENTRY
				     ? dir.ino
			     : s->key.type == KEY_SYMLINK ? link_id.ino
							  : file.ino;
	}
	(void)t;
}

/* Every byte has a row. */
static void table_whole(void)
{
	for (unsigned i = 0; i < sizeof(structures) / sizeof(structures[0]); i++) {
		size_t at = 0;

		for (unsigned j = 0; j < sizeof(rows) / sizeof(rows[0]); j++) {
			if (strcmp(rows[j].structure, structures[i].name) != 0)
				continue;
			if (rows[j].off != at)
				CHECK_FAILED("%s: %s is at %u, and what is before ends at %zu", rows[j].structure,
					rows[j].field, rows[j].off, at);
			at = rows[j].off + rows[j].len;
		}
		if (at != structures[i].bytes)
			CHECK_FAILED("%s: rows for %zu bytes of %zu", structures[i].name, at, structures[i].bytes);
	}
}

/* ------------------------------------------------------------------------------------------------
 * Planting
 */

static void spoil(uint8_t *at, const struct row *row, bool flip)
{
	for (unsigned i = 0; i < row->len && (!flip || i < 8); i++) {
		uint8_t byte = (uint8_t)(i < 8 ? row->value >> 8 * i : 0);

		at[row->off + i] = flip ? (uint8_t)(at[row->off + i] ^ byte) : byte;
	}
}

struct raw {
	struct fs_key key;
	const uint8_t *val;
	size_t len;
};
static int raw_pass(struct tx *tx, void *arg)
{
	const struct raw *raw = arg;

	return tx_put_any(tx, &raw->key, raw->val, raw->len);
}

static int plant_record(struct files_test *t, const struct structure *s, const struct row *row)
{
	static uint8_t value[TREE_VALUE_MAX];
	struct raw raw = {.key = s->key, .val = value};
	int n = s->next ? tree_next(t->fs, &raw.key, value, sizeof(value))
			: tree_get(t->fs, &raw.key, value, sizeof(value));

	if (n <= 0 || raw.key.type != s->key.type || raw.key.ino != s->key.ino)
		return -ENOENT;
	raw.len = (size_t)n;
	spoil(value, row,
		strcmp(row->field, "sums") == 0 || strcmp(row->field, "name") == 0 || strcmp(row->field, "live") == 0);
	return fs_transact_durable(t->fs, raw_pass, &raw);
}

/* The current root record of the first drive. */
static int plant_root(struct files_test *t, const struct row *row)
{
	int fd = open(files_test_file(t->path[0]), O_RDWR | O_CLOEXEC), r = -ENOENT;
	uint64_t generation = t->fs->checkpoint.generation;
	static union {
		struct root_disk root;
		uint8_t bytes[BLOCK_BYTES];
	} b;

	for (off_t at = 0; r < 0 && pread(fd, b.bytes, sizeof(b), at) == (ssize_t)sizeof(b); at += BLOCK_BYTES) {
		if (memcmp(b.root.magic, FS_ROOT_MAGIC, 8) != 0 || le64_get(b.root.generation) != generation)
			continue;
		spoil(b.bytes, row, true);
		if (strcmp(row->field, "checksum") != 0)
			b.root.checksum =
				le64_put(checksum64(b.bytes + FS_ROOT_CHECKED, sizeof(b) - FS_ROOT_CHECKED, 0));
		r = pwrite(fd, b.bytes, sizeof(b), at) == (ssize_t)sizeof(b) ? 0 : -EIO;
	}
	close(fd);
	return r;
}

static uint64_t leaf_block;
static int leaf_see(void *arg, uint64_t block, unsigned blocks, unsigned level)
{
	(void)arg;
	(void)blocks;
	if (level == 0)
		leaf_block = block; /* the last one: it has only files */
	return 0;
}

/* Header or first slot of the node at LEAF_BLOCK, in all copies. */
static int plant_node(struct files_test *t, const struct row *row)
{
	static uint8_t node[TREE_NODE_BYTES];
	int planted = 0;

	for (unsigned i = 0; i < t->count; i++) {
		int fd = open(files_test_file(t->path[i]), O_RDWR | O_CLOEXEC);

		for (off_t at = 0; pread(fd, node, sizeof(node), at) == (ssize_t)sizeof(node); at += BLOCK_BYTES) {
			struct node_disk *h = (void *)node;

			if (le32_get(h->magic) != NODE_MAGIC || le64_get(h->block) != leaf_block)
				continue;
			spoil(strcmp(row->structure, "slot_disk") == 0 ? (uint8_t *)&image_slots(node)[1] : node, row,
				true);
			if (strcmp(row->field, "checksum") != 0)
				image_seal(node);
			planted += pwrite(fd, node, sizeof(node), at) == (ssize_t)sizeof(node);
		}
		close(fd);
	}
	return planted > 0 ? 0 : -ENOENT;
}

/* ------------------------------------------------------------------------------------------------
 * Looking
 */

static char said[8192];
static void keep(void *arg, const char *problem)
{
	size_t len = strlen(said);

	++*(unsigned *)arg;
	snprintf(said + len, sizeof(said) - len, "%s\n", problem);
}

/* What check, or a mount that is refused, says: more than nothing. */
static bool named(struct files_test *t, const char *word, bool mounted)
{
	struct fs_check_result result;
	struct error err = {0};
	unsigned n = 0;

	said[0] = 0;
	if (!mounted && (files_test_open_volume(t, &err) < 0 || fs_mount(t->volume, &t->options, &t->fs, &err) < 0)) {
		t->fs = NULL;
		snprintf(said, sizeof(said), "mount: %s", err.text);
		return err.text[0] != 0;
	}
	fs_check(t->fs, true, keep, NULL, &n, &result);
	return n > 0 && strstr(said, word);
}

static void row_run(struct files_test *t, const struct structure *s, const struct row *row)
{
	int r;

	CHECK_OK(image_put(t));
	CHECK_OK(files_test_open(t));
	if (s->where == IN_NODE) {
		CHECK_OK(tree_walk_nodes(t->fs, leaf_see, NULL));
		files_test_close(t);
		r = plant_node(t, row);
	} else if (s->where == IN_ROOT) {
		/* check makes a checkpoint first: there is nothing to be written any more */
		CHECK_IS(t_check(t), 0);
		r = plant_root(t, row);
	} else {
		r = plant_record(t, s, row);
		files_test_close(t);
	}
	if (r < 0)
		CHECK_FAILED("%s.%s: there is none", row->structure, row->field);
	CHECK(!test_failure[0]);
	if (!named(t, row->word, s->where == IN_ROOT))
		CHECK_FAILED(
			"%s.%s: check said \"%.300s\", expected \"%s\"", row->structure, row->field, said, row->word);
	files_test_close(t);
	fault_reset();
}

static void body(void *arg)
{
	struct files_test *t = arg;
	unsigned n = 0, missed = 0;

	table_whole();
	CHECK(!test_failure[0]);
	CHECK_OK(world_make(t));
	structures_key(t);
	CHECK_IS(t_check(t), 0);
	files_test_close(t);
	CHECK_OK(image_take(t));
	for (unsigned i = 0; i < sizeof(structures) / sizeof(structures[0]); i++)
		for (unsigned j = 0; j < sizeof(rows) / sizeof(rows[0]); j++) {
			if (strcmp(rows[j].structure, structures[i].name) != 0 || !rows[j].word)
				continue;
			row_run(t, &structures[i], &rows[j]);
			n++;
			if (!test_failure[0])
				continue;
			fprintf(stderr, "%s\n", test_failure);
			test_failure[0] = 0;
			missed++;
			files_test_close(t);
			fault_reset();
		}
	CHECK_IS(missed, 0);
	printf("%u fields\n", n);
	for (unsigned i = 0; i < t->count; i++)
		free(image[i]);
}

static void test_fields(void **state)
{
	static struct files_test t;
	int threshold = atomic_load(&log_threshold);

	(void)state;
	atomic_store(&log_threshold, -1);
	files_test_drives(&t, 2, 40ull << 20);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
	atomic_store(&log_threshold, threshold);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_fields)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
