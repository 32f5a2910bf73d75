/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_COPY_H
#define BUNSHIN_COPY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Starts the threads; end joins them, so that the process may fork again. */
int bunshin_copy_begin(void);
void bunshin_copy_end(void);
/* Queues a range of another process's memory; copied in no order. */
int bunshin_copy_add(pid_t pid, uint64_t from, char *to, uint64_t len);
/* Lets the threads have what was added so far. */
void bunshin_copy_flush(void);
/* Waits until all that was added is copied; -1 if any of it failed. */
int bunshin_copy_wait(void);
int bunshin_copy_now(pid_t pid, uint64_t from, char *to, uint64_t len);

#endif
