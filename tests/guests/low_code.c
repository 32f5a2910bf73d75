/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Code in memory without a file, below all else that the process may run: it is from there that a dump has the process
 * make system calls, over whatever the page begins with.
 */
#include "guest.h"

#define AT 0x40000
#define PAGE 4096
#define FUNCTION 64 /* behind the tag */

static char *page;

/* mov $42, %eax; ret */
static const unsigned char code[] = {0xb8, 42, 0, 0, 0, 0xc3};

void guest_setup(void)
{
	page = mmap((void *)AT, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(page == (void *)AT);
	memcpy(page + FUNCTION, code, sizeof(code));
}

void guest_put(const char *tag)
{
	snprintf(page, TAG_SIZE, "%s", tag);
}

void guest_check(const char *tag)
{
	int (*function)(void) = (int (*)(void))(page + FUNCTION);

	CHECK_TAG(page, tag);
	CHECK(function() == 42);
}
