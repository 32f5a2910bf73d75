/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reaps what dead owners left. Safe beside starts and other collections: the
 * owner's death is final, each step tolerates that it is done already, and the absence of a record is
 * only believed under the lock that its writer would hold.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/spawn.h"
#include "stray.h"
#include "workspace.h"

/* Kills a process by its full name: the pid may be another's by now. */
static int kill_owner(const struct bsh_owner *process, struct bsh_gc_report *report, struct bsh_error *err)
{
	auto_close int pidfd = -1;
	int rc;

	if (!process->pid || bsh_pidfd_open(process->pid, &pidfd, NULL) < 0 || !bsh_owner_alive(process))
		return 0;
	if (bsh_pidfd_kill(pidfd, SIGKILL) == 0)
		report->processes++;
	rc = bsh_killed_wait(process->pid, pidfd);
	return rc == -ETIMEDOUT ? bsh_fail(err, ETIMEDOUT, "pid %d does not die of SIGKILL", process->pid) : 0;
}

int bsh_cgroup_reap(const struct bsh_features *features, const char *name, unsigned int *ret_killed, bool *ret_there,
	struct bsh_error *err)
{
	struct bsh_cgroup cgroup;
	int rc;

	bsh_cgroup_find(features, name, &cgroup);
	*ret_there = cgroup.n > 1 || access(cgroup.dirs[0], F_OK) == 0;
	rc = bsh_processes_end(&cgroup, ret_killed, err);
	if (rc == 0)
		rc = bsh_cgroup_remove(&cgroup, err);
	bsh_cgroup_release(&cgroup);
	return rc;
}

static int reap_cgroup(const struct bsh_core *core, const char *id, struct bsh_gc_report *report, struct bsh_error *err)
{
	auto_free char *name = bsh_format("%s/%s", core->cgroup_base, id);
	unsigned int killed = 0;
	bool there;
	int rc = bsh_cgroup_reap(core->features, name, &killed, &there, err);

	report->processes += killed;
	if (rc == 0 && there)
		report->cgroups++;
	return rc;
}

/* 1: its owner is dead or it never had one. */
static int is_abandoned(const struct bsh_core *core, const char *kind, const char *id, struct bsh_record *ret_record,
	struct bsh_error *err)
{
	auto_free char *dir = bsh_format("%s/%s/%s", core->home, kind, id);
	auto_close int lock = -1;
	int rc = bsh_registry_lock(core->home, &lock, err);

	if (rc < 0)
		return rc;
	rc = bsh_registry_read(core->home, kind, id, ret_record, err);
	/* Its owner removed it since it was listed; or it was killed before it could write the record. */
	if (rc == -ENOENT || rc == -ENOTDIR)
		return access(dir, F_OK) == 0;
	return rc < 0 ? rc : !bsh_owner_alive(&ret_record->owner);
}

static int reap(
	struct bsh_core *core, const char *kind, const char *id, struct bsh_gc_report *report, struct bsh_error *err)
{
	struct bsh_record record = {0};
	bool workspace = strcmp(kind, "workspaces") == 0;
	int rc = is_abandoned(core, kind, id, &record, err);

	if (rc == 1) {
		rc = workspace ? reap_cgroup(core, id, report, err) : 0;
		/* Beside the cgroup: a process that has left it, or holds a snapshot's memory. */
		if (rc == 0)
			rc = kill_owner(workspace ? &record.init : &record.pool, report, err);
		if (rc == 0)
			rc = bsh_registry_remove(core->home, kind, id, err);
		if (rc == 0 && workspace)
			report->workspaces++;
		else if (rc == 0)
			report->snapshots++;
	}
	bsh_record_release(&record);
	return rc;
}

/* One that cannot be reaped does not keep the others: the first error is told at the end. */
static void reap_kind(
	struct bsh_core *core, const char *kind, struct bsh_gc_report *report, int *first_rc, struct bsh_error *err)
{
	auto_free char *dir = bsh_format("%s/%s", core->home, kind);
	auto_strv char **ids = NULL;
	struct bsh_error one;
	int rc = bsh_list_dir(AT_FDCWD, dir, &ids, &one);

	for (size_t i = 0; ids && ids[i]; i++) {
		int each = reap(core, kind, ids[i], report, &one);

		rc = each < 0 ? bsh_context(&one, each, "reap %s/%s", kind, ids[i]) : rc;
		if (rc < 0 && *first_rc == 0) {
			*first_rc = rc;
			if (err)
				*err = one;
		}
	}
}

/* Cgroups whose state directory is gone; ours alone, by the key in their path. */
static void reap_orphan_cgroups(
	struct bsh_core *core, const char *mount, struct bsh_gc_report *report, int *first_rc, struct bsh_error *err)
{
	auto_free char *base = bsh_format("%s/%s", mount, core->cgroup_base);
	auto_strv char **names = NULL;

	if (bsh_list_dir(AT_FDCWD, base, &names, NULL) < 0)
		return;
	for (size_t i = 0; names[i]; i++) {
		auto_free char *path = bsh_format("%s/%s", base, names[i]);
		auto_free char *state = bsh_format("%s/workspaces/%s", core->home, names[i]);
		struct stat info;
		int rc;

		/* The record is there before the cgroup comes and until it is gone. */
		if (stat(path, &info) < 0 || !S_ISDIR(info.st_mode) || access(state, F_OK) == 0)
			continue;
		rc = reap_cgroup(core, names[i], report, *first_rc ? NULL : err);
		*first_rc = *first_rc ? *first_rc : rc;
	}
}

static int empty_trash(const struct bsh_core *core, struct bsh_error *err)
{
	auto_free char *dir = bsh_format("%s/trash", core->home);
	auto_strv char **names = NULL;
	int rc = bsh_list_dir(AT_FDCWD, dir, &names, err);

	for (size_t i = 0; rc == 0 && names[i]; i++) {
		auto_free char *path = bsh_format("%s/%s", dir, names[i]);

		rc = bsh_remove_tree(AT_FDCWD, path, err);
		/* Its own remover is at it. */
		if (rc == -ENOTEMPTY || rc == -ENOENT)
			rc = 0;
	}
	return rc;
}

int bsh_gc(struct bsh_core *core, struct bsh_gc_report *ret_report, struct bsh_error *err)
{
	const char *mounts[BSH_CGROUPS_MAX];
	size_t n_mounts = bsh_cgroup_mounts(core->features, mounts);
	struct bsh_gc_report report = {0};
	struct bsh_error scratch;
	int rc = 0, swept;

	if (!core->features->root)
		return bsh_fail(err, EPERM, "gc of %s: root is needed (run it by sudo)", core->home);
	/* Workspaces before snapshots: a branch's processes may stand on what its snapshot holds. */
	reap_kind(core, "workspaces", &report, &rc, err);
	reap_kind(core, "snapshots", &report, &rc, err);
	for (size_t i = 0; i < n_mounts; i++)
		reap_orphan_cgroups(core, mounts[i], &report, &rc, err);
	swept = bsh_strays_reap(core, &report.strays, rc ? &scratch : err);
	rc = rc ? rc : swept;
	swept = bsh_registry_sweep(core->home, &report.layers, rc ? &scratch : err);
	rc = rc ? rc : swept;
	swept = empty_trash(core, rc ? &scratch : err);
	rc = rc ? rc : swept;
	if (rc < 0)
		return bsh_context(err, rc, "gc of %s", core->home);
	*ret_report = report;
	return 0;
}
