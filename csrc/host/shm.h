/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Shared memory as files of the kernel's own: it takes room whether a process maps it or not. */
#include <sys/types.h>

struct bsh_error;

/*
 * Bytes in the shared-memory objects that the processes of a workspace map or hold open (memfd, shared anonymous,
 * System V), each object once, and in the tmpfs at /dev/shm of the first of them. Who has ended has none.
 */
int bsh_shm_bytes(const pid_t *pids, size_t n_pids, unsigned long long *ret_bytes, struct bsh_error *err);
