/*
 * The hook: a program that hears of what happens to arrays (server: hook: in the configuration), run as
 *
 *   HOOK EVENT ARRAY MEMBER DETAIL
 *
 * e.g. "member-failed a0 /dev/ng3n1 ...", to send mail or call a pager. Events come from any reactor and must not hold
 * one up: they are put into a short queue, and a thread of its own runs the program for one after the other. What does
 * not fit into the queue is counted and dropped, and so told of; a program that runs longer than 30 s is killed. A
 * server that stops tells what it knows before it ends, but for no longer than 5 s.
 *
 * Every event is a log line and counted (furrow_array_events_total), with or without a hook.
 */
#include "server/server_internal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define QUEUE 64u
#define RUN_SECONDS 30
#define STOP_SECONDS 5

extern char **environ;

struct hook_event {
	char event[40], array[RAID_NAME_MAX + 1], member[256], detail[200];
};

static struct {
	pthread_mutex_t mutex;
	pthread_cond_t wake;
	pthread_t thread;
	bool running, stopping;
	uint64_t stop_at; /* when STOPPING: nothing runs any longer than until then */
	char program[512];
	struct hook_event queue[QUEUE];
	unsigned first, count;
	uint64_t dropped;
} hook = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static struct counter events_total, dropped_total;

static bool stop_is_late(void)
{
	pthread_mutex_lock(&hook.mutex);
	bool late = hook.stopping && now_ns() > hook.stop_at;
	pthread_mutex_unlock(&hook.mutex);
	return late;
}

/* Waits for PID until it ends or is killed. */
static int program_wait(pid_t pid)
{
	int status = 0;

	for (unsigned i = 0; i < RUN_SECONDS * 20 && !stop_is_late(); i++) {
		if (waitpid(pid, &status, WNOHANG) == pid)
			return status;
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return -1;
}

static void program_run(const char *program, struct hook_event *e)
{
	char name[512];
	char *argv[] = {name, e->event, e->array, e->member, e->detail, NULL};
	posix_spawnattr_t attr;
	sigset_t none, all;
	pid_t pid;

	snprintf(name, sizeof(name), "%s", program);
	/* the reactors' signal mask and dispositions are no business of the program's */
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	int rc = posix_spawn(&pid, program, NULL, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	if (rc) {
		log_error("hook", "cannot be run program=%s reason=\"%s\"", program, strerror(rc));
		return;
	}
	int status = program_wait(pid);
	if (status == -1)
		log_error("hook", "killed, it ran too long program=%s event=%s", program, e->event);
	else if (status)
		log_warning("hook", "failed program=%s event=%s status=%d", program, e->event,
			WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

static void *hook_thread(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&hook.mutex);
	for (;;) {
		while (!hook.count && !hook.stopping)
			pthread_cond_wait(&hook.wake, &hook.mutex);
		if (!hook.count || (hook.stopping && now_ns() > hook.stop_at))
			break;
		struct hook_event e = hook.queue[hook.first];
		char program[sizeof(hook.program)];
		memcpy(program, hook.program, sizeof(program));
		hook.first = (hook.first + 1) % QUEUE;
		hook.count--;
		pthread_mutex_unlock(&hook.mutex);
		program_run(program, &e);
		pthread_mutex_lock(&hook.mutex);
	}
	if (hook.count)
		log_warning("hook", "the server ends before it has told of all program=%s events=%u", hook.program,
			hook.count);
	counter_add(&dropped_total, hook.count);
	pthread_mutex_unlock(&hook.mutex);
	return NULL;
}

/* On any reactor; does not wait. */
static void event_heard(void *arg, const char *event, const char *array, const char *member, const char *detail)
{
	(void)arg;
	counter_add(&events_total, 1);
	log_info("event", "%s array=%s drive=%s detail=\"%s\"", event, array, member, detail);
	pthread_mutex_lock(&hook.mutex);
	if (hook.running && hook.count < QUEUE) {
		struct hook_event *e = &hook.queue[(hook.first + hook.count++) % QUEUE];
		snprintf(e->event, sizeof(e->event), "%s", event);
		snprintf(e->array, sizeof(e->array), "%s", array);
		snprintf(e->member, sizeof(e->member), "%s", member);
		snprintf(e->detail, sizeof(e->detail), "%s", detail);
		pthread_cond_signal(&hook.wake);
	} else if (hook.running) {
		counter_add(&dropped_total, 1);
	}
	pthread_mutex_unlock(&hook.mutex);
}

int hook_start(const char *program, struct error *err)
{
	counter_register(&events_total, "furrow_array_events_total", NULL, "What happened to arrays: see the log.");
	counter_register(
		&dropped_total, "furrow_hook_dropped_total", NULL, "Events for which the hook's queue had no room.");
	hook.stopping = false;
	hook.first = hook.count = 0;
	if (program) {
		snprintf(hook.program, sizeof(hook.program), "%s", program);
		int rc = pthread_create(&hook.thread, NULL, hook_thread, NULL);
		if (rc)
			return error_set(err, -rc, "hook: cannot start its thread: %s", strerror(rc));
		hook.running = true;
	}
	raid_events_listen(event_heard, NULL);
	return 0;
}

void hook_stop(void)
{
	raid_events_listen(NULL, NULL);
	pthread_mutex_lock(&hook.mutex);
	bool running = hook.running;
	hook.stopping = true;
	hook.stop_at = now_ns() + STOP_SECONDS * NSEC_PER_SEC;
	hook.running = false;
	pthread_cond_signal(&hook.wake);
	pthread_mutex_unlock(&hook.mutex);
	if (running)
		pthread_join(hook.thread, NULL);
}
