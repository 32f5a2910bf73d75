/* SPDX-License-Identifier: Apache-2.0 */
/* Open files: offset shared by duplicates and by a child, append mode, flags, a high descriptor number, a directory. */
#include <dirent.h>

#include "guest.h"

static int fd, copy, append, high, directory;

void guest_setup(void)
{
	fd = open("/guest-file", O_RDWR | O_CREAT | O_CLOEXEC, 0640);
	append = open("/guest-append", O_RDWR | O_CREAT | O_APPEND, 0600);
	directory = open("/guest", O_RDONLY | O_DIRECTORY);
	CHECK(fd >= 0 && append >= 0 && directory >= 0);
	copy = dup(fd);
	high = fcntl(fd, F_DUPFD, 900);
	CHECK(copy >= 0 && high >= 900);
	CHECK(fcntl(copy, F_SETFL, fcntl(copy, F_GETFL) | O_NONBLOCK) == 0);
}

void guest_put(const char *tag)
{
	CHECK(ftruncate(fd, 0) == 0 && lseek(fd, 0, SEEK_SET) == 0);
	guest_write_tag(fd, tag);
	CHECK(ftruncate(append, 0) == 0);
	guest_write_tag(append, tag);
}

void guest_check(const char *tag)
{
	off_t length = (off_t)strlen(tag);
	char have[TAG_SIZE] = "";
	struct stat st;

	CHECK(lseek(copy, 0, SEEK_CUR) == length && lseek(high, 0, SEEK_CUR) == length);
	CHECK(pread(high, have, sizeof(have) - 1, 0) == length);
	CHECK_TAG(have, tag);
	CHECK(lseek(append, 0, SEEK_SET) == 0);
	guest_write_tag(append, "+");
	memset(have, 0, sizeof(have));
	CHECK(pread(append, have, sizeof(have) - 1, 0) == length + 1 && have[length] == '+' &&
		!strncmp(have, tag, (size_t)length));
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(copy, F_GETFD) == 0);
	CHECK((fcntl(fd, F_GETFL) & O_NONBLOCK) && (fcntl(append, F_GETFL) & O_APPEND));
	CHECK(fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0640 && st.st_nlink == 1);
	CHECK(fstatat(directory, "go", &st, 0) == 0 && S_ISFIFO(st.st_mode));
}
