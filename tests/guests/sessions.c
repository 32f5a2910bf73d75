/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions and process groups: ids as inside before, a group without its leader, a daemon whose parent ended. */
#include <sched.h>

#include "guest.h"

static pid_t leader, member, daemon_pid;
static int pipe_fds[2];

static void wait_forever(void)
{
	for (;;)
		pause();
}

static void make_leader(void)
{
	setsid();
	member = fork();
	if (member == 0) {
		setpgid(0, 0);
		wait_forever();
	}
	if (write(pipe_fds[1], &member, sizeof(member)) != sizeof(member))
		_exit(1);
	wait_forever();
}

static void make_daemon(void)
{
	if (fork())
		_exit(0);
	setsid();
	daemon_pid = fork();
	if (daemon_pid) {
		if (write(pipe_fds[1], &daemon_pid, sizeof(daemon_pid)) != sizeof(daemon_pid))
			_exit(1);
		_exit(0);
	}
	wait_forever();
}

static pid_t sid_daemon, parent_daemon;

static pid_t parent_of(pid_t pid)
{
	char path[64], text[512];
	FILE *file;
	pid_t parent = -1;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "r");
	CHECK(file && fgets(text, sizeof(text), file));
	fclose(file);
	CHECK(sscanf(strrchr(text, ')') + 1, " %*c %d", &parent) == 1);
	return parent;
}

void guest_setup(void)
{
	pid_t starter;

	CHECK(pipe(pipe_fds) == 0);
	leader = fork();
	if (leader == 0)
		make_leader();
	CHECK(read(pipe_fds[0], &member, sizeof(member)) == sizeof(member));
	starter = fork();
	if (starter == 0)
		make_daemon();
	CHECK(waitpid(starter, NULL, 0) == starter);
	CHECK(read(pipe_fds[0], &daemon_pid, sizeof(daemon_pid)) == sizeof(daemon_pid));
	while (getpgid(member) != member || parent_of(daemon_pid) != 1)
		sched_yield();
	sid_daemon = getsid(daemon_pid);
	parent_daemon = parent_of(daemon_pid);
}

void guest_put(const char *tag)
{
	(void)tag;
}

void guest_check(const char *tag)
{
	(void)tag;
	CHECK(getsid(leader) == leader && getpgid(leader) == leader && getsid(member) == leader);
	CHECK(getpgid(member) == member && parent_of(member) == leader && parent_of(leader) == getpid());
	CHECK(getsid(daemon_pid) == sid_daemon && parent_of(daemon_pid) == parent_daemon);
	CHECK(kill(daemon_pid, 0) == 0);
}
