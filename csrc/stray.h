/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Workspaces whose state directory was deleted as a whole, record and all: what is left of one is its
 * processes and its cgroups. So a note that is kept with the cgroups tells whose they are:
 *
 *   owner=PID START BOOT
 *   pidns=INODE             the numbers above mean something in this pid namespace only,
 *   mntns=INODE             and the path below in this mount namespace
 *   home=PATH
 */
struct bsh_cgroup;
struct bsh_core;
struct bsh_error;
struct bsh_owner;

/* Signs new cgroups. Where the kernel cannot keep the note, only this kind of reaping is lost. */
void bsh_stray_sign(const struct bsh_core *core, const struct bsh_owner *owner, const struct bsh_cgroup *cgroup);
/*
 * Ends what other state directories have left on this machine: theirs are gone, and so are their owners. All of
 * it that cannot be judged from here stays. Counts workspaces; one that cannot be reaped does not keep the others.
 */
int bsh_strays_reap(const struct bsh_core *core, unsigned int *ret_n, struct bsh_error *err);
