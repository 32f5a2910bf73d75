/* SPDX-License-Identifier: Apache-2.0 */
#include "registry.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/procfs.h"
#include "places.h"

static const char *const kinds[] = {"workspaces", "snapshots"};

char *bsh_new_id(void)
{
	unsigned char bytes[6];
	size_t done = 0;

	while (done < sizeof(bytes)) {
		ssize_t n = getrandom(bytes + done, sizeof(bytes) - done, 0);

		done += n > 0 ? (size_t)n : 0;
	}
	return bsh_format("%02x%02x%02x%02x%02x%02x", bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]);
}

int bsh_owner_of(pid_t pid, struct bsh_owner *ret_owner, struct bsh_error *err)
{
	struct bsh_owner owner = {.pid = pid};
	struct bsh_proc_stat stat;
	int rc = bsh_proc_stat_read(pid, &stat, err);

	if (rc < 0)
		return rc;
	owner.start_time = stat.start_time;
	rc = bsh_boot_id(owner.boot_id, err);
	if (rc < 0)
		return rc;
	*ret_owner = owner;
	return 0;
}

int bsh_owner_self(struct bsh_owner *ret_owner, struct bsh_error *err)
{
	return bsh_owner_of(getpid(), ret_owner, err);
}

bool bsh_owner_alive(const struct bsh_owner *owner)
{
	char boot_id[40];

	return owner->pid > 0 && bsh_boot_id(boot_id, NULL) == 0 && strcmp(boot_id, owner->boot_id) == 0 &&
	       bsh_process_alive(owner->pid, owner->start_time);
}

int bsh_registry_lock(const char *home, int *ret_fd, struct bsh_error *err)
{
	auto_free char *path = bsh_format("%s/lock", home);
	auto_close int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0)
		return bsh_fail(err, errno, "open %s", path);
	while (flock(fd, LOCK_EX) < 0)
		if (errno != EINTR)
			return bsh_fail(err, errno, "lock %s", path);
	*ret_fd = bsh_take_fd(&fd);
	return 0;
}

static int write_record(const char *home, const char *kind, const struct bsh_record *record, struct bsh_error *err)
{
	auto_free char *path = bsh_format("%s/%s/%s/record", home, kind, record->id);
	auto_free char *text = bsh_record_format(record);

	return bsh_write_file(AT_FDCWD, path, text, strlen(text), 0600, err);
}

int bsh_registry_add(const char *home, const char *kind, const struct bsh_record *record, struct bsh_error *err)
{
	auto_free char *dir = bsh_format("%s/%s/%s", home, kind, record->id);
	auto_close int lock = -1;
	int rc = bsh_registry_lock(home, &lock, err);

	if (rc < 0)
		return rc;
	rc = bsh_make_apart(dir, 0700, err);
	if (rc < 0)
		return rc;
	rc = write_record(home, kind, record, err);
	if (rc < 0)
		bsh_remove_tree(AT_FDCWD, dir, NULL);
	return rc;
}

int bsh_registry_update(const char *home, const char *kind, const struct bsh_record *record, struct bsh_error *err)
{
	auto_close int lock = -1;
	int rc = bsh_registry_lock(home, &lock, err);

	return rc < 0 ? rc : write_record(home, kind, record, err);
}

int bsh_registry_read(
	const char *home, const char *kind, const char *id, struct bsh_record *ret_record, struct bsh_error *err)
{
	auto_free char *path = bsh_format("%s/%s/%s/record", home, kind, id), *text = NULL;
	int rc = bsh_read_file(AT_FDCWD, path, &text, NULL, err);

	if (rc == 0)
		rc = bsh_record_parse(text, ret_record, err);
	return rc < 0 ? bsh_context(err, rc, "record of %s", id) : 0;
}

/* Out of sight under the lock by one rename; the slow part comes without it. */
static int move_to_trash(const char *home, const char *path, char **ret_trash, struct bsh_error *err)
{
	auto_free char *id = bsh_new_id();
	auto_free char *trash = bsh_format("%s/trash/%s", home, id);

	if (rename(path, trash) == 0)
		*ret_trash = bsh_take(trash);
	else if (errno != ENOENT)
		return bsh_fail(err, errno, "move %s to the trash", path);
	return 0;
}

static int empty_trash(char **trash, struct bsh_error *err)
{
	int rc = 0;

	for (size_t i = 0; trash[i]; i++) {
		int one = bsh_remove_tree(AT_FDCWD, trash[i], err);

		rc = one < 0 ? one : rc;
	}
	return rc;
}

