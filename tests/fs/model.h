/*
 * A file system in memory, as simple as it can be, to compare the real one with: a tree of nodes with
 * names, attributes and bytes. Operations are values, so that the same one is done on both, and that one
 * whose end a crash hid can be tried both ways.
 */
#ifndef FURROW_FS_MODEL_H
#define FURROW_FS_MODEL_H

#include "tests/fs/files_test.h"

#define MODEL_NODES 40
#define MODEL_ENTRIES 160
#define MODEL_BYTES 70000u

enum model_kind {
	M_CREATE,
	M_MKDIR,
	M_SYMLINK,
	M_LINK,
	M_UNLINK,
	M_RMDIR,
	M_RENAME,
	M_WRITE,
	M_WRITE_UNSTABLE,
	M_WRITE_COMMIT,
	M_READ,
	M_TRUNCATE,
	M_CHMOD,
	M_LOOKUP,
	M_COMMIT,
	M_PUNCH,
	M_ALLOCATE,
	M_COPY,
	M_SEEK,
	M_CLONE,
	M_KINDS
};

struct model_op {
	enum model_kind kind;
	int dir, dir2, node, node2; /* nodes */
	char name[24], name2[24];
	uint32_t off, len, mode, off2;
	uint64_t seed;
	/* of the real one */
	struct fs_id made;
	bool marked; /* carries MARK, as a call that must not be done twice */
	struct fs_reply mark;
};

/* Whether a client's call for it is one that must not be done twice. */
static inline bool model_op_once(const struct model_op *op)
{
	return op->kind <= M_RENAME || op->kind == M_TRUNCATE || op->kind == M_CHMOD;
}

struct model_node {
	bool used;
	enum fs_type type;
	struct fs_id id;
	uint32_t mode, nlink, size;
	int parent;
	uint8_t *data;
};
struct model_entry {
	bool used;
	int dir, node;
	char name[24];
};
struct model {
	struct model_node node[MODEL_NODES];
	struct model_entry entry[MODEL_ENTRIES];
};

static inline void model_init(struct model *m, struct fs_id root)
{
	memset(m, 0, sizeof(*m));
	m->node[0] = (struct model_node){.used = true, .type = FS_DIR, .id = root, .mode = 0755, .nlink = 2};
}
static inline void model_free(struct model *m)
{
	for (unsigned i = 0; i < MODEL_NODES; i++)
		free(m->node[i].data);
	memset(m, 0, sizeof(*m));
}
static inline void model_clone(struct model *to, const struct model *from)
{
	*to = *from;
	for (unsigned i = 0; i < MODEL_NODES; i++)
		if (from->node[i].data) {
			to->node[i].data = malloc(MODEL_BYTES);
			memcpy(to->node[i].data, from->node[i].data, MODEL_BYTES);
		}
}

static inline struct model_entry *model_find(struct model *m, int dir, const char *name)
{
	for (unsigned i = 0; i < MODEL_ENTRIES; i++)
		if (m->entry[i].used && m->entry[i].dir == dir && strcmp(m->entry[i].name, name) == 0)
			return &m->entry[i];
	return NULL;
}
static inline unsigned model_children(struct model *m, int dir)
{
	unsigned n = 0;
	for (unsigned i = 0; i < MODEL_ENTRIES; i++)
		n += m->entry[i].used && m->entry[i].dir == dir;
	return n;
}
static inline int model_free_node(struct model *m)
{
	for (int i = 1; i < MODEL_NODES; i++)
		if (!m->node[i].used)
			return i;
	return -1;
}
static inline struct model_entry *model_free_entry(struct model *m)
{
	for (unsigned i = 0; i < MODEL_ENTRIES; i++)
		if (!m->entry[i].used)
			return &m->entry[i];
	return NULL;
}
static inline void model_drop_link(struct model *m, int node)
{
	if (--m->node[node].nlink == 0) {
		free(m->node[node].data);
		memset(&m->node[node], 0, sizeof(m->node[node]));
	}
}
static inline void model_drop_dir(struct model *m, int node)
{
	m->node[m->node[node].parent].nlink--;
	memset(&m->node[node], 0, sizeof(m->node[node]));
}
static inline void op_bytes(const struct model_op *op, uint8_t *to)
{
	for (uint32_t i = 0; i < op->len; i++)
		to[i] = (uint8_t)(hash_u64(op->seed + i / 8) >> (i % 8 * 8));
}

