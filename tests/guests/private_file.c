/* SPDX-License-Identifier: Apache-2.0 */
/* A private file mapping, partly written: written pages keep the tag, the others follow the file. */
#include "guest.h"

static char *map;

void guest_setup(void)
{
	int fd = open("/guest-private", O_RDWR | O_CREAT, 0600);

	CHECK(fd >= 0 && ftruncate(fd, 1 << 20) == 0);
	for (int i = 0; i < 256; i++)
		CHECK(pwrite(fd, "page", 5, i * 4096) == 5);
	map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE, fd, 0);
	CHECK(map != MAP_FAILED);
	close(fd);
}

void guest_put(const char *tag)
{
	for (int i = 0; i < 256; i += 3)
		strcpy(map + i * 4096, tag);
}

void guest_check(const char *tag)
{
	char have[8];
	int fd = open("/guest-private", O_RDONLY);

	for (int i = 0; i < 256; i++)
		CHECK_TAG(map + i * 4096, i % 3 ? "page" : tag);
	CHECK(pread(fd, have, 5, 0) == 5);
	CHECK_TAG(have, "page");
	close(fd);
}