/* The name of a directory in HOME/layers, NULL for any other path. */
static const char *layer_name(const char *home, const char *path)
{
	size_t len = strlen(home);

	return strncmp(path, home, len) == 0 && strncmp(path + len, "/layers/", 8) == 0 ? path + len + 8 : NULL;
}

static void strike_out(const char *home, char **used, char **names)
{
	for (size_t i = 0; used[i]; i++) {
		const char *name = layer_name(home, used[i]);

		for (size_t k = 0; name && names[k]; k++)
			if (strcmp(name, names[k]) == 0)
				names[k][0] = '\0';
	}
}

/* Strikes out the names of those layers that a record of this kind uses. */
static int keep_used(const char *home, const char *kind, char **names, struct bsh_error *err)
{
	auto_free char *dir = bsh_format("%s/%s", home, kind);
	auto_strv char **ids = NULL;
	int rc = bsh_list_dir(AT_FDCWD, dir, &ids, err);

	for (size_t i = 0; rc == 0 && ids[i]; i++) {
		struct bsh_record record = {0};

		rc = bsh_registry_read(home, kind, ids[i], &record, err);
		if (rc == 0) {
			strike_out(home, record.layers, names);
			strike_out(home, record.deltas, names);
		}
		/* Half-made by one that was killed: it holds nothing. One that cannot be understood may hold anything.
		 */
		rc = rc == -ENOENT ? 0 : rc;
		bsh_record_release(&record);
	}
	return rc;
}

/* Moves the unused layers to the trash; the caller holds the lock. */
static int sweep_locked(const char *home, char ***trash, unsigned int *n, struct bsh_error *err)
{
	auto_free char *dir = bsh_format("%s/layers", home);
	auto_strv char **layers = NULL;
	int rc = bsh_list_dir(AT_FDCWD, dir, &layers, err);

	for (size_t i = 0; rc == 0 && i < sizeof(kinds) / sizeof(kinds[0]); i++)
		rc = keep_used(home, kinds[i], layers, err);
	for (size_t i = 0; rc == 0 && layers[i]; i++) {
		auto_free char *path = NULL;
		char *moved = NULL;

		if (!layers[i][0] || strncmp(layers[i], "runtime-", 8) == 0)
			continue;
		path = bsh_format("%s/%s", dir, layers[i]);
		rc = move_to_trash(home, path, &moved, err);
		if (moved) {
			bsh_strv_push(trash, moved);
			(*n)++;
		}
	}
	return rc;
}

int bsh_registry_sweep(const char *home, unsigned int *ret_n, struct bsh_error *err)
{
	auto_strv char **trash = bsh_strv_copy(NULL);
	unsigned int n = 0;
	int lock = -1, rc = bsh_registry_lock(home, &lock, err);

	if (rc < 0)
		return rc;
	rc = sweep_locked(home, &trash, &n, err);
	close(lock);
	if (rc == 0)
		rc = empty_trash(trash, err);
	if (rc == 0 && ret_n)
		*ret_n = n;
	return rc;
}

static bool holds_any(const char *home, char **layers)
{
	for (size_t i = 0; layers[i]; i++) {
		const char *name = layer_name(home, layers[i]);

		if (name && strncmp(name, "runtime-", 8) != 0)
			return true;
	}
	return false;
}

/* Does it stand on layers that may be unused after it? */
static bool holds_layers(const char *home, const char *kind, const char *id)
{
	struct bsh_record record;
	bool found;

	if (bsh_registry_read(home, kind, id, &record, NULL) < 0)
		return false;
	found = holds_any(home, record.layers) || holds_any(home, record.deltas);
	bsh_record_release(&record);
	return found;
}

int bsh_registry_remove(const char *home, const char *kind, const char *id, struct bsh_error *err)
{
	auto_free char *dir = bsh_format("%s/%s/%s", home, kind, id);
	auto_strv char **trash = bsh_strv_copy(NULL);
	unsigned int n = 0;
	char *moved = NULL;
	int lock = -1, rc = bsh_registry_lock(home, &lock, err);

	bool sweep;

	if (rc < 0)
		return rc;
	sweep = holds_layers(home, kind, id);
	rc = move_to_trash(home, dir, &moved, err);
	if (moved)
		bsh_strv_push(&trash, moved);
	if (rc == 0 && sweep)
		rc = sweep_locked(home, &trash, &n, err);
	close(lock);
	return rc < 0 ? rc : empty_trash(trash, err);
}
