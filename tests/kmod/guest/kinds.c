// SPDX-License-Identifier: GPL-2.0-only
/* Every kind of private mapping arrives with its content, and behaves as its kind does. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static bool zero(const char *start, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (start[i])
			return false;
	return true;
}

/* The line of /proc/self/maps that covers at. */
static const char *map_line(const void *at)
{
	static char line[512];
	FILE *file = fopen("/proc/self/maps", "re");
	unsigned long from, to;

	CHECK(file, "%m");
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= (uintptr_t)at && (uintptr_t)at < to) {
			fclose(file);
			return line;
		}
	}
	fail(__FILE__, __LINE__, "nothing is mapped at %p", at);
}

static long make_anon(void *arg)
{
	(void)arg;
	fill(map_at(ZONE, 64 * PAGE, 0), 64 * PAGE, 1);
	return 0;
}

static void test_anon(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_anon, NULL);
	CHECK_IS(pull(&s, ZONE, 64 * PAGE, 0), 0);
	CHECK(filled(ZONE, 64 * PAGE, 1), "content");
	CHECK(strstr(map_line(ZONE), "rw-p"), "%s", map_line(ZONE));
}

static long make_sparse(void *arg)
{
	(void)arg;
	map_at(ZONE, 1UL << 36, MAP_NORESERVE);
	for (unsigned long i = 0; i < 64; i++)
		fill(ZONE + (i << 30) + i * PAGE, PAGE, i);
	return 0;
}

/* 64 GiB of which 64 pages exist, as browsers reserve it. */
static void test_sparse(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_sparse, NULL);
	CHECK_IS(pull(&s, ZONE, 1UL << 36, 0), 0);
	for (unsigned long i = 0; i < 64; i++) {
		CHECK(filled(ZONE + (i << 30) + i * PAGE, PAGE, i), "page %lu", i);
		CHECK(zero(ZONE + (i << 30) + (i + 1) * PAGE, PAGE), "after page %lu", i);
	}
}

static long make_untouched(void *arg)
{
	char *at = map_at(ZONE, 8 * PAGE, 0);

	(void)arg;
	/* Read only: the kernel's page of zeros is mapped there. */
	return *(volatile char *)at;
}

static void test_untouched(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_untouched, NULL);
	CHECK_IS(pull(&s, ZONE, 8 * PAGE, 0), 0);
	CHECK(zero(ZONE, 8 * PAGE), "content");
	fill(ZONE, 8 * PAGE, 2);
	CHECK(filled(ZONE, 8 * PAGE, 2), "content after writing");
}

static long make_protected(void *arg)
{
	(void)arg;
	fill(map_at(ZONE, 12 * PAGE, 0), 12 * PAGE, 1);
	CHECK(!mprotect(ZONE, 4 * PAGE, PROT_READ), "%m");
	CHECK(!mprotect(ZONE + 4 * PAGE, 4 * PAGE, PROT_NONE), "%m");
	CHECK(!mprotect(ZONE + 8 * PAGE, 4 * PAGE, PROT_READ | PROT_EXEC), "%m");
	return 0;
}

/* Several mappings in one request, none of them writable. */
static void test_protected(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_protected, NULL);
	CHECK_IS(pull(&s, ZONE, 12 * PAGE, 0), 0);
	CHECK(strstr(map_line(ZONE), "r--p"), "%s", map_line(ZONE));
	CHECK(strstr(map_line(ZONE + 4 * PAGE), "---p"), "%s", map_line(ZONE + 4 * PAGE));
	CHECK(strstr(map_line(ZONE + 8 * PAGE), "r-xp"), "%s", map_line(ZONE + 8 * PAGE));
	CHECK(!mprotect(ZONE, 12 * PAGE, PROT_READ), "%m");
	CHECK(filled(ZONE, 12 * PAGE, 1), "content");
}

static long make_moved(void *arg)
{
	char *elsewhere = ZONE + (1UL << 30);

	(void)arg;
	fill(map_at(elsewhere, 16 * PAGE, 0), 16 * PAGE, 1);
	/* Its pages are known by the offset they had over there. */
	CHECK(mremap(elsewhere, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, ZONE) == ZONE, "%m");
	return 0;
}

static void test_moved(void)
{
	char *away = ZONE + (2UL << 30);
	struct source s;

	source_start(&s);
	source_call(&s, make_moved, NULL);
	CHECK_IS(pull(&s, ZONE, 16 * PAGE, 0), 0);
	CHECK(filled(ZONE, 16 * PAGE, 1), "content");
	/* And as the pool does it. */
	CHECK(mremap(ZONE, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, away) == away, "%m");
	CHECK(filled(away, 16 * PAGE, 1), "content after mremap");
	fill(away, 16 * PAGE, 2);
	CHECK(filled(away, 16 * PAGE, 2), "content after writing");
}

