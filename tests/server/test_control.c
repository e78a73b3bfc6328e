/*
 * The control socket: what it answers, and that no input and no silence from the other side does any harm. The
 * server side runs on a reactor, the client on a helper thread with ordinary blocking calls.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/server_internal.h"

static char directory[64], path[100];
static struct config config;
static struct server server;

static int client_connect(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {.tv_sec = 20};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strcpy(address.sun_path, path);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		close(fd);
		return -errno;
	}
	return fd;
}

/* Sends LENGTH bytes and reads until the other side closes; the answer is in a buffer of its own. */
static char *exchange(const char *request, size_t length)
{
	static char answer[1 << 20];
	size_t got = 0;
	ssize_t n;
	int fd = client_connect();

	if (fd < 0)
		return strcpy(answer, "not connected");
	for (size_t sent = 0; sent < length; sent += (size_t)n) {
		n = send(fd, request + sent, length - sent, MSG_NOSIGNAL);
		if (n <= 0)
			break; /* it has closed already; what it said can still be read */
	}
	while (got < sizeof(answer) - 1 && (n = recv(fd, answer + got, sizeof(answer) - 1 - got, 0)) > 0)
		got += (size_t)n;
	answer[got] = 0;
	close(fd);
	return answer;
}

static char *ask(const char *request)
{
	return exchange(request, strlen(request));
}

/* Runs CLIENT on a helper thread while the server runs. */
struct scene {
	void (*client)(void *arg);
	const char *failed; /* where the client was not content */
	char text[300];
};

#define EXPECT(scene, condition, shown)                                                                                \
	do {                                                                                                           \
		if (!(condition) && !(scene)->failed) {                                                                \
			(scene)->failed = #condition;                                                                  \
			snprintf((scene)->text, sizeof((scene)->text), "%s", shown);                                   \
		}                                                                                                      \
	} while (0)

static void scene_main(void *arg)
{
	struct scene *scene = arg;
	const char *none[1] = {NULL};
	struct error err = {0};

	memset(&server, 0, sizeof(server));
	server.config = &config;
	server.started = wall_ns();
	if (storage_open(&server.storage, NULL, 0, none, 0, &err) < 0 || control_start(&server, &err) < 0) {
		scene->failed = "start";
		snprintf(scene->text, sizeof(scene->text), "%.299s", err.text);
		return;
	}
	offload(scene->client, scene);
	control_stop(&server);
	storage_close(&server.storage);
}

static void play(void (*client)(void *arg))
{
	struct core_config core = {.reactors = 1, .arena_bytes = 4 << 20, .fibers = 64, .helper_threads = 2};
	struct scene scene = {.client = client};
	struct error err = {0};

	if (core_main(&core, scene_main, &scene, &err) < 0)
		fail_msg("%s", err.text);
	if (scene.failed)
		fail_msg("not so: %s; got: %s", scene.failed, scene.text);
	assert_int_equal(access(path, F_OK), -1); /* the file goes with the server */
}

/* ------------------------------------------------------------------------------------------------ */

static void answers_client(void *arg)
{
	struct scene *scene = arg;
	struct stat st;
	char *a = ask("{\"command\": \"version\"}\n");

	EXPECT(scene, strstr(a, "\"result\"") && strstr(a, FURROW_VERSION) && strchr(a, '\n') == a + strlen(a) - 1, a);
	a = ask("{\"command\": \"array.list\"}\n");
	EXPECT(scene, strstr(a, "{\"result\":{\"arrays\":[]}}"), a);
	a = ask("{\"command\": \"server.reload\"}\n");
	EXPECT(scene, strstr(a, "\"error\""), a); /* this server has nothing that could */
	EXPECT(scene, stat(path, &st) == 0 && (st.st_mode & 07777) == 0600, "mode");
	for (int i = 0; i < 200; i++) {
		a = ask("{\"command\": \"version\"}\n");
		EXPECT(scene, strstr(a, "\"result\""), a);
	}
}

static void test_answers(void **state)
{
	(void)state;
	play(answers_client);
}

