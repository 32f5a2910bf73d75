/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks still grow: the process's own by deep recursion, a MAP_GROWSDOWN mapping by touching below it. */
#include "guest.h"

static char *growing; /* lowest byte in use */

static __attribute__((noinline)) int deep(int depth)
{
	volatile char room[4096];

	room[0] = (char)depth;
	room[4095] = (char)depth;
	return depth ? deep(depth - 1) + (room[0] == (char)depth) : 0;
}

void guest_setup(void)
{
	/* Room to grow into: reserve, then free all but the top page. */
	char *area = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(area != MAP_FAILED && munmap(area, 1 << 20) == 0);
	growing = mmap(area + (1 << 20) - 8192, 8192, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(growing != MAP_FAILED);
}

void guest_put(const char *tag)
{
	strcpy(growing, tag);
}

void guest_check(const char *tag)
{
	CHECK_TAG(growing, tag);
	growing -= 4096;
	CHECK(growing[0] == 0);
	strcpy(growing, tag);
	CHECK_TAG(growing, tag);
	CHECK(deep(500) == 500);
}
