/* SPDX-License-Identifier: Apache-2.0 */
#include "host/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

/* No longer than the kernel takes; the descriptors that it names are its own. */
struct line {
	char text[4096];
	size_t len;
	int fds[256];
	size_t n_fds;
};

static void line_release(struct line *line)
{
	while (line->n_fds)
		close(line->fds[--line->n_fds]);
}

#define auto_line __attribute__((cleanup(line_release)))

static int line_add(struct line *line, const char *text)
{
	size_t len = strlen(text);

	if (line->len + len >= sizeof(line->text))
		return -E2BIG;
	memcpy(line->text + line->len, text, len + 1);
	line->len += len;
	return 0;
}

static int line_add_number(struct line *line, int number)
{
	char digits[12];
	size_t at = sizeof(digits) - 1;

	digits[at] = '\0';
	do {
		digits[--at] = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	return line_add(line, digits + at);
}

/* Opens it. */
static int line_add_path(struct line *line, const char *path)
{
	int fd;

	if (line->n_fds == sizeof(line->fds) / sizeof(line->fds[0]))
		return -E2BIG;
	fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	line->fds[line->n_fds++] = fd;
	if (line_add(line, "/proc/self/fd/") < 0)
		return -E2BIG;
	return line_add_number(line, fd);
}

/*
 * By descriptor, never by name: the interface takes no string longer than 255 bytes, and what it is told is
 * in every line of the workspace's mountinfo, which CRIU reads into a page.
 */
static int config_path(int fs, const char *key, const char *path)
{
	auto_line struct line line = {.len = 0};
	int rc = line_add_path(&line, path);

	if (rc < 0)
		return rc;
	return syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, key, line.text, 0) < 0 ? -errno : 0;
}

static int config_layers(int fs, const char *const *layers, const char **ret_what)
{
	int rc = 0;

	for (; *layers && rc == 0; layers++) {
		*ret_what = *layers;
		rc = config_path(fs, "lowerdir+", *layers);
	}
	return rc;
}

static int config_all(int fs, const struct bsh_overlay *overlay, const char **ret_what)
{
	static const char *const options[][2] = {{"index", "on"}, {"nfs_export", "on"}, {"redirect_dir", "on"}};
	int rc = config_layers(fs, overlay->layers, ret_what);

	if (rc < 0)
		return rc;
	*ret_what = overlay->upper;
	rc = config_path(fs, "upperdir", overlay->upper);
	if (rc < 0)
		return rc;
	*ret_what = overlay->work;
	rc = config_path(fs, "workdir", overlay->work);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		*ret_what = options[i][0];
		if (syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, options[i][0], options[i][1], 0) < 0)
			return -errno;
	}
	/* A crash of the machine ends the workspace anyway: no syncing of its files on the way. */
	*ret_what = "volatile";
	return syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "volatile", NULL, 0) < 0 ? -errno : 0;
}

static int mount_by_fsconfig(const struct bsh_overlay *overlay, const char **ret_what)
{
	auto_close int fs = (int)syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC), mnt = -1;
	int rc;

	*ret_what = "open the overlay file system";
	if (fs < 0)
		return -errno;
	rc = config_all(fs, overlay, ret_what);
	if (rc < 0)
		return rc;
	*ret_what = "mount the overlay (do the layers exist, does the file system keep extended attributes?)";
	if (syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return -errno;
	mnt = (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0);
	if (mnt < 0)
		return -errno;
	return syscall(SYS_move_mount, mnt, "", AT_FDCWD, overlay->root, MOVE_MOUNT_F_EMPTY_PATH) < 0 ? -errno : 0;
}

int bsh_overlay_view(const char *const *layers)
{
	auto_close int fs = (int)syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC);
	const char *what;

	if (fs < 0 || config_layers(fs, layers, &what) < 0 ||
		syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "redirect_dir", "follow", 0) < 0 ||
		syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		return -1;
	return (int)syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOSUID);
}

/* Paths by descriptor keep the one page of options short: 200 layers fit, and no character needs escaping. */
static int add_options(struct line *line, const struct bsh_overlay *overlay, const char **ret_what)
{
	const char *key = "lowerdir=";
	int rc;

	for (const char *const *layer = overlay->layers; *layer; layer++, key = ":") {
		*ret_what = *layer;
		rc = line_add(line, key);
		rc = rc < 0 ? rc : line_add_path(line, *layer);
		if (rc < 0)
			return rc;
	}
	*ret_what = overlay->upper;
	rc = line_add(line, ",upperdir=");
	rc = rc < 0 ? rc : line_add_path(line, overlay->upper);
	if (rc < 0)
		return rc;
	*ret_what = overlay->work;
	rc = line_add(line, ",workdir=");
	rc = rc < 0 ? rc : line_add_path(line, overlay->work);
	return rc < 0 ? rc : line_add(line, ",index=on,nfs_export=on,redirect_dir=on,volatile");
}

static int mount_by_options(const struct bsh_overlay *overlay, const char **ret_what)
{
	auto_line struct line line = {.len = 0};
	int rc = add_options(&line, overlay, ret_what);

	if (rc == -E2BIG)
		*ret_what = "stack the layers: too many for this kernel (Linux 6.5 takes more)";
	if (rc < 0)
		return rc;
	*ret_what = "mount the overlay (do the layers exist, does the file system keep extended attributes?)";
	return mount("bunshin", overlay->root, "overlay", 0, line.text) < 0 ? -errno : 0;
}

int bsh_overlay_mount(const struct bsh_overlay *overlay, const char **ret_what)
{
	return overlay->lowerdir_add ? mount_by_fsconfig(overlay, ret_what) : mount_by_options(overlay, ret_what);
}
