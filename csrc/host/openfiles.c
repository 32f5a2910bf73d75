/* SPDX-License-Identifier: Apache-2.0 */
#include "host/openfiles.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

static bool is_gone(int code)
{
	return code == ENOENT || code == ESRCH;
}

int bsh_open_files_visit_if_alive(pid_t pid, bsh_open_file_visitor visit, void *context, struct bsh_error *err)
{
	struct bsh_open_file file = {.pid = pid};
	auto_closedir DIR *dir = NULL;
	struct dirent *item;
	char path[64];
	int rc;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	if (!dir)
		return is_gone(errno) || errno == EACCES ? 0 : bsh_fail(err, errno, "open %s", path);
	file.dir_fd = dirfd(dir);
	while ((item = readdir(dir))) {
		ssize_t length;

		if (item->d_name[0] == '.')
			continue;
		length = readlinkat(file.dir_fd, item->d_name, file.link, sizeof(file.link) - 1);
		/* Not even root may look into some processes: of such a one we see nothing. */
		if (length < 0 && (is_gone(errno) || errno == EACCES))
			continue;
		/* A path deeper than the kernel can spell; it may be any process of the machine that has it. */
		if (length < 0 && errno == ENAMETOOLONG)
			length = snprintf(file.link, sizeof(file.link), "/");
		if (length < 0)
			return bsh_fail(err, errno, "read %s/%s", path, item->d_name);
		file.link[length] = 0;
		file.fd = atoi(item->d_name);
		snprintf(file.name, sizeof(file.name), "%d", file.fd);
		rc = visit(context, &file, err);
		if (rc != 0)
			return rc;
	}
	return 0;
}

unsigned long bsh_link_inode(const char *link, const char *kind)
{
	size_t length = strlen(kind);

	if (strncmp(link, kind, length) || strncmp(link + length, ":[", 2))
		return 0;
	return strtoul(link + length + 2, NULL, 10);
}

static int find_unnamed(void *context, const struct bsh_open_file *file, struct bsh_error *err)
{
	const char *mark = strrchr(file->link, ' ');
	bool *any = context;
	struct stat st;

	(void)err;
	if (file->link[0] != '/' || !mark || strcmp(mark, " (deleted)"))
		return 0;
	if (fstatat(file->dir_fd, file->name, &st, 0) == 0 && st.st_nlink > 0 && !S_ISDIR(st.st_mode))
		*any = true;
	return *any;
}

int bsh_open_files_unnamed(const pid_t *pids, size_t n_pids, bool *ret_any, struct bsh_error *err)
{
	bool any = false;

	for (size_t i = 0; i < n_pids && !any; i++) {
		int rc = bsh_open_files_visit_if_alive(pids[i], find_unnamed, &any, err);

		if (rc < 0)
			return rc;
	}
	*ret_any = any;
	return 0;
}