static inline int model_copy(struct model *m, const struct model_op *op)
{
	struct model_node *to = &m->node[op->node], *from = &m->node[op->node2];
	uint32_t count = op->len;

	if (op->off2 >= from->size)
		return 0;
	if (count > from->size - op->off2)
		count = from->size - op->off2;
	memcpy(to->data + op->off, from->data + op->off2, count);
	if (op->off + count > to->size)
		to->size = op->off + count;
	return 0;
}

/* Offsets are whole blocks; an end that is none may only be that of both. */
static inline int model_clone_range(struct model *m, const struct model_op *op)
{
	struct model_node *to = &m->node[op->node], *from = &m->node[op->node2];

	if (to->type != FS_REG)
		return to->type == FS_DIR ? -EISDIR : -EINVAL;
	if (from->type != FS_REG)
		return from->type == FS_DIR ? -EISDIR : -EINVAL;
	if (op->off2 > from->size || op->len > from->size - op->off2)
		return -EINVAL;
	if (op->len % BLOCK_BYTES && (op->off2 + op->len != from->size || op->off + op->len < to->size))
		return -EINVAL;
	if (to == from && op->off < op->off2 + op->len && op->off2 < op->off + op->len)
		return -EINVAL;
	memcpy(to->data + op->off, from->data + op->off2, op->len);
	if (op->off + op->len > to->size)
		to->size = op->off + op->len;
	return 0;
}

/* Makes OP one that can be done, more often than not. */
static inline void model_clone_op(const struct model *m, struct model_op *op, uint64_t *seed)
{
	uint32_t size = m->node[op->node2].size;

	op->off2 = size ? test_below(seed, size) & ~4095u : 0;
	op->len &= ~4095u;
	if (op->off2 + op->len > size || test_below(seed, 4) == 0)
		op->len = test_below(seed, 4) ? size - op->off2 : (size - op->off2) & ~4095u;
	op->off &= ~4095u;
	if (op->len == 0)
		op->len = BLOCK_BYTES; /* 0 has a meaning of its own */
	if (op->off + op->len > MODEL_BYTES)
		op->off = 0;
}

