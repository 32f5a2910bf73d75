/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * One engine carries processes and memory from a frozen workspace into
 * branches. snapshot.c and fork.c go through this table and know no engine by
 * name; what is common to all (freezing, the file layer, namespaces, cgroups,
 * the registry) is theirs.
 *
 *   prepare   source running: everything that can be done ahead
 *   record    source frozen: the state goes into the snapshot's directory or the pool
 *   finish    source running again: what can wait
 *   branch    namespaces, mounts and cgroup are ready (struct bsh_place): start the tree there
 *   drop      forget the snapshot's memory
 */
#include <sys/types.h>

#include "base/error.h"

struct bsh_trace;

/* Where the frozen source is. Descriptors stay the caller's. */
struct bsh_source {
	const char *id;
	pid_t pid;              /* init, as the host sees it */
	const char *freezer;    /* its freezer cgroup's directory */
	int netns_fd;
	void *parent;           /* engine state of the snapshot it was branched from, same engine; or NULL */
};

/* Where a branch shall come to life. Descriptors stay the caller's. */
struct bsh_place {
	const char *id;
	int mntns_fd;           /* mount namespace with the overlay mounted at root */
	const char *root;       /* path of the overlay root inside that namespace */
	int netns_fd;           /* network namespace with loopback up */
	const int *cgroup_fds;  /* cgroup.procs files to enter, opened for writing */
	unsigned int n_cgroups;
};

struct bsh_engine {
	const char *name;
	/* 0 if it can work here; else -errno and why. */
	int (*probe)(const char *criu, struct bsh_error *err);
	int (*prepare)(const struct bsh_source *src, const char *criu, const char *dir, struct bsh_trace *trace,
		       void **ret_state, struct bsh_error *err);
	int (*record)(void *state, const struct bsh_source *src, struct bsh_trace *trace, struct bsh_error *err);
	int (*finish)(void *state, struct bsh_trace *trace, struct bsh_error *err);
	int (*branch)(void *state, const struct bsh_place *place, struct bsh_trace *trace, pid_t *ret_pid,
		      struct bsh_error *err);
	void (*drop)(void *state); /* also after a failed record; takes NULL */
};

extern const struct bsh_engine bsh_engine_criu;
extern const struct bsh_engine bsh_engine_pool;

/* Finds an engine by name, NULL for the default; -EINVAL names the known ones. */
int bsh_engine_find(const char *name, const struct bsh_engine **ret_engine, struct bsh_error *err);
