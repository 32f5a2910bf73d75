/* SPDX-License-Identifier: Apache-2.0 */
#include "merge.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/copy.h"
#include "links.h"
#include "marks.h"
#include "places.h"

struct merge {
	const char *dir;
	char *const *layers;
	size_t n_layers;
	struct bsh_links links; /* paths are whole ones, in dir */
};

/* A directory of one of the layers. */
struct place {
	size_t layer;
	char *path; /* under it; "" is the layer itself */
};

/* The directories that lie over one another, top first. They may have been renamed in between. */
struct stack {
	char *path; /* of what they become, under the merged layer's directory */
	struct place *places;
	size_t n;
	/* What the layers below ours have there: a name in the same parent, or a path after a slash. NULL: hidden. */
	char *below;
	bool alone; /* nothing is below */
};

static void stack_release(struct stack *stack)
{
	while (stack->n)
		free(stack->places[--stack->n].path);
	free(stack->places);
	free(stack->path);
	free(stack->below);
}

#define auto_stack __attribute__((cleanup(stack_release)))

static int merge_stack(struct merge *merge, const struct stack *stack, struct bsh_error *err);

static char *join(const char *path, const char *name)
{
	return bsh_format("%s%s%s", path, *path ? "/" : "", name);
}

static char *path_of(const struct merge *merge, const struct place *place)
{
	return join(merge->layers[place->layer], place->path);
}

/* Is name seen in one of the first n places of the stack? */
static bool seen_above(const struct merge *merge, const struct stack *stack, size_t n, const char *name)
{
	struct stat st;

	for (size_t i = 0; i < n; i++) {
		auto_free char *dir = path_of(merge, &stack->places[i]);
		auto_free char *path = join(dir, name);

		if (lstat(path, &st) == 0)
			return true;
	}
	return false;
}

/* ---- looking a directory up, as overlay does (fs/overlayfs/namei.c in Linux) ------------ */

struct search {
	char *name; /* a name in the same parent, or a path after a slash; redirects change it */
	bool stop;  /* what is further down is hidden */
};

/* A directory with these marks has been found for the name from start to end: what is asked for further down? */
static void follow(struct search *search, const struct bsh_marks *marks, size_t start, size_t end)
{
	auto_free char *old = search->name;

	if (marks->opaque) {
		search->stop = true;
		search->name = bsh_take(old);
	} else if (!marks->redirect) {
		search->name = bsh_take(old);
	} else if (*marks->redirect != '/') {
		search->name = bsh_format("%.*s%s%s", (int)start, old, marks->redirect, old + end);
	} else {
		/* That does not go through the directories above, which may have been opaque. */
		search->stop = false;
		search->name = bsh_format("%s%s", marks->redirect, old + end);
	}
}

/* From the directory at into the one that the name from start to end is of; at->path is NULL if there is none. */
static int step(const struct merge *merge, struct place *at, struct search *search, size_t start, size_t end,
	struct bsh_error *err)
{
	auto_free char *name = bsh_format("%.*s", (int)(end - start), search->name + start);
	auto_free char *parent = at->path;
	auto_free char *path = NULL;
	auto_marks struct bsh_marks marks = {0};
	auto_close int dir = -1;
	int rc;

	at->path = join(parent, name);
	path = path_of(merge, at);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0) {
		/* A file or a deletion hides all below it. */
		search->stop = search->stop || errno == ENOTDIR;
		rc = errno == ENOENT || errno == ENOTDIR || errno == ENAMETOOLONG
			     ? 0
			     : bsh_fail(err, errno, "open %s", path);
		free(bsh_take(at->path));
		return rc;
	}
	rc = bsh_marks_read(dir, &marks, err);
	if (rc < 0)
		return bsh_context(err, rc, "%s", path);
	follow(search, &marks, start, end);
	return 0;
}

/* Looks in one layer, in parent or from the layer's root, and puts what it finds onto the stack. */
static int search_layer(const struct merge *merge, const struct place *parent, struct search *search,
	struct stack *stack, struct bsh_error *err)
{
	bool absolute = *search->name == '/';
	struct place at = {.layer = parent->layer, .path = bsh_strdup(absolute ? "" : parent->path)};
	size_t left = strlen(search->name) - absolute;
	int rc = 0;

	/* Counted from the end, since what was passed may get another name. */
	while (rc == 0 && at.path && left) {
		size_t start = strlen(search->name) - left;
		size_t len = strcspn(search->name + start, "/");

		rc = step(merge, &at, search, start, start + len, err);
		left -= len < left ? len + 1 : len;
	}
	if (rc < 0 || !at.path) {
		free(at.path);
		return rc;
	}
	stack->places[stack->n++] = at;
	return 0;
}

/* The directories that the one called name in the first-th place of parent lies over, itself included. */
static int stack_below(const struct merge *merge, const struct stack *parent, size_t first, const char *name,
	struct stack *ret_below, struct bsh_error *err)
{
	struct search search = {.name = bsh_strdup(name)};
	size_t layer = 0;
	int rc = 0;

