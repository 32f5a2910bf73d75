/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mappings that nobody has touched are moved into holes of one that is written all the time: the kernel makes one
 * mapping of both. A second list says what must be where.
 */
#include <pthread.h>

#include "guest.h"

#define PAGE 4096UL
#define PAGES 4096UL
#define HOLE_EVERY 64UL
#define STOCK 512UL
#define WRITES 64

static char *region, *stock;
static uint64_t wanted[PAGES];
static char label[TAG_SIZE];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t seed = 1, count;

static uint64_t below(uint64_t end)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (seed >> 33) % end;
}

static char *page_at(uint64_t page)
{
	return region + page * PAGE;
}

static void write_page(uint64_t page)
{
	if (page % HOLE_EVERY == 0)
		return;
	wanted[page] = ++count;
	memcpy(page_at(page), &count, sizeof(count));
}

static char *map(char *at)
{
	return mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

/* Every second page is one, so that they stay apart. */
static char *stock_at(uint64_t i)
{
	return stock + 2 * i * PAGE;
}

static void fill_hole(char *hole, char *from)
{
	CHECK(mremap(from, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, hole) == hole);
	for (int i = 0; i < WRITES; i++)
		write_page(below(PAGES));
	CHECK(munmap(hole, PAGE) == 0);
	CHECK(map(from) == from);
}

static void *work(void *arg)
{
	for (uint64_t i = 0;; i++) {
		pthread_mutex_lock(&lock);
		fill_hole(page_at(below(PAGES / HOLE_EVERY) * HOLE_EVERY), stock_at(i % STOCK));
		pthread_mutex_unlock(&lock);
	}
	return arg;
}

void guest_setup(void)
{
	pthread_t thread;

	region = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	stock = mmap(NULL, 2 * STOCK * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(region != MAP_FAILED && stock != MAP_FAILED);
	for (uint64_t page = 0; page < PAGES; page++)
		write_page(page);
	for (uint64_t page = 0; page < PAGES; page += HOLE_EVERY)
		CHECK(munmap(page_at(page), PAGE) == 0);
	for (uint64_t i = 0; i < STOCK; i++)
		CHECK(map(stock_at(i)) == stock_at(i));
	CHECK(pthread_create(&thread, NULL, work, NULL) == 0);
}

void guest_put(const char *tag)
{
	pthread_mutex_lock(&lock);
	strcpy(label, tag);
	pthread_mutex_unlock(&lock);
}

void guest_check(const char *tag)
{
	pthread_mutex_lock(&lock);
	CHECK_TAG(label, tag);
	for (uint64_t page = 0; page < PAGES; page++)
		if (page % HOLE_EVERY && memcmp(page_at(page), &wanted[page], sizeof(wanted[page])))
			FAIL("page %lu is not %lu", page, wanted[page]);
	pthread_mutex_unlock(&lock);
}
