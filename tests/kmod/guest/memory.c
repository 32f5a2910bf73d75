// SPDX-License-Identifier: GPL-2.0-only
/* What it costs, who is charged, what reclaim does, and that nothing is left behind. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define LARGE (128 * MIB)

/* Small pages, as a workspace that has run for a while has them. */
static long make(void *arg)
{
	size_t length = (uintptr_t)arg;

	map_at(ZONE, length, 0);
	CHECK(!madvise(ZONE, length, MADV_NOHUGEPAGE), "%m");
	fill(ZONE, length, 1);
	return 0;
}

static long available_kib(void)
{
	write_file("/proc/sys/vm/drop_caches", "3");
	/* Also gives back what the processors keep in lists of their own, which does not count as free. */
	write_file("/proc/sys/vm/compact_memory", "1");
	return number_in("/proc/meminfo", "MemAvailable");
}

/* A copy would take 128 MiB; page tables for it take 256 KiB, the rest is noise. */
static void test_no_copy(void)
{
	struct source s;
	long before;

	source_start(&s);
	source_call(&s, make, (void *)LARGE);
	before = number_in("/proc/meminfo", "MemFree");
	CHECK_IS(pull(&s, ZONE, LARGE, 0), 0);
	CHECK(before - number_in("/proc/meminfo", "MemFree") < 4096, "%ld KiB went",
	      before - number_in("/proc/meminfo", "MemFree"));
	CHECK(number_in("/proc/self/status", "RssAnon") >= (long)(LARGE / 1024), "not accounted for as resident");
}

static long enter(void *arg)
{
	cgroup_enter(arg, getpid());
	return 0;
}

static long pull_large(void *arg)
{
	return pull_pid((uintptr_t)arg, ZONE, LARGE);
}

static long write_quarter(void *arg)
{
	(void)arg;
	fill(ZONE, LARGE / 4, 2);
	return 0;
}

/* Pages stay charged to who made them; a write is charged to who writes. */
static void test_charges(void)
{
	const char *theirs = "/sys/fs/cgroup/theirs/memory.current", *ours = "/sys/fs/cgroup/ours/memory.current";
	long their_bytes, our_bytes;
	struct source s, puller;

	cgroup_make("theirs");
	cgroup_make("ours");
	source_start(&s);
	source_start(&puller);
	source_call(&s, enter, "theirs");
	source_call(&puller, enter, "ours");
	source_call(&s, make, (void *)LARGE);
	their_bytes = number_of(theirs);
	our_bytes = number_of(ours);
	CHECK(their_bytes >= (long)LARGE, "%ld", their_bytes);

	CHECK_IS(source_call(&puller, pull_large, (void *)(long)s.pid), 0);
	CHECK(labs(number_of(theirs) - their_bytes) < (long)(4 * MIB), "source: %ld", number_of(theirs) - their_bytes);
	CHECK(number_of(ours) - our_bytes < (long)(4 * MIB), "puller: %ld", number_of(ours) - our_bytes);

	our_bytes = number_of(ours);
	source_call(&puller, write_quarter, NULL);
	CHECK(number_of(ours) - our_bytes >= (long)(LARGE / 4 - MIB), "puller: %ld", number_of(ours) - our_bytes);
	CHECK(number_of(ours) - our_bytes < (long)(LARGE / 4 + 4 * MIB), "puller: %ld", number_of(ours) - our_bytes);

	source_kill(&s);
	source_kill(&puller);
	CHECK(!rmdir("/sys/fs/cgroup/theirs") && !rmdir("/sys/fs/cgroup/ours"), "%m");
}

static void reclaim(const char *name, long bytes)
{
	char text[32];
	int fd = open(cgroup_file(name, "memory.reclaim"), O_WRONLY | O_CLOEXEC);

	snprintf(text, sizeof(text), "%ld", bytes);
	CHECK(fd >= 0, "memory.reclaim: %m");
	/* EAGAIN: not all of it could be had; what was is looked at by the caller. */
	(void)!write(fd, text, strlen(text));
	close(fd);
}

static long swapped_kib(void *arg)
{
	(void)arg;
	return number_in("/proc/self/status", "VmSwap");
}

static long has_large(void *arg)
{
	(void)arg;
	return filled(ZONE, LARGE, 1);
}

#define MOST_KIB ((long)(LARGE / 1024 * 3 / 4))

