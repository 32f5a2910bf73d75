/* SPDX-License-Identifier: Apache-2.0 */
#include "host/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"
#include "host/mapquery.h"
#include "host/procfs.h"

struct list {
	ino_t *inodes;
	size_t n;
};

static int compare_inodes(const void *a, const void *b)
{
	ino_t x = *(const ino_t *)a, y = *(const ino_t *)b;

	return x < y ? -1 : x > y;
}

bool bsh_mapped_has(const ino_t *inodes, size_t n, ino_t inode)
{
	return n && bsearch(&inode, inodes, n, sizeof(inode), compare_inodes) != NULL;
}

static int add_mapped(struct list *list, int dir_fd, const struct bsh_vma *vma, struct bsh_error *err)
{
	char path[PATH_MAX];
	struct stat st;
	ino_t *grown;

	if (vma->name_len < 2 || vma->name_len >= sizeof(path) || vma->name[0] != '/')
		return 0;
	memcpy(path, vma->name + 1, vma->name_len - 1);
	path[vma->name_len - 1] = 0;
	if (fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0; /* in a lower layer, or no file at all: nothing to copy */
	if ((list->n & (list->n + 1)) == 0) {
		grown = realloc(list->inodes, (list->n + 1) * 2 * sizeof(*grown));
		if (!grown)
			return bsh_fail(err, ENOMEM, "mapped files");
		list->inodes = grown;
	}
	list->inodes[list->n++] = st.st_ino;
	return 0;
}

/* Asks for shared mappings of files alone, which are few: 1 if the kernel cannot. */
static int query_mapped(struct list *list, int dir_fd, int maps_fd, pid_t pid, struct bsh_error *err)
{
	char name[PATH_MAX];
	struct bsh_map_query query = {0};

	for (;;) {
		struct bsh_vma vma = {.name = name};
		int rc;

		query.size = sizeof(query);
		query.flags = BSH_MAP_QUERY_SHARED | BSH_MAP_QUERY_FILE | BSH_MAP_QUERY_OR_NEXT;
		query.name = (uint64_t)(uintptr_t)name;
		query.name_size = sizeof(name);
		if (ioctl(maps_fd, BSH_MAP_QUERY, &query) < 0) {
			if (errno == ENOENT || errno == ESRCH)
				return 0;
			return errno == ENOTTY ? 1 : bsh_fail(err, errno, "ask for the mappings of pid %d", pid);
		}
		vma.name_len = query.name_size ? query.name_size - 1 : 0;
		rc = add_mapped(list, dir_fd, &vma, err);
		if (rc < 0)
			return rc;
		query.addr = query.end;
	}
}

static int read_mapped(struct list *list, int dir_fd, pid_t pid, struct bsh_error *err)
{
	auto_free char *text = NULL;
	const char *cursor;
	struct bsh_vma vma;
	int rc = bsh_proc_read(pid, "maps", &text, err);

	if (rc < 0)
		return rc == -ESRCH || rc == -ENOENT ? 0 : rc;
	cursor = text;
	while ((rc = bsh_maps_next(&cursor, &vma)) > 0) {
		if (!(vma.flags & BSH_VMA_SHARED))
			continue;
		rc = add_mapped(list, dir_fd, &vma, err);
		if (rc < 0)
			return rc;
	}
	return rc < 0 ? bsh_fail(err, -rc, "read the maps of pid %d", pid) : 0;
}

static int find_mapped(struct list *list, int dir_fd, pid_t pid, struct bsh_error *err)
{
	auto_free char *path = bsh_format("/proc/%d/maps", pid);
	auto_close int maps = open(path, O_RDONLY | O_CLOEXEC);
	int rc;

	if (maps < 0)
		return errno == ENOENT || errno == ESRCH ? 0 : bsh_fail(err, errno, "open %s", path);
	rc = query_mapped(list, dir_fd, maps, pid, err);
	return rc > 0 ? read_mapped(list, dir_fd, pid, err) : rc;
}

int bsh_mapped_inodes(
	int dir_fd, const pid_t *pids, size_t n_pids, ino_t **ret_inodes, size_t *ret_n, struct bsh_error *err)
{
	struct list list = {0};

	for (size_t i = 0; i < n_pids; i++) {
		int rc = find_mapped(&list, dir_fd, pids[i], err);

		if (rc < 0) {
			free(list.inodes);
			return rc;
		}
	}
	if (list.n)
		qsort(list.inodes, list.n, sizeof(*list.inodes), compare_inodes);
	*ret_inodes = list.inodes;
	*ret_n = list.n;
	return 0;
}
