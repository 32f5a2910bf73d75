/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef BUNSHIN_MAPFILE_H
#define BUNSHIN_MAPFILE_H

#include <stdbool.h>
#include <sys/types.h>

struct vma_area;

/*
 * What a dump looks up of a mapped file, once for each file and not for each mapping.
 * For private mappings only; all are no-ops outside of a recording.
 */

/* The mappings of @pid come next: files of another mount namespace are others. */
void bunshin_mapfile_task(pid_t pid);
/* True: the mapping's flags of opening are known and set. */
bool bunshin_mapfile_flags(const char *path, unsigned long inode, struct vma_area *vma);
/* True: the file is known, *ret_fd is open on it and the mapping has its stat. */
bool bunshin_mapfile_open(const char *path, unsigned long inode, struct vma_area *vma, int *ret_fd);
/* The mapping's file has been looked up by other means. */
void bunshin_mapfile_keep(const char *path, unsigned long inode, struct vma_area *vma, int fd);
/* A descriptor of the mapping's file, not the caller's to close; -1: none is kept. */
int bunshin_mapfile_fd(const struct vma_area *vma);
/* The source is frozen: the mapping's stat becomes that of now, for which the file is asked once. -1: none is kept. */
int bunshin_mapfile_stat(const struct vma_area *vma);
/* As get_fd_mntid(). */
int bunshin_mapfile_mnt_id(struct vma_area *vma, int fd);

#endif
