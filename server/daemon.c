/*
 * daemon: leaving the terminal in the classic way, with errors of the start still reported there.
 *
 * The child keeps the terminal as its standard error while it starts, so what goes wrong is seen by whoever typed the
 * command; the parent waits on a pipe for the one byte that says "it serves", and its exit status is the start's.
 * io_uring and RDMA do not survive a fork, so it comes before them. The working directory stays, since the
 * configuration may name drives relative to it.
 *
 * Afterwards standard error is the terminal no more. Where it was one, lines go to syslog: a thread reads
 * them from a pipe, sleeping otherwise, because syslog(3) may block and no reactor may. Where it was a file or a pipe
 * it stays.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "server/daemon.h"

static int ready_fd = -1;

/* The caller's process: its exit status is the start's. */
static void wait_for_child(pid_t child, int fd)
{
	char byte;
	ssize_t n;
	int status;

	do
		n = read(fd, &byte, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1)
		_exit(0);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		fprintf(stderr, "furrowd: ended by signal %d during its start\n", WTERMSIG(status));
	_exit(WIFEXITED(status) && WEXITSTATUS(status) ? WEXITSTATUS(status) : 1);
}

int daemon_detach(void)
{
	int fd[2];

	if (pipe2(fd, O_CLOEXEC))
		return -errno;
	fflush(NULL);
	pid_t child = fork();
	if (child < 0) {
		int rc = -errno;
		close(fd[0]);
		close(fd[1]);
		return rc;
	}
	if (child > 0) {
		close(fd[1]);
		wait_for_child(child, fd[0]);
	}
	close(fd[0]);
	ready_fd = fd[1];
	setsid();
	return 0;
}

static void *log_thread(void *arg)
{
	FILE *in = arg;
	char line[1200];

	openlog("furrowd", LOG_PID, LOG_DAEMON);
	while (fgets(line, sizeof(line), in)) {
		int priority = LOG_INFO;
		const char *text = line;
		if (line[0] == '<' && line[1] >= '0' && line[1] <= '7' && line[2] == '>') {
			priority = line[1] - '0';
			text = line + 3;
		}
		syslog(priority, "%.*s", (int)strcspn(text, "\n"), text);
	}
	fclose(in);
	return NULL;
}

static bool log_to_syslog(void)
{
	int fd[2];
	pthread_t thread;

	if (pipe2(fd, O_CLOEXEC))
		return false;
	FILE *in = fdopen(fd[0], "r");
	if (!in) {
		close(fd[0]);
		close(fd[1]);
		return false;
	}
	if (pthread_create(&thread, NULL, log_thread, in)) {
		fclose(in);
		close(fd[1]);
		return false;
	}
	pthread_detach(thread);
	dup2(fd[1], STDERR_FILENO);
	close(fd[1]);
	return true;
}

bool daemon_ready(void)
{
	bool syslog_used = false;

	if (ready_fd < 0)
		return false;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		if (isatty(STDERR_FILENO)) {
			syslog_used = log_to_syslog();
			if (!syslog_used)
				dup2(null, STDERR_FILENO);
		}
		close(null);
	}
	if (write(ready_fd, "1", 1) != 1)
		fprintf(stderr, "furrowd: the process that started it is gone\n");
	close(ready_fd);
	ready_fd = -1;
	return syslog_used;
}

void daemon_notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un to = {.sun_family = AF_UNIX};

	if (!path || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof(to.sun_path))
		return;
	memcpy(to.sun_path, path, strlen(path));
	if (to.sun_path[0] == '@')
		to.sun_path[0] = 0; /* an abstract name */
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
	(void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&to, len);
	close(fd);
}
