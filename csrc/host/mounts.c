/* SPDX-License-Identifier: Apache-2.0 */
#include "host/mounts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Between fork and exec: no allocation, no stdio. These few helpers stand in for snprintf. */
struct line {
	char text[4096];
	size_t len;
};

static int line_add(struct line *line, const char *text)
{
	size_t len = strlen(text);

	if (line->len + len >= sizeof(line->text))
		return -E2BIG;
	memcpy(line->text + line->len, text, len + 1);
	line->len += len;
	return 0;
}

static int line_add_fd_path(struct line *line, int fd)
{
	char digits[12];
	size_t at = sizeof(digits) - 1;

	digits[at] = '\0';
	do {
		digits[--at] = (char)('0' + fd % 10);
		fd /= 10;
	} while (fd);
	if (line_add(line, "/proc/self/fd/") < 0)
		return -E2BIG;
	return line_add(line, digits + at);
}

static int open_path(const char *path)
{
	int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

/*
 * By descriptor, never by name: the interface takes no string longer than 255 bytes, and what it is told is
 * in every line of the workspace's mountinfo, which CRIU reads into a page.
 */
static int config_path(int fs, const char *key, const char *path)
{
	struct line line = {.len = 0};
	int fd = open_path(path), rc = 0;

	if (fd < 0)
		return fd;
	line_add_fd_path(&line, fd);
	if (syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, key, line.text, 0) < 0)
		rc = -errno;
	close(fd);
	return rc;
}

static int config_all(int fs, const struct bsh_overlay *overlay, const char **ret_what)
{
	static const char *const options[][2] = {{"index", "on"}, {"nfs_export", "on"}};
	int rc;

	for (const char *const *layer = overlay->layers; *layer; layer++) {
		*ret_what = *layer;
		rc = config_path(fs, "lowerdir+", *layer);
		if (rc < 0)
			return rc;
	}
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
	int fs = (int)syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC), mnt, rc;

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
	rc = syscall(SYS_move_mount, mnt, "", AT_FDCWD, overlay->root, MOVE_MOUNT_F_EMPTY_PATH) < 0 ? -errno : 0;
	close(mnt);
	close(fs);
	return rc;
}

/* Paths by descriptor keep the one page of options short: 200 layers fit, and no character needs escaping. */
static int mount_by_options(const struct bsh_overlay *overlay, const char **ret_what)
{
	const char *key = "lowerdir=";
	struct line line = {.len = 0};
	int fd, rc = 0;

	for (const char *const *layer = overlay->layers; *layer; layer++, key = ":") {
		*ret_what = *layer;
		fd = open_path(*layer);
		if (fd < 0)
			return fd;
		rc |= line_add(&line, key) | line_add_fd_path(&line, fd);
	}
	*ret_what = overlay->upper;
	fd = open_path(overlay->upper);
	if (fd < 0)
		return fd;
	rc |= line_add(&line, ",upperdir=") | line_add_fd_path(&line, fd);
	*ret_what = overlay->work;
	fd = open_path(overlay->work);
	if (fd < 0)
		return fd;
	rc |= line_add(&line, ",workdir=") | line_add_fd_path(&line, fd);
	rc |= line_add(&line, ",index=on,nfs_export=on,volatile");
	*ret_what = "stack the layers: too many for this kernel (Linux 6.5 takes more)";
	if (rc < 0)
		return -E2BIG;
	*ret_what = "mount the overlay (do the layers exist, does the file system keep extended attributes?)";
	return mount("bunshin", overlay->root, "overlay", 0, line.text) < 0 ? -errno : 0;
}

int bsh_overlay_mount(const struct bsh_overlay *overlay, const char **ret_what)
{
	return overlay->lowerdir_add ? mount_by_fsconfig(overlay, ret_what) : mount_by_options(overlay, ret_what);
}
