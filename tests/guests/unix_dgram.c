/* SPDX-License-Identifier: Apache-2.0 */
/* Bound datagram sockets with queued messages from unconnected and connected senders. */
#include <sys/socket.h>
#include <sys/un.h>

#include "guest.h"

static const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/guest-dgram"};
static int receiver, loose, tied;

void guest_setup(void)
{
	receiver = socket(AF_UNIX, SOCK_DGRAM, 0);
	loose = socket(AF_UNIX, SOCK_DGRAM, 0);
	tied = socket(AF_UNIX, SOCK_DGRAM, 0);
	CHECK(bind(receiver, (const struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(connect(tied, (const struct sockaddr *)&address, sizeof(address)) == 0);
}

void guest_put(const char *tag)
{
	CHECK(sendto(loose, tag, strlen(tag), 0, (const struct sockaddr *)&address, sizeof(address)) > 0);
	guest_write_tag(tied, tag);
}

void guest_check(const char *tag)
{
	char have[TAG_SIZE];

	guest_read_tag(receiver, have);
	CHECK_TAG(have, tag);
	guest_read_tag(receiver, have);
	CHECK_TAG(have, tag);
	CHECK(recv(receiver, have, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
}
