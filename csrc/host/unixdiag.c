/* SPDX-License-Identifier: Apache-2.0 */
#include "host/unixdiag.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/error.h"

struct opening {
	int netns_fd;
	int socket; /* or -errno */
};

/* A thread of its own, since a socket belongs to the namespace of the thread that makes it. */
static void *open_diag(void *context)
{
	struct opening *opening = context;

	if (setns(opening->netns_fd, CLONE_NEWNET) < 0)
		opening->socket = -errno;
	else
		opening->socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	if (opening->socket == -1)
		opening->socket = -errno;
	return NULL;
}

static int open_diag_in(pid_t pid, struct bsh_error *err)
{
	struct opening opening = {.netns_fd = -1, .socket = -1};
	pthread_t thread;
	char path[64];
	int rc;

	snprintf(path, sizeof(path), "/proc/%d/ns/net", pid);
	opening.netns_fd = open(path, O_RDONLY | O_CLOEXEC);
	if (opening.netns_fd < 0)
		return bsh_fail(err, errno, "open %s", path);
	rc = pthread_create(&thread, NULL, open_diag, &opening);
	if (rc == 0)
		pthread_join(thread, NULL);
	close(opening.netns_fd);
	if (rc)
		return bsh_fail(err, rc, "start a thread");
	if (opening.socket < 0)
		return bsh_fail(err, -opening.socket, "open socket diagnosis in the network of pid %d", pid);
	return opening.socket;
}

static void visit_message(const struct nlmsghdr *message, bsh_unix_peer_visitor visit, void *context)
{
	const struct unix_diag_msg *unix_socket = NLMSG_DATA(message);
	const struct rtattr *attribute = (const struct rtattr *)(unix_socket + 1);
	int left = (int)(message->nlmsg_len - NLMSG_LENGTH(sizeof(*unix_socket)));

	for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
		const __u32 *inodes = RTA_DATA(attribute);

		if (attribute->rta_type != UNIX_DIAG_PEER && attribute->rta_type != UNIX_DIAG_ICONS)
			continue;
		for (size_t i = 0; i < RTA_PAYLOAD(attribute) / sizeof(*inodes); i++)
			if (inodes[i])
				visit(context, unix_socket->udiag_ino, inodes[i]);
	}
}

/* 1: more to come, 0: all seen. */
static int visit_batch(int diag, bsh_unix_peer_visitor visit, void *context, struct bsh_error *err)
{
	static __thread union {
		struct nlmsghdr header;
		char bytes[32768];
	} buffer;
	ssize_t n = recv(diag, &buffer, sizeof(buffer), 0);
	const struct nlmsghdr *message = &buffer.header;
	unsigned int left = (unsigned int)n;

	if (n < 0)
		return errno == EINTR ? 1 : bsh_fail(err, errno, "read socket diagnosis");
	for (; NLMSG_OK(message, left); message = NLMSG_NEXT(message, left)) {
		const struct nlmsgerr *failure = NLMSG_DATA(message);

		if (message->nlmsg_type == NLMSG_DONE)
			return 0;
		if (message->nlmsg_type == NLMSG_ERROR)
			return bsh_fail(err, -failure->error, "socket diagnosis");
		if (message->nlmsg_type == SOCK_DIAG_BY_FAMILY)
			visit_message(message, visit, context);
	}
	return 1;
}

int bsh_unix_peers_visit(pid_t pid, bsh_unix_peer_visitor visit, void *context, struct bsh_error *err)
{
	struct {
		struct nlmsghdr header;
		struct unix_diag_req request;
	} ask = {
		.header =
			{
				.nlmsg_len = sizeof(ask),
				.nlmsg_type = SOCK_DIAG_BY_FAMILY,
				.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
			},
		.request =
			{
				.sdiag_family = AF_UNIX,
				.udiag_states = ~0U,
				.udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS,
			},
	};
	int diag = open_diag_in(pid, err), rc;
	auto_close int owned = diag;

	if (diag < 0)
		return diag;
	(void)owned;
	if (send(diag, &ask, sizeof(ask), 0) < 0)
		return bsh_fail(err, errno, "ask for socket diagnosis");
	do
		rc = visit_batch(diag, visit, context, err);
	while (rc > 0);
	return rc;
}
