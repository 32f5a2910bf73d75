/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Scope owns: auto_X releases when the scope ends; handing over is visible (bsh_take_X). */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void bsh_close_fd(const int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	errno = saved;
}

static inline void bsh_free_memory(void *pointer)
{
	free(*(void **)pointer);
}

static inline void bsh_close_file(FILE **file)
{
	if (*file)
		fclose(*file);
}

static inline void bsh_close_dir(DIR **dir)
{
	if (*dir)
		closedir(*dir);
}

#define auto_close __attribute__((cleanup(bsh_close_fd)))
#define auto_free __attribute__((cleanup(bsh_free_memory)))
#define auto_fclose __attribute__((cleanup(bsh_close_file)))
#define auto_closedir __attribute__((cleanup(bsh_close_dir)))

static inline int bsh_take_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

#define bsh_take(pointer)                                                                                              \
	({                                                                                                             \
		__typeof__(pointer) bsh_taken_ = (pointer);                                                            \
		(pointer) = NULL;                                                                                      \
		bsh_taken_;                                                                                            \
	})
