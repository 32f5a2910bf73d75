/* SPDX-License-Identifier: Apache-2.0 */
#include "start.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "host/spawn.h"

/* Where init's report goes; small, and out of the way of the standard streams that init opens. */
#define REPORT_FD 3
#define INIT_PATH "/.bunshin/init"

struct boot {
	const struct bsh_place *place;
	char **argv;
	char **env;
};

/* The workspace's root becomes ours and the host's mounts go away. */
static void change_root(const char *root, int report_fd)
{
	if (chdir(root) < 0)
		bsh_report_exit(report_fd, errno, "enter the workspace's root");
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		bsh_report_exit(report_fd, errno, "change to the workspace's root");
	if (umount2(".", MNT_DETACH) < 0)
		bsh_report_exit(report_fd, errno, "let go of the host's mounts");
	if (chdir("/") < 0)
		bsh_report_exit(report_fd, errno, "enter the new root");
}

/* In the child, which is process 1 of the new pid namespace. */
static void boot_main(void *context, int report_fd)
{
	const struct boot *boot = context;
	const struct bsh_place *place = boot->place;

	for (unsigned int i = 0; i < place->n_cgroups; i++)
		if (write(place->cgroup_fds[i], "0", 1) != 1)
			bsh_report_exit(report_fd, errno, "enter the workspace's cgroups");
	/* After the cgroups: where we are becomes the root of what is seen inside. */
	if (unshare(CLONE_NEWCGROUP) < 0)
		bsh_report_exit(report_fd, errno, "make a cgroup namespace");
	if (setns(place->netns_fd, CLONE_NEWNET) < 0)
		bsh_report_exit(report_fd, errno, "enter the network namespace");
	if (setns(place->mntns_fd, CLONE_NEWNS) < 0)
		bsh_report_exit(report_fd, errno, "enter the mount namespace");
	change_root(place->root, report_fd);
	if (report_fd != REPORT_FD && dup2(report_fd, REPORT_FD) < 0)
		_exit(126);
	for (int fd = 0; fd < 3; fd++)
		close(fd);
	bsh_close_others(&(int){REPORT_FD}, 1);
	fcntl(REPORT_FD, F_SETFD, 0);
	bsh_signals_reset();
	execve(INIT_PATH, boot->argv, boot->env);
	bsh_report_exit(REPORT_FD, errno, "run " INIT_PATH " (is the runtime layer there?)");
}

static char **init_argv(const struct bsh_workspace *ws, const struct bsh_workspace_spec *spec)
{
	char **argv = bsh_strv_copy(NULL);

	bsh_strv_push(&argv, bsh_strdup("bunshin-init"));
	bsh_strv_push(&argv, bsh_format("%d", REPORT_FD));
	bsh_strv_push(&argv, bsh_strdup(ws->record.hostname));
	bsh_strv_push(&argv, bsh_format("%llu", ws->record.shm_bytes));
	bsh_strv_push(&argv, bsh_format("%u", spec->uid));
	bsh_strv_push(&argv, bsh_format("%u", spec->gid));
	bsh_strv_push(&argv, bsh_strdup(spec->cwd ? spec->cwd : "/"));
	for (size_t i = 0; spec->argv[i]; i++)
		bsh_strv_push(&argv, bsh_strdup(spec->argv[i]));
	return argv;
}

/*
 * init closes its end right after the report; a snapshot taken before would meet a
 * descriptor that leads outside. A process forked elsewhere may hold a copy for long: hence the bound.
 */
static void await_close(int report_fd)
{
	struct pollfd poll_fd = {.fd = report_fd};

	while (poll(&poll_fd, 1, 500) < 0 && errno == EINTR)
		;
}

int bsh_start_init(struct bsh_workspace *ws, const struct bsh_workspace_spec *spec, struct bsh_error *err)
{
	auto_strv char **argv = init_argv(ws, spec);
	auto_close int pidfd = -1, report_fd = -1;
	struct bsh_place place;
	struct boot boot = {.place = &place, .argv = argv, .env = ws->record.env};
	int status, rc;
	pid_t pid;

	bsh_workspace_place(ws, &place);
	rc = bsh_spawn(boot_main, &boot, CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS, &pid, &pidfd, &report_fd, err);
	if (rc < 0)
		return rc;
	rc = bsh_report_read(report_fd, pidfd, NULL, err);
	if (rc == 0)
		await_close(report_fd);
	if (rc == 0)
		rc = bsh_workspace_adopt(ws, pid, err);
	if (rc < 0) {
		bsh_pidfd_kill(pidfd, SIGKILL);
		bsh_wait_pidfd(pidfd, -1, &status);
	}
	return rc;
}
