/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/* Files and directories. Paths relative to a directory descriptor, AT_FDCWD for the current directory. */
#include <stddef.h>
#include <sys/types.h>

struct bsh_error;

/* Whole file as NUL-terminated text; *ret_len may be NULL. */
int bsh_read_file(int dir_fd, const char *path, char **ret_text, size_t *ret_len, struct bsh_error *err);
/* One write() to an existing file (a control file of the kernel). */
int bsh_write_control(int dir_fd, const char *path, const char *text, struct bsh_error *err);
/* Replaces path by a file with this content: the old or the new one is there at any time. */
int bsh_write_file(int dir_fd, const char *path, const void *bytes, size_t len, mode_t mode, struct bsh_error *err);
/* mkdir -p */
int bsh_make_dirs(const char *path, mode_t mode, struct bsh_error *err);
/* Removes a tree. Follows no symbolic link, enters no other mount (fails with -EXDEV there). An absent one is fine. */
int bsh_remove_tree(int dir_fd, const char *path, struct bsh_error *err);
/* Bytes of disk under a directory, each inode once. */
int bsh_disk_usage(const char *path, unsigned long long *ret_bytes, struct bsh_error *err);
/* Names in a directory, sorted, without "." and ".."; an absent one has none. */
int bsh_list_dir(int dir_fd, const char *path, char ***ret_names, struct bsh_error *err);
/* read() and write() until done or an error; return -errno without a message. */
ssize_t bsh_read_all(int fd, void *bytes, size_t len);
int bsh_write_all(int fd, const void *bytes, size_t len);
/* pipe2(O_CLOEXEC) with both ends clear of the standard streams' numbers; -errno without a message. */
int bsh_make_pipe(int ret_fds[2]);
