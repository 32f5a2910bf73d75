/* SPDX-License-Identifier: Apache-2.0 */
/* The core handle: one state directory, one CRIU. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "places.h"
#include "workspace.h"

static int make_home(const char *home, char **ret_path, struct bsh_error *err)
{
	static const char *const dirs[] = {"workspaces", "snapshots", "layers", "trash"};
	char *path;
	int rc = bsh_make_dirs(home, 0755, err);

	if (rc < 0)
		return rc;
	path = realpath(home, NULL);
	if (!path)
		return bsh_fail(err, errno, "resolve %s", home);
	for (size_t i = 0; rc == 0 && i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		auto_free char *dir = bsh_format("%s/%s", path, dirs[i]);

		rc = bsh_make_dirs(dir, 0700, err);
	}
	if (rc == 0)
		rc = bsh_places_make(path, err);
	if (rc == 0)
		*ret_path = path;
	else
		free(path);
	return rc;
}

char *bsh_home_key(const struct stat *info)
{
	return bsh_format("%llx-%llx", (unsigned long long)info->st_dev, (unsigned long long)info->st_ino);
}

int bsh_core_open(const char *home, const char *criu, struct bsh_core **ret_core, struct bsh_error *err)
{
	struct bsh_core *core = bsh_alloc(sizeof(*core));
	auto_free char *key = NULL;
	struct stat info;
	int rc;

	core->refs = 1;
	core->pid = getpid();
	rc = make_home(home, &core->home, err);
	if (rc == 0)
		rc = bsh_features_get(&core->features, err);
	if (rc == 0 && stat(core->home, &info) < 0)
		rc = bsh_fail(err, errno, "stat %s", core->home);
	if (rc < 0) {
		bsh_core_free(core);
		if (rc == -EACCES || rc == -EPERM)
			bsh_context(err, rc, "root is needed, or BUNSHIN_HOME in a place of yours");
		return bsh_context(err, rc, "open the state directory %s", home);
	}
	core->criu = bsh_strdup(criu);
	/* Two state directories never meet in one cgroup, however they are spelled. */
	key = bsh_home_key(&info);
	core->cgroup_base = bsh_format("bunshin/%s", key);
	*ret_core = core;
	return 0;
}

struct bsh_core *bsh_core_get(struct bsh_core *core)
{
	atomic_fetch_add(&core->refs, 1);
	return core;
}

bool bsh_core_is_ours(const struct bsh_core *core)
{
	return core->pid == getpid();
}

void bsh_core_free(struct bsh_core *core)
{
	if (!core || !bsh_core_is_ours(core) || atomic_fetch_sub(&core->refs, 1) > 1)
		return;
	free(core->home);
	free(core->criu);
	free(core->cgroup_base);
	free(core);
}

int bsh_core_features(struct bsh_core *core, char **ret_text, struct bsh_error *err)
{
	(void)err;
	*ret_text = bsh_features_text(core->features);
	return 0;
}

void bsh_string_free(char *text)
{
	free(text);
}

int bsh_core_check(const struct bsh_core *core, struct bsh_error *err)
{
	const struct bsh_features *f = core->features;

	if (f->kernel_major * 1000 + f->kernel_minor < 5015)
		return bsh_fail(err, EOPNOTSUPP, "Linux %u.%u is too old: 5.15 or later is needed", f->kernel_major,
			f->kernel_minor);
	if (!f->root)
		return bsh_fail(err, EPERM,
			"root with all capabilities is needed (run it by sudo, or in a privileged container)");
	if (!f->overlay)
		return bsh_fail(err, EOPNOTSUPP, "this kernel has no overlay file system (modprobe overlay)");
	if (!f->cgroup_v2 && !f->cgroup_v1_freezer)
		return bsh_fail(
			err, EOPNOTSUPP, "neither cgroup v2 nor the v1 freezer is mounted under /sys/fs/cgroup");
	return 0;
}