/* What OP must give, and does it. */
static inline int model_apply(struct model *m, const struct model_op *op)
{
	struct model_entry *e = model_find(m, op->dir, op->name), *e2;
	struct model_node *n = &m->node[op->node];
	int child, up;

	switch (op->kind) {
	case M_CREATE:
	case M_MKDIR:
	case M_SYMLINK:
		if (e)
			return -EEXIST;
		child = model_free_node(m);
		e = model_free_entry(m);
		*e = (struct model_entry){.used = true, .dir = op->dir, .node = child};
		memcpy(e->name, op->name, sizeof(e->name));
		n = &m->node[child];
		*n = (struct model_node){.used = true, .id = op->made, .mode = op->mode, .nlink = 1, .parent = op->dir};
		n->type = op->kind == M_CREATE ? FS_REG : op->kind == M_MKDIR ? FS_DIR : FS_LNK;
		if (op->kind == M_CREATE) {
			n->data = calloc(1, MODEL_BYTES);
		} else if (op->kind == M_MKDIR) {
			n->nlink = 2;
			m->node[op->dir].nlink++;
		} else {
			n->mode = 0777;
			n->size = (uint32_t)strlen(op->name2);
		}
		return 0;
	case M_LINK:
		if (n->type == FS_DIR)
			return -EISDIR;
		if (e)
			return -EEXIST;
		e = model_free_entry(m);
		*e = (struct model_entry){.used = true, .dir = op->dir, .node = op->node};
		memcpy(e->name, op->name, sizeof(e->name));
		n->nlink++;
		return 0;
	case M_UNLINK:
		if (!e)
			return -ENOENT;
		if (m->node[e->node].type == FS_DIR)
			return -EISDIR;
		e->used = false;
		model_drop_link(m, e->node);
		return 0;
	case M_RMDIR:
		if (!e)
			return -ENOENT;
		if (m->node[e->node].type != FS_DIR)
			return -ENOTDIR;
		if (model_children(m, e->node))
			return -ENOTEMPTY;
		e->used = false;
		model_drop_dir(m, e->node);
		return 0;
	case M_RENAME:
		if (!e)
			return -ENOENT;
		e2 = model_find(m, op->dir2, op->name2);
		if (e2 && e2->node == e->node)
			return 0;
		n = &m->node[e->node];
		if (n->type == FS_DIR)
			for (up = op->dir2;; up = m->node[up].parent) {
				if (up == e->node)
					return -EINVAL;
				if (up == 0)
					break;
			}
		if (e2) {
			bool dir2 = m->node[e2->node].type == FS_DIR;

			if (n->type == FS_DIR && !dir2)
				return -ENOTDIR;
			if (n->type != FS_DIR && dir2)
				return -EISDIR;
			if (dir2 && model_children(m, e2->node))
				return -ENOTEMPTY;
			e2->used = false;
			if (dir2)
				model_drop_dir(m, e2->node);
			else
				model_drop_link(m, e2->node);
		}
		if (n->type == FS_DIR) {
			m->node[n->parent].nlink--;
			m->node[op->dir2].nlink++;
			n->parent = op->dir2;
		}
		e->dir = op->dir2;
		memcpy(e->name, op->name2, sizeof(e->name));
		return 0;
	case M_WRITE:
	case M_WRITE_UNSTABLE:
	case M_WRITE_COMMIT:
		if (n->type == FS_DIR)
			return -EISDIR;
		if (n->type != FS_REG)
			return -EINVAL;
		op_bytes(op, n->data + op->off);
		if (op->off + op->len > n->size)
			n->size = op->off + op->len;
		return 0;
	case M_TRUNCATE:
		if (n->type == FS_DIR)
			return -EISDIR;
		if (n->type != FS_REG)
			return -EINVAL;
		if (op->off < n->size)
			memset(n->data + op->off, 0, MODEL_BYTES - op->off);
		n->size = op->off;
		return 0;
	case M_CHMOD:
		n->mode = op->mode;
		return 0;
	case M_LOOKUP:
		return e ? 0 : -ENOENT;
	case M_READ:
		return n->type == FS_DIR ? -EISDIR : n->type != FS_REG ? -EINVAL : 0;
	case M_COMMIT:
		return n->type == FS_DIR ? -EISDIR : n->type != FS_REG ? -EINVAL : 0;
	case M_PUNCH:
	case M_ALLOCATE:
	case M_COPY:
	case M_SEEK:
		if (op->kind == M_COPY && op->node == op->node2 && op->off < op->off2 + op->len &&
			op->off2 < op->off + op->len)
			return -EINVAL;
		if (op->kind == M_COPY && m->node[op->node2].type != FS_REG)
			return m->node[op->node2].type == FS_DIR ? -EISDIR : -EINVAL;
		if (n->type != FS_REG)
			return n->type == FS_DIR ? -EISDIR : -EINVAL;
		if (op->kind == M_PUNCH && op->off < n->size)
			memset(n->data + op->off, 0, op->off + op->len > n->size ? n->size - op->off : op->len);
		if (op->kind == M_ALLOCATE && op->off + op->len > n->size)
			n->size = op->off + op->len;
		if (op->kind == M_COPY)
			return model_copy(m, op);
		return 0;
	case M_CLONE:
		return model_clone_range(m, op);
	case M_KINDS:
		break;
	}
	return -EINVAL;
}

static inline int real_copy(struct files_test *t, const struct model *m, const struct model_op *op)
{
	const struct model_node *to = &m->node[op->node], *from = &m->node[op->node2];
	uint64_t copied;
	int r = fs_copy(t->fs, &op_root, from->id, op->off2, to->id, op->off, op->len, &copied, NULL);
	uint32_t want = op->off2 < from->size ? from->size - op->off2 : 0;

	if (r == 0 && from->type == FS_REG && copied != (want < op->len ? want : op->len))
		return -EBADMSG;
	if (r == 0 && to->type != FS_REG)
		return to->type == FS_DIR ? -EISDIR : -EINVAL; /* there was nothing to copy into it */
	return r == 0 ? t_commit(t, to->id) : r;
}

