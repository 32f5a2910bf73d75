/* SPDX-License-Identifier: Apache-2.0 */
/* Making, limits, members, removal. Freezing and killing are in cgroup-control.c. */
#include "host/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/features.h"

#define NOTE "trusted.bunshin"

/* Hands the controllers down through every level above the leaf: siblings of a level need it once. */
static void hand_down(const struct bsh_features *features, const char *mount, const char *name)
{
	const struct {
		bool use;
		const char *order;
	} controllers[] = {
		{features->v2_memory, "+memory"},
		{features->v2_pids, "+pids"},
		{features->v2_cpu, "+cpu"},
		{features->v2_io, "+io"},
	};

	for (const char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
		auto_free char *path = bsh_format("%s/%.*s/cgroup.subtree_control", mount, (int)(slash - name), name);

		/* What cannot be handed down is missed, and reported, when its limit is set. */
		for (size_t i = 0; i < sizeof(controllers) / sizeof(controllers[0]); i++)
			if (controllers[i].use)
				bsh_write_control(AT_FDCWD, path, controllers[i].order, NULL);
	}
}

static void add_dir(struct bsh_cgroup *cgroup, char *dir, int procs_fd)
{
	cgroup->dirs[cgroup->n] = dir;
	cgroup->procs_fds[cgroup->n++] = procs_fd;
}

/* Another process may remove an empty level between our making it and what is below. */
static int make_dirs_racing(const char *dir, struct bsh_error *err)
{
	int rc = -ENOENT;

	for (int attempt = 0; attempt < 100 && rc == -ENOENT; attempt++)
		rc = bsh_make_dirs(dir, 0755, err);
	return rc;
}

/*
 * Who enters has one thread, and moving one's own thread is done at once. Moving a process waits until all
 * processors have been through the scheduler: 10 ms. v2 moves nothing but processes; one can be born there instead.
 */
static const char *entry_file(bool v2)
{
	return v2 ? "cgroup.procs" : "tasks";
}

static int make_in(const char *mount, const char *name, bool v2, struct bsh_cgroup *cgroup, struct bsh_error *err)
{
	auto_free char *dir = NULL, *procs = NULL;
	int fd, rc;

	if (!mount)
		return 0;
	dir = bsh_format("%s/%s", mount, name);
	rc = make_dirs_racing(dir, err);
	if (rc < 0)
		return rc;
	procs = bsh_format("%s/%s", dir, entry_file(v2));
	fd = open(procs, O_WRONLY | O_CLOEXEC);
	if (fd < 0) {
		rc = bsh_fail(err, errno, "open %s", procs);
		rmdir(dir);
		return rc;
	}
	add_dir(cgroup, bsh_take(dir), fd);
	return 0;
}

/* The v1 mount point that limits a resource, or NULL where v2 does it or nobody can. */
static const char *v1_mount(bool v2_has_it, const char *mount)
{
	return v2_has_it ? NULL : mount;
}

static bool same(const char *a, const char *b)
{
	return a && b && strcmp(a, b) == 0;
}

/* Controllers mounted together share one directory, which must be entered once. */
size_t bsh_cgroup_mounts(const struct bsh_features *features, const char *mounts[BSH_CGROUPS_MAX])
{
	const char *wanted[] = {
		features->cgroup_v2 ? features->cgroup_v2 : features->cgroup_v1_freezer,
		v1_mount(features->v2_memory, features->cgroup_v1_memory),
		v1_mount(features->v2_pids, features->cgroup_v1_pids),
		v1_mount(features->v2_cpu, features->cgroup_v1_cpu),
		v1_mount(features->v2_io, features->cgroup_v1_blkio),
	};
	size_t n = 0;

	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		bool known = !wanted[i];

		for (size_t k = 0; k < n; k++)
			known = known || same(mounts[k], wanted[i]);
		if (!known)
			mounts[n++] = wanted[i];
	}
	return n;
}

static int set_limit(bool v2, const char *v2_mount, const char *mount, const char *name, const char *v2_file,
	const char *v1_file, const char *value, struct bsh_error *err)
{
	auto_free char *path = NULL;

	if (!v2 && !mount)
		return bsh_fail(err, EOPNOTSUPP, "limit %s: no cgroup hierarchy of this machine does it", v2_file);
	path = bsh_format("%s/%s/%s", v2 ? v2_mount : mount, name, v2 ? v2_file : v1_file);
	return bsh_write_control(AT_FDCWD, path, value, err);
}

static int set_memory(const struct bsh_features *f, const char *name, unsigned long long bytes, struct bsh_error *err)
{
	auto_free char *value = bsh_format("%llu", bytes);
	int rc = set_limit(f->v2_memory, f->cgroup_v2, f->cgroup_v1_memory, name, "memory.max", "memory.limit_in_bytes",
		value, err);

	if (rc < 0)
		return rc;
	/* Without this the limit is not one where there is swap; kernels without swap accounting lack the file. */
	rc = set_limit(f->v2_memory, f->cgroup_v2, f->cgroup_v1_memory, name, "memory.swap.max",
		"memory.memsw.limit_in_bytes", f->v2_memory ? "0" : value, err);
	return rc == -ENOENT ? 0 : rc;
}

