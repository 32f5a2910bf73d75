/* SPDX-License-Identifier: Apache-2.0 */
/* Anonymous shared memory between parent and child. */
#include <semaphore.h>

#include "guest.h"

static struct shared {
	sem_t asked, answered;
	char tag[TAG_SIZE], seen[TAG_SIZE];
} * shared;

void guest_setup(void)
{
	shared = mmap(NULL, 1 << 22, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	CHECK(sem_init(&shared->asked, 1, 0) == 0 && sem_init(&shared->answered, 1, 0) == 0);
	if (fork() == 0) {
		for (;;) {
			while (sem_wait(&shared->asked) < 0)
				;
			strcpy(shared->seen, shared->tag);
			sem_post(&shared->answered);
		}
	}
}

void guest_put(const char *tag)
{
	strcpy(shared->tag, tag);
}

void guest_check(const char *tag)
{
	CHECK_TAG(shared->tag, tag);
	CHECK(sem_post(&shared->asked) == 0);
	while (sem_wait(&shared->answered) < 0)
		CHECK(errno == EINTR || errno == 0);
	CHECK_TAG(shared->seen, tag);
}
