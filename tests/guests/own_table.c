/* SPDX-License-Identifier: Apache-2.0 */
/* A process of several threads that fork: no descriptor but its own comes into its table, or goes to a child. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "guest.h"

#define FDS 16
#define THREADS 2

static _Atomic unsigned int strangers, looks;
static char label[TAG_SIZE];

static bool is_strange(int fd)
{
	char path[32], target[64];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, target, sizeof(target) - 1);
	target[n > 0 ? n : 0] = 0;
	return !strncmp(target, "anon_inode:", 11);
}

static bool have_strange(void)
{
	for (int fd = 0; fd < FDS; fd++)
		if (is_strange(fd))
			return true;
	return false;
}

static void *look(void *arg)
{
	for (;; looks++)
		strangers += have_strange();
	return arg;
}

static void *make_children(void *arg)
{
	for (;; looks++) {
		pid_t child = fork();
		int status;

		if (!child)
			_exit(have_strange());
		if (waitpid(child, &status, 0) == child)
			strangers += WIFEXITED(status) && WEXITSTATUS(status);
	}
	return arg;
}

static void *wait_for_ever(void *arg)
{
	for (;;)
		pause();
	return arg;
}

void guest_setup(void)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, look, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread, NULL, make_children, NULL) == 0);
}

void guest_put(const char *tag)
{
	strcpy(label, tag);
}

void guest_check(const char *tag)
{
	unsigned int begun = looks;

	CHECK_TAG(label, tag);
	while (looks - begun < 10 && !strangers)
		sched_yield();
	if (strangers)
		FAIL("%u times there was a descriptor of somebody else's", strangers);
}
