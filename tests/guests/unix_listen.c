/* SPDX-License-Identifier: Apache-2.0 */
/* Listening Unix sockets, by path and abstract, each with an accepted connection; new clients connect after the fork.
 */
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "guest.h"

static struct {
	struct sockaddr_un address;
	socklen_t length;
	int listener, client, server;
} kinds[4];

static void open_kind(int i, int type, const char *name, int abstract)
{
	struct sockaddr_un *address = &kinds[i].address;

	address->sun_family = AF_UNIX;
	strcpy(address->sun_path + abstract, name);
	kinds[i].length =
		(socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)abstract + strlen(name) + !abstract);
	kinds[i].listener = socket(AF_UNIX, type, 0);
	kinds[i].client = socket(AF_UNIX, type, 0);
	CHECK(bind(kinds[i].listener, (struct sockaddr *)address, kinds[i].length) == 0);
	CHECK(listen(kinds[i].listener, 8) == 0);
	CHECK(connect(kinds[i].client, (struct sockaddr *)address, kinds[i].length) == 0);
	kinds[i].server = accept(kinds[i].listener, NULL, NULL);
	CHECK(kinds[i].server >= 0);
}

void guest_setup(void)
{
	open_kind(0, SOCK_STREAM, "/guest-socket", 0);
	open_kind(1, SOCK_STREAM, "guest-abstract", 1);
	open_kind(2, SOCK_SEQPACKET, "/guest-packets", 0);
	open_kind(3, SOCK_SEQPACKET, "guest-abstract-packets", 1);
}

void guest_put(const char *tag)
{
	for (int i = 0; i < 4; i++) {
		guest_write_tag(kinds[i].client, tag);
		guest_write_tag(kinds[i].server, tag);
	}
}

static void connect_anew(int i)
{
	int type = i < 2 ? SOCK_STREAM : SOCK_SEQPACKET;
	int client = socket(AF_UNIX, type, 0), server;
	char have[TAG_SIZE];

	CHECK(connect(client, (struct sockaddr *)&kinds[i].address, kinds[i].length) == 0);
	server = accept(kinds[i].listener, NULL, NULL);
	CHECK(server >= 0);
	guest_write_tag(client, "hello");
	guest_read_tag(server, have);
	CHECK_TAG(have, "hello");
	close(client);
	close(server);
}

void guest_check(const char *tag)
{
	char have[TAG_SIZE];

	for (int i = 0; i < 4; i++) {
		guest_read_tag(kinds[i].client, have);
		CHECK_TAG(have, tag);
		guest_read_tag(kinds[i].server, have);
		CHECK_TAG(have, tag);
		connect_anew(i);
	}
}
