// SPDX-License-Identifier: GPL-2.0-only
/* What cannot be shared is refused by name, and leaves both sides as they were. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "harness.h"

#ifndef MAP_HUGE_2MB
#define MAP_HUGE_2MB (21 << 26)
#endif

/* Pulls what must be refused, and sees that nothing has come of it. */
static void check_refused(struct source *s, char *start, size_t length, unsigned int flags, int error,
			  enum bunshin_refusal why, char *at)
{
	struct bunshin_cow_range request = request_for(s, start, length);
	long before = number_in("/proc/self/status", "VmSize");

	request.flags = flags;
	CHECK_IS(pull_request(&request), -error);
	CHECK_IS(request.refusal, why);
	CHECK(request.refused_at == (uintptr_t)at, "refused at %#llx, not %p",
	      (unsigned long long)request.refused_at, (void *)at);
	CHECK_IS(number_in("/proc/self/status", "VmSize"), before);
}

static long make_shared(void *arg)
{
	int fd = memfd_create("refusals", MFD_CLOEXEC);

	(void)arg;
	fill(map_at(ZONE, 4 * PAGE, 0), 4 * PAGE, 1);
	CHECK(mmap(ZONE + 4 * PAGE, 4 * PAGE, PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == ZONE + 4 * PAGE, "%m");
	CHECK(fd >= 0 && !ftruncate(fd, 4 * PAGE), "%m");
	CHECK(mmap(ZONE + 8 * PAGE, 4 * PAGE, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) == ZONE + 8 * PAGE,
	      "%m");
	close(fd);
	return 0;
}

static void test_shared(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_shared, NULL);
	/* The private pages before it are not mapped either. */
	check_refused(&s, ZONE, 8 * PAGE, 0, EOPNOTSUPP, BUNSHIN_REFUSED_SHARED, ZONE + 4 * PAGE);
	check_refused(&s, ZONE + 8 * PAGE, PAGE, 0, EOPNOTSUPP, BUNSHIN_REFUSED_SHARED, ZONE + 8 * PAGE);
	CHECK_IS(pull(&s, ZONE, 4 * PAGE, 0), 0);
}

/* A mapping that the kernel has made, in this process. */
static char *find_special(const char *name, size_t *ret_length)
{
	FILE *file = fopen("/proc/self/maps", "re");
	unsigned long start, end;
	char line[512];

	CHECK(file, "%m");
	while (fgets(line, sizeof(line), file)) {
		if (!strstr(line, name) || sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		fclose(file);
		*ret_length = end - start;
		return (char *)start;
	}
	fail(__FILE__, __LINE__, "no %s", name);
}

/* The source is a fork, so they are where ours are: give ours up first. */
static void test_vdso(void)
{
	const char *const names[] = { "[vdso]", "[vvar]" };
	struct source s;

	source_start(&s);
	for (size_t i = 0; i < 2; i++) {
		size_t length;
		char *at = find_special(names[i], &length);

		CHECK(!munmap(at, length), "%m");
		check_refused(&s, at, length, 0, EOPNOTSUPP, BUNSHIN_REFUSED_DEVICE, at);
	}
}

static long make_hugetlb(void *arg)
{
	void *at = mmap(ZONE, HUGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);

	(void)arg;
	CHECK(at == ZONE, "%m");
	fill(ZONE, PAGE, 1);
	return 0;
}

static void test_hugetlb(void)
{
	struct source s;

	write_file("/proc/sys/vm/nr_hugepages", "1");
	CHECK_IS(number_of("/proc/sys/vm/nr_hugepages"), 1);
	source_start(&s);
	source_call(&s, make_hugetlb, NULL);
	check_refused(&s, ZONE, HUGE, 0, EOPNOTSUPP, BUNSHIN_REFUSED_HUGETLB, ZONE);
	source_kill(&s);
	write_file("/proc/sys/vm/nr_hugepages", "0");
}

static long make_watched(void *arg)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = {
		.range = { (uintptr_t)ZONE, 4 * PAGE }, .mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);

	(void)arg;
	fill(map_at(ZONE, 4 * PAGE, 0), PAGE, 1);
	CHECK(fd >= 0 && !ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &reg), "%m");
	return 0;
}

static void test_userfaultfd(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_watched, NULL);
	check_refused(&s, ZONE, 4 * PAGE, 0, EOPNOTSUPP, BUNSHIN_REFUSED_UFFD, ZONE);
}

static long make_keyed(void *arg)
{
	int key = syscall(SYS_pkey_alloc, 0, 0);

	(void)arg;
	if (key < 0)
		return -errno;
	fill(map_at(ZONE, 4 * PAGE, 0), PAGE, 1);
	CHECK(!syscall(SYS_pkey_mprotect, ZONE, 4 * PAGE, PROT_READ | PROT_WRITE, key), "%m");
	return 0;
}

static void test_protection_key(void)
{
	struct source s;
	long rc;

	source_start(&s);
	rc = source_call(&s, make_keyed, NULL);
	if (rc)
		skip("this processor has no protection keys: %s", strerror(-rc));
	check_refused(&s, ZONE, 4 * PAGE, 0, EOPNOTSUPP, BUNSHIN_REFUSED_PKEY, ZONE);
}

static long make_holes(void *arg)
{
	(void)arg;
	fill(map_at(ZONE, 4 * PAGE, 0), 4 * PAGE, 1);
	fill(map_at(ZONE + 8 * PAGE, 4 * PAGE, 0), 4 * PAGE, 2);
	return 0;
}

