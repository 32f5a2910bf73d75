/* SPDX-License-Identifier: Apache-2.0 */
/* Locked memory stays locked, and holds what it held. */
#include "guest.h"

#define SIZE (64 * 4096)

static char *locked;

void guest_setup(void)
{
	locked = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(locked != MAP_FAILED && mlock(locked, SIZE) == 0);
}

void guest_put(const char *tag)
{
	for (int i = 0; i < SIZE; i += 4096)
		strcpy(locked + i, tag);
}

void guest_check(const char *tag)
{
	FILE *status = fopen("/proc/self/status", "r");
	char line[256];
	long kib = 0;

	CHECK(status);
	while (fgets(line, sizeof(line), status))
		sscanf(line, "VmLck: %ld kB", &kib);
	fclose(status);
	CHECK(kib >= SIZE / 1024);
	for (int i = 0; i < SIZE; i += 4096)
		CHECK_TAG(locked + i, tag);
}
