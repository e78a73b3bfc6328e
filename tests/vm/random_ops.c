/*
 * random_ops: random operations on files through one or two mounts of the same export, against a model in memory.
 *
 * Every step picks a mount and a file, opens it, does one thing (write, read, truncate, extend, cut and extend again,
 * rename, remove, replace) and closes it, so that each step must see what all steps before it did, through whichever
 * mount (close-to-open). Contents are compared byte by byte. Only DIR's own files are touched.
 *
 *   random_ops [--ops N] [--seed S] [--files N] DIR [DIR-ON-ANOTHER-MOUNT]
 *   random_ops ... --wait PORT DIR            and on another machine
 *   random_ops ... --other ADDRESS:PORT DIR   with the same numbers
 *
 * The second form has its two mounts on two machines: both walk through the same steps, and each does those of its own
 * mount and waits for the end of the other's.
 */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SIZE_MAX_MODEL (288u * 1024)
#define FILES_MAX 64

struct model {
	bool exists;
	uint32_t size;
	uint8_t *data; /* SIZE_MAX_MODEL bytes; zero beyond size */
};

static struct model files[FILES_MAX];
static unsigned file_count = 24, dir_count;
static const char *dirs[2] = {"", ""}; /* "": on the other machine */
static int other = -1;
static bool mine; /* this step is done here */
static uint64_t random_state, step;
static uint8_t buffer[SIZE_MAX_MODEL];

static uint64_t random_next(void)
{
	uint64_t x = random_state += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}
static uint32_t below(uint32_t n)
{
	return (uint32_t)(random_next() % n);
}
/* Sizes and offsets near block and page bounds are where faults live. */
static uint32_t random_length(uint32_t max)
{
	static const uint32_t units[] = {1, 512, 4096, 65536, 262144};
	uint32_t unit = units[below(5)];
	uint32_t n = below(max / unit + 1) * unit + (below(3) ? 0 : below(64));
	return n > max ? max : n;
}

static void fail(const char *what, unsigned file, const char *path)
{
	errx(1, "step %" PRIu64 ": %s (file %u, %s, model size %u): %s", step, what, file, path, files[file].size,
		strerror(errno));
}

static const char *path_of(unsigned file, unsigned dir)
{
	static char path[2][512];
	static unsigned turn;
	turn ^= 1;
	snprintf(path[turn], sizeof(path[turn]), "%s/f%u", dirs[dir], file);
	return path[turn];
}

static void verify_range(unsigned file, int fd, const char *path, uint32_t off, uint32_t len)
{
	struct model *m = &files[file];
	uint32_t want = off >= m->size ? 0 : (m->size - off < len ? m->size - off : len), got = 0;

	if (!mine)
		return;
	while (got < len) {
		ssize_t n = pread(fd, buffer + got, len - got, (off_t)off + got);
		if (n < 0)
			fail("read", file, path);
		if (n == 0)
			break;
		got += (uint32_t)n;
	}
	if (got != want)
		errx(1, "step %" PRIu64 ": file %u (%s): read of %u at %u gave %u bytes, not %u", step, file, path, len,
			off, got, want);
	for (uint32_t i = 0; i < got; i++)
		if (buffer[i] != m->data[off + i])
			errx(1, "step %" PRIu64 ": file %u (%s): byte %u is %02x, not %02x (read of %u at %u)", step,
				file, path, off + i, buffer[i], m->data[off + i], len, off);
}

static void verify_all(unsigned file, unsigned dir)
{
	const char *path = path_of(file, dir);
	struct stat st;

	if (!mine)
		return;
	int fd = open(path, O_RDONLY);
	if (!files[file].exists) {
		if (fd >= 0 || errno != ENOENT)
			fail("a removed file is there", file, path);
		return;
	}
	if (fd < 0)
		fail("open", file, path);
	if (fstat(fd, &st) || st.st_size != files[file].size)
		errx(1, "step %" PRIu64 ": file %u (%s) has %lld bytes, not %u", step, file, path,
			(long long)st.st_size, files[file].size);
	verify_range(file, fd, path, 0, SIZE_MAX_MODEL);
	close(fd);
}

static void op_write(unsigned file, unsigned dir)
{
	struct model *m = &files[file];
	const char *path = path_of(file, dir);
	bool append = below(4) == 0;
	uint32_t off = append ? m->size : random_length(SIZE_MAX_MODEL - 1);
	uint32_t len = 1 + random_length(SIZE_MAX_MODEL - off - (off == SIZE_MAX_MODEL ? 0 : 1)), done = 0;
	int fd = -1;

	if (off >= SIZE_MAX_MODEL)
		return;
	int flags = O_WRONLY | O_CREAT | (below(5) ? 0 : O_SYNC);
	if (mine && (fd = open(path, flags, 0644)) < 0)
		fail("open for writing", file, path);
	for (uint32_t i = 0; i < len; i++)
		m->data[off + i] = (uint8_t)(random_state >> (i & 7)) ^ (uint8_t)i ^ (uint8_t)step;
	while (done < len) { /* in pieces, so that one open carries several writes */
		uint32_t piece = below(3) ? len - done : 1 + below(len - done);
		if (mine && pwrite(fd, m->data + off + done, piece, (off_t)off + done) != (ssize_t)piece)
			fail("write", file, path);
		done += piece;
	}
	if (below(6) == 0 && mine && fsync(fd))
		fail("fsync", file, path);
	if (mine && close(fd))
		fail("close", file, path);
	m->exists = true;
	if (off + len > m->size)
		m->size = off + len;
}

