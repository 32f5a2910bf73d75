/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
/*
 * Overlay's marks on directories of a layer. An opaque one shows nothing of what the layers below have there. What lies
 * in a lower layer cannot be moved, so a directory that was renamed is one of the new name, which says where the layers
 * below have its content:
 *
 *   lower layer   a/x     upper   a = whiteout          merged   b/x
 *                                 b   redirect = a
 *
 * A redirect is a name in the same parent, or begins with a slash and is a path from the root of each layer below.
 */
#include <stdbool.h>
#include <stddef.h>

struct bsh_error;

struct bsh_marks {
	bool opaque;
	char *redirect; /* NULL: under its own name */
};

int bsh_marks_read(int dir, struct bsh_marks *ret_marks, struct bsh_error *err);
/* Gives the directory these marks and no others. */
int bsh_marks_set(int dir, const struct bsh_marks *marks, struct bsh_error *err);
bool bsh_marks_are_same(const struct bsh_marks *a, const struct bsh_marks *b);
void bsh_marks_release(struct bsh_marks *marks);
#define auto_marks __attribute__((cleanup(bsh_marks_release)))

/* All redirects of one layer. Paths are under the layer. */
struct bsh_redirects {
	struct bsh_redirect {
		char *path;
		char *below; /* where the layers below have it */
	} * list;
	size_t n;
};
/* Those of the directories above path come before it. */
void bsh_redirects_add(struct bsh_redirects *redirects, const char *path, const char *redirect);
/* From what the layers below have at *path to where this one shows it. */
void bsh_redirects_raise(const struct bsh_redirects *redirects, char **path);
void bsh_redirects_release(struct bsh_redirects *redirects);
