/*
 * The control socket: how `furrow` talks to the running server.
 *
 * A stream socket in the file system, mode 0600, so that only root (or whoever runs the server) can connect. A
 * connection carries one request:
 *
 *   client: {"command": "fs.check", "name": "a0/data"}\n
 *   server: {"progress": {"done": 10, "total": 100, "what": "checking"}}\n     none or more
 *           {"result": {...}}\n   or   {"error": {"code": -2, "text": "..."}}\n
 *
 * One fiber of reactor 0 accepts, and one more serves each connection, all through io_uring. What a connection may
 * take is bounded: CONNECTIONS_MAX of them at once, REQUEST_MAX bytes, NEST_MAX levels of JSON (the parser
 * recurses, and a fiber's stack is small), TIMEOUT to say what it wants and for each line that it has to take. A client
 * that breaks a rule is told, and closed; one that goes away while its command runs does not stop the command, unless
 * that only looks.
 *
 * The socket file of a server that died is replaced; one that somebody answers on is not. The directory is locked
 * meanwhile, so that of two servers that start together one loses.
 *
 * A stop tells commands to end early where they can (server->stopping), and waits for them.
 */
#include "server/server_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECTIONS_MAX 16
#define REQUEST_MAX (64 * 1024)
#define NEST_MAX 8
#define TIMEOUT (10 * NSEC_PER_SEC)

struct connection {
	int fd;
	struct io io;	/* its one operation in flight */
	bool receiving; /* io is a receive that a stop may cancel */
	bool broken;	/* the client does not take lines any more */
	struct list_node node;
};

static struct control {
	struct server *server;
	int fd; /* -1: not started */
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	dev_t device;
	ino_t inode;
	struct io accept_io;
	bool stopping;
	unsigned count;
	struct list connections;
	struct wait_queue room;	 /* the accepting fiber, while all connections are taken */
	struct wait_group alive; /* all fibers of this file */
} control = {.fd = -1};

/* ------------------------------------------------------------------------------------------------
 * Lines
 */

/* Ends an operation that took too long: its completion is waited for, since it owns memory until then. */
static int io_finish(struct io *io)
{
	int rc = io_wait_until(io, now_ns() + TIMEOUT);

	if (rc == -ETIME) {
		io_cancel(io);
		io_wait(io);
	}
	return rc;
}

static void line_send(struct connection *c, json_t *line)
{
	char *text = json_dumps(line, JSON_COMPACT);
	size_t length = text ? strlen(text) : 0, sent = 0;

	if (!text) {
		c->broken = true;
		return;
	}
	text[length++] = '\n'; /* in place of the NUL */
	while (sent < length && !c->broken) {
		struct io_uring_sqe *sqe = io_start(&c->io);
		io_uring_prep_send(sqe, c->fd, text + sent, length - sent, MSG_NOSIGNAL);
		io_link(sqe, &c->io);
		int rc = io_finish(&c->io);
		if (rc <= 0)
			c->broken = true;
		else
			sent += (size_t)rc;
	}
	free(text);
}

/* Sends {KEY: VALUE}; takes over VALUE. */
static void value_send(struct connection *c, const char *key, json_t *value)
{
	json_t *line = json_object();

	json_object_set_new(line, key, value);
	line_send(c, line);
	json_decref(line);
}

static void error_send(struct connection *c, const struct error *err)
{
	json_t *text = json_string(err->text), *value = json_object();

	json_object_set_new(value, "code", json_integer(err->code));
	json_object_set_new(value, "text", text ? text : json_string("the error cannot be shown"));
	value_send(c, "error", value);
}

/* ------------------------------------------------------------------------------------------------
 * A connection
 */

/* The parser recurses with each level, so the depth is looked at before. Strings may hold brackets. */
static bool nesting_fits(const char *text, size_t length)
{
	unsigned depth = 0;
	bool string = false;

	for (size_t i = 0; i < length; i++) {
		if (string) {
			if (text[i] == '\\')
				i++;
			else if (text[i] == '"')
				string = false;
		} else if (text[i] == '"') {
			string = true;
		} else if (text[i] == '{' || text[i] == '[') {
			if (++depth > NEST_MAX)
				return false;
		} else if ((text[i] == '}' || text[i] == ']') && depth) {
			depth--;
		}
	}
	return true;
}

