/* SPDX-License-Identifier: Apache-2.0 */
#include "places.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"

#define N_PLACES 256u

/* A hint: what is made in this directory has nothing to do with each other. */
static void spread_children(const char *dir)
{
	auto_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int flags;

	if (fd < 0 || ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0 || flags & FS_TOPDIR_FL)
		return;
	flags |= FS_TOPDIR_FL;
	ioctl(fd, FS_IOC_SETFLAGS, &flags);
}

int bsh_places_make(const char *home, struct bsh_error *err)
{
	auto_free char *dir = bsh_format("%s/places", home);
	int rc = bsh_make_dirs(dir, 0700, err);

	if (rc == 0)
		spread_children(dir);
	for (unsigned int i = 0; rc == 0 && i < N_PLACES; i++) {
		auto_free char *place = bsh_format("%s/%02x", dir, i);

		if (mkdir(place, 0700) < 0 && errno != EEXIST)
			rc = bsh_fail(err, errno, "make %s", place);
	}
	return rc;
}

static unsigned int place_of(const char *name)
{
	unsigned int hash = 0;

	for (; *name; name++)
		hash = hash * 31 + (unsigned char)*name;
	return hash % N_PLACES;
}

static int make_here(const char *path, mode_t mode, struct bsh_error *err)
{
	return mkdir(path, mode) == 0 ? 0 : bsh_fail(err, errno, "make %s", path);
}

int bsh_make_apart(const char *path, mode_t mode, struct bsh_error *err)
{
	const char *name = strrchr(path, '/');
	const char *kind = name ? memrchr(path, '/', (size_t)(name - path)) : NULL;
	auto_free char *next = NULL;

	if (!kind)
		return make_here(path, mode, err);
	/* One name for all: what one that was killed left here, another takes. */
	next = bsh_format("%.*s/places/%02x/next", (int)(kind - path), path, place_of(name));
	while (mkdir(next, mode) == 0 || errno == EEXIST) {
		if (rename(next, path) == 0)
			return chmod(path, mode) == 0 ? 0 : bsh_fail(err, errno, "make %s", path);
		if (errno == EXDEV)
			return make_here(path, mode, err);
		/* Gone: another has taken it meanwhile. */
		if (errno != ENOENT || access(next, F_OK) == 0)
			return bsh_fail(err, errno, "make %s", path);
	}
	if (errno != ENOENT && errno != ENOTDIR)
		return bsh_fail(err, errno, "make %s", next);
	return make_here(path, mode, err);
}
