/* SPDX-License-Identifier: Apache-2.0 */
#include "alias.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/copy.h"
#include "layer.h"
#include "marks.h"

/* ---- which files of a layer have several names, and which directories were renamed ---- */

struct name {
	ino_t ino;
	char *path; /* under the layer */
};

/*
 * Layers never change while they are used, so that one look is enough for as long as the path is that of the
 * same directory: an image may be removed and another made in its place.
 */
struct layer_names {
	char *layer;
	dev_t dev;
	ino_t ino;
	struct timespec mtime;
	struct name *names; /* sorted by inode */
	size_t n;
	struct bsh_redirects redirects;
	struct layer_names *next;
};

static struct layer_names *known_layers;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static struct layer_names *filling; /* for nftw, which takes no context; under the lock */

static void note_redirect(const char *path)
{
	auto_close int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	auto_marks struct bsh_marks marks = {0};

	if (dir >= 0 && bsh_marks_read(dir, &marks, NULL) == 0 && marks.redirect)
		bsh_redirects_add(&filling->redirects, path + strlen(filling->layer) + 1, marks.redirect);
}

static int note_name(const char *path, const struct stat *st, int type, struct FTW *where)
{
	(void)type;
	if (S_ISDIR(st->st_mode) && where->level)
		note_redirect(path);
	if (S_ISDIR(st->st_mode) || st->st_nlink < 2 || bsh_copy_is_whiteout(st))
		return 0;
	if ((filling->n & (filling->n + 1)) == 0) {
		filling->names = realloc(filling->names, (filling->n + 1) * 2 * sizeof(*filling->names));
		if (!filling->names)
			abort();
	}
	filling->names[filling->n].ino = st->st_ino;
	filling->names[filling->n++].path = bsh_strdup(path + strlen(filling->layer) + 1);
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	const struct name *x = a, *y = b;

	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return strcmp(x->path, y->path);
}

static bool is_of(const struct layer_names *names, const char *layer, const struct stat *st)
{
	return !strcmp(names->layer, layer) && names->dev == st->st_dev && names->ino == st->st_ino &&
	       names->mtime.tv_sec == st->st_mtim.tv_sec && names->mtime.tv_nsec == st->st_mtim.tv_nsec;
}

static const struct layer_names *names_of_locked(const char *layer)
{
	struct layer_names *names;
	struct stat st;

	if (stat(layer, &st) < 0)
		return NULL;
	for (names = known_layers; names; names = names->next)
		if (is_of(names, layer, &st))
			return names;
	names = bsh_alloc(sizeof(*names));
	names->layer = bsh_strdup(layer);
	names->dev = st.st_dev;
	names->ino = st.st_ino;
	names->mtime = st.st_mtim;
	filling = names;
	nftw(layer, note_name, 32, FTW_PHYS | FTW_MOUNT);
	if (names->n)
		qsort(names->names, names->n, sizeof(*names->names), compare_names);
	names->next = known_layers;
	known_layers = names;
	return names;
}

/* Entries are never freed, so they may be used without the lock. */
static const struct layer_names *names_of(const char *layer)
{
	const struct layer_names *names;

	pthread_mutex_lock(&known_lock);
	names = names_of_locked(layer);
	pthread_mutex_unlock(&known_lock);
	return names;
}

/* ---- the overlay's index ------------------------------------------------------------ */

/* How overlay names the lower file that an upper one came from (struct ovl_fh with its leading version). */
struct origin {
	uint8_t version, magic, len, flags, type;
	uint8_t uuid[16];
	uint8_t handle[MAX_HANDLE_SZ];
} __attribute__((packed));
#define ORIGIN_MAGIC 0xfb
#define ORIGIN_HEADER offsetof(struct origin, handle)

/* A copied-up file and the lower one it came from. */
struct group {
	const char *index_name;
	ino_t upper, lower;
	bool named; /* the upper directory has one of its names */
	dev_t dev;
};

