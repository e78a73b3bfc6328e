/*
 * Requests to the control socket: what is no JSON, JSON that is no request, and commands with arguments of anybody's
 * choice, on drives that hold nothing and become arrays and file systems by these very commands. Each line of an input
 * is a request.
 *
 * Commands run for real, and may name any file as a drive. So the reactor's thread and its helpers have an empty
 * directory for their root, with a few sparse files in it; this takes root (exit status 99: not run).
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_core.h"

#include "server/control.c" /* for request_run() */
#include "server/locks.h"
#include "server/nfs4_internal.h"

#define DRIVES 5u
#define DRIVE_BYTES (32 << 20)
#define REQUESTS 6u

static struct config config = {.control = (char *)"/none"};
static struct server server;
static char directory[64];
static int drive[DRIVES];

static void enter(void)
{
	snprintf(directory, sizeof(directory), "%s/furrow-fuzz-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
	FUZZ_CHECK(mkdtemp(directory));
	if (unshare(CLONE_FS) || chroot(directory) || chdir("/")) {
		fprintf(stderr, "needs to be root: commands that are made up must not reach this machine's files\n");
		rmdir(directory);
		_Exit(99);
	}
	for (unsigned i = 0; i < DRIVES; i++) {
		char path[16];
		snprintf(path, sizeof(path), "/d%u", i);
		drive[i] = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
		FUZZ_CHECK(drive[i] >= 0);
	}
}

static int no_reload(struct server *s, struct error *err)
{
	(void)s;
	return error_set(err, -ENOENT, "nothing to reload");
}

static void run(void *arg)
{
	static char *pattern[] = {(char *)"/d*"};
	const char *none[1] = {NULL};
	struct fuzz_input *in = arg;
	struct error err = {0};
	int end[2];

	for (unsigned i = 0; i < DRIVES; i++)
		FUZZ_CHECK(!ftruncate(drive[i], 0) && !ftruncate(drive[i], DRIVE_BYTES));
	memset(&server, 0, sizeof(server));
	server.config = &config;
	server.started = wall_ns();
	server.reload = no_reload;
	server.storage.keep = true;
	control.server = &server;
	FUZZ_CHECK(storage_open(&server.storage, pattern, 1, none, 0, &err) == 0);
	for (unsigned i = 0; i < REQUESTS && fuzz_left(in); i++) {
		const uint8_t *line_end = memchr(in->p, '\n', fuzz_left(in));
		size_t bytes = line_end ? (size_t)(line_end - in->p) : fuzz_left(in);
		uint8_t *line = fuzz_copy(in->p, bytes);
		struct connection c = {0};
		FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end) == 0);
		close(end[1]); /* nobody listens: what takes long sees that, and ends */
		c.fd = end[0];
		request_run(&c, (char *)line, bytes);
		close(end[0]);
		free(line);
		in->p += line_end ? bytes + 1 : bytes;
	}
	storage_close(&server.storage);
}

/* What `furrow state` asks for: nobody holds anything, but it is there. */
static void begin(void)
{
	struct error err = {0};
	struct lock_limits limits = {0};
	struct exports *exports = exports_build(&config, &server.storage, &err);

	lock_server_table_set(lock_table_create(&limits));
	FUZZ_CHECK(exports && lock_server_table() && nfs4_start(exports) == 0);
	exports_publish(exports);
}

static void leave(void)
{
	nfs4_stop();
	lock_table_destroy(lock_server_table());
	exports_publish(NULL);
	for (unsigned i = 0; i < DRIVES; i++)
		close(drive[i]);
}

/* Outside, where the directory has its name. */
static void remove_all(void)
{
	char path[64];

	for (unsigned i = 0; i < DRIVES; i++) {
		snprintf(path, sizeof(path), "%s/d%u", directory, i);
		unlink(path);
	}
	rmdir(directory);
}

static void fuzz_one(const uint8_t *data, size_t bytes)
{
	static bool started;
	struct fuzz_input in = {data, data + bytes};

	if (!started) {
		FUZZ_CHECK(atexit(remove_all) == 0);
		fuzz_core.enter = enter;
		fuzz_core_start(64u << 20, begin, leave);
		started = true;
	}
	fuzz_core_call(run, &in);
}

