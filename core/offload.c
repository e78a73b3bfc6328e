/*
 * Helper threads for what may block: name look-ups, DNS, GSS, file system calls on configuration files.
 *
 * One queue of jobs under one mutex; a job lies on the stack of the fiber that waits for it. Threads are made when a
 * job finds none idle, up to the number configured, and end with core_run(). A job that was taken runs to its end:
 * core_run() waits for it, since it holds pointers into the fiber's stack. When not even one thread can be made the
 * job runs on the reactor, which is slow but right.
 */
#include "core/core_internal.h"

#include <signal.h>

struct job {
	struct list_node node;
	void (*fn)(void *arg);
	void *arg;
	struct reactor *reactor;
	struct fiber *fiber;
	struct mail mail;
};

static struct {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct list jobs;
	pthread_t thread[64];
	unsigned count, idle, limit, queued;
	bool stop;
} helpers = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER, .jobs = LIST_INIT(helpers.jobs)};

static void job_done(void *arg)
{
	struct job *job = arg;
	fiber_unpark(job->fiber);
}

static void *helper_main(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&helpers.lock);
	for (;;) {
		struct list_node *n = list_pop_front(&helpers.jobs);
		if (n) {
			struct job *job = container_of(n, struct job, node);
			helpers.queued--;
			pthread_mutex_unlock(&helpers.lock);
			job->fn(job->arg);
			job->mail.fn = job_done;
			job->mail.arg = job;
			reactor_mail(job->reactor, &job->mail);
			pthread_mutex_lock(&helpers.lock);
			continue;
		}
		if (helpers.stop)
			break;
		helpers.idle++;
		pthread_cond_wait(&helpers.wake, &helpers.lock);
		helpers.idle--;
	}
	pthread_mutex_unlock(&helpers.lock);
	return NULL;
}

/* One more thread, with all signals blocked: these are for reactor 0. Called under the lock. */
static void helper_start(void)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&helpers.thread[helpers.count], NULL, helper_main, NULL) == 0)
		helpers.count++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void offload_init(unsigned threads)
{
	helpers.limit = threads > 64 ? 64 : threads;
	helpers.stop = false;
}

void offload(void (*fn)(void *arg), void *arg)
{
	struct fiber *self = fiber_self();
	if (!self) {
		fn(arg);
		return;
	}
	struct job job = {.fn = fn, .arg = arg, .reactor = reactor_current, .fiber = self};

	pthread_mutex_lock(&helpers.lock);
	if (helpers.queued >= helpers.idle && helpers.count < helpers.limit)
		helper_start();
	if (!helpers.count) {
		pthread_mutex_unlock(&helpers.lock);
		fn(arg);
		return;
	}
	list_push_back(&helpers.jobs, &job.node);
	helpers.queued++;
	pthread_cond_signal(&helpers.wake);
	pthread_mutex_unlock(&helpers.lock);
	fiber_park();
}

/* Jobs that no thread has taken yet are dropped with the fibers that wait for them. */
void offload_fini(void)
{
	pthread_mutex_lock(&helpers.lock);
	helpers.stop = true;
	list_init(&helpers.jobs);
	helpers.queued = 0;
	pthread_cond_broadcast(&helpers.wake);
	unsigned count = helpers.count;
	helpers.count = 0;
	pthread_mutex_unlock(&helpers.lock);
	for (unsigned i = 0; i < count; i++)
		pthread_join(helpers.thread[i], NULL);
	helpers.stop = false;
}
