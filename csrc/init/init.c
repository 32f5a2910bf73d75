/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Process 1 of a workspace: makes the mounts, confines itself, starts the main command,
 * then reaps orphans and forwards signals until it is killed from outside. The main command's end
 * is written to /run/bunshin/main.exit; the workspace lives on.
 *
 *   init REPORT_FD HOSTNAME SHM_BYTES UID GID CWD COMMAND [ARGUMENT...]
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/confine.h"
#include "host/spawn.h"
#include "init/setup.h"

struct options {
	int report_fd;
	const char *hostname;
	const char *shm_bytes;
	unsigned int uid;
	unsigned int gid;
	const char *cwd;
	char **command;
};

static void take_std_streams(int report_fd)
{
	int input = open("/dev/null", O_RDONLY);
	int output = open("/run/bunshin/main.log", O_WRONLY | O_CREAT | O_APPEND | O_TRUNC, 0644);

	if (input < 0 || output < 0)
		bsh_report_exit(report_fd, errno, "open the standard streams in the workspace");
	dup2(input, STDIN_FILENO);
	dup2(output, STDOUT_FILENO);
	dup2(output, STDERR_FILENO);
	if (input > STDERR_FILENO && input != report_fd)
		close(input);
	if (output > STDERR_FILENO && output != report_fd)
		close(output);
}

static void confine(int report_fd)
{
	int rc = bsh_confine_caps();

	if (rc < 0)
		bsh_report_exit(report_fd, -rc, "drop capabilities");
	rc = bsh_confine_syscalls();
	if (rc < 0)
		bsh_report_exit(report_fd, -rc, "load the system call filter");
}

/* In the child: becomes the main command. Its end of the pipe closes at exec. */
static _Noreturn void run_command(const struct options *options, int exec_fd)
{
	int rc;

	bsh_signals_reset();
	setsid();
	rc = bsh_become(options->uid, options->gid);
	if (rc < 0)
		bsh_report_exit(exec_fd, -rc, "become the user of the main command");
	if (chdir(options->cwd) < 0)
		bsh_report_exit(exec_fd, errno, "enter the main command's directory");
	execvp(options->command[0], options->command);
	bsh_report_exit(exec_fd, errno, "run the main command");
}

static pid_t start_command(const struct options *options)
{
	struct bsh_report report;
	int fds[2];
	pid_t pid;
	ssize_t n;

	if (pipe2(fds, O_CLOEXEC) < 0)
		bsh_report_exit(options->report_fd, errno, "make a pipe");
	pid = fork();
	if (pid < 0)
		bsh_report_exit(options->report_fd, errno, "fork");
	if (pid == 0)
		run_command(options, fds[1]);
	close(fds[1]);
	n = read(fds[0], &report, sizeof(report));
	if (n == (ssize_t)sizeof(report)) {
		char what[sizeof(report.what)];

		snprintf(what, sizeof(what), "%.40s %.70s", report.what, options->command[0]);
		bsh_report_exit(options->report_fd, report.code, what);
	}
	close(fds[0]);
	return pid;
}

/* Whole or absent: written under another name first. */
static void record_end(int status)
{
	const char *name = "/run/bunshin/main.exit";
	char text[16], temporary[64];
	int fd, len, code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);

	snprintf(temporary, sizeof(temporary), "%s.new", name);
	len = snprintf(text, sizeof(text), "%d\n", code);
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	if (write(fd, text, (size_t)len) == len)
		rename(temporary, name);
	close(fd);
}

static void reap(pid_t *main_pid)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == *main_pid) {
			record_end(status);
			*main_pid = 0;
		}
	}
}

static _Noreturn void serve(pid_t main_pid, const sigset_t *all)
{
	for (;;) {
		int number = sigwaitinfo(all, NULL);

		if (number == SIGCHLD)
			reap(&main_pid);
		else if (number > 0 && main_pid > 0)
			kill(main_pid, number);
	}
}

int main(int argc, char **argv)
{
	struct options options;
	sigset_t all;
	pid_t main_pid;

	if (argc < 8 || getpid() != 1)
		return 2;
	options = (struct options){
		.report_fd = atoi(argv[1]),
		.hostname = argv[2],
		.shm_bytes = argv[3],
		.uid = (unsigned int)strtoul(argv[4], NULL, 10),
		.gid = (unsigned int)strtoul(argv[5], NULL, 10),
		.cwd = argv[6],
		.command = argv + 7,
	};
	/* What is blocked is collected by serve(); nothing may get lost before. */
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	fcntl(options.report_fd, F_SETFD, FD_CLOEXEC);
	/* Of its own session: a session leader outside the pid namespace could not be carried. */
	setsid();
	umask(022);
	bsh_init_setup(options.report_fd, options.hostname, options.shm_bytes);
	take_std_streams(options.report_fd);
	/* The place for its sockets, also when it is not root. */
	if (chown("/run/bunshin", options.uid, options.gid) < 0)
		bsh_report_exit(options.report_fd, errno, "hand over /run/bunshin");
	confine(options.report_fd);
	main_pid = start_command(&options);
	bsh_report_done(options.report_fd, 0);
	close(options.report_fd);
	serve(main_pid, &all);
}
