/* SPDX-License-Identifier: Apache-2.0 */
/* A working directory in use, and a child whose working directory was removed. */
#include "guest.h"

static int ask[2], answer[2];

void guest_setup(void)
{
	CHECK(pipe(ask) == 0 && pipe(answer) == 0);
	CHECK(mkdir("/guest-here", 0700) == 0 && mkdir("/guest-there", 0700) == 0);
	if (fork() == 0) {
		char byte, text[TAG_SIZE];

		if (chdir("/guest-there") < 0 || rmdir("/guest-there") < 0)
			_exit(1);
		while (read(ask[0], &byte, 1) == 1) {
			ssize_t n = readlink("/proc/self/cwd", text, sizeof(text));

			if (write(answer[1], text, (size_t)n) != n)
				_exit(1);
		}
		_exit(0);
	}
	CHECK(chdir("/guest-here") == 0);
	while (access("/guest-there", F_OK) == 0)
		;
}

void guest_put(const char *tag)
{
	int fd = open("tag", O_WRONLY | O_CREAT | O_TRUNC, 0600);

	CHECK(fd >= 0);
	guest_write_tag(fd, tag);
	close(fd);
}

void guest_check(const char *tag)
{
	int fd = open("/guest-here/tag", O_RDONLY);
	char have[TAG_SIZE];

	CHECK(fd >= 0);
	guest_read_tag(fd, have);
	CHECK_TAG(have, tag);
	close(fd);
	CHECK(write(ask[1], "x", 1) == 1);
	guest_read_tag(answer[0], have);
	CHECK(!strncmp(have, "/guest-there", 12) && strstr(have, "(deleted)"));
	CHECK(access("/guest-there", F_OK) < 0);
}