static void swap_start(struct source *s)
{
	if (number_in("/proc/meminfo", "SwapTotal") < (long)(LARGE / 1024))
		fail(__FILE__, __LINE__, "the guest has no swap");
	cgroup_make("swapping");
	source_start(s);
	source_call(s, enter, "swapping");
	source_call(s, make, (void *)LARGE);
}

/* What is in swap already is shared there. */
static void test_pull_swapped(void)
{
	struct source s;

	swap_start(&s);
	reclaim("swapping", LARGE);
	CHECK(source_call(&s, swapped_kib, NULL) > MOST_KIB, "only %ld KiB in swap", source_call(&s, swapped_kib, NULL));
	CHECK_IS(pull(&s, ZONE, LARGE, 0), 0);
	CHECK(swapped_kib(NULL) > MOST_KIB, "only %ld KiB here", swapped_kib(NULL));
	CHECK(filled(ZONE, LARGE, 1), "content");
	fill(ZONE, LARGE / 4, 2);
	CHECK(source_call(&s, has_large, NULL), "the source's content");
	source_kill(&s);
	CHECK(!munmap(ZONE, LARGE), "%m");
	CHECK(!rmdir("/sys/fs/cgroup/swapping"), "%m");
}

static long make_moved(void *arg)
{
	char *elsewhere = ZONE + (1UL << 31);

	make(arg);
	CHECK(mremap(ZONE, LARGE, LARGE, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere) == elsewhere, "%m");
	return 0;
}

/*
 * A page leaves only once reclaim has found it in each process that maps it,
 * also where an mremap() has put it at another address than it was born at.
 */
static void test_swap_shared(void)
{
	char *moved = ZONE + (1UL << 31);
	struct source s;

	cgroup_make("swapping");
	source_start(&s);
	source_call(&s, enter, "swapping");
	source_call(&s, make_moved, (void *)LARGE);
	CHECK_IS(pull(&s, moved, LARGE, 0), 0);
	CHECK(mremap(moved, LARGE, LARGE, MREMAP_MAYMOVE | MREMAP_FIXED, ZONE) == ZONE, "%m");
	reclaim("swapping", LARGE);
	CHECK(source_call(&s, swapped_kib, NULL) > MOST_KIB, "only %ld KiB of the source",
	      source_call(&s, swapped_kib, NULL));
	CHECK(swapped_kib(NULL) > MOST_KIB, "only %ld KiB of the puller", swapped_kib(NULL));
	CHECK(filled(ZONE, LARGE, 1), "content");
	source_kill(&s);
	CHECK(filled(ZONE, LARGE, 1), "content after the source's death");
	CHECK(!munmap(ZONE, LARGE), "%m");
	CHECK(!rmdir("/sys/fs/cgroup/swapping"), "%m");
}

static long make_private(void *arg)
{
	size_t length = (uintptr_t)arg;
	int fd = memfd_create("memory", MFD_CLOEXEC);

	/* Neither the file's offset nor the address tells the other. */
	CHECK(fd >= 0 && !ftruncate(fd, length + MIB), "%m");
	CHECK(mmap(ZONE, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, MIB) == ZONE, "%m");
	close(fd);
	fill(ZONE, length, 1);
	return 0;
}

/* Pages of a private file mapping are found in the anonymous mapping that was made of it, too. */
static void test_swap_detached(void)
{
	struct source s;

	cgroup_make("swapping");
	source_start(&s);
	source_call(&s, enter, "swapping");
	source_call(&s, make_private, (void *)LARGE);
	CHECK_IS(pull(&s, ZONE, LARGE, BUNSHIN_COW_DETACH), 0);
	/* The file has a page for each of them as well. */
	reclaim("swapping", 2 * LARGE);
	CHECK(source_call(&s, swapped_kib, NULL) > MOST_KIB, "only %ld KiB of the source",
	      source_call(&s, swapped_kib, NULL));
	CHECK(swapped_kib(NULL) > MOST_KIB, "only %ld KiB of the puller", swapped_kib(NULL));
	CHECK(filled(ZONE, LARGE, 1), "content");
	CHECK(source_call(&s, has_large, NULL), "the source's content");
	source_kill(&s);
	CHECK(!munmap(ZONE, LARGE), "%m");
	CHECK(!rmdir("/sys/fs/cgroup/swapping"), "%m");
}

