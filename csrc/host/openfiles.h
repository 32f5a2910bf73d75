/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* The descriptors of a process, as /proc/PID/fd shows them. */
#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

struct bsh_error;

struct bsh_open_file {
	pid_t pid;
	int fd;
	int dir_fd;	     /* /proc/PID/fd */
	char name[12];	     /* the descriptor's name in it */
	char link[PATH_MAX]; /* "/path", "pipe:[12]", "anon_inode:[eventfd]" */
};

/* A visitor's value other than 0 ends the visit and is returned. */
typedef int (*bsh_open_file_visitor)(void *context, const struct bsh_open_file *file, struct bsh_error *err);
/* Visits each descriptor of pid; one that vanishes meanwhile, or that we may not look into, has none. */
int bsh_open_files_visit_if_alive(pid_t pid, bsh_open_file_visitor visit, void *context, struct bsh_error *err);

/* The inode in "pipe:[INODE]" or "socket:[INODE]"; 0 for another kind. */
unsigned long bsh_link_inode(const char *link, const char *kind);

/* Whether one of the processes holds open a file that lost its name there but has another. */
int bsh_open_files_unnamed(const pid_t *pids, size_t n_pids, bool *ret_any, struct bsh_error *err);
