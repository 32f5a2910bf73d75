/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_FRAMES_H
#define BUNSHIN_FRAMES_H
/* Which physical frames two processes' pages are in. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

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
/* Remembers how often pages have been moved so far; bunshin_fill_recheck() compares. */
void bunshin_recheck_begin(void);

#endif
