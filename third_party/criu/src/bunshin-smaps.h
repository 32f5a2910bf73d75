/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_SMAPS_H
#define BUNSHIN_SMAPS_H

#include <stdbool.h>
#include <sys/types.h>

/* Source runs: reads /proc/PID/smaps of all processes below @root, or again where mappings have changed. */
int bunshin_smaps_learn(pid_t root);
/* What was learnt of a process: its mappings' lines and their VmFlags. False: nothing. */
bool bunshin_smaps_known(pid_t pid, const char **ret_text, size_t *ret_len);
void bunshin_smaps_forget(void);
/* Then: parses what was learnt, so that bunshin_known_mappings() can give it. */
int bunshin_smaps_parse(void);
/* Afterwards: has a scout ready that compares as soon as the source is stopped. */
int bunshin_smaps_scout(void);
/*
 * A descriptor with what CRIU needs of a frozen process's smaps: each mapping's line and its
 * VmFlags. Made from maps and what was learnt; the real file if any mapping is not as it was.
 */
int bunshin_smaps_open(pid_t pid);

#endif
