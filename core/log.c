/*
 * The log: one line to standard error for each event, by one write(2), from a buffer on the stack.
 *
 * A log line must never stop a reactor: nothing is allocated, and when standard error is a pipe that nobody reads
 * the line is dropped and counted. Peers and drives can cause log lines, so each call site has an allowance (a burst
 * of ten, then one a second; the next line that passes says how many were left out) and bytes that would start a
 * line of their own or control a terminal are replaced.
 */
#include "core/core_internal.h"

#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BURST 10u
#define LINE_MOST 1024u

_Atomic int log_threshold = LOG_INFO;
static bool log_journal;

void log_open(bool journal_prefix)
{
	log_journal = journal_prefix;
}

/*
 * window is the time at which the allowance is whole again: each line moves it on by a second, and a line may pass
 * while it is less than BURST seconds ahead.
 */
static bool site_allows(struct log_site *site, uint32_t *dropped)
{
	uint64_t now = now_ns();
	uint64_t full = atomic_load_explicit(&site->window, memory_order_relaxed), next;
	do {
		uint64_t from = full > now ? full : now;
		if (from - now > (BURST - 1) * NSEC_PER_SEC) {
			atomic_fetch_add_explicit(&site->dropped, 1, memory_order_relaxed);
			return false;
		}
		next = from + NSEC_PER_SEC;
	} while (!atomic_compare_exchange_weak_explicit(
		&site->window, &full, next, memory_order_relaxed, memory_order_relaxed));
	atomic_fetch_add_explicit(&site->used, 1, memory_order_relaxed);
	*dropped = atomic_exchange_explicit(&site->dropped, 0, memory_order_relaxed);
	return true;
}

static size_t line_start(char *line, size_t size, enum log_level level, const char *subsystem)
{
	static const char *const names[] = {"ERROR", "WARNING", "INFO", "DEBUG"};
	static const char priorities[] = {'3', '4', '6', '7'};
	int n;
	if (log_journal) {
		/* The journal has its own time. */
		n = snprintf(line, size, "<%c>%s: ", priorities[level], subsystem);
	} else {
		uint64_t wall = wall_ns();
		time_t seconds = (time_t)(wall / NSEC_PER_SEC);
		struct tm tm;
		gmtime_r(&seconds, &tm);
		n = snprintf(line, size, "%04d-%02d-%02dT%02d:%02d:%02d.%03uZ %s %s: ", tm.tm_year + 1900,
			tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
			(unsigned)(wall % NSEC_PER_SEC / 1000000), names[level], subsystem);
	}
	return n < 0 ? 0 : (size_t)n < size ? (size_t)n : size - 1;
}

void log_emit(struct log_site *site, enum log_level level, const char *subsystem, const char *format, ...)
{
	char line[LINE_MOST];
	uint32_t dropped;
	int saved = errno;

	if (!site_allows(site, &dropped))
		return;
	const size_t room = sizeof(line) - 48; /* for what may follow the text */
	size_t len = line_start(line, room, level, subsystem);
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line + len, room - len, format, args);
	va_end(args);
	if (n > 0)
		len += (size_t)n < room - len ? (size_t)n : room - len - 1;
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	if (dropped) {
		n = snprintf(line + len, sizeof(line) - len - 1, " left_out=%u", dropped);
		len += n > 0 ? (size_t)n : 0;
	}
	line[len++] = '\n';

	struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
	if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT) || write(STDERR_FILENO, line, len) < 0)
		counter_add(&metric_log_dropped, 1);
	errno = saved;
}
