/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_WATCH_H
#define BUNSHIN_WATCH_H
/*
 * Which pages of a running source are written from now on, where the kernel tells (6.7, CONFIG_USERFAULTFD). What was
 * copied ahead and has not been written need not be copied while the source is frozen.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct bunshin_vma;

/* In an entry of /proc/PID/pagemap: the page has not been written since it was watched. */
#define BUNSHIN_UNWRITTEN (1ull << 57)

/* Starts a fork of the pool that stops a thread of each process below the root for a moment. */
int bunshin_watch_start(pid_t root, const char *freezer);
/* Waits until it has done so, if there is one. */
void bunshin_watch_join(void);
/* Whether what the kernel says of its pages can be true. */
bool bunshin_may_watch(const struct bunshin_vma *vma);
/* Private pages that the process has now are watched. False: not; nothing is amiss. */
bool bunshin_watch(pid_t real, int pagemap_fd, const struct bunshin_vma *vmas, size_t n);
/* No page is watched any more. */
void bunshin_watch_end(void);

#endif
