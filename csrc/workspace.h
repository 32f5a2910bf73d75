/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Inside of a workspace. It owns everything from its first directory on, so a
 * half-made one is given up with bsh_workspace_free like any other:
 *
 *   start     bsh_workspace_prepare, run init in the place, bsh_workspace_adopt
 *   branch    bsh_workspace_prepare, engine->branch in the place, bsh_workspace_adopt
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/api.h"
#include "engine/engine.h"
#include "host/cgroup.h"
#include "host/features.h"
#include "registry.h"

struct bsh_core {
	atomic_uint refs; /* one of the opener's, one of each workspace and snapshot */
	pid_t pid;	  /* of the process that opened it: in a forked child nothing of it is touched */
	char *home;	  /* absolute, resolved */
	char *criu;
	const struct bsh_features *features;
	char *cgroup_base; /* "bunshin/KEY": KEY tells state directories apart */
};

struct bsh_core *bsh_core_get(struct bsh_core *core); /* takes a reference; given back by bsh_core_free */
/* What tells a state directory from all others, however it is spelled; as long as it is there. */
char *bsh_home_key(const struct stat *info);
/* False in a child that was forked after the core was opened. */
bool bsh_core_is_ours(const struct bsh_core *core);
/* Can workspaces be made here at all? Says what is missing. */
int bsh_core_check(const struct bsh_core *core, struct bsh_error *err);

struct bsh_workspace {
	struct bsh_core *core;
	pthread_mutex_t lock;	  /* held by start, stop, freeze, thaw, snapshot; exec only counts itself */
	struct bsh_record record; /* layers, env, limits, label */
	char *dir;		  /* HOME/workspaces/ID; upper, work and root are in it */
	char *upper;
	char *root; /* mount point inside mntns_fd */
	struct bsh_cgroup cgroup;
	int mntns_fd;	/* of the place; -1 once adopted */
	int netns_fd;	/* kept for snapshots */
	pid_t init_pid; /* 0 until adopted and after the stop */
	int init_pidfd;
	bool frozen;
	unsigned int cpu_weight_now; /* 0: what it was started with */
	unsigned int io_weight_now;
	unsigned int running_execs; /* a snapshot refuses while there are any; under lock */
	unsigned int exec_serial;
	struct bsh_layer_index
		*layer_index; /* of upper at its last snapshot; NULL: none (layer.h), freed with the handle */
	void *origin;	      /* what the engine keeps of the snapshot it came from; given back at the stop */
	void (*origin_release)(void *origin);
	struct bsh_workspace *next_making; /* see struct bsh_snapshot, whose lock guards it */
};

/* Directory, record, cgroups, namespaces with the overlay mounted; no process yet. record gives all but id and owner.
 */
int bsh_workspace_prepare(
	struct bsh_core *core, const struct bsh_record *record, struct bsh_workspace **ret_ws, struct bsh_error *err);
/* The engine's view of a prepared workspace; points into ws. */
void bsh_workspace_place(const struct bsh_workspace *ws, struct bsh_place *ret_place);
/* init runs as pid: writes it into the record, lets go of the place's mount namespace. */
int bsh_workspace_adopt(struct bsh_workspace *ws, pid_t pid, struct bsh_error *err);

/* Freeze and thaw for those that hold ws->lock. */
int bsh_workspace_freeze_locked(struct bsh_workspace *ws, struct bsh_error *err);
int bsh_workspace_thaw_locked(struct bsh_workspace *ws, struct bsh_error *err);
/* Kills all in the cgroups of that name and removes them; ret_there: whether there were any. */
int bsh_cgroup_reap(const struct bsh_features *features, const char *name, unsigned int *ret_killed, bool *ret_there,
	struct bsh_error *err);
/* Waits for the end of a process that was killed, also if a dump or a restore holds on to it; -ETIMEDOUT. */
int bsh_killed_wait(pid_t pid, int pidfd);
/* Kills all in a workspace's cgroup; returns once its init has ended, whose owner may have died before it knew it. */
int bsh_processes_end(const struct bsh_cgroup *cgroup, unsigned int *ret_killed, struct bsh_error *err);
/* As bsh_workspace_weigh, but 0 leaves a weight as it is; for those that hold ws->lock or have ws for themselves; also
 * before anything runs in it. */
int bsh_workspace_weigh_locked(
	struct bsh_workspace *ws, unsigned int cpu_weight, unsigned int io_weight, struct bsh_error *err);
/*
 * Until the next call of the other, the weights that it was started with, so that an idle one need not wait for a
 * processor to freeze or to end; nothing to do for others. What fails only takes longer.
 */
void bsh_workspace_hasten(struct bsh_workspace *ws);
void bsh_workspace_relax(struct bsh_workspace *ws);
/* The weights that it was started with; likewise. */
int bsh_workspace_weigh_own(struct bsh_workspace *ws, struct bsh_error *err);
/* -ESRCH with a message when init has ended; for those that hold ws->lock. */
int bsh_workspace_check_alive(struct bsh_workspace *ws, struct bsh_error *err);
