/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_RLIMIT_H
#define BUNSHIN_RLIMIT_H

#include <sys/resource.h>
#include <sys/types.h>

/*
 * Reads one limit of another process from /proc/PID/limits, which needs no
 * CAP_SYS_RESOURCE. Returns 0, or -1 with errno set.
 */
int bunshin_proc_rlimit(pid_t pid, int resource, struct rlimit64 *ret_limit);

/*
 * Lowers @limit to what this process may set on itself. A no-op for who holds
 * CAP_SYS_RESOURCE. Returns 0, or -1 with errno set.
 */
int bunshin_clamp_rlimit(int resource, struct rlimit64 *limit);

#endif
