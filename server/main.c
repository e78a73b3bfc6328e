/*
 * furrowd: the server's process: its options, its life from fork to exit, its signals.
 *
 * What can be checked without touching anything is checked in the caller's process and terminal: options,
 * configuration, ports. Then, unless --foreground is given, it forks (daemon.c), and the child builds reactors and runs
 * main_fiber() on reactor 0, which starts the server (serve.c) and sleeps until a signal.
 *
 * Signals arrive in the loop of reactor 0: SIGTERM and SIGINT stop cleanly, a second one ends the process at once (the
 * file systems' logs make that safe), SIGHUP reloads exports. They are blocked in all threads from the
 * beginning, so that one that comes during the start waits for its turn. One wish to stop may arrive as several signals
 * (timeout(1) signals its child and then the whole group, and so do shells), so those within SECOND_SIGNAL of the
 * first are part of it.
 *
 * Exit status: 0 after a clean stop or for what only asks, 1 when it could not start, 2 for wrong usage.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/daemon.h"
#include "server/server_internal.h"

static const char usage[] = "Usage: furrowd [--config FILE] [--foreground]\n"
			    "Serves the file systems that FILE exports to NFS clients over TCP and RDMA.\n"
			    "\n"
			    "  --config FILE   the configuration; default " CONFIG_DEFAULT_PATH "\n"
			    "  --foreground    stay in the foreground and log to standard error\n"
			    "  --check         check the configuration and do nothing else\n"
			    "  --version       tell the version\n"
			    "  --help          tell this\n"
			    "\n"
			    "SIGTERM or SIGINT stops it cleanly, SIGHUP reloads the exports.\n";

#define SECOND_SIGNAL NSEC_PER_SEC

static struct {
	struct server server;
	bool stop, reload;  /* asked for by signals; reactor 0 alone */
	uint64_t stop_time; /* now_ns() when it was */
	struct wait_queue asked;
	int status; /* to exit with */
} furrowd;

static void on_signal(int sig, void *arg)
{
	(void)arg;
	if (sig == SIGHUP) {
		furrowd.reload = true;
	} else if (!furrowd.stop) {
		furrowd.stop = true;
		furrowd.stop_time = now_ns();
	} else if (now_ns() - furrowd.stop_time >= SECOND_SIGNAL) {
		log_warning("server", "second signal: ending at once");
		_exit(1);
	}
	wait_queue_wake_all(&furrowd.asked);
}

static void main_fiber(void *arg)
{
	struct server *server = &furrowd.server;
	struct error err = {0};

	(void)arg;
	wait_queue_init(&furrowd.asked);
	signals_watch(on_signal, NULL);
	int rc = serve_start(server, &furrowd.stop, &err);
	if (rc) {
		if (rc != -ECANCELED) {
			fprintf(stderr, "furrowd: %s\n", err.text[0] ? err.text : strerror(-rc));
			furrowd.status = 1;
		}
		return;
	}
	log_info("server", "ready version=%s config=%s exports=%u rdma=%s rpcbind=%s", FURROW_VERSION,
		server->config->file, server->config->export_count, server->rdma ? "yes" : "no",
		server->rpcbind ? "yes" : "no");
	if (daemon_ready())
		log_open(true);
	daemon_notify("READY=1");

	while (!furrowd.stop) {
		if (furrowd.reload) {
			furrowd.reload = false;
			if (serve_reload(server, &err))
				log_error("server", "reload refused, the old exports stay error=\"%s\"", err.text);
			continue;
		}
		wait_queue_wait(&furrowd.asked, NEVER);
	}
	log_info("server", "stopping");
	daemon_notify("STOPPING=1");
	serve_stop(server);
	log_info("server", "stopped");
}

/* Connections and drives need descriptors; registered buffers need locked memory. As far as we may. */
static void limits_raise(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	limit = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
	if (setrlimit(RLIMIT_MEMLOCK, &limit) && !getrlimit(RLIMIT_MEMLOCK, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_MEMLOCK, &limit);
	}
}

static int fail(const struct error *err)
{
	fprintf(stderr, "furrowd: %s\n", err->text);
	return 1;
}

static int serve(const char *file, bool foreground)
{
	struct config *config;
	struct core_config core = {0};
	struct error err = {0};
	sigset_t set;
	char absolute[PATH_MAX];

	/* a reload reads it again, and messages name it */
	if (realpath(file, absolute))
		file = absolute;
	if (config_load(file, &config, &err))
		return fail(&err);
	if (serve_probe(config, &err)) {
		config_free(config);
		return fail(&err);
	}
	if (!foreground) {
		int rc = daemon_detach();
		if (rc) {
			error_set(&err, rc, "cannot fork: %s", strerror(-rc));
			config_free(config);
			return fail(&err);
		}
	}
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	limits_raise();
	log_open(foreground && getenv("JOURNAL_STREAM"));

	furrowd.server.config = config;
	config_core(config, &core);
	int rc = core_main(&core, main_fiber, NULL, &err);
	config_free(furrowd.server.config);
	return rc ? fail(&err) : furrowd.status;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"config", required_argument, NULL, 'c'},
		{"foreground", no_argument, NULL, 'f'},
		{"check", no_argument, NULL, 'k'},
		{"version", no_argument, NULL, 'V'},
		{"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	const char *file = CONFIG_DEFAULT_PATH;
	bool foreground = false, check = false;
	int option;

	opterr = 0; /* what is wrong is one line, from here */
	while ((option = getopt_long(argc, argv, ":c:fhV", options, NULL)) != -1) {
		switch (option) {
		case 'c':
			file = optarg;
			break;
		case 'f':
			foreground = true;
			break;
		case 'k':
			check = true;
			break;
		case 'V':
			puts("furrowd " FURROW_VERSION);
			return 0;
		case 'h':
			fputs(usage, stdout);
			return 0;
		case ':':
			fprintf(stderr, "furrowd: %s needs a value. Try: furrowd --help\n", argv[optind - 1]);
			return 2;
		default:
			fprintf(stderr, "furrowd: what is \"%s\"? Try: furrowd --help\n", argv[optind - 1]);
			return 2;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "furrowd: what is \"%s\"? Try: furrowd --help\n", argv[optind]);
		return 2;
	}
	if (check) {
		struct config *config;
		struct error err = {0};
		if (config_load(file, &config, &err))
			return fail(&err);
		printf("%s: in order, %u export%s\n", file, config->export_count, config->export_count == 1 ? "" : "s");
		config_free(config);
		return 0;
	}
	return serve(file, foreground);
}
