/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* What kernel and machine offer, probed once. */
#include <stdbool.h>

struct bsh_error;

struct bsh_features {
	unsigned int kernel_major;
	unsigned int kernel_minor;
	bool root; /* effective capabilities of a full root */
	bool overlay;
	bool overlay_lowerdir_add; /* "lowerdir+": as many layers as one likes */
	bool pidfd_info;	   /* PIDFD_GET_INFO tells the exit code also after another has reaped */
	bool pagemap_scan;
	bool kpagecount;
	char *cgroup_v2; /* mount point, NULL when absent; may be without controllers */
	bool v2_memory;	 /* controllers that can be used below cgroup_v2 */
	bool v2_pids;
	bool v2_cpu;
	bool v2_io;
	char *cgroup_v1_freezer; /* mount points of v1 hierarchies, NULL when absent */
	char *cgroup_v1_memory;
	char *cgroup_v1_pids;
	char *cgroup_v1_cpu;
	char *cgroup_v1_blkio;
};

/* Probes at the first call; the same struct for the life of the process. BUNSHIN_FREEZER=v1 hides cgroup v2. */
int bsh_features_get(const struct bsh_features **ret_features, struct bsh_error *err);
/* One "name=value" a line. */
char *bsh_features_text(const struct bsh_features *features);
/* Fills in the cgroup mount points from the text of a mountinfo file. */
void bsh_features_parse_mounts(const char *mountinfo, struct bsh_features *features);
