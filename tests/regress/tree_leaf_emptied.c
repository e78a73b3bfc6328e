/*
 * A leaf that was the first child of its parent, but not the first of the tree, was emptied and taken out. The next one
 * became the first child and got keys that lie before its old lower bound; when it was split, its new neighbour was put
 * behind it with a smaller key than it had: the parent was found out of order when it was next read, and everything
 * below it was lost. The same after a repair that cut a lost first child out.
 *
 * And: a transaction that emptied a leaf and then put something in its place took the leaf out at once, so that its
 * range went to a neighbour that nobody had brought into memory: the server ended, and again whenever it replayed that
 * from its log.
 */
#include "tests/fs/tree_test.h"

#define VALUE 2500u
#define KEYS 3000u /* five in a leaf, and so two nodes above them under the root */
#define STEP 16u

static struct fs_key key_at(uint64_t n)
{
	return (struct fs_key){.ino = 10000 + n, .type = 210};
}

struct put {
	uint64_t from, n, by;
	bool remove;
};
static int put_pass(struct tx *tx, void *arg)
{
	static uint8_t value[VALUE];
	const struct put *p = arg;
	int rc = 0;

	for (uint64_t i = 0; i < p->n && !rc; i++) {
		struct fs_key key = key_at(p->from + i * p->by);

		rc = p->remove ? tx_delete(tx, &key) : tx_put(tx, &key, value, sizeof(value));
	}
	return rc;
}

/* In steps that a transaction bears. */
static int put(struct fs *fs, struct put p)
{
	int rc = 0;

	for (uint64_t end = p.n; end && !rc; end -= p.n) {
		p.n = end < 20 ? end : 20;
		rc = fs_transact_durable(fs, put_pass, &p);
		p.from += p.n * p.by;
	}
	return rc;
}

static uint64_t number(const struct node *n, unsigned slot)
{
	struct pkey k = image_key(n->buf->data, slot);

	return pkey_unpack(&k).ino - 10000;
}

/* Where leaf LEAF of the root's second child begins, and the one behind it. */
static bool leaf_range(struct fs *fs, unsigned leaf, uint64_t *from, uint64_t *to)
{
	struct node *root = fs->tree.root, *second;
	struct pkey key;

	if (root->level != 2 || image_count(root->buf->data) < 2)
		return false;
	key = image_key(root->buf->data, 1);
	if (tree_load(fs, &key) || !(second = root->child[1]))
		return false;
	*from = leaf ? number(second, leaf) : number(root, 1);
	*to = number(second, leaf + 1);
	return true;
}

static unsigned keys_count(struct fs *fs)
{
	struct fs_key key = key_at(0);
	static uint8_t value[TREE_VALUE_MAX];
	unsigned n = 0;

	for (; tree_next(fs, &key, value, sizeof(value)) == VALUE; key.ino++)
		n++;
	return n;
}

static void body_first_child(void *arg)
{
	static struct tree_test t;
	struct put all = {0, KEYS, STEP, false}, less, more;
	uint64_t from, to;

	(void)arg;
	CHECK_OK(tree_test_make(&t, 0, 2, 160u << 20, ""), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	CHECK_OK(put(t.fs, all), t.err);
	CHECK_OK(tree_test_unmount(&t), t.err);
	/* so that the neighbours, which would take in what is left of the leaf, are not in memory */
	CHECK_OK(tree_test_mount(&t), t.err);
	CHECK(leaf_range(t.fs, 0, &from, &to));
	CHECK(to > from && to - from <= 6 * STEP);
	from = (from + STEP - 1) / STEP * STEP;
	less = (struct put){from, (to - from + STEP - 1) / STEP, STEP, true};
	more = (struct put){from + 1, to - from - 1, 1, false};
	CHECK_OK(put(t.fs, less), t.err);
	CHECK_OK(put(t.fs, more), t.err);
	CHECK_OK(tree_test_unmount(&t), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	CHECK(keys_count(t.fs) == KEYS - less.n + more.n);
	tree_test_end(&t);
}

static void test_first_child(void **state)
{
	(void)state;
	raid_test_run(body_first_child, NULL);
}

/* All that the leaf has goes, and something comes that lies behind it. */
static int replace_pass(struct tx *tx, void *arg)
{
	const struct put *less = arg;
	struct put one = {less->from + (less->n - 1) * STEP + 1, 1, 1, false};
	int rc = put_pass(tx, arg);

	return rc ? rc : put_pass(tx, &one);
}

static void body_put_back(void *arg)
{
	static struct tree_test t;
	struct put all = {0, KEYS, STEP, false}, less;
	uint64_t from, to, gone = 0;

	(void)arg;
	CHECK_OK(tree_test_make(&t, 0, 2, 160u << 20, ""), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	CHECK_OK(put(t.fs, all), t.err);
	/* what is emptied is the first child, whose range goes to the next, and then another, whose range goes to the
	 * one before */
	for (unsigned leaf = 0; leaf <= 3; leaf += 3) {
		CHECK_OK(tree_test_unmount(&t), t.err);
		CHECK_OK(tree_test_mount(&t), t.err);
		CHECK(leaf_range(t.fs, leaf, &from, &to));
		CHECK(to > from && to - from <= 6 * STEP);
		from = (from + STEP - 1) / STEP * STEP;
		less = (struct put){from, (to - from + STEP - 1) / STEP, STEP, true};
		CHECK_OK(fs_transact_durable(t.fs, replace_pass, &less), t.err);
		gone += less.n - 1;
		CHECK(keys_count(t.fs) == KEYS - gone);
	}
	CHECK_OK(tree_test_unmount(&t), t.err);
	CHECK_OK(tree_test_mount(&t), t.err);
	CHECK(keys_count(t.fs) == KEYS - gone);
	tree_test_end(&t);
}

static void test_put_back(void **state)
{
	(void)state;
	raid_test_run(body_put_back, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_first_child), cmocka_unit_test(test_put_back)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
