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

/* Of the ranges from @i on, what lies in [start, end); @i: the first that goes beyond it. */
static uint64_t wanted_bytes(uint64_t start, uint64_t end, size_t *i)
{
	uint64_t bytes = 0;

	for (; *i < wanted.n && wanted.v[*i].start < end; ++*i) {
		const struct bunshin_range *r = &wanted.v[*i];

		bytes += min_t(uint64_t, r->end, end) - max_t(uint64_t, r->start, start);
		if (r->end > end)
			break;
	}
	return bytes;
}

static void touch_wanted(uint64_t start, uint64_t end, size_t i)
{
	for (; i < wanted.n && wanted.v[i].start < end; i++)
		touch(max_t(uint64_t, wanted.v[i].start, start), min_t(uint64_t, wanted.v[i].end, end));
}

/* Neighbouring blocks that shall be huge pages, each with one page in it; @first: the first range in them. */
struct run {
	uint64_t start, end;
	size_t first;
};

/* One call for all of them: each waits until every processor has let go of the pages that it keeps at hand. */
static void collapse(struct run *run)
{
	if (run->start < run->end && madvise((void *)run->start, run->end - run->start, MADV_COLLAPSE))
		touch_wanted(run->start, run->end, run->first);
	run->start = run->end = 0;
}

static void populate_block(uint64_t block, size_t *i, struct run *run)
{
	uint64_t end = block + HUGE, first = max_t(uint64_t, wanted.v[*i].start, block);
	size_t from = *i;

	if (wanted_bytes(block, end, i) < WANTED_MIN) {
		touch_wanted(block, end, from);
		return;
	}
	touch(first, first + PAGE_SIZE);
	if (run->end != block) {
		collapse(run);
		*run = (struct run){ .start = block, .first = from };
	}
	run->end = end;
}

void bunshin_populate(bool huge)
{
	struct run run = { 0 };
	uint64_t block = 0;
	size_t i = 0;

	qsort(wanted.v, wanted.n, sizeof(*wanted.v), compare);
	while (huge && i < wanted.n) {
		block = max_t(uint64_t, block, wanted.v[i].start & ~(HUGE - 1));
		populate_block(block, &i, &run);
		block += HUGE;
	}
	collapse(&run);
	touch_wanted(0, UINT64_MAX, i);
	bunshin_ranges_free(&wanted);
}
