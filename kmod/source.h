/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BSH_SOURCE_H
#define BSH_SOURCE_H

struct mm_struct;

/*
 * The memory of the process behind a pidfd, with a reference for mmput(), or
 * an ERR_PTR: -EBADF, -ESRCH when the process is gone, -EINVAL for the caller.
 */
struct mm_struct *bsh_source_get(int pidfd);

/* Locks both for writing; -EINTR if killed while waiting. */
int bsh_source_lock(struct mm_struct *source, struct mm_struct *own);
void bsh_source_unlock(struct mm_struct *source, struct mm_struct *own);

#endif
