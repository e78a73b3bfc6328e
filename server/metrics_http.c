/*
 * The page that Prometheus scrapes: GET /metrics on the metrics address, plain HTTP, read only.
 *
 * libmicrohttpd serves it on a thread of its own, which sleeps in epoll until somebody connects, so an idle server
 * stays idle. For a page it reads counters, and has a fiber of reactor 0 tell about storage: so the stop of this thread
 * must not block that reactor. The socket is made here, so that a port in use is one clear sentence.
 * Whoever can connect may read; nothing that is said here is secret, and by default only this machine can.
 */
#include "server/server_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONNECTIONS_MAX 16
#define TIMEOUT_SECONDS 10

static struct MHD_Daemon *daemon_handle;

static enum MHD_Result text_answer(struct MHD_Connection *connection, unsigned status, const char *text)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT);
	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; charset=utf-8");
	enum MHD_Result rc = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return rc;
}

static enum MHD_Result request_answer(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
	const char *version, const char *upload, size_t *upload_bytes, void **state)
{
	char *page = NULL;
	size_t bytes = 0;

	(void)arg;
	(void)version;
	(void)upload;
	(void)state;
	if (*upload_bytes) {
		*upload_bytes = 0; /* a body is read and forgotten */
		return MHD_YES;
	}
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return text_answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET is answered here\n");
	if (!strcmp(url, "/"))
		return text_answer(connection, MHD_HTTP_OK, "Furrow " FURROW_VERSION ": the metrics are at /metrics\n");
	if (strcmp(url, "/metrics") != 0)
		return text_answer(connection, MHD_HTTP_NOT_FOUND, "there is only /metrics here\n");

	FILE *out = open_memstream(&page, &bytes);
	if (!out)
		return MHD_NO;
	metrics_write(out);
	storage_metrics_write(out);
	traffic_metrics_write(out);
	if (fclose(out) != 0) {
		free(page);
		return MHD_NO;
	}
	struct MHD_Response *response = MHD_create_response_from_buffer(bytes, page, MHD_RESPMEM_MUST_FREE);
	if (!response) {
		free(page);
		return MHD_NO;
	}
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8");
	enum MHD_Result rc = MHD_queue_response(connection, MHD_HTTP_OK, response);
	MHD_destroy_response(response);
	return rc;
}

/* A listening socket, or a negative errno with the sentence. */
static int socket_make(const char *address, uint16_t port, struct error *err)
{
	struct sockaddr_storage storage = {0};
	struct sockaddr_in *in4 = (struct sockaddr_in *)&storage;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&storage;
	socklen_t length;
	int on = 1;

	if (inet_pton(AF_INET, address, &in4->sin_addr) == 1) {
		in4->sin_family = AF_INET;
		in4->sin_port = htons(port);
		length = sizeof(*in4);
	} else if (inet_pton(AF_INET6, address, &in6->sin6_addr) == 1) {
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
		length = sizeof(*in6);
	} else {
		return error_set(err, -EINVAL, "metrics: \"%s\" is not an address", address);
	}
	int fd = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (fd < 0 || bind(fd, (struct sockaddr *)&storage, length) < 0 || listen(fd, CONNECTIONS_MAX) < 0) {
		int rc = error_set(err, -errno,
			"metrics: cannot listen on %s port %u: %s (server: metrics: in the configuration)", address,
			port, strerror(errno));
		if (fd >= 0)
			close(fd);
		return rc;
	}
	return fd;
}

int metrics_http_probe(const struct config *config, struct error *err)
{
	if (!config->metrics_port)
		return 0;
	int fd = socket_make(config->metrics_address, config->metrics_port, err);
	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

int metrics_http_start(const struct config *config, struct error *err)
{
	if (!config->metrics_port)
		return 0;
	int fd = socket_make(config->metrics_address, config->metrics_port, err);
	if (fd < 0)
		return fd;
	daemon_handle = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO | MHD_USE_ITC, 0, NULL, NULL,
		request_answer, NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
		(unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_SECONDS,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)32 * 1024, MHD_OPTION_END);
	if (!daemon_handle) {
		close(fd);
		return error_set(err, -EIO, "metrics: the HTTP server did not start");
	}
	return 0;
}

static void daemon_stop(void *arg)
{
	(void)arg;
	MHD_stop_daemon(daemon_handle);
}

void metrics_http_stop(void)
{
	if (daemon_handle)
		offload(daemon_stop, NULL);
	daemon_handle = NULL;
}
