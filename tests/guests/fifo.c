/* SPDX-License-Identifier: Apache-2.0 */
/* A named pipe with queued bytes. */
#include "guest.h"

static int fd;

void guest_setup(void)
{
	CHECK(mkfifo("/guest-fifo", 0600) == 0);
	fd = open("/guest-fifo", O_RDWR);
	CHECK(fd >= 0);
}

void guest_put(const char *tag)
{
	guest_write_tag(fd, tag);
}

void guest_check(const char *tag)
{
	char have[TAG_SIZE];

	guest_read_tag(fd, have);
	CHECK_TAG(have, tag);
}
