/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/text.h"
#include "host/advice.h"
#include "host/mounts.h"
#include "host/spawn.h"
#include "host/trace.h"
#include "snapshot.h"
#include "workspace.h"

int bsh_snapshot_enter(struct bsh_snapshot *snap, struct bsh_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&snap->lock);
	if (snap->dropped)
		rc = bsh_fail(err, ESTALE, "snapshot %s has been dropped", snap->record.id);
	else
		snap->branching++;
	pthread_mutex_unlock(&snap->lock);
	return rc;
}

void bsh_snapshot_leave(struct bsh_snapshot *snap)
{
	pthread_mutex_lock(&snap->lock);
	if (--snap->branching == 0)
		pthread_cond_broadcast(&snap->idle);
	pthread_mutex_unlock(&snap->lock);
}

static int make_place(
	struct bsh_snapshot *snap, const char *label, struct bsh_workspace **ret_ws, struct bsh_error *err)
{
	struct bsh_record record;
	struct timespec now;
	int rc;

	bsh_record_copy(&record, &snap->record);
	free(record.parent);
	record.parent = bsh_strdup(snap->record.id);
	if (label) {
		free(record.label);
		record.label = bsh_strdup(label);
	}
	clock_gettime(CLOCK_REALTIME, &now);
	record.created_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
	rc = bsh_workspace_prepare(snap->core, &record, ret_ws, err);
	bsh_record_release(&record);
	return rc;
}

static int apply_affinity(struct bsh_snapshot *snap, struct bsh_workspace *ws, struct bsh_error *err)
{
	auto_free pid_t *pids = NULL;
	size_t n = 0;
	int rc;

	if (!snap->affinity.n)
		return 0;
	rc = bsh_cgroup_pids(&ws->cgroup, &pids, &n, err);
	return rc < 0 ? rc : bsh_affinity_apply(&snap->affinity, pids, n, err);
}

/* Made for the first branch. */
static int view_of(struct bsh_snapshot *snap)
{
	int fd;

	pthread_mutex_lock(&snap->lock);
	if (!snap->viewed && snap->core->features->overlay_lowerdir_add)
		snap->view_fd = bsh_overlay_view((const char *const *)snap->record.layers);
	snap->viewed = true;
	fd = snap->view_fd;
	pthread_mutex_unlock(&snap->lock);
	return fd;
}

static int run_engine(struct bsh_snapshot *snap, struct bsh_workspace *ws, struct bsh_trace *trace,
	struct bsh_carried *carried, int *ret_pidfd, struct bsh_error *err)
{
	struct bsh_origin *origin = snap->origin;
	struct bsh_place place;
	pid_t pid;
	int rc;

	bsh_workspace_place(ws, &place);
	place.view_fd = view_of(snap);
	rc = bsh_fault_hit(BSH_FAULT_BRANCH_REGISTERED, err);
	if (rc == 0)
		rc = origin->engine->branch(origin->state, &place, trace, carried, &pid, err);
	if (rc == 0)
		rc = bsh_pidfd_open(pid, ret_pidfd, err);
	if (rc == 0)
		rc = bsh_fault_hit(BSH_FAULT_BRANCH_RUNNING, err);
	if (rc == 0)
		rc = apply_affinity(snap, ws, err);
	if (rc == 0)
		rc = bsh_workspace_adopt(ws, pid, err);
	if (rc < 0)
		return rc;
	ws->origin = bsh_origin_get(origin);
	ws->origin_release = bsh_origin_put;
	return bsh_fault_hit(BSH_FAULT_BRANCH_ADOPTED, err);
}

/* What a branch is called, and what it gets of CPU and disks; 0 is as its source. */
struct manner {
	const char *label;
	unsigned int cpu_weight;
	unsigned int io_weight;
};

static void begin_making(struct bsh_snapshot *snap, struct bsh_workspace *ws)
{
	pthread_mutex_lock(&snap->lock);
	ws->next_making = snap->making;
	snap->making = ws;
	pthread_mutex_unlock(&snap->lock);
}

static void end_making(struct bsh_snapshot *snap, const struct bsh_workspace *ws)
{
	struct bsh_workspace **link = &snap->making;

	pthread_mutex_lock(&snap->lock);
	while (*link && *link != ws)
		link = &(*link)->next_making;
	if (*link)
		*link = ws->next_making;
	pthread_mutex_unlock(&snap->lock);
}

int bsh_snapshot_hurry(struct bsh_snapshot *snap, struct bsh_error *err)
{
	int rc = 0;

	pthread_mutex_lock(&snap->lock);
	for (struct bsh_workspace *ws = snap->making; ws && rc == 0; ws = ws->next_making)
		rc = bsh_workspace_weigh_own(ws, err);
	pthread_mutex_unlock(&snap->lock);
	return rc < 0 ? bsh_context(err, rc, "hurry the branches of snapshot %s", snap->record.id) : 0;
}

static int branch_steps(struct bsh_snapshot *snap, const struct manner *manner, struct bsh_trace *trace,
	struct bsh_carried *carried, struct bsh_workspace **ret_ws, struct bsh_error *err)
{
	struct bsh_workspace *ws = NULL;
	auto_close int pidfd = -1;
	int phase = bsh_trace_begin(trace, "place");
	int status;
	int rc = make_place(snap, manner->label, &ws, err);

	bsh_trace_end(trace, phase);
	if (rc < 0)
		return rc;
	rc = bsh_workspace_weigh_locked(ws, manner->cpu_weight, manner->io_weight, err);
	if (rc == 0) {
		begin_making(snap, ws);
		rc = run_engine(snap, ws, trace, carried, &pidfd, err);
		end_making(snap, ws);
	}
	if (rc < 0) {
		bsh_workspace_free(ws);
		/* Not adopted, its init is still a child of this process. */
		if (pidfd >= 0)
			bsh_wait_pidfd(pidfd, -1, &status);
		return rc;
	}
	*ret_ws = ws;
	return 0;
}

int bsh_snapshot_branch_weighed(struct bsh_snapshot *snap, const char *label, unsigned int cpu_weight,
	unsigned int io_weight, struct bsh_workspace **ret_ws, struct bsh_fork_stats *ret_stats, struct bsh_error *err)
{
	const struct manner manner = {label, cpu_weight, io_weight};
	struct bsh_carried carried = {0};
	struct bsh_trace trace;
	int rc;

	bsh_trace_start(&trace);
	rc = bsh_snapshot_enter(snap, err);
	if (rc < 0)
		return rc;
	rc = branch_steps(snap, &manner, &trace, &carried, ret_ws, err);
	bsh_snapshot_leave(snap);
	if (rc < 0)
		return bsh_context(err, bsh_advise(err, rc), "branch of snapshot %s", snap->record.id);
	if (ret_stats) {
		memset(ret_stats, 0, sizeof(*ret_stats));
		bsh_trace_report(&trace, ret_stats);
		ret_stats->copied_bytes = carried.copied_bytes;
		ret_stats->shared_bytes = carried.shared_bytes;
	}
	return 0;
}

int bsh_snapshot_branch(struct bsh_snapshot *snap, const char *label, struct bsh_workspace **ret_ws,
	struct bsh_fork_stats *ret_stats, struct bsh_error *err)
{
	return bsh_snapshot_branch_weighed(snap, label, 0, 0, ret_ws, ret_stats, err);
}
