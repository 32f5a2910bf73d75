/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Files that processes map shared: their content may change without any trace in the files' times. */
#include <stdbool.h>
#include <sys/types.h>

struct bsh_error;

/*
 * Inodes, sorted, of the files under the directory dir_fd that one of the processes maps shared; dir_fd is
 * what the processes have as their root, or the upper directory of it. The list is the caller's.
 */
int bsh_mapped_inodes(
	int dir_fd, const pid_t *pids, size_t n_pids, ino_t **ret_inodes, size_t *ret_n, struct bsh_error *err);
bool bsh_mapped_has(const ino_t *inodes, size_t n, ino_t inode);
