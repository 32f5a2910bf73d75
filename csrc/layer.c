/* SPDX-License-Identifier: Apache-2.0 */
#include "layer.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/text.h"
#include "host/copy.h"
#include "host/mapped.h"
#include "links.h"
#include "marks.h"
#include "places.h"

/*
 * Times in inodes may be as coarse as a timer tick. A file changed so shortly
 * before it was looked at may have changed again without its ctime moving. All names
 * of a file are judged by the same moment: copied in part, they would be two files.
 */
#define RACY_NS 20000000LL

enum {
	ENTRY_RACY = 1,	  /* changed just before the tree was looked at */
	ENTRY_MAPPED = 2, /* mapped shared: memory writes leave no trace in the times */
	ENTRY_COPIED = 4, /* is in the layer's directory */
};

struct entry {
	char *name;
	ino_t ino;
	mode_t mode;
	off_t size;
	struct timespec mtime, ctime;
	unsigned int flags;
	struct bsh_marks marks; /* of a directory */
	struct entry **kids;	/* sorted by name */
	size_t n_kids;
};

struct bsh_layer_index {
	struct entry *root;
};

struct bsh_layer_job {
	int upper_fd, layer_fd;
	const struct bsh_layer_index *previous;
	struct entry *ahead; /* what bsh_layer_copy_ahead, or the last freeze, left in the directory */
	int frozen;
	bool whole;		/* a redirect has turned up that says nothing in the layers of before */
	struct timespec looked; /* when this look at the tree began */
	unsigned long long copied_bytes;
	ino_t *mapped;
	size_t n_mapped;
	struct bsh_links links; /* paths are under the layer's directory */
	size_t path_len;
	char path[PATH_MAX];
};

static void entry_free(struct entry *entry)
{
	if (!entry)
		return;
	for (size_t i = 0; i < entry->n_kids; i++)
		entry_free(entry->kids[i]);
	free(entry->kids);
	bsh_marks_release(&entry->marks);
	free(entry->name);
	free(entry);
}

void bsh_layer_index_free(struct bsh_layer_index *index)
{
	if (!index)
		return;
	entry_free(index->root);
	free(index);
}

static int compare_entries(const void *a, const void *b)
{
	return strcmp((*(struct entry *const *)a)->name, (*(struct entry *const *)b)->name);
}

static struct entry *find_kid(const struct entry *parent, const char *name)
{
	struct entry key = {.name = (char *)name}, *wanted = &key, **found;

	if (!parent || !parent->n_kids)
		return NULL;
	found = bsearch(&wanted, parent->kids, parent->n_kids, sizeof(*parent->kids), compare_entries);
	return found ? *found : NULL;
}

static int is_mapped(const struct bsh_layer_job *job, ino_t ino)
{
	return bsh_mapped_has(job->mapped, job->n_mapped, ino);
}

static long long between_ns(const struct timespec *then, const struct timespec *now)
{
	return (now->tv_sec - then->tv_sec) * 1000000000LL + now->tv_nsec - then->tv_nsec;
}

static struct entry *entry_new(const struct bsh_layer_job *job, const char *name, const struct stat *st)
{
	struct entry *entry = calloc(1, sizeof(*entry));

	if (!entry)
		return NULL;
	entry->name = strdup(name);
	if (!entry->name) {
		free(entry);
		return NULL;
	}
	entry->ino = st->st_ino;
	entry->mode = st->st_mode;
	entry->size = st->st_size;
	entry->mtime = st->st_mtim;
	entry->ctime = st->st_ctim;
	if (between_ns(&st->st_ctim, &job->looked) < RACY_NS)
		entry->flags |= ENTRY_RACY;
	if (is_mapped(job, st->st_ino))
		entry->flags |= ENTRY_MAPPED;
	return entry;
}

static int same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Whether now is certainly what it was when then was looked at. */
static int unchanged(const struct entry *then, const struct entry *now)
{
	return then && then->ino == now->ino && then->mode == now->mode && then->size == now->size &&
	       same_time(&then->mtime, &now->mtime) && same_time(&then->ctime, &now->ctime) &&
	       !((then->flags | now->flags) & ENTRY_MAPPED) && !(then->flags & ENTRY_RACY);
}

