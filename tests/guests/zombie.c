/* SPDX-License-Identifier: Apache-2.0 */
/* A child that has ended and was not waited for: still there, with its status. */
#include "guest.h"

static pid_t ended, killed;

void guest_setup(void)
{
}

void guest_put(const char *tag)
{
	siginfo_t info;

	ended = fork();
	if (ended == 0)
		_exit(tag[0]);
	killed = fork();
	if (killed == 0)
		for (;;)
			pause();
	CHECK(kill(killed, SIGKILL) == 0);
	CHECK(waitid(P_PID, (id_t)ended, &info, WEXITED | WNOWAIT) == 0);
	CHECK(waitid(P_PID, (id_t)killed, &info, WEXITED | WNOWAIT) == 0);
}

void guest_check(const char *tag)
{
	int status;

	CHECK(waitpid(ended, &status, WNOHANG) == ended && WIFEXITED(status) && WEXITSTATUS(status) == tag[0]);
	CHECK(waitpid(killed, &status, WNOHANG) == killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	CHECK(waitpid(-1, &status, WNOHANG) < 0 && errno == ECHILD);
}
