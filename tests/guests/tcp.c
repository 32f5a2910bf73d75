/* SPDX-License-Identifier: Apache-2.0 */
/* Loopback TCP, both families: bytes queued both ways, a half-closed connection, and a listener that still accepts. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "guest.h"

static struct {
	struct sockaddr_storage address;
	socklen_t length;
	int listener, client, server, half_client, half_server;
} families[2];

static void connect_pair(int i, int *client, int *server)
{
	*client = socket(families[i].address.ss_family, SOCK_STREAM, 0);
	CHECK(connect(*client, (struct sockaddr *)&families[i].address, families[i].length) == 0);
	*server = accept(families[i].listener, NULL, NULL);
	CHECK(*server >= 0);
}

static void open_family(int i)
{
	int one = 1;

	families[i].listener = socket(families[i].address.ss_family, SOCK_STREAM, 0);
	CHECK(setsockopt(families[i].listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0);
	CHECK(bind(families[i].listener, (struct sockaddr *)&families[i].address, families[i].length) == 0);
	CHECK(listen(families[i].listener, 8) == 0);
	connect_pair(i, &families[i].client, &families[i].server);
	CHECK(setsockopt(families[i].client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
	connect_pair(i, &families[i].half_client, &families[i].half_server);
	CHECK(shutdown(families[i].half_client, SHUT_WR) == 0);
}

void guest_setup(void)
{
	struct sockaddr_in *four = (struct sockaddr_in *)&families[0].address;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&families[1].address;

	*four = (struct sockaddr_in){
		.sin_family = AF_INET, .sin_port = htons(7001), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	families[0].length = sizeof(*four);
	*six = (struct sockaddr_in6){
		.sin6_family = AF_INET6, .sin6_port = htons(7002), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	families[1].length = sizeof(*six);
	open_family(0);
	open_family(1);
}

void guest_put(const char *tag)
{
	for (int i = 0; i < 2; i++) {
		guest_write_tag(families[i].client, tag);
		guest_write_tag(families[i].server, tag);
		guest_write_tag(families[i].half_server, tag);
	}
}

void guest_check(const char *tag)
{
	char have[TAG_SIZE];
	int client, server, one = 0;
	socklen_t length = sizeof(one);

	for (int i = 0; i < 2; i++) {
		guest_read_tag(families[i].client, have);
		CHECK_TAG(have, tag);
		guest_read_tag(families[i].server, have);
		CHECK_TAG(have, tag);
		guest_read_tag(families[i].half_client, have);
		CHECK_TAG(have, tag);
		CHECK(read(families[i].half_server, have, 1) == 0);
		CHECK(getsockopt(families[i].client, IPPROTO_TCP, TCP_NODELAY, &one, &length) == 0 && one == 1);
		connect_pair(i, &client, &server);
		guest_write_tag(client, tag);
		guest_read_tag(server, have);
		CHECK_TAG(have, tag);
		close(client);
		close(server);
	}
}
