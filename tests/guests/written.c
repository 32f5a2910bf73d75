/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that is written to all the time, in every way: by the program, by the kernel, by a child's copy; given back,
 * moved, mapped anew. A second list says what must be where; a fork in the middle must find the two alike.
 */
#include <pthread.h>

#include "guest.h"

#define PAGE 4096UL
#define PAGES 4096UL
#define FILE_PAGES 64UL
#define MOVES_MAX 1000 /* each may split a mapping */

static char *region;
static uint64_t wanted[PAGES], file_wanted[FILE_PAGES];
static char of_file[FILE_PAGES * PAGE] __attribute__((aligned(4096))) = {1};
static char label[TAG_SIZE], copy[TAG_SIZE];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int pipe_ends[2];
static uint64_t seed = 1, count, moves;

static uint64_t below(uint64_t end)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % end;
}

static uint64_t *first_of(uint64_t page)
{
	return (uint64_t *)(region + page * PAGE);
}

static uint64_t *last_of(uint64_t page)
{
	return (uint64_t *)(region + (page + 1) * PAGE - sizeof(uint64_t));
}

static void write_page(uint64_t page)
{
	*first_of(page) = *last_of(page) = wanted[page] = ++count;
}

static void write_by_kernel(uint64_t page)
{
	write_page(page);
	wanted[page] = ++count;
	CHECK(write(pipe_ends[1], &count, sizeof(count)) == sizeof(count));
	CHECK(write(pipe_ends[1], &count, sizeof(count)) == sizeof(count));
	CHECK(read(pipe_ends[0], first_of(page), sizeof(count)) == sizeof(count));
	CHECK(read(pipe_ends[0], last_of(page), sizeof(count)) == sizeof(count));
}

static void give_back(uint64_t page)
{
	CHECK(madvise(region + page * PAGE, PAGE, MADV_DONTNEED) == 0);
	wanted[page] = 0;
}

static void move(uint64_t from, uint64_t to)
{
	if (from == to || moves++ > MOVES_MAX)
		return;
	CHECK(mremap(region + from * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, region + to * PAGE) ==
		region + to * PAGE);
	wanted[to] = wanted[from];
	CHECK(mmap(region + from * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		      0) == region + from * PAGE);
	wanted[from] = 0;
}

static void write_file_page(uint64_t page)
{
	memcpy(of_file + page * PAGE, &(uint64_t){++count}, sizeof(count));
	file_wanted[page] = count;
}

/* The child's writes are its own; ours need a copy afterwards. */
static void write_beside_child(uint64_t page)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		*first_of(page) = 0;
		_exit(0);
	}
	write_page(page);
	CHECK(waitpid(child, NULL, 0) == child);
}

static void change(void)
{
	uint64_t page = below(PAGES);

	switch (below(32)) {
	case 0:
	case 1:
		give_back(page);
		break;
	case 2:
		move(page, below(PAGES));
		break;
	case 3:
		write_by_kernel(page);
		break;
	case 4:
		write_file_page(below(FILE_PAGES));
		break;
	case 5:
		if (!below(64))
			write_beside_child(page);
		break;
	default:
		write_page(page);
	}
}

static void *work(void *arg)
{
	for (;;) {
		pthread_mutex_lock(&lock);
		change();
		pthread_mutex_unlock(&lock);
	}
	return arg;
}

void guest_setup(void)
{
	pthread_t thread;

	region = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(region != MAP_FAILED);
	CHECK(pipe(pipe_ends) == 0);
	for (uint64_t page = 0; page < PAGES; page++)
		write_page(page);
	for (uint64_t page = 0; page < FILE_PAGES; page++)
		write_file_page(page);
	CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
}

void guest_put(const char *tag)
{
	pthread_mutex_lock(&lock);
	strcpy(label, tag);
	strcpy(copy, tag);
	pthread_mutex_unlock(&lock);
}

void guest_check(const char *tag)
{
	pthread_mutex_lock(&lock);
	CHECK_TAG(label, tag);
	CHECK_TAG(copy, tag);
	for (uint64_t page = 0; page < PAGES; page++)
		if (*first_of(page) != wanted[page] || *last_of(page) != wanted[page])
			FAIL("page %lu is %lu and %lu, not %lu", page, *first_of(page), *last_of(page), wanted[page]);
	for (uint64_t page = 0; page < FILE_PAGES; page++)
		if (memcmp(of_file + page * PAGE, &file_wanted[page], sizeof(uint64_t)))
			FAIL("page %lu of the program's file is not %lu", page, file_wanted[page]);
	pthread_mutex_unlock(&lock);
}
