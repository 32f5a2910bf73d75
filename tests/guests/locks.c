/* SPDX-License-Identifier: Apache-2.0 */
/* flock, POSIX and open-file-description locks: still held, by the same holder. */
#include <sys/file.h>

#include "guest.h"

static int flocked, posix, description;

static struct flock whole(int type)
{
	return (struct flock){.l_type = (short)type, .l_whence = SEEK_SET, .l_start = 10, .l_len = 20};
}

void guest_setup(void)
{
	struct flock lock = whole(F_WRLCK);

	flocked = open("/guest-flock", O_RDWR | O_CREAT, 0600);
	posix = open("/guest-posix", O_RDWR | O_CREAT, 0600);
	description = open("/guest-ofd", O_RDWR | O_CREAT, 0600);
	CHECK(flock(flocked, LOCK_EX) == 0);
	CHECK(fcntl(posix, F_SETLK, &lock) == 0);
	CHECK(fcntl(description, F_OFD_SETLK, &lock) == 0);
}

void guest_put(const char *tag)
{
	(void)tag;
}

/* Another process must find each of them taken. */
static int rival(void)
{
	struct flock lock = whole(F_WRLCK);
	int fd = open("/guest-flock", O_RDWR);

	if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
		return 1;
	fd = open("/guest-posix", O_RDWR);
	if (fcntl(fd, F_GETLK, &lock) < 0 || lock.l_type != F_WRLCK || lock.l_pid != getppid())
		return 2;
	lock = whole(F_WRLCK);
	fd = open("/guest-ofd", O_RDWR);
	if (fcntl(fd, F_OFD_SETLK, &lock) == 0 || errno != EAGAIN)
		return 3;
	return 0;
}

void guest_check(const char *tag)
{
	pid_t pid = fork();
	int status;

	(void)tag;
	if (pid == 0)
		_exit(rival());
	CHECK(waitpid(pid, &status, 0) == pid);
	if (status)
		FAIL("a rival process got the lock: status %x", status);
}
