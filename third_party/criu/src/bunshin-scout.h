/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_SCOUT_H
#define BUNSHIN_SCOUT_H
/*
 * A process beside the dump that looks at frozen processes ahead of it: whether their
 * mappings are as they were learnt, and where their guard pages are. Only a help: who asks too
 * much or too early looks for itself.
 */
#include <stdbool.h>
#include <sys/types.h>

struct vm_area_list;

/* Source runs: makes the scout, which waits. @look says whether a process's mappings are as learnt. */
int bunshin_scout_start(const pid_t *pids, size_t n, bool (*look)(pid_t pid));
/* Source is frozen: off it goes. */
void bunshin_scout_go(void);
/* True: the mappings of @pid are known to be as learnt. Waits for the scout to have looked. */
bool bunshin_scout_same(pid_t pid);

#endif
