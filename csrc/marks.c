/* SPDX-License-Identifier: Apache-2.0 */
#include "marks.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/text.h"

#define OPAQUE "trusted.overlay.opaque"
#define REDIRECT "trusted.overlay.redirect"

/* One name, or names each after a slash. One that leads out of its layer is nothing that overlay wrote. */
static bool is_valid(const char *redirect)
{
	bool absolute = *redirect == '/';

	do {
		const char *name = redirect + absolute;
		size_t len = strcspn(name, "/");

		if (!len || (len == 1 && name[0] == '.') || (len == 2 && name[0] == '.' && name[1] == '.'))
			return false;
		redirect = name + len;
	} while (absolute && *redirect);
	return !*redirect;
}

int bsh_marks_read(int dir, struct bsh_marks *ret_marks, struct bsh_error *err)
{
	char opaque = 'n', redirect[PATH_MAX];
	ssize_t len;

	if (fgetxattr(dir, OPAQUE, &opaque, 1) < 0 && errno != ENODATA && errno != EOPNOTSUPP)
		return bsh_fail(err, errno, "read " OPAQUE);
	len = fgetxattr(dir, REDIRECT, redirect, sizeof(redirect) - 1);
	if (len < 0 && errno != ENODATA && errno != EOPNOTSUPP)
		return bsh_fail(err, errno, "read " REDIRECT);
	if (len >= 0) {
		redirect[len] = '\0';
		if (!is_valid(redirect))
			return bsh_fail(err, EINVAL, REDIRECT " of \"%s\"", redirect);
	}
	ret_marks->opaque = opaque == 'y';
	ret_marks->redirect = len < 0 ? NULL : bsh_strdup(redirect);
	return 0;
}

static int set(int dir, const char *name, const char *value, struct bsh_error *err)
{
	if (value)
		return fsetxattr(dir, name, value, strlen(value), 0) < 0 ? bsh_fail(err, errno, "set %s", name) : 0;
	return fremovexattr(dir, name) < 0 && errno != ENODATA ? bsh_fail(err, errno, "remove %s", name) : 0;
}

int bsh_marks_set(int dir, const struct bsh_marks *marks, struct bsh_error *err)
{
	int rc = set(dir, OPAQUE, marks->opaque ? "y" : NULL, err);

	return rc < 0 ? rc : set(dir, REDIRECT, marks->redirect, err);
}

bool bsh_marks_are_same(const struct bsh_marks *a, const struct bsh_marks *b)
{
	if (a->opaque != b->opaque || !a->redirect != !b->redirect)
		return false;
	return !a->redirect || !strcmp(a->redirect, b->redirect);
}

void bsh_marks_release(struct bsh_marks *marks)
{
	free(marks->redirect);
	marks->redirect = NULL;
}

/* What follows top in path, with its slash; NULL if path is not below it. */
static const char *rest_below(const char *path, const char *top)
{
	size_t len = strlen(top);

	return strncmp(path, top, len) == 0 && (path[len] == '/' || !path[len]) ? path + len : NULL;
}

/* The reverse of bsh_redirects_raise. */
static char *lowered(const struct bsh_redirects *redirects, const char *path)
{
	const struct bsh_redirect *deepest = NULL;

	for (size_t i = 0; i < redirects->n; i++) {
		const struct bsh_redirect *at = &redirects->list[i];

		if (rest_below(path, at->path) && (!deepest || strlen(at->path) > strlen(deepest->path)))
			deepest = at;
	}
	return deepest ? bsh_format("%s%s", deepest->below, rest_below(path, deepest->path)) : bsh_strdup(path);
}

static char *below_of(const struct bsh_redirects *redirects, const char *path, const char *redirect)
{
	const char *name = strrchr(path, '/');
	auto_free char *parent = bsh_format("%.*s", name ? (int)(name - path) : 0, path);
	auto_free char *below = NULL;

	if (*redirect == '/')
		return bsh_strdup(redirect + 1);
	below = lowered(redirects, parent);
	return bsh_format("%s%s%s", below, *below ? "/" : "", redirect);
}

void bsh_redirects_add(struct bsh_redirects *redirects, const char *path, const char *redirect)
{
	struct bsh_redirect added = {.path = bsh_strdup(path), .below = below_of(redirects, path, redirect)};

	redirects->list = realloc(redirects->list, (redirects->n + 1) * sizeof(*redirects->list));
	if (!redirects->list)
		abort();
	redirects->list[redirects->n++] = added;
}

void bsh_redirects_raise(const struct bsh_redirects *redirects, char **path)
{
	const struct bsh_redirect *deepest = NULL;
	char *shown;

	for (size_t i = 0; i < redirects->n; i++) {
		const struct bsh_redirect *at = &redirects->list[i];

		if (rest_below(*path, at->below) && (!deepest || strlen(at->below) > strlen(deepest->below)))
			deepest = at;
	}
	if (!deepest)
		return;
	shown = bsh_format("%s%s", deepest->path, rest_below(*path, deepest->below));
	free(*path);
	*path = shown;
}

void bsh_redirects_release(struct bsh_redirects *redirects)
{
	while (redirects->n) {
		struct bsh_redirect *last = &redirects->list[--redirects->n];

		free(last->path);
		free(last->below);
	}
	free(redirects->list);
	redirects->list = NULL;
}
