/* SPDX-License-Identifier: Apache-2.0 */
/* After MADV_DONTNEED a page of anonymous memory reads as zero, one of a private file mapping as the file. */
#include "guest.h"

#define SIZE (64 * 4096)

static char *anonymous, *file;

void guest_setup(void)
{
	int fd = open("/guest-data", O_RDWR | O_CREAT, 0600);

	CHECK(fd >= 0 && ftruncate(fd, SIZE) == 0 && pwrite(fd, "content", 7, 0) == 7);
	anonymous = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	file = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	CHECK(anonymous != MAP_FAILED && file != MAP_FAILED);
	close(fd);
}

void guest_put(const char *tag)
{
	for (int i = 0; i < SIZE; i += 4096) {
		strcpy(anonymous + i, tag);
		strcpy(file + i, tag);
	}
}

void guest_check(const char *tag)
{
	for (int i = 0; i < SIZE; i += 4096) {
		CHECK_TAG(anonymous + i, tag);
		CHECK_TAG(file + i, tag);
	}
	CHECK(madvise(anonymous, SIZE, MADV_DONTNEED) == 0 && madvise(file, SIZE, MADV_DONTNEED) == 0);
	for (int i = 0; i < SIZE; i++)
		CHECK(anonymous[i] == 0);
	CHECK_TAG(file, "content");
	CHECK(file[4096] == 0);
}
