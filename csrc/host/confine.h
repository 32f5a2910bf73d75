/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * What a workspace's processes may not do: capabilities beyond a small set,
 * new privileges by setuid files, and the system calls of the filter. Only system calls, so it
 * may run between fork and exec. The same code is in the workspace's init.
 */

/* Capabilities kept, as a bit mask. */
#define BSH_CAPS_KEPT 0x405fbULL

/* Drops capabilities for good. Returns -errno. */
int bsh_confine_caps(void);
/* Sets no_new_privs and loads the system call filter. Returns -errno. */
int bsh_confine_syscalls(void);
/* Becomes uid and gid without other groups. Returns -errno. */
int bsh_become(unsigned int uid, unsigned int gid);
