// SPDX-License-Identifier: GPL-2.0-only
/* Packets with descriptors over a Unix socket. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bunshin-msg.h"

#define FDS_MAX 32

int bunshin_msg_send(int socket, const void *data, size_t len, const int *fds, unsigned int n_fds)
{
	char control[CMSG_SPACE(FDS_MAX * sizeof(int))] = {};
	struct iovec iov = { (void *)data, len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t sent;

	if (n_fds > FDS_MAX) {
		errno = EINVAL;
		return -1;
	}
	if (n_fds) {
		struct cmsghdr *cmsg;

		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, n_fds * sizeof(int));
	}
	do {
		sent = sendmsg(socket, &msg, MSG_NOSIGNAL);
	} while (sent < 0 && errno == EINTR);
	return sent == (ssize_t)len ? 0 : -1;
}

ssize_t bunshin_msg_receive(int socket, void *data, size_t room, int *fds, unsigned int *n_fds)
{
	char control[CMSG_SPACE(FDS_MAX * sizeof(int))];
	struct iovec iov = { data, room };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	unsigned int max = *n_fds;
	struct cmsghdr *cmsg;
	ssize_t got;

	*n_fds = 0;
	do {
		got = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
	} while (got < 0 && errno == EINTR);
	if (got < 0)
		return -1;
	for (cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
		unsigned int n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int), i;
		int got_fds[FDS_MAX];

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS || n > FDS_MAX)
			continue;
		memcpy(got_fds, CMSG_DATA(cmsg), n * sizeof(int));
		for (i = 0; i < n; i++) {
			if (*n_fds < max)
				fds[(*n_fds)++] = got_fds[i];
			else
				close(got_fds[i]);
		}
	}
	return got;
}
