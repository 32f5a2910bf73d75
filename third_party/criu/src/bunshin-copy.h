/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_COPY_H
#define BUNSHIN_COPY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Starts the threads; end joins them, so that the process may fork again. */
int bunshin_copy_begin(void);
void bunshin_copy_end(void);
/* Whether fork() left pages shared between processes of the source; see bunshin-copy.c. */
enum bunshin_sharing {
	BUNSHIN_PAGES_MIXED, /* not known: looked up */
	BUNSHIN_PAGES_OWN,
	BUNSHIN_PAGES_SHARED,
};

/* Queues a range of another process's memory; copied in no order. */
int bunshin_copy_add(pid_t pid, uint64_t from, char *to, uint64_t len, enum bunshin_sharing how);
/* Lets the threads have what was added so far. */
void bunshin_copy_flush(void);
/* Waits until all that was added is copied; -1 if any of it failed. */
int bunshin_copy_wait(void);
/* Without threads, from a process that runs: copies what was added, as far as it is there. */
int bunshin_copy_ahead(void);
/* What was added and has not been copied is forgotten. */
void bunshin_copy_drop(void);
/* Of an entry in /proc/PID/pagemap. */
enum bunshin_sharing bunshin_sharing_of(uint64_t entry);

#endif
