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

/* Mounts it in the calling thread's mount namespace. Returns 0 or -errno, with the failed step in *ret_what. */
int bsh_overlay_mount(const struct bsh_overlay *overlay, const char **ret_what);
