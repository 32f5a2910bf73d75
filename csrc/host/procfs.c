/* SPDX-License-Identifier: Apache-2.0 */
#include "host/procfs.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"

#define TASK_EXITING 0x4 /* the kernel's PF_EXITING */

int bsh_proc_stat_parse(const char *text, struct bsh_proc_stat *ret_stat)
{
	struct bsh_proc_stat stat = {0};
	unsigned int flags;
	/* The command name may hold spaces and brackets: it ends at the last bracket. */
	const char *open = strchr(text, '('), *close = strrchr(text, ')');
	size_t len;

	if (!open || !close || close < open || sscanf(text, "%d", &stat.pid) != 1)
		return -EINVAL;
	len = (size_t)(close - open - 1);
	if (len >= sizeof(stat.comm))
		len = sizeof(stat.comm) - 1;
	memcpy(stat.comm, open + 1, len);
	if (sscanf(close + 1, " %c %d %d %d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %lu %*d %llu",
		    &stat.state, &stat.parent, &stat.group, &stat.session, &flags, &stat.n_threads,
		    &stat.start_time) != 7)
		return -EINVAL;
	stat.exiting = flags & TASK_EXITING;
	*ret_stat = stat;
	return 0;
}

/* The value behind "key:" at the start of a line; NULL when absent. */
static const char *find_value(const char *text, const char *key)
{
	size_t len = strlen(key);

	for (const char *line = text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
		if (strncmp(line, key, len) == 0 && line[len] == ':')
			return line + len + 1;
	return NULL;
}

static unsigned long long find_number(const char *text, const char *key, int base)
{
	const char *value = find_value(text, key);

	return value ? strtoull(value, NULL, base) : 0;
}

static void parse_namespace_pids(const char *value, struct bsh_proc_status *status)
{
	while (value && *value && *value != '\n') {
		char *end;
		long pid = strtol(value, &end, 10);

		if (end == value)
			return;
		status->n_namespaces++;
		status->inner_pid = (pid_t)pid;
		value = end;
	}
}

int bsh_proc_status_parse(const char *text, struct bsh_proc_status *ret_status)
{
	struct bsh_proc_status status = {0};
	const char *uid = find_value(text, "Uid");

	if (!uid || sscanf(uid, "%*u %u", &status.uid) != 1)
		return -EINVAL;
	status.tracer = (pid_t)find_number(text, "TracerPid", 10);
	status.threads = find_number(text, "Threads", 10);
	status.page_table_bytes = find_number(text, "VmPTE", 10) * 1024;
	status.seccomp = (int)find_number(text, "Seccomp", 10);
	status.effective_caps = find_number(text, "CapEff", 16);
	parse_namespace_pids(find_value(text, "NSpid"), &status);
	*ret_status = status;
	return 0;
}

static unsigned int parse_vma_flags(const char *text)
{
	return (text[0] == 'r' ? BSH_VMA_READ : 0U) | (text[1] == 'w' ? BSH_VMA_WRITE : 0U) |
	       (text[2] == 'x' ? BSH_VMA_EXEC : 0U) | (text[3] == 's' ? BSH_VMA_SHARED : 0U);
}

int bsh_maps_next(const char **cursor, struct bsh_vma *ret_vma)
{
	const char *line = *cursor;
	size_t len = strcspn(line, "\n");
	struct bsh_vma vma = {0};
	unsigned long long start, end, offset, inode;
	char flags[5];
	int used = 0;

	if (!len)
		return 0;
	if (sscanf(line, "%llx-%llx %4s %llx %x:%x %llu%n", &start, &end, flags, &offset, &vma.dev_major,
		    &vma.dev_minor, &inode, &used) != 7 ||
		strlen(flags) != 4 || (size_t)used > len || start >= end)
		return -EINVAL;
	vma.start = start;
	vma.end = end;
	vma.offset = offset;
	vma.inode = inode;
	vma.flags = parse_vma_flags(flags);
	while ((size_t)used < len && line[used] == ' ')
		used++;
	vma.name = line + used;
	vma.name_len = len - (size_t)used;
	*cursor = line + len + (line[len] == '\n');
	*ret_vma = vma;
	return 1;
}

int bsh_smaps_rollup_parse(const char *text, const char *key, unsigned long long *ret_bytes)
{
	/* The first line names the range; without it this is some other file. */
	if (!strstr(text, "[rollup]"))
		return -EINVAL;
	*ret_bytes = find_number(text, key, 10) * 1024;
	return 0;
}

int bsh_proc_read(pid_t pid, const char *name, char **ret_text, struct bsh_error *err)
{
	auto_free char *path = bsh_format("/proc/%d/%s", pid, name);
	int rc = bsh_read_file(AT_FDCWD, path, ret_text, NULL, err);

	if (rc == -ENOENT || rc == -ESRCH)
		return bsh_fail(err, ESRCH, "pid %d", pid);
	return rc;
}

int bsh_proc_stat_read(pid_t pid, struct bsh_proc_stat *ret_stat, struct bsh_error *err)
{
	auto_free char *text = NULL;
	int rc = bsh_proc_read(pid, "stat", &text, err);

	if (rc < 0)
		return rc;
	rc = bsh_proc_stat_parse(text, ret_stat);
	return rc < 0 ? bsh_fail(err, -rc, "parse /proc/%d/stat", pid) : 0;
}

int bsh_proc_status_read(pid_t pid, struct bsh_proc_status *ret_status, struct bsh_error *err)
{
	auto_free char *text = NULL;
	int rc = bsh_proc_read(pid, "status", &text, err);

	if (rc < 0)
		return rc;
	rc = bsh_proc_status_parse(text, ret_status);
	return rc < 0 ? bsh_fail(err, -rc, "parse /proc/%d/status", pid) : 0;
}

int bsh_boot_id(char ret_id[40], struct bsh_error *err)
{
	auto_free char *text = NULL;
	int rc = bsh_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", &text, NULL, err);

	if (rc < 0)
		return rc;
	text[strcspn(text, "\n")] = '\0';
	snprintf(ret_id, 40, "%s", text);
	return 0;
}

bool bsh_process_alive(pid_t pid, unsigned long long start_time)
{
	struct bsh_proc_stat stat;

	if (pid <= 0 || bsh_proc_stat_read(pid, &stat, NULL) < 0)
		return false;
	return stat.start_time == start_time && stat.state != 'Z' && stat.state != 'X';
}
