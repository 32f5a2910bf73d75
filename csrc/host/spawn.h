/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Children of a program with many threads: between the fork and the exec only
 * system calls are made. Such a child's function gets everything prepared, writes what went
 * wrong to its report and never returns to the caller's code.
 */
#include <sys/types.h>

struct bsh_error;

/* What a child says when it fails; read from a pipe that closes at exec. */
struct bsh_report {
	int code; /* errno */
	char what[124];
};
/* In the child: writes the report to fd and exits. what must be a literal or prepared. */
_Noreturn void bsh_report_exit(int fd, int code, const char *what);
/* In the parent: 0 when the pipe closed silently, else fills *err and returns -errno. */
int bsh_report_read(int fd, struct bsh_error *err);

typedef void (*bsh_child_main)(void *context, int report_fd);
/*
 * Forks; the child runs main with all signals blocked, not dumpable, and its report
 * pipe. flags: CLONE_NEW*. The child's termination must be collected with bsh_wait_pidfd.
 */
int bsh_spawn(bsh_child_main main, void *context, unsigned long long flags, pid_t *ret_pid, int *ret_pidfd,
	      int *ret_report_fd, struct bsh_error *err);
/* In the child, before exec: default handlers and an empty mask. */
void bsh_signals_reset(void);
/* In the child: closes all but the standard streams and keep (or -1). */
void bsh_close_others(int keep);

/*
 * Waits for a child's end (-1: for ever) and reaps it: its wait status. Works also when
 * another part of the program reaped it first; -ETIMEDOUT; -ECHILD when its status is lost.
 * A process that is no child of ours gives -ECHILD once it has ended.
 */
int bsh_wait_pidfd(int pidfd, int timeout_ms, int *ret_status);
int bsh_pidfd_open(pid_t pid, int *ret_fd, struct bsh_error *err);
int bsh_pidfd_kill(int pidfd, int signal);
