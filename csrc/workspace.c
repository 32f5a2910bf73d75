/* SPDX-License-Identifier: Apache-2.0 */
#include "workspace.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/carrier.h"
#include "host/mounts.h"
#include "host/namespaces.h"
#include "host/procfs.h"
#include "host/spawn.h"
#include "layer.h"
#include "start.h"
#include "stray.h"

#define FREEZE_TIMEOUT_MS 10000
#define STOP_TIMEOUT_MS 30000

static struct bsh_workspace *workspace_new(struct bsh_core *core, const struct bsh_record *record)
{
	struct bsh_workspace *ws = bsh_alloc(sizeof(*ws));

	ws->core = bsh_core_get(core);
	pthread_mutex_init(&ws->lock, NULL);
	bsh_record_copy(&ws->record, record);
	free(ws->record.id);
	ws->record.id = bsh_new_id();
	ws->record.init = (struct bsh_owner){0};
	ws->dir = bsh_format("%s/workspaces/%s", core->home, ws->record.id);
	ws->upper = bsh_format("%s/upper", ws->dir);
	ws->root = bsh_format("%s/root", ws->dir);
	ws->mntns_fd = -1;
	ws->netns_fd = -1;
	ws->init_pidfd = -1;
	return ws;
}

static int check_layers(const struct bsh_record *record, struct bsh_error *err)
{
	struct stat info;

	if (!record->layers || !record->layers[0])
		return bsh_fail(err, EINVAL, "no layers to stand on");
	for (char **layer = record->layers; *layer; layer++) {
		if (stat(*layer, &info) < 0)
			return bsh_fail(err, errno, "layer %s", *layer);
		if (!S_ISDIR(info.st_mode))
			return bsh_fail(err, ENOTDIR, "layer %s", *layer);
	}
	return 0;
}

static int make_dirs(const struct bsh_workspace *ws, struct bsh_error *err)
{
	auto_free char *work = bsh_format("%s/work", ws->dir);
	int rc = bsh_make_dirs(ws->upper, 0755, err);

	if (rc == 0)
		rc = bsh_make_dirs(work, 0700, err);
	if (rc == 0)
		rc = bsh_make_dirs(ws->root, 0755, err);
	/* Whatever the caller's umask: this is what the root directory looks like inside. */
	if (rc == 0 && chmod(ws->upper, 0755) < 0)
		rc = bsh_fail(err, errno, "chmod %s", ws->upper);
	return rc;
}

static int make_cgroup(struct bsh_workspace *ws, struct bsh_error *err)
{
	const struct bsh_limits limits = {
		.memory_max_bytes = ws->record.memory_max_bytes,
		/* A branch is limited when it is restored: that takes processes of its own. */
		.pids_max = ws->record.parent ? 0 : ws->record.pids_max,
		.cpu_weight = ws->record.cpu_weight,
	};
	auto_free char *name = bsh_format("%s/%s", ws->core->cgroup_base, ws->record.id);

	int rc = bsh_cgroup_make(ws->core->features, name, &limits, &ws->cgroup, err);

	if (rc == 0)
		bsh_stray_sign(ws->core, &ws->record.owner, &ws->cgroup);
	return rc;
}

static int make_namespaces(struct bsh_workspace *ws, struct bsh_error *err)
{
	auto_free char *work = bsh_format("%s/work", ws->dir);
	const struct bsh_overlay overlay = {
		.layers = (const char *const *)ws->record.layers,
		.upper = ws->upper,
		.work = work,
		.root = ws->root,
		.lowerdir_add = ws->core->features->overlay_lowerdir_add,
	};

	return bsh_namespaces_make(&overlay, &ws->mntns_fd, &ws->netns_fd, err);
}

int bsh_workspace_prepare(
	struct bsh_core *core, const struct bsh_record *record, struct bsh_workspace **ret_ws, struct bsh_error *err)
{
	struct bsh_workspace *ws;
	int rc = bsh_core_check(core, err);

	if (rc == 0)
		rc = check_layers(record, err);
	if (rc < 0)
		return rc;
	ws = workspace_new(core, record);
	rc = bsh_owner_self(&ws->record.owner, err);
	/* The record first: from then on all that is made is found again. */
	if (rc == 0)
		rc = bsh_registry_add(core->home, "workspaces", &ws->record, err);
	if (rc == 0)
		rc = make_dirs(ws, err);
	if (rc == 0)
		rc = make_cgroup(ws, err);
	if (rc == 0)
		rc = make_namespaces(ws, err);
	if (rc < 0) {
		bsh_workspace_free(ws);
		return rc;
	}
	*ret_ws = ws;
	return 0;
}

