/* SPDX-License-Identifier: Apache-2.0 */
/* Freezing and killing what is in a cgroup. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/cgroup.h"
#include "host/spawn.h"

#define KILL_TIMEOUT_MS 30000

static int write_file(const struct bsh_cgroup *cgroup, const char *file, const char *value, struct bsh_error *err)
{
	auto_free char *path = bsh_format("%s/%s", cgroup->dirs[0], file);

	return bsh_write_control(AT_FDCWD, path, value, err);
}

static int ms_left(long long deadline)
{
	long long left = (deadline - bsh_now_ns() + 999999) / 1000000;

	return left > 0 ? (int)left : 0;
}

/* Waits until cgroup.events holds the line; the kernel reports each change of the file by POLLPRI. */
static int wait_event(const struct bsh_cgroup *cgroup, const char *line, int timeout_ms, struct bsh_error *err)
{
	auto_free char *path = bsh_format("%s/cgroup.events", cgroup->dirs[0]);
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	long long deadline = bsh_now_ns() + timeout_ms * 1000000LL;
	struct pollfd poll_fd = {.fd = fd, .events = POLLPRI};
	char text[256];

	if (fd < 0)
		return bsh_fail(err, errno, "open %s", path);
	for (;;) {
		ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

		if (n < 0)
			return bsh_fail(err, errno, "read %s", path);
		text[n] = '\0';
		if (strstr(text, line))
			return 0;
		n = poll(&poll_fd, 1, ms_left(deadline));
		if (n < 0 && errno != EINTR)
			return bsh_fail(err, errno, "wait for %s", path);
		if (n == 0 && ms_left(deadline) == 0)
			return bsh_fail(err, ETIMEDOUT, "wait for \"%s\" in %s", line, path);
	}
}

/* The v1 freezer tells no event: its state moves on when it is read. */
static int wait_v1_state(const struct bsh_cgroup *cgroup, const char *state, int timeout_ms, struct bsh_error *err)
{
	auto_free char *path = bsh_format("%s/freezer.state", cgroup->dirs[0]);
	long long deadline = bsh_now_ns() + timeout_ms * 1000000LL;
	struct timespec pause = {.tv_nsec = 20000};

	for (;;) {
		auto_free char *text = NULL;
		int rc = bsh_read_file(AT_FDCWD, path, &text, NULL, err);

		if (rc < 0)
			return rc;
		if (strncmp(text, state, strlen(state)) == 0)
			return 0;
		if (ms_left(deadline) == 0)
			return bsh_fail(err, ETIMEDOUT, "wait for %s in %s", state, path);
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 5000000)
			pause.tv_nsec *= 2;
	}
}

int bsh_cgroup_thaw(const struct bsh_cgroup *cgroup, struct bsh_error *err)
{
	int rc;

	if (cgroup->tracker_v2) {
		rc = write_file(cgroup, "cgroup.freeze", "0", err);
		return rc < 0 ? rc : wait_event(cgroup, "frozen 0", KILL_TIMEOUT_MS, err);
	}
	rc = write_file(cgroup, "freezer.state", "THAWED", err);
	return rc < 0 ? rc : wait_v1_state(cgroup, "THAWED", KILL_TIMEOUT_MS, err);
}

int bsh_cgroup_freeze(const struct bsh_cgroup *cgroup, int timeout_ms, struct bsh_error *err)
{
	int rc = cgroup->tracker_v2 ? write_file(cgroup, "cgroup.freeze", "1", err)
				    : write_file(cgroup, "freezer.state", "FROZEN", err);

	if (rc < 0)
		return rc;
	rc = cgroup->tracker_v2 ? wait_event(cgroup, "frozen 1", timeout_ms, err)
				: wait_v1_state(cgroup, "FROZEN", timeout_ms, err);
	if (rc < 0)
		bsh_cgroup_thaw(cgroup, NULL);
	return rc;
}

static bool is_gone(const struct bsh_cgroup *cgroup)
{
	return !cgroup->n || access(cgroup->dirs[0], F_OK) < 0;
}

/* Kills those that are in it now; what they started meanwhile is the next round's. */
static int kill_round(const struct bsh_cgroup *cgroup, long long deadline, size_t *ret_n, struct bsh_error *err)
{
	auto_free pid_t *pids = NULL;
	auto_free int *pidfds = NULL;
	int rc = bsh_cgroup_pids(cgroup, &pids, ret_n, err);

	if (rc < 0 || *ret_n == 0)
		return rc;
	pidfds = bsh_alloc(*ret_n * sizeof(*pidfds));
	for (size_t i = 0; i < *ret_n; i++) {
		pidfds[i] = -1;
		if (bsh_pidfd_open(pids[i], &pidfds[i], NULL) == 0)
			bsh_pidfd_kill(pidfds[i], SIGKILL);
	}
	/* Frozen tasks of v1 see the signal once thawed. */
	if (!cgroup->tracker_v2)
		bsh_cgroup_thaw(cgroup, NULL);
	for (size_t i = 0; i < *ret_n; i++) {
		struct pollfd poll_fd = {.fd = pidfds[i], .events = POLLIN};

		if (pidfds[i] < 0)
			continue;
		while (poll(&poll_fd, 1, ms_left(deadline)) < 0 && errno == EINTR)
			;
		if (!poll_fd.revents && rc == 0)
			rc = bsh_fail(err, ETIMEDOUT, "pid %d does not die of SIGKILL", pids[i]);
		close(pidfds[i]);
	}
	return rc;
}

static int kill_v1(const struct bsh_cgroup *cgroup, unsigned int *killed, struct bsh_error *err)
{
	long long deadline = bsh_now_ns() + KILL_TIMEOUT_MS * 1000000LL;
	size_t n = 0;
	int rc;

	do {
		/* Standing still they cannot start others behind our back; those that do not stand are met again. */
		bsh_cgroup_freeze(cgroup, 2000, NULL);
		rc = kill_round(cgroup, deadline, &n, err);
		*killed += (unsigned int)n;
	} while (rc == 0 && n && ms_left(deadline));
	bsh_cgroup_thaw(cgroup, NULL);
	return rc;
}

int bsh_cgroup_kill(const struct bsh_cgroup *cgroup, unsigned int *ret_killed, struct bsh_error *err)
{
	auto_free pid_t *pids = NULL;
	unsigned int killed = 0;
	size_t n = 0;
	int rc;

	if (is_gone(cgroup)) {
		rc = 0;
	} else if (cgroup->tracker_v2) {
		rc = bsh_cgroup_pids(cgroup, &pids, &n, err);
		if (rc == 0)
			rc = write_file(cgroup, "cgroup.kill", "1", err);
		if (rc == 0)
			rc = wait_event(cgroup, "populated 0", KILL_TIMEOUT_MS, err);
		killed = (unsigned int)n;
	} else {
		rc = kill_v1(cgroup, &killed, err);
	}
	if (rc < 0 && is_gone(cgroup)) /* another process was faster with the same */
		rc = 0;
	if (rc == 0 && ret_killed)
		*ret_killed = killed;
	return rc;
}
