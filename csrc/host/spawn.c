/* SPDX-License-Identifier: Apache-2.0 */
#include "host/spawn.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"

/* Shorter than PIPE_BUF: written whole or not at all. */
static bool write_report(int fd, const struct bsh_report *report)
{
	return write(fd, report, sizeof(*report)) == (ssize_t)sizeof(*report);
}

void bsh_report_done(int fd, int value)
{
	struct bsh_report report = {.value = value};

	/* Nobody listens any more: nobody wants what this child was for. */
	if (!write_report(fd, &report))
		_exit(126);
}

void bsh_report_exit(int fd, int code, const char *what)
{
	struct bsh_report report = {.code = code};

	strncpy(report.what, what, sizeof(report.what) - 1);
	_exit(write_report(fd, &report) ? 127 : 126);
}

/* Waits until the report is there or the child ended, which it may do without one. */
static int wait_report(int fd, int pidfd)
{
	struct pollfd fds[] = {{.fd = fd, .events = POLLIN}, {.fd = pidfd, .events = POLLIN}};
	int queued = 0;

	while (poll(fds, 2, -1) < 0)
		if (errno != EINTR)
			return -errno;
	if (ioctl(fd, FIONREAD, &queued) < 0)
		return -errno;
	return queued;
}

static int take_report(int fd, int *ret_value, struct bsh_error *err)
{
	struct bsh_report report;
	ssize_t n = bsh_read_all(fd, &report, sizeof(report));

	if (n != (ssize_t)sizeof(report))
		return bsh_fail(err, n < 0 ? (int)-n : EPROTO, "read a child's report");
	report.what[sizeof(report.what) - 1] = '\0';
	if (report.code)
		return bsh_fail(err, report.code > 0 ? report.code : EPROTO, "%s", report.what);
	if (ret_value)
		*ret_value = report.value;
	return 0;
}

int bsh_report_read(int fd, int pidfd, int *ret_value, struct bsh_error *err)
{
	int queued = wait_report(fd, pidfd);

	if (queued < 0)
		return bsh_fail(err, -queued, "wait for a child's report");
	if (queued == 0)
		return bsh_fail(err, EPROTO, "a child process ended without a report");
	return take_report(fd, ret_value, err);
}

int bsh_report_peek(int fd, struct bsh_error *err)
{
	int queued = 0;

	if (ioctl(fd, FIONREAD, &queued) < 0)
		return bsh_fail(err, errno, "look for a child's report");
	return queued ? take_report(fd, NULL, err) : 0;
}

