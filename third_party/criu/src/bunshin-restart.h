/* SPDX-License-Identifier: GPL-2.0-only */
#pragma once
#include <sys/types.h>

#include <compel/infect.h>

/* While the source runs: which calls its threads have been told to go on with. */
int bunshin_restart_learn(pid_t root);

/*
 * In place of save_task_regs(). Records the thread so that an interrupted call is made again, and leaves in @regs
 * what makes the kernel go on with it in the source.
 */
int bunshin_save_regs(pid_t tid, void *core, user_regs_struct_t *regs, user_fpregs_struct_t *fpregs);

/* x86-64: of a thread that a stop has interrupted, and that is let go at one: makes the kernel go on with its call if it can be. */
void bunshin_keep_waiting(user_regs_struct_t *regs);
