/*
 * fs repair: each kind of damage alone, planted below the file system; after the repair fs check finds nothing, or
 * just the data that is lost, and what was not hit is as it was.
 */
#include "tests/fs/files_test.h"

#define F_BLOCKS 300u

/* ------------------------------------------------------------------------------------------------
 * A file system with one of each
 */

struct world {
	struct fs_id d, e, f, g, h, s, clone;
	uint64_t f_ino;
};

static void block_fill(uint8_t *to, uint32_t what)
{
	for (unsigned i = 0; i < BLOCK_BYTES; i += 8) {
		uint64_t x = hash_u64((uint64_t)what << 32 | i);
		memcpy(to + i, &x, 8);
	}
}

static int fill(struct files_test *t, struct fs_id id, uint32_t blocks, uint32_t first)
{
	uint8_t block[BLOCK_BYTES];
	int r = 0;

	for (uint32_t b = 0; b < blocks && r == 0; b++) {
		block_fill(block, first + b);
		r = t_write(t, id, (uint64_t)b * BLOCK_BYTES, block, BLOCK_BYTES, FS_UNSTABLE);
	}
	return r == 0 ? t_commit(t, id) : r;
}

/* 0: as fill() wrote it; else the number of blocks that differ, -EIO when one cannot be read. */
static int differ(struct files_test *t, struct fs_id id, uint32_t blocks, uint32_t first)
{
	uint8_t block[BLOCK_BYTES], want[BLOCK_BYTES];
	int n = 0;

	for (uint32_t b = 0; b < blocks; b++) {
		int r = t_read(t, id, (uint64_t)b * BLOCK_BYTES, block, BLOCK_BYTES, NULL);

		block_fill(want, first + b);
		if (r < 0)
			return r;
		n += r != BLOCK_BYTES || memcmp(block, want, BLOCK_BYTES) != 0;
	}
	return n;
}

static int world_make(struct files_test *t, struct world *w, unsigned level)
{
	struct fs_attr attr;
	int r = files_test_create(t, level);

	r = r ? r : t_mkdir(t, t->root, "d", &w->d);
	r = r ? r : t_mkdir(t, w->d, "e", &w->e);
	r = r ? r : t_create(t, w->d, "f", &w->f);
	r = r ? r : t_create(t, w->d, "g", &w->g);
	r = r ? r : t_create(t, w->e, "h", &w->h);
	r = r ? r : fs_symlink(t->fs, &op_root, w->d, "s", 1, "target", 6, NULL, &attr, NULL);
	w->s = attr.id;
	r = r ? r : fill(t, w->f, F_BLOCKS, 1000);
	r = r ? r : fill(t, w->g, 3, 2000);
	r = r ? r : fill(t, w->h, 50, 3000);
	r = r ? r : fs_setxattr(t->fs, &op_root, w->h, "user.x", 6, "value", 5, FS_XATTR_EITHER, NULL);
	r = r ? r : t_create(t, w->e, "clone", &w->clone);
	r = r ? r : fs_clone(t->fs, &op_root, w->h, 0, w->clone, 0, 20 * BLOCK_BYTES, NULL);
	return r;
}

/* What of it is not as it was made: a letter each. */
static const char *world_wrong(struct files_test *t, const struct world *w)
{
	static char wrong[32];
	struct fs_attr a;
	char target[16];
	unsigned n = 0;

	if (t_lookup(t, t->root, "d", &a) || a.id.ino != w->d.ino)
		wrong[n++] = 'd';
	if (t_lookup(t, w->d, "e", &a) || a.id.ino != w->e.ino)
		wrong[n++] = 'e';
	if (t_lookup(t, w->d, "f", &a) || a.id.ino != w->f.ino || differ(t, a.id, F_BLOCKS, 1000))
		wrong[n++] = 'f';
	if (t_lookup(t, w->d, "g", &a) || a.id.ino != w->g.ino || differ(t, a.id, 3, 2000))
		wrong[n++] = 'g';
	if (t_lookup(t, w->e, "h", &a) || a.id.ino != w->h.ino || differ(t, a.id, 50, 3000))
		wrong[n++] = 'h';
	if (t_lookup(t, w->e, "clone", &a) || a.id.ino != w->clone.ino || differ(t, a.id, 20, 3000))
		wrong[n++] = 'c';
	if (t_lookup(t, w->d, "s", &a) || a.id.ino != w->s.ino ||
		fs_readlink(t->fs, &op_root, a.id, target, sizeof(target), NULL) != 6)
		wrong[n++] = 's';
	wrong[n] = 0;
	return wrong;
}

