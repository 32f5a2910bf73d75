/* SPDX-License-Identifier: Apache-2.0 */
#include "host/features.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/utsname.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/procfs.h"

static bool has_word(const char *text, const char *word, const char *separators)
{
	size_t len = strlen(word);

	for (const char *at = strstr(text, word); at; at = strstr(at + 1, word))
		if ((at == text || strchr(separators, at[-1])) && (!at[len] || strchr(separators, at[len])))
			return true;
	return false;
}

/* Mount points in mountinfo carry spaces and the like as octal escapes. */
static char *unescape(const char *text, size_t len)
{
	char *copy = bsh_alloc(len + 1), *to = copy;

	for (size_t i = 0; i < len; i++) {
		unsigned int code;

		if (text[i] == '\\' && i + 3 < len && sscanf(text + i + 1, "%3o", &code) == 1) {
			*to++ = (char)code;
			i += 3;
		} else {
			*to++ = text[i];
		}
	}
	return copy;
}

static void set_once(char **slot, const char *path)
{
	if (!*slot)
		*slot = bsh_strdup(path);
}

static void note_mount(struct bsh_features *features, const char *path, const char *type, const char *options)
{
	if (strcmp(type, "cgroup2") == 0)
		set_once(&features->cgroup_v2, path);
	if (strcmp(type, "cgroup") != 0)
		return;
	if (has_word(options, "freezer", ","))
		set_once(&features->cgroup_v1_freezer, path);
	if (has_word(options, "memory", ","))
		set_once(&features->cgroup_v1_memory, path);
	if (has_word(options, "pids", ","))
		set_once(&features->cgroup_v1_pids, path);
	if (has_word(options, "cpu", ","))
		set_once(&features->cgroup_v1_cpu, path);
	if (has_word(options, "blkio", ","))
		set_once(&features->cgroup_v1_blkio, path);
}

void bsh_features_parse_mounts(const char *mountinfo, struct bsh_features *features)
{
	auto_free char *copy = bsh_strdup(mountinfo);
	char *rest = copy, *line;

	while ((line = strsep(&rest, "\n"))) {
		/* id parent major:minor root mountpoint options ... - type source super-options */
		char *tail = strstr(line, " - "), *save = NULL, *type, *options, *at = line;
		auto_free char *path = NULL;

		for (int field = 0; at && field < 4; field++)
			at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
		if (!tail || !at || at > tail)
			continue;
		path = unescape(at, strcspn(at, " "));
		type = strtok_r(tail + 3, " ", &save);
		strtok_r(NULL, " ", &save);
		options = strtok_r(NULL, " ", &save);
		if (type && options)
			note_mount(features, path, type, options);
	}
}

/* Controllers count only if they can be handed down: the root's own subtree_control takes them. */
static bool hand_down(const char *mount, const char *controller)
{
	auto_free char *available = bsh_format("%s/cgroup.controllers", mount);
	auto_free char *control = bsh_format("%s/cgroup.subtree_control", mount);
	auto_free char *order = bsh_format("+%s", controller);
	auto_free char *text = NULL;

	if (bsh_read_file(AT_FDCWD, available, &text, NULL, NULL) < 0 || !has_word(text, controller, " \n"))
		return false;
	return bsh_write_control(AT_FDCWD, control, order, NULL) == 0;
}

static int probe_cgroups(struct bsh_features *features, struct bsh_error *err)
{
	auto_free char *text = NULL;
	const char *choice = getenv("BUNSHIN_FREEZER");
	int rc = bsh_read_file(AT_FDCWD, "/proc/self/mountinfo", &text, NULL, err);

	if (rc < 0)
		return rc;
	bsh_features_parse_mounts(text, features);
	if (choice && strcmp(choice, "v1") == 0 && features->cgroup_v1_freezer) {
		free(features->cgroup_v2);
		features->cgroup_v2 = NULL;
	}
	if (!features->cgroup_v2)
		return 0;
	features->v2_memory = hand_down(features->cgroup_v2, "memory");
	features->v2_pids = hand_down(features->cgroup_v2, "pids");
	features->v2_cpu = hand_down(features->cgroup_v2, "cpu");
	features->v2_io = hand_down(features->cgroup_v2, "io");
	return 0;
}

