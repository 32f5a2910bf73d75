/* SPDX-License-Identifier: Apache-2.0 */
/* A descriptor in flight: sent over a Unix socket, not received yet. */
#include <sys/socket.h>

#include "guest.h"

static int pair[2];

void guest_setup(void)
{
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
}

void guest_put(const char *tag)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
	struct iovec io = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int fd = open("/guest-passed", O_RDWR | O_CREAT | O_TRUNC, 0600);

	CHECK(fd >= 0);
	guest_write_tag(fd, tag);
	CHECK(lseek(fd, 0, SEEK_SET) == 0);
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(int));
	CHECK(sendmsg(pair[0], &message, 0) == 1);
	close(fd);
}

void guest_check(const char *tag)
{
	char control[CMSG_SPACE(sizeof(int))] = {0}, byte, have[TAG_SIZE];
	struct iovec io = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	int fd;

	CHECK(recvmsg(pair[1], &message, 0) == 1 && CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	guest_read_tag(fd, have);
	CHECK_TAG(have, tag);
	close(fd);
}