int bsh_cgroup_limit_pids(const struct bsh_features *f, const char *name, unsigned int pids_max, struct bsh_error *err)
{
	auto_free char *value = bsh_format("%u", pids_max);

	return set_limit(f->v2_pids, f->cgroup_v2, f->cgroup_v1_pids, name, "pids.max", "pids.max", value, err);
}

static int set_limits(
	const struct bsh_features *f, const char *name, const struct bsh_limits *limits, struct bsh_error *err)
{
	int rc = 0;

	if (limits->memory_max_bytes)
		rc = set_memory(f, name, limits->memory_max_bytes, err);
	if (rc == 0 && limits->pids_max)
		rc = bsh_cgroup_limit_pids(f, name, limits->pids_max, err);
	if (rc == 0 && limits->cpu_weight)
		rc = bsh_cgroup_weigh(f, name, limits->cpu_weight, 0, err);
	return rc;
}

int bsh_cgroup_make(const struct bsh_features *features, const char *name, const struct bsh_limits *limits,
	struct bsh_cgroup *ret_cgroup, struct bsh_error *err)
{
	struct bsh_cgroup cgroup = {.tracker_v2 = features->cgroup_v2 != NULL};
	const char *mounts[BSH_CGROUPS_MAX];
	size_t n = bsh_cgroup_mounts(features, mounts);
	int rc = 0;

	if (!features->cgroup_v2 && !features->cgroup_v1_freezer)
		return bsh_fail(err, EOPNOTSUPP, "neither cgroup v2 nor the v1 freezer is mounted");
	for (size_t i = 0; i < n && rc == 0; i++) {
		rc = make_in(mounts[i], name, i == 0 && cgroup.tracker_v2, &cgroup, err);
		if (rc == 0 && i == 0 && cgroup.tracker_v2)
			hand_down(features, mounts[i], name);
	}
	if (rc == 0)
		rc = set_limits(features, name, limits, err);
	if (rc < 0) {
		bsh_cgroup_remove(&cgroup, NULL);
		bsh_cgroup_release(&cgroup);
		return rc;
	}
	*ret_cgroup = cgroup;
	return 0;
}

void bsh_cgroup_find(const struct bsh_features *features, const char *name, struct bsh_cgroup *ret_cgroup)
{
	const char *mounts[BSH_CGROUPS_MAX];
	size_t n = bsh_cgroup_mounts(features, mounts);

	*ret_cgroup = (struct bsh_cgroup){.tracker_v2 = features->cgroup_v2 != NULL};
	for (size_t i = 0; i < n; i++) {
		char *dir = bsh_format("%s/%s", mounts[i], name);

		/* The tracker keeps its place also when it is gone: everything then finds nothing there. */
		if (i == 0 || access(dir, F_OK) == 0)
			add_dir(ret_cgroup, dir, -1);
		else
			free(dir);
	}
}

void bsh_cgroup_note(const struct bsh_cgroup *cgroup, const char *text)
{
	for (unsigned int i = 0; i < cgroup->n; i++)
		setxattr(cgroup->dirs[i], NOTE, text, strlen(text), 0);
}

int bsh_cgroup_note_read(const char *dir, char **ret_text)
{
	ssize_t size = lgetxattr(dir, NOTE, NULL, 0);
	auto_free char *text = size < 0 ? NULL : bsh_alloc((size_t)size + 1);

	if (!text || lgetxattr(dir, NOTE, text, (size_t)size) != size)
		return -ENODATA;
	*ret_text = bsh_take(text);
	return 0;
}

void bsh_cgroup_release(struct bsh_cgroup *cgroup)
{
	for (unsigned int i = 0; i < cgroup->n; i++) {
		bsh_close_fd(&cgroup->procs_fds[i]);
		free(cgroup->dirs[i]);
	}
	*cgroup = (struct bsh_cgroup){0};
}

static int open_subdirs(const char *dir, DIR **ret_dir)
{
	*ret_dir = opendir(dir);
	return *ret_dir ? 0 : -errno;
}

static bool is_subdir(const struct dirent *entry)
{
	return entry->d_type == DT_DIR && entry->d_name[0] != '.';
}