	ret_below->path = join(parent->path, name);
	ret_below->places = bsh_alloc(merge->n_layers * sizeof(*ret_below->places));
	for (size_t i = first; rc == 0 && i < parent->n && !search.stop && *search.name != '/'; i++) {
		layer = parent->places[i].layer + 1;
		rc = search_layer(merge, &parent->places[i], &search, ret_below, err);
	}
	for (; rc == 0 && layer < merge->n_layers && !search.stop && *search.name == '/'; layer++)
		rc = search_layer(merge, &(struct place){.layer = layer}, &search, ret_below, err);
	if (search.stop)
		free(bsh_take(search.name));
	ret_below->below = search.name;
	ret_below->alone = !search.name || (parent->alone && *search.name != '/');
	return rc;
}

/* ---- directories ---------------------------------------------------------- */

static int mark(int dir, const struct stack *stack, const char *name, struct bsh_error *err)
{
	const bool renamed = stack->below && strcmp(stack->below, name) != 0;
	const struct bsh_marks marks = {.opaque = !stack->below, .redirect = renamed ? stack->below : NULL};
	int rc = bsh_marks_set(dir, &marks, err);

	return rc < 0 ? bsh_context(err, rc, "merge %s", stack->path) : 0;
}

static int merge_directory(struct merge *merge, const struct stack *stack, size_t first, const char *name,
	const struct stat *st, struct bsh_error *err)
{
	auto_free char *from_dir = path_of(merge, &stack->places[first]);
	auto_free char *from = join(from_dir, name);
	auto_free char *to_dir = join(merge->dir, stack->path);
	auto_free char *to = join(to_dir, name);
	auto_close int from_fd = -1;
	auto_close int to_fd = -1;
	auto_stack struct stack below = {0};
	int rc;

	if (mkdir(to, 0700) < 0)
		return bsh_fail(err, errno, "make %s", to);
	rc = stack_below(merge, stack, first, name, &below, err);
	if (rc == 0)
		rc = merge_stack(merge, &below, err);
	if (rc < 0)
		return rc;
	from_fd = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	to_fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (from_fd < 0 || to_fd < 0)
		return bsh_fail(err, errno, "open %s", from);
	rc = bsh_copy_metadata(from_fd, to_fd, ".", st, err);
	return rc < 0 ? rc : mark(to_fd, &below, name, err);
}

/* ---- everything else --------------------------------------------------------- */

static int merge_file(struct merge *merge, const char *from_dir, const char *to_path, const char *name,
	const struct stat *st, struct bsh_error *err)
{
	auto_free char *to_dir = join(merge->dir, to_path);
	auto_free char *to = join(to_dir, name);
	auto_close int from_fd = open(from_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_close int to_fd = open(to_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool several = st->st_nlink > 1 && !bsh_copy_is_whiteout(st);
	const char *first = several ? bsh_links_find(&merge->links, st->st_ino) : NULL;
	unsigned long long bytes = 0;

	if (from_fd < 0 || to_fd < 0)
		return bsh_fail(err, errno, "open %s", from_fd < 0 ? from_dir : to_dir);
	if (first)
		return link(first, to) < 0 ? bsh_fail(err, errno, "link %s", to) : 0;
	if (several)
		bsh_links_add(&merge->links, st->st_ino, to);
	return bsh_copy_entry(from_fd, to_fd, name, st, &bytes, err);
}

static int merge_place(struct merge *merge, const struct stack *stack, size_t i, struct bsh_error *err)
{
	auto_free char *from = path_of(merge, &stack->places[i]);
	auto_strv char **names = NULL;
	int rc = bsh_list_dir(AT_FDCWD, from, &names, err);

	for (size_t k = 0; rc == 0 && names[k]; k++) {
		auto_free char *path = join(from, names[k]);
		struct stat st;

		if (seen_above(merge, stack, i, names[k]))
			continue;
		if (lstat(path, &st) < 0)
			return bsh_fail(err, errno, "look at %s", path);
		/* Overlay lists a directory that lies over no other as it is, whiteouts included. */
		if (stack->alone && bsh_copy_is_whiteout(&st))
			continue;
		rc = S_ISDIR(st.st_mode) ? merge_directory(merge, stack, i, names[k], &st, err)
					 : merge_file(merge, from, stack->path, names[k], &st, err);
	}
	return rc;
}

static int merge_stack(struct merge *merge, const struct stack *stack, struct bsh_error *err)
{
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < stack->n; i++)
		rc = merge_place(merge, stack, i, err);
	return rc;
}

static int merge_all(struct merge *merge, struct bsh_error *err)
{
	auto_stack struct stack roots = {
		.path = bsh_strdup(""), .places = bsh_alloc(merge->n_layers * sizeof(*roots.places))};

	for (; roots.n < merge->n_layers; roots.n++)
		roots.places[roots.n] = (struct place){.layer = roots.n, .path = bsh_strdup("")};
	return merge_stack(merge, &roots, err);
}

int bsh_merge_layers(char *const *layers, const char *dir, struct bsh_error *err)
{
	struct merge merge = {.dir = dir, .layers = layers, .n_layers = bsh_strv_len((const char *const *)layers)};
	auto_close int top = open(layers[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_close int made = -1;
	struct stat st;
	int rc;

	if (top < 0 || fstat(top, &st) < 0)
		return bsh_fail(err, errno, "open layer %s", layers[0]);
	rc = bsh_make_apart(dir, 0755, err);
	if (rc < 0)
		return rc;
	rc = merge_all(&merge, err);
	bsh_links_release(&merge.links);
	if (rc < 0)
		return rc;
	made = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (made < 0)
		return bsh_fail(err, errno, "open layer %s", dir);
	return bsh_copy_metadata(top, made, ".", &st, err);
}
