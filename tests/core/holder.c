/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds memory of each kind: holder PROCESSES PRIVATE_MIB SHARED_MIB UNMAPPED_MIB. Every page has a content of its
 * own; each process after the first has the same pages.
 * Creates /tmp/held when all is there, then waits for ever.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)

static void fill(char *at, size_t size, uint64_t salt)
{
	for (size_t offset = 0; offset < size; offset += PAGE)
		*(uint64_t *)(at + offset) = salt + offset + 1;
}

static char *map(size_t size, int flags, int fd)
{
	char *at = mmap(NULL, size + PAGE, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (at == MAP_FAILED)
		_exit(2);
	return at;
}

int main(int argc, char **argv)
{
	size_t sizes[4] = {0};
	int fd;

	for (int i = 1; i < argc && i < 5; i++)
		sizes[i - 1] = strtoul(argv[i], NULL, 10) * (i > 1 ? MIB : 1);
	fill(map(sizes[1], MAP_PRIVATE | MAP_ANONYMOUS, -1), sizes[1], 1UL << 40);
	fill(map(sizes[2], MAP_SHARED | MAP_ANONYMOUS, -1), sizes[2], 2UL << 40);
	fd = memfd_create("held", 0);
	if (fd < 0 || ftruncate(fd, (off_t)(sizes[3] + PAGE)) < 0)
		return 3;
	if (sizes[3]) {
		char *at = map(sizes[3], MAP_SHARED, fd);

		fill(at, sizes[3], 3UL << 40);
		munmap(at, sizes[3] + PAGE);
	}
	for (size_t i = 1; i < sizes[0]; i++)
		if (fork() == 0)
			for (;;)
				pause();
	fd = open("/tmp/held", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return 4;
	close(fd);
	for (;;)
		pause();
}
