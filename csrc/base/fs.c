/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fs.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"

ssize_t bsh_read_all(int fd, void *bytes, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = read(fd, (char *)bytes + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

int bsh_write_all(int fd, const void *bytes, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = write(fd, (const char *)bytes + done, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	return 0;
}

int bsh_read_file(int dir_fd, const char *path, char **ret_text, size_t *ret_len, struct bsh_error *err)
{
	auto_close int fd = openat(dir_fd, path, O_RDONLY | O_CLOEXEC);
	auto_buffer struct bsh_buffer buffer = {0};
	char chunk[16384];

	if (fd < 0)
		return bsh_fail(err, errno, "open %s", path);
	bsh_buffer_add(&buffer, "", 0);
	for (;;) {
		ssize_t n = bsh_read_all(fd, chunk, sizeof(chunk));

		if (n < 0)
			return bsh_fail(err, (int)-n, "read %s", path);
		if (n == 0)
			break;
		bsh_buffer_add(&buffer, chunk, (size_t)n);
	}
	if (ret_len)
		*ret_len = buffer.len;
	*ret_text = bsh_take(buffer.text);
	return 0;
}

int bsh_write_control(int dir_fd, const char *path, const char *text, struct bsh_error *err)
{
	auto_close int fd = openat(dir_fd, path, O_WRONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return bsh_fail(err, errno, "open %s", path);
	do {
		n = write(fd, text, strlen(text));
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return bsh_fail(err, errno, "write %s to %s", text, path);
	return 0;
}

int bsh_write_file(int dir_fd, const char *path, const void *bytes, size_t len, mode_t mode, struct bsh_error *err)
{
	auto_free char *temporary = bsh_format("%s.new", path);
	auto_close int fd = openat(dir_fd, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode);
	int rc;

	if (fd < 0)
		return bsh_fail(err, errno, "create %s", temporary);
	rc = bsh_write_all(fd, bytes, len);
	if (rc < 0)
		bsh_fail(err, -rc, "write %s", temporary);
	else if (renameat(dir_fd, temporary, dir_fd, path) < 0)
		rc = bsh_fail(err, errno, "rename %s", temporary);
	if (rc < 0)
		unlinkat(dir_fd, temporary, 0);
	return rc;
}

int bsh_make_dirs(const char *path, mode_t mode, struct bsh_error *err)
{
	auto_free char *partial = bsh_strdup(path);
	struct stat info;

	for (char *slash = partial + 1;; slash++) {
		char kept;

		slash += strcspn(slash, "/");
		kept = *slash;
		*slash = '\0';
		if (mkdir(partial, mode) < 0 && errno != EEXIST)
			return bsh_fail(err, errno, "mkdir %s", partial);
		*slash = kept;
		if (!kept)
			break;
	}
	if (stat(path, &info) < 0)
		return bsh_fail(err, errno, "stat %s", path);
	return S_ISDIR(info.st_mode) ? 0 : bsh_fail(err, ENOTDIR, "%s", path);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_dot(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

int bsh_list_dir(int dir_fd, const char *path, char ***ret_names, struct bsh_error *err)
{
	auto_close int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_closedir DIR *dir = NULL;
	auto_strv char **names = bsh_strv_copy(NULL);
	struct dirent *entry;

	if (fd < 0 && errno != ENOENT)
		return bsh_fail(err, errno, "open %s", path);
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (fd >= 0 && !dir)
		return bsh_fail(err, errno, "read %s", path);
	bsh_take_fd(&fd);
	while (dir && (errno = 0, entry = readdir(dir)))
		if (!is_dot(entry->d_name))
			bsh_strv_push(&names, bsh_strdup(entry->d_name));
	if (dir && errno)
		return bsh_fail(err, errno, "read %s", path);
	qsort(names, bsh_strv_len((const char *const *)names), sizeof(*names), compare_names);
	*ret_names = bsh_take(names);
	return 0;
}

int bsh_make_pipe(int ret_fds[2])
{
	int fds[2];

	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	for (int end = 0; end < 2; end++) {
		int higher;

		if (fds[end] > STDERR_FILENO)
			continue;
		higher = fcntl(fds[end], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
		if (higher < 0) {
			higher = -errno;
			close(fds[0]);
			close(fds[1]);
			return higher;
		}
		close(fds[end]);
		fds[end] = higher;
	}
	ret_fds[0] = fds[0];
	ret_fds[1] = fds[1];
	return 0;
}
