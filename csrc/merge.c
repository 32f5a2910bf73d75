/* SPDX-License-Identifier: Apache-2.0 */
#include "merge.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/copy.h"

struct merge {
	const char *dir;
	/* Files with several names that have been copied: inode of the layer's file, path in dir. */
	struct linked {
		ino_t ino;
		char *path;
	} * linked;
	size_t n_linked;
};

/* The directories that lie over one another at path, top first. */
struct stack {
	const char *path; /* "" for the top, else "a/b" */
	char *const *layers;
	size_t n;
	bool opaque; /* hides what is below the last of them */
};

static int merge_stack(struct merge *merge, const struct stack *stack, struct bsh_error *err);

static char *join(const char *layer, const char *path, const char *name)
{
	return bsh_format("%s%s%s/%s", layer, *path ? "/" : "", path, name);
}

static bool is_opaque(const char *path)
{
	char value;

	return lgetxattr(path, "trusted.overlay.opaque", &value, 1) == 1 && value == 'y';
}

/* Is name seen in one of the first n layers of the stack? */
static bool seen_above(const struct stack *stack, size_t n, const char *name)
{
	struct stat st;

	for (size_t i = 0; i < n; i++) {
		auto_free char *path = join(stack->layers[i], stack->path, name);

		if (lstat(path, &st) == 0)
			return true;
	}
	return false;
}

/* ---- directories ---------------------------------------------------------- */

/* Which layers from the first-th on have a directory there, down to the one that hides the rest. */
static void stack_below(
	const struct stack *stack, size_t first, const char *name, char **ret_layers, struct stack *ret_below)
{
	ret_below->n = 0;
	ret_below->opaque = false;
	for (size_t i = first; i < stack->n && !ret_below->opaque; i++) {
		auto_free char *path = join(stack->layers[i], stack->path, name);
		struct stat st;

		if (lstat(path, &st) < 0)
			continue;
		/* A file or a deletion further down hides all below it as well. */
		if (S_ISDIR(st.st_mode))
			ret_layers[ret_below->n++] = stack->layers[i];
		ret_below->opaque = !S_ISDIR(st.st_mode) || is_opaque(path);
	}
	ret_below->layers = ret_layers;
}

static int merge_directory(struct merge *merge, const struct stack *stack, size_t first, const char *name,
	const struct stat *st, struct bsh_error *err)
{
	auto_free char **layers = bsh_alloc((stack->n + 1) * sizeof(*layers));
	auto_free char *path = bsh_format("%s%s%s", stack->path, *stack->path ? "/" : "", name);
	auto_free char *from = join(stack->layers[first], stack->path, name);
	auto_free char *to = join(merge->dir, stack->path, name);
	auto_close int from_fd = -1;
	auto_close int to_fd = -1;
	struct stack below = {.path = path};
	int rc;

	if (mkdir(to, 0700) < 0)
		return bsh_fail(err, errno, "make %s", to);
	stack_below(stack, first, name, layers, &below);
	rc = merge_stack(merge, &below, err);
	if (rc < 0)
		return rc;
	from_fd = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	to_fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (from_fd < 0 || to_fd < 0)
		return bsh_fail(err, errno, "open %s", from);
	rc = bsh_copy_metadata(from_fd, to_fd, ".", st, err);
	if (rc == 0 && below.opaque && fsetxattr(to_fd, "trusted.overlay.opaque", "y", 1, 0) < 0)
		return bsh_fail(err, errno, "mark %s opaque", to);
	return rc;
}

/* ---- everything else --------------------------------------------------------- */

static const char *linked_path(const struct merge *merge, ino_t ino)
{
	for (size_t i = 0; i < merge->n_linked; i++)
		if (merge->linked[i].ino == ino)
			return merge->linked[i].path;
	return NULL;
}

static void remember_linked(struct merge *merge, ino_t ino, const char *path)
{
	if ((merge->n_linked & (merge->n_linked + 1)) == 0) {
		merge->linked = realloc(merge->linked, (merge->n_linked + 1) * 2 * sizeof(*merge->linked));
		if (!merge->linked)
			abort();
	}
	merge->linked[merge->n_linked].ino = ino;
	merge->linked[merge->n_linked++].path = bsh_strdup(path);
}

static int merge_file(struct merge *merge, const char *from_dir, const char *path, const char *name,
	const struct stat *st, struct bsh_error *err)
{
	auto_free char *to_dir = bsh_format("%s/%s", merge->dir, path);
	auto_free char *to = join(merge->dir, path, name);
	auto_close int from_fd = open(from_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_close int to_fd = open(to_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool several = st->st_nlink > 1 && !bsh_copy_is_whiteout(st);
	const char *first = several ? linked_path(merge, st->st_ino) : NULL;
	unsigned long long bytes = 0;

	if (from_fd < 0 || to_fd < 0)
		return bsh_fail(err, errno, "open %s", from_fd < 0 ? from_dir : to_dir);
	if (first)
		return link(first, to) < 0 ? bsh_fail(err, errno, "link %s", to) : 0;
	if (several)
		remember_linked(merge, st->st_ino, to);
	return bsh_copy_entry(from_fd, to_fd, name, st, &bytes, err);
}

static int merge_layer(struct merge *merge, const struct stack *stack, size_t i, struct bsh_error *err)
{
	auto_free char *from = bsh_format("%s%s%s", stack->layers[i], *stack->path ? "/" : "", stack->path);
	auto_strv char **names = NULL;
	int rc = bsh_list_dir(AT_FDCWD, from, &names, err);

	for (size_t k = 0; rc == 0 && names[k]; k++) {
		auto_free char *path = bsh_format("%s/%s", from, names[k]);
		struct stat st;

		if (seen_above(stack, i, names[k]))
			continue;
		if (lstat(path, &st) < 0)
			return bsh_fail(err, errno, "look at %s", path);
		rc = S_ISDIR(st.st_mode) ? merge_directory(merge, stack, i, names[k], &st, err)
					 : merge_file(merge, from, stack->path, names[k], &st, err);
	}
	return rc;
}

static int merge_stack(struct merge *merge, const struct stack *stack, struct bsh_error *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < stack->n; i++)
		rc = merge_layer(merge, stack, i, err);
	return rc;
}

int bsh_merge_layers(char *const *layers, const char *dir, struct bsh_error *err)
{
	struct merge merge = {.dir = dir};
	struct stack stack = {.path = "", .layers = layers, .n = bsh_strv_len((const char *const *)layers)};
	auto_close int top = open(layers[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_close int made = -1;
	struct stat st;
	int rc;

	if (top < 0 || fstat(top, &st) < 0)
		return bsh_fail(err, errno, "open layer %s", layers[0]);
	if (mkdir(dir, 0755) < 0)
		return bsh_fail(err, errno, "make layer %s", dir);
	rc = merge_stack(&merge, &stack, err);
	for (size_t i = 0; i < merge.n_linked; i++)
		free(merge.linked[i].path);
	free(merge.linked);
	if (rc < 0)
		return rc;
	made = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (made < 0)
		return bsh_fail(err, errno, "open layer %s", dir);
	return bsh_copy_metadata(top, made, ".", &st, err);
}
