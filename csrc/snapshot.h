/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Inside of a snapshot.
 *
 *   snapshot --+--> origin (engine + its state) <--+-- branch 1
 *              |         dropped with the last     +-- branch 2
 *              +--> HOME/snapshots/ID, HOME/layers/ID
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "engine/engine.h"
#include "host/affinity.h"
#include "registry.h"

struct bsh_core;

/* What the engine keeps; shared by the snapshot and the branches that came from it. */
struct bsh_origin {
	const struct bsh_engine *engine;
	void *state;
	_Atomic unsigned int refs;
};
struct bsh_origin *bsh_origin_get(struct bsh_origin *origin);
/* Takes void, to be a workspace's origin_release. */
void bsh_origin_put(void *origin);

struct bsh_snapshot {
	struct bsh_core *core;
	struct bsh_record record; /* layers: what a branch is stacked on */
	char *dir;
	struct bsh_origin *origin;
	struct bsh_affinity affinity;
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t idle;
	unsigned int branching;	      /* branches in the making; a drop waits for them */
	struct bsh_workspace *making; /* those of them that were weighed, linked by next_making */
	bool dropped;
	bool viewed; /* view_fd was looked for */
	int view_fd; /* its layers, read-only, mounted nowhere; -1: none */
};

/* Takes over record, whose id, layers and engine are set; makes the registry's entry. No state of the engine yet. */
int bsh_snapshot_register(struct bsh_core *core, struct bsh_record *record, const struct bsh_engine *engine,
	struct bsh_snapshot **ret_snap, struct bsh_error *err);
/* Once the engine is prepared: so that others find the memory too, `gc`, and accounts that another process makes. */
int bsh_snapshot_note_holder(struct bsh_snapshot *snap, struct bsh_error *err);
/* Between these two the snapshot is not dropped: who wants to waits. -ESTALE when it has been. */
int bsh_snapshot_enter(struct bsh_snapshot *snap, struct bsh_error *err);
void bsh_snapshot_leave(struct bsh_snapshot *snap);
/* Made by a snapshot, and neither the runtime layer nor an image. */
bool bsh_layer_is_own(const struct bsh_core *core, const char *layer);
