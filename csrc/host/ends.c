/* SPDX-License-Identifier: Apache-2.0 */
#include "host/ends.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "host/openfiles.h"
#include "host/procfs.h"
#include "host/unixdiag.h"

struct end {
	unsigned long inode;
	bool is_socket, reads, writes;
	char comm[64];
	pid_t pid, inner_pid;
	int fd;
};

struct bsh_ends {
	pid_t init_pid;
	struct end *list; /* sorted by inode before the checks */
	size_t n, size;
	/* Ends that nothing inside holds: inode, and the end inside that names it. */
	struct missing {
		unsigned long inode;
		const struct end *seen_from;
	} * missing;
	size_t n_missing;
};

struct bsh_ends *bsh_ends_new(pid_t init_pid)
{
	struct bsh_ends *ends = bsh_alloc(sizeof(*ends));

	ends->init_pid = init_pid;
	return ends;
}

void bsh_ends_free(struct bsh_ends *ends)
{
	if (!ends)
		return;
	free(ends->list);
	free(ends->missing);
	free(ends);
}

static void *grow(void *list, size_t n, size_t item_size)
{
	void *grown;

	if (n & (n + 1))
		return list;
	grown = realloc(list, (n + 1) * 2 * item_size);
	if (!grown)
		abort();
	return grown;
}

