/* SPDX-License-Identifier: Apache-2.0 */
#include "host/copy.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "base/cleanup.h"

/*
 * Overlay's notes about the mount an upper directory served. In a lower layer
 * of another mount they would name inodes that are not there.
 */
static const char *const private_attributes[] = {
	"trusted.overlay.origin",
	"trusted.overlay.nlink",
	"trusted.overlay.impure",
	"trusted.overlay.upper",
	"trusted.overlay.uuid",
};

static int is_private_attribute(const char *name)
{
	for (size_t i = 0; i < sizeof(private_attributes) / sizeof(*private_attributes); i++)
		if (!strcmp(name, private_attributes[i]))
			return 1;
	return 0;
}

/* A path for the calls that have no "at" form and must not follow a link. */
static void entry_path(int dir, const char *name, char path[PATH_MAX])
{
	snprintf(path, PATH_MAX, "/proc/self/fd/%d/%s", dir, name);
}

static int copy_attribute(const char *from, const char *to, const char *attribute, struct bsh_error *err)
{
	auto_free char *value = NULL;
	ssize_t length = lgetxattr(from, attribute, NULL, 0);

	if (length < 0)
		return errno == ENODATA ? 0 : bsh_fail(err, errno, "read attribute %s of %s", attribute, from);
	value = malloc((size_t)length + 1);
	if (!value)
		return bsh_fail(err, ENOMEM, "attribute %s", attribute);
	length = lgetxattr(from, attribute, value, (size_t)length);
	if (length < 0)
		return bsh_fail(err, errno, "read attribute %s of %s", attribute, from);
	if (lsetxattr(to, attribute, value, (size_t)length, 0) < 0)
		return bsh_fail(err, errno, "set attribute %s of %s", attribute, to);
	return 0;
}

