// SPDX-License-Identifier: GPL-2.0-only
/*
 * Makes pages of a new pool present while the source runs. Where a huge page's worth of the arena is nearly all
 * wanted it becomes one, whatever segments that is: each fork() on a task's way down the tree then copies one entry for
 * 512, and only the task itself, which moves its segments to their places, has it in pieces.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "bunshin-pool.h"
#include "log.h"
#include "page.h"
#include "util.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define HUGE (2ull << 20)
/* Half of a huge page may be for nothing: what is not huge is copied page by page at each level of a tree of tasks. */
#define WANTED_MIN (HUGE / 2)

static struct bunshin_ranges wanted;

int bunshin_populate_add(const char *at, uint64_t len)
{
	return bunshin_ranges_add(&wanted, (uint64_t)at, (uint64_t)at + len);
}

static int compare(const void *a, const void *b)
{
	const struct bunshin_range *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

/* Best effort: what cannot be touched now is touched by the copying. */
static void touch(uint64_t start, uint64_t end)
{
	madvise((void *)start, end - start, MADV_POPULATE_WRITE);
}

static bool collapse(uint64_t block, uint64_t first)
{
	touch(first, first + PAGE_SIZE);
	return !madvise((void *)block, HUGE, MADV_COLLAPSE);
}

/* What of the ranges from @i on lies in the block; @i: the first that goes beyond it. */
static void populate_block(uint64_t block, size_t *i)
{
	uint64_t end = block + HUGE, first = max_t(uint64_t, wanted.v[*i].start, block), bytes = 0;
	size_t from = *i, k;
	bool huge;

	for (; *i < wanted.n && wanted.v[*i].start < end; ++*i) {
		const struct bunshin_range *r = &wanted.v[*i];

		bytes += min_t(uint64_t, r->end, end) - max_t(uint64_t, r->start, block);
		if (r->end > end)
			break;
	}
	huge = bytes >= WANTED_MIN && collapse(block, first);
	for (k = from; !huge && k < wanted.n && wanted.v[k].start < end; k++)
		touch(max_t(uint64_t, wanted.v[k].start, block), min_t(uint64_t, wanted.v[k].end, end));
}

void bunshin_populate(bool huge)
{
	uint64_t block = 0;
	size_t i = 0;

	qsort(wanted.v, wanted.n, sizeof(*wanted.v), compare);
	while (huge && i < wanted.n) {
		block = max_t(uint64_t, block, wanted.v[i].start & ~(HUGE - 1));
		populate_block(block, &i);
		block += HUGE;
	}
	for (; i < wanted.n; i++)
		touch(wanted.v[i].start, wanted.v[i].end);
	bunshin_ranges_free(&wanted);
}
