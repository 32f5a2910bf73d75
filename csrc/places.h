/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Where on the disk workspaces, snapshots and layers lie. They come and go by the second; ext4 without a journal looks
 * for the number of a new file past all that were deleted in the last minutes near its directory, one by one (see
 * docs/kernel-facts.md). So HOME/places has directories that stay, each in another region of the disk, and
 * what is made in one of them stays there when it is renamed. Other file systems do not mind.
 */
#include <sys/types.h>

struct bsh_error;

int bsh_places_make(const char *home, struct bsh_error *err);
/* mkdir: of HOME/KIND/NAME in one of HOME's places, of another path where it is. */
int bsh_make_apart(const char *path, mode_t mode, struct bsh_error *err);