/* A directory stays itself whatever its times say. Its number alone says little: a new one may get it again. */
static const struct entry *same_directory(const struct entry *then, const struct entry *now)
{
	return then && S_ISDIR(then->mode) && then->ino == now->ino && bsh_marks_are_same(&then->marks, &now->marks)
		       ? then
		       : NULL;
}

/* ---- names of the same inode ---------------------------------------- */

/* Makes name a further link of path, if it is not one already. */
static int relink(struct bsh_layer_job *job, int to_dir, const char *name, const char *path, struct bsh_error *err)
{
	struct stat first, have;
	int rc;

	if (fstatat(job->layer_fd, path, &first, AT_SYMLINK_NOFOLLOW) < 0)
		return bsh_fail(err, errno, "look up %s in the layer", path);
	if (fstatat(to_dir, name, &have, AT_SYMLINK_NOFOLLOW) == 0 && have.st_ino == first.st_ino)
		return 0;
	rc = bsh_remove_tree(to_dir, name, err);
	if (rc < 0)
		return rc;
	if (linkat(job->layer_fd, path, to_dir, name, 0) < 0)
		return bsh_fail(err, errno, "link %s to %s in the layer", name, path);
	return 0;
}

/* ---- one directory --------------------------------------------------- */

static int push_name(struct bsh_layer_job *job, const char *name, size_t *ret_before, struct bsh_error *err)
{
	size_t length = strlen(name);

	if (job->path_len + length + 2 > sizeof(job->path))
		return bsh_fail(err, ENAMETOOLONG, "%s", job->path);
	*ret_before = job->path_len;
	if (job->path_len)
		job->path[job->path_len++] = '/';
	memcpy(job->path + job->path_len, name, length + 1);
	job->path_len += length;
	return 0;
}

static void pop_name(struct bsh_layer_job *job, size_t before)
{
	job->path_len = before;
	job->path[before] = 0;
}

