/* SPDX-License-Identifier: Apache-2.0 */
/* Holds one thing that cannot be carried, in a process of the workspace's own; prints its pid. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static int hold_backlog(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);

	return bind(listener, (struct sockaddr *)&address, length) || listen(listener, 4) ||
	       getsockname(listener, (struct sockaddr *)&address, &length) ||
	       connect(client, (struct sockaddr *)&address, length);
}

static int listener;

static int hold_listener(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/tmp/listen"};

	listener = socket(AF_UNIX, SOCK_STREAM, 0);
	return bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 4);
}

static int hold_tty(void)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY), slave;

	if (master < 0 || grantpt(master) || unlockpt(master))
		return 1;
	slave = open(ptsname(master), O_RDWR);
	return slave < 0 || open("/dev/tty", O_RDWR) < 0;
}

static int receive_one;

/* Keeps the descriptor that a client sends, and lets the client go. */
static void keep_descriptor(int client)
{
	char control[CMSG_SPACE(sizeof(int))], byte;
	struct iovec io = {&byte, 1};
	struct msghdr message = {
		.msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};

	if (recvmsg(client, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
		_exit(1);
	receive_one = 0;
}

/* Never touched, so that the machine need not have any. */
static int hold_huge_pages(int flags, int fd)
{
	return mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, flags | MAP_HUGETLB | MAP_NORESERVE, fd, 0) == MAP_FAILED;
}

static int make(const char *what)
{
	int fds[2];

	if (!strcmp(what, "huge-private"))
		return hold_huge_pages(MAP_PRIVATE | MAP_ANONYMOUS, -1);
	if (!strcmp(what, "huge-shared"))
		return hold_huge_pages(MAP_SHARED | MAP_ANONYMOUS, -1);
	if (!strcmp(what, "huge-memfd"))
		return hold_huge_pages(MAP_SHARED, memfd_create("huge", MFD_HUGETLB));

	if (!strcmp(what, "packet-pipe"))
		return pipe2(fds, O_DIRECT);
	if (!strcmp(what, "semaphore-eventfd"))
		return eventfd(1, EFD_SEMAPHORE) < 0;
	if (!strcmp(what, "mqueue"))
		return mq_open("/oddity", O_RDWR | O_CREAT, 0600, NULL) < 0;
	if (!strcmp(what, "dev-tty"))
		return hold_tty();
	if (!strcmp(what, "backlog"))
		return hold_backlog();
	receive_one = !strcmp(what, "receive");
	if (receive_one || !strcmp(what, "listen"))
		return hold_listener();
	/* The filter answers as an old kernel would, so that programs fall back. */
	if (!strcmp(what, "io_uring"))
		return syscall(SYS_io_uring_setup, 1, NULL) == 0 || errno != ENOSYS;
	return 1;
}

static void serve(void)
{
	for (;;) {
		int client = listener ? accept(listener, NULL, NULL) : pause();

		if (client >= 0 && receive_one) {
			keep_descriptor(client);
			close(client);
		} else if (client >= 0 && write(client, "x", 1) == 1) {
			char byte;

			while (read(client, &byte, 1) > 0)
				;
			close(client);
		}
	}
}

/* The caller's command returns once the child holds the thing, not before. */
int main(int argc, char **argv)
{
	int ready[2];
	char byte;

	if (argc < 2 || pipe(ready))
		return 1;
	if (fork()) {
		close(ready[1]);
		return read(ready[0], &byte, 1) != 1;
	}
	setsid();
	if (make(argv[1])) {
		perror("oddity");
		return 1;
	}
	printf("%d\n", getpid());
	fflush(stdout);
	for (int fd = 0; fd < 3; fd++) {
		close(fd);
		open("/dev/null", O_RDWR);
	}
	if (write(ready[1], "x", 1) != 1)
		return 1;
	close(ready[0]);
	close(ready[1]);
	serve();
}
