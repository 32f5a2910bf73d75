/* SPDX-License-Identifier: Apache-2.0 */
#include "host/carry.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/ends.h"
#include "host/hugepages.h"
#include "host/openfiles.h"
#include "host/procfs.h"

#define MQUEUE_MAGIC 0x19800202
#define MAJOR_MEM 1
#define MAJOR_TTY 5
#define MAJOR_PTS_FIRST 136
#define MAJOR_PTS_LAST 143

static const char *const namespaces[] = {"pid", "pid_for_children", "user", "mnt", "net", "ipc", "uts", "time"};
#define N_NAMESPACES (sizeof(namespaces) / sizeof(*namespaces))

struct check {
	pid_t init_pid;
	const pid_t *pids;
	size_t n_pids;
	unsigned int depth; /* of init's pid namespace */
	char init_ns[N_NAMESPACES][64];
	int *mounts; /* ids of the workspace's mounts */
	size_t n_mounts;
	struct bsh_ends *ends;		     /* pipes and sockets met */
	const struct bsh_proc_stat *process; /* the one being looked at */
	const struct bsh_proc_status *status;
};

static int refuse(
	const struct check *check, int code, int fd, const char *what, const char *advice, struct bsh_error *err)
{
	char where[24] = "";

	if (fd >= 0)
		snprintf(where, sizeof(where), " fd %d", fd);
	return bsh_fail(err, code, "process %s, pid %d (%d inside)%s: %s; %s", check->process->comm,
		check->process->pid, check->status->inner_pid, where, what, advice);
}

/* ---- namespaces, tracing, parents ------------------------------------------ */

static int read_namespace(pid_t pid, const char *name, char link[64])
{
	char path[64];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, name);
	length = readlink(path, link, 63);
	link[length > 0 ? length : 0] = 0;
	return length < 0 ? -errno : 0;
}

static int check_namespaces(const struct check *check, struct bsh_error *err)
{
	char link[64], what[128];

	for (size_t i = 0; i < N_NAMESPACES; i++) {
		/* pid_for_children is empty until its first process; a process may also end meanwhile. */
		if (!check->init_ns[i][0] || read_namespace(check->process->pid, namespaces[i], link) < 0)
			continue;
		if (!strcmp(link, check->init_ns[i]))
			continue;
		snprintf(what, sizeof(what), "it is in a %s namespace of its own", namespaces[i]);
		return refuse(check, EOPNOTSUPP, -1, what, "run it without its sandbox (Chromium: --no-sandbox)", err);
	}
	return 0;
}

static bool is_member(const struct check *check, pid_t pid)
{
	for (size_t i = 0; i < check->n_pids; i++)
		if (check->pids[i] == pid)
			return true;
	return false;
}

/* The number of the innermost namespace in a line such as "NSsid:\t12\t1". */
static int innermost(const char *status, const char *key)
{
	const char *line = strstr(status, key), *end, *last;

	if (!line)
		return -1;
	end = strchrnul(line + 1, '\n');
	for (last = end; last > line && last[-1] != '\t' && last[-1] != ':'; last--)
		;
	return atoi(last);
}

static int check_family(const struct check *check, const char *status_text, struct bsh_error *err)
{
	char what[128];

	if (check->status->tracer) {
		snprintf(what, sizeof(what), "it is being traced by pid %d", check->status->tracer);
		return refuse(check, EOPNOTSUPP, -1, what, "end the debugger or strace first", err);
	}
	if (check->status->n_namespaces != check->depth)
		return refuse(check, EOPNOTSUPP, -1, "it is in a pid namespace of its own",
			"run it without its sandbox (Chromium: --no-sandbox)", err);
	if (check->process->pid == check->init_pid)
		return 0;
	if (!is_member(check, check->process->parent))
		return refuse(check, EBUSY, -1, "it was started from outside and has not ended",
			"wait until the command has returned", err);
	if (innermost(status_text, "\nNSsid:") == 0 || innermost(status_text, "\nNSpgid:") == 0)
		return refuse(check, EOPNOTSUPP, -1, "its session or process group is outside of the workspace",
			"start it with setsid", err);
	return 0;
}

/* ---- descriptors ------------------------------------------------------------- */

/* A number of /proc/PID/fdinfo/FD, such as "mnt_id:\t31"; -1 when the descriptor is gone. */
static long descriptor_info(const struct bsh_open_file *file, const char *key, int base)
{
	auto_free char *text = NULL;
	const char *line;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", file->pid, file->fd);
	if (bsh_read_file(AT_FDCWD, path, &text, NULL, NULL) < 0)
		return -1;
	line = strstr(text, key);
	return line ? strtol(line + strlen(key), NULL, base) : -1;
}

