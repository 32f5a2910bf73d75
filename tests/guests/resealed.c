/* SPDX-License-Identifier: Apache-2.0 */
/* A file's private mappings that were never writable become so for a moment, at any moment, and keep what was written.
 */
#include <pthread.h>
#include <stdlib.h>

#include "guest.h"

#define MAPPINGS 64
#define ROOM 8192
#define APART 16384

static char *area, label[TAG_SIZE];
static int fd;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t checked = PTHREAD_COND_INITIALIZER;
static unsigned long rounds;
static int found; /* in a mapping that was written to */

static char *mapping(int i)
{
	return area + (size_t)i * APART;
}

static void pause_some(unsigned int *seed)
{
	const struct timespec some = {.tv_nsec = rand_r(seed) % 15000000};

	nanosleep(&some, NULL);
}

static void *patch(void *arg)
{
	unsigned int seed = 7;

	(void)arg;
	for (;;) {
		for (int i = 0; i < MAPPINGS; i++)
			CHECK(mmap(mapping(i), ROOM, PROT_READ, MAP_PRIVATE | MAP_FIXED, fd, 0) == mapping(i));
		pause_some(&seed);
		for (int i = 0; i < MAPPINGS; i++) {
			CHECK(mprotect(mapping(i), ROOM, PROT_READ | PROT_WRITE) == 0);
			*mapping(i) = 'b';
			CHECK(mprotect(mapping(i), ROOM, PROT_READ) == 0);
		}
		pause_some(&seed);
		pthread_mutex_lock(&lock);
		for (int i = 0; i < MAPPINGS; i++)
			if (*mapping(i) != 'b')
				found = *mapping(i);
		rounds++;
		pthread_cond_broadcast(&checked);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

void guest_setup(void)
{
	pthread_t thread;

	fd = open("/guest/patched", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0 && ftruncate(fd, ROOM) == 0 && pwrite(fd, "a", 1, 0) == 1);
	area = mmap(NULL, (size_t)MAPPINGS * APART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(area != MAP_FAILED);
	CHECK(pthread_create(&thread, NULL, patch, NULL) == 0);
}

void guest_put(const char *tag)
{
	strcpy(label, tag);
}

/* The round that the fork fell into has ended. */
void guest_check(const char *tag)
{
	unsigned long begun;

	CHECK_TAG(label, tag);
	pthread_mutex_lock(&lock);
	for (begun = rounds; rounds == begun;)
		pthread_cond_wait(&checked, &lock);
	pthread_mutex_unlock(&lock);
	if (found)
		FAIL("a page that was written to holds %c", found);
}
