/* SPDX-License-Identifier: Apache-2.0 */
#include "host/shm.h"

#include <errno.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "host/openfiles.h"
#include "host/procfs.h"

/* The objects met so far. All are on one file system, which nobody can mount: the inode names them. */
struct objects {
	dev_t device;
	ino_t *inodes; /* room for a power of two */
	size_t n;
	unsigned long long bytes;
};

static bool is_known(const struct objects *objects, ino_t inode)
{
	for (size_t i = objects->n; i > 0; i--)
		if (objects->inodes[i - 1] == inode)
			return true;
	return false;
}

static int add_object(struct objects *objects, const struct stat *info, struct bsh_error *err)
{
	if (info->st_dev != objects->device || is_known(objects, info->st_ino))
		return 0;
	if ((objects->n & (objects->n + 1)) == 0) {
		ino_t *more = realloc(objects->inodes, (objects->n + 1) * 2 * sizeof(*more));

		if (!more)
			return bsh_fail(err, ENOMEM, "list shared memory");
		objects->inodes = more;
	}
	objects->inodes[objects->n++] = info->st_ino;
	objects->bytes += (unsigned long long)info->st_blocks * 512;
	return 0;
}

static int add_mapped(struct objects *objects, pid_t pid, struct bsh_error *err)
{
	auto_free char *maps = NULL;
	struct bsh_error gone = {0};
	const char *cursor;
	struct bsh_vma vma;
	int rc = bsh_proc_read(pid, "maps", &maps, &gone);

	if (rc < 0)
		return rc == -ESRCH ? 0 : bsh_fail(err, -rc, "%s", gone.msg);
	cursor = maps;
	while ((rc = bsh_maps_next(&cursor, &vma)) > 0) {
		struct stat info;
		char path[96];

		if (makedev(vma.dev_major, vma.dev_minor) != objects->device || is_known(objects, vma.inode))
			continue;
		snprintf(path, sizeof(path), "/proc/%d/map_files/%llx-%llx", pid, (unsigned long long)vma.start,
			(unsigned long long)vma.end);
		/* Unmapped meanwhile, if it cannot be looked at. */
		rc = stat(path, &info) < 0 ? 0 : add_object(objects, &info, err);
		if (rc < 0)
			return rc;
	}
	return rc < 0 ? bsh_fail(err, -rc, "parse /proc/%d/maps", pid) : 0;
}

static int visit_open(void *context, const struct bsh_open_file *file, struct bsh_error *err)
{
	struct stat info;

	if (file->link[0] != '/' || fstatat(file->dir_fd, file->name, &info, 0) < 0)
		return 0;
	return add_object(context, &info, err);
}

static unsigned long long dev_shm_bytes(pid_t pid)
{
	auto_free char *path = bsh_format("/proc/%d/root/dev/shm", pid);
	struct statfs info;

	if (statfs(path, &info) < 0 || info.f_type != TMPFS_MAGIC)
		return 0;
	return (info.f_blocks - info.f_bfree) * (unsigned long long)info.f_bsize;
}

static int find_device(dev_t *ret_device, struct bsh_error *err)
{
	auto_close int fd = memfd_create("bunshin", MFD_CLOEXEC);
	struct stat info;

	if (fd < 0 || fstat(fd, &info) < 0)
		return bsh_fail(err, errno, "make a memfd");
	*ret_device = info.st_dev;
	return 0;
}

int bsh_shm_bytes(const pid_t *pids, size_t n_pids, unsigned long long *ret_bytes, struct bsh_error *err)
{
	struct objects objects = {0};
	int rc = find_device(&objects.device, err);

	for (size_t i = 0; rc == 0 && i < n_pids; i++) {
		rc = add_mapped(&objects, pids[i], err);
		if (rc == 0)
			rc = bsh_open_files_visit_if_alive(pids[i], visit_open, &objects, err);
	}
	free(objects.inodes);
	if (rc == 0)
		*ret_bytes = objects.bytes + (n_pids ? dev_shm_bytes(pids[0]) : 0);
	return rc;
}
