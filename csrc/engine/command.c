/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/command.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "engine/engine.h"
#include "host/spawn.h"

void bsh_command_init(struct bsh_command *command, const char *program, const char *action)
{
	command->argv = NULL;
	command->keep_fd = -1;
	bsh_command_add(command, "%s", program);
	bsh_command_add(command, "%s", action);
}

void bsh_command_release(struct bsh_command *command)
{
	bsh_strv_free(command->argv);
	command->argv = NULL;
}

void bsh_command_add(struct bsh_command *command, const char *fmt, ...)
{
	va_list args;
	char *argument;

	va_start(args, fmt);
	if (vasprintf(&argument, fmt, args) < 0)
		abort();
	va_end(args);
	bsh_strv_push(&command->argv, argument);
}

/* ---- in the child: only system calls ------------------------------------ */

struct launch {
	const struct bsh_command *command;
	const struct bsh_place *place;
};

static void enter_place(const struct bsh_place *place, int report_fd)
{
	for (unsigned int i = 0; i < place->n_cgroups; i++)
		if (write(place->cgroup_fds[i], "0", 1) != 1)
			bsh_report_exit(report_fd, errno, "enter the branch's cgroup");
	/* After the cgroups: the namespace's root is where we are. */
	if (unshare(CLONE_NEWCGROUP) < 0)
		bsh_report_exit(report_fd, errno, "make a cgroup namespace");
	if (setns(place->mntns_fd, CLONE_NEWNS) < 0)
		bsh_report_exit(report_fd, errno, "enter the branch's mount namespace");
}

/* CRIU keeps its own descriptors above all that it carries: a workspace of many needs room, not what our caller has. */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static void launch_main(void *context, int report_fd)
{
	static char *const environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", NULL};
	const struct launch *launch = context;
	int null_fd;

	if (launch->place)
		enter_place(launch->place, report_fd);
	null_fd = open("/dev/null", O_RDWR);
	if (null_fd < 0)
		bsh_report_exit(report_fd, errno, "open /dev/null");
	for (int fd = 0; fd < 3; fd++)
		if (null_fd != fd && dup2(null_fd, fd) < 0)
			bsh_report_exit(report_fd, errno, "set the standard streams");
	if (syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
		bsh_report_exit(report_fd, errno, "mark descriptors");
	if (launch->command->keep_fd >= 0 && fcntl(launch->command->keep_fd, F_SETFD, 0) < 0)
		bsh_report_exit(report_fd, errno, "keep a descriptor");
	raise_descriptor_limit();
	bsh_report_done(report_fd, 0);
	bsh_signals_reset();
	execve(launch->command->argv[0], launch->command->argv, environment);
	_exit(127); /* that it can be run has been probed; the waiting side sees the status */
}

/* ---- in the parent -------------------------------------------------------- */

int bsh_command_start(
	const struct bsh_command *command, const struct bsh_place *place, int *ret_pidfd, struct bsh_error *err)
{
	struct launch launch = {.command = command, .place = place};
	auto_close int report_fd = -1;
	auto_close int pidfd = -1;
	int rc, status;
	pid_t pid;

	rc = bsh_spawn(launch_main, &launch, 0, &pid, &pidfd, &report_fd, err);
	if (rc < 0)
		return rc;
	rc = bsh_report_read(report_fd, pidfd, NULL, err);
	if (rc < 0) {
		bsh_wait_pidfd(pidfd, -1, &status);
		return bsh_context(err, rc, "start %s", command->argv[0]);
	}
	*ret_pidfd = bsh_take_fd(&pidfd);
	return 0;
}

/* "(00.012) Error (criu/x.c:12): text" gives "text". */
static const char *error_text(const char *line)
{
	const char *mark = strstr(line, "Error (");
	const char *text = mark ? strstr(mark, "): ") : NULL;

	/* Without CAP_SYS_RESOURCE it says this each time, and it harms nothing. */
	if (!text || strstr(text, "Can't setup RLIMIT_NOFILE for self"))
		return NULL;
	return text + 3;
}

/* The first errors in the log tell the cause, the last ones only that all failed. */
static void log_errors(const char *log, struct bsh_buffer *errors)
{
	auto_free char *text = NULL;
	char *rest, *line;
	int n = 0;

	if (bsh_read_file(AT_FDCWD, log, &text, NULL, NULL) < 0)
		return;
	rest = text;
	while (n < 3 && (line = strsep(&rest, "\n"))) {
		const char *error = error_text(line);

		if (!error)
			continue;
		bsh_buffer_printf(errors, "%s%s", n++ ? "; " : "", error);
	}
}

int bsh_command_wait(int pidfd, int timeout_ms, const char *what, const char *log, struct bsh_error *err)
{
	auto_buffer struct bsh_buffer errors = {0};
	int status = 0;
	int rc = bsh_wait_pidfd(pidfd, timeout_ms, &status);

	if (rc == -ETIMEDOUT) {
		bsh_pidfd_kill(pidfd, SIGKILL);
		bsh_wait_pidfd(pidfd, -1, &status);
		return bsh_fail(err, ETIMEDOUT, "%s takes longer than %d ms", what, timeout_ms);
	}
	if (rc < 0)
		return bsh_fail(err, -rc, "wait for %s", what);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	log_errors(log, &errors);
	if (WIFSIGNALED(status))
		return bsh_fail(err, EIO, "%s was killed by signal %d%s%s", what, WTERMSIG(status),
			errors.text ? ": " : "", errors.text ? errors.text : "");
	return bsh_fail(err, EIO, "%s: %s", what, errors.text ? errors.text : "no reason in its log");
}
