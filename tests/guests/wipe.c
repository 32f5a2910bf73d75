/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory by which random number generators see that they were forked. A branch is the same process going on: what
 * MADV_WIPEONFORK marks is carried. After that the mark must still be there, for the process's own children.
 */
#include "guest.h"

static char *wiped;

void guest_setup(void)
{
	wiped = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(wiped != MAP_FAILED && madvise(wiped + 4096, 4096, MADV_WIPEONFORK) == 0);
}

void guest_put(const char *tag)
{
	for (int i = 0; i < 3; i++)
		strcpy(wiped + i * 4096L, tag);
}

void guest_check(const char *tag)
{
	int status;
	pid_t child;

	for (int i = 0; i < 3; i++)
		CHECK_TAG(wiped + i * 4096L, tag);
	child = fork();
	if (child == 0)
		_exit(strcmp(wiped, tag) || wiped[4096] || strcmp(wiped + 8192L, tag));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK_TAG(wiped + 4096, tag);
}
