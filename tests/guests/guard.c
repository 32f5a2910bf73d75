/* SPDX-License-Identifier: Apache-2.0 */
/* Guard pages, by mprotect and by MADV_GUARD_INSTALL, still fault; their neighbours hold the tag. */
#include <setjmp.h>

#include "guest.h"

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

static char *protected, *guarded;
static int have_guards;
static sigjmp_buf back;

static void on_fault(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static int faults(volatile char *at)
{
	if (sigsetjmp(back, 1))
		return 1;
	(void)*at;
	return 0;
}

void guest_setup(void)
{
	signal(SIGSEGV, on_fault);
	protected = mmap(NULL, 5 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	guarded = mmap(NULL, 5 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(protected != MAP_FAILED && guarded != MAP_FAILED);
	CHECK(mprotect(protected + 2 * 4096, 4096, PROT_NONE) == 0);
	/* Kernels before 6.13 have no such guards. */
	have_guards = madvise(guarded + 2 * 4096, 4096, MADV_GUARD_INSTALL) == 0;
}

void guest_put(const char *tag)
{
	strcpy(protected + 3 * 4096, tag);
	strcpy(guarded + 3 * 4096, tag);
}

void guest_check(const char *tag)
{
	CHECK(faults(protected + 2 * 4096));
	CHECK(!have_guards || faults(guarded + 2 * 4096));
	CHECK(!faults(guarded + 4096));
	CHECK_TAG(protected + 3 * 4096, tag);
	CHECK_TAG(guarded + 3 * 4096, tag);
}
