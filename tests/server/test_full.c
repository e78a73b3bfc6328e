/*
 * A full disk: eight writers over NFS fill a small file system to the last byte, in several rounds. Each of them is
 * told NFS3ERR_NOSPC and nothing else; what was committed is there; deleting works, and all of it comes back, to the
 * block: fs check, without a server, finds no data left and every count right. Snapshots are made and deleted
 * meanwhile. FURROW_ROUNDS: so many (10 in the long form).
 */
#include <pthread.h>

#define RUN_DRIVE_BYTES (40ull << 20)
#include "tests/server/furrowd_run.h"

#define WRITERS 8u
#define CHUNK (128u << 10)
#define PIECES_MAX 8192u

static struct run run;

struct writer {
	struct client c;
	struct kept top, file;
	unsigned me, round;
	uint64_t bytes; /* that were written and committed */
	uint64_t nospc;
	const char *wrong;
};

static uint8_t pattern(uint64_t off, unsigned writer, unsigned round)
{
	return (uint8_t)(off * 7 + (off >> 12) * 13 + writer * 31 + round * 101 + 1);
}

static void name_of(const struct writer *w, char *name)
{
	sprintf(name, "writer%u", w->me);
}

static nfsstat3 create(struct writer *w)
{
	char name[32];
	CREATE3args args = {.where = {.dir = fh(&w->top)}, .how = {.mode = UNCHECKED}};
	CREATE3res res;

	name_of(w, name);
	args.where.name = text(name);
	args.how.obj_attributes.mode.set_it = true;
	args.how.obj_attributes.mode.mode = 0644;
	nfs3(&w->c, CREATE, &args, &res);
	if (!res.status)
		w->file = keep(&res.resok.obj.handle);
	return res.status;
}

static nfsstat3 write_at(struct writer *w, uint64_t off, uint32_t count, stable_how stable)
{
	WRITE3args args = {
		.file = fh(&w->file), .offset = off, .count = count, .stable = stable, .data = {.len = count}};
	WRITE3res res;
	struct xdr_out *o = client_begin(&w->c, NFS_PROGRAM, NFS_V3, NFSPROC3_WRITE);

	xdr_encode_WRITE3args(o, &args);
	for (uint32_t i = 0; i < count; i++)
		*o->p++ = pattern(off + i, w->me, w->round);
	client_call(&w->c);
	client_result(&w->c, WRITE3res, &res);
	return res.status;
}

static nfsstat3 commit(struct writer *w)
{
	COMMIT3args args = {.file = fh(&w->file)};
	COMMIT3res res;

	nfs3(&w->c, COMMIT, &args, &res);
	return res.status;
}

/* Large unstable writes first, then ever smaller durable ones: to the last block. */
static void fill(struct writer *w)
{
	nfsstat3 status = create(w);

	w->bytes = w->nospc = 0;
	if (status) {
		w->wrong = status == NFS3ERR_NOSPC ? NULL : "create";
		w->file.len = 0;
		return;
	}
	for (uint32_t size = CHUNK; size >= 4096; size /= 32) {
		for (unsigned i = 0; i < PIECES_MAX; i++) {
			status = write_at(w, w->bytes, size, size == CHUNK ? UNSTABLE : FILE_SYNC);
			if (status)
				break;
			w->bytes += size;
		}
		w->nospc += status == NFS3ERR_NOSPC;
		if (status != NFS3ERR_NOSPC)
			w->wrong = "a write that was not refused for want of space";
		if (commit(w) != NFS3_OK)
			w->wrong = "commit";
	}
}

static void verify(struct writer *w)
{
	for (uint64_t off = 0; off < w->bytes && w->file.len && !w->wrong;) {
		READ3args args = {.file = fh(&w->file), .offset = off, .count = CHUNK};
		READ3res res;

		nfs3(&w->c, READ, &args, &res);
		if (res.status || !res.resok.count) {
			w->wrong = "read";
			return;
		}
		for (uint32_t i = 0; i < res.resok.count; i++)
			if (res.resok.data.inline_data[i] != pattern(off + i, w->me, w->round))
				w->wrong = "another byte than was written";
		off += res.resok.count;
	}
}

