/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Files with several names in a lower layer. When one of them is changed, overlay copies the file up
 * once and remembers in its index that the other names mean the copy as well:
 *
 *   lower layer   a, b = one file        upper   a = copy       merged   a, b = the copy
 *                                        index   (file) = copy
 *
 * A layer that is made from the upper directory alone would lose b's new content. So it gets those
 * names too.
 */
#include <sys/types.h>

#include "base/error.h"

struct bsh_layer_job;

/* One overlay whose upper directory becomes a layer. */
struct bsh_alias_source {
	const char *index;   /* directory WORK/index */
	char *const *layers; /* its lower directories */
	const char *root;    /* the merged tree, as seen from here; used while frozen only */
};

/* Looks up all names ahead, since the first look into a large layer takes a while. */
int bsh_aliases_look_ahead(const struct bsh_alias_source *source, struct bsh_error *err);
/* Adds the missing names to the layer that bsh_layer_freeze has just made. */
int bsh_aliases_add(struct bsh_layer_job *job, const struct bsh_alias_source *source, struct bsh_error *err);
