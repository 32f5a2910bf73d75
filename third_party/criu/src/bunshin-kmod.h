/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_KMOD_FILL_H
#define BUNSHIN_KMOD_FILL_H

#include <stdbool.h>
#include <sys/types.h>

struct bunshin_seg;

/* Opens the module's device for one recording; without it, a phase says so and all is copied. */
void bunshin_kmod_begin(void);
void bunshin_kmod_end(void);
bool bunshin_kmod_ready(void);
/*
 * Puts the pages of a frozen process into all of a segment, shared copy-on-write.
 * 1: it cannot be done, and the segment is as it was; -1: an error.
 */
int bunshin_kmod_pull(pid_t pid, const struct bunshin_seg *seg);

#endif