static void hostile_client(void *arg)
{
	static const char *const requests[] = {
		"\n",
		"{\n",
		"[]\n",
		"null\n",
		"17\n",
		"\"x\"\n",
		"{}\n",
		"{\"command\": 7}\n",
		"{\"command\": null}\n",
		"{\"command\": \"nonsense\"}\n",
		"{\"command\": \"\"}\n",
		"{\"command\": \"version\", \"command\": \"status\"}\n",
		"{\"command\": \"version\", \"extra\": 1}\n",
		"{\"command\": \"version\", \" \": 1}\n",
		"{\"command\": \"array.status\", \"name\": 7}\n",
		"{\"command\": \"array.status\", \"name\": \"a\\u0000b\"}\n",
		"{\"command\": \"array.status\", \"name\": \"../../etc\"}\n",
		"{\"command\": \"array.status\", \"name\": \"\"}\n",
		"{\"command\": \"array.create\"}\n",
		"{\"command\": \"array.create\", \"name\": \"x\", \"level\": -1}\n",
		"{\"command\": \"array.create\", \"name\": \"x\", \"level\": 1.5}\n",
		"{\"command\": \"array.create\", \"name\": \"x\", \"level\": 99999999999, \"drives\": []}\n",
		"{\"command\": \"array.create\", \"name\": \"x\", \"level\": 6, \"drives\": \"/dev/x\"}\n",
		"{\"command\": \"array.create\", \"name\": \"x\", \"level\": 6, \"drives\": [1]}\n",
		"{\"command\": \"array.create\", \"name\": \"x\", \"level\": 6, \"drives\": []}\n",
		"{\"command\": \"array.fail\", \"name\": \"x\", \"slot\": 9223372036854775807}\n",
		"{\"command\": \"array.examine\"}\n",
		"{\"command\": \"array.examine\", \"drives\": [\"/nonexistent\"]}\n",
		"{\"command\": \"array.destroy\", \"name\": \"x\"}\n",
		"{\"command\": \"fs.create\", \"name\": \"x\"}\n",
		"{\"command\": \"fs.create\", \"name\": \"x/y\", \"bytes\": -4}\n",
		"{\"command\": \"fs.check\", \"name\": \"x/y\", \"data\": \"yes\"}\n",
		"{\"command\": \"fs.check\", \"name\": \"x/y\"}\n",
		"{\"command\": \"fs.status\", \"name\": \"/\"}\n",
		"{\"command\": \"fs.destroy\"}\n",
		"{\"command\": \"version\"} {\"command\": \"version\"}\n",
		"{\"command\": \"\xff\xfe\"}\n",
		"{\"command\": \"\x1b[2J\"}\n",
		"[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]\n",
		"{\"a\": 1e999999999}\n",
		"{\"a\": 99999999999999999999999999}\n",
	};
	struct scene *scene = arg;

	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		char *a = ask(requests[i]);
		if (strncmp(a, "{\"error\":{\"code\":-", 18) != 0 || a[strlen(a) - 1] != '\n' || strchr(a, '\n')[1])
			EXPECT(scene, !"an error as one line", requests[i]);
	}
}

static void test_hostile(void **state)
{
	(void)state;
	play(hostile_client);
}

static void sizes_client(void *arg)
{
	struct scene *scene = arg;
	size_t room = 300000;
	char *text = malloc(room);

	/* endless, without a line's end */
	memset(text, 'x', room);
	char *a = exchange(text, room);
	EXPECT(scene, strstr(a, "longer than") || !a[0], a); /* a close with unread bytes may lose the answer */
	/* as deep as the limit of bytes allows, in a string and out of it */
	memset(text, '[', room);
	text[60000] = '\n';
	a = exchange(text, 60001);
	EXPECT(scene, strstr(a, "nested deeper"), a);
	size_t n = (size_t)sprintf(text, "{\"command\": \"");
	memset(text + n, '[', 60000);
	strcpy(text + n + 60000, "\"}\n");
	a = ask(text);
	EXPECT(scene, strstr(a, "unknown command"), a);
	/* in pieces of one byte */
	int fd = client_connect();
	for (const char *p = "{\"command\": \"version\"}\n"; *p; p++) {
		EXPECT(scene, send(fd, p, 1, MSG_NOSIGNAL) == 1, "send");
		usleep(200);
	}
	n = (size_t)recv(fd, text, room - 1, 0);
	text[n < room ? n : 0] = 0;
	EXPECT(scene, strstr(text, "\"result\""), text);
	close(fd);
	/* gone before the line's end, and gone before the answer */
	for (int i = 0; i < 50; i++) {
		fd = client_connect();
		send(fd, "{\"command\": \"status\"}\n", i % 2 ? 22 : 10, MSG_NOSIGNAL);
		close(fd);
	}
	a = ask("{\"command\": \"version\"}\n");
	EXPECT(scene, strstr(a, "\"result\""), a);
	free(text);
}

