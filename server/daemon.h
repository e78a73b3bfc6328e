/*
 * daemon: how furrowd leaves the terminal that started it, and how it tells its manager about itself. Stands apart from
 * core/, whose log levels have the names of syslog's.
 */
#ifndef FURROW_DAEMON_H
#define FURROW_DAEMON_H

#include <stdbool.h>

/*
 * Forks before anything is open. Returns in the child; the caller's process waits until daemon_ready() and then exits
 * with 0, or with 1 when the child ended before, after its messages reached the terminal. -errno: no fork.
 */
int daemon_detach(void);
/*
 * The start has succeeded: lets the caller go, and gives up the terminal. True when lines for standard error now go to
 * syslog, which wants them with "<N>" priorities. Without daemon_detach() it does nothing.
 */
bool daemon_ready(void);
/* STATE ("READY=1") to the service manager that started us, if one did. */
void daemon_notify(const char *state);

#endif
