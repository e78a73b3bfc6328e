/*
 * Counting instructions one by one: a child is stopped at every one between mark_begin() and mark_end().
 * Slow (some hundred thousand a second), but exact on any machine, also where the processor's counters are hidden.
 * Only the thread that reaches mark_begin() first is counted, in user space.
 */
#ifndef FURROW_BENCH_STEPS_H
#define FURROW_BENCH_STEPS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) static void mark_begin(void)
{
	__asm__ volatile("" ::: "memory");
}
__attribute__((noinline)) static void mark_end(void)
{
	__asm__ volatile("" ::: "memory");
}

/* In the child, just before mark_begin(): tells the parent to look at every step from here on. */
static inline void steps_ready(void)
{
	raise(SIGTRAP);
}

/*
 * Runs CHILD(ARG) in a process of its own, which calls _exit(0) in the end, and counts what lies between the marks.
 * LOOK, if given, sees each instruction's address and its first 16 bytes. Negative: it did not get to the end.
 */
typedef void steps_look_fn(void *arg, uint64_t address, const uint8_t *code);
static inline int64_t steps_count(void (*child)(void *arg), steps_look_fn *look, void *arg)
{
	fflush(stdout);
	pid_t pid = fork();
	if (pid == 0) {
		ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		child(arg);
		_exit(2);
	}
	int status;
	int64_t steps = 0;
	bool stepping = false, counting = false, ended = false;
	while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
		struct user_regs_struct regs;
		if (WSTOPSIG(status) != SIGTRAP) {
			ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, NULL, (void *)(long)WSTOPSIG(status));
			continue;
		}
		ptrace(PTRACE_GETREGS, pid, NULL, &regs);
		counting = counting || regs.rip == (uint64_t)(uintptr_t)mark_begin;
		if (regs.rip == (uint64_t)(uintptr_t)mark_end)
			ended = true;
		if (counting && !ended) {
			steps++;
			if (look) {
				uint64_t word[2];
				for (unsigned i = 0; i < 2; i++)
					word[i] = (uint64_t)ptrace(
						PTRACE_PEEKTEXT, pid, (void *)(uintptr_t)(regs.rip + 8 * i), NULL);
				look(arg, regs.rip, (const uint8_t *)word);
			}
		}
		stepping = !ended;
		ptrace(ended ? PTRACE_CONT : PTRACE_SINGLESTEP, pid, NULL, NULL);
	}
	if (!ended || !WIFEXITED(status) || WEXITSTATUS(status)) {
		fprintf(stderr, "%s: instructions could not be counted (status %#x)\n", program_invocation_short_name,
			(unsigned)status);
		return -1;
	}
	return steps;
}

#endif