static void test_part(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_anon, NULL);
	CHECK_IS(pull(&s, ZONE + 16 * PAGE, 8 * PAGE, 0), 0);
	/* What lies before it, made here, so that the whole can be compared. */
	fill(map_at(ZONE, 16 * PAGE, 0), 16 * PAGE, 1);
	CHECK(filled(ZONE, 24 * PAGE, 1), "content");
	/* Fails if more came along. */
	map_at(ZONE + 24 * PAGE, PAGE, 0);
}

static long make_growsdown(void *arg)
{
	char *at = mmap(ZONE + 64 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_GROWSDOWN, -1, 0);

	(void)arg;
	CHECK(at == ZONE + 64 * PAGE, "%m");
	fill(at, 4 * PAGE, 1);
	return 0;
}

static void test_growsdown(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_growsdown, NULL);
	CHECK_IS(pull(&s, ZONE + 64 * PAGE, 4 * PAGE, 0), 0);
	CHECK(filled(ZONE + 64 * PAGE, 4 * PAGE, 1), "content");
	*(volatile char *)(ZONE + 64 * PAGE - 8) = 1;
}

static long make_huge(void *arg)
{
	char *at = map_at(ZONE, 4 * HUGE, 0);

	(void)arg;
	CHECK(!madvise(at, 4 * HUGE, MADV_HUGEPAGE), "%m");
	fill(at, 4 * HUGE, 1);
	return number_in("/proc/self/smaps_rollup", "AnonHugePages");
}

static void test_huge(void)
{
	struct source s;

	source_start(&s);
	CHECK_IS(source_call(&s, make_huge, NULL), 4 * HUGE / 1024);
	CHECK_IS(pull(&s, ZONE, 4 * HUGE, 0), 0);
	CHECK_IS(number_in("/proc/self/smaps_rollup", "AnonHugePages"), 4 * HUGE / 1024);
	CHECK(filled(ZONE, 4 * HUGE, 1), "content");
	fill(ZONE + HUGE, PAGE, 2);
	CHECK(filled(ZONE + HUGE, PAGE, 2), "content after writing");
	CHECK(filled(ZONE, HUGE, 1), "content beside what was written");
}

static long make_not_for_forks(void *arg)
{
	(void)arg;
	fill(map_at(ZONE, 16 * PAGE, 0), 16 * PAGE, 1);
	CHECK(!madvise(ZONE, 4 * PAGE, MADV_DONTFORK), "%m");
	CHECK(!madvise(ZONE + 4 * PAGE, 4 * PAGE, MADV_WIPEONFORK), "%m");
	CHECK(!madvise(ZONE + 8 * PAGE, 4 * PAGE, MADV_MERGEABLE), "%m");
	CHECK(!mlock(ZONE + 12 * PAGE, 4 * PAGE), "%m");
	return 0;
}

static long check_not_for_forks(void *arg)
{
	(void)arg;
	return filled(ZONE, 16 * PAGE, 1);
}

/* A snapshot has what the source's own children would not get, and hands it on to its children. */
static void test_not_for_forks(void)
{
	struct source s, child;

	source_start(&s);
	source_call(&s, make_not_for_forks, NULL);
	CHECK_IS(pull(&s, ZONE, 16 * PAGE, 0), 0);
	CHECK(filled(ZONE, 16 * PAGE, 1), "content");
	CHECK_IS(number_in("/proc/self/status", "VmLck"), 0);
	source_start(&child);
	CHECK(source_call(&child, check_not_for_forks, NULL), "content in a fork of the puller");
}

static const char *const file_path = "/tmp/kinds-file";

static long make_file(void *arg)
{
	int fd = open(file_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	char page[PAGE];
	char *at;

	(void)arg;
	CHECK(fd >= 0, "%m");
	for (unsigned long i = 0; i < 32; i++) {
		fill(page, PAGE, 100 + i);
		CHECK_IS(write(fd, page, PAGE), PAGE);
	}
	at = mmap(ZONE, 24 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 8 * PAGE);
	CHECK(at == ZONE, "%m");
	close(fd);
	/* Pages 4 to 7 become its own, 8 to 11 are only read. */
	fill(ZONE + 4 * PAGE, 4 * PAGE, 1);
	for (unsigned long i = 8; i < 12; i++)
		CHECK(filled(ZONE + i * PAGE, PAGE, 108 + i), "page %lu", i);
	return 0;
}

static void check_file_pages(unsigned long from, unsigned long to)
{
	for (unsigned long i = from; i < to; i++)
		CHECK(filled(ZONE + i * PAGE, PAGE, 108 + i), "page %lu", i);
}

static void test_private_file(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_file, NULL);
	CHECK_IS(pull(&s, ZONE, 24 * PAGE, 0), 0);
	CHECK(strstr(map_line(ZONE), file_path), "%s", map_line(ZONE));
	CHECK(filled(ZONE + 4 * PAGE, 4 * PAGE, 1), "pages of its own");
	check_file_pages(0, 4);
	check_file_pages(8, 24);
	source_kill(&s);
	/* What was its own comes from the file again once given up. */
	CHECK(!madvise(ZONE, 24 * PAGE, MADV_DONTNEED), "%m");
	check_file_pages(0, 24);
	CHECK(!munmap(ZONE, 24 * PAGE), "%m");
	unlink(file_path);
}

