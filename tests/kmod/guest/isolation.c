// SPDX-License-Identifier: GPL-2.0-only
/* The pages are the same ones until somebody writes; then each has its own. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"

#define PAGES 64UL

static long make(void *arg)
{
	(void)arg;
	fill(map_at(ZONE, PAGES * PAGE, 0), PAGES * PAGE, 1);
	return 0;
}

static long pull_here(void *arg)
{
	return pull_pid((uintptr_t)arg, ZONE, PAGES * PAGE);
}

static long write_half(void *arg)
{
	fill(ZONE, PAGES / 2 * PAGE, (uintptr_t)arg);
	return 0;
}

static long has_whole(void *arg)
{
	return filled(ZONE, PAGES * PAGE, (uintptr_t)arg);
}

static long has_half(void *arg)
{
	return filled(ZONE, PAGES / 2 * PAGE, (uintptr_t)arg);
}

static void test_same_pages(void)
{
	char *away = ZONE + (1UL << 30);
	struct source s;

	source_start(&s);
	source_call(&s, make, NULL);
	CHECK_IS(pull(&s, ZONE, PAGES * PAGE, 0), 0);
	for (unsigned long i = 0; i < PAGES; i++) {
		uint64_t theirs = pagemap(s.pid, ZONE + i * PAGE), ours = pagemap(getpid(), ZONE + i * PAGE);

		CHECK(theirs & PAGEMAP_PFN && theirs & PAGEMAP_PRESENT, "page %lu of the source is absent", i);
		CHECK((theirs & PAGEMAP_PFN) == (ours & PAGEMAP_PFN), "page %lu is another one", i);
	}
	CHECK(mremap(ZONE, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, away) == away, "%m");
	for (unsigned long i = 0; i < PAGES; i++)
		CHECK((pagemap(s.pid, ZONE + i * PAGE) & PAGEMAP_PFN) ==
		      (pagemap(getpid(), away + i * PAGE) & PAGEMAP_PFN), "page %lu is another one", i);
}

static void test_source_writes(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make, NULL);
	CHECK_IS(pull(&s, ZONE, PAGES * PAGE, 0), 0);
	source_call(&s, write_half, (void *)2);
	CHECK(has_whole((void *)1), "the source's write is seen");
	CHECK(source_call(&s, has_half, (void *)2), "the source lost its write");
}

static void test_puller_writes(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make, NULL);
	CHECK_IS(pull(&s, ZONE, PAGES * PAGE, 0), 0);
	write_half((void *)3);
	CHECK(source_call(&s, has_whole, (void *)1), "the source sees the write");
	CHECK(has_half((void *)3), "the write is lost");
}

/* Two pullers of one source, each writing. */
static void test_two_pullers(void)
{
	struct source s, one, two;

	source_start(&s);
	source_call(&s, make, NULL);
	source_start(&one);
	source_start(&two);
	CHECK_IS(source_call(&one, pull_here, (void *)(long)s.pid), 0);
	CHECK_IS(source_call(&two, pull_here, (void *)(long)s.pid), 0);
	source_call(&one, write_half, (void *)2);
	source_call(&two, write_half, (void *)3);
	source_call(&s, write_half, (void *)4);
	CHECK(source_call(&one, has_half, (void *)2), "the first");
	CHECK(source_call(&two, has_half, (void *)3), "the second");
	CHECK(source_call(&s, has_half, (void *)4), "the source");
}

/* The page tables of huge pages go another way. */
static long make_huge(void *arg)
{
	(void)arg;
	map_at(ZONE, 2 * HUGE, 0);
	CHECK(!madvise(ZONE, 2 * HUGE, MADV_HUGEPAGE), "%m");
	fill(ZONE, 2 * HUGE, 1);
	return 0;
}

static long write_huge(void *arg)
{
	fill(ZONE, HUGE, (uintptr_t)arg);
	return 0;
}

static void test_huge_pages(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_huge, NULL);
	CHECK_IS(pull(&s, ZONE, 2 * HUGE, 0), 0);
	source_call(&s, write_huge, (void *)2);
	CHECK(filled(ZONE, 2 * HUGE, 1), "the source's write is seen");
	source_call(&s, write_huge, (void *)1);
	fill(ZONE, HUGE, 3);
	CHECK_IS(source_call(&s, has_half, (void *)1), 1);
}

const struct test isolation_tests[] = {
	{ "same-pages", test_same_pages },
	{ "source-writes", test_source_writes },
	{ "puller-writes", test_puller_writes },
	{ "two-pullers", test_two_pullers },
	{ "isolation-huge-pages", test_huge_pages },
	{},
};