/* ------------------------------------------------------------------------------------------------
 * Seeds
 */

#define ARRAY "{\"command\":\"array.create\",\"name\":\"a\",\"level\":6,\"drives\":[\"/d0\",\"/d1\",\"/d2\",\"/d3\"]}\n"
#define FS "{\"command\":\"fs.create\",\"name\":\"a/v\"}\n"

static void seed(const char *name, const char *text)
{
	fuzz_seed(name, text, strlen(text));
}

static void fuzz_seeds(void)
{
	seed("create",
		ARRAY "{\"command\":\"array.status\",\"name\":\"a\"}\n{\"command\":\"array.destroy\",\"name\":\"a\"}");
	seed("mirror", "{\"command\":\"array.create\",\"name\":\"b\",\"level\":10,\"groups\":2,\"strip_bytes\":65536,"
		       "\"drives\":[\"/d0\",\"/d1\",\"/d2\",\"/d3\"],\"spares\":[\"/d4\"],\"force\":true}\n"
		       "{\"command\":\"array.fail\",\"name\":\"b\",\"slot\":1}\n{\"command\":\"array.list\"}");
	seed("members",
		ARRAY "{\"command\":\"array.add\",\"name\":\"a\",\"drive\":\"/d4\",\"force\":true,\"spare\":true}\n"
		      "{\"command\":\"array.replace\",\"name\":\"a\",\"drive\":\"/d1\",\"with\":\"/d4\"}\n"
		      "{\"command\":\"array.remove\",\"name\":\"a\",\"slot\":1,\"drive\":\"/d1\"}");
	seed("rebuild", ARRAY "{\"command\":\"array.rebuild\",\"name\":\"a\",\"action\":\"pause\",\"latency_us\":9}\n"
			      "{\"command\":\"array.scrub\",\"name\":\"a\",\"action\":\"start\"}\n"
			      "{\"command\":\"array.scrub\",\"name\":\"a\",\"action\":\"cancel\"}");
	seed("fs", ARRAY FS "{\"command\":\"fs.status\",\"name\":\"a/v\"}\n{\"command\":\"fs.list\"}\n"
			    "{\"command\":\"fs.check\",\"name\":\"a/v\",\"data\":true,\"repair\":true}\n"
			    "{\"command\":\"fs.destroy\",\"name\":\"a/v\"}");
	seed("dump", ARRAY FS "{\"command\":\"fs.dump\",\"name\":\"a/v\",\"what\":\"inode\",\"inode\":1}\n"
			      "{\"command\":\"fs.dump\",\"name\":\"a/v\",\"what\":\"space\"}");
	seed("snapshot", ARRAY FS "{\"command\":\"snapshot.create\",\"name\":\"a/v\",\"snapshot\":\"s\"}\n"
				  "{\"command\":\"snapshot.list\",\"name\":\"a/v\"}\n"
				  "{\"command\":\"snapshot.delete\",\"name\":\"a/v\",\"snapshot\":\"s\"}");
	seed("drives", "{\"command\":\"drive.list\",\"drives\":[\"/d1\"]}\n"
		       "{\"command\":\"drive.spare\",\"drives\":[\"/d4\"],\"force\":true}\n"
		       "{\"command\":\"drive.release\",\"drives\":[\"/d4\"]}\n"
		       "{\"command\":\"array.examine\",\"drives\":[\"/d0\"]}\n{\"command\":\"storage.rescan\"}");
	seed("state", "{\"command\":\"state.list\"}\n{\"command\":\"state.expel\",\"client\":\"1\"}\n"
		      "{\"command\":\"status\"}\n{\"command\":\"traffic\"}\n{\"command\":\"version\"}\n"
		      "{\"command\":\"server.reload\"}");
	seed("nested", "[[[[[[[[[]]]]]]]]]\n{\"command\":[{\"a\":1e9}]}\n\"\\u0000\"\n{\"command\":\"status\"}x\n{");
}
