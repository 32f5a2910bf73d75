/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Namespaces of a workspace. */
#include <sys/types.h>

struct bsh_error;

struct bsh_overlay; /* host/mounts.h */

/*
 * Makes a mount namespace, in which the overlay is mounted and nothing propagates to or
 * from the host, and a network namespace with loopback up. Both live by their descriptors.
 */
int bsh_namespaces_make(const struct bsh_overlay *overlay, int *ret_mntns_fd, int *ret_netns_fd, struct bsh_error *err);
/* Opens /proc/PID/ns/NAME. */
int bsh_namespace_open(pid_t pid, const char *name, int *ret_fd, struct bsh_error *err);