/* ------------------------------------------------------------------------------------------------
 * Repairing
 */

static char said[16384];
static void keep(void *arg, const char *problem)
{
	size_t len = strlen(said);

	(void)arg;
	snprintf(said + len, sizeof(said) - len, "%s\n", problem);
}

/* Unmounts, repairs, mounts. */
static int repaired(struct files_test *t)
{
	struct fs_repair_result result;
	struct error err = {0};
	int r;

	files_test_close(t);
	said[0] = 0;
	r = files_test_open_volume(t, &err);
	if (r == 0)
		r = fs_repair(t->volume, keep, NULL, &result, &err);
	if (r < 0)
		CHECK_FAILED("repair: %d %s", r, err.text);
	if (getenv("FURROW_SAID"))
		fprintf(stderr, "%s--\n", said);
	return r == 0 ? fs_mount(t->volume, &t->options, &t->fs, &err) : r;
}

static char found[4096];
static void find(void *arg, const char *problem)
{
	size_t len = strlen(found);

	++*(unsigned *)arg;
	snprintf(found + len, sizeof(found) - len, "%s\n", problem);
}
static int faults(struct files_test *t)
{
	struct fs_check_result result;
	unsigned n = 0;
	int r;

	found[0] = 0;
	r = fs_check(t->fs, true, find, NULL, &n, &result);
	return r < 0 ? r : (int)n;
}

struct raw {
	struct fs_key key;
	const void *val;
	size_t len;
	uint64_t add, drop; /* also make these blocks live, or not */
};
static int raw_pass(struct tx *tx, void *arg)
{
	const struct raw *raw = arg;
	int r = 0;

	if (raw->add)
		r = tx_blocks_add(tx, raw->add, 1);
	if (r == 0 && raw->drop)
		r = tx_blocks_drop(tx, raw->drop, 1);
	if (r < 0 || !raw->key.type)
		return r;
	return raw->val ? tx_put_any(tx, &raw->key, raw->val, raw->len) : tx_delete_any(tx, &raw->key);
}

/*
 * Plants a fault: VAL (NULL: nothing) at KEY. Then the repair must say WORD, check must find LEFT faults, and all but
 * what is in WRONG is as it was.
 */
struct plant {
	struct raw raw;
	const char *word, *wrong;
	int left;
};
static struct plant plant;
static void (*prepare)(struct files_test *t, const struct world *w);
static struct fs_key key_of(struct fs_id id, uint8_t type, uint64_t off)
{
	return (struct fs_key){.ino = id.ino, .type = type, .off = off};
}

static void body_plant(void *arg)
{
	struct files_test *t = arg;
	static struct world w;
	const char *wrong;
	struct fs_attr attr;
	int n;

	CHECK_OK(world_make(t, &w, 6));
	CHECK_IS(faults(t), 0);
	prepare(t, &w);
	CHECK(!test_failure[0]);
	CHECK_OK(fs_transact_durable(t->fs, raw_pass, &plant.raw));
	CHECK(faults(t) > 0);
	CHECK_OK(repaired(t));
	if (!strstr(said, plant.word))
		CHECK_FAILED("said %.600s; expected \"%s\"", said, plant.word);
	n = faults(t);
	if (n != plant.left)
		CHECK_FAILED("%d faults are left, not %d: %.300s; repair said %.300s", n, plant.left, found, said);
	wrong = world_wrong(t, &w);
	if (strcmp(wrong, plant.wrong) != 0)
		CHECK_FAILED("wrong is \"%s\", expected \"%s\"; repair said %.300s", wrong, plant.wrong, said);
	CHECK(!test_failure[0]);
	/* again: there is nothing to be done */
	CHECK_OK(repaired(t));
	if (plant.left == 0 && said[0])
		CHECK_FAILED("the second repair said %.600s", said);
	/* and it can be written to, and emptied: nothing is left then */
	CHECK_OK(t_lookup(t, w.d, "g", &attr));
	CHECK_OK(fill(t, attr.id, 20, 9000));
	CHECK_IS(differ(t, attr.id, 20, 9000), 0);
	CHECK_IS(faults(t), 0);
	CHECK_OK(t_unlink(t, w.d, "f"));
	CHECK_OK(t_unlink(t, w.d, "g"));
	CHECK_OK(t_unlink(t, w.e, "h"));
	CHECK_OK(t_unlink(t, w.e, "clone"));
	while (t->fs->files->orphan_running)
		fiber_sleep(NSEC_PER_MSEC);
	CHECK_IS(t->fs->space.live_data, 0);
	CHECK_IS(faults(t), 0);
	files_test_close(t);
}