/* The request line, without its end; its length or a negative errno. */
static ssize_t request_receive(struct connection *c, char *line, struct error *err)
{
	size_t length = 0;

	while (!control.stopping) {
		struct io_uring_sqe *sqe = io_start(&c->io);
		io_uring_prep_recv(sqe, c->fd, line + length, REQUEST_MAX - length, 0);
		io_link(sqe, &c->io);
		c->receiving = true;
		int rc = io_finish(&c->io);
		c->receiving = false;
		if (control.stopping)
			break;
		if (rc == -ETIME)
			return error_set(err, rc, "no request came for %d seconds", (int)(TIMEOUT / NSEC_PER_SEC));
		if (rc <= 0)
			return error_set(err, rc < 0 ? rc : -ECONNRESET, "the request ended before its line did");
		char *end = memchr(line + length, '\n', (size_t)rc);
		length += (size_t)rc;
		if (end)
			return end - line;
		if (length == REQUEST_MAX)
			return error_set(err, -E2BIG, "the request is longer than %d bytes", REQUEST_MAX);
	}
	error_set(err, -ESHUTDOWN, "the server is stopping");
	return -ESHUTDOWN;
}

static bool progress_send(void *arg, json_t *progress)
{
	struct connection *c = arg;

	if (!c->broken)
		value_send(c, "progress", json_incref(progress));
	return !c->broken;
}

static void request_run(struct connection *c, const char *line, size_t length)
{
	struct error err = {0};
	json_error_t why;
	json_t *request = NULL, *result = NULL;

	if (!nesting_fits(line, length))
		error_set(&err, -EINVAL, "the request is nested deeper than %d levels", NEST_MAX);
	else if (!(request = json_loadb(line, length, JSON_REJECT_DUPLICATES, &why)))
		error_set(&err, -EINVAL, "the request is not JSON: byte %d: %.100s", why.position, why.text);
	else if (!json_is_object(request))
		error_set(&err, -EINVAL, "the request is not a JSON object");
	else
		result = admin_run(control.server, &control.server->storage, request, progress_send, c, &err);
	json_decref(request);
	if (result)
		value_send(c, "result", result);
	else
		error_send(c, &err);
}

static void connection_main(void *arg)
{
	struct connection *c = arg;
	struct error err = {0};
	char *line = malloc(REQUEST_MAX);

	ssize_t length = line ? request_receive(c, line, &err) : -ENOMEM;
	if (length >= 0)
		request_run(c, line, (size_t)length);
	else if (line)
		error_send(c, &err);
	free(line);
	close(c->fd);
	list_remove(&c->node);
	free(c);
	control.count--;
	wait_queue_wake_one(&control.room);
	wait_group_done(&control.alive, 0);
}

static void connection_start(int fd)
{
	struct connection *c = calloc(1, sizeof(*c));

	if (!c) {
		close(fd);
		return;
	}
	c->fd = fd;
	list_push_back(&control.connections, &c->node);
	control.count++;
	wait_group_add(&control.alive, 1);
	if (fiber_spawn(connection_main, c) < 0) {
		list_remove(&c->node);
		control.count--;
		wait_group_done(&control.alive, 0);
		close(fd);
		free(c);
	}
}

static void accept_main(void *arg)
{
	(void)arg;
	while (!control.stopping) {
		if (control.count >= CONNECTIONS_MAX) {
			wait_queue_wait(&control.room, NEVER);
			continue;
		}
		struct io_uring_sqe *sqe = io_start(&control.accept_io);
		io_uring_prep_accept(sqe, control.fd, NULL, NULL, SOCK_CLOEXEC);
		io_link(sqe, &control.accept_io);
		int fd = io_wait(&control.accept_io);
		if (fd >= 0 && control.stopping) {
			close(fd);
		} else if (fd >= 0) {
			connection_start(fd);
		} else if (!control.stopping) {
			log_warning("control", "cannot accept error=%s", strerror(-fd));
			fiber_sleep(NSEC_PER_SEC);
		}
	}
	wait_group_done(&control.alive, 0);
}

/* ------------------------------------------------------------------------------------------------
 * Start and stop
 */

