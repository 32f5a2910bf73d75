/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that never rest: their registers, vector state and restartable sequences must come over exactly. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/rseq.h>

#include "guest.h"

#define N 3

static _Atomic unsigned int stop;
static unsigned int wrong[N];
static unsigned long rounds[N];
static pthread_t threads[N];

/* The same sum again and again, kept in registers: any lost bit shows. */
static double sum(double seed)
{
	double a = seed, b = seed * 2, c = seed * 3, d = seed * 4;

	for (int i = 1; i < 20000; i++) {
		a += 1.0 / i;
		b -= 0.5 / i;
		c += a * 1e-6;
		d -= b * 1e-6;
	}
	return a + b + c + d;
}

static void *run(void *argument)
{
	long i = (long)argument;
	double expected = sum((double)i);

	while (!stop) {
		if (sum((double)i) != expected)
			wrong[i]++;
		/* The kernel's answer and its restartable-sequence area must agree that this is a processor. */
		if (sched_getcpu() < 0)
			wrong[i]++;
		rounds[i]++;
	}
	return NULL;
}

void guest_setup(void)
{
}

void guest_put(const char *tag)
{
	(void)tag;
	stop = 0;
	for (long i = 0; i < N; i++)
		CHECK(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
}

void guest_check(const char *tag)
{
	(void)tag;
	stop = 1;
	for (int i = 0; i < N; i++)
		CHECK(pthread_join(threads[i], NULL) == 0 && wrong[i] == 0);
}