static void run(void (*body)(void *), unsigned drives, uint64_t bytes)
{
	static struct files_test t;
	int threshold = atomic_load(&log_threshold);

	if (!getenv("FURROW_LOG"))
		atomic_store(&log_threshold, -1);
	files_test_drives(&t, drives, bytes);
	files_test_run(body, &t);
	fault_reset();
	files_test_remove(&t);
	atomic_store(&log_threshold, threshold);
}

static uint8_t value[TREE_VALUE_MAX];
static int value_len;
static int value_get(struct files_test *t, struct fs_key key)
{
	value_len = tree_get(t->fs, &key, value, sizeof(value));
	return value_len;
}

/* NAME: damage FIELD of the inode of WHO to VALUE. */
#define INODE_FAULT(name, who, field, val, say)                                                                        \
	static void prepare_##name(struct files_test *t, const struct world *w)                                        \
	{                                                                                                              \
		CHECK(value_get(t, key_of(w->who, KEY_INODE, 0)) == (int)sizeof(struct inode_disk));                   \
		((struct inode_disk *)(void *)value)->field = val;                                                     \
		plant = (struct plant){.raw = {key_of(w->who, KEY_INODE, 0), value, sizeof(struct inode_disk), 0, 0},  \
			.word = say,                                                                                   \
			.wrong = ""};                                                                                  \
	}                                                                                                              \
	static void test_##name(void **state)                                                                          \
	{                                                                                                              \
		(void)state;                                                                                           \
		prepare = prepare_##name;                                                                              \
		run(body_plant, 5, 64ull << 20);                                                                       \
	}
#define FAULT(name)                                                                                                    \
	static void prepare_##name(struct files_test *t, const struct world *w);                                       \
	static void test_##name(void **state)                                                                          \
	{                                                                                                              \
		(void)state;                                                                                           \
		prepare = prepare_##name;                                                                              \
		run(body_plant, 5, 64ull << 20);                                                                       \
	}                                                                                                              \
	static void prepare_##name(struct files_test *t, const struct world *w)

INODE_FAULT(nlink, f, nlink, le32_put(7), "links 1")
INODE_FAULT(dir_nlink, d, nlink, le32_put(7), "links 3")
INODE_FAULT(dir_size, d, size, le64_put(77), "size 4")
INODE_FAULT(dir_seq, d, next_seq, le64_put(4), "next entry 7")
INODE_FAULT(dir_parent, e, aux, le64_put(FS_ROOT_INO), "parent")
INODE_FAULT(size, f, size, le64_put(4096), "size 1228800")
INODE_FAULT(blocks, f, blocks, le64_put(5), "blocks 300")
INODE_FAULT(generation, f, generation, le32_put(12345), "another generation")
INODE_FAULT(symlink_size, s, size, le64_put(3), "size 6")
INODE_FAULT(xattr_flag, h, flags, le32_put(0), "links 1")

