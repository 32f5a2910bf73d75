/* SPDX-License-Identifier: Apache-2.0 */
/* What hangs on a process: name, limits, nice value, processors, umask, subreaper, death signal, scheduling,
 * personality. */
#include <sched.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "guest.h"

static cpu_set_t processors;

void guest_setup(void)
{
	struct rlimit files = {777, 888}, core = {0, 4096};

	CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0 && setrlimit(RLIMIT_CORE, &core) == 0);
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && prctl(PR_SET_PDEATHSIG, SIGUSR1) == 0);
	CHECK(setpriority(PRIO_PROCESS, 0, 19) == 0);
	CHECK(sched_getaffinity(0, sizeof(processors), &processors) == 0);
	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (CPU_ISSET(i, &processors)) {
			CPU_ZERO(&processors);
			CPU_SET(i, &processors);
			break;
		}
	}
	CHECK(sched_setaffinity(0, sizeof(processors), &processors) == 0);
	umask(027);
}

void guest_put(const char *tag)
{
	CHECK(prctl(PR_SET_NAME, tag) == 0);
}

void guest_check(const char *tag)
{
	char name[17] = "";
	struct rlimit limit;
	cpu_set_t now;
	int value;

	CHECK(prctl(PR_GET_NAME, name) == 0);
	CHECK(!strncmp(name, tag, 15));
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == 777 && limit.rlim_max == 888);
	CHECK(getrlimit(RLIMIT_CORE, &limit) == 0 && limit.rlim_cur == 0 && limit.rlim_max == 4096);
	CHECK(prctl(PR_GET_CHILD_SUBREAPER, &value) == 0 && value == 1);
	CHECK(prctl(PR_GET_PDEATHSIG, &value) == 0 && value == SIGUSR1);
	CHECK(getpriority(PRIO_PROCESS, 0) == 19);
	CHECK(sched_getaffinity(0, sizeof(now), &now) == 0 && CPU_EQUAL(&now, &processors));
	CHECK(umask(027) == 027);
}
