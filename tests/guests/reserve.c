/* SPDX-License-Identifier: Apache-2.0 */
/* Reservations of a terabyte in many processes, as a browser's, with a few pages in use: cost must follow the pages. */
#include <signal.h>
#include <sys/prctl.h>

#include "guest.h"

#define SIZE (1UL << 40)
#define OTHERS 20

static char *base;
static const unsigned long at[] = {4096, 1UL << 30, SIZE / 2, SIZE - 4096};

void guest_setup(void)
{
	base = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(base != MAP_FAILED);
	for (int i = 0; i < 4; i++)
		CHECK(mprotect(base + at[i], 4096, PROT_READ | PROT_WRITE) == 0);
	for (int i = 0; i < OTHERS; i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				pause();
		}
	}
}

void guest_put(const char *tag)
{
	for (int i = 0; i < 4; i++)
		strcpy(base + at[i], tag);
}

void guest_check(const char *tag)
{
	for (int i = 0; i < 4; i++)
		CHECK_TAG(base + at[i], tag);
	/* The rest can still be put to use. */
	CHECK(mprotect(base + 8192, 4096, PROT_READ | PROT_WRITE) == 0);
	base[8192]++;
	CHECK(mprotect(base + 8192, 4096, PROT_NONE) == 0);
}
