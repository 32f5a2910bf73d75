/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Copies directory entries exactly: content, holes, owner, mode, times, extended attributes. */
#include <sys/stat.h>

#include "base/error.h"

/*
 * Copies the entry name, which is no directory and looked like *st, from one
 * directory to another; the target must not exist. Adds the bytes of content
 * that were copied rather than shared to *bytes.
 */
int bsh_copy_entry(int from_dir, int to_dir, const char *name, const struct stat *st, unsigned long long *bytes,
	struct bsh_error *err);

/* The same for a regular file whose earlier copy may lie there: what of it can be used is. */
int bsh_copy_file_over(int from_dir, int to_dir, const char *name, const struct stat *st, unsigned long long *bytes,
	struct bsh_error *err);

/* Gives the entry name of to_dir the owner, mode, times and attributes that *st and from_dir's have. */
int bsh_copy_metadata(int from_dir, int to_dir, const char *name, const struct stat *st, struct bsh_error *err);

/* Overlay's mark for "deleted here": a character device 0:0. */
int bsh_copy_is_whiteout(const struct stat *st);
