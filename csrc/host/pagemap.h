/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Which physical pages a process maps, and how often each is mapped. Needs root. */
#include <stdint.h>
#include <sys/types.h>

struct bsh_error;

#define BSH_PAGE_PRESENT (1ULL << 63)
#define BSH_PAGE_SWAPPED (1ULL << 62)
#define BSH_PAGE_FILE (1ULL << 61)	/* of a file, or shared anonymous */
#define BSH_PAGE_EXCLUSIVE (1ULL << 56) /* mapped once in all */
#define BSH_PAGE_PFN ((1ULL << 55) - 1)

/* Opens /proc/PID/pagemap. */
int bsh_pagemap_open(pid_t pid, int *ret_fd, struct bsh_error *err);
/* Entries of n pages from address start; -ESRCH when the process went away. */
int bsh_pagemap_read(int fd, uint64_t start, uint64_t *entries, size_t n, struct bsh_error *err);

/*
 * Visits the pages of a range, run by run. With PAGEMAP_SCAN (Linux 6.7) what is empty costs
 * nothing; without it every entry is read, so leave out reserved ranges (a terabyte is usual).
 */
typedef int (*bsh_pagemap_visitor)(void *context, uint64_t address, const uint64_t *entries, size_t n);
int bsh_pagemap_walk(
	int fd, uint64_t start, uint64_t end, bsh_pagemap_visitor visit, void *context, struct bsh_error *err);