/* What it is not has more, or less, than what it is. */
FAULT(dir_said_file)
{
	struct fs_key key = key_of(w->e, KEY_INODE, 0);
	struct inode_disk *d = (void *)value;

	CHECK(value_get(t, key) == (int)sizeof(*d));
	d->type = FS_REG;
	d->aux = d->next_seq = le64_put(0);
	plant = (struct plant){
		.raw = {key, value, sizeof(*d), 0, 0}, .word = "has what one of type 2 has", .wrong = ""};
}
FAULT(symlink_said_file)
{
	struct fs_key key = key_of(w->s, KEY_INODE, 0);
	struct inode_disk *d = (void *)value;

	CHECK(value_get(t, key) == (int)sizeof(*d));
	d->type = FS_REG;
	d->size = le64_put(1ull << 40);
	plant = (struct plant){
		.raw = {key, value, sizeof(*d), 0, 0}, .word = "has what one of type 3 has", .wrong = ""};
}
FAULT(inode_garbage)
{
	(void)t;
	memset(value, 0x5a, 112);
	plant = (struct plant){.raw = {key_of(w->f, KEY_INODE, 0), value, 112, 0, 0},
		.word = "attributes are lost, made anew for a file",
		.wrong = ""};
}
FAULT(inode_gone)
{
	(void)t;
	plant = (struct plant){.raw = {.key = key_of(w->f, KEY_INODE, 0)}, .word = "attributes are lost", .wrong = ""};
}
FAULT(inode_gone_dir)
{
	(void)t;
	plant = (struct plant){.raw = {.key = key_of(w->e, KEY_INODE, 0)}, .word = "for a directory", .wrong = ""};
}
FAULT(inode_gone_root)
{
	(void)w;
	plant = (struct plant){.raw = {.key = key_of(t->root, KEY_INODE, 0)}, .word = "for a directory", .wrong = ""};
	t->root.gen = (uint32_t)(hash_u64(FS_ROOT_INO) | 1);
}
FAULT(entry_gone)
{
	(void)t;
	plant = (struct plant){.raw = {.key = key_of(w->d, KEY_ENTRY, 4)}, .word = "\"f\" had no entry", .wrong = ""};
}
FAULT(name_gone)
{
	plant = (struct plant){.raw = {.key = key_of(w->d, KEY_NAME, name_hash(t->fs, "g", 1) << 8)},
		.word = "\"g\" had no name",
		.wrong = ""};
}
FAULT(name_garbage)
{
	memset(value, 0x5a, 40);
	plant = (struct plant){.raw = {key_of(w->d, KEY_NAME, name_hash(t->fs, "g", 1) << 8), value, 40, 0, 0},
		.word = "\"g\" had no name",
		.wrong = ""};
}
/* Taken as it is, it would become the directory's next, and that is more than a directory may have. */
FAULT(name_sequence)
{
	struct fs_key key = key_of(w->d, KEY_NAME, name_hash(t->fs, "g", 1) << 8);

	CHECK(value_get(t, key) > 0);
	((struct name_disk *)(void *)value)->seq = le64_put(NAME_SEQ_MAX + 5);
	plant = (struct plant){.raw = {key, value, (size_t)value_len, 0, 0}, .word = "\"g\" had no name", .wrong = ""};
}
FAULT(name_differs)
{
	struct fs_key key = key_of(w->d, KEY_NAME, name_hash(t->fs, "g", 1) << 8);

	CHECK(value_get(t, key) > 0);
	((struct name_disk *)(void *)value)->ino = le64_put(w->f.ino);
	plant = (struct plant){.raw = {key, value, (size_t)value_len, 0, 0}, .word = "\"g\" differed", .wrong = ""};
}
/* Wherever its hash allows it to lie: it is found by all that look for it there. */
FAULT(name_twice)
{
	struct fs_key key = key_of(w->d, KEY_NAME, name_hash(t->fs, "g", 1) << 8);

	CHECK(value_get(t, key) > 0);
	key.off += NAME_COLLISIONS - 1;
	plant = (struct plant){
		.raw = {key, value, (size_t)value_len, 0, 0}, .word = "the name \"g\" was there twice", .wrong = ""};
}
FAULT(name_twice_without_entry)
{
	struct fs_key key = key_of(w->d, KEY_NAME, name_hash(t->fs, "g", 1) << 8);

	CHECK(value_get(t, key) > 0);
	key.off++;
	((struct name_disk *)(void *)value)->seq = le64_put(60);
	plant = (struct plant){
		.raw = {key, value, (size_t)value_len, 0, 0}, .word = "the name \"g\" was there twice", .wrong = ""};
}
FAULT(entry_of_nothing)
{
	struct {
		struct entry_disk head;
		char name;
	} *e = (void *)value;

	(void)t;
	*e = (typeof(*e)){.head = {.ino = le64_put(999), .generation = le32_put(1), .type = FS_REG, .len = le16_put(1)},
		.name = 'x'};
	plant = (struct plant){.raw = {key_of(w->e, KEY_ENTRY, 60), value, sizeof(e->head) + 1, 0, 0},
		.word = "which is lost",
		.wrong = ""};
}
FAULT(orphan_wrong)
{
	(void)t;
	memset(value, 0, 8);
	plant = (struct plant){.raw = {{.type = KEY_ORPHAN, .off = w->f.ino}, value, 8, 0, 0},
		.word = "was said to be an orphan",
		.wrong = ""};
}
FAULT(unknown_record)
{
	(void)t;
	plant = (struct plant){.raw = {key_of(w->f, 99, 5), "xyz", 3, 0, 0}, .word = "made no sense", .wrong = ""};
}
FAULT(counters)
{
	(void)t;
	(void)w;
	memset(value, 0, sizeof(struct counters_disk));
	plant = (struct plant){.raw = {{.type = KEY_COUNTERS}, value, sizeof(struct counters_disk), 0, 0},
		.word = "counters",
		.wrong = ""};
}
FAULT(extent_garbage)
{
	(void)t;
	memset(value, 0x5a, 60);
	plant = (struct plant){.raw = {key_of(w->g, KEY_EXTENT, 0), value, 60, 0, 0},
		.word = "are found by their stripe's summary",
		.wrong = ""};
}
FAULT(extent_and_summary)
{
	struct raw summary = {.key = {.type = KEY_SUMMARY}};

	CHECK(value_get(t, key_of(w->g, KEY_EXTENT, 0)) > 0);
	summary.key.off = le64_get(((struct extent_disk *)(void *)value)->block);
	CHECK_OK(fs_transact_durable(t->fs, raw_pass, &summary));
	memset(value, 0x5a, 60);
	plant = (struct plant){
		.raw = {key_of(w->g, KEY_EXTENT, 0), value, 60, 0, 0}, .word = "/d/g (inode", .wrong = "g", .left = 1};
}
/* Nor is it found by a summary that says of it what no file can have. */
FAULT(extent_gone_summary_far)
{
	struct raw summary = {.key = {.type = KEY_SUMMARY}, .val = value};

	CHECK(value_get(t, key_of(w->g, KEY_EXTENT, 0)) > 0);
	summary.key.off = le64_get(((struct extent_disk *)(void *)value)->block);
	CHECK(value_get(t, summary.key) > 0);
	((struct summary_disk *)(void *)value)->file_block = le64_put(EXTENT_END + 7);
	summary.len = (size_t)value_len;
	CHECK_OK(fs_transact_durable(t->fs, raw_pass, &summary));
	plant = (struct plant){
		.raw = {.key = key_of(w->g, KEY_EXTENT, 0)}, .word = "live blocks, has", .wrong = "g", .left = 1};
}
FAULT(extent_gone)
{
	(void)t;
	/* found again by the summary */
	plant = (struct plant){.raw = {.key = key_of(w->g, KEY_EXTENT, 0)},
		.word = "are found by their stripe's summary",
		.wrong = ""};
}
FAULT(extent_twice)
{
	struct fs_key key = key_of(w->g, KEY_EXTENT, 0);
	uint64_t block;

	CHECK(value_get(t, key_of(w->f, KEY_EXTENT, 0)) > 0);
	block = le64_get(((struct extent_disk *)(void *)value)->block);
	CHECK(value_get(t, key) > 0);
	((struct extent_disk *)(void *)value)->block = le64_put(block);
	plant = (struct plant){.raw = {key, value, (size_t)value_len, 0, 0},
		.word = "something else has their places",
		.wrong = "g",
		.left = 1};
}
/* The extent of g begins at the block AT of a stripe of nodes, from its end if AT is negative. */
static void extent_in_nodes(struct files_test *t, const struct world *w, int at)
{
	struct fs_key key = key_of(w->g, KEY_EXTENT, 0);
	const struct space *s = &t->fs->space;
	uint64_t stripe = 0;

	while (stripe < s->stripes &&
		!(stripe_live(s->table[stripe]) && stripe_class(s->table[stripe]) == STRIPE_NODES))
		stripe++;
	CHECK(stripe < s->stripes);
	CHECK(value_get(t, key) > 0);
	((struct extent_disk *)(void *)value)->block =
		le64_put(stripe * s->stripe_blocks + (uint64_t)(at < 0 ? (int)s->stripe_blocks + at : at));
	plant = (struct plant){.raw = {key, value, (size_t)value_len, 0, 0},
		.word = "something else has their places",
		.wrong = "g",
		.left = 1};
}
FAULT(extent_on_node)
{
	extent_in_nodes(t, w, 0);
}
FAULT(extent_beside_nodes)
{
	extent_in_nodes(t, w, -3);
}
FAULT(stripe_more)
{
	CHECK(value_get(t, key_of(w->g, KEY_EXTENT, 0)) > 0);
	plant = (struct plant){.raw = {.add = le64_get(((struct extent_disk *)(void *)value)->block)},
		.word = "live blocks, has",
		.wrong = ""};
}
FAULT(stripe_less)
{
	CHECK(value_get(t, key_of(w->g, KEY_EXTENT, 0)) > 0);
	plant = (struct plant){.raw = {.drop = le64_get(((struct extent_disk *)(void *)value)->block)},
		.word = "live blocks, has",
		.wrong = ""};
}
FAULT(share_count)
{
	struct fs_key key = {.type = KEY_SHARE};

	(void)w;
	CHECK_IS(tree_next(t->fs, &key, value, sizeof(value)), sizeof(struct share_disk));
	((struct share_disk *)(void *)value)->refs = le32_put(9);
	plant = (struct plant){.raw = {key, value, sizeof(struct share_disk), 0, 0},
		.word = "counts of references were wrong",
		.wrong = ""};
}
FAULT(share_gone)
{
	struct fs_key key = {.type = KEY_SHARE};

	(void)w;
	CHECK_IS(tree_next(t->fs, &key, value, sizeof(value)), sizeof(struct share_disk));
	plant = (struct plant){.raw = {.key = key}, .word = "counts of references were wrong", .wrong = ""};
}
FAULT(share_owner_gone)
{
	struct fs_key key = {.ino = FS_SHARED_INO, .type = KEY_EXTENT};

	(void)w;
	CHECK(tree_next(t->fs, &key, value, sizeof(value)) > 0);
	plant = (struct plant){.raw = {.key = key}, .word = "are found by their stripe's summary", .wrong = ""};
}