static void op_truncate(unsigned file, unsigned dir)
{
	struct model *m = &files[file];
	const char *path = path_of(file, dir);
	uint32_t size = random_length(SIZE_MAX_MODEL);
	bool punch = below(3) == 0; /* cut and extend again: the cut part must read as zeros */
	uint32_t again = punch ? m->size : size;

	if (!m->exists)
		return;
	if (mine && (truncate(path, size) || (punch && truncate(path, again))))
		fail("truncate", file, path);
	if (size < m->size)
		memset(m->data + size, 0, m->size - size);
	m->size = again;
}

static void op_rename(unsigned file, unsigned dir)
{
	unsigned to = below(file_count);
	struct model swap;

	if (!files[file].exists || to == file)
		return;
	if (mine && rename(path_of(file, dir), path_of(to, dir)))
		fail("rename", file, path_of(to, dir));
	memset(files[to].data, 0, SIZE_MAX_MODEL);
	files[to].exists = false;
	files[to].size = 0;
	swap = files[to];
	files[to] = files[file];
	files[file] = swap;
}

static void op_remove(unsigned file, unsigned dir)
{
	struct model *m = &files[file];
	if (mine && unlink(path_of(file, dir)) && (m->exists || errno != ENOENT))
		fail("unlink", file, path_of(file, dir));
	memset(m->data, 0, SIZE_MAX_MODEL);
	m->exists = false;
	m->size = 0;
}

static void op_read(unsigned file, unsigned dir)
{
	const char *path = path_of(file, dir);
	int fd = -1;

	if (!files[file].exists) {
		verify_all(file, dir);
		return;
	}
	if (mine && (fd = open(path, O_RDONLY)) < 0)
		fail("open for reading", file, path);
	for (unsigned i = 0; i < 3; i++) {
		uint32_t off = random_length(SIZE_MAX_MODEL);
		verify_range(file, fd, path, off, random_length(SIZE_MAX_MODEL - off));
	}
	if (mine)
		close(fd);
}

/* ADDRESS:PORT, or the PORT at which the other machine will come. */
static int other_connect(const char *name, bool wait)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	char address[64] = "0.0.0.0";
	unsigned port = 0;
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	if ((wait ? sscanf(name, "%u", &port) != 1 : sscanf(name, "%63[^:]:%u", address, &port) != 2) ||
		inet_pton(AF_INET, address, &a.sin_addr) != 1)
		errx(2, "%s is no address and port", name);
	a.sin_port = htons((uint16_t)port);
	if (wait) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		if (bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 1))
			err(1, "%s", name);
		return accept(fd, NULL, NULL);
	}
	for (unsigned i = 0; connect(fd, (struct sockaddr *)&a, sizeof(a)); i++) {
		if (i == 600)
			err(1, "%s", name);
		usleep(100000);
		close(fd);
		fd = socket(AF_INET, SOCK_STREAM, 0);
	}
	return fd;
}

/* Tells the other machine that a step of ours is done, or waits for one of its. */
static void step_end(void)
{
	char word = 't';
	ssize_t n = other < 0 ? 1 : mine ? send(other, &word, 1, MSG_NOSIGNAL) : recv(other, &word, 1, 0);

	if (n != 1)
		errx(1, "step %" PRIu64 ": the other machine has ended", step);
}

static void step_do(void)
{
	unsigned file = below(file_count), dir = below(dir_count), what = below(100);

	mine = dirs[dir][0];
	if (what < 40)
		op_write(file, dir);
	else if (what < 70)
		op_read(file, dir);
	else if (what < 82)
		op_truncate(file, dir);
	else if (what < 92)
		op_rename(file, dir);
	else if (what < 96)
		op_remove(file, dir);
	else
		verify_all(file, dir);
	step_end();
}

static void verify_everything(void)
{
	for (unsigned i = 0; i < file_count; i++)
		for (unsigned d = 0; d < dir_count; d++) {
			mine = dirs[d][0];
			verify_all(i, d);
		}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"ops", 1, NULL, 'o'}, {"seed", 1, NULL, 's'}, {"files", 1, NULL, 'f'},
		{"wait", 1, NULL, 'w'}, {"other", 1, NULL, 'p'}, {0}};
	uint64_t ops = 20000, seed = 1;
	const char *peer = NULL;
	bool wait = false;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 'o':
			ops = strtoull(optarg, NULL, 0);
			break;
		case 's':
			seed = strtoull(optarg, NULL, 0);
			break;
		case 'f':
			file_count = (unsigned)atoi(optarg);
			break;
		case 'w':
		case 'p':
			peer = optarg;
			wait = c == 'w';
			break;
		default:
			return 2;
		}
	}
	if (peer && !wait)
		dirs[dir_count++] = "";
	for (; optind < argc && dir_count < 2; optind++)
		dirs[dir_count++] = argv[optind];
	if (!dir_count || file_count < 2 || file_count > FILES_MAX)
		errx(2, "usage: random_ops [--ops N] [--seed S] [--files N] DIR [DIR]");
	if (peer)
		dir_count = 2;
	if (peer && (other = other_connect(peer, wait)) < 0)
		err(1, "%s", peer);
	random_state = seed;
	for (unsigned i = 0; i < file_count; i++) {
		files[i].data = calloc(1, SIZE_MAX_MODEL);
		if (!files[i].data)
			err(1, "calloc");
	}
	for (step = 1; step <= ops; step++) {
		step_do();
		if (step % 1000 == 0)
			printf("# %" PRIu64 " of %" PRIu64 " steps\n", step, ops), fflush(stdout);
	}
	verify_everything();
	printf("%" PRIu64 " operations, seed %" PRIu64 ": no difference\n", ops, seed);
	return 0;
}