static int copy_attributes(int from_dir, int to_dir, const char *name, struct bsh_error *err)
{
	char from[PATH_MAX], to[PATH_MAX], few[1024];
	auto_free char *many = NULL;
	const char *names = few;
	ssize_t length;
	int rc;

	entry_path(from_dir, name, from);
	entry_path(to_dir, name, to);
	length = llistxattr(from, few, sizeof(few));
	if (length < 0 && errno == ERANGE) {
		many = malloc(XATTR_LIST_MAX);
		if (!many)
			return bsh_fail(err, ENOMEM, "attributes of %s", name);
		names = many;
		length = llistxattr(from, many, XATTR_LIST_MAX);
	}
	if (length < 0)
		return errno == EOPNOTSUPP ? 0 : bsh_fail(err, errno, "list attributes of %s", name);
	for (const char *at = names; at < names + length; at += strlen(at) + 1) {
		if (is_private_attribute(at))
			continue;
		rc = copy_attribute(from, to, at, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int bsh_copy_metadata(int from_dir, int to_dir, const char *name, const struct stat *st, struct bsh_error *err)
{
	const struct timespec times[2] = {st->st_atim, st->st_mtim};
	int rc;

	if (fchownat(to_dir, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0)
		return bsh_fail(err, errno, "set owner of %s", name);
	/* After chown, which clears the set-id bits. */
	if (!S_ISLNK(st->st_mode) && fchmodat(to_dir, name, st->st_mode & 07777, 0) < 0)
		return bsh_fail(err, errno, "set mode of %s", name);
	rc = copy_attributes(from_dir, to_dir, name, err);
	if (rc < 0)
		return rc;
	if (utimensat(to_dir, name, times, AT_SYMLINK_NOFOLLOW) < 0)
		return bsh_fail(err, errno, "set times of %s", name);
	return 0;
}

static ssize_t copy_some(int from, int to, off_t *at, size_t length)
{
	off_t out = *at;
	ssize_t n = copy_file_range(from, at, to, &out, length, 0);

	if (n >= 0 || (errno != EXDEV && errno != EINVAL && errno != EOPNOTSUPP && errno != ENOSYS))
		return n;
	if (lseek(to, *at, SEEK_SET) < 0)
		return -1;
	return sendfile(to, from, at, length);
}

/* Copies the data between holes; a file that shrinks meanwhile just ends early. */
static int copy_extents(int from, int to, off_t size, unsigned long long *bytes)
{
	off_t at = 0;

	while (at < size) {
		off_t end;

		at = lseek(from, at, SEEK_DATA);
		if (at < 0)
			return errno == ENXIO ? 0 : -errno;
		end = lseek(from, at, SEEK_HOLE);
		if (end < 0)
			return -errno;
		if (end > size)
			end = size;
		while (at < end) {
			ssize_t n = copy_some(from, to, &at, (size_t)(end - at));

			if (n < 0)
				return -errno;
			if (n == 0)
				return 0;
			*bytes += (unsigned long long)n;
		}
	}
	return 0;
}

/*
 * A copy that lies there already is written over, since new inodes are what costs most; not one with other names or
 * attributes, which are not ours to change or would have to be compared.
 */
static int open_over(int dir, const char *name)
{
	char path[PATH_MAX];
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
		return -1;
	entry_path(dir, name, path);
	if (llistxattr(path, NULL, 0) > 0)
		return -1;
	return openat(dir, name, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
}

static int copy_regular(int from_dir, int to_dir, const char *name, const struct stat *st, bool over,
	unsigned long long *bytes, struct bsh_error *err)
{
	auto_close int from = openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOATIME | O_NONBLOCK);
	auto_close int to = -1;
	int rc;

	if (from < 0)
		return bsh_fail(err, errno, "open %s", name);
	to = over ? open_over(to_dir, name) : -1;
	if (to < 0 && over && unlinkat(to_dir, name, 0) < 0 && errno != ENOENT)
		return bsh_fail(err, errno, "replace %s in the layer", name);
	if (to < 0)
		to = openat(to_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (to < 0)
		return bsh_fail(err, errno, "create %s in the layer", name);
	if (st->st_size == 0)
		return 0;
	if (ioctl(to, FICLONE, from) == 0)
		return 0;
	rc = copy_extents(from, to, st->st_size, bytes);
	if (rc < 0)
		return bsh_fail(err, -rc, "copy %s", name);
	/* A hole at the end has no extent to copy. */
	if (ftruncate(to, st->st_size) < 0)
		return bsh_fail(err, errno, "set the size of %s", name);
	return 0;
}

static int copy_symlink(int from_dir, int to_dir, const char *name, struct bsh_error *err)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(from_dir, name, target, sizeof(target) - 1);

	if (n < 0)
		return bsh_fail(err, errno, "read link %s", name);
	target[n] = 0;
	if (symlinkat(target, to_dir, name) < 0)
		return bsh_fail(err, errno, "make link %s", name);
	return 0;
}

int bsh_copy_is_whiteout(const struct stat *st)
{
	return S_ISCHR(st->st_mode) && st->st_rdev == makedev(0, 0);
}

int bsh_copy_file_over(int from_dir, int to_dir, const char *name, const struct stat *st, unsigned long long *bytes,
	struct bsh_error *err)
{
	int rc = copy_regular(from_dir, to_dir, name, st, true, bytes, err);

	return rc < 0 ? rc : bsh_copy_metadata(from_dir, to_dir, name, st, err);
}

int bsh_copy_entry(int from_dir, int to_dir, const char *name, const struct stat *st, unsigned long long *bytes,
	struct bsh_error *err)
{
	int rc = 0;

	if (S_ISREG(st->st_mode))
		rc = copy_regular(from_dir, to_dir, name, st, false, bytes, err);
	else if (S_ISLNK(st->st_mode))
		rc = copy_symlink(from_dir, to_dir, name, err);
	else if (mknodat(to_dir, name, st->st_mode, st->st_rdev) < 0)
		rc = bsh_fail(err, errno, "make node %s", name);
	if (rc < 0 || bsh_copy_is_whiteout(st))
		return rc;
	return bsh_copy_metadata(from_dir, to_dir, name, st, err);
}