static void test_hole(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_holes, NULL);
	check_refused(&s, ZONE, 12 * PAGE, 0, EFAULT, BUNSHIN_REFUSED_HOLE, ZONE + 4 * PAGE);
	check_refused(&s, ZONE + 4 * PAGE, PAGE, 0, EFAULT, BUNSHIN_REFUSED_HOLE, ZONE + 4 * PAGE);
	check_refused(&s, ZONE + 8 * PAGE, 5 * PAGE, 0, EFAULT, BUNSHIN_REFUSED_HOLE, ZONE + 12 * PAGE);
}

static void test_occupied(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_holes, NULL);
	fill(map_at(ZONE + 2 * PAGE, PAGE, 0), PAGE, 7);
	check_refused(&s, ZONE, 4 * PAGE, 0, EEXIST, BUNSHIN_REFUSED_OCCUPIED, ZONE + 2 * PAGE);
	check_refused(&s, ZONE + 2 * PAGE, PAGE, 0, EEXIST, BUNSHIN_REFUSED_OCCUPIED, ZONE + 2 * PAGE);
	CHECK(filled(ZONE + 2 * PAGE, PAGE, 7), "the page that was there has changed");
	CHECK_IS(pull(&s, ZONE, 2 * PAGE, 0), 0);
	CHECK_IS(pull(&s, ZONE + 3 * PAGE, PAGE, 0), 0);
}

static long make_huge(void *arg)
{
	(void)arg;
	map_at(ZONE, 2 * HUGE, 0);
	CHECK(!madvise(ZONE, 2 * HUGE, MADV_HUGEPAGE), "%m");
	fill(ZONE, 2 * HUGE, 1);
	return number_in("/proc/self/smaps_rollup", "AnonHugePages");
}

static void test_cut_huge_page(void)
{
	struct source s;

	source_start(&s);
	CHECK_IS(source_call(&s, make_huge, NULL), 2 * HUGE / 1024);
	check_refused(&s, ZONE, PAGE, 0, ERANGE, BUNSHIN_REFUSED_HUGE_PAGE, ZONE);
	check_refused(&s, ZONE, HUGE + PAGE, 0, ERANGE, BUNSHIN_REFUSED_HUGE_PAGE, ZONE + HUGE);
	check_refused(&s, ZONE + HUGE + PAGE, HUGE - PAGE, 0, ERANGE, BUNSHIN_REFUSED_HUGE_PAGE, ZONE + HUGE);
	/* Along its edges it may be cut. */
	CHECK_IS(pull(&s, ZONE + HUGE, HUGE, 0), 0);
}

static long make_file(void *arg)
{
	int fd = open("/tmp/refusals-file", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	(void)arg;
	CHECK(fd >= 0 && !ftruncate(fd, 8 * PAGE), "%m");
	CHECK(mmap(ZONE, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, 0) == ZONE, "%m");
	close(fd);
	fill(ZONE, 2 * PAGE, 1);
	return *(volatile char *)(ZONE + 2 * PAGE);
}

static void test_detach_file_page(void)
{
	struct source s;

	source_start(&s);
	source_call(&s, make_file, NULL);
	check_refused(&s, ZONE, 4 * PAGE, BUNSHIN_COW_DETACH, ENXIO, BUNSHIN_REFUSED_FILE_PAGE, ZONE + 2 * PAGE);
	CHECK_IS(pull(&s, ZONE, 2 * PAGE, BUNSHIN_COW_DETACH), 0);
	unlink("/tmp/refusals-file");
}

static long make_large(void *arg)
{
	(void)arg;
	fill(map_at(ZONE, 4 * PAGE, 0), 4 * PAGE, 1);
	map_at(ZONE + 4 * PAGE, 1UL << 30, 0);
	/* Unlike its neighbour, so that they stay two mappings. */
	CHECK(!madvise(ZONE + 4 * PAGE, 1UL << 30, MADV_NOHUGEPAGE), "%m");
	fill(ZONE + 4 * PAGE, PAGE, 2);
	return 0;
}

static long check_large(void *arg)
{
	(void)arg;
	return filled(ZONE, 4 * PAGE, 1) && filled(ZONE + 4 * PAGE, PAGE, 2);
}

/* The second mapping fails after the first was made: that one must go again. */
static void test_no_memory(void)
{
	long committed, size = number_in("/proc/self/status", "VmSize");
	struct source s;
	char text[32];

	source_start(&s);
	source_call(&s, make_large, NULL);
	committed = number_in("/proc/meminfo", "Committed_AS");
	snprintf(text, sizeof(text), "%ld", committed + 300 * 1024);
	write_file("/proc/sys/vm/overcommit_kbytes", text);
	write_file("/proc/sys/vm/overcommit_memory", "2");
	long rc = pull(&s, ZONE, 4 * PAGE + (1UL << 30), 0);
	write_file("/proc/sys/vm/overcommit_memory", "0");

	CHECK_IS(rc, -ENOMEM);
	CHECK_IS(number_in("/proc/self/status", "VmSize"), size);
	CHECK(labs(number_in("/proc/meminfo", "Committed_AS") - committed) < 4096, "memory stays committed");
	CHECK(source_call(&s, check_large, NULL), "the source's content");
	CHECK_IS(pull(&s, ZONE, 4 * PAGE + (1UL << 30), 0), 0);
	CHECK(check_large(NULL), "content");
}

const struct test refusal_tests[] = {
	{ "refuse-shared", test_shared },
	{ "refuse-vdso", test_vdso },
	{ "refuse-hugetlb", test_hugetlb },
	{ "refuse-userfaultfd", test_userfaultfd },
	{ "refuse-protection-key", test_protection_key },
	{ "refuse-hole", test_hole },
	{ "refuse-occupied", test_occupied },
	{ "refuse-cut-huge-page", test_cut_huge_page },
	{ "refuse-detach-file-page", test_detach_file_page },
	{ "refuse-no-memory", test_no_memory },
	{},
};
