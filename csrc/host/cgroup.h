/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * One workspace's cgroups: a directory of the same name in each hierarchy that is
 * used. The tracker is the hierarchy that freezes and kills: cgroup v2 where it is mounted
 * (also the empty one of a hybrid machine), else the v1 freezer.
 *
 *   v2 or hybrid     tracker = v2 (cgroup.freeze, cgroup.events, cgroup.kill)
 *   v1 only          tracker = v1 freezer (freezer.state), killed process by process
 *   limits           v2 controllers, or the v1 memory, pids and cpu hierarchies
 *   weights          v2 controllers, or the v1 cpu and blkio hierarchies; see cgroup-weight.c
 */
#include <stdbool.h>
#include <sys/types.h>

struct bsh_error;
struct bsh_features;

#define BSH_CGROUPS_MAX 8

struct bsh_cgroup {
	unsigned int n;
	char *dirs[BSH_CGROUPS_MAX]; /* dirs[0] is the tracker's */
	/* cgroup.procs or tasks, opened for writing: a process with one thread enters by writing "0" to each */
	int procs_fds[BSH_CGROUPS_MAX];
	bool tracker_v2;
};

struct bsh_limits {
	unsigned long long memory_max_bytes; /* 0: none */
	unsigned int pids_max;		     /* 0: none */
	unsigned int cpu_weight;	     /* 0: default */
};

/* Makes the directories and sets the limits; a limit that this machine cannot hold is -EOPNOTSUPP. */
int bsh_cgroup_make(const struct bsh_features *features, const char *name, const struct bsh_limits *limits,
	struct bsh_cgroup *ret_cgroup, struct bsh_error *err);
/* Processes and threads, from now on; those that are there already may be more. */
int bsh_cgroup_limit_pids(
	const struct bsh_features *features, const char *name, unsigned int pids_max, struct bsh_error *err);
/*
 * What it gets of processors and disks when others want them too: 1 to 10000, 100 is normal, 0 leaves one as it is.
 * Idle: a processor only while nobody else wants it. A machine without the means does what it can; the CPU's
 * weight is -EOPNOTSUPP where nothing at all can be done.
 */
#define BSH_WEIGHT_IDLE 1
int bsh_cgroup_weigh(const struct bsh_features *features, const char *name, unsigned int cpu_weight,
	unsigned int io_weight, struct bsh_error *err);
/* Attaches to directories that exist already; those that do not are left out. */
void bsh_cgroup_find(const struct bsh_features *features, const char *name, struct bsh_cgroup *ret_cgroup);
/* Closes descriptors and frees memory; the directories stay. */
void bsh_cgroup_release(struct bsh_cgroup *cgroup);

/* Returns once every task stands still, -ETIMEDOUT after timeout_ms (then it is thawed again). */
int bsh_cgroup_freeze(const struct bsh_cgroup *cgroup, int timeout_ms, struct bsh_error *err);
/* Returns once the kernel says that it is thawed. */
int bsh_cgroup_thaw(const struct bsh_cgroup *cgroup, struct bsh_error *err);
/* Kills everything in it and below, frozen or not, and waits until it is empty; counts the killed in *ret_killed (may
 * be NULL). */
int bsh_cgroup_kill(const struct bsh_cgroup *cgroup, unsigned int *ret_killed, struct bsh_error *err);
/* Removes the directories with their children; all must be empty of processes. */
int bsh_cgroup_remove(const struct bsh_cgroup *cgroup, struct bsh_error *err);
/* Removes a child made by bsh_cgroup_child_make if it is empty of processes. */
void bsh_cgroup_remove_dir(const struct bsh_cgroup *child);
/* Mount points of the hierarchies that are used, the tracker's first; returns how many. */
size_t bsh_cgroup_mounts(const struct bsh_features *features, const char *mounts[BSH_CGROUPS_MAX]);
/* Keeps a text with the directories for as long as they are there; nothing happens where the kernel cannot. */
void bsh_cgroup_note(const struct bsh_cgroup *cgroup, const char *text);
/* -ENODATA when there is none; *ret_text is freed by the caller. */
int bsh_cgroup_note_read(const char *dir, char **ret_text);
/* Processes in it and below, as this pid namespace sees them; *ret_pids is freed by the caller. */
int bsh_cgroup_pids(const struct bsh_cgroup *cgroup, pid_t **ret_pids, size_t *ret_n, struct bsh_error *err);
/* Kernel memory charged to it; 0 where the machine does not tell. */
unsigned long long bsh_cgroup_kernel_bytes(const struct bsh_cgroup *cgroup);

/*
 * A child of the tracker for one command, so that all its descendants can be killed.
 * It has one directory only; the other hierarchies stay the parent's.
 */
int bsh_cgroup_child_make(
	const struct bsh_cgroup *cgroup, const char *name, struct bsh_cgroup *ret_child, struct bsh_error *err);