/* ------------------------------------------------------------------------------------------------
 * Nodes that are lost
 */

#define MANY 600u

static uint64_t many_ino[MANY];

static int many_make(struct files_test *t)
{
	struct fs_id dir = t->root, id;
	char name[64];
	int r = files_test_create(t, 0);

	for (unsigned i = 0; i < MANY && r == 0; i++) {
		if (i % 100 == 0) {
			snprintf(name, sizeof(name), "directory%u", i / 100);
			r = t_mkdir(t, t->root, name, &dir);
		}
		snprintf(name, sizeof(name), "a file with a name of some length, number %u", i);
		if (r == 0)
			r = t_create(t, dir, name, &id);
		many_ino[i] = id.ino;
		if (r == 0)
			r = fill(t, id, 1 + i % 3, 100 * i);
	}
	return r;
}

/* -1: it cannot be read, or its attributes were lost; 0: as it was; 1: another one. */
static int many_read(struct files_test *t, struct fs_id dir, const char *name)
{
	struct fs_attr attr;
	int r = t_lookup(t, dir, name, &attr);

	for (unsigned i = 0; r == 0 && i < MANY; i++)
		if (attr.id.ino == many_ino[i]) {
			r = differ(t, attr.id, 1 + i % 3, 100 * i);
			return r < 0 ? -1 : r > 0;
		}
	return -1;
}