static int add_kid(struct entry *parent, struct entry *kid)
{
	struct entry **grown;

	if ((parent->n_kids & (parent->n_kids + 1)) == 0) {
		grown = realloc(parent->kids, (parent->n_kids + 1) * 2 * sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		parent->kids = grown;
	}
	parent->kids[parent->n_kids++] = kid;
	return 0;
}

static int list_kids(struct bsh_layer_job *job, int dir_fd, struct entry *parent, struct bsh_error *err)
{
	auto_closedir DIR *dir = NULL;
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct dirent *item;
	struct stat st;

	if (fd < 0 || !(dir = fdopendir(fd)))
		return bsh_fail(err, errno, "list %s", job->path);
	for (errno = 0; (item = readdir(dir)); errno = 0) {
		struct entry *kid;

		if (!strcmp(item->d_name, ".") || !strcmp(item->d_name, ".."))
			continue;
		if (fstatat(dir_fd, item->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
			if (errno == ENOENT && !job->frozen)
				continue;
			return bsh_fail(err, errno, "look up %s in %s", item->d_name, job->path);
		}
		kid = entry_new(job, item->d_name, &st);
		if (!kid || add_kid(parent, kid) < 0) {
			entry_free(kid);
			return bsh_fail(err, ENOMEM, "list %s", job->path);
		}
	}
	if (errno)
		return bsh_fail(err, errno, "list %s", job->path);
	if (parent->n_kids)
		qsort(parent->kids, parent->n_kids, sizeof(*parent->kids), compare_entries);
	return 0;
}

/* An entry that vanished under a running source is no failure: the freeze will see. */
static int gone_while_running(const struct bsh_layer_job *job, int from_dir, const char *name)
{
	struct stat st;

	return !job->frozen && fstatat(from_dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

static int copy_again(struct bsh_layer_job *job, int from_dir, int to_dir, const char *name, const struct stat *st,
	const struct entry *ahead, struct bsh_error *err)
{
	int rc = 0;

	if (ahead && (ahead->flags & ENTRY_COPIED)) {
		if (S_ISREG(st->st_mode) && S_ISREG(ahead->mode))
			return bsh_copy_file_over(from_dir, to_dir, name, st, &job->copied_bytes, err);
		rc = bsh_remove_tree(to_dir, name, err);
	}
	return rc < 0 ? rc : bsh_copy_entry(from_dir, to_dir, name, st, &job->copied_bytes, err);
}

static int sync_file(struct bsh_layer_job *job, int from_dir, int to_dir, struct entry *now, const struct entry *ahead,
	struct bsh_error *err)
{
	const char *linked;
	struct stat st;
	int rc;

	if (fstatat(from_dir, now->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT && !job->frozen ? 0 : bsh_fail(err, errno, "look up %s", job->path);
	linked = st.st_nlink > 1 && !bsh_copy_is_whiteout(&st) ? bsh_links_find(&job->links, st.st_ino) : NULL;
	if (linked) {
		rc = relink(job, to_dir, now->name, linked, err);
	} else if (ahead && (ahead->flags & ENTRY_COPIED) && unchanged(ahead, now)) {
		rc = 0;
	} else {
		rc = copy_again(job, from_dir, to_dir, now->name, &st, ahead, err);
	}
	if (rc < 0 && gone_while_running(job, from_dir, now->name))
		return bsh_remove_tree(to_dir, now->name, err);
	if (rc < 0)
		return bsh_context(err, rc, "layer of %s", job->path);
	now->flags |= ENTRY_COPIED;
	if (!linked && st.st_nlink > 1 && !bsh_copy_is_whiteout(&st))
		bsh_links_add(&job->links, st.st_ino, job->path);
	return 0;
}

static int sync_directory(struct bsh_layer_job *job, int from_dir, int to_dir, struct entry *now,
	const struct entry *before, const struct entry *ahead, struct bsh_error *err);

/*
 * Overlay marks new directories opaque. Of one that the layer before has too, that layer says so already; said again,
 * it would hide what lies there. So it is with a redirect. One that replaces another entry hides that.
 */
static int sync_marks(int to, const struct entry *now, const struct entry *before, struct bsh_error *err)
{
	const struct bsh_marks *marks = &now->marks;

	if (!before)
		return 0; /* they were copied with all attributes */
	if (!same_directory(before, now))
		return bsh_marks_set(to, &(struct bsh_marks){.opaque = true}, err);
	return marks->opaque || marks->redirect ? bsh_marks_set(to, &(struct bsh_marks){0}, err) : 0;
}

static int enter_directory(struct bsh_layer_job *job, int from_dir, int to_dir, struct entry *now,
	const struct entry *before, const struct entry *ahead, struct bsh_error *err)
{
	auto_close int from = openat(from_dir, now->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	auto_close int to = -1;
	struct stat st;
	int rc;

	if (from < 0 || fstat(from, &st) < 0)
		return gone_while_running(job, from_dir, now->name) ? 0 : bsh_fail(err, errno, "open %s", job->path);
	rc = bsh_marks_read(from, &now->marks, err);
	if (rc < 0)
		return bsh_context(err, rc, "%s", job->path);
	if (job->previous && now->marks.redirect && !same_directory(before, now)) {
		job->whole = true;
		return -EAGAIN;
	}
	if (ahead && (ahead->flags & ENTRY_COPIED) && !same_directory(ahead, now)) {
		rc = bsh_remove_tree(to_dir, now->name, err);
		if (rc < 0)
			return rc;
		ahead = NULL;
	}
	if (mkdirat(to_dir, now->name, 0700) < 0 && errno != EEXIST)
		return bsh_fail(err, errno, "make directory %s in the layer", job->path);
	to = openat(to_dir, now->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (to < 0)
		return bsh_fail(err, errno, "open %s in the layer", job->path);
	now->flags |= ENTRY_COPIED;
	rc = sync_directory(job, from, to, now, same_directory(before, now), ahead, err);
	if (rc < 0)
		return rc;
	rc = bsh_copy_metadata(from_dir, to_dir, now->name, &st, err);
	if (rc < 0)
		return gone_while_running(job, from_dir, now->name) ? 0 : rc;
	rc = sync_marks(to, now, before, err);
	return rc < 0 ? bsh_context(err, rc, "layer of %s", job->path) : 0;
}

static int sync_kid(struct bsh_layer_job *job, int from_dir, int to_dir, struct entry *kid, const struct entry *before,
	const struct entry *ahead, struct bsh_error *err)
{
	size_t mark = 0;
	int rc;

	rc = push_name(job, kid->name, &mark, err);
	if (rc < 0)
		return rc;
	if (S_ISDIR(kid->mode))
		rc = enter_directory(job, from_dir, to_dir, kid, before, ahead, err);
	else if (!unchanged(before, kid))
		rc = sync_file(job, from_dir, to_dir, kid, ahead, err);
	pop_name(job, mark);
	return rc;
}

/* What the layer below has and the upper directory no longer: deleted without a trace there. */
static int hide_deleted(struct bsh_layer_job *job, int to_dir, const struct entry *now, const struct entry *before,
	struct bsh_error *err)
{
	for (size_t i = 0; before && i < before->n_kids; i++) {
		const char *name = before->kids[i]->name;
		int rc;

		if (find_kid(now, name))
			continue;
		rc = bsh_remove_tree(to_dir, name, err);
		if (rc < 0)
			return rc;
		if (mknodat(to_dir, name, S_IFCHR, 0) < 0)
			return bsh_fail(err, errno, "hide %s/%s", job->path, name);
	}
	return 0;
}

/* What was copied ahead and is not wanted any more. */
static int drop_stale(int to_dir, const struct entry *now, const struct entry *ahead, struct bsh_error *err)
{
	for (size_t i = 0; ahead && i < ahead->n_kids; i++) {
		const struct entry *kid = find_kid(now, ahead->kids[i]->name);
		int rc;

		if (!(ahead->kids[i]->flags & ENTRY_COPIED) || (kid && (kid->flags & ENTRY_COPIED)))
			continue;
		rc = bsh_remove_tree(to_dir, ahead->kids[i]->name, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* A file whose copy ahead became a whiteout, or the reverse, must not meet what lies there. */
static int clear_whiteout(int to_dir, const struct entry *kid, const struct entry *before, const struct entry *ahead,
	struct bsh_error *err)
{
	if (!find_kid(before, kid->name) || find_kid(ahead, kid->name))
		return 0;
	return bsh_remove_tree(to_dir, kid->name, err);
}

static int sync_directory(struct bsh_layer_job *job, int from_dir, int to_dir, struct entry *now,
	const struct entry *before, const struct entry *ahead, struct bsh_error *err)
{
	int rc = list_kids(job, from_dir, now, err);

	for (size_t i = 0; rc == 0 && i < now->n_kids; i++) {
		struct entry *kid = now->kids[i];

		if (job->ahead)
			rc = clear_whiteout(to_dir, kid, before, ahead, err);
		if (rc == 0)
			rc = sync_kid(job, from_dir, to_dir, kid, find_kid(before, kid->name),
				find_kid(ahead, kid->name), err);
	}
	if (rc == 0)
		rc = drop_stale(to_dir, now, ahead, err);
	if (rc == 0)
		rc = hide_deleted(job, to_dir, now, before, err);
	return rc;
}

/* ---- a layer ---------------------------------------------------------- */

int bsh_layer_begin(const char *upper, const char *dir, const struct bsh_layer_index *previous,
	struct bsh_layer_job **ret_job, struct bsh_error *err)
{
	struct bsh_layer_job *job = calloc(1, sizeof(*job));
	int rc;

	if (!job)
		return bsh_fail(err, ENOMEM, "layer %s", dir);
	job->previous = previous;
	job->layer_fd = -1;
	job->upper_fd = open(upper, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (job->upper_fd < 0) {
		rc = bsh_fail(err, errno, "open %s", upper);
	} else {
		rc = bsh_make_apart(dir, 0755, err);
	}
	if (rc == 0) {
		job->layer_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		rc = job->layer_fd < 0 ? bsh_fail(err, errno, "open layer %s", dir) : 0;
	}
	if (rc < 0) {
		bsh_layer_job_free(job);
		return rc;
	}
	*ret_job = job;
	return 0;
}

void bsh_layer_job_free(struct bsh_layer_job *job)
{
	if (!job)
		return;
	bsh_close_fd(&job->upper_fd);
	bsh_close_fd(&job->layer_fd);
	entry_free(job->ahead);
	bsh_links_release(&job->links);
	free(job->mapped);
	free(job);
}

static int sync_tree(struct bsh_layer_job *job, struct bsh_error *err)
{
	struct stat st;
	struct entry *root;
	int rc;

	clock_gettime(CLOCK_REALTIME, &job->looked);
	if (fstat(job->upper_fd, &st) < 0)
		return bsh_fail(err, errno, "look at the upper directory");
	root = entry_new(job, ".", &st);
	if (!root)
		return bsh_fail(err, ENOMEM, "layer");
	bsh_links_release(&job->links);
	rc = sync_directory(
		job, job->upper_fd, job->layer_fd, root, job->previous ? job->previous->root : NULL, job->ahead, err);
	if (rc == 0)
		rc = bsh_copy_metadata(job->upper_fd, job->layer_fd, ".", &st, err);
	if (rc < 0) {
		entry_free(root);
		return rc;
	}
	entry_free(job->ahead);
	job->ahead = root;
	return 0;
}

static int clear_layer(struct bsh_layer_job *job, struct bsh_error *err)
{
	auto_strv char **names = NULL;
	int rc = bsh_list_dir(job->layer_fd, ".", &names, err);

	for (size_t i = 0; rc == 0 && names[i]; i++)
		rc = bsh_remove_tree(job->layer_fd, names[i], err);
	entry_free(bsh_take(job->ahead));
	job->copied_bytes = 0;
	return rc;
}

/*
 * A redirect says where the layers that the workspace runs on have the directory. In a delta the ones of before would
 * be asked first, where it lay elsewhere, or was hidden.
 */
static int sync_root(struct bsh_layer_job *job, struct bsh_error *err)
{
	int rc = sync_tree(job, err);

	if (rc == 0 || !job->whole || !job->previous)
		return rc;
	job->previous = NULL;
	rc = clear_layer(job, err);
	return rc < 0 ? rc : sync_tree(job, err);
}

int bsh_layer_copy_ahead(struct bsh_layer_job *job, struct bsh_error *err)
{
	job->frozen = 0;
	return sync_root(job, err);
}

int bsh_layer_freeze(struct bsh_layer_job *job, const pid_t *pids, size_t n_pids, struct bsh_error *err)
{
	int rc;

	free(bsh_take(job->mapped));
	job->n_mapped = 0;
	rc = bsh_mapped_inodes(job->upper_fd, pids, n_pids, &job->mapped, &job->n_mapped, err);
	if (rc < 0)
		return rc;
	job->frozen = 1;
	return sync_root(job, err);
}

bool bsh_layer_is_whole(const struct bsh_layer_job *job)
{
	return !job->previous;
}

static void add_redirects(const struct entry *entry, const char *path, struct bsh_redirects *redirects)
{
	if (entry->marks.redirect)
		bsh_redirects_add(redirects, path, entry->marks.redirect);
	for (size_t i = 0; i < entry->n_kids; i++) {
		const struct entry *kid = entry->kids[i];
		auto_free char *below = NULL;

		if (!S_ISDIR(kid->mode))
			continue;
		below = bsh_format("%s%s%s", path, *path ? "/" : "", kid->name);
		add_redirects(kid, below, redirects);
	}
}

void bsh_layer_upper_redirects(const struct bsh_layer_job *job, struct bsh_redirects *redirects)
{
	add_redirects(job->ahead, "", redirects);
}

const char *bsh_layer_path_of(const struct bsh_layer_job *job, ino_t upper_inode)
{
	return bsh_links_find(&job->links, upper_inode);
}

int bsh_layer_fd(const struct bsh_layer_job *job)
{
	return job->layer_fd;
}

bool bsh_layer_has_upper(const struct bsh_layer_job *job, const char *path)
{
	return faccessat(job->upper_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

void bsh_layer_add_copied(struct bsh_layer_job *job, unsigned long long bytes)
{
	job->copied_bytes += bytes;
}

unsigned long long bsh_layer_copied_bytes(const struct bsh_layer_job *job)
{
	return job->copied_bytes;
}

struct bsh_layer_index *bsh_layer_take_index(struct bsh_layer_job *job)
{
	struct bsh_layer_index *index = calloc(1, sizeof(*index));

	if (!index)
		return NULL;
	index->root = bsh_take(job->ahead);
	return index;
}
