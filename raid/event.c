/* Events: what happens to arrays, handed to one listener (the server's hook). No state but that. Any thread. */
#include "raid/raid_internal.h"

static struct {
	pthread_mutex_t mutex;
	raid_event_fn *fn;
	void *arg;
} listener = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void raid_events_listen(raid_event_fn *fn, void *arg)
{
	pthread_mutex_lock(&listener.mutex);
	listener.fn = fn;
	listener.arg = arg;
	pthread_mutex_unlock(&listener.mutex);
}

void event_emit(const struct array *array, const char *event, const struct member *member, const char *format, ...)
{
	char detail[200];
	va_list args;
	va_start(args, format);
	vsnprintf(detail, sizeof(detail), format, args);
	va_end(args);
	pthread_mutex_lock(&listener.mutex);
	if (listener.fn)
		listener.fn(listener.arg, event, array->config.name, member ? member->path : "", detail);
	pthread_mutex_unlock(&listener.mutex);
}
