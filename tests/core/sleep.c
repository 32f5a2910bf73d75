/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sleep SECONDS, until a moment and not for a while: a fork interrupts relative waits (docs/fork-correctness.md),
 * and some versions of busybox take that for the end.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
	struct timespec until;
	double seconds = argc > 1 ? atof(argv[1]) : 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)seconds;
	until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
	return 0;
}