static const char *const carried_anonymous[] = {
	"[eventfd]",
	"[eventpoll]",
	"[signalfd]",
	"[timerfd]",
	"inotify",
	"[fanotify]",
	"[pidfd]",
};

static int check_anonymous(const struct check *check, const struct bsh_open_file *file, struct bsh_error *err)
{
	const char *kind = file->link + strlen("anon_inode:");
	char what[160];

	if (!strcmp(kind, "[eventfd]") && descriptor_info(file, "eventfd-semaphore:", 10) == 1)
		return refuse(check, EOPNOTSUPP, file->fd, "an eventfd in semaphore mode cannot be carried",
			"use a pipe or a POSIX semaphore, or close it before the fork", err);
	for (size_t i = 0; i < sizeof(carried_anonymous) / sizeof(*carried_anonymous); i++)
		if (!strcmp(kind, carried_anonymous[i]))
			return 0;
	if (!strcmp(kind, "[io_uring]"))
		return refuse(check, EOPNOTSUPP, file->fd, "io_uring cannot be carried",
			"keep the system call filter on, or make the program use epoll", err);
	snprintf(what, sizeof(what), "%.100s cannot be carried", kind);
	return refuse(check, EOPNOTSUPP, file->fd, what, "close it before the fork", err);
}

static int check_pipe(const struct check *check, const struct bsh_open_file *file, struct bsh_error *err)
{
	long flags = descriptor_info(file, "flags:", 8);

	if (flags >= 0 && flags & O_DIRECT)
		return refuse(check, EOPNOTSUPP, file->fd, "pipes in packet mode cannot be carried",
			"use a SOCK_SEQPACKET socket pair, or close it before the fork", err);
	return 0;
}

static int check_device(
	const struct check *check, const struct bsh_open_file *file, dev_t device, struct bsh_error *err)
{
	unsigned int number = major(device);
	char what[160];

	if (device == makedev(MAJOR_TTY, 0))
		return refuse(check, EOPNOTSUPP, file->fd, "/dev/tty cannot be carried",
			"open the terminal by its own name (/dev/pts/N), or end the program", err);

	if (number == MAJOR_MEM || number == MAJOR_TTY || (number >= MAJOR_PTS_FIRST && number <= MAJOR_PTS_LAST))
		return 0;
	snprintf(what, sizeof(what), "the device %.100s cannot be carried", file->link);
	return refuse(check, EOPNOTSUPP, file->fd, what, "close it before the fork", err);
}

static int check_path(const struct check *check, const struct bsh_open_file *file, struct bsh_error *err)
{
	int mount = (int)descriptor_info(file, "mnt_id:", 10);
	char what[320];
	struct statfs fs;
	struct stat st;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", file->pid, file->fd);
	if (mount < 0 || fstatat(file->dir_fd, file->name, &st, 0) < 0 || statfs(path, &fs) < 0)
		return 0;
	if (S_ISCHR(st.st_mode) || S_ISBLK(st.st_mode)) {
		int rc = check_device(check, file, st.st_rdev, err);

		if (rc < 0)
			return rc;
	}
	if (fs.f_type == MQUEUE_MAGIC)
		return refuse(check, EOPNOTSUPP, file->fd, "POSIX message queues cannot be carried",
			"close it before the fork", err);
	/* Memory files and shared anonymous memory are on mounts of the kernel's own. */
	if (!strncmp(file->link, "/memfd:", 7) || !strncmp(file->link, "/dev/zero", 9) ||
		!strncmp(file->link, "/SYSV", 5) || !strncmp(file->link, "/anon_hugepage", 14))
		return 0;
	for (size_t i = 0; i < check->n_mounts; i++)
		if (check->mounts[i] == mount)
			return 0;
	snprintf(what, sizeof(what), "%.240s is on a mount outside of the workspace", file->link);
	return refuse(check, EOPNOTSUPP, file->fd, what, "close it, or copy the file into the workspace", err);
}

static int check_descriptor(void *context, const struct bsh_open_file *file, struct bsh_error *err)
{
	const struct check *check = context;

	if (!strncmp(file->link, "anon_inode:", 11))
		return check_anonymous(check, file, err);
	if (file->link[0] == '/')
		return check_path(check, file, err);
	if (bsh_link_inode(file->link, "pipe")) {
		int rc = check_pipe(check, file, err);

		if (rc < 0)
			return rc;
	}
	bsh_ends_note(check->ends, check->process->comm, check->status->inner_pid, file);
	return 0;
}