static _Noreturn void run_child(bsh_child_main main, void *context, int report_fd, pid_t parent)
{
	/*
	 * The child holds a copy of this program's memory and descriptors. Not dumpable, so
	 * that no process of a workspace that it joins can look into it; exec ends this.
	 */
	prctl(PR_SET_DUMPABLE, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* 0: process 1 of a new pid namespace, whose parent is outside. */
	if (getppid() != parent && getppid() != 0)
		_exit(126);
	main(context, report_fd);
	_exit(0);
}

int bsh_spawn(bsh_child_main main, void *context, unsigned long long flags, pid_t *ret_pid, int *ret_pidfd,
	int *ret_report_fd, struct bsh_error *err)
{
	int pidfd = -1, pipe_fds[2];
	pid_t parent = getpid();
	sigset_t all, before;
	/*
	 * Until exec the child sends no signal at its end and is no child for plain
	 * wait(), so that the program's own handlers of SIGCHLD never see it.
	 */
	struct clone_args args = {
		.flags = flags | CLONE_PIDFD,
		.pidfd = (uint64_t)(uintptr_t)&pidfd,
	};
	long pid;
	int code;

	code = -bsh_make_pipe(pipe_fds);
	if (code)
		return bsh_fail(err, code, "make a pipe");
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = syscall(SYS_clone3, &args, sizeof(args));
	code = errno;
	if (pid == 0)
		run_child(main, context, pipe_fds[1], parent);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	close(pipe_fds[1]);
	if (pid < 0) {
		close(pipe_fds[0]);
		return bsh_fail(err, code, "start a child process");
	}
	*ret_pid = (pid_t)pid;
	*ret_pidfd = pidfd;
	*ret_report_fd = pipe_fds[0];
	return 0;
}

void bsh_signals_reset(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t none;

	prctl(PR_SET_PDEATHSIG, 0);
	for (int signal = 1; signal < NSIG; signal++)
		sigaction(signal, &action, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

void bsh_close_others(const int *keep, size_t n)
{
	unsigned int from = 3;

	for (;;) {
		unsigned int next = ~0U;

		for (size_t i = 0; i < n; i++)
			if (keep[i] >= 0 && (unsigned int)keep[i] >= from && (unsigned int)keep[i] < next)
				next = (unsigned int)keep[i];
		if (next > from)
			syscall(SYS_close_range, from, next == ~0U ? next : next - 1, 0U);
		if (next == ~0U)
			return;
		from = next + 1;
	}
}

/* PIDFD_GET_INFO in its own words: older headers lack it. */
struct pidfd_info_reply {
	uint64_t mask;
	uint64_t cgroup_id;
	uint32_t ids[11];
	int32_t exit_code;
};
#define PIDFD_INFO_IOCTL _IOWR(0xFF, 11, struct pidfd_info_reply)
#define PIDFD_INFO_WITH_EXIT (1 << 3)

static int status_from_pidfd(int pidfd, int *ret_status)
{
	struct pidfd_info_reply reply = {.mask = PIDFD_INFO_WITH_EXIT};
	struct pollfd poll_fd = {.fd = pidfd};

	/* The end is told a moment before the reaping, which leaves the status behind: POLLHUP. */
	while (poll(&poll_fd, 1, 1000) < 0 && errno == EINTR)
		;
	if (ioctl(pidfd, PIDFD_INFO_IOCTL, &reply) < 0 || !(reply.mask & PIDFD_INFO_WITH_EXIT))
		return -ECHILD;
	*ret_status = reply.exit_code;
	return 0;
}

int bsh_wait_pidfd(int pidfd, int timeout_ms, int *ret_status)
{
	long long deadline = bsh_now_ns() + timeout_ms * 1000000LL;
	struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};
	siginfo_t info = {0};

	for (;;) {
		long long left = (deadline - bsh_now_ns() + 999999) / 1000000;
		int n = poll(&poll_fd, 1, timeout_ms < 0 ? -1 : left > 0 ? (int)left : 0);

		if (n > 0)
			break;
		if (n == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
	if (waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED | __WALL) < 0)
		return errno == ECHILD ? status_from_pidfd(pidfd, ret_status) : -errno;
	*ret_status = info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f;
	return 0;
}

int bsh_pidfd_open(pid_t pid, int *ret_fd, struct bsh_error *err)
{
	long fd = syscall(SYS_pidfd_open, pid, 0);

	if (fd < 0)
		return bsh_fail(err, errno, "open pid %d", pid);
	*ret_fd = (int)fd;
	return 0;
}

int bsh_pidfd_kill(int pidfd, int signal)
{
	return syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0) < 0 ? -errno : 0;
}

int bsh_pidfd_pid(int pidfd, pid_t *ret_pid, struct bsh_error *err)
{
	auto_free char *path = bsh_format("/proc/self/fdinfo/%d", pidfd);
	auto_free char *text = NULL;
	const char *line;
	int pid = -1;
	int rc = bsh_read_file(AT_FDCWD, path, &text, NULL, err);

	if (rc < 0)
		return rc;
	line = strstr(text, "\nPid:");
	if (!line || sscanf(line + 5, "%d", &pid) != 1)
		return bsh_fail(err, EINVAL, "%s is no pidfd's", path);
	if (pid <= 0)
		return bsh_fail(err, ESRCH, "the process of descriptor %d", pidfd);
	*ret_pid = pid;
	return 0;
}
