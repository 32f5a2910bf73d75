/* SPDX-License-Identifier: Apache-2.0 */
#include "init/setup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "host/spawn.h"

static int report_fd;

static _Noreturn void fail(const char *verb, const char *path)
{
	char what[120];
	int code = errno;

	snprintf(what, sizeof(what), "%s %s in the workspace", verb, path);
	bsh_report_exit(report_fd, code, what);
}

static void make_dir(const char *path, mode_t mode)
{
	struct stat info;

	if (mkdir(path, mode) < 0 && errno != EEXIST)
		fail("make", path);
	/* An image may have a symbolic link there, which mounts would follow to somewhere unexpected. */
	if (lstat(path, &info) < 0)
		fail("look at", path);
	if (!S_ISDIR(info.st_mode)) {
		if (unlink(path) < 0 || mkdir(path, mode) < 0)
			fail("replace by a directory", path);
	}
}

static const struct {
	const char *path;
	mode_t mode;
} directories[] = {
	{"/proc", 0555},
	{"/sys", 0555},
	{"/dev", 0755},
	{"/dev/pts", 0755},
	{"/dev/shm", 0755},
	{"/dev/mqueue", 0755},
	{"/tmp", 0755},
	{"/run", 0755},
	{"/run/bunshin", 0755},
	{"/.bunshin", 0755},
	{"/.bunshin/empty", 0555},
};

static const struct {
	const char *path;
	unsigned int minor;
	unsigned int major;
} nodes[] = {
	{"/dev/null", 3, 1},
	{"/dev/zero", 5, 1},
	{"/dev/full", 7, 1},
	{"/dev/random", 8, 1},
	{"/dev/urandom", 9, 1},
	{"/dev/tty", 0, 5},
};

static const char *const links[][2] = {
	{"pts/ptmx", "/dev/ptmx"},
	{"/proc/self/fd", "/dev/fd"},
	{"/proc/self/fd/0", "/dev/stdin"},
	{"/proc/self/fd/1", "/dev/stdout"},
	{"/proc/self/fd/2", "/dev/stderr"},
};

/* Device nodes that came with the image lead to the host's hardware. */
static void remove_devices(void)
{
	DIR *dir = opendir("/dev");
	struct dirent *entry;
	struct stat info;

	if (!dir)
		fail("read", "/dev");
	while ((entry = readdir(dir))) {
		if (fstatat(dirfd(dir), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if ((S_ISBLK(info.st_mode) || S_ISCHR(info.st_mode)) && unlinkat(dirfd(dir), entry->d_name, 0) < 0)
			fail("remove device", entry->d_name);
	}
	closedir(dir);
}

static void make_devices(void)
{
	remove_devices();
	for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
		unlink(nodes[i].path);
		if (mknod(nodes[i].path, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) < 0 ||
			chmod(nodes[i].path, 0666) < 0)
			fail("make", nodes[i].path);
	}
	for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
		unlink(links[i][1]);
		if (symlink(links[i][0], links[i][1]) < 0)
			fail("make", links[i][1]);
	}
}

static void mount_all(const char *shm_bytes)
{
	char shm_options[64];
	const unsigned long usual = MS_NOSUID | MS_NODEV | MS_NOEXEC;

	snprintf(shm_options, sizeof(shm_options), "mode=1777,size=%s", shm_bytes);
	if (mount("proc", "/proc", "proc", usual, NULL) < 0)
		fail("mount", "/proc");
	if (mount("sysfs", "/sys", "sysfs", usual | MS_RDONLY, NULL) < 0)
		fail("mount", "/sys");
	if (mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5") <
		0)
		fail("mount", "/dev/pts");
	if (mount("shm", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, shm_options) < 0)
		fail("mount", "/dev/shm");
	/* Kernels without POSIX message queues have none to offer. */
	if (mount("mqueue", "/dev/mqueue", "mqueue", usual, NULL) < 0 && errno != ENODEV)
		fail("mount", "/dev/mqueue");
}

/* Puts source over path, read-only. What this kernel does not have needs no cover. */
static void cover(const char *source, const char *path)
{
	if (access(path, F_OK) < 0)
		return;
	if (mount(source, path, NULL, MS_BIND, NULL) < 0)
		fail("cover", path);
	if (mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL) < 0)
		fail("make read-only", path);
}

static void cover_all(void)
{
	static const char *const files[] = {"/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list",
		"/proc/timer_stats", "/proc/sched_debug", "/proc/kmsg", "/proc/kpagecount", "/proc/kpageflags",
		"/proc/kpagecgroup", "/proc/interrupts"};
	static const char *const dirs[] = {"/proc/asound", "/proc/acpi", "/proc/scsi", "/sys/firmware",
		"/sys/devices/virtual/powercap", "/sys/kernel/debug", "/sys/kernel/security"};
	static const char *const read_only[] = {
		"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"};

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		/* The cover must stay a working /dev/null: read-only, but with its device alive. */
		if (access(files[i], F_OK) < 0)
			continue;
		if (mount("/dev/null", files[i], NULL, MS_BIND, NULL) < 0)
			fail("cover", files[i]);
	}
	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
		cover("/.bunshin/empty", dirs[i]);
	for (size_t i = 0; i < sizeof(read_only) / sizeof(read_only[0]); i++)
		cover(read_only[i], read_only[i]);
}

/*
 * Other root file systems inside the image, in which the tool server runs programs by chroot, such as those of
 * sites from docker images. They see the processes and devices that the workspace sees, covers included.
 */
#define ROOTS "/srv/sites"

static void furnish_root(const char *name)
{
	static const char *const sources[] = {"/proc", "/dev"};
	char path[512];

	for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
		if (snprintf(path, sizeof(path), ROOTS "/%s%s", name, sources[i]) >= (int)sizeof(path)) {
			errno = ENAMETOOLONG;
			fail("furnish", ROOTS);
		}
		make_dir(path, 0755);
		if (mount(sources[i], path, NULL, MS_BIND | MS_REC, NULL) < 0)
			fail("mount", path);
	}
}

static void furnish_roots(void)
{
	DIR *dir = opendir(ROOTS);
	struct dirent *entry;

	if (!dir) {
		if (errno != ENOENT)
			fail("read", ROOTS);
		return;
	}
	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			furnish_root(entry->d_name);
	closedir(dir);
}

void bsh_init_setup(int fd, const char *hostname, const char *shm_bytes)
{
	report_fd = fd;
	if (sethostname(hostname, strlen(hostname)) < 0)
		fail("set host name", hostname);
	for (size_t i = 0; i < sizeof(directories) / sizeof(directories[0]); i++)
		make_dir(directories[i].path, directories[i].mode);
	if (chmod("/tmp", 01777) < 0)
		fail("open to all", "/tmp");
	make_devices();
	mount_all(shm_bytes);
	cover_all();
	furnish_roots();
}