/* Whatever is passed over on the way to data must be zeros, and so must a hole. */
static inline int real_seek(struct files_test *t, const struct model_node *n, uint32_t off, enum fs_seek what)
{
	uint64_t found;
	bool eof;
	int r = fs_seek(t->fs, &op_root, n->id, off, what, &found, &eof, NULL);
	uint64_t end = what == FS_SEEK_DATA ? found : (found / BLOCK_BYTES + 1) * BLOCK_BYTES;

	if (r < 0)
		return r;
	if (off >= n->size)
		return eof ? 0 : -EBADMSG;
	if (found < off || found > n->size || eof != (found == n->size))
		return -EBADMSG;
	for (uint64_t i = what == FS_SEEK_DATA ? off : found; i < end && i < n->size; i++)
		if (n->data[i])
			return -EBADMSG;
	return 0;
}

/* OP on the real one; M as it was before. -EBADMSG: it read something else than the model holds. */
static inline int real_apply(struct files_test *t, const struct model *m, struct model_op *op)
{
	const struct model_node *n = &m->node[op->node], *dir = &m->node[op->dir];
	size_t len = strlen(op->name);
	const struct fs_op by = {.cred = &cred_root, .reply = op->marked ? &op->mark : NULL};
	struct fs_setattr set = {
		.set = op->kind == M_TRUNCATE ? FS_SET_SIZE : FS_SET_MODE, .mode = op->mode, .size = op->off};
	struct fs_attr attr = {0};
	uint8_t *buf;
	bool eof;
	int r = -EINVAL;

	switch (op->kind) {
	case M_CREATE:
		r = fs_create_file(t->fs, &by, dir->id, op->name, len, FS_CREATE_GUARDED, &set, 0, &attr, NULL);
		break;
	case M_MKDIR:
		r = fs_mkdir(t->fs, &by, dir->id, op->name, len, &set, &attr, NULL);
		break;
	case M_SYMLINK:
		r = fs_symlink(t->fs, &by, dir->id, op->name, len, op->name2, strlen(op->name2), NULL, &attr, NULL);
		break;
	case M_LINK:
		r = fs_link(t->fs, &by, n->id, dir->id, op->name, len, &attr, NULL);
		break;
	case M_UNLINK:
		r = fs_unlink(t->fs, &by, dir->id, op->name, len, NULL);
		break;
	case M_RMDIR:
		r = fs_rmdir(t->fs, &by, dir->id, op->name, len, NULL);
		break;
	case M_RENAME:
		r = fs_rename(t->fs, &by, dir->id, op->name, len, m->node[op->dir2].id, op->name2, strlen(op->name2),
			NULL, NULL);
		break;
	case M_WRITE:
	case M_WRITE_UNSTABLE:
	case M_WRITE_COMMIT:
		buf = malloc(op->len + 1);
		op_bytes(op, buf);
		r = t_write(t, n->id, op->off, buf, op->len, op->kind == M_WRITE ? FS_FILE_SYNC : FS_UNSTABLE);
		free(buf);
		if (r == 0 && op->kind == M_WRITE_COMMIT)
			r = t_commit(t, n->id);
		break;
	case M_TRUNCATE:
	case M_CHMOD:
		r = fs_setattr(t->fs, &by, n->id, &set, NULL, NULL);
		break;
	case M_LOOKUP:
		r = fs_lookup(t->fs, &op_root, dir->id, op->name, len, &attr, NULL);
		break;
	case M_READ:
		buf = malloc(op->len + 1);
		r = t_read(t, n->id, op->off, buf, op->len, &eof);
		if (r >= 0) {
			uint32_t want = op->off < n->size ? n->size - op->off : 0;

			if (want > op->len)
				want = op->len;
			r = (uint32_t)r != want || memcmp(buf, n->data + op->off, want) != 0 ||
					    eof != (op->off + op->len >= n->size && (op->len > 0 || op->off >= n->size))
				    ? -EBADMSG
				    : 0;
		}
		free(buf);
		break;
	case M_COMMIT:
		r = t_commit(t, n->id);
		break;
	case M_PUNCH:
		r = fs_punch(t->fs, &op_root, n->id, op->off, op->len, NULL);
		break;
	case M_ALLOCATE:
		r = fs_allocate(t->fs, &op_root, n->id, op->off, op->len, NULL);
		break;
	case M_COPY:
		r = real_copy(t, m, op);
		break;
	case M_SEEK:
		r = real_seek(t, n, op->off, op->seed & 1 ? FS_SEEK_DATA : FS_SEEK_HOLE);
		break;
	case M_CLONE:
		r = fs_clone(t->fs, &op_root, m->node[op->node2].id, op->off2, n->id, op->off, op->len, NULL);
		break;
	case M_KINDS:
		break;
	}
	op->made = attr.id;
	return r;
}

