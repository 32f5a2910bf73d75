// SPDX-License-Identifier: GPL-2.0-only
/*
 * The end of a restore: the threads of all tasks are traced until they have left the restorer's code. CRIU
 * does that one by one: it stops a thread, waits for it, sets options, lets it run on, stops it again for the
 * last stage. A browser has a hundred.
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

/* They come to their stops while others are still being told. */
bool bunshin_interrupt_all(void)
{
	struct pstree_item *item;
	int i;

	if (!bunshin_branching())
		return false;
	for_each_pstree_item(item) {
		for (i = 0; task_alive(item) && i < item->nr_threads; i++)
			if (ptrace(PTRACE_INTERRUPT, item->threads[i].real, 0, 0))
				pr_perror("cannot interrupt %d", item->threads[i].real);
	}
	return true;
}
