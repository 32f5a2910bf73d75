/* SPDX-License-Identifier: Apache-2.0 */
/* Many threads, each with its own thread-local tag, woken through one condition variable. */
#include <pthread.h>

#include "guest.h"

#define N 48

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static unsigned int command, finished, wrong;
static enum { PUT, VERIFY } what;
static char wanted[TAG_SIZE];
static __thread char mine[TAG_SIZE];
static __thread long number;

static void *run(void *argument)
{
	unsigned int seen = 0;
	int slot = 0;
	int *on_stack = &slot;

	number = (long)argument;
	pthread_mutex_lock(&lock);
	for (;;) {
		while (seen == command)
			pthread_cond_wait(&wake, &lock);
		seen = command;
		if (what == PUT)
			snprintf(mine, sizeof(mine), "%s", wanted);
		else if (strcmp(mine, wanted) || number != (long)argument || on_stack != &slot)
			wrong++;
		if (++finished == N)
			pthread_cond_signal(&done);
	}
	return NULL;
}

static void all(int action, const char *tag)
{
	pthread_mutex_lock(&lock);
	what = action;
	finished = 0;
	strcpy(wanted, tag);
	command++;
	pthread_cond_broadcast(&wake);
	while (finished < N)
		pthread_cond_wait(&done, &lock);
	pthread_mutex_unlock(&lock);
	CHECK(wrong == 0);
}

void guest_setup(void)
{
	for (long i = 0; i < N; i++) {
		pthread_t thread;

		CHECK(pthread_create(&thread, NULL, run, (void *)i) == 0);
	}
}

void guest_put(const char *tag)
{
	all(PUT, tag);
}

void guest_check(const char *tag)
{
	all(VERIFY, tag);
}