static void remove_file(struct writer *w)
{
	char name[32];
	REMOVE3args args = {.object = {.dir = fh(&w->top)}};
	REMOVE3res res;

	name_of(w, name);
	args.object.name = text(name);
	nfs3(&w->c, REMOVE, &args, &res);
	if (res.status && w->file.len)
		w->wrong = "remove";
}

static void *writer_main(void *arg)
{
	struct writer *w = arg;

	fill(w);
	verify(w);
	return NULL;
}

static uint64_t free_bytes(struct writer *w)
{
	FSSTAT3args args = {.fsroot = fh(&w->top)};
	FSSTAT3res res;

	nfs3(&w->c, FSSTAT, &args, &res);
	return res.status ? 0 : res.resok.fbytes;
}

/* Space of files and snapshots comes back in the background. */
static uint64_t free_wait(struct writer *w, uint64_t want)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < 6000; i++) {
		bytes = free_bytes(w);
		if (bytes >= want)
			break;
		run_pause();
	}
	return bytes;
}

static void full(void **state)
{
	unsigned rounds = getenv("FURROW_ROUNDS") ? (unsigned)atoi(getenv("FURROW_ROUNDS")) : 2;
	struct writer *w = calloc(WRITERS, sizeof(*w));
	pthread_t thread[WRITERS];
	mountstat3 status;
	uint64_t base;

	(void)state;
	for (unsigned i = 0; i < WRITERS; i++) {
		client_init(&w[i].c, run.port, 0);
		assert_true(client_connect(&w[i].c));
		setsockopt(
			w[i].c.fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 300}, sizeof(struct timeval));
		w[i].top = client_mount(&w[i].c, "/data", &status);
		assert_int_equal(status, MNT3_OK);
		w[i].me = i;
	}
	base = free_bytes(&w[0]);
	for (unsigned round = 0; round < rounds; round++) {
		uint64_t written = 0, back;

		for (unsigned i = 0; i < WRITERS; i++) {
			w[i].round = round;
			assert_int_equal(pthread_create(&thread[i], NULL, writer_main, &w[i]), 0);
		}
		/* of a file system that fills: it may be refused, and must not harm */
		int made = run_tool(&run, "snapshot create a0/data during");
		for (unsigned i = 0; i < WRITERS; i++)
			pthread_join(thread[i], NULL);
		for (unsigned i = 0; i < WRITERS; i++) {
			if (w[i].wrong)
				fail_msg("round %u writer %u: %s", round, i, w[i].wrong);
			written += w[i].bytes;
		}
		/* a writer's last block may have been promised to another one that did not need it */
		if (written + WRITERS * 4096 < base)
			fail_msg("round %u: full after %llu bytes of %llu", round, (unsigned long long)written,
				(unsigned long long)base);
		for (unsigned i = 0; i < WRITERS; i++) {
			remove_file(&w[i]);
			if (w[i].wrong)
				fail_msg("round %u writer %u: %s", round, i, w[i].wrong);
		}
		if (made == 0)
			assert_int_equal(run_tool(&run, "snapshot delete --yes a0/data during"), 0);
		/* names, owners of blocks and replies to remember take a little of the tree */
		back = free_wait(&w[0], base - base / 50);
		if (back < base - base / 50)
			fail_msg("round %u: %llu bytes were free, now %llu", round, (unsigned long long)base,
				(unsigned long long)back);
		printf("round %u: %llu bytes written of %llu, snapshot %s, %llu bytes not free again\n", round,
			(unsigned long long)written, (unsigned long long)base, made ? "refused" : "made",
			(unsigned long long)(base - back));
	}
	for (unsigned i = 0; i < WRITERS; i++)
		client_fini(&w[i].c);
	free(w);
	/* to the block: no extent is left, and no count says otherwise */
	run_stop(&run, SIGTERM);
	assert_int_equal(run_tool(&run, "fs check a0/data | grep -q ' 0 extents, 0 blocks of data.*no faults'"), 0);
}

static int setup(void **state)
{
	(void)state;
	run_init(&run, RUN_EXPORT_YAML);
	run_start(&run);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (run.pid > 0)
		run_stop(&run, SIGTERM);
	run_fini(&run);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(full)};

	return cmocka_run_group_tests(tests, setup, teardown);
}