static void test_sizes(void **state)
{
	(void)state;
	play(sizes_client);
}

static void random_client(void *arg)
{
	struct scene *scene = arg;
	static const char good[] = "{\"command\": \"array.status\", \"name\": \"a0\"}\n";
	char text[sizeof(good)];

	for (int i = 0; i < 400; i++) {
		memcpy(text, good, sizeof(good));
		for (long k = random() % 5; k >= 0; k--)
			text[(size_t)random() % (sizeof(good) - 2)] = (char)random();
		char *a = exchange(text, sizeof(good) - 1);
		EXPECT(scene, !strncmp(a, "{\"error\":", 9) && strlen(a) < 2000, a);
	}
}

static void test_random(void **state)
{
	(void)state;
	print_message("seed 20260103\n");
	srandom(20260103);
	play(random_client);
}

/* More silent connections than there may be: they keep others waiting, but a stop ends them all. */
static void silent_client(void *arg)
{
	struct scene *scene = arg;

	for (int i = 0; i < 24; i++)
		EXPECT(scene, client_connect() >= 0, "connect"); /* left open on purpose */
}

static void test_silent(void **state)
{
	struct scene scene = {.client = silent_client};

	(void)state;
	uint64_t begin = now_ns();
	play(silent_client);
	assert_null(scene.failed);
	assert_true(now_ns() - begin < 5 * NSEC_PER_SEC);
	for (int fd = 3; fd < 64; fd++) {
		struct sockaddr_un peer;
		socklen_t length = sizeof(peer);
		if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0)
			close(fd);
	}
}

/* ------------------------------------------------------------------------------------------------ */

static struct error second_error;
static int second_result;

static void second_main(void *arg)
{
	(void)arg;
	struct server other = {.config = &config};

	second_result = control_start(&other, &second_error);
	if (second_result == 0)
		control_stop(&other);
}

static int start_alone(void)
{
	struct core_config core = {.reactors = 1, .arena_bytes = 4 << 20, .fibers = 16, .helper_threads = 1};

	memset(&second_error, 0, sizeof(second_error));
	assert_int_equal(core_main(&core, second_main, NULL, NULL), 0);
	return second_result;
}

static int socket_make(bool listening)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	strcpy(address.sun_path, path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	if (listening)
		assert_int_equal(listen(fd, 1), 0);
	return fd;
}

static void test_stale(void **state)
{
	struct stat st;

	(void)state;
	/* left over by a server that died */
	close(socket_make(false));
	assert_int_equal(start_alone(), 0);
	assert_int_equal(access(path, F_OK), -1);
	/* somebody answers, even when its queue is full */
	int fd = socket_make(true);
	assert_int_equal(start_alone(), -EADDRINUSE);
	assert_non_null(strstr(second_error.text, path));
	assert_int_equal(start_alone(), -EADDRINUSE);
	assert_int_equal(start_alone(), -EADDRINUSE);
	assert_int_equal(stat(path, &st), 0);
	close(fd);
	assert_int_equal(start_alone(), 0);
	/* not a socket: left alone */
	FILE *out = fopen(path, "w");
	fclose(out);
	assert_int_equal(start_alone(), -EEXIST);
	assert_int_equal(stat(path, &st), 0);
	unlink(path);
	/* the directory is made; one above it is not */
	char deep[130];
	snprintf(deep, sizeof(deep), "%s/run/control.sock", directory);
	config.control = deep;
	assert_int_equal(start_alone(), 0);
	snprintf(deep, sizeof(deep), "%s/run", directory);
	assert_int_equal(rmdir(deep), 0);
	snprintf(deep, sizeof(deep), "%s/a/b/control.sock", directory);
	assert_int_equal(start_alone(), -ENOENT);
	config.control = path;
}

static int setup(void **state)
{
	(void)state;
	strcpy(directory, "/tmp/furrow-control-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	snprintf(path, sizeof(path), "%s/control.sock", directory);
	config.control = path;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_silent),
		cmocka_unit_test(test_stale),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
