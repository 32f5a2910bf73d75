/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Several layers become one, so that a long chain of forks does not become a long stack of layers. */
struct bsh_error;

/*
 * Makes the directory dir, which over any lower layer looks like the stack of layers (top first,
 * NULL-terminated) over it. The layers are only read.
 */
int bsh_merge_layers(char *const *layers, const char *dir, struct bsh_error *err);