/* rmdir, also of what is below. The kernel needs a moment after the last task's end on v1 and tells no event. */
static int remove_dir(const char *dir)
{
	struct timespec pause = {.tv_nsec = 100000};
	auto_closedir DIR *listing = NULL;
	struct dirent *entry;

	if (open_subdirs(dir, &listing) < 0)
		return errno == ENOENT ? 0 : -errno;
	while ((entry = readdir(listing))) {
		if (is_subdir(entry)) {
			auto_free char *child = bsh_format("%s/%s", dir, entry->d_name);

			remove_dir(child);
		}
	}
	for (int attempt = 0; attempt < 14; attempt++) {
		if (rmdir(dir) == 0 || errno == ENOENT)
			return 0;
		if (errno != EBUSY)
			return -errno;
		nanosleep(&pause, NULL);
		pause.tv_nsec = pause.tv_nsec * 2 < 200000000 ? pause.tv_nsec * 2 : 200000000;
	}
	return -EBUSY;
}

/* Levels above, as far as they are empty: others may use them. dir is .../bunshin/KEY/ID. */
static void remove_empty_parents(const char *dir)
{
	auto_free char *path = bsh_strdup(dir);

	for (int level = 0; level < 2; level++) {
		char *slash = strrchr(path, '/');

		if (!slash)
			return;
		*slash = '\0';
		if (rmdir(path) < 0)
			return;
	}
}

int bsh_cgroup_remove(const struct bsh_cgroup *cgroup, struct bsh_error *err)
{
	int rc = 0;

	for (unsigned int i = 0; i < cgroup->n; i++) {
		int one = remove_dir(cgroup->dirs[i]);

		if (one < 0)
			rc = bsh_fail(err, -one, "remove cgroup %s", cgroup->dirs[i]);
		else
			remove_empty_parents(cgroup->dirs[i]);
	}
	return rc;
}

static int add_pids(const char *dir, pid_t **pids, size_t *n)
{
	auto_free char *path = bsh_format("%s/cgroup.procs", dir), *text = NULL;
	auto_closedir DIR *listing = NULL;
	struct dirent *entry;
	int rc = bsh_read_file(AT_FDCWD, path, &text, NULL, NULL);

	if (rc < 0)
		return rc == -ENOENT || rc == -ENODEV ? 0 : rc;
	for (char *at = text, *end; *at; at = end) {
		long pid = strtol(at, &end, 10);
		pid_t *more;

		if (end == at)
			break;
		if (pid <= 0) /* a process of an outer pid namespace: none of ours */
			continue;
		more = realloc(*pids, (*n + 1) * sizeof(**pids));
		if (!more)
			return -ENOMEM;
		*pids = more;
		(*pids)[(*n)++] = (pid_t)pid;
	}
	if (open_subdirs(dir, &listing) < 0)
		return 0;
	while (rc == 0 && (entry = readdir(listing))) {
		if (is_subdir(entry)) {
			auto_free char *child = bsh_format("%s/%s", dir, entry->d_name);

			rc = add_pids(child, pids, n);
		}
	}
	return rc;
}

int bsh_cgroup_pids(const struct bsh_cgroup *cgroup, pid_t **ret_pids, size_t *ret_n, struct bsh_error *err)
{
	auto_free pid_t *pids = NULL;
	size_t n = 0;
	int rc = cgroup->n ? add_pids(cgroup->dirs[0], &pids, &n) : 0;

	if (rc < 0)
		return bsh_fail(err, -rc, "read the processes of %s", cgroup->dirs[0]);
	*ret_pids = bsh_take(pids);
	*ret_n = n;
	return 0;
}

unsigned long long bsh_cgroup_kernel_bytes(const struct bsh_cgroup *cgroup)
{
	for (unsigned int i = 0; i < cgroup->n; i++) {
		auto_free char *v1 = bsh_format("%s/memory.kmem.usage_in_bytes", cgroup->dirs[i]);
		auto_free char *v2 = bsh_format("%s/memory.stat", cgroup->dirs[i]);
		auto_free char *text = NULL;
		const char *line;

		if (bsh_read_file(AT_FDCWD, v1, &text, NULL, NULL) == 0)
			return strtoull(text, NULL, 10);
		if (bsh_read_file(AT_FDCWD, v2, &text, NULL, NULL) < 0)
			continue;
		line = strstr(text, "\nkernel ");
		if (line)
			return strtoull(line + 8, NULL, 10);
	}
	return 0;
}

void bsh_cgroup_remove_dir(const struct bsh_cgroup *child)
{
	auto_free pid_t *pids = NULL;
	size_t n = 0;

	if (child->n && bsh_cgroup_pids(child, &pids, &n, NULL) == 0 && n == 0)
		remove_dir(child->dirs[0]);
}

int bsh_cgroup_child_make(
	const struct bsh_cgroup *cgroup, const char *name, struct bsh_cgroup *ret_child, struct bsh_error *err)
{
	struct bsh_cgroup child = {.tracker_v2 = cgroup->tracker_v2};
	int rc = make_in(cgroup->dirs[0], name, child.tracker_v2, &child, err);

	if (rc == 0)
		*ret_child = child;
	return rc;
}
