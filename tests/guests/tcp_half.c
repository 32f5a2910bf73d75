/* SPDX-License-Identifier: Apache-2.0 */
/* Loopback TCP between two processes, one side of each connection shut, both families; bytes queued the other way. */
#include <arpa/inet.h>
#include <sys/socket.h>

#include "guest.h"

#define PAIRS 6

/* Even ones are shut by this process and written by the other, odd ones the other way round. */
static int mine[2 * PAIRS], theirs[2 * PAIRS];
static int orders[2];

static void open_family(const struct sockaddr *address, socklen_t length, int *ours, int *others)
{
	int listener = socket(address->sa_family, SOCK_STREAM, 0);

	CHECK(bind(listener, address, length) == 0);
	CHECK(listen(listener, PAIRS) == 0);
	for (int i = 0; i < PAIRS; i++) {
		ours[i] = socket(address->sa_family, SOCK_STREAM, 0);
		CHECK(connect(ours[i], address, length) == 0);
		others[i] = accept(listener, NULL, NULL);
		CHECK(others[i] >= 0);
	}
	close(listener);
}

static void put(const int *sockets, int first, const char *tag)
{
	for (int i = first; i < 2 * PAIRS; i += 2)
		guest_write_tag(sockets[i], tag);
}

static void check(const int *sockets, int first, const char *tag)
{
	char have[TAG_SIZE];

	for (int i = 0; i < 2 * PAIRS; i++) {
		if (i % 2 == first) {
			guest_read_tag(sockets[i], have);
			CHECK_TAG(have, tag);
		} else {
			CHECK(read(sockets[i], have, 1) == 0);
		}
	}
}

static void serve(void)
{
	char order[TAG_SIZE + 1];
	ssize_t n;

	for (int i = 1; i < 2 * PAIRS; i += 2)
		CHECK(shutdown(theirs[i], SHUT_WR) == 0);
	while ((n = read(orders[1], order, TAG_SIZE)) > 0) {
		order[n] = 0;
		if (order[0] == 'p')
			put(theirs, 0, order + 1);
		else
			check(theirs, 1, order + 1);
		CHECK(write(orders[1], "d", 1) == 1);
	}
	_exit(0);
}

static void tell_other(char what, const char *tag)
{
	char order[TAG_SIZE + 1], done;

	snprintf(order, sizeof(order), "%c%s", what, tag);
	CHECK(write(orders[0], order, strlen(order)) == (ssize_t)strlen(order));
	CHECK(read(orders[0], &done, 1) == 1);
}

void guest_setup(void)
{
	struct sockaddr_in four = {
		.sin_family = AF_INET, .sin_port = htons(7001), .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct sockaddr_in6 six = {
		.sin6_family = AF_INET6, .sin6_port = htons(7002), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	pid_t other;

	open_family((struct sockaddr *)&four, sizeof(four), mine, theirs);
	open_family((struct sockaddr *)&six, sizeof(six), mine + PAIRS, theirs + PAIRS);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, orders) == 0);
	other = fork();
	CHECK(other >= 0);
	for (int i = 0; i < 2 * PAIRS; i++)
		close(other ? theirs[i] : mine[i]);
	close(orders[other ? 1 : 0]);
	if (!other)
		serve();
	for (int i = 0; i < 2 * PAIRS; i += 2)
		CHECK(shutdown(mine[i], SHUT_WR) == 0);
}

void guest_put(const char *tag)
{
	put(mine, 1, tag);
	tell_other('p', tag);
}

void guest_check(const char *tag)
{
	check(mine, 0, tag);
	tell_other('c', tag);
}
