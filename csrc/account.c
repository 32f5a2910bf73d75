/* SPDX-License-Identifier: Apache-2.0 */
/* What a group of workspaces and snapshots takes, each page counted once. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/census.h"
#include "host/procfs.h"
#include "host/shm.h"
#include "workspace.h"

#define PAGE 4096ULL

/* A workspace, a snapshot, or a page pool whose snapshot was not asked for. */
struct member {
	const char *id; /* NULL: such a page pool */
	bool workspace;
	bool gone;
	unsigned long long shm_bytes; /* of a workspace: all shared memory it has, mapped or not */
	struct bsh_record record;
	struct bsh_account account;
};

struct group {
	struct bsh_core *core;
	struct member *members;
	size_t n;
	size_t n_asked; /* the first ones */
	struct bsh_census census;
};

static void group_release(struct group *group)
{
	for (size_t i = 0; i < group->n; i++)
		bsh_record_release(&group->members[i].record);
	free(group->members);
	bsh_census_release(&group->census);
}

/* What ends while it is counted is no failure. */
static int tolerate_absence(int rc, const struct bsh_error *failed, struct bsh_error *err)
{
	if (rc == 0 || rc == -ENOENT || rc == -ENOTDIR || rc == -ESRCH)
		return 0;
	if (err)
		*err = *failed;
	return rc;
}

/* ---- who is in it --------------------------------------------------------------- */

static int read_record(struct bsh_core *core, struct member *member, const char *kind, struct bsh_error *err)
{
	struct bsh_error failed = {0};
	int rc = bsh_registry_read(core->home, kind, member->id, &member->record, &failed);

	return rc == 0 ? 1 : tolerate_absence(rc, &failed, err);
}

static int find_member(struct bsh_core *core, struct member *member, struct bsh_error *err)
{
	int rc;

	if (!*member->id || strchr(member->id, '/') || member->id[0] == '.')
		return bsh_fail(err, EINVAL, "\"%s\" is no id", member->id);
	rc = read_record(core, member, "workspaces", err);
	member->workspace = rc > 0;
	if (rc == 0)
		rc = read_record(core, member, "snapshots", err);
	member->gone = rc == 0;
	return rc < 0 ? rc : 0;
}

static bool holds_pool(const struct group *group, pid_t pid)
{
	for (size_t i = 0; i < group->n; i++)
		if (!group->members[i].workspace && group->members[i].record.pool.pid == pid)
			return true;
	return false;
}

/* The page pools that workspaces stand on, unless they are in the group by their snapshots. */
static void add_pools(struct group *group)
{
	for (size_t i = 0; i < group->n_asked; i++) {
		const struct bsh_owner *pool = &group->members[i].record.pool;

		if (!group->members[i].workspace || !pool->pid || holds_pool(group, pool->pid))
			continue;
		group->members[group->n++].record.pool = *pool;
	}
}

static int find_members(struct group *group, const char *const *ids, struct bsh_error *err)
{
	group->n_asked = bsh_strv_len(ids);
	group->members = bsh_alloc((2 * group->n_asked + 1) * sizeof(*group->members));
	for (; group->n < group->n_asked; group->n++) {
		int rc;

		group->members[group->n].id = ids[group->n];
		rc = find_member(group->core, &group->members[group->n], err);
		if (rc < 0)
			return rc;
	}
	add_pools(group);
	return 0;
}

/* ---- memory --------------------------------------------------------------------- */

static int add_process(struct group *group, size_t index, pid_t pid, struct bsh_error *err)
{
	struct bsh_account *account = &group->members[index].account;
	struct bsh_error failed = {0};
	struct bsh_proc_status status;
	int rc = bsh_proc_status_read(pid, &status, &failed);

	if (rc == 0)
		rc = bsh_census_add(&group->census, index, pid, &failed);
	if (rc < 0)
		return tolerate_absence(rc, &failed, err);
	account->processes++;
	account->threads += status.threads;
	account->page_table_bytes += status.page_table_bytes;
	return 0;
}

static int add_workspace(struct group *group, size_t index, struct bsh_error *err)
{
	struct member *member = &group->members[index];
	auto_free char *name = bsh_format("%s/%s", group->core->cgroup_base, member->id);
	auto_free pid_t *pids = NULL;
	struct bsh_error failed = {0};
	struct bsh_cgroup cgroup;
	size_t n = 0;
	int rc;

	bsh_cgroup_find(group->core->features, name, &cgroup);
	rc = tolerate_absence(bsh_cgroup_pids(&cgroup, &pids, &n, &failed), &failed, err);
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = add_process(group, index, pids[i], err);
	if (rc == 0)
		rc = bsh_shm_bytes(pids, n, &member->shm_bytes, err);
	member->account.kernel_bytes = bsh_cgroup_kernel_bytes(&cgroup);
	bsh_cgroup_release(&cgroup);
	return rc;
}

