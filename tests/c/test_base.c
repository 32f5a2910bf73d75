/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/api.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "check.h"

int failures;

static void test_errors(void)
{
	struct bsh_error err = {0};
	char long_text[1000];

	CHECK(bsh_fail(&err, ENOENT, "open %s", "x") == -ENOENT);
	CHECK(err.code == ENOENT);
	CHECK_TEXT(err.msg, "open x: No such file or directory");
	CHECK(bsh_context(&err, -ENOENT, "fork %d", 7) == -ENOENT);
	CHECK_TEXT(err.msg, "fork 7: open x: No such file or directory");
	CHECK(bsh_fail(NULL, EIO, "nobody listens") == -EIO);
	memset(long_text, 'a', sizeof(long_text) - 1);
	long_text[sizeof(long_text) - 1] = '\0';
	bsh_fail(&err, EIO, "%s", long_text);
	CHECK(strlen(err.msg) == sizeof(err.msg) - 1);
	bsh_context(&err, -EIO, "%s", long_text);
	CHECK(strlen(err.msg) == sizeof(err.msg) - 1);
	bsh_context(&err, -EIO, "short");
	CHECK(strncmp(err.msg, "short: aaa", 10) == 0);
}

static void test_arrays(void)
{
	const char *const words[] = {"a", "b", NULL};
	auto_strv char **copy = bsh_strv_copy(words);
	auto_strv char **empty = bsh_strv_copy(NULL);
	char **nothing = NULL;

	CHECK(bsh_strv_len(words) == 2 && bsh_strv_len(NULL) == 0);
	bsh_strv_push(&copy, bsh_strdup("c"));
	CHECK(bsh_strv_len((const char *const *)copy) == 3);
	CHECK_TEXT(copy[2], "c");
	CHECK(empty[0] == NULL);
	bsh_strv_push(&nothing, bsh_strdup("first"));
	CHECK_TEXT(nothing[0], "first");
	bsh_strv_free(nothing);
	bsh_strv_free(NULL);
	CHECK(bsh_strdup(NULL) == NULL);
}

static void test_buffer(void)
{
	auto_buffer struct bsh_buffer buffer = {0};

	for (int i = 0; i < 1000; i++)
		bsh_buffer_printf(&buffer, "%d,", i % 10);
	CHECK(buffer.len == 2000 && strlen(buffer.text) == 2000);
	bsh_buffer_add(&buffer, "\0x", 2);
	CHECK(buffer.len == 2002 && buffer.text[2001] == 'x' && buffer.text[2002] == '\0');
}

static void test_files(const char *dir)
{
	auto_free char *path = bsh_format("%s/a/b/file", dir), *parent = bsh_format("%s/a/b", dir), *text = NULL;
	auto_strv char **names = NULL;
	struct bsh_error err;
	size_t len;

	CHECK(bsh_make_dirs(parent, 0755, &err) == 0);
	CHECK(bsh_make_dirs(parent, 0755, &err) == 0);
	CHECK(bsh_write_file(AT_FDCWD, path, "one\0two", 7, 0600, &err) == 0);
	CHECK(bsh_read_file(AT_FDCWD, path, &text, &len, &err) == 0);
	CHECK(len == 7 && memcmp(text, "one\0two", 8) == 0);
	CHECK(bsh_make_dirs(path, 0755, &err) < 0);
	CHECK(bsh_list_dir(AT_FDCWD, parent, &names, &err) == 0);
	CHECK(bsh_strv_len((const char *const *)names) == 1);
	CHECK_TEXT(names[0], "file");
	CHECK(bsh_write_control(AT_FDCWD, "/nowhere/file", "1", &err) == -ENOENT);
	CHECK(strstr(err.msg, "/nowhere/file") != NULL);
}

/* Deeper than any path can be named, with links out of it. */
static void test_remove_tree(const char *dir)
{
	auto_free char *top = bsh_format("%s/tree", dir), *kept = bsh_format("%s/kept", dir);
	auto_free char *kept_file = bsh_format("%s/kept/file", dir);
	struct bsh_error err;
	int fd;

	CHECK(bsh_make_dirs(top, 0755, &err) == 0 && bsh_make_dirs(kept, 0755, &err) == 0);
	CHECK(bsh_write_file(AT_FDCWD, kept_file, "x", 1, 0600, &err) == 0);
	fd = open(top, O_RDONLY | O_DIRECTORY);
	for (int depth = 0; depth < 3000; depth++) {
		int next;

		CHECK(mkdirat(fd, "d", 0755) == 0 && symlinkat(kept, fd, "link") == 0);
		next = openat(fd, "d", O_RDONLY | O_DIRECTORY);
		close(fd);
		fd = next;
	}
	close(fd);
	CHECK(bsh_remove_tree(AT_FDCWD, top, &err) == 0);
	CHECK(access(top, F_OK) < 0 && access(kept_file, F_OK) == 0);
	CHECK(bsh_remove_tree(AT_FDCWD, top, &err) == 0);
	CHECK(symlink(kept, top) == 0 && bsh_remove_tree(AT_FDCWD, top, &err) == 0);
	CHECK(access(top, F_OK) < 0 && access(kept_file, F_OK) == 0);
}

static void test_disk_usage(const char *dir)
{
	auto_free char *folder = bsh_format("%s/usage", dir), *file = bsh_format("%s/usage/f", dir);
	auto_free char *link_path = bsh_format("%s/usage/g", dir);
	unsigned long long empty = 0, one = 0, linked = 0;
	static const char bytes[100000];
	struct bsh_error err;

	CHECK(bsh_make_dirs(folder, 0755, &err) == 0 && bsh_disk_usage(folder, &empty, &err) == 0);
	CHECK(bsh_write_file(AT_FDCWD, file, bytes, sizeof(bytes), 0600, &err) == 0);
	CHECK(bsh_disk_usage(folder, &one, &err) == 0 && one - empty >= sizeof(bytes));
	CHECK(link(file, link_path) == 0 && bsh_disk_usage(folder, &linked, &err) == 0 && linked == one);
}

static void test_pipe_numbers(void)
{
	int fds[2], kept = dup(STDIN_FILENO);

	close(STDIN_FILENO);
	CHECK(bsh_make_pipe(fds) == 0);
	CHECK(fds[0] > STDERR_FILENO && fds[1] > STDERR_FILENO);
	CHECK(fcntl(fds[0], F_GETFD) == FD_CLOEXEC && fcntl(fds[1], F_GETFD) == FD_CLOEXEC);
	CHECK(bsh_write_all(fds[1], "hello", 5) == 0);
	close(fds[1]);
	CHECK(bsh_read_all(fds[0], (char[16]){0}, 16) == 5);
	close(fds[0]);
	if (kept >= 0) {
		dup2(kept, STDIN_FILENO);
		close(kept);
	}
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	test_errors();
	test_arrays();
	test_buffer();
	test_files(argv[1]);
	test_remove_tree(argv[1]);
	test_disk_usage(argv[1]);
	test_pipe_numbers();
	return failures != 0;
}