struct many_seen {
	struct files_test *t;
	struct fs_id dir;
	unsigned good, lost, wrong;
	char name[200][64], dirs[20][64];
	unsigned n, dir_count;
};
static bool many_list(void *arg, const struct fs_dirent *e)
{
	struct many_seen *s = arg;

	if (e->cookie > 2 && e->type == FS_REG && s->n < 200)
		snprintf(s->name[s->n++], sizeof(s->name[0]), "%.*s", (int)e->name_len, e->name);
	if (e->cookie > 2 && e->type == FS_DIR && s->dir_count < 20)
		snprintf(s->dirs[s->dir_count++], sizeof(s->dirs[0]), "%.*s", (int)e->name_len, e->name);
	return true;
}

static int many_look(struct files_test *t, struct fs_id parent, const char *dir, struct many_seen *s)
{
	unsigned base = s->dir_count;
	struct fs_attr attr;
	bool eof;
	int r = t_lookup(t, parent, dir, &attr);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	s->n = 0;
	r = fs_readdir(t->fs, &op_root, attr.id, 0, false, many_list, s, &eof, NULL);
	for (unsigned i = 0; i < s->n && r == 0; i++) {
		int is = many_read(t, attr.id, s->name[i]);

		s->good += is == 0;
		s->lost += is < 0;
		s->wrong += is > 0;
	}
	while (r == 0 && s->dir_count > base) {
		char name[64];

		memcpy(name, s->dirs[--s->dir_count], sizeof(name));
		r = many_look(t, attr.id, name, s);
	}
	return r;
}