/* ---- mappings ------------------------------------------------------------------ */

/* An engine learns what they are from one of its own, and branches need as many again. */
static int check_mappings(const struct check *check, struct bsh_error *err)
{
	struct bsh_huge_mapping huge;
	char what[160];
	int rc = bsh_huge_mapping_find_if_alive(check->process->pid, &huge, err);

	if (rc <= 0 || bsh_huge_page_is_free(huge.page_bytes))
		return rc < 0 ? rc : 0;
	snprintf(what, sizeof(what),
		"its mapping %" PRIx64 "-%" PRIx64 " is of huge pages of %" PRIu64 " kB, of which none is free",
		huge.start, huge.end, huge.page_bytes >> 10);
	return refuse(check, ENOSPC, -1, what,
		"raise sysctl vm.nr_hugepages, or run the program without them (PostgreSQL: huge_pages = off)", err);
}

/* ---- all ------------------------------------------------------------------------ */

static int check_process(struct check *check, pid_t pid, struct bsh_error *err)
{
	auto_free char *text = NULL;
	struct bsh_proc_stat stat;
	struct bsh_proc_status status;
	int rc;

	rc = bsh_proc_stat_read(pid, &stat, NULL);
	if (rc == 0)
		rc = bsh_proc_read(pid, "status", &text, NULL);
	if (rc == 0 && bsh_proc_status_parse(text, &status) < 0)
		rc = -ESRCH;
	if (rc < 0 || stat.state == 'Z' || stat.state == 'X')
		return 0; /* ended meanwhile */
	check->process = &stat;
	check->status = &status;
	rc = check_namespaces(check, err);
	if (rc == 0)
		rc = check_family(check, text, err);
	if (rc == 0)
		rc = check_mappings(check, err);
	if (rc == 0)
		rc = bsh_open_files_visit_if_alive(pid, check_descriptor, check, err);
	return rc;
}

static int read_mounts(struct check *check, struct bsh_error *err)
{
	auto_free char *text = NULL;
	int rc = bsh_proc_read(check->init_pid, "mountinfo", &text, err);
	char *rest = text, *line;
	size_t lines = 1;

	if (rc < 0)
		return rc;
	for (const char *at = text; (at = strchr(at, '\n')); at++)
		lines++;
	check->mounts = bsh_alloc(lines * sizeof(*check->mounts));
	while ((line = strsep(&rest, "\n")))
		if (*line)
			check->mounts[check->n_mounts++] = atoi(line);
	return 0;
}

/* A message queue stays when no process has it open. */
static int check_queues(const struct check *check, struct bsh_error *err)
{
	auto_free char *path = bsh_format("/proc/%d/root/dev/mqueue", check->init_pid);
	auto_strv char **queues = NULL;
	struct statfs fs;
	int rc;

	if (statfs(path, &fs) < 0 || fs.f_type != MQUEUE_MAGIC)
		return 0;
	rc = bsh_list_dir(AT_FDCWD, path, &queues, err);
	if (rc < 0 || !queues[0])
		return rc;
	return bsh_fail(err, EOPNOTSUPP,
		"POSIX message queue /%s cannot be carried; remove it before the fork (rm /dev/mqueue/%s)", queues[0],
		queues[0]);
}

static int check_all(struct check *check, struct bsh_error *err)
{
	struct bsh_proc_status status;
	int rc;

	rc = bsh_proc_status_read(check->init_pid, &status, err);
	if (rc == 0)
		rc = read_mounts(check, err);
	if (rc < 0)
		return rc;
	check->depth = status.n_namespaces;
	for (size_t i = 0; i < N_NAMESPACES; i++)
		read_namespace(check->init_pid, namespaces[i], check->init_ns[i]);
	for (size_t i = 0; i < check->n_pids; i++) {
		rc = check_process(check, check->pids[i], err);
		if (rc < 0)
			return rc;
	}
	rc = check_queues(check, err);
	return rc < 0 ? rc : bsh_ends_check(check->ends, check->pids, check->n_pids, err);
}

int bsh_carry_check(pid_t init_pid, const pid_t *pids, size_t n_pids, struct bsh_error *err)
{
	struct check check = {.init_pid = init_pid, .pids = pids, .n_pids = n_pids};
	int rc;

	check.ends = bsh_ends_new(init_pid);
	rc = check_all(&check, err);
	bsh_ends_free(check.ends);
	free(check.mounts);
	return rc;
}