static void probe_overlay(struct bsh_features *features)
{
	auto_close int fs = (int)syscall(SYS_fsopen, "overlay", FSOPEN_CLOEXEC);

	features->overlay = fs >= 0;
	/* Before 6.5 every word is taken until the mount itself: such a kernel takes this one too. */
	features->overlay_lowerdir_add = fs >= 0 &&
					 syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "no-such-option", NULL, 0) < 0 &&
					 syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "lowerdir+", "/", 0) == 0;
}

static bool have_full_capabilities(void)
{
	const unsigned long long needed = 1ULL << CAP_SYS_ADMIN | 1ULL << CAP_NET_ADMIN | 1ULL << CAP_SYS_PTRACE |
					  1ULL << CAP_SYS_CHROOT | 1ULL << CAP_MKNOD | 1ULL << CAP_SETPCAP |
					  1ULL << CAP_DAC_READ_SEARCH;
	struct bsh_proc_status status;

	return geteuid() == 0 && bsh_proc_status_read(getpid(), &status, NULL) == 0 &&
	       (status.effective_caps & needed) == needed;
}

static int probe(struct bsh_features *features, struct bsh_error *err)
{
	struct utsname name;

	if (uname(&name) < 0 || sscanf(name.release, "%u.%u", &features->kernel_major, &features->kernel_minor) != 2)
		return bsh_fail(err, EPROTO, "read the kernel's version");
	features->root = have_full_capabilities();
	if (features->root)
		probe_overlay(features);
	features->kpagecount = access("/proc/kpagecount", R_OK) == 0;
	features->pagemap_scan = features->kernel_major * 1000 + features->kernel_minor >= 6007;
	features->pidfd_info = features->kernel_major * 1000 + features->kernel_minor >= 6015;
	return probe_cgroups(features, err);
}

int bsh_features_get(const struct bsh_features **ret_features, struct bsh_error *err)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct bsh_features features;
	static bool done;
	int rc = 0;

	pthread_mutex_lock(&lock);
	if (!done)
		rc = probe(&features, err);
	done = rc == 0;
	pthread_mutex_unlock(&lock);
	if (rc == 0)
		*ret_features = &features;
	return rc;
}

static const char *yes(bool value)
{
	return value ? "yes" : "no";
}

static const char *or_none(const char *path)
{
	return path ? path : "none";
}

char *bsh_features_text(const struct bsh_features *f)
{
	return bsh_format(
		"kernel=%u.%u\nroot=%s\noverlay=%s\noverlay_lowerdir_add=%s\npidfd_info=%s\npagemap_scan=%s\n"
		"kpagecount=%s\ncgroup_v2=%s\nv2_memory=%s\nv2_pids=%s\nv2_cpu=%s\nv2_io=%s\ncgroup_v1_freezer=%s\n"
		"cgroup_v1_memory=%s\ncgroup_v1_pids=%s\ncgroup_v1_cpu=%s\ncgroup_v1_blkio=%s\n",
		f->kernel_major, f->kernel_minor, yes(f->root), yes(f->overlay), yes(f->overlay_lowerdir_add),
		yes(f->pidfd_info), yes(f->pagemap_scan), yes(f->kpagecount), or_none(f->cgroup_v2), yes(f->v2_memory),
		yes(f->v2_pids), yes(f->v2_cpu), yes(f->v2_io), or_none(f->cgroup_v1_freezer),
		or_none(f->cgroup_v1_memory), or_none(f->cgroup_v1_pids), or_none(f->cgroup_v1_cpu),
		or_none(f->cgroup_v1_blkio));
}
