/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Named points where a test makes an operation fail. Off unless bsh_fault_arm() named one; an armed
 * point fails once.
 */
struct bsh_error;

enum bsh_fault {
	BSH_FAULT_SNAPSHOT_REGISTERED, /* the snapshot has its record and directory */
	BSH_FAULT_LAYER_AHEAD,	       /* files were copied ahead */
	BSH_FAULT_ENGINE_PREPARED,
	BSH_FAULT_FROZEN,	/* the source stands still, nothing recorded */
	BSH_FAULT_LAYER_FROZEN, /* in the middle of the engine's recording */
	BSH_FAULT_RECORDED,	/* still frozen */
	BSH_FAULT_THAWED,
	BSH_FAULT_FINISHED,
	BSH_FAULT_BRANCH_REGISTERED, /* the branch has record, cgroup and namespaces, no process */
	BSH_FAULT_BRANCH_RUNNING,    /* its processes run */
	BSH_FAULT_BRANCH_ADOPTED,
	BSH_FAULT_COUNT,
};

/* 0, or -EIO when the point was armed. */
int bsh_fault_hit(enum bsh_fault point, struct bsh_error *err);
