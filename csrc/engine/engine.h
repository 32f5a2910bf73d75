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
 *   save      beside all this: a complete directory of CRIU images, for another day
 *   load      instead of prepare, record, finish: from such a directory, whichever engine wrote it
 *   drop      forget the snapshot's memory
 */
#include <sys/types.h>

#include "base/error.h"

struct bsh_trace;

/* Where the source is. Descriptors stay the caller's. */
struct bsh_source {
	const char *id;
	pid_t pid;	     /* init, as the host sees it */
	const char *freezer; /* its freezer cgroup's directory */
	const char *upper;   /* its overlay's upper directory, on the host */
	const pid_t *pids;   /* its processes; complete once it is frozen */
	size_t n_pids;
	int netns_fd;
	void *parent; /* engine state of the snapshot it was branched from, same engine; or NULL */
	/*
	 * Copies the files that the frozen source has changed. record calls it from its own
	 * thread, once its own work is under way elsewhere; a second time if that work made
	 * files in the source (links for open files that lost their name).
	 */
	int (*capture_files)(void *context, struct bsh_trace *trace, struct bsh_error *err);
	void *context;
};

/* What became of the memory. Engines add to it. */
struct bsh_carried {
	unsigned long long copied_bytes;
	unsigned long long shared_bytes; /* copy-on-write instead */
};

/* Where a branch shall come to life. Descriptors stay the caller's. */
struct bsh_place {
	const char *id;
	int mntns_fd;	       /* mount namespace with the overlay mounted at root */
	const char *root;      /* path of the overlay root inside that namespace */
	int netns_fd;	       /* network namespace with loopback up */
	const int *cgroup_fds; /* files to enter the cgroups by, opened for writing; see cgroup.h */
	unsigned int n_cgroups;
	const char *upper;     /* its overlay's upper directory, on the host */
	int view_fd;	       /* what is below that, to be read beside the overlay; -1: nothing */
	const char *cgroup_v2; /* directory of the first of them, if that is v2: one can be born there; else NULL */
};

struct bsh_engine {
	const char *name;
	/* 0 if it can work here; else -errno and why. */
	int (*probe)(const char *criu, struct bsh_error *err);
	int (*prepare)(const struct bsh_source *src, const char *criu, const char *dir, struct bsh_trace *trace,
		void **ret_state, struct bsh_error *err);
	int (*record)(void *state, const struct bsh_source *src, struct bsh_trace *trace, struct bsh_carried *carried,
		struct bsh_error *err);
	int (*finish)(void *state, struct bsh_trace *trace, struct bsh_carried *carried, struct bsh_error *err);
	/*
	 * Several threads may branch from one state at once. When it returns, nothing of the engine's own is left
	 * in the branch's cgroups: the branch may be frozen or snapshotted at once.
	 */
	int (*branch)(void *state, const struct bsh_place *place, struct bsh_trace *trace, struct bsh_carried *carried,
		pid_t *ret_pid, struct bsh_error *err);
	/* The process that holds the snapshot's memory, once prepared; NULL: this engine has none. */
	pid_t (*holder)(const void *state);
	/*
	 * images is an empty directory. Beside branches, but not beside a drop; takes as long as it
	 * takes. What is written is not synced.
	 */
	int (*save)(void *state, const char *images, struct bsh_error *err);
	/* dir is the snapshot's; images may go once it has returned. */
	int (*load)(const char *criu, const char *images, const char *dir, void **ret_state, struct bsh_error *err);
	/*
	 * Also after a failed record; takes NULL. Called once the snapshot is given up and the last of its
	 * branches has ended (they name it as parent); dir may be gone by then.
	 */
	void (*drop)(void *state);
};

extern const struct bsh_engine bsh_engine_criu;
extern const struct bsh_engine bsh_engine_pool;
extern const struct bsh_engine bsh_engine_kmod;

/* Finds an engine by name, NULL for the default; -EINVAL names the known ones. */
int bsh_engine_find(const char *name, const struct bsh_engine **ret_engine, struct bsh_error *err);
