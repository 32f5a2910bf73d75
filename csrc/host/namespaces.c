/* SPDX-License-Identifier: Apache-2.0 */
#include "host/namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/rtnetlink.h>
#include <pthread.h>
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

static int loopback_up(void)
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

/*
 * Chromium asks for a way to this address, and sends nothing there, to learn whether there is an IPv6 internet
 * (net/dns/host_resolver_manager.cc). A route that says there is none keeps that from counting as an attempt to leave:
 * only what has no route at all does.
 */
static const unsigned char browser_probe[16] = {0x20, 0x01, 0x48, 0x60, 0x48, 0x60, [14] = 0x88, [15] = 0x88};

static int refuse_browser_probe(void)
{
	struct {
		struct nlmsghdr header;
		struct rtmsg route;
		struct rtattr destination;
		unsigned char address[sizeof(browser_probe)];
	} request = {
		.header = {.nlmsg_len = sizeof(request),
			.nlmsg_type = RTM_NEWROUTE,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ACK},
		.route = {.rtm_family = AF_INET6,
			.rtm_dst_len = 8 * sizeof(browser_probe),
			.rtm_table = RT_TABLE_MAIN,
			.rtm_protocol = RTPROT_STATIC,
			.rtm_type = RTN_UNREACHABLE},
		.destination = {.rta_len = RTA_LENGTH(sizeof(browser_probe)), .rta_type = RTA_DST},
	};
	struct {
		struct nlmsghdr header;
		struct nlmsgerr result;
	} answer = {};
	auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd < 0)
		return -errno;
	memcpy(request.address, browser_probe, sizeof(browser_probe));
	if (send(fd, &request, sizeof(request), 0) < 0 || recv(fd, &answer, sizeof(answer), 0) < 0)
		return -errno;
	/* A kernel without IPv6, or one where it is off, has no such routes and no such probes. */
	return answer.result.error == -EOPNOTSUPP || answer.result.error == -EAFNOSUPPORT ? 0 : answer.result.error;
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

/* The place in the making: by a thread, so that nothing of this program's memory needs to be copied for it. */
struct making {
	const struct bsh_overlay *overlay;
	const char *what; /* is being done, or failed */
	int rc;
	int mntns_fd, netns_fd;
};

static int open_own(const char *path, int *ret_fd)
{
	*ret_fd = open(path, O_RDONLY | O_CLOEXEC);
	return *ret_fd < 0 ? -errno : 0;
}

static int make_steps(struct making *m)
{
	int rc;

	m->what = "make a mount namespace";
	if (unshare(CLONE_NEWNS) < 0)
		return -errno;
	m->what = "make a network namespace";
	rc = unshare_network();
	if (rc < 0)
		return rc;
	m->what = "make mounts private";
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return -errno;
	rc = bsh_overlay_mount(m->overlay, &m->what);
	if (rc < 0)
		return rc;
	m->what = "bring loopback up";
	rc = loopback_up();
	if (rc < 0)
		return rc;
	m->what = "route the browser's probe";
	rc = refuse_browser_probe();
	if (rc < 0)
		return rc;
	m->what = "open the new namespaces";
	rc = open_own("/proc/thread-self/ns/mnt", &m->mntns_fd);
	return rc < 0 ? rc : open_own("/proc/thread-self/ns/net", &m->netns_fd);
}

static void *make_thread(void *context)
{
	struct making *m = context;

	m->rc = make_steps(m);
	return NULL;
}

/* The caller's signals are not for the thread that is elsewhere. */
static int run_thread(struct making *m)
{
	sigset_t all, before;
	pthread_t thread;
	int code;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	code = pthread_create(&thread, NULL, make_thread, m);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return code ? -code : -pthread_join(thread, NULL);
}

int bsh_namespaces_make(const struct bsh_overlay *overlay, int *ret_mntns_fd, int *ret_netns_fd, struct bsh_error *err)
{
	struct making m = {.overlay = overlay, .mntns_fd = -1, .netns_fd = -1};
	auto_close int mntns = -1;
	int rc = run_thread(&m);

	if (rc < 0)
		return bsh_fail(err, -rc, "start a thread");
	mntns = m.mntns_fd;
	if (m.rc < 0)
		return bsh_fail(err, -m.rc, "%s", m.what);
	*ret_mntns_fd = bsh_take_fd(&mntns);
	*ret_netns_fd = m.netns_fd;
	return 0;
}
