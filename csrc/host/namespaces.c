/* SPDX-License-Identifier: Apache-2.0 */
#include "host/namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "host/mounts.h"
#include "host/spawn.h"

int bsh_loopback_up(void)
{
	struct ifreq request = {.ifr_name = "lo"};
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), rc = 0;

	if (fd < 0)
		return -errno;
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	if (ioctl(fd, SIOCSIFFLAGS, &request) < 0)
		rc = -errno;
	close(fd);
	return rc;
}

int bsh_namespace_open(pid_t pid, const char *name, int *ret_fd, struct bsh_error *err)
{
	auto_free char *path = bsh_format("/proc/%d/ns/%s", pid, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return bsh_fail(err, errno == ENOENT ? ESRCH : errno, "open %s", path);
	*ret_fd = fd;
	return 0;
}

/* The next network namespace that this process makes has a table of this many buckets to itself. */
static bool set_next_table(const char *sysctl, const char *buckets)
{
	auto_close int fd = open(sysctl, O_WRONLY | O_CLOEXEC);
	ssize_t length = (ssize_t)strlen(buckets);

	return fd >= 0 && write(fd, buckets, (size_t)length) == length;
}

/*
 * Connections of all network namespaces are in one table by default, as large as the machine's memory, and whoever
 * lists those of one walks all of it. One of its own is asked for in the namespace that it is made from (6.1, 6.4): not
 * the host's, whose settings are not ours. Returns -errno.
 */
static int unshare_network(void)
{
	if (unshare(CLONE_NEWNET) < 0)
		return -errno;
	if (!set_next_table("/proc/sys/net/ipv4/tcp_child_ehash_entries", "8192"))
		return 0;
	set_next_table("/proc/sys/net/ipv4/udp_child_hash_entries", "256");
	return unshare(CLONE_NEWNET) < 0 ? -errno : 0;
}

static void make_in_child(void *context, int report_fd)
{
	const char *what = NULL;
	int rc;

	bsh_close_others(&report_fd, 1);
	if (unshare(CLONE_NEWNS) < 0)
		bsh_report_exit(report_fd, errno, "make a mount namespace");
	rc = unshare_network();
	if (rc < 0)
		bsh_report_exit(report_fd, -rc, "make a network namespace");
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		bsh_report_exit(report_fd, errno, "make mounts private");
	rc = bsh_overlay_mount(context, &what);
	if (rc < 0)
		bsh_report_exit(report_fd, -rc, what);
	rc = bsh_loopback_up();
	if (rc < 0)
		bsh_report_exit(report_fd, -rc, "bring loopback up");
	bsh_report_done(report_fd, 0);
	/* Holds the namespaces until the parent has opened them and kills it. */
	for (;;)
		pause();
}

static int open_both(pid_t pid, int *ret_mntns_fd, int *ret_netns_fd, struct bsh_error *err)
{
	auto_close int mntns = -1;
	int rc = bsh_namespace_open(pid, "mnt", &mntns, err);

	if (rc == 0)
		rc = bsh_namespace_open(pid, "net", ret_netns_fd, err);
	if (rc == 0)
		*ret_mntns_fd = bsh_take_fd(&mntns);
	return rc;
}

int bsh_namespaces_make(const struct bsh_overlay *overlay, int *ret_mntns_fd, int *ret_netns_fd, struct bsh_error *err)
{
	auto_close int pidfd = -1, report = -1;
	struct bsh_overlay copy = *overlay;
	int status, rc;
	pid_t pid;

	rc = bsh_spawn(make_in_child, &copy, 0, &pid, &pidfd, &report, err);
	if (rc < 0)
		return rc;
	rc = bsh_report_read(report, pidfd, NULL, err);
	if (rc == 0)
		rc = open_both(pid, ret_mntns_fd, ret_netns_fd, err);
	bsh_pidfd_kill(pidfd, SIGKILL);
	bsh_wait_pidfd(pidfd, -1, &status);
	return rc;
}
