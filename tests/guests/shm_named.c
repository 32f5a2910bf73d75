/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory with a descriptor: memfd (sealed), POSIX (/dev/shm), a mapped file; each written by mapping, read by
 * file. */
#include "guest.h"

static const char *const names[3] = {"memfd", "posix", "file"};
static int fds[3];
static char *maps[3];

void guest_setup(void)
{
	fds[0] = memfd_create("guest", MFD_ALLOW_SEALING);
	fds[1] = shm_open("/guest-shm", O_RDWR | O_CREAT, 0600);
	fds[2] = open("/guest-mapped", O_RDWR | O_CREAT, 0600);
	for (int i = 0; i < 3; i++) {
		CHECK(fds[i] >= 0 && ftruncate(fds[i], 65536) == 0);
		maps[i] = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
		CHECK(maps[i] != MAP_FAILED);
	}
	CHECK(fcntl(fds[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
}

void guest_put(const char *tag)
{
	for (int i = 0; i < 3; i++)
		strcpy(maps[i] + 5000, tag);
}

void guest_check(const char *tag)
{
	char have[TAG_SIZE];

	for (int i = 0; i < 3; i++) {
		if (strcmp(maps[i] + 5000, tag))
			FAIL("%s: mapping holds \"%s\", expected \"%s\"", names[i], maps[i] + 5000, tag);
		CHECK(pread(fds[i], have, sizeof(have), 5000) == sizeof(have));
		CHECK_TAG(have, tag);
	}
	CHECK(fcntl(fds[0], F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW));
}