static int add_members(struct group *group, struct bsh_error *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < group->n; i++) {
		const struct member *member = &group->members[i];

		if (member->workspace)
			rc = add_workspace(group, i, err);
		else if (bsh_owner_alive(&member->record.pool))
			rc = add_process(group, i, member->record.pool.pid, err);
	}
	return rc;
}

/* ---- files ------------------------------------------------------------------------ */

static int add_disk(const char *path, struct bsh_account *account, struct bsh_error *err)
{
	struct bsh_error failed = {0};
	unsigned long long bytes = 0;
	int rc = bsh_disk_usage(path, &bytes, &failed);

	account->disk_bytes += bytes;
	return tolerate_absence(rc, &failed, err);
}

/* The layers that a snapshot made itself are named after it. */
static int add_layers(const struct group *group, struct member *member, struct bsh_error *err)
{
	auto_free char *own = bsh_format("%s/layers/%s", group->core->home, member->id);
	int rc = 0;

	for (char **at = member->record.layers; rc == 0 && at && *at; at++)
		if (!strncmp(*at, own, strlen(own)))
			rc = add_disk(*at, &member->account, err);
	return rc;
}

static int add_files(struct group *group, struct bsh_error *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < group->n_asked; i++) {
		struct member *member = &group->members[i];
		auto_free char *dir =
			bsh_format("%s/%s", group->core->home, member->workspace ? "workspaces" : "snapshots");
		auto_free char *path = bsh_format("%s/%s%s", dir, member->id, member->workspace ? "/upper" : "");

		if (member->gone)
			continue;
		rc = add_disk(path, &member->account, err);
		if (rc == 0 && !member->workspace)
			rc = add_layers(group, member, err);
	}
	return rc;
}

/* ---- the sums -------------------------------------------------------------------- */

static unsigned long long kernel_part(const struct bsh_account *account)
{
	return account->kernel_bytes > account->page_table_bytes ? account->kernel_bytes : account->page_table_bytes;
}

/* Shared memory that no process maps is as much there as the other; it never leaves its workspace. */
static unsigned long long unmapped_shm(const struct member *member, const struct bsh_page_counts *counts)
{
	unsigned long long mapped = (counts->unique[BSH_PAGES_SHM] + counts->shared[BSH_PAGES_SHM]) * PAGE;

	return member->shm_bytes > mapped ? member->shm_bytes - mapped : 0;
}

static void take_pages(struct bsh_account *account, const struct bsh_page_counts *counts, unsigned long long unmapped,
	unsigned long long kernel)
{
	account->private_unique_bytes = counts->unique[BSH_PAGES_PRIVATE] * PAGE;
	account->private_shared_bytes = counts->shared[BSH_PAGES_PRIVATE] * PAGE;
	account->shm_unique_bytes = counts->unique[BSH_PAGES_SHM] * PAGE + unmapped;
	account->shm_shared_bytes = counts->shared[BSH_PAGES_SHM] * PAGE;
	account->file_unique_bytes = counts->unique[BSH_PAGES_FILE] * PAGE;
	account->file_shared_bytes = counts->shared[BSH_PAGES_FILE] * PAGE;
	account->machine_bytes = account->private_unique_bytes + account->shm_unique_bytes + kernel;
}

static int settle(struct group *group, struct bsh_account *ret_each, struct bsh_account *ret_all, struct bsh_error *err)
{
	auto_free struct bsh_page_counts *counts = bsh_alloc((group->n + 1) * sizeof(*counts));
	struct bsh_page_counts together;
	struct bsh_account all = {0};
	unsigned long long kernel = 0, unmapped = 0;
	int rc = bsh_census_settle(&group->census, counts, &together, err);

	if (rc < 0)
		return rc;
	for (size_t i = 0; i < group->n; i++) {
		struct bsh_account *account = &group->members[i].account;
		unsigned long long hidden = unmapped_shm(&group->members[i], &counts[i]);

		take_pages(account, &counts[i], hidden, kernel_part(account));
		unmapped += hidden;
		all.processes += account->processes;
		all.threads += account->threads;
		all.page_table_bytes += account->page_table_bytes;
		all.kernel_bytes += account->kernel_bytes;
		all.disk_bytes += account->disk_bytes;
		kernel += kernel_part(account);
		if (i < group->n_asked)
			ret_each[i] = *account;
	}
	take_pages(&all, &together, unmapped, kernel);
	*ret_all = all;
	return 0;
}

int bsh_account(struct bsh_core *core, const char *const *ids, struct bsh_account *ret_each,
	struct bsh_account *ret_all, struct bsh_error *err)
{
	struct group group = {.core = core};
	int rc = find_members(&group, ids, err);

	if (rc == 0)
		rc = bsh_census_init(&group.census, core->features, group.n, err);
	if (rc == 0)
		rc = add_members(&group, err);
	if (rc == 0)
		rc = add_files(&group, err);
	if (rc == 0)
		rc = settle(&group, ret_each, ret_all, err);
	group_release(&group);
	return rc < 0 ? bsh_context(err, rc, "account") : 0;
}
