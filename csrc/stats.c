/* SPDX-License-Identifier: Apache-2.0 */
/* What a workspace takes: memory by who shares it, page tables, files. */
#include <errno.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "host/census.h"
#include "host/procfs.h"
#include "workspace.h"

#define PAGE 4096ULL

static int add_process(struct bsh_census *census, pid_t pid, struct bsh_stats *stats, struct bsh_error *err)
{
	auto_free char *rollup = NULL;
	struct bsh_proc_status status;
	unsigned long long pss;
	int rc = bsh_proc_status_read(pid, &status, err);

	if (rc == 0)
		rc = bsh_proc_read(pid, "smaps_rollup", &rollup, err);
	if (rc < 0)
		return rc;
	/* A zombie has no memory and an empty file. */
	if (bsh_smaps_rollup_parse(rollup, "Pss", &pss) < 0)
		return 0;
	rc = bsh_census_add(census, 0, pid, err);
	if (rc < 0)
		return rc;
	stats->processes++;
	stats->threads += status.threads;
	stats->page_table_bytes += status.page_table_bytes;
	stats->pss_bytes += pss;
	return 0;
}

static int settle(struct bsh_census *census, struct bsh_stats *stats, struct bsh_error *err)
{
	struct bsh_page_counts all;
	int rc = bsh_census_settle(census, NULL, &all, err);

	for (int kind = 0; rc == 0 && kind < BSH_PAGE_KINDS; kind++) {
		stats->unique_bytes += all.unique[kind] * PAGE;
		stats->shared_bytes += all.shared[kind] * PAGE;
	}
	return rc;
}

static int gather(struct bsh_workspace *ws, struct bsh_stats *stats, struct bsh_error *err)
{
	struct bsh_census census;
	auto_free pid_t *pids = NULL;
	size_t n = 0;
	int rc = bsh_cgroup_pids(&ws->cgroup, &pids, &n, err);

	if (rc < 0)
		return rc;
	rc = bsh_census_init(&census, ws->core->features, 1, err);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		rc = add_process(&census, pids[i], stats, err);
		if (rc == -ESRCH) /* ended meanwhile */
			rc = 0;
	}
	if (rc == 0)
		rc = settle(&census, stats, err);
	bsh_census_release(&census);
	if (rc == 0)
		rc = bsh_disk_usage(ws->upper, &stats->layer_bytes, err);
	stats->kernel_bytes = bsh_cgroup_kernel_bytes(&ws->cgroup);
	return rc;
}

int bsh_workspace_stats(struct bsh_workspace *ws, struct bsh_stats *ret_stats, struct bsh_error *err)
{
	struct bsh_stats stats = {0};
	int rc;

	pthread_mutex_lock(&ws->lock);
	rc = bsh_workspace_check_alive(ws, err);
	if (rc == 0)
		rc = gather(ws, &stats, err);
	pthread_mutex_unlock(&ws->lock);
	if (rc < 0)
		return bsh_context(err, rc, "stats of %s", ws->record.id);
	*ret_stats = stats;
	return 0;
}
