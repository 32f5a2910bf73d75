/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of a loaded program's data, written, given back and written once more, again and again: a page that was given
 * back begins as the file has it, also where the fork came between.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "guest.h"

#define PAGE 4096UL
#define PAGES 16384UL /* a round takes as long as a fork */
#define WORDS (PAGE / sizeof(uint64_t))

static char *data;
static _Atomic uint64_t rounds, kept;
static char label[TAG_SIZE];

static void write_anew(volatile uint64_t *page, uint64_t round)
{
	if (madvise((void *)page, PAGE, MADV_DONTNEED))
		kept = 1;
	page[0] = round;
	if (page[1] || page[WORDS - 1])
		kept = page[1];
	page[1] = page[WORDS - 1] = round;
}

static void *work(void *arg)
{
	for (;; rounds++)
		for (uint64_t page = 0; page < PAGES; page++)
			write_anew((uint64_t *)(data + page * PAGE), rounds + 1);
	return arg;
}

void guest_setup(void)
{
	int fd = open("/guest-library", O_RDWR | O_CREAT, 0700);
	pthread_t thread;

	CHECK(fd >= 0 && ftruncate(fd, (PAGES + 1) * PAGE) == 0);
	/* Code is what makes it a library. */
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) != MAP_FAILED);
	data = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, PAGE);
	CHECK(data != MAP_FAILED);
	close(fd);
	memset(data, 1, PAGES * PAGE);
	CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
}

void guest_put(const char *tag)
{
	strcpy(label, tag);
}

void guest_check(const char *tag)
{
	uint64_t begun = rounds;

	CHECK_TAG(label, tag);
	while (rounds == begun && !kept)
		sched_yield();
	if (kept)
		FAIL("a page has %lu, which it had before it was given back", kept);
}
