/* SPDX-License-Identifier: Apache-2.0 */
#include "host/carrier.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "host/procfs.h"
#include "host/spawn.h"

#define PATIENCE_MS 200

static void end_carrier_of(pid_t init)
{
	struct bsh_proc_status status;
	struct bsh_proc_stat stat;
	auto_close int pidfd = -1;

	if (bsh_proc_stat_read(init, &stat, NULL) < 0 || !stat.exiting)
		return;
	if (bsh_proc_status_read(init, &status, NULL) < 0 || !status.tracer ||
		bsh_pidfd_open(status.tracer, &pidfd, NULL) < 0)
		return;
	/* Debuggers are left alone: they ask how their tracees are. */
	if (bsh_proc_stat_read(status.tracer, &stat, NULL) == 0 && strcmp(stat.comm, "criu") == 0)
		bsh_pidfd_kill(pidfd, SIGKILL);
}

void bsh_carrier_watch(int fd, pid_t init, int timeout_ms)
{
	long long deadline_ns = bsh_now_ns() + timeout_ms * 1000000LL;
	struct pollfd event = {.fd = fd, .events = POLLIN};
	int n;

	do {
		n = poll(&event, 1, PATIENCE_MS);
		if (n == 0)
			end_carrier_of(init);
	} while ((n == 0 || (n < 0 && errno == EINTR)) && bsh_now_ns() < deadline_ns);
}
