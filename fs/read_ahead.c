/*
 * Reading ahead: who reads a file from front to back finds the next part in memory.
 *
 * Each read of a regular file is seen here, in its pass. A read that goes on about where one before it ended belongs to
 * the same stream; "about", because a client sends several at a time and they overtake each other. A file may have
 * some streams at a time. With its third read a stream gets a window ahead of it, a few reads long, which doubles with
 * each further read up to WINDOW_MOST; when half of it is used up, what is missing of it is read, in pieces that fill
 * buffers. A read elsewhere belongs to no stream and begins a new one, which reads nothing ahead until it has proved
 * itself.
 *
 * A stream that finds everything in memory already (a piece of the window had nothing to read) does not look ahead
 * any more until one of its reads misses the cache.
 *
 * It never takes what others need: only BYTES_MOST are under way at a time (a sixteenth of the arena, if that is less),
 * nothing is read while less than that is free, and who wants a block that is under way waits for it and does not
 * read it again. Blocks read ahead enter the small queue of the cache and leave it unless they are read twice.
 *
 * A piece is read in a fiber of its own on the home reactor, the drives and the checksums on the reactor that the
 * stream's reader is on. Errors are nobody's here: the reader meets them himself.
 *
 * Home reactor only; no wait but in the fibers and in read_ahead_fini().
 */
#include "fs/inode_internal.h"

#define SETS 64u
#define WAYS 4u
#define PROVED 2u     /* reads that followed: a stream */
#define HITS_MOST 16u /* how long it is remembered while others want its place */
#define WINDOW_LEAST (256u << 10)
#define WINDOW_MOST (4u << 20)
#define PIECE_BYTES (1u << 20)
#define BYTES_MOST (16u << 20)

struct read_stream {
	uint64_t ino, start, next, end; /* next: where it goes on; end: of what was read ahead */
	uint64_t got;			/* bytes read of start..next */
	uint32_t snap, window, used;
	uint8_t hits;
	bool warm; /* all was in memory */
};

struct piece_read {
	struct fs *fs;
	struct fs_id id;
	struct read_stream *stream;
	struct reactor *reactor;
	uint64_t off;
	uint32_t bytes;
};

static void piece_fiber(void *arg)
{
	struct piece_read *p = arg;
	struct ahead *a = &p->fs->files->ahead;
	struct read_stream *s = p->stream;
	bool same = s->ino == p->id.ino && s->snap == p->id.snap;
	int missing = 0;

	/* the reader may be behind it already */
	if (!p->fs->files->stopping && !p->fs->failed && (!same || s->next < p->off + p->bytes))
		missing = read_ahead(p->fs, p->id, p->off, p->bytes, p->reactor);
	if (missing > 0)
		a->blocks += (uint64_t)missing;
	else if (s->ino == p->id.ino && s->snap == p->id.snap)
		s->warm = true;
	a->bytes -= p->bytes;
	a->running--;
	if (a->running == 0)
		wait_queue_wake_all(&p->fs->files->read_wait);
	free(p);
}

static bool piece_start(
	struct fs *fs, struct read_stream *s, struct fs_id id, uint64_t off, uint32_t bytes, struct reactor *reactor)
{
	struct ahead *a = &fs->files->ahead;
	uint64_t most = arena_total_bytes() / 16 < BYTES_MOST ? arena_total_bytes() / 16 : BYTES_MOST;
	struct piece_read *p;

	if (a->bytes + bytes > most || arena_free_bytes() < most || buf_wanted())
		return false;
	p = malloc(sizeof(*p));
	if (!p)
		return false;
	*p = (struct piece_read){.fs = fs, .id = id, .stream = s, .reactor = reactor, .off = off, .bytes = bytes};
	if (fiber_spawn(piece_fiber, p) < 0) {
		free(p);
		return false;
	}
	a->bytes += bytes;
	a->running++;
	return true;
}

/* Reads what is missing of the window, unless that is little. */
static void stream_ahead(struct fs *fs, struct read_stream *s, struct fs_id id, uint64_t size, struct reactor *reactor)
{
	uint64_t target = s->next + s->window < size ? s->next + s->window : size;

	if (s->end < s->next)
		s->end = s->next;
	if (target < size && target - s->end < s->window / 2)
		return;
	while (s->end < target) {
		uint64_t stop = s->end + PIECE_BYTES;

		stop = stop < target ? stop / BUF_MAX * BUF_MAX : target;
		if (!piece_start(fs, s, id, s->end, (uint32_t)(stop - s->end), reactor))
			return;
		s->end = stop;
	}
}

/* The stream that a read of LEN bytes at OFF belongs to; else the place for a new one, or NULL when all are good. */
static struct read_stream *stream_find(struct ahead *a, struct fs_id id, uint64_t off, uint32_t len, bool *goes_on)
{
	struct read_stream *set = &a->stream[hash_u64(id.ino) % SETS * WAYS], *oldest = NULL, *place = NULL;

	for (unsigned i = 0; i < WAYS; i++) {
		struct read_stream *s = &set[i];

		if (s->ino == id.ino && s->snap == id.snap && off <= s->next + 2ull * len &&
			off + 2ull * len >= s->next) {
			*goes_on = true;
			return s;
		}
		if (!oldest || (int32_t)(s->used - oldest->used) < 0)
			oldest = s;
		if (s->hits < PROVED && (!place || (int32_t)(s->used - place->used) < 0))
			place = s;
	}
	*goes_on = false;
	if (!place)
		oldest->hits--; /* it goes when it has not been used for long */
	return place;
}

void read_ahead_seen(struct fs *fs, const struct inode_attr *attr, struct fs_id id, uint64_t off, uint32_t len,
	bool missed, struct reactor *reactor)
{
	struct ahead *a = &fs->files->ahead;
	bool goes_on;
	struct read_stream *s = stream_find(a, id, off, len, &goes_on);

	if (!s)
		return;
	s->used = ++a->clock;
	if (!goes_on) {
		*s = (struct read_stream){
			.ino = id.ino, .snap = id.snap, .start = off, .next = off + len, .got = len, .used = a->clock};
		return;
	}
	s->got += len;
	if (off + len <= s->next)
		return;
	s->next = off + len;
	if (s->hits < HITS_MOST)
		s->hits++;
	if (missed)
		s->warm = false;
	/* one with gaps is none */
	if (s->hits < PROVED || s->got < (s->next - s->start) / 4 * 3 || s->warm || fs->files->stopping)
		return;
	if (s->window < WINDOW_MOST)
		s->window = s->window ? 2 * s->window : WINDOW_LEAST;
	while (s->window < 2 * len && s->window < WINDOW_MOST)
		s->window *= 2;
	stream_ahead(fs, s, id, attr->size, reactor);
}

int read_ahead_init(struct fs *fs)
{
	fs->files->ahead.stream = calloc((size_t)SETS * WAYS, sizeof(struct read_stream));
	return fs->files->ahead.stream ? 0 : -ENOMEM;
}

void read_ahead_fini(struct fs *fs)
{
	struct ahead *a = &fs->files->ahead;

	while (a->running > 0)
		wait_queue_wait(&fs->files->read_wait, NEVER);
	free(a->stream);
	a->stream = NULL;
}
