/* SPDX-License-Identifier: Apache-2.0 */
/* Commands in a running workspace. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/confine.h"
#include "host/spawn.h"
#include "pump.h"
#include "workspace.h"

#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#define OUTPUT_MAX_DEFAULT (64ULL << 20)

/* All that the child needs, made before the fork. */
struct entry {
	const struct bsh_workspace *ws;
	int command_procs_fd;  /* of the command's own cgroup, in the tracker's place */
	int command_report_fd; /* the command's own: its word must not be taken for the one that tells its pid */
	int go_fd;	       /* counts once the command may go */
	int std_fds[3];
	char **programs; /* where to look for it, in turn */
	char *const *argv;
	char *const *env;
	const char *cwd;
	unsigned int uid;
	unsigned int gid;
};

static _Noreturn void run_program(const struct entry *entry, int report_fd)
{
	int code = ENOENT;

	for (char **program = entry->programs; *program; program++) {
		execve(*program, entry->argv, entry->env);
		/* Not here: look on, but tell of the file that is there and may not be run. */
		if (errno != ENOENT && errno != ENOTDIR)
			code = errno;
		if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
			break;
	}
	bsh_report_exit(report_fd, code, "run the command");
}

/* In the grandchild: inside all namespaces, a child of the calling program. */
static _Noreturn void command_main(const struct entry *entry, int report_fd)
{
	uint64_t go;
	int rc;

	prctl(PR_SET_DUMPABLE, 0);
	if (read(entry->go_fd, &go, sizeof(go)) != sizeof(go))
		bsh_report_exit(report_fd, errno, "wait to be let go");
	for (int fd = 0; fd < 3; fd++)
		if (dup2(entry->std_fds[fd], fd) < 0)
			bsh_report_exit(report_fd, errno, "set the standard streams");
	if (syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
		bsh_report_exit(report_fd, errno, "mark descriptors");
	setsid();
	umask(022);
	rc = bsh_confine_caps();
	if (rc == 0)
		rc = bsh_become(entry->uid, entry->gid);
	if (rc < 0)
		bsh_report_exit(report_fd, -rc, "become the user of the command");
	if (chdir(entry->cwd) < 0)
		bsh_report_exit(report_fd, errno, "enter the command's directory");
	bsh_signals_reset();
	rc = bsh_confine_syscalls();
	if (rc < 0)
		bsh_report_exit(report_fd, -rc, "load the system call filter");
	run_program(entry, report_fd);
}

/* In the child: joins the workspace; its own child, born into the pid namespace, is handed to the caller. */
static void join_main(void *context, int report_fd)
{
	const struct entry *entry = context;
	const struct bsh_cgroup *cgroup = &entry->ws->cgroup;
	const int spaces = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP | CLONE_NEWPID;
	const int pidfd = entry->ws->init_pidfd;
	struct clone_args args = {.flags = CLONE_PARENT};
	long pid;

	for (unsigned int i = 0; i < cgroup->n; i++)
		if (write(i ? cgroup->procs_fds[i] : entry->command_procs_fd, "0", 1) != 1)
			bsh_report_exit(report_fd, errno, "enter the workspace's cgroups");
	/* A branch has its own clocks; a kernel without time namespaces refuses the flag. */
	if (setns(pidfd, spaces | CLONE_NEWTIME) < 0 && (errno != EINVAL || setns(pidfd, spaces) < 0))
		bsh_report_exit(report_fd, errno, "enter the workspace's namespaces");
	pid = syscall(SYS_clone3, &args, sizeof(args));
	if (pid < 0)
		bsh_report_exit(report_fd, errno, "fork in the workspace");
	if (pid == 0)
		command_main(entry, entry->command_report_fd);
	bsh_report_done(report_fd, (int)pid);
}

/* ---- in the caller ------------------------------------------------------- */

static const char *find_path(char *const *env)
{
	for (; *env; env++)
		if (strncmp(*env, "PATH=", 5) == 0)
			return *env + 5;
	return DEFAULT_PATH;
}

/* Paths are looked up inside, so only the candidates can be made here. */
static char **list_programs(const char *name, char *const *env)
{
	char **programs = bsh_strv_copy(NULL);

	if (strchr(name, '/')) {
		bsh_strv_push(&programs, bsh_strdup(name));
		return programs;
	}
	for (const char *dir = find_path(env); *dir; dir += *dir == ':') {
		size_t len = strcspn(dir, ":");

		if (len)
			bsh_strv_push(&programs, bsh_format("%.*s/%s", (int)len, dir, name));
		dir += len;
	}
	return programs;
}

static void close_pipes(int pipes[3][2])
{
	for (int i = 0; i < 3; i++)
		for (int end = 0; end < 2; end++) {
			bsh_close_fd(&pipes[i][end]);
			pipes[i][end] = -1;
		}
}

static int make_pipes(int pipes[3][2], struct bsh_error *err)
{
	for (int i = 0; i < 3; i++)
		pipes[i][0] = pipes[i][1] = -1;
	for (int i = 0; i < 3; i++) {
		int *ours = &pipes[i][i == 0 ? 1 : 0];

		if (bsh_make_pipe(pipes[i]) < 0 || fcntl(*ours, F_SETFL, O_NONBLOCK) < 0) {
			int rc = bsh_fail(err, errno, "make a pipe");

			close_pipes(pipes);
			return rc;
		}
	}
	return 0;
}

struct running {
	struct bsh_cgroup cgroup; /* the command's own */
	int pidfd;
	int report_fd; /* of the command */
};

/* One that cannot be followed must not stay as a zombie: the workspace's end would wait for it. */
static void end_command(const struct running *running, pid_t pid)
{
	siginfo_t info;

	bsh_cgroup_kill(&running->cgroup, NULL, NULL);
	while (waitid(P_PID, (id_t)pid, &info, WEXITED | __WALL) < 0 && errno == EINTR)
		;
}

/*
 * Where a program ignores SIGCHLD, or others reap its children, a command that has ended is gone: it starts no sooner
 * than it can be followed.
 */
static int follow_command(const struct entry *entry, struct running *running, pid_t pid, struct bsh_error *err)
{
	const uint64_t go = 1;
	int rc = bsh_pidfd_open(pid, &running->pidfd, err);

	if (rc == 0 && write(entry->go_fd, &go, sizeof(go)) != sizeof(go))
		rc = bsh_fail(err, errno, "let the command go");
	if (rc < 0)
		end_command(running, pid);
	return rc;
}

static int join(struct entry *entry, struct running *running, struct bsh_error *err)
{
	auto_close int pidfd = -1, report_fd = -1, go_fd = eventfd(0, EFD_CLOEXEC);
	int status, command_pid, report[2], rc = go_fd < 0 ? -errno : bsh_make_pipe(report);
	pid_t pid;

	if (rc < 0)
		return bsh_fail(err, -rc, "make what a command is started by");
	entry->go_fd = go_fd;
	running->report_fd = report[0];
	entry->command_report_fd = report[1];
	rc = bsh_spawn(join_main, entry, 0, &pid, &pidfd, &report_fd, err);
	close(report[1]);
	if (rc < 0)
		return rc;
	rc = bsh_report_read(report_fd, pidfd, &command_pid, err);
	if (rc == 0)
		rc = follow_command(entry, running, command_pid, err);
	bsh_wait_pidfd(pidfd, -1, &status);
	return rc;
}

/* Starts the command; the caller holds the lock. */
static int launch_locked(struct bsh_workspace *ws, const struct bsh_exec_request *req, int pipes[3][2],
	struct running *running, struct bsh_error *err)
{
	static char *const default_env[] = {"PATH=" DEFAULT_PATH, NULL};
	char *const *env = req->env ? (char *const *)req->env : ws->record.env;
	auto_strv char **programs = NULL;
	auto_free char *name = NULL;
	struct entry entry = {
		.ws = ws,
		.std_fds = {pipes[0][0], pipes[1][1], pipes[2][1]},
		.argv = (char *const *)req->argv,
		.env = env && env[0] ? env : default_env,
		.cwd = req->cwd ? req->cwd : "/",
		.uid = req->uid,
		.gid = req->gid,
	};
	int rc = bsh_workspace_check_alive(ws, err);

	if (rc == 0 && ws->frozen)
		rc = bsh_fail(err, EBUSY, "workspace %s is frozen: thaw it first", ws->record.id);
	if (rc < 0)
		return rc;
	name = bsh_format("exec-%u", ws->exec_serial++);
	rc = bsh_cgroup_child_make(&ws->cgroup, name, &running->cgroup, err);
	if (rc < 0)
		return rc;
	entry.programs = programs = list_programs(req->argv[0], entry.env);
	entry.command_procs_fd = running->cgroup.procs_fds[0];
	rc = join(&entry, running, err);
	if (rc == 0)
		ws->running_execs++;
	else
		bsh_cgroup_remove_dir(&running->cgroup);
	return rc;
}

/* Its cgroup goes when it is empty; with what the command left running it stays until the workspace's end. */
static void leave_locked(struct bsh_workspace *ws, struct running *running)
{
	ws->running_execs--;
	bsh_cgroup_remove_dir(&running->cgroup);
}

static int exit_code_of(int status)
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int collect(struct running *running, const struct bsh_exec_request *req, struct bsh_exec_result *result,
	struct bsh_error *err)
{
	int status, rc = bsh_wait_pidfd(running->pidfd, -1, &status);

	if (rc < 0)
		return bsh_fail(
			err, -rc, "learn the exit status (does this program reap children that are not its own?)");
	/* A word from it means that exec failed; silence, that the command ran. */
	rc = bsh_report_peek(running->report_fd, err);
	if (rc < 0)
		return bsh_context(err, rc, "%s", req->argv[0]);
	result->exit_code = exit_code_of(status);
	return 0;
}

static int follow(struct running *running, const struct bsh_exec_request *req, int pipes[3][2],
	struct bsh_exec_result *result, struct bsh_error *err)
{
	struct bsh_pump pump = {
		.pidfd = running->pidfd,
		.fds = {bsh_take_fd(&pipes[0][1]), bsh_take_fd(&pipes[1][0]), bsh_take_fd(&pipes[2][0])},
		.input = req->input,
		.input_len = req->input_len,
		.output_max = req->output_max_bytes ? req->output_max_bytes : OUTPUT_MAX_DEFAULT,
	};
	int rc = bsh_pump_run(&pump, req->timeout_ms, err);

	if (rc == -ETIMEDOUT) {
		result->timed_out = 1;
		rc = bsh_cgroup_kill(&running->cgroup, NULL, err);
		bsh_pump_drain(&pump);
	} else if (rc < 0) {
		bsh_cgroup_kill(&running->cgroup, NULL, NULL);
	}
	bsh_pump_close(&pump);
	result->truncated = pump.truncated;
	result->out_len = pump.outputs[0].len;
	result->out = (unsigned char *)bsh_take(pump.outputs[0].text);
	result->errout_len = pump.outputs[1].len;
	result->errout = (unsigned char *)bsh_take(pump.outputs[1].text);
	return rc;
}

int bsh_workspace_exec(struct bsh_workspace *ws, const struct bsh_exec_request *req, struct bsh_exec_result *ret_result,
	struct bsh_error *err)
{
	struct running running = {.pidfd = -1, .report_fd = -1};
	struct bsh_exec_result result = {0};
	int pipes[3][2], rc, collected;

	if (!req->argv || !req->argv[0])
		return bsh_fail(err, EINVAL, "exec in %s: no command", ws->record.id);
	rc = make_pipes(pipes, err);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&ws->lock);
	rc = launch_locked(ws, req, pipes, &running, err);
	pthread_mutex_unlock(&ws->lock);
	if (rc == 0) {
		/* Ours of the child's ends must go, or the end of its output would never be seen. */
		for (int i = 0; i < 3; i++) {
			bsh_close_fd(&pipes[i][i == 0 ? 0 : 1]);
			pipes[i][i == 0 ? 0 : 1] = -1;
		}
		rc = follow(&running, req, pipes, &result, err);
		collected = collect(&running, req, &result, rc == 0 ? err : NULL);
		rc = rc < 0 ? rc : collected;
		pthread_mutex_lock(&ws->lock);
		leave_locked(ws, &running);
		pthread_mutex_unlock(&ws->lock);
	}
	close_pipes(pipes);
	bsh_close_fd(&running.pidfd);
	bsh_close_fd(&running.report_fd);
	bsh_cgroup_release(&running.cgroup);
	if (rc < 0) {
		bsh_exec_result_release(&result);
		return bsh_context(err, rc, "exec in %s", ws->record.id);
	}
	*ret_result = result;
	return 0;
}

void bsh_exec_result_release(struct bsh_exec_result *result)
{
	if (!result)
		return;
	free(result->out);
	free(result->errout);
	*result = (struct bsh_exec_result){0};
}