/* A random operation that the model can take. */
static inline void model_op_random(struct model *m, struct model_op *op, uint64_t *seed, bool stable_only)
{
	int dirs[MODEL_NODES], nodes[MODEL_NODES], dir_count = 0, node_count = 0;
	int free_node = model_free_node(m);
	struct model_entry *e;

	memset(op, 0, sizeof(*op));
	for (int i = 0; i < MODEL_NODES; i++) {
		if (!m->node[i].used)
			continue;
		nodes[node_count++] = i;
		if (m->node[i].type == FS_DIR)
			dirs[dir_count++] = i;
	}
	op->kind = (enum model_kind)test_below(seed, M_KINDS);
	if (stable_only && (op->kind == M_WRITE_UNSTABLE || op->kind == M_COMMIT))
		op->kind = M_WRITE;
	if ((free_node < 0 || !model_free_entry(m)) && op->kind <= M_LINK)
		op->kind = M_UNLINK;
	op->dir = dirs[test_below(seed, (uint32_t)dir_count)];
	op->dir2 = dirs[test_below(seed, (uint32_t)dir_count)];
	op->node = nodes[test_below(seed, (uint32_t)node_count)];
	/* data is the point of files: rather take one */
	for (unsigned i = 0; i < 4 && op->kind >= M_WRITE && m->node[op->node].type != FS_REG; i++)
		op->node = nodes[test_below(seed, (uint32_t)node_count)];
	op->node2 = nodes[test_below(seed, (uint32_t)node_count)];
	for (unsigned i = 0; i < 4 && m->node[op->node2].type != FS_REG; i++)
		op->node2 = nodes[test_below(seed, (uint32_t)node_count)];
	snprintf(op->name, sizeof(op->name), "name%u", test_below(seed, 12));
	snprintf(op->name2, sizeof(op->name2), "name%u", test_below(seed, 12));
	/* what exists is hit more often than by chance */
	e = &m->entry[test_below(seed, MODEL_ENTRIES)];
	if (e->used && (op->kind == M_UNLINK || op->kind == M_RMDIR || op->kind == M_RENAME || op->kind == M_LOOKUP)) {
		op->dir = e->dir;
		memcpy(op->name, e->name, sizeof(op->name));
	}
	op->off = test_below(seed, MODEL_BYTES - 1);
	if (test_below(seed, 4) == 0)
		op->off &= ~4095u;
	op->len = 1 + test_below(seed, test_below(seed, 3) ? 5000 : 30000);
	if (test_below(seed, 4) == 0)
		op->len = (op->len + 4095) & ~4095u;
	if (op->off + op->len > MODEL_BYTES)
		op->len = MODEL_BYTES - op->off;
	op->off2 = test_below(seed, MODEL_BYTES - op->len + 1);
	if (op->kind == M_CLONE)
		model_clone_op(m, op, seed);
	op->mode = test_below(seed, 01000);
	op->seed = test_random(seed);
}

static inline const char *op_text(const struct model_op *op)
{
	static char text[200];
	static const char *const kind[] = {"create", "mkdir", "symlink", "link", "unlink", "rmdir", "rename", "write",
		"write unstable", "write and commit", "read", "truncate", "chmod", "lookup", "commit", "punch",
		"allocate", "copy", "seek", "clone"};

	snprintf(text, sizeof(text), "%s dir=%d name=%s dir2=%d name2=%s node=%d off=%u len=%u from=%d,%u",
		kind[op->kind], op->dir, op->name, op->dir2, op->name2, op->node, op->off, op->len, op->node2,
		op->off2);
	return text;
}

