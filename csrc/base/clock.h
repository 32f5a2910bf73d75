/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <time.h>

static inline long long bsh_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}
