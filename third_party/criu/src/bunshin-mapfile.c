// SPDX-License-Identifier: GPL-2.0-only
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "types.h"
#include "bunshin-mapfile.h"
#include "bunshin-pool.h"
#include "log.h"
#include "proc_parse.h"
#include "vma.h"
#include "xmalloc.h"

#define BUCKETS 512

struct mapfile {
	struct mapfile *next;
	unsigned long inode;
	struct stat st;
	unsigned int fdflags;
	int fd, mnt_id;
	bool frozen; /* st is of now that the source is frozen */
	char path[];
};

static struct mapfile *files[BUCKETS];
static ino_t mount_namespace;

static void forget_all(void)
{
	size_t i;

	for (i = 0; i < BUCKETS; i++) {
		while (files[i]) {
			struct mapfile *file = files[i];

			files[i] = file->next;
			close(file->fd);
			xfree(file);
		}
	}
}

void bunshin_mapfile_task(pid_t pid)
{
	char path[64];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/ns/mnt", pid);
	if (!stat(path, &st) && st.st_ino == mount_namespace)
		return;
	forget_all();
	mount_namespace = st.st_ino;
}

static struct mapfile *find(const char *path, unsigned long inode, const struct vma_area *vma)
{
	struct mapfile *file;

	if (!bunshin_recording() || !(vma->e->flags & MAP_PRIVATE))
		return NULL;
	for (file = files[inode % BUCKETS]; file; file = file->next)
		if (file->inode == inode && !strcmp(file->path, path))
			return file;
	return NULL;
}

bool bunshin_mapfile_flags(const char *path, unsigned long inode, struct vma_area *vma)
{
	struct mapfile *file = find(path, inode, vma);

	if (!file)
		return false;
	vma->e->fdflags = file->fdflags;
	vma->e->has_fdflags = true;
	return true;
}

bool bunshin_mapfile_open(const char *path, unsigned long inode, struct vma_area *vma, int *ret_fd)
{
	struct mapfile *file = find(path, inode, vma);
	struct stat *st = file ? xmalloc(sizeof(*st)) : NULL;

	if (!st)
		return false;
	*ret_fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 3);
	if (*ret_fd < 0) {
		xfree(st);
		return false;
	}
	*st = file->st;
	vma->vmst = st;
	return true;
}

void bunshin_mapfile_keep(const char *path, unsigned long inode, struct vma_area *vma, int fd)
{
	struct mapfile *file;

	if (!bunshin_recording() || fd < 0 || !(vma->e->flags & MAP_PRIVATE) || !vma->vmst || !S_ISREG(vma->vmst->st_mode))
		return;
	file = xmalloc(sizeof(*file) + strlen(path) + 1);
	if (!file)
		return;
	*file = (struct mapfile){ .inode = inode, .st = *vma->vmst, .fdflags = vma->e->fdflags, .mnt_id = -1 };
	strcpy(file->path, path);
	file->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (file->fd < 0) {
		xfree(file);
		return;
	}
	file->next = files[inode % BUCKETS];
	files[inode % BUCKETS] = file;
}

static struct mapfile *find_by_stat(const struct vma_area *vma)
{
	struct mapfile *file = NULL;

	if (bunshin_recording() && (vma->e->flags & MAP_PRIVATE) && vma->vmst)
		for (file = files[vma->vmst->st_ino % BUCKETS]; file; file = file->next)
			if (file->st.st_ino == vma->vmst->st_ino && file->st.st_dev == vma->vmst->st_dev)
				break;
	return file;
}

int bunshin_mapfile_fd(const struct vma_area *vma)
{
	struct mapfile *file = find_by_stat(vma);

	return file ? file->fd : -1;
}

int bunshin_mapfile_stat(const struct vma_area *vma)
{
	struct mapfile *file = find_by_stat(vma);

	if (!file || (!file->frozen && fstat(file->fd, &file->st)))
		return -1;
	file->frozen = true;
	*vma->vmst = file->st;
	return 0;
}

int bunshin_mapfile_mnt_id(struct vma_area *vma, int fd)
{
	struct mapfile *file = find_by_stat(vma);

	if (file && file->mnt_id >= 0) {
		vma->mnt_id = file->mnt_id;
		return 0;
	}
	if (get_fd_mntid(fd, &vma->mnt_id))
		return -1;
	if (file)
		file->mnt_id = vma->mnt_id;
	return 0;
}