void bsh_workspace_place(const struct bsh_workspace *ws, struct bsh_place *ret_place)
{
	ret_place->id = ws->record.id;
	ret_place->mntns_fd = ws->mntns_fd;
	ret_place->root = ws->root;
	ret_place->netns_fd = ws->netns_fd;
	ret_place->upper = ws->upper;
	ret_place->view_fd = -1;
	ret_place->cgroup_fds = ws->cgroup.procs_fds;
	ret_place->n_cgroups = ws->cgroup.n;
	ret_place->cgroup_v2 = ws->cgroup.tracker_v2 ? ws->cgroup.dirs[0] : NULL;
}

int bsh_workspace_adopt(struct bsh_workspace *ws, pid_t pid, struct bsh_error *err)
{
	auto_free char *cgroup = bsh_format("%s/%s", ws->core->cgroup_base, ws->record.id);
	auto_close int pidfd = -1;
	int rc = bsh_pidfd_open(pid, &pidfd, err);

	if (rc == 0 && ws->record.pids_max)
		rc = bsh_cgroup_limit_pids(ws->core->features, cgroup, ws->record.pids_max, err);
	if (rc == 0)
		rc = bsh_owner_of(pid, &ws->record.init, err);
	if (rc == 0)
		rc = bsh_registry_update(ws->core->home, "workspaces", &ws->record, err);
	if (rc < 0)
		return bsh_context(err, rc, "take over init of %s", ws->record.id);
	ws->init_pid = pid;
	ws->init_pidfd = bsh_take_fd(&pidfd);
	bsh_close_fd(&ws->mntns_fd);
	ws->mntns_fd = -1;
	return 0;
}

static void fill_record(const struct bsh_workspace_spec *spec, struct bsh_record *ret_record)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	*ret_record = (struct bsh_record){
		.layers = bsh_strv_copy(spec->layers),
		.env = bsh_strv_copy(spec->env),
		.label = bsh_strdup(spec->label),
		.hostname = bsh_strdup(spec->hostname ? spec->hostname : "bunshin"),
		.pids_max = spec->pids_max,
		.cpu_weight = spec->cpu_weight,
		.memory_max_bytes = spec->memory_max_bytes,
		.shm_bytes = spec->shm_bytes ? spec->shm_bytes : 1ULL << 30,
		.created_ns = now.tv_sec * 1000000000LL + now.tv_nsec,
	};
}

int bsh_workspace_start(struct bsh_core *core, const struct bsh_workspace_spec *spec, struct bsh_workspace **ret_ws,
	struct bsh_error *err)
{
	struct bsh_workspace *ws = NULL;
	struct bsh_record record;
	int rc;

	if (!spec->argv || !spec->argv[0])
		return bsh_fail(err, EINVAL, "start a workspace: no command to run");
	fill_record(spec, &record);
	rc = bsh_workspace_prepare(core, &record, &ws, err);
	bsh_record_release(&record);
	if (rc < 0)
		return bsh_context(err, rc, "start a workspace");
	rc = bsh_start_init(ws, spec, err);
	if (rc < 0) {
		bsh_workspace_free(ws);
		return bsh_context(err, rc, "start a workspace");
	}
	*ret_ws = ws;
	return 0;
}

static bool init_ended(const struct bsh_workspace *ws)
{
	struct pollfd poll_fd = {.fd = ws->init_pidfd, .events = POLLIN};
	struct bsh_proc_stat stat;

	if (!ws->init_pid || poll(&poll_fd, 1, 0) != 0)
		return true;
	/* It is reported once all others are gone; by then much of /proc has failed already. */
	return bsh_proc_stat_read(ws->init_pid, &stat, NULL) < 0 || stat.exiting;
}

int bsh_workspace_check_alive(struct bsh_workspace *ws, struct bsh_error *err)
{
	if (!ws->init_pid)
		return bsh_fail(err, ESRCH, "workspace %s has been stopped", ws->record.id);
	if (init_ended(ws))
		return bsh_fail(
			err, ESRCH, "workspace %s has ended: its init, pid %d, is gone", ws->record.id, ws->init_pid);
	return 0;
}

int bsh_workspace_alive(struct bsh_workspace *ws)
{
	int alive;

	pthread_mutex_lock(&ws->lock);
	alive = !init_ended(ws);
	pthread_mutex_unlock(&ws->lock);
	return alive;
}

int bsh_workspace_freeze_locked(struct bsh_workspace *ws, struct bsh_error *err)
{
	int rc = bsh_workspace_check_alive(ws, err);

	if (rc < 0 || ws->frozen)
		return rc;
	bsh_workspace_hasten(ws);
	rc = bsh_cgroup_freeze(&ws->cgroup, FREEZE_TIMEOUT_MS, err);
	if (rc < 0)
		bsh_workspace_relax(ws);
	if (rc < 0)
		return bsh_context(err, rc, "freeze %s", ws->record.id);
	ws->frozen = true;
	return 0;
}

