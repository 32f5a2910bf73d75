// SPDX-License-Identifier: GPL-2.0-only
/* A source that runs on while it is pulled from: the range is of one moment, and stays so. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "harness.h"

#define PAGES 256UL
#define THREADS 2
#define ROUNDS 50

/*
 * Each thread has its half of the pages and writes rising numbers into them in
 * order, page by page; so in any moment the pages of a half hold n for a while
 * and then n - 1.
 */
static void *write_on(void *arg)
{
	unsigned long half = (uintptr_t)arg;

	for (uint64_t n = 1;; n++)
		for (unsigned long i = 0; i < PAGES / THREADS; i++)
			atomic_store_explicit((_Atomic uint64_t *)(ZONE + (half * PAGES / THREADS + i) * PAGE), n,
					      memory_order_release);
	return NULL;
}

static long start_writing(void *arg)
{
	(void)arg;
	map_at(ZONE, PAGES * PAGE, 0);
	for (unsigned long i = 0; i < THREADS; i++) {
		pthread_t thread;

		CHECK(!pthread_create(&thread, NULL, write_on, (void *)i), "thread");
		pthread_detach(thread);
	}
	return 0;
}

static uint64_t number_at(unsigned long page)
{
	return atomic_load_explicit((_Atomic uint64_t *)(ZONE + page * PAGE), memory_order_acquire);
}

/* The first and last number of a half, as the source has it now. */
static uint64_t source_number(pid_t pid, unsigned long page)
{
	uint64_t n;
	struct iovec here = { &n, sizeof(n) }, there = { ZONE + page * PAGE, sizeof(n) };

	CHECK(process_vm_readv(pid, &here, 1, &there, 1, 0) == sizeof(n), "%m");
	return n;
}

/* Until each thread has gone once round all its pages since they were pulled. */
static void wait_for_writes(pid_t pid)
{
	for (unsigned long half = 0; half < THREADS; half++) {
		unsigned long last = (half + 1) * PAGES / THREADS - 1;
		uint64_t then = source_number(pid, last);

		while (source_number(pid, last) < then + 2)
			sched_yield();
	}
}

static void check_one_moment(void)
{
	for (unsigned long half = 0; half < THREADS; half++) {
		unsigned long from = half * PAGES / THREADS;
		uint64_t first = number_at(from);
		bool dropped = false;

		for (unsigned long i = from + 1; i < from + PAGES / THREADS; i++) {
			uint64_t n = number_at(i);

			if (n == first - 1)
				dropped = true;
			CHECK(n == (dropped ? first - 1 : first), "page %lu has %lu, page %lu %lu", from,
			      (unsigned long)first, i, (unsigned long)n);
		}
	}
}

static void test_running_source(void)
{
	uint64_t pulled[PAGES];
	struct source s;

	source_start(&s);
	source_call(&s, start_writing, NULL);
	wait_for_writes(s.pid);
	for (int round = 0; round < ROUNDS; round++) {
		CHECK_IS(pull(&s, ZONE, PAGES * PAGE, 0), 0);
		for (unsigned long i = 0; i < PAGES; i++)
			pulled[i] = number_at(i);
		check_one_moment();
		wait_for_writes(s.pid);
		for (unsigned long i = 0; i < PAGES; i++)
			CHECK(pulled[i] == number_at(i), "round %d: page %lu went from %lu to %lu", round, i,
			      (unsigned long)pulled[i], (unsigned long)number_at(i));
		CHECK(!munmap(ZONE, PAGES * PAGE), "%m");
	}
}

const struct test race_tests[] = {
	{ "running-source", test_running_source },
	{},
};
