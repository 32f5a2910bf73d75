/* SPDX-License-Identifier: Apache-2.0 */
/* Pipes with queued bytes: plain, enlarged, and a pair whose other ends a child holds. */
#include "guest.h"

static int plain[2], large[2], to_child[2], from_child[2];

static void child(void)
{
	char buffer[TAG_SIZE];
	ssize_t n;

	while ((n = read(to_child[0], buffer, sizeof(buffer))) > 0)
		if (write(from_child[1], buffer, (size_t)n) != n)
			_exit(1);
	_exit(0);
}

void guest_setup(void)
{
	CHECK(pipe(plain) == 0 && pipe(large) == 0);
	CHECK(pipe(to_child) == 0 && pipe(from_child) == 0);
	CHECK(fcntl(large[0], F_SETPIPE_SZ, 1 << 20) == 1 << 20);
	if (fork() == 0)
		child();
	close(to_child[0]);
	close(from_child[1]);
}

void guest_put(const char *tag)
{
	static char block[300000];

	memset(block, tag[0], sizeof(block));
	guest_write_tag(plain[1], tag);
	CHECK(write(large[1], block, sizeof(block)) == sizeof(block));
	guest_write_tag(to_child[1], tag);
}

void guest_check(const char *tag)
{
	static char block[300000];
	char have[TAG_SIZE];
	size_t got = 0;

	guest_read_tag(plain[0], have);
	CHECK_TAG(have, tag);
	while (got < sizeof(block)) {
		ssize_t n = read(large[0], block + got, sizeof(block) - got);

		CHECK(n > 0);
		got += (size_t)n;
	}
	CHECK(block[0] == tag[0] && !memcmp(block, block + 1, sizeof(block) - 1));
	CHECK(fcntl(large[0], F_GETPIPE_SZ) == 1 << 20);
	guest_read_tag(from_child[0], have);
	CHECK_TAG(have, tag);
}