/* 0: nobody is there (any more); -EADDRINUSE: somebody answers. REPLACE: what a dead server left is removed. */
static int path_free(const struct sockaddr_un *address, bool replace, struct error *err)
{
	const char *path = address->sun_path;
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : error_set(err, -errno, "control socket %s: %s", path, strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return error_set(
			err, -EEXIST, "control socket %s: the path is taken by something that is no socket", path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return error_set(err, -errno, "control socket %s: %s", path, strerror(errno));
	int rc = connect(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0;
	close(fd);
	if (rc == 0 || rc == -EAGAIN)
		return error_set(err, -EADDRINUSE, "control socket %s: another server answers on it", path);
	if (rc != -ECONNREFUSED)
		return error_set(err, rc, "control socket %s: %s", path, strerror(-rc));
	if (replace && unlink(path) < 0)
		return error_set(err, -errno, "control socket %s: cannot replace it: %s", path, strerror(errno));
	return 0;
}

static int socket_make(const struct sockaddr_un *address, struct error *err)
{
	const char *path = address->sun_path;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	/* The mode of a socket before bind becomes the mode of its file, so there is no moment at which others may
	 * connect. */
	if (fd < 0 || fchmod(fd, 0600) < 0 || bind(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ||
		listen(fd, CONNECTIONS_MAX) < 0) {
		int rc = error_set(err, -errno, "control socket %s: %s", path, strerror(errno));
		if (fd >= 0)
			close(fd);
		return rc;
	}
	return fd;
}

/* Fills in ADDRESS and its DIRECTORY, of the same size, which is made if it is not there. */
static int path_prepare(const char *path, struct sockaddr_un *address, char *directory, struct error *err)
{
	if (strlen(path) >= sizeof(address->sun_path) || path[0] != '/')
		return error_set(
			err, -EINVAL, "control socket %s: not an absolute path of at most 107 characters", path);
	address->sun_family = AF_UNIX;
	memcpy(address->sun_path, path, strlen(path) + 1);
	memcpy(directory, path, strlen(path) + 1);
	*strrchr(directory, '/') = 0;
	if (!directory[0])
		memcpy(directory, "/", 2);
	if (mkdir(directory, 0755) < 0 && errno != EEXIST && errno != EROFS)
		return error_set(err, -errno, "control socket %s: cannot make its directory %s: %s", path, directory,
			strerror(errno));
	return 0;
}

/* Whether a socket can be made in DIRECTORY: another one of this process's own is, and removed again. */
static int directory_try(const char *path, const char *directory, struct error *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int rc = 0;

	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s/.%d", directory, (int)getpid()) >=
		(int)sizeof(address.sun_path))
		return 0;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
		rc = error_set(err, -errno, "control socket %s: cannot make a socket in %s: %s", path, directory,
			strerror(errno));
	else
		unlink(address.sun_path);
	if (fd >= 0)
		close(fd);
	return rc;
}

int control_probe(const char *path, struct error *err)
{
	struct sockaddr_un address = {0};
	char directory[sizeof(address.sun_path)];
	int rc = path_prepare(path, &address, directory, err);

	if (rc < 0)
		return rc;
	rc = path_free(&address, false, err);
	if (rc < 0)
		return rc;
	return directory_try(path, directory, err);
}

int control_start(struct server *server, struct error *err)
{
	struct sockaddr_un address = {0};
	char directory[sizeof(address.sun_path)];
	const char *path = server->config->control;
	struct stat st;
	int rc = path_prepare(path, &address, directory, err);

	if (rc < 0)
		return rc;
	int lock = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (lock < 0 || flock(lock, LOCK_EX) < 0) {
		rc = error_set(err, -errno, "control socket %s: cannot lock its directory: %s", path, strerror(errno));
		if (lock >= 0)
			close(lock);
		return rc;
	}
	rc = path_free(&address, true, err);
	if (rc == 0)
		rc = socket_make(&address, err);
	close(lock);
	if (rc < 0)
		return rc;

	control = (struct control){.server = server, .fd = rc};
	memcpy(control.path, path, strlen(path) + 1);
	if (lstat(path, &st) == 0) {
		control.device = st.st_dev;
		control.inode = st.st_ino;
	}
	list_init(&control.connections);
	wait_queue_init(&control.room);
	wait_group_init(&control.alive);
	wait_group_add(&control.alive, 1);
	rc = fiber_spawn(accept_main, NULL);
	if (rc < 0) {
		wait_group_done(&control.alive, 0);
		unlink(path);
		close(control.fd);
		control.fd = -1;
		return error_set(err, rc, "control socket %s: no fiber is free", path);
	}
	return 0;
}

void control_stop(struct server *server)
{
	struct stat st;

	if (control.fd < 0)
		return;
	control.stopping = true;
	atomic_store(&server->stopping, true);
	/* Its file goes first, so that who comes now sees that no server is here; unless it is another's by now. */
	if (lstat(control.path, &st) == 0 && st.st_dev == control.device && st.st_ino == control.inode)
		unlink(control.path);
	wait_queue_wake_all(&control.room);
	if (control.accept_io.pending)
		io_cancel(&control.accept_io);
	list_foreach (n, &control.connections) {
		struct connection *c = container_of(n, struct connection, node);
		if (c->receiving)
			io_cancel(&c->io);
	}
	wait_group_wait(&control.alive); /* commands that run are finished first */
	close(control.fd);
	control.fd = -1;
}
