/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_FRAMES_H
#define BUNSHIN_FRAMES_H
/* Which physical frames two processes' pages are in. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "bunshin-pool.h"

#define BUNSHIN_WINDOW 1024 /* pagemap entries read at once */

/* Reads a pagemap entry by entry, many at a time. Start from zero but for fd. */
struct bunshin_frames {
	int fd;
	uint64_t start, end; /* addresses that entries[] covers */
	uint64_t entries[BUNSHIN_WINDOW];
};

int bunshin_open_pagemap(pid_t pid);
/* The entry of the page at @addr; reads ahead up to @limit. */
int bunshin_frame_at(struct bunshin_frames *frames, uint64_t addr, uint64_t limit, uint64_t *ret_entry);
bool bunshin_same_frame(uint64_t a, uint64_t b);
/* Remembers how often pages have been moved so far; bunshin_fill_recheck() compares. True: as often as at the last call. */
bool bunshin_recheck_begin(void);

/*
 * What was seen of a task ahead: for each page that it had, the entry of its frame if the pool's page was in the
 * same one, or was copied from it (then with the mark); else 0. Added to and asked for in ascending order.
 */
#define BUNSHIN_COPIED (1ull << 62) /* no present page's entry has it */
void bunshin_known_free(struct bunshin_known *known);
int bunshin_known_add(struct bunshin_known *known, uint64_t addr, uint64_t entry);
uint64_t bunshin_known_at(struct bunshin_known *known, uint64_t addr);

#endif