/* The image of the node at BLOCK, wherever it lies in the files, becomes zeros. */
static int node_kill(struct files_test *t, uint64_t block)
{
	struct node_disk h;
	uint8_t zero[BLOCK_BYTES] = {0};
	int killed = 0;

	for (unsigned i = 0; i < t->count; i++) {
		int fd = open(files_test_file(t->path[i]), O_RDWR | O_CLOEXEC);

		for (off_t at = 0; pread(fd, &h, sizeof(h), at) == (ssize_t)sizeof(h); at += BLOCK_BYTES)
			if (le32_get(h.magic) == NODE_MAGIC && le64_get(h.block) == block)
				killed += pwrite(fd, zero, sizeof(zero), at) > 0;
		close(fd);
	}
	return killed;
}

struct leaves {
	uint64_t block[200];
	unsigned level[200], n;
};
static int leaves_add(void *arg, uint64_t block, unsigned blocks, unsigned level)
{
	struct leaves *l = arg;

	(void)blocks;
	if (l->n < 200) {
		l->level[l->n] = level;
		l->block[l->n++] = block;
	}
	return 0;
}

static int copy_files(struct files_test *t, bool back)
{
	char command[600];

	for (unsigned i = 0; i < t->count; i++) {
		const char *path = files_test_file(t->path[i]);

		snprintf(command, sizeof(command), "cp --sparse=always %s%s %s%s", path, back ? ".copy" : "", path,
			back ? "" : ".copy");
		if (system(command) != 0)
			return -EIO;
	}
	return 0;
}

