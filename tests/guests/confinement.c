/* SPDX-License-Identifier: Apache-2.0 */
/* The workspace's own walls stand in a branch: capabilities, filter, masked and read-only files, namespaces. */
#include <sys/mount.h>
#include <sys/prctl.h>

#include "guest.h"

static char before[4096];

static void add(char *text, const char *what, long value)
{
	snprintf(text + strlen(text), 4096 - strlen(text), "%s=%ld\n", what, value);
}

static long attempt(long result)
{
	return result < 0 ? -errno : result;
}

static void add_lines(char *text, const char *file, const char *key)
{
	FILE *status = fopen(file, "r");
	char line[512];

	CHECK(status);
	while (fgets(line, sizeof(line), status))
		if (!strncmp(line, key, strlen(key)))
			strncat(text, line, 4095 - strlen(text));
	fclose(status);
}

/* Everything that could have become weaker, as one text. */
static void describe(char text[4096])
{
	char link[128];
	ssize_t n;

	text[0] = 0;
	add_lines(text, "/proc/self/status", "Cap");
	add_lines(text, "/proc/self/status", "NoNewPrivs");
	add_lines(text, "/proc/self/status", "Seccomp");
	add_lines(text, "/proc/self/cgroup", "");
	add(text, "io_uring", attempt(syscall(SYS_io_uring_setup, 1, NULL)));
	add(text, "mount", attempt(mount("none", "/guest", "tmpfs", 0, NULL)));
	add(text, "sysctl", attempt(open("/proc/sys/kernel/core_pattern", O_WRONLY)));
	add(text, "sysrq", attempt(open("/proc/sysrq-trigger", O_WRONLY)));
	add(text, "kcore", attempt(open("/proc/kcore", O_RDWR)));
	add(text, "sys", attempt(open("/sys/kernel/uevent_helper", O_WRONLY)));
	add(text, "pid", getpid());
	n = readlink("/proc/1/ns/pid", link, sizeof(link));
	add(text, "ns", n < 0 ? -errno : 1);
	for (int fd = 3; fd < 32; fd++)
		close(fd);
}

void guest_setup(void)
{
	describe(before);
}

void guest_put(const char *tag)
{
	(void)tag;
}

void guest_check(const char *tag)
{
	static char now[4096];

	(void)tag;
	describe(now);
	if (strcmp(now, before))
		FAIL("was:\n%.100s\nis:\n%.100s", before, now);
}