int bsh_workspace_thaw_locked(struct bsh_workspace *ws, struct bsh_error *err)
{
	int rc = bsh_workspace_check_alive(ws, err);

	if (rc < 0 || !ws->frozen)
		return rc;
	rc = bsh_cgroup_thaw(&ws->cgroup, err);
	if (rc < 0)
		return bsh_context(err, rc, "thaw %s", ws->record.id);
	ws->frozen = false;
	bsh_workspace_relax(ws);
	return 0;
}

int bsh_workspace_freeze(struct bsh_workspace *ws, struct bsh_error *err)
{
	int rc;

	pthread_mutex_lock(&ws->lock);
	rc = bsh_workspace_freeze_locked(ws, err);
	pthread_mutex_unlock(&ws->lock);
	return rc;
}

int bsh_workspace_thaw(struct bsh_workspace *ws, struct bsh_error *err)
{
	int rc;

	pthread_mutex_lock(&ws->lock);
	rc = bsh_workspace_thaw_locked(ws, err);
	pthread_mutex_unlock(&ws->lock);
	return rc;
}

static void close_fd(int *fd)
{
	bsh_close_fd(fd);
	*fd = -1;
}

int bsh_killed_wait(pid_t pid, int pidfd)
{
	int status;

	bsh_carrier_watch(pidfd, pid, STOP_TIMEOUT_MS);
	return bsh_wait_pidfd(pidfd, 0, &status);
}

/* The process that is number 1 inside; 0: there is none. */
static pid_t find_init(const struct bsh_cgroup *cgroup, int *ret_pidfd)
{
	auto_free pid_t *pids = NULL;
	size_t n = 0;

	if (bsh_cgroup_pids(cgroup, &pids, &n, NULL) < 0)
		return 0;
	for (size_t i = 0; i < n; i++) {
		struct bsh_proc_status status;

		if (bsh_proc_status_read(pids[i], &status, NULL) == 0 && status.inner_pid == 1)
			return bsh_pidfd_open(pids[i], ret_pidfd, NULL) < 0 ? 0 : pids[i];
	}
	return 0;
}

int bsh_processes_end(const struct bsh_cgroup *cgroup, unsigned int *ret_killed, struct bsh_error *err)
{
	auto_close int pidfd = -1;
	pid_t init = find_init(cgroup, &pidfd);
	int rc = bsh_cgroup_kill(cgroup, ret_killed, err);

	if (rc == 0 && init && bsh_killed_wait(init, pidfd) == -ETIMEDOUT)
		return bsh_fail(err, ETIMEDOUT, "wait for the end of init, pid %d", init);
	return rc;
}

/* Each step may have been done before, or find nothing to do. */
static int stop_locked(struct bsh_workspace *ws, struct bsh_error *err)
{
	int rc;

	bsh_workspace_hasten(ws);
	rc = bsh_processes_end(&ws->cgroup, NULL, err);
	if (rc < 0)
		return rc;
	if (ws->init_pid && bsh_killed_wait(ws->init_pid, ws->init_pidfd) == -ETIMEDOUT)
		return bsh_fail(err, ETIMEDOUT, "wait for the end of init, pid %d", ws->init_pid);
	ws->init_pid = 0;
	ws->frozen = false;
	close_fd(&ws->init_pidfd);
	close_fd(&ws->mntns_fd);
	close_fd(&ws->netns_fd);
	rc = bsh_cgroup_remove(&ws->cgroup, err);
	if (rc < 0)
		return rc;
	bsh_cgroup_release(&ws->cgroup);
	if (ws->origin)
		ws->origin_release(ws->origin);
	ws->origin = NULL;
	return bsh_registry_remove(ws->core->home, "workspaces", ws->record.id, err);
}

int bsh_workspace_stop(struct bsh_workspace *ws, struct bsh_error *err)
{
	int rc;

	pthread_mutex_lock(&ws->lock);
	rc = stop_locked(ws, err);
	pthread_mutex_unlock(&ws->lock);
	return rc < 0 ? bsh_context(err, rc, "stop %s", ws->record.id) : 0;
}

void bsh_workspace_free(struct bsh_workspace *ws)
{
	if (!ws || !bsh_core_is_ours(ws->core))
		return;
	/* What cannot be removed now stays in the registry, for bsh_gc. */
	bsh_workspace_stop(ws, NULL);
	close_fd(&ws->init_pidfd);
	close_fd(&ws->mntns_fd);
	close_fd(&ws->netns_fd);
	bsh_cgroup_release(&ws->cgroup);
	bsh_layer_index_free(ws->layer_index);
	bsh_record_release(&ws->record);
	pthread_mutex_destroy(&ws->lock);
	free(ws->dir);
	free(ws->upper);
	free(ws->root);
	bsh_core_free(ws->core);
	free(ws);
}

const char *bsh_workspace_id(const struct bsh_workspace *ws)
{
	return ws->record.id;
}

int bsh_workspace_pid(const struct bsh_workspace *ws)
{
	return ws->init_pid;
}

const char *bsh_workspace_dir(const struct bsh_workspace *ws)
{
	return ws->dir;
}