/* ------------------------------------------------------------------------------------------------
 * Comparing all of it
 */

struct model_list {
	struct model *m;
	int dir;
	unsigned n;
	const char *wrong;
};

static inline bool model_list_entry(void *arg, const struct fs_dirent *e)
{
	struct model_list *l = arg;
	struct model_entry *me;
	char name[24];

	if (e->cookie <= 2)
		return true;
	snprintf(name, sizeof(name), "%.*s", (int)e->name_len, e->name);
	me = model_find(l->m, l->dir, name);
	if (!me)
		l->wrong = "a name that should not be there";
	else if (l->m->node[me->node].type != e->type || e->attr->type != e->type)
		l->wrong = "another type";
	else if (l->m->node[me->node].id.ino && l->m->node[me->node].id.ino != e->id.ino)
		l->wrong = "another inode";
	l->n++;
	return true;
}

/* Bytes of MAYBE that an unanswered write may or may not have brought: of node NODE. */
struct model_maybe {
	int node;
	bool torn;		   /* a write, which makes the file longer block by block */
	const struct model *other; /* the state with it */
};

/* May a file of SIZE or MAYBE's OTHER_SIZE have the size GOT? */
static inline bool model_size_fits(const struct model_maybe *maybe, uint64_t size, uint64_t other_size, uint64_t got)
{
	if (got == size || got == other_size)
		return true;
	return maybe && maybe->torn && got > size && got < other_size && got % BLOCK_BYTES == 0;
}

/* NULL: as the model says. Takes the handles from the names. */
static inline const char *model_compare(struct files_test *t, struct model *m, const struct model_maybe *maybe)
{
	static char wrong[200];
	int queue[MODEL_NODES], head = 0, tail = 0;
	const char *what = NULL;
	uint8_t *buf = malloc(MODEL_BYTES + 1);

	queue[tail++] = 0;
	while (head < tail && !what) {
		int dir = queue[head++];
		struct model_list l = {.m = m, .dir = dir};
		struct fs_attr attr;
		bool eof = false;
		int r;

		r = fs_readdir(t->fs, &op_root, m->node[dir].id, 0, true, model_list_entry, &l, &eof, &attr);
		if (r < 0 || !eof)
			what = "readdir fails";
		else if (l.wrong)
			what = l.wrong;
		else if (l.n != model_children(m, dir))
			what = "a name is missing";
		for (unsigned i = 0; i < MODEL_ENTRIES && !what; i++) {
			struct model_entry *e = &m->entry[i];
			struct model_node *n = &m->node[e->node];
			uint32_t size, other_size;

			if (!e->used || e->dir != dir)
				continue;
			r = t_lookup(t, m->node[dir].id, e->name, &attr);
			size = n->size;
			other_size = maybe && maybe->node == e->node ? maybe->other->node[e->node].size : size;
			if (r < 0)
				what = "lookup fails";
			else if (n->id.ino && (n->id.ino != attr.id.ino || n->id.gen != attr.id.gen))
				what = "lookup finds another inode";
			else if (attr.type != n->type || attr.nlink != n->nlink || attr.mode != n->mode)
				what = "attributes differ";
			else if (n->type != FS_DIR && !model_size_fits(maybe, size, other_size, attr.size))
				what = "size differs";
			if (!what) {
				n->id = attr.id;
				if (n->type == FS_DIR)
					queue[tail++] = e->node;
			}
			if (!what && n->type == FS_REG) {
				size = (uint32_t)attr.size;
				r = t_read(t, n->id, 0, buf, MODEL_BYTES + 1, &eof);
				if (r != (int)size || !eof)
					what = "read fails";
				for (uint32_t b = 0; b < size && !what; b++)
					if (buf[b] != n->data[b] &&
						(!maybe || maybe->node != e->node ||
							buf[b] != maybe->other->node[e->node].data[b]))
						what = "data differs";
			}
			if (what) {
				snprintf(wrong, sizeof(wrong),
					"%s at %s (%u links, size %u; is %u links, mode %o, size %llu, %d)", what,
					e->name, n->nlink, n->size, attr.nlink, attr.mode,
					(unsigned long long)attr.size, r);
				what = wrong;
			}
		}
	}
	free(buf);
	return what;
}

#endif