static void test_detached_file(void)
{
	struct source s;
	char *away = ZONE + (1UL << 30);

	source_start(&s);
	source_call(&s, make_file, NULL);
	CHECK_IS(pull(&s, ZONE + 4 * PAGE, 4 * PAGE, BUNSHIN_COW_DETACH), 0);
	CHECK(!strchr(map_line(ZONE + 4 * PAGE), '/'), "%s", map_line(ZONE + 4 * PAGE));
	CHECK(filled(ZONE + 4 * PAGE, 4 * PAGE, 1), "content");
	CHECK(mremap(ZONE + 4 * PAGE, 4 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, away) == away, "%m");
	fill(away, PAGE, 2);
	CHECK(filled(away, PAGE, 2), "content after writing");
	source_kill(&s);
	CHECK(!madvise(away, 4 * PAGE, MADV_DONTNEED), "%m");
	CHECK(zero(away, 4 * PAGE), "not anonymous");
	unlink(file_path);
}

/* On anonymous memory it changes nothing. */
static void test_detached_anon(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_anon, NULL);
	CHECK_IS(pull(&s, ZONE, 64 * PAGE, BUNSHIN_COW_DETACH), 0);
	CHECK(filled(ZONE, 64 * PAGE, 1), "content");
}

static long make_memfd(void *arg)
{
	int fd = memfd_create("kinds", MFD_CLOEXEC);

	(void)arg;
	CHECK(fd >= 0 && !ftruncate(fd, 8 * PAGE), "%m");
	CHECK(mmap(ZONE, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0) == ZONE, "%m");
	close(fd);
	fill(ZONE + PAGE, 2 * PAGE, 1);
	return 0;
}

static void test_private_memfd(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_memfd, NULL);
	CHECK_IS(pull(&s, ZONE, 8 * PAGE, 0), 0);
	source_kill(&s);
	CHECK(zero(ZONE, PAGE) && filled(ZONE + PAGE, 2 * PAGE, 1) && zero(ZONE + 3 * PAGE, 5 * PAGE), "content");
}

/* What a process does with its own memory works with pulled memory too. */
static void test_use(void)
{
	long before = number_in("/proc/self/status", "VmSize");
	struct source s;

	source_start(&s);
	source_call(&s, make_anon, NULL);
	CHECK_IS(pull(&s, ZONE, 64 * PAGE, 0), 0);
	CHECK_IS(number_in("/proc/self/status", "VmSize"), before + 64 * 4);
	CHECK(!madvise(ZONE, PAGE, MADV_DONTNEED), "%m");
	CHECK(zero(ZONE, PAGE), "not zero after MADV_DONTNEED");
	CHECK(!mprotect(ZONE + PAGE, PAGE, PROT_READ), "%m");
	CHECK(mremap(ZONE + 32 * PAGE, 32 * PAGE, 64 * PAGE, 0) == ZONE + 32 * PAGE, "%m");
	CHECK(zero(ZONE + 64 * PAGE, 32 * PAGE), "not zero where it was grown");
	CHECK(!munmap(ZONE + 8 * PAGE, PAGE), "%m");
	CHECK(!munmap(ZONE, 96 * PAGE), "%m");
	CHECK_IS(number_in("/proc/self/status", "VmSize"), before);
}

const struct test kind_tests[] = {
	{ "kind-anon", test_anon },
	{ "kind-sparse", test_sparse },
	{ "kind-untouched", test_untouched },
	{ "kind-protected", test_protected },
	{ "kind-moved", test_moved },
	{ "kind-part", test_part },
	{ "kind-growsdown", test_growsdown },
	{ "kind-huge", test_huge },
	{ "kind-not-for-forks", test_not_for_forks },
	{ "kind-private-file", test_private_file },
	{ "kind-detached-file", test_detached_file },
	{ "kind-detached-anon", test_detached_anon },
	{ "kind-private-memfd", test_private_memfd },
	{ "kind-use", test_use },
	{},
};
