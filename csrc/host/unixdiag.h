/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Which Unix sockets are connected, as the kernel's socket diagnosis tells. */
#include <sys/types.h>

struct bsh_error;

typedef void (*bsh_unix_peer_visitor)(void *context, unsigned long inode, unsigned long peer);
/*
 * Visits each connected Unix socket in pid's network namespace with its peer's inode, and each listening
 * one with those that wait to be accepted.
 */
int bsh_unix_peers_visit(pid_t pid, bsh_unix_peer_visitor visit, void *context, struct bsh_error *err);
