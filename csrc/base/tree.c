/* SPDX-License-Identifier: Apache-2.0 */
/* Walks over directory trees: removal and size. Depth is bound by memory, not by the stack or by descriptors. */
#include <fcntl.h>
#include <fts.h>
#include <linux/openat2.h>
#include <search.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"

/* Opens a directory below parent without leaving its mount or following a symbolic link. */
static int open_below(int parent, const char *name)
{
	struct open_how how = {
		.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW,
		.resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS,
	};

	return (int)syscall(SYS_openat2, parent, name, &how, sizeof(how));
}

/* Where directories go that are too deep: flattening the tree keeps the open descriptors few. */
#define DEPTH_MAX 64

static int remove_below(int root_fd, int dir_fd, unsigned int depth);

static int remove_entry(int root_fd, int dir_fd, const char *name, unsigned int depth)
{
	auto_close int child = -1;
	static unsigned int serial;
	char flat[48];
	int rc;

	if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return 0;
	if (errno != ENOTEMPTY && errno != EEXIST)
		return -errno;
	if (depth >= DEPTH_MAX) {
		snprintf(flat, sizeof(flat), ".bsh-deep-%d-%u", getpid(),
			__atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED));
		return renameat(dir_fd, name, root_fd, flat) < 0 && errno != ENOENT ? -errno : 1;
	}
	child = open_below(dir_fd, name);
	if (child < 0)
		return errno == ENOENT ? 0 : -errno;
	rc = remove_below(root_fd, child, depth + 1);
	if (rc < 0)
		return rc;
	return unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : rc;
}

/*
 * 0, or 1 when something was moved up into root_fd, or -errno. Another process
 * may be removing the same tree: whatever is gone already is fine.
 */
static int remove_below(int root_fd, int dir_fd, unsigned int depth)
{
	auto_closedir DIR *dir = NULL;
	int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *entry;
	int moved = 0;

	dir = copy < 0 ? NULL : fdopendir(copy);
	if (!dir) {
		bsh_close_fd(&copy);
		return errno == ENOENT ? 0 : -errno;
	}
	while ((errno = 0, entry = readdir(dir))) {
		int rc;

		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		rc = remove_entry(root_fd, dir_fd, entry->d_name, depth);
		if (rc < 0)
			return rc;
		moved |= rc;
	}
	return errno && errno != ENOENT ? -errno : moved;
}

int bsh_remove_tree(int dir_fd, const char *path, struct bsh_error *err)
{
	auto_close int root_fd = -1;
	int rc;

	if (unlinkat(dir_fd, path, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return bsh_fail(err, errno, "remove %s", path);
	root_fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (root_fd < 0)
		return errno == ENOENT ? 0 : bsh_fail(err, errno, "open %s", path);
	do {
		rc = remove_below(root_fd, root_fd, 0);
	} while (rc > 0);
	if (rc < 0)
		return bsh_fail(err, -rc, "remove what is in %s", path);
	if (unlinkat(dir_fd, path, AT_REMOVEDIR) < 0 && errno != ENOENT)
		return bsh_fail(err, errno, "remove %s", path);
	return 0;
}

struct seen {
	dev_t dev;
	ino_t ino;
};

static int compare_seen(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct seen));
}

/* Counts a file with several names once; those with one name need no look-up. */
static bool first_sight(void **set, const struct stat *info)
{
	struct seen *key;
	void **found;

	if (S_ISDIR(info->st_mode) || info->st_nlink < 2)
		return true;
	key = bsh_alloc(sizeof(*key));
	key->dev = info->st_dev;
	key->ino = info->st_ino;
	found = tsearch(key, set, compare_seen);
	if (*found == key)
		return true;
	free(key);
	return false;
}

int bsh_disk_usage(const char *path, unsigned long long *ret_bytes, struct bsh_error *err)
{
	char *paths[] = {(char *)path, NULL};
	FTS *walk = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
	unsigned long long bytes = 0;
	void *set = NULL;
	FTSENT *entry;
	int rc = 0;

	if (!walk)
		return bsh_fail(err, errno, "open %s", path);
	while ((errno = 0, entry = fts_read(walk))) {
		/* Files come and go while we look. */
		if (entry->fts_info == FTS_NS || entry->fts_info == FTS_DNR || entry->fts_info == FTS_DP)
			continue;
		if (first_sight(&set, entry->fts_statp))
			bytes += (unsigned long long)entry->fts_statp->st_blocks * 512;
	}
	if (errno)
		rc = bsh_fail(err, errno, "walk %s", path);
	fts_close(walk);
	tdestroy(set, free);
	if (rc == 0)
		*ret_bytes = bytes;
	return rc;
}
