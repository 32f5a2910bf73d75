// SPDX-License-Identifier: GPL-2.0-only
/*
 * Resource limits without CAP_SYS_RESOURCE.
 *
 * prlimit() on a process of another uid wants that capability, which many
 * virtual machines and containers withhold even from root. The same numbers
 * stand in /proc/PID/limits, readable by whoever may ptrace.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bunshin-rlimit.h"
#include "cr_options.h"
#include "log.h"
#include "util-caps.h"

#undef LOG_PREFIX
#define LOG_PREFIX "bunshin: "

static const char *const limit_names[RLIM_NLIMITS] = {
	[RLIMIT_CPU] = "Max cpu time",
	[RLIMIT_FSIZE] = "Max file size",
	[RLIMIT_DATA] = "Max data size",
	[RLIMIT_STACK] = "Max stack size",
	[RLIMIT_CORE] = "Max core file size",
	[RLIMIT_RSS] = "Max resident set",
	[RLIMIT_NPROC] = "Max processes",
	[RLIMIT_NOFILE] = "Max open files",
	[RLIMIT_MEMLOCK] = "Max locked memory",
	[RLIMIT_AS] = "Max address space",
	[RLIMIT_LOCKS] = "Max file locks",
	[RLIMIT_SIGPENDING] = "Max pending signals",
	[RLIMIT_MSGQUEUE] = "Max msgqueue size",
	[RLIMIT_NICE] = "Max nice priority",
	[RLIMIT_RTPRIO] = "Max realtime priority",
	[RLIMIT_RTTIME] = "Max realtime timeout",
};

static int parse_limit(const char *word, rlim64_t *ret_value)
{
	char *end;

	if (!strcmp(word, "unlimited")) {
		*ret_value = RLIM64_INFINITY;
		return 0;
	}
	errno = 0;
	*ret_value = strtoull(word, &end, 10);
	if (errno || *end || end == word)
		return -1;
	return 0;
}

/* 1: the line is this limit's; 0: another's; -1: it cannot be read. */
static int parse_line(const char *line, const char *name, struct rlimit64 *ret_limit)
{
	size_t len = strlen(name);
	char soft[32], hard[32];

	if (strncmp(line, name, len) || line[len] != ' ')
		return 0;
	if (sscanf(line + len, " %31s %31s", soft, hard) != 2)
		return -1;
	if (parse_limit(soft, &ret_limit->rlim_cur) || parse_limit(hard, &ret_limit->rlim_max))
		return -1;
	return 1;
}

int bunshin_proc_rlimit(pid_t pid, int resource, struct rlimit64 *ret_limit)
{
	char path[64], line[256];
	int found = 0;
	FILE *f;

	if (errno != EPERM)
		return -1;
	if (resource < 0 || resource >= RLIM_NLIMITS || !limit_names[resource]) {
		errno = EINVAL;
		return -1;
	}
	snprintf(path, sizeof(path), "/proc/%d/limits", pid);
	f = fopen(path, "re");
	if (!f)
		return -1;
	while (!found && fgets(line, sizeof(line), f))
		found = parse_line(line, limit_names[resource], ret_limit);
	fclose(f);
	if (found == 1)
		return 0;
	errno = EPROTO;
	return -1;
}

int bunshin_clamp_rlimit(int resource, struct rlimit64 *limit)
{
	struct rlimit64 own;

	if (has_cap_sys_resource(opts.cap_eff))
		return 0;
	if (syscall(__NR_prlimit64, 0, resource, NULL, &own))
		return -1;
	if (limit->rlim_max <= own.rlim_max)
		return 0;
	pr_warn("rlimit %d lowered: hard limit %#llx is above ours (%#llx) and CAP_SYS_RESOURCE is missing\n",
		resource, (unsigned long long)limit->rlim_max, (unsigned long long)own.rlim_max);
	limit->rlim_max = own.rlim_max;
	if (limit->rlim_cur > own.rlim_max)
		limit->rlim_cur = own.rlim_max;
	return 0;
}
