/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Children of a program with many threads: between the fork and the exec only
 * system calls are made. Such a child's function gets everything prepared, writes what went
 * wrong to its report and never returns to the caller's code.
 */
#include <stddef.h>
#include <sys/types.h>

struct bsh_error;

/*
 * What a child says: one report, also of success. The end of the pipe alone tells nothing,
 * since a process that another part of the program forks meanwhile keeps a copy of it open.
 */
struct bsh_report {
	int code;  /* errno; 0: done */
	int value; /* with code 0: what the child was asked for */
	char what[120];
};
/* In the child. what must be a literal or prepared. */
void bsh_report_done(int fd, int value);
_Noreturn void bsh_report_exit(int fd, int code, const char *what);
/* In the parent: waits for the report or the child's end. Fills *err and returns -errno on a failure. */
int bsh_report_read(int fd, int pidfd, int *ret_value, struct bsh_error *err);

/* A report of failure that is there already, by one that has ended: 0 when there is none. */
int bsh_report_peek(int fd, struct bsh_error *err);

typedef void (*bsh_child_main)(void *context, int report_fd);
/*
 * Forks; the child runs main with all signals blocked, not dumpable, killed when the
 * calling thread dies before its exec, and with its end of a report pipe. flags: CLONE_NEW*.
 */
int bsh_spawn(bsh_child_main main, void *context, unsigned long long flags, pid_t *ret_pid, int *ret_pidfd,
	int *ret_report_fd, struct bsh_error *err);
/* In the child, before exec: default handlers, an empty mask, and the parent's death means nothing any more. */
void bsh_signals_reset(void);
/* In the child: closes all but the standard streams and the n descriptors of keep. */
void bsh_close_others(const int *keep, size_t n);

/*
 * Waits for a child's end (-1: for ever) and reaps it: its wait status. Works also when
 * another part of the program reaped it first; -ETIMEDOUT; -ECHILD when its status is lost.
 * A process that is no child of ours gives -ECHILD once it has ended.
 */
int bsh_wait_pidfd(int pidfd, int timeout_ms, int *ret_status);
int bsh_pidfd_open(pid_t pid, int *ret_fd, struct bsh_error *err);
int bsh_pidfd_kill(int pidfd, int signal);
/* The pid that it stands for; -ESRCH once that has been reaped. */
int bsh_pidfd_pid(int pidfd, pid_t *ret_pid, struct bsh_error *err);