/* Objects in use of a slab cache. */
static long slab(const char *name)
{
	return number_in("/proc/slabinfo", name);
}

static void settle(void)
{
	/* Freed mappings and anon_vmas wait for an RCU grace period; this waits for one too. */
	struct {
		cpu_set_t set;
	} all;

	CHECK(!sched_getaffinity(0, sizeof(all.set), &all.set), "%m");
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		cpu_set_t one;

		if (!CPU_ISSET(cpu, &all.set))
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		CHECK(!sched_setaffinity(0, sizeof(one), &one), "%m");
		sched_yield();
	}
	CHECK(!sched_setaffinity(0, sizeof(all.set), &all.set), "%m");
	write_file("/proc/sys/vm/drop_caches", "3");
}

#define ROUNDS 100 /* of two forks each */
#define PER_ROUND 8
#define PATIENCE 50 /* a busy machine's kernel gives memory back in the background, and tells nobody when */

static long pull_eight(void *arg)
{
	for (int i = 0; i < PER_ROUND; i++)
		CHECK_IS(pull_pid((uintptr_t)arg, ZONE + i * 2 * PAGE * 64, PAGE * 64), 0);
	for (int i = 0; i < PER_ROUND; i += 2)
		fill(ZONE + i * 2 * PAGE * 64, PAGE, i);
	return 0;
}

static long make_eight(void *arg)
{
	(void)arg;
	for (int i = 0; i < PER_ROUND; i++)
		fill(map_at(ZONE + i * 2 * PAGE * 64, PAGE * 64, 0), PAGE * 64, i);
	return 0;
}

static long write_eight(void *arg)
{
	for (int i = 0; i < PER_ROUND; i++)
		for (int page = 0; page < 64; page++)
			*(volatile uintptr_t *)(ZONE + (i * 2 * 64 + page) * PAGE) = (uintptr_t)arg;
	return 0;
}

static void rounds(struct source *s, unsigned long n)
{
	for (unsigned long i = 0; i < n; i++) {
		struct source puller, second;

		source_start(&puller);
		source_start(&second);
		CHECK_IS(source_call(&puller, pull_eight, (void *)(long)s->pid), 0);
		CHECK_IS(source_call(&second, pull_eight, (void *)(long)puller.pid), 0);
		source_call(s, write_eight, (void *)i);
		source_kill(&puller);
		source_kill(&second);
	}
}

/* 200 forks of a fork that each share 8 mappings, and a first source that goes on writing. */
static void test_leaks(void)
{
	/* As many as half of the rounds would leave, one per mapping or process; a slab's count is a rough one. */
	static const struct {
		const char *name;
		long limit;
	} caches[] = {
		{ "vm_area_struct", ROUNDS * PER_ROUND / 2 },
		{ "anon_vma", ROUNDS * PER_ROUND / 2 },
		{ "anon_vma_chain", ROUNDS * PER_ROUND / 2 },
		{ "mm_struct", ROUNDS / 2 },
	};
	long before[4], memory, tables;
	struct source s;

	source_start(&s);
	source_call(&s, make_eight, NULL);
	/* The kernel's own caches (stacks of tasks, per-processor lists) fill up first. */
	rounds(&s, 20);
	settle();
	for (int i = 0; i < 4; i++)
		before[i] = slab(caches[i].name);
	memory = available_kib();
	tables = number_in("/proc/meminfo", "PageTables");
	rounds(&s, ROUNDS);
	settle();
	for (int i = 0; i < 4; i++)
		CHECK(slab(caches[i].name) - before[i] < caches[i].limit, "%ld of %s left",
		      slab(caches[i].name) - before[i], caches[i].name);
	/* 400 MiB were shared and then given up; 16 are more than the kernel's lists ever hold back. */
	for (int tries = 0; memory - available_kib() >= 16 * 1024 && tries < PATIENCE; tries++)
		settle();
	CHECK(memory - available_kib() < 16 * 1024, "%ld KiB went", memory - available_kib());
	CHECK(number_in("/proc/meminfo", "PageTables") - tables < 512, "page tables");
}

const struct test memory_tests[] = {
	{ "no-copy", test_no_copy },
	{ "memory-charges", test_charges },
	{ "pull-swapped", test_pull_swapped },
	{ "swap-shared", test_swap_shared },
	{ "swap-detached", test_swap_detached },
	{ "leaks-200", test_leaks },
	{},
};
