/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Pipes and sockets that a workspace holds, and whether their other ends are in it as well. */
#include <sys/types.h>

struct bsh_error;
struct bsh_open_file;
struct bsh_ends;

struct bsh_ends *bsh_ends_new(pid_t init_pid);
void bsh_ends_free(struct bsh_ends *ends);
/* Notes a descriptor of the process comm; other kinds than pipes and sockets are ignored. */
void bsh_ends_note(struct bsh_ends *ends, const char *comm, pid_t inner_pid, const struct bsh_open_file *file);
/*
 * Checks what was noted, once every process has been. -EOPNOTSUPP when a process outside holds
 * the other end or a connection leaves the workspace; -EBUSY when one waits to be accepted. The
 * machine's other processes are only looked through when an end is not accounted for inside.
 */
int bsh_ends_check(struct bsh_ends *ends, const pid_t *pids, size_t n_pids, struct bsh_error *err);