/* Finds the lower file of an index entry: 1; 0 if it has only one name or is no such file. */
static int read_group(int index_fd, int layer_fd, const char *name, struct group *group)
{
	union {
		struct file_handle handle;
		char bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	} lower = {0};
	auto_close int fd = -1;
	struct origin origin;
	struct stat st;
	ssize_t length;
	char path[64 + NAME_MAX];

	if (fstatat(index_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || S_ISDIR(st.st_mode) || bsh_copy_is_whiteout(&st))
		return 0;
	group->index_name = name;
	group->upper = st.st_ino;
	group->named = st.st_nlink > 1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", index_fd, name);
	length = lgetxattr(path, "trusted.overlay.origin", &origin, sizeof(origin));
	if (length <= (ssize_t)ORIGIN_HEADER || origin.magic != ORIGIN_MAGIC)
		return 0;
	lower.handle.handle_bytes = (unsigned int)(length - (ssize_t)ORIGIN_HEADER);
	lower.handle.handle_type = origin.type;
	memcpy(lower.handle.f_handle, origin.handle, lower.handle.handle_bytes);
	fd = open_by_handle_at(layer_fd, &lower.handle, O_PATH | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0 || st.st_nlink < 2)
		return 0;
	group->lower = st.st_ino;
	group->dev = st.st_dev;
	return 1;
}

typedef int (*group_visitor)(void *context, int index_fd, const struct group *group, struct bsh_error *err);

static int visit_groups(
	const struct bsh_alias_source *source, group_visitor visit, void *context, struct bsh_error *err)
{
	auto_close int index_fd = open(source->index, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_close int layer_fd = open(source->layers[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_strv char **names = NULL;
	int rc;

	if (index_fd < 0)
		return errno == ENOENT ? 0 : bsh_fail(err, errno, "open %s", source->index);
	if (layer_fd < 0)
		return bsh_fail(err, errno, "open %s", source->layers[0]);
	rc = bsh_list_dir(index_fd, ".", &names, err);
	for (size_t i = 0; rc == 0 && names[i]; i++) {
		struct group group;

		if (read_group(index_fd, layer_fd, names[i], &group))
			rc = visit(context, index_fd, &group, err);
	}
	return rc;
}

static int look_only(void *context, int index_fd, const struct group *group, struct bsh_error *err)
{
	const struct bsh_alias_source *source = context;

	(void)index_fd;
	(void)group;
	(void)err;
	for (size_t i = 0; source->layers[i]; i++)
		names_of(source->layers[i]);
	return 0;
}

int bsh_aliases_look_ahead(const struct bsh_alias_source *source, struct bsh_error *err)
{
	return visit_groups(source, look_only, (void *)source, err);
}

/* ---- adding names ------------------------------------------------------------------------ */

struct adding {
	const struct bsh_alias_source *source;
	struct bsh_layer_job *job;
	int root_fd, layer_fd;
	struct bsh_redirects redirects; /* of the upper directory */
};

/* Makes the directories above path in the layer, as they are in the merged tree. */
static int make_parents(const struct adding *adding, const char *path, struct bsh_error *err)
{
	char parent[PATH_MAX];
	struct stat st;
	int rc;

	for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path), path);
		if (mkdirat(adding->layer_fd, parent, 0700) < 0) {
			if (errno == EEXIST)
				continue;
			return bsh_fail(err, errno, "make directory %s in the layer", parent);
		}
		if (fstatat(adding->root_fd, parent, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return bsh_fail(err, errno, "look at %s", parent);
		rc = bsh_copy_metadata(adding->root_fd, adding->layer_fd, parent, &st, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* The new entry moved the times of the directories above it. */
static int restore_times(const struct adding *adding, const char *path, struct bsh_error *err)
{
	char parent[PATH_MAX];
	struct stat st;

	for (const char *end = path; end; end = strchr(end + 1, '/')) {
		snprintf(parent, sizeof(parent), "%.*s", (int)(end - path), path);
		if (end == path)
			strcpy(parent, ".");
		if (fstatat(adding->root_fd, parent, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return bsh_fail(err, errno, "look at %s", parent);
		const struct timespec times[2] = {st.st_atim, st.st_mtim};

		if (utimensat(adding->layer_fd, parent, times, AT_SYMLINK_NOFOLLOW) < 0)
			return bsh_fail(err, errno, "set times of %s in the layer", parent);
	}
	return 0;
}

/* The copied-up file itself, when none of its names is in the upper directory. */
static int copy_group(
	const struct adding *adding, int index_fd, const struct group *group, const char *path, struct bsh_error *err)
{
	unsigned long long bytes = 0;
	struct stat st;
	int rc;

	if (fstatat(index_fd, group->index_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return bsh_fail(err, errno, "look at the overlay's index");
	rc = bsh_copy_entry(index_fd, adding->layer_fd, group->index_name, &st, &bytes, err);
	if (rc < 0)
		return rc;
	bsh_layer_add_copied(adding->job, bytes);
	if (renameat(adding->layer_fd, group->index_name, adding->layer_fd, path) < 0)
		return bsh_fail(err, errno, "move into the layer as %s", path);
	return 0;
}

/* Where the merged tree has what the number-th lower directory has at path, if it is not hidden. */
static char *merged_path(const struct adding *adding, size_t number, const char *path)
{
	char *shown = bsh_strdup(path);

	while (number-- > 0) {
		const struct layer_names *above = names_of(adding->source->layers[number]);

		if (above)
			bsh_redirects_raise(&above->redirects, &shown);
	}
	bsh_redirects_raise(&adding->redirects, &shown);
	return shown;
}

/* Is path, in the merged tree, still a name of that file and one that the upper directory lacks? */
static int is_missing(const struct adding *adding, const struct group *group, const char *path)
{
	struct stat st;

	if (fstatat(adding->root_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_ino != group->lower)
		return 0;
	return !bsh_layer_has_upper(adding->job, path);
}

/* first is the one that the layer has already, or becomes this one. */
static int add_name(const struct adding *adding, int index_fd, const struct group *group, const char *path,
	char **first, struct bsh_error *err)
{
	int rc = make_parents(adding, path, err);

	if (rc == 0)
		rc = bsh_remove_tree(adding->layer_fd, path, err);
	if (rc == 0 && !*first)
		rc = copy_group(adding, index_fd, group, path, err);
	else if (rc == 0 && linkat(adding->layer_fd, *first, adding->layer_fd, path, 0) < 0)
		rc = bsh_fail(err, errno, "link %s in the layer", path);
	if (rc == 0)
		rc = restore_times(adding, path, err);
	if (!*first)
		*first = bsh_strdup(path);
	return rc;
}

static int add_names(void *context, int index_fd, const struct group *group, struct bsh_error *err)
{
	const struct adding *adding = context;
	auto_free char *first = bsh_strdup(bsh_layer_path_of(adding->job, group->upper));
	int rc = 0;

	/* Named but not copied: unchanged since the previous layer, which has all its names. */
	if (!first && group->named)
		return 0;
	for (size_t i = 0; rc == 0 && adding->source->layers[i]; i++) {
		const struct layer_names *names = names_of(adding->source->layers[i]);

		for (size_t k = 0; names && names->dev == group->dev && rc == 0 && k < names->n; k++) {
			auto_free char *path = NULL;

			if (names->names[k].ino != group->lower)
				continue;
			path = merged_path(adding, i, names->names[k].path);
			if (is_missing(adding, group, path))
				rc = add_name(adding, index_fd, group, path, &first, err);
		}
	}
	return rc;
}

int bsh_aliases_add(struct bsh_layer_job *job, const struct bsh_alias_source *source, struct bsh_error *err)
{
	auto_close int root_fd = open(source->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct adding adding = {.source = source, .job = job, .root_fd = root_fd, .layer_fd = bsh_layer_fd(job)};
	int rc;

	if (root_fd < 0)
		return bsh_fail(err, errno, "open %s", source->root);
	bsh_layer_upper_redirects(job, &adding.redirects);
	rc = visit_groups(source, add_names, &adding, err);
	bsh_redirects_release(&adding.redirects);
	return rc;
}