void bsh_ends_note(struct bsh_ends *ends, const char *comm, pid_t inner_pid, const struct bsh_open_file *file)
{
	unsigned long pipe = bsh_link_inode(file->link, "pipe"), socket = bsh_link_inode(file->link, "socket");
	struct end *end;
	struct stat st;

	/* The link's own mode tells for what the descriptor is open. */
	if ((!pipe && !socket) || fstatat(file->dir_fd, file->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	ends->list = grow(ends->list, ends->n, sizeof(*ends->list));
	end = &ends->list[ends->n++];
	*end = (struct end){
		.inode = pipe ? pipe : socket,
		.is_socket = socket != 0,
		.reads = st.st_mode & S_IRUSR,
		.writes = st.st_mode & S_IWUSR,
		.pid = file->pid,
		.inner_pid = inner_pid,
		.fd = file->fd,
	};
	snprintf(end->comm, sizeof(end->comm), "%s", comm);
}

static int refuse(const struct end *end, int code, const char *what, const char *advice, struct bsh_error *err)
{
	return bsh_fail(err, code, "process %s, pid %d (%d inside) fd %d: %s; %s", end->comm, end->pid, end->inner_pid,
		end->fd, what, advice);
}

static int compare_ends(const void *a, const void *b)
{
	const struct end *x = a, *y = b;

	return x->inode < y->inode ? -1 : x->inode > y->inode;
}

static const struct end *find_end(const struct bsh_ends *ends, unsigned long inode)
{
	struct end key = {.inode = inode};

	return ends->n ? bsearch(&key, ends->list, ends->n, sizeof(key), compare_ends) : NULL;
}

static void add_missing(struct bsh_ends *ends, unsigned long inode, const struct end *seen_from)
{
	ends->missing = grow(ends->missing, ends->n_missing, sizeof(*ends->missing));
	ends->missing[ends->n_missing].inode = inode;
	ends->missing[ends->n_missing++].seen_from = seen_from;
}

/* ---- pipes and Unix sockets ---------------------------------------------------- */

static void find_half_pipes(struct bsh_ends *ends)
{
	for (size_t i = 0, next; i < ends->n; i = next) {
		bool reads = false, writes = false;

		for (next = i; next < ends->n && ends->list[next].inode == ends->list[i].inode; next++) {
			reads |= ends->list[next].reads;
			writes |= ends->list[next].writes;
		}
		if (!ends->list[i].is_socket && !(reads && writes))
			add_missing(ends, ends->list[i].inode, &ends->list[i]);
	}
}

static void note_peer(void *context, unsigned long inode, unsigned long peer)
{
	struct bsh_ends *ends = context;
	const struct end *end = find_end(ends, inode);

	if (end && !find_end(ends, peer))
		add_missing(ends, peer, end);
}

struct outside {
	const struct bsh_ends *ends;
	pid_t member, pid;
};

/* A process that was started after all were listed is no outsider. */
static bool is_inside(const struct outside *outside)
{
	auto_free char *ours = bsh_format("/proc/%d/ns/pid", outside->member);
	auto_free char *theirs = bsh_format("/proc/%d/ns/pid", outside->pid);
	struct stat a, b;

	return stat(ours, &a) == 0 && stat(theirs, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int check_outsider(void *context, const struct bsh_open_file *file, struct bsh_error *err)
{
	const struct outside *outside = context;
	unsigned long inode = bsh_link_inode(file->link, "pipe");
	struct bsh_proc_stat stat = {.comm = "?"};
	char what[192];

	if (!inode)
		inode = bsh_link_inode(file->link, "socket");
	for (size_t i = 0; inode && i < outside->ends->n_missing; i++) {
		if (outside->ends->missing[i].inode != inode || is_inside(outside))
			continue;
		bsh_proc_stat_read(outside->pid, &stat, NULL);
		snprintf(what, sizeof(what), "the other end is outside of the workspace, in process %s, pid %d fd %d",
			stat.comm, outside->pid, file->fd);
		return refuse(outside->ends->missing[i].seen_from, EOPNOTSUPP, what, "close it before the fork", err);
	}
	return 0;
}

static bool is_member(const pid_t *pids, size_t n_pids, pid_t pid)
{
	for (size_t i = 0; i < n_pids; i++)
		if (pids[i] == pid)
			return true;
	return false;
}

static int search_outside(const struct bsh_ends *ends, const pid_t *pids, size_t n_pids, struct bsh_error *err)
{
	auto_closedir DIR *dir = opendir("/proc");
	struct dirent *item;

	if (!dir)
		return bsh_fail(err, errno, "open /proc");
	while ((item = readdir(dir))) {
		struct outside outside = {.ends = ends, .member = pids[0], .pid = atoi(item->d_name)};
		int rc;

		if (outside.pid <= 0 || is_member(pids, n_pids, outside.pid))
			continue;
		rc = bsh_open_files_visit_if_alive(outside.pid, check_outsider, &outside, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* ---- TCP ---------------------------------------------------------------------------- */

enum { TCP_ESTABLISHED_STATE = 1, TCP_SYN_SENT_STATE = 2, TCP_SYN_RECV_STATE = 3, TCP_LISTEN_STATE = 10 };

/* An address as in /proc/net/tcp: words of 32 bits in host order. */
static bool is_loopback(const char *hex)
{
	size_t length = strspn(hex, "0123456789ABCDEF");
	unsigned int word;

	if (length < 8 || sscanf(hex + length - 8, "%8x", &word) != 1)
		return false;
	if (length == 8 || !strncmp(hex, "0000000000000000FFFF0000", 24))
		return (ntohl(word) >> 24) == 127;
	return !strncmp(hex, "000000000000000000000000", 24) && ntohl(word) == 1;
}

static int check_tcp_line(const struct bsh_ends *ends, const char *line, struct bsh_error *err)
{
	unsigned int state, waiting;
	char remote[48], what[128];
	unsigned long inode;
	const struct end *end;

	if (sscanf(line, " %*d: %*s %47s %x %*x:%x %*s %*s %*s %*s %lu", remote, &state, &waiting, &inode) != 4)
		return 0;
	end = find_end(ends, inode);
	if (!end)
		return 0;
	if (state == TCP_LISTEN_STATE && waiting)
		return refuse(end, EBUSY, "a TCP connection waits to be accepted", "try again once it has been", err);
	if (state == TCP_SYN_SENT_STATE || state == TCP_SYN_RECV_STATE)
		return refuse(end, EBUSY, "a TCP connection is being made", "try again once it has been", err);
	if (state == TCP_LISTEN_STATE || is_loopback(remote))
		return 0;
	snprintf(what, sizeof(what), "its TCP connection to %s (hexadecimal) leaves the workspace", remote);
	return refuse(end, EOPNOTSUPP, what, "close it before the fork", err);
}

static int check_tcp(const struct bsh_ends *ends, const char *name, struct bsh_error *err)
{
	auto_free char *text = NULL;
	char *rest, *line;
	int rc = bsh_proc_read(ends->init_pid, name, &text, NULL);

	if (rc < 0)
		return rc == -ENOENT ? 0 : bsh_fail(err, -rc, "read %s of pid %d", name, ends->init_pid);
	rest = text;
	while ((line = strsep(&rest, "\n"))) {
		rc = check_tcp_line(ends, line, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* ---- sockets of another network ------------------------------------------------------ */

/* The inode of the network namespace that a socket of another process belongs to; 0 when it is gone. */
static ino_t socket_namespace(const struct end *end)
{
	auto_close int pidfd = (int)syscall(SYS_pidfd_open, end->pid, 0);
	auto_close int socket = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, end->fd, 0);
	auto_close int netns = socket < 0 ? -1 : ioctl(socket, SIOCGSKNS);
	struct stat st;

	return netns < 0 || fstat(netns, &st) < 0 ? 0 : st.st_ino;
}

static int check_networks(const struct bsh_ends *ends, struct bsh_error *err)
{
	unsigned long last = 0;
	char path[64];
	struct stat own;

	snprintf(path, sizeof(path), "/proc/%d/ns/net", ends->init_pid);
	if (stat(path, &own) < 0)
		return bsh_fail(err, errno, "look at %s", path);
	for (size_t i = 0; i < ends->n; i++) {
		const struct end *end = &ends->list[i];
		ino_t netns;

		if (!end->is_socket || end->inode == last)
			continue;
		last = end->inode;
		netns = socket_namespace(end);
		if (netns && netns != own.st_ino)
			return refuse(end, EOPNOTSUPP,
				"the socket is a connection from outside of the workspace, or of another network",
				"close it before the fork", err);
	}
	return 0;
}

int bsh_ends_check(struct bsh_ends *ends, const pid_t *pids, size_t n_pids, struct bsh_error *err)
{
	int rc;

	if (ends->n)
		qsort(ends->list, ends->n, sizeof(*ends->list), compare_ends);
	find_half_pipes(ends);
	rc = bsh_unix_peers_visit(ends->init_pid, note_peer, ends, err);
	if (rc == 0 && ends->n_missing)
		rc = search_outside(ends, pids, n_pids, err);
	if (rc == 0)
		rc = check_networks(ends, err);
	if (rc == 0)
		rc = check_tcp(ends, "net/tcp", err);
	if (rc == 0)
		rc = check_tcp(ends, "net/tcp6", err);
	return rc;
}