static void body_nodes(void *arg)
{
	struct files_test *t = arg;
	struct leaves *l = calloc(1, sizeof(*l));
	struct many_seen *s = malloc(sizeof(*s));
	struct fs_repair_result result;
	unsigned good = 0, lost = 0, rebuilt = 0;
	struct error err = {0};
	struct fs_attr root;
	char name[64];

	CHECK_OK(many_make(t));
	CHECK_OK(files_test_remount(t));
	CHECK_OK(fs_checkpoint(t->fs));
	CHECK_OK(tree_walk_nodes(t->fs, leaves_add, l));
	CHECK(l->n > 10);
	files_test_close(t);
	CHECK_OK(copy_files(t, false));
	for (unsigned i = 0; i < l->n; i++) {
		CHECK_OK(copy_files(t, true));
		CHECK(node_kill(t, l->block[i]) > 0);
		CHECK_OK(files_test_open_volume(t, &err));
		said[0] = 0;
		if (l->level[i]) {
			/* the root: nothing leads anywhere */
			CHECK_IS(fs_repair(t->volume, keep, NULL, &result, &err), -EIO);
			files_test_close(t);
			continue;
		}
		if (fs_repair(t->volume, keep, NULL, &result, &err) < 0)
			CHECK_FAILED("node %u level %u: %.200s; said %.400s", i, l->level[i], err.text, said);
		CHECK(!test_failure[0]);
		if (!strstr(said, "a node of the tree is lost"))
			CHECK_FAILED("node %u: said %.600s", i, said);
		rebuilt += strstr(said, "are found by") != NULL;
		if (fs_mount(t->volume, &t->options, &t->fs, &err))
			CHECK_FAILED("node %u: no mount: %.300s; repair said %.300s", i, err.text, said);
		CHECK(!test_failure[0]);
		if (faults(t) != 0 && !strstr(found, "no extent has their place"))
			CHECK_FAILED("node %u: check finds %.300s; repair said %.300s", i, found, said);
		memset(s, 0, sizeof(*s));
		s->t = t;
		CHECK_OK(fs_root(t->fs, &root));
		t->root = root.id;
		for (unsigned d = 0; d < MANY / 100; d++) {
			snprintf(name, sizeof(name), "directory%u", d);
			CHECK_OK(many_look(t, t->root, name, s));
		}
		CHECK_OK(many_look(t, t->root, "lost+found", s));
		if (s->wrong || s->good + s->lost < MANY / 2)
			CHECK_FAILED(
				"node %u: %u good, %u lost, %u wrong: %.600s", i, s->good, s->lost, s->wrong, said);
		CHECK(!test_failure[0]);
		good += s->good;
		lost += s->lost;
		files_test_close(t);
	}
	printf("%u nodes, %u files good, %u not, %u with extents made anew\n", l->n, good, lost, rebuilt);
	CHECK(rebuilt > 0 && good > lost * 20);
	for (unsigned i = 0; i < t->count; i++) {
		snprintf(name, sizeof(name), "%s", "");
		snprintf(said, sizeof(said), "%s.copy", files_test_file(t->path[i]));
		unlink(said);
	}
	free(l);
	free(s);
}

static void test_nodes(void **state)
{
	(void)state;
	run(body_nodes, 3, 48ull << 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nlink),
		cmocka_unit_test(test_dir_nlink),
		cmocka_unit_test(test_dir_size),
		cmocka_unit_test(test_dir_seq),
		cmocka_unit_test(test_dir_parent),
		cmocka_unit_test(test_size),
		cmocka_unit_test(test_blocks),
		cmocka_unit_test(test_generation),
		cmocka_unit_test(test_symlink_size),
		cmocka_unit_test(test_xattr_flag),
		cmocka_unit_test(test_dir_said_file),
		cmocka_unit_test(test_symlink_said_file),
		cmocka_unit_test(test_inode_garbage),
		cmocka_unit_test(test_inode_gone),
		cmocka_unit_test(test_inode_gone_dir),
		cmocka_unit_test(test_inode_gone_root),
		cmocka_unit_test(test_entry_gone),
		cmocka_unit_test(test_name_gone),
		cmocka_unit_test(test_name_garbage),
		cmocka_unit_test(test_name_sequence),
		cmocka_unit_test(test_name_differs),
		cmocka_unit_test(test_name_twice),
		cmocka_unit_test(test_name_twice_without_entry),
		cmocka_unit_test(test_entry_of_nothing),
		cmocka_unit_test(test_orphan_wrong),
		cmocka_unit_test(test_unknown_record),
		cmocka_unit_test(test_counters),
		cmocka_unit_test(test_extent_garbage),
		cmocka_unit_test(test_extent_and_summary),
		cmocka_unit_test(test_extent_gone_summary_far),
		cmocka_unit_test(test_extent_gone),
		cmocka_unit_test(test_extent_twice),
		cmocka_unit_test(test_extent_on_node),
		cmocka_unit_test(test_extent_beside_nodes),
		cmocka_unit_test(test_stripe_more),
		cmocka_unit_test(test_stripe_less),
		cmocka_unit_test(test_share_count),
		cmocka_unit_test(test_share_gone),
		cmocka_unit_test(test_share_owner_gone),
		cmocka_unit_test(test_nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
