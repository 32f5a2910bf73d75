/* SPDX-License-Identifier: Apache-2.0 */
/* Robust mutexes: one whose owner dies after the fork is handed over, not lost. */
#include <pthread.h>

#include "guest.h"

static struct shared {
	pthread_mutex_t mutex;
	int locked;
} * shared;
static pid_t owner;

void guest_setup(void)
{
	pthread_mutexattr_t attributes;

	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	pthread_mutexattr_init(&attributes);
	pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
	CHECK(pthread_mutex_init(&shared->mutex, &attributes) == 0);
}

void guest_put(const char *tag)
{
	int ready[2];
	char byte;

	(void)tag;
	CHECK(pipe(ready) == 0);
	owner = fork();
	if (owner == 0) {
		if (pthread_mutex_lock(&shared->mutex) || write(ready[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	close(ready[1]);
}

void guest_check(const char *tag)
{
	(void)tag;
	CHECK(pthread_mutex_trylock(&shared->mutex) == EBUSY);
	CHECK(kill(owner, SIGKILL) == 0 && waitpid(owner, NULL, 0) == owner);
	CHECK(pthread_mutex_lock(&shared->mutex) == EOWNERDEAD);
	CHECK(pthread_mutex_consistent(&shared->mutex) == 0 && pthread_mutex_unlock(&shared->mutex) == 0);
}
