// SPDX-License-Identifier: GPL-2.0-only
/*
 * The end of a restore: the threads of all tasks are traced until they have left the restorer's code. CRIU
 * does that one by one: it stops a thread, waits for it, sets options, lets it run on, stops it again for the
 * last stage, to give it a breakpoint at the end of the restorer's code. A browser has a hundred. In a branch they have their
 * options from the start, and that code itself traps.
 */
#include <errno.h>
#include <sys/ptrace.h>

#include "bunshin-pool.h"
#include "log.h"
#include "pstree.h"
#include "rst_info.h"

#undef LOG_PREFIX
#define LOG_PREFIX "pool: "

#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif

/* With options from the start, which needs no stop. */
bool bunshin_seize(struct pstree_item *item, int thread)
{
	unsigned long options = PTRACE_O_TRACESYSGOOD | (rsti(item)->has_seccomp ? PTRACE_O_SUSPEND_SECCOMP : 0);

	return bunshin_branching() && !ptrace(PTRACE_SEIZE, item->threads[thread].real, 0, options);
}

bool bunshin_threads_trap(void)
{
#ifdef __x86_64__
	return bunshin_branching();
#else
	return false;
#endif
}
