// SPDX-License-Identifier: GPL-2.0-only
#include "bunshin-orphan.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

static bool bound;
static pid_t forking;

void bunshin_end_with(pid_t parent)
{
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
		_exit(1);
}

static void before(void)
{
	forking = getpid();
}

static void in_child(void)
{
	if (bound)
		bunshin_end_with(forking);
}

void bunshin_bind_children(bool bind)
{
	static bool registered;

	if (!registered && !pthread_atfork(before, NULL, in_child))
		registered = true;
	bound = bind;
}
