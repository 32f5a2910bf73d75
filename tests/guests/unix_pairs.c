/* SPDX-License-Identifier: Apache-2.0 */
/* Connected pairs of Unix sockets of each type, with bytes queued both ways. */
#include <sys/socket.h>

#include "guest.h"

static int pairs[3][2];

void guest_setup(void)
{
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[0]) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pairs[1]) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pairs[2]) == 0);
}

void guest_put(const char *tag)
{
	for (int i = 0; i < 3; i++)
		for (int side = 0; side < 2; side++)
			guest_write_tag(pairs[i][side], tag);
}

void guest_check(const char *tag)
{
	char have[TAG_SIZE];

	for (int i = 0; i < 3; i++) {
		for (int side = 0; side < 2; side++) {
			guest_read_tag(pairs[i][side], have);
			CHECK_TAG(have, tag);
			CHECK(recv(pairs[i][side], have, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
		}
	}
}
