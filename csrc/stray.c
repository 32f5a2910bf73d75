/* SPDX-License-Identifier: Apache-2.0 */
#include "stray.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/cgroup.h"
#include "registry.h"
#include "workspace.h"

/* Of this process; 0: unknown. */
static unsigned long long namespace_of(const char *path)
{
	struct stat info;

	return stat(path, &info) < 0 ? 0 : info.st_ino;
}

/* Where pids and paths of a note mean what they mean here. */
static bool is_here(unsigned long long pidns, unsigned long long mntns)
{
	return pidns && pidns == namespace_of("/proc/self/ns/pid") && mntns &&
	       mntns == namespace_of("/proc/self/ns/mnt");
}

void bsh_stray_sign(const struct bsh_core *core, const struct bsh_owner *owner, const struct bsh_cgroup *cgroup)
{
	auto_free char *note = bsh_format("owner=%d %llu %s\npidns=%llu\nmntns=%llu\nhome=%s", (int)owner->pid,
		owner->start_time, owner->boot_id, namespace_of("/proc/self/ns/pid"), namespace_of("/proc/self/ns/mnt"),
		core->home);

	bsh_cgroup_note(cgroup, note);
}

/* Is the state directory still where the note says? key: what its cgroups are named by. */
static bool home_is_there(const char *home, const char *key)
{
	auto_free char *now = NULL;
	struct stat info;

	if (stat(home, &info) < 0)
		return errno != ENOENT && errno != ENOTDIR;
	now = bsh_home_key(&info);
	return strcmp(now, key) == 0;
}

/* Only what is certain: a note of this boot and these namespaces, no state directory, a dead owner. */
static bool is_stray(const char *dir, const char *key)
{
	auto_free char *note = NULL;
	struct bsh_owner owner = {0};
	unsigned long long pidns = 0, mntns = 0;
	const char *home;

	if (bsh_cgroup_note_read(dir, &note) < 0)
		return false;
	home = strstr(note, "\nhome=");
	if (!home || sscanf(note, "owner=%d %llu %39s\npidns=%llu\nmntns=%llu", &owner.pid, &owner.start_time,
			     owner.boot_id, &pidns, &mntns) != 5)
		return false;
	return is_here(pidns, mntns) && !home_is_there(home + strlen("\nhome="), key) && !bsh_owner_alive(&owner);
}

/* The cgroups of one other state directory in one hierarchy. */
static void reap_key(const struct bsh_core *core, const char *base, const char *key, unsigned int *n, int *first_rc,
	struct bsh_error *err)
{
	auto_free char *dir = bsh_format("%s/%s", base, key);
	auto_strv char **ids = NULL;

	if (bsh_list_dir(AT_FDCWD, dir, &ids, NULL) < 0)
		return;
	for (size_t i = 0; ids[i]; i++) {
		auto_free char *path = bsh_format("%s/%s", dir, ids[i]);
		auto_free char *name = bsh_format("bunshin/%s/%s", key, ids[i]);
		unsigned int killed = 0;
		bool there = false;
		int rc;

		if (!is_stray(path, key))
			continue;
		rc = bsh_cgroup_reap(core->features, name, &killed, &there, *first_rc ? NULL : err);
		*n += rc == 0 && there;
		*first_rc = *first_rc ? *first_rc : rc;
	}
	/* Empty: nobody's. One that makes a workspace in it at this moment makes it again. */
	rmdir(dir);
}

int bsh_strays_reap(const struct bsh_core *core, unsigned int *ret_n, struct bsh_error *err)
{
	const char *ours = strchr(core->cgroup_base, '/') + 1;
	const char *mounts[BSH_CGROUPS_MAX];
	size_t n_mounts = bsh_cgroup_mounts(core->features, mounts);
	unsigned int n = 0;
	int rc = 0;

	for (size_t i = 0; i < n_mounts; i++) {
		auto_free char *base = bsh_format("%s/bunshin", mounts[i]);
		auto_strv char **keys = NULL;

		if (bsh_list_dir(AT_FDCWD, base, &keys, NULL) < 0)
			continue;
		for (size_t k = 0; keys[k]; k++)
			if (strcmp(keys[k], ours) != 0)
				reap_key(core, base, keys[k], &n, &rc, err);
	}
	*ret_n = n;
	return rc;
}
