/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Overlay layers: an upper directory becomes an immutable lower directory.
 *
 * A layer is a delta: it holds what its upper directory has changed since the
 * same workspace's previous layer, and is stacked on that one.
 *
 *   upper of the workspace      layer 1 (whole)     layer 2 (delta, above 1)
 *     a   changed since   ->      a  b  c             a'  c = whiteout
 *     b   as it was
 *         (c is gone)
 *
 * What the delta is measured against stays in memory (struct bsh_layer_index)
 * as long as the workspace's handle lives; without it a layer is whole. So it is after
 * a directory was renamed: where that lay is told by its place in the layers that the
 * workspace runs on, and not in its own previous ones (marks.h).
 */
#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"

struct bsh_redirects;
struct bsh_layer_index; /* what an upper directory held when its last layer was made */
struct bsh_layer_job;	/* a layer in the making */

/* How many deltas are stacked before the next layer is whole again. */
#define BSH_LAYER_CHAIN_MAX 12

/* Starts a layer in dir, which is made; previous may be NULL and must outlive the job. */
int bsh_layer_begin(const char *upper, const char *dir, const struct bsh_layer_index *previous,
	struct bsh_layer_job **ret_job, struct bsh_error *err);
/* Copies what it can while the workspace runs. Files that change under it are left for bsh_layer_freeze. */
int bsh_layer_copy_ahead(struct bsh_layer_job *job, struct bsh_error *err);
/*
 * Makes the layer exact; the workspace is frozen. pids are its processes: a
 * file that one of them maps shared is copied whatever its times say. May be
 * called again while still frozen.
 */
int bsh_layer_freeze(struct bsh_layer_job *job, const pid_t *pids, size_t n_pids, struct bsh_error *err);

/* Is it no delta, or none any more? To be asked after a freeze: then it stands on what the workspace runs on. */
bool bsh_layer_is_whole(const struct bsh_layer_job *job);

/* ---- for alias.c, after a freeze ---- */
int bsh_layer_fd(const struct bsh_layer_job *job); /* the layer's directory; stays the job's */
/* Where in the layer the upper directory's inode went, if it has several names there; else NULL. */
const char *bsh_layer_path_of(const struct bsh_layer_job *job, ino_t upper_inode);
/* Those of the upper directory; redirects is empty. */
void bsh_layer_upper_redirects(const struct bsh_layer_job *job, struct bsh_redirects *redirects);
bool bsh_layer_has_upper(const struct bsh_layer_job *job, const char *path);
void bsh_layer_add_copied(struct bsh_layer_job *job, unsigned long long bytes);

unsigned long long bsh_layer_copied_bytes(const struct bsh_layer_job *job);
/* Hands over the index of the frozen upper directory. */
struct bsh_layer_index *bsh_layer_take_index(struct bsh_layer_job *job);
/* Ends the job; the directory stays. */
void bsh_layer_job_free(struct bsh_layer_job *job);
void bsh_layer_index_free(struct bsh_layer_index *index);
