// SPDX-License-Identifier: GPL-2.0-only
/* Whose memory: from a pidfd to an address space, held and locked. */
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "source.h"
#include "symbols.h"

struct mm_struct *bsh_source_get(int pidfd)
{
	struct task_struct *leader, *task;
	struct mm_struct *mm = NULL;
	unsigned int flags;

	leader = bsh_call(pidfd_get_task)(pidfd, &flags);
	if (IS_ERR(leader))
		return ERR_CAST(leader);
	/* A leader may have exited before its threads: any of them will do. */
	rcu_read_lock();
	for_each_thread(leader, task) {
		mm = get_task_mm(task);
		if (mm)
			break;
	}
	rcu_read_unlock();
	put_task_struct(leader);
	if (!mm)
		return ERR_PTR(-ESRCH);
	if (mm == current->mm) {
		mmput(mm);
		return ERR_PTR(-EINVAL);
	}
	return mm;
}

/* By address, so that two processes that pull from each other cannot deadlock. */
int bsh_source_lock(struct mm_struct *source, struct mm_struct *own)
{
	struct mm_struct *first = source < own ? source : own;
	struct mm_struct *second = source < own ? own : source;

	if (mmap_write_lock_killable(first))
		return -EINTR;
	mmap_write_lock_nested(second, SINGLE_DEPTH_NESTING);
	return 0;
}

void bsh_source_unlock(struct mm_struct *source, struct mm_struct *own)
{
	mmap_write_unlock(source);
	mmap_write_unlock(own);
}
