/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* The overlay that is a workspace's root. */

struct bsh_overlay {
	const char *const *layers; /* lower directories, top first, absolute */
	const char *upper;
	const char *work;
	const char *root; /* where to mount */
	int lowerdir_add; /* the kernel knows "lowerdir+" */
};

/*
 * The same layers without an upper directory, mounted nowhere: what a workspace on them begins with, whatever one does
 * to it. Needs "lowerdir+" and two layers. -1: there is none.
 */
int bsh_overlay_view(const char *const *layers);

/* Mounts it in the calling thread's mount namespace. Returns 0 or -errno, with the failed step in *ret_what. */
int bsh_overlay_mount(const struct bsh_overlay *overlay, const char **ret_what);
