/* SPDX-License-Identifier: Apache-2.0 */
/* UDP sockets, bound and connected; messages flow after the fork. What is queued in them at the fork is lost, as on a
 * network. */
#include <arpa/inet.h>
#include <sys/socket.h>

#include "guest.h"

static const struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {0x0100007f}, .sin_port = 0x5b1b};
static int receiver, sender;

void guest_setup(void)
{
	receiver = socket(AF_INET, SOCK_DGRAM, 0);
	sender = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK(bind(receiver, (const struct sockaddr *)&address, sizeof(address)) == 0);
	CHECK(connect(sender, (const struct sockaddr *)&address, sizeof(address)) == 0);
}

void guest_put(const char *tag)
{
	(void)tag;
}

void guest_check(const char *tag)
{
	char have[TAG_SIZE];

	guest_write_tag(sender, tag);
	guest_read_tag(receiver, have);
	CHECK_TAG(have, tag);
	CHECK(recv(receiver, have, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
}
